/* base/file: files that appear when they are complete, and what somebody else puts in their way. */
#include "base/file.h"
#include "h5/h5.h"
#include "tests/support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct err e;

/* What the C library's functions do instead, if a test says so. */
static bool can_only_replace; /* as file systems without RENAME_NOREPLACE */
static const char
	*taken_meanwhile; /* by another program, when a folder cannot be synced */

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
	if (!can_only_replace)
		return (int)syscall(SYS_renameat2, a, from, b, to, flags);
	errno = EINVAL;
	return -1;
}

int fsync(int fd)
{
	struct stat st;
	if (!taken_meanwhile || fstat(fd, &st) || !S_ISDIR(st.st_mode))
		return (int)syscall(SYS_fsync, fd);
	unlink(test_path(taken_meanwhile));
	test_file(taken_meanwhile, "theirs");
	errno = EIO;
	return -1;
}

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	can_only_replace = false;
	taken_meanwhile = NULL;
	return 0;
}

/* How many files have a name that begins so? */
static size_t n_files(const char *name)
{
	struct str pattern = {0};
	glob_t found;
	str_printf(&pattern, "%s*", test_path(name));
	size_t n = glob(pattern.s, 0, NULL, &found) ? 0 : found.gl_pathc;
	globfree(&found);
	str_free(&pattern);
	return n;
}

static void holds(const char *path, const char *text)
{
	struct str all = {0};
	assert_int_equal(file_read(path, 100, &all, &e), 0);
	assert_string_equal(all.s, text);
	str_free(&all);
}

static void put(struct durable *d, const char *text)
{
	int fd = durable_open(d);
	assert_true(fd >= 0);
	assert_int_equal(write_all(fd, text, strlen(text)), 0);
	close(fd);
}

TEST_AFTER(begin, a_set_gets_all_its_names_or_none)
{
	static const char *const names[] = {"set-0", "set-1", "set-2"};
	struct durable d[3], *all[] = {&d[0], &d[1], &d[2]};
	for (int taken = 0; taken < 2; taken++) {
		for (int i = 0; i < 3; i++) {
			assert_int_equal(
				durable_begin(&d[i], test_path(names[i]), &e), 0);
			d[i].keeps = true;
		}
		if (taken) /* meanwhile, by another program */
			test_file(names[2], "other");
		assert_int_equal(durable_commit_all(all, 3, &e), taken ? -1 : 0);
		for (int i = 0; i < 3; i++)
			assert_int_equal(
				file_exists(test_path(names[i])), !taken || i == 2);
		for (int i = 0; i < 3; i++) {
			durable_abort(&d[i]);
			unlink(test_path(names[i]));
		}
	}
}

TEST_AFTER(begin, durable_replaces_at_once)
{
	struct durable d;
	struct str text = {0};
	const char *path = test_file("durable", "old");
	assert_int_equal(durable_begin(&d, path, &e), 0);
	put(&d, "new");
	durable_abort(&d);
	assert_int_equal(n_files("durable"), 1);
	assert_int_equal(durable_begin(&d, path, &e), 0);
	put(&d, "new");
	holds(path, "old");
	assert_int_equal(durable_commit(&d, &e), 0);
	holds(path, "new");
	assert_int_equal(n_files("durable"), 1);
	assert_int_equal(file_read(path, 2, &text, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	str_free(&text);
}

/* Two names of one file have no digit in common more often than by chance. */
TEST_AFTER(begin, nobody_can_guess_the_name)
{
	enum { DIGITS = 16 };
	struct durable a, b;
	int equal = 0;
	assert_int_equal(durable_begin(&a, test_path("guess"), &e), 0);
	assert_int_equal(durable_begin(&b, test_path("guess"), &e), 0);
	size_t n = strlen(test_path("guess."));
	assert_int_equal(strlen(a.tmp), n + DIGITS + strlen(".tmp"));
	for (size_t i = n; i < n + DIGITS; i++)
		equal += a.tmp[i] == b.tmp[i];
	assert_true(equal < DIGITS / 2);
	durable_abort(&a);
	durable_abort(&b);
}

/* Somebody who may write to the directory puts a link where the temporary file is. */
TEST_AFTER(begin, no_link_is_followed)
{
	struct durable d;
	struct h5 *h;
	char *victim = xstrdup(test_file("victim", "precious"));
	assert_int_equal(durable_begin(&d, test_path("x.h5"), &e), 0);
	assert_int_equal(unlink(d.tmp), 0);
	assert_int_equal(symlink(victim, d.tmp), 0);
	assert_int_equal(durable_open(&d), -1);
	assert_int_equal(errno, ELOOP);
	assert_int_equal(h5_create(&h, d.tmp, &e), -1);
	assert_int_equal(e.code, EX_IOERR);
	e = (struct err){0};
	assert_int_equal(h5_reopen(&h, d.tmp, &e), -1);
	e = (struct err){0};
	assert_int_equal(durable_commit(&d, &e), -1);
	assert_int_equal(n_files("x.h5"), 0);
	holds(victim, "precious");
	free(victim);
}

/* A file that is created through the open one is the file at that name. */
TEST_AFTER(begin, h5_writes_the_file_itself)
{
	struct durable d;
	struct h5 *h;
	struct stat st;
	int64_t n = 3, numbers[] = {1, 2, 3};
	assert_int_equal(durable_begin(&d, test_path("y.h5"), &e), 0);
	assert_int_equal(h5_create(&h, d.tmp, &e), 0);
	assert_int_equal(h5_end(h, h5_put(h, "/x", H5_I64, 1, &n, numbers, &e), &e), 0);
	assert_int_equal(h5_reopen(&h, d.tmp, &e), 0);
	assert_int_equal(h5_end(h, h5_put(h, "/z", H5_I64, 1, &n, numbers, &e), &e), 0);
	assert_int_equal(stat(d.tmp, &st), 0);
	assert_true(st.st_size > 0);
	assert_int_equal(durable_commit(&d, &e), 0);
	assert_int_equal(h5_open(&h, test_path("y.h5"), &e), 0);
	assert_true(h5_has(h, "/z"));
	h5_close(h, &e);
}

/* Where the file system cannot refuse to replace, too. */
TEST_AFTER(begin, what_keeps_does_not_replace)
{
	struct durable d;
	for (int i = 0; i < 4; i++) {
		bool exists = i % 2;
		can_only_replace = i / 2;
		if (exists)
			test_file("kept", "old");
		assert_int_equal(durable_begin(&d, test_path("kept"), &e), 0);
		put(&d, "new");
		d.keeps = true;
		assert_int_equal(durable_commit(&d, &e), exists ? -1 : 0);
		holds(test_path("kept"), exists ? "old" : "new");
		assert_int_equal(n_files("kept"), 1);
		assert_int_equal(unlink(test_path("kept")), 0);
	}
	/* the name that was claimed is given back */
	assert_int_equal(durable_begin(&d, test_path("kept"), &e), 0);
	d.keeps = true;
	e = (struct err){0};
	assert_int_equal(unlink(d.tmp), 0);
	assert_int_equal(mkdir(d.tmp, 0777), 0); /* which rename() refuses */
	assert_int_equal(durable_commit(&d, &e), -1);
	assert_false(file_exists(test_path("kept")));
}

TEST_AFTER(begin, what_others_made_is_not_taken_back)
{
	struct durable d;
	assert_int_equal(durable_begin(&d, test_path("new"), &e), 0);
	taken_meanwhile = "new";
	assert_int_equal(durable_commit(&d, &e), -1);
	assert_int_equal(e.code, EX_IOERR);
	holds(test_path("new"), "theirs");
}

TEST_AFTER(begin, hard_links_are_not_written_through)
{
	int fd;
	char *victim = xstrdup(test_file("linked", "precious"));
	assert_int_equal(link(victim, test_path("second")), 0);
	assert_int_equal(file_open_plain(test_path("second"), O_RDWR | O_CREAT), -1);
	assert_int_equal(errno, EMLINK);
	assert_int_equal(file_lock(test_path("second"), true, &fd), EMLINK);
	assert_int_equal(file_check_plain(test_path("second"), &e), -1);
	fd = file_open_plain(test_path("second"), O_RDONLY);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(unlink(victim), 0);
	fd = file_open_plain(test_path("second"), O_RDWR);
	assert_true(fd >= 0);
	close(fd);
	free(victim);
}

TEST_AFTER(begin, a_fifo_gets_a_reader_first)
{
	char got[8] = "";
	const char *fifo = test_path("output");
	assert_int_equal(mkfifo(fifo, 0666), 0);
	pid_t reader = fork();
	if (reader == 0) {
		/* later than a moment, and earlier than the message */
		const struct timespec later = {.tv_nsec = 200000000};
		nanosleep(&later, NULL);
		int from = open(fifo, O_RDONLY);
		_exit(read(from, got, sizeof(got)) == 3 && !memcmp(got, "abc", 3) ? 0
										  : 1);
	}
	int fd = file_open_output(fifo, O_CREAT | O_TRUNC), status;
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
	assert_int_equal(write_all(fd, "abc", 3), 0);
	close(fd);
	assert_int_equal(waitpid(reader, &status, 0), reader);
	assert_int_equal(status, 0);
}

TEST_AFTER(begin, a_failed_rename_leaves_nothing)
{
	struct durable d;
	assert_int_equal(mkdir(test_path("folder"), 0777), 0);
	assert_int_equal(durable_begin(&d, test_path("folder"), &e), 0);
	assert_int_equal(durable_commit(&d, &e), -1);
	assert_int_equal(e.code, EX_IOERR);
	assert_int_equal(n_files("folder"), 1);
	e = (struct err){0};
	assert_int_equal(file_link("target", test_path("folder"), &e), -1);
	assert_int_equal(e.code, EX_IOERR);
	assert_int_equal(n_files("folder"), 1);
	assert_int_equal(file_link("target", test_path("link"), &(struct err){0}), 0);
	assert_int_equal(file_link("other", test_path("link"), &(struct err){0}), 0);
}

TEST_AFTER(begin, only_what_was_left_is_removed)
{
	static const char *const stay[] = {"run.h5", "run.h5.tmp", "run.h5.0123.tmp",
		"run.h5.0123456789abcdeg.tmp", "run.h5.0123456789abcdef",
		"run.h5.0123456789abcdef.tmp.tmp", "other.h5.0123456789abcdef.tmp"};
	struct durable d;
	for (size_t i = 0; i < ARRAY_LEN(stay); i++)
		test_file(stay[i], "x");
	assert_int_equal(durable_begin(&d, test_path("run.h5"), &e), 0);
	durable_forget(&d); /* as if the program had been killed */
	assert_int_equal(n_files("run.h5"), ARRAY_LEN(stay));
	durable_remove_stale(test_path("run.h5"));
	assert_int_equal(n_files("run.h5"), ARRAY_LEN(stay) - 1);
	assert_int_equal(n_files("other.h5"), 1);
}

TEST_AFTER(begin, a_plain_file_or_none)
{
	int fd;
	test_file("plain", "x");
	assert_int_equal(mkfifo(test_path("fifo"), 0666), 0);
	assert_int_equal(symlink("plain", test_path("to")), 0);
	assert_int_equal(file_check_plain(test_path("absent"), &e), 0);
	assert_int_equal(file_check_plain(test_path("plain"), &e), 0);
	static const char *const bad[] = {"fifo", "to", "/dev/null"};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		const char *path = bad[i][0] == '/' ? bad[i] : test_path(bad[i]);
		static const int flags[] = {O_RDONLY, O_WRONLY, O_RDWR | O_CREAT};
		for (size_t k = 0; k < ARRAY_LEN(flags); k++) {
			assert_int_equal(file_open_plain(path, flags[k]), -1);
			assert_int_equal(errno, ELOOP);
		}
		assert_int_equal(file_check_plain(path, &e), -1);
		assert_int_equal(file_lock(path, true, &fd), ELOOP);
	}
	fd = file_open_plain(test_path("plain"), O_RDONLY);
	assert_true(fd >= 0);
	close(fd);
}

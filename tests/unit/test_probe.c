/* h5: the child that looks at a file first: what may kill it, and what the parent keeps. */
#include "base/file.h"
#include "tests/support/support.h"
#include "h5/h5.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static struct err e;

/* ---- an HDF5 that does what hostile files make it do ----------------------------- */

enum fault { NO_FAULT, CRASH, ABORT, LEAVE, SPIN, EAT, KILLED, SIGNALS };

static enum fault fault;
static pid_t parent;
static int *n_looks; /* shared with children */

static void do_harm(void)
{
	if (fault == CRASH)
		raise(SIGSEGV);
	if (fault == ABORT)
		abort();
	if (fault == LEAVE)
		_exit(9);
	if (fault == KILLED)
		raise(SIGKILL);
	while (fault == SPIN)
		;
	while (fault == EAT)
		xmalloc(1 << 26);
	if (fault == SIGNALS) {
		raise(SIGTERM);
		raise(SIGUSR1);
	}
}

/* In the place of the library's: the linker is told so. */
int64_t __real_H5Fopen(const char *name, unsigned how, int64_t access);
int64_t __wrap_H5Fopen(const char *name, unsigned how, int64_t access);
int64_t __wrap_H5Fopen(const char *name, unsigned how, int64_t access)
{
	if (getpid() != parent) {
		__atomic_add_fetch(n_looks, 1, __ATOMIC_RELAXED);
		do_harm();
	}
	return __real_H5Fopen(name, how, access);
}

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	fault = NO_FAULT;
	parent = getpid();
	if (!n_looks)
		n_looks = mmap(NULL, sizeof(*n_looks), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	*n_looks = 0;
	return 0;
}

/* ---- a file ---------------------------------------------------------------------- */

struct attrs {
	const char *format;
	int64_t version, n;
};

static const struct h5_field table[] = {
	{"format", H5_TEXT, offsetof(struct attrs, format), false, NULL},
	{"version", H5_I64, offsetof(struct attrs, version), false, NULL},
	{"n", H5_I64, offsetof(struct attrs, n), false, NULL},
	{0},
};

static const float values[] = {1, 2.5f, -3, 4e9f};

static const char *write_file(const char *name)
{
	const char *path = test_path(name);
	struct attrs a = {"pt-test", 1, 7};
	int64_t n = ARRAY_LEN(values);
	struct h5 *f;
	assert_int_equal(h5_create(&f, path, &e), 0);
	assert_int_equal(h5_fields_write(f, "/", table, &a, &e), 0);
	assert_int_equal(h5_put(f, "/g/x", H5_F32, 1, &n, values, &e), 0);
	assert_int_equal(h5_put_text(f, "/text", "a text", &e), 0);
	assert_int_equal(h5_finish(f, 0, &e), 0);
	return path;
}

/* 0: it says what was written. */
static int read_file(const char *path)
{
	struct attrs a = {0};
	struct str text = {0};
	float *x = NULL;
	struct h5 *f;
	e = (struct err){0};
	if (h5_open(&f, path, &e))
		return -1;
	int rc = h5_check_format(f, "pt-test", 1, &e) || h5_check_seal(f, &e) ||
		 h5_fields_read(f, "/", table, &a, &e) ||
		 h5_get(f, "/g/x", H5_F32, -1, 99, (void **)&x, NULL, &e) ||
		 h5_get_text(f, "/text", &text, &e);
	if (!rc) {
		assert_int_equal(a.n, 7);
		assert_memory_equal(x, values, sizeof(values));
		assert_string_equal(text.s, "a text");
	}
	h5_end(f, rc, &e);
	free((void *)a.format);
	free(x);
	str_free(&text);
	return rc ? -1 : 0;
}

/* ---- tests ----------------------------------------------------------------------- */

TEST_AFTER(begin, what_kills_hdf5_is_damaged)
{
	static const struct {
		enum fault fault;
		const char *says;
	} cases[] = {
		{CRASH, "crashes on it (signal 11)"},
		{ABORT, "crashes on it (signal 6)"},
		{LEAVE, "crashes on it (code 9)"},
#ifndef __SANITIZE_ADDRESS__ /* whose malloc() is an end of its own */
		{EAT, "allocates too much memory for it"},
#endif
	};
	const char *path = write_file("killer.h5");
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		fault = cases[i].fault;
		assert_int_equal(read_file(path), -1);
		assert_int_equal(e.code, EX_DATAERR);
		assert_non_null(strstr(e.msg, path));
		assert_non_null(strstr(e.msg, cases[i].says));
	}
	/* somebody else's doing: the file may be whole, and is not to be thrown away */
	fault = KILLED;
	assert_int_equal(read_file(path), -1);
	assert_int_equal(e.code, EX_IOERR);
	assert_non_null(strstr(e.msg, "could not be checked"));
	fault = NO_FAULT;
	assert_int_equal(read_file(path), 0);
}

/* The child's limit is the lesser of its own and the parent's, which is how this test is
 * short. */
TEST_AFTER(begin, what_never_ends_is_damaged)
{
	struct rlimit old, few;
	struct rusage used;
	const char *path = write_file("endless.h5");
	getrusage(RUSAGE_SELF, &used);
	getrlimit(RLIMIT_CPU, &old);
	few = old;
	few.rlim_cur = (rlim_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 3);
	setrlimit(RLIMIT_CPU, &few);
	fault = SPIN;
	assert_int_equal(read_file(path), -1);
	setrlimit(RLIMIT_CPU, &old);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "loops on it"));
}

static volatile sig_atomic_t got;

static void note(int sig)
{
	got = sig;
}

/* The parent's handlers, buffers, temporary files and children are its own. */
TEST_AFTER(begin, the_parent_keeps_its_own)
{
	char kept[4096];
	const char *path = write_file("own.h5"), *out = test_path("buffered");
	int fd = file_temporary(kept, &e);
	FILE *f = fopen(out, "w");
	fputs("once\n", f);
	signal(SIGTERM, note);
	signal(SIGSEGV, note);
	signal(SIGUSR1, note);
	for (fault = NO_FAULT; fault <= SIGNALS; fault++) {
		if (fault == SPIN)
			continue;
		bool harm = fault != NO_FAULT && fault != SIGNALS;
		assert_int_equal(read_file(path), harm ? -1 : 0);
	}
	signal(SIGTERM, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	signal(SIGUSR1, SIG_DFL);
	assert_int_equal(got, 0);
	assert_true(file_exists(kept));
	cleanup_remove(kept);
	close(fd);
	fclose(f);
	struct str text = {0};
	assert_int_equal(file_read(out, 100, &text, &e), 0);
	assert_string_equal(text.s, "once\n");
	str_free(&text);
}

/* Where nobody waits for children, the child's word is what counts. */
TEST_AFTER(begin, children_may_be_ignored)
{
	const char *path = write_file("ignored.h5");
	signal(SIGCHLD, SIG_IGN);
	assert_int_equal(read_file(path), 0);
	fault = CRASH;
	assert_int_equal(read_file(path), -1);
	signal(SIGCHLD, SIG_DFL);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "crashes on it"));
}

/* A file is looked at once, unless it was changed just now: then its times may lie. */
TEST_AFTER(begin, once_a_file)
{
	struct h5 *f;
	const char *path = write_file("once.h5");
	assert_int_equal(read_file(path), 0);
	assert_int_equal(read_file(path), 0);
	assert_int_equal(*n_looks, 2);
	usleep(3200000);
	for (int i = 0; i < 3; i++)
		assert_int_equal(read_file(path), 0);
	assert_int_equal(*n_looks, 3);
	write_file("once.h5");
	assert_int_equal(read_file(path), 0);
	assert_int_equal(*n_looks, 4);
	/* what is added to is our own */
	assert_int_equal(h5_reopen(&f, path, &e), 0);
	assert_int_equal(h5_close(f, &e), 0);
	assert_int_equal(*n_looks, 4);
}

/* Bytes that kill HDF5 1.10.8, each with the checksum made to fit, in the file above. Another
 * HDF5 may survive them: then they are refused, or what is read is what was written. */
static const struct {
	struct {
		uint16_t at;
		uint8_t byte;
	} to[14];
} files[] = {
	{{{11, 0x01}, {44, 0x71}, {45, 0x65}, {46, 0x24}, {47, 0x59}, {971, 0xec},
		{1053, 0xa5}, {1054, 0x6f}, {1055, 0xdf}, {1056, 0xab}}},
	{{{975, 0x01}, {1053, 0xf2}, {1054, 0x32}, {1055, 0x48}, {1056, 0x2f}}},
	{{{11, 0x01}, {44, 0x71}, {45, 0x65}, {46, 0x24}, {47, 0x59}, {971, 0x20},
		{972, 0x00}, {1053, 0xf2}, {1054, 0xdc}, {1055, 0xef}, {1056, 0x65}}},
	{{{977, 0xd1}, {978, 0x00}, {1053, 0xe3}, {1054, 0x1f}, {1055, 0x8d},
		{1056, 0x5d}}},
	{{{11, 0x01}, {44, 0x71}, {45, 0x65}, {46, 0x24}, {47, 0x59}, {976, 0x00},
		{1053, 0x7d}, {1054, 0x06}, {1055, 0xe8}, {1056, 0x6b}}},
	{{{971, 0x00}, {972, 0x00}, {973, 0x00}, {974, 0x00}, {975, 0x00}, {976, 0x00},
		{977, 0x00}, {1053, 0x14}, {1054, 0x2a}, {1055, 0x4d}, {1056, 0x83}}},
	{{{70, 0x02}, {71, 0x00}, {232, 0xdc}, {233, 0x74}, {234, 0xf4}, {235, 0x03}}},
	{{{171, 0x02}, {232, 0x2a}, {233, 0x22}, {234, 0x11}, {235, 0xaf}}},
	{{{1033, 0x3b}, {1053, 0xc3}, {1054, 0xa8}, {1055, 0xb8}, {1056, 0x10}}},
	{{{129, 0x4e}, {130, 0xa3}, {232, 0x4c}, {233, 0x82}, {234, 0xc8}, {235, 0x71}}},
	{{{100, 0x54}, {232, 0x48}, {233, 0x35}, {234, 0x4c}, {235, 0x43}}},
	{{{99, 0x59}, {100, 0x89}, {232, 0xc6}, {233, 0xb0}, {234, 0x6d}}},
};

static void make_killer(const char *path, size_t number)
{
	int fd = open(path, O_RDWR);
	for (size_t k = 0; k < ARRAY_LEN(files[0].to) && files[number].to[k].at; k++)
		assert_int_equal(pwrite_all(fd, &files[number].to[k].byte, 1,
					 files[number].to[k].at),
			0);
	close(fd);
}

TEST_AFTER(begin, files_that_kill)
{
	struct str good = {0};
	const char *path = write_file("kills.h5");
	assert_int_equal(file_read(path, 1 << 20, &good, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		make_killer(path, i);
		if (read_file(path))
			assert_int_equal(e.code, EX_DATAERR);
		int fd = open(path, O_WRONLY | O_TRUNC);
		assert_int_equal(write_all(fd, good.s, good.len), 0);
		close(fd);
	}
	assert_int_equal(read_file(path), 0);
	str_free(&good);
}

int main(int argc, char **argv)
{
	begin(NULL);
	if (argc > 1) { /* such a file, for other tests */
		struct str all = {0};
		const char *path = write_file("killer.h5");
		make_killer(path, 0);
		int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0666);
		return file_read(path, 1 << 20, &all, &e) || fd < 0 ||
		       write_all(fd, all.s, all.len);
	}
	return tests_run();
}

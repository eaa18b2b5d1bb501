/* Offloading to a file: the order of requests, the page cache, errors. */
#include "tests/support/support.h"
#include "parallel/store_internal.h"

#include <dirent.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static char folder[4096]; /* is empty */

static struct offload_backend *open_file(int64_t n_bytes)
{
	struct err e = {0};
	struct offload_backend *x = offload_file_open(folder, n_bytes, &e);
	assert_non_null(x);
	return x;
}

/* What is asked for later sees what was asked for before, also of other lengths. */
TEST(in_order)
{
	enum { N = 1000, MOST = 300 };
	struct offload_backend *x = open_file(N * (int64_t)sizeof(int));
	static int model[N], in[200][MOST], out[200][MOST], expected[200][MOST];
	int len[200];
	memset(model, 0, sizeof(model));
	srand(1);
	for (int i = 0; i < 200; i++) {
		int n = len[i] = rand() % MOST, at = rand() % (N - MOST);
		for (int k = 0; k < n; k++)
			in[i][k] = rand();
		if (i % 3)
			memcpy(model + at, in[i], (size_t)n * sizeof(int));
		memcpy(expected[i], model + at, (size_t)n * sizeof(int));
		x->enqueue(x, i % 3 != 0, i % 3 ? in[i] : out[i],
			n * (int64_t)sizeof(int), at * (int64_t)sizeof(int), 0);
	}
	x->wait(x, 200);
	for (int i = 0; i < 200; i += 3)
		assert_memory_equal(out[i], expected[i], (size_t)len[i] * sizeof(int));
	offload_backend_close(x);
}

/* The descriptor of the file without a name. */
static int find_file(void)
{
	char link[64], to[4096];
	for (int fd = 3; fd < 100; fd++) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		ssize_t n = readlink(link, to, sizeof(to) - 1);
		to[n > 0 ? n : 0] = '\0';
		if (strstr(to, folder) && strstr(to, "(deleted)"))
			return fd;
	}
	return -1;
}

static int64_t resident(int fd, int64_t n_bytes)
{
	int64_t pages = n_bytes / 4096, n = 0;
	unsigned char *in = xmalloc((size_t)pages);
	void *p = mmap(NULL, (size_t)n_bytes, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(p != MAP_FAILED);
	assert_int_equal(mincore(p, (size_t)n_bytes, in), 0);
	for (int64_t i = 0; i < pages; i++)
		n += in[i] & 1;
	munmap(p, (size_t)n_bytes);
	free(in);
	return n * 4096;
}

/* What was written is on the disk and not in the page cache, but for the last of it. */
TEST(no_pages_stay)
{
	enum { ALL = 64 * MIB };
	struct statfs fs;
	assert_int_equal(statfs(folder, &fs), 0);
	if (fs.f_type == TMPFS_MAGIC)
		skip();
	struct offload_backend *x = open_file(ALL);
	char *p = xmalloc(ALL);
	memset(p, 7, ALL);
	x->wait(x, x->enqueue(x, true, p, ALL, 0, 0));
	int fd = find_file();
	assert_true(fd >= 0);
	assert_in_range(resident(fd, ALL), 0, 8 * MIB);
	memset(p, 0, ALL);
	x->wait(x, x->enqueue(x, false, p, ALL, 0, 0));
	for (int64_t i = 0; i < ALL; i += 4095)
		assert_int_equal(p[i], 7);
	assert_in_range(resident(fd, ALL), 0, 8 * MIB);
	free(p);
	offload_backend_close(x);
}

TEST(has_no_name)
{
	struct offload_backend *x = open_file(MIB);
	DIR *d = opendir(folder);
	int n = 0;
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	assert_int_equal(n, 2); /* . and .. */
	assert_true(find_file() >= 0);
	offload_backend_close(x);
	assert_int_equal(find_file(), -1);
}

TEST(cannot_be_made)
{
	struct err e = {0};
	assert_null(offload_file_open("no-such-folder", MIB, &e));
	assert_int_equal(e.code, EX_IOERR);
	assert_string_equal(
		e.msg, "--offload-to: no-such-folder: No such file or directory");
	e = (struct err){0};
	assert_null(offload_file_open(folder, INT64_MAX / 2, &e));
	assert_int_equal(e.code, EX_IOERR);
	assert_non_null(strstr(e.msg, "cannot allocate"));
	assert_int_equal(find_file(), -1);
}

/* Nothing that a wait tells is missing: a read beyond the end is the end of the program. */
TEST(fails)
{
	int status;
	pid_t child = fork();
	if (!child) {
		char page[4096];
		struct offload_backend *x = open_file(4096);
		if (!freopen("/dev/null", "w", stderr))
			_exit(1);
		x->wait(x, x->enqueue(x, false, page, sizeof(page), 4096, 0));
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), EX_IOERR);
}

int main(void)
{
	snprintf(folder, sizeof(folder), "%s", test_folder());
	return tests_run();
}

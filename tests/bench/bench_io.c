/* Files against their ceilings, measured in the same run; tests/bench/run prints the table.
 *   bench_io windows SHARD    windows of 1,024 tokens a second, one thread, page cache
 *   bench_io write FILE BYTES seconds to write() BYTES bytes and fsync() them
 *   bench_io touch BYTES      seconds to write memory that is new to the process, one thread
 *   bench_io memory BYTES     seconds to read memory, all threads, median of 5; processor time */
#include "base/file.h"
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

static int windows(const char *path)
{
	enum { CONTEXT = 1024, ROUND = 100000 };
	static int32_t out[CONTEXT + 1];
	struct strs files = {0};
	struct corpus *c;
	struct order order;
	struct err e = {0};
	strs_add(&files, path);
	if (corpus_open(&c, &files, false, &e))
		return err_print(&e);
	if (order_init(
		    &order, SAMPLING_EPOCH, 1, corpus_tokens(c, SPLIT_TRAIN), CONTEXT, 0))
		die(EX_DATAERR, "%s is too short", path);
	double rate = 0;
	for (int round = 0; round < 4; round++) { /* the first checks the blocks */
		double begin = clock_seconds();
		for (int64_t g = 0; g < ROUND; g++)
			if (corpus_read(c, SPLIT_TRAIN, order_start(&order, g),
				    CONTEXT + 1, out, &e))
				return err_print(&e);
		double here = ROUND / (clock_seconds() - begin);
		rate = here > rate ? here : rate;
	}
	printf("%.0f\n", rate);
	corpus_close(c);
	return 0;
}

static int write_file(const char *path, int64_t n_bytes)
{
	enum { PIECE = 64 << 20 };
	char *piece = xmalloc(PIECE);
	memset(piece, 1, PIECE);
	double begin = clock_seconds();
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		die(EX_IOERR, "%s: %s", path, strerror(errno));
	for (int64_t at = 0; at < n_bytes; at += PIECE)
		if (write_all(fd, piece, (size_t)min64(PIECE, n_bytes - at)))
			die(EX_IOERR, "%s: %s", path, strerror(errno));
	if (fsync(fd) || close(fd))
		die(EX_IOERR, "%s: %s", path, strerror(errno));
	printf("%.6f\n", clock_seconds() - begin);
	free(piece);
	return 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* What the C library does fastest in one pass: memchr() for a byte that is not there. */
static double read_memory(const char *p, int64_t n_bytes)
{
	enum { PIECE = 1 << 20 };
	int found = 0;
	clock_t begin = clock();
#pragma omp parallel for reduction(+ : found)
	for (int64_t at = 0; at < n_bytes; at += PIECE)
		found += memchr(p + at, 2, (size_t)min64(PIECE, n_bytes - at)) != NULL;
	BUG_ON(found);
	return (double)(clock() - begin) / CLOCKS_PER_SEC / omp_get_max_threads();
}

static int memory(int64_t n_bytes, bool touch)
{
	enum { ROUNDS = 5 };
	double t[ROUNDS];
	struct arena a;
	const char *cores = getenv("CORES");
	omp_set_num_threads(cores ? atoi(cores) : get_nprocs());
	arena_init(&a, "memory", (size_t)n_bytes + 64);
	char *p = arena_alloc(&a, (size_t)n_bytes);
	double begin = clock_seconds();
	memset(p, 1, (size_t)n_bytes);
	t[ROUNDS / 2] = clock_seconds() - begin;
	for (int i = 0; i < ROUNDS && !touch; i++)
		t[i] = read_memory(p, n_bytes);
	if (!touch)
		qsort(t, ROUNDS, sizeof(*t), compare);
	printf("%.6f\n", t[ROUNDS / 2]);
	arena_release(&a);
	return 0;
}

int main(int argc, char **argv)
{
	log_name("bench_io");
	if (argc == 3 && !strcmp(argv[1], "windows"))
		return windows(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "write"))
		return write_file(argv[2], atoll(argv[3]));
	if (argc == 3 && (!strcmp(argv[1], "touch") || !strcmp(argv[1], "memory")))
		return memory(atoll(argv[2]), !strcmp(argv[1], "touch"));
	die(EX_USAGE, "windows SHARD | write FILE BYTES | touch BYTES | memory BYTES");
}

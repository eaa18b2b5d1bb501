/*
 * Files against their ceilings, measured in the same run; tests/bench/run prints the table.
 *   bench_io windows SHARD    windows of 1,024 tokens a second, one thread, page cache
 *   bench_io write FILE BYTES seconds to write() BYTES bytes and fsync() them
 */
#include "base/file.h"
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
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
		return err_say(&e);
	if (order_init(
		    &order, SAMPLING_EPOCH, 1, corpus_tokens(c, SPLIT_TRAIN), CONTEXT, 0))
		die(EX_DATAERR, "%s is too short", path);
	double rate = 0;
	for (int round = 0; round < 4; round++) { /* the first checks the blocks */
		double begin = clock_seconds();
		for (int64_t g = 0; g < ROUND; g++)
			if (corpus_read(c, SPLIT_TRAIN, order_start(&order, g),
				    CONTEXT + 1, out, &e))
				return err_say(&e);
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

int main(int argc, char **argv)
{
	log_name("bench_io");
	if (argc == 3 && !strcmp(argv[1], "windows"))
		return windows(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "write"))
		return write_file(argv[2], atoll(argv[3]));
	die(EX_USAGE, "windows SHARD | write FILE BYTES");
}

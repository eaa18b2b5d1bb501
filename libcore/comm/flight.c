/*
 * The flight record: the last operations of this rank, in a text file that is always up to date,
 * since it is mapped into memory: it is there when the watchdog ends the job, and also when a rank
 * hangs or is killed.
 */
#include "base/file.h"
#include "comm/comm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RECORDS = 64, WIDTH = 112, FILE_BYTES = (RECORDS + 1) * WIDTH };

static struct {
	char *path, *line; /* line: of the mapped file; NULL: no record */
	uint64_t n;	   /* operations so far */
} flight;

/* Writes a line of the file, padded to its width. */
static void write_line(int64_t i, const char *text)
{
	char *to = flight.line + i * WIDTH;
	size_t len = strlen(text);
	memcpy(to, text, len);
	memset(to + len, ' ', WIDTH - 1 - len);
	to[WIDTH - 1] = '\n';
}

int comm_flight_open(const char *path, struct err *e)
{
	char empty[FILE_BYTES], text[WIDTH];
	memset(empty, '\n', sizeof(empty));
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	/* written, so that a full disk is noticed now */
	void *map = MAP_FAILED;
	if (!write_all(fd, empty, sizeof(empty)))
		map = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int error = errno;
	close(fd);
	if (map == MAP_FAILED) {
		unlink(path);
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(error));
	}
	flight.path = xstrdup(path);
	flight.line = map;
	flight.n = 0;
	snprintf(text, sizeof(text), "%8s %-15s %-14s %8s %14s %16s %s", "number",
		"group", "operation", "sequence", "bytes", "begun", "seconds");
	write_line(0, text);
	return 0;
}

void comm_flight_close(void)
{
	if (!flight.line)
		return;
	munmap(flight.line, FILE_BYTES);
	flight.line = NULL;
	unlink(flight.path);
	free(flight.path);
	flight.path = NULL;
}

const char *flight_record_path(void)
{
	return flight.path;
}

/* "seconds" begins here in a line. */
enum { SECONDS_AT = 81 };

uint64_t flight_record_begin(
	const struct comm *c, const char *operation, uint64_t seq, int64_t n_bytes)
{
	char text[WIDTH];
	if (!flight.line)
		return 0;
	flight.n++;
	snprintf(text, sizeof(text), "%8llu %-15s %-14s %8llu %14lld %16.6f -",
		(unsigned long long)flight.n, c->name, operation, (unsigned long long)seq,
		(long long)n_bytes, clock_seconds());
	write_line(1 + (int64_t)(flight.n % RECORDS), text);
	return flight.n;
}

void flight_record_end(uint64_t number)
{
	char text[WIDTH];
	if (!flight.line || !number || number + RECORDS <= flight.n)
		return;
	char *line = flight.line + (1 + (int64_t)(number % RECORDS)) * WIDTH;
	double begun = strtod(line + SECONDS_AT - 17, NULL);
	int n = snprintf(text, sizeof(text), "%.6f", clock_seconds() - begun);
	memcpy(line + SECONDS_AT, text, (size_t)n);
}

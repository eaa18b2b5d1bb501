/* The flight record: the last operations of this rank in a text file. It is mapped into memory, so
 * it is up to date even if the watchdog ends the job, or a rank hangs or is killed. */
#include "base/file.h"
#include "base/trace.h"
#include "comm/comm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RECORDS = 64, WIDTH = 112, FILE_BYTES = (RECORDS + 1) * WIDTH };

static struct {
	char *path, *line;     /* line: the mapped file; NULL: no record */
	uint64_t n;	       /* operations so far */
	double begun[RECORDS]; /* the clock at the beginning of each */
} flight;

/* The columns of a line: where texts begin and where numbers end. */
enum { GROUP = 9, OPERATION = 25, OPERATION_MAX = 14, SECONDS = 81 };
enum { NUMBER_END = 8, SEQUENCE_END = 48, BYTES_END = 63, BEGUN_END = 80 };

static char *record_line(uint64_t number)
{
	return flight.line + (1 + (int64_t)(number % RECORDS)) * WIDTH;
}

/* Writes a number that ends at `end`, faster than printf(). Returns its first digit. */
static char *write_digits(char *end, uint64_t v, int min_digits)
{
	for (; v || min_digits > 0; v /= 10, min_digits--)
		*--end = (char)('0' + v % 10);
	return end;
}

/* Writes seconds with six decimals that end at `end`. Returns the first digit. */
static char *write_seconds(char *end, double seconds)
{
	uint64_t us = seconds > 0 ? (uint64_t)(seconds * 1e6) : 0;
	end = write_digits(end, us % 1000000, 6);
	*--end = '.';
	return write_digits(end, us / 1000000, 1);
}

int comm_flight_open(const char *path, struct err *e)
{
	char empty[FILE_BYTES], text[WIDTH];
	memset(empty, '\n', sizeof(empty));
	int fd = file_open_plain(path, O_RDWR | O_CREAT);
	if (fd < 0)
		return err_errno(e, path);
	/* writes the whole file, so that a full disk is detected now */
	void *map = MAP_FAILED;
	if (!ftruncate(fd, 0) && !write_all(fd, empty, sizeof(empty)))
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
	int n = snprintf(text, sizeof(text), "%8s %-15s %-14s %8s %14s %16s %s", "number",
		"group", "operation", "sequence", "bytes", "begun", "seconds");
	memset(flight.line, ' ', WIDTH - 1);
	memcpy(flight.line, text, (size_t)n);
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

/* Records the begin of an operation. Returns its number; 0: the flight record is not open. */
static uint64_t record_begin(
	const struct comm *c, const char *operation, uint64_t seq, int64_t n_bytes)
{
	if (!flight.line)
		return 0;
	char *line = record_line(++flight.n);
	double now = clock_seconds();
	flight.begun[flight.n % RECORDS] = now;
	memset(line, ' ', WIDTH - 1);
	write_digits(line + NUMBER_END, flight.n, 1);
	memcpy(line + GROUP, c->name, strnlen(c->name, OPERATION - GROUP - 1));
	memcpy(line + OPERATION, operation, strnlen(operation, OPERATION_MAX));
	write_digits(line + SEQUENCE_END, seq, 1);
	write_digits(line + BYTES_END, (uint64_t)n_bytes, 1);
	write_seconds(line + BEGUN_END, now);
	line[SECONDS] = '-';
	return flight.n;
}

/* Records the duration of an operation, unless its line has been overwritten. */
static void record_end(uint64_t number)
{
	char text[WIDTH - SECONDS], *end = text + sizeof(text);
	if (!flight.line || !number || number + RECORDS <= flight.n)
		return;
	char *begin =
		write_seconds(end, clock_seconds() - flight.begun[number % RECORDS]);
	memcpy(record_line(number) + SECONDS, begin, (size_t)(end - begin));
}

void operation_begin(struct comm_operation *o, const struct comm *c, const char *name,
	uint64_t seq, int64_t n_bytes)
{
	*o = (struct comm_operation){.begun = true,
		.recorded = record_begin(c, name, seq, n_bytes),
		.traced = trace_on ? trace_operation(c->name, name, n_bytes) : 0};
}

void operation_end(struct comm_operation *o)
{
	if (!o->begun)
		return;
	o->begun = false;
	record_end(o->recorded);
	if (trace_on)
		trace_operation_ended(o->traced);
}

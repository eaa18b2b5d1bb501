/* Clocks, and times as text. */
#include "base/file.h"

#include <math.h>
#include <time.h>

double clock_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double clock_wall(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void clock_sleep(double seconds)
{
	const struct timespec t = {
		.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * fmod(seconds, 1))};
	nanosleep(&t, NULL);
}

char *clock_text(char buf[static NUM_TEXT], double wall)
{
	time_t t = (time_t)wall;
	struct tm tm;
	gmtime_r(&t, &tm);
	strftime(buf, NUM_TEXT, "%Y-%m-%dT%H:%M:%SZ", &tm);
	return buf;
}

uint64_t boot_id(void)
{
	scoped_str text = {0};
	uint64_t id = 0;
	if (!file_read("/proc/sys/kernel/random/boot_id", 4096, &text, &(struct err){0}))
		id = hash_bytes(text.s, text.len, 0);
	return id;
}

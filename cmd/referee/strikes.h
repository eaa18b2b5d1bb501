/* strikes: the faults that audits have found within a day, by host and device, in this start and in
 * earlier ones. The file of suspects (pt-run(5)) has a line for each. Ranks do not count, since a
 * rank may run on another device after a restart. No call is collective. */
#pragma once

#include "base/base.h"

struct strike {
	double time; /* seconds since 1970 */
	bool persistent;
	char host[64], device[32];
};

struct strikes {
	struct strike *strike; /* [n] */
	int64_t n;
};

void strikes_add(struct strikes *x, const struct strike *new);
void strikes_release(struct strikes *x);
/* Returns the number of faults of a device within a day before or after `now`: clocks of hosts
 * differ, and may have been set. */
int strikes_count(
	const struct strikes *x, double now, const char *host, const char *device);
/* Returns the number of devices that have had a sporadic fault within a day. */
int strikes_count_devices(const struct strikes *x, double now);
/* Adds the sporadic and persistent faults of a file of suspects, which may contain anything. `n_bytes`
 * is the length of the text. Returns the number of lines that are not valid. */
int64_t strikes_parse(struct strikes *x, const char *text, size_t n_bytes);

/* Values that logs must have. */
#pragma once

#include "logs/logs.h"

/* A value that a log must have. */
struct want {
	int64_t step;
	const char *column;
	double v;
};

/* Fails the test if the log does not have it; a NAN must be NaN, and not absent. */
void assert_value(const struct run_log *l, const struct want *w);
/* How logs of a format are read; NULL: it is detected. It stays until the test ends. */
const struct log_how *how_of(const char *format);
/* test_file() of bytes, among them zeros. */
const char *write_bytes(const char *name, const struct str *s);

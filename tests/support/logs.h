/* Values that logs must have. */
#pragma once

#include "logs/logs.h"

/* A value that a log must have. */
struct want {
	int64_t step;
	const char *column;
	double v;
};

/* The beginning of a log, which its format is detected from, and what it must have. */
struct log_sample {
	const char *format, *text;
	int64_t n_rows;
	int digits;
	struct want want[16];
	const char *config;
	int64_t ranks;
};
extern const struct log_sample log_samples[];
extern const size_t n_log_samples;

/* Fails the test if the log does not have it; a NAN must be NaN, and not absent. */
void assert_value(const struct run_log *l, const struct want *w);
/* How logs of a format are read; NULL: it is detected. It stays until the test ends. */
const struct log_options *how_of(const char *format);
/* test_file() of bytes, among them zeros. */
const char *write_bytes(const char *name, const struct str *s);

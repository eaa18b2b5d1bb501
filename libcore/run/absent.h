/* absent: values that a row of a log does not have, or that cannot be read. */
#pragma once

#include "base/base.h"

/* NaNs with special payloads, for a missing value and for a value that cannot be read. Values
 * that are read never equal them. */
#define ABSENT_BITS UINT64_C(0x7ff8000070742d00)
#define UNREAD_BITS (ABSENT_BITS + 1)

static inline double value_of_bits(uint64_t bits)
{
	double v;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

static inline double absent_value(void)
{
	return value_of_bits(ABSENT_BITS);
}

static inline double unread_value(void)
{
	return value_of_bits(UNREAD_BITS);
}

static inline bool is_unread(double v)
{
	uint64_t bits;
	memcpy(&bits, &v, sizeof(bits));
	return bits == UNREAD_BITS;
}

static inline bool is_absent(double v)
{
	uint64_t bits;
	memcpy(&bits, &v, sizeof(bits));
	return bits == ABSENT_BITS || bits == UNREAD_BITS;
}

/* Counts of unreadable values in a log: 1e999, 0x2, 2abc, 2,5, a step of 2.5. */
struct unread {
	int64_t n_values, n_rows; /* n_rows: rows with an unreadable step */
	char first[96];		  /* the first one: "loss '2abc' at step 5" */
};

/* Counts an unreadable value, or with column NULL a row with an unreadable step `text`. */
void unread_add(
	struct unread *u, const char *column, int64_t step, const char *text, size_t len);
/* Warns about the unreadable values of the log `name`, if there are any. */
void unread_warn(const struct unread *u, const char *name);
/* Returns true if a text begins like a number. Other texts, such as "none", stand for no value. */
bool begins_as_number(const char *p, const char *end);

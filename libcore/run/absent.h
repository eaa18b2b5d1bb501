/* absent: values that a row of a log does not have, or has in a form that cannot be read. */
#pragma once

#include "base/base.h"

/* A value that a row does not have, and one that the log has but that cannot be read: NaNs with payloads of their
 * own. Values that are read are never these. */
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

/* What a log has in the place of numbers, but cannot be read: 1e999, 0x2, 2abc, 2,5, a step of 2.5. */
struct unread {
	int64_t n_values, n_rows; /* rows: without a step they have no place */
	char first[96];		  /* one of them: "loss '2abc' at step 5" */
};

/* `column`: NULL for a row, of which the text is the step. */
void unread_note(
	struct unread *u, const char *column, int64_t step, const char *text, size_t len);
/* Warns of them, if there are any. */
void unread_warn(const struct unread *u, const char *name);
/* Does a text begin as a number does? Others, such as "none", stand for no value. */
bool begins_as_number(const char *p, const char *end);

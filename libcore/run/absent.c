/* The count of a log's unreadable values, and the first as an example. */
#include "run/absent.h"

bool begins_as_number(const char *p, const char *end)
{
	p += p < end && (*p == '-' || *p == '+');
	p += p < end && (*p == '.' || *p == ',');
	return p < end && *p >= '0' && *p <= '9';
}

void unread_add(
	struct unread *u, const char *column, int64_t step, const char *text, size_t len)
{
	int shown_len = (int)min64((int64_t)len, 24);
	bool has_first = u->n_values || u->n_rows;
	*(column ? &u->n_values : &u->n_rows) += 1;
	if (!has_first && column)
		snprintf(u->first, sizeof(u->first), "%.32s '%.*s' at step %lld", column,
			shown_len, text, (long long)step);
	else if (!has_first)
		snprintf(u->first, sizeof(u->first), "a row '%.*s'", shown_len, text);
}

void unread_warn(const struct unread *u, const char *name)
{
	int64_t n = u->n_values + u->n_rows;
	if (n)
		warn("%s: %lld value%s or row%s cannot be read and %s ignored; the first: %s",
			name, (long long)n, plural(n), plural(n), n == 1 ? "is" : "are",
			u->first);
}

/* The count of a log's unreadable values, and the first as an example. */
#include "run/absent.h"

bool begins_as_number(const char *p, const char *end)
{
	p += p < end && (*p == '-' || *p == '+');
	p += p < end && (*p == '.' || *p == ',');
	return p < end && *p >= '0' && *p <= '9';
}

void unread_note(
	struct unread *u, const char *column, int64_t step, const char *text, size_t len)
{
	int shown = (int)min64((int64_t)len, 24);
	bool any = u->n_values || u->n_rows;
	++*(column ? &u->n_values : &u->n_rows);
	if (!any && column)
		snprintf(u->first, sizeof(u->first), "%.32s '%.*s' at step %lld", column,
			shown, text, (long long)step);
	else if (!any)
		snprintf(u->first, sizeof(u->first), "a row '%.*s'", shown, text);
}

void unread_warn(const struct unread *u, const char *name)
{
	int64_t n = u->n_values + u->n_rows;
	if (n)
		warn("%s: %lld value%s or row%s cannot be read and %s left out, the first: %s",
			name, (long long)n, plural(n), plural(n), n == 1 ? "is" : "are",
			u->first);
}

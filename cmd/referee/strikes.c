/* Faults within a day, by host and device (strikes.h). */
#include "referee/strikes.h"

#include "referee/audit_plan.h"

#include <math.h>
#include <time.h>

void strikes_add(struct strikes *x, const struct strike *new)
{
	x->strike = xgrow(x->strike, x->n, sizeof(*x->strike));
	x->strike[x->n++] = *new;
}

void strikes_release(struct strikes *x)
{
	free(x->strike);
	*x = (struct strikes){0};
}

static bool is_recent(const struct strike *x, double now)
{
	const double day = 24 * 3600;
	return fabs(now - x->time) < day;
}

static bool is_of(const struct strike *x, const char *host, const char *device)
{
	return !strcmp(x->host, host) && !strcmp(x->device, device);
}

int strikes_count(
	const struct strikes *x, double now, const char *host, const char *device)
{
	int n = 0;
	for (int64_t i = 0; i < x->n; i++)
		n += is_recent(&x->strike[i], now) && is_of(&x->strike[i], host, device);
	return n;
}

static bool counts_for_device(const struct strike *x, double now)
{
	return is_recent(x, now) && !x->persistent;
}

int strikes_count_devices(const struct strikes *x, double now)
{
	int n = 0;
	for (int64_t i = 0; i < x->n; i++) {
		const struct strike *s = &x->strike[i];
		bool is_first = counts_for_device(s, now);
		for (int64_t j = 0; j < i && is_first; j++)
			is_first = !counts_for_device(&x->strike[j], now) ||
				   !is_of(&x->strike[j], s->host, s->device);
		n += is_first;
	}
	return n;
}

/* ---- the file of suspects ------------------------------------------------------------ */

enum field {
	FIELD_TIME,
	FIELD_STEP,
	FIELD_HOST,
	FIELD_DEVICE,
	FIELD_RANK,
	FIELD_VERDICT,
	FIELD_TENSOR,
	N_FIELDS
};

/* Copies a text that is neither empty nor too long. Returns -1 if it is. */
static int copy_field(const char *from, char *to, size_t size)
{
	size_t n = strlen(from);
	if (!n || n >= size)
		return -1;
	memcpy(to, from, n + 1);
	return 0;
}

/* Parses a time of clock_text(). Returns -1 if it is another text. */
static int parse_time(const char *text, double *seconds)
{
	struct tm tm = {0};
	const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm);
	if (!end || *end)
		return -1;
	*seconds = (double)timegm(&tm);
	return 0;
}

/* Parses a line, which it changes. Returns -1 if it is not valid, or 1 if it is not a strike. */
static int parse_line(char *line, struct strike *out)
{
	char *field[N_FIELDS];
	int n = 0;
	int64_t number;
	for (char *rest = line; rest; n++) {
		char *next = strsep(&rest, "\t");
		if (n < N_FIELDS)
			field[n] = next;
	}
	if (n != N_FIELDS || parse_time(field[FIELD_TIME], &out->time) ||
		parse_int(field[FIELD_STEP], &number) ||
		parse_int(field[FIELD_RANK], &number) ||
		copy_field(field[FIELD_HOST], out->host, sizeof(out->host)) ||
		copy_field(field[FIELD_DEVICE], out->device, sizeof(out->device)))
		return -1;
	const char *verdict = field[FIELD_VERDICT];
	out->persistent = !strcmp(verdict, audit_verdict_names[AUDIT_PERSISTENT]);
	if (out->persistent || !strcmp(verdict, audit_verdict_names[AUDIT_SPORADIC]))
		return 0;
	return strcmp(verdict, audit_verdict_names[AUDIT_UNDECIDED]) ? -1 : 1;
}

int64_t strikes_parse(struct strikes *x, const char *text, size_t n_bytes)
{
	enum { MAX_LINE = 512 };
	int64_t n_invalid = 0;
	for (const char *end = text + n_bytes; text < end;) {
		char line[MAX_LINE];
		struct strike new = {0};
		const char *at_end = memchr(text, '\n', (size_t)(end - text));
		size_t n = (size_t)((at_end ? at_end : end) - text);
		bool fits = n < sizeof(line) && !memchr(text, 0, n);
		if (fits) {
			memcpy(line, text, n);
			line[n] = 0;
		}
		int rc = !n ? 1 : fits ? parse_line(line, &new) : -1;
		if (!rc)
			strikes_add(x, &new);
		n_invalid += rc < 0;
		text += n + 1;
	}
	return n_invalid;
}

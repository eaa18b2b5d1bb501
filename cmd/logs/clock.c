/* Derives the columns elapsed, from time stamps, and tokens, from samples or steps of known
 * length. */
#include "logs/logs_internal.h"

#include <ctype.h>

/* The series of clock times, until build_finish(). (No name in a log begins with a blank.) */
#define CLOCK " clock"

/* Returns the days since 1970-01-01, in the Gregorian calendar. */
static int64_t days_since_1970(int64_t year, int64_t month, int64_t day)
{
	static const int days_before_month[] = {
		0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
	bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
	int64_t y = year - 1;
	int64_t leaps = y / 4 - y / 100 + y / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
	return 365 * (year - 1970) + leaps + days_before_month[month - 1] +
	       (is_leap && month > 2) + day - 1;
}

/* Reads "2026-01-01 10:00:00,123" as seconds; false: not a time stamp. */
static bool scan_stamp(struct span s, double *seconds)
{
	static const char form[] = "dddd-dd-ddTdd:dd:dd";
	enum { LEN = sizeof(form) - 1 };
	int v[6] = {0}, k = 0;
	if (s.n < LEN)
		return false;
	for (int i = 0; i < LEN; i++) {
		char c = s.p[i];
		bool is_digit = isdigit((unsigned char)c);
		if (form[i] == 'd' ? !is_digit
				   : c != form[i] && (form[i] != 'T' || c != ' '))
			return false;
		if (is_digit)
			v[k] = v[k] * 10 + c - '0';
		else
			k++;
	}
	if (v[1] < 1 || v[1] > 12)
		return false;
	*seconds = (double)(days_since_1970(v[0], v[1], v[2]) * 86400 + v[3] * 3600 +
			    v[4] * 60 + v[5]);
	double digit = 1;
	bool has_fraction = s.n > LEN && (s.p[LEN] == ',' || s.p[LEN] == '.');
	for (size_t i = LEN + 1;
		has_fraction && i < s.n && isdigit((unsigned char)s.p[i]); i++)
		*seconds += (s.p[i] - '0') * (digit /= 10);
	return true;
}

double time_of_line(struct span line)
{
	enum { BEGINNING = 64 };
	double seconds;
	const char *end = line.p + line.n;
	const char *stop = line.p + min64((int64_t)line.n, BEGINNING);
	for (const char *p = line.p; p && p < stop; p++) {
		p = memchr(p, '-', (size_t)(stop - p));
		if (p && p - line.p >= 4 &&
			scan_stamp((struct span){p - 4, (size_t)(end - p + 4)}, &seconds))
			return seconds;
		if (!p)
			break;
	}
	return 0;
}

void build_set_time(struct build *b, int64_t step, double seconds)
{
	static const double min_date = 1e8; /* 1973: smaller values are not dates */
	if (step != b->line.clocked && seconds > min_date)
		build_set(b, step, SPAN(CLOCK), seconds);
	b->line.clocked = step;
}

static struct series *find_series(struct build *b, const char *name)
{
	for (int i = 0; i < b->n_series; i++)
		if (!strcmp(b->series[i].name, name))
			return &b->series[i];
	return NULL;
}

/* Makes clock times relative to the first row; removes them if constant or if the log has any. */
static void finish_clock(struct build *b)
{
	struct series *s = find_series(b, CLOCK), *elapsed = find_series(b, LOG_ELAPSED);
	if (!s)
		return;
	bool is_used = !(elapsed && elapsed->n) && s->n && s->p[0].v != s->p[s->n - 1].v;
	double first = s->n ? s->p[0].v : 0;
	for (int64_t i = 0; i < s->n; i++)
		s->p[i].v = round((s->p[i].v - first) * 1e6) / 1e6;
	if (!is_used)
		s->n = 0;
	free(s->name);
	s->name = xstrdup(is_used ? LOG_ELAPSED : "");
}

/* Returns a positive integer setting; 0: missing or invalid. */
static int64_t get_setting(const struct build *b, const char *key)
{
	int64_t v = 0, i = strs_find(&b->keys, key);
	if (i >= 0 && parse_int(b->settings.v[i], &v))
		v = 0;
	return v > 0 && v < INT64_C(1) << 40 ? v : 0;
}

/* Adds the column tokens, from samples and their length, or from steps and tokens per step. */
static void finish_tokens(struct build *b)
{
	struct series *samples = find_series(b, LOG_SAMPLES);
	int64_t context = get_setting(b, "context"),
		per_step = get_setting(b, "tokens-per-step");
	bool by_samples = samples && samples->n && context;
	per_step = per_step ? per_step : get_setting(b, "batch") * context;
	struct series *tokens = find_series(b, columns[COL_TOKENS].name),
		      *source = samples;
	if ((tokens && tokens->n) || !(by_samples || per_step))
		return;
	for (int i = 0; i < b->n_series && !by_samples; i++)
		if (!i || b->series[i].n > source->n)
			source = &b->series[i];
	for (int64_t i = 0, n = source ? source->n : 0; i < n; i++) {
		struct point p = source->p[i];
		build_set(b, p.step, SPAN("tokens"),
			by_samples ? p.v * (double)context
				   : (double)p.step * (double)per_step);
	}
}

void build_derive_columns(struct build *b)
{
	finish_clock(b);
	finish_tokens(b);
}

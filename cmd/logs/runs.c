/* Tables and JSON lines of several runs, where each row names its run, as --export writes them. */
#include "base/file.h"
#include "logs/logs_internal.h"

#include <jansson.h>

bool runs_select_row(struct table *t, const char *run)
{
	if (!t->run && !t->first_run)
		t->first_run = xstrdup(run);
	bool is_selected = !strcmp(run, t->run ? t->run : t->first_run);
	t->n_other_runs += !is_selected && !t->run;
	return is_selected;
}

void runs_warn(const struct table *t, const char *name)
{
	if (t->n_other_runs)
		warn("%s: only the first of several runs is read, %s; specify another as %s#RUN",
			name, t->first_run, name);
	if (t->duplicate)
		warn("%s: several fields map to %s, but only the last one is read; specify "
		     "one as --column %s=THEIRS",
			name, t->duplicate, t->duplicate);
}

enum { MAX_RUNS = 10000 };

struct run_search {
	int field; /* index of the field with the run; -1: JSON lines */
	char delimiter;
	struct str raw, run; /* run of the last line, with JSON's escapes and without */
	struct strs *runs;
	int64_t lines;
};

#define KEY "{\"run\": \""

/* Returns the run of a JSON line, with JSON's escapes; empty: none. */
static struct span find_raw_run(struct span line)
{
	if (!span_begins(line, KEY))
		return (struct span){NULL, 0};
	struct span raw = {line.p + strlen(KEY), 0};
	const char *end = line.p + line.n;
	while (raw.p + raw.n < end && raw.p[raw.n] != '"')
		raw.n += raw.p[raw.n] == '\\' ? 2 : 1;
	return raw.p + raw.n < end ? raw : (struct span){NULL, 0};
}

/* Reads the run of a JSON line. Returns false if it is missing or, as usual, the same as before. */
static bool scan_json_run(struct run_search *s, struct span line)
{
	struct span raw = find_raw_run(line);
	if (!raw.p ||
		(s->run.s && s->raw.len == raw.n && !memcmp(s->raw.s, raw.p, raw.n)))
		return false;
	json_error_t why;
	json_auto_t *j = json_loadb(raw.p - 1, raw.n + 2, JSON_DECODE_ANY, &why);
	str_clear(&s->raw);
	str_add(&s->raw, raw.p, raw.n);
	str_clear(&s->run);
	str_puts(&s->run, json_string_value(j) ? json_string_value(j) : "");
	return json_is_string(j);
}

/* Adds the run of a line to the list, if it is new. A line_fn: *to is a struct run_search. */
static int add_run_of_line(void *to, const char *p, size_t n, struct err *e)
{
	struct run_search *s = to;
	struct span line = {p, n};
	if (s->field < 0 ? !scan_json_run(s, line) : !s->lines++ || !span_trim(line).n)
		return 0;
	if (s->field >= 0)
		csv_copy_field(line, s->delimiter, s->field, &s->run);
	for (int64_t i = s->runs->n - 1; i >= 0; i--)
		if (!strcmp(s->runs->v[i], s->run.s))
			return 0;
	if (s->runs->n == MAX_RUNS)
		return err_set(e, EX_DATAERR, "the log has more than %d runs", MAX_RUNS);
	strs_add(s->runs, s->run.s);
	return 0;
}

int list_row_runs(
	int fd, const char *path, struct span header, struct strs *runs, struct err *e)
{
	struct run_search s = {.runs = runs};
	scoped_str rest = {0};
	s.field = csv_find_run_field(header, &s.delimiter);
	if (s.field < 0 && !span_begins(header, KEY))
		return 0;
	int rc = file_read_lines(fd, path, add_run_of_line, &s, &rest, e);
	if (rc && e->code != EX_IOERR) {
		warn("%s: %s; the rest are ignored", path, e->msg);
		*e = (struct err){0};
		rc = 0;
	}
	str_free(&s.raw);
	str_free(&s.run);
	return rc;
}

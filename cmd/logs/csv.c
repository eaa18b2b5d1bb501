/* Tables: CSV and TSV, with a header or without, and torchtitan's files of losses. */
#include "logs/logs_internal.h"

#include <strings.h>

/* Returns the next field of a line, without quotes around it, and moves *rest after its delimiter;
 * after the last field, rest->p is NULL. */
static struct span next_field(struct span *rest, char delimiter)
{
	struct span f = {rest->p, 0};
	bool quoted = false;
	while (f.n < rest->n && (quoted || f.p[f.n] != delimiter))
		quoted ^= f.p[f.n++] == '"';
	if (f.n == rest->n)
		*rest = (struct span){NULL, 0};
	else
		*rest = (struct span){rest->p + f.n + 1, rest->n - f.n - 1};
	f = span_trim(f);
	if (f.n >= 2 && *f.p == '"' && f.p[f.n - 1] == '"')
		f = span_trim((struct span){f.p + 1, f.n - 2});
	return f;
}

static bool is_number(struct span f, double *v)
{
	return f.n && scan_double(f.p, f.p + f.n, v) == f.p + f.n;
}

/* Appends a field, with doubled quotes made single. */
static void add_unquoted(struct span f, struct str *out)
{
	for (size_t i = 0; i < f.n; i++) {
		str_putc(out, f.p[i]);
		i += f.p[i] == '"' && i + 1 < f.n && f.p[i + 1] == '"';
	}
}

/* Returns the delimiter that is most frequent in a line. */
static char find_delimiter(struct span line)
{
	static const char candidates[] = "\t;,";
	size_t max = 0;
	char best = '\0';
	for (int i = 0; candidates[i]; i++) {
		size_t n = 0;
		bool quoted = false;
		for (size_t k = 0; k < line.n; k++) {
			quoted ^= line.p[k] == '"';
			n += !quoted && line.p[k] == candidates[i];
		}
		if (n > max)
			max = n, best = candidates[i];
	}
	return best;
}

/* ---- the header ------------------------------------------------------------------ */

static void add_name(struct table *t, struct span name)
{
	enum { MAX_NAME = 255 };
	scoped_str text = {0};
	name.n = (size_t)min64((int64_t)name.n, MAX_NAME);
	str_puts(&text, "");
	add_unquoted(name, &text);
	strs_add(&t->names, text.s);
}

void csv_field(struct span line, char delimiter, int i, struct str *out)
{
	struct span f = next_field(&line, delimiter);
	while (i-- > 0 && line.p)
		f = next_field(&line, delimiter);
	str_clear(out);
	str_puts(out, "");
	add_unquoted(f, out);
}

int csv_run_field(struct span header, char *delimiter)
{
	*delimiter = find_delimiter(header);
	for (int i = 0; header.p && *delimiter; i++) {
		struct span f = next_field(&header, *delimiter);
		if (f.n == 3 && !memcmp(f.p, "run", 3))
			return i;
	}
	return -1;
}

/* Cuts the run off a name such as "run - train/loss" and returns it; empty: none. W&B's exports
 * have the fields "Step", "run - train/loss", "run - train/loss__MIN", "run - train/loss__MAX". */
static struct span cut_run(struct span *name)
{
	struct span run = {NULL, 0};
	for (const char *p = name->p, *end = p + name->n; p + 3 < end; p++)
		if (!memcmp(p, " - ", 3)) /* the last one */
			run = (struct span){name->p, (size_t)(p - name->p)};
	if (run.n)
		*name = (struct span){run.p + run.n + 3, name->n - run.n - 3};
	return run;
}

static bool span_ends(struct span s, const char *with)
{
	size_t n = strlen(with);
	return s.n >= n && !memcmp(s.p + s.n - n, with, n);
}

void csv_runs(struct span line, struct strs *runs)
{
	struct span name = next_field(&line, ','), last = {NULL, 0};
	if (!name.n || cut_run(&name).n)
		return;
	bool bounds = false;
	for (; line.p; last = name) {
		name = next_field(&line, ',');
		bounds |= last.n && name.n == last.n + 5 &&
			  !memcmp(name.p, last.p, last.n) && span_ends(name, "__MIN");
		struct span column = name, run = cut_run(&column);
		char text[256];
		snprintf(text, sizeof(text), "%.*s", (int)min64((int64_t)run.n, 255),
			run.p ? run.p : "");
		if (!run.n) {
			bounds = false;
			break;
		}
		if (strs_find(runs, text) < 0)
			strs_add(runs, text);
	}
	if (!bounds)
		strs_free(runs);
}

/* Returns the column of a field in a table of W&B's; "": it is of another run, or not a column. */
static struct span column_of(const struct table *t, const char *only, struct span name)
{
	struct span column = name, run = cut_run(&column), none = {"", 0};
	const char *read = t->run && t->run_field < 0 ? t->run : only;
	if (!read || !run.n)
		return name;
	bool mine = run.n == strlen(read) && !memcmp(run.p, read, run.n);
	bool bound = span_ends(name, "__MIN") || span_ends(name, "__MAX");
	return !mine || bound || name_is_step(column) ? none : column;
}

/* Returns true for the first field of steps; step replaces LitGPT's iter (of micro-batches). */
static bool is_better_step(const struct table *t, struct span name)
{
	if (t->by_epoch)
		return t->step < 0 && name.n == 5 && span_begins(name, "epoch");
	if (t->step < 0)
		return name_is_step(name);
	return !strcmp(t->names.v[t->step], "iter") && name.n == 4 &&
	       span_begins(name, "step");
}

/* Notes a column with two fields: two names may be of one column, and two runs of one name. */
static void note_duplicate(struct build *b, struct strs *seen, struct span name)
{
	double scale;
	struct table *t = &b->table;
	struct span column = name_of_column(b->how, name, &scale);
	scoped_str text = {0};
	if (!name.n || name_is_step(name) || given_column(b->how, name).n)
		return;
	str_add(&text, column.p, column.n);
	if (!t->duplicate && strs_find(seen, text.s) >= 0)
		t->duplicate = xstrdup(text.s);
	strs_add(seen, text.s);
}

/* Parses a header. Returns true if at least one of its names is known. */
static bool parse_header(struct build *b, struct span line)
{
	struct table *t = &b->table;
	bool known = false;
	scoped_strs runs = {0}, seen = {0};
	free(t->duplicate);
	t->duplicate = NULL;
	t->run_field = csv_run_field(line, &t->delimiter);
	if (t->run_field < 0)
		csv_runs(line, &runs);
	const char *only = runs.n == 1 ? runs.v[0] : NULL;
	if (span_begins(line, "#"))
		line = span_trim((struct span){line.p + 1, line.n - 1});
	t->step = -1;
	while (line.p && t->names.n < MAX_FIELDS) {
		double scale;
		struct span name = column_of(t, only, next_field(&line, t->delimiter));
		/* TensorBoard exports "Wall time,Step,Value" */
		if (t->names.n == 2 && t->step == 1 &&
			!strcmp(t->names.v[0], "Wall time"))
			name = value_of_export(b->how, name);
		struct span column = name_of_column(b->how, name, &scale);
		char text[64];
		snprintf(text, sizeof(text), "%.*s", (int)min64((int64_t)column.n, 63),
			column.p);
		known |= column_find(text) >= 0;
		if (is_better_step(t, name)) {
			t->step = (int)t->names.n;
			known = true;
		}
		add_name(t, name);
		note_duplicate(b, &seen, name);
	}
	t->clock = t->step == 1 && !strcmp(t->names.v[0], "Wall time") ? 0 : -1;
	known |= runs.n > 0;
	return known;
}

/* Parses the first row of a table without a header: step, loss, and columns without names. */
static bool parse_headless(struct table *t, struct span line)
{
	t->run_field = t->clock = -1;
	while (line.p && t->names.n < MAX_FIELDS) {
		char name[32];
		double v;
		struct span f = next_field(&line, t->delimiter);
		snprintf(name, sizeof(name), "column%lld", (long long)t->names.n + 1);
		if (!is_number(f, &v) || (!t->names.n && !column_accepts(COL_STEP, v)))
			return false;
		strs_add(&t->names, t->names.n == 0   ? ""
				    : t->names.n == 1 ? "loss"
						      : name);
	}
	t->step = 0;
	return t->names.n > 1;
}

/* Makes train_loss the loss, if there is no loss. */
static void choose_loss(struct build *b)
{
	struct table *t = &b->table;
	int64_t train = -1;
	for (int64_t i = 0; i < t->names.n; i++) {
		double scale;
		struct span column =
			name_of_column(b->how, span_of(t->names.v[i]), &scale);
		if (column.n == 4 && !memcmp(column.p, "loss", 4))
			return;
		if (!strcmp(t->names.v[i], "train_loss"))
			train = i;
	}
	if (train >= 0)
		memmove(t->names.v[train], "loss", 5);
}

static bool begin_table(struct build *b, struct span line)
{
	struct table *t = &b->table;
	double v;
	t->delimiter = find_delimiter(line);
	struct span rest = line, first = next_field(&rest, t->delimiter);
	bool header =
		t->lines++ || !is_number(first, &v); /* or the first line is a row */
	if (t->delimiter && (header ? parse_header(b, line) : parse_headless(t, line))) {
		choose_loss(b);
		return header;
	}
	strs_free(&t->names);
	t->delimiter = '\0';
	return true;
}

/* ---- kinds of tables ---------------------------------------------------------------------- */

static struct span next_line(struct span *rest)
{
	const char *stop = rest->n ? memchr(rest->p, '\n', rest->n) : NULL;
	struct span line = {rest->p, stop ? (size_t)(stop - rest->p) : rest->n};
	size_t n = line.n + (stop != NULL);
	*rest = (struct span){rest->p + n, rest->n - n};
	return line;
}

bool csv_columns(struct span sample, struct strs *names)
{
	enum { MAX_NAMES = 200 };
	struct span header = next_line(&sample), row = next_line(&sample);
	char delimiter = find_delimiter(header);
	bool numbers = false;
	while (delimiter && header.p && row.p && names->n < MAX_NAMES) {
		double v;
		struct span name = next_field(&header, delimiter);
		scoped_str text = {0};
		numbers |= is_number(next_field(&row, delimiter), &v);
		if (!name.n || is_number(name, &v) || name.n > 80)
			return false;
		add_unquoted(name, &text);
		strs_add(names, text.s);
	}
	return numbers && names->n > 1 && !header.p == !row.p;
}

/* Returns true for the header of W&B's table of runs. *has_steps: it has steps or epochs. */
static bool is_runs_header(struct span header, char delimiter, bool *has_steps)
{
	static const char *const marks[] = {"Name", "State", "Created"};
	size_t found = 0;
	*has_steps = false;
	while (header.p) {
		struct span f = next_field(&header, delimiter);
		for (size_t i = 0; i < ARRAY_LEN(marks); i++)
			found += f.n == strlen(marks[i]) && span_begins(f, marks[i]);
		*has_steps |=
			name_is_step(f) || (f.n == 5 && !strncasecmp(f.p, "epoch", 5));
	}
	return found >= ARRAY_LEN(marks);
}

/* Returns true if a field has a different text in each row, never a number or a date. */
static bool names_rows(struct span rows, char delimiter, int field)
{
	enum { MAX_ROWS = 50 };
	scoped_strs seen = {0};
	scoped_str text = {0};
	while (rows.n && seen.n < MAX_ROWS) {
		struct span line = next_line(&rows);
		if (!span_trim(line).n)
			continue;
		csv_field(line, delimiter, field, &text);
		if (!text.len || begins_as_number(text.s, text.s + text.len) ||
			strs_find(&seen, text.s) >= 0)
			return false;
		strs_add(&seen, text.s);
	}
	return seen.n > 1;
}

bool csv_is_runs(struct span sample)
{
	enum { FIELDS = 32 };
	bool has_steps;
	scoped_strs names = {0};
	bool is_table = csv_columns(sample, &names);
	struct span header = next_line(&sample);
	char delimiter = find_delimiter(header);
	if (!delimiter)
		return false;
	if (is_runs_header(header, delimiter, &has_steps))
		return true;
	for (int i = 0; i < FIELDS && header.p && is_table && !has_steps; i++) {
		next_field(&header, delimiter);
		if (names_rows(sample, delimiter, i))
			return true;
	}
	return false;
}

/* ---- rows ------------------------------------------------------------------------ */

static bool read_step(struct build *b, struct span line, int64_t *step)
{
	const struct table *t = &b->table;
	double v;
	*step = t->rows;
	if (t->step < 0)
		return true;
	for (int i = 0; line.p; i++) {
		struct span f = next_field(&line, t->delimiter);
		if (i < t->step)
			continue;
		if (!is_number(f, &v) || !column_accepts(COL_STEP, v)) {
			if (begins_as_number(f.p, f.p + f.n))
				build_lost_row(b, f);
			return false;
		}
		*step = (int64_t)v;
		return true;
	}
	return false;
}

static bool is_selected(struct build *b, struct span line)
{
	struct table *t = &b->table;
	scoped_str run = {0};
	if (t->run_field < 0)
		return true;
	csv_field(line, t->delimiter, t->run_field, &run);
	return runs_select_row(t, run.s);
}

/* Returns true if a row has more fields than the header, perhaps because 2,5 is a number. */
static bool has_more_fields(const struct table *t, struct span line)
{
	int64_t n = 0;
	const char *end = line.p + line.n;
	for (const char *p = line.p; (p = memchr(p, t->delimiter, (size_t)(end - p)));
		p++)
		n++;
	if (n < t->names.n)
		return false;
	for (int i = 0; line.p; i++)
		if (next_field(&line, t->delimiter).n && i >= t->names.n &&
			t->names.n < MAX_FIELDS)
			return true;
	return false;
}

/* Returns true for a header with epoch, train/box_loss or train/loss, and metrics/... */
static bool is_yolo(struct span header)
{
	char delimiter = find_delimiter(header);
	bool epoch = false, loss = false, metrics = false;
	while (header.p && delimiter) {
		struct span name = next_field(&header, delimiter);
		epoch |= name.n == 5 && span_begins(name, "epoch");
		loss |= span_begins(name, "train/") && span_ends(name, "loss");
		metrics |= span_begins(name, "metrics/");
	}
	return epoch && loss && metrics;
}

/* Adds train/..._loss to the first sum, val/..._loss to the second. */
static void add_part(double sums[static 2], struct span name, double v)
{
	double *sum = span_begins(name, "train/") ? &sums[0] : &sums[1];
	bool part = sum == &sums[0] || span_begins(name, "val/");
	if (part && span_ends(name, "_loss"))
		*sum = isnan(*sum) ? v : *sum + v;
}

/* Sets loss and val_loss to the sums, rounded to about the five digits of their parts. */
static void set_sums(struct build *b, int64_t step, const double sums[static 2])
{
	static const double digits = 1e6;
	for (int i = 0; i < 2; i++)
		if (!isnan(sums[i]))
			build_set(b, step, i ? SPAN("val_loss") : SPAN("loss"),
				round(sums[i] * digits) / digits);
}

bool line_csv(struct build *b, struct span line)
{
	struct table *t = &b->table;
	int64_t step;
	bool any = false;
	b->is_table = true;
	if (!span_trim(line).n || (!t->delimiter && begin_table(b, line)) ||
		span_begins(line, "#") || !is_selected(b, line) ||
		!read_step(b, line, &step))
		return false;
	t->rows++;
	double sums[2] = {NAN, NAN}; /* of YOLO: training, validation */
	if (has_more_fields(t, line)) {
		build_lost_row(b, line);
		return false;
	}
	for (int i = 0; line.p && i < t->names.n; i++) {
		double v;
		struct span f = next_field(&line, t->delimiter);
		struct span name = span_of(t->names.v[i]);
		bool number = is_number(f, &v);
		if (i == t->step || i == t->run_field || !name.n ||
			(!number && !build_unread(b, step, name, f)))
			continue;
		if (!any)
			build_row(b, step, false);
		any = true;
		if (number && i == t->clock)
			build_clock(b, step, v);
		else if (number)
			build_set(b, step, name, v);
		if (number && t->by_epoch)
			add_part(sums, name, v);
	}
	if (t->by_epoch)
		set_sums(b, step, sums);
	return any;
}

/* Parses YOLO's results.csv, which has one row per epoch, and the parts of the loss. */
bool line_yolo(struct build *b, struct span line)
{
	struct table *t = &b->table;
	t->by_epoch |= !t->delimiter && is_yolo(line);
	return t->by_epoch && line_csv(b, line);
}

/* Parses "10 6.154908657073975". */
bool line_losses(struct build *b, struct span line)
{
	int64_t step;
	double v;
	line = span_trim(line);
	const char *end = line.p + line.n;
	const char *p = line.n ? memchr(line.p, ' ', line.n) : NULL;
	if (!p)
		return false;
	struct span loss = span_trim((struct span){p, (size_t)(end - p)});
	if (memchr(loss.p, ' ', loss.n))
		return false;
	if (scan_step(line, &step) != p) {
		if (begins_as_number(line.p, p) && is_number(loss, &v))
			build_lost_row(b, line);
		return false;
	}
	bool number = is_number(loss, &v);
	if (!number && !build_unread(b, step, SPAN("loss"), loss))
		return false;
	build_row(b, step, true);
	if (number)
		build_set(b, step, SPAN("loss"), v);
	return true;
}

/* Parses MLflow's "1764201600500 2.5 10": the time in milliseconds, the value of the metric that
 * the file is named after, and the step. */
bool line_mlflow(struct build *b, struct span line)
{
	static const double after = 1e11, before = 1e14;
	double time, v;
	int64_t step;
	struct span name = b->file ? span_of(b->file) : SPAN("loss");
	struct span rest = span_trim(line), first = next_field(&rest, ' ');
	struct span value = rest.p ? next_field(&rest, ' ') : rest;
	b->is_table = true;
	if (!rest.p || !is_number(first, &time) || !(time > after && time < before))
		return false;
	if (scan_step(rest, &step) != rest.p + rest.n) {
		build_lost_row(b, rest);
		return false;
	}
	bool number = is_number(value, &v);
	if (!number && !build_unread(b, step, name, value))
		return false;
	build_row(b, step, false);
	if (number)
		build_set(b, step, name, v);
	build_clock(b, step, time / 1e3);
	return true;
}

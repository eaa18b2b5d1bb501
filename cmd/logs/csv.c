/* Tables: CSV and TSV, with a header or without, and torchtitan's files of losses. */
#include "logs/logs_internal.h"

#include <strings.h>

/* Returns the next field of a line, without quotes around it, and moves *rest after its delimiter;
 * after the last field, rest->p is NULL. */
static struct span next_field(struct span *rest, char delimiter)
{
	struct span f = {rest->p, 0};
	bool is_quoted = false;
	while (f.n < rest->n && (is_quoted || f.p[f.n] != delimiter))
		is_quoted ^= f.p[f.n++] == '"';
	if (f.n == rest->n)
		*rest = (struct span){NULL, 0};
	else
		*rest = (struct span){rest->p + f.n + 1, rest->n - f.n - 1};
	f = span_trim(f);
	if (f.n >= 2 && *f.p == '"' && f.p[f.n - 1] == '"')
		f = span_trim((struct span){f.p + 1, f.n - 2});
	return f;
}

/* Reads a number that is the whole field; returns false for any other text. */
static bool scan_field(struct span f, double *v)
{
	return f.n && scan_double(f.p, f.p + f.n, v) == f.p + f.n;
}

/* Appends a field; doubled quotes become single. */
static void append_unquoted(struct span f, struct str *out)
{
	for (size_t i = 0; i < f.n; i++) {
		str_putc(out, f.p[i]);
		i += f.p[i] == '"' && i + 1 < f.n && f.p[i + 1] == '"';
	}
}

/* Returns the most frequent delimiter of a line: tab, semicolon or comma; 0: none. */
static char find_delimiter(struct span line)
{
	static const char candidates[] = "\t;,";
	size_t max = 0;
	char best = '\0';
	for (int i = 0; candidates[i]; i++) {
		size_t n = 0;
		bool is_quoted = false;
		for (size_t k = 0; k < line.n; k++) {
			is_quoted ^= line.p[k] == '"';
			n += !is_quoted && line.p[k] == candidates[i];
		}
		if (n > max)
			max = n, best = candidates[i];
	}
	return best;
}

/* ---- the header ------------------------------------------------------------------ */

static void add_field_name(struct table *t, struct span name)
{
	enum { MAX_NAME = 255 };
	scoped_str text = {0};
	name.n = (size_t)min64((int64_t)name.n, MAX_NAME);
	str_puts(&text, "");
	append_unquoted(name, &text);
	strs_add(&t->names, text.s);
}

void csv_copy_field(struct span line, char delimiter, int i, struct str *out)
{
	struct span f = next_field(&line, delimiter);
	while (i-- > 0 && line.p)
		f = next_field(&line, delimiter);
	str_clear(out);
	str_puts(out, "");
	append_unquoted(f, out);
}

int csv_find_run_field(struct span header, char *delimiter)
{
	*delimiter = find_delimiter(header);
	for (int i = 0; header.p && *delimiter; i++) {
		struct span f = next_field(&header, *delimiter);
		if (f.n == 3 && !memcmp(f.p, "run", 3))
			return i;
	}
	return -1;
}

/* Removes the run from a name such as "run - train/loss" and returns it; empty: none. W&B
 * exports "Step", "run - train/loss", "run - train/loss__MIN" and "run - train/loss__MAX". */
static struct span split_run(struct span *name)
{
	struct span run = {NULL, 0};
	for (const char *p = name->p, *end = p + name->n; p + 3 < end; p++)
		if (!memcmp(p, " - ", 3)) /* the last one */
			run = (struct span){name->p, (size_t)(p - name->p)};
	if (run.n)
		*name = (struct span){run.p + run.n + 3, name->n - run.n - 3};
	return run;
}

static bool span_ends(struct span s, const char *suffix)
{
	size_t n = strlen(suffix);
	return s.n >= n && !memcmp(s.p + s.n - n, suffix, n);
}

void csv_list_runs(struct span line, struct strs *runs)
{
	struct span name = next_field(&line, ','), last = {NULL, 0};
	if (!name.n || split_run(&name).n)
		return;
	bool has_bounds = false;
	for (; line.p; last = name) {
		name = next_field(&line, ',');
		has_bounds |= last.n && name.n == last.n + 5 &&
			      !memcmp(name.p, last.p, last.n) && span_ends(name, "__MIN");
		struct span column = name, run = split_run(&column);
		char text[256];
		snprintf(text, sizeof(text), "%.*s", (int)min64((int64_t)run.n, 255),
			run.p ? run.p : "");
		if (!run.n) {
			has_bounds = false;
			break;
		}
		if (strs_find(runs, text) < 0)
			strs_add(runs, text);
	}
	if (!has_bounds)
		strs_free(runs);
}

/* Returns the column of a field that W&B exported; "" for bounds, steps and runs not selected. */
static struct span column_of_field(
	const struct table *t, const char *only, struct span name)
{
	struct span column = name, run = split_run(&column), none = {"", 0};
	const char *selected = t->run && t->run_field < 0 ? t->run : only;
	if (!selected || !run.n)
		return name;
	bool is_run = run.n == strlen(selected) && !memcmp(run.p, selected, run.n);
	bool is_bound = span_ends(name, "__MIN") || span_ends(name, "__MAX");
	return !is_run || is_bound || name_is_step(column) ? none : column;
}

/* Returns true for the first field of steps, or step after LitGPT's iter (of micro-batches). */
static bool is_step_field(const struct table *t, struct span name)
{
	if (t->by_epoch)
		return t->step < 0 && name.n == 5 && span_begins(name, "epoch");
	if (t->step < 0)
		return name_is_step(name);
	return !strcmp(t->names.v[t->step], "iter") && name.n == 4 &&
	       span_begins(name, "step");
}

/* Records a column with two fields: two names may be of one column, and two runs of one name. */
static void record_duplicate(struct build *b, struct strs *earlier, struct span name)
{
	double scale;
	struct table *t = &b->table;
	struct span column = our_column(b->opts, name, &scale);
	scoped_str text = {0};
	if (!name.n || name_is_step(name) || mapped_column(b->opts, name).n)
		return;
	str_add(&text, column.p, column.n);
	if (!t->duplicate && strs_find(earlier, text.s) >= 0)
		t->duplicate = xstrdup(text.s);
	strs_add(earlier, text.s);
}

/* Parses a header. Returns true if at least one of its names is of a known column. */
static bool parse_header(struct build *b, struct span line)
{
	struct table *t = &b->table;
	bool has_known = false;
	scoped_strs runs = {0}, seen = {0};
	free(t->duplicate);
	t->duplicate = NULL;
	t->run_field = csv_find_run_field(line, &t->delimiter);
	if (t->run_field < 0)
		csv_list_runs(line, &runs);
	const char *only = runs.n == 1 ? runs.v[0] : NULL;
	if (span_begins(line, "#"))
		line = span_trim((struct span){line.p + 1, line.n - 1});
	t->step = -1;
	while (line.p && t->names.n < MAX_FIELDS) {
		double scale;
		struct span name =
			column_of_field(t, only, next_field(&line, t->delimiter));
		/* (TensorBoard exports "Wall time,Step,Value") */
		if (t->names.n == 2 && t->step == 1 &&
			!strcmp(t->names.v[0], "Wall time"))
			name = rename_export_value(b->opts, name);
		struct span column = our_column(b->opts, name, &scale);
		char text[64];
		snprintf(text, sizeof(text), "%.*s", (int)min64((int64_t)column.n, 63),
			column.p);
		has_known |= column_find(text) >= 0;
		if (is_step_field(t, name)) {
			t->step = (int)t->names.n;
			has_known = true;
		}
		add_field_name(t, name);
		record_duplicate(b, &seen, name);
	}
	t->clock = t->step == 1 && !strcmp(t->names.v[0], "Wall time") ? 0 : -1;
	has_known |= runs.n > 0;
	return has_known;
}

/* Parses the first row of a table without a header: step, loss, and columns without names. */
static bool parse_first_row(struct table *t, struct span line)
{
	t->run_field = t->clock = -1;
	while (line.p && t->names.n < MAX_FIELDS) {
		char name[32];
		double v;
		struct span f = next_field(&line, t->delimiter);
		snprintf(name, sizeof(name), "column%lld", (long long)t->names.n + 1);
		if (!scan_field(f, &v) || (!t->names.n && !column_accepts(COL_STEP, v)))
			return false;
		strs_add(&t->names, t->names.n == 0   ? ""
				    : t->names.n == 1 ? "loss"
						      : name);
	}
	t->step = 0;
	return t->names.n > 1;
}

/* Renames the field train_loss to loss, if no field is for the loss. */
static void choose_loss(struct build *b)
{
	struct table *t = &b->table;
	int64_t train = -1;
	for (int64_t i = 0; i < t->names.n; i++) {
		double scale;
		struct span column = our_column(b->opts, span_of(t->names.v[i]), &scale);
		if (column.n == 4 && !memcmp(column.p, "loss", 4))
			return;
		if (!strcmp(t->names.v[i], "train_loss"))
			train = i;
	}
	if (train >= 0)
		memmove(t->names.v[train], "loss", 5);
}

/* Begins a table at its header or its first row. Returns false if the line is a row to parse. */
static bool begin_table(struct build *b, struct span line)
{
	struct table *t = &b->table;
	double v;
	t->delimiter = find_delimiter(line);
	struct span rest = line, first = next_field(&rest, t->delimiter);
	bool is_header =
		t->lines++ || !scan_field(first, &v); /* or the first line is a row */
	if (t->delimiter &&
		(is_header ? parse_header(b, line) : parse_first_row(t, line))) {
		choose_loss(b);
		return is_header;
	}
	strs_free(&t->names);
	t->delimiter = '\0';
	return true;
}

/* ---- kinds of tables ---------------------------------------------------------------------- */

/* Returns the first line of *rest, without its line break, and advances *rest past it. */
static struct span next_line(struct span *rest)
{
	const char *stop = rest->n ? memchr(rest->p, '\n', rest->n) : NULL;
	struct span line = {rest->p, stop ? (size_t)(stop - rest->p) : rest->n};
	size_t n = line.n + (stop != NULL);
	*rest = (struct span){rest->p + n, rest->n - n};
	return line;
}

bool csv_list_columns(struct span sample, struct strs *names)
{
	enum { MAX_NAMES = 200 };
	struct span header = next_line(&sample), row = next_line(&sample);
	char delimiter = find_delimiter(header);
	bool has_numbers = false;
	while (delimiter && header.p && row.p && names->n < MAX_NAMES) {
		double v;
		struct span name = next_field(&header, delimiter);
		scoped_str text = {0};
		has_numbers |= scan_field(next_field(&row, delimiter), &v);
		if (!name.n || scan_field(name, &v) || name.n > 80)
			return false;
		append_unquoted(name, &text);
		strs_add(names, text.s);
	}
	return has_numbers && names->n > 1 && !header.p == !row.p;
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
static bool has_unique_names(struct span rows, char delimiter, int field)
{
	enum { MAX_ROWS = 50 };
	scoped_strs seen = {0};
	scoped_str text = {0};
	while (rows.n && seen.n < MAX_ROWS) {
		struct span line = next_line(&rows);
		if (!span_trim(line).n)
			continue;
		csv_copy_field(line, delimiter, field, &text);
		if (!text.len || begins_as_number(text.s, text.s + text.len) ||
			strs_find(&seen, text.s) >= 0)
			return false;
		strs_add(&seen, text.s);
	}
	return seen.n > 1;
}

bool csv_is_run_table(struct span sample)
{
	enum { FIELDS = 32 };
	bool has_steps;
	scoped_strs names = {0};
	bool is_table = csv_list_columns(sample, &names);
	struct span header = next_line(&sample);
	char delimiter = find_delimiter(header);
	if (!delimiter)
		return false;
	if (is_runs_header(header, delimiter, &has_steps))
		return true;
	for (int i = 0; i < FIELDS && header.p && is_table && !has_steps; i++) {
		next_field(&header, delimiter);
		if (has_unique_names(sample, delimiter, i))
			return true;
	}
	return false;
}

/* Reads the step of a row, or counts rows if no field is a step. Returns false if it is invalid. */
static bool read_row_step(struct build *b, struct span line, int64_t *step)
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
		if (!scan_field(f, &v) || !column_accepts(COL_STEP, v)) {
			if (begins_as_number(f.p, f.p + f.n))
				build_add_lost_row(b, f);
			return false;
		}
		*step = (int64_t)v;
		return true;
	}
	return false;
}

/* Returns true if the row belongs to the selected run; counts rows of other runs. */
static bool is_row_selected(struct build *b, struct span line)
{
	struct table *t = &b->table;
	scoped_str run = {0};
	if (t->run_field < 0)
		return true;
	csv_copy_field(line, t->delimiter, t->run_field, &run);
	return runs_select_row(t, run.s);
}

/* Returns true if a row has more fields than the header, as with numbers such as 2,5. */
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
static bool is_yolo_header(struct span header)
{
	char delimiter = find_delimiter(header);
	bool has_epoch = false, has_loss = false, has_metrics = false;
	while (header.p && delimiter) {
		struct span name = next_field(&header, delimiter);
		has_epoch |= name.n == 5 && span_begins(name, "epoch");
		has_loss |= span_begins(name, "train/") && span_ends(name, "loss");
		has_metrics |= span_begins(name, "metrics/");
	}
	return has_epoch && has_loss && has_metrics;
}

/* Adds a value of train/..._loss to the first sum, and of val/..._loss to the second. */
static void add_loss_part(double sums[static 2], struct span name, double v)
{
	double *sum = span_begins(name, "train/") ? &sums[0] : &sums[1];
	bool is_part = sum == &sums[0] || span_begins(name, "val/");
	if (is_part && span_ends(name, "_loss"))
		*sum = isnan(*sum) ? v : *sum + v;
}

/* Sets loss and val_loss to the sums, rounded to six decimals: the parts have five digits. */
static void set_loss_sums(struct build *b, int64_t step, const double sums[static 2])
{
	static const double decimals = 1e6;
	for (int i = 0; i < 2; i++)
		if (!isnan(sums[i]))
			build_set(b, step, i ? SPAN("val_loss") : SPAN("loss"),
				round(sums[i] * decimals) / decimals);
}

/* Adds a row of a table to b; the first line that is not blank is the header. Records fields that
 * cannot be read, for a warning. Returns true if the row has values. */
bool parse_csv_line(struct build *b, struct span line)
{
	struct table *t = &b->table;
	int64_t step;
	bool has_values = false;
	b->is_table = true;
	if (!span_trim(line).n || (!t->delimiter && begin_table(b, line)) ||
		span_begins(line, "#") || !is_row_selected(b, line) ||
		!read_row_step(b, line, &step))
		return false;
	t->rows++;
	double sums[2] = {NAN, NAN}; /* sums of YOLO's losses: training, validation */
	if (has_more_fields(t, line)) {
		build_add_lost_row(b, line);
		return false;
	}
	for (int i = 0; line.p && i < t->names.n; i++) {
		double v;
		struct span f = next_field(&line, t->delimiter);
		struct span name = span_of(t->names.v[i]);
		bool is_number = scan_field(f, &v);
		if (i == t->step || i == t->run_field || !name.n ||
			(!is_number && !build_add_unread(b, step, name, f)))
			continue;
		if (!has_values)
			build_begin_row(b, step, false);
		has_values = true;
		if (is_number && i == t->clock)
			build_set_time(b, step, v);
		else if (is_number)
			build_set(b, step, name, v);
		if (is_number && t->by_epoch)
			add_loss_part(sums, name, v);
	}
	if (t->by_epoch)
		set_loss_sums(b, step, sums);
	return has_values;
}

/* Parses YOLO's results.csv, which has one row per epoch, and the parts of the loss. */
bool parse_yolo_line(struct build *b, struct span line)
{
	struct table *t = &b->table;
	t->by_epoch |= !t->delimiter && is_yolo_header(line);
	return t->by_epoch && parse_csv_line(b, line);
}

/* Parses a step and a loss, such as "10 6.154908657073975". */
bool parse_losses_line(struct build *b, struct span line)
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
		if (begins_as_number(line.p, p) && scan_field(loss, &v))
			build_add_lost_row(b, line);
		return false;
	}
	bool is_number = scan_field(loss, &v);
	if (!is_number && !build_add_unread(b, step, SPAN("loss"), loss))
		return false;
	build_begin_row(b, step, true);
	if (is_number)
		build_set(b, step, SPAN("loss"), v);
	return true;
}

/* Parses MLflow's "1764201600500 2.5 10": the time in milliseconds, the value of the metric that
 * the file is named after, and the step. */
bool parse_mlflow_line(struct build *b, struct span line)
{
	static const double min_time = 1e11, max_time = 1e14;
	double time, v;
	int64_t step;
	struct span name = b->file ? span_of(b->file) : SPAN("loss");
	struct span rest = span_trim(line), first = next_field(&rest, ' ');
	struct span value = rest.p ? next_field(&rest, ' ') : rest;
	b->is_table = true;
	if (!rest.p || !scan_field(first, &time) || !(time > min_time && time < max_time))
		return false;
	if (scan_step(rest, &step) != rest.p + rest.n) {
		build_add_lost_row(b, rest);
		return false;
	}
	bool is_number = scan_field(value, &v);
	if (!is_number && !build_add_unread(b, step, name, value))
		return false;
	build_begin_row(b, step, false);
	if (is_number)
		build_set(b, step, name, v);
	build_set_time(b, step, time / 1e3);
	return true;
}

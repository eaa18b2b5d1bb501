/* Builds a log: collects a stack of values per column, and makes rows of them. */
#include "logs/logs_internal.h"
#include "options/options.h"

#include <math.h>

enum { MAX_POINTS = 1 << 27, MAX_SETTINGS = 256, MAX_VALUE = 1024 };

void build_init(struct build *b, const struct log_options *opts)
{
	*b = (struct build){.opts = opts,
		.line = {.trained = -1, .total = -1, .clocked = -1},
		.plain = {.epoch = -1}};
	b->series = xcalloc(MAX_LOG_COLUMNS, sizeof(*b->series));
	b->known.v = xcalloc(MAX_LOG_COLUMNS, sizeof(*b->known.v));
}

void build_release(struct build *b)
{
	for (int i = 0; i < b->n_series; i++) {
		free(b->series[i].name);
		free(b->series[i].p);
	}
	for (int i = 0; i < b->known.n; i++)
		free(b->known.v[i].name);
	free(b->series);
	free(b->known.v);
	strs_free(&b->keys);
	strs_free(&b->settings);
	strs_free(&b->table.names);
	free(b->table.first_run);
	free(b->table.duplicate);
	*b = (struct build){0};
}

static bool span_equals(const char *s, struct span name)
{
	return strlen(s) == name.n && !memcmp(s, name.p, name.n);
}

/* Returns the index of the series of a column, which is added if it is missing; -1: too many. */
static int find_or_add_series(struct build *b, struct span column)
{
	int i = 0;
	while (i < b->n_series && !span_equals(b->series[i].name, column))
		i++;
	if (i < b->n_series)
		return i;
	if (i == MAX_LOG_COLUMNS - N_COLUMNS || !column.n ||
		memchr(column.p, '\0', column.n))
		return -1;
	struct str copy = {0};
	str_add(&copy, column.p, column.n);
	b->series[i] = (struct series){.name = copy.s, .column = column_find(copy.s)};
	return b->n_series++;
}

static bool is_name(const struct known_name *k, struct span name)
{
	return k->len == name.n && !memcmp(k->name, name.p, name.n);
}

/* Returns the entry of a name, which is added if it is missing; NULL: too many names. */
static struct known_name *intern_name(struct known_names *all, struct span name)
{
	size_t slot = hash_bytes(name.p, name.n, 0) % NAME_SLOTS;
	for (; all->slot[slot]; slot = (slot + 1) % NAME_SLOTS)
		if (is_name(&all->v[all->slot[slot] - 1], name))
			return &all->v[all->slot[slot] - 1];
	if (all->n == MAX_LOG_COLUMNS)
		return NULL;
	struct str copy = {0};
	str_add(&copy, name.p, name.n);
	struct known_name *k = &all->v[all->n++];
	*k = (struct known_name){.name = copy.s, .len = name.n, .series = -1};
	all->slot[slot] = (short)all->n;
	return k;
}

/* Returns the entry of a name, added if it is new, and makes it the last one. First tries the name
 * that followed last time: most rows have the same names in the same order. */
struct known_name *build_add_name(struct build *b, struct span name)
{
	struct known_names *all = &b->known;
	struct known_name *last = all->last;
	if (last && last->next && is_name(last->next, name))
		return all->last = last->next;
	all->last = intern_name(all, name);
	if (last)
		last->next = all->last;
	return all->last;
}

/* Returns true for values that a column can have. Only a loss may be NaN. */
static bool can_hold_value(const struct series *s, double v)
{
	if (s->column < 0)
		return true;
	if (s->column == COL_STEP || !column_accepts(s->column, v))
		return false;
	return columns[s->column].kind == COLUMN_EXACT || isfinite(v);
}

/* Removes a column's values from `step` on, and counts them as replaced. */
static void remove_values_from(struct build *b, struct series *s, int64_t step)
{
	while (s->n && s->p[s->n - 1].step >= step) {
		s->n--;
		s->n_replaced += !b->repeats;
		b->n_points--;
	}
}

void build_set(struct build *b, int64_t step, struct span name, double v)
{
	build_set_known(b, step, build_add_name(b, name), v);
}

/* Finds or adds the series of a name; NULL: too many columns, invalid step, or ignored name. */
static struct series *series_of_name(
	struct build *b, int64_t step, struct known_name *known)
{
	if (known && known->series < 0) {
		struct span name = {known->name, known->len};
		known->is_mapped = mapped_column(b->opts, name).n > 0;
		known->series =
			find_or_add_series(b, our_column(b->opts, name, &known->scale));
	}
	if (!known || known->series < 0 || !column_accepts(COL_STEP, (double)step))
		return NULL;
	struct series *s = &b->series[known->series];
	if (known->is_mapped && !s->is_mapped) {
		b->n_points -= s->n;
		s->n = s->n_replaced = 0;
		s->is_mapped = true;
	}
	return s->is_mapped && !known->is_mapped ? NULL : s;
}

/* Records the column if another field of the same JSON row already set it to another value. */
static void record_duplicate(
	struct build *b, struct series *s, const struct known_name *name, double v)
{
	bool is_second = b->table.json_row && s->last_row == b->table.json_row &&
			 s->last_name != name && s->n;
	double previous = is_second ? s->p[s->n - 1].v : v;
	if (memcmp(&previous, &v, sizeof(v)) != 0 && !b->table.duplicate)
		b->table.duplicate = xstrdup(s->name);
	s->last_name = name;
	s->last_row = b->table.json_row;
}

/* Appends a value. Except in a table, the value replaces all values at this and later steps. */
static void append_value(struct build *b, struct series *s, int64_t step, double v)
{
	const struct point *last = s->n && !b->is_table ? &s->p[s->n - 1] : NULL;
	if (last && last->step == step && !memcmp(&last->v, &v, sizeof(v)))
		return; /* repeated, as by progress bars */
	if (!b->is_table)
		remove_values_from(b, s, step);
	if (b->n_points == MAX_POINTS)
		return;
	if (s->n == s->capacity) {
		s->capacity = s->capacity ? 2 * s->capacity : 64;
		s->p = xrealloc(s->p, (size_t)s->capacity * sizeof(*s->p));
	}
	s->p[s->n++] = (struct point){step, v};
	b->n_points++;
}

bool build_add_unread(struct build *b, int64_t step, struct span name, struct span text)
{
	double scale;
	char column[64];
	struct span ours = our_column(b->opts, name, &scale);
	snprintf(column, sizeof(column), "%.*s", (int)min64((int64_t)ours.n, 63), ours.p);
	int c = column_find(column);
	if (c < 0 || !begins_as_number(text.p, text.p + text.n))
		return false;
	/* (a second field of steps is not the row's step) */
	struct series *s =
		c == COL_STEP ? NULL : series_of_name(b, step, build_add_name(b, name));
	if (s)
		append_value(b, s, step, unread_value());
	else if (c != COL_STEP)
		return false;
	unread_add(&b->unread, column, step, text.p, text.n);
	return true;
}

void build_add_lost_row(struct build *b, struct span text)
{
	unread_add(&b->unread, NULL, 0, text.p, text.n);
}

void build_set_known(struct build *b, int64_t step, struct known_name *known, double v)
{
	struct series *s = series_of_name(b, step, known);
	if (!s)
		return;
	v = convert_unit(v, known->scale);
	if (s->column == COL_MEM ||
		s->column == COL_MEM_ACTIVE) /* whole bytes; -1 is rejected */
		v = v >= 0 && v < 0x1p53 ? (double)(int64_t)v : -1;
	if (!can_hold_value(s, v))
		return;
	v = is_absent(v) ? (double)NAN : v;
	record_duplicate(b, s, known, v);
	append_value(b, s, step, v);
}

void build_set_mean(
	struct build *b, int64_t from, int64_t step, struct span name, double v)
{
	struct known_name *known = build_add_name(b, name);
	struct series *s = series_of_name(b, step, known);
	if (s)
		remove_values_from(b, s, from + 1);
	build_set_known(b, step, known, v);
}

void build_rewind(struct build *b, int64_t step)
{
	for (int i = 0; i < b->n_series; i++)
		remove_values_from(b, &b->series[i], step);
}

void build_begin_row(struct build *b, int64_t step, bool is_training)
{
	if (is_training && step < b->line.trained && !b->is_table)
		build_rewind(b, step + 1);
	b->repeats = false;
	if (is_training)
		b->line.trained = step;
	b->line.step = step;
	b->n_parsed++;
}

void build_add_setting(struct build *b, const char *key, struct span value)
{
	struct str text = {0};
	int64_t i = strs_find(&b->keys, key);
	value = span_trim(value);
	if (!value.n || value.n > MAX_VALUE)
		return;
	if (i >= 0 && span_equals(b->settings.v[i], value))
		return; /* some logs state it in each row */
	str_add(&text, value.p, value.n);
	if (i >= 0) {
		free(b->settings.v[i]);
		b->settings.v[i] = text.s;
		return;
	}
	if (b->keys.n < MAX_SETTINGS) {
		strs_add(&b->keys, key);
		strs_add(&b->settings, text.s);
	}
	str_free(&text);
}

void build_set_total(struct build *b, int64_t steps)
{
	char text[NUM_TEXT];
	if (steps == b->line.total)
		return;
	b->line.total = steps;
	snprintf(text, sizeof(text), "%lld", (long long)steps);
	build_add_setting(b, "steps", span_of(text));
}

struct steps {
	int64_t *v, n;
};

/* Orders points by step, then by their position in the log. */
static int compare_points(const void *x, const void *y)
{
	const struct point *a = *(const struct point *const *)x;
	const struct point *b = *(const struct point *const *)y;
	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	return a < b ? -1 : a > b;
}

static bool is_sorted(const struct series *s)
{
	for (int64_t i = 1; i < s->n; i++)
		if (s->p[i].step <= s->p[i - 1].step)
			return false;
	return true;
}

/* Sorts a series by step, and keeps the last of several values at a step. */
static void sort_series(struct series *s)
{
	if (is_sorted(s))
		return;
	scoped_ptr const struct point **order = xmalloc((size_t)s->n * sizeof(*order));
	struct point *p = xmalloc((size_t)s->n * sizeof(*p));
	int64_t n = 0;
	for (int64_t i = 0; i < s->n; i++)
		order[i] = &s->p[i];
	qsort(order, (size_t)s->n, sizeof(*order), compare_points);
	for (int64_t i = 0; i < s->n; i++) {
		n += !n || p[n - 1].step != order[i]->step;
		p[n - 1] = *order[i];
	}
	free(s->p);
	s->n_replaced += s->n - n;
	s->p = p;
	s->capacity = s->n;
	s->n = n;
}

/* Warns of rows that later rows replaced, if they are more than a few. */
static void warn_replaced(const struct build *b, const char *name)
{
	enum { FEW = 3 };
	int64_t n = 0;
	for (int i = 0; i < b->n_series; i++)
		if (b->series[i].column >= 0 && columns[b->series[i].column].curve)
			n = max64(n, b->series[i].n_replaced);
	if (n > FEW && !b->is_growing)
		warn("%s: %lld rows are ignored, because later rows of the log have the "
		     "same or an earlier step",
			name, (long long)n);
}

/* Returns true if all steps of a series are in the sorted list. */
static bool includes_steps(const struct steps *all, const struct series *s)
{
	int64_t i = 0;
	for (int64_t k = 0; k < s->n; k++, i++) {
		while (i < all->n && all->v[i] < s->p[k].step)
			i++;
		if (i == all->n || all->v[i] != s->p[k].step)
			return false;
	}
	return true;
}

/* Merges the steps of a series into the sorted list. */
static void add_steps(struct steps *all, const struct series *s)
{
	if (includes_steps(all, s))
		return;
	int64_t *v = xmalloc((size_t)(all->n + s->n) * sizeof(*v)), n = 0;
	for (int64_t i = 0, k = 0; i < all->n || k < s->n; n++) {
		int64_t a = i < all->n ? all->v[i] : INT64_MAX;
		int64_t c = k < s->n ? s->p[k].step : INT64_MAX;
		v[n] = min64(a, c);
		i += a == v[n];
		k += c == v[n];
	}
	free(all->v);
	*all = (struct steps){v, n};
}

/* Copies the values of a series to the rows of the log. */
static void copy_series(
	struct run_log *l, const struct steps *all, const struct series *s)
{
	int c = run_log_column(l, s->name);
	for (int64_t k = 0, i = 0; k < s->n && c >= 0; k++) {
		while (all->v[i] < s->p[k].step)
			i++;
		if (is_unread(s->p[k].v))
			run_log_set_unread(l, i, c);
		else
			run_log_set(l, i, c, s->p[k].v);
	}
}

/* Returns the series that shows how many digits the log prints: a loss, or the first series. */
static const struct series *series_for_digits(const struct build *b)
{
	static const int order[] = {COL_LOSS, COL_VAL_LOSS, COL_VAL_BPB, COL_TRAIN_LOSS};
	for (size_t k = 0; k < ARRAY_LEN(order); k++)
		for (int i = 0; i < b->n_series; i++)
			if (b->series[i].column == order[k] && b->series[i].n)
				return &b->series[i];
	return b->n_series ? &b->series[0] : NULL;
}

/* Counts the significant digits of the shortest text of a value. */
static int count_significant_digits(double v)
{
	char text[NUM_TEXT];
	int n = 0;
	text_double(text, fabs(v));
	for (const char *p = text; *p && *p != 'e'; p++)
		n += *p >= '0' && *p <= '9' && (n || *p != '0');
	return n;
}

/* Returns the number of digits that values were printed with: the maximum, over many values, of
 * the digits of the shortest text with the same value; 0 if a float has no more. */
static int count_digits(const struct series *s)
{
	enum { SAMPLES = 1000, ALL = 9 };
	int max = 0;
	int64_t stride = max64(1, s->n / SAMPLES);
	for (int64_t i = 0; i < s->n; i += stride) {
		int n = isfinite(s->p[i].v) ? count_significant_digits(s->p[i].v) : 0;
		max = n > max ? n : max;
	}
	return max >= ALL ? 0 : max;
}

/* Copies the settings that the log states to the options of *l, and its ranks. */
static void copy_settings(const struct build *b, struct run_log *l)
{
	for (int64_t i = 0; i < b->keys.n; i++) {
		if (!strcmp(b->keys.v[i], "ranks"))
			parse_int(b->settings.v[i], &l->info.ranks);
		else
			conf_print(&l->config, b->keys.v[i], b->settings.v[i]);
	}
}

int build_finish(struct build *b, struct run_log *l, struct err *e)
{
	/* The table has a cell for each column and row; in a small log, most cells may be empty. */
	enum { ALLOWED_CELLS = 1 << 24, CELLS_PER_VALUE = 64 };
	struct steps all = {0};
	int64_t n_columns = 0;
	for (int i = 0; i < b->n_series; i++)
		sort_series(&b->series[i]);
	build_derive_columns(b);
	for (int i = 0; i < b->n_series; i++) {
		add_steps(&all, &b->series[i]);
		n_columns += b->series[i].n > 0;
	}
	if (n_columns * all.n > max64(ALLOWED_CELLS, CELLS_PER_VALUE * b->n_points)) {
		free(all.v);
		return err_set(e, EX_DATAERR,
			"%s: most values of the table of %lld columns and %lld rows are missing",
			l->name, (long long)n_columns, (long long)all.n);
	}
	warn_replaced(b, l->name);
	l->unread = b->unread;
	if (!b->is_growing)
		unread_warn(&b->unread, l->name);
	if (run_log_set_steps(l, all.v, all.n)) {
		free(all.v);
		return err_set(e, EX_DATAERR, "%s: too many rows", l->name);
	}
	for (int i = 0; i < b->n_series; i++)
		if (b->series[i].n)
			copy_series(l, &all, &b->series[i]);
	if (all.n && !b->exact)
		l->digits = count_digits(series_for_digits(b));
	copy_settings(b, l);
	free(all.v);
	return all.n ? 0 : err_set(e, EX_DATAERR, "%s: no row with a value", l->name);
}

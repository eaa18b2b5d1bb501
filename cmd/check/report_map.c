/* Maps: tensors in rows, layers in columns, and the distance of each from its bound. */
#include "check/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const check_test_names[] = {"Gradients", "Moments", "Update"};

/* Returns the name of a tensor within its layer; NULL if it is outside of layers. */
static const char *name_in_layer(const char *name, int64_t *layer)
{
	static const char begin[] = "layers.";
	const char *digits = name + strlen(begin);
	if (strncmp(name, begin, strlen(begin)) != 0)
		return NULL;
	size_t n = strspn(digits, "0123456789");
	if (!n || n > 9 || (*digits == '0' && n > 1) || digits[n] != '.')
		return NULL;
	*layer = strtoll(digits, NULL, 10);
	return digits + n + 1;
}

static int compare_layers(const void *x, const void *y)
{
	int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
	return (a > b) - (a < b);
}

/* Sets r->layers to the layer numbers in the tensors' names, each once and ascending. */
static void list_layers(struct check_report *r)
{
	int64_t *all = xcalloc((size_t)r->c->n + 1, sizeof(*all));
	int n = 0;
	for (int i = 0; i < r->c->n; i++)
		n += name_in_layer(r->c->tensors[i].name, &all[n]) != NULL;
	qsort(all, (size_t)n, sizeof(*all), compare_layers);
	for (int i = 0; i < n; i++)
		if (!r->n_layers || all[i] != all[r->n_layers - 1])
			all[r->n_layers++] = all[i];
	r->layers = all;
}

/* Adds a row with empty cells to r: one cell per layer, or one if `outside`. Returns the
 * row, which the next call may move. */
static struct map_row *add_row(struct check_report *r, const char *name, bool outside)
{
	r->rows = xgrow(r->rows, r->n_rows, sizeof(*r->rows));
	struct map_row *row = &r->rows[r->n_rows++];
	*row = (struct map_row){name, outside, outside ? 1 : r->n_layers, NULL};
	row->tensors = xcalloc((size_t)row->n, sizeof(*row->tensors));
	for (int i = 0; i < row->n; i++)
		row->tensors[i] = -1;
	return row;
}

/* Returns the cell of a tensor of a layer; adds its row if it is missing. */
static int *find_or_add_cell(struct check_report *r, const char *name, int64_t layer)
{
	struct map_row *row = NULL;
	for (int k = 0; k < r->n_rows && !row; k++)
		if (!r->rows[k].outside && !strcmp(r->rows[k].name, name))
			row = &r->rows[k];
	if (!row)
		row = add_row(r, name, false);
	const int64_t *at = bsearch(
		&layer, r->layers, (size_t)r->n_layers, sizeof(layer), compare_layers);
	return &row->tensors[at - r->layers];
}

/* Returns false if most cells would be empty, as layers differ: each tensor then gets a row. */
static bool is_grid(const struct check_report *r)
{
	return (int64_t)r->n_rows * r->n_layers <= 16 * (int64_t)r->c->n;
}

static void free_rows(struct check_report *r)
{
	for (int k = 0; k < r->n_rows; k++)
		free(r->rows[k].tensors);
	free(r->rows);
	r->rows = NULL;
	r->n_rows = 0;
}

/* Adds all tensors to rows, in forward order. layered: one row for a name in all layers. */
static void fill_rows(struct check_report *r, bool layered)
{
	for (int k = 0; k < r->c->n && (!layered || is_grid(r)); k++) {
		int i = r->c->order[k];
		const char *whole = r->c->tensors[i].name;
		int64_t layer;
		const char *name = layered ? name_in_layer(whole, &layer) : NULL;
		*(name ? find_or_add_cell(r, name, layer)
		       : add_row(r, whole, true)->tensors) = i;
	}
}

void report_maps_init(
	struct check_report *r, const struct step_check *c, const struct strs *batch)
{
	*r = (struct check_report){.c = c, .batch = batch};
	list_layers(r);
	fill_rows(r, true);
	if (is_grid(r))
		return;
	free_rows(r);
	r->n_layers = 0;
	fill_rows(r, false);
}

void report_maps_release(struct check_report *r)
{
	free_rows(r);
	free(r->layers);
}

void map_row_name(const struct map_row *row, struct str *out)
{
	static const char end[] = ".weight";
	size_t len = strlen(row->name);
	if (text_ends(row->name, end))
		len -= strlen(end);
	str_add(out, row->name, len);
}

/* Returns true if the tensor has a finding that its gradient and moments do not explain. */
static bool has_other_finding(const struct step_check *c, const struct tensor_check *x)
{
	for (int k = 0; k < c->n_findings; k++)
		if (has_finding(x, k) && !is_note(&c->findings[k]) &&
			c->findings[k].kind != FINDING_GRADIENT)
			return !x->moments.wrong;
	return false;
}

struct map_mark mark_of_cell(
	const struct step_check *c, const struct tensor_check *x, enum check_test t)
{
	const struct distance *d = distance_in(x, t);
	bool wrong = d->wrong || (t == TEST_UPDATE && has_other_finding(c, x));
	double ratio = d->value / d->bound;
	if (!wrong && !d->tested)
		return (struct map_mark){"–", false, -1};
	if (wrong && (!isfinite(ratio) || x->nonfinite))
		return (struct map_mark){"!", true, MARKS_BEYOND - 1};
	int step = ratio > 0 ? (int)fmin(fmax(floor(log10(ratio)), -9), 9) : -9;
	if (wrong)
		return (struct map_mark){
			"×", true, (int)fmin(fmax(step, 0), MARKS_BEYOND - 1)};
	return (struct map_mark){"·", false, (int)fmax(MARKS_WITHIN + fmin(step, -1), 0)};
}

bool has_colored_cell(const struct check_report *r, enum check_test t)
{
	for (int i = 0; i < r->c->n; i++)
		if (mark_of_cell(r->c, &r->c->tensors[i], t).step >= 0)
			return true;
	return false;
}

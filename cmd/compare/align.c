/* Aligns curves by their common rows, and groups runs into units by the batches they read. */
#include "compare/judge_internal.h"

#include <math.h>

/* ---- rows ------------------------------------------------------------------------ */

/* Initializes *c without rows, with space for `capacity` rows of each run. */
static void curves_init(
	struct curves *c, int n_control, int n_test, int key_column, int64_t capacity)
{
	size_t n = (size_t)max64(capacity, 1);
	*c = (struct curves){.n_control = n_control,
		.n_test = n_test,
		.by_step = key_column == COL_STEP};
	c->at = xcalloc(n, sizeof(*c->at));
	c->v[CONTROL] = xcalloc(n * (size_t)n_control, sizeof(*c->v[CONTROL]));
	c->v[TEST] = xcalloc(n * (size_t)n_test, sizeof(*c->v[TEST]));
}

static void curves_release(struct curves *c)
{
	free(c->at);
	free(c->v[CONTROL]);
	free(c->v[TEST]);
}

/* Returns the number of the judged column in a log; it may differ in logs of other programs. */
static int judged_column(const struct judging *j, const struct run_log *l)
{
	int c = j->o->column;
	return c < N_COLUMNS || c >= j->first->n_columns
		       ? c
		       : run_log_find(l, j->first->column[c].name);
}

/* Sets r[] to the rows of the judged column of each control, then of each test. */
static void init_rows(const struct judging *j, struct log_rows *r)
{
	for (int i = 0; i < j->n_runs[CONTROL] + j->n_runs[TEST]; i++) {
		const struct run_log *l = i < j->n_runs[CONTROL]
						  ? j->log[CONTROL][i]
						  : j->log[TEST][i - j->n_runs[CONTROL]];
		r[i] = (struct log_rows){l, judged_column(j, l)};
	}
}

/* Counts the rows that all runs have. Adds the number of rows that only some have to *n_lone, and
 * sets *n_ending to the number of such rows at the end. */
static int64_t count_rows(
	const struct judging *j, struct log_rows *r, int64_t *n_lone, int64_t *n_ending)
{
	int n = j->n_runs[CONTROL] + j->n_runs[TEST];
	int64_t n_rows = 0;
	double key;
	init_rows(j, r);
	for (int n_have; (n_have = log_rows_next(r, n, j->o->by, &key)) > 0;) {
		++*(n_have == n ? &n_rows : n_lone);
		*n_ending = n_have == n ? 0 : *n_ending + 1;
	}
	return n_rows;
}

/* Copies the values of the rows that all runs have. */
static void copy_rows(const struct judging *j, struct log_rows *r, struct curves *c)
{
	int n = j->n_runs[CONTROL] + j->n_runs[TEST];
	init_rows(j, r);
	for (int64_t row = 0; row < c->n;) {
		if (log_rows_next(r, n, j->o->by, &c->at[row]) < n)
			continue;
		for (int i = 0; i < c->n_control; i++)
			c->v[CONTROL][i * c->n + row] = r[i].v;
		for (int i = 0; i < c->n_test; i++)
			c->v[TEST][i * c->n + row] = r[c->n_control + i].v;
		row++;
	}
}

/* Counts the rows of a log that cannot be read, and so cannot be judged. */
static int64_t count_unread(const struct log_rows *r)
{
	int64_t n = r->log->unread.n_rows;
	for (int64_t i = 0; i < r->log->n_rows; i++)
		n += is_unread(run_log_value(r->log, i, r->column));
	return n;
}

/* Sets j->all and j->n_ending. */
static void align_rows(struct judging *j)
{
	int n = j->n_runs[CONTROL] + j->n_runs[TEST];
	scoped_ptr struct log_rows *r = xcalloc((size_t)n, sizeof(*r));
	int64_t n_lone = 0, n_ending = 0, n_rows = count_rows(j, r, &n_lone, &n_ending);
	for (int i = 0; i < n; i++)
		n_lone += count_unread(&r[i]);
	curves_init(&j->all, j->n_runs[CONTROL], j->n_runs[TEST], j->o->by, n_rows);
	j->all.n = n_rows;
	j->all.n_lone = n_lone;
	bool is_few =
		!j->o->strict_end && !j->o->common && few_are_missing(n_ending, n_rows);
	j->n_ending = is_few ? n_ending : 0;
	copy_rows(j, r, &j->all);
}

/* The end of a curve. */
struct extent {
	double end;	/* step or tokens; no value: -infinity */
	bool is_finite; /* all values are finite */
};

/* Returns the last key (step or tokens) of a log's judged column, and whether all its
 * values are finite. */
static struct extent extent_of(const struct judging *j, const struct run_log *l)
{
	struct log_rows r = {l, judged_column(j, l)};
	struct extent x = {-INFINITY, true};
	for (double key; log_rows_next(&r, 1, j->o->by, &key);) {
		x.end = fmax(x.end, key);
		x.is_finite &= isfinite(r.v) != 0;
	}
	return x;
}

static double latest_end(const struct judging *j, const struct run_log *const *log, int n)
{
	double end = -INFINITY;
	for (int i = 0; i < n; i++)
		end = fmax(end, extent_of(j, log[i]).end);
	return end;
}

/* Sets j->ending, such as "the control ends 8 steps earlier". */
static void describe_ending(struct judging *j)
{
	double end[2] = {INFINITY, INFINITY};
	for (int s = 0; s < 2; s++)
		for (int i = 0; i < j->n_runs[s]; i++)
			end[s] = fmin(end[s], extent_of(j, j->log[s][i]).end);
	enum set s = end[CONTROL] < end[TEST] ? CONTROL : TEST;
	double last = fmax(latest_end(j, j->log[CONTROL], j->n_runs[CONTROL]),
		latest_end(j, j->log[TEST], j->n_runs[TEST]));
	const char *unit = j->o->by == COL_STEP ? "step" : "token";
	if (j->n_ending)
		str_printf(&j->ending, "%s %s ends %.0f %s%s earlier",
			j->n_runs[s] > 1 ? "a" : "the", s == CONTROL ? "control" : "test",
			last - end[s], unit, last - end[s] == 1 ? "" : "s");
}

/* Appends to j->left_out why the run is not used. */
static void explain_left_out(
	struct judging *j, const char *name, const struct extent *x, bool ends_early)
{
	str_printf(&j->left_out, "%s%s ", j->left_out.len ? "; " : "", name);
	if (ends_early && isinf(x->end))
		str_printf(&j->left_out, "has no %s", column_name(j));
	else if (ends_early)
		str_printf(&j->left_out, "ends at %s %.0f", by_name(j), x->end);
	else
		str_printf(&j->left_out, "has values of %s that are not finite",
			column_name(j));
	str_puts(&j->left_out, ", so it is not used");
}

/* Sets the controls to those that do not end early and, if there are any_finite, are finite. With
 * o->common only common rows are judged, so that no control ends too early. */
static void choose_controls(
	struct judging *j, const struct run_log *const *control, int n)
{
	double end = fmin(
		latest_end(j, control, n), latest_end(j, j->log[TEST], j->n_runs[TEST]));
	bool any_finite = false;
	if (j->o->common)
		end = -INFINITY;
	j->kept = xcalloc((size_t)n, sizeof(*j->kept));
	j->log[CONTROL] = j->kept;
	for (int i = 0; i < n; i++) {
		struct extent x = extent_of(j, control[i]);
		any_finite |= x.is_finite && x.end >= end;
	}
	for (int i = 0; i < n; i++) {
		struct extent x = extent_of(j, control[i]);
		if (x.end < end || (any_finite && !x.is_finite))
			explain_left_out(j, run_log_brief(control[i]), &x, x.end < end);
		else
			j->kept[j->n_runs[CONTROL]++] = control[i];
	}
}

static bool is_row_finite(const struct curves *c, int64_t row)
{
	bool is_finite = true;
	for (int s = 0; s < 2; s++)
		for (int i = 0; i < (s == TEST ? c->n_test : c->n_control); i++)
			is_finite &= isfinite(curve_of(c, s, i)[row]) != 0;
	return is_finite;
}

/* Copies the rows with finite values only to j->finite. */
static void copy_finite_rows(struct judging *j)
{
	const struct curves *all = &j->all;
	struct curves *c = &j->finite;
	int64_t n = 0;
	curves_init(c, all->n_control, all->n_test, j->o->by, all->n);
	for (int64_t row = 0; row < all->n; row++)
		c->n += is_row_finite(all, row);
	for (int64_t row = 0; row < all->n; row++) {
		if (!is_row_finite(all, row))
			continue;
		for (int s = 0; s < 2; s++)
			for (int i = 0; i < j->n_runs[s]; i++)
				c->v[s][i * c->n + n] = curve_of(all, s, i)[row];
		c->at[n++] = all->at[row];
	}
}

/* Sets the clusters and the noise from the training loss, for evaluations: evaluations have their
 * own batches, always the same or with noise that all runs share, so they do not show which runs
 * read the same training batches. */
static void cluster_by_training_loss(struct judging *j)
{
	struct judge_opts o = *j->o;
	struct judging loss = {.log = {j->log[CONTROL], j->log[TEST]},
		.n_runs = {j->n_runs[CONTROL], j->n_runs[TEST]},
		.first = j->first,
		.o = &o};
	size_t n = (size_t)(j->n_runs[CONTROL] + j->n_runs[TEST]);
	o.column = COL_LOSS;
	align_rows(&loss);
	copy_finite_rows(&loss);
	if (loss.finite.n) {
		set_clusters(&loss);
		memcpy(j->cluster, loss.cluster, n * sizeof(*j->cluster));
		int64_t half = loss.finite.n / 2, rows = loss.finite.n - half;
		const double *x = curve_of(&loss.finite, CONTROL, 0) + half;
		j->noise_of_loss = trendless_noise(x, rows) / fabs(mean_of(x, rows));
	}
	judging_release(&loss);
}

/* ---- units ----------------------------------------------------------------------- */

/* Returns true if a run of the set is in the cluster. */
static bool set_has_cluster(const struct judging *j, enum set s, int cluster)
{
	int from = s == TEST ? j->n_runs[CONTROL] : 0;
	for (int i = from; i < from + j->n_runs[s]; i++)
		if (j->cluster[i] == cluster)
			return true;
	return false;
}

/* Assigns the runs of a cluster to a unit of the controls and one of the tests. */
static void assign_unit(struct judging *j, int cluster, int control, int test)
{
	for (int i = 0; i < j->n_runs[CONTROL] + j->n_runs[TEST]; i++) {
		bool is_test = i >= j->n_runs[CONTROL];
		if (j->cluster[i] == cluster)
			j->unit[is_test][is_test ? i - j->n_runs[CONTROL] : i] =
				is_test ? test : control;
	}
}

/* Makes clusters units, at most `max`; in_both: only clusters with runs of both sets. */
static void make_units(struct judging *j, bool in_both, int max)
{
	int n = j->n_runs[CONTROL] + j->n_runs[TEST];
	j->n_units[CONTROL] = j->n_units[TEST] = 0;
	for (int s = 0; s < 2; s++)
		for (int i = 0; i < j->n_runs[s]; i++)
			j->unit[s][i] = -1;
	for (int c = 0; c < n; c++) {
		bool has[2] = {
			set_has_cluster(j, CONTROL, c), set_has_cluster(j, TEST, c)};
		if (j->cluster[c] != c || (in_both && !(has[CONTROL] && has[TEST])) ||
			j->n_units[CONTROL] == max)
			continue;
		assign_unit(j, c, j->n_units[CONTROL], j->n_units[TEST]);
		for (int s = 0; s < 2; s++)
			j->n_units[s] += has[s];
	}
}

/* Puts all runs of a set into one unit, or each run into its own. */
static void assign_units(struct judging *j, bool one_per_run)
{
	for (int s = 0; s < 2; s++) {
		for (int i = 0; i < j->n_runs[s]; i++)
			j->unit[s][i] = one_per_run ? i : 0;
		j->n_units[s] = one_per_run ? j->n_runs[s] : 1;
	}
}

/* Counts the clusters; in_both: only clusters with runs of both sets. */
static int count_clusters(const struct judging *j, bool in_both)
{
	int count = 0;
	for (int c = 0; c < j->n_runs[CONTROL] + j->n_runs[TEST]; c++)
		count += j->cluster[c] == c &&
			 (!in_both || (set_has_cluster(j, CONTROL, c) &&
					      set_has_cluster(j, TEST, c)));
	return count;
}

/* Groups the runs into units, and chooses the best design that these allow. */
static void choose_design(struct judging *j)
{
	int n_both = count_clusters(j, true);
	for (int s = 0; s < 2; s++)
		j->unit[s] = xcalloc((size_t)j->n_runs[s], sizeof(*j->unit[s]));
	if (n_both >= 3) {
		make_units(j, true, INT32_MAX);
		j->design = DESIGN_PAIRED;
		return;
	}
	if (count_clusters(j, false) > 1)
		make_units(j, false, INT32_MAX);
	else
		assign_units(j, true);
	memcpy(j->n_seeds, j->n_units, sizeof(j->n_seeds));
	if (j->n_units[CONTROL] >= 2 && j->n_units[CONTROL] + j->n_units[TEST] >= 4) {
		j->design = DESIGN_REPLICAS;
	} else if (n_both) {
		make_units(j, true, 1);
		j->design = DESIGN_SAME_BATCHES;
	} else {
		assign_units(j, false);
		j->design = DESIGN_ALONE;
	}
}

void judging_init(struct judging *j, const struct run_log *const *control, int n_control,
	const struct run_log *const *test, int n_test, const struct judge_opts *o)
{
	*j = (struct judging){
		.log = {NULL, test}, .n_runs = {0, n_test}, .first = control[0], .o = o};
	choose_controls(j, control, n_control);
	align_rows(j);
	describe_ending(j);
	copy_finite_rows(j);
	set_clusters(j);
	if (is_evaluation(j))
		cluster_by_training_loss(j);
	choose_design(j);
}

void judging_release(struct judging *j)
{
	curves_release(&j->all);
	curves_release(&j->finite);
	free(j->unit[CONTROL]);
	free(j->unit[TEST]);
	free(j->cluster);
	free(j->stated);
	free(j->grid);
	free(j->kept);
	str_free(&j->left_out);
}

/* The table of results: its columns, and printing it. */
#include "collbench/table.h"
#include "comm/mesh.h"

#include <math.h>

/* clang-format off */
const char *const bench_op_names[] = {
	[COMM_SUM] = "sum", [COMM_PROD] = "prod", [COMM_MIN] = "min", [COMM_MAX] = "max",
	[N_COMM_OPS] = "all", NULL,
};
const char *const bench_type_names[] = {COMM_TYPE_WORDS, [N_COMM_TYPES] = "all", NULL};
const char *const bench_library_names[] = {[LIBRARY_MPI] = "mpi", [LIBRARY_NCCL] = "nccl", NULL};
/* clang-format on */

const char *const *bench_coll_names(void)
{
	static const char *names[N_BENCH + 2];
	for (int i = 0; i < N_BENCH; i++)
		names[i] = bench_info(i)->name;
	names[N_BENCH] = "all";
	return names;
}

const char *const *bench_group_names(void)
{
	static const char *names[N_AXES + 2] = {"world"};
	for (int a = 0; a < N_AXES; a++)
		names[a + 1] = axis_names[a];
	return names;
}

static const char *const *op_names(void)
{
	return bench_op_names;
}

static const char *const *type_names(void)
{
	return bench_type_names;
}

static const char *const *library_names(void)
{
	return bench_library_names;
}

/* clang-format off */
#define R(field) offsetof(struct bench_row, field)
const struct bench_column case_columns[] = {
	{"", "", 0, COLUMN_NAME, R(collective), "collective", "index in names", bench_coll_names},
	{"size", "(B)", 12, COLUMN_WHOLE, R(size), "size", "bytes of the larger buffer of a rank"},
	{"count", "(elements)", 12, COLUMN_WHOLE, R(count), "count", "elements of a block"},
	{"type", "", 8, COLUMN_NAME, R(type), "type", "index in names; -1: none", type_names},
	{"redop", "", 6, COLUMN_NAME, R(redop), "redop", "index in names; -1: none", op_names},
	{"root", "", 6, COLUMN_WHOLE, R(root), "root", "rank of the root; -1: none"},
	{"comm", "", 5, COLUMN_NAME, R(library), "comm", "library that transferred device memory: index in names; -1: host memory, by MPI", library_names, SET_LIBRARY},
	{"group", "", 6, COLUMN_NAME, R(group), "group", "axis of the groups: index in names", bench_group_names, SET_GROUPS},
	{"ranks", "", 6, COLUMN_WHOLE, R(group_ranks), "group_ranks", "ranks of a group", NULL, SET_GROUPS},
	{"hosts", "", 6, COLUMN_WHOLE, R(group_hosts), "group_hosts", "hosts that a group spans", NULL, SET_GROUPS},
	{"groups", "", 6, COLUMN_WHOLE, R(groups), "groups", "groups that run at once", NULL, SET_GROUPS},
	{0},
};
#undef R
#define R(field) offsetof(struct bench_result, field)
const struct bench_column result_columns[] = {
	{"time", "(us)", 8, COLUMN_REAL, R(time), "time", "us per collective: mean over iterations, over ranks as in the attribute settings"},
	{"algbw", "(GB/s)", 7, COLUMN_REAL, R(algbw), "algbw", "size over time, 1e9 bytes per second"},
	{"busbw", "(GB/s)", 7, COLUMN_REAL, R(busbw), "busbw", "algbw times the collective's factor"},
	{"#wrong", "", 7, COLUMN_TALLY, R(wrong), "wrong", "wrong elements of all ranks; -1: not checked"},
	{"i_min", "(us)", 8, COLUMN_REAL, R(i_min), "i_min", "us: shortest time of an iteration", NULL, SET_ITERATIONS},
	{"i_max", "(us)", 8, COLUMN_REAL, R(i_max), "i_max", "us: longest time of an iteration", NULL, SET_ITERATIONS},
	{"i_p50", "(us)", 8, COLUMN_REAL, R(i_p50), "i_p50", "us: median", NULL, SET_ITERATIONS},
	{"i_p99", "(us)", 8, COLUMN_REAL, R(i_p99), "i_p99", "us: 99th percentile, nearest rank", NULL, SET_ITERATIONS},
	{"i_cv%", "(%)", 7, COLUMN_REAL, R(i_cv), "i_cv", "percent: standard deviation over mean", NULL, SET_ITERATIONS},
	{"typical", "(us)", 8, COLUMN_REAL, R(typical), "typical", "us: median over parts of the run in which no rank waited for a processor", NULL, SET_ITERATIONS},
	{"noise%", "(%)", 7, COLUMN_REAL, R(noise), "noise", "percent: standard error of typical", NULL, SET_ITERATIONS},
	{"", "", 0, COLUMN_WHOLE, R(parts), "parts", "parts of the run in the median typical; 0: a rank waited in each part"},
	{"", "", 0, COLUMN_WHOLE, R(waited), "waited", "parts in which a rank waited for a processor"},
	{"iters", "", 7, COLUMN_WHOLE, R(iters), "iters", "iterations; 0: not measured", NULL, SET_ITERATIONS},
	{"#differ", "", 7, COLUMN_TALLY, R(differ), "differ", "elements on all ranks that differ when reduced again; -1: not tried", NULL, SET_RERUNS},
	{"", "", 0, COLUMN_TALLY, R(digest), "digest", "hash of the reduction's result on all ranks; -1: not tried"},
	{"overall", "(us)", 8, COLUMN_REAL, R(overall), "overall", "us: with overlapped computation", NULL, SET_OVERLAP},
	{"compute", "(us)", 8, COLUMN_REAL, R(compute), "compute", "us: the computation in overall", NULL, SET_OVERLAP},
	{"overlap", "(%)", 7, COLUMN_REAL, R(overlap), "overlap", "percent of the time that the computation hides", NULL, SET_OVERLAP},
	{0},
};
#undef R
#define R(field) offsetof(struct bench_fit, field)
const struct bench_column fit_columns[] = {
	{"collective", "", 14, COLUMN_NAME, R(collective), "collective", "index in names", bench_coll_names},
	{"comm", "", 5, COLUMN_NAME, R(library), "comm", "library that transferred the buffers: index in names", library_names},
	{"ranks", "", 6, COLUMN_WHOLE, R(group_ranks), "group_ranks", "ranks of a group"},
	{"hosts", "", 6, COLUMN_WHOLE, R(group_hosts), "group_hosts", "hosts that a group spans"},
	{"groups", "", 6, COLUMN_WHOLE, R(groups), "groups", "groups that run at once"},
	{"alpha", "(s)", 11, COLUMN_REAL, R(alpha), "alpha", "seconds: time of a collective of no bytes"},
	{"beta", "(s/B)", 11, COLUMN_REAL, R(beta), "beta", "seconds per byte of the column size"},
	{"error", "", 11, COLUMN_REAL, R(error), "error", "median over the sizes of |fitted time / time - 1|"},
	{0},
};
#undef R
/* clang-format on */

const char *const place_names[N_COLL_PLACES] = {
	[COLL_OUT_OF_PLACE] = "out_of_place", [COLL_IN_PLACE] = "in_place"};

/* Prints a number with two decimals, or fewer if it does not fit into the column. */
static void print_real(double x, int width)
{
	char text[NUM_TEXT];
	int digits = 2;
	while (snprintf(text, sizeof(text), "%.*f", digits, x) > width && digits)
		digits--;
	printf(" %*s", width, isnan(x) ? "N/A" : text);
}

static bool is_shown(const struct bench_table *t, const struct bench_column *c)
{
	return c->width && (c->set == SET_ALWAYS || t->shown[c->set]);
}

/* Prints the column's value of the record `from`, right-aligned, after a space. */
static void print_cell(const struct bench_column *c, const void *from)
{
	const void *v = (const char *)from + c->offset;
	int64_t n = c->kind == COLUMN_REAL ? 0 : *(const int64_t *)v;
	if (c->kind == COLUMN_REAL)
		print_real(*(const double *)v, c->width);
	else if (c->kind == COLUMN_NAME)
		printf(" %*s", c->width, n < 0 ? "none" : c->names()[n]);
	else if (c->kind == COLUMN_TALLY && n < 0)
		printf(" %*s", c->width, "N/A");
	else
		printf(" %*lld", c->width, (long long)n);
}

static void print_cells(
	const struct bench_table *t, const struct bench_column *columns, const void *from)
{
	for (const struct bench_column *c = columns; c->label; c++)
		if (is_shown(t, c))
			print_cell(c, from);
}

void table_print_row(const struct bench_table *t, const struct bench_row *r)
{
	putchar(' '); /* lines of a heading have a '#' here */
	print_cells(t, case_columns, r);
	for (int p = 0; p < N_COLL_PLACES; p++)
		print_cells(t, result_columns, &r->result[p]);
	putchar('\n');
	fflush(stdout);
}

/* Prints the labels or the units of the shown columns. */
static void print_labels(
	const struct bench_table *t, const struct bench_column *columns, bool units)
{
	for (const struct bench_column *c = columns; c->label; c++)
		if (is_shown(t, c))
			printf(" %*s", c->width, units ? c->unit : c->label);
}

/* Returns the width of the shown columns, in characters. */
static int total_width(const struct bench_table *t, const struct bench_column *columns)
{
	int width = 0;
	for (const struct bench_column *c = columns; c->label; c++)
		width += is_shown(t, c) ? c->width + 1 : 0;
	return width;
}

void table_print_heading(const struct bench_table *t, int what)
{
	const struct coll_info *info = bench_info(what);
	int width = total_width(t, result_columns);
	printf("#\n# %s: %s; busbw = algbw * %s\n#\n", info->name, info->help,
		info->bus_text);
	printf("#%*s%*s%*s\n", total_width(t, case_columns), "", width, "out-of-place",
		width, "in-place");
	for (int units = 0; units < 2; units++) {
		putchar('#');
		print_labels(t, case_columns, units);
		for (int p = 0; p < N_COLL_PLACES; p++)
			print_labels(t, result_columns, units);
		putchar('\n');
	}
}

void table_print_footer(const struct bench_table *t)
{
	double sum = 0;
	int64_t n = 0, waited = 0, parts = 0;
	for (int64_t i = 0; i < t->n_rows; i++) {
		for (int p = 0; p < N_COLL_PLACES; p++) {
			double bus = t->rows[i].result[p].busbw;
			waited += t->rows[i].result[p].waited;
			parts += t->rows[i].result[p].parts;
			if (t->rows[i].size && !isnan(bus))
				sum += bus, n++;
		}
	}
	printf("#\n# Out of bounds values : %lld %s\n", (long long)t->n_wrong,
		!t->checked  ? "NOT CHECKED"
		: t->n_wrong ? "FAILED"
			     : "OK");
	printf("# Avg bus bandwidth    : %g\n", n ? sum / (double)n : 0);
	if (waited)
		printf("# ranks waited for a processor in %lld of %lld parts of the run\n",
			(long long)waited, (long long)(waited + parts));
}

/* Prints the fit as one line, which begins with "#". */
static void print_fit(const struct bench_fit *f)
{
	putchar('#');
	for (const struct bench_column *c = fit_columns; c->label; c++) {
		const void *v = (const char *)f + c->offset;
		if (c->kind == COLUMN_REAL)
			printf(" %*.4g", c->width, *(const double *)v);
		else
			print_cell(c, f);
	}
	putchar('\n');
}

void table_print_fits(const struct bench_table *t)
{
	if (!t->n_fits)
		return;
	printf("#\n# time (s) = alpha + beta * size (B), fitted with equal weights for all "
	       "sizes\n#");
	for (const struct bench_column *c = fit_columns; c->label; c++)
		printf(" %*s", c->width, c->label);
	putchar('\n');
	for (int64_t i = 0; i < t->n_fits; i++)
		print_fit(&t->fits[i]);
}

void table_release(struct bench_table *t)
{
	free(t->rows);
	free(t->fits);
	t->rows = NULL;
	t->fits = NULL;
	t->n_rows = t->n_fits = 0;
}

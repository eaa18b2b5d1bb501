/* The table of results: its columns, and printing it. */
#include "collbench/collbench.h"

#include <math.h>

/* clang-format off */
const char *const bench_op_names[] = {
	[COMM_SUM] = "sum", [COMM_PROD] = "prod", [COMM_MIN] = "min", [COMM_MAX] = "max",
	[N_COMM_OPS] = "all", NULL,
};
const char *const bench_type_names[] = {
	[COMM_I8] = "int8", [COMM_U8] = "uint8", [COMM_I32] = "int32", [COMM_U32] = "uint32",
	[COMM_I64] = "int64", [COMM_U64] = "uint64", [COMM_F32] = "float", [COMM_F64] = "double",
	[N_COMM_TYPES] = "all", NULL,
};
const char *const bench_library_names[] = {[LIBRARY_MPI] = "mpi", [LIBRARY_NCCL] = "nccl", NULL};
/* clang-format on */

const char *const *bench_coll_names(void)
{
	static const char *names[N_COLL + 2];
	for (int i = 0; i < N_COLL; i++)
		names[i] = coll_table[i].name;
	names[N_COLL] = "all";
	return names;
}

/* clang-format off */
#define R(field) offsetof(struct bench_row, field)
const struct bench_column case_columns[] = {
	{"", "", 0, COLUMN_NAME, R(collective), "collective", "index in names"},
	{"size", "(B)", 12, COLUMN_WHOLE, R(size), "size", "bytes of the larger buffer of a rank"},
	{"count", "(elements)", 12, COLUMN_WHOLE, R(count), "count", "elements of a block"},
	{"type", "", 8, COLUMN_NAME, R(type), "type", "index in names; -1: none", bench_type_names},
	{"redop", "", 6, COLUMN_NAME, R(redop), "redop", "index in names; -1: none", bench_op_names},
	{"root", "", 6, COLUMN_WHOLE, R(root), "root", "rank of the root; -1: none"},
	{"comm", "", 5, COLUMN_NAME, R(library), "comm", "what transferred device memory: index in names; -1: host memory, by MPI", bench_library_names, SET_LIBRARY},
	{0},
};
#undef R
#define R(field) offsetof(struct bench_result, field)
const struct bench_column result_columns[] = {
	{"time", "(us)", 8, COLUMN_REAL, R(time), "time", "us a collective: mean over iterations, largest over ranks"},
	{"algbw", "(GB/s)", 7, COLUMN_REAL, R(algbw), "algbw", "size over time, 1e9 bytes a second"},
	{"busbw", "(GB/s)", 7, COLUMN_REAL, R(busbw), "busbw", "algbw times the collective's factor"},
	{"#wrong", "", 7, COLUMN_TALLY, R(wrong), "wrong", "wrong elements of all ranks; -1: not checked"},
	{"i_min", "(us)", 8, COLUMN_REAL, R(i_min), "i_min", "us: shortest time of an iteration", NULL, SET_ITERATIONS},
	{"i_max", "(us)", 8, COLUMN_REAL, R(i_max), "i_max", "us: longest time of an iteration", NULL, SET_ITERATIONS},
	{"i_p99", "(us)", 8, COLUMN_REAL, R(i_p99), "i_p99", "us: 99th percentile, nearest rank", NULL, SET_ITERATIONS},
	{"i_cv%", "(%)", 7, COLUMN_REAL, R(i_cv), "i_cv", "percent: standard deviation over mean", NULL, SET_ITERATIONS},
	{"#differ", "", 7, COLUMN_TALLY, R(differ), "differ", "elements of all ranks with other bits when reduced again; -1: not tried", NULL, SET_RERUNS},
	{0},
};
#undef R
/* clang-format on */

const char *const place_names[N_COLL_PLACES] = {
	[COLL_OUT_OF_PLACE] = "out_of_place", [COLL_IN_PLACE] = "in_place"};

/* At most two decimals, fewer if they do not fit the column. */
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

static void print_cell(const struct bench_column *c, const void *from)
{
	const void *v = (const char *)from + c->offset;
	int64_t n = c->kind == COLUMN_REAL ? 0 : *(const int64_t *)v;
	if (c->kind == COLUMN_REAL)
		print_real(*(const double *)v, c->width);
	else if (c->kind == COLUMN_NAME)
		printf(" %*s", c->width, n < 0 ? "none" : c->names[n]);
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

static void print_row(const struct bench_table *t, const struct bench_row *r)
{
	putchar(' '); /* headings have a # here */
	print_cells(t, case_columns, r);
	for (int p = 0; p < N_COLL_PLACES; p++)
		print_cells(t, result_columns, &r->result[p]);
	putchar('\n');
	fflush(stdout);
}

static void print_labels(
	const struct bench_table *t, const struct bench_column *columns, bool units)
{
	for (const struct bench_column *c = columns; c->label; c++)
		if (is_shown(t, c))
			printf(" %*s", c->width, units ? c->unit : c->label);
}

static int width_of(const struct bench_table *t, const struct bench_column *columns)
{
	int width = 0;
	for (const struct bench_column *c = columns; c->label; c++)
		width += is_shown(t, c) ? c->width + 1 : 0;
	return width;
}

void table_heading(const struct bench_table *t, enum coll what)
{
	const struct coll_info *info = &coll_table[what];
	int width = width_of(t, result_columns);
	printf("#\n# %s: %s; busbw = algbw * %s\n#\n", info->name, info->help,
		info->bus_text);
	printf("#%*s%*s%*s\n", width_of(t, case_columns), "", width, "out-of-place",
		width, "in-place");
	for (int units = 0; units < 2; units++) {
		putchar('#');
		print_labels(t, case_columns, units);
		for (int p = 0; p < N_COLL_PLACES; p++)
			print_labels(t, result_columns, units);
		putchar('\n');
	}
}

void table_add(struct bench_table *t, const struct bench_row *r, bool print)
{
	for (int p = 0; p < N_COLL_PLACES; p++)
		t->n_wrong += max64(0, r->result[p].wrong);
	t->rows = xrealloc(t->rows, (size_t)(t->n_rows + 1) * sizeof(*t->rows));
	t->rows[t->n_rows++] = *r;
	if (print)
		print_row(t, r);
}

void table_footer(const struct bench_table *t)
{
	double sum = 0;
	int64_t n = 0;
	for (int64_t i = 0; i < t->n_rows; i++) {
		for (int p = 0; p < N_COLL_PLACES; p++) {
			double bus = t->rows[i].result[p].busbw;
			if (t->rows[i].size && !isnan(bus))
				sum += bus, n++;
		}
	}
	printf("#\n# Out of bounds values : %lld %s\n", (long long)t->n_wrong,
		!t->checked  ? "NOT CHECKED"
		: t->n_wrong ? "FAILED"
			     : "OK");
	printf("# Avg bus bandwidth    : %g\n", n ? sum / (double)n : 0);
}

/* pt-collbench: benchmark and checker of collectives. */
#include "comm/comm.h"
#include "h5/h5.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct opts {
	int64_t minbytes, maxbytes, stepbytes, stepfactor, iters, warmup_iters, check;
	int op, datatype;
	const char *root, *out;
	bool overwrite, per_iteration, smoke;
};

/* clang-format off */
static const char *const op_names[] = {
	[COMM_SUM] = "sum", [COMM_PROD] = "prod", [COMM_MIN] = "min", [COMM_MAX] = "max",
	[N_COMM_OPS] = "all", NULL,
};
static const char *const type_names[] = {
	[COMM_I8] = "int8", [COMM_U8] = "uint8", [COMM_I32] = "int32", [COMM_U32] = "uint32",
	[COMM_I64] = "int64", [COMM_U64] = "uint64", [COMM_F32] = "float", [COMM_F64] = "double",
	[N_COMM_TYPES] = "all", NULL,
};

#define O(field) offsetof(struct opts, field)
static const struct opt options[] = {
	{OPT_GROUP, .name = "Sizes"},
	{OPT_SIZE, 'b', "minbytes", "BYTES", "8", O(minbytes),
		.help = "Minimum size."},
	{OPT_SIZE, 'e', "maxbytes", "BYTES", "16M", O(maxbytes),
		.help = "Maximum size."},
	{OPT_SIZE, 'i', "stepbytes", "BYTES", "0", O(stepbytes),
		.help = "Increment between sizes. 0: multiply by --stepfactor."},
	{OPT_INT, 'f', "stepfactor", "N", "2", O(stepfactor), 0, 2, 1e18,
		.help = "Factor between sizes."},
	{OPT_GROUP, .name = "Iterations"},
	{OPT_INT, 'n', "iters", "N", "20", O(iters), 0, 1, 1e6,
		.help = "Timed iterations of each size."},
	{OPT_INT, 'w', "warmup-iters", "N", "5", O(warmup_iters), 0, 0, 1e18,
		.help = "Warmup iterations of each size, which are not timed."},
	{OPT_INT, 'c', "check", "N", "1", O(check), 0, 0, 1e18,
		.help = "Iterations of each size whose results are checked, each with other "
			"data. 0: none."},
	{OPT_GROUP, .name = "Operation"},
	{OPT_ENUM, 'o', "op", NULL, "sum", O(op), .values = op_names,
		.help = "Reduction operation."},
	{OPT_ENUM, 'd', "datatype", NULL, "float", O(datatype), .values = type_names,
		.help = "Data type of the elements."},
	{OPT_STR, 'r', "root", "RANK", "0", O(root),
		.help = "Root rank of collectives that have one. all: each rank in turn."},
	{OPT_GROUP, .name = "Results"},
	{OPT_FLAG, 'I', "per-iteration", NULL, "no", O(per_iteration),
		.help = "Also print the spread of the times of single iterations."},
	{OPT_STR, 0, "out", "FILE", NULL, O(out), .files = ".h5",
		.help = "Also write the results to this HDF5 file; -o FILE.h5 is the same. "
			"Earlier results of that name are replaced, any other file is not."},
	{OPT_FLAG, 0, "overwrite", NULL, "no", O(overwrite),
		.help = "Replace the file, whatever it is."},
	{OPT_FLAG, 0, "smoke", NULL, "no", O(smoke),
		.help = "Only check, in about a second, that ranks, hosts and libraries work "
			"together. Options about sizes, iterations and the operation have no "
			"effect."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"[options] [COLLECTIVE ...]",
	"--smoke [COLLECTIVE ...]",
	NULL,
};

static void versions(struct str *out)
{
	str_printf(out, "%s\nHDF5 %s\n", comm_version(), h5_version());
}

static const char *const *coll_names(void);

static const struct program program = {
	.name = "pt-collbench",
	.summary = "time and check collectives between ranks",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.words = coll_names,
	.versions = versions,
};

/* ---- what was asked for ---------------------------------------------------------- */

/* One line of the table. Codes are indices of names; -1: none. */
struct row {
	int64_t collective, size, count, type, redop, root;
	struct bench_result result[N_COLL_PLACES];
};

struct session {
	struct opts o;
	bool wanted[N_COLL];
	int64_t root; /* -1: all */
	struct comm *world;
	struct peer *peers; /* [world->size] */
	struct bench bench;
	struct row *rows;
	int64_t n_rows, n_wrong;
	double started;
	struct durable out;
	struct h5 *file; /* rank 0's, when there is --out */
};

static const char *const *coll_names(void)
{
	static const char *names[N_COLL + 2];
	for (int i = 0; i < N_COLL; i++)
		names[i] = coll_table[i].name;
	names[N_COLL] = "all";
	return names;
}

static int find_collective(const char *name, struct err *e)
{
	const char *const *names = coll_names();
	for (int i = 0; i <= N_COLL; i++)
		if (!strcmp(names[i], name))
			return i;
	const char *near = nearest(name, names, N_COLL + 1);
	return err_set(e, EX_USAGE, "unknown collective '%s'%s%s%s", name,
		near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static int parse_fault(const char *text, struct bench_fault *f, struct err *e)
{
	char *copy = xstrdup(text), *rest = copy;
	const char *name = strsep(&rest, ":"), *rank = strsep(&rest, ":");
	int64_t r = -1;
	int what = find_collective(name, &(struct err){0});
	bool good = what >= 0 && what < N_COLL && rank && rest && !parse_int(rank, &r) &&
		    r >= 0 && r <= INT32_MAX && !parse_int(rest, &f->element);
	f->wanted = good;
	f->what = good ? (enum coll)what : COLL_ALLREDUCE;
	f->rank = (int)r;
	free(copy);
	return good ? 0
		    : err_set(e, EX_USAGE,
			      "PT_COLLBENCH_FAULT: '%s' is not COLLECTIVE:RANK:ELEMENT",
			      text);
}

static int parse(struct session *s, int argc, char **argv, struct err *e)
{
	struct opts *o = &s->o;
	const char *fault = getenv("PT_COLLBENCH_FAULT");
	static char out[] = "--out";
	/* -o is nccl-tests' reduction; but none is called x.h5, and all know what is meant. */
	for (int i = 1; i + 1 < argc; i++) {
		size_t len = strlen(argv[i + 1]);
		if (!strcmp(argv[i], "-o") && len > 3 &&
			!strcmp(argv[i + 1] + len - 3, ".h5"))
			argv[i] = out;
	}
	int n = opts_parse(&program, o, argc, argv, e);
	if (n < 0)
		return -1;
	for (int i = 0; i < n; i++) {
		int what = find_collective(argv[i], e);
		if (what < 0)
			return -1;
		for (int c = 0; c < N_COLL; c++)
			s->wanted[c] = s->wanted[c] || c == what || what == N_COLL;
	}
	for (int c = 0; c < N_COLL && !n; c++)
		s->wanted[c] = o->smoke || c == COLL_ALLREDUCE;
	if (o->minbytes < 1)
		return err_set(e, EX_USAGE, "minbytes: 0 is no size");
	if (o->minbytes > o->maxbytes)
		return err_set(e, EX_USAGE, "minbytes %lld is more than maxbytes %lld",
			(long long)o->minbytes, (long long)o->maxbytes);
	s->root = -1;
	if (!o->root ||
		(strcmp(o->root, "all") && (parse_int(o->root, &s->root) || s->root < 0)))
		return err_set(e, EX_USAGE, "root: '%s' is neither a rank nor all",
			o->root ? o->root : "");
	if (o->smoke && o->out)
		return err_set(e, EX_USAGE, "--smoke has no results for --out");
	return fault ? parse_fault(fault, &s->bench.fault, e) : 0;
}

/* ---- the table ------------------------------------------------------------------- */

enum kind { NAME, WHOLE, TALLY, REAL }; /* a negative tally was not taken */

struct column {
	const char *label, *unit;
	int width; /* 0: not printed */
	enum kind kind;
	size_t offset;
	const char *dataset, *doc;
	const char *const *names;
};

/* clang-format off */
#define R(field) offsetof(struct row, field)
static const struct column case_columns[] = {
	{"", "", 0, NAME, R(collective), "collective", "index in names"},
	{"size", "(B)", 12, WHOLE, R(size), "size", "bytes of the larger buffer of a rank"},
	{"count", "(elements)", 12, WHOLE, R(count), "count", "elements of a block"},
	{"type", "", 8, NAME, R(type), "type", "index in names; -1: none", type_names},
	{"redop", "", 6, NAME, R(redop), "redop", "index in names; -1: none", op_names},
	{"root", "", 6, WHOLE, R(root), "root", "rank of the root; -1: none"},
	{0},
};
#undef R
#define R(field) offsetof(struct bench_result, field)
static const struct column result_columns[] = {
	{"time", "(us)", 8, REAL, R(time), "time", "us an iteration: mean over iterations, largest over ranks"},
	{"algbw", "(GB/s)", 7, REAL, R(algbw), "algbw", "size over time, 1e9 bytes a second"},
	{"busbw", "(GB/s)", 7, REAL, R(busbw), "busbw", "algbw times the collective's factor"},
	{"#wrong", "", 7, TALLY, R(wrong), "wrong", "wrong elements of all ranks; -1: not checked"},
	{0},
}, iteration_columns[] = {
	{"i_min", "(us)", 8, REAL, R(i_min), "i_min", "us: least time of an iteration"},
	{"i_max", "(us)", 8, REAL, R(i_max), "i_max", "us: largest time of an iteration"},
	{"i_p99", "(us)", 8, REAL, R(i_p99), "i_p99", "us: 99th percentile, nearest rank"},
	{"i_cv%", "(%)", 7, REAL, R(i_cv), "i_cv", "percent: standard deviation over mean"},
	{0},
};
#undef R
/* clang-format on */

static const char *const place_names[] = {
	[COLL_OUT_OF_PLACE] = "out_of_place", [COLL_IN_PLACE] = "in_place"};

/* As many digits as fit, two behind the point at most. */
static void print_real(double x, int width)
{
	char text[NUM_TEXT];
	int digits = 2;
	while (snprintf(text, sizeof(text), "%.*f", digits, x) > width && digits)
		digits--;
	printf(" %*s", width, isnan(x) ? "N/A" : text);
}

static void print_cell(const struct column *c, const void *from)
{
	const void *v = (const char *)from + c->offset;
	int64_t n = c->kind == REAL ? 0 : *(const int64_t *)v;
	if (!c->width)
		return;
	if (c->kind == REAL)
		print_real(*(const double *)v, c->width);
	else if (c->kind == NAME)
		printf(" %*s", c->width, n < 0 ? "none" : c->names[n]);
	else if (c->kind == TALLY && n < 0)
		printf(" %*s", c->width, "N/A");
	else
		printf(" %*lld", c->width, (long long)n);
}

static void print_row(const struct session *s, const struct row *r)
{
	putchar(' '); /* where headings have their # */
	for (const struct column *c = case_columns; c->label; c++)
		print_cell(c, r);
	for (int p = 0; p < N_COLL_PLACES; p++) {
		for (const struct column *c = result_columns; c->label; c++)
			print_cell(c, &r->result[p]);
		for (const struct column *c = iteration_columns;
			c->label && s->o.per_iteration; c++)
			print_cell(c, &r->result[p]);
	}
	putchar('\n');
	fflush(stdout);
}

static void print_labels(const struct column *table, bool units)
{
	for (const struct column *c = table; c->label; c++)
		if (c->width)
			printf(" %*s", c->width, units ? c->unit : c->label);
}

static void print_heading(const struct session *s, enum coll what)
{
	const struct coll_info *info = &coll_table[what];
	int width = 0, blank = 0;
	for (const struct column *c = case_columns; c->label; c++)
		blank += c->width ? c->width + 1 : 0;
	for (const struct column *c = result_columns; c->label; c++)
		width += c->width + 1;
	for (const struct column *c = iteration_columns; c->label; c++)
		width += s->o.per_iteration ? c->width + 1 : 0;
	printf("#\n# %s: %s; busbw = algbw * %s\n#\n", info->name, info->help,
		info->bus_text);
	printf("#%*s%*s%*s\n", blank, "", width, "out-of-place", width, "in-place");
	for (int units = 0; units < 2; units++) {
		putchar('#');
		print_labels(case_columns, units);
		for (int p = 0; p < N_COLL_PLACES; p++) {
			print_labels(result_columns, units);
			if (s->o.per_iteration)
				print_labels(iteration_columns, units);
		}
		putchar('\n');
	}
}

static void print_header(const struct session *s)
{
	const struct opts *o = &s->o;
	const struct peer *p = s->peers;
	printf("# %s\n# ranks %d, hosts %d\n", p->libraries, s->world->size,
		s->bench.place.n_hosts);
	for (int r = 0; r < s->world->size; r++)
		printf("#   rank %3d pid %7lld on %s\n", r, (long long)p[r].pid,
			p[r].host);
	printf("# minbytes %lld, maxbytes %lld, %s %lld, iters %lld, warmup-iters %lld, "
	       "check %lld\n",
		(long long)o->minbytes, (long long)o->maxbytes,
		o->stepbytes ? "stepbytes" : "stepfactor",
		(long long)(o->stepbytes ? o->stepbytes : o->stepfactor),
		(long long)o->iters, (long long)o->warmup_iters, (long long)o->check);
	printf("# time: mean over iterations, of the slowest rank; algbw = size / time; "
	       "GB = 1e9 B\n");
}

static void print_footer(const struct session *s)
{
	double sum = 0;
	int64_t n = 0;
	for (int64_t i = 0; i < s->n_rows; i++) {
		for (int p = 0; p < N_COLL_PLACES; p++) {
			double bus = s->rows[i].result[p].busbw;
			if (s->rows[i].size && !isnan(bus))
				sum += bus, n++;
		}
	}
	printf("#\n# Out of bounds values : %lld %s\n", (long long)s->n_wrong,
		!s->o.check  ? "NOT CHECKED"
		: s->n_wrong ? "FAILED"
			     : "OK");
	printf("# Avg bus bandwidth    : %g\n", n ? sum / (double)n : 0);
}

/* ---- the benchmark --------------------------------------------------------------- */

static void bench_row(struct session *s, struct coll_case *c)
{
	const struct coll_info *info = &coll_table[c->what];
	bool typed = c->what != COLL_BARRIER;
	struct row r = {
		.collective = c->what,
		.size = coll_bytes(c->what, s->world->size, c->count, c->type),
		.count = c->count,
		.type = typed ? (int64_t)c->type : -1,
		.redop = info->has_op ? (int64_t)c->op : -1,
		.root = info->has_root ? c->root : -1,
	};
	for (int p = 0; p < N_COLL_PLACES; p++) {
		r.result[p] = bench_nothing;
		c->place = (enum coll_place)p;
		if (info->has_place[p])
			bench_run(&s->bench, c, &r.result[p]);
		s->n_wrong += max64(0, r.result[p].wrong);
	}
	s->rows = xrealloc(s->rows, (size_t)(s->n_rows + 1) * sizeof(*s->rows));
	s->rows[s->n_rows++] = r;
	if (s->world->rank == 0)
		print_row(s, &r);
}

/* Sizes are cut to whole elements for each rank; those that become equal are one. */
static void bench_sizes(struct session *s, struct coll_case *c)
{
	const struct opts *o = &s->o;
	int64_t last = 0, next;
	for (int64_t size = o->minbytes; size <= o->maxbytes; size = next) {
		c->count = bench_count(&s->bench, c->what, c->type, size);
		if (c->count != last)
			bench_row(s, c);
		last = c->count;
		if (o->stepbytes ? __builtin_add_overflow(size, o->stepbytes, &next)
				 : __builtin_mul_overflow(size, o->stepfactor, &next))
			break;
	}
}

/* Is number i of n asked for? What is none of them asks for all. */
static bool chosen(int64_t choice, int i, int n)
{
	return choice == i || choice < 0 || choice >= n;
}

static void bench_collective(struct session *s, enum coll what)
{
	const struct coll_info *info = &coll_table[what];
	struct coll_case c = {.what = what};
	int n_ops = info->has_op ? N_COMM_OPS : 1;
	int n_roots = info->has_root ? s->world->size : 1;
	if (s->world->rank == 0)
		print_heading(s, what);
	if (what == COLL_BARRIER) {
		bench_row(s, &c);
		return;
	}
	for (int type = 0; type < N_COMM_TYPES; type++) {
		for (int op = 0; op < n_ops; op++) {
			for (int root = 0; root < n_roots; root++) {
				if (!chosen(s->o.datatype, type, N_COMM_TYPES) ||
					!chosen(s->o.op, op, n_ops) ||
					!chosen(s->root, root, n_roots))
					continue;
				c.type = (enum comm_type)type;
				c.op = (enum comm_op)op;
				c.root = root;
				bench_sizes(s, &c);
			}
		}
	}
}

/* ---- the file -------------------------------------------------------------------- */

struct about {
	const char *format, *created_by, *started, *host;
	int64_t version, ranks, hosts, iters, warmup_iters, check;
};

#define F(field) offsetof(struct about, field)
static const struct h5_field about_fields[] = {
	{"format", H5_TEXT, F(format), false, "\"pt-collbench\""},
	{"version", H5_I64, F(version), false, "version of the format: 1"},
	{"created_by", H5_TEXT, F(created_by), false,
		"the program that wrote the file, and its libraries"},
	{"started", H5_TEXT, F(started), false, "when it was started (UTC)"},
	{"host", H5_TEXT, F(host), false, "host of rank 0"},
	{"ranks", H5_I64, F(ranks), false, "number of ranks"},
	{"hosts", H5_I64, F(hosts), false, "number of hosts"},
	{"iters", H5_I64, F(iters), false, "iterations timed"},
	{"warmup_iters", H5_I64, F(warmup_iters), false, "iterations before them"},
	{"check", H5_I64, F(check), false, "iterations checked"},
	{0},
};
#undef F

/* Attributes of a column. */
struct column_about {
	const char *doc, *names;
};
static const struct h5_field column_fields[] = {
	{"doc", H5_TEXT, offsetof(struct column_about, doc), false,
		"what the column holds"},
	{"names", H5_TEXT, offsetof(struct column_about, names), true,
		"of a column of indices: what they mean, separated by blanks"},
	{0},
};

static void *column_values(const struct session *s, const struct column *c, size_t offset)
{
	int64_t *all = xcalloc((size_t)s->n_rows, sizeof(*all));
	_Static_assert(sizeof(double) == sizeof(int64_t), "cells are 8 bytes");
	for (int64_t i = 0; i < s->n_rows; i++)
		memcpy(&all[i], (const char *)&s->rows[i] + offset + c->offset,
			sizeof(*all));
	return all;
}

/* The columns of a table whose structs lie at `offset` in a row. */
static int write_columns(const struct session *s, const struct column *table,
	size_t offset, const char *group, struct err *e)
{
	struct str path = {0}, names = {0};
	int rc = 0;
	for (const struct column *c = table; c->label && !rc; c++) {
		const char *const *name = c->kind != NAME ? NULL
					  : c->names	  ? c->names
							  : coll_names();
		str_clear(&path);
		str_clear(&names);
		str_printf(&path, "%s/%s", group, c->dataset);
		for (int i = 0; name && name[i] && strcmp(name[i], "all"); i++)
			str_printf(&names, "%s%s", i ? " " : "", name[i]);
		struct column_about about = {c->doc, name ? names.s : NULL};
		void *values = column_values(s, c, offset);
		rc = h5_put(s->file, path.s, c->kind == REAL ? H5_F64 : H5_I64, 1,
			     &s->n_rows, values, e) ||
		     h5_fields_write(s->file, path.s, column_fields, &about, e);
		free(values);
	}
	str_free(&path);
	str_free(&names);
	return rc;
}

static int write_file(const struct session *s, struct err *e)
{
	char started[NUM_TEXT];
	struct about about = {
		.format = "pt-collbench",
		.version = 1,
		.created_by = s->peers->libraries,
		.started = clock_text(started, s->started),
		.host = s->peers->host,
		.ranks = s->world->size,
		.hosts = s->bench.place.n_hosts,
		.iters = s->o.iters,
		.warmup_iters = s->o.warmup_iters,
		.check = s->o.check,
	};
	int rc = h5_fields_write(s->file, "/", about_fields, &about, e) ||
		 write_columns(s, case_columns, 0, "", e);
	for (int p = 0; p < N_COLL_PLACES && !rc; p++) {
		size_t at = offsetof(struct row, result) +
			    (size_t)p * sizeof(struct bench_result);
		rc = write_columns(s, result_columns, at, place_names[p], e) ||
		     write_columns(s, iteration_columns, at, place_names[p], e);
	}
	return rc || h5_seal(s->file, e);
}

/* What is replaced unasked is what this program wrote. */
static int may_replace(const struct opts *o, struct err *e)
{
	struct h5 *h;
	struct err other = {0};
	if (o->overwrite || !file_exists(o->out))
		return 0;
	int rc = h5_open(&h, o->out, &other);
	if (!rc) {
		rc = h5_check_format(h, "pt-collbench", 1, &other);
		h5_end(h, rc, &other);
	}
	if (rc)
		return err_set(e, EX_IOERR,
			"%s exists, and is no result of %s; --overwrite replaces it",
			o->out, program.name);
	return 0;
}

/* The file is made before anything is measured: what cannot be written is said at once. */
static int file_begin(struct session *s, struct err *e)
{
	if (s->o.out && s->world->rank == 0 && !may_replace(&s->o, e) &&
		!durable_begin_own(&s->out, s->o.out, e)) {
		if (h5_open_as(&s->file, s->out.tmp, s->o.out, H5_MAKE, e))
			durable_abort(&s->out);
	}
	return comm_agree(s->world, e);
}

/* With `keep` the file gets its contents and its name. */
static int file_end(struct session *s, bool keep, struct err *e)
{
	if (s->file) {
		int rc = keep && write_file(s, e);
		rc = h5_end(s->file, rc, e);
		if (rc || !keep)
			durable_abort(&s->out);
		else
			durable_commit(&s->out, e);
	}
	return comm_agree(s->world, e);
}

/* ---- the program ----------------------------------------------------------------- */

static int run_benchmark(struct session *s, struct err *e)
{
	bool speaks = s->world->rank == 0;
	s->bench.warmup = s->o.warmup_iters;
	s->bench.iters = s->o.iters;
	s->bench.checks = s->o.check;
	if (file_begin(s, e))
		return -1;
	if (bench_open(&s->bench, s->world, s->o.maxbytes, e)) {
		file_end(s, false, &(struct err){0});
		return -1;
	}
	if (speaks)
		print_header(s);
	for (int c = 0; c < N_COLL; c++)
		if (s->wanted[c])
			bench_collective(s, (enum coll)c);
	bench_close(&s->bench);
	if (speaks)
		print_footer(s);
	if (file_end(s, true, e))
		return -1;
	if (s->bench.fault.wanted && !comm_max_i64(s->world, s->bench.fault.done))
		return err_set(e, EX_USAGE,
			"PT_COLLBENCH_FAULT: no result that was checked has that "
			"element");
	return s->n_wrong ? EX_FAILED : 0;
}

static int run(struct session *s)
{
	struct err e = {0};
	struct str libraries = {0};
	str_printf(&libraries, "%s %s, %s, HDF5 %s, xxHash %s", program.name, PT_VERSION,
		comm_version(), h5_version(), hash_version());
	s->started = clock_wall();
	s->peers = peers_meet(s->world, libraries.s);
	str_free(&libraries);
	int rc = s->root >= s->world->size
			 ? err_set(&e, EX_USAGE, "root: there is no rank %lld among %d",
				   (long long)s->root, s->world->size)
		 : s->o.smoke ? smoke_run(s->world, s->peers, s->wanted, &s->bench.fault)
			      : run_benchmark(s, &e);
	if (rc < 0)
		rc = s->world->rank ? e.code : err_say(&e);
	free(s->peers);
	free(s->rows);
	return rc;
}

int main(int argc, char **argv)
{
	struct session s = {0};
	struct err e = {0};
	log_name(program.name);
	if (parse(&s, argc, argv, &e))
		return comm_rank_hint() ? e.code : err_say(&e);
	if (s.o.smoke)
		smoke_watch(program.name);
	s.world = comm_open();
	log_rank(s.world->rank, s.world->size, false);
	int rc = run(&s);
	comm_close(s.world);
	stdout_close();
	return rc;
}

/* pt-collbench: benchmark and checker of collectives. */
#include "base/launch.h"
#include "draw/draw.h"
#include "base/utf8.h"
#include "collbench/suite.h"
#include "comm/requests.h"
#include "options/options.h"

struct opts {
	struct bench_options bench;
	struct suite_options suite;
	struct graph_opts draw;
	int64_t retries;
	double threshold;
	int device, comm, groups, plot_of;
	struct strs splits, plots;
	const char *root, *out, *compare, *from;
	bool overwrite, per_iteration, smoke;
	struct opt_given given;
};

/* clang-format off */
#define O(field) offsetof(struct opts, field)
static const struct opt options[] = {
	{OPT_GROUP, .name = "Sizes"},
	{OPT_SIZE, 'b', "minbytes", "BYTES", "8", O(suite.minbytes), .help = "Minimum size."},
	{OPT_SIZE, 'e', "maxbytes", "BYTES", "16M", O(suite.maxbytes), .help = "Maximum size."},
	{OPT_SIZE, 'i', "stepbytes", "BYTES", "0", O(suite.stepbytes), .help =
		"Increment between sizes. 0: multiply by --stepfactor."},
	{OPT_INT, 'f', "stepfactor", "N", "2", O(suite.stepfactor), 0, 2, 1e18, .help =
		"Factor between sizes."},
	{OPT_GROUP, .name = "Iterations"},
	{OPT_INT, 'n', "iters", "N", "20", O(bench.iters), 0, 1, 1e6, .help =
		"Number of timed iterations per size."},
	{OPT_DOUBLE, 0, "seconds", "S", "0", O(bench.seconds), 0, 0, 1e6, .help =
		"Time each case for S seconds instead of --iters iterations, with at most 1048576 "
		"iterations (0: time --iters iterations)."},
	{OPT_INT, 'w', "warmup-iters", "N", "5", O(bench.warmup), 0, 0, 1e18, .help =
		"Number of untimed warmup iterations per size."},
	{OPT_INT, 'c', "check", "N", "1", O(bench.checks), 0, 0, 1e18, .help =
		"Number of iterations per size with checked results, each with different data (0: "
		"no checks)."},
	{OPT_INT, 0, "passes", "N", "1", O(bench.passes), 0, 1, 1e6, .help =
		"Measure all cases N times, one after the other, so that a disturbance of some "
		"seconds does not hit all iterations of a case."},
	{OPT_INT, 0, "reruns", "N", "0", O(bench.reruns), 0, 0, 1e6, .help =
		"Repeat each reduction N times with the same random inputs, and count the elements "
		"with bits that differ from the first run."},
	{OPT_GROUP, .name = "Operation"},
	{OPT_ENUM, 'o', "op", NULL, "sum", O(suite.op), .values = bench_op_names, .help =
		"Reduction operation."},
	{OPT_ENUM, 'd', "datatype", NULL, "float", O(suite.type),
		.values = bench_type_names, .help =
		"Data type of the elements."},
	{OPT_STR, 'r', "root", "RANK", "0", O(root), .help =
		"Root rank of collectives that have a root. all: each rank in turn."},
	{OPT_INT, 'm', "aggregate", "N", "1", O(bench.aggregate), 0, 1, 1e6, .help =
		"Number of collectives per iteration. The collectives of an iteration are started "
		"together and waited for together; time, algbw and busbw are per collective."},
	{OPT_INT, 0, "window", "N", "64", O(bench.window), 0, 1, 1e6, .help =
		"Number of messages in flight in bandwidth and bidirectional."},
	{OPT_ENUM, 0, "calls", NULL, "nonblocking", O(bench.calls), .values = bench_calls_names, .help =
		"Select how MPI is called. nonblocking: by MPI_Iallreduce and so on, with polling, "
		"as in pt-train. blocking: by MPI_Allreduce and so on, as in OSU's "
		"micro-benchmarks."},
	{OPT_FLAG, 0, "barrier", NULL, "no", O(bench.barrier), .help =
		"Wait in an untimed barrier after each iteration of a collective."},
	{OPT_ENUM, 'a', "average", NULL, "max", O(bench.average), .values = bench_average_names, .help =
		"The time of an iteration: the maximum, mean or minimum over ranks, or the time "
		"of rank 0."},
	{OPT_FLAG, 0, "overlap", NULL, "no", O(bench.overlap), .help =
		"Also measure each collective together with a computation that takes as long."},
	{OPT_INT, 0, "polls", "N", "8", O(bench.polls), 0, 0, 1e6, .needs = "--overlap", .help =
		"Number of calls during the computation of --overlap that make communication "
		"progress."},
	{OPT_GROUP, .name = "Groups"},
	{OPT_LIST, 0, "split", "AXES", NULL, O(splits), .help =
		"Measure groups of ranks along the axes of pt-train, such as tp=2,fsdp=4, instead "
		"of all ranks; may be given several times. world is the group of all ranks."},
	{OPT_ENUM, 0, "groups", NULL, "all", O(groups), .values = OPT_WORDS("all", "one", "both"),
		.needs = "--split", .help =
		"Select the groups along an axis that are measured. all: all groups at once; the "
		"slowest group counts. one: only the group of rank 0, while the other ranks wait. "
		"both: first all, then one."},
	{OPT_GROUP, .name = "GPUs"},
	{OPT_ENUM, 0, "device", NULL, "cpu", O(device), .values = OPT_WORDS("cpu", "cuda"), .help =
		"Memory of the buffers. cuda: each rank takes a GPU of its host in turn."},
	{OPT_ENUM, 0, "comm", NULL, "auto", O(comm),
		.values = OPT_WORDS(COMM_LIBRARY_WORDS, "both"), .help =
		"Library that transfers data between GPUs. both: measure each case with MPI, then "
		"with NCCL, in one table. auto: the choice of pt-train."},
	{OPT_ENUM, 0, "launch", NULL, "blocking", O(bench.launch),
		.values = bench_launch_names, .help =
		"Select when the host waits for the GPU. blocking: after each iteration. queued: "
		"after all iterations. graph: after each launch of a CUDA graph with one "
		"iteration; this needs NCCL."},
	{OPT_FLAG, 0, "registered", NULL, "no", O(bench.registered), .help =
		"Use buffers that NCCL transfers without copying: from ncclMemAlloc, and in a "
		"symmetric window from NCCL 2.27 on."},
	{OPT_GROUP, .name = "Results"},
	{OPT_FLAG, 'I', "per-iteration", NULL, "no", O(per_iteration), .help =
		"Also print the spread of the times of single iterations."},
	{OPT_STR, 0, "out", "FILE", NULL, O(out), .files = ".h5", .help =
		"Also write the results to this HDF5 file; -o FILE.h5 has the same effect. An "
		"existing file is replaced only if it has results of pt-collbench."},
	{OPT_STR, 0, "compare", "OLD", NULL, O(compare), .files = ".h5", .help =
		"Compare the times with an earlier --out, and exit with 1 if any time is slower."},
	{OPT_DOUBLE, 0, "threshold", "PERCENT", "15", O(threshold), 0, 0, 1e6, .needs = "--compare",
		.help =
		"Ignore differences of up to PERCENT."},
	{OPT_INT, 0, "retries", "N", "2", O(retries), 0, 0, 1e6, .needs = "--compare", .help =
		"Measure slower cases again, up to N times. A case counts as slower only if it is "
		"slower each time."},
	{OPT_STR, 0, "from", "FILE", NULL, O(from), .files = ".h5", .help =
		"Measure nothing, but read the results of an earlier --out, for --compare, "
		"--graph and --plot."},
	OPT_GRAPH(O(draw)),
	{OPT_LIST, 'p', "plot", "FILE", NULL, O(plots), .files = "", .help =
		"Draw the curves to a .svg, .png or .pdf file with gnuplot. May be given several "
		"times."},
	{OPT_ENUM, 0, "plot-of", NULL, "busbw", O(plot_of), .values = OPT_WORDS("busbw", "time"),
		.needs = "--graph or --plot", .help =
		"Quantity that the curves show as a function of the size; time has a logarithmic "
		"scale."},
	{OPT_FLAG, 0, "overwrite", NULL, "no", O(overwrite), .help =
		"Replace an existing file, whatever it contains."},
	{OPT_FLAG, 0, "smoke", NULL, "no", O(smoke), .help =
		"Only check, in about a second, that ranks, hosts and libraries work together, "
		"and that a training step has the gradient of one rank. Options about sizes, "
		"iterations and the operation have no effect."},
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
	str_printf(out, "%s\nHDF5 %s\n", comm_find_version(), h5_version());
}

static const struct program program = {
	.name = "pt-collbench",
	.summary = "time and check collectives between ranks",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.given = offsetof(struct opts, given),
	.words = bench_coll_names,
	.versions = versions,
};

struct session {
	struct opts o;
	struct comm *world;
	struct peer *peers; /* [world->size] */
	struct bench_worlds worlds;
	struct bench bench;
	struct bench_groups groups;
	struct suite suite;
	struct bench_table old; /* result of --compare, on rank 0 */
	int64_t n_slower;	/* times, in the comparison */
	double started;
};

/* Turns -o FILE.h5 into --out. Otherwise -o is the reduction, as in nccl-tests. */
static void replace_o_option(int argc, char **argv)
{
	static char out[] = "--out";
	for (int i = 1; i + 1 < argc; i++) {
		size_t len = strlen(argv[i + 1]);
		if (!strcmp(argv[i], "-o") && len > 3 &&
			!strcmp(argv[i + 1] + len - 3, ".h5"))
			argv[i] = out;
	}
}

/* Selects the collectives that the operands name; default: allreduce, with --smoke all. */
static int parse_operands(struct opts *o, char **name, int n, struct err *e)
{
	char default_name[] = "allreduce", all[] = "all",
	     *defaults[] = {o->smoke ? all : default_name};
	return n ? suite_select(&o->suite, name, n, e)
		 : suite_select(&o->suite, defaults, 1, e);
}

static bool draws_curves(const struct opts *o)
{
	return o->draw.graph || o->plots.n;
}

/* Rejects options that exclude each other. */
static int check_options(const struct opts *o, struct err *e)
{
	if (o->suite.minbytes < 1)
		return err_set(e, EX_USAGE, "--minbytes 0: the minimum is 1");
	if (o->suite.minbytes > o->suite.maxbytes)
		return err_set(e, EX_USAGE,
			"--minbytes %lld is more than --maxbytes %lld",
			(long long)o->suite.minbytes, (long long)o->suite.maxbytes);
	if (o->smoke && o->device)
		return err_set(
			e, EX_USAGE, "--smoke checks MPI in host memory; omit --device");
	if (o->smoke && (o->out || o->compare || draws_curves(o) || o->from))
		return err_set(e, EX_USAGE,
			"--smoke has no results; omit --out, --compare, --from, --graph and "
			"--plot");
	if (o->from && o->out)
		return err_set(e, EX_USAGE, "--from measures nothing; omit --out");
	if (!o->device &&
		(o->comm == COMM_NCCL || o->comm == WORLDS_BOTH ||
			o->bench.launch != LAUNCH_BLOCKING || o->bench.registered))
		return err_set(e, EX_USAGE,
			"--comm nccl, --launch and --registered need --device cuda");
	if (o->bench.calls == CALLS_BLOCKING && (o->device || o->bench.overlap))
		return err_set(e, EX_USAGE,
			"--calls blocking is for host memory, without --overlap");
	if (o->bench.launch == LAUNCH_GRAPH && o->groups != GROUPS_ALL)
		return err_set(e, EX_USAGE, "--launch graph needs --groups all");
	for (int64_t i = 0; i < o->plots.n; i++)
		if (graph_picture_check(o->plots.v[i], e))
			return -1;
	return opts_check_needs(&program, o, e);
}

static int parse_root(struct opts *o, struct err *e)
{
	const char *text = o->root ? o->root : "";
	o->suite.root = -1;
	if (strcmp(text, "all") && (parse_int(text, &o->suite.root) || o->suite.root < 0))
		return err_set(e, EX_USAGE, "--root '%s': neither a rank nor all", text);
	return 0;
}

/* Reads options, operands and environment variables into *s. Returns -1 with *e set. */
static int parse_command_line(struct session *s, int argc, char **argv, struct err *e)
{
	struct opts *o = &s->o;
	replace_o_option(argc, argv);
	int n = opts_parse(&program, o, argc, argv, e);
	if (n < 0 || parse_operands(o, argv, n, e) || check_options(o, e) ||
		parse_root(o, e))
		return -1;
	s->bench.o = o->bench;
	return bench_read_environment(&s->bench, e);
}

/* Writes the results and their description to the file of --out. Collective. */
static int write_file_end(struct session *s, struct bench_file *file, struct err *e)
{
	char started[NUM_TEXT];
	const struct bench_about about = {
		.format = program.name,
		.version = BENCH_VERSION,
		.created_by = s->peers->libraries,
		.started = clock_text(started, s->started),
		.host = s->peers->host,
		.ranks = s->world->size,
		.hosts = s->bench.place.n_hosts,
		.iters = s->bench.o.iters,
		.warmup_iters = s->bench.o.warmup,
		.check = s->bench.o.checks,
		.device = s->bench.d ? s->bench.d->name : NULL,
		.comm = s->worlds.library,
		.launch = bench_launch_names[s->bench.o.launch],
		.aggregate = s->bench.o.aggregate,
		.reruns = s->bench.o.reruns,
		.registered = s->bench.o.registered,
		.passes = s->bench.o.passes,
		.seconds = s->bench.o.seconds,
		.settings = s->suite.table.settings,
	};
	return bench_file_end(file, s->world, &s->suite.table, &about, e);
}

/* Sets the suite's parts and the columns that its table shows, from the options. */
static void suite_configure(struct session *s)
{
	const struct bench_options *o = &s->bench.o;
	struct bench_table *t = &s->suite.table;
	s->suite.bench = &s->bench;
	s->suite.groups = &s->groups;
	s->suite.o = s->o.suite;
	t->shown[SET_ALWAYS] = true;
	t->shown[SET_ITERATIONS] = s->o.per_iteration;
	t->shown[SET_RERUNS] = o->reruns > 0;
	t->shown[SET_LIBRARY] = s->bench.d != NULL;
	t->shown[SET_GROUPS] = s->o.splits.n > 0;
	t->shown[SET_OVERLAP] = o->overlap;
	t->checked = o->checks > 0;
}

/* Reads the file of --compare before anything is measured, to report errors at once. Collective. */
static int read_compared_file(struct session *s, struct err *e)
{
	if (s->o.compare && s->world->rank == 0 &&
		!bench_file_read(s->o.compare, &s->old, e))
		table_check_settings(&s->old, &s->suite.table, e);
	return comm_agree(s->world, e);
}

/* Prints the results as a graph (--graph), and writes the pictures of --plot. */
static int draw(const struct bench_table *t, const struct opts *o, struct err *e)
{
	struct bench_curves c;
	scoped_str text = {0};
	int rc = 0;
	table_make_curves(t, (enum picture_of)o->plot_of, o->draw.log_scale, &c);
	const struct graph_style style =
		graph_style_of(&o->draw, c.graph.n_series, log_uses_color(stdout));
	if (o->draw.graph)
		graph_text(&c.graph, &style, &text);
	fputs(text.len ? text.s : "", stdout);
	for (int64_t i = 0; i < o->plots.n && !rc; i++)
		rc = graph_picture(&c.graph, o->plots.v[i], e);
	bench_curves_release(&c);
	return rc;
}

/* Prints the comparison and draws the curves, both in any case. Sets *e to the first error. */
static void compare_and_draw(struct session *s, struct err *e)
{
	const struct opts *o = &s->o;
	const struct bench_table *t = &s->suite.table;
	scoped_str text = {0};
	struct err error = {0};
	if (o->compare)
		s->n_slower = table_compare(&s->old, t, s->suite.judged, &text, e);
	fputs(text.len ? text_printable(text.s) : "", stdout);
	if (draws_curves(o) && draw(t, o, &error))
		err_print_keep_first(e, &error);
}

/* Prints and draws the results. Collective. */
static int report_results(struct session *s, struct err *e)
{
	if (s->world->rank == 0)
		compare_and_draw(s, e);
	s->n_slower = comm_max_i64(s->world, s->n_slower);
	return comm_agree(s->world, e);
}

/* Measures all cases. Rank 0 prints the table and the comparison. Collective. */
static void measure_all(struct session *s)
{
	bool is_printing = s->world->rank == 0;
	if (is_printing)
		suite_print_header(&s->suite, s->peers, s->worlds.library);
	suite_run(&s->suite);
	if (is_printing)
		table_print_footer(&s->suite.table);
	if (s->o.compare)
		suite_compare(&s->suite, &s->old, 1e-2 * s->o.threshold, s->o.retries);
	if (is_printing)
		table_print_fits(&s->suite.table);
}

/* Opens groups and buffers, and measures. Collective. */
static int open_and_measure(struct session *s, struct err *e)
{
	suite_configure(s);
	int rc = groups_open(&s->groups, &s->o.splits, (enum group_choice)s->o.groups,
		s->worlds.comm, s->peers, e);
	rc = rc || suite_add_cases(&s->suite, e) ||
	     bench_open(&s->bench, s->world, s->o.suite.maxbytes, e);
	if (!rc) {
		measure_all(s);
		bench_close(&s->bench);
	}
	groups_close(&s->groups);
	return rc ? -1 : 0;
}

/* Opens libraries and the file of --out, measures, and reports. Collective. */
static int run_benchmark(struct session *s, struct err *e)
{
	struct bench_file file = {.path = s->o.out, .overwrite = s->o.overwrite};
	bench_format_settings(&s->bench.o, s->suite.table.settings);
	s->worlds.comm[LIBRARY_MPI] = s->world;
	if (read_compared_file(s, e) ||
		(s->o.device && worlds_open(&s->worlds, s->world, s->o.comm,
					s->bench.o.launch == LAUNCH_GRAPH, e)))
		return -1;
	s->bench.d = s->o.device ? &s->worlds.device : NULL;
	if (bench_file_begin(&file, s->world, e))
		return -1;
	if (open_and_measure(s, e)) {
		bench_file_end(&file, s->world, NULL, NULL, &(struct err){0});
		return -1;
	}
	if (write_file_end(s, &file, e))
		return -1;
	int rc = report_results(s, e);
	worlds_close(&s->worlds);
	if (!rc && s->bench.fault.wanted && !comm_max_i64(s->world, s->bench.fault.done))
		return err_set(e, EX_USAGE,
			"PT_COLLBENCH_FAULT: the element is in no checked result");
	return rc;
}

/* Reads the results of --from on rank 0, and reports them. Collective. */
static int show_saved_results(struct session *s, struct err *e)
{
	if (s->world->rank == 0 && !bench_file_read(s->o.from, &s->suite.table, e))
		table_print_fits(&s->suite.table);
	if (comm_agree(s->world, e) || read_compared_file(s, e))
		return -1;
	if (s->o.compare && s->world->rank == 0)
		s->suite.judged =
			table_judge(&s->old, &s->suite.table, 1e-2 * s->o.threshold);
	return report_results(s, e);
}

/* Does what the options specify: smoke test, saved results or benchmark. Releases *s, and
 * returns the exit status. Collective. */
static int run(struct session *s)
{
	struct err e = {0};
	scoped_ptr char *libraries = text_printf("%s %s, %s, HDF5 %s, xxHash %s",
		program.name, PT_VERSION, comm_version(), h5_version(), hash_version());
	s->started = clock_wall();
	s->peers = peers_gather(s->world, libraries);
	int rc = s->o.smoke  ? smoke_run(s->world, s->peers, s->o.suite.wanted,
				       &s->bench.fault)
		 : s->o.from ? show_saved_results(s, &e)
			     : run_benchmark(s, &e);
	if (rc < 0)
		rc = s->world->rank ? e.code : err_print(&e);
	if (s->suite.table.n_wrong || s->n_slower > 0) /* takes precedence over errors */
		rc = EX_FAILED;
	free(s->peers);
	suite_release(&s->suite);
	table_release(&s->old);
	strs_free(&s->o.splits);
	strs_free(&s->o.plots);
	return rc;
}

static const char *const advice[N_ADVICE] = {
	[ADVICE_FILE_EXISTS] = "--overwrite replaces it",
	[ADVICE_BENCH_MEMORY] = "give a smaller --maxbytes",
	[ADVICE_GNUPLOT] = "--graph does not need it",
};

int main(int argc, char **argv)
{
	struct session s = {0};
	struct err e = {0};
	log_name(program.name);
	advice_set(advice);
	if (parse_command_line(&s, argc, argv, &e))
		return launch_rank() ? e.code : err_print(&e);
	if (s.o.smoke)
		smoke_start_timeout(program.name);
	s.world = comm_open();
	log_set_rank(s.world->rank, s.world->size, false);
	int rc = run(&s);
	comm_close(s.world);
	stdout_close();
	return rc;
}

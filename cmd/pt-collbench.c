/* pt-collbench: benchmark and checker of collectives. */
#include "base/gnuplot.h"
#include "base/options.h"
#include "collbench/suite.h"
#include "comm/requests.h"

#include <stdlib.h>
#include <string.h>

struct opts {
	int64_t minbytes, maxbytes, stepbytes, stepfactor, iters, warmup_iters, check;
	int64_t aggregate, reruns, passes, window, polls, retries;
	double seconds, threshold;
	int op, datatype, device, comm, launch, calls, average, groups, plot_of;
	struct strs splits;
	const char *root, *out, *compare, *from, *plot;
	bool overwrite, per_iteration, smoke, registered, overlap, barrier;
	struct opt_given given;
};

/* nccl and mpi as enum comm_library; both: MPI, then NCCL, for each case. */
enum { COMM_BOTH = COMM_MPI + 1 };

static const char *const launch_names[] = {"blocking", "queued", "graph", NULL};
static const char *const calls_names[] = {"nonblocking", "blocking", NULL};
static const char *const average_names[] = {"max", "avg", "min", "rank0", NULL};
static const char *const average_texts[] = {
	"the slowest one", "their mean", "the fastest one", "rank 0"};

/* clang-format off */
#define O(field) offsetof(struct opts, field)
static const struct opt options[] = {
	{OPT_GROUP, .name = "Sizes"},
	{OPT_SIZE, 'b', "minbytes", "BYTES", "8", O(minbytes), .help = "Minimum size."},
	{OPT_SIZE, 'e', "maxbytes", "BYTES", "16M", O(maxbytes), .help = "Maximum size."},
	{OPT_SIZE, 'i', "stepbytes", "BYTES", "0", O(stepbytes), .help =
		"Increment between sizes. 0: multiply by --stepfactor."},
	{OPT_INT, 'f', "stepfactor", "N", "2", O(stepfactor), 0, 2, 1e18, .help =
		"Factor between sizes."},
	{OPT_GROUP, .name = "Iterations"},
	{OPT_INT, 'n', "iters", "N", "20", O(iters), 0, 1, 1e6, .help =
		"Timed iterations of each size."},
	{OPT_DOUBLE, 0, "seconds", "S", "0", O(seconds), 0, 0, 1e6, .help =
		"Time each case for S seconds, instead of --iters iterations; 1048576 iterations at "
		"most. 0: --iters."},
	{OPT_INT, 'w', "warmup-iters", "N", "5", O(warmup_iters), 0, 0, 1e18, .help =
		"Warmup iterations of each size, which are not timed."},
	{OPT_INT, 'c', "check", "N", "1", O(check), 0, 0, 1e18, .help =
		"Iterations of each size whose results are checked, each with other data. 0: "
		"none."},
	{OPT_INT, 0, "passes", "N", "1", O(passes), 0, 1, 1e6, .help =
		"Measure all cases N times, one after the other, so that a disturbance of some "
		"seconds does not hit all iterations of a case."},
	{OPT_INT, 0, "reruns", "N", "0", O(reruns), 0, 0, 1e6, .help =
		"Repeat each reduction N times with equal random inputs, and count elements whose "
		"bits differ from the first time."},
	{OPT_GROUP, .name = "Operation"},
	{OPT_ENUM, 'o', "op", NULL, "sum", O(op), .values = bench_op_names, .help =
		"Reduction operation."},
	{OPT_ENUM, 'd', "datatype", NULL, "float", O(datatype),
		.values = bench_type_names, .help =
		"Data type of the elements."},
	{OPT_STR, 'r', "root", "RANK", "0", O(root), .help =
		"Root rank of collectives that have one. all: each rank in turn."},
	{OPT_INT, 'm', "aggregate", "N", "1", O(aggregate), 0, 1, 1e6, .help =
		"Collectives of an iteration, which are started together and waited for together; "
		"time, algbw and busbw are those of one."},
	{OPT_INT, 0, "window", "N", "64", O(window), 0, 1, 1e6, .help =
		"Messages in flight, of bandwidth and bidirectional."},
	{OPT_ENUM, 0, "calls", NULL, "nonblocking", O(calls), .values = calls_names, .help =
		"How MPI is called. nonblocking: as by pt-train, by MPI_Iallreduce and so on, polled. "
		"blocking: by MPI_Allreduce and so on, as in OSU's micro-benchmarks."},
	{OPT_FLAG, 0, "barrier", NULL, "no", O(barrier), .help =
		"Wait in a barrier, which is not timed, after each iteration of a collective."},
	{OPT_ENUM, 'a', "average", NULL, "max", O(average), .values = average_names, .help =
		"The time of an iteration: of the slowest rank, the mean over ranks, of the fastest "
		"rank, or of rank 0."},
	{OPT_FLAG, 0, "overlap", NULL, "no", O(overlap), .help =
		"Also measure each collective with a computation beside it that takes as long."},
	{OPT_INT, 0, "polls", "N", "8", O(polls), 0, 0, 1e6, .needs = "--overlap", .help =
		"Calls that make communication progress during that computation."},
	{OPT_GROUP, .name = "Groups"},
	{OPT_LIST, 0, "split", "AXES", NULL, O(splits), .help =
		"Measure groups of ranks along the axes of pt-train, such as tp=2,fsdp=4, instead of all "
		"ranks; may be given several times, and world is all ranks."},
	{OPT_ENUM, 0, "groups", NULL, "all", O(groups), .values = OPT_WORDS("all", "one", "both"),
		.needs = "--split", .help =
		"Which groups along an axis are measured. all: all at once, and the slowest counts. "
		"one: only that of rank 0, and the other ranks wait. both: one after the other."},
	{OPT_GROUP, .name = "GPUs"},
	{OPT_ENUM, 0, "device", NULL, "cpu", O(device), .values = OPT_WORDS("cpu", "cuda"), .help =
		"The memory of the buffers. cuda: each rank takes a GPU of its host in turn."},
	{OPT_ENUM, 0, "comm", NULL, "auto", O(comm),
		.values = OPT_WORDS(COMM_LIBRARY_WORDS, "both"), .help =
		"What transfers the memory of GPUs. both: each case by MPI, then by NCCL, in one "
		"table. auto: as in pt-train."},
	{OPT_ENUM, 0, "launch", NULL, "blocking", O(launch),
		.values = launch_names, .help =
		"When the host waits for the GPU. blocking: after each iteration. queued: after "
		"all. graph: after each launch of a CUDA graph that has an iteration; needs NCCL."},
	{OPT_FLAG, 0, "registered", NULL, "no", O(registered), .help =
		"Buffers that NCCL transfers without copies of its own (ncclMemAlloc; a symmetric "
		"window from NCCL 2.27 on)."},
	{OPT_GROUP, .name = "Results"},
	{OPT_FLAG, 'I', "per-iteration", NULL, "no", O(per_iteration), .help =
		"Also print the spread of the times of single iterations."},
	{OPT_STR, 0, "out", "FILE", NULL, O(out), .files = ".h5", .help =
		"Also write the results to this HDF5 file; -o FILE.h5 is the same. Earlier "
		"results of that name are replaced, any other file is not."},
	{OPT_STR, 0, "compare", "OLD", NULL, O(compare), .files = ".h5", .help =
		"Compare the times with those of an earlier --out, and exit with 1 if one is slower."},
	{OPT_DOUBLE, 0, "threshold", "PERCENT", "15", O(threshold), 0, 0, 1e6, .needs = "--compare",
		.help =
		"Smaller differences are none."},
	{OPT_INT, 0, "retries", "N", "2", O(retries), 0, 0, 1e6, .needs = "--compare", .help =
		"Measure slower cases again, up to N times; they count if they are slower each time."},
	{OPT_STR, 0, "from", "FILE", NULL, O(from), .files = ".h5", .help =
		"Measure nothing, and take the results from an earlier --out, for --compare and --plot."},
	{OPT_STR, 0, "plot", "FILE", NULL, O(plot), .files = ".svg", .help =
		"Draw the results over the size, by gnuplot, to a .svg, .png or .pdf file."},
	{OPT_ENUM, 0, "plot-of", NULL, "busbw", O(plot_of), .values = OPT_WORDS("busbw", "time"),
		.needs = "--plot", .help =
		"What it shows."},
	{OPT_FLAG, 0, "overwrite", NULL, "no", O(overwrite), .help =
		"Replace the file, whatever it is."},
	{OPT_FLAG, 0, "smoke", NULL, "no", O(smoke), .help =
		"Only check, in about a second, that ranks, hosts and libraries work together, "
		"and that a training step has the gradient of one rank. "
		"Options about sizes, iterations and the operation have no effect."},
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
	bool wanted[N_BENCH];
	int64_t root; /* -1: all */
	struct comm *world;
	struct device d;
	struct comm *mpi;		/* the world, without NCCL */
	const char *comm;		/* comm_device_library() */
	struct comm *home[N_LIBRARIES]; /* the world of each; NULL: not measured */
	struct peer *peers;		/* [world->size] */
	struct bench bench;
	struct bench_groups groups;
	struct suite suite;
	struct bench_table old; /* of --compare, on rank 0 */
	double started, delay;
};

/* ---- the command line -------------------------------------------------------------- */

static int find_collective(const char *name, struct err *e)
{
	const char *const *names = bench_coll_names();
	for (int i = 0; i <= N_BENCH; i++)
		if (!strcmp(names[i], name))
			return i;
	return opts_unknown("collective", name, names, N_BENCH + 1, e);
}

static int parse_fault(const char *text, struct bench_fault *f, struct err *e)
{
	char *copy = xstrdup(text), *rest = copy;
	const char *name = strsep(&rest, ":"), *rank = strsep(&rest, ":");
	int64_t r = -1;
	bool step = !strcmp(name, "step");
	int what = step ? N_BENCH : find_collective(name, &(struct err){0});
	bool good = what >= 0 && (what < N_BENCH || step) && rank && rest &&
		    !parse_int(rank, &r) && r >= 0 && r <= INT32_MAX &&
		    !parse_int(rest, &f->element);
	f->wanted = good;
	f->what = good ? what : COLL_ALLREDUCE;
	f->rank = (int)r;
	free(copy);
	return good ? 0
		    : err_set(e, EX_USAGE,
			      "PT_COLLBENCH_FAULT: '%s' is not COLLECTIVE:RANK:ELEMENT or "
			      "step:RANK:ELEMENT",
			      text);
}

static int parse_delay(double *seconds, struct err *e)
{
	const char *text = getenv("PT_COLLBENCH_DELAY");
	if (text && (parse_double(text, seconds) || !(*seconds >= 0 && *seconds <= 1)))
		return err_set(e, EX_USAGE,
			"PT_COLLBENCH_DELAY: '%s' is no number of seconds up to 1", text);
	return 0;
}

/* -o is the reduction, as in nccl-tests; but no reduction is called x.h5. */
static void accept_o(int argc, char **argv)
{
	static char out[] = "--out";
	for (int i = 1; i + 1 < argc; i++) {
		size_t len = strlen(argv[i + 1]);
		if (!strcmp(argv[i], "-o") && len > 3 &&
			!strcmp(argv[i + 1] + len - 3, ".h5"))
			argv[i] = out;
	}
}

/* all: all collectives, not messages between pairs. */
static int parse_operands(struct session *s, char **name, int n, struct err *e)
{
	for (int i = 0; i < n; i++) {
		int what = find_collective(name[i], e);
		if (what < 0)
			return -1;
		for (int c = 0; c < N_COLL; c++)
			s->wanted[c] |= what == N_BENCH;
		s->wanted[what % N_BENCH] |= what < N_BENCH;
	}
	for (int c = 0; c < N_COLL && !n; c++)
		s->wanted[c] = s->o.smoke || c == COLL_ALLREDUCE;
	return 0;
}

/* Options that do not go together. */
static int check_options(const struct opts *o, struct err *e)
{
	if (o->minbytes < 1)
		return err_set(e, EX_USAGE, "minbytes: 0 is no size");
	if (o->minbytes > o->maxbytes)
		return err_set(e, EX_USAGE, "minbytes %lld is more than maxbytes %lld",
			(long long)o->minbytes, (long long)o->maxbytes);
	if (o->smoke && o->device)
		return err_set(e, EX_USAGE,
			"--smoke checks MPI, in host memory: without --device");
	if (o->smoke && (o->out || o->compare || o->plot || o->from))
		return err_set(e, EX_USAGE,
			"--smoke has no results for --out, --compare, --from and --plot");
	if (o->from && o->out)
		return err_set(e, EX_USAGE, "--from measures nothing for --out");
	if (!o->device && (o->comm == COMM_NCCL || o->comm == COMM_BOTH ||
				  o->launch != LAUNCH_BLOCKING || o->registered))
		return err_set(e, EX_USAGE,
			"--comm nccl, --launch and --registered need --device cuda");
	if (o->calls == CALLS_BLOCKING && (o->device || o->overlap))
		return err_set(e, EX_USAGE,
			"--calls blocking is for host memory, without --overlap");
	if (o->launch == LAUNCH_GRAPH && o->groups != GROUPS_ALL)
		return err_set(e, EX_USAGE, "--launch graph needs --groups all");
	if (o->plot && !gnuplot_terminal(o->plot))
		return err_set(e, EX_USAGE, "plot: '%s' ends in none of .svg, .png, .pdf",
			o->plot);
	return opts_check_needs(&program, o, e);
}

static int parse(struct session *s, int argc, char **argv, struct err *e)
{
	struct opts *o = &s->o;
	const char *fault = getenv("PT_COLLBENCH_FAULT");
	accept_o(argc, argv);
	int n = opts_parse(&program, o, argc, argv, e);
	if (n < 0 || parse_operands(s, argv, n, e) || check_options(o, e))
		return -1;
	s->root = -1;
	if (!o->root ||
		(strcmp(o->root, "all") && (parse_int(o->root, &s->root) || s->root < 0)))
		return err_set(e, EX_USAGE, "root: '%s' is neither a rank nor all",
			o->root ? o->root : "");
	return parse_delay(&s->delay, e) ||
			       (fault && parse_fault(fault, &s->bench.fault, e))
		       ? -1
		       : 0;
}

/* ---- the benchmark --------------------------------------------------------------- */

static void print_header(const struct session *s)
{
	const struct opts *o = &s->o;
	const struct peer *p = s->peers;
	printf("# %s\n# ranks %d, hosts %d\n", p->libraries, s->world->size,
		s->bench.place.n_hosts);
	for (int r = 0; r < s->world->size; r++)
		printf("#   rank %3d pid %7lld on %s\n", r, (long long)p[r].pid,
			p[r].host);
	if (s->bench.d)
		printf("# buffers on %s, transferred by %s\n", s->d.model,
			comm_device_library());
	printf("# minbytes %lld, maxbytes %lld, %s %lld, iters %lld, warmup-iters %lld, "
	       "check %lld\n",
		(long long)o->minbytes, (long long)o->maxbytes,
		o->stepbytes ? "stepbytes" : "stepfactor",
		(long long)(o->stepbytes ? o->stepbytes : o->stepfactor),
		(long long)o->iters, (long long)o->warmup_iters, (long long)o->check);
	if (o->seconds > 0 || o->passes > 1 || o->calls || o->barrier)
		printf("# seconds %g, passes %lld, calls %s%s\n", o->seconds,
			(long long)o->passes, calls_names[o->calls],
			o->barrier ? ", barriers between" : "");
	if (s->bench.d)
		printf("# device %s, by %s, launch %s, aggregate %lld%s\n", s->d.name,
			comm_device_library(), launch_names[o->launch],
			(long long)o->aggregate, o->registered ? ", registered" : "");
	printf("# time: mean over iterations, of the ranks %s; algbw = size / time; "
	       "GB = 1e9 B\n",
		average_texts[o->average]);
}

/* ---- the program ----------------------------------------------------------------- */

static int end_file(struct session *s, struct bench_file *file, struct err *e)
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
		.iters = s->o.iters,
		.warmup_iters = s->o.warmup_iters,
		.check = s->o.check,
		.device = s->bench.d ? s->d.name : NULL,
		.comm = s->comm,
		.launch = launch_names[s->o.launch],
		.aggregate = s->o.aggregate,
		.reruns = s->o.reruns,
		.registered = s->o.registered,
		.passes = s->o.passes,
		.seconds = s->o.seconds,
		.settings = s->suite.table.settings,
	};
	return bench_file_end(file, s->world, &s->suite.table, &about, e);
}

/* Collective. The device, and a group for each library that is measured. */
static int open_device(struct session *s, struct err *e)
{
	const struct opts *o = &s->o;
	enum comm_library which =
		o->comm == COMM_BOTH ? COMM_NCCL : (enum comm_library)o->comm;
	s->home[LIBRARY_MPI] = s->world;
	if (!o->device)
		return 0;
	const struct comm_place *place = comm_place();
	const struct device_options how = {.threads = 1,
		.exact = true,
		.ranks = place->local_size,
		.rank = place->local_rank,
		.sharers = comm_gpu_sharers(s->world)};
	device_open(&s->d, DEVICE_CUDA, &how, e);
	if (comm_agree(s->world, e))
		return -1;
	s->mpi = comm_split(s->world, 0, "mpi"); /* before it has NCCL */
	if (comm_device_open(s->world, &s->d, which, e))
		return -1;
	bool nccl = comm_has_stream(s->world);
	s->comm = comm_device_library();
	if (!nccl && o->comm != COMM_AUTO && o->comm != COMM_MPI)
		return err_set(e, EX_USAGE, "--comm nccl needs several ranks");
	s->bench.d = &s->d;
	if (o->launch == LAUNCH_GRAPH && !nccl)
		return err_set(
			e, EX_USAGE, "--launch graph needs NCCL and several ranks");
	s->home[LIBRARY_NCCL] = nccl ? s->world : NULL;
	s->home[LIBRARY_MPI] = !nccl || o->comm == COMM_BOTH ? s->mpi : NULL;
	return 0;
}

static void close_device(struct session *s)
{
	if (!s->bench.d)
		return;
	comm_device_close();
	device_close(&s->d);
	comm_free(s->mpi);
}

static void set_bench(struct session *s)
{
	const struct opts *o = &s->o;
	s->bench.o = (struct bench_options){.warmup = o->warmup_iters,
		.iters = o->iters,
		.checks = o->check,
		.aggregate = o->aggregate,
		.reruns = o->reruns,
		.window = o->window,
		.polls = o->polls,
		.passes = o->passes,
		.seconds = o->seconds,
		.delay = s->delay,
		.overlap = o->overlap,
		.barrier = o->barrier,
		.registered = o->registered,
		.calls = (enum bench_calls)o->calls,
		.average = (enum bench_average)o->average,
		.launch = (enum bench_launch)o->launch};
}

static void set_suite(struct session *s)
{
	const struct opts *o = &s->o;
	struct bench_table *t = &s->suite.table;
	s->suite.bench = &s->bench;
	s->suite.groups = &s->groups;
	s->suite.o = (struct suite_options){.minbytes = o->minbytes,
		.maxbytes = o->maxbytes,
		.stepbytes = o->stepbytes,
		.stepfactor = o->stepfactor,
		.type = o->datatype,
		.op = o->op,
		.root = s->root,
		.passes = o->passes};
	memcpy(s->suite.o.wanted, s->wanted, sizeof(s->wanted));
	t->shown[SET_ALWAYS] = true;
	t->shown[SET_ITERATIONS] = o->per_iteration;
	t->shown[SET_RERUNS] = o->reruns > 0;
	t->shown[SET_LIBRARY] = s->bench.d != NULL;
	t->shown[SET_GROUPS] = o->splits.n > 0;
	t->shown[SET_OVERLAP] = o->overlap;
	t->checked = o->check > 0;
}

static void set_settings(struct session *s)
{
	const struct opts *o = &s->o;
	struct bench_table *t = &s->suite.table;
	snprintf(t->settings, sizeof(t->settings),
		"calls=%s average=%s barrier=%d aggregate=%lld window=%lld launch=%s "
		"registered=%d",
		calls_names[o->calls], average_names[o->average], o->barrier,
		(long long)o->aggregate, (long long)o->window, launch_names[o->launch],
		o->registered);
}

/* Collective. Before anything is measured, so that a file that cannot be compared is reported at once. */
static int read_old(struct session *s, struct err *e)
{
	if (s->o.compare && s->world->rank == 0 &&
		!bench_file_read(s->o.compare, &s->old, e))
		table_check_settings(&s->old, &s->suite.table, e);
	return comm_agree(s->world, e);
}

/* On rank 0: prints the comparison and draws. 0, EX_FAILED: something is slower; -1. */
static int use_results(const struct session *s, struct err *e)
{
	const struct opts *o = &s->o;
	const struct bench_table *t = &s->suite.table;
	struct str text = {0};
	int64_t slower = 0;
	if (o->compare)
		slower = table_compare(&s->old, t, s->suite.judged, &text, e);
	fputs(text.len ? text.s : "", stdout);
	str_free(&text);
	if (slower >= 0 && o->plot &&
		table_picture(t, (enum picture_of)o->plot_of, o->plot, e))
		return -1;
	return slower > 0 ? EX_FAILED : (int)slower;
}

static int report(struct session *s, struct err *e)
{
	int rc = s->world->rank ? 0 : use_results(s, e);
	if (comm_agree(s->world, e))
		return -1;
	return (int)comm_max_i64(s->world, rc);
}

static void measure(struct session *s)
{
	bool prints = s->world->rank == 0;
	if (prints)
		print_header(s);
	suite_run(&s->suite);
	if (prints)
		table_footer(&s->suite.table);
	if (s->o.compare)
		suite_compare(&s->suite, &s->old, 1e-2 * s->o.threshold, s->o.retries);
	if (prints)
		table_print_fits(&s->suite.table);
}

/* Collective. Groups, buffers, and the measurements. */
static int open_and_measure(struct session *s, struct err *e)
{
	set_suite(s);
	int rc = groups_open(&s->groups, &s->o.splits, (enum group_choice)s->o.groups,
		s->home, s->peers, e);
	rc = rc || suite_list(&s->suite, e) ||
	     bench_open(&s->bench, s->world, s->o.maxbytes, e);
	if (!rc) {
		measure(s);
		bench_close(&s->bench);
	}
	groups_close(&s->groups);
	return rc ? -1 : 0;
}

static int run_benchmark(struct session *s, struct err *e)
{
	struct bench_file file = {.path = s->o.out, .overwrite = s->o.overwrite};
	set_settings(s);
	if (read_old(s, e) || open_device(s, e))
		return -1;
	set_bench(s);
	if (bench_file_begin(&file, s->world, e))
		return -1;
	if (open_and_measure(s, e)) {
		bench_file_end(&file, s->world, NULL, NULL, &(struct err){0});
		return -1;
	}
	if (end_file(s, &file, e))
		return -1;
	int rc = report(s, e);
	close_device(s);
	if (rc < 0)
		return -1;
	if (s->bench.fault.wanted && !comm_max_i64(s->world, s->bench.fault.done))
		return err_set(e, EX_USAGE,
			"PT_COLLBENCH_FAULT: no result that was checked has that element");
	return s->suite.table.n_wrong ? EX_FAILED : rc;
}

/* --from: of the ranks, the first one reads and prints. */
static int show_results(struct session *s, struct err *e)
{
	if (s->world->rank == 0 && !bench_file_read(s->o.from, &s->suite.table, e))
		table_print_fits(&s->suite.table);
	if (comm_agree(s->world, e) || read_old(s, e))
		return -1;
	if (s->o.compare && s->world->rank == 0)
		s->suite.judged =
			table_judge(&s->old, &s->suite.table, 1e-2 * s->o.threshold);
	return report(s, e);
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
	int rc = s->o.smoke  ? smoke_run(s->world, s->peers, s->wanted, &s->bench.fault)
		 : s->o.from ? show_results(s, &e)
			     : run_benchmark(s, &e);
	if (rc < 0)
		rc = s->world->rank ? e.code : err_say(&e);
	free(s->peers);
	suite_free(&s->suite);
	table_free(&s->old);
	strs_free(&s->o.splits);
	return rc;
}

static const char *const advice[N_ADVICE] = {
	[ADVICE_FILE_EXISTS] = "--overwrite replaces it",
	[ADVICE_BENCH_MEMORY] = "give a smaller --maxbytes",
	[ADVICE_GNUPLOT] = "without --plot, it is not needed",
};

int main(int argc, char **argv)
{
	struct session s = {0};
	struct err e = {0};
	log_name(program.name);
	advice_set(advice);
	if (parse(&s, argc, argv, &e))
		return launch_rank() ? e.code : err_say(&e);
	if (s.o.smoke)
		smoke_watch(program.name);
	s.world = comm_open();
	log_rank(s.world->rank, s.world->size, false);
	int rc = run(&s);
	comm_close(s.world);
	stdout_close();
	return rc;
}

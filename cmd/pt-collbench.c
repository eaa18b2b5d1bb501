/* pt-collbench: benchmark and checker of collectives. */
#include "base/options.h"
#include "collbench/collbench.h"
#include "comm/requests.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

struct opts {
	int64_t minbytes, maxbytes, stepbytes, stepfactor, iters, warmup_iters, check;
	int64_t aggregate, reruns;
	int op, datatype, device, comm, launch;
	const char *root, *out;
	bool overwrite, per_iteration, smoke, registered;
};

/* nccl and mpi as enum comm_library; both: MPI, then NCCL, for each case. */
enum { COMM_BOTH = COMM_MPI + 1 };

static const char *const launch_names[] = {"blocking", "queued", "graph", NULL};

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
	{OPT_INT, 'w', "warmup-iters", "N", "5", O(warmup_iters), 0, 0, 1e18, .help =
		"Warmup iterations of each size, which are not timed."},
	{OPT_INT, 'c', "check", "N", "1", O(check), 0, 0, 1e18, .help =
		"Iterations of each size whose results are checked, each with other data. 0: "
		"none."},
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
	.words = bench_coll_names,
	.versions = versions,
};

struct session {
	struct opts o;
	bool wanted[N_COLL];
	int64_t root; /* -1: all */
	struct comm *world;
	struct device d;
	struct comm *mpi;      /* the world, without NCCL */
	const char *comm;      /* comm_device_library() */
	struct comm *group[2]; /* by enum bench_library; NULL: not measured */
	struct peer *peers;    /* [world->size] */
	struct bench bench;
	struct bench_table table;
	double started;
};

/* ---- the command line -------------------------------------------------------------- */

static int find_collective(const char *name, struct err *e)
{
	const char *const *names = bench_coll_names();
	for (int i = 0; i <= N_COLL; i++)
		if (!strcmp(names[i], name))
			return i;
	return opts_unknown("collective", name, names, N_COLL + 1, e);
}

static int parse_fault(const char *text, struct bench_fault *f, struct err *e)
{
	char *copy = xstrdup(text), *rest = copy;
	const char *name = strsep(&rest, ":"), *rank = strsep(&rest, ":");
	int64_t r = -1;
	bool step = !strcmp(name, "step");
	int what = step ? N_COLL : find_collective(name, &(struct err){0});
	bool good = what >= 0 && (what < N_COLL || step) && rank && rest &&
		    !parse_int(rank, &r) && r >= 0 && r <= INT32_MAX &&
		    !parse_int(rest, &f->element);
	f->wanted = good;
	f->what = good ? (enum coll)what : COLL_ALLREDUCE;
	f->rank = (int)r;
	free(copy);
	return good ? 0
		    : err_set(e, EX_USAGE,
			      "PT_COLLBENCH_FAULT: '%s' is not COLLECTIVE:RANK:ELEMENT or "
			      "step:RANK:ELEMENT",
			      text);
}

static int parse(struct session *s, int argc, char **argv, struct err *e)
{
	struct opts *o = &s->o;
	const char *fault = getenv("PT_COLLBENCH_FAULT");
	static char out[] = "--out";
	/* -o is the reduction, as in nccl-tests; but no reduction is called x.h5. */
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
	if (o->smoke && o->device)
		return err_set(e, EX_USAGE,
			"--smoke checks MPI, in host memory: without --device");
	if (o->smoke && o->out)
		return err_set(e, EX_USAGE, "--smoke has no results for --out");
	if (!o->device && (o->comm == COMM_NCCL || o->comm == COMM_BOTH ||
				  o->launch != LAUNCH_BLOCKING || o->registered))
		return err_set(e, EX_USAGE,
			"--comm nccl, --launch and --registered need --device cuda");
	return fault ? parse_fault(fault, &s->bench.fault, e) : 0;
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
	if (s->bench.d)
		printf("# device %s, by %s, launch %s, aggregate %lld%s\n", s->d.name,
			comm_device_library(), launch_names[o->launch],
			(long long)o->aggregate, o->registered ? ", registered" : "");
	printf("# time: mean over iterations, of the slowest rank; algbw = size / time; "
	       "GB = 1e9 B\n");
}

static void bench_one(struct session *s, struct coll_case *c)
{
	const struct coll_info *info = &coll_table[c->what];
	bool typed = c->what != COLL_BARRIER;
	struct bench_row r = {
		.collective = c->what,
		.size = coll_bytes(c->what, s->world->size, c->count, c->type),
		.count = c->count,
		.type = typed ? (int64_t)c->type : -1,
		.redop = info->has_op ? (int64_t)c->op : -1,
		.root = info->has_root ? c->root : -1,
	};
	for (int library = LIBRARY_MPI; library <= LIBRARY_NCCL; library++) {
		/* a barrier has no memory: it is MPI's */
		if (typed ? !s->group[library] : library == LIBRARY_NCCL)
			continue;
		s->bench.comm = typed ? s->group[library] : s->world;
		r.library = s->bench.d && typed ? library : -1;
		for (int p = 0; p < N_COLL_PLACES; p++) {
			r.result[p] = bench_nothing;
			c->place = (enum coll_place)p;
			if (info->has_place[p])
				bench_run(&s->bench, c, &r.result[p]);
		}
		table_add(&s->table, &r, s->world->rank == 0);
	}
}

/* Sizes are cut to whole elements for each rank; those that become equal are one. */
static void bench_sizes(struct session *s, struct coll_case *c)
{
	const struct opts *o = &s->o;
	int64_t last = 0, next;
	for (int64_t size = o->minbytes; size <= o->maxbytes; size = next) {
		c->count = bench_count(&s->bench, c->what, c->type, size);
		if (c->count != last)
			bench_one(s, c);
		last = c->count;
		if (o->stepbytes ? __builtin_add_overflow(size, o->stepbytes, &next)
				 : __builtin_mul_overflow(size, o->stepfactor, &next))
			break;
	}
}

/* Is number i of n wanted? A choice that is none of them stands for all. */
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
		table_heading(&s->table, what);
	if (what == COLL_BARRIER) {
		bench_one(s, &c);
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

/* ---- the program ----------------------------------------------------------------- */

static int end_file(struct session *s, struct bench_file *file, struct err *e)
{
	char started[NUM_TEXT];
	const struct bench_about about = {
		.format = program.name,
		.version = 1,
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
	};
	return bench_file_end(file, s->world, &s->table, &about, e);
}

/* Collective. The device, and a group for each library that is measured. */
static int open_device(struct session *s, struct err *e)
{
	const struct opts *o = &s->o;
	enum comm_library which =
		o->comm == COMM_BOTH ? COMM_NCCL : (enum comm_library)o->comm;
	s->group[LIBRARY_MPI] = s->world;
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
	s->group[LIBRARY_NCCL] = nccl ? s->world : NULL;
	s->group[LIBRARY_MPI] = !nccl || o->comm == COMM_BOTH ? s->mpi : NULL;
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

static int run_benchmark(struct session *s, struct err *e)
{
	bool prints = s->world->rank == 0;
	struct bench_file file = {.path = s->o.out, .overwrite = s->o.overwrite};
	if (open_device(s, e))
		return -1;
	s->bench.aggregate = s->o.aggregate;
	s->bench.reruns = s->o.reruns;
	s->bench.launch = (enum bench_launch)s->o.launch;
	s->bench.registered = s->o.registered;
	s->bench.warmup = s->o.warmup_iters;
	s->bench.iters = s->o.iters;
	s->bench.checks = s->o.check;
	s->table.shown[SET_ITERATIONS] = s->o.per_iteration;
	s->table.shown[SET_RERUNS] = s->o.reruns > 0;
	s->table.shown[SET_LIBRARY] = s->bench.d != NULL;
	s->table.checked = s->o.check > 0;
	if (bench_file_begin(&file, s->world, e))
		return -1;
	if (bench_open(&s->bench, s->world, s->o.maxbytes, e)) {
		bench_file_end(&file, s->world, NULL, NULL, &(struct err){0});
		return -1;
	}
	if (prints)
		print_header(s);
	for (int c = 0; c < N_COLL; c++)
		if (s->wanted[c])
			bench_collective(s, (enum coll)c);
	bench_close(&s->bench);
	if (prints)
		table_footer(&s->table);
	if (end_file(s, &file, e))
		return -1;
	close_device(s);
	if (s->bench.fault.wanted && !comm_max_i64(s->world, s->bench.fault.done))
		return err_set(e, EX_USAGE,
			"PT_COLLBENCH_FAULT: no result that was checked has that element");
	return s->table.n_wrong ? EX_FAILED : 0;
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
	free(s->table.rows);
	return rc;
}

static const char *const advice[N_ADVICE] = {
	[ADVICE_FILE_EXISTS] = "--overwrite replaces it",
	[ADVICE_BENCH_MEMORY] = "give a smaller --maxbytes",
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

/* Starting a run: where it goes on from, and what it says of itself. */
#include "train/loop.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what a run says of itself --------------------------------------------------- */

static const char *scheduler_job(void)
{
	static const char *const vars[] = {
		"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "COBALT_JOBID", "FLUX_JOB_ID"};
	static char text[128];
	for (size_t i = 0; i < ARRAY_LEN(vars); i++) {
		const char *id = getenv(vars[i]);
		if (!id)
			continue;
		snprintf(text, sizeof(text), "%s=%s", vars[i], id);
		return text;
	}
	return NULL;
}

/* Variables that may change how fast or what is computed; nothing that could be a secret. */
static void list_environment(struct str *out)
{
	static const char *const begins[] = {"PT_", "OMP_", "OPENBLAS_", "MPI", "HYDRA_",
		"PMI_", "UCX_", "FI_", "HDF5_", "NCCL_", "CUDA_", "SLURM_", "PBS_"};
	static const char *const secret[] = {"TOKEN", "JWT", "KEY", "SECRET", "PASS"};
	for (char **v = environ; *v; v++) {
		bool ours = false, hide = false;
		int name = (int)strcspn(*v, "=");
		for (size_t i = 0; i < ARRAY_LEN(begins); i++)
			ours |= !strncmp(*v, begins[i], strlen(begins[i]));
		for (size_t i = 0; i < ARRAY_LEN(secret); i++)
			hide |= memmem(*v, (size_t)name, secret[i], strlen(secret[i])) !=
				NULL;
		if (ours && !hide)
			str_printf(out, "%s%s", out->len ? " " : "", *v);
	}
}

static void describe_data(const struct run *r)
{
	char train[NUM_TEXT], val[NUM_TEXT];
	info("data: %lld %s tokens in the vocabulary, %s for training, %s for "
	     "validation, %s; %s",
		(long long)r->data.tokenizer.vocab.n, r->data.tokenizer.kind->name,
		text_count(train, (double)r->data.tokens[SPLIT_TRAIN]),
		text_count(val, (double)r->data.tokens[SPLIT_VAL]),
		r->t.o.sampling == SAMPLING_EPOCH ? "each window once an epoch"
						  : "random offsets",
		r->data.readers == r->world->size ? "every rank reads its own"
						  : "read for the ranks that do not");
}

static void describe(const struct run *r, const struct run_info *i)
{
	const struct trainer *t = &r->t;
	struct str tree = {0};
	char a[NUM_TEXT], b[NUM_TEXT], c[NUM_TEXT];
	info("%s on %s, %lld rank%s on %lld host%s, %lld thread%s each, %s%s%s",
		i->started, i->host, (long long)i->ranks, i->ranks == 1 ? "" : "s",
		(long long)i->hosts, i->hosts == 1 ? "" : "s", (long long)i->threads,
		i->threads == 1 ? "" : "s", i->device, i->job ? ", job " : "",
		i->job ? i->job : "");
	info("%s; %s", i->created_by, i->libraries);
	info("layout: %s; arithmetic 0x%016llx, dtype %s", i->layout,
		(unsigned long long)i->arithmetic, precision_names[t->o.dtype]);
	describe_data(r);
	model_print(&t->model, &tree);
	info("model: %s\n%s", arch_names[t->model.c.arch], tree.s);
	str_free(&tree);
	info("a step%s: %lld sequences in %lld micro-batches, %lld tokens; %s FLOPs a "
	     "token "
	     "(6 N + 12 L C T; causal %s); memory %s a rank",
		r->sync ? " of each worker" : "", (long long)train_batch(&t->o),
		(long long)trainer_micro_batches(&t->o),
		(long long)(train_batch(&t->o) * t->model.c.context),
		text_count(a, model_flops_per_token(&t->model, false)),
		text_count(b, model_flops_per_token(&t->model, true)),
		text_bytes(c, (double)r->most_bytes));
	if (r->peak_flops > 0)
		info("mfu is relative to %s FLOP/s a rank", text_count(a, r->peak_flops));
	if (r->folder)
		info("run in %s", r->folder);
}

static void legend(void)
{
	struct str text = {0};
	for (int c = 0; c < N_COLUMNS; c++)
		str_printf(&text, "\n  %-12s %s%s%s", columns[c].name, columns[c].help,
			*columns[c].unit ? ", in " : "", columns[c].unit);
	info("columns:%s", text.s);
	str_free(&text);
}

static int open_journal(struct run *r, const struct train_opts *o, const char *command,
	int64_t resume, struct err *e)
{
	struct comm_place place;
	struct str config = {0}, arithmetic = {0}, libraries = {0}, layout = {0};
	struct str environment = {0}, invocation = {0}, device = {0};
	char started[NUM_TEXT];
	comm_place(&place);
	train_config(&r->t.o, &config);
	train_device_identity(&r->t.d, &device);
	train_arithmetic(&r->t.o, &r->t.model, device.s, r->data.hash, &arithmetic);
	str_printf(&libraries, "HDF5 %s, %s, %s, xxHash %s", h5_version(),
		r->world->size > 1 ? comm_version() : "no MPI", device.s, hash_version());
	mesh_name(r->t.mesh.degree, &layout);
	list_environment(&environment);
	train_invocation(&r->t.o, &invocation);
	struct run_info info = {
		.created_by = "pt-train " PT_VERSION,
		.version = RUN_VERSION,
		.started = clock_text(started, clock_wall()),
		.host = place.host,
		.pid = getpid(),
		.job = scheduler_job(),
		.command = command,
		.device = device_name(&r->t.d),
		.libraries = libraries.s,
		.layout = layout.s,
		.environment = environment.s,
		.invocation = invocation.s,
		.ranks = r->world->size,
		.hosts = place.n_hosts,
		.threads = r->t.d.threads,
		.arithmetic = hash_str(arithmetic.s),
	};
	describe(r, &info);
	if (r->all->rank == 0 && place.local_size * info.threads > place.processors)
		warn("%d rank%s of %lld thread%s on %d processors of %s: fewer %s would "
		     "be "
		     "faster",
			place.local_size, place.local_size == 1 ? "" : "s",
			(long long)info.threads, info.threads == 1 ? "" : "s",
			place.processors, place.host,
			info.threads == 1 ? "ranks" : "threads");
	if (run_first(r) && !o->eval_only)
		journal_open(
			&r->journal, r->folder, resume, &info, config.s, arithmetic.s, e);
	if (r->all->rank == 0)
		printf("# meta arithmetic = 0x%016llx\n",
			(unsigned long long)info.arithmetic);
	str_free(&config);
	str_free(&arithmetic);
	str_free(&libraries);
	str_free(&layout);
	str_free(&environment);
	str_free(&invocation);
	str_free(&device);
	return comm_agree(r->world, e);
}

/* ---- going on -------------------------------------------------------------------- */

/* The options in a checkpoint: all, or only those of the model. */
static int read_config(
	const char *path, bool all, struct str *out, int64_t *workers, struct err *e)
{
	struct ckpt *c;
	struct train_opts saved;
	if (ckpt_open(&c, path, e))
		return -1;
	int rc = 0;
	if (all)
		str_add(out, c->config.s, c->config.len);
	else if (!(rc = opts_from_text(&train_program, &saved, c->config.s, true, e)))
		train_model_options(&saved, out);
	*workers = c->info.workers;
	ckpt_close(c);
	return rc;
}

static int find_base(
	const struct train_opts *o, struct str *path, struct train_base *b, struct err *e)
{
	int64_t of_init;
	bool search = o->resume && !strcmp(o->resume, "auto");
	if (search) {
		struct str folder = {0};
		str_printf(&folder, "%s/checkpoints", o->out);
		char *newest = ckpt_newest(folder.s, elastic_usable, (void *)o, e);
		str_puts(path, newest ? newest : "");
		free(newest);
		str_free(&folder);
	} else if (o->resume) {
		str_puts(path, o->resume);
	}
	if (e->code)
		return -1;
	if (path->len)
		return read_config(path->s, true, &b->options, &b->workers, e);
	return o->init_from ? read_config(o->init_from, false, &b->options, &of_init, e)
			    : 0;
}

int train_find_base(const struct train_opts *o, struct comm *world, struct train_base *b,
	struct err *e)
{
	struct str path = {0};
	*b = (struct train_base){0};
	if (o->resume && !strcmp(o->resume, "auto") && !o->out)
		err_set(e, EX_USAGE, "resume auto needs --out");
	if (comm_agree(world, e))
		return -1;
	/* Before anything is read that a run at work there may remove or add to. */
	int lock = -1;
	if (world->rank == 0 && o->resume && o->out && !o->eval_only && !o->dry_run)
		journal_lock(o->out, false, PATIENCE_SECS, &lock, e);
	b->lock = lock + 1;
	if (world->rank == 0 && !e->code)
		find_base(o, &path, b, e);
	if (comm_agree(world, e))
		return -1;
	comm_bcast_str(world, &path, 0);
	comm_bcast_str(world, &b->options, 0);
	comm_bcast(world, &b->workers, sizeof(b->workers), 0);
	b->resume = path.len ? xstrdup(path.s) : NULL;
	b->start_over = o->resume && !path.len;
	str_free(&path);
	return 0;
}

/* A checkpoint that cannot be written is no reason not to begin, but one to be told early. */
static void warn_of_room(const struct run *r)
{
	struct err e = {0};
	if (r->world->rank || !r->t.o.ckpt || !r->ckpt_folder)
		return;
	struct str path = {0};
	ckpt_name(&path, r->ckpt_folder, r->t.o.steps);
	if (file_room(path.s, trainer_ckpt_bytes(&r->t), &e))
		warn("%s", e.msg);
	str_free(&path);
}

/* Collective. Is there a checkpoint of this step in the run's own folder? What a run goes on
 * from may be another's. */
static bool is_saved(struct run *r, int64_t step)
{
	int64_t there = 0;
	if (run_first(r) && r->ckpt_folder && step >= 0) {
		struct str path = {0};
		ckpt_name(&path, r->ckpt_folder, step);
		there = file_exists(path.s);
		str_free(&path);
	}
	return comm_max_i64(r->world, there);
}

/* Collective. Of a run of several workers each has its own, of the same step; when there are
 * more than there were, some begin from the same. */
static int load(
	struct run *r, const struct train_opts *o, const char *from, struct err *e)
{
	struct str path = {0};
	if (r->sync && !o->init_from) {
		char *first = ckpt_find_file(from);
		ckpt_of_worker(&path, first, o->worker % max64(1, o->from_workers));
		free(first);
	} else {
		str_puts(&path, from);
	}
	int rc = trainer_load(&r->t, path.s, o->init_from != NULL, e);
	str_free(&path);
	return rc;
}

/* The device, and all that is taken of its memory; before that, what its products are, and whether
 * it computes rightly. A worker's memory may be too small, and the others then hear of it. */
static int build(struct run *r, struct train_opts *o, const char *from,
	const struct start *s, struct err *e)
{
	struct trainer *t = &r->t;
	if (trainer_prepare(t, o, r->world, &r->data, e) || apart_same_device(r, e))
		return -1;
	t->start = *s;
	start_phase_ends(&t->start, START_DEVICE);
	bool fits = !trainer_fit(t, e);
	if (apart_ready(r, e) || !fits)
		return -1;
	if (train_algorithms_take(&t->d, o, from, r->all, e) ||
		train_selftest(t, r->all, &r->self_test, e)) {
		r->told = true;
		return -1;
	}
	start_phase_ends(&t->start, START_SELF_TEST);
	bool built = !trainer_build(t, e);
	return apart_ready(r, e) || !built ? -1 : 0;
}

static int start(struct run *r, struct train_opts *o, const char *command, struct err *e)
{
	int64_t resume = -1;
	const char *from = o->init_from ? o->init_from : o->resume;
	struct start s = {.began = r->began, .last = r->began};
	start_phase_ends(&s, START_PROGRAM);
	train_device_sharers(o, r->all);
	if (data_open(&r->data, o, r->world, e))
		return -1;
	start_phase_ends(&s, START_DATA);
	if (build(r, o, from, &s, e))
		return -1;
	if (r->sync) {
		struct edit_config edit;
		train_edit_config(&r->t.o, &edit);
		r->t.edit = edit_open(&edit, r->world, r->sync, r->t.store, &r->t.d);
	}
	start_phase_ends(&r->t.start, START_MEMORY);
	r->most_bytes = comm_max_i64(r->world, plan_total(&r->t.plan));
	if (train_profile(o, &r->t.profile_first, &r->t.profile_last, e))
		return -1;
	r->peak_flops = train_peak(o, &r->t.d);
	if (o->eval_only && !from)
		return err_set(e, EX_USAGE,
			o->start_over ? "eval-only: --resume auto has found no checkpoint"
				      : "eval-only needs --resume or --init-from");
	if (from) {
		if (load(r, o, from, e))
			return -1;
		if (!o->init_from)
			resume = r->t.step;
		info("%s %s (step %lld)", o->init_from ? "weights from" : "going on from",
			from, (long long)r->t.step);
	}
	if (apart_replay(r, r->t.o.edit.replay, e))
		return -1;
	/* Last, since --overwrite removes checkpoints, perhaps the one that was read. */
	if (!o->eval_only &&
		(folder_make(r, o, e) || folder_see(r, o, e) || apart_ready(r, e))) {
		folder_unmake(r);
		return -1;
	}
	if (o->overwrite && !o->eval_only)
		folder_empty(r, o);
	r->saved_step = is_saved(r, resume) ? resume : -1;
	r->have = r->saved_step;
	if ((resume >= 0 && elastic_settle(r, e)) ||
		open_journal(r, o, command, resume, e)) {
		folder_unmake(r);
		return -1;
	}
	if (r->self_test.len && !o->eval_only)
		run_event(r, "%s", r->self_test.s);
	r->all_have = r->sync && r->sync->size > 1 ? r->have : INT64_MAX;
	if (resume >= 0)
		elastic_say(r);
	warn_of_room(r);
	legend();
	start_phase_ends(&r->t.start, START_FILES);
	return 0;
}

/* With --dry-run ranks may be planned that were not started: those that the options ask for,
 * or, where an axis takes the rest, the fewest that there can be. */
static int planned_ranks(const struct train_opts *o, int started, struct err *e)
{
	enum { MOST = 1 << 20 };
	int64_t ranks = 1;
	bool rest = false;
	for (int a = 0; a < N_AXES; a++) {
		rest |= o->axis[a] == -1;
		ranks *= max64(1, o->axis[a]);
		if (ranks > MOST)
			return err_set(e, EX_USAGE, "a plan of more than %d ranks", MOST);
	}
	return rest && started % ranks == 0 ? started : (int)ranks;
}

/* A GPU that is asked for need not be here. */
static int plan_device(struct train_opts *o, struct err *e)
{
	struct device d;
	enum device_kind kind;
	if (train_device(o, &kind, e))
		return -1;
	if (kind == DEVICE_AUTO && train_device_open(o, &d, e))
		return -1;
	if (kind == DEVICE_AUTO)
		device_close(&d);
	else
		o->device = (int)kind;
	return 0;
}

static int dry_run(const struct train_opts *given, struct comm *world, struct err *e)
{
	struct train_opts o = *given;
	struct data_set data = {0};
	struct model m;
	struct order order;
	struct str out = {0}, tree = {0};
	struct faults faults = {0};
	int workers = (int)max64(1, o.edit.workers);
	int ranks = planned_ranks(&o, (int)max64(1, world->size / workers), e);
	int rc = ranks < 0 || train_resolve(&o, ranks, e);
	/* Whatever the plan is for, those that were started read the data alike. */
	struct train_opts read = o;
	for (int a = 0; a < N_AXES; a++)
		read.axis[a] = a == AXIS_DP ? -1 : 1;
	rc = rc || (o.data.n && data_open(&data, &read, world, e)) ||
	     model_init(&m, &o.model, data.tokenizer.vocab.n, e) ||
	     train_check(&o, &m, e) || faults_open(&faults, &o, ranks, e) ||
	     plan_device(&o, e) || (o.data.n && train_order(&o, &m, &data, &order, e));
	if (!rc && world->rank == 0) {
		model_print(&m, &tree);
		plan_print(&o, &m, &out);
		printf("# tensors\n%s%s", tree.s, out.s);
	}
	faults_close(&faults);
	str_free(&out);
	str_free(&tree);
	return rc ? -1 : 0;
}

int train_run(struct train_opts *o, struct comm *world, const char *command, double began)
{
	struct run r = {.began = began,
		.all = world,
		.world = world,
		.saved_step = -1,
		.tried_step = -1,
		.eval_step = -1,
		.lock = -1};
	struct err e = {0};
	int rc;
	r.journal.fd = -1;
	if (o->dry_run)
		rc = dry_run(o, world, &e);
	else if (apart_open(&r, o, &e) || train_resolve(o, r.world->size, &e))
		rc = -1;
	else
		rc = apart_agree(&r, start(&r, o, command, &e), &e);
	if (rc) {
		/* All ranks agree on it, so one says it and all leave by the door. */
		if (world->rank == 0)
			err_say(&e);
		return e.code;
	}
	if (o->dry_run) {
		stdout_close();
		return 0;
	}
	rc = train_loop(&r);
	if (o->eval_only)
		stdout_close(); /* no journal has what was printed */
	apart_close(&r);
	edit_free(r.t.edit);
	trainer_close(&r.t);
	data_close(&r.data);
	journal_close(&r.journal);
	if (r.lock >= 0)
		close(r.lock);
	str_free(&r.self_test);
	free(r.folder);
	free(r.ckpt_folder);
	return rc;
}

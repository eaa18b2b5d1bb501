/* The start of a run: its checkpoint, device, data, directory and journal. */
#include "plan/fit.h"
#include "referee/referee.h"
#include "train/train_internal.h"
#include "train/selftest.h"
#include "plan/cluster.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the description of a run --------------------------------------------------- */

/* Returns "SLURM_JOB_ID=123" or the like, in static memory; NULL: not in a scheduler's job. */
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

/* Lists environment variables that may change results or speed, without possible secrets. */
static void list_environment(struct str *out)
{
	static const char *const prefixes[] = {"PT_", "OMP_", "MPI", "HYDRA_", "PMI_",
		"UCX_", "FI_", "HDF5_", "NCCL_", "CUDA_", "SLURM_", "PBS_"};
	static const char *const secrets[] = {"TOKEN", "JWT", "KEY", "SECRET", "PASS"};
	for (char **v = environ; *v; v++) {
		bool is_listed = false, is_secret = false;
		int name = (int)strcspn(*v, "=");
		for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
			is_listed |= !strncmp(*v, prefixes[i], strlen(prefixes[i]));
		for (size_t i = 0; i < ARRAY_LEN(secrets); i++)
			is_secret |= memmem(*v, (size_t)name, secrets[i],
					     strlen(secrets[i])) != NULL;
		if (is_listed && !is_secret)
			str_printf(out, "%s%s", out->len ? " " : "", *v);
	}
}

/* The texts that run_info points to. */
struct run_texts {
	struct str config, arithmetic, libraries, layout, environment, invocation;
	char started[NUM_TEXT];
};

static void run_texts_release(struct run_texts *x)
{
	str_free(&x->config);
	str_free(&x->arithmetic);
	str_free(&x->libraries);
	str_free(&x->layout);
	str_free(&x->environment);
	str_free(&x->invocation);
}

/* Appends everything that determines the bits of the run's results. */
static void describe_arithmetic(const struct run *r, const char *layout, struct str *out)
{
	scoped_str sums = {0};
	str_puts(&sums, backend_identity(&r->t.d));
	if (comm_has_stream(r->world) &&
		r->t.o.numerics == NUMERICS_FAST) /* their order is NCCL's */
		str_printf(&sums, ", %s, %s", comm_device_library(), layout);
	options_print_arithmetic(&r->t.o, &r->t.model, sums.s, r->data.hash, out);
}

static void list_libraries(const struct run *r, struct str *out)
{
	bool nccl = comm_has_stream(r->world);
	str_printf(out, "HDF5 %s, %s, %s%s%s, xxHash %s", h5_version(),
		r->world->size > 1 ? comm_version() : "no MPI",
		nccl ? comm_device_library() : "", nccl ? ", " : "",
		backend_identity(&r->t.d), hash_version());
}

/* Describes a run. The result points to texts in *x. */
static struct run_info make_info(
	const struct run *r, const char *command, struct run_texts *x)
{
	const struct comm_place *place = comm_place();
	options_print_saved(&r->t.o, &x->config);
	mesh_name(r->t.mesh.degree, &x->layout);
	describe_arithmetic(r, x->layout.s, &x->arithmetic);
	list_libraries(r, &x->libraries);
	list_environment(&x->environment);
	opts_print(&train_program, &r->t.o, 0, OPT_RUN, &x->invocation);
	return (struct run_info){
		.created_by = "pt-train " PT_VERSION,
		.version = RUN_VERSION,
		.started = clock_text(x->started, clock_wall()),
		.host = place->host,
		.pid = getpid(),
		.job = scheduler_job(),
		.command = command,
		.device = r->t.d.name,
		.libraries = x->libraries.s,
		.layout = x->layout.s,
		.environment = x->environment.s,
		.invocation = x->invocation.s,
		.ranks = r->world->size,
		.hosts = place->n_hosts,
		.threads = r->t.d.threads,
		.arithmetic = hash_str(x->arithmetic.s),
	};
}

/* Warns if this host has fewer processors than threads of all ranks. */
static void warn_of_threads(int64_t threads)
{
	const struct comm_place *place = comm_place();
	if (place->local_size * threads > place->processors)
		warn("%d rank%s of %lld thread%s on the %d processors of %s: fewer %s "
		     "would be faster",
			place->local_size, plural(place->local_size), (long long)threads,
			plural(threads), place->processors, place->host,
			threads == 1 ? "ranks" : "threads");
}

/* Returns true if the last step is done, and its checkpoint is in the directory. Then nothing is
 * computed, so a change of the arithmetic does not matter. */
static bool has_no_step_left(const struct run *r)
{
	return r->t.step >= r->t.o.steps && r->saver.saved_step == r->t.step &&
	       !r->t.o.eval_only;
}

static int open_log_files(struct run *r, const struct train_opts *o, const char *config,
	int64_t resume, struct err *e)
{
	struct log_start s = {.name = r->dir.path,
		.host = comm_place()->host,
		.config = config,
		.resume = resume,
		.overwrite = o->overwrite};
	return log_files_open(&r->logs, &o->log_to, o->resolved.worker, s, e);
}

/* Describes the run, and begins its journal. */
static int begin_journal(struct run *r, const struct train_opts *o, const char *command,
	int64_t resume, struct err *e)
{
	struct run_texts texts = {0};
	struct run_info info = make_info(r, command, &texts);
	bool no_steps = has_no_step_left(r);
	describe_run(r, &info);
	if (r->all->rank == 0) {
		warn_of_threads(info.threads);
		layout_warn(&r->t.o);
	}
	if (run_is_first(r) && !o->eval_only && !run_dir_archive_log(r, e) &&
		!journal_open(&r->report.journal, r->dir.path, resume, no_steps, &info,
			texts.config.s, texts.arithmetic.s, e))
		open_log_files(r, o, texts.config.s, resume, e);
	if (r->all->rank == 0 && !no_steps && !report_uses_short_rows(r))
		printf("# meta arithmetic = 0x%016llx\n",
			(unsigned long long)info.arithmetic);
	run_texts_release(&texts);
	return comm_agree(r->world, e);
}

/* ---- resuming -------------------------------------------------------------------- */

/* Returns true if the user has given options of the model. */
static bool has_model_options(const struct train_opts *o)
{
	for (const struct opt *t = train_program.opts; t->type != OPT_END; t++)
		if (t->flags & OPT_MODEL && opts_given(&train_program, o, t->name))
			return true;
	return false;
}

/* Takes the options of a checkpoint: all, or only the model's. Compares them with the file's
 * tensors, unless the user gives options of the model. `path`: its name in messages. */
static int take_options(const struct train_opts *o, const struct ckpt *c,
	const char *path, bool all, struct job_base *b, struct err *e)
{
	struct train_opts saved;
	if (state_options(c, &saved, e))
		return -1;
	int rc = 0;
	if (saved.model.layers > c->n_tensors)
		rc = err_set(e, EX_DATAERR,
			"%s: its options have %lld layers, but it has %d tensors", path,
			(long long)saved.model.layers, c->n_tensors);
	if (!rc && !has_model_options(o))
		rc = state_check_shapes(c, &saved.model, true, e);
	if (!rc && all)
		str_add(&b->options, c->config.s, c->config.len);
	else if (!rc)
		opts_print(&train_program, &saved, OPT_MODEL, 0, &b->options);
	opts_free(&train_program, &saved);
	if (all)
		b->workers = c->info.workers;
	return rc;
}

/* Reads the options in the checkpoint of --resume or --init-from. */
static int read_checkpoint_options(
	const struct train_opts *o, const char *path, struct job_base *b, struct err *e)
{
	struct ckpt *c = NULL;
	const bool all = path != o->init_from;
	ckpt_opener *open = all ? ckpt_open : b->open_model;
	if (open(&c, path, e))
		return -1;
	int rc = take_options(o, c, path, all, b, e);
	ckpt_close(c);
	return rc;
}

static int check_usable(void *context, const struct ckpt *c, struct err *e)
{
	return state_check(c, e) || local_sgd_check_usable(context, c, e) ? -1 : 0;
}

/* Checks that a directory without checkpoints is new: its link must not point to a missing one. */
static int check_latest_link(const char *dir, struct err *e)
{
	scoped_str link = {0};
	char target[256];
	str_printf(&link, "%s/latest.h5", dir);
	ssize_t n = readlink(link.s, target, sizeof(target));
	return n < 0 || file_exists(link.s)
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: %.*s is missing; put it back, or --resume another "
				 "checkpoint%s",
				 link.s, (int)n, target, advice_on(ADVICE_NO_CHECKPOINT));
}

/* Finds the checkpoint of --resume or --init-from, and reads its options. */
static int find_base(
	const struct train_opts *o, struct str *path, struct job_base *b, struct err *e)
{
	bool search = o->resume && !strcmp(o->resume, "auto");
	if (search) {
		scoped_str dir = {0};
		str_printf(&dir, "%s/checkpoints", o->out);
		char *newest = ckpt_find_newest(
			dir.s, check_usable, run_dir_has_just_begun, (void *)o, e);
		str_puts(path, newest ? newest : "");
		if (!newest && !e->code)
			check_latest_link(dir.s, e);
		free(newest);
	} else if (o->resume) {
		str_puts(path, o->resume);
	}
	if (e->code)
		return -1;
	if (path->len)
		return read_checkpoint_options(o, path->s, b, e);
	return o->init_from ? read_checkpoint_options(o, o->init_from, b, e) : 0;
}

/* Returns the step of the newest checkpoint in the run directory; -1: none. */
static int64_t newest_step(const struct train_opts *o)
{
	int64_t *steps;
	scoped_ptr char *dir = text_printf("%s/checkpoints", o->out);
	int64_t n = ckpt_list(dir, &steps, &(struct err){0});
	int64_t newest = n > 0 ? steps[n - 1] : -1;
	free(steps);
	return newest;
}

/* Finds the base like find_base(), but prefers the state in the vault unless a checkpoint is
 * newer. Sets *uses_vault. */
static int find_base_or_vault(const struct train_opts *o, struct str *path,
	struct job_base *b, int64_t *uses_vault, struct err *e)
{
	const struct ckpt *c = b->vault ? vault_found_ckpt(b->vault) : NULL;
	struct err failed = {0};
	*uses_vault = c != NULL;
	if (!c)
		return find_base(o, path, b, e);
	if (newest_step(o) > c->info.step && !find_base(o, path, b, &failed) &&
		path->len) {
		const char *name = strrchr(path->s, '/');
		*uses_vault = ckpt_parse_step(name + 1) <= c->info.step;
	}
	if (!*uses_vault)
		return 0;
	/* The name that a checkpoint of this step would have: the run keeps other files near
	 * it, such as the algorithms of GEMMs. */
	scoped_ptr char *dir = text_printf("%s/checkpoints", o->out);
	ckpt_set_path(path, dir, c->info.step);
	str_clear(&b->options);
	return take_options(o, c, c->path, true, b, e);
}

int job_find_base(
	const struct train_opts *o, struct comm *world, struct job_base *b, struct err *e)
{
	scoped_str path = {0};
	int64_t uses_vault = 0;
	*b = (struct job_base){.open_model = b->open_model};
	if (o->resume && !strcmp(o->resume, "auto") && !o->out)
		err_set(e, EX_USAGE, "--resume auto needs --out");
	if (comm_agree(world, e))
		return -1;
	/* Lock before reading: a run in that directory would remove and add files. */
	int lock = -1;
	if (world->rank == 0 && o->resume && o->out && !o->eval_only && !o->dry_run &&
		o->print_ranks < 0)
		journal_lock(o->out, false, PATIENCE_SECS, &lock, e);
	b->lock = lock + 1;
	if (comm_agree(world, e))
		return -1;
	if (o->print_ranks < 0)
		run_vault_find(o, world, b);
	if (world->rank == 0)
		find_base_or_vault(o, &path, b, &uses_vault, e);
	if (comm_agree(world, e))
		return -1;
	comm_bcast_str(world, &path, 0);
	comm_bcast_str(world, &b->options, 0);
	comm_bcast(world, &b->workers, sizeof(b->workers), 0);
	comm_bcast(world, &uses_vault, sizeof(uses_vault), 0);
	if (!uses_vault) {
		vault_found_free(b->vault);
		b->vault = NULL;
	}
	b->resume = path.len ? xstrdup(path.s) : NULL;
	b->start_over = o->resume && !path.len;
	return 0;
}

/* Warns if the disk has no space for a checkpoint. */
static void warn_of_full_disk(const struct run *r)
{
	struct err e = {0};
	if (r->world->rank || !r->t.o.ckpt || !run_writes_ckpt(r) || !r->dir.ckpt_path)
		return;
	scoped_str path = {0};
	ckpt_set_path(&path, r->dir.ckpt_path, r->t.o.steps);
	if (file_check_space(path.s, state_file_bytes(&r->t), &e))
		warn("%s", e.msg);
}

/* Returns true if the run directory has a checkpoint of this step. Collective. */
static bool is_saved(struct run *r, int64_t step)
{
	int64_t saved = 0;
	if (run_is_first(r) && r->dir.ckpt_path && step >= 0) {
		scoped_str path = {0};
		ckpt_set_path(&path, r->dir.ckpt_path, step);
		saved = file_exists(path.s);
	}
	return comm_max_i64(r->world, saved);
}

/* Loads this worker's checkpoint; additional workers share checkpoints. Collective. */
static int load_checkpoint(
	struct run *r, const struct train_opts *o, const char *from, struct err *e)
{
	scoped_str path = {0};
	if (r->local.sync && !o->init_from) {
		char *first = ckpt_find_file(from);
		ckpt_worker_path(&path, first,
			o->resolved.worker % max64(1, o->resolved.from_workers));
		free(first);
	} else {
		str_puts(&path, from);
	}
	return state_load(&r->t, path.s, o->init_from != NULL, e);
}

/* Builds the trainer: opens the device, loads GEMM algorithms, runs the self-test, then
 * allocates all memory. If a worker has too little memory, all workers end. */
static int build_trainer(
	struct run *r, struct train_opts *o, const struct start_times *s, struct err *e)
{
	const char *from = o->init_from ? o->init_from : o->resume;
	struct trainer *t = &r->t;
	if (trainer_prepare(t, o, r->world, &r->data, e) || local_sgd_check_devices(r, e))
		return -1;
	t->start = *s;
	t->numbers = &local_sgd_numbers;
	t->checks = referee_checks;
	t->open_model = r->base->open_model;
	if (trainer_connect(t, r->all, r->local.sync, e)) {
		r->error_agreed = true;
		return -1;
	}
	start_times_add(&t->start, START_DEVICE);
	struct plan plan;
	struct trainer_sizes sizes;
	bool fits = !fit_trainer(t, &plan, &sizes, e);
	if (agree_on_start(r, e) || !fits)
		return -1;
	if (gemm_algorithms_load(&t->d, o, from, r->all, e) ||
		selftest_kernels(t, r->all, &r->self_test, e)) {
		r->error_agreed = true;
		return -1;
	}
	start_times_add(&t->start, START_SELF_TEST);
	bool built = !trainer_build(t, &sizes, e);
	r->max_bytes = plan_total(&plan);
	return agree_on_start(r, e) || !built ? -1 : 0;
}

/* Loads --init-from's parameters, or --resume's whole state; *resume: its step. Collective. */
static int load_base(
	struct run *r, const struct train_opts *o, int64_t *resume, struct err *e)
{
	const char *from = o->init_from ? o->init_from : o->resume;
	if (o->eval_only && !from)
		return err_set(e, EX_USAGE,
			r->base->start_over
				? "--eval-only: --resume auto has found no checkpoint"
				: "--eval-only needs --resume or --init-from");
	if (!from)
		return 0;
	if (r->base->vault ? run_vault_load(r, e) : load_checkpoint(r, o, from, e))
		return -1;
	if (o->init_from) {
		info("weights from %s", from);
		return 0;
	}
	*resume = r->t.step;
	if (!r->base->vault)
		info("resuming from %s (step %lld)", from, (long long)r->t.step);
	return 0;
}

/* Opens the run directory and its journal, as the last part of a start, since --overwrite removes
 * checkpoints, perhaps the one that was read. Collective. */
static int open_dir(struct run *r, const struct train_opts *o, const char *command,
	int64_t resume, struct err *e)
{
	struct saver *v = &r->saver;
	if (!o->eval_only && (run_dir_open(r, o, e) || run_dir_check(r, o, e)))
		return -1;
	if (!o->eval_only && agree_on_start(r, e))
		return -1;
	if (o->overwrite && !o->eval_only)
		run_dir_clear(r, o);
	v->saved_step = v->have = is_saved(r, resume) ? resume : -1;
	if (!run_writes_ckpt(r))
		v->have = INT64_MAX;
	if ((resume >= 0 && local_sgd_settle(r, e)) ||
		begin_journal(r, o, command, resume, e))
		return -1;
	v->all_have = r->local.sync && r->local.sync->size > 1 ? v->have : INT64_MAX;
	return 0;
}

/* Reports the vault, the ranks, --resume-reason, and how long the run was interrupted. */
static void report_restart(struct run *r)
{
	const struct journal *j = &r->report.journal;
	const struct vault_found *v = r->base->vault;
	const char *reason = r->t.o.resume_reason;
	scoped_str text = {0}, why = {0};
	if ((!reason && !v) || r->t.o.eval_only)
		return;
	str_puts(&why, reason ? reason : "");
	if (v)
		vault_describe_damage(v, &why);
	str_puts(&text, "resuming");
	if (v)
		str_printf(&text, " from the vault at step %lld", (long long)r->t.step);
	str_printf(&text, " with %d rank%s", r->world->size, plural(r->world->size));
	if (j->previous_ranks && j->previous_ranks != r->world->size)
		str_printf(&text, " instead of %lld", (long long)j->previous_ranks);
	if (why.len)
		str_printf(&text, " (%s)", why.s);
	if (j->previous_ranks)
		str_printf(&text, "; %.1f s since the last row",
			clock_wall() - j->previous_end);
	if (r->all->rank == 0)
		info("%s", text.s);
	report_event(r, "%s", text.s);
}

/* Reports what has changed since the checkpoint: workers, data, arithmetic. */
static void report_resume(struct run *r)
{
	const struct str *changes = &r->t.changes;
	if (has_no_step_left(r))
		return;
	report_restart(r);
	local_sgd_report_resume(r);
	if (r->t.other_data && !r->t.o.eval_only) {
		if (r->all->rank == 0)
			warn("the checkpoint was trained on other data; --resume-exact rejects "
			     "this");
		report_event(r, "the data differ from the checkpoint's");
	}
	if (!changes->len || r->t.o.eval_only || r->t.step >= r->t.o.steps)
		return;
	if (r->all->rank == 0)
		warn("the arithmetic changes from step %lld on (%s): the run is no longer bitwise equal "
		     "to an uninterrupted one; --resume-exact rejects this",
			(long long)r->t.step + 1, changes->s);
	report_event(r, "the arithmetic changes: %s", changes->s);
}

/* Opens all parts of a run in order, and loads its state. Collective over all. */
static int start_run(
	struct run *r, struct train_opts *o, const char *command, struct err *e)
{
	int64_t resume = -1;
	struct start_times s = {.began = r->began, .last = r->began};
	start_times_add(&s, START_PROGRAM);
	if (faults_open(&r->faults, o, r->world->size, e) ||
		run_kill_open(o, r->world, e))
		return -1;
	backend_count_sharers(o, r->all);
	if (dataset_open(&r->data, o, r->world, e))
		return -1;
	start_times_add(&s, START_DATA);
	if (build_trainer(r, o, &s, e))
		return -1;
	local_sgd_build(r);
	start_times_add(&r->t.start, START_MEMORY);
	r->max_bytes = comm_max_i64(r->world, r->max_bytes);
	if (o->profile && options_parse_steps(o, "profile", o->profile,
				  &r->t.profile.first, &r->t.profile.last, e))
		return -1;
	if (trace_open(r, o, e) || hashes_open(r, o, e))
		return -1;
	r->report.peak_flops = peak_flops(o, &r->t.d);
	if (load_base(r, o, &resume, e) || local_sgd_read_replay(r, e))
		return -1;
	if (run_vault_open(r, e))
		return -1;
	if (open_dir(r, o, command, resume, e) || run_vault_write_number(r, e)) {
		run_vault_close(r, VAULT_WITHDRAWN);
		run_dir_undo(r);
		return -1;
	}
	if (!o->eval_only)
		run_dir_open_record(r);
	if (r->self_test.len)
		report_event(r, "%s", r->self_test.s);
	if (resume >= 0)
		report_resume(r);
	local_sgd_start(r);
	warn_of_full_disk(r);
	start_times_add(&r->t.start, START_FILES);
	return 0;
}

/* Returns the number of ranks that --dry-run plans; fewer may be started. An axis of degree -1
 * takes the rest of the started ranks if possible, else 1. */
static int planned_ranks(const struct train_opts *o, int started, struct err *e)
{
	bool takes_rest;
	int ranks = layout_min_ranks(o, &takes_rest, e);
	return ranks > 0 && takes_rest && started % ranks == 0 ? started : ranks;
}

/* Prints how many of --print-ranks the run can use. */
static int print_ranks(const struct train_opts *o, struct comm *world, struct err *e)
{
	int64_t n = layout_count_ranks(o, e);
	if (n >= 0 && world->rank == 0)
		printf("%lld\n", (long long)n);
	return n < 0 ? -1 : 0;
}

/* Chooses the device of a plan; --dry-run --device cuda does not need a GPU. */
static int plan_device(struct train_opts *o, struct err *e)
{
	struct device d;
	enum device_kind kind;
	if (backend_choose(o, &kind, e))
		return -1;
	if (kind == DEVICE_AUTO && backend_open(o, &d, e))
		return -1;
	if (kind == DEVICE_AUTO)
		device_close(&d);
	else
		o->device = (int)kind;
	return 0;
}

/* Sets --device auto to the devices of --cluster. */
static int set_cluster_device(struct train_opts *o, struct err *e)
{
	struct cluster c;
	if (!o->cluster)
		return 0;
	if (cluster_parse(o->cluster, &c, e))
		return -1;
	bool gpus = *c.model;
	if (o->device == DEVICE_AUTO)
		o->device = gpus ? DEVICE_CUDA : DEVICE_CPU;
	if ((o->device == DEVICE_CUDA) != gpus)
		return err_set(e, EX_USAGE,
			"--cluster: its devices are %s; give --device %s",
			gpus ? "GPUs" : "CPUs", gpus ? "cuda" : "cpu");
	return 0;
}

/* Prints the plan of --dry-run on rank 0, for a layout that may have other ranks. */
static int dry_run(const struct train_opts *given, struct comm *world, struct err *e)
{
	struct train_opts o = *given;
	struct dataset data = {0};
	struct model m;
	struct order order;
	scoped_str out = {0}, tree = {0};
	struct faults faults = {0};
	int workers = (int)max64(1, o.edit.workers);
	int ranks = planned_ranks(&o, (int)max64(1, world->size / workers), e);
	int rc = ranks < 0 || layout_resolve(&o, ranks, e);
	/* All started ranks read the same data, whatever the planned layout. */
	struct train_opts read = o;
	read.edit.workers = 0;
	for (int a = 0; a < N_AXES; a++)
		read.axis[a] = a == AXIS_DP ? -1 : 1;
	rc = rc || (o.data.n && dataset_open(&data, &read, world, e)) ||
	     options_model_init(&o, &m, data.tokenizer.vocab.n, e) ||
	     layout_check(&o, &m, e) || faults_open(&faults, &o, ranks, e) ||
	     set_cluster_device(&o, e) || plan_device(&o, e) ||
	     (o.data.n && dataset_order(&data, &o, &m, &order, e));
	if (!rc && world->rank == 0) {
		options_note_idle(&o, &m, ranks * workers);
		layout_warn(&o);
		model_print(&m, o.verbose, &tree);
		rc = plan_print(&o, &m, &out, e);
		printf("# tensors\n%s%s", tree.s, out.s);
	}
	faults_close(&faults);
	return rc ? -1 : 0;
}

int agree_on_start(struct run *r, struct err *e)
{
	if (!r->local.sync)
		return 0;
	r->error_agreed = comm_agree(r->all, e);
	return r->error_agreed ? -1 : 0;
}

static void close_run(struct run *r)
{
	local_sgd_close(r);
	hashes_close(r);
	faults_close(&r->faults);
	trainer_close(&r->t);
	comm_flight_close();
	dataset_close(&r->data);
	journal_close(&r->report.journal);
	log_files_close(&r->logs);
	if (r->dir.lock >= 0)
		close(r->dir.lock);
	str_free(&r->self_test);
	free(r->dir.path);
	free(r->dir.ckpt_path);
}

void run_watchdog_files(const struct run *r, bool begins)
{
	const double seconds = r->watchdog;
	bool is_longer = begins && seconds > 0 && seconds < COMM_WATCHDOG;
	comm_watchdog(r->all, is_longer ? COMM_WATCHDOG : seconds);
}

int job_run(struct train_opts *o, const struct job_base *base, struct comm *world,
	const char *command, double began)
{
	struct run r = {.began = began,
		.base = base,
		.all = world,
		.world = world,
		.watchdog = o->watchdog,
		.now = {.agreed = true},
		.report = {.journal = {.fd = -1}},
		.saver = {.saved_step = -1, .tried_step = -1, .eval_step = -1},
		.dir = {.lock = -1}};
	struct err e = {0};
	int rc;
	run_watchdog_files(&r, true);
	if (o->print_ranks >= 0)
		rc = print_ranks(o, world, &e);
	else if (o->dry_run)
		rc = dry_run(o, world, &e);
	else if (local_sgd_open(&r, o, &e) || layout_resolve(o, r.world->size, &e))
		rc = -1;
	else
		rc = start_run(&r, o, command, &e);
	run_watchdog_files(&r, false);
	/* A failure of one worker ends all workers. */
	if (!r.error_agreed && agree_on_start(&r, &e))
		rc = -1;
	if (rc) {
		/* All ranks have the same error: rank 0 prints it, and all return. */
		opts_add_origins(&train_program, o, &e);
		if (world->rank == 0)
			err_print(&e);
		return e.code;
	}
	if (o->dry_run || o->print_ranks >= 0) {
		stdout_close();
		return 0;
	}
	rc = loop_run(&r);
	if (o->eval_only)
		stdout_close(); /* the result is not in a journal */
	close_run(&r);
	return rc;
}

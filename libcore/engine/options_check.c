/* Checks that the option table of pt-train cannot express: values that depend on each other. */
#include "engine/layout.h"
#include "engine/options.h"

int options_reject(const struct mistake *list, size_t n, struct err *e)
{
	for (size_t i = 0; i < n; i++)
		if (list[i].made)
			return err_set(e, EX_USAGE, "%s", list[i].message);
	return 0;
}

/* Fails if options of local SGD contradict each other, beyond the column `needs`. */
static int check_edit(const struct train_opts *o, struct err *e)
{
	const struct edit_opts *x = &o->edit;
	const struct edit_config *c = &x->config;
	const struct mistake mistakes[] = {
		{c->fragments > c->interval,
			"--edit-fragments needs an --edit-sync-interval of at least as many steps"},
		{c->delay > 0 && c->delay >= c->interval,
			"--edit-sync-delay needs a longer --edit-sync-interval"},
		{x->async && c->interval > 1,
			"--edit-sync-interval counts steps, but --edit-use-async synchronizes by "
			"the clock; give --edit-sync-time SECONDS"},
		{x->async && edit_streams(c),
			"--edit-use-async and streaming (--edit-fragments, --edit-sync-delay) are "
			"mutually exclusive"},
		{c->nesterov && c->dampening > 0,
			"--edit-outer-nesterov and --edit-outer-dampening are mutually exclusive"},
		{x->async && x->global_loss,
			"--edit-global-loss and --edit-use-async are mutually exclusive: workers "
			"that synchronize by the clock are at different steps"},
	};
	if (!x->workers)
		return 0;
	if (options_reject(mistakes, ARRAY_LEN(mistakes), e))
		return -1;
	if (o->batch % x->workers)
		return err_set(e, EX_USAGE,
			"--batch %lld is not divisible by --edit-workers %lld",
			(long long)o->batch, (long long)x->workers);
	for (int64_t i = 0; i < o->data.n && x->workers > 1; i++)
		if (corpus_is_stream(o->data.v[i]))
			return err_set(e, EX_USAGE,
				"%s can be read only once, but every worker reads the data",
				o->data.v[i]);
	return 0;
}

/* Drops the options of local SGD if a run with local SGD is resumed without it. */
static void drop_local_sgd(struct train_opts *o)
{
	if (!o->resolved.from_workers || o->edit.workers)
		return;
	opts_reset(&train_program, o, "edit-");
	opts_reset(&train_program, o, "ckpt-syncs");
}

/* Fails unless --peak-flops is unset, "measure" or a positive number. */
static int check_peak(const struct train_opts *o, struct err *e)
{
	double peak;
	bool measure = !o->peak_flops || !strcmp(o->peak_flops, "measure");
	if (measure || (!parse_double(o->peak_flops, &peak) && peak > 0))
		return 0;
	return err_set(e, EX_USAGE, "--peak-flops: '%s' is neither a number nor measure",
		o->peak_flops);
}

/* Fails if two options exclude each other, or if a value makes no sense with another. */
static int check_pairs(const struct train_opts *o, struct err *e)
{
	const struct mistake mistakes[] = {
		{o->resume && o->init_from,
			"--resume and --init-from are mutually exclusive"},
		{o->resume && o->overwrite,
			"--resume and --overwrite are mutually exclusive"},
		{o->batch_per_rank && !o->resume &&
				opts_given(&train_program, o, "batch"),
			"--batch and --batch-per-rank are mutually exclusive"},
		{o->data_per_rank && o->readers,
			"--data-per-rank and --readers are mutually exclusive"},
		{offloads_params((enum offload)o->offload) && o->reshard == RESHARD_NO,
			"--offload params (or all) and --reshard-after-forward no are mutually "
			"exclusive: one frees parameters after use, the other keeps them"},
		{o->offload_to && !strcmp(o->offload_to, "host"),
			"--offload-to: 'host' is the memory that a CPU uses already; give a "
			"directory (./host for a directory of that name)"},
		{o->hash_tensors && o->edit.workers,
			"--hash-tensors and --edit-workers are mutually exclusive"},
		{o->vault && o->edit.workers,
			"--vault and --edit-workers are mutually exclusive"},
		{o->check_memory && o->edit.workers,
			"--check-memory and --edit-workers are mutually exclusive: "
			"synchronizations change the state between updates"},
		{o->nesterov == NESTEROV_YES && o->momentum == 0,
			"--nesterov needs --momentum"},
		{o->referee > 0 && o->edit.workers,
			"--referee and --edit-workers are mutually exclusive"},
		{o->referee > 0 && o->data_per_rank,
			"--referee and --data-per-rank are mutually exclusive: no other rank reads "
			"the files of a rank"},
		{o->referee > 0 && o->hash_tensors,
			"--referee and --hash-tensors are mutually exclusive"},
		{o->referee > 0 && o->numerics == NUMERICS_FAST,
			"--referee and --numerics fast are mutually exclusive: two ranks need not "
			"compute equal bits"},
		{o->referee > 0 && o->corrupt_batch,
			"--referee and --corrupt-batch are mutually exclusive"},
		{o->watchdog > 0 && o->watchdog < 1,
			"--watchdog: less than a second is too short; give 1 or more, or 0 to turn "
			"it off"},
	};
	return options_reject(mistakes, ARRAY_LEN(mistakes), e);
}

/* Returns the default: 8 or more micro-batches, so that up to 8 ranks give equal bits. */
static int64_t default_micro_batch(int64_t batch)
{
	int64_t n = max64(1, batch / 8);
	while (batch % n)
		n--;
	return n;
}

/* Raises the default of --edit-ewma-warmup to the learning rate's warmup, in which norms rise. A
 * resumed run keeps the value that it was started with. */
static void cover_warmup(struct train_opts *o)
{
	enum { MAX = 10000 }; /* maximum of the option */
	struct edit_opts *x = &o->edit;
	int64_t *n = &x->config.detect.warmup, steps = x->config.interval;
	if (!x->workers || !x->config.skip_anomaly || o->resume ||
		opts_given(&train_program, o, "edit-ewma-warmup"))
		return;
	if (x->async) /* a lower bound for the steps of the fastest worker */
		steps = max64(1, x->min_total / x->workers);
	*n = min64(MAX, max64(*n, ceil_div(o->warmup - x->warmup, steps)));
}

int options_check(struct train_opts *o, struct err *e)
{
	drop_local_sgd(o);
	layout_set_batch(o, 1);
	if (opts_check_needs(&train_program, o, e) || check_edit(o, e) ||
		check_pairs(o, e) || check_peak(o, e))
		return -1;
	int64_t batch = layout_worker_batch(o);
	if (!o->micro_batch)
		o->micro_batch = o->batch_per_rank ? batch : default_micro_batch(batch);
	if (batch % o->micro_batch)
		return err_set(e, EX_USAGE,
			"--batch %lld%s is not divisible by --micro-batch %lld; give another "
			"--micro-batch",
			(long long)batch, o->edit.workers > 1 ? " per worker" : "",
			(long long)o->micro_batch);
	cover_warmup(o);
	if (o->lr_schedule == LR_WSD && !o->wsd_decay)
		o->wsd_decay = max64(1, (o->decay_steps ? o->decay_steps : o->steps) / 5);
	if (o->lr_schedule != LR_CONSTANT && o->min_lr > o->lr)
		return err_set(
			e, EX_USAGE, "--min-lr %g is above --lr %g", o->min_lr, o->lr);
	if (o->hash_steps && options_parse_steps(o, "hash-steps", o->hash_steps,
				     &(int64_t){0}, &(int64_t){0}, e))
		return -1;
	if (o->trace_steps)
		return options_parse_steps(o, "trace-steps", o->trace_steps,
			&(int64_t){0}, &(int64_t){0}, e);
	return 0;
}

bool options_offload(const struct train_opts *o)
{
	return o->offload != OFFLOAD_NONE || (o->edit.workers && o->edit.offload);
}

enum dtype options_gemm_dtype(const struct train_opts *o)
{
	static const enum dtype types[] = {[PRECISION_FP32] = DT_F32,
		[PRECISION_BF16] = DT_BF16,
		[PRECISION_FP16] = DT_F16,
		[PRECISION_FLOAT8] = DT_BF16};
	return types[o->dtype];
}

void options_set_optim(const struct train_opts *o, struct optim_config *c)
{
	bool muon = o->optimizer == OPTIMIZER_MUON;
	*c = (struct optim_config){.kind = o->optimizer,
		.beta1 = o->beta1,
		.beta2 = o->beta2,
		.eps = o->eps,
		.decay = o->weight_decay,
		.momentum = o->momentum >= 0 ? o->momentum
			    : muon	     ? 0.95
					     : 0.9,
		.nesterov = o->nesterov == NESTEROV_BY_OPTIMIZER
				    ? muon
				    : o->nesterov == NESTEROV_YES,
		.muon_original = o->muon_scale == MUON_ORIGINAL,
		.matmul = o->dtype == PRECISION_FP32 ? DT_F32 : DT_BF16};
}

int options_parse_steps(const struct train_opts *o, const char *option, const char *text,
	int64_t *first, int64_t *last, struct err *e)
{
	char *end;
	*first = strtoll(text, &end, 10);
	*last = *end == ':' ? strtoll(end + 1, &end, 10) : *first;
	if (*end || *first < 1 || *last < *first)
		return err_set(e, EX_USAGE,
			"--%s '%s': give the first step and the last, as in 10:12",
			option, text);
	if (*first > o->steps)
		return err_set(e, EX_USAGE, "--%s '%s': the run has only %lld steps",
			option, text, (long long)o->steps);
	return 0;
}

/* Opening and closing what a run holds. */
#include "train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- data ------------------------------------------------------------------------ */

/* The files of this rank. */
static struct strs own_files(const struct train_opts *o, const struct comm *dp)
{
	struct strs mine = {0};
	for (int64_t i = 0; i < o->data.n; i++)
		if (!o->data_per_rank || i % dp->size == dp->rank)
			strs_add(&mine, o->data.v[i]);
	return mine;
}

static int open_here(struct data_set *d, const struct train_opts *o,
	const struct comm *dp, struct err *e)
{
	if (loader_reader(dp->rank, dp->size, d->readers) != dp->rank)
		return 0;
	struct strs files = own_files(o, dp);
	int rc = 0;
	if (!files.n && o->data_per_rank && o->data.n)
		rc = err_set(e, EX_USAGE, "data-per-rank: %lld files for %d ranks",
			(long long)o->data.n, dp->size);
	rc = rc || corpus_open(&d->corpus, &files, o->data_per_rank, e);
	strs_free(&files);
	return rc;
}

/* Rank 0 tells those that do not read what they need to know. */
static int share_data(struct data_set *d, bool own, struct comm *dp, struct err *e)
{
	struct str packed = {0};
	if (d->corpus) {
		tokenizer_pack(corpus_tokenizer(d->corpus), &packed);
		for (int s = 0; s < N_SPLITS; s++)
			d->tokens[s] = corpus_tokens(d->corpus, (enum split)s);
		d->hash = corpus_hash(d->corpus);
	}
	uint64_t vocab = hash_bytes(packed.s, packed.len, 0);
	struct {
		int64_t tokens[N_SPLITS];
		uint64_t hash, vocab;
	} first = {{d->tokens[0], d->tokens[1]}, d->hash, vocab};
	comm_bcast(dp, &first, sizeof(first), 0);
	if (d->corpus && first.vocab != vocab)
		err_set(e, EX_DATAERR,
			"the data of this rank have another vocabulary than rank 0's");
	else if (d->corpus && !own && first.hash != d->hash)
		err_set(e, EX_DATAERR,
			"the data of this rank are others than rank 0's "
			"(--data-per-rank means that)");
	if (comm_agree(dp, e))
		return -1;
	comm_bcast_str(dp, &packed, 0);
	if (!d->corpus) {
		memcpy(d->tokens, first.tokens, sizeof(d->tokens));
		d->hash = first.hash;
	}
	int rc = tokenizer_unpack(&d->tokenizer, &packed, e);
	str_free(&packed);
	return rc;
}

int data_open(
	struct data_set *d, const struct train_opts *o, struct comm *dp, struct err *e)
{
	bool stream = false;
	for (int64_t i = 0; i < o->data.n; i++)
		stream |= corpus_is_stream(o->data.v[i]);
	/* A stream can be read once: rank 0 reads it for all (only it has standard input). */
	comm_bcast(dp, &stream, sizeof(stream), 0);
	int64_t readers = stream ? 1 : o->readers ? o->readers : dp->size;
	*d = (struct data_set){.readers = (int)min64(readers, dp->size)};
	comm_watch_hold(stream);
	open_here(d, o, dp, e);
	int rc = comm_agree(dp, e);
	comm_watch_hold(false);
	if (rc || share_data(d, o->data_per_rank, dp, e)) {
		data_close(d);
		return -1;
	}
	return 0;
}

void data_close(struct data_set *d)
{
	corpus_close(d->corpus);
	tokenizer_free(&d->tokenizer);
	*d = (struct data_set){0};
}

/* ---- the trainer ----------------------------------------------------------------- */

int train_check_ranks(
	const struct train_opts *o, const struct model *m, int ranks, struct err *e)
{
	int64_t n = trainer_micro_batches(o);
	if (ranks > n)
		return err_set(e, EX_USAGE,
			"%d ranks, but a step has only %lld micro-batch%s (batch %lld, "
			"micro-batch %lld): give a smaller --micro-batch, or fewer ranks",
			ranks, (long long)n, n == 1 ? "" : "es", (long long)o->batch,
			(long long)o->micro_batch);
	/* What a plan counts must be countable. */
	double rows = (double)o->micro_batch * (double)m->c.context;
	double width = (double)(m->c.dim + m->c.ffn_dim + m->padded_vocab);
	if (rows * width * (double)m->c.layers > 1e16 ||
		(double)o->batch * (double)m->c.context > 1e16)
		return err_set(e, EX_USAGE,
			"a step of %lld sequences is more than any machine can do",
			(long long)o->batch);
	return 0;
}

/* What is planned is touched in the first step: better to refuse than to be killed then. */
static int check_memory(const struct plan *p, struct err *e)
{
	struct comm_place place;
	char need[NUM_TEXT], has[NUM_TEXT];
	comm_place(&place);
	double bytes = (double)plan_total(p) * place.local_size;
	int64_t available = memory_available();
	if (!available || bytes < (double)available)
		return 0;
	return err_set(e, EX_FAILED,
		"out of memory: %d rank%s on %s need%s %s, and %s are free; --dry-run "
		"shows "
		"the plan",
		place.local_size, place.local_size == 1 ? "" : "s", place.host,
		place.local_size == 1 ? "s" : "", text_bytes(need, bytes),
		text_bytes(has, (double)available));
}

/* A recipe that leaves nothing to it is a mistake. */
static int check_precision(
	const struct train_opts *o, const struct model *m, struct err *e)
{
	if (o->dtype != PRECISION_FLOAT8 || !o->float8_skip_ends || m->c.layers > 2)
		return 0;
	return err_set(e, EX_USAGE,
		"float8 leaves the first and the last block in bf16, and %lld layer%s no "
		"others: --no-float8-skip-ends",
		(long long)m->c.layers, m->c.layers == 1 ? " has" : "s have");
}

static int open_order(struct trainer *t, struct err *e)
{
	const struct model *m = &t->model;
	int64_t tokens = t->data->tokens[SPLIT_TRAIN];
	if (order_init(&t->order, (enum sampling)t->o.sampling, (uint64_t)t->o.seed,
		    tokens, m->c.context, 0))
		return err_set(e, EX_DATAERR,
			"%lld training tokens, but one sample needs %lld (--context and "
			"one more)",
			(long long)tokens, (long long)m->c.context + 1);
	return 0;
}

static void tick(void *with)
{
	(void)with;
	comm_poll();
}

static void open_compute(struct trainer *t)
{
	struct model *m = &t->model;
	arena_init(&t->run, "parameters and their state", (size_t)t->plan.run_bytes);
	arena_init(&t->micro, "activations", (size_t)t->plan.micro_bytes);
	arena_init(&t->scratch, "scratch", (size_t)t->plan.scratch_bytes);
	device_cpu(&t->d, (int)t->o.threads);
	t->d.scratch = &t->scratch;
	struct store_config c = {.dp = t->dp,
		.device = &t->d,
		.tensors = m->tensors,
		.n_tensors = m->n_tensors,
		.n_units = m->n_units,
		.n_floats = m->n_floats,
		.chunks = m->cp,
		.n_micro = trainer_micro_batches(&t->o),
		.bucket_bytes = t->o.bucket_bytes};
	t->store = store_replicated(&c, &t->run);
	pass_init(&t->pass, m, &t->d, t->store, t->o.micro_batch, (uint64_t)t->o.seed,
		&t->run);
	t->pass.plain_kernels = t->o.kernels == KERNELS_REF;
	pass_precision(
		&t->pass, (enum precision)t->o.dtype, t->o.float8_skip_ends, &t->run);
	t->pass.tick = tick;
	acts_alloc(&t->pass, &t->acts, &t->micro);
	init_parts(t->store, (uint64_t)t->o.seed);
	const int64_t *deal = t->store->deal;
	t->n_actions =
		schedule_make(deal[t->dp->rank], deal[t->dp->rank + 1], &t->schedule);
	t->sample_deal = xcalloc((size_t)t->dp->size + 1, sizeof(*t->sample_deal));
	for (int r = 0; r <= t->dp->size; r++)
		t->sample_deal[r] = deal[r] * t->o.micro_batch;
}

int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *dp,
	struct data_set *data, struct err *e)
{
	*t = (struct trainer){.o = *o,
		.dp = dp,
		.data = data,
		.loss = (double)NAN,
		.val_loss = (double)NAN,
		.best_val_loss = (double)NAN,
		.loss_scale = o->dtype == PRECISION_FP16 ? (float)o->loss_scale : 1};
	if (!model_init(&t->model, &o->model, data->tokenizer.vocab.n, e) &&
		!check_precision(o, &t->model, e) &&
		!train_check_ranks(o, &t->model, dp->size, e) && !open_order(t, e)) {
		plan_make(o, &t->model, dp->rank, dp->size, &t->plan);
		if (!o->eval_only) /* which touches little of it */
			check_memory(&t->plan, e);
	}
	if (comm_agree(dp, e)) {
		model_free(&t->model);
		return -1;
	}
	open_compute(t);
	struct loader_config c = {.comm = dp,
		.corpus = data->corpus,
		.readers = data->readers,
		.context = t->model.c.context};
	t->loader = loader_open(&c);
	return 0;
}

void trainer_close(struct trainer *t)
{
	if (t->next) {
		loader_end(t->loader, t->next);
		fetch_free(t->next);
	}
	loader_close(t->loader);
	store_free(t->store);
	arena_release(&t->run);
	arena_release(&t->micro);
	arena_release(&t->scratch);
	free(t->acts.block);
	free(t->pass.tp.axis);
	free(t->schedule);
	free(t->sample_deal);
	model_free(&t->model);
	*t = (struct trainer){0};
}

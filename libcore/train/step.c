/* One optimizer step. */
#include "train/train.h"

#include <math.h>
#include <stdlib.h>

static int64_t window_size(const struct trainer *t)
{
	return t->model.c.context + 1;
}

static struct fetch *fetch_step(struct trainer *t, int64_t first_sample)
{
	const int64_t *deal = t->sample_deal + t->dp->rank;
	/* Files of one's own have an order of their own, gone through without gaps. */
	if (t->o.data_per_rank)
		first_sample = first_sample / t->o.batch * (deal[1] - deal[0]) - deal[0];
	return loader_begin(
		t->loader, SPLIT_TRAIN, &t->order, first_sample, t->sample_deal);
}

static void load_micro(struct trainer *t, const int32_t *windows, int64_t micro)
{
	int64_t mine = micro - t->store->deal[t->dp->rank];
	pass_load(&t->pass, windows + mine * t->o.micro_batch * window_size(t));
	t->pass.train = true;
	t->pass.counted = t->o.micro_batch;
	t->pass.step = t->step + 1;
	t->pass.first_sample = micro * t->o.micro_batch;
	t->pass.loss_scale = t->loss_scale / (float)(t->o.batch * t->model.c.context);
}

static void run_schedule(struct trainer *t, const int32_t *windows, struct step_result *r)
{
	t->pass.loss = (struct exact){0};
	t->pass.head_backward = 0;
	for (int64_t i = 0; i < t->n_actions; i++) {
		const struct action *a = &t->schedule[i];
		double begin = clock_seconds();
		if (a->kind == ACTION_FORWARD) {
			load_micro(t, windows, a->micro);
			model_forward(&t->pass, &t->acts);
			r->forward += clock_seconds() - begin;
		} else {
			bool last = a->micro + 1 == t->store->deal[t->dp->rank + 1];
			model_backward(&t->pass, &t->acts, last);
			r->backward += clock_seconds() - begin;
		}
	}
	r->forward -= t->pass.head_backward;
	r->backward += t->pass.head_backward;
}

/* The loss of the whole batch, and the votes, in one all-reduce of integers. */
static void agree_on(struct trainer *t, bool save, struct step_result *r)
{
	struct {
		struct exact loss;
		int64_t stop, save;
	} all = {t->pass.loss, t->stop && *t->stop, save};
	comm_sum_i64(t->dp, (int64_t *)&all, EXACT_WORDS + 2);
	double tokens = (double)(t->o.batch * t->model.c.context);
	r->loss = (float)(exact_round(&all.loss) / tokens);
	r->stop = all.stop;
	r->save = all.save;
}

static void update(struct trainer *t, const struct step_result *r)
{
	int64_t step = t->step + 1 - t->skipped; /* of the optimizer */
	struct adamw a = {
		.lr = r->lr,
		.beta1 = (float)t->o.beta1,
		.beta2 = (float)t->o.beta2,
		.eps = (float)t->o.eps,
		.grad_scale = 1,
		.correct1 = (float)(1 - pow(t->o.beta1, (double)step)),
		.correct2 = (float)(1 - pow(t->o.beta2, (double)step)),
	};
	if (t->o.clip > 0 && (double)r->grad_norm > t->o.clip)
		a.grad_scale = (float)(t->o.clip / ((double)r->grad_norm + 1e-6));
	a.grad_scale /= t->loss_scale;
	for (int64_t i = 0; i < t->store->n_updated; i++) {
		const struct part *x = &t->store->updated[i];
		a.decay = x->t->decay ? (float)t->o.weight_decay : 0;
		t->d.k->adamw(&t->d, x->p, x->m, x->v, x->g, x->rows * x->t->cols, &a);
	}
}

/* ---- fp16: the scale of the loss -------------------------------------------------- */

/* Small gradients would be lost in fp16, so the loss is multiplied by a scale that follows
 * what they allow, as in PyTorch's GradScaler. Every rank sees the same norm of the whole
 * gradient, so all come to the same scale. */
static bool overflowed(const struct trainer *t, const struct step_result *r)
{
	const float least = 0x1p-16f; /* no scale helps a step that fails with this */
	return t->o.dtype == PRECISION_FP16 && isfinite(r->loss) &&
	       !isfinite(r->grad_norm) && t->loss_scale > least;
}

static void adjust_scale(struct trainer *t, bool overflow)
{
	const float most = 0x1p120f;
	int64_t window = t->o.loss_scale_window;
	if (t->o.dtype != PRECISION_FP16)
		return;
	if (overflow) {
		t->loss_scale /= 2;
		t->scale_good = 0;
		t->skipped++;
	} else if (++t->scale_good >= window && window) {
		t->loss_scale *= t->loss_scale < most ? 2 : 1;
		t->scale_good = 0;
	}
}

/* ---- when a number is none ------------------------------------------------------- */

/* Looks through the parameters, or through what this rank has of their gradients. */
static bool bad_tensor(struct trainer *t, bool gradients, struct probe *p)
{
	for (int64_t i = 0; i < t->store->n_updated && !p->found; i++) {
		const struct part *x = &t->store->updated[i];
		float *v = gradients ? x->g : x->p;
		int64_t at = t->d.k->find_bad(&t->d, mat(v, x->rows, x->t->cols));
		if (at < 0)
			continue;
		p->found = true;
		p->index = tensor_index(x->t, x->slice, x->row) + at;
		snprintf(p->where, sizeof(p->where), "%s %s",
			gradients ? "gradient of" : "parameter", x->t->name);
	}
	return p->found;
}

/* Does this rank's part of the step again, looking at every result. */
static void hunt(struct trainer *t, const int32_t *windows, struct str *why)
{
	struct probe p = {.found = false};
	const int64_t *deal = t->store->deal;
	if (bad_tensor(t, false, &p)) {
		str_printf(why, "rank %d, before any sample: first bad: %s, element %lld",
			t->dp->rank, p.where, (long long)p.index);
		return;
	}
	t->pass.probe = &p;
	int64_t m = deal[t->dp->rank];
	for (; m < deal[t->dp->rank + 1] && !p.found; m++) {
		load_micro(t, windows, m);
		model_forward(&t->pass, &t->acts);
		model_backward(&t->pass, &t->acts, false);
		bad_tensor(t, true, &p);
		store_drop(t->store);
	}
	t->pass.probe = NULL;
	if (!p.found)
		return;
	int64_t sample = t->samples + (m - 1) * t->o.micro_batch;
	str_printf(why, "rank %d, samples %lld to %lld: first bad: %s, element %lld",
		t->dp->rank, (long long)sample,
		(long long)(sample + t->o.micro_batch - 1), p.where, (long long)p.index);
}

/* The lowest rank that found something says what. */
static void explain(struct trainer *t, const int32_t *windows, struct step_result *r)
{
	struct str why = {0};
	hunt(t, windows, &why);
	int64_t first = comm_min_i64(t->dp, why.len ? t->dp->rank : t->dp->size);
	str_printf(&r->why, "step %lld: loss %g, grad_norm %g", (long long)t->step + 1,
		(double)r->loss, (double)r->grad_norm);
	if (first < t->dp->size) {
		comm_bcast_str(t->dp, &why, (int)first);
		str_printf(&r->why, "; %s", why.s);
	} else {
		str_puts(&r->why, "; every part of it is finite: the sum overflows");
	}
	str_free(&why);
}

void trainer_step_on(
	struct trainer *t, const int32_t *windows, bool save, struct step_result *r)
{
	*r = (struct step_result){
		.lr = (float)lr_at(&t->o, t->step + 1), .loss_scale = t->loss_scale};
	run_schedule(t, windows, r);
	store_step_end(t->store);
	agree_on(t, save, r);
	r->grad_norm = (float)(store_grad_norm(t->store) / (double)t->loss_scale);
	r->skipped = overflowed(t, r);
	r->bad = !r->skipped && (!isfinite(r->loss) || !isfinite(r->grad_norm));
	if (r->bad) {
		explain(t, windows, r);
		return;
	}
	if (!r->skipped)
		update(t, r);
	adjust_scale(t, r->skipped);
	t->step++;
	t->samples += t->o.batch;
	t->loss = (double)r->loss;
}

void trainer_step(struct trainer *t, bool save, struct step_result *r)
{
	double begin = clock_seconds();
	struct fetch *now = t->next ? t->next : fetch_step(t, t->samples);
	const int32_t *windows = loader_end(t->loader, now);
	bool more = t->step + 1 < t->o.steps;
	t->next = more ? fetch_step(t, t->samples + t->o.batch) : NULL;
	double waited = clock_seconds() - begin;
	trainer_step_on(t, windows, save, r);
	r->data = waited;
	fetch_free(now);
}

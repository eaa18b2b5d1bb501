/* Locates the first non-finite number of a step. */
#include "train/step.h"

struct search {
	struct device *d;
	struct probe *probe;
	bool gradients;
};

static void search_part(void *with, const struct part *x)
{
	struct search *s = with;
	struct probe *p = s->probe;
	float *v = s->gradients ? x->g : x->state[STORE_PARAM];
	int64_t at =
		p->found ? -1 : s->d->k->find_nonfinite(s->d, mat(v, x->rows, x->cols));
	if (at < 0)
		return;
	p->found = true;
	p->index = tensor_index(x->t, x->slice, x->row) + at;
	snprintf(p->where, sizeof(p->where), "%s %s",
		s->gradients ? "gradient of" : "parameter", x->t->name);
}

/* In the parameters of this rank, or in its gradients. */
static bool search_tensors(struct trainer *t, bool gradients, struct probe *p)
{
	struct search s = {&t->d, p, gradients};
	store_for_each_part(t->store, false, gradients ? 0 : STORE_BIT(STORE_PARAM), 0,
		search_part, &s);
	return p->found;
}

enum { NOWHERE = -1 };

struct finding {
	struct trainer *t;
	struct probe probe;
	int64_t at; /* position in the order in which such numbers spread */
	int64_t sample;
};

/* After an action. A number that is not finite spreads to the next stage, and in the backward to the
 * previous one: `at` rises in that order. */
static void note_action(void *with, const struct action *a)
{
	struct finding *w = with;
	int64_t stages = schedule_stages(&w->t->schedule);
	if (!w->probe.found || w->at != NOWHERE)
		return;
	w->at = 2 * stages * w->t->pass.micro.number +
		(a->kind == ACTION_FORWARD ? a->stage : 2 * stages - 1 - a->stage);
	w->sample = w->t->samples + w->t->pass.micro.first_sample;
}

/* Collective. Computes the step again, and checks every result. The rank with the first number that
 * is not finite describes it in *why. */
static bool locate_nonfinite(
	struct trainer *t, const struct pipe_input *in, struct str *why)
{
	struct comm *world = t->world;
	struct finding found = {.t = t, .at = NOWHERE}, *w = &found;
	bool bad = search_tensors(t, false, &w->probe);
	int64_t first = comm_min_i64(world, bad ? world->rank : world->size);
	if (first < world->size) {
		if (first == world->rank)
			str_printf(why,
				"rank %d, before any sample: first bad: %s, element %lld",
				world->rank, w->probe.where, (long long)w->probe.index);
		return true;
	}
	t->pass.probe = &w->probe;
	t->pipe.done = note_action;
	t->pipe.with = w;
	step_gradients(t, in);
	t->pass.probe = NULL;
	t->pipe.done = NULL;
	if (!w->probe.found)
		search_tensors(t, true, &w->probe);
	int64_t last = INT64_MAX - 1, none = INT64_MAX;
	int64_t mine = w->at != NOWHERE ? w->at : w->probe.found ? last : none;
	int64_t at = comm_min_i64(world, mine);
	first = comm_min_i64(world, mine == at ? world->rank : world->size);
	if (first == world->rank && mine < last)
		str_printf(why,
			"rank %d, samples %lld to %lld: first bad: %s, element %lld",
			world->rank, (long long)w->sample,
			(long long)(w->sample + t->o.micro_batch - 1), w->probe.where,
			(long long)w->probe.index);
	else if (first == world->rank && mine == last)
		str_printf(why, "rank %d, all samples: first bad: %s, element %lld",
			world->rank, w->probe.where, (long long)w->probe.index);
	return at < none;
}

void nonfinite_explain(
	struct trainer *t, const struct pipe_input *in, struct step_result *r)
{
	struct str why = {0};
	struct comm *world = t->world;
	bool found = locate_nonfinite(t, in, &why);
	str_printf(&r->why, "step %lld: loss %g, grad_norm %g", (long long)t->step + 1,
		(double)r->loss, (double)r->grad_norm);
	if (found) {
		int64_t rank = comm_min_i64(world, why.len ? world->rank : world->size);
		comm_bcast_str(world, &why, (int)rank);
		str_printf(&r->why, "; %s", why.s);
	} else {
		str_puts(&r->why, "; every part of it is finite: ");
		if (t->local && t->step < t->o.edit.warmup)
			str_puts(&r->why, "another worker's is not, or ");
		str_puts(&r->why, "the sum overflows");
	}
	str_free(&why);
}

/* Locates the first non-finite value of a step. */
#include "engine/step.h"

/* The first non-finite element that was found. */
struct probe {
	char where[96];
	int64_t index;
	bool found;
};

struct search {
	struct device *d;
	struct probe *probe;
	bool gradients;
};

/* Searches a part, unless a non-finite element was found before. */
static void search_part(void *arg, const struct part *x)
{
	struct search *s = arg;
	struct probe *p = s->probe;
	float *v = s->gradients ? x->g : x->state[STORE_PARAM];
	int64_t pos =
		p->found ? -1 : s->d->k->find_nonfinite(s->d, mat(v, x->rows, x->cols));
	if (pos < 0)
		return;
	p->found = true;
	p->index = tensor_index(x->t, x->slice, x->row) + pos;
	snprintf(p->where, sizeof(p->where), "%s %s",
		s->gradients ? "gradient of" : "parameter", x->t->name);
}

/* Searches the parameters of this rank, or its gradients. */
static bool search_tensors(struct trainer *t, bool gradients, struct probe *p)
{
	struct search s = {&t->d, p, gradients};
	store_for_each_part(t->store, false,
		STORE_BIT(gradients ? STORE_GRAD : STORE_PARAM), 0, search_part, &s);
	return p->found;
}

/* The first non-finite value on this rank. */
struct finding {
	struct trainer *t;
	struct probe probe;
	int64_t place; /* position in the order in which non-finite values spread */
	int64_t sample;
};

/* Searches a result of a pass, including leaves: integer sums hold no non-finite values. */
static void search_result(void *arg, const struct result *r)
{
	struct finding *w = arg;
	struct probe *p = &w->probe;
	const struct device *d = &w->t->d;
	int64_t pos = p->found || r->integers ? -1 : d->k->find_nonfinite(&w->t->d, r->x);
	char block[NUM_TEXT] = "";
	if (pos < 0)
		return;
	p->found = true;
	p->index = pos;
	if (r->extent == EXTENT_LEAF) {
		p->index += tensor_index(r->tensor, r->slice, r->first_row);
		snprintf(p->where, sizeof(p->where), "gradient of %s", r->name);
		return;
	}
	if (r->at.layer >= 0 && r->at.layer < w->t->model.c.layers)
		snprintf(block, sizeof(block), "layers.%lld.", (long long)r->at.layer);
	snprintf(p->where, sizeof(p->where), "%s%s%s", block, r->name,
		r->gradient ? ", backward" : "");
}

enum { IN_PARAMETERS = -1 };
static const int64_t IN_GRADIENTS = INT64_MAX - 1, NOWHERE = INT64_MAX;

/* Records the action after which a non-finite value was found. The value spreads to the next stage,
 * and in the backward to the previous one: the place rises in that order. */
static void record_action(void *arg, const struct action *a)
{
	struct finding *w = arg;
	int64_t stages = schedule_stages(&w->t->schedule);
	if (!w->probe.found || w->place != NOWHERE)
		return;
	w->place = 2 * stages * w->t->pass.micro.number +
		   (a->kind == ACTION_FORWARD ? a->stage : 2 * stages - 1 - a->stage);
	w->sample = w->t->samples + w->t->pass.micro.first_sample;
}

/* Collective. Repeats the step, checks every result, and sets *w to the first non-finite value. */
static void check_step(struct finding *w, const struct pipe_input *in)
{
	struct trainer *t = w->t;
	const struct observer observer = {.see = search_result, .with = w},
			      *before = t->pass.observer;
	t->pass.observer = &observer;
	t->pipe.done = record_action;
	t->pipe.with = w;
	step_gradients(t, in);
	t->pass.observer = before;
	t->pipe.done = NULL;
	if (w->probe.found ? w->place == NOWHERE : search_tensors(t, true, &w->probe))
		w->place = IN_GRADIENTS;
}

/* Appends where this rank found the first non-finite value. */
static void describe_finding(const struct finding *w, struct str *why)
{
	const struct trainer *t = w->t;
	str_printf(why, "rank %d", t->world->rank);
	if (t->peers)
		str_printf(why, " of worker %d", t->o.resolved.worker);
	str_puts(why, ", ");
	if (w->place == IN_PARAMETERS)
		str_puts(why, "before any sample");
	else if (w->place == IN_GRADIENTS)
		str_puts(why, "all samples");
	else
		str_printf(why, "samples %lld to %lld", (long long)w->sample,
			(long long)(w->sample + t->o.micro_batch - 1));
	str_printf(why, ": first non-finite value: %s, element %lld", w->probe.where,
		(long long)w->probe.index);
}

void nonfinite_explain(
	struct trainer *t, const struct pipe_input *in, struct step_result *r)
{
	scoped_str why = {0};
	struct comm *world = t->world;
	struct finding own = {.t = t, .place = NOWHERE};
	if (search_tensors(t, false, &own.probe))
		own.place = IN_PARAMETERS;
	if (comm_min_i64(world, own.place) == NOWHERE)
		check_step(&own, in);
	int64_t first_place = comm_min_i64(world, own.place);
	int64_t rank =
		comm_min_i64(world, own.place == first_place ? world->rank : world->size);
	str_printf(&r->why, "step %lld: loss %g, grad_norm %g; ", (long long)t->step + 1,
		(double)r->loss, (double)r->grad_norm);
	if (first_place < NOWHERE) {
		if (rank == world->rank)
			describe_finding(&own, &why);
		comm_bcast_str(world, &why, (int)rank);
		str_puts(&r->why, why.s);
	} else {
		str_printf(&r->why, "all summed values are finite: %sthe sum overflows",
			t->peers && t->step < t->o.edit.warmup
				? "another worker has non-finite values, or "
				: "");
	}
}

/* Flips bits in a step (--inject-flip). The store flips bits of leaves, sums and messages. */
#include "train/train_internal.h"

/* Sets x->place to the place of this name. Returns false if there is none. */
static bool find_place(const char *name, struct flip *x)
{
	int i = 0;
	while (i < N_FLIP_PLACES && strcmp(name, flip_place_names[i]))
		i++;
	x->place = (enum flip_place)i;
	return i < N_FLIP_PLACES;
}

/* Parses STEP, STEP+ or STEPpX. */
static bool parse_when(char *text, struct flip *x)
{
	size_t n = strlen(text);
	char *probability = strchr(text, 'p');
	bool ok = true;
	if (probability) {
		*probability++ = '\0';
		ok = !parse_double(probability, &x->probability) && x->probability > 0 &&
		     x->probability <= 1;
	} else if (n && text[n - 1] == '+') {
		text[n - 1] = '\0';
		x->repeats = true;
	}
	x->repeats |= probability != NULL;
	return ok && !parse_int(text, &x->step) && x->step > 0;
}

/* Parses RANK:STEP[+|pX]:PLACE[:NAME[:BIT]]. Returns -1 with *e set on an error. */
static int parse_flip(const char *text, struct flip *x, struct err *e)
{
	char *words = xstrdup(text), *rest = words, *rank = strsep(&rest, ":");
	char *step = rest ? strsep(&rest, ":") : words + strlen(words);
	const char *place = rest ? strsep(&rest, ":") : "";
	const char *name = rest ? strsep(&rest, ":") : "";
	int64_t number, bit = -1;
	*x = (struct flip){.rank = -1};
	bool ok = !parse_int(rank, &number) && number >= 0 && number < INT32_MAX &&
		  parse_when(step, x) && find_place(place, x) &&
		  (!rest || (!parse_int(rest, &bit) && bit >= 0 && bit < 64));
	x->rank = (int)number;
	x->bit = (int)bit;
	x->name = *name ? xstrdup(name) : NULL;
	free(words);
	return ok ? 0
		  : err_set(e, EX_USAGE,
			    "--inject-flip '%s': expected RANK:STEP[+|pX]:PLACE[:NAME[:BIT]]; "
			    "pt-referee(7) lists the places",
			    text);
}

void flips_release(struct flips *f)
{
	for (int i = 0; i < f->n; i++)
		free(f->list[i].name);
	free(f->list);
}

int flips_open(struct flips *f, const struct train_opts *o, int ranks, struct err *e)
{
	const struct strs *texts = &o->inject_flip;
	f->list = xcalloc(texts->n + 1, sizeof(*f->list));
	f->seed = (uint64_t)o->seed;
	for (int64_t i = 0; i < texts->n; i++) {
		if (parse_flip(texts->v[i], &f->list[f->n++], e))
			return -1;
		if (f->list[i].rank >= ranks)
			return err_set(e, EX_USAGE,
				"--inject-flip: rank %d does not exist", f->list[i].rank);
	}
	return 0;
}

/* A step with flips. */
struct flipping {
	struct flips *flips;
	struct trainer *t;
	const struct observer *observer; /* the observer that was there; NULL: none */
	void (*before_update)(void *arg);
	void *before_update_with;
};

/* Flips a bit of an activation or its gradient, if it is due. */
static void flip_result(void *context, const struct result *x)
{
	struct flipping *p = context;
	char name[sizeof(((struct tensor_hash *)NULL)->name)];
	hashes_name_result(p->t->pass.m, x, name, sizeof(name));
	struct flip *f =
		flips_due(p->flips, x->gradient ? FLIP_GRADIENT : FLIP_ACTIVATION, name);
	int64_t n = mat_size(x->x), bytes = dtype_bytes(x->x.type);
	if (f && n && x->extent != EXTENT_LEAF && !x->integers) {
		int64_t i = flips_draw(p->flips, n);
		flips_do(p->flips, f, &p->t->d,
			(char *)x->x.p +
				(i / x->x.cols * mat_stride(x->x) + i % x->x.cols) *
					bytes,
			(int)bytes, name);
	}
	if (p->observer)
		p->observer->see(p->observer->with, x);
}

static void begin_observer(void *context)
{
	const struct flipping *p = context;
	if (p->observer && p->observer->begin)
		p->observer->begin(p->observer->with);
}

/* Flips a bit of a result of the step on this rank, before the update reads it. */
static void flip_scalars(void *context)
{
	const struct flipping *p = context;
	struct step_end *end = &p->t->end->results;
	float *const scalars[] = {&end->update.grad_scale, &end->update.lr};
	static const char *const names[] = {"norm", "rate"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct flip *f = flips_due(p->flips, FLIP_NORM, names[i]);
		if (f)
			flips_do(p->flips, f, &p->t->d, scalars[i], sizeof(float),
				names[i]);
	}
	if (p->before_update)
		p->before_update(p->before_update_with);
}

/* Returns a copy of the windows with a wrong token; NULL: no flip is due. */
static int32_t *flip_token(struct flipping *p, const int32_t *windows)
{
	struct trainer *t = p->t;
	struct flip *f = flips_due(p->flips, FLIP_TOKENS, NULL);
	int64_t n = step_input(t, NULL).n_windows * (t->model.c.context + 1);
	int32_t vocab = (int32_t)t->data.set->tokenizer.vocab.n;
	if (!f || !n)
		return NULL;
	int32_t *copy = xmalloc((size_t)n * sizeof(*copy));
	memcpy(copy, windows, (size_t)n * sizeof(*copy));
	int64_t i = flips_draw(p->flips, n);
	int32_t before = copy[i];
	copy[i] ^= 1 << (f->bit < 0 ? flips_draw(p->flips, 8) : f->bit % 31);
	if (copy[i] >= vocab || copy[i] < 0)
		copy[i] = before ? before - 1 : vocab - 1;
	f->done = true;
	warn("rank %d: --inject-flip: step %lld: token %d instead of %d", p->flips->rank,
		(long long)p->flips->step, copy[i], before);
	return copy;
}

/* Reports a flip of this rank and step that found nothing to flip. */
static void report_missed(const struct flips *f)
{
	for (int i = 0; i < f->n; i++) {
		const struct flip *x = &f->list[i];
		bool due = x->rank == f->rank && x->step == f->step;
		if (due && !x->done && !(x->probability > 0))
			warn("rank %d: --inject-flip: step %lld: nothing to flip: %s %s",
				x->rank, (long long)x->step, flip_place_names[x->place],
				x->name ? x->name : "");
	}
}

void flips_step(struct flips *f, struct trainer *t, const int32_t *windows,
	const struct step_votes *votes, struct step_result *r)
{
	struct flipping p = {.flips = f,
		.t = t,
		.observer = t->pass.observer,
		.before_update = t->before_update,
		.before_update_with = t->before_update_with};
	const struct observer observer = {
		.begin = begin_observer, .see = flip_result, .with = &p};
	f->rank = (int)t->o.resolved.worker * t->world->size + t->world->rank;
	f->step = t->step + 1;
	t->store->flips = f;
	flips_begin(f);
	t->before_update = flip_scalars;
	t->before_update_with = &p;
	if (flips_due(f, FLIP_ACTIVATION, NULL) || flips_due(f, FLIP_GRADIENT, NULL))
		t->pass.observer = &observer;
	scoped_ptr int32_t *flipped = flip_token(&p, windows);
	store_flip(t->store, FLIP_WEIGHT);
	store_flip(t->store, FLIP_COPY);
	store_flip(t->store, FLIP_MOMENT);
	step_run_on(t, flipped ? flipped : windows, votes, r);
	store_flip(t->store, FLIP_UPDATE);
	struct flip *loss = flips_due(f, FLIP_NORM, "loss");
	struct flip *scale = flips_due(f, FLIP_NORM, "scale");
	if (loss) {
		flips_do(f, loss, NULL, &r->global_loss, sizeof(r->global_loss), "loss");
		t->loss = (double)r->global_loss;
	}
	if (scale)
		flips_do(f, scale, NULL, &t->loss_scale, sizeof(t->loss_scale), "scale");
	t->pass.observer = p.observer;
	t->before_update = p.before_update;
	t->before_update_with = p.before_update_with;
	t->store->flips = NULL;
	report_missed(f);
}

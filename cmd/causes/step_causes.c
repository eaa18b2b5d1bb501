/* Causes of the gradients of most tensors at once. See causes.c. */
#include "causes/causes.h"

#include <math.h>

/* Returns the residual of tensor i over its bound. size: the norm of all gradients. A gradient that
 * is zero except for rounding has no direction: only its size is compared. */
static double tensor_distance(const struct step_check *c, int i, const struct products *p,
	double factor, double size)
{
	const double zero = c->o.precision == RUN_FP32 ? 1e-6 : 1e-3;
	if (p->bb > 1e-14 * size * size)
		return residual_of(p, factor) / c->tensors[i].gradient.bound;
	return has_gradient(c, i) && sqrt(p->aa) > zero * fabs(factor) * size ? INFINITY
									      : 0;
}

double largest_residual(const struct cause_search *s, const struct gradients *g)
{
	const struct step_check *c = s->c;
	struct products *p = xcalloc((size_t)c->n, sizeof(*p)), all = {0};
	double farthest = 0;
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		if (!g->g[c->tensors[i].in_model])
			continue;
		p[i] = products_of(
			c->seen[i], g->g[c->tensors[i].in_model], c->tensors[i].n);
		all.ab += p[i].ab;
		all.bb += p[i].bb;
	}
	double factor = all.bb > 0 ? all.ab / all.bb : 0;
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		if (g->g[c->tensors[i].in_model])
			farthest = fmax(farthest,
				tensor_distance(c, i, &p[i], factor, sqrt(all.bb)));
	}
	free(p);
	return farthest;
}

bool set_screen(struct cause_search *s)
{
	const struct model *m = &s->c->weights.m;
	int last = -1;
	if (!mark_unexplained(s, s->screen))
		return false;
	for (int i = 0; i < m->n_tensors; i++)
		if (s->screen[i] && m->tensors[i].unit > last)
			last = m->tensors[i].unit;
	for (int i = 0; i < m->n_tensors; i++)
		s->screen[i] &= m->tensors[i].unit == last;
	return true;
}

/* Makes the balance loss of *w count the choices of a variant, which *own gets. */
static void count_variant_choices(const struct cause_search *s, struct weights *w,
	struct variant *v, struct choices *own)
{
	bool *nothing = xcalloc((size_t)w->m.n_tensors, sizeof(*nothing));
	struct gradients g;
	if (v->change)
		v->change(&w->m);
	v->change = NULL;
	w->counted = NULL; /* of a pass that may have had another number of choices */
	choices_init(own, &w->m, &s->c->batch);
	struct variant recording = *v;
	recording.choices = own;
	recording.wanted = nothing;
	recording.part = (struct grad_part){.kind = PART_WHOLE};
	reference_float64(w, &s->c->batch, &recording, &g);
	gradients_free(&g);
	free(nothing);
	w->counted = own;
}

/* Returns true if a variant changes which experts a token may choose. */
static bool changes_choices(const struct model *m, const struct variant *v)
{
	struct model other = *m;
	if (v->change)
		v->change(&other);
	bool changes = other.c.experts_per_token != m->c.experts_per_token ||
		       other.c.router_groups != m->c.router_groups ||
		       other.c.layers != m->c.layers || other.c.router != m->c.router;
	changes |= v->function.masked_zero || v->function.groups_by_best;
	for (size_t i = 0; i < ARRAY_LEN(v->zeroed); i++)
		changes |= v->zeroed[i] && strstr(v->zeroed[i], "router");
	return changes;
}

void variant_gradients(
	const struct cause_search *s, struct variant v, bool is_full, struct gradients *g)
{
	struct weights w = s->c->weights;
	struct choices own = {.positions = 0};
	v.wanted = is_full ? NULL : s->screen;
	v.sequence = -1;
	struct choices turned = s->c->choices.all;
	turned.replay = true;
	turned.mass = NULL;
	if (s->c->choices.n_turned && !changes_choices(&s->c->weights.m, &v))
		v.choices = &turned;
	/* (with fewer or more layers, choices belong to other layers) */
	if (v.function.path.kind >= PATH_SKIPPED && v.function.path.kind != PATH_SWAPPED)
		w.counted = NULL;
	else if (w.counted && !v.choices)
		count_variant_choices(s, &w, &v, &own);
	reference_float64(&w, &s->c->batch, &v, g);
	choices_release(&own);
}

double variant_distance(const struct cause_search *s, struct variant v, bool is_full)
{
	struct gradients g = {0};
	variant_gradients(s, v, is_full, &g);
	double dist = largest_residual(s, &g);
	gradients_free(&g);
	return dist;
}

void set_required_distance(struct cause_search *s)
{
	s->near = fmin(1, 0.5 * largest_residual(s, &s->c->reference));
}

/* Sets part[n] to one tensor of n gradients. Returns false if a gradient lacks the tensor. */
static bool get_parts(const float **part, const struct gradients *g, int n, int tensor)
{
	bool has_all = true;
	for (int j = 0; j < n; j++) {
		part[j] = g[j].g[tensor];
		has_all &= part[j] != NULL;
	}
	return has_all;
}

bool solve_factors(
	const struct cause_search *s, const struct gradients *g, int n, double *x)
{
	const float *part[MAX_PARTS];
	double *a = xcalloc((size_t)(n * n), sizeof(*a));
	memset(x, 0, (size_t)n * sizeof(*x));
	for (int k = 0; k < s->n_wrong; k++) {
		const struct tensor_check *t = &s->c->tensors[s->wrong[k]];
		if (get_parts(part, g, n, t->in_model))
			add_products(a, x, part, n, s->c->seen[s->wrong[k]], t->n);
	}
	bool is_solved = solve_linear(a, x, n);
	free(a);
	return is_solved;
}

/* Returns the residual of a fit, relative to the checked gradients. */
static double residual_of_fit(
	const struct cause_search *s, const struct gradients *g, int n, const double *x)
{
	const float *part[MAX_PARTS];
	double left = 0, size = 0;
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		const float *y = s->c->seen[i];
		double square = products_of(y, y, s->c->tensors[i].n).aa;
		if (!get_parts(part, g, n, s->c->tensors[i].in_model) || !(square > 0))
			continue;
		double d = fit_distance(part, x, n, y, s->c->tensors[i].n);
		left += d * d * square;
		size += square;
	}
	return size > 0 ? sqrt(left / size) : INFINITY;
}

/* Returns true if x, a fitted weight of a sequence, equals `weight` within rounding. */
static bool is_weight(const struct step_check *c, double x, double weight)
{
	return fabs(x - weight) < (c->o.precision == RUN_FP32 ? 0.02 : 0.05);
}

/* Lists the sequences i with weights[i] equal to `weight`, numbered from 1, such as "5 6 7 8". */
static void list_sequences(const struct step_check *c, char *out, size_t capacity,
	const double *weights, int n, double weight)
{
	size_t len = 0;
	*out = '\0';
	for (int i = 0; i < n && len < capacity; i++)
		if (is_weight(c, weights[i], weight))
			len += (size_t)snprintf(
				out + len, capacity - len, "%s%d", len ? " " : "", i + 1);
}

/* Returns true if a few sequences have the weight 1 and all remaining ones the same smaller weight.
 * Lists the few in out, and sets *times to the ratio of the weights. */
static bool has_few_heavy_sequences(const struct step_check *c, const double *x, int n,
	char *out, size_t capacity, double *times)
{
	double min = 1;
	int few = 0, others = 0;
	for (int i = 0; i < n; i++)
		min = fmin(min, x[i]);
	for (int i = 0; i < n; i++) {
		few += is_weight(c, x[i], 1);
		others += is_weight(c, x[i], min);
	}
	*times = 1 / min;
	list_sequences(c, out, capacity, x, n, 1);
	return few + others == n && others > few && !is_weight(c, min, 0);
}

/* Returns true if all weights are 0 or 1. */
static bool are_all_zero_or_one(const struct step_check *c, const double *x, int n)
{
	for (int i = 0; i < n; i++)
		if (!is_weight(c, x[i], 0) && !is_weight(c, x[i], 1))
			return false;
	return true;
}

/* Returns the number of micro-batches, of equally many sequences, whose means have the mean that the
 * weights x[n] lead to; 0: none. */
static int count_mean_parts(const struct step_check *c, const double *x, int n)
{
	const struct token_batch *b = &c->batch;
	for (int parts = 2; parts <= n; parts++) {
		double first = 0;
		bool fits = n % parts == 0;
		for (int p = 0; p < parts && fits; p++) {
			const int from = p * (n / parts), to = from + n / parts;
			double targets = 0;
			for (int64_t i = from * b->length; i < to * b->length; i++)
				targets += b->targets[i] >= 0;
			if (!p)
				first = targets * x[0];
			for (int j = from; j < to; j++)
				fits &= first > 0 &&
					is_weight(c, targets * x[j] / first, 1);
		}
		if (fits)
			return parts;
	}
	return 0;
}

/* Describes the weights x[n] of sequences, which were divided by their maximum, max. */
static void describe_sequences(struct cause_search *s, const double *x, int n, double max)
{
	const struct step_check *c = s->c;
	char list[100], *text = s->detail;
	const size_t size = sizeof(s->detail);
	/* (only weights of 0 and 1 are listed as zeros) */
	*list = '\0';
	if (are_all_zero_or_one(c, x, n))
		list_sequences(c, list, sizeof(list), x, n, 0);
	double times = to_shown_digits(c, max / c->scale.run_clip);
	if (*list && are_norms(s)) /* (nanotron divides the positions of a micro-batch) */
		snprintf(text, size,
			"%s of %d do not count, but only in norms: with sequence parallelism, "
			"their gradients must be summed over the tensor-parallel ranks%s",
			list, n, layout_mark(c));
	else if (*list && c->scale.run_clip > 0 && fabs(times - 1) > 0.02)
		snprintf(text, size,
			"%s of %d do not count, and all others count %.3g times", list, n,
			times);
	else if (*list)
		snprintf(text, size, "%s of %d do not count", list, n);
	else if (has_few_heavy_sequences(c, x, n, list, sizeof(list), &times))
		snprintf(text, size, "%s of %d count %.3g times, and all others once",
			list, n, to_shown_digits(c, times));
	else {
		const int parts = c->batch.weights ? 0 : count_mean_parts(c, x, n);
		append_factors(c, list, sizeof(list), x, n < 12 ? n : 12);
		int len = snprintf(text, size, "have weights %s", list);
		if (parts)
			snprintf(text + len, size - (size_t)len,
				": the loss is the mean of the means of %d micro-batches",
				parts);
	}
}

/* Returns the largest bound of the wanted tensors. */
static double largest_bound(const struct step_check *c, const bool *wanted)
{
	double bound = 0;
	for (int i = 0; i < c->n; i++)
		if (wanted[c->tensors[i].in_model])
			bound = fmax(bound, c->tensors[i].gradient.bound);
	return bound;
}

/* Returns the number of elements of those wrong tensors that are wanted. */
static int64_t count_elements(const struct cause_search *s, const bool *wanted)
{
	int64_t n = 0;
	for (int k = 0; k < s->n_wrong; k++) {
		const struct tensor_check *x = &s->c->tensors[s->wrong[k]];
		n += wanted[x->in_model] ? x->n : 0;
	}
	return n;
}

/* Removes tensors from wanted until they have at most MAX_ELEMENTS elements, or are one tensor. */
static void limit_elements(const struct model *m, bool *wanted)
{
	enum { MAX_ELEMENTS = 1 << 22 };
	int64_t elements = 0;
	for (int k = 0; k < m->n_tensors; k++) {
		int64_t n = tensor_size(&m->tensors[k]);
		elements += wanted[k] ? n : 0;
		wanted[k] &= elements <= MAX_ELEMENTS || elements == n;
	}
}

/* Fits the weights x of n sequences to the wanted tensors by least squares. Returns false if
 * the weights do not explain these tensors, or explain them no better than equal weights. */
static bool fit_sequences(
	const struct cause_search *s, int n, const bool *wanted, double *x)
{
	const struct step_check *c = s->c;
	double bound = largest_bound(c, wanted), one[MAX_PARTS];
	/* (as many weights as elements explain anything) */
	if (count_elements(s, wanted) < 4 * n)
		return false;
	struct gradients *g = xcalloc((size_t)n, sizeof(*g));
	for (int j = 0; j < n; j++) {
		const struct variant v = {.sequence = j, .wanted = wanted};
		reference_float64(&c->weights, &c->batch, &v, &g[j]);
		one[j] = c->scale.common;
	}
	double left = solve_factors(s, g, n, x) ? residual_of_fit(s, g, n, x) : INFINITY;
	bool fits = left <= bound &&
		    (wanted == s->screen || left <= 0.5 * residual_of_fit(s, g, n, one));
	for (int j = 0; j < n; j++)
		gradients_free(&g[j]);
	free(g);
	return fits;
}

/* Returns true if a few numbers may fit each tensor without a cause by chance. */
static bool may_all_fit_by_chance(const struct cause_search *s)
{
	for (int k = 0; k < s->n_wrong; k++)
		if (s->c->tensors[s->wrong[k]].cause < 0 &&
			((s->has & IF_SURE) || !may_fit_by_chance(s, s->wrong[k])))
			return false;
	return true;
}

/* Returns true if weights of the sequences explain the gradients. First tries s->screen, unless it
 * has too few elements, such as a single norm; then all tensors. */
bool explained_by_sequences(struct cause_search *s)
{
	const struct model *m = &s->c->weights.m;
	int n = (int)s->c->batch.n;
	double weights[MAX_PARTS], max = 0;
	if (n < 2 || n > MAX_PARTS || may_all_fit_by_chance(s) ||
		(count_elements(s, s->screen) >= 4 * n &&
			!fit_sequences(s, n, s->screen, weights)))
		return false;
	bool *wanted = xcalloc((size_t)m->n_tensors, sizeof(*wanted));
	mark_unexplained(s, wanted);
	limit_elements(m, wanted);
	bool fits = fit_sequences(s, n, wanted, weights);
	free(wanted);
	for (int j = 0; j < n; j++)
		max = fmax(max, fabs(weights[j]));
	for (int j = 0; j < n && max > 0; j++)
		weights[j] /= max;
	fits = fits && !are_equal(weights, n, 0.01);
	if (fits)
		describe_sequences(s, weights, n, max);
	return fits;
}

/* Returns true if exp_avg was zero before: (m1 - beta1 m0) / (1 - beta1) is right without m0. */
bool explained_by_lost_moments(struct cause_search *s)
{
	struct step_check *c = s->c;
	double beta = c->files.adam.beta1;
	int right = 0;
	struct err e = {0};
	if (c->files.m0 < 0)
		return false;
	for (int i = 0; i < c->n && !e.code; i++) {
		struct tensor_step t;
		if (!tensor_step_read(&t, &c->files, i, STEP_MEANS, &e)) {
			struct products p = products_of(t.m1, reference_of(c, i), t.n);
			right += is_within(
				c, i, residual_of(&p, (1 - beta) * c->scale.common));
		}
		tensor_step_free(&t);
	}
	die_io(&e);
	return !e.code && 2 * right > c->n;
}

/* Assembles the gradient ranks_g tensor i from the gradients ranks_g n ranks: rows or columns
 * ranks_g each rank, or all ranks_g one rank. Returns the nearest one, which the caller frees. */
static float *assemble_from_ranks(
	const struct cause_search *s, int i, const struct gradients *ranks_g, int n)
{
	const struct tensor *t = model_tensor(s->c, i);
	int k = s->c->tensors[i].in_model;
	int64_t size = s->c->tensors[i].n, cols = t->ndim > 1 ? t->dims[1] : 1;
	float *best = NULL;
	double nearest = INFINITY;
	for (int order = 0; order < n + 2; order++) {
		float *g = xmalloc((size_t)max64(1, size) * sizeof(*g));
		for (int rank = 0; rank < n; rank++) {
			int64_t all = order == 0 ? t->dims[0] : cols;
			int64_t from = part_begin(all, n, rank),
				to = part_begin(all, n, rank + 1);
			for (int64_t j = 0; j < size; j++) {
				int64_t index = order == 0 ? j / cols : j % cols;
				if (order > 1 ? order - 2 == rank
					      : index >= from && index < to)
					g[j] = ranks_g[rank].g[k][j];
			}
		}
		const struct products p = products_of(s->c->seen[i], g, size);
		double dist = p.bb > 0 ? residual_of(&p, p.ab / p.bb) : INFINITY;
		if (best && !(dist < nearest)) {
			free(g);
			continue;
		}
		free(best);
		best = g;
		nearest = dist;
	}
	return best;
}

/* Returns true if n ranks without an all-reduce explain s->screen or, if is_full, all tensors. */
static bool lacks_all_reduce(
	const struct cause_search *s, int n, enum missing which, bool is_full)
{
	struct step_check *c = s->c;
	struct gradients *g = xcalloc((size_t)n, sizeof(*g));
	struct gradients all = {.n = c->weights.m.n_tensors};
	all.g = xcalloc((size_t)all.n, sizeof(*all.g));
	variant_gradients(
		s, (struct variant){.part = {PART_RANKS, n, 0, which}}, is_full, g);
	for (int k = 0; k < s->n_wrong; k++)
		if (is_full || s->screen[c->tensors[s->wrong[k]].in_model])
			all.g[c->tensors[s->wrong[k]].in_model] =
				assemble_from_ranks(s, s->wrong[k], g, n);
	bool is_explained = largest_residual(s, &all) <= s->near;
	for (int rank = 0; rank < n; rank++)
		gradients_free(&g[rank]);
	free(g);
	gradients_free(&all);
	return is_explained;
}

/* Returns true if tensor-parallel ranks lack an all-reduce: each continues with its own part.
 * Sets s->detail. */
bool explained_by_missing_all_reduce(struct cause_search *s)
{
	static const struct {
		enum missing which;
		const char *text;
	} tries[] = {
		{MISSING_ENTER,
			"backpropagated its own part of the gradient: no all-reduce where "
			"column-parallel layers begin"},
		{MISSING_ATTENTION,
			"continued with its own part of attention: no all-reduce of its "
			"output (wo)"},
		{MISSING_FFN,
			"continued with its own part of the FFN: no all-reduce of its output (w2)"},
		{MISSING_BOTH,
			"continued with its own parts: no all-reduce of the outputs of attention "
			"and FFN (wo, w2)"}};
	/* (how ranks divide adapters is not known; float64.h has no ranks of experts) */
	if (s->c->lora.used || s->c->weights.m.c.experts)
		return false;
	const int64_t tp = s->c->o.tp, degrees[] = {tp > 1 ? tp : 2, tp > 1 ? 0 : 4};
	for (size_t i = 0; i < ARRAY_LEN(degrees) && may_have(s->c, tp); i++)
		for (size_t k = 0; k < ARRAY_LEN(tries); k++)
			if (degrees[i] && degrees[i] <= MAX_PARTS &&
				(tries[k].which == MISSING_ENTER || !s->forward_right) &&
				lacks_all_reduce(
					s, (int)degrees[i], tries[k].which, false) &&
				lacks_all_reduce(
					s, (int)degrees[i], tries[k].which, true)) {
				snprintf(s->detail, sizeof(s->detail), "%s%s",
					tries[k].text, layout_mark(s->c));
				return true;
			}
	return false;
}

/* Returns true if the loss has another term: the wrong tensors, or only s->screen if !all, are
 * x[0] times the gradient of the term plus x[1] times the reference. */
static bool fit_term(const struct cause_search *s, enum loss term, bool all, double *x)
{
	const struct step_check *c = s->c;
	struct gradients g[2] = {{0}, c->reference};
	variant_gradients(s, (struct variant){.function = {.loss = term}}, all, &g[0]);
	bool fits = solve_factors(s, g, 2, x) && (x[0] > 0 || term == LOSS_ENTROPY) &&
		    x[1] > 0;
	for (int k = 0; k < g[0].n && fits; k++) /* their sum, in place */
		for (int64_t j = 0;
			g[0].g[k] && j < tensor_size(&c->weights.m.tensors[k]); j++)
			g[0].g[k][j] = (float)(x[0] * (double)g[0].g[k][j] +
					       x[1] * (double)g[1].g[k][j]);
	fits = fits && largest_residual(s, &g[0]) <= s->near;
	gradients_free(&g[0]);
	return fits;
}

/* Returns true if a further term of the loss explains the gradients; x: both factors. */
static bool has_term(const struct cause_search *s, enum loss term, double *x)
{
	return fit_term(s, term, false, x) && fit_term(s, term, true, x);
}

/* Returns true if label smoothing explains the gradients. Sets s->detail to its fraction. */
bool explained_by_smoothing(struct cause_search *s)
{
	double x[2];
	if (!has_term(s, LOSS_UNIFORM, x))
		return false;
	snprintf(s->detail, sizeof(s->detail), "%.3g",
		to_shown_digits(s->c, x[0] / (x[0] + x[1])));
	return true;
}

/* Returns true if a z-loss explains the gradients. Sets s->detail to its factor. */
bool explained_by_z_loss(struct cause_search *s)
{
	double x[2];
	if (!has_term(s, LOSS_Z, x))
		return false;
	snprintf(s->detail, sizeof(s->detail), "%.3g", x[0] / x[1]);
	return true;
}

/* Returns true if an entropy term explains the gradients. Sets s->detail to its factor. */
bool explained_by_entropy(struct cause_search *s)
{
	double x[2];
	if (!has_term(s, LOSS_ENTROPY, x))
		return false;
	snprintf(s->detail, sizeof(s->detail), "%.3g", x[0] / x[1]);
	return true;
}

/* Returns true if ignoring the weights of the targets explains the gradients. */
bool explained_by_unit_weights(struct cause_search *s)
{
	const struct variant v = {.unweighted = true};
	return s->c->batch.weights && variant_distance(s, v, false) <= s->near &&
	       variant_distance(s, v, true) <= s->near;
}

/* Returns the unit of the first wrong tensor without a cause, in backward order; -1: none. A tied
 * embedding is skipped, as a part of its gradient comes after all layers. */
static int find_first_unit(const struct cause_search *s)
{
	const struct model *m = &s->c->weights.m;
	for (int k = 0; k < s->n_wrong; k++) {
		const struct tensor *t = model_tensor(s->c, s->wrong[k]);
		bool is_tied = t == m->output && t == m->tokens;
		if (s->c->tensors[s->wrong[k]].cause < 0 && !(is_tied && s->n_wrong > 1))
			return t->unit;
	}
	return -1;
}

static bool layer_has_no_gradient(const struct step_check *c, int layer)
{
	for (int i = 0; i < c->n; i++)
		if (model_tensor(c, i)->unit == layer + 1 && has_gradient(c, i))
			return false;
	return true;
}

/* Returns true if a path may explain the gradients. A detached residual changes no gradient of a
 * later layer; a skipped layer has no gradient. may_change_loss: the loss may be wrong, too. */
static bool is_path_possible(
	const struct cause_search *s, const struct path *p, bool may_change_loss)
{
	const int layers = (int)s->c->weights.m.c.layers, unit = find_first_unit(s);
	const bool is_all = p->layer < 0;
	switch (p->kind) {
	case PATH_DETACHED:
		return unit >= 0 && unit <= layers &&
		       (is_all || p->layer == unit || p->layer + 1 == unit);
	case PATH_NO_RESIDUAL:
		return may_change_loss;
	case PATH_SKIPPED:
		return may_change_loss && !is_all && !p->sublayer &&
		       layer_has_no_gradient(s->c, p->layer);
	case PATH_TWICE:
		return may_change_loss && !is_all && !p->sublayer;
	default:
		return false;
	}
}

/* Writes to s->detail what is wrong with the residual path: the text after "as if". */
static void describe_path(struct cause_search *s, const struct path *p)
{
	char layer[40] = "all layers";
	static const char *const around[] = {"attention", "the FFN", "the whole"};
	const char *sublayer = around[p->sublayer];
	if (p->layer >= 0)
		snprintf(layer, sizeof(layer), "layer %d", p->layer);
	if (p->kind == PATH_NO_RESIDUAL)
		snprintf(s->detail, sizeof(s->detail),
			"there were no residual connection around %s of %s: x = f(x), not x + f(x)",
			sublayer, layer);
	else if (p->kind == PATH_DETACHED)
		snprintf(s->detail, sizeof(s->detail),
			"the residual connection around %s of %s were detached", sublayer,
			layer);
	else
		snprintf(s->detail, sizeof(s->detail), "%s were %s", layer,
			p->kind == PATH_SKIPPED ? "left out" : "computed twice");
}

/* Returns true if a layer is skipped or computed twice, or a residual is missing or detached. If
 * the forward pass is right, or few tensors are wrong, only paths that keep the loss are tried. */
bool explained_by_path(struct cause_search *s)
{
	enum { MAX_LAYERS = 12 }; /* (each of them takes three passes) */
	const int layers = (int)s->c->weights.m.c.layers;
	const bool can_change_loss = (s->has & IF_MOST) && (s->has & IF_FORWARD);
	struct path best = {0};
	double nearest = s->near;
	for (int layer = -1; layer < layers; layer++)
		for (int k = PATH_NO_RESIDUAL; k <= PATH_TWICE; k++)
			for (int sub = 0; sub < SUBLAYERS + (k == PATH_DETACHED); sub++) {
				const struct path p = {(enum path_kind)k, layer, sub};
				const struct guess g = {{.function = {.path = p}}, NULL,
					is_path_possible(s, &p,
						can_change_loss &&
							(layer < 0 ||
								layers <= MAX_LAYERS))};
				if (try_guess(s, &g, &nearest))
					best = p;
			}
	describe_path(s, &best);
	return best.kind;
}

/* Returns true if all unexplained differences are as large as rounding to bf16 makes them, at
 * most 2^-9 of each term of a sum, and the loss is right. Sets s->detail. */
bool are_rounded_sums(struct cause_search *s)
{
	const struct step_check *c = s->c;
	double max = 0;
	for (int k = 0; k < s->n_wrong; k++) {
		const struct tensor_check *x = &c->tensors[s->wrong[k]];
		if (x->cause >= 0)
			continue;
		if (!(x->gradient.value >= 3e-4 && x->gradient.value <= 4e-3))
			return false;
		max = fmax(max, x->gradient.value);
	}
	snprintf(s->detail, sizeof(s->detail), "%.1g", max);
	return c->o.precision == RUN_FP32 && (c->loss_right || isnan(c->o.loss));
}

double smallest_cosine(const struct cause_search *s)
{
	double min = 1;
	for (int k = 0; k < s->n_wrong; k++) {
		int i = s->wrong[k];
		const struct products p = products_of(
			s->c->seen[i], reference_of(s->c, i), s->c->tensors[i].n);
		min = fmin(min, p.aa > 0 && p.bb > 0 ? p.ab / sqrt(p.aa * p.bb) : -1);
	}
	return min;
}

/* Causes of the gradient of one tensor, and of parts of a sum over ranks. See causes.c. */
#include "causes/causes.h"

#include <math.h>

static double tolerance(const struct step_check *c)
{
	return c->o.precision == RUN_FP32 ? 5e-5 : 5e-3;
}

/* Returns the relative tolerance within which factors of parts of a tensor count as equal. */
static double equality_tolerance(const struct step_check *c)
{
	return c->o.precision == RUN_FP32 ? 0.01 : 0.04;
}

/* Rounds a factor for display, to the precision of the run. (bf16 changes factors by up to 1 %.) */
double to_shown_digits(const struct step_check *c, double f)
{
	if (c->o.precision != RUN_FP32 && fabs(f - round(f)) <= 0.02 * fabs(f))
		return round(f);
	double grain = 2 * tolerance(c);
	double x = round(f / grain) * grain;
	return fabs(x) < grain ? 0 : x;
}

/* Writes n rounded factors, such as "1 2". */
void append_factors(
	const struct step_check *c, char *out, size_t capacity, const double *f, int n)
{
	size_t len = 0;
	for (int i = 0; i < n && len < capacity; i++)
		len += (size_t)snprintf(out + len, capacity - len, "%s%.4g", i ? " " : "",
			to_shown_digits(c, f[i]));
}

bool may_fit_by_chance(const struct cause_search *s, int i)
{
	const struct step_check *c = s->c;
	return c->has_reference && c->o.precision != RUN_FP32 &&
	       model_tensor(c, i)->ndim < 2 &&
	       ((s->has & IF_MOST) || c->tensors[i].gradient.value < 0.1);
}

/* Returns true if a residual of tensor i is within its bound and halves its distance. */
bool is_within(const struct step_check *c, int i, double residual)
{
	const struct distance *d = &c->tensors[i].gradient;
	return residual <= d->bound && residual <= 0.5 * d->value;
}

/* Returns true if the tensor is the output layer and has the same values as the embedding. */
static bool seems_tied(const struct step_check *c, int i)
{
	const struct model *m = &c->weights.m;
	const struct tensor *t = c->has_reference ? model_tensor(c, i) : NULL;
	return t && t == m->output && t != m->tokens &&
	       !memcmp(c->weights.w[t - m->tensors], c->weights.w[m->tokens - m->tensors],
		       (size_t)tensor_size(t) * sizeof(float));
}

bool has_gradient(const struct step_check *c, int i)
{
	/* (the difference of two moments may be their rounding) */
	return c->tensors[i].norm > 0 && (!c->tensors[i].dead || c->given.n);
}

bool has_no_gradient(struct cause_search *s)
{
	return !has_gradient(s->c, s->tensor);
}

bool explained_by_untying(struct cause_search *s)
{
	return has_no_gradient(s) && seems_tied(s->c, s->tensor);
}

/* Returns the factor that explains the tensor; 0: none, or all tensors have it. */
static double own_factor(const struct cause_search *s)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	const struct products p =
		products_of(c->seen[i], reference_of(c, i), c->tensors[i].n);
	double f = p.bb > 0 ? p.ab / p.bb : 0;
	bool differs = fabs(f / c->scale.common - 1) > tolerance(c);
	return f != 0 && differs && is_within(c, i, residual_of(&p, f)) ? f : 0;
}

/* Returns true if the tensor was clipped by its own norm. */
bool explained_by_own_clip(struct cause_search *s)
{
	double clip = s->c->files.adam.clip;
	const float *seen = s->c->seen[s->tensor];
	double norm = sqrt(products_of(seen, seen, s->c->tensors[s->tensor].n).aa);
	return clip > 0 && fabs(norm / clip - 1) <= tolerance(s->c) && own_factor(s) != 0;
}

/* Returns true if all tensors except this one were clipped. */
bool explained_by_no_clip(struct cause_search *s)
{
	return s->c->files.adam.clip > 0 && fabs(own_factor(s) - 1) <= tolerance(s->c);
}

/* Returns true if the tensor is the reference times a factor of its own. Sets s->detail. */
bool explained_by_factor(struct cause_search *s)
{
	double f = own_factor(s);
	snprintf(s->detail, sizeof(s->detail), "%.5g",
		to_shown_digits(s->c, f / s->c->scale.common));
	return f != 0;
}

/* Returns true if one factor per slice of a dimension explains the tensor. Sets s->detail. */
static bool slices_explain(struct cause_search *s, int dim, int n)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	char list[120];
	double f[MAX_SLICES];
	double left = slice_factors(c, i, c->seen[i], reference_of(c, i), dim, n, f);
	for (int k = 0; k < n; k++)
		f[k] /= c->scale.common;
	if (!is_within(c, i, left) || are_equal(f, n, equality_tolerance(c)))
		return false;
	append_factors(c, list, sizeof(list), f, n);
	snprintf(s->detail, sizeof(s->detail), "%d in %d slices: %s", dim, n, list);
	return true;
}

bool try_slices(struct cause_search *s, const int64_t degrees[AT_LEAST(2)],
	bool (*explains)(struct cause_search *s, int dim, int n))
{
	const int64_t n[] = {degrees[0], degrees[1], 2, 3, 4, 8, 16};
	for (size_t k = 0; k < ARRAY_LEN(n); k++)
		for (int dim = 0; dim < 2; dim++)
			if (n[k] > 1 && n[k] <= MAX_SLICES && explains(s, dim, (int)n[k]))
				return true;
	return false;
}

bool explained_by_slices(struct cause_search *s)
{
	return try_slices(s, (const int64_t[]){s->c->o.tp, s->c->o.fsdp}, slices_explain);
}

/* Sets from[n] to the nearest slice of the reference for each slice. Returns the residual. */
static double find_slice_order(const struct cause_search *s, int dim, int n, int *from)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	const struct tensor *t = model_tensor(c, i);
	const float *a = c->seen[i], *b = reference_of(c, i);
	int64_t cols = t->ndim > 1 ? t->dims[1] : 1, size = t->dims[dim] / n;
	int64_t step = dim ? size : size * cols; /* from a slice to the next */
	double left = 0, all = products_of(b, b, c->tensors[i].n).aa;
	for (int k = 0; k < n; k++) {
		double nearest = INFINITY;
		for (int to = 0; to < n; to++) {
			int r = (k + to) % n; /* (first its own) */
			double dist = 0;
			for (int64_t j = 0; j < c->tensors[i].n; j++) {
				int64_t index = dim ? j % cols : j / cols;
				if (index / size != k)
					continue;
				double d =
					(double)a[j] -
					c->scale.common * (double)b[j + (r - k) * step];
				dist += d * d;
			}
			if (dist < nearest) {
				nearest = dist;
				from[k] = r;
			}
		}
		left += nearest;
	}
	return sqrt(left / all) / fabs(c->scale.common);
}

/* Returns true if the slices of a dimension are in another order. Sets s->detail. */
bool explained_by_order_of_slices(struct cause_search *s)
{
	enum { MAX_ORDERED = 8 };
	const struct step_check *c = s->c;
	const int64_t n[] = {c->o.tp, c->o.fsdp, 2, 3, 4, 8};
	const struct tensor *t = model_tensor(c, s->tensor);
	int from[MAX_ORDERED];
	for (size_t k = 0; k < ARRAY_LEN(n); k++)
		for (int dim = 0; dim < t->ndim; dim++) {
			if (n[k] < 2 || n[k] > MAX_ORDERED || t->dims[dim] % n[k] ||
				c->tensors[s->tensor].n < 4 * n[k] ||
				!is_within(c, s->tensor,
					find_slice_order(s, dim, (int)n[k], from)))
				continue;
			int len = snprintf(s->detail, sizeof(s->detail),
				"%d in %d slices: the gradients of slices", dim,
				(int)n[k]);
			for (int64_t j = 0; j < n[k]; j++)
				len += snprintf(s->detail + len,
					sizeof(s->detail) - (size_t)len, " %d", from[j]);
			return true;
		}
	return false;
}

/* Returns true if each element is clipped to the magnitude of the largest one. Sets s->detail. */
bool explained_by_value(struct cause_search *s)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	double max = 0, left = 0, all = 0;
	for (int64_t j = 0; j < c->tensors[i].n; j++)
		max = fmax(max, fabs((double)c->seen[i][j]));
	for (int64_t j = 0; j < c->tensors[i].n; j++) {
		double want = c->scale.common * (double)reference_of(c, i)[j];
		double clipped = fmin(fmax(want, -max), max);
		double d = (double)c->seen[i][j] - clipped;
		left += d * d;
		all += clipped * clipped;
	}
	snprintf(s->detail, sizeof(s->detail), "%.3g", max);
	return all > 0 && is_within(c, i, sqrt(left / all));
}

/* Orders of a tensor's elements in a file. HALVES: rows of a head, also of a bias, in halves
 * (j, j + half) instead of pairs (2j, 2j + 1); PAIRS: in pairs instead of halves. */
enum order { IN_PLACE, TRANSPOSED, HALVES, PAIRS };

/* Returns the element of the reference that is at element j of a tensor in this order. */
static int64_t element_in_order(const struct cause_search *s, enum order order, int64_t j)
{
	const struct tensor *t = model_tensor(s->c, s->tensor);
	int64_t cols = t->ndim > 1 ? t->dims[1] : 1, row = j / cols;
	int64_t dim = s->c->weights.m.head_dim, r = row % dim;
	return order == IN_PLACE     ? j
	       : order == TRANSPOSED ? j % cols * cols + row
	       : order == HALVES
		       ? row_of_pairs(row, dim) * cols + j % cols
		       : (row - r + (r % 2 ? dim / 2 : 0) + r / 2) * cols + j % cols;
}

/* Returns true if the reference in another order of elements explains the tensor. */
static bool is_reordered(const struct cause_search *s, enum order order)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	const struct tensor *t = model_tensor(c, i);
	if (t->ndim < 2 ||
		!(order == TRANSPOSED ? t->dims[0] == t->dims[1] : is_rotated(t->name)))
		return false;
	float *moved = xmalloc((size_t)c->tensors[i].n * sizeof(*moved));
	for (int64_t j = 0; j < c->tensors[i].n; j++)
		moved[j] = reference_of(c, i)[element_in_order(s, order, j)];
	const struct products p = products_of(c->seen[i], moved, c->tensors[i].n);
	free(moved);
	return is_within(c, i, residual_of(&p, c->scale.common));
}

bool explained_by_transposition(struct cause_search *s)
{
	return is_reordered(s, TRANSPOSED);
}

bool explained_by_halves(struct cause_search *s)
{
	return is_reordered(s, HALVES);
}

bool explained_by_pairs(struct cause_search *s)
{
	return is_reordered(s, PAIRS);
}

/* Returns true if tensor `other` is not s->tensor itself, but has its shape. */
static bool has_same_shape(const struct cause_search *s, int other)
{
	const struct tensor *t = model_tensor(s->c, s->tensor),
			    *o = model_tensor(s->c, other);
	return o != t && o->ndim == t->ndim && !memcmp(o->dims, t->dims, sizeof(t->dims));
}

/* Returns true if the tensor has the gradient of another tensor of its shape. Sets s->detail. */
bool explained_by_exchange(struct cause_search *s)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	for (int k = 0; k < s->n_wrong; k++) {
		if (!has_same_shape(s, s->wrong[k]))
			continue;
		const struct products p = products_of(
			c->seen[i], reference_of(c, s->wrong[k]), c->tensors[i].n);
		snprintf(s->detail, sizeof(s->detail), "%s",
			model_tensor(c, s->wrong[k])->name);
		if (is_within(c, i, residual_of(&p, c->scale.common)))
			return true;
	}
	return false;
}

/* Returns true if exp_avg before the step came from tensor `other`: m0 is wrong in
 * (m1 - beta1 m0) / (1 - beta1). mean: exp_avg in the file of this tensor. */
static bool has_swapped_mean(const struct cause_search *s, const float *mean, int other)
{
	const struct step_check *c = s->c;
	int i = s->tensor;
	const double ratio = c->files.adam.beta1 / (1 - c->files.adam.beta1);
	static const enum order orders[] = {IN_PLACE, HALVES, PAIRS};
	struct tensor_step t;
	struct err e = {0};
	bool is_found = false;
	if (tensor_step_read(&t, &c->files, other, STEP_MEANS, &e) || !t.m0) {
		die_io(&e);
		return tensor_step_free(&t), false;
	}
	float *g = xmalloc((size_t)max64(1, t.n) * sizeof(*g));
	for (size_t k = 0; k < ARRAY_LEN(orders) && !is_found; k++) {
		if (k > 0 && is_rotated(model_tensor(c, i)->name) ==
				     is_rotated(model_tensor(c, other)->name))
			break;
		for (int64_t j = 0; j < t.n; j++) {
			int64_t from = element_in_order(s, orders[k], j);
			g[j] = (float)((double)c->seen[i][j] +
				       ratio * ((double)mean[j] - (double)t.m0[from]));
		}
		const struct products p = products_of(g, reference_of(c, i), t.n);
		is_found = is_within(c, i, residual_of(&p, c->scale.common));
	}
	free(g);
	tensor_step_free(&t);
	return is_found;
}

/* Returns true if exp_avg before the step came from another tensor of the same shape. Sets
 * s->detail to the name of the last tensor that was tried. Exits if the file cannot be read. */
bool explained_by_exchanged_means(struct cause_search *s)
{
	const struct step_check *c = s->c;
	struct tensor_step step = {0};
	struct err e = {0};
	bool is_found = false, is_read = c->files.m0 >= 0;
	is_read =
		is_read && !tensor_step_read(&step, &c->files, s->tensor, STEP_MEANS, &e);
	die_io(&e);
	for (int k = 0; is_read && k < s->n_wrong && !is_found; k++) {
		snprintf(s->detail, sizeof(s->detail), "%s",
			model_tensor(c, s->wrong[k])->name);
		is_found = has_same_shape(s, s->wrong[k]) &&
			   has_swapped_mean(s, step.m0, s->wrong[k]);
	}
	tensor_step_free(&step);
	return is_found;
}

/* Returns true if a multiple of the parameter was added: weight decay as L2, as in
 * torch.optim.Adam. Sets s->detail. */
bool explained_by_decay(struct cause_search *s)
{
	const struct step_check *c = s->c;
	int i = s->tensor, k = c->tensors[i].in_model;
	const float *part[] = {c->reference.g[k], c->weights.w[k]};
	double a[4] = {0}, x[2] = {0};
	add_products(a, x, part, 2, c->seen[i], c->tensors[i].n);
	if (!solve_linear(a, x, 2) || !(x[0] > 0))
		return false;
	/* torch.optim.Adam adds it after clipping; a term of the loss is clipped too */
	double clip = c->files.adam.clip, factor = clip_factor(clip, c->reference.norm);
	bool after = clip > 0 && factor < 1 && fabs(x[0] / factor - 1) <= tolerance(c);
	snprintf(s->detail, sizeof(s->detail), "%.3g times the parameter%s",
		after ? x[1] : x[1] / x[0], after ? ", after clipping" : "");
	return fabs(x[1] / x[0]) >= 1e-6 &&
	       is_within(c, i, fit_distance(part, x, 2, c->seen[i], c->tensors[i].n));
}

/* ---- sums over ranks ------------------------------------------------------------------ */

/* Gradients of n parts, such as ranks, before their sum, of the wanted tensors. */
struct parts {
	struct grad_part kind;
	int n;
	struct gradients gradients[MAX_PARTS];
};

/* Computes the gradients of each part, of the wanted tensors. parts_release() frees them. */
static void parts_init(struct cause_search *s, struct parts *p, const bool *wanted)
{
	struct variant v = {.part = p->kind, .sequence = -1, .wanted = wanted};
	v.part.i = EACH_PART;
	reference_float64(&s->c->weights, &s->c->batch, &v, p->gradients);
}

static void parts_release(struct parts *p)
{
	for (int k = 0; k < p->n; k++)
		gradients_free(&p->gradients[k]);
}

static const char *part_name(enum part_kind kind)
{
	return kind == PART_SLICE    ? "tensor-parallel slices"
	       : kind == PART_USE    ? "embedding and output layer"
	       : kind == PART_ZIGZAG ? "load-balanced chunks of the positions"
				     : "chunks of the positions";
}

/* Describes the weights of the parts of a sum. */
static void describe_parts(const struct step_check *c, char *text, size_t capacity,
	const struct parts *p, const double *x)
{
	char list[120];
	int ones = 0, zeros = 0, last = 0;
	for (int k = 0; k < p->n; k++) {
		bool is_one = fabs(x[k] - 1) < 0.01;
		ones += is_one;
		zeros += fabs(x[k]) < 0.01;
		last = is_one ? k : last;
	}
	append_factors(c, list, sizeof(list), x, p->n);
	if (p->kind.kind != PART_USE && ones == 1 && zeros == p->n - 1)
		snprintf(text, capacity,
			"the part of slice %d of %d %s: not summed over the ranks%s",
			last, p->n, part_name(p->kind.kind), layout_mark(c));
	else
		snprintf(text, capacity, "parts of %d %s: %s times%s", p->n,
			part_name(p->kind.kind), list,
			p->kind.kind == PART_USE ? "" : layout_mark(c));
}

/* Adds a finding for tensor i if it is a weighted sum of the parts. */
static bool explain_by_parts(struct cause_search *s, int i, const struct parts *p)
{
	struct step_check *c = s->c;
	const float *part[MAX_PARTS];
	double a[MAX_PARTS * MAX_PARTS] = {0}, x[MAX_PARTS] = {0};
	int k = c->tensors[i].in_model;
	/* (as many weights as elements explain anything) */
	if (c->tensors[i].n < 4 * p->n ||
		(may_fit_by_chance(s, i) && !(s->has & IF_SURE)))
		return false;
	for (int j = 0; j < p->n; j++)
		part[j] = p->gradients[j].g[k];
	add_products(a, x, part, p->n, c->seen[i], c->tensors[i].n);
	if (!solve_linear(a, x, p->n) ||
		!is_within(
			c, i, fit_distance(part, x, p->n, c->seen[i], c->tensors[i].n)))
		return false;
	for (int j = 0; j < p->n; j++)
		x[j] /= c->scale.common;
	if (are_equal(x, p->n, equality_tolerance(c)))
		return false;
	char text[FINDING_TEXT];
	describe_parts(c, text, sizeof(text), p, x);
	set_cause(s, i, text);
	return true;
}

/* Adds findings for the wanted tensors that the parts explain. Returns the number of findings. */
static int explain_parts(struct cause_search *s, struct parts *p, const bool *wanted)
{
	int n = 0;
	parts_init(s, p, wanted);
	for (int k = 0; k < s->n_wrong; k++) {
		const struct tensor_check *x = &s->c->tensors[s->wrong[k]];
		if (x->cause < 0 && wanted[x->in_model])
			n += explain_by_parts(s, s->wrong[k], p);
	}
	parts_release(p);
	return n;
}

/* Returns true if an axis may have such parts. (Sequence parallelism divides positions, too.) */
static bool has_axis_of_kind(const struct step_check *c, enum part_kind kind)
{
	return kind == PART_USE	    ? true
	       : kind == PART_SLICE ? may_have(c, c->o.tp) && !c->weights.m.c.experts
	       : kind == PART_CHUNK ? may_have(c, c->o.tp > 1 ? c->o.tp : c->o.cp)
				    : may_have(c, c->o.cp);
}

/* Adds findings for tensors that are wrong sums of parts, and so returns false. The parts are tried
 * first on s->screen, and on the remaining tensors only if they explain some of it. */
bool explained_by_sums(struct cause_search *s)
{
	const struct check_opts *o = &s->c->o;
	const struct model *m = &s->c->weights.m;
	const struct {
		enum part_kind kind;
		int64_t n;
	} tries[] = {{PART_USE, m->tie ? 2 : 0}, {PART_SLICE, o->tp}, {PART_CHUNK, o->cp},
		{PART_ZIGZAG, o->cp}, {PART_CHUNK, o->tp}, {PART_SLICE, 2},
		{PART_CHUNK, 2}, {PART_ZIGZAG, 2}, {PART_SLICE, 4}, {PART_CHUNK, 4},
		{PART_SLICE, 8}, {PART_CHUNK, 8}};
	bool *wanted = xcalloc((size_t)m->n_tensors, sizeof(*wanted));
	for (size_t t = 0; t < ARRAY_LEN(tries) && mark_unexplained(s, wanted); t++) {
		struct parts p = {.kind = {tries[t].kind, (int)tries[t].n, 0},
			.n = (int)tries[t].n};
		if (p.n < 2 || p.n > MAX_PARTS || p.n > s->c->batch.length ||
			!has_axis_of_kind(s->c, p.kind.kind))
			continue;
		set_screen(s);
		if (explain_parts(s, &p, s->screen) && mark_unexplained(s, wanted))
			explain_parts(s, &p, wanted);
	}
	free(wanted);
	return false;
}

/* Compares the gradients that the optimizer saw with the gradients of the reference. */
#include "check/check.h"

#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Smallest bounds of the distance between right runs in fp32. PyTorch and these kernels were 1e-6
 * to 3e-6 from float64 for 2 to 32 layers. PyTorch computes rotation angles in fp32, with errors
 * that grow with the position: with 2 layers, 5.2e-6 at 4,096 positions and 5.9e-6 at 8,192. */
static const double least_bound = 1e-5, bound_of_position = 2e-9;

/* Returns a tensor's bound as a multiple of the distance of the kernels here at the run's
 * precision. For 1,000 right steps of small models (tests/bench/oracle/right_steps.py), PyTorch's
 * distance was at most 1.7 times ours with autocast, 2.5 times with bf16 everywhere, and about the
 * same in fp32. In GPT-2 it was up to 10 times: PyTorch sums biases and layer norms in bf16. */
static double allowed_multiple(const struct step_check *c)
{
	static const double times[] = {10, 2, 3};
	bool has_layer_norms = c->weights.m.arch->norm == NORM_LAYER;
	/* (PEFT also rounds x A^T: a right step with autocast was 2.5 times as far) */
	bool is_lora = c->lora.used && c->o.precision != RUN_FP32;
	return times[c->o.precision] * (is_lora ? 2 : 1) *
	       (has_layer_norms && c->o.precision == RUN_BF16 ? 2 : 1);
}

/* Computes the gradients with a random error in each weight, for models that the kernels lack.
 * Three times the largest rounding error moves gradients about as far as the kernels' rounding
 * does: 0.3 to 2 times as far in Llama, Qwen3 and Phi-3, in fp32 and bf16. */
static void compute_rounded_gradients(const struct step_check *c, struct gradients *g)
{
	struct choices replayed = c->choices.all;
	replayed.replay = true;
	const struct variant v = {.sequence = -1,
		.choices = replayed.ids ? &replayed : NULL,
		.noise = 3 * (c->o.precision == RUN_FP32 ? 0x1p-24 : 0x1p-9)};
	reference_float64(&c->weights, &c->batch, &v, g);
}

/* Returns allowed_multiple() for gradients that are small differences of large terms, such as
 * queries and keys with scores that hardly matter. Their rounding varies more between programs. */
static double cancelled_multiple(const struct step_check *c)
{
	static const double times[] = {30, 8, 12};
	return times[c->o.precision];
}

/* Sets the bounds of all tensors. own[n]: distances of our kernels from float64. */
static void set_bounds_from(struct step_check *c, const double *own)
{
	double min_bound = least_bound + bound_of_position * (double)c->batch.length;
	bool has_layer_norms = c->weights.m.arch->norm == NORM_LAYER;
	double *sorted = xcalloc((size_t)c->n + 1, sizeof(*sorted));
	int n = 0;
	for (int i = 0; i < c->n; i++) /* (A of adapters has no gradient while B is 0) */
		if (own[i] > 0)
			sorted[n++] = own[i];
	double middle = n ? median(sorted, n) : 0;
	free(sorted);
	for (int i = 0; i < c->n; i++) {
		struct tensor_check *x = &c->tensors[i];
		bool fp32 = c->o.precision == RUN_FP32;
		double distance = fmax(own[i], fp32		 ? 0
					       : has_layer_norms ? middle
								 : middle / 2);
		/* (PyTorch sums the gradients of norms and biases in bf16) */
		bool is_summed = has_layer_norms && c->o.precision == RUN_BF16 &&
				 c->weights.m.tensors[x->in_model].ndim == 1;
		distance *= is_summed ? 2 : 1;
		/* (with few elements, two draws of the noise differ more) */
		double small_sample = 1 + 3 / sqrt((double)x->n);
		double times = own[i] > 1.5 * middle ? cancelled_multiple(c)
						     : allowed_multiple(c);
		x->gradient.bound = fmax(min_bound, times * small_sample * distance);
		x->factor_bound = fp32 ? x->gradient.bound
				       : fmin(fmax(0.02, 3 * small_sample * distance),
						 x->gradient.bound);
	}
}

/* Returns the relative bound of rounding for the loss. kernel_loss: of our kernels; NAN:
 * unknown. In bf16 the losses of right steps were 1e-5 off in the median, and up to
 * 1.3e-3 with few targets. */
static double loss_bound(const struct step_check *c, double kernel_loss)
{
	double kernel_error = fabs(kernel_loss / c->reference.loss - 1);
	if (c->o.precision == RUN_FP32)
		return 2e-5;
	return 1e-3 / sqrt((double)max64(1, c->batch.counted)) +
	       (isfinite(kernel_error) ? kernel_error : 0);
}

/* Measures how far our kernels are from the reference, and sets all bounds from that. */
static int set_bounds(struct step_check *c, struct err *e)
{
	bool fp32 = c->o.precision == RUN_FP32,
	     has_float64 = c->o.reference == REFERENCE_FLOAT64;
	const char *why;
	struct gradients g = {0};
	choices_count(c);
	/* (the kernels would turn near choices, too) */
	bool is_measured = (!fp32 || has_float64) && !c->choices.n_near &&
			   reference_can_train(&c->weights, &c->batch, &why);
	if (!is_measured && has_float64) {
		compute_rounded_gradients(c, &g);
		is_measured = true;
	} else if (is_measured && reference_trainer(&c->weights, &c->batch,
					  fp32 ? PRECISION_FP32 : PRECISION_BF16, &g, e))
		return gradients_free(&g), -1;
	double *own = xcalloc((size_t)c->n + 1, sizeof(*own));
	for (int i = 0; i < c->n; i++) {
		int k = c->tensors[i].in_model;
		own[i] = fp32 ? 2e-6 : 3e-2;
		if (is_measured) {
			const struct products p =
				products_of(g.g[k], c->reference.g[k], c->tensors[i].n);
			own[i] = residual_of(&p, 1);
		}
		if (!isfinite(own[i]))
			own[i] = 0;
	}
	set_bounds_from(c, own);
	c->loss_bound = loss_bound(c, is_measured ? g.loss : NAN);
	free(own);
	gradients_free(&g);
	return 0;
}

double *compute_bf16_bounds(const struct step_check *c, struct err *e)
{
	struct step_check copy = *c;
	size_t n = (size_t)c->n;
	copy.o.precision = RUN_BF16;
	copy.tensors = xcalloc(n + 1, sizeof(*copy.tensors));
	memcpy(copy.tensors, c->tensors, n * sizeof(*copy.tensors));
	double *bounds = xcalloc(n + 1, sizeof(*bounds));
	int rc = set_bounds(&copy, e);
	choices_widen_bounds(&copy);
	for (int i = 0; i < c->n; i++)
		bounds[i] = copy.tensors[i].gradient.bound;
	free(copy.tensors);
	if (!rc)
		return bounds;
	free(bounds);
	return NULL;
}

/* Returns the mean of the factors near `middle`, weighted by squared norms. */
static double mean_factor_near(
	const struct step_check *c, const struct products *p, double middle)
{
	double near = c->o.precision == RUN_FP32 ? 1e-4 : 0.02, ab = 0, bb = 0;
	for (int i = 0; i < c->n; i++)
		if (p[i].bb > 0 && fabs(p[i].ab / p[i].bb / middle - 1) < near) {
			ab += p[i].ab;
			bb += p[i].bb;
		}
	return bb > 0 ? ab / bb : middle;
}

/* Returns the factor of most tensors: the mean of the factors near the median. */
static double common_factor(const struct step_check *c, const struct products *p)
{
	double *f = xcalloc((size_t)c->n + 1, sizeof(*f));
	int n = 0;
	for (int i = 0; i < c->n; i++)
		if (p[i].bb > 0 && isfinite(p[i].ab) && p[i].ab != 0)
			f[n++] = p[i].ab / p[i].bb;
	double middle = n ? median(f, n) : 1;
	free(f);
	return mean_factor_near(c, p, middle);
}

/* Writes "4.000 times", and the degree, count or adapter scale that equals the factor. */
void describe_factor(
	const struct step_check *c, double factor, char *out, size_t capacity)
{
	const struct {
		int64_t n;
		const char *what;
	} degrees[] = {{c->o.dp * c->o.fsdp, "data-parallel ranks"},
		{c->o.accumulation, "accumulated micro-batches"},
		{c->o.tp, "tensor-parallel ranks"}, {c->o.cp, "context-parallel ranks"}};
	/* (rounding to bf16 changes norms this much) */
	double whole = factor < 1 ? 1 / round(1 / factor) : round(factor);
	bool near = c->o.precision != RUN_FP32 && fabs(factor / whole - 1) <= 0.005;
	size_t at = (size_t)snprintf(out, capacity, "%.4g times", near ? whole : factor);
	int n_named = 0;
	for (size_t i = 0; i < ARRAY_LEN(degrees); i++)
		for (int inverse = 0; inverse < 2 && degrees[i].n > 1 && at < capacity;
			inverse++) {
			double n = (double)degrees[i].n, want = inverse ? 1 / n : n;
			if (fabs(factor / want - 1) > 0.005)
				continue;
			at += (size_t)snprintf(out + at, capacity - at,
				"%s by the %lld %s",
				n_named++ ? ", or"
				: inverse ? ": divided once more"
					  : ": not divided",
				(long long)degrees[i].n, degrees[i].what);
		}
	const char *adapters =
		c->lora.is_zero ? lora_wrong_scale(&c->lora, factor) : NULL;
	if (adapters && at < capacity)
		snprintf(out + at, capacity - at, "%sis the scale of the adapters %s?",
			n_named ? ", or " : ": ", adapters);
	if (!n_named && c->has_reference)
		append_count_names(c, factor, out, capacity);
}

double clip_factor(double clip, double norm)
{
	return clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
}

/* Returns the bound of a tensor plus what rounding of its moments hides: the fraction `lost`. */
static double bound_with_rounding(const struct step_check *c, int i,
	const struct products *p, double lost, double common)
{
	double size = fabs(common) * sqrt(p->bb);
	return c->tensors[i].gradient.bound +
	       (size > 0 ? 2 * lost * sqrt(p->aa) / size : 0);
}

/* Counts the tensors that are right with this common factor. */
static int count_right(const struct step_check *c, const struct products *p,
	const double *lost, double common)
{
	int n = 0;
	for (int i = 0; i < c->n; i++) {
		double bound = bound_with_rounding(c, i, &p[i], lost[i], common);
		n += p[i].bb > 0 && bound < 0.5 && residual_of(&p[i], common) <= bound;
	}
	return n;
}

/* Tries the factor of each tensor as the common factor. Returns the best one; NAN if no more than
 * a third of the tensors are right with it. (If half of them are wrong, the median may be no
 * one's.) */
static double best_tensor_factor(
	const struct step_check *c, const struct products *p, const double *lost)
{
	double best = NAN;
	for (int i = 0, most = (c->n - 1) / 3; i < c->n && 2 * c->scale.n_right < c->n;
		i++) {
		double f = p[i].bb > 0 ? p[i].ab / p[i].bb : 0;
		int n = f != 0 ? count_right(c, p, lost, f) : 0;
		if (n > most) {
			most = n;
			best = f;
		}
	}
	return mean_factor_near(c, p, best);
}

/* Makes `factor` the common factor if more tensors are right with it than before. */
static void try_common_factor(
	struct step_check *c, const struct products *p, const double *lost, double factor)
{
	int n = count_right(c, p, lost, factor);
	if (n > c->scale.n_right) {
		c->scale.n_right = n;
		c->scale.common = factor;
	}
}

/* Chooses the factor with which most tensors are right, or else the expected factor. */
static void choose_common_factor(
	struct step_check *c, const struct products *p, const double *lost)
{
	double clip = c->files.adam.clip, right = clip_factor(clip, c->reference.norm);
	if (!(clip > 0))
		c->scale.run_clip = clip >= 0;
	else if (c->o.grad_norm > 0)
		c->scale.run_clip = clip_factor(clip, c->o.grad_norm);
	const double tries[] = {common_factor(c, p), c->files.two_runs ? 1 : right,
		c->scale.run_clip > 0 ? c->scale.run_clip : right};
	c->scale.common = right;
	c->scale.n_right = 0;
	for (size_t i = 0; i < ARRAY_LEN(tries); i++)
		try_common_factor(c, p, lost, tries[i]);
	try_common_factor(c, p, lost, best_tensor_factor(c, p, lost));
}

/* Returns the norm of the other run's gradient before clipping, assuming that its scale
 * is right. If tensors are wrong, it differs from the reference's norm. */
static double unclipped_norm(const struct step_check *c, const struct products *p)
{
	double squares = 0;
	for (int i = 0; i < c->n; i++)
		squares += p[i].aa;
	return sqrt(squares) / fabs(c->scale.common);
}

/* Returns the fraction of the squared norm that may be rounding of the moments. */
static double rounding_share(
	const struct step_check *c, const struct products *p, const double *lost)
{
	double noise = 0, all = 0;
	for (int i = 0; i < c->n; i++) {
		noise += lost[i] * lost[i] * p[i].aa;
		all += p[i].aa;
	}
	return all > 0 ? noise / all : 0;
}

/* Checks scale and clipping, from the logged norm and the common factor. The logged norm may be
 * off by a factor k because the gradient is, or only the norm that it was clipped by. */
static void judge_scale(
	struct step_check *c, const struct products *p, const double *lost)
{
	double norm = unclipped_norm(c, p), clip = c->files.adam.clip, off;
	double within = (c->o.precision == RUN_FP32 ? 1e-3 : 0.03) +
			rounding_share(c, p, lost) + c->choices.scale_change;
	double logged = c->o.grad_norm, k = logged > 0 ? logged / norm : 1;
	char times[200];
	const char *name = c->scale.common > 0 && clip > 0
				   ? find_norm_name(c, clip / c->scale.common)
				   : NULL;
	if (!isfinite(norm))
		return; /* (reported elsewhere) */
	if (is_close(k, 1, within + c->o.grad_norm_half / norm))
		k = 1;
	c->scale.seen_norm = fabs(c->scale.common) * norm;
	if (!c->scale.n_right) { /* (wrong gradients: only missing clipping shows) */
		if (clip > 0 && c->scale.seen_norm > clip * (1 + within))
			add_finding(c, FINDING_CLIP, NULL,
				"clip: the clipped gradient has norm %.5g, above %.5g",
				c->scale.seen_norm, clip);
		return;
	}
	if (c->scale.common < 0)
		add_finding(c, FINDING_SCALE, NULL,
			"scale: all gradients are negated: the loss is negated, or maximized%s: "
			"gradient ascent",
			c->files.after.optimizer & CKPT_MAXIMIZES
				? " (maximize=True in the file)"
				: "");
	const double common = fabs(c->scale.common);
	c->scale.clipped = clip > 0 ? norm > clip : clip < 0 && common < 1 - within;
	c->scale.checked = logged > 0 || !c->scale.clipped;
	if (clip < 0)
		off = c->scale.clipped ? 1 : common;
	else if (clip == 0)
		off = is_close(common, k, within) ? 1 : common;
	else
		off = common / (k * clip_factor(clip, k * norm));
	/* (the gradients give the factor more exactly than a norm with few digits) */
	describe_factor(c, clip == 0 && is_close(common, k, within) ? common : k, times,
		sizeof(times));
	if (k != 1 && clip > 0 && is_close(common, clip_factor(clip, logged), within) &&
		!is_close(off, 1, within)) {
		add_finding(c, FINDING_CLIP, NULL,
			"clip: grad_norm %.5g was logged and used for clipping, but the "
			"gradient has norm %.5g: %.4g times, %s%s",
			logged, norm, k, name ? "as if it were " : "",
			name ? name : "so it misses a part or counts one twice");
		return;
	}
	if (k != 1)
		add_finding(c, FINDING_SCALE, NULL,
			"scale: grad_norm %.5g was logged, but the gradient has norm %.5g: %s",
			logged, norm, times);
	if (is_close(off, 1, within))
		return;
	describe_factor(c, off, times, sizeof(times));
	if (clip > 0 && c->scale.clipped && is_close(common, 1, within))
		add_finding(c, FINDING_SCALE, NULL,
			"clip: the gradient was not clipped: its norm is %.5g, but --clip is %.5g",
			c->scale.seen_norm, clip);
	else if (clip > 0 && c->scale.clipped && c->scale.seen_norm > clip * (1 + within))
		add_finding(c, FINDING_CLIP, NULL,
			"clip: the clipped gradient has norm %.5g, above %.5g: it was divided by "
			"%.4g of its norm, %s%s",
			c->scale.seen_norm, clip, 1 / off, name ? "as if it were " : "",
			name ? name : "which misses a part");
	else if (clip > 0 && c->scale.clipped && !name && common > 0 &&
		 is_close(off, clip_factor(clip, norm), within))
		add_finding(c, FINDING_SCALE, NULL,
			"scale: all gradients are %s: as if they were clipped twice",
			times);
	else if (clip > 0 && c->scale.clipped && !name)
		add_finding(c, FINDING_SCALE, NULL,
			"scale: all gradients are %s: as if clip were %.4g instead of %.4g",
			times, c->scale.seen_norm, clip);
	else
		add_finding(c, FINDING_SCALE, NULL, "scale: all gradients are %s%s%s",
			times, name ? "; as if clipping used " : "", name ? name : "");
}

/* Checks the logged loss. If it is right, so are the forward pass and the batch. If the
 * gradients are right, a wrong loss may be from one rank or from the last micro-batch. */
static void judge_loss(struct step_check *c)
{
	double logged = c->o.loss, own = c->reference.loss;
	bool all = true;
	for (int i = 0; i < c->n; i++)
		all &= !c->tensors[i].gradient.wrong;
	if (isnan(logged))
		return;
	double off = fmin(fabs(logged - own),
		fabs(logged - own - balance_value(&c->weights, &c->batch)));
	c->loss_right = off <= c->loss_bound * c->reference.size + c->o.loss_half;
	/* (between the two bounds, it counts as neither right nor wrong) */
	double far = c->o.precision == RUN_FP32 ? c->loss_bound
		     : all			? 5e-3
						: fmin(5e-3, 10 * c->loss_bound);
	if (c->loss_right || off <= far * c->reference.size + c->o.loss_half)
		return;
	if (all && c->scale.n_right)
		add_finding(c, FINDING_NOTE, NULL,
			"loss: %.6g was logged, but the reference has %.6g, and the gradients are "
			"right: is the logged loss from one rank, or from a part of the batch?",
			logged, own);
	else
		add_finding(c, FINDING_LOSS, NULL,
			"loss: %.6g was logged, but the reference has %.6g: the batch differs, or "
			"the function differs from the model's options",
			logged, own);
}

/* Two right runs in bf16 differ by the root of the sum of both squared distances. */
static const double bounds_of_runs[] = {2e-5, 0.06, 0.1};

/* Reads exp_avg of two runs, to compare them like gradients. */
static int read_means(
	struct step_check *c, struct products *p, double *lost, struct err *e)
{
	double squares = 0;
	c->seen = xcalloc((size_t)c->n, sizeof(*c->seen));
	c->reference = (struct gradients){.n = c->weights.m.n_tensors,
		.g = xcalloc((size_t)c->weights.m.n_tensors, sizeof(*c->reference.g))};
	for (int i = 0; i < c->n; i++) {
		struct tensor_step t;
		int rc = tensor_step_read(&t, &c->files, i, STEP_MEANS, e);
		int k = c->tensors[i].in_model;
		if (!rc) {
			p[i] = products_of(t.m1, t.m0, t.n);
			squares += p[i].bb;
			lost[i] = rounding_of(t.m0, t.n) + rounding_of(t.m1, t.n);
			c->tensors[i].norm = sqrt(p[i].aa);
			c->tensors[i].unchanged = p[i].bb <= 0;
			c->tensors[i].gradient.bound = bounds_of_runs[c->o.precision];
			c->tensors[i].factor_bound =
				fmin(0.02, c->tensors[i].gradient.bound);
			if (!isfinite(p[i].aa) || !isfinite(p[i].bb))
				add_finding(c, FINDING_NOT_FINITE, &c->tensors[i],
					"not finite");
			c->reference.g[k] = t.m0;
			c->seen[i] = t.m1;
			t.m0 = t.m1 = NULL;
		}
		tensor_step_free(&t);
		if (rc)
			return -1;
	}
	c->reference.norm = sqrt(squares);
	return 0;
}

int read_seen_gradient(struct step_check *c, int tensor, double *lost, struct err *e)
{
	struct tensor_step t;
	if (c->given.n)
		return given_gradients_read(&c->given, tensor, &c->seen[tensor], lost, e);
	int rc = tensor_step_read(&t, &c->files, tensor, STEP_MEANS, e);
	if (!rc)
		c->seen[tensor] = gradient_from_means(&c->files, &t, lost);
	tensor_step_free(&t);
	return rc;
}

/* Sets p[n] to the sums of products of the optimizer's gradients with the reference gradients, and
 * lost[n] to the relative errors of the optimizer's gradients by rounding. */
static int compute_products(
	struct step_check *c, struct products *p, double *lost, struct err *e)
{
	c->seen = xcalloc((size_t)c->n, sizeof(*c->seen));
	for (int i = 0; i < c->n; i++) {
		if (read_seen_gradient(c, i, &lost[i], e))
			return -1;
		p[i] = products_of(c->seen[i], c->reference.g[c->tensors[i].in_model],
			c->tensors[i].n);
		c->tensors[i].norm = sqrt(p[i].aa);
		if (c->given.n && !isfinite(p[i].aa))
			add_finding(c, FINDING_NOT_FINITE, &c->tensors[i],
				"the gradient is not finite");
		free(c->seen[i]);
		c->seen[i] = NULL;
	}
	return 0;
}

/* Returns true if a reference gradient is zero, as of a key bias. Adds a finding if the run's is
 * not. */
static bool judge_zero_gradient(
	struct step_check *c, struct tensor_check *x, const struct products *p)
{
	double norm = c->reference.norm;
	if (!(p->bb < 1e-14 * norm * norm))
		return false;
	x->zero = true;
	if (sqrt(p->aa) > 1e-3 * fabs(c->scale.common) * norm)
		add_finding(c, FINDING_ZERO, x, "has a gradient, but should have none");
	return true;
}

/* Sets x->gradient and x->factor: the distance from the reference, after the common factor. */
static void judge_gradient(
	struct step_check *c, int i, const struct products *p, double lost)
{
	struct tensor_check *x = &c->tensors[i];
	struct distance *d = &x->gradient;
	double own = d->bound;
	if (x->frozen || !isfinite(p->aa) || judge_zero_gradient(c, x, p))
		return; /* (judge_update() reports frozen and non-finite tensors) */
	d->bound = bound_with_rounding(c, i, p, lost, c->scale.common);
	d->tested = d->bound < 0.5;
	d->value = residual_of(p, c->scale.common);
	x->factor = p->bb > 0 ? p->ab / p->bb / c->scale.common : 1;
	if (d->tested)
		d->wrong = !(d->value <= d->bound) ||
			   fabs(x->factor - 1) > x->factor_bound + d->bound - own;
}

/* Adds findings if the common factor of two runs is not 1, or if clipping hides it, the ratio of
 * the logged norms. Sets c->scale.checked. */
static void judge_scale_of_runs(struct step_check *c)
{
	const struct check_opts *o = &c->o;
	double within = o->precision == RUN_FP32 ? 1e-4 : 0.03;
	double first = o->first_norm, second = o->grad_norm;
	bool logged = o->two_norms && first > 0 && second > 0;
	char times[120];
	c->scale.checked = logged || c->files.adam.clip == 0;
	for (int i = 0; i < c->n; i++)
		if (c->tensors[i].gradient.wrong)
			return; /* (wrong gradients have other norms) */
	if (!is_close(c->scale.common, 1, within))
		add_finding(c, FINDING_SCALE, NULL,
			"scale: exp_avg of the second run is %.4g times the "
			"first run's, in all tensors",
			c->scale.common);
	else if (logged && !is_close(second, first,
				   within + o->first_norm_half / first +
					   o->grad_norm_half / first)) {
		describe_factor(c, second / first, times, sizeof(times));
		add_finding(c, FINDING_SCALE, NULL,
			"scale: grad_norm %.5g was logged by the first run, and %.5g by "
			"the second: %s",
			first, second, times);
	}
}

/* Returns true if clipping does not explain the common factor. */
static bool is_scale_wrong(const struct step_check *c)
{
	double clip = c->files.adam.clip;
	return clip >= 0 &&
	       !is_close(c->scale.common, clip_factor(clip, c->reference.norm),
		       (c->o.precision == RUN_FP32 ? 1e-3 : 0.03) +
			       c->choices.scale_change);
}

/* Compares the gradients again if another beta1 explains exp_avg. */
static int retry_with_beta1(
	struct step_check *c, struct products *p, double *lost, struct err *e)
{
	bool solved;
	if (c->given.n) /* (given gradients do not depend on beta1) */
		return 0;
	if (solve_betas(c, &solved, e))
		return -1;
	if (!solved)
		return 0;
	free(c->seen);
	if (compute_products(c, p, lost, e))
		return -1;
	choose_common_factor(c, p, lost);
	return 0;
}

int judge_gradients(struct step_check *c, struct err *e)
{
	const bool two_runs = c->files.two_runs;
	struct products *p = xcalloc((size_t)c->n, sizeof(*p));
	double *lost = xcalloc((size_t)c->n, sizeof(*lost));
	int rc = two_runs ? read_means(c, p, lost, e)
			  : set_bounds(c, e) || choices_adopt(c, e) ||
				    compute_products(c, p, lost, e);
	if (!rc)
		choose_common_factor(c, p, lost);
	if (!rc && !two_runs && !c->given.n &&
		(2 * c->scale.n_right <= c->n || is_scale_wrong(c)))
		rc = retry_with_beta1(c, p, lost, e);
	if (!rc) {
		for (int i = 0; i < c->n; i++)
			judge_gradient(c, i, &p[i], lost[i]);
	}
	if (!rc && two_runs) {
		c->scale.seen_norm = unclipped_norm(c, p) * fabs(c->scale.common);
		judge_scale_of_runs(c);
	} else if (!rc) {
		judge_loss(c);
		if (c->given.n)
			judge_given_scale(
				c, unclipped_norm(c, p) * fabs(c->scale.common));
		else
			judge_scale(c, p, lost);
	}
	free(p);
	free(lost);
	return rc ? -1 : 0;
}

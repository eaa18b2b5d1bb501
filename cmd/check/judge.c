/* The gradients that the optimizer saw against those of the reference. */
#include "check/check.h"

#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- bounds ------------------------------------------------------------------------------ */

/* What the distance to another right run in fp32 may be, at least: PyTorch and these kernels were 1e-6 to
 * 3e-6 from float64 for 2 to 32 layers. PyTorch's angles of rotations are fp32, and off in proportion to the
 * position: with 2 layers it was 5.2e-6 with 4,096 positions, and 5.9e-6 with 8,192. */
static const double least_bound = 1e-5, bound_of_position = 2e-9;

/* A tensor's distance at the precision of the run is compared with the distance of the kernels here, so many times. For
 * 1,000 right steps of small models (tests/bench/oracle/right_steps.py), PyTorch's was at most 1.7 times it with
 * autocast and 2.5 times with bf16 everywhere, and about once in fp32. In GPT-2, whose biases and layer norms PyTorch
 * sums in bf16, it was up to 10 times. */
static double times_own(const struct step_check *c)
{
	static const double times[] = {10, 2, 3};
	bool layer = c->weights.m.arch->norm == NORM_LAYER;
	/* (PEFT rounds x A^T, too: a right step with autocast was 2.5 times as far) */
	bool more = c->lora.used && c->o.precision != RUN_FP32;
	return times[c->o.precision] * (more ? 2 : 1) *
	       (layer && c->o.precision == RUN_BF16 ? 2 : 1);
}

/* Computes the gradients of a model that the kernels lack, with a random error in each weight. Three times the largest
 * error of rounding moves gradients about as far as the kernels' rounding does: 0.3 to 2 times as far in Llama, Qwen3
 * and Phi-3, in fp32 and bf16. */
static void add_rounding(const struct step_check *c, struct gradients *g)
{
	const struct variant v = {.sequence = -1,
		.noise = 3 * (c->o.precision == RUN_FP32 ? 0x1p-24 : 0x1p-9)};
	reference_float64(&c->weights, &c->batch, &v, g);
}

/* Where a gradient is a small difference of large terms, as of queries and keys whose scores hardly matter, rounding
 * differs more from program to program. */
static double times_cancelled(const struct step_check *c)
{
	static const double times[] = {30, 8, 12};
	return times[c->o.precision];
}

/* Sets the bounds of all tensors. own[n]: the distances of the kernels here from float64. */
static void set_bounds_by(struct step_check *c, const double *own)
{
	double least = least_bound + bound_of_position * (double)c->batch.length;
	bool layer = c->weights.m.arch->norm == NORM_LAYER;
	double *sorted = xcalloc((size_t)c->n + 1, sizeof(*sorted));
	int n = 0;
	for (int i = 0; i < c->n; i++) /* (A of adapters has no gradient while B is 0) */
		if (own[i] > 0)
			sorted[n++] = own[i];
	double middle = n ? median(sorted, n) : 0;
	free(sorted);
	for (int i = 0; i < c->n; i++) {
		struct tensor_check *x = &c->of[i];
		bool fp32 = c->o.precision == RUN_FP32;
		double is = fmax(own[i], fp32 ? 0 : layer ? middle : middle / 2);
		/* (PyTorch sums the gradients of norms and biases in bf16) */
		bool summed = layer && c->o.precision == RUN_BF16 &&
			      c->weights.m.tensors[x->in_model].ndim == 1;
		is *= summed ? 2 : 1;
		/* (of few elements, two draws of the noise differ more) */
		double few = 1 + 3 / sqrt((double)x->n);
		double times = own[i] > 1.5 * middle ? times_cancelled(c) : times_own(c);
		x->gradient.bound = fmax(least, times * few * is);
		x->factor_bound =
			fp32 ? x->gradient.bound
			     : fmin(fmax(0.02, 3 * few * is), x->gradient.bound);
	}
}

/* What rounding makes of the loss, relative to it. `here`: the loss of the kernels here; NAN: not known. In bf16 the
 * losses of right steps were 1e-5 off in the median, and up to 1.3e-3 with few targets. */
static double loss_bound(const struct step_check *c, double here)
{
	double own = fabs(here / c->reference.loss - 1);
	if (c->o.precision == RUN_FP32)
		return 2e-5;
	return 1e-3 / sqrt((double)max64(1, c->batch.counted)) +
	       (isfinite(own) ? own : 0);
}

static int set_bounds(struct step_check *c, struct err *e)
{
	bool fp32 = c->o.precision == RUN_FP32,
	     exact = c->o.reference == REFERENCE_FLOAT64;
	const char *why;
	struct gradients g = {0};
	bool measures =
		(!fp32 || exact) && reference_can_train(&c->weights, &c->batch, &why);
	if (!measures && exact) {
		add_rounding(c, &g);
		measures = true;
	} else if (measures && reference_trainer(&c->weights, &c->batch,
				       fp32 ? PRECISION_FP32 : PRECISION_BF16, &g, e))
		return gradients_free(&g), -1;
	double *own = xcalloc((size_t)c->n + 1, sizeof(*own));
	for (int i = 0; i < c->n; i++) {
		int k = c->of[i].in_model;
		own[i] = fp32 ? 2e-6 : 3e-2;
		if (measures) {
			const struct products p =
				products_of(g.g[k], c->reference.g[k], c->of[i].n);
			own[i] = residual_of(&p, 1);
		}
		if (!isfinite(own[i]))
			own[i] = 0;
	}
	set_bounds_by(c, own);
	c->loss_bound = loss_bound(c, measures ? g.loss : NAN);
	free(own);
	gradients_free(&g);
	return 0;
}

double *bounds_in_bf16(const struct step_check *c, struct err *e)
{
	struct step_check as = *c;
	size_t n = (size_t)c->n;
	as.o.precision = RUN_BF16;
	as.of = xcalloc(n + 1, sizeof(*as.of));
	memcpy(as.of, c->of, n * sizeof(*as.of));
	double *bounds = xcalloc(n + 1, sizeof(*bounds));
	int rc = set_bounds(&as, e);
	for (int i = 0; i < c->n; i++)
		bounds[i] = as.of[i].gradient.bound;
	free(as.of);
	if (!rc)
		return bounds;
	free(bounds);
	return NULL;
}

/* ---- the common factor -------------------------------------------------------------------- */

/* The mean of the factors near this one, by their squares. */
static double mean_near(
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

/* Of most tensors: first the median, then the mean of those near it. */
static double common_factor(const struct step_check *c, const struct products *p)
{
	double *f = xcalloc((size_t)c->n + 1, sizeof(*f));
	int n = 0;
	for (int i = 0; i < c->n; i++)
		if (p[i].bb > 0 && isfinite(p[i].ab) && p[i].ab != 0)
			f[n++] = p[i].ab / p[i].bb;
	double middle = n ? median(f, n) : 1;
	free(f);
	return mean_near(c, p, middle);
}

/* "4.000 times", and what of the layout has this degree. */
void say_times(const struct step_check *c, double factor, char *out, size_t room)
{
	const struct {
		int64_t n;
		const char *what;
	} of[] = {{c->o.dp * c->o.fsdp, "data-parallel ranks"},
		{c->o.accumulation, "micro-batches that are accumulated"},
		{c->o.tp, "tensor-parallel ranks"}, {c->o.cp, "context-parallel ranks"}};
	/* (rounding to bf16 changes norms by as much) */
	double whole = factor < 1 ? 1 / round(1 / factor) : round(factor);
	bool near = c->o.precision != RUN_FP32 && fabs(factor / whole - 1) <= 0.005;
	size_t at = (size_t)snprintf(out, room, "%.4g times", near ? whole : factor);
	int said = 0;
	for (size_t i = 0; i < ARRAY_LEN(of); i++)
		for (int up = 0; up < 2 && of[i].n > 1 && at < room; up++) {
			double n = (double)of[i].n, want = up ? 1 / n : n;
			if (fabs(factor / want - 1) > 0.005)
				continue;
			at += (size_t)snprintf(out + at, room - at, "%s by the %lld %s",
				said++ ? ", or"
				: up   ? ": divided once more"
				       : ": not divided",
				(long long)of[i].n, of[i].what);
		}
	const char *adapters =
		c->lora.is_zero ? lora_wrong_scale(&c->lora, factor) : NULL;
	if (adapters && at < room)
		snprintf(out + at, room - at, "%sis the scale of the adapters %s?",
			said ? ", or " : ": ", adapters);
	if (!said && c->has_reference)
		add_count_names(c, factor, out, room);
}

double clip_factor(double clip, double norm)
{
	return clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
}

/* The bound of a tensor, with what the rounding of its moments hides of the gradient: `lost` of what was seen. */
static double bound_of(const struct step_check *c, int i, const struct products *p,
	double lost, double common)
{
	double size = fabs(common) * sqrt(p->bb);
	return c->of[i].gradient.bound + (size > 0 ? 2 * lost * sqrt(p->aa) / size : 0);
}

/* How many tensors are right with this common factor? */
static int count_right(const struct step_check *c, const struct products *p,
	const double *lost, double common)
{
	int n = 0;
	for (int i = 0; i < c->n; i++) {
		double bound = bound_of(c, i, &p[i], lost[i], common);
		n += p[i].bb > 0 && bound < 0.5 && residual_of(&p[i], common) <= bound;
	}
	return n;
}

/* Where as many tensors are wrong as right, the median is no factor of either: that of a tensor with which the most are
 * right. A third of them, at least: some may have a factor of their own. */
static double factor_of_one(
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
	return mean_near(c, p, best);
}

static void try_common(
	struct step_check *c, const struct products *p, const double *lost, double factor)
{
	int n = count_right(c, p, lost, factor);
	if (n > c->scale.n_right) {
		c->scale.n_right = n;
		c->scale.common = factor;
	}
}

/* The factor with which most tensors are right; if none is, the one that would be right. */
static void choose_common(
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
		try_common(c, p, lost, tries[i]);
	try_common(c, p, lost, factor_of_one(c, p, lost));
}

/* The norm of the gradient of the other run before clipping, if its scale is the reference's: that of what its
 * optimizer saw. Where tensors are wrong, it is not the reference's. */
static double their_norm(const struct step_check *c, const struct products *p)
{
	double squares = 0;
	for (int i = 0; i < c->n; i++)
		squares += p[i].aa;
	return sqrt(squares) / fabs(c->scale.common);
}

static bool near(double a, double b, double within)
{
	return fabs(a / b - 1) <= within;
}

/* The part of the norm that the rounding of moments makes. */
static double hidden(
	const struct step_check *c, const struct products *p, const double *lost)
{
	double noise = 0, all = 0;
	for (int i = 0; i < c->n; i++) {
		noise += lost[i] * lost[i] * p[i].aa;
		all += p[i].aa;
	}
	return all > 0 ? noise / all : 0;
}

/* The scale of the gradient and its clipping: the norm that was logged, and the common factor. The factor k of
 * the norm is one of the gradient, or only of the norm that it was clipped by. */
static void judge_scale(
	struct step_check *c, const struct products *p, const double *lost)
{
	double norm = their_norm(c, p), clip = c->files.adam.clip, off;
	double within = (c->o.precision == RUN_FP32 ? 1e-3 : 0.03) + hidden(c, p, lost);
	double logged = c->o.grad_norm, k = logged > 0 ? logged / norm : 1;
	char times[200];
	const char *name = c->scale.common > 0 && clip > 0
				   ? name_of_norm(c, clip / c->scale.common)
				   : NULL;
	if (!isfinite(norm))
		return; /* which is a finding by itself */
	if (near(k, 1, within + c->o.grad_norm_half / norm))
		k = 1;
	c->scale.seen_norm = fabs(c->scale.common) * norm;
	if (!c->scale.n_right) { /* another gradient: its scale says nothing, but that it was not clipped enough */
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
		off = near(common, k, within) ? 1 : common;
	else
		off = common / (k * clip_factor(clip, k * norm));
	/* (few digits of the norm tell a factor less exactly than the gradients do) */
	say_times(c, clip == 0 && near(common, k, within) ? common : k, times,
		sizeof(times));
	if (k != 1 && clip > 0 && near(common, clip_factor(clip, logged), within) &&
		!near(off, 1, within)) {
		add_finding(c, FINDING_CLIP, NULL,
			"clip: grad_norm %.5g was logged and clipped by, and that of the gradient is "
			"%.5g: %.4g times, %s%s",
			logged, norm, k, name ? "as if it were " : "",
			name ? name : "so it misses a part or has one twice");
		return;
	}
	if (k != 1)
		add_finding(c, FINDING_SCALE, NULL,
			"scale: grad_norm %.5g was logged, and that of the gradient is %.5g: %s",
			logged, norm, times);
	if (near(off, 1, within))
		return;
	say_times(c, off, times, sizeof(times));
	if (clip > 0 && c->scale.clipped && near(common, 1, within))
		add_finding(c, FINDING_SCALE, NULL,
			"clip: the gradient was not clipped: its norm is %.5g, and --clip is %.5g",
			c->scale.seen_norm, clip);
	else if (clip > 0 && c->scale.clipped && c->scale.seen_norm > clip * (1 + within))
		add_finding(c, FINDING_CLIP, NULL,
			"clip: the clipped gradient has norm %.5g, above %.5g: the norm that it was "
			"divided by is %.4g of its own, %s%s",
			c->scale.seen_norm, clip, 1 / off, name ? "as if it were " : "",
			name ? name : "which misses a part");
	else if (clip > 0 && c->scale.clipped && !name && common > 0 &&
		 near(off, clip_factor(clip, norm), within))
		add_finding(c, FINDING_SCALE, NULL,
			"scale: all gradients are %s: as if they were clipped twice",
			times);
	else if (clip > 0 && c->scale.clipped && !name)
		add_finding(c, FINDING_SCALE, NULL,
			"scale: all gradients are %s: as if clip were %.4g instead of %.4g",
			times, c->scale.seen_norm, clip);
	else
		add_finding(c, FINDING_SCALE, NULL, "scale: all gradients are %s%s%s",
			times,
			name ? "; as if the norm that they are clipped by were " : "",
			name ? name : "");
}

/* The loss: if it is right, so is the forward pass, and the batch is the run's. If the gradients are, another loss
 * may be that of a rank, or of the last micro-batch. */
static void judge_loss(struct step_check *c)
{
	double logged = c->o.loss, own = c->reference.loss;
	bool all = true;
	for (int i = 0; i < c->n; i++)
		all &= !c->of[i].gradient.wrong;
	if (isnan(logged))
		return;
	double off = fabs(logged - own);
	c->loss_right = off <= c->loss_bound * c->reference.size + c->o.loss_half;
	/* (between the two bounds, it is neither right nor wrong) */
	double far = c->o.precision == RUN_FP32 ? c->loss_bound
		     : all			? 5e-3
						: fmin(5e-3, 10 * c->loss_bound);
	if (c->loss_right || off <= far * c->reference.size + c->o.loss_half)
		return;
	if (all && c->scale.n_right)
		add_finding(c, FINDING_NOTE, NULL,
			"loss: %.6g was logged, and the reference's is %.6g, of which the gradients "
			"are right: is the logged one of one rank, or a part of the batch?",
			logged, own);
	else
		add_finding(c, FINDING_LOSS, NULL,
			"loss: %.6g was logged, and the reference's is %.6g: another batch, or "
			"another function than the model's options say",
			logged, own);
}

/* ---- all tensors -------------------------------------------------------------------------- */

/* Two right runs of bf16 differ from each other by the roots of both distances. */
static const double bounds_of_runs[] = {2e-5, 0.06, 0.1};

/* Two runs of one step: their exp_avg are compared as if they were gradients. */
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
		int k = c->of[i].in_model;
		if (!rc) {
			p[i] = products_of(t.m1, t.m0, t.n);
			squares += p[i].bb;
			lost[i] = rounding_of(t.m0, t.n) + rounding_of(t.m1, t.n);
			c->of[i].norm = sqrt(p[i].aa);
			c->of[i].unchanged = p[i].bb <= 0;
			c->of[i].gradient.bound = bounds_of_runs[c->o.precision];
			c->of[i].factor_bound = fmin(0.02, c->of[i].gradient.bound);
			if (!isfinite(p[i].aa) || !isfinite(p[i].bb))
				add_finding(
					c, FINDING_NOT_FINITE, &c->of[i], "not finite");
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

int read_seen(struct step_check *c, int tensor, double *lost, struct err *e)
{
	struct tensor_step t;
	if (c->given.n)
		return given_read(&c->given, tensor, &c->seen[tensor], lost, e);
	int rc = tensor_step_read(&t, &c->files, tensor, STEP_MEANS, e);
	if (!rc)
		c->seen[tensor] = seen_gradient(&c->files, &t, lost);
	tensor_step_free(&t);
	return rc;
}

/* The products of the gradients that were seen and the reference's. */
static int multiply(struct step_check *c, struct products *p, double *lost, struct err *e)
{
	c->seen = xcalloc((size_t)c->n, sizeof(*c->seen));
	for (int i = 0; i < c->n; i++) {
		if (read_seen(c, i, &lost[i], e))
			return -1;
		p[i] = products_of(
			c->seen[i], c->reference.g[c->of[i].in_model], c->of[i].n);
		c->of[i].norm = sqrt(p[i].aa);
		if (c->given.n && !isfinite(p[i].aa))
			add_finding(c, FINDING_NOT_FINITE, &c->of[i],
				"the gradient is not finite");
		free(c->seen[i]);
		c->seen[i] = NULL;
	}
	return 0;
}

/* A gradient that is zero but for rounding, as of the biases of keys, tells nothing but that there is none. */
static bool judge_zero(
	struct step_check *c, struct tensor_check *x, const struct products *p)
{
	double norm = c->reference.norm;
	if (!(p->bb < 1e-14 * norm * norm))
		return false;
	x->zero = true;
	if (sqrt(p->aa) > 1e-3 * fabs(c->scale.common) * norm)
		add_finding(c, FINDING_ZERO, x, "has a gradient, and should have none");
	return true;
}

static void judge_tensor(
	struct step_check *c, int i, const struct products *p, double lost)
{
	struct tensor_check *x = &c->of[i];
	struct distance *d = &x->gradient;
	double own = d->bound;
	if (x->frozen || !isfinite(p->aa) || judge_zero(c, x, p))
		return; /* (judge_update() names what is frozen or not finite) */
	d->bound = bound_of(c, i, p, lost, c->scale.common);
	d->tested = d->bound < 0.5;
	d->value = residual_of(p, c->scale.common);
	x->factor = p->bb > 0 ? p->ab / p->bb / c->scale.common : 1;
	if (d->tested)
		d->wrong = !(d->value <= d->bound) ||
			   fabs(x->factor - 1) > x->factor_bound + d->bound - own;
}

/* A factor of all gradients: of exp_avg, or, if clipping divides it out, of the norms that were logged. */
static void judge_scale_of_runs(struct step_check *c)
{
	const struct check_opts *o = &c->o;
	double within = o->precision == RUN_FP32 ? 1e-4 : 0.03;
	double first = o->first_norm, second = o->grad_norm;
	bool logged = o->two_norms && first > 0 && second > 0;
	char times[120];
	c->scale.checked = logged || c->files.adam.clip == 0;
	for (int i = 0; i < c->n; i++)
		if (c->of[i].gradient.wrong)
			return; /* another gradient has another norm */
	if (!near(c->scale.common, 1, within))
		add_finding(c, FINDING_SCALE, NULL,
			"scale: exp_avg is %.4g times the first run's, in all tensors",
			c->scale.common);
	else if (logged && !near(second, first,
				   within + o->first_norm_half / first +
					   o->grad_norm_half / first)) {
		say_times(c, second / first, times, sizeof(times));
		add_finding(c, FINDING_SCALE, NULL,
			"scale: grad_norm %.5g was logged of the first run, and %.5g of the "
			"second: %s",
			first, second, times);
	}
}

/* Is the common factor another one than clipping explains? */
static bool scale_is_off(const struct step_check *c)
{
	double clip = c->files.adam.clip;
	return clip >= 0 && !near(c->scale.common, clip_factor(clip, c->reference.norm),
				    c->o.precision == RUN_FP32 ? 1e-3 : 0.03);
}

/* With another beta1, if one is solved for. */
static int judge_again(
	struct step_check *c, struct products *p, double *lost, struct err *e)
{
	bool solved;
	if (c->given.n) /* (gradients that are given follow from no beta1) */
		return 0;
	if (solve_betas(c, &solved, e))
		return -1;
	if (!solved)
		return 0;
	free(c->seen);
	if (multiply(c, p, lost, e))
		return -1;
	choose_common(c, p, lost);
	return 0;
}

int judge_gradients(struct step_check *c, struct err *e)
{
	const bool two = c->files.two_runs;
	struct products *p = xcalloc((size_t)c->n, sizeof(*p));
	double *lost = xcalloc((size_t)c->n, sizeof(*lost));
	int rc = two ? read_means(c, p, lost, e)
		     : set_bounds(c, e) || multiply(c, p, lost, e);
	if (!rc)
		choose_common(c, p, lost);
	/* (gradients that are given do not depend on beta1) */
	if (!rc && !two && !c->given.n &&
		(2 * c->scale.n_right <= c->n || scale_is_off(c)))
		rc = judge_again(c, p, lost, e);
	if (!rc) {
		for (int i = 0; i < c->n; i++)
			judge_tensor(c, i, &p[i], lost[i]);
	}
	if (!rc && two) {
		c->scale.seen_norm = their_norm(c, p) * fabs(c->scale.common);
		judge_scale_of_runs(c);
	} else if (!rc) {
		judge_loss(c);
		if (c->given.n)
			judge_given_scale(c, their_norm(c, p) * fabs(c->scale.common));
		else
			judge_scale(c, p, lost);
	}
	free(p);
	free(lost);
	return rc ? -1 : 0;
}

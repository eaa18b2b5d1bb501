/* Gradients that the other run saved: reads them and compares them between ranks, with the
 * reference's scale and with the moments. */
#include "check/check.h"

#include "archive/safetensors.h"
#include "base/file.h"
#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Appends an open view of a file with gradients, which may lack some of the model's tensors. */
static int open_gradient_file(struct given_gradients *g, const char *path,
	const struct lora *lora, struct err *e)
{
	const struct container *c = text_ends(path, ".safetensors")
					    ? &container_safetensors
					    : find_container(path);
	const int64_t k = g->n;
	if (!c)
		return err_set(e, file_exists(path) ? EX_DATAERR : EX_IOERR,
			file_exists(path)
				? "%s: neither a file of torch.save or safetensors, nor a "
				  "directory of torch.distributed.checkpoint"
				: "%s: No such file or directory",
			path);
	g->files = xgrow(g->files, k, sizeof(*g->files));
	g->found = xgrow(g->found, k, sizeof(*g->found));
	g->found[k] = xcalloc((size_t)g->model_view->n_tensors + 1, sizeof(**g->found));
	const struct open_options how = {
		.gradients_of = g->model_view, .found = g->found[k]};
	for (int i = 0; i < g->model_view->n_tensors && lora->used; i++)
		g->found[k][i] = true; /* (the view has no other tensors) */
	if (lora->used ? lora_open_view(&g->files[k], lora, path, true, e)
		       : convert_torch.open(&g->files[k], path, c, &how, e))
		return free(g->found[k]), -1;
	g->n++;
	return 0;
}

int given_gradients_open(struct given_gradients *g, const struct strs *files,
	const struct ckpt_view *model_view, const struct lora *lora, struct err *e)
{
	*g = (struct given_gradients){.model_view = model_view, .loss_scale = 1};
	for (int64_t i = 0; i < files->n; i++)
		if (open_gradient_file(g, files->v[i], lora, e))
			return -1;
	return 0;
}

void given_gradients_close(struct given_gradients *g)
{
	for (int64_t k = 0; k < g->n; k++) {
		ckpt_view_close(&g->files[k]);
		free(g->found[k]);
	}
	free(g->files);
	free(g->found);
	*g = (struct given_gradients){0};
}

/* Returns the index of a tensor of g->model_view in file k; -1 if the file lacks it. */
static int find_in_file(const struct given_gradients *g, int64_t k, int tensor)
{
	int index = ckpt_view_find(&g->files[k], g->model_view->tensors[tensor].name);
	return index >= 0 && g->found[k][index] ? index : -1;
}

int given_gradients_read(const struct given_gradients *g, int tensor, float **x,
	double *lost, struct err *e)
{
	const int64_t n = ckpt_size(&g->model_view->tensors[tensor]);
	int index = -1;
	*x = NULL;
	*lost = 0;
	for (int64_t k = 0; k < g->n && index < 0; k++) {
		index = find_in_file(g, k, tensor);
		if (index >= 0)
			*x = ckpt_view_tensor(&g->files[k], index, e);
	}
	if (index >= 0 && !*x)
		return -1;
	if (!*x)
		*x = xcalloc((size_t)max64(1, n), sizeof(**x));
	*lost = rounding_of(*x, n);
	return 0;
}

void append_given_names(const struct given_gradients *g, struct str *out)
{
	enum { MAX_NAMES = 4 };
	for (int64_t k = 0; k < g->n && k < MAX_NAMES; k++)
		str_printf(out, "%s%s", k ? ", " : "", g->files[k].name);
	if (g->n > MAX_NAMES)
		str_printf(out, " and %lld more", (long long)g->n - MAX_NAMES);
}

void append_given_line(const struct given_gradients *g, int n, struct str *out)
{
	int found = 0;
	for (int i = 0; i < n && g->n; i++) {
		bool any = false;
		for (int64_t k = 0; k < g->n; k++)
			any |= find_in_file(g, k, i) >= 0;
		found += any;
	}
	if (!g->n)
		return;
	str_puts(out, "given   ");
	append_given_names(g, out);
	str_printf(out, ": gradients of %d of %d tensors\n", found, n);
}

/* Compares a tensor's gradient in file k with the first file that has it. Sets *at to the
 * first differing element, or -1. */
static int compare_copy(const struct given_gradients *g, int64_t k, int tensor,
	int64_t *at, double value[2], struct err *e)
{
	const int64_t n = ckpt_size(&g->model_view->tensors[tensor]);
	int index[2] = {-1, find_in_file(g, k, tensor)};
	int64_t k_first = 0;
	*at = -1;
	for (; k_first < k && index[0] < 0; k_first++)
		index[0] = find_in_file(g, k_first, tensor);
	if (index[0] < 0 || index[1] < 0)
		return 0;
	float *a = ckpt_view_tensor(&g->files[k_first - 1], index[0], e);
	float *b = a ? ckpt_view_tensor(&g->files[k], index[1], e) : NULL;
	for (int64_t j = 0; b && j < n && *at < 0; j++)
		if (memcmp(&a[j], &b[j], sizeof(*a)) != 0) {
			*at = j;
			value[0] = (double)a[j];
			value[1] = (double)b[j];
		}
	free(a);
	free(b);
	return e->code ? -1 : 0;
}

int judge_given_copies(struct step_check *c, struct err *e)
{
	const struct given_gradients *g = &c->given;
	for (int64_t k = 1; k < g->n; k++) {
		double value[2], of_first[2] = {0};
		int64_t at, first_at = 0;
		int n = 0, first = -1;
		for (int i = 0; i < c->n; i++) {
			if (compare_copy(g, k, i, &at, value, e))
				return -1;
			n += at >= 0;
			if (at < 0 || first >= 0)
				continue;
			first = i;
			first_at = at;
			memcpy(of_first, value, sizeof(value));
		}
		if (n)
			add_finding(c, FINDING_COPIES, NULL,
				"copies: the gradients in %s differ from the preceding files in "
				"%d tensor%s: the first is %s, element %lld, %.6g and %.6g",
				g->files[k].name, n, plural(n), c->tensors[first].name,
				(long long)first_at, of_first[1], of_first[0]);
	}
	return 0;
}

/* (Smaller powers of two may be numbers of ranks.) */
enum { MIN_LOSS_SCALE = 256 };

/* Returns the loss scale, a power of two, if x is `expected` times such a scale; else 0.
 * (GradScaler starts with 65536, and halves and doubles it.) */
static double loss_scale_of(double x, double expected, double within)
{
	double power = exp2(round(log2(x / expected)));
	return power >= MIN_LOSS_SCALE && power <= 0x1p40 &&
			       is_close(x, power * expected, within)
		       ? power
		       : 0;
}

/* Returns true if a missing division can cause this factor: it equals a count of the step. */
static bool is_possible_divisor(const struct step_check *c, double factor)
{
	const struct check_opts *o = &c->o;
	const double ranks = (double)(o->dp * o->fsdp), micro = (double)o->accumulation;
	const double counts[] = {(double)c->batch.counted,
		(double)(c->batch.n * c->batch.length), (double)c->batch.n, ranks, micro,
		ranks * micro, (double)o->tp, (double)o->cp,
		(double)c->batch.counted / (ranks * micro)};
	for (size_t i = 0; i < ARRAY_LEN(counts); i++)
		if (is_close(factor, counts[i], 1e-3))
			return true;
	return false;
}

/* Checks the logged norm: it belongs to gradients before clipping and without a loss scale. */
static void judge_logged_norm(struct step_check *c, double norm, double within)
{
	double logged = c->o.grad_norm;
	char times[120];
	if (!(logged > 0) || is_close(logged, norm, within + c->o.grad_norm_half / norm))
		return;
	describe_factor(c, logged / norm, times, sizeof(times));
	add_finding(c, FINDING_SCALE, NULL,
		"scale: grad_norm %.5g was logged, but the gradient has norm %.5g: %s",
		logged, norm, times);
}

void judge_given_scale(struct step_check *c, double given_norm)
{
	const double clip = c->files.adam.clip, factor = c->scale.common;
	const double within =
		(c->o.precision == RUN_FP32 ? 1e-3 : 0.03) + c->choices.scale_change;
	const double norm = given_norm / fabs(factor),
		     clipped_factor = clip_factor(clip, norm);
	double scale = factor > 0 ? loss_scale_of(factor, 1, within) : 0;
	char times[120];
	c->scale.seen_norm = given_norm;
	if (!c->scale.n_right || !isfinite(norm) || !(norm > 0))
		return;
	judge_logged_norm(c, norm, within);
	c->scale.checked = true;
	if (is_close(factor, 1, within))
		return;
	if (is_close(factor, clipped_factor, within)) {
		c->scale.clipped = true;
	} else if (clip < 0 && factor > 0 && factor < 1) {
		c->scale.clipped = true;
		c->scale.checked = c->o.grad_norm > 0;
	} else if (scale > 0 && is_close(c->given.loss_scale, scale, 1e-9)) {
		add_finding(c, FINDING_NOTE, NULL,
			"scale: the gradients in --grads are %.0f times the reference, but exp_avg "
			"is not: the run removed a loss scale after it saved the gradients",
			scale);
	} else if (scale > 0 && !is_possible_divisor(c, factor)) {
		c->scale.checked = false;
		c->given.loss_scale = scale;
		add_finding(c, FINDING_NOTE, NULL,
			"scale: all gradients are %.0f times the reference, as with a loss scale "
			"(GradScaler): save them after scaler.unscale_(optimizer)",
			scale);
	} else {
		describe_factor(c, factor, times, sizeof(times));
		add_finding(c, FINDING_SCALE, NULL, "scale: all gradients are %s", times);
	}
}

/* The gradient that exp_avg of a tensor gained, compared with the given gradient. */
struct gain {
	struct products p;
	double bound;
	bool tested;
};

/* Compares what exp_avg of a tensor gained with the tensor's given gradient. */
static int read_gain(struct step_check *c, int tensor, struct gain *x, struct err *e)
{
	struct tensor_step t;
	double lost, rounded;
	float *given = NULL, *gained = NULL;
	int rc = tensor_step_read(&t, &c->files, tensor, STEP_MEANS, e) ||
		 given_gradients_read(&c->given, tensor, &given, &rounded, e);
	if (!rc) {
		gained = gradient_from_means(&c->files, &t, &lost);
		x->p = products_of(gained, given, t.n);
		x->bound = 1e-6 + 4 * lost + 2 * rounded;
		x->tested = x->p.bb > 0 && isfinite(x->p.aa) && isfinite(x->p.bb) &&
			    x->bound < 0.5;
	}
	free(given);
	free(gained);
	tensor_step_free(&t);
	return rc ? -1 : 0;
}

/* Compares the factor of exp_avg's gain with clipping and with loss scales, 2^8 to 2^40. */
static void judge_moment_factor(struct step_check *c, double given_norm)
{
	const double clip = c->files.adam.clip, factor = c->given.factor, within = 1e-3;
	double expected = clip_factor(clip, given_norm), scale = 0;
	for (int k = 8; k <= 40 && !(scale > 0); k++) {
		double power = exp2(k);
		if (is_close(factor * power, clip_factor(clip, given_norm / power),
			    within))
			scale = power;
	}
	if (is_close(factor, 1, within) || is_close(factor, expected, within) ||
		(clip < 0 && factor > 0 && factor < 1)) {
		if (clip < 0 && scale > 0)
			c->given.loss_scale = scale;
	} else if (scale > 0) {
		c->given.loss_scale = scale;
	} else {
		add_finding(c, FINDING_CLIP, NULL,
			"clip: exp_avg gained %.5g times the gradients in --grads, but clipping "
			"their norm %.5g to %.4g gives a factor of %.5g: is beta1 wrong?",
			factor, given_norm, fmax(clip, 0), expected);
	}
}

int judge_given_moments(struct step_check *c, struct err *e)
{
	struct gain *x = xcalloc((size_t)c->n + 1, sizeof(*x));
	double *factors = xcalloc((size_t)c->n + 1, sizeof(*factors)), squares = 0;
	int n = 0, rc = 0, wrong = 0;
	const bool applies = c->given.n && c->files.m1 >= 0;
	for (int i = 0; i < c->n && applies && !rc; i++) {
		rc = c->tensors[i].frozen ? 0 : read_gain(c, i, &x[i], e);
		squares += x[i].p.bb;
		if (x[i].tested)
			factors[n++] = x[i].p.ab / x[i].p.bb;
	}
	c->given.factor = n && !rc ? median(factors, n) : 0;
	for (int i = 0; i < c->n && n && !rc; i++)
		if (x[i].tested &&
			!(residual_of(&x[i].p, c->given.factor) <= x[i].bound)) {
			wrong++;
			add_finding(c, FINDING_MOMENTS, &c->tensors[i],
				"exp_avg did not gain the gradient in --grads");
		}
	if (n && !rc && !wrong)
		judge_moment_factor(c, sqrt(squares));
	free(x);
	free(factors);
	return rc;
}

/* Reads two checkpoints of one step. */
#include "check/step_files.h"

#include "lora/lora.h"
#include "foreign/foreign.h"
#include "engine/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double option_or(double option, double fallback)
{
	return option >= 0 ? option : fallback;
}

/* Sets the optimizer's settings from options and files. Uses pt's defaults of betas and eps,
 * which nearly all language models use, but not of the other settings. */
static int set_adam_options(struct step_files *s, const struct adam *asked, struct err *e)
{
	struct train_opts o;
	if (opts_from_text(&train_program, &o, s->after.config.s, true, e))
		return err_prefix(e, "%s: ", s->after.name);
	bool has_clip = s->after.config.s && strstr(s->after.config.s, "clip = ");
	bool has_decay =
		s->after.config.s && strstr(s->after.config.s, "weight-decay = ");
	s->adam = (struct adam){.beta1 = option_or(asked->beta1, o.beta1),
		.beta2 = option_or(asked->beta2, o.beta2),
		.eps = option_or(asked->eps, o.eps),
		.decay = option_or(asked->decay, has_decay ? o.weight_decay : -1),
		.clip = option_or(asked->clip, has_clip ? o.clip : -1),
		.lr = asked->lr};
	opts_free(&train_program, &o);
	return 0;
}

/* Checks that both files have the same tensors. */
static int check_tensors(const struct step_files *s, struct err *e)
{
	const struct ckpt_view *a = &s->before, *b = &s->after;
	for (int i = 0; i < b->n_tensors; i++) {
		int k = ckpt_view_find(a, b->tensors[i].name);
		if (k < 0 || !ckpt_same_shape(&a->tensors[k], &b->tensors[i]))
			return err_set(e, EX_DATAERR,
				k < 0 ? "%s: tensor %s is missing, but %s has it"
				      : "%s: the shape of %s differs from its shape in %s",
				a->name, b->tensors[i].name, b->name);
	}
	if (a->n_tensors == b->n_tensors)
		return 0;
	return err_set(e, EX_DATAERR, "%s has %d tensors, but %s has %d", a->name,
		a->n_tensors, b->name, b->n_tensors);
}

/* Reads a tensor of a group; NULL if group < 0 or *e is set. */
static float *read_tensor(const struct ckpt_view *v, int group, int tensor, struct err *e)
{
	const struct ckpt_tensor *t = &v->tensors[tensor];
	const struct ckpt_rows rows = {group, tensor, 0, t->dims[0]};
	if (group < 0 || e->code)
		return NULL;
	float *x = xmalloc((size_t)max64(1, ckpt_size(t)) * sizeof(*x));
	v->read(v, &rows, x, e);
	return x;
}

static double vector_norm(const float *x, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; x && i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return sqrt(sum);
}

/* Sets *zero to whether all exp_avg of the first file are zero. */
static int detect_zero_moments(const struct step_files *s, bool *zero, struct err *e)
{
	*zero = true;
	for (int i = 0; i < s->before.n_tensors && *zero; i++) {
		int64_t n = ckpt_size(&s->before.tensors[i]);
		float *m = read_tensor(&s->before, s->m0, i, e);
		if (e->code)
			return free(m), -1;
		*zero = vector_norm(m, n) <= 0;
		free(m);
	}
	return 0;
}

/* Sets the step counts. Returns -1 unless the files are one step apart or from two runs. Some
 * programs count the step in which they create zero moments. Others load only the parameters of
 * such a file, and start to count again. */
static int set_step_counts(struct step_files *s, enum run_count runs, struct err *e)
{
	bool zero = true;
	s->from = -1;
	if (s->m1 < 0) {
		s->m0 = s->v0 = -1;
		return 0;
	}
	if (s->m0 >= 0 && detect_zero_moments(s, &zero, e))
		return -1;
	if (zero) {
		s->m0 = s->v0 = -1;
		if (s->step <= 2)
			return 0;
		return err_set(e, EX_TROUBLE,
			"%s is step %.0f of its optimizer, but %s has no moments: both "
			"checkpoints need moments, except before the first step",
			s->after.name, s->step, s->before.name);
	}
	s->from = (double)s->before.info.step;
	s->two_runs = runs == TWO_RUNS || (runs == ONE_OR_TWO_RUNS && s->from == s->step);
	if (s->two_runs)
		return 0;
	if (s->step - s->from <= 1)
		return 0;
	return err_set(e, EX_TROUBLE,
		"%s and %s are steps %.0f and %.0f of the optimizer: only a single step "
		"can be checked",
		s->before.name, s->after.name, s->from, s->step);
}

static int open_view(struct ckpt_view *v, const char *path,
	const struct open_options *how, const struct lora *lora, struct err *e)
{
	return lora ? lora_open_view(v, lora, path, false, e)
		    : convert_open(v, path, how, e);
}

int step_files_open(struct step_files *s, const char *before, const char *after,
	const struct open_options *how, const struct adam *asked, enum run_count runs,
	const struct lora *lora, struct err *e)
{
	*s = (struct step_files){0};
	if (open_view(&s->before, before, how, lora, e))
		return -1;
	s->n_open = 1;
	if (open_view(&s->after, after ? after : before, how, lora, e))
		return -1;
	s->n_open = 2;
	s->no_after = !after;
	s->n_tensors = s->after.n_tensors;
	s->m0 = ckpt_view_find_group(&s->before, "exp_avg");
	s->v0 = ckpt_view_find_group(&s->before, "exp_avg_sq");
	s->m1 = ckpt_view_find_group(&s->after, "exp_avg");
	s->v1 = ckpt_view_find_group(&s->after, "exp_avg_sq");
	s->step = (double)s->after.info.step;
	if (s->no_after)
		s->m1 = s->v1 = -1;
	if (check_tensors(s, e) || set_step_counts(s, runs, e))
		return -1;
	return set_adam_options(s, asked, e);
}

void step_files_close(struct step_files *s)
{
	if (s->n_open > 0)
		ckpt_view_close(&s->before);
	if (s->n_open > 1)
		ckpt_view_close(&s->after);
	*s = (struct step_files){0};
}

bool step_files_have_moments(const struct step_files *s)
{
	return s->m1 >= 0;
}

int64_t step_files_size(const struct step_files *s, int tensor)
{
	return ckpt_size(&s->after.tensors[tensor]);
}

int tensor_step_read(struct tensor_step *t, const struct step_files *s, int tensor,
	unsigned what, struct err *e)
{
	const struct ckpt_view *b = &s->before, *a = &s->after;
	int other = ckpt_view_find(b, a->tensors[tensor].name);
	int p = what & STEP_PARAMETERS ? 0 : -1;
	int m0 = what & STEP_MEANS ? s->m0 : -1, m1 = what & STEP_MEANS ? s->m1 : -1;
	int v0 = what & STEP_SQUARES ? s->v0 : -1, v1 = what & STEP_SQUARES ? s->v1 : -1;
	*t = (struct tensor_step){.n = step_files_size(s, tensor),
		.p0 = read_tensor(b, p, other, e),
		.m0 = read_tensor(b, m0, other, e),
		.v0 = read_tensor(b, v0, other, e),
		.p1 = read_tensor(a, p, tensor, e),
		.m1 = read_tensor(a, m1, tensor, e),
		.v1 = read_tensor(a, v1, tensor, e)};
	return e->code ? -1 : 0;
}

void tensor_step_free(struct tensor_step *t)
{
	float *const all[] = {t->p0, t->p1, t->m0, t->m1, t->v0, t->v1};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		free(all[i]);
	*t = (struct tensor_step){0};
}

double rounding_of(const float *x, int64_t n)
{
	uint32_t bits, all = 0;
	for (int64_t i = 0; x && i < n; i++) {
		memcpy(&bits, &x[i], sizeof(bits));
		all |= bits;
	}
	return !all ? 0 : all & 0x1fff ? 0x1p-24 : all & 0xffff ? 0x1p-12 : 0x1p-9;
}

float *gradient_from_means(
	const struct step_files *s, const struct tensor_step *t, double *lost)
{
	double beta = s->adam.beta1;
	float *g = xmalloc((size_t)max64(1, t->n) * sizeof(*g));
	for (int64_t i = 0; i < t->n; i++) {
		double old = t->m0 ? (double)t->m0[i] : 0;
		g[i] = (float)(((double)t->m1[i] - beta * old) / (1 - beta));
	}
	double size = vector_norm(g, t->n), round = rounding_of(t->m1, t->n);
	double moments = vector_norm(t->m1, t->n) + beta * vector_norm(t->m0, t->n);
	*lost = size > 0 ? round * moments / ((1 - beta) * size) : 0;
	return g;
}

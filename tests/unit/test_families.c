/*
 * Families of models of transformers (tests/golden/families, made by make_families.py): loss and gradients in float64
 * against those of transformers in float64, a step of AdamW, and the same step judged with a configuration that differs
 * in one value, as if the run had this bug.
 */
#include "base/file.h"
#include "check/check.h"
#include "foreign/foreign.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/golden/families/"

static struct err e;

/* A value of config.json, and one of a bug; the tensor named is wrong. */
static const struct family {
	const char *name, *value, *other;
} families[] = {
	{"phi3", "\"partial_rotary_factor\": 0.75", "\"partial_rotary_factor\": 1.0"},
	{"phi3", "\"sliding_window\": 5", "\"sliding_window\": 4"},
	{"olmo2", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-03"},
	{"granite", "\"embedding_multiplier\": 3.0", "\"embedding_multiplier\": 1.0"},
	{"granite", "\"residual_multiplier\": 0.4", "\"residual_multiplier\": 1.0"},
	{"granite", "\"attention_multiplier\": 0.3", "\"attention_multiplier\": 0.35"},
	{"granite", "\"logits_scaling\": 2.5", "\"logits_scaling\": 1.0"},
	{"gemma2", "\"attn_logit_softcapping\": 5.0", "\"attn_logit_softcapping\": null"},
	{"gemma2", "\"final_logit_softcapping\": 4.0",
		"\"final_logit_softcapping\": null"},
	{"gemma2", "\"query_pre_attn_scalar\": 10", "\"query_pre_attn_scalar\": 8"},
	{"gemma3", "\"rope_theta\": 20.0", "\"rope_theta\": 200.0"},
	{"gemma3", "\"factor\": 2.0", "\"factor\": 1.0"},
	{"glm4", "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\": 1.0"},
	{"llama-yarn", "\"factor\": 4.0", "\"factor\": 2.0"},
	{"llama-yarn", "\"original_max_position_embeddings\": 64",
		"\"original_max_position_embeddings\": 32"},
	{"qwen3-yarn", "\"beta_slow\": 0.5", "\"beta_slow\": 3.0"},
	{"qwen3-yarn", "\"mscale\": 0.8", "\"mscale\": 1.0"},
};

/* The path of a file of a family. */
static const char *file_of(const char *family, const char *file)
{
	static char paths[4][128];
	static int n;
	char *path = paths[n++ % 4];
	snprintf(path, sizeof(paths[0]), GOLDEN "%s/%s", family, file);
	return path;
}

static void read_batch(struct token_batch *b, const char *family)
{
	char *path = (char *)file_of(family, "batch.npy");
	if (token_batch_read(b, 1, &path, &(struct batch_opts){.end = -1}, &e))
		fail_msg("%s", e.msg);
}

/* ---- gradients in float64 --------------------------------------------------------------- */

/* Computes the mean loss and its gradients; f->w and grad are freed by the caller. */
static double compute(struct float64 *f, const struct weights *w,
	const struct token_batch *b, double **grad)
{
	double loss = 0;
	f->m = &w->m;
	f->w = xcalloc((size_t)w->m.n_tensors, sizeof(*f->w));
	for (int i = 0; i < w->m.n_tensors; i++) {
		size_t n = (size_t)tensor_size(&w->m.tensors[i]);
		f->w[i] = xcalloc(n, sizeof(double));
		grad[i] = xcalloc(n, sizeof(double));
		for (size_t j = 0; j < n; j++)
			f->w[i][j] = (double)w->w[i][j];
	}
	for (int64_t i = 0; i < b->n; i++) {
		int64_t at = i * b->length;
		const struct sequence s = {.n = b->length,
			.tokens = b->tokens + at,
			.targets = b->targets + at,
			.pos = b->pos + at,
			.start = b->start + at};
		loss += float64_sequence(f, &s, 1 / (double)b->counted, NULL, grad);
	}
	return loss / (double)b->counted;
}

/* A line of expected.txt: a tensor, its norm and its product with cos(i). */
static void expect_gradient(const struct model *m, double *const *grad,
	const char *family, const char *name, const double want[2])
{
	int i = 0;
	double squares = 0, product = 0;
	while (i < m->n_tensors && strcmp(m->tensors[i].name, name) != 0)
		i++;
	assert_true(i < m->n_tensors);
	for (int64_t j = 0; j < tensor_size(&m->tensors[i]); j++) {
		squares += grad[i][j] * grad[i][j];
		product += grad[i][j] * cos((double)j);
	}
	if (fabs(sqrt(squares) - want[0]) > 1e-8 * want[0] ||
		fabs(product - want[1]) > 1e-8 * want[0])
		fail_msg("%s: %s: norm %.12g, not %.12g; product %.12g, not %.12g",
			family, name, sqrt(squares), want[0], product, want[1]);
}

static void check_gradients(const char *family)
{
	struct ckpt_view v;
	struct weights w;
	struct token_batch b;
	struct float64 f = {0};
	scoped_str text = {0};
	const struct open_options how = {.config = NULL};
	if (convert_open(&v, file_of(family, "before.pt"), &how, &e) ||
		weights_read(&w, &v, &e) ||
		file_read(file_of(family, "expected.txt"), 1 << 16, &text, &e))
		fail_msg("%s", e.msg);
	read_batch(&b, family);
	double **grad = xcalloc((size_t)w.m.n_tensors, sizeof(*grad));
	double loss = compute(&f, &w, &b, grad);
	int n = 0;
	for (char *line = text.s, *end; (end = strchr(line, '\n')); line = end + 1) {
		char name[64];
		double want[2];
		assert_int_equal(
			sscanf(line, "%63s %lf %lf", name, &want[0], &want[1]), 3);
		if (!strcmp(name, "loss"))
			assert_near(loss, want[0], 1e-10 * want[0]);
		else
			expect_gradient(&w.m, grad, family, name, want);
		n++;
	}
	assert_int_equal(n, w.m.n_tensors + 1);
	for (int i = 0; i < w.m.n_tensors; i++) {
		free(f.w[i]);
		free(grad[i]);
	}
	free(f.w);
	free(grad);
	token_batch_free(&b);
	weights_free(&w);
	ckpt_view_close(&v);
}

TEST(gradients_of_transformers)
{
	for (size_t i = 0; i < ARRAY_LEN(families); i++)
		if (!i || strcmp(families[i].name, families[i - 1].name) != 0)
			check_gradients(families[i].name);
}

/* ---- steps ------------------------------------------------------------------------------ */

static double least_bound(const struct step_check *c)
{
	double least = INFINITY;
	for (int i = 0; i < c->n; i++)
		least = fmin(least, c->tensors[i].gradient.bound);
	return least;
}

/* Judges the step of a family. `config`: a file for its config.json; NULL: its own. */
static bool is_right(const char *family, const char *config)
{
	struct step_check c;
	struct strs batch = {0};
	const struct check_opts o = {.grad_norm = -1,
		.loss = -1,
		.tp = 1,
		.cp = 1,
		.fsdp = 1,
		.dp = 1,
		.accumulation = 1};
	const struct adam adam = {
		.beta1 = -1, .beta2 = -1, .eps = -1, .decay = -1, .lr = -1};
	strs_add(&batch, file_of(family, "batch.npy"));
	const struct check_job job = {.before = file_of(family, "before.pt"),
		.after = file_of(family, "after.pt"),
		.batch = &batch,
		.how = {.end = -1},
		.adam = adam,
		.open = {.config = config}};
	if (step_check_run(&c, &o, &job, &e))
		fail_msg("%s: %s", family, e.msg);
	bool right = c.tested && !c.wrong;
	/* (bounds are measured, also without kernels: 2e-5 is taken where they are not) */
	assert_true(least_bound(&c) < 1.9e-5);
	for (int i = 0; i < c.n && right; i++)
		right = c.tensors[i].gradient.tested && c.tensors[i].moments.tested &&
			c.tensors[i].update.tested;
	step_check_close(&c);
	strs_free(&batch);
	return right;
}

/* A copy of config.json in which a value is another one. */
static const char *changed_config(const struct family *f)
{
	scoped_str text = {0}, out = {0};
	if (file_read(file_of(f->name, "config.json"), 1 << 16, &text, &e))
		fail_msg("%s", e.msg);
	const char *at = strstr(text.s, f->value);
	if (!at)
		fail_msg("%s: no %s", f->name, f->value);
	str_printf(&out, "%.*s%s%s", (int)(at - text.s), text.s, f->other,
		at + strlen(f->value));
	return test_file("config.json", out.s);
}

TEST(steps)
{
	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		const struct family *f = &families[i];
		if (!is_right(f->name, NULL))
			fail_msg("%s: the step is called wrong", f->name);
		if (is_right(f->name, changed_config(f)))
			fail_msg("%s: right with %s for %s", f->name, f->other, f->value);
	}
}

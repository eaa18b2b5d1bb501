#include "tests/support/check_step.h"

#include "base/file.h"
#include "foreign/foreign.h"
#include "engine/options.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

struct fake {
	struct step *s;
	int file;
};

static int read_fake(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *err)
{
	const struct fake *f = v->with;
	int64_t width = ckpt_row_size(&v->tensors[r->tensor]);
	(void)err;
	memcpy(out, f->s->of[f->file][r->group][r->tensor] + r->row * width,
		(size_t)(r->n * width) * sizeof(*out));
	return 0;
}

static int n_files;

const char *step_file(struct step *s, int file)
{
	static const char *const groups[] = {"model", "exp_avg", "exp_avg_sq"};
	struct fake f = {s, file};
	struct ckpt_view v;
	char name[40];
	convert_init_view(&v, &s->w.m, "made up");
	v.read = read_fake;
	v.with = &f;
	v.close = NULL;
	v.info.step = s->warm ? 6 + file : file;
	strs_free(&v.groups);
	for (int i = 0; i < s->n_groups[file]; i++)
		strs_add(&v.groups, groups[i]);
	snprintf(name, sizeof(name), "check-%d.h5", n_files++);
	if (ckpt_view_write(&v, test_path(name), &e))
		fail_msg("%s", e.msg);
	ckpt_view_close(&v);
	return test_path(name);
}

static float **tensors_like(const struct model *m)
{
	float **t = xcalloc((size_t)m->n_tensors, sizeof(*t));
	for (int i = 0; i < m->n_tensors; i++)
		t[i] = xcalloc((size_t)tensor_size(&m->tensors[i]), sizeof(float));
	return t;
}

static void free_tensors(float **t, const struct model *m)
{
	for (int i = 0; t && i < m->n_tensors; i++)
		free(t[i]);
	free(t);
}

static void make_batch(struct step *s)
{
	int64_t ids[SEQUENCES][LENGTH + 1];
	struct str bytes = {0};
	char name[40];
	for (int i = 0; i < SEQUENCES; i++)
		for (int t = 0; t <= LENGTH; t++)
			ids[i][t] = (int64_t)(test_uniform(5, i * 100 + t) * VOCAB);
	str_add(&bytes, ids, sizeof(ids));
	snprintf(name, sizeof(name), "check-%d.i64", n_files++);
	s->batch_file = test_path(name);
	assert_int_equal(file_replace(s->batch_file, &bytes, &e), 0);
	str_free(&bytes);
	char *file = (char *)s->batch_file;
	const struct batch_opts how = {.shape = "4,17", .end = -1};
	if (token_batch_read(&s->batch, 1, &file, &how, &e))
		fail_msg("%s", e.msg);
}

void step_mask(struct step *s)
{
	struct str header = {0}, file = {0};
	struct token_batch *b = &s->batch;
	for (int i = 0; i < SEQUENCES * LENGTH; i++)
		if ((i >= LENGTH - 5 && i < LENGTH) ||
			(i >= 2 * LENGTH + 4 && i < 2 * LENGTH + 8)) {
			b->counted -= b->targets[i] >= 0;
			b->targets[i] = -1;
		}
	b->masked = true;
	str_printf(&header,
		"{\"inputs\":{\"dtype\":\"I32\",\"shape\":[4,16],\"data_offsets\":[0,256]},"
		"\"labels\":{\"dtype\":\"I32\",\"shape\":[4,16],\"data_offsets\":[256,512]}}");
	uint64_t size = header.len;
	str_add(&file, &size, sizeof(size));
	str_add(&file, header.s, header.len);
	str_add(&file, b->tokens, SEQUENCES * LENGTH * sizeof(*b->tokens));
	str_add(&file, b->targets, SEQUENCES * LENGTH * sizeof(*b->targets));
	char name[40];
	snprintf(name, sizeof(name), "masked-%d.safetensors", n_files++);
	s->batch_file = test_path(name);
	assert_int_equal(file_replace(s->batch_file, &file, &e), 0);
	str_free(&header);
	str_free(&file);
}

void step_begin(struct step *s, const char *config)
{
	struct model_config c;
	*s = (struct step){.config = config,
		.adam = {.beta1 = 0.9,
			.beta2 = 0.95,
			.eps = 1e-8,
			.decay = 0.1,
			.clip = 0.5,
			.lr = 1e-3},
		.n_groups = {1, GROUPS}};
	if (options_parse_model(&c, config, &e) || model_init(&s->w.m, &c, VOCAB, &e))
		fail_msg("%s", e.msg);
	s->w.w = tensors_like(&s->w.m);
	for (int i = 0; i < s->w.m.n_tensors; i++) {
		const struct tensor *t = &s->w.m.tensors[i];
		test_fill(s->w.w[i], tensor_size(t), (uint64_t)i + 1, 0.1);
		for (int64_t j = 0; t->init == INIT_ONE && j < t->dims[0]; j++)
			s->w.w[i][j] += 1;
	}
	make_batch(s);
	reference_float64(&s->w, &s->batch, &(struct variant){.sequence = -1}, &s->g);
}

void step_end(struct step *s)
{
	for (int f = 0; f < 2; f++)
		for (int k = 0; k < GROUPS; k++)
			free_tensors(s->of[f][k], &s->w.m);
	gradients_free(&s->g);
	token_batch_free(&s->batch);
	weights_free(&s->w);
}

double step_norm(const struct step *s)
{
	double sum = 0;
	for (int i = 0; i < s->w.m.n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++)
			sum += (double)s->g.g[i][j] * (double)s->g.g[i][j];
	return sqrt(sum);
}

/* Computes one element's step of AdamW (Loshchilov, Hutter 2019). */
static void adamw(
	const struct step *s, double step, double g, const float *in, float *out)
{
	const struct adam *a = &s->adam;
	double m = a->beta1 * (double)in[1] + (1 - a->beta1) * g;
	double v = a->beta2 * (double)in[2] + (1 - a->beta2) * g * g;
	double m_hat = m / (s->uncorrected ? 1 : 1 - pow(a->beta1, step));
	double v_hat = v / (s->uncorrected ? 1 : 1 - pow(a->beta2, step));
	out[0] = (float)((double)in[0] * (1 - a->lr * a->decay) -
			 a->lr * m_hat / (sqrt(v_hat) + a->eps));
	out[1] = (float)m;
	out[2] = (float)v;
}

void step_moments(int i, int64_t j, float *m, float *v)
{
	*m = (float)(0.02 * test_normal(70, i * 10000 + j));
	*v = *m * *m * 2;
}

void step_train(struct step *s)
{
	const struct model *m = &s->w.m;
	double norm = s->grad_norm > 0 ? s->grad_norm : step_norm(s);
	double c = s->adam.clip > 0 && norm > s->adam.clip ? s->adam.clip / (norm + 1e-6)
							   : 1;
	for (int f = 0; f < 2; f++)
		for (int k = 0; k < GROUPS; k++)
			s->of[f][k] = tensors_like(m);
	if (s->warm)
		s->n_groups[0] = GROUPS;
	for (int i = 0; i < m->n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&m->tensors[i]); j++) {
			float in[GROUPS] = {s->w.w[i][j]}, out[GROUPS];
			if (s->warm)
				step_moments(i, j, &in[1], &in[2]);
			adamw(s, s->warm ? 7 : 1, c * (double)s->g.g[i][j], in, out);
			for (int k = 0; k < GROUPS; k++) {
				s->of[0][k][i][j] = in[k];
				s->of[1][k][i][j] = out[k];
			}
		}
}

void step_expect(struct step *s, const struct check_opts *o, const char *text)
{
	struct strs files = {0};
	struct step_check c;
	struct str out = {0};
	if (!s->no_batch)
		strs_add(&files, s->batch_file);
	const struct check_job job = {step_file(s, 0), step_file(s, 1), &files,
		{.shape = "4,17", .end = -1}, s->adam, false, s->freeze};
	if (step_check_run(&c, o, &job, &e))
		fail_msg("%s", e.msg);
	step_check_print(&c, &out);
	if (c.wrong != (text != NULL) || (text && !strstr(out.s, text)))
		fail_msg("wanted: %s\n%s", text ? text : "nothing", out.s);
	str_clear(&out);
	step_check_json(&c, &out);
	assert_non_null(strstr(
		out.s, text ? "\"verdict\": \"wrong\"" : "\"verdict\": \"right\""));
	str_free(&out);
	step_check_close(&c);
	strs_free(&files);
}

const struct check_opts plain_check = {.grad_norm = -1,
	.loss = NAN,
	.tp = 1,
	.cp = 1,
	.fsdp = 1,
	.dp = 1,
	.accumulation = 1};

int step_tensor(const struct step *s, const char *name)
{
	for (int i = 0; i < s->w.m.n_tensors; i++)
		if (!strcmp(s->w.m.tensors[i].name, name))
			return i;
	fail_msg("no tensor %s", name);
	return -1;
}

void step_scale(struct step *s, const char *name, double by)
{
	int i = step_tensor(s, name);
	for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++)
		s->g.g[i][j] = (float)(by * (double)s->g.g[i][j]);
}

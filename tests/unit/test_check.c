/*
 * pt-check: the float64 model against the trainer's kernels and finite differences; and made-up steps, right ones
 * and ones with known bugs, each of which must be named. The steps of other programs are in tests/oracle.
 */
#include "base/file.h"
#include "check/check.h"
#include "convert/convert.h"
#include "engine/options.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

#define LLAMA                                                                                     \
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\nvocab = 60\n" \
	"vocab-multiple = 1\ncontext = 16\n"
#define GPT2_OF(context)                                                           \
	"arch = gpt2\nlayers = 2\nheads = 4\ndim = 32\nffn-dim = 64\nvocab = 60\n" \
	"vocab-multiple = 1\ndropout = 0\ncontext = " context "\n"
#define GPT2 GPT2_OF("16")

enum { SEQUENCES = 4, LENGTH = 16, VOCAB = 60 };
enum { MODEL, EXP_AVG, EXP_AVG_SQ, GROUPS };

/* Two checkpoints that are arrays: [before, after][group][tensor]. */
struct step {
	const char *config;
	struct weights w;
	struct token_batch batch;
	const char *batch_file;
	struct gradients g; /* what the optimizer is given, before clipping */
	struct adam adam;
	double grad_norm; /* of the clipping; 0: of g */
	bool warm, uncorrected;
	float **of[2][GROUPS];
	int n_groups[2];
};

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

/* A file of the step; returns its path. */
static const char *write_file(struct step *s, int file)
{
	static const char *const groups[] = {"model", "exp_avg", "exp_avg_sq"};
	struct fake f = {s, file};
	struct ckpt_view v;
	char name[40];
	convert_view(&v, &s->w.m, "made up");
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

/* A model with arbitrary weights, a batch, and its gradients. */
static void begin(struct step *s, const char *config)
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
	if (options_model(&c, config, &e) || model_init(&s->w.m, &c, VOCAB, &e))
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

static void end(struct step *s)
{
	for (int f = 0; f < 2; f++)
		for (int k = 0; k < GROUPS; k++)
			free_tensors(s->of[f][k], &s->w.m);
	gradients_free(&s->g);
	token_batch_free(&s->batch);
	weights_free(&s->w);
}

static double norm_of(const struct step *s)
{
	double sum = 0;
	for (int i = 0; i < s->w.m.n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++)
			sum += (double)s->g.g[i][j] * (double)s->g.g[i][j];
	return sqrt(sum);
}

/* One element's step of AdamW (Loshchilov, Hutter 2019). */
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

/* The checkpoints of the step with the gradients s->g. */
static void train(struct step *s)
{
	const struct model *m = &s->w.m;
	double norm = s->grad_norm > 0 ? s->grad_norm : norm_of(s);
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
			if (s->warm) {
				in[1] = (float)(0.02 * test_normal(70, i * 10000 + j));
				in[2] = in[1] * in[1] * 2;
			}
			adamw(s, s->warm ? 7 : 1, c * (double)s->g.g[i][j], in, out);
			for (int k = 0; k < GROUPS; k++) {
				s->of[0][k][i][j] = in[k];
				s->of[1][k][i][j] = out[k];
			}
		}
}

/* Checks the step, and that what is found contains the text; NULL: that nothing is. */
static void expect(struct step *s, const struct check_opts *o, const char *text)
{
	struct strs files = {0};
	struct step_check c;
	struct str out = {0};
	strs_add(&files, s->batch_file);
	const struct check_job job = {write_file(s, 0), write_file(s, 1), &files,
		{.shape = "4,17", .end = -1}, s->adam};
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

static const struct check_opts plain = {.grad_norm = -1,
	.loss = -1,
	.tp = 1,
	.cp = 1,
	.fsdp = 1,
	.dp = 1,
	.accumulation = 1};

static int tensor(const struct step *s, const char *name)
{
	for (int i = 0; i < s->w.m.n_tensors; i++)
		if (!strcmp(s->w.m.tensors[i].name, name))
			return i;
	fail_msg("no tensor %s", name);
	return -1;
}

/* ---- batches ---------------------------------------------------------------------------- */

/* A safetensors file of int32 arrays [2][3]. */
static char *arrays_file(int n, const char *const *names, int32_t (*v)[6])
{
	struct str header = {0}, file = {0};
	char name[40];
	for (int i = 0; i < n; i++)
		str_printf(&header,
			"%s\"%s\":{\"dtype\":\"I32\",\"shape\":[2,3],\"data_offsets\":[%d,%d]}",
			i ? "," : "{", names[i], 24 * i, 24 * i + 24);
	str_putc(&header, '}');
	uint64_t size = header.len;
	str_add(&file, &size, sizeof(size));
	str_add(&file, header.s, header.len);
	str_add(&file, v, (size_t)n * sizeof(*v));
	snprintf(name, sizeof(name), "check-%d.safetensors", n_files++);
	char *path = (char *)test_path(name);
	assert_int_equal(file_replace(path, &file, &e), 0);
	str_free(&header);
	str_free(&file);
	return path;
}

/* What is expected of a batch: [2][length]. */
static void expect_batch(char *file, int64_t length, const int32_t *targets,
	const int32_t *pos, const int32_t *start)
{
	struct token_batch b;
	e = (struct err){0};
	if (token_batch_read(&b, 1, &file, &(struct batch_opts){.end = -1}, &e))
		fail_msg("%s", e.msg);
	assert_int_equal(b.n, 2);
	assert_int_equal(b.length, length);
	size_t n_bytes = (size_t)(2 * length) * sizeof(*targets);
	assert_memory_equal(b.targets, targets, n_bytes);
	assert_memory_equal(b.pos, pos, n_bytes);
	assert_memory_equal(b.start, start, n_bytes);
	token_batch_free(&b);
}

static void batches(void **state)
{
	static const int32_t in[6] = {7, 8, 9, 4, 5, 6}, next[6] = {8, 9, 1, 5, 6, 2};
	static const int32_t pos[6] = {0, 1, 0, 0, 1, 2}, along[6] = {0, 1, 2, 0, 1, 2};
	static const int32_t mask[6] = {0, 1, 1, 1, 1, 0}, zeros[6] = {0};
	static const int32_t masked[6] = {-1, 9, 1, 5, 6, -1};
	static const int32_t some[6] = {-100, 9, 1, 5, 6, -100};
	static const int32_t starts[6] = {0, 0, 2, 0, 0, 0},
			     unknown[6] = {3, 3, 3, 3, 3, 3};
	int32_t v[4][6];
	(void)state;
#define ARRAYS(a, b, c, d)             \
	memcpy(v[0], a, sizeof(v[0])); \
	memcpy(v[1], b, sizeof(v[0])); \
	memcpy(v[2], c, sizeof(v[0])); \
	memcpy(v[3], d, sizeof(v[0]))
	/* windows: one more token than positions */
	ARRAYS(in, in, in, in);
	static const int32_t of_windows[4] = {8, 9, 5, 6}, two[4] = {0, 1, 0, 1}, none[4];
	expect_batch(
		arrays_file(1, (const char *const[]){"x"}, v), 2, of_windows, two, none);
	/* lists of torchtitan, with positions in a dict or a list */
	ARRAYS(in, pos, next, unknown);
	expect_batch(
		arrays_file(4,
			(const char *const[]){"0.input", "0.positions", "1", "2.other"},
			v),
		3, next, pos, starts);
	ARRAYS(in, next, pos, unknown);
	expect_batch(arrays_file(3, (const char *const[]){"0", "1", "2"}, v), 3, next,
		pos, starts);
	/* labels that do not count; and those of Hugging Face, which are the inputs */
	ARRAYS(some, in, in, in);
	expect_batch(arrays_file(2, (const char *const[]){"labels", "inputs"}, v), 3,
		masked, along, zeros);
	static const int32_t unshifted[6] = {8, 9, -1, 5, 6, -1};
	ARRAYS(in, in, unknown, in);
	expect_batch(
		arrays_file(3,
			(const char *const[]){"input_ids", "labels", "attention_mask"},
			v),
		3, unshifted, along, zeros);
	/* Megatron-LM's */
	ARRAYS(next, mask, in, pos);
	expect_batch(arrays_file(4,
			     (const char *const[]){
				     "labels", "loss_mask", "tokens", "position_ids"},
			     v),
		3, masked, pos, starts);
	/* labels of another batch */
	struct token_batch b;
	ARRAYS(in, unknown, in, in);
	char *file = arrays_file(2, (const char *const[]){"inputs", "labels"}, v);
	assert_int_equal(
		token_batch_read(&b, 1, &file, &(struct batch_opts){.end = -1}, &e), -1);
	token_batch_free(&b);
	e = (struct err){0};
}

/* ---- the float64 model ------------------------------------------------------------------ */

/* The trainer's fp32 kernels compute the same function. */
static void as_the_trainer(void **state)
{
	static const char *const configs[] = {LLAMA, GPT2, LLAMA "tie = yes\n",
		LLAMA
		"rope-scaling = llama3\nrope-factor = 8\nrope-low = 1\nrope-high = 4\n"
		"rope-original = 8192\n",
		GPT2 "act = gelu\n", GPT2 "tie = no\nbias = no\n"};
	(void)state;
	for (size_t k = 0; k < ARRAY_LEN(configs); k++) {
		struct step s;
		struct gradients g;
		begin(&s, configs[k]);
		if (reference_trainer(&s.w, &s.batch, PRECISION_FP32, &g, &e))
			fail_msg("%s", e.msg);
		assert_near(g.loss, s.g.loss, 1e-6);
		assert_near(g.norm, s.g.norm, 1e-5 * s.g.norm);
		for (int i = 0; i < g.n; i++) {
			const struct products p = products_of(
				g.g[i], s.g.g[i], tensor_size(&s.w.m.tensors[i]));
			if (p.bb > 1e-12)
				assert_true(residual_of(&p, 1) < 1e-5);
		}
		gradients_free(&g);
		end(&s);
	}
}

/* Each kind of part adds up to the whole gradient. */
static void parts_add_up(void **state)
{
	static const enum part_kind kinds[] = {
		PART_CHUNK, PART_ZIGZAG, PART_SLICE, PART_USE};
	(void)state;
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		struct step s;
		struct gradients g[2];
		begin(&s, LLAMA "tie = yes\n");
		for (int i = 0; i < 2; i++) {
			const struct variant v = {
				.sequence = -1, .part = {kinds[k], 2, i}};
			reference_float64(&s.w, &s.batch, &v, &g[i]);
		}
		for (int i = 0; i < s.g.n; i++) {
			const struct tensor *t = &s.w.m.tensors[i];
			bool norm = strstr(t->name, "norm") != NULL;
			bool split = kinds[k] == PART_SLICE ? norm
				     : kinds[k] == PART_USE ? t == s.w.m.tokens
							    : true;
			for (int64_t j = 0; j < tensor_size(t); j++)
				assert_near((double)g[0].g[i][j] +
						    (split ? (double)g[1].g[i][j] : 0),
					(double)s.g.g[i][j], 1e-6 * s.g.norm);
		}
		gradients_free(&g[0]);
		gradients_free(&g[1]);
		end(&s);
	}
}

/* The mean is over the targets that count: without those of a sequence it is the mean of the others. */
static void masked_targets(void **state)
{
	struct step s;
	struct gradients masked, one;
	(void)state;
	begin(&s, LLAMA);
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = 3}, &one);
	for (int t = 0; t < LENGTH; t++)
		s.batch.targets[3 * LENGTH + t] = -1;
	s.batch.counted -= LENGTH;
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = -1}, &masked);
	assert_near(masked.loss, (s.g.loss - one.loss) * 4 / 3, 1e-12);
	for (int i = 0; i < s.g.n; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
			assert_near((double)masked.g[i][j],
				((double)s.g.g[i][j] - (double)one.g[i][j]) * 4 / 3,
				1e-6 * s.g.norm);
	gradients_free(&masked);
	gradients_free(&one);
	end(&s);
}

/* ---- right steps -------------------------------------------------------------------------- */

static void right_steps(void **state)
{
	static const char *const configs[] = {LLAMA, GPT2, LLAMA "tie = yes\n"};
	(void)state;
	for (size_t k = 0; k < ARRAY_LEN(configs); k++)
		for (int warm = 0; warm < 2; warm++)
			for (int clip = 0; clip < 2; clip++) {
				struct step s;
				struct check_opts o = plain;
				begin(&s, configs[k]);
				s.warm = warm;
				s.adam.clip = clip ? 0.5 : 0;
				o.grad_norm = s.g.norm;
				train(&s);
				expect(&s, &o, NULL);
				end(&s);
			}
}

/* ---- wrong gradients ------------------------------------------------------------------------ */

static void scale(struct step *s, const char *name, double by)
{
	int i = tensor(s, name);
	for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++)
		s->g.g[i][j] = (float)(by * (double)s->g.g[i][j]);
}

static void one_doubled(struct step *s)
{
	scale(s, "layers.1.feed_forward.w2.weight", 2);
}

static void one_off_little(struct step *s)
{
	scale(s, "layers.0.attention_norm.weight", 1.0001);
}

static void one_missing(struct step *s)
{
	scale(s, "layers.0.attention.wv.weight", 0);
}

static void slice_doubled(struct step *s)
{
	int i = tensor(s, "layers.0.attention.wo.weight");
	for (int64_t j = 0; j < 32 * 32; j++)
		s->g.g[i][j] *= j % 32 < 16 ? 1 : 2;
}

static void one_transposed(struct step *s)
{
	float *g = s->g.g[tensor(s, "layers.1.attention.wq.weight")];
	for (int r = 0; r < 32; r++)
		for (int c = 0; c < r; c++) {
			float t = g[r * 32 + c];
			g[r * 32 + c] = g[c * 32 + r];
			g[c * 32 + r] = t;
		}
}

/* The gradients of some tensors are those of a variant. */
static void replace(struct step *s, const struct variant *v, const char *what)
{
	struct gradients g;
	reference_float64(&s->w, &s->batch, v, &g);
	for (int i = 0; i < g.n; i++)
		if (!what || strstr(s->w.m.tensors[i].name, what))
			memcpy(s->g.g[i], g.g[i],
				(size_t)tensor_size(&s->w.m.tensors[i]) * sizeof(float));
	gradients_free(&g);
}

static void norms_not_summed(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .part = {PART_SLICE, 2, 0}}, "norm");
}

static void norms_of_half(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .part = {PART_CHUNK, 2, 0}}, "norm");
}

static void tied_twice(struct step *s)
{
	struct gradients g;
	const struct variant v = {.sequence = -1, .part = {PART_USE, 2, 0}};
	reference_float64(&s->w, &s->batch, &v, &g);
	for (int64_t j = 0; j < VOCAB * 32; j++)
		s->g.g[0][j] += g.g[0][j];
	gradients_free(&g);
}

static void sequence_skipped(struct step *s)
{
	struct gradients g;
	reference_float64(&s->w, &s->batch, &(struct variant){.sequence = 2}, &g);
	for (int i = 0; i < g.n; i++)
		for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++)
			s->g.g[i][j] -= g.g[i][j];
	gradients_free(&g);
}

/* Each of two tensor-parallel ranks goes back with its own part: a weight has rows or columns of both. */
static void ranks_apart(struct step *s)
{
	struct gradients g[2];
	for (int rank = 0; rank < 2; rank++)
		reference_float64(&s->w, &s->batch,
			&(struct variant){.sequence = -1, .part = {PART_RANK, 2, rank}},
			&g[rank]);
	for (int i = 0; i < s->w.m.n_tensors; i++) {
		const struct tensor *t = &s->w.m.tensors[i];
		bool columns = strstr(t->name, "wo.") || strstr(t->name, "w2.");
		int64_t cols = t->ndim > 1 ? t->dims[1] : 1;
		for (int64_t j = 0; j < tensor_size(t); j++) {
			int rank = t->ndim < 2 ? 1
				   : columns   ? 2 * (j % cols) >= cols
					       : 2 * (j / cols) >= t->dims[0];
			s->g.g[i][j] = g[rank].g[i][j];
		}
	}
	for (int rank = 0; rank < 2; rank++)
		gradients_free(&g[rank]);
}

static void pairs_rotated(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .function = {.rope = ROPE_PAIRS}},
		NULL);
}

static void positions_restart(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .restart = 2}, NULL);
}

static void other_gelu(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .other_gelu = true}, NULL);
}

static void unshifted(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .targets = TARGETS_UNSHIFTED}, NULL);
}

static void other_eps(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .norm_eps = 1e-6}, NULL);
}

static void other_theta(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .rope_theta = 500000}, NULL);
}

static void not_causal(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .function = {.sees_later = true}},
		NULL);
}

static void gate_exchanged(struct step *s)
{
	replace(s,
		&(struct variant){.sequence = -1, .function = {.gate_exchanged = true}},
		NULL);
}

static void last_lost(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .targets = TARGETS_WITHOUT_LAST},
		NULL);
}

static void scaled_rotations(struct step *s)
{
	replace(s, &(struct variant){.sequence = -1, .rope_factor = 8}, NULL);
}

/* g = a g + b of the term's */
static void add_term(struct step *s, enum loss term, double a, double b)
{
	struct gradients g;
	const struct variant v = {.sequence = -1, .function = {.loss = term}};
	reference_float64(&s->w, &s->batch, &v, &g);
	for (int i = 0; i < g.n; i++)
		for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++)
			s->g.g[i][j] =
				(float)(a * (double)s->g.g[i][j] + b * (double)g.g[i][j]);
	gradients_free(&g);
}

static void smoothed(struct step *s)
{
	add_term(s, LOSS_UNIFORM, 0.9, 0.1);
}

static void z_loss(struct step *s)
{
	add_term(s, LOSS_Z, 1, 0.01);
}

/* Rows of the first half in both. */
static void slice_of_another(struct step *s)
{
	float *g = s->g.g[tensor(s, "layers.1.attention.wo.weight")];
	memcpy(g + 16 * 32, g, 16 * 32 * sizeof(*g));
}

static void sequence_twice(struct step *s)
{
	struct gradients g;
	reference_float64(&s->w, &s->batch, &(struct variant){.sequence = 2}, &g);
	for (int i = 0; i < g.n; i++)
		for (int64_t j = 0; j < tensor_size(&s->w.m.tensors[i]); j++)
			s->g.g[i][j] += g.g[i][j];
	gradients_free(&g);
}

static void clipped_by_value(struct step *s)
{
	int i = tensor(s, "layers.0.feed_forward.w2.weight");
	int64_t n = tensor_size(&s->w.m.tensors[i]);
	double most = 0;
	for (int64_t j = 0; j < n; j++)
		most = fmax(most, fabs((double)s->g.g[i][j]));
	for (int64_t j = 0; j < n; j++)
		s->g.g[i][j] =
			fminf(fmaxf(s->g.g[i][j], (float)(-most / 4)), (float)(most / 4));
}

/* The norm that it has after clipping, 0.5, though all together have it. */
static void clipped_alone(struct step *s)
{
	const char *name = "layers.0.feed_forward.w2.weight";
	const float *g = s->g.g[tensor(s, name)];
	s->grad_norm = norm_of(s);
	int64_t n = tensor_size(&s->w.m.tensors[tensor(s, name)]);
	double own = sqrt(products_of(g, g, n).aa);
	scale(s, name, (s->grad_norm + 1e-6) / own);
}

static void not_clipped(struct step *s)
{
	s->grad_norm = norm_of(s);
	scale(s, "layers.0.feed_forward.w2.weight", s->grad_norm / 0.5);
}

static void tied_unknown(struct step *s)
{
	int i = tensor(s, "output.weight");
	memcpy(s->w.w[i], s->w.w[tensor(s, "tok_embeddings.weight")],
		(size_t)tensor_size(&s->w.m.tensors[i]) * sizeof(float));
	gradients_free(&s->g);
	reference_float64(&s->w, &s->batch, &(struct variant){.sequence = -1}, &s->g);
	scale(s, "output.weight", 0);
}

static const struct {
	const char *config;
	void (*make)(struct step *);
	const char *text;
} gradient_bugs[] = {
	{LLAMA, one_doubled, "layers.1.feed_forward.w2.weight (1): 2 times"},
	{LLAMA, one_off_little, "layers.0.attention_norm.weight"},
	{LLAMA, one_missing,
		"layers.0.attention.wv.weight (1): no gradient: it is not trained"},
	{LLAMA, slice_doubled,
		"layers.0.attention.wo.weight (1): dim 1 in 2 slices: 1 2 times"},
	{LLAMA, one_transposed, "layers.1.attention.wq.weight (1): transposed"},
	{LLAMA, norms_not_summed, "slice 0 of 2 tensor-parallel slices: not summed"},
	{GPT2, norms_not_summed, "slice 0 of 2 tensor-parallel slices: not summed"},
	{LLAMA, norms_of_half, "slice 0 of 2 chunks of the positions: not summed"},
	{LLAMA, norms_of_half, "first   wrong in backward order: norm.weight"},
	{LLAMA "tie = yes\n", tied_twice, "embedding and output layer: 2 1 times"},
	{LLAMA, sequence_skipped, "(21): sequences 3 of 4 do not count\n"},
	{LLAMA, ranks_apart,
		"as if each tensor-parallel rank went back with its own part of the gradient"},
	{LLAMA, pairs_rotated, "in pairs of neighbours"},
	{LLAMA, positions_restart, "positions began again in each chunk"},
	{GPT2, positions_restart, "positions began again in each chunk"},
	{GPT2, other_gelu, "as if GELU were exact, not approximated by tanh"},
	{LLAMA, unshifted, "labels are not shifted"},
	{LLAMA, other_eps, "eps 1e-6"},
	{LLAMA, other_theta, "theta were 500000"},
	{LLAMA, not_causal, "it is not causal"},
	{GPT2, not_causal, "it is not causal"},
	{LLAMA, gate_exchanged, "activation were of w3 (up)"},
	{LLAMA, last_lost, "the last target of each sequence did not count"},
	{LLAMA, scaled_rotations, "(rope_scaling, factor 8)"},
	{LLAMA, smoothed, "as if labels were smoothed by 0.1\n"},
	{GPT2, smoothed, "as if labels were smoothed by 0.1\n"},
	{LLAMA, z_loss, "z-loss: 0.01 times"},
	{LLAMA, slice_of_another,
		"layers.1.attention.wo.weight (1): dim 0 in 2 slices: the gradients of "
		"slices 0 0"},
	{LLAMA, sequence_twice, "sequences 3 of 4 count 2 times, and the others once"},
	{LLAMA, clipped_by_value,
		"layers.0.feed_forward.w2.weight (1): as if each element were clipped"},
	{LLAMA, clipped_alone, "(1): clipped by its own norm"},
	{LLAMA, not_clipped, "(1): not clipped, and others are"},
	{LLAMA, tied_unknown, "output.weight (1): no gradient, and the numbers of the"},
};

static void wrong_gradients(void **state)
{
	(void)state;
	for (size_t k = 0; k < ARRAY_LEN(gradient_bugs); k++) {
		struct step s;
		begin(&s, gradient_bugs[k].config);
		gradient_bugs[k].make(&s);
		train(&s);
		expect(&s, &plain, gradient_bugs[k].text);
		end(&s);
	}
}

/* From moments that are not zero a missing gradient leaves only what their rounding hides. */
static void missing_when_warm(void **state)
{
	struct step s;
	(void)state;
	begin(&s, LLAMA);
	s.warm = true;
	one_missing(&s);
	train(&s);
	expect(&s, &plain, "layers.0.attention.wv.weight (1): no ");
	end(&s);
}

/* A resume that exchanged the moments of two tensors: of one order of rows, and of two. */
static void moments_of_others(void **state)
{
	static const char *const of[3][2] = {
		{"layers.1.attention.wk.weight", "layers.0.attention.wv.weight"},
		{"layers.1.attention.wo.weight", "layers.0.attention.wo.weight"},
		{"layers.1.attention.wq.bias", "layers.0.attention.wv.bias"}};
	(void)state;
	for (int k = 0; k < 3; k++) {
		struct step s;
		char text[200];
		begin(&s, k < 2 ? LLAMA : GPT2);
		s.warm = true;
		train(&s);
		int a = tensor(&s, of[k][0]), b = tensor(&s, of[k][1]);
		int64_t cols = max64(1, s.w.m.tensors[a].dims[1]), dim = s.w.m.head_dim;
		const float *m = s.of[0][EXP_AVG][a], *n = s.of[0][EXP_AVG][b];
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[a]); j++) {
			/* rows of keys are in another order in files with Meta's names */
			int64_t row = k ? j / cols : row_of_pairs(j / cols, dim);
			int64_t at = row * cols + j % cols;
			s.of[1][EXP_AVG][a][j] += 0.9f * (n[at] - m[j]);
			s.of[1][EXP_AVG][b][at] += 0.9f * (m[j] - n[at]);
		}
		snprintf(text, sizeof(text),
			"%s (1): its moments of the step before were those of %s",
			of[k][0], of[k][1]);
		expect(&s, &plain, text);
		end(&s);
	}
}

/* The gradient of keys' biases is zero but for rounding, also where no bound is measured: of sequences that are
 * shorter than the table of positions. */
static void keys_of_short_sequences(void **state)
{
	struct step s;
	(void)state;
	begin(&s, GPT2_OF("32"));
	int i = tensor(&s, "layers.0.attention.wk.bias");
	for (int j = 0; j < 32; j++)
		s.g.g[i][j] = (float)(1e-10 * test_normal(9, j));
	train(&s);
	expect(&s, &plain, NULL);
	for (int j = 0; j < 32; j++)
		s.of[1][EXP_AVG][i][j] = 0.1f;
	expect(&s, &plain,
		"layers.0.attention.wk.bias: has a gradient, and should have none");
	end(&s);
}

/* A number that was logged is right up to half a unit of its last digit. */
static void logged_digits(void **state)
{
	struct step s;
	struct check_opts o = plain;
	(void)state;
	begin(&s, LLAMA);
	train(&s);
	o.grad_norm = s.g.norm + 0.004;
	o.loss = s.g.loss - 0.004;
	o.grad_norm_half = o.loss_half = 0.005;
	expect(&s, &o, NULL);
	o.grad_norm_half = 0.0005;
	expect(&s, &o, "scale: grad_norm");
	end(&s);
	/* without clipping, only the norm that was logged is wrong */
	begin(&s, LLAMA);
	s.adam.clip = 0;
	train(&s);
	o = plain;
	o.grad_norm = 0.7 * s.g.norm;
	expect(&s, &o, "verdict: wrong: 1 finding\n");
	end(&s);
}

/* Not finite in the second of two runs. */
static void nan_in_two_runs(void **state)
{
	struct step s;
	struct step_check c;
	const struct strs none = {0};
	(void)state;
	begin(&s, LLAMA);
	s.warm = true;
	train(&s);
	for (int k = 0; k < GROUPS; k++)
		for (int i = 0; i < s.w.m.n_tensors; i++)
			memcpy(s.of[0][k][i], s.of[1][k][i],
				(size_t)tensor_size(&s.w.m.tensors[i]) * sizeof(float));
	for (int nan = 0; nan < 2; nan++) {
		if (nan)
			s.of[1][EXP_AVG][3][7] = NAN;
		const struct check_job job = {write_file(&s, 0), write_file(&s, 1), &none,
			{.end = -1}, s.adam, true};
		if (step_check_run(&c, &plain, &job, &e))
			fail_msg("%s", e.msg);
		assert_int_equal(c.wrong, nan);
		assert_true(c.tested);
		step_check_close(&c);
	}
	end(&s);
}

/* More findings than there is room for: the last one is for all others, and no note. */
static void many_findings(void **state)
{
	struct step s;
	(void)state;
	begin(&s,
		"arch = llama\nlayers = 9\nheads = 4\ndim = 32\nffn-dim = 48\nvocab = 60\n"
		"vocab-multiple = 1\ncontext = 16\n");
	for (int i = 0; i < s.w.m.n_tensors; i++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[i]); j++)
			s.g.g[i][j] *= (float)(1 + i * 0.01);
	train(&s);
	expect(&s, &plain, "others: --json has all tensors");
	end(&s);
}

/* ---- wrong scales ---------------------------------------------------------------------------- */

static void scale_all(struct step *s, double by)
{
	for (int i = 0; i < s->w.m.n_tensors; i++)
		scale(s, s->w.m.tensors[i].name, by);
}

static void wrong_scales(void **state)
{
	struct step s;
	struct check_opts o = plain;
	(void)state;
	o.dp = 4;
	/* not divided by dp: hidden by clipping, but for the norm in the log */
	begin(&s, LLAMA);
	scale_all(&s, 4);
	train(&s);
	expect(&s, &o, NULL);
	o.grad_norm = 4 * s.g.norm;
	expect(&s, &o, "4 times: not divided by the 4 data-parallel ranks");
	end(&s);
	/* and without clipping */
	o.grad_norm = -1;
	begin(&s, LLAMA);
	s.adam.clip = 0;
	scale_all(&s, 4);
	train(&s);
	expect(&s, &o,
		"all gradients are 4 times: not divided by the 4 data-parallel ranks");
	end(&s);
	/* clipped by the norm of a part */
	begin(&s, LLAMA);
	s.grad_norm = 0.7 * s.g.norm;
	train(&s);
	expect(&s, &plain, "the norm that it was divided by is 0.7 of its own");
	end(&s);
}

/* ---- wrong updates ---------------------------------------------------------------------------- */

static void wrong_updates(void **state)
{
	struct step s;
	(void)state;
	begin(&s, LLAMA);
	s.uncorrected = true;
	train(&s);
	expect(&s, &plain, "bias is not corrected");
	end(&s);

	begin(&s, LLAMA);
	train(&s);
	s.adam.beta2 = 0.999; /* what the user says */
	expect(&s, &plain, "as if beta2 were 0.95 instead of 0.999");
	s.adam.beta2 = 0.95;
	s.adam.decay = 0.3;
	expect(&s, &plain, "weight decay 0.1 instead of 0.3");
	s.adam.decay = 0.1;
	s.adam.lr = 2e-3;
	expect(&s, &plain, "learning rate 0.001 instead of 0.002");
	s.adam.lr = 1e-3;
	int i = tensor(&s, "layers.0.feed_forward.w1.weight");
	memcpy(s.of[1][MODEL][i], s.of[0][MODEL][i], 48 * 32 * sizeof(float));
	expect(&s, &plain, "has a gradient, and did not change");
	end(&s);

	begin(&s, LLAMA);
	train(&s);
	s.of[1][EXP_AVG][3][7] = NAN;
	expect(&s, &plain, "not finite");
	end(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batches),
		cmocka_unit_test(as_the_trainer),
		cmocka_unit_test(parts_add_up),
		cmocka_unit_test(masked_targets),
		cmocka_unit_test(right_steps),
		cmocka_unit_test(wrong_gradients),
		cmocka_unit_test(missing_when_warm),
		cmocka_unit_test(moments_of_others),
		cmocka_unit_test(keys_of_short_sequences),
		cmocka_unit_test(logged_digits),
		cmocka_unit_test(nan_in_two_runs),
		cmocka_unit_test(many_findings),
		cmocka_unit_test(wrong_scales),
		cmocka_unit_test(wrong_updates),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

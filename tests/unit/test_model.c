/* model: parameter counts of the presets, initial weights, decoding with a cache. */
#include "base/file.h"
#include "tests/support/support.h"
#include "model/generate.h"
#include "engine/inference.h"
#include "engine/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

static struct model model_of(const char *text, int64_t vocab)
{
	struct model_config c;
	struct model m;
	e = (struct err){0};
	if (options_parse_model(&c, text, &e) || model_init(&m, &c, vocab, &e))
		die_err(&e);
	return m;
}

static struct model preset(const char *name, const char *more, int64_t vocab)
{
	struct str path = {0}, text = {0};
	e = (struct err){0};
	str_printf(
		&path, "share/presets/%s.conf", name); /* tests run in the repository */
	assert_int_equal(file_read(path.s, 1 << 16, &text, &e), 0);
	str_puts(&text, more);
	struct model m = model_of(text.s, vocab);
	str_free(&path);
	str_free(&text);
	return m;
}

static const struct tensor *find(const struct model *m, const char *name)
{
	for (int i = 0; i < m->n_tensors; i++)
		if (!strcmp(m->tensors[i].name, name))
			return &m->tensors[i];
	return NULL;
}

/* ---- counts ---------------------------------------------------------------------- */

/* As published, or as the sum of the shapes in the published checkpoints. */
TEST(presets_have_their_size)
{
	static const struct {
		const char *name;
		int64_t all;
	} some[] = {
		{"gpt2-124m", 124439808},
		{"gpt2-350m", 354823168},
		{"gpt2-774m", 774030080},
		{"gpt2-1558m", 1557611200},
		{"llama2-7b", 6738415616},
		{"llama3-1b", 1235814400},
		{"llama3-8b", 8030261248},
		{"llama3-70b", 70553706496},
		{"llama3-405b", 405853388800},
		{"qwen2.5-0.5b", 494032768},
		{"qwen3-0.6b", 596049920},
		{"smollm3-3b", 3075098624},
		{"mistral-7b", 7248023552},
		{"mixtral-8x7b", 46702792704},
		{"olmoe-1b-7b", 6919161856},
		{"qwen3-30b-a3b", 30532122624},
		{"qwen1.5-moe-a2.7b", 14315784192},
		{"dots1", 142774381696},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		struct model m = preset(some[i].name, "vocab-multiple = 1\n", 0);
		assert_int_equal(model_counts(&m).all, some[i].all);
		model_release(&m);
	}
}

TEST(counts)
{
	struct model m = preset("gpt2-124m", "", 0);
	struct model_counts n = model_counts(&m);
	/* the vocabulary is padded from 50257 to 50304 rows of 768 */
	assert_int_equal(m.padded_vocab, 50304);
	assert_int_equal(n.all, 124439808 + 47 * 768);
	const double counted = (double)(n.all - 1024 * 768); /* without positions */
	/* not decayed: two norms and six biases a block, and the last norm */
	assert_int_equal(n.all - n.decayed, 12 * (4 + 3 + 1 + 4 + 1) * 768 + 2 * 768);
	/* nanoGPT's estimate_mfu: 6 N + 12 L H Q T */
	double attention = 12.0 * 12 * 12 * 64 * 1024;
	assert_true(model_flops_per_token(&m, false) == 6 * counted + attention);
	assert_true(model_flops_per_token(&m, true) == 6 * counted + attention / 2);
	/* all but the last two blocks: the output layer is the frozen embedding, through which the gradient passes */
	double upper = 0, head = (double)tensor_size(m.tokens);
	for (int i = 0; i < m.n_tensors; i++) {
		m.tensors[i].frozen = m.tensors[i].unit < 11;
		upper += m.tensors[i].frozen ? 0 : (double)tensor_size(&m.tensors[i]);
	}
	assert_int_equal(model_first_trained_unit(&m), 11);
	assert_true(model_flops_per_token(&m, false) ==
		    2 * counted + 2 * (upper + head) + 2 * upper +
			    attention * (4 * 12 + 8 * 2) / (12 * 12));
	assert_true(m.tie && m.bias && m.output == m.tokens && m.tokens->uses == 2);
	assert_null(find(&m, "output.weight"));
	model_release(&m);
	m = preset("llama3-8b", "", 0);
	n = model_counts(&m);
	assert_int_equal(n.all - n.decayed, (2 * 32 + 1) * 4096);
	assert_true(!m.tie && !m.bias && m.output == find(&m, "output.weight"));
	model_release(&m);
}

TEST(widths)
{
	static const int64_t llama[][2] = {
		{4096, 11008}, {5120, 13824}, {256, 768}, {96, 256}, {98, 512}};
	char text[100];
	for (size_t i = 0; i < ARRAY_LEN(llama); i++) {
		snprintf(text, sizeof(text), "arch = llama\nheads = 1\ndim = %d\n",
			(int)llama[i][0]);
		struct model m = model_of(text, 64);
		assert_int_equal(m.c.ffn_dim, llama[i][1]);
		model_release(&m);
	}
	struct model m = model_of("arch = gpt2\ndim = 100\n", 64);
	assert_int_equal(m.c.ffn_dim, 400);
	model_release(&m);
}

/* Slices change where parameters lie, and never what they are. */
TEST(slices_change_no_count)
{
	static const char *const archs[] = {"gpt2", "llama"};
	for (size_t a = 0; a < ARRAY_LEN(archs); a++) {
		char text[200];
		snprintf(text, sizeof(text),
			"arch = %s\nheads = 8\nkv-heads = 4\ndim = 64\n", archs[a]);
		struct model one = model_of(text, 64);
		snprintf(text + strlen(text), 40, "virtual = tp=4\n");
		struct model four = model_of(text, 64);
		assert_int_equal(one.n_tensors, four.n_tensors);
		assert_int_equal(model_counts(&one).all, model_counts(&four).all);
		for (int i = 0; i < one.n_tensors; i++) {
			const struct tensor *t = &four.tensors[i];
			assert_string_equal(one.tensors[i].name, t->name);
			assert_int_equal(t->slices, t->tp_split == TP_SPLIT_NONE ? 1 : 4);
			assert_int_equal(t->slices * t->rows * t->cols, tensor_size(t));
		}
		model_release(&one);
		model_release(&four);
	}
}

TEST(impossible_shapes)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"dim = 100\nheads = 3\n", "dim (100) is not divisible by heads (3)"},
		{"heads = 4\nkv-heads = 3\n",
			"heads (4) is not divisible by kv-heads (3)"},
		{"heads = 12\nkv-heads = 6\ndim = 48\nvirtual = tp=4\n",
			"kv-heads (6) must be a multiple or a divisor of virtual tp (4)"},
		{"virtual = tp=3\n", "is not divisible by virtual tp (3)"},
		{"context = 6\nvirtual = cp=2\n", "context (6) is not divisible by 2 x"},
		{"virtual = pp=2\n", "'pp=2' is not tp=N or cp=N"},
		{"virtual = tp=0\n", "'tp=0' is not tp=N"},
		{"arch = llama\ndim = 12\nheads = 4\n", "head-dim (3) must be even"},
		{"nope-every = 2\n", "has no rotary positions"},
		{"layers = 100000\ndim = 4194304\nheads = 4\n", "the model is too large"},
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct model_config c;
		struct model m;
		assert_int_equal(options_parse_model(&c, bad[i].text, &e), 0);
		assert_int_equal(model_init(&m, &c, 64, &e), -1);
		assert_int_equal(e.code, EX_USAGE);
		if (!strstr(e.msg, bad[i].says))
			print_error("said: %s\n", e.msg);
		assert_non_null(strstr(e.msg, bad[i].says));
		e = (struct err){0};
	}
}

/* Options of windows that say the same of all layers become the same. */
TEST(windows_have_one_name)
{
	enum { LAYERS = 6, SOME = 9 };
	struct model_config seen[1 << LAYERS] = {{0}};
	for (int i = 0; i < 2 * SOME * SOME; i++) {
		int from = i / 2 % SOME, skip = i / 2 / SOME;
		struct model_config c = {.layers = LAYERS,
			.heads = 2,
			.dim = 8,
			.context = 16,
			.vocab = 8,
			.window = 4,
			.window_from = from,
			.window_skip = i % 2 ? skip : -skip};
		struct model m;
		int pattern = 0, same = 0;
		assert_int_equal(model_init(&m, &c, 0, &e), 0);
		for (int l = 0; l < LAYERS; l++) {
			pattern |= layer_has_window(&c, l) << l;
			same |= layer_has_window(&m.c, l) << l;
		}
		assert_int_equal(same, pattern);
		struct model_config *first = &seen[pattern];
		if (!first->layers)
			*first = m.c;
		assert_int_equal(m.c.window, pattern ? 4 : 0);
		assert_int_equal(m.c.window_from, first->window_from);
		assert_int_equal(m.c.window_skip, first->window_skip);
		model_release(&m);
	}
}

/* ---- initial weights ------------------------------------------------------------- */

static void init_range(
	const struct tensor *t, uint64_t seed, int64_t first, int64_t n, float *out)
{
	struct device d;
	device_open_cpu(&d, 0);
	init_rows(&d, t, seed, first, mat(out, 1, n));
}

struct moments {
	double mean, std, kurtosis, largest;
	double next; /* correlation of neighbours */
};

static struct moments moments_of(const struct tensor *t, uint64_t seed)
{
	int64_t n = tensor_size(t);
	float *x = xcalloc((size_t)n, sizeof(*x));
	double s1 = 0, s2 = 0, s4 = 0, next = 0, largest = 0;
	init_range(t, seed, 0, n, x);
	for (int64_t i = 0; i < n; i++) {
		double v = (double)x[i];
		s1 += v;
		s2 += v * v;
		s4 += v * v * v * v;
		next += i > 0 ? v * (double)x[i - 1] : 0;
		largest = fabs(v) > largest ? fabs(v) : largest;
	}
	free(x);
	double var = s2 / (double)n;
	return (struct moments){s1 / (double)n, sqrt(var), s4 / (double)n / (var * var),
		largest, next / (double)n / var};
}

/* Normal and independent, within five standard errors. */
static void check_normal(const struct model *m, const char *name, double std)
{
	const struct tensor *t = find(m, name);
	assert_non_null(t);
	struct moments x = moments_of(t, 7);
	double n = (double)tensor_size(t);
	assert_near(x.mean, 0, 5 * std / sqrt(n));
	assert_near(x.std, std, 5 * std / sqrt(2 * n));
	assert_near(x.kurtosis, 3, 5 * sqrt(24 / n));
	assert_near(x.next, 0, 5 / sqrt(n));
}

static void check_all(const struct model *m, const char *name, float value)
{
	float x[64] = {0};
	const struct tensor *t = find(m, name);
	assert_non_null(t);
	init_range(t, 7, 0, 64, x);
	for (int i = 0; i < 64; i++)
		assert_true(x[i] == value);
}

#define SHAPE "layers = 8\nheads = 4\ndim = 128\ncontext = 200\nvocab = 500\n"

TEST(weights_of_gpt2)
{
	struct model m = model_of("arch = gpt2\n" SHAPE, 0);
	check_normal(&m, "tok_embeddings.weight", 0.02);
	check_normal(&m, "pos_embeddings.weight", 0.02);
	check_normal(&m, "layers.0.attention.wq.weight", 0.02);
	check_normal(&m, "layers.7.feed_forward.w1.weight", 0.02);
	/* back into the residual stream: shrunk by the root of two a block */
	check_normal(&m, "layers.0.attention.wo.weight", 0.02 / 4);
	check_normal(&m, "layers.7.feed_forward.w2.weight", 0.02 / 4);
	check_all(&m, "layers.3.attention_norm.weight", 1);
	check_all(&m, "layers.3.attention_norm.bias", 0);
	check_all(&m, "layers.3.attention.wq.bias", 0);
	check_all(&m, "norm.weight", 1);
	model_release(&m);
}

TEST(weights_of_llama)
{
	struct model m = model_of("arch = llama\n" SHAPE, 0);
	check_normal(&m, "layers.0.attention.wo.weight", 0.02);
	check_normal(&m, "layers.7.feed_forward.w2.weight", 0.02);
	check_normal(&m, "output.weight", 0.02);
	check_all(&m, "layers.3.ffn_norm.weight", 1);
	model_release(&m);
	/* torchtitan's: by the depth of the block, the output truncated */
	m = model_of("arch = llama\ninit = depth\n" SHAPE, 0);
	check_normal(&m, "tok_embeddings.weight", 1);
	check_normal(&m, "layers.0.attention.wq.weight", 0.02);
	check_normal(&m, "layers.0.attention.wo.weight", 0.02 / sqrt(2));
	check_normal(&m, "layers.7.attention.wo.weight", 0.02 / 4);
	check_normal(&m, "layers.7.feed_forward.w3.weight", 0.02 / 4);
	struct moments x = moments_of(find(&m, "output.weight"), 7);
	double std = 1 / sqrt(128);
	assert_true(x.largest <= 3 * std && x.largest > 2.9 * std);
	/* a normal distribution cut at 3 has 0.98658 of its deviation */
	assert_near(x.std, 0.98658 * std, 0.01 * std);
	model_release(&m);
}

TEST(any_part_is_the_same)
{
	enum { N = 500 * 128, SLICE = 32 };
	static float whole[N], part[N], other[N];
	struct model m = model_of("arch = llama\ninit = depth\n" SHAPE, 0);
	const struct tensor *t = find(&m, "output.weight");
	init_range(t, 3, 0, N, whole);
	for (int64_t at = 0; at < N; at += 997)
		init_range(t, 3, at, min64(997, N - at), part + at);
	assert_memory_equal(whole, part, sizeof(whole));
	for (int64_t col = 0; col < 128; col += SLICE) {
		struct device d;
		device_open_cpu(&d, 1);
		init_rows(&d, t, 3, col, mat(part, 500, SLICE));
		for (int64_t i = 0; i < 500 * SLICE; i++)
			assert_true(part[i] == whole[i / SLICE * 128 + col + i % SLICE]);
	}
	int same = 0;
	init_range(t, 4, 0, N, other);
	for (int i = 0; i < N; i++)
		same += whole[i] == other[i];
	assert_true(same < 20);
	/* a tensor of another name has other numbers */
	const struct tensor *q = find(&m, "layers.1.attention.wq.weight");
	const struct tensor *k = find(&m, "layers.1.attention.wk.weight");
	init_range(q, 3, 0, 128 * 128, part);
	init_range(k, 3, 0, 128 * 128, other);
	same = 0;
	for (int i = 0; i < 128 * 128; i++)
		same += part[i] == other[i];
	assert_true(same < 20);
	model_release(&m);
}

/* ---- decoding -------------------------------------------------------------------- */

struct net {
	struct model m;
	struct device d;
	struct mesh alone;
	struct arena run, micro, scratch;
	struct store *store;
};

enum { VOCAB = 50 };

/* A model with parameters larger than the initial ones, so that logits are no constants. */
static void net_open(struct net *x, const char *text, int threads)
{
	struct arena size;
	*x = (struct net){.m = model_of(text, VOCAB)};
	mesh_alone(&x->alone);
	device_open_cpu(&x->d, threads);
	arena_measure(&size, "parameters");
	store_free(inference_store(&x->m, &x->d, &x->alone, &size));
	arena_init(&x->run, "parameters", size.peak_bytes + (1 << 20));
	arena_init(&x->micro, "activations", 1 << 24);
	arena_init(&x->scratch, "scratch", 1 << 26);
	x->d.scratch = &x->scratch;
	x->store = inference_store(&x->m, &x->d, &x->alone, &x->run);
	for (int i = 0; i < x->m.n_tensors; i++) {
		const struct tensor *t = &x->m.tensors[i];
		float *whole = xcalloc((size_t)tensor_size(t), sizeof(*whole));
		test_fill(whole, tensor_size(t), hash_str(t->name), 0.2);
		store_write_rows(x->store, STORE_PARAM, i, 0, t->dims[0], whole);
		free(whole);
	}
}

static void net_close(struct net *x)
{
	store_free(x->store);
	arena_release(&x->run);
	arena_release(&x->micro);
	arena_release(&x->scratch);
	comm_free(x->alone.world);
	mesh_close(&x->alone);
	model_release(&x->m);
}

static const char *const nets[] = {
	"arch = gpt2\nlayers = 2\nheads = 4\ndim = 32\ncontext = 80\n",
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\n"
	"context = 80\n",
	"arch = gpt2\nlayers = 2\nheads = 4\ndim = 32\ncontext = 16\nvirtual = "
	"tp=2,cp=2\n"
	"vocab-multiple = 16\n",
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\n"
	"context = 16\nvirtual = tp=2\nrope-scaling = llama3\nrope-original = 8\n",
	/* four slices share a head of keys and values; two have one each */
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 1\ndim = 32\nffn-dim = 48\n"
	"context = 16\nvirtual = tp=4\n",
	"arch = llama\nlayers = 1\nheads = 8\nkv-heads = 2\ndim = 32\nffn-dim = 48\n"
	"context = 16\nvirtual = tp=4,cp=2\nbias = yes\n",
	"arch = llama\nlayers = 1\nheads = 4\nkv-heads = 2\nhead-dim = 12\ndim = 32\n"
	"context = 16\nvirtual = tp=2,cp=2\nbias = qkv\n",
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\nhead-dim = 12\ndim = 32\nffn-dim = 48\n"
	"context = 16\nvirtual = tp=4,cp=2\nqk-norm = yes\nnope-every = 2\n",
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\ndim = 32\ncontext = 80\n"
	"experts = 8\nexpert-dim = 24\n",
	"arch = llama\nlayers = 3\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\n"
	"context = 16\nvirtual = tp=2\nexperts = 8\nexpert-dim = 24\nmoe-from = 1\n"
	"router = sigmoid\nshared-expert-dim = 16\nshared-expert-gate = yes\n",
};

static uint32_t token(int64_t i)
{
	return (uint32_t)(test_uniform(9, i) * VOCAB);
}

/* A prompt, then a token at a time, beyond the context; `other` has to give equal bits. */
static void same_logits(
	struct net *x, struct decoder *g, struct decoder *other, int64_t piece)
{
	int64_t prompt = x->m.c.context - 5, end = 2 * x->m.c.context;
	uint32_t ids[256] = {0};
	for (int64_t i = 0; i < end; i++)
		ids[i] = token(i);
	decoder_feed(g, ids, prompt);
	for (int64_t at = 0; at < prompt; at += piece)
		decoder_feed(other, ids + at, min64(piece, prompt - at));
	for (int64_t i = prompt; i < end; i++) {
		const float *a = decoder_logits(g), *b = decoder_logits(other);
		assert_memory_equal(a, b, VOCAB * sizeof(*a));
		assert_true(a[0] != a[1] && isfinite(a[0]));
		decoder_feed(g, &ids[i], 1);
		decoder_feed(other, &ids[i], 1);
	}
}

TEST(a_cache_changes_no_bit)
{
	for (size_t i = 0; i < ARRAY_LEN(nets); i++) {
		struct net x;
		net_open(&x, nets[i], 1);
		struct decoder *with = decoder_open(&x.m, &x.d, x.store, true);
		struct decoder *without = decoder_open(&x.m, &x.d, x.store, false);
		same_logits(&x, with, without, x.m.c.context);
		decoder_close(with);
		decoder_close(without);
		net_close(&x);
	}
}

TEST(pieces_and_threads_change_no_bit)
{
	for (size_t i = 0; i < ARRAY_LEN(nets); i++) {
		struct net x, y;
		net_open(&x, nets[i], 1);
		net_open(&y, nets[i], 2);
		struct decoder *whole = decoder_open(&x.m, &x.d, x.store, true);
		struct decoder *pieces = decoder_open(&y.m, &y.d, y.store, true);
		same_logits(&x, whole, pieces, 3);
		decoder_close(whole);
		decoder_close(pieces);
		net_close(&x);
		net_close(&y);
	}
}

/* The decoder is the model that is trained: its logits give the loss of the forward. */
TEST(decoder_and_forward_agree)
{
	for (size_t i = 0; i < ARRAY_LEN(nets); i++) {
		struct net x;
		net_open(&x, nets[i], 1);
		struct decoder *g = decoder_open(&x.m, &x.d, x.store, true);
		struct pass p;
		struct acts a;
		int64_t n = x.m.c.context;
		int32_t window[128] = {0};
		double loss = 0;
		for (int64_t j = 0; j <= n; j++)
			window[j] = (int32_t)token(j);
		for (int64_t j = 0; j < n; j++) {
			uint32_t id = token(j);
			double sum = 0;
			decoder_feed(g, &id, 1);
			const float *logits = decoder_logits(g);
			for (int k = 0; k < VOCAB; k++)
				sum += exp((double)logits[k]);
			loss += log(sum) - (double)logits[window[j + 1]];
		}
		const struct stage all = {0, x.m.c.layers, true, true};
		pass_init(&p, &x.m, &x.d, x.store,
			&(struct pass_config){.mesh = &x.alone, .batch = 1}, &x.run);
		acts_alloc(&p, &all, &a, &x.micro);
		pass_load(&p, window);
		model_forward(&p, &all, &a);
		struct exact sum = pass_loss(&p);
		assert_near(exact_round(&sum) / (double)n, loss / (double)n, 1e-5);
		pass_release(&p);
		acts_release(&a);
		decoder_close(g);
		net_close(&x);
	}
}

/* ---- drawing --------------------------------------------------------------------- */

static int64_t likeliest(const float *logits, int64_t but_not)
{
	int64_t best = -1;
	for (int64_t i = 0; i < VOCAB; i++)
		if (i != but_not && (best < 0 || logits[i] > logits[best]))
			best = i;
	return best;
}

TEST(draws)
{
	enum { N = 20000 };
	static const struct sampler greedy = {.temperature = 0, .top_p = 1},
				    any = {1, 0, 1, 5}, hot = {2, 0, 1, 5},
				    two = {1, 2, 1, 5}, nucleus = {1, 0, 1e-9, 5};
	struct net x;
	net_open(&x, nets[0], 1);
	struct decoder *g = decoder_open(&x.m, &x.d, x.store, true);
	double sum = 0, hot_sum = 0, hits[VOCAB] = {0}, hot_hits[VOCAB] = {0};
	uint32_t ids[4] = {1, 2, 3, 4};
	decoder_feed(g, ids, 4);
	const float *logits = decoder_logits(g);
	int64_t best = likeliest(logits, -1), second = likeliest(logits, best);
	for (int64_t i = 0; i < VOCAB; i++) {
		sum += exp((double)logits[i]);
		hot_sum += exp((double)logits[i] / 2);
	}
	for (int64_t i = 0; i < N; i++) {
		int64_t id = decoder_draw(g, &any, 0, i);
		assert_in_range(id, 0, VOCAB - 1);
		assert_int_equal(id, decoder_draw(g, &any, 0, i));
		hits[id]++;
		hot_hits[decoder_draw(g, &hot, 1, i)]++;
		if (i > 1000)
			continue;
		assert_int_equal(decoder_draw(g, &greedy, 0, i), best);
		assert_int_equal(decoder_draw(g, &nucleus, 0, i), best);
		id = decoder_draw(g, &two, 0, i);
		assert_true(id == best || id == second);
	}
	for (int64_t i = 0; i < VOCAB; i++) { /* five standard errors */
		double p = exp((double)logits[i]) / sum;
		assert_near(hits[i] / N, p, 5 * sqrt(p / N) + 1e-3);
		p = exp((double)logits[i] / 2) / hot_sum;
		assert_near(hot_hits[i] / N, p, 5 * sqrt(p / N) + 1e-3);
	}
	decoder_close(g);
	net_close(&x);
}

/* The models of llm.c: headers and the order of the parameters.
 *   GPT-2    gpt2_write_to_checkpoint() in train_gpt2.cu, write_model() in train_gpt2.py
 *   Llama 3  write_model() in train_llama3.py
 * The header of a Llama has integers even for the factor of the feed-forward width (1.3) and
 * norm-eps (1e-5), which become 1 and 0. So the width is derived from the file size, and norm-eps
 * is 1e-5. */
#include "foreign/llmc_internal.h"

#include <math.h>

/* llm.c's GPT-2 kernels require a vocabulary of this multiple. */
enum { VOCAB_MULTIPLE = 128 };
enum { G_CONTEXT = 2, G_VOCAB, G_LAYERS, G_HEADS, G_DIM, G_PADDED_VOCAB, G_END };
enum { L_CONTEXT = 2, L_VOCAB, L_LAYERS, L_HEADS, L_KV_HEADS, L_DIM, L_FFN_FACTOR };
enum { L_FFN_MULTIPLE = L_FFN_FACTOR + 1, L_NORM_EPS, L_ROPE_THETA, L_SCALED_ROPE };
enum { L_BATCH = L_SCALED_ROPE + 1, L_MAJOR, L_MINOR, L_END };

static const struct llmc_kind gpt2_kinds[] = {
	{false, {"tok_embeddings.weight"}},
	{false, {"pos_embeddings.weight"}},
	{true, {"attention_norm.weight"}},
	{true, {"attention_norm.bias"}},
	{true, {"attention.wq.weight", "attention.wk.weight", "attention.wv.weight"}},
	{true, {"attention.wq.bias", "attention.wk.bias", "attention.wv.bias"}},
	{true, {"attention.wo.weight"}},
	{true, {"attention.wo.bias"}},
	{true, {"ffn_norm.weight"}},
	{true, {"ffn_norm.bias"}},
	{true, {"feed_forward.w1.weight"}},
	{true, {"feed_forward.w1.bias"}},
	{true, {"feed_forward.w2.weight"}},
	{true, {"feed_forward.w2.bias"}},
	{false, {"norm.weight"}},
	{false, {"norm.bias"}},
	{0},
};
static const struct llmc_kind llama_kinds[] = {
	{false, {"tok_embeddings.weight"}},
	{true, {"attention_norm.weight"}},
	{true, {"attention.wq.weight", "attention.wk.weight", "attention.wv.weight"}},
	{true, {"attention.wo.weight"}},
	{true, {"ffn_norm.weight"}},
	{true, {"feed_forward.w3.weight"}},
	{true, {"feed_forward.w1.weight"}},
	{true, {"feed_forward.w2.weight"}},
	{false, {"norm.weight"}},
	{false, {"output.weight"}},
	{0},
};

/* Fails if one of the words first to last of the header is not in 1 to 2^24. */
static int check_words(
	const int32_t *h, int first, int last, const char *path, struct err *e)
{
	for (int i = first; i <= last; i++)
		if (h[i] < 1 || h[i] > 1 << 24)
			return err_set(e, EX_DATAERR,
				"%s: word %d of the header, %d, is invalid", path, i,
				h[i]);
	return 0;
}

/* Bounds the layers before their memory is allocated: each has more than dim^2 parameters. */
static int check_layers(int64_t n_parameters, int64_t layers, int64_t dim,
	const char *path, struct err *e)
{
	return layers <= 100000 && n_parameters / layers >= dim * dim
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: the file is too short for %lld layers", path,
				 (long long)layers);
}

/* Sets the multiple that pads a vocabulary to `rows`. */
static int set_vocabulary(struct model_config *c, int64_t vocab, int64_t rows,
	int64_t max_rows, const char *path, struct err *e)
{
	if (vocab < 1 || rows < vocab || rows > max_rows)
		return err_set(e, EX_DATAERR,
			"%s: header: %lld rows for %lld tokens, padded to %lld", path,
			(long long)rows, (long long)vocab, (long long)max_rows);
	c->vocab = vocab;
	c->vocab_multiple = rows == vocab			      ? 1
			    : rows == round_up(vocab, VOCAB_MULTIPLE) ? VOCAB_MULTIPLE
								      : rows;
	return 0;
}

/* Sets *c from the header of a GPT-2 file, and *rows to the rows of its embedding. */
static int read_gpt2(const int32_t *h, int64_t n_parameters, struct model_config *c,
	int64_t *rows, const char *path, struct err *e)
{
	if (check_words(h, G_CONTEXT, G_PADDED_VOCAB, path, e) ||
		check_layers(n_parameters, h[G_LAYERS], h[G_DIM], path, e))
		return -1;
	*rows = h[G_PADDED_VOCAB];
	*c = (struct model_config){.arch = ARCH_GPT2,
		.layers = h[G_LAYERS],
		.heads = h[G_HEADS],
		.dim = h[G_DIM],
		.context = h[G_CONTEXT]};
	return set_vocabulary(c, h[G_VOCAB],
		h[LLMC_MARK] == LLMC_IS_MARKED ? h[LLMC_OWN] : *rows, *rows, path, e);
}

/* Returns the feed-forward width (three matrices per layer) that n parameters imply; 0: none. */
static int64_t derive_ffn_dim(const struct model_config *c, int64_t rows, int64_t n)
{
	int64_t kv = c->dim / c->heads * c->kv_heads;
	int64_t rest = (2 * rows + 1) * c->dim +
		       c->layers * (2 * c->dim * (c->dim + kv) + 2 * c->dim);
	int64_t per_width = 3 * c->layers * c->dim;
	return n > rest && (n - rest) % per_width == 0 ? (n - rest) / per_width : 0;
}

static void set_llama3_rope(struct model_config *c)
{
	c->rope_scaling = ROPE_LLAMA3;
	c->rope_factor = 8;
	c->rope_low = 1;
	c->rope_high = 4;
	c->rope_original = 8192;
}

/* Sets *c from the header of a Llama file, and *rows to the rows of its embedding. Derives ffn_dim
 * from the number of parameters. */
static int read_llama(const int32_t *h, int64_t n_parameters, struct model_config *c,
	int64_t *rows, const char *path, struct err *e)
{
	if (check_words(h, L_CONTEXT, L_DIM, path, e) ||
		check_layers(n_parameters, h[L_LAYERS], h[L_DIM], path, e))
		return -1;
	if (h[L_DIM] % h[L_HEADS] || h[L_HEADS] % h[L_KV_HEADS] || h[L_ROPE_THETA] < 1 ||
		h[L_SCALED_ROPE] < 0 || h[L_SCALED_ROPE] > 1)
		return err_set(e, EX_DATAERR,
			"%s: header: dim %d, heads %d, kv-heads %d, rope-theta %d, scaled %d",
			path, h[L_DIM], h[L_HEADS], h[L_KV_HEADS], h[L_ROPE_THETA],
			h[L_SCALED_ROPE]);
	*rows = h[L_VOCAB];
	*c = (struct model_config){.arch = ARCH_LLAMA,
		.layers = h[L_LAYERS],
		.heads = h[L_HEADS],
		.kv_heads = h[L_KV_HEADS],
		.dim = h[L_DIM],
		.context = h[L_CONTEXT],
		.rope_theta = h[L_ROPE_THETA]};
	if (h[L_SCALED_ROPE])
		set_llama3_rope(c);
	c->ffn_dim = derive_ffn_dim(c, *rows, n_parameters);
	if (!c->ffn_dim)
		return err_set(e, EX_DATAERR,
			"%s: no feed-forward width matches the size of the file: the file "
			"is damaged",
			path);
	return set_vocabulary(c, h[LLMC_MARK] == LLMC_IS_MARKED ? h[LLMC_OWN] : *rows,
		*rows, *rows, path, e);
}

static bool has_llmc_norm_eps(const struct model_config *c)
{
	return fabs(c->norm_eps - 1e-5) < 1e-12;
}

/* Sets the header of a GPT-2 model. Fails if llm.c does not support the model. */
static int write_gpt2(int32_t *h, const struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	if (m->act != ACT_GELU_TANH || !m->bias || !m->tie || c->kv_heads != c->heads ||
		model_q_width(m) != c->dim || c->ffn_dim != 4 * c->dim ||
		!has_llmc_norm_eps(c) || c->window)
		return err_set(e, EX_DATAERR,
			"llm.c supports GPT-2 only with gelu-tanh, biases, a tied output "
			"layer, ffn-dim = 4 dim, heads of dim / heads channels, norm-eps "
			"1e-5, no window");
	h[G_CONTEXT] = (int32_t)c->context;
	h[G_VOCAB] = (int32_t)c->vocab;
	h[G_LAYERS] = (int32_t)c->layers;
	h[G_HEADS] = (int32_t)c->heads;
	h[G_DIM] = (int32_t)c->dim;
	h[G_PADDED_VOCAB] = (int32_t)round_up(m->padded_vocab, VOCAB_MULTIPLE);
	h[LLMC_OWN] = (int32_t)m->padded_vocab;
	return 0;
}

/* Returns true if llm.c can express the rotary positions: integer theta, plain or Llama 3.1. */
static bool has_llama_rope(const struct model_config *c)
{
	struct model_config llama3;
	set_llama3_rope(&llama3);
	bool is_llama3 = c->rope_factor == llama3.rope_factor &&
			 c->rope_low == llama3.rope_low &&
			 c->rope_high == llama3.rope_high &&
			 c->rope_original == llama3.rope_original;
	return c->rope_theta >= 1 && c->rope_theta <= INT32_MAX &&
	       c->rope_theta == floor(c->rope_theta) &&
	       (c->rope_scaling == ROPE_PLAIN ||
		       (c->rope_scaling == ROPE_LLAMA3 && is_llama3));
}

/* Sets the header of a Llama 3 model. Fails if llm.c does not support the model. */
static int write_llama(int32_t *h, const struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	int32_t multiple = 1024;
	if (m->act != ACT_SWIGLU || m->qkv_bias || m->tie || !has_llmc_norm_eps(c) ||
		model_q_width(m) != c->dim || c->qk_norm || c->nope_every || c->experts ||
		!has_llama_rope(c) || c->window)
		return err_set(e, EX_DATAERR,
			"llm.c supports Llama 3 only with swiglu, no biases, an untied output "
			"layer, heads of dim / heads channels without norms, norm-eps 1e-5, "
			"positions in all layers, no window, an integer rope-theta, "
			"rope-scaling none or as in Llama 3.1");
	while (c->ffn_dim % multiple)
		multiple /= 2;
	h[L_CONTEXT] = (int32_t)c->context;
	h[L_VOCAB] = (int32_t)m->padded_vocab;
	h[L_LAYERS] = (int32_t)c->layers;
	h[L_HEADS] = (int32_t)c->heads;
	h[L_KV_HEADS] = (int32_t)c->kv_heads;
	h[L_DIM] = (int32_t)c->dim;
	h[L_FFN_FACTOR] = 1;
	h[L_FFN_MULTIPLE] = multiple;
	h[L_ROPE_THETA] = (int32_t)c->rope_theta;
	h[L_SCALED_ROPE] = c->rope_scaling == ROPE_LLAMA3;
	h[L_BATCH] = 4;
	h[L_MAJOR] = 3;
	h[L_MINOR] = 1;
	h[LLMC_OWN] = (int32_t)c->vocab;
	return 0;
}

static const struct llmc_layout layouts[] = {
	{20240326, ARCH_GPT2, G_END, gpt2_kinds, false, read_gpt2, write_gpt2,
		VOCAB_MULTIPLE},
	{20240803, ARCH_LLAMA, L_END, llama_kinds, true, read_llama, write_llama, 1},
};

const struct llmc_layout *llmc_find_by_magic(int32_t magic)
{
	for (size_t i = 0; i < ARRAY_LEN(layouts); i++)
		if (layouts[i].magic == magic)
			return &layouts[i];
	return NULL;
}

const struct llmc_layout *llmc_find_by_arch(int arch)
{
	for (size_t i = 0; i < ARRAY_LEN(layouts); i++)
		if (layouts[i].arch == arch)
			return &layouts[i];
	return NULL;
}

bool llmc_is_rotated(const struct llmc_layout *l, const char *name)
{
	return l->rotates_adjacent && (text_ends(name, "attention.wq.weight") ||
					      text_ends(name, "attention.wk.weight"));
}

int64_t llmc_row_in_file(int64_t row, int64_t head_dim)
{
	int64_t half = head_dim / 2, at = row % head_dim;
	return row - at + (at < half ? 2 * at : 2 * (at - half) + 1);
}

int64_t llmc_row_from_file(int64_t row, int64_t head_dim)
{
	int64_t half = head_dim / 2, at = row % head_dim;
	return row - at + at / 2 + (at % 2 ? half : 0);
}

/* Returns the index of a tensor of a layer (-1: not in a layer), which must exist. */
static int find_tensor(const struct model *m, const char *name, int64_t layer)
{
	char path[64];
	if (layer < 0)
		snprintf(path, sizeof(path), "%s", name);
	else
		snprintf(path, sizeof(path), "layers.%lld.%s", (long long)layer, name);
	for (int i = 0; i < m->n_tensors; i++)
		if (!strcmp(m->tensors[i].name, path))
			return i;
	BUG_ON(true); /* the layout's write() has checked the model */
}

int *llmc_order(const struct llmc_layout *l, const struct model *m)
{
	int *order = xcalloc((size_t)m->n_tensors, sizeof(*order)), n = 0;
	for (const struct llmc_kind *k = l->kinds; k->names[0]; k++) {
		int64_t last = k->layers ? m->c.layers : 1;
		for (int64_t layer = 0; layer < last; layer++)
			for (int i = 0; i < 3 && k->names[i]; i++)
				order[n++] = find_tensor(
					m, k->names[i], k->layers ? layer : -1);
	}
	BUG_ON(n != m->n_tensors);
	return order;
}

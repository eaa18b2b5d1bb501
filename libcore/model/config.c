/* What a model is: options to shapes, and the tensor table. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct arch *const arch_table[] = {&arch_gpt2, &arch_llama};
const char *const arch_names[] = {"gpt2", "llama", NULL};
const char *const by_arch_names[] = {"by-arch", "yes", "no", NULL};
const char *const act_names[] = {"by-arch", "gelu-tanh", "gelu", "swiglu", NULL};
const char *const init_names[] = {"by-arch", "gpt2", "llama", "depth", NULL};
const char *const rope_scaling_names[] = {"none", "linear", "llama3", NULL};

/* ---- resolving ------------------------------------------------------------------- */

int model_virtual(const char *text, int64_t *tp, int64_t *cp, struct err *e)
{
	char *copy = xstrdup(text ? text : ""), *rest = copy, *item;
	bool named[2] = {false};
	int rc = 0;
	while (!rc && *copy && (item = strsep(&rest, ","))) {
		int64_t n;
		char *value = strchr(item, '=');
		if (!value || parse_int(value + 1, &n) || n < 1 || n > 1024) {
			rc = err_set(
				e, EX_USAGE, "virtual: '%s' is not tp=N or cp=N", item);
			break;
		}
		*value = '\0';
		bool is_cp = !strcmp(item, "cp");
		if (!is_cp && strcmp(item, "tp")) {
			rc = err_set(e, EX_USAGE,
				"virtual: there is no axis '%s', only tp and cp", item);
			break;
		}
		if (named[is_cp])
			rc = err_set(e, EX_USAGE, "virtual: %s is there twice", item);
		named[is_cp] = true;
		*(is_cp ? cp : tp) = n;
	}
	free(copy);
	return rc;
}

static int must_divide(
	int64_t n, int64_t by, const char *what, const char *by_what, struct err *e)
{
	if (by > 0 && n % by == 0)
		return 0;
	return err_set(e, EX_USAGE, "%s (%lld) cannot be divided by %s (%lld)", what,
		(long long)n, by_what, (long long)by);
}

/* Sizes are whole numbers of 64 bits, with room for all that is kept of a parameter. */
static int check_size(const struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	double dim = (double)c->dim, ffn = (double)c->ffn_dim;
	double n = (double)c->layers * (4 * dim * dim + 3 * dim * ffn) +
		   dim * (2 * (double)m->padded_vocab + (double)c->context);
	if (n < 0x1p56)
		return 0;
	return err_set(
		e, EX_USAGE, "a model of %.3g parameters, which no machine holds", n);
}

/* Slices have several heads of keys and values, or several slices share one. */
static int check_kv_heads(const struct model *m, struct err *e)
{
	if (m->c.kv_heads % m->tp == 0 || m->tp % m->c.kv_heads == 0)
		return 0;
	return err_set(e, EX_USAGE,
		"of kv-heads (%lld) and virtual tp (%d), one must be a multiple of the "
		"other",
		(long long)m->c.kv_heads, m->tp);
}

static int check(struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	if (must_divide(c->dim, c->heads, "dim", "heads", e) ||
		must_divide(c->heads, c->kv_heads, "heads", "kv-heads", e) ||
		must_divide(c->heads, m->tp, "heads", "virtual tp", e) ||
		check_kv_heads(m, e) ||
		must_divide(c->ffn_dim, m->tp, "ffn-dim", "virtual tp", e))
		return -1;
	if (m->cp > 1 &&
		must_divide(c->context, 2 * m->cp, "context", "2 x virtual cp", e))
		return -1;
	if (m->arch->rope && m->head_dim % 2)
		return err_set(e, EX_USAGE,
			"heads of %lld channels: rotary positions need pairs",
			(long long)m->head_dim);
	if (c->rope_scaling == ROPE_LLAMA3 && c->rope_low >= c->rope_high)
		return err_set(e, EX_USAGE,
			"rope-low (%g) must be below rope-high (%g): wavelengths between "
			"them are stretched in part",
			c->rope_low, c->rope_high);
	if (c->vocab < 1)
		return err_set(e, EX_USAGE, "the vocabulary is empty%s",
			advice_on(ADVICE_VOCABULARY));
	return check_size(m, e);
}

static bool decide(int choice, bool by_arch)
{
	return choice == BY_ARCH ? by_arch : choice == YES;
}

static int resolve(struct model *m, int64_t vocab, struct err *e)
{
	struct model_config *c = &m->c;
	m->arch = arch_table[c->arch];
	int64_t tp = 1, cp = 1;
	if (model_virtual(c->virtual_degrees, &tp, &cp, e))
		return -1;
	m->tp = (int)tp;
	m->cp = (int)cp;
	c->vocab = vocab ? vocab : c->vocab;
	c->kv_heads = c->kv_heads ? c->kv_heads : c->heads;
	c->ffn_dim = c->ffn_dim ? c->ffn_dim : m->arch->ffn_dim(c->dim);
	c->norm_eps = c->norm_eps > 0 ? c->norm_eps : m->arch->norm_eps;
	c->act = c->act ? c->act : (int)m->arch->act;
	c->init = c->init ? c->init : (int)m->arch->init;
	m->act = c->act == ACTC_SWIGLU ? ACT_SWIGLU
		 : c->act == ACTC_GELU ? ACT_GELU
				       : ACT_GELU_TANH;
	m->bias = decide(c->bias, m->arch->bias);
	m->tie = decide(c->tie, m->arch->tie);
	m->head_dim = c->heads ? c->dim / c->heads : 0;
	int64_t multiple = max64(1, c->vocab_multiple);
	while (multiple % m->tp)
		multiple += max64(1, c->vocab_multiple);
	m->padded_vocab = round_up(c->vocab, multiple);
	return check(m, e);
}

/* ---- the tensor table ------------------------------------------------------------ */

struct row {
	const char *name;   /* a block's gets "layers.N." in front */
	int64_t rows, cols; /* cols 0: a vector */
	enum cut cut;
	enum {
		ROW_WEIGHT,
		ROW_RESIDUAL,
		ROW_GATE,
		ROW_EMBED,
		ROW_OUTPUT,
		ROW_NORM,
		ROW_BIAS
	} kind;
	bool there;
	int64_t heads; /* of keys or values: there are no more slices than these; 0: any */
	size_t slot;   /* where the pointer to it goes */
	int tile;
};

/* How a weight is drawn. depth: torchtitan's, where the projections back into the residual
 * stream shrink with depth (it truncates at 2, a hundred standard deviations, except for
 * the output, at 3 of them); gpt2: they shrink with the number of layers; llama: as Hugging
 * Face has it, all alike. */
static void set_init(const struct model *m, struct tensor *t, int kind, int64_t layer)
{
	double layers = (double)m->c.layers;
	t->init = INIT_NORMAL;
	t->std = 0.02f;
	if (kind == ROW_NORM || kind == ROW_BIAS) {
		t->init = kind == ROW_NORM ? INIT_ONE : INIT_ZERO;
	} else if (m->c.init == INITC_GPT2 && kind == ROW_RESIDUAL) {
		t->std = (float)(0.02 / sqrt(2 * layers));
	} else if (m->c.init == INITC_DEPTH) {
		/* A tied table is the output too, and logits want its scale. */
		bool output = kind == ROW_OUTPUT ||
			      (m->tie && kind == ROW_EMBED && t->cut == CUT_ROWS);
		t->init = output ? INIT_TRUNCATED : INIT_NORMAL;
		if (output)
			t->std = (float)(1 / sqrt((double)m->c.dim));
		else if (kind == ROW_EMBED)
			t->std = 1;
		else if (kind == ROW_RESIDUAL || kind == ROW_GATE)
			t->std = (float)(0.02 / sqrt(2 * ((double)layer + 1)));
	}
}

static void add(struct model *m, const struct row *r, int unit, int64_t layer)
{
	if (!r->there)
		return;
	struct tensor *t = &m->tensors[m->n_tensors++];
	*t = (struct tensor){.unit = unit,
		.ndim = r->cols ? 2 : 1,
		.dims = {r->rows, r->cols},
		.cut = r->cut,
		.decay = r->cols > 0,
		.uses = 1,
		.max_slices = (int)r->heads,
		.tile = r->tile,
		/* the embedding is looked up, a tied one too, and a bias is added */
		.operand = r->kind <= ROW_GATE || r->kind == ROW_OUTPUT};
	if (layer >= 0)
		snprintf(t->name, sizeof(t->name), "layers.%lld.%s", (long long)layer,
			r->name);
	else
		snprintf(t->name, sizeof(t->name), "%s", r->name);
	set_init(m, t, r->kind, layer);
	char *base = layer >= 0 ? (char *)&m->blocks[layer] : (char *)m;
	*(struct tensor **)(base + r->slot) = t;
}

static void add_block(struct model *m, int64_t layer)
{
#define B(field) offsetof(struct block_tensors, field)
	int64_t dim = m->c.dim, kv = m->c.kv_heads * m->head_dim, ffn = m->c.ffn_dim;
	int64_t kv_heads = m->c.kv_heads;
	bool bias = m->bias, gated = m->act == ACT_SWIGLU;
	bool norm_bias = bias && m->arch->norm == NORM_LAYER;
	/* clang-format off */
	const struct row rows[] = {
		{"attention_norm.weight",  dim, 0,   CUT_NONE, ROW_NORM,     true, 0, B(norm1)},
		{"attention_norm.bias",    dim, 0,   CUT_NONE, ROW_BIAS,     norm_bias, 0, B(norm1_bias)},
		{"attention.wq.weight",    dim, dim, CUT_ROWS, ROW_WEIGHT,   true, 0, B(wq), TILE_QKV},
		{"attention.wq.bias",      dim, 0,   CUT_ROWS, ROW_BIAS,     bias, 0, B(bq)},
		{"attention.wk.weight",    kv,  dim, CUT_ROWS, ROW_WEIGHT,   true, kv_heads, B(wk), TILE_QKV},
		{"attention.wk.bias",      kv,  0,   CUT_ROWS, ROW_BIAS,     bias, kv_heads, B(bk)},
		{"attention.wv.weight",    kv,  dim, CUT_ROWS, ROW_WEIGHT,   true, kv_heads, B(wv), TILE_QKV},
		{"attention.wv.bias",      kv,  0,   CUT_ROWS, ROW_BIAS,     bias, kv_heads, B(bv)},
		{"attention.wo.weight",    dim, dim, CUT_COLS, ROW_RESIDUAL, true, 0, B(wo), TILE_OUT},
		{"attention.wo.bias",      dim, 0,   CUT_NONE, ROW_BIAS,     bias, 0, B(bo)},
		{"ffn_norm.weight",        dim, 0,   CUT_NONE, ROW_NORM,     true, 0, B(norm2)},
		{"ffn_norm.bias",          dim, 0,   CUT_NONE, ROW_BIAS,     norm_bias, 0, B(norm2_bias)},
		{"feed_forward.w1.weight", ffn, dim, CUT_ROWS, ROW_WEIGHT,   true, 0, B(w1), TILE_FFN},
		{"feed_forward.w1.bias",   ffn, 0,   CUT_ROWS, ROW_BIAS,     bias, 0, B(b1)},
		{"feed_forward.w3.weight", ffn, dim, CUT_ROWS, ROW_GATE,     gated, 0, B(w3), TILE_FFN},
		{"feed_forward.w3.bias",   ffn, 0,   CUT_ROWS, ROW_BIAS,     gated && bias, 0, B(b3)},
		{"feed_forward.w2.weight", dim, ffn, CUT_COLS, ROW_RESIDUAL, true, 0, B(w2), TILE_FFN},
		{"feed_forward.w2.bias",   dim, 0,   CUT_NONE, ROW_BIAS,     bias, 0, B(b2)},
	};
	/* clang-format on */
#undef B
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		add(m, &rows[i], 1 + (int)layer, layer);
}

static void add_all(struct model *m)
{
#define M(field) offsetof(struct model, field)
	int64_t dim = m->c.dim, vocab = m->padded_vocab;
	bool norm_bias = m->bias && m->arch->norm == NORM_LAYER;
	/* clang-format off */
	const struct row first[] = {
		{"tok_embeddings.weight", vocab, dim, CUT_ROWS, ROW_EMBED, true, 0, M(tokens), TILE_TABLE},
		{"pos_embeddings.weight", m->c.context, dim, CUT_NONE, ROW_EMBED, m->arch->learned_positions, 0, M(positions)},
	};
	const struct row last[] = {
		{"norm.weight",   dim,   0,   CUT_NONE, ROW_NORM,   true, 0, M(norm)},
		{"norm.bias",     dim,   0,   CUT_NONE, ROW_BIAS,   norm_bias, 0, M(norm_bias)},
		{"output.weight", vocab, dim, CUT_ROWS, ROW_OUTPUT, !m->tie, 0, M(output), TILE_TABLE},
	};
	/* clang-format on */
#undef M
	for (size_t i = 0; i < ARRAY_LEN(first); i++)
		add(m, &first[i], 0, -1);
	for (int64_t l = 0; l < m->c.layers; l++)
		add_block(m, l);
	m->n_units = 2 + (int)m->c.layers;
	for (size_t i = 0; i < ARRAY_LEN(last); i++)
		add(m, &last[i], m->n_units - 1, -1);
	if (m->tie) {
		m->output = m->tokens;
		m->tokens->uses = 2;
	}
}

int model_init(
	struct model *m, const struct model_config *c, int64_t vocab, struct err *e)
{
	enum { PER_BLOCK = 18, OTHERS = 5 };
	*m = (struct model){.c = *c};
	if (resolve(m, vocab, e))
		return -1;
	m->tensors =
		xcalloc((size_t)(m->c.layers * PER_BLOCK + OTHERS), sizeof(*m->tensors));
	m->blocks = xcalloc((size_t)m->c.layers, sizeof(*m->blocks));
	add_all(m);
	model_place(m, &(struct tensor_part){.n = m->tp, .here = m->tp});
	return 0;
}

void model_place(struct model *m, const struct tensor_part *part)
{
	tensors_place(m->tensors, m->n_tensors, part);
}

void model_free(struct model *m)
{
	free(m->tensors);
	free(m->blocks);
	*m = (struct model){0};
}

/* ---- counts ---------------------------------------------------------------------- */

struct model_counts model_counts(const struct model *m)
{
	struct model_counts n = {0};
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		n.all += tensor_size(t);
		n.decayed += t->decay ? tensor_size(t) : 0;
		n.for_flops += t == m->positions ? 0 : tensor_size(t);
	}
	return n;
}

double model_flops_per_token(const struct model *m, bool causal)
{
	double attention =
		12.0 * (double)m->c.layers * (double)m->c.dim * (double)m->c.context;
	return 6.0 * (double)model_counts(m).for_flops +
	       (causal ? attention / 2 : attention);
}

static void print_tensor(
	const struct tensor *t, const char *name, const char *indent, struct str *out)
{
	char shape[NUM_TEXT];
	if (t->ndim == 1)
		snprintf(shape, sizeof(shape), "[%lld]", (long long)t->dims[0]);
	else
		snprintf(shape, sizeof(shape), "[%lld, %lld]", (long long)t->dims[0],
			(long long)t->dims[1]);
	str_printf(out, "%s%-*s %-16s %12lld%s\n", indent, 34 - (int)strlen(indent), name,
		shape, (long long)tensor_size(t), t->decay ? "" : "  no decay");
}

static int64_t unit_size(const struct model *m, int unit)
{
	int64_t n = 0;
	for (int i = 0; i < m->n_tensors; i++)
		n += m->tensors[i].unit == unit ? tensor_size(&m->tensors[i]) : 0;
	return n;
}

void model_print(const struct model *m, bool all, struct str *out)
{
	struct model_counts n = model_counts(m);
	char layers[48];
	snprintf(layers, sizeof(layers), "layers.0 to %lld", (long long)m->c.layers - 1);
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		bool layer = t->unit > 0 && t->unit < m->n_units - 1;
		bool first = i == 0 || m->tensors[i - 1].unit != t->unit;
		if (!layer)
			print_tensor(t, t->name, "  ", out);
		if (!layer || t->unit > 1)
			continue; /* the layers are alike */
		if (first)
			str_printf(out, "  %-32s each %24lld\n", layers,
				(long long)unit_size(m, 1));
		if (all)
			print_tensor(t, strchr(t->name + strlen("layers."), '.') + 1,
				"    ", out);
	}
	str_printf(out, "  %lld parameters, %lld with weight decay and %lld without%s\n",
		(long long)n.all, (long long)n.decayed, (long long)(n.all - n.decayed),
		m->tie ? "; the output layer is tied to tok_embeddings" : "");
}

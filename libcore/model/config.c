/* Resolves options to shapes, and makes the tensor table. */
#include "model/block.h"

#include <math.h>

#define ARCH_ROW(id, row) &arch_##row,
static const struct arch *const arch_table[] = {ARCH_LIST(ARCH_ROW)};
#define ARCH_NAME(id, row) #row,
const char *const arch_names[] = {ARCH_LIST(ARCH_NAME) NULL};
const char *const by_arch_names[] = {"by-arch", "yes", "no", NULL};
const char *const bias_names[] = {"by-arch", "yes", "no", "qkv", "attention", NULL};
const char *const act_names[] = {"by-arch",
#define ACT(id, name, kind, word, ...) word,
#include "kernels/acts.h"
	NULL};
const char *const init_names[] = {"by-arch", "gpt2", "llama", "depth", NULL};
const char *const router_names[] = {"softmax",
#define SCORE(id, word, ...) word,
#include "kernels/scores.inc"
	NULL};
const char *const rope_scaling_names[] = {"none", "linear", "llama3", "yarn", NULL};

/* ---- defaults and checks --------------------------------------------------------- */

int model_parse_virtual(const char *text, int64_t *tp, int64_t *cp, struct err *e)
{
	char *copy = xstrdup(text ? text : ""), *rest = copy, *item;
	bool named[2] = {false};
	int rc = 0;
	while (!rc && *copy && (item = strsep(&rest, ","))) {
		bool is_cp = !strncmp(item, "cp=", 3);
		int64_t n;
		if ((!is_cp && strncmp(item, "tp=", 3)) || parse_int(item + 3, &n) ||
			n < 1 || n > 1024)
			rc = err_set(
				e, EX_USAGE, "--virtual: '%s' is not tp=N or cp=N", item);
		else if (named[is_cp])
			rc = err_set(e, EX_USAGE, "--virtual: %.2s is given twice", item);
		else
			*(is_cp ? cp : tp) = n;
		named[is_cp] = true;
	}
	free(copy);
	return rc;
}

/* Fails with "what (n) is not divisible by by_what (by)" unless it is. */
static int check_divisible(
	int64_t n, int64_t by, const char *what, const char *by_what, struct err *e)
{
	if (by > 0 && n % by == 0)
		return 0;
	return err_set(e, EX_USAGE, "%s (%lld) is not divisible by %s (%lld)", what,
		(long long)n, by_what, (long long)by);
}

/* Rejects models with more bytes of parameters and optimizer state than int64_t can count. */
static int check_size(const struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	double dim = (double)c->dim, ffn = (double)c->ffn_dim;
	double q = (double)c->heads * (double)m->head_dim;
	double experts = 3 * dim * (double)c->experts * (double)c->expert_dim;
	double n = (double)c->layers * (4 * dim * q + 3 * dim * ffn + experts) +
		   dim * (2 * (double)m->padded_vocab + (double)c->context);
	if (n < 0x1p56)
		return 0;
	return err_set(e, EX_USAGE, "the model is too large: %.3g parameters", n);
}

/* Fails unless each slice has whole key/value heads, or several slices share one. */
static int check_kv_heads(const struct model *m, struct err *e)
{
	if (m->c.kv_heads % m->tp == 0 || m->tp % m->c.kv_heads == 0)
		return 0;
	return err_set(e, EX_USAGE,
		"kv-heads (%lld) must be a multiple or a divisor of virtual tp (%d)",
		(long long)m->c.kv_heads, m->tp);
}

/* Appends the numbers of `list`, such as "0,3", to has[n]. Returns -1 if the text is invalid. */
static int parse_layers(const char *list, bool *has, int64_t n, struct err *e)
{
	scoped_ptr char *copy = xstrdup(list ? list : "");
	char *rest = copy, *item;
	while (*copy && (item = strsep(&rest, ","))) {
		int64_t layer;
		if (parse_int(item, &layer) || layer < 0)
			return err_set(e, EX_USAGE,
				"moe-not: '%s' is not a layer; give a list such as 0,3",
				item);
		if (layer < n)
			has[layer] = true;
	}
	return 0;
}

bool layer_has_experts(const struct model_config *c, int64_t layer)
{
	bool nth = layer >= c->moe_from && (layer + 1) % max64(1, c->moe_every) == 0;
	if (!c->experts || !nth || !c->moe_not)
		return c->experts && nth;
	scoped_ptr bool *without = xcalloc((size_t)c->layers, sizeof(*without));
	parse_layers(c->moe_not, without, c->layers, &(struct err){0});
	return !without[layer];
}

/* Checks the choice of experts by groups. */
static int check_router_groups(const struct model_config *c, struct err *e)
{
	int64_t groups = c->router_groups, size = groups ? c->experts / groups : 0;
	if (!groups)
		return 0;
	if (check_divisible(c->experts, groups, "experts", "router-groups", e))
		return -1;
	if (size < 2 || c->router_top_groups < 1 || c->router_top_groups > groups ||
		c->experts_per_token > size * c->router_top_groups)
		return err_set(e, EX_USAGE,
			"router-groups (%lld) needs groups of 2 experts or more, and "
			"router-top-groups (%lld) at most as many groups, with at least "
			"experts-per-token (%lld) experts",
			(long long)groups, (long long)c->router_top_groups,
			(long long)c->experts_per_token);
	return 0;
}

static int check_experts(const struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	scoped_ptr bool *without = xcalloc((size_t)max64(1, c->layers), sizeof(*without));
	if (!c->experts)
		return 0;
	if (parse_layers(c->moe_not, without, c->layers, e) ||
		check_divisible(c->expert_dim, m->tp, "expert-dim", "virtual tp", e) ||
		check_divisible(c->shared_expert_dim, m->tp, "shared-expert-dim",
			"virtual tp", e))
		return -1;
	if (c->experts_per_token > c->experts)
		return err_set(e, EX_USAGE,
			"experts-per-token (%lld) is above experts (%lld)",
			(long long)c->experts_per_token, (long long)c->experts);
	if (!act_is_gated(m->act) || m->bias)
		return err_set(e, EX_USAGE,
			"experts need a gated activation function, such as swiglu, and no "
			"biases; give --arch llama");
	return check_router_groups(c, e);
}

int model_layer_kind(const struct model *m, int64_t layer)
{
	return layer_has_experts(&m->c, layer);
}

int64_t model_layers_of_kind(const struct model *m, int kind)
{
	int64_t n = 0;
	for (int64_t l = 0; l < m->c.layers; l++)
		n += model_layer_kind(m, l) == kind;
	return n;
}

int64_t model_layer_of_kind(const struct model *m, int kind)
{
	for (int64_t l = 0; l < m->c.layers; l++)
		if (model_layer_kind(m, l) == kind)
			return l;
	return -1;
}

const struct sublayer *model_sublayer(const struct model *m, int64_t layer, int i)
{
	bool experts = i == FFN && layer_has_experts(&m->c, layer);
	return experts ? &ffn_experts : m->arch->sublayer[i];
}

/* Fails if sizes of the model do not fit each other or the parallel layout. */
static int check_shapes(struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	if ((!c->head_dim && check_divisible(c->dim, c->heads, "dim", "heads", e)) ||
		check_divisible(c->heads, c->kv_heads, "heads", "kv-heads", e) ||
		check_divisible(c->heads, m->tp, "heads", "virtual tp", e) ||
		check_kv_heads(m, e) ||
		check_divisible(c->ffn_dim, m->tp, "ffn-dim", "virtual tp", e))
		return -1;
	if (m->cp > 1 &&
		check_divisible(c->context, 2 * m->cp, "context", "2 x virtual cp", e))
		return -1;
	if (m->arch->rope && m->head_dim % 2)
		return err_set(e, EX_USAGE,
			"head-dim (%lld) must be even, because rotary positions rotate pairs of "
			"channels",
			(long long)m->head_dim);
	if (c->nope_every && !m->arch->rope)
		return err_set(e, EX_USAGE,
			"--nope-every: arch %s has no rotary positions",
			arch_names[c->arch]);
	if (c->rotary % 2 || c->rotary > m->head_dim || (c->rotary && c->qk_norm))
		return err_set(e, EX_USAGE,
			"rotary-channels (%lld) must be even and at most head-dim (%lld), and "
			"equal to "
			"head-dim with qk-norm",
			(long long)c->rotary, (long long)m->head_dim);
	if (c->qk_norm_all && m->tp > 1)
		return err_set(e, EX_USAGE,
			"qk-norm-all needs virtual tp 1 (not %d): the norm spans all heads",
			m->tp);
	if (c->rope_scaling == ROPE_YARN && c->rope_slow >= c->rope_fast)
		return err_set(e, EX_USAGE,
			"rope-slow (%g) must be below rope-fast (%g): frequencies between them "
			"are interpolated",
			c->rope_slow, c->rope_fast);
	if (c->rope_scaling == ROPE_LLAMA3 && c->rope_low >= c->rope_high)
		return err_set(e, EX_USAGE,
			"rope-low (%g) must be below rope-high (%g): wavelengths between "
			"them are interpolated",
			c->rope_low, c->rope_high);
	if (c->vocab < 1)
		return err_set(e, EX_USAGE, "the vocabulary is empty%s",
			advice_on(ADVICE_VOCABULARY));
	return check_experts(m, e) ? -1 : check_size(m, e);
}

static bool resolve_choice(int choice, bool by_arch)
{
	return choice == BY_ARCH ? by_arch : choice == YES;
}

bool layer_has_window(const struct model_config *c, int64_t layer)
{
	bool nth = c->window_skip && (layer + 1) % c->window_skip == 0;
	return c->window && layer >= c->window_from && nth == (c->window_skip < 0);
}

/* Returns true if the options give a window to exactly the layers with has[layer]. */
static bool windows_match(const struct model_config *c, const bool *has)
{
	int64_t l = 0;
	while (l < c->layers && has[l] == layer_has_window(c, l))
		l++;
	return l == c->layers;
}

bool config_set_windows(struct model_config *c, const bool *has)
{
	struct model_config try = *c;
	int64_t from = 0, full;
	while (from < c->layers && !has[from])
		from++;
	if (from == c->layers) {
		c->window = c->window_from = c->window_skip = 0;
		return true;
	}
	for (full = from; full < c->layers && has[full]; full++)
		continue;
	try.window_from = from;
	/* the first layer without a window, after layers with one, is the Nth or a multiple */
	for (int64_t n = full < c->layers ? 2 : 0; n <= full + 1; n++) {
		if (n && (full + 1) % n)
			continue;
		try.window_skip = n;
		if (windows_match(&try, has))
			break;
	}
	if (!windows_match(&try, has)) { /* or every Nth layer has a window */
		try.window_from = 0;
		try.window_skip = -(from + 1);
	}
	if (!windows_match(&try, has))
		return false;
	*c = try;
	return true;
}

/* Rewrites the window options in canonical form, so that equal models have equal options. */
static void simplify_windows(struct model_config *c)
{
	scoped_ptr bool *has = xcalloc((size_t)max64(1, c->layers), sizeof(*has));
	for (int64_t l = 0; l < c->layers; l++)
		has[l] = layer_has_window(c, l);
	config_set_windows(c, has);
}

/* Replaces defaults in m->c by their values, sets the fields derived from them, and checks them. */
static int resolve_options(struct model *m, int64_t vocab, struct err *e)
{
	struct model_config *c = &m->c;
	m->arch = arch_table[c->arch];
	int64_t tp = 1, cp = 1;
	if (model_parse_virtual(c->virtual_degrees, &tp, &cp, e))
		return -1;
	m->tp = (int)tp;
	m->cp = (int)cp;
	c->vocab = vocab ? vocab : c->vocab;
	c->kv_heads = c->kv_heads ? c->kv_heads : c->heads;
	c->ffn_dim = c->ffn_dim ? c->ffn_dim : m->arch->ffn_dim(c->dim);
	c->expert_dim = c->expert_dim ? c->expert_dim : c->ffn_dim;
	c->moe_every = max64(1, c->moe_every);
	c->nope_every = c->nope_every > c->layers ? 0 : c->nope_every;
	simplify_windows(c);
	c->norm_eps = c->norm_eps > 0 ? c->norm_eps : m->arch->norm_eps;
	c->act = c->act ? c->act : (int)m->arch->act;
	c->init = c->init ? c->init : (int)m->arch->init;
	c->qk_norm = c->qk_norm || m->arch->qk_norm;
	m->act = (enum act_kind)(c->act - ACTC_BY_ARCH - 1);
	m->bias = c->bias == BIAS_BY_ARCH ? m->arch->bias : c->bias == BIAS_ALL;
	m->out_bias = m->bias || c->bias == BIAS_ATTENTION;
	m->qkv_bias = m->out_bias || c->bias == BIAS_QKV;
	m->tie = resolve_choice(c->tie, m->arch->tie);
	m->head_dim = c->head_dim ? c->head_dim : c->heads ? c->dim / c->heads : 0;
	c->rotary = c->rotary == m->head_dim ? 0 : c->rotary;
	int64_t multiple = max64(1, c->vocab_multiple);
	while (multiple % m->tp)
		multiple += max64(1, c->vocab_multiple);
	m->padded_vocab = round_up(c->vocab, multiple);
	return check_shapes(m, e);
}

/* ---- the tensor table ------------------------------------------------------------ */

/* Sets the initial distribution of a weight. gpt2: projections into the residual stream have std
 * 0.02 / sqrt(2 layers) (Radford et al. 2019). depth: as in torchtitan, their std shrinks with
 * the depth of the layer; torchtitan truncates at 2, which is a hundred standard deviations, and
 * the output layer at 3 standard deviations. llama: as in Hugging Face, 0.02 for all. */
static void set_init(const struct model *m, struct tensor *t, int kind, int64_t layer)
{
	double layers = (double)m->c.layers;
	t->init = INIT_NORMAL;
	t->std = 0.02f;
	if (kind == ROW_NORM || kind == ROW_BIAS || kind == ROW_STATE) {
		t->init = kind == ROW_NORM ? INIT_ONE : INIT_ZERO;
	} else if (kind == ROW_ROUTER) {
		t->std = 0.02f;
	} else if (m->c.init == INITC_GPT2 && kind == ROW_RESIDUAL) {
		t->std = (float)(0.02 / sqrt(2 * layers));
	} else if (m->c.init == INITC_DEPTH) {
		/* a tied table has the scale of an output layer */
		bool output = kind == ROW_OUTPUT || (m->tie && kind == ROW_EMBED &&
							    t->tp_split == TP_SPLIT_ROWS);
		t->init = output ? INIT_TRUNCATED : INIT_NORMAL;
		if (output)
			t->std = (float)(1 / sqrt((double)m->c.dim));
		else if (kind == ROW_EMBED)
			t->std = 1;
		else if (kind == ROW_RESIDUAL || kind == ROW_GATE)
			t->std = (float)(0.02 / sqrt(2 * ((double)layer + 1)));
	}
}

/* Counts a tensor in m->n_tensors, and fills m->tensors[] if it is allocated. */
static void add_tensor(
	struct model *m, const struct tensor_row *r, int unit, int64_t layer)
{
	int number = m->n_tensors++;
	if (!m->tensors)
		return;
	struct tensor *t = &m->tensors[number];
	*t = (struct tensor){.unit = unit,
		.ndim = r->cols ? 2 : 1,
		.dims = {r->rows, r->cols},
		.tp_split = r->tp_split,
		.decay = r->cols > 0,
		.frozen = r->kind == ROW_STATE,
		.uses = 1,
		.max_slices = (int)r->heads,
		.tile = (int)r->tile,
		.experts = (int)r->experts,
		.blocks = (int)r->blocks,
		.active = r->experts
				  ? (double)m->c.experts_per_token / (double)m->c.experts
				  : 1,
		/* embeddings are looked up, even if tied, and biases are added */
		.operand = r->kind <= ROW_GATE || r->kind == ROW_OUTPUT};
	if (layer >= 0)
		snprintf(t->name, sizeof(t->name), "layers.%lld.%s", (long long)layer,
			r->name);
	else
		snprintf(t->name, sizeof(t->name), "%s", r->name);
	set_init(m, t, r->kind, layer);
	*r->to = t;
	if (layer >= 0 && t->operand) {
		struct block_tensors *b = &m->blocks[layer];
		BUG_ON(b->n_operands == BLOCK_OPERANDS);
		b->operand[b->n_operands++] = t;
	}
}

static void add_tensor_rows(
	struct model *m, int unit, int64_t layer, const struct tensor_row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (rows[i].present)
			add_tensor(m, &rows[i], unit, layer);
}

void tensors_add(struct model *m, int64_t layer, const struct tensor_row *rows, size_t n)
{
	add_tensor_rows(m, 1 + (int)layer, layer, rows, n);
}

/* Counts, or fills, the tensors of the whole model. */
static void add_model_tensors(struct model *m)
{
	int64_t dim = m->c.dim, vocab = m->padded_vocab;
	bool norm_bias = m->bias && m->arch->norm == NORM_LAYER;
	/* clang-format off */
	const struct tensor_row first[] = {
		{"tok_embeddings.weight", vocab, dim, TP_SPLIT_ROWS, ROW_EMBED, true, &m->tokens, TILE_TABLE},
		{"pos_embeddings.weight", m->c.context, dim, TP_SPLIT_NONE, ROW_EMBED, m->arch->learned_positions, &m->positions},
	};
	const struct tensor_row last[] = {
		{"norm.weight",   dim,   0,   TP_SPLIT_NONE, ROW_NORM,   true, &m->norm},
		{"norm.bias",     dim,   0,   TP_SPLIT_NONE, ROW_BIAS,   norm_bias, &m->norm_bias},
		{"output.weight", vocab, dim, TP_SPLIT_ROWS, ROW_OUTPUT, !m->tie, &m->output, TILE_TABLE},
	};
	/* clang-format on */
	m->n_tensors = 0;
	m->n_units = 2 + (int)m->c.layers;
	add_tensor_rows(m, 0, -1, first, ARRAY_LEN(first));
	for (int64_t l = 0; l < m->c.layers; l++)
		for (int i = 0; i < SUBLAYERS; i++)
			model_sublayer(m, l, i)->add_tensors(m, l, &m->blocks[l].sub[i]);
	add_tensor_rows(m, m->n_units - 1, -1, last, ARRAY_LEN(last));
}

int model_init(
	struct model *m, const struct model_config *c, int64_t vocab, struct err *e)
{
	*m = (struct model){.c = *c};
	if (resolve_options(m, vocab, e))
		return -1;
	m->blocks = xcalloc((size_t)m->c.layers, sizeof(*m->blocks));
	add_model_tensors(m);
	m->tensors = xcalloc((size_t)m->n_tensors, sizeof(*m->tensors));
	add_model_tensors(m);
	if (m->tie) {
		m->output = m->tokens;
		m->tokens->uses = 2;
	}
	for (int i = 0; i < m->n_tensors; i++)
		m->tensors[i].lr_scale = 1;
	tensors_place(m->tensors, m->n_tensors,
		&(struct tensor_part){.n = m->tp, .local = m->tp});
	return 0;
}

void model_release(struct model *m)
{
	free(m->tensors);
	free(m->blocks);
	*m = (struct model){0};
}

void model_set_float8(struct model *m, bool skip_ends)
{
	int64_t last = m->c.layers - 1;
	for (int64_t l = 0; l <= last; l++)
		for (int i = 0; i < m->blocks[l].n_operands; i++)
			m->blocks[l].operand[i]->float8 =
				!skip_ends || (l > 0 && l < last);
}

int64_t model_window(const struct model *m, int64_t layer)
{
	bool hides = layer_has_window(&m->c, layer) && m->c.window < m->c.context;
	return hides ? m->c.window : 0;
}

const char *model_unsupported_part(const struct model *m)
{
	const struct model_config *c = &m->c;
	static char text[64];
	const struct {
		bool is_set;
		const char *option;
	} all[] = {{c->embedding_scale > 0, "embedding-scale"},
		{c->residual_scale > 0, "residual-scale"},
		{c->logit_scale > 0, "logit-scale"}, {c->score_cap > 0, "score-cap"},
		{c->logit_cap > 0, "logit-cap"},
		{c->rope_local_theta > 0, "rope-local-theta"}};
	if (m->arch->check_only) {
		snprintf(text, sizeof(text), "arch %s", arch_names[c->arch]);
		return text;
	}
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i].is_set)
			return all[i].option;
	return NULL;
}

int model_check_kernels(const struct model *m, struct err *e)
{
	const char *unsupported = model_unsupported_part(m);
	return unsupported
		       ? err_set(e, EX_UNAVAILABLE,
				 "%s is not supported in training and sampling; pt-check(1) checks "
				 "steps of such models",
				 unsupported)
		       : 0;
}

struct model_counts model_counts(const struct model *m)
{
	struct model_counts n = {0};
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		n.all += tensor_size(t);
		n.active += t->experts
				    ? tensor_size(t) / t->experts * m->c.experts_per_token
				    : tensor_size(t);
		n.decayed += t->decay ? tensor_size(t) : 0;
	}
	return n;
}

int model_first_trained_unit(const struct model *m)
{
	int lowest = m->n_units;
	for (int i = 0; i < m->n_tensors; i++)
		if (!m->tensors[i].frozen && m->tensors[i].unit < lowest)
			lowest = m->tensors[i].unit;
	return lowest;
}

/* Returns T of model_attended() for one layer. */
static double attended_keys(const struct model *m, int64_t layer)
{
	double context = (double)m->c.context, w = (double)model_window(m, layer);
	return w > 0 ? w * (2 - w / context) : context;
}

double model_attended(const struct model *m)
{
	double sum = 0;
	for (int64_t l = 0; l < m->c.layers; l++)
		sum += attended_keys(m, l);
	return sum / (double)m->c.layers;
}

double model_flops_per_token(const struct model *m, bool causal)
{
	int lowest = model_first_trained_unit(m);
	double params = 0, attention = 0;
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		bool passed = t->unit >= lowest || t == m->output;
		if (t != m->positions)
			params += (2.0 + 2 * passed + 2 * !t->frozen) * t->active *
				  (double)tensor_size(t);
	}
	for (int64_t l = 0; l < m->c.layers; l++)
		attention += (l + 1 >= lowest ? 12.0 : 4.0) * (double)model_q_width(m) *
			     attended_keys(m, l);
	return params + (causal ? attention / 2 : attention);
}

double model_layer_work(const struct model *m, int64_t layer)
{
	const struct block_tensors *b = &m->blocks[layer];
	double work = (double)model_q_width(m) * model_attended(m);
	for (int i = 0; i < b->n_operands; i++)
		work += b->operand[i]->active * (double)tensor_size(b->operand[i]);
	return work;
}

/* Appends a row: name, shape, number of elements and "no decay". */
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

static int64_t unit_params(const struct model *m, int unit)
{
	int64_t n = 0;
	for (int i = 0; i < m->n_tensors; i++)
		n += m->tensors[i].unit == unit ? tensor_size(&m->tensors[i]) : 0;
	return n;
}

/* Appends a line for the layers of a kind, with the parameters of each. */
static void print_layers(const struct model *m, int kind, struct str *out)
{
	int64_t first = model_layer_of_kind(m, kind), last = first, n = 0;
	char layers[64];
	for (int64_t l = first; l < m->c.layers; l++)
		if (model_layer_kind(m, l) == kind) {
			last = l;
			n++;
		}
	bool gaps = last - first + 1 != n;
	snprintf(layers, sizeof(layers), "layers.%lld to %lld%s", (long long)first,
		(long long)last, gaps ? kind ? ", with experts" : ", dense" : "");
	str_printf(out, "  %-32s each %24lld\n", layers,
		(long long)unit_params(m, 1 + (int)first));
}

void model_unit_name(int unit, int n, struct str *out)
{
	if (unit > 0 && unit < n - 1)
		str_printf(out, "layers.%d", unit - 1);
	else
		str_puts(out, unit ? "output" : "tok_embeddings");
}

void model_print(const struct model *m, bool with_layer, struct str *out)
{
	struct model_counts n = model_counts(m);
	for (int i = 0; i < m->n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		bool is_layer = t->unit > 0 && t->unit < m->n_units - 1;
		bool first = i == 0 || m->tensors[i - 1].unit != t->unit;
		if (!is_layer)
			print_tensor(t, t->name, "  ", out);
		if (!is_layer)
			continue;
		int kind = model_layer_kind(m, t->unit - 1);
		if (t->unit - 1 != model_layer_of_kind(m, kind))
			continue; /* all layers of a kind have the same shapes */
		if (first)
			print_layers(m, kind, out);
		if (with_layer)
			print_tensor(t, strchr(t->name + strlen("layers."), '.') + 1,
				"    ", out);
	}
	str_printf(out, "  %lld parameters, %lld with weight decay and %lld without%s\n",
		(long long)n.all, (long long)n.decayed, (long long)(n.all - n.decayed),
		m->tie ? "; the output layer is tied to tok_embeddings" : "");
}

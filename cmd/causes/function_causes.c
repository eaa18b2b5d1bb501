/* Functions other than the model's, as bugs make them. See causes.c. */
#include "causes/causes.h"

#include <math.h>

enum { MAX_TRIES = 150 };

bool try_guess(const struct cause_search *s, const struct guess *t, double *nearest)
{
	if (!t->applies || variant_distance(s, t->v, false) > 2 * *nearest)
		return false;
	double distance = variant_distance(s, t->v, true);
	bool is_nearer = distance <= *nearest;
	*nearest = is_nearer ? distance : *nearest;
	return is_nearer;
}

/* Appends n guesses to out; *n_out: number of guesses in out. */
static void add_guesses(struct guess *out, int *n_out, const struct guess *from, size_t n)
{
	BUG_ON((size_t)*n_out + n > MAX_TRIES);
	memcpy(out + *n_out, from, n * sizeof(*from));
	*n_out += (int)n;
}

/* Adds guesses about the tokens that attention sees: chunks, documents, masks. */
static void add_attention_guesses(const struct step_check *c, struct guess *list, int *n)
{
	const int chunks = (int)(c->o.cp > 1 ? c->o.cp : 2);
	const struct tensor *positions = c->weights.m.positions;
	const bool fits = !positions || c->batch.length <= positions->dims[0];
	const struct guess tries[] = {
		{{.restart = chunks},
			"positions began again in each chunk (context parallelism)",
			true},
		{{.restart = 4}, "positions began again in each of 4 chunks", true},
		{{.unseen = chunks},
			"attention did not see earlier chunks (context parallelism)",
			true},
		{{.unseen = chunks, .before = 1},
			"attention saw only one earlier chunk (context parallelism)",
			chunks > 2},
		{{.unseen = chunks, .before = chunks - 2},
			"the last chunk did not see the first: the ring ends one early "
			"(context parallelism)",
			chunks > 3},
		{{.mask = MASK_BORDER, .mask_chunks = chunks},
			"the last token of a chunk saw the first one of the next: its "
			"mask is not causal at the border (context parallelism)",
			true},
		{{.mask = MASK_CHUNK_BY_CHUNK, .mask_chunks = chunks},
			"earlier chunks had the causal mask of the own chunk: token i of a "
			"chunk sees i tokens of each (context parallelism)",
			c->batch.length % chunks == 0},
		{{.mask = MASK_ONE_LATER}, "attention saw the next token, too",
			!c->batch.documents},
		{{.mask = MASK_LAST_CHUNK, .mask_chunks = chunks},
			"the last chunk saw all of itself: its mask is not causal (context "
			"parallelism)",
			!c->batch.documents},
		{{.mask = MASK_ALL_CHUNKS, .mask_chunks = chunks},
			"each chunk saw all of itself: its mask is not causal (context "
			"parallelism)",
			!c->batch.documents},
		{{.mask = MASK_NOT_FIRST},
			"attention did not see the first token of a sequence", true},
		{{.function = {.masked_score_zero = true}},
			"the scores of tokens that attention must not see were 0, not minus "
			"infinity: the mask is multiplied, or fills with 0",
			true},
		{{.mask = MASK_NOT_SELF}, "attention did not see the token itself", true},
		{{.mask = MASK_NOT_SELF_BUT_FIRST},
			"attention did not see the token itself", true},
		{{.one_document = true}, "attention saw all documents of a sequence",
			c->batch.documents},
		{{.run_on = true}, "positions did not begin again in each document",
			c->batch.documents && fits},
		{{.one_document = true, .run_on = true},
			"a sequence were one document, in attention and positions",
			c->batch.documents && fits},
		{{.mask = MASK_NONE}, "attention saw later tokens: it is not causal",
			!c->batch.documents},
	};
	add_guesses(list, n, tries, ARRAY_LEN(tries));
}

/* Adds guesses about wrong targets, such as labels that are shifted twice. */
static void add_target_guesses(const struct step_check *c, struct guess *list, int *n)
{
	const bool masked = c->batch.masked;
	const struct guess tries[] = {
		{{.targets = TARGETS_UNSHIFTED},
			"the inputs were their own targets: labels are not shifted",
			true},
		{{.targets = TARGETS_UNSHIFTED_IF_COUNTED},
			"the inputs were their own targets: labels are not shifted",
			masked},
		{{.targets = TARGETS_SHIFTED_TWICE},
			"the targets were the tokens after the next: labels are shifted twice",
			true},
		{{.targets = TARGETS_MASKED_ARE_ZERO},
			"masked targets were token 0: are they -100 in the loss?",
			masked},
		{{.targets = TARGETS_ALL_MASKED_ARE_ZERO},
			"masked targets were token 0: are they -100 in the loss?",
			masked},
		{{.targets = TARGETS_UNMASKED},
			"masked targets counted: the mask is ignored", masked},
		{{.targets = TARGETS_WITHOUT_LAST},
			"the last target of each sequence did not count", true},
		{{.targets = TARGETS_WITHOUT_FIRST},
			"the first target of each sequence did not count", true},
		{{.targets = TARGETS_OF_SECOND_HALF},
			"the targets of the first half of each sequence did not count: "
			"does the batch lack a loss mask?",
			c->batch.length > 2},
	};
	add_guesses(list, n, tries, ARRAY_LEN(tries));
}

/* Adds guesses about wrong rotations, scales, norms and activations. */
static void add_function_guesses(const struct step_check *c, struct guess *list, int *n)
{
	const struct model *m = &c->weights.m;
	const bool rope = m->arch->rope;
	const bool scaled = rope && m->c.rope_scaling != ROPE_PLAIN;
	const bool grouped = m->c.kv_heads < m->c.heads && m->c.kv_heads > 1;
	const double width = (double)m->head_dim, dim = (double)m->c.dim;
	const struct guess tries[] = {
		{{.function = {.rope = ROPE_PAIRS}},
			"queries and keys were rotated in adjacent pairs (2j, 2j + 1) "
			"instead of halves",
			rope},
		{{.function = {.rope = ROPE_HALVES_OF_PAIRS}},
			"queries and keys were rotated in halves, although their rows are in pairs",
			rope},
		{{.other_gelu = true},
			m->act == ACT_GELU ? "GELU were approximated by tanh"
					   : "GELU were exact, not approximated by tanh",
			m->act != ACT_SWIGLU},
		{{.function = {.gate_exchanged = true}},
			"SwiGLU's activation were applied to w3 (up), not to w1 (gate)",
			m->act == ACT_SWIGLU},
		{{.rope_factor = 1}, "rotations were not scaled (rope_scaling)", scaled},
		{{.rope_factor = 8},
			"rotations were scaled as in Llama 3.1 (rope_scaling, factor 8)",
			rope},
		{{.rope_factor = 32},
			"rotations were scaled as in Llama 3.2 (rope_scaling, factor 32)",
			rope},
		{{.function = {.heads_in_turn = true}},
			"query heads were assigned to key heads in turn, not in groups",
			grouped},
		{{.function = {.softmax_scale = 1 / width}},
			"scores were divided by the width of a head, not by its root",
			true},
		{{.function = {.softmax_scale = 1}}, "scores were not scaled", true},
		{{.function = {.embedding_scale = sqrt(dim)}},
			"the embedding were multiplied by the root of the width", true},
		{{.norm_eps = 1e-6}, "the norms had eps 1e-6", true},
		{{.norm_eps = 1e-5}, "the norms had eps 1e-5", true},
		{{.norm_eps = 1e-8}, "the norms had eps 1e-8", true},
		{{.rope_theta = 1e4}, "rope theta were 10000", rope},
		{{.rope_theta = 5e5}, "rope theta were 500000", rope},
		{{.rope_theta = 1e6}, "rope theta were 1000000", rope},
	};
	add_guesses(list, n, tries, ARRAY_LEN(tries));
}

static void disable_rope(struct model *m)
{
	m->c.nope_every = 1;
}

static void enable_rope_in_all_layers(struct model *m)
{
	m->c.nope_every = 0;
}

static void remove_head_norms(struct model *m)
{
	m->c.qk_norm = false;
}

static void remove_final_norm(struct model *m)
{
	m->norm = m->norm_bias = NULL;
}

/* Returns the number of rows of the table of positions that the batch does not need. */
static int64_t count_spare_rows(const struct step_check *c)
{
	const struct token_batch *b = &c->batch;
	int64_t last = 0;
	for (int64_t i = 0; i < b->n * b->length; i++)
		last = max64(last, b->pos[i]);
	return c->weights.m.positions ? c->weights.m.positions->dims[0] - 1 - last : 0;
}

/* Adds guesses about missing or wrong rotations and positions. */
static void add_position_guesses(const struct step_check *c, struct guess *list, int *n)
{
	const struct model *m = &c->weights.m;
	const bool rope = m->arch->rope, plain = rope && m->c.rope_scaling == ROPE_PLAIN;
	const bool table = m->positions, spare = count_spare_rows(c) >= 2;
	const int64_t half = m->head_dim / 2;
	const struct guess tries[] = {
		{{.change = disable_rope}, "queries and keys were not rotated: no rope",
			rope},
		{{.change = enable_rope_in_all_layers},
			"the layers without rope had it (no_rope_layers)",
			rope && m->c.nope_every},
		{{.function = {.rotated = half}},
			"only the first half of each head's channels were rotated (partial rotary)",
			rope && half % 2 == 0},
		{{.rope_linear = 2}, "positions were divided by 2 (linear rope scaling)",
			plain},
		{{.rope_linear = 4}, "positions were divided by 4 (linear rope scaling)",
			plain},
		{{.rope_linear = 8}, "positions were divided by 8 (linear rope scaling)",
			plain},
		{{.function = {.kept_angles = half / 2}},
			"heads were rotated only by the first half of their angles: the other "
			"frequencies are 0",
			rope && half > 1},
		{{.function = {.rotation = ROTATE_QUERIES}},
			"queries were rotated, and keys were not", rope},
		{{.function = {.rotation = ROTATE_KEYS}},
			"keys were rotated, and queries were not", rope},
		{{.function = {.rotation = ROTATE_ALL}},
			"values were rotated, too, not only queries and keys", rope},
		{{.reversed = true},
			rope ? "rotations had the opposite sign, or positions ran backwards"
			     : "positions ran backwards",
			true},
		{{.still = true}, "all positions were 0", table},
		{{.shift = 1},
			"positions began at 1: each reads the next row of the table",
			table},
		{{.shift = 2}, "positions began at 2, as OPT's do", spare},
		{{.zeroed = {m->positions ? m->positions->name : ""}},
			"the embedding of positions were not added", m->positions},
		{{.function = {.alibi = true}},
			"scores fell with the distance, too (ALiBi)", true},
		{{.change = disable_rope, .function = {.alibi = true}},
			"scores fell with the distance (ALiBi), and there were no rope",
			rope},
	};
	add_guesses(list, n, tries, ARRAY_LEN(tries));
}

/* Adds guesses about biases that are missing or added twice. */
static void add_bias_guesses(const struct step_check *c, struct guess *list, int *n)
{
	const struct model *m = &c->weights.m;
	const bool qkv = m->blocks[0].sub[ATTENTION].in_bias[0];
	const bool wo = m->blocks[0].sub[ATTENTION].bias, w2 = m->blocks[0].sub[FFN].bias;
	const bool w1 = m->blocks[0].sub[FFN].in_bias[0];
	const struct guess tries[] = {
		{{.zeroed = {"wq.bias"}}, "the biases of queries were not added", qkv},
		{{.zeroed = {"wv.bias"}}, "the biases of values were not added", qkv},
		{{.zeroed = {"wq.bias", "wk.bias", "wv.bias"}},
			"the biases of queries, keys and values were not added", qkv},
		{{.zeroed = {"wo.bias"}}, "the bias of attention's output were not added",
			wo},
		{{.zeroed = {"w1.bias"}}, "the bias of the FFN's input were not added",
			w1},
		{{.zeroed = {"w2.bias"}}, "the bias of the FFN's output were not added",
			w2},
		{{.zeroed = {"norm.bias"}}, "the biases of the norms were not added",
			m->norm_bias},
		{{.scaled = {"wo.bias", "w2.bias"}, .scale = 2},
			"the biases of attention's and the FFN's outputs were added twice",
			wo && w2},
	};
	add_guesses(list, n, tries, ARRAY_LEN(tries));
}

/* Adds guesses about wrong norms, activations, and groups of heads. */
static void add_norm_guesses(const struct step_check *c, struct guess *list, int *n)
{
	const struct model *m = &c->weights.m;
	const bool rms = m->arch->norm == NORM_RMS, silu = m->act == ACT_SWIGLU;
	const struct guess tries[] = {
		{{.norm_offset = 1}, "norms multiplied by 1 + w, not by w",
			!m->arch->norm_adds_one},
		{{.norm_offset = -1},
			m->arch->norm_adds_one ? "norms multiplied by w, not by 1 + w"
					       : "norms multiplied by w - 1, not by w",
			true},
		{{.other_norm = true},
			rms ? "the norms were LayerNorm, not RMSNorm"
			    : "the norms were RMSNorm, not LayerNorm: no mean is subtracted",
			true},
		{{.function = {.other_norm = "attention_norm"}},
			rms ? "the norms before attention were LayerNorm, not RMSNorm"
			    : "the norms before attention were RMSNorm, not LayerNorm: no mean is "
			      "subtracted",
			true},
		{{.change = remove_head_norms}, "queries and keys had no norms",
			m->c.qk_norm},
		{{.change = remove_final_norm}, "there were no norm after the last layer",
			true},
		{{.act = ACT_PLAIN_GELU}, "the activation were GELU, not SiLU", silu},
		{{.act = ACT_TANH_GELU}, "the activation were GELU (by tanh), not SiLU",
			silu},
		{{.act = ACT_SILU}, "the activation were SiLU, not GELU", !silu},
		{{.act = ACT_RELU}, "the activation were ReLU", true},
		{{.act = ACT_QUICK_GELU},
			"the activation were x sigmoid(1.702 x) (quick GELU)", true},
		{{.function = {.softmax_plus_one = true}},
			"attention's softmax added 1 to its denominator (softmax1)",
			true},
		{{.function = {.values_exchanged = true}},
			"query heads were assigned to value heads in turn, and to key heads in "
			"groups",
			m->c.kv_heads < m->c.heads && m->c.kv_heads > 1},
		{{.function = {.heads_in_turn = true, .values_exchanged = true}},
			"query heads were assigned to key heads in turn, and to value heads in "
			"groups",
			m->c.kv_heads < m->c.heads && m->c.kv_heads > 1},
		{{.function = {.softmax_scale = 1 / sqrt((double)m->c.dim)}},
			"scores were divided by the root of the model's width, not of a head's",
			m->c.heads > 1},
		{{.function = {.path = {PATH_PARALLEL, -1, 0, 0}}},
			"attention and FFN of each layer had the same input (parallel residual)",
			true},
	};
	add_guesses(list, n, tries, ARRAY_LEN(tries));
}

static void remove_residual_scale(struct model *m)
{
	m->c.residual_scale = 0;
}

static void remove_logit_scale(struct model *m)
{
	m->c.logit_scale = 0;
}

static void rotate_all_channels(struct model *m)
{
	m->c.rotary = 0;
}

static void remove_local_theta(struct model *m)
{
	m->c.rope_local_theta = 0;
}

static void remove_rope_amplitude(struct model *m)
{
	m->c.rope_attention = 1;
}

/* Adds guesses about a missing factor, limit or rotation of the model's family. */
static void add_family_guesses(const struct step_check *c, struct guess *list, int *n)
{
	const struct model *m = &c->weights.m;
	const struct model_config *o = &m->c;
	const double root = sqrt((double)m->head_dim);
	const struct guess tries[] = {
		{{.function = {.score_cap = -1}}, "scores of attention had no limit",
			o->score_cap > 0},
		{{.function = {.logit_cap = -1}}, "logits had no limit",
			o->logit_cap > 0},
		{{.function = {.embedding_scale = 1}}, "the embedding were not scaled",
			o->embedding_scale > 0 || m->arch->root_embedding},
		{{.change = remove_residual_scale},
			"the outputs of sublayers were not scaled before the residual addition",
			o->residual_scale > 0},
		{{.function = {.softmax_scale = 1 / root}},
			"scores were divided by the root of a head's width, not scaled as the "
			"configuration says",
			o->attention_scale > 0},
		{{.change = remove_logit_scale}, "logits were not scaled",
			o->logit_scale > 0},
		{{.change = rotate_all_channels}, "all channels of a head were rotated",
			o->rotary},
		{{.change = remove_local_theta},
			"layers with a window had the rope theta of layers without one",
			o->rope_local_theta > 0},
		{{.change = remove_rope_amplitude},
			"YaRN did not scale cosines and sines",
			o->rope_scaling == ROPE_YARN},
	};
	add_guesses(list, n, tries, ARRAY_LEN(tries));
}

/* Adds guesses about sums over tensor-parallel ranks of values that each rank already has. */
static void add_rank_sum_guesses(const struct step_check *c, struct guess *list, int *n)
{
	const struct model *m = &c->weights.m;
	const double tp = (double)c->o.tp;
	const bool wo = m->blocks[0].sub[ATTENTION].bias, w2 = m->blocks[0].sub[FFN].bias;
	const struct guess tries[] = {
		{{.function = {.times = {tp, 1}}},
			"the output of attention were summed twice over the tensor-parallel ranks",
			tp > 1},
		{{.function = {.times = {1, tp}}},
			"the output of the FFN were summed twice over the tensor-parallel ranks",
			tp > 1},
		{{.scaled = {"wo.weight"}, .scale = tp},
			"the output of attention, and its gradient, were summed twice over the "
			"tensor-parallel ranks",
			tp > 1},
		{{.scaled = {"w2.weight"}, .scale = tp},
			"the output of the FFN, and its gradient, were summed twice over the "
			"tensor-parallel ranks",
			tp > 1},
		{{.function = {.bias_times = {tp, 1}}},
			"each tensor-parallel rank added the bias of attention's output",
			tp > 1 && wo},
		{{.function = {.bias_times = {1, tp}}},
			"each tensor-parallel rank added the bias of the FFN's output",
			tp > 1 && w2},
		{{.function = {.bias_times = {tp, tp}}},
			"each tensor-parallel rank added the biases of attention's and the FFN's "
			"outputs",
			tp > 1 && wo && w2},
	};
	add_guesses(list, n, tries, ARRAY_LEN(tries));
}

/* Removes "context parallelism" if the layout has none; without a layout, it becomes a question. */
static void correct_axis(struct cause_search *s)
{
	static const char axis[] = " (context parallelism)";
	char *rest = strstr(s->detail, axis);
	scoped_str text = {0};
	if (!rest || s->c->o.cp > 1)
		return;
	str_printf(&text, "%.*s%s%s", (int)(rest - s->detail), s->detail,
		has_layout(s->c) ? "" : " (context parallelism?)", rest + strlen(axis));
	snprintf(s->detail, sizeof(s->detail), "%s", text.s);
}

/* Returns true if another function than the model's explains the gradients. Sets s->detail. */
bool explained_by_function(struct cause_search *s)
{
	struct guess tries[MAX_TRIES];
	int n = 0;
	add_function_guesses(s->c, tries, &n);
	add_attention_guesses(s->c, tries, &n);
	add_target_guesses(s->c, tries, &n);
	add_position_guesses(s->c, tries, &n);
	add_bias_guesses(s->c, tries, &n);
	add_norm_guesses(s->c, tries, &n);
	add_family_guesses(s->c, tries, &n);
	add_rank_sum_guesses(s->c, tries, &n);
	double nearest = s->near;
	const char *text = NULL;
	for (int t = 0; t < n; t++)
		if (try_guess(s, &tries[t], &nearest))
			text = tries[t].text;
	snprintf(s->detail, sizeof(s->detail), "%s", text ? text : "");
	correct_axis(s);
	return text;
}

/* The feed-forward sublayer with experts (Shazeer et al. 2017): the sum over a token's experts of
 * gate W2 (silu(W1 h) * W3 h), plus an optional shared expert that computes all tokens. The router
 * chooses the experts of each token.
 *
 * A slot is one of the k experts of a row. Slots are sorted by (expert, chunk, row), and each expert
 * computes its rows in one matmul. Law 1 of pt(7): no element depends on the rows beside its own,
 * the slots of a row are added in the order of experts, and the leaf of an expert's weight is the sum
 * over the rows of one micro-batch and chunk, in their order. */
#include "model/router.h"

/* Activations. Shared expert: y = act(a, b). Experts: results of W1 and W3; the choice of a row's
 * experts, ascending; their gates; log-sum-exp of the scores; the place of each slot in the sorted
 * rows; the slot at each place; the first place of each (expert, chunk); results of W2. */
enum {
	SY = INNER_RESULT,
	SA = IN_RESULT,
	SB,
	AB,
	IDS,
	GATES,
	LSE,
	PLACES,
	SLOTS,
	OFFSETS,
	Y
};
/* Gradients of sa, sb and ab; gate times the input of W2; of the router's scores; of the input of
 * W1 and W3; of the gates. */
enum { DSA, DSB, DAB = SUBLAYER_INPUTS, GA, DSCORES, DX, DGATES };

static void add_expert_tensors(struct model *m, int64_t layer, struct sublayer_tensors *t)
{
	const struct model_config *c = &m->c;
	int64_t dim = c->dim, n = c->experts, f = c->expert_dim, s = c->shared_expert_dim;
	bool norm = model_has_norm(m, NORM_OF_INPUT),
	     post = model_has_norm(m, NORM_OF_OUTPUT);
	/* clang-format off */
	const struct tensor_row rows[] = {
		{"ffn_norm.weight",      dim,       0,   TP_SPLIT_NONE, ROW_NORM,     norm,  &t->norm},
		{"router.weight",        n,         dim, TP_SPLIT_NONE, ROW_ROUTER,   true,  &t->router},
		{"experts.w13.weight",   2 * n * f, dim, TP_SPLIT_ROWS, ROW_WEIGHT,   true,  &t->w13, .blocks = 2 * n},
		{"experts.w2.weight",    n * dim,   f,   TP_SPLIT_COLS, ROW_RESIDUAL, true,  &t->w2, .blocks = n},
		{"shared.w1.weight",     s,         dim, TP_SPLIT_ROWS, ROW_WEIGHT,   s > 0, &t->in[0]},
		{"shared.w3.weight",     s,         dim, TP_SPLIT_ROWS, ROW_GATE,     s > 0, &t->in[1]},
		{"shared.w2.weight",     dim,       s,   TP_SPLIT_COLS, ROW_RESIDUAL, s > 0, &t->out},
		{"ffn_post_norm.weight", dim,       0,   TP_SPLIT_NONE, ROW_NORM,     post,  &t->post_norm},
	};
	/* clang-format on */
	tensors_add(m, layer, rows, ARRAY_LEN(rows));
}

/* ---- shapes ---------------------------------------------------------------------- */

static int64_t per_row(const struct pass *p)
{
	return p->m->c.experts_per_token;
}

/* Returns the columns of gates: of a row's experts, and of the shared expert. */
static int64_t gate_cols(const struct pass *p)
{
	return per_row(p) + p->m->c.shared_expert_gate;
}

/* Returns the rows of all local chunks. */
static int64_t all_rows(const struct pass *p)
{
	return p->cp.local * p->rows;
}

static int64_t all_slots(const struct pass *p)
{
	return all_rows(p) * per_row(p);
}

static int64_t n_groups(const struct pass *p)
{
	return p->m->c.experts * p->cp.local;
}

static bool has_shared(const struct pass *p)
{
	return p->m->c.shared_expert_dim > 0;
}

static void set_expert_sizes(
	const struct pass *p, struct mat_size *acts, struct mat_size *grads)
{
	const struct model_config *c = &p->m->c;
	int64_t f = c->expert_dim / p->tp.n, slots = p->tp.local * all_slots(p);
	int64_t rows = all_rows(p), k = per_row(p);
	enum dtype act = act_type(p);
	if (has_shared(p)) {
		acts[SY] = (struct mat_size){c->shared_expert_dim / p->tp.n, act};
		acts[SA] = acts[SB] = grads[DSA] = grads[DSB] = acts[SY];
	}
	acts[AB] = (struct mat_size){2 * f, act, KEPT, slots};
	acts[IDS] = acts[PLACES] = acts[SLOTS] = (struct mat_size){k, DT_F32, KEPT, rows};
	acts[GATES] = (struct mat_size){gate_cols(p), DT_F32, KEPT, rows};
	acts[LSE] = (struct mat_size){1, DT_F32, KEPT, rows};
	acts[OFFSETS] = (struct mat_size){n_groups(p) + 1, DT_F32, KEPT, 1};
	acts[Y] = (struct mat_size){c->dim, act, UNTIL_SUBLAYER_ENDS, slots};
	grads[DAB] = acts[AB];
	grads[GA] = (struct mat_size){f, act, KEPT, slots};
	grads[DSCORES] =
		(struct mat_size){c->experts, DT_F32, KEPT, p->cp.local * p->stream_rows};
	grads[DX] = acts[Y];
	grads[DGATES] = (struct mat_size){
		gate_cols(p), DT_F32, UNTIL_INNER_ENDS, p->tp.local * rows};
}

const struct sublayer ffn_experts = {
	.norm = "ffn_norm",
	.out = "experts",
	.drop = DROP_FFN,
	.add_tensors = add_expert_tensors,
	.set_sizes = set_expert_sizes,
};

/* Token and position embeddings. The table is split by vocabulary, as the weight of a row-parallel
 * matmul with one-hot rows (Megatron-LM's VocabParallelEmbedding). */
#include "model/layers.h"

/* Passes one integer per row of a chunk to the observer. */
static void show_ids(struct pass *p, const char *name, struct at at, int32_t *ids)
{
	struct mat x = {.p = ids, .rows = p->rows, .cols = 1};
	if (p->observer)
		show_result(p, (struct result){.name = name,
				       .extent = OF_CHUNK,
				       .at = at,
				       .x = x,
				       .integers = true});
}

void embed_forward(struct pass *p, struct mat x)
{
	const struct kernels *k = p->d->k;
	const struct tensor *table = p->m->tokens, *positions = p->m->positions;
	for (int c = 0; c < p->cp.local; c++) {
		show_ids(p, "tokens", (struct at){-1, 0, c}, p->in.tokens + c * p->rows);
		if (p->c.documents)
			show_ids(p, "positions", (struct at){-1, 0, c}, doc_pos_of(p, c));
		struct mat xc = stream_of(p, x, c);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, xc, p->rows, xc.type);
		for (int s = 0; s < p->tp.local; s++) {
			param_use(p, table, s);
			struct mat w = param(p, table, s);
			k->embed_fwd(p->d, slice_sum_slot(&sum), w,
				p->in.tokens + c * p->rows, (p->tp.first + s) * w.rows,
				false);
			param_done(p, table, s);
			slice_sum_push(&sum);
		}
		slice_sum_end(&sum);
		if (positions)
			k->embed_fwd(p->d, xc, param(p, positions, 0),
				doc_pos_of(p, c) + p->first_row, 0, true);
		drop(p, (struct at){-1, 0, c}, DROP_EMBED, xc);
		comm_poll();
		show(p, "tok_embeddings", OF_STREAM, (struct at){-1, 0, c}, xc);
	}
}

static void table_backward(struct pass *p, struct at at, struct mat d)
{
	const struct tensor *table = p->m->tokens;
	for (; at.slice < p->tp.local; at.slice++) {
		struct mat dw = leaf(p, table, at);
		p->d->k->embed_bwd(p->d, dw, d, p->in.tokens + at.chunk * p->rows,
			(p->tp.first + at.slice) * dw.rows);
		leaf_done(p, table, at, 0);
		param_reduce(p, table, at.slice, 0);
	}
}

static void positions_backward(struct pass *p, struct at at, struct mat dx)
{
	const struct tensor *positions = p->m->positions;
	if (!positions || positions->frozen)
		return;
	for (; at.slice < p->tp.local; at.slice++) {
		int64_t first, n = piece_rows(p, at.slice, &first);
		p->d->k->embed_bwd(p->d, leaf(p, positions, at), mat_rows(dx, first, n),
			doc_pos_of(p, at.chunk) + p->first_row + first, 0);
		leaf_done(p, positions, at, 0);
	}
}

void embed_backward(struct pass *p, struct mat dx)
{
	size_t mark = arena_mark(p->d->scratch);
	struct mat all = mat_take(p->d->scratch, p->rows, p->m->c.dim, DT_F32);
	for (int c = 0; c < p->cp.local; c++) {
		struct at at = {-1, 0, c};
		struct mat dxc = stream_of(p, dx, c);
		drop(p, at, DROP_EMBED, dxc);
		positions_backward(p, at, dxc);
		if (!p->m->tokens->frozen)
			table_backward(p, at, slice_gather(&p->tp, p->d, dxc, all));
		comm_poll();
		show_gradient(p, "tok_embeddings", OF_STREAM, (struct at){-1, 0, c}, dxc);
	}
	arena_reset(p->d->scratch, mark);
}

/* Token and position embeddings. The table is split by vocabulary, as the weight of a row-parallel
 * matmul with one-hot rows (Megatron-LM's VocabParallelEmbedding). */
#include "model/layers.h"

/* Passes integers, one per row of a chunk, to the observer. */
static void observe_ids(struct pass *p, const char *name, struct loc loc, int32_t *ids)
{
	struct mat x = {.p = ids, .rows = p->rows, .cols = 1};
	if (p->observer)
		observe_result(p, (struct result){.name = name,
					  .extent = EXTENT_CHUNK,
					  .at = loc,
					  .x = x,
					  .integers = true});
}

void embed_forward(struct pass *p, struct mat x)
{
	const struct kernels *k = p->d->k;
	const struct tensor *table = p->m->tokens, *positions = p->m->positions;
	for (int c = 0; c < p->cp.local; c++) {
		const struct loc loc = {-1, 0, c};
		observe_ids(p, "tokens", loc, p->in.tokens + c * p->rows);
		if (p->c.documents)
			observe_ids(p, "positions", loc, chunk_doc_pos(p, c));
		struct mat xc = stream_chunk(p, x, c);
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
				chunk_doc_pos(p, c) + p->first_row, 0, true);
		apply_dropout(p, loc, DROP_EMBED, xc);
		comm_poll();
		observe(p, "tok_embeddings", EXTENT_STREAM, loc, xc);
	}
}

/* Computes the token table's leaves from the gathered gradient d, and starts to reduce them. */
static void token_table_backward(struct pass *p, struct loc loc, struct mat d)
{
	const struct tensor *table = p->m->tokens;
	for (; loc.slice < p->tp.local; loc.slice++) {
		struct mat dw = leaf_buffer(p, table, loc);
		p->d->k->embed_bwd(p->d, dw, d, p->in.tokens + loc.chunk * p->rows,
			(p->tp.first + loc.slice) * dw.rows);
		leaf_done(p, table, loc, 0);
		param_reduce(p, table, loc.slice, 0);
	}
}

/* Computes the leaves of the position table from this rank's rows of dx, unless it is frozen. */
static void positions_backward(struct pass *p, struct loc loc, struct mat dx)
{
	const struct tensor *positions = p->m->positions;
	if (!positions || positions->frozen)
		return;
	for (; loc.slice < p->tp.local; loc.slice++) {
		int64_t first, n = piece_rows(p, loc.slice, &first);
		p->d->k->embed_bwd(p->d, leaf_buffer(p, positions, loc),
			mat_rows(dx, first, n),
			chunk_doc_pos(p, loc.chunk) + p->first_row + first, 0);
		leaf_done(p, positions, loc, 0);
	}
}

void embed_backward(struct pass *p, struct mat dx)
{
	size_t mark = arena_mark(p->d->scratch);
	struct mat all = mat_alloc(p->d->scratch, p->rows, p->m->c.dim, DT_F32);
	for (int c = 0; c < p->cp.local; c++) {
		struct loc loc = {-1, 0, c};
		struct mat dxc = stream_chunk(p, dx, c);
		apply_dropout(p, loc, DROP_EMBED, dxc);
		positions_backward(p, loc, dxc);
		if (!p->m->tokens->frozen)
			token_table_backward(
				p, loc, slice_gather(&p->tp, p->d, dxc, all));
		comm_poll();
		observe_gradient(p, "tok_embeddings", EXTENT_STREAM, loc, dxc);
	}
	arena_reset(p->d->scratch, mark);
}

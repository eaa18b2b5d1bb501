/* Token and position embeddings. The table is cut by vocabulary: a row-parallel product
 * with a one-hot matrix. */
#include "model/layers.h"

void embed_forward(struct pass *p, struct mat x)
{
	const struct kernels *k = p->d->k;
	const struct tensor *table = p->m->tokens, *positions = p->m->positions;
	for (int c = 0; c < p->cp.here; c++) {
		struct mat xc = stream_of(p, x, c);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, xc, p->rows);
		for (int s = 0; s < p->tp.here; s++) {
			table_use(p, table, s);
			struct mat w = param(p, table, s);
			k->embed_fwd(p->d, slice_sum_slot(&sum), w,
				p->tokens + c * p->rows, (p->tp.first + s) * w.rows,
				false);
			table_done(p, table, s);
			slice_sum_push(&sum);
		}
		slice_sum_end(&sum);
		if (positions)
			k->embed_fwd(p->d, xc, param(p, positions, 0),
				pos_of(p, c) + p->first_row, 0, true);
		drop(p, -1, DROP_EMBED, c, xc);
		watch(p, "tok_embeddings", -1, xc);
	}
}

static void positions_backward(struct pass *p, int c, struct mat dx)
{
	const struct tensor *positions = p->m->positions;
	for (int s = 0; positions && s < p->tp.here; s++) {
		int64_t first, n = piece_rows(p, s, &first);
		p->d->k->embed_bwd(p->d, leaf(p, positions, s, c), mat_rows(dx, first, n),
			pos_of(p, c) + p->first_row + first, 0);
		leaf_done(p, positions, s, c);
	}
}

void embed_backward(struct pass *p, struct mat dx)
{
	const struct tensor *table = p->m->tokens;
	struct arena *scratch = p->d->scratch;
	size_t mark = arena_mark(scratch);
	int64_t dim = p->m->c.dim;
	struct mat all = mat(arena_floats(scratch, p->rows * dim), p->rows, dim);
	for (int c = 0; c < p->cp.here; c++) {
		struct mat dxc = stream_of(p, dx, c);
		drop(p, -1, DROP_EMBED, c, dxc);
		positions_backward(p, c, dxc);
		struct mat d = slice_gather(&p->tp, p->d, dxc, all);
		for (int s = 0; s < p->tp.here; s++) {
			struct mat dw = leaf(p, table, s, c);
			p->d->k->embed_bwd(p->d, dw, d, p->tokens + c * p->rows,
				(p->tp.first + s) * dw.rows);
			leaf_done(p, table, s, c);
			table_reduce(p, table, s, 0);
		}
		watch(p, "tok_embeddings, backward", -1, dxc);
	}
	arena_reset(scratch, mark);
}

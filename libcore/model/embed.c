/* Token and position embeddings. The table is cut by vocabulary: a row-parallel product
 * with a one-hot matrix. */
#include "model/layers.h"

void embed_forward(struct pass *p, float *x)
{
	const struct kernels *k = p->d->k;
	const struct tensor *table = p->m->tokens, *positions = p->m->positions;
	for (int c = 0; c < p->cp.here; c++) {
		struct mat xc = chunk_of(p, x, c, p->m->c.dim);
		struct slice_sum sum;
		slice_sum_begin(&sum, &p->tp, p->d, xc);
		for (int s = 0; s < p->tp.here; s++) {
			struct mat w = param(p, table, s);
			k->embed_fwd(p->d, slice_sum_slot(&sum), w,
				p->tokens + c * p->rows, (p->tp.first + s) * w.rows,
				false);
			slice_sum_push(&sum);
		}
		slice_sum_end(&sum);
		if (positions)
			k->embed_fwd(
				p->d, xc, param(p, positions, 0), pos_of(p, c), 0, true);
		drop(p, -1, DROP_EMBED, c, xc);
		watch(p, "tok_embeddings", -1, xc);
	}
}

static void positions_backward(struct pass *p, int c, struct mat dx)
{
	const struct tensor *positions = p->m->positions;
	if (!positions)
		return;
	for (int i = 0; i < p->tp.n; i++) {
		int64_t first, n = piece_rows(p, i, &first);
		p->d->k->embed_bwd(p->d, leaf(p, positions, 0), mat_rows(dx, first, n),
			pos_of(p, c) + first, 0);
		leaf_done(p, positions, 0);
	}
}

void embed_backward(struct pass *p, float *dx)
{
	const struct tensor *table = p->m->tokens;
	for (int c = 0; c < p->cp.here; c++) {
		struct mat dxc = chunk_of(p, dx, c, p->m->c.dim);
		drop(p, -1, DROP_EMBED, c, dxc);
		positions_backward(p, c, dxc);
		for (int s = 0; s < p->tp.here; s++) {
			struct mat dw = leaf(p, table, s);
			p->d->k->embed_bwd(p->d, dw, dxc, p->tokens + c * p->rows,
				(p->tp.first + s) * dw.rows);
			leaf_done(p, table, s);
		}
		watch(p, "tok_embeddings, backward", -1, dxc);
	}
}

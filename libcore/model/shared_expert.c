/* The shared expert, which computes all tokens. One rank computes it like the dense sublayer: W1
 * and W3 as rows arrive, W2 for the sum over slices. If ranks divide the experts, they compute the
 * same matmuls while rows of other experts are sent. */
#include "model/experts.h"

/* Returns a gather of a chunk's rows that is complete. */
static struct slice_gather complete_gather(struct pass *p, struct mat x, int chunk)
{
	return (struct slice_gather){
		.s = &p->tp, .d = p->d, .all = chunk_rows(p, x, chunk)};
}

void shared_forward(struct pass *p, const struct sublayer_run *sub)
{
	const struct mat *m = sub->acts->m;
	struct loc loc = {.layer = sub->layer};
	for (; has_shared(p) && loc.chunk < p->cp.local; loc.chunk++)
		for (loc.slice = 0; loc.slice < p->tp.local; loc.slice++) {
			struct linear l[SUBLAYER_INPUTS] = {0};
			int n = in_linears(p, sub, loc, &m[SA], l);
			struct slice_gather h =
				complete_gather(p, sub->acts->h, loc.chunk);
			if (overlaps_shared(p))
				column_parallel_forward(p, loc, &h, l, n);
			p->d->k->act_fwd(p->d, p->m->act, mat_at(p, m[SY], loc),
				mat_at(p, m[SA], loc), mat_at(p, m[SB], loc));
		}
}

void shared_w2_forward(struct pass *p, const struct sublayer_run *sub, int s)
{
	const struct mat *m = sub->acts->m;
	struct loc loc = {.layer = sub->layer, .slice = s};
	for (; overlaps_shared(p) && loc.chunk < p->cp.local; loc.chunk++) {
		const struct linear l = {
			.y = mat_at(p, m[SHARED], loc), .w = sub->tensors->out};
		linear_forward(p, loc, &l, mat_at(p, m[SY], loc));
	}
}

void shared_w2_backward(struct pass *p, const struct sublayer_run *sub, struct loc loc,
	struct slice_gather *d)
{
	row_parallel_backward(p, loc, mat_at(p, sub->grads->m[DSA], loc), d,
		sub->tensors->out, no_mat(), no_mat());
}

/* Copies columns [first, first + to.cols) of x. */
static void copy_cols(struct pass *p, struct mat to, struct mat x, int64_t first)
{
	p->d->k->copy(p->d, to, mat_cols(x, first, to.cols));
}

/* Computes the gradients of the shared expert's a, b and gate from the gradient of y in DSA. */
static void gated_shared_backward(
	struct pass *p, const struct sublayer_run *sub, struct loc loc)
{
	const struct mat *m = sub->acts->m, *g = sub->grads->m;
	struct mat a = mat_at(p, m[SA], loc), b = mat_at(p, m[SB], loc);
	struct mat da = mat_at(p, g[DSA], loc), db = mat_at(p, g[DSB], loc);
	int64_t row = loc.chunk * p->rows, cols = gate_cols(p), k = per_row(p);
	float *dgates = slice_of(g[DGATES], loc.slice, all_rows(p)).p;
	size_t mark = arena_mark(p->d->scratch);
	struct mat ab = mat_alloc(p->d->scratch, a.rows, 2 * a.cols, a.type);
	p->d->k->copy(p->d, mat_cols(ab, 0, a.cols), a);
	p->d->k->copy(p->d, mat_cols(ab, a.cols, a.cols), b);
	p->d->k->expert_act_bwd(p->d, p->m->act, ab, mat_at(p, g[GSY], loc),
		dgates + row * cols + k, da, ab, (float *)m[GATES].p + row * cols + k,
		NULL, cols);
	copy_cols(p, da, ab, 0);
	copy_cols(p, db, ab, a.cols);
	arena_reset(p->d->scratch, mark);
}

void shared_backward(struct pass *p, const struct sublayer_run *sub)
{
	const struct mat *m = sub->acts->m, *g = sub->grads->m;
	struct loc loc = {.layer = sub->layer};
	for (; has_shared(p) && loc.chunk < p->cp.local; loc.chunk++)
		for (loc.slice = 0; loc.slice < p->tp.local; loc.slice++) {
			struct slice_gather d =
				complete_gather(p, sub->grads->d, loc.chunk);
			if (overlaps_shared(p))
				shared_w2_backward(p, sub, loc, &d);
			if (p->m->c.shared_expert_gate)
				gated_shared_backward(p, sub, loc);
			else
				p->d->k->act_bwd(p->d, p->m->act, mat_at(p, g[DSA], loc),
					mat_at(p, g[DSB], loc), mat_at(p, g[DSA], loc),
					mat_at(p, m[SA], loc), mat_at(p, m[SB], loc));
		}
}

void shared_x_backward(
	struct pass *p, const struct sublayer_run *sub, struct loc loc, struct mat to)
{
	struct linear l[SUBLAYER_INPUTS] = {0};
	int n = in_linears(p, sub, loc, sub->grads->m, l);
	linear_backward_x(p, loc, to, l, n);
}

void shared_x_backward_early(struct pass *p, const struct sublayer_run *sub, int s)
{
	struct loc loc = {.layer = sub->layer, .slice = s};
	for (; overlaps_shared(p) && loc.chunk < p->cp.local; loc.chunk++)
		shared_x_backward(p, sub, loc, mat_at(p, sub->grads->m[DSX], loc));
}

struct mat shared_out_input(const struct pass *p, const struct sublayer_run *sub)
{
	return p->m->c.shared_expert_gate ? sub->grads->m[GSY] : sub->acts->m[SY];
}

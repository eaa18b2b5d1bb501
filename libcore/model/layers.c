/* Small things that several layers share. */
#include "model/layers.h"

void watch(struct pass *p, const char *what, int64_t layer, struct mat x)
{
	if (p->tick)
		p->tick(p->tick_with);
	if (!p->probe || p->probe->found || !x.p)
		return;
	int64_t bad = p->d->k->find_bad(p->d, x);
	if (bad < 0)
		return;
	p->probe->found = true;
	p->probe->index = bad;
	if (layer < 0)
		snprintf(p->probe->where, sizeof(p->probe->where), "%s", what);
	else
		snprintf(p->probe->where, sizeof(p->probe->where), "layers.%lld.%s",
			(long long)layer, what);
}

void piece_bias_bwd(struct pass *p, const struct tensor *bias, struct mat dy)
{
	if (!bias)
		return;
	for (int i = 0; i < p->tp.n; i++) {
		int64_t first, n = piece_rows(p, i, &first);
		p->d->k->bias_bwd(p->d, leaf(p, bias, 0), mat_rows(dy, first, n));
		leaf_done(p, bias, 0);
	}
}

void piece_norm_bwd(struct pass *p, const struct tensor *weight,
	const struct tensor *bias, struct mat dy, struct mat x, struct mat stats)
{
	for (int i = 0; i < p->tp.n; i++) {
		int64_t first, n = piece_rows(p, i, &first);
		p->d->k->norm_bwd_w(p->d, p->m->arch->norm, leaf(p, weight, 0),
			bias ? leaf(p, bias, 0) : no_mat(), dy, x, stats, first, n);
		leaf_done(p, weight, 0);
		if (bias)
			leaf_done(p, bias, 0);
	}
}

void slice_bias_bwd(struct pass *p, const struct tensor *bias, int s, struct mat dy)
{
	if (!bias)
		return;
	p->d->k->bias_bwd(p->d, leaf(p, bias, s), dy);
	leaf_done(p, bias, s);
}

struct dropout dropout_at(const struct pass *p, int64_t layer, enum drop_site site, int c)
{
	return (struct dropout){
		.key = philox_key(p->seed, PHILOX_DROPOUT,
			(uint64_t)(layer + 1) * 4 + (uint64_t)site),
		.p = p->train ? (float)p->m->c.dropout : 0,
		.step = (uint32_t)p->step,
		.first_sample = p->first_sample,
		.pos = pos_of(p, c),
		.seq_rows = p->rows / p->batch,
	};
}

void drop(struct pass *p, int64_t layer, enum drop_site site, int c, struct mat x)
{
	if (!p->train || p->m->c.dropout <= 0)
		return;
	struct dropout o = dropout_at(p, layer, site, c);
	p->d->k->dropout(p->d, x, x, &o);
}

void join_residual(struct pass *p, int64_t layer, enum drop_site site, int c,
	const struct tensor *bias, struct mat y, struct mat x)
{
	const struct kernels *k = p->d->k;
	if (!p->plain_kernels) {
		struct dropout o = dropout_at(p, layer, site, c);
		k->residual(p->d, y, x, y, param(p, bias, 0), o.p > 0 ? &o : NULL);
		return;
	}
	if (bias)
		k->bias_fwd(p->d, y, param(p, bias, 0));
	drop(p, layer, site, c, y);
	k->add(p->d, y, x, y);
}

struct mat branch_gradient(struct pass *p, int64_t layer, enum drop_site site, int c,
	struct mat dx, struct mat room)
{
	const struct kernels *k = p->d->k;
	struct dropout o = dropout_at(p, layer, site, c);
	if (o.p <= 0 && !linear_rounds(p))
		return dx;
	if (o.p > 0 && !p->plain_kernels) {
		k->dropout(p->d, room, dx, &o);
	} else {
		k->copy(p->d, room, dx);
		drop(p, layer, site, c, room);
	}
	linear_round(p, room);
	return room;
}

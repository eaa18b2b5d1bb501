/*
 * What routing costs on a CPU: the forward and backward of a layer's experts in one thread, as
 * libcore/model/experts.c calls the kernels without --ep, beside dense matmuls of the same shapes
 * with the same activations and leaves, in turns.
 *   bench_experts_layer [ROUNDS]   lines "DIMxF EXPERTS/K TYPE ROWS PART MILLISECONDS DENSE", and
 *                                  the ratio of their totals
 * The processor's time of the fastest round counts, which other programs disturb less.
 */
#include "kernels/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum part { ROUTE, ORDER, COMBINE, MATMULS, ACTIVATION, LEAVES, N_PARTS };

/* Results have the rows of slots, [row][k], sorted by experts. */
struct layer {
	struct device *d;
	struct router how;
	struct mat h, dout, wr, w13, w2;       /* inputs */
	struct mat gates, ids, pos, slots;     /* [row][k] */
	struct mat lse, counts, f, values, dz; /* of the router; f: fractions */
	struct mat x, dy, ab, a, z, y, dx, dgates;
	struct mat out, dh, dw13, dw2, dwr, leaf13, leaf2; /* leaves: fp32 */
	int32_t *offsets;
	float weights[2];
	double spent[N_PARTS], since; /* seconds */
};

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Adds the time since the last call to a part. */
static void spend(struct layer *l, enum part part)
{
	double now = seconds();
	l->spent[part] += now - l->since;
	l->since = now;
}

static struct mat alloc_mat(struct layer *l, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = mat_typed(NULL, rows, cols, type);
	m.p = device_alloc(
		l->d, (size_t)mat_bytes(m)); /* in huge pages, as in training */
	memset(m.p, 0, (size_t)mat_bytes(m));
	return m;
}

static struct mat random_mat(
	struct layer *l, int64_t rows, int64_t cols, enum dtype type, uint64_t seed)
{
	struct mat m = alloc_mat(l, rows, cols, type), wide = mat(NULL, rows, cols);
	wide.p = xcalloc(1, (size_t)mat_bytes(wide));
	for (int64_t i = 0; i < rows * cols; i++)
		((float *)wide.p)[i] =
			(float)(hash_mix(seed << 40 | (uint64_t)i) % 1000) / 1000 - 0.5f;
	if (type == DT_F32)
		memcpy(m.p, wide.p, (size_t)mat_bytes(m));
	else
		l->d->k->narrow(l->d, m.p, wide, type);
	free(wide.p);
	return m;
}

static void init_layer(struct layer *l, int64_t rows, int64_t dim, int64_t f,
	int64_t experts, int64_t k, enum dtype type)
{
	int64_t slots = rows * k;
	l->how = (struct router){.normalize = true,
		.scale = 1,
		.experts = experts,
		.per_row = k,
		.seq_rows = rows};
	l->h = random_mat(l, rows, dim, type, 1);
	l->dout = random_mat(l, rows, dim, type, 2);
	l->wr = random_mat(l, experts, dim, DT_F32, 3);
	l->w13 = random_mat(l, experts * 2 * f, dim, type, 4);
	l->w2 = random_mat(l, experts * dim, f, type, 5);
	l->gates = alloc_mat(l, rows, k, DT_F32);
	l->ids = l->pos = l->slots = l->dgates = l->gates;
	struct mat *const like_gates[] = {&l->ids, &l->pos, &l->slots, &l->dgates};
	for (size_t i = 0; i < ARRAY_LEN(like_gates); i++)
		*like_gates[i] = alloc_mat(l, rows, k, DT_F32);
	l->lse = alloc_mat(l, rows, 1, DT_F32);
	l->counts = alloc_mat(l, 1, experts, DT_F32);
	l->f = random_mat(l, 1, experts, DT_F32, 6);
	l->values = alloc_mat(l, 2, rows, DT_F32);
	l->dz = alloc_mat(l, rows, experts, DT_F32);
	l->x = alloc_mat(l, slots, dim, type);
	l->dy = alloc_mat(l, slots, dim, type);
	l->ab = alloc_mat(l, slots, 2 * f, type);
	l->a = alloc_mat(l, slots, f, type);
	l->z = alloc_mat(l, slots, f, type);
	l->y = alloc_mat(l, slots, dim, type);
	l->dx = alloc_mat(l, slots, dim, type);
	l->out = alloc_mat(l, rows, dim, DT_F32);
	l->dh = alloc_mat(l, rows, dim, DT_F32);
	l->dw13 = alloc_mat(l, experts * 2 * f, dim, type);
	l->dw2 = alloc_mat(l, experts * dim, f, type);
	l->dwr = alloc_mat(l, experts, dim, DT_F32);
	l->leaf13 = alloc_mat(l, experts * 2 * f, dim, DT_F32);
	l->leaf2 = alloc_mat(l, experts * dim, f, DT_F32);
	l->offsets = xcalloc((size_t)experts + 1, sizeof(*l->offsets));
	l->weights[0] = 0.01f;
}

static void free_layer(struct layer *l)
{
	struct mat all[] = {l->h, l->dout, l->wr, l->w13, l->w2, l->gates, l->ids, l->pos,
		l->slots, l->lse, l->counts, l->f, l->values, l->dz, l->x, l->dy, l->ab,
		l->a, l->z, l->y, l->dx, l->dgates, l->out, l->dh, l->dw13, l->dw2,
		l->dwr, l->leaf13, l->leaf2};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		device_free(l->d, all[i].p, (size_t)mat_bytes(all[i]));
	free(l->offsets);
}

/* Stores the leaves of 16-bit matmuls in fp32, as the store of gradients does. */
static void widen_leaves(struct layer *l)
{
	if (l->dw13.type == DT_F32)
		return;
	l->d->k->round(l->d, l->leaf13, l->dw13, DT_F32, 1);
	l->d->k->round(l->d, l->leaf2, l->dw2, DT_F32, 1);
	spend(l, LEAVES);
}

/* Computes a matmul of all experts and its leaf. */
static void leaves(struct layer *l, struct mat dw, struct mat dy, struct mat x)
{
	const struct row_groups groups = {l->offsets, l->how.experts, 1};
	int n = (int)l->how.experts;
	int64_t rows = dw.rows / n;
	struct group_leaf *list = xcalloc((size_t)n, sizeof(*list));
	for (int e = 0; e < n; e++)
		list[e] = (struct group_leaf){mat_rows(dw, e * rows, rows), NULL, e, 0};
	l->d->k->groups_bwd_w(l->d, list, n, dy, x, &groups);
	free(list);
}

static void forward(struct layer *l)
{
	const struct kernels *k = l->d->k;
	const struct row_groups groups = {l->offsets, l->how.experts, 1};
	const struct mat none = {0};
	k->route_fwd(l->d, l->ids.p, l->gates, l->lse.p, l->counts.p, l->h, l->wr, NULL,
		none, &l->how);
	spend(l, ROUTE);
	k->sort_slots(l->d, l->pos.p, l->slots.p, l->offsets, l->ids.p, l->h.rows,
		l->h.rows, l->how.per_row, &l->how);
	k->rows_take(l->d, l->x, l->h, l->slots.p, l->how.per_row);
	spend(l, ORDER);
	k->groups_fwd(l->d, l->ab, l->x, l->w13, &groups);
	spend(l, MATMULS);
	k->expert_act_fwd(l->d, ACT_SWIGLU, l->a, l->ab);
	spend(l, ACTIVATION);
	k->groups_fwd(l->d, l->y, l->a, l->w2, &groups);
	spend(l, MATMULS);
	k->slots_combine(l->d, l->out, l->y, l->pos.p, l->how.per_row, l->gates, none);
	spend(l, COMBINE);
}

static void backward(struct layer *l)
{
	const struct kernels *k = l->d->k;
	const struct row_groups groups = {l->offsets, l->how.experts, 1};
	const struct mat none = {0};
	const struct router_losses losses = {
		.f = l->f.p, .weights = l->weights, .values = l->values.p};
	k->rows_take(l->d, l->dy, l->dout, l->slots.p, l->how.per_row);
	spend(l, ORDER);
	k->groups_bwd_x(l->d, l->z, l->dy, l->w2, &groups);
	spend(l, MATMULS);
	k->expert_act_bwd(l->d, ACT_SWIGLU, l->ab, l->z, l->dgates.p, l->z, l->ab,
		l->gates.p, l->slots.p, 1);
	spend(l, ACTIVATION);
	k->groups_bwd_x(l->d, l->dx, l->ab, l->w13, &groups);
	spend(l, MATMULS);
	k->route_bwd(l->d, l->dz, NULL, l->dgates, l->ids.p, l->gates, l->lse.p, l->h,
		l->wr, &l->how, &losses);
	spend(l, ROUTE);
	k->slots_combine(l->d, l->dh, l->dx, l->pos.p, l->how.per_row, none, none);
	spend(l, COMBINE);
	k->route_bwd_x(l->d, l->dh, l->dz, l->wr);
	k->route_bwd_w(l->d, l->dwr, l->dz, l->h);
	spend(l, ROUTE);
	k->rows_take(l->d, l->x, l->h, l->slots.p, l->how.per_row);
	k->rows_take(l->d, l->dy, l->dout, l->slots.p, l->how.per_row);
	spend(l, ORDER);
	leaves(l, l->dw13, l->ab, l->x);
	leaves(l, l->dw2, l->dy, l->z);
	spend(l, MATMULS);
	widen_leaves(l);
}

/* The matmuls of a layer, of W13 or W2. */
enum which { FORWARD_13, FORWARD_2, BACKWARD_2, BACKWARD_13, LEAF_13, LEAF_2 };

/* Computes a matmul of all experts as one dense matmul per expert, of the rows that the last
 * forward sorted. */
static void dense_matmuls(struct layer *l, enum which which)
{
	const struct kernels *k = l->d->k;
	const struct mat none = {0};
	int64_t out = l->w13.rows / l->how.experts, dim = l->h.cols;
	for (int64_t e = 0; e < l->how.experts; e++) {
		int64_t first = l->offsets[e], n = l->offsets[e + 1] - first;
		struct mat x = mat_rows(l->x, first, n), ab = mat_rows(l->ab, first, n);
		struct mat z = mat_rows(l->z, first, n), dy = mat_rows(l->dy, first, n);
		struct mat w13 = mat_rows(l->w13, e * out, out);
		struct mat w2 = mat_rows(l->w2, e * dim, dim);
		if (which == FORWARD_13)
			k->linear_fwd(l->d, ab, x, w13, none);
		else if (which == FORWARD_2)
			k->linear_fwd(l->d, mat_rows(l->y, first, n),
				mat_rows(l->a, first, n), w2, none);
		else if (which == BACKWARD_2)
			k->linear_bwd_x(l->d, z, dy, w2, false);
		else if (which == BACKWARD_13)
			k->linear_bwd_x(l->d, mat_rows(l->dx, first, n), ab, w13, false);
		else if (which == LEAF_13)
			k->linear_bwd_w(
				l->d, mat_rows(l->dw13, e * out, out), ab, x, false);
		else
			k->linear_bwd_w(
				l->d, mat_rows(l->dw2, e * dim, dim), dy, z, false);
	}
	spend(l, MATMULS);
}

/* Computes the same in the same order with dense matmuls, without router and permutation. */
static void dense(struct layer *l)
{
	const struct kernels *k = l->d->k;
	dense_matmuls(l, FORWARD_13);
	k->expert_act_fwd(l->d, ACT_SWIGLU, l->a, l->ab);
	spend(l, ACTIVATION);
	dense_matmuls(l, FORWARD_2);
	dense_matmuls(l, BACKWARD_2);
	k->expert_act_bwd(l->d, ACT_SWIGLU, l->ab, l->z, l->dgates.p, l->z, l->ab,
		l->gates.p, NULL, 1);
	spend(l, ACTIVATION);
	dense_matmuls(l, BACKWARD_13);
	dense_matmuls(l, LEAF_13);
	dense_matmuls(l, LEAF_2);
	widen_leaves(l);
}

static void measure(struct layer *l, const char *head, int rounds)
{
	static const char *const names[] = {
		"route", "order", "combine", "matmuls", "activation", "leaves"};
	double best[2] = {INFINITY, INFINITY}, parts[2][N_PARTS] = {0};
	for (int r = 0; r < rounds; r++)
		for (int is_dense = 0; is_dense < 2; is_dense++) {
			double begin = l->since = seconds();
			memset(l->spent, 0, sizeof(l->spent));
			if (is_dense) {
				dense(l);
			} else {
				forward(l);
				backward(l);
			}
			double spent = seconds() - begin;
			if (spent < best[is_dense])
				memcpy(parts[is_dense], l->spent, sizeof(l->spent));
			best[is_dense] = fmin(best[is_dense], spent);
		}
	for (enum part p = ROUTE; p < N_PARTS; p++)
		printf("%s %-10s %8.3f %8.3f\n", head, names[p], 1e3 * parts[0][p],
			1e3 * parts[1][p]);
	printf("%s %-10s %8.3f %8.3f %.3f\n", head, "all", 1e3 * best[0], 1e3 * best[1],
		best[0] / best[1]);
	(void)fflush(stdout);
}

int main(int argc, char **argv)
{
	static const struct {
		int64_t rows, dim, f, experts, k;
	} shapes[] = {
		{4096, 384, 768, 8, 2}, {4096, 384, 384, 32, 4}, {2048, 768, 1792, 8, 2}};
	int rounds = argc > 1 ? atoi(argv[1]) : 7;
	struct device d;
	device_open_cpu(&d, 1);

	for (size_t s = 0; s < ARRAY_LEN(shapes); s++)
		for (int type = DT_F32; type <= DT_BF16; type++) {
			struct layer l = {.d = &d};
			char head[80];
			init_layer(&l, shapes[s].rows, shapes[s].dim, shapes[s].f,
				shapes[s].experts, shapes[s].k, (enum dtype)type);
			(void)snprintf(head, sizeof(head), "%lldx%lld %lld/%lld %s %lld",
				(long long)shapes[s].dim, (long long)shapes[s].f,
				(long long)shapes[s].experts, (long long)shapes[s].k,
				dtype_table[type].name, (long long)shapes[s].rows);
			measure(&l, head, rounds);
			free_layer(&l);
		}
	device_close(&d);
	return 0;
}

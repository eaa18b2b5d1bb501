/*
 * The CPU's matmuls of experts, in one thread, beside the dense ones with as many rows and one weight, in turns.
 *   bench_experts [ROUNDS]   lines "SHAPE TYPE ROWS NAME GROUPED DENSE RATIO": rows of each expert, GFLOP/s
 * The processor's time of the fastest round counts, which other programs disturb less.
 */
#include "kernels/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { EXPERTS = 8 };

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct mat random_mat(
	struct device *d, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = mat_typed(NULL, rows, cols, type), wide = mat(NULL, rows, cols);
	m.p = device_alloc(d, (size_t)mat_bytes(m)); /* in huge pages, as in training */
	wide.p = xcalloc(1, (size_t)mat_bytes(wide));
	for (int64_t i = 0; i < rows * cols; i++)
		((float *)wide.p)[i] =
			(float)(hash_mix((uint64_t)i) % 1000) / 1000 - 0.5f;
	if (type == DT_F32)
		memcpy(m.p, wide.p, (size_t)mat_bytes(m));
	else
		d->k->narrow(d, m.p, wide, type);
	free(wide.p);
	return m;
}

/* The operands of the grouped and of the dense matmuls. */
struct work {
	struct mat x, dy, w, dense_w, y, dx, dw, dense_dw;
	struct row_groups groups;
	struct group_leaf leaves[EXPERTS];
};

enum which { FORWARD, BACKWARD_X, BACKWARD_W, N_WHICH };

static void run(struct device *d, struct work *t, enum which which, bool dense)
{
	const struct mat none = {0};
	if (which == FORWARD && dense)
		d->k->linear_fwd(d, t->y, t->x, t->dense_w, none);
	else if (which == FORWARD)
		d->k->groups_fwd(d, t->y, t->x, t->w, &t->groups);
	else if (which == BACKWARD_X && dense)
		d->k->linear_bwd_x(d, t->dx, t->dy, t->dense_w, false);
	else if (which == BACKWARD_X)
		d->k->groups_bwd_x(d, t->dx, t->dy, t->w, &t->groups);
	else if (dense)
		d->k->linear_bwd_w(d, t->dense_dw, t->dy, t->x, false);
	else
		d->k->groups_bwd_w(d, t->leaves, EXPERTS, t->dy, t->x, &t->groups);
}

static void measure(struct device *d, struct work *t, const char *head, int rounds)
{
	static const char *const names[] = {"forward", "backward_x", "backward_w"};
	double flops = 2 * (double)mat_size(t->x) * (double)t->y.cols;
	for (enum which w = FORWARD; w < N_WHICH; w++) {
		double best[2] = {INFINITY, INFINITY};
		for (int r = 0; r < rounds; r++) {
			for (int dense = 0; dense < 2; dense++) {
				int calls = 1 + (int)(4e8 / flops);
				double begin = seconds();
				for (int i = 0; i < calls; i++)
					run(d, t, w, dense);
				best[dense] =
					fmin(best[dense], (seconds() - begin) / calls);
			}
		}
		printf("%s %-10s %6.1f %6.1f %.2f\n", head, names[w],
			1e-9 * flops / best[0], 1e-9 * flops / best[1],
			best[1] / best[0]);
		(void)fflush(stdout);
	}
}

static void bench(struct device *d, int64_t dim, int64_t out, int64_t n, enum dtype type,
	int rounds)
{
	int32_t offsets[EXPERTS + 1];
	char head[80];
	int64_t rows = EXPERTS * n;
	struct work t = {.x = random_mat(d, rows, dim, type),
		.dy = random_mat(d, rows, out, type),
		.w = random_mat(d, EXPERTS * out, dim, type),
		.y = random_mat(d, rows, out, type),
		.dx = random_mat(d, rows, dim, type),
		.dw = random_mat(d, EXPERTS * out, dim, type),
		.groups = {offsets, EXPERTS, 1}};
	t.dense_w = mat_rows(t.w, 0, out);
	t.dense_dw = mat_rows(t.dw, 0, out);
	for (int e = 0; e <= EXPERTS; e++)
		offsets[e] = (int32_t)(e * n);
	for (int e = 0; e < EXPERTS; e++)
		t.leaves[e] =
			(struct group_leaf){mat_rows(t.dw, e * out, out), NULL, e, 0};
	(void)snprintf(head, sizeof(head), "%lldx%lld %s %5lld", (long long)out,
		(long long)dim, dtype_table[type].name, (long long)n);
	measure(d, &t, head, rounds);
	struct mat all[] = {t.x, t.dy, t.w, t.y, t.dx, t.dw};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		device_free(d, all[i].p, (size_t)mat_bytes(all[i]));
}

int main(int argc, char **argv)
{
	static const int64_t rows[] = {1024, 256, 64, 16},
			     shapes[][2] = {{384, 1536}, {2048, 1536}};
	int rounds = argc > 1 ? atoi(argv[1]) : 7;
	struct device d;
	device_open_cpu(&d, 1);
	for (size_t s = 0; s < ARRAY_LEN(shapes); s++)
		for (int type = DT_F32; type <= DT_BF16; type++)
			for (size_t i = 0; i < ARRAY_LEN(rows); i++)
				bench(&d, shapes[s][0], shapes[s][1], rows[i],
					(enum dtype)type, rounds);
	device_close(&d);
	return 0;
}

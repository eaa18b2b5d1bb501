/* The planning device counts the FLOPs of matmuls and attention. */
#include "tests/support/support.h"
#include "parallel/store.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static struct mat shape(int64_t rows, int64_t cols)
{
	return mat(NULL, rows, cols);
}

TEST(products)
{
	struct device d;
	struct mat x = shape(5, 7), y = shape(5, 11), w = shape(11, 7);
	device_open_plan(&d, DEVICE_CPU);
	d.k->linear_fwd(&d, y, x, w, shape(1, 11));
	assert_true(d.flops == 2 * 5 * 7 * 11);
	d.k->linear_bwd_x(&d, x, y, w, false);
	assert_true(d.flops == 4 * 5 * 7 * 11);
	d.k->linear_bwd_w(&d, w, y, x, false);
	assert_true(d.flops == 6 * 5 * 7 * 11);
	d.k->linear_row(&d, y, x, w, shape(1, 11));
	assert_true(d.flops == 8 * 5 * 7 * 11);
}

/* Experts: each row counts once, whatever group it is in; leaves as if groups had equally many rows. */
TEST(experts)
{
	enum { ROWS = 24, IN = 7, OUT = 11, E = 4, PER = 2, K = 2 };
	struct device d;
	const struct mat h = shape(ROWS, IN), x = shape(K * ROWS, IN),
			 y = shape(K * ROWS, OUT);
	const struct mat w = shape(E * OUT, IN), wr = shape(E, IN), dz = shape(ROWS, E);
	const struct router how = {.experts = E, .per_row = K, .seq_rows = ROWS};
	const struct row_groups groups = {NULL, E * PER, PER};
	struct group_leaf leaves[E * PER];
	double once = 2 * ROWS * IN * E, product = 2 * K * ROWS * IN * OUT;
	device_open_plan(&d, DEVICE_CPU);
	d.k->route_fwd(
		&d, NULL, shape(ROWS, K), NULL, NULL, h, wr, NULL, shape(0, 0), &how);
	d.k->route_bwd(&d, dz, NULL, shape(ROWS, K), NULL, shape(ROWS, K), NULL, h, wr,
		&how, NULL);
	d.k->route_bwd_x(&d, h, dz, wr);
	d.k->route_bwd_w(&d, wr, dz, h);
	assert_true(d.flops == 4 * once);
	d.k->groups_fwd(&d, y, x, w, &groups);
	d.k->groups_bwd_x(&d, x, y, w, &groups);
	assert_true(d.flops == 4 * once + 2 * product);
	for (int i = 0; i < E * PER; i++)
		leaves[i] = (struct group_leaf){.dw = shape(OUT, IN), .group = i};
	d.k->groups_bwd_w(&d, leaves, E * PER, y, x, &groups);
	assert_near(d.flops, 4 * once + 3 * product, 0);
}

/* The FLOPs of causal attention over all pairs of chunks are those of whole sequences, with windows, too. */
TEST(attention)
{
	enum { BATCH = 3, HEADS = 4, DIM = 5 };
	static const int64_t windows[] = {0, 1, 2, 9, 14, 30, 200};
	for (int64_t c = 0; c < 6 * (int64_t)ARRAY_LEN(windows); c++) {
		int n = 1 + (int)c % 6;
		struct chunks cut = {.n = n, .local = n, .context = n > 1 ? 14 * n : 13};
		int64_t window = windows[c / 6];
		double visible = 0;
		for (int64_t i = 1; i <= cut.context; i++)
			visible +=
				(double)(BATCH * HEADS * (window ? min64(i, window) : i));
		struct attn a = {.batch = BATCH,
			.heads = HEADS,
			.kv_heads = 2,
			.dim = DIM,
			.window = window};
		struct mat none = shape(0, 0);
		struct device forward, backward;
		int64_t len;
		device_open_plan(&forward, DEVICE_CPU);
		device_open_plan(&backward, DEVICE_CPU);
		a.q_rows = a.k_rows = cut.context / n;
		for (int i = 0; i < n * n; i++) {
			chunk_runs(&cut, i / n, a.q_first, &len);
			chunk_runs(&cut, i % n, a.k_first, &len);
			forward.k->attn_fwd(&forward, &a, none, NULL, NULL, none, none,
				none, false, false);
			backward.k->attn_bwd(&backward, &a, none, none, none, NULL, none,
				none, NULL, none, none, none, false);
		}
		assert_near(forward.flops, visible * 2 * 2 * DIM, 0);
		assert_near(backward.flops, visible * 5 * 2 * DIM, 0);
	}
}

/* A kernel takes the longer time of its FLOPs and of its bytes. */
TEST(times)
{
	struct device d;
	struct device_speed speed = {
		.flops = {[DT_F32] = 1, [DT_BF16] = 10, [DT_E4M3] = 100}, .memory = 2};
	struct mat x = mat_typed(NULL, 50, 70, DT_BF16), y = x, w = x;
	device_open_plan(&d, DEVICE_CUDA);
	d.k->add(&d, shape(3, 5), shape(3, 5), shape(3, 5)); /* takes no time yet */
	d.speed = &speed;
	w.rows = y.cols = 110;
	d.k->linear_fwd(&d, y, x, w, shape(0, 0));
	double seconds = 2. * 50 * 70 * 110 / 10;
	assert_near(speed.seconds, seconds, 1e-9 * seconds);
	x.type = w.type = DT_E4M3;
	d.k->linear_fwd(&d, y, x, w, shape(0, 0));
	/* 100 times as fast as it was in fp32, and memory is the limit */
	seconds += (2. * 50 * 110 + 50 * 70 + 110 * 70) / 2;
	assert_near(speed.seconds, seconds, 1e-9 * seconds);
	d.k->add(&d, shape(3, 5), shape(3, 5), shape(3, 5));
	seconds += 3 * 60. / 2;
	assert_near(speed.seconds, seconds, 1e-9 * seconds);
	d.k->embed_fwd(&d, shape(3, 5), shape(1000, 5), NULL, 0, false);
	seconds += 2 * 60. / 2; /* some rows of the table */
	assert_near(speed.seconds, seconds, 1e-9 * seconds);
	const struct update_part part = {.n = 10, .copy = shape(0, 0)};
	d.k->adamw(&d, &part, 1, NULL);
	seconds += 3 * 40. / 2; /* no moments */
	assert_near(speed.seconds, seconds, 1e-9 * seconds);
	static int64_t here;
	static float there;
	const struct grid_part parts[] = {
		{.leaf = &there}, {.sum = &here}, {.leaf = &there}};
	d.k->grid_sum(&d,
		&(struct grid_sum){
			.rounded = &there, .parts = parts, .n_parts = 3, .n = 10},
		NULL);
	seconds += (40. + 80 + 40 + 40) / 2;
	assert_near(speed.seconds, seconds, 1e-9 * seconds);
	d.k->grid_sum(&d,
		&(struct grid_sum){
			.sum = &here, .add = true, .parts = parts, .n_parts = 1, .n = 10},
		NULL);
	seconds += (40. + 80 + 80) / 2; /* a sum that is read and written */
	assert_near(speed.seconds, seconds, 1e-9 * seconds);
	d.k->grid_sum(&d,
		&(struct grid_sum){.sum = &here,
			.parts = parts,
			.n_parts = 1,
			.leaf_type = DT_BF16,
			.n = 10},
		NULL);
	seconds += (20. + 80) / 2;
	assert_near(speed.seconds, seconds, 1e-9 * seconds);
}

/* The last tile of a group is half full: 100 rows take as long as 132, and 10 as long as 64. A leaf
 * has tiles of 32 terms. */
TEST(times_of_groups)
{
	const int rows[] = {100, 10}, padded[] = {132, 64}, terms[] = {116, 32};
	for (int i = 0; i < 2; i++) {
		struct device d;
		struct device_speed speed = {
			.flops = {[DT_F32] = 1}, .memory = 1e9, .experts = 0.5};
		struct row_groups groups = {.n = 3, .per_block = 1};
		struct mat x = shape(3 * rows[i], 70), y = shape(3 * rows[i], 110);
		struct group_leaf leaf = {.dw = shape(110, 70)};
		device_open_plan(&d, DEVICE_CUDA);
		d.speed = &speed;
		d.k->groups_fwd(&d, y, x, shape(3 * 110, 70), &groups);
		double seconds = 2 * 2. * 3 * padded[i] * 70 * 110;
		assert_near(speed.seconds, seconds, 1e-9 * seconds);
		assert_near(d.flops, 2. * 3 * rows[i] * 70 * 110, 0);
		d.k->groups_bwd_w(&d, &leaf, 1, y, x, &groups);
		seconds += 2 * 2. * terms[i] * 70 * 110;
		assert_near(speed.seconds, seconds, 1e-9 * seconds);
	}
}

/* Only a few kernels take some columns of another matrix; for others it is a bug, which the plan of a
 * run finds. */
TEST(columns)
{
	enum { HEADS, ALL, SUMS, N };
	for (int how = HEADS; how < N; how++) {
		struct device d;
		struct mat x = shape(4, 16), some = mat_cols(x, 8, 4);
		int status;
		pid_t pid = fork();
		device_open_plan(&d, DEVICE_CUDA);
		if (pid == 0) {
			signal(SIGABRT, SIG_DFL); /* it is cmocka's */
			if (!freopen("/dev/null", "w", stderr))
				_exit(1);
			if (how == HEADS)
				d.k->rope(&d, some, 4, shape(4, 4), NULL, 1);
			else
				d.k->bias_bwd(&d, shape(1, 4), how == ALL ? x : some);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (how < SUMS)
			assert_int_equal(status, 0);
		else
			assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	}
}

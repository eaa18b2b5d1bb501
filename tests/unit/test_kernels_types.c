/* Calls of kernels in all types, against float64.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/trials.h"

#include <stdlib.h>

/* Of each kernel, in fp32; a result in 16 bits may lose no more before it is rounded to them. Of the fused ones,
 * whose reference is the CPU's separate kernels, what the self-test allows. */
static const double errors[N_KERNELS] = {
	[KERNEL_embed_fwd] = 1e-7,
	[KERNEL_embed_bwd] = 3e-6,
	[KERNEL_bias_fwd] = 1e-7,
	[KERNEL_bias_bwd] = 1.5e-6,
	[KERNEL_norm_fwd] = 3e-6,
	[KERNEL_norm_bwd_x] = 3e-6,
	[KERNEL_norm_bwd_w] = 3e-6,
	[KERNEL_head_norm_fwd] = 3e-6,
	[KERNEL_head_norm_bwd_x] = 3e-6,
	[KERNEL_head_norm_bwd_w] = 3e-6,
	[KERNEL_rope] = 6e-7,
	[KERNEL_act_fwd] = 5e-7,
	[KERNEL_act_bwd] = 1e-6,
	[KERNEL_add] = 1e-7,
	[KERNEL_sub] = 1e-7,
	[KERNEL_axpby] = 2e-7,
	[KERNEL_dropout] = 2e-7,
	[KERNEL_residual] = 5e-7,
	[KERNEL_residual_norm] = 5e-6,
	[KERNEL_norm_bwd] = 5e-6,
	[KERNEL_xent_stats] = 2e-6,
	[KERNEL_xent_join] = 2e-6,
	[KERNEL_xent_bwd] = 4e-6,
	[KERNEL_xent_fused] = 5e-6,
};

static void check(struct kernel_call c)
{
	assert_true(errors[c.kernel] > 0);
	check_call(c, reference_64(), (struct tolerance){errors[c.kernel], 0, true});
}

/* ---- all kernels ------------------------------------------------------------------------- */

static void check_layers(int64_t rows, int64_t cols, enum dtype type)
{
	const struct kernel_calls *calls = calls_of_layers(rows, cols, type);
	for (int64_t i = 0; i < calls->n; i++)
		check(calls->calls[i]);
}

/* Rows of whole packs of 8 and of 4, and others; rows for a warp, and for a block. */
DEVICE_TEST(layers)
{
	static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {17, 64}, {5, 100}, {33, 131},
		{201, 36}, {150, 259}, {2, 1536}, {2, 2501}, {1, 9000}};
	for (enum dtype type = DT_F32; type <= DT_F16; type++)
		for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
			check_layers(shapes[i][0], shapes[i][1], type);
}

/* More rows than one partial sum has, and more columns than a block at once. */
DEVICE_TEST(long_sums)
{
	check_layers(1003, 264, DT_BF16);
	check_layers(9000, 3, DT_F16);
	check_layers(1, 17000, DT_F32);
}

/* ---- what has more shapes ------------------------------------------------------------------ */

DEVICE_TEST(rope)
{
	enum { POSITIONS = 50 };
	static const int64_t dims[] = {2, 8, 30, 64, 128};
	for (size_t i = 0; i < 3 * ARRAY_LEN(dims); i++) {
		int64_t dim = dims[i / 3], rows = pick(1, 90), cols = dim * pick(1, 5);
		for (int back = 0; back < 2; back++)
			check((struct kernel_call){KERNEL_rope,
				.m = {shape(rows, cols, (enum dtype)(i % 3)),
					shape(POSITIONS, dim, DT_F32)},
				.n = {dim, back}});
	}
}

/* Heads of the sizes of models, and of others; sums of gradients are fp32 or of the type of x, and dx is of any. */
DEVICE_TEST(head_norm)
{
	static const int64_t dims[] = {2, 10, 16, 24, 64, 80, 128, 200, 256};
	for (size_t i = 0; i < 6 * ARRAY_LEN(dims); i++) {
		int64_t dim = dims[i / 6], rows = pick(1, 90), cols = dim * pick(1, 5);
		enum dtype type = i % 3, up = i % 2 ? type : DT_F32, to = (i + i / 3) % 3;
		struct mat x = shape(rows, cols, type), dy = shape(rows, cols, up);
		struct mat dx = shape(rows, cols, to), gamma = shape(1, dim, DT_F32);
		check((struct kernel_call){KERNEL_head_norm_fwd, .m = {x, x, gamma}});
		check((struct kernel_call){
			KERNEL_head_norm_bwd_x, .m = {dx, dy, x, gamma}});
		dx.stride = cols + 8 * pick(1, 4) + pick(0, 1);
		check((struct kernel_call){
			KERNEL_head_norm_bwd_x, .m = {dx, dy, x, gamma}});
		check((struct kernel_call){KERNEL_head_norm_bwd_w, .m = {gamma, dy, x}});
	}
	for (enum dtype type = DT_F32; type <= DT_F16; type++) { /* several runs */
		const struct mat x = shape(3001, 24, type);
		check((struct kernel_call){
			KERNEL_head_norm_bwd_w, .m = {shape(1, 8, DT_F32), x, x}});
	}
}

/* A slice of a table, which lacks some of the ids. */
DEVICE_TEST(embed)
{
	for (int i = 0; i < 24; i++) {
		int64_t n = pick(1, 200), cols = pick(1, 200), slice = pick(1, 40);
		const struct mat w = shape(slice, cols, DT_F32),
				 y = shape(n, cols, DT_F32);
		check((struct kernel_call){KERNEL_embed_fwd, .m = {y, w}});
		check((struct kernel_call){KERNEL_embed_fwd, .m = {y, w}, .n = {1}});
		check((struct kernel_call){KERNEL_embed_bwd, .m = {w, y}});
	}
}

/* Rare tokens, and tokens too frequent for a single block. */
DEVICE_TEST(embed_often)
{
	static const int64_t sizes[][3] = {/* rows, tokens, cols */
		{900, 65, 40}, {3000, 3, 30}, {5000, 700, 260}, {2500, 1, 7},
		{6000, 2, 1}};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		check((struct kernel_call){KERNEL_embed_bwd,
			.m = {shape(sizes[i][1], sizes[i][2], DT_F32),
				shape(sizes[i][0], sizes[i][2], DT_F32)}});
}

/* ---- matmuls ------------------------------------------------------------------------------- */

static bool is_byte(enum dtype type)
{
	return dtype_bytes(type) == 1;
}

/* To the precision of the result's type, to which a bias may be cast and a GPU's library a sum; and, for fp8, of the matrix units of sm_90, which accumulate fp8
 * products with 14 bits (DeepSeek-V3, 2024, 3.3.2). */
static void check_matmul(struct kernel_call c)
{
	const struct device *d = test_device();
	const bool casts = c.m[0].type != DT_F32 && (c.m[3].p || d->discrete);
	struct tolerance allowed = {3e-6, casts, true};
	if (is_byte(c.m[1].type) && d->discrete)
		allowed.exact = 2e-3;
	check_call(c, reference_64(), allowed);
}

/* Shapes that suit matrix units, and others, with tails, several tiles, and single rows. */
static const struct matmul {
	int64_t n, in, out;
	bool bias, scaled;
	int transposed; /* fp8: not, too, or only */
} matmuls[] = {
	{64, 32, 48}, {16, 64, 16, .bias = true}, {33, 17, 50, .bias = true},
	{1, 8, 24, .bias = true}, {40, 1, 1}, {1, 1, 1}, {1, 300, 257, .bias = true},
	{33, 1000, 20}, {64, 32, 48, .scaled = true}, {33, 17, 50, .scaled = true},
	{32, 64, 48, .scaled = true, .bias = true},
	{33, 17, 50, .scaled = true, .bias = true},
	{48, 64, 32, .scaled = true, .transposed = 1},
	{64, 48, 32, .scaled = true, .transposed = 2},
	{33, 17, 50, .scaled = true, .transposed = 2},
	{530, 70, 600}, /* more than a tile of 512 each way */
};

static struct mat operand(const struct matmul *c, int64_t rows, int64_t cols,
	enum dtype type, bool over_rows)
{
	struct mat m = shape(rows, cols, type);
	if (c->scaled)
		m = with_scale(m);
	if (over_rows && c->transposed && is_byte(type))
		m = with_transposed(m, c->transposed == 2);
	return m;
}

static void check_types(
	const struct matmul *c, enum dtype left, enum dtype right, enum dtype result)
{
	const struct mat x = operand(c, c->n, c->in, left, false),
			 dy = operand(c, c->n, c->out, left, false),
			 w = operand(c, c->out, c->in, right, false),
			 bias = shape(1, c->out, (enum dtype)pick(0, DT_F16)),
			 dw = shape(c->out, c->in, DT_F32);
	struct kernel_call forward = {
		KERNEL_linear_fwd, .m = {shape(c->n, c->out, result), x, w}};
	const bool add =
		pick(0, 1) && (result == DT_F32 || (result == left && !c->scaled));
	if (c->bias)
		forward.m[3] = bias;
	check_matmul(forward);
	if (left == DT_F32 && result == DT_F32 && bias.type == DT_F32 && !c->scaled) {
		forward.kernel = KERNEL_linear_row;
		check_matmul(forward);
	}
	check_matmul((struct kernel_call){KERNEL_linear_bwd_x,
		.m = {shape(c->n, c->in, result), dy,
			operand(c, c->out, c->in, right, true)},
		.n = {add}});
	check_matmul((struct kernel_call){KERNEL_linear_bwd_w,
		.m = {dw, operand(c, c->n, c->out, left, true),
			operand(c, c->n, c->in, right, true)},
		.n = {add && !c->scaled}}); /* with a scale it is no one sum */
	if (left == right && dtype_bytes(left) == 2 && !c->scaled)
		check_matmul((struct kernel_call){
			KERNEL_linear_bwd_w, .m = {shape(c->out, c->in, left), dy, x}});
}

static void each_type(const struct matmul *c)
{
	for (enum dtype left = 0; left <= DT_E5M2; left++)
		for (enum dtype right = 0; right <= DT_E5M2; right++)
			for (enum dtype result = 0; result <= DT_F16; result++)
				if (left == right || (is_byte(left) && is_byte(right)))
					check_types(c, left, right, result);
}

DEVICE_TEST(matmul)
{
	for (size_t i = 0; i < ARRAY_LEN(matmuls); i++)
		each_type(&matmuls[i]);
	for (int i = 0; i < 4; i++) {
		const struct matmul some = {
			pick(1, 90), pick(1, 90), pick(1, 90), .bias = i % 2};
		each_type(&some);
	}
}

int main(void)
{
	/* The emulated GPU would protect the memory of the trials, 64 MiB, before and after each of thousands of
	 * kernels: nine tenths of the time. That the host leaves it alone is seen where test_selftest makes trials. */
	setenv("PT_EMU_GUARD", "no", 0);
	return run_on_device();
}

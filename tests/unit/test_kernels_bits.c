/* Every kernel gives the same bits each time, on any number of threads, and on any instruction set.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/trials.h"

#include <math.h>
#include <string.h>

/* Every matrix is large enough for several threads (PARALLEL_FROM of the CPU), and has tails. */
enum { ROWS = 301, COLS = 211, N = ROWS * COLS };

/* A CPU with one thread and the narrowest instructions; of a GPU, itself. */
static struct device *reference(void)
{
	static struct device d;
	static struct arena scratch;
	if (test_on_cuda())
		return test_device();
	if (!d.k) {
		test_device_reopen("sse2", 1);
		d = *test_device();
		test_device_reopen(NULL, 0);
		arena_init(&scratch, "scratch", (size_t)64 << 20);
		d.scratch = &scratch;
	}
	return &d;
}

static void check_calls(const struct kernel_calls *calls, bool tried[N_KERNELS])
{
	for (int64_t i = 0; i < calls->n; i++) {
		tried[calls->calls[i].kernel] = true;
		for (int threads = 1; threads <= (test_on_cuda() ? 1 : 3); threads++) {
			test_device_reopen(NULL, threads);
			check_call(calls->calls[i], reference(), same_bits);
		}
	}
	test_device_reopen(NULL, 0);
}

DEVICE_TEST(every_kernel)
{
	/* see below; linear_xent is recorded as linear_fwd and xent_fused */
	bool tried[N_KERNELS] = {
		[KERNEL_find_nonfinite] = true, [KERNEL_linear_xent] = true};
	check_calls(calls_of_layers(ROWS, COLS, DT_F32), tried);
	check_calls(calls_of_matmuls(ROWS, COLS), tried);
	check_calls(calls_of_tensors(ROWS, COLS), tried);
	check_calls(calls_of_experts(ROWS, COLS, DT_F32), tried);
	check_calls(calls_of_attention(), tried);
	for (int i = 0; i < N_KERNELS; i++)
		if (!tried[i])
			fail_msg("no call of kernel %d", i);
}

/* ---- what no trial has: a hash of all results ---------------------------------------- */

/* Where numbers are finite. */
static uint64_t finite_hash(struct mat m)
{
	float *x = m.p;
	for (int64_t i = 0; i < mat_size(m); i++)
		x[i] = isfinite(x[i]);
	return hash_of(m);
}

/* The probabilities that a causal mask makes 0 meet an infinite value, and an infinite gradient. */
static uint64_t attn_infinite_hash(struct device *d)
{
	enum { BATCH = 3, SEQ = 150, HEADS = 4, KV_HEADS = 2, DIM = 24, AT = 29 };
	const struct attn a = {
		.batch = BATCH,
		.heads = HEADS,
		.kv_heads = KV_HEADS,
		.dim = DIM,
		.q_rows = SEQ,
		.k_rows = SEQ,
		.q_first = {75, 225}, /* the first of two chunks, and itself */
		.k_first = {75, 225},
		.scale = 0.3f,
		.drop = {.key = {{1, 2}}, .p = 0.1f, .step = counter(0)},
	};
	int64_t n = BATCH * SEQ, q = HEADS * DIM, kv = KV_HEADS * DIM;
	struct mat o = mat_blank(n, q), max = mat_blank(n, HEADS),
		   sum = mat_blank(n, HEADS);
	struct mat v = seeded(n, kv, 3), dout = seeded(n, q, 5);
	struct mat dq = seeded(n, q, 1), dk = seeded(n, kv, 2), dv = seeded(n, kv, 3);
	struct mat delta = mat_blank(n, HEADS), lse = seeded(n, HEADS, 4);
	((float *)v.p)[AT * kv] = INFINITY;
	((float *)dout.p)[AT * q] = INFINITY;
	d->k->attn_fwd(
		d, &a, o, max.p, sum.p, seeded(n, q, 1), seeded(n, kv, 2), v, true, true);
	d->k->attn_bwd(d, &a, dq, dk, dv, delta.p, dout, seeded(n, q, 6), lse.p,
		seeded(n, q, 7), seeded(n, kv, 8), seeded(n, kv, 9), true);
	return finite_hash(o) ^ finite_hash(dq) ^ hash_mix(finite_hash(dk)) ^
	       hash_mix(finite_hash(dv) + 1);
}

/* Casts of floats of all magnitudes to every format. */
static uint64_t run_round(struct device *d)
{
	uint64_t hash = 0;
	struct mat x = mat_blank(ROWS, COLS), y = mat_blank(ROWS, COLS);
	for (int64_t i = 0; i < N; i++) {
		uint32_t bits = (uint32_t)i * 67601u;
		memcpy((float *)x.p + i, &bits, sizeof(bits));
	}
	for (int type = DT_F32; type <= DT_E5M2; type++) {
		d->k->round(d, y, x, type, 0.7f);
		hash = hash_mix(hash + hash_of(y));
	}
	return hash;
}

/* Casts of floats of all magnitudes to 16 bits, and back. */
static uint64_t both_ways(struct device *d, enum dtype type, uint64_t *narrow)
{
	uint16_t *packed = shorts(N);
	struct mat x = mat_blank(ROWS, COLS), y = mat_blank(ROWS, COLS);
	for (int64_t i = 0; i < N; i++) {
		uint32_t bits = (uint32_t)i * 67601u;
		memcpy((float *)x.p + i, &bits, sizeof(bits));
	}
	d->k->narrow(d, packed, x, type);
	d->k->widen(d, y, packed, type);
	*narrow = hash_bytes(packed, N * sizeof(*packed), 0);
	return hash_of(y);
}

static uint64_t run_narrow(struct device *d)
{
	uint64_t bf16, fp16;
	both_ways(d, DT_BF16, &bf16);
	both_ways(d, DT_F16, &fp16);
	return bf16 ^ hash_mix(fp16);
}

static uint64_t run_widen(struct device *d)
{
	uint64_t unused;
	return both_ways(d, DT_BF16, &unused) ^ hash_mix(both_ways(d, DT_F16, &unused));
}

static uint64_t run_exact_sum(struct device *d)
{
	struct exact *x = exact_zero();
	d->k->exact_sum(d, x, seeded(ROWS, COLS, 1).p, N);
	return hash_bytes(x, sizeof(*x), 0);
}

static uint64_t run_exact_sumsq(struct device *d)
{
	struct exact *x = exact_zero();
	const struct mat m = seeded(ROWS, COLS, 1);
	d->k->exact_sumsq(d, x, &m, 1);
	return hash_bytes(x, sizeof(*x), 0);
}

static const struct sliced in_three = {ROWS, COLS / 3 * 3, 3};

static uint64_t run_muon_normalize(struct device *d)
{
	struct mat x = mat_blank(ROWS, in_three.cols), from = seeded(ROWS, COLS, 1);
	struct exact *squares = exact_zero();
	d->k->exact_sumsq(d, squares, &from, 1);
	d->k->muon_normalize(d, x, from.p, &in_three, squares);
	return hash_of(x);
}

static uint64_t run_muon_unpack(struct device *d)
{
	struct mat to = mat_blank(ROWS, in_three.cols);
	d->k->muon_unpack(d, to.p, seeded(ROWS, COLS, 1), &in_three);
	return hash_of(to);
}

static uint64_t run_find_nonfinite(struct device *d)
{
	struct mat x = seeded(ROWS, COLS, 1);
	for (int64_t i = N / 3; i < N; i += 100)
		((float *)x.p)[i] = NAN;
	return (uint64_t)d->k->find_nonfinite(d, x);
}

static const struct kernel_run {
	const char *name;
	uint64_t (*run)(struct device *);
} runs[] = {
	{"attention to what is infinite", attn_infinite_hash},
	{"round, all sizes", run_round},
	{"narrow, all sizes", run_narrow},
	{"widen, all sizes", run_widen},
	{"exact_sum, all bits", run_exact_sum},
	{"exact_sumsq, all bits", run_exact_sumsq},
	{"muon_normalize, large", run_muon_normalize},
	{"muon_unpack, large", run_muon_unpack},
	{"find_nonfinite", run_find_nonfinite},
};

DEVICE_TEST(others)
{
	for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
		test_device_reopen(NULL, 1);
		uint64_t want = runs[i].run(reference());
		for (int threads = 1; threads <= 3; threads++) {
			test_device_reopen(NULL, threads);
			if (runs[i].run(d) != want)
				fail_msg("%s: other bits on %d threads", runs[i].name,
					threads);
		}
		assert_int_equal(memory_end(NULL), 0);
	}
	test_device_reopen(NULL, 0);
}

/* e^x in xent_bwd, and the activations, on floats of all magnitudes. */
static uint64_t run_functions(struct device *d)
{
	enum { STEP = 4099, WIDE = 1024 };
	int64_t rows = (UINT32_MAX / STEP) / WIDE;
	struct mat x = mat_blank(rows, WIDE), one = mat_blank(rows, WIDE),
		   y = mat_blank(rows, WIDE);
	struct mat lse = mat_blank(1, rows);
	int32_t *none = ints(rows);
	for (int64_t i = 0; i < rows * WIDE; i++) {
		uint32_t bits = (uint32_t)i * STEP;
		float *to = (float *)x.p + i;
		memcpy(to, &bits, sizeof(bits));
		*to = isfinite(*to) ? *to : 0;
		((float *)one.p)[i] = 1;
	}
	for (int64_t i = 0; i < rows; i++)
		none[i] = WIDE; /* no column is the target */
	d->k->zero(d, lse);
	uint64_t hash = 0;
	for (int kind = 0; kind < 3; kind++) {
		d->k->act_fwd(d, kind, y, x, one);
		hash = hash_mix(hash + hash_of(y));
	}
	d->k->xent_bwd(d, x, lse.p, none, 0, WIDE, (struct xent_terms){0}, scalar(1));
	return hash_mix(hash + hash_of(x));
}

DEVICE_TEST(functions)
{
	only_on_cpu();
	assert_true(run_functions(d) == run_functions(reference()));
}

int main(void)
{
	return run_on_device();
}

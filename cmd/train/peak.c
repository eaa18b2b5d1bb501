/* The peak FLOP/s that MFU divides by. */
#include "train/train_internal.h"

/* Returns a matrix [n][n] of small integers, rounded to `type`, in the arena. */
static struct mat make_operand(
	struct device *d, struct arena *a, int64_t n, enum dtype type)
{
	struct mat x = mat_alloc(a, n, n, type);
	scoped_ptr float *values = xmalloc((size_t)(n * n) * sizeof(*values));
	for (int64_t i = 0; i < n * n; i++)
		values[i] = (float)(i % 7);
	struct mat fp32 = mat_alloc(a, n, n, DT_F32);
	device_put(d, fp32.p, values, (size_t)mat_bytes(fp32));
	d->k->round(d, x, fp32, type, 1);
	return x;
}

static int64_t gemm_bytes(int64_t n)
{
	return n * n * (int64_t)sizeof(float) * 5 + 4096;
}

/* Returns the FLOP/s of n x n x n GEMMs, the best of a few. Restores the device's peak of
 * memory. */
static double measure_gemms(struct device *d, enum dtype type, int64_t n)
{
	struct arena a;
	double best = 0;
	int64_t peak_bytes = d->peak_bytes; /* the run's, without this measurement */
	device_arena_init(d, &a, "a matmul", (size_t)gemm_bytes(n));
	struct mat x = make_operand(d, &a, n, type), w = make_operand(d, &a, n, type);
	struct mat y = mat_alloc(&a, n, n, type);
	/* (for a while, since other programs may disturb a few GEMMs) */
	const double min_secs = 0.1, begun_at = clock_seconds();
	for (int i = 0; i < 4 || clock_seconds() - begun_at < min_secs; i++) {
		device_wait(d);
		double begin = clock_seconds();
		d->k->linear_fwd(d, y, x, w, (struct mat){0});
		device_wait(d);
		double rate = 2.0 * (double)(n * n * n) / (clock_seconds() - begin);
		best = rate > best ? rate : best;
	}
	device_arena_release(d, &a);
	d->peak_bytes = peak_bytes;
	return best;
}

/* Measures with GEMMs that take 5 ms or more, as far as the free memory allows. */
static double measure_peak(struct device *d, enum dtype type)
{
	const double min_secs = 5e-3;
	double rate = 0;
	int64_t used, free_bytes;
	device_memory(d, &used, &free_bytes);
	for (int64_t n = 512; n <= 8192; n *= 2) {
		if (free_bytes && gemm_bytes(n) > free_bytes / max64(1, d->sharers))
			break;
		rate = measure_gemms(d, type, n);
		if (2.0 * (double)(n * n * n) / rate > min_secs)
			break;
	}
	return rate;
}

double peak_flops(const struct train_opts *o, struct device *d)
{
	enum dtype type = options_gemm_dtype(o);
	double peak = 0;
	bool measure = o->peak_flops && !strcmp(o->peak_flops, "measure");
	if (o->peak_flops && !measure)
		parse_double(o->peak_flops, &peak);
	else if (d->discrete && !measure)
		peak = device_peak(d, type);
	if (measure || (d->discrete && peak <= 0))
		peak = measure_peak(d, type);
	return peak;
}

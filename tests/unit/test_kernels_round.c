/* Casts to lower-precision formats, against all numbers of a format and against float64; amax.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "kernels/normal.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A format, as its standard defines it. */
static const struct format {
	const char *name;
	enum dtype type;
	int exponent, fraction; /* bits */
	double largest;
	bool infinity;
} formats[] = {
	{"bf16", DT_BF16, 8, 7, 0x1.fep127, true},
	{"fp16", DT_F16, 5, 10, 65504, true},
	{"e4m3", DT_E4M3, 4, 3, 448, false},
	{"e5m2", DT_E5M2, 5, 2, 57344, false},
};

/* The number of a pattern without a sign: its exponent and fraction, decoded. */
static double number(const struct format *f, int pattern)
{
	int bias = (1 << (f->exponent - 1)) - 1;
	int e = pattern >> f->fraction, m = pattern & ((1 << f->fraction) - 1);
	if (!e)
		return ldexp(m, 1 - bias - f->fraction);
	return ldexp((1 << f->fraction) + m, e - bias - f->fraction);
}

/* Which pattern is the largest number? */
static int last_pattern(const struct format *f)
{
	int pattern = 0;
	while (number(f, pattern) < f->largest)
		pattern++;
	assert_true(number(f, pattern) == f->largest);
	return pattern;
}

struct cases {
	struct mat x, want;
	int64_t n;
};

static struct cases cases_begin(int64_t room)
{
	return (struct cases){mat_blank(1, room), mat_blank(1, room), 0};
}

/* Both signs. */
static void add_case(struct cases *c, float x, double want)
{
	BUG_ON(c->n + 2 > c->x.cols);
	for (int sign = 0; sign < 2; sign++, c->n++) {
		((float *)c->x.p)[c->n] = sign ? -x : x;
		((float *)c->want.p)[c->n] = (float)(sign ? -want : want);
	}
}

static void check_cases(struct device *d, const struct format *f, struct cases *c)
{
	struct mat x = mat(c->x.p, 1, c->n), y = mat_blank(1, c->n);
	d->k->round(d, y, x, f->type, 1);
	check_bits(f->name, y.p, c->want.p, c->n);
	d->k->round(d, x, x, f->type, 1); /* in place: rounded numbers do not change */
	check_bits(f->name, x.p, c->want.p, c->n);
	d->k->round(d, y, x, f->type, 1);
	check_bits(f->name, y.p, c->want.p, c->n);
}

/* Each number of a format and its neighbouring floats, and the midpoint to the next number, which
 * rounds to even, and its neighbouring floats. */
DEVICE_TEST(every_number)
{
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		const struct format *f = &formats[i];
		int last = last_pattern(f);
		struct cases c = cases_begin(12 * ((int64_t)last + 1));
		for (int p = 0; p < last; p++) {
			double low = number(f, p), high = number(f, p + 1);
			float middle = (float)((low + high) / 2);
			assert_true((double)middle == (low + high) / 2);
			add_case(&c, (float)low, low);
			add_case(&c, nextafterf((float)low, INFINITY), low);
			add_case(&c, nextafterf(middle, 0), low);
			add_case(&c, middle, p % 2 ? high : low);
			add_case(&c, nextafterf(middle, INFINITY), high);
			add_case(&c, nextafterf((float)high, 0), high);
		}
		check_cases(d, f, &c);
	}
}

DEVICE_TEST(beyond_the_largest)
{
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		const struct format *f = &formats[i];
		int last = last_pattern(f);
		double beyond = f->infinity ? (double)INFINITY : f->largest;
		double step = f->largest - number(f, last - 1);
		float edge = (float)(f->largest + step / 2);
		struct cases c = cases_begin(20);
		add_case(&c, (float)f->largest, f->largest);
		add_case(&c, nextafterf(edge, 0), f->largest);
		add_case(&c, edge, beyond);
		add_case(&c, nextafterf(edge, INFINITY), beyond);
		add_case(&c, FLT_MAX, beyond);
		add_case(&c, INFINITY, beyond);
		check_cases(d, f, &c);
	}
}

DEVICE_TEST(no_number_stays_none)
{
	static const uint32_t nans[] = {
		0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff, 0x7fa00000};
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		struct mat x = mat_blank(1, 100), y = mat_blank(1, 100);
		for (int64_t j = 0; j < 100; j++)
			((float *)x.p)[j] = float_of(nans[j % 6]);
		d->k->round(d, y, x, formats[i].type, 1);
		for (int64_t j = 0; j < 100; j++)
			assert_true(isnan(((float *)y.p)[j]));
	}
}

/* All patterns of 16 bits: `widen` gives the standard's value, and `narrow` the pattern again; NaN
 * gives some NaN. */
DEVICE_TEST(every_pattern_of_16_bits)
{
	enum { N = 1 << 16 };
	uint16_t *all = shorts(N), *back = shorts(N);
	for (int i = 0; i < N; i++)
		all[i] = (uint16_t)i;
	for (int i = 0; i < 2; i++) {
		const struct format *f = &formats[i];
		int infinity = last_pattern(f) + 1;
		struct mat x = mat_blank(1, N), y = mat_blank(1, N);
		d->k->widen(d, x, all, f->type);
		for (int p = 0; p < N; p++) {
			float v = ((float *)x.p)[p];
			int size = p & 0x7fff;
			assert_int_equal(signbit(v) != 0, p >> 15);
			if (size > infinity)
				assert_true(isnan(v));
			else if (size == infinity)
				assert_true(isinf(v));
			else
				assert_true(fabs((double)v) == number(f, size));
		}
		d->k->narrow(d, back, x, f->type);
		for (int p = 0; p < N; p++) {
			if ((p & 0x7fff) > infinity)
				assert_true((back[p] & 0x7fff) > infinity);
			else
				assert_int_equal(back[p], p);
		}
		d->k->round(d, y, x, f->type, 1);
		d->k->widen(d, x, back, f->type);
		check_bits(f->name, x.p, y.p, N);
	}
}

/* widen(narrow(x)) has the bits of round(x). */
DEVICE_TEST(narrow_rounds)
{
	static const int64_t sizes[] = {1, 15, 16, 17, 1000, 100003};
	for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
		for (int i = 0; i < 2; i++) {
			int64_t n = sizes[s];
			enum dtype type = formats[i].type;
			struct mat x = mat_blank(1, n), y = mat_blank(1, n);
			uint16_t *packed = shorts(n);
			for (int64_t j = 0; j < n; j++) {
				double u = test_uniform(s + 90, j);
				((float *)x.p)[j] =
					j % 2 ? float_of((uint32_t)(u * 4294967296.0))
					      : ldexpf((float)u - 0.5f,
							(int)(j % 50) - 32);
			}
			d->k->narrow(d, packed, x, type);
			d->k->widen(d, y, packed, type);
			d->k->round(d, x, x, type, 1);
			check_bits(formats[i].name, y.p, x.p, n);
		}
}

/* v rounded to the format, with the spacing that follows from the exponent of v. */
static double reference(const struct format *f, double v)
{
	int bias = (1 << (f->exponent - 1)) - 1, e;
	if (isnan(v))
		return v;
	frexp(v, &e);
	int least = 1 - bias;
	double step = ldexp(1, (e - 1 > least ? e - 1 : least) - f->fraction);
	double y = isinf(v) ? v : nearbyint(v / step) * step;
	if (fabs(y) <= f->largest)
		return y;
	return copysign(f->infinity ? (double)INFINITY : f->largest, v);
}

/* Floats of all magnitudes, times a scale: one multiplication in fp32, then the cast. */
DEVICE_TEST(floats_of_all_sizes)
{
	enum { N = 100003 };
	static const float scales[] = {1, 0.37f, 4096, 0x1p-12f, 4.48e14f, 1e-30f};
	for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
		for (size_t s = 0; s < ARRAY_LEN(scales); s++) {
			struct mat x = mat_blank(1, N), y = mat_blank(1, N),
				   want = mat_blank(1, N);
			for (int64_t j = 0; j < N; j++) {
				double u = test_uniform(s + 10 * i, j);
				float v = float_of((uint32_t)(u * 4294967296.0));
				v = isnan(v) ? 0 : v;
				float scaled = v * scales[s];
				((float *)x.p)[j] = v;
				((float *)want.p)[j] =
					(float)reference(&formats[i], (double)scaled);
			}
			d->k->round(d, y, x, formats[i].type, scales[s]);
			check_bits(formats[i].name, y.p, want.p, N);
		}
	}
}

/* fp32 is not cast, only scaled. */
DEVICE_TEST(fp32_is_scaled)
{
	struct twin x = twin_random(33, 7, 1);
	struct mat y = mat_blank(33, 7);
	d->k->round(d, y, x.f, DT_F32, 0.3f);
	for (int64_t i = 0; i < mat_size(y); i++)
		assert_true(((float *)y.p)[i] == ((float *)x.f.p)[i] * 0.3f);
}

DEVICE_TEST(maximum)
{
	static const int64_t sizes[] = {1, 2, 15, 16, 17, 1000, 50021, 140003};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct mat x = mat_blank(1, sizes[i]);
		float *p = x.p, most = 0;
		fill_normal(p, sizes[i], 1);
		for (int64_t j = 0; j < sizes[i]; j++)
			most = fmaxf(most, fabsf(p[j]));
		assert_true(amax_of(d, x) == most);
		struct mat rest = mat(p + 1, 1, sizes[i] - 1); /* unaligned */
		assert_true(fmaxf(fabsf(*p), rest.cols ? amax_of(d, rest) : 0) == most);
		int64_t at = pick(0, sizes[i] - 1);
		p[at] = -1e30f;
		assert_true(amax_of(d, x) == 1e30f);
		p[at] = -INFINITY;
		assert_true(amax_of(d, x) == INFINITY);
		p[pick(0, sizes[i] - 1)] = float_of(0xff800001); /* a NaN with a sign */
		assert_true(isnan(amax_of(d, x)));
	}
	struct mat zero = mat_blank(3, 5);
	d->k->zero(d, zero);
	((float *)zero.p)[4] = -0.0f;
	assert_true(bits_of(amax_of(d, zero)) == 0);
}

/* amax becomes the largest of the rounded numbers and its old value. */
DEVICE_TEST(maximum_of_what_is_rounded)
{
	static const int64_t sizes[] = {1, 17, 1000, 50021};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		for (enum dtype type = DT_F32; type <= DT_E5M2; type++) {
			struct mat x = twin_random(1, sizes[i], 1).f;
			struct mat y = mat_blank(1, sizes[i]);
			y.amax = scalar(0);
			d->k->round(d, y, x, type, 0.37f);
			float most = amax_of(d, y);
			assert_true(*y.amax == most);
			d->k->round(d, y, x, type, 0.1f);
			assert_true(*y.amax == most);
			((float *)x.p)[sizes[i] / 2] = NAN;
			d->k->round(d, y, x, type, 1);
			assert_true(isnan(*y.amax));
		}
	}
}

/* round_scaled maps amax to the largest number of the format, with the scale as computed in fp64;
 * also for an amax of 0, infinity and NaN. */
DEVICE_TEST(scaled_casts)
{
	enum { N = 1000 };
	static const float most[] = {1, 3.7f, 1e-30f, 0, 1e20f, NAN, INFINITY};
	for (enum dtype type = DT_E4M3; type <= DT_E5M2; type++) {
		const double largest = type == DT_E4M3 ? 448 : 57344;
		for (size_t i = 0; i < ARRAY_LEN(most); i++) {
			struct mat x = mat_blank(1, N), y = mat_blank(1, N),
				   want = mat_blank(1, N);
			float amax = most[i], *inverse = scalar(0);
			for (int64_t j = 0; j < N; j++)
				((float *)x.p)[j] =
					amax * (float)test_uniform((uint64_t)i, j);
			((float *)x.p)[N - 1] = -amax;
			float *found = scalar(amax / 2); /* the larger counts */
			d->k->amax(d, found, x);
			assert_true(isnan(amax) ? isnan(*found) : *found == amax);
			double least = amax < 1e-12f ? 1e-12 : (double)amax;
			float scale = (float)(largest / least);
			d->k->round_scaled(d, y, inverse, x, type, found);
			d->k->round(d, want, x, type, scale);
			float back = 1 / scale;
			check_bits("inverse", inverse, &back, 1);
			check_bits("round_scaled", y.p, want.p, N);
			if (i < 2)
				assert_true(((float *)y.p)[N - 1] == (float)-largest);
		}
	}
}

/* All bytes of e4m3; narrow_scaled gives the byte again, and round_scaled the same numbers before and
 * after the two casts. */
DEVICE_TEST(bytes_of_e4m3)
{
	enum { N = 1001, BYTES = 256, NOT_A_NUMBER = 0x7f };
	static const float most[] = {448, 1, 3.7f, 0.1f, 1e-9f, 0, 1e20f};
	const struct format *f = &formats[2];
	uint8_t *all = (uint8_t *)shorts(BYTES), *back = (uint8_t *)shorts(N);
	struct mat x = mat_blank(1, N), y = mat_blank(1, N), want = mat_blank(1, N);
	float *inverse = scalar(0);
	for (int i = 0; i < BYTES; i++)
		all[i] = (uint8_t)i;
	d->k->widen_scaled(d, mat(y.p, 1, BYTES), all, scalar(448));
	d->k->narrow_scaled(d, back, mat(y.p, 1, BYTES), scalar(448));
	for (int i = 0; i < BYTES; i++) {
		float v = ((float *)y.p)[i];
		int size = i & 0x7f;
		assert_int_equal(size == NOT_A_NUMBER ? back[i] & 0x7f : back[i],
			size == NOT_A_NUMBER ? NOT_A_NUMBER : i);
		assert_true(size == NOT_A_NUMBER
				    ? isnan(v)
				    : (double)v == (i >> 7 ? -1 : 1) * number(f, size));
	}
	for (size_t i = 0; i < ARRAY_LEN(most); i++) {
		float *amax = scalar(most[i]);
		for (int64_t j = 0; j < N; j++)
			((float *)x.p)[j] =
				most[i] * ldexpf((float)test_uniform(i + 7, j) * 2 - 1,
						  (int)(-j % 20));
		((float *)x.p)[N / 2] = most[i];
		d->k->round_scaled(d, want, inverse, x, DT_E4M3, amax);
		d->k->narrow_scaled(d, back, x, amax);
		d->k->widen_scaled(d, x, back, amax);
		d->k->round_scaled(d, y, inverse, x, DT_E4M3, amax);
		check_bits("numbers", y.p, want.p, N);
	}
}

int main(void)
{
	return run_on_device();
}

/* Optimizers: their kernels, and Muon's orthogonal matrices, against plain loops in float64.
 * isa: sse2 avx2 avx512
 * device: cpu cuda
 */
#include "tests/support/device.h"
#include "tests/support/kernels_ref.h"
#include "optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 40000 }; /* enough for threads */

/* ---- element by element --------------------------------------------------------------- */

/* torch.optim.SGD, without dampening. */
static void ref_sgd(double *p, double *m, const double *g, int64_t n,
	const struct update *o, double decay, double rate)
{
	double momentum = (double)o->momentum;
	for (int64_t i = 0; i < n; i++) {
		double grad = g[i] * (double)o->grad_scale + decay * p[i];
		if (momentum > 0) {
			m[i] = momentum * m[i] + grad;
			grad = o->nesterov ? grad + momentum * m[i] : m[i];
		}
		p[i] -= (double)o->lr * rate * grad;
	}
}

DEVICE_TEST(sgd)
{
	enum { RATE = 3 };
	static const struct update some[] = {
		{.lr = 0.1f, .grad_scale = 1},
		{.lr = 0.1f, .momentum = 0.9f, .grad_scale = 0.3f},
		{.lr = 0.1f, .momentum = 0.8f, .nesterov = true, .grad_scale = 1},
	};
	static const int64_t sizes[] = {5, 15, 16, 1003, LARGE + 7};
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		for (size_t j = 0; j < ARRAY_LEN(sizes); j++) {
			int64_t n = sizes[j], k = n / 3;
			struct twin p = twin_random(1, n, 1), m = twin_blank(1, n);
			bool has_m = some[i].momentum > 0;
			d->k->zero(d, m.f);
			for (int step = 0; step < 5; step++) {
				struct twin g = twin_random(1, n, 1);
				float *pf = p.f.p, *mf = m.f.p, *gf = g.f.p;
				const struct update_part parts[] = {
					{.p = pf,
						.m = has_m ? mf : NULL,
						.g = gf,
						.n = k,
						.decay = 0.1f,
						.rate = RATE},
					{.p = pf + k,
						.m = has_m ? mf + k : NULL,
						.g = gf + k,
						.n = n - k,
						.decay = 0.1f,
						.rate = RATE}};
				d->k->sgd(d, parts, ARRAY_LEN(parts),
					there(&some[i], sizeof(some[i])));
				ref_sgd(p.r, m.r, g.r, n, &some[i], (double)0.1f, RATE);
			}
			twin_check("sgd, p", p, 1e-6);
			twin_check("sgd, m", m, 1e-6);
		}
}

/* The momentum, in place of the gradient, and the update with it. */
DEVICE_TEST(muon_rows)
{
	for (int nesterov = 0; nesterov < 2; nesterov++) {
		const struct update o = {.lr = 0.1f,
			.momentum = 0.95f,
			.nesterov = nesterov,
			.grad_scale = 0.3f};
		int64_t n = LARGE + 7;
		struct twin p = twin_random(1, n, 1), m = twin_random(1, n, 1),
			    g = twin_random(1, n, 1);
		const struct update_part before = {
			.p = g.f.p, .m = m.f.p, .g = g.f.p, .n = n};
		const struct update_part after = {
			.p = p.f.p, .g = g.f.p, .n = n, .decay = 0.1f, .rate = 3};
		d->k->muon_momentum(d, &before, 1, there(&o, sizeof(o)));
		d->k->muon_update(d, &after, 1, there(&o, sizeof(o)));
		for (int64_t i = 0; i < n; i++) {
			double grad = g.r[i] * (double)o.grad_scale;
			double keep = (double)o.momentum;
			m.r[i] = keep * m.r[i] + (1 - keep) * grad;
			g.r[i] = nesterov ? keep * m.r[i] + (1 - keep) * grad : m.r[i];
			p.r[i] -= (double)o.lr * ((double)0.1f * p.r[i] + 3 * g.r[i]);
		}
		twin_check("muon, m", m, 1e-6);
		twin_check("muon, momentum", g, 1e-6);
		twin_check("muon, p", p, 1e-6);
	}
}

/* A step whose end was bad changes neither parameters nor state. */
DEVICE_TEST(off)
{
	const struct update o = {
		.lr = 0.1f, .momentum = 0.9f, .grad_scale = 1, .off = true};
	struct mat p = twin_random(1, LARGE, 1).f, m = twin_random(1, LARGE, 1).f;
	struct mat was_p = mat_blank(1, LARGE), was_m = mat_blank(1, LARGE);
	const struct update_part part = {.p = p.p,
		.m = m.p,
		.g = twin_random(1, LARGE, 1).f.p,
		.n = LARGE,
		.rate = 1};
	d->k->copy(d, was_p, p);
	d->k->copy(d, was_m, m);
	d->k->sgd(d, &part, 1, there(&o, sizeof(o)));
	d->k->muon_momentum(d, &part, 1, there(&o, sizeof(o)));
	d->k->muon_update(d, &part, 1, there(&o, sizeof(o)));
	check_bits("off, p", p.p, was_p.p, LARGE);
	check_bits("off, m", m.p, was_m.p, LARGE);
}

/* Copies are what the parameters are, rounded. */
DEVICE_TEST(copies)
{
	enum { N = 1003 };
	const struct update o = {.lr = 0.1f, .grad_scale = 1};
	struct mat p = twin_random(1, N, 1).f;
	for (int i = 0; i < 2; i++) {
		struct mat copy = mat_typed(shorts(N), 1, N, DT_BF16);
		const struct update_part part = {.p = p.p,
			.g = twin_random(1, N, 1).f.p,
			.copy = copy,
			.n = N,
			.rate = 1};
		(i ? d->k->muon_update : d->k->sgd)(d, &part, 1, there(&o, sizeof(o)));
		struct mat want = stored(p, DT_BF16);
		device_wait(d);
		assert_memory_equal(copy.p, want.p, N * sizeof(uint16_t));
	}
}

/* ---- matrices ---------------------------------------------------------------------------- */

static const struct sliced shapes[] = {{8, 8, 1}, {5, 17, 1}, {17, 5, 1}, {24, 96, 1},
	{24, 96, 4}, {96, 24, 3}, {130, 65, 5}};

/* Element (row, col) of the matrix in slices. */
static int64_t place(const struct sliced *s, int64_t row, int64_t col)
{
	int64_t width = s->cols / s->slices;
	return (col / width * s->rows + row) * width + col % width;
}

DEVICE_TEST(normalize)
{
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		const struct sliced *s = &shapes[i];
		int64_t n = s->rows * s->cols, r = min64(s->rows, s->cols);
		struct twin in = twin_random(s->rows * s->slices, s->cols / s->slices, 3);
		struct twin x = twin_blank(r, n / r), back = twin_blank(1, n);
		struct exact *squares = exact_zero();
		double sum = 0;
		d->k->exact_sumsq(d, squares, &in.f, 1);
		d->k->muon_normalize(d, x.f, in.f.p, s, squares);
		d->k->muon_unpack(d, back.f.p, x.f, s);
		for (int64_t k = 0; k < n; k++)
			sum += in.r[k] * in.r[k];
		for (int64_t row = 0; row < s->rows; row++)
			for (int64_t col = 0; col < s->cols; col++) {
				double v = in.r[place(s, row, col)] / sqrt(sum);
				x.r[s->rows > s->cols ? col * s->rows + row
						      : row * s->cols + col] = v;
				back.r[place(s, row, col)] = v;
			}
		twin_check("muon_normalize", x, 1e-6);
		twin_check("muon_unpack", back, 1e-6);
	}
}

DEVICE_TEST(axpby)
{
	struct twin y = twin_random(1, LARGE + 7, 1), x = twin_random(1, LARGE + 7, 1);
	d->k->axpby(d, y.f, 2.5f, x.f, -0.75f);
	for (int64_t i = 0; i < LARGE + 7; i++)
		y.r[i] = 2.5 * x.r[i] - 0.75 * y.r[i];
	twin_check("axpby", y, 1e-6);
}

/* The eigenvalues of a symmetric matrix [n, n], by Jacobi's rotations; a is overwritten. */
static void eigenvalues(double *a, int64_t n, double *out)
{
	for (int sweep = 0; sweep < 30; sweep++)
		for (int64_t p = 0; p < n; p++)
			for (int64_t q = p + 1; q < n; q++) {
				if (fabs(a[p * n + q]) < 1e-15)
					continue;
				double angle = 0.5 * atan2(2 * a[p * n + q],
							     a[q * n + q] - a[p * n + p]);
				double c = cos(angle), s = sin(angle);
				for (int64_t k = 0; k < n; k++) {
					double x = a[k * n + p], y = a[k * n + q];
					a[k * n + p] = c * x - s * y;
					a[k * n + q] = s * x + c * y;
				}
				for (int64_t k = 0; k < n; k++) {
					double x = a[p * n + k], y = a[q * n + k];
					a[p * n + k] = c * x - s * y;
					a[q * n + k] = s * x + c * y;
				}
			}
	for (int64_t i = 0; i < n; i++)
		out[i] = a[i * n + i];
}

/* All singular values of x [r, c], r <= c, are in [least, most]. */
static void check_singular(
	const double *x, int64_t r, int64_t c, double least, double most)
{
	double *gram = calloc((size_t)(r * r), sizeof(*gram));
	double *values = calloc((size_t)r, sizeof(*values));
	for (int64_t i = 0; i < r; i++)
		for (int64_t j = 0; j < r; j++)
			for (int64_t k = 0; k < c; k++)
				gram[i * r + j] += x[i * c + k] * x[j * c + k];
	eigenvalues(gram, r, values);
	for (int64_t i = 0; i < r; i++)
		if (!(values[i] > least * least && values[i] < most * most))
			fail_msg("a singular value of %g", sqrt(values[i]));
	free(gram);
	free(values);
}

/* Muon's rule on one matrix, with temporary memory of the device. */
static void make_whole(
	struct device *d, enum dtype type, struct twin in, const struct sliced *s)
{
	const struct optim_config c = {.kind = OPTIMIZER_MUON, .matmul = type};
	struct arena scratch, *was = d->scratch;
	device_arena_init(d, &scratch, "scratch", 1 << 20);
	d->scratch = &scratch;
	optimizers[OPTIMIZER_MUON]->matrix->whole(d, &c, in.f.p, s);
	device_wait(d);
	d->scratch = was;
	device_arena_release(d, &scratch);
}

/* Of matrices whose condition is good, within what five steps can do. */
DEVICE_TEST(orthogonal)
{
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		const struct sliced *s = &shapes[i];
		int64_t n = s->rows * s->cols, r = min64(s->rows, s->cols), w = n / r;
		struct twin in = twin_random(s->rows * s->slices, s->cols / s->slices, 3);
		double *x = calloc((size_t)n, sizeof(*x)), sum = 0;
		for (int64_t k = 0; k < n; k++)
			sum += in.r[k] * in.r[k];
		for (int64_t row = 0; row < s->rows; row++)
			for (int64_t col = 0; col < s->cols; col++)
				x[s->rows > s->cols ? col * w + row : row * w + col] =
					in.r[place(s, row, col)] / sqrt(sum);
		ref_orthogonalize(x, r, w);
		make_whole(d, DT_F32, in, s);
		for (int64_t row = 0; row < s->rows; row++)
			for (int64_t col = 0; col < s->cols; col++)
				in.r[place(s, row, col)] =
					x[s->rows > s->cols ? col * w + row
							    : row * w + col];
		twin_check("muon, orthogonal", in, 1e-4);
		if (w >= 2 * r)
			check_singular(x, r, w, 0.65, 1.25);
		free(x);
	}
}

/* Products of bfloat16, as on a GPU: still nearly orthogonal. */
DEVICE_TEST(orthogonal_bf16)
{
	enum { R = 24, C = 96 };
	const struct sliced s = {R, C, 1};
	double x[R * C];
	struct twin in = twin_random(R, C, 3);
	make_whole(d, DT_BF16, in, &s);
	for (int64_t i = 0; i < R * C; i++)
		x[i] = (double)((float *)in.f.p)[i];
	check_singular(x, R, C, 0.6, 1.3);
}

int main(void)
{
	return run_on_device();
}

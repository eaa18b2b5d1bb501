/* The self-test: matrices on both sides, copies between the sides, and the comparison. */
#include "kernels/backend.h"
#include "kernels/dtype_bits.h"
#include "kernels/selftest_trial.h"

#include <float.h>
#include <math.h>

/* Returns number i of a sequence of variance 1, nearly normal: a sum of four uniform numbers. */
static double normal_by_index(int64_t i)
{
	uint64_t h = hash_mix((uint64_t)i + 1);
	uint64_t sum = (h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48);
	const double deviation = 37837.0; /* deviation of the sum: 65536 / sqrt(3) */
	return ((double)sum - 2 * 0xffff) / deviation;
}

static void fill_random(struct trial *t, struct mat x, double scale)
{
	float *to = x.p;
	int64_t n = mat_size(x);
#pragma omp parallel for
	for (int64_t i = 0; i < n; i++)
		to[i] = (float)(scale * normal_by_index(t->n_random + i));
	t->n_random += n;
}

int64_t limit_size(int64_t n, int64_t max)
{
	enum { LINE = 128 };
	if (n <= max)
		return n;
	int64_t m = max / LINE * LINE + n % LINE;
	m -= m > max ? LINE : 0;
	return m > 0 ? m : max;
}

int64_t limit_rows(struct mat like)
{
	enum { MIN_ROWS = 16 };
	return limit_size(
		like.rows, max64(MIN_ROWS, MAX_TRIAL_ELEMENTS / max64(1, like.cols)));
}

struct mat with_rows(struct mat like, int64_t rows)
{
	like.rows = rows;
	return like;
}

/* Returns true if the kernel is a matmul, with an algorithm that depends on the whole shape. */
static bool is_matmul(enum kernel_id id)
{
	return id == KERNEL_linear_fwd || id == KERNEL_linear_row ||
	       id == KERNEL_linear_bwd_x || id == KERNEL_linear_bwd_w ||
	       id == KERNEL_linear_gelu_fwd || id == KERNEL_linear_gelu_bwd;
}

struct mat call_shape(const struct trial *t, int i)
{
	struct mat m = t->c->m[i];
	m.stride = 0;
	if (!is_matmul(t->c->kernel)) /* its algorithm depends on the columns */
		m.cols = limit_size(m.cols, MAX_TRIAL_ELEMENTS);
	return m;
}

struct mat small_shape(const struct trial *t, int i)
{
	return with_rows(call_shape(t, i), limit_rows(call_shape(t, i)));
}

/* Allocates a GPU matrix with a fence after it: NaN in every format, to spoil results if read. */
static struct mat alloc_with_fence(struct trial *t, struct mat like)
{
	char fence[FENCE_BYTES];
	struct mat m = mat_typed(NULL, like.rows, like.cols, like.type);
	size_t n_bytes = (size_t)mat_bytes(m);
	m.p = arena_alloc(t->memory[GPU], n_bytes + sizeof(fence));
	memset(fence, 0xff, sizeof(fence));
	BUG_ON(t->n_fences == MAX_FENCES);
	t->fences[t->n_fences++] = (char *)m.p + n_bytes;
	if (!t->measures)
		device_put(t->d[GPU], (char *)m.p + n_bytes, fence, sizeof(fence));
	return m;
}

/* Returns true if the kernel updates the amax of what it writes. */
static bool updates_amax(enum kernel_id id)
{
	return id == KERNEL_norm_fwd || id == KERNEL_norm_bwd ||
	       id == KERNEL_residual_norm || id == KERNEL_round || id == KERNEL_act_fwd ||
	       id == KERNEL_act_bwd;
}

/* Allocates a GPU matrix like `like` and a CPU matrix of cpu_rows x cpu_cols. */
static struct trial_pair pair_make(
	struct trial *t, struct mat like, int64_t cpu_rows, int64_t cpu_cols)
{
	struct trial_pair x = {{{.p = NULL}}};
	if (!like.p)
		return x;
	x.m[GPU] = alloc_with_fence(t, like);
	x.m[CPU] = mat_alloc(t->memory[CPU], cpu_rows, cpu_cols, DT_F32);
	t->numbers += (double)(cpu_rows * cpu_cols);
	if (like.amax && updates_amax(t->c->kernel)) {
		x.m[GPU].amax = arena_floats(t->memory[GPU], 1);
		t->d[GPU]->k->zero(t->d[GPU], mat(x.m[GPU].amax, 1, 1));
	}
	return x;
}

struct trial_pair pair_repeated(
	struct trial *t, struct mat like, int64_t rows, int64_t cols, double scale)
{
	struct trial_pair x =
		pair_make(t, like, min64(rows, like.rows), min64(cols, like.cols));
	if (x.m[CPU].p && !t->measures)
		fill_random(t, x.m[CPU], scale);
	return x;
}

struct trial_pair pair_random(struct trial *t, struct mat like, double scale)
{
	struct trial_pair x = pair_repeated(t, like, like.rows, like.cols, scale);
	pair_send(t, x);
	return x;
}

/* Makes a result with all bytes 0xff (NaN) on both sides; the CPU's has `rows` rows. */
struct trial_pair pair_blank_rows(struct trial *t, struct mat like, int64_t rows)
{
	struct trial_pair x = pair_make(t, like, rows, like.cols);
	if (!x.m[CPU].p || t->measures)
		return x;
	memset(x.m[CPU].p, 0xff, (size_t)mat_bytes(x.m[CPU]));
	for (int64_t at = 0, n = mat_bytes(x.m[GPU]), k; at < n; at += k) {
		k = min64(n - at, mat_bytes(x.m[CPU]));
		device_put(t->d[GPU], (char *)x.m[GPU].p + at, x.m[CPU].p, (size_t)k);
	}
	return x;
}

struct trial_pair pair_blank(struct trial *t, struct mat like)
{
	return pair_blank_rows(t, like, like.rows);
}

struct mat blank_with_columns(struct trial *t, struct mat like, int64_t cols)
{
	like.p = &(int){0}; /* (NULL stands for no matrix) */
	like.cols = cols;
	return pair_blank_rows(t, like, 1).m[GPU];
}

static struct mat vector_shape(int64_t n)
{
	return mat(&(int){0}, 1, n);
}

struct trial_pair pair_vector(struct trial *t, int64_t n, double scale)
{
	return pair_random(t, vector_shape(n), scale);
}

struct trial_pair pair_blank_vector(struct trial *t, int64_t n)
{
	return pair_blank(t, vector_shape(n));
}

/* Makes a vector with these bytes on both sides. */
struct trial_pair pair_bytes(struct trial *t, const void *bytes, size_t n_bytes)
{
	int64_t n = ceil_div((int64_t)n_bytes, sizeof(float));
	struct trial_pair x = pair_make(t, vector_shape(n), 1, n);
	if (t->measures)
		return x;
	memcpy(x.m[CPU].p, bytes, n_bytes);
	device_put(t->d[GPU], x.m[GPU].p, bytes, n_bytes);
	return x;
}

/* Makes n random 32-bit integers in [low, high), equal on both sides. */
struct trial_pair pair_ints(struct trial *t, int64_t n, int64_t low, int64_t high)
{
	struct trial_pair x = pair_make(t, vector_shape(n), 1, n);
	int32_t *to = x.m[CPU].p;
	if (t->measures)
		return x;
	for (int64_t i = 0; i < n; i++)
		to[i] = (int32_t)(low + (int64_t)(hash_mix((uint64_t)(t->n_random + i)) %
						  (uint64_t)(high - low)));
	pair_send(t, x);
	return x;
}

static struct mat elements_of(struct mat m, int64_t at, int64_t n)
{
	void *p = (char *)m.p + at * dtype_bytes(m.type);
	return mat_typed(p, 1, n, m.type);
}

/* Returns elements [at, at + n) of `from`, with its columns repeated to `cols` columns. */
static const float *repeat_columns(
	struct trial *t, struct mat from, int64_t cols, int64_t at, int64_t n)
{
	const float *x = from.p;
	float *to = t->staging[CPU];
	if (cols == from.cols)
		return x + at;
#pragma omp parallel for
	for (int64_t i = 0; i < n; i++)
		to[i] = x[(at + i) / cols * from.cols + (at + i) % cols % from.cols];
	return to;
}

void pair_send(struct trial *t, struct trial_pair x)
{
	struct device *d = t->d[GPU], *cpu = t->d[CPU];
	struct mat to = x.m[GPU], from = x.m[CPU];
	if (t->measures || !to.p)
		return;
	if (to.type != DT_F32)
		cpu->k->round(cpu, from, from, to.type, 1);
	for (int64_t at = 0, n = from.rows * to.cols, k; at < n; at += k) {
		k = min64(STAGED, n - at);
		struct mat part = elements_of(to, at, k);
		float *place = to.type == DT_F32 ? part.p : t->staging[GPU];
		device_put(d, place, repeat_columns(t, from, to.cols, at, k),
			(size_t)k * sizeof(float));
		if (to.type != DT_F32)
			d->k->round(d, part, mat(place, 1, k), to.type, 1);
	}
	/* repeat the rows, doubling their number each time */
	for (int64_t have = from.rows, k; have < to.rows; have += k) {
		k = min64(have, to.rows - have);
		d->k->copy(d, mat_rows(to, have, k), mat_rows(to, 0, k));
	}
}

/* Widens fp8 in place, on the host, because the only kernels that read fp8 are matmuls. */
static void widen_fp8(float *to, int64_t n, enum dtype type)
{
	const uint8_t *codes = (uint8_t *)to;
	for (int64_t i = n; i-- > 0;) /* backwards, since it is in place */
		to[i] = widen_bits(codes[i], type);
}

/* Returns elements [at, at + n) of the GPU's matrix, as fp32. */
static const float *fetch_elements(struct trial *t, struct mat m, int64_t at, int64_t n)
{
	struct device *d = t->d[GPU];
	struct mat part = elements_of(m, at, n);
	if (dtype_bytes(m.type) == 1) {
		device_get(d, t->staging[CPU], part.p, (size_t)n);
		widen_fp8(t->staging[CPU], n, m.type);
		return t->staging[CPU];
	}
	if (m.type != DT_F32) {
		d->k->round(d, mat(t->staging[GPU], 1, n), part, DT_F32, 1);
		part = mat(t->staging[GPU], 1, n);
	}
	device_get(d, t->staging[CPU], part.p, (size_t)n * sizeof(float));
	return t->staging[CPU];
}

void pair_receive(struct trial *t, struct trial_pair x)
{
	float *to = x.m[CPU].p;
	for (int64_t at = 0, n = mat_size(x.m[GPU]), k; at < n && !t->measures; at += k) {
		k = min64(STAGED, n - at);
		memcpy(to + at, fetch_elements(t, x.m[GPU], at, k),
			(size_t)k * sizeof(float));
	}
}

struct worst {
	double error; /* the largest so far; the rest describes where it is */
	int64_t row, col;
	double actual, expected;
	float largest; /* largest |element| of the GPU's matrix */
};

/* Returns x^2, or 0 for infinity: the logit of a target in another slice is -infinity, and would
 * hide the errors of other elements. */
static double finite_square(float x)
{
	return isfinite(x) ? (double)x * (double)x : 0;
}

/* Compares errors. NaN is worse than any number. */
static bool is_worse(double error, double other)
{
	return isnan(error) ? !isnan(other) : error > other;
}

/* Sets *to to the worse of the two errors, and to->largest to the larger of both. */
static void keep_worse(struct worst *to, const struct worst *w)
{
	float largest = fmaxf(to->largest, w->largest);
	if (is_worse(w->error, to->error))
		*to = *w;
	to->largest = largest;
}

/* The CPU's matrix m, with columns that the GPU's rows, from row `first` on, repeat. */
struct reference {
	struct mat m;
	int64_t cols, first; /* columns of the GPU's matrix; its first row to compare */
	const double *rms;   /* [m.rows]: row_rms() */
	double rounding;   /* relative rounding of the stored result, which is allowed */
	double min_normal; /* smallest normal number of its type */
};

/* Returns for each row the RMS of the row plus the RMS of the matrix; to be freed. */
static double *row_rms(struct mat m)
{
	double sum = 0, *each = xcalloc((size_t)m.rows, sizeof(*each));
	const float *x = m.p;
#pragma omp parallel for
	for (int64_t i = 0; i < m.rows; i++)
		for (int64_t j = 0; j < m.cols; j++)
			each[i] += finite_square(x[i * m.cols + j]);
	for (int64_t i = 0; i < m.rows; i++)
		sum += each[i];
	for (int64_t i = 0; i < m.rows; i++)
		each[i] =
			sqrt(each[i] / (double)m.cols) + sqrt(sum / (double)mat_size(m));
	return each;
}

/* Compares n GPU elements, from element `at` after the start of row r->first. The error is
 * (|x - y| - allowed rounding) / (|y| + RMS of the row + RMS of the matrix), since some rows of a
 * gradient are much smaller than others; or DBL_MIN if different bits are within the rounding. A
 * row of the GPU's matrix repeats the columns of r->m. */
static struct worst compare_elements(
	const float *x, int64_t n, const struct reference *r, int64_t at)
{
	struct worst w = {0};
	int64_t row = at / r->cols, col = at % r->cols;
	for (int64_t i = 0; i < n; i++, col++) {
		if (col == r->cols) {
			col = 0;
			row++;
		}
		const float *y = (float *)r->m.p + row * r->m.cols + col % r->m.cols;
		double size = fabs((double)*y);
		double rounding = r->rounding * fmax(size, r->min_normal);
		double error = fabs((double)x[i] - (double)*y) - rounding;
		w.largest = fmaxf(w.largest, fabsf(x[i]));
		if (error <= 0)
			error = DBL_MIN;
		else
			error /= size + r->rms[row];
		if (!memcmp(x + i, y, sizeof(*x)) || !is_worse(error, w.error))
			continue;
		w.error = error;
		w.row = r->first + row;
		w.col = col;
		w.actual = (double)x[i];
		w.expected = (double)*y;
	}
	return w;
}

/* Compares `rows` GPU rows from r->first on. A row may be longer than the staging buffer. */
static void compare_rows(struct trial *t, struct mat gpu, const struct reference *r,
	int64_t rows, struct worst *worst)
{
	enum { PART = 1 << 12 };
	scoped_ptr struct worst *each = xcalloc(STAGED / PART, sizeof(*each));
	int64_t n_elements = rows * gpu.cols;
	for (int64_t at = 0, n; at < n_elements; at += n) {
		n = min64(STAGED, n_elements - at);
		const float *actual = fetch_elements(t, gpu, r->first * gpu.cols + at, n);
		int64_t parts = ceil_div(n, PART);
#pragma omp parallel for
		for (int64_t i = 0; i < parts; i++)
			each[i] = compare_elements(actual + i * PART,
				min64(PART, n - i * PART), r, at + i * PART);
		for (int64_t i = 0; i < parts; i++)
			keep_worse(worst, &each[i]);
	}
}

/* Compares the first, middle and last repetition of the CPU's rows, and the remaining rows. */
static void compare_pair(struct trial *t, struct trial_pair x, struct worst *worst)
{
	struct mat gpu = x.m[GPU];
	int64_t rows = x.m[CPU].rows, whole = gpu.rows / rows;
	const int64_t starts[] = {0, whole / 2, whole - 1, whole};
	struct reference r = {.m = x.m[CPU], .cols = gpu.cols};
	if (t->stored && dtype_bytes(gpu.type) == 2) {
		r.rounding = (double)dtype_table[gpu.type].epsilon / 2;
		r.min_normal = (double)dtype_table[gpu.type].min_normal;
	}
	scoped_ptr double *rms = t->measures ? NULL : row_rms(r.m);
	r.rms = rms;
	for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
		if (i > 0 && starts[i] == starts[i - 1])
			continue;
		r.first = starts[i] * rows;
		int64_t n = min64(rows, gpu.rows - r.first);
		t->numbers += (double)(n * gpu.cols);
		if (!t->measures)
			compare_rows(t, gpu, &r, n, worst);
	}
}

/* Sets the trial's error: the call, the result `what`, and what was found. */
static void fail_trial(struct trial *t, const char *what, const char *finding)
{
	scoped_str text = {0};
	append_call_text(&text, t->c);
	err_set(t->e, EX_FAILED, "%s: %s: %s", text.s, what, finding);
}

void check_fences(struct trial *t)
{
	char found[FENCE_BYTES], fence[FENCE_BYTES];
	memset(fence, 0xff, sizeof(fence));
	for (int i = 0; i < t->n_fences && !t->measures && !t->e->code; i++) {
		device_get(t->d[GPU], found, t->fences[i], sizeof(found));
		if (memcmp(found, fence, sizeof(fence)))
			fail_trial(
				t, "memory", "the kernel wrote past the end of a matrix");
	}
}

/* Checks the amax that a kernel stored against the largest element that it wrote. */
static void check_amax(struct trial *t, const char *what, struct mat m, float expected)
{
	char found[160];
	float actual;
	device_get(t->d[GPU], &actual, m.amax, sizeof(actual));
	snprintf(found, sizeof(found),
		"the largest |element| is %.9g, but the kernel stored the amax %.9g",
		(double)expected, (double)actual);
	if (memcmp(&actual, &expected, sizeof(actual)))
		fail_trial(t, what, found);
}

/* Fails the trial if an error exceeds `allowed`, or a stored amax is wrong; raises t->worst. */
void trial_check_within(
	struct trial *t, const char *what, struct trial_pair x, double allowed)
{
	struct mat gpu = x.m[GPU];
	struct worst w = {0};
	char found[256];
	if (!gpu.p || !mat_size(gpu) || t->e->code)
		return;
	compare_pair(t, x, &w);
	if (t->measures)
		return;
	t->worst = fmax(t->worst, allowed > 0 ? w.error / allowed : w.error);
	snprintf(found, sizeof(found),
		"element [%lld][%lld] is %.9g on the GPU, but %.9g on the CPU: error %.2g, "
		"allowed %.2g",
		(long long)w.row, (long long)w.col, w.actual, w.expected, w.error,
		allowed);
	if (!(w.error <= allowed))
		fail_trial(t, what, found);
	else if (gpu.amax)
		check_amax(t, what, gpu, w.largest);
}

void trial_check(struct trial *t, const char *what, struct trial_pair x)
{
	trial_check_within(t, what, x, t->allowed);
}

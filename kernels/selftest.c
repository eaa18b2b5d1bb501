/* The self-test: records of calls, matrices on both sides, and the comparison. */
#include "kernels/backend.h"
#include "kernels/selftest_trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *kernel_name(enum kernel_id id)
{
#define KERNEL(type, name, ...) #name,
	static const char *const names[] = {
#include "kernels/list.h"
	};
	return names[id];
}

static void attn_text(struct str *out, const struct attn *a)
{
	str_printf(out,
		" heads %lld/%lld of %lld, rows %lld of %lld,%lld keys %lld of "
		"%lld,%lld",
		(long long)a->heads, (long long)a->kv_heads, (long long)a->dim,
		(long long)a->q_rows, (long long)a->q_first[0], (long long)a->q_first[1],
		(long long)a->k_rows, (long long)a->k_first[0], (long long)a->k_first[1]);
	if (a->start)
		str_puts(out, " documents");
}

/* Calls with equal texts are duplicates. */
static void call_text(struct str *out, const struct kernel_call *c)
{
	str_puts(out, kernel_name(c->kernel));
	for (size_t i = 0; i < ARRAY_LEN(c->m); i++) {
		const struct mat *m = &c->m[i];
		if (m->p || m->transposed)
			str_printf(out, " [%lld,%lld]%s%s%s%s%s", (long long)m->rows,
				(long long)m->cols, dtype_table[m->type].name,
				m->scale ? "*" : "", m->p ? "" : "-",
				m->transposed ? "^T" : "", m->amax ? ", amax" : "");
		else if (i + 1 < ARRAY_LEN(c->m) && m[1].p)
			str_puts(out, " -");
	}
	for (size_t i = 0; i < ARRAY_LEN(c->n); i++)
		str_printf(out, "%s%lld", i ? "," : " ", (long long)c->n[i]);
	if (c->attn.dim)
		attn_text(out, &c->attn);
	if (c->p > 0)
		str_printf(out, " dropout %g", (double)c->p);
}

void kernel_note(struct kernel_calls *x, const struct kernel_call *c)
{
	struct str text = {0};
	call_text(&text, c);
	for (int64_t i = x->n; i-- > 0;)
		if (!strcmp(x->texts[i].s, text.s)) {
			str_free(&text);
			return;
		}
	x->calls = xrealloc(x->calls, (size_t)(x->n + 1) * sizeof(*x->calls));
	x->texts = xrealloc(x->texts, (size_t)(x->n + 1) * sizeof(*x->texts));
	x->calls[x->n] = *c;
	x->texts[x->n++] = text;
}

void kernel_calls_text(const struct kernel_calls *x, struct str *out)
{
	for (int64_t i = 0; i < x->n; i++)
		str_printf(out, "%s\n", x->texts[i].s);
}

void kernel_calls_remove(struct kernel_calls *x, int64_t i)
{
	str_free(&x->texts[i]);
	x->n--;
	memmove(&x->calls[i], &x->calls[i + 1], (size_t)(x->n - i) * sizeof(*x->calls));
	memmove(&x->texts[i], &x->texts[i + 1], (size_t)(x->n - i) * sizeof(*x->texts));
}

void kernel_calls_free(struct kernel_calls *x)
{
	for (int64_t i = 0; i < x->n; i++)
		str_free(&x->texts[i]);
	free(x->calls);
	free(x->texts);
	*x = (struct kernel_calls){0};
}

/* An approximately normal number of variance 1: the sum of four uniform numbers. */
static double random_number(int64_t i)
{
	uint64_t h = hash_mix((uint64_t)i + 1);
	uint64_t sum = (h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48);
	return ((double)sum - 2 * 0xffff) / 37837.0;
}

static void fill(struct trial *t, struct mat x, double scale)
{
	float *to = x.p;
	int64_t n = mat_size(x);
#pragma omp parallel for
	for (int64_t i = 0; i < n; i++)
		to[i] = (float)(scale * random_number(t->n_random + i));
	t->n_random += n;
}

/* ---- matrices ---------------------------------------------------------------------- */

int64_t fewer(int64_t n, int64_t max)
{
	enum { LINE = 128 };
	if (n <= max)
		return n;
	int64_t m = max / LINE * LINE + n % LINE;
	m -= m > max ? LINE : 0;
	return m > 0 ? m : max;
}

int64_t fewer_rows(struct mat like)
{
	enum { ENOUGH = 1 << 20, MIN_ROWS = 64 };
	return fewer(like.rows, max64(MIN_ROWS, ENOUGH / max64(1, like.cols)));
}

struct mat with_rows(struct mat like, int64_t rows)
{
	like.rows = rows;
	return like;
}

struct mat like(const struct trial *t, int i)
{
	return t->c->m[i];
}

struct mat few(const struct trial *t, int i)
{
	return with_rows(like(t, i), fewer_rows(like(t, i)));
}

static struct pair pair_make(struct trial *t, struct mat like, int64_t cpu_rows)
{
	struct pair x = {{{.p = NULL}}};
	if (!like.p)
		return x;
	x.m[GPU] = mat_take(t->memory[GPU], like.rows, like.cols, like.type);
	x.m[CPU] = mat_take(t->memory[CPU], cpu_rows, like.cols, DT_F32);
	if (like.amax) {
		x.m[GPU].amax = arena_floats(t->memory[GPU], 1);
		t->d[GPU]->k->zero(t->d[GPU], mat(x.m[GPU].amax, 1, 1));
	}
	return x;
}

struct pair pair_repeated(struct trial *t, struct mat like, int64_t rows, double scale)
{
	struct pair x = pair_make(t, like, min64(rows, like.rows));
	if (x.m[CPU].p && !t->measures)
		fill(t, x.m[CPU], scale);
	return x;
}

struct pair pair_random(struct trial *t, struct mat like, double scale)
{
	struct pair x = pair_repeated(t, like, like.rows, scale);
	pair_send(t, x);
	return x;
}

struct pair pair_blank(struct trial *t, struct mat like)
{
	struct pair x = pair_make(t, like, like.rows);
	if (!x.m[CPU].p || t->measures)
		return x;
	memset(x.m[CPU].p, 0xff, (size_t)mat_bytes(x.m[CPU]));
	for (int64_t at = 0, n = mat_bytes(x.m[GPU]), k; at < n; at += k) {
		k = min64(n - at, mat_bytes(x.m[CPU]));
		device_put(t->d[GPU], (char *)x.m[GPU].p + at, x.m[CPU].p, (size_t)k);
	}
	return x;
}

static struct mat vector(int64_t n)
{
	return mat(&(int){0}, 1, n);
}

struct pair pair_vector(struct trial *t, int64_t n, double scale)
{
	return pair_random(t, vector(n), scale);
}

struct pair pair_blank_vector(struct trial *t, int64_t n)
{
	return pair_blank(t, vector(n));
}

struct pair pair_bytes(struct trial *t, const void *bytes, size_t n_bytes)
{
	struct pair x =
		pair_make(t, vector(ceil_div((int64_t)n_bytes, sizeof(float))), 1);
	if (t->measures)
		return x;
	memcpy(x.m[CPU].p, bytes, n_bytes);
	device_put(t->d[GPU], x.m[GPU].p, bytes, n_bytes);
	return x;
}

struct pair pair_ints(struct trial *t, int64_t n, int64_t low, int64_t high)
{
	struct pair x = pair_make(t, vector(n), 1);
	int32_t *to = x.m[CPU].p;
	if (t->measures)
		return x;
	for (int64_t i = 0; i < n; i++)
		to[i] = (int32_t)(low + (int64_t)(hash_mix((uint64_t)(t->n_random + i)) %
						  (uint64_t)(high - low)));
	pair_send(t, x);
	return x;
}

/* ---- copies between host and GPU ---------------------------------------------------- */

enum { STAGED = 1 << 22 }; /* floats in a staging buffer */

static struct mat part_of(struct mat m, int64_t at, int64_t n)
{
	void *p = (char *)m.p + at * dtype_bytes(m.type);
	return mat_typed(p, 1, n, m.type);
}

void pair_send(struct trial *t, struct pair x)
{
	struct device *d = t->d[GPU], *cpu = t->d[CPU];
	struct mat to = x.m[GPU], from = x.m[CPU];
	if (t->measures || !to.p)
		return;
	if (to.type != DT_F32)
		cpu->k->round(cpu, from, from, to.type, 1);
	for (int64_t at = 0, n = mat_size(from), k; at < n; at += k) {
		k = min64(STAGED, n - at);
		struct mat part = part_of(to, at, k);
		float *place = to.type == DT_F32 ? part.p : t->staging[GPU];
		device_put(d, place, (float *)from.p + at, (size_t)k * sizeof(float));
		if (to.type != DT_F32)
			d->k->round(d, part, mat(place, 1, k), to.type, 1);
	}
	/* repeat the rows, doubling their number each time */
	for (int64_t have = from.rows, k; have < to.rows; have += k) {
		k = min64(have, to.rows - have);
		d->k->copy(d, mat_rows(to, have, k), mat_rows(to, 0, k));
	}
}

/* The value of an fp8 code with so many fraction bits. */
static float value_of_fp8(unsigned code, int fraction_bits)
{
	int exponent = (int)(code & 0x7f) >> fraction_bits;
	int fraction = (int)(code & ((1u << fraction_bits) - 1));
	int bias = (1 << (6 - fraction_bits)) - 1;
	float x = ldexpf((float)(fraction + (exponent ? 1 << fraction_bits : 0)),
		(exponent ? exponent : 1) - bias - fraction_bits);
	return code & 0x80 ? -x : x;
}

/* On the host, because the only kernels that read fp8 are matmuls. */
static void widen_fp8(float *to, int64_t n, enum dtype type)
{
	const uint8_t *codes = (uint8_t *)to;
	for (int64_t i = n; i-- > 0;) /* backwards, since it is in place */
		to[i] = value_of_fp8(codes[i], dtype_table[type].fraction_bits);
}

/* Elements [at, at + n) of the GPU's matrix, as fp32. */
static const float *fetch(struct trial *t, struct mat m, int64_t at, int64_t n)
{
	struct device *d = t->d[GPU];
	struct mat part = part_of(m, at, n);
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

/* ---- comparing --------------------------------------------------------------------- */

struct worst {
	double error;
	int64_t row, col;
	double is, should;
	float largest; /* |number| of the GPU's */
};

/* 0 for infinity: a target's logit is -infinity if another slice has it, and would hide errors of
 * the others. */
static double square(float x)
{
	return isfinite(x) ? (double)x * (double)x : 0;
}

/* The error |x - y| / (|y| + rms of the row + rms of the matrix): some rows of a gradient are much
 * smaller than others. */
static struct worst compare_row(
	const float *x, const float *y, int64_t row, int64_t n, double rms)
{
	struct worst w = {.row = row};
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += square(y[i]);
	double both_rms = rms + sqrt(sum / (double)n);
	for (int64_t i = 0; i < n; i++) {
		double error = fabs((double)x[i] - (double)y[i]);
		w.largest = fmaxf(w.largest, fabsf(x[i]));
		if (error > 0)
			error /= fabs((double)y[i]) + both_rms;
		if (error <= w.error || !memcmp(x + i, y + i, sizeof(*x)))
			continue;
		w.error = error;
		w.col = i;
		w.is = (double)x[i];
		w.should = (double)y[i];
		if (isnan(error))
			break;
	}
	return w;
}

static double rms_of(struct mat m)
{
	double sum = 0, *each = xcalloc((size_t)m.rows, sizeof(*each));
	const float *x = m.p;
#pragma omp parallel for
	for (int64_t i = 0; i < m.rows; i++)
		for (int64_t j = 0; j < m.cols; j++)
			each[i] += square(x[i * m.cols + j]);
	for (int64_t i = 0; i < m.rows; i++)
		sum += each[i];
	free(each);
	return sqrt(sum / (double)max64(1, mat_size(m)));
}

/* Compares rows [first, first + rows) of the GPU's matrix with rows [0, rows) of the CPU's. */
static void compare_rows(struct trial *t, struct pair x, double rms, int64_t first,
	int64_t rows, struct worst *worst)
{
	struct mat gpu = x.m[GPU], cpu = x.m[CPU];
	int64_t cols = gpu.cols, max = max64(1, STAGED / max64(1, cols));
	struct worst *each = xcalloc((size_t)rows, sizeof(*each));
	BUG_ON(cols > STAGED);
	for (int64_t at = 0; at < rows; at += max) {
		int64_t n = min64(max, rows - at);
		const float *is = fetch(t, gpu, (first + at) * cols, n * cols);
		const float *should = (float *)cpu.p + at * cols;
#pragma omp parallel for
		for (int64_t i = 0; i < n; i++)
			each[at + i] = compare_row(is + i * cols, should + i * cols,
				first + at + i, cols, rms);
	}
	for (int64_t i = 0; i < rows; i++) {
		float largest = fmaxf(worst->largest, each[i].largest);
		if (!(each[i].error <= worst->error))
			*worst = each[i];
		worst->largest = largest;
	}
	free(each);
}

static void fail(struct trial *t, const char *what, const char *found)
{
	struct str text = {0};
	call_text(&text, t->c);
	err_set(t->e, EX_FAILED, "%s: %s: %s", text.s, what, found);
	str_free(&text);
}

/* Checks the amax that a kernel stored against the matrix that it wrote. */
static void check_amax(struct trial *t, const char *what, struct mat m, float should)
{
	char found[160];
	float is;
	device_get(t->d[GPU], &is, m.amax, sizeof(is));
	snprintf(found, sizeof(found),
		"the largest number is %.9g, but the kernel's amax is %.9g",
		(double)should, (double)is);
	if (memcmp(&is, &should, sizeof(is)))
		fail(t, what, found);
}

void trial_check_within(struct trial *t, const char *what, struct pair x, double allowed)
{
	struct mat gpu = x.m[GPU], cpu = x.m[CPU];
	struct worst w = {0};
	char found[256];
	if (t->measures || !gpu.p || t->e->code)
		return;
	double rms = rms_of(cpu);
	int64_t whole = gpu.rows / cpu.rows;
	int64_t starts[] = {0, whole / 2, whole - 1, whole};
	for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
		int64_t first = starts[i] * cpu.rows;
		if (i == 0 || starts[i] != starts[i - 1])
			compare_rows(
				t, x, rms, first, min64(cpu.rows, gpu.rows - first), &w);
	}
	t->worst = fmax(t->worst, allowed > 0 ? w.error / allowed : w.error);
	snprintf(found, sizeof(found),
		"element %lld, %lld is %.9g, but the CPU's is %.9g: error %.2g, allowed "
		"%.2g",
		(long long)w.row, (long long)w.col, w.is, w.should, w.error, allowed);
	if (!(w.error <= allowed))
		fail(t, what, found);
	else if (gpu.amax)
		check_amax(t, what, gpu, w.largest);
}

void trial_check(struct trial *t, const char *what, struct pair x)
{
	trial_check_within(t, what, x, t->allowed);
}

struct pair result(struct trial *t, const char *what, struct pair x)
{
	BUG_ON(t->n_results == MAX_RESULTS);
	struct result *r = &t->results[t->n_results++];
	snprintf(r->what, sizeof(r->what), "%s", what);
	r->x = x;
	return x;
}

struct pair result_vector(struct trial *t, const char *what, int64_t n)
{
	return result(t, what, pair_blank_vector(t, n));
}

void operands_with(struct trial *t, const char *names, int64_t rows)
{
	char name[sizeof(t->results[0].what)], how;
	for (int i = 0, n; sscanf(names, " %15[a-z-]%n", name, &n) == 1; i++) {
		struct mat shape = like(t, i);
		names += n;
		how = *names;
		if (shape.rows > 1)
			shape.rows = rows ? rows : fewer_rows(shape);
		if (*name != '-')
			t->m[i] = how == '!' ? pair_blank(t, shape)
					     : pair_random(t, shape, 1);
		if (how == '!' || how == '+') {
			result(t, name, t->m[i]);
			names++;
		}
	}
}

void operands(struct trial *t, const char *names)
{
	operands_with(t, names, 0);
}

int64_t rows_of(const struct trial *t, int i)
{
	return t->m[i].m[CPU].rows;
}

void trial_check_results(struct trial *t)
{
	for (int i = 0; i < t->n_results; i++)
		trial_check(t, t->results[i].what, t->results[i].x);
	t->n_results = 0;
}

/* ---- running all trials ------------------------------------------------------------- */

/* Relative; tf32's for fp32 on a device that is not exact. fp8 operands are equal on both sides, and
 * results are not rounded to fp8. */
static double rounding_of(const struct device *d, enum dtype type)
{
	if (type == DT_F32)
		return d->exact ? 0 : 0x1p-10;
	return dtype_bytes(type) == 1 ? 0x1p-7 : (double)dtype_table[type].epsilon / 2;
}

static void try_call(struct trial *t, const struct kernel_call *c)
{
	const struct tolerance *o = &tolerances[c->kernel];
	double rounding = 0;
	size_t marks[SIDES];
	for (size_t i = 0; i < ARRAY_LEN(c->m); i++)
		if (c->m[i].p)
			rounding = fmax(rounding, rounding_of(t->d[GPU], c->m[i].type));
	t->c = c;
	t->allowed = o->exact + o->roundings * rounding;
	BUG_ON(!trials[c->kernel]);
	for (enum side s = GPU; s < SIDES; s++)
		marks[s] = arena_mark(t->memory[s]);
	trials[c->kernel](t);
	for (enum side s = GPU; s < SIDES; s++)
		arena_reset(t->memory[s], marks[s]);
}

/* `round` is tested first, because pair_send() and fetch() use it. */
static void try_calls(
	struct trial *t, const struct kernel_calls *calls, struct selftest *r)
{
	for (int pass = 0; pass < 2; pass++) {
		for (int64_t i = 0; i < calls->n && !t->e->code; i++) {
			const struct kernel_call *c = &calls->calls[i];
			if ((c->kernel == KERNEL_round) != (pass == 0))
				continue;
			t->worst = 0;
			try_call(t, c);
			if (t->worst > r->worst || !r->closest) {
				r->worst = t->worst;
				r->closest = kernel_name(c->kernel);
			}
		}
	}
}

static void take_staging(struct trial *t)
{
	for (enum side s = GPU; s < SIDES; s++)
		t->staging[s] = arena_floats(t->memory[s], STAGED);
}

/* The memory that the calls need on each side. */
static void measure(const struct kernel_calls *calls, size_t n_bytes[SIDES])
{
	struct device plan;
	struct arena memory[SIDES];
	struct selftest ignored = {0};
	struct trial t = {.measures = true, .e = &(struct err){0}};
	device_plan(&plan, DEVICE_CUDA);
	for (enum side s = GPU; s < SIDES; s++) {
		arena_measure(&memory[s], "self-test");
		t.memory[s] = &memory[s];
		t.d[s] = &plan;
	}
	take_staging(&t);
	try_calls(&t, calls, &ignored);
	for (enum side s = GPU; s < SIDES; s++)
		n_bytes[s] = memory[s].peak_bytes;
}

int selftest_run(struct device *d, int threads, const struct kernel_calls *calls,
	struct selftest *r, struct err *e)
{
	enum { SCRATCH = 64 << 20 };
	struct device cpu;
	struct arena memory[SIDES], scratch;
	size_t n_bytes[SIDES];
	int64_t peak_bytes = d->peak_bytes; /* the run's peak, without the self-test */
	double begin = clock_seconds();
	*r = (struct selftest){.n_calls = calls->n};
	measure(calls, n_bytes);
	device_cpu(&cpu, threads);
	arena_init(&scratch, "scratch", SCRATCH);
	cpu.scratch = &scratch;
	device_arena(d, &memory[GPU], "the self-test", n_bytes[GPU]);
	arena_init(&memory[CPU], "the self-test", n_bytes[CPU]);
	struct trial t = {.d = {d, &cpu}, .memory = {&memory[GPU], &memory[CPU]}, .e = e};
	take_staging(&t);
	try_calls(&t, calls, r);
	device_wait(d);
	device_arena_release(d, &memory[GPU]);
	d->peak_bytes = peak_bytes;
	arena_release(&memory[CPU]);
	arena_release(&scratch);
	device_close(&cpu);
	r->seconds = clock_seconds() - begin;
	r->cpu_seconds = t.cpu_seconds;
	return e->code ? -1 : 0;
}

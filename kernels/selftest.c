/* The self-test: recording calls, and running their trials. */
#include "kernels/backend.h"
#include "kernels/selftest_trial.h"

#include <math.h>

static const char *kernel_name(enum kernel_id id)
{
#define KERNEL(type, name, ...) #name,
	static const char *const names[] = {
#include "kernels/list.h"
	};
	return names[id];
}

/* Appends the shape of an attention call: heads, rows and first positions of both chunks, mask. */
static void append_attn_text(struct str *out, const struct attn *a)
{
	str_printf(out,
		" heads %lld/%lld of %lld, rows %lld of %lld,%lld keys %lld of "
		"%lld,%lld",
		(long long)a->heads, (long long)a->kv_heads, (long long)a->dim,
		(long long)a->q_rows, (long long)a->q_first[0], (long long)a->q_first[1],
		(long long)a->k_rows, (long long)a->k_first[0], (long long)a->k_first[1]);
	if (a->start)
		str_puts(out, " documents");
	if (a->window)
		str_printf(out, " window %lld", (long long)a->window);
}

/* Appends " [rows,cols]type" and marks: * a scale, - no memory, ^T a transposed copy, amax. */
static void append_mat_text(struct str *out, const struct mat *m)
{
	str_printf(out, " [%lld,%lld", (long long)m->rows, (long long)m->cols);
	if (m->stride)
		str_printf(out, " of %lld", (long long)m->stride);
	str_printf(out, "]%s%s%s%s%s", dtype_table[m->type].name, m->scale ? "*" : "",
		m->p ? "" : "-", m->transposed ? "^T" : "", m->amax ? ", amax" : "");
}

void append_call_text(struct str *out, const struct kernel_call *c)
{
	str_puts(out, kernel_name(c->kernel));
	for (size_t i = 0; i < ARRAY_LEN(c->m); i++) {
		const struct mat *m = &c->m[i];
		if (m->p || m->transposed)
			append_mat_text(out, m);
		else if (i + 1 < ARRAY_LEN(c->m) && m[1].p)
			str_puts(out, " -");
	}
	for (size_t i = 0; i < ARRAY_LEN(c->n); i++)
		str_printf(out, "%s%lld", i ? "," : " ", (long long)c->n[i]);
	if (c->attn.dim)
		append_attn_text(out, &c->attn);
	if (c->p > 0)
		str_printf(out, " dropout %g", (double)c->p);
}

/* Adds a copy of the call to the set, unless the set has a call with an equal text. */
void kernel_calls_add(struct kernel_calls *x, const struct kernel_call *c)
{
	struct str text = {0};
	append_call_text(&text, c);
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

void kernel_calls_release(struct kernel_calls *x)
{
	for (int64_t i = 0; i < x->n; i++)
		str_free(&x->texts[i]);
	free(x->calls);
	free(x->texts);
	*x = (struct kernel_calls){0};
}

struct trial_pair add_result(struct trial *t, const char *what, struct trial_pair x)
{
	BUG_ON(t->n_results == MAX_RESULTS);
	struct trial_result *r = &t->results[t->n_results++];
	snprintf(r->what, sizeof(r->what), "%s", what);
	r->x = x;
	return x;
}

struct trial_pair add_vector(struct trial *t, const char *what, int64_t n)
{
	return add_result(t, what, pair_blank_vector(t, n));
}

/* Makes the operands in `names`: "-" none; suffix "!" a blank result, suffix "+" a random one. */
void make_operands_with_rows(struct trial *t, const char *names, int64_t rows)
{
	char name[sizeof(t->results[0].what)], suffix;
	for (int i = 0, n; sscanf(names, " %15[a-z-]%n", name, &n) == 1; i++) {
		struct mat shape = call_shape(t, i);
		names += n;
		suffix = *names;
		if (shape.rows > 1)
			shape.rows = rows ? rows : limit_rows(shape);
		if (*name != '-')
			t->m[i] = suffix == '!' ? pair_blank(t, shape)
						: pair_random(t, shape, 1);
		if (suffix == '!' || suffix == '+') {
			add_result(t, name, t->m[i]);
			names++;
		}
	}
}

void make_operands(struct trial *t, const char *names)
{
	make_operands_with_rows(t, names, 0);
}

int64_t operand_rows(const struct trial *t, int i)
{
	return t->m[i].m[CPU].rows;
}

/* Checks all results that were added, and empties their list. */
void trial_check_results(struct trial *t)
{
	for (int i = 0; i < t->n_results; i++)
		trial_check(t, t->results[i].what, t->results[i].x);
	t->n_results = 0;
}

/* Returns the relative rounding error of a type: tf32's for fp32 on a device that is not exact. fp8
 * operands are equal on both sides, and results are not rounded to fp8. */
static double rounding_error(const struct device *d, enum dtype type)
{
	if (type == DT_F32)
		return d->exact ? 0 : 0x1p-10;
	return dtype_bytes(type) == 1 ? 0x1p-7 : (double)dtype_table[type].epsilon / 2;
}

/* Runs the trial of a call, checks its fences, and gives back the memory that it used. */
void trial_run(struct trial *t, const struct kernel_call *c, const struct tolerance *o)
{
	double rounding = 0;
	size_t marks[SIDES];
	for (size_t i = 0; i < ARRAY_LEN(c->m); i++)
		if (c->m[i].p)
			rounding =
				fmax(rounding, rounding_error(t->d[GPU], c->m[i].type));
	t->c = c;
	t->allowed = o->exact + o->roundings * rounding;
	t->stored = o->stored;
	t->n_fences = 0;
	BUG_ON(!trials[c->kernel]);
	for (enum side s = GPU; s < SIDES; s++)
		marks[s] = arena_mark(t->memory[s]);
	trials[c->kernel](t);
	check_fences(t);
	for (enum side s = GPU; s < SIDES; s++)
		arena_reset(t->memory[s], marks[s]);
}

/* Runs all trials until one fails, and updates the worst error in *r. `round` is tested first,
 * because pair_send() and fetch_elements() use it. */
static void try_calls(
	struct trial *t, const struct kernel_calls *calls, struct selftest *r)
{
	for (int pass = 0; pass < 2; pass++) {
		for (int64_t i = 0; i < calls->n && !t->e->code; i++) {
			const struct kernel_call *c = &calls->calls[i];
			if ((c->kernel == KERNEL_round) != (pass == 0))
				continue;
			t->worst = 0;
			trial_run(t, c, &tolerances[c->kernel]);
			if (t->worst > r->worst || !r->closest) {
				r->worst = t->worst;
				r->closest = kernel_name(c->kernel);
			}
		}
	}
}

void trial_begin(struct trial *t)
{
	for (enum side s = GPU; s < SIDES; s++)
		t->staging[s] = arena_floats(t->memory[s], STAGED);
}

/* Measures memory and work by running the trials on planning devices. */
void selftest_measure(const struct kernel_calls *calls, struct selftest_work *w)
{
	struct device plan[SIDES];
	struct arena memory[SIDES];
	struct selftest ignored = {0};
	struct trial t = {.measures = true, .e = &(struct err){0}};
	for (enum side s = GPU; s < SIDES; s++) {
		device_open_plan(&plan[s], DEVICE_CUDA);
		arena_measure(&memory[s], "self-test");
		t.memory[s] = &memory[s];
		t.d[s] = &plan[s];
	}
	trial_begin(&t);
	try_calls(&t, calls, &ignored);
	*w = (struct selftest_work){.gpu_bytes = memory[GPU].peak_bytes,
		.cpu_bytes = memory[CPU].peak_bytes,
		.numbers = t.numbers,
		.flops = plan[CPU].flops};
}

int selftest_run(struct device *d, int threads, const struct kernel_calls *calls,
	struct selftest *r, struct err *e)
{
	enum { SCRATCH = 64 << 20 };
	struct device cpu;
	struct arena memory[SIDES], scratch;
	struct selftest_work work;
	int64_t peak_bytes = d->peak_bytes; /* the run's peak, without the self-test */
	double begin = clock_seconds();
	*r = (struct selftest){.n_calls = calls->n};
	selftest_measure(calls, &work);
	device_open_cpu(&cpu, threads);
	arena_init(&scratch, "scratch", SCRATCH);
	cpu.scratch = &scratch;
	device_arena_init(d, &memory[GPU], "the self-test", work.gpu_bytes);
	arena_init(&memory[CPU], "the self-test", work.cpu_bytes);
	struct trial t = {.d = {d, &cpu}, .memory = {&memory[GPU], &memory[CPU]}, .e = e};
	trial_begin(&t);
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

#include "tests/support/timing.h"

#include <stdlib.h>
#include <string.h>

enum { SOME = 1 << 20, ROUNDS = 7 };

static enum device_kind kind_of(const char *name)
{
	return name && !strcmp(name, "cuda") ? DEVICE_CUDA : DEVICE_CPU;
}

void timing_open(struct timing *t, int argc, char **argv, size_t bytes, size_t tiny_bytes)
{
	struct device_options o = {.exact = true};
	struct err e = {0};
	*t = (struct timing){.tiny = argc > 2 && !strcmp(argv[2], "tiny")};
	if (argc < 2 || device_open(&t->d, kind_of(argv[1]), &o, &e))
		die(EX_USAGE, "%s", argc < 2 ? "usage: DEVICE [tiny]" : e.msg);
	device_arena_init(
		&t->d, &t->memory, "what is timed", t->tiny ? tiny_bytes : bytes);
	device_arena_init(&t->d, &t->scratch, "scratch", (size_t)64 << 20);
	t->d.scratch = &t->scratch;
	t->some = xmalloc(SOME * sizeof(float));
	test_fill(t->some, SOME, 1, 1);
	t->wide = mat_alloc(&t->scratch, 1, SOME, DT_F32);
	device_put(&t->d, t->wide.p, t->some, SOME * sizeof(float));
}

void timing_close(struct timing *t)
{
	free(t->some);
	device_arena_release(&t->d, &t->scratch);
	device_arena_release(&t->d, &t->memory);
	device_close(&t->d);
}

enum dtype timing_type(const struct timing *t)
{
	return t->d.discrete ? DT_BF16 : DT_F32;
}

struct mat timing_mat(struct timing *t, int64_t rows, int64_t cols, enum dtype type)
{
	struct mat m = mat_alloc(&t->memory, rows, cols, type);
	for (int64_t at = 0; at < rows * cols; at += SOME) {
		int64_t n = min64(SOME, rows * cols - at);
		void *to = (char *)m.p + at * dtype_bytes(type);
		t->d.k->round(&t->d, mat_typed(to, 1, n, type),
			mat_typed(t->wide.p, 1, n, DT_F32), type, 1);
	}
	return m;
}

int32_t *timing_ints(struct timing *t, int64_t n, int64_t below)
{
	int32_t *here = xmalloc((size_t)n * sizeof(*here));
	int32_t *there = arena_alloc(&t->memory, (size_t)n * sizeof(*here));
	for (int64_t i = 0; i < n; i++)
		here[i] = (int32_t)(test_uniform(2, i) * (double)below);
	device_put(&t->d, there, here, (size_t)n * sizeof(*here));
	free(here);
	return there;
}

/* ---- time ------------------------------------------------------------------------- */

static double seconds_of(struct timing *t, void (*call)(struct device *, void *),
	void *what, int64_t calls)
{
	device_wait(&t->d);
	double begin = clock_seconds();
	for (int64_t i = 0; i < calls; i++)
		call(&t->d, what);
	device_wait(&t->d);
	return (clock_seconds() - begin) / (double)calls;
}

double timing_of(struct timing *t, void (*call)(struct device *, void *), void *what)
{
	double rounds[ROUNDS];
	int n = t->tiny ? 1 : ROUNDS;
	/* the first call selects an algorithm, or loads the kernel to the GPU */
	seconds_of(t, call, what, 1);
	double one = seconds_of(t, call, what, t->tiny ? 1 : 3);
	int64_t calls = t->tiny ? 1 : max64(3, (int64_t)(0.02 / (one + 1e-9)));
	for (int i = 0; i < n; i++)
		rounds[i] = seconds_of(t, call, what, min64(calls, 2000));
	return test_median(rounds, n);
}

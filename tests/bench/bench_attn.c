/*
 * Causal attention of 16,384 tokens in total: TFLOP/s, not counting masked pairs of positions.
 *   bench_attn DEVICE [tiny] [beside]
 * Prints "PASS HEAD-SIZE LENGTH TFLOP/S SECONDS" lines, and after # the times of a backward's kernels
 * (attn_delta; attn_bwd: the mean of both). beside: another stream keeps 24 multiprocessors busy, as
 * NCCL may; the passes are beside-fwd and beside-bwd.
 */
#include "tests/support/matmul_hopper.h"
#include "tests/support/timing.h"
#include "tests/bench/spin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct call {
	struct attn a;
	struct mat q, k, v, o, dout, dq, dk, dv;
	float *lse, *sum, *delta;
};

static void forward(struct device *d, void *what)
{
	struct call *c = what;
	d->k->attn_fwd(d, &c->a, c->o, c->lse, c->sum, c->q, c->k, c->v, true, true);
}

static void backward(struct device *d, void *what)
{
	struct call *c = what;
	d->k->attn_bwd(d, &c->a, c->dq, c->dk, c->dv, c->delta, c->dout, c->o, c->lse,
		c->q, c->k, c->v, true);
}

/* The kernels of a backward one by one, as comments, if the device tells them apart. */
static void kernels_of(struct timing *t, struct call *c, int dim, int length)
{
	struct str table = {0};
	device_profile_begin(&t->d);
	for (int i = 0; i < (t->tiny ? 1 : 20); i++)
		backward(&t->d, c);
	device_profile_end(&t->d, &table);
	for (char *line = table.s; line && *line;) {
		char name[32];
		double us;
		if (sscanf(line, "%31s %*d %*f %lf", name, &us) == 2)
			printf("#\t%s-%d-%d:%.2f-us-a-launch\n", name, dim, length, us);
		line += strcspn(line, "\n");
		line += *line == '\n';
	}
	str_free(&table);
}

static double time_of(struct timing *t, const struct spin *spin,
	void (*call)(struct device *, void *), struct call *c)
{
	enum { BLOCKS = 24 };
	call(&t->d, c); /* loads the kernels, which may wait for all others */
	if (spin)
		spin->begin(&t->d, BLOCKS);
	double seconds = timing_of(t, call, c);
	if (spin)
		spin->end(&t->d);
	return seconds;
}

static void measure(struct timing *t, const struct spin *spin, int64_t tokens,
	int64_t length, int64_t dim)
{
	const char *beside = spin ? "beside-" : "";
	size_t mark = arena_mark(&t->memory);
	int64_t width = t->tiny ? 2 * dim : 2048, heads = width / dim;
	int64_t batch = tokens / length, half = length / 2;
	enum dtype type = timing_type(t);
	struct call c = {.a = {.batch = batch,
				 .heads = heads,
				 .kv_heads = heads,
				 .dim = dim,
				 .q_rows = length,
				 .k_rows = length,
				 .q_first = {0, half},
				 .k_first = {0, half},
				 .scale = 1 / sqrtf((float)dim)}};
	struct mat *all[] = {&c.q, &c.k, &c.v, &c.o, &c.dout, &c.dq, &c.dk, &c.dv};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		*all[i] = timing_mat(t, tokens, width, type);
	c.lse = arena_floats(&t->memory, tokens * heads);
	c.sum = arena_floats(&t->memory, tokens * heads);
	c.delta = arena_floats(&t->memory, tokens * heads);
	/* two matmuls forward, five backward, over half of all pairs */
	double flops = (double)(batch * heads * dim) * (double)(length * length);
	double f = time_of(t, spin, forward, &c), b = time_of(t, spin, backward, &c);
	printf("%sfwd\t%d\t%d\t%.4g\t%.6g\n", beside, (int)dim, (int)length,
		2 * flops / f * 1e-12, f);
	printf("%sbwd\t%d\t%d\t%.4g\t%.6g\n", beside, (int)dim, (int)length,
		5 * flops / b * 1e-12, b);
	if (!spin)
		kernels_of(t, &c, (int)dim, (int)length);
	fflush(stdout);
	arena_reset(&t->memory, mark);
}

int main(int argc, char **argv)
{
	struct timing t;
	log_name("bench_attn");
	timing_open(&t, argc, argv, (size_t)1 << 30, (size_t)32 << 20);
	int64_t tokens = t.tiny ? 256 : 16384, first = t.tiny ? 128 : 1024;
	const struct spin *spin = NULL;
	if (!strcmp(argv[argc - 1], "beside") && !(spin = plugin_symbol(&t.d, "pt_spin")))
		die(EX_UNAVAILABLE,
			"no kernel to run beside attention; make LAB=yes has one");
	for (int64_t dim = 64; dim <= 128; dim *= 2)
		for (int64_t length = first; length <= tokens; length *= 2)
			measure(&t, spin, tokens, length, dim);
	timing_close(&t);
	stdout_close();
	return 0;
}

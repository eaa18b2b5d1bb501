/*
 * The epilogues of our own matmuls for sm_90a, next to the same matmul with a separate kernel and to
 * cuBLASLt's with a separate kernel, at the shapes of GPT-2 124M.
 *   bench_epilogues DEVICE [tiny]    lines "NAME SHAPE VALUE UNIT SECONDS OF-PEAK"; FLOPs are those of the matmul
 * Exits with 1 if an epilogue does not have the bits of the separate kernel.
 */
#include "tests/support/matmul_hopper.h"
#include "tests/support/timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Results on both sides: FUSED of the matmul alone, SEPARATE of two kernels. */
enum { FUSED, SEPARATE, SIDES };

struct call {
	const struct matmul_epilogues *own;
	enum matmul_kind kind;
	struct matmul_call c[SIDES];
	struct mat middle; /* what the separate matmul stores */
	bool vendor;	   /* cuBLASLt computes it */
};

static void fused(struct device *d, void *what)
{
	const struct call *c = what;
	if (!c->own->run(d, "epilogue", c->kind, &c->c[FUSED]))
		die(EX_USAGE, "%s has no matmuls of ours", d->name);
}

/* The plain matmul of the kind. */
static void matmul(struct device *d, const struct call *c, bool backward, struct mat bias)
{
	const struct matmul_call *m = &c->c[SEPARATE];
	struct matmul_call plain = {.y = c->middle, .x = m->x, .w = m->w, .bias = bias};
	if (!c->vendor)
		c->own->run(d, "matmul", backward ? MATMUL_BWD : MATMUL_FWD, &plain);
	else if (backward)
		d->k->linear_bwd_x(d, plain.y, plain.x, plain.w, false);
	else
		d->k->linear_fwd(d, plain.y, plain.x, plain.w, bias);
}

static void separate(struct device *d, void *what)
{
	const struct call *c = what;
	const struct matmul_call *m = &c->c[SEPARATE];
	const struct mat none = {0};
	switch (c->kind) {
	case MATMUL_GELU:
		matmul(d, c, false, m->bias);
		d->k->act_fwd(d, ACT_GELU_TANH, m->y, c->middle, none);
		return;
	case MATMUL_RESIDUAL:
		matmul(d, c, false, none);
		d->k->residual(d, m->y, m->aux, c->middle, m->bias, NULL);
		return;
	case MATMUL_XENT:
		matmul(d, c, false, none);
		c->own->softmax_tiles(d, m->tiles, c->middle, m->real);
		return;
	case MATMUL_DGELU:
	case MATMUL_DGELU_SUMS:
		matmul(d, c, true, none);
		d->k->act_bwd(d, ACT_GELU_TANH, m->y, none, c->middle, m->aux, none);
		if (c->kind == MATMUL_DGELU_SUMS)
			d->k->bias_bwd(d, m->sums, m->y);
		return;
	default:
		return;
	}
}

static void say(struct timing *t, const char *name, const char *how, const char *shape,
	void (*call)(struct device *, void *), struct call *c)
{
	const struct matmul_call *m = &c->c[FUSED];
	double peak = device_peak(&t->d, DT_BF16), s = timing_of(t, call, c);
	double rate = 2.0 * (double)(mat_size(m->y) * m->x.cols) / s;
	printf("matmul_hopper %s, %s\t%s\t%.4g\tTFLOP/s\t%.6g\t%.3f\n", name, how, shape,
		rate * 1e-12, s, peak > 0 ? rate / peak : 0);
	fflush(stdout);
}

static bool equal(struct timing *t, const char *name, struct mat x, struct mat y)
{
	enum { PIECE = 1 << 24 };
	char *a = xmalloc(PIECE), *b = xmalloc(PIECE);
	bool same = true;
	for (int64_t at = 0, end = mat_bytes(x); same && at < end; at += PIECE) {
		size_t n = (size_t)min64(PIECE, end - at);
		device_get(&t->d, a, (char *)x.p + at, n);
		device_get(&t->d, b, (char *)y.p + at, n);
		same = !memcmp(a, b, n);
	}
	if (!same)
		warn("%s: WRONG: not the bits of the separate kernels", name);
	free(a);
	free(b);
	return same;
}

/* Returns whether the results are equal. */
static bool compare(struct timing *t, const char *name, struct call *c)
{
	const struct matmul_call *f = &c->c[FUSED], *s = &c->c[SEPARATE];
	bool right = true;
	fused(&t->d, c);
	separate(&t->d, c);
	device_wait(&t->d);
	right &= equal(t, name, f->y, c->kind == MATMUL_XENT ? c->middle : s->y);
	if (c->kind == MATMUL_GELU)
		right &= equal(t, name, f->aux, c->middle);
	if (f->sums.p)
		right &= equal(t, name, f->sums, s->sums);
	if (f->tiles) {
		int64_t n = ceil_div(f->y.cols, MATMUL_TILE_N);
		right &= equal(t, name, mat(f->tiles, f->y.rows, 2 * n),
			mat(s->tiles, f->y.rows, 2 * n));
	}
	return right;
}

static bool epilogue(
	struct timing *t, const char *name, enum matmul_kind kind, const int64_t shape[3])
{
	size_t mark = arena_mark(&t->memory);
	int64_t m = shape[0], k = shape[1], n = shape[2];
	bool backward = kind == MATMUL_DGELU || kind == MATMUL_DGELU_SUMS;
	bool stream = kind == MATMUL_RESIDUAL;
	struct call c = {.own = matmul_epilogues(&t->d), .kind = kind};
	struct matmul_call one = {.x = timing_mat(t, m, k, DT_BF16),
		.w = timing_mat(t, backward ? k : n, backward ? n : k, DT_BF16)};
	char text[64];
	if (kind == MATMUL_GELU || stream)
		one.bias = timing_mat(t, 1, n, DT_F32);
	if (backward || stream)
		one.aux = timing_mat(t, m, n, stream ? DT_F32 : DT_BF16);
	c.middle = timing_mat(t, m, n, DT_BF16);
	for (int i = 0; i < SIDES; i++) {
		c.c[i] = one;
		c.c[i].y = timing_mat(t, m, n, stream ? DT_F32 : DT_BF16);
		if (kind == MATMUL_GELU)
			c.c[i].aux = timing_mat(t, m, n, DT_BF16);
		if (kind == MATMUL_DGELU_SUMS)
			c.c[i].sums = timing_mat(t, 1, n, DT_F32);
		if (kind == MATMUL_XENT) {
			int64_t tiles = ceil_div(n, MATMUL_TILE_N);
			c.c[i].tiles = timing_mat(t, m, 2 * tiles, DT_F32).p;
			c.c[i].real = n - 47;
		}
	}
	snprintf(text, sizeof(text), "%dx%dx%d", (int)m, (int)k, (int)n);
	bool right = compare(t, name, &c);
	say(t, name, "fused", text, fused, &c);
	say(t, name, "separate", text, separate, &c);
	c.vendor = true;
	say(t, name, "separate after cuBLASLt", text, separate, &c);
	arena_reset(&t->memory, mark);
	return right;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		enum matmul_kind kind;
		int64_t shape[3];
	} all[] = {{"gelu", MATMUL_GELU, {65536, 768, 3072}},
		{"dgelu", MATMUL_DGELU, {65536, 768, 3072}},
		{"dgelu with sums", MATMUL_DGELU_SUMS, {65536, 768, 3072}},
		{"residual", MATMUL_RESIDUAL, {65536, 3072, 768}},
		{"xent statistics", MATMUL_XENT, {8192, 768, 50304}}};
	static const int64_t tiny[] = {300, 72, 520};
	struct timing t;
	bool right = true;
	log_name("bench_epilogues");
	timing_open(&t, argc, argv, (size_t)8 << 30, (size_t)64 << 20);
	if (!matmul_epilogues(&t.d))
		die(EX_USAGE, "%s has no matmuls of ours", t.d.name);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		right &= epilogue(
			&t, all[i].name, all[i].kind, t.tiny ? tiny : all[i].shape);
	timing_close(&t);
	stdout_close();
	if (!right)
		die(EX_FAILED, "a matmul's epilogue computes wrongly");
	return 0;
}

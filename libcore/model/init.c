/* Initial parameters: counter-based, so any rank can make any part. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>

/* Element i: half of a Box-Muller pair; `attempt` tells draws apart when some are refused. */
static double normal_at(struct philox_key key, int64_t i, uint32_t attempt)
{
	const double two_pi = 6.283185307179586;
	int64_t block = i / 2;
	struct philox_block r =
		philox(key, (uint32_t)block, (uint32_t)(block >> 32), attempt, 0);
	double u = 1.0 - philox_uniform64(r.x[0], r.x[1]); /* in (0, 1] */
	double angle = two_pi * philox_uniform64(r.x[2], r.x[3]);
	return sqrt(-2.0 * log(u)) * (i % 2 ? sin(angle) : cos(angle));
}

static float draw(const struct tensor *t, struct philox_key key, int64_t i)
{
	for (uint32_t attempt = 0;; attempt++) {
		double x = normal_at(key, i, attempt);
		if (t->init != INIT_TRUNCATED || fabs(x) <= 3)
			return (float)(x * (double)t->std);
	}
}

void init_range(
	const struct tensor *t, uint64_t seed, int64_t first, int64_t n, float *out)
{
	struct philox_key key = philox_key(seed, PHILOX_INIT, hash_str(t->name));
	bool drawn = t->init == INIT_NORMAL || t->init == INIT_TRUNCATED;
#pragma omp parallel for if (drawn && n > 1 << 12)
	for (int64_t i = 0; i < n; i++)
		out[i] = drawn		       ? draw(t, key, first + i)
			 : t->init == INIT_ONE ? 1.0f
					       : 0.0f;
}

struct initial {
	struct device *d;
	uint64_t seed;
};

/* Made in the program's memory, and put where they belong, unless that is there. */
static void init_part(void *with, const struct part *x)
{
	const struct initial *o = with;
	int64_t rows = x->t->cut == CUT_COLS ? 1 : x->rows; /* that lie together */
	size_t n_bytes = (size_t)(x->rows * x->cols) * sizeof(float);
	float *made = o->d->apart ? xmalloc(n_bytes) : x->state[STORE_PARAM];
	for (int64_t r = 0; r < x->rows; r += rows)
		init_range(x->t, o->seed, tensor_index(x->t, x->slice, x->row + r),
			rows * x->cols, made + r * x->cols);
	if (!o->d->apart)
		return;
	o->d->k->put(o->d, x->state[STORE_PARAM], made, n_bytes);
	free(made);
}

void init_parts(struct store *s, uint64_t seed)
{
	struct initial o = {s->c.device, seed};
	store_walk(s, false, 0, STORE_BIT(STORE_PARAM), init_part, &o);
}

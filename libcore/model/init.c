/* Initial parameters from counter-based random numbers: any rank can compute any part. */
#include "model/model.h"

void init_rows(struct device *d, const struct tensor *t, uint64_t seed, int64_t first,
	struct mat x)
{
	bool drawn = t->init == INIT_NORMAL || t->init == INIT_TRUNCATED;
	const struct normal o = {
		.mean = t->init == INIT_ONE,
		.std = drawn ? t->std : 0,
		.max_deviation = t->init == INIT_TRUNCATED ? 3 : 0,
		.rng = {.key = philox_key(seed, PHILOX_INIT, hash_str(t->name)),
			.first = first,
			.row_step = t->ndim > 1 ? t->dims[1] : 0},
	};
	d->k->normal(d, x, &o);
}

struct initial {
	struct device *d;
	uint64_t seed;
};

static void init_part(void *arg, const struct part *x)
{
	const struct initial *o = arg;
	init_rows(o->d, x->t, o->seed, tensor_index(x->t, x->slice, x->row),
		mat(x->state[STORE_PARAM], x->rows, x->cols));
}

void init_parts(struct store *s, uint64_t seed)
{
	struct initial o = {s->c.device, seed};
	store_for_each_part(s, false, 0, STORE_BIT(STORE_PARAM), init_part, &o);
}

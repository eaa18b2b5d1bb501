/* Flips bits (flip.h). */
#include "parallel/flip.h"

#include "base/philox.h"

const char *const flip_place_names[N_FLIP_PLACES] = {"tokens", "activation", "gradient",
	"leaf", "weight", "copy", "sum", "message", "rounded", "norm", "update",
	"moment"};

void flips_begin(struct flips *f)
{
	for (int i = 0; f && i < f->n; i++)
		f->list[i].done &= !f->list[i].repeats;
}

void flips_begin_copy(struct flips *f, bool copy)
{
	flips_begin(f);
	if (f)
		f->in_copy = copy;
}

void flips_begin_micro(struct flips *f)
{
	for (int i = 0; f && i < f->n; i++) {
		struct philox_key key =
			philox_key(f->seed, PHILOX_FLIP, (uint64_t)f->step);
		struct philox_block b =
			philox(key, f->n_micro, (uint32_t)f->rank, (uint32_t)i, 1);
		if (f->list[i].probability > 0)
			f->list[i].done = philox_uniform64(b.x[0], b.x[1]) >=
					  f->list[i].probability;
	}
	if (f)
		f->n_micro++;
}

static bool is_due(const struct flips *f, const struct flip *x)
{
	return x->repeats ? f->step >= x->step : f->step == x->step;
}

bool flips_in_step(const struct flips *f)
{
	bool any = false;
	for (int i = 0; f && i < f->n; i++)
		any |= is_due(f, &f->list[i]);
	return any;
}

struct flip *flips_due(struct flips *f, enum flip_place place, const char *name)
{
	for (int i = 0; f && i < f->n; i++) {
		struct flip *x = &f->list[i];
		bool due = is_due(f, x) && (x->repeats || !f->in_copy);
		if (due && !x->done && x->rank == f->rank && x->place == place &&
			(!x->name || !name || !strcmp(x->name, name)))
			return x;
	}
	return NULL;
}

int64_t flips_draw(struct flips *f, int64_t n)
{
	struct philox_key key = philox_key(f->seed, PHILOX_FLIP, (uint64_t)f->step);
	struct philox_block b = philox(key, f->n_drawn++, (uint32_t)f->rank, 0, 0);
	return (int64_t)(philox_uniform64(b.x[0], b.x[1]) * (double)n);
}

void flips_do(struct flips *f, struct flip *x, struct device *d, void *element, int bytes,
	const char *name)
{
	unsigned char value[sizeof(int64_t)];
	int bit = x->bit < 0 ? (int)flips_draw(f, 8 * bytes) : x->bit % (8 * bytes);
	if (d)
		device_get(d, value, element, (size_t)bytes);
	else
		memcpy(value, element, (size_t)bytes);
	value[bit / 8] ^= (unsigned char)(1u << bit % 8);
	if (d)
		device_put(d, element, value, (size_t)bytes);
	else
		memcpy(element, value, (size_t)bytes);
	x->done = true;
	warn("rank %d: --inject-flip: step %lld: flipped bit %d of an element: %s %s",
		f->rank, (long long)f->step, bit, flip_place_names[x->place], name);
}

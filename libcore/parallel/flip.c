/* Flips bits (flip.h). */
#include "parallel/flip.h"

#include "base/philox.h"

const char *const flip_place_names[N_FLIP_PLACES] = {"tokens", "activation", "gradient",
	"leaf", "weight", "copy", "sum", "message", "rounded", "norm", "update",
	"moment"};

/* Sets x->place to the place of this name. Returns false if there is none. */
static bool find_place(const char *name, struct flip *x)
{
	int i = 0;
	while (i < N_FLIP_PLACES && strcmp(name, flip_place_names[i]))
		i++;
	x->place = (enum flip_place)i;
	return i < N_FLIP_PLACES;
}

int flip_parse(const char *text, struct flip *x, struct err *e)
{
	char *words = xstrdup(text), *rest = words, *rank = strsep(&rest, ":");
	char *step = rest ? strsep(&rest, ":") : words + strlen(words);
	const char *place = rest ? strsep(&rest, ":") : "";
	const char *name = rest ? strsep(&rest, ":") : "";
	size_t n = strlen(step);
	int64_t number, bit = -1;
	*x = (struct flip){.repeats = n && step[n - 1] == '+'};
	if (x->repeats)
		step[n - 1] = '\0';
	bool ok = !parse_int(rank, &number) && number >= 0 && number < INT32_MAX &&
		  !parse_int(step, &x->step) && x->step > 0 && find_place(place, x) &&
		  (!rest || (!parse_int(rest, &bit) && bit >= 0 && bit < 64));
	x->rank = (int)number;
	x->bit = (int)bit;
	x->name = *name ? xstrdup(name) : NULL;
	free(words);
	return ok ? 0
		  : err_set(e, EX_USAGE,
			    "--inject-flip '%s': expected RANK:STEP[+]:PLACE[:NAME[:BIT]]; "
			    "pt-referee(7) lists the places",
			    text);
}

void flips_release(struct flips *f)
{
	for (int i = 0; i < f->n; i++)
		free(f->list[i].name);
	free(f->list);
}

void flips_begin(struct flips *f)
{
	for (int i = 0; f && i < f->n; i++)
		f->list[i].done &= !f->list[i].repeats;
}

struct flip *flips_due(struct flips *f, enum flip_place place, const char *name)
{
	for (int i = 0; f && i < f->n; i++) {
		struct flip *x = &f->list[i];
		bool due = x->repeats ? f->step >= x->step : f->step == x->step;
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

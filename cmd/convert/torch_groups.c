/* The weight decay of each parameter, by the group of the optimizer that it is in. */
#include "convert/torch_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct group {
	struct strs names;
	double *ids, decay;
	int64_t n_ids;
};

struct groups {
	struct group *v;
	int64_t n;
};

static void groups_free(struct groups *g)
{
	for (int64_t i = 0; i < g->n; i++) {
		strs_free(&g->v[i].names);
		free(g->v[i].ids);
	}
	free(g->v);
}

/* A single number. False: it is something else. */
static bool number_of(struct torch_file *f, const struct torch_item *x, double *out)
{
	struct err e = {0};
	int64_t n = 0;
	int rc = x ? torch_numbers(f, x, 1, out, &n, &e) : -1;
	die_io(&e);
	return !rc && n == 1;
}

static void read_groups(struct groups *g, struct torch_file *f,
	const struct torch_names *x, int64_t n_tensors)
{
	const struct torch_item *params;
	for (; (params = torch_names_numbered(x, "param_groups", g->n, "params"));
		g->n++) {
		struct err e = {0};
		struct group new = {.decay = -1};
		g->v = xgrow(g->v, g->n, sizeof(*g->v));
		new.ids = xcalloc((size_t)n_tensors + 1, sizeof(*new.ids));
		if (torch_texts(f, params, &new.names, &e) ||
			(!new.names.n &&torch_numbers(
				f, params, n_tensors, new.ids, &new.n_ids, &e)))
			new.n_ids = 0;
		die_io(&e);
		if (!number_of(f,
			    torch_names_numbered(x, "param_groups", g->n, "weight_decay"),
			    &new.decay))
			new.decay = -1;
		g->v[g->n] = new;
	}
}

static double decay_in(const struct groups *g, const char *name)
{
	char *end;
	double id = (double)strtoll(name, &end, 10);
	for (int64_t i = 0; i < g->n; i++) {
		for (int64_t k = 0; k < g->v[i].names.n; k++)
			if (!strcmp(g->v[i].names.v[k], name))
				return g->v[i].decay;
		for (int64_t k = 0; !*end && k < g->v[i].n_ids; k++)
			if (g->v[i].ids[k] == id)
				return g->v[i].decay;
	}
	return -1;
}

double *torch_group_decays(struct torch_file *f, const struct torch_names *x,
	const struct torch_item *const *means, int64_t n)
{
	static const char state[] = "state.", mean[] = ".exp_avg";
	double *decays = xcalloc((size_t)n + 1, sizeof(*decays));
	struct groups g = {0};
	struct str own = {0};
	read_groups(&g, f, x, n);
	for (int64_t i = 0; i < n; i++) {
		const char *from = means[i] ? strstr(means[i]->name, state) : NULL;
		decays[i] = -1;
		if (!from || !text_ends(from, mean))
			continue;
		int before = (int)(from - means[i]->name);
		from += strlen(state);
		/* (flattened: each parameter has the settings of its group) */
		str_clear(&own);
		str_printf(&own, "%.*sparam_groups.%.*s.weight_decay", before,
			means[i]->name, (int)(strlen(from) - strlen(mean)), from);
		bool numbered = isdigit((unsigned char)*from);
		if (!numbered && number_of(f, torch_find(f, own.s), &decays[i]))
			continue;
		str_clear(&own);
		str_add(&own, from, strlen(from) - strlen(mean));
		decays[i] = decay_in(&g, own.s);
	}
	str_free(&own);
	groups_free(&g);
	return decays;
}

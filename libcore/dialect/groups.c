/* The weight decay of each parameter, by the group of the optimizer that it is in. */
#include "dialect/dialect.h"

#include <ctype.h>

/* A parameter that a group has, by its name or its number. */
struct member {
	char *name; /* NULL: by its number */
	double id, decay;
	int64_t order; /* the first of equal ones counts */
};

struct members {
	struct member *v;
	int64_t n;
};

/* Sets *out to a single number; it stays if the item is something else, or NULL. */
static int read_number(
	struct torch_file *f, const struct torch_item *x, double *out, struct err *e)
{
	int64_t n = 0;
	double v = 0;
	int rc = x ? torch_numbers(f, x, 1, &v, &n, e) : 0;
	if (!rc && n == 1)
		*out = v;
	return rc;
}

static void add_member(struct members *m, const char *name, double id, double decay)
{
	m->v = xgrow(m->v, m->n, sizeof(*m->v));
	m->v[m->n] = (struct member){name ? xstrdup(name) : NULL, id, decay, m->n};
	m->n++;
}

/* Adds the parameters of a group. */
static int read_group(struct members *m, struct torch_file *f,
	const struct torch_item *params, double decay, int64_t n_tensors, struct err *e)
{
	scoped_strs names = {0};
	scoped_ptr double *ids = xcalloc((size_t)n_tensors + 1, sizeof(*ids));
	int64_t n = 0;
	int rc = torch_texts(f, params, &names, e) ||
		 (!names.n && torch_numbers(f, params, n_tensors, ids, &n, e));
	for (int64_t i = 0; i < names.n && !rc; i++)
		add_member(m, names.v[i], 0, decay);
	for (int64_t i = 0; i < n && !rc; i++)
		add_member(m, NULL, ids[i], decay);
	return rc;
}

static int compare_keys(const struct member *x, const struct member *y)
{
	if (!x->name || !y->name)
		return x->name || y->name ? (x->name != NULL) - (y->name != NULL)
					  : (x->id > y->id) - (x->id < y->id);
	return strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	int order = compare_keys(x, y);
	return order ? order : (x->order > y->order) - (x->order < y->order);
}

/* Reads all groups, and sorts their parameters. */
static int read_groups(struct members *m, struct torch_file *f,
	const struct torch_names *x, int64_t n_tensors, struct err *e)
{
	const struct torch_item *params;
	for (int64_t g = 0;
		(params = torch_names_numbered(x, "param_groups", g, "params")); g++) {
		double decay = -1;
		if (read_number(f,
			    torch_names_numbered(x, "param_groups", g, "weight_decay"),
			    &decay, e) ||
			read_group(m, f, params, decay, n_tensors, e))
			return -1;
	}
	if (m->n)
		qsort(m->v, (size_t)m->n, sizeof(*m->v), by_key);
	return 0;
}

/* The first of the members that have the key; NULL: there is none. */
static const struct member *find_member(const struct members *m, struct member key)
{
	int64_t low = 0, high = m->n;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (compare_keys(&m->v[middle], &key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < m->n && !compare_keys(&m->v[low], &key) ? &m->v[low] : NULL;
}

/* By the name, or the number that it is. */
static double decay_of(const struct members *m, const char *name)
{
	char *end;
	double id = (double)strtoll(name, &end, 10);
	const struct member *x = find_member(m, (struct member){.name = (char *)name});
	if (!x && !*end)
		x = find_member(m, (struct member){.id = id});
	return x ? x->decay : -1;
}

static int set_decay(struct torch_file *f, const struct members *m, const char *mean,
	double *decay, struct err *e)
{
	static const char state[] = "state.", end[] = ".exp_avg";
	const char *from = strstr(mean, state);
	scoped_str own = {0};
	if (!from || !text_ends(from, end))
		return 0;
	int before = (int)(from - mean);
	from += strlen(state);
	int n = (int)(strlen(from) - strlen(end));
	/* (flattened: each parameter has the settings of its group) */
	str_printf(&own, "%.*sparam_groups.%.*s.weight_decay", before, mean, n, from);
	if (!isdigit((unsigned char)*from) &&
		read_number(f, torch_find(f, own.s), decay, e))
		return -1;
	str_clear(&own);
	str_printf(&own, "%.*s", n, from);
	if (*decay < 0)
		*decay = decay_of(m, own.s);
	return 0;
}

int torch_group_decays(struct torch_file *f, const struct torch_names *x,
	const struct torch_item *const *means, int64_t n, double *decays, struct err *e)
{
	struct members m = {0};
	int rc = read_groups(&m, f, x, n, e);
	for (int64_t i = 0; i < n && !rc; i++) {
		decays[i] = -1;
		rc = means[i] ? set_decay(f, &m, means[i]->name, &decays[i], e) : 0;
	}
	for (int64_t i = 0; i < m.n; i++)
		free(m.v[i].name);
	free(m.v);
	return rc;
}

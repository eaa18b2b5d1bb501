/* Reads the weight decay and learning rate of each parameter from its optimizer group. */
#include "dialect/dialect.h"

#include <ctype.h>

/* A parameter of a group, by name or number. */
struct member {
	char *name; /* NULL: by `id` */
	double id;
	struct ckpt_settings settings;
	int64_t order; /* index; the first of equal members counts */
};

struct members {
	struct member *v;
	int64_t n;
};

/* Sets *out if the item is a single number; leaves it if it is anything else, or NULL. */
static int read_number(
	struct torch_file *f, const struct torch_item *x, double *out, struct err *e)
{
	int64_t n = 0;
	double v = 0;
	int rc = x ? torch_read_numbers(f, x, 1, &v, &n, e) : 0;
	if (!rc && n == 1)
		*out = v;
	return rc;
}

static void add_member(struct members *m, const char *name, double id,
	const struct ckpt_settings *settings)
{
	m->v = xgrow(m->v, m->n, sizeof(*m->v));
	m->v[m->n] = (struct member){name ? xstrdup(name) : NULL, id, *settings, m->n};
	m->n++;
}

/* Adds the parameters of a group as members with its settings. */
static int add_group_members(struct members *m, struct torch_file *f,
	const struct torch_item *params, const struct ckpt_settings *settings,
	int64_t n_tensors, struct err *e)
{
	scoped_strs names = {0};
	scoped_ptr double *ids = xcalloc((size_t)n_tensors + 1, sizeof(*ids));
	int64_t n = 0;
	int rc = torch_read_strings(f, params, &names, e) ||
		 (!names.n && torch_read_numbers(f, params, n_tensors, ids, &n, e));
	for (int64_t i = 0; i < names.n && !rc; i++)
		add_member(m, names.v[i], 0, settings);
	for (int64_t i = 0; i < n && !rc; i++)
		add_member(m, NULL, ids[i], settings);
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

/* Reads the parameters of all groups into *m, sorted by name. */
static int read_groups(struct members *m, struct torch_file *f,
	const struct torch_names *x, int64_t n_tensors, struct err *e)
{
	const struct torch_item *params;
	for (int64_t g = 0;
		(params = torch_names_find_numbered(x, "param_groups", g, "params"));
		g++) {
		struct ckpt_settings settings = {-1, -1, g};
		if (read_number(f,
			    torch_names_find_numbered(
				    x, "param_groups", g, "weight_decay"),
			    &settings.decay, e) ||
			read_number(f,
				torch_names_find_numbered(x, "param_groups", g, "lr"),
				&settings.lr, e) ||
			add_group_members(m, f, params, &settings, n_tensors, e))
			return -1;
	}
	if (m->n)
		qsort(m->v, (size_t)m->n, sizeof(*m->v), by_key);
	return 0;
}

/* Returns the first member with the key, or NULL. */
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

/* Finds a member by name, or by number if the name is one; NULL if it is missing. */
static const struct member *find_named_member(const struct members *m, const char *name)
{
	char *end;
	double id = (double)strtoll(name, &end, 10);
	const struct member *x = find_member(m, (struct member){.name = (char *)name});
	if (!x && !*end)
		x = find_member(m, (struct member){.id = id});
	return x;
}

/* Sets *out to the settings of the parameter with an exp_avg named `mean`. */
static int set_settings(struct torch_file *f, const struct members *m, const char *mean,
	struct ckpt_settings *out, struct err *e)
{
	static const char state[] = "state.", end[] = ".exp_avg";
	static const char *const keys[] = {"weight_decay", "lr"};
	double *const values[] = {&out->decay, &out->lr};
	const char *from = strstr(mean, state);
	scoped_str name = {0};
	*out = (struct ckpt_settings){-1, -1, -1};
	if (!from || !text_ends(from, end))
		return 0;
	int before = (int)(from - mean);
	from += strlen(state);
	int n = (int)(strlen(from) - strlen(end));
	/* (a flattened state_dict has the settings of the group for each parameter) */
	for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
		str_clear(&name);
		str_printf(&name, "%.*sparam_groups.%.*s.%s", before, mean, n, from,
			keys[k]);
		if (!isdigit((unsigned char)*from) &&
			read_number(f, torch_find(f, name.s), values[k], e))
			return -1;
	}
	str_clear(&name);
	str_printf(&name, "%.*s", n, from);
	const struct member *x = find_named_member(m, name.s);
	if (out->decay < 0 && out->lr < 0 && x)
		*out = x->settings;
	return 0;
}

int torch_read_settings(struct torch_file *f, const struct torch_names *x,
	const struct torch_item *const *means, int64_t n, struct ckpt_settings *out,
	struct err *e)
{
	struct members m = {0};
	int rc = read_groups(&m, f, x, max64(n, x->n_order), e);
	for (int64_t i = 0; i < n && !rc; i++) {
		out[i] = (struct ckpt_settings){-1, -1, -1};
		rc = means[i] ? set_settings(f, &m, means[i]->name, &out[i], e) : 0;
	}
	for (int64_t i = 0; i < m.n; i++)
		free(m.v[i].name);
	free(m.v);
	return rc;
}

int torch_read_variant(struct torch_file *f, const struct torch_names *x,
	unsigned *optimizer, struct err *e)
{
	static const struct {
		const char *key;
		unsigned flag;
		bool counts_zero; /* the key sets the flag even if its value is 0 */
	} keys[] = {{"maximize", CKPT_MAXIMIZES, false}, {"amsgrad", CKPT_AMSGRAD, false},
		{"momentum_decay", CKPT_NADAM, true}};
	for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
		const struct torch_item *item;
		int64_t at = 0;
		while ((item = torch_names_next_option(x, keys[k].key, &at))) {
			double value = 0;
			if (read_number(f, item, &value, e))
				return -1;
			*optimizer |=
				value != 0 || keys[k].counts_zero ? keys[k].flag : 0;
		}
	}
	return 0;
}

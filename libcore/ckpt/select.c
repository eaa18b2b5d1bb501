/* Views that select, rename or round the tensors of a view. */
#include "ckpt/view.h"

#include "base/utf8.h"

#include <fnmatch.h>
#include <math.h>

struct selected {
	const struct ckpt_view *source;
	int *indices; /* [tensor] index in the source */
	enum dtype round_to;
};

/* Rounds rows. Fails if a finite value rounds to infinity, which would change the model. */
static int round_rows(struct mat x, enum dtype type, const char *name,
	const struct ckpt_tensor *t, struct err *e)
{
	struct device d;
	const float *p = x.p;
	scoped_ptr float *rounded = xmalloc((size_t)(x.rows * x.cols) * sizeof(*rounded));
	int rc = 0;
	device_open_cpu(&d, 0);
	d.k->round(&d, mat(rounded, x.rows, x.cols), x, type, 1);
	for (int64_t i = 0; i < x.rows * x.cols && !rc; i++)
		if (isinf(rounded[i]) && isfinite(p[i]))
			rc = err_set(e, EX_DATAERR,
				"%s: %s has the value %g, which is too large for %s",
				name, t->name, (double)p[i], dtype_table[type].name);
	memcpy(x.p, rounded, (size_t)(x.rows * x.cols) * sizeof(*rounded));
	return rc;
}

/* Reads rows from the source view. Rounds rows of the model to s->round_to. */
static int read_selected(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	const struct selected *s = v->with;
	const struct ckpt_rows source_rows = {
		r->group, s->indices[r->tensor], r->row, r->n};
	if (s->source->read(s->source, &source_rows, out, e))
		return -1;
	if (s->round_to == DT_F32 || r->group != CKPT_MODEL)
		return 0;
	const struct ckpt_tensor *t = &v->tensors[r->tensor];
	return round_rows(mat(out, r->n, ckpt_row_size(t)), s->round_to, v->name, t, e);
}

static void close_selected(struct ckpt_view *v)
{
	struct selected *s = v->with;
	free(s->indices);
	free(s);
}

static bool is_selected(const struct strs *patterns, const char *name)
{
	for (int64_t i = 0; patterns && i < patterns->n; i++)
		if (!fnmatch(patterns->v[i], name, 0))
			return true;
	return !patterns || !patterns->n;
}

/* Fails if a pattern matches no tensor, probably a typo. */
static int check_patterns(
	const struct strs *patterns, const struct ckpt_view *source, struct err *e)
{
	for (int64_t i = 0; patterns && i < patterns->n; i++) {
		int k = 0;
		while (k < source->n_tensors &&
			fnmatch(patterns->v[i], source->tensors[k].name, 0))
			k++;
		if (k == source->n_tensors)
			return err_set(e, EX_USAGE, "%s: no tensor matches \"%s\"",
				source->name, patterns->v[i]);
	}
	return 0;
}

struct rename {
	const char *old, *new;
	size_t n;
	bool at_begin, at_end;
};

/* Parses OLD=NEW, with ^ and $ as anchors of OLD. *r points into `rule`. */
static int parse_rename(struct rename *r, const char *rule, struct err *e)
{
	const char *equals = strchr(rule, '=');
	if (!equals || equals == rule)
		return err_set(e, EX_USAGE, "--rename: '%s' is not OLD=NEW", rule);
	*r = (struct rename){.old = rule, .new = equals + 1};
	r->n = (size_t)(equals - rule);
	r->at_begin = *r->old == '^';
	r->old += r->at_begin;
	r->n -= r->at_begin;
	r->at_end = r->n && r->old[r->n - 1] == '$';
	r->n -= r->at_end;
	if (!r->n && !r->at_begin && !r->at_end)
		return err_set(
			e, EX_USAGE, "--rename: '%s' has no text before '='", rule);
	return 0;
}

/* Returns where r->old first occurs in a name, subject to the rule's anchors; NULL: nowhere. */
static const char *find_match(const struct rename *r, const char *name)
{
	size_t len = strlen(name);
	if (len < r->n)
		return NULL;
	if (r->at_begin)
		return !strncmp(name, r->old, r->n) && (!r->at_end || len == r->n) ? name
										   : NULL;
	if (r->at_end)
		return strncmp(name + len - r->n, r->old, r->n) ? NULL
								: name + len - r->n;
	return memmem(name, len, r->old, r->n);
}

/* Replaces the first match of the rule in the tensor's name. Fails if that makes it invalid. */
static int apply_rename(const struct rename *r, struct ckpt_tensor *t, struct err *e)
{
	scoped_str out = {0};
	const char *at = find_match(r, t->name);
	if (!at)
		return 0;
	str_add(&out, t->name, (size_t)(at - t->name));
	str_puts(&out, r->new);
	str_puts(&out, at + r->n);
	bool is_valid = out.len && out.len < sizeof(t->name) && !strchr(out.s, '/') &&
			!text_has_control(out.s);
	int rc =
		is_valid
			? 0
			: err_set(e, EX_USAGE,
				  "--rename: '%s' cannot be the name of a tensor: 1 to %zu "
				  "characters without / and control characters",
				  out.s, sizeof(t->name) - 1);
	if (is_valid)
		snprintf(t->name, sizeof(t->name), "%s", out.s);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	const struct ckpt_tensor *x = *(const struct ckpt_tensor *const *)a;
	const struct ckpt_tensor *y = *(const struct ckpt_tensor *const *)b;
	return strcmp(x->name, y->name);
}

/* Fails if two tensors have the same name. */
static int check_unique(const struct ckpt_view *v, struct err *e)
{
	scoped_ptr const struct ckpt_tensor **list =
		xcalloc((size_t)v->n_tensors, sizeof(*list));
	int rc = 0;
	for (int i = 0; i < v->n_tensors; i++)
		list[i] = &v->tensors[i];
	qsort(list, (size_t)v->n_tensors, sizeof(*list), by_name);
	for (int i = 1; i < v->n_tensors && !rc; i++)
		if (!strcmp(list[i]->name, list[i - 1]->name))
			rc = err_set(e, EX_USAGE,
				"--rename: two tensors would be named %s", list[i]->name);
	return rc;
}

/* Applies all rules in order to the names of all tensors. Fails if a rule matches no name. */
static int rename_all(struct ckpt_view *v, const struct strs *rules, struct err *e)
{
	for (int64_t i = 0; rules && i < rules->n; i++) {
		struct rename r;
		bool is_used = false;
		if (parse_rename(&r, rules->v[i], e))
			return -1;
		for (int k = 0; k < v->n_tensors; k++) {
			is_used = is_used || find_match(&r, v->tensors[k].name);
			if (apply_rename(&r, &v->tensors[k], e))
				return -1;
		}
		if (!is_used)
			return err_set(e, EX_USAGE,
				"--rename: no tensor name contains '%s'", rules->v[i]);
	}
	return check_unique(v, e);
}

int ckpt_select(struct ckpt_view *v, const struct ckpt_view *source,
	const struct ckpt_selection *selection, struct err *e)
{
	if (check_patterns(selection->tensors, source, e))
		return -1;
	struct selected *s = xcalloc(1, sizeof(*s));
	ckpt_view_copy(v, source);
	*s = (struct selected){.source = source, .round_to = selection->round_to};
	s->indices = xcalloc((size_t)source->n_tensors, sizeof(*s->indices));
	v->n_tensors = 0;
	for (int k = 0; k < source->n_tensors; k++) {
		int i = selection->order ? selection->order[k] : k;
		if (!is_selected(selection->tensors, source->tensors[i].name))
			continue;
		v->tensors[v->n_tensors] = source->tensors[i];
		s->indices[v->n_tensors++] = i;
	}
	if (selection->parameters_only)
		ckpt_view_drop_optimizer(v);
	v->read = read_selected;
	v->close = close_selected;
	v->with = s;
	int rc = rename_all(v, selection->renames, e);
	if (rc)
		ckpt_view_close(v);
	return rc;
}

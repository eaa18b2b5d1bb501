/* Compares two checkpoints element by element. */
#include "ckpt/ckpt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_bits(float a, float b)
{
	return !memcmp(&a, &b, sizeof(a));
}

static void compare(
	struct ckpt_delta *d, const float *x, const float *y, int64_t at, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		if (same_bits(x[i], y[i]))
			continue;
		if (!d->n_differ++)
			d->first = at + i;
		double diff = fabs((double)x[i] - (double)y[i]);
		if (!(diff <= d->max_abs)) /* NaN counts as the largest */
			d->max_abs = diff;
		d->max_ulp = max64(d->max_ulp, float_ulps(x[i], y[i]));
	}
}

/* Tensor i of the first, and j of the second. */
static int compare_tensor(const struct ckpt *a, const struct ckpt *b, int i, int j,
	struct ckpt_delta *d, struct err *e)
{
	int g = ckpt_find_group(a, d->group), h = ckpt_find_group(b, d->group);
	const struct ckpt_tensor *t = &a->tensors[i];
	int64_t width = ckpt_row_size(t);
	int64_t rows = max64(1, (1 << 18) / width);
	float *x = xmalloc((size_t)(rows * width) * sizeof(*x));
	float *y = xmalloc((size_t)(rows * width) * sizeof(*y));
	int rc = 0;
	for (int64_t r = 0; r < t->dims[0] && !rc; r += rows) {
		int64_t n = min64(rows, t->dims[0] - r);
		rc = ckpt_read_rows(a, g, i, r, n, x, e) ||
		     ckpt_read_rows(b, h, j, r, n, y, e);
		if (!rc)
			compare(d, x, y, r * width, n * width);
	}
	free(x);
	free(y);
	return rc ? -1 : 0;
}

static struct ckpt_delta *add(struct ckpt_delta **out, int64_t *n, const char *name)
{
	*out = xrealloc(*out, (size_t)(*n + 1) * sizeof(**out));
	struct ckpt_delta *d = &(*out)[(*n)++];
	*d = (struct ckpt_delta){.group = "model"};
	snprintf(d->name, sizeof(d->name), "%s", name);
	return d;
}

/* Compares the groups that both have. */
static int compare_groups(const struct ckpt *a, const struct ckpt *b, int i, int j,
	int n_groups, struct ckpt_delta **out, int64_t *n, struct err *e)
{
	const struct ckpt_tensor *t = &a->tensors[i];
	for (int g = 0; g < n_groups; g++) {
		struct ckpt_delta d = {.group = a->groups.v[g], .n = ckpt_size(t)};
		if (ckpt_find_group(b, d.group) < 0)
			continue;
		snprintf(d.name, sizeof(d.name), "%s", t->name);
		if (compare_tensor(a, b, i, j, &d, e))
			return -1;
		if (d.n_differ)
			*add(out, n, t->name) = d;
	}
	return 0;
}

/* The groups of `a` that `b` lacks. */
static void add_groups(const struct ckpt *a, const struct ckpt *b, bool first,
	struct ckpt_delta **out, int64_t *n)
{
	for (int g = 0; g < a->groups.n; g++) {
		if (ckpt_find_group(b, a->groups.v[g]) >= 0)
			continue;
		struct ckpt_delta *d = add(out, n, a->groups.v[g]);
		d->group = NULL;
		*(first ? &d->only_a : &d->only_b) = true;
	}
}

int64_t ckpt_diff(const struct ckpt *a, const struct ckpt *b, const int *order,
	bool with_optimizer, struct ckpt_delta **out, struct err *e)
{
	int64_t n = 0;
	int n_groups = with_optimizer ? (int)a->groups.n : 1;
	*out = NULL;
	for (int k = 0; k < a->n_tensors; k++) {
		int i = order ? order[k] : k;
		const struct ckpt_tensor *t = &a->tensors[i];
		int j = ckpt_find(b, t->name);
		if (j < 0) {
			add(out, &n, t->name)->only_a = true;
		} else if (!ckpt_same_shape(t, &b->tensors[j])) {
			add(out, &n, t->name)->other_shape = true;
		} else if (compare_groups(a, b, i, j, n_groups, out, &n, e)) {
			free(*out);
			return -1;
		}
	}
	for (int j = 0; j < b->n_tensors; j++)
		if (ckpt_find(a, b->tensors[j].name) < 0)
			add(out, &n, b->tensors[j].name)->only_b = true;
	if (with_optimizer) {
		add_groups(a, b, true, out, &n);
		add_groups(b, a, false, out, &n);
	}
	return n;
}

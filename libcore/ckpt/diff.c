/* Compares two checkpoints element by element. */
#include "ckpt/ckpt.h"

#include <math.h>

static bool have_same_bits(float a, float b)
{
	return !memcmp(&a, &b, sizeof(a));
}

/* Adds the differences of x[n] and y[n], which are elements from `at` on, to *d. */
static void compare_elements(
	struct ckpt_delta *d, const float *x, const float *y, int64_t at, int64_t n)
{
	if (!memcmp(x, y, (size_t)n * sizeof(*x)))
		return;
	for (int64_t i = 0; i < n; i++) {
		if (have_same_bits(x[i], y[i]))
			continue;
		if (!d->n_differ++)
			d->first = at + i;
		double diff = fabs((double)x[i] - (double)y[i]);
		if (!(diff <= d->max_abs)) /* NaN counts as the largest */
			d->max_abs = diff;
		d->max_ulp = max64(d->max_ulp, float_ulps(x[i], y[i]));
	}
}

/* Both checkpoints, and buffers for rows: allocating per tensor would cost as much as reading. */
struct ckpt_pair {
	const struct ckpt *a, *b;
	float *x, *y;
	int64_t capacity;
};

static void reserve_rows(struct ckpt_pair *m, int64_t n)
{
	if (n <= m->capacity)
		return;
	m->capacity = n;
	m->x = xrealloc(m->x, (size_t)n * sizeof(*m->x));
	m->y = xrealloc(m->y, (size_t)n * sizeof(*m->y));
}

/* A tensor of one of the files, and where to read its rows. */
struct ckpt_side {
	const struct ckpt *c;
	int group, tensor;
	float *to;
	struct err why;
};

/* Reads the same rows of both files, with a thread per file. */
static int read_both(struct ckpt_side *sides, int64_t row, int64_t n, struct err *e)
{
	int failed = 0;
#pragma omp parallel for num_threads(2) reduction(+ : failed)
	for (int f = 0; f < 2; f++)
		failed += ckpt_read_rows(sides[f].c, sides[f].group, sides[f].tensor, row,
				  n, sides[f].to, &sides[f].why) != 0;
	if (failed)
		*e = sides[0].why.code ? sides[0].why : sides[1].why;
	return failed ? -1 : 0;
}

/* Compares tensor i of the first file with tensor j of the second; adds the result to *d. */
static int compare_tensor(
	struct ckpt_pair *m, int i, int j, struct ckpt_delta *d, struct err *e)
{
	const struct ckpt_tensor *t = &m->a->tensors[i];
	int64_t width = ckpt_row_size(t);
	int64_t rows = max64(1, (1 << 18) / width);
	reserve_rows(m, rows * width);
	struct ckpt_side sides[] = {{m->a, ckpt_find_group(m->a, d->group), i, m->x, {0}},
		{m->b, ckpt_find_group(m->b, d->group), j, m->y, {0}}};
	for (int64_t r = 0; r < t->dims[0]; r += rows) {
		int64_t n = min64(rows, t->dims[0] - r);
		if (read_both(sides, r, n, e))
			return -1;
		compare_elements(d, m->x, m->y, r * width, n * width);
	}
	return 0;
}

/* Appends an element for a tensor of group "model" to *out. Returns it. */
static struct ckpt_delta *add_delta(struct ckpt_delta **out, int64_t *n, const char *name)
{
	*out = xrealloc(*out, (size_t)(*n + 1) * sizeof(**out));
	struct ckpt_delta *d = &(*out)[(*n)++];
	*d = (struct ckpt_delta){.group = "model"};
	snprintf(d->name, sizeof(d->name), "%s", name);
	return d;
}

/* Compares a tensor in the groups that both files have. */
static int compare_groups(struct ckpt_pair *m, int i, int j, int n_groups,
	struct ckpt_delta **out, int64_t *n, struct err *e)
{
	const struct ckpt_tensor *t = &m->a->tensors[i];
	for (int g = 0; g < n_groups; g++) {
		struct ckpt_delta d = {.group = m->a->groups.v[g], .n = ckpt_size(t)};
		if (ckpt_find_group(m->b, d.group) < 0)
			continue;
		snprintf(d.name, sizeof(d.name), "%s", t->name);
		if (compare_tensor(m, i, j, &d, e))
			return -1;
		if (d.n_differ)
			*add_delta(out, n, t->name) = d;
	}
	return 0;
}

/* Adds the groups of `a` that `b` lacks. */
static void add_groups(const struct ckpt *a, const struct ckpt *b, bool is_first,
	struct ckpt_delta **out, int64_t *n)
{
	for (int g = 0; g < a->groups.n; g++) {
		if (ckpt_find_group(b, a->groups.v[g]) >= 0)
			continue;
		struct ckpt_delta *d = add_delta(out, n, a->groups.v[g]);
		d->group = NULL;
		*(is_first ? &d->only_a : &d->only_b) = true;
	}
}

int64_t ckpt_diff(const struct ckpt *a, const struct ckpt *b, const int *order,
	bool with_optimizer, struct ckpt_delta **out, struct err *e)
{
	int64_t n = 0;
	int n_groups = with_optimizer ? (int)a->groups.n : 1;
	struct ckpt_pair m = {.a = a, .b = b};
	int rc = 0;
	*out = NULL;
	for (int k = 0; k < a->n_tensors && !rc; k++) {
		int i = order ? order[k] : k;
		const struct ckpt_tensor *t = &a->tensors[i];
		int j = ckpt_find(b, t->name);
		if (j < 0) {
			add_delta(out, &n, t->name)->only_a = true;
		} else if (!ckpt_same_shape(t, &b->tensors[j])) {
			add_delta(out, &n, t->name)->other_shape = true;
		} else {
			rc = compare_groups(&m, i, j, n_groups, out, &n, e);
		}
	}
	free(m.x);
	free(m.y);
	if (rc) {
		free(*out);
		return -1;
	}
	for (int j = 0; j < b->n_tensors; j++)
		if (ckpt_find(a, b->tensors[j].name) < 0)
			add_delta(out, &n, b->tensors[j].name)->only_b = true;
	if (with_optimizer) {
		add_groups(a, b, true, out, &n);
		add_groups(b, a, false, out, &n);
	}
	return n;
}

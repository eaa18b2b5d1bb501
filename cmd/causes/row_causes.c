/* Causes of gradients with few wrong rows, columns or elements, and of the embedding's rows. See
 * causes.c. */
#include "causes/causes.h"

#include <math.h>

enum { MAX_FEW = 8, MAX_ELEMENTS = 1 << 25 }; /* (of a tensor) */

/* How elements of a tensor are grouped: by row, by column, or each alone. */
enum grouping { BY_ELEMENT, BY_ROW, BY_COLUMN, GROUPINGS };

/* The few wrong elements, rows or columns of a tensor. */
struct wrong_groups {
	const struct step_check *c;
	int tensor;
	enum grouping by;
	int64_t groups, cols; /* number of groups; columns of the tensor */
	double *errors;	      /* [group]: squared errors */
	int64_t *wrong, n;    /* wrong groups, the worst first */
};

/* Returns the group that an element is in: itself, its row or its column. */
static int64_t group_of_element(const struct wrong_groups *f, int64_t element)
{
	return f->by == BY_ELEMENT ? element
	       : f->by == BY_ROW   ? element / f->cols
				   : element % f->cols;
}

/* Returns the maximum number of wrong groups that counts as few. */
static int64_t max_wrong_groups(const struct wrong_groups *f)
{
	int64_t max = f->by == BY_ELEMENT ? MAX_FEW : max64(MAX_FEW, f->groups / 100);
	return min64(max, f->groups / 4);
}

static double expected_value(const struct wrong_groups *f, int64_t j)
{
	return f->c->scale.common * (double)reference_of(f->c, f->tensor)[j];
}

/* Sums the squared errors of each group. Returns the squared norm of the reference. */
static double sum_errors(struct wrong_groups *f)
{
	double all = 0;
	for (int64_t j = 0; j < f->c->tensors[f->tensor].n; j++) {
		double d = (double)f->c->seen[f->tensor][j] - expected_value(f, j);
		f->errors[group_of_element(f, j)] += d * d;
		all += expected_value(f, j) * expected_value(f, j);
	}
	return all;
}

/* Moves the worst groups to the list of wrong groups until the remaining ones are right. Returns
 * false if too many are wrong. */
static bool find_wrong_groups(struct wrong_groups *f)
{
	const double bound = f->c->tensors[f->tensor].gradient.bound;
	double all = sum_errors(f), left = 0;
	for (int64_t k = 0; k < f->groups; k++)
		left += f->errors[k];
	while (left > bound * bound * all) {
		int64_t worst = 0;
		if (f->n == max_wrong_groups(f))
			return false;
		for (int64_t k = 1; k < f->groups; k++)
			worst = f->errors[k] > f->errors[worst] ? k : worst;
		f->wrong[f->n++] = worst;
		f->errors[worst] = 0;
		left = 0; /* (summed again: a difference would keep what the worst one hid) */
		for (int64_t k = 0; k < f->groups; k++)
			left += f->errors[k];
	}
	return f->n > 0 && isfinite(left);
}

static bool is_wrong_group(const struct wrong_groups *f, int64_t group)
{
	for (int64_t i = 0; i < f->n; i++)
		if (f->wrong[i] == group)
			return true;
	return false;
}

/* Returns the common factor of the wrong groups; 0: all are zero; NAN: no common factor. */
static double common_wrong_factor(const struct wrong_groups *f)
{
	struct products p = {0};
	bool *wrong = xcalloc((size_t)f->groups, sizeof(*wrong));
	for (int64_t k = 0; k < f->groups; k++)
		wrong[k] = is_wrong_group(f, k);
	for (int64_t j = 0; j < f->c->tensors[f->tensor].n; j++) {
		double a = (double)f->c->seen[f->tensor][j];
		if (!wrong[group_of_element(f, j)])
			continue;
		p.aa += a * a;
		p.ab += a * expected_value(f, j);
		p.bb += expected_value(f, j) * expected_value(f, j);
	}
	free(wrong);
	if (!(p.aa > 0))
		return 0;
	double factor = p.bb > 0 ? p.ab / p.bb : NAN;
	return residual_of(&p, factor) <= 1e-3 ? factor : NAN;
}

/* Writes which groups are wrong and their common factor. */
static void describe_few(const struct wrong_groups *f, char *text, size_t capacity)
{
	static const char *const names[] = {"element", "row", "column"};
	const struct tensor *t = model_tensor(f->c, f->tensor);
	const double factor = common_wrong_factor(f);
	size_t len = (size_t)snprintf(text, capacity, "%s%s", names[f->by], plural(f->n));
	for (int64_t i = 0; i < f->n && i < 6; i++)
		if (f->by == BY_ELEMENT && t->ndim > 1)
			len += (size_t)snprintf(text + len, capacity - len,
				" [%lld][%lld]", (long long)(f->wrong[i] / f->cols),
				(long long)(f->wrong[i] % f->cols));
		else
			len += (size_t)snprintf(text + len, capacity - len, " %lld",
				(long long)f->wrong[i]);
	if (f->n > 6)
		len += (size_t)snprintf(text + len, capacity - len, " and %lld more",
			(long long)f->n - 6);
	len += (size_t)snprintf(
		text + len, capacity - len, " of %lld, from 0", (long long)f->groups);
	if (factor == 0)
		snprintf(text + len, capacity - len, ": no gradient%s",
			t == f->c->weights.m.tokens ? " (padding_idx?)" : "");
	else if (isfinite(factor))
		snprintf(text + len, capacity - len, ": %.4g times",
			to_shown_digits(f->c, factor));
	else
		snprintf(text + len, capacity - len, ": all others are right");
}

/* Sets *f to the wrong groups of a tensor. Returns false if too many are wrong. */
static bool find_few_wrong_groups(
	struct wrong_groups *f, const struct step_check *c, int tensor, enum grouping by)
{
	const struct tensor *t = &c->weights.m.tensors[c->tensors[tensor].in_model];
	*f = (struct wrong_groups){.c = c, .tensor = tensor, .by = by};
	f->cols = t->ndim > 1 ? t->dims[1] : 1;
	f->groups = by == BY_ELEMENT ? c->tensors[tensor].n
		    : by == BY_ROW   ? t->dims[0]
				     : f->cols;
	if ((by != BY_ELEMENT && t->ndim < 2) || f->groups > MAX_ELEMENTS ||
		max_wrong_groups(f) < 1)
		return false;
	f->errors = xcalloc((size_t)f->groups, sizeof(*f->errors));
	f->wrong = xcalloc((size_t)max_wrong_groups(f), sizeof(*f->wrong));
	return find_wrong_groups(f);
}

/* Returns true if rounding to bf16 may hide most wrong elements of a norm or bias: a matrix is
 * wrong, too, and has no cause. */
static bool may_hide_wrong_elements(const struct cause_search *s, int i)
{
	bool found = false;
	if (s->c->o.precision == RUN_FP32 || model_tensor(s->c, i)->ndim > 1)
		return false;
	for (int k = 0; k < s->n_wrong; k++)
		found |= model_tensor(s->c, s->wrong[k])->ndim > 1 &&
			 s->c->tensors[s->wrong[k]].cause < 0;
	return found;
}

/* Adds the finding for a tensor with few wrong elements, rows or columns. */
static void explain_few_groups(struct cause_search *s, int i)
{
	char text[FINDING_TEXT];
	for (int by = 0; by < GROUPINGS; by++) {
		struct wrong_groups f = {0};
		if (s->c->tensors[i].cause < 0 &&
			((s->has & IF_SURE) || !may_fit_by_chance(s, i)) &&
			find_few_wrong_groups(&f, s->c, i, (enum grouping)by)) {
			describe_few(&f, text, sizeof(text));
			set_cause(s, i, text);
		}
		free(f.errors);
		free(f.wrong);
	}
}

/* Adds findings for tensors with few wrong elements, rows or columns: matrices, then vectors. */
bool explained_by_few(struct cause_search *s)
{
	for (int vectors = 0; vectors < 2; vectors++)
		for (int k = 0; k < s->n_wrong; k++) {
			int i = s->wrong[k];
			if ((model_tensor(s->c, i)->ndim < 2) == vectors &&
				!may_hide_wrong_elements(s, i))
				explain_few_groups(s, i);
		}
	return false;
}

/* ---- rows of the embedding ------------------------------------------------------------ */

/* Parts of the gradient of the embedding's rows, for each position of the batch. */
struct rows {
	const struct step_check *c;
	double *dx;    /* [positions of the batch][dim] */
	double *rest;  /* [vocab][dim]: the output layer's part, if both are one table */
	double *row;   /* [vocab][dim]: the gradient with a bug */
	int64_t parts; /* number of parts of the batch, whole sequences each */
};

/* Computes the parts of the reference gradient. */
static void rows_init(struct rows *r, const struct step_check *c, int tensor)
{
	const struct model *m = &c->weights.m;
	const int64_t n = c->batch.n * c->batch.length, dim = m->c.dim,
		      size = c->tensors[tensor].n;
	bool *want = xcalloc((size_t)m->n_tensors, sizeof(*want));
	struct gradients g;
	*r = (struct rows){.c = c};
	r->dx = xcalloc((size_t)(n * dim), sizeof(double));
	r->rest = xcalloc((size_t)size, sizeof(double));
	r->row = xcalloc((size_t)size, sizeof(double));
	want[c->tensors[tensor].in_model] = true;
	const struct target_rows target = {.dx = r->dx};
	const struct variant v = {.sequence = -1, .wanted = want, .rows = &target};
	reference_float64(&c->weights, &c->batch, &v, &g);
	for (int64_t j = 0; j < size; j++)
		r->rest[j] = (double)g.g[c->tensors[tensor].in_model][j];
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < dim; j++)
			r->rest[c->batch.tokens[i] * dim + j] -= r->dx[i * dim + j];
	gradients_free(&g);
	free(want);
}

static void rows_release(struct rows *r)
{
	free(r->dx);
	free(r->rest);
	free(r->row);
}

enum row_bug { DIVIDED_BY_COUNT, LAST_WINS, FIRST_WINS, ROW_BUGS };

/* Adds the gradients of the batch's positions from `from` to `to` - 1 to r->row, with the bug. */
static void add_rows_with_bug(struct rows *r, enum row_bug bug, int64_t from, int64_t to)
{
	const int64_t vocab = r->c->weights.m.c.vocab, dim = r->c->weights.m.c.dim;
	const int32_t *tokens = r->c->batch.tokens;
	int64_t *count = xcalloc((size_t)vocab, sizeof(*count));
	int64_t *seen = xcalloc((size_t)vocab, sizeof(*seen));
	for (int64_t i = from; i < to; i++)
		count[tokens[i]]++;
	for (int64_t i = from; i < to; i++) {
		int64_t k = tokens[i], occurrence = ++seen[k];
		double weight = bug == DIVIDED_BY_COUNT ? 1 / (double)count[k]
				: bug == LAST_WINS	? occurrence == count[k]
							: occurrence == 1;
		for (int64_t j = 0; j < dim; j++)
			r->row[k * dim + j] += weight * r->dx[i * dim + j];
	}
	free(count);
	free(seen);
}

/* Returns the relative residual of the checked gradient and the gradient with a bug. */
static double residual_with_bug(struct rows *r, enum row_bug bug, int tensor)
{
	const struct token_batch *b = &r->c->batch;
	double left = 0, all = 0;
	memcpy(r->row, r->rest, (size_t)r->c->tensors[tensor].n * sizeof(*r->row));
	for (int64_t p = 0; p < r->parts; p++)
		add_rows_with_bug(r, bug, p * b->n / r->parts * b->length,
			(p + 1) * b->n / r->parts * b->length);
	for (int64_t j = 0; j < r->c->tensors[tensor].n; j++) {
		double want = r->c->scale.common * r->row[j];
		double d = (double)r->c->seen[tensor][j] - want;
		left += d * d;
		all += want * want;
	}
	return all > 0 ? sqrt(left / all) : INFINITY;
}

/* Returns true if rows of frequent tokens are divided by their count, or have one occurrence.
 * Sets s->detail. */
bool explained_by_embedding_rows(struct cause_search *s)
{
	static const char *const texts[][2] = {
		{"each row is divided by how often its token occurs in ",
			" (scale_grad_by_freq)"},
		{"of the occurrences of a token in ",
			", only the last one counts: rows are written, not added"},
		{"of the occurrences of a token in ", ", only the first one counts"}};
	const struct step_check *c = s->c;
	const int64_t ranks = c->o.dp * c->o.fsdp, n = c->batch.n;
	const int64_t parts[] = {
		1, n, ranks, c->o.accumulation, ranks * c->o.accumulation};
	struct rows r;
	bool found = false;
	if (model_tensor(c, s->tensor) != c->weights.m.tokens ||
		c->tensors[s->tensor].n > MAX_ELEMENTS)
		return false;
	rows_init(&r, c, s->tensor);
	for (size_t p = 0; p < ARRAY_LEN(parts) && !found; p++)
		for (int bug = 0; bug < ROW_BUGS && !found; bug++) {
			char part[60] = "the batch";
			r.parts = parts[p];
			if (n % r.parts)
				break;
			found = is_within(c, s->tensor,
				residual_with_bug(&r, (enum row_bug)bug, s->tensor));
			if (r.parts > 1)
				snprintf(part, sizeof(part),
					"each of %lld parts of the batch",
					(long long)r.parts);
			if (found)
				snprintf(s->detail, sizeof(s->detail), "%s%s%s",
					texts[bug][0], part, texts[bug][1]);
		}
	rows_release(&r);
	return found;
}

/* The tokens of a step: inputs, targets, positions and documents, from arrays of integers. */
#include "check/batch.h"

#include <stdlib.h>
#include <string.h>

/* ---- what the arrays of a file are ---------------------------------------------------- */

struct roles {
	const struct int_array *inputs, *labels, *positions;
};

static bool is_named(const struct int_array *a, const char *const *names)
{
	const char *last = strrchr(a->name, '.');
	for (; *names; names++)
		if (!strcmp(last ? last + 1 : a->name, *names))
			return true;
	return false;
}

/* The rows of an array are those of a matrix; dimensions of 1 in front are left out. */
static int64_t width(const struct int_array *a)
{
	return a->dims[a->ndim - 1];
}

static int64_t rows(const struct int_array *a)
{
	int64_t n = 1;
	for (int i = 0; i + 1 < a->ndim; i++)
		n *= a->dims[i];
	return n;
}

static int find_roles(
	struct roles *r, const struct int_arrays *a, const char *path, struct err *e)
{
	static const char *const inputs[] = {
		"inputs", "input", "input_ids", "tokens", "windows", "batch", NULL};
	static const char *const labels[] = {"labels", "label", "targets", NULL};
	static const char *const positions[] = {"positions", "position_ids", "pos", NULL};
	*r = (struct roles){0};
	for (int i = 0; i < a->n; i++) {
		const struct int_array *x = &a->of[i];
		if (is_named(x, inputs))
			r->inputs = x;
		else if (is_named(x, labels))
			r->labels = x;
		else if (is_named(x, positions))
			r->positions = x;
	}
	if (!r->inputs && a->n)
		r->inputs = &a->of[0];
	if (!r->labels && a->n > 1 && r->inputs == &a->of[0] && !r->positions)
		r->labels = &a->of[1];
	if (!r->inputs)
		return err_set(e, EX_DATAERR, "%s has no array of integers", path);
	const struct int_array *others[] = {r->labels, r->positions};
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (others[i] && (width(others[i]) != width(r->inputs) ||
					 rows(others[i]) != rows(r->inputs)))
			return err_set(e, EX_DATAERR,
				"%s: inputs, labels and positions have different shapes",
				path);
	return 0;
}

/* ---- sequences ------------------------------------------------------------------------ */

static int token(int32_t *out, int64_t x, const char *path, struct err *e)
{
	*out = (int32_t)x;
	if (x >= 0 && x < INT32_MAX)
		return 0;
	return err_set(e, EX_DATAERR, "%s: %lld is no token", path, (long long)x);
}

/* How far labels are ahead of the inputs: 1, or 0 for those of Hugging Face; -1 if neither. */
static int shift_of(const struct roles *r)
{
	int64_t n = width(r->inputs), off[2] = {0};
	for (int64_t i = 0; i < rows(r->inputs); i++)
		for (int64_t t = 0; t + 1 < n; t++) {
			int64_t label = r->labels->v[i * n + t];
			off[0] += label >= 0 && label != r->inputs->v[i * n + t];
			off[1] += label >= 0 && label != r->inputs->v[i * n + t + 1];
		}
	return !off[1] ? 1 : !off[0] ? 0 : -1;
}

static int room(struct token_batch *b, int64_t length, int64_t more, const char *path,
	struct err *e)
{
	if (b->n && length != b->length)
		return err_set(e, EX_DATAERR,
			"%s: sequences of %lld positions, and %lld in the files before",
			path, (long long)length, (long long)b->length);
	if (length < 1)
		return err_set(e, EX_DATAERR, "%s: no position has a target", path);
	b->length = length;
	size_t n_bytes = (size_t)((b->n + more) * length) * sizeof(int32_t);
	int32_t **const all[] = {&b->tokens, &b->targets, &b->pos, &b->start};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		*all[i] = xrealloc(*all[i], n_bytes);
	return 0;
}

/* Documents begin where positions begin again, or behind the token that ends one. */
static int place(struct token_batch *b, int64_t i, const int64_t *pos,
	const struct batch_opts *o, const char *path, struct err *e)
{
	int64_t begin = 0, at = i * b->length;
	for (int64_t t = 0; t < b->length; t++) {
		bool ended = o->end >= 0 && t && b->tokens[at + t - 1] == o->end;
		if (t && (pos ? pos[t] == 0 : ended))
			begin = t;
		int64_t p = pos ? pos[t] : t - begin;
		if (p < 0 || p > INT32_MAX / 2)
			return err_set(e, EX_DATAERR, "%s: %lld is no position", path,
				(long long)p);
		b->pos[at + t] = (int32_t)p;
		b->start[at + t] = (int32_t)begin;
		b->documents |= begin > 0;
	}
	return 0;
}

static int add_row(struct token_batch *b, const struct roles *r, int64_t i, int shift,
	const char *path, struct err *e)
{
	int64_t n = width(r->inputs), at = b->n * b->length;
	const int64_t *in = r->inputs->v + i * n,
		      *labels = r->labels ? r->labels->v + i * n : in;
	for (int64_t t = 0; t < b->length; t++) {
		int64_t ahead = t + (r->labels && shift ? 0 : 1);
		int64_t target = ahead < n ? labels[ahead] : -1;
		if (token(&b->tokens[at + t], in[t], path, e) ||
			(target >= 0 && token(&b->targets[at + t], target, path, e)))
			return -1;
		if (target < 0)
			b->targets[at + t] = -1;
		b->counted += target >= 0;
		b->masked |= target < 0;
	}
	return 0;
}

static int add_file(struct token_batch *b, const char *path, const struct int_arrays *a,
	const struct batch_opts *o, struct err *e)
{
	struct roles r;
	if (find_roles(&r, a, path, e))
		return -1;
	int shift = r.labels ? shift_of(&r) : 1;
	if (shift < 0)
		return err_set(e, EX_DATAERR,
			"%s: the labels are neither the next tokens nor the inputs",
			path);
	int64_t n = width(r.inputs), more = rows(r.inputs);
	if (room(b, r.labels ? n : n - 1, more, path, e))
		return -1;
	for (int64_t i = 0; i < more; i++, b->n++)
		if (add_row(b, &r, i, shift, path, e) ||
			place(b, b->n, r.positions ? r.positions->v + i * n : NULL, o,
				path, e))
			return -1;
	return 0;
}

int token_batch_read(struct token_batch *b, int64_t n, char *const *files,
	const struct batch_opts *o, struct err *e)
{
	*b = (struct token_batch){0};
	for (int64_t i = 0; i < n; i++) {
		struct int_arrays a;
		int rc = arrays_read(&a, files[i], o->shape, e) ||
			 add_file(b, files[i], &a, o, e);
		arrays_free(&a);
		if (rc)
			return -1;
	}
	if (b->counted)
		return 0;
	return err_set(e, EX_DATAERR, "%s: no target counts", n ? files[0] : "the batch");
}

void token_batch_free(struct token_batch *b)
{
	free(b->tokens);
	free(b->targets);
	free(b->pos);
	free(b->start);
	*b = (struct token_batch){0};
}

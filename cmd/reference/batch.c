/* The tokens of a step: inputs, targets, positions and documents, from arrays of integers. */
#include "reference/batch.h"

#include <stdlib.h>
#include <string.h>

/* ---- what the arrays of a file are ---------------------------------------------------- */

enum role { INPUTS, LABELS, POSITIONS, MASK, ROLES };
struct roles {
	const struct int_array *of[ROLES]; /* NULL: not in the file */
};

/* By the last part of a name: those of torchtitan, Hugging Face, Megatron-LM. */
static const char *const role_names[ROLES][7] = {
	[INPUTS] = {"inputs", "input", "input_ids", "tokens", "windows", "batch"},
	[LABELS] = {"labels", "label", "targets"},
	[POSITIONS] = {"positions", "position_ids", "pos"},
	[MASK] = {"loss_mask"},
};

/* The last part of a name. */
static const char *last_name(const struct int_array *a)
{
	const char *dot = strrchr(a->name, '.');
	return dot ? dot + 1 : a->name;
}

static int named_role(const struct int_array *a)
{
	for (int r = 0; r < ROLES; r++)
		for (int i = 0; role_names[r][i]; i++)
			if (!strcmp(last_name(a), role_names[r][i]))
				return r;
	return ROLES;
}

/* Without a name, or with a place in a list as its name. */
static bool is_unnamed(const struct int_array *a)
{
	const char *name = last_name(a);
	return name[strspn(name, "0123456789")] == '\0';
}

/* The rows of an array are those of a matrix, whatever dimensions are in front. */
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

static bool hides(const struct int_array *mask)
{
	for (int64_t i = 0; i < rows(mask) * width(mask); i++)
		if (!mask->v[i])
			return true;
	return false;
}

/* Arrays without names are inputs, labels and positions, in this order; one with an unknown name is that of the
 * inputs if it is the only one. */
static int find_roles(
	struct roles *r, const struct int_arrays *a, const char *path, struct err *e)
{
	*r = (struct roles){0};
	for (int i = 0; i < a->n; i++) {
		int role = named_role(&a->of[i]);
		if (role < ROLES && r->of[role])
			return err_set(e, EX_DATAERR,
				"%s has several arrays of %s: give a file for each micro-batch",
				path, role_names[role][0]);
		if (role < ROLES)
			r->of[role] = &a->of[i];
		if (!strcmp(last_name(&a->of[i]), "attention_mask") && hides(&a->of[i]))
			return err_set(e, EX_UNAVAILABLE,
				"%s: its attention_mask hides tokens, as padding does, which is not "
				"computed here",
				path);
	}
	for (int i = 0, next = INPUTS; i < a->n; i++) {
		while (next < MASK && r->of[next])
			next++;
		if (next < MASK && is_unnamed(&a->of[i]))
			r->of[next] = &a->of[i];
	}
	if (!r->of[INPUTS] && a->n == 1)
		r->of[INPUTS] = &a->of[0];
	const struct int_array *in = r->of[INPUTS];
	if (!in)
		return err_set(e, EX_DATAERR,
			"%s has no array of integers that may be the inputs", path);
	for (int k = LABELS; k < ROLES; k++)
		if (r->of[k] &&
			(width(r->of[k]) != width(in) || rows(r->of[k]) != rows(in)))
			return err_set(e, EX_DATAERR,
				"%s: %s has another shape than the inputs", path,
				role_names[k][0]);
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
	const struct int_array *in = r->of[INPUTS], *labels = r->of[LABELS];
	const struct int_array *pos = r->of[POSITIONS];
	int64_t n = width(in), off[2] = {0};
	for (int64_t i = 0; i < rows(in); i++)
		for (int64_t t = 0; t + 1 < n; t++) {
			int64_t label = labels->v[i * n + t];
			/* (the last label of a document is its end, which is no input) */
			if (pos && !pos->v[i * n + t + 1])
				continue;
			off[0] += label >= 0 && label != in->v[i * n + t];
			off[1] += label >= 0 && label != in->v[i * n + t + 1];
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
	const struct int_array *in = r->of[INPUTS], *labels = r->of[LABELS],
			       *mask = r->of[MASK];
	int64_t n = width(in), at = b->n * b->length;
	const int64_t *from = (labels ? labels : in)->v + i * n;
	for (int64_t t = 0; t < b->length; t++) {
		int64_t ahead = t + (labels && shift ? 0 : 1);
		bool counts = ahead < n && (!mask || mask->v[i * n + t]);
		int64_t target = counts ? from[ahead] : -1;
		if (token(&b->tokens[at + t], in->v[i * n + t], path, e) ||
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
	bool labels = r.of[LABELS] != NULL;
	int shift = labels ? shift_of(&r) : 1;
	if (shift < 0)
		return err_set(e, EX_DATAERR,
			"%s: the labels are neither the next tokens nor the inputs",
			path);
	int64_t n = width(r.of[INPUTS]), more = rows(r.of[INPUTS]);
	const int64_t *pos = r.of[POSITIONS] ? r.of[POSITIONS]->v : NULL;
	if (room(b, labels ? n : n - 1, more, path, e))
		return -1;
	for (int64_t i = 0; i < more; i++, b->n++)
		if (add_row(b, &r, i, shift, path, e) ||
			place(b, b->n, pos ? pos + i * n : NULL, o, path, e))
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

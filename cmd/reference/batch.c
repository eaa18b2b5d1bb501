/* Builds the tokens of a step (inputs, targets, positions, documents) from arrays of integers. */
#include "reference/batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PADDED = 1 << 28 }; /* tokens of a batch with sequences of different lengths */
enum role { INPUTS, LABELS, POSITIONS, MASK, WEIGHTS, ROLES };
struct roles {
	const struct int_array *arrays[ROLES]; /* NULL: missing in the file */
};

/* Names of arrays, without prefix, in torchtitan, Hugging Face and Megatron-LM. */
static const char *const role_names[ROLES][7] = {
	[INPUTS] = {"inputs", "input", "input_ids", "tokens", "windows", "batch"},
	[LABELS] = {"labels", "label", "targets"},
	[POSITIONS] = {"positions", "position_ids", "pos"},
	[MASK] = {"loss_mask"},
	[WEIGHTS] = {"weights", "loss_weights"},
};

/* Returns the name after the last dot. */
static const char *name_after_dot(const struct int_array *a)
{
	const char *dot = strrchr(a->name, '.');
	return dot ? dot + 1 : a->name;
}

/* Returns the role that an array's name has; ROLES: none. */
static int role_of_name(const struct int_array *a)
{
	for (int r = 0; r < ROLES; r++)
		for (int i = 0; role_names[r][i]; i++)
			if (!strcmp(name_after_dot(a), role_names[r][i]))
				return r;
	return ROLES;
}

/* Returns true for a name that is empty or an index in a list. */
static bool is_unnamed(const struct int_array *a)
{
	const char *name = name_after_dot(a);
	return name[strspn(name, "0123456789")] == '\0';
}

/* Returns the size of the last dimension. All other dimensions count as rows. */
static int64_t columns_of(const struct int_array *a)
{
	return a->dims[a->ndim - 1];
}

static int64_t rows_of(const struct int_array *a)
{
	int64_t n = 1;
	for (int i = 0; i + 1 < a->ndim; i++)
		n *= a->dims[i];
	return n;
}

/* Returns true if an attention mask hides only positions at the end of sequences, where labels do
 * not count: no other position depends on them. */
static bool hides_only_padding(const struct int_array *mask, const struct roles *r)
{
	const struct int_array *in = r->arrays[INPUTS], *labels = r->arrays[LABELS];
	const int64_t n = columns_of(mask);
	for (int64_t i = 0; i < rows_of(mask) * n; i++) {
		const bool is_hidden = mask->v ? !mask->v[i] : !(mask->x[i] > 0);
		if (is_hidden &&
			(!labels || n != columns_of(in) || rows_of(mask) != rows_of(in) ||
				labels->v[i] >= 0))
			return false;
		if (!is_hidden && i % n &&
			(mask->v ? !mask->v[i - 1] : !(mask->x[i - 1] > 0)))
			return false;
	}
	return true;
}

/* Assigns roles. Unnamed arrays are inputs, labels and positions, in this order; an
 * unnamed array of floats is the weights. A single array with an unknown name is the
 * inputs. A file may have only weights. */
static int assign_roles(
	struct roles *r, const struct int_arrays *a, const char *path, struct err *e)
{
	const struct int_array *attention = NULL;
	*r = (struct roles){0};
	for (int i = 0; i < a->n; i++) {
		int role = role_of_name(&a->arrays[i]);
		if (role < ROLES && r->arrays[role])
			return err_set(e, EX_DATAERR,
				"%s has several arrays of %s; give one file per micro-batch",
				path, role_names[role][0]);
		if (role < ROLES)
			r->arrays[role] = &a->arrays[i];
		if (!strcmp(name_after_dot(&a->arrays[i]), "attention_mask"))
			attention = &a->arrays[i];
	}
	for (int i = 0, next = INPUTS; i < a->n; i++) {
		while (next < MASK && r->arrays[next])
			next++;
		if (is_unnamed(&a->arrays[i]) && a->arrays[i].x)
			r->arrays[WEIGHTS] = &a->arrays[i];
		else if (next < MASK && is_unnamed(&a->arrays[i]))
			r->arrays[next] = &a->arrays[i];
	}
	if (!r->arrays[INPUTS] && !r->arrays[WEIGHTS] && a->n == 1)
		r->arrays[INPUTS] = &a->arrays[0];
	const struct int_array *in = r->arrays[INPUTS];
	if (!in && r->arrays[WEIGHTS])
		return 0;
	if (!in)
		return err_set(e, EX_DATAERR,
			"%s: inputs not found; name an array of integers input_ids",
			path);
	for (int k = INPUTS; k < WEIGHTS; k++)
		if (r->arrays[k] && !r->arrays[k]->v)
			return err_set(e, EX_DATAERR,
				"%s: array %s has values that are not integers", path,
				role_names[k][0]);
	for (int k = LABELS; k < WEIGHTS; k++)
		if (r->arrays[k] && (columns_of(r->arrays[k]) != columns_of(in) ||
					    rows_of(r->arrays[k]) != rows_of(in)))
			return err_set(e, EX_DATAERR,
				"%s: the shape of array %s differs from the shape of the inputs",
				path, role_names[k][0]);
	if (attention && !hides_only_padding(attention, r))
		return err_set(e, EX_UNAVAILABLE,
			"%s: attention_mask hides tokens, which is supported only at the end of "
			"sequences, where labels are below 0",
			path);
	return 0;
}

static int set_token(int32_t *out, int64_t x, const char *path, struct err *e)
{
	*out = (int32_t)x;
	if (x >= 0 && x < INT32_MAX)
		return 0;
	return err_set(
		e, EX_DATAERR, "%s: token %lld is out of range", path, (long long)x);
}

/* Returns how far labels are ahead of the inputs: 1, or 0 as in Hugging Face; -1: neither. */
static int label_shift(const struct roles *r)
{
	const struct int_array *in = r->arrays[INPUTS], *labels = r->arrays[LABELS];
	const struct int_array *pos = r->arrays[POSITIONS];
	int64_t n = columns_of(in), n_wrong[2] = {0};
	for (int64_t i = 0; i < rows_of(in); i++)
		for (int64_t t = 0; t + 1 < n; t++) {
			int64_t label = labels->v[i * n + t];
			/* (a document's last label is its end token, which is not an input) */
			if (pos && !pos->v[i * n + t + 1])
				continue;
			n_wrong[0] += label >= 0 && label != in->v[i * n + t];
			n_wrong[1] += label >= 0 && label != in->v[i * n + t + 1];
		}
	return !n_wrong[1] ? 1 : !n_wrong[0] ? 0 : -1;
}

/* Fills a sequence from position n on with copies of the token before, without targets. */
static void pad_sequence(struct token_batch *b, int64_t i, int64_t n)
{
	for (int64_t t = n, at = i * b->length + n; t < b->length; t++, at++) {
		b->tokens[at] = b->tokens[at - 1];
		b->targets[at] = -1;
		b->pos[at] = b->pos[at - 1] + 1;
		b->start[at] = b->start[at - 1];
		b->masked = true;
	}
}

/* Makes space for n_more sequences, and pads the batch's sequences to this length. */
static void reserve_sequences(struct token_batch *b, int64_t length, int64_t n_more)
{
	const int64_t old = b->length;
	b->length = max64(length, old);
	size_t n_bytes = (size_t)((b->n + n_more) * b->length) * sizeof(int32_t);
	int32_t **const all[] = {&b->tokens, &b->targets, &b->pos, &b->start};
	for (size_t k = 0; k < ARRAY_LEN(all); k++) {
		*all[k] = xrealloc(*all[k], n_bytes);
		for (int64_t i = b->n - 1; i > 0 && old < length; i--)
			memmove(*all[k] + i * length, *all[k] + i * old,
				(size_t)old * sizeof(int32_t));
	}
	for (int64_t i = 0; i < b->n; i++)
		pad_sequence(b, i, old);
}

/* Returns -1 with *e set if n_more sequences of this length cannot be added to the batch. */
static int check_length(const struct token_batch *b, const struct roles *r,
	int64_t length, int64_t n_more, const char *path, struct err *e)
{
	const bool may_pad = r->arrays[LABELS] && !r->arrays[WEIGHTS] && !b->weights;
	if (length < 1)
		return err_set(e, EX_DATAERR,
			"%s: sequences of one token have no targets", path);
	if (b->n && length != b->length && !may_pad)
		return err_set(e, EX_DATAERR,
			"%s: sequences have %lld positions, but %lld in the preceding files",
			path, (long long)length, (long long)b->length);
	if (b->n && length != b->length &&
		b->n + n_more > MAX_PADDED / max64(length, b->length))
		return err_set(e, EX_DATAERR,
			"%s: padded to the longest sequence, the batch has more than %d tokens",
			path, MAX_PADDED);
	return 0;
}

/* Sets positions of the next sequence, and document starts: where positions restart, or after an
 * end token. */
static int set_positions(struct token_batch *b, int64_t length, const int64_t *pos,
	const struct batch_opts *o, const char *path, struct err *e)
{
	int64_t begin = 0, offset = b->n * b->length;
	for (int64_t t = 0; t < length; t++) {
		bool after_end = o->end >= 0 && t && b->tokens[offset + t - 1] == o->end;
		if (t && (pos ? pos[t] == 0 : after_end))
			begin = t;
		int64_t p = pos ? pos[t] : t - begin;
		if (p < 0 || p > INT32_MAX / 2)
			return err_set(e, EX_DATAERR, "%s: position %lld is out of range",
				path, (long long)p);
		b->pos[offset + t] = (int32_t)p;
		b->start[offset + t] = (int32_t)begin;
		b->documents |= begin > 0;
	}
	return 0;
}

/* Sets tokens and targets of the next sequence from row i of the arrays. */
static int append_sequence(struct token_batch *b, const struct roles *r, int64_t i,
	int shift, const char *path, struct err *e)
{
	const int64_t length = columns_of(r->arrays[INPUTS]) - !r->arrays[LABELS];
	const struct int_array *in = r->arrays[INPUTS], *labels = r->arrays[LABELS],
			       *mask = r->arrays[MASK];
	int64_t n = columns_of(in), at = b->n * b->length;
	const int64_t *labels_row = (labels ? labels : in)->v + i * n;
	for (int64_t t = 0; t < length; t++) {
		int64_t ahead = t + (labels && shift ? 0 : 1);
		bool is_target = ahead < n && (!mask || mask->v[i * n + t]);
		int64_t target = is_target ? labels_row[ahead] : -1;
		if (set_token(&b->tokens[at + t], in->v[i * n + t], path, e) ||
			(target >= 0 && set_token(&b->targets[at + t], target, path, e)))
			return -1;
		if (target < 0)
			b->targets[at + t] = -1;
		b->counted += target >= 0;
		b->masked |= target < 0;
	}
	return 0;
}

/* Progress of the weights, which may come in later files than the tokens. */
struct weight_rows {
	int64_t n; /* sequences that have weights */
	/* Offset of the labels in arrays with one element per label: position t has
	 * element t + ahead. -1: it differs between files. */
	int ahead;
};

/* Appends weights [rows][labels], or without sequences' first labels, which are not targets. */
static int append_weights(struct token_batch *b, struct weight_rows *done,
	const struct int_array *a, const char *path, struct err *e)
{
	const int64_t length = b->length, columns = columns_of(a), n_rows = rows_of(a);
	/* (windows have one more token than positions; Hugging Face's labels have as many) */
	const bool per_label =
		done->ahead ? columns == length + (done->ahead > 1) : columns == length;
	const int64_t ahead = per_label ? done->ahead > 0 : 0;
	if (!b->n)
		return err_set(e, EX_DATAERR,
			"%s has weights but no tokens; give the files with the tokens first",
			path);
	if (done->ahead < 0)
		return err_set(e, EX_DATAERR,
			"%s: the weights cannot be aligned: the labels of some preceding files "
			"equal the inputs, but others are the next tokens or absent; save the "
			"weights in the same files as the tokens",
			path);
	if (!per_label && columns != (done->ahead == 1 ? length - 1 : length))
		return err_set(e, EX_DATAERR,
			"%s: weights have %lld columns, but sequences have %lld positions",
			path, (long long)columns, (long long)length);
	if (n_rows > b->n - done->n)
		return err_set(e, EX_DATAERR,
			"%s has weights of %lld sequences, but only %lld sequences still "
			"lack weights",
			path, (long long)n_rows, (long long)(b->n - done->n));
	size_t n_bytes = (size_t)(b->n * length) * sizeof(*b->weights);
	b->weights = xrealloc(b->weights, n_bytes);
	for (int64_t i = 0; i < n_rows * length; i++) {
		int64_t from = i % length + ahead, at = done->n * length + i;
		int64_t k = i / length * columns + from;
		bool is_target = b->targets[at] >= 0 && from < columns;
		double x = !is_target ? 0 : a->x ? a->x[k] : (double)a->v[k];
		if (!(fabs(x) <= 1e30))
			return err_set(e, EX_DATAERR,
				"%s: weight %g is not a finite number up to 1e30", path,
				x);
		b->weights[at] = x;
	}
	done->n += n_rows;
	return 0;
}

/* Sets the divisor of the sum of losses. */
static int set_divisor(struct token_batch *b, const char *option, struct err *e)
{
	double sum = 0;
	if (!option || !strcmp(option, "counted"))
		return 0;
	if (!strcmp(option, "weights")) {
		for (int64_t i = 0; b->weights && i < b->n * b->length; i++)
			sum += b->weights[i];
		b->divisor = b->weights ? sum : (double)b->counted;
		return b->divisor < 0 || b->divisor > 0
			       ? 0
			       : err_set(e, EX_DATAERR,
					 "--divide-by weights: the sum of the weights is 0");
	}
	if (parse_double(option, &b->divisor) || !(b->divisor > 0 && b->divisor <= 1e30))
		return err_set(e, EX_USAGE,
			"--divide-by '%s': not 'counted', 'weights' or a number above 0",
			option);
	return 0;
}

/* Appends the sequences of a file, or its weights to the sequences of preceding files. */
static int append_file(struct token_batch *b, struct weight_rows *w, const char *path,
	const struct int_arrays *a, const struct batch_opts *o, struct err *e)
{
	struct roles r;
	if (assign_roles(&r, a, path, e))
		return -1;
	if (!r.arrays[INPUTS])
		return append_weights(b, w, r.arrays[WEIGHTS], path, e);
	bool has_labels = r.arrays[LABELS] != NULL;
	int shift = has_labels ? label_shift(&r) : 1;
	if (shift < 0)
		return err_set(e, EX_DATAERR,
			"%s: the labels are neither the next tokens nor the inputs",
			path);
	int64_t n = columns_of(r.arrays[INPUTS]), n_rows = rows_of(r.arrays[INPUTS]);
	const int64_t *pos = r.arrays[POSITIONS] ? r.arrays[POSITIONS]->v : NULL;
	const int64_t length = has_labels ? n : n - 1;
	if (check_length(b, &r, length, n_rows, path, e))
		return -1;
	reserve_sequences(b, length, n_rows);
	int ahead = !has_labels ? 2 : !shift;
	w->ahead = r.arrays[WEIGHTS] || !b->n || w->ahead == ahead ? ahead : -1;
	if (r.arrays[WEIGHTS] && w->n < b->n)
		return err_set(e, EX_DATAERR,
			"%s has weights, but preceding files have none", path);
	for (int64_t i = 0; i < n_rows; i++, b->n++) {
		if (append_sequence(b, &r, i, shift, path, e) ||
			set_positions(b, length, pos ? pos + i * n : NULL, o, path, e))
			return -1;
		pad_sequence(b, b->n, length);
	}
	return r.arrays[WEIGHTS] ? append_weights(b, w, r.arrays[WEIGHTS], path, e) : 0;
}

int token_batch_read(struct token_batch *b, int64_t n, char *const *files,
	const struct batch_opts *o, struct err *e)
{
	struct weight_rows weights = {0};
	*b = (struct token_batch){0};
	for (int64_t i = 0; i < n; i++) {
		struct int_arrays a;
		int rc = arrays_read(&a, files[i], o->shape, e) ||
			 append_file(b, &weights, files[i], &a, o, e);
		arrays_release(&a);
		if (rc)
			return -1;
	}
	if (b->weights && weights.n < b->n)
		return err_set(e, EX_DATAERR,
			"--batch: %lld of %lld sequences have no weights",
			(long long)(b->n - weights.n), (long long)b->n);
	if (b->counted)
		return set_divisor(b, o->divide_by, e);
	return err_set(e, EX_DATAERR, "%s: no target counts: all labels are masked",
		n ? files[0] : "the batch");
}

void token_batch_free(struct token_batch *b)
{
	free(b->tokens);
	free(b->targets);
	free(b->pos);
	free(b->start);
	free(b->weights);
	*b = (struct token_batch){0};
}

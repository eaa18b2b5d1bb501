/* pad_token_id: Hugging Face's classes give this token's row no gradient as an input (padding_idx
 * of torch.nn.Embedding). If a step does so, it is compared with a reference that does so, too. */
#include "check/check.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>

enum { MAX_CONFIG = 1 << 20 };

/* Returns pad_token_id of a config.json, or a directory with one; -1: missing or unreadable. */
static int64_t read_pad_token(const char *path)
{
	scoped_ptr char *inside = text_printf("%s/config.json", path);
	scoped_str text = {0};
	struct err e = {0};
	json_error_t why;
	path = file_is_directory(path) ? inside : path;
	if (!file_exists(path) || file_check_regular(path, &e) ||
		file_read(path, MAX_CONFIG, &text, &e))
		return -1;
	json_auto_t *config = load_json(text.s ? text.s : "", text.len, 0, &why);
	const json_t *token = json_object_get(config, "pad_token_id");
	return json_is_integer(token) ? json_integer_value(token) : -1;
}

/* Returns the index of the token table; -1 if it is frozen or the batch lacks the token. */
static int find_padded_table(const struct step_check *c, int64_t token)
{
	const struct model *m = &c->weights.m;
	bool has_token = false;
	for (int64_t i = 0; i < c->batch.n * c->batch.length; i++)
		has_token |= c->batch.tokens[i] == token;
	for (int i = 0; i < c->n && has_token; i++)
		if (&m->tensors[c->tensors[i].in_model] == m->tokens &&
			!c->tensors[i].frozen)
			return i;
	return -1;
}

/* Sets row[dim] to the token's row of the run's gradient, up to a common factor. */
static int read_gradient_row(
	const struct step_check *c, int table, int64_t token, double *row, struct err *e)
{
	const int64_t dim = c->weights.m.tokens->dims[1];
	struct tensor_step t = {0};
	float *given = NULL;
	double lost;
	if (c->given.n ? given_gradients_read(&c->given, table, &given, &lost, e)
		       : tensor_step_read(&t, &c->files, table, STEP_MEANS, e))
		return -1;
	for (int64_t j = 0, at = token * dim; j < dim; j++, at++)
		row[j] = given ? (double)given[at]
			       : (double)t.m1[at] -
					 (t.m0 ? c->files.adam.beta1 * (double)t.m0[at]
					       : 0);
	free(given);
	tensor_step_free(&t);
	return 0;
}

/* Returns the cosine of the run's row and the reference's row; 1 if both are zero. */
static double row_cosine(const struct step_check *c, const double *row, int64_t token)
{
	const struct tensor *t = c->weights.m.tokens;
	const float *g = c->reference.g[t - c->weights.m.tensors];
	double ab = 0, aa = 0, bb = 0, all = 0;
	for (int64_t j = 0, at = token * t->dims[1]; j < t->dims[1]; j++, at++) {
		ab += row[j] * (double)g[at];
		aa += row[j] * row[j];
		bb += (double)g[at] * (double)g[at];
	}
	for (int64_t j = 0; j < tensor_size(t); j++)
		all += (double)g[j] * (double)g[j];
	if (bb <= 1e-20 * all)
		return aa <= 1e-20 * all;
	return aa > 0 ? ab / sqrt(aa * bb) : 0;
}

int apply_padding_idx(struct step_check *c, const char *config, const char *before,
	int (*compute)(struct step_check *, struct err *), struct err *e)
{
	const int64_t token = read_pad_token(config ? config : before);
	const bool has_padding = token >= 0 && token < c->weights.m.c.vocab;
	const int table = has_padding ? find_padded_table(c, token) : -1;
	const char *why;
	if (table < 0)
		return 0;
	scoped_ptr double *row =
		xcalloc((size_t)c->weights.m.tokens->dims[1], sizeof(*row));
	const enum reference_kind old_kind = c->o.reference;
	struct gradients unpadded = c->reference;
	if (read_gradient_row(c, table, token, row, e))
		return -1;
	const double unpadded_cosine = row_cosine(c, row, token);
	c->weights.padding = token + 1;
	c->reference = (struct gradients){0};
	if (!reference_can_train(&c->weights, &c->batch, &why))
		c->o.reference = REFERENCE_FLOAT64;
	if (compute(c, e))
		return gradients_free(&unpadded), -1;
	if (row_cosine(c, row, token) > unpadded_cosine) {
		gradients_free(&unpadded);
		add_finding(c, FINDING_NOTE, NULL,
			"the embedding of token %lld (pad_token_id) has no gradient as an "
			"input: padding_idx of torch.nn.Embedding leaves it out",
			(long long)token);
		return 0;
	}
	gradients_free(&c->reference);
	c->reference = unpadded;
	c->o.reference = old_kind;
	c->weights.padding = 0;
	return 0;
}

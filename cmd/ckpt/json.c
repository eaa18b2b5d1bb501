/* The metadata of a checkpoint as JSON: attributes, options, tensors with hashes. */
#include "ckpt/print.h"

#include "base/json.h"
#include "kernels/kernels.h"
#include "options/options.h"

#include <errno.h>

/* Returns a hash as JSON text, since many JSON readers do not keep 64-bit integers. */
static json_t *hash_json(uint64_t x)
{
	return json_sprintf("0x%016llx", (unsigned long long)x);
}

/* Returns a new JSON value: the member of *info that the field describes. */
static json_t *field_json(const struct h5_field *f, const void *info)
{
	const char *value = (const char *)info + f->offset;
	switch (f->type) {
	case H5_I64:
		return json_integer(*(const int64_t *)(const void *)value);
	case H5_U64:
		return hash_json(*(const uint64_t *)(const void *)value);
	case H5_F64:
		return number_json(*(const double *)(const void *)value);
	default:
		return json_string(*(const char *const *)(const void *)value);
	}
}

/* Adds a value to an object. Fails if the text of the value is not UTF-8: value is then NULL. */
static int add_value(json_t *object, const char *key, json_t *value, struct err *e)
{
	return value && !json_object_set_new(object, key, value)
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: not valid UTF-8, which JSON requires", key);
}

/* Adds an option to a JSON object. Returns -1 with *e set if it is not UTF-8. */
static int add_option(void *object, const char *key, const char *value, struct err *e)
{
	if (add_value(object, key, json_string(value), e))
		return err_prefix(e, "option ");
	return 0;
}

static json_t *attributes_json(const struct ckpt_info *info, struct err *e)
{
	json_t *o = json_object();
	for (const struct h5_field *f = ckpt_fields; f->name && !e->code; f++)
		add_value(o, f->name, field_json(f, info), e);
	return o;
}

struct tensor_hasher {
	struct device d;
	const struct ckpt_tensor *t;
	uint64_t sum;
};

/* Adds a block of a tensor to the hash; called by ckpt_for_each_block(). */
static int hash_block(void *hasher, int64_t first, const float *x, int64_t n)
{
	struct tensor_hasher *h = hasher;
	ckpt_hash_add(&h->d, &h->sum, h->t, first, x, n);
	return 0;
}

/* Returns a new object with a tensor's name, shape and one hash per group. Reads and
 * hashes its elements with *h. On failure *e is set, and hashes may be missing. */
static json_t *tensor_json(
	const struct ckpt *c, int i, struct tensor_hasher *h, struct err *e)
{
	const struct ckpt_tensor *t = &c->tensors[i];
	json_t *o = json_object(), *shape = json_array(), *hashes = json_object();
	for (int k = 0; k < t->ndim; k++)
		json_array_append_new(shape, json_integer(t->dims[k]));
	add_value(o, "name", json_string(t->name), e);
	json_object_set_new(o, "dtype", json_string("f32"));
	json_object_set_new(o, "shape", shape);
	json_object_set_new(o, "hash", hashes);
	h->t = t;
	for (int g = 0; g < (t->stateless ? 1 : c->groups.n) && !e->code; g++) {
		h->sum = 0;
		ckpt_for_each_block(c, g, i, hash_block, h, e);
		if (!e->code)
			add_value(hashes, c->groups.v[g], hash_json(h->sum), e);
	}
	return o;
}

static json_t *tensors_json(const struct ckpt *c, const int *order, struct err *e)
{
	json_t *list = json_array();
	struct tensor_hasher h = {.sum = 0};
	device_open_cpu(&h.d, 0);
	for (int i = 0; i < c->n_tensors && !e->code; i++)
		json_array_append_new(list, tensor_json(c, order ? order[i] : i, &h, e));
	return list;
}

int ckpt_export_json(const struct ckpt *c, const int *order, FILE *f, struct err *e)
{
	json_t *o = json_object(), *options = json_object(), *numbers = json_array();
	struct err first_error = {0};
	json_object_set_new(o, "size_bytes", json_integer(c->size_bytes));
	json_object_set_new(o, "attributes", attributes_json(&c->info, &first_error));
	json_object_set_new(o, "options", options);
	if (!first_error.code && conf_parse(c->config.s, c->config.len, c->path,
					 add_option, options, &first_error))
		first_error.code = EX_DATAERR;
	json_object_set_new(o, "tokenizer",
		c->tokenizer.kind ? json_string(c->tokenizer.kind->name) : json_null());
	json_object_set_new(o, "vocab", json_integer(c->tokenizer.vocab.n));
	for (int64_t i = 0; i < c->n_numbers; i++)
		json_array_append_new(numbers, number_json(c->numbers[i]));
	json_object_set_new(o, "edit", numbers);
	if (!first_error.code)
		json_object_set_new(o, "tensors", tensors_json(c, order, &first_error));
	if (!first_error.code &&
		(json_dumpf(o, f, JSON_INDENT(2)) || putc('\n', f) == EOF))
		err_set(&first_error, EX_IOERR, "standard output: %s", strerror(errno));
	json_decref(o);
	if (first_error.code)
		*e = first_error;
	return first_error.code ? -1 : 0;
}

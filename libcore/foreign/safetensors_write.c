/* Writes safetensors files. Tensors are sorted by name, as in the format's own library. */
#include "foreign/huggingface.h"

#include "foreign/foreign_internal.h"

#include <jansson.h>

static const char *const type_names[] = {
	[DT_F32] = "F32", [DT_BF16] = "BF16", [DT_F16] = "F16"};
static const char zeros[ST_DIGITS + 1] = "0000000000000000";

static int64_t count_elements(const struct st_source *t)
{
	int64_t n = 1;
	for (int i = 0; i < t->ndim; i++)
		n *= t->dims[i];
	return n;
}

int64_t safetensors_bytes(const struct st_source *t, enum dtype dtype)
{
	return count_elements(t) * dtype_bytes(dtype);
}

/* Returns the header entry of a tensor at *offset, a new reference. Advances *offset past it. */
static json_t *make_header_entry(
	const struct st_source *t, enum dtype dtype, int64_t *offset)
{
	json_t *shape = json_array();
	int64_t begin = *offset;
	*offset += safetensors_bytes(t, dtype);
	for (int i = 0; i < t->ndim; i++)
		json_array_append_new(shape, json_integer(t->dims[i]));
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_names[dtype], "shape",
		shape, "data_offsets", (json_int_t)begin, (json_int_t)*offset);
}

/* Makes the header: length, then JSON padded to 8 bytes. *digits: offset of the checksum. */
static void make_header(const struct st_write *w, struct str *out, int64_t *digits)
{
	json_auto_t *root = json_object();
	int64_t offset = 0;
	json_object_set_new(root, "__metadata__",
		json_pack("{s:s, s:s, s:s, s:s, s:s}", "xxh3", zeros, "format", "pt",
			"created_by", "pt-ckpt " PT_VERSION, "pt_options_xxh3",
			w->options_xxh3, "pt_param_hash", w->param_hash));
	for (int i = 0; i < w->n; i++)
		json_object_set_new(root, w->list[i].name,
			make_header_entry(&w->list[i], w->dtype, &offset));
	scoped_ptr char *text = json_dumps(root, JSON_COMPACT);
	size_t len = strlen(text);
	uint64_t n = (uint64_t)round_up((int64_t)len, 8);
	for (int i = 0; i < 8; i++)
		str_putc(out, (char)(n >> 8 * i & 255));
	str_puts(out, text);
	for (; len < n; len++)
		str_putc(out, ' ');
	*digits = (char *)memmem(out->s, out->len, zeros, ST_DIGITS) - out->s;
}

static int write_file(struct number_file *f, const struct st_write *w, struct err *e)
{
	scoped_str header = {0};
	int64_t digits;
	char text[ST_DIGITS + 1];
	make_header(w, &header, &digits);
	int rc = number_file_append_bytes(f, header.s, (int64_t)header.len, e);
	for (int i = 0; i < w->n && !rc; i++) {
		int64_t end = f->n + count_elements(&w->list[i]);
		rc = w->write(w->arg, w->list[i].number, f, e);
		BUG_ON(!rc && f->n != end);
	}
	snprintf(text, sizeof(text), "%016llx", (unsigned long long)number_file_hash(f));
	return rc || number_file_patch(f, text, ST_DIGITS, digits, e) ? -1 : 0;
}

int safetensors_write(const char *path, const struct st_write *w, struct err *e)
{
	struct number_file f;
	if (number_file_open(&f, path, w->dtype, e))
		return -1;
	return number_file_commit(&f, write_file(&f, w, e), e);
}

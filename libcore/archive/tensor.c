/* One torch.save() archive: parses its tree, finds tensors in it, and converts elements. */
#include "archive/archive_internal.h"

/* ---- types -------------------------------------------------------------------------- */

/* X(name in PyTorch, its storage class, type in C, conversion of x to double) */
#define TYPES(X)                                                      \
	X(float64, DoubleStorage, double, x)                          \
	X(float32, FloatStorage, float, (double)x)                    \
	X(float16, HalfStorage, uint16_t, double_from_half(x))        \
	X(bfloat16, BFloat16Storage, uint16_t, double_from_bfloat(x)) \
	X(int64, LongStorage, int64_t, (double)x)                     \
	X(int32, IntStorage, int32_t, (double)x)                      \
	X(int16, ShortStorage, int16_t, (double)x)                    \
	X(int8, CharStorage, int8_t, (double)x)                       \
	X(uint8, ByteStorage, uint8_t, (double)x)                     \
	X(bool, BoolStorage, uint8_t, x ? 1. : 0.)

#define TYPE_ID(name, storage, type, value) TYPE_##name,
enum { TYPES(TYPE_ID) N_TYPES };
#define TYPE_ROW(name, storage, type, value) {#name, #storage, sizeof(type)},
static const struct {
	const char *name, *storage;
	int64_t n_bytes;
} types[] = {TYPES(TYPE_ROW)};

static float float_from_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

static double double_from_bfloat(uint16_t x)
{
	return (double)float_from_bits((uint32_t)x << 16);
}

/* Converts the bits of an fp16 value to double, exactly, including subnormals, infinity and NaN. */
static double double_from_half(uint16_t x)
{
	uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31;
	uint32_t fraction = x & 1023;
	if (exponent == 31)
		return (double)float_from_bits(sign | 0x7f800000 | fraction << 13);
	if (exponent)
		return (double)float_from_bits(
			sign | (exponent + 112) << 23 | fraction << 13);
	return (sign ? -1. : 1.) * fraction * 0x1p-24;
}

#define TYPE_CASE(name, storage, type, value)                                 \
	case TYPE_##name:                                                     \
		for (int64_t i = 0; i < n; i++) {                             \
			type x;                                               \
			memcpy(&x, from + i * (int64_t)sizeof(x), sizeof(x)); \
			out[i] = (double)(value);                             \
		}                                                             \
		break;
void dtype_to_doubles(int dtype, const void *raw, int64_t n, double *out)
{
	const char *from = raw;
	switch (dtype) {
		TYPES(TYPE_CASE)
	}
}

void dtype_to_floats(int dtype, const void *raw, int64_t n, float *out)
{
	enum { PIECE = 512 };
	double doubles[PIECE];
	const uint16_t *half = raw;
	if (dtype == TYPE_float32) { /* keeps the bits of NaN, too */
		memcpy(out, raw, (size_t)n * sizeof(*out));
		return;
	}
	for (int64_t i = 0; dtype == TYPE_bfloat16 && i < n; i++)
		out[i] = float_from_bits((uint32_t)half[i] << 16);
	for (int64_t i = 0; dtype != TYPE_bfloat16 && i < n; i += PIECE) {
		int64_t part = min64(PIECE, n - i);
		dtype_to_doubles(dtype, (const char *)raw + i * types[dtype].n_bytes,
			part, doubles);
		for (int64_t k = 0; k < part; k++)
			out[i + k] = (float)doubles[k];
	}
}

const char *torch_dtype_name(int dtype)
{
	return types[dtype].name;
}

int64_t dtype_size(int dtype)
{
	return types[dtype].n_bytes;
}

int dtype_of_name(const char *name, size_t n_bytes)
{
	for (int i = 0; i < N_TYPES; i++)
		if (strlen(types[i].name) == n_bytes &&
			!memcmp(types[i].name, name, n_bytes))
			return i;
	return -1;
}

/* Returns the type of a storage class such as FloatStorage; -1: unknown. */
static int dtype_of_storage(const char *name, size_t n_bytes)
{
	for (int i = 0; i < N_TYPES; i++)
		if (strlen(types[i].storage) == n_bytes &&
			!memcmp(types[i].storage, name, n_bytes))
			return i;
	return -1;
}

/* Sets *pkl to the entry PREFIX/data.pkl, and a->prefix to the prefix. Fails if it is missing. */
static int find_pickle(struct archive *a, const struct zip_entry **pkl, struct err *e)
{
	static const char name[] = "data.pkl";
	*pkl = NULL;
	for (int64_t i = 0; i < a->zip.n; i++) {
		const char *slash = strchr(a->zip.entries[i].name, '/');
		if (slash && !strcmp(slash + 1, name))
			*pkl = &a->zip.entries[i];
	}
	if (!*pkl)
		return err_set(e, EX_DATAERR,
			"%s: data.pkl is missing: not an archive of "
			"torch.save()",
			a->zip.name);
	str_add(&a->prefix, (*pkl)->name, strlen((*pkl)->name) - strlen(name));
	return 0;
}

/* Fails if the archive specifies a byte order other than "little". */
static int check_byte_order(const struct archive *a, struct err *e)
{
	scoped_str order = {0};
	scoped_ptr char *name = text_printf("%sbyteorder", a->prefix.s);
	const struct zip_entry *x = zip_find(&a->zip, name);
	int rc = x && x->n_bytes < 16 ? zip_read(&a->zip, x, &order, e) : 0;
	if (!rc && order.s && strcmp(order.s, "little"))
		rc = err_set(e, EX_UNAVAILABLE,
			"%s: byte order \"%s\" is not supported, only \"little\"",
			a->zip.name, order.s);
	return rc;
}

int archive_open(struct archive *a, int fd, const char *name, int64_t begin, int64_t size,
	struct err *e)
{
	const struct zip_entry *entry;
	*a = (struct archive){.prefix = {0}};
	scoped_str pkl = {0};
	int rc = zip_open(&a->zip, fd, name, begin, size, e) ||
		 find_pickle(a, &entry, e) || check_byte_order(a, e) ||
		 zip_read(&a->zip, entry, &pkl, e);
	if (!rc) {
		const struct pickle_bytes bytes = {pkl.s, pkl.len};
		a->n_parsed = (int64_t)pkl.len + 64 * a->zip.n;
		rc = pickle_parse(&a->tree, &bytes, name, e);
	}
	if (rc)
		archive_close(a);
	return rc ? -1 : 0;
}

void archive_close(struct archive *a)
{
	pickle_release(&a->tree);
	zip_close(&a->zip);
	str_free(&a->prefix);
}

/* ---- tensors --------------------------------------------------------------------------- */

/* Sets *called to the function that makes a tensor, and *arguments to its arguments. A parameter is
 * a call with its tensor; a parameter with attributes is _rebuild_from_type_v2(function, type,
 * arguments, attributes). */
static void unwrap_parameter(
	const struct pickle *p, uint32_t node, uint32_t *called, uint32_t *arguments)
{
	enum { MAX_WRAPPERS = 4 };
	*called = pickle_part(p, node, PICKLE_CALLED);
	*arguments = pickle_part(p, node, PICKLE_ARGUMENTS);
	for (int i = 0; i < MAX_WRAPPERS; i++) {
		if (pickle_is_global(
			    p, *called, "torch._tensor", "_rebuild_from_type_v2")) {
			*called = pickle_item(p, *arguments, 0);
			*arguments = pickle_item(p, *arguments, 2);
		} else if (pickle_is_global(
				   p, *called, "torch._utils", "_rebuild_parameter") ||
			   pickle_is_global(p, *called, "torch._utils",
				   "_rebuild_parameter_with_state")) {
			node = pickle_item(p, *arguments, 0);
			*called = pickle_part(p, node, PICKLE_CALLED);
			*arguments = pickle_part(p, node, PICKLE_ARGUMENTS);
		} else {
			return;
		}
	}
}

/* Reads a tuple of integers. Returns -1 if the node is anything else. */
static int read_integers(
	const struct pickle *p, uint32_t node, int64_t out[TORCH_MAX_DIMS], int *n)
{
	struct pickle_each it;
	uint32_t x;
	*n = 0;
	if (pickle_kind(p, node) != PICKLE_TUPLE)
		return -1;
	pickle_begin(&it, p, node);
	while (pickle_next(&it, &x))
		if (*n == TORCH_MAX_DIMS || pickle_int(p, x, &out[(*n)++]))
			return -1;
	return 0;
}

/* Reads a storage's persistent id: ('storage', torch.FloatStorage, '0', 'cpu', elements). */
static int read_storage(const struct pickle *p, uint32_t node, struct tensor_info *d)
{
	size_t n;
	uint32_t id = pickle_kind(p, node) == PICKLE_PERSISTENT
			      ? pickle_part(p, node, PICKLE_CALLED)
			      : 0;
	const char *type = pickle_global_name(p, pickle_item(p, id, 1), &n);
	d->storage_key = pickle_text(p, pickle_item(p, id, 2), &d->key_bytes);
	d->dtype = type ? dtype_of_storage(type, n) : -1;
	return d->storage_key && d->dtype >= 0 && d->key_bytes < 64 &&
			       !pickle_int(p, pickle_item(p, id, 4), &d->n_stored) &&
			       d->n_stored >= 0
		       ? 0
		       : -1;
}

bool shape_fits(const int64_t *dims, int ndim)
{
	int64_t n = 1;
	for (int i = 0; i < ndim; i++)
		if (dims[i] < 0 || __builtin_mul_overflow(n, max64(1, dims[i]), &n) ||
			n > INT64_MAX / 8)
			return false;
	return true;
}

/* Returns true if all elements of the tensor are inside its storage. */
static bool is_inside_storage(const struct tensor_info *d)
{
	int64_t last = d->offset, step;
	bool is_empty = false;
	if (!shape_fits(d->dims, d->ndim) || d->offset < 0 || d->offset > d->n_stored ||
		d->n_stored > INT64_MAX / 8)
		return false;
	for (int i = 0; i < d->ndim; i++) {
		is_empty |= d->dims[i] == 0;
		if (d->stride[i] < 0 ||
			__builtin_mul_overflow(
				d->stride[i], max64(0, d->dims[i] - 1), &step) ||
			__builtin_add_overflow(last, step, &last))
			return false;
	}
	return is_empty || last < d->n_stored;
}

int describe_tensor(
	const struct pickle *p, uint32_t node, struct tensor_info *d, struct err *e)
{
	int n_strides;
	uint32_t called, args;
	unwrap_parameter(p, node, &called, &args);
	*d = (struct tensor_info){.dtype = -1};
	if (!pickle_is_global(p, called, "torch._utils", "_rebuild_tensor_v2"))
		return 1;
	if (read_storage(p, pickle_item(p, args, 0), d))
		return 1; /* unknown type */
	if (pickle_int(p, pickle_item(p, args, 1), &d->offset) ||
		read_integers(p, pickle_item(p, args, 2), d->dims, &d->ndim) ||
		read_integers(p, pickle_item(p, args, 3), d->stride, &n_strides) ||
		n_strides != d->ndim || !is_inside_storage(d))
		return err_set(e, EX_DATAERR,
			"%s: the shape of a tensor is invalid: the file is damaged",
			p->name);
	return 0;
}

struct zip_entry *find_storage(
	const struct archive *a, const struct tensor_info *d, struct err *e)
{
	scoped_ptr char *name = text_printf(
		"%sdata/%.*s", a->prefix.s, (int)d->key_bytes, d->storage_key);
	struct zip_entry *x = zip_find(&a->zip, name);
	if (!x || x->n_bytes != d->n_stored * dtype_size(d->dtype)) {
		x = NULL;
		err_set(e, EX_DATAERR,
			"%s: %s is missing or has the wrong size: the file is damaged",
			a->zip.name, name);
	}
	return x;
}

struct place *make_place(const struct tensor_info *d, int64_t at)
{
	int64_t n = 1;
	struct place *p = xcalloc(1, sizeof(*p));
	*p = (struct place){.at = at + d->offset * dtype_size(d->dtype),
		.span = 1,
		.contiguous = true};
	memcpy(p->stride, d->stride, sizeof(p->stride));
	for (int i = d->ndim - 1; i >= 0; i--) {
		p->contiguous = p->contiguous && (d->dims[i] == 1 || d->stride[i] == n);
		p->span += max64(0, d->dims[i] - 1) * d->stride[i];
		n *= d->dims[i];
	}
	if (!n) {
		p->span = 0;
		p->contiguous = true;
	}
	return p;
}

int find_verified_place(const struct archive *a, const struct tensor_info *d,
	struct place **out, struct err *e)
{
	int64_t at;
	struct zip_entry *x = find_storage(a, d, e);
	if (!x || zip_verify(&a->zip, x, &at, e))
		return -1;
	*out = make_place(d, at);
	return 0;
}

/* Reads arrays from files of NumPy, PyTorch and safetensors, and from plain files. */
#include "reference/batch.h"

#include "base/file.h"
#include "archive/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Any file may have ELEMENTS_ANYWAY elements; up to MAX_ELEMENTS if it has as many bytes. */
enum { MAX_BYTES = 1 << 29, MAX_ELEMENTS = 1 << 26, ELEMENTS_ANYWAY = 1 << 22 };

/* Converts little-endian integers; `code` as in NumPy's descr: u2, i4, ... */
static void convert_integers(
	int64_t *out, const unsigned char *p, int64_t n, const char *code)
{
	int bytes = code[1] - '0';
	bool is_signed = code[0] == 'i';
	for (int64_t i = 0; i < n; i++, p += bytes) {
		uint64_t x = 0;
		for (int b = bytes - 1; b >= 0; b--)
			x = x << 8 | p[b];
		if (is_signed && bytes < 8 && x >> (8 * bytes - 1))
			x -= (uint64_t)1 << 8 * bytes;
		out[i] = (int64_t)x;
	}
}

/* Converts the bits of a float of a type such as "f2" or "b2" (bf16). */
static double float_from_bits(uint64_t x, const char *code)
{
	const int sign = code[1] == '8' ? 63 : code[1] == '4' ? 31 : 15;
	float narrow;
	double wide;
	if (*code == 'f' && code[1] == '2') { /* (exact for subnormals, too) */
		int exponent = (int)(x >> 10 & 31), fraction = (int)(x & 1023);
		wide = exponent == 31 ? (fraction ? NAN : INFINITY)
				      : ldexp(fraction + (exponent ? 1024 : 0),
						(exponent ? exponent : 1) - 25);
		return x >> sign ? -wide : wide;
	}
	if (code[1] == '8')
		return memcpy(&wide, &x, sizeof(wide)), wide;
	const uint32_t bits = (uint32_t)(*code == 'b' ? x << 16 : x);
	memcpy(&narrow, &bits, sizeof(narrow));
	return (double)narrow;
}

/* Converts little-endian floats; `code`: f2, f4, f8, or b2 for bf16. */
static void convert_floats(
	double *out, const unsigned char *p, int64_t n, const char *code)
{
	int bytes = code[1] - '0';
	for (int64_t i = 0; i < n; i++, p += bytes) {
		uint64_t x = 0;
		for (int b = bytes - 1; b >= 0; b--)
			x = x << 8 | p[b];
		out[i] = float_from_bits(x, code);
	}
}

static bool is_float_code(const char *code)
{
	return (code[0] == 'f' && code[1] && strchr("248", code[1])) ||
	       !strcmp(code, "b2");
}

static bool is_integer_code(const char *code)
{
	return (code[0] == 'i' || code[0] == 'u') && code[1] && strchr("1248", code[1]);
}

/* Returns an array's number of elements, and subtracts it from all->left; -1: too many. */
static int64_t reserve_elements(struct int_arrays *all, const struct int_array *a)
{
	int64_t n = 1;
	for (int i = 0; i < a->ndim; i++) {
		if (a->dims[i] < 1 || a->dims[i] > all->left / n)
			return -1;
		n *= a->dims[i];
	}
	all->left -= n;
	return n;
}

/* Sets *e to an error about the shape of an array. Returns -1. */
static int array_too_large(const struct int_array *a, const char *path, struct err *e)
{
	struct str shape = {0};
	for (int i = 0; i < a->ndim; i++)
		str_printf(&shape, "%s%lld", i ? ", " : "", (long long)a->dims[i]);
	err_set(e, EX_DATAERR,
		"%s: %s%san array of [%s] cannot be a batch: it is empty, "
		"or has more elements than the "
		"file has bytes",
		path, a->name, *a->name ? ": " : "", shape.s ? shape.s : "");
	str_free(&shape);
	return -1;
}

/* Sets a->v if all values of a->x are integers. Then frees a->x, unless the type is a float
 * type. */
static void set_integers(struct int_array *a, int64_t n, bool is_float)
{
	int64_t j = 0;
	a->v = xmalloc((size_t)n * sizeof(*a->v));
	for (; j < n && a->x[j] == floor(a->x[j]); j++)
		a->v[j] = a->x[j] >= -1e15 && a->x[j] <= 1e15 ? (int64_t)a->x[j] : -1;
	if (j < n) {
		free(a->v);
		a->v = NULL;
	} else if (!is_float) {
		free(a->x);
		a->x = NULL;
	}
}

/* Appends an array with elements from the bytes of a file. */
static int add_array(struct int_arrays *all, struct int_array *a, const char *bytes,
	size_t n_bytes, const char *code, const char *path, struct err *e)
{
	int64_t n = reserve_elements(all, a);
	if (!is_integer_code(code) && !is_float_code(code))
		return err_set(e, EX_DATAERR,
			"%s: type '%s' is not supported; save the array as integers or floats",
			path, code);
	if (n < 0 || (size_t)n * (size_t)(code[1] - '0') != n_bytes)
		return err_set(e, EX_DATAERR, "%s: %zu bytes do not match the shape",
			path, n_bytes);
	if (is_float_code(code)) {
		a->x = xmalloc((size_t)n * sizeof(*a->x));
		convert_floats(a->x, (const unsigned char *)bytes, n, code);
		set_integers(a, n, true);
	} else {
		a->v = xmalloc((size_t)n * sizeof(*a->v));
		convert_integers(a->v, (const unsigned char *)bytes, n, code);
	}
	all->arrays[all->n++] = *a;
	return 0;
}

/* Parses the sizes in "4,17" or "4, 17)". */
static int parse_shape(struct int_array *a, const char *s)
{
	char *end;
	for (a->ndim = 0; *s && *s != ')'; s = end) {
		errno = 0;
		long long n = strtoll(s, &end, 10);
		if (end == s || errno || n < 1 || a->ndim == ARRAY_MAX_DIMS)
			return -1;
		a->dims[a->ndim++] = n;
		end += strspn(end, ", ");
	}
	return a->ndim ? 0 : -1;
}

/* Returns a key's value in the header of a .npy file, a Python dictionary; "" if missing. */
static const char *header_value(const char *header, const char *key)
{
	const char *found = strstr(header, key);
	return found ? found + strlen(key) + strspn(found + strlen(key), ": '(<|=") : "";
}

/* Adds the array of a .npy file with content *s to *all. Returns -1 with *e set. */
static int read_npy(
	struct int_arrays *all, const char *path, const struct str *s, struct err *e)
{
	struct int_array a = {.name = ""};
	const unsigned char *p = (const unsigned char *)s->s;
	if (s->len < 12)
		return err_set(e, EX_DATAERR, "%s: truncated header", path);
	size_t begin = p[6] == 1 ? 10 : 12, len = p[8] | (size_t)p[9] << 8;
	if (p[6] > 1)
		len |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
	if (len > s->len - begin)
		return err_set(e, EX_DATAERR, "%s: truncated header", path);
	char *header = xmalloc(len + 1), code[3] = "";
	memcpy(header, s->s + begin, len);
	header[len] = '\0';
	const char *descr = header_value(header, "'descr'");
	bool big_endian = strstr(header, "'>") != NULL;
	bool fortran = *header_value(header, "'fortran_order'") == 'T';
	int rc = parse_shape(&a, header_value(header, "'shape'"));
	snprintf(code, sizeof(code), "%.2s", descr);
	if (rc || big_endian || (fortran && a.ndim > 1))
		rc = err_set(e, EX_DATAERR,
			"%s: only little-endian arrays in C order are supported", path);
	rc = rc ||
	     add_array(all, &a, s->s + begin + len, s->len - begin - len, code, path, e);
	free(header);
	return rc ? -1 : 0;
}

/* Adds the integers of a file without a header; its suffix determines their type. shape:
 * the text of --shape; NULL: not given. */
static int read_plain(struct int_arrays *all, const char *path, const struct str *s,
	const char *shape, struct err *e)
{
	struct int_array a = {.name = ""};
	if (!shape)
		return err_set(e, EX_USAGE,
			"%s: plain integers need --shape SEQUENCES,LENGTH+1", path);
	if (parse_shape(&a, shape))
		return err_set(e, EX_USAGE,
			"--shape '%s': not a list of sizes; give SEQUENCES,LENGTH+1",
			shape);
	const char code[3] = {
		text_ends(path, ".u16") || text_ends(path, ".u32") ? 'u' : 'i',
		text_ends(path, "16")	? '2'
		: text_ends(path, "32") ? '4'
					: '8',
		0};
	return add_array(all, &a, s->s, s->len, code, path, e);
}

/* Adds the tensors of a .safetensors file to *all, at most MAX_ARRAYS. Returns -1 with *e set. */
static int read_safetensors(struct int_arrays *all, const char *path, struct err *e)
{
	struct st_header h = {.n = 0};
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	int rc = safetensors_read_header(&h, fd, path, e);
	for (int64_t i = 0; i < h.n && all->n < MAX_ARRAYS && !rc; i++) {
		const struct st_tensor *t = &h.tensors[i];
		const char *type = safetensors_type(t);
		const bool brain = !strcmp(type, "BF16");
		char code[3] = {*type == 'U'   ? 'u'
				: *type == 'I' ? 'i'
				: *type == 'F' ? 'f'
				: brain	       ? 'b'
					       : '?',
			!strcmp(type + 1, "64")		   ? '8'
			: !strcmp(type + 1, "32")	   ? '4'
			: brain || !strcmp(type + 1, "16") ? '2'
							   : '1',
			0};
		struct int_array a = {.ndim = t->ndim};
		snprintf(a.name, sizeof(a.name), "%s", t->name);
		a.ndim = a.ndim > ARRAY_MAX_DIMS ? ARRAY_MAX_DIMS : a.ndim;
		memcpy(a.dims, t->dims, (size_t)a.ndim * sizeof(*a.dims));
		if (t->ndim > ARRAY_MAX_DIMS || t->n_bytes > MAX_BYTES) {
			rc = array_too_large(&a, path, e);
			break;
		}
		char *bytes = xmalloc((size_t)t->n_bytes + 1);
		rc = file_read_at(fd, path, bytes, (size_t)t->n_bytes, t->offset, e) ||
		     add_array(all, &a, bytes, (size_t)t->n_bytes, code, path, e);
		free(bytes);
	}
	safetensors_header_release(&h);
	close(fd);
	return rc ? -1 : 0;
}

/* Appends the tensors of a torch.save() file that have dimensions. Doubles are exact up to 2^53. */
static int read_torch(struct int_arrays *all, const struct container *c, const char *path,
	struct err *e)
{
	struct torch_file f;
	int rc = torch_open_as(&f, c, path, e);
	for (int64_t i = 0; i < f.n && all->n < MAX_ARRAYS && !rc; i++) {
		const struct torch_item *t = &f.items[i];
		struct int_array a = {.ndim = t->ndim};
		if (t->kind != TORCH_TENSOR || t->ndim < 1 || t->ndim > ARRAY_MAX_DIMS)
			continue;
		snprintf(a.name, sizeof(a.name), "%s", t->name);
		memcpy(a.dims, t->dims, (size_t)t->ndim * sizeof(*a.dims));
		int64_t n = reserve_elements(all, &a);
		if (n < 0) {
			rc = array_too_large(&a, path, e);
			break;
		}
		a.x = xmalloc((size_t)n * sizeof(*a.x));
		rc = torch_read_doubles(&f, t, 0, torch_rows(t), a.x, e);
		if (!rc)
			set_integers(&a, n, strstr(torch_dtype_name(t->dtype), "float"));
		all->arrays[all->n++] = a;
	}
	torch_close(&f);
	return rc ? -1 : 0;
}

int arrays_read(struct int_arrays *a, const char *path, const char *shape, struct err *e)
{
	static const char *const plain[] = {".u16", ".u32", ".i32", ".i64"};
	struct str s = {0};
	struct stat st;
	/* (one sequence's positions may be stored for all, with stride 0) */
	int64_t size = stat(path, &st) || !S_ISREG(st.st_mode) ? 0 : st.st_size;
	*a = (struct int_arrays){.left = min64(ELEMENTS_ANYWAY + size, MAX_ELEMENTS)};
	if (text_ends(path, ".safetensors"))
		return read_safetensors(a, path, e);
	const struct container *c = find_container(path);
	if (c)
		return read_torch(a, c, path, e);
	int rc = file_read(path, MAX_BYTES, &s, e);
	bool is_plain = false;
	for (size_t i = 0; i < ARRAY_LEN(plain); i++)
		is_plain |= text_ends(path, plain[i]);
	if (!rc && s.len > 6 && !memcmp(s.s, "\x93NUMPY", 6))
		rc = read_npy(a, path, &s, e);
	else if (!rc && is_plain)
		rc = read_plain(a, path, &s, shape, e);
	else if (!rc)
		rc = err_set(e, EX_DATAERR,
			"%s is not a batch: neither .npy, .pt, .safetensors nor plain "
			"integers (.u16, .u32, .i32, .i64)",
			path);
	str_free(&s);
	return rc;
}

void arrays_release(struct int_arrays *a)
{
	for (int i = 0; i < a->n; i++) {
		free(a->arrays[i].v);
		free(a->arrays[i].x);
	}
	*a = (struct int_arrays){0};
}

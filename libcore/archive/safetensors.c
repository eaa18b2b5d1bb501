/* safetensors files: the header of one, and several files as one list of tensors. */
#include "archive/safetensors.h"

#include "archive/archive_internal.h"
#include "archive/weight_map.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Limit of the JSON, which takes up to 20 times the memory of its text: 100,000 tensors have about 10 MB. */
enum { MAX_HEADER = 12 << 20 };
static const int64_t max_dim = INT64_MAX / 4;

static const struct {
	const char *name;
	int bytes;
	int dtype; /* of numbers_read(); -1: not supported */
	const char *torch;
} types[] = {
	{"F32", 4, DT_F32, "float32"},
	{"BF16", 2, DT_BF16, "bfloat16"},
	{"F16", 2, DT_F16, "float16"},
	{"F64", 8, -1, "float64"},
	{"I64", 8, -1, "int64"},
	{"U64", 8, -1},
	{"I32", 4, -1, "int32"},
	{"U32", 4, -1},
	{"I16", 2, -1, "int16"},
	{"U16", 2, -1},
	{"I8", 1, -1, "int8"},
	{"U8", 1, -1, "uint8"},
	{"BOOL", 1, -1, "bool"},
	{"F8_E4M3", 1, -1},
	{"F8_E5M2", 1, -1},
};

const char *safetensors_type(const struct st_tensor *t)
{
	return types[t->type].name;
}

int safetensors_dtype(const struct st_tensor *t)
{
	const char *name = types[t->type].torch;
	return name ? dtype_of_name(name, strlen(name)) : -1;
}

/* ---- one entry of the header ------------------------------------------------------- */

static int find_type(const char *name)
{
	for (int i = 0; i < (int)ARRAY_LEN(types); i++)
		if (name && !strcmp(name, types[i].name))
			return i;
	return -1;
}

/* The shape, and the bytes that it needs. */
static int read_shape(struct st_tensor *t, json_t *shape, int64_t *n_bytes)
{
	if (!json_is_array(shape) || json_array_size(shape) > TORCH_MAX_DIMS)
		return -1;
	*n_bytes = types[t->type].bytes;
	t->ndim = (int)json_array_size(shape);
	for (int i = 0; i < t->ndim; i++) {
		json_t *d = json_array_get(shape, (size_t)i);
		t->dims[i] = json_is_integer(d) ? json_integer_value(d) : -1;
		if (t->dims[i] < 0 || t->dims[i] > max_dim ||
			__builtin_mul_overflow(*n_bytes, t->dims[i], n_bytes))
			return -1;
	}
	return 0;
}

/* `data`: the bytes behind the header. */
static int read_entry(struct st_tensor *t, const char *name, json_t *entry,
	int64_t header, int64_t data, const char *path, struct err *e)
{
	json_t *at = json_object_get(entry, "data_offsets");
	json_t *begin = json_array_get(at, 0), *end = json_array_get(at, 1);
	int64_t n_bytes;
	t->type = find_type(json_string_value(json_object_get(entry, "dtype")));
	if (t->type < 0)
		return err_set(e, EX_DATAERR, "%s: %s has an unknown dtype", path, name);
	if (read_shape(t, json_object_get(entry, "shape"), &n_bytes))
		return err_set(
			e, EX_DATAERR, "%s: the shape of %s is invalid", path, name);
	if (json_array_size(at) != 2 || !json_is_integer(begin) || !json_is_integer(end))
		return err_set(e, EX_DATAERR, "%s: %s has no data_offsets", path, name);
	int64_t first = json_integer_value(begin), last = json_integer_value(end);
	if (first < 0 || last < first || last > data || last - first != n_bytes)
		return err_set(e, EX_DATAERR,
			"%s: the data_offsets of %s are outside of the file, or do not "
			"have the size of its shape",
			path, name);
	t->name = xstrdup(name);
	t->offset = header + first;
	t->n_bytes = n_bytes;
	return 0;
}

/* ---- the header of a file ----------------------------------------------------------- */

static int by_offset(const void *a, const void *b)
{
	const struct st_tensor *x = a, *y = b;
	if (x->offset != y->offset)
		return (x->offset > y->offset) - (x->offset < y->offset);
	return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* The data must have neither holes nor overlaps. */
static int check_layout(struct st_tensor *list, int64_t n, int64_t header, int64_t size,
	const char *path, struct err *e)
{
	int64_t at = header;
	if (n)
		qsort(list, (size_t)n, sizeof(*list), by_offset);
	for (int64_t i = 0; i < n; at += list[i++].n_bytes)
		if (list[i].offset != at)
			return err_set(e, EX_DATAERR,
				"%s: the data of %s overlap with others, or follow a hole",
				path, list[i].name);
	if (at != size)
		return err_set(e, EX_DATAERR,
			"%s: %lld bytes belong to no tensor: the file is damaged", path,
			(long long)(size - at));
	return 0;
}

/* Of a file that this program wrote, which its metadata say. */
static int check_hash(int fd, json_t *metadata, const struct str *header,
	const char *path, struct err *e)
{
	const char *maker = json_string_value(json_object_get(metadata, "created_by"));
	const char *digits = json_string_value(json_object_get(metadata, "xxh3"));
	char want[ST_DIGITS + 1];
	uint64_t hash;
	if (!digits && (!maker || strncmp(maker, "pt-ckpt", 7)))
		return 0;
	const char *at = digits && strlen(digits) == ST_DIGITS
				 ? memmem(header->s, header->len, digits, ST_DIGITS)
				 : NULL;
	if (!at)
		return err_set(
			e, EX_DATAERR, "%s: has no checksum: the file is damaged", path);
	if (file_hash_around(fd, 8 + (at - header->s), ST_DIGITS, '0', &hash))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	snprintf(want, sizeof(want), "%016llx", (unsigned long long)hash);
	if (memcmp(digits, want, ST_DIGITS))
		return err_set(e, EX_DATAERR,
			"%s: does not match its checksum: the file is damaged", path);
	return 0;
}

static int check_metadata(json_t *metadata, const char *path, struct err *e)
{
	const char *key;
	json_t *value;
	bool texts = !metadata || json_is_object(metadata);
	json_object_foreach(metadata, key, value) texts = texts && json_is_string(value);
	return texts ? 0
		     : err_set(e, EX_DATAERR, "%s: __metadata__ is no object of texts",
			       path);
}

/* `at`: where the data begin. */
static int read_tensors(struct st_header *h, int64_t at, const char *path, struct err *e)
{
	const char *name;
	json_t *entry;
	h->tensors = xcalloc(json_object_size(h->root) + 1, sizeof(*h->tensors));
	json_object_foreach(h->root, name, entry)
	{
		if (!strcmp(name, "__metadata__"))
			continue;
		if (read_entry(&h->tensors[h->n], name, entry, at, h->size - at, path, e))
			return -1;
		h->n++;
	}
	return check_layout(h->tensors, h->n, at, h->size, path, e);
}

static int read_text(
	int fd, const char *path, struct str *out, int64_t *size, struct err *e)
{
	unsigned char word[8];
	struct stat st;
	uint64_t n = 0;
	if (fstat(fd, &st))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	*size = st.st_size;
	if (!S_ISREG(st.st_mode) || st.st_size < 10)
		return err_set(
			e, EX_DATAERR, "%s: not a safetensors file, or damaged", path);
	if (file_read_at(fd, path, word, sizeof(word), 0, e))
		return -1;
	for (int i = 7; i >= 0; i--)
		n = n << 8 | word[i];
	if (n < 2 || n > MAX_HEADER || (int64_t)n > st.st_size - 8)
		return err_set(e, EX_DATAERR,
			"%s: not a safetensors file, or damaged: a header of %llu bytes",
			path, (unsigned long long)n);
	scoped_ptr char *text = xmalloc((size_t)n);
	int rc = file_read_at(fd, path, text, (size_t)n, 8, e);
	if (!rc)
		str_add(out, text, (size_t)n);
	return rc;
}

int safetensors_header(struct st_header *h, int fd, const char *path, struct err *e)
{
	scoped_str text = {0};
	json_error_t where;
	*h = (struct st_header){.n = 0};
	if (read_text(fd, path, &text, &h->size, e))
		return -1;
	h->root = load_json(text.s, text.len, JSON_REJECT_DUPLICATES, &where);
	json_t *metadata = json_object_get(h->root, "__metadata__");
	int rc = json_is_object(h->root)
			 ? 0
			 : err_set(e, EX_DATAERR,
				   "%s: the header is not a JSON object: %s", path,
				   h->root ? "another type" : where.text);
	rc = rc || check_hash(fd, metadata, &text, path, e) ||
	     check_metadata(metadata, path, e) ||
	     read_tensors(h, 8 + (int64_t)text.len, path, e);
	if (rc)
		safetensors_header_free(h);
	return rc ? -1 : 0;
}

void safetensors_header_free(struct st_header *h)
{
	for (int64_t i = 0; i < h->n; i++)
		free(h->tensors[i].name);
	free(h->tensors);
	json_decref(h->root);
	*h = (struct st_header){.n = 0};
}

const char *safetensors_metadata(const struct st_header *h, const char *key)
{
	return json_string_value(
		json_object_get(json_object_get(h->root, "__metadata__"), key));
}

/* ---- several files ---------------------------------------------------------------------- */

/* Each file has the same text of a key, or none has it. */
static int keep_text(const struct safetensors *s, const struct st_header *h,
	const char *key, char kept[static ST_DIGITS + 1], struct err *e)
{
	const char *text = safetensors_metadata(h, key);
	text = text ? text : "";
	if (s->n_files == 1)
		snprintf(kept, ST_DIGITS + 1, "%s", text);
	return !strcmp(kept, text) ? 0
				   : err_set(e, EX_DATAERR,
					     "%s: %s is not that of the other files: of "
					     "another model, or damaged",
					     s->paths[s->n_files - 1], key);
}

/* Appends the tensors, which the file then owns. */
static void add_tensors(struct safetensors *s, struct st_header *h)
{
	s->tensors =
		xrealloc(s->tensors, (size_t)max64(1, s->n + h->n) * sizeof(*s->tensors));
	for (int64_t i = 0; i < h->n; i++) {
		s->tensors[s->n] = h->tensors[i];
		s->tensors[s->n++].file = s->n_files - 1;
	}
	h->n = 0;
}

static int open_file(struct safetensors *s, const char *path, struct err *e)
{
	struct st_header h;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), file = s->n_files;
	if (fd < 0)
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	s->paths = xgrow(s->paths, file, sizeof(*s->paths));
	s->fds = xgrow(s->fds, file, sizeof(*s->fds));
	s->paths[file] = xstrdup(path);
	s->fds[file] = fd;
	s->n_files++;
	if (safetensors_header(&h, fd, path, e))
		return -1;
	int rc = keep_text(s, &h, "pt_options_xxh3", s->options_xxh3, e) ||
		 keep_text(s, &h, "pt_param_hash", s->param_hash, e);
	if (!rc)
		add_tensors(s, &h);
	safetensors_header_free(&h);
	return rc ? -1 : 0;
}

static int sort_tensors(struct safetensors *s, const char *path, struct err *e)
{
	if (s->n)
		qsort(s->tensors, (size_t)s->n, sizeof(*s->tensors), compare_texts);
	for (int64_t i = 1; i < s->n; i++)
		if (!strcmp(s->tensors[i].name, s->tensors[i - 1].name))
			return err_set(e, EX_DATAERR, "%s: %s is in two files", path,
				s->tensors[i].name);
	return 0;
}

/* The number of the file that has a tensor. */
static int64_t file_of(const void *with, const char *tensor)
{
	const struct st_tensor *t = safetensors_find(with, tensor);
	return t ? t->file : -1;
}

static int open_index(struct safetensors *s, const char *path, struct err *e)
{
	struct weight_map m;
	scoped_str file = {0};
	if (weight_map_read(&m, path, e))
		return -1;
	int rc = 0;
	for (int64_t i = 0; i < m.files.n && !rc; i++) {
		weight_map_path(&m, i, &file);
		rc = open_file(s, file.s, e);
	}
	rc = rc || sort_tensors(s, path, e) || weight_map_check(&m, s->n, file_of, s, e);
	weight_map_free(&m);
	return rc ? -1 : 0;
}

/* ---- interface ----------------------------------------------------------------------- */

int safetensors_open(struct safetensors *s, const char *path, struct err *e)
{
	size_t n = strlen(path);
	*s = (struct safetensors){.n = 0};
	bool index = n > 5 && !strcmp(path + n - 5, ".json");
	int rc = index ? open_index(s, path, e)
		       : open_file(s, path, e) || sort_tensors(s, path, e);
	if (rc)
		safetensors_close(s);
	return rc ? -1 : 0;
}

void safetensors_close(struct safetensors *s)
{
	for (int64_t i = 0; i < s->n; i++)
		free(s->tensors[i].name);
	for (int i = 0; i < s->n_files; i++) {
		close(s->fds[i]);
		free(s->paths[i]);
	}
	free(s->tensors);
	free(s->paths);
	free(s->fds);
	*s = (struct safetensors){.n = 0};
}

const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
	struct st_tensor key = {.name = (char *)name};
	return s->n ? bsearch(&key, s->tensors, (size_t)s->n, sizeof(key), compare_texts)
		    : NULL;
}

int safetensors_read(const struct safetensors *s, const struct st_tensor *t,
	int64_t first, int64_t n, float *out, struct err *e)
{
	int64_t bytes = types[t->type].bytes;
	int dtype = types[t->type].dtype;
	const char *path = s->paths[t->file];
	BUG_ON(first < 0 || n < 0 || (first + n) * bytes > t->n_bytes);
	if (dtype < 0)
		return err_set(e, EX_UNAVAILABLE,
			"%s: %s is %s; F32, BF16 and F16 can be read", path, t->name,
			types[t->type].name);
	return numbers_read(s->fds[t->file], path, (enum dtype)dtype,
		t->offset + first * bytes, n, out, e);
}

/* Reading safetensors files. */
#include "foreign/safetensors.h"

#include "base/json.h"
#include "foreign/foreign_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Limits: a header of a file of 10,000 tensors has about a megabyte. */
enum { MAX_HEADER = 1 << 25, MAX_FILES = 4096, MAX_INDEX = 1 << 25 };

static const struct {
	const char *name;
	int bytes;
	int dtype; /* -1: it can be passed over, and not read */
} types[] = {
	{"F32", 4, DT_F32},
	{"BF16", 2, DT_BF16},
	{"F16", 2, DT_F16},
	{"F64", 8, -1},
	{"I64", 8, -1},
	{"U64", 8, -1},
	{"I32", 4, -1},
	{"U32", 4, -1},
	{"I16", 2, -1},
	{"U16", 2, -1},
	{"I8", 1, -1},
	{"U8", 1, -1},
	{"BOOL", 1, -1},
	{"F8_E4M3", 1, -1},
	{"F8_E5M2", 1, -1},
};

const char *safetensors_type(const struct st_tensor *t)
{
	return types[t->type].name;
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
	if (!json_is_array(shape) || json_array_size(shape) > ST_MAX_DIMS)
		return -1;
	*n_bytes = types[t->type].bytes;
	t->ndim = (int)json_array_size(shape);
	for (int i = 0; i < t->ndim; i++) {
		json_t *d = json_array_get(shape, (size_t)i);
		t->dims[i] = json_is_integer(d) ? json_integer_value(d) : -1;
		if (t->dims[i] < 0 ||
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

/* Each file has the same entry, or none has it. */
static int read_entry_of_all(json_t *metadata, const char *key, bool first,
	char kept[static ST_DIGITS + 1], const char *path, struct err *e)
{
	const char *text = json_string_value(json_object_get(metadata, key));
	text = text ? text : "";
	if (first)
		snprintf(kept, ST_DIGITS + 1, "%s", text);
	return !strcmp(kept, text) ? 0
				   : err_set(e, EX_DATAERR,
					     "%s: %s is not that of the other files: of "
					     "another model, or damaged",
					     path, key);
}

static int read_metadata(struct safetensors *s, json_t *metadata, int file, struct err *e)
{
	const char *key, *path = s->paths[file];
	json_t *value;
	bool texts = !metadata || json_is_object(metadata);
	json_object_foreach(metadata, key, value) texts = texts && json_is_string(value);
	if (!texts)
		return err_set(
			e, EX_DATAERR, "%s: __metadata__ is no object of texts", path);
	return read_entry_of_all(metadata, "pt_options_xxh3", file == 0, s->options_xxh3,
		       path, e) ||
			       read_entry_of_all(metadata, "pt_param_hash", file == 0,
				       s->param_hash, path, e)
		       ? -1
		       : 0;
}

static int add_tensors(struct safetensors *s, json_t *root, int file, int64_t header,
	int64_t size, struct err *e)
{
	int64_t first = s->n, room = first + (int64_t)json_object_size(root);
	const char *name, *path = s->paths[file];
	json_t *entry;
	s->tensors = xrealloc(s->tensors, (size_t)max64(1, room) * sizeof(*s->tensors));
	json_object_foreach(root, name, entry)
	{
		if (!strcmp(name, "__metadata__"))
			continue;
		struct st_tensor *t = &s->tensors[s->n];
		*t = (struct st_tensor){.file = file};
		if (read_entry(t, name, entry, header, size - header, path, e))
			return -1;
		s->n++;
	}
	return check_layout(s->tensors + first, s->n - first, header, size, path, e);
}

static int read_header(
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
	char *text = xmalloc((size_t)n);
	int rc = file_read_at(fd, path, text, (size_t)n, 8, e);
	if (!rc)
		str_add(out, text, (size_t)n);
	free(text);
	return rc;
}

static int open_file(struct safetensors *s, const char *path, struct err *e)
{
	struct str header = {0};
	json_error_t where;
	int64_t size = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), file = s->n_files;
	if (fd < 0)
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	s->paths = xgrow(s->paths, file, sizeof(*s->paths));
	s->fds = xgrow(s->fds, file, sizeof(*s->fds));
	s->paths[file] = xstrdup(path);
	s->fds[file] = fd;
	s->n_files++;
	int rc = read_header(fd, path, &header, &size, e);
	json_t *root =
		rc ? NULL
		   : load_json(header.s, header.len, JSON_REJECT_DUPLICATES, &where);
	if (!rc && !json_is_object(root))
		rc = err_set(e, EX_DATAERR, "%s: the header is not a JSON object: %s",
			path, root ? "another type" : where.text);
	if (!rc)
		rc = check_hash(fd, json_object_get(root, "__metadata__"), &header, path,
			     e) ||
		     read_metadata(s, json_object_get(root, "__metadata__"), file, e) ||
		     add_tensors(s, root, file, 8 + (int64_t)header.len, size, e);
	json_decref(root);
	str_free(&header);
	return rc ? -1 : 0;
}

/* ---- an index of files --------------------------------------------------------------- */

static int open_indexed(
	struct safetensors *s, const char *index, const char *file, struct err *e)
{
	struct str path = {0};
	const char *slash = strrchr(index, '/');
	int rc = 0;
	if (!*file || strchr(file, '/'))
		return err_set(e, EX_DATAERR,
			"%s: '%s' is not the name of a file beside it", index, file);
	str_printf(&path, "%.*s%s", slash ? (int)(slash + 1 - index) : 0, index, file);
	for (int i = 0; i < s->n_files; i++)
		if (!strcmp(s->paths[i], path.s)) {
			str_free(&path);
			return 0;
		}
	rc = s->n_files < MAX_FILES ? open_file(s, path.s, e)
				    : err_set(e, EX_DATAERR, "%s: too many files", index);
	str_free(&path);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(
		((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int sort_tensors(struct safetensors *s, const char *path, struct err *e)
{
	if (s->n)
		qsort(s->tensors, (size_t)s->n, sizeof(*s->tensors), by_name);
	for (int64_t i = 1; i < s->n; i++)
		if (!strcmp(s->tensors[i].name, s->tensors[i - 1].name))
			return err_set(e, EX_DATAERR, "%s: %s is in two files", path,
				s->tensors[i].name);
	return 0;
}

/* Every tensor is in the file that the index names, and the index has every tensor. */
static int check_map(
	const struct safetensors *s, json_t *map, const char *path, struct err *e)
{
	const char *name;
	json_t *file;
	json_object_foreach(map, name, file)
	{
		const struct st_tensor *t = safetensors_find(s, name);
		const char *at = t ? strrchr(s->paths[t->file], '/') : NULL;
		at = at ? at + 1 : t ? s->paths[t->file] : "";
		if (!t || strcmp(at, json_string_value(file)))
			return err_set(e, EX_DATAERR, "%s: %s is not in the file %s",
				path, name, json_string_value(file));
	}
	if (json_object_size(map) != (size_t)s->n)
		return err_set(e, EX_DATAERR, "%s: has %zu tensors, and its files %lld",
			path, json_object_size(map), (long long)s->n);
	return 0;
}

static int open_index(struct safetensors *s, const char *path, struct err *e)
{
	struct str text = {0};
	json_error_t where;
	const char *name;
	json_t *root = NULL, *map, *file;
	int rc = file_check_regular(path, e) || file_read(path, MAX_INDEX, &text, e);
	if (!rc)
		root = load_json(text.s, text.len, JSON_REJECT_DUPLICATES, &where);
	map = json_object_get(root, "weight_map");
	if (!rc && !json_is_object(map))
		rc = err_set(
			e, EX_DATAERR, "%s: not an index of safetensors files", path);
	if (!rc)
		json_object_foreach(map, name, file)
		{
			rc = rc ? rc
			     : json_is_string(file)
				     ? open_indexed(s, path, json_string_value(file), e)
				     : err_set(e, EX_DATAERR, "%s: %s has no file", path,
					       name);
		}
	rc = rc || sort_tensors(s, path, e) || check_map(s, map, path, e);
	json_decref(root);
	str_free(&text);
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
	return s->n ? bsearch(&key, s->tensors, (size_t)s->n, sizeof(key), by_name)
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

/* safetensors files: reads the header of a file, and opens a model in one or several files. */
#include "archive/safetensors.h"

#include "archive/archive_internal.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* Maximum size of the JSON, which takes up to 20 times more memory. 100,000 tensors take 10 MB. */
enum { MAX_HEADER = 12 << 20 };

static const struct {
	const char *name;
	int bytes;
	const char *torch; /* NULL: not supported */
} types[] = {
	{"F32", 4, "float32"},
	{"BF16", 2, "bfloat16"},
	{"F16", 2, "float16"},
	{"F64", 8, "float64"},
	{"I64", 8, "int64"},
	{"U64", 8},
	{"I32", 4, "int32"},
	{"U32", 4},
	{"I16", 2, "int16"},
	{"U16", 2},
	{"I8", 1, "int8"},
	{"U8", 1, "uint8"},
	{"BOOL", 1, "bool"},
	{"F8_E4M3", 1},
	{"F8_E5M2", 1},
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

static int find_type_index(const char *name)
{
	for (int i = 0; i < (int)ARRAY_LEN(types); i++)
		if (name && !strcmp(name, types[i].name))
			return i;
	return -1;
}

/* Reads the shape of a tensor, and sets *n_bytes to the size of its data. */
static int read_shape(struct st_tensor *t, json_t *shape, int64_t *n_bytes)
{
	if (!json_is_array(shape) || json_array_size(shape) > TORCH_MAX_DIMS)
		return -1;
	*n_bytes = types[t->type].bytes;
	t->ndim = (int)json_array_size(shape);
	for (int i = 0; i < t->ndim; i++) {
		json_t *d = json_array_get(shape, (size_t)i);
		t->dims[i] = json_is_integer(d) ? json_integer_value(d) : -1;
		if (t->dims[i] < 0)
			return -1;
	}
	if (!shape_fits(t->dims, t->ndim))
		return -1;
	for (int i = 0; i < t->ndim; i++)
		*n_bytes *= t->dims[i];
	return 0;
}

/* Reads an entry of the header. `header`: offset of the data; `data`: size of the data. */
static int read_entry(struct st_tensor *t, const char *name, json_t *entry,
	int64_t header, int64_t data, const char *path, struct err *e)
{
	json_t *at = json_object_get(entry, "data_offsets");
	json_t *begin = json_array_get(at, 0), *end = json_array_get(at, 1);
	int64_t n_bytes;
	t->type = find_type_index(json_string_value(json_object_get(entry, "dtype")));
	if (t->type < 0)
		return err_set(e, EX_DATAERR, "%s: %s has an unknown dtype", path, name);
	if (read_shape(t, json_object_get(entry, "shape"), &n_bytes))
		return err_set(
			e, EX_DATAERR, "%s: the shape of %s is invalid", path, name);
	if (json_array_size(at) != 2 || !json_is_integer(begin) || !json_is_integer(end))
		return err_set(e, EX_DATAERR, "%s: %s lacks two integer data_offsets",
			path, name);
	int64_t first = json_integer_value(begin), last = json_integer_value(end);
	if (first < 0 || last < first || last > data || last - first != n_bytes)
		return err_set(e, EX_DATAERR,
			"%s: the data_offsets of %s are outside of the file, or do not "
			"match its shape",
			path, name);
	t->name = xstrdup(name);
	t->offset = header + first;
	t->n_bytes = n_bytes;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(
		((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
	const struct st_tensor *x = a, *y = b;
	if (x->offset != y->offset)
		return (x->offset > y->offset) - (x->offset < y->offset);
	return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* Fails if the data of the tensors have gaps or overlap. Sorts the list by offset. */
static int check_layout(struct st_tensor *list, int64_t n, int64_t header, int64_t size,
	const char *path, struct err *e)
{
	int64_t at = header;
	if (n)
		qsort(list, (size_t)n, sizeof(*list), by_offset);
	for (int64_t i = 0; i < n; at += list[i++].n_bytes)
		if (list[i].offset != at)
			return err_set(e, EX_DATAERR,
				"%s: the data of %s overlap another tensor, or follow a gap",
				path, list[i].name);
	if (at != size)
		return err_set(e, EX_DATAERR,
			"%s: %lld bytes belong to no tensor: the file is damaged", path,
			(long long)(size - at));
	return 0;
}

int file_hash_around(int fd, int64_t hole, int64_t n, char fill, uint64_t *hash)
{
	enum { PIECE = 1 << 20 };
	scoped_ptr char *piece = xmalloc(PIECE);
	struct hash_state *h = hash_open();
	int64_t at = 0;
	ssize_t got;
	while ((got = pread(fd, piece, PIECE, at)) > 0 || (got < 0 && errno == EINTR)) {
		got = got < 0 ? 0 : got;
		for (int64_t i = max64(at, hole); i < min64(at + got, hole + n); i++)
			piece[i - at] = fill;
		hash_add(h, piece, (size_t)got);
		at += got;
	}
	*hash = hash_close(h);
	return got < 0 ? -1 : 0;
}

/* Verifies the checksum of a file that pt-ckpt wrote, according to its metadata. */
static int verify_checksum(int fd, json_t *metadata, const struct str *header,
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
		return err_set(e, EX_DATAERR,
			"%s: metadata xxh3 is invalid: the file is damaged", path);
	if (file_hash_around(fd, 8 + (at - header->s), ST_DIGITS, '0', &hash))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	snprintf(want, sizeof(want), "%016llx", (unsigned long long)hash);
	if (memcmp(digits, want, ST_DIGITS))
		return err_set(e, EX_DATAERR,
			"%s: the file does not match its checksum: it is damaged", path);
	return 0;
}

/* Fails unless `metadata` is NULL or a JSON object of strings. */
static int check_metadata(json_t *metadata, const char *path, struct err *e)
{
	const char *key;
	json_t *value;
	bool all_strings = !metadata || json_is_object(metadata);
	json_object_foreach(metadata, key, value) all_strings =
		all_strings && json_is_string(value);
	return all_strings
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: __metadata__ is not an object of strings", path);
}

/* Reads all entries of the header. `at`: offset of the data in the file. */
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
	if (check_layout(h->tensors, h->n, at, h->size, path, e))
		return -1;
	if (h->n)
		qsort(h->tensors, (size_t)h->n, sizeof(*h->tensors), by_name);
	return 0;
}

/* Appends the JSON header of a safetensors file to *out, and sets *size to the size of the file. */
static int read_header_text(
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

int safetensors_read_header(struct st_header *h, int fd, const char *path, struct err *e)
{
	scoped_str text = {0};
	json_error_t where;
	*h = (struct st_header){.n = 0};
	if (read_header_text(fd, path, &text, &h->size, e))
		return -1;
	h->root = load_json(text.s, text.len, JSON_REJECT_DUPLICATES, &where);
	json_t *metadata = json_object_get(h->root, "__metadata__");
	int rc = json_is_object(h->root)
			 ? 0
			 : err_set(e, EX_DATAERR,
				   "%s: the header is not a JSON object: %s", path,
				   h->root ? "another JSON type" : where.text);
	rc = rc || verify_checksum(fd, metadata, &text, path, e) ||
	     check_metadata(metadata, path, e) ||
	     read_tensors(h, 8 + (int64_t)text.len, path, e);
	if (rc)
		safetensors_header_release(h);
	return rc ? -1 : 0;
}

void safetensors_header_release(struct st_header *h)
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

/* ---- a model in one file, or in the files of an index -------------------------------------- */

/* Stores a metadata entry of the first file in `first`; fails if it differs in a later file. */
static int match_first_file(const struct torch_file *f, const struct st_header *h,
	const char *key, char first[static ST_DIGITS + 1], struct err *e)
{
	const char *text = safetensors_metadata(h, key);
	text = text ? text : "";
	if (f->parts->n_files == 1)
		snprintf(first, ST_DIGITS + 1, "%s", text);
	return !strcmp(first, text)
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: metadata %s differs from the other files: "
				 "the file is of another model, or damaged",
				 f->parts->files[f->parts->n_files - 1], key);
}

/* Appends tensor t of a file as an item with one chunk. Fails if its type is not supported. */
static int add_tensor(
	struct torch_file *f, int32_t file, const struct st_tensor *t, struct err *e)
{
	struct tensor_info d = {.dtype = safetensors_dtype(t), .ndim = t->ndim};
	if (d.dtype < 0)
		return err_set(e, EX_UNAVAILABLE, "%s: %s has the unsupported type %s",
			f->parts->files[file], t->name, safetensors_type(t));
	memcpy(d.dims, t->dims, sizeof(d.dims));
	if (!items_add_tensor(f, t->name, strlen(t->name), &d, e))
		return -1;
	struct chunk *c = items_add_chunk(f, no_dims, d.dims);
	c->file = file;
	chunk_set_place(c, t->offset);
	return 0;
}

/* Appends a file and its tensors. Fails if pt's hashes in it differ from the first file's. */
static int add_file(struct torch_file *f, const char *path, struct err *e)
{
	struct st_header h;
	struct torch_parts *p = f->parts;
	int32_t file = items_add_file(f, path);
	int fd = items_fd(f, file, e);
	if (fd < 0 || safetensors_read_header(&h, fd, path, e))
		return -1;
	items_grant(f, h.size);
	int rc = match_first_file(f, &h, "pt_options_xxh3", p->options_xxh3, e) ||
		 match_first_file(f, &h, "pt_param_hash", p->param_hash, e);
	for (int64_t i = 0; i < h.n && !rc; i++)
		rc = add_tensor(f, file, &h.tensors[i], e);
	safetensors_header_release(&h);
	return rc ? -1 : 0;
}

/* Appends the tensors of all files that index f->path lists, and checks them against the index. */
static int add_files(struct torch_file *f, struct err *e)
{
	struct weight_map m;
	scoped_str file = {0};
	if (weight_map_read(&m, f->path, e))
		return -1;
	int rc = 0;
	for (int64_t i = 0; i < m.files.n && !rc; i++) {
		weight_map_path(&m, i, &file);
		rc = add_file(f, file.s, e);
	}
	rc = rc || items_finish(f, e) || weight_map_check(&m, f, e);
	weight_map_release(&m);
	return rc ? -1 : 0;
}

static bool safetensors_matches(const char *path)
{
	return text_ends(path, ".safetensors") ||
	       text_ends(path, ".safetensors.index.json");
}

static int safetensors_open(struct torch_file *f, struct err *e)
{
	if (text_ends(f->path, ".json"))
		return add_files(f, e);
	return add_file(f, f->path, e) || items_finish(f, e) ? -1 : 0;
}

const struct container container_safetensors = {.is_file = true,
	.many_archives = true,
	.matches = safetensors_matches,
	.open = safetensors_open};

const char *safetensors_options(const struct torch_file *f)
{
	return f->parts->options_xxh3;
}

/*
 * A directory of safetensors files, one of each rank, as DCP's HuggingFaceStorageWriter leaves them before
 * they are consolidated. Each tensor of a file is a box, and the metadata of the file say where it begins. No
 * file says how large the whole tensor is: it ends where the last box does.
 */
#include "archive/archive_internal.h"

#include "base/file.h"
#include "base/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_HEADER = 1 << 25 };

static bool is_shard(const char *name)
{
	return !strncmp(name, "shard-", 6) && text_ends(name, ".safetensors");
}

static int list_shards(const char *folder, struct strs *out)
{
	DIR *d = opendir(folder);
	struct dirent *entry;
	while (d && (entry = readdir(d)))
		if (is_shard(entry->d_name)) {
			struct str path = {0};
			str_printf(&path, "%s/%s", folder, entry->d_name);
			strs_add(out, path.s);
			str_free(&path);
		}
	if (d)
		closedir(d);
	strs_sort(out);
	return out->n > 0;
}

static bool shards_are_in(const char *folder)
{
	struct strs list = {0};
	bool found = list_shards(folder, &list);
	strs_free(&list);
	return found;
}

/* ---- one file ----------------------------------------------------------------------------- */

/* A tensor of a file. */
struct shard {
	char *name;
	int32_t file;
	struct stored is;
	int64_t begin[TORCH_MAX_DIMS];
};

struct shards {
	struct torch_file *f;
	struct shard *v;
	int64_t n;
	struct err *e;
};

static int dtype_of(const char *name)
{
	static const char *const names[][2] = {{"F64", "float64"}, {"F32", "float32"},
		{"F16", "float16"}, {"BF16", "bfloat16"}, {"I64", "int64"},
		{"I32", "int32"}, {"I16", "int16"}, {"I8", "int8"}, {"U8", "uint8"},
		{"BOOL", "bool"}};
	for (size_t i = 0; name && i < ARRAY_LEN(names); i++)
		if (!strcmp(names[i][0], name))
			return dtype_of_name(names[i][1], strlen(names[i][1]));
	return -1;
}

/* An array of n integers (-1: any number) that are not negative. Returns their number, or -1. */
static int read_integers(json_t *list, int n, int64_t *out)
{
	int have = (int)json_array_size(list);
	if (!json_is_array(list) || have > TORCH_MAX_DIMS || (n >= 0 && have != n))
		return -1;
	for (int i = 0; i < have; i++) {
		json_t *x = json_array_get(list, (size_t)i);
		out[i] = json_integer_value(x);
		if (!json_is_integer(x) || out[i] < 0 || out[i] > INT64_MAX / 4)
			return -1;
	}
	return have;
}

int stored_tensor(json_t *entry, const int64_t data[2], struct stored *x)
{
	int64_t bytes[2], n;
	x->dtype = dtype_of(json_string_value(json_object_get(entry, "dtype")));
	x->ndim = read_integers(json_object_get(entry, "shape"), -1, x->sizes);
	if (x->dtype < 0 || x->ndim < 0 ||
		read_integers(json_object_get(entry, "data_offsets"), 2, bytes) < 0)
		return -1;
	n = dtype_size(x->dtype);
	for (int i = 0; i < x->ndim; i++)
		if (__builtin_mul_overflow(n, x->sizes[i], &n))
			return -1;
	if (bytes[1] > data[1] || bytes[0] > bytes[1] || bytes[1] - bytes[0] != n)
		return -1;
	x->at = data[0] + bytes[0];
	return 0;
}

/* `where`: its saved_offsets; `data`: the place and the number of the bytes behind the header. */
static int read_shard(struct shards *s, int32_t file, const char *name, json_t *entry,
	json_t *where, const int64_t data[2])
{
	struct shard x = {.file = file};
	if (stored_tensor(entry, data, &x.is) ||
		read_integers(
			json_object_get(where, "saved_offsets"), x.is.ndim, x.begin) < 0)
		return -1;
	x.name = xstrdup(name);
	s->v = xgrow(s->v, s->n, sizeof(*s->v));
	s->v[s->n++] = x;
	return 0;
}

static int read_shards(
	struct shards *s, int32_t file, json_t *root, const int64_t data[2])
{
	const char *name, *path = s->f->parts->files[file];
	json_t *entry, *meta = json_object_get(root, "__metadata__");
	const char *text = json_string_value(json_object_get(meta, "DCP_SHARDING_INFO"));
	json_t *where = text ? load_json(text, strlen(text), 0, NULL) : NULL;
	int rc =
		json_is_object(where)
			? 0
			: err_set(s->e, EX_DATAERR,
				  "%s: has no DCP_SHARDING_INFO: not a part of a checkpoint",
				  path);
	json_object_foreach(root, name, entry)
	{
		if (rc || !strcmp(name, "__metadata__"))
			continue;
		if (read_shard(s, file, name, entry, json_object_get(where, name), data))
			rc = err_set(s->e, EX_DATAERR,
				"%s: %s has an impossible type, shape or place", path,
				name);
	}
	json_decref(where);
	return rc;
}

json_t *stored_header(int fd, const char *path, int64_t data[2], struct err *e)
{
	struct stat st;
	uint64_t n = 0; /* (little-endian, as this machine) */
	bool has = !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size >= 10;
	if (has && file_read_at(fd, path, &n, sizeof(n), 0, e))
		return NULL;
	if (!has || n > MOST_HEADER || (int64_t)n > st.st_size - 8) {
		err_set(e, EX_DATAERR, "%s: not a safetensors file, or damaged", path);
		return NULL;
	}
	char *text = xmalloc(n + 1);
	int rc = file_read_at(fd, path, text, n, 8, e);
	json_t *root = rc ? NULL : load_json(text, n, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	data[0] = 8 + (int64_t)n;
	data[1] = st.st_size - data[0];
	if (rc || json_is_object(root))
		return root;
	json_decref(root);
	err_set(e, EX_DATAERR, "%s: the header is not a JSON object", path);
	return NULL;
}

static int read_file(struct shards *s, int32_t file)
{
	int64_t data[2];
	int fd = items_fd(s->f, file, s->e);
	json_t *root =
		fd < 0 ? NULL : stored_header(fd, s->f->parts->files[file], data, s->e);
	items_allow(s->f, root ? data[0] + data[1] : 0);
	int rc = root ? read_shards(s, file, root, data) : -1;
	json_decref(root);
	return rc;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static int by_name_and_begin(const void *a, const void *b)
{
	const struct shard *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	for (int i = 0; i < TORCH_MAX_DIMS && !order; i++)
		order = (x->begin[i] > y->begin[i]) - (x->begin[i] < y->begin[i]);
	return order;
}

/* The shards [from, to) are one tensor. */
static int add_tensor(struct shards *s, int64_t from, int64_t to)
{
	const struct shard *first = &s->v[from];
	struct torch_item *t = items_add(s->f, first->name, strlen(first->name), s->e);
	if (!t)
		return -1;
	t->kind = TORCH_TENSOR;
	t->dtype = first->is.dtype;
	t->ndim = first->is.ndim;
	for (int64_t i = from; i < to; i++) {
		const struct shard *x = &s->v[i];
		if (x->is.dtype != t->dtype || x->is.ndim != t->ndim)
			return err_set(s->e, EX_DATAERR,
				"%s: %s is not as in the other files",
				s->f->parts->files[x->file], x->name);
		for (int k = 0; k < t->ndim; k++)
			t->dims[k] = max64(t->dims[k], x->begin[k] + x->is.sizes[k]);
	}
	if (!shape_fits(t->dims, t->ndim))
		return err_set(s->e, EX_DATAERR, "%s: the shape of %s is not possible",
			s->f->parts->files[first->file], t->name);
	for (int64_t i = from; i < to; i++) {
		const struct shard *x = &s->v[i];
		bool empty = false;
		for (int k = 0; k < x->is.ndim; k++)
			empty = empty || !x->is.sizes[k];
		if (empty)
			continue;
		struct chunk *c = items_add_chunk(s->f, x->begin, x->is.sizes);
		c->file = x->file;
		c->place = xcalloc(1, sizeof(*c->place));
		*c->place = (struct place){.at = x->is.at, .contiguous = true};
	}
	return 0;
}

static int shards_open(struct torch_file *f, struct err *e)
{
	struct shards s = {.f = f, .e = e};
	struct torch_parts *p = f->parts;
	struct strs list = {0};
	int rc = 0;
	list_shards(f->path, &list);
	p->files = xcalloc((size_t)list.n + 1, sizeof(*p->files));
	p->fds = xcalloc((size_t)list.n + 1, sizeof(*p->fds));
	for (; p->n_files < list.n; p->n_files++) {
		p->files[p->n_files] = xstrdup(list.v[p->n_files]);
		p->fds[p->n_files] = -1;
	}
	for (int32_t i = 0; i < p->n_files && !rc; i++)
		rc = read_file(&s, i);
	if (s.n && !rc)
		qsort(s.v, (size_t)s.n, sizeof(*s.v), by_name_and_begin);
	for (int64_t i = 0, k; i < s.n && !rc; i = k) {
		for (k = i + 1; k < s.n && !strcmp(s.v[i].name, s.v[k].name);)
			k++;
		rc = add_tensor(&s, i, k);
	}
	rc = rc || items_end(f, e) ? -1 : 0;
	for (int64_t i = 0; i < s.n; i++)
		free(s.v[i].name);
	free(s.v);
	strs_free(&list);
	return rc;
}

const struct container container_shards = {
	.name = "safetensors of ranks",
	.many = true,
	.is_in = shards_are_in,
	.open = shards_open,
};

/* A directory of safetensors files, one per rank, as DCP's HuggingFaceStorageWriter writes them
 * before they are consolidated. Each tensor of a file is a box of a tensor; the file's metadata
 * have its begin. No file has the shape of the whole tensor: it ends where its last box ends. */
#include "archive/archive_internal.h"
#include "archive/safetensors.h"

#include "base/file.h"
#include "base/json.h"

static bool is_shard(const char *name)
{
	return !strncmp(name, "shard-", 6) && text_ends(name, ".safetensors");
}

/* Appends the sorted paths of a directory's shards to *out. Returns true if there are any. */
static int list_shards(const char *directory, struct strs *out)
{
	scoped_dir *d = opendir(directory);
	struct dirent *entry;
	while (d && (entry = readdir(d)))
		if (is_shard(entry->d_name)) {
			scoped_ptr char *path =
				text_printf("%s/%s", directory, entry->d_name);
			strs_add(out, path);
		}
	strs_sort(out);
	return out->n > 0;
}

static bool shards_matches(const char *directory)
{
	scoped_strs list = {0};
	return list_shards(directory, &list);
}

/* A tensor of a file: a box of the whole tensor. */
struct shard {
	int32_t file;
	struct st_tensor tensor;
	int64_t begin[TORCH_MAX_DIMS];
};

struct shards {
	struct torch_file *f;
	struct shard *v;
	int64_t n;
	struct err *e;
};

/* Reads an array of n nonnegative integers. */
static int read_integers(json_t *list, int n, int64_t *out)
{
	if (!json_is_array(list) || json_array_size(list) != (size_t)n)
		return -1;
	for (int i = 0; i < n; i++) {
		json_t *x = json_array_get(list, (size_t)i);
		out[i] = json_integer_value(x);
		if (!json_is_integer(x) || out[i] < 0 || out[i] > INT64_MAX / 4)
			return -1;
	}
	return 0;
}

/* Appends the tensors of a file. `sharding`: saved_offsets by tensor name. */
static int add_shards(
	struct shards *s, int32_t file, struct st_header *h, const json_t *sharding)
{
	const char *path = s->f->parts->files[file];
	for (int64_t i = 0; i < h->n; i++) {
		struct shard x = {.file = file, .tensor = h->tensors[i]};
		json_t *saved = json_object_get(sharding, x.tensor.name);
		if (safetensors_dtype(&x.tensor) < 0)
			return err_set(s->e, EX_UNAVAILABLE,
				"%s: %s has the unsupported type %s", path, x.tensor.name,
				safetensors_type(&x.tensor));
		if (read_integers(json_object_get(saved, "saved_offsets"), x.tensor.ndim,
			    x.begin))
			return err_set(s->e, EX_DATAERR,
				"%s: the saved_offsets of %s are invalid", path,
				x.tensor.name);
		s->v = xgrow(s->v, s->n, sizeof(*s->v));
		s->v[s->n++] = x;
		h->tensors[i].name = NULL;
	}
	return 0;
}

/* Appends the shards in one file to s->v, from its DCP_SHARDING_INFO. Fails if that is missing. */
static int add_file_shards(struct shards *s, int32_t file)
{
	struct st_header h;
	const char *path = s->f->parts->files[file];
	int fd = items_fd(s->f, file, s->e);
	if (fd < 0 || safetensors_read_header(&h, fd, path, s->e))
		return -1;
	items_grant(s->f, h.size);
	const char *text = safetensors_metadata(&h, "DCP_SHARDING_INFO");
	json_auto_t *sharding = text ? load_json(text, strlen(text), 0, NULL) : NULL;
	int rc =
		json_is_object(sharding)
			? add_shards(s, file, &h, sharding)
			: err_set(s->e, EX_DATAERR,
				  "%s: DCP_SHARDING_INFO is missing: not a checkpoint shard",
				  path);
	safetensors_header_release(&h);
	return rc;
}

static int by_name_and_begin(const void *a, const void *b)
{
	const struct shard *x = a, *y = b;
	int order = strcmp(x->tensor.name, y->tensor.name);
	for (int i = 0; i < TORCH_MAX_DIMS && !order; i++)
		order = (x->begin[i] > y->begin[i]) - (x->begin[i] < y->begin[i]);
	return order;
}

/* Appends the tensor that consists of shards [from, to). */
static int add_tensor(struct shards *s, int64_t from, int64_t to)
{
	const struct shard *first = &s->v[from];
	struct torch_item *t =
		items_add(s->f, first->tensor.name, strlen(first->tensor.name), s->e);
	if (!t)
		return -1;
	t->kind = TORCH_TENSOR;
	t->dtype = safetensors_dtype(&first->tensor);
	t->ndim = first->tensor.ndim;
	for (int64_t i = from; i < to; i++) {
		const struct shard *x = &s->v[i];
		if (safetensors_dtype(&x->tensor) != t->dtype ||
			x->tensor.ndim != t->ndim)
			return err_set(s->e, EX_DATAERR,
				"%s: %s has another dtype or number of dimensions than in "
				"the other files",
				s->f->parts->files[x->file], x->tensor.name);
		for (int k = 0; k < t->ndim; k++)
			t->dims[k] = max64(t->dims[k], x->begin[k] + x->tensor.dims[k]);
	}
	if (!shape_fits(t->dims, t->ndim))
		return err_set(s->e, EX_DATAERR, "%s: invalid shape of %s",
			s->f->parts->files[first->file], t->name);
	for (int64_t i = from; i < to; i++) {
		const struct shard *x = &s->v[i];
		bool is_empty = false;
		for (int k = 0; k < x->tensor.ndim; k++)
			is_empty = is_empty || !x->tensor.dims[k];
		if (is_empty)
			continue;
		struct chunk *c = items_add_chunk(s->f, x->begin, x->tensor.dims);
		c->file = x->file;
		chunk_set_place(c, x->tensor.offset);
	}
	return 0;
}

/* Appends the tensors of all shard files in directory f->path. Shards become chunks. */
static int shards_open(struct torch_file *f, struct err *e)
{
	struct shards s = {.f = f, .e = e};
	struct torch_parts *p = f->parts;
	scoped_strs list = {0};
	int rc = 0;
	list_shards(f->path, &list);
	p->files = xcalloc((size_t)list.n + 1, sizeof(*p->files));
	p->fds = xcalloc((size_t)list.n + 1, sizeof(*p->fds));
	for (; p->n_files < list.n; p->n_files++) {
		p->files[p->n_files] = xstrdup(list.v[p->n_files]);
		p->fds[p->n_files] = -1;
	}
	for (int32_t i = 0; i < p->n_files && !rc; i++)
		rc = add_file_shards(&s, i);
	if (s.n && !rc)
		qsort(s.v, (size_t)s.n, sizeof(*s.v), by_name_and_begin);
	for (int64_t i = 0, k; i < s.n && !rc; i = k) {
		for (k = i + 1;
			k < s.n && !strcmp(s.v[i].tensor.name, s.v[k].tensor.name);)
			k++;
		rc = add_tensor(&s, i, k);
	}
	rc = rc || items_finish(f, e) ? -1 : 0;
	for (int64_t i = 0; i < s.n; i++)
		free(s.v[i].tensor.name);
	free(s.v);
	return rc;
}

const struct container container_shards = {
	.many_archives = true, .matches = shards_matches, .open = shards_open};

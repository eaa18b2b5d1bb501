/* The items of a file: builds the list of names and chunks, and reads rows of tensors. */
#include "archive/archive_internal.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

/* ---- making the list ------------------------------------------------------------------ */

/* Returns the capacity of a list of n elements: the next power of two, at least 16. */
static int64_t capacity_of(int64_t n)
{
	int64_t capacity = 16;
	while (capacity < n)
		capacity *= 2;
	return n ? capacity : 0;
}

/* Reallocates a list of n elements of `size` bytes so that `more` fit. */
static void *grow_list(void *list, int64_t n, int64_t more, size_t size)
{
	int64_t need = capacity_of(n + more);
	return need > capacity_of(n) ? xrealloc(list, (size_t)need * size) : list;
}

void items_grant(struct torch_file *f, int64_t n_bytes)
{
	enum { PER_BYTE = 16 };
	f->parts->budget += PER_BYTE * min64(n_bytes, INT64_MAX / 64 / PER_BYTE);
}

static void subtract_budget(struct torch_parts *p, int64_t n_bytes)
{
	static const int64_t limit = INT64_MAX / 4;
	p->budget = max64(p->budget - min64(n_bytes, limit), -limit);
}

int items_charge(struct torch_file *f, int64_t n_bytes, struct err *e)
{
	subtract_budget(f->parts, n_bytes);
	return f->parts->budget >= 0
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s: names, tensors and values need more memory than 16 times "
				 "the size of the files: the file is damaged",
				 f->path);
}

struct torch_item *items_add(
	struct torch_file *f, const char *name, size_t n_bytes, struct err *e)
{
	enum { MAX_NAME = 4096 };
	if (n_bytes > MAX_NAME || memchr(name, 0, n_bytes)) {
		err_set(e, EX_DATAERR, "%s: invalid item name: the file is damaged",
			f->path);
		return NULL;
	}
	if (items_charge(f, (int64_t)(sizeof(*f->items) + n_bytes), e))
		return NULL;
	f->items = grow_list(f->items, f->n, 1, sizeof(*f->items));
	struct torch_item *x = &f->items[f->n];
	*x = (struct torch_item){
		.kind = TORCH_VALUE, .order = f->n, .first = f->parts->n_chunks};
	x->name = xmalloc(n_bytes + 1);
	memcpy(x->name, name, n_bytes);
	x->name[n_bytes] = '\0';
	f->n++;
	return x;
}

struct torch_item *items_add_tensor(struct torch_file *f, const char *name,
	size_t n_bytes, const struct tensor_info *d, struct err *e)
{
	struct torch_item *x = items_add(f, name, n_bytes, e);
	if (x) {
		x->kind = TORCH_TENSOR;
		x->dtype = d->dtype;
		x->ndim = d->ndim;
		memcpy(x->dims, d->dims, sizeof(x->dims));
	}
	return x;
}

void chunk_set_place(struct chunk *c, int64_t at)
{
	c->place = xcalloc(1, sizeof(*c->place));
	*c->place = (struct place){.at = at, .contiguous = true};
}

const int64_t no_dims[TORCH_MAX_DIMS];

struct chunk *items_add_chunk(
	struct torch_file *f, const int64_t *begin, const int64_t *sizes)
{
	struct torch_parts *p = f->parts;
	struct torch_item *x = &f->items[f->n - 1];
	p->chunks = grow_list(p->chunks, p->n_chunks, 1, sizeof(*p->chunks));
	p->boxes = grow_list(p->boxes, p->n_boxes, 2 * TORCH_MAX_DIMS, sizeof(*p->boxes));
	struct chunk *c = &p->chunks[p->n_chunks++];
	*c = (struct chunk){.box = p->n_boxes, .file = -1};
	int64_t n = dtype_size(x->dtype);
	for (int i = 0; i < x->ndim; i++) {
		p->boxes[p->n_boxes + i] = begin[i];
		p->boxes[p->n_boxes + x->ndim + i] = sizes[i];
		n *= sizes[i];
	}
	p->n_boxes += 2 * x->ndim;
	subtract_budget(p, (int64_t)(sizeof(*c) + sizeof(*c->place)) + 16 * x->ndim);
	/* (with stride 0, few stored elements may make a huge tensor, or many tensors) */
	if (!p->many_archives && x->kind == TORCH_TENSOR)
		subtract_budget(p, n / 4);
	x->n_chunks++;
	return c;
}

void items_move_to_copies(struct torch_file *f, const char *owner, const char *original)
{
	f->copies = grow_list(f->copies, f->n_copies, 1, sizeof(*f->copies));
	f->copies[f->n_copies++] =
		(struct torch_copy){f->items[--f->n], xstrdup(owner), xstrdup(original)};
}

/* Returns the sum over the corners of a box of a hash of the corner, with sign (-1)^(number of far
 * sides). Boxes cover a tensor exactly once if and only if their indicator functions sum to the
 * tensor's. This holds if and only if the mixed differences of both are equal, and the differences
 * of a box are nonzero only at its corners, with these signs. So the hashes of all boxes must sum
 * to the hash of the tensor. */
static uint64_t hash_corners(const int64_t *begin, const int64_t *sizes, int ndim)
{
	uint64_t sum = 0;
	for (unsigned corner = 0; corner < 1u << ndim; corner++) {
		int64_t at[TORCH_MAX_DIMS];
		for (int i = 0; i < ndim; i++)
			at[i] = begin[i] + (corner >> i & 1 ? sizes[i] : 0);
		uint64_t hash = hash_bytes(at, (size_t)ndim * sizeof(*at), 0);
		sum += __builtin_popcount(corner) & 1 ? -hash : hash;
	}
	return sum;
}

/* Fails unless the chunks of a tensor cover each element exactly once. */
static int check_coverage(
	const struct torch_file *f, const struct torch_item *x, struct err *e)
{
	const struct torch_parts *p = f->parts;
	uint64_t sum = 0;
	bool is_empty = false;
	for (int i = 0; i < x->ndim; i++)
		is_empty = is_empty || !x->dims[i];
	for (int64_t i = x->first; i < x->first + x->n_chunks; i++) {
		const int64_t *box = p->boxes + p->chunks[i].box;
		sum += hash_corners(box, box + x->ndim, x->ndim);
	}
	if (is_empty || (x->n_chunks && sum == hash_corners(no_dims, x->dims, x->ndim)))
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: the parts of %s leave a hole or overlap: the checkpoint is incomplete",
		f->path, x->name);
}

/* Sets x->max_chunk_rows, which bounds the search for the first chunk of a row. */
static void set_max_chunk_rows(const struct torch_file *f, struct torch_item *x)
{
	const struct torch_parts *p = f->parts;
	for (int64_t i = x->first; x->ndim && i < x->first + x->n_chunks; i++)
		x->max_chunk_rows =
			max64(x->max_chunk_rows, p->boxes[p->chunks[i].box + x->ndim]);
}

int items_finish(struct torch_file *f, struct err *e)
{
	if (items_charge(f, 0, e))
		return -1;
	if (f->n)
		qsort(f->items, (size_t)f->n, sizeof(*f->items), compare_texts);
	for (int64_t i = 1; i < f->n; i++)
		if (!strcmp(f->items[i].name, f->items[i - 1].name))
			return err_set(e, EX_DATAERR, "%s: duplicate item %s", f->path,
				f->items[i].name);
	for (int64_t i = 0; i < f->n + f->n_copies; i++) {
		struct torch_item *x =
			i < f->n ? &f->items[i] : &f->copies[i - f->n].item;
		if (x->kind != TORCH_TENSOR)
			continue;
		if (check_coverage(f, x, e))
			return -1;
		set_max_chunk_rows(f, x);
	}
	return 0;
}

const struct torch_item *torch_find(const struct torch_file *f, const char *name)
{
	const struct torch_item key = {.name = (char *)name};
	return f->n ? bsearch(&key, f->items, (size_t)f->n, sizeof(key), compare_texts)
		    : NULL;
}

void torch_close(struct torch_file *f)
{
	struct torch_parts *p = f->parts;
	if (!p)
		return;
	int fd = p->archive.zip.fd;
	archive_close(&p->archive);
	if (fd >= 0)
		close(fd);
	for (int64_t i = 0; i < p->n_chunks; i++)
		free(p->chunks[i].place);
	for (int32_t i = 0; i < p->n_files; i++) {
		if (p->fds[i] >= 0)
			close(p->fds[i]);
		free(p->files[i]);
	}
	for (int64_t i = 0; i < f->n; i++)
		free(f->items[i].name);
	for (int64_t i = 0; i < f->n_copies; i++) {
		free(f->copies[i].item.name);
		free(f->copies[i].owner);
		free(f->copies[i].item_owner);
	}
	free(f->copies);
	for (int32_t i = 0; p->zips && i < p->n_files; i++)
		zip_close(&p->zips[i]);
	free(p->zips);
	free(p->chunks);
	free(p->boxes);
	free(p->files);
	free(p->fds);
	free(p->span);
	free(f->items);
	free(f->path);
	*f = (struct torch_file){.path = NULL};
	free(p);
}

/* ---- where chunks are stored ------------------------------------------------------- */

int32_t items_add_file(struct torch_file *f, const char *path)
{
	struct torch_parts *p = f->parts;
	p->files = xgrow(p->files, p->n_files, sizeof(*p->files));
	p->fds = xgrow(p->fds, p->n_files, sizeof(*p->fds));
	p->files[p->n_files] = xstrdup(path);
	p->fds[p->n_files] = -1;
	return p->n_files++;
}

int items_fd(struct torch_file *f, int32_t file, struct err *e)
{
	struct torch_parts *p = f->parts;
	if (file < 0)
		return p->archive.zip.fd;
	if (p->fds[file] >= 0)
		return p->fds[file];
	int32_t *slot = &p->recent[p->next++ % OPEN_FILES];
	if (*slot >= 0) {
		close(p->fds[*slot]);
		p->fds[*slot] = -1;
	}
	*slot = -1;
	int fd = open(p->files[file], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return err_set(e, EX_IOERR, "%s: %s", p->files[file], strerror(errno));
	*slot = file;
	p->fds[file] = fd;
	return fd;
}

static const char *chunk_path(const struct torch_file *f, const struct chunk *c)
{
	return c->file < 0 ? f->parts->archive.zip.name : f->parts->files[c->file];
}

/* Fails if the tensor in an archive differs in type or shape from .metadata. */
static int check_tensor_info(const struct torch_file *f, const struct torch_item *t,
	const struct chunk *c, const struct tensor_info *d, struct err *e)
{
	const int64_t *sizes = f->parts->boxes + c->box + t->ndim;
	bool same = d->dtype == t->dtype && d->ndim == t->ndim;
	int64_t n = dtype_size(t->dtype);
	for (int i = 0; i < t->ndim && same; i++) {
		same = d->dims[i] == sizes[i];
		n *= sizes[i];
	}
	same = same && (!f->parts->many_archives || n <= c->n_bytes);
	return same ? 0
		    : err_set(e, EX_DATAERR,
			      "%s: a part of %s differs from .metadata: the checkpoint is "
			      "damaged",
			      chunk_path(f, c), t->name);
}

/* Finds where a chunk is stored, verifies the checksum of its storage, and sets c->place. */
static int locate_chunk(
	struct torch_file *f, const struct torch_item *t, struct chunk *c, struct err *e)
{
	struct archive chunk_archive, *a = &f->parts->archive;
	struct tensor_info d;
	if (f->parts->zips && c->file >= 0)
		return storages_verify(f, c, e);
	if (f->parts->many_archives) {
		int fd = items_fd(f, c->file, e);
		a = &chunk_archive;
		if (fd < 0 || archive_open(a, fd, chunk_path(f, c), c->at, c->n_bytes, e))
			return -1;
	}
	uint32_t node = f->parts->many_archives ? find_archive_tensor(a) : c->node;
	/* (many chunks may refer to one archive with a small tensor and a large rest) */
	int rc = f->parts->many_archives ? items_charge(f, a->n_parsed / 4, e) : 0;
	rc = rc ? rc : describe_tensor(&a->tree, node, &d, e);
	if (rc > 0)
		rc = err_set(e, EX_DATAERR, "%s: a part of %s is not a tensor",
			chunk_path(f, c), t->name);
	rc = rc || check_tensor_info(f, t, c, &d, e) ||
	     find_verified_place(a, &d, &c->place, e);
	if (f->parts->many_archives)
		archive_close(a);
	return rc ? -1 : 0;
}

/* Returns true if the chunks of two tensors are at the same places of the same files. */
static bool are_same_chunks(const struct torch_file *f, const struct torch_item *a,
	const struct torch_item *b)
{
	const struct chunk *x = &f->parts->chunks[a->first],
			   *y = &f->parts->chunks[b->first];
	bool same = a->n_chunks == b->n_chunks && a->dtype == b->dtype;
	for (int64_t i = 0; i < a->n_chunks && same; i++) {
		const struct place *p = x[i].place, *q = y[i].place;
		same = x[i].file == y[i].file && x[i].at == y[i].at &&
		       (!p || p->contiguous) == (!q || q->contiguous) &&
		       (!p || !q || !memcmp(p->stride, q->stride, sizeof(p->stride)));
	}
	return same;
}

bool torch_share_elements(const struct torch_file *f, const struct torch_item *a,
	const struct torch_item *b)
{
	struct tensor_info x, y;
	struct err e = {0};
	const struct torch_parts *p = f->parts;
	if (p->many_archives || a->ndim != b->ndim ||
		memcmp(a->dims, b->dims, sizeof(a->dims)))
		return false;
	if (p->zips)
		return are_same_chunks(f, a, b);
	if (a->n_chunks != 1 || b->n_chunks != 1 ||
		describe_tensor(&p->archive.tree, p->chunks[a->first].node, &x, &e) ||
		describe_tensor(&p->archive.tree, p->chunks[b->first].node, &y, &e))
		return false;
	return x.offset == y.offset && x.key_bytes == y.key_bytes &&
	       !memcmp(x.storage_key, y.storage_key, x.key_bytes) &&
	       !memcmp(x.stride, y.stride, sizeof(x.stride));
}

/* ---- reading ---------------------------------------------------------------------------- */

/* The destination of elements: exactly one pointer is not NULL. */
struct sink {
	float *floats;
	double *doubles;
};

static struct sink offset_sink(const struct sink *s, int64_t i)
{
	return (struct sink){
		s->floats ? s->floats + i : NULL, s->doubles ? s->doubles + i : NULL};
}

static void convert_elements(const struct sink *s, int dtype, const void *raw, int64_t n)
{
	if (s->floats)
		dtype_to_floats(dtype, raw, n, s->floats);
	else
		dtype_to_doubles(dtype, raw, n, s->doubles);
}

/* Reads elements [first, first + n), in row-major order, of a chunk that is not contiguous. */
static int read_scattered(struct torch_file *f, const struct torch_item *t,
	const struct chunk *c, int64_t first, int64_t n, const struct sink *out,
	struct err *e)
{
	struct torch_parts *p = f->parts;
	const int64_t *sizes = p->boxes + c->box + t->ndim;
	int64_t size = dtype_size(t->dtype);
	if (p->span_place != c->place) {
		p->span_place = NULL;
		free(p->span);
		p->span = xmalloc((size_t)(c->place->span * size));
		int fd = items_fd(f, c->file, e);
		if (fd < 0 || file_read_at(fd, chunk_path(f, c), p->span,
				      (size_t)(c->place->span * size), c->place->at, e))
			return -1;
		p->span_place = c->place;
	}
	for (int64_t i = 0; i < n; i++) {
		int64_t at = 0, rest = first + i;
		for (int k = t->ndim - 1; k >= 0; k--) {
			at += rest % sizes[k] * c->place->stride[k];
			rest /= sizes[k];
		}
		const struct sink to = offset_sink(out, i);
		convert_elements(&to, t->dtype, (const char *)p->span + at * size, 1);
	}
	return 0;
}

/* Reads elements [first, first + n) of a chunk, in row-major order. */
static int read_chunk(struct torch_file *f, const struct torch_item *t, struct chunk *c,
	int64_t first, int64_t n, const struct sink *out, struct err *e)
{
	enum { PIECE = 1 << 20 };
	int64_t size = dtype_size(t->dtype), per = PIECE / size;
	if (!n)
		return 0;
	if ((!c->place || (f->parts->zips && c->file >= 0)) && locate_chunk(f, t, c, e))
		return -1;
	if (!c->place->contiguous)
		return read_scattered(f, t, c, first, n, out, e);
	int fd = items_fd(f, c->file, e), rc = 0;
	if (fd < 0)
		return -1;
	scoped_ptr char *raw = xmalloc((size_t)(min64(per, n) * size));
	for (int64_t i = 0; i < n && !rc; i += per) {
		int64_t part = min64(per, n - i);
		const struct sink to = offset_sink(out, i);
		rc = file_read_at(fd, chunk_path(f, c), raw, (size_t)(part * size),
			c->place->at + (first + i) * size, e);
		if (!rc)
			convert_elements(&to, t->dtype, raw, part);
	}
	return rc;
}

/* Copies n rows of a chunk that is narrower than its tensor to their columns of `out`. `box`: begin
 * and sizes of the chunk; `row`: row of `out` for the first row of `from`. */
static void scatter_rows(const struct torch_item *t, const int64_t *box, int64_t row,
	int64_t n, const struct sink *from, const struct sink *out)
{
	const int64_t *begin = box, *sizes = box + t->ndim;
	int last = t->ndim - 1;
	int64_t run = sizes[last], n_runs = n;
	for (int k = 1; k < last; k++)
		n_runs *= sizes[k];
	for (int64_t i = 0; i < n_runs; i++) {
		int64_t rest = i, at = begin[last], width = t->dims[last];
		for (int k = last - 1; k > 0; k--) {
			at += (begin[k] + rest % sizes[k]) * width;
			rest /= sizes[k];
			width *= t->dims[k];
		}
		at += (row + rest) * width;
		if (out->floats)
			memcpy(out->floats + at, from->floats + i * run,
				(size_t)run * sizeof(float));
		else
			memcpy(out->doubles + at, from->doubles + i * run,
				(size_t)run * sizeof(double));
	}
}

/* Reads the rows that a chunk has among rows [row, row + n) of its tensor. */
static int read_chunk_rows(struct torch_file *f, const struct torch_item *t,
	struct chunk *c, int64_t row, int64_t n, const struct sink *out, struct err *e)
{
	const int64_t *box = f->parts->boxes + c->box, *sizes = box + t->ndim;
	int64_t width = 1, begin = max64(row, box[0]);
	int64_t end = min64(row + n, box[0] + sizes[0]);
	if (begin >= end)
		return 0;
	for (int i = 1; i < t->ndim; i++)
		width *= sizes[i];
	int64_t first = (begin - box[0]) * width, count = (end - begin) * width;
	if (width == torch_row_size(t)) {
		const struct sink to = offset_sink(out, (begin - row) * width);
		return read_chunk(f, t, c, first, count, &to, e);
	}
	struct sink columns = {0};
	scoped_ptr void *memory = xmalloc((size_t)count * sizeof(double) + 1);
	*(out->floats ? (void **)&columns.floats : (void **)&columns.doubles) = memory;
	int rc = read_chunk(f, t, c, first, count, &columns, e);
	if (!rc)
		scatter_rows(t, f->parts->boxes + c->box, begin - row, end - begin,
			&columns, out);
	return rc;
}

/* Returns the first chunk that may have a row. Chunks are sorted by their begin. */
static int64_t find_first_chunk(
	const struct torch_file *f, const struct torch_item *t, int64_t row)
{
	const struct torch_parts *p = f->parts;
	int64_t low = t->first, high = t->first + t->n_chunks;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (p->boxes[p->chunks[middle].box] + t->max_chunk_rows > row)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* Reads rows [row, row + n) of a tensor from all chunks that have some of them. */
static int read_rows(struct torch_file *f, const struct torch_item *t, int64_t row,
	int64_t n, const struct sink *out, struct err *e)
{
	struct torch_parts *p = f->parts;
	BUG_ON(t->kind != TORCH_TENSOR || row < 0 || n < 0 || row + n > torch_rows(t));
	if (!t->ndim)
		return read_chunk(f, t, &p->chunks[t->first], 0, n, out, e);
	for (int64_t i = find_first_chunk(f, t, row); i < t->first + t->n_chunks; i++) {
		if (p->boxes[p->chunks[i].box] >= row + n)
			break;
		if (read_chunk_rows(f, t, &p->chunks[i], row, n, out, e))
			return -1;
	}
	return 0;
}

int64_t torch_row_size(const struct torch_item *t)
{
	int64_t n = 1;
	for (int i = 1; i < t->ndim; i++)
		n *= t->dims[i];
	return n;
}

int64_t torch_rows(const struct torch_item *t)
{
	return t->ndim ? t->dims[0] : 1;
}

int torch_read(struct torch_file *f, const struct torch_item *t, int64_t row, int64_t n,
	float *out, struct err *e)
{
	const struct sink to = {.floats = out};
	return read_rows(f, t, row, n, &to, e);
}

int torch_read_doubles(struct torch_file *f, const struct torch_item *t, int64_t row,
	int64_t n, double *out, struct err *e)
{
	const struct sink to = {.doubles = out};
	return read_rows(f, t, row, n, &to, e);
}

int torch_compare(struct torch_file *f, const struct torch_item *a,
	const struct torch_item *b, struct torch_difference *d, struct err *e)
{
	enum { PIECE = 1 << 16 };
	int64_t width = torch_row_size(a), step = max64(1, PIECE / max64(1, width));
	double sum_difference = 0, sum_a = 0; /* sums of squares */
	int rc = 0;
	*d = (struct torch_difference){.first = -1};
	if (a->ndim != b->ndim || memcmp(a->dims, b->dims, sizeof(a->dims)) != 0)
		return err_set(e, EX_DATAERR, "%s: copies of %s differ in shape", f->path,
			a->name);
	double *x = xmalloc((size_t)(2 * step * width) * sizeof(*x)),
	       *y = x + step * width;
	for (int64_t r = 0; r < torch_rows(a) && !rc; r += step) {
		int64_t rows = min64(step, torch_rows(a) - r);
		rc = torch_read_doubles(f, a, r, rows, x, e) ||
		     torch_read_doubles(f, b, r, rows, y, e);
		for (int64_t i = 0; i < rows * width && !rc; i++) {
			sum_a += x[i] * x[i];
			if (!memcmp(&x[i], &y[i], sizeof(*x)))
				continue;
			sum_difference += (x[i] - y[i]) * (x[i] - y[i]);
			if (!d->n++) {
				d->first = r * width + i;
				d->value[0] = x[i];
				d->value[1] = y[i];
			}
		}
	}
	free(x);
	d->distance = sum_difference > 0 ? sqrt(sum_difference / sum_a) : 0;
	return rc ? -1 : 0;
}

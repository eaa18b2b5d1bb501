/* Reads checkpoints, and verifies each block before it is used. */
#include "ckpt/view.h"

#include "base/file.h"
#include "base/utf8.h"
#include "kernels/kernels.h"

#include <fcntl.h>
#include <limits.h>
#include <omp.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t ckpt_row_size(const struct ckpt_tensor *t)
{
	return t->ndim == 1 ? 1 : t->dims[1];
}

int64_t ckpt_size(const struct ckpt_tensor *t)
{
	return t->dims[0] * ckpt_row_size(t);
}

bool ckpt_same_shape(const struct ckpt_tensor *a, const struct ckpt_tensor *b)
{
	return a->ndim == b->ndim && a->dims[0] == b->dims[0] &&
	       ckpt_row_size(a) == ckpt_row_size(b);
}

static struct h5_blocks *get_blocks(const struct ckpt *c, int group, int tensor)
{
	return &c->blocks[group * c->n_tensors + tensor];
}

static int count_blocks(const struct ckpt *c)
{
	return c->n_tensors * (int)c->groups.n;
}

static bool has_any_tensor(struct h5 *h, const char *group, const struct strs *tensors)
{
	bool found = false;
	for (int64_t i = 0; i < tensors->n && !found; i++) {
		scoped_ptr char *path = text_printf("/%s/%s", group, tensors->v[i]);
		found = h5_has(h, path);
	}
	return found;
}

/* Lists the groups of the file that have any of the tensors. */
static int find_groups(
	struct ckpt *c, struct h5 *h, const struct strs *tensors, struct err *e)
{
	scoped_strs names = {0};
	int rc = h5_list(h, "/", &names, e);
	strs_add(&c->groups, "model");
	for (int64_t i = 0; i < names.n && !rc; i++) {
		bool is_other = !strcmp(names.v[i], "model") ||
				!strcmp(names.v[i], "xxh3") ||
				!strcmp(names.v[i], "tokenizer");
		if (!is_other && has_any_tensor(h, names.v[i], tensors))
			strs_add(&c->groups, names.v[i]);
	}
	if (!rc && c->groups.n > CKPT_MAX_GROUPS)
		rc = err_set(e, EX_DATAERR, "%s: has %lld groups, more than %d", c->path,
			(long long)c->groups.n, CKPT_MAX_GROUPS);
	return rc;
}

/* Opens dataset i of [group][tensor]. Fails if a tensor has state in some groups only. */
static int open_tensor(
	struct ckpt *c, struct h5 *h, const struct strs *names, int i, struct err *e)
{
	struct ckpt_tensor *t = &c->tensors[i % c->n_tensors];
	const char *name = names->v[i % c->n_tensors];
	struct h5_blocks *b = &c->blocks[i];
	bool is_model = i < c->n_tensors, is_first_state = i / c->n_tensors == 1;
	char path[320];
	snprintf(path, sizeof(path), "/%s/%s", c->groups.v[i / c->n_tensors], name);
	bool is_absent = !is_model && c->info.version > 1 && !h5_has(h, path);
	if (is_first_state)
		t->stateless = is_absent;
	if (is_absent != t->stateless)
		return err_set(e, EX_DATAERR,
			"%s: %s has only part of the optimizer state", c->path, name);
	if (is_absent)
		return 0;
	if (h5_blocks_open(h, path, b, e))
		return -1;
	if (b->type != H5_F32 || b->ndim < 1 || b->ndim > 2 || b->dims[0] < 1 ||
		(b->ndim == 2 && b->dims[1] < 1) || strlen(name) >= sizeof(t->name) ||
		text_has_control(path))
		return err_set(e, EX_DATAERR, "%s: %s is not a tensor", c->path, path);
	const struct ckpt_tensor shape = {
		.ndim = b->ndim, .dims = {b->dims[0], b->dims[1]}};
	if (!is_model && !ckpt_same_shape(t, &shape))
		return err_set(e, EX_DATAERR,
			"%s: the shape of %s differs from the parameter", c->path, path);
	if (!is_model)
		return 0;
	*t = shape;
	snprintf(t->name, sizeof(t->name), "%s", name);
	return 0;
}

/* Lists the tensors and groups of a checkpoint, and opens all their datasets. */
static int open_tensors(struct ckpt *c, struct h5 *h, struct err *e)
{
	scoped_strs names = {0};
	int rc = h5_list(h, "/model", &names, e);
	if (!rc && (names.n < 1 || names.n > 1 << 20))
		rc = err_set(e, EX_DATAERR, "%s: /model has %lld tensors, not 1 to 2^20",
			c->path, (long long)names.n);
	c->n_tensors = rc ? 0 : (int)names.n;
	c->tensors = xcalloc((size_t)c->n_tensors, sizeof(*c->tensors));
	rc = rc || find_groups(c, h, &names, e);
	c->blocks = xcalloc((size_t)count_blocks(c), sizeof(*c->blocks));
	for (int i = 0; i < count_blocks(c) && !rc; i++)
		rc = open_tensor(c, h, &names, i, e);
	return rc;
}

/* Fails if a counter is negative or too large, or the worker does not exist. */
static int check_info(const struct ckpt *c, struct err *e)
{
	const struct ckpt_info *i = &c->info;
	const int64_t max = (int64_t)1 << 53; /* exact in fp64 */
	if (i->step >= 0 && i->step <= max && i->samples >= 0 && i->samples <= max &&
		i->tokens >= 0 && i->workers >= 0 && i->worker >= 0 &&
		i->worker < max64(1, i->workers))
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: invalid step %lld, %lld samples, %lld tokens or worker %lld of %lld",
		c->path, (long long)i->step, (long long)i->samples, (long long)i->tokens,
		(long long)i->worker, (long long)i->workers);
}

enum { MAX_NUMBERS = 1 << 26 };

/* Reads attributes, texts and the tokenizer, and opens all tensors. */
static int read_contents(struct ckpt *c, struct h5 *h, struct err *e)
{
	if (h5_check_format(h, "pt-checkpoint", CKPT_VERSION, e) || h5_check_seal(h, e) ||
		h5_fields_read(h, "/", ckpt_fields, &c->info, e) || check_info(c, e) ||
		h5_get_text(h, "/config", &c->config, e) ||
		(h5_has(h, "/origin") && h5_get_text(h, "/origin", &c->origin, e)))
		return -1;
	if (h5_has(h, "/edit") && h5_get(h, "/edit", H5_F64, -1, MAX_NUMBERS,
					  (void **)&c->numbers, &c->n_numbers, e))
		return -1;
	if (h5_has(h, "/router.load") &&
		h5_get(h, "/router.load", H5_F64, -1, MAX_NUMBERS, (void **)&c->load,
			&c->n_load, e))
		return -1;
	if (h5_has(h, "/tokenizer") && tokenizer_read(&c->tokenizer, h, e)) {
		bool has_path = !strncmp(e->msg, c->path, strlen(c->path)); /* from h5 */
		return has_path ? -1 : err_prefix(e, "%s: ", c->path);
	}
	return open_tensors(c, h, e);
}

/* Returns the path of the file or link that a name stands for; for free(). */
static char *resolve_name(const char *name)
{
	static const char *const links[] = {"/latest.h5", "/checkpoints/latest.h5"};
	struct str path = {0};
	struct stat st;
	for (size_t i = 0; i < ARRAY_LEN(links); i++) {
		str_clear(&path);
		str_printf(&path, "%s%s", name, links[i]);
		if (!lstat(path.s, &st))
			return path.s;
	}
	str_free(&path);
	return xstrdup(name);
}

bool ckpt_is_empty_directory(const char *name)
{
	scoped_ptr char *path = resolve_name(name);
	return file_is_directory(path);
}

char *ckpt_find_file(const char *name)
{
	char *path = resolve_name(name), *real = realpath(path, NULL);
	if (!real)
		return path;
	free(path);
	return real;
}

/* Opens the file at `path`, which messages call `name`. Takes over the name. */
static int open_file(struct ckpt **out, const char *path, char *name, struct err *e)
{
	struct h5 *h;
	if (h5_open_as(&h, path, name, H5_READ, e)) {
		free(name);
		return -1;
	}
	struct ckpt *c = xcalloc(1, sizeof(*c));
	c->path = name;
	c->fd = -1;
	int rc = read_contents(c, h, e);
	if (!rc && (c->fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		rc = err_errno(e, name);
	if (!rc)
		c->size_bytes = lseek(c->fd, 0, SEEK_END);
	rc = h5_end(h, rc, e);
	if (rc)
		ckpt_close(c);
	else
		*out = c;
	return rc;
}

/* Returns what kind of another program's file this is, by its first bytes; NULL: unknown. */
static const char *describe_foreign_file(const char *first, size_t n)
{
	enum { LLMC_GPT2 = 20240326, LLMC_LLAMA = 20240803 };
	uint64_t header;
	int32_t magic = 0;
	if (n >= 4 && !memcmp(first, "PK\3\4", 4))
		return "a file of torch.save()";
	memcpy(&magic, first, n >= sizeof(magic) ? sizeof(magic) : 0);
	if (magic == LLMC_GPT2 || magic == LLMC_LLAMA)
		return "a model of llm.c";
	if (n <= sizeof(header))
		return NULL;
	memcpy(&header, first, sizeof(header));
	return first[8] == '{' && header < 1 << 28 ? "a file of safetensors" : NULL;
}

/* Returns what kind of foreign checkpoint a directory is, judged by its files; NULL: unknown. */
static const char *describe_foreign_directory(const char *name)
{
	static const struct {
		const char *file, *what;
	} known[] = {{".metadata", "a checkpoint of torch.distributed.checkpoint"},
		{"checkpoint_metadata.json", "a checkpoint of nanotron"},
		{"model.safetensors", "a model of Hugging Face"},
		{"model.safetensors.index.json", "a model of Hugging Face"},
		{"pytorch_model.bin", "a model of Hugging Face"},
		{"mp_rank_00_model_states.pt", "a checkpoint of DeepSpeed"},
		{"zero_to_fp32.py", "a checkpoint of DeepSpeed"}};
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		scoped_ptr char *path = text_printf("%s/%s", name, known[i].file);
		if (file_exists(path))
			return known[i].what;
	}
	return NULL;
}

/* Returns true if directory[n] (without a slash at its end) has the file "/NAME". */
static bool has_file(const char *directory, size_t n, const char *name)
{
	scoped_str path = {0};
	str_add(&path, directory, n);
	str_puts(&path, name);
	return file_exists(path.s);
}

int ckpt_reject_adapter(const char *path, struct err *e)
{
	static const char *const models[] = {"/model.safetensors",
		"/model.safetensors.index.json", "/pytorch_model.bin",
		"/pytorch_model.bin.index.json"};
	bool is_directory = file_is_directory(path);
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	size_t n = is_directory ? strlen(path) : slash ? (size_t)(slash - path) : 0;
	const char *directory = is_directory || slash ? path : ".";
	if (!is_directory && strncmp(name, "adapter_model.", 14) != 0)
		return 0;
	if (!has_file(directory, n ? n : 1, "/adapter_config.json"))
		return 0;
	for (size_t i = 0; i < ARRAY_LEN(models) && is_directory; i++)
		if (has_file(path, n, models[i]))
			return 0;
	return err_set(e, EX_UNAVAILABLE,
		"%s: a PEFT adapter (LoRA), not a model; merge it into its base model "
		"first, by merge_and_unload() and save_pretrained()",
		path);
}

/* Reports a foreign file, and how pt-ckpt converts it with the vocabulary in the same directory. */
static int reject_foreign(
	const char *name, const char *what, bool is_directory, struct err *e)
{
	scoped_str path = {0};
	const char *slash = strrchr(name, '/');
	if (is_directory || slash)
		str_printf(&path, "%.*s", is_directory ? INT_MAX : (int)(slash - name),
			name);
	else
		str_puts(&path, ".");
	scoped_ptr char *vocabulary = text_printf("--vocabulary %s ", path.s);
	str_puts(&path, "/tokenizer.json");
	return err_set(e, EX_DATAERR,
		"%s: %s, not a pt checkpoint; 'pt-ckpt convert %s%s -o NEW.h5' converts it%s",
		name, what, file_exists(path.s) ? vocabulary : "", name,
		advice_on(ADVICE_FOREIGN_MODEL));
}

/* Reports a directory that lacks a link to its latest checkpoint. */
static int reject_empty(const char *name, struct err *e)
{
	scoped_str newest = {0};
	struct err ignored = {0};
	scoped_ptr char *checkpoints = text_printf("%s/checkpoints", name);
	const char *directory = file_is_directory(checkpoints) ? checkpoints : name;
	int64_t *steps, n = ckpt_list(directory, &steps, &ignored);
	if (n > 0)
		ckpt_set_path(&newest, directory, steps[n - 1]);
	free(steps);
	return err_set(e, EX_DATAERR,
		"%s: directory without checkpoint: latest.h5 and checkpoints/latest.h5 are "
		"missing%s%s",
		name, n > 0 ? "; the newest is " : "", n > 0 ? newest.s : "");
}

/* Rejects other formats by directory contents or first bytes; HDF5 checks the rest. */
static int check_format(const char *name, const char *path, struct err *e)
{
	char first[9];
	struct stat st;
	if (stat(path, &st))
		return 0;
	if (ckpt_reject_adapter(path, e))
		return -1;
	if (S_ISDIR(st.st_mode)) {
		const char *what = describe_foreign_directory(path);
		return what ? reject_foreign(name, what, true, e) : reject_empty(name, e);
	}
	int fd = S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	int64_t n = fd < 0 ? 0 : file_read_first(fd, name, first, sizeof(first), e);
	const char *what = n > 0 ? describe_foreign_file(first, (size_t)n) : NULL;
	if (fd >= 0)
		close(fd);
	if (n < 0)
		return -1;
	return what ? reject_foreign(name, what, false, e) : 0;
}

int ckpt_open(struct ckpt **out, const char *name, struct err *e)
{
	char *path = resolve_name(name);
	if (check_format(name, path, e)) {
		free(path);
		return -1;
	}
	return open_file(out, path, path, e);
}

int ckpt_open_stream(struct ckpt **out, const char *name, struct err *e)
{
	static const char source_name[] = "standard input";
	char temporary[4096];
	struct stream s;
	if (strcmp(name, "-"))
		return ckpt_open(out, name, e);
	if (stream_read_first(&s, STDIN_FILENO, source_name, e))
		return -1;
	if (!h5_has_signature(s.first, s.n))
		return err_set(e, EX_DATAERR, "%s: %s", source_name,
			describe_foreign_file(s.first, s.n)
				? describe_foreign_file(s.first, s.n)
				: "not an HDF5 file, or damaged");
	int fd = file_spool(&s, INT64_MAX, temporary, e);
	if (fd < 0)
		return -1;
	close(fd);
	int rc = open_file(out, temporary, xstrdup(source_name), e);
	cleanup_remove(temporary);
	return rc;
}

struct ckpt *ckpt_from_view(struct ckpt_view *v)
{
	struct ckpt *c = xcalloc(1, sizeof(*c));
	size_t n_bytes = (size_t)v->n_tensors * sizeof(*c->tensors);
	*c = (struct ckpt){.path = xstrdup(v->name), .info = v->info, .fd = -1};
	c->info.format = NULL;
	c->info.created_by = v->info.created_by ? xstrdup(v->info.created_by) : NULL;
	str_puts(&c->config, v->config.s ? v->config.s : "");
	str_add(&c->origin, v->origin.s, v->origin.len);
	c->n_tensors = v->n_tensors;
	c->tensors = xmalloc(n_bytes + 1);
	memcpy(c->tensors, v->tensors, n_bytes);
	for (int64_t i = 0; i < v->groups.n; i++)
		strs_add(&c->groups, v->groups.v[i]);
	c->view = xmalloc(sizeof(*v));
	*c->view = *v;
	*v = (struct ckpt_view){0};
	return c;
}

void ckpt_close(struct ckpt *c)
{
	if (!c)
		return;
	for (int i = 0; c->blocks && i < count_blocks(c); i++)
		h5_blocks_release(&c->blocks[i]);
	if (c->view) {
		ckpt_view_close(c->view);
		free(c->view);
	}
	strs_free(&c->groups);
	if (c->fd >= 0)
		close(c->fd);
	tokenizer_release(&c->tokenizer);
	str_free(&c->config);
	str_free(&c->origin);
	free((void *)c->info.format);
	free((void *)c->info.created_by);
	free(c->blocks);
	free(c->numbers);
	free(c->load);
	free(c->tensors);
	free(c->path);
	free(c);
}

int ckpt_find_group(const struct ckpt *c, const char *name)
{
	return (int)strs_find(&c->groups, name);
}

int ckpt_find(const struct ckpt *c, const char *name)
{
	for (int i = 0; i < c->n_tensors; i++)
		if (!strcmp(c->tensors[i].name, name))
			return i;
	return -1;
}

/* Reads and verifies one block; also answers messages of other ranks (thread 0 only). */
static int read_block(const struct ckpt *c, const struct h5_blocks *b, int64_t block,
	float *out, struct err *e)
{
	if (omp_get_thread_num() == 0)
		comm_poll(); /* other ranks may wait for this one */
	return h5_block_read(b, c->fd, block, out, e) ? err_prefix(e, "%s: ", c->path)
						      : 0;
}

int ckpt_read_rows(const struct ckpt *c, int group, int tensor, int64_t row, int64_t n,
	float *out, struct err *e)
{
	const struct ckpt_rows rows = {group, tensor, row, n};
	if (c->view)
		return c->view->read(c->view, &rows, out, e);
	const struct h5_blocks *b = get_blocks(c, group, tensor);
	int64_t width = ckpt_row_size(&c->tensors[tensor]);
	BUG_ON(row < 0 || n < 0 || row + n > c->tensors[tensor].dims[0]);
	if (group != CKPT_MODEL && c->tensors[tensor].stateless) {
		memset(out, 0, (size_t)(n * width) * sizeof(*out));
		return 0;
	}
	scoped_ptr float *piece = NULL; /* a block, if only some rows are wanted */
	int rc = 0;
	for (int64_t k = row / b->block_rows; k * b->block_rows < row + n && !rc; k++) {
		int64_t first = k * b->block_rows;
		int64_t last = min64(b->rows, first + b->block_rows);
		int64_t begin = max64(row, first), end = min64(row + n, last);
		float *to_out = out + (begin - row) * width;
		if (begin == first && end == last) {
			rc = read_block(c, b, k, to_out, e);
			continue;
		}
		if (!piece)
			piece = xmalloc((size_t)(b->block_rows * b->row_bytes));
		rc = read_block(c, b, k, piece, e);
		if (!rc)
			memcpy(to_out, piece + (begin - first) * width,
				(size_t)((end - begin) * width) * sizeof(float));
	}
	return rc;
}

int ckpt_for_each_block(const struct ckpt *c, int group, int tensor,
	int (*fn)(void *arg, int64_t first, const float *x, int64_t n), void *arg,
	struct err *e)
{
	const struct ckpt_tensor *t = &c->tensors[tensor];
	int64_t width = ckpt_row_size(t);
	int64_t step =
		c->view || (group != CKPT_MODEL && t->stateless)
			? max64(1, H5_BLOCK_BYTES / (width * (int64_t)sizeof(float)))
			: get_blocks(c, group, tensor)->block_rows;
	scoped_ptr float *piece = xmalloc((size_t)(step * width) * sizeof(*piece));
	int rc = 0;
	for (int64_t r = 0; r < t->dims[0] && !rc; r += step) {
		int64_t n = min64(step, t->dims[0] - r);
		rc = ckpt_read_rows(c, group, tensor, r, n, piece, e);
		rc = rc ? rc : fn(arg, r * width, piece, n * width);
	}
	return rc;
}

void ckpt_hash_add(struct device *d, uint64_t *hash, const struct ckpt_tensor *t,
	int64_t first, const float *x, int64_t n)
{
	d->k->hash(d, hash, mat((float *)x, 1, n), hash_str(t->name), first, n);
}

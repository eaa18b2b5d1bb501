/* Views of checkpoints, and writing of views. */
#include "ckpt/view.h"

static int read_ckpt_rows(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	return ckpt_read_rows(v->with, r->group, r->tensor, r->row, r->n, out, e);
}

static void copy_tensors(struct ckpt_view *v, const struct ckpt_tensor *from, int n)
{
	v->n_tensors = n;
	v->tensors = xcalloc((size_t)n, sizeof(*v->tensors));
	memcpy(v->tensors, from, (size_t)n * sizeof(*from));
}

static void copy_names(struct strs *to, const struct strs *from)
{
	for (int64_t i = 0; i < from->n; i++)
		strs_add(to, from->v[i]);
}

void ckpt_view_from(struct ckpt_view *v, const struct ckpt *c)
{
	*v = (struct ckpt_view){.name = c->path,
		.info = c->info,
		.tokenizer = c->tokenizer.kind ? &c->tokenizer : NULL,
		.numbers = c->numbers,
		.n_numbers = c->n_numbers,
		.load = c->load,
		.n_load = c->n_load,
		.read = read_ckpt_rows,
		.with = (void *)c};
	str_puts(&v->config, c->config.s);
	str_add(&v->origin, c->origin.s, c->origin.len);
	copy_tensors(v, c->tensors, c->n_tensors);
	copy_names(&v->groups, &c->groups);
}

void ckpt_view_copy(struct ckpt_view *v, const struct ckpt_view *source)
{
	*v = *source;
	v->config = v->origin = v->other_state = (struct str){0};
	v->groups = (struct strs){0};
	v->settings = NULL;
	v->copies = NULL;
	v->file_name = NULL;
	v->close = NULL;
	str_puts(&v->config, source->config.s);
	str_add(&v->origin, source->origin.s, source->origin.len);
	copy_tensors(v, source->tensors, source->n_tensors);
	copy_names(&v->groups, &source->groups);
}

void ckpt_view_drop_optimizer(struct ckpt_view *v)
{
	strs_free(&v->groups);
	strs_add(&v->groups, "model");
	v->numbers = NULL;
	v->n_numbers = v->info.workers = v->info.worker = 0;
	v->load = NULL;
	v->n_load = 0;
}

void ckpt_view_close(struct ckpt_view *v)
{
	if (v->close)
		v->close(v);
	free(v->tensors);
	strs_free(&v->groups);
	str_free(&v->config);
	str_free(&v->origin);
	str_free(&v->other_state);
	*v = (struct ckpt_view){0};
}

int ckpt_view_find(const struct ckpt_view *v, const char *name)
{
	for (int i = 0; i < v->n_tensors; i++)
		if (!strcmp(v->tensors[i].name, name))
			return i;
	return -1;
}

int ckpt_view_find_group(const struct ckpt_view *v, const char *name)
{
	return (int)strs_find(&v->groups, name);
}

float *ckpt_view_tensor(const struct ckpt_view *v, int tensor, struct err *e)
{
	const struct ckpt_tensor *t = &v->tensors[tensor];
	const struct ckpt_rows all = {CKPT_MODEL, tensor, 0, t->dims[0]};
	float *x = xmalloc((size_t)ckpt_size(t) * sizeof(*x));
	if (!v->read(v, &all, x, e))
		return x;
	free(x);
	return NULL;
}

/* Reads a tensor of a group in blocks, and adds it to the hash unless NULL. */
static int read_tensor(const struct ckpt_view *v, int group, int tensor, uint64_t *hash,
	float **block, struct err *e)
{
	const struct ckpt_tensor *t = &v->tensors[tensor];
	int64_t width = ckpt_row_size(t);
	int64_t rows = max64(1, 4 * H5_BLOCK_BYTES / (width * (int64_t)sizeof(float)));
	struct device d;
	device_open_cpu(&d, 0);
	*block = xrealloc(*block, (size_t)(rows * width) * sizeof(float));
	for (int64_t r = 0; r < t->dims[0]; r += rows) {
		const struct ckpt_rows part = {
			group, tensor, r, min64(rows, t->dims[0] - r)};
		if (v->read(v, &part, *block, e))
			return -1;
		if (hash)
			ckpt_hash_add(&d, hash, t, r * width, *block, part.n * width);
	}
	return 0;
}

/* Reads all tensors of a group, and adds their hash to *hash. */
static int read_group(const struct ckpt_view *v, int group, uint64_t *hash, struct err *e)
{
	scoped_ptr float *block = NULL;
	int rc = 0;
	for (int i = 0; i < v->n_tensors && !rc; i++)
		rc = read_tensor(v, group, i, hash, &block, e);
	return rc;
}

int ckpt_view_hash(const struct ckpt_view *v, uint64_t *hash, struct err *e)
{
	*hash = 0;
	return read_group(v, CKPT_MODEL, hash, e);
}

/* Sets the error `arg` to the first copy that differs from its original. */
static void report_copy(void *arg, const struct ckpt_copy *x)
{
	if (x->differ && !((struct err *)arg)->code)
		err_set(arg, EX_FAILED,
			"%s: the copies of %s and %s differ in %lld of %lld elements, first in "
			"element %lld: %g and %g",
			x->name, x->whose, x->first, (long long)x->differ,
			(long long)x->n, (long long)x->at, x->value[1], x->value[0]);
}

int ckpt_view_check(const struct ckpt_view *v, struct err *e)
{
	struct err copy_error = {0};
	for (int g = 0; g < (int)v->groups.n; g++)
		if (read_group(v, g, NULL, e))
			return -1;
	if (v->copies && v->copies(v, report_copy, &copy_error, e))
		return -1;
	*e = copy_error;
	return copy_error.code ? err_prefix(e, "%s: ", v->name) : 0;
}

struct writing {
	const struct ckpt_view *v;
	struct err e;
};

/* Reads rows of the view that is being written. Keeps the first error in w->e. */
static void read_view_rows(
	void *arg, int group, int tensor, int64_t row, int64_t n, int to, float *out)
{
	struct writing *w = arg;
	const struct ckpt_rows rows = {group, tensor, row, n};
	(void)to;
	if (!w->e.code)
		w->v->read(w->v, &rows, out, &w->e);
}

int ckpt_view_write(const struct ckpt_view *v, const char *path, struct err *e)
{
	struct writing arg = {.v = v};
	struct ckpt_write w = {.path = path,
		.info = v->info,
		.config = v->config.s ? v->config.s : "",
		.origin = v->origin.s,
		.tokenizer = v->tokenizer,
		.tensors = v->tensors,
		.n_tensors = v->n_tensors,
		.n_groups = (int)v->groups.n,
		.numbers = v->numbers,
		.n_numbers = v->n_numbers,
		.load = v->load,
		.n_load = v->n_load,
		.source = read_view_rows,
		.with = &arg,
		.source_error = &arg.e};
	w.info.format = "pt-checkpoint";
	w.info.version = CKPT_VERSION;
	for (int g = 0; g < w.n_groups; g++)
		w.groups[g] = v->groups.v[g];
	if (ckpt_view_hash(v, &w.info.param_hash, e))
		return -1;
	for (int g = 1; g < w.n_groups; g++)
		if (read_group(v, g, NULL, e))
			return -1;
	w.comm = comm_self("alone");
	int rc = ckpt_write(&w, e);
	comm_free(w.comm);
	return rc;
}

/* A Hugging Face model in several torch.save() files, pytorch_model-00001-of-00002.bin. The
 * weight_map of pytorch_model.bin.index.json names the file of each tensor. */
#include "archive/archive_internal.h"

#include "base/file.h"

static const char index_file[] = "pytorch_model.bin.index.json";

static void join_path(const char *directory, const char *name, struct str *out)
{
	str_clear(out);
	str_printf(out, "%s/%s", directory, name);
}

/* Returns true if a directory has the index, but no safetensors files of the same model. */
static bool bins_matches(const char *path)
{
	return directory_has_file(path, index_file) && !container_has_safetensors(path);
}

/* Appends the tensors of an open archive as items. Fails unless it is a dict of tensors. */
static int add_tensors(
	struct torch_file *f, int32_t file, const struct archive *a, struct err *e)
{
	const struct pickle *p = &a->tree;
	struct pickle_each it;
	uint32_t key, node;
	size_t n;
	int rc = 0;
	if (pickle_kind(p, p->root) != PICKLE_DICT)
		return err_set(e, EX_DATAERR, "%s: not a dict of named tensors",
			f->parts->files[file]);
	pickle_begin(&it, p, p->root);
	while (rc >= 0 && pickle_next(&it, &key) && pickle_next(&it, &node)) {
		const char *text = pickle_text(p, key, &n);
		scoped_str name = {0};
		str_puts(&name, "");
		if (text && !memchr(text, 0, n))
			str_add(&name, text, n);
		rc = storages_add_tensor(f, file, a, node, name.s, e);
	}
	return rc < 0 ? -1 : 0;
}

/* Opens archive `file`, and appends its tensors to the items of f. */
static int add_file(struct torch_file *f, int32_t file, struct err *e)
{
	struct archive a;
	if (storages_open(f, file, &a, e))
		return -1;
	int rc = add_tensors(f, file, &a, e);
	storages_close(f, file, &a);
	return rc;
}

int bins_add(struct torch_file *f, const struct strs *paths, struct err *e)
{
	int rc = 0;
	storages_add_files(f, paths);
	for (int64_t i = 0; i < paths->n && !rc; i++)
		rc = add_file(f, (int32_t)i, e);
	return rc || items_finish(f, e) ? -1 : 0;
}

/* Appends the files that the index lists; fails if one is missing or the index is wrong. */
static int add_listed_files(
	struct torch_file *f, const struct weight_map *m, struct err *e)
{
	scoped_strs paths = {0};
	scoped_str path = {0};
	int rc = 0;
	for (int64_t i = 0; i < m->files.n && !rc; i++) {
		weight_map_path(m, i, &path);
		strs_add(&paths, path.s);
		if (!file_exists(path.s))
			rc = err_set(e, EX_DATAERR, "%s: missing, but %s lists it",
				path.s, index_file);
	}
	return rc || bins_add(f, &paths, e) || weight_map_check(m, f, e) ? -1 : 0;
}

/* Appends the tensors of all files that index f->path lists, and checks them against it. */
static int bins_open(struct torch_file *f, struct err *e)
{
	struct weight_map m;
	scoped_str path = {0};
	join_path(f->path, index_file, &path);
	if (weight_map_read(&m, path.s, e))
		return -1;
	int rc = add_listed_files(f, &m, e);
	weight_map_release(&m);
	return rc;
}

const struct container container_bins = {.matches = bins_matches, .open = bins_open};

static const char one_file[] = "pytorch_model.bin";

static bool one_bin_matches(const char *path)
{
	return directory_has_file(path, one_file) && !container_has_safetensors(path);
}

static int one_bin_open(struct torch_file *f, struct err *e)
{
	struct str path = {0};
	join_path(f->path, one_file, &path);
	return torch_file_open_inside(f, path.s, e);
}

const struct container container_one_bin = {
	.matches = one_bin_matches, .open = one_bin_open};

/*
 * A model of Hugging Face in several files of torch.save(), pytorch_model-00001-of-00002.bin, and
 * pytorch_model.bin.index.json, whose weight_map has the file of each tensor.
 */
#include "archive/archive_internal.h"

#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static const char index_file[] = "pytorch_model.bin.index.json";

static void path_of(const char *folder, const char *name, struct str *out)
{
	str_clear(out);
	str_printf(out, "%s/%s", folder, name);
}

/* Without safetensors files, which have the same model. */
static bool bins_are_in(const char *path)
{
	return container_has(path, index_file) && !container_has_safetensors(path);
}

static json_t *read_index(const char *folder, struct err *e)
{
	enum { MOST = 1 << 25 };
	struct str path = {0}, text = {0};
	json_t *root = NULL, *map = NULL;
	path_of(folder, index_file, &path);
	if (!file_check_regular(path.s, e) && !file_read(path.s, MOST, &text, e)) {
		root = load_json(
			text.s ? text.s : "", text.len, JSON_REJECT_DUPLICATES, NULL);
		map = json_incref(json_object_get(root, "weight_map"));
		json_decref(root);
		if (!json_object_size(map)) {
			err_set(e, EX_DATAERR, "%s: has no weight_map", path.s);
			json_decref(map);
			map = NULL;
		}
	}
	str_free(&path);
	str_free(&text);
	return map;
}

/* The names of the files, each once. */
static int list_files(json_t *map, struct strs *out, struct err *e)
{
	const char *name;
	json_t *file;
	struct strs all = {0};
	int rc = 0;
	json_object_foreach(map, name, file)
	{
		const char *text = json_string_value(file);
		if (!text || !*text || strchr(text, '/'))
			rc = err_set(e, EX_DATAERR,
				"%s: the file of %s is no name of a file", index_file,
				name);
		else
			strs_add(&all, text);
	}
	strs_sort(&all);
	for (int64_t i = 0; i < all.n; i++)
		if (!i || strcmp(all.v[i], all.v[i - 1]))
			strs_add(out, all.v[i]);
	strs_free(&all);
	return rc;
}

/* Appends the tensors of a file, which are those of the index. */
static int add_tensors(struct torch_file *f, int32_t file, const char *name, json_t *map,
	const struct archive *a, struct err *e)
{
	const struct pickle *p = &a->tree;
	struct pickle_each it;
	uint32_t key, node;
	size_t n;
	int rc = 0;
	if (pickle_kind(p, p->root) != PICKLE_DICT)
		return err_set(e, EX_DATAERR, "%s: has no names of tensors",
			f->parts->files[file]);
	pickle_each(&it, p, p->root);
	while (rc >= 0 && pickle_next(&it, &key) && pickle_next(&it, &node)) {
		const char *text = pickle_text(p, key, &n);
		struct str own = {0};
		str_puts(&own, "");
		if (text && !memchr(text, 0, n))
			str_add(&own, text, n);
		const char *where = json_string_value(json_object_get(map, own.s));
		rc = storages_tensor(f, file, a, node, own.s, e);
		if (!rc && (!where || strcmp(where, name)))
			rc = err_set(e, EX_DATAERR, "%s: has %s, and %s does not say so",
				f->parts->files[file], own.s, index_file);
		str_free(&own);
	}
	return rc < 0 ? -1 : 0;
}

static int add_file(
	struct torch_file *f, int32_t file, const char *name, json_t *map, struct err *e)
{
	struct archive a;
	if (storages_open(f, file, &a, e))
		return -1;
	int rc = add_tensors(f, file, name, map, &a, e);
	storages_close(f, file, &a);
	return rc;
}

/* Each name of the index must be there. */
static int check_index(const struct torch_file *f, json_t *map, struct err *e)
{
	const char *name;
	json_t *file;
	json_object_foreach(map, name, file)
	{
		if (!torch_find(f, name))
			return err_set(e, EX_DATAERR, "%s: %s has no tensor %s", f->path,
				json_string_value(file), name);
	}
	return 0;
}

static int bins_open(struct torch_file *f, struct err *e)
{
	struct strs names = {0}, paths = {0};
	struct str path = {0};
	json_t *map = read_index(f->path, e);
	int rc = map ? list_files(map, &names, e) : -1;
	for (int64_t i = 0; i < names.n && !rc; i++) {
		path_of(f->path, names.v[i], &path);
		strs_add(&paths, path.s);
		if (!file_exists(path.s))
			rc = err_set(e, EX_DATAERR, "%s: is missing, and %s names it",
				path.s, index_file);
	}
	if (!rc)
		storages_files(f, &paths);
	for (int64_t i = 0; i < names.n && !rc; i++)
		rc = add_file(f, (int32_t)i, names.v[i], map, e);
	rc = rc || items_end(f, e) || check_index(f, map, e) ? -1 : 0;
	json_decref(map);
	str_free(&path);
	strs_free(&names);
	strs_free(&paths);
	return rc;
}

const struct container container_bins = {
	.name = "several .bin files",
	.is_in = bins_are_in,
	.open = bins_open,
};

/* ---- one file --------------------------------------------------------------------------------- */

static const char one_file[] = "pytorch_model.bin";

static bool one_bin_is_in(const char *path)
{
	return container_has(path, one_file) && !container_has_safetensors(path);
}

static int one_bin_open(struct torch_file *f, struct err *e)
{
	struct str path = {0};
	path_of(f->path, one_file, &path);
	return torch_file_open_inside(f, path.s, e);
}

const struct container container_one_bin = {
	.name = "one .bin file",
	.is_in = one_bin_is_in,
	.open = one_bin_open,
};

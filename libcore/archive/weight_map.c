/* Hugging Face's index of a model in several files: its weight_map maps each tensor to a file. */
#include "archive/archive_internal.h"

#include "base/file.h"
#include "base/json.h"

enum { MAX_INDEX = 1 << 25, MAX_FILES = 4096 };

/* Lists the distinct files of the map in m->files. Fails if one is in another directory. */
static int list_files(struct weight_map *m, struct err *e)
{
	const char *tensor;
	json_t *file;
	scoped_strs all = {0};
	int rc = 0;
	json_object_foreach(m->map, tensor, file)
	{
		const char *name = json_string_value(file);
		if (!rc && !name)
			rc = err_set(e, EX_DATAERR, "%s: the file of %s is not a string",
				m->path, tensor);
		else if (!rc && (!*name || strchr(name, '/')))
			rc = err_set(e, EX_DATAERR,
				"%s: \"%s\" is not the name of a file in the same directory",
				m->path, name);
		if (!rc)
			strs_add(&all, name);
	}
	strs_sort(&all);
	for (int64_t i = 0; i < all.n && !rc; i++)
		if (!i || strcmp(all.v[i], all.v[i - 1]))
			strs_add(&m->files, all.v[i]);
	return rc || m->files.n <= MAX_FILES
		       ? rc
		       : err_set(e, EX_DATAERR, "%s: weight_map names more than %d files",
				 m->path, MAX_FILES);
}

int weight_map_read(struct weight_map *m, const char *path, struct err *e)
{
	scoped_str text = {0};
	*m = (struct weight_map){.path = path};
	if (file_check_regular(path, e) || file_read(path, MAX_INDEX, &text, e))
		return -1;
	json_auto_t *root =
		load_json(text.s ? text.s : "", text.len, JSON_REJECT_DUPLICATES, NULL);
	m->map = json_incref(json_object_get(root, "weight_map"));
	int rc = json_object_size(m->map)
			 ? list_files(m, e)
			 : err_set(e, EX_DATAERR, "%s: weight_map is missing or empty",
				   path);
	if (rc)
		weight_map_release(m);
	return rc;
}

void weight_map_release(struct weight_map *m)
{
	json_decref(m->map);
	strs_free(&m->files);
	*m = (struct weight_map){.path = NULL};
}

void weight_map_path(const struct weight_map *m, int64_t file, struct str *out)
{
	const char *slash = strrchr(m->path, '/');
	str_clear(out);
	str_printf(out, "%.*s%s", slash ? (int)(slash + 1 - m->path) : 0, m->path,
		m->files.v[file]);
}

int weight_map_check(
	const struct weight_map *m, const struct torch_file *f, struct err *e)
{
	const char *tensor;
	json_t *value;
	json_object_foreach(m->map, tensor, value)
	{
		const struct torch_item *x = torch_find(f, tensor);
		int32_t file = x ? f->parts->chunks[x->first].file : -1;
		const char *name = json_string_value(value);
		if (file < 0 || strcmp(m->files.v[file], name) != 0)
			return err_set(e, EX_DATAERR, "%s: %s is not in the file %s",
				m->path, tensor, name);
	}
	if (json_object_size(m->map) != (size_t)f->n)
		return err_set(e, EX_DATAERR,
			"%s: lists %zu tensors, but the files have %lld", m->path,
			json_object_size(m->map), (long long)f->n);
	return 0;
}

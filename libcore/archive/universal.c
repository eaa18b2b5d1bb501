/* DeepSpeed's universal format, which its ds_to_universal.py makes of a ZeRO checkpoint. Each
 * parameter has a directory zero/NAME with torch.save() files fp32.pt, exp_avg.pt, exp_avg_sq.pt
 * and step.pt. The first three are a dict with the tensor. zero/optimizer_state.pt has the options
 * of the optimizer. */
#include "archive/archive_internal.h"

#include "base/file.h"

static const char zero_dir[] = "zero";

/* Lists the parameters, sorted: directories that have fp32.pt. Returns their number. */
static int64_t list_parameters(const char *path, struct strs *out)
{
	scoped_str name = {0};
	str_printf(&name, "%s/%s", path, zero_dir);
	scoped_dir *d = opendir(name.s);
	struct dirent *entry;
	while (d && (entry = readdir(d))) {
		str_clear(&name);
		str_printf(&name, "%s/%s/%s/fp32.pt", path, zero_dir, entry->d_name);
		if (file_exists(name.s))
			strs_add(out, entry->d_name);
	}
	strs_sort(out);
	return out->n;
}

static bool universal_matches(const char *path)
{
	scoped_strs list = {0};
	return list_parameters(path, &list) > 0;
}

uint32_t find_archive_tensor(const struct archive *a)
{
	uint32_t inside = pickle_get(&a->tree, a->tree.root, "param");
	return inside ? inside : a->tree.root;
}

/* Appends the item of an open file: its tensor, or a value. */
static int add_item(struct torch_file *f, const char *name, int32_t file,
	const struct archive *a, struct err *e)
{
	struct tensor_info d;
	int rc = describe_tensor(&a->tree, find_archive_tensor(a), &d, e);
	if (rc < 0 || !(rc ? items_add(f, name, strlen(name), e)
			   : items_add_tensor(f, name, strlen(name), &d, e)))
		return -1;
	struct chunk *c = items_add_chunk(f, no_dims, rc ? no_dims : d.dims);
	c->file = file;
	c->n_bytes = a->zip.size;
	return 0;
}

/* Appends the tensor in archive `path` as an item with this name. */
static int add_file(
	struct torch_file *f, const char *name, const char *path, struct err *e)
{
	struct archive a;
	int32_t file = items_add_file(f, path);
	if (storages_open(f, file, &a, e))
		return -1;
	int rc = add_item(f, name, file, &a, e);
	archive_close(&a);
	return rc;
}

/* Appends the options of a parameter group, such as betas, as items. */
static int add_options(struct torch_file *f, int32_t file, int64_t n_bytes, int64_t group,
	const struct pickle *p, uint32_t dict, struct err *e)
{
	struct pickle_each it;
	uint32_t key, value;
	size_t n;
	pickle_begin(&it, p, pickle_kind(p, dict) == PICKLE_DICT ? dict : 0);
	while (pickle_next(&it, &key) && pickle_next(&it, &value)) {
		scoped_str name = {0};
		const char *text = pickle_text(p, key, &n);
		if (!text || memchr(text, 0, n))
			continue;
		str_printf(&name, "optimizer.param_groups.%lld.", (long long)group);
		str_add(&name, text, n);
		struct torch_item *x = items_add(f, name.s, name.len, e);
		if (!x)
			return -1;
		x->node = value;
		struct chunk *c = items_add_chunk(f, no_dims, no_dims);
		c->file = file;
		c->n_bytes = n_bytes;
	}
	return 0;
}

/* Reads optimizer_state.pt, common to all parameters. Rejects ZeRO 3: its tensors lack shapes. */
static int add_common(struct torch_file *f, const char *path, struct err *e)
{
	struct archive a;
	struct pickle_each it;
	uint32_t group;
	int64_t stage = 0;
	int32_t file = items_add_file(f, path);
	if (storages_open(f, file, &a, e))
		return -1;
	uint32_t node = pickle_get(&a.tree, a.tree.root, "zero_stage");
	if (pickle_kind(&a.tree, node) == PICKLE_OBJECT) /* an enum */
		node = pickle_item(
			&a.tree, pickle_part(&a.tree, node, PICKLE_ARGUMENTS), 0);
	pickle_int(&a.tree, node, &stage);
	uint32_t groups = pickle_get(&a.tree, a.tree.root, "param_groups");
	pickle_begin(
		&it, &a.tree, pickle_kind(&a.tree, groups) == PICKLE_LIST ? groups : 0);
	int rc = 0;
	for (int64_t g = 0; !rc && pickle_next(&it, &group); g++)
		rc = add_options(f, file, a.zip.size, g, &a.tree, group, e);
	archive_close(&a);
	return stage != 3
		       ? rc
		       : err_set(e, EX_UNAVAILABLE,
				 "%s: the universal format of ZeRO 3 lacks tensor shapes; "
				 "pass the directory that it was made from (global_stepN)",
				 f->path);
}

/* Appends the fp32 tensor, moments and step of each parameter, then the common options. */
static int universal_open(struct torch_file *f, struct err *e)
{
	static const char *const states[] = {"fp32", "exp_avg", "exp_avg_sq", "step"};
	scoped_strs list = {0};
	scoped_str path = {0}, name = {0};
	int rc = 0;
	list_parameters(f->path, &list);
	for (int64_t i = 0; i < list.n * (int64_t)ARRAY_LEN(states) && !rc; i++) {
		const char *parameter = list.v[i / (int64_t)ARRAY_LEN(states)];
		const char *state = states[i % (int64_t)ARRAY_LEN(states)];
		str_clear(&path);
		str_printf(&path, "%s/%s/%s/%s.pt", f->path, zero_dir, parameter, state);
		str_clear(&name);
		if (state == states[0])
			str_puts(&name, parameter);
		else
			str_printf(&name, "optimizer.state.%s.%s", parameter, state);
		rc = file_exists(path.s) ? add_file(f, name.s, path.s, e) : 0;
	}
	str_clear(&path);
	str_printf(&path, "%s/%s/optimizer_state.pt", f->path, zero_dir);
	if (!rc && file_exists(path.s))
		rc = add_common(f, path.s, e);
	rc = rc || items_finish(f, e) ? -1 : 0;
	return rc;
}

const struct container container_universal = {
	.many_archives = true, .matches = universal_matches, .open = universal_open};

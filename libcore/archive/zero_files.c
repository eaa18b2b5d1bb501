/* Finds the files of a DeepSpeed ZeRO checkpoint by their names:
 *
 *   mp_rank_00_model_states.pt                         the model
 *   zero_pp_rank_R_mp_rank_00_model_states.pt          the model, with ZeRO 3: one file per rank
 *   [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt   the optimizer, one file per rank
 *
 * They are in a directory global_stepN; the file `latest` next to it has its name. mp_rank_ is
 * followed by a tensor-parallel rank. */
#include "archive/archive_internal.h"

#include "base/file.h"

/* Appends the names of the files in a directory. */
static void find_files(const char *directory, struct zero_files *x)
{
	struct dirent *entry;
	scoped_dir *d = opendir(directory);
	while (d && (entry = readdir(d))) {
		const char *name = entry->d_name;
		bool is_model = text_ends(name, "_model_states.pt");
		if (strstr(name, "expert_") || strstr(name, "expp_rank_"))
			x->has_experts |= is_model || text_ends(name, "_optim_states.pt");
		else if (text_ends(name, "_optim_states.pt") && strstr(name, "_mp_rank_"))
			strs_add(&x->optim, name);
		else if (is_model && strstr(name, "mp_rank_"))
			strs_add(&x->model, name);
		else if (!strncmp(name, "layer_", 6) &&
			 text_ends(name, "model_states.pt"))
			x->has_stages = true;
	}
	strs_sort(&x->model);
	strs_sort(&x->optim);
}

void zero_files_release(struct zero_files *x)
{
	str_free(&x->directory);
	strs_free(&x->model);
	strs_free(&x->optim);
}

/* Finds the files in the directory that the file `latest` names, if it exists. Ends the program if
 * that cannot be read. */
static void follow_latest(struct zero_files *x)
{
	struct err e = {0};
	scoped_str latest = {0};
	scoped_ptr char *name = text_printf("%s/latest", x->directory.s);
	if (file_exists(name) &&
		(file_check_regular(name, &e) || file_read(name, 1024, &latest, &e)))
		die_io(&e);
	if (!e.code && latest.s) {
		str_printf(
			&x->directory, "/%.*s", (int)strcspn(latest.s, "\r\n"), latest.s);
		find_files(x->directory.s, x);
	}
}

bool zero_files_find(struct zero_files *x, const char *path)
{
	*x = (struct zero_files){.has_experts = false};
	str_puts(&x->directory, path);
	find_files(path, x);
	if (!x->model.n && !x->optim.n)
		follow_latest(x);
	return x->model.n || x->optim.n;
}

static int report_missing_optimizer(const char *path, struct err *e)
{
	return err_set(e, EX_DATAERR,
		"%s: the ZeRO optimizer files (*zero_pp_rank_*_optim_states.pt), which hold "
		"the fp32 parameters, are missing",
		path);
}

int zero_files_check(const struct zero_files *x, struct err *e)
{
	const struct strs *both[] = {&x->model, &x->optim};
	bool is_split = x->has_stages;
	for (size_t i = 0; i < ARRAY_LEN(both); i++)
		for (int64_t k = 0; k < both[i]->n; k++)
			is_split = is_split || !strstr(both[i]->v[k], "mp_rank_00_");
	if (is_split || x->has_experts)
		return err_set(e, EX_UNAVAILABLE,
			"%s: ZeRO with %s parallelism is not supported; " ZERO_UNIVERSAL,
			x->directory.s,
			x->has_experts	? "expert"
			: x->has_stages ? "pipeline"
					: "tensor");
	return x->optim.n ? 0 : report_missing_optimizer(x->directory.s, e);
}

/* Appends the path of a file; fails if it is missing. */
static int add_file(const struct zero_files *x, const char *name, int64_t ranks,
	struct strs *paths, struct err *e)
{
	scoped_ptr char *path = text_printf("%s/%s", x->directory.s, name);
	strs_add(paths, path);
	return file_exists(path)
		       ? 0
		       : err_set(e, EX_DATAERR,
				 "%s is missing: %lld rank%s saved; copy the files "
				 "of all hosts into one directory",
				 path, (long long)ranks, ranks == 1 ? " has" : "s have");
}

int zero_files_list(const struct zero_files *x, int64_t stage, int64_t ranks,
	struct strs *paths, struct err *e)
{
	static const char rank_prefix[] = "zero_pp_rank_";
	scoped_str name = {0};
	/* (fp16 and bf16 may have a prefix) */
	const char *first = x->optim.v[0], *at = strstr(first, rank_prefix);
	int64_t models = stage == 3 ? ranks : 1;
	int rc = 0;
	for (int64_t i = 0; i < ranks + models && !rc; i++) {
		str_clear(&name);
		if (i < ranks)
			str_printf(&name, "%.*s%s%lld_mp_rank_00_optim_states.pt",
				at ? (int)(at - first) : 0, first, rank_prefix,
				(long long)i);
		else if (stage == 3)
			str_printf(&name, "%s%lld_mp_rank_00_model_states.pt",
				rank_prefix, (long long)(i - ranks));
		else
			str_puts(&name, "mp_rank_00_model_states.pt");
		rc = add_file(x, name.s, ranks, paths, e);
	}
	if (!rc && x->optim.n > ranks)
		rc = err_set(e, EX_DATAERR,
			"%s: %lld ranks saved, but there are %lld optimizer files: "
			"some are left from another run",
			x->directory.s, (long long)ranks, (long long)x->optim.n);
	return rc;
}

/* ---- DeepSpeed without ZeRO: one file -------------------------------------------------------- */

/* Returns true if the checkpoint is one file, and appends its path to `out`, which may be NULL. */
static bool find_one_file(const char *path, struct str *out)
{
	struct zero_files x;
	bool is_one = zero_files_find(&x, path) && !x.optim.n && x.model.n == 1 &&
		      !x.has_stages && !x.has_experts &&
		      !strcmp(x.model.v[0], "mp_rank_00_model_states.pt");
	if (is_one && out)
		str_printf(out, "%s/%s", x.directory.s, x.model.v[0]);
	zero_files_release(&x);
	return is_one;
}

static bool is_one_model_file(const char *path)
{
	return !container_has_safetensors(path) && find_one_file(path, NULL);
}

/* Fails if the file is from ZeRO: it has param_shapes, and other files have its parameters. */
static int check_not_zero(const struct torch_file *f, struct err *e)
{
	static const char shapes[] = "param_shapes.";
	for (int64_t i = 0; i < f->n; i++)
		if (!strncmp(f->items[i].name, shapes, strlen(shapes)))
			return report_missing_optimizer(f->path, e);
	return 0;
}

/* Opens the only model file of a directory as a torch.save() file, unless it belongs to ZeRO. */
static int open_one_file(struct torch_file *f, struct err *e)
{
	struct str path = {0};
	if (!find_one_file(f->path, &path))
		return err_set(
			e, EX_IOERR, "%s: the files changed during reading", f->path);
	return torch_file_open_inside(f, path.s, e) || check_not_zero(f, e) ? -1 : 0;
}

const struct container container_zero_model = {
	.matches = is_one_model_file, .open = open_one_file};

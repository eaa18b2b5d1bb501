/*
 * A model and its optimizer in one directory: checkpoint-N of Hugging Face's Trainer, or
 * accelerate's save_state(). The model is safetensors or torch.save(), in one file or several. The
 * optimizer is a state_dict() in torch.save(); the names of its items get the prefix "optimizer.".
 */
#include "archive/archive_internal.h"
#include "archive/safetensors.h"

#include "base/file.h"

/* File names, in order of preference. */
static const char *const optimizers[] = {"optimizer.pt", "optimizer.bin"};
static const char *const models[] = {"model.safetensors", "model.safetensors.index.json",
	"pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model_fsdp.bin"};

/* Returns the path of the first file that exists, allocated; NULL if none does. */
static char *find_file(const char *directory, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (directory_has_file(directory, names[i]))
			return text_printf("%s/%s", directory, names[i]);
	return NULL;
}

static bool trainer_matches(const char *path)
{
	scoped_ptr char *model = find_file(path, models, ARRAY_LEN(models));
	scoped_ptr char *optimizer = find_file(path, optimizers, ARRAY_LEN(optimizers));
	return model && optimizer;
}

/* Appends the tensors of a safetensors model, and allocates f->parts->zips. */
static int open_safetensors(struct torch_file *f, char *path, struct err *e)
{
	char *directory = f->path;
	f->path = path;
	int rc = container_safetensors.open(f, e);
	f->path = directory;
	for (int64_t i = 0; i < f->n; i++)
		f->items[i].order = -1;
	f->parts->zips = xcalloc((size_t)f->parts->n_files + 2, sizeof(*f->parts->zips));
	return rc;
}

/* Appends the tensors of a model: safetensors, an index of torch.save() files, or one such file. */
static int open_model(struct torch_file *f, char *path, struct err *e)
{
	scoped_strs one = {0};
	if (container_safetensors.matches(path))
		return open_safetensors(f, path, e);
	if (text_ends(path, ".json"))
		return container_bins.open(f, e);
	strs_add(&one, path);
	return bins_add(f, &one, e);
}

/* Opens a torch.save() file as f's archive, and appends its items with the prefix "optimizer". */
static int open_optimizer(struct torch_file *f, const char *path, struct err *e)
{
	struct archive *a = &f->parts->archive;
	int32_t file =
		items_add_file(f, path); /* (the archive keeps a pointer to its path) */
	if (archive_open_path(a, f->parts->files[file], e))
		return -1;
	items_grant(f, a->zip.size);
	return torch_file_add_items(f, a->tree.root, "optimizer", e) || items_finish(f, e)
		       ? -1
		       : 0;
}

static int trainer_open(struct torch_file *f, struct err *e)
{
	scoped_ptr char *model = find_file(f->path, models, ARRAY_LEN(models));
	scoped_ptr char *path = find_file(f->path, optimizers, ARRAY_LEN(optimizers));
	if (!model || !path)
		return err_set(e, EX_IOERR, "%s: the model or optimizer file was removed",
			f->path);
	return open_model(f, model, e) || open_optimizer(f, path, e) ? -1 : 0;
}

const struct container container_trainer = {
	.matches = trainer_matches, .open = trainer_open};

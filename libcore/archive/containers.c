/* The table of containers: finds the one that matches a path, and opens it. */
#include "archive/archive_internal.h"

#include "base/file.h"

#define CONTAINER_POINTER(name) &container_##name,
static const struct container *const containers[] = {CONTAINERS(CONTAINER_POINTER)};

bool directory_has_file(const char *directory, const char *name)
{
	scoped_ptr char *path = text_printf("%s/%s", directory, name);
	return file_exists(path);
}

bool container_has_safetensors(const char *directory)
{
	return directory_has_file(directory, "model.safetensors") ||
	       directory_has_file(directory, "model.safetensors.index.json");
}

const struct container *find_container(const char *path)
{
	bool is_directory = file_is_directory(path);
	for (size_t i = 0; i < ARRAY_LEN(containers); i++)
		if (containers[i]->is_file != is_directory &&
			containers[i]->matches(path))
			return containers[i];
	return NULL;
}

int torch_open_as(
	struct torch_file *f, const struct container *c, const char *path, struct err *e)
{
	*f = (struct torch_file){.path = xstrdup(path)};
	f->parts = xcalloc(1, sizeof(*f->parts));
	f->parts->many_archives = c->many_archives;
	items_grant(f, INITIAL_FILE_BYTES);
	f->parts->archive.zip.fd = -1;
	for (int i = 0; i < OPEN_FILES; i++)
		f->parts->recent[i] = -1;
	int rc = c->open(f, e);
	if (rc)
		torch_close(f);
	return rc;
}

int torch_open(struct torch_file *f, const char *path, struct err *e)
{
	const struct container *c = find_container(path);
	return torch_open_as(f, c ? c : &container_file, path, e);
}

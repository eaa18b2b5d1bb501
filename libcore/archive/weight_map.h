/* weight_map: the index of a model in several files (model.safetensors.index.json, pytorch_model.bin.index.json). */
#pragma once

#include "base/base.h"

struct json_t;
struct weight_map {
	const char *path;   /* of the index; the caller's */
	struct json_t *map; /* the file of each tensor */
	struct strs files;  /* names of files beside the index, each once */
};

/* Reads an index that is not trusted. */
int weight_map_read(struct weight_map *m, const char *path, struct err *e);
void weight_map_free(struct weight_map *m);
/* Sets *out to the path of a file. */
void weight_map_path(const struct weight_map *m, int64_t file, struct str *out);
/* Checks that each tensor of the index is in its file, and that the index has all n tensors. file_of() returns the
 * number of the file that has a tensor; -1: none has it. */
int weight_map_check(const struct weight_map *m, int64_t n,
	int64_t (*file_of)(const void *with, const char *tensor), const void *with,
	struct err *e);

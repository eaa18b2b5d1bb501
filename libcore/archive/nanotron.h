/* Shared by the files about checkpoints of nanotron. */
#pragma once

#include "archive/archive_internal.h"
#include "archive/safetensors.h"

/* Rows of a part, and the box that they are of the whole tensor. */
struct nanotron_slices {
	int64_t row, rows, begin[TORCH_MAX_DIMS], sizes[TORCH_MAX_DIMS];
};

/* A file of the model. */
struct nanotron_part {
	char *name;
	int64_t tp;
	int32_t file;
	struct st_tensor is;
	int64_t whole[TORCH_MAX_DIMS]; /* the dimensions of the tensor */
	struct nanotron_slices *slices;
	int64_t n_slices;
};

/* A file of the optimizer. */
struct nanotron_rank {
	int64_t pp, dp, tp, of[3]; /* of how many */
	char *name;
};

struct nanotron {
	struct torch_file *f;
	struct err *e;
	struct strs paths;
	struct nanotron_rank *ranks;
	struct nanotron_part *parts;
	struct state *states; /* nanotron.c */
	int64_t n_ranks, n_parts, n_states;
};

/* ---- nanotron_files.c: the files, by their names, and the parts that those of the model have ---------------- */

/* Those of the optimizer, of all ranks, sorted; their paths are the first. */
int nanotron_list_ranks(struct nanotron *t);
/* Those of the model, below a folder. `name`: in front of the names of tensors. */
int nanotron_list_parts(
	struct nanotron *t, const char *folder, const char *name, int depth);
/* Reads the header of one. */
int nanotron_read_part(struct nanotron *t, struct nanotron_part *x);

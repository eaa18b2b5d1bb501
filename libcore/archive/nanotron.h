/* Shared by the files about checkpoints of nanotron. */
#pragma once

#include "archive/archive_internal.h"
#include "archive/safetensors.h"

/* Rows [row, row + rows) of a part, and the box of the whole tensor that they hold. */
struct nanotron_slices {
	int64_t row, rows, begin[TORCH_MAX_DIMS], sizes[TORCH_MAX_DIMS];
};

/* A model file: a whole tensor, or the part of a tensor-parallel rank. */
struct nanotron_part {
	char *name;
	int64_t tp;
	int32_t file;
	struct st_tensor tensor;
	int64_t whole[TORCH_MAX_DIMS]; /* dimensions of the whole tensor */
	struct nanotron_slices *slices;
	int64_t n_slices;
};

/* The optimizer file of a rank. */
struct nanotron_rank {
	int64_t pp, dp, tp; /* dp -1: without ZeRO */
	int64_t sizes[3];   /* number of ranks along pp, dp, tp */
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

/* ---- nanotron_files.c: lists the files by name, and reads the headers of model files --------- */

/* Lists the optimizer files of all ranks, sorted, in t->ranks, and appends their paths to t->paths.
 * Fails if one is missing. */
int nanotron_list_ranks(struct nanotron *t);
/* Appends the model files below a directory. `name`: prefix of the tensor names. */
int nanotron_list_parts(
	struct nanotron *t, const char *directory, const char *name, int depth);
/* Reads the header of a model file. */
int nanotron_read_part(struct nanotron *t, struct nanotron_part *x);

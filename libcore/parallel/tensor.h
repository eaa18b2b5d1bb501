/* The tensor table: every parameter tensor of a model, with its shape, its initialization, and
 * how tensor parallelism splits it. Shards, initial values, weight decay, checkpoint layout, memory
 * plans and parameter counts are derived from these rows. No call is collective.
 *
 * Slices are *virtual* (--virtual tp=N): a rank holds one or more adjacent ones (pt(7), law 1). */
#pragma once

#include "base/base.h"

/* The dimension that tensor parallelism splits: rows of W[out, in] for a column-parallel
 * linear layer, columns for a row-parallel one (Megatron-LM, Shoeybi et al. 2019). */
enum tp_split { TP_SPLIT_NONE, TP_SPLIT_ROWS, TP_SPLIT_COLS };

/* INIT_TRUNCATED: normal, drawn again beyond 3 standard deviations. */
enum init { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_TRUNCATED };

struct tensor {
	char name[64];
	/* FSDP unit: the tensors of a unit are gathered and reduced together. Unit 0 is the
	 * embedding, then one unit per block, the last unit is the head. */
	int unit;
	int ndim;
	int64_t dims[2]; /* shape of the whole tensor */
	enum tp_split tp_split;
	bool decay; /* weight decay applies */
	/* Not trained (--freeze): it has no gradient and no state of the optimizer. */
	bool frozen;
	float lr_scale; /* factor of the learning rate (--lr-scale-of) */
	enum init init;
	float std;
	/* Uses per forward: 2 for a tied weight (0: the embedding, 1: the output layer), else 1. */
	int uses;
	/* The maximum number of slices; 0: one per virtual slice. Key and value weights have one
	 * slice per key/value head, which several virtual slices may share. */
	int max_slices;
	/* The number of experts whose matrices it stacks, [expert][rows]; 0: no stack. A leaf of a
	 * stack's gradient is written expert by expert, see store_leaf_block(). */
	int experts;
	/* Blocks of rows that TP_SPLIT_ROWS splits one by one: a slice has some rows of every
	 * block. A multiple of `experts`; 0: one block. */
	int blocks;
	/* With --tile: its tile in the unit, from 1 to N_TILES - 1; 0: used with the whole unit. */
	int tile;
	double active; /* the fraction of the elements that a token is multiplied with */
	/* Used as a matmul operand only, so it may be gathered in the matmul's precision. */
	bool operand;
	/* An operand that matmuls cast to float8 with one scale for the whole tensor. */
	bool float8;

	/* Set by tensors_place(): */
	int slices;	     /* number of slices of the whole tensor */
	int users_per_slice; /* virtual slices that use the same slice */
	int64_t rows, cols; /* shape of a slice; a vector is one row of `cols` elements */
	int64_t expert_rows; /* rows of an expert's matrix in a slice; 0: not a stack */
	int first, local;    /* slices [first, first + local) are on this rank */
	/* Rows [held_first, held_first + held_rows) of these slices are on this rank: the rows of
	 * its experts, or all rows. */
	int64_t held_first, held_rows;
};

/* The part of the model on a rank: virtual slices [first, first + local) of n, and the tensors
 * of its pipeline stages (`used`, one flag per tensor; NULL: all). */
struct tensor_part {
	int n, first, local;
	const bool *used;
	/* Expert parallelism: the experts of a stack are divided among `ep` ranks (0: not), and
	 * this rank has part `place`. */
	int ep, place;
};

/* Sets the shapes of slices, and which slices are on this rank, for n tensors. */
void tensors_place(struct tensor *t, int n, const struct tensor_part *part);

/* Returns the slice of the tensor that virtual slice v uses. */
static inline int tensor_slice(const struct tensor *t, int v)
{
	return v / t->users_per_slice;
}

/* Returns the index of virtual slice v among those that use the same slice. */
static inline int tensor_slice_user(const struct tensor *t, int v)
{
	return v % t->users_per_slice;
}

/* Returns the number of matrices in a tensor: its blocks of rows. */
static inline int tensor_blocks(const struct tensor *t)
{
	return t->blocks ? t->blocks : 1;
}

/* Returns the rows of one of these matrices in the whole tensor. */
static inline int64_t tensor_block_dim(const struct tensor *t)
{
	return t->dims[0] / tensor_blocks(t);
}

/* Columns [col, col + cols) of rows [row, row + rows) of a whole tensor. */
struct tensor_block {
	int64_t row, rows, col, cols;
};

/* Return the number of elements of a tensor, and of its dims[0] rows (1 for a vector). */
int64_t tensor_size(const struct tensor *t);
int64_t tensor_width(const struct tensor *t);
/* Returns the index in the whole tensor of the first element of a slice's row (vector: element). */
int64_t tensor_index(const struct tensor *t, int slice, int64_t row);
/* Returns n for which rows [0, n), [n, 2n), ... of a slice are adjacent in the whole tensor too
 * (elements of a vector). */
int64_t tensor_adjacent_rows(const struct tensor *t);

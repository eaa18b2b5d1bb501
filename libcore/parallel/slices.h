/* Tensor and sequence parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022): the sum over
 * virtual slices after a row-parallel linear layer, and the all-gather of rows before a
 * column-parallel one. All calls are collective over the tensor-parallel axis. */
#pragma once

#include "base/base.h"
#include "comm/requests.h"
#include "comm/tree.h"
#include "kernels/kernels.h"

/* Virtual slices: n in all; [first, first + local) are on this rank. The rows of a chunk's
 * residual stream are split into n pieces, one per virtual slice. With sequence parallelism
 * (`sp`) a rank holds the rows of its own slices between the linear layers, else all rows. */
struct slices {
	struct comm *axis;
	int n, first, local;
	bool sp;
	bool async; /* communication overlaps with computation (async TP) */
};

/* Returns the number of rows in piece i of `rows` rows; *first is its first row. */
int64_t slice_piece(const struct slices *s, int64_t rows, int i, int64_t *first);
/* Returns the number of rows of the residual stream on this rank; *first is the first one. */
int64_t slice_rows(const struct slices *s, int64_t rows, int64_t *first);
/* Returns the i-th piece to compute: first this rank's pieces, then the pieces of the ranks after
 * it. Between the all-gather and the reduce-scatter, matmuls are computed piece by piece on any
 * layout, so that their shapes depend on the virtual slices only. */
int slice_turn(const struct slices *s, int i);

/* The sum over virtual slices by the canonical tree, after a row-parallel linear layer in the
 * forward and before a column-parallel one in the backward. The addends, one per slice with all
 * rows, are written to slots in the order of slices. `out` receives this rank's rows of the
 * residual stream: a reduce-scatter with sequence parallelism, an all-reduce without. */
struct slice_sum {
	const struct slices *s;
	struct device *d;
	struct mat out;
	int64_t rows;		     /* rows of an addend */
	int64_t first, n;	     /* the rows that are pushed now */
	int piece;		     /* the piece that these rows form, or -1 */
	float *part[TREE_MAX_NODES]; /* buffers, from the device's scratch memory */
	float *received;	     /* received rows */
	enum dtype wire; /* a 16-bit type: rows are sent through the packed buffers */
	uint16_t *sent_packed, *received_packed;
	int n_nodes, next; /* buffers that hold tree nodes; the next slice */
	struct slice_messages *messages; /* the exchange in progress, or NULL */
	struct tree_part
		*known; /* [n_known]: this rank's rows of its own and of received nodes */
	int n_known;
	size_t mark;
};

/* Begins a sum. `wire`: the 16-bit type to which addends are rounded, or DT_F32. Rounded addends
 * are sent in 16 bits if a rank has one slice. */
void slice_sum_begin(struct slice_sum *x, const struct slices *s, struct device *d,
	struct mat out, int64_t rows, enum dtype wire);
/* Announces rows [first, first + n) of all slices as the next block to be pushed. */
void slice_sum_rows(struct slice_sum *x, int64_t first, int64_t n);
/* Announces piece slice_turn(i + local) as the next rows to be pushed: this rank's pieces are last.
 * With `async`, rows for another rank are sent as soon as all local slices are added. */
void slice_sum_turn(struct slice_sum *x, int i);
/* Returns the buffer for the next addend; slice_sum_push() follows when it is written. */
struct mat slice_sum_slot(struct slice_sum *x);
/* Adds the addend in the buffer of slice_sum_slot(). May start to send complete rows (async). */
void slice_sum_push(struct slice_sum *x);
/* With `async`, starts messages after all addends are pushed; slice_sum_end() completes them. */
void slice_sum_send(struct slice_sum *x);
/* Waits for the other ranks' addends, and writes the sum. */
void slice_sum_end(struct slice_sum *x);

/* The dual operation, an all-gather of all rows of a chunk into `buffer` [rows, cols]; `all` is
 * `local` itself if the rank has all rows. With `async`, messages are in flight from begin to end:
 * `local` must not be written, and a piece may be read after slice_gather_wait() for it. */
struct slice_gather {
	const struct slices *s;
	struct device *d;
	struct mat all;
	struct mat
		packed; /* all rows in 16 bits, or p NULL; in scratch memory, reset by the caller */
	struct slice_messages *messages; /* in progress, or NULL */
};

/* Begins an all-gather. `wire`: the type of sent rows, which are rounded to it already. */
void slice_gather_begin(struct slice_gather *g, const struct slices *s, struct device *d,
	struct mat local, struct mat buffer, enum dtype wire);
void slice_gather_wait(struct slice_gather *g, int piece);
void slice_gather_end(struct slice_gather *g); /* a second call does nothing */
/* Gathers in one call, in fp32; returns `all`. */
struct mat slice_gather(
	const struct slices *s, struct device *d, struct mat local, struct mat buffer);

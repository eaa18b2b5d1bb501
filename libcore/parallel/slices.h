/*
 * Tensor and sequence parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022): the sum over
 * virtual slices after a row-parallel linear layer, and the all-gather of rows before a
 * column-parallel one. All calls are collective over the tensor-parallel axis.
 */
#pragma once

#include "base/base.h"
#include "comm/requests.h"
#include "comm/tree.h"
#include "kernels/kernels.h"

/* Virtual slices: n in all, of which [first, first + local) are on this rank. The rows of a chunk's
 * residual stream are split into n pieces, one for each virtual slice. With sequence parallelism
 * (`sp`) a rank holds the rows of its own slices between the linear layers, else all rows. */
struct slices {
	struct comm *axis;
	int n, first, local;
	bool sp;
	bool async; /* communication overlaps with computation (async TP) */
};

/* Of `rows` rows, piece i is [*first, *first + returned number). */
int64_t slice_piece(const struct slices *s, int64_t rows, int i, int64_t *first);
/* The rows of the residual stream on this rank. */
int64_t slice_rows(const struct slices *s, int64_t rows, int64_t *first);
/* Between the all-gather and the reduce-scatter, matmuls are computed piece by piece on any layout,
 * so that their shapes depend on the virtual slices only. Returns the i-th piece to compute: first
 * those of this rank, then those of the ranks after it. */
int slice_turn(const struct slices *s, int i);

/* The sum over virtual slices by the canonical tree, after a row-parallel linear layer in the forward
 * and before a column-parallel one in the backward. The addends, one a slice with all rows, are
 * written to slots in the order of slices. `out` receives this rank's rows of the residual stream: a
 * reduce-scatter with sequence parallelism, an all-reduce without. */
struct slice_sum {
	const struct slices *s;
	struct device *d;
	struct mat out;
	int64_t rows;		     /* of an addend */
	int64_t first, n;	     /* the rows that are pushed now */
	int piece;		     /* the piece that these rows are, or -1 */
	float *part[TREE_MAX_NODES]; /* buffers, from the device's scratch memory */
	float *others;		     /* received rows */
	/* In 16 bits, the rows that are sent and those that are received; DT_F32: neither. */
	enum dtype wire;
	uint16_t *sent, *received;
	int n_nodes, next; /* buffers with nodes of the tree; the next slice */
	/* The exchange in progress, or NULL; this rank's rows of its own and of received nodes. */
	struct slice_messages *messages;
	struct tree_part *known;
	int n_known;
	size_t mark;
};

/* `wire`: the type to which the addends are rounded, DT_F32: to none. If a rank has one slice, they are
 * sent in 16 bits. */
void slice_sum_begin(struct slice_sum *x, const struct slices *s, struct device *d,
	struct mat out, int64_t rows, enum dtype wire);
/* Addends may be pushed in blocks of rows: rows [first, first + n) of all slices are next. */
void slice_sum_rows(struct slice_sum *x, int64_t first, int64_t n);
/* Or in n pieces, those of this rank last: rows of piece slice_turn() of i + local. With `async`, rows
 * for another rank are sent as soon as the last local slice is added to them. */
void slice_sum_turn(struct slice_sum *x, int i);
/* The buffer for the next addend; and the call after it is written. */
struct mat slice_sum_slot(struct slice_sum *x);
void slice_sum_push(struct slice_sum *x);
/* All addends are pushed. With `async`, messages are in flight from this call to slice_sum_end(). */
void slice_sum_send(struct slice_sum *x);
void slice_sum_end(struct slice_sum *x);

/* The dual operation, an all-gather: all rows of a chunk, in `room` [rows, cols]; or `local` itself if
 * the rank has all rows. With `async`, messages are in flight from begin to end: `local` must not be
 * written meanwhile, and a piece may be read after slice_gather_wait() for it. */
struct slice_gather {
	const struct slices *s;
	struct device *d;
	struct mat all;
	/* All rows as they are sent, if that is in 16 bits; from the device's scratch memory, which
	 * the caller resets. */
	struct mat packed;
	struct slice_messages *messages; /* in progress, or NULL */
};

/* `wire`: the type to which the rows are rounded, in which they are sent. */
void slice_gather_begin(struct slice_gather *g, const struct slices *s, struct device *d,
	struct mat local, struct mat room, enum dtype wire);
void slice_gather_wait(struct slice_gather *g, int piece);
void slice_gather_end(struct slice_gather *g); /* a second call does nothing */
/* Begin and end in one call, in fp32; returns `all`. */
struct mat slice_gather(
	const struct slices *s, struct device *d, struct mat local, struct mat room);

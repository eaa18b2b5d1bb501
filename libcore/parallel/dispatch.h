/* Expert parallelism: the exchange of rows between the ranks that divide the experts of a layer.
 *
 * A source rank has sorted rows, [expert][chunk][row]. The rank of an expert receives its rows from
 * all sources, [expert here][source][chunk][row]; a group is what one expert receives of one chunk
 * of one source. The order is a function of the rows alone, never of their arrival (pt(7), law 1).
 *
 * x: begin counts, end counts, then moves in both directions until the next counts or
 * dispatch_restore(). All ranks of the group make the same calls in the same order, with or without
 * rows of their own. With one rank nothing is copied and nothing is sent. In a plan, rows are
 * balanced over experts and chunks, see dispatch_plan_imbalance().
 *
 * On a GPU, begin counts copies the own offsets to the host, and end counts waits for them: once
 * per layer and micro-batch. Rows are sent from device memory. */
#pragma once

#include "comm/requests.h"
#include "kernels/kernels.h"

enum { DISPATCH_MOVES = 4 }; /* the maximum number of moves at once */

/* Rows that are being moved. */
struct dispatch_move {
	struct mat to, received; /* `received`: [source][expert here][chunk][row] */
	bool back;		 /* to their sources */
};

/* Host copies of the offsets that a layer and micro-batch keeps in device memory. */
struct dispatch_copy {
	const int32_t *key; /* `here` of dispatch_counts_end() */
	int32_t *own, *here;
};

struct dispatch {
	struct comm *c; /* the ranks that divide the experts */
	struct device *d;
	int experts, chunks; /* experts of a layer, chunks of a rank */
	int64_t capacity;    /* rows that the buffers of a move hold */
	int64_t balanced; /* rows of a rank if experts are balanced: its own sorted rows */
	/* Offsets of the own sorted rows, [expert][chunk], and of the rows here, [expert
	 * here][source][chunk]; each has n_groups + 1 integers in host memory. One integer per
	 * source follows the latter: whether it has rows for any expert. */
	int32_t n_groups;
	const int32_t *own, *here;
	/* The integers of dispatch_counts_end() in host memory and in device memory. They end with
	 * the order: the place of each row here in the order of messages. */
	int32_t *table, *device_table;
	bool needs_order; /* the order is not set yet, and device_table is not */
	struct dispatch_copy *copies; /* on a device with memory of its own */
	int n_copies;
	int32_t *own_copy;   /* [n_groups + 1], pinned memory: the offsets of own rows */
	uint64_t own_ticket; /* the copy to own_copy; 0: none is in progress */
	int64_t sent;	     /* bytes of rows that this rank has sent */
	int64_t most_rows; /* the largest number of rows of a rank of the group, after counts */
	int32_t *
		counts; /* [rank][expert][chunk]; in a plan, offsets of own rows and rows here */
	struct comm_requests requests, count_requests;
	struct dispatch_move move[DISPATCH_MOVES];
	int n_moves;
};

struct dispatch_config {
	struct comm *c;
	struct device *d;
	int experts, chunks;
	int64_t rows;	  /* own sorted rows */
	int64_t capacity; /* see above */
};
void dispatch_open(struct dispatch *x, const struct dispatch_config *c);
void dispatch_close(struct dispatch *x);
/* In plans from now on, the experts of a rank have `times` the balanced number of rows, at most the
 * capacity. */
void dispatch_plan_imbalance(double times);
/* Returns the experts of this rank, and the first of them. */
static inline int dispatch_experts_here(const struct dispatch *x, int *first)
{
	int n = x->experts / x->c->size;
	*first = x->c->rank * n;
	return n;
}

/* Collective. Exchanges the numbers of rows. own: the offsets of the own sorted rows, in device
 * memory; NULL: this rank has no rows. */
void dispatch_counts_begin(struct dispatch *x, const int32_t *own);
/* Waits, sets here[dispatch_ints()], in device memory, to the offsets of the rows here, and uses
 * them. The first move completes `here`. The caller keeps both arrays as long as it moves rows;
 * with one rank x->here is `own`. */
void dispatch_counts_end(struct dispatch *x, int32_t *here);
/* Uses the offsets of earlier counts again, in a backward. */
void dispatch_restore(struct dispatch *x, const int32_t *own, int32_t *here);
/* Returns the number of integers that dispatch_counts_end() sets. */
static inline int64_t dispatch_ints(const struct dispatch *x)
{
	return x->n_groups + 1 + x->c->size + x->capacity;
}
/* Returns true if a source has rows, here or elsewhere. */
static inline bool dispatch_has_rows(const struct dispatch *x, int source)
{
	return x->c->planned || x->here[x->n_groups + 1 + source];
}
/* Returns the number of rows here. */
static inline int64_t dispatch_rows(const struct dispatch *x)
{
	return x->here[x->n_groups];
}

/* Collective. Starts to move the own sorted rows to the ranks of their experts, or rows back to
 * their sources. `from` and `to` have the same columns and type, and are in use until dispatch_end().
 * Returns where the rows will be: `to`, or with one rank `from`. Scratch memory is used until
 * dispatch_end(). */
struct mat rows_to_experts_begin(struct dispatch *x, struct mat from, struct mat to);
struct mat rows_back_begin(struct dispatch *x, struct mat from, struct mat to);
/* Completes all moves. */
void dispatch_end(struct dispatch *x);

/* The message tags of all directories. Messages with one tag between two ranks of a group
 * arrive in the order in which they were sent; messages with different tags are independent. So
 * each kind of message that may be in flight together with another kind has its own tags. A
 * kind with several tags numbers them: COMM_TAG(PIPELINE, i). */
#pragma once

#include "base/base.h"

/* name, number of tags */
#define COMM_TAGS(TAG)                                                                   \
	TAG(SENDRECV, 1)   /* mpi.c: the collective */                                   \
	TAG(SPLIT, 1)	   /* mpi.c: MPI_Comm_create_group */                            \
	TAG(SUM, 16384)	   /* sum.c: one per sum in flight */                            \
	TAG(NOTIFY, 1)	   /* notify.c */                                                \
	TAG(WATCHDOG, 1)   /* watchdog.c */                                              \
	TAG(LOADER, 4)	   /* data/loader.c: batches of tokens, one per fetch */         \
	TAG(SLICES, 1)	   /* parallel/slices.c: rows of activations */                  \
	TAG(DISPATCH, 1)   /* parallel/dispatch.c: rows of experts */                    \
	TAG(RING_KEYS, 1)  /* parallel/context.c: keys and values */                     \
	TAG(RING_SUMS, 1)  /* parallel/context.c: gradients of keys and values */        \
	TAG(GATHER, 1)	   /* parallel/gather.c: shards of parameters */                 \
	TAG(TIED, 1)	   /* parallel/grads.c: gradients of a weight on two stages */   \
	TAG(COLLECT, 4096) /* parallel/store.c: rows of a tensor, to one rank */         \
	TAG(MATRIX, 2) /* optim/matrix.c: pieces of a matrix, to its owner and back */   \
	TAG(PIPELINE, 8192) /* engine/pipe.c: activations and gradients of each stage */ \
	TAG(VAULT, 3)	    /* vault/load.c, copy.c: requests, rows; a file */           \
	TAG(HEAL, 1)	    /* referee/replicas_heal.c: copies of state */                \
	TAG(AUDIT, 1)	    /* referee/trial.c: hashes of results */                      \
	TAG(EDIT, 2)	    /* edit/exchange.c: pseudo-gradients, and their reduction */ \
	TAG(TEST, 16)	    /* tests, and round trips of pt-collbench */

/* Ranges are disjoint: each begins after the previous one. */
#define COMM_TAG_RANGE(name, n) TAG_##name, TAG_##name##_LAST = TAG_##name + (n)-1,
enum { COMM_TAGS(COMM_TAG_RANGE) N_COMM_TAGS };
#undef COMM_TAG_RANGE

_Static_assert(N_COMM_TAGS - 1 <= 32767, "MPI guarantees tags up to 32767");

/* Returns the kind of a tag, as the flight record names it. */
const char *comm_tag_name(int tag);

static inline int comm_tag(int first, int last, int64_t i)
{
	BUG_ON(i < 0 || i > last - first);
	return first + (int)i;
}

/* Tag number i of a kind. */
#define COMM_TAG(name, i) comm_tag(TAG_##name, TAG_##name##_LAST, i)
/* The number of tags of a kind. */
#define COMM_TAG_COUNT(name) (TAG_##name##_LAST - TAG_##name + 1)

/* For the files of the store only: what is offloaded, and where to. */
#pragma once

#include "parallel/store.h"

struct bucket;
struct reduction_row;

/* What is offloaded: the groups, the gradient, and the copies of parameters that matmuls read. */
enum { STORE_COPY = STORE_GRAD + 1, N_OFFLOADED };

/* Buffers for pieces of offloaded state: one in use, one being read and, if the device copies in
 * both directions at once, one being written. */
enum { OFFLOAD_SLOTS = 3 };
struct offload_pieces {
	int64_t floats;		    /* of a piece */
	int64_t begin[N_OFFLOADED]; /* of the regions, in bytes */
	void *piece[OFFLOAD_SLOTS][N_OFFLOADED];
	int n_slots;
	/* The sums of the rounds of gradients go through the pieces of STORE_GRAD: */
	int64_t sums;		      /* where they begin in the backend, in bytes */
	int slot;		      /* the next piece */
	uint64_t busy[OFFLOAD_SLOTS]; /* the ticket of its last write */
};

/* offload.c */
void offload_open(struct store *s, struct arena *run);
bool is_offloaded(const struct store *s, int group);
/* Are copies of the parameters, in the type of the wire, offloaded too? */
bool offloads_copies(const struct store *s);
void offload_copies(struct store *s); /* computes and writes them */
/* Enqueues a read or write of elements [at, at + n) of a group, or of STORE_COPY. Returns a ticket. */
uint64_t offload_enqueue(struct store *s, int group, bool write, void *memory, int64_t at,
	int64_t n, uint64_t after);
/* Enqueues n_bytes, of which the first one is byte `at` of the backend. */
uint64_t offload_enqueue_bytes(struct store *s, bool write, void *memory, int64_t at,
	int64_t n_bytes, uint64_t after);
void offload_wait(struct store *s, uint64_t ticket);
/* Rows of a part to and from the host's memory, offloaded or not. They wait. */
void part_get(struct store *s, const struct part *x, int group, int64_t row, int64_t rows,
	float *out);
void part_put(struct store *s, const struct part *x, int group, int64_t row, int64_t rows,
	const float *in);

/* offload_grads.c */
/* Places the sums of the rounds in the backend, from byte `at` on. Returns their bytes. */
int64_t offload_place_sums(struct store *s, int64_t at);
/* The floats that a piece needs at least. */
int64_t offload_sums_floats(const struct store *s);
/* The rows REDUCE_FILE_ADD, _READ and _WRITE (reduction.h). */
void offload_row_add(struct store *s, struct bucket *b, const struct reduction_row *r);
void offload_row_read(struct store *s, struct bucket *b, const struct reduction_row *r);
void offload_row_write(struct store *s, struct bucket *b, const struct reduction_row *r);

/* offload_host.c: pinned memory. NULL with *e set on failure. */
char *offload_pinned(struct device *d, int64_t n_bytes, struct err *e);

/* offload_file.c: the requests that are queued; a further one waits. */
enum { OFFLOAD_QUEUE = 16 };

/* offload_file.c, offload_host.c, offload_staged.c: requests in one direction are executed in order, and after the
 * device's work that was enqueued before them. */
struct offload_backend {
	/* Enqueues a read into, or a write from, the device's memory, after the request with ticket
	 * `after` (0: none). Returns a ticket. The memory must not be reused before wait(). */
	uint64_t (*enqueue)(struct offload_backend *, bool write, void *memory,
		int64_t n_bytes, int64_t at, uint64_t after);
	/* Work that is enqueued after this call, on the device and the backend, follows the request and
	 * the earlier ones in its direction. */
	void (*wait)(struct offload_backend *, uint64_t ticket);
	/* Copies from or to the host's memory, after all earlier requests, and waits. */
	void (*copy)(struct offload_backend *, bool write, void *memory, int64_t n_bytes,
		int64_t at);
	void (*close)(struct offload_backend *);
};

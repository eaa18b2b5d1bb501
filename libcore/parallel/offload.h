/* For the files of the store only: offloaded regions and backends. */
#pragma once

#include "parallel/store.h"

struct bucket;
struct reduction_row;

/* Regions that may be offloaded: groups, the gradient, and the copies of parameters for matmuls. */
enum { STORE_COPY = STORE_GRAD + 1, N_OFFLOADED };

/* Buffers for pieces of offloaded state: one in use, one being read, on a GPU one being written. */
enum { OFFLOAD_SLOTS = 3 };
struct offload_pieces {
	int64_t floats;		    /* floats in a piece */
	int64_t begin[N_OFFLOADED]; /* offsets of the regions in the backend, in bytes */
	void *piece[OFFLOAD_SLOTS][N_OFFLOADED];
	int n_slots;
	/* The sums of gradients over rounds use the pieces of STORE_GRAD: */
	int64_t sums;		      /* their offset in the backend, in bytes */
	int slot;		      /* the next piece */
	uint64_t busy[OFFLOAD_SLOTS]; /* the ticket of its last write */
};

/* offload.c */
void offload_open(struct store *s, struct arena *run);
/* Returns true if a state group, STORE_GRAD or STORE_COPY is offloaded. */
bool is_offloaded(const struct store *s, int group);
/* Returns true if copies of the parameters, in the type of the wire, are offloaded too. */
bool offloads_copies(const struct store *s);
void offload_copies(struct store *s); /* computes and writes them */
/* Enqueues a read or write of elements [pos, pos + n) of a group. Returns a ticket. */
uint64_t offload_enqueue(struct store *s, int group, bool write, void *memory,
	int64_t pos, int64_t n, uint64_t after);
/* Enqueues a read or write of bytes [pos, pos + n_bytes) of the backend. Returns a ticket. */
uint64_t offload_enqueue_bytes(struct store *s, bool write, void *memory, int64_t pos,
	int64_t n_bytes, uint64_t after);
void offload_wait(struct store *s, uint64_t ticket);
/* Copies rows of a part of a state group to host memory, offloaded or not, and waits. */
void part_read(struct store *s, const struct part *x, int group, int64_t row,
	int64_t rows, float *out);
/* Copies rows of a part from host memory to a state group, offloaded or not, and waits. */
void part_write(struct store *s, const struct part *x, int group, int64_t row,
	int64_t rows, const float *in);

/* offload_grads.c */
/* Places the sums of the rounds in the backend, from byte pos on. Returns their size in bytes. */
int64_t offload_place_sums(struct store *s, int64_t pos);
/* Returns the minimum number of floats in a piece. */
int64_t offload_sums_floats(const struct store *s);
/* Execute the rows REDUCE_FILE_ADD, _READ and _WRITE (reduction.h). */
void offload_row_add(struct store *s, struct bucket *b, const struct reduction_row *r);
void offload_row_read(struct store *s, struct bucket *b, const struct reduction_row *r);
void offload_row_write(struct store *s, struct bucket *b, const struct reduction_row *r);

/* Allocates pinned memory (offload_host.c). NULL with *e set on failure. */
char *offload_allocate_pinned(struct device *d, int64_t n_bytes, struct err *e);

/* offload_file.c: the capacity of the queue; enqueue() waits while it is full. */
enum { OFFLOAD_QUEUE = 16 };

/* offload_file.c, offload_host.c, offload_staged.c. Requests in one direction are executed in
 * order, and after the device's work that was enqueued before them. */
struct offload_backend {
	/* Enqueues a read into, or a write from, device memory, after the request with ticket
	 * `after` (0: none). Returns a ticket. The memory must not be reused before wait(). */
	uint64_t (*enqueue)(struct offload_backend *, bool write, void *memory,
		int64_t n_bytes, int64_t pos, uint64_t after);
	/* Orders work that is enqueued later, on the device and the backend, after this request and
	 * the earlier requests in its direction. */
	void (*wait)(struct offload_backend *, uint64_t ticket);
	/* Copies from or to host memory, after all earlier requests, and waits. */
	void (*copy)(struct offload_backend *, bool write, void *memory, int64_t n_bytes,
		int64_t pos);
	void (*close)(struct offload_backend *);
};

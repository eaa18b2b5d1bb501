/* The exchange between workers: a reduce-scatter of blocks of floats, and an all-gather of the
 * results, both in a wire format: fp32, bf16, int8 or sparse rows. The formats encode whole
 * rows of a virtual slice, and blocks and pieces end at row ends, so the bits do not depend on
 * where the vector is cut. Vectors are sent as fp32, since they are small. */
#pragma once

#include "edit/edit.h"

/* ---- wire.c: formats of floats in messages ------------------------------------------ */

struct wire {
	enum edit_wire kind;
	double density; /* sparse: fraction of a row's elements sent, at least one element */
	uint64_t seed;
	struct device *d;
	const struct part *part; /* part of the store, in the order of positions */
	int64_t n_parts, floats; /* floats of all parts */
};

/* Returns the wire format of the configuration, for the parts that this rank updates. */
struct wire wire_make(
	const struct edit_config *c, const struct store *s, struct device *d);
/* Returns the key of the random numbers of a tensor in a synchronization. */
struct philox_key wire_key(uint64_t seed, const struct tensor *t, int64_t sync);
/* Returns the end of the row that contains float pos - 1. */
int64_t wire_row_end(const struct wire *w, int64_t pos);
/* Rounds a matrix in place to values that the format can represent. */
void wire_round(const struct wire *w, struct mat v);
/* Returns the bytes of the message for floats [pos, pos + n), which are whole rows. */
int64_t wire_bytes(const struct wire *w, int64_t pos, int64_t n);
/* Encodes v[n], which must have been rounded. */
void wire_pack(const struct wire *w, char *out, float *v, int64_t pos, int64_t n);
/* Rounds v[n] stochastically (without bias) in place, and encodes it. */
void wire_pack_random(
	const struct wire *w, char *out, float *v, int64_t pos, int64_t n, int64_t sync);
void wire_unpack(const struct wire *w, float *v, const char *in, int64_t pos, int64_t n);

/* ---- exchange.c: messages between workers ------------------------------------------- */

/* Floats [pos, pos + n) of one unit, in whole rows, that are exchanged together. */
struct block {
	int64_t pos, n;
	int group; /* number of an edit_group */
};

/* Blocks in flight: one is reduced while the next is received. */
enum { EXCHANGE_SLOTS = 2 };

struct exchange {
	struct comm *sync;
	struct wire wire;
	int64_t piece_floats,
		packed_bytes; /* size of the largest piece: floats; bytes as sent */
	struct slot *slots;
};

/* Returns the length of the largest block from pos to a row end, not beyond `end`. */
int64_t exchange_block_floats(
	const struct wire *w, const struct comm *sync, int64_t pos, int64_t end);
/* Set up an exchange for n blocks, and allocate its buffers from an arena, which may measure. */
void exchange_init(struct exchange *x, struct comm *sync, const struct wire *w,
	const struct block *blocks, int n);
/* Allocates the buffers of an exchange from an arena, which may only measure. */
void exchange_allocate(struct exchange *x, struct arena *a);
void exchange_release(struct exchange *x);
/* Returns the bytes that this rank sends for a block. `kind`: the format of the wire, or fp32. */
int64_t exchange_bytes_sent(
	const struct exchange *x, enum edit_wire kind, const struct block *b);

/* A reduction of n blocks over the workers, in the background, or with NCCL in the stream of the
 * workers' group; one at a time. The caller has rounded the contributions. Results are rounded
 * stochastically, with the random numbers of `sync`. All workers have the same blocks in order. */
struct flight {
	struct exchange *x;
	enum edit_wire kind;
	int64_t sync;
	const struct block *blocks;
	int n;
	/* read() returns the address of a block's floats, and write() stores the reduced floats.
	 * `slot`: index of the block among EXCHANGE_SLOTS in flight. */
	float *(*read)(void *arg, const struct block *b, int slot);
	void (*write)(void *arg, const struct block *b, float *v, int slot);
	/* Computes out[n] from the pieces of all workers, from[worker][n]. */
	void (*reduce)(void *arg, const struct block *b, float *out,
		const float *const *from, int64_t n);
	void *with;
	int n_begun, n_done; /* blocks */
	bool busy, ended;    /* make_progress() runs; all blocks are done */
	uint64_t *tickets;   /* [n], with NCCL: a mark after each block */
};

/* Begins a flight. `f` must stay in place until flight_wait() has ended it. */
void flight_begin(struct flight *f);
/* Waits for the first n blocks, with NCCL in the current stream. All blocks: ends the flight. */
void flight_wait(struct flight *f, int n);

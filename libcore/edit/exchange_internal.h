/*
 * The exchange between workers: a reduce-scatter of blocks of floats, and an all-gather of the
 * results, both in a wire format of fp32, bf16, int8 or sparse rows. These encode whole rows of a
 * virtual slice, and blocks and pieces end at ends of rows, so that no bit depends on where they are
 * cut. Vectors are sent as fp32: they are small.
 */
#pragma once

#include "edit/edit.h"

/* ---- wire.c: formats of floats in messages ------------------------------------------ */

struct wire {
	enum edit_wire kind;
	double density; /* sparse: the fraction of a row's elements that is sent, at least one */
	uint64_t seed;
	struct device *d;
	const struct part *part; /* of the store, in the order of positions */
	int64_t n_parts, floats; /* floats of all parts */
};

struct wire wire_make(
	const struct edit_config *c, const struct store *s, struct device *d);
/* The random numbers of a tensor in a synchronisation. */
struct philox_key wire_key(uint64_t seed, const struct tensor *t, int64_t sync);
/* The end of the row that contains float `at` - 1. */
int64_t wire_row_end(const struct wire *w, int64_t at);
/* Rounds a matrix in place to numbers that the format can represent. */
void wire_round(const struct wire *w, struct mat v);
/* Bytes of the message for floats [at, at + n), which are whole rows. */
int64_t wire_bytes(const struct wire *w, int64_t at, int64_t n);
/* Encodes v[n] that has been rounded. */
void wire_pack(const struct wire *w, char *out, float *v, int64_t at, int64_t n);
/* Rounds v[n] stochastically (the mean is the number itself), in place, too, and encodes it. */
void wire_pack_random(
	const struct wire *w, char *out, float *v, int64_t at, int64_t n, int64_t sync);
void wire_unpack(const struct wire *w, float *v, const char *in, int64_t at, int64_t n);

/* ---- exchange.c: messages between workers ------------------------------------------- */

/* Floats [at, at + n) of one unit, whole rows, that are exchanged together. */
struct block {
	int64_t at, n;
	int group; /* the caller's */
};

/* Blocks in flight: one is reduced while the next one is received. */
enum { EXCHANGE_SLOTS = 2 };

struct exchange {
	struct comm *sync;
	struct wire wire;
	int64_t piece_floats, packed_bytes; /* of the largest piece */
	struct slot *slots;
};

/* The largest block that begins at `at` and ends at an end of a row, not beyond `end`. */
int64_t exchange_cut(
	const struct wire *w, const struct comm *sync, int64_t at, int64_t end);
/* For n blocks. exchange_place() takes its device memory from an arena, which may be measuring. */
void exchange_open(struct exchange *x, struct comm *sync, const struct wire *w,
	const struct block *blocks, int n);
void exchange_place(struct exchange *x, struct arena *a);
void exchange_close(struct exchange *x);
/* Bytes that this rank sends for a block. `kind`: the format of the wire, or fp32. */
int64_t exchange_sent(
	const struct exchange *x, enum edit_wire kind, const struct block *b);

/* A reduction of n blocks over the workers, in the background, or with NCCL in the stream of the workers'
 * group; one at a time. Contributions have been
 * rounded by the caller; results are rounded stochastically, with random numbers of synchronisation
 * `sync`. All workers have the same blocks in the same order. */
struct flight {
	struct exchange *x;
	enum edit_wire kind;
	int64_t sync;
	const struct block *blocks;
	int n;
	/* read: the address of a block's floats; write: stores the reduced floats. `slot`: the
	 * index of the block among EXCHANGE_SLOTS in flight. */
	float *(*read)(void *with, const struct block *b, int slot);
	void (*write)(void *with, const struct block *b, float *v, int slot);
	/* out[n] from the pieces of all workers, from[worker][n]. */
	void (*reduce)(void *with, const struct block *b, float *out,
		const float *const *from, int64_t n);
	void *with;
	int n_begun, n_done; /* blocks */
	bool busy, over;
	uint64_t *tickets; /* [n], with NCCL: of a mark after each block */
};

/* Starts; and waits until the first n blocks are done, with NCCL in the current stream. After the last
 * one the flight is over. */
void flight_begin(struct flight *f);
void flight_wait(struct flight *f, int n);

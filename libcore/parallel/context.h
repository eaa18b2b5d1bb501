/* Context parallelism: every sequence is split into virtual chunks. Attention receives remote keys
 * and values around a ring (Liu et al. 2023), or by one all-gather (Llama 3). */
#pragma once

#include "base/base.h"
#include "comm/requests.h"
#include "kernels/kernels.h"

/* The n virtual chunks of every sequence; [first, first + local) are on this rank. Zigzag order
 * balances causal attention: chunk i consists of pieces i and 2n-1-i of 2n. */
struct chunks {
	struct comm *axis;
	int n, first, local;
	int64_t context; /* length of a whole sequence */
	bool gather;	 /* all-gather keys and values instead of a ring */
};

/* Sets the first positions of a chunk's two pieces, and the length of a piece. */
void chunk_runs(const struct chunks *c, int chunk, int64_t first[2], int64_t *len);
/* Sets pos[context / n], the position of each row of a chunk. */
void chunk_positions(const struct chunks *c, int chunk, int32_t *pos);

/* The order of attention between query chunks and key/value chunks, on one rank or many: in step
 * t the queries of chunk i attend to the keys of chunk i - t (mod n). dK and dV of a key chunk
 * are summed in the order of these steps.
 *
 * Between ranks, each step sends a chunk to the next rank and receives one from the previous
 * rank. In the backward, dK and dV follow their chunk around the ring to its rank. */
enum ring_part { RING_K, RING_V, RING_DK, RING_DV, N_RING_PARTS };

/* The matrices that are sent around the ring; in a forward only keys and values. */
struct ring_kv {
	struct mat local[N_RING_PARTS]; /* each [slices][local chunks][rows] */
	int slices;
	int64_t rows;
	enum dtype
		wire; /* type of sent keys and values: 16 bits if they are rounded to it already */
};

struct ring {
	const struct chunks *c;
	int step;
	/* Set by ring_exchange(): */
	struct device *d; /* NULL: no communication, only the order of steps */
	struct ring_kv kv;
	struct mat remote[N_RING_PARTS]; /* other ranks' chunks: [buffer][slice][rows] */
	uint16_t *packed[RING_V + 1];	 /* 16-bit wire: local chunks, then remote */
	struct comm_requests keys;	 /* messages of keys and values */
	struct comm_requests *sums;	 /* [parity of the step][slice]: dK and dV */
	size_t mark;
};

struct ring ring_begin(const struct chunks *c);
/* Collective. Sets the matrices of the steps, casts local keys and values to the type in which they
 * are sent, and uses scratch memory for other ranks' chunks until ring_end(). */
void ring_exchange(struct ring *r, struct device *d, const struct ring_kv *kv);
/* Begins the first or the next step; returns false after the last one. */
bool ring_next(struct ring *r);
/* Waits for the messages of the last step, and frees the ring. */
void ring_end(struct ring *r);
/* Returns the key chunk that the queries of a chunk attend to in this step. */
int ring_keys_for(const struct ring *r, int query_chunk);
/* Returns a slice of a key chunk's matrix in this step: [rows, width]. */
struct mat ring_at(const struct ring *r, enum ring_part part, int slice, int key_chunk);
/* Posts the receive of a slice's dK and dV (backward), before the first local chunk adds. */
void ring_recv_grads(struct ring *r, int slice);
/* Starts to send a slice's dK and dV to the next rank (backward), after all chunks added. */
void ring_send_grads(struct ring *r, int slice);

static inline bool ring_first(const struct ring *r)
{
	return r->step == 0;
}

static inline bool ring_last(const struct ring *r)
{
	return r->step == r->c->n - 1;
}

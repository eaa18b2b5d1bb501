/* pieces: the state of a rank in pieces, to compare replicas and to detect changes of state at
 * rest. A piece is a group of a bucket's shard, as the optimizer updates it; or, with ZeRO 1 and 2,
 * one shard of the bucket's gathered parameters. */
#pragma once

#include "parallel/store.h"

struct bucket;
struct state_piece {
	const struct bucket *bucket;
	int group, shard;
	bool gathered;
	uint64_t id;   /* equal for copies of a piece, on one rank or several */
	uint64_t hash; /* checksum of its bits, below GRID_PRIME: state_pieces_hash() */
};

/* Lists the pieces of this rank that have elements, in *list, which the caller frees. Returns their
 * number. */
int64_t state_pieces_list(const struct store *s, struct state_piece **list);
/* Enqueues the checksums (kernel word_sums) of the pieces with wanted[i], to be added to sum[i].
 * u: grid_weights() of the store's seed. u and sum: device memory. */
void state_pieces_enqueue(struct store *s, const uint32_t *u,
	const struct state_piece *list, int64_t n, const bool *wanted, uint64_t *sum);
/* Sets the hashes of n pieces to these checksums, and waits for the device. */
void state_pieces_hash(struct store *s, struct state_piece *list, int64_t n);
/* Returns the number of floats of a piece. */
int64_t state_piece_floats(const struct state_piece *x);
/* Copy floats [at, at + n) of a piece to host memory, or from it unless the piece is gathered. */
void state_piece_read(
	struct store *s, const struct state_piece *x, int64_t at, int64_t n, float *out);
void state_piece_write(struct store *s, const struct state_piece *x, int64_t at,
	int64_t n, const float *in);
/* Appends what the piece is, as "exp_avg of the bucket of A to B". */
void state_piece_name(
	const struct store *s, const struct state_piece *x, struct str *out);

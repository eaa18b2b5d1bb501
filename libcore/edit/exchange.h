/*
 * What workers bring goes to those who make one of it, each a piece, and what these have made
 * comes back to all. Nothing here knows what it is.
 *
 * A wire of fewer bytes than fp32 is told of rows: of matrices, as whole as the model has them
 * in its virtual slices. Blocks and pieces end where rows do, so where they are cut changes no
 * bit. Vectors travel as fp32: there is little of them.
 */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include "edit/edit.h"

/* ---- wire.c: how floats travel ----------------------------------------------------- */

struct wire {
	enum edit_wire kind;
	double density; /* sparse: the part of a row's elements that travels, one at least */
	uint64_t seed;
	struct device *d;
	const struct part *part;	  /* what lies where, in order */
	int64_t n_parts, floats, longest; /* all of them, and in a row */
};

struct wire wire_make(
	const struct edit_config *c, const struct store *s, struct device *d);
/* Random numbers of a tensor, other ones at each synchronisation. */
struct philox_key wire_key(uint64_t seed, const struct tensor *t, int64_t sync);
/* Where the row ends that float `at` - 1 is in. */
int64_t wire_row_end(const struct wire *w, int64_t at);
/* Of a matrix, where it lies: what can travel instead of it. */
void wire_round(const struct wire *w, struct mat v);
/* Of floats [at, at + n), which v is, and which begin and end with rows. */
int64_t wire_bytes(const struct wire *w, int64_t at, int64_t n);
/* What has been rounded, to the bytes that travel. */
void wire_pack(const struct wire *w, char *out, float *v, int64_t at, int64_t n);
/* What has not, in place, too: at random, with what it was as the mean. */
void wire_pack_random(
	const struct wire *w, char *out, float *v, int64_t at, int64_t n, int64_t sync);
void wire_unpack(const struct wire *w, float *v, const char *in, int64_t at, int64_t n);

/* ---- exchange.c: who sends what to whom -------------------------------------------- */

/* Floats that are exchanged at a time: of one unit, whole rows. */
struct block {
	int64_t at, n;
	int group; /* what the caller tells units by */
};

/* Blocks that are under way at a time: one is made while the next is on its way. */
enum { EXCHANGE_SLOTS = 2 };

struct exchange {
	struct comm *sync;
	struct wire wire;
	int64_t piece_floats, packed_bytes; /* of a piece, at most */
	struct slot *slots;
};

/* Blocks end here at the latest, counted from `at`, with rows up to `end`. */
int64_t exchange_cut(
	const struct wire *w, const struct comm *sync, int64_t at, int64_t end);
/* For these blocks; its memory, of the device, comes from an arena, which may be measuring. */
void exchange_open(struct exchange *x, struct comm *sync, const struct wire *w,
	const struct block *blocks, int n);
void exchange_place(struct exchange *x, struct arena *a);
void exchange_close(struct exchange *x);
/* Bytes that this worker sends for a block. `kind`: the wire's, or fp32. */
int64_t exchange_sent(
	const struct exchange *x, enum edit_wire kind, const struct block *b);

/*
 * Blocks on their way, one flight of an exchange at a time: each of all workers becomes one,
 * which all get. What is brought was rounded; what comes back is, at random, by the number of
 * the synchronisation. All workers have the same blocks in the same order.
 */
struct flight {
	struct exchange *x;
	enum edit_wire kind;
	int64_t sync;
	const struct block *blocks;
	int n;
	/* Where a block's floats are, and that what was made of them is there now; `slot` tells
	 * those apart that are under way. */
	float *(*take)(void *with, const struct block *b, int slot);
	void (*give)(void *with, const struct block *b, float *v, int slot);
	/* Makes one of the pieces of all workers, from[i][0..n). */
	void (*make)(void *with, const struct block *b, float *out,
		const float *const *from, int64_t n);
	void *with;
	int begun, came; /* blocks */
	bool busy, over;
};

/* Goes on in the background, until what is waited for has come: the first n blocks. After all
 * of them the flight is over. */
void flight_begin(struct flight *f);
void flight_wait(struct flight *f, int n);

#endif

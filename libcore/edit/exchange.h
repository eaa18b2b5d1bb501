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

struct exchange {
	struct comm *sync;
	struct wire wire;
	int64_t piece_floats, packed_bytes; /* of a piece, at most */
	float *received, *made;		    /* [workers] pieces; one */
	char *in, *out;			    /* [workers] pieces, packed */
	struct comm_req *reqs;		    /* [2][workers] */
};

/* Of all workers, whose pieces from[i][0..n) lie at `at`, makes one. */
typedef void exchange_make(
	void *with, float *out, const float *const *from, int64_t at, int64_t n);

void exchange_open(struct exchange *x, struct comm *sync, const struct wire *w);
void exchange_close(struct exchange *x);
int64_t exchange_bytes(const struct exchange *x); /* of memory */
/* How many floats from `at` on go at a time. `kind`: the wire's, or fp32. */
int64_t exchange_block(const struct exchange *x, enum edit_wire kind, int64_t at);
int64_t exchange_most(const struct exchange *x); /* at most */
/* Collective over sync: v[0..n) of all workers, a block that lies at `at`, becomes one. What
 * is brought was rounded; what comes back is, at random, by the number of the
 * synchronisation. */
void exchange_run(struct exchange *x, enum edit_wire kind, float *v, int64_t at,
	int64_t sync, exchange_make *make, void *with);
/* Bytes that this worker sends for the block. */
int64_t exchange_sent(const struct exchange *x, enum edit_wire kind, int64_t at);

#endif

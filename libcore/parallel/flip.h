/* flip: bits that --inject-flip flips, to test what detects a wrong bit. */
#pragma once

#include "base/base.h"
#include "kernels/device.h"

/* Where a bit is flipped. MESSAGE: this rank's contribution to another rank's piece of a sum, after
 * it is complete. SUM: the int64 sum that is kept between two additions. ROUNDED: the gradient.
 * NORM: the loss, the learning rate or the factor of the gradient. UPDATE: an updated parameter. */
enum flip_place {
	FLIP_TOKENS,
	FLIP_ACTIVATION,
	FLIP_GRADIENT,
	FLIP_LEAF,
	FLIP_WEIGHT,
	FLIP_COPY,
	FLIP_SUM,
	FLIP_MESSAGE,
	FLIP_ROUNDED,
	FLIP_NORM,
	FLIP_UPDATE,
	FLIP_MOMENT,
	N_FLIP_PLACES
};
extern const char *const flip_place_names[N_FLIP_PLACES];

struct flip {
	int rank;     /* among all ranks */
	int64_t step; /* counted from 1 */
	bool repeats; /* also in later steps, and whenever a step is computed again */
	double probability; /* 0, or the probability of a flip in each micro-batch */
	enum flip_place place;
	char *name; /* tensor; NULL: any */
	int bit;    /* -1: a random one */
	bool done;  /* in this attempt of a step, or if it does not repeat, forever */
};

struct flips {
	struct flip *list; /* [n] */
	int n, rank;	   /* this rank among all ranks */
	uint64_t seed;
	int64_t step; /* the step that is being computed */
	bool in_copy; /* computes a copy of a micro-batch, in which only flips that repeat occur */
	uint32_t n_micro; /* micro-batches that this rank has begun */
	uint32_t n_drawn;
};

/* Begins an attempt to compute a step. f may be NULL. */
void flips_begin(struct flips *f);
/* Begins or ends the copy of a micro-batch (--referee). f may be NULL. */
void flips_begin_copy(struct flips *f, bool copy);
/* Begins a micro-batch: draws which flips with a probability occur. f may be NULL. */
void flips_begin_micro(struct flips *f);
/* Returns true if a rank is to flip a bit in this step; equal on all ranks. f may be NULL. */
bool flips_in_step(const struct flips *f);
/* Returns a flip that this rank is to do now; NULL: none. `name`: the tensor; NULL: all match.
 * f may be NULL. */
struct flip *flips_due(struct flips *f, enum flip_place place, const char *name);
/* Returns a random number below n. */
int64_t flips_draw(struct flips *f, int64_t n);
/* Flips a bit of an element of `bytes` bytes in the memory of d (NULL: of the host), and reports it
 * with this name. */
void flips_do(struct flips *f, struct flip *x, struct device *d, void *element, int bytes,
	const char *name);

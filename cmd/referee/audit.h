/* audit: in some steps, each rank also computes a micro-batch of another data rank, its referee
 * (--referee). The referee of a rank has the same place in the mesh, except for its data rank, so
 * it has the same slices and layers. Both ranks compute a signature: checksums of all leaves, the
 * exact sum of the losses, and hashes of all results. A word of the step's all-reduce is the sum of
 * the signatures of the originals minus the signatures of the copies, with random weights: 0 unless
 * a signature differs (checks.h). Then the trial computes the micro-batches again. */
#pragma once

#include "referee/audit_plan.h"
#include "referee/strikes.h"
#include "engine/engine.h"
#include "parallel/store_audit.h"

/* A result of a forward or backward, in the order of computation. */
struct audit_record {
	uint64_t hash;
	char name[48]; /* without the prefix "layers.N." */
	int64_t layer; /* -1: embedding; model.c.layers: head */
	bool gradient;
};

/* Device memory for what a rank computes for a micro-batch. */
enum { AUDIT_HASHES = 512 };
struct audit_memory {
	uint64_t *leaf;	    /* [n_tensors]: checksums of leaves */
	struct exact *loss; /* [2]: the sum of losses before and after the micro-batch */
	uint64_t *hash;	    /* [AUDIT_HASHES]: of the results that are not fetched yet */
};

/* What a rank computed for a micro-batch: host memory, complete after audit_signature_fetch(). */
struct audit_signature {
	uint64_t *
		word; /* [n_tensors]: checksums of leaves; then of the loss and of the records */
	struct audit_record *record; /* [n_records] */
	int64_t n_records, n_fetched;
	const struct audit_memory *memory; /* where the device writes it */
};

/* A rank that has computed wrongly; equal on all ranks. */
struct audit_suspect {
	int rank;
	enum audit_verdict verdict;
	char host[64], device[32];
	char tensor[80]; /* the first result that differs */
};

/* After a fault, and after a start on a device with a recent fault, this many steps are audited. */
enum { AUDIT_MAX_SUSPECTS = 8, AUDIT_WATCHED_STEPS = 100 };
struct audit {
	struct audit_config c;
	struct audit_plan plan; /* the plan for this step */
	int64_t n_words;	/* of a signature */
	struct {
		size_t n_bytes;
		uint32_t *u;	   /* [GRID_BLOCK], first in the memory */
		struct grid *grid; /* zeros: checksums of integers do not use it */
		struct audit_memory own, copy;
	} memory;			  /* device memory */
	struct philox_key key;		  /* the random numbers for this step */
	struct schedule schedule;	  /* one micro-batch */
	struct audit_signature own, copy; /* the original and the copy in this step */
	struct audit_signature *now;	  /* the signature that is computed */
	struct store_audit leaves;
	struct observer observer;
	const struct observer *inner; /* the observer that was there; NULL: none */
	bool begun;		      /* a step has been audited since the start */
	int64_t first_step;	      /* the first audited step since the start */
	bool was_first;	      /* the current audit is the first one of the start */
	int64_t always_until; /* after a fault, all steps up to this one are audited */
	int64_t audited_step; /* the last one */
	int64_t n_audited, n_mismatches; /* steps with an audit; pairs that differed */
	struct strikes strikes;		 /* equal on all ranks */
	/* Tests the kernels of this rank's device: -1 with *e set if one is wrong. Not collective.
	 * NULL: the device has no test. */
	int (*test_device)(struct trainer *t, struct err *e);
	/* The outcome of the last trial. */
	struct audit_suspect suspect[AUDIT_MAX_SUSPECTS];
	int n_suspects;
	int64_t trial_step; /* step of the last trial, counted from 1 */
	double trial_time;  /* seconds since 1970, by the clock of rank 0 */
	enum checked outcome;
	struct str found;
};

/* ---- audit.c ------------------------------------------------------------------------ */

/* Opens and closes t->audit; NULL without --referee. */
void audit_open(struct trainer *t);
void audit_close(struct trainer *t);
/* Decides if the next step is audited: returns true if so. Equal on all ranks. */
bool audit_plan_step(struct trainer *t);
/* Collective, before the step's micro-batches are computed. In an audited step, computes the copy,
 * and observes the original in what follows. */
void audit_begin_step(struct trainer *t);
/* Ends the observation. */
void audit_end_step(struct trainer *t);
/* Collective. Computes a turn of data rank d + shift, and drops its gradients. The signature uses
 * the memory of the copy, until it is fetched. */
void audit_compute(
	struct trainer *t, int shift, int64_t turn, struct audit_signature *to);
/* Returns this rank's word (checks.h). */
uint64_t audit_word(struct trainer *t);
/* Returns true if a rank compares its leaves of experts with its own: all data ranks exchange
 * rows. */
bool audit_compares_own_experts(const struct trainer *t);
/* Returns the rank at the same place of the mesh whose data rank is d + shift. */
int audit_partner(const struct trainer *t, int rank, int shift);

/* Sets the host and the device of this rank. */
void audit_place(const struct trainer *t, struct strike *out);
/* Collective. Audits the next steps if a device of the run has had a fault within a day. Returns true
 * if so. */
bool audit_watch(struct trainer *t);

/* ---- audit_signature.c --------------------------------------------------------------- */

/* Allocate and free the memory for signatures. */
void audit_signatures_open(struct trainer *t);
void audit_signatures_close(struct trainer *t);
/* Begins an empty signature, which the device writes to `memory`. */
void audit_signature_begin(
	struct trainer *t, struct audit_signature *x, const struct audit_memory *memory);
/* Waits for the device, and completes the signature. */
void audit_signature_fetch(struct trainer *t, struct audit_signature *x);
void audit_signature_release(struct audit_signature *x);
/* Begins and ends an interval in which leaves and results are signed. `drops`: gradients are not
 * added. */
void audit_observe_begin(struct trainer *t, struct audit_signature *to, bool drops);
void audit_observe_end(struct trainer *t);
/* Signs the sum of losses before the micro-batch, which is 0 if not called, or after it. */
void audit_observe_loss(struct trainer *t, struct audit_signature *to, bool after);

/* ---- trial.c ------------------------------------------------------------------------ */

/* Collective. Computes the audited micro-batches again, on several ranks, and sets the outcome of
 * the trial, the suspects and the text. */
void audit_trial(struct trainer *t);
/* Collective, if an audit fails in the second attempt of a step: holds a trial about the second
 * attempt. A rank that was wrong in both is persistent; others keep their verdicts. */
void audit_trial_again(struct trainer *t);

/* edit: local SGD with EDiT (Cheng et al. 2024, arXiv:2412.07210), and its special cases
 * Post-Local-SGD (Lin et al. 2018) and DiLoCo (Douillard et al. 2023).
 *
 * A worker is a mesh of ranks that holds a whole model. The ranks at the same position of all
 * workers form a sync group. Workers take local steps, and every interval they synchronize:
 * each computes its pseudo-gradient (the anchor, i.e. the parameters after the last
 * synchronization, minus its parameters). The workers' pseudo-gradients are reduced to one, the
 * outer optimizer applies it to the anchor, and all workers continue with the result. When
 * pseudo-gradients are compressed, the error is added to the worker's next one (error feedback:
 * Seide et al. 2014; Karimireddy et al. 2019).
 *
 * The reduction is element by element, in the canonical tree over workers; norms and weights
 * belong to whole units of the model. So the bits do not depend on the layout of a worker. */
#pragma once

#include "comm/comm.h"
#include "optim/optim.h"
#include "parallel/parallel.h"

/* ---- outlier.c: outlier detection for norms ---------------------------------------- */

struct outlier_config {
	double alpha;	  /* gain of the moving mean and variance */
	double threshold; /* maximum of z = (x - mean) / deviation */
	int64_t warmup;	  /* norms before the first test; also the length of the window */
};

/* A norm x that is not an outlier updates: d = x - mean, mean += alpha d, M2 = (1 - alpha) (M2 +
 * alpha d (x - mean)), and a window of the last `warmup` values of z. An outlier has z > threshold
 * max(1, deviation of the window), or is not finite; it does not change the statistics. */
struct detector {
	double mean, m2;
	int64_t count; /* norms in the statistics */
	double *z;     /* [warmup], the window: z of norm i at i % warmup */
};

void detector_init(struct detector *d, const struct outlier_config *c);
void detector_release(struct detector *d);
/* Returns true if x is an outlier; else adds x to the statistics. */
bool detector_test_and_add(struct detector *d, const struct outlier_config *c, double x);
/* Adds x, which must be finite, to the statistics. */
void detector_add(struct detector *d, const struct outlier_config *c, double x);

/* ---- weights.c: the weights of workers --------------------------------------------- */

struct weights_config {
	bool by_norm;	    /* softmax of -norm / temperature; else equal weights */
	double temperature; /* 0: no softmax; without by_norm, > 0 makes the weights sum to 1 */
	bool by_steps;	    /* mix with the worker's share of all local steps: */
	double steps_ratio; /* (1 - ratio) weight + ratio share */
};

/* A worker's report to all workers about a group of units; excluded: 0 or 1. */
struct worker_report {
	double norm; /* norm of its pseudo-gradient */
	int64_t excluded, steps;
};

/* Sets weight[n] from the reports of n workers; excluded ones get 0, and do not count. */
void worker_weights(const struct weights_config *c, int n, const struct worker_report *r,
	float *weight);

/* ---- edit.c: synchronization ------------------------------------------------------- */

enum edit_reducer { EDIT_MEAN, EDIT_LINEAR, EDIT_GTA };
#define EDIT_REDUCER_WORDS "none", "linear", "gta"
enum edit_sparsify {
	EDIT_DENSE,
	EDIT_MAGNITUDE,
	EDIT_RANDOM,
	EDIT_RESCALED_RANDOM,
	EDIT_MAGNITUDE_TENSOR
};
#define EDIT_SPARSIFY_WORDS \
	"none", "magnitude", "random", "rescaled-random", "magnitude-tensor"
/* The format of the floats that workers exchange. */
enum edit_wire { EDIT_WIRE_FP32, EDIT_WIRE_BF16, EDIT_WIRE_INT8, EDIT_WIRE_SPARSE };
#define EDIT_WIRE_WORDS "fp32", "bf16", "int8", "sparse"
enum edit_outer { EDIT_OUTER_NONE, EDIT_OUTER_SGD, EDIT_OUTER_ADAMW };
#define EDIT_OUTER_WORDS "none", "sgd", "adamw"

struct edit_config {
	enum edit_reducer reducer;
	bool normalize; /* divide by the sum of the participating weights */
	enum sign_vote consensus;
	enum edit_sparsify sparsify;
	double density; /* fraction of the elements of each row, or tensor, that is kept */
	bool by_unit; /* norms, outliers and clipping per unit; else for the whole model */
	struct weights_config weights;
	bool skip_anomaly; /* exclude outliers; else only non-finite norms */
	struct outlier_config detect;
	double clip; /* maximum norm of the reduced pseudo-gradient; 0: not clipped */
	enum edit_outer outer;
	double lr, momentum, dampening, beta1, beta2, eps, decay;
	bool nesterov;
	enum edit_wire wire; /* other than fp32 only with an anchor */
	double wire_density; /* sparse: fraction of each row's elements that is sent */
	/* Streaming (Douillard et al. 2025, arXiv:2501.18512): the units are divided into
	 * fragments, which are synchronized one at a time. With a delay, training continues
	 * until the exchange is done, and a worker keeps a fraction of that progress:
	 * p = keep p + (1 - keep) anchor. */
	int64_t fragments;
	int64_t interval, delay; /* steps, see edit_due(); a delay only with an anchor */
	double keep;
	uint64_t seed;
};

/* Returns true if fragments are synchronized at different times: parameters then always differ. */
static inline bool edit_streams(const struct edit_config *c)
{
	return c->fragments > 1 || c->delay > 0;
}

/* Adds the groups of local SGD to the store's groups: the anchor, the state of the outer
 * optimizer, the residual of compression, and the pseudo-gradient in flight (pending). With
 * neither an outer optimizer nor a reducer, parameters are averaged and no anchor is kept. */
void edit_add_groups(const struct edit_config *c, struct store_groups *g);

/* After this many synchronizations in a row in which all workers are outliers, outliers are
 * included and enter the statistics, until a norm is not an outlier. */
enum { EDIT_LOCKOUTS = 3 };

/* The results of a synchronization on this worker. */
struct edit_result {
	double norm;	  /* norm of its pseudo-gradient; NAN without an anchor */
	double weight;	  /* weight of this worker, the mean over units */
	int anomalies;	  /* units of this worker that were excluded */
	int all_left_out; /* units for which all workers were excluded */
	int readmitted;	  /* units whose outliers were included, see EDIT_LOCKOUTS */
	double clip;	  /* the smallest clipping factor */
	double reduced;	  /* norm of the reduced pseudo-gradient before clipping */
};

struct edit;

/* Creates the state of a worker of the ranks `world`. In the sync group, a rank is the worker's
 * number. The store has the groups of edit_add_groups(). The caller owns all arguments. */
struct edit *edit_new(const struct edit_config *c, struct comm *world, struct comm *sync,
	struct store *s, struct device *d);
void edit_free(struct edit *x);
/* Returns the bytes of device memory, in addition to the store's. */
int64_t edit_bytes(const struct edit *x);
/* Sets the anchor to the parameters, which are equal on all workers. */
void edit_anchor(struct edit *x);
/* Divides the sums of gradients by the number of workers, during the warm-up. */
void edit_mean_gradient(struct edit *x);
/* Collective over all workers. Synchronizes all units after `steps` local steps, and waits. */
void edit_sync(struct edit *x, int64_t steps, struct edit_result *r);
/* Begins to synchronize a fragment; collective over all workers. Sets *r for this worker's
 * pseudo-gradient. The exchange proceeds in the background; without a delay, do not use the
 * fragment's parameters until edit_end(). */
void edit_begin(struct edit *x, int fragment, int64_t steps, struct edit_result *r);
/* Ends the synchronization of a fragment; collective over all workers. Waits for the exchange,
 * updates the parameters, and sets *r for the reduced pseudo-gradient. */
void edit_end(struct edit *x, int fragment, struct edit_result *r);
/* Appends the workers and units that edit_begin() excluded; fragment -1: that edit_sync() did. */
void edit_describe_excluded(const struct edit *x, int fragment, struct str *out);
/* Appends the units that edit_end() clipped, and factors; fragment -1: that edit_sync() did. */
void edit_describe_clipped(const struct edit *x, int fragment, struct str *out);
/* Returns the fragment that is due for edit_begin() after a number of local steps, or -1. Each
 * fragment is due once per interval, and its edit_end() `delay` steps later. */
int edit_due(const struct edit *x, int64_t local_steps);
bool edit_in_flight(const struct edit *x, int fragment);
/* Waits for the messages in flight. */
void edit_wait(struct edit *x);
/* Returns true if units may be used before edit_end(), each after edit_complete_unit(). */
bool edit_completes_by_unit(const struct edit *x);
/* Waits for a unit's exchange and updates its parameters, if that has not been done in this
 * synchronization. Collective over the ranks of the worker that have the unit, i.e. its pipeline
 * stage. */
void edit_complete_unit(struct edit *x, int unit);
/* Completes the unit of a tied weight, which is on two stages: these stages call it before the
 * pipeline begins. Does nothing without a tied weight. */
void edit_complete_tied(struct edit *x);

int64_t edit_syncs(const struct edit *x); /* synchronizations so far */
/* Returns the bytes that this rank sends to other workers in one synchronization. */
int64_t edit_sent(const struct edit *x);

/* Returns the size in doubles of this worker's state, beyond the store's groups. */
int64_t edit_state_size(const struct edit *x);
/* Copies this worker's state to out[edit_state_size()], all finite, for a checkpoint. */
void edit_state_export(const struct edit *x, double *out);
/* Restores the state from edit_state_export(), after local steps. Fails if it is invalid. */
int edit_state_restore(
	struct edit *x, const double *in, int64_t local_steps, struct err *e);

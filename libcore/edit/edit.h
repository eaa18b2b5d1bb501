/*
 * edit: workers that train apart and come to agree. EDiT (Cheng et al. 2024,
 * arXiv:2412.07210), and what it contains: Post-Local-SGD (Lin et al. 2018), DiLoCo
 * (Douillard et al. 2023).
 *
 * A worker is a mesh of ranks that has a whole model; within it everything is as ever, and no
 * bit depends on its layout. Ranks at the same place of all workers form the sync group. Where
 * they come to agree, each worker brings its pseudo-gradient: the anchor, which is the
 * parameters that all had when they last agreed, minus its own parameters. One is made of
 * them, the outer optimizer applies it to the anchor, and all go on from there.
 *
 * Where fewer bytes travel than fp32's, what a worker could not send stays with it, and it
 * brings it next time (error feedback: Seide et al. 2014; Karimireddy et al. 2019).
 *
 * All of that is done element by element, by the canonical tree over the workers, with norms
 * and weights of whole units of the model: whoever has which shard, the bits are the same.
 */
#ifndef EDIT_H
#define EDIT_H

#include "comm/comm.h"
#include "optim/optim.h"
#include "parallel/parallel.h"

/* ---- detect.c: is a norm unlike those before? -------------------------------------- */

struct detect_config {
	double alpha;	  /* gain of the moving mean and variance */
	double threshold; /* of z = (x - mean) / deviation */
	int64_t warmup; /* norms that are taken in before any is judged; the window, too */
};

/*
 * After a norm x that is no outlier: d = x - mean, mean += alpha d,
 * M2 = (1 - alpha) (M2 + alpha d (x - mean)), and z(x) goes into a window of the last `warmup`.
 * An outlier has z > threshold max(1, deviation of the window), or is not finite, and does
 * not change the statistics.
 */
struct detector {
	double mean, m2;
	int64_t count; /* of norms that were taken in */
	double *z;     /* [warmup], the window: z of norm i at i % warmup */
};

void detector_open(struct detector *d, const struct detect_config *c);
void detector_close(struct detector *d);
/* Judges x, and takes it in if it is none. */
bool detector_outlier(struct detector *d, const struct detect_config *c, double x);

/* ---- weigh.c: what a worker counts ------------------------------------------------- */

struct weigh_config {
	bool by_norm;	    /* softmax of -norm / temperature; else all alike */
	double temperature; /* 0: none; alone it makes them sum to 1 */
	bool by_steps;	    /* mixed with the part of the steps that a worker did: */
	double steps_ratio; /* (1 - ratio) weight + ratio part */
};

/* Of n workers those that are `out` get 0, and count nowhere. */
void weigh(const struct weigh_config *c, int n, const double *norm, const bool *out,
	const int64_t *steps, float *weight);

/* ---- edit.c: coming to agree ------------------------------------------------------- */

enum edit_reducer { EDIT_MEAN, EDIT_LINEAR, EDIT_GTA };
#define EDIT_REDUCER_WORDS "none", "linear", "gta"
enum edit_sparsify { EDIT_DENSE, EDIT_MAGNITUDE, EDIT_RANDOM, EDIT_RESCALED_RANDOM };
#define EDIT_SPARSIFY_WORDS "none", "magnitude", "random", "rescaled-random"
/* How floats travel to another worker, and back. */
enum edit_wire { EDIT_WIRE_FP32, EDIT_WIRE_BF16, EDIT_WIRE_INT8, EDIT_WIRE_SPARSE };
#define EDIT_WIRE_WORDS "fp32", "bf16", "int8", "sparse"
enum edit_outer { EDIT_OUTER_NONE, EDIT_OUTER_SGD, EDIT_OUTER_ADAMW };
#define EDIT_OUTER_WORDS "none", "sgd", "adamw"

struct edit_config {
	enum edit_reducer reducer;
	bool normalize; /* by the weights that take part */
	enum consensus consensus;
	enum edit_sparsify sparsify;
	double density; /* the part of each row's elements that is kept */
	bool by_unit;	/* norms, anomalies and clipping of each unit; else of all */
	struct weigh_config weigh;
	bool skip_anomaly;
	struct detect_config detect;
	double clip; /* the norm that is kept to; 0: none */
	enum edit_outer outer;
	double lr, momentum, beta1, beta2, eps, decay;
	bool nesterov;
	enum edit_wire wire; /* other than fp32 only with an anchor */
	double wire_density; /* sparse: the part of each row's elements that travels */
	/* Streaming: units are synchronised in so many fragments, one at a time; with a delay
	 * training goes on until what was made has come, and of what a worker did meanwhile it
	 * keeps a part: p = keep p + (1 - keep) anchor (Douillard et al. 2025,
	 * arXiv:2501.18512). */
	int fragments;
	int64_t interval, delay; /* steps, see edit_due(); a delay only with an anchor */
	double keep;
	uint64_t seed;
};

/* Adds the groups that it needs to those of the store: the anchor, state of the outer optimizer,
 * what could not be sent yet (residual), what is sent while training goes on (pending). Without
 * an outer optimizer or a reducer, parameters are averaged and there is no anchor. */
void edit_add_groups(const struct edit_config *c, struct store_groups *g);

/* What happened, as this worker saw it. */
struct edit_result {
	double norm;	  /* of its pseudo-gradient, all of it; NAN without an anchor */
	double weight;	  /* its own, the mean over units */
	int anomalies;	  /* units of it that were left out */
	int all_left_out; /* units that nobody brought anything for */
	double clip;	  /* the smallest factor */
	double reduced;	  /* norm of what was made of all, before clipping */
};

struct edit;

/* `world` is the worker's ranks, `sync` the same place in all workers; their rank there is
 * the worker's number. The store is the worker's, with the groups of edit_add_groups(). Everything
 * stays the caller's, and may be measuring or planned. */
struct edit *edit_open(const struct edit_config *c, struct comm *world, struct comm *sync,
	struct store *s, struct device *d);
void edit_free(struct edit *x);
/* Bytes of memory that it needs beside the store. */
int64_t edit_bytes(const struct edit *x);
/* The parameters, which all workers have, become the anchor. */
void edit_anchor(struct edit *x);
/* Collective over all workers. Until they part: the gradient of each becomes the mean. */
void edit_mean_gradient(struct edit *x);
/* Collective over all workers: is it so in any of them? */
bool edit_any(struct edit *x, bool mine);
/* Collective over all workers: all of it, now. `steps`: of this worker since the last time. */
void edit_sync(struct edit *x, int64_t steps, struct edit_result *r);
/*
 * Collective, each. A fragment in two parts. Between them pieces are on their way, in the
 * background, and without a delay the parameters of the fragment may not be used. `r` gets at
 * first what this worker brings, and in the end what was made of all.
 */
void edit_begin(struct edit *x, int fragment, int64_t steps, struct edit_result *r);
void edit_end(struct edit *x, int fragment, struct edit_result *r);
int edit_fragments(const struct edit *x);
/* Which fragment has its turn after so many steps apart; -1: none. In an interval each has one,
 * and `delay` steps later it has to end. */
int edit_due(const struct edit *x, int64_t apart);
bool edit_is_begun(const struct edit *x, int fragment);
/* Waits until nothing is on its way; nothing else changes. */
void edit_settle(struct edit *x);
/* May units be used between the two parts, each after edit_arrive()? It is collective over
 * the worker, and made by all its ranks in the same order. */
bool edit_arrives_by_unit(const struct edit *x);
void edit_arrive(struct edit *x, int unit);

int64_t edit_syncs(const struct edit *x); /* so far */
/* What this rank sends to other workers in one: of n floats 2 (workers - 1) / workers n, as
 * a ring's all-reduce does, or (workers - 1) times what sparse rows keep of n; and three
 * numbers for each norm. */
int64_t edit_sent(const struct edit *x);

/* What a checkpoint keeps beside the store's groups: numbers of this worker, all that there
 * are. `put` takes what `get` gave, after so many steps apart. */
int64_t edit_state_size(const struct edit *x);
void edit_state_get(const struct edit *x, double *out);
int edit_state_put(struct edit *x, const double *in, int64_t apart, struct err *e);

#endif

/* planner: finds the parallel layout that trains a model fastest on a cluster. All layouts are
 * enumerated. pt's layouts are planned by the code that trains (plan/plan.h), unless lower bounds
 * exclude them. Layouts of other trainers are estimated by formulas. No call is collective. */
#pragma once

#include "engine/options.h"
#include "model/model.h"
#include "plan/cluster.h"
#include "plan/plan.h"
#include "plan/trainers.h"

/* ---- estimate.c: memory and time of other trainers' layouts, by formulas ----------------- */

/* Shapes of a decoder. */
struct shape {
	double layers, dim, heads, q_dim, kv_dim, ffn_dim, vocab, context;
	double attended;	 /* model_attended() */
	double block, embedding; /* parameters of a block; of an embedding or a head */
	double active;		 /* parameters of a block that compute a token */
	bool gated, tied, head_norms;
};

/* A layout, and the settings that are searched with it. */
struct layout {
	int degree[N_AXES];
	int zero, schedule, recompute;
	int reshard;		 /* enum reshard */
	int ep;			 /* ranks that divide the experts; 0: a dense model */
	int stages, micro_batch; /* stages per rank; sequences */
	int tile;		 /* pieces of a layer; 0: gathered whole */
	int offload;		 /* enum offload */
	int64_t n_micro;	 /* micro-batches of a data-parallel rank per step */
	int host_ranks;		 /* ranks per host; 0: one host */
};

/* Bytes of the rank with the largest total. */
struct memory {
	double params, grads, gathered, optimizer, activations, scratch, other, total;
	double host; /* offloaded state in the memory of a GPU's host; only in exact plans */
};

/* Seconds of a step. */
struct times {
	double computation, exposed, bubble, rest, step;
	double copies;	     /* copies of offloaded state, without computation */
	double axis[N_AXES]; /* communication along each axis, without computation */
};

/* Sets *s to the sizes of a model that estimates need: widths, and parameters of its parts. */
void shape_init(struct shape *s, const struct model *m);
/* Returns how many ranks of a group are on one host. stride: distance of neighbors in world
 * ranks. */
int host_ranks_of(const struct cluster *c, int ranks, int stride);
/* Returns the maximum number of micro-batches that a pipeline rank keeps in its stages. */
double max_in_flight(const struct layout *l, int rank);
/* Returns true if data-parallel ranks sum gradients, and so wait, in each micro-batch. */
bool reduces_each_micro_batch(const struct layout *l);
/* Sets *out to estimated bytes of the first pipeline rank, by formulas. */
void estimate_memory(const struct shape *s, const struct layout *l,
	const struct practice *p, struct memory *out);
/* Sets *out to the estimated seconds of a step, by formulas. peak: FLOP/s of matmuls, before the
 * cluster's efficiency. */
void estimate_time(const struct shape *s, const struct layout *l, const struct cluster *c,
	const struct practice *p, double peak, struct times *out);

/* ---- settings.c: a layout as options of pt-train ------------------------------------------ */

enum setting_kind {
	SET_MICRO_BATCH,
	SET_PP,
	SET_DP,
	SET_FSDP,
	SET_CP,
	SET_TP,
	SET_EP,
	SET_ZERO,
	SET_RESHARD,
	SET_SCHEDULE,
	SET_STAGES,
	SET_RECOMPUTE,
	SET_TILE,
	SET_OFFLOAD,
	N_SETTINGS
};

/* Returns true if `word` is "key=value" with the key of a setting. */
bool is_setting(const char *word);
/* Copies all settings of a layout to the options of pt-train. */
void layout_to_options(const struct layout *l, struct train_opts *o);
/* Prints " micro-batch=1 pp=1 ..."; ep, tile and offload only if the layout or `given` has them. */
void layout_print(
	const struct layout *l, const struct train_opts *given, struct str *out);

/* The values of --only, to which a search is restricted; a setting without values is free. */
enum { MAX_ONLY = 64 };
struct only {
	struct only_item {
		enum setting_kind kind;
		int value;
	} item[MAX_ONLY];
	int n;
};

/* Parses "KEY=VALUE,KEY=VALUE,..."; a key may have several values. NULL or "": no restriction. */
int only_parse(const char *text, struct only *o, struct err *e);
/* Sets value[] to the values of a setting, and returns their number. */
int only_values(const struct only *o, enum setting_kind kind, int value[static MAX_ONLY]);
/* Returns true if "key=value" has no effect: the search decides it, and --only does not have it. */
bool is_setting_ignored(const struct only *o, const char *word);
bool only_allows(const struct only *o, const struct layout *l);

/* ---- candidates.c: all layouts of a number of ranks -------------------------------------- */

struct space {
	const struct model *m;
	const struct only *only;
	int ranks, host_ranks;
	int64_t batch;		   /* sequences per step */
	const int *tile, *offload; /* values to try of these settings */
	int n_tiles, n_offloads;
};

/* Calls `visit` for every layout of the space. Returns the number of layouts. */
int64_t visit_layouts(const struct space *s,
	void (*visit)(void *ctx, const struct layout *l), void *ctx);

/* ---- search.c ------------------------------------------------------------------------------ */

struct request {
	const char *model;	    /* name from the user */
	const struct train_opts *o; /* model, batch, dtype and device */
	struct model *m;
	struct cluster cluster;
	enum trainer_kind trainer;
	struct only only;
	int hosts, ranks;
	int64_t limit; /* bytes of memory per rank; 0: none */
	int64_t show,
		exact; /* layouts to list; to plan (0: all; -1: for a few seconds) */
};

/* The source of the memory and the time of a layout. */
enum planned {
	BY_FORMULAS,	 /* for pt: lower bounds */
	BY_FEWER_LAYERS, /* plans of models with fewer layers, extrapolated */
	BY_WHOLE_PLAN	 /* a plan of the whole model */
};

struct choice {
	struct layout l;
	struct memory memory;
	struct times times;
	enum planned planned;
	double work;			/* work of planning it, see planning_work() */
	bool dropped;			/* exceeds the memory, or rejected by pt-train */
	double bound_bytes, bound_step; /* by the formulas */
	double likely_step; /* seconds, in the middle of the band of the time */
	bool tight;	    /* above the limit at the upper end of the memory's band */
};

struct search {
	struct choice *best; /* [n], by likely_step, tight ones last */
	int64_t n;
	int64_t enumerated, fitting, rejected, planned; /* counts of layouts */
	int64_t extrapolated; /* planned layouts with fewer layers */
	int64_t replanned;    /* extrapolated layouts that were also planned whole */
	bool proved; /* the bounds of all unlisted layouts exceed the listed times */
	double time_error,
		memory_error; /* largest extrapolation errors of replanned layouts */
	double seconds;
	struct err rejection; /* the message of pt-train for the first rejected layout */
	struct choice least;  /* layout with the least memory, by the formulas */
};

/* Returns -1 with *e set if no layout divides the batch. */
int search_run(const struct request *r, struct search *s, struct err *e);
void search_release(struct search *s);

/* ---- exact.c: plans by the code that trains ------------------------------------------------- */

/* Each of these returns -1 with *e set if pt-train rejects the layout. */

/* Plans the memory of the rank with the largest total. */
int plan_memory(const struct request *r, const struct layout *l, struct memory *out,
	struct err *e);
/* Plans the memory and, if it fits, the time of c->l with all layers. */
int exact_plan(const struct request *r, struct choice *c, struct err *e);
/* Extrapolates from plans of fewer layers, or plans all layers if that is not more work. */
int plan_quickly(const struct request *r, struct choice *c, struct err *e);
bool fits_limit(const struct request *r, const struct memory *m);
/* Returns the work of a plan, in passes through blocks and messages: 30,000 take a second. */
double planning_work(const struct request *r, const struct layout *l, bool quickly);

/* The cost of a block, or of the embedding, the head and all else that a model has once, on ranks
 * that divide only its tensors and sequences. Many layouts share it. */
struct part_cost {
	double values, copies; /* bytes of the parameters in fp32, and in 16 bits */
	double optimizer, activations, scratch; /* bytes */
	/* seconds per micro-batch, more per step, and after the last micro-batch */
	double micro, once, update;
};
struct shared_part {
	struct part_cost block, ends;
};
/* Computes the costs of a block, a mean of both kinds, and of all else from plans of small
 * models, with the layout's tp, cp, micro-batch and recompute. All experts are on a rank.
 * Returns -1 if pt-train rejects them. */
int measure_shared_costs(
	const struct request *r, const struct layout *l, struct shared_part *out);

/* ---- bounds.c: lower bounds of memory and time of pt's layouts ------------------------------- */

/* A cache of planned parts. */
struct bounds {
	const struct request *r;
	struct known_part *known; /* [capacity], a hash table */
	int64_t n, capacity;
	double experts; /* fraction of a block's parameters */
	int **split; /* [layers + 1]: layout_split() for this number of stages, or NULL */
};

void bounds_init(struct bounds *b, const struct request *r);
/* Sets c->memory and c->times to lower bounds for c->l. */
void bounds_compute(struct bounds *b, struct choice *c);
void bounds_release(struct bounds *b);

/* ---- explain.c: which parallelism the model needs, and why ---------------------------------- */

/* Appends which parallelism the memory, the batch and the network need, and what fits. */
void explain_choice(const struct request *r, const struct search *s, struct str *out);

/* ---- goodput.c: the fraction of the time that trains ----------------------------------------- */

struct reliability {
	double failures;   /* per hour, of the whole job */
	double checkpoint; /* seconds that a checkpoint stops training */
	double interval;   /* seconds of training between checkpoints; 0: the optimum */
	double restart;	   /* seconds from a failure to the first step */
	double slow,
		probability; /* a straggler's slowdown; its probability per rank and step */
};

struct goodput {
	double interval; /* seconds */
	double slowdown; /* expected time of a step over its time without stragglers */
	double fraction; /* fraction of the time that trains at full speed */
};

/* Computes the goodput by the formulas of Daly, A higher order estimate of the optimum checkpoint
 * interval for restart dumps, 2006. */
void goodput_compute(
	const struct reliability *x, int ranks, double step, struct goodput *g);
/* Simulates `hours` with random failures and stragglers (Philox). */
void goodput_simulate(const struct reliability *x, int ranks, double step, double hours,
	uint64_t seed, struct goodput *g);

/* ---- timeline.c ----------------------------------------------------------------------------- */

struct straggling {
	const struct reliability *job;
	uint64_t seed;
	bool together; /* pipelines wait for each other, see reduces_each_micro_batch() */
};

/* A step with stragglers, of at most 64 micro-batches. */
struct straggled {
	int64_t pipelines, slow; /* number; number with stragglers (`together`: 0 or 1) */
	int64_t slowest;	 /* the pipeline that takes longest, or the first one */
	double step, without;	 /* seconds, with and without stragglers */
};

/* Sets *out to the slowest step of all pipelines. */
void straggled_step(
	const struct choice *c, const struct straggling *x, struct straggled *out);
/* Draws a step of the slowest pipeline. */
void print_straggled_step(const struct request *r, const struct choice *c,
	const struct straggling *x, int width, struct str *out);

/* ---- report.c ------------------------------------------------------------------------------- */

/* Prints "fsdp=64 tp=8 pp=4 interleaved,2 mb=1 full". */
void report_layout(const struct layout *l, struct str *out);
/* Prints a line with the model, the trainer and the cluster. */
void report_header(const struct request *r, struct str *out);
/* Appends the table of the best r->show layouts, and what its marks mean. */
void report_table(const struct request *r, const struct search *s, struct str *out);
void report_counts(const struct search *s, struct str *out);
/* Prints memory by kind and communication by axis for each layout. */
void report_details(const struct request *r, const struct search *s, struct str *out);
/* Appends the request, the counts and the best layouts as a JSON object. Returns -1 with
 * *e set. */
int report_json(const struct request *r, const struct search *s, const char *given,
	struct str *out, struct err *e);
/* Prints the arguments of pt-train: `given`, the batch, and the settings of the layout. */
void report_arguments(const struct request *r, const struct layout *l, const char *given,
	struct str *out);

/*
 * planner: which parallel layout trains a model fastest on a cluster, and does it fit? Layouts are
 * enumerated; those of pt are planned by the code that trains (plan/plan.h), except those that are bound to need or to
 * take more, and those of other trainers are estimated by closed formulas. No call is collective.
 */
#pragma once

#include "engine/options.h"
#include "model/model.h"
#include "plan/cluster.h"
#include "plan/plan.h"
#include "plan/trainers.h"

/* ---- estimate.c: memory and time of a layout of other trainers, by formulas -------------- */

/* Shapes of a decoder. */
struct shape {
	double layers, dim, heads, q_dim, kv_dim, ffn_dim, vocab, context;
	double attended;	 /* model_attended() */
	double block, embedding; /* parameters of a block, and of an embedding or head */
	bool gated, tied, head_norms;
};

/* A layout, and what is chosen with it. */
struct layout {
	int degree[N_AXES];
	int zero, schedule, recompute;
	int reshard;		 /* enum reshard */
	int stages, micro_batch; /* stages of a rank */
	int tile;		 /* pieces of a layer; 0: it is gathered whole */
	int offload;		 /* enum offload */
	int64_t n_micro;	 /* of a data-parallel rank in a step */
	int host_ranks;		 /* of the cluster; 0: one host */
};

/* Bytes of the rank that needs most. */
struct memory {
	double params, grads, gathered, optimizer, activations, scratch, other, total;
	double host; /* of a GPU's host, where state is offloaded to; in exact plans only */
};

/* Seconds of a step. */
struct times {
	double computation, exposed, bubble, rest, step;
	double copies; /* of offloaded state, alone; exposed if the rest takes less */
	double axis[N_AXES]; /* communication along each axis, alone */
};

void shape_of(struct shape *s, const struct model *m);
/* The ranks of a group that are on one host, if neighbours are `stride` ranks of the world apart. */
int ranks_here(const struct cluster *c, int ranks, int stride);
/* Micro-batches that a rank of the pipeline keeps at a time, in its stages. */
double in_flight(const struct layout *l, int rank);
/* Do data-parallel ranks wait for each other in each micro-batch, whose gradients they sum? */
bool estimate_waits(const struct layout *l);
void estimate_memory(const struct shape *s, const struct layout *l,
	const struct practice *p, struct memory *out);
/* peak: FLOP/s of matmuls, with the efficiency of the cluster. */
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
	SET_ZERO,
	SET_RESHARD,
	SET_SCHEDULE,
	SET_STAGES,
	SET_RECOMPUTE,
	SET_TILE,
	SET_OFFLOAD,
	N_SETTINGS
};

/* Is the key of "key=value" that of a setting? */
bool setting_named(const char *word);
void layout_to_options(const struct layout *l, struct train_opts *o);
/* " micro-batch=1 pp=1 ...": tile and offload only if the layout or the given options have them. */
void layout_print(
	const struct layout *l, const struct train_opts *given, struct str *out);

/* Values to which a search is restricted; a setting without any is free. */
enum { MOST_ONLY = 64 };
struct only {
	struct only_item {
		enum setting_kind kind;
		int value;
	} item[MOST_ONLY];
	int n;
};

/* "KEY=VALUE,KEY=VALUE,...", of which a key may have several; NULL or "": nothing is restricted. */
int only_parse(const char *text, struct only *o, struct err *e);
/* Returns the number of values of a setting. */
int only_values(
	const struct only *o, enum setting_kind kind, int value[static MOST_ONLY]);
/* Is "key=value" a setting that a search decides, and is no value of it in *o? */
bool only_lacks(const struct only *o, const char *word);
bool only_allows(const struct only *o, const struct layout *l);

/* ---- candidates.c: the layouts of a number of ranks -------------------------------------- */

struct space {
	const struct model *m;
	const struct only *only;
	int ranks, host_ranks;
	int64_t batch;		   /* sequences of a step */
	const int *tile, *offload; /* values of these settings */
	int n_tiles, n_offloads;
};

/* Calls `take` for every layout of the space. Returns their number. */
int64_t candidates(const struct space *s,
	void (*take)(void *with, const struct layout *l), void *with);

/* ---- search.c ------------------------------------------------------------------------------ */

struct request {
	const char *model;	    /* as the user names it */
	const struct train_opts *o; /* model, batch, dtype and device */
	struct model *m;
	struct cluster cluster;
	enum trainer_kind trainer;
	struct only only;
	int hosts, ranks;
	int64_t limit; /* bytes of memory of a rank */
	int64_t show,
		exact; /* layouts that are listed, and planned exactly (0: all; -1: a few
					seconds' worth) */
};

/* How the memory and the time of a layout are known. */
enum planned {
	BY_FORMULAS, /* of pt: a bound, and the layout needs and takes at least as much */
	BY_FEWER_LAYERS, /* by the code that trains, extrapolated from models of fewer layers */
	BY_WHOLE_PLAN /* by the code that trains */
};

struct choice {
	struct layout l;
	struct memory memory;
	struct times times;
	enum planned planned;
	double work;  /* of its plans: see exact_work() */
	bool dropped; /* needs more memory than there is, or is refused */
	double least_bytes, least_step; /* by the formulas */
	double likely_step; /* seconds, in the middle of the band of the time */
	bool tight; /* within the limit, but not if it needs as much as its band says */
};

struct search {
	struct choice *best; /* [n], by the middles of bands, tight ones last */
	int64_t n;
	int64_t enumerated, fitting, refused, planned; /* counts */
	bool proved; /* the bounds of all others are above the times that are listed */
	int64_t extrapolated; /* of those planned, by fewer layers */
	int64_t again;	      /* of these, planned whole, too */
	/* The largest error of their extrapolated step time and memory. */
	double time_error, memory_error;
	double seconds;
	struct err refusal; /* what pt-train said of the first one that it refused */
	struct choice
		least; /* of all, the one that needs least memory, by the formulas */
};

/* -1 with *e set: the ranks cannot divide the batch. */
int search_run(const struct request *r, struct search *s, struct err *e);
void search_free(struct search *s);

/* ---- exact.c: plans by the code that trains ------------------------------------------------- */

/* The memory of the rank that needs most. -1 with *e set: pt-train refuses the layout. */
int exact_memory(const struct request *r, const struct layout *l, struct memory *out,
	struct err *e);
/* And the time, if it fits. */
int exact_plan(const struct request *r, struct choice *c, struct err *e);
/* Extrapolates from plans of fewer layers; or plans the whole, if that is not more work. */
int exact_plan_quickly(const struct request *r, struct choice *c, struct err *e);
bool exact_fits(const struct request *r, const struct memory *m);
/* The work of such a plan, in passes through blocks and their messages: 30,000 take a second. */
double exact_work(const struct request *r, const struct layout *l, bool quickly);

/* What layouts have in common: a model on ranks that divide its tensors and sequences only, and have all else
 * of it alone. Of a block, or of the embedding, the head and what there is once. */
struct part_cost {
	double values, copies; /* bytes of fp32 parameters, and of those in 16 bits */
	double optimizer, activations, scratch; /* bytes */
	/* seconds of a micro-batch, and more in a step; and after the last one */
	double micro, once, update;
};
struct shared_part {
	struct part_cost block, ends;
};
/* Of the layout's ranks of tp and cp, its micro-batch, whether a step has several, and its recomputation. -1: pt-train refuses them. */
int exact_part(const struct request *r, const struct layout *l, struct shared_part *out);

/* ---- bounds.c: what a layout of pt needs and takes at least ---------------------------------- */

/* The parts that were planned. */
struct bounds {
	const struct request *r;
	struct known_part *known; /* [room], a hash table */
	int64_t n, room;
	int **split; /* [layers + 1]: layout_split() of so many stages, or NULL */
};

/* Sets c->memory and c->times for c->l. Within the limit of memory, the bound of the time; above, no time. */
void bounds_of(struct bounds *b, struct choice *c);
void bounds_free(struct bounds *b);

/* ---- explain.c: what to do, in which order, and why ---------------------------------------- */

void explain_choice(const struct request *r, const struct search *s, struct str *out);

/* ---- goodput.c: the part of the time that trains -------------------------------------------- */

struct reliability {
	double failures;   /* per hour, of the whole job */
	double checkpoint; /* seconds that a checkpoint stops training */
	double interval;   /* seconds of training between checkpoints; 0: the best */
	double restart;	   /* seconds from a failure to the first step */
	double slow,
		probability; /* a straggler's factor, and its probability for a rank and step */
};

struct goodput {
	double interval; /* seconds */
	double slowdown; /* of a step by stragglers: expected time over the time without */
	double fraction; /* of time that trains at full speed */
};

/* By formulas: Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
 * 2006. */
void goodput_expect(
	const struct reliability *x, int ranks, double step, struct goodput *g);
/* By a simulation of `hours`, of random failures and stragglers (Philox). */
void goodput_simulate(const struct reliability *x, int ranks, double step, double hours,
	uint64_t seed, struct goodput *g);

/* ---- timeline.c ----------------------------------------------------------------------------- */

struct straggling {
	const struct reliability *job;
	uint64_t seed;
	bool together; /* pipelines wait for each other in each micro-batch: see estimate_waits() */
};

/* A step of at most 64 micro-batches. */
struct straggled {
	int64_t pipelines,
		slow;	      /* those with stragglers; of pipelines that wait, 0 or 1 */
	int64_t slowest;      /* the pipeline that takes longest, or the first one */
	double step, without; /* seconds, with its stragglers and without */
};

void timeline_find(
	const struct choice *c, const struct straggling *x, struct straggled *out);
/* Also draws the slowest pipeline. */
void timeline_print(const struct request *r, const struct choice *c,
	const struct straggling *x, int width, struct str *out);

/* ---- report.c ------------------------------------------------------------------------------- */

/* "fsdp=64 tp=8 pp=4 interleaved,2 mb=1 full" */
void report_layout(const struct layout *l, struct str *out);
/* A line that says what was searched. */
void report_header(const struct request *r, struct str *out);
void report_table(const struct request *r, const struct search *s, struct str *out);
void report_counts(const struct search *s, struct str *out);
/* Memory by kind, and communication by axis, of each layout. */
void report_details(const struct request *r, const struct search *s, struct str *out);
int report_json(const struct request *r, const struct search *s, const char *given,
	struct str *out, struct err *e);
/* The arguments of pt-train: `given`, those of the model, and those of the layout. */
void report_arguments(const struct request *r, const struct layout *l, const char *given,
	struct str *out);

/* For the files of compare/verdict.h only: aligned curves, units of runs, estimates. */
#pragma once

#include "compare/compare.h"
#include "compare/verdict.h"
#include "stats/stats.h"

enum set { CONTROL, TEST };

/* The least correlation of the noise of two runs that read the same batches. */
static const double SHARED_NOISE = 0.7;

/* Fewer rows allow no statement about a curve; several runs of each set need fewer. */
enum { LEAST_ROWS = 8, LEAST_OF_REPLICAS = 4 };

/* How a curve was printed: the most significant digits of a value, and the most behind the decimal point. */
struct digits {
	int digits, decimals;
};

#define FLOAT_RESOLUTION 0x1p-24
struct judging {
	const struct run_log *const *log[2]; /* the controls without those left out */
	int n_runs[2];
	const struct run_log *first; /* the first control that was given */
	const struct run_log **kept; /* log[CONTROL] */
	int64_t n_ending; /* rows that are missing at the end, if they are few */
	struct str
		ending; /* "the control ends 8 steps earlier"; judging_free() does not free it */
	struct str left_out; /* "a ends at step 50, so it is not used"; empty: none */
	const struct judge_opts *o;
	struct curves all;    /* the rows that all runs have */
	struct curves finite; /* those of them whose values are finite */
	enum design design;
	int *unit
		[2]; /* [n_runs]: the unit of each run, -1: in none; paired units have one number */
	int n_units[2];
	int n_seeds[2]; /* of DESIGN_ALONE: how many runs of each set are independent */
	struct properties *stated; /* [n_control + n_test] */
	int *cluster; /* [n_control + n_test]: runs with one number read the same batches */
	struct digits *grid;  /* [n_control + n_test] */
	double noise_of_loss; /* of evaluations whose logs have a loss; relative */
	double resolution; /* of the values of these curves, relative: at least that of a float */
};

static inline const char *by_name(const struct judging *j)
{
	return columns[j->o->by].name;
}

static inline bool is_evaluation(const struct judging *j)
{
	return j->o->column == COL_VAL_LOSS || j->o->column == COL_VAL_BPB;
}

static inline const char *column_name(const struct judging *j)
{
	int c = j->o->column;
	return c < N_COLUMNS ? columns[c].name : j->first->column[c].name;
}

/* One unit of each set. */
static inline bool is_single(const struct judging *j)
{
	return j->design == DESIGN_SAME_BATCHES || j->design == DESIGN_ALONE;
}

static inline const double *curve_of(const struct curves *c, enum set s, int run)
{
	return c->v[s] + (int64_t)run * c->n;
}

/* ---- comparable.c ---------------------------------------------------------------- */

/* The properties that may keep runs from being compared, then others. */
enum property {
	KEY_DATA,
	KEY_BATCH,
	KEY_CONTEXT,
	KEY_TOKENS,
	KEY_SAMPLING,
	KEY_PACKING,
	KEY_WARMUP,
	KEY_ARCH,
	KEY_LAYERS,
	KEY_HEADS,
	KEY_KV_HEADS,
	KEY_DIM,
	KEY_FFN_DIM,
	KEY_ACT,
	KEY_BIAS,
	KEY_TIE,
	KEY_PARAMETERS,
	N_COMPARED,
	KEY_SEED = N_COMPARED,
	KEY_DATA_PER_RANK,
	KEY_ASYNC,
	KEY_NUMERICS,
	N_PROPERTIES
};

/* What a log states; empty: nothing. Longer values are cut, equally in all logs. */
struct properties {
	char value[N_PROPERTIES][64];
};

void properties_of(const struct run_log *l, struct properties *p);
/* 1: both state the same data and order of samples; 0: different ones; -1: one does not state it. */
int same_batches(const struct properties *a, const struct properties *b);
/* Equal bits are to be expected of the runs. */
bool same_arithmetic(const struct run_log *a, const struct run_log *b);

/* ---- direction.c ----------------------------------------------------------------- */

/* Returns true if a test ends where it has lost what it had learnt, and no control does. */
bool lost_what_was_learnt(const struct judging *j, int sense, struct str *why);
/* Returns the verdict about a difference that was shown; sets r->direction and appends to the
 * reason. */
enum verdict judge_direction(const struct judging *j, struct verdict_result *r);
/* Returns true if the tests are shown to be worse by less than the margin, if at all. */
bool is_not_worse(const struct verdict_result *r);

/* ---- align.c --------------------------------------------------------------------- */

/* Opens the curves, units and design of the runs; judging_free() frees them. Rows are judged where all
 * runs have a finite value; so a control that ends before the others, or has values that are not
 * finite, is left out if others are there. */
void judging_init(struct judging *j, const struct run_log *const *control, int n_control,
	const struct run_log *const *test, int n_test, const struct judge_opts *o);
void judging_free(struct judging *j);

/* ---- batches.c ------------------------------------------------------------------- */

/* Sets the digits of the curves, and the clusters of runs that read the same batches. Runs have numbers: the controls, then the tests. */
void find_clusters(struct judging *j);
/* The first run of the control that reads the batches of a run of the test; -1: none. */
int partner_of(const struct judging *j, int test);
/* Correlation of the first differences of two curves in n rows, without what rounding takes from it; NaN if that
 * says nothing about their batches: too few rows, or a curve that is smooth, or printed with too few digits. */
double noise_correlation(
	const struct judging *j, int control, int test, int64_t from, int64_t n);
/* Do the errors of rounding average out in rows from..to - 1, since each curve varies by more than its last digit? */
bool rounding_averages(const struct judging *j, int64_t from, int64_t to);
/* Are half of n values equal, within the rounding of the logs? By chance they are not, if the noise is larger than
 * that. */
bool share_values(
	const struct judging *j, int control, int test, int64_t from, int64_t n);

/* ---- judge.c ---------------------------------------------------------------------- */

/* The control that most values of a test are equal to, and how many are not. */
int nearest_control(const struct judging *j, int test, int64_t *n_differ);

/* ---- diverge.c -------------------------------------------------------------------- */

/* A test has a value that is not finite where the controls' are. Like the following: true sets the
 * onset and appends the reason. */
bool turns_nonfinite(const struct judging *j, struct verdict_result *r);
/* The logs state the same arithmetic, and the bits differ. */
bool should_be_identical(const struct judging *j, struct verdict_result *r);
/* The probability of a false alarm in one of the first blocks. */
double level_of_look(const struct verdict_result *r);
/* By statistics; sets r->found_higher and r->found_lower. */
bool differs(const struct judging *j, struct verdict_result *r, struct str *reason);

/* ---- equivalent.c ----------------------------------------------------------------- */

/* Estimates the differences at the end, and their margins. */
void estimate_end(const struct judging *j, struct verdict_result *r);
bool is_equivalent(const struct verdict_result *r);
/* Append the difference at the end; its margin; or of what is not settled both, and what would
 * settle it. */
void explain_end(const struct judging *j, struct verdict_result *r);
void explain_margin(struct verdict_result *r);
void explain_undecided(const struct judging *j, struct verdict_result *r);
double fraction_of_loss(
	const struct judging *j, double fraction, int64_t from, int64_t to);
/* A part of the control's loss. */
static const double DEFAULT_MARGIN = 0.005;

/* ---- spikes.c --------------------------------------------------------------------- */

void find_spikes(const struct judging *j, struct verdict_result *r);

/* ---- estimate.c ------------------------------------------------------------------ */

enum functional { MEAN, SLOPE };
/* The difference, test - control, of the mean or the slope in rows [from, to). */
struct estimate estimate_difference(
	const struct judging *j, int64_t from, int64_t to, enum functional f);
/* The mean of all units of a set in these rows, and the standard deviation between them. */
double set_mean(const struct judging *j, enum set s, int64_t from, int64_t to);
double set_sd(const struct judging *j, enum set s, int64_t from, int64_t to);

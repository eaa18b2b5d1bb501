/* Aligned curves, units of runs and estimates, for the implementation of compare/verdict.h only. */
#pragma once

#include "compare/compare.h"
#include "compare/verdict.h"
#include "stats/stats.h"

enum set { CONTROL, TEST };

/* The minimum correlation of the noise of two runs that read the same batches. */
static const double SHARED_NOISE = 0.7;

/* The minimum number of rows for statistics, with one run per set and with several. */
enum { MIN_ROWS = 8, MIN_ROWS_OF_REPLICAS = 4 };

/* How a curve was printed: the maximum number of significant digits, and of decimal places. */
struct digits {
	int digits, decimals;
};

#define FLOAT_RESOLUTION 0x1p-24
/* The runs and curves that judge() works on. */
struct judging {
	const struct run_log *const *log[2]; /* without the controls that are left out */
	int n_runs[2];
	const struct run_log *first; /* the first control that was given */
	const struct run_log **kept; /* log[CONTROL] */
	int64_t n_ending;    /* rows that are missing at the end, if they are few */
	struct str ending;   /* "the control ends 8 steps earlier"; moves to the result */
	struct str left_out; /* "a ends at step 50, so it is not used"; empty: none */
	const struct judge_opts *o;
	struct curves all;    /* the rows that all runs have */
	struct curves finite; /* the rows of `all` with finite values */
	enum design design;
	int *unit[2]; /* [n_runs]: unit of each run; -1: none. Pairs share a number. */
	int n_units[2];
	int n_seeds[2];		   /* with DESIGN_ALONE: independent runs in each set */
	struct properties *stated; /* [n_control + n_test]: what each log states */
	int *cluster; /* [n_control + n_test]: equal for runs that read the same batches */
	struct digits *grid; /* [n_control + n_test]: how each curve was printed */
	double noise_of_loss; /* relative noise of the training loss; for evaluations, if logged */
	double resolution; /* relative resolution of logged values: at least FLOAT_RESOLUTION */
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

/* Returns true if each set has one unit. */
static inline bool is_single(const struct judging *j)
{
	return j->design == DESIGN_SAME_BATCHES || j->design == DESIGN_ALONE;
}

static inline const double *curve_of(const struct curves *c, enum set s, int run)
{
	return c->v[s] + (int64_t)run * c->n;
}

/* ---- comparable.c ---------------------------------------------------------------- */

/* Properties that make runs incomparable if they differ, then other properties. */
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

/* What a log states; empty: not stated. Longer values are cut, equally in all logs. */
struct properties {
	char value[N_PROPERTIES][64];
};

/* Reads the properties that a log states; if its text is damaged, only those before the damage. */
void read_properties(const struct run_log *l, struct properties *p);
/* Returns 1 if both logs state the same data and order of samples, 0 if not, -1 if unknown. */
int same_batches(const struct properties *a, const struct properties *b);
/* Returns true if the logs promise equal bits. */
bool same_arithmetic(const struct run_log *a, const struct run_log *b);

/* ---- direction.c ----------------------------------------------------------------- */

/* Returns true if a test has lost by its end what it had learned, and no control has. */
bool lost_what_was_learned(const struct judging *j, int sense, struct str *why);
/* Returns the verdict on a shown difference; sets r->direction, and may append a reason. */
enum verdict judge_direction(const struct judging *j, struct verdict_result *r);
/* Returns true if the tests are shown to be worse by at most the margin. */
bool is_not_worse(const struct verdict_result *r);

/* ---- align.c --------------------------------------------------------------------- */

/* Sets up the curves, units and design of the runs. Only rows where all runs have a finite value
 * are judged. So a control that ends before the other runs, or has values that are not finite, is
 * left out if another control remains. */
void judging_init(struct judging *j, const struct run_log *const *control, int n_control,
	const struct run_log *const *test, int n_test, const struct judge_opts *o);
void judging_release(struct judging *j);

/* ---- batches.c ------------------------------------------------------------------- */

/* Sets j->grid, j->stated, j->resolution, and j->cluster: which runs read the same batches. Runs
 * are numbered: the controls, then the tests. */
void set_clusters(struct judging *j);
/* Returns the first control that reads the same batches as a test; -1: none. */
int find_partner(const struct judging *j, int test);
/* Returns the correlation of the first differences of two curves in n rows, corrected for
 * rounding. NaN if it is not evidence about their batches: too few rows, or a curve that is smooth
 * or printed with too few digits. */
double noise_correlation(
	const struct judging *j, int control, int test, int64_t from, int64_t n);
/* Returns true if rounding averages out in rows [from, to): curves vary by more than a digit. */
bool rounding_averages(const struct judging *j, int64_t from, int64_t to);
/* Returns true if half of n values are equal within the rounding of the logs, and the noise is too
 * large for that to be chance. */
bool share_values(
	const struct judging *j, int control, int test, int64_t from, int64_t n);

/* ---- judge.c ---------------------------------------------------------------------- */

/* Returns the control with the most equal values; *n_differ: set to the number of other values. */
int nearest_control(const struct judging *j, int test, int64_t *n_differ);
/* Stores the spikes of the tests, and the number of the controls' spikes (spikes.c). */
void record_spikes(const struct judging *j, struct verdict_result *r);

/* ---- diverge.c -------------------------------------------------------------------- */

/* Returns true if a test has a value that is not finite where the controls are finite; then sets
 * the onset and appends the reason. */
bool detect_nonfinite(const struct judging *j, struct verdict_result *r);
/* Returns true if the bits differ in spite of the same arithmetic; sets the onset and reason. */
bool detect_broken_identity(const struct judging *j, struct verdict_result *r);
/* Returns the accepted probability of a false alarm in each of the first blocks. */
double block_alarm(const struct verdict_result *r);
/* Tests for a difference by statistics. Returns true if one is shown; then sets the onset,
 * r->found_higher or r->found_lower, and appends the reason. */
bool detect_difference(
	const struct judging *j, struct verdict_result *r, struct str *reason);

/* ---- equivalent.c ----------------------------------------------------------------- */

/* Estimates the differences at the end, and their margins. */
void estimate_end(const struct judging *j, struct verdict_result *r);
/* Returns true if the intervals of the mean and the slope are inside the margins. */
bool is_equivalent(const struct verdict_result *r);
/* Appends the difference at the end to the reason. */
void explain_end(const struct judging *j, struct verdict_result *r);
/* Appends to the reason whether the difference is within the margin. */
void explain_margin(struct verdict_result *r);
/* Appends the difference, its margin, and what may decide to the reason. */
void explain_undecided(const struct judging *j, struct verdict_result *r);
/* Returns a fraction of the controls' mean in rows [from, to). */
double fraction_of_loss(
	const struct judging *j, double fraction, int64_t from, int64_t to);
static const double DEFAULT_MARGIN = 0.005; /* a fraction of the control's loss */

/* ---- estimate.c ------------------------------------------------------------------ */

enum functional { MEAN, SLOPE };
/* Estimates the difference, test - control, of the mean or the slope in rows [from, to). */
struct estimate estimate_difference(
	const struct judging *j, int64_t from, int64_t to, enum functional f);
/* Returns the mean of all units of a set in rows [from, to). */
double set_mean(const struct judging *j, enum set s, int64_t from, int64_t to);
/* Returns the standard deviation between the units of a set in rows [from, to). */
double set_sd(const struct judging *j, enum set s, int64_t from, int64_t to);

/*
 * compare/verdict: what the curves of a set of controls and a set of tests say: one verdict, and why.
 *
 * A verdict is about one column. Statistics depend on which runs read the same batches at the same
 * steps, for then the noise of the batches cancels in their difference; see enum design. The rates
 * of errors are stated with each test, and measured by tests/bench/calibrate. No call is collective.
 */
#pragma once

#include "base/base.h"
#include "run/run.h"
#include "stats/stats.h"

/* From the best to the worst. */
enum verdict {
	VERDICT_IDENTICAL,  /* bit for bit */
	VERDICT_WITHIN,	    /* within the tolerance, or by the rule of another project */
	VERDICT_EQUIVALENT, /* shown to differ by less than the margin */
	VERDICT_BETTER, /* shown to differ by more than replicas do, and to end better */
	VERDICT_NOT_WORSE, /* with judge_opts.one_sided: shown to be worse by less than the margin */
	VERDICT_UNDECIDED, /* neither equivalence nor a difference was shown */
	VERDICT_DIFFERENT, /* differs by more than is allowed or than replicas do; not better or worse */
	VERDICT_WORSE,		/* like VERDICT_BETTER */
	VERDICT_DIVERGED,	/* not finite, or worse and lost_what_was_learnt() */
	VERDICT_VACUOUS,	/* nothing was learnt, so agreement means nothing */
	VERDICT_NOT_COMPARABLE, /* other tokens per step, data, warm-up or model */
	VERDICT_NOTHING, /* no row in common, or a curve that every run has is missing */
	N_VERDICTS
};
extern const char *const verdict_names[N_VERDICTS + 1]; /* for JSON; ends with NULL */

/* How the runs are compared. Units are runs; or, if the runs of a set read different batches, the
 * means of those runs of it that read the same ones. */
enum design {
	DESIGN_NONE,
	/* Three or more units of each set, paired by their batches: the mean difference of the pairs
	 * and its standard error, by Student's t. */
	DESIGN_PAIRED,
	/* Two or more controls, four or more units in all: the difference of the means, and the
	 * standard deviation between the units of a set, by Student's t. */
	DESIGN_REPLICAS,
	/* A control and a test that read the same batches: the mean of their differences, and its
	 * standard error from the means of batches of rows. */
	DESIGN_SAME_BATCHES,
	/* A control and a test of which that is not so: the difference of the means, and an assumed
	 * standard deviation between replicas, see ASSUMED_NOISE in estimate.c. */
	DESIGN_ALONE,
	N_DESIGNS
};
extern const char *const design_names[N_DESIGNS + 1];

struct judge_opts {
	/* The number, in the first control, of the column that is judged; COL_STEP or COL_TOKENS
	 * matches rows. */
	int column, by;
	int rule;	   /* of rules[]; 0: ours, which the following are for */
	double rtol, atol; /* VERDICT_WITHIN: |test - control| <= atol + rtol |control| */
	bool common;	   /* ignore rows that only some runs have */
	bool whole;	   /* rows that are missing at the end are a difference, too */
	int sense; /* 1: higher is better, -1: lower; 0: as the name of the column implies */
	bool one_sided; /* look for VERDICT_NOT_WORSE */
	/* The probability that a difference is shown of runs without one, in runs of any length
	 * that are judged any number of times while they grow; 0: 0.005. */
	double alarm;
	/* That VERDICT_EQUIVALENT is true; 0: 0.95. */
	double confidence;
	/* The margin of equivalence, as a fraction of the control's loss, and then a smaller difference
	 * is no divergence either. 0: 0.005, or if it is larger the standard deviation between
	 * replicas of the control; and any difference that is larger than that between replicas
	 * counts. */
	double margin;
	/* Rows will follow, and the runs will be judged again: only what no further row can change. */
	bool growing;
	/* Do not require equal bits of runs that state the same arithmetic. For calibration. */
	bool statistics_only;
};

/* A value that is SPIKE_SIGMAS standard deviations above the mean of the SPIKE_WINDOW values before
 * it, as in OLMo-core (src/olmo_core/train/callbacks/stability_monitor.py). */
enum { SPIKE_WINDOW = 128, SPIKE_SIGMAS = 6, MAX_SPIKES = 64 };
struct spike {
	double at; /* step or tokens */
	double value, mean, sd;
	int run; /* the number of the test */
};

struct verdict_result {
	enum verdict verdict;
	struct str reason; /* one line */
	enum design design;
	int n_control, n_test; /* units, see enum design */
	int64_t n_rows;	       /* that all runs have, of finite values */
	int64_t n_lone;	       /* that only some have */
	int64_t n_ending;      /* those of them that are missing at the end, and few */
	struct str ending;     /* "the control ends 8 steps earlier" */
	int64_t n_nonfinite;   /* that all runs have, where a value is not finite */
	int n_left_out;	       /* controls that are too short or not finite */
	double first, last;    /* step or tokens of the first and the last row */
	/* The first row in which a test has other bits than its control; NaN: none. */
	double differs_at;
	int64_t differs_ulps, n_differ;
	/* A difference was shown, whatever rows follow. */
	bool shown;
	bool found_higher, found_lower; /* of the means of some rows */
	int sense;     /* 1: higher values are better, -1: lower values; 0: not known */
	int direction; /* 1: the tests end higher, -1: lower; 0: not shown */
	/* The difference was first found in these steps; NaN: none. */
	double onset, onset_last;
	struct interval
		at_onset; /* difference of the means; its half-width is the band */
	double alarm, confidence;
	/* Mean of the last quarter, and the slope of the last half per unit of step or tokens. */
	double final_control, final_test;
	struct interval difference, slope;
	double margin, slope_margin; /* half-width of the zone of equivalence */
	/* Correlation of the noise of a control and a test; NaN: not known. */
	double correlation;
	bool learnt;	 /* the loss of each control fell */
	struct str note; /* if it did not: how it went */
	/* The first MAX_SPIKES of the tests; and how many there are. */
	struct spike spike[MAX_SPIKES];
	int64_t n_spikes, n_control_spikes;
};

/* Judges the tests by the controls. Runs stay the caller's; n_control, n_test > 0. */
void judge(const struct run_log *const *control, int n_control,
	const struct run_log *const *test, int n_test, const struct judge_opts *o,
	struct verdict_result *r);
void verdict_result_free(struct verdict_result *r);

/* ---- comparable.c ---------------------------------------------------------------- */

/* Whether the logs allow a comparison: equal tokens per step, data, warm-up and model, as far as
 * both logs state them. If not, appends what differs, "key: control, test; ...". */
bool comparable(const struct run_log *control, const struct run_log *test,
	struct str *differences);

/* ---- rules.c: the rules of other projects ------------------------------------------ */

/* Curves with the same rows: those of the controls, then those of the tests. */
struct curves {
	int n_control, n_test;
	int64_t n;	/* rows */
	double *at;	/* [n] step or tokens, ascending */
	bool by_step;	/* what at[] is */
	double *v[2];	/* [n_control * n], [n_test * n]; may be NaN or infinite */
	int64_t n_lone; /* rows that only some have, which are not here */
};

struct rule_pair;
struct rule {
	const char *name;
	const char *repository; /* on GitHub */
	const char *source;	/* its files; NULL: ours */
	const char *help;	/* what it demands, as sentences */
	/* Appends the reason. NULL: ours. */
	bool (*accepts)(const struct rule_pair *p, struct str *reason);
};

/* Returns true if the rule, which is not ours, accepts all tests. Sets the reason. */
bool rule_apply(const struct rule *r, const struct curves *c, struct str *reason);

extern const struct rule rules[]; /* the first is ours */
extern const int n_rules;
extern const char *const rule_names[]; /* ends with NULL */
/* Prints the table as a list for a manual page. */
void rules_man(FILE *f);

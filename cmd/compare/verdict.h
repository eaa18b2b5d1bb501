/* compare/verdict: judges the curves of a set of tests by a set of controls: one verdict, and why.
 *
 * A verdict is about one column. The statistics depend on which runs read the same batches at the
 * same steps: the noise of the batches then cancels in their difference; see enum design. Error
 * rates are stated with each test, and measured by tests/bench/calibrate. No call is collective. */
#pragma once

#include "base/base.h"
#include "run/run.h"
#include "stats/stats.h"

/* From the best to the worst. */
enum verdict {
	VERDICT_IDENTICAL, /* bit for bit */
	VERDICT_WITHIN, /* within the tolerance, or accepted by the rule of another project */
	VERDICT_EQUIVALENT, /* shown to differ by less than the margin */
	VERDICT_BETTER,	   /* shown to differ by more than replicas do, and ends better */
	VERDICT_NOT_WORSE, /* with one_sided: shown to be worse by less than the margin */
	VERDICT_UNDECIDED, /* neither equivalence nor a difference was shown */
	VERDICT_DIFFERENT, /* by more than allowed, or than replicas do; not better or worse */
	VERDICT_WORSE,		/* like VERDICT_BETTER */
	VERDICT_DIVERGED,	/* not finite, or worse and lost_what_was_learned() */
	VERDICT_VACUOUS,	/* nothing was learned, so agreement means nothing */
	VERDICT_NOT_COMPARABLE, /* tokens per step, data, warm-up or model differ */
	VERDICT_NOTHING, /* no row in common, or a curve that every run must have is missing */
	N_VERDICTS
};
extern const char *const verdict_names[N_VERDICTS + 1]; /* for JSON; ends with NULL */

/* How the runs are compared. A unit is a run; or, if the runs of a set read different batches, the
 * mean of its runs that read the same batches. */
enum design {
	DESIGN_NONE,
	/* Three or more units per set, paired by their batches: the mean difference of the pairs,
	 * and its standard error by Student's t. */
	DESIGN_PAIRED,
	/* Two or more controls, four or more units in all: the difference of the means, and the
	 * standard deviation between the units of a set, by Student's t. */
	DESIGN_REPLICAS,
	/* A control and a test that read the same batches: the mean of their differences, and its
	 * standard error from the means of batches of rows. */
	DESIGN_SAME_BATCHES,
	/* A control and a test that read different batches: the difference of the means, and an
	 * assumed standard deviation between replicas, see ASSUMED_NOISE in estimate.c. */
	DESIGN_ALONE,
	N_DESIGNS
};
extern const char *const design_names[N_DESIGNS + 1];

struct judge_opts {
	int column;	   /* the judged one, as its number in the first control */
	int by;		   /* COL_STEP or COL_TOKENS: the column that matches rows */
	int rule;	   /* index in rules[]; 0: ours, which the fields below are for */
	double rtol, atol; /* VERDICT_WITHIN: |test - control| <= atol + rtol |control| */
	bool common;	   /* ignore rows that only some runs have */
	bool strict_end;   /* rows that are missing at the end are a difference, too */
	int sense; /* 1: higher is better, -1: lower is; 0: as the column's name implies */
	bool one_sided; /* allow VERDICT_NOT_WORSE */
	/* The probability of a false alarm: that a difference is shown between runs that have
	 * none, whatever their length and however often they are judged while they grow; 0: 0.005. */
	double alarm;
	/* The probability that VERDICT_EQUIVALENT is true; 0: 0.95. */
	double confidence;
	/* The margin of equivalence, as a fraction of the control's loss; if given, smaller
	 * differences never count. 0: 0.005 or the standard deviation between replicas of the
	 * control, whichever is larger, and every difference larger than between replicas counts. */
	double margin;
	/* The runs still train: decide only what no further row can change. */
	bool is_growing;
	/* For calibration: do not require equal bits where the logs state the same arithmetic. */
	bool statistics_only;
};

/* A value more than SPIKE_SIGMAS standard deviations above the mean of the SPIKE_WINDOW values
 * before it, as in OLMo-core (src/olmo_core/train/callbacks/stability_monitor.py). */
enum { SPIKE_WINDOW = 128, SPIKE_SIGMAS = 6, MAX_SPIKES = 64 };
struct spike {
	double at; /* step or tokens */
	double value, mean, sd;
	int run; /* index of the test */
};

struct verdict_result {
	enum verdict verdict;
	struct str reason; /* one line */
	enum design design;
	int n_control, n_test; /* units, see enum design */
	int64_t n_rows;	       /* rows that all runs have, with finite values */
	int64_t n_lone;	       /* rows that only some runs have */
	int64_t n_ending;      /* part of n_lone: rows missing at the end, if few */
	struct str ending;     /* "the control ends 8 steps earlier" */
	int64_t n_nonfinite;   /* rows that all runs have, where a value is not finite */
	int n_left_out;	       /* controls that are too short or not finite */
	double first, last;    /* step or tokens of the first and the last row */
	/* Step or tokens of the first row where the bits of a test differ; NaN: none. */
	double differs_at;
	int64_t differs_ulps, n_differ;
	bool shown;			/* a difference was shown, whatever rows follow */
	bool found_higher, found_lower; /* the tests' mean, in some rows */
	int sense;     /* 1: higher values are better, -1: lower values; 0: unknown */
	int direction; /* 1: the tests end higher, -1: lower; 0: not shown */
	double onset, onset_last; /* steps of the first shown difference; NaN: none */
	struct interval at_onset; /* difference of the means; half-width: the band */
	double alarm, confidence;
	double final_control, final_test; /* means of the last quarter */
	struct interval difference;	  /* difference of these means */
	struct interval
		slope; /* slope of the difference in the last half, per step or token */
	double margin, slope_margin; /* half-width of the zone of equivalence */
	double correlation; /* correlation of the noise of a control and a test; NaN: unknown */
	bool learned;	    /* the loss of each control fell */
	struct str note; /* if a loss did not fall: from where to where it went */
	struct spike spike[MAX_SPIKES]; /* the first ones of the tests */
	int64_t n_spikes, n_control_spikes;
};

/* Judges the tests by the controls, at least one each. The caller releases *r. */
void judge(const struct run_log *const *control, int n_control,
	const struct run_log *const *test, int n_test, const struct judge_opts *o,
	struct verdict_result *r);
void verdict_result_release(struct verdict_result *r);

/* ---- comparable.c ---------------------------------------------------------------- */

/* Returns true if tokens per step, data, warm-up and model are equal, as far as both logs state
 * them. Otherwise appends the differences, "key: control, test; ...". */
bool are_comparable(const struct run_log *control, const struct run_log *test,
	struct str *differences);

/* ---- rules.c: the rules of other projects ------------------------------------------ */

/* Curves of controls and tests, with the same rows. */
struct curves {
	int n_control, n_test;
	int64_t n;	/* rows */
	double *at;	/* [n] step or tokens, ascending */
	bool by_step;	/* at[] has steps, not tokens */
	double *v[2];	/* [n_control * n], [n_test * n]; may be NaN or infinite */
	int64_t n_lone; /* rows that only some runs have, which are left out */
};

struct rule_pair;
struct rule {
	const char *name;
	const char *repository; /* on GitHub */
	const char *source;	/* files of the repository; NULL: ours */
	const char *help;	/* what the rule requires, in sentences */
	/* Accepts or rejects a pair, and appends the reason. NULL: ours. */
	bool (*accepts)(const struct rule_pair *p, struct str *reason);
};

/* Returns true if the rule of another project accepts all tests. Sets the reason. */
bool rule_accepts_all(const struct rule *r, const struct curves *c, struct str *reason);

extern const struct rule rules[]; /* the first is ours */
extern const int n_rules;
extern const char *const rule_names[]; /* ends with NULL */
/* Prints rules[] as a list for a manual page. */
void rules_print_man(FILE *f);

/* compare/outcome: combines the exact comparison of all columns (compare.h) and the statistical
 * verdict on one of them (verdict.h) into one verdict per test, and prints it as text or JSON. */
#pragma once

#include "compare/compare.h"
#include "compare/verdict.h"

struct runs {
	struct run_log *logs; /* [n], the controls first */
	int n, n_controls;
};

/* The weakest verdict for exit code 0. REQUIRE_AUTO: within, if a tolerance or a rule is given;
 * else equivalent, if there are several controls or no log is from pt-train; else identical. */
enum requirement {
	REQUIRE_AUTO,
	REQUIRE_IDENTICAL,
	REQUIRE_WITHIN,
	REQUIRE_EQUIVALENT,
	REQUIRE_NOT_WORSE
};

struct outcome_opts {
	struct compare_opts exact;
	struct judge_opts judge; /* outcomes_init() adds what options imply */
	const char *column;	 /* name of the judged column */
	bool validation;	 /* also judge validation losses that all logs have */
	enum requirement require;
	bool has_speed; /* include speed in the JSON */
	bool one_set;	/* judge the tests together, as replicas of each other */
};

/* The result for one test, or for a set of tests. */
struct outcome {
	const struct runs *runs;
	int first, n; /* tests of the outcome: runs [first, first + n) */
	struct test_diff {
		int control; /* the control that the test differs least from */
		struct run_diff diff;
	} * exact;	    /* [n] */
	bool has_judged;    /* the column is in the first control's log */
	const char *column; /* judged: a validation loss, if only it differs */
	struct verdict_result judged;
	struct str excused; /* why differences in unjudged columns do not count */
	enum verdict verdict;
	struct str reason; /* one line */
};

struct outcomes {
	struct outcome *v; /* [n] */
	int n;
	enum verdict worst;
};

/* Compares and judges the tests: one outcome per test, or with one_set one for all. */
void outcomes_init(
	const struct runs *r, const struct outcome_opts *o, struct outcomes *all);
void outcomes_release(struct outcomes *all);
/* Returns o->require, or for REQUIRE_AUTO the requirement that the runs imply. */
enum requirement effective_requirement(
	const struct runs *r, const struct outcome_opts *o);
/* Returns 0 if all tests are as required, EX_FAILED if one is not, EX_UNDECIDED if one is
 * undecided and none failed, EX_TROUBLE if there is no valid comparison. */
int outcomes_exit_code(
	const struct outcomes *all, const struct runs *r, const struct outcome_opts *o);
/* Returns true, for logs that still grow, if no further row can change the exit code. */
bool outcomes_are_final(
	const struct outcomes *all, const struct runs *r, const struct outcome_opts *o);
/* Appends the verdict, such as "diverged: loss of b is nan at step 7". */
void outcome_append_verdict(
	const struct outcome *x, const struct outcome_opts *o, struct str *out);
/* Prints the line "verdict: ..." only, after the test's name if there are several outcomes. */
void outcome_print_verdict(
	const struct outcome *x, const struct outcome_opts *o, struct str *out);
/* Prints the comparison of each column, then the verdict. */
void outcome_print(
	const struct outcome *x, const struct outcome_opts *o, struct str *out);

/* ---- outcome_json.c ---------------------------------------------------------------- */

/* Appends one JSON object, as pt-compare(1) describes it. Values that are not finite are null. */
void outcomes_json(const struct outcomes *all, const struct outcome_opts *o, int code,
	struct str *out);

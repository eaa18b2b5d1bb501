/*
 * compare/outcome: what is said of tests. The exact comparison of all columns (compare.h) and the
 * judgement of one of them (verdict.h) together are one verdict, which is printed as text or JSON.
 */
#pragma once

#include "compare/compare.h"
#include "compare/verdict.h"

/* Logs, the controls first. */
struct runs {
	struct run_log *logs;
	int n, n_controls;
};

/* What the exit code demands: REQUIRE_AUTO is, with a tolerance or a rule, that it is kept; else with
 * several controls, or if no log is pt-train's, equivalence; else identity. */
enum requirement {
	REQUIRE_AUTO,
	REQUIRE_IDENTICAL,
	REQUIRE_WITHIN,
	REQUIRE_EQUIVALENT,
	REQUIRE_NOT_WORSE
};

struct outcome_opts {
	struct compare_opts exact;
	struct judge_opts
		judge; /* column, by, rtol, atol, common, whole and one_sided are set by outcomes_make() */
	const char *column; /* that is judged */
	bool validation;    /* and the losses of evaluations that all logs have, too */
	enum requirement require;
	bool speed;   /* into the JSON */
	bool one_set; /* the tests are judged together, as replicas of each other */
};

/* What came out for a test, or for a set of tests. */
struct outcome {
	const struct runs *runs;
	int first, n; /* its tests, as numbers of runs */
	struct test_diff {
		int control; /* of which it differs least */
		struct run_diff diff;
	} * exact;	 /* [n] */
	bool has_judged; /* the column is in the first control's log */
	const char *
		column; /* that `judged` is about: of evaluations, if only these differ */
	struct verdict_result judged;
	struct str others; /* why the columns that differ count as none */
	enum verdict verdict;
	struct str reason; /* one line */
};

struct outcomes {
	struct outcome *v; /* [n] */
	int n;
	enum verdict worst;
};

void outcomes_make(
	const struct runs *r, const struct outcome_opts *o, struct outcomes *all);
void outcomes_free(struct outcomes *all);
/* What is demanded of these runs; never REQUIRE_AUTO. */
enum requirement requirement_of(const struct runs *r, const struct outcome_opts *o);
/* 0: the tests are as required. EX_FAILED: they are not. EX_UNDECIDED: nothing was shown of one, and no other
 * differs. EX_TROUBLE: nothing can be said. */
int outcomes_code(
	const struct outcomes *all, const struct runs *r, const struct outcome_opts *o);
/* If logs still grow: can no further row give another exit code? */
bool outcomes_are_final(
	const struct outcomes *all, const struct runs *r, const struct outcome_opts *o);
/* "diverged: loss of b is nan at step 7"; without the reason if the runs are the same. */
void outcome_verdict(
	const struct outcome *x, const struct outcome_opts *o, struct str *out);
/* "verdict: ..." alone; of several outcomes, the test's name stands before it. */
void outcome_print_verdict(
	const struct outcome *x, const struct outcome_opts *o, struct str *out);
void outcome_print(
	const struct outcome *x, const struct outcome_opts *o, struct str *out);

/* ---- outcome_json.c ---------------------------------------------------------------- */

/* One JSON object, as pt-compare(1) describes it. Numbers that are not finite are null. */
void outcomes_json(const struct outcomes *all, const struct outcome_opts *o, int code,
	struct str *out);

/* Verdicts from the comparison of all columns and the judgement of one. */
#include "compare/curve.h"
#include "compare/outcome.h"
#include "options/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The control that a test differs least from. */
static void find_control(const struct runs *r, const struct run_log *test,
	const struct compare_opts *o, struct test_diff *best)
{
	best->control = -1;
	for (int i = 0; i < r->n_controls; i++) {
		struct run_diff d;
		compare_runs(&r->logs[i], test, o, &d);
		if (best->control >= 0 && run_diff_cmp(&d, &best->diff) >= 0) {
			run_diff_free(&d);
			continue;
		}
		if (best->control >= 0)
			run_diff_free(&best->diff);
		*best = (struct test_diff){i, d};
	}
}

/* Losses of evaluations, which are judged beside that of training. */
static const int evaluations[] = {COL_VAL_LOSS, COL_VAL_BPB};

/* Whether the controls and the tests of the outcome have the column. */
static bool all_have(const struct outcome *x, int column)
{
	const struct runs *r = x->runs;
	bool all = true;
	for (int i = 0; i < r->n_controls && all; i++)
		all = curve_has_column(&r->logs[i], column);
	for (int i = x->first; i < x->first + x->n && all; i++)
		all = curve_has_column(&r->logs[i], column);
	return all;
}

static int find_evaluations(
	const struct outcome *x, const struct outcome_opts *o, bool also[])
{
	int n = 0;
	for (size_t k = 0; k < ARRAY_LEN(evaluations); k++) {
		also[k] = strcmp(columns[evaluations[k]].name, o->column) != 0 &&
			  all_have(x, evaluations[k]);
		n += also[k];
	}
	return n;
}

/* Takes the place of what was judged, if only this has diverged; else it is said beside it. */
static void judge_evaluation(
	struct outcome *x, const struct run_log **logs, const struct judge_opts *how)
{
	struct verdict_result r;
	enum verdict before = x->judged.verdict;
	judge(logs, x->runs->n_controls, logs + x->first, x->n, how, &r);
	if (r.verdict == VERDICT_DIVERGED && before < VERDICT_DIVERGED) {
		str_printf(&r.reason, "; %s: %s", x->column, verdict_names[before]);
		verdict_result_free(&x->judged);
		x->judged = r;
		x->column = columns[how->column].name;
		return;
	}
	bool said = before == VERDICT_EQUIVALENT || before == VERDICT_UNDECIDED;
	if (said && r.verdict <= VERDICT_UNDECIDED)
		str_printf(&x->judged.reason, "; %s: %s", columns[how->column].name,
			verdict_names[r.verdict]);
	else if (said && r.verdict == VERDICT_DIFFER && r.n_lone)
		str_printf(&x->judged.reason, "; %s: %lld row%s of some runs only",
			columns[how->column].name, (long long)r.n_lone,
			r.n_lone == 1 ? " is" : "s are");
	else if (said) /* such as too few values */
		str_printf(&x->judged.reason, "; %s", r.reason.s);
	verdict_result_free(&r);
}

static void judge_tests(struct outcome *x, const struct outcome_opts *o)
{
	const struct runs *r = x->runs;
	struct judge_opts how = o->judge;
	const struct run_log **logs = xcalloc((size_t)r->n, sizeof(*logs));
	how.column = run_log_find(&r->logs[0], o->column);
	how.by = o->exact.by;
	how.rtol = o->exact.rtol;
	how.atol = o->exact.atol;
	how.common = o->exact.common;
	x->has_judged = how.column >= 0;
	x->column = o->column;
	for (int i = 0; i < r->n; i++)
		logs[i] = &r->logs[i];
	bool also[ARRAY_LEN(evaluations)] = {false};
	int n_also = o->validation && x->has_judged ? find_evaluations(x, o, also) : 0;
	how.alarm /= 1 + n_also; /* of all together */
	if (x->has_judged)
		judge(logs, r->n_controls, logs + x->first, x->n, &how, &x->judged);
	for (size_t i = 0; i < ARRAY_LEN(evaluations) && n_also; i++) {
		how.column = evaluations[i];
		if (also[i])
			judge_evaluation(x, logs, &how);
	}
	free(logs);
}

/* The worst verdict of a test about its nearest control, by all columns. */
static enum verdict exact_verdict(const struct outcome *x)
{
	enum verdict worst = VERDICT_IDENTICAL;
	for (int i = 0; i < x->n; i++)
		if (x->exact[i].diff.verdict > worst)
			worst = x->exact[i].diff.verdict;
	return worst;
}

/* Whether the judged column is one of those that exact_verdict() is about. */
static bool is_curve(const struct outcome_opts *o)
{
	int c = column_find(o->column);
	return c >= 0 && columns[c].curve;
}

/* Whether the user gave a tolerance, or demands equal bits. */
static bool is_demanding(const struct outcome_opts *o)
{
	return o->exact.rtol > 0 || o->exact.atol > 0 || o->require == REQUIRE_IDENTICAL;
}

static enum verdict verdict_of(const struct outcome *x, const struct outcome_opts *o)
{
	enum verdict exact = exact_verdict(x), judged = x->judged.verdict;
	if (exact == VERDICT_NOTHING || !x->has_judged || judged == VERDICT_NOTHING)
		return exact;
	/* a column that is only looked at does not change the verdict of equal runs */
	if (exact <= VERDICT_WITHIN && !is_curve(o) && !o->judge.rule)
		return exact;
	/* nothing was shown but that more is demanded */
	if (judged == VERDICT_UNDECIDED && is_demanding(o))
		return VERDICT_DIFFER;
	if (judged == VERDICT_VACUOUS || judged == VERDICT_NOT_COMPARABLE ||
		o->judge.rule > 0)
		return judged;
	if (exact <= VERDICT_WITHIN)
		return exact;
	/* equal in the judged column, but not in another one */
	return judged <= VERDICT_WITHIN ? VERDICT_DIFFER : judged;
}

/* ---- the reason --------------------------------------------------------------------- */

/* The first column of any test that has this verdict; NULL: none. */
static const struct curve_diff *curve_with(const struct outcome *x, enum verdict v)
{
	for (int c = 0; c < N_CURVES; c++)
		for (int i = 0; i < x->n; i++)
			if (x->exact[i].diff.curve[c].verdict == v)
				return &x->exact[i].diff.curve[c];
	return NULL;
}

/* A column that one of two logs lacks, and every run has. */
static const char *missing_column(const struct outcome *x)
{
	for (int i = 0; i < x->n; i++)
		if (x->exact[i].diff.missing)
			return x->exact[i].diff.missing;
	return NULL;
}

static int64_t unread_rows(const struct outcome *x)
{
	int64_t n = 0;
	for (int i = 0; i < x->n; i++)
		n += x->exact[i].diff.unread_rows;
	return n;
}

static int64_t unread_values(const struct outcome *x, const char *column)
{
	int64_t n = 0;
	for (int i = 0; i < x->n; i++) {
		const struct curve_diff *c = &x->exact[i].diff.curve[column_find(column)];
		n += c->unread_control + c->unread_test;
	}
	return n;
}

/* Says so of a curve of which few values differ, whatever the verdict: they may be of a resumed step, or flipped
 * bits. */
static bool explain_few(const struct run_log *control, const struct curve_diff *c, int by,
	struct str *out)
{
	enum { PART = 4 };
	char abs[NUM_TEXT] = "NaN", digits[64] = "bit for bit";
	if (!c->n_differ || c->n_differ > c->n_common / PART)
		return false;
	if (control->digits)
		snprintf(digits, sizeof(digits), "in the %d digits logged",
			control->digits);
	if (!isnan(c->largest.abs))
		snprintf(abs, sizeof(abs), "%.3g", c->largest.abs);
	str_printf(out,
		"all but %lld of %lld values of %s are equal %s, the first at %s "
		"%.0f, the largest difference %s at %s %.0f",
		(long long)c->n_differ, (long long)c->n_common, c->name, digits,
		columns[by].name, c->first.at, abs, columns[by].name, c->largest.at);
	return true;
}

static void explain_difference(
	const struct curve_diff *c, const struct compare_opts *o, struct str *out)
{
	const char *name = c->name, *by = columns[o->by].name;
	const struct value_pair *p = c->n_beyond ? &c->beyond : &c->first;
	int64_t unread = c->unread_control + c->unread_test;
	int64_t lone = c->only_control + c->only_test;
	if (unread && !c->n_differ && !c->only_control && !c->only_test)
		str_printf(out, "%lld value%s of %s cannot be read, from %s %.0f on",
			(long long)unread, plural(unread), name, by, c->first_unread);
	else if (!c->n_differ || (!c->n_beyond && (c->only_control || c->only_test)))
		str_printf(out, "%lld value%s of %s in one run only, from %s %.0f on",
			(long long)lone, plural(lone), name, by, c->first_only);
	else if (p->ulp == INT64_MAX)
		str_printf(out, "%s differs from %s %.0f on (NaN)", name, by, p->at);
	else if (o->rtol > 0 || o->atol > 0)
		str_printf(out,
			"%s differs by more than %g + %g |control|, first at %s %.0f",
			name, o->atol, o->rtol, by, p->at);
	else
		str_printf(out, "%s differs from %s %.0f on (%lld ULP)", name, by, p->at,
			(long long)p->ulp);
}

/* Explains a verdict that comes from the comparison of all columns. */
static void explain_exact(struct outcome *x, const struct outcome_opts *o)
{
	const struct run_log *control = &x->runs->logs[x->exact[0].control];
	const struct curve_diff *c = curve_with(x, x->verdict);
	const char *missing = missing_column(x);
	struct str *out = &x->reason;
	int64_t unread = unread_rows(x);
	if (x->verdict == VERDICT_NOTHING && missing)
		str_printf(out, "%s of them has values of %s%s",
			unread_values(x, missing) ? "not each" : "only one", missing,
			unread_values(x, missing) ? " that can be read" : "");
	else if (unread && !c)
		str_printf(out, "%lld row%s cannot be read", (long long)unread,
			plural(unread));
	else if (x->verdict == VERDICT_NOTHING || !c)
		str_printf(out, "no value at the same %s", columns[o->exact.by].name);
	else if (x->verdict == VERDICT_DIFFER &&
		 !explain_few(control, c, o->exact.by, out))
		explain_difference(c, &o->exact, out);
	else if (x->verdict == VERDICT_DIFFER)
		return;
	else if (x->verdict == VERDICT_WITHIN)
		str_printf(out,
			"each of %lld values of %s differs by at most %g + %g |control|",
			(long long)c->n_common, c->name, o->exact.atol, o->exact.rtol);
	else if (control->digits)
		str_printf(out, "%lld value%s of %s equal in the %d digits logged",
			(long long)c->n_common, plural(c->n_common), c->name,
			control->digits);
	else
		str_printf(out, "%lld value%s of %s equal bit for bit",
			(long long)c->n_common, plural(c->n_common), c->name);
}

/* Where a tolerance is given and exceeded, that comes first. */
static bool explain_tolerance(struct outcome *x, const struct outcome_opts *o)
{
	const struct curve_diff *c = curve_with(x, VERDICT_DIFFER);
	if (!(o->exact.rtol > 0 || o->exact.atol > 0) || x->verdict != VERDICT_DIFFER ||
		o->judge.rule > 0 || !c || !c->n_beyond)
		return false;
	explain_difference(c, &o->exact, &x->reason);
	return true;
}

/* Of one test, before what was judged. */
static void explain_exception(struct outcome *x, const struct outcome_opts *o)
{
	const struct run_log *control = &x->runs->logs[x->exact[0].control];
	int column = column_find(x->column);
	const struct run_diff *d = &x->exact[0].diff;
	const struct curve_diff *c =
		&d->curve[column >= 0 && d->curve[column].name ? column : N_COLUMNS];
	if (x->n == 1 && x->verdict > VERDICT_WITHIN && x->verdict < VERDICT_VACUOUS &&
		!o->judge.rule && c->name &&
		explain_few(control, c, o->exact.by, &x->reason))
		str_puts(&x->reason, "; ");
}

static void explain(struct outcome *x, const struct outcome_opts *o)
{
	bool missing = x->verdict == VERDICT_NOTHING && missing_column(x);
	bool judged = !missing && x->has_judged && x->judged.reason.len &&
		      (x->verdict == x->judged.verdict ||
			      x->judged.verdict == VERDICT_UNDECIDED);
	if (explain_tolerance(x, o)) {
		if (judged)
			str_printf(&x->reason, "; %s", x->judged.reason.s);
	} else if (judged) {
		explain_exception(x, o);
		str_puts(&x->reason, x->judged.reason.s);
	} else {
		explain_exact(x, o);
	}
}

/* ---- outcomes ----------------------------------------------------------------------- */

static void make_one(const struct runs *r, const struct outcome_opts *o, int first, int n,
	struct outcome *x)
{
	*x = (struct outcome){.runs = r, .first = first, .n = n};
	x->exact = xcalloc((size_t)n, sizeof(*x->exact));
	for (int i = 0; i < n; i++)
		find_control(r, &r->logs[first + i], &o->exact, &x->exact[i]);
	judge_tests(x, o);
	x->verdict = verdict_of(x, o);
	explain(x, o);
}

void outcomes_make(
	const struct runs *r, const struct outcome_opts *o, struct outcomes *all)
{
	int n_tests = r->n - r->n_controls, of_one = o->one_set ? n_tests : 1;
	*all = (struct outcomes){.worst = VERDICT_IDENTICAL};
	all->v = xcalloc((size_t)n_tests, sizeof(*all->v));
	for (int i = 0; i < n_tests; i += of_one) {
		struct outcome *x = &all->v[all->n++];
		make_one(r, o, r->n_controls + i, of_one, x);
		if (x->verdict > all->worst)
			all->worst = x->verdict;
	}
}

void outcomes_free(struct outcomes *all)
{
	for (int i = 0; i < all->n; i++) {
		for (int k = 0; k < all->v[i].n; k++)
			run_diff_free(&all->v[i].exact[k].diff);
		free(all->v[i].exact);
		verdict_result_free(&all->v[i].judged);
		str_free(&all->v[i].reason);
	}
	free(all->v);
	*all = (struct outcomes){.worst = VERDICT_IDENTICAL};
}

/* ---- the exit code ----------------------------------------------------------------- */

enum requirement requirement_of(const struct runs *r, const struct outcome_opts *o)
{
	bool tolerant = o->exact.rtol > 0 || o->exact.atol > 0 || o->judge.rule > 0;
	return o->require	   ? o->require
	       : tolerant	   ? REQUIRE_WITHIN
	       : r->n_controls > 1 ? REQUIRE_EQUIVALENT
				   : REQUIRE_IDENTICAL;
}

int outcomes_code(
	const struct outcomes *all, const struct runs *r, const struct outcome_opts *o)
{
	static const enum verdict weakest[] = {[REQUIRE_IDENTICAL] = VERDICT_IDENTICAL,
		[REQUIRE_WITHIN] = VERDICT_WITHIN,
		[REQUIRE_EQUIVALENT] = VERDICT_EQUIVALENT};
	if (all->worst >= VERDICT_VACUOUS)
		return EX_TROUBLE;
	if (all->worst <= weakest[requirement_of(r, o)])
		return 0;
	return all->worst == VERDICT_UNDECIDED ? EX_UNDECIDED : EX_FAILED;
}

bool outcomes_are_final(
	const struct outcomes *all, const struct runs *r, const struct outcome_opts *o)
{
	bool exact = requirement_of(r, o) != REQUIRE_EQUIVALENT && !o->judge.rule;
	for (int i = 0; i < all->n; i++) {
		enum verdict v = all->v[i].verdict;
		if (v == VERDICT_DIVERGED || v == VERDICT_NOT_COMPARABLE ||
			(v >= VERDICT_EQUIVALENT && v <= VERDICT_DIFFER && exact))
			return true;
	}
	return false;
}

/* ---- text -------------------------------------------------------------------------- */

static const char *const words[N_VERDICTS] = {
	[VERDICT_IDENTICAL] = "identical bit for bit",
	[VERDICT_WITHIN] = "the same within the tolerance",
	[VERDICT_EQUIVALENT] = "equivalent",
	[VERDICT_UNDECIDED] = "undecided",
	[VERDICT_DIFFER] = "they differ",
	[VERDICT_DIVERGED] = "diverged",
	[VERDICT_VACUOUS] = "vacuous",
	[VERDICT_NOT_COMPARABLE] = "not comparable",
	[VERDICT_NOTHING] = "they have no value in common",
};

/* By the rule of another project. */
static void rule_verdict(const struct outcome *x, const char *rule, struct str *out)
{
	str_printf(out, "%s by the rule %s: %s",
		x->verdict == VERDICT_WITHIN ? "accepted" : "rejected", rule,
		x->reason.s);
}

void outcome_verdict(
	const struct outcome *x, const struct outcome_opts *o, struct str *out)
{
	const struct run_log *control = &x->runs->logs[x->exact[0].control];
	if (o->judge.rule && x->verdict <= VERDICT_DIFFER)
		rule_verdict(x, rules[o->judge.rule].name, out);
	else if (x->verdict == VERDICT_NOTHING && missing_column(x))
		str_puts(out, x->reason.s);
	else if (x->verdict == VERDICT_IDENTICAL && control->digits)
		str_printf(
			out, "identical in the %d digits of the logs", control->digits);
	else if (x->verdict <= VERDICT_WITHIN)
		str_puts(out, words[x->verdict]);
	else
		str_printf(out, "%s: %s", words[x->verdict], x->reason.s);
	if (x->verdict <= VERDICT_WITHIN)
		print_nonfinite(&x->exact[0].diff, o->exact.by, out);
}

static void print_spikes(const struct verdict_result *r, int by, struct str *out)
{
	int64_t shown = min64(r->n_spikes, 4);
	if (!r->n_spikes)
		return;
	str_printf(out, "spikes: %lld of the test%s, %lld of the control%s, at %s",
		(long long)r->n_spikes, plural(r->n_spikes),
		(long long)r->n_control_spikes, plural(r->n_control_spikes),
		columns[by].name);
	for (int64_t i = 0; i < shown; i++)
		str_printf(out, " %.0f", r->spike[i].at);
	str_puts(out, r->n_spikes > shown ? " ...\n" : "\n");
}

void outcome_print_verdict(
	const struct outcome *x, const struct outcome_opts *o, struct str *out)
{
	if (!o->one_set && x->runs->n - x->runs->n_controls > 1)
		str_printf(out, "%s: ", x->runs->logs[x->first].name);
	str_puts(out, "verdict: ");
	outcome_verdict(x, o, out);
	str_putc(out, '\n');
}

void outcome_print(const struct outcome *x, const struct outcome_opts *o, struct str *out)
{
	for (int i = 0; i < x->n; i++) {
		const struct run_log *logs = x->runs->logs;
		str_printf(out, "%s\n%s\n", logs[x->exact[i].control].name,
			logs[x->first + i].name);
		run_diff_print(&x->exact[i].diff, &o->exact, out);
	}
	if (x->has_judged)
		print_spikes(&x->judged, o->exact.by, out);
	if (x->verdict <= VERDICT_WITHIN && x->judged.note.len)
		str_printf(out, "nothing was learnt: %s\n", x->judged.note.s);
	str_puts(out, "verdict: ");
	outcome_verdict(x, o, out);
	str_putc(out, '\n');
}

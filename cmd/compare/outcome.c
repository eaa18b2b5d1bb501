/* Combines the exact comparison of all columns and the judged column into verdicts. */
#include "compare/curve.h"
#include "compare/outcome.h"
#include "options/options.h"

#include <math.h>

/* Sets *best to the control that a test differs least from, and their comparison. */
static void compare_with_nearest(const struct runs *r, const struct run_log *test,
	const struct compare_opts *o, struct test_diff *best)
{
	best->control = -1;
	for (int i = 0; i < r->n_controls; i++) {
		struct run_diff d;
		compare_runs(&r->logs[i], test, o, &d);
		if (best->control >= 0 && run_diff_cmp(&d, &best->diff) >= 0) {
			run_diff_release(&d);
			continue;
		}
		if (best->control >= 0)
			run_diff_release(&best->diff);
		*best = (struct test_diff){i, d};
	}
}

/* Validation losses, which are judged in addition to the training loss. */
static const int evaluations[] = {COL_VAL_LOSS, COL_VAL_BPB};

/* Returns true if the controls and the tests of the outcome all have the column. */
static bool all_have_column(const struct outcome *x, int column)
{
	const struct runs *r = x->runs;
	bool have_column = true;
	for (int i = 0; i < r->n_controls && have_column; i++)
		have_column = curve_has_column(&r->logs[i], column);
	for (int i = x->first; i < x->first + x->n && have_column; i++)
		have_column = curve_has_column(&r->logs[i], column);
	return have_column;
}

/* Sets also[k] for the evaluations to judge besides the column. Returns their number. */
static int choose_evaluations(
	const struct outcome *x, const struct outcome_opts *o, bool also[])
{
	int n = 0;
	for (size_t k = 0; k < ARRAY_LEN(evaluations); k++) {
		also[k] = strcmp(columns[evaluations[k]].name, o->column) != 0 &&
			  all_have_column(x, evaluations[k]);
		n += also[k];
	}
	return n;
}

/* Sets the verdict of a to different: one column is better and the other worse. */
static void set_disagreement(struct verdict_result *a, const char *first,
	const struct verdict_result *b, const char *second)
{
	scoped_str reason = {0};
	str_printf(&reason, "%s is %s and %s %s: %s; %s", first,
		verdict_names[a->verdict], second, verdict_names[b->verdict], a->reason.s,
		b->reason.s);
	str_clear(&a->reason);
	str_puts(&a->reason, reason.s);
	a->verdict = VERDICT_DIFFERENT;
	a->direction = 0;
}

/* Judges a validation loss. Its result replaces x->judged if only it shows a difference; otherwise
 * it is appended to the reason. */
static void judge_evaluation(
	struct outcome *x, const struct run_log **logs, const struct judge_opts *opts)
{
	struct verdict_result r;
	const char *name = columns[opts->column].name;
	enum verdict before = x->judged.verdict;
	judge(logs, x->runs->n_controls, logs + x->first, x->n, opts, &r);
	if ((before == VERDICT_BETTER && r.verdict == VERDICT_WORSE) ||
		(before == VERDICT_WORSE && r.verdict == VERDICT_BETTER)) {
		set_disagreement(&x->judged, x->column, &r, name);
		verdict_result_release(&r);
		return;
	}
	if (r.shown && r.verdict > before && r.verdict <= VERDICT_DIVERGED) {
		str_printf(&r.reason, "; %s: %s", x->column, verdict_names[before]);
		verdict_result_release(&x->judged);
		x->judged = r;
		x->column = name;
		return;
	}
	bool is_reported = before == VERDICT_EQUIVALENT || before == VERDICT_NOT_WORSE ||
			   before == VERDICT_UNDECIDED || x->judged.shown;
	if (is_reported && (r.verdict <= VERDICT_UNDECIDED || r.shown))
		str_printf(&x->judged.reason, "; %s: %s", name, verdict_names[r.verdict]);
	else if (is_reported && r.verdict == VERDICT_DIFFERENT && r.n_lone)
		str_printf(&x->judged.reason, "; %s: %lld row%s in some runs only", name,
			(long long)r.n_lone, r.n_lone == 1 ? " is" : "s are");
	else if (is_reported) /* such as too few values */
		str_printf(&x->judged.reason, "; %s", r.reason.s);
	verdict_result_release(&r);
}

/* Judges the column; with `validation`, also the validation losses that all logs have. */
static void judge_tests(struct outcome *x, const struct outcome_opts *o)
{
	const struct runs *r = x->runs;
	struct judge_opts opts = o->judge;
	const struct run_log **logs = xcalloc((size_t)r->n, sizeof(*logs));
	opts.column = run_log_find(&r->logs[0], o->column);
	opts.by = o->exact.by;
	opts.rtol = o->exact.rtol;
	opts.atol = o->exact.atol;
	opts.common = o->exact.common;
	opts.strict_end = o->exact.strict_end;
	opts.one_sided = o->require == REQUIRE_NOT_WORSE;
	x->has_judged = opts.column >= 0;
	x->column = o->column;
	for (int i = 0; i < r->n; i++)
		logs[i] = &r->logs[i];
	bool also[ARRAY_LEN(evaluations)] = {false};
	int n_also = o->validation && x->has_judged ? choose_evaluations(x, o, also) : 0;
	opts.alarm /= 1 + n_also; /* alarm is for all columns together */
	if (x->has_judged)
		judge(logs, r->n_controls, logs + x->first, x->n, &opts, &x->judged);
	opts.sense = 0;
	for (size_t i = 0; i < ARRAY_LEN(evaluations) && n_also; i++) {
		opts.column = evaluations[i];
		if (also[i])
			judge_evaluation(x, logs, &opts);
	}
	free(logs);
}

static int64_t count_unread_rows(const struct outcome *x)
{
	int64_t n = 0;
	for (int i = 0; i < x->n; i++)
		n += x->exact[i].diff.unread_rows;
	return n;
}

/* Returns the worst verdict of a test and its nearest control, over all columns. */
static enum verdict exact_verdict(const struct outcome *x)
{
	enum verdict worst = VERDICT_IDENTICAL;
	for (int i = 0; i < x->n; i++)
		if (x->exact[i].diff.verdict > worst)
			worst = x->exact[i].diff.verdict;
	return worst;
}

/* Returns true if the user gave a tolerance, or requires equal bits. */
static bool is_strict(const struct outcome_opts *o)
{
	return o->exact.rtol > 0 || o->exact.atol > 0 || o->require == REQUIRE_IDENTICAL;
}

/* Returns true if a column differs by rounding in fp32 at most, and the arithmetic may differ. */
static bool differs_by_rounding(const struct outcome *x, int test, int column)
{
	const double max_rounding = 1e-5;
	const struct test_diff *t = &x->exact[test];
	const struct curve_diff *c = &t->diff.curve[column];
	uint64_t a = x->runs->logs[t->control].info.arithmetic;
	bool same_arithmetic = a && a == x->runs->logs[x->first + test].info.arithmetic;
	return c->n_differ && !c->has_lone && c->max_relative <= max_rounding &&
	       !same_arithmetic;
}

/* Judges a further column of a test; returns true if it is equivalent. */
static bool is_column_equivalent(
	const struct outcome *x, const struct outcome_opts *o, int test, int column)
{
	struct verdict_result r;
	struct judge_opts opts = o->judge;
	const struct test_diff *t = &x->exact[test];
	const struct run_log *control = &x->runs->logs[t->control];
	const struct run_log *log = &x->runs->logs[x->first + test];
	if (t->diff.curve[column].has_lone || column >= N_COLUMNS)
		return false;
	opts.column = column;
	opts.by = o->exact.by;
	opts.common = o->exact.common;
	judge(&control, 1, &log, 1, &opts, &r);
	bool is_equivalent = r.verdict == VERDICT_EQUIVALENT;
	verdict_result_release(&r);
	return is_equivalent;
}

/* Returns true if all columns that differ are equivalent or differ by rounding, such as a
 * gradient norm summed in another order. Appends these columns. */
static bool excuse_other_columns(
	const struct outcome *x, const struct outcome_opts *o, struct str *why)
{
	for (int i = 0; i < x->n; i++)
		for (int k = 0; k < N_CURVES; k++) {
			const struct curve_diff *c = &x->exact[i].diff.curve[k];
			if (c->verdict <= VERDICT_WITHIN || c->verdict == VERDICT_NOTHING)
				continue;
			bool is_rounding = differs_by_rounding(x, i, k);
			if (!is_rounding && !is_column_equivalent(x, o, i, k))
				return false;
			str_puts(why, why->len ? "; " : "");
			if (is_rounding)
				str_printf(why, "%s differs by at most %.2g of its value",
					c->name, c->max_relative);
			else
				str_printf(why, "%s: equivalent", c->name);
		}
	return why->len > 0;
}

/* Combines the exact and the statistical verdict. */
static enum verdict combine_verdicts(struct outcome *x, const struct outcome_opts *o)
{
	enum verdict exact = exact_verdict(x), judged = x->judged.verdict;
	if (exact == VERDICT_NOTHING || !x->has_judged || judged == VERDICT_NOTHING)
		return exact;
	/* inconclusive statistics do not meet a strict requirement */
	if (judged == VERDICT_UNDECIDED && is_strict(o))
		return VERDICT_DIFFERENT;
	if (judged == VERDICT_VACUOUS || judged == VERDICT_NOT_COMPARABLE ||
		o->judge.rule > 0)
		return judged;
	if (exact <= VERDICT_WITHIN)
		return exact;
	/* equal in the judged column, but not in another one */
	if (judged > VERDICT_WITHIN)
		return judged;
	bool is_equivalent = exact == VERDICT_DIFFERENT && !is_strict(o) &&
			     !count_unread_rows(x) &&
			     excuse_other_columns(x, o, &x->excused);
	if (!is_equivalent)
		str_clear(&x->excused);
	return is_equivalent ? VERDICT_EQUIVALENT : VERDICT_DIFFERENT;
}

/* Returns the first column with this verdict in any test; NULL: none. */
static const struct curve_diff *find_curve(const struct outcome *x, enum verdict v)
{
	for (int c = 0; c < N_CURVES; c++)
		for (int i = 0; i < x->n; i++)
			if (x->exact[i].diff.curve[c].verdict == v)
				return &x->exact[i].diff.curve[c];
	return NULL;
}

/* Returns a column that every run must have but one log lacks; NULL: none. */
static const char *missing_column(const struct outcome *x)
{
	for (int i = 0; i < x->n; i++)
		if (x->exact[i].diff.missing)
			return x->exact[i].diff.missing;
	return NULL;
}

static int64_t count_unread_values(const struct outcome *x, const char *column)
{
	int64_t n = 0;
	for (int i = 0; i < x->n; i++) {
		const struct curve_diff *c = &x->exact[i].diff.curve[column_find(column)];
		n += c->unread_control + c->unread_test;
	}
	return n;
}

/* Appends that few values of a curve differ, whatever the verdict: the cause may be a resumed step,
 * or flipped bits. Returns false if they are not few. */
static bool explain_few(const struct run_log *control, const struct curve_diff *c,
	int key_column, struct str *out)
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
		"%lld of %lld values of %s differ%s, first at %s %.0f and most at %s %.0f, by "
		"%s; all others are equal %s",
		(long long)c->n_differ, (long long)c->n_common, c->name,
		c->n_differ == 1 ? "s" : "", columns[key_column].name, c->first.at,
		columns[key_column].name, c->largest.at, abs, digits);
	return true;
}

/* Appends how a curve differs: unreadable or missing values, or the first difference. */
static void explain_difference(const struct curve_diff *c, const struct compare_opts *o,
	bool with_ulps, struct str *out)
{
	const char *name = c->name, *key_name = columns[o->by].name;
	const struct value_pair *p = c->n_beyond ? &c->beyond : &c->first;
	int64_t unread = c->unread_control + c->unread_test;
	int64_t lone = c->only_control + c->only_test;
	if (unread && !c->n_differ && !c->only_control && !c->only_test)
		str_printf(out, "%lld value%s of %s cannot be read, from %s %.0f on",
			(long long)unread, plural(unread), name, key_name,
			c->first_unread);
	else if (!c->n_differ || (!c->n_beyond && (c->only_control || c->only_test)))
		str_printf(out, "%lld value%s of %s in one run only, from %s %.0f on",
			(long long)lone, plural(lone), name, key_name, c->first_only);
	else if (p->ulp == INT64_MAX)
		str_printf(
			out, "%s differs from %s %.0f on (NaN)", name, key_name, p->at);
	else if (o->rtol > 0 || o->atol > 0)
		str_printf(out,
			"%s differs by more than %g + %g |control|, first at %s %.0f",
			name, o->atol, o->rtol, key_name, p->at);
	else if (with_ulps)
		str_printf(out, "%s differs from %s %.0f on (%lld ULP)", name, key_name,
			p->at, (long long)p->ulp);
	else
		str_printf(out, "%s differs from %s %.0f on (test - control: %+.3g)",
			name, key_name, p->at, p->test - p->control);
}

/* Explains a verdict that comes from the exact comparison. */
static void explain_exact(struct outcome *x, const struct outcome_opts *o)
{
	const struct run_log *control = &x->runs->logs[x->exact[0].control];
	const struct curve_diff *c = find_curve(x, x->verdict);
	const char *missing = missing_column(x);
	struct str *out = &x->reason;
	int64_t unread = count_unread_rows(x);
	if (x->verdict == VERDICT_NOTHING && missing)
		str_printf(out, "%s has %svalues of %s",
			count_unread_values(x, missing) ? "not every run"
							: "only one run",
			count_unread_values(x, missing) ? "readable " : "", missing);
	else if (unread && !c)
		str_printf(out, "%lld row%s cannot be read", (long long)unread,
			plural(unread));
	else if (x->verdict == VERDICT_NOTHING || !c)
		str_printf(out, "no value at the same %s", columns[o->exact.by].name);
	else if (x->verdict == VERDICT_DIFFERENT &&
		 !explain_few(control, c, o->exact.by, out))
		explain_difference(c, &o->exact, x->exact[0].diff.are_from_pt, out);
	else if (x->verdict == VERDICT_DIFFERENT)
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

/* Appends the difference that exceeds a given tolerance. Returns false if there is none. */
static bool explain_tolerance(struct outcome *x, const struct outcome_opts *o)
{
	const struct curve_diff *c = find_curve(x, VERDICT_DIFFERENT);
	if (!(o->exact.rtol > 0 || o->exact.atol > 0) ||
		x->verdict != VERDICT_DIFFERENT || o->judge.rule > 0 || !c ||
		!c->n_beyond)
		return false;
	explain_difference(c, &o->exact, x->exact[0].diff.are_from_pt, &x->reason);
	return true;
}

/* Appends that few values of the judged column differ, if there is one test. */
static void explain_few_judged(struct outcome *x, const struct outcome_opts *o)
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

/* Sets the reason: the tolerance, the reason of the judged column, or the exact comparison. */
static void explain(struct outcome *x, const struct outcome_opts *o)
{
	bool is_missing = x->verdict == VERDICT_NOTHING && missing_column(x);
	bool is_judged = !is_missing && x->has_judged && x->judged.reason.len &&
			 (x->verdict == x->judged.verdict ||
				 x->judged.verdict == VERDICT_UNDECIDED);
	if (x->excused.len) {
		str_printf(&x->reason, "%s; %s", x->judged.reason.s, x->excused.s);
	} else if (explain_tolerance(x, o)) {
		if (is_judged)
			str_printf(&x->reason, "; %s", x->judged.reason.s);
	} else if (is_judged) {
		explain_few_judged(x, o);
		str_puts(&x->reason, x->judged.reason.s);
	} else {
		explain_exact(x, o);
	}
}

/* Compares tests [first, first + n) with the controls. Sets *x to the verdict and its reason. */
static void judge_outcome(const struct runs *r, const struct outcome_opts *o, int first,
	int n, struct outcome *x)
{
	*x = (struct outcome){.runs = r, .first = first, .n = n};
	x->exact = xcalloc((size_t)n, sizeof(*x->exact));
	for (int i = 0; i < n; i++)
		compare_with_nearest(r, &r->logs[first + i], &o->exact, &x->exact[i]);
	judge_tests(x, o);
	x->verdict = combine_verdicts(x, o);
	explain(x, o);
}

void outcomes_init(
	const struct runs *r, const struct outcome_opts *o, struct outcomes *all)
{
	int n_tests = r->n - r->n_controls, n_each = o->one_set ? n_tests : 1;
	struct outcome_opts opts = *o;
	*all = (struct outcomes){.worst = VERDICT_IDENTICAL};
	all->v = xcalloc((size_t)n_tests, sizeof(*all->v));
	opts.exact.strict_end =
		o->judge.rule || effective_requirement(r, o) == REQUIRE_IDENTICAL;
	for (int i = 0; i < n_tests; i += n_each) {
		struct outcome *x = &all->v[all->n++];
		judge_outcome(r, &opts, r->n_controls + i, n_each, x);
		if (x->verdict > all->worst)
			all->worst = x->verdict;
	}
}

void outcomes_release(struct outcomes *all)
{
	for (int i = 0; i < all->n; i++) {
		for (int k = 0; k < all->v[i].n; k++)
			run_diff_release(&all->v[i].exact[k].diff);
		free(all->v[i].exact);
		verdict_result_release(&all->v[i].judged);
		str_free(&all->v[i].reason);
		str_free(&all->v[i].excused);
	}
	free(all->v);
	*all = (struct outcomes){.worst = VERDICT_IDENTICAL};
}

/* ---- the exit code ----------------------------------------------------------------- */

static bool is_any_from_pt(const struct runs *r)
{
	for (int i = 0; i < r->n; i++)
		if (log_is_from_pt(&r->logs[i]))
			return true;
	return false;
}

enum requirement effective_requirement(const struct runs *r, const struct outcome_opts *o)
{
	bool has_tolerance = o->exact.rtol > 0 || o->exact.atol > 0 || o->judge.rule > 0;
	return o->require				 ? o->require
	       : has_tolerance				 ? REQUIRE_WITHIN
	       : r->n_controls > 1 || !is_any_from_pt(r) ? REQUIRE_EQUIVALENT
							 : REQUIRE_IDENTICAL;
}

int outcomes_exit_code(
	const struct outcomes *all, const struct runs *r, const struct outcome_opts *o)
{
	static const enum verdict weakest[] = {[REQUIRE_IDENTICAL] = VERDICT_IDENTICAL,
		[REQUIRE_WITHIN] = VERDICT_WITHIN,
		[REQUIRE_EQUIVALENT] = VERDICT_EQUIVALENT,
		[REQUIRE_NOT_WORSE] = VERDICT_NOT_WORSE};
	int n_failed = 0, n_undecided = 0;
	if (all->worst >= VERDICT_VACUOUS)
		return EX_TROUBLE;
	for (int i = 0; i < all->n; i++) {
		bool is_undecided = all->v[i].verdict == VERDICT_UNDECIDED;
		n_undecided += is_undecided;
		n_failed += !is_undecided &&
			    all->v[i].verdict > weakest[effective_requirement(r, o)];
	}
	return n_failed ? EX_FAILED : n_undecided ? EX_UNDECIDED : 0;
}

/* Returns true if no further row can make the outcome meet the requirement. */
static bool is_final(const struct outcome *x, enum requirement required, int rule)
{
	const struct verdict_result *r = &x->judged;
	if (x->verdict == VERDICT_NOT_COMPARABLE)
		return true;
	if (required == REQUIRE_NOT_WORSE) /* a finite test may still become better */
		return x->verdict == VERDICT_DIVERGED && !r->direction;
	if (required == REQUIRE_EQUIVALENT || rule)
		return x->has_judged && r->shown && x->verdict > VERDICT_EQUIVALENT;
	return x->verdict >= VERDICT_EQUIVALENT && x->verdict <= VERDICT_DIVERGED;
}

bool outcomes_are_final(
	const struct outcomes *all, const struct runs *r, const struct outcome_opts *o)
{
	for (int i = 0; i < all->n; i++)
		if (is_final(&all->v[i], effective_requirement(r, o), o->judge.rule))
			return true;
	return false;
}

static const char *const verdict_words[N_VERDICTS] = {
	[VERDICT_IDENTICAL] = "identical bit for bit",
	[VERDICT_WITHIN] = "the same within the tolerance",
	[VERDICT_EQUIVALENT] = "equivalent",
	[VERDICT_BETTER] = "better",
	[VERDICT_NOT_WORSE] = "not worse",
	[VERDICT_UNDECIDED] = "undecided",
	[VERDICT_DIFFERENT] = "different",
	[VERDICT_WORSE] = "worse",
	[VERDICT_DIVERGED] = "diverged",
	[VERDICT_VACUOUS] = "vacuous",
	[VERDICT_NOT_COMPARABLE] = "not comparable",
	[VERDICT_NOTHING] = "they have no value in common",
};

static void print_rule_verdict(const struct outcome *x, const char *rule, struct str *out)
{
	str_printf(out, "%s by the rule %s: %s",
		x->verdict == VERDICT_WITHIN ? "accepted" : "rejected", rule,
		x->reason.s);
}

void outcome_append_verdict(
	const struct outcome *x, const struct outcome_opts *o, struct str *out)
{
	const struct run_log *control = &x->runs->logs[x->exact[0].control];
	if (o->judge.rule && x->verdict <= VERDICT_DIFFERENT)
		print_rule_verdict(x, rules[o->judge.rule].name, out);
	else if (x->verdict == VERDICT_NOTHING && missing_column(x))
		str_puts(out, x->reason.s);
	else if (x->verdict == VERDICT_IDENTICAL && control->digits)
		str_printf(
			out, "identical in the %d digits of the logs", control->digits);
	else if (x->verdict <= VERDICT_WITHIN)
		str_puts(out, verdict_words[x->verdict]);
	else
		str_printf(out, "%s: %s", verdict_words[x->verdict], x->reason.s);
	if (x->verdict <= VERDICT_WITHIN && x->judged.ending.len && !o->judge.rule)
		str_printf(out, "; %s", x->judged.ending.s);
	if (x->verdict <= VERDICT_WITHIN)
		append_nonfinite(&x->exact[0].diff, o->exact.by, out);
}

/* Appends the numbers of loss spikes, and where the first ones are; nothing if there are none. */
static void print_spikes(const struct verdict_result *r, int key_column, struct str *out)
{
	int64_t shown = min64(r->n_spikes, 4);
	if (!r->n_spikes)
		return;
	str_printf(out, "spikes: %lld in tests, %lld in controls, at %s",
		(long long)r->n_spikes, (long long)r->n_control_spikes,
		columns[key_column].name);
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
	outcome_append_verdict(x, o, out);
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
		str_printf(out, "nothing was learned: %s\n", x->judged.note.s);
	str_puts(out, "verdict: ");
	outcome_append_verdict(x, o, out);
	str_putc(out, '\n');
}

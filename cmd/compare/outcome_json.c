/* Prints verdicts as JSON. */
#include "base/json.h"
#include "compare/outcome.h"
#include "compare/speed.h"

#include <math.h>

static json_t *interval_json(const struct interval *i)
{
	json_t *j = json_object();
	put_json(j, "value", number_json(i->value));
	put_json(j, "half_width", number_json(i->half_width));
	return j;
}

/* Adds the direction of a difference, and whether it is better, to an object; null: unknown. */
static void add_direction(json_t *j, int direction, int sense)
{
	put_json(j, "direction",
		direction ? json_string(direction > 0 ? "higher" : "lower")
			  : json_null());
	put_json(j, "better",
		direction && sense ? json_boolean(direction == sense) : json_null());
}

/* Returns a new object: a control's value, a test's value and their difference. */
static json_t *pair_json(const struct value_pair *p, bool with_ulps)
{
	json_t *j = json_object();
	put_json(j, "at", number_json(p->at));
	put_json(j, "control", number_json((double)p->control));
	put_json(j, "test", number_json((double)p->test));
	put_json(j, "difference", number_json(p->test - p->control));
	put_json(j, "ulp",
		!with_ulps || p->ulp == INT64_MAX ? json_null() : json_integer(p->ulp));
	return j;
}

/* Returns a new object: how a column of a test differs from its control, row by row.
 * sense: whether lower or higher is better. */
static json_t *curve_json(const struct curve_diff *c, int sense, bool with_ulps)
{
	json_t *j = json_object();
	put_json(j, "name", text_json(c->name));
	put_json(j, "verdict", json_string(verdict_names[c->verdict]));
	put_json(j, "n", json_integer(c->n_common));
	put_json(j, "n_differ", json_integer(c->n_differ));
	put_json(j, "n_beyond_tolerance", json_integer(c->n_beyond));
	put_json(j, "only_control", json_integer(c->only_control));
	put_json(j, "only_test", json_integer(c->only_test));
	put_json(j, "unread", json_integer(c->unread_control + c->unread_test));
	put_json(j, "n_higher", json_integer(c->n_higher));
	put_json(j, "n_lower", json_integer(c->n_lower));
	add_direction(j, curve_direction(c), sense);
	if (c->n_differ) {
		put_json(j, "first", pair_json(&c->first, with_ulps));
		put_json(j, "largest", pair_json(&c->largest, with_ulps));
	}
	return j;
}

/* Returns a new object: how each column of test i differs from its nearest control. */
static json_t *test_json(const struct outcome *x, const struct outcome_opts *o, int i)
{
	json_t *j = json_object(), *list = json_array();
	const struct run_log *logs = x->runs->logs;
	const struct test_diff *d = &x->exact[i];
	put_json(j, "name", text_json(logs[x->first + i].name));
	put_json(j, "control", text_json(logs[d->control].name));
	put_json(j, "verdict", json_string(verdict_names[d->diff.verdict]));
	put_json(j, "same_arithmetic",
		logs[d->control].info.arithmetic && logs[x->first + i].info.arithmetic
			? json_boolean(!d->diff.arithmetic_differs)
			: json_null());
	for (int k = 0; k < N_CURVES; k++) {
		const struct curve_diff *c = &d->diff.curve[k];
		if (!c->n_common && !c->only_control && !c->only_test)
			continue;
		bool is_judged = o->judge.sense && !strcmp(c->name, o->column);
		json_array_append_new(list,
			curve_json(c, is_judged ? o->judge.sense : column_sense(c->name),
				d->diff.are_from_pt));
	}
	put_json(j, "columns", list);
	put_json(j, "unread_rows", json_integer(d->diff.unread_rows));
	return j;
}

/* Returns a new array with at most MAX_SPIKES spikes. */
static json_t *spikes_json(const struct verdict_result *r)
{
	json_t *list = json_array();
	for (int64_t i = 0; i < min64(r->n_spikes, MAX_SPIKES); i++) {
		json_t *j = json_object();
		put_json(j, "test", json_integer(r->spike[i].run));
		put_json(j, "at", number_json(r->spike[i].at));
		put_json(j, "value", number_json(r->spike[i].value));
		put_json(j, "mean", number_json(r->spike[i].mean));
		put_json(j, "sd", number_json(r->spike[i].sd));
		json_array_append_new(list, j);
	}
	return list;
}

/* Returns a new object with the statistical verdict on a column, and its numbers. */
static json_t *judgement_json(const struct verdict_result *r, const char *column)
{
	json_t *j = json_object();
	put_json(j, "column", text_json(column));
	put_json(j, "verdict", json_string(verdict_names[r->verdict]));
	put_json(j, "reason", text_json(r->reason.s ? r->reason.s : ""));
	put_json(j, "design", json_string(design_names[r->design]));
	put_json(j, "controls", json_integer(r->n_control));
	put_json(j, "tests", json_integer(r->n_test));
	put_json(j, "rows", json_integer(r->n_rows));
	put_json(j, "first", number_json(r->first));
	put_json(j, "last", number_json(r->last));
	put_json(j, "shown", json_boolean(r->shown));
	bool has_diverged =
		r->verdict == VERDICT_DIVERGED; /* maybe to NaN: no direction */
	add_direction(j, r->direction, r->sense);
	if (has_diverged)
		put_json(j, "better", json_false());
	put_json(j, "lone_rows", json_integer(r->n_lone));
	put_json(j, "nonfinite_rows", json_integer(r->n_nonfinite));
	put_json(j, "controls_left_out", json_integer(r->n_left_out));
	put_json(j, "learnt", json_boolean(r->learned));
	put_json(j, "noise_correlation", number_json(r->correlation));
	put_json(j, "differs_at", number_json(r->differs_at));
	put_json(j, "onset", number_json(r->onset));
	put_json(j, "onset_last", number_json(r->onset_last));
	put_json(j, "band", interval_json(&r->at_onset));
	put_json(j, "false_alarm", number_json(r->alarm));
	put_json(j, "confidence", number_json(r->confidence));
	put_json(j, "final_control", number_json(r->final_control));
	put_json(j, "final_test", number_json(r->final_test));
	put_json(j, "difference", interval_json(&r->difference));
	put_json(j, "margin", number_json(r->margin));
	put_json(j, "slope", interval_json(&r->slope));
	put_json(j, "slope_margin", number_json(r->slope_margin));
	put_json(j, "n_spikes", json_integer(r->n_spikes));
	put_json(j, "n_control_spikes", json_integer(r->n_control_spikes));
	put_json(j, "spikes", spikes_json(r));
	return j;
}

static json_t *speed_json(const struct speed *s)
{
	json_t *j = json_object();
	put_json(j, "value", number_json(s->value));
	put_json(j, "error", number_json(s->error * s->value));
	put_json(j, "runs", json_integer(s->n_runs));
	return j;
}

/* Returns a new array: each measurement of speed or memory that all logs have. */
static json_t *speeds_json(const struct outcome *x)
{
	const struct runs *r = x->runs;
	struct speed_diff d[MAX_SPEEDS];
	int n = speed_compare(r->logs, r->n_controls, &r->logs[x->first], x->n, d);
	json_t *list = json_array();
	for (int i = 0; i < n; i++) {
		json_t *j = json_object();
		put_json(j, "name", json_string(columns[d[i].column].name));
		put_json(j, "verdict", json_string(d[i].words));
		put_json(j, "control", speed_json(&d[i].control));
		put_json(j, "test", speed_json(&d[i].test));
		put_json(j, "ratio", number_json(d[i].ratio));
		put_json(j, "low", number_json(d[i].low));
		put_json(j, "high", number_json(d[i].high));
		json_array_append_new(list, j);
	}
	return list;
}

/* Returns a new object with the verdict, all tests, the judged column and the speed. */
static json_t *outcome_json(const struct outcome *x, const struct outcome_opts *o)
{
	json_t *j = json_object(), *list = json_array();
	put_json(j, "verdict", json_string(verdict_names[x->verdict]));
	put_json(j, "reason", text_json(x->reason.s));
	for (int i = 0; i < x->n; i++)
		json_array_append_new(list, test_json(x, o, i));
	put_json(j, "tests", list);
	put_json(j, "judgement",
		x->has_judged ? judgement_json(&x->judged, x->column) : json_null());
	if (o->has_speed)
		put_json(j, "speed", speeds_json(x));
	return j;
}

void outcomes_json(const struct outcomes *all, const struct outcome_opts *o, int code,
	struct str *out)
{
	json_set_alloc_funcs(xmalloc, free);
	json_t *j = json_object(), *list = json_array();
	put_json(j, "program", json_string("pt-compare " PT_VERSION));
	put_json(j, "by", json_string(columns[o->exact.by].name));
	put_json(j, "rtol", number_json(o->exact.rtol));
	put_json(j, "atol", number_json(o->exact.atol));
	put_json(j, "rule", json_string(rules[o->judge.rule].name));
	put_json(j, "verdict", json_string(verdict_names[all->worst]));
	put_json(j, "code", json_integer(code));
	for (int i = 0; i < all->n; i++)
		json_array_append_new(list, outcome_json(&all->v[i], o));
	put_json(j, "comparisons", list);
	char *s = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
	str_printf(out, "%s\n", s);
	free(s);
	json_decref(j);
}

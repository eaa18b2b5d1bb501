/* Verdicts as JSON. */
#include "compare/outcome.h"
#include "compare/speed.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

static void put(json_t *to, const char *key, json_t *value)
{
	BUG_ON(!value || json_object_set_new(to, key, value));
}

static json_t *number(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

/* A log's text that is no UTF-8 has its bytes above 127 replaced. */
static json_t *text(const char *s)
{
	json_t *j = json_string(s);
	struct str ascii = {0};
	if (j)
		return j;
	for (; *s; s++)
		str_putc(&ascii, *s & 0x80 ? '?' : *s);
	j = json_string(ascii.s ? ascii.s : "");
	str_free(&ascii);
	return j;
}

static json_t *of_interval(const struct interval *i)
{
	json_t *j = json_object();
	put(j, "value", number(i->value));
	put(j, "half_width", number(i->half_width));
	return j;
}

static json_t *of_pair(const struct value_pair *p)
{
	json_t *j = json_object();
	put(j, "at", number(p->at));
	put(j, "control", number((double)p->control));
	put(j, "test", number((double)p->test));
	put(j, "difference", number(p->abs));
	put(j, "ulp", p->ulp == INT64_MAX ? json_null() : json_integer(p->ulp));
	return j;
}

static json_t *of_curve(const struct curve_diff *c)
{
	json_t *j = json_object();
	put(j, "name", json_string(columns[c->column].name));
	put(j, "verdict", json_string(verdict_names[c->verdict]));
	put(j, "n", json_integer(c->n_common));
	put(j, "n_differ", json_integer(c->n_differ));
	put(j, "n_beyond_tolerance", json_integer(c->n_beyond));
	put(j, "only_control", json_integer(c->only_control));
	put(j, "only_test", json_integer(c->only_test));
	put(j, "unread", json_integer(c->unread_control + c->unread_test));
	if (c->n_differ) {
		put(j, "first", of_pair(&c->first));
		put(j, "largest", of_pair(&c->largest));
	}
	return j;
}

static json_t *of_test(const struct outcome *x, int i)
{
	json_t *j = json_object(), *list = json_array();
	const struct run_log *logs = x->runs->logs;
	const struct test_diff *d = &x->exact[i];
	put(j, "name", text(logs[x->first + i].name));
	put(j, "control", text(logs[d->control].name));
	put(j, "verdict", json_string(verdict_names[d->diff.verdict]));
	put(j, "same_arithmetic",
		logs[d->control].info.arithmetic && logs[x->first + i].info.arithmetic
			? json_boolean(!d->diff.other_arithmetic)
			: json_null());
	for (int c = 0; c < N_COLUMNS; c++)
		if (d->diff.curve[c].n_common || d->diff.curve[c].only_control ||
			d->diff.curve[c].only_test)
			json_array_append_new(list, of_curve(&d->diff.curve[c]));
	put(j, "columns", list);
	put(j, "unread_rows", json_integer(d->diff.unread_rows));
	return j;
}

static json_t *of_spikes(const struct verdict_result *r)
{
	json_t *list = json_array();
	for (int64_t i = 0; i < min64(r->n_spikes, MAX_SPIKES); i++) {
		json_t *j = json_object();
		put(j, "test", json_integer(r->spike[i].run));
		put(j, "at", number(r->spike[i].at));
		put(j, "value", number(r->spike[i].value));
		put(j, "mean", number(r->spike[i].mean));
		put(j, "sd", number(r->spike[i].sd));
		json_array_append_new(list, j);
	}
	return list;
}

static json_t *of_judgement(const struct verdict_result *r, const char *column)
{
	json_t *j = json_object();
	put(j, "column", text(column));
	put(j, "verdict", json_string(verdict_names[r->verdict]));
	put(j, "reason", text(r->reason.s ? r->reason.s : ""));
	put(j, "design", json_string(design_names[r->design]));
	put(j, "controls", json_integer(r->n_control));
	put(j, "tests", json_integer(r->n_test));
	put(j, "rows", json_integer(r->n_rows));
	put(j, "first", number(r->first));
	put(j, "last", number(r->last));
	put(j, "lone_rows", json_integer(r->n_lone));
	put(j, "nonfinite_rows", json_integer(r->n_nonfinite));
	put(j, "controls_left_out", json_integer(r->n_left_out));
	put(j, "learnt", json_boolean(r->learnt));
	put(j, "noise_correlation", number(r->correlation));
	put(j, "differs_at", number(r->differs_at));
	put(j, "onset", number(r->onset));
	put(j, "onset_last", number(r->onset_last));
	put(j, "band", of_interval(&r->at_onset));
	put(j, "false_alarm", number(r->alarm));
	put(j, "confidence", number(r->confidence));
	put(j, "final_control", number(r->final_control));
	put(j, "final_test", number(r->final_test));
	put(j, "difference", of_interval(&r->difference));
	put(j, "margin", number(r->margin));
	put(j, "slope", of_interval(&r->slope));
	put(j, "slope_margin", number(r->slope_margin));
	put(j, "n_spikes", json_integer(r->n_spikes));
	put(j, "n_control_spikes", json_integer(r->n_control_spikes));
	put(j, "spikes", of_spikes(r));
	return j;
}

static json_t *of_side(const struct speed *s)
{
	json_t *j = json_object();
	put(j, "value", number(s->value));
	put(j, "error", number(s->error));
	put(j, "runs", json_integer(s->n_runs));
	return j;
}

static json_t *of_speeds(const struct outcome *x)
{
	const struct runs *r = x->runs;
	struct speed_diff d[MAX_SPEEDS];
	int n = speed_compare(r->logs, r->n_controls, &r->logs[x->first], x->n, d);
	json_t *list = json_array();
	for (int i = 0; i < n; i++) {
		json_t *j = json_object();
		put(j, "name", json_string(columns[d[i].column].name));
		put(j, "verdict", json_string(d[i].words));
		put(j, "control", of_side(&d[i].control));
		put(j, "test", of_side(&d[i].test));
		put(j, "ratio", number(d[i].ratio));
		put(j, "low", number(d[i].low));
		put(j, "high", number(d[i].high));
		json_array_append_new(list, j);
	}
	return list;
}

static json_t *of_outcome(const struct outcome *x, const struct outcome_opts *o)
{
	json_t *j = json_object(), *list = json_array();
	put(j, "verdict", json_string(verdict_names[x->verdict]));
	put(j, "reason", text(x->reason.s));
	for (int i = 0; i < x->n; i++)
		json_array_append_new(list, of_test(x, i));
	put(j, "tests", list);
	put(j, "judgement",
		x->has_judged ? of_judgement(&x->judged, o->column) : json_null());
	if (o->speed)
		put(j, "speed", of_speeds(x));
	return j;
}

void outcomes_json(const struct outcomes *all, const struct outcome_opts *o, int code,
	struct str *out)
{
	json_set_alloc_funcs(xmalloc, free);
	json_t *j = json_object(), *list = json_array();
	put(j, "program", json_string("pt-compare " PT_VERSION));
	put(j, "by", json_string(columns[o->exact.by].name));
	put(j, "rtol", number(o->exact.rtol));
	put(j, "atol", number(o->exact.atol));
	put(j, "rule", json_string(rules[o->judge.rule].name));
	put(j, "verdict", json_string(verdict_names[all->worst]));
	put(j, "code", json_integer(code));
	for (int i = 0; i < all->n; i++)
		json_array_append_new(list, of_outcome(&all->v[i], o));
	put(j, "comparisons", list);
	char *s = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
	str_printf(out, "%s\n", s);
	free(s);
	json_decref(j);
}

/* The text and values of a report, in any format. */
#include "check/report.h"
#include "foreign/foreign.h"

#include <math.h>
#include <string.h>

const struct tensor_check *first_wrong_gradient(const struct step_check *c)
{
	for (int i = c->n - 1; i >= 0; i--)
		if (c->tensors[c->order[i]].gradient.wrong)
			return &c->tensors[c->order[i]];
	return NULL;
}

bool has_finding(const struct tensor_check *x, int finding)
{
	return x->found >> finding & 1;
}

static bool row_tensor_has(const struct check_report *r, int tensor, int finding)
{
	return tensor >= 0 && has_finding(&r->c->tensors[tensor], finding);
}

/* Appends the layers with the finding: "0-5,7"; "*" if all layers with such a tensor have it. */
static void append_layers(const struct check_report *r, const struct map_row *row,
	int finding, struct str *out)
{
	const char *separator = "";
	int n_tensors = 0, n_found = 0;
	for (int i = 0; i < row->n; i++) {
		n_tensors += row->tensors[i] >= 0;
		n_found += row_tensor_has(r, row->tensors[i], finding);
	}
	if (n_found == n_tensors && n_tensors > 1) {
		str_putc(out, '*');
		return;
	}
	for (int i = 0, last; i < row->n; i = last + 1) {
		last = i;
		if (!row_tensor_has(r, row->tensors[i], finding))
			continue;
		while (last + 1 < row->n &&
			row_tensor_has(r, row->tensors[last + 1], finding))
			last++;
		str_printf(out, "%s%lld", separator, (long long)r->layers[i]);
		if (last > i)
			str_printf(out, "-%lld", (long long)r->layers[last]);
		separator = ",";
	}
}

bool report_row_tensors(const struct check_report *r, const struct map_row *row,
	int finding, struct str *out)
{
	bool any = false;
	for (int i = 0; i < row->n; i++)
		any |= row_tensor_has(r, row->tensors[i], finding);
	if (!any)
		return false;
	str_puts(out, out->len ? ", " : "");
	if (!row->outside) {
		str_puts(out, "layers.");
		append_layers(r, row, finding, out);
		str_putc(out, '.');
	}
	str_puts(out, row->name);
	return true;
}

void report_tensors(const struct check_report *r, int finding, struct str *out)
{
	for (int k = 0; k < r->n_rows; k++)
		report_row_tensors(r, &r->rows[k], finding, out);
}

/* Appends why the step is right, and which parts were not checked. */
static void append_right_reason(const struct step_check *c, struct str *out)
{
	scoped_str except = {0};
	append_verdict_exceptions(c, &except);
	str_puts(out, step_verdict(c)->reason);
	if (except.len)
		str_printf(out, "; %s", except.s);
}

void append_verdict_reason(const struct step_check *c, struct str *out)
{
	int n = count_findings(c, false), notes = count_findings(c, true);
	if (c->wrong)
		str_printf(out, "%d finding%s", n, plural(n));
	else
		append_right_reason(c, out);
	if (notes)
		str_printf(out, "; %d note%s", notes, plural(notes));
}

/* Appends how many tensors are within bounds, and the bounds; or why none was tested. */
static void append_tally(
	const struct step_check *c, enum check_test test, struct str *out)
{
	const struct tally t = tally_test(c, test);
	char low[NUM_TEXT], high[NUM_TEXT];
	if (!t.tested) {
		scoped_str why = {0};
		describe_unchecked(c,
			test == TEST_GRADIENT  ? CHECK_GRADIENTS
			: test == TEST_MOMENTS ? CHECK_MOMENTS
					       : CHECK_UPDATE,
			&why);
		str_printf(
			out, "not tested%s%s", why.len ? ": " : "", why.len ? why.s : "");
		return;
	}
	format_number(low, 2, t.min_bound);
	format_number(high, 2, t.max_bound);
	str_printf(out, "%d of %d tensor%s within bounds of %s", t.tested - t.wrong,
		t.tested, plural(t.tested), low);
	if (strcmp(low, high) != 0)
		str_printf(out, " to %s", high);
	if (t.tested < c->n)
		str_printf(out, "; %d %s", c->n - t.tested,
			test == TEST_GRADIENT ? "are zero except for rounding"
					      : "not tested");
}

static void append_file(const struct ckpt_view *v, bool moments, struct str *out)
{
	str_printf(out, "%s (%s), %d tensor%s%s", v->name, v->format, v->n_tensors,
		plural(v->n_tensors), moments ? "" : ", no moments");
}

static void append_first_file(const struct check_report *r, struct str *out)
{
	append_file(&r->c->files.before, r->c->files.m0 >= 0, out);
}

static void append_second_file(const struct check_report *r, struct str *out)
{
	if (!r->c->files.no_after)
		append_file(&r->c->files.after, r->c->files.m1 >= 0, out);
}

static void append_given_files(const struct check_report *r, struct str *out)
{
	append_given_names(&r->c->given, out);
}

/* Appends the names of the batch's files, at most MAX_FILES, and its size. */
static void append_batch(const struct check_report *r, struct str *out)
{
	enum { MAX_FILES = 8 };
	const struct token_batch *b = &r->c->batch;
	if (!r->c->has_reference) {
		str_puts(out, "none: gradients are not tested");
		return;
	}
	for (int64_t i = 0; i < r->batch->n && i < MAX_FILES; i++)
		str_printf(out, "%s%s", i ? ", " : "", r->batch->v[i]);
	if (r->batch->n > MAX_FILES)
		str_printf(out, " and %lld more", (long long)r->batch->n - MAX_FILES);
	str_printf(out, ": %lld sequence%s of %lld positions, %lld targets%s%s%s",
		(long long)b->n, plural(b->n), (long long)b->length,
		(long long)b->counted, b->weights ? " with weights" : "",
		b->masked ? ", the rest masked" : "",
		b->documents ? ", attention within documents" : "");
}

static void append_reference(const struct check_report *r, struct str *out)
{
	const struct step_check *c = r->c;
	if (c->has_reference)
		str_printf(out, "loss and gradients in %s", c->computed);
}

/* Appends the precision, and each parallel degree above 1: "fp32, dp=2, tp=4". */
static void append_layout(const struct check_report *r, struct str *out)
{
	static const char *const precisions[] = {RUN_PRECISION_WORDS};
	const struct check_opts *o = &r->c->o;
	const struct {
		const char *what;
		int64_t n;
	} degrees[] = {{"dp", o->dp}, {"fsdp", o->fsdp}, {"tp", o->tp}, {"cp", o->cp},
		{"accumulation", o->accumulation}};
	str_puts(out, r->c->undecided ? "unknown precision" : precisions[o->precision]);
	for (size_t i = 0; i < ARRAY_LEN(degrees); i++)
		if (degrees[i].n > 1)
			str_printf(out, ", %s=%lld", degrees[i].what,
				(long long)degrees[i].n);
}

/* Appends AdamW's settings; nothing if --grads was given without exp_avg. */
static void append_optimizer(const struct check_report *r, struct str *out)
{
	const struct adam *a = &r->c->files.adam;
	if (r->c->given.n && r->c->files.m1 < 0)
		return; /* (the optimizer may be another one) */
	str_printf(out, "AdamW, step %.0f, beta1 %.4g, beta2 %.4g, eps %.3g, ",
		r->c->files.step, a->beta1, a->beta2, a->eps);
	if (a->clip > 0)
		str_printf(out, "gradients clipped to %.4g", a->clip);
	else
		str_puts(out, a->clip < 0 ? "clipping unknown" : "no clipping");
}

static void append_gradients(const struct check_report *r, struct str *out)
{
	if (r->c->has_reference || r->c->files.two_runs)
		append_tally(r->c, TEST_GRADIENT, out);
}

static void append_moments(const struct check_report *r, struct str *out)
{
	append_tally(r->c, TEST_MOMENTS, out);
}

static void append_updates(const struct check_report *r, struct str *out)
{
	append_tally(r->c, TEST_UPDATE, out);
}

static void append_copies(const struct check_report *r, struct str *out)
{
	append_copy_counts(r->c, out);
}

/* Flags: a fact applies to one step, to two runs, or to both. */
enum { FOR_STEP = 1, FOR_RUNS = 2 };

static const struct {
	const char *name;
	int applies_to;
	void (*put)(const struct check_report *r,
		struct str *out); /* a fact without text is left out */
} facts[] = {
	{"Before", FOR_STEP, append_first_file},
	{"After", FOR_STEP, append_second_file},
	{"First run", FOR_RUNS, append_first_file},
	{"Second run", FOR_RUNS, append_second_file},
	{"Gradients from", FOR_STEP, append_given_files},
	{"Batch", FOR_STEP, append_batch},
	{"Reference", FOR_STEP, append_reference},
	{"Precision and layout", FOR_STEP | FOR_RUNS, append_layout},
	{"Optimizer", FOR_STEP | FOR_RUNS, append_optimizer},
	{"Gradients", FOR_STEP | FOR_RUNS, append_gradients},
	{"Moments", FOR_STEP, append_moments},
	{"Update", FOR_STEP, append_updates},
	{"Copies", FOR_STEP | FOR_RUNS, append_copies},
};

_Static_assert(ARRAY_LEN(facts) == N_REPORT_FACTS, "the number of facts");

const char *report_fact(const struct check_report *r, int i, struct str *text)
{
	str_clear(text);
	if (facts[i].applies_to & (r->c->files.two_runs ? FOR_RUNS : FOR_STEP))
		facts[i].put(r, text);
	return text->len ? facts[i].name : NULL;
}

double known_or_nan(bool is_known, double v)
{
	return is_known ? v : NAN;
}

/* Lists expected and seen losses, norms, factors and rates. Returns their number. */
int list_report_scales(
	const struct step_check *c, struct report_scale s[AT_LEAST(MAX_REPORT_SCALES)])
{
	const struct adam *a = &c->files.adam;
	double norm = c->reference.norm;
	double factor = clip_factor(a->clip, norm);
	int n = 0;
	if (c->has_reference) {
		s[n++] = (struct report_scale){"loss", c->reference.loss,
			known_or_nan(!isnan(c->o.loss), c->o.loss)};
		s[n++] = (struct report_scale){"norm of the gradient (grad_norm)", norm,
			known_or_nan(c->o.grad_norm > 0, c->o.grad_norm)};
		s[n++] = (struct report_scale){"factor of the gradient, by clipping",
			known_or_nan(a->clip >= 0, factor), c->scale.common};
		s[n++] = (struct report_scale){"norm that the optimizer saw",
			known_or_nan(a->clip >= 0, factor * norm),
			known_or_nan(c->scale.seen_norm > 0, c->scale.seen_norm)};
	}
	if (c->files.two_runs)
		s[n++] = (struct report_scale){
			"factor of the second run's gradients", 1, c->scale.common};
	if (c->lr > 0) {
		s[n++] = (struct report_scale){
			"learning rate", known_or_nan(a->lr >= 0, a->lr), c->lr};
		s[n++] = (struct report_scale){
			"weight decay", known_or_nan(a->decay >= 0, a->decay), c->decay};
	}
	BUG_ON(n > MAX_REPORT_SCALES);
	return n;
}

const char *format_number(char buf[AT_LEAST(NUM_TEXT)], int digits, double v)
{
	*buf = '\0';
	if (v == v)
		snprintf(buf, NUM_TEXT, "%.*g", digits, v);
	return buf;
}

const char *report_scale_note(const struct step_check *c)
{
	return !c->has_reference && !c->files.two_runs ? NULL
	       : !c->scale.n_right ? "The scale is not checked: the gradients differ."
	       : !c->scale.checked ? "The scale is not checked: clipping may hide a "
				     "wrong scale; give --grad-norm."
				   : NULL;
}

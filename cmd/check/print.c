/* Prints what was found, as text and as JSON. */
#include "check/report.h"

#include "base/json.h"
#include "foreign/foreign.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Counts the tensors that a test tested and found wrong. */
struct tally tally_test(const struct step_check *c, enum check_test test)
{
	struct tally t = {.min_bound = INFINITY};
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[c->order[i]];
		const struct distance *d = distance_in(x, test), *w;
		if (!d->tested)
			continue;
		t.tested++;
		t.wrong += d->wrong;
		t.min_bound = fmin(t.min_bound, d->bound);
		t.max_bound = fmax(t.max_bound, d->bound);
		w = t.worst ? distance_in(t.worst, test) : NULL;
		if (!w || d->value / d->bound > w->value / w->bound)
			t.worst = x;
	}
	return t;
}

/* Appends the line of a test: how many tensors are within bounds, and the worst one.
 * Appends nothing if no tensor was tested. */
static void append_tally(
	const struct step_check *c, enum check_test test, struct str *out)
{
	static const char *const names[] = {"grads", "moments", "update"};
	const struct tally t = tally_test(c, test);
	if (!t.tested)
		return;
	const struct distance *w = distance_in(t.worst, test);
	str_printf(out, "%-8s%d of %d within bounds; worst %.2g, bound %.1g: %s",
		names[test], t.tested - t.wrong, t.tested, w->value, w->bound,
		t.worst->name);
	if (test == TEST_GRADIENT && t.tested < c->n)
		str_printf(out, "; %d not tested: zero, or smaller than rounding errors",
			c->n - t.tested);
	str_putc(out, '\n');
}

/* Appends a line about a part that was not checked. (The scale has its own line.) */
static void append_unchecked(
	const struct step_check *c, enum check_part part, struct str *out)
{
	static const char *const names[] = {"grads", "scale", "moments", "update"};
	scoped_str why = {0};
	describe_unchecked(c, part, &why);
	if (why.len && (part != CHECK_GRADIENTS || c->has_reference))
		str_printf(out, "%-8sNOT checked: %s\n", names[part], why.s);
}

static void append_file(
	const char *what, const struct ckpt_view *v, bool moments, struct str *out)
{
	str_printf(out, "%-8s%s: %s, %d tensors%s\n", what, v->name, v->format,
		v->n_tensors, moments ? "" : "; no moments");
}

/* Appends the line with the size of the batch, the loss and the reference's precision. */
static void append_batch(const struct step_check *c, struct str *out)
{
	const struct token_batch *b = &c->batch;
	str_printf(out,
		"batch   %lld sequence%s of %lld positions, %lld targets%s%s; loss %.6f",
		(long long)b->n, plural(b->n), (long long)b->length,
		(long long)b->counted, b->weights ? " with weights" : "",
		b->documents ? ", attention within documents" : "", c->reference.loss);
	if (has_balance_loss(&c->weights))
		str_printf(out, ", balance loss %.3g",
			balance_value(&c->weights, &c->batch));
	if (!isnan(c->o.loss))
		str_printf(out, ", logged %.6g", c->o.loss);
	str_printf(out, " (%s)\n", c->computed);
}

/* Appends the line with grad_norm, the common factor and what clipping does to it. */
static void append_scale(const struct step_check *c, struct str *out)
{
	double norm = c->reference.norm, clip = c->files.adam.clip;
	str_printf(out, "scale   grad_norm %.6g", norm);
	if (c->o.grad_norm > 0)
		str_printf(out, ", logged %.6g", c->o.grad_norm);
	str_printf(out, "; the file's gradient is %.6f times as large", c->scale.common);
	if (c->scale.clipped && clip > 0)
		str_printf(out, ", clipping to %.4g gives %.6f", clip,
			clip_factor(clip, norm));
	else if (c->scale.clipped)
		str_printf(out, ", as if clipped to %.5g (--clip %.5g?)",
			c->scale.seen_norm, c->scale.seen_norm);
	if (!c->scale.n_right)
		str_puts(out, "; not checked: the gradients differ");
	else if (!c->scale.checked)
		str_puts(out,
			c->given.loss_scale > 1
				? "; NOT checked: the gradients may contain a loss scale"
				: "; NOT checked: clipping may hide a wrong "
				  "scale; give --grad-norm");
	str_putc(out, '\n');
}

/* Appends the learning rate and the weight decay; nothing if the rate is unknown. */
static void append_update(const struct step_check *c, struct str *out)
{
	int decayed = 0, plain = 0;
	if (!(c->lr > 0))
		return;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		if (!x->decays || x->update.wrong)
			continue;
		bool is_plain = !(fabs(x->decay) > fabs(x->decay - c->decay));
		decayed += !is_plain && c->decay > 0 &&
			   fabs(x->decay - c->decay) <= fmax(0.01, 0.02 * c->decay);
		plain += is_plain && fabs(x->decay) <= 0.01;
	}
	str_printf(out, "        learning rate %.6g at the optimizer's step %.0f", c->lr,
		c->files.step);
	if (decayed)
		str_printf(out, "; weight decay: %.3g (%d tensor%s), none (%d)", c->decay,
			decayed, plural(decayed), plain);
	else if (plain)
		str_printf(out, "; weight decay: none (%d tensors)", plain);
	str_putc(out, '\n');
}

/* Appends the names of the tensors with this cause, in backward order. */
static void append_names(const struct check_report *r, int cause, struct str *out)
{
	enum { MAX_NAMES = 6 };
	struct str names = {0}, others = {0};
	int n = 0;
	for (int k = r->n_rows - 1; k >= 0; k--)
		n += report_row_tensors(
			r, &r->rows[k], cause, n < MAX_NAMES ? &names : &others);
	str_puts(out, names.s);
	if (n > MAX_NAMES)
		str_printf(out, " and %d more", n - MAX_NAMES);
	str_free(&names);
	str_free(&others);
}

enum { FILE_NAME_TEXT = 140 };

/* Returns " (NAME)" if the checkpoint has another name for the tensor, else "". x may be NULL. */
static const char *name_in_file(
	const struct tensor_check *x, char text[static FILE_NAME_TEXT])
{
	text[0] = '\0';
	if (x && *x->file_name)
		snprintf(text, FILE_NAME_TEXT, " (%s)", x->file_name);
	return text;
}

static const struct tensor_check *find_tensor_named(
	const struct step_check *c, const char *name)
{
	int i = 0;
	while (i < c->n && strcmp(c->tensors[i].name, name) != 0)
		i++;
	return i < c->n ? &c->tensors[i] : NULL;
}

/* Appends the first wrong tensor in backward order, then one line per finding or note. */
static void append_findings(const struct step_check *c, struct str *out)
{
	struct check_report r;
	char name[FILE_NAME_TEXT];
	const struct tensor_check *first = first_wrong_gradient(c);
	if (first)
		str_printf(out,
			"first   wrong in backward order: %s%s, residual %.2g, bound %.1g\n",
			first->name, name_in_file(first, name), first->gradient.value,
			first->gradient.bound);
	report_maps_init(&r, c, NULL);
	for (int k = 0; k < c->n_findings; k++) {
		const struct finding *f = &c->findings[k];
		str_puts(out, is_note(f) ? "note    " : "finding ");
		if (f->kind == FINDING_GRADIENT) {
			append_names(&r, k, out);
			if (f->n == 1)
				str_puts(out, name_in_file(find_tensor_named(c, f->first),
						      name));
			str_printf(out, " (%d): ", f->n);
		} else if (*f->first) {
			str_printf(out, "%s%s", f->first,
				name_in_file(find_tensor_named(c, f->first), name));
			if (f->n > 1)
				str_printf(out, " and %d more", f->n - 1);
			str_puts(out, ": ");
		}
		str_printf(out, "%s\n", f->text);
	}
	report_maps_release(&r);
}

void step_check_print_verdict(const struct step_check *c, struct str *out)
{
	const struct check_verdict *v = step_verdict(c);
	scoped_str except = {0};
	int n = count_findings(c, false);
	append_verdict_exceptions(c, &except);
	if (c->wrong)
		str_printf(out, "verdict: wrong: %d finding%s\n", n, plural(n));
	else
		str_printf(out, "verdict: %s%s%s\n", v->line,
			!except.len			       ? ""
			: c->undecided || c->choices.undecided ? "; "
							       : ", but ",
			except.len ? except.s : "");
}

void step_check_print(const struct step_check *c, struct str *out)
{
	bool two = c->files.two_runs;
	append_file(two ? "first" : "before", &c->files.before, c->files.m0 >= 0, out);
	if (!c->files.no_after)
		append_file(
			two ? "second" : "after", &c->files.after, c->files.m1 >= 0, out);
	if (c->run_facts_text)
		str_printf(out, "run     %s, from the files of Trainer\n",
			c->run_facts_text);
	append_given_line(&c->given, c->n, out);
	if (two)
		str_printf(out, "        both after step %.0f: exp_avg is compared\n",
			c->files.step);
	if (c->has_reference) {
		append_batch(c, out);
		append_choices_line(c, out);
		append_biases_line(c, out);
		append_scale(c, out);
	} else if (two && !c->scale.checked)
		str_puts(out, "scale   NOT checked: clipping may hide a wrong "
			      "scale; give --grad-norm X,Y\n");
	for (enum check_test t = 0; t < N_CHECK_TESTS; t++) {
		static const enum check_part parts[] = {
			CHECK_GRADIENTS, CHECK_MOMENTS, CHECK_UPDATE};
		append_tally(c, t, out);
		if (c->tested)
			append_unchecked(c, parts[t], out);
	}
	append_update(c, out);
	if (c->copies[1].n) {
		str_puts(out, "copies  ");
		append_copy_counts(c, out);
		str_putc(out, '\n');
	}
	append_findings(c, out);
	step_check_print_verdict(c, out);
}

/* Returns a new object with the residual and its bound; null if it was not tested. */
static json_t *distance_json(const struct distance *d)
{
	json_t *j = json_object();
	if (!d->tested) {
		json_decref(j);
		return json_null();
	}
	put_json(j, "residual", number_json(d->value));
	put_json(j, "bound", number_json(d->bound));
	put_json(j, "wrong", json_boolean(d->wrong));
	return j;
}

/* Returns a new array with one object per tensor that the file after the step stores twice. */
static json_t *copies_json(const struct step_check *c)
{
	json_t *all = json_array();
	for (int64_t i = 0; i < c->copies[1].n; i++) {
		const struct copy_check *x = &c->copies[1].items[i];
		json_t *j = json_object();
		put_json(j, "name", text_json(x->name));
		put_json(j, "of", json_string(x->owner));
		put_json(j, "compared_with", json_string(x->read_owner));
		put_json(j, "elements", json_integer(x->n));
		put_json(j, "different", json_integer(x->n_different));
		put_json(j, "first",
			x->n_different ? json_integer(x->first_different) : json_null());
		put_json(j, "distance", number_json(x->distance));
		BUG_ON(json_array_append_new(all, j));
	}
	return all;
}

/* Returns a new object with the results of all tests of tensor x. */
static json_t *tensor_json(const struct step_check *c, const struct tensor_check *x)
{
	json_t *j = json_object();
	put_json(j, "name", json_string(x->name));
	put_json(j, "file_name", text_json(*x->file_name ? x->file_name : x->name));
	put_json(j, "elements", json_integer(x->n));
	put_json(j, "gradient_norm", number_json(x->norm));
	put_json(j, "factor", c->has_reference ? number_json(x->factor) : json_null());
	put_json(j, "gradient", distance_json(&x->gradient));
	put_json(j, "moments", distance_json(&x->moments));
	put_json(j, "update", distance_json(&x->update));
	put_json(j, "learning_rate", x->update.tested ? number_json(x->lr) : json_null());
	put_json(j, "weight_decay", x->decays ? number_json(x->decay) : json_null());
	put_json(j, "finite", json_boolean(!x->nonfinite));
	put_json(j, "changed", json_boolean(!x->unchanged));
	put_json(j, "cause",
		x->gradient.wrong && x->cause >= 0
			? json_string(c->findings[x->cause].text)
			: json_null());
	return j;
}

/* Returns whether a part was checked, and why not; null for a part that two runs lack. */
static json_t *part_json(const struct step_check *c, enum check_part part)
{
	const bool needs_one_run = part == CHECK_MOMENTS || part == CHECK_UPDATE;
	scoped_str why = {0};
	if (needs_one_run && c->files.two_runs)
		return json_null();
	json_t *j = json_object();
	int n = describe_unchecked(c, part, &why);
	put_json(j, "checked", json_boolean(!why.len));
	put_json(j, "reason", why.len ? text_json(why.s) : json_null());
	put_json(j, "tensors_not_checked", n ? json_integer(n) : json_null());
	return j;
}

void step_check_json(const struct step_check *c, struct str *out)
{
	json_t *j = json_object(), *tensors = json_array(), *findings = json_array();
	put_json(j, "before", text_json(c->files.before.name));
	put_json(j, "after",
		c->files.no_after ? json_null() : text_json(c->files.after.name));
	if (c->run_facts_text)
		put_json(j, "from_files", json_string(c->run_facts_text));
	if (c->given.n)
		put_json(j, "gradients_given", json_boolean(true));
	put_json(j, "verdict", json_string(step_verdict(c)->word));
	put_json(j, "optimizer_step", number_json(c->files.step));
	put_json(j, "learning_rate", number_json(c->lr));
	if (c->has_reference) {
		put_json(j, "reference", json_string(c->computed));
		put_json(j, "loss", number_json(c->reference.loss));
		put_json(j, "grad_norm", number_json(c->reference.norm));
		put_json(j, "common_factor", number_json(c->scale.common));
	}
	if (c->has_reference || c->files.two_runs)
		put_json(j, "scale_checked", json_boolean(c->scale.checked));
	for (enum check_part p = 0; p < N_CHECK_PARTS; p++)
		put_json(j, check_part_names[p], part_json(c, p));
	for (int k = 0; k < c->n_findings; k++) {
		json_t *f = json_object();
		put_json(f, "text", json_string(c->findings[k].text));
		put_json(f, "tensors", json_integer(c->findings[k].n));
		put_json(f, "note", json_boolean(is_note(&c->findings[k])));
		BUG_ON(json_array_append_new(findings, f));
	}
	put_json(j, "findings", findings);
	put_json(j, "copies", copies_json(c));
	for (int i = 0; i < c->n; i++)
		BUG_ON(json_array_append_new(
			tensors, tensor_json(c, &c->tensors[c->order[i]])));
	put_json(j, "tensors", tensors);
	char *all = json_dumps(
		j, JSON_INDENT(1) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
	str_printf(out, "%s\n", all);
	free(all);
	json_decref(j);
}

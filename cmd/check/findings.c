/* Findings: their kinds, the meaning of each, and the verdict. */
#include "check/report.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char not_of_batch[] =
	"The gradient that the optimizer saw differs from the batch's gradient: the backward "
	"pass, or an all-reduce, is wrong for these tensors.";

static const struct {
	const char *meaning;
	const char *meaning_of_two_runs; /* meaning for two runs; NULL: same as meaning */
} kinds[N_FINDING_KINDS] = {
	[FINDING_GRADIENT] = {not_of_batch,
		"The gradients of the runs differ in these tensors: the backward pass, or "
		"an all-reduce, is wrong in one run."},
	[FINDING_ZERO] = {not_of_batch},
	[FINDING_NO_GRADIENT] =
		{"Neither moment gained anything: the optimizer had no gradients for "
		 "these tensors, or zeros."},
	[FINDING_FROZEN] = {"The run should not train these tensors (--freeze)."},
	[FINDING_NOT_FINITE] = {"Parameters or moments are infinite or NaN."},
	[FINDING_MOMENTS] =
		{"Both moments must gain from the same gradient; here they did not."},
	[FINDING_UPDATE] =
		{"These parameters did not change as AdamW would change them."},
	[FINDING_LOSS] = {"The forward pass is already wrong: look there first."},
	[FINDING_SCALE] =
		{"The gradient has the right direction, but the wrong norm. AdamW divides the "
		 "norm out, so the loss hardly shows it; clipping and the logged norm do."},
	[FINDING_CLIP] =
		{"Gradients are clipped by a wrong norm: over all ranks, it must count "
		 "each part of each tensor once."},
	[FINDING_BETA2] = {"The second moments follow from another beta2."},
	[FINDING_COPIES] =
		{"Copies of a tensor on several ranks must be equal, bit by bit. From "
		 "here on these ranks train different models."},
	[FINDING_STEP] = {"This is about the whole step, not about single tensors."},
	[FINDING_NOTE] = {"This is not an error if it is intended."},
};

const char *finding_meaning(const struct step_check *c, int finding)
{
	enum finding_kind kind = c->findings[finding].kind;
	const char *other = c->files.two_runs ? kinds[kind].meaning_of_two_runs : NULL;
	return other ? other : kinds[kind].meaning;
}

/* Marks the tensor (NULL: none) with the finding. Returns the finding's index. */
static int mark_tensor(struct step_check *c, const struct tensor_check *x, int finding)
{
	if (x)
		c->tensors[x - c->tensors].found |= UINT64_C(1) << finding;
	return finding;
}

/* Counts a finding that no longer fits in the list in the last entry. */
static void count_overflow(struct finding *last, enum finding_kind kind)
{
	snprintf(last->text, sizeof(last->text),
		"more findings; --json lists all tensors");
	if (last->kind == FINDING_NOTE || kind == FINDING_GRADIENT)
		last->kind = kind;
	last->n++;
}

int add_finding(struct step_check *c, enum finding_kind kind,
	const struct tensor_check *x, const char *fmt, ...)
{
	char text[FINDING_TEXT];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	c->wrong |= kind != FINDING_NOTE;
	/* (a right update cannot follow from wrong moments) */
	if (kind == FINDING_UPDATE && x->moments.wrong)
		kind = FINDING_MOMENTS;
	for (int i = 0; i < c->n_findings; i++)
		if (!strcmp(c->findings[i].text, text))
			return c->findings[i].n++, mark_tensor(c, x, i);
	if (c->n_findings == MAX_FINDINGS) {
		count_overflow(&c->findings[MAX_FINDINGS - 1], kind);
		return mark_tensor(c, x, MAX_FINDINGS - 1);
	}
	struct finding *f = &c->findings[c->n_findings];
	*f = (struct finding){.kind = kind, .n = x != NULL};
	memcpy(f->text, text, sizeof(text));
	snprintf(f->first, sizeof(f->first), "%s", x ? x->name : "");
	return mark_tensor(c, x, c->n_findings++);
}

/* Returns the sort key of a kind: possible consequences of wrong gradients sort after them. */
static int sort_key(enum finding_kind kind)
{
	switch (kind) {
	case FINDING_GRADIENT:
	case FINDING_ZERO:
	case FINDING_NO_GRADIENT:
		return 1;
	case FINDING_SCALE:
	case FINDING_CLIP:
	case FINDING_MOMENTS:
	case FINDING_UPDATE:
		return 2;
	case FINDING_NOTE:
		return 3;
	default:
		return 0;
	}
}

/* Sorts causes before their possible consequences, and renumbers the findings of all tensors. */
void sort_findings(struct step_check *c)
{
	struct finding sorted[MAX_FINDINGS];
	int new_index[MAX_FINDINGS], n = 0;
	if (c->n_findings ==
		MAX_FINDINGS) /* (the last entry collects others and must stay last) */
		return;
	for (int key = 0; key < 4; key++)
		for (int k = 0; k < c->n_findings; k++)
			if (sort_key(c->findings[k].kind) == key) {
				sorted[n] = c->findings[k];
				new_index[k] = n++;
			}
	memcpy(c->findings, sorted, (size_t)n * sizeof(*sorted));
	for (int i = 0; i < c->n; i++) {
		struct tensor_check *x = &c->tensors[i];
		uint64_t found = 0;
		for (int k = 0; k < n; k++)
			found |= (x->found >> k & 1) << new_index[k];
		x->found = found;
		x->cause = x->cause < 0 ? -1 : new_index[x->cause];
	}
}

int count_findings(const struct step_check *c, bool notes)
{
	int n = 0;
	for (int k = 0; k < c->n_findings; k++)
		n += is_note(&c->findings[k]) == notes;
	return n;
}

const char *const check_part_names[] = {"gradients", "scale", "moments", "update"};

/* Appends why not all gradients were checked. Returns the number of unchecked ones; 0: all. */
static int unchecked_gradients(const struct step_check *c, struct str *why)
{
	int n_hidden = 0, n = 0;
	if (!c->has_reference && !c->files.two_runs) {
		str_puts(why, "no batch was given (--batch)");
		return 0;
	}
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		bool counts = !x->frozen && !x->zero && !x->nonfinite;
		n += counts;
		n_hidden += counts && !x->gradient.tested;
	}
	if (n_hidden)
		str_printf(why,
			"rounding may be as large as the gradients of %d of %d tensors",
			n_hidden, n);
	return n_hidden < n ? n_hidden : 0;
}

/* Appends why not all moments were checked. Returns the number of unchecked tensors; 0: all. */
static int unchecked_moments(const struct step_check *c, struct str *why)
{
	int n_hidden = 0, n = 0;
	for (int i = 0; i < c->n; i++) {
		const struct tensor_check *x = &c->tensors[i];
		bool counts = !x->frozen && !x->nonfinite && x->norm > 0;
		n += counts;
		n_hidden += counts && !x->moments.tested;
	}
	if (c->files.no_after)
		str_puts(why, "no checkpoint after the step was given");
	else if (c->files.v1 < 0)
		str_puts(why, "the file after the step has no exp_avg_sq");
	else if (n_hidden || !n)
		str_printf(why,
			"rounding hides what the moments gained (%d of %d tensors)",
			n_hidden, n);
	return c->files.v1 >= 0 && n_hidden < n ? n_hidden : 0;
}

int describe_unchecked(const struct step_check *c, enum check_part part, struct str *why)
{
	const bool two = c->files.two_runs;
	str_clear(why);
	if (c->nothing_changed) {
		str_puts(why, "neither parameters nor moments changed");
		return 0;
	}
	switch (part) {
	case CHECK_GRADIENTS:
		return unchecked_gradients(c, why);
	case CHECK_SCALE:
		if (!c->has_reference && !two)
			str_puts(why, "no batch was given (--batch)");
		else if (!c->scale.n_right && !two)
			str_puts(why, "the gradients differ");
		else if (c->given.n && c->given.loss_scale > 1)
			str_puts(why, c->scale.checked
					      ? ""
					      : "the gradients may contain a loss scale; "
						"save them after scaler.unscale_()");
		else if (!c->scale.checked)
			str_printf(why, "clipping may hide a wrong scale; give %s",
				two ? "--grad-norm X,Y" : "--grad-norm");
		return 0;
	case CHECK_MOMENTS:
		return two ? 0 : unchecked_moments(c, why);
	case CHECK_UPDATE:
		str_puts(why, two ? "" : c->update_unchecked);
		return two ? 0 : c->n_updates_unchecked;
	default:
		return 0;
	}
}

/* Returns true if gradients were given, but no moments. */
static bool has_gradients_only(const struct step_check *c)
{
	return c->given.n && c->files.m1 < 0;
}

const struct check_verdict *step_verdict(const struct step_check *c)
{
	static const struct check_verdict
		wrong = {"wrong", REPORT_BAD},
		unchecked = {"not checked", REPORT_UNCLEAR, "nothing could be checked",
			"the files have nothing that could be"},
		same = {"right", REPORT_GOOD, "the gradients of both runs are the same",
			"the gradients of both runs are the same"},
		right = {"right", REPORT_GOOD, "the step is right",
			"what was checked is within bounds"},
		given = {"right", REPORT_GOOD, "the gradients are right",
			"gradients are within bounds"},
		in_part = {"right", REPORT_GOOD,
			"nothing is wrong that shows without a batch",
			"as far as it shows without a batch"},
		undecided = {"not decided", REPORT_UNCLEAR,
			"not decided: right if the run computed in bf16 (--precision autocast "
			"or bf16), wrong if it computed in fp32 (--precision fp32)",
			"right if the run computed in bf16, wrong if it computed in fp32"};
	static const struct check_verdict near = {"not decided", REPORT_UNCLEAR,
		"not decided: rounding may turn so many choices of experts that the gradients of "
		"right runs differ much",
		"rounding may turn too many choices of experts"};
	static const struct check_verdict balance = {"not decided", REPORT_UNCLEAR,
		"not decided: the gradients differ, but may have a loss that balances the "
		"experts; give it, or --balance none",
		"the loss that balances the experts is unknown"};
	return c->wrong ? &wrong
	       : c->choices.unknown_balance && !c->choices.too_near &&
			       !c->choices.n_hidden
		       ? &balance
	       : c->choices.undecided  ? &near
	       : c->undecided	       ? &undecided
	       : !c->tested	       ? &unchecked
	       : c->files.two_runs     ? &same
	       : has_gradients_only(c) ? &given
	       : c->has_reference      ? &right
				       : &in_part;
}

/* Appends "its scale" or "the update of 3 tensors". */
static void append_part_name(
	const struct step_check *c, enum check_part part, int n, struct str *out)
{
	if (n)
		str_printf(out, "the %s of %d tensor%s", check_part_names[part], n,
			plural(n));
	else
		str_printf(out, "%s %s",
			c->files.two_runs	? "their"
			: has_gradients_only(c) ? "the"
						: "its",
			check_part_names[part]);
}

void append_verdict_exceptions(const struct step_check *c, struct str *out)
{
	const bool has_batch = c->has_reference || c->files.two_runs;
	scoped_str why = {0};
	struct str parts[N_CHECK_PARTS] = {{0}};
	bool is_plural = false;
	int n = 0;
	for (enum check_part p = 0; p < N_CHECK_PARTS && c->tested; p++) {
		int tensors = describe_unchecked(c, p, &why);
		/* (without a batch the verdict does not cover these; nor moments, if only
		 * gradients are given) */
		if (!why.len ||
			(!has_batch && (p == CHECK_GRADIENTS || p == CHECK_SCALE)) ||
			(p == CHECK_MOMENTS && has_gradients_only(c)))
			continue;
		append_part_name(c, p, tensors, &parts[n++]);
		is_plural = n > 1 || text_ends(check_part_names[p], "s");
	}
	for (int i = 0; i < n; i++) {
		str_printf(out, "%s%s", !i ? "" : i + 1 < n ? ", " : " and ", parts[i].s);
		str_free(&parts[i]);
	}
	if (n)
		str_printf(out, " %s not checked", is_plural ? "were" : "was");
}

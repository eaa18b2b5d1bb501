/* Copies of a tensor from several ranks, and tied weights: all must be equal, bit by bit. */
#include "check/check.h"

#include <stdlib.h>
#include <string.h>

/* Appends a copy to the struct copy_list `list`; called by ckpt_view.copies. */
static void add_copy(void *list, const struct ckpt_copy *x)
{
	struct copy_list *l = list;
	l->items = xgrow(l->items, l->n, sizeof(*l->items));
	l->items[l->n++] = (struct copy_check){.name = xstrdup(x->name),
		.owner = xstrdup(x->whose),
		.read_owner = xstrdup(x->first),
		.kind = x->kind,
		.n = x->n,
		.n_different = x->differ,
		.first_different = x->at,
		.value = {x->value[0], x->value[1]},
		.distance = x->distance};
}

void copies_release(struct copy_list *l)
{
	for (int64_t i = 0; i < l->n; i++) {
		free(l->items[i].name);
		free(l->items[i].owner);
		free(l->items[i].read_owner);
	}
	free(l->items);
	*l = (struct copy_list){0};
}

static int compare_copies(const void *a, const void *b)
{
	const struct copy_check *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	return order ? order : strcmp(x->owner, y->owner);
}

/* How a copy compared with the other one before the step. */
enum earlier_state { UNKNOWN_BEFORE, EQUAL_BEFORE, DIFFERED_BEFORE, N_EARLIER_STATES };
/* Looks up the state of copy x in the list of copies before the step. */
static enum earlier_state state_before(
	const struct copy_list *before, const struct copy_check *x)
{
	const struct copy_check *was =
		before->n ? bsearch(x, before->items, (size_t)before->n, sizeof(*x),
				    compare_copies)
			  : NULL;
	return !was ? UNKNOWN_BEFORE : was->n_different ? DIFFERED_BEFORE : EQUAL_BEFORE;
}

static bool is_same_kind(const struct copy_check *x, const struct copy_check *y)
{
	return !strcmp(x->kind, y->kind) && !strcmp(x->owner, y->owner);
}

/* Adds a finding for the first differing copy of each owner, kind and earlier state. */
static void report_copies(struct step_check *c, const struct copy_list *l,
	const struct copy_list *before, const char *text_prefix)
{
	static const char *const state_texts[N_EARLIER_STATES] = {"",
		", which were equal before this step", ", as they did before this step"};
	for (int64_t i = 0; i < l->n; i++) {
		const struct copy_check *x = &l->items[i];
		enum earlier_state state = state_before(before, x);
		int64_t n_differing_tensors = 0, n_tensors = 0;
		bool is_first = x->n_different > 0;
		for (int64_t k = 0; k < l->n && is_first; k++) {
			const struct copy_check *y = &l->items[k];
			if (!is_same_kind(x, y))
				continue;
			n_tensors++;
			if (!y->n_different || state_before(before, y) != state)
				continue;
			is_first = k >= i;
			n_differing_tensors++;
		}
		if (is_first)
			add_finding(c, FINDING_COPIES, NULL,
				"copies: %s%s of %s and of %s differ in %lld of %lld tensors%s: "
				"the first is %s, element %lld, %.6g and %.6g (distance %.2g)",
				text_prefix, x->kind, x->owner, x->read_owner,
				(long long)n_differing_tensors, (long long)n_tensors,
				state_texts[state], x->name,
				(long long)x->first_different, x->value[1], x->value[0],
				x->distance);
	}
}

void append_copy_counts(const struct step_check *c, struct str *out)
{
	int64_t n_same = 0, n = 0;
	for (int i = c->files.two_runs ? 0 : 1; i < 2; i++)
		for (int64_t k = 0; k < c->copies[i].n; k++, n++)
			n_same += !c->copies[i].items[k].n_different;
	if (n)
		str_printf(out, "%lld of %lld are the same", (long long)n_same,
			(long long)n);
}

/* Notes an output layer that equaled the embedding before the step and no longer does,
 * though the options do not tie them. */
static int note_untied_output(struct step_check *c, struct err *e)
{
	struct tensor_step t[2] = {0};
	const char *const names[] = {"tok_embeddings.weight", "output.weight"};
	int index[2] = {-1, -1}, rc = 0;
	for (int i = 0; i < c->n; i++)
		for (int k = 0; k < 2; k++)
			index[k] =
				strcmp(c->tensors[i].name, names[k]) != 0 ? index[k] : i;
	if (index[0] < 0 || index[1] < 0 ||
		c->tensors[index[0]].n != c->tensors[index[1]].n)
		return 0;
	size_t n_bytes = (size_t)c->tensors[index[0]].n * sizeof(float);
	for (int k = 0; k < 2 && !rc; k++)
		rc = tensor_step_read(&t[k], &c->files, index[k], STEP_PARAMETERS, e);
	if (!rc && !memcmp(t[0].p0, t[1].p0, n_bytes) &&
		memcmp(t[0].p1, t[1].p1, n_bytes))
		add_finding(c, FINDING_NOTE, &c->tensors[index[1]],
			"equaled the embedding before this step and now differs: does the "
			"run tie them (tie_word_embeddings)?");
	tensor_step_free(&t[0]);
	tensor_step_free(&t[1]);
	return rc;
}

int judge_copies(struct step_check *c, struct err *e)
{
	const struct ckpt_view *views[] = {&c->files.before, &c->files.after};
	const bool two_runs = c->files.two_runs;
	for (int i = 0; i < 2; i++) {
		struct copy_list *l = &c->copies[i];
		if (views[i]->copies && views[i]->copies(views[i], add_copy, l, e))
			return -1;
		if (l->n)
			qsort(l->items, (size_t)l->n, sizeof(*l->items), compare_copies);
	}
	const struct copy_list none = {0}, *before = two_runs ? &none : &c->copies[0];
	if (two_runs)
		report_copies(c, &c->copies[0], before, "first run: ");
	report_copies(c, &c->copies[1], before, two_runs ? "second run: " : "");
	c->tested |= c->copies[1].n > 0;
	return two_runs || c->has_reference ? 0 : note_untied_output(c, e);
}

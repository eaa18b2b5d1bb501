/* Names the workers and units that a synchronization excluded or clipped, in bounded text. */
#include "edit/edit_internal.h"

#include "model/model.h"

enum { MAX_NAMES = 6 }; /* maximum number of names in a list */

/* Appends the name of a unit, "fragment N" or "the model". */
static void append_group_name(const struct edit *x, int group, struct str *out)
{
	if (x->c.by_unit)
		model_unit_name(group, x->s->c.n_units, out);
	else if (x->n_fragments > 1)
		str_printf(out, "fragment %d", group);
	else
		str_puts(out, "the model");
}

static bool was_excluded(const struct edit *x, int group, int worker)
{
	return x->group[group].report[worker].excluded;
}

static void append_rest_count(int n, const char *noun, struct str *out)
{
	if (n > MAX_NAMES)
		str_printf(out, " and %d more %s", n - MAX_NAMES, noun);
}

static int count_excluded_groups(const struct edit *x, struct selection sel, int worker)
{
	int n = 0;
	for (int g = 0; g < x->n_groups; g++)
		n += edit_selects(x, sel, g) && was_excluded(x, g, worker);
	return n;
}

/* Appends the names of the selected groups that excluded a worker: the first few, then a count. */
static void append_excluded_groups(
	const struct edit *x, struct selection sel, int worker, struct str *out)
{
	int n = 0;
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_selects(x, sel, g) || !was_excluded(x, g, worker))
			continue;
		if (n++ >= MAX_NAMES)
			continue;
		str_puts(out, n > 1 ? ", " : " ");
		append_group_name(x, g, out);
	}
	append_rest_count(n, "units", out);
}

void edit_describe_excluded(const struct edit *x, int fragment, struct str *out)
{
	struct selection sel = {fragment, -1};
	int n = 0;
	for (int w = 0; w < x->sync->size; w++) {
		if (!count_excluded_groups(x, sel, w) || n++ >= MAX_NAMES)
			continue;
		str_printf(out, "%sworker %d:", n > 1 ? "; " : "", w);
		append_excluded_groups(x, sel, w, out);
	}
	append_rest_count(n, "workers", out);
}

void edit_describe_clipped(const struct edit *x, int fragment, struct str *out)
{
	struct selection sel = {fragment, -1};
	int n = 0;
	for (int g = 0; g < x->n_groups && edit_has_anchor(x); g++) {
		const struct edit_group *group = &x->group[g];
		if (!edit_selects(x, sel, g) || !(group->scale < 1) || n++ >= MAX_NAMES)
			continue;
		str_puts(out, n > 1 ? ", " : "");
		append_group_name(x, g, out);
		str_printf(out, " by %.3g", group->scale);
	}
	append_rest_count(n, "units", out);
}

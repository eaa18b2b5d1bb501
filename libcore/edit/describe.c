/* Names the workers and units that a synchronization excluded or clipped, in bounded text. */
#include "edit/edit_internal.h"

#include "model/model.h"

enum { MAX_NAMES = 6 }; /* in a list */

static void name_group(const struct edit *x, int group, struct str *out)
{
	if (x->c.by_unit)
		model_unit_name(group, x->s->c.n_units, out);
	else if (x->n_fragments > 1)
		str_printf(out, "fragment %d", group);
	else
		str_puts(out, "the model");
}

static bool is_excluded(const struct edit *x, int group, int worker)
{
	return x->group[group].report[worker].excluded;
}

static void end_list(int n, const char *what, struct str *out)
{
	if (n > MAX_NAMES)
		str_printf(out, " and %d more %s", n - MAX_NAMES, what);
}

static int count_excluded(const struct edit *x, struct selection c, int worker)
{
	int n = 0;
	for (int g = 0; g < x->n_groups; g++)
		n += edit_selects(x, c, g) && is_excluded(x, g, worker);
	return n;
}

static void list_excluded(
	const struct edit *x, struct selection c, int worker, struct str *out)
{
	int n = 0;
	for (int g = 0; g < x->n_groups; g++) {
		if (!edit_selects(x, c, g) || !is_excluded(x, g, worker))
			continue;
		if (n++ >= MAX_NAMES)
			continue;
		str_puts(out, n > 1 ? ", " : " ");
		name_group(x, g, out);
	}
	end_list(n, "units", out);
}

void edit_describe_excluded(const struct edit *x, int fragment, struct str *out)
{
	struct selection c = {fragment, -1};
	int n = 0;
	for (int w = 0; w < x->sync->size; w++) {
		if (!count_excluded(x, c, w) || n++ >= MAX_NAMES)
			continue;
		str_printf(out, "%sworker %d:", n > 1 ? "; " : "", w);
		list_excluded(x, c, w, out);
	}
	end_list(n, "workers", out);
}

void edit_describe_clipped(const struct edit *x, int fragment, struct str *out)
{
	struct selection c = {fragment, -1};
	int n = 0;
	for (int g = 0; g < x->n_groups && edit_has_anchor(x); g++) {
		const struct edit_group *group = &x->group[g];
		if (!edit_selects(x, c, g) || !(group->scale < 1) || n++ >= MAX_NAMES)
			continue;
		str_puts(out, n > 1 ? ", " : "");
		name_group(x, g, out);
		str_printf(out, " by %.3g", group->scale);
	}
	end_list(n, "units", out);
}

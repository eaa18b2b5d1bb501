/* Times or bandwidths of a table over the size, as curves for draw/graph.h. */
#include "collbench/table.h"

#include <math.h>

static double curve_value(const struct bench_result *r, enum picture_of what)
{
	return what == PICTURE_TIME ? r->time : r->busbw;
}

/* Returns true if both rows belong to one curve. */
static bool same_curve(const struct bench_row *a, const struct bench_row *b)
{
	return a->collective == b->collective && a->type == b->type &&
	       a->redop == b->redop && a->root == b->root && a->library == b->library &&
	       a->group == b->group && a->group_ranks == b->group_ranks &&
	       a->groups == b->groups;
}

/* Returns the name of a curve, to be freed. */
static char *curve_title(const struct bench_row *r, int place)
{
	struct str title = {0};
	str_printf(&title, "%s", bench_info((int)r->collective)->name);
	if (r->type >= 0)
		str_printf(&title, " %s", bench_type_names[r->type]);
	if (r->redop >= 0)
		str_printf(&title, " %s", bench_op_names[r->redop]);
	if (r->root > 0)
		str_printf(&title, " root %lld", (long long)r->root);
	if (r->library >= 0)
		str_printf(&title, " %s", bench_library_names[r->library]);
	if (r->group > 0)
		str_printf(&title, " %s=%lld, %lld at once",
			bench_group_names()[r->group], (long long)r->group_ranks,
			(long long)r->groups);
	if (place == COLL_IN_PLACE && bench_info((int)r->collective)->has_place[0])
		str_puts(&title, " in place");
	return title.s;
}

/* Sets p[] to the points of the curve that begins with row `first`. Returns their number. */
static int64_t append_points(const struct bench_table *t, int64_t first, int place,
	enum picture_of what, struct graph_point *p)
{
	int64_t n = 0;
	for (int64_t i = first; i < t->n_rows; i++) {
		const struct bench_row *r = &t->rows[i];
		double y = curve_value(&r->result[place], what);
		if (same_curve(r, &t->rows[first]) && y > 0 && !isinf(y) && r->size > 0)
			p[n++] = (struct graph_point){(double)r->size, y};
	}
	return n;
}

static bool begins_curve(const struct bench_table *t, int64_t i)
{
	for (int64_t k = 0; k < i; k++)
		if (same_curve(&t->rows[k], &t->rows[i]))
			return false;
	return true;
}

void table_make_curves(const struct bench_table *t, enum picture_of what, bool log_scale,
	struct bench_curves *c)
{
	struct graph_point *p =
		xcalloc((size_t)(N_COLL_PLACES * t->n_rows) + 1, sizeof(*p));
	int n = 0;
	*c = (struct bench_curves){.points = p};
	for (int64_t i = 0; i < t->n_rows; i++)
		for (int place = 0; place < N_COLL_PLACES && begins_curve(t, i) &&
				    n < MAX_BENCH_CURVES;
			place++) {
			int64_t n_points = append_points(t, i, place, what, p);
			if (!n_points)
				continue;
			c->series[n++] = (struct graph_series){
				curve_title(&t->rows[i], place), p, n_points};
			p += n_points;
		}
	c->graph = (struct graph){
		.x_name = "size (bytes)",
		.y_name = what == PICTURE_TIME ? "time (us)" : "busbw (GB/s)",
		.series = c->series,
		.n_series = n,
		.log_x = true,
		.log_y = log_scale || what == PICTURE_TIME,
	};
}

void bench_curves_release(struct bench_curves *c)
{
	for (int i = 0; i < c->graph.n_series; i++)
		free((char *)(uintptr_t)c->series[i].name);
	free(c->points);
}

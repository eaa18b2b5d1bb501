/* Pictures of a table by gnuplot: times or bandwidths over the size. */
#include "base/gnuplot.h"
#include "collbench/table.h"

#include <math.h>

static double value_of(const struct bench_result *r, enum picture_of what)
{
	return what == PICTURE_TIME ? r->time : r->busbw;
}

/* Do both rows belong to one curve? */
static bool same_curve(const struct bench_row *a, const struct bench_row *b)
{
	return a->collective == b->collective && a->type == b->type &&
	       a->redop == b->redop && a->root == b->root && a->library == b->library &&
	       a->group == b->group && a->group_ranks == b->group_ranks &&
	       a->groups == b->groups;
}

static void add_title(const struct bench_row *r, int place, struct str *out)
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
	gnuplot_quote(out, title.s);
	str_free(&title);
}

/* The points of the curve that begins with row `first`; false: it has none. */
static bool add_points(const struct bench_table *t, int64_t first, int place,
	enum picture_of what, struct str *out)
{
	bool any = false;
	for (int64_t i = first; i < t->n_rows; i++) {
		const struct bench_row *r = &t->rows[i];
		double y = value_of(&r->result[place], what);
		if (!same_curve(r, &t->rows[first]) || !(y > 0) || isinf(y) ||
			r->size < 1)
			continue;
		str_printf(out, "%lld %.9g\n", (long long)r->size, y);
		any = true;
	}
	return any;
}

static bool begins_curve(const struct bench_table *t, int64_t i)
{
	for (int64_t k = 0; k < i; k++)
		if (same_curve(&t->rows[k], &t->rows[i]))
			return false;
	return true;
}

/* The data of each curve, then in `plot` what draws them. Returns the number of curves. */
static int add_curves(const struct bench_table *t, enum picture_of what, struct str *data,
	struct str *plot)
{
	enum { MOST = 64 };
	int n = 0;
	for (int64_t i = 0; i < t->n_rows; i++)
		for (int p = 0; p < N_COLL_PLACES && begins_curve(t, i) && n < MOST;
			p++) {
			struct str points = {0};
			if (add_points(t, i, p, what, &points)) {
				str_printf(data, "$curve%d << EOD\n%sEOD\n", n, points.s);
				str_printf(plot,
					"%s$curve%d using 1:2 with linespoints title ",
					n ? ", " : "plot ", n);
				add_title(&t->rows[i], p, plot);
				n++;
			}
			str_free(&points);
		}
	return n;
}

int table_script(const struct bench_table *t, enum picture_of what, const char *path,
	struct str *out)
{
	struct str plot = {0};
	str_printf(out,
		"set terminal %s\nset key top left noenhanced\nset grid\nset logscale x 2\n"
		"set format x '%%.0b%%B'\nset xlabel 'size in bytes'\n%s",
		gnuplot_terminal(path),
		what == PICTURE_TIME ? "set logscale y\nset ylabel 'time in us'\n"
				     : "set ylabel 'busbw in GB/s'\n");
	int n = add_curves(t, what, out, &plot);
	str_printf(out, "%s\n", n ? plot.s : "");
	str_free(&plot);
	return n;
}

int table_picture(const struct bench_table *t, enum picture_of what, const char *path,
	struct err *e)
{
	struct str text = {0}, picture = {0};
	int rc = table_script(t, what, path, &text)
			 ? 0
			 : err_set(e, EX_DATAERR, "no times to draw");
	rc = rc || gnuplot_run(&text, &picture, e) || file_replace(path, &picture, e);
	str_free(&text);
	str_free(&picture);
	return rc ? -1 : 0;
}

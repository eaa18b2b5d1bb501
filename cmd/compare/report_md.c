/* Reports in Markdown, to be pasted into a pull request. */
#include "compare/report.h"
#include "compare/speed.h"

#include <string.h>

static void put_speed_cell(struct str *out, const struct run_log *l, int column)
{
	char text[NUM_TEXT];
	md_cell(out, speed_text(text, column, speed_of(l, 1, column).value));
}

static void put_row(
	struct str *out, const struct report *r, int i, const char *name, int speed)
{
	const struct run_log *l = &r->logs[i];
	struct str words = {0};
	report_techniques(l, &words);
	str_puts(out, "|");
	md_cell(out, name);
	md_cell(out, l->info.layout);
	md_cell(out, words.len ? words.s : "default");
	put_speed_cell(out, l, speed);
	put_speed_cell(out, l, COL_MFU);
	put_speed_cell(out, l, COL_MEM);
	str_clear(&words);
	report_words(&r->runs[i], &words);
	md_cell(out, words.s);
	str_puts(out, "\n");
	str_free(&words);
}

static void put_table(struct str *out, const struct report *r, char **names)
{
	int speed = speed_shown(r->logs, r->n);
	str_printf(out,
		"| Run | Layout | Techniques | %s | MFU | Peak memory | Verdict |\n"
		"| --- | --- | --- | ---: | ---: | ---: | --- |\n",
		speed_heading(speed) + 1);
	for (int i = 0; i < r->n; i++)
		put_row(out, r, i, names[i], speed);
}

static void put_details(struct str *out, const struct report *r, char **names, int i)
{
	const struct report_run *run = &r->runs[i];
	const struct run_log *test = &r->logs[i];
	struct speed_diff d[MAX_SPEEDS];
	struct str lines = {0};
	int n = speed_compare(r->logs, report_controls(r), test, 1, d);
	str_puts(&lines, run->details ? run->details : "");
	speed_print(d, n, &lines);
	str_puts(out, "\n**");
	md_text(out, names[i]);
	str_puts(out, "** against ");
	md_text(out, names[run->control]);
	str_puts(out, run->verdict ? ": " : "");
	md_text(out, run->verdict ? run->verdict : "");
	str_puts(out, "\n\n");
	md_block(out, lines.len ? lines.s : "");
	str_free(&lines);
}

static void put_graph(struct str *out, const struct report *r)
{
	const struct graph_style style = {MARKS_ASCII, false, 90, 20};
	struct curve_plot c;
	struct str text = {0};
	struct err e;
	const struct series_opts o = {report_controls(r), r->one_set, false};
	if (curves_of(&c, r->logs, r->n, &o, r->column, r->axis, &e)) {
		str_puts(&text, e.msg);
	} else {
		c.graph.settled = !r->whole_range;
		graph_text(&c.graph, &style, &text);
		curves_free(&c);
	}
	str_putc(out, '\n');
	md_block(out, text.s);
	str_free(&text);
}

static void put_differences(struct str *out, const struct report *r, char **names)
{
	struct differences d;
	differences_of(r, &d);
	str_puts(out, d.n ? "\nDifferences of options and environment:\n\n| |"
			  : "\nNo difference of options and environment is logged.\n");
	for (int i = 0; i < r->n && d.n; i++)
		md_cell(out, names[i]);
	str_puts(out, d.n ? "\n| --- |" : "");
	for (int i = 0; i < r->n && d.n; i++)
		str_puts(out, " --- |");
	str_puts(out, d.n ? "\n" : "");
	for (int64_t k = 0; k < d.n; k++) {
		str_puts(out, "|");
		md_cell(out, d.v[k].key);
		for (int i = 0; i < r->n; i++)
			md_cell(out, d.v[k].value[i]);
		str_puts(out, "\n");
	}
	differences_free(&d);
}

void report_md(const struct report *r, struct str *out)
{
	struct series_list l;
	report_series(r, &l);
	put_table(out, r, l.names);
	for (int i = 0; i < r->n; i++)
		if (r->runs[i].control >= 0)
			put_details(out, r, l.names, i);
	put_graph(out, r);
	if (r->n > 1)
		put_differences(out, r, l.names);
	series_list_free(&l);
}

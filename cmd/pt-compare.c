/* pt-compare: compare the curves of training runs. */
#include "base/file.h"
#include "base/options.h"
#include "compare/compare.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct opts {
	int by, axis, column;
	double rtol, atol;
	bool common, graph, table;
	int64_t width, height, spool_limit;
	struct strs plots;
};

static const char *const bys[] = {"step", "tokens", NULL};
static const int by_columns[] = {COL_STEP, COL_TOKENS};
static const char *const axes[] = {"auto", "step", "tokens", "seconds", "bytes", NULL};
static const char *const curves[] = {"loss", "grad_norm", "train_loss", "val_loss", NULL};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Comparing"},
	{OPT_ENUM, 'b', "by", NULL, "step", O(by), .values = bys, .help =
		"Match rows by step or by tokens."},
	{OPT_DOUBLE, 'r', "rtol", "X", "0", O(rtol), 0, 0, 1e30, .help =
		"Relative tolerance: values within X times the control value are considered "
		"equal."},
	{OPT_DOUBLE, 'a', "atol", "X", "0", O(atol), 0, 0, 1e30, .help =
		"Absolute tolerance: values within X are considered equal."},
	{OPT_FLAG, 'c', "common", NULL, "no", O(common), .help =
		"Compare only rows that both runs have. Without it, a row that only one run has "
		"is a difference."},
	OPT_SPOOL_LIMIT(O(spool_limit), 0),
	{OPT_GROUP, .name = "Showing"},
	{OPT_ENUM, 'y', "column", NULL, "loss", O(column), .values = curves, .help =
		"Column to draw or list."},
	{OPT_ENUM, 'x', "axis", NULL, "auto", O(axis), .values = axes, .help =
		"Horizontal axis. auto: as --by. seconds, bytes: the time of all steps so far, "
		"or the bytes sent in them by the rank that sends most."},
	{OPT_FLAG, 'g', "graph", NULL, "no", O(graph), .help = "Draw the curves as text."},
	{OPT_INT, 0, "width", "N", "0", O(width), 0, 0, 1000, .help =
		"Width of this graph in characters. 0: the width of the terminal."},
	{OPT_INT, 0, "height", "N", "20", O(height), 0, 7, 1000, .help =
		"Height of this graph in lines."},
	{OPT_LIST, 'p', "plot", "FILE", NULL, O(plots), .files = "", .help =
		"Draw the curves to a .svg, .png or .pdf file with gnuplot. May be given many "
		"times."},
	{OPT_FLAG, 't', "table", NULL, "no", O(table), .help =
		"Print the curves side by side, separated by tabs."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {"[options] CONTROL TEST ...", NULL};

static void generate(int kind, FILE *f)
{
	if (kind == 0)
		h5_fields_man(run_fields, f);
	else
		columns_man(f);
}

static const struct program program = {
	.name = "pt-compare",
	.summary =
		"say whether training runs are the same, bit for bit or within a tolerance",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.one_rank = true,
	.operands = "",
	.versions = h5_versions,
	.generate = generate,
	.kinds = (const char *const[]){"run", "columns", NULL},
};

static int terminal_width(void)
{
	struct winsize w;
	const char *columns_var = getenv("COLUMNS");
	int64_t n;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20)
		return w.ws_col - 1;
	if (columns_var && !parse_int(columns_var, &n) && n > 20 && n <= 1000)
		return (int)n - 1;
	return 79;
}

/* Compares each test with the control; returns the worst verdict. */
static enum verdict compare_all(
	const struct run_log *logs, int n, const struct compare_opts *c)
{
	enum verdict worst = VERDICT_SAME;
	for (int i = 1; i < n; i++) {
		struct run_diff d;
		struct str text = {0};
		compare_runs(&logs[0], &logs[i], c, &d);
		run_diff_print(&d, c, &text);
		if (log_speaks())
			printf("%s\n%s\n%s", logs[0].name, logs[i].name, text.s);
		worst = d.verdict > worst ? d.verdict : worst;
		run_diff_free(&d);
		str_free(&text);
	}
	return worst;
}

static int show(const struct run_log *logs, int n, const struct opts *o, struct err *e)
{
	struct str text = {0};
	int column = column_find(curves[o->column]);
	int by = by_columns[o->by];
	enum plot_axis axis = (enum plot_axis)(o->axis ? o->axis - 1 : o->by);
	if (o->table)
		compare_table(logs, n, column, by, &text);
	if (o->graph)
		plot_text(logs, n, column, axis,
			o->width ? (int)o->width : terminal_width(), (int)o->height,
			log_color(stdout), &text);
	fputs(text.s ? text.s : "", stdout);
	str_free(&text);
	for (int64_t i = 0; i < o->plots.n; i++)
		if (plot_file(logs, n, column, axis, o->plots.v[i], e))
			return -1;
	return 0;
}

static const char *const advice[N_ADVICE] = {
	[ADVICE_GNUPLOT] = "--graph does not need it",
	SPOOL_ADVICE,
};

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	advice_set(advice);
	int n = opts_parse_or_die(&program, &o, argc, argv);
	if (n < 2)
		return err_say(&(struct err){EX_USAGE, "give two or more runs"});
	for (int64_t i = 0; i < o.plots.n; i++)
		if (plot_check(o.plots.v[i], &e))
			return err_say(&e);
	file_spool_limit(o.spool_limit);
	struct run_log *logs = xcalloc((size_t)n, sizeof(*logs));
	for (int i = 0; i < n; i++)
		if (run_log_read(&logs[i], argv[i], &e))
			return err_say(&e), EX_TROUBLE;
	struct compare_opts c = {by_columns[o.by], o.rtol, o.atol, o.common};
	enum verdict worst = compare_all(logs, n, &c);
	int rc = show(logs, n, &o, &e);
	for (int i = 0; i < n; i++)
		run_log_free(&logs[i]);
	free(logs);
	if (rc)
		return err_say(&e) == EX_USAGE ? EX_USAGE : EX_TROUBLE;
	stdout_close();
	return worst == VERDICT_NOTHING	 ? EX_TROUBLE
	       : worst == VERDICT_DIFFER ? EX_FAILED
					 : 0;
}

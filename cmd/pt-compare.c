/* pt-compare: compare the curves of training runs. */
#include "base/file.h"
#include "draw/draw.h"
#include "options/options.h"
#include "base/utf8.h"
#include "compare/curve.h"
#include "compare/export.h"
#include "compare/follow.h"
#include "compare/locate.h"
#include "compare/outcome.h"
#include "report/report.h"
#include "compare/series.h"
#include "compare/speed.h"
#include "logs/logs.h"

struct opts {
	int by, axis, rule, require, export_format;
	double rtol, atol, margin, alarm, confidence, patience;
	bool common, follow, json, locate, speed, table, each_run, whole_range;
	int64_t spool_limit;
	struct graph_opts draw;
	const char *format, *pattern, *control_program, *test_program, *launcher;
	struct strs columns, controls, tests, plots, reports, exports;
};

static const char *const by_names[] = {"step", "tokens", NULL};
static const int by_columns[] = {COL_STEP, COL_TOKENS};
static const char *const axis_names[] = {
	"auto", "step", "tokens", "samples", "seconds", "bytes", NULL};
static const char *const requirement_names[] = {
	"auto", "identical", "within", "equivalent", "not-worse", NULL};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Comparing"},
	{OPT_LIST, 0, "control", "RUN ...", NULL, O(controls), OPT_SEVERAL, .files = "", .help =
		"The control runs. Each test is compared with the control from which the test "
		"differs least. All other operands are tests."},
	{OPT_LIST, 0, "test", "RUN ...", NULL, O(tests), OPT_SEVERAL, .files = "", .help =
		"The test runs. All other operands are controls."},
	{OPT_STR, 0, "format", "NAME | FILE", "auto", O(format), .files = "", .help =
		"The format of the logs: one of FORMATS, or a file that describes formats of your "
		"own, with a dot or a slash in its name. auto: detect the format of each log."},
	{OPT_STR, 0, "pattern", "REGEX", NULL, O(pattern), .help =
		"Read logs of other programs line by line with a PCRE2 regular expression. The "
		"named groups are columns, as in 'step (?<step>\\d+).* loss (?<loss>\\S+)'. Lines "
		"that do not match are skipped. If no group is named step, rows are counted."},
	{OPT_ENUM, 'b', "by", NULL, "step", O(by), .values = by_names, .help =
		"Match rows by step or by tokens."},
	{OPT_DOUBLE, 'r', "rtol", "X", "0", O(rtol), 0, 0, 1e30, .help =
		"Relative tolerance: values within X times the control value are considered equal."},
	{OPT_DOUBLE, 'a', "atol", "X", "0", O(atol), 0, 0, 1e30, .help =
		"Absolute tolerance: values within X are considered equal."},
	{OPT_FLAG, 'c', "common", NULL, "no", O(common), .help =
		"Compare only rows that both runs have. Without this option, a row that only one "
		"run has is a difference, unless the row is missing at the end; see VERDICTS."},
	OPT_SPOOL_LIMIT(O(spool_limit), 0),
	{OPT_GROUP, .name = "Judging", .help =
		"If runs are neither identical nor within a tolerance, the column is judged by "
		"statistics; see VERDICTS."},
	{OPT_LIST, 'y', "column", "NAME[:min|:max]|OURS=THEIRS", NULL, O(columns), .help =
		"Judge only this column, and show it with --graph, --plot and --table. Any column "
		"of the logs is accepted; pt-run(5) lists the columns of pt-train. NAME:min means "
		"that lower values are better, and NAME:max that higher values are better; "
		"otherwise the name decides (see VERDICTS). Without this option, pt-compare judges "
		"the column reward, if all logs have it (reinforcement learning); or else loss, "
		"and with it val_loss and val_bpb; or if no log has a loss, the first of val_loss, "
		"val_bpb, train_loss and grad_norm that all logs have. OURS=THEIRS judges nothing, "
		"but maps a column of other programs' logs to a column of pt, such as "
		"loss=train/ce. May be given many times."},
	{OPT_ENUM, 0, "require", NULL, "auto", O(require), .values = requirement_names, .help =
		"The weakest verdict for exit code 0. not-worse: identical, within, equivalent, "
		"better, or worse by less than the margin. auto: within, if a tolerance or a rule "
		"is given; else equivalent, if several controls are given or no log is from "
		"pt-train; else identical."},
	{OPT_ENUM, 0, "rule", NULL, "ours", O(rule), .values = rule_names, .was = "like", .help =
		"Judge by another project's rule, instead of pt's statistics; see RULES."},
	{OPT_DOUBLE, 0, "margin", "X", "0", O(margin), 0, 0, 1, .help =
		"Ignore differences smaller than X times the control's value. 0: X is 0.005, but "
		"with several controls the margin is at least the standard deviation between the "
		"controls."},
	{OPT_DOUBLE, 0, "alarm", "P", "0.005", O(alarm), 0, 1e-12, 0.5, .help =
		"The probability of a false alarm, which is a reported difference where there is "
		"none."},
	{OPT_DOUBLE, 0, "confidence", "P", "0.95", O(confidence), 0, 0.5, 0.999999, .help =
		"The confidence of the intervals that must lie within the margin."},
	{OPT_GROUP, .name = "Following"},
	{OPT_FLAG, 'f', "follow", NULL, "no", O(follow), .help =
		"Follow runs while they train: read their logs as they grow, report when a verdict "
		"changes, and exit with 1 or 3 as soon as no further row can make the verdict meet "
		"--require. When all runs have ended, or on SIGINT, compare the logs as they are."},
	{OPT_DOUBLE, 0, "follow-timeout", "SECONDS", "600", O(patience), 0, 0, 1e9, .help =
		"Also end when no log has grown for this number of seconds."},
	{OPT_GROUP, .name = "Locating"},
	{OPT_FLAG, 0, "locate", NULL, "no", O(locate), .help =
		"Find the first tensor that differs. pt-train --hash-tensors computes both runs "
		"again, from the last checkpoint before the first step that differs, or from the "
		"start. Two checkpoints, or two files of --hash-tensors, are compared without a "
		"new computation."},
	{OPT_STR, 0, "control-program", "PROGRAM", "pt-train", O(control_program), .help =
		"The program that computes the control again: a file, or a name in PATH."},
	{OPT_STR, 0, "test-program", "PROGRAM", "pt-train", O(test_program), .help =
		"The program that computes the test again, such as another build."},
	{OPT_STR, 0, "launcher", "WORDS", "mpiexec -n", O(launcher), .help =
		"The command that starts several ranks. The number of ranks is appended to this "
		"command."},
	{OPT_GROUP, .name = "Showing"},
	{OPT_FLAG, 'j', "json", NULL, "no", O(json), .help =
		"Print the verdicts, and with --speed the speeds, as JSON instead of as text."},
	{OPT_ENUM, 'x', "axis", NULL, "auto", O(axis), .values = axis_names, .help =
		"Horizontal axis. auto: the axis of --by. seconds: the time of all steps so far. "
		"bytes: the bytes sent so far by the rank that sends most. If a log has no step "
		"times, seconds are computed from its time stamps."},
	OPT_GRAPH(O(draw)),
	{OPT_FLAG, 0, "each-run", NULL, "no", O(each_run), .help =
		"Draw each run separately in graphs and plots. Without this option, several "
		"controls, or the runs of --test, are drawn as replicas: their mean, and in plots "
		"a band from the lowest to the highest."},
	{OPT_FLAG, 0, "whole-range", NULL, "no", O(whole_range), .help =
		"Show all values in graphs, plots and reports. Without this option, values far "
		"from the other values, as in the first steps, may lie outside the drawn range; a "
		"note reports such values."},
	{OPT_LIST, 'p', "plot", "FILE", NULL, O(plots), .files = "", .help =
		"Draw the curves to a .svg, .png or .pdf file with gnuplot. May be given many "
		"times."},
	{OPT_LIST, 'o', "report", "FILE", NULL, O(reports), .files = "", .help =
		"Write a report: a .html page that needs no other file, or a .md file to paste "
		"into a pull request. Both have a table of the runs with layout, techniques, "
		"speed, memory and verdict, the curves, and differences of options and "
		"environment. May be given many times."},
	{OPT_LIST, 0, "export", "FILE", NULL, O(exports), .files = "", .help =
		"Write the logs in another format, with all columns or only the columns of "
		"--column, and compare nothing. FILE is a .csv or .jsonl file (with a column run "
		"if there are several runs); an event file of TensorBoard, with tfevents in its "
		"name; a directory of event files (with one subdirectory per run if there are "
		"several runs); or - for standard output. The names of runs omit what all names "
		"have in common. Values are exact, and pt-compare reads all these formats. May be "
		"given many times."},
	{OPT_ENUM, 0, "export-format", NULL, "auto", O(export_format), .values = export_names,
		.help =
		"The format that --export writes. auto: determined by the name of the file; CSV "
		"for standard output."},
	{OPT_FLAG, 's', "speed", NULL, "no", O(speed), .help =
		"Also compare speed and memory, with the noise of the runs. The comparison of "
		"speed does not change the exit status."},
	{OPT_FLAG, 't', "table", NULL, "no", O(table), .help =
		"Print the curves side by side, separated by tabs."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {"[options] CONTROL TEST ...",
	"[options] --control RUN ... --test RUN ...",
	"--graph | --plot FILE | --table | --report FILE [options] RUN",
	"--export FILE [options] RUN ...", NULL};

/* Prints a part of the manual page: the index of one of program.kinds. */
static void generate(int kind, FILE *f)
{
	if (kind == 0)
		h5_fields_print_man(run_fields, f);
	else if (kind == 1)
		columns_print_man(f);
	else if (kind == 2)
		log_print_formats_man(f);
	else if (kind == 3)
		log_print_names_man(f);
	else
		rules_print_man(f);
}

static void offer_format_names(const char *option, struct strs *words)
{
	if (!strcmp(option, "format"))
		log_list_format_names(words);
}

static const struct program program = {
	.name = "pt-compare",
	.summary = "check whether training runs are the same",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.one_rank = true,
	.operands = "",
	.versions = h5_versions,
	.generate = generate,
	.offer = offer_format_names,
	.kinds = (const char *const[]){"run", "columns", "formats", "names", "rules",
		NULL},
};

/* Appends names of runs: all runs in a file unless whole_files. Returns their number. */
static int64_t append_run_names(
	struct strs *list, char **names, int64_t n, bool whole_files, struct err *e)
{
	int64_t n_before = list->n;
	for (int64_t i = 0; i < n && !e->code; i++)
		if (whole_files)
			strs_add(list, names[i]);
		else if (log_list_runs(names[i], list, e))
			e->code = EX_TROUBLE;
	return list->n - n_before;
}

/* Returns true if the options only show curves, which works with a single run. */
static bool shows_only(const struct opts *o)
{
	bool is_judged = o->follow || o->locate || o->json || o->speed || o->require;
	return (o->draw.graph || o->plots.n || o->table || o->reports.n) && !is_judged;
}

/* Appends the names of the controls, then of the tests. Returns the number of controls, or -1 with
 * *e set. The first operand is the control, unless an option names the controls or the tests. */
static int list_runs(
	const struct opts *o, char **operands, int n, struct strs *names, struct err *e)
{
	if (o->controls.n && o->tests.n && n)
		return err_set(e, EX_USAGE,
			"'%s' cannot be an operand: both --control and --test are given; give the "
			"run with one of them",
			operands[0]);
	bool whole_files = o->locate || o->follow;
	int64_t n_controls =
		append_run_names(names, o->controls.v, o->controls.n, whole_files, e);
	int64_t n_operands = append_run_names(names, operands, n, whole_files, e);
	append_run_names(names, o->tests.v, o->tests.n, whole_files, e);
	if (e->code)
		return -1;
	if (!o->controls.n)
		n_controls = o->tests.n ? n_operands : min64(n_operands, 1);
	if (names->n == 1 && (shows_only(o) || o->exports.n))
		return 1;
	if (!n_controls || names->n == n_controls)
		return err_set(e, EX_USAGE,
			"too few runs; give a control and a test, or one run with --graph, "
			"--plot, --table, --report or --export");
	return (int)n_controls;
}

/* Removes :min or :max from the end of a name. Returns -1 for :min, 1 for :max, 0 for neither. */
static int strip_sense(char *name)
{
	size_t n = strlen(name);
	char *end = n > 4 ? name + n - 4 : name + n;
	int sense = !strcmp(end, ":max") - !strcmp(end, ":min");
	if (sense)
		*end = '\0';
	return sense;
}

/* Sets *judged to the NAME of --column (NULL: none), *sense to -1 for :min or 1 for :max, and loads
 * the formats and column names of the options. */
static int load_formats(const struct opts *o, const char **judged, int *sense,
	struct log_options *log_opts, struct err *e)
{
	*judged = NULL;
	*sense = 0;
	log_opts->format = o->format;
	log_opts->pattern = o->pattern;
	for (int64_t i = 0; i < o->columns.n; i++) {
		bool is_pair = strchr(o->columns.v[i], '=');
		if (is_pair && log_options_map_column(log_opts, o->columns.v[i], e))
			return -1;
		if (is_pair)
			continue;
		*sense = strip_sense(o->columns.v[i]);
		*judged = o->columns.v[i];
	}
	return log_options_load(log_opts, e);
}

/* Returns true if a name is a column of pt-train or of one of the logs. */
static bool has_any_name(const struct runs *r, const char *name)
{
	for (int i = 0; i < r->n; i++)
		if (column_find(name) >= 0 || run_log_find(&r->logs[i], name) >= 0)
			return true;
	return false;
}

static int count_logs_with(const struct runs *r, const char *name)
{
	int n = 0;
	for (int i = 0; i < r->n; i++)
		n += curve_has_column(&r->logs[i], run_log_find(&r->logs[i], name));
	return n;
}

/* Appends the names of the columns of n logs, such as "a, b, c". */
static void list_columns(const struct run_log *logs, int n, struct str *list)
{
	enum { MAX_NAMES = 24 };
	scoped_strs names = {0};
	curve_list_columns(logs, n, &names);
	for (int64_t i = 0; i < min64(names.n, MAX_NAMES); i++)
		str_printf(list, "%s%s", i ? ", " : "", names.v[i]);
	str_puts(list, !names.n ? "none" : names.n > MAX_NAMES ? ", ..." : "");
}

/* Sets an error: no log has the column. why: its name or meaning. Returns -1. */
static int reject_column(const struct runs *r, const char *why, int code, struct err *e)
{
	scoped_str list = {0};
	list_columns(r->logs, r->n, &list);
	err_set(e, code, "--column: none of the logs has %s; the columns are %s", why,
		list.s);
	return -1;
}

/* Warns of logs that lack a column that another log has, and lists their columns. */
static void warn_of_missing_column(const struct runs *r, const char *name)
{
	for (int i = 0; i < r->n && count_logs_with(r, name); i++) {
		const struct run_log *l = &r->logs[i];
		scoped_str list = {0};
		if (curve_has_column(l, run_log_find(l, name)))
			continue;
		list_columns(l, 1, &list);
		warn("%s: the log has no value of %s; its columns are %s", l->name, name,
			list.s);
	}
}

#define NO_LOSS                                                             \
	"a loss (choose a column by --column NAME, or specify the loss by " \
	"--column loss=NAME)"

/* Columns to judge, best first; in reinforcement learning, the loss is meaningless. */
static const char *const result_columns[] = {
	"reward", "loss", "val_loss", "val_bpb", "train_loss", "grad_norm"};

/* Sets *name to the column to judge: *name, or our column for it; if it is NULL, the first of
 * result_columns that all logs have, or the loss if any log has it. */
static int choose_column(const struct runs *r, const struct log_options *log_opts,
	const char **name, struct err *e)
{
	char why[128];
	if (*name && !has_any_name(r, *name)) {
		snprintf(why, sizeof(why), "a column '%s'", *name);
		*name = log_column_for_name(log_opts, *name);
		return has_any_name(r, *name) ? 0 : reject_column(r, why, EX_USAGE, e);
	}
	if (*name)
		return 0;
	bool has_loss = count_logs_with(r, columns[COL_LOSS].name) > 0;
	for (size_t i = 0; i < ARRAY_LEN(result_columns) && !*name; i++)
		if (count_logs_with(r, result_columns[i]) == r->n ||
			(has_loss && !strcmp(result_columns[i], columns[COL_LOSS].name)))
			*name = result_columns[i];
	if (*name)
		return 0;
	*name = columns[COL_LOSS].name;
	for (int i = 0; i < r->n; i++)
		has_loss |= r->logs[i].unread.n_values > 0; /* the verdict explains it */
	return has_loss ? 0 : reject_column(r, NO_LOSS, EX_DATAERR, e);
}

static void runs_release(struct runs *r)
{
	for (int i = 0; i < r->n; i++)
		run_log_free(&r->logs[i]);
	free(r->logs);
}

/* Finds and prints the first tensor that differs. Returns the exit code. */
static int locate_tensor(const struct strs *runs, const struct opts *o)
{
	struct locate_opts l = {.program = {o->control_program, o->test_program},
		.launcher = o->launcher,
		.show = 4};
	struct err e = {0};
	scoped_str text = {0};
	if (runs->n != 2)
		return err_print(
			&(struct err){EX_USAGE, "--locate: give exactly two runs"});
	int rc = locate(runs->v[0], runs->v[1], &l, &text, &e);
	if (log_is_enabled())
		printf("%s\n%s\n", runs->v[0], runs->v[1]);
	fputs(text.s ? text_printable(text.s) : "", stdout);
	if (rc == 0)
		puts("verdict: no tensor differs");
	stdout_close();
	if (rc < 0)
		return err_print(&e) == EX_USAGE ? EX_USAGE : EX_TROUBLE;
	return rc ? EX_FAILED : 0;
}

/* Returns true if --column chooses a column to judge, not only maps names. */
static bool has_user_column(const struct opts *o)
{
	for (int64_t i = 0; i < o->columns.n; i++)
		if (!strchr(o->columns.v[i], '='))
			return true;
	return false;
}

/* Returns the options of comparisons that the command line gives. Borrows o and column. */
static struct outcome_opts make_outcome_opts(const struct opts *o, const char *column)
{
	return (struct outcome_opts){
		.exact = {.by = by_columns[o->by],
			.rtol = o->rtol,
			.atol = o->atol,
			.common = o->common,
			.column = column,
			.only_column = has_user_column(o)},
		.judge = {.rule = o->rule,
			.margin = o->margin,
			.alarm = o->alarm,
			.confidence = o->confidence},
		.column = column,
		.validation = !has_user_column(o),
		.require = (enum requirement)o->require,
		.has_speed = o->speed,
		.one_set = o->tests.n > 0,
	};
}

/* Returns the tone that selects the color of a verdict; only worse and diverged are bad. */
static enum report_tone verdict_tone(enum verdict v)
{
	return v <= VERDICT_EQUIVALENT || v == VERDICT_NOT_WORSE ? REPORT_GOOD
	       : v == VERDICT_BETTER				 ? REPORT_BETTER
	       : v == VERDICT_WORSE || v == VERDICT_DIVERGED	 ? REPORT_BAD
								 : REPORT_UNCLEAR;
}

/* Sets the verdicts and details of the tests of an outcome, for reports. */
static void set_report_runs(
	const struct outcome *x, const struct outcome_opts *opts, struct report_run *runs)
{
	for (int i = 0; i < x->n; i++) {
		struct str verdict = {0}, details = {0};
		outcome_append_verdict(x, opts, &verdict);
		run_diff_print(&x->exact[i].diff, &opts->exact, &details);
		runs[x->first + i] = (struct report_run){.control = x->exact[i].control,
			.tone = verdict_tone(x->verdict),
			.verdict = verdict.s,
			.details = details.s};
	}
}

/* Appends the outcome as text; with --quiet only its verdict. With --speed appends the speed. */
static void print_outcome(const struct outcome *x, const struct outcome_opts *opts,
	const struct opts *o, struct str *out)
{
	const struct runs *r = x->runs;
	struct speed_diff d[MAX_SPEEDS];
	if (log_is_enabled())
		outcome_print(x, opts, out);
	else if (!o->table && !o->draw.graph)
		outcome_print_verdict(x, opts, out);
	if (!o->speed)
		return;
	int n = speed_compare(r->logs, r->n_controls, &r->logs[x->first], x->n, d);
	speed_print(d, n, out);
	if (!n)
		str_puts(out,
			"  speed and memory      not compared: the logs have no such column in "
			"common\n");
}

/* Prints the text of an outcome; on a terminal, with the verdict in color. */
static void write_outcome(const char *text, enum verdict v)
{
	static const char *const colors[] = {[REPORT_NEUTRAL] = "39",
		[REPORT_GOOD] = "32",
		[REPORT_BETTER] = "34",
		[REPORT_UNCLEAR] = "33",
		[REPORT_BAD] = "31"};
	static const char prefix[] = "verdict: ";
	const char *words = text ? strstr(text, prefix) : NULL;
	if (!words || !log_uses_color(stdout)) {
		fputs(text ? text : "", stdout);
		return;
	}
	words += strlen(prefix);
	size_t n = strcspn(words, ":;\n");
	printf("%.*s\033[1;%sm%.*s\033[0m%s", (int)(words - text), text,
		colors[verdict_tone(v)], (int)n, words, words + n);
}

/* Compares all tests, prints the verdicts, and sets the tests of reports. Returns the exit code. */
static int compare_all(const struct runs *r, const struct opts *o,
	const struct outcome_opts *opts, struct report_run *reports)
{
	struct outcomes all;
	scoped_str text = {0};
	outcomes_init(r, opts, &all);
	int code = outcomes_exit_code(&all, r, opts);
	if (o->json) { /* (needs no text_printable(): JSON escapes control characters) */
		outcomes_json(&all, opts, code, &text);
		fputs(text.s, stdout);
	}
	for (int i = 0; i < all.n; i++) {
		set_report_runs(&all.v[i], opts, reports);
		str_clear(&text);
		if (!o->json)
			print_outcome(&all.v[i], opts, o, &text);
		if (text.len)
			write_outcome(text_printable(text.s), all.v[i].verdict);
	}
	if (code == EX_FAILED && all.worst <= VERDICT_BETTER)
		info("the exit code is %d, because the required verdict is %s; see --require",
			code, requirement_names[effective_requirement(r, opts)]);
	outcomes_release(&all);
	return code;
}

struct following {
	struct runs *runs;
	struct outcome_opts opts;
	enum verdict *reported; /* [outcome]: verdict that was printed last */
};

/* Prints the verdict on the last rows read, at once (--follow). */
static void print_change(const struct outcome *x, const struct outcome_opts *opts)
{
	scoped_str text = {0};
	const struct run_log *l = &x->runs->logs[x->first];
	str_printf(&text, "%s, step %.0f: ", l->name,
		run_log_value(l, l->n_rows - 1, COL_STEP));
	outcome_append_verdict(x, opts, &text);
	puts(text_printable(text.s));
	fflush(stdout);
}

/* Prints verdicts that have changed. Returns true if no further row can change the exit code. */
static bool judge_new_rows(void *context, const struct run_log *logs, int n)
{
	struct following *f = context;
	struct outcomes all;
	(void)logs;
	if (!f->runs->logs[0].brief)
		runs_set_brief_names(f->runs->logs, n);
	outcomes_init(f->runs, &f->opts, &all);
	for (int i = 0; i < all.n; i++) {
		if (all.v[i].verdict != f->reported[i] && log_is_enabled())
			print_change(&all.v[i], &f->opts);
		f->reported[i] = all.v[i].verdict;
	}
	bool is_final = outcomes_are_final(&all, f->runs, &f->opts);
	outcomes_release(&all);
	return is_final;
}

/* Reads and judges the logs until the end or a final verdict; exact.common: the runs still grow. */
static int follow(struct runs *r, const struct strs *names, const struct opts *o,
	const struct log_options *log_opts, struct outcome_opts *opts, struct err *e)
{
	struct following f = {r, *opts, xmalloc((size_t)r->n * sizeof(*f.reported))};
	enum follow_end why;
	const struct follow callbacks = {log_opts, judge_new_rows, &f, o->patience};
	f.opts.exact.common = true;
	f.opts.judge.is_growing = true;
	for (int i = 0; i < r->n; i++)
		f.reported[i] = VERDICT_NOTHING;
	int rc = follow_runs(
		r->logs, (const char *const *)names->v, r->n, &callbacks, &why, e);
	opts->exact.common |= !rc && (why == FOLLOW_STOPPED || why == FOLLOW_SIGNAL);
	free(f.reported);
	return rc;
}

/* Prints the table and the graph, and writes the plots. */
static int show_curves(
	const struct runs *r, const struct opts *o, const char *column, struct err *e)
{
	const struct series_opts drawn = {r->n_controls, o->tests.n > 0, o->each_run};
	scoped_str text = {0};
	struct curve_plot c;
	enum curve_axis axis = (enum curve_axis)(o->axis ? o->axis - 1 : o->by);
	int rc = 0;
	if (o->table)
		curve_print_table(r->logs, r->n, column, (enum curve_axis)o->by, &text);
	text_printable(text.s); /* (before the graph, which has color codes) */
	if ((o->draw.graph || o->plots.n) &&
		curve_plot_init(&c, r->logs, r->n, &drawn, column, axis, e))
		return str_free(&text), -1;
	c.graph.log_y = o->draw.log_scale;
	c.graph.settled = !o->whole_range;
	if (o->draw.graph) {
		const struct graph_style style =
			graph_style_of(&o->draw, c.list.n, log_uses_color(stdout));
		graph_text(&c.graph, &style, &text);
	}
	fputs(text.s ? text.s : "", stdout);
	for (int64_t i = 0; i < o->plots.n && !rc; i++)
		rc = graph_picture(&c.graph, o->plots.v[i], e);
	if (o->draw.graph || o->plots.n)
		curve_plot_release(&c);
	return rc;
}

/* Writes all --report files. Returns -1 with *e set. */
static int write_reports(const struct runs *r, const struct opts *o, const char *column,
	const struct report_run *runs, struct err *e)
{
	const struct report report = {r->logs, runs, r->n, column,
		(enum curve_axis)(o->axis ? o->axis - 1 : o->by), o->tests.n > 0,
		o->whole_range};
	int rc = 0;
	for (int64_t i = 0; i < o->reports.n && !rc; i++)
		rc = report_write(&report, o->reports.v[i], e);
	return rc;
}

/* Allocates the verdicts of all runs, empty; controls get control = -1. */
static struct report_run *new_report_runs(const struct runs *r)
{
	struct report_run *runs = xcalloc((size_t)r->n, sizeof(*runs));
	for (int i = 0; i < r->n_controls; i++)
		runs[i].control = -1;
	return runs;
}

static void free_report_runs(struct report_run *runs, int n)
{
	for (int i = 0; i < n; i++) {
		free((void *)runs[i].verdict);
		free((void *)runs[i].details);
	}
	free(runs);
}

/* Returns -1 with *e set if --export has an unknown format or conflicts with other options. */
static int check_exports(const struct opts *o, struct err *e)
{
	for (int64_t i = 0; i < o->exports.n; i++)
		if (export_choose_format(o->exports.v[i], o->export_format, e) < 0)
			return -1;
	bool has_other = o->follow || o->locate || o->json || o->speed || o->reports.n ||
			 o->require || o->plots.n || o->table || o->draw.graph;
	return o->exports.n && has_other
		       ? err_set(e, EX_USAGE,
				 "--export: cannot be combined with --graph, --plot, --table, "
				 "--report, --json, "
				 "--speed, --follow, --locate or --require, because nothing is "
				 "compared or shown")
		       : 0;
}

/* Writes the chosen columns, or all, to each --export file. Returns -1 with *e set. */
static int export_all(const struct runs *r, const struct opts *o,
	const struct log_options *log_opts, struct err *e)
{
	scoped_strs chosen = {0};
	int rc = 0;
	for (int64_t i = 0; i < o->columns.n && !rc; i++) {
		const char *name = o->columns.v[i];
		if (strchr(name, '='))
			continue;
		rc = choose_column(r, log_opts, &name, e);
		strs_add(&chosen, name);
	}
	for (int64_t i = 0; i < o->exports.n && !rc; i++)
		rc = export_write(
			r->logs, r->n, &chosen, o->exports.v[i], o->export_format, e);
	return rc;
}

static const char *const advice[N_ADVICE] = {
	[ADVICE_GNUPLOT] = "--graph does not need it",
	SPOOL_ADVICE,
};

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	struct runs r = {0};
	scoped_strs names = {0};
	struct log_options log_opts = {.format = NULL};
	const char *column = NULL;
	int sense = 0;
	advice_set(advice);
	int n = opts_parse_or_die(&program, &o, argc, argv);
	r.n_controls = list_runs(&o, argv, n, &names, &e);
	for (int64_t i = 0; i < o.plots.n && !e.code; i++)
		graph_picture_check(o.plots.v[i], &e);
	for (int64_t i = 0; i < o.reports.n && !e.code; i++)
		page_kind(o.reports.v[i], &e);
	if (o.json && (o.draw.graph || o.table))
		err_set(&e, EX_USAGE,
			"--json: cannot be combined with --graph or --table, which print text");
	if (!e.code && !check_exports(&o, &e))
		load_formats(&o, &column, &sense, &log_opts, &e);
	if (e.code)
		return err_print(&e);
	bool is_pair = names.n == 2;
	if (o.locate || (is_pair && !o.exports.n &&
				locate_are_checkpoints(names.v[0], names.v[1], &e)))
		return locate_tensor(&names, &o);
	if (e.code)
		return err_print(&e), EX_TROUBLE;
	file_spool_limit(o.spool_limit);
	struct outcome_opts opts =
		make_outcome_opts(&o, column ? column : columns[COL_LOSS].name);
	opts.judge.sense = sense;
	r.n = (int)names.n;
	r.logs = xcalloc((size_t)r.n, sizeof(*r.logs));
	if (o.follow ? follow(&r, &names, &o, &log_opts, &opts, &e)
		     : log_read_all(
			       r.logs, (const char *const *)names.v, r.n, &log_opts, &e))
		return err_print(&e), EX_TROUBLE;
	runs_set_brief_names(r.logs, r.n);
	if (o.exports.n ? export_all(&r, &o, &log_opts, &e)
			: choose_column(&r, &log_opts, &column, &e))
		return err_print(&e) == EX_USAGE ? EX_USAGE : EX_TROUBLE;
	if (o.exports.n)
		return 0;
	warn_of_missing_column(&r, column);
	opts.column = opts.exact.column = column;
	if (o.require == REQUIRE_NOT_WORSE && !opts.judge.sense && !column_sense(column))
		return err_print(&(struct err){EX_USAGE,
			"--require: not-worse needs to know whether lower or higher values of "
			"the column are better; specify --column NAME:min or NAME:max"});
	struct report_run *reports = new_report_runs(&r);
	if (r.n == 1)
		info("only %s is shown; nothing is compared", r.logs[0].name);
	int code = r.n > 1 ? compare_all(&r, &o, &opts, reports) : 0;
	int rc = show_curves(&r, &o, column, &e) ||
		 write_reports(&r, &o, column, reports, &e);
	free_report_runs(reports, r.n);
	runs_release(&r);
	log_options_release(&log_opts);
	if (rc)
		return err_print(&e) == EX_USAGE ? EX_USAGE : EX_TROUBLE;
	stdout_close();
	return code;
}

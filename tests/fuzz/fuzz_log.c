/* Logs of runs as text: printed lines and journals, compared, drawn, and gone on with. */
#include "tests/fuzz/fuzz.h"
#include "compare/compare.h"
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

/* What was read can be printed, and reads back as the same bits. */
static void rows_read_back(const struct run_log *l)
{
	struct str line = {0};
	for (int64_t i = 0; i < l->n_rows; i++) {
		struct row r;
		struct unread unread = {0};
		FUZZ_ON(i && run_log_value(l, i, COL_STEP) <=
				     run_log_value(l, i - 1, COL_STEP));
		str_clear(&line);
		struct row was = run_log_row(l, i);
		row_print(&was, &line);
		FUZZ_ON(row_parse(line.s, line.len, &r, &unread) || r.has != was.has);
		for (int c = 0; c < N_COLUMNS; c++) {
			float x = (float)r.v[c], y = (float)was.v[c];
			FUZZ_ON(row_has(&r, c) && columns[c].kind != COLUMN_ROUND &&
				memcmp(&x, &y, sizeof(x)) && (x == x || y == y));
		}
	}
	str_free(&line);
}

/* How often a text contains another. */
static int count(const char *text, const char *what)
{
	int n = 0;
	for (; (text = strstr(text, what)); text += strlen(what))
		n++;
	return n;
}

/* Draws and reports; no text of a log becomes part of the page. */
static void show(struct run_log logs[2], const char *column, enum curve_axis axis)
{
	const struct graph_style style = {
		axis & 1 ? MARKS_ASCII : MARKS_BRAILLE, axis & 2, 40, 12};
	const struct report_run runs[2] = {
		{.control = -1}, {0, logs[1].name, logs[1].config.s, REPORT_GOOD}};
	const struct report r = {logs, runs, 2, column, axis};
	struct curve_plot c;
	struct str text = {0};
	struct err e;
	curve_print_table(logs, 2, column, axis, &text);
	if (!curve_plot_init(&c, logs, 2, &(struct series_opts){1}, column, axis, &e)) {
		graph_text(&c.graph, &style, &text);
		curve_plot_release(&c);
	}
	report_print_page(&r, PAGE_MD, &text);
	FUZZ_ON(strlen(text.s) != text.len);
	str_clear(&text);
	report_print_page(&r, PAGE_HTML, &text);
	FUZZ_ON(count(text.s, "<script") != 2 || count(text.s, "</script") != 2);
	str_free(&text);
}

static void compare(struct run_log logs[2], const struct compare_opts *o, int column)
{
	struct run_diff d;
	struct str text = {0};
	compare_runs(&logs[0], &logs[1], o, &d);
	run_diff_print(&d, o, &text);
	if (logs[1].name)
		show(logs, columns[column].name,
			(enum curve_axis)(column % N_CURVE_AXES));
	FUZZ_ON(text.s && strlen(text.s) != text.len);
	str_free(&text);
	run_diff_release(&d);
	compare_runs(&logs[0], &logs[0], o, &d);
	/* (rows that cannot be read may differ) */
	FUZZ_ON(d.verdict != VERDICT_IDENTICAL && d.verdict != VERDICT_NOTHING &&
		!logs[0].unread.n_rows);
	run_diff_release(&d);
}

/* Any rule gives some verdict, with a reason of one line. */
static void judge_logs(const struct run_log logs[2], int column, int by)
{
	const struct run_log *control = &logs[0], *test = &logs[1];
	const struct judge_opts o = {
		.column = column, .by = by, .rule = column % n_rules, .rtol = column & 1};
	struct verdict_result r;
	judge(&control, 1, &test, 1, &o, &r);
	FUZZ_ON(r.verdict < 0 || r.verdict >= N_VERDICTS || !r.reason.len);
	verdict_result_release(&r);
}

/* As pt-train goes on, and publishes. */
static void go_on(const char *text, size_t n, int64_t step, bool publish)
{
	struct journal j;
	struct err e = {0};
	struct run_info info = {.command = "fuzz", .ranks = 1};
	struct row r = {.has = 0};
	fuzz_file("journal.txt", text, n);
	row_set(&r, COL_STEP, (double)(step + 1));
	row_set(&r, COL_LOSS, 2.5);
	if (!journal_open(&j, fuzz_folder(), step, false, &info, "seed = 1\n",
		    "dim = 2\n", &e) &&
		!journal_write_row(&j, &r, &e)) {
		FUZZ_ON(!j.log.n_rows);
		struct run_log l;
		if (publish) {
			FUZZ_ON(journal_publish(&j, &e));
			FUZZ_ON(run_log_read(&l, fuzz_folder(), &e));
			FUZZ_ON(l.n_rows != j.log.n_rows);
			run_log_free(&l);
		}
	}
	journal_close(&j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct err e = {0};
	uint8_t how = take_byte(&b), curve = take_byte(&b);
	struct compare_opts o = {how & 1 ? COL_TOKENS : COL_STEP, how & 2 ? 0.1 : 0,
		how & 2 ? 1e-3 : 0, how & 4};
	const void *cut = b.n ? memchr(b.p, '\0', b.n) : NULL;
	size_t first = cut ? (size_t)((const uint8_t *)cut - b.p) : b.n;
	struct run_log logs[2] = {{0}};
	if (first >= 8 && !memcmp(b.p, "\211HDF", 4))
		return -1; /* fuzz_runlog's */
	int rc = run_log_read(&logs[0], fuzz_file("control", b.p, first), &e);
	if (!rc && cut)
		rc = run_log_read(&logs[1],
			fuzz_file("test", b.p + first + 1, b.n - first - 1), &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (!rc) {
		rows_read_back(&logs[0]);
		compare(logs, &o, (int)(curve % N_COLUMNS));
		judge_logs(logs, (int)(curve % N_COLUMNS), o.by);
	}
	if (how >= 0xe0)
		go_on((const char *)b.p, b.n, curve, how == 0xff);
	run_log_free(&logs[0]);
	run_log_free(&logs[1]);
	return 0;
}

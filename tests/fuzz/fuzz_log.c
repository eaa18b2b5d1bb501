/* Logs of runs as text: printed lines and journals, compared, drawn, and gone on with. */
#include "tests/fuzz/fuzz.h"
#include "compare/compare.h"

#include <stdlib.h>
#include <string.h>

/* What was read can be printed, and reads back as the same bits. */
static void rows_read_back(const struct run_log *l)
{
	struct str line = {0};
	for (int64_t i = 0; i < l->n_rows; i++) {
		struct row r;
		FUZZ_ON(i && l->rows[i].v[COL_STEP] <= l->rows[i - 1].v[COL_STEP]);
		str_clear(&line);
		row_print(&l->rows[i], &line);
		FUZZ_ON(row_parse(line.s, line.len, &r) || r.has != l->rows[i].has);
		for (int c = 0; c < N_COLUMNS; c++) {
			float x = (float)r.v[c], y = (float)l->rows[i].v[c];
			FUZZ_ON(row_has(&r, c) && columns[c].kind != COLUMN_ROUND &&
				memcmp(&x, &y, sizeof(x)) && (x == x || y == y));
		}
	}
	str_free(&line);
}

static void compare(struct run_log logs[2], const struct compare_opts *o, int column)
{
	struct run_diff d;
	struct str text = {0};
	compare_runs(&logs[0], &logs[1], o, &d);
	run_diff_print(&d, o, &text);
	compare_table(logs, 2, column, o->by, &text);
	plot_text(logs, 2, column, (enum plot_axis)(column % N_PLOT_AXES), 40, 12,
		column & 1, &text);
	FUZZ_ON(strlen(text.s) != text.len);
	str_free(&text);
	run_diff_free(&d);
	compare_runs(&logs[0], &logs[0], o, &d);
	FUZZ_ON(d.verdict != VERDICT_SAME && d.verdict != VERDICT_NOTHING);
	run_diff_free(&d);
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
	if (!journal_open(
		    &j, fuzz_folder(), step, &info, "seed = 1\n", "dim = 2\n", &e) &&
		!journal_row(&j, &r, &e)) {
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
	}
	if (how >= 0xe0)
		go_on((const char *)b.p, b.n, curve, how == 0xff);
	run_log_free(&logs[0]);
	run_log_free(&logs[1]);
	return 0;
}

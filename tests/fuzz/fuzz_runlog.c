/* run.h5: what is wrong in one is said; what is taken can be compared, drawn and written. */
#include "tests/fuzz/hostile.h"
#include "compare/compare.h"
#include "compare/series.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const objects[] = {"/", "/config", "/arithmetic", "/events",
	"/columns", "/columns/step", "/columns/tokens", "/columns/loss",
	"/columns/grad_norm", "/columns/val_loss", "/columns/dt", "/columns/mem",
	"/columns/mfu", NULL};

static void make(struct hostile *t)
{
	static const char text[] =
		"# meta ranks = 2\n# meta arithmetic = 0x5\n# config "
		"a = 1\n# arith b = 2\n"
		"# event x\nstep=1 tokens=10 loss=2.5\nstep=2 "
		"tokens=20 loss=2.25 dt=0.5\n"
		"step=3 tokens=30 loss=2 grad_norm=1 val_loss=3 mem=4096 mfu=0.4\n";
	char out[4200];
	struct run_log l;
	struct err e;
	snprintf(out, sizeof(out), "%s", fuzz_path("seed.h5"));
	FUZZ_ON(run_log_read(&l, fuzz_file("lines", text, strlen(text)), &e));
	FUZZ_ON(run_log_write(&l, out, &e));
	hostile_init(t, out, objects, run_fields);
	run_log_free(&l);
}

static void check_rows(const struct run_log *l)
{
	for (int64_t i = 0; i < l->n_rows; i++) {
		const struct row row = run_log_row(l, i), *r = &row;
		FUZZ_ON(!row_has(r, COL_STEP));
		FUZZ_ON(i && r->v[COL_STEP] <= run_log_value(l, i - 1, COL_STEP));
		for (int c = 0; c < N_COLUMNS; c++)
			FUZZ_ON(row_has(r, c) && columns[c].kind == COLUMN_INT &&
				(r->v[c] < 0 || r->v[c] > 0x1p53));
	}
}

static void use(struct run_log *l, uint8_t how)
{
	struct compare_opts o = {how & 1 ? COL_TOKENS : COL_STEP, 0, 0, how & 2};
	const struct graph_style style = {MARKS_BRAILLE, false, 40, 12};
	struct run_log both[2] = {*l, *l};
	struct curve_plot c;
	struct err e;
	struct run_diff d;
	struct str text = {0};
	compare_runs(l, l, &o, &d);
	FUZZ_ON(d.verdict != VERDICT_IDENTICAL && d.verdict != VERDICT_NOTHING);
	run_diff_print(&d, &o, &text);
	curve_print_table(both, 2, "loss", AXIS_STEPS, &text);
	if (!curve_plot_init(
		    &c, both, 2, &(struct series_opts){2}, "loss", AXIS_SECONDS, &e)) {
		graph_text(&c.graph, &style, &text);
		curve_plot_release(&c);
	}
	run_diff_release(&d);
	str_clear(&text);
	for (int64_t i = 0; i < l->n_rows; i++) {
		struct row r = run_log_row(l, i);
		row_print(&r, &text);
	}
	str_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct hostile good;
	struct bytes b = {data, n};
	struct err e = {0};
	struct run_log l;
	if (!good.image.len)
		make(&good);
	int rc = run_log_read(&l, hostile_make(&good, &b), &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return 0;
	check_rows(&l);
	use(&l, (uint8_t)n);
	run_log_free(&l);
	return 0;
}

/* Logs of other trainers: text and JSON, of a named format or detected. */
#include "tests/fuzz/fuzz.h"
#include "compare/compare.h"
#include "logs/logs.h"

#include <stdlib.h>
#include <string.h>

/* Steps ascend, and values are such as their columns may have. */
static void check_log(const struct run_log *l)
{
	FUZZ_ON(!l->n_rows || l->n_columns > MAX_LOG_COLUMNS || !l->info.format);
	FUZZ_ON(l->digits < 0 || l->digits > 17);
	for (int64_t i = 1; i < l->n_rows; i++)
		FUZZ_ON(!(run_log_value(l, i, COL_STEP) >
			  run_log_value(l, i - 1, COL_STEP)));
	for (int c = 0; c < l->n_columns; c++) {
		FUZZ_ON(run_log_find(l, l->column[c].name) != c);
		for (int64_t i = 0; c < N_COLUMNS && i < l->n_rows; i++)
			FUZZ_ON(run_log_has(l, i, c) &&
				!column_fits(c, run_log_value(l, i, c)));
	}
}

static void compare_with_itself(const struct run_log *l)
{
	const struct compare_opts o = {.by = COL_STEP};
	struct run_diff d;
	compare_runs(l, l, &o, &d);
	/* (what cannot be read agrees with nothing) */
	FUZZ_ON(!l->unread.n_values && !l->unread.n_rows &&
		d.verdict != VERDICT_IDENTICAL && d.verdict != VERDICT_NOTHING);
	run_diff_free(&d);
}

/* The same bytes as a file that grows, in two pieces: what is there at its end is that log. */
static void check_growing(const struct run_log *l, const char *format, struct bytes b)
{
	struct run_log now = {.name = xstrdup("growing")};
	struct err e;
	log_read_growing(&now, fuzz_file("log", b.p, b.n / 2), format, false, &e);
	FUZZ_ON(log_read_growing(&now, fuzz_file("log", b.p, b.n), format, false, &e));
	FUZZ_ON(now.n_rows != l->n_rows);
	for (int64_t i = 0; i < l->n_rows; i++)
		FUZZ_ON(run_log_value(&now, i, COL_STEP) !=
			run_log_value(l, i, COL_STEP));
	run_log_free(&now);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct err e = {0};
	struct run_log l;
	int n_formats = 0;
	while (log_format_names[n_formats])
		n_formats++;
	uint8_t which = take_byte(&b);
	const char *format =
		which < 0x80 ? log_format_names[1 + which % (n_formats - 1)] : NULL;
	if (b.n >= 8 && !memcmp(b.p, "\211HDF", 4))
		return -1; /* fuzz_runlog's */
	int rc = log_read(&l, fuzz_file("log", b.p, b.n), format, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return 0;
	if (strcmp(l.info.format ? l.info.format : "pt", "pt") != 0) {
		check_log(&l);
		compare_with_itself(&l);
		check_growing(&l, format, b);
	}
	run_log_free(&l);
	return 0;
}

/* Logs of other trainers: text and JSON, of a named format or detected, or of a format in a file.
 * */
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
				!column_accepts(c, run_log_value(l, i, c)));
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
	run_diff_release(&d);
}

/* The same bytes as a file that grows, in two pieces: what is there at its end is that log. */
static void check_growing(
	const struct run_log *l, const struct log_options *how, struct bytes b)
{
	struct run_log now = {.name = xstrdup("growing")};
	struct err e;
	log_read_growing(&now, fuzz_file("log", b.p, b.n / 2), how, false, &e);
	FUZZ_ON(log_read_growing(&now, fuzz_file("log", b.p, b.n), how, false, &e));
	FUZZ_ON(now.n_rows != l->n_rows);
	for (int64_t i = 0; i < l->n_rows; i++)
		FUZZ_ON(run_log_value(&now, i, COL_STEP) !=
			run_log_value(l, i, COL_STEP));
	run_log_free(&now);
}

/* The way to read by a format, or by detection: the first byte chooses. */
static const struct log_options *how_of(uint8_t which)
{
	static struct strs names;
	static struct log_options *how;
	struct err e;
	if (!how) {
		log_list_format_names(&names);
		how = xcalloc((size_t)names.n, sizeof(*how));
	}
	struct log_options *h = &how[which < 0x80 ? 1 + which % (names.n - 1) : 0];
	h->format = names.v[h - how];
	FUZZ_ON(!h->formats && log_options_load(h, &e));
	return h;
}

static void read_log(const struct log_options *how, struct bytes b)
{
	struct err e = {0};
	struct run_log l;
	if (b.n >= 8 && !memcmp(b.p, "\211HDF", 4))
		return; /* fuzz_runlog's */
	int rc = log_read(&l, fuzz_file("log", b.p, b.n), how, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return;
	if (strcmp(l.info.format ? l.info.format : "pt", "pt") != 0) {
		check_log(&l);
		compare_with_itself(&l);
		check_growing(&l, how, b);
	}
	run_log_free(&l);
}

/* A file of formats, and after a NUL byte a log that is read by it. */
static void read_formats(struct bytes b)
{
	struct err e = {0};
	const void *cut = b.n ? memchr(b.p, '\0', b.n) : NULL;
	size_t n = cut ? (size_t)((const uint8_t *)cut - b.p) : b.n;
	struct log_options how = {.format = fuzz_file("my.format", b.p, n)};
	int rc = log_options_load(&how, &e);
	FUZZ_ON((rc != 0) != (e.code != 0) || (rc && e.code != EX_DATAERR));
	if (!rc && cut)
		read_log(&how, (struct bytes){b.p + n + 1, b.n - n - 1});
	log_options_release(&how);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	uint8_t which = take_byte(&b);
	if (which == 0xff)
		read_formats(b);
	else
		read_log(how_of(which), b);
	return 0;
}

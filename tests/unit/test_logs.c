/* logs: the logs of other trainers, in texts made here in their form. */
#include "base/file.h"
#include "tests/support/logs.h"
#include "tests/support/support.h"
#include "compare/curve.h"
#include "compare/export.h"
#include "compare/follow.h"
#include "logs/logs_internal.h"
#include "run/tfevents.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err e;

static void assert_sample(const struct log_sample *s, const char *format)
{
	struct run_log l;
	if (log_read(&l, test_file("sample", s->text), how_of(format), &e))
		fail_msg("%s: %s", s->format, e.msg);
	assert_string_equal(l.info.format, s->format);
	if (l.n_rows != s->n_rows || l.digits != s->digits)
		fail_msg("%s: %lld rows, %d digits", s->format, (long long)l.n_rows,
			l.digits);
	for (const struct want *w = s->want; w->column; w++)
		assert_value(&l, w);
	assert_string_equal(l.config.len ? l.config.s : "", s->config);
	assert_int_equal(l.info.ranks, s->ranks);
	run_log_free(&l);
}

TEST(each_format_is_read_and_detected)
{
	for (size_t i = 0; i < n_log_samples; i++) {
		assert_sample(&log_samples[i], NULL);
		assert_sample(&log_samples[i], log_samples[i].format);
	}
}

/* All values of a are in b, with the same bits. */
static void assert_has_values(
	const struct run_log *a, const struct run_log *b, const char *what)
{
	for (int c = COL_STEP + 1; c < a->n_columns; c++) {
		int to = run_log_find(b, a->column[c].name);
		for (int64_t i = 0, k = 0; i < a->n_rows; i++) {
			double x = run_log_value(a, i, c);
			if (is_absent(x))
				continue;
			while (k < b->n_rows && run_log_value(b, k, COL_STEP) <
							run_log_value(a, i, COL_STEP))
				k++;
			double y =
				k < b->n_rows ? run_log_value(b, k, to) : absent_value();
			bool same = isnan(x) ? isnan(y) && !is_absent(y)
					     : !memcmp(&x, &y, sizeof(x));
			if (!same)
				fail_msg("%s, %s, row %lld: %.17g, %.17g", what,
					a->column[c].name, (long long)i, x, y);
		}
	}
}

/* Of any format to any that is written, and back. */
TEST(nothing_is_lost_by_export)
{
	static const char *const to[] = {"out.csv", "out.jsonl", "events.out.tfevents.1"};
	for (size_t i = 0; i < n_log_samples; i++)
		for (size_t k = 0; k < ARRAY_LEN(to); k++) {
			struct run_log l, back;
			struct strs all = {0};
			const char *path = test_path(to[k]);
			assert_int_equal(
				log_read(&l, test_file("sample", log_samples[i].text),
					how_of(log_samples[i].format), &e),
				0);
			if (export_write(&l, 1, &all, path, 0, &e) ||
				log_read(&back, path, how_of(NULL), &e))
				fail_msg("%s: %s", log_samples[i].format, e.msg);
			assert_has_values(&l, &back, log_samples[i].format);
			assert_has_values(&back, &l, log_samples[i].format);
			run_log_free(&l);
			run_log_free(&back);
			remove(path);
		}
}

TEST(each_format_has_a_sample)
{
	struct strs names = {0};
	log_list_format_names(&names);
	assert_string_equal(names.v[1], "pt");
	for (int64_t i = 2; i < names.n; i++) {
		bool found = !strcmp(names.v[i], "tensorboard");
		for (size_t k = 0; k < n_log_samples; k++)
			found |= !strcmp(log_samples[k].format, names.v[i]);
		if (!found)
			fail_msg("%s", names.v[i]);
	}
	strs_free(&names);
}

static struct run_log read_as(const char *format, const char *text)
{
	struct run_log l;
	if (log_read(&l, test_file("log", text), how_of(format), &e))
		fail_msg("%s", e.msg);
	return l;
}

TEST(own_logs_are_read)
{
	struct run_log l = read_as(NULL, "step=1 tokens=64 loss=2.5 mfu=0.25\n");
	assert_value(&l, &(struct want){1, "mfu", 0.25});
	assert_int_equal(l.digits, 0);
	run_log_free(&l);
	l = read_as(NULL, "# meta ranks = 4\nstep=1 loss=2.5 mfu=0.25\n");
	assert_int_equal(l.info.ranks, 4);
	run_log_free(&l);
	l = read_as(NULL, "step=1 loss=2.5 dtf=0.1 mfu=25\n");
	assert_string_equal(l.info.format, "wordplay");
	assert_value(&l, &(struct want){1, "mfu", 0.25});
	run_log_free(&l);
	l = read_as("pt", "step=1 loss=2.5 mfu=25\n");
	assert_value(&l, &(struct want){1, "mfu", 25});
	run_log_free(&l);
}

/* The run went back to step 20; the evaluation of step 20 stays with it. */
TEST(a_resumed_log)
{
	struct run_log l =
		read_as("nanogpt", "iter 10: loss 3.0, time 1.00ms, mfu 1.00%\n"
				   "iter 20: loss 2.0, time 1.00ms, mfu 1.00%\n"
				   "step 30: train loss 1.5, val loss 1.6\n"
				   "iter 30: loss 1.0, time 1.00ms, mfu 1.00%\n"
				   "step 20: train loss 2.5, val loss 2.6\n"
				   "iter 20: loss 2.1, time 1.00ms, mfu 1.00%\n"
				   "iter 25: loss 2.0, time 1.00ms, mfu 1.00%\n");
	assert_int_equal(l.n_rows, 3);
	assert_value(&l, &(struct want){20, "val_loss", 2.6});
	assert_value(&l, &(struct want){20, "loss", 2.1});
	assert_value(&l, &(struct want){25, "loss", 2.0});
	run_log_free(&l);
}

/* An evaluation that is logged late does not remove training rows. */
TEST(a_late_evaluation)
{
	struct run_log l =
		read_as("llmc", "s:1 trl:3.0 lr:0.1 norm:1\ns:2 trl:2.0 lr:0.1 "
				"norm:1\ns:1 tel:3.5\n");
	assert_int_equal(l.n_rows, 2);
	assert_value(&l, &(struct want){1, "val_loss", 3.5});
	assert_value(&l, &(struct want){2, "loss", 2.0});
	run_log_free(&l);
}

/* Rows of a table may be in any order; of two values at a step the later one counts. */
TEST(an_unsorted_table)
{
	static const struct {
		const char *format, *text;
	} of[] = {
		{"csv", "step,loss\n3,1.5\n1,9\n2,2.5\n1,3.5\n"},
		{"trainer-state",
			"{\"log_history\": [{\"loss\": 1.5, \"step\": 3}, {\"loss\": 9, \"step\": 1}, "
			"{\"loss\": 2.5, \"step\": 2}, {\"loss\": 3.5, \"step\": 1}]}"},
		{"megatron-golden",
			"{\"lm loss\": {\"start_step\": 1, \"values\": {\"3\": 1.5, \"1\": 3.5, \"2\": 2.5}}}"},
		{"megatron-bridge",
			"{\"3\": {\"lm loss\": 1.5}, \"1\": {\"lm loss\": 3.5}, \"2\": {\"lm loss\": 2.5}}"},
	};
	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		struct run_log l = read_as(of[i].format, of[i].text);
		assert_int_equal(l.n_rows, 3);
		assert_value(&l, &(struct want){1, "loss", 3.5});
		assert_value(&l, &(struct want){2, "loss", 2.5});
		assert_value(&l, &(struct want){3, "loss", 1.5});
		run_log_free(&l);
	}
}

TEST(an_incomplete_line)
{
	struct run_log l =
		read_as(NULL, "s:1 trl:3.0 lr:0.1 norm:1\ns:2 trl:2.0 lr:0.1 norm:1");
	assert_value(&l, &(struct want){2, "loss", 2.0});
	int c = run_log_find(&l, "grad_norm");
	assert_false(run_log_has(&l, 1, c));
	run_log_free(&l);
}

TEST(a_progress_bar_is_lines)
{
	struct run_log l = read_as(NULL,
		"training\r\x1b[Kstep=1 loss=2.5 sps=1\rstep=2 loss=2.25 sps=1\r\n");
	assert_int_equal(l.n_rows, 2);
	run_log_free(&l);
}

TEST(a_progress_bar_without_a_time)
{
	struct run_log l = read_as(NULL,
		"Epoch 0:  25%|## | 1/4 [00:06<01:44,  2.5as/it, v_num=0, train_loss_step=2.5]\n");
	assert_value(&l, &(struct want){1, "loss", 2.5});
	assert_int_equal(curve_has_column(&l, run_log_find(&l, "dt")), 0);
	run_log_free(&l);
}

TEST(what_is_no_log)
{
	static const char *const texts[] = {"", "\n", "The quick brown fox, and others\n",
		"{\"a\": 1}", "[1, 2]", "{", "a,b\n1,2\n", "1\n2\n",
		"{\"log_history\": 3}", "{\"start_step\": \"values\"}",
		"{\"0\": {\"lm loss\": }}", "step loss\n", "{\"", "{ \"", "{"};
	struct strs names = {0};
	log_list_format_names(&names);
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct run_log l;
		e = (struct err){0};
		const char *path = test_file("none", texts[i]);
		for (int64_t k = 0; k < names.n; k++) {
			if (!log_read(&l, path, how_of(names.v[k]), &e)) {
				fail_msg("'%s' is read as %s", texts[i], l.info.format);
			}
		}
	}
	strs_free(&names);
	struct log_options how = {.format = "words"};
	assert_int_equal(log_options_load(&how, &e), -1);
	assert_int_equal(e.code, EX_USAGE);
	log_options_release(&how);
}

TEST(a_unit_ends_a_number)
{
	static const char *const units[] = {
		"", " ", "s", "ms", "tok/s", "it/s, ", "M", "%"};
	static const char *const others[] = {"abc", "_2", ".5", ",5", "x1/s", "e"};
	for (size_t i = 0; i < ARRAY_LEN(units); i++)
		assert_false(number_continues(span_of(units[i])));
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		assert_true(number_continues(span_of(others[i])));
}

/* A name that goes on behind a NUL byte is another one, and none that a column can have. */
TEST(a_name_with_a_nul)
{
	struct run_log l;
	struct str bytes = {0};
	str_puts(&bytes, " iteration 1/ 2 | lm loss: 4.5E+00 | loss");
	str_putc(&bytes, '\0');
	for (int i = 0; i < 1000; i++)
		str_putc(&bytes, 'x');
	str_puts(&bytes, ": 5.5E+00 |\n");
	assert_int_equal(
		log_read(&l, write_bytes("nul", &bytes), how_of("megatron"), &e), 0);
	assert_int_equal(l.n_rows, 1);
	assert_value(&l, &(struct want){1, "loss", 4.5});
	run_log_free(&l);
	str_free(&bytes);
}

/* ---- logs that grow --------------------------------------------------------------- */

static void assert_same_log(const struct run_log *a, const struct run_log *b)
{
	assert_int_equal(a->n_rows, b->n_rows);
	assert_int_equal(a->n_columns, b->n_columns);
	assert_string_equal(a->info.format, b->info.format);
	for (int c = 0; c < a->n_columns; c++)
		for (int64_t i = 0; i < a->n_rows; i++) {
			double x = run_log_value(a, i, c), y = run_log_value(b, i, c);
			assert_memory_equal(&x, &y, sizeof(x));
		}
	assert_string_equal(
		a->config.s ? a->config.s : "", b->config.s ? b->config.s : "");
}

/* A file that grows by some bytes at a time is at its end what it is when it is read at once. */
static void grows_to(const char *text, int64_t step)
{
	struct str some = {0};
	struct run_log now = {.name = xstrdup("now")}, whole;
	const char *path = test_file("grows", "");
	int64_t n = (int64_t)strlen(text);
	uint64_t state = log_state(path), before = state;
	assert_true(!state);
	for (int64_t at = 0; at < n; at += step) {
		str_add(&some, text + at, (size_t)min64(step, n - at));
		int fd = open(path, O_WRONLY | O_TRUNC);
		assert_int_equal(write_all(fd, some.s, some.len), 0);
		close(fd);
		state = log_state(path);
		assert_true(state && state != before);
		before = state;
		assert_true(log_read_growing(&now, path, how_of(NULL), false, &e) >= 0);
	}
	assert_int_equal(log_read(&whole, path, how_of(NULL), &e), 0);
	assert_same_log(&now, &whole);
	/* another file in its place */
	test_file("grows", "iter 1: loss 3.5, time 1.50ms\n");
	state = log_state(path);
	const char *other = test_file("other", "iter 1: loss 2.5, time 1.50ms\n");
	assert_int_equal(rename(other, path), 0);
	assert_true(log_state(path) != state);
	assert_int_equal(log_read_growing(&now, path, how_of(NULL), false, &e), 0);
	assert_true(now.n_rows == 1 && run_log_value(&now, 0, COL_LOSS) == 2.5);
	assert_string_equal(now.name, "now");
	/* which is emptied, and gone: the log stays */
	test_file("grows", "");
	assert_int_equal(log_read_growing(&now, path, how_of(NULL), false, &e), 1);
	assert_int_equal(unlink(path), 0);
	assert_true(!log_state(path));
	assert_int_equal(log_read_growing(&now, path, how_of(NULL), false, &e), 1);
	assert_int_equal(now.n_rows, 1);
	run_log_free(&now);
	run_log_free(&whole);
	str_free(&some);
}

TEST(logs_that_grow)
{
	struct str text = {0};
	for (size_t i = 0; i < n_log_samples; i++)
		grows_to(log_samples[i].text, 150);
	for (int i = 0; i < 4000; i++)
		str_printf(&text,
			i % 10 ? "iter %d: loss %.4f, time 1.50ms, mfu 2.00%%\n"
			       : "step %d: train loss %.4f, val loss 3.1415\n",
			i, 2 + 1 / (1 + i * 1e-3));
	grows_to(text.s, 30011);
	str_clear(&text);
	for (int i = 4000; i > 0; i--)
		str_printf(
			&text, i < 4000 ? "%d,%.9g,\n" : "step,loss,x\n", i, 2 + 1.0 / i);
	grows_to(text.s, 20011);
	str_free(&text);
}

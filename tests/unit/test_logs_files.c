/* logs: event files, and folders. */
#include "base/file.h"
#include "tests/support/logs.h"
#include "tests/support/support.h"
#include "compare/follow.h"
#include "logs/logs_internal.h"
#include "run/tfevents.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err e;

/* ---- event files ------------------------------------------------------------------ */

static void add_bytes(struct str *to, int field, const struct str *s)
{
	str_putc(to, (char)(field << 3 | 2));
	str_putc(to, (char)(s->len & 0x7f));
	BUG_ON(s->len > 0x7f);
	str_add(to, s->s, s->len);
}

/* An event with a scalar: as a simple_value, or as a tensor with float_val. */
static void add_event(struct str *file, int step, const char *tag, float v, bool tensor)
{
	struct str event = {0}, summary = {0}, value = {0}, text = {0}, t = {0};
	str_puts(&text, tag);
	add_bytes(&value, 1, &text);
	if (tensor) {
		str_add(&t, "\x08\x01\x12\x00\x2a\x04", 6); /* dtype, shape, float_val */
		str_add(&t, &v, 4);
		add_bytes(&value, 8, &t);
	} else {
		str_putc(&value, 2 << 3 | 5);
		str_add(&value, &v, 4);
	}
	add_bytes(&summary, 1, &value);
	str_putc(&event, 1 << 3 | 1);
	str_add(&event, "\0\0\0\0\0\0\0\0", 8);
	str_putc(&event, 2 << 3);
	str_putc(&event, (char)step);
	add_bytes(&event, 5, &summary);
	tfevents_put_record(file, &event);
	str_free(&event), str_free(&summary), str_free(&value), str_free(&text);
	str_free(&t);
}

static struct str some_events(void)
{
	struct str file = {0};
	add_event(&file, 1, "loss_metrics/global_avg_loss", 2.5f, false);
	add_event(&file, 2, "loss_metrics/global_avg_loss", 2.3456789f, false);
	add_event(&file, 1, "grad_norm", 1.5f, true);
	add_event(&file, 2, "grad_norm", 1.25f, true);
	add_event(&file, 2, "memory/max_reserved(GiB)", 1.5f, false);
	add_event(&file, 2, "mfu(%)", 45.0f, false);
	return file;
}

TEST(event_files)
{
	struct run_log l;
	struct str file = some_events();
	assert_int_equal(log_read(&l, write_bytes("events", &file), how_of(NULL), &e), 0);
	assert_string_equal(l.info.format, "tensorboard");
	assert_int_equal(l.n_rows, 2);
	assert_int_equal(l.digits, 0);
	assert_value(&l, &(struct want){1, "loss", 2.5});
	assert_value(&l, &(struct want){2, "loss", (double)2.3456789f});
	assert_value(&l, &(struct want){2, "grad_norm", 1.25});
	assert_value(&l, &(struct want){2, "mem", 1.5 * 0x1p30});
	assert_value(&l, &(struct want){2, "mfu", 0.45});
	run_log_free(&l);
	str_free(&file);
}

/* A file that is still written ends within a record; a changed byte is found. */
TEST(damaged_event_files)
{
	struct run_log l;
	struct str file = some_events();
	size_t len = file.len;
	file.len = len - 3;
	assert_int_equal(log_read(&l, write_bytes("events", &file), how_of(NULL), &e), 0);
	assert_int_equal(run_log_find(&l, "mfu"), COL_MFU);
	assert_false(run_log_has(&l, 1, COL_MFU));
	assert_true(run_log_has(&l, 1, COL_MEM));
	run_log_free(&l);
	file.len = len;
	for (size_t i = 12; i < len; i++) {
		file.s[i] ^= 4;
		if (!log_read(
			    &l, write_bytes("events", &file), how_of("tensorboard"), &e))
			fail_msg("byte %zu", i);
		assert_int_equal(e.code, EX_DATAERR);
		file.s[i] ^= 4;
	}
	str_free(&file);
}

TEST(a_directory_of_event_files)
{
	struct run_log l;
	struct str first = {0}, second = {0};
	assert_int_equal(mkdir(test_path("tb"), 0777), 0);
	add_event(&first, 1, "loss", 3, false);
	add_event(&first, 2, "loss", 2.5f, false);
	add_event(&first, 3, "loss", 2, false);
	add_event(&second, 2, "loss", 2.25f, false);
	write_bytes("tb/events.out.tfevents.1", &first);
	write_bytes("tb/events.out.tfevents.2", &second);
	assert_int_equal(log_read(&l, test_path("tb"), how_of(NULL), &e), 0);
	assert_int_equal(l.n_rows, 2);
	assert_value(&l, &(struct want){2, "loss", 2.25});
	run_log_free(&l);
	str_free(&first);
	str_free(&second);
}

/* The metrics of a run of MLflow, of which one's name is a path. */
TEST(a_folder_of_metrics)
{
	struct run_log l;
	assert_int_equal(mkdir(test_path("run"), 0777), 0);
	assert_int_equal(mkdir(test_path("run/metrics"), 0777), 0);
	assert_int_equal(mkdir(test_path("run/metrics/train"), 0777), 0);
	test_file(
		"run/metrics/train/loss", "1764201600500 2.5 1\n1764201601500 2.25 2\n");
	test_file("run/metrics/lr", "1764201600500 0.5 1\n");
	assert_int_equal(log_read(&l, test_path("run"), how_of(NULL), &e), 0);
	assert_string_equal(l.info.format, "mlflow");
	assert_int_equal(l.n_rows, 2);
	assert_value(&l, &(struct want){2, "loss", 2.25});
	assert_value(&l, &(struct want){1, "lr", 0.5});
	run_log_free(&l);
	uint64_t before = log_state(test_path("run"));
	test_file("run/metrics/train/loss", "1764201600500 2.5 1\n");
	assert_true(before && log_state(test_path("run")) != before);
	assert_int_equal(
		log_read(&l, test_path("run/metrics/train/loss"), how_of(NULL), &e), 0);
	assert_value(&l, &(struct want){1, "loss", 2.5});
	run_log_free(&l);
}

/* What is written is read back, bit for bit, and a run that goes on replaces what came after its step. */
TEST(written_event_files)
{
	struct run_log l;
	struct str file = {0};
	const struct tfevents_scalar row[] = {{"train/loss", (double)2.3456789f, false},
		{"memory/mem", 0x1p52 + 1, true}, {"val/loss", (double)NAN, false}};
	tfevents_put_begin(&file, 1764201600.5, 0);
	/* as TensorFlow begins its files */
	assert_memory_equal(file.s, "\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09", 13);
	for (int step = 1; step <= 3; step++)
		tfevents_put_row(&file, 1764201600.5 + step, step, row, 3 - (step == 3));
	write_bytes("events", &file);
	assert_int_equal(log_read(&l, test_path("events"), how_of(NULL), &e), 0);
	assert_int_equal(l.n_rows, 3);
	assert_value(&l, &(struct want){1, "loss", (double)2.3456789f});
	assert_value(&l, &(struct want){1, "mem", 0x1p52 + 1});
	assert_true(isnan(run_log_value(&l, 1, COL_VAL_LOSS)));
	assert_true(run_log_has(&l, 1, COL_VAL_LOSS));
	run_log_free(&l);
	tfevents_put_begin(&file, 1764201610.5, 2); /* and no row has val_loss again */
	tfevents_put_row(&file, 1764201611.5, 300, row, 1);
	write_bytes("events", &file);
	assert_int_equal(log_read(&l, test_path("events"), how_of(NULL), &e), 0);
	assert_int_equal(l.n_rows, 2);
	assert_true(run_log_has(&l, 0, COL_MEM));
	assert_value(&l, &(struct want){300, "loss", (double)2.3456789f});
	assert_false(run_log_has(&l, 1, COL_MEM));
	run_log_free(&l);
	str_free(&file);
}

/* Writes another event file when it is called for the first time. */
static bool until_grown(void *to, const struct run_log *logs, int n)
{
	int *calls = to;
	struct str third = {0};
	assert_int_equal(n, 1);
	assert_int_equal(logs[0].n_rows, 2 + *calls);
	if ((*calls)++)
		return true;
	add_event(&third, 3, "loss", 2, false);
	write_bytes("tb/events.out.tfevents.3", &third);
	str_free(&third);
	return false;
}

TEST(a_directory_is_followed)
{
	struct run_log l;
	int calls = 0;
	enum follow_end why;
	const struct follow f = {how_of(NULL), until_grown, &calls, 60};
	const char *path = test_path("tb");
	assert_int_equal(follow_runs(&l, &path, 1, &f, &why, &e), 0);
	assert_int_equal(why, FOLLOW_STOPPED);
	assert_int_equal(calls, 2);
	assert_value(&l, &(struct want){3, "loss", 2});
	run_log_free(&l);
}

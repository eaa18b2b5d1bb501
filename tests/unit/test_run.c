/* run: rows as text, the journal, runs that died and went on, run.h5. */
#include "base/file.h"
#include "tests/support/support.h"
#include "run/run.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct err e;
static char folder[4096]; /* of the run */

static int begin(void **state)
{
	static int n;
	(void)state;
	e = (struct err){0};
	snprintf(folder, sizeof(folder), "%s/run-%d", test_folder(), n++);
	assert_int_equal(mkdir(folder, 0777), 0);
	return 0;
}

static const char *in_folder(const char *name)
{
	static char path[8192];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static float any_float(int64_t i)
{
	float f;
	do {
		uint32_t bits = (uint32_t)hash_mix((uint64_t)i++ + 77);
		memcpy(&f, &bits, sizeof(f));
	} while (!isfinite(f));
	return f;
}

/* A row of a run at a step; what it has depends on the step. */
static struct unread unread;

static struct row a_row(int64_t step)
{
	struct row r = {.has = 0};
	row_set(&r, COL_STEP, (double)step);
	row_set(&r, COL_TOKENS, (double)(step * 1000003));
	row_set(&r, COL_LOSS, (double)any_float(step));
	row_set(&r, COL_GRAD_NORM, (double)any_float(-step));
	row_set(&r, COL_DT, 0.125 * (double)(step % 1000)); /* six digits */
	if (step % 10 == 0)
		row_set(&r, COL_VAL_LOSS, (double)any_float(1000 + step));
	if (step % 3)
		row_set(&r, COL_MEM, 0x1p52 + (double)step);
	return r;
}

/* Floats by their bits, all else by its value. */
static void assert_same_row(const struct row *a, const struct row *b)
{
	assert_int_equal(a->has, b->has);
	for (int c = 0; c < N_COLUMNS; c++) {
		float x = (float)a->v[c], y = (float)b->v[c];
		if (row_has(a, c) && columns[c].kind == COLUMN_EXACT)
			assert_memory_equal(&x, &y, sizeof(x));
		else if (row_has(a, c))
			assert_true(a->v[c] == b->v[c]);
	}
}

/* ---- rows ------------------------------------------------------------------------ */

TEST_AFTER(begin, no_bit_of_a_float_is_lost)
{
	struct str line = {0};
	for (int64_t i = 0; i < 20000; i++) {
		struct row a = {.has = 0}, b;
		row_set(&a, COL_STEP, (double)i);
		row_set(&a, COL_LOSS, (double)any_float(i));
		row_set(&a, COL_LR, (double)any_float(i + 1));
		str_clear(&line);
		row_print(&a, &line);
		assert_int_equal(row_parse(line.s, line.len, &b, &unread), 0);
		assert_same_row(&a, &b);
	}
	str_free(&line);
}

TEST_AFTER(begin, extreme_values)
{
	static const float some[] = {
		0, -0.0f, 1e-45f, -3.4028235e38f, INFINITY, -INFINITY, 1.17549435e-38f};
	struct str line = {0};
	struct row a, b;
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		a = (struct row){.has = 0};
		row_set(&a, COL_STEP, 0x1p53);
		row_set(&a, COL_LOSS, (double)some[i]);
		str_clear(&line);
		row_print(&a, &line);
		assert_int_equal(row_parse(line.s, line.len, &b, &unread), 0);
		assert_same_row(&a, &b);
	}
	row_set(&a, COL_LOSS, (double)NAN);
	str_clear(&line);
	row_print(&a, &line);
	assert_int_equal(row_parse(line.s, line.len, &b, &unread), 0);
	assert_true(row_has(&b, COL_LOSS) && isnan(b.v[COL_LOSS]));
	str_free(&line);
}

TEST_AFTER(begin, a_line_as_people_see_it)
{
	struct str line = {0};
	struct row r = {.has = 0};
	row_set(&r, COL_TPS, 1234567.89);
	row_set(&r, COL_LR, (double)0.1f);
	row_set(&r, COL_LOSS, 2.5);
	row_set(&r, COL_STEP, 10);
	row_set(&r, COL_TOKENS, 9007199254740991);
	row_print(&r, &line);
	assert_string_equal(line.s,
		"step=10 tokens=9007199254740991 loss=2.5 lr=0.1 tps=1.23457e+06");
	str_free(&line);
}

TEST_AFTER(begin, columns_are_found)
{
	for (int c = 0; c < N_COLUMNS; c++) {
		assert_non_null(columns[c].name);
		assert_int_equal(column_find(columns[c].name), c);
	}
	assert_int_equal(column_find("sync_reduced"), COL_OUTER_GRAD_NORM);
	assert_int_equal(column_find("losses"), -1);
	assert_int_equal(column_find("los"), -1);
	assert_int_equal(column_find(""), -1);
}

TEST_AFTER(begin, other_words_are_passed_over)
{
	static const char line[] = "step=3  who=knows loss=x lr= tokens=7\tloss=1.5 =4 z";
	struct row r;
	assert_int_equal(row_parse(line, strlen(line), &r, &unread), 0);
	assert_int_equal(r.has, 1 << COL_STEP | 1 << COL_TOKENS | 1 << COL_LOSS);
	assert_true(r.v[COL_STEP] == 3 && r.v[COL_TOKENS] == 7 && r.v[COL_LOSS] == 1.5);
	assert_int_equal(row_parse("loss=1", 6, &r, &unread), -1);
	assert_int_equal(row_parse("", 0, &r, &unread), -1);
}

/* ---- the log in memory ----------------------------------------------------------- */

TEST_AFTER(begin, a_run_that_went_back)
{
	struct run_log l = {0};
	struct row r;
	for (int64_t step = 1; step <= 1000; step++) {
		r = a_row(step);
		run_log_add(&l, &r);
	}
	r = a_row(600);
	row_set(&r, COL_LOSS, 42);
	run_log_add(&l, &r);
	assert_int_equal(l.n_rows, 600);
	assert_true(run_log_value(&l, 599, COL_LOSS) == 42 &&
		    run_log_value(&l, 598, COL_STEP) == 599);
	run_log_rewind(&l, 600);
	assert_int_equal(l.n_rows, 600);
	run_log_rewind(&l, 17);
	assert_int_equal(l.n_rows, 17);
	run_log_rewind(&l, 0);
	assert_int_equal(l.n_rows, 0);
	run_log_free(&l);
}

/* ---- the journal ----------------------------------------------------------------- */

static const struct run_info head = {.started = "2026-11-20T10:51:00Z",
	.host = "a \"host\" # of ours",
	.command = "pt-train -d 'a b'\n",
	.layout = "dp=4",
	.pid = 77,
	.ranks = 4,
	.hosts = 2,
	.threads = 1,
	.arithmetic = 0xfedcba9876543210};
static const char config[] = "lr = 0.001\nsample-prompt = \"\\n\"\n";
static const char arith[] = "lr = 0.001\ndata = 0x12\n";

static void open_journal(struct journal *j, int64_t resume)
{
	assert_int_equal(
		journal_open(j, folder, resume, false, &head, config, arith, &e), 0);
}

static void put_rows(struct journal *j, int64_t first, int64_t last)
{
	for (int64_t step = first; step <= last; step++) {
		struct row r = a_row(step);
		assert_int_equal(journal_write_row(j, &r, &e), 0);
	}
}

/* The log has rows 1 to n as a_row() makes them, and the head. */
static void check_log(const struct run_log *l, int64_t n)
{
	assert_int_equal(l->n_rows, n);
	for (int64_t i = 0; i < n; i++) {
		struct row want = a_row(i + 1);
		struct row got = run_log_row(l, i);
		assert_same_row(&got, &want);
	}
	assert_string_equal(l->info.host, head.host);
	assert_string_equal(l->info.command, head.command);
	assert_string_equal(l->info.started, head.started);
	assert_null(l->info.job);
	assert_int_equal(l->info.ranks, 4);
	assert_true(l->info.arithmetic == head.arithmetic);
	assert_string_equal(l->config.s, config);
	assert_string_equal(l->arithmetic.s, arith);
}

static void check_file(const char *path, int64_t n)
{
	struct run_log l;
	assert_int_equal(run_log_read(&l, path, &e), 0);
	check_log(&l, n);
	run_log_free(&l);
}

TEST_AFTER(begin, journal_and_h5_are_equal)
{
	struct journal j;
	struct run_log a, b;
	open_journal(&j, -1);
	put_rows(&j, 1, 300);
	journal_write_event(&j, 300, "checkpoint x.h5\nof two lines", &e);
	assert_int_equal(journal_publish(&j, &e), 0);
	assert_false(file_exists(in_folder("run.h5.tmp")));
	check_log(&j.log, 300);
	journal_close(&j);
	check_file(in_folder("journal.txt"), 300);
	check_file(in_folder("run.h5"), 300);
	check_file(folder, 300);
	assert_int_equal(run_log_read(&a, in_folder("journal.txt"), &e), 0);
	assert_int_equal(run_log_read(&b, in_folder("run.h5"), &e), 0);
	assert_string_equal(a.events.s, b.events.s);
	assert_non_null(strstr(a.events.s, "step=300 checkpoint x.h5 of two lines\n"));
	run_log_free(&a);
	run_log_free(&b);
	assert_int_equal(e.code, 0);
}

/* A row is in the file when journal_write_row() comes back: nothing is kept. */
TEST_AFTER(begin, a_row_is_written_at_once)
{
	struct journal j;
	open_journal(&j, -1);
	for (int64_t step = 1; step <= 5; step++) {
		put_rows(&j, step, step);
		check_file(in_folder("journal.txt"), step);
	}
	journal_close(&j);
}

/* The head of a number is a number: a line without its end must not be one. */
TEST_AFTER(begin, a_torn_line_says_nothing)
{
	struct journal j;
	struct str text = {0};
	open_journal(&j, -1);
	put_rows(&j, 1, 3);
	journal_close(&j);
	assert_int_equal(file_read(in_folder("journal.txt"), SIZE_MAX, &text, &e), 0);
	size_t whole = text.len - 1; /* without the last newline */
	while (text.s[whole - 1] != '\n')
		whole--;
	for (size_t n = whole; n < text.len; n++) {
		assert_int_equal(truncate(in_folder("journal.txt"), (off_t)n), 0);
		check_file(in_folder("journal.txt"), 2);
		/* a run that goes on cuts it off, and says the same again */
		struct str now = {0};
		open_journal(&j, 2);
		file_read(in_folder("journal.txt"), SIZE_MAX, &now, &e);
		assert_memory_equal(now.s, text.s, whole);
		assert_int_equal(now.s[whole], '#');
		str_free(&now);
		put_rows(&j, 3, 3);
		check_log(&j.log, 3);
		journal_close(&j);
		check_file(in_folder("journal.txt"), 3);
		FILE *f = fopen(in_folder("journal.txt"), "w");
		assert_int_equal(fwrite(text.s, 1, text.len, f), text.len);
		fclose(f);
	}
	str_free(&text);
}

/* Killed at step 57, the newest checkpoint being of step 40. */
TEST_AFTER(begin, a_run_that_goes_on)
{
	struct journal j;
	struct str text = {0};
	open_journal(&j, -1);
	put_rows(&j, 1, 57);
	assert_int_equal(journal_publish(&j, &e), 0);
	journal_close(&j);
	open_journal(&j, 40);
	check_log(&j.log, 40);
	put_rows(&j, 41, 50);
	assert_int_equal(journal_publish(&j, &e), 0);
	check_log(&j.log, 50);
	assert_non_null(strstr(j.log.events.s, "step=40 resume\n"));
	journal_close(&j);
	check_file(in_folder("journal.txt"), 50);
	check_file(in_folder("run.h5"), 50);
	/* what was superseded is still in the journal */
	assert_int_equal(file_read(in_folder("journal.txt"), SIZE_MAX, &text, &e), 0);
	assert_non_null(strstr(text.s, "\nstep=57 "));
	str_free(&text);
	/* before any row of its own a run that goes on has none from beyond */
	open_journal(&j, 30);
	journal_close(&j);
	check_file(in_folder("journal.txt"), 30);
}

TEST_AFTER(begin, a_run_begins_anew)
{
	struct journal j;
	struct run_log l;
	open_journal(&j, -1);
	put_rows(&j, 1, 9);
	journal_close(&j);
	open_journal(&j, -1);
	assert_int_equal(run_log_read(&l, in_folder("journal.txt"), &e), -1); /* no row */
	put_rows(&j, 1, 4);
	journal_close(&j);
	check_file(in_folder("journal.txt"), 4);
	/* going on where there is no journal */
	unlink(in_folder("journal.txt"));
	open_journal(&j, 7);
	assert_int_equal(j.log.n_rows, 0);
	journal_close(&j);
}

/* ---- readers --------------------------------------------------------------------- */

TEST_AFTER(begin, lines_as_they_were_printed)
{
	struct run_log l;
	const char *path = test_file("printed",
		"# meta arithmetic = 0x0123456789abcdef\nsome words\nstep=1 loss=3\r\n"
		"\nstep=2 loss=2.5 new=1\nstep=x loss=1\n");
	assert_int_equal(run_log_read(&l, path, &e), 0);
	assert_int_equal(l.n_rows, 2);
	assert_true(run_log_value(&l, 0, COL_LOSS) == 3 &&
		    run_log_value(&l, 1, COL_LOSS) == 2.5);
	assert_true(l.info.arithmetic == 0x0123456789abcdef);
	assert_string_equal(l.name, path);
	run_log_free(&l);
}

TEST_AFTER(begin, what_is_no_log)
{
	struct run_log l;
	struct str bytes = {0};
	struct journal j;
	assert_int_equal(run_log_read(&l, test_file("text", "nothing\n"), &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_int_equal(run_log_read(&l, test_file("empty", ""), &e), -1);
	assert_int_equal(run_log_read(&l, folder, &e), -1); /* without run.h5 */
	assert_int_equal(e.code, EX_IOERR);
	/* a run.h5 of which a byte in the middle of a column is another one */
	open_journal(&j, -1);
	put_rows(&j, 1, 200);
	journal_publish(&j, &e);
	journal_close(&j);
	e = (struct err){0};
	assert_int_equal(file_read(in_folder("run.h5"), SIZE_MAX, &bytes, &e), 0);
	float loss = any_float(100);
	char *at = memmem(bytes.s, bytes.len, &loss, sizeof(loss));
	assert_non_null(at);
	*at ^= 1;
	FILE *f = fopen(in_folder("run.h5"), "w");
	assert_int_equal(fwrite(bytes.s, 1, bytes.len, f), bytes.len);
	fclose(f);
	assert_int_equal(run_log_read(&l, folder, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "checksum of the metadata"));
	str_free(&bytes);
}

/* ---- a disk that is full --------------------------------------------------------- */

/* Files may not grow beyond this. */
static void limit_files(int64_t n_bytes)
{
	struct rlimit l;
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &l);
	l.rlim_cur = n_bytes < 0 ? l.rlim_max : (rlim_t)n_bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static int64_t file_size(const char *path)
{
	struct stat st;
	return stat(path, &st) ? -1 : st.st_size;
}

/* The disk fills at each byte of two lines, and is free again after some more. */
TEST_AFTER(begin, lines_are_kept_until_there_is_room)
{
	for (int64_t room = 0; room < 300; room += 7) {
		struct journal j;
		open_journal(&j, -1);
		put_rows(&j, 1, 3);
		int64_t full = file_size(in_folder("journal.txt")) + room;
		limit_files(full);
		int64_t step = 4;
		struct row r = a_row(step);
		while (!journal_write_row(&j, &r, &e))
			r = a_row(++step);
		assert_int_equal(e.code, EX_IOERR);
		assert_int_equal(journal_n_unwritten(&j), 1);
		check_file(in_folder("journal.txt"), step - 1);
		for (int i = 0; i < 4; i++) {
			r = a_row(++step);
			assert_int_equal(journal_write_row(&j, &r, &e), -1);
		}
		assert_true(file_size(in_folder("journal.txt")) <= full);
		assert_int_equal(journal_n_unwritten(&j), 5);
		check_log(&j.log, step);
		limit_files(full + 150); /* room for some of them */
		assert_int_equal(journal_flush(&j, &e), -1);
		assert_in_range(journal_n_unwritten(&j), 1, 4);
		check_file(in_folder("journal.txt"), step - journal_n_unwritten(&j));
		limit_files(-1);
		put_rows(&j, step + 1, step + 1);
		assert_int_equal(journal_n_unwritten(&j), 0);
		check_file(in_folder("journal.txt"), step + 1);
		journal_close(&j);
	}
}

TEST_AFTER(begin, a_head_is_written_whole_or_not_at_all)
{
	struct journal j;
	open_journal(&j, -1);
	put_rows(&j, 1, 3);
	journal_close(&j);
	int64_t size = file_size(in_folder("journal.txt"));
	for (int64_t room = 0; room < 200; room += 20) {
		limit_files(size + room);
		e = (struct err){0};
		assert_int_equal(
			journal_open(&j, folder, 3, false, &head, config, arith, &e), -1);
		assert_int_equal(e.code, EX_IOERR);
		journal_close(&j);
		assert_int_equal(file_size(in_folder("journal.txt")), size);
	}
	limit_files(-1);
	open_journal(&j, 3);
	put_rows(&j, 4, 6);
	journal_close(&j);
	check_file(in_folder("journal.txt"), 6);
}

/* ---- one writer ------------------------------------------------------------------ */

TEST_AFTER(begin, a_second_writer_is_refused)
{
	struct journal j;
	int first, second, pipes[2];
	char byte;
	assert_int_equal(journal_lock(folder, false, 0, &first, &e), 0);
	assert_int_equal(first, -1); /* there is none yet */
	assert_int_equal(journal_lock(folder, true, 0, &first, &e), 0);
	assert_true(first >= 0);
	open_journal(&j, -1);
	put_rows(&j, 1, 3);
	assert_int_equal(journal_lock(folder, true, 0.1, &second, &e), -1);
	assert_int_equal(e.code, EX_USAGE);
	assert_non_null(strstr(e.msg, "process 77 on a \"host\" # of ours"));
	check_file(in_folder("journal.txt"), 3); /* that others look at it is no harm */
	assert_int_equal(journal_lock(folder, true, 0, &second, &e), -1);
	close(first);
	assert_int_equal(journal_lock(folder, true, 0, &second, &e), 0);
	close(second);
	journal_close(&j);
	/* a process that is killed has it no more */
	assert_int_equal(pipe(pipes), 0);
	pid_t pid = fork();
	if (!pid) {
		byte = journal_lock(folder, true, 0, &first, &e) ? 'n' : 'y';
		_exit(write(pipes[1], &byte, 1) == 1 ? pause() : 1);
	}
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	assert_int_equal(byte, 'y');
	assert_int_equal(journal_lock(folder, true, 0, &second, &e), -1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_int_equal(journal_lock(folder, true, 0, &second, &e), 0);
	close(second);
}

/* ---- a long run ------------------------------------------------------------------ */

enum { MANY = 100000 };

/* Rows and republishing as the loop does it; returns the seconds of the latter. */
static double put_and_publish(struct journal *j, int64_t first, int64_t last)
{
	double spent = 0;
	for (int64_t step = first; step <= last; step++) {
		put_rows(j, step, step);
		if (!journal_is_stale(j, 0))
			continue;
		assert_int_equal(journal_publish(j, &e), 0);
		spent += j->publish_secs;
	}
	return spent;
}

TEST_AFTER(begin, a_hundred_thousand_rows)
{
	struct journal j;
	struct rusage u;
	open_journal(&j, -1);
	double begin = clock_seconds();
	double spent = put_and_publish(&j, 1, MANY), all = clock_seconds() - begin;
	assert_true(spent - j.publish_secs <= all / 20);
	assert_int_equal(journal_publish(&j, &e), 0);
	double last = j.publish_secs;
	journal_close(&j);
	begin = clock_seconds();
	open_journal(&j, MANY / 2);
	double again = clock_seconds() - begin;
	assert_int_equal(j.log.n_rows, MANY / 2);
	put_and_publish(&j, MANY / 2 + 1, MANY);
	assert_int_equal(journal_publish(&j, &e), 0);
	journal_close(&j);
	check_file(in_folder("journal.txt"), MANY);
	check_file(folder, MANY);
	getrusage(RUSAGE_SELF, &u);
	print_message(
		"# figure: %d rows: %.1f us a row, %.1f %% of it run.h5, the last in "
		"%.0f ms; resumed in %.0f ms; %ld MiB\n",
		MANY, 1e6 * all / MANY, 100 * spent / all, 1e3 * last, 1e3 * again,
		u.ru_maxrss / 1024);
}

/* Sealed, but not as any run is: steps that go back or are none, counts that are none. */
TEST_AFTER(begin, columns_that_cannot_be)
{
	static const struct {
		const char *column;
		int64_t v[3];
	} cases[] = {
		{"step", {1, 3, 2}},
		{"step", {1, 1, 2}},
		{"step", {1, INT64_MIN, 3}},
		{"step", {-1, 2, 3}},
		{"tokens", {10, -20, 30}},
		{"mem", {1, 2, INT64_MAX}},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct run_log l;
		struct journal j;
		struct h5 *h;
		struct str path = {0};
		int64_t n = 3;
		open_journal(&j, -1);
		put_rows(&j, 1, n);
		assert_int_equal(journal_publish(&j, &e), 0);
		journal_close(&j);
		assert_int_equal(run_log_read(&l, folder, &e), 0);
		run_log_free(&l);
		str_printf(&path, "/columns/%s", cases[i].column);
		assert_int_equal(h5_reopen(&h, in_folder("run.h5"), &e), 0);
		assert_int_equal(h5_put(h, path.s, H5_I64, 1, &n, cases[i].v, &e), 0);
		assert_int_equal(h5_finish(h, 0, &e), 0);
		assert_int_equal(run_log_read(&l, folder, &e), -1);
		assert_int_equal(e.code, EX_DATAERR);
		assert_non_null(strstr(e.msg, "has an invalid value"));
		assert_non_null(strstr(e.msg, path.s));
		str_free(&path);
		e = (struct err){0};
	}
}

/* Lines and files of earlier versions have other names for some columns. */
TEST_AFTER(begin, earlier_names_are_read)
{
	static const char line[] = "step=2 sync=1 dtf=0.5 sync_norm=0.25";
	const int64_t n = 2, steps[] = {1, 2}, syncs[] = {INT64_MIN, 1};
	const float norms[] = {NAN, 0.25f};
	const struct run_info info = {
		.format = "pt-run", .version = RUN_VERSION, .created_by = "pt-train 0"};
	struct run_log l;
	struct row r;
	struct h5 *h;
	assert_int_equal(row_parse(line, strlen(line), &r, &unread), 0);
	assert_true(r.v[COL_SYNCS] == 1 && r.v[COL_DT_FORWARD] == 0.5 &&
		    r.v[COL_PSEUDO_GRAD_NORM] == 0.25);
	const char *path = in_folder("old.h5");
	assert_int_equal(h5_create(&h, path, &e), 0);
	assert_int_equal(h5_fields_write(h, "/", run_fields, &info, &e), 0);
	assert_int_equal(h5_put_text(h, "/config", "", &e), 0);
	assert_int_equal(h5_put_text(h, "/arithmetic", "", &e), 0);
	assert_int_equal(h5_put_text(h, "/events", "", &e), 0);
	assert_int_equal(h5_put(h, "/columns/step", H5_I64, 1, &n, steps, &e), 0);
	assert_int_equal(h5_put(h, "/columns/sync", H5_I64, 1, &n, syncs, &e), 0);
	assert_int_equal(h5_put(h, "/columns/sync_norm", H5_F32, 1, &n, norms, &e), 0);
	assert_int_equal(h5_finish(h, 0, &e), 0);
	assert_int_equal(run_log_read(&l, path, &e), 0);
	assert_true(l.n_rows == 2 && !run_log_has(&l, 0, COL_SYNCS) &&
		    run_log_value(&l, 1, COL_SYNCS) == 1 &&
		    run_log_value(&l, 1, COL_PSEUDO_GRAD_NORM) == 0.25);
	run_log_free(&l);
}

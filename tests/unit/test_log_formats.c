/* logs: formats in the files of users. */
#include "base/file.h"
#include "tests/support/logs.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <unistd.h>

static struct err e;

/* Reads a log by the formats in a text. */
static struct run_log read_by(const char *formats, const char *log)
{
	struct run_log l = {0};
	struct log_options how = {.format = test_file("my.format", formats)};
	const char *path = test_file("log", log);
	if (log_options_load(&how, &e) || log_read(&l, path, &how, &e))
		fail_msg("%s", e.msg);
	log_options_release(&how);
	return l;
}

#define LAB                                               \
	"format lab\n"                                    \
	"settings\t# of pt-train, too\n"                  \
	"train \"it=\" needs 'nll '\n"                    \
	"\t'nll ' loss\n\t\"took \" dt ms\n"              \
	"\tbefore \" tok/s\" tps\n"                       \
	"eval \"it=\" needs \"dev\"\n\"dev \" val_loss\n" \
	"alone \"end \" score %\n"                        \
	"column grad_norm \"g\"\n"                        \
	"setting batch \"bs\"\n"                          \
	"sentence context \"windows of \"\n"

TEST(every_kind_of_line)
{
	struct run_log l =
		read_by(LAB, "bs: 32\r\nwith windows of 1,024 tokens\n"
			     "[x] it=1/9 nll 2.5 took 250 (1500 tok/s)\nit=1 dev 3.5\n"
			     "it=2/9 nll 2.25 took 500 (1250 tok/s)\nend 50\n");
	assert_string_equal(l.info.format, "lab");
	assert_int_equal(l.n_rows, 2);
	assert_value(&l, &(struct want){1, "loss", 2.5});
	assert_value(&l, &(struct want){1, "dt", 0.25});
	assert_value(&l, &(struct want){1, "tps", 1500});
	assert_value(&l, &(struct want){1, "val_loss", 3.5});
	assert_value(&l, &(struct want){2, "dt", 0.5});
	assert_value(&l, &(struct want){2, "score", 0.5});
	assert_string_equal(l.config.s, "batch = 32\ncontext = 1024\nsteps = 9\n");
	run_log_free(&l);
}

TEST(pairs_and_heads)
{
	struct run_log l =
		read_by("format a\ntrain 'n ' needs ';' pairs '=' ';' suffix loss 'x'\n"
			"column tps \"rate\"\n",
			"n 3; x=1.5; rate=2.5K; other=4\n");
	assert_value(&l, &(struct want){3, "loss", 1.5});
	assert_value(&l, &(struct want){3, "tps", 2500});
	assert_value(&l, &(struct want){3, "other", 4});
	run_log_free(&l);
	l = read_by(
		"format b\nhead '[at ' closes ranks\ntrain '- ' pairs '='\neval '+ ' pairs '='\n",
		"[at 4]\n0:  - loss=2.5\n+ val_loss=3\nelse\n- loss=7\n[at 5/9]\n- loss=2\n");
	assert_int_equal(l.n_rows, 2);
	assert_value(&l, &(struct want){4, "loss", 2.5});
	assert_value(&l, &(struct want){4, "val_loss", 3});
	assert_value(&l, &(struct want){5, "loss", 2});
	run_log_free(&l);
}

TEST(named_numbers_epochs_and_lines_without_a_step)
{
	struct run_log l = read_by(
		"format a\ntrain 'turn ' needs 'nll' epoch named\n'nll' loss\n'ram' mem MiB\n'tok' tps suffix\n'left' -\n"
		"eval 'dev:' whole last named\n'score' val_loss %\n",
		"turn 1 step 5 nll 2.5, ram: 2, tok: 2k, left: 7, x=1\nturn 1 step 9 nll 2.25\ndev: score 50\n"
		"turn 2 step 5 nll=2\nturn 2 step 9 rank 3 nll=9\n");
	assert_int_equal(l.n_rows, 3);
	assert_value(&l, &(struct want){5, "loss", 2.5});
	assert_value(&l, &(struct want){5, "mem", 0x1p21});
	assert_value(&l, &(struct want){5, "x", 1});
	assert_value(&l, &(struct want){5, "tps", 2000});
	assert_value(&l, &(struct want){9, "val_loss", 0.5});
	assert_value(&l, &(struct want){18, "loss", 2}); /* an epoch has 9 + 4 steps */
	assert_true(run_log_find(&l, "left") < 0);
	run_log_free(&l);
}

/* Of a file with several formats the one of the log is detected, and no other one is tried. */
TEST(formats_of_a_file)
{
	static const char two[] =
		"format a\ntrain 'A ' \n 'l ' loss\nformat b\ntrain 'B '\n'l ' loss\n";
	struct run_log l = read_by(two, "B 1 l 2.5\nB 2 l 2\n");
	assert_string_equal(l.info.format, "b");
	run_log_free(&l);
	/* a line that could be pt-train's is the file's */
	l = read_by("format c\ntrain 'step='\n'loss=' val_loss\n", "step=1 loss=2.5\n");
	assert_value(&l, &(struct want){1, "val_loss", 2.5});
	run_log_free(&l);
	struct log_options how = {.format = test_file("my.format", two)};
	assert_int_equal(log_options_load(&how, &e), 0);
	assert_int_equal(
		log_read(&l, test_file("log", "step,loss\n1,2\n2,3\n"), &how, &e), -1);
	assert_non_null(strstr(e.msg, "log: no line matches a format of "));
	log_options_release(&how);
}

/* A format of the same name replaces a built-in one; names come before the built-in ones. */
TEST(shared_formats)
{
	struct run_log l;
	struct log_options how = {.format = NULL};
	assert_int_equal(file_make_directory(test_path("share/logs"), &e), 0);
	test_file("share/logs/a.format",
		"column val_loss 'train/loss'\nformat nanogpt\ntrain 'round '\n'loss ' loss\n");
	test_file("share/logs/b.format.off", "wrong\n");
	setenv("PT_SHARE", test_path("share"), 1);
	assert_int_equal(log_options_load(&how, &e), 0);
	assert_int_equal(log_read(&l, test_file("log", "round 1 loss 2\n"), &how, &e), 0);
	assert_string_equal(l.info.format, "nanogpt");
	run_log_free(&l);
	const char *old = test_file("log", "iter 1: loss 2.5, time 1.50ms, mfu 2.00%\n");
	assert_int_equal(log_read(&l, old, &how, &e), -1);
	assert_int_equal(
		log_read(&l, test_file("log", "step,train/loss\n1,2\n"), &how, &e), 0);
	assert_value(&l, &(struct want){1, "val_loss", 2});
	run_log_free(&l);
	log_options_release(&how);
	test_file("share/logs/b.format", "wrong\n");
	assert_int_equal(log_options_load(&how, &e), -1);
	assert_non_null(
		strstr(e.msg, "logs/b.format: line 1: 'wrong' is none of format, "));
	log_options_release(&how);
	unsetenv("PT_SHARE");
}

static void assert_refused(const char *text, const char *why)
{
	struct log_options how = {.format = test_file("my.format", text)};
	if (!log_options_load(&how, &e) || e.code != EX_DATAERR || !strstr(e.msg, why))
		fail_msg("%.60s: %s", text, e.msg);
	log_options_release(&how);
}

TEST(what_is_no_format)
{
	static const char *const rows[][2] = {
		{"", "the file defines no log format"},
		{"# nothing\n", "the file defines no log format"},
		{"column loss 'x'\n", "the file defines no log format"},
		{"form lab\n", "my.format: line 1: 'form' is none of format, about, "},
		{"\n\nformat Lab\n",
			"line 3: the syntax is: format NAME, of a-z, 0-9 and -"},
		{"format\n", "line 1: the syntax is: format NAME"},
		{"format a b\n", "line 1: the syntax is: format NAME"},
		{"format csv\n", "line 1: 'csv': this format cannot be replaced"},
		{"format auto\n", "line 1: 'auto': this format cannot be replaced"},
		{"train 'x'\n", "line 1: 'train': no format line comes before"},
		{"'x' loss\n", "line 1: 'x': no format line comes before"},
		{"format a\n'x' loss\n",
			"line 2: 'x': no train or eval line comes before"},
		{"format a\ntrain 'x' pairs '='\n'x' loss\n",
			"'x': a line with pairs cannot have other numbers"},
		{"format a\ntrain 'x'\n",
			"'a': the format does not specify which numbers"},
		{"format a\ntrain 'x'\nformat b\n",
			"'a': the format does not specify which numbers"},
		{"format a\nformat a\n",
			"'a': the format does not specify which numbers"},
		{"format a\ntrain x\n", "line 2: the syntax is: train \"TEXT\" [needs"},
		{"format a\ntrain 'x' needs\n", "line 2: the syntax is: train"},
		{"format a\neval 'x' pairs\n", "line 2: the syntax is: eval"},
		{"format a\neval 'x' pairs '=='\n", "line 2: the syntax is: eval"},
		{"format a\neval 'x' pairs '=' '||'\n", "line 2: the syntax is: eval"},
		{"format a\neval 'x' suffix\n", "line 2: the syntax is: eval"},
		{"format a\neval 'x' 'y'\n", "line 2: the syntax is: eval"},
		{"format a\neval 'x' epoch\n", "line 2: the syntax is: eval"},
		{"format a\neval 'x' last pairs '='\n", "line 2: the syntax is: eval"},
		{"format a\neval 'x' named pairs '='\n", "line 2: the syntax is: eval"},
		{"format a\ntrain \"x\n", "line 2: 'x': the text has no closing quote"},
		{"format a\ntrain ''\n", "line 2: '': a text must have 1 to 255 bytes"},
		{"format a\ntrain 'x'\n'y' loss mss\n",
			"line 3: 'mss': the unit is not supported here"},
		{"format a\ntrain 'x'\nbefore 'y' loss suffix\n",
			"line 3: 'suffix': the unit is not supported here"},
		{"format a\nalone 'y' loss suffix\n",
			"line 2: 'suffix': the unit is not supported here"},
		{"column loss suffix 'y'\n",
			"line 1: 'suffix': the unit is not supported here"},
		{"format a\ntrain 'x'\n'y'\n",
			"line 3: the syntax is: \"TEXT\" COLUMN [UNIT]"},
		{"format a\ntrain 'x'\nbefore y loss\n",
			"line 3: the syntax is: before \"TEXT\" COLUMN [UNIT]"},
		{"format a\nhead closes\n", "line 2: the syntax is: head"},
		{"format a\nhead 'a' 'b' 'c' 'd' 'e'\n", "line 2: the syntax is: head"},
		{"format a\nabout it\n", "line 2: the syntax is: about"},
		{"format a\nsettings yes\n", "line 2: the syntax is: settings"},
		{"column loss x\n", "line 1: 'x': the unit is not supported"},
		{"column loss ms\n",
			"line 1: the syntax is: column COLUMN [UNIT] \"NAME\" ..."},
		{"setting batch\n", "line 1: the syntax is: setting OPTION"},
		{"sentence batch x\n", "line 1: the syntax is: sentence OPTION"},
	};
	struct str text = {0};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		assert_refused(rows[i][0], rows[i][1]);
	test_file("my.format", "format a\nalone 'x' x\n");
	assert_int_equal(truncate(test_path("my.format"), 65537), 0);
	struct log_options large = {.format = test_path("my.format")};
	assert_int_equal(log_options_load(&large, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	log_options_release(&large);
	str_puts(&text, "format a");
	str_add(&text, "\0", 2);
	assert_non_null(write_bytes("my.format", &text));
	struct log_options how = {.format = test_path("my.format")};
	assert_int_equal(log_options_load(&how, &e), -1);
	assert_non_null(strstr(e.msg, "not a text file: it has a NUL byte"));
	log_options_release(&how);
	str_free(&text);
}

/* BEFORE, then n times a line or text with its number, then AFTER. */
static const char *repeated(
	struct str *s, const char *before, int n, const char *each, const char *after)
{
	str_clear(s);
	str_puts(s, before);
	for (int i = 0; i < n; i++)
		for (const char *p = each; *p; p++)
			if (*p == '@')
				str_printf(s, "%d", i);
			else
				str_putc(s, *p);
	str_puts(s, after);
	return s->s;
}

TEST(limits)
{
	static const char one[] = "format a\ntrain 'x'\n";
	static const struct {
		const char *before;
		int most;
		const char *each, *after, *why;
	} rows[] = {
		{one, 16, "'y@' y@\n", "", "a line has at most 16 numbers"},
		{"format a\n", 12, "train 'x@'\n'y' y\n", "",
			"a format has at most 12 kinds"},
		{"format a\nalone 'x' x\ncolumn loss", 30, " 'x@'", "\n",
			"a line has at most 32 words"},
		{"format a\nalone '", 255, "x", "' x\n",
			"a text must have 1 to 255 bytes"},
	};
	struct str s = {0};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *text = repeated(
			&s, rows[i].before, rows[i].most, rows[i].each, rows[i].after);
		struct log_options how = {.format = test_file("my.format", text)};
		if (log_options_load(&how, &e))
			fail_msg("%s", e.msg);
		log_options_release(&how);
		assert_refused(repeated(&s, rows[i].before, rows[i].most + 1,
				       rows[i].each, rows[i].after),
			rows[i].why);
	}
	str_free(&s);
}

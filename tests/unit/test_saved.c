/*
 * What a checkpoint has saved is applied if and only if the option is of the run: every option there is.
 *   test_saved options                 their names, `run` or `user`, and a value
 *   test_saved forge FROM TO TEXT      a copy with a valid seal, and TEXT behind its options
 *   test_saved name FROM TO NAME       a copy whose first tensor has another name
 *   test_saved by FROM TO TEXT         a copy of another program
*   test_saved skipped FROM TO N       a copy whose workers have skipped N samples, and a valid seal
 *   test_saved number FILE NAME N      another attribute (i64), and a valid seal
 *   test_saved element FILE PATH I N   another element of a dataset (i64), and a valid seal
 */
#include "ckpt/view.h"
#include "tests/support/support.h"
#include "engine/state.h"
#include "engine/options.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *saved; /* what the base of the program gives */

static int give_saved(void *o, struct str *text, struct err *e)
{
	(void)o, (void)e;
	str_puts(text, saved);
	return 0;
}

static struct program program(void)
{
	struct program p = train_program;
	p.base = give_saved;
	return p;
}

static bool is_option(const struct opt *t)
{
	return t->type != OPT_GROUP && t->type != OPT_ACTION;
}

/* A value that the option can have, and that is not its default. */
static const char *other_value(const struct opt *t)
{
	static char text[NUM_TEXT];
	double d = t->def ? strtod(t->def, NULL) : 0;
	bool bounded = t->min != 0 || t->max != 0;
	switch (t->type) {
	case OPT_FLAG:
		return t->def && !strcmp(t->def, "yes") ? "no" : "yes";
	case OPT_ENUM:
		return t->values[!t->def || !strcmp(t->def, t->values[0])];
	case OPT_DOUBLE:
		d = d / 4 + 0.1;
		return text_double(text, d < t->min ? t->min : d);
	case OPT_INT:
	case OPT_SIZE:
		d = !bounded || d + 1 <= t->max ? d + 1 : d - 1;
		snprintf(text, sizeof(text), "%.0f", d);
		return text;
	default:
		return "victim";
	}
}

/* The lines of one option in a config of all. */
static void value_of(const void *o, const char *name, struct str *out)
{
	struct str all = {0};
	size_t len = strlen(name);
	opts_print(&train_program, o, 0, 0, &all);
	str_clear(out);
	str_add(out, "", 0);
	for (const char *p = all.s, *end; (end = strchr(p, '\n')); p = end + 1)
		if (!strncmp(p, name, len) && !strncmp(p + len, " = ", 3))
			str_add(out, p + len + 3, (size_t)(end - p) - len - 3);
	str_free(&all);
}

/* As pt-train and pt-sample read the options of a checkpoint: what the option has then. */
static int read_saved(const char *name, struct str *value, struct err *e)
{
	struct train_opts o, again;
	char *argv[] = {(char[]){"pt-train"}, NULL};
	const struct program p = program();
	*e = (struct err){0};
	int rc = opts_parse(&p, &o, 1, argv, e);
	struct err of_text = {0};
	assert_int_equal(
		opts_from_text(&train_program, &again, saved, true, &of_text), rc);
	assert_int_equal(of_text.code, e->code);
	value_of(&o, name, value);
	return rc;
}

TEST(every_option)
{
	int n_run = 0, n_user = 0;
	for (const struct opt *t = train_program.opts; t->type != OPT_END; t++) {
		struct str text = {0}, before = {0}, after = {0};
		struct err e;
		if (!is_option(t))
			continue;
		const char *value = other_value(t);
		conf_print(&text, t->name, value);
		saved = "";
		assert_int_equal(read_saved(t->name, &before, &e), 0);
		assert_string_not_equal(before.s, value);
		saved = text.s;
		int rc = read_saved(t->name, &after, &e);
		if (t->flags & OPT_RUN) {
			assert_int_equal(rc, 0);
			assert_string_equal(after.s, value);
			n_run++;
		} else {
			assert_int_equal(rc, -1);
			assert_int_equal(e.code, EX_DATAERR);
			assert_non_null(strstr(e.msg, "is not an option of a run"));
			assert_string_equal(after.s, before.s);
			n_user++;
		}
		str_free(&text);
		str_free(&before);
		str_free(&after);
	}
	assert_true(n_run > 90 && n_user > 40);
}

/* A text may be the name of something. Whoever adds one to the run says here why it names nothing. */
TEST(nothing_of_a_run_names_a_file)
{
	static const char *const harmless[] = {
		"preset",	 /* is not read again: only a user's is */
		"virtual",	 /* degrees */
		"moe-not",	 /* numbers */
		"corrupt-batch", /* numbers */
		"sample-prompt", /* is printed */
		"freeze",	 /* patterns of names of tensors */
		"lr-scale-of",
	};
	for (const struct opt *t = train_program.opts; t->type != OPT_END; t++) {
		bool known = t->type != OPT_STR && t->type != OPT_LIST;
		if (!is_option(t) || !(t->flags & OPT_RUN))
			continue;
		for (size_t i = 0; i < ARRAY_LEN(harmless); i++)
			known |= !strcmp(t->name, harmless[i]);
		if (!known || t->files)
			fail_msg("%s", t->name);
	}
}

TEST(values_out_of_range)
{
	int n = 0;
	for (const struct opt *t = train_program.opts; t->type != OPT_END; t++) {
		const double beyond[] = {t->min - 1 - fabs(t->min) / 2, t->max * 2 + 1};
		bool bounded = t->min != 0 || t->max != 0;
		/* (whatever its value, another option is refused) */
		for (int i = 0; i < 2 && (t->flags & OPT_RUN) && bounded; i++) {
			char text[128];
			struct str value = {0};
			struct err e;
			snprintf(text, sizeof(text), "%s = %.0f\n", t->name, beyond[i]);
			saved = text;
			assert_int_equal(read_saved(t->name, &value, &e), -1);
			assert_int_equal(e.code, EX_DATAERR);
			str_free(&value);
			n++;
		}
	}
	assert_true(n > 100);
	for (const struct opt *t = train_program.opts; t->type != OPT_END; t++) {
		struct str value = {0}, text = {0};
		struct err e;
		if (!is_option(t) || !(t->flags & OPT_RUN) || t->type == OPT_STR ||
			t->type == OPT_LIST)
			continue;
		conf_print(&text, t->name, "no such value");
		saved = text.s;
		assert_int_equal(read_saved(t->name, &value, &e), -1);
		assert_int_equal(e.code, EX_DATAERR);
		str_free(&value);
		str_free(&text);
	}
}

/* ---- for the tests of programs ------------------------------------------------------ */

static void list_options(void)
{
	for (const struct opt *t = train_program.opts; t->type != OPT_END; t++)
		if (is_option(t))
			printf("%s %s %s\n", t->name, t->flags & OPT_RUN ? "run" : "user",
				other_value(t));
}

/* As a run that had workers, of which one was slower, and goes on without. */
static void skip_samples(struct ckpt_view *v, double numbers[OWN_NUMBERS], int64_t n)
{
	v->info.tokens -= n * (v->info.tokens / v->info.samples);
	numbers[UNSEEN] = (double)n;
	v->numbers = numbers;
	v->n_numbers = OWN_NUMBERS;
}

/* What a copy has instead: `what` is the command. */
static int forge(const char *what, const char *from, const char *to, const char *text,
	struct err *e)
{
	struct ckpt *c;
	struct ckpt_view v;
	double numbers[OWN_NUMBERS] = {0};
	if (ckpt_open(&c, from, e))
		return -1;
	ckpt_view_from(&v, c);
	if (!strcmp(what, "name"))
		snprintf(v.tensors[0].name, sizeof(v.tensors[0].name), "%s", text);
	else if (!strcmp(what, "by"))
		v.info.created_by = text;
	else if (!strcmp(what, "skipped"))
		skip_samples(&v, numbers, atoll(text));
	else
		str_printf(&v.config, "%s\n", text);
	int rc = ckpt_view_write(&v, to, e);
	ckpt_view_close(&v);
	ckpt_close(c);
	return rc;
}

static int set_number(const char *path, const char *name, const char *text, struct err *e)
{
	const struct h5_field field[] = {{name, H5_I64, 0, false, NULL}, {0}};
	struct h5 *h;
	int64_t n;
	if (parse_int(text, &n))
		return err_set(e, EX_USAGE, "%s is not a number", text);
	if (h5_reopen(&h, path, e))
		return -1;
	return h5_finish(h, h5_fields_write(h, "/", field, &n, e), e);
}

static int set_element(const char *path, char **what, struct err *e)
{
	struct h5_info info;
	struct h5 *h;
	int64_t i, n;
	if (parse_int(what[1], &i) || parse_int(what[2], &n) || i < 0)
		return err_set(e, EX_USAGE, "%s %s: not numbers", what[1], what[2]);
	if (h5_open(&h, path, e))
		return -1;
	int rc = h5_info(h, what[0], &info, e);
	if (h5_end(h, rc, e))
		return -1;
	int fd = open(path, O_WRONLY);
	off_t at = (off_t)(info.offset + i * (int64_t)sizeof(n));
	if (fd < 0 || i >= info.n || pwrite(fd, &n, sizeof(n), at) != sizeof(n) ||
		close(fd))
		return err_set(e, EX_IOERR, "%s: %s", path, what[0]);
	return h5_reopen(&h, path, e) ? -1 : h5_finish(h, 0, e);
}

static int command(int argc, char **argv)
{
	struct err e = {0};
	if (argc == 2 && !strcmp(argv[1], "options"))
		list_options();
	else if (argc == 5 && !strcmp(argv[1], "number"))
		set_number(argv[2], argv[3], argv[4], &e);
	else if (argc == 5)
		forge(argv[1], argv[2], argv[3], argv[4], &e);
	else if (argc == 6 && !strcmp(argv[1], "element"))
		set_element(argv[2], argv + 3, &e);
	else
		err_set(&e, EX_USAGE,
			"test_saved options | forge | name | by | skipped | number | element");
	return e.code ? err_print(&e) : 0;
}

int main(int argc, char **argv)
{
	return argc > 1 ? command(argc, argv) : tests_run();
}

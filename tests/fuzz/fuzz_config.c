/* Config files: what was read can be printed, and reads back as the same. */
#include "options/options.h"
#include "tests/fuzz/fuzz.h"
#include "engine/options.h"

#include <stdlib.h>
#include <string.h>

static int print(void *to, const char *key, const char *value, struct err *e)
{
	(void)e;
	conf_print(to, key, value);
	return 0;
}

static void pairs(const uint8_t *data, size_t n)
{
	struct str once = {0}, twice = {0};
	struct err e = {0};
	if (!conf_parse((const char *)data, n, "input", print, &once, &e) && once.len) {
		FUZZ_ON(conf_parse(once.s, once.len, "printed", print, &twice, &e));
		FUZZ_ON(strcmp(once.s, twice.s));
	}
	FUZZ_ON(!e.code != !*e.msg);
	str_free(&once);
	str_free(&twice);
}

/* The options of a run, as a checkpoint holds them. */
static void options(const char *text, bool saved)
{
	struct train_opts a, b;
	struct str once = {0}, twice = {0};
	struct err e = {0};
	if (!opts_from_text(&train_program, &a, text, saved, &e)) {
		opts_print(&train_program, &a, 0, 0, &once);
		FUZZ_ON(opts_from_text(&train_program, &b, once.s, false, &e));
		opts_print(&train_program, &b, 0, 0, &twice);
		FUZZ_ON(strcmp(once.s, twice.s));
		opts_free(&train_program, &b);
	}
	opts_free(&train_program, &a);
	str_free(&once);
	str_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	pairs(data, n);
	char *text = take_text(&b, n);
	options(text, n % 2);
	free(text);
	return 0;
}

/* Options: a command line, the environment and a config file; what they say can be printed as
 * a config that says the same. */
#include "options/options.h"
#include "tests/fuzz/fuzz.h"
#include "engine/options.h"

#include <stdlib.h>
#include <string.h>

struct opts {
	bool flag, other;
	int64_t n, bounded, bytes;
	double x, y;
	const char *text, *preset;
	int kind;
	struct strs list;
};

static const char *const kinds[] = {"one", "two", "three", NULL};

#define O(field) offsetof(struct opts, field)
static const struct opt table[] = {
	{OPT_GROUP, .name = "All types"},
	{OPT_FLAG, 'f', "flag", NULL, "no", O(flag), .help = "A flag."},
	{OPT_FLAG, 0, "flog", NULL, "yes", O(other), .help = "Another."},
	{OPT_INT, 'n', "number", "N", "3", O(n), .help = "A number."},
	{OPT_INT, 0, "bounded", "N", "1", O(bounded), 0, -1, 9, .help = "From -1 to 9."},
	{OPT_SIZE, 's', "size", "BYTES", "1K", O(bytes), .help = "A size."},
	{OPT_DOUBLE, 'x', "real", "X", "0.1", O(x), .help = "A real number."},
	{OPT_DOUBLE, 0, "part", "X", "1e-3", O(y), 0, 0, 1, .help = "Between 0 and 1."},
	{OPT_STR, 't', "text", "TEXT", "none", O(text), .help = "A text."},
	{OPT_STR, 'p', "preset", "NAME", NULL, O(preset), .help = "A preset."},
	{OPT_ENUM, 'k', "kind", NULL, "two", O(kind), .values = kinds, .help = "A kind."},
	{OPT_LIST, 'l', "list", "TEXT", NULL, O(list), .help = "Texts."},
	{OPT_END},
};
#undef O

static const struct program small = {.name = "pt-fuzz",
	.summary = "options of all types",
	.opts = table,
	.opts_bytes = sizeof(struct opts),
	.settings = true};

static void release(const struct program *p, char *o)
{
	for (const struct opt *t = p->opts; t->type != OPT_END; t++) {
		if (t->type == OPT_STR)
			free(*(char **)(o + t->offset));
		else if (t->type == OPT_LIST)
			strs_free((struct strs *)(o + t->offset));
	}
}

/* Would it end the program? --help and its like, written short or abbreviated. */
static bool ends(const char *arg)
{
	if (arg[0] == '-' && arg[1] != '-')
		return strpbrk(arg, "hV");
	return !strcmp(arg, "--complete") || !strncmp(arg, "--h", 3) ||
	       !strncmp(arg, "--v", 3) || !strncmp(arg, "--g", 3) ||
	       !strncmp(arg, "--pr", 4);
}

static void same_printed(const struct program *p, const char *o)
{
	struct str once = {0}, twice = {0};
	struct err e = {0};
	char *again = xcalloc(1, p->opts_bytes);
	opts_print(p, o, 0, 0, &once);
	FUZZ_ON(opts_from_text(p, again, once.s, false, &e));
	opts_print(p, again, 0, 0, &twice);
	FUZZ_ON(strcmp(once.s, twice.s));
	release(p, again);
	free(again);
	str_free(&once);
	str_free(&twice);
}

static void parse(const struct program *p, int argc, char **argv)
{
	struct err e = {0};
	char *o = xcalloc(1, p->opts_bytes);
	int n = opts_parse(p, o, argc, argv, &e);
	FUZZ_ON(n >= argc || (n < 0) != (e.code != 0) || !e.code != !*e.msg);
	for (int i = 0; i < n; i++)
		FUZZ_ON(!argv[i]);
	if (n >= 0)
		same_printed(p, o);
	release(p, o);
	free(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	enum { MOST = 24 };
	static const char *const names[] = {
		"PT_NUMBER", "PT_LIST", "PT_FLAG", "PT_TEXT", "PT_PRESET", "PT_LAYERS"};
	struct bytes b = {data, n};
	uint8_t how = take_byte(&b);
	struct program p = how & 1 ? train_program : small;
	char *argv[MOST + 3] = {(char *)"pt-fuzz"}, *texts[MOST];
	int argc = 1, n_texts = 0;
	p.base = NULL; /* it would look for runs */
	if (how & 2) {
		char *config = take_text(&b, n);
		fuzz_file("config", config, strlen(config));
		free(config);
		setenv("PT_CONFIG", fuzz_path("config"), 1);
	}
	const char *name = names[(how >> 3) % ARRAY_LEN(names)];
	if (how & 4) {
		char *value = take_text(&b, n);
		setenv(name, value, 1);
		free(value);
	}
	while (b.n && n_texts < MOST) {
		char *arg = texts[n_texts++] = take_text(&b, b.n);
		if (!ends(arg))
			argv[argc++] = arg;
	}
	parse(&p, argc, argv);
	unsetenv("PT_CONFIG");
	unsetenv(name);
	while (n_texts)
		free(texts[--n_texts]);
	return 0;
}

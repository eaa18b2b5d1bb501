/* base: numbers and text, options, exact sums, Philox, hashes, files. */
#include "options/options.h"
#include "base/utf8.h"
#include "base/file.h"
#include "tests/support/support.h"

#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* By whatever vectors: the hashes are those of the plain functions, of any length, in one call or in several. */
TEST(hashes_of_any_length)
{
	enum { MOST = 5000 };
	uint8_t x[MOST + 1];
	for (int i = 0; i <= MOST; i++)
		x[i] = (uint8_t)(i * 167 + i / 256);
	for (size_t n = 0; n <= MOST; n += n < 600 ? 1 : 37) {
		const uint8_t *p = x + n % 2;
		struct hash128 wide = hash128_bytes(p, n, n);
		XXH128_hash_t want = XXH3_128bits_withSeed(p, n, n);
		assert_true(hash_bytes(p, n, n) == XXH3_64bits_withSeed(p, n, n));
		assert_true(wide.low == want.low64 && wide.high == want.high64);
		struct hash_state *h = hash_open();
		for (size_t at = 0, some = 1; at < n;
			at += some, some = min64(3 * some, n - at))
			hash_add(h, p + at, some);
		assert_true(hash_close(h) == hash_bytes(p, n, 0));
	}
}

TEST(philox_known_answers)
{
	/* Salmon et al., Random123's kat_vectors: philox4x32 10 */
	struct philox_block b = philox((struct philox_key){{0, 0}}, 0, 0, 0, 0);
	assert_int_equal(b.x[0], 0x6627e8d5);
	assert_int_equal(b.x[1], 0xe169c58d);
	assert_int_equal(b.x[2], 0xbc57ac4c);
	assert_int_equal(b.x[3], 0x9b00dbd8);
	b = philox((struct philox_key){{0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff,
		0xffffffff, 0xffffffff);
	assert_int_equal(b.x[0], 0x408f276d);
	assert_int_equal(b.x[1], 0x41c83b0e);
	assert_int_equal(b.x[2], 0xa20bc7c6);
	assert_int_equal(b.x[3], 0x6d5451fd);
	b = philox((struct philox_key){{0xa4093822, 0x299f31d0}}, 0x243f6a88, 0x85a308d3,
		0x13198a2e, 0x03707344);
	assert_int_equal(b.x[0], 0xd16cfe09);
	assert_int_equal(b.x[1], 0x94fdcceb);
	assert_int_equal(b.x[2], 0x5001e420);
	assert_int_equal(b.x[3], 0x24126ea1);
}

TEST(numbers_read_back)
{
	char text[NUM_TEXT];
	for (int64_t i = 0; i < 20000; i++) {
		double x =
			ldexp(test_normal(1, i), (int)(test_uniform(2, i) * 400) - 200);
		float f = (float)(test_normal(3, i) * 1e-3);
		assert_true(strtod(text_double(text, x), NULL) == x);
		assert_true(strtof(text_float(text, f), NULL) == f);
	}
	assert_string_equal(text_double(text, 0.1), "0.1");
	assert_string_equal(text_float(text, 0.1f), "0.1");
	assert_string_equal(text_bytes(text, 1536), "1.50 KiB");
	assert_string_equal(text_count(text, 123456789), "123 M");
}

TEST(numbers_are_whole)
{
	static const char *const bad[] = {
		"", " 1", "1 ", "x", "1x", "99999999999999999999"};
	int64_t n;
	double d;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(parse_int(bad[i], &n), -1);
	assert_int_equal(parse_int("-12", &n), 0);
	assert_int_equal(n, -12);
	assert_int_equal(parse_size("3M", &n), 0);
	assert_int_equal(n, 3 << 20);
	assert_int_equal(parse_size("9999999T", &n), -1);
	assert_int_equal(parse_size("-1", &n), -1);
	assert_int_equal(parse_double("1e999", &d), -1);
	assert_int_equal(parse_double("1e-3", &d), 0);
	assert_true(d == 1e-3);
}

TEST(nearest_name)
{
	static const char *const names[] = {"layers", "heads", "learning-rate", "lr"};
	assert_string_equal(nearest("layrs", names, 4), "layers");
	assert_string_equal(nearest("head", names, 4), "heads");
	assert_null(nearest("something-else", names, 4));
}

/* ---- exact sums ------------------------------------------------------------------ */

TEST(exact_sum_of_few)
{
	struct exact x = {0};
	exact_add(&x, 1e300);
	exact_add(&x, 1);
	exact_add(&x, 1e-300);
	exact_add(&x, -1e300);
	exact_add(&x, -1);
	assert_true(exact_round(&x) == 1e-300);
	exact_add(&x, -1e-300);
	assert_true(exact_round(&x) == 0);
	exact_add(&x, 4.9e-324);
	assert_true(exact_round(&x) == 4.9e-324);
	exact_add(&x, (double)NAN);
	assert_true(isnan(exact_round(&x)));
}

/* Doubles on a grid of 2^-40 whose sum fits a long double exactly are the reference. */
TEST(exact_sum_in_any_order)
{
	enum { N = 4000 };
	double v[N];
	struct exact forward = {0}, backward = {0}, halves[2] = {{{0}}};
	long double sum = 0;
	for (int i = 0; i < N; i++) {
		v[i] = floor(test_normal(7, i) * 0x1p20) * 0x1p-40;
		sum += v[i];
		exact_add(&forward, v[i]);
		exact_add(&halves[i % 2], v[i]);
	}
	for (int i = N - 1; i >= 0; i--)
		exact_add(&backward, v[i]);
	exact_normalize(&halves[0]);
	for (int i = 0; i < EXACT_LIMBS; i++)
		halves[0].limb[i] += halves[1].limb[i];
	assert_true(exact_round(&forward) == (double)sum);
	assert_true(exact_round(&backward) == (double)sum);
	assert_true(exact_round(&halves[0]) == (double)sum);
}

TEST(exact_rounds_once)
{
	for (int64_t i = 0; i < 20000;
		i++) { /* two doubles: long double sums are exact */
		double a = ldexp(test_normal(8, i), -(int)(i % 10));
		double b = ldexp(test_normal(9, i), -(int)(i % 7));
		struct exact x = {0};
		exact_add(&x, a);
		exact_add(&x, b);
		assert_true(exact_round(&x) == a + b);
	}
	struct exact tie = {0};
	exact_add(&tie, 1);
	exact_add(&tie, 0x1p-53);
	assert_true(exact_round(&tie) == 1); /* to even */
	exact_add(&tie, 0x1p-1000);
	assert_true(exact_round(&tie) == 1 + 0x1p-52);
}

/* ---- options --------------------------------------------------------------------- */

struct opts {
	bool flag;
	int64_t n, size;
	double x;
	const char *s;
	int e;
	struct strs list, several;
	struct opt_given given;
	double rate;
};

static const char *const values[] = {"red", "green", "blue", NULL};
static const char *const synopsis[] = {"[options]", NULL};
#define O(f) offsetof(struct opts, f)
static const struct opt table[] = {
	{OPT_GROUP, .name = "All"},
	{OPT_FLAG, 'f', "flag", NULL, "yes", O(flag), .help = "a flag"},
	{OPT_INT, 'n', "number", "N", "3", O(n), OPT_ARITH, 1, 10, .help = "a number"},
	{OPT_SIZE, 0, "size", "BYTES", "1K", O(size), .help = "a size"},
	{OPT_DOUBLE, 'x', "ratio", "X", "0.5", O(x), OPT_RUN, 0, 1, .help = "a ratio"},
	{OPT_STR, 's', "text", "TEXT", NULL, O(s), .help = "a text"},
	{OPT_ENUM, 0, "color", NULL, "red", O(e), OPT_RUN, .values = values,
		.help = "a color"},
	{OPT_LIST, 'l', "item", "X", NULL, O(list), .help = "items"},
	{OPT_LIST, 0, "several", "X", NULL, O(several), OPT_SEVERAL,
		.help = "more items"},
	{OPT_DOUBLE, 0, "rate", "X", "0.7", O(rate), OPT_RUN,
		.needs = "--text or --color green or blue", .was = "speed",
		.help = "a rate"},
	{OPT_END},
};
static const char *base_text;

static int give_base(void *o, struct str *text, struct err *e)
{
	(void)o, (void)e;
	str_puts(text, base_text ? base_text : "");
	return 0;
}

static const struct program program = {"pt-test", "a test", synopsis, table,
	sizeof(struct opts), offsetof(struct opts, given), .operands = "",
	.settings = true, .base = give_base, .retired = "former gone"};

static int parse(struct opts *o, struct err *e, const char *base, int n, ...)
{
	static char *argv[32];
	va_list ap;
	argv[0] = xstrdup("pt-test");
	va_start(ap, n);
	for (int i = 1; i <= n; i++)
		argv[i] = xstrdup(va_arg(ap, const char *));
	va_end(ap);
	argv[n + 1] = NULL;
	*e = (struct err){0};
	base_text = base;
	return opts_parse(&program, o, n + 1, argv, e);
}

TEST(options_have_defaults)
{
	struct opts o;
	struct err e;
	assert_int_equal(parse(&o, &e, NULL, 0), 0);
	assert_true(
		o.flag && o.n == 3 && o.size == 1024 && o.x == 0.5 && !o.s && o.e == 0);
}

TEST(options_win_in_order)
{
	struct opts o;
	struct err e;
	char config[4200];
	snprintf(config, sizeof(config), "--config=%s",
		test_file("c.conf", "number = 5\ncolor = green # a comment\nitem = a\n"
				    "item = \"b # c\"\n"));
	assert_int_equal(parse(&o, &e, "number = 4\nratio = 0.25", 1, config), 0);
	assert_true(o.n == 5 && o.x == 0.25 && o.e == 1 && o.list.n == 2);
	assert_string_equal(o.list.v[1], "b # c");
	setenv("PT_NUMBER", "6", 1);
	assert_int_equal(parse(&o, &e, "number = 4", 1, config), 0);
	assert_int_equal(o.n, 6);
	assert_int_equal(parse(&o, &e, "number = 4", 4, config, "-n", "7", "-lz"), 0);
	assert_true(o.n == 7 && o.list.n == 1);
	unsetenv("PT_NUMBER");
	assert_int_equal(parse(&o, &e, NULL, 3, "--no-flag", "number=8", "file"), 1);
	assert_true(!o.flag && o.n == 8);
}

TEST(operands_of_a_list)
{
	struct opts o;
	struct err e;
	assert_int_equal(
		parse(&o, &e, NULL, 7, "a", "--several", "b", "-", "-f", "c", "d"), 3);
	assert_true(o.several.n == 2 && o.flag);
	assert_string_equal(o.several.v[0], "b");
	assert_string_equal(o.several.v[1], "-");
	assert_int_equal(
		parse(&o, &e, NULL, 5, "--several", "b", "--several=c", "--", "d"), 1);
	assert_true(o.several.n == 2);
	assert_int_equal(parse(&o, &e, NULL, 1, "--several"), -1);
}

TEST(options_reject)
{
	static const struct {
		const char *arg, *says;
	} bad[] = {
		{"--nmber=3", "unknown option '--nmber'; did you mean '--number'?"},
		{"--no-flga", "did you mean '--no-flag'?"},
		{"--ratio=inf", "is not finite"},
		{"quiet=yes", "'quiet' is only for the command line"},
		{"--number=x", "not a whole number"},
		{"--number=11", "not between 1 and 10"},
		{"--color=gren", "did you mean 'green'"},
		{"--flag=perhaps", "neither yes nor no"},
		{"--text", "needs a value"},
		{"-z", "unknown option '-z'"},
		{"nmber=3", "did you mean 'number'"},
		{"--config=/nowhere", "No such file"},
	};
	struct opts o;
	struct err e;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(parse(&o, &e, NULL, 1, bad[i].arg), -1);
		assert_non_null(strstr(e.msg, bad[i].says));
		assert_true(e.code == EX_USAGE || e.code == EX_IOERR);
	}
	assert_int_equal(parse(&o, &e, "nmber = 3", 0), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "did you mean 'number'"));
}

TEST(options_print_and_read_back)
{
	struct opts o, p;
	struct err e;
	struct str text = {0};
	parse(&o, &e, NULL, 5, "-x0.1", "-s  two words # and \"more\"\n", "--no-flag",
		"-la", "-lb c");
	opts_print(&program, &o, 0, 0, &text);
	assert_int_equal(opts_from_text(&program, &p, text.s, false, &e), 0);
	assert_true(p.x == o.x && p.flag == o.flag && p.n == o.n && p.list.n == 2);
	assert_string_equal(p.s, o.s);
	assert_string_equal(p.list.v[1], "b c");
	str_clear(&text);
	opts_print(&program, &o, OPT_ARITH, 0, &text);
	assert_string_equal(text.s, "number = 3\n");
	str_free(&text);
}

/* A checkpoint may be anybody's: what it has saved is not what its reader asked for. */
TEST(only_options_of_a_run_are_saved)
{
	struct opts o;
	struct err e;
	assert_int_equal(parse(&o, &e, "number = 4\n", 0), 0);
	assert_int_equal(o.n, 4);
	assert_int_equal(parse(&o, &e, "text = victim\n", 0), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "'text' is not an option of a run"));
	assert_null(o.s);
	assert_int_equal(parse(&o, &e, "no-such = 1\n", 0), -1);
	/* an option that the program once had is ignored, but only where a run has saved it */
	assert_int_equal(parse(&o, &e, "gone = 1\nnumber = 4\n", 0), 0);
	assert_int_equal(o.n, 4);
	assert_int_equal(opts_from_text(&program, &o, "gone = 1\n", false, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_int_equal(parse(&o, &e, "number = 11\n", 0), -1);
	assert_int_equal(e.code, EX_DATAERR);
	/* a user's config has any option */
	assert_int_equal(opts_from_text(&program, &o, "text = mine\n", false, &e), 0);
	assert_string_equal(o.s, "mine");
}

TEST(options_that_need_others)
{
	/* a file may list all options, the command line names what is wanted */
	static const struct {
		const char *file, *arg;
		bool given, fine;
	} cases[] = {
		{"", NULL, false, true},
		{"rate = 0.7\n", NULL, false, true},
		{"rate = 0.5\n", NULL, true, false},
		{"", "--rate=0.7", true, false},
		{"rate = 0.5\n", "--text=x", true, true},
		{"color = green\n", "--rate=0.7", true, true},
		{"color = blue\n", "--rate=0.7", true, true},
		{"color = red\n", "--rate=0.7", true, false},
		{"", "--speed=0.6", true, false},
		{"", "speed=0.6", true, false},
		{"speed = 0.6\n", "--color=blue", true, true},
	};
	struct opts o;
	struct err e;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		assert_int_equal(parse(&o, &e, cases[i].file, cases[i].arg ? 1 : 0,
					 cases[i].arg ? cases[i].arg : ""),
			0);
		assert_int_equal(opts_given(&program, &o, "rate"), cases[i].given);
		assert_int_equal(
			opts_check_needs(&program, &o, &e), cases[i].fine ? 0 : -1);
		if (!cases[i].fine)
			assert_string_equal(
				e.msg, "--rate needs --text or --color green or blue");
	}
	opts_reset(&program, &o, "ra");
	assert_true(o.rate == 0.7 && !opts_given(&program, &o, "rate"));
	setenv("PT_SPEED", "0.9", 1);
	assert_int_equal(parse(&o, &e, "", 0), 0);
	assert_true(o.rate == 0.9 && opts_given(&program, &o, "rate"));
	unsetenv("PT_SPEED");
}

/* An empty text where the default is another one is no default. */
TEST(options_print_what_is_empty)
{
	static const struct opt texts[] = {
		{OPT_STR, 0, "text", "TEXT", "a default", 0, .help = "a text"},
		{OPT_STR, 0, "none", "TEXT", NULL, sizeof(char *), .help = "another"},
		{OPT_END}};
	static const struct program p = {
		.name = "empty", .opts = texts, .opts_bytes = 2 * sizeof(char *)};
	const char *o[2], *again[2];
	struct err e;
	struct str text = {0};
	assert_int_equal(opts_from_text(&p, o, "text = \"\"\n", false, &e), 0);
	assert_null(o[0]);
	opts_print(&p, o, 0, 0, &text);
	assert_string_equal(text.s, "text = \"\"\n");
	assert_int_equal(opts_from_text(&p, again, text.s, false, &e), 0);
	assert_null(again[0]);
	str_free(&text);
}

/* (the sanitizers see what has no room) */
TEST(arrays_grow)
{
	int64_t *v = NULL, n = 0;
	for (int round = 0; round < 2; round++)
		for (n = 0; n < 1000; n++) {
			v = xgrow(v, n, sizeof(*v));
			v[n] = n + round;
			assert_int_equal(v[n / 2], n / 2 + round);
		}
	assert_true(malloc_usable_size(v) >= 1000 * sizeof(*v));
	free(v);
}

TEST(memory_that_is_not_there)
{
	struct arena a;
	assert_int_equal(arena_try_init(&a, "huge", SIZE_MAX / 2), -1);
	assert_null(a.base);
	arena_release(&a);
	assert_int_equal(arena_try_init(&a, "small", 128), 0);
	assert_non_null(arena_alloc(&a, 100));
	arena_release(&a);
	assert_int_equal(arena_try_init(&a, "nothing", 0), 0);
	arena_release(&a);
}

/* ---- decimal numbers --------------------------------------------------------------- */

static void assert_scanned(const char *text)
{
	char *end;
	double v = 0, want = strtod(text, &end);
	const char *stop = scan_double(text, text + strlen(text), &v);
	if (isinf(want) && strpbrk(text, "0123456789")) /* out of range */
		assert_ptr_equal(stop, text);
	else if (stop != end || memcmp(&v, &want, sizeof(v)) != 0)
		fail_msg("'%s' is %.17g, not %.17g", text, v, want);
}

TEST(decimals_are_those_of_strtod)
{
	static const char *const some[] = {"0", "-0", "0.0", "-0.000", "1", "+1.5", "1.",
		".5", "1e5", "1E+05", "1e", "1e+", "1.5e-22", "9007199254740992",
		"9007199254740993", "90071992547409935e-1",
		"123456789012345678901234567890", "0.1", "0.30000000000000004", "5e-324",
		"2.2250738585072011e-308", "1.7976931348623157e308",
		"00000000000000000000000000001.5", "0.000000000000000000000000000123",
		"8.049097061157227", "inf", "-Infinity", "1,000", "1.5.5", "1e22", "1e23",
		"3e-22", "18446744073709551615", "9999999999999999999e27",
		"9999999999999999999e-27", "9007199254740993e5", "9007199254740995e-1",
		"9007199254740993.00000e-5", "4503599627370496.5", "4503599627370497.5",
		"1e27", "1e-27", "1e28", "1e-28"};
	char text[64];
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		assert_scanned(some[i]);
	for (int64_t i = 0; i < 200000; i++) {
		uint64_t bits = hash_mix((uint64_t)i);
		double x;
		memcpy(&x, &bits, sizeof(x));
		if (!isfinite(x))
			continue;
		snprintf(text, sizeof(text), "%.*g", (int)(i % 21), x);
		assert_scanned(text);
		snprintf(text, sizeof(text), "%.*f", (int)(i % 12),
			(double)(float)test_normal(7, i));
		assert_scanned(text);
		snprintf(text, sizeof(text), "%.*fe%d", (int)(i % 19), test_normal(8, i),
			(int)(hash_mix((uint64_t)i) % 50) - 25);
		assert_scanned(text);
	}
}

TEST(what_is_no_decimal)
{
	static const char *const none[] = {
		"", "-", ".", "e5", "-e", "+.", "x", " 1", "1e999", "-1e999", "na", "i"};
	double v;
	for (size_t i = 0; i < ARRAY_LEN(none); i++)
		assert_ptr_equal(
			scan_double(none[i], none[i] + strlen(none[i]), &v), none[i]);
	const char *part = "123456";
	assert_ptr_equal(scan_double(part, part + 3, &v), part + 3);
	assert_true(v == 123);
	part = "0x10";
	assert_ptr_equal(scan_double(part, part + 4, &v), part + 1);
	part = "inf1";
	assert_ptr_equal(scan_double(part, part + 4, &v), part + 3);
	assert_true(isinf(v));
	char zeros[600];
	memset(zeros, '0', sizeof(zeros));
	assert_ptr_equal(scan_double(zeros, zeros + sizeof(zeros), &v), zeros);
	part = "nan";
	assert_ptr_equal(scan_double(part, part + 3, &v), part + 3);
	assert_true(isnan(v));
}

TEST(texts_on_a_terminal)
{
	static const struct {
		const char *text, *shown;
		bool control;
	} some[] = {
		{"layers.0.wq ~", "layers.0.wq ~", false}, {"", "", false},
		{"a\tb\n", "a\tb\n", true}, {"\x1b[2J\x07\r", "?[2J??", true},
		{"\x01x\x7f", "?x?", true},
		{"\xc2\x9b"
		 "31m",
			"??31m", true}, /* C1: a command in one character */
		{"\xc2\xa0\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
			"\xc2\xa0\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", false},
		{"\x9b"
		 "31m",
			"?31m", false}, /* the same in Latin-1 */
		{"\xff\xc0\x9b\xe2\x82", "?????", false}, {"\xe2\x82\x1b", "???", true},
		{"\xed\xa0\x80", "???", false}, /* a surrogate */
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		char *text = xstrdup(some[i].text);
		assert_int_equal(text_has_control(text), some[i].control);
		assert_string_equal(text_printable(text), some[i].shown);
		free(text);
	}
	assert_null(text_printable(NULL));
}

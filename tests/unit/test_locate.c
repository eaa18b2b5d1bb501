/* Hashes of tensors: independent of how the elements are divided, as lines of text, and the first of
 * two lists that differs. */
#include "tests/support/support.h"
#include "compare/locate.h"

#include <math.h>
#include <string.h>

static struct tensor_hash a_hash(enum step_phase phase, const char *name)
{
	struct tensor_hash h = {.step = 3, .micro = -1, .phase = phase};
	snprintf(h.name, sizeof(h.name), "%s", name);
	return h;
}

TEST(test_division)
{
	float x[100];
	for (int i = 0; i < 100; i++)
		x[i] = (float)i - 50.5f;
	struct tensor_hash whole = a_hash(PHASE_FORWARD, "x"), parts = whole,
			   moved = whole;
	tensor_hash_add(&whole, x, 100, 7);
	tensor_hash_add(&parts, x + 30, 70, 37);
	tensor_hash_add(&parts, x, 30, 7);
	tensor_hash_add(&moved, x, 100, 8);
	assert_memory_equal(&whole, &parts, sizeof(whole));
	assert_true(whole.hash != moved.hash);
	assert_int_equal(whole.elements, 100);
	assert_true(whole.max == 50.5f);
	/* every bit counts: the sign of a zero, the payload of a NaN */
	float zeros[] = {0.0f, -0.0f};
	struct tensor_hash plus = a_hash(PHASE_FORWARD, "x"), minus = plus;
	tensor_hash_add(&plus, &zeros[0], 1, 0);
	tensor_hash_add(&minus, &zeros[1], 1, 0);
	assert_true(plus.hash != minus.hash);
	float bad[] = {NAN, INFINITY, 1};
	struct tensor_hash h = a_hash(PHASE_FORWARD, "x");
	tensor_hash_add(&h, bad, 3, 0);
	assert_int_equal(h.nonfinite, 2);
	assert_true(h.max == 1);
}

static int parse(const char *line)
{
	struct tensor_hash h;
	return tensor_hash_parse(line, strlen(line), &h);
}

TEST(test_lines)
{
	struct tensor_hash a = a_hash(PHASE_STATE, "exp_avg/layers.0.ffn_norm.weight"), b;
	struct str text = {0};
	float x[] = {0.1f, 3};
	tensor_hash_add(&a, x, 2, 0);
	a.micro = 5;
	a.replicas_differ = true;
	tensor_hash_print(&a, &text);
	assert_int_equal(tensor_hash_parse(text.s, text.len - 1, &b), 0);
	assert_memory_equal(&a, &b, sizeof(a));
	str_free(&text);
#define GOOD "step=1 phase=norm name=loss elements=1 hash=0x0123456789abcdef max=2"
	assert_int_equal(parse(GOOD), 0);
	assert_int_equal(parse(GOOD " later=1"), 0);
	assert_int_equal(parse(GOOD " elements=-1"), -1);
	assert_int_equal(parse(GOOD " elements=9223372036854775808"), -1);
	assert_int_equal(parse(GOOD " max=nan"), -1);
	assert_int_equal(parse(GOOD " max=-1"), -1);
	assert_int_equal(parse(GOOD " hash=0x1"), -1);
	assert_int_equal(parse(GOOD " phase=sideways"), -1);
	assert_int_equal(parse(GOOD " name=\033[2J"), -1);
	assert_int_equal(parse(GOOD " name="), -1);
	assert_int_equal(parse("step=1 phase=norm name=loss elements=1 max=2"), -1);
	assert_int_equal(parse(""), -1);
}

TEST(test_lists)
{
	struct tensor_hash of[] = {a_hash(PHASE_PARAMETER, "w"),
		a_hash(PHASE_FORWARD, "y"), a_hash(PHASE_FORWARD, "z"),
		a_hash(PHASE_UPDATED, "w")};
	struct tensor_hash other[4];
	struct tensor_hashes a = {of, 4}, b = {other, 4};
	struct str out = {0};
	memcpy(other, of, sizeof(of));
	assert_int_equal(locate_in_lists(&a, &b, 4, &out), 0);
	assert_int_equal(out.len, 0);
	other[2].hash++;
	other[3].hash++;
	assert_int_equal(locate_in_lists(&a, &b, 4, &out), 2);
	assert_non_null(strstr(
		out.s, "first tensor that differs: step 3, forward, activation z\n"));
	assert_non_null(strstr(out.s, "2 of 4 tensors differ"));
	/* their order in the second list does not matter, nor which has more */
	str_clear(&out);
	struct tensor_hash turned[] = {
		of[3], of[2], of[1], a_hash(PHASE_FORWARD, "more")};
	struct tensor_hashes c = {turned, 4};
	assert_int_equal(locate_in_lists(&a, &c, 0, &out), 2);
	assert_non_null(strstr(out.s, "step 3, parameter before the step w\n"));
	assert_non_null(strstr(out.s, "test:    not computed"));
	assert_non_null(
		strstr(out.s, "only in the test: step 3, forward, activation more"));
	/* copies on ranks that differ are a difference */
	str_clear(&out);
	memcpy(other, of, sizeof(of));
	other[1].replicas_differ = true;
	assert_int_equal(locate_in_lists(&a, &b, 0, &out), 1);
	assert_non_null(strstr(out.s, "copies on other ranks differ"));
	str_free(&out);
}

/* What a log may hand on to a replay, and what it may not. */
TEST(test_hostile_config)
{
	static const char config[] =
		"layers = 2\ndropout = 0.1\ngarble = 0:1:1\nlog-every = 3\ntrace = /victim\n"
		" trace=/victim\n\ttrace\t=\t\"/victim\"\nhash-tensors = /victim\nout = /victim\n"
		"config = /victim\noffload-to = /victim\ngemm-algorithms = /victim\n"
		"preset = /victim\ninit-from = /victim\nedit-replay = /victim\nname = /victim\n";
	static const char invocation[] =
		"data = \"a b.h5\"\ntp = 2\nresume = auto\ntrace = /victim\nout = /victim\n"
		"offload-to = /victim\nhash-tensors = /victim\ninit-from = first.h5\n";
	struct run_log l = {.name = (char[]){"log"}, .info.invocation = invocation};
	struct replay r = {.log = &l, .directory = "/folder"};
	struct str out = {0};
	struct err e = {0};
	str_puts(&l.config, config);
	assert_int_equal(replay_append_config(&r, &out, &e), 0);
	assert_string_equal(out.s,
		"layers = 2\ndropout = 0.1\ngarble = 0:1:1\ndata = a b.h5\ntp = 2\n"
		"offload-to = /folder\ninit-from = first.h5\n");
	str_clear(&out);
	r.from = "a checkpoint";
	assert_int_equal(replay_append_config(&r, &out, &e), 0);
	assert_null(strstr(out.s, "init-from"));
	/* what is not a file is not opened, since it might be waited for */
	for (int i = 0; i < 2; i++) {
		r.from = NULL;
		e = (struct err){0};
		l.info.invocation = i ? "init-from = /dev/zero\n" : "data = /dev/zero\n";
		assert_int_equal(replay_append_config(&r, &out, &e), -1);
		assert_int_equal(e.code, EX_DATAERR);
		assert_non_null(strstr(e.msg, "'/dev/zero' is not a file"));
	}
	/* a text that is no config is refused */
	str_puts(&l.config, "x\n");
	assert_int_equal(replay_append_config(&r, &out, &e), -1);
	str_free(&l.config);
	str_free(&out);
}

/* How many of the available ranks a layout can use. */
#include "engine/layout.h"
#include "tests/support/support.h"
#include "train/train.h"

#include <string.h>

/* Parses the options of a small model: batch of 8, micro-batch of 2, 1 layer, 2 heads. */
static void parse(struct train_opts *o, int64_t ranks, const char *options)
{
	struct str text = {0};
	struct err e = {0};
	str_printf(&text,
		"vocab = 50\nlayers = 1\nheads = 2\ndim = 16\ncontext = 16\n"
		"batch = 8\nmicro-batch = 2\nprint-ranks = %lld\n%s",
		(long long)ranks, options);
	if (opts_from_text(&train_program, o, text.s, false, &e))
		fail_msg("%s: %s", options, e.msg);
	str_free(&text);
}

TEST(ranks_of_layouts)
{
	static const struct {
		int64_t available;
		const char *options;
		int64_t used;
	} cases[] = {
		{7, "", 4}, /* by default, data-parallel */
		{1, "fsdp = -1", 1},
		{3, "fsdp = -1", 3},
		/* one rank per micro-batch */
		{7, "fsdp = -1", 4},
		{7, "dp = -1", 4},
		{7, "dp = -1\nmicro-batch = 1", 7},
		{9, "dp = -1\nmicro-batch = 1", 8},
		/* whole groups of the other axes */
		{7, "fsdp = -1\ntp = 2", 6},
		{7, "tp = 2\npp = 2\nlayers = 2\nfsdp = -1", 4},
		{3, "fsdp = -1\ntp = 2\npp = 2", 0},
		{1, "fsdp = -1\ntp = 2", 0},
		/* divisors of the virtual degree */
		{7, "tp = -1\nheads = 4\nvirtual = tp=4", 4},
		{3, "tp = -1\nheads = 4\nvirtual = tp=4", 2},
		{7, "tp = -1", 2}, /* one rank per head */
		/* one rank per layer */
		{7, "pp = -1\nlayers = 3", 3},
		/* a layout without -1 takes all of its ranks, or none */
		{9, "dp = 2", 2},
		{1, "dp = 2", 0},
		/* workers have equally many ranks */
		{7, "fsdp = -1\nedit-workers = 3\nbatch = 12\nmicro-batch = 1", 6},
		{2, "fsdp = -1\nedit-workers = 3\nbatch = 12\nmicro-batch = 1", 0},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct train_opts o;
		struct err e = {0};
		parse(&o, cases[i].available, cases[i].options);
		int64_t n = layout_count_ranks(&o, &e);
		if (n != cases[i].used)
			fail_msg("%lld ranks with \"%s\": %lld instead of %lld (%s)",
				(long long)cases[i].available, cases[i].options,
				(long long)n, (long long)cases[i].used, e.msg);
	}
}

/* Layouts that no number of ranks can have, and the reason. */
TEST(no_number_of_ranks)
{
	static const struct {
		const char *options, *reason;
	} cases[] = {
		{"batch-per-rank = 2", "the batch would depend on the ranks"},
		{"tp = 3\nfsdp = -1", "tp (3)"},
		{"dp = 1024\nfsdp = 1024\ntp = 2", "more than 1048576 ranks"},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct train_opts o;
		struct err e = {0};
		parse(&o, 7, cases[i].options);
		assert_int_equal(layout_count_ranks(&o, &e), -1);
		if (!strstr(e.msg, cases[i].reason))
			fail_msg("%s: %s", cases[i].options, e.msg);
	}
}

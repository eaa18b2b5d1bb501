/* parallel: boxes of leaves are pushed as their leaves are, one after the other. */
#include "parallel/leaves.h"
#include "tests/support/support.h"

#include <string.h>

static int push_leaves(struct tree_stack *s, const struct leaf_shape *t, int top,
	const struct leaf_box *box)
{
	int depth = 0;
	int64_t at[N_LEAF_AXES] = {box->first[LEAF_USE]};
	for (at[1] = box->first[1]; at[1] < box->end[1]; at[1]++)
		for (at[2] = box->first[2]; at[2] < box->end[2]; at[2]++)
			for (at[3] = box->first[3]; at[3] < box->end[3]; at[3]++) {
				depth = depth > s->n + 1 ? depth : s->n + 1;
				leaf_push_node(s, t, top,
					(struct tree_node){0, leaf_index(t, at)});
			}
	return depth;
}

static int64_t n_boxes;

static void same(const struct leaf_shape *t, int top, const struct leaf_box *box)
{
	struct tree_stack a, b;
	memset(&a, 0, sizeof(a));
	memset(&b, 0, sizeof(b));
	int depth = push_leaves(&a, t, top, box);
	assert_int_equal(leaf_push_box(&b, t, top, box), depth);
	assert_int_equal(a.n, b.n);
	for (int i = 0; i < a.n; i++) {
		assert_int_equal(a.node[i].level, b.node[i].level);
		assert_int_equal(a.node[i].index, b.node[i].index);
	}
	n_boxes++;
}

static void each_run(const struct leaf_shape *t, int64_t use, int top)
{
	for (int64_t first = 0; first < t->n[LEAF_MICRO]; first++)
		for (int64_t end = first; end <= t->n[LEAF_MICRO]; end++) {
			struct leaf_box box = {{use, first, 0, 0},
				{use + 1, end, t->n[LEAF_CHUNK], t->n[LEAF_USER]}};
			same(t, top, &box);
			box.first[LEAF_CHUNK] = t->n[LEAF_CHUNK] - 1;
			same(t, top, &box);
		}
}

static void boxes_are_their_leaves(void **state)
{
	(void)state;
	for (int64_t uses = 1; uses <= 2; uses++)
		for (int64_t micro = 1; micro <= 9; micro++)
			for (int64_t chunks = 1; chunks <= 3; chunks++)
				for (int64_t users = 1; users <= 3; users++) {
					const struct leaf_shape t = {
						{uses, micro, chunks, users}};
					int level = leaf_micro_level(&t);
					for (int top = level; top <= leaf_levels(&t);
						top++)
						each_run(&t, uses - 1, top);
				}
	assert_true(n_boxes > 10000);
}

/* Nobody waits for so many leaves. */
static void many_are_quick(void **state)
{
	const struct leaf_shape t = {{2, 1000000007, 2, 4}};
	const struct leaf_box box = {{1, 3, 0, 0}, {2, 1000000007, 2, 4}};
	struct tree_stack s = {.n = 0};
	(void)state;
	assert_in_range(leaf_push_box(&s, &t, leaf_levels(&t), &box), 30, 60);
	assert_true(s.n > 1 && s.n < 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(boxes_are_their_leaves),
		cmocka_unit_test(many_are_quick),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

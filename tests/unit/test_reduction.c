/* The plans of reductions, and what the ranks of a layout make of them (tests/support/reduction_check.h). */
#include "tests/support/reduction_check.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

/* ---- plans ----------------------------------------------------------------------- */

static void plans(void **state)
{
	static const struct {
		struct reduction_facts f;
		const char *text;
	} cases[] = {
		{{.turns = 1, .one_shard = true}, "turn  sum all leaf -> gradient\n"},
		{{.turns = 1, .one_leaf = true}, "turn  sum all leaf -> gradient\n"},
		{{.turns = 1, .one_shard = true, .several = true},
			"turn  sum all leaves -> gradient\n"},
		{{.turns = 3, .rounds = true, .sole = true},
			"turn  sum all leaf -> kept, later\n"
			"end   round kept -> gradient\n"},
		{{.turns = 3, .rounds = true}, "turn  sum all leaf -> kept, later\n"
					       "end   round all kept -> gradient\n"},
		{{.scheme = SCHEME_REPLICAS, .turns = 3, .rounds = true},
			"turn  sum within leaf -> kept, later\n"
			"last  sum across kept -> gradient, chained\n"},
		{{.scheme = SCHEME_HOSTS, .turns = 3, .rounds = true},
			"turn  sum within leaf -> host\n"
			"turn  sum across host -> kept, later, chained\n"
			"end   round across kept -> gradient\n"},
		{{.scheme = SCHEME_HOSTS, .turns = 1, .one_shard = true, .several = true},
			"turn  sum within leaves -> host\n"
			"turn  sum across host -> gradient, chained\n"
			"end   gather within gradient -> gradient\n"},
		{{.turns = 1, .one_shard = true, .several = true, .tied = true},
			"turn  sum all leaves -> kept, later\n"
			"end   swap stages kept -> kept, add\n"
			"end   round all kept -> gradient\n"},
		{{.turns = 3, .rounds = true, .sole = true, .file = true},
			"turn  sum all leaf -> kept\n"
			"turn  add to file kept -> file sum, later, finishes\n"},
		{{.scheme = SCHEME_REPLICAS, .turns = 3, .rounds = true, .file = true},
			"turn  sum within leaf -> kept\n"
			"turn  add to file kept -> file sum, later\n"
			"end   read file file sum -> kept\n"
			"end   sum across kept -> gradient\n"
			"end   write file gradient -> file gradient\n"},
		{{.scheme = SCHEME_REPLICAS,
			 .turns = 1,
			 .workers = true,
			 .warm_up = true},
			"turn  sum within leaf -> kept, later\n"
			"end   add workers kept -> kept, add\n"
			"end   sum across kept -> gradient\n"},
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct reduction r;
		struct str text = {0};
		reduction_plan(&r, &cases[i].f);
		reduction_print(&r, &text);
		assert_string_equal(text.s, cases[i].text);
		str_free(&text);
	}
}

/* ---- layouts --------------------------------------------------------------------- */

static struct strs shapes; /* of plans, each once */

static void see_plan(const struct bucket *b)
{
	for (int warm_up = 0; warm_up < 2; warm_up++) {
		struct str text = {0};
		int64_t i = 0;
		reduction_print(&b->plan[warm_up], &text);
		while (i < shapes.n && strcmp(shapes.v[i], text.s))
			i++;
		if (i == shapes.n)
			strs_add(&shapes, text.s);
		str_free(&text);
	}
}

static void name_case(const struct reduction_case *c, struct str *out)
{
	const struct store_layout *l = &c->l;
	str_printf(out,
		"{{%d, %d, %d, %d, %d}, .zero = %d, .flat = %d, .micros = %lld, .offload = %d, .tile = %d, "
		".host_ranks = %d}, .workers = %d, .chunks = %d, .ends_meet = %d, .tiled_uses = %d, "
		".shares = %d",
		l->degree[0], l->degree[1], l->degree[2], l->degree[3], l->degree[4],
		l->zero, l->flat, (long long)l->micros, l->offload, l->tile,
		l->host_ranks, c->workers, c->chunks, c->ends_meet, c->tiled_uses,
		c->shares);
}

static int check(const struct reduction_case *c)
{
	struct err e = {0};
	struct str name = {0};
	if (!reduction_check(c, &e))
		return 0;
	name_case(c, &name);
	print_error("%s: %s\n", name.s, e.msg);
	str_free(&name);
	return 1;
}

static int data_ranks(const struct store_layout *l)
{
	return l->degree[AXIS_DP] * l->degree[AXIS_FSDP];
}

/* All layouts of tests/support/store_layouts.c. */
static void layouts_of_tests(void **state)
{
	static const int64_t micros[] = {1, 3, 8, 11};
	int bad = 0;
	(void)state;
	for (int i = 0; i < n_store_layouts + n_store_workers; i++)
		for (size_t k = 0; k < 2 * ARRAY_LEN(micros); k++) {
			bool of_workers = i >= n_store_layouts;
			struct reduction_case c = {
				.l = of_workers ? store_workers[i - n_store_layouts]
						: store_layouts[i],
				.workers = of_workers ? 2 : 0,
				.chunks = STORE_CHUNKS,
				.shares = k % 2,
				.see = see_plan};
			c.l.micros = micros[k / 2];
			if (data_ranks(&c.l) <= c.l.micros)
				bad += check(&c);
		}
	assert_int_equal(bad, 0);
}

static int roll(uint64_t seed, int64_t *at, int n)
{
	return (int)(test_uniform(seed, (*at)++) * n);
}

/* A layout of at most so many ranks. */
static struct reduction_case random_case(uint64_t seed, int most)
{
	static const int limits[N_AXES] = {
		STORE_UNITS, 1 << 20, 1 << 20, 8, STORE_VIRTUAL_TP};
	struct reduction_case c = {.l = {{1, 1, 1, 1, 1}, .zero = 0}, .see = see_plan};
	struct store_layout *l = &c.l;
	int64_t at = 0;
	int ranks = 1 + roll(seed, &at, most), primes[] = {2, 3, 5, 7};
	for (size_t i = 0; i < ARRAY_LEN(primes); i++)
		for (int p = primes[i]; ranks % p == 0; ranks /= p) {
			int axis = roll(seed, &at, N_AXES);
			bool even = axis == AXIS_CP || axis == AXIS_TP;
			if (l->degree[axis] * p > limits[axis] || (even && p > 2))
				axis = roll(seed, &at, 2) ? AXIS_DP : AXIS_FSDP;
			l->degree[axis] *= p;
		}
	int n = data_ranks(l);
	l->zero = roll(seed, &at, 4);
	l->flat = roll(seed, &at, 2);
	l->micros = n + roll(seed, &at, 2 * n + 2) * roll(seed, &at, 2);
	l->offload = (enum offload)(roll(seed, &at, 2) * roll(seed, &at, 5));
	if (l->zero < 3 && offloads_params(l->offload))
		l->offload = OFFLOAD_GRADS;
	l->tile = !roll(seed, &at, 4);
	c.tiled_uses = roll(seed, &at, 2);
	c.ends_meet = l->degree[AXIS_PP] == 2 && roll(seed, &at, 2);
	c.chunks = l->degree[AXIS_CP] << roll(seed, &at, 3);
	c.workers = roll(seed, &at, 3) ? 0 : 2;
	c.shares = roll(seed, &at, 2);
	int world = mesh_ranks(l->degree), host = 1 + roll(seed, &at, 8);
	l->host_ranks = world > host && world % host == 0 ? host : 0;
	return c;
}

static void random_layouts(void **state)
{
	bool longer = getenv("LONG");
	int bad = 0;
	(void)state;
	for (int i = 0; i < (longer ? 5000 : 300); i++) {
		struct reduction_case c =
			random_case((uint64_t)i + 1, i % 10		      ? 16
						     : longer && i % 100 == 0 ? 512
									      : 64);
		bad += check(&c);
	}
	assert_int_equal(bad, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plans),
		cmocka_unit_test(layouts_of_tests),
		cmocka_unit_test(random_layouts),
	};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	if (getenv("SHAPES"))
		for (int64_t i = 0; i < shapes.n; i++)
			printf("%lld\n%s", (long long)i, shapes.v[i]);
	strs_free(&shapes);
	return rc;
}

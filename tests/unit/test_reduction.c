/* The plans of reductions, and what all ranks of a layout make of them. */
#include "tests/support/reduction_check.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- plans ----------------------------------------------------------------------- */

TEST(plans)
{
	static const struct {
		struct reduction_facts f;
		const char *text;
	} cases[] = {
		{{.turns = 1, .one_shard = true}, "turn  sum all leaf -> gradient\n"},
		{{.turns = 1, .one_leaf = true}, "turn  sum all leaf -> gradient\n"},
		{{.turns = 1, .one_shard = true, .several_leaves = true},
			"turn  sum all leaves -> gradient\n"},
		{{.turns = 3, .rounds = true, .sole_owner = true},
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
		{{.scheme = SCHEME_HOSTS,
			 .turns = 1,
			 .one_shard = true,
			 .several_leaves = true},
			"turn  sum within leaves -> host\n"
			"turn  sum across host -> gradient, chained\n"
			"end   gather within gradient -> gradient\n"},
		{{.turns = 1, .one_shard = true, .several_leaves = true, .tied = true},
			"turn  sum all leaves -> kept, later\n"
			"end   swap stages kept -> kept, add\n"
			"end   round all kept -> gradient\n"},
		{{.turns = 3, .rounds = true, .sole_owner = true, .file = true},
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

/* Has a plan like this been seen? From now on it has. */
static bool was_seen(const struct reduction *r)
{
	struct str text = {0};
	int64_t i = 0;
	reduction_print(r, &text);
	while (i < shapes.n && strcmp(shapes.v[i], text.s))
		i++;
	bool seen = i < shapes.n;
	if (!seen)
		strs_add(&shapes, text.s);
	str_free(&text);
	return seen;
}

static void see_plan(const struct bucket *b)
{
	was_seen(&b->plan[0]);
	was_seen(&b->plan[1]);
}

static void name_case(const struct reduction_case *c, struct str *out)
{
	const struct store_layout *l = &c->l;
	str_printf(out, "{{%d, %d, %d, %d, %d}, %d, %d, %lld, %d, %d, %d, %d}",
		l->degree[0], l->degree[1], l->degree[2], l->degree[3], l->degree[4],
		l->zero, l->flat, (long long)l->micros, l->offload, l->tile,
		l->host_ranks, l->ep);
	str_printf(out,
		", workers %d, chunks %d, has_both_ends %d, tiled_uses %d, shares %d",
		c->workers, c->chunks, c->has_both_ends, c->tiled_uses, c->shares);
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

/* With as many chunks as the other tests have, and with one leaf of a weight in a micro-batch. */
static int check_micros(struct reduction_case *c)
{
	static const int64_t micros[] = {1, 3, 4, 8, 11};
	int bad = 0;
	for (size_t k = 0; k < 2 * ARRAY_LEN(micros); k++) {
		c->chunks = k % 2 ? STORE_CHUNKS : c->l.degree[AXIS_CP];
		c->shares = k / 2 % 2;
		c->see = see_plan;
		c->l.micros = micros[k / 2];
		if (data_ranks(&c->l) <= c->l.micros)
			bad += check(c);
	}
	return bad;
}

/* Of workers of local SGD, larger than those of other tests. */
static const struct store_layout large_workers[] = {
	{{2, 4, 1, 1, 1}, 0, .host_ranks = 2},
	{{2, 4, 1, 1, 1}, 0, .host_ranks = 2, .offload = OFFLOAD_GRADS},
	{{2, 1, 4, 1, 1}, 1, .host_ranks = 2},
	{{2, 1, 4, 1, 1}, 3, .host_ranks = 2},
	{{2, 1, 4, 1, 1}, 3, .host_ranks = 2, .offload = OFFLOAD_GRADS},
	{{2, 2, 2, 1, 1}, 1},
	{{2, 2, 2, 1, 1}, 3},
	{{2, 2, 2, 1, 1}, 3, .offload = OFFLOAD_GRADS},
};

TEST(layouts_of_tests)
{
	int bad = 0, n_large = ARRAY_LEN(large_workers);
	struct reduction_case c = {.workers = 0};
	for (int i = 0; i < n_store_layouts; i++) {
		c.l = store_layouts[i];
		bad += check_micros(&c);
	}
	c.workers = 2;
	for (int i = 0; i < n_store_workers + n_large; i++) {
		c.l = i < n_large ? large_workers[i] : store_workers[i - n_large];
		bad += check_micros(&c);
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
	c.has_both_ends = l->degree[AXIS_PP] == 2 && roll(seed, &at, 2);
	c.chunks = l->degree[AXIS_CP] << roll(seed, &at, 3);
	c.workers = roll(seed, &at, 3) ? 0 : 2;
	c.shares = roll(seed, &at, 2);
	int world = mesh_ranks(l->degree), host = 1 + roll(seed, &at, 8);
	l->host_ranks = world > host && world % host == 0 ? host : 0;
	int ep = 1 << roll(seed, &at, 3), data = mesh_data_ranks(l->degree);
	int replica = l->degree[AXIS_FSDP] * l->degree[AXIS_CP];
	bool divides = data % ep == 0 && (replica % ep == 0 || ep % replica == 0);
	l->ep = divides && ep > 1 ? ep : 0;
	return c;
}

TEST(random_layouts)
{
	bool longer = getenv("LONG");
	int bad = 0;
	for (int i = 0; i < (longer ? 5000 : 300); i++) {
		struct reduction_case c =
			random_case((uint64_t)i + 1, i % 10		      ? 16
						     : longer && i % 100 == 0 ? 512
									      : 64);
		bad += check(&c);
	}
	assert_int_equal(bad, 0);
}

/* Can a bucket be so? */
static bool is_possible(const struct reduction_facts *f)
{
	bool one = f->scheme == SCHEME_ONE, shared = !f->one_rank;
	if (f->one_rank && !(one && f->sole_owner && f->one_shard))
		return false;
	if (f->one_leaf &&
		(shared || f->several_leaves || f->turns > 1 || f->tied || f->workers))
		return false;
	if ((f->sole_owner && shared && f->one_shard) || (f->warm_up && !f->workers))
		return false;
	if (f->scheme == SCHEME_REPLICAS && (f->sole_owner || f->one_shard))
		return false;
	return f->rounds || (f->turns == 1 && !f->file);
}

/* The layouts of the tests have all plans that there are. */
TEST(all_plans)
{
	int missing = 0;
	for (int i = 0; i < 3 << 12; i++) {
		struct reduction r;
		struct reduction_facts f = {.scheme = i % 3, .turns = i / 3 & 1 ? 3 : 1};
		bool *facts[] = {&f.one_leaf, &f.several_leaves, &f.one_rank,
			&f.sole_owner, &f.one_shard, &f.rounds, &f.tied, &f.workers,
			&f.warm_up, &f.file};
		for (size_t k = 0; k < ARRAY_LEN(facts); k++)
			*facts[k] = i / 3 >> (k + 1) & 1;
		if (!is_possible(&f))
			continue;
		reduction_plan(&r, &f);
		if (was_seen(&r))
			continue;
		print_error("no layout has this plan:\n%s", shapes.v[shapes.n - 1]);
		missing++;
	}
	assert_int_equal(missing, 0);
}

/* ---- planted errors --------------------------------------------------------------- */

/* A wrong plan, or wrong memory. */
static const struct error {
	const char *name;
	struct store_layout l;
	/* of the first row that does this, over these ranks (N_OVER: any): */
	enum reduction_what what;
	enum reduction_over over;
	enum { DROP = 1, TWICE, LATE, ADD, WHEN, OVER, FINISHES, TO } edit;
	int value;
	int rank; /* 1 + the only rank whose plan is wrong; 0: all */
	int workers;
	void (*plant)(struct store *s, int rank);
	bool hurries;
} * planted;

static int n_planted;

static void move_row(struct reduction *r, int from, int to)
{
	struct reduction_row row = r->row[from];
	for (int i = from; i != to; i += from < to ? 1 : -1)
		r->row[i] = r->row[from < to ? i + 1 : i - 1];
	r->row[to] = row;
}

static bool edit_row(struct reduction *r, int i)
{
	struct reduction_row *row = &r->row[i];
	int value = planted->value, in_turn = row->when != STEP_END;
	if (planted->edit == DROP || planted->edit == TWICE) {
		bool drop = planted->edit == DROP;
		if (!drop)
			r->row[r->n_rows] = *row;
		move_row(r, drop ? i : r->n_rows, drop ? r->n_rows - 1 : i + 1);
		r->n_rows += drop ? -1 : 1;
		r->n_turn_rows += in_turn * (drop ? -1 : 1);
	}
	if (planted->edit == LATE)
		move_row(r, i, r->n_rows - 1);
	if (planted->edit == ADD)
		row->add = (enum reduction_add)value;
	if (planted->edit == WHEN)
		row->when = (enum reduction_when)value;
	if (planted->edit == OVER)
		row->over = (enum reduction_over)value;
	if (planted->edit == TO)
		row->to = (enum reduction_place)value;
	if (planted->edit == FINISHES)
		row->finishes = value;
	return planted->edit;
}

static void plant(struct store *s, int rank)
{
	struct bucket *end = s->impl->bucket + s->impl->n_trained;
	if (planted->plant)
		planted->plant(s, rank);
	for (struct bucket *b = s->impl->bucket; b < end; b++)
		for (int k = 0; k < 2 && !(planted->rank && rank != planted->rank - 1);
			k++) {
			struct reduction *r = &b->plan[k];
			for (int i = 0; i < r->n_rows; i++)
				if (r->row[i].what == planted->what &&
					(planted->over == N_OVER ||
						r->row[i].over == planted->over)) {
					n_planted += edit_row(r, i);
					break;
				}
		}
}

static void gradient_in_kept(struct store *s, int rank)
{
	(void)rank;
	for (int i = 0; i < s->impl->n_trained; i++)
		s->impl->bucket[i].g = (float *)(void *)s->impl->bucket[i].sums.kept;
	n_planted++;
}

static void host_in_leaves(struct store *s, int rank)
{
	(void)rank;
	for (int i = 0; i < s->impl->n_trained; i++)
		s->impl->bucket[i].sums.host_sum = s->impl->bucket[i].leaves.sum;
	n_planted++;
}

static void leaves_in_one_place(struct store *s, int rank)
{
	(void)rank;
	for (int i = 0; i < s->impl->n_trained; i++) {
		n_planted += s->impl->bucket[i].leaves.pos > 0;
		s->impl->bucket[i].leaves.pos = 0;
	}
}

static void forms_reversed(struct store *s, int rank)
{
	for (int i = 0; i < s->impl->n_trained && rank == 1; i++) {
		struct bucket_sums *x = &s->impl->bucket[i].sums;
		enum sum_form *form = x->form[0];
		x->form[0] = x->form[1];
		x->form[1] = form;
		n_planted++;
	}
}

static void forms_of_first_round(struct store *s, int rank)
{
	(void)rank;
	for (int i = 0; i < s->impl->n_trained; i++) {
		struct bucket_sums *x = &s->impl->bucket[i].sums;
		memcpy(x->form[1], x->form[0],
			(size_t)x->first->c->size * sizeof(*x->form[1]));
		n_planted++;
	}
}

static void levels_of_one_use(struct store *s, int rank)
{
	(void)rank;
	for (int i = 0; i < s->impl->n_trained; i++) {
		struct bucket *b = &s->impl->bucket[i];
		b->levels -= b->entry->t->uses > 1;
		b->all.plan.levels = b->levels;
		n_planted++;
	}
}

static void other_order(struct store *s, int rank)
{
	struct store_impl *o = s->impl;
	for (int i = 0; i + 1 < o->n_trained && rank == 1; i++) {
		struct bucket *b = &o->bucket[i], *next = b + 1;
		if (b->first_unit != next->first_unit)
			continue;
		struct sum_group all = b->all;
		b->all = next->all;
		next->all = all;
		n_planted++;
		return;
	}
}

#define DDP                                     \
	{                                       \
		{1, 4, 1, 1, 1}, 0, .micros = 8 \
	}
#define TIED                                    \
	{                                       \
		{2, 2, 1, 1, 1}, 0, .micros = 4 \
	}
#define ROUNDS                                   \
	{                                        \
		{1, 1, 4, 1, 1}, 2, .micros = 11 \
	}
#define HYBRID                                   \
	{                                        \
		{1, 2, 2, 1, 1}, 3, .micros = 11 \
	}
#define HOSTS                                                     \
	{                                                         \
		{1, 8, 1, 1, 1}, 0, .micros = 16, .host_ranks = 4 \
	}
#define SHARDED_HOSTS                                             \
	{                                                         \
		{1, 1, 8, 1, 1}, 3, .micros = 19, .host_ranks = 4 \
	}
#define FILED                                                              \
	{                                                                  \
		{1, 1, 4, 1, 1}, 3, .micros = 11, .offload = OFFLOAD_GRADS \
	}
#define FILED_HYBRID                                                       \
	{                                                                  \
		{1, 2, 2, 1, 1}, 3, .micros = 11, .offload = OFFLOAD_GRADS \
	}

static const struct error errors[] = {
	{"the stages do not swap", TIED, REDUCE_SWAP, N_OVER, DROP},
	{"they swap twice", TIED, REDUCE_SWAP, N_OVER, TWICE},
	{"one stage swaps", TIED, REDUCE_SWAP, N_OVER, DROP, .rank = 1},
	{"they swap after rounding", TIED, REDUCE_SWAP, N_OVER, LATE},
	{"hosts do not gather", HOSTS, REDUCE_GATHER, N_OVER, DROP},
	{"one rank does not gather", HOSTS, REDUCE_GATHER, N_OVER, DROP, .rank = 2},
	{"parts are gathered before they are rounded", HOSTS, REDUCE_ROUND, N_OVER, LATE,
		.workers = 2},
	{"replicas are not summed", HYBRID, REDUCE_SUM, OVER_ACROSS, DROP},
	{"replicas are summed in each turn", HYBRID, REDUCE_SUM, OVER_ACROSS, WHEN,
		EVERY_TURN},
	{"hosts are not summed", SHARDED_HOSTS, REDUCE_SUM, OVER_ACROSS, DROP},
	{"a round replaces those before", ROUNDS, REDUCE_SUM, OVER_ALL, ADD, REDUCE_SET},
	{"the first round adds", ROUNDS, REDUCE_SUM, OVER_ALL, ADD, REDUCE_ADD},
	{"of hosts, a round replaces those before", SHARDED_HOSTS, REDUCE_SUM,
		OVER_ACROSS, ADD, REDUCE_SET},
	{"the last round is summed alone", ROUNDS, REDUCE_SUM, OVER_ALL, WHEN, LAST_TURN},
	{"a round of one rank is missing", ROUNDS, REDUCE_SUM, OVER_ALL, WHEN, LAST_TURN,
		.rank = 3},
	{"a sum is not rounded", ROUNDS, REDUCE_ROUND, N_OVER, DROP},
	{"a sum is rounded twice", TIED, REDUCE_ROUND, N_OVER, TWICE},
	{"it is rounded by all who receive it", HOSTS, REDUCE_ROUND, N_OVER, OVER,
		OVER_ALL, .workers = 2},
	{"it is rounded over the ranks of a host", SHARDED_HOSTS, REDUCE_ROUND, N_OVER,
		OVER, OVER_WITHIN},
	{"it is rounded without those who share it", DDP, REDUCE_ROUND, N_OVER, OVER,
		OVER_SELF, .workers = 2},
	{"workers are not summed", DDP, REDUCE_ADD_WORKERS, N_OVER, DROP, .workers = 2},
	{"workers are summed twice", DDP, REDUCE_ADD_WORKERS, N_OVER, TWICE,
		.workers = 2},
	{"workers are summed after rounding", DDP, REDUCE_ADD_WORKERS, N_OVER, LATE,
		.workers = 2},
	{"the file has the last round", FILED, REDUCE_FILE_ADD, N_OVER, ADD, REDUCE_SET},
	{"the first round adds to the file", FILED, REDUCE_FILE_ADD, N_OVER, ADD,
		REDUCE_ADD},
	{"a round is added in memory and in the file", FILED, REDUCE_SUM, N_OVER, ADD,
		REDUCE_LATER},
	{"a round is not added to the file", FILED, REDUCE_FILE_ADD, N_OVER, WHEN,
		LAST_TURN},
	{"the file is not finished", FILED, REDUCE_FILE_ADD, N_OVER, FINISHES, false},
	{"it is finished before the replicas are added", FILED_HYBRID, REDUCE_FILE_ADD,
		N_OVER, FINISHES, true},
	{"the sum is not read again", FILED_HYBRID, REDUCE_FILE_READ, N_OVER, DROP},
	{"the gradient is not written", FILED_HYBRID, REDUCE_FILE_WRITE, N_OVER, DROP},
	{"a row is chained to a sum that it does not read", SHARDED_HOSTS, REDUCE_SUM,
		OVER_WITHIN, TO, AT_KEPT},
	{"another rank begins other sums", ROUNDS, REDUCE_ROUND, N_OVER, 0,
		.plant = other_order},
	{"forms of the first round", ROUNDS, REDUCE_ROUND, N_OVER, 0,
		.plant = forms_of_first_round},
	{"forms are reversed on one rank", ROUNDS, REDUCE_ROUND, N_OVER, 0,
		.plant = forms_reversed},
	{"the leaves of one use", DDP, REDUCE_ROUND, N_OVER, 0,
		.plant = levels_of_one_use},
	{"no wait before leaves get memory", ROUNDS, REDUCE_ROUND, N_OVER, 0,
		.hurries = true},
	{"the gradient replaces the sum that replicas add", HYBRID, REDUCE_ROUND, N_OVER,
		0, .plant = gradient_in_kept},
	{"the host's sum replaces leaves of other shards",
		{{1, 1, 8, 1, 1}, 1, .micros = 16, .host_ranks = 4}, REDUCE_ROUND, N_OVER,
		0, .plant = host_in_leaves},
	{"leaves of two buckets have one place", {{1, 1, 1, 1, 4}, 0, .micros = 2},
		REDUCE_ROUND, N_OVER, 0, .plant = leaves_in_one_place},
};

/* In a process of its own, since a wrong plan may also end it. */
static bool is_found(const struct error *x)
{
	struct reduction_case c = {.l = x->l,
		.chunks = STORE_CHUNKS,
		.workers = x->workers,
		.hurries = x->hurries,
		.plant = plant};
	struct err e = {0};
	int status = 0;
	planted = x;
	pid_t child = fork();
	if (!child) {
		if (!freopen("/dev/null", "w", stderr))
			_exit(2);
		n_planted = 0;
		reduction_check(&c, &e);
		if (getenv("SHAPES"))
			printf("%s: %s\n", x->name, e.msg);
		fflush(stdout);
		_exit(!n_planted && !x->hurries ? 2 : e.code ? 1 : 0);
	}
	assert_true(child > 0 && waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) || WEXITSTATUS(status) == 1;
}

TEST(planted_errors)
{
	int missed = 0;
	for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
		if (is_found(&errors[i]))
			continue;
		print_error("not found: %s\n", errors[i].name);
		missed++;
	}
	assert_int_equal(missed, 0);
}

int main(void)
{
	int rc = tests_run();
	if (getenv("SHAPES"))
		for (int64_t i = 0; i < shapes.n; i++)
			printf("%lld\n%s", (long long)i, shapes.v[i]);
	strs_free(&shapes);
	return rc;
}

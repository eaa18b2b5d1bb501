/* Checkpoints in two parts: what is written is what the source gave at the beginning, on any
 * number of ranks, with a copy or without.
 * ranks: 1 2 3 5
 */
#include "ckpt/ckpt.h"
#include "tests/support/ranks.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>

static struct str path; /* of rank 0's folder */
static struct err e;

/* Vectors of a few bytes, matrices of many blocks, rows that are longer than a block. */
static const struct ckpt_tensor tensors[] = {
	{"bias", 1, {5}},
	{"wide", 2, {3, 400000}},
	{"matrix", 2, {1030, 700}},
	{"one", 1, {1}},
	{"tall", 2, {300001, 2}},
};

enum { N_GROUPS = 3 };
static const char *const names[N_GROUPS] = {"model", "one", "another"};

/* `with` is what the program changes while the file is written. */
static float value(int64_t change, int g, int tensor, int64_t i)
{
	return (float)(change + g * (int64_t)7 + tensor * 13 + i % 4099);
}

static void give_rows(
	void *with, int g, int tensor, int64_t row, int64_t n, int to, float *out)
{
	const int64_t *change = with;
	int64_t width = ckpt_row_size(&tensors[tensor]);
	/* All ranks ask for the same. */
	int64_t asked = ((g * (int64_t)100 + tensor) * 1000000 + row) * 100 + to;
	assert_int_equal(comm_min_i64(world, asked), asked);
	assert_true(world->rank == to ? out != NULL : !out);
	if (world->rank != to)
		return;
	for (int64_t i = 0; i < n * width; i++)
		out[i] = value(*change, g, tensor, row * width + i);
}

static struct ckpt_write what(int64_t *change)
{
	return (struct ckpt_write){.comm = world,
		.path = path.s,
		.info = {.format = "pt-checkpoint",
			.created_by = "test",
			.version = CKPT_VERSION,
			.step = 3},
		.config = "",
		.tensors = tensors,
		.n_tensors = ARRAY_LEN(tensors),
		.groups = {names[0], names[1], names[2]},
		.n_groups = N_GROUPS,
		.source = give_rows,
		.with = change};
}

struct seen {
	int g, tensor;
	int64_t change, n_wrong, n;
};

static int look(void *with, int64_t first, const float *x, int64_t n)
{
	struct seen *s = with;
	for (int64_t i = 0; i < n; i++)
		s->n_wrong += x[i] != value(s->change, s->g, s->tensor, first + i);
	s->n += n;
	return 0;
}

/* Collective. Rank 0 reads what all have written. */
static void holds(int64_t change)
{
	struct ckpt *c;
	if (world->rank == 0) {
		assert_int_equal(ckpt_open(&c, path.s, &e), 0);
		assert_int_equal(ckpt_verify(c, &e), 0);
		assert_int_equal(c->groups.n, N_GROUPS);
		for (int i = 0; i < (int)(N_GROUPS * ARRAY_LEN(tensors)); i++) {
			struct seen s = {.g = i % N_GROUPS,
				.tensor = i / N_GROUPS,
				.change = change};
			int t = ckpt_find(c, tensors[s.tensor].name);
			assert_int_equal(
				ckpt_for_each_block(c, ckpt_find_group(c, names[s.g]), t,
					look, &s, &e),
				0);
			assert_int_equal(s.n, ckpt_size(&tensors[s.tensor]));
			assert_int_equal(s.n_wrong, 0);
		}
		ckpt_close(c);
	}
	comm_barrier(world);
}

TEST(is_of_the_beginning)
{
	for (int one = 0; one < 2; one++) {
		int64_t change = 100 + one;
		struct ckpt_writing *x;
		struct ckpt_write w = what(&change);
		w.one_writes = one;
		float *copy = xmalloc((size_t)ckpt_copy_bytes(&w));
		assert_int_equal(ckpt_write_begin(&x, &w, copy, &e), 0);
		change = 0;
		memset(&w, 0, sizeof(w)); /* nobody needs it any more */
		while (!ckpt_write_done(x))
			comm_poll();
		assert_int_equal(ckpt_write_end(x, &e), 0);
		free(copy);
		holds(100 + one);
	}
}

TEST(without_a_copy)
{
	int64_t change = 200;
	struct ckpt_writing *x;
	struct ckpt_write w = what(&change);
	assert_int_equal(ckpt_write_begin(&x, &w, NULL, &e), 0);
	change = 0;
	assert_true(ckpt_write_done(x));
	assert_int_equal(ckpt_write_end(x, &e), 0);
	holds(200);
	change = 300;
	assert_int_equal(ckpt_write(&w, &e), 0);
	holds(300);
}

/* The copies of all ranks are the data, and little more. */
TEST(copies_are_shared_out)
{
	int64_t all = 0, sum = 0, change = 0;
	struct ckpt_write w = what(&change);
	struct comm rank = {.size = world->size};
	w.comm = &rank;
	for (size_t i = 0; i < ARRAY_LEN(tensors); i++)
		all += N_GROUPS * ckpt_size(&tensors[i]) * (int64_t)sizeof(float);
	for (; rank.rank < rank.size; rank.rank++) {
		int64_t n_bytes = ckpt_copy_bytes(&w);
		assert_true(n_bytes >= all / rank.size);
		assert_true(n_bytes <= all / rank.size + 2 * H5_BLOCK_BYTES);
		sum += n_bytes;
	}
	assert_true(sum >= all);
	assert_true(world->size > 1 || sum == all);
	w.one_writes = true;
	for (rank.rank = 0; rank.rank < rank.size; rank.rank++)
		assert_int_equal(ckpt_copy_bytes(&w), rank.rank ? 0 : all);
}

/* A file that cannot be made is known at once; one that is gone is known at the end, by all. */
TEST(errors_are_agreed_on)
{
	int64_t change = 400;
	struct ckpt_writing *x = NULL;
	struct ckpt_write w = what(&change);
	struct err why = {0};
	w.path = "/nowhere/x.h5";
	assert_int_equal(ckpt_write_begin(&x, &w, NULL, &why), -1);
	assert_null(x);
	assert_int_equal(why.code, EX_IOERR);
	w.path = path.s;
	float *copy = xmalloc((size_t)ckpt_copy_bytes(&w));
	assert_int_equal(ckpt_write_begin(&x, &w, copy, &e), 0);
	if (world->rank == 0) {
		struct str tmp = {0};
		glob_t found;
		str_printf(&tmp, "%s.*.tmp", path.s);
		assert_int_equal(glob(tmp.s, 0, NULL, &found), 0);
		assert_int_equal(found.gl_pathc, 1);
		assert_int_equal(remove(found.gl_pathv[0]), 0);
		globfree(&found);
		str_free(&tmp);
	}
	assert_int_equal(ckpt_write_end(x, &why), -1);
	assert_non_null(strstr(why.msg, "No such file"));
	free(copy);
	holds(300); /* as it was before */
}

int main(void)
{
	ranks_open();
	if (world->rank == 0)
		str_puts(&path, test_path("x.h5"));
	comm_bcast_str(world, &path, 0);
	return ranks_close(ranks_run());
}

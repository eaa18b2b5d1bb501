/*
 * Law 1, for deals: for 1 to 8 micro-batches of one size, every deal over as many ranks or
 * fewer, and one or two threads, give equal bits of loss, gradient norm and parameters, step
 * by step. Other layouts are in ranks_layouts.c.
 * ranks: 8
 */
#include "support.h"
#include "train/train.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 6, MAX_MICRO = 8 };

static struct comm *world;
static struct str shard;

/* What a run computed. */
struct trace {
	float loss[STEPS], grad_norm[STEPS];
	uint64_t hash[STEPS]; /* of the parameters after the step */
	double val_loss;
};

static struct train_opts options(const char *arch, int64_t n_micro, int64_t threads)
{
	struct train_opts o;
	struct err e = {0};
	struct str text = {0};
	str_printf(&text,
		"arch = %s\nlayers = 2\nheads = 4\ndim = 32\ncontext = 16\nmicro-batch = "
		"2\n"
		"batch = %lld\nsteps = %d\nwarmup = 2\nlr = 0.01\nthreads = %lld\n"
		"eval-windows = 6\nbucket = 20000\n",
		arch, (long long)n_micro * 2, STEPS, (long long)threads);
	if (!strcmp(arch, "gpt2"))
		str_puts(&text, "dropout = 0.1\n");
	else
		str_puts(&text, "kv-heads = 2\nvirtual = tp=2,cp=2\nffn-dim = 48\n");
	if (opts_from_text(&train_program, &o, text.s, false, &e) ||
		train_opts_check(&o, &e))
		die_err(&e);
	strs_add(&o.data, shard.s);
	str_free(&text);
	return o;
}

/* Collective over dp. Rank 0 of it gets the trace. */
static void train(struct comm *dp, const char *arch, int64_t n_micro, int64_t threads,
	struct trace *out)
{
	struct train_opts o = options(arch, n_micro, threads);
	struct data_set data;
	struct trainer t;
	struct err e = {0};
	if (data_open(&data, &o, dp, &e) || trainer_open(&t, &o, dp, &data, &e))
		die_err(&e);
	for (int i = 0; i < STEPS; i++) {
		struct step_result r;
		trainer_step(&t, 0, &r);
		out->loss[i] = r.loss;
		out->grad_norm[i] = r.grad_norm;
		out->hash[i] = store_hash(t.store);
	}
	out->val_loss = trainer_eval(&t, SPLIT_VAL);
	trainer_close(&t);
	data_close(&data);
}

/* Every deal of n_micro micro-batches; returns how many differ from one rank, one thread. */
static int count_different(const char *arch, int64_t n_micro)
{
	struct trace control, test;
	memset(&control, 0, sizeof(control));
	int different = 0;
	for (int ranks = 1; ranks <= n_micro; ranks++) {
		struct comm *dp = comm_split(world, world->rank < ranks ? 0 : -1, "dp");
		for (int threads = 1; threads <= 2 && dp; threads++) {
			memset(&test, 0, sizeof(test));
			train(dp, arch, n_micro, threads, &test);
			if (ranks == 1 && threads == 1)
				control = test;
			if (world->rank || !memcmp(&control, &test, sizeof(control)))
				continue;
			print_error("%s: %lld micro-batches on %d ranks of %d threads "
				    "differ\n",
				arch, (long long)n_micro, ranks, threads);
			different++;
		}
		if (dp)
			comm_free(dp);
		comm_barrier(world);
	}
	comm_bcast(world, &different, sizeof(different), 0);
	return different;
}

static void equal_bits(const char *arch)
{
	for (int64_t n = 1; n <= MAX_MICRO; n++)
		assert_int_equal(count_different(arch, n), 0);
}

static void gpt2_on_any_deal(void **state)
{
	(void)state;
	equal_bits("gpt2");
}

static void llama_on_any_deal(void **state)
{
	(void)state;
	equal_bits("llama");
}

/* The control must not be equal to everything: other arithmetic gives other bits. */
static void other_arithmetic_differs(void **state)
{
	struct trace a, b;
	(void)state;
	struct comm *alone = comm_self("dp");
	train(alone, "gpt2", 2, 1, &a);
	train(alone, "gpt2", 4, 1, &b);
	assert_memory_not_equal(a.loss, b.loss, sizeof(a.loss));
	assert_true(a.hash[0] != a.hash[1]);
	assert_true(a.loss[STEPS - 1] < a.loss[0]);
}

static void make_shard(void)
{
	struct str text = {0};
	struct err e = {0};
	struct prepared made;
	if (world->rank == 0) {
		for (int64_t i = 0; i < 6000; i++)
			str_putc(&text,
				"etaoin shrdlu\n"[(int)(14 * test_uniform(1, i / 3))]);
		struct strs inputs = {0};
		strs_add(&inputs, test_file("text", text.s));
		str_puts(&shard, test_path("shard.h5"));
		struct prepare p = {
			.tokenizer = "char", .val_fraction = 0.1, .out = shard.s};
		if (prepare_run(&p, &inputs, &made, &e))
			die_err(&e);
	}
	comm_bcast_str(world, &shard, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gpt2_on_any_deal),
		cmocka_unit_test(llama_on_any_deal),
		cmocka_unit_test(other_arithmetic_differs),
	};
	world = comm_open();
	log_rank(world->rank, world->size, false);
	if (world->rank && !freopen("/dev/null", "w", stdout))
		return 1;
	make_shard();
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	comm_barrier(world);
	comm_close(world);
	return rc;
}

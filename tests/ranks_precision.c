/*
 * Law 1 in every precision: who computes changes no bit, of scales either.
 * ranks: 4
 */
#include "support.h"
#include "train/train.h"

#include <string.h>

enum { STEPS = 12, N_MICRO = 4 };

static struct comm *world;
static struct str shard;

struct trace {
	float loss[STEPS], grad_norm[STEPS], scale[STEPS];
	uint64_t hash[STEPS];
	int64_t skipped;
	double val_loss;
};

static struct train_opts options(const char *dtype, const char *arch, int64_t threads)
{
	struct train_opts o;
	struct err e = {0};
	struct str text = {0};
	str_printf(&text,
		"arch = %s\nlayers = 3\nheads = 4\ndim = 32\ncontext = 16\n"
		"micro-batch = 2\nbatch = %d\nsteps = %d\nwarmup = 5\nlr = 0.01\n"
		"threads = %lld\neval-windows = 6\nbucket = 20000\ndtype = %s\n"
		"loss-scale = 1e8\nloss-scale-window = 2\n",
		arch, N_MICRO * 2, STEPS, (long long)threads, dtype);
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

/* Collective over dp. */
static void train(struct comm *dp, const char *dtype, const char *arch, int64_t threads,
	struct trace *out)
{
	struct train_opts o = options(dtype, arch, threads);
	struct data_set data;
	struct trainer t;
	struct err e = {0};
	memset(out, 0, sizeof(*out));
	if (data_open(&data, &o, dp, &e) || trainer_open(&t, &o, dp, &data, &e))
		die_err(&e);
	for (int i = 0; i < STEPS; i++) {
		struct step_result r;
		trainer_step(&t, 0, &r);
		BUG_ON(r.bad);
		out->loss[i] = r.loss;
		out->grad_norm[i] = r.grad_norm;
		out->scale[i] = r.loss_scale;
		out->hash[i] = store_hash(t.store, false);
	}
	out->skipped = t.skipped;
	out->val_loss = trainer_eval(&t, SPLIT_VAL);
	trainer_close(&t);
	data_close(&data);
}

/* Returns how many deals differ from one rank with one thread. */
static int count_different(const char *dtype, const char *arch, struct trace *control)
{
	struct trace test;
	int different = 0;
	for (int ranks = 1; ranks <= world->size; ranks++) {
		struct comm *dp = comm_split(world, world->rank < ranks ? 0 : -1, "dp");
		for (int threads = 1; threads <= 2 && dp; threads++) {
			train(dp, dtype, arch, threads, &test);
			if (ranks == 1 && threads == 1)
				*control = test;
			if (world->rank || !memcmp(control, &test, sizeof(test)))
				continue;
			print_error("%s, %s: %d ranks of %d threads differ\n", dtype,
				arch, ranks, threads);
			different++;
		}
		if (dp)
			comm_free(dp);
		comm_barrier(world);
	}
	comm_bcast(world, control, sizeof(*control), 0);
	comm_bcast(world, &different, sizeof(different), 0);
	return different;
}

static void any_deal(void **state)
{
	static const char *const dtypes[] = {"bf16", "fp16", "float8"};
	static const char *const archs[] = {"gpt2", "llama"};
	static struct trace control[ARRAY_LEN(dtypes) * ARRAY_LEN(archs)];
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(control); i++) {
		const char *dtype = dtypes[i / ARRAY_LEN(archs)];
		const char *arch = archs[i % ARRAY_LEN(archs)];
		assert_int_equal(count_different(dtype, arch, &control[i]), 0);
		/* the scale was at work, and there is more than one arithmetic */
		bool fp16 = !strcmp(dtype, "fp16");
		assert_true(fp16 == (control[i].skipped > 0));
		assert_true(control[i].skipped < STEPS - 2);
		for (size_t j = 0; j < i; j++)
			assert_true(control[i].val_loss != control[j].val_loss);
	}
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
		cmocka_unit_test(any_deal),
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

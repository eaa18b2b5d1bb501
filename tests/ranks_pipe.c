/*
 * The pipeline: whatever the schedule, the stages and what is made again, the bits are those
 * of one rank.
 * ranks: 4
 */
#include "support.h"
#include "train/train.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 3 };

static struct comm *world;
static struct str shard;

/* What a run computed. */
struct trace {
	float loss[STEPS], grad_norm[STEPS];
	uint64_t hash[STEPS]; /* of the parameters after the step */
	double val_loss;
};

static const char gpt2[] =
	"arch = gpt2\nlayers = 4\nheads = 4\ndim = 32\ndropout = 0.1\n";
static const char llama[] =
	"arch = llama\nlayers = 4\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\n";
static const char tied[] =
	"arch = llama\nlayers = 3\nheads = 2\ndim = 32\nffn-dim = 48\ntie = yes\n";
static const char eight[] =
	"arch = gpt2\nlayers = 8\nheads = 2\ndim = 16\ndropout = 0.1\nvirtual = tp=2\n";

static struct train_opts options(const char *model, int n_micro, const char *layout)
{
	struct train_opts o;
	struct err e = {0};
	struct str text = {0};
	str_printf(&text,
		"%s%scontext = 16\nmicro-batch = 2\nbatch = %d\nsteps = %d\nwarmup = 2\n"
		"lr = 0.01\neval-windows = 5\nbucket = 20000\nthreads = 1\n",
		model, layout, 2 * n_micro, STEPS);
	if (opts_from_text(&train_program, &o, text.s, false, &e) ||
		train_opts_check(&o, &e))
		die_err(&e);
	strs_add(&o.data, shard.s);
	str_free(&text);
	return o;
}

/* Collective over c. */
static struct plan train(struct comm *c, const char *model, int n_micro,
	const char *layout, struct trace *out)
{
	struct train_opts o = options(model, n_micro, layout);
	struct data_set data;
	struct trainer t;
	struct err e = {0};
	memset(out, 0, sizeof(*out));
	if (data_open(&data, &o, c, &e) || trainer_open(&t, &o, c, &data, &e))
		die_err(&e);
	for (int i = 0; i < STEPS; i++) {
		struct step_result r;
		trainer_step(&t, 0, &r);
		out->loss[i] = r.loss;
		out->grad_norm[i] = r.grad_norm;
		out->hash[i] = store_hash(t.store);
	}
	out->val_loss = trainer_eval(&t, SPLIT_VAL);
	struct plan plan = t.plan;
	trainer_close(&t);
	data_close(&data);
	return plan;
}

/* Is the run of so many ranks that of one? The answer is rank 0's. */
static bool same(const char *model, int n_micro, int ranks, const char *layout)
{
	static struct trace one, many;
	static const char *of;
	static int of_micro;
	struct comm *c = comm_split(world, world->rank < ranks ? 0 : -1, "some");
	if (world->rank == 0 && (of != model || of_micro != n_micro)) {
		struct comm *alone = comm_self("alone");
		train(alone, model, n_micro, "", &one);
		comm_free(alone);
		of = model;
		of_micro = n_micro;
	}
	if (c) {
		train(c, model, n_micro, layout, &many);
		comm_free(c);
	}
	bool equal = world->rank || !memcmp(&one, &many, sizeof(one));
	comm_bcast(world, &equal, sizeof(equal), 0);
	if (!equal && world->rank == 0)
		print_error(
			"%s%d micro-batches on %d ranks of\n%sdiffer: loss %.9g %.9g, "
			"norm %.9g %.9g, last loss %.9g %.9g, val_loss %.9g %.9g\n",
			model, n_micro, ranks, layout, one.loss[0], many.loss[0],
			one.grad_norm[0], many.grad_norm[0], one.loss[STEPS - 1],
			many.loss[STEPS - 1], one.val_loss, many.val_loss);
	return equal;
}

/* ---- schedules ------------------------------------------------------------------- */

static void any_schedule(void **state)
{
	static const char *const models[] = {gpt2, llama};
	static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
	char layout[128];
	(void)state;
	for (size_t m = 0; m < ARRAY_LEN(models); m++) {
		for (int n_micro = 2; n_micro <= 6; n_micro += 4) {
			for (int pp = 2; pp <= 4; pp += 2) {
				for (size_t s = 0; s < ARRAY_LEN(schedules); s++) {
					snprintf(layout, sizeof(layout),
						"pp = %d\npp-schedule = %s\n", pp,
						schedules[s]);
					assert_true(same(models[m], n_micro, pp, layout));
				}
			}
		}
	}
}

static void several_stages_a_rank(void **state)
{
	(void)state;
	assert_true(
		same(eight, 3, 2, "pp = 2\npp-schedule = interleaved\npp-stages = 2\n"));
	assert_true(
		same(eight, 3, 2, "pp = 2\npp-schedule = interleaved\npp-stages = 4\n"));
	assert_true(
		same(eight, 6, 4, "pp = 4\npp-schedule = interleaved\npp-stages = 2\n"));
	assert_true(same(eight, 6, 4, "pp = 4\npp-schedule = gpipe\npp-stages = 2\n"));
}

/* The embedding is on the first stage, its second use on the last; and layers do not divide
 * evenly. */
static void tied_and_uneven(void **state)
{
	(void)state;
	assert_true(same(tied, 4, 2, "pp = 2\npp-schedule = 1f1b\n"));
	assert_true(same(tied, 4, 3, "pp = 3\npp-schedule = gpipe\n"));
	assert_true(same(tied, 4, 2, "pp = 2\npp-schedule = zb-h1\n"));
	assert_true(same(tied, 1, 3, "pp = 3\npp-schedule = 1f1b\n"));
}

/* With the other axes: replicas that have unequal numbers of micro-batches, shards. */
static void with_other_axes(void **state)
{
	(void)state;
	assert_true(same(tied, 5, 4, "pp = 2\ndp = 2\npp-schedule = 1f1b\n"));
	assert_true(same(tied, 5, 4, "pp = 2\nfsdp = 2\npp-schedule = zb-h1\n"));
	assert_true(
		same(gpt2, 5, 4, "pp = 2\nfsdp = 2\nzero = 2\npp-schedule = gpipe\n"));
	assert_true(same(eight, 3, 4, "pp = 2\ntp = 2\npp-schedule = 1f1b\n"));
	assert_true(same(eight, 3, 4,
		"pp = 2\ntp = 2\npp-schedule = interleaved\npp-stages = 2\n"));
}

/* ---- what is made again ---------------------------------------------------------- */

static void recomputation(void **state)
{
	static const char *const models[] = {gpt2, tied};
	static const char *const how[] = {"none", "selective", "full"};
	char layout[128];
	(void)state;
	for (size_t m = 0; m < ARRAY_LEN(models); m++) {
		int64_t before = INT64_MAX;
		for (size_t i = 0; i < ARRAY_LEN(how); i++) {
			struct trace traces[2];
			struct comm *alone = comm_self("alone");
			snprintf(layout, sizeof(layout), "recompute = %s\n", how[i]);
			train(alone, models[m], 3, "", &traces[0]);
			struct plan p = train(alone, models[m], 3, layout, &traces[1]);
			assert_memory_equal(&traces[0], &traces[1], sizeof(traces[0]));
			assert_true(p.micro_bytes < before);
			before = p.micro_bytes;
			comm_free(alone);
		}
	}
}

/* The least that fits, and what was chosen computes the same. */
static void as_much_as_memory_needs(void **state)
{
	static const char *const how[] = {"none", "selective", "full"};
	struct comm *alone = comm_self("alone");
	char layout[128];
	struct trace one, other;
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(how); i++) {
		snprintf(layout, sizeof(layout), "recompute = %s\nckpt = no\n", how[i]);
		struct plan wanted = train(alone, gpt2, 2, layout, &one);
		snprintf(layout, sizeof(layout),
			"recompute = auto\nckpt = no\nmemory = %lld\n",
			(long long)plan_total(&wanted));
		struct plan got = train(alone, gpt2, 2, layout, &other);
		assert_memory_equal(&one, &other, sizeof(one));
		assert_int_equal(got.micro_bytes, wanted.micro_bytes);
	}
	comm_free(alone);
}

static void recomputation_in_a_pipeline(void **state)
{
	(void)state;
	assert_true(same(gpt2, 5, 2, "pp = 2\npp-schedule = 1f1b\nrecompute = full\n"));
	assert_true(
		same(gpt2, 5, 2, "pp = 2\npp-schedule = zb-h1\nrecompute = selective\n"));
	assert_true(same(gpt2, 5, 4, "pp = 4\npp-schedule = zb-h1\nrecompute = full\n"));
}

/* ---- bad numbers ----------------------------------------------------------------- */

static void what_is_bad_is_found(void **state)
{
	struct train_opts o = options(gpt2, 4, "pp = 4\n");
	struct data_set data;
	struct trainer t;
	struct step_result r;
	struct err e = {0};
	(void)state;
	o.lr = 1e30;
	o.warmup = 0;
	o.clip = 0;
	if (data_open(&data, &o, world, &e) || trainer_open(&t, &o, world, &data, &e))
		die_err(&e);
	for (int i = 0; i < STEPS; i++) {
		trainer_step(&t, 0, &r);
		if (r.bad)
			break;
	}
	assert_true(r.bad);
	assert_non_null(strstr(r.why.s, "first bad: "));
	assert_non_null(strstr(r.why.s, "samples "));
	str_free(&r.why);
	trainer_close(&t);
	data_close(&data);
}

static void make_shard(void)
{
	struct str text = {0};
	struct err e = {0};
	struct prepared made;
	if (world->rank == 0) {
		for (int64_t i = 0; i < 3000; i++)
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
		cmocka_unit_test(any_schedule),
		cmocka_unit_test(several_stages_a_rank),
		cmocka_unit_test(tied_and_uneven),
		cmocka_unit_test(with_other_axes),
		cmocka_unit_test(recomputation),
		cmocka_unit_test(as_much_as_memory_needs),
		cmocka_unit_test(recomputation_in_a_pipeline),
		cmocka_unit_test(what_is_bad_is_found),
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

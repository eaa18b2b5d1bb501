/* The pipeline: whatever the schedule, the stages and what is made again, the bits are those
 * of one rank.
 * ranks: 4
 */
#include "tests/support/ranks.h"
#include "tests/support/traces.h"
#include "plan/fit.h"
#include "engine/step.h"

#include <string.h>

enum { STEPS = 3 };

static const char *shard;

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
	struct str lines = {0};
	str_printf(&lines, "%s%sbatch = %d\nsteps = %d\n", model, layout, 2 * n_micro,
		STEPS);
	struct train_opts o = trace_options(shard, lines.s);
	str_free(&lines);
	return o;
}

/* Collective over c. */
static struct plan train(struct comm *c, const char *model, int n_micro,
	const char *layout, struct trace *out)
{
	struct train_opts o = options(model, n_micro, layout);
	return trace_run(c, &o, out);
}

/* Collective. Is the run of so many ranks that of one? Rank 0 knows. */
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
	if (!equal)
		print_error(
			"%s%d micro-batches on %d ranks of\n%sdiffer: loss %.9g %.9g, "
			"norm %.9g %.9g, last loss %.9g %.9g, val_loss %.9g %.9g\n",
			model, n_micro, ranks, layout, one.loss[0], many.loss[0],
			one.grad_norm[0], many.grad_norm[0], one.loss[STEPS - 1],
			many.loss[STEPS - 1], one.val_loss, many.val_loss);
	return equal;
}

/* ---- schedules ------------------------------------------------------------------- */

TEST(any_schedule)
{
	static const char *const models[] = {gpt2, llama};
	static const char *const schedules[] = {"gpipe", "1f1b", "zb-h1"};
	char layout[128];
	for (size_t m = 0; m < ARRAY_LEN(models); m++) {
		for (int n_micro = 2; n_micro <= 6; n_micro += 4) {
			for (int pp = 2; pp <= 4; pp += 2) {
				for (size_t s = 0; s < ARRAY_LEN(schedules); s++) {
					snprintf(layout, sizeof(layout),
						"pp = %d\npp-schedule = %s\n", pp,
						schedules[s]);
					assert_on_all(
						same(models[m], n_micro, pp, layout));
				}
			}
		}
	}
}

TEST(several_stages_a_rank)
{
	assert_on_all(
		same(eight, 3, 2, "pp = 2\npp-schedule = interleaved\npp-stages = 2\n"));
	assert_on_all(
		same(eight, 3, 2, "pp = 2\npp-schedule = interleaved\npp-stages = 4\n"));
	assert_on_all(
		same(eight, 6, 4, "pp = 4\npp-schedule = interleaved\npp-stages = 2\n"));
	assert_on_all(same(eight, 6, 4, "pp = 4\npp-schedule = gpipe\npp-stages = 2\n"));
	assert_on_all(same(
		eight, 3, 2, "pp = 2\npp-schedule = interleaved-zb\npp-stages = 4\n"));
	assert_on_all(same(
		eight, 6, 4, "pp = 4\npp-schedule = interleaved-zb\npp-stages = 2\n"));
	for (int n_micro = 1; n_micro <= 9; n_micro += 4) {
		assert_on_all(same(eight, n_micro, 2, "pp = 2\npp-schedule = zbv\n"));
		assert_on_all(same(eight, n_micro, 4, "pp = 4\npp-schedule = zbv\n"));
	}
}

/* The embedding is on the first stage, its second use on the last; and layers do not divide
 * evenly. */
TEST(tied_and_uneven)
{
	assert_on_all(same(tied, 4, 2, "pp = 2\npp-schedule = 1f1b\n"));
	assert_on_all(same(tied, 4, 3, "pp = 3\npp-schedule = gpipe\n"));
	assert_on_all(same(tied, 4, 2, "pp = 2\npp-schedule = zb-h1\n"));
	assert_on_all(same(tied, 1, 3, "pp = 3\npp-schedule = 1f1b\n"));
}

/* In a V, both uses of the table are on the first rank, and other micro-batches come between them. */
TEST(tied_in_a_v)
{
	assert_on_all(same(eight, 4, 2, "pp = 2\npp-schedule = zbv\n"));
	assert_on_all(same(eight, 7, 3, "pp = 3\npp-schedule = zbv\n"));
	assert_on_all(same(
		eight, 5, 4, "pp = 2\nfsdp = 2\npp-schedule = zbv\nrecompute = full\n"));
	assert_on_all(
		same(eight, 5, 4, "pp = 2\nfsdp = 2\nzero = 1\npp-schedule = zbv\n"));
}

/* With the other axes: replicas that have unequal numbers of micro-batches, shards. */
TEST(with_other_axes)
{
	assert_on_all(same(tied, 5, 4, "pp = 2\ndp = 2\npp-schedule = 1f1b\n"));
	assert_on_all(same(tied, 5, 4, "pp = 2\nfsdp = 2\npp-schedule = zb-h1\n"));
	assert_on_all(
		same(gpt2, 5, 4, "pp = 2\nfsdp = 2\nzero = 2\npp-schedule = gpipe\n"));
	assert_on_all(same(eight, 3, 4, "pp = 2\ntp = 2\npp-schedule = 1f1b\n"));
	assert_on_all(same(eight, 3, 4,
		"pp = 2\ntp = 2\npp-schedule = interleaved\npp-stages = 2\n"));
}

/* ---- what is made again ---------------------------------------------------------- */

TEST(recomputation)
{
	static const char *const models[] = {gpt2, tied};
	static const char *const how[] = {"none", "selective", "full"};
	char layout[128];
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
TEST(as_much_as_memory_needs)
{
	static const char *const how[] = {"none", "selective", "full"};
	struct comm *alone = comm_self("alone");
	char layout[128];
	struct trace one, other;
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

TEST(recomputation_in_a_pipeline)
{
	assert_on_all(same(gpt2, 5, 2, "pp = 2\npp-schedule = 1f1b\nrecompute = full\n"));
	assert_on_all(
		same(gpt2, 5, 2, "pp = 2\npp-schedule = zb-h1\nrecompute = selective\n"));
	assert_on_all(
		same(gpt2, 5, 4, "pp = 4\npp-schedule = zb-h1\nrecompute = full\n"));
}

/* ---- bad numbers ----------------------------------------------------------------- */

TEST(what_is_bad_is_found)
{
	struct train_opts o = options(gpt2, 4, "pp = 4\n");
	struct dataset data;
	struct trainer t;
	struct step_result r;
	struct err e = {0};
	o.lr = 1e30;
	o.warmup = 0;
	o.clip = 0;
	if (dataset_open(&data, &o, world, &e) ||
		trainer_open(&t, &o, world, &data, NULL, &e))
		die_err(&e);
	for (int i = 0; i < STEPS; i++) {
		step_run(&t, NULL, &r);
		if (r.bad)
			break;
	}
	assert_true(r.bad);
	assert_non_null(strstr(r.why.s, "first non-finite value: "));
	assert_non_null(strstr(r.why.s, "samples "));
	str_free(&r.why);
	trainer_close(&t);
	dataset_close(&data);
}

int main(void)
{
	ranks_open();
	shard = ranks_shard(3000);
	return ranks_close(ranks_run());
}

/* Law 1 in every precision: who computes changes no bit, of scales either.
 * ranks: 4 8
 */
#include "tests/support/ranks.h"
#include "tests/support/traces.h"
#include "plan/fit.h"
#include "engine/step.h"

#include <string.h>

/* (3 ranks of data parallelism have 2, 1 and 1) */
enum { STEPS = 4, N_MICRO = 4 };

static const char *shard;

/* Biases and dropout; and heads of keys and values that slices share, in chunks that are
 * several. */
static const char gpt2[] = "arch = gpt2\nlayers = 4\nheads = 4\ndim = 32\ndropout = 0.1\n"
			   "virtual = tp=4,cp=2\n";
static const char llama[] =
	"arch = llama\nlayers = 4\nheads = 4\nkv-heads = 2\ndim = 32\nffn-dim = 48\n"
	"virtual = tp=4,cp=4\n";
static const char *const models[] = {gpt2, llama};

static const char bf16[] = "dtype = bf16\n";
static const char fp16[] = "dtype = fp16\nloss-scale = 4e5\nloss-scale-window = 1\n";
static const char float8[] = "dtype = float8\n";
static const char *const dtypes[] = {bf16, fp16, float8};

static struct train_opts options(const char *model, const char *dtype, const char *layout)
{
	struct str lines = {0};
	str_printf(&lines, "%s%s%sbatch = %d\nsteps = %d\n", model, dtype, layout,
		2 * N_MICRO, STEPS);
	struct train_opts o = trace_options(shard, lines.s);
	str_free(&lines);
	return o;
}

/* Collective over c. */
static void train(struct comm *c, const char *model, const char *dtype,
	const char *layout, struct trace *out)
{
	struct train_opts o = options(model, dtype, layout);
	trace_run(c, &o, out);
}

static struct trace alone(const char *model, const char *dtype, const char *layout)
{
	struct trace x;
	struct comm *self = comm_self("alone");
	train(self, model, dtype, layout, &x);
	comm_free(self);
	return x;
}

/* Collective. Is the run of so many ranks that of one? Rank 0 knows. */
static bool same(const char *model, const char *dtype, int ranks, const char *layout)
{
	static struct trace one, many;
	static const char *of_model, *of_dtype;
	struct comm *c = comm_split(world, world->rank < ranks ? 0 : -1, "some");
	if (world->rank == 0 && (of_model != model || of_dtype != dtype)) {
		one = alone(model, dtype, "");
		of_model = model;
		of_dtype = dtype;
	}
	if (c) {
		train(c, model, dtype, layout, &many);
		comm_free(c);
	}
	bool equal = world->rank || !memcmp(&one, &many, sizeof(one));
	if (!equal)
		print_error("%s%s%d ranks of\n%sdiffer: loss %.9g %.9g, norm %.9g %.9g, "
			    "last loss %.9g %.9g, val_loss %.9g %.9g\n",
			model, dtype, ranks, layout, one.loss[0], many.loss[0],
			one.grad_norm[STEPS - 1], many.grad_norm[STEPS - 1],
			one.loss[STEPS - 1], many.loss[STEPS - 1], one.val_loss,
			many.val_loss);
	return equal;
}

struct layout {
	int ranks;
	const char *text;
};

static void check_all(const char *model, const struct layout *layouts, size_t n)
{
	for (size_t d = 0; d < ARRAY_LEN(dtypes); d++)
		for (size_t i = 0; i < n; i++)
			assert_on_all(same(
				model, dtypes[d], layouts[i].ranks, layouts[i].text));
}

/* Otherwise equal traces would say little: each precision is another arithmetic, and the
 * scale of fp16 was at work. */
static void the_control_is_one(void **state)
{
	(void)state;
	for (size_t m = 0; m < ARRAY_LEN(models) && world->rank == 0; m++) {
		struct trace x[ARRAY_LEN(dtypes)];
		for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
			bool scaled = dtypes[d] == fp16;
			x[d] = alone(models[m], dtypes[d], "");
			assert_true(scaled == (x[d].skipped > 0));
			assert_true(x[d].skipped < STEPS - 1);
			for (size_t i = 0; i < d; i++)
				assert_true(x[d].val_loss != x[i].val_loss);
		}
	}
	comm_barrier(world);
}

/* ---- who computes ---------------------------------------------------------------- */

static void one_axis(void **state)
{
	static const struct layout layouts[] = {
		{1, "threads = 2\n"},
		{3, "dp = 3\nthreads = 2\n"},
		{2, "tp = 2\n"},
		{2, "tp = 2\nsp = no\n"},
		{2, "tp = 2\nasync-tp = no\n"},
		{4, "tp = 4\n"},
		{2, "cp = 2\n"},
		{2, "cp = 2\ncp-comm = gather\n"},
		{2, "fsdp = 2\n"},
		{3, "fsdp = 3\nzero = 2\n"},
	};
	(void)state;
	check_all(llama, layouts, ARRAY_LEN(layouts));
}

static void stages(void **state)
{
	static const struct layout layouts[] = {
		{2, "pp = 2\npp-schedule = gpipe\n"},
		{2, "pp = 2\npp-schedule = 1f1b\n"},
		{2, "pp = 2\npp-schedule = interleaved\npp-stages = 2\n"},
		{2, "pp = 2\npp-schedule = zb-h1\n"},
		{4, "pp = 4\npp-schedule = zb-h1\n"},
	};
	(void)state;
	check_all(llama, layouts, ARRAY_LEN(layouts));
}

static void several_axes(void **state)
{
	static const struct layout layouts[] = {
		{4, "tp = 2\ncp = 2\n"},
		{4, "tp = 2\nfsdp = 2\nreshard-after-forward = no\n"},
		{4, "pp = 2\ntp = 2\npp-schedule = zb-h1\n"},
	};
	(void)state;
	check_all(llama, layouts, ARRAY_LEN(layouts));
}

/* Run by eight ranks alone, as the others are by four. */
static void three_axes(void **state)
{
	static const struct layout layouts[] = {
		{8, "pp = 2\nfsdp = 2\ntp = 2\npp-schedule = zb-h1\nrecompute = full\n"},
		{8, "dp = 2\ncp = 2\ntp = 2\n"},
	};
	(void)state;
	check_all(llama, layouts, ARRAY_LEN(layouts));
}

/* ---- how ------------------------------------------------------------------------- */

/* What is made again has the bits it had, of scales too. */
static void recomputation(void **state)
{
	static const struct layout layouts[] = {
		{1, "recompute = selective\n"},
		{1, "recompute = full\n"},
		{1, "recompute = full\nrecompute-every = 2\n"},
		{2, "pp = 2\nrecompute = selective\nrecompute-every = 2\n"},
		{2, "tp = 2\nrecompute = selective\n"},
		{4, "tp = 2\ncp = 2\nrecompute = full\n"},
		{2, "pp = 2\npp-schedule = zb-h1\nrecompute = selective\n"},
		{4, "pp = 2\nfsdp = 2\npp-schedule = zb-h1\nrecompute = full\n"},
	};
	(void)state;
	check_all(llama, layouts, ARRAY_LEN(layouts));
}

/* Fused kernels are another arithmetic by name, and on the CPU the same by bits. */
static void plain_kernels(void **state)
{
	static const struct layout layouts[] = {
		{1, "kernels = ref\n"},
		{2, "tp = 2\nkernels = ref\n"},
	};
	(void)state;
	check_all(llama, layouts, ARRAY_LEN(layouts));
	for (size_t m = 0; m < ARRAY_LEN(models); m++)
		assert_on_all(
			same(models[m], "dtype = fp32\n", 2, "tp = 2\nkernels = ref\n"));
}

/* Sums of attention that are rounded between chunks: with one chunk there is no between. */
static void accumulation(void **state)
{
	static const char cp_bf16[] = "cp-accumulate = bf16\n";
	static const char one_chunk[] = "layers = 2\ndim = 32\nvirtual = tp=2\n";
	static const struct layout layouts[] = {
		{2, "cp = 2\n"},
		{4, "cp = 4\n"},
		{4, "cp = 4\ncp-comm = gather\n"},
		{4, "tp = 2\ncp = 2\n"},
		{4, "pp = 2\ncp = 2\npp-schedule = zb-h1\nrecompute = full\n"},
	};
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(layouts); i++)
		assert_on_all(same(llama, cp_bf16, layouts[i].ranks, layouts[i].text));
	bool differ = true, equal = true;
	if (world->rank == 0) {
		struct trace many = alone(llama, cp_bf16, "");
		struct trace exact = alone(llama, "", "");
		differ = many.grad_norm[0] != exact.grad_norm[0];
		many = alone(one_chunk, cp_bf16, "");
		exact = alone(one_chunk, "", "");
		equal = !memcmp(&many, &exact, sizeof(exact));
	}
	assert_on_all(differ);
	assert_on_all(equal);
}

/* What a step sends, for the precision itself and as it is planned. */
static void sent_in_a_step(const char *dtype, int64_t *sent, double *planned)
{
	struct train_opts o = options(llama, dtype, "tp = 2\ncp = 2\nrecompute = full\n");
	struct dataset data;
	struct trainer t;
	struct plan plan;
	struct step_result r;
	struct err e = {0};
	if (dataset_open(&data, &o, world, &e) ||
		trainer_open(&t, &o, world, &data, &plan, &e))
		die_err(&e);
	*sent = -mesh_bytes_sent(&t.mesh);
	step_run(&t, NULL, &r);
	*sent += mesh_bytes_sent(&t.mesh);
	*planned = plan.sent;
	trainer_close(&t);
	dataset_close(&data);
}

/* The amax of each tensor, once a step. */
static void what_scales_send_is_planned(void **state)
{
	int64_t sent[2];
	double planned[2];
	(void)state;
	sent_in_a_step(bf16, &sent[0], &planned[0]);
	sent_in_a_step(float8, &sent[1], &planned[1]);
	int64_t more = sent[1] - sent[0];
	print_message("# scales: %lld bytes a step, of %lld\n", (long long)more,
		(long long)sent[1]);
	assert_true(more > 0 && (double)more == planned[1] - planned[0]);
	const int64_t tensors = 4 * 9 + 3;
	assert_int_equal(more, tensors * (int64_t)sizeof(float));
}

int main(void)
{
	const struct CMUnitTest four[] = {
		cmocka_unit_test(the_control_is_one),
		cmocka_unit_test(one_axis),
		cmocka_unit_test(stages),
		cmocka_unit_test(several_axes),
		cmocka_unit_test(recomputation),
		cmocka_unit_test(plain_kernels),
		cmocka_unit_test(accumulation),
		cmocka_unit_test(what_scales_send_is_planned),
	};
	const struct CMUnitTest eight[] = {
		cmocka_unit_test(three_axes),
	};
	ranks_open();
	shard = ranks_shard(6000);
	return ranks_close(world->size == 8 ? ranks_run_some(eight, ARRAY_LEN(eight))
					    : ranks_run_some(four, ARRAY_LEN(four)));
}

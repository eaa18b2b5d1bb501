/* Runs of a model with experts: what the losses that balance them depend on. */
#include "tests/support/support.h"
#include "engine/state.h"
#include "engine/step.h"
#include "plan/fit.h"

#include <math.h>

static const char *shard;

static const char mixture[] =
	"arch = llama\nlayers = 2\nheads = 2\ndim = 16\nffn-dim = 16\ncontext = 16\n"
	"experts = 8\nbatch = 8\nsteps = 10\nwarmup = 1\nlr = 0.01\nclip = 0\nthreads = 1\n"
	"eval-windows = 4\n";

/* A run on one rank. */
struct alone {
	struct train_opts o;
	struct comm *self;
	struct dataset data;
	struct trainer t;
	struct plan plan;
};

static void run_open(struct alone *r, const char *more)
{
	struct str all = {0};
	struct err e = {0};
	str_printf(&all, "%s%s", mixture, more);
	if (opts_from_text(&train_program, &r->o, all.s, false, &e) ||
		options_check(&r->o, &e))
		die_err(&e);
	strs_add(&r->o.data, shard);
	r->self = comm_self("dp");
	if (dataset_open(&r->data, &r->o, r->self, &e) ||
		trainer_open(&r->t, &r->o, r->self, &r->data, &r->plan, &e))
		die_err(&e);
	str_free(&all);
}

static void run_close(struct alone *r)
{
	trainer_close(&r->t);
	dataset_close(&r->data);
	comm_free(r->self);
	strs_free(&r->o.data);
}

/* Returns the result of the first step of a run. */
static struct step_result first_step(const char *more)
{
	struct alone r;
	struct step_result result;
	run_open(&r, more);
	step_run(&r.t, NULL, &result);
	run_close(&r);
	return result;
}

static void check_equal(const char *a, const char *b, int loss)
{
	const struct step_result x = first_step(a), y = first_step(b);
	assert_near(x.router_loss[loss], y.router_loss[loss], 1e-6 * x.router_loss[loss]);
	assert_near((double)x.grad_norm, (double)y.grad_norm, 1e-4 * (double)x.grad_norm);
}

/* The balance of sequences and the z-loss are means over the batch, so they do not depend on the
 * number of micro-batches that a step accumulates. */
TEST(accumulation)
{
	const char
		one[] = "micro-batch = 8\nbalance-over = sequence\nbalance-loss = 300\n",
		four[] = "micro-batch = 2\nbalance-over = sequence\nbalance-loss = 300\n";
	check_equal(one, four, ROUTER_BALANCE_LOSS);
	const struct step_result with = first_step(one),
				 without = first_step(
					 "micro-batch = 8\nbalance-loss = 0\n");
	assert_true((double)with.grad_norm > 1.5 * (double)without.grad_norm);
	const char z_one[] = "micro-batch = 8\nbalance-loss = 0\nrouter-z-loss = 30\n",
		   z_four[] = "micro-batch = 2\nbalance-loss = 0\nrouter-z-loss = 30\n";
	check_equal(z_one, z_four, ROUTER_Z_LOSS);
	assert_true(
		(double)first_step(z_one).grad_norm > 1.5 * (double)without.grad_norm);
}

/* Returns the counts of the last step as fractions of a layer's slots. */
static void fractions_of_step(struct trainer *t, int64_t layer, double *out)
{
	int64_t n = t->model.c.experts, sum = 0;
	const int64_t *slots = t->pass.router.slots + layer * n;
	for (int64_t e = 0; e < n; e++)
		sum += slots[e];
	assert_int_equal(
		sum, t->o.batch * t->model.c.context * t->model.c.experts_per_token);
	for (int64_t e = 0; e < n; e++)
		out[e] = (double)slots[e] / (double)sum;
}

/* With --balance-over batch, f is equal for all experts in the first step, then the fractions of
 * the step before, in a resumed run too. */
TEST(load_of_the_step_before)
{
	static const char options[] =
		"micro-batch = 2\nbalance-over = batch\nbalance-loss = 1\n";
	struct alone r, resumed;
	struct step_result result, second;
	struct err e = {0};
	double want[8];
	run_open(&r, options);
	const float *load = r.t.pass.router.load;
	for (int i = 0; i < 2 * 8; i++)
		assert_true(load[i] == 0.125f);
	step_run(&r.t, NULL, &result);
	assert_near(result.router_loss[ROUTER_BALANCE_LOSS], 1, 1e-6);
	for (int64_t l = 0; l < 2; l++) {
		fractions_of_step(&r.t, l, want);
		for (int i = 0; i < 8; i++)
			assert_true(load[l * 8 + i] == (float)want[i]);
	}
	const char *path = test_path("step-1.h5");
	assert_int_equal(state_save(&r.t, path, &e), 0);
	step_run(&r.t, NULL, &result);
	assert_true(fabs(result.router_loss[ROUTER_BALANCE_LOSS] - 1) > 1e-4);
	run_close(&r);

	run_open(&resumed, options);
	assert_int_equal(state_load(&resumed.t, path, false, &e), 0);
	step_run(&resumed.t, NULL, &second);
	assert_true(second.router_loss[ROUTER_BALANCE_LOSS] ==
		    result.router_loss[ROUTER_BALANCE_LOSS]);
	assert_true(second.grad_norm == result.grad_norm);
	run_close(&resumed);
}

int main(void)
{
	shard = test_shard(3000);
	return tests_run();
}

/* With --ep, the matmuls of the shared expert are computed while rows are under way, and nothing else
 * changes: the step has the same matmuls as with one rank. Counted in a step on the planning device. */
#include "tests/support/support.h"
#include "engine/engine.h"
#include "plan/plan_internal.h"

#include <stdio.h>

static struct trainer trainer;
static const struct kernels *kernels;
static int n_linears,
	n_during; /* matmuls of linear layers; of these, while rows are sent */

static void count(void)
{
	n_linears++;
	n_during += trainer.pass.experts.n_moves > 0;
}

static void count_forward(
	struct device *d, struct mat y, struct mat x, struct mat w, struct mat bias)
{
	count();
	kernels->linear_fwd(d, y, x, w, bias);
}

static void count_backward_x(
	struct device *d, struct mat dx, struct mat dy, struct mat w, bool add)
{
	count();
	kernels->linear_bwd_x(d, dx, dy, w, add);
}

/* Counts the matmuls of a step of rank 0 of two, with one micro-batch. */
static void count_step(const char *more)
{
	static const char same[] =
		"arch = llama\nlayers = 2\nheads = 2\ndim = 32\ncontext = 16\nbatch = 4\n"
		"micro-batch = 2\nsteps = 1\nwarmup = 0\nthreads = 1\ndp = 2\nexperts = 4\n"
		"expert-dim = 16\n";
	char text[600];
	struct train_opts o;
	struct model m;
	struct err e = {0};
	(void)snprintf(text, sizeof(text), "%s%s", same, more);
	assert_int_equal(opts_from_text(&train_program, &o, text, false, &e), 0);
	assert_int_equal(options_check(&o, &e), 0);
	assert_int_equal(layout_resolve(&o, 2, &e), 0);
	assert_int_equal(model_init(&m, &o.model, 61, &e), 0);
	plan_open(&trainer, &o, &m, 0, layout_micro_batches(&o));
	trainer_build_pipe(&trainer);
	struct kernels counting = *(kernels = trainer.d.k);
	counting.linear_fwd = count_forward;
	counting.linear_bwd_x = count_backward_x;
	trainer.d.k = &counting;
	trainer.pass.ops.linear = count_forward;
	n_linears = n_during = 0;
	plan_run_step(&trainer);
	trainer.d.k = kernels;
	plan_close(&trainer);
	model_release(&m);
}

TEST(shared_expert)
{
	/* W1, W3 and W2 of two layers, forward and gradients of inputs */
	enum { SHARED = 2 * 2 * 3 };
	count_step("shared-expert-dim = 16\n");
	int alone = n_linears;
	assert_int_equal(n_during, 0);
	count_step("shared-expert-dim = 16\nep = 2\n");
	assert_int_equal(n_linears, alone);
	assert_int_equal(n_during, SHARED);
	count_step("shared-expert-dim = 16\nep = 2\nrecompute = full\n");
	assert_int_equal(n_during, SHARED + 2 * 2);
	count_step("ep = 2\n");
	assert_int_equal(n_during, 0);
}

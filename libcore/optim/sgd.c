/* SGD with heavy-ball or Nesterov momentum, as torch.optim.SGD without dampening: weight decay
 * is added to the gradient (coupled). The momentum buffer is initially zero, which is
 * equivalent to PyTorch's first step. */
#include "optim/optim.h"

static int sgd_n_state(const struct optim_config *c)
{
	return c->momentum > 0;
}

static void sgd_prepare(const struct optim_config *c, double step, struct update *u)
{
	(void)step;
	u->momentum = (float)c->momentum;
	u->nesterov = c->nesterov;
}

static void sgd_update(
	struct device *d, const struct update_part *x, int n, const struct update *hyper)
{
	d->k->sgd(d, x, n, hyper);
}

const struct optimizer optimizer_sgd = {
	.name = "sgd",
	.help = "SGD: the momentum, fp32",
	.unused = "beta1 beta2 eps",
	.state = {"momentum_buffer"},
	.n_state = sgd_n_state,
	.prepare = sgd_prepare,
	.coupled = true,
	.update = sgd_update,
};

/*
 * SGD with momentum, Nesterov's or the heavy ball, as torch.optim.SGD has it: weight decay is
 * added to the gradient (coupled), and there is no dampening. The momentum begins with zeros,
 * which gives PyTorch's first step.
 */
#include "optim/optim.h"

static int n_state(const struct optim_config *c)
{
	return c->momentum > 0;
}

static void prepare(const struct optim_config *c, double step, struct update *u)
{
	(void)step;
	u->momentum = (float)c->momentum;
	u->nesterov = c->nesterov;
}

static void update(
	struct device *d, const struct update_part *x, int n, const struct update *how)
{
	d->k->sgd(d, x, n, how);
}

const struct optimizer optimizer_sgd = {
	.name = "sgd",
	.help = "SGD: the momentum, fp32",
	.state = {"momentum_buffer"},
	.n_state = n_state,
	.prepare = prepare,
	.update = update,
};

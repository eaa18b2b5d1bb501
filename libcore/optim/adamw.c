/* AdamW (Loshchilov, Hutter 2019), as torch.optim.AdamW: weight decay is decoupled. */
#include "optim/optim.h"

#include <math.h>

static void adamw_prepare(const struct optim_config *c, double step, struct update *u)
{
	u->beta1 = (float)c->beta1;
	u->beta2 = (float)c->beta2;
	u->eps = (float)c->eps;
	u->correct1 = (float)(1 - pow(c->beta1, step));
	u->correct2 = (float)(1 - pow(c->beta2, step));
}

void adamw_update(
	struct device *d, const struct update_part *x, int n, const struct update *hyper)
{
	d->k->adamw(d, x, n, hyper);
}

const struct optimizer optimizer_adamw = {
	.name = "adamw",
	.help = "AdamW: two moments, fp32",
	.state = {"exp_avg", "exp_avg_sq"},
	.prepare = adamw_prepare,
	.update = adamw_update,
};

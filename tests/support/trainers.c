#include "tests/support/trainers.h"

#include "job/fit.h"

int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct plan *p, struct err *e)
{
	struct plan own;
	struct trainer_sizes sizes;
	if (trainer_prepare(t, o, world, data, e) || trainer_connect(t, world, NULL, e) ||
		fit_trainer(t, p ? p : &own, &sizes, e))
		return -1;
	return trainer_build(t, &sizes, e);
}

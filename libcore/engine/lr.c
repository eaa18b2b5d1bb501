/* Learning-rate schedules. */
#include "engine/step.h"

#include <math.h>

/* Returns the learning rate after fraction x of the decay, scaled to 1 (lr) ... 0 (min_lr). */
static double decay_factor(const struct train_opts *o, double x)
{
	const double pi = 3.141592653589793;
	switch ((enum lr_schedule)o->lr_schedule) {
	case LR_COSINE:
		return 0.5 * (1 + cos(pi * x));
	case LR_WSD:
		return o->wsd_shape == WSD_SQRT ? 1 - sqrt(x) : 1 - x;
	case LR_LINEAR:
		return 1 - x;
	case LR_CONSTANT:
		break;
	}
	return 1;
}

double lr_at(const struct train_opts *o, int64_t step)
{
	double scale = 1, lr = o->lr, lowest = o->min_lr < 0 ? lr / 10 : o->min_lr;
	if (o->lr_scale != LR_SCALE_NONE)
		scale = (double)o->batch / (double)o->lr_scale_batch;
	if (o->lr_scale == LR_SCALE_SQRT)
		scale = sqrt(scale);
	lr *= scale;
	lowest *= scale;
	int64_t end = o->decay_steps ? o->decay_steps : o->steps;
	int64_t begin = o->lr_schedule == LR_WSD ? max64(o->warmup, end - o->wsd_decay)
						 : o->warmup;
	int64_t done = step - 1;
	if (done < o->warmup)
		return lr * (double)(done + 1) / (double)(o->warmup + 1);
	if (done < begin || o->lr_schedule == LR_CONSTANT)
		return lr;
	if (done >= end)
		return lowest;
	double x = (double)(done - begin) / (double)(end - begin);
	return lowest + decay_factor(o, x) * (lr - lowest);
}

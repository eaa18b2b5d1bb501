/* Event files of TensorBoard: run/tfevents.c reads them. */
#include "logs/logs_internal.h"
#include "run/tfevents.h"

static void take_scalar(
	void *to, int64_t step, double wall, const char *tag, size_t n, double v)
{
	struct build *b = to;
	b->n_taken++;
	build_set(b, step, (struct span){tag, n}, v);
	build_clock(b, step, wall);
}

static void take_restart(void *to, int64_t step)
{
	build_rewind(to, step);
}

bool is_tensorboard(struct span first)
{
	return tfevents_begins(first.p, first.n);
}

int text_tensorboard(struct build *b, struct span text, struct err *e)
{
	const struct tfevents_take take = {take_scalar, take_restart, b};
	b->exact = true;
	return tfevents_read(text.p, text.n, &take, e);
}

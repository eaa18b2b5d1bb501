/* Event files of TensorBoard, read by run/tfevents.c. */
#include "logs/logs_internal.h"
#include "run/tfevents.h"

/* Adds a scalar of an event file to a build. to: a struct build; wall: seconds since 1970. */
static void add_scalar(
	void *to, int64_t step, double wall, const char *tag, size_t n, double v)
{
	struct build *b = to;
	b->n_parsed++;
	build_set(b, step, (struct span){tag, n}, v);
	build_set_time(b, step, wall);
}

static void rewind_restart(void *to, int64_t step)
{
	build_rewind(to, step);
}

bool is_tensorboard(struct span first)
{
	return tfevents_begins(first.p, first.n);
}

int parse_tensorboard(struct build *b, struct span text, struct err *e)
{
	const struct tfevents_sink sink = {add_scalar, rewind_restart, b};
	b->exact = true;
	return tfevents_read(text.p, text.n, &sink, e);
}

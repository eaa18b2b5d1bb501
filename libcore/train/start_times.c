/* How long the start of a run takes. */
#include "train/start_times.h"

void start_times_add(struct start_times *s, enum start_phase phase)
{
	double now = clock_seconds();
	s->seconds[phase] += now - s->last;
	s->last = now;
}

void start_times_print(const struct start_times *s, struct str *out)
{
	static const char *const names[START_PHASES] = {"program", "data", "device",
		"plan", "self-test", "memory", "weights", "files", "algorithms"};
	str_printf(out, "start: %.2f s", s->last - s->began);
	for (int i = 0; i < START_PHASES; i++)
		str_printf(out, "%s %s %.2f", i ? "," : ":", names[i], s->seconds[i]);
}

/* Schedules: what a rank does in a step, as data. */
#include "parallel/parallel.h"

int64_t schedule_make(int64_t begin, int64_t end, struct action **out)
{
	int64_t n = 0;
	*out = xcalloc((size_t)(2 * (end - begin)) + 1, sizeof(**out));
	for (int64_t m = begin; m < end; m++) {
		(*out)[n++] = (struct action){ACTION_FORWARD, m, 0};
		(*out)[n++] = (struct action){ACTION_BACKWARD, m, 0};
	}
	return n;
}

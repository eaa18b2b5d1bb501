/* The shares of units in the micro-batches of a step, for --deal speed. */
#include "engine/shares.h"

int64_t shares_units(const struct microbatches *mb)
{
	return mb->ranks / mb->unit_ranks;
}

int64_t shares_turns(const struct microbatches *mb)
{
	return mb->n_micro / mb->unit_ranks;
}

int64_t shares_max_turns(const struct microbatches *mb)
{
	int64_t units = shares_units(mb), turns = shares_turns(mb);
	return min64(2 * ceil_div(turns, units), turns - (units - 1));
}

void shares_evenly(const struct microbatches *mb, int64_t *begin)
{
	int64_t units = shares_units(mb);
	for (int64_t u = 0; u <= units; u++)
		begin[u] = part_begin(shares_turns(mb), units, u);
}

void shares_by_speed(const struct microbatches *mb, const int64_t *time, int64_t *begin)
{
	int64_t units = shares_units(mb), max = shares_max_turns(mb);
	int64_t *count = begin + 1; /* until they are added up */
	for (int64_t u = 0; u < units; u++)
		count[u] = 1;
	for (int64_t left = shares_turns(mb) - units; left > 0; left--) {
		int64_t first = -1;
		for (int64_t u = 0; u < units; u++)
			if (count[u] < max &&
				(first < 0 || (count[u] + 1) * time[u] <
						      (count[first] + 1) * time[first]))
				first = u;
		count[first]++;
	}
	begin[0] = 0;
	for (int64_t u = 0; u < units; u++)
		begin[u + 1] += begin[u];
}

int64_t shares_span(
	const struct microbatches *mb, const int64_t *time, const int64_t *begin)
{
	int64_t span = 0;
	for (int64_t u = 0; u < shares_units(mb); u++)
		span = max64(span, (begin[u + 1] - begin[u]) * time[u]);
	return span;
}

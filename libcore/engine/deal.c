/* Micro-batches by the speed of ranks (deal.h). The assignment changes no bit: each gradient is the
 * exact sum of its leaves, on whichever rank they are computed. */
#include "engine/deal.h"

#include <math.h>
#include <stdlib.h>

#include "engine/shares.h"
#include "stats/stats.h"

static size_t table_length(const struct trainer *t)
{
	return (size_t)shares_units(&t->layout.microbatches) + 1;
}

void deal_open(struct trainer *t)
{
	struct trainer_deal *x = &t->deal;
	*x = (struct trainer_deal){.slowest = (double)NAN, .warned = -1};
	if (!t->layout.begin)
		return;
	x->fetched = xcalloc(table_length(t), sizeof(*x->fetched));
	x->wanted = xcalloc(table_length(t), sizeof(*x->wanted));
	shares_evenly(&t->layout.microbatches, x->wanted);
}

void deal_close(struct trainer_deal *x)
{
	free(x->fetched);
	free(x->wanted);
}

struct microbatches deal_fetch(struct trainer *t)
{
	struct microbatches mb = t->layout.microbatches;
	struct trainer_deal *x = &t->deal;
	if (!x->wanted)
		return mb;
	memcpy(x->fetched, x->wanted, table_length(t) * sizeof(*x->fetched));
	mb.begin = x->fetched;
	return mb;
}

void deal_begin_step(struct trainer *t)
{
	size_t n_bytes = table_length(t) * sizeof(*t->layout.begin);
	if (!t->deal.wanted || !memcmp(t->layout.begin, t->deal.fetched, n_bytes))
		return;
	memcpy(t->layout.begin, t->deal.fetched, n_bytes);
	trainer_set_turns(t);
	store_set_turns(t->store);
}

/* ---- times ----------------------------------------------------------------------- */

/* Returns the seconds per micro-batch of this rank in the last step, without waits. */
static double measure(const struct trainer *t)
{
	const struct pipe *x = &t->pipe;
	double seconds = x->forward + x->backward - (t->d.discrete ? 0 : x->blocked);
	return seconds /
	       (double)microbatches_own(&t->layout.microbatches, t->layout.data_rank);
}

/* Returns this rank's median time per micro-batch, in nanoseconds: single slow steps, which cannot
 * be foreseen, do not count. */
static int64_t median_time(struct trainer_deal *x)
{
	return (int64_t)fmin(fmax(1, median(x->seconds, DEAL_EVERY) * 1e9), 1e13);
}

static int unit_of_rank(const struct trainer *t, int rank)
{
	return layout_data_rank(t->mesh.degree, rank) / t->layout.microbatches.unit_ranks;
}

/* The times of all units; equal on all ranks. */
struct unit_times {
	int64_t *time; /* [units], ns per micro-batch: of the slowest rank of the unit */
	int *rank;     /* [units]: that rank */
	int n;
	int64_t median; /* median over the units, the lower one if their number is even */
};

/* Exchanges the times of all ranks. Collective. */
static struct unit_times exchange_times(struct trainer *t)
{
	int ranks = t->world->size, units = (int)shares_units(&t->layout.microbatches);
	struct unit_times x = {.n = units,
		.time = xcalloc((size_t)units, sizeof(*x.time)),
		.rank = xcalloc((size_t)units, sizeof(*x.rank))};
	scoped_ptr int64_t *all = xcalloc((size_t)ranks, sizeof(*all));
	scoped_ptr int64_t *sorted = xcalloc((size_t)units, sizeof(*sorted));
	all[t->world->rank] = median_time(&t->deal);
	comm_sum_i64(t->world, all, ranks);
	for (int r = 0; r < ranks; r++) {
		int u = unit_of_rank(t, r);
		if (all[r] <= x.time[u])
			continue;
		x.time[u] = all[r];
		x.rank[u] = r;
	}
	memcpy(sorted, x.time, (size_t)units * sizeof(*sorted));
	qsort(sorted, (size_t)units, sizeof(*sorted), compare_int64);
	x.median = sorted[(units - 1) / 2];
	return x;
}

static void unit_times_release(struct unit_times *x)
{
	free(x->time);
	free(x->rank);
}

/* ---- decisions ------------------------------------------------------------------- */

/* Appends the slowest rank of a unit, its host, and its time. Collective. */
static void describe_unit(
	struct trainer *t, const struct unit_times *x, int unit, struct str *out)
{
	int rank = x->rank[unit], first = t->o.resolved.worker * t->world->size;
	scoped_str host = {0};
	str_puts(&host, comm_place()->host);
	comm_bcast_str(t->world, &host, rank);
	str_printf(out, "rank %d (host %s) takes %.2f times the median", first + rank,
		host.s, (double)x->time[unit] / (double)x->median);
}

static int slowest_unit(const struct unit_times *x)
{
	int slowest = 0;
	for (int u = 0; u < x->n; u++)
		if (x->time[u] > x->time[slowest])
			slowest = u;
	return slowest;
}

/* Returns the unit that a change is about: the slowest one if it is slow and gets fewer, else the
 * unit whose number changes most. */
static int main_change(const struct unit_times *x, const int64_t *old, const int64_t *new)
{
	const double SLOW = 1.1;
	int slowest = slowest_unit(x), most = 0;
	int64_t largest = -1;
	for (int u = 0; u < x->n; u++) {
		int64_t change = new[u + 1] - new[u] - (old[u + 1] - old[u]);
		if (u == slowest && change < 0 &&
			(double)x->time[u] > SLOW * (double)x->median)
			return u;
		if (llabs(change) > largest) {
			largest = llabs(change);
			most = u;
		}
	}
	return most;
}

/* Deals the micro-batches anew if a step then takes at least 3 % less time: measured times vary,
 * and each change has a cost. Sets r->dealt to a text about a change. Collective. */
static void deal_anew(
	struct trainer *t, const struct unit_times *times, struct step_result *r)
{
	const double MIN_GAIN = 0.03;
	const struct microbatches *mb = &t->layout.microbatches;
	int64_t *old = t->deal.wanted;
	scoped_ptr int64_t *new = xcalloc(table_length(t), sizeof(*new));
	shares_by_speed(mb, times->time, new);
	if ((double)shares_span(mb, times->time, old) <
		(1 + MIN_GAIN) * (double)shares_span(mb, times->time, new))
		return;
	int u = main_change(times, old, new);
	str_puts(&r->dealt, "dealing: ");
	describe_unit(t, times, u, &r->dealt);
	int64_t n = new[u + 1] - new[u];
	str_printf(&r->dealt, ": %lld micro-batch%s instead of %lld", (long long)n,
		n == 1 ? "" : "es", (long long)(old[u + 1] - old[u]));
	memcpy(old, new, table_length(t) * sizeof(*new));
}

/* Sets r->slow_rank to a warning if a unit is very slow, once for each rank. Collective. */
static void warn_of_slow_unit(
	struct trainer *t, const struct unit_times *times, struct step_result *r)
{
	const double SICK = 1.5;
	struct trainer_deal *x = &t->deal;
	int u = slowest_unit(times);
	x->slowest = (double)times->time[u] / (double)times->median;
	bool is_known = x->warned == times->rank[u];
	x->warned = x->slowest > SICK ? times->rank[u] : -1;
	if (x->warned < 0 || is_known)
		return;
	describe_unit(t, times, u, &r->slow_rank);
	str_puts(&r->slow_rank, " per micro-batch; check its host");
}

void deal_end_step(struct trainer *t, struct step_result *r)
{
	struct trainer_deal *x = &t->deal;
	if (!x->wanted)
		return;
	x->seconds[x->n++] = measure(t);
	if (x->n == DEAL_EVERY) {
		struct unit_times times = exchange_times(t);
		x->n = 0;
		deal_anew(t, &times, r);
		warn_of_slow_unit(t, &times, r);
		unit_times_release(&times);
	}
	r->slowest = x->slowest;
}

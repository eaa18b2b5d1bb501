/* The device's timer: when the GPU has passed all events, the time from each event to the next is
 * added to the timer of its interval. */
#include "kernels/cuda/cuda_internal.h"

/* Destroys the events of the timer and of the stamps. */
void cuda_timer_close(struct device *d)
{
	struct timer *t = &cuda_of(d)->timer;
	for (int64_t i = 0; i < t->n_made; i++)
		cudaEventDestroy(t->mark[i].event);
	free(t->mark);
	struct stamps *s = &cuda_of(d)->stamps;
	for (uint64_t i = 0; i < s->n_made; i++)
		cudaEventDestroy(s->event[i]);
	free(s->event);
}

/* Records an event at which the phase `what` begins; does nothing while capturing. */
void cuda_timer_start(struct device *d, enum device_timer what)
{
	struct timer *t = &cuda_of(d)->timer;
	if (cuda_graph_capturing(d))
		return;
	if (t->n == t->n_made) {
		t->mark = (struct timer_mark *)xrealloc(
			t->mark, (size_t)(t->n + 1) * sizeof(*t->mark));
		cuda_check(d, cudaEventCreate(&t->mark[t->n].event), "events");
		t->n_made++;
	}
	struct timer_mark *m = &t->mark[t->n++];
	m->what = what;
	cuda_check(d, cudaEventRecord(m->event, cuda_stream(d)), "events");
}

/* Gets the seconds of each phase, unless NULL, and forgets all events of the timer. */
void cuda_timer_read(struct device *d, double seconds[N_DEVICE_TIMERS])
{
	struct timer *t = &cuda_of(d)->timer;
	float ms;
	for (int i = 0; seconds && i < N_DEVICE_TIMERS; i++)
		seconds[i] = 0;
	for (int64_t i = 0; seconds && i + 1 < t->n; i++) {
		cuda_check(d,
			cudaEventElapsedTime(&ms, t->mark[i].event, t->mark[i + 1].event),
			"events");
		seconds[t->mark[i].what] += (double)ms * 1e-3;
	}
	t->n = 0;
}

/* Records the next event of the stamps in the current stream. */
static void add_stamp(struct device *d, struct stamps *s)
{
	if (s->n == s->n_made) {
		s->event = (cudaEvent_t *)xrealloc(
			s->event, (size_t)(s->n + 1) * sizeof(*s->event));
		cuda_check(d, cudaEventCreate(&s->event[s->n]), "events");
		s->n_made++;
	}
	cuda_check(d, cudaEventRecord(s->event[s->n++], cuda_stream(d)), "events");
}

/* Adds a stamp to the current stream and returns its number; 0 while capturing. The first call
 * waits for an event, to get the event's time by the host's clock. */
uint64_t cuda_stamp(struct device *d)
{
	struct stamps *s = &cuda_of(d)->stamps;
	if (cuda_graph_capturing(d))
		return 0;
	if (!s->n) {
		add_stamp(d, s);
		cuda_await(d, s->event[0], "events");
		s->begun = clock_seconds();
	}
	add_stamp(d, s);
	return s->n;
}

/* Returns the time by the host's clock at which the device passed a stamp. */
double cuda_stamp_time(struct device *d, uint64_t stamp)
{
	const struct stamps *s = &cuda_of(d)->stamps;
	float ms = 0;
	BUG_ON(!stamp || stamp > s->n);
	cuda_check(
		d, cudaEventElapsedTime(&ms, s->event[0], s->event[stamp - 1]), "events");
	return s->begun + 1e-3 * (double)ms;
}

void cuda_stamps_clear(struct device *d)
{
	cuda_of(d)->stamps.n = 0;
}

/* Injected faults: slow ranks, corrupt data; flips.c has flipped bits. */
#include "train/faults.h"

enum { RANDOM_RANK = -1 };

/* Removes "/micro" from the end of a text. Returns true if it was there. */
static bool strip_per_micro(char *text)
{
	char *slash = strchr(text, '/');
	bool found = slash && !strcmp(slash, "/micro");
	if (found)
		*slash = 0;
	return found;
}

/* Parses "RANK:MS", with "/micro" and ":PROBABILITY" if given. */
static int parse_delay(const char *text, struct fault_delay *d, struct err *e)
{
	char *words = xstrdup(text), *rest = words, *rank = strsep(&rest, ":");
	char none[] = "", *ms = rest ? strsep(&rest, ":") : none;
	const char *odds = rest ? rest : "1";
	d->per_micro = strip_per_micro(ms);
	bool ok = !parse_double(ms, &d->ms) && d->ms >= 0 && d->ms < 1e9 &&
		  !parse_double(odds, &d->probability) && d->probability >= 0 &&
		  d->probability <= 1;
	int64_t n = RANDOM_RANK;
	if (strcmp(rank, "random"))
		ok = ok && !parse_int(rank, &n) && n >= 0 && n < INT32_MAX;
	d->rank = (int)n;
	free(words);
	return ok ? 0
		  : err_set(e, EX_USAGE,
			    "--inject-delay '%s': expected RANK:MS or RANK:MS:PROBABILITY, "
			    "where MS may end with /micro; RANK may be random, for a random "
			    "rank in every step",
			    text);
}

int faults_parse_delays(
	const struct strs *texts, struct fault_delay **list, int *n, struct err *e)
{
	*n = (int)texts->n;
	*list = xcalloc((size_t)*n + 1, sizeof(**list));
	for (int i = 0; i < *n; i++)
		if (parse_delay(texts->v[i], &(*list)[i], e))
			return -1;
	return 0;
}

double faults_delay_ms(const struct fault_delay *list, int n, uint64_t seed, int64_t step,
	int rank, int ranks, bool per_micro)
{
	double ms = 0;
	for (int i = 0; i < n; i++) {
		const struct fault_delay *s = &list[i];
		struct philox_key key = philox_key(seed, PHILOX_STRAGGLE, (uint64_t)step);
		struct philox_block b = philox(key, (uint32_t)i, 0, 0, 0);
		double random = philox_uniform64(b.x[0], b.x[1]);
		int slow = s->rank == RANDOM_RANK ? (int)(random * ranks) : s->rank;
		if (slow == rank && s->per_micro == per_micro &&
			philox_uniform64(b.x[2], b.x[3]) < s->probability)
			ms += s->ms;
	}
	return ms;
}

/* Waits, and polls like computation, so that communication makes progress. */
static void wait_and_poll(double ms)
{
	double until = clock_seconds() + ms / 1e3, left;
	while (ms > 0 && (left = until - clock_seconds()) > 0) {
		clock_sleep(left < 5e-4 ? left : 5e-4);
		comm_poll();
	}
}

/* Parses WORKER:FIRST:LAST, a worker and its steps with wrong batches. NULL: none. */
static int parse_corruption(const char *text, struct fault_corruption *c, struct err *e)
{
	*c = (struct fault_corruption){.worker = -1};
	if (!text)
		return 0;
	char *words = xstrdup(text), *rest = words, *worker = strsep(&rest, ":");
	const char *first = rest ? strsep(&rest, ":") : "";
	bool ok = rest && !parse_int(worker, &c->worker) && c->worker >= 0 &&
		  !parse_int(first, &c->first) && c->first > 0 &&
		  !parse_int(rest, &c->last) && c->last >= c->first;
	free(words);
	return ok ? 0
		  : err_set(e, EX_USAGE,
			    "--corrupt-batch '%s': expected WORKER:FIRST:LAST", text);
}

int faults_open(struct faults *f, const struct train_opts *o, int ranks, struct err *e)
{
	int64_t workers = max64(1, o->edit.workers);
	*f = (struct faults){.delays = NULL};
	if (faults_parse_delays(&o->inject_delay, &f->delays, &f->n_delays, e) ||
		flips_open(&f->flips, o, (int)workers * ranks, e) ||
		parse_corruption(o->corrupt_batch, &f->corruption, e))
		return -1;
	for (int i = 0; i < f->n_delays; i++)
		if (f->delays[i].rank >= workers * ranks)
			return err_set(e, EX_USAGE,
				"--inject-delay: rank %d does not exist",
				f->delays[i].rank);
	if (f->corruption.worker >= workers)
		return err_set(e, EX_USAGE, "--corrupt-batch: worker %lld does not exist",
			(long long)f->corruption.worker);
	return 0;
}

void faults_close(struct faults *f)
{
	free(f->delays);
	flips_release(&f->flips);
}

/* Fills a window with n random tokens; `sample` is its number in the run. */
static void random_window(
	int32_t *window, int64_t n, int64_t vocab, uint64_t seed, int64_t sample)
{
	struct philox_key key = philox_key(seed, PHILOX_GARBLE, (uint64_t)sample);
	for (int64_t i = 0; i < n; i++) {
		struct philox_block b = philox(key, (uint32_t)i, 0, 0, 0);
		double u = philox_uniform64(b.x[0], b.x[1]);
		window[i] = (int32_t)min64(vocab - 1, (int64_t)(u * (double)vocab));
	}
}

/* Returns the delay that --inject-delay specifies for this rank in the next step. */
static double delay_ms(const struct faults *f, const struct trainer *t, bool per_micro)
{
	int ranks = t->world->size;
	return faults_delay_ms(f->delays, f->n_delays, (uint64_t)t->o.seed, t->step + 1,
		t->o.resolved.worker * ranks + t->world->rank,
		ranks * (int)max64(1, t->o.edit.workers), per_micro);
}

static void delay_micro_batch(void *arg)
{
	const struct faults *f = arg;
	wait_and_poll(f->micro_ms);
}

/* Waits as long as --inject-delay specifies for this rank and step; serves other ranks meanwhile.
 * Prepares the delay of each micro-batch. */
static void inject_delays(struct faults *f, struct trainer *t)
{
	wait_and_poll(delay_ms(f, t, false));
	f->micro_ms = delay_ms(f, t, true);
	t->pipe.delay = f->micro_ms > 0 ? delay_micro_batch : NULL;
	t->pipe.delay_with = f;
}

/* Allocates random windows that replace this rank's of the step; NULL: none are requested. */
static int32_t *corrupt_windows(const struct faults *f, const struct trainer *t)
{
	const struct fault_corruption *c = &f->corruption;
	const struct pipe_input in = step_input(t, NULL);
	int64_t step = t->step + 1, b = t->o.micro_batch, len = t->model.c.context + 1;
	if (c->worker != t->o.resolved.worker || step < c->first || step > c->last)
		return NULL;
	int32_t *windows = xcalloc((size_t)(in.n * b * len) + 1, sizeof(*windows));
	for (int64_t i = 0; i < in.n * b; i++) {
		int64_t micro = microbatches_index(in.microbatches, in.data_rank, i / b);
		random_window(windows + i * len, len, t->data.set->tokenizer.vocab.n,
			(uint64_t)t->o.seed,
			t->samples + in.first_sample + micro * b + i % b);
	}
	return windows;
}

void faults_step(struct faults *f, struct trainer *t, const struct step_votes *votes,
	struct step_result *r)
{
	struct step_data data;
	step_load(t, &data);
	scoped_ptr int32_t *corrupted = corrupt_windows(f, t);
	const int32_t *windows = corrupted ? corrupted : data.windows;
	inject_delays(f, t);
	if (f->flips.n)
		flips_step(&f->flips, t, windows, votes, r);
	else
		step_run_on(t, windows, votes, r);
	r->data = data.waited;
	step_data_free(&data);
}

/* Prefetching of samples by a thread. Each rank reads its own samples, or some ranks read for all
 * ranks and send the samples. Only the main thread sends, from a background function of comm. */
#include "data/data.h"

#include "comm/requests.h"

#include <pthread.h>

/* The samples of this step, of the next one, of a step that is computed again, and of an audit. */
enum { MAX_FETCHES = COMM_TAG_COUNT(LOADER) };

struct loader {
	struct loader_config c;
	unsigned tags; /* one bit per tag in use */
};

struct fetch {
	struct loader *l;
	int tag; /* below MAX_FETCHES, because a later fetch may be complete first */
	enum split split;
	struct order order;
	struct sample_run *runs; /* [size] */
	int32_t *windows;	 /* [n][context + 1], of this rank */
	/* A reader has the windows of ranks [rank_begin, rank_end). The windows of rank r begin at
	 * all + at[r]; consecutive ranks may share them. */
	int rank_begin, rank_end;
	int32_t *all;
	int64_t *at; /* [size + 1] */
	pthread_t thread;
	bool has_thread, sent;
	int read_done; /* set by the thread */
	struct err error;
	struct comm_requests requests; /* sends of a reader, else the receive */
};

int loader_reader(int rank, int size, int readers)
{
	for (int r = 0; r < readers; r++)
		if (rank < part_begin(size, readers, r + 1))
			return (int)part_begin(size, readers, r);
	return 0;
}

struct loader *loader_open(const struct loader_config *c)
{
	struct loader *l = xcalloc(1, sizeof(*l));
	l->c = *c;
	return l;
}

void loader_close(struct loader *l)
{
	BUG_ON(l && l->tags);
	free(l);
}

static int64_t window_tokens(const struct fetch *f)
{
	return f->l->c.context + 1;
}

static int64_t run_bytes(const struct fetch *f, int rank)
{
	return run_samples(&f->runs[rank]) * window_tokens(f) * (int64_t)sizeof(int32_t);
}

static bool same_run(const struct sample_run *a, const struct sample_run *b)
{
	return a->first == b->first && a->block == b->block && a->stride == b->stride &&
	       a->blocks == b->blocks;
}

static bool shares_previous_run(const struct fetch *f, int rank)
{
	return rank > f->rank_begin && same_run(&f->runs[rank], &f->runs[rank - 1]);
}

/* Reads the samples of a run into out[sample][token], and marks them. May set f->error. */
static void read_run(struct fetch *f, const struct sample_run *r, int32_t *out)
{
	for (int64_t i = 0; i < run_samples(r) && !f->error.code; i++) {
		int64_t g = r->first + i / r->block * r->stride + i % r->block;
		int64_t at = order_start(&f->order, g);
		corpus_read(
			f->l->c.corpus, f->split, at, window_tokens(f), out, &f->error);
		if (!f->error.code)
			corpus_mark(f->l->c.corpus, f->split, at, window_tokens(f), out);
		out += window_tokens(f);
	}
}

/* Reads the windows of all ranks of a reader in a thread, again if a file changed meanwhile. */
static void *read_windows(void *fetch)
{
	struct fetch *f = fetch;
	struct corpus *c = f->l->c.corpus;
	int64_t changes;
	do {
		changes = corpus_changes(c);
		for (int r = f->rank_begin; r < f->rank_end; r++)
			if (!shares_previous_run(f, r))
				read_run(f, &f->runs[r], f->all + f->at[r]);
	} while (!f->error.code && corpus_changes(c) != changes);
	__atomic_store_n(&f->read_done, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Sends the windows to the other ranks when they have been read. */
static void poll_fetch(void *fetch)
{
	struct fetch *f = fetch;
	struct comm *c = f->l->c.comm;
	if (f->sent || !__atomic_load_n(&f->read_done, __ATOMIC_ACQUIRE))
		return;
	f->sent = true;
	if (f->error.code)
		die_err(&f->error);
	for (int r = f->rank_begin; r < f->rank_end; r++)
		if (r != c->rank)
			comm_send(&f->requests, f->all + f->at[r], run_bytes(f, r), r,
				COMM_TAG(LOADER, f->tag));
	comm_start(&f->requests);
}

/* Sets f->at, the offsets of the windows of each rank. Returns the number of windows. */
static int64_t assign_offsets(struct fetch *f)
{
	int64_t n = 0;
	f->at = xcalloc((size_t)f->l->c.comm->size, sizeof(*f->at));
	for (int r = f->rank_begin; r < f->rank_end; r++) {
		bool is_shared = shares_previous_run(f, r);
		f->at[r] = is_shared ? f->at[r - 1] : n * window_tokens(f);
		n += is_shared ? 0 : run_samples(&f->runs[r]);
	}
	return n;
}

/* Starts a thread that reads the windows, and a background function that sends them. */
static void start_reading(struct fetch *f)
{
	const struct loader_config *c = &f->l->c;
	bool only_self = f->rank_end - f->rank_begin == 1;
	int64_t n = assign_offsets(f);
	f->all = only_self ? f->windows
			   : xcalloc((size_t)(n * window_tokens(f)) + 1, sizeof(*f->all));
	BUG_ON(!c->corpus);
	f->has_thread = pthread_create(&f->thread, NULL, read_windows, f) == 0;
	if (!f->has_thread)
		read_windows(f);
	if (!only_self)
		comm_background_begin(poll_fetch, f);
}

struct fetch *loader_start(struct loader *l, enum split split, const struct order *order,
	const struct sample_run *runs)
{
	struct comm *c = l->c.comm;
	struct fetch *f = xcalloc(1, sizeof(*f));
	size_t runs_bytes = (size_t)c->size * sizeof(*f->runs);
	f->l = l;
	while (l->tags & 1u << f->tag)
		f->tag++;
	BUG_ON(f->tag == MAX_FETCHES);
	l->tags |= 1u << f->tag;
	f->split = split;
	f->order = *order;
	f->runs = memcpy(xmalloc(runs_bytes), runs, runs_bytes);
	f->windows = xcalloc((size_t)run_bytes(f, c->rank) + 1, 1);
	f->requests.c = c;
	int reader = loader_reader(c->rank, c->size, l->c.readers);
	if (reader != c->rank) {
		comm_recv(&f->requests, f->windows, run_bytes(f, c->rank), reader,
			COMM_TAG(LOADER, f->tag));
		comm_start(&f->requests);
		return f;
	}
	f->rank_begin = c->rank;
	f->rank_end = c->rank + 1;
	while (f->rank_end < c->size &&
		loader_reader(f->rank_end, c->size, l->c.readers) == c->rank)
		f->rank_end++;
	start_reading(f);
	return f;
}

/* Waits for the thread. Polls, so that waiting ranks detect that this one is alive. */
static void join_thread(struct fetch *f)
{
	if (!f->has_thread)
		return;
	while (!__atomic_load_n(&f->read_done, __ATOMIC_ACQUIRE)) {
		comm_poll();
		clock_sleep(1e-4);
	}
	pthread_join(f->thread, NULL);
	f->has_thread = false;
}

const int32_t *loader_wait(struct loader *l, struct fetch *f)
{
	struct comm *c = l->c.comm;
	bool reads = f->rank_end > f->rank_begin,
	     only_self = f->rank_end - f->rank_begin == 1;
	join_thread(f);
	if (f->error.code)
		die_err(&f->error);
	if (reads && !only_self) {
		poll_fetch(f);
		comm_background_end(poll_fetch, f);
		memcpy(f->windows, f->all + f->at[c->rank],
			(size_t)run_bytes(f, c->rank));
	}
	comm_wait(&f->requests);
	return f->windows;
}

void fetch_free(struct fetch *f)
{
	f->l->tags &= ~(1u << f->tag);
	if (f->all != f->windows)
		free(f->all);
	free(f->windows);
	free(f->runs);
	free(f->at);
	comm_requests_release(&f->requests);
	free(f);
}

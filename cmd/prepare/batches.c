/* Processes all batches of a reader with several threads, each of which reads the next batch. */
#include "prepare/pipeline.h"

#include <pthread.h>

/* The state that the threads share. */
struct batch_queue {
	const struct batches *b;
	pthread_mutex_t lock; /* protects the reader and the fields below */
	double began;	      /* start of the pass, in clock_seconds() */
	int64_t first_bad;    /* the first batch with an error; INT64_MAX: none */
	struct err e;
};

struct batch_thread {
	struct batch_queue *q;
	void *worker;
	pthread_t thread;
};

/* Updates the progress bar with the bytes read and their rate. */
static void show_progress(const struct batch_queue *q)
{
	char done[NUM_TEXT], rate[NUM_TEXT], note[3 * NUM_TEXT];
	struct reader *r = q->b->reader;
	if (!q->b->bar->shown)
		return;
	double text = (double)reader_text_bytes(r), seconds = clock_seconds() - q->began;
	snprintf(note, sizeof(note), "%s, %s/s", text_bytes(done, text),
		text_bytes(rate, seconds > 0 ? text / seconds : 0));
	progress_update(
		q->b->bar, (double)reader_bytes_read(r), q->b->shows_rate ? note : NULL);
}

/* Keeps an error unless an earlier batch has one. Requires the lock. */
static void keep_first_error(struct batch_queue *q, int64_t batch, const struct err *e)
{
	if (batch >= q->first_bad)
		return;
	q->first_bad = batch;
	q->e = *e;
}

/* Reads and processes batches until the end. The lock is held from a failed read until
 * its error is kept, so that no other thread reads on and keeps a later error. */
static void *process_batches(void *arg)
{
	struct batch_thread *t = arg;
	struct batch_queue *q = t->q;
	struct batch batch = {0};
	pthread_mutex_lock(&q->lock);
	for (int rc = 1; rc > 0 && q->first_bad == INT64_MAX;) {
		struct err e = {0};
		rc = reader_next(q->b->reader, &batch, &e);
		show_progress(q);
		if (rc > 0) {
			pthread_mutex_unlock(&q->lock);
			rc = q->b->work(t->worker, &batch, &e) ? -1 : 1;
			pthread_mutex_lock(&q->lock);
		}
		if (rc < 0)
			keep_first_error(q, batch.number, &e);
	}
	pthread_mutex_unlock(&q->lock);
	batch_release(&batch);
	return NULL;
}

int64_t batches_run(
	const struct batches *b, void *workers, size_t worker_bytes, int n, struct err *e)
{
	enum { STACK = 1 << 20 };
	struct batch_queue q = {.b = b,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.began = clock_seconds(),
		.first_bad = INT64_MAX};
	scoped_ptr struct batch_thread *threads = xcalloc((size_t)n, sizeof(*threads));
	pthread_attr_t attributes;
	int started = 1;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK);
	for (int i = 0; i < n; i++)
		threads[i] = (struct batch_thread){
			.q = &q, .worker = (char *)workers + (size_t)i * worker_bytes};
	/* (if a thread cannot be started, the others do its work) */
	while (started < n && !pthread_create(&threads[started].thread, &attributes,
				      process_batches, &threads[started]))
		started++;
	process_batches(&threads[0]);
	for (int i = 1; i < started; i++)
		pthread_join(threads[i].thread, NULL);
	pthread_attr_destroy(&attributes);
	if (q.first_bad < INT64_MAX)
		*e = q.e;
	return q.first_bad;
}

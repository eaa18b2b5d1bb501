/* Processes all batches of a reader with several threads, each of which takes the next batch. */
#include "prepare/pipeline.h"

#include <pthread.h>

/* What the threads share. */
struct queue {
	const struct batches *b;
	pthread_mutex_t lock; /* of the reader and of the fields below */
	double began;
	int64_t bad; /* the first batch with an error; INT64_MAX: none */
	struct err e;
};

struct batch_thread {
	struct queue *q;
	void *worker;
	pthread_t thread;
};

static void show_progress(const struct queue *q)
{
	char done[NUM_TEXT], rate[NUM_TEXT], note[3 * NUM_TEXT];
	struct reader *r = q->b->reader;
	if (!q->b->bar->shown)
		return;
	double text = (double)reader_text_bytes(r), seconds = clock_seconds() - q->began;
	snprintf(note, sizeof(note), "%s, %s/s", text_bytes(done, text),
		text_bytes(rate, seconds > 0 ? text / seconds : 0));
	progress_update(
		q->b->bar, (double)reader_done(r), q->b->shows_rate ? note : NULL);
}

/* Keeps the error of the first batch. Requires the lock. */
static void note_error(struct queue *q, int64_t batch, const struct err *e)
{
	if (batch >= q->bad)
		return;
	q->bad = batch;
	q->e = *e;
}

/* Reads and processes batches until the end. An error of the reader is noted before another thread
 * can call the reader again and get a later error. */
static void *process_batches(void *arg)
{
	struct batch_thread *t = arg;
	struct queue *q = t->q;
	struct batch batch = {0};
	pthread_mutex_lock(&q->lock);
	for (int rc = 1; rc > 0 && q->bad == INT64_MAX;) {
		struct err e = {0};
		rc = reader_next(q->b->reader, &batch, &e);
		show_progress(q);
		if (rc > 0) {
			pthread_mutex_unlock(&q->lock);
			rc = q->b->work(t->worker, &batch, &e) ? -1 : 1;
			pthread_mutex_lock(&q->lock);
		}
		if (rc < 0)
			note_error(q, batch.number, &e);
	}
	pthread_mutex_unlock(&q->lock);
	batch_free(&batch);
	return NULL;
}

int64_t batches_run(
	const struct batches *b, void *workers, size_t worker_bytes, int n, struct err *e)
{
	enum { STACK = 1 << 20 };
	struct queue q = {.b = b,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.began = clock_seconds(),
		.bad = INT64_MAX};
	scoped_ptr struct batch_thread *all = xcalloc((size_t)n, sizeof(*all));
	pthread_attr_t how;
	int started = 1;
	pthread_attr_init(&how);
	pthread_attr_setstacksize(&how, STACK);
	for (int i = 0; i < n; i++)
		all[i] = (struct batch_thread){
			.q = &q, .worker = (char *)workers + (size_t)i * worker_bytes};
	/* (if a thread cannot be started, the others do its work) */
	while (started < n && !pthread_create(&all[started].thread, &how, process_batches,
				      &all[started]))
		started++;
	process_batches(&all[0]);
	for (int i = 1; i < started; i++)
		pthread_join(all[i].thread, NULL);
	pthread_attr_destroy(&how);
	if (q.bad < INT64_MAX)
		*e = q.e;
	return q.bad;
}

/* Threads that write blocks. The caller queues blocks, and when no block is free it writes one
 * from the queue itself. So it works with a single thread, and the number of blocks bounds the
 * memory */
#include "prepare/block_writer.h"
#include "prepare/pipeline.h"

#include <fcntl.h>
#include <pthread.h>

struct block_read {
	struct extent from;
	int64_t to, n_bytes; /* offset in the block; size */
};

struct out_block {
	struct out_dataset *to;
	int64_t number; /* index in the dataset */
	char *data;
	int64_t n_bytes;
	struct block_read *reads; /* pending reads into the block */
	int64_t n_reads;
	struct out_block *next; /* next in the queue or in the free list */
};

struct block_writer {
	pthread_mutex_t lock;
	pthread_cond_t queued,	  /* a block was queued, or stop was set */
		changed;	  /* a block is free, or was hashed */
	struct out_block *blocks; /* [n_blocks] */
	int n_blocks;
	struct out_block *free;
	struct out_block *first, **last; /* the queue */
	int n_busy;			 /* blocks that threads are writing */
	bool stop, failed;
	struct err e; /* error of the first block that failed */
	pthread_t *threads;
	int n_threads, n_started; /* only n_threads includes the caller's thread */
};

/* Reads the parts of a block that are still in work files, and marks them as read. */
static int read_into_block(const struct out_block *b, struct err *e)
{
	for (int64_t i = 0; i < b->n_reads; i++) {
		const struct block_read *r = &b->reads[i];
		if (file_read_at(r->from.fd, "a work file", b->data + r->to,
			    (size_t)r->n_bytes, r->from.at, e))
			return -1;
		if (r->from.pieces)
			pieces_mark_read(r->from.pieces, r->from.fd, r->n_bytes);
	}
	return 0;
}

/* Waits until all previous blocks are hashed, then adds this block to the hash of its dataset. */
static void hash_in_order(struct block_writer *w, const struct out_block *b, bool is_good)
{
	struct out_dataset *to = b->to;
	pthread_mutex_lock(&w->lock);
	while (to->n_hashed != b->number)
		pthread_cond_wait(&w->changed, &w->lock);
	pthread_mutex_unlock(&w->lock);
	if (is_good)
		hash_add(to->all, b->data, (size_t)b->n_bytes);
	pthread_mutex_lock(&w->lock);
	to->n_hashed++;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

/* Writes a block to its place in the output file, and starts writing it to the disk. */
static int write_block(const struct out_block *b, struct err *e)
{
	const struct h5_blocks *in = b->to->blocks;
	int64_t at = in->offset + b->number * in->block_rows * in->row_bytes;
	if (pwrite_all(b->to->fd, b->data, (size_t)b->n_bytes, at))
		return err_errno(e, b->to->name);
	/* (only a hint: a failure is reported when the file is synced) */
	if (b->to->syncs)
		sync_file_range(b->to->fd, at, b->n_bytes, SYNC_FILE_RANGE_WRITE);
	return 0;
}

/* Removes the first block of the queue and writes it. Requires the lock, released meanwhile. */
static void write_next_block(struct block_writer *w)
{
	struct out_block *b = w->first;
	struct err e = {0};
	bool good = !w->failed;
	w->first = b->next;
	if (!w->first)
		w->last = &w->first;
	w->n_busy++;
	pthread_mutex_unlock(&w->lock);
	good = good && !read_into_block(b, &e);
	if (good)
		b->to->blocks->xxh3[b->number] =
			hash_bytes(b->data, (size_t)b->n_bytes, 0);
	hash_in_order(w, b, good);
	good = good && !write_block(b, &e);
	pthread_mutex_lock(&w->lock);
	if (!good && !w->failed) {
		w->failed = true;
		w->e = e;
	}
	w->n_busy--;
	b->next = w->free;
	w->free = b;
	pthread_cond_broadcast(&w->changed);
}

/* Writes queued blocks until the writer stops: the main function of a thread. arg: a
 * struct block_writer. */
static void *run_thread(void *arg)
{
	struct block_writer *w = arg;
	pthread_mutex_lock(&w->lock);
	for (;;) {
		while (!w->first && !w->stop)
			pthread_cond_wait(&w->queued, &w->lock);
		if (!w->first)
			break;
		write_next_block(w);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

struct block_writer *block_writer_open(int threads)
{
	struct block_writer *w = xcalloc(1, sizeof(*w));
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->queued, NULL);
	pthread_cond_init(&w->changed, NULL);
	w->last = &w->first;
	w->n_threads = threads;
	w->threads = xcalloc((size_t)threads, sizeof(*w->threads));
	/* One block per split is filled; one per thread is written, and one is queued. */
	w->n_blocks = N_SPLITS + 2 * threads - 1;
	w->blocks = xcalloc((size_t)w->n_blocks, sizeof(*w->blocks));
	for (int i = 0; i < w->n_blocks; i++) {
		w->blocks[i].next = w->free;
		w->free = &w->blocks[i];
	}
	return w;
}

struct out_block *out_block_begin(
	struct block_writer *w, struct out_dataset *to, int64_t number, struct err *e)
{
	struct out_block *b = NULL;
	pthread_mutex_lock(&w->lock);
	while (!w->free)
		if (w->first)
			write_next_block(w);
		else
			pthread_cond_wait(&w->changed, &w->lock);
	if (w->failed) {
		*e = w->e;
	} else {
		b = w->free;
		w->free = b->next;
	}
	pthread_mutex_unlock(&w->lock);
	if (!b)
		return NULL;
	b->to = to;
	b->number = number;
	b->n_bytes = b->n_reads = 0;
	if (!b->data)
		b->data = xmalloc(H5_BLOCK_BYTES);
	return b;
}

void out_block_add(struct out_block *b, const struct extent *from, int64_t n_bytes)
{
	int64_t to = b->n_bytes;
	b->n_bytes += n_bytes;
	if (from->memory) {
		memcpy(b->data + to, from->memory + from->at, (size_t)n_bytes);
		return;
	}
	struct block_read *r = b->n_reads ? &b->reads[b->n_reads - 1] : NULL;
	if (r && r->from.fd == from->fd && r->to + r->n_bytes == to &&
		r->from.at + r->n_bytes == from->at) {
		r->n_bytes += n_bytes;
		return;
	}
	b->reads = xgrow(b->reads, b->n_reads, sizeof(*b->reads));
	b->reads[b->n_reads++] = (struct block_read){*from, to, n_bytes};
}

void out_block_end(struct block_writer *w, struct out_block *b)
{
	pthread_mutex_lock(&w->lock);
	b->next = NULL;
	*w->last = b;
	w->last = &b->next;
	if (w->n_started < w->n_threads - 1 &&
		!pthread_create(&w->threads[w->n_started], NULL, run_thread, w))
		w->n_started++;
	if (w->n_started)
		pthread_cond_signal(&w->queued);
	else
		write_next_block(w);
	pthread_mutex_unlock(&w->lock);
}

int block_writer_wait(struct block_writer *w, struct err *e)
{
	pthread_mutex_lock(&w->lock);
	while (w->first || w->n_busy)
		if (w->first)
			write_next_block(w);
		else
			pthread_cond_wait(&w->changed, &w->lock);
	bool failed = w->failed;
	if (failed)
		*e = w->e;
	pthread_mutex_unlock(&w->lock);
	return failed ? -1 : 0;
}

void block_writer_close(struct block_writer *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->failed = w->stop = true; /* queued blocks are discarded */
	pthread_cond_broadcast(&w->queued);
	pthread_mutex_unlock(&w->lock);
	for (int i = 0; i < w->n_started; i++)
		pthread_join(w->threads[i], NULL);
	for (int i = 0; i < w->n_blocks; i++) {
		free(w->blocks[i].data);
		free(w->blocks[i].reads);
	}
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->queued);
	pthread_cond_destroy(&w->changed);
	free(w->threads);
	free(w->blocks);
	free(w);
}

/* Writes checkpoints: rank 0 creates the file with the final shapes through HDF5, then all ranks
 * write their blocks at their offsets, then rank 0 adds the checksums and renames the file. Only
 * the second part takes long. It needs neither HDF5 nor MPI, so a thread can do it from a copy of
 * the blocks while the program continues. */
#include "base/file.h"
#include "ckpt/ckpt.h"

#include "comm/collective.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#define F(field) offsetof(struct ckpt_info, field)
const struct h5_field ckpt_fields[] = {
	{"format", H5_TEXT, F(format), false, "\"pt-checkpoint\""},
	{"version", H5_I64, F(version), false,
		"version of the format: 2 if tensors were frozen, else 1"},
	{"created_by", H5_TEXT, F(created_by), false, "the program that wrote the file"},
	{"step", H5_I64, F(step), false, "optimizer steps done"},
	{"samples", H5_I64, F(samples), false,
		"samples consumed: the state of the data loader"},
	{"tokens", H5_I64, F(tokens), false, "tokens consumed"},
	{"loss", H5_F64, F(loss), false, "training loss of the last step; NaN: none"},
	{"val_loss", H5_F64, F(val_loss), false, "the last validation loss; NaN: none"},
	{"best_val_loss", H5_F64, F(best_val_loss), false,
		"the lowest validation loss so far; NaN: none"},
	{"loss_scale", H5_F64, F(loss_scale), true,
		"fp16: the loss scale of the next step; 0: none"},
	{"loss_scale_good", H5_I64, F(loss_scale_good), true,
		"fp16: good steps since the loss scale changed"},
	{"skipped_steps", H5_I64, F(skipped_steps), true,
		"steps without an update: overflow in fp16, no token that counts, or "
		"steps of faster workers"},
	{"param_hash", H5_U64, F(param_hash), false,
		"hash of the parameters, independent of the layout, as pt-ckpt hash "
		"prints it"},
	{"data_hash", H5_U64, F(data_hash), false,
		"hash of the tokens and the vocabulary of the training data"},
	{"grid", H5_I64, F(grid), true,
		"exponent of the grid of sums of gradients; 0: sums of floats, in a tree"},
	{"order", H5_I64, F(order), true,
		"version of the order in which the model's activations and gradients are added "
		"up; 0: queries, keys and values were three matmuls in the backward"},
	{"workers", H5_I64, F(workers), true,
		"number of local SGD workers, each with its own file; 0: no local SGD"},
	{"worker", H5_I64, F(worker), true, "index of the worker of this file, from 0"},
	{0},
};
#undef F

struct ckpt_writing {
	struct comm *comm;
	struct durable d;
	uint64_t structure;	  /* rank 0: h5_get_written_sum() before any block */
	struct h5_blocks *blocks; /* [group][tensor] */
	int n, n_tensors;
	/* The bytes of all tensors in order are divided evenly. A writer gets the blocks that begin
	 * in its part. part_bytes, part_blocks: the part of this rank. */
	int writers;
	int64_t all_bytes, part_bytes, part_blocks;
	const char *copy; /* copy of this rank's blocks; NULL: call the source instead */
	ckpt_source *source;
	void *arg;
	const struct err *source_error;
	struct err why; /* the error of this rank's part */
	pthread_t thread;
	bool threaded;
	atomic_bool done;
};

/* ---- rank 0 creates the file ------------------------------------------------------ */

/* Returns true if dataset i of [group][tensor] is written. */
static bool is_written(const struct ckpt_write *w, int i)
{
	return i < w->n_tensors || !w->tensors[i % w->n_tensors].stateless;
}

static int64_t choose_version(const struct ckpt_write *w)
{
	for (int i = w->n_tensors; i < w->n_tensors * w->n_groups; i++)
		if (!is_written(w, i))
			return CKPT_VERSION;
	return 1;
}

/* Creates the file with all attributes, and datasets whose blocks are written later. */
static int create_structure(
	struct ckpt_writing *x, const struct ckpt_write *w, struct err *e)
{
	struct h5 *h;
	struct ckpt_info info = w->info;
	info.version = choose_version(w);
	if (h5_create(&h, x->d.tmp, e))
		return -1;
	h5_expect_links(h, w->n_tensors);
	int rc =
		h5_fields_write(h, "/", ckpt_fields, &info, e) ||
		h5_put_text(h, "/config", w->config, e) ||
		(w->origin && *w->origin && h5_put_text(h, "/origin", w->origin, e)) ||
		(w->tokenizer && tokenizer_write(w->tokenizer, h, e)) ||
		(w->numbers &&
			h5_put(h, "/edit", H5_F64, 1, &w->n_numbers, w->numbers, e)) ||
		(w->load && h5_put(h, "/router.load", H5_F64, 1, &w->n_load, w->load, e));
	for (int i = 0; i < x->n && !rc; i++) {
		const struct ckpt_tensor *t = &w->tensors[i % w->n_tensors];
		char path[128];
		snprintf(path, sizeof(path), "/%s/%s", w->groups[i / w->n_tensors],
			t->name);
		if (is_written(w, i))
			rc = h5_blocks_reserve(
				h, path, H5_F32, t->ndim, t->dims, &x->blocks[i], e);
	}
	x->structure = h5_get_written_sum(h);
	return h5_end(h, rc, e);
}

/* Sends the temporary name and the offsets of all blocks to the other ranks. */
static void share_structure(struct ckpt_writing *x, const char *path)
{
	scoped_str tmp = {0};
	if (x->comm->rank == 0)
		str_puts(&tmp, x->d.tmp);
	comm_bcast_str(x->comm, &tmp, 0);
	if (x->comm->rank)
		durable_join(&x->d, path, tmp.s);
	for (int i = 0; i < x->n; i++) {
		struct h5_blocks b = x->blocks[i];
		comm_bcast(x->comm, &b, sizeof(b), 0);
		if (x->comm->rank) {
			b.xxh3 = xcalloc((size_t)b.n_blocks, sizeof(*b.xxh3));
			x->blocks[i] = b;
		}
	}
}

/* ---- every rank writes its part --------------------------------------------------- */

/* Returns the bytes of this rank's part, and sets *begin. With one_writes, rank 0 has all. */
static int64_t part_bytes(int64_t all, const struct ckpt_write *w, int64_t *begin)
{
	int writers = w->one_writes ? 1 : w->comm->size, rank = w->comm->rank;
	*begin = rank < writers ? part_begin(all, writers, rank) : all;
	return (rank < writers ? part_begin(all, writers, rank + 1) : all) - *begin;
}

struct block {
	int tensor; /* index in x->blocks */
	int64_t number, n_bytes;
	int owner;  /* rank that writes it */
	int64_t at; /* offset in the owner's part */
};

static bool is_own_block(const struct ckpt_writing *x, const struct block *b)
{
	return b->owner == x->comm->rank;
}

/* Advances b->owner to the rank whose part contains byte `at`. */
static void advance_owner(const struct ckpt_writing *x, int64_t at, struct block *b)
{
	while (b->owner + 1 < x->writers &&
		at >= part_begin(x->all_bytes, x->writers, b->owner + 1)) {
		b->owner++;
		b->at = 0;
	}
}

/* Calls fn for each block, in order; with own_only, only for this rank's blocks. */
static void for_each_block(struct ckpt_writing *x, bool own_only,
	void (*fn)(struct ckpt_writing *x, const struct block *b, void *arg), void *arg)
{
	struct block b = {0};
	int64_t at = 0;
	for (b.tensor = 0; b.tensor < x->n; b.tensor++) {
		const struct h5_blocks *all = &x->blocks[b.tensor];
		for (b.number = 0; b.number < all->n_blocks; b.number++) {
			b.n_bytes = h5_block_bytes(all, b.number);
			advance_owner(x, at, &b);
			if (!own_only || is_own_block(x, &b))
				fn(x, &b, arg);
			at += b.n_bytes;
			b.at += b.n_bytes;
		}
	}
}

static void count_block(struct ckpt_writing *x, const struct block *b, void *arg)
{
	(void)arg;
	x->part_bytes += b->n_bytes;
	x->part_blocks++;
}

/* Counts the blocks and bytes of this rank's part. */
static void divide_blocks(struct ckpt_writing *x, const struct ckpt_write *w)
{
	x->writers = w->one_writes ? 1 : w->comm->size;
	for (int i = 0; i < x->n; i++)
		x->all_bytes += x->blocks[i].rows * x->blocks[i].row_bytes;
	for_each_block(x, true, count_block, NULL);
	BUG_ON(x->part_bytes > ckpt_copy_bytes(w));
}

/* Reads the rows of a block on the owner. Collective, unless source_threads. */
static void call_source(struct ckpt_writing *x, const struct block *b, float *rows)
{
	const struct h5_blocks *t = &x->blocks[b->tensor];
	x->source(x->arg, b->tensor / x->n_tensors, b->tensor % x->n_tensors,
		b->number * t->block_rows, b->n_bytes / t->row_bytes, b->owner, rows);
}

static void copy_block(struct ckpt_writing *x, const struct block *b, void *arg)
{
	char *copy = arg;
	call_source(x, b, is_own_block(x, b) ? (float *)(void *)(copy + b->at) : NULL);
	comm_poll();
}

static void append_block(struct ckpt_writing *x, const struct block *b, void *arg)
{
	struct block **end = arg;
	(void)x;
	*(*end)++ = *b;
}

/* Copies the blocks of this rank, with all threads. */
static void copy_in_parallel(struct ckpt_writing *x, float *copy)
{
	enum { BATCH = 64 };
	struct block *list = xcalloc((size_t)x->part_blocks, sizeof(*list)), *end = list;
	for_each_block(x, true, append_block, &end);
	for (int64_t i = 0; i < x->part_blocks; i += BATCH) {
		int64_t stop = min64(i + BATCH, x->part_blocks);
#pragma omp parallel for schedule(dynamic)
		for (int64_t k = i; k < stop; k++)
			call_source(
				x, &list[k], copy + list[k].at / (int64_t)sizeof(*copy));
		comm_poll();
	}
	free(list);
}

/* Copies this rank's blocks. Afterwards the program may change the state that the source reads. */
static void copy_part(struct ckpt_writing *x, const struct ckpt_write *w, float *copy)
{
	if (w->source_threads)
		copy_in_parallel(x, copy);
	else
		for_each_block(x, false, copy_block, copy);
	x->copy = (const char *)copy;
}

/* Blocks (of a MiB) per start of writeback, which overlaps with copying and hashing the next. */
enum { FLUSH_BLOCKS = 32 };

struct output {
	int fd;
	int64_t n_blocks; /* blocks written so far */
	float *rows;	  /* rows of one block */
};

static void set_write_error(struct ckpt_writing *x)
{
	err_errno(&x->why, x->d.path);
}

/* Writes a block. Calls the source even after an error, since it is collective. */
static void write_block(struct ckpt_writing *x, const struct block *b, void *arg)
{
	struct output *o = arg;
	struct h5_blocks *t = &x->blocks[b->tensor];
	size_t n_bytes = (size_t)b->n_bytes;
	const void *rows = x->copy ? x->copy + b->at : NULL;
	if (!x->copy) {
		if (is_own_block(x, b))
			rows = o->rows = xrealloc(o->rows, n_bytes);
		call_source(x, b, is_own_block(x, b) ? o->rows : NULL);
		comm_poll();
	}
	if (!is_own_block(x, b) || x->why.code)
		return;
	t->xxh3[b->number] = hash_bytes(rows, n_bytes, 0);
	int64_t at = t->offset + b->number * t->block_rows * t->row_bytes;
	if (pwrite_all(o->fd, rows, n_bytes, at))
		set_write_error(x);
	else if (++o->n_blocks % FLUSH_BLOCKS == 0)
		sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

/* Reads a block back from the file, and sets x->why if it differs. */
static void check_block(struct ckpt_writing *x, const struct block *b, void *arg)
{
	struct output *o = arg;
	if (!x->copy)
		comm_poll();
	if (x->why.code)
		return;
	o->rows = xrealloc(o->rows, (size_t)b->n_bytes);
	h5_block_check_written(
		&x->blocks[b->tensor], o->fd, b->number, o->rows, x->d.path, &x->why);
}

/* Writes this rank's part. With a copy it runs in a thread, so it calls neither MPI nor HDF5. */
static void write_part(struct ckpt_writing *x)
{
	struct output o = {.fd = -1};
	if (x->part_bytes)
		o.fd = durable_open(&x->d);
	if (x->part_bytes && o.fd < 0)
		set_write_error(x);
	for_each_block(x, x->copy != NULL, write_block, &o);
	if (o.fd >= 0 && !x->why.code && fsync(o.fd))
		set_write_error(x);
	for_each_block(x, true, check_block, &o);
	free(o.rows);
	if (o.fd >= 0 && close(o.fd) && !x->why.code)
		set_write_error(x);
	if (x->source_error && x->source_error->code)
		x->why = *x->source_error;
}

static void *write_in_thread(void *arg)
{
	struct ckpt_writing *x = arg;
	write_part(x);
	atomic_store(&x->done, true);
	return NULL;
}

/* Writes this rank's part, in a thread if there is a copy. The main thread gets all signals. */
static void start_writing(struct ckpt_writing *x)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	x->threaded = x->copy && !pthread_create(&x->thread, NULL, write_in_thread, x);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!x->threaded)
		write_in_thread(x);
}

/* Waits for this rank's part. Polls, so that waiting ranks detect that this one is alive. */
static void wait_for_part(struct ckpt_writing *x)
{
	while (!ckpt_write_done(x)) {
		comm_poll();
		clock_sleep(1e-3);
	}
	if (x->threaded)
		pthread_join(x->thread, NULL);
}

/* ---- rank 0 finishes the file ----------------------------------------------------- */

/* Sums the checksums over ranks: they are zero for other ranks' blocks. Collective. */
static void gather_checksums(struct ckpt_writing *x)
{
	for (int i = 0; i < x->n; i++)
		comm_run(x->comm, COLL_ALLREDUCE,
			&(struct coll_args){.recv = x->blocks[i].xxh3,
				.count = x->blocks[i].n_blocks,
				.type = COMM_U64,
				.op = COMM_SUM});
}

/* Adds the checksums of all blocks, seals the file and gives it its name. */
static int finish_file(struct ckpt_writing *x, struct err *e)
{
	struct h5 *h;
	if (h5_reopen(&h, x->d.tmp, e))
		return -1;
	h5_resume_writing(h, x->structure);
	h5_expect_links(h, x->n_tensors);
	int rc = 0;
	for (int i = 0; i < x->n && !rc; i++)
		if (x->blocks[i].n_blocks)
			rc = h5_blocks_finish(h, &x->blocks[i], e);
	return h5_finish(h, rc, e) ? -1 : durable_commit(&x->d, e);
}

/* Frees the state. Rank 0 also removes the temporary file, unless it was committed. */
static void writing_free(struct ckpt_writing *x)
{
	if (x->comm->rank == 0)
		durable_abort(&x->d); /* (no effect after a commit) */
	else
		durable_forget(&x->d);
	for (int i = 0; i < x->n; i++)
		h5_blocks_release(&x->blocks[i]);
	free(x->blocks);
	free(x);
}

/* ---- sizes, and the complete write ------------------------------------------------ */

static int count_tensor_groups(const struct ckpt_write *w, int tensor)
{
	return w->tensors[tensor].stateless ? 1 : w->n_groups;
}

int64_t ckpt_estimate_bytes(const struct ckpt_write *w)
{
	/* Bytes of HDF5 metadata per file, and for the two datasets of a tensor. */
	enum { PER_FILE = 12288, PER_TENSOR = 704 };
	scoped_str vocabulary = {0};
	if (w->tokenizer)
		tokenizer_pack(w->tokenizer, &vocabulary);
	if (w->tokenizer && w->tokenizer->chat_template)
		str_puts(&vocabulary, w->tokenizer->chat_template);
	int64_t n = PER_FILE + (int64_t)(strlen(w->config) + vocabulary.len) +
		    (w->origin ? (int64_t)strlen(w->origin) : 0) +
		    (w->n_numbers + w->n_load) * (int64_t)sizeof(double);
	for (int i = 0; i < w->n_tensors; i++) {
		int64_t data = ckpt_size(&w->tensors[i]) * (int64_t)sizeof(float);
		n += count_tensor_groups(w, i) * (PER_TENSOR + data + data / 65536);
	}
	return n;
}

int64_t ckpt_copy_bytes(const struct ckpt_write *w)
{
	int64_t all = 0, longest = H5_BLOCK_BYTES, begin;
	for (int i = 0; i < w->n_tensors; i++) {
		int64_t n_bytes = ckpt_size(&w->tensors[i]) * (int64_t)sizeof(float);
		int64_t row = ckpt_row_size(&w->tensors[i]) * (int64_t)sizeof(float);
		all += count_tensor_groups(w, i) * n_bytes;
		longest = max64(longest, row);
	}
	int64_t n_bytes = part_bytes(all, w, &begin);
	/* (a block belongs to the part in which it begins) */
	return n_bytes ? min64(n_bytes + longest, all - begin) : 0;
}

int ckpt_write_begin(
	struct ckpt_writing **out, const struct ckpt_write *w, float *copy, struct err *e)
{
	bool is_root = w->comm->rank == 0;
	struct err error = {0};
	if (is_root)
		file_check_space(w->path, ckpt_estimate_bytes(w), &error);
	if (comm_agree(w->comm, &error)) {
		*e = error;
		return -1;
	}
	struct ckpt_writing *x = xcalloc(1, sizeof(*x));
	*x = (struct ckpt_writing){.comm = w->comm,
		.n = w->n_tensors * w->n_groups,
		.n_tensors = w->n_tensors,
		.source = w->source,
		.arg = w->with,
		.source_error = w->source_error};
	x->blocks = xcalloc((size_t)x->n, sizeof(*x->blocks));
	if (is_root && !durable_begin(&x->d, w->path, &error))
		create_structure(x, w, &error);
	if (comm_agree(w->comm, &error)) {
		writing_free(x);
		*e = error;
		return -1;
	}
	share_structure(x, w->path);
	divide_blocks(x, w);
	if (copy)
		copy_part(x, w, copy);
	start_writing(x);
	*out = x;
	return 0;
}

bool ckpt_write_done(const struct ckpt_writing *x)
{
	return atomic_load(&x->done);
}

int ckpt_write_end(struct ckpt_writing *x, struct err *e)
{
	wait_for_part(x);
	struct err error = x->why;
	int rc = comm_agree(x->comm, &error);
	if (!rc) {
		gather_checksums(x);
		if (x->comm->rank == 0)
			finish_file(x, &error);
		rc = comm_agree(x->comm, &error);
	}
	writing_free(x);
	if (rc)
		*e = error;
	return rc;
}

int ckpt_write(const struct ckpt_write *w, struct err *e)
{
	struct ckpt_writing *x;
	return ckpt_write_begin(&x, w, NULL, e) || ckpt_write_end(x, e) ? -1 : 0;
}

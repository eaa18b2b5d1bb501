/*
 * Writing: rank 0 makes the file in its full shape through HDF5, then all ranks write
 * their blocks at their place, then rank 0 adds the checksums, seals it and gives it its
 * name.
 */
#include "ckpt/ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const ckpt_group_names[N_CKPT_GROUPS] = {"model", "exp_avg", "exp_avg_sq"};

#define F(field) offsetof(struct ckpt_info, field)
const struct h5_field ckpt_fields[] = {
	{"format", H5_TEXT, F(format), false, "\"pt-checkpoint\""},
	{"version", H5_I64, F(version), false, "version of the format: 1"},
	{"created_by", H5_TEXT, F(created_by), false, "the program that wrote the file"},
	{"step", H5_I64, F(step), false, "optimizer steps done"},
	{"samples", H5_I64, F(samples), false,
		"samples consumed: the whole state of the data loader"},
	{"tokens", H5_I64, F(tokens), false, "tokens consumed"},
	{"loss", H5_F64, F(loss), false,
		"training loss of the last step; not a number: none"},
	{"val_loss", H5_F64, F(val_loss), false,
		"the last validation loss; not a number: none"},
	{"best_val_loss", H5_F64, F(best_val_loss), false,
		"the least validation loss so far; not a number: none"},
	{"loss_scale", H5_F64, F(loss_scale), true,
		"fp16: what the loss of the next step is multiplied by; 0: none"},
	{"loss_scale_good", H5_I64, F(loss_scale_good), true,
		"fp16: good steps since that changed"},
	{"skipped_steps", H5_I64, F(skipped_steps), true,
		"fp16: steps that overflowed, which updated nothing"},
	{"param_hash", H5_U64, F(param_hash), false,
		"hash of the parameters that no layout changes, as pt-ckpt hash prints "
		"it"},
	{"data_hash", H5_U64, F(data_hash), false,
		"hash of the tokens and the vocabulary that were trained on"},
	{0},
};
#undef F

struct job {
	const struct ckpt_write *w;
	struct durable d;
	struct h5_blocks *blocks; /* [group][tensor] */
	int n;
	int64_t n_blocks;
};

static int make_structure(struct job *j, struct err *e)
{
	const struct ckpt_write *w = j->w;
	struct h5 *h;
	if (h5_create(&h, j->d.tmp, e))
		return -1;
	int rc = h5_fields_write(h, "/", ckpt_fields, &w->info, e) ||
		 h5_put_text(h, "/config", w->config, e) ||
		 (w->tokenizer && tokenizer_write(w->tokenizer, h, e));
	for (int i = 0; i < j->n && !rc; i++) {
		const struct ckpt_tensor *t = &w->tensors[i % w->n_tensors];
		char path[128];
		snprintf(path, sizeof(path), "/%s/%s", ckpt_group_names[i / w->n_tensors],
			t->name);
		rc = h5_blocks_reserve(
			h, path, H5_F32, t->ndim, t->dims, &j->blocks[i], e);
	}
	for (int i = 0; i < j->n && !rc; i++)
		rc = h5_blocks_place(h, &j->blocks[i], e);
	return h5_end(h, rc, e);
}

/* The other ranks learn where everything is. */
static void share_structure(struct job *j)
{
	struct comm *c = j->w->comm;
	for (int i = 0; i < j->n; i++) {
		struct h5_blocks b = j->blocks[i];
		comm_bcast(c, &b, sizeof(b), 0);
		if (c->rank) {
			b.xxh3 = xcalloc((size_t)b.n_blocks, sizeof(*b.xxh3));
			j->blocks[i] = b;
		}
		j->n_blocks += b.n_blocks;
	}
}

/* Blocks (of a MiB) after which the disk is told to begin, so that it is at work while the
 * next ones are copied and hashed. */
enum { FLUSH_BLOCKS = 32 };

/* Blocks are dealt out by number; or rank 0 writes all. */
static int write_blocks(struct job *j, struct err *e)
{
	struct comm *c = j->w->comm;
	int writers = j->w->one_writes ? 1 : c->size;
	if (c->rank >= writers)
		return 0;
	int64_t begin = part_begin(j->n_blocks, writers, c->rank);
	int64_t end = part_begin(j->n_blocks, writers, c->rank + 1);
	int fd = open(j->d.tmp, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, EX_IOERR, "%s: %s", j->d.tmp, strerror(errno));
	int64_t number = 0;
	int rc = 0;
	float *rows = NULL;
	for (int i = 0; i < j->n && !rc; i++) {
		struct h5_blocks *b = &j->blocks[i];
		rows = xrealloc(rows, (size_t)(b->block_rows * b->row_bytes));
		for (int64_t k = 0; k < b->n_blocks && !rc; k++, number++) {
			if (number < begin || number >= end)
				continue;
			size_t n_bytes = (size_t)h5_block_bytes(b, k);
			j->w->source(j->w->with, (enum ckpt_group)(i / j->w->n_tensors),
				i % j->w->n_tensors, k * b->block_rows,
				(int64_t)n_bytes / b->row_bytes, rows);
			b->xxh3[k] = hash_bytes(rows, n_bytes, 0);
			int64_t at = b->offset + k * b->block_rows * b->row_bytes;
			if (pwrite_all(fd, rows, n_bytes, at))
				rc = err_set(
					e, EX_IOERR, "%s: %s", j->d.tmp, strerror(errno));
			if (number % FLUSH_BLOCKS == FLUSH_BLOCKS - 1)
				sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
			comm_poll();
		}
	}
	free(rows);
	if (!rc && fsync(fd))
		rc = err_set(e, EX_IOERR, "%s: %s", j->d.tmp, strerror(errno));
	close(fd);
	return rc;
}

static void gather_checksums(struct job *j)
{
	for (int i = 0; i < j->n; i++)
		comm_run(j->w->comm, COLL_ALLREDUCE,
			&(struct coll_args){.recv = j->blocks[i].xxh3,
				.count = j->blocks[i].n_blocks,
				.type = COMM_U64,
				.op = COMM_SUM});
}

static int finish(struct job *j, struct err *e)
{
	struct h5 *h;
	if (h5_reopen(&h, j->d.tmp, e))
		return -1;
	int rc = 0;
	for (int i = 0; i < j->n && !rc; i++)
		rc = h5_blocks_finish(h, &j->blocks[i], e);
	rc = rc || h5_seal(h, e);
	rc = h5_end(h, rc, e);
	return rc ? -1 : durable_commit(&j->d, e);
}

int64_t ckpt_bytes(const struct ckpt_write *w)
{
	/* What HDF5 needs for a file, and for the two datasets of a tensor. */
	enum { A_FILE = 12288, A_TENSOR = 704 };
	struct str vocabulary = {0};
	if (w->tokenizer)
		tokenizer_pack(w->tokenizer, &vocabulary);
	int64_t n = A_FILE + (int64_t)(strlen(w->config) + vocabulary.len);
	str_free(&vocabulary);
	for (int i = 0; i < w->n_tensors; i++) {
		int64_t data = ckpt_size(&w->tensors[i]) * (int64_t)sizeof(float);
		n += N_CKPT_GROUPS * (A_TENSOR + data + data / 65536);
	}
	return n;
}

int ckpt_write(const struct ckpt_write *w, struct err *e)
{
	struct job j = {.w = w, .n = w->n_tensors * N_CKPT_GROUPS};
	bool first = w->comm->rank == 0;
	struct err mine = {0};
	if (first)
		file_room(w->path, ckpt_bytes(w), &mine);
	if (comm_agree(w->comm, &mine)) {
		*e = mine;
		return -1;
	}
	j.blocks = xcalloc((size_t)j.n, sizeof(*j.blocks));
	durable_begin(&j.d, w->path);
	if (first)
		make_structure(&j, &mine);
	int rc = comm_agree(w->comm, &mine);
	if (!rc) {
		share_structure(&j);
		write_blocks(&j, &mine);
		rc = comm_agree(w->comm, &mine);
	}
	if (!rc) {
		gather_checksums(&j);
		if (first)
			finish(&j, &mine);
		rc = comm_agree(w->comm, &mine);
	}
	if (first)
		durable_abort(&j.d); /* does nothing after a commit */
	else
		durable_forget(&j.d);
	for (int i = 0; i < j.n; i++)
		h5_blocks_free(&j.blocks[i]);
	free(j.blocks);
	if (rc)
		*e = mine;
	return rc;
}

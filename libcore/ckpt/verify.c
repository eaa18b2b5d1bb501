/*
 * Verifying at the speed of the disk: batches of blocks are read and checked by all threads, and the
 * hash of the parameters is computed from the same bytes, so the file is read once.
 */
#include "ckpt/ckpt.h"

#include "kernels/kernels.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Blocks (of a MiB) in memory for each thread: few, so that they are still in the cache when they
 * are hashed. */
enum { BLOCKS_PER_THREAD = 4 };

struct block {
	const struct h5_blocks *of;
	int64_t number, n_bytes;
	int tensor; /* to be hashed; -1: none */
	char *data;
	struct err why;
};

struct verifying {
	const struct ckpt *c;
	struct device d;
	struct block *batch;
	int64_t n, room;	  /* blocks in the batch */
	int64_t used, room_bytes; /* of the batch's memory */
	char *memory;
	uint64_t hash;
};

static void add_hash(struct verifying *v, const struct block *b)
{
	int64_t row_floats = b->of->row_bytes / (int64_t)sizeof(float);
	int64_t n = b->n_bytes / (int64_t)sizeof(float);
	ckpt_hash_add(&v->d, &v->hash, &v->c->tensors[b->tensor],
		b->number * b->of->block_rows * row_floats, (const void *)b->data, n);
}

/* Checks the blocks of the batch, and empties it. *e is the first error in the order of the file. */
static int flush(struct verifying *v, struct err *e)
{
	int rc = 0;
	comm_poll(); /* other ranks may wait for this one */
#pragma omp parallel for schedule(dynamic)
	for (int64_t i = 0; i < v->n; i++) {
		struct block *b = &v->batch[i];
		h5_block_read(b->of, v->c->fd, b->number, b->data, &b->why);
	}
	for (int64_t i = 0; i < v->n && !rc; i++) {
		const struct block *b = &v->batch[i];
		if (b->why.code) {
			*e = b->why;
			rc = err_prefix(e, "%s: ", v->c->path);
		} else if (b->tensor >= 0) {
			add_hash(v, b);
		}
	}
	v->n = v->used = 0;
	return rc;
}

static int add_blocks(
	struct verifying *v, const struct h5_blocks *of, int tensor, struct err *e)
{
	for (int64_t k = 0; k < of->n_blocks; k++) {
		int64_t n_bytes = h5_block_bytes(of, k);
		if (v->n == v->room || (v->n && v->used + n_bytes > v->room_bytes))
			if (flush(v, e))
				return -1;
		if (n_bytes > v->room_bytes) {
			v->room_bytes = n_bytes;
			v->memory = xrealloc(v->memory, (size_t)n_bytes);
		}
		v->batch[v->n++] =
			(struct block){of, k, n_bytes, tensor, v->memory + v->used, {0}};
		v->used = round_up(v->used + n_bytes, 64);
	}
	return 0;
}

/* All blocks of all groups; *hash is that of the parameters, NULL: not wanted. */
static int verify(const struct ckpt *c, uint64_t *hash, struct err *e)
{
	struct verifying v = {.c = c};
	int rc = 0;
	if (hash) /* else with the threads that the program has chosen */
		device_cpu(&v.d, 0);
	v.room = (int64_t)omp_get_max_threads() * BLOCKS_PER_THREAD;
	v.room_bytes = v.room * H5_BLOCK_BYTES;
	v.batch = xcalloc((size_t)v.room, sizeof(*v.batch));
	v.memory = xmalloc((size_t)v.room_bytes);
	for (int i = 0; i < c->n_tensors * (int)c->groups.n && !rc; i++)
		rc = add_blocks(&v, &c->blocks[i], hash && i < c->n_tensors ? i : -1, e);
	rc = rc || flush(&v, e) ? -1 : 0;
	if (hash)
		*hash = v.hash;
	free(v.memory);
	free(v.batch);
	return rc;
}

int ckpt_verify(const struct ckpt *c, struct err *e)
{
	return verify(c, NULL, e);
}

int ckpt_verify_hash(const struct ckpt *c, struct err *e)
{
	uint64_t hash;
	if (verify(c, &hash, e))
		return -1;
	if (hash != c->info.param_hash)
		return err_set(e, EX_DATAERR,
			"%s: the parameters do not have the hash in the file", c->path);
	return 0;
}

/*
 * Verifies checkpoints at disk speed: all threads read and check blocks, each in a buffer that
 * stays in its cache, and compute the hash of the parameters there too. So the file is read once.
 */
#include "ckpt/ckpt.h"

#include "kernels/kernels.h"

#include <omp.h>

/* Blocks (of a MiB) between two calls of comm_poll(). */
enum { BLOCKS_PER_THREAD = 16 };

struct block {
	const struct h5_blocks *blocks;
	int64_t number;
	int tensor; /* parameter to hash; -1: none */
	struct err why;
};

struct verifying {
	const struct ckpt *c;
	struct device d;
	struct block *batch;
	int64_t n, capacity; /* blocks in the batch */
	char *memory;	     /* [threads][block_bytes] */
	int64_t block_bytes;
	uint64_t hash; /* sum over all elements, in any order */
};

/* Returns the hash of a block's elements, with their positions in the tensor. */
static uint64_t hash_block(struct verifying *v, const struct block *b, const char *data)
{
	int64_t row_floats = b->blocks->row_bytes / (int64_t)sizeof(float);
	int64_t n = h5_block_bytes(b->blocks, b->number) / (int64_t)sizeof(float);
	uint64_t sum = 0;
	ckpt_hash_add(&v->d, &sum, &v->c->tensors[b->tensor],
		b->number * b->blocks->block_rows * row_floats, (const void *)data, n);
	return sum;
}

/* Verifies the blocks of the batch, and empties it. *e: the first error in file order. */
static int check_batch(struct verifying *v, struct err *e)
{
	uint64_t hash = 0;
	int rc = 0;
	comm_poll(); /* other ranks may wait for this one */
#pragma omp parallel for schedule(dynamic) reduction(+ : hash)
	for (int64_t i = 0; i < v->n; i++) {
		struct block *b = &v->batch[i];
		char *data = v->memory + omp_get_thread_num() * v->block_bytes;
		if (!h5_block_read(b->blocks, v->c->fd, b->number, data, &b->why) &&
			b->tensor >= 0)
			hash += hash_block(v, b, data);
	}
	for (int64_t i = 0; i < v->n && !rc; i++) {
		if (v->batch[i].why.code) {
			*e = v->batch[i].why;
			rc = err_prefix(e, "%s: ", v->c->path);
		}
	}
	v->hash += hash;
	v->n = 0;
	return rc;
}

/* Adds the blocks of a dataset to the batch. Checks and empties the batch each time it is full. */
static int add_blocks(
	struct verifying *v, const struct h5_blocks *blocks, int tensor, struct err *e)
{
	for (int64_t k = 0; k < blocks->n_blocks; k++) {
		if (v->n == v->capacity && check_batch(v, e))
			return -1;
		v->batch[v->n++] = (struct block){blocks, k, tensor, {0}};
	}
	return 0;
}

/* Verifies all blocks of all groups. Sets *hash to the hash of the parameters, unless NULL. */
static int verify_blocks(const struct ckpt *c, uint64_t *hash, struct err *e)
{
	struct verifying v = {.c = c};
	int n = c->n_tensors * (int)c->groups.n, rc = 0;
	if (hash) /* (without a hash, the program has chosen the threads) */
		device_open_cpu(&v.d, 0);
	v.capacity = (int64_t)omp_get_max_threads() * BLOCKS_PER_THREAD;
	for (int i = 0; i < n; i++) /* the first block is the largest */
		v.block_bytes = max64(v.block_bytes, h5_block_bytes(&c->blocks[i], 0));
	v.block_bytes = round_up(v.block_bytes, 64);
	v.batch = xcalloc((size_t)v.capacity, sizeof(*v.batch));
	v.memory = xcalloc((size_t)omp_get_max_threads(), (size_t)v.block_bytes);
	for (int i = 0; i < n && !rc; i++)
		rc = add_blocks(&v, &c->blocks[i], hash && i < c->n_tensors ? i : -1, e);
	rc = rc || check_batch(&v, e) ? -1 : 0;
	if (hash)
		*hash = v.hash;
	free(v.memory);
	free(v.batch);
	return rc;
}

int ckpt_verify(const struct ckpt *c, struct err *e)
{
	return verify_blocks(c, NULL, e);
}

int ckpt_verify_hash(const struct ckpt *c, struct err *e)
{
	uint64_t hash;
	if (verify_blocks(c, &hash, e))
		return -1;
	if (hash != c->info.param_hash)
		return err_set(e, EX_DATAERR,
			"%s: the parameters do not match the hash in the file", c->path);
	return 0;
}

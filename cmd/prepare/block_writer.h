/* Blocks of tokens, on their way from work files to shards. One thread defines the contents of
 * the blocks, in order. Several threads read, hash and write the blocks, in any order. Only the
 * hash of a whole dataset is computed in the order of its blocks. */
#pragma once

#include "data/data.h"

struct pieces;

/* The place of contiguous tokens. */
struct extent {
	const char *memory; /* NULL: in a file */
	int fd;
	int64_t at; /* offset in bytes, in the memory or the file */
	struct pieces
		*pieces; /* work files that free these bytes after the read; NULL: keep */
};

/* A dataset that is being written. */
struct out_dataset {
	int fd;		  /* descriptor of its file; -1: none */
	const char *name; /* name of its file, in messages */
	struct h5_blocks *blocks;
	struct hash_state *all; /* hash of the first n_hashed blocks */
	int64_t n_hashed;
	bool syncs; /* the file will be synced, so write-out to disk may begin */
};

struct block_writer;
struct out_block;
/* Creates a writer with `threads` threads, including the caller's. */
struct block_writer *block_writer_open(int threads);
/* Blocks until a buffer is free, and begins block `number` of a dataset. Returns NULL if an
 * earlier block failed. */
struct out_block *out_block_begin(
	struct block_writer *w, struct out_dataset *to, int64_t number, struct err *e);
/* Appends n_bytes to a block. Memory is copied now; files are read later. */
void out_block_add(struct out_block *b, const struct extent *from, int64_t n_bytes);
/* Queues a complete block for the threads; writes it if there is only one thread. */
void out_block_end(struct block_writer *w, struct out_block *b);
/* Blocks until all blocks are written. */
int block_writer_wait(struct block_writer *w, struct err *e);
/* Discards blocks that are not written yet, ends the threads, and frees w (may be NULL). */
void block_writer_close(struct block_writer *w);

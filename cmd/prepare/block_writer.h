/*
 * Blocks of tokens, on their way from work files to shards. One thread defines the contents of the
 * blocks, in order. Several threads read, hash and write the blocks, in any order. Only the hash of
 * a whole dataset is computed in the order of its blocks.
 */
#pragma once

#include "data/data.h"

struct pieces;

/* The place of contiguous tokens. */
struct extent {
	const char *memory; /* NULL: in a file */
	int fd;
	int64_t at;	     /* byte of the memory or the file */
	struct pieces *drop; /* to release these bytes after they are read; NULL: not */
};

/* A dataset that is being written. */
struct out_dataset {
	int fd;		  /* of its file; -1: none */
	const char *name; /* of its file, in messages */
	struct h5_blocks *blocks;
	struct hash_state *all; /* hash of the first n_hashed blocks */
	int64_t n_hashed;
	bool syncs; /* the file will be synced, so write-out to disk may begin */
};

struct block_writer;
struct out_block;
/* Opens a writer with `threads` threads, including the caller's. */
struct block_writer *block_writer_open(int threads);
/* Begins a block of a dataset, when a buffer is free. Returns NULL if an earlier block failed. */
struct out_block *out_block_begin(
	struct block_writer *w, struct out_dataset *to, int64_t number, struct err *e);
/* Appends n_bytes. Memory is copied now; files are read later. */
void out_block_add(struct out_block *b, const struct extent *from, int64_t n_bytes);
/* Queues a complete block, or writes it. */
void out_block_end(struct block_writer *w, struct out_block *b);
/* Blocks until all blocks are written. */
int block_writer_wait(struct block_writer *w, struct err *e);
void block_writer_close(struct block_writer *w); /* discards unwritten blocks */

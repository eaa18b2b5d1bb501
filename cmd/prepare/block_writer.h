/*
 * Blocks of tokens, on their way from work files to shards. What is in a block is said in order, by one
 * thread; reading it, hashing it and writing it is done by several, in any order. Only the hash of a whole
 * dataset is computed in the order of its blocks.
 */
#pragma once

#include "data/data.h"

struct pieces;

/* Tokens that follow each other, and where they are. */
struct extent {
	const char *memory; /* NULL: in a file */
	int fd;
	int64_t at;	     /* byte of the memory or the file */
	struct pieces *drop; /* these read the file for the last time; NULL: not */
};

/* A dataset that is being written. */
struct out_dataset {
	int fd;		  /* of the file that has it; -1: none */
	const char *name; /* of that file, in messages */
	struct h5_blocks *blocks;
	struct hash_state *all; /* of the first n_hashed blocks */
	int64_t n_hashed;
	bool syncs; /* the file will be synced, so the disk may begin */
};

struct block_writer;
struct out_block;
/* One that computes with so many threads, the caller's among them. */
struct block_writer *block_writer_open(int threads);
/* An empty block of a dataset; waits until one is free. NULL: a block before it had an error. */
struct out_block *out_block_begin(
	struct block_writer *w, struct out_dataset *to, int64_t number, struct err *e);
/* Appends n_bytes. What is in memory is copied now, what is in a file is read later. */
void out_block_add(struct out_block *b, const struct extent *from, int64_t n_bytes);
/* Hands a block over: it is written now or later. */
void out_block_end(struct block_writer *w, struct out_block *b);
/* Waits until all blocks are written. */
int block_writer_wait(struct block_writer *w, struct err *e);
void block_writer_close(struct block_writer *w); /* drops the blocks that are left */

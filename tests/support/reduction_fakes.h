/* For reduction_check.c only: the fakes of messages, the offload backend and a kernel. */
#pragma once

#include "tests/support/reduction_check.h"

#include <ucontext.h>

enum { MAX_TICKETS = 4096 };

/* What other ranks are to receive: n sums. */
struct mail {
	uint64_t *v;
	int64_t n;
};

struct fake_mailbox {
	struct mail *mail;
	int n, taken;
};

/* An offload backend. Requests are executed as late as is allowed, writes, or as early, reads. */
struct store_file {
	struct offload_backend x;
	char *bytes;
	struct request {
		bool write, done;
		char *memory, *read;
		int64_t n, at;
	} request[MAX_TICKETS];
	uint64_t n;
};

struct fake_rank {
	ucontext_t context;
	int rank, worker;
	bool ended;
	struct mesh mesh;
	struct store *s;
	struct tensor table[STORE_TENSORS];
	struct arena memory;
	struct store_file *file;
	char *activations;	       /* that gradients replace, or NULL */
	int64_t live[STORE_UNITS + 1]; /* the last: of the output layer */
	struct fake_mailbox swap, sums;
	int64_t rounded; /* elements */
};

/* What is checked, all ranks of all workers, and the rank that runs. */
extern const struct reduction_case *checked;
extern struct fake_rank *peers, *now;
extern ucontext_t scheduler;
extern int64_t progress; /* of all ranks: they began or completed something */
extern struct err *fault;

void wrong(const char *what);
/* Lets other ranks go on. */
void yield(void);
/* A leaf as an integer (0 remains 0: the leaf of an expert without rows), and an integer as a
 * gradient. */
uint64_t widen(uint32_t leaf);
uint32_t rounded(uint64_t sum);
void fake_grid_sum(struct device *d, const struct grid_sum *g, struct grid *grid);
/* Adds the checksum of n sums, of which the first has this index in its bucket. Modulo 2^64, since these
 * sums wrap. */
void fake_checksum(
	const struct grid_check *c, const uint64_t *sum, int64_t n, int64_t first);
/* store.add_workers */
void add_workers(void *with, int64_t *sum, int64_t n);
uint64_t file_enqueue(struct offload_backend *x, bool write, void *memory,
	int64_t n_bytes, int64_t at, uint64_t after);
void file_wait(struct offload_backend *x, uint64_t ticket);
void free_sums(void);

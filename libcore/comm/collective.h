/* Collectives: one table of them, their types and operations. */
#ifndef COMM_COLLECTIVE_H
#define COMM_COLLECTIVE_H

#include "comm/comm.h"

enum comm_type {
	COMM_I8,
	COMM_U8,
	COMM_I32,
	COMM_U32,
	COMM_I64,
	COMM_U64,
	COMM_F32,
	COMM_F64
};
enum comm_op { COMM_SUM, COMM_PROD, COMM_MIN, COMM_MAX };
enum { N_COMM_TYPES = COMM_F64 + 1, N_COMM_OPS = COMM_MAX + 1 };
size_t comm_type_bytes(enum comm_type t);

enum coll {
	COLL_ALLREDUCE,
	COLL_REDUCE,
	COLL_BROADCAST,
	COLL_ALLGATHER,
	COLL_REDUCESCATTER,
	COLL_SCATTER,
	COLL_GATHER,
	COLL_ALLTOALL,
	COLL_SENDRECV, /* in a ring: to the next rank, from the previous one */
	COLL_BARRIER,
	N_COLL
};

/* Separate buffers for input and result, or one. */
enum coll_place { COLL_OUT_OF_PLACE, COLL_IN_PLACE, N_COLL_PLACES };

/*
 * The properties of a collective: `send_parts` and `recv_parts` are the number of blocks of
 * `count` elements in a rank's buffers (0: one block for each rank). Bus bandwidth is
 * coll_bytes() over the time, times bus(n) (nccl-tests doc/PERFORMANCE.md).
 */
struct coll_info {
	const char *name;
	int send_parts, recv_parts;
	bool has_root, has_op;
	bool has_place[N_COLL_PLACES]; /* out of place, in place */
	double (*bus)(int ranks);
	const char *bus_text; /* the formula of bus() */
	const char *help;
};
extern const struct coll_info coll_table[N_COLL];

/* Blocks of the larger of a rank's two buffers. */
int coll_blocks(enum coll what, int ranks);
/* The bytes of that buffer, called size in nccl-tests. */
int64_t coll_bytes(enum coll what, int ranks, int64_t count, enum comm_type t);

/*
 * In place, `recv` is the only buffer and holds coll_blocks() blocks on every rank. In an allgather,
 * gather and scatter, the block of rank r is number r, before and after. A reducescatter writes its
 * result to block 0, and the others are undefined, as with MPI.
 */
struct coll_args {
	const void *send; /* NULL: in place */
	void *recv;
	int64_t count; /* elements of one block */
	enum comm_type type;
	enum comm_op op;
	int root;
};

/* Collective, blocking; the nonblocking form is comm_enqueue() (requests.h). */
void comm_run(struct comm *c, enum coll what, const struct coll_args *a);

#endif

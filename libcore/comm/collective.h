/* Collectives: their table, element types and reduction operations. */
#pragma once

#include "comm/comm.h"

enum comm_type {
	COMM_I8,
	COMM_U8,
	COMM_I32,
	COMM_U32,
	COMM_I64,
	COMM_U64,
	COMM_F32,
	COMM_F64,
	COMM_F16,
	COMM_BF16,
	COMM_E4M3,
	COMM_E5M2
};
/* Names of the types, as in nccl-tests. */
#define COMM_TYPE_WORDS                                                           \
	"int8", "uint8", "int32", "uint32", "int64", "uint64", "float", "double", \
		"half", "bfloat16", "f8e4m3", "f8e5m2"
enum comm_op { COMM_SUM, COMM_PROD, COMM_MIN, COMM_MAX };
enum { N_COMM_TYPES = COMM_E5M2 + 1, N_COMM_OPS = COMM_MAX + 1 };

/* MPI has no 16- or 8-bit floating-point types, so mpi_ops.c implements their reductions: each
 * step widens two values to fp32, reduces them, and rounds the result to the type (to nearest,
 * ties to even). fp8 sums and products that overflow become the largest finite value. */
struct comm_type_info {
	int bytes;
	bool is_floating, is_signed;
	int dtype; /* as in kernels/dtype.h; -1: integers and double */
};
extern const struct comm_type_info comm_type_table[N_COMM_TYPES];
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

/* Separate input and result buffers, or one buffer for both. */
enum coll_place { COLL_OUT_OF_PLACE, COLL_IN_PLACE, N_COLL_PLACES };

/* The properties of a collective: `send_parts` and `recv_parts` are the number of blocks of
 * `count` elements in a rank's buffers (0: one block for each rank). Bus bandwidth is
 * coll_bytes() over the time, times bus(n) (nccl-tests doc/PERFORMANCE.md). */
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

/* Bus bandwidth factors: each rank sends everything except its own share, or everything. */
double bus_share(int ranks);
double bus_whole(int ranks);
/* Returns the number of blocks in the larger of a rank's two buffers. */
int coll_blocks(const struct coll_info *i, int ranks);
/* Returns the bytes of the larger buffer ("size" in nccl-tests). */
int64_t coll_bytes(enum coll what, int ranks, int64_t count, enum comm_type t);

/* In place, `recv` is the only buffer and holds coll_blocks() blocks on every rank. In an
 * allgather, gather or scatter, block r belongs to rank r, before and after. A reducescatter
 * writes its result to block 0 and leaves the other blocks undefined, as MPI does. */
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
/* Returns false with *e set if the library that transfers this group's buffers lacks the type. */
bool comm_has_type(const struct comm *c, enum comm_type t, struct err *e);
/* Collective. Calls MPI's blocking function, such as MPI_Allreduce, for measurements: it does
 * not yield the processor while it waits, and bypasses the watchdog and the flight record. Host
 * memory only. comm_call_send() and comm_call_recv() are MPI_Send and MPI_Recv of bytes. */
void comm_call(struct comm *c, enum coll what, const struct coll_args *a);
void comm_call_send(struct comm *c, const void *p, int64_t n_bytes, int peer, int tag);
void comm_call_recv(struct comm *c, void *p, int64_t n_bytes, int peer, int tag);

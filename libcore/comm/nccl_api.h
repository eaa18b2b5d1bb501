/*
 * The part of NCCL's interface that is used, as in its nccl.h (2.19 and later). The library is
 * opened at run time, so that programs build and run without it. tests/emu/nccl.cc implements
 * the same functions for tests, and compares this header with nccl.h if that is installed.
 *
 * NVIDIA Collective Communications Library, user guide, "NCCL API".
 */
#pragma once

#include <stddef.h>

struct nccl_comm; /* ncclComm */

enum nccl_result {
	NCCL_SUCCESS,
	NCCL_CUDA_ERROR,
	NCCL_SYSTEM_ERROR,
	NCCL_INTERNAL_ERROR,
	NCCL_INVALID_ARGUMENT,
	NCCL_INVALID_USAGE,
	NCCL_REMOTE_ERROR,
	NCCL_IN_PROGRESS
};

enum nccl_type {
	NCCL_I8,
	NCCL_U8,
	NCCL_I32,
	NCCL_U32,
	NCCL_I64,
	NCCL_U64,
	NCCL_F16,
	NCCL_F32,
	NCCL_F64,
	NCCL_BF16,
	NCCL_E4M3, /* from 2.24 on */
	NCCL_E5M2
};
enum { NCCL_FP8_VERSION = 22400 };

enum nccl_op { NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG };

struct nccl_id {
	char bytes[128];
};

/* ncclConfig_t of NCCL 2.18; a later library fills in the attributes added since. */
struct nccl_config {
	size_t size;
	unsigned magic, version;
	int blocking, cga_cluster_size, min_ctas, max_ctas;
	const char *net_name;
	int split_share;
};

enum {
	NCCL_MAGIC = (int)0xcafebeef,
	NCCL_CONFIG_VERSION = 21800,
	NCCL_UNDEFINED = -2147483647 - 1,
	NCCL_NO_COLOR = -1
};

/* result, name, parameters. A cudaStream_t is a void pointer here. */
#define NCCL_FUNCTIONS(FN)                                                              \
	FN(int, GetVersion, (int *version))                                             \
	FN(int, GetUniqueId, (struct nccl_id * id))                                     \
	FN(const char *, GetErrorString, (int result))                                  \
	FN(const char *, GetLastError, (struct nccl_comm * c))                          \
	FN(int, CommInitRankConfig,                                                     \
		(struct nccl_comm * *c, int n_ranks, struct nccl_id id, int rank,       \
			struct nccl_config *config))                                    \
	FN(int, CommSplit,                                                              \
		(struct nccl_comm * c, int color, int key, struct nccl_comm **part,     \
			struct nccl_config *config))                                    \
	FN(int, CommFinalize, (struct nccl_comm * c))                                   \
	FN(int, CommDestroy, (struct nccl_comm * c))                                    \
	FN(int, CommAbort, (struct nccl_comm * c))                                      \
	FN(int, CommGetAsyncError, (struct nccl_comm * c, int *error))                  \
	FN(int, CommRegister,                                                           \
		(struct nccl_comm * c, void *p, size_t n_bytes, void **handle))         \
	FN(int, CommDeregister, (struct nccl_comm * c, void *handle))                   \
	FN(int, MemAlloc, (void **p, size_t n_bytes))                                   \
	FN(int, MemFree, (void *p))                                                     \
	FN(int, GroupStart, (void))                                                     \
	FN(int, GroupEnd, (void))                                                       \
	FN(int, Send,                                                                   \
		(const void *p, size_t n, int type, int peer, struct nccl_comm *c,      \
			void *stream))                                                  \
	FN(int, Recv,                                                                   \
		(void *p, size_t n, int type, int peer, struct nccl_comm *c,            \
			void *stream))                                                  \
	FN(int, AllReduce,                                                              \
		(const void *send, void *recv, size_t n, int type, int op,              \
			struct nccl_comm *c, void *stream))                             \
	FN(int, Reduce,                                                                 \
		(const void *send, void *recv, size_t n, int type, int op, int root,    \
			struct nccl_comm *c, void *stream))                             \
	FN(int, Broadcast,                                                              \
		(const void *send, void *recv, size_t n, int type, int root,            \
			struct nccl_comm *c, void *stream))                             \
	FN(int, AllGather,                                                              \
		(const void *send, void *recv, size_t n, int type, struct nccl_comm *c, \
			void *stream))                                                  \
	FN(int, ReduceScatter,                                                          \
		(const void *send, void *recv, size_t n, int type, int op,              \
			struct nccl_comm *c, void *stream))

/* Functions from 2.27 on, which may be missing. flags: NCCL_WIN_SYMMETRIC. */
enum { NCCL_WIN_SYMMETRIC = 1 };
#define NCCL_NEW_FUNCTIONS(FN)                                                          \
	FN(int, CommWindowRegister,                                                     \
		(struct nccl_comm * c, void *p, size_t n_bytes, void **win, int flags)) \
	FN(int, CommWindowDeregister, (struct nccl_comm * c, void *win))

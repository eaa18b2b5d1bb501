/* Shared by the files of the emulated NCCL. */
#pragma once

#include "comm/nccl_api.h"
#include "tests/emu/inside.h"

#include <atomic>
#include <stdio.h>
#include <stdlib.h>

#if __has_include(<nccl.h>)
#include <nccl.h>
static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_id), "ncclUniqueId");
static_assert((int)ncclInProgress == NCCL_IN_PROGRESS, "ncclResult_t");
static_assert((int)ncclInt8 == NCCL_I8 && (int)ncclUint64 == NCCL_U64 &&
		      (int)ncclFloat64 == NCCL_F64 && (int)ncclBfloat16 == NCCL_BF16,
	"ncclDataType_t");
static_assert((int)ncclSum == NCCL_SUM && (int)ncclMax == NCCL_MAX &&
		      (int)ncclMin == NCCL_MIN && (int)ncclAvg == NCCL_AVG,
	"ncclRedOp_t");
static_assert(
	offsetof(ncclConfig_t, blocking) == offsetof(struct nccl_config, blocking) &&
		offsetof(ncclConfig_t, maxCTAs) ==
			offsetof(struct nccl_config, max_ctas) &&
		offsetof(ncclConfig_t, splitShare) ==
			offsetof(struct nccl_config, split_share),
	"ncclConfig_t");
#endif

/* The functions have the names of nccl.h, and the types of nccl_api.h. */
#define EXPORT(name) __asm__(#name) __attribute__((visibility("default")))
#define DECLARE(type, name, params) \
	extern "C" type emu_nccl##name params EXPORT(nccl##name);
NCCL_FUNCTIONS(DECLARE)
NCCL_NEW_FUNCTIONS(DECLARE)

enum { MOST_RANKS = 16, CHUNK = 64 << 10, MOST_GROUP = 4096 };

/* ---- what the processes share --------------------------------------------------------- */

/* What a message belongs to: equal at both ends. */
struct header {
	char what[24];
	uint64_t n_bytes, seq;
	uint64_t place; /* of an all-gather, in the window */
	int type, op, root;
};

/* From one rank to another, a chunk at a time. */
struct mailbox {
	std::atomic<uint64_t> put, taken; /* chunks */
	struct header header;
	char data[CHUNK];
};

struct member {
	std::atomic<int> here, left;
	char host[64];
	int gpu;
	/* Of a split. */
	std::atomic<uint64_t> splits;
	int color, key;
	std::atomic<int64_t> window; /* bytes of the only one */
};

struct shared {
	struct member member[MOST_RANKS];
	struct mailbox box[MOST_RANKS][MOST_RANKS]; /* from, to */
};

struct message {
	bool sends;
	int peer;
	char *at;
	struct header header;
	uint64_t moved; /* bytes */
	bool begun, done;
};

/* A collective with a reduction, or none: what is done when its messages have come. */
struct nccl_reduction {
	struct nccl_comm *c;
	char *to; /* NULL: none */
	const char *own;
	char *others; /* [n]: what each rank sent */
	size_t n;     /* elements */
	int type, op;
};

struct operation {
	struct message *message;
	int n_messages, room;
	struct nccl_reduction *reduction;
	int n_reductions;
	uint64_t number; /* of the communicator's groups */
	bool fails;
	struct nccl_comm *c;
};

struct nccl_comm {
	struct shared *shared;
	char name[64];
	int rank, n, version;
	bool ready, blocking;
	int error;
	char error_text[200];
	uint64_t begun, done; /* groups in progress, and complete */
	uint64_t collectives, splits;
	int in_graphs; /* groups of graphs that there are */
	char *window;  /* registered memory */
	size_t window_bytes;
	int late; /* enqueues `waiting` after so many questions */
	struct operation *waiting;
	void *waiting_stream;
	/* A split that is in progress. */
	struct nccl_comm *parent; /* of one that is not joined yet */
	int color, key;
	struct nccl_comm *child, **out; /* and of the parent */
};

/* ---- nccl.cc ------------------------------------------------------------------------ */

EMU_INSIDE void emu_nccl_enqueue(void *stream, struct operation *o);
EMU_INSIDE void emu_nccl_check_pointer(const char *what, const void *p);

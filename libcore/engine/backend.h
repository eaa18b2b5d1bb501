/* The device of a run, and which algorithms its GEMMs use. */
#pragma once

#include "comm/comm.h"
#include "engine/options.h"
#include "kernels/kernels.h"

struct trainer;

/* ---- backend.c ------------------------------------------------------------------- */

/* The device that the options request; an error if it does not support them. */
int backend_choose(const struct train_opts *o, enum device_kind *kind, struct err *e);
/* The threads of this rank: `wanted`, or if that is 0 its share of the processors of the host. */
int64_t backend_threads(int64_t wanted);
/* Collective over all ranks. Sets o->resolved.gpu_sharers: how many ranks share this rank's GPU. */
void backend_count_sharers(struct train_opts *o, struct comm *all);
/* Opens the device, and sets o->device. The ranks of a host use its GPUs in turn; with
 * --device auto, only if each rank has a GPU of its own. */
int backend_open(struct train_opts *o, struct device *d, struct err *e);
/* Collective. With --device auto: if some ranks found no GPU, all use CPUs. */
int backend_agree(
	struct train_opts *o, struct comm *world, struct device *d, struct err *e);
/* The name of what determines bitwise results: the GPU, or "CPU", since all compute the same. */
const char *backend_identity(const struct device *d);

/* ---- gemm_algorithms.c: which cuBLASLt algorithm computes each GEMM ---------------- */

/* Collective over `all`. Rank 0 reads the algorithms for all ranks: from the file of
 * --gemm-algorithms, or from the run directory of the checkpoint `from`, which may be NULL. */
int gemm_algorithms_load(struct device *d, const struct train_opts *o, const char *from,
	struct comm *all, struct err *e);
/* Writes those that were used to DIRECTORY/algorithms. */
int gemm_algorithms_save(struct device *d, const char *directory, struct err *e);
/* Collective over `all`. With --algorithms measure and several ranks: all of them measure, in
 * a step whose results are dropped, and use what the first rank with each shape has chosen. */
int gemm_algorithms_agree(struct trainer *t, struct comm *all, struct err *e);
/* Does the run measure which algorithms are fastest? */
bool gemm_algorithms_measured(const struct train_opts *o);

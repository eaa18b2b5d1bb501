/* The device of a run, and the algorithms of its GEMMs. */
#pragma once

#include "comm/comm.h"
#include "engine/options.h"
#include "kernels/kernels.h"

struct trainer;

/* ---- backend.c ------------------------------------------------------------------- */

/* Sets *kind to the device that the options request; an error if it does not support them. */
int backend_choose(const struct train_opts *o, enum device_kind *kind, struct err *e);
/* Returns this rank's threads: `wanted`; if that is 0, its share of the host's processors. */
int64_t backend_threads(int64_t wanted);
/* Collective over all ranks. Sets o->resolved.gpu_sharers: ranks on this rank's GPU. */
void backend_count_sharers(struct train_opts *o, struct comm *all);
/* Opens the device, and sets o->device. The ranks of a host use its GPUs in turn; with
 * --device auto, only if each rank has a GPU of its own. */
int backend_open(struct train_opts *o, struct device *d, struct err *e);
/* Collective. With --device auto: if some ranks found no GPU, all use CPUs. */
int backend_agree(
	struct train_opts *o, struct comm *world, struct device *d, struct err *e);
/* Returns the hardware that determines the bits: the GPU's name, or "CPU", since all CPUs agree. */
const char *backend_identity(const struct device *d);

/* ---- gemm_algorithms.c: the cuBLASLt algorithm of each GEMM ------------------------- */

/* Collective over `all`. Rank 0 reads the algorithms for all ranks: from the --gemm-algorithms
 * file, or from the run directory of the checkpoint `from` (NULL: none). */
int gemm_algorithms_load(struct device *d, const struct train_opts *o, const char *from,
	struct comm *all, struct err *e);
/* Writes the algorithms that were used to DIRECTORY/algorithms. */
int gemm_algorithms_save(struct device *d, const char *directory, struct err *e);
/* Collective over `all`. With --gemm-algorithms measure and several ranks, each rank measures its
 * shapes in a step whose results are dropped. For each shape, all ranks then use the algorithm of the
 * first rank that has the shape. */
int gemm_algorithms_agree(struct trainer *t, struct comm *all, struct err *e);
/* Returns true if the run measures which algorithms are fastest. */
bool gemm_algorithms_measured(const struct train_opts *o);

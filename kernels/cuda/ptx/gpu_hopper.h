/* The instructions of hopper.h, for a GPU. */
#pragma once

static __device__ inline uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ------------------------------------------------------------------------ */

/* Initializes a barrier with `count` arrivals per phase. */
static __device__ inline void barrier_make(uint64_t *barrier, int count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(
			     shared_address(barrier)),
		     "r"(count)
		     : "memory");
}

/* Makes initialized barriers visible to TMA copies. */
static __device__ inline void publish_barriers(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

static __device__ inline void barrier_arrive(uint64_t *barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(
		shared_address(barrier))
		     : "memory");
}

/* Arrives, and adds n_bytes to the bytes that this phase expects. */
static __device__ inline void barrier_expect(uint64_t *barrier, int n_bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(
			     shared_address(barrier)),
		     "r"(n_bytes)
		     : "memory");
}

/* Arrives at the barrier at this address in the shared memory of block `rank` of the cluster. This
 * does not order other memory accesses of this thread for that block. */
static __device__ inline void barrier_arrive_at(uint64_t *barrier, int rank)
{
	asm volatile("{\n"
		     ".reg .b32 there;\n"
		     "mapa.shared::cluster.u32 there, %0, %1;\n"
		     "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
		     "}\n" ::"r"(shared_address(barrier)),
		     "r"(rank)
		     : "memory");
}

/* Waits for all threads of the cluster that have not ended. */
static __device__ inline void cluster_sync(void)
{
	asm volatile("barrier.cluster.arrive.release;\n"
		     "barrier.cluster.wait.acquire;\n" ::
			     : "memory");
}

/* Waits until the phase of this parity is complete: 0 is the first phase; 1 on a new barrier
 * returns at once. */
static __device__ inline void barrier_wait(uint64_t *barrier, int parity)
{
	asm volatile("{\n"
		     ".reg .pred over;\n"
		     "again:\n"
		     "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
		     "@over bra done;\n"
		     "bra again;\n"
		     "done:\n"
		     "}\n" ::"r"(shared_address(barrier)),
		     "r"(parity)
		     : "memory");
}

/* barrier_wait() while matmuls are in flight; all their operands must be in shared memory. */
static __device__ inline void barrier_wait_meanwhile(uint64_t *barrier, int parity)
{
	barrier_wait(barrier, parity);
}

/* Waits at a named barrier, 1 to 15 (bar.sync). n_threads counts both the threads that wait and the
 * threads that only arrive (turn_give()). */
static __device__ inline void turn_wait(int id, int n_threads)
{
	asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(n_threads) : "memory");
}

/* Arrives at a named barrier without waiting. */
static __device__ inline void turn_give(int id, int n_threads)
{
	asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(n_threads) : "memory");
}

/* ---- registers ----------------------------------------------------------------------- */

/* Lowers the registers of this warpgroup's threads to N (setmaxnreg); frees the others. */
template <int N> static __device__ inline void registers_fewer(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}

/* Raises the registers of this warpgroup's threads to N; waits until enough are free. */
template <int N> static __device__ inline void registers_more(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}

/* ---- copies of tiles ----------------------------------------------------------------- */

/* Enqueues a TMA copy of the box of a 4-dimensional tensor at the given coordinates, zeros
 * outside the tensor; `barrier` counts its bytes. */
static __device__ inline void tile_load(void *to, const CUtensorMap *map,
	uint64_t *barrier, int at0, int at1, int at2, int at3)
{
	asm volatile(
		"cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::"
		"bytes [%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(shared_address(to)),
		"l"(map), "r"(shared_address(barrier)), "r"(at0), "r"(at1), "r"(at2),
		"r"(at3)
		: "memory");
}

/* tile_load() to the same addresses in both blocks of a cluster of two; the barriers of both
 * count the bytes. */
static __device__ inline void tile_load_both(void *to, const CUtensorMap *map,
	uint64_t *barrier, int at0, int at1, int at2, int at3)
{
	asm volatile(
		"cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::"
		"bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;\n" ::
			"r"(shared_address(to)),
		"l"(map), "r"(shared_address(barrier)), "r"(at0), "r"(at1), "r"(at2),
		"r"(at3), "h"((uint16_t)3)
		: "memory");
}

/* ---- stores of tiles ----------------------------------------------------------------- */

/* Orders this thread's stores to shared memory before a tile_store() or a matmul that reads them.
 * All threads that have stored call this, then synchronize with the threads that call these. */
static __device__ inline void publish_stores(void)
{
	asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

/* Stores 16 bytes of zeros to shared memory; matmuls read them after this thread's
 * publish_stores() and a barrier. */
static __device__ inline void clear_piece(void *to)
{
	*(uint4 *)to = {0, 0, 0, 0};
}

/* Enqueues a TMA copy to the box of a 4-dimensional tensor at the given coordinates; nothing is
 * stored outside the tensor. */
static __device__ inline void tile_store(
	const CUtensorMap *map, const void *from, int at0, int at1, int at2, int at3)
{
	asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, "
		     "%3, %4, %5}], [%1];\n" ::"l"(map),
		     "r"(shared_address(from)), "r"(at0), "r"(at1), "r"(at2), "r"(at3)
		     : "memory");
}

/* Makes this thread's tile_store()s since the last call a group. */
static __device__ inline void stores_commit(void)
{
	asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

/* Waits until all groups of this thread, except for the last N, have read shared memory. */
template <int N = 0> static __device__ inline void stores_wait(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(N) : "memory");
}

#include "gpu_wgmma.h"

/* The instructions of kernels/cuda/hopper.h, for a CPU. Asynchronous copies and matmuls
 * complete as late as allowed, and their destination is overwritten with NaN at once: so both
 * reads that are too early and reads that are too late are found. */
#ifndef GPU_HOPPER_H
#define GPU_HOPPER_H

#include "tests/emu/emu.h"

#include <cuda.h>

/* ---- barriers ------------------------------------------------------------------------- */

EMU_INSIDE void emu_barrier_make(uint64_t *barrier, int count);
EMU_INSIDE void emu_publish_barriers(void);
EMU_INSIDE void emu_barrier_arrive(uint64_t *barrier, int n_bytes);
EMU_INSIDE void emu_barrier_arrive_at(uint64_t *barrier, int rank);
EMU_INSIDE void emu_cluster_sync(const char *file, int line);
EMU_INSIDE void emu_barrier_wait(
	uint64_t *barrier, int parity, bool meanwhile, const char *file, int line);
EMU_INSIDE void emu_named(int id, int n, bool wait, const char *file, int line);
EMU_INSIDE void emu_registers(int n, bool more, const char *file, int line);

static inline void barrier_make(uint64_t *barrier, int count)
{
	emu_barrier_make(barrier, count);
}

static inline void publish_barriers(void)
{
	emu_publish_barriers();
}

static inline void barrier_arrive(uint64_t *barrier)
{
	emu_barrier_arrive(barrier, 0);
}

static inline void barrier_expect(uint64_t *barrier, int n_bytes)
{
	emu_barrier_arrive(barrier, n_bytes);
}

static inline void barrier_wait(uint64_t *barrier, int parity, EMU_WHERE)
{
	emu_barrier_wait(barrier, parity, false, file, line);
}

static inline void barrier_wait_meanwhile(uint64_t *barrier, int parity, EMU_WHERE)
{
	emu_barrier_wait(barrier, parity, true, file, line);
}

static inline void barrier_arrive_at(uint64_t *barrier, int rank)
{
	emu_barrier_arrive_at(barrier, rank);
}

static inline void cluster_sync(EMU_WHERE)
{
	emu_cluster_sync(file, line);
}

static inline void turn_wait(int id, int n_threads, EMU_WHERE)
{
	emu_named(id, n_threads, true, file, line);
}

static inline void turn_give(int id, int n_threads, EMU_WHERE)
{
	emu_named(id, n_threads, false, file, line);
}

template <int N> static inline void registers_fewer(EMU_WHERE)
{
	emu_registers(N, false, file, line);
}

template <int N> static inline void registers_more(EMU_WHERE)
{
	emu_registers(N, true, file, line);
}

/* ---- copies of tiles ------------------------------------------------------------------- */

EMU_INSIDE void emu_tile_load(
	void *to, const CUtensorMap *map, uint64_t *barrier, const int at[4]);
/* To the same addresses in the blocks of the cluster that the mask has. */
EMU_INSIDE void emu_tile_load_to(void *to, const CUtensorMap *map, uint64_t *barrier,
	const int at[4], unsigned mask);

static inline void tile_load(void *to, const CUtensorMap *map, uint64_t *barrier, int at0,
	int at1, int at2, int at3)
{
	const int at[4] = {at0, at1, at2, at3};
	emu_tile_load(to, map, barrier, at);
}

static inline void tile_load_both(void *to, const CUtensorMap *map, uint64_t *barrier,
	int at0, int at1, int at2, int at3)
{
	const int at[4] = {at0, at1, at2, at3};
	emu_tile_load_to(to, map, barrier, at, 3);
}

/* ---- stores of tiles ------------------------------------------------------------------- */

EMU_INSIDE void emu_publish_stores(void);
EMU_INSIDE void emu_clear_piece(void *to);
EMU_INSIDE void emu_tile_store(const CUtensorMap *map, const void *from, const int at[4]);
EMU_INSIDE void emu_stores_commit(void);
EMU_INSIDE void emu_stores_wait(int groups);

static inline void publish_stores(void)
{
	emu_publish_stores();
}

static inline void clear_piece(void *to)
{
	emu_clear_piece(to);
}

static inline void tile_store(
	const CUtensorMap *map, const void *from, int at0, int at1, int at2, int at3)
{
	const int at[4] = {at0, at1, at2, at3};
	emu_tile_store(map, from, at);
}

static inline void stores_commit(void)
{
	emu_stores_commit();
}

template <int N = 0> static inline void stores_wait(void)
{
	emu_stores_wait(N);
}

/* ---- matmuls --------------------------------------------------------------------------- */

struct emu_wgmma {
	float *c;
	const uint32_t *registers; /* a, or NULL */
	uint64_t a, b;		   /* in shared memory */
	int n;
	bool a_transposed, transposed, add, bf16;
	const char *file;
	int line;
};
EMU_INSIDE void emu_wgmma_fence(void);
EMU_INSIDE void emu_wgmma_ask(const struct emu_wgmma *p);
EMU_INSIDE void emu_wgmma_commit(void);
EMU_INSIDE void emu_wgmma_wait(int groups, const char *file, int line);

static inline uint32_t shared_address(const void *p)
{
	return emu_address(p);
}

static inline void wgmma_fence(void)
{
	emu_wgmma_fence();
}

static inline void wgmma_commit(void)
{
	emu_wgmma_commit();
}

template <int N> static inline void wgmma_wait(EMU_WHERE)
{
	emu_wgmma_wait(N, file, line);
}

template <int N> static inline void wgmma_wait_after(uint32_t, EMU_WHERE)
{
	emu_wgmma_wait(N, file, line);
}

template <int NT> static inline void wgmma_hold(float (&)[NT][4])
{
}

static inline constexpr bool is_bf16(__nv_bfloat16)
{
	return true;
}

static inline constexpr bool is_bf16(__half)
{
	return false;
}
template <int K> static inline void wgmma_hold(uint32_t (&)[K][4])
{
}

template <bool TRANSPOSED, typename T, int NT>
static inline void wgmma(
	float (&c)[NT][4], uint64_t a, uint64_t b, bool add, T number, EMU_WHERE)
{
	const struct emu_wgmma p = {c[0], NULL, a, b, 8 * NT, false, TRANSPOSED, add,
		is_bf16(number), file, line};
	emu_wgmma_ask(&p);
}

static inline void wgmma_of_rows(
	float (&c)[32][4], uint64_t a, uint64_t b, bool add, EMU_WHERE)
{
	const struct emu_wgmma p = {
		c[0], NULL, a, b, 256, true, true, add, true, file, line};
	emu_wgmma_ask(&p);
}

template <bool TRANSPOSED, typename T, int NT>
static inline void wgmma(float (&c)[NT][4], const uint32_t (&a)[4], uint64_t b, bool add,
	T number, EMU_WHERE)
{
	const struct emu_wgmma p = {c[0], a, 0, b, 8 * NT, false, TRANSPOSED, add,
		is_bf16(number), file, line};
	emu_wgmma_ask(&p);
}

#endif

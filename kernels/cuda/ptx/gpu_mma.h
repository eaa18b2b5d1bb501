/* The instructions of mma.h, for a GPU. */
#pragma once

/* Adds the product of two bf16 fragments: c += a b. mma.h explains the layouts. */
static __device__ inline void mma(
	float c[4], const uint32_t a[4], const uint32_t b[2], __nv_bfloat16)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ inline void mma(
	float c[4], const uint32_t a[4], const uint32_t b[2], __half)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
		     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Loads four 8 x 8 matrices of 16-bit numbers: lane l passes the address of row l % 8 of matrix l /
 * 8, 16 bytes; r[i] receives (g, 2t), (g, 2t + 1) of matrix i; transposed, (2t, g), (2t + 1, g). */
static __device__ inline void ldmatrix(uint32_t r[4], const void *row)
{
	uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(at)
		     : "memory");
}

/* Loads four 8 x 8 matrices of 16-bit numbers as ldmatrix() does, transposed. */
static __device__ inline void ldmatrix_transposed(uint32_t r[4], const void *row)
{
	uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
	asm volatile(
		"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		: "r"(at)
		: "memory");
}

/* Enqueues a copy of 16 bytes, zeros unless is_present, to shared memory; copy_wait() waits. */
static __device__ inline void copy_async(void *to, const void *from, bool is_present)
{
	uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
	int n = is_present ? 16 : 0;
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
		     :
		     : "r"(at), "l"(from), "r"(n)
		     : "memory");
}

static __device__ inline void copy_commit(void)
{
	asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits until at most N of the last committed groups are in flight. */
template <int N> static __device__ inline void copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* Returns 2^x, to 2 ULP; subnormal results are flushed to 0. (exp2f spends three more instructions
 * on them.) */
static __device__ inline float exp2_fast(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Returns 1 / x, to 1 ULP; subnormal numbers are flushed to 0. */
static __device__ inline float rcp_fast(float x)
{
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Stores 16 bytes in global memory as one instruction. */
static __device__ inline void store_16(void *to, uint4 x)
{
	asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(x.x),
		     "r"(x.y), "r"(x.z), "r"(x.w)
		     : "memory");
}

/* The matmuls of hopper.h, for a GPU. */
#pragma once

/* Orders the following matmuls after the threads' accesses to their registers. */
static __device__ inline void wgmma_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

static __device__ inline void wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/* Waits until at most N of the last committed groups are in flight. */
template <int N> static __device__ inline void wgmma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}

/* wgmma_wait() after `bits`, the combined bits of non-negative numbers, are computed. No value
 * depends on a wait, so ptxas would move the wait before the computation that should overlap.
 * It does not move a wait over a store to shared memory; this store, if bits < 0, is never executed
 * (NaN is not less). */
template <int N> static __device__ inline void wgmma_wait_after(uint32_t bits)
{
	asm volatile("{\n"
		     ".reg .pred negative;\n"
		     "setp.lt.f32 negative, %0, 0f00000000;\n"
		     "@negative st.volatile.shared.f32 [%1], %0;\n"
		     "wgmma.wait_group.sync.aligned %2;\n"
		     "}\n" ::"f"(__uint_as_float(bits)),
		     "r"(0), "n"(N)
		     : "memory");
}

/* Keeps the compiler from moving registers that asynchronous matmuls write. */
template <int NT> static __device__ inline void wgmma_hold(float (&c)[NT][4])
{
#pragma unroll
	for (int i = 0; i < NT * 4; i++)
		asm volatile("" : "+f"(c[i / 4][i % 4])::"memory");
}

/* Keeps operands in their registers until the matmuls that read them are done. */
template <int K> static __device__ inline void wgmma_hold(uint32_t (&a)[K][4])
{
#pragma unroll
	for (int i = 0; i < K * 4; i++)
		asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

#define REG4(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define REG16(c, i) REG4(c, i), REG4(c, i + 1), REG4(c, i + 2), REG4(c, i + 3)
#define REG32(c) REG16(c, 0), REG16(c, 4)
#define REG64(c) REG32(c), REG16(c, 8), REG16(c, 12)
#define REG128(c) REG64(c), REG16(c, 16), REG16(c, 20), REG16(c, 24), REG16(c, 28)
#define NAMES32                                          \
	"%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13," \
	"%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
	"%25,%26,%27,%28,%29,%30,%31"
#define NAMES64                                                             \
	NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
		"%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,"  \
		"%60,%61,%62,%63"
#define NAMES128                                                            \
	NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77"  \
		",%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91"  \
		",%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104" \
		",%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115"   \
		",%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126"   \
		",%127"

/* A matmul with 64 x n sums in `regs`; y, z, t: the asm operand numbers, after the sums and a, of
 * b, of the scale-d flag, and of the transpositions. */
#define WGMMA(n, type, names, a_names, y, z, t, regs, ...)                          \
	asm volatile("{\n"                                                          \
		     ".reg .pred add;\n"                                            \
		     "setp.ne.b32 add, %" z ", 0;\n"                                \
		     "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type \
		     " {" names "}, " a_names ", %" y ", add, 1, 1, " t ";\n"       \
		     "}\n"                                                          \
		     : regs                                                         \
		     : __VA_ARGS__, "l"(b), "r"((int)add), "n"((int)TRANSPOSED))
#define A_SHARED "l"(a)
#define A_HELD "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

static __device__ inline constexpr bool is_bf16(__nv_bfloat16)
{
	return true;
}

static __device__ inline constexpr bool is_bf16(__half)
{
	return false;
}

/* c[64, 8 NT] = (add ? c : 0) + a b. Asynchronous: complete after wgmma_commit() and
 * wgmma_wait(). A thread has the elements of c as in mma(), 16 rows per warp.
 * a[64, 16]: columns_of() 64 rows, or registers as in mma().
 * b[16, 8 NT]: the transpose of columns_of() 8 NT rows; or, if TRANSPOSED, rows_of(). */
template <bool TRANSPOSED, typename T, int NT>
static __device__ inline void wgmma(
	float (&c)[NT][4], uint64_t a, uint64_t b, bool add, T number)
{
	static_assert(NT == 8 || NT == 16 || NT == 32, "sums of 64, 128 or 256 columns");
	if constexpr (NT == 32 && is_bf16(T()))
		WGMMA("256", "bf16", NAMES128, "%128", "129", "130", "0, %131", REG128(c),
			A_SHARED);
	else if constexpr (NT == 32)
		WGMMA("256", "f16", NAMES128, "%128", "129", "130", "0, %131", REG128(c),
			A_SHARED);
	else if constexpr (NT == 8 && is_bf16(T()))
		WGMMA("64", "bf16", NAMES32, "%32", "33", "34", "0, %35", REG32(c),
			A_SHARED);
	else if constexpr (NT == 8)
		WGMMA("64", "f16", NAMES32, "%32", "33", "34", "0, %35", REG32(c),
			A_SHARED);
	else if constexpr (is_bf16(T()))
		WGMMA("128", "bf16", NAMES64, "%64", "65", "66", "0, %67", REG64(c),
			A_SHARED);
	else
		WGMMA("128", "f16", NAMES64, "%64", "65", "66", "0, %67", REG64(c),
			A_SHARED);
}

/* Enqueues c[64, 256] = (add ? c : 0) + a^T b for bf16: a[16, 64], b[16, 256] as in rows_of(). */
static __device__ inline void wgmma_of_rows(
	float (&c)[32][4], uint64_t a, uint64_t b, bool add)
{
	constexpr bool TRANSPOSED = true;
	WGMMA("256", "bf16", NAMES128, "%128", "129", "130", "%131, %131", REG128(c),
		A_SHARED);
}

/* Enqueues c = (add ? c : 0) + a b with a in registers; b is as with a in shared memory. */
template <bool TRANSPOSED, typename T, int NT>
static __device__ inline void wgmma(
	float (&c)[NT][4], const uint32_t (&a)[4], uint64_t b, bool add, T number)
{
	static_assert(NT == 8 || NT == 16, "sums of 64 or 128 columns");
	if constexpr (NT == 8 && is_bf16(T()))
		WGMMA("64", "bf16", NAMES32, "{%32,%33,%34,%35}", "36", "37", "%38",
			REG32(c), A_HELD);
	else if constexpr (NT == 8)
		WGMMA("64", "f16", NAMES32, "{%32,%33,%34,%35}", "36", "37", "%38",
			REG32(c), A_HELD);
	else if constexpr (is_bf16(T()))
		WGMMA("128", "bf16", NAMES64, "{%64,%65,%66,%67}", "68", "69", "%70",
			REG64(c), A_HELD);
	else
		WGMMA("128", "f16", NAMES64, "{%64,%65,%66,%67}", "68", "69", "%70",
			REG64(c), A_HELD);
}

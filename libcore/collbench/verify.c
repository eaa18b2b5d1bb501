/*
 * Inputs with known results, and the check of a result.
 *
 * The result of a reduction does not depend on its order only if nothing is rounded. So an input is
 * a hash of (rank, index, iteration), restricted to values for which the operation is exact:
 *   integers, any op   all bits; sums and products wrap (products: odd numbers, so that
 *                      not all results are 0)
 *   floating sum       integers so small that the sum of n fits the mantissa
 *   floating product   powers of two, and one rank's full mantissa; no product overflows
 *   floating min, max  finite numbers other than 0
 * Collectives without an operation move arbitrary bits. Expected results are computed chunk by
 * chunk and compared as bytes.
 */
#include "collbench/collbench.h"

#include <string.h>

enum { CHUNK = 512, GUARD_BYTE = 0xa5 };

/* A chunk of elements in the widest types: floating-point ones as doubles, others as the low bits of
 * an integer. */
union chunk {
	uint64_t u[CHUNK];
	double f[CHUNK];
};

/* The expected content of a block of a buffer: block `block` of a rank's input, or one of these. */
enum {
	ALL_RANKS = -1, /* the reduction of that block over all ranks */
	UNTOUCHED = -2, /* guard bytes */
	UNDEFINED = -3, /* not checked */
};

struct content {
	int rank;
	int64_t block;
};

/* ---- inputs ---------------------------------------------------------------------- */

static bool is_floating(enum comm_type t)
{
	return t == COMM_F32 || t == COMM_F64;
}

static bool is_signed(enum comm_type t)
{
	return t == COMM_I8 || t == COMM_I32 || t == COMM_I64;
}

static int log2_ceil(int n)
{
	int bits = 0;
	while (1 << bits < n)
		bits++;
	return bits;
}

/* 2^e times a mantissa of `bits` bits; the lowest bit of h is the sign. */
static double real(uint64_t h, int bits, int e)
{
	uint64_t mantissa = bits ? h >> (64 - bits) << (52 - bits) : 0;
	uint64_t word = h << 63 | (uint64_t)(1023 + e) << 52 | mantissa;
	double x;
	memcpy(&x, &word, sizeof(x));
	return x;
}

/* `first`: the index, in the rank's input, of the chunk's first element. */
static void make_real(
	const struct verify *v, int rank, int64_t first, int64_t n, union chunk *x)
{
	bool is_float = v->c.type == COMM_F32;
	int mantissa = is_float ? 23 : 52; /* without the leading 1 */
	int whole = mantissa + 1 - log2_ceil(v->n_ranks);
	int range = (is_float ? 124 : 1020) / v->n_ranks; /* of the factors' exponents */
	for (int64_t i = 0; i < n; i++) {
		uint64_t h = x->u[i];
		if (v->c.op == COMM_SUM) {
			int64_t m = (int64_t)(h >> (64 - whole));
			x->f[i] = (double)(h & 1 ? -m : m); /* never -0 */
		} else if (v->c.op == COMM_PROD) {
			bool full = (first + i) % v->n_ranks == rank;
			int e = (int)((h >> 8) % (2 * (uint64_t)range + 1)) - range;
			x->f[i] = full ? real(h, mantissa, 0) : real(h, 0, e);
		} else {
			x->f[i] = real(h, mantissa, (int)((h >> 8) % 201) - 100);
		}
	}
}

/* Integers are reduced in 64 bits, so signed types are sign-extended for comparisons. */
static void make_whole(const struct verify *v, int64_t n, union chunk *x)
{
	int unused = 64 - 8 * (int)comm_type_bytes(v->c.type);
	for (int64_t i = 0; i < n; i++) {
		if (v->c.op == COMM_PROD)
			x->u[i] |= 1;
		if (is_signed(v->c.type))
			x->u[i] = (uint64_t)((int64_t)(x->u[i] << unused) >> unused);
		else
			x->u[i] = x->u[i] << unused >> unused;
	}
}

/* Elements [at, at + n) of block `block` of a rank's input. */
static void make_input(const struct verify *v, int rank, int64_t block, int64_t at,
	int64_t n, union chunk *x)
{
	uint64_t seed = hash_mix(hash_mix(v->iteration) + (uint64_t)rank);
	int64_t first = block * v->c.count + at;
	for (int64_t i = 0; i < n; i++)
		x->u[i] = hash_mix(seed + (uint64_t)(first + i) * 0x9e3779b97f4a7c15u);
	if (!coll_table[v->c.what].has_op)
		return;
	if (is_floating(v->c.type))
		make_real(v, rank, first, n, x);
	else
		make_whole(v, n, x);
}

/* ---- results --------------------------------------------------------------------- */

static void fold_real(enum comm_op op, int64_t n, union chunk *to, const union chunk *x)
{
	for (int64_t i = 0; i < n; i++) {
		double a = to->f[i], b = x->f[i];
		to->f[i] = op == COMM_SUM    ? a + b
			   : op == COMM_PROD ? a * b
			   : op == COMM_MIN  ? (b < a ? b : a)
					     : (b > a ? b : a);
	}
}

static void fold_whole(
	const struct verify *v, int64_t n, union chunk *to, const union chunk *x)
{
	uint64_t flip = is_signed(v->c.type) ? (uint64_t)1 << 63 : 0;
	for (int64_t i = 0; i < n; i++) {
		uint64_t a = to->u[i], b = x->u[i];
		bool less = (b ^ flip) < (a ^ flip);
		to->u[i] = v->c.op == COMM_SUM	  ? a + b
			   : v->c.op == COMM_PROD ? a * b
			   : v->c.op == COMM_MIN  ? (less ? b : a)
						  : (less ? a : b);
	}
}

static void make_reduction(
	const struct verify *v, int64_t block, int64_t at, int64_t n, union chunk *to)
{
	union chunk x;
	make_input(v, 0, block, at, n, to);
	for (int rank = 1; rank < v->n_ranks; rank++) {
		make_input(v, rank, block, at, n, &x);
		if (is_floating(v->c.type))
			fold_real(v->c.op, n, to, &x);
		else
			fold_whole(v, n, to, &x);
	}
}

/* Converts a chunk to the case's type. */
static void store(const struct verify *v, const union chunk *x, int64_t n, void *out)
{
	size_t size = comm_type_bytes(v->c.type);
	bool from_double = v->c.type == COMM_F32 && coll_table[v->c.what].has_op;
	for (int64_t i = 0; i < n; i++) {
		if (from_double)
			((float *)out)[i] = (float)x->f[i];
		else if (size == 8)
			((uint64_t *)out)[i] = x->u[i];
		else if (size == 4)
			((uint32_t *)out)[i] = (uint32_t)x->u[i];
		else
			((uint8_t *)out)[i] = (uint8_t)x->u[i];
	}
}

/* Writes elements [at, at + n) of a block's expected content to `out`. */
static void make(
	const struct verify *v, struct content c, int64_t at, int64_t n, void *out)
{
	union chunk x;
	if (c.rank == UNTOUCHED) {
		memset(out, GUARD_BYTE, (size_t)n * comm_type_bytes(v->c.type));
		return;
	}
	if (c.rank == ALL_RANKS)
		make_reduction(v, c.block, at, n, &x);
	else
		make_input(v, c.rank, c.block, at, n, &x);
	store(v, &x, n, out);
}

/* ---- buffers --------------------------------------------------------------------- */

static bool in_place(const struct verify *v)
{
	return v->c.place == COLL_IN_PLACE;
}

static int64_t blocks(const struct verify *v, int parts)
{
	return parts ? parts : v->n_ranks;
}

static int64_t send_blocks(const struct verify *v)
{
	return in_place(v) ? 0 : blocks(v, coll_table[v->c.what].send_parts);
}

static int64_t recv_blocks(const struct verify *v)
{
	return in_place(v) ? coll_blocks(v->c.what, v->n_ranks)
			   : blocks(v, coll_table[v->c.what].recv_parts);
}

/* The content of block b of the receive buffer before the collective. */
static struct content before(const struct verify *v, int64_t b)
{
	struct content mine = {v->rank, b}, nothing = {UNTOUCHED, 0};
	if (!in_place(v))
		return nothing;
	switch (v->c.what) {
	case COLL_BROADCAST:
	case COLL_SCATTER:
		return v->rank == v->c.root ? mine : nothing;
	case COLL_ALLGATHER:
	case COLL_GATHER:
		return b == v->rank ? (struct content){v->rank, 0} : nothing;
	default:
		return mine;
	}
}

/* The content after the collective: unchanged on ranks that get no result. */
static struct content after(const struct verify *v, int64_t b)
{
	bool at_root = v->rank == v->c.root;
	switch (v->c.what) {
	case COLL_ALLREDUCE:
		return (struct content){ALL_RANKS, 0};
	case COLL_REDUCE:
		return at_root ? (struct content){ALL_RANKS, 0} : before(v, b);
	case COLL_BROADCAST:
		return (struct content){v->c.root, 0};
	case COLL_ALLGATHER:
		return (struct content){(int)b, 0};
	case COLL_REDUCESCATTER:
		return (struct content){b ? UNDEFINED : ALL_RANKS, v->rank};
	case COLL_SCATTER:
		if (in_place(v) && b != v->rank)
			return before(v, b);
		return (struct content){v->c.root, v->rank};
	case COLL_GATHER:
		return at_root ? (struct content){(int)b, 0} : before(v, b);
	case COLL_ALLTOALL:
		return (struct content){(int)b, v->rank};
	case COLL_SENDRECV:
		return (struct content){(v->rank + v->n_ranks - 1) % v->n_ranks, 0};
	default:
		return (struct content){UNTOUCHED, 0};
	}
}

static void fill(const struct verify *v, struct content c, char *to)
{
	for (int64_t at = 0; at < v->c.count; at += CHUNK)
		make(v, c, at, min64(CHUNK, v->c.count - at),
			to + at * (int64_t)comm_type_bytes(v->c.type));
}

static int64_t count_wrong(const struct verify *v, struct content c, const char *got)
{
	union chunk right;
	size_t size = comm_type_bytes(v->c.type);
	int64_t wrong = 0;
	if (c.rank == UNDEFINED)
		return 0;
	for (int64_t at = 0; at < v->c.count; at += CHUNK) {
		int64_t n = min64(CHUNK, v->c.count - at);
		make(v, c, at, n, &right);
		const char *mine = got + (size_t)at * size;
		if (!memcmp(mine, &right, (size_t)n * size))
			continue;
		for (size_t i = 0; i < (size_t)n * size; i += size)
			wrong += memcmp(mine + i, (const char *)&right + i, size) != 0;
	}
	return wrong;
}

static int64_t guard_wrong(const struct verify *v, const char *guard)
{
	size_t size = comm_type_bytes(v->c.type);
	int64_t wrong = 0;
	for (size_t at = 0; at < VERIFY_GUARD; at += size) {
		bool same = true;
		for (size_t i = 0; i < size; i++)
			same = same && (unsigned char)guard[at + i] == GUARD_BYTE;
		wrong += !same;
	}
	return wrong;
}

void verify_fill(const struct verify *v, char *send, char *recv)
{
	int64_t block_bytes = v->c.count * (int64_t)comm_type_bytes(v->c.type);
	char *ends[] = {send, send + send_blocks(v) * block_bytes, recv,
		recv + recv_blocks(v) * block_bytes};
	for (int64_t b = 0; b < send_blocks(v); b++)
		fill(v, (struct content){v->rank, b}, send + b * block_bytes);
	for (int64_t b = 0; b < recv_blocks(v); b++)
		fill(v, before(v, b), recv + b * block_bytes);
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		memset(i % 2 ? ends[i] : ends[i] - VERIFY_GUARD, GUARD_BYTE,
			VERIFY_GUARD);
}

int64_t verify_wrong(const struct verify *v, const char *send, const char *recv)
{
	int64_t block_bytes = v->c.count * (int64_t)comm_type_bytes(v->c.type), wrong = 0;
	const char *ends[] = {send, send + send_blocks(v) * block_bytes, recv,
		recv + recv_blocks(v) * block_bytes};
	for (int64_t b = 0; b < send_blocks(v); b++)
		wrong += count_wrong(
			v, (struct content){v->rank, b}, send + b * block_bytes);
	for (int64_t b = 0; b < recv_blocks(v); b++)
		wrong += count_wrong(v, after(v, b), recv + b * block_bytes);
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		wrong += guard_wrong(v, i % 2 ? ends[i] : ends[i] - VERIFY_GUARD);
	return wrong;
}

/* Inputs with known results, and the check of a result.
 *
 * The result of a reduction is independent of its order only if nothing is rounded. So an input is
 * a hash of (rank, index, iteration), restricted to values for which the operation is exact:
 *   integers, any op   all bits; sums and products wrap (products: odd numbers, so that
 *                      not all results are 0)
 *   floating sum       integers so small that the sum of n fits into the mantissa; if n is too
 *                      large, some ranks have zeros
 *   floating product   powers of two, and one rank's full mantissa; no product overflows
 *   floating min, max  finite numbers other than 0
 * Collectives without an operation move arbitrary bits. Expected results are computed chunk by
 * chunk and compared as bytes. */
#include "collbench/bench_internal.h"

#include "comm/tree.h"
#include "kernels/dtype_bits.h"

#include <float.h>
#include <math.h>

enum { CHUNK = 512, GUARD_BYTE = 0xa5 };

/* A chunk of elements: floats as doubles, integers in the low bits of 64. */
union chunk {
	uint64_t u[CHUNK];
	double f[CHUNK];
};

/* Values of content.rank other than a rank. */
enum {
	ALL_RANKS = -1, /* the reduction of the block over all ranks */
	UNTOUCHED = -2, /* guard bytes */
	UNDEFINED = -3, /* not checked */
};

/* The expected content of a block of a buffer: block `block` of the input of `rank`. */
struct content {
	int rank;
	int64_t block;
};

static bool has_op(const struct verify *v)
{
	return bench_info(v->c.what)->has_op;
}

/* Returns the stored bits of the mantissa, without the leading 1. */
static int mantissa_bits(enum comm_type t)
{
	return t == COMM_F64 ? DBL_MANT_DIG - 1
			     : dtype_table[comm_type_table[t].dtype].fraction_bits;
}

/* Returns the largest e for which 2^e and 2^-e are normal numbers. */
static int largest_exponent(enum comm_type t)
{
	double min = t == COMM_F64 ? DBL_MIN
				   : dtype_table[comm_type_table[t].dtype].min_normal;
	return -ilogb(min);
}

/* Returns 2^e times a mantissa of the `bits` highest bits of h; the lowest bit is the sign. */
static double make_float(uint64_t h, int bits, int e)
{
	uint64_t mantissa = bits ? h >> (64 - bits) << (52 - bits) : 0;
	uint64_t word = h << 63 | (uint64_t)(1023 + e) << 52 | mantissa;
	double x;
	memcpy(&x, &word, sizeof(x));
	return x;
}

/* Returns an integer so small that the mantissa can hold the sum over all ranks exactly. */
static double make_exact_integer(const struct verify *v, int rank, int64_t at, uint64_t h)
{
	int bits = mantissa_bits(v->c.type) + 1 - tree_levels(v->n_ranks);
	int stride = bits < 1 ? 1 << (1 - bits) : 1;
	int64_t m = (int64_t)(h >> (64 - (bits < 1 ? 1 : bits)));
	if ((rank + at) % stride)
		return 0;
	return (double)(h & 1 ? -m : m); /* never -0 */
}

/* Turns random bits, elements [first, first + n) of a rank, into exactly reducible floats. */
static void make_floats(
	const struct verify *v, int rank, int64_t first, int64_t n, union chunk *x)
{
	int mantissa = mantissa_bits(v->c.type), limit = largest_exponent(v->c.type) - 2;
	uint64_t n_product = 2 * (uint64_t)(limit / v->n_ranks) + 1; /* exponents */
	uint64_t n_any = 2 * (uint64_t)min64(100, limit) + 1;
	for (int64_t i = 0; i < n; i++) {
		uint64_t h = x->u[i], e = h >> 8;
		if (v->c.op == COMM_SUM) {
			x->f[i] = make_exact_integer(v, rank, first + i, h);
		} else if (v->c.op == COMM_PROD) {
			bool is_full = (first + i) % v->n_ranks == rank;
			x->f[i] = is_full ? make_float(h, mantissa, 0)
					  : make_float(h, 0,
						    (int)(e % n_product) -
							    (int)(n_product / 2));
		} else {
			x->f[i] = make_float(
				h, mantissa, (int)(e % n_any) - (int)(n_any / 2));
		}
	}
}

/* Turns random bits into integers, sign-extended because they are reduced in 64 bits. */
static void make_integers(const struct verify *v, int64_t n, union chunk *x)
{
	int unused = 64 - 8 * (int)comm_type_bytes(v->c.type);
	for (int64_t i = 0; i < n; i++) {
		if (v->c.op == COMM_PROD)
			x->u[i] |= 1;
		if (comm_type_table[v->c.type].is_signed)
			x->u[i] = (uint64_t)((int64_t)(x->u[i] << unused) >> unused);
		else
			x->u[i] = x->u[i] << unused >> unused;
	}
}

/* Sets *x to elements [at, at + n) of a block of a rank's input. */
static void make_input(const struct verify *v, int rank, int64_t block, int64_t at,
	int64_t n, union chunk *x)
{
	uint64_t seed = hash_mix(hash_mix(v->iteration) + (uint64_t)rank);
	int64_t first = block * v->c.count + at;
	for (int64_t i = 0; i < n; i++)
		x->u[i] = hash_mix(seed + (uint64_t)(first + i) * 0x9e3779b97f4a7c15u);
	if (!has_op(v))
		return;
	if (comm_type_table[v->c.type].is_floating)
		make_floats(v, rank, first, n, x);
	else
		make_integers(v, n, x);
}

/* Sets to[i] = to[i] op x[i] in double precision. */
static void reduce_floats(
	enum comm_op op, int64_t n, union chunk *to, const union chunk *x)
{
	for (int64_t i = 0; i < n; i++) {
		double a = to->f[i], b = x->f[i];
		to->f[i] = op == COMM_SUM    ? a + b
			   : op == COMM_PROD ? a * b
			   : op == COMM_MIN  ? (b < a ? b : a)
					     : (b > a ? b : a);
	}
}

/* Sets to[i] = to[i] op x[i] for integers of any width, signed or not. */
static void reduce_integers(
	const struct verify *v, int64_t n, union chunk *to, const union chunk *x)
{
	uint64_t flip = comm_type_table[v->c.type].is_signed ? (uint64_t)1 << 63 : 0;
	for (int64_t i = 0; i < n; i++) {
		uint64_t a = to->u[i], b = x->u[i];
		bool less = (b ^ flip) < (a ^ flip);
		to->u[i] = v->c.op == COMM_SUM	  ? a + b
			   : v->c.op == COMM_PROD ? a * b
			   : v->c.op == COMM_MIN  ? (less ? b : a)
						  : (less ? a : b);
	}
}

/* Sets *to to elements [at, at + n) of the reduction of a block over all ranks. */
static void make_reduction(
	const struct verify *v, int64_t block, int64_t at, int64_t n, union chunk *to)
{
	union chunk x;
	make_input(v, 0, block, at, n, to);
	for (int rank = 1; rank < v->n_ranks; rank++) {
		make_input(v, rank, block, at, n, &x);
		if (comm_type_table[v->c.type].is_floating)
			reduce_floats(v->c.op, n, to, &x);
		else
			reduce_integers(v, n, to, &x);
	}
}

/* Converts n elements of *x to the type of the case, rounded once, and stores them in out. */
static void store_chunk(
	const struct verify *v, const union chunk *x, int64_t n, void *out)
{
	const struct comm_type_info *t = &comm_type_table[v->c.type];
	bool reduces = has_op(v) && t->is_floating && v->c.type != COMM_F64;
	for (int64_t i = 0; i < n; i++) {
		uint64_t bits = x->u[i];
		if (reduces && v->c.type == COMM_F32)
			bits = bits_of((float)x->f[i]);
		else if (reduces)
			bits = narrow_bits((float)x->f[i], (enum dtype)t->dtype);
		/* little-endian: the low bytes are first */
		memcpy((char *)out + i * t->bytes, &bits, (size_t)t->bytes);
	}
}

/* Writes elements [at, at + n) of a block's expected content to `out`. */
static void make_content(
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
	store_chunk(v, &x, n, out);
}

static bool is_in_place(const struct verify *v)
{
	return v->c.place == COLL_IN_PLACE;
}

static int64_t count_blocks(const struct verify *v, int blocks)
{
	return blocks ? blocks : v->n_ranks; /* 0: one per rank */
}

static int64_t send_blocks(const struct verify *v)
{
	return is_in_place(v) ? 0 : count_blocks(v, bench_info(v->c.what)->send_parts);
}

static int64_t recv_blocks(const struct verify *v)
{
	return is_in_place(v) ? coll_blocks(bench_info(v->c.what), v->n_ranks)
			      : count_blocks(v, bench_info(v->c.what)->recv_parts);
}

/* Returns the content of block b of the receive buffer before the collective. */
static struct content content_before(const struct verify *v, int64_t b)
{
	struct content own = {v->rank, b}, nothing = {UNTOUCHED, 0};
	if (!is_in_place(v))
		return nothing;
	switch (v->c.what) {
	case COLL_BROADCAST:
	case COLL_SCATTER:
		return v->rank == v->c.root ? own : nothing;
	case COLL_ALLGATHER:
	case COLL_GATHER:
	case BENCH_HYPERCUBE:
		return b == v->rank ? (struct content){v->rank, 0} : nothing;
	default:
		return own;
	}
}

/* Returns the received content after messages between pairs; undefined on ranks that only send. */
static struct content content_after_messages(const struct verify *v)
{
	int peer = bench_peer(v->rank, v->n_ranks);
	bool received = v->c.what != BENCH_BANDWIDTH || v->rank > peer;
	return (struct content){received ? peer : UNDEFINED, 0};
}

/* Returns the content of block b of the receive buffer after the collective. */
static struct content content_after(const struct verify *v, int64_t b)
{
	bool at_root = v->rank == v->c.root;
	switch (v->c.what) {
	case COLL_ALLREDUCE:
		return (struct content){ALL_RANKS, 0};
	case COLL_REDUCE:
		return at_root ? (struct content){ALL_RANKS, 0} : content_before(v, b);
	case COLL_BROADCAST:
		return (struct content){v->c.root, 0};
	case COLL_ALLGATHER:
	case BENCH_HYPERCUBE:
		return (struct content){(int)b, 0};
	case COLL_REDUCESCATTER:
		return (struct content){b ? UNDEFINED : ALL_RANKS, v->rank};
	case COLL_SCATTER:
		if (is_in_place(v) && b != v->rank)
			return content_before(v, b);
		return (struct content){v->c.root, v->rank};
	case COLL_GATHER:
		return at_root ? (struct content){(int)b, 0} : content_before(v, b);
	case COLL_ALLTOALL:
	case BENCH_ALLTOALLV:
		return (struct content){(int)b, v->rank};
	case COLL_SENDRECV:
		return (struct content){(v->rank + v->n_ranks - 1) % v->n_ranks, 0};
	case BENCH_LATENCY:
	case BENCH_BANDWIDTH:
	case BENCH_BIDIRECTIONAL:
		return content_after_messages(v);
	default:
		return (struct content){UNTOUCHED, 0};
	}
}

/* Writes the expected content of a block, n elements, to `to`, in chunks. */
static void fill_block(const struct verify *v, struct content c, int64_t n, char *to)
{
	for (int64_t at = 0; at < n; at += CHUNK)
		make_content(v, c, at, min64(CHUNK, n - at),
			to + at * (int64_t)comm_type_bytes(v->c.type));
}

/* Returns how many of n elements differ from their expected content. */
static int64_t count_wrong(
	const struct verify *v, struct content c, int64_t n, const char *actual)
{
	union chunk expected;
	size_t size = comm_type_bytes(v->c.type);
	int64_t wrong = 0;
	if (c.rank == UNDEFINED)
		return 0;
	for (int64_t at = 0; at < n; at += CHUNK) {
		size_t n_bytes = (size_t)min64(CHUNK, n - at) * size;
		make_content(v, c, at, min64(CHUNK, n - at), &expected);
		const char *here = actual + (size_t)at * size;
		if (!memcmp(here, &expected, n_bytes))
			continue;
		for (size_t i = 0; i < n_bytes; i += size)
			wrong += memcmp(here + i, (const char *)&expected + i, size) != 0;
	}
	return wrong;
}

/* Returns the number of elements of a guard that were overwritten. */
static int64_t count_wrong_guards(const struct verify *v, const char *guard)
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
	int64_t size = (int64_t)comm_type_bytes(v->c.type);
	memset(send - VERIFY_GUARD, GUARD_BYTE, VERIFY_GUARD);
	for (int64_t b = 0; b < send_blocks(v); b++) {
		fill_block(v, (struct content){v->rank, b},
			bench_block_elements(&v->c, b), send);
		send += bench_block_elements(&v->c, b) * size;
	}
	memset(send, GUARD_BYTE, VERIFY_GUARD);
	memset(recv - VERIFY_GUARD, GUARD_BYTE, VERIFY_GUARD);
	for (int64_t b = 0; b < recv_blocks(v); b++) {
		fill_block(v, content_before(v, b), bench_block_elements(&v->c, v->rank),
			recv);
		recv += bench_block_elements(&v->c, v->rank) * size;
	}
	memset(recv, GUARD_BYTE, VERIFY_GUARD);
}

int64_t verify_count_wrong(const struct verify *v, const char *send, const char *recv)
{
	int64_t size = (int64_t)comm_type_bytes(v->c.type);
	int64_t wrong = count_wrong_guards(v, send - VERIFY_GUARD) +
			count_wrong_guards(v, recv - VERIFY_GUARD);
	for (int64_t b = 0; b < send_blocks(v); b++) {
		wrong += count_wrong(v, (struct content){v->rank, b},
			bench_block_elements(&v->c, b), send);
		send += bench_block_elements(&v->c, b) * size;
	}
	for (int64_t b = 0; b < recv_blocks(v); b++) {
		wrong += count_wrong(v,
			content_after(v, b), /* each rank sends this rank's block */
			bench_block_elements(&v->c, v->rank), recv);
		recv += bench_block_elements(&v->c, v->rank) * size;
	}
	return wrong + count_wrong_guards(v, send) + count_wrong_guards(v, recv);
}

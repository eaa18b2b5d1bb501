/* Checks of results: known sums, equal bits when repeated, the order of a barrier. */
#include "collbench/bench_internal.h"

#include "base/file.h"
#include "kernels/dtype_bits.h"

#include <unistd.h>

static bool has_fault(const struct bench *b, int what)
{
	const struct bench_fault *f = &b->fault;
	return f->wanted && f->what == what && f->rank == b->home->rank;
}

/* Flips a bit of the result if the fault is in this case on this rank. */
static void inject_fault(struct bench *b, const struct coll_case *c)
{
	int64_t type_bytes = (int64_t)comm_type_bytes(c->type),
		guard = VERIFY_GUARD / type_bytes;
	int64_t n = bench_bytes(c->what, b->comm->size, c->count, c->type) / type_bytes;
	int64_t at = b->fault.element;
	if (!has_fault(b, c->what) || at < -guard || at >= n + guard)
		return;
	b->host_recv[at * type_bytes] ^= 1;
	b->fault.done = true;
}

/* Runs an iteration with data of this iteration. Returns the number of wrong elements. */
static int64_t check_buffers(
	struct bench *b, const struct coll_case *c, int64_t iteration)
{
	struct verify v = {*c, b->comm->rank, b->comm->size, (uint64_t)iteration};
	struct coll_args a = bench_make_args(b, c);
	verify_fill(&v, b->host_send, b->host_recv);
	bench_copy_to_device(b);
	if (c->what >= N_COLL)
		bench_run_messages(b, c);
	else
		bench_call_once(b, (enum coll)c->what, &a);
	bench_copy_from_device(b);
	inject_fault(b, c);
	return verify_count_wrong(&v, b->host_send, b->host_recv);
}

/* Fills a buffer with random values. Their sums are rounded, so they depend on the order. */
static void fill_random(const struct bench *b, const struct coll_case *c, char *to)
{
	const struct comm_type_info *t = &comm_type_table[c->type];
	int64_t n = bench_bytes(c->what, b->comm->size, c->count, c->type) / t->bytes;
	for (int64_t i = 0; i < n; i++) {
		uint64_t x = hash_mix((uint64_t)(i * b->comm->size + b->comm->rank));
		float f = (float)x * 0x1p-60f + 0.1f;
		double g = (double)f / 3;
		if (c->type == COMM_F64)
			memcpy(&x, &g, sizeof(x));
		else if (c->type == COMM_F32)
			memcpy(&x, &f, sizeof(f));
		else if (t->is_floating)
			x = narrow_bits(f, (enum dtype)t->dtype);
		memcpy(to + i * t->bytes, &x, (size_t)t->bytes);
	}
}

/* Reduces equal inputs repeatedly. Returns how many elements on this rank differ from the first
 * result, and sets *digest to a hash of the first result. */
static int64_t count_differing(
	struct bench *b, const struct coll_case *c, uint64_t *digest)
{
	struct coll_args a = bench_make_args(b, c);
	int64_t type_bytes = (int64_t)comm_type_bytes(c->type), differ = 0;
	int64_t n = c->what == COLL_REDUCESCATTER
			    ? c->count
			    : bench_bytes(c->what, b->comm->size, c->count, c->type) /
				      type_bytes;
	bool has_result = !coll_table[c->what].has_root || b->comm->rank == c->root;
	scoped_ptr char *first = xmalloc((size_t)(n * type_bytes) + 1);
	for (int64_t run = 0; run <= b->o.reruns; run++) {
		fill_random(b, c, a.send ? b->host_send : b->host_recv);
		bench_copy_to_device(b);
		bench_call_once(b, (enum coll)c->what, &a);
		bench_copy_from_device(b);
		if (!run)
			memcpy(first, b->host_recv, (size_t)(n * type_bytes));
		for (int64_t i = 0; i < n && has_result; i++)
			differ += memcmp(first + i * type_bytes,
					  b->host_recv + i * type_bytes,
					  (size_t)type_bytes) != 0;
	}
	*digest = has_result ? hash_bytes(first, (size_t)(n * type_bytes),
				       (uint64_t)b->home->rank)
			     : 0;
	return differ;
}

/* Repeats a reduction; sets r->differ and r->digest. Collective over `home`. */
static void repeat_reduction(
	struct bench *b, const struct coll_case *c, struct bench_result *r)
{
	enum { CARRY_BITS = 16 }; /* so that the sum over ranks does not overflow */
	int64_t sums[2] = {0};
	uint64_t digest = 0;
	if (b->comm)
		sums[0] = count_differing(b, c, &digest);
	sums[1] = (int64_t)(digest >> CARRY_BITS);
	comm_sum_i64(b->home, sums, 2);
	r->differ = sums[0];
	r->digest = sums[1];
}

/* Returns an ID that is equal for ranks that share a monotonic clock. */
static uint64_t clock_id(int rank)
{
	uint64_t id = boot_id();
	return id ? id : (uint64_t)rank;
}

/* Counts turns in which this rank left a barrier before a late rank had entered it. */
static int64_t count_early_exits(struct bench *b)
{
	struct visit {
		uint64_t clock;
		double entered, left;
	};
	enum { MAX_TURNS = 8, LATE_US = 500 };
	struct comm *c = b->comm;
	scoped_ptr struct visit *all = xcalloc((size_t)c->size, sizeof(*all));
	struct coll_args none = {.count = 0};
	struct visit own = {.clock = clock_id(c->rank)};
	int64_t turns = min64(c->size, MAX_TURNS), wrong = 0;
	for (int64_t turn = 0; turn < turns; turn++) {
		if (c->rank == part_begin(c->size, turns, turn))
			usleep(LATE_US);
		own.entered = clock_seconds();
		bench_call_once(b, COLL_BARRIER, &none);
		own.left = clock_seconds();
		if (has_fault(b,
			    COLL_BARRIER)) { /* a planted fault: pretends an early exit */
			own.left = 0;
			b->fault.done = true;
		}
		comm_allgather(c, &own, all, sizeof(own));
		bool is_early = false;
		for (int r = 0; r < c->size; r++)
			is_early = is_early || (all[r].clock == own.clock &&
						       own.left < all[r].entered);
		wrong += is_early;
	}
	return wrong;
}

void bench_check(struct bench *b, const struct coll_case *c, struct bench_result *r)
{
	if (b->o.reruns && bench_info(c->what)->has_op)
		repeat_reduction(b, c, r);
	if (!b->o.checks)
		return;
	r->wrong = 0;
	for (int64_t i = 0; i < b->o.checks && bench_takes_part(b, c->what); i++)
		r->wrong += c->what == COLL_BARRIER ? count_early_exits(b)
						    : check_buffers(b, c, i);
	comm_sum_i64(b->home, &r->wrong, 1);
}

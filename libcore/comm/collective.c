/* The table of collectives, collectives on a few values, error agreement. */
#include "comm/collective.h"
#include "kernels/dtype.h"

/* clang-format off */
const struct comm_type_info comm_type_table[N_COMM_TYPES] = {
	[COMM_I8] = {1, false, true, -1},
	[COMM_U8] = {1, false, false, -1},
	[COMM_I32] = {4, false, true, -1},
	[COMM_U32] = {4, false, false, -1},
	[COMM_I64] = {8, false, true, -1},
	[COMM_U64] = {8, false, false, -1},
	[COMM_F32] = {4, true, true, DT_F32},
	[COMM_F64] = {8, true, true, -1},
	[COMM_F16] = {2, true, true, DT_F16},
	[COMM_BF16] = {2, true, true, DT_BF16},
	[COMM_E4M3] = {1, true, true, DT_E4M3},
	[COMM_E5M2] = {1, true, true, DT_E5M2},
};
/* clang-format on */

size_t comm_type_bytes(enum comm_type t)
{
	return (size_t)comm_type_table[t].bytes;
}

static double bus_allreduce(int n)
{
	return 2.0 * (n - 1) / n;
}

double bus_share(int n)
{
	return (double)(n - 1) / n;
}

double bus_whole(int n)
{
	(void)n;
	return 1;
}

/* has_place follows MPI: MPI_Bcast takes one buffer, MPI_Sendrecv two. */
/* clang-format off */
const struct coll_info coll_table[N_COLL] = {
	[COLL_ALLREDUCE] = {"allreduce", 1, 1, false, true, {true, true}, bus_allreduce, "2(n-1)/n",
		"every rank gets the reduction"},
	[COLL_REDUCE] = {"reduce", 1, 1, true, true, {true, true}, bus_whole, "1",
		"the root gets the reduction"},
	[COLL_BROADCAST] = {"broadcast", 1, 1, true, false, {false, true}, bus_whole, "1",
		"every rank gets what the root has"},
	[COLL_ALLGATHER] = {"allgather", 1, 0, false, false, {true, true}, bus_share, "(n-1)/n",
		"every rank gets what all ranks have"},
	[COLL_REDUCESCATTER] = {"reducescatter", 0, 1, false, true, {true, true}, bus_share, "(n-1)/n",
		"each rank gets its part of the reduction"},
	[COLL_SCATTER] = {"scatter", 0, 1, true, false, {true, true}, bus_share, "(n-1)/n",
		"each rank gets its part of what the root has"},
	[COLL_GATHER] = {"gather", 1, 0, true, false, {true, true}, bus_share, "(n-1)/n",
		"the root gets what all ranks have"},
	[COLL_ALLTOALL] = {"alltoall", 0, 0, false, false, {true, true}, bus_share, "(n-1)/n",
		"each rank sends a part to every rank"},
	[COLL_SENDRECV] = {"sendrecv", 1, 1, false, false, {true, false}, bus_whole, "1",
		"to the next rank, from the one before"},
	[COLL_BARRIER] = {"barrier", 1, 1, false, false, {true, false}, bus_whole, "1",
		"no rank leaves before all have entered"},
};
/* clang-format on */

int coll_blocks(const struct coll_info *i, int ranks)
{
	return i->send_parts && i->recv_parts ? 1 : ranks;
}

int64_t coll_bytes(enum coll what, int ranks, int64_t count, enum comm_type t)
{
	return count * coll_blocks(&coll_table[what], ranks) *
	       (int64_t)comm_type_bytes(t);
}

/* ---- on a few values ------------------------------------------------------------- */

void comm_barrier(struct comm *c)
{
	comm_run(c, COLL_BARRIER, &(struct coll_args){0});
}

void comm_bcast(struct comm *c, void *p, int64_t n_bytes, int root)
{
	comm_run(c, COLL_BROADCAST,
		&(struct coll_args){
			.recv = p, .count = n_bytes, .type = COMM_U8, .root = root});
}

void comm_bcast_str(struct comm *c, struct str *s, int root)
{
	int64_t len = (int64_t)s->len;
	comm_bcast(c, &len, sizeof(len), root);
	str_reserve(s, (size_t)len);
	s->len = (size_t)len;
	s->s[len] = '\0';
	comm_bcast(c, s->s, len, root);
}

void comm_sum_i64(struct comm *c, int64_t *v, int64_t n)
{
	comm_run(c, COLL_ALLREDUCE,
		&(struct coll_args){
			.recv = v, .count = n, .type = COMM_I64, .op = COMM_SUM});
}

static int64_t reduce_value(struct comm *c, int64_t v, enum comm_op op)
{
	comm_run(c, COLL_ALLREDUCE,
		&(struct coll_args){.recv = &v, .count = 1, .type = COMM_I64, .op = op});
	return v;
}

int64_t comm_max_i64(struct comm *c, int64_t v)
{
	return reduce_value(c, v, COMM_MAX);
}

int64_t comm_min_i64(struct comm *c, int64_t v)
{
	return reduce_value(c, v, COMM_MIN);
}

void comm_allgather(struct comm *c, const void *own, void *all, int64_t n_bytes)
{
	comm_run(c, COLL_ALLGATHER,
		&(struct coll_args){
			.send = own, .recv = all, .count = n_bytes, .type = COMM_U8});
}

int comm_agree(struct comm *c, struct err *e)
{
	int64_t first = comm_min_i64(c, e->code ? c->rank : c->size);
	if (first == c->size)
		return 0;
	int64_t msg_hash = (int64_t)(hash_str(e->msg) >> 1);
	bool same_error = comm_min_i64(c, msg_hash) == comm_max_i64(c, msg_hash);
	struct err agreed = *e;
	comm_bcast(c, &agreed, sizeof(agreed), (int)first);
	*e = agreed;
	if (!same_error) /* an error that all ranks share needs no rank number */
		err_prefix(e, "rank %lld: ", (long long)first);
	return -1;
}

/* Device memory, transferred by NCCL or MPI. MPI cannot access it, so its messages use host
 * buffers (staging). Data to be sent are copied to the host when the request starts. Received data
 * are copied to the device when a test finds the request complete. */
#include "comm/comm_internal.h"
#include "comm/nccl.h"
#include "kernels/kernels.h"

static struct device *device;

/* ---- NCCL -------------------------------------------------------------------------- */

/* Reports the device's operation to the watchdog and polls if `waits`; else ends that wait. */
static void poll_device(bool waits)
{
	static struct comm_what what;
	static const struct comm *group;
	static uint64_t seq;
	const struct comm *waiting_group = waits ? nccl_waits_for(&what) : NULL;
	if (waiting_group != group || (waiting_group && what.seq != seq))
		watchdog_wait(waiting_group, waiting_group ? &what : NULL);
	group = waiting_group;
	seq = what.seq;
	if (waits)
		comm_poll();
}

/* Returns true if this rank can use NCCL, else false with the reason in *e. */
static bool can_use_nccl(const struct device *d, struct err *e)
{
	const char *host = getenv("NCCL_HOSTID");
	if (!d->discrete)
		err_set(e, EX_USAGE, "--comm nccl needs GPUs");
	else if (d->sharers > 1 && !(host && *host))
		err_set(e, EX_USAGE,
			"%d ranks share a GPU, but NCCL needs one per rank; for tests, "
			"a different NCCL_HOSTID on each rank lets them share it",
			d->sharers);
	else
		nccl_library(e);
	return !e->code;
}

int comm_device_open(
	struct comm *c, struct device *d, enum comm_library which, struct err *e)
{
	struct err why = {0};
	device = d->discrete ? d : NULL;
	if (c->size == 1 || !comm_max_i64(c, d->discrete))
		return 0;
	if (which == COMM_MPI)
		return 0;
	can_use_nccl(d, &why);
	bool usable = !comm_agree(c, &why);
	if (usable && !nccl_open(c, d, &why)) {
		d->poll = poll_device;
		return 0;
	}
	if (which == COMM_NCCL) {
		*e = why;
		return -1;
	}
	if (c->rank == 0 && usable)
		warn("GPUs exchange data by MPI: %s; NCCL_DEBUG=INFO shows details",
			why.msg);
	else if (c->rank == 0)
		info("GPUs exchange data by MPI: %s", why.msg);
	return 0;
}

void comm_device_part(struct comm *from, struct comm *part)
{
	if (from->nccl && part != from)
		nccl_split(from, part, part ? part->color & INT32_MAX : 0);
}

void comm_device_close(void)
{
	nccl_close_all();
	device = NULL;
}

int comm_gpu_sharers(struct comm *c)
{
	uint64_t own_gpu = device_gpu_id(comm_here.local_rank);
	scoped_ptr uint64_t *gpus = xcalloc((size_t)c->size, sizeof(*gpus));
	int sharers = 0;
	comm_allgather(c, &own_gpu, gpus, sizeof(own_gpu));
	for (int r = 0; r < c->size && own_gpu; r++)
		sharers += gpus[r] == own_gpu;
	return sharers;
}

const char *comm_device_library(void)
{
	const char *version = nccl_version();
	return *version ? version : "MPI";
}

/* ---- staging ------------------------------------------------------------------------ */

bool staging_needed(const void *p)
{
	return device && device_owns(device, p);
}

bool device_copy(void *to, const void *from, int64_t n_bytes)
{
	if (!staging_needed(to) || !staging_needed(from))
		return false;
	device->k->copy(device, mat_typed(to, 1, n_bytes, DT_E4M3),
		mat_typed((void *)(uintptr_t)from, 1, n_bytes, DT_E4M3));
	return true;
}

/* Computes the bytes of a request's input and result buffers; a message has only one buffer. */
static void buffer_bytes(
	const struct comm *c, const struct comm_request *r, int64_t *n_in, int64_t *n_out)
{
	const struct coll_args *a = &r->a;
	const struct coll_info *info = &coll_table[r->coll];
	int64_t block = a->count * (int64_t)comm_type_bytes(a->type);
	*n_in = r->kind == COMM_COLLECTIVE && !info->send_parts ? block * c->size : block;
	*n_out = block;
	if (r->kind == COMM_COLLECTIVE && !a->send)
		*n_out = block * coll_blocks(&coll_table[r->coll], c->size);
	else if (r->kind == COMM_COLLECTIVE && !info->recv_parts)
		*n_out = block * c->size;
}

/* Copies the old contents of the result buffer too: some ranks get no result, or only a part. */
void staging_begin(const struct comm *c, struct comm_request *r)
{
	struct coll_args *a = &r->a;
	bool sends = staging_needed(a->send), receives = staging_needed(a->recv);
	int64_t in, out;
	if (!sends && !receives)
		return;
	buffer_bytes(c, r, &in, &out);
	in = sends ? in : 0;
	out = receives ? out : 0;
	r->host = xmalloc((size_t)(in + out) + 1);
	if (sends) {
		device_get(device, r->host, a->send, (size_t)in);
		a->send = r->host;
	}
	if (!receives)
		return;
	if (r->kind != COMM_RECV)
		device_get(device, r->host + in, a->recv, (size_t)out);
	if (r->kind != COMM_SEND) {
		r->received = r->host + in;
		r->to = a->recv;
		r->to_bytes = out;
	}
	a->recv = r->host + in;
}

void staging_end(struct comm_request *r)
{
	if (r->to)
		device_put(device, r->to, r->received, (size_t)r->to_bytes);
	free(r->host);
	r->host = r->received = NULL;
	r->to = NULL;
}

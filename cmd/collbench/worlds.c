/* The communicators of each library, and the device. */
#include "collbench/suite.h"
#include "comm/requests.h"

/* Opens this rank's CUDA device in w->device. Returns -1 on all ranks if any of them
 * fails. Collective. */
static int open_device(struct bench_worlds *w, struct comm *world, struct err *e)
{
	const struct comm_place *place = comm_place();
	const struct device_options options = {.threads = 1,
		.exact = true,
		.ranks = place->local_size,
		.rank = place->local_rank,
		.sharers = comm_gpu_sharers(world)};
	device_open(&w->device, DEVICE_CUDA, &options, e);
	return comm_agree(world, e);
}

int worlds_open(struct bench_worlds *w, struct comm *world, int which, bool needs_graphs,
	struct err *e)
{
	enum comm_library library =
		which == WORLDS_BOTH ? COMM_NCCL : (enum comm_library)which;
	if (open_device(w, world, e))
		return -1;
	w->mpi = comm_dup(world, "mpi"); /* before NCCL is opened on `world` */
	if (comm_device_open(world, &w->device, library, e))
		return -1;
	bool has_nccl = comm_has_stream(world);
	w->library = comm_device_library();
	if (!has_nccl && which != COMM_AUTO && which != COMM_MPI)
		return err_set(e, EX_USAGE, "--comm nccl needs several ranks");
	if (needs_graphs && !has_nccl)
		return err_set(
			e, EX_USAGE, "--launch graph needs NCCL and several ranks");
	w->comm[LIBRARY_NCCL] = has_nccl ? world : NULL;
	w->comm[LIBRARY_MPI] = !has_nccl || which == WORLDS_BOTH ? w->mpi : NULL;
	return 0;
}

void worlds_close(struct bench_worlds *w)
{
	if (!w->library)
		return;
	comm_device_close();
	device_close(&w->device);
	comm_free(w->mpi);
}

/* The links of a cluster as pt-collbench measured them. */
#include "plan/network.h"
#include "collbench/fit.h"
#include "collbench/table.h"
#include "comm/collective.h"

#include <math.h>

/* Returns the bytes that a rank sends per byte of the column `size` (see busbw in pt-collbench(1));
 * 0 if ranks do not send equally much. */
static double sent_per_byte(int64_t collective, double ranks)
{
	switch (collective) {
	case COLL_ALLREDUCE:
	case COLL_ALLGATHER:
	case COLL_REDUCESCATTER:
	case COLL_ALLTOALL:
	case COLL_SENDRECV:
		return coll_table[collective].bus((int)ranks);
	default:
		return 0;
	}
}

/* Returns the bytes per byte of `size` that a rank sends to other hosts. In rings and trees, the
 * host_ranks share the data; in all-to-all and send-receive each rank sends its own. */
static double sent_across_per_byte(int64_t collective, double ranks, double host_ranks)
{
	if (collective == COLL_SENDRECV)
		return 1;
	if (collective == COLL_ALLTOALL)
		return (ranks - host_ranks) / ranks;
	return sent_per_byte(collective, ranks) / host_ranks;
}

/* Sums over the fits of a kind of link, weighted by their inverse squared errors. */
struct mean {
	double weight, latency, seconds_per_byte;
};

/* Returns true if links can be derived from the fit. */
static bool is_usable(const struct bench_fit *f)
{
	return f->group_ranks > 1 && f->group_hosts > 0 &&
	       f->group_ranks >= f->group_hosts &&
	       sent_per_byte(f->collective, (double)f->group_ranks) > 0 && f->beta > 0 &&
	       f->alpha >= 0 && isfinite(f->alpha + f->beta) && isfinite(f->error);
}

/* Adds a fit to the mean. A collective's latency is the latency of a tree within a host and a
 * tree over the hosts, twice for an all-reduce, as in add_collective() of comm/simulate.c.
 * host_latency: the seconds of an empty message within a host. */
static void add_fit(struct mean *mean, const struct bench_fit *f, double host_latency)
{
	double ranks = (double)f->group_ranks, hosts = (double)f->group_hosts;
	double host_ranks = ceil(ranks / hosts), error = fmax(f->error, 0.01);
	double weight = 1 / (error * error), alpha = f->alpha, bytes;
	if (f->collective == COLL_ALLREDUCE)
		alpha /= 2;
	if (hosts > 1) {
		bytes = sent_across_per_byte(f->collective, ranks, host_ranks);
		if (f->collective != COLL_SENDRECV)
			alpha = (alpha - ceil(log2(host_ranks)) * host_latency) /
				ceil(log2(hosts));
	} else {
		bytes = sent_per_byte(f->collective, ranks);
		if (f->collective != COLL_SENDRECV)
			alpha /= ceil(log2(ranks));
	}
	mean->weight += weight;
	mean->latency += weight * fmax(alpha, 0);
	mean->seconds_per_byte += weight * f->beta / bytes;
}

/* Returns the library that training uses: for GPUs NCCL, if it was measured. */
static int64_t choose_library(
	const struct cluster *c, const struct bench_fit *fits, int64_t n)
{
	for (int64_t i = 0; i < n && *c->model; i++)
		if (fits[i].library == LIBRARY_NCCL && is_usable(&fits[i]))
			return LIBRARY_NCCL;
	return LIBRARY_MPI;
}

/* Sets latency and bandwidth of a kind of link. Returns false if no fit has such a link. */
static bool set_link(struct cluster *c, enum link_kind kind, int64_t library,
	const struct bench_fit *fits, int64_t n)
{
	struct link *link = c->links.link;
	struct mean mean = {0};
	for (int64_t i = 0; i < n; i++)
		if (is_usable(&fits[i]) && fits[i].library == library &&
			(fits[i].group_hosts > 1) == (kind == LINK_NETWORK))
			add_fit(&mean, &fits[i], link[LINK_HOST].latency);
	if (mean.weight <= 0)
		return false;
	link[kind].latency = mean.latency / mean.weight;
	link[kind].bytes_per_second = mean.weight / mean.seconds_per_byte;
	return true;
}

int network_read(struct cluster *c, int hosts, const char *path, struct err *e)
{
	struct bench_fit *fits;
	int64_t n;
	if (bench_fits_read(path, &fits, &n, e))
		return -1;
	int64_t library = choose_library(c, fits, n);
	bool has_host = set_link(c, LINK_HOST, library, fits, n);
	bool has_network = set_link(c, LINK_NETWORK, library, fits, n);
	free(fits);
	if (!has_host && !has_network)
		return err_set(e, EX_DATAERR,
			"%s: found no fit of an all-reduce, all-gather, "
			"reduce-scatter, all-to-all or "
			"send-receive with two or more ranks; measure one with pt-collbench",
			path);
	if (!has_host)
		warn("%s: no group within a host was measured; using the host link of --cluster",
			path);
	if (!has_network && hosts > 1)
		warn("%s: no group of several hosts was measured; using the network of --cluster",
			path);
	if (*c->model && library == LIBRARY_MPI)
		warn("%s: NCCL was not measured; using the links that MPI measured",
			path);
	return 0;
}

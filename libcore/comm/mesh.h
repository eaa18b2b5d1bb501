/* The mesh: all ranks as an array with named axes (as PyTorch's DeviceMesh), and its groups. */
#pragma once

#include "comm/comm.h"

/* Slowest first: the ranks of a tp group are consecutive in the world, and therefore on one
 * host if they fit. Pipeline stages have the largest stride. */
enum axis {
	AXIS_PP,   /* pipeline: ranks have different layers */
	AXIS_DP,   /* replicate: different samples, the same parameters */
	AXIS_FSDP, /* shard: different samples, different shards of the parameters */
	AXIS_CP,   /* context: different positions of a sequence */
	AXIS_TP,   /* tensor: different slices of a weight */
	N_AXES
};
extern const char *const axis_names[N_AXES];
#define AXIS_BIT(a) (1u << (a))

struct mesh {
	int degree[N_AXES], coord[N_AXES]; /* axis sizes, and this rank's coordinates */
	struct comm *world;
	int host_ranks;		   /* as in comm_place, for this world */
	bool shares;		   /* the ranks of a host can share memory */
	struct comm *axis[N_AXES]; /* ranks that differ along this axis only */
	int64_t repeated;	   /* bytes that launches of a graph have sent */
	struct mesh_group *groups; /* created so far */
	int n_groups;
};

/* Computes the degrees for `ranks` ranks; infers one that is -1. -1: they do not fit. */
int mesh_resolve(
	const int64_t wanted[N_AXES], int ranks, int degree[N_AXES], struct err *e);
/* Collective. Initializes the mesh of these degrees over `world`, with a group along each axis. */
void mesh_open(struct mesh *m, struct comm *world, const int degree[N_AXES]);
/* Makes the mesh of rank `rank` for plans, on hosts as in comm_place(): its groups only count bytes
 * (comm_planned()). The caller frees m->world with comm_free(). */
void mesh_plan(struct mesh *m, const int degree[N_AXES], int rank);
/* Makes a mesh that contains only this rank. The caller frees m->world with comm_free(). */
void mesh_alone(struct mesh *m);
/* Collective. Frees the groups, not the world. */
void mesh_close(struct mesh *m);
int mesh_ranks(const int degree[N_AXES]); /* product of the degrees */
int mesh_rank(const int degree[N_AXES], const int coord[N_AXES]);
/* Return the ranks along dp, fsdp and cp together, and the index of a position among them. */
int mesh_data_ranks(const int degree[N_AXES]);
int mesh_data_index(const int degree[N_AXES], const int coord[N_AXES]);
void mesh_coordinates(const int degree[N_AXES], int rank, int coord[N_AXES]);
/* Collective over the world. Returns the group of the ranks that differ from this one only along
 * `axes` (bits), in the order of the world. tp_run: along tp only runs of that many consecutive
 * ranks (0: all). data_run, data_every, of the ranks along dp, fsdp and cp together: only runs of
 * that many consecutive ranks; only ranks with the same place in such runs (0: all). pp_ends: along
 * pp only the first and the last stage; ranks of other stages are grouped with their own stage.
 * pp_links: along pp only pairs of neighbors, see mesh_link(). hosts: only the ranks on this rank's
 * host, or one rank per host, with the same position among the group's ranks on its host. apart: a
 * group of its own, so that with NCCL its messages do not wait for other messages between the same
 * ranks. The mesh owns the groups and creates each once. */
enum mesh_hosts { HOSTS_ALL, HOSTS_THIS, HOSTS_ACROSS };
struct mesh_part {
	unsigned axes;
	int tp_run, data_run, data_every;
	bool pp_ends;
	int pp_links; /* 0: none */
	enum mesh_hosts hosts;
	bool apart;
};
/* Collective over the world. Returns this rank's group for `part`, owned by the mesh. */
struct comm *mesh_group(struct mesh *m, struct mesh_part part);
/* Returns the number of consecutive ranks of the group of `part` on each host, if it is the same
 * for all such groups and hosts. 0: it differs, or is 1, or the group is on one host. */
int mesh_ranks_per_host(const struct mesh *m, struct mesh_part part);
/* Returns the pp_links value for the pair of neighbors along pp that begins at position
 * `first`; the last position's neighbor is position 0. Disjoint pairs form a set, so that there
 * are two sets, or three with an odd degree: set i and way `way` have the value 1 +
 * MESH_LINK_WAYS i + way. The groups of all ways have the same ranks, but messages of one way
 * do not wait for messages of another. */
enum { MESH_LINK_WAYS = 4 };
int mesh_link(int degree, int first, int way);
/* Allocates *ranks, the world ranks of this rank's group of `part`. Returns their number. */
int mesh_members(const struct mesh *m, struct mesh_part part, int **ranks);
/* Returns the number of ranks in this rank's group of `part`. */
int mesh_size(const struct mesh *m, struct mesh_part part);
/* Returns the i-th group that the mesh has created, then the world; NULL at the end. */
const struct comm *mesh_group_at(const struct mesh *m, int i);
/* Appends "dp=2 tp=2": the axes with a degree above 1, or "dp=1". */
void mesh_name(const int degree[N_AXES], struct str *out);
/* Appends a diagram of the mesh. */
void mesh_draw(const int degree[N_AXES], struct str *out);
/* Returns the bytes that this rank has sent in all groups. */
int64_t mesh_bytes_sent(const struct mesh *m);

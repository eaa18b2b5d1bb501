/* The mesh: all ranks as an array with named axes (as PyTorch's DeviceMesh), and groups along them. */
#pragma once

#include "comm/comm.h"

/* Slowest first: ranks of one tp group are consecutive in the world, so on one host if they fit, and
 * pipeline stages have the largest stride. */
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
	int degree[N_AXES], at[N_AXES]; /* the size, and this rank's position */
	struct comm *world;
	int host_ranks;		   /* as in comm_place, of this world */
	bool shares;		   /* the ranks of a host can share memory */
	struct comm *axis[N_AXES]; /* ranks that differ along this axis only */
	int64_t repeated;	   /* bytes that launches of a graph have sent */
	struct mesh_group *groups; /* created so far */
	int n_groups;
};

/* Degrees for `ranks` ranks; one of `wanted` may be -1, which is inferred. -1: it does not fit. */
int mesh_resolve(
	const int64_t wanted[N_AXES], int ranks, int degree[N_AXES], struct err *e);
/* Collective. */
void mesh_open(struct mesh *m, struct comm *world, const int degree[N_AXES]);
/* The mesh of rank `rank` for plans, on hosts as in comm_place(): its groups only count bytes
 * (comm_planned()). The caller frees m->world with comm_free(). */
void mesh_plan(struct mesh *m, const int degree[N_AXES], int rank);
/* A mesh of this rank alone; the caller frees m->world as above. */
void mesh_alone(struct mesh *m);
/* Collective. Frees the groups, not the world. */
void mesh_close(struct mesh *m);
int mesh_ranks(const int degree[N_AXES]); /* all */
int mesh_rank(const int degree[N_AXES], const int at[N_AXES]);
void mesh_place(const int degree[N_AXES], int rank, int at[N_AXES]);
/*
 * Collective over the world. The group of the ranks that differ from this one only along `axes`
 * (bits), in the order of the world. tp_run: along tp only runs of that many consecutive ranks (0:
 * all). pp_ends: along pp only the first and the last stage; ranks of other stages are grouped with
 * their own stage. pp_links: along pp only pairs of neighbours, see mesh_link(). hosts: only those of
 * this rank's host, or those with the same place among the group's ranks of their hosts. The mesh keeps
 * the groups, and creates each once.
 */
enum mesh_hosts { HOSTS_ALL, HOSTS_THIS, HOSTS_ACROSS };
struct mesh_part {
	unsigned axes;
	int tp_run;
	bool pp_ends;
	int pp_links; /* 0: none */
	enum mesh_hosts hosts;
};
struct comm *mesh_group(struct mesh *m, struct mesh_part part);
/* How many ranks of such a group each host has, if the groups of all ranks have equal numbers on several
 * hosts: consecutive ones of the group. 0: they have not, or one on each host. */
int mesh_host_run(const struct mesh *m, struct mesh_part part);
/*
 * The pairs of neighbours along pp, of which `first` is the first position; the last one's neighbour is
 * position 0. Pairs without a common position have one number, so that there are two sets of pairs, or
 * three (with an odd degree): pp_links of set i for way `way` is 1 + MESH_LINK_WAYS i + way. The groups of
 * all ways have the same ranks; what goes one way does not wait there for what goes another way.
 */
enum { MESH_LINK_WAYS = 4 };
int mesh_link(int degree, int first, int way);
/* The world ranks of that group, in its order; *ranks is allocated. Returns their number. */
int mesh_members(const struct mesh *m, struct mesh_part part, int **ranks);
/* Their number. */
int mesh_size(const struct mesh *m, struct mesh_part part);
/* Iterates over the groups created so far, then the world; NULL at the end. */
const struct comm *mesh_group_number(const struct mesh *m, int i);
/* Appends "dp=2 tp=2": the axes with a degree above 1, or "dp=1". */
void mesh_name(const int degree[N_AXES], struct str *out);
/* Appends a diagram of the mesh. */
void mesh_draw(const int degree[N_AXES], struct str *out);
/* Bytes that this rank has sent in all groups. */
int64_t mesh_sent(const struct mesh *m);

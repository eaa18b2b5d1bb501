/* The mesh: all ranks as a box of named axes, and groups of ranks along them. */
#ifndef COMM_MESH_H
#define COMM_MESH_H

#include "comm/comm.h"

/* Slowest first: neighbours in tensor parallelism are neighbours in the world, on one host
 * where they fit, and stages of a pipeline are farthest apart. */
enum axis {
	AXIS_PP,   /* pipeline: other layers */
	AXIS_DP,   /* replicate: other samples, the same parameters */
	AXIS_FSDP, /* shard: other samples, other parts of the parameters */
	AXIS_CP,   /* context: other positions of a sequence */
	AXIS_TP,   /* tensor: other slices of a weight */
	N_AXES
};
extern const char *const axis_names[N_AXES];
#define AXIS_BIT(a) (1u << (a))

/* All ranks as a box, and where this one is in it. */
struct mesh {
	int degree[N_AXES], at[N_AXES];
	struct comm *world;
	struct comm *axis[N_AXES]; /* ranks that differ from this one along it only */
	struct mesh_group *groups; /* made so far */
	int n_groups;
};

/* Turns wanted degrees (-1, once: the rest) into a box that holds `ranks`. */
int mesh_resolve(
	const int64_t wanted[N_AXES], int ranks, int degree[N_AXES], struct err *e);
/* Collective. */
void mesh_open(struct mesh *m, struct comm *world, const int degree[N_AXES]);
/* The mesh as rank `rank` of so many would have it, to plan with: its groups only count. */
void mesh_plan(struct mesh *m, const int degree[N_AXES], int rank, bool shares);
/* Of this rank alone, in a world that is made for it: as with mesh_plan(), the caller frees
 * m->world, with comm_free(). */
void mesh_alone(struct mesh *m);
/* Not the world that it was opened with. */
void mesh_close(struct mesh *m);
int mesh_rank(const struct mesh *m, const int at[N_AXES]);
void mesh_place(const struct mesh *m, int rank, int at[N_AXES]);
/*
 * Collective over the world. The ranks that differ from this one only along `axes` (bits),
 * in the order of the world. Of the tp axis, only runs of `tp_run` neighbours, 0: all of
 * it; of the pp axis, `pp_ends`: only the first and the last; ranks of another stage are
 * together with those of their own stage only. Groups are kept, and the same one is made once.
 */
struct mesh_part {
	unsigned axes;
	int tp_run;
	bool pp_ends;
};
struct comm *mesh_group(struct mesh *m, struct mesh_part part);
/* The world ranks of that group, in its order; *ranks is allocated. Returns their number. */
int mesh_members(const struct mesh *m, struct mesh_part part, int **ranks);
/* Number i of the groups that were made so far, and the world at last; NULL: there are no
 * more. */
const struct comm *mesh_group_number(const struct mesh *m, int i);
/* "dp=2 tp=2": the axes that are not 1, or "dp=1". */
void mesh_name(const int degree[N_AXES], struct str *out);
/* Rows of ranks, for people. */
void mesh_draw(const int degree[N_AXES], struct str *out);
/* Bytes that this rank has sent in all groups. */
int64_t mesh_sent(const struct mesh *m);

#endif

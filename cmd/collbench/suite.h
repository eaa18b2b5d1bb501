/* The cases of a run of pt-collbench, and the groups of ranks that they run in. */
#pragma once

#include "collbench/table.h"
#include "comm/mesh.h"

/* ---- worlds.c ---------------------------------------------------------------------------- */

/* All ranks, with a communicator per measured library. */
struct bench_worlds {
	struct device device;
	struct comm *mpi;		/* all ranks, without NCCL */
	struct comm *comm[N_LIBRARIES]; /* NULL: not measured */
	const char *library; /* the library for device memory; NULL: no device */
};
enum { WORLDS_BOTH = COMM_MPI + 1 }; /* measure each case with MPI, then NCCL */

/* Opens a device and the communicators on it. `which`: enum comm_library or WORLDS_BOTH.
 * needs_graphs: fails unless CUDA graphs can be used. Collective. */
int worlds_open(struct bench_worlds *w, struct comm *world, int which, bool needs_graphs,
	struct err *e);
/* Closes communicators and device. Collective. */
void worlds_close(struct bench_worlds *w);

/* ---- groups.c -------------------------------------------------------------------------- */

/* The ranks of a case: the world; or the groups along an axis of a mesh, all at once or only the
 * group of rank 0. */
struct bench_group {
	int64_t name;			/* index in bench_group_names() */
	struct comm *comm[N_LIBRARIES]; /* NULL: not measured */
	bool takes_part;		/* this rank takes part */
	int64_t ranks, hosts, groups;	/* ranks and hosts of a group; groups at once */
};

/* The groups along an axis that run: all at once, only the group of rank 0, or first all and then
 * one. */
enum group_choice { GROUPS_ALL, GROUPS_ONE, GROUPS_BOTH };

struct bench_groups {
	struct bench_group *list;
	int n;
	struct mesh *meshes;
	int n_meshes;
};

/* Opens the groups of splits such as "tp=2,fsdp=4", with the axes of pt-train, or of "world". If
 * dp is not named, it gets the remaining ranks. Without splits, opens the world. comm[] has the
 * world of each library, or NULL. Returns -1 with the same error on all ranks. Collective. */
int groups_open(struct bench_groups *g, const struct strs *splits,
	enum group_choice which, struct comm *const comm[N_LIBRARIES],
	const struct peer *peers, struct err *e);
void groups_close(struct bench_groups *g);

/* ---- suite.c ------------------------------------------------------------------------------ */

struct suite_options {
	bool wanted[N_BENCH];
	int64_t minbytes, maxbytes, stepbytes, stepfactor;
	int type, op; /* an index out of range stands for all */
	int64_t root; /* an index out of range stands for all */
};

struct suite {
	struct suite_options o;
	struct bench *bench;
	const struct bench_groups *groups;
	struct bench_table table;
	struct suite_case *cases;    /* [table.n_rows] */
	struct bench_judged *judged; /* [table.n_rows], rank 0, by suite_compare() */
};

/* Selects the collectives named by the operands; "all": all except operations made of messages. */
int suite_select(struct suite_options *o, char **names, int n, struct err *e);
/* Prints the ranks and the settings, before the table. `library` transfers the memory of a
 * device. */
void suite_print_header(
	const struct suite *s, const struct peer *peers, const char *library);
/* Adds the selected cases. Returns -1 with the same error on all ranks if one is impossible. */
int suite_add_cases(struct suite *s, struct err *e);
/* Measures all cases in each pass. In the last pass, checks them, and rank 0 prints the rows.
 * Collective. */
void suite_run(struct suite *s);
/* Compares all cases with `old`, and sets s->judged. Cases that are slower than before, or could
 * not be judged because ranks waited for processors, are measured again up to `retries` times. A
 * case stays slower only if it is slower each time. The table keeps the first results. `old` is
 * set on rank 0. Collective. */
void suite_compare(struct suite *s, const struct bench_table *old, double threshold,
	int64_t retries);
void suite_release(struct suite *s);

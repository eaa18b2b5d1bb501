/* The cases of a run of pt-collbench, and the groups of ranks that they run in. */
#pragma once

#include "collbench/table.h"
#include "comm/mesh.h"

/* ---- worlds.c ---------------------------------------------------------------------------- */

/* All ranks, as each library that is measured sees them. */
struct bench_worlds {
	struct device device;
	struct comm *mpi;	      /* without NCCL */
	struct comm *of[N_LIBRARIES]; /* NULL: not measured */
	const char *library; /* that transfers the device's memory; NULL: no device */
};
enum { WORLDS_BOTH = COMM_MPI + 1 }; /* MPI, then NCCL, for each case */

/* Collective. A device, and its libraries: enum comm_library or WORLDS_BOTH. `graphs`: for CUDA graphs. */
int worlds_open(struct bench_worlds *w, struct comm *world, int which, bool graphs,
	struct err *e);
/* Collective. */
void worlds_close(struct bench_worlds *w);

/* ---- groups.c -------------------------------------------------------------------------- */

/* Ranks that a case runs on: the world, or the groups along an axis of a mesh, all of which run the case at once,
 * or only the one of rank 0. */
struct bench_group {
	int64_t name;			/* in bench_group_names() */
	struct comm *comm[N_LIBRARIES]; /* NULL: not measured */
	bool joins;			/* this rank takes part */
	int64_t ranks, hosts, groups;
};

/* Which of the groups along an axis run. */
enum group_choice { GROUPS_ALL, GROUPS_ONE, GROUPS_BOTH };

struct bench_groups {
	struct bench_group *list;
	int n;
	struct mesh *meshes;
	int n_meshes;
};

/*
 * Collective. The groups of splits such as "tp=2,fsdp=4", whose axes are those of pt-train; "world" is no
 * split. An axis dp that is not named gets the ranks that are left. Without splits: the world. comm[] are the
 * worlds of each library, or NULL. -1: the same error on all ranks.
 */
int groups_open(struct bench_groups *g, const struct strs *splits,
	enum group_choice which, struct comm *const comm[N_LIBRARIES],
	const struct peer *peers, struct err *e);
/* Collective. */
void groups_close(struct bench_groups *g);

/* ---- suite.c ------------------------------------------------------------------------------ */

struct suite_options {
	bool wanted[N_BENCH];
	int64_t minbytes, maxbytes, stepbytes, stepfactor;
	int type, op; /* one that does not exist stands for all */
	int64_t root; /* likewise */
};

struct suite {
	struct suite_options o;
	struct bench *bench;
	const struct bench_groups *groups;
	struct bench_table table;
	struct suite_case *cases; /* [table.n_rows] */
	struct bench_judged
		*judged; /* [table.n_rows], on rank 0, after suite_compare() */
};

/* Marks the operands as wanted; "all": all collectives, not messages between pairs. */
int suite_want(struct suite_options *o, char **names, int n, struct err *e);
/* Prints the ranks and the settings, before the table. `library` transfers the memory of a device. */
void suite_print_header(
	const struct suite *s, const struct peer *peers, const char *library);
/* Lists the cases. -1, with the same error on all ranks: one cannot be measured. */
int suite_list(struct suite *s, struct err *e);
/* Collective. Measures all cases in each pass; during the last one, checks them, and rank 0 prints the rows. */
void suite_run(struct suite *s);
/* Collective. Sets s->judged. Cases that are slower than before are measured again, up to `retries` times, and stay
 * slower unless one of these measurements says otherwise; likewise those that could not be judged since ranks waited for
 * processors. The table keeps the first results. `old` is rank 0's. */
void suite_compare(struct suite *s, const struct bench_table *old, double threshold,
	int64_t retries);
void suite_free(struct suite *s);

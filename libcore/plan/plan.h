/* plan: the memory, work and communication of a rank, before anything is allocated, and the
 * predicted time of a step. Other headers:
 *   cluster.h        devices and links, for which times are predicted
 *   fit.h            plans a trainer, and decides the settings that depend on its memory
 *   plan_internal.h  a step on the planning device, for this directory only */
#pragma once

#include "engine/options.h"
#include "kernels/selftest.h"
#include "model/pass.h"
#include "parallel/parallel.h"

enum { PLAN_GROUPS = 16 };

struct plan {
	int64_t run_bytes, micro_bytes, scratch_bytes; /* sizes of the arenas */
	struct store_bytes store;		       /* parts of run_bytes */
	/* unsharded gradients: bytes, offset, and bytes saved by the overlap, see engine.h */
	int64_t gradients_bytes, gradient_memory, shared_bytes;
	int64_t data_bytes; /* windows of two steps */
	int64_t copy_bytes; /* the copy of a checkpoint, for writing in the background */
	int64_t vault_bytes; /* bytes of the two files that a rank has in --vault; 0: none */
	int64_t sample_bytes; /* on rank 0 while it draws a sample */
	int64_t work_bytes;   /* workspace of the device's kernels */
	int64_t pinned_bytes; /* on a GPU's host: offloaded state, or buffers for a file */
	double step_flops;    /* FLOPs of this rank's GEMMs per step */
	double sent;	      /* bytes that this rank sends per step */
	double sent_rows;     /* of these, rows of experts, as if experts were balanced */
	double read, written; /* bytes that --offload moves per step */
	int64_t edit_bytes;   /* buffers for pseudo-gradients of other workers */
	/* bytes per synchronization: sent, read and written by --edit-offload or --offload */
	double edit_sent, edit_read, edit_written;
	struct plan_group { /* bytes sent per step in each group of ranks */
		char name[24];
		double sent;
	} group[PLAN_GROUPS];
	int n_groups;
};

/* Runs the code that trains on the planning device; a pure function of its arguments. The options
 * are resolved; the model's tensors become this rank's parts. */
void plan_make(const struct train_opts *o, struct model *m, int rank, struct plan *p);
/* Plans the memory by a step with only as many micro-batches as fill the pipeline, for a search
 * over many layouts. The values of sent, read, written and step_flops are not valid. */
void plan_make_memory(
	const struct train_opts *o, struct model *m, int rank, struct plan *p);
/* Records the kernel calls of this rank in a step, an evaluation and a sample. */
void plan_kernel_calls(const struct train_opts *o, struct model *m, int rank,
	struct kernel_calls *calls);
int64_t plan_total(const struct plan *p); /* bytes, on the device and on the host */
/* Returns the bytes in the memory of the device; on a CPU, without copies and input data. */
int64_t plan_on_device(const struct plan *p);
/* Returns the bytes that must fit: a GPU's, or on a CPU all except a checkpoint's copy. */
int64_t plan_needed(const struct train_opts *o, const struct plan *p);
/* Returns the bytes that a rank may use: --memory, or its share of the host's free memory. */
int64_t plan_limit(const struct train_opts *o, int ranks);
/* Prints the plan of the rank that needs most, the total of every rank, and with --cluster the
 * predicted time of a step. Returns -1 with *e set if the file of --trace cannot be written, or if
 * the printed plan needs more than --memory. */
int plan_print(
	const struct train_opts *o, struct model *m, struct str *out, struct err *e);

/* ---- predict.c ---------------------------------------------------------------------- */

struct cluster;
enum { STEP_TIME_ROWS = 64 };

/* The predicted time of a step, in seconds. */
struct step_time {
	double computation, exposed, bubble, step;
	double rest;   /* part of `step` after the last action of the pipeline */
	double copies; /* copies of offloaded state, not in `step`, which may hide them */
	struct step_time_row {
		char group[24]; /* axes: "fsdp", "fsdp*cp", "world" */
		double alone, exposed;
	} row[STEP_TIME_ROWS];
	int n_rows;
};
/* Predicts a step on a cluster, with overlap, from one simulated rank per stage. */
void predict_step_time(const struct train_opts *o, struct model *m,
	const struct cluster *c, struct step_time *t);

/* Workers of local SGD with a small model, for tests of edit/. */
#pragma once

#include "edit/edit.h"
#include "parallel/store.h"
#include "tests/support/device.h"
#include "tests/support/ranks.h"

enum { UNITS = 4, N_TENSORS = 8, VIRTUAL_TP = 2, MOST_WORKERS = 8 };
enum { NOWHERE = -2, EVERYWHERE = 99 };

/* Configurations of every kind. */
enum { N_EDIT_CONFIGS = 15 };
extern const struct edit_config edit_configs[N_EDIT_CONFIGS];

extern struct device worker_device; /* of this rank; $PT_TEST_DEVICE says which */
void worker_device_open(void);
void worker_device_close(void);
/* n floats of the device's memory; to be freed. */
float *worker_fetch(const float *p, int64_t n);

struct worker_layout {
	int degree[N_AXES]; /* of a worker */
	int zero;
	enum offload offload;
	bool offload_outer;
};

struct worker {
	struct comm *world, *sync;
	struct mesh mesh;
	struct arena memory;
	struct tensor table[N_TENSORS];
	bool used[N_TENSORS]; /* on this pipeline stage */
	struct store *s;
	struct offload_backend *offload_backend;
	struct edit *x;
	struct edit_config c;
};

/* Collective over c, the ranks of all workers. */
void worker_open(struct worker *w, struct comm *c, int workers,
	const struct worker_layout *l, const struct edit_config *ec);
void worker_close(struct worker *w);
/* The difference that a worker makes to an element before a sync; worker -1: its first value. */
float worker_difference(const struct tensor *t, int64_t index, int worker, int sync);
/* Makes it to all parameters; worker `bad`, or EVERYWHERE, makes NaN and infinity. */
void worker_move(struct worker *w, int worker, int sync, int bad);

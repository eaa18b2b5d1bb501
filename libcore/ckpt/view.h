/* Views: checkpoints that are computed as they are read, from other checkpoints or foreign files. A
 * view has the tensors of a checkpoint and a function that reads rows of them; averages, selections
 * and casts are views of views. No call is collective. Functions that return int return 0, or -1
 * with *e set. */
#pragma once

#include "ckpt/ckpt.h"
#include "kernels/kernels.h"

/* Rows [row, row + n) of a tensor of a group. */
struct ckpt_rows {
	int group, tensor;
	int64_t row, n;
};

/* Another copy of a tensor: a replica that another rank saved, or a tied weight. */
struct ckpt_copy {
	const char *name; /* in the files */
	const char *kind; /* "parameters", "exp_avg", "exp_avg_sq" or "step" */
	const char *whose,
		*first; /* ranks that saved this and the first copy: "tp 1", "tp 0" */
	int64_t n, differ, at; /* elements, elements that differ, index of the first */
	double value[2];       /* the element `at` of the first and of this copy */
	double distance;       /* |first - this| / |first|, 2-norms */
};
typedef void ckpt_report_copy(void *arg, const struct ckpt_copy *copy);

/* The settings of a tensor's optimizer group; below 0: unknown. */
struct ckpt_settings {
	double decay, lr;
	int64_t group; /* index */
};

/* Variants of AdamW that a file's optimizer has. */
enum { CKPT_MAXIMIZES = 1, CKPT_AMSGRAD = 2, CKPT_NADAM = 4 };

struct ckpt_view {
	const char *name;      /* for messages */
	const char *format;    /* name of the file's format, see foreign.h */
	struct ckpt_info info; /* except param_hash, which ckpt_view_write() computes */
	struct str config;     /* options of the run, or only of the model */
	struct str origin;     /* as in struct ckpt */
	const struct tokenizer *tokenizer; /* NULL: none */
	struct ckpt_tensor *tensors;
	int n_tensors;
	struct strs groups;		/* the first is "model" */
	struct ckpt_settings *settings; /* [n_tensors], freed by close(); NULL: unknown */
	unsigned optimizer;		/* CKPT_MAXIMIZES, ... */
	/* State of tensors without moments: "momentum_buffer (optimizer.muon)". */
	struct str other_state;
	const double *numbers;
	int64_t n_numbers;
	const double *load; /* as in struct ckpt */
	int64_t n_load;
	/* Reads rows in fp32. Fails if they are damaged. */
	int (*read)(const struct ckpt_view *v, const struct ckpt_rows *rows, float *out,
		struct err *e);
	/* Compares all further copies with the tensors, and reports each; NULL: no copies. */
	int (*copies)(const struct ckpt_view *v, ckpt_report_copy *report, void *arg,
		struct err *e);
	/* Appends a parameter's name in the file, and the range of rows; NULL: names are equal. */
	void (*file_name)(const struct ckpt_view *v, int tensor, struct str *out);
	void (*close)(struct ckpt_view *v); /* frees *with; may be NULL */
	void *with;			    /* state of read() */
};

/* ---- view.c ---------------------------------------------------------------------- */

/* Initializes a view of a checkpoint, which the caller keeps open. */
void ckpt_view_from(struct ckpt_view *v, const struct ckpt *c);
/* Initializes a view with the attributes and tensors of another view. Borrows the tokenizer. */
void ckpt_view_copy(struct ckpt_view *v, const struct ckpt_view *source);
/* Removes the state of the optimizer and of local SGD: the parameters remain. */
void ckpt_view_drop_optimizer(struct ckpt_view *v);
void ckpt_view_close(struct ckpt_view *v);
/* Reads all parameters, and computes their hash. */
int ckpt_view_hash(const struct ckpt_view *v, uint64_t *hash, struct err *e);
/* Reads all groups, which detects damage. EX_FAILED: copies differ. */
int ckpt_view_check(const struct ckpt_view *v, struct err *e);
/* Writes a checkpoint. Reads everything once before it creates the file, so that damage in a source
 * leaves an existing file unchanged. */
int ckpt_view_write(const struct ckpt_view *v, const char *path, struct err *e);
/* Reads a whole parameter, for free(). Returns NULL with *e set. */
float *ckpt_view_tensor(const struct ckpt_view *v, int tensor, struct err *e);
/* Return the index of a tensor or group; -1 if the name is missing. */
int ckpt_view_find(const struct ckpt_view *v, const char *name);
int ckpt_view_find_group(const struct ckpt_view *v, const char *name);

/* ---- combine.c: parameters of several checkpoints of one model -------------------- */

enum { CKPT_MAX_SOURCES = 256 };
/* Initializes a view of (sum of weights[i] * views[i]) / divisor, computed in fp64 and rounded once
 * to fp32. It has only parameters, and the attributes of the last view except losses. The views
 * must have the same tensors and model options; the caller closes them after *v. */
int ckpt_combine(struct ckpt_view *v, const struct ckpt_view *const *views, int n,
	const double *weights, double divisor, struct err *e);
/* Computes the weights of an exponential moving average, x = decay x + (1 - decay) y per view y. */
void ckpt_ema_weights(double decay, int n, double *weights);

/* ---- select.c: tensors and groups of one checkpoint ------------------------------ */

struct ckpt_selection {
	const struct strs *tensors; /* shell patterns of names to keep; NULL: all */
	const int *order; /* indices of all tensors in the new order; NULL: unchanged */
	/* OLD=NEW: the first OLD in a name becomes NEW. ^OLD: only at the start, OLD$: the end. */
	const struct strs *renames;
	bool parameters_only;
	/* The type to round values to; they are stored in fp32. A finite value that rounds to
	 * infinity is an error. */
	enum dtype round_to;
};
/* Initializes a view of a selection of the tensors of `source`. */
int ckpt_select(struct ckpt_view *v, const struct ckpt_view *source,
	const struct ckpt_selection *s, struct err *e);

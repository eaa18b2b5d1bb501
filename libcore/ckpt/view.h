/*
 * Views: checkpoints that are computed while they are read, from other checkpoints or from files of
 * another format. A view has the tensors of a checkpoint and a function that reads rows of them;
 * averages, selections and casts are views of views. No call is collective. Functions that return
 * int return 0, or -1 with *e set.
 */
#pragma once

#include "ckpt/ckpt.h"
#include "kernels/kernels.h"

/* Rows [row, row + n) of a tensor of a group. */
struct ckpt_rows {
	int group, tensor;
	int64_t row, n;
};

/* A tensor that the files have twice: of a replica what another rank has saved, or a tied weight. */
struct ckpt_copy {
	const char *name;	   /* in the files */
	const char *kind;	   /* "parameters", "exp_avg", "exp_avg_sq" or "step" */
	const char *whose, *first; /* "tp 1", and "tp 0" whose is read */
	int64_t n, differ, at; /* numbers; how many are others, and the first of them */
	double value[2],
		distance; /* of that one, read first; of all, relative to what is read */
};
typedef void ckpt_report_copy(void *with, const struct ckpt_copy *copy);

/* The settings of the optimizer's group that a tensor is in; below 0: not known. */
struct ckpt_settings {
	double decay, lr;
	int64_t group; /* its number */
};

/* What a file reports of its optimizer beyond AdamW. */
enum { CKPT_MAXIMIZES = 1, CKPT_AMSGRAD = 2, CKPT_NADAM = 4 };

struct ckpt_view {
	const char *name;      /* in messages */
	const char *format;    /* of the file that was opened: its name in foreign.h */
	struct ckpt_info info; /* without param_hash, which ckpt_view_write() computes */
	struct str config;     /* options of the run, or of the model only */
	struct str origin;     /* as in struct ckpt */
	const struct tokenizer *tokenizer; /* NULL: none */
	struct ckpt_tensor *tensors;
	int n_tensors;
	struct strs groups; /* the first is "model" */
	struct ckpt_settings
		*settings;  /* [n_tensors], which close() frees; NULL: not known */
	unsigned optimizer; /* CKPT_MAXIMIZES, ... */
	/* What the optimizer has for tensors without moments: "momentum_buffer (optimizer.muon)". */
	struct str other_state;
	const double *numbers;
	int64_t n_numbers;
	/* Reads the rows in fp32, and reports damage. */
	int (*read)(const struct ckpt_view *v, const struct ckpt_rows *rows, float *out,
		struct err *e);
	/* Compares all copies with what is read; NULL: there are none. */
	int (*copies)(
		const struct ckpt_view *v, ckpt_report_copy *see, void *with, struct err *e);
	/* Appends the name that a tensor of the parameters has in the file, and which of its rows are read; NULL: the
	 * names are the same. */
	void (*file_name)(const struct ckpt_view *v, int tensor, struct str *out);
	void (*close)(struct ckpt_view *v); /* frees *with; may be NULL */
	void *with;			    /* state of read() */
};

/* ---- view.c ---------------------------------------------------------------------- */

/* The checkpoint is the caller's, and stays open. */
void ckpt_view_of(struct ckpt_view *v, const struct ckpt *c);
/* A view with the attributes and tensors of another one, whose tokenizer it borrows. */
void ckpt_view_like(struct ckpt_view *v, const struct ckpt_view *of);
/* Leaves the parameters, of one worker. */
void ckpt_view_parameters(struct ckpt_view *v);
void ckpt_view_close(struct ckpt_view *v);
/* Reads all tensors of the parameters; computes their hash. */
int ckpt_view_hash(const struct ckpt_view *v, uint64_t *hash, struct err *e);
/* Reads all tensors of all groups, which finds damage; EX_FAILED: copies differ. */
int ckpt_view_check(const struct ckpt_view *v, struct err *e);
/* Writes a checkpoint. Everything is read once before the file is created, so damage in a source
 * leaves an existing file as it is. */
int ckpt_view_write(const struct ckpt_view *v, const char *path, struct err *e);
/* A whole tensor of the parameters, allocated; NULL with *e set. */
float *ckpt_view_tensor(const struct ckpt_view *v, int tensor, struct err *e);
/* -1: no such tensor, or group */
int ckpt_view_find(const struct ckpt_view *v, const char *name);
int ckpt_view_find_group(const struct ckpt_view *v, const char *name);

/* ---- combine.c: parameters of several checkpoints of one model -------------------- */

enum { CKPT_MAX_SOURCES = 256 };
/* sum over i of weights[i] of[i], divided by `divisor`, computed in fp64 and rounded once to fp32.
 * Has the parameters only, and the attributes of the last view without its losses. The views must
 * have the same tensors and the same model options; they stay the caller's. */
int ckpt_combine(struct ckpt_view *v, const struct ckpt_view *const *of, int n,
	const double *weights, double divisor, struct err *e);
/* The weights of an exponential moving average, x = decay x + (1 - decay) y for each further y. */
void ckpt_ema_weights(double decay, int n, double *weights);

/* ---- select.c: tensors and groups of one checkpoint ------------------------------ */

struct ckpt_selection {
	const struct strs *tensors; /* shell patterns of names to keep; NULL: all */
	const int *
		order; /* numbers of all tensors in the order of the view; NULL: theirs */
	/* OLD=NEW: the text OLD, anywhere in a name, becomes NEW; a ^ before OLD: only at its begin,
	 * a $ behind it: only at its end. NULL: none */
	const struct strs *renames;
	bool parameters_only;
	/* Values are rounded to this type, and the file stores fp32. Reading a finite number that would
	 * round to infinity fails. */
	enum dtype round_to;
};
int ckpt_select(struct ckpt_view *v, const struct ckpt_view *of,
	const struct ckpt_selection *s, struct err *e);

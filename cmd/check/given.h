/* given: gradients that the other run saved before its optimizer's step (--grads), by
 * parameter name. Functions that return int return 0, or -1 with *e set. */
#pragma once

#include "foreign/foreign.h"

struct lora;

struct given_gradients {
	struct ckpt_view *files; /* [n] */
	bool **found; /* [n][tensors of files[k]]: true if the file has the gradient */
	int64_t n;
	const struct ckpt_view *model_view; /* view of the model's tensors */
	double loss_scale; /* divided out by the run after it saved them; 1: none */
	double factor;	   /* what exp_avg gained / these gradients; 0: not tested */
};

/* Opens the files with gradients of the view's tensors. Without files, g->n is 0. Call
 * given_gradients_close() in any case. */
int given_gradients_open(struct given_gradients *g, const struct strs *files,
	const struct ckpt_view *model_view, const struct lora *lora, struct err *e);
void given_gradients_close(struct given_gradients *g);
/* Sets *x to the gradient of a tensor of g->model_view, allocated; zeros if no file has it. Sets
 * *lost to the rounding of the file's type, relative to the norm. */
int given_gradients_read(const struct given_gradients *g, int tensor, float **x,
	double *lost, struct err *e);
/* Appends a line about the files; nothing without files. n: tensors of the model. */
void append_given_line(const struct given_gradients *g, int n, struct str *out);
/* Appends the files' names. */
void append_given_names(const struct given_gradients *g, struct str *out);

/*
 * given: gradients that the other run saved before its optimizer's step (--grads), by the names of its parameters.
 * Functions that return int return 0, or -1 with *e set.
 */
#pragma once

#include "foreign/foreign.h"

struct lora;

struct given_gradients {
	struct ckpt_view *files; /* [n] */
	bool **found;		 /* [n][tensors of files[k]] */
	int64_t n;
	const struct ckpt_view *of; /* whose tensors are meant */
	double loss_scale; /* that the run divided out after it had saved them; 1: none */
	double factor;	   /* of what exp_avg gained, compared with them; 0: not tested */
};

/* Opens the files, whose tensors are those of the view; no file: g->n is 0. given_close() in any case. */
int given_open(struct given_gradients *g, const struct strs *files,
	const struct ckpt_view *of, const struct lora *lora, struct err *e);
void given_close(struct given_gradients *g);
/* Sets *x to the gradient of a tensor of g->of, allocated; zeros if no file has it. Sets *lost to what the type of the
 * file rounds, relative to its norm. */
int given_read(const struct given_gradients *g, int tensor, float **x, double *lost,
	struct err *e);
/* Appends the line of the files, where n is the number of tensors of the model; nothing without files. */
void given_print(const struct given_gradients *g, int n, struct str *out);
/* Appends the names of the files. */
void given_names(const struct given_gradients *g, struct str *out);

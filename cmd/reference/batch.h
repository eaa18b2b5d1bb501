/*
 * batch: the tokens of a step of another program, as its user saved them: NumPy's .npy, PyTorch's .pt,
 * safetensors, or plain integers (.u16, .u32, .i32, .i64; with a shape).
 *
 * A file has windows [sequences][length + 1], or inputs and labels [sequences][length] and perhaps positions,
 * by their names or in this order,
 * and a loss mask. Labels are those of torchtitan and Megatron, shifted already
 * (labels[t] = inputs[t + 1]), or those of Hugging Face, equal to the inputs. A label below 0 does not count.
 * An array of weights has one float for each label. Files are not trusted.
 */
#pragma once

#include "base/base.h"

/* Numbers of a file. */
enum { ARRAY_MAX_DIMS = 4, MAX_ARRAYS = 16 };
struct int_array {
	char name[64]; /* "": none */
	int ndim;
	int64_t dims[ARRAY_MAX_DIMS];
	int64_t *v; /* NULL: they are no integers */
	double *x;  /* of a type of floats; else NULL */
};

struct int_arrays {
	struct int_array of[MAX_ARRAYS];
	int n;
	int64_t left; /* elements that more arrays may have */
};

struct token_batch {
	int64_t n, length;	   /* sequences, and positions of each */
	int32_t *tokens, *targets; /* [n][length]; a target of -1 does not count */
	int32_t *pos,
		*start;	 /* [n][length]: positions, and where their documents begin */
	int64_t counted; /* targets */
	bool masked, documents;
	double *weights; /* [n][length], of targets, 0 for those that do not count; NULL: all are 1 */
	double divisor; /* of the sum of weights times losses; 0: the number of targets that count */
};
static inline double batch_divisor(const struct token_batch *b)
{
	return b->divisor < 0 || b->divisor > 0 ? b->divisor : (double)b->counted;
}

struct batch_opts {
	const char *shape;     /* of plain integers: "B,T" */
	int64_t end;	       /* the token that ends documents; -1: none */
	const char *divide_by; /* "counted", "weights" or a number; NULL: counted */
};

/* Reads the sequences of all files, one after the other. -1 with *e set; token_batch_free() */
int token_batch_read(struct token_batch *b, int64_t n, char *const *files,
	const struct batch_opts *o, struct err *e);
void token_batch_free(struct token_batch *b);

/* arrays.c */
int arrays_read(struct int_arrays *a, const char *path, const char *shape, struct err *e);
void arrays_free(struct int_arrays *a);

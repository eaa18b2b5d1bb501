/* batch: the tokens of another program's step, as its user saved them: NumPy's .npy,
 * PyTorch's .pt, safetensors, or plain integers (.u16, .u32, .i32, .i64; with a shape).
 *
 * A file has windows [sequences][length + 1], or inputs and labels [sequences][length],
 * and optionally positions and a loss mask, by their names or in this order. Labels are
 * shifted as in torchtitan and Megatron (labels[t] = inputs[t + 1]), or equal to the
 * inputs as in Hugging Face. A label below 0 does not count. An array of weights has one
 * float per label. Files with labels may have sequences of different lengths, which are padded
 * with targets that do not count. Files are not trusted. */
#pragma once

#include "base/base.h"

/* An array of a file. */
enum { ARRAY_MAX_DIMS = 4, MAX_ARRAYS = 16 };
struct int_array {
	char name[64]; /* "": no name */
	int ndim;
	int64_t dims[ARRAY_MAX_DIMS];
	int64_t *v; /* elements; NULL: not all are integers */
	double *x;  /* elements of a float type; else NULL */
};

struct int_arrays {
	struct int_array arrays[MAX_ARRAYS];
	int n;
	int64_t left; /* maximum number of elements of further arrays */
};

struct token_batch {
	int64_t n, length;	   /* sequences, and positions per sequence */
	int32_t *tokens, *targets; /* [n][length]; target -1: does not count */
	int32_t *pos,
		*start;	 /* [n][length]: positions, and the starts of their documents */
	int64_t counted; /* number of targets that count */
	bool masked, documents;
	double *weights; /* [n][length], of targets; 0 where none counts; NULL: all are 1 */
	double divisor; /* divisor of the sum of weight * loss; 0: use counted */
};
static inline double batch_divisor(const struct token_batch *b)
{
	return b->divisor < 0 || b->divisor > 0 ? b->divisor : (double)b->counted;
}

struct batch_opts {
	const char *shape;     /* shape of plain integers: "B,T" */
	int64_t end;	       /* token that ends documents; -1: none */
	const char *divide_by; /* "counted", "weights" or a number; NULL: counted */
};

/* Reads the sequences of all files, in order; -1 with *e set. Call token_batch_free() in any
 * case. */
int token_batch_read(struct token_batch *b, int64_t n, char *const *files,
	const struct batch_opts *o, struct err *e);
void token_batch_free(struct token_batch *b);

/* arrays.c: Reads all arrays of a file. shape: of plain integers. arrays_release() in any case. */
int arrays_read(struct int_arrays *a, const char *path, const char *shape, struct err *e);
void arrays_release(struct int_arrays *a);

/* Matrix multiplication with one order of sums: an element of the result depends only on its row of
 * the left operand, its column of the right operand and the number of terms. It does not depend on
 * the other dimensions, the number of threads, or the processor.
 *
 * The structure is from GotoBLAS and BLIS (Goto, van de Geijn 2008; Van Zee, van de Geijn 2015):
 * both operands are copied into panels, and a small kernel keeps a tile of the result in
 * registers. A unit is such a kernel with its panels, for given formats of the operands. */
#pragma once

#include "kernels/cpu/cpu.h"

/* An operand as rows (left) or columns (right) of k elements: element (i, k) is p[i * stride + k],
 * or with `across` p[k * stride + i]. */
struct operand {
	const void *p;
	int64_t stride;
	bool across;
	enum dtype type;
};

/* A causal mask: element j of line i of a matrix, as stored, is masked if j > i + diagonal. */
enum causal {
	CAUSAL_NONE,
	CAUSAL_RESULT, /* masked elements of the result are not needed, and undefined */
	CAUSAL_LEFT    /* masked elements of the left operand are 0, and may be skipped */
};

/* c[m, n] = alpha left right (+ c, or + bias of each column), rounded to its type. */
struct gemm {
	int64_t m, n, k;
	struct operand left, right;
	void *c;
	int64_t c_stride;
	enum dtype type; /* type of c */
	bool add;
	float alpha;
	struct mat bias; /* [n] or empty, of any type */
	/* NULL, or fp32 sums of earlier terms, whose number is a multiple of GROUP_CUT: the result
	 * is as if their terms were the first ones of this matmul. May be c. */
	const float *before;
	int64_t before_stride;
	enum causal causal;
	int64_t diagonal; /* diagonal of the causal mask */
	bool serial;	  /* use only this thread, as within a parallel region */
};

void K(gemm)(const struct gemm *g);
/* Returns memory for n floats, which belongs to this thread and keeps its contents until the next
 * call in this thread. */
float *K(thread_floats)(int64_t n);

/* ---- units ------------------------------------------------------------------------- */

enum { GEMM_MAX_ROWS = 32, GEMM_MAX_COLS = 64 };

/* The maximum number of rows of a task: their panels stay in the L2 cache. */
enum { GEMM_TASK_ROWS = 132 };

struct gemm_unit {
	const char *name;
	int rows, cols;	   /* size of a tile of the result */
	int64_t depth;	   /* maximum number of terms of a panel */
	int64_t row_bytes; /* bytes per row of a left panel */
	int64_t col_bytes; /* bytes per column of a right panel */
	/* Copies terms [k, k + n_k) of `count` rows, from the i-th on, into panels of `rows` rows;
	 * or of `count` columns into one panel of `cols` columns. Missing elements become 0. */
	void (*pack_left)(void *to, const struct operand *x, int64_t i, int64_t count,
		int64_t k, int64_t n_k);
	void (*pack_right)(void *to, const struct operand *x, int64_t j, int64_t count,
		int64_t k, int64_t n_k);
	/* sums[rows][cols] = (first ? 0 : sums) + left right, for two panels. `across`: of the left
	 * operand; if false, its rows are row_bytes apart. */
	void (*multiply)(float *sums, const void *left, int64_t row_bytes,
		const void *right, int64_t n_k, bool across, bool first);
	/* Bytes of a term of one column in its panel, or of one row with `across`; 0: `multiply`
	 * must begin with the first term of a panel. */
	int64_t term_bytes;
	bool in_place; /* `multiply` reads fp32 rows without `across` from the operand itself */
	/* Called before and after the calls of `multiply` in a thread; or NULL. */
	void (*begin)(void);
	void (*end)(void);
};

extern const struct gemm_unit K(gemm_fp32), K(gemm_amx); /* AMX: with AVX-512 */
const struct gemm_unit *K(gemm_bf16)(enum isa isa);
/* Computes a matmul with a given unit. */
void K(gemm_by)(const struct gemm *g, const struct gemm_unit *u);

/*
 * PT_LAB_OFF=name,..: what this library does in order to be quick, left out, so that whoever has
 * a GPU can measure what each of it is worth. No bits change, but of gelu and float8-bias.
 */
#include "kernels/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	enum lab what;
} switches[] = {
	/* statistics and gradient of the logits in one kernel */
	{"xent", LAB_XENT},
	/* gradients of micro-batches added up as one vector, not in blocks */
	{"sum", LAB_SUM},
	/* rows of more than 1024 columns: the gradients of a norm's input and weights in one kernel */
	{"norm", LAB_NORM},
	/* the backward of a norm writes its result as the next matmul takes it, and adds the columns
	 * of that up for the gradient of a bias */
	{"norm-copy", LAB_NORM_COPY},
	/* blocks of attention that take one tile of rows after the other (sm_90) */
	{"attention", LAB_ATTENTION},
	/* the largest number of a matrix, found where its numbers are made */
	{"amax", LAB_AMAX},
	/* the backward of GELU as the epilogue of the matmul that gives its gradient */
	{"gelu", LAB_GELU},
	/* a bias that a matmul of float8 adds */
	{"float8-bias", LAB_FLOAT8_BIAS},
};

static int64_t lab_of(const char *name, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(switches); i++)
		if (strlen(switches[i].name) == len &&
			!memcmp(switches[i].name, name, len))
			return switches[i].what;
	return 0;
}

int cuda_lab_open(struct device *d, struct err *e)
{
	enum { SUM_BLOCK_OF_CPU = 1 << 15 };
	const char *at = getenv("PT_LAB_OFF");
	while (at && *at) {
		size_t len = strcspn(at, ",");
		int64_t what = lab_of(at, len);
		if (!what)
			return err_set(e, EX_USAGE,
				"PT_LAB_OFF has '%.*s', which is nothing that can be "
				"left out",
				(int)len, at);
		cuda_of(d)->lab_off |= what;
		at += len + (at[len] == ',');
	}
	if (cuda_lab_off(d, LAB_SUM))
		d->sum_block = SUM_BLOCK_OF_CPU;
	return 0;
}

bool cuda_lab_off(const struct device *d, enum lab what)
{
	return cuda_of(d)->lab_off & what;
}

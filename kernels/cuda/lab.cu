/* PT_LAB_OFF=NAME,... (all: every one) disables optimizations, so that the gain of each can be
 * measured on a GPU. No bits change, except with act, delta, float8-runs and norm-warp. A switch
 * and its slower kernel are removed once the optimization has been measured on a GPU. */
#include "kernels/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	enum lab what;
} switches[] = {
	/* exact sums of squares by persistent blocks, with limbs in shared memory */
	{"sumsq", LAB_SUMSQ},
	/* the amax kernel with at most two blocks per multiprocessor */
	{"amax-block", LAB_AMAX_BLOCK},
	/* sums of columns with more rows in flight */
	{"bias", LAB_BIAS},
	/* rotary positions in whole packs, one store per pack */
	{"rope", LAB_ROPE},
	/* activations of 16-bit types by approximate instructions, two packs per thread */
	{"act", LAB_ACT},
	/* exact gradients of float8 weights in runs of rows, without conversion */
	{"float8-runs", LAB_FLOAT8_RUNS},
	/* delta of the attention backward with 16 bytes per lane; another order of sums */
	{"delta", LAB_DELTA},
	/* the producer computes the place of a work item of attention (sm_90), once */
	{"attn-item", LAB_ATTN_ITEM},
	/* TMA stores the rows of attention (sm_90), through shared memory */
	{"attn-store", LAB_ATTN_STORE},
	/* the backward of attention (sm_90) enqueues a tile's scores before it waits for the
	 * matmuls of the previous tile */
	{"attn-ahead", LAB_ATTN_AHEAD},
	/* the forward of attention (sm_90) with heads of 64 uses three warpgroups, not two */
	{"attn-three", LAB_ATTN_THREE},
	/* the fused backward of a norm issues all loads of a row before it uses any */
	{"norm-loads", LAB_NORM_LOADS},
	/* one warp per row in norm_fwd and residual_norm up to 2048 columns, not 1024 */
	{"norm-warp", LAB_NORM_WARP},
};

/* Returns the bits of a switch by name; -1: all, 0: unknown. */
static int64_t find_switch(const char *name, size_t len)
{
	if (len == 3 && !memcmp(name, "all", len))
		return -1;
	for (size_t i = 0; i < ARRAY_LEN(switches); i++)
		if (strlen(switches[i].name) == len &&
			!memcmp(switches[i].name, name, len))
			return switches[i].what;
	return 0;
}

int cuda_lab_read(struct device *d, struct err *e)
{
	const char *at = getenv("PT_LAB_OFF");
	while (at && *at) {
		size_t len = strcspn(at, ",");
		int64_t what = find_switch(at, len);
		if (!what)
			return err_set(e, EX_USAGE,
				"PT_LAB_OFF: '%.*s' is not an optimization that can be "
				"disabled",
				(int)len, at);
		cuda_of(d)->lab_off |= what;
		at += len + (at[len] == ',');
	}
	return 0;
}

bool cuda_lab_off(const struct device *d, enum lab what)
{
	return cuda_of(d)->lab_off & what;
}

/* PT_LAB_OFF=NAME,... (all: every one) disables optimizations, so that the gain of each can be
 * measured on a GPU. No bits change, except with act, delta, float8-runs and norm-warp. A switch
 * and its slower kernel are removed once the optimization has been measured on a GPU.
 *
 * PT_LAB_ON=NAME,... (all: every one) enables kernels that no GPU has measured yet.
 *
 * PT_LAB_ATTN_SPARE=N, PT_LAB_MATMUL_SPARE=N: attention (sm_90) and cuBLASLt leave N
 * multiprocessors to kernels in other streams, such as NCCL's. No bits change. */
#include "kernels/cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

struct lab_switch {
	const char *name;
	enum lab what;
};

static const struct lab_switch switches[] = {
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
	/* a block of attention (sm_90) begins with the next free item, not with its own */
	{"attn-first", LAB_ATTN_FIRST},
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

static const struct lab_switch trials[] = {
	/* matmuls in bf16 for sm_90 that are not cuBLASLt's: forward, and gradients of inputs */
	{"matmul", LAB_MATMUL},
	/* with matmul: they compute GELU and its derivative */
	{"matmul-gelu", LAB_MATMUL_GELU},
	/* with matmul-gelu: and the gradient of the bias of GELU's argument */
	{"matmul-columns", LAB_MATMUL_COLUMNS},
	/* the softmax of bf16 logits adds tiles of 256 columns; with matmul, in the matmul */
	{"matmul-xent", LAB_MATMUL_XENT},
	/* matmuls of experts in bf16 for sm_90 */
	{"groups", LAB_GROUPS},
};

/* Returns the bits of a switch by name; -1: all, 0: unknown. */
static int64_t find_switch(
	const struct lab_switch *s, size_t n, const char *name, size_t len)
{
	if (len == 3 && !memcmp(name, "all", len))
		return -1;
	for (size_t i = 0; i < n; i++)
		if (strlen(s[i].name) == len && !memcmp(s[i].name, name, len))
			return s[i].what;
	return 0;
}

/* Adds the bits of the names in an environment variable to *to. */
static int lab_read(const char *variable, const struct lab_switch *s, size_t n,
	int64_t *to, const char *what, struct err *e)
{
	const char *at = getenv(variable);
	while (at && *at) {
		size_t len = strcspn(at, ",");
		int64_t bits = find_switch(s, n, at, len);
		if (!bits)
			return err_set(e, EX_USAGE, "%s: '%.*s' is not %s", variable,
				(int)len, at, what);
		*to |= bits;
		at += len + (at[len] == ',');
	}
	return 0;
}

/* Reads a number of multiprocessors; 0 if the variable is not set. */
static int read_spare(const char *variable, int *to, struct err *e)
{
	const char *text = getenv(variable);
	int64_t n = 0;
	if (text && (parse_int(text, &n) || n < 0 || n > INT16_MAX))
		return err_set(e, EX_USAGE, "%s: '%s' is not a number of multiprocessors",
			variable, text);
	*to = (int)n;
	return 0;
}

int cuda_lab_read(struct device *d, struct err *e)
{
	struct cuda_device *c = cuda_of(d);
	if (read_spare("PT_LAB_ATTN_SPARE", &c->attn_spare, e) ||
		read_spare("PT_LAB_MATMUL_SPARE", &c->matmul_spare, e))
		return -1;
	int rc = lab_read("PT_LAB_OFF", switches, ARRAY_LEN(switches), &c->lab_off,
		"an optimization that can be disabled", e);
	return rc ? rc
		  : lab_read("PT_LAB_ON", trials, ARRAY_LEN(trials), &c->lab_on,
			    "a kernel that can be enabled", e);
}

bool cuda_lab_off(const struct device *d, enum lab what)
{
	return cuda_of(d)->lab_off & what;
}

bool cuda_lab_on(const struct device *d, enum lab what)
{
	return cuda_of(d)->lab_on & what;
}

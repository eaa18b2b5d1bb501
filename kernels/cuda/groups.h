/* Shared by the files of experts. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Sets logits[rows][E] = h wr^T in fp32. */
void cuda_router_logits(
	struct device *d, const char *name, float *logits, struct mat h, struct mat wr);

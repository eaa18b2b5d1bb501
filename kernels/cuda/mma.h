/*
 * Tensor cores, asynchronous copies to shared memory, and other instructions that C++ has no
 * name for, for sm_80 and later (PTX ISA, "Matrix Fragments for mma.m16n8k16"). A lane of a warp
 * holds parts of each matrix: with g = lane / 4 and t = lane % 4,
 *   a[16 rows, 16]: {(g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)}, two elements each,
 *   b[16, 8 cols]:  {(2t, g), (2t + 8, g)}, two elements each, one below the other,
 *   c[16, 8]:       {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}.
 */
#pragma once

#include "kernels/cuda/cuda.h"

#include <gpu_mma.h>

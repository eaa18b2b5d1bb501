/* kernels: the arithmetic of training and inference, and a table of kernels for each device.
 *
 * A kernel is a pure function of its arguments: no state, no communication, no
 * parallelism strategy. Its result does not depend on the number of threads. The order of
 * summation in a kernel depends only on shapes; no sum uses atomics. Models are in libcore/model.
 *
 *	dtype.h, matrix.h	number formats, and matrices of them
 *	layers.h		embedding, linear, norm, attention, activation, cross-entropy
 *	experts.h		mixture of experts: router, permutation, matmuls of groups
 *	optimizer.h		AdamW, the end of a step, sums of losses and squares
 *	grid.h			sums of gradients
 *	tensors.h		casts, random values, fills, copies, checks
 *	workers.h		sums over workers (local SGD), and compression of messages
 *	device.h		devices: memory, copies, graphs, timers
 *	backend.h		the interface that a device implements
 *
 * Each kernel is declared in one place, in one of these headers, as
 *
 *	KERNEL(type, name, parameters...)
 *
 * Code for all kernels (the devices' tables and prototypes, the planning device, the self-test,
 * tests) defines KERNEL and includes list.h. Each device implements each kernel: the C type of
 * kernel X is kern_X, and d->k->X(d, ...) calls it on device d. */
#pragma once

#include "kernels/device.h"
#include "kernels/matrix.h"

#define KERNEL(type, name, ...) typedef type kern_##name(__VA_ARGS__);
#include "kernels/list.h"

#define KERNEL(type, name, ...) kern_##name *name;
struct kernels {
	const char *name; /* "cpu avx512", ... */
#include "kernels/list.h"
};

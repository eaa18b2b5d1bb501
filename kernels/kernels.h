/*
 * kernels: every piece of arithmetic, declared once, and one table of them for each device.
 *
 * A kernel is a pure function of its arguments: no state, no communication, no
 * parallelism strategy. Its result does not depend on the number of threads. Sums inside
 * a kernel run in an order that its shapes alone fix; nothing is summed with atomics.
 * Nothing here knows what a model is; that is libcore/model.
 *
 *	dtype.h, matrix.h	number formats, and matrices of them
 *	layers.h		embedding, linear, norm, attention, activation, cross-entropy
 *	optimizer.h		AdamW, the end of a step, exact sums
 *	tensors.h		casts, random values, fills, copies, checks
 *	workers.h		sums over workers, and compression of what they send
 *	device.h		devices: memory, copies, graphs, times
 *	backend.h		for those who make a device
 *
 * Each kernel is declared in one place, in one of these headers, as
 *
 *	KERNEL(type, name, parameters...)
 *
 * and all that needs every kernel (the tables of the devices, their prototypes, the planning
 * device, the self-test, tests) defines KERNEL and includes list.h. Each device has a function of
 * each kernel: the C type of kernel X is kern_X, and a device d calls it by d->k->X(d, ...).
 */
#ifndef KERNELS_H
#define KERNELS_H

#include "kernels/device.h"
#include "kernels/matrix.h"

#include <string.h>

#define KERNEL(type, name, ...) typedef type kern_##name(__VA_ARGS__);
#include "kernels/list.h"

#define KERNEL(type, name, ...) kern_##name *name;
struct kernels {
	const char *name; /* "cpu avx512", ... */
#include "kernels/list.h"
};

#endif

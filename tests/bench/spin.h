/* Blocks that keep multiprocessors busy in another stream, as kernels of NCCL do. The plugin has them
 * if it is emulated or built with LAB=yes. */
#pragma once

#include "kernels/kernels.h"

struct spin {
	/* Returns when `blocks` blocks run, each on its own multiprocessor. They end after ten seconds,
	 * or with end(). */
	void (*begin)(struct device *d, int blocks);
	void (*end)(struct device *d);
};

/* Its name in the plugin is "pt_spin". */
extern const struct spin pt_spin;

/* Finds a matmul that is on trial in the CUDA plugin of a device. */
#pragma once

#include "tests/bench/matmul_hopper.h"

#include <dlfcn.h>

/* NULL: not the device of the plugin. */
static inline const struct matmul_variant *matmuls_hopper(const struct device *d)
{
	const void *fn;
	Dl_info of;
	memcpy(&fn, &d->k->linear_fwd, sizeof(fn));
	void *lib = dladdr(fn, &of) ? dlopen(of.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
	return lib ? dlsym(lib, "pt_matmuls_hopper") : NULL;
}

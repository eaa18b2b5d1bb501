/* Finds what is on trial in the CUDA plugin of a device. */
#pragma once

#include "tests/bench/matmul_hopper.h"

#include <dlfcn.h>

/* Returns a symbol of the device's plugin, or NULL. */
static inline const void *plugin_symbol(const struct device *d, const char *name)
{
	const void *fn;
	Dl_info of;
	memcpy(&fn, &d->k->linear_fwd, sizeof(fn));
	void *lib = dladdr(fn, &of) ? dlopen(of.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
	return lib ? dlsym(lib, name) : NULL;
}

/* NULL: not the device of the plugin. */
static inline const struct matmul_variant *matmuls_hopper(const struct device *d)
{
	return plugin_symbol(d, "pt_matmuls_hopper");
}

static inline const struct matmul_epilogues *matmul_epilogues(const struct device *d)
{
	return plugin_symbol(d, "pt_matmul_epilogues");
}

/* The router of a mixture of experts. */
#pragma once

#include "model/block.h"

/* Returns the settings of the router kernels, the same for all layers. */
struct router model_router(const struct pass *p);

/* referee: the checks of pt-train that find defective hardware before an update. Set t->checks to
 * referee_checks between trainer_prepare() and trainer_build(). */
#pragma once

#include "engine/checks.h"

extern const struct check_row referee_checks[N_STEP_CHECKS];

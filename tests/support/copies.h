/* Copies of state on several ranks. */
#pragma once

#include "parallel/store.h"

/* Returns true if all copies of each piece of state have the same bits (pieces.h). Collective. */
bool test_copies_agree(struct store *s);

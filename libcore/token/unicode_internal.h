/* The table that unicode.py makes, for unicode.c. */
#ifndef TOKEN_UNICODE_INTERNAL_H
#define TOKEN_UNICODE_INTERNAL_H

#include "token/token.h"

extern const uint32_t unicode_runs[];
extern const int unicode_n_runs;

#endif

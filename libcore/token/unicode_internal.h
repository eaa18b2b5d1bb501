/* The tables made by unicode.py and normalize.py, and sets of characters. */
#pragma once

#include "token/token.h"

extern const uint32_t unicode_runs[];
extern const uint16_t unicode_kinds[];
extern const char *const unicode_categories[], *const unicode_scripts[];
extern const int unicode_n_runs, unicode_n_categories, unicode_n_scripts;
/* By normalize.py: the characters that normalization knows, [runs[0], runs[1]), [runs[2], ... */
extern const uint32_t normalize_runs[];
extern const int normalize_n_runs;

/* ---- unicode.c ------------------------------------------------------------------- */

/* Sets has[code] for all characters with a property of \p{}: a category or its first letter, a
 * script, Alphabetic, Lowercase, Uppercase, Any. Returns false if the table lacks the property. */
bool unicode_property(const char *name, bool has[CODE_POINTS]);

/* ---- unicode_regex.c ------------------------------------------------------------- */

/* Appends a regular expression of PCRE2 in which properties, \d and \w have the characters of our
 * table, independent of the version of Unicode in PCRE2. */
void unicode_regex(const char *regex, struct str *out);

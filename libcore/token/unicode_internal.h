/* The tables that unicode.py and normalize.py make; and the sets of characters that it tells. */
#pragma once

#include "token/token.h"

extern const uint32_t unicode_runs[];
extern const uint16_t unicode_kinds[];
extern const char *const unicode_categories[], *const unicode_scripts[];
extern const int unicode_n_runs, unicode_n_categories, unicode_n_scripts;
/* By normalize.py: characters that normalization knows are in [runs[0], runs[1]), [runs[2], runs[3]), ... */
extern const uint32_t normalize_runs[];
extern const int normalize_n_runs;

/* ---- unicode.c ------------------------------------------------------------------- */

/* Sets has[code] for all characters of a property by its name in \p{}: a category or the first letter of some, a
 * script, Alphabetic, Lowercase, Uppercase, Any. false: the table does not know it. */
bool unicode_property(const char *name, bool has[CODE_POINTS]);

/* ---- unicode_regex.c ------------------------------------------------------------- */

/* Appends a regular expression of PCRE2 in which properties, \d and \w are those of our table, whatever version of
 * Unicode PCRE2 knows. */
void unicode_regex(const char *regex, struct str *out);

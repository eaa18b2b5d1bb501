/* Pictures by gnuplot, which runs without a shell. */
#pragma once

#include "base/base.h"

/* Appends the gnuplot terminal for the suffix of a file name (.svg, .png, .pdf), with space for
 * `lines` lines below the plot. Returns false for other suffixes. `out` may be NULL. */
bool gnuplot_terminal(const char *path, int lines, struct str *out);
/* Appends a string in quotes. */
void gnuplot_quote(struct str *out, const char *s);
/* Runs a script, and appends gnuplot's output, the picture. Returns 0, or -1 with *e set. */
int gnuplot_run(const struct str *script, struct str *picture, struct err *e);

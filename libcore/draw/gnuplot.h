/* Pictures by gnuplot, which runs without a shell. */
#pragma once

#include "base/base.h"

/* Appends the terminal for the suffix of a file's name, .svg, .png or .pdf, with room for so many lines below a
 * plot. False: another suffix. out: may be NULL. */
bool gnuplot_terminal(const char *path, int lines, struct str *out);
/* Appends a string in quotes. */
void gnuplot_quote(struct str *out, const char *s);
/* Appends what gnuplot prints for a script, which is the picture. 0, or -1 with *e set. */
int gnuplot_run(const struct str *script, struct str *picture, struct err *e);

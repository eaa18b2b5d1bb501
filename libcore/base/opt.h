/* Shared by opt.c, help.c and gen.c only. */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include "base/base.h"

extern const struct opt common_opts[];
/* The program's options, then the common ones, headings included; NULL begins. */
const struct opt *opt_next(const struct program *p, const struct opt *at);
/* How the option's value is written in help: "N", or "a|b|c" for an enum. */
void opt_arg(const struct opt *t, struct str *out);
/* The default for people: nothing for flags and empty ones, \\n for a line break. */
void opt_default(const struct opt *t, struct str *out);
void opt_print_help(const struct program *p);
void opt_print_version(const struct program *p);

#endif

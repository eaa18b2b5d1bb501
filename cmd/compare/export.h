/* export: writes logs of any format as one table, JSON lines, or event files of TensorBoard. */
#pragma once

#include "run/run.h"

extern const char *const export_names[]; /* "auto", then the formats; ends with NULL */

/* Returns the format; if `format` is 0 (auto), the one that the path implies. -1: *e is set. */
int export_choose_format(const char *path, int format, struct err *e);
/* Writes columns of n logs; `columns` empty: all columns with a value. */
int export_write(const struct run_log *logs, int n, const struct strs *columns,
	const char *path, int format, struct err *e);

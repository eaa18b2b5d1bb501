/* export: logs of any format as one table, JSON lines, or event files of TensorBoard. */
#pragma once

#include "run/run.h"

extern const char *const export_names[]; /* "auto", then the formats; ends with NULL */

/* Which format a name stands for, if `format` is 0 (auto). -1: an error. */
int export_format(const char *path, int format, struct err *e);
/* Writes columns of n logs; `columns` empty: all that have a value. */
int export_write(const struct run_log *logs, int n, const struct strs *columns,
	const char *path, int format, struct err *e);

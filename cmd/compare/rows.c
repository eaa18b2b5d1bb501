/* The rows of several logs, merged by step or tokens. */
#include "compare/compare.h"

#include <math.h>

static bool has_values(const struct log_rows *r, int key_column)
{
	return run_log_has(r->log, r->row, r->column) &&
	       run_log_has(r->log, r->row, key_column);
}

int log_rows_next(struct log_rows *r, int n, int key_column, double *key)
{
	int n_here = 0;
	*key = INFINITY;
	for (int i = 0; i < n; i++) {
		r[i].row += r[i].has_row;
		while (r[i].row < r[i].log->n_rows && !has_values(&r[i], key_column))
			r[i].row++;
		if (r[i].row < r[i].log->n_rows)
			*key = fmin(*key, run_log_value(r[i].log, r[i].row, key_column));
	}
	for (int i = 0; i < n; i++) {
		r[i].has_row = r[i].row < r[i].log->n_rows &&
			       run_log_value(r[i].log, r[i].row, key_column) == *key;
		if (r[i].has_row)
			r[i].v = run_log_value(r[i].log, r[i].row, r[i].column);
		n_here += r[i].has_row;
	}
	return n_here;
}

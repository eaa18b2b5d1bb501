/* The rows of several logs, merged by step or tokens. */
#include "compare/compare.h"

#include <math.h>

static bool has_both(const struct log_rows *r, int by)
{
	return run_log_has(r->log, r->row, r->column) && run_log_has(r->log, r->row, by);
}

int rows_next(struct log_rows *r, int n, int by, double *key)
{
	int n_here = 0;
	*key = INFINITY;
	for (int i = 0; i < n; i++) {
		r[i].row += r[i].here;
		while (r[i].row < r[i].log->n_rows && !has_both(&r[i], by))
			r[i].row++;
		if (r[i].row < r[i].log->n_rows)
			*key = fmin(*key, run_log_value(r[i].log, r[i].row, by));
	}
	for (int i = 0; i < n; i++) {
		r[i].here = r[i].row < r[i].log->n_rows &&
			    run_log_value(r[i].log, r[i].row, by) == *key;
		if (r[i].here)
			r[i].v = run_log_value(r[i].log, r[i].row, r[i].column);
		n_here += r[i].here;
	}
	return n_here;
}

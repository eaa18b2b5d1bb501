#include "tests/support/gradient.h"

#include <math.h>

double gradient_norm(struct store *s)
{
	struct device *d = s->c.device;
	struct exact sum;
	store_norm_enqueue(s);
	device_get(d, &sum, store_norm_squares(s), sizeof(sum));
	comm_sum_i64(s->c.mesh->world, (int64_t *)&sum, EXACT_WORDS);
	/* (a leaf that is too large makes the sum -inf: see grid_count()) */
	return sqrt(fabs(exact_round(&sum)));
}

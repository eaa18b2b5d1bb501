/* The loss of one position in double precision, and the gradients of its logits. */
#include "reference/float64_pass.h"

#include <math.h>

/* Returns log(sum of exp(x)). */
static double log_sum_exp(const double *x, int64_t n)
{
	double max = x[0], sum = 0;
	for (int64_t j = 1; j < n; j++)
		max = fmax(max, x[j]);
	for (int64_t j = 0; j < n; j++)
		sum += exp(x[j] - max);
	return max + log1p(sum - 1);
}

double float64_loss(const struct sequence_work *w, double *logits, double *slope,
	int32_t target, double scale)
{
	const struct function *f = &w->f->function;
	const int64_t vocab = w->m->c.vocab;
	double sum = 0, factor = f->logit_scale > 0 ? f->logit_scale : 1;
	double cap = variant_or_model(f->logit_cap, w->m->c.logit_cap);
	factor *= w->m->c.logit_scale > 0 ? w->m->c.logit_scale : 1;
	for (int64_t j = 0; j < vocab; j++) {
		sum += logits[j] = soft_cap(factor * logits[j], cap, &slope[j]);
		slope[j] *= factor;
	}
	double lse = log_sum_exp(logits, vocab), negentropy = 0;
	lse += log1p(f->zero_logits * exp(-lse));
	double loss = lse - logits[target];
	for (int64_t j = 0; j < vocab && f->loss == LOSS_ENTROPY; j++)
		negentropy += exp(logits[j] - lse) * (logits[j] - lse);
	for (int64_t j = 0; j < vocab; j++) {
		double p = exp(logits[j] - lse), expected = j == target;
		if (f->loss == LOSS_UNIFORM)
			expected = 1 / (double)vocab;
		logits[j] = scale * slope[j] *
			    (f->loss == LOSS_Z ? 2 * lse * p
				    : f->loss == LOSS_ENTROPY
					    ? p * (logits[j] - lse - negentropy)
					    : p - expected);
	}
	return f->loss == LOSS_Z	 ? lse * lse
	       : f->loss == LOSS_ENTROPY ? negentropy
	       : f->loss == LOSS_UNIFORM ? lse - sum / (double)vocab
					 : loss;
}

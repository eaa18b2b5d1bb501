/* Student's t, for tests of means: pure functions, NaN gives NaN. And medians. */
#ifndef BASE_STUDENT_H
#define BASE_STUDENT_H

#include "base/base.h"

/* P(|T| >= |t|) for Student's t with df >= 1 degrees of freedom: the finite sums of Abramowitz and
 * Stegun, 26.7.3 and 26.7.4; above MAX_DF the normal distribution. */
enum { MAX_DF = 1000 };
double student_p(double t, int64_t df);
/* The t of which student_p() is p, 0 < p < 1. */
double student_quantile(double p, int64_t df);
/* The median of n > 0 numbers, which it reorders. */
double median(double *v, int64_t n);

#endif

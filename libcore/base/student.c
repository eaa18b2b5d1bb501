/* Student's t. */
#include "base/student.h"

#include <math.h>

double student_p(double t, int64_t df)
{
	if (df > MAX_DF)
		return erfc(fabs(t) / sqrt(2));
	double angle = atan2(fabs(t), sqrt((double)df)), c = cos(angle);
	bool odd = df % 2;
	double term = odd ? c : 1, sum = df > 1 ? term : 0;
	for (int64_t k = odd ? 3 : 2; k < df; k += 2) {
		term *= (double)(k - 1) / (double)k * c * c;
		sum += term;
	}
	double inside = sin(angle) * sum;
	if (odd)
		inside = (angle + inside) * 2 / acos(-1);
	return inside < 1 ? 1 - inside : isnan(inside) ? inside : 0;
}

double student_quantile(double p, int64_t df)
{
	double low = 0, high = 1;
	while (high < 1e12 && student_p(high, df) > p)
		high *= 2;
	for (int i = 0; i < 100; i++) {
		double middle = (low + high) / 2;
		*(student_p(middle, df) > p ? &low : &high) = middle;
	}
	return high;
}

/* Student's t, and medians. */
#include "stats/stats.h"

#include <math.h>

double student_p(double t, int64_t df)
{
	if (df > MAX_DF)
		return erfc(fabs(t) / sqrt(2));
	double angle = atan2(fabs(t), sqrt((double)df)), c = cos(angle);
	bool is_odd = df % 2;
	double term = is_odd ? c : 1, sum = df > 1 ? term : 0;
	for (int64_t k = is_odd ? 3 : 2; k < df; k += 2) {
		term *= (double)(k - 1) / (double)k * c * c;
		sum += term;
	}
	double inside = sin(angle) * sum;
	if (is_odd)
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

/* Returns the k-th smallest of v[n], and moves smaller values before it (Hoare's selection). */
static double select_nth(double *v, int64_t n, int64_t k)
{
	int64_t low = 0, high = n - 1;
	while (low < high) {
		/* (a random pivot: no order of the values makes it slow) */
		double pivot = v[low + (int64_t)(hash_mix((uint64_t)(low ^ high)) %
						 (uint64_t)(high - low + 1))];
		int64_t i = low, j = high;
		while (i <= j) {
			while (v[i] < pivot)
				i++;
			while (v[j] > pivot)
				j--;
			if (i > j)
				break;
			double x = v[i];
			v[i++] = v[j];
			v[j--] = x;
		}
		if (k <= j)
			high = j;
		else if (k >= i)
			low = i;
		else
			break;
	}
	return v[k];
}

double median(double *v, int64_t n)
{
	double upper = select_nth(v, n, n / 2), lower = -INFINITY;
	for (int64_t i = 0; i < n / 2; i++)
		lower = fmax(lower, v[i]);
	return n % 2 ? upper : lower / 2 + upper / 2;
}

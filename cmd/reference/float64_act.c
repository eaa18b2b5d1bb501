/* Activation functions in double precision. */
#include "reference/float64_pass.h"

#include <math.h>

/* Returns an activation function of a bug, ACT_OF_BUG or more, and its slope. */
static double act_of_bug(int act, double x, double *slope)
{
	const double root = 0.7978845608028654; /* square root of 2 / pi */
	double s = 1 / (1 + exp(-x)), half = 0.5 * erfc(-x / sqrt(2));
	double t = tanh(root * (x + 0.044715 * x * x * x));
	switch (act) {
	case ACT_RELU:
		*slope = x > 0;
		return x > 0 ? x : 0;
	case ACT_PLAIN_GELU:
		*slope = half + 0.5 * root * x * exp(-x * x / 2);
		return x * half;
	case ACT_TANH_GELU:
		*slope = 0.5 * (1 + t) +
			 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
		return 0.5 * x * (1 + t);
	case ACT_QUICK_GELU:
		s = 1 / (1 + exp(-1.702 * x));
		*slope = s * (1 + 1.702 * x * (1 - s));
		return x * s;
	default: /* ACT_SILU */
		*slope = s * (1 + x * (1 - s));
		return x * s;
	}
}

static const double pi = 3.14159265358979323846;

static double gelu_tanh(double x)
{
	return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
}

static double gelu_tanh_slope(double x)
{
	double t = tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x));
	return 0.5 * (1 + t) +
	       0.5 * x * (1 - t * t) * sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x);
}

static double gelu(double x)
{
	return x * 0.5 * erfc(-x / sqrt(2));
}

static double gelu_slope(double x)
{
	return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * pi);
}

static double swiglu(double x, double gate)
{
	return x / (1 + exp(-x)) * gate;
}

static double swiglu_slope(double x, double gate, double *dgate)
{
	double s = 1 / (1 + exp(-x));
	*dgate = x * s;
	return gate * s * (1 + x * (1 - s));
}

static double geglu_tanh(double x, double gate)
{
	return gelu_tanh(x) * gate;
}

static double geglu_tanh_slope(double x, double gate, double *dgate)
{
	*dgate = gelu_tanh(x);
	return gelu_tanh_slope(x) * gate;
}

#define PLAIN_CALL(f, x, ...) f(x)
#define GATED_CALL(f, ...) f(__VA_ARGS__)

double float64_act(enum act_kind kind, double x, double gate)
{
	double slope;
	if ((int)kind >= ACT_OF_BUG)
		return act_of_bug((int)kind, x, &slope) * gate;
	switch (kind) {
#define ACT(id, name, kind, ...) \
	case ACT_##id:           \
		return kind##_CALL(name, x, gate);
#include "kernels/acts.h"
	}
	bug(__FILE__, __LINE__, "an activation function");
}

double float64_act_slope(enum act_kind kind, double x, double gate, double *dgate)
{
	*dgate = 0;
	if ((int)kind >= ACT_OF_BUG) {
		double slope;
		*dgate = act_of_bug((int)kind, x, &slope);
		return gate * slope;
	}
	switch (kind) {
#define ACT(id, name, kind, ...) \
	case ACT_##id:           \
		return kind##_CALL(name##_slope, x, gate, dgate);
#include "kernels/acts.h"
	}
	bug(__FILE__, __LINE__, "an activation function");
}

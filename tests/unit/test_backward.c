/* The gradient of a small model in 16 bits is near that in 32 bits of a CPU, tensor by tensor: a
 * product that overwrites what others have added takes it far away. A loss hears of that as of a
 * slightly worse gradient.
 * device: cpu cuda
 */
#include "tests/support/gradient.h"
#include "tests/support/models.h"
#include "tests/support/net.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *gradient(struct net *x, const struct part *o)
{
	size_t n_bytes = (size_t)(o->rows * o->cols) * sizeof(float);
	float *g = xmalloc(n_bytes + 1);
	device_get(&x->d, g, o->g, n_bytes);
	return g;
}

/* How far apart, of how long both are. */
static double apart(const float *a, const float *b, int64_t n, double least)
{
	double difference = 0, length = 0;
	for (int64_t i = 0; i < n; i++) {
		difference +=
			((double)b[i] - (double)a[i]) * ((double)b[i] - (double)a[i]);
		length += (double)a[i] * (double)a[i];
	}
	return sqrt(difference) / (sqrt(length) + least);
}

/* Each slice of each tensor. One that would be zero without rounding, as the bias of keys is,
 * counts as a small part of all. */
static void compare(struct net *plain, struct net *x, double bound)
{
	double worst = 0, least = 1e-3 * gradient_norm(plain->store);
	assert_int_equal(plain->store->n_updated, x->store->n_updated);
	for (int64_t i = 0; i < plain->store->n_updated; i++) {
		const struct part *o = &plain->store->updated[i];
		float *a = gradient(plain, o), *b = gradient(x, &x->store->updated[i]);
		double d = apart(a, b, o->rows * o->cols, least);
		free(a);
		free(b);
		if (!(d <= bound))
			fail_msg("%s, slice %d: %.3g apart", o->t->name, o->slice, d);
		worst = d > worst ? d : worst;
	}
	print_message("# gradients: %.2g apart at most\n", worst);
}

static enum device_kind asked(void)
{
	const char *name = getenv("PT_TEST_DEVICE");
	return name && !strcmp(name, "cuda") ? DEVICE_CUDA : DEVICE_CPU;
}

static void check(const struct model_config *m)
{
	static const struct {
		enum precision precision;
		enum dtype type;
		double bound;
	} of[] = {{PRECISION_FP32, DT_F32, 1e-5}, {PRECISION_BF16, DT_BF16, 0.15},
		{PRECISION_FLOAT8, DT_BF16, 0.9}};
	struct net plain, x;
	net_open(&plain, m, DEVICE_CPU, PRECISION_FP32, DT_F32);
	net_step(&plain);
	for (size_t i = 0; i < ARRAY_LEN(of); i++) {
		net_open(&x, m, asked(), of[i].precision, of[i].type);
		net_step(&x);
		compare(&plain, &x, of[i].bound);
		net_close(&x);
	}
	net_close(&plain);
}

/* A weight with two uses, and biases. */
TEST(gpt2)
{
	struct model_config c = small_gpt2;
	c.context = 32;
	check(&c);
}

/* Sums of several products in fp32, as slices have them. */
TEST(llama_in_slices)
{
	struct model_config c = small_llama;
	c.context = 32;
	c.ffn_dim = 64;
	c.virtual_degrees = "tp=2";
	check(&c);
}

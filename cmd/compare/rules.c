/* How torchtitan and Megatron-LM accept a loss curve, as in their files of August 2026. A rule
 * compares each test with the first control. */
#include "compare/judge_internal.h"
#include "options/options.h"

#include <math.h>

/* A control and a test. */
struct rule_pair {
	const double *at, *control, *test;
	int64_t n;
	bool by_step;
};

/* Compares as numpy.isclose(): a NaN is close to nothing, and an infinity only to itself. */
static bool is_close(double test, double control, double rtol)
{
	return test == control ||
	       (isfinite(control) && fabs(test - control) <= rtol * fabs(control));
}

/* Accepts equal losses at every step. */
static bool accept_torchtitan(const struct rule_pair *p, struct str *reason)
{
	for (int64_t i = 0; i < p->n; i++)
		if (isnan(p->test[i]) || !same_as_logged(p->control[i], p->test[i])) {
			str_printf(reason, "step %.0f: control %.9g, test %.9g", p->at[i],
				p->control[i], p->test[i]);
			return false;
		}
	str_printf(reason, "all %lld losses are equal", (long long)p->n);
	return true;
}

/* Rounds to five decimals, as Megatron-LM's files do. */
static double round_to_five_decimals(double x)
{
	char text[400];
	snprintf(text, sizeof(text), "%.5f", x);
	return strtod(text, NULL);
}

/* Returns true for step 1 and every 5th step, which Megatron-LM's files have. */
static bool is_sampled(const struct rule_pair *p, int64_t row)
{
	double step = p->at[row];
	return !p->by_step || step == 1 || (step > 1 && fmod(step, 5) == 0);
}

/* Accepts values within rtol, except a hundredth of them if rtol > 0. */
static bool accept_megatron(const struct rule_pair *p, double rtol, struct str *reason)
{
	int64_t n = 0, n_failed = 0, allowed = 0;
	for (int64_t i = 0; i < p->n; i++) {
		if (!is_sampled(p, i))
			continue;
		double control = round_to_five_decimals(p->control[i]);
		n++;
		n_failed += !is_close(round_to_five_decimals(p->test[i]), control, rtol);
	}
	if (rtol > 0 && n > 1)
		allowed = min64(max64(n / 100, 1), 50);
	str_printf(reason,
		"%lld of %lld values differ by more than %g; the rule allows %lld",
		(long long)n_failed, (long long)n, rtol, (long long)allowed);
	return n && n_failed <= allowed;
}

static bool accept_megatron_exact(const struct rule_pair *p, struct str *reason)
{
	return accept_megatron(p, 0, reason);
}

static bool accept_megatron_near(const struct rule_pair *p, struct str *reason)
{
	return accept_megatron(p, 0.05, reason);
}

/* Name, repository, files, help, and the function for each pair. */
#define RULES(R)                                                                            \
	R("ours", NULL, NULL, "The verdicts of pt-compare.", NULL)                          \
	R("torchtitan", "pytorch/torchtitan", "scripts/loss_compare.py --assert-equal",     \
		"Equal losses at every step.", accept_torchtitan)                           \
	R("megatron", "NVIDIA/Megatron-LM",                                                 \
		"tests/functional_tests/python_test_utils/common.py: DeterministicTest",    \
		"Equal losses, to five decimals, at step 1 and every 5th step; with "       \
		"--by tokens, in every row. A NaN is equal to nothing.",                    \
		accept_megatron_exact)                                                      \
	R("megatron-approximate", "NVIDIA/Megatron-LM",                                     \
		"tests/functional_tests/python_test_utils/"                                 \
		"test_pretraining_regular_pipeline.py: CHECK_THRESHOLDS; "                  \
		"common.py: pipeline",                                                      \
		"Losses that differ by at most 5 %; a hundredth of the losses, at least 1 " \
		"and at most 50 losses, may differ by more.",                               \
		accept_megatron_near)

#define ROW(...) {__VA_ARGS__},
const struct rule rules[] = {RULES(ROW)};
#define NAME(name, ...) name,
const char *const rule_names[] = {RULES(NAME) NULL};

const int n_rules = ARRAY_LEN(rules);

bool rule_accepts_all(const struct rule *r, const struct curves *c, struct str *reason)
{
	for (int t = 0; t < c->n_test; t++) {
		const struct rule_pair p = {c->at, curve_of(c, CONTROL, 0),
			curve_of(c, TEST, t), c->n, c->by_step};
		str_clear(reason);
		if (!r->accepts(&p, reason))
			return false;
	}
	return true;
}

static void print_mdoc_source(const struct rule *r, FILE *f)
{
	if (r->source)
		fprintf(f, ".Pq %s, %s\n", r->repository, r->source);
}

void rules_print_man(FILE *f)
{
	fputs(".Bl -tag -width Ds\n", f);
	for (int i = 0; i < n_rules; i++) {
		fprintf(f, ".It Cm %s\n", rules[i].name);
		man_text(f, rules[i].help);
		print_mdoc_source(&rules[i], f);
	}
	fputs(".El\n", f);
}

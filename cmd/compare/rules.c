/* The rules by which other projects accept a loss curve, as their files state them in August 2026;
 * a rule for a pair of runs takes each test with the first control. */
#include "compare/judge_internal.h"
#include "options/options.h"

#include <math.h>
#include <stdlib.h>

/* ---- pairs ------------------------------------------------------------------------- */

/* A control and a test. */
struct rule_pair {
	const double *at, *control, *test;
	int64_t n;
	bool by_step;
};

static bool is_close(double test, double control, double rtol)
{
	return test == control ||
	       (isfinite(control) && fabs(test - control) <= rtol * fabs(control));
}

static bool torchtitan_pair(const struct rule_pair *p, struct str *reason)
{
	for (int64_t i = 0; i < p->n; i++)
		if (isnan(p->test[i]) || !same_as_logged(p->control[i], p->test[i])) {
			str_printf(reason, "step %.0f: %.9g, %.9g", p->at[i],
				p->control[i], p->test[i]);
			return false;
		}
	str_printf(reason, "all %lld losses are equal", (long long)p->n);
	return true;
}

/* ---- Megatron-LM -------------------------------------------------------------------- */

/* The values of its files: step 1 and each 5th step, with five decimals. A NaN is close to nothing, and
 * an infinity to itself only, as numpy.isclose() has it. */
static double five_decimals(double x)
{
	char text[400];
	snprintf(text, sizeof(text), "%.5f", x);
	return strtod(text, NULL);
}

static bool is_sampled(const struct rule_pair *p, int64_t row)
{
	double step = p->at[row];
	return !p->by_step || step == 1 || (step > 1 && fmod(step, 5) == 0);
}

static bool megatron_pair(const struct rule_pair *p, double rtol, struct str *reason)
{
	int64_t n = 0, n_failed = 0, most = 0;
	for (int64_t i = 0; i < p->n; i++) {
		if (!is_sampled(p, i))
			continue;
		double control = five_decimals(p->control[i]);
		n++;
		n_failed += !is_close(five_decimals(p->test[i]), control, rtol);
	}
	if (rtol > 0 && n > 1)
		most = min64(max64(n / 100, 1), 50);
	str_printf(reason, "%lld of %lld values differ by more than %g; %lld may",
		(long long)n_failed, (long long)n, rtol, (long long)most);
	return n && n_failed <= most;
}

static bool megatron_exact(const struct rule_pair *p, struct str *reason)
{
	return megatron_pair(p, 0, reason);
}

static bool megatron_near(const struct rule_pair *p, struct str *reason)
{
	return megatron_pair(p, 0.05, reason);
}

/* ---- Megatron-Bridge ----------------------------------------------------------------- */

static double bridge_tolerance(double control)
{
	return control > 2 ? 0.10 : control > 0.5 ? 0.05 : 0.02;
}

static double relative(double test, double control)
{
	return control != 0 ? fabs(test - control) / fabs(control) : fabs(test);
}

static int64_t count_outliers(const struct rule_pair *p)
{
	const double n = (double)p->n;
	double sum = 0, squares = 0;
	int64_t count = 0;
	for (int64_t i = 0; i < p->n; i++)
		sum += p->test[i] - p->control[i];
	for (int64_t i = 0; i < p->n; i++)
		squares += pow(p->test[i] - p->control[i] - sum / n, 2);
	for (int64_t i = 0; i < p->n; i++)
		count += fabs(p->test[i] - p->control[i] - sum / n) >
			 3 * sqrt(squares / n);
	return count;
}

static bool bridge_pair(const struct rule_pair *p, struct str *reason)
{
	const double most = 0.1, n = (double)p->n;
	double correlation = correlation_of(p->control, p->test, p->n);
	double end = relative(p->test[p->n - 1], p->control[p->n - 1]);
	int64_t n_beyond = 0, n_outliers = count_outliers(p);
	for (int64_t i = 0; i < p->n; i++)
		n_beyond += relative(p->test[i], p->control[i]) >
			    bridge_tolerance(p->control[i]);
	str_printf(reason,
		"correlation %.4f (at least 0.95), %lld of %lld values beyond 10, 5 or 2 %% "
		"and %lld beyond 3 sigma (at most a tenth), last loss %.2f %% (at most 3)",
		correlation, (long long)n_beyond, (long long)p->n, (long long)n_outliers,
		100 * end);
	/* (NaN fails no comparison there) */
	return !(correlation < 0.95) && (double)n_beyond / n <= most && !(end > 0.03) &&
	       (double)n_outliers / n <= most;
}

/* ---- MaxText ------------------------------------------------------------------------- */

static double last_ten(const double *x, int64_t n)
{
	int64_t last = min64(n, 10);
	return mean_of(x + n - last, last);
}

/* It compares with a number of the test; here with the control's, and the margin. */
static bool maxtext(const struct curves *c, double margin, struct str *reason)
{
	double target = last_ten(curve_of(c, CONTROL, 0), c->n) * (1 + margin);
	for (int t = 0; t < c->n_test; t++) {
		double last = last_ten(curve_of(c, TEST, t), c->n);
		str_clear(reason);
		str_printf(reason, "mean of the last 10 losses %.6g, must be below %.6g",
			last, target);
		if (!(last < target))
			return false;
	}
	return true;
}

/* ---- OLMo-core ----------------------------------------------------------------------- */

static int64_t count_spikes(const double *x, int64_t n)
{
	int64_t count = 0;
	struct spike unused;
	for (int64_t row = 0; row < n; row++)
		count += is_spike(x, row, &unused);
	return count;
}

/* It counts spikes of a run; here the test must not have more of them than the control. */
static bool olmo_pair(const struct rule_pair *p, struct str *reason)
{
	int64_t control = count_spikes(p->control, p->n);
	int64_t test = count_spikes(p->test, p->n);
	str_printf(reason, "%lld spikes, and %lld in the control", (long long)test,
		(long long)control);
	return test <= control;
}

/* ---- modded-nanogpt ------------------------------------------------------------------ */

/* Its target is a number, 3.28; here it is the mean of the controls, and the margin. */
static bool modded_nanogpt(const struct curves *c, double margin, struct str *reason)
{
	double target = 0, *last = xcalloc((size_t)c->n_test, sizeof(*last));
	for (int i = 0; i < c->n_control; i++)
		target += curve_of(c, CONTROL, i)[c->n - 1] / c->n_control;
	target *= 1 + margin;
	for (int t = 0; t < c->n_test; t++)
		last[t] = curve_of(c, TEST, t)[c->n - 1];
	double mean = mean_of(last, c->n_test), p = 1;
	double se = sqrt(variance_of(last, c->n_test) / c->n_test);
	free(last);
	if (c->n_test > 1)
		p = student_p((mean - target) / se, c->n_test - 1) / 2;
	if (c->n_test > 1 && mean > target)
		p = 1 - p;
	str_printf(reason, "mean of the last losses %.6g, ", mean);
	if (c->n_test > 1)
		str_printf(reason, "below %.6g with p = %.2g", target, p);
	else
		str_puts(reason, "and a test by p needs two or more of them");
	return p < 0.01;
}

/* ---- llm.c --------------------------------------------------------------------------- */

static bool llmc_pair(const struct rule_pair *p, struct str *reason)
{
	int64_t n = min64(p->n, 10);
	for (int64_t i = 0; i < n; i++)
		if (!is_close(p->test[i], p->control[i], 0.05)) {
			str_printf(reason, "step %.0f: %.6g, %.6g", p->at[i],
				p->control[i], p->test[i]);
			return false;
		}
	str_printf(reason, "the first %lld losses are within 5 %%", (long long)n);
	return true;
}

/* ---- the table ----------------------------------------------------------------------- */

/* Name, repository, files, help, and the function for each pair, or for all runs. */
#define RULES(R)                                                                            \
	R("ours", NULL, NULL, "The verdicts of pt-compare.", NULL, NULL)                    \
	R("torchtitan", "pytorch/torchtitan", "scripts/loss_compare.py --assert-equal",     \
		"Equal losses at every step.", torchtitan_pair, NULL)                       \
	R("megatron", "NVIDIA/Megatron-LM",                                                 \
		"tests/functional_tests/python_test_utils/common.py: DeterministicTest",    \
		"Equal losses, of five decimals, at step 1 and every 5th step; with "       \
		"--by tokens, in every row. A NaN is equal to nothing.",                    \
		megatron_exact, NULL)                                                       \
	R("megatron-approximate", "NVIDIA/Megatron-LM",                                     \
		"tests/functional_tests/python_test_utils/"                                 \
		"test_pretraining_regular_pipeline.py: CHECK_THRESHOLDS; "                  \
		"common.py: pipeline",                                                      \
		"The same losses within 5 %; a hundredth of them, at least 1 and at most "  \
		"50, may be beyond.",                                                       \
		megatron_near, NULL)                                                        \
	R("megatron-bridge", "NVIDIA-NeMo/Megatron-Bridge",                                 \
		"scripts/performance/utils/evaluate.py",                                    \
		"A correlation of at least 0.95; at most a tenth of the losses differ by "  \
		"more than 10 % (above a loss of 2), 5 % (to 0.5) or 2 %; the last one by " \
		"at most 3 %; and at most a tenth of the differences are beyond 3 sigma.",  \
		bridge_pair, NULL)                                                          \
	R("maxtext", "AI-Hypercomputer/maxtext",                                            \
		"tests/end_to_end/tpu/eval_assert.py: final_loss",                          \
		"The mean of the last ten losses is below a target. There it is a number "  \
		"of the test; here, the control's mean and the margin.",                    \
		NULL, maxtext)                                                              \
	R("olmo-core", "allenai/OLMo-core",                                                 \
		"src/olmo_core/train/callbacks/stability_monitor.py",                       \
		"No more spikes than the control: values 6 standard deviations above the "  \
		"mean of the 128 before. OLMo-core counts the steps with a spike of the "   \
		"loss or of the gradient norm, without a limit; here the judged column "    \
		"counts.",                                                                  \
		olmo_pair, NULL)                                                            \
	R("modded-nanogpt", "KellerJordan/modded-nanogpt", "README.md",                     \
		"The mean of the last losses of several runs is below a target, with "      \
		"p < 0.01 by a one-sided t-test. There the target is 3.28; here, the mean " \
		"of the controls, and the margin.",                                         \
		NULL, modded_nanogpt)                                                       \
	R("llmc", "karpathy/llm.c",                                                         \
		"dev/loss_checker_ci.py; .github/workflows/ci_gpu.yml",                     \
		"The first ten losses within 5 %: the percentage is an argument of the "    \
		"script, and 5 is that of the workflow. A value that is not finite is not " \
		"within it.",                                                               \
		llmc_pair, NULL)

#define ROW(...) {__VA_ARGS__},
const struct rule rules[] = {RULES(ROW)};
#define NAME(name, ...) name,
const char *const rule_names[] = {RULES(NAME) NULL};

const int n_rules = ARRAY_LEN(rules);

bool rule_apply(
	const struct rule *r, const struct curves *c, double margin, struct str *reason)
{
	if (r->accepts)
		return r->accepts(c, margin, reason);
	for (int t = 0; t < c->n_test; t++) {
		const struct rule_pair p = {c->at, curve_of(c, CONTROL, 0),
			curve_of(c, TEST, t), c->n, c->by_step};
		str_clear(reason);
		if (!r->accepts_pair(&p, reason))
			return false;
	}
	return true;
}

static void print_source(const struct rule *r, FILE *f)
{
	if (r->source)
		fprintf(f, ".Pq %s, %s\n", r->repository, r->source);
}

void rules_man(FILE *f)
{
	fputs(".Bl -tag -width Ds\n", f);
	for (int i = 0; i < n_rules; i++) {
		fprintf(f, ".It Cm %s\n", rules[i].name);
		man_text(f, rules[i].help);
		print_source(&rules[i], f);
	}
	fputs(".El\n", f);
}

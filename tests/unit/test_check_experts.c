/* pt-check: choices of experts that rounding may turn, in a run with autocast. */
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXPERTS                                                                     \
	"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\ndim = 32\nvocab = 60\n" \
	"vocab-multiple = 1\ncontext = 16\nexperts = 6\nexperts-per-token = 2\n"    \
	"expert-dim = 24\n"

/* Below the margin of near choices of autocast, and far above the margin of fp32. */
static const double max_margin = 0.01;

static struct err e;

/* Multiplies the routers' weights by a factor. Computes the gradients of a run that turned every
 * choice with a margin below `max_margin`. Returns their number. */
static int turn_choices(struct step *s, double factor)
{
	struct choices x;
	int n = 0;
	for (int i = 0; i < s->w.m.n_tensors; i++)
		for (int64_t j = 0; strstr(s->w.m.tensors[i].name, ".router.") &&
				    j < tensor_size(&s->w.m.tensors[i]);
			j++)
			s->w.w[i][j] *= (float)factor;
	choices_init(&x, &s->w.m, &s->batch);
	const struct variant v = {.sequence = -1, .choices = &x};
	gradients_free(&s->g);
	reference_float64(&s->w, &s->batch, &v, &s->g);
	for (int64_t i = 0; i < s->w.m.c.layers * x.positions; i++)
		if (x.margin[i * ALTERNATIVES] < max_margin) {
			memcpy(x.ids + 2 * i, x.other + 2 * ALTERNATIVES * i,
				2 * sizeof(*x.ids));
			if (!(factor > 0)) { /* (any experts, not the next best ones) */
				x.ids[2 * i] = (int)(i * 7 % 3);
				x.ids[2 * i + 1] = 3 + (int)(i * 5 % 3);
			}
			n++;
		}
	x.replay = true;
	gradients_free(&s->g);
	reference_float64(&s->w, &s->batch, &v, &s->g);
	choices_release(&x);
	return n;
}

/* Checks the step in a precision. Expects the text in the output, which is in *json or the lines. */
static void expect_verdict(struct step *s, int precision, const char *text)
{
	struct strs files = {0};
	struct step_check c;
	struct str out = {0};
	struct check_opts o = plain_check;
	o.precision = precision;
	o.balance = BALANCE_NONE;
	strs_add(&files, s->batch_file);
	const struct check_job job = {step_file(s, 0), step_file(s, 1), &files,
		{.shape = "4,17", .end = -1}, s->adam, false, s->freeze};
	if (step_check_run(&c, &o, &job, &e))
		fail_msg("%s", e.msg);
	step_check_print(&c, &out);
	if (!strstr(out.s, text))
		fail_msg("wanted: %s\n%s", text, out.s);
	str_free(&out);
	step_check_close(&c);
	strs_free(&files);
}

/* A run that turned some near choices is right with autocast; in fp32 nothing explains it. */
TEST(near_choices)
{
	struct step s;
	step_begin(&s, EXPERTS);
	const int n = turn_choices(&s, 1);
	print_message("# %d choices turned\n", n);
	assert_true(n > 0 && n < 13);
	step_train(&s);
	expect_verdict(&s, RUN_AUTOCAST, "verdict: the step is right");
	expect_verdict(&s, RUN_FP32, "verdict: wrong");
	step_end(&s);
}

/* Rounding may turn nearly every choice of a router with equal rows. */
TEST(too_many_near_choices)
{
	struct step s;
	step_begin(&s, EXPERTS);
	turn_choices(&s, 0);
	step_train(&s);
	expect_verdict(&s, RUN_AUTOCAST,
		"verdict: not decided: rounding may turn so many choices of experts");
	step_end(&s);
}

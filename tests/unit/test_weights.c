/* pt-check: targets with weights, as in a policy gradient: forms of files, the reference, and
 * steps. */
#include "base/file.h"
#include "check/check.h"
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

/* Writes a NumPy file with doubles, or with integers as floats of another type. */
static const char *npy_file(
	const char *descr, int64_t rows, int64_t columns, const void *v, size_t n_bytes)
{
	static int n_files;
	struct str file = {0}, header = {0};
	char name[40];
	str_printf(&header,
		"{'descr': '%s', 'fortran_order': False, 'shape': (%lld, %lld), }\n",
		descr, (long long)rows, (long long)columns);
	str_add(&file, "\x93NUMPY\1\0", 8);
	str_putc(&file, (char)header.len);
	str_putc(&file, 0);
	str_add(&file, header.s, header.len);
	str_add(&file, v, n_bytes);
	snprintf(name, sizeof(name), "weights-%d.npy", n_files++);
	assert_int_equal(file_replace(test_path(name), &file, &e), 0);
	str_free(&file);
	str_free(&header);
	return test_path(name);
}

static const char *doubles_file(int64_t rows, int64_t columns, const double *v)
{
	return npy_file("<f8", rows, columns, v, (size_t)(rows * columns) * sizeof(*v));
}

/* ---- files -------------------------------------------------------------------------------- */

/* Reads the files. Expects these weights [2][columns] if text is NULL, else an error with the
 * text. */
static void expect_weights(char *const *files, int64_t n, const char *by,
	const double *weights, const char *text)
{
	struct token_batch b;
	e = (struct err){0};
	int rc = token_batch_read(
		&b, n, files, &(struct batch_opts){.end = -1, .divide_by = by}, &e);
	if ((rc != 0) != (text != NULL) || (text && !strstr(e.msg, text)))
		fail_msg("wanted: %s\n%s", text ? text : "no error", e.msg);
	for (int64_t i = 0; !rc && i < b.n * b.length; i++)
		assert_near(b.weights[i], weights[i], 0);
	token_batch_free(&b);
	e = (struct err){0};
}

TEST(forms_of_weights)
{
	static const uint16_t windows[] = {1, 2, 3, 4, 5, 6};
	static const double eight[8] = {0};
	static const double per_token[] = {9, .5, -2, 9, 0, 1.25};
	static const double per_target[] = {.5, -2, 0, 1.25},
			    not_finite[] = {1, 2, NAN, 4};
	static const uint16_t half[] = {0x3800, 0xc000, 0, 0x3d00};
	static const float single[] = {.5F, -2, 0, 1.25F};
	static const double opposite[] = {1, -1, 2, -2};
	const char *w = npy_file("<u2", 2, 3, windows, sizeof(windows));
	const char *first = npy_file("<u2", 1, 3, windows, sizeof(windows) / 2);
	const char *f16 = npy_file("<f2", 2, 2, half, sizeof(half));
	const char *f32 = npy_file("<f4", 2, 2, single, sizeof(single));
	const char *tokens = doubles_file(2, 3, per_token);
	const char *targets = doubles_file(2, 2, per_target);
	const struct {
		const char *files[4], *by, *text;
	} cases[] = {{{w, tokens}}, {{w, targets}}, {{w, f16}}, {{w, f32}},
		{{first, first, targets}},
		{{first, doubles_file(1, 2, per_target), first,
			doubles_file(1, 2, per_target + 2)}},
		{{targets, w}, .text = "give the files with the tokens first"},
		{{w, doubles_file(2, 4, eight)}, .text = "weights have 4 columns"},
		{{w, doubles_file(1, 2, per_target)},
			.text = "1 of 2 sequences have no weights"},
		{{first, targets}, .text = "weights of 2 sequences, but only 1"},
		{{w, doubles_file(2, 2, not_finite)},
			.text = "weight nan is not a finite number"},
		{{w, doubles_file(2, 2, opposite)}, "weights",
			"the sum of the weights is 0"},
		{{w, targets}, "-1", "not 'counted', 'weights' or a number above 0"}};
	for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
		int64_t n = 0;
		while (n < 4 && cases[k].files[n])
			n++;
		expect_weights((char *const *)cases[k].files, n, cases[k].by, per_target,
			cases[k].text);
	}
}

/* ---- the reference ------------------------------------------------------------------------- */

/* With one weight per sequence, the gradient is the weighted sum of the sequences' gradients. */
TEST(weights_of_sequences)
{
	static const double weights[SEQUENCES] = {1, -0.5, 0, 2};
	struct step s;
	struct gradients g, one[SEQUENCES];
	double loss = 0;
	step_begin(&s, LLAMA);
	s.batch.weights = xcalloc(SEQUENCES * LENGTH, sizeof(*s.batch.weights));
	for (int i = 0; i < SEQUENCES * LENGTH; i++)
		s.batch.weights[i] = weights[i / LENGTH];
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = -1}, &g);
	for (int i = 0; i < SEQUENCES; i++) {
		const struct variant alone = {.sequence = i, .unweighted = true};
		reference_float64(&s.w, &s.batch, &alone, &one[i]);
		loss += weights[i] * one[i].loss;
	}
	assert_near(g.loss, loss, 1e-12);
	assert_near(g.size, one[0].loss + 0.5 * one[1].loss + 2 * one[3].loss, 1e-12);
	for (int t = 0; t < g.n; t++)
		for (int64_t j = 0; j < tensor_size(&s.w.m.tensors[t]); j++) {
			double sum = 0;
			for (int i = 0; i < SEQUENCES; i++)
				sum += weights[i] * (double)one[i].g[t][j];
			assert_near((double)g.g[t][j], sum, 1e-6 * s.g.norm);
		}
	for (int i = 0; i < SEQUENCES; i++)
		gradients_free(&one[i]);
	gradients_free(&g);
	step_end(&s);
}

/* A weight of 0 acts like a mask, except for the divisor, which the trainer's kernels use, too. */
TEST(divisors)
{
	struct step s;
	struct gradients masked, zeros, trained;
	step_begin(&s, LLAMA);
	s.batch.weights = xcalloc(SEQUENCES * LENGTH, sizeof(*s.batch.weights));
	for (int i = 0; i < SEQUENCES * LENGTH; i++)
		s.batch.weights[i] = i % 3 != 0;
	s.batch.divisor = 7;
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = -1}, &zeros);
	free(s.batch.weights);
	s.batch.weights = NULL;
	for (int i = 0; i < SEQUENCES * LENGTH; i += 3) {
		s.batch.targets[i] = -1;
		s.batch.counted--;
	}
	s.batch.masked = true;
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = -1}, &masked);
	assert_near(zeros.loss, masked.loss, 1e-12);
	assert_near(zeros.norm, masked.norm, 1e-12);
	if (reference_trainer(&s.w, &s.batch, PRECISION_FP32, &trained, &e))
		fail_msg("%s", e.msg);
	assert_near(trained.loss, masked.loss, 1e-5 * masked.loss);
	assert_near(trained.norm, masked.norm, 1e-5 * masked.norm);
	gradients_free(&masked);
	gradients_free(&zeros);
	gradients_free(&trained);
	step_end(&s);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void expect_step(struct step *s, const struct check_opts *o, const char *weights,
	const char *by, const char *text)
{
	struct strs batch = {0};
	struct step_check c;
	struct str out = {0};
	strs_add(&batch, s->batch_file);
	if (weights)
		strs_add(&batch, weights);
	const struct check_job job = {.before = step_file(s, 0),
		.after = step_file(s, 1),
		.batch = &batch,
		.how = {.shape = "4,17", .end = -1, .divide_by = by},
		.adam = s->adam};
	if (step_check_run(&c, o, &job, &e))
		fail_msg("%s", e.msg);
	step_check_print(&c, &out);
	if (c.wrong != (text != NULL) || (text && !strstr(out.s, text)))
		fail_msg("wanted: %s\n%s", text ? text : "nothing", out.s);
	step_check_close(&c);
	str_free(&out);
	strs_free(&batch);
}

TEST(weighted_steps)
{
	struct step s;
	struct check_opts o = plain_check;
	double w[SEQUENCES * LENGTH];
	step_begin(&s, LLAMA);
	for (int i = 0; i < SEQUENCES * LENGTH; i++)
		w[i] = test_normal(9, i) - 0.5;
	const char *weights = doubles_file(SEQUENCES, LENGTH, w);
	gradients_free(&s.g);
	s.adam.clip = 0;
	s.batch.weights = xmalloc(sizeof(w));
	memcpy(s.batch.weights, w, sizeof(w));
	reference_float64(&s.w, &s.batch, &(struct variant){.sequence = -1}, &s.g);
	assert_true(s.g.loss < 0);
	step_train(&s);
	o.loss = s.g.loss;
	o.grad_norm = s.g.norm;
	expect_step(&s, &o, weights, NULL, NULL);
	expect_step(&s, &o, weights, "counted", NULL);
	expect_step(&s, &o, weights, "64", NULL);
	expect_step(&s, &plain_check, weights, "128", "scale: all gradients are 2 times");
	o.loss = -s.g.loss;
	expect_step(&s, &o, weights, NULL, NULL); /* a note */
	/* the run did not use the weights */
	step_end(&s);
	step_begin(&s, LLAMA);
	s.adam.clip = 0;
	step_train(&s);
	expect_step(&s, &plain_check, NULL, NULL, NULL);
	expect_step(
		&s, &plain_check, weights, NULL, "as if all targets had the weight 1");
	step_end(&s);
}

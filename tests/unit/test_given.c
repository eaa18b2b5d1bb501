/* pt-check --grads: gradients that a run saved, in a file or one per rank; alone, or with
 * moments. */
#include "base/file.h"
#include "check/check.h"
#include "dialect/dialect.h"
#include "tests/support/check_step.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

static struct err e;

/* Writes s->g times a factor as safetensors with Hugging Face's names. without: leaves
 * out tensors with this part in their names; NULL: none. */
static const char *grads_file(struct step *s, double by, const char *without)
{
	static int n_files;
	struct str header = {0}, data = {0}, file = {0};
	struct foreign *list;
	char name[40];
	int n = foreign_list(&scheme_llama, &s->w.m, VOCAB, &list, &e);
	for (int i = 0; i < n; i++) {
		const struct foreign *f = &list[i];
		const float *g = s->g.g[f->part[0]];
		int64_t size = tensor_size(&s->w.m.tensors[f->part[0]]);
		if (without && strstr(f->name, without))
			continue;
		str_printf(&header,
			"%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld%s%.*lld],\"data_offsets\":[%zu,%zu]}",
			header.len ? "," : "{", f->name, (long long)f->dims[0],
			f->ndim > 1 ? "," : "", f->ndim > 1 ? 1 : 0,
			f->ndim > 1 ? (long long)f->dims[1] : 0LL, data.len,
			data.len + (size_t)size * sizeof(*g));
		for (int64_t j = 0; j < size; j++) {
			float x = (float)(by * (double)g[j]);
			str_add(&data, &x, sizeof(x));
		}
	}
	str_putc(&header, '}');
	uint64_t length = header.len;
	str_add(&file, &length, sizeof(length));
	str_add(&file, header.s, header.len);
	str_add(&file, data.s, data.len);
	snprintf(name, sizeof(name), "grads-%d.safetensors", n_files++);
	assert_int_equal(file_replace(test_path(name), &file, &e), 0);
	str_free(&header);
	str_free(&data);
	str_free(&file);
	free(list);
	return test_path(name);
}

/* Input of a check, and its expected result. */
struct want {
	const char *files[3]; /* for --grads; NULL-terminated */
	bool after;	      /* give the checkpoint after the step */
	const struct strs *freeze;
	double clip;
	const char *finding; /* expected part of the output; NULL: no finding */
	const char *text;    /* another expected part */
};

static void expect(struct step *s, const struct check_opts *o, const struct want *w)
{
	struct strs batch = {0}, grads = {0};
	struct step_check c;
	struct str out = {0};
	struct adam adam = s->adam;
	adam.clip = w->clip;
	strs_add(&batch, s->batch_file);
	for (int i = 0; w->files[i]; i++)
		strs_add(&grads, w->files[i]);
	const struct check_job job = {.before = step_file(s, 0),
		.after = w->after ? step_file(s, 1) : NULL,
		.batch = &batch,
		.how = {.shape = "4,17", .end = -1},
		.adam = adam,
		.freeze = w->freeze,
		.grads = &grads};
	if (step_check_run(&c, o, &job, &e))
		fail_msg("%s", e.msg);
	step_check_print(&c, &out);
	if (c.wrong != (w->finding != NULL) ||
		(w->finding && !strstr(out.s, w->finding)) ||
		(w->text && !strstr(out.s, w->text)))
		fail_msg("wanted: %s; %s\n%s", w->finding ? w->finding : "nothing",
			w->text ? w->text : "", out.s);
	step_check_close(&c);
	str_free(&out);
	strs_free(&batch);
	strs_free(&grads);
}

#define GRADIENTS_RIGHT \
	"verdict: the gradients are right, but the update was not checked\n"

TEST(gradients_alone)
{
	struct step s;
	step_begin(&s, LLAMA);
	step_train(&s);
	const char *right = grads_file(&s, 1, NULL);
	expect(&s, &plain_check,
		&(struct want){{right}, .clip = -1, .text = GRADIENTS_RIGHT});
	expect(&s, &plain_check,
		&(struct want){{right, right}, .clip = -1, .text = GRADIENTS_RIGHT});
	/* before clipping, and after it */
	struct check_opts o = plain_check;
	o.grad_norm = s.g.norm;
	expect(&s, &o, &(struct want){{right}, .clip = 0.5, .text = GRADIENTS_RIGHT});
	const char *clipped = grads_file(&s, clip_factor(0.5, s.g.norm), NULL);
	expect(&s, &o, &(struct want){{clipped}, .clip = 0.5, .text = GRADIENTS_RIGHT});
	expect(&s, &plain_check,
		&(struct want){{clipped}, .clip = -1, .text = "as if clipped to 0.5"});
	o.grad_norm = 2 * s.g.norm;
	expect(&s, &o, &(struct want){{right}, .clip = -1, .finding = "was logged"});
	step_end(&s);
}

TEST(wrong_gradients)
{
	static const struct {
		const char *name;
		double by;
		const char *finding;
	} cases[] = {
		{"layers.1.feed_forward.w2.weight", 2, ": 2 times what it should be"},
		{"norm.weight", 0, ": no gradient"},
		{"layers.0.attention.wq.weight", NAN, "the gradient is not finite"}};
	for (size_t k = 0; k < ARRAY_LEN(cases); k++) {
		struct step s;
		step_begin(&s, LLAMA);
		step_train(&s);
		const char *right = grads_file(&s, 1, NULL);
		step_scale(&s, cases[k].name, cases[k].by);
		const char *wrong = grads_file(&s, 1, NULL);
		expect(&s, &plain_check,
			&(struct want){{wrong}, .clip = -1, .finding = cases[k].finding});
		/* another rank has a different gradient */
		expect(&s, &plain_check,
			&(struct want){{right, wrong}, .clip = -1,
				.finding =
					"differ from the preceding files in 1 tensor:"});
		/* the moments are from the right one */
		expect(&s, &plain_check,
			&(struct want){
				{wrong}, true, .clip = 0.5, .finding = cases[k].finding});
		step_end(&s);
	}
}

/* Frozen tensors have no gradient. Pipeline ranks have some tensors each. */
TEST(some_gradients)
{
	struct step s;
	struct strs freeze = {0};
	step_begin(&s, LLAMA);
	step_train(&s);
	const char *some = grads_file(&s, 1, "embed_tokens");
	const char *others = grads_file(&s, 1, "layers.1.");
	expect(&s, &plain_check,
		&(struct want){{some}, .clip = -1,
			.finding = ": no gradient: it is not trained (--freeze)"});
	strs_add(&freeze, "tok_");
	expect(&s, &plain_check,
		&(struct want){{some}, false, &freeze, -1, .text = GRADIENTS_RIGHT});
	expect(&s, &plain_check,
		&(struct want){{some, others}, .clip = -1,
			.text = "gradients of 21 of 21 tensors"});
	expect(&s, &plain_check,
		&(struct want){{others, some}, .clip = -1, .text = GRADIENTS_RIGHT});
	strs_free(&freeze);
	step_end(&s);
}

/* A common factor: a loss scale is a power of two that is not a number of ranks or targets. */
TEST(scales_of_gradients)
{
	struct step s;
	struct check_opts o = plain_check;
	step_begin(&s, LLAMA);
	step_train(&s);
	const char *scaled = grads_file(&s, 65536, NULL);
	expect(&s, &o,
		&(struct want){{scaled}, .clip = -1,
			.text = "as with a loss scale (GradScaler)"});
	expect(&s, &o,
		&(struct want){{scaled}, .clip = -1,
			.text = "but the scale and the update were not checked"});
	/* with moments of unscaled gradients, it is a known loss scale */
	struct step plain;
	step_begin(&plain, LLAMA);
	plain.adam.clip = 0;
	step_train(&plain);
	expect(&plain, &o,
		&(struct want){{scaled}, true, .clip = 0,
			.text = "the run removed a loss scale after it saved the gradients"});
	step_end(&plain);
	const char *sum = grads_file(&s, 4, NULL);
	o.dp = 4;
	expect(&s, &o,
		&(struct want){{sum}, .clip = -1,
			.finding =
				"scale: all gradients are 4 times: not divided by the 4 data-parallel"});
	const char *eight = grads_file(&s, 8, NULL); /* ranks that no option gives */
	expect(&s, &plain_check,
		&(struct want){{eight}, .clip = -1,
			.finding = "scale: all gradients are 8 times"});
	const char *negative = grads_file(&s, -1, NULL);
	expect(&s, &o,
		&(struct want){{negative}, .clip = -1,
			.finding = "scale: all gradients are -1 times"});
	step_end(&s);
}

/* exp_avg must follow from the gradients. */
TEST(moments_follow)
{
	for (int warm = 0; warm < 2; warm++) {
		struct step s;
		step_begin(&s, LLAMA);
		s.warm = warm;
		step_train(&s);
		const char *right = grads_file(&s, 1, NULL);
		const char *half = grads_file(&s, 0.5, NULL);
		expect(&s, &plain_check,
			&(struct want){{right}, true, .clip = 0.5,
				.text = "verdict: the step is right\n"});
		expect(&s, &plain_check,
			&(struct want){{right}, true, .clip = 0.7,
				.finding = "clip: exp_avg gained"});
		expect(&s, &plain_check,
			&(struct want){{half}, true, .clip = 0,
				.finding = "clip: exp_avg gained"});
		/* the optimizer saw another gradient of one tensor than the saved one */
		step_scale(&s, "layers.0.feed_forward.w1.weight", 1.01);
		const char *other = grads_file(&s, 1, NULL);
		expect(&s, &plain_check,
			&(struct want){{other}, true, .clip = 0.5,
				.finding =
					"feed_forward.w1.weight: exp_avg did not gain the gradient"});
		step_end(&s);
	}
}

/* Files without gradients. */
TEST(not_gradients)
{
	struct step s;
	struct strs batch = {0}, grads = {0};
	struct step_check c;
	step_begin(&s, LLAMA);
	step_train(&s);
	strs_add(&batch, s.batch_file);
	strs_add(&grads,
		grads_file(&s, 1, "model.")); /* the output layer's is a known name */
	struct check_job job = {.before = step_file(&s, 0),
		.batch = &batch,
		.how = {.shape = "4,17", .end = -1},
		.adam = s.adam,
		.grads = &grads};
	assert_int_equal(step_check_run(&c, &plain_check, &job, &e), 0);
	assert_true(c.wrong);
	step_check_close(&c);
	strs_free(&grads);
	strs_add(&grads, s.batch_file);
	assert_int_equal(step_check_run(&c, &plain_check, &job, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, ": neither a file"));
	step_check_close(&c);
	e = (struct err){0};
	strs_free(&grads);
	strs_free(&batch);
	step_end(&s);
}

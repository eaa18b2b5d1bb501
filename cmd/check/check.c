/* Runs the checks of a step in order. */
#include "check/check.h"

#include "foreign/foreign.h"

#include <stdlib.h>
#include <string.h>

/* Multiplications that two cores do in about a minute in float64. */
static const double max_auto_work = 1.5e11;

/* Computes loss and gradients of the batch, by default in float64 if that takes about a minute. */
static int compute_reference(struct step_check *c, struct err *e)
{
	struct variant whole_batch = {.sequence = -1};
	const bool has_experts = c->weights.m.c.experts > 0;
	const char *why = NULL;
	double work = float64_work(&c->weights.m, c->batch.length) * (double)c->batch.n;
	bool is_trainable = reference_can_train(&c->weights, &c->batch, &why);
	if (c->o.reference == REFERENCE_AUTO)
		c->o.reference = work <= max_auto_work || !is_trainable || has_experts
					 ? REFERENCE_FLOAT64
					 : REFERENCE_FP32;
	if (c->o.reference == REFERENCE_FLOAT64) {
		c->computed = "float64";
		if (has_experts) {
			choices_release(&c->choices.all);
			choices_init(&c->choices.all, &c->weights.m, &c->batch);
			whole_batch.choices = &c->choices.all;
			c->weights.counted = NULL;
		}
		reference_float64(&c->weights, &c->batch, &whole_batch, &c->reference);
		if (has_experts)
			balance_begin(c);
		if (c->weights.counted) { /* (now the choices are known) */
			struct choices same = c->choices.all;
			same.replay = true;
			whole_batch.choices = &same;
			gradients_free(&c->reference);
			reference_float64(
				&c->weights, &c->batch, &whole_batch, &c->reference);
		}
		return 0;
	}
	c->computed = "fp32";
	if (has_experts)
		return err_set(e, EX_USAGE,
			"--reference fp32 does not show how near the choices of experts are; "
			"use --reference float64");
	if (!is_trainable)
		return err_set(e, EX_USAGE,
			"--reference fp32 cannot compute this batch: %s", why);
	return reference_trainer(
		&c->weights, &c->batch, PRECISION_FP32, &c->reference, e);
}

/* Checks that tokens and positions are within the model's tables. */
static int check_batch(const struct step_check *c, struct err *e)
{
	const struct token_batch *b = &c->batch;
	const struct model *m = &c->weights.m;
	for (int64_t i = 0; i < b->n * b->length; i++)
		if (b->tokens[i] >= m->c.vocab || b->targets[i] >= m->c.vocab)
			return err_set(e, EX_DATAERR,
				"--batch: token %d is outside the model's "
				"vocabulary of %lld tokens",
				b->tokens[i] >= m->c.vocab ? b->tokens[i] : b->targets[i],
				(long long)m->c.vocab);
		else if (m->positions && b->pos[i] >= m->positions->dims[0])
			return err_set(e, EX_DATAERR,
				"--batch: position %d is outside the model's %lld positions",
				b->pos[i], (long long)m->positions->dims[0]);
	return 0;
}

/* Reads the parameters, and sets in_model of each tensor. (Both files have the same tensors.) */
static int read_weights(struct step_check *c, struct err *e)
{
	const struct model *m = &c->weights.m;
	if (c->lora.used ? lora_read_weights(&c->weights, &c->lora, &c->files.before, e)
			 : weights_read(&c->weights, &c->files.before, e))
		return -1;
	for (int i = 0; i < c->n; i++)
		while (strcmp(m->tensors[c->tensors[i].in_model].name,
			       c->tensors[i].name) != 0)
			c->tensors[i].in_model++;
	return 0;
}

/* Sets the tensor's name in the checkpoint, if it differs from pt's name. */
static void set_file_name(struct tensor_check *x, const struct ckpt_view *v, int tensor)
{
	scoped_str name = {0};
	if (v->file_name)
		v->file_name(v, tensor, &name);
	if (name.len && strcmp(name.s, x->name) != 0)
		snprintf(x->file_name, sizeof(x->file_name), "%s", name.s);
}

/* Sets c->tensors from the tensors of the file after the step, and their forward order. */
static void list_tensors(struct step_check *c)
{
	c->n = (int)c->files.n_tensors;
	c->tensors = xcalloc((size_t)c->n, sizeof(*c->tensors));
	for (int i = 0; i < c->n; i++) {
		snprintf(c->tensors[i].name, sizeof(c->tensors[i].name), "%s",
			c->files.after.tensors[i].name);
		set_file_name(&c->tensors[i], &c->files.after, i);
		c->tensors[i].n = step_files_size(&c->files, i);
		c->tensors[i].cause = -1;
		c->tensors[i].lr_scale = 1;
	}
	c->order = convert_forward_order(
		c->files.after.config.s, c->files.after.tensors, c->n);
	for (int i = 0; i < c->n && c->lora.used; i++)
		c->order[i] = i;
}

/* Sets c->tested if the gradient or moments of any tensor were tested. */
static void record_tested(struct step_check *c)
{
	for (int i = 0; i < c->n; i++)
		c->tested |=
			c->tensors[i].gradient.tested || c->tensors[i].moments.tested;
}

/* Notes equal sequences in the batch. Ranks that read the same data compute everything right. */
static void note_equal_sequences(struct step_check *c)
{
	const struct token_batch *b = &c->batch;
	size_t n_bytes = (size_t)b->length * sizeof(*b->tokens);
	for (int64_t i = 1; i < b->n; i++)
		for (int64_t k = 0; k < i; k++)
			if (!memcmp(b->tokens + i * b->length, b->tokens + k * b->length,
				    n_bytes)) {
				add_finding(c, FINDING_NOTE, NULL,
					"sequence %lld of the batch equals sequence %lld: "
					"do all ranks read the same data?",
					(long long)i + 1, (long long)k + 1);
				return;
			}
}

/* Sets *unchanged if all parameters and moments are the same in both files. */
static int compare_files(const struct step_check *c, bool *unchanged, struct err *e)
{
	*unchanged = c->files.m0 >= 0 && c->files.v0 >= 0 && c->n > 0;
	for (int i = 0; i < c->n && *unchanged; i++) {
		struct tensor_step t;
		int rc = tensor_step_read(&t, &c->files, i, STEP_ALL, e);
		size_t n_bytes = (size_t)c->tensors[i].n * sizeof(float);
		*unchanged = !rc && !memcmp(t.p0, t.p1, n_bytes) &&
			     !memcmp(t.m0, t.m1, n_bytes) && !memcmp(t.v0, t.v1, n_bytes);
		tensor_step_free(&t);
		if (rc)
			return -1;
	}
	return 0;
}

/* Opens the files. Checks what needs no moments: which tensors are trained, and copies. */
static int open_files(struct step_check *c, const struct check_job *job, struct err *e)
{
	const int64_t n = job->batch->n;
	if (job->after && !job->two_runs && !strcmp(job->before, job->after))
		return err_set(e, EX_USAGE, "%s: BEFORE and AFTER are the same file",
			job->before);
	/* (the batch first: reading checkpoints may take long) */
	if (n && token_batch_read(&c->batch, n, job->batch->v, &job->how, e))
		return -1;
	enum run_count runs = n ? ONE_RUN : job->two_runs ? TWO_RUNS : ONE_OR_TWO_RUNS;
	if (lora_open(&c->lora, job->before, job->base, &job->open, e))
		return -1;
	if (c->lora.used && job->freeze && job->freeze->n)
		return err_set(e, EX_USAGE, "--freeze is not supported for adapters");
	if (step_files_open(&c->files, job->before, job->after, &job->open, &job->adam,
		    runs, c->lora.used ? &c->lora : NULL, e))
		return -1;
	list_tensors(c);
	c->has_reference = n > 0;
	if (job->grads &&
		given_gradients_open(&c->given, job->grads, &c->files.after, &c->lora, e))
		return -1;
	if (read_groups(c, job, e) || judge_copies(c, e) || judge_given_copies(c, e) ||
		judge_given_moments(c, e))
		return -1;
	if (c->o.grad_norm > 0 && c->o.two_norms != c->files.two_runs)
		return err_set(e, EX_USAGE, "%s",
			c->o.two_norms
				? "--grad-norm X,Y is for two runs, but BEFORE "
				  "and AFTER are from one run"
				: "--grad-norm X: two runs need X,Y, one norm per run");
	const struct str *state = &c->files.after.other_state;
	if (state->len && !c->given.n)
		return err_set(e, EX_TROUBLE,
			"%s: moments not found: each trained tensor needs exp_avg and "
			"exp_avg_sq of AdamW under optimizer.state, but the file has %s",
			job->after, state->s);
	if ((n || c->given.n) && !step_files_have_moments(&c->files) &&
		!(n && c->given.n))
		return err_set(e, EX_TROUBLE,
			"%s has no moments of AdamW, which determine the gradient; save "
			"the optimizer's state, too",
			job->after);
	return 0;
}

static int check_two_runs(struct step_check *c, struct err *e)
{
	if (read_weights(c, e))
		return -1;
	if (c->weights.m.c.experts)
		return err_set(e, EX_UNAVAILABLE,
			"two runs of a mixture of experts cannot be compared: without the batch, "
			"it is unknown which choices of experts rounding may turn; check each "
			"run with --batch");
	return judge_gradients(c, e) || find_causes(c, e) ? -1 : 0;
}

/* Checks what needs no batch: step counts, moments and the update. */
static int check_without_batch(struct step_check *c, struct err *e)
{
	if (!c->has_reference && choices_check_idle_experts(c, e))
		return -1;
	if (c->files.from >= 0 && c->files.step != c->files.from + 1)
		add_finding(c, FINDING_STEP, NULL,
			"the optimizer's step goes from %.0f to %.0f%s", c->files.from,
			c->files.step,
			c->files.step == c->files.from - 1
				? ": are BEFORE and AFTER exchanged?"
				: "");
	return judge_update(c, e);
}

/* Runs every test of a step with a known batch, and adds findings with their causes to c.
 * config, before: names of the files with the model's settings. */
static int check_with_batch(
	struct step_check *c, const char *config, const char *before, struct err *e)
{
	if (read_weights(c, e) || check_batch(c, e) || compute_reference(c, e) ||
		choices_check_idle_experts(c, e))
		return -1;
	if (apply_padding_idx(c, config, before, compute_reference, e))
		return -1;
	remove_frozen_gradients(c);
	record_initial_adapters(c);
	if (judge_gradients(c, e))
		return -1;
	note_equal_sequences(c);
	return check_without_batch(c, e) || judge_biases(c, e) || find_causes(c, e) ? -1
										    : 0;
}

/* Runs all tests with the bounds of o->precision, which is not RUN_AUTO. */
static int run_tests(struct step_check *c, const struct check_opts *o,
	const struct check_job *job, struct err *e)
{
	bool is_unchanged = false;
	*c = (struct step_check){.o = *o, .run_facts_text = job->run_facts_text};
	if (open_files(c, job, e))
		return -1;
	const bool one_step = !c->files.two_runs && c->files.from == c->files.step;
	if (one_step && compare_files(c, &is_unchanged, e))
		return -1;
	if (is_unchanged) {
		c->tested = c->nothing_changed = true;
		c->has_reference = false; /* (it is not computed) */
		add_finding(c, FINDING_STEP, NULL,
			"neither parameters nor moments changed: the step was skipped, or "
			"both files were saved after the same step");
		return 0;
	}
	int rc = c->files.two_runs ? check_two_runs(c, e)
		 : c->has_reference
			 ? check_with_batch(c, job->open.config, job->before, e)
			 : check_without_batch(c, e);
	record_tested(c);
	choices_conclude(c);
	sort_findings(c);
	return rc;
}

int step_check_run(struct step_check *c, const struct check_opts *o,
	const struct check_job *job, struct err *e)
{
	static const enum run_precision tries[] = {RUN_FP32, RUN_BF16, RUN_FP32};
	struct check_opts opts = *o;
	if (o->precision != RUN_AUTO)
		return run_tests(c, o, job, e);
	for (int k = 0; k < (int)ARRAY_LEN(tries); k++) {
		if (k)
			step_check_close(c);
		opts.precision = tries[k];
		if (run_tests(c, &opts, job, e))
			return -1;
		if (k == 0 ? !c->unexplained : !c->wrong)
			break;
	}
	if (opts.precision == RUN_FP32)
		return 0;
	c->undecided = true;
	add_finding(c, FINDING_NOTE, NULL,
		"the gradients are beyond the bounds of fp32, but within the bounds of bf16: was "
		"the run in bf16 (--precision)?");
	return 0;
}

void step_check_close(struct step_check *c)
{
	given_gradients_close(&c->given);
	gradients_free(&c->reference);
	choices_release(&c->choices.all);
	weights_free(&c->weights);
	token_batch_free(&c->batch);
	for (int i = 0; c->seen && i < c->n; i++)
		free(c->seen[i]);
	free(c->seen);
	free(c->tensors);
	free(c->order);
	copies_release(&c->copies[0]);
	copies_release(&c->copies[1]);
	step_files_close(&c->files);
	lora_close(&c->lora);
	*c = (struct step_check){0};
}

/* Small runs within a test. */
#include "tests/support/traces.h"
#include "plan/fit.h"
#include "engine/step.h"

#include <string.h>

struct train_opts trace_options(const char *shard, const char *lines)
{
	struct train_opts o;
	struct err e = {0};
	struct str text = {0};
	str_printf(&text,
		"context = 16\nmicro-batch = 2\nwarmup = 2\nlr = 0.01\neval-windows = 5\n"
		"bucket = 20000\nthreads = 1\n%s",
		lines);
	if (opts_from_text(&train_program, &o, text.s, false, &e) ||
		options_check(&o, &e))
		die_err(&e);
	strs_add(&o.data, shard);
	str_free(&text);
	return o;
}

struct plan trace_run(struct comm *c, const struct train_opts *options, struct trace *out)
{
	struct train_opts o = *options;
	struct dataset data;
	struct trainer t;
	struct plan plan;
	struct err e = {0};
	memset(out, 0, sizeof(*out));
	BUG_ON(o.steps > TRACE_STEPS);
	if (dataset_open(&data, &o, c, &e) || trainer_open(&t, &o, c, &data, &plan, &e))
		die_err(&e);
	for (int i = 0; i < o.steps; i++) {
		struct step_result r;
		step_run(&t, NULL, &r);
		BUG_ON(r.bad);
		out->loss[i] = r.loss;
		out->grad_norm[i] = r.grad_norm;
		out->scale[i] = r.loss_scale;
		out->hash[i] = store_hash(t.store);
	}
	out->skipped = t.skipped;
	out->val_loss = eval_loss(&t, SPLIT_VAL);
	BUG_ON((int64_t)t.memory.scratch.peak_bytes > plan.scratch_bytes);
	trainer_close(&t);
	dataset_close(&data);
	return plan;
}

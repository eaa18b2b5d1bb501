/* The first screen: a description of the run. */
#include "train/train_internal.h"

#include <stdarg.h>

PRINTF(3, 4)
static void add_line(struct str *out, const char *label, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	str_printf(out, "\n  %-10s %s", label, text);
}

static void describe_model(const struct run *r, struct str *out)
{
	const struct model *m = &r->t.model;
	const struct model_counts n = model_counts(m);
	add_line(out, "model", "%s, %lld parameters: %lld layer%s, dim %lld, %lld head%s",
		arch_names[m->c.arch], (long long)n.all, (long long)m->c.layers,
		plural(m->c.layers), (long long)m->c.dim, (long long)m->c.heads,
		plural(m->c.heads));
	int64_t with_experts = 0;
	for (int64_t i = 0; i < m->c.layers; i++)
		with_experts += layer_has_experts(&m->c, i);
	if (with_experts)
		add_line(out, "experts",
			"%lld; %lld of them compute each token: N = %lld active parameters",
			(long long)m->c.experts, (long long)m->c.experts_per_token,
			(long long)n.active);
	else if (m->c.experts)
		add_line(out, "experts",
			"none: --moe-from, --moe-every and --moe-not leave no layer");
}

/* Prints the tree of the model's tensors. */
static void describe_tensors(const struct run *r)
{
	scoped_str tree = {0};
	model_print(&r->t.model, true, &tree);
	info("tensors:\n%.*s", (int)tree.len - 1, tree.s);
}

/* Appends the line with the sizes of both splits and the tokenizer. */
static void describe_data(const struct run *r, struct str *out)
{
	const struct dataset *d = &r->data;
	char train[NUM_TEXT], val[NUM_TEXT];
	add_line(out, "data",
		"%s training tokens and %s validation tokens, vocabulary of %lld (%s)",
		text_count(train, (double)d->tokens[SPLIT_TRAIN]),
		text_count(val, (double)d->tokens[SPLIT_VAL]),
		(long long)d->tokenizer.vocab.n, d->tokenizer.kind->name);
}

/* Appends lines with the batch, the FLOPs per token and the memory of a step. */
static void describe_step(const struct run *r, struct str *out)
{
	const struct trainer *t = &r->t;
	char flops[NUM_TEXT], causal[NUM_TEXT], bytes[NUM_TEXT], peak[NUM_TEXT];
	int64_t micro = layout_micro_batches(&t->o), batch = layout_worker_batch(&t->o);
	add_line(out, "batch", "%lld sequence%s of %lld tokens%s, in %lld micro-batch%s",
		(long long)batch, plural(batch), (long long)t->model.c.context,
		r->local.sync ? " per worker" : "", (long long)micro,
		micro == 1 ? "" : "es");
	add_line(out, "compute",
		"%s, %s FLOPs per token (6 N + 12 L C T%s; with causal attention %s)",
		precision_names[t->o.dtype],
		text_count(flops, model_flops_per_token(&t->model, false)),
		t->o.freeze.n ? ", less with --freeze" : "",
		text_count(causal, model_flops_per_token(&t->model, true)));
	if (model_attended(&t->model) < (double)t->model.c.context)
		str_printf(out, "; with windows, T is %.6g", model_attended(&t->model));
	if (r->report.peak_flops > 0)
		str_printf(out, ", mfu of %s FLOP/s per rank",
			text_count(peak, r->report.peak_flops));
	add_line(out, "memory", "%s per rank", text_bytes(bytes, (double)r->max_bytes));
}

/* Appends lines with the layout, and with the workers of local SGD if it is used. */
static void describe_layout(
	const struct run *r, const struct run_info *i, struct str *out)
{
	const struct edit_opts *x = &r->t.o.edit;
	add_line(out, "layout",
		"%s%s: %lld rank%s on %lld host%s, %lld thread%s each, %s", i->layout,
		r->local.sync ? " per worker" : "", (long long)i->ranks, plural(i->ranks),
		(long long)i->hosts, plural(i->hosts), (long long)i->threads,
		plural(i->threads), i->device);
	char when[48] = "step";
	if (x->async)
		snprintf(when, sizeof(when), "%g seconds", x->sync_time);
	else if (x->config.interval > 1)
		snprintf(when, sizeof(when), "%lld steps", (long long)x->config.interval);
	if (r->local.sync)
		add_line(out, "local SGD", "%lld worker%s, synchronized every %s",
			(long long)x->workers, plural(x->workers), when);
}

/* Appends a line with the checks of each step. */
static void describe_checks(const struct run *r, struct str *out)
{
	const struct train_opts *o = &r->t.o;
	const struct {
		bool on;
		const char *name;
	} checks[] = {{o->check_sums, "sums of gradients"},
		{o->check_replicas, "replicas"}, {o->check_memory, "state at rest"},
		{o->referee > 0, "micro-batches (--referee)"}};
	scoped_str list = {0};
	for (size_t i = 0; i < ARRAY_LEN(checks); i++)
		if (checks[i].on)
			str_printf(&list, "%s%s", list.len ? ", " : "", checks[i].name);
	if (list.len)
		add_line(out, "checks", "%s", list.s);
}

void describe_run(const struct run *r, const struct run_info *i)
{
	scoped_str text = {0};
	describe_model(r, &text);
	describe_data(r, &text);
	describe_step(r, &text);
	describe_layout(r, i, &text);
	describe_checks(r, &text);
	if (i->job)
		add_line(&text, "job", "%s", i->job);
	if (r->t.o.verbose)
		add_line(&text, "libraries", "%s", i->libraries);
	add_line(&text, "hash", "0x%016llx of everything that determines the results",
		(unsigned long long)i->arithmetic);
	if (r->dir.path)
		add_line(&text, "directory", "%s", r->dir.path);
	if (!r->t.o.eval_only)
		add_line(&text, "log",
			"every %lld steps; pt-train --columns explains its columns",
			(long long)r->t.o.log_every);
	info("version %s, started %s on %s%s", PT_VERSION, i->started, i->host, text.s);
	options_note_idle(&r->t.o, &r->t.model, r->all->size);
	if (r->t.o.verbose)
		describe_tensors(r);
}

/* The answers of --explain: which kinds of parallelism this model and cluster need, and why. */
#include "plan/planner.h"

#include <math.h>

#include "parallel/parallel.h"

/* Returns the bytes of the largest layer and its gradient, which a rank holds whole while it
 * computes the layer. bytes: bytes of an element; gradients are fp32. */
static double largest_layer_bytes(const struct shape *s, double bytes)
{
	return fmax(s->block, s->embedding) * (bytes + sizeof(float));
}

static void print_answer(struct str *out, const char *answer, const char *reason)
{
	str_printf(out, "%-4s %s\n", answer, reason);
}

enum { LIMIT_TEXT = NUM_TEXT + 16 };

/* Writes " of 76 GiB", the text after a need. */
static void write_limit(char text[static LIMIT_TEXT], double limit)
{
	char bytes[NUM_TEXT];
	if (isinf(limit))
		snprintf(text, LIMIT_TEXT, " (without a limit)");
	else
		snprintf(text, LIMIT_TEXT, " of %s", text_bytes(bytes, limit));
}

/* Sets the memory of a layout from a plan, or from a bound if the ranks cannot divide the batch. */
static void layout_memory(const struct request *r, const struct shape *s,
	const struct layout *l, struct memory *m)
{
	struct choice c = {.l = *l};
	struct bounds bounds;
	struct practice p;
	struct err e = {0};
	if (r->trainer != BY_PT) {
		practice_init(r->trainer, r->o, &p);
		estimate_memory(s, l, &p, m);
	} else if (r->o->batch % r->ranks || plan_memory(r, l, m, &e)) {
		bounds_init(&bounds, r);
		bounds_compute(&bounds, &c);
		bounds_release(&bounds);
		*m = c.memory;
	}
}

/* Answers whether the whole model fits on a rank, with the smallest micro-batch and pure data
 * parallelism. */
static void answer_one_rank(
	const struct request *r, const struct shape *s, double limit, struct str *out)
{
	struct layout one = {.degree = {1, 1, 1, 1, 1},
		.stages = 1,
		.micro_batch = 1,
		.n_micro = max64(1, r->o->batch / r->ranks),
		.recompute = RECOMPUTE_FULL};
	struct memory m;
	char need[NUM_TEXT], have[LIMIT_TEXT], line[256];
	one.degree[AXIS_DP] = r->ranks;
	layout_memory(r, s, &one, &m);
	text_bytes(need, m.total);
	write_limit(have, limit);
	bool fits = m.total <= limit;
	snprintf(line, sizeof(line),
		"Does the model fit on one rank? It needs about %s%s%s", need, have,
		fits ? ": data parallelism (--dp) is enough, and sharding (--fsdp) lets "
		       "larger micro-batches fit."
		     : ": its state must be sharded (--fsdp), or split (--tp, --pp).");
	print_answer(out, fits ? "yes" : "no", line);
}

/* Answers whether FSDP can hold the largest layer. */
static void explain_layer_fits(const struct request *r, const struct shape *s,
	double limit, double bytes, struct str *out)
{
	char need[NUM_TEXT], line[256];
	double n = largest_layer_bytes(s, bytes);
	bool fits = 4 * n <= limit;
	text_bytes(need, n);
	snprintf(line, sizeof(line),
		"Does the largest layer fit? It takes %s with its gradient, and FSDP keeps "
		"about four at a time%s",
		need,
		fits ? ": FSDP alone can do it."
		: r->m->c.experts
			? ": the layer itself must be split (--ep, --tp, or --tile)."
			: ": the layer itself must be split (--tp, or --tile).");
	print_answer(out, fits ? "yes" : "no", line);
}

/* Appends whether the activations of one sequence fit in `limit` bytes. */
static void answer_sequence(const struct shape *s, double limit, struct str *out)
{
	char need[NUM_TEXT], line[256];
	double n = s->layers * s->context * s->dim * 4;
	bool fits = n <= limit / 2;
	text_bytes(need, n);
	snprintf(line, sizeof(line),
		"Do the activations of one sequence fit? With --recompute full they take %s%s",
		need,
		fits ? "." : ": sequences must be split (--cp), or layers (--tp, --pp).");
	print_answer(out, fits ? "yes" : "no", line);
}

/* Answers whether FSDP hides its communication: a block's computation must take longer than its
 * gather. */
static void answer_network(
	const struct request *r, const struct shape *s, double bytes, struct str *out)
{
	const struct cluster *c = &r->cluster;
	bool has_hosts = r->hosts > 1;
	int here = r->ranks / r->hosts;
	double bandwidth = has_hosts ? here * c->links.link[LINK_NETWORK].bytes_per_second
				     : c->links.link[LINK_HOST].bytes_per_second;
	double gather = s->block * bytes / bandwidth;
	double rate =
		c->efficiency * cluster_peak(c, options_gemm_dtype(r->o), true, here);
	double tokens = gather * rate / (2 * s->active);
	char line[320];
	double available = (double)r->o->batch * s->context / r->ranks;
	bool is_slow = tokens > available;
	snprintf(line, sizeof(line),
		"Is the network slow for FSDP over all ranks? A block's gather takes %.3g ms%s, "
		"as long as the forward of %.0f tokens; a rank has %.0f tokens per step%s",
		1e3 * gather, has_hosts ? " between hosts" : "", tokens, available,
		is_slow ? ": shard only within hosts (--fsdp ranks per host, --dp hosts), use "
			  "--pp between hosts, or local SGD (--edit-workers)."
			: ", enough to hide it.");
	print_answer(out, is_slow ? "yes" : "no", line);
}

/* Appends whether each rank gets at least one sequence. */
static void answer_batch(const struct request *r, struct str *out)
{
	char line[256];
	bool has_few = r->o->batch < r->ranks;
	snprintf(line, sizeof(line),
		"Does each rank get a sequence of its own? %lld sequences, %d ranks%s",
		(long long)r->o->batch, r->ranks,
		has_few ? ": some axis must split sequences or the model (--tp, --cp, --pp)."
			: ".");
	print_answer(out, has_few ? "no" : "yes", line);
}

/* Prints whether the fastest layout needs --tile, --offload or memory of its host. */
static void print_tile_and_offload(const struct choice *c, struct str *out)
{
	char host[NUM_TEXT];
	if (c->l.tile || c->l.offload)
		str_puts(out, " None fits without --tile or --offload.");
	if (c->memory.host > 0)
		str_printf(out, " Its host needs %s for each GPU.",
			text_bytes(host, c->memory.host));
}

/* Appends the best layout with its memory and time, and how many layouts fit. limit: text
 * with the limit. */
static void answer_fastest(const struct request *r, const struct search *s,
	const char *limit, struct str *out)
{
	const struct choice *c = &s->best[0];
	bool has_times = trainer_has_times(r->trainer);
	char need[NUM_TEXT];
	scoped_str line = {0};
	str_printf(&line, "Does any layout fit? %lld of %lld; the %s is ",
		(long long)s->fitting, (long long)s->enumerated,
		has_times ? "fastest" : "simplest");
	report_layout(&c->l, &line);
	str_printf(&line, ": %s%s", text_bytes(need, c->memory.total), limit);
	if (has_times)
		str_printf(&line,
			" and %.4g s per step: %.0f %% is exposed communication and "
			"%.0f %% bubble",
			c->times.step, 100 * c->times.exposed / c->times.step,
			100 * c->times.bubble / c->times.step);
	str_putc(&line, '.');
	print_tile_and_offload(c, &line);
	print_answer(out, "yes", line.s);
}

/* Answers whether any layout fits, and which one is the fastest. */
static void answer_fits(const struct request *r, const struct search *s, struct str *out)
{
	char need[NUM_TEXT], have[LIMIT_TEXT], line[384];
	write_limit(have, r->limit ? (double)r->limit : INFINITY);
	if (!s->n) {
		text_bytes(need, s->least.memory.total);
		snprintf(line, sizeof(line),
			"Does any layout fit? Each needs %s or more%s (%lld layouts%s): use more "
			"ranks, a shorter context, or a smaller model.",
			need, have, (long long)s->enumerated,
			s->least.l.offload ? ", also with --tile and --offload"
			: s->least.l.tile  ? ", also with --tile"
					   : "");
		print_answer(out, "no", line);
		return;
	}
	answer_fastest(r, s, have, out);
}

void explain_choice(const struct request *r, const struct search *s, struct str *out)
{
	struct shape shape;
	bool is_gpu = r->o->device == DEVICE_CUDA;
	double element_bytes = r->trainer != BY_PT ? 2
			       : is_gpu ? (double)dtype_bytes(options_gemm_dtype(r->o))
					: sizeof(float);
	double limit = r->limit ? (double)r->limit : INFINITY;
	shape_init(&shape, r->m);
	answer_one_rank(r, &shape, limit, out);
	explain_layer_fits(r, &shape, limit, element_bytes, out);
	answer_sequence(&shape, limit, out);
	answer_batch(r, out);
	if (r->ranks > 1)
		answer_network(r, &shape, element_bytes, out);
	answer_fits(r, s, out);
}

/* The plan: runs the training code on the planning device, with arenas that only measure. */
#include "plan/plan.h"

#include <math.h>

#include "edit/edit.h"
#include "engine/state.h"
#include "engine/step.h"
#include "model/generate.h"
#include "engine/shares.h"
#include "plan/cluster.h"
#include "plan/plan_internal.h"

void plan_open(struct trainer *t, const struct train_opts *o, struct model *m, int rank,
	int64_t n_micro)
{
	*t = (struct trainer){.o = *o, .model = *m};
	t->o.batch = n_micro * o->micro_batch * max64(1, o->edit.workers);
	mesh_plan(&t->mesh, o->resolved.degree, rank);
	t->world = t->mesh.world;
	arena_measure(&t->memory.run, "run");
	arena_measure(&t->memory.micro, "activations");
	arena_measure(&t->memory.scratch, "scratch");
	device_open_plan(&t->d, (enum device_kind)o->device);
	t->d.scratch = &t->memory.scratch;
	t->d.threads = o->device == DEVICE_CUDA ? 0 : (int)o->threads;
	layout_assign(&t->layout, &t->o, &t->mesh, &t->model);
	trainer_build_state(t);
	*m = t->model; /* this rank's part */
}

void plan_close(struct trainer *t)
{
	trainer_dismantle(t);
	struct comm *world = t->mesh.world;
	mesh_close(&t->mesh);
	comm_free(world);
}

void plan_run_step(struct trainer *t)
{
	struct step_result r;
	const struct pipe_input in = step_input(t, NULL);
	step_enqueue(t, &in, NULL, NULL, &r);
	step_times(t, &r);
	step_update(t);
}

/* Returns the group with this name, or adds it. The last one collects groups beyond PLAN_GROUPS. */
static struct plan_group *find_or_add_group(struct plan *p, const char *name)
{
	for (int i = 0; i < p->n_groups; i++)
		if (!strcmp(p->group[i].name, name))
			return &p->group[i];
	if (p->n_groups == PLAN_GROUPS)
		return &p->group[PLAN_GROUPS - 1];
	struct plan_group *g = &p->group[p->n_groups++];
	snprintf(g->name, sizeof(g->name), "%s", name);
	return g;
}

/* Sets the bytes sent, in total and per group of ranks. */
static void count_sent(const struct trainer *t, struct plan *p)
{
	const struct comm *c;
	p->sent = (double)mesh_bytes_sent(&t->mesh);
	p->sent_rows = (double)t->pass.experts.sent;
	for (int i = 0; (c = mesh_group_at(&t->mesh, i)); i++)
		if (c->sent)
			find_or_add_group(p, c->name)->sent += (double)c->sent;
}

/* Counts the memory of a sample, for which a sharded model is gathered. */
static void count_sample(struct trainer *t, struct plan *p)
{
	p->sample_bytes = decoder_bytes(&t->model, &t->d);
	for (int i = 0; i < t->model.n_tensors && !state_is_whole(t); i++)
		p->sample_bytes +=
			tensor_size(&t->model.tensors[i]) * (int64_t)sizeof(float);
}

/* Counts the memory that does not depend on the step: state, data, copies and a sample. */
static void count_state(struct trainer *t, struct plan *p)
{
	p->run_bytes = (int64_t)t->memory.run.peak_bytes;
	p->work_bytes = t->o.device == DEVICE_CUDA ? DEVICE_WORK_BYTES : 0;
	p->store = t->store->bytes;
	if (t->o.device == DEVICE_CUDA)
		p->pinned_bytes = !t->o.offload_to ? p->store.offloaded
				  : t->o.offload
					  ? offload_staging_bytes(p->store.offloaded)
					  : 0;
	const struct microbatches *mb = &t->layout.microbatches;
	int64_t n_micro = mb->begin ? shares_max_turns(mb)
				    : microbatches_own(mb, t->layout.data_rank);
	p->data_bytes = 2 * n_micro * t->o.micro_batch * (t->model.c.context + 1) *
			(int64_t)sizeof(int32_t);
	p->copy_bytes = state_copy_bytes(t);
	p->vault_bytes = t->o.vault ? 2 * state_part_bytes(t) : 0;
	if (t->o.sample_every && t->world->rank == 0)
		count_sample(t, p);
}

/* Counts memory and messages of a synchronization. Adds to the store's counters of a step. */
static void count_edit(const struct trainer *t, struct plan *p)
{
	struct edit_result r;
	int64_t read = t->store->read, written = t->store->written;
	if (!t->o.edit.workers)
		return;
	struct comm *sync = comm_planned("workers", 0, (int)t->o.edit.workers, false);
	struct edit *x = edit_new(
		&t->o.edit.config, t->world, sync, t->store, (struct device *)&t->d);
	p->edit_bytes = edit_bytes(x);
	p->edit_sent = (double)edit_sent(x);
	if (options_offload(&t->o))
		edit_sync(x, 1, &r);
	p->edit_read = (double)(t->store->read - read);
	p->edit_written = (double)(t->store->written - written);
	edit_free(x);
	comm_free(sync);
}

/* Sets the bytes of gradients, and how many of them share memory with activations. */
static void count_gradients(const struct trainer *t, struct plan *p)
{
	p->gradients_bytes = store_gradients_bytes(t->store);
	p->gradient_memory = trainer_gradients_at(t);
	p->shared_bytes =
		trainer_shared_bytes(&(struct trainer_sizes){.micro = p->micro_bytes,
			.gradients = p->gradients_bytes,
			.gradient_memory = p->gradient_memory});
}

/* Plans a step of n_micro micro-batches, and sets *p to its memory, messages and work. */
static void plan_step(const struct train_opts *o, struct model *m, int rank,
	int64_t n_micro, struct plan *p)
{
	struct trainer t;
	*p = (struct plan){0};
	plan_open(&t, o, m, rank, n_micro);
	count_state(&t, p);
	trainer_build_pipe(&t);
	p->micro_bytes = (int64_t)t.memory.micro.peak_bytes;
	count_gradients(&t, p);
	plan_run_step(&t);
	p->scratch_bytes = (int64_t)t.memory.scratch.peak_bytes;
	p->step_flops = t.d.flops;
	p->read = (double)t.store->read;
	p->written = (double)t.store->written;
	count_sent(&t, p);
	count_edit(&t, p);
	plan_close(&t);
}

/* Plans a step from one of `few` micro-batches and one with one more per data-parallel rank: all
 * further micro-batches are assumed to cost the same. */
static void plan_step_by_extrapolation(const struct train_opts *o, struct model *m,
	int rank, int64_t few, struct plan *p)
{
	struct plan more;
	struct trainer t;
	int64_t n = layout_micro_batches(o), ranks = layout_data_ranks(o);
	double n_further = (double)((n - few) / ranks);
	plan_step(o, m, rank, few, p);
	plan_step(o, m, rank, few + ranks, &more);
	p->step_flops += n_further * (more.step_flops - p->step_flops);
	p->sent += n_further * (more.sent - p->sent);
	p->sent_rows += n_further * (more.sent_rows - p->sent_rows);
	p->read += n_further * (more.read - p->read);
	p->written += n_further * (more.written - p->written);
	for (int i = 0; i < p->n_groups; i++)
		p->group[i].sent += n_further * (more.group[i].sent - p->group[i].sent);
	plan_open(&t, o, m, rank, n);
	count_state(&t, p);
	count_edit(&t, p);
	plan_close(&t);
}

int64_t plan_few_micro_batches(const struct train_opts *o, int64_t per_rank)
{
	int64_t n = layout_micro_batches(o), ranks = layout_data_ranks(o);
	int64_t stages = o->resolved.degree[AXIS_PP] * o->pp_stages;
	return min64(n, max64(per_rank, 2 * stages) * ranks + n % ranks);
}

void plan_make(const struct train_opts *o, struct model *m, int rank, struct plan *p)
{
	int64_t few = plan_few_micro_batches(o, 100);
	if (few < layout_micro_batches(o))
		plan_step_by_extrapolation(o, m, rank, few, p);
	else
		plan_step(o, m, rank, few, p);
}

void plan_make_memory(
	const struct train_opts *o, struct model *m, int rank, struct plan *p)
{
	int64_t few = plan_few_micro_batches(o, 4), n = layout_micro_batches(o);
	struct trainer t;
	plan_step(o, m, rank, few, p);
	if (few == n)
		return;
	struct plan all = *p;
	plan_open(&t, o, m, rank, n);
	count_state(&t, &all);
	plan_close(&t);
	*p = all;
}

/* Runs a prompt and one token, as a sample does. */
static void run_sample(struct trainer *t)
{
	const uint32_t ids[] = {0, 0, 0};
	struct decoder *g = decoder_open(&t->model, &t->d, t->store, true);
	decoder_feed(g, ids, ARRAY_LEN(ids));
	decoder_feed(g, ids, 1);
	decoder_close(g);
}

/* Runs few micro-batches: only the calls of the first, the second and the last differ. */
void plan_kernel_calls(
	const struct train_opts *o, struct model *m, int rank, struct kernel_calls *calls)
{
	struct trainer t;
	plan_open(&t, o, m, rank, plan_few_micro_batches(o, 4));
	device_plan_record(&t.d, calls);
	trainer_build_pipe(&t);
	plan_run_step(&t);
	pipe_forward(&t.pipe, &(struct pipe_input){.n = 1}, 1);
	if (t.o.sample_every && rank == 0 && state_is_whole(&t))
		run_sample(&t);
	plan_close(&t);
}

int64_t plan_on_device(const struct plan *p)
{
	return p->run_bytes + p->store.grads + p->store.gathered + p->store.buffers +
	       p->micro_bytes + p->scratch_bytes + p->edit_bytes + p->work_bytes +
	       p->sample_bytes - p->shared_bytes;
}

int64_t plan_total(const struct plan *p)
{
	return plan_on_device(p) + p->data_bytes + p->copy_bytes + p->pinned_bytes;
}

int64_t plan_needed(const struct train_opts *o, const struct plan *p)
{
	return o->device == DEVICE_CUDA ? plan_on_device(p)
					: plan_total(p) - p->copy_bytes;
}

static void print_bytes(
	struct str *out, const char *name, int64_t n_bytes, const char *help)
{
	char text[NUM_TEXT];
	str_printf(out, "%-14s %16lld  %9s  %s\n", name, (long long)n_bytes,
		text_bytes(text, (double)n_bytes), help);
}

int64_t plan_limit(const struct train_opts *o, int ranks)
{
	return o->memory ? o->memory : memory_available() / max64(1, ranks);
}

/* Returns a rank with an equal plan: of more than 64 ranks, those in the middle of an axis equal
 * its second one, except on the pipeline axis. */
static int find_equal_rank(const int degree[N_AXES], int rank)
{
	enum { MAX_DIFFERENT = 64 };
	int at[N_AXES];
	mesh_coordinates(degree, rank, at);
	for (int a = 0; a < N_AXES; a++)
		if (a != AXIS_PP && at[a] > 1 && at[a] < degree[a] - 1)
			at[a] = 1;
	return mesh_ranks(degree) <= MAX_DIFFERENT ? rank : mesh_rank(degree, at);
}

/* Returns the bytes by which ranks are compared: on GPUs, the memory of the GPU. */
static int64_t compared_bytes(const struct train_opts *o, const struct plan *p)
{
	return o->device == DEVICE_CUDA ? plan_on_device(p) : plan_total(p);
}

/* Plans all ranks. Sets totals[ranks], and *peak to the largest plan. Returns the rank of *peak. */
static int plan_all_ranks(const struct train_opts *o, struct model *m, int ranks,
	struct plan *peak, int64_t *totals)
{
	int largest = 0;
	for (int r = 0; r < ranks; r++) {
		struct plan p;
		int equal = find_equal_rank(o->resolved.degree, r);
		if (equal < r) {
			totals[r] = totals[equal];
			continue;
		}
		plan_make(o, m, r, &p);
		totals[r] = compared_bytes(o, &p);
		if (r == 0 || totals[r] > totals[largest]) {
			*peak = p;
			largest = r;
		}
	}
	return largest;
}

/* Appends the totals of all ranks; neighbors with equal totals share a line. */
static void print_totals(
	const struct train_opts *o, const int64_t *totals, int ranks, struct str *out)
{
	str_printf(out, "# memory of each rank%s\n",
		o->device == DEVICE_CUDA ? ", on its GPU" : "");
	for (int first = 0, r; first < ranks; first = r) {
		char name[NUM_TEXT], text[NUM_TEXT];
		for (r = first + 1; r < ranks && totals[r] == totals[first]; r++)
			;
		snprintf(name, sizeof(name), r - first > 1 ? "ranks %d-%d" : "rank %d",
			first, r - 1);
		str_printf(out, "%-14s %16lld  %9s\n", name, (long long)totals[first],
			text_bytes(text, (double)totals[first]));
	}
}

/* Returns what pinned host memory holds with the offloading of these options. */
static const char *pinned_help(const struct train_opts *o)
{
	if (o->offload_to)
		return "on the host: buffers to and from the file";
	static const char *const help[] = {
		[OFFLOAD_NONE] = "on the host: anchor, outer optimizer, residual",
		[OFFLOAD_OPTIMIZER] = "on the host: moments, fp32",
		[OFFLOAD_GRADS] = "on the host: moments and gradients, fp32",
		[OFFLOAD_PARAMS] = "on the host: parameters, moments, 16-bit copies",
		[OFFLOAD_ALL] =
			"on the host: parameters, moments, gradients, 16-bit copies"};
	return help[o->offload];
}

/* Returns what the file of --offload-to holds with the offloading of these options. */
static const char *file_help(const struct train_opts *o)
{
	static const char *const help[] = {
		[OFFLOAD_NONE] = "anchor, outer optimizer, residual, fp32",
		[OFFLOAD_OPTIMIZER] = "optimizer state, fp32",
		[OFFLOAD_GRADS] = "optimizer state and gradients, fp32",
		[OFFLOAD_PARAMS] = "parameters and optimizer state, fp32",
		[OFFLOAD_ALL] = "parameters, optimizer state and gradients, fp32"};
	return help[o->offload];
}

/* Returns true if the run will fail because of --memory. An evaluation does not check it. */
static bool exceeds_memory(const struct train_opts *o, const struct plan *p)
{
	return o->memory && !o->eval_only && plan_needed(o, p) > o->memory;
}

/* Sets an error if the run would fail because of --memory. */
static int check_limit(const struct train_opts *o, const struct plan *p, struct err *e)
{
	char need[NUM_TEXT], has[NUM_TEXT];
	if (!exceeds_memory(o, p))
		return 0;
	return err_set(e, EX_FAILED,
		"out of memory: a rank needs %s%s, and --memory is %s",
		text_bytes(need, (double)plan_needed(o, p)),
		o->device == DEVICE_CUDA ? " on its GPU" : "",
		text_bytes(has, (double)o->memory));
}

/* Returns true if each data-parallel rank sums unsharded gradients over several micro-batches. */
static bool sums_all_gradients(const struct train_opts *o)
{
	int ranks = layout_data_ranks(o);
	return ranks > 1 && o->zero < 2 && layout_micro_batches(o) > ranks;
}

/* Appends the memory plan of a rank, one line per use, compared with --memory. */
static void print_memory(const struct train_opts *o, const struct plan *p, int rank,
	int ranks, struct str *out)
{
	bool gpu = o->device == DEVICE_CUDA, host = gpu && !o->offload_to;
	bool params = offloads_params((enum offload)o->offload);
	bool grads = offloads_grads((enum offload)o->offload);
	int64_t state = p->store.params + p->store.optimizer + p->store.outer;
	const struct {
		bool shown;
		const char *name;
		int64_t n_bytes;
		const char *help;
	} rows[] = {
		{true, "parameters", p->store.params,
			params && host	  ? "in the host's memory"
			: params	  ? "in the file"
			: p->store.copies ? "fp32, and a copy of 16 bits"
					  : "fp32"},
		{true, "gradients", p->store.grads - p->shared_bytes,
			grads ? "fp32, only of units in the backward"
			: p->shared_bytes
				? "fp32; the rest replaces activations in the backward"
			: sums_all_gradients(o)
				? "fp32, and int64 sums of micro-batches; --fsdp with --zero 2 "
				  "shards them"
				: "fp32, and int64 sums of micro-batches"},
		{p->store.gathered, "gathered", p->store.gathered,
			params ? "parameters, while they are used"
			       : "parameters of other ranks, while they are used"},
		{true, "optimizer", p->store.optimizer,
			!o->offload ? optimizers[o->optimizer]->help
			: host	    ? "buffers to and from the host's memory"
				    : "buffers to and from the file"},
		{o->edit.workers, "outer", p->store.outer,
			!options_offload(o)
				? "anchor, moments of the outer optimizer, residual"
			: host ? "anchor, outer optimizer, residual: in the host's memory"
			       : "anchor, outer optimizer, residual: in the file"},
		{o->edit.workers, "agreeing", p->edit_bytes,
			"parts of other workers' pseudo-gradients"},
		{true, "activations", p->micro_bytes, "of the micro-batches in flight"},
		{true, "scratch", p->scratch_bytes,
			"temporary, in forward, backward and update"},
		{true, "exchange", p->store.buffers,
			p->store.buffers > max64(p->store.params, p->store.grads)
				? "for reductions over ranks; a smaller --bucket needs less"
			: p->store.buffers || ranks == 1 || gpu
				? "for reductions over ranks"
				: "none: ranks of one host share memory; PT_SHARED=no plans several hosts"},
		{true, "positions", p->run_bytes - state,
			"token and position ids, rotary tables"},
		{true, "data", p->data_bytes, "windows of this step and the next"},
		{true, "checkpoint", p->copy_bytes,
			options_offload(o) ? "no copy: training waits until it is written"
			: p->copy_bytes || !o->ckpt || o->ckpt_wait
				? "copy, written while training continues"
				: "rank 0 writes for all"},
		{p->work_bytes, "kernels", p->work_bytes, "partial sums, on the GPU"},
		{p->sample_bytes, "sample", p->sample_bytes,
			"on rank 0, while it draws a sample"},
		{p->pinned_bytes, "pinned", p->pinned_bytes, pinned_help(o)},
		{!gpu, "total", plan_total(p), "without the program and its libraries"},
		{gpu, "on the GPU", plan_on_device(p),
			"total, without what CUDA takes for itself"},
		{gpu, "on the host", plan_total(p) - plan_on_device(p),
			"total, without the program and its libraries"},
	};
	str_printf(out, "# memory of rank %d%s, in bytes\n", rank,
		ranks > 1 ? ", which needs most" : "");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].shown)
			print_bytes(out, rows[i].name, rows[i].n_bytes, rows[i].help);
	if (exceeds_memory(o, p))
		str_puts(out, "# more than --memory: the run will be rejected\n");
	else if (o->memory && !gpu && !o->eval_only && plan_total(p) > o->memory)
		str_puts(out,
			"# fits into --memory without the copy of a checkpoint: training waits "
			"until a checkpoint is written\n");
}

/* Returns the bytes of a rank's activations and scratch memory if it has room for `room` times the
 * balanced number of rows of experts. */
static double bytes_with_room(
	const struct train_opts *given, struct model *m, int rank, double room)
{
	struct train_opts o = *given;
	struct plan p;
	o.expert_room = room;
	plan_make_memory(&o, m, rank, &p);
	return (double)(p.micro_bytes + p.scratch_bytes);
}

/* Appends the memory for rows of experts that ranks divide: of balanced rows, and of the most that
 * can arrive. Activations and scratch memory grow with the room. */
static void print_expert_memory(
	const struct train_opts *o, struct model *m, int rank, struct str *out)
{
	double most = fmin(
		(double)o->ep, (double)m->c.experts / (double)m->c.experts_per_token);
	char rows[NUM_TEXT], all[NUM_TEXT];
	if (o->ep <= 1 || most <= 1)
		return;
	double balanced =
		(bytes_with_room(o, m, rank, most) - bytes_with_room(o, m, rank, 1)) /
		(most - 1);
	str_printf(out,
		"# experts: %s kept with rows balanced, room for %g times that; at most %g times "
		"that can arrive, %s\n",
		text_bytes(rows, balanced), fmin(o->expert_room, most), most,
		text_bytes(all, most * balanced));
}

/* Appends the table of work: floating-point operations, tokens and micro-batches per step. */
static void print_work(const struct train_opts *o, const struct model *m,
	const struct plan *p, struct str *out)
{
	char text[NUM_TEXT];
	str_puts(out,
		"# work: N parameters without positions, L layers, C dim, T context\n");
	if (m->c.experts)
		str_puts(out, "# N counts the experts that compute a token\n");
	if (model_attended(m) < (double)m->c.context)
		str_printf(out,
			"# T is 2 W - W^2/T in a layer with a window W, and %.6g as a mean\n",
			model_attended(m));
	if (o->freeze.n)
		str_puts(out, "# without the backward of frozen tensors\n");
	str_printf(out, "%-14s %16.6g  %9s  6 N + 12 L C T, attention not halved\n",
		"flops/token", model_flops_per_token(m, false),
		text_count(text, model_flops_per_token(m, false)));
	str_printf(out, "%-14s %16.6g  %9s  6 N + 6 L C T, causal\n", "flops/token",
		model_flops_per_token(m, true),
		text_count(text, model_flops_per_token(m, true)));
	str_printf(out, "%-14s %16.6g  %9s  GEMMs of this rank\n", "flops/step",
		p->step_flops, text_count(text, p->step_flops));
	str_printf(out, "%-14s %16lld\n", "tokens/step",
		(long long)(o->batch * m->c.context));
	const struct microbatches mb = layout_assign_micro_batches(o);
	int64_t rounds = ceil_div(mb.n_micro, mb.ranks);
	str_printf(out,
		"%-14s %16lld             per data-parallel rank; gradients are reduced %s\n",
		"micro-batches", (long long)rounds,
		mb.round_robin ? "after each" : "once per step");
	if (o->device == DEVICE_CUDA && m->padded_vocab / m->tp % 8)
		str_printf(out,
			"# logits with %lld columns do not suit tensor cores; --vocab-multiple 128 "
			"pads them, but changes the arithmetic\n",
			(long long)(m->padded_vocab / m->tp));
}

/* Appends the table of offloading, if any: where state goes, bytes read and written. */
static void print_offload(
	const struct train_opts *o, const struct plan *p, struct str *out)
{
	if (!options_offload(o))
		return;
	if (!o->offload_to) {
		str_puts(out, "# between this rank's GPU and pinned memory\n");
	} else {
		str_printf(out, "# file of this rank in %s\n", o->offload_to);
		print_bytes(out, "file", p->store.offloaded, file_help(o));
	}
	print_bytes(out, "read/step", (int64_t)p->read, "");
	print_bytes(out, "written/step", (int64_t)p->written, "");
	if (!o->edit.workers)
		return;
	print_bytes(out, "read/sync", (int64_t)p->edit_read, "besides steps");
	print_bytes(out, "written/sync", (int64_t)p->edit_written, "besides steps");
}

/* Appends the memory of the files of --vault, if any. */
static void print_vault(const struct train_opts *o, const struct plan *p, struct str *out)
{
	if (!o->vault)
		return;
	str_printf(out, "# files of a rank in %s\n", o->vault);
	print_bytes(out, "vault", p->vault_bytes, "two states");
	print_bytes(out, "vault-copies", p->vault_bytes,
		"of a rank of the previous host; none with a single host");
}

/* Appends the table of communication: the bytes that this rank sends, in total and per group. */
static void print_sent(const struct plan *p, int ranks, struct str *out)
{
	str_puts(out, "# communication\n");
	str_printf(out, "%-14s %16d\n", "ranks", ranks);
	print_bytes(out, "sent/step", (int64_t)p->sent, "by this rank, in total");
	if (p->sent_rows > 0)
		print_bytes(out, "  rows", (int64_t)p->sent_rows,
			"to and from experts, if they are balanced");
	if (p->edit_sent > 0)
		print_bytes(out, "sent/sync", (int64_t)p->edit_sent,
			"by this rank, to other workers; fp32 in a step of the warm-up");
	for (int i = 0; i < p->n_groups; i++) {
		char name[32];
		snprintf(name, sizeof(name), "  %s", p->group[i].name);
		print_bytes(out, name, (int64_t)p->group[i].sent,
			strcmp(p->group[i].name, "world") ? "to ranks of this group"
							  : "to all ranks");
	}
}

/* Returns false without a limit: a plan for GPUs without --memory may be made without a GPU. */
static bool has_limit(const struct train_opts *o)
{
	return o->memory || o->device != DEVICE_CUDA;
}

/* Plans all ranks; if recompute is auto, sets o->recompute to the least that fits on this host.
 * Returns the rank that needs the most memory. */
static int choose_recompute(struct train_opts *o, struct model *m, int ranks,
	struct plan *peak, int64_t *totals)
{
	bool is_auto = o->recompute == RECOMPUTE_AUTO;
	int64_t limit = has_limit(o) ? plan_limit(o, ranks) : 0;
	if (is_auto)
		o->recompute = RECOMPUTE_NONE;
	for (;; o->recompute++) {
		int largest = plan_all_ranks(o, m, ranks, peak, totals);
		if (!is_auto || o->recompute == RECOMPUTE_FULL || !limit ||
			plan_needed(o, peak) <= limit)
			return largest;
	}
}

/* Draws the schedule of the pipeline. Costs are multiply-adds; a backward costs twice a forward. */
static void print_pipeline(const struct train_opts *o, struct model *m, struct str *out)
{
	enum { WIDTH = 100, MAX_MICRO = 64 }; /* micro-batches per rank */
	struct trainer t = {.world = NULL};
	struct timeline line;
	int n = o->resolved.degree[AXIS_PP] * (int)o->pp_stages;
	int64_t all = layout_micro_batches(o);
	int64_t n_micro = min64(all, MAX_MICRO * layout_data_ranks(o));
	double *cost = xcalloc((size_t)n * 2, sizeof(*cost)), *backward = cost + n;
	str_printf(out,
		"# pipeline: %s, by the work of a stage; transfers take no time\n",
		schedule_kind_names[o->pp_schedule]);
	if (n_micro < all)
		str_printf(out,
			"# drawn with %d micro-batches per pipeline instead of %lld, which "
			"enlarges the bubble\n",
			MAX_MICRO, (long long)ceil_div(all, layout_data_ranks(o)));
	for (int i = 0; i < n; i++) {
		int at[N_AXES] = {0};
		at[AXIS_PP] = schedule_stage_rank((enum schedule_kind)o->pp_schedule,
			o->resolved.degree[AXIS_PP], i);
		plan_open(&t, o, m, mesh_rank(o->resolved.degree, at), n_micro);
		trainer_build_pipe(&t);
		const struct stage *st =
			&t.layout.stages[i / o->resolved.degree[AXIS_PP]];
		cost[i] = layout_stage_work(m, st);
		backward[i] = cost[i];
		str_printf(out, "stage %-3d pp %-3d layers %lld to %lld%s%s\n", i,
			at[AXIS_PP], (long long)st->first, (long long)st->end - 1,
			st->embeds ? ", embedding" : "", st->heads ? ", head" : "");
		if (i < n - 1)
			plan_close(&t);
	}
	struct schedule_costs costs = {
		.forward = cost, .backward_x = backward, .backward_w = backward};
	schedule_time(&t.schedule, &costs, &line);
	schedule_draw(&t.schedule, &line, WIDTH, out);
	timeline_release(&line);
	plan_close(&t);
	free(cost);
}

/* Sets the ranks per host of --cluster, on which reductions of gradients depend. */
static int set_planned_hosts(const struct train_opts *o, int ranks, struct err *e)
{
	struct cluster c;
	if (cluster_parse(o->cluster, &c, e))
		return -1;
	int n = c.links.host_ranks;
	comm_plan_hosts(ranks > n ? n : 0, comm_place()->shares);
	return 0;
}

int plan_print(
	const struct train_opts *given, struct model *m, struct str *out, struct err *e)
{
	struct train_opts options = *given, *o = &options;
	struct plan peak = {0};
	int ranks = mesh_ranks(o->resolved.degree);
	if (o->cluster && set_planned_hosts(o, ranks, e))
		return -1;
	scoped_ptr int64_t *totals = xcalloc((size_t)ranks, sizeof(*totals));
	int largest = choose_recompute(o, m, ranks, &peak, totals);
	if (o->edit.workers)
		str_printf(out, "# workers: %lld, of %d rank%s each\n",
			(long long)o->edit.workers, ranks, plural(ranks));
	if (ranks > 1) {
		str_puts(out, "# layout: ");
		mesh_name(o->resolved.degree, out);
		if (o->ep > 1)
			str_printf(out, " ep=%lld", (long long)o->ep);
		str_printf(out, "; zero %lld; virtual %s\n", (long long)o->zero,
			o->model.virtual_degrees);
		mesh_draw(o->resolved.degree, out);
	}
	if (o->resolved.degree[AXIS_PP] > 1)
		print_pipeline(o, m, out);
	if (given->recompute == RECOMPUTE_AUTO && !has_limit(o))
		str_puts(out,
			"# recompute: none, since auto depends on the memory of the GPU; "
			"--memory BYTES sets it\n");
	else if (o->recompute)
		str_printf(out, "# recompute: %s\n", recompute_names[o->recompute]);
	print_memory(o, &peak, largest, ranks, out);
	print_expert_memory(o, m, largest, out);
	if (ranks > 1)
		print_totals(o, totals, ranks, out);
	print_offload(o, &peak, out);
	print_vault(o, &peak, out);
	print_work(o, m, &peak, out);
	print_sent(&peak, ranks, out);
	return (o->cluster && predict_print(o, m, out, e)) || check_limit(o, &peak, e)
		       ? -1
		       : 0;
}

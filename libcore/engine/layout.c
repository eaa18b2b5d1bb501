/* The parallel layout: degrees of the mesh; micro-batches, stages and slices of a rank. */
#include "engine/layout.h"

#include "engine/shares.h"

/* ---- from options to degrees ----------------------------------------------------- */

/* Resolves an axis of -1. --dp is -1 by default; it becomes 1 if another axis is -1. */
int layout_degrees(
	const struct train_opts *o, int ranks, int degree[N_AXES], struct err *e)
{
	int64_t wanted[N_AXES];
	memcpy(wanted, o->axis, sizeof(wanted));
	for (int a = 0; a < N_AXES; a++)
		if (a != AXIS_DP && wanted[a] == -1 && o->axis[AXIS_DP] == -1)
			wanted[AXIS_DP] = 1;
	return mesh_resolve(wanted, ranks, degree, e);
}

/* Sets the default of --zero. Fails if it would shard over an axis of one rank. */
static int resolve_zero(struct train_opts *o, struct err *e)
{
	const int *degree = o->resolved.degree;
	if (o->zero < 0)
		o->zero = degree[AXIS_FSDP] > 1 ? 3 : 0;
	if (o->zero && degree[AXIS_DP] > 1 && degree[AXIS_FSDP] * degree[AXIS_CP] == 1)
		return err_set(e, EX_USAGE,
			"--zero %lld shards over the fsdp axis, which has one rank; give --fsdp %d "
			"(and --dp 1), or --zero 0",
			(long long)o->zero, degree[AXIS_DP]);
	return 0;
}

/* Rejects offloaded parameters with ZeRO 1 and 2, which keep the whole model in memory. */
static int check_offload(const struct train_opts *o, struct err *e)
{
	const int *degree = o->resolved.degree;
	bool is_whole = o->zero == 0 || degree[AXIS_FSDP] * degree[AXIS_CP] == 1;
	if (!offloads_params((enum offload)o->offload) || o->zero == 3 || is_whole)
		return 0;
	bool all = o->offload == OFFLOAD_ALL;
	return err_set(e, EX_USAGE,
		"--offload %s: --zero %lld keeps all parameters in memory; give --zero 3, or "
		"--offload %s",
		all ? "all" : "params", (long long)o->zero, all ? "grads" : "optimizer");
}

/* Returns true if a resumed run may change its arithmetic for its layout (state.c reports it). */
static bool may_change_arithmetic(const struct train_opts *o)
{
	return o->resume && !o->resume_exact;
}

/* Rejects virtual degree n if it is not a multiple of the ranks of its axis. */
static int check_virtual(enum axis a, int ranks, int64_t n, struct err *e)
{
	if (n % ranks == 0)
		return 0;
	return err_set(e, EX_USAGE,
		"%s is %d, which does not divide virtual %s (%lld); give another --%s, or start a "
		"new run with --virtual %s=%lld",
		axis_names[a], ranks, axis_names[a], (long long)n, axis_names[a],
		axis_names[a], (long long)round_up(n, ranks));
}

/* Checks a virtual degree. In a resumed run, may first round *virtual_degree up to the ranks. */
static int fit_virtual(
	const struct train_opts *o, enum axis a, int64_t *virtual_degree, struct err *e)
{
	if (may_change_arithmetic(o))
		*virtual_degree = round_up(*virtual_degree, o->resolved.degree[a]);
	int rc = check_virtual(a, o->resolved.degree[a], *virtual_degree, e);
	return rc && o->resume_exact ? err_prefix(e, "--resume-exact: ") : rc;
}

/* Returns the smallest --tile >= least that model and tp ranks allow; 0: none. */
static int64_t find_tile(const struct train_opts *o, int64_t least)
{
	int ranks = o->resolved.degree[AXIS_TP];
	for (int64_t n = round_up(least, ranks); n <= o->model.heads; n += ranks) {
		struct model_config c = o->model;
		struct model m;
		struct err e;
		scoped_ptr char *degrees = text_printf("tp=%lld", (long long)n);
		c.virtual_degrees = degrees;
		c.layers = 1;
		if (model_init(&m, &c, max64(1, c.vocab), &e))
			continue;
		int rc = layout_check_tp(ranks, &m, &e);
		model_release(&m);
		if (!rc)
			return n;
	}
	return 0;
}

/* Rejects --tile with a reason, and suggests the next larger value. */
static int reject_tile(
	const struct train_opts *o, const char *why, int64_t least, struct err *e)
{
	int64_t n = find_tile(o, least);
	if (!n)
		return err_set(e, EX_USAGE,
			"--tile %s, but no larger number divides the %lld heads, the kv-heads and "
			"ffn-dim; give --tile 0",
			why, (long long)o->model.heads);
	return err_set(e, EX_USAGE, "--tile %s; give --tile %lld", why, (long long)n);
}

/* Sets the virtual tp from --tile, since its pieces are virtual slices, or from the ranks of tp. */
static int resolve_tile_pieces(const struct train_opts *o, int64_t *tp, struct err *e)
{
	int ranks = o->resolved.degree[AXIS_TP];
	char why[64];
	snprintf(why, sizeof(why), "%lld is not divisible by %d ranks of tp",
		(long long)o->tile, ranks);
	if (o->tile % ranks)
		return reject_tile(o, why, max64(o->tile, ranks + 1), e);
	if (o->tile && *tp && may_change_arithmetic(o))
		*tp = o->tile;
	if (o->tile && *tp && *tp != o->tile)
		return err_set(e, EX_USAGE,
			"--tile is %lld, but its pieces are the %lld virtual slices; give --tile "
			"%lld, or start a new run with --virtual tp=%lld",
			(long long)o->tile, (long long)*tp, (long long)*tp,
			(long long)o->tile);
	if (!*tp)
		*tp = o->tile ? o->tile : ranks;
	return 0;
}

/* Sets missing --virtual degrees to the layout's; the run records them with its arithmetic. */
static int resolve_virtual(struct train_opts *o, struct err *e)
{
	int64_t tp = 0, cp = o->resolved.degree[AXIS_CP];
	struct str text = {0};
	if (model_parse_virtual(o->model.virtual_degrees, &tp, &cp, e) ||
		resolve_tile_pieces(o, &tp, e) || fit_virtual(o, AXIS_TP, &tp, e) ||
		fit_virtual(o, AXIS_CP, &cp, e))
		return -1;
	str_printf(&text, "tp=%lld,cp=%lld", (long long)tp, (long long)cp);
	o->model.virtual_degrees = text.s;
	return 0;
}

/* Checks --tile. With several chunks on a rank, each chunk would gather the tiles again. */
static int check_tile(const struct train_opts *o, struct err *e)
{
	const int *degree = o->resolved.degree;
	bool gathers_params = o->zero == 3 && degree[AXIS_FSDP] * degree[AXIS_CP] > 1;
	int64_t tp, cp;
	const struct mistake mistakes[] = {
		{!offloads_params((enum offload)o->offload) && !gathers_params,
			"--tile needs parameters that are gathered or offloaded; give --fsdp with "
			"--zero 3, or --offload params"},
		{o->reshard == RESHARD_NO, "--tile frees parameters after use, but "
					   "--reshard-after-forward no keeps them"},
		{o->dtype == PRECISION_FLOAT8,
			"--tile: float8 weights cannot be gathered in tiles; give another "
			"--dtype"},
	};
	if (!o->tile)
		return 0;
	if (options_reject(mistakes, ARRAY_LEN(mistakes), e))
		return -1;
	model_parse_virtual(
		o->model.virtual_degrees, &tp, &cp, e); /* resolved, so it is valid */
	if (tp == degree[AXIS_TP])
		return reject_tile(o, "gives a rank only one piece of each weight",
			degree[AXIS_TP] + 1, e);
	if (cp != degree[AXIS_CP])
		return err_set(e, EX_USAGE,
			"--tile: a rank has %lld virtual chunks, but can have only one; give "
			"--virtual cp=%d",
			(long long)(cp / degree[AXIS_CP]), degree[AXIS_CP]);
	return 0;
}

/* Sets --pp-stages; the schedule determines how many stages a rank can have. */
static int resolve_stages(struct train_opts *o, struct err *e)
{
	struct schedule s;
	const struct schedule_row *row = &schedule_kinds[o->pp_schedule];
	int ranks = o->resolved.degree[AXIS_PP];
	if (ranks == 1) /* no pipeline: the whole model is one stage */
		o->pp_stages = 1;
	else if (!o->pp_stages)
		o->pp_stages = max64(row->min_stages, 1);
	if (schedule_init(&s, (enum schedule_kind)o->pp_schedule, ranks,
		    (int)o->pp_stages, 0, e))
		return err_prefix(e, "--pp-stages is %lld: ", (long long)o->pp_stages);
	schedule_release(&s);
	return 0;
}

void layout_set_batch(struct train_opts *o, int data_ranks)
{
	if (!o->batch_per_rank)
		return;
	o->batch = o->batch_per_rank * data_ranks * max64(1, o->edit.workers);
	if (!o->lr_scale_batch)
		o->lr_scale_batch = o->batch_per_rank;
}

/* Reduces the micro-batch of a resumed run until each data-parallel rank has one. */
static void fit_micro_batch(struct train_opts *o)
{
	int64_t batch = layout_worker_batch(o), ranks = layout_data_ranks(o);
	if (!may_change_arithmetic(o) || batch < ranks)
		return;
	o->micro_batch = min64(o->micro_batch, batch / ranks);
	while (batch % o->micro_batch)
		o->micro_batch--;
}

int layout_resolve(struct train_opts *o, int ranks, struct err *e)
{
	if (layout_degrees(o, ranks, o->resolved.degree, e))
		return -1;
	layout_set_batch(o, layout_data_ranks(o));
	fit_micro_batch(o);
	if (resolve_zero(o, e) || check_offload(o, e) || resolve_virtual(o, e) ||
		check_tile(o, e))
		return -1;
	return resolve_stages(o, e);
}

/* ---- checks ---------------------------------------------------------------------- */

int64_t layout_worker_batch(const struct train_opts *o)
{
	return o->batch / max64(1, o->edit.workers);
}

int64_t layout_micro_batches(const struct train_opts *o)
{
	return layout_worker_batch(o) / o->micro_batch;
}

struct microbatches layout_assign_micro_batches(const struct train_opts *o)
{
	struct microbatches mb =
		microbatches_assign(layout_micro_batches(o), o->resolved.degree,
			(int)o->zero, offloads_grads((enum offload)o->offload));
	mb.lockstep = o->ep > 1;
	return mb;
}

int layout_data_ranks(const struct train_opts *o)
{
	return o->resolved.degree[AXIS_DP] * o->resolved.degree[AXIS_FSDP];
}

int layout_data_rank(const int degree[N_AXES], int rank)
{
	int coord[N_AXES];
	mesh_coordinates(degree, rank, coord);
	return microbatches_rank(degree, coord);
}

/* Fails if a step has fewer micro-batches than data-parallel ranks. */
static int check_micro_batches(const struct train_opts *o, struct err *e)
{
	int64_t n = layout_micro_batches(o);
	int ranks = layout_data_ranks(o);
	bool other_axes = o->resolved.degree[AXIS_PP] * o->resolved.degree[AXIS_CP] *
				  o->resolved.degree[AXIS_TP] >
			  1;
	if (ranks <= n)
		return 0;
	return err_set(e, EX_USAGE,
		"%d %sranks, but a step has only %lld micro-batch%s (batch %lld%s, "
		"micro-batch %lld); give a smaller --micro-batch, or fewer ranks",
		ranks, other_axes ? "data-parallel " : "", (long long)n,
		n == 1 ? "" : "es", (long long)layout_worker_batch(o),
		o->edit.workers > 1 ? " per worker" : "", (long long)o->micro_batch);
}

/* Checks that the virtual slices that use one key/value head are on one rank, or fill whole ranks.
 * With fewer heads than slices, several slices use one head. */
static int check_kv_heads(int ranks, const struct model *m, struct err *e)
{
	int64_t per_rank = m->tp / ranks, heads = m->c.kv_heads;
	int64_t per_head = heads < m->tp ? m->tp / heads : 1;
	if (per_rank % per_head == 0 || per_head % per_rank == 0)
		return 0;
	return err_set(e, EX_USAGE,
		"tp is %d: a rank would have %lld virtual slices, but each of the %lld kv-heads "
		"is used by %lld slices: one must be a multiple of the other",
		ranks, (long long)per_rank, (long long)heads, (long long)per_head);
}

int layout_check_tp(int ranks, const struct model *m, struct err *e)
{
	return check_virtual(AXIS_TP, ranks, m->tp, e) || check_kv_heads(ranks, m, e) ? -1
										      : 0;
}

/* Minimum eps. With less, the rounding of a sum of thousands of leaves shows, see pt(7). */
static const double MIN_EPS = 1e-10;

void layout_warn(const struct train_opts *o)
{
	int64_t stages = o->resolved.degree[AXIS_PP] * o->pp_stages;
	int64_t n = layout_micro_batches(o) / layout_data_ranks(o);
	if (!o->eval_only && o->resolved.degree[AXIS_PP] > 1 && n < stages)
		warn("a step has only %lld micro-batch%s for a pipeline of %lld stages, so ranks "
		     "idle most of the time; give a smaller --micro-batch, or a larger --batch",
			(long long)n, n == 1 ? "" : "es", (long long)stages);
	const char *unused = optimizers[o->optimizer]->unused;
	if (!(unused && strstr(unused, "eps")) && o->eps < MIN_EPS)
		warn("--eps %g is too small: gradients are sums of multiples of 2^%d, so updates "
		     "of elements as small as eps are inaccurate; give at least %g",
			o->eps, -GRID_EXPONENT, MIN_EPS);
}

/* Rejects options that are not built for experts. */
static int check_experts(const struct train_opts *o, struct err *e)
{
	const struct mistake mistakes[] = {
		{o->dtype == PRECISION_FLOAT8,
			"--dtype float8 and --experts are mutually exclusive: a float8 scale "
			"belongs to a whole weight, but experts are stacked in one"},
		{o->edit.workers > 0 && o->model.balance_loss > 0 &&
				o->model.balance_over == BALANCE_BATCH,
			"--edit-workers and --balance-over batch are mutually exclusive: each "
			"worker would count its own part of the batch"},
		{o->edit.workers > 0 && o->model.router_bias_rate > 0,
			"--edit-workers and --router-bias are mutually exclusive: each worker "
			"would balance its own part of the batch"},
	};
	return o->model.experts ? options_reject(mistakes, ARRAY_LEN(mistakes), e) : 0;
}

/* Checks --ep: its ranks divide a replica of fsdp x cp ranks, or are several whole replicas. */
static int check_ep(const struct train_opts *o, struct err *e)
{
	const int *degree = o->resolved.degree;
	int64_t replica = degree[AXIS_FSDP] * degree[AXIS_CP],
		all = mesh_data_ranks(degree);
	if (o->ep <= 1)
		return 0;
	if (o->model.experts % o->ep)
		return err_set(e, EX_USAGE,
			"ep is %lld, which does not divide experts (%lld)",
			(long long)o->ep, (long long)o->model.experts);
	if (all % o->ep || (replica % o->ep && o->ep % replica))
		return err_set(e, EX_USAGE,
			"ep is %lld, but must divide fsdp x cp (%lld ranks), or be a multiple of "
			"it that divides dp x fsdp x cp (%lld ranks)",
			(long long)o->ep, (long long)replica, (long long)all);
	return 0;
}

/* Checks --deal speed: several units can have different numbers of micro-batches. */
static int check_deal(const struct train_opts *o, struct err *e)
{
	const struct microbatches mb = layout_assign_micro_batches(o);
	bool replicas = mb.round_robin && o->zero >= 2;
	const struct mistake mistakes[] = {
		{o->data_per_rank,
			"--deal speed and --data-per-rank are mutually exclusive: ranks with data "
			"of their own cannot compute each other's micro-batches"},
		{o->graph,
			"--deal speed and --cuda-graph are mutually exclusive: the micro-batches "
			"of a graph are not timed"},
		{o->ep > 1,
			"--deal speed and --ep are mutually exclusive: the ranks of --ep "
			"compute each other's experts, so none may have fewer turns"},
		{mb.round_robin && o->zero < 2,
			"--deal speed: --offload grads reduces every micro-batch over all ranks, "
			"which wait for each other; give another --offload"},
		{replicas && o->resolved.degree[AXIS_DP] == 1,
			"--deal speed: the ranks of --fsdp gather parameters together, so they "
			"wait for each other in each micro-batch; give --dp for several replicas, "
			"or --zero 1"},
		{mb.ranks == 1,
			"--deal speed needs several data-parallel ranks; give --dp, "
			"or --deal even"},
		{replicas && o->resolved.degree[AXIS_TP] > 1,
			"--deal speed: with --tp and --zero 2 or 3, the gradients of norms are "
			"reduced over all replicas in each micro-batch, so replicas wait for each "
			"other; give --tp 1, or --zero 1"},
		{mb.n_micro % mb.unit_ranks,
			"--deal speed: the micro-batches of a step must be a multiple of the ranks "
			"of --fsdp; give another --micro-batch or --batch"},
		{mb.n_micro == mb.ranks,
			"--deal speed: a step has one micro-batch per data-parallel rank, so none "
			"can be given to another rank; give a smaller --micro-batch"},
	};
	return o->deal == DEAL_SPEED ? options_reject(mistakes, ARRAY_LEN(mistakes), e)
				     : 0;
}

int layout_check(const struct train_opts *o, const struct model *m, struct err *e)
{
	int64_t stages = o->resolved.degree[AXIS_PP] * o->pp_stages;
	if (o->dtype == PRECISION_FLOAT8 && o->float8_skip_ends && m->c.layers <= 2)
		return err_set(e, EX_USAGE,
			"--dtype float8 leaves the first and the last block in bf16, but the model "
			"has no other blocks; give --no-float8-skip-ends");
	if (check_micro_batches(o, e) || check_experts(o, e) || check_ep(o, e) ||
		check_kv_heads(o->resolved.degree[AXIS_TP], m, e) || check_deal(o, e))
		return -1;
	if (stages > m->c.layers)
		return err_set(e, EX_USAGE,
			"%lld stages (--pp %d x --pp-stages %lld) need as many layers; the model "
			"has %lld",
			(long long)stages, o->resolved.degree[AXIS_PP],
			(long long)o->pp_stages, (long long)m->c.layers);
	/* The plan's counts must fit into int64_t. */
	double rows = (double)o->micro_batch * (double)m->c.context;
	double width =
		(double)(m->c.dim + model_q_width(m) + m->c.ffn_dim + m->padded_vocab);
	if (rows * width * (double)m->c.layers > 1e16 ||
		(double)o->batch * (double)m->c.context > 1e16)
		return err_set(e, EX_USAGE,
			"a step of %lld sequences is too large for any machine",
			(long long)o->batch);
	return 0;
}

/* ---- how many ranks a layout can use ------------------------------------------------- */

int layout_min_ranks(const struct train_opts *o, bool *takes_rest, struct err *e)
{
	enum { MAX_RANKS = 1 << 20 };
	int64_t ranks = 1;
	*takes_rest = false;
	for (int a = 0; a < N_AXES; a++) {
		*takes_rest |= o->axis[a] == -1;
		ranks *= max64(1, o->axis[a]);
		if (ranks > MAX_RANKS)
			return err_set(e, EX_USAGE, "the layout has more than %d ranks",
				MAX_RANKS);
	}
	return (int)ranks;
}

/* Checks that a worker can have that many ranks, without a change of the arithmetic. */
static int check_ranks(const struct train_opts *given, int ranks, struct err *e)
{
	struct train_opts o = *given;
	struct model m;
	o.resume_exact = true;
	int rc = layout_resolve(&o, ranks, e) || check_micro_batches(&o, e) ||
				 model_init(&m, &o.model, max64(1, o.model.vocab), e)
			 ? -1
			 : 0;
	if (!rc) {
		rc = layout_check(&o, &m, e);
		model_release(&m);
	}
	if (o.model.virtual_degrees != given->model.virtual_degrees)
		free((char *)(uintptr_t)o.model.virtual_degrees);
	return rc;
}

/* Returns how many of n ranks a worker can use. */
int64_t layout_count_ranks(const struct train_opts *o, struct err *e)
{
	bool takes_rest;
	int64_t workers = max64(1, o->edit.workers);
	int64_t n = o->print_ranks / workers;
	int least = layout_min_ranks(o, &takes_rest, e);
	if (least < 0)
		return -1;
	if (o->batch_per_rank)
		return err_set(e, EX_USAGE,
			"--print-ranks and --batch-per-rank are mutually exclusive: the batch "
			"would depend on the ranks");
	if (n < least)
		return 0;
	for (n = takes_rest ? n / least * least : least; n >= least; n -= least) {
		*e = (struct err){0};
		if (!check_ranks(o, (int)n, e))
			return n * workers;
	}
	return -1;
}

/* ---- a rank's part --------------------------------------------------------------- */

double layout_stage_work(const struct model *m, const struct stage *s)
{
	double work = s->heads ? (double)tensor_size(m->output) : 0;
	int64_t n[LAYER_KINDS] = {0};
	for (int64_t l = s->first; l < s->end; l++)
		n[model_layer_kind(m, l)]++;
	for (int kind = 0; kind < LAYER_KINDS; kind++)
		if (n[kind])
			work += (double)n[kind] *
				model_layer_work(m, model_layer_of_kind(m, kind));
	return work;
}

int *layout_split(const struct model *m, int n, bool even)
{
	struct err e = {0};
	int *first = xcalloc((size_t)n + 1, sizeof(*first));
	for (int i = 0; i <= n; i++)
		first[i] = (int)part_begin(m->c.layers, n, i);
	if (even || n == 1)
		return first;
	double head = layout_stage_work(m, &(struct stage){.heads = true}) /
		      layout_stage_work(m, &(struct stage){.end = 1});
	scoped_ptr double *cost = xcalloc((size_t)m->c.layers, sizeof(*cost));
	for (int64_t l = 0; l < m->c.layers; l++)
		cost[l] = 1;
	if (schedule_split(cost, (int)m->c.layers, 0, head, n, first, &e))
		die_err(&e); /* layout_check() rejects it earlier */
	return first;
}

/* Returns true if a pipeline stage uses a tensor. */
static bool stage_uses(
	const struct model *m, const struct stage *s, const struct tensor *t)
{
	if (t->unit == 0)
		return s->embeds || (s->heads && t == m->output);
	if (t->unit == m->n_units - 1)
		return s->heads;
	return t->unit - 1 >= s->first && t->unit - 1 < s->end;
}

/* Assigns this rank's pipeline stages and their tensors. */
static void assign_stages(struct rank_layout *l, const struct train_opts *o,
	const struct mesh *mesh, const struct model *m)
{
	int ranks = mesh->degree[AXIS_PP], total_stages = ranks * (int)o->pp_stages;
	l->n_stages = (int)o->pp_stages;
	l->stages = xcalloc((size_t)l->n_stages, sizeof(*l->stages));
	scoped_ptr int *first = layout_split(m, total_stages, o->pp_split == SPLIT_EVEN);
	for (int i = 0; i < l->n_stages; i++) {
		int number = schedule_rank_stage((enum schedule_kind)o->pp_schedule,
			ranks, mesh->coord[AXIS_PP], i);
		l->stages[i] = (struct stage){.first = first[number],
			.end = first[number + 1],
			.embeds = number == 0,
			.heads = number == total_stages - 1};
	}
	if (ranks == 1)
		return;
	bool *used = xcalloc((size_t)m->n_tensors, sizeof(*used));
	for (int i = 0; i < l->n_stages; i++)
		for (int j = 0; j < m->n_tensors; j++)
			used[j] |= stage_uses(m, &l->stages[i], &m->tensors[j]);
	l->part.used = used;
}

void layout_assign(struct rank_layout *l, const struct train_opts *o,
	const struct mesh *mesh, struct model *m)
{
	int n = m->tp / mesh->degree[AXIS_TP];
	*l = (struct rank_layout){.microbatches = layout_assign_micro_batches(o),
		.data_rank = layout_data_rank(o->resolved.degree, mesh->world->rank),
		.part = {.n = m->tp,
			.first = mesh->coord[AXIS_TP] * n,
			.local = n,
			.ep = (int)max64(1, o->ep)}};
	l->part.place = mesh_data_index(mesh->degree, mesh->coord) % l->part.ep;
	if (o->deal == DEAL_SPEED) {
		struct microbatches *mb = &l->microbatches;
		l->begin = xcalloc((size_t)shares_units(mb) + 1, sizeof(*l->begin));
		shares_evenly(mb, l->begin);
		mb->begin = l->begin;
	}
	assign_stages(l, o, mesh, m);
	tensors_place(m->tensors, m->n_tensors, &l->part);
}

void layout_free(struct rank_layout *l)
{
	free(l->begin);
	free(l->stages);
	free((void *)l->part.used);
}

/* ---- samples of ranks --------------------------------------------------------------- */

/* Returns a data-parallel rank's samples; with --data-per-rank, its own files without gaps. */
static struct sample_run rank_samples(const struct train_opts *o,
	const struct microbatches *d, int data_rank, int64_t first)
{
	int64_t b = o->micro_batch, n = microbatches_own(d, data_rank);
	struct sample_run run = {.block = b, .stride = b, .blocks = n};
	if (o->data_per_rank) {
		run.first = first / o->batch * n * b;
	} else if (n > 0) {
		int64_t micro = microbatches_index(d, data_rank, 0);
		run.first = first + micro * b;
		if (n > 1)
			run.stride = (microbatches_index(d, data_rank, 1) - micro) * b;
	}
	return run;
}

struct sample_run *layout_rank_samples(const struct train_opts *o,
	const struct microbatches *d, int ranks, int64_t first)
{
	struct sample_run *runs = xcalloc((size_t)ranks, sizeof(*runs));
	for (int r = 0; r < ranks; r++)
		runs[r] = rank_samples(
			o, d, layout_data_rank(o->resolved.degree, r), first);
	return runs;
}

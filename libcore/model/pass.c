/* Forward and backward of the model: the order of units, and calls of the store between them. */
#include "data/offsets.h"
#include "model/router.h"

#include <math.h>

/* ---- rotary positions ------------------------------------------------------------ */

/* Returns a RoPE frequency scaled as in Llama 3.1 (Dubey et al. 2024): stretches long wavelengths,
 * keeps short ones, interpolates between them. */
static double llama3_scale(const struct model_config *c, double frequency)
{
	const double two_pi = 6.283185307179586;
	double wavelength = two_pi / frequency, original = (double)c->rope_original;
	if (wavelength < original / c->rope_high)
		return frequency;
	if (wavelength > original / c->rope_low)
		return frequency / c->rope_factor;
	double smooth =
		(original / wavelength - c->rope_low) / (c->rope_high - c->rope_low);
	return (1 - smooth) * frequency / c->rope_factor + smooth * frequency;
}

/* Returns the channel pair (a fraction) that rotates `times` times in the original context. */
static double pair_with_rotations(
	const struct model_config *c, double times, double channels)
{
	const double two_pi = 6.283185307179586;
	double original = (double)c->rope_original;
	return channels * log(original / (times * two_pi)) / (2 * log(c->rope_theta));
}

/* Returns the frequency of pair j scaled as in YaRN (Peng et al. 2023) and its authors' code: keeps
 * pairs that rotate often in the original context, stretches others, interpolates between. */
static double yarn_scale(
	const struct model_config *c, double frequency, int64_t j, int64_t channels)
{
	double n = (double)channels;
	double low = fmax(floor(pair_with_rotations(c, c->rope_fast, n)), 0);
	double high = fmin(ceil(pair_with_rotations(c, c->rope_slow, n)), n - 1);
	high += low == high ? 0.001 : 0;
	double stretched = fmin(fmax(((double)j - low) / (high - low), 0), 1);
	return frequency * (1 - stretched) + frequency / c->rope_factor * stretched;
}

double rope_frequency(const struct model *m, int64_t layer, int64_t j)
{
	const struct model_config *c = &m->c;
	bool local = c->rope_local_theta > 0 && layer_has_window(c, layer);
	int64_t channels = c->rotary ? c->rotary : m->head_dim;
	double theta = local ? c->rope_local_theta : c->rope_theta;
	double f = pow(theta, -2.0 * (double)j / (double)channels);
	if (2 * j >= channels)
		return 0;
	switch (local ? ROPE_PLAIN : c->rope_scaling) {
	case ROPE_LINEAR:
		return f / c->rope_factor;
	case ROPE_LLAMA3:
		return llama3_scale(c, f);
	case ROPE_YARN:
		return yarn_scale(c, f, j, channels);
	default:
		return f;
	}
}

double rope_amplitude(const struct model *m)
{
	const struct model_config *c = &m->c;
	if (c->rope_scaling != ROPE_YARN)
		return 1;
	return c->rope_attention > 0 ? c->rope_attention : 0.1 * log(c->rope_factor) + 1;
}

/* Sets rope[t] to the cosines, then the sines, of t times the frequency of each channel pair. */
static void fill_rope(const struct model *m, float *rope)
{
	int64_t half = m->head_dim / 2;
	for (int64_t j = 0; j < half; j++) {
		double f = rope_frequency(m, 0, j), a = f > 0 ? rope_amplitude(m) : 1;
		for (int64_t t = 0; t < m->c.context; t++) {
			rope[t * m->head_dim + j] = (float)(a * cos((double)t * f));
			rope[t * m->head_dim + half + j] =
				(float)(a * sin((double)t * f));
		}
	}
}

/* Allocates and fills [context][head_dim] in device memory; NULL: no rotary positions. */
static float *make_rope(const struct model *m, struct device *d, struct arena *run)
{
	int64_t n = m->c.context * m->head_dim;
	if (!m->arch->rope)
		return NULL;
	float *rope = arena_floats(run, n);
	if (arena_is_measuring(run))
		return rope;
	scoped_ptr float *host = xcalloc((size_t)n, sizeof(*host));
	fill_rope(m, host);
	device_put(d, rope, host, (size_t)n * sizeof(*host));
	return rope;
}

/* ---- initialization -------------------------------------------------------------- */

/* Divides the virtual slices and chunks equally among the ranks of the tp and cp axes. */
static void assign_virtual(struct pass *p)
{
	const struct mesh *mesh = p->c.mesh;
	const struct model *m = p->m;
	BUG_ON(m->tp % mesh->degree[AXIS_TP] || m->cp % mesh->degree[AXIS_CP]);
	int slices = m->tp / mesh->degree[AXIS_TP];
	int chunks = m->cp / mesh->degree[AXIS_CP];
	p->tp = (struct slices){.axis = mesh->axis[AXIS_TP],
		.n = m->tp,
		.first = mesh->coord[AXIS_TP] * slices,
		.local = slices,
		.sp = p->c.sp,
		.async = p->c.async_tp};
	p->cp = (struct chunks){.axis = mesh->axis[AXIS_CP],
		.n = m->cp,
		.first = mesh->coord[AXIS_CP] * chunks,
		.local = chunks,
		.context = m->c.context,
		.gather = p->c.gather_kv};
	if (p->c.decode_rows) { /* no context parallelism: one chunk */
		p->cp.n = p->cp.local = 1;
		p->cp.first = 0;
	}
}

/* Copies the positions of all local rows to the device; all micro-batches have the same. */
static void copy_positions(struct pass *p)
{
	int64_t seq_rows = p->rows / p->c.batch;
	size_t n_bytes = (size_t)(p->rows * p->cp.local) * sizeof(*p->in.pos);
	for (int i = 0; i < p->cp.local; i++)
		for (int64_t b = 0; b < p->c.batch; b++)
			chunk_positions(&p->cp, p->cp.first + i,
				p->in.host_pos + i * p->rows + b * seq_rows);
	device_put(p->d, p->in.pos, p->in.host_pos, n_bytes);
}

/* Sets the ranks that divide the experts. A rank has room for some multiple of the balanced number
 * of rows, at most for all rows that the group can send. */
static void open_dispatch(struct pass *p)
{
	const struct model_config *c = &p->m->c;
	int ep = (int)max64(1, p->store->c.part.ep);
	int64_t rows = p->rows * p->cp.local, balanced = rows * c->experts_per_token;
	int64_t most = ep * rows * min64(c->experts_per_token, c->experts / ep);
	int64_t room = (int64_t)ceil(p->c.expert_room * (double)balanced);
	int64_t capacity = ep == 1		  ? balanced
			   : p->c.expert_room > 0 ? min64(room, most)
						  : most;
	struct comm *group = mesh_group(p->c.mesh,
		(struct mesh_part){.axes = AXIS_BIT(AXIS_DP) | AXIS_BIT(AXIS_FSDP) |
					   AXIS_BIT(AXIS_CP),
			.data_run = ep,
			.apart = true});
	dispatch_open(&p->experts, &(struct dispatch_config){.c = group,
					   .d = p->d,
					   .experts = (int)c->experts,
					   .chunks = p->cp.local,
					   .rows = balanced,
					   .capacity = capacity});
}

void pass_init(struct pass *p, struct model *m, struct device *d, struct store *store,
	const struct pass_config *c, struct arena *run)
{
	*p = (struct pass){.c = *c,
		.ops = {d->k->linear_fwd, attend_all_chunks, head_loss, NULL},
		.m = m,
		.d = d,
		.store = store,
		.recompute_every = 1,
		.lowest = model_first_trained_unit(m),
		.micro = {.counted = c->batch}};
	assign_virtual(p);
	p->rows = c->decode_rows ? c->decode_rows : c->batch * m->c.context / m->cp;
	p->stream_rows = slice_rows(&p->tp, p->rows, &p->first_row);
	if (m->c.experts)
		open_dispatch(p);
	size_t ids = (size_t)(p->rows * p->cp.local) * sizeof(int32_t);
	p->in.pos = arena_alloc(run, ids);
	p->in.tokens = arena_alloc(run, ids);
	p->in.targets = arena_alloc(run, ids);
	p->in.doc_pos = c->documents ? arena_alloc(run, ids) : p->in.pos;
	p->in.start = c->documents ? arena_alloc(run, ids) : NULL;
	p->loss = arena_alloc(run, sizeof(*p->loss));
	p->step = arena_alloc(run, sizeof(*p->step));
	router_open(p, run);
	p->rope = make_rope(m, d, run);
	linear_alloc_weight_casts(p, run);
	if (arena_is_measuring(run))
		return;
	p->in.host_pos = xmalloc(ids);
	p->in.host_ids = xmalloc((c->documents ? 4 : 2) * ids);
	if (!c->decode_rows)
		copy_positions(p);
	pass_loss_begin(p);
	router_reset_load(p);
}

void pass_release(struct pass *p)
{
	free(p->in.host_pos);
	free(p->in.host_ids);
	p->in = (struct pass_rows){0};
	dispatch_close(&p->experts);
}

void pass_step_begin(struct pass *p, const struct pass_step *step)
{
	device_put(p->d, p->step, step, sizeof(*step));
}

void pass_loss_begin(struct pass *p)
{
	router_begin(p);
	p->d->k->zero(p->d, mat(p->loss, 1, EXACT_FLOATS));
}

struct exact pass_loss(struct pass *p)
{
	struct exact loss = {0};
	device_get(p->d, &loss, p->loss, sizeof(loss));
	return loss;
}

/* Sets start[row] of each local row: the position in its window at which its document begins. */
static void find_document_starts(
	const struct pass *p, const int32_t *windows, int32_t *start)
{
	int64_t seq_rows = p->rows / p->c.batch, context = p->m->c.context;
	scoped_ptr int32_t *all = xmalloc((size_t)context * sizeof(*all));
	for (int64_t b = 0; b < p->c.batch; b++, windows += context + 1) {
		for (int64_t t = 0, first = 0; t < context; t++) {
			first = windows[t] & DOCUMENT_BEGINS ? t : first;
			all[t] = (int32_t)first;
		}
		for (int64_t i = 0; i < p->cp.local * seq_rows; i++) {
			int64_t row =
				i / seq_rows * p->rows + b * seq_rows + i % seq_rows;
			start[row] = all[p->in.host_pos[row]];
		}
	}
}

/* Returns the id of a target token without flags; -1: a context token, which is not a target. */
static int32_t target_token(int32_t token)
{
	return token & TOKEN_CONTEXT ? -1 : token & ~TOKEN_FLAGS;
}

/* (Targets ignore documents: the last token of a document predicts the first of the next.) */
void pass_load(struct pass *p, const int32_t *windows)
{
	int64_t seq_rows = p->rows / p->c.batch, window = p->m->c.context + 1;
	int64_t n = p->cp.local * p->rows;
	size_t n_bytes = (size_t)n * sizeof(*p->in.tokens);
	int32_t *tokens = p->in.host_ids, *targets = tokens + n;
	int32_t *start = targets + n, *doc_pos = start + n;
	for (int64_t i = 0; i < n; i++) {
		const int32_t *from = windows + i % p->rows / seq_rows * window;
		tokens[i] = from[p->in.host_pos[i]] & ~TOKEN_FLAGS;
		targets[i] = target_token(from[p->in.host_pos[i] + 1]);
	}
	device_put(p->d, p->in.tokens, tokens, n_bytes);
	device_put(p->d, p->in.targets, targets, n_bytes);
	if (!p->c.documents)
		return;
	find_document_starts(p, windows, start);
	for (int64_t i = 0; i < n; i++)
		doc_pos[i] = p->in.host_pos[i] - start[i];
	device_put(p->d, p->in.start, start, n_bytes);
	device_put(p->d, p->in.doc_pos, doc_pos, n_bytes);
}

const char *const recompute_names[] = {
	"none", "selective", "matmuls", "full", "auto", NULL};

void pass_recompute(
	struct pass *p, enum recompute how, int64_t every, struct arena *micro)
{
	BUG_ON(how == RECOMPUTE_AUTO);
	p->recompute = how;
	p->recompute_every = every;
	block_alloc_shared(p, p->shared, micro);
}

/* Returns the lowest layer of the stage with a backward, or st->end. */
static int64_t first_backward_layer(const struct pass *p, const struct stage *st)
{
	return min64(st->end, max64(st->first, p->lowest - 1));
}

/* Returns the first layer of the stage that has activations of the same shapes as `layer`. */
static int64_t first_layer_like(
	const struct pass *p, const struct stage *st, int64_t layer)
{
	int64_t l = st->first;
	while (model_layer_kind(p->m, l) != model_layer_kind(p->m, layer))
		l++;
	return l;
}

void acts_alloc(
	const struct pass *p, const struct stage *st, struct acts *a, struct arena *micro)
{
	int64_t n = st->end - st->first, rows = p->cp.local * p->stream_rows;
	BUG_ON(n < 1);
	a->block = xcalloc((size_t)n, sizeof(*a->block));
	a->begin = xcalloc((size_t)n + 1, sizeof(*a->begin));
	a->x = a->x_out = mat_alloc(micro, rows, p->m->c.dim, DT_F32);
	a->dx = mat_alloc(micro, rows, p->m->c.dim, DT_F32);
	a->slots = router_alloc_slots(p, micro);
	/* layers without a backward share the activations of the first one of their kind */
	int64_t lowest = first_backward_layer(p, st) - st->first;
	for (int64_t i = 0; i < n; i++) {
		a->begin[i] = (int64_t)arena_mark(micro);
		int64_t like = first_layer_like(p, st, st->first + i) - st->first;
		if (i < lowest && like < i)
			a->block[i] = a->block[like];
		else
			block_alloc(p, st->first + i, a->x, &a->block[i], micro);
	}
	a->begin[n] = (int64_t)arena_mark(micro);
	a->x_in = a->block[0].sub[0].x;
	if (a->block->x)
		a->x_in = mat_typed(a->block->x, rows, p->m->c.dim, p->c.residual);
	if (a->block->x && !st->heads)
		a->x_out = mat_alloc(micro, rows, p->m->c.dim, p->c.residual);
}

struct block_grads *grads_alloc(
	const struct pass *p, const struct stage *st, struct arena *micro)
{
	int64_t n = st->end - st->first;
	struct block_grads *g = xcalloc((size_t)n, sizeof(*g));
	for (int64_t i = first_backward_layer(p, st) - st->first; i < n; i++)
		block_alloc_grads(p, st->first + i, &g[i], micro);
	return g;
}

void acts_release(struct acts *a)
{
	free(a->block);
	free(a->begin);
	*a = (struct acts){0};
}

/* ---- the passes ------------------------------------------------------------------ */

static int layer_unit(int64_t layer)
{
	return 1 + (int)layer;
}

static int head_unit(const struct pass *p)
{
	return p->m->n_units - 1;
}

int stage_first_unit(const struct pass *p, const struct stage *st, bool backward)
{
	if (backward)
		return first_backward_layer(p, st) < st->end ? layer_unit(st->end - 1)
							     : -1;
	return st->embeds ? 0 : layer_unit(st->first);
}

/* Returns true if this rank calls the layers. With tiles, which are gathered within a layer, or if
 * ranks divide the experts, even a rank without a micro-batch does: from stale activations, and its
 * leaves are not used. */
static bool runs_layers(const struct pass *p)
{
	bool serves_others = p->experts.c && p->experts.c->size > 1;
	return !p->micro.empty || p->store->c.tile || serves_others;
}

/* Begins the profiler range of a block; device_range_end() ends it. */
static void begin_block_range(struct pass *p, int64_t layer)
{
	char name[NUM_TEXT];
	snprintf(name, sizeof(name), "layers.%lld", (long long)layer);
	device_range(p->d, name);
}

/* Runs the forward of the stage's blocks, and gathers each unit's parameters before its use. */
static void forward_blocks(struct pass *p, const struct stage *st, struct acts *a)
{
	for (int64_t l = st->first; l < st->end; l++) {
		struct block_acts *b = &a->block[l - st->first];
		bool more = l + 1 < st->end;
		store_use(p->store, layer_unit(l),
			more	    ? layer_unit(l + 1)
			: st->heads ? head_unit(p)
				    : UNIT_AFTER);
		begin_block_range(p, l);
		if (runs_layers(p)) {
			linear_clear_amax(p, b->amax);
			block_restore_input(p, b, l > st->first || st->embeds);
			block_forward(p, l, b, more ? &b[1].sub[0].x : &a->x);
		}
		device_range_end(p->d);
		store_done(p->store, layer_unit(l), false);
	}
}

enum {
	EMBEDDING_UNIT = 0,
	USE_EMBEDDING = 0,
	USE_OUTPUT = 1
}; /* uses: see store_reduce() */

/* Runs the head, in training with its backward, and then reduces its leaves. The leaves of a tied
 * table are complete after the embedding's backward, if it is on the same stage. */
static void forward_head(struct pass *p, const struct stage *st, struct acts *a)
{
	bool tied = p->m->tie && !param_is_tiled(p, p->m->output);
	store_use(p->store, head_unit(p), tied ? EMBEDDING_UNIT : UNIT_AFTER);
	if (tied)
		store_use(p->store, EMBEDDING_UNIT, UNIT_AFTER);
	device_range(p->d, "head");
	if (runs_layers(p))
		p->ops.head(p, a->x, a->dx);
	device_range_end(p->d);
	if (tied)
		store_done(p->store, EMBEDDING_UNIT, false);
	store_done(p->store, head_unit(p), false);
	if (!p->micro.train)
		return;
	store_reduce(p->store, head_unit(p), 0);
	if (tied && !st->embeds)
		store_reduce(p->store, EMBEDDING_UNIT, USE_OUTPUT);
}

void model_forward(struct pass *p, const struct stage *st, struct acts *a)
{
	router_forward_begins(p, st, a->slots);
	if (st->embeds) {
		store_use(p->store, EMBEDDING_UNIT, layer_unit(st->first));
		if (runs_layers(p))
			embed_forward(p, a->block[0].sub[0].x);
		store_done(p->store, EMBEDDING_UNIT, false);
	}
	forward_blocks(p, st, a);
	router_forward_ends(p, st);
	if (st->heads)
		forward_head(p, st, a);
	else if (a->block->x && runs_layers(p))
		p->d->k->narrow(p->d, a->x_out.p, a->x, a->x_out.type);
}

/* Runs the embedding's backward, if this stage trains it, and starts to reduce its gradients. */
static void backward_embedding(struct pass *p, const struct stage *st, struct acts *a)
{
	if (!st->embeds || p->lowest > 0)
		return;
	if (runs_layers(p))
		embed_backward(p, a->dx);
	store_reduce(p->store, EMBEDDING_UNIT, USE_EMBEDDING);
}

/* Returns the unit that the backward uses after this layer's; UNIT_AFTER: none. */
static int next_backward_unit(const struct pass *p, const struct stage *st, int64_t layer)
{
	return layer > first_backward_layer(p, st) ? layer_unit(layer - 1) : UNIT_AFTER;
}

void model_backward(struct pass *p, const struct stage *st, struct acts *a)
{
	size_t mark = arena_mark(p->d->scratch);
	int64_t lowest = first_backward_layer(p, st);
	router_backward_begins(p, a->slots);
	struct grad_copy copy = grad_copy_alloc(p, lowest);
	for (int64_t l = st->end - 1; l >= lowest; l--) {
		store_use(p->store, layer_unit(l), next_backward_unit(p, st, l));
		begin_block_range(p, l);
		if (runs_layers(p))
			block_backward(p, l, &a->block[l - st->first], a->dx, &copy);
		device_range_end(p->d);
		store_done(p->store, layer_unit(l), true);
		store_reduce(p->store, layer_unit(l), 0);
	}
	arena_reset(p->d->scratch, mark);
	backward_embedding(p, st, a);
}

void model_backward_x(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g)
{
	int64_t lowest = first_backward_layer(p, st);
	router_backward_begins(p, a->slots);
	for (int64_t l = st->end - 1; l >= lowest; l--) {
		struct block_acts *b = &a->block[l - st->first];
		store_use(p->store, layer_unit(l), next_backward_unit(p, st, l));
		begin_block_range(p, l);
		if (runs_layers(p))
			block_backward_x(p, l, b, &g[l - st->first], a->dx);
		device_range_end(p->d);
		store_done(p->store, layer_unit(l), true);
	}
}

/* (Parameters are needed for recomputation only.) */
void model_backward_w(
	struct pass *p, const struct stage *st, struct acts *a, struct block_grads *g)
{
	int64_t lowest = first_backward_layer(p, st);
	bool recomputes = p->recompute != RECOMPUTE_NONE;
	for (int64_t l = st->end - 1; l >= lowest; l--) {
		struct block_acts *b = &a->block[l - st->first];
		if (recomputes)
			store_use(p->store, layer_unit(l), next_backward_unit(p, st, l));
		begin_block_range(p, l);
		if (runs_layers(p))
			block_backward_w(p, l, b, &g[l - st->first]);
		device_range_end(p->d);
		if (recomputes)
			store_done(p->store, layer_unit(l), true);
		store_reduce(p->store, layer_unit(l), 0);
	}
	backward_embedding(p, st, a);
}

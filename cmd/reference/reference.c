/* Computes loss and gradients of a batch, in float64 or by the trainer. */
#include "reference/reference.h"

#include "foreign/foreign.h"

#include "data/offsets.h"
#include "engine/options.h"
#include "engine/step.h"
#include "plan/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int weights_read(struct weights *w, const struct ckpt_view *v, struct err *e)
{
	*w = (struct weights){0};
	if (convert_model(v, &w->m, e))
		return -1;
	w->w = xcalloc((size_t)w->m.n_tensors, sizeof(*w->w));
	for (int i = 0; i < w->m.n_tensors; i++) {
		w->w[i] = ckpt_view_tensor(v, ckpt_view_find(v, w->m.tensors[i].name), e);
		if (!w->w[i])
			return -1;
	}
	return 0;
}

static void free_tensors(float **t, int n)
{
	for (int i = 0; t && i < n; i++)
		free(t[i]);
	free(t);
}

void weights_free(struct weights *w)
{
	free_tensors(w->w, w->m.n_tensors);
	free(w->adapters);
	model_release(&w->m);
	*w = (struct weights){0};
}

static void gradients_init(struct gradients *g, const struct model *m)
{
	*g = (struct gradients){
		.n = m->n_tensors, .g = xcalloc((size_t)m->n_tensors, sizeof(*g->g))};
}

/* Sets g->norm to the norm of all gradients. */
static void set_norm(struct gradients *g, const struct model *m)
{
	double squares = 0;
	for (int i = 0; i < g->n; i++)
		for (int64_t j = 0; g->g[i] && j < tensor_size(&m->tensors[i]); j++)
			squares += (double)g->g[i][j] * (double)g->g[i][j];
	g->norm = sqrt(squares);
}

void gradients_free(struct gradients *g)
{
	free_tensors(g->g, g->n);
	*g = (struct gradients){0};
}

/* Returns true for the weights of a norm, of the stream or of queries or keys. */
static bool is_norm(const struct tensor *t)
{
	return t->ndim == 1 && t->init == INIT_ONE;
}

/* Returns the factor of a tensor's output, and so of its gradient, in a variant. */
static double variant_scale(const struct tensor *t, const struct variant *how)
{
	for (size_t i = 0; i < ARRAY_LEN(how->zeroed) && how->zeroed[i]; i++)
		if (strstr(t->name, how->zeroed[i]))
			return 0;
	for (size_t i = 0; i < ARRAY_LEN(how->scaled) && how->scaled[i]; i++)
		if (strstr(t->name, how->scaled[i]))
			return how->scale;
	return 1;
}

/* Returns a pseudo-random value from -1 to 1 for element j of tensor i. */
static double noise_at(int i, int64_t j)
{
	const int64_t at[2] = {i, j};
	return (double)(hash_bytes(at, sizeof(at), 0) >> 11) * 0x1p-52 - 1;
}

/* Copies the first n_tensors tensors to doubles, changed by the variant (NULL: unchanged). */
static double **copy_to_doubles(
	float *const *x, const struct model *m, int n_tensors, const struct variant *how)
{
	double **all = xcalloc((size_t)m->n_tensors, sizeof(*all));
	for (int i = 0; i < n_tensors; i++) {
		const struct tensor *t = &m->tensors[i];
		int64_t n = tensor_size(t);
		double scale = how ? variant_scale(t, how) : 1,
		       noise = how ? how->noise : 0;
		double offset = how && is_norm(t) ? how->norm_offset : 0;
		all[i] = xmalloc((size_t)n * sizeof(**all));
		for (int64_t j = 0; j < n; j++)
			all[i][j] = scale * (double)x[i][j] *
					    (noise > 0 ? 1 + noise * noise_at(i, j) : 1) +
				    offset;
	}
	return all;
}

/* Exchanges the values of two layers that have the same shapes. */
static void exchange_layers(const struct model *m, double **values, const int layers[2])
{
	int tensors[2][64], n[2] = {0};
	for (int i = 0; i < m->n_tensors && layers[0] != layers[1]; i++)
		for (int k = 0; k < 2; k++)
			if (m->tensors[i].unit == layers[k] + 1 && n[k] < 64)
				tensors[k][n[k]++] = i;
	bool same_shapes = n[0] == n[1];
	for (int j = 0; j < n[0] && same_shapes; j++)
		same_shapes = !memcmp(m->tensors[tensors[0][j]].dims,
			m->tensors[tensors[1][j]].dims, sizeof(m->tensors->dims));
	for (int j = 0; j < n[0] && same_shapes; j++) {
		double *x = values[tensors[0][j]];
		values[tensors[0][j]] = values[tensors[1][j]];
		values[tensors[1][j]] = x;
	}
}

/* Sets *g to the sums times the variant's factors (how: may be NULL). Frees the arrays of sums. */
static void gradients_from_sums(struct gradients *g, const struct model *m,
	const struct variant *how, double **sums)
{
	gradients_init(g, m);
	for (int i = 0; i < m->n_tensors; i++) {
		int64_t n = tensor_size(&m->tensors[i]);
		double scale = how ? variant_scale(&m->tensors[i], how) : 1;
		if (sums[i])
			g->g[i] = xmalloc((size_t)n * sizeof(float));
		for (int64_t j = 0; sums[i] && j < n; j++)
			g->g[i][j] = (float)(scale * sums[i][j]);
		free(sums[i]);
	}
	set_norm(g, m);
}

bool reference_can_train(
	const struct weights *w, const struct token_batch *b, const char **why)
{
	*why = b->weights ? "targets have weights" : NULL;
	if (w->m.c.experts && w->m.c.router_bias_rate > 0 &&
		w->m.c.router == ROUTER_SOFTMAX)
		*why = "pt-train has no bias of softmax routers";
	if (has_balance_loss(w) && w->counts_plain && w->counted->plain)
		*why = "its balance loss does not count the choices of experts";
	if (has_balance_loss(w) && batch_divisor(b) != (double)b->counted)
		*why = "the loss has another divisor than the balance loss";
	if (w->padding && w->m.output == w->m.tokens)
		*why = "pad_token_id has no gradient in a table that is also the output layer";
	if (model_unsupported_part(&w->m))
		*why = "pt-train has no kernels for this model";
	if (w->m.positions && b->length > w->m.c.context)
		*why = "the sequences are longer than the table of positions";
	for (int64_t i = 0; i < b->n * b->length; i++)
		if (b->pos[i] != i % b->length - b->start[i])
			*why = "positions do not begin at 0 in each document";
	for (int64_t i = 0; i + 1 < b->n * b->length; i++)
		if ((i + 1) % b->length && b->targets[i] >= 0 &&
			b->targets[i] != b->tokens[i + 1])
			*why = "some targets are not the next tokens";
	return !*why;
}

struct collector_state {
	struct trainer *t;
	struct gradients *g;
};

/* Copies a part of a gradient from the trainer to its whole tensor. */
static void collect_part(void *collector, const struct part *part)
{
	struct collector_state *c = collector;
	float *gradient = c->g->g[part->t - c->t->model.tensors];
	for (int64_t i = 0; i < part->rows; i++)
		memcpy(gradient + tensor_index(part->t, part->slice, part->row + i),
			part->g + i * part->cols, (size_t)part->cols * sizeof(*gradient));
}

static void collect_gradients(void *collector)
{
	struct collector_state *c = collector;
	store_for_each_part(c->t->store, true, STORE_BIT(STORE_GRAD), 0, collect_part, c);
}

/* Sets options for a step with learning rate 0 and one sequence per micro-batch. */
static int trainer_options(struct train_opts *o, const struct weights *w,
	const struct token_batch *b, enum precision precision, struct err *e)
{
	if (opts_from_text(&train_program, o, "optimizer = sgd\nmomentum = 0\nclip = 0\n",
		    false, e))
		return -1;
	o->model = w->m.c;
	o->model.context = b->length;
	o->model.virtual_degrees = "";
	o->model.dropout = 0;
	o->model.router_bias_rate = 0;
	o->batch = b->n;
	o->micro_batch = has_balance_loss(w) ? b->n / max64(1, w->micro_batches) : 1;
	o->model.balance_loss = has_balance_loss(w) ? o->model.balance_loss : 0;
	o->steps = 1;
	o->lr = o->min_lr = 0;
	o->warmup = 0;
	o->dtype = (int)precision;
	o->packing = b->documents ? PACKING_DOCUMENTS : PACKING_STREAM;
	return options_check(o, e);
}

/* Packs the batch into the trainer's windows [sequences][length + 1], with flags in the tokens. */
static int32_t *pack_windows(const struct token_batch *b)
{
	int64_t n = b->length;
	int32_t *w = xmalloc((size_t)(b->n * (n + 1)) * sizeof(*w));
	for (int64_t i = 0; i < b->n; i++) {
		for (int64_t t = 0; t < n; t++) {
			int64_t at = i * n + t;
			bool begins = b->documents && b->start[at] == t;
			bool context = t && b->targets[at - 1] < 0;
			w[at + i] = b->tokens[at] | (begins ? DOCUMENT_BEGINS : 0) |
				    (context ? TOKEN_CONTEXT : 0);
		}
		int32_t last = b->targets[i * n + n - 1];
		w[i * (n + 1) + n] = last < 0 ? TOKEN_CONTEXT : last;
	}
	return w;
}

/* Copies the weights to the trainer, whose table of positions has only the batch's positions. */
static void store_weights(struct trainer *t, const struct weights *w)
{
	for (int i = 0; i < own_tensors(w); i++)
		store_write_rows(t->store, STORE_PARAM, i, 0, t->model.tensors[i].dims[0],
			w->w[i]);
	store_updated(t->store, false);
}

/* Replaces the gradients of matrices by the gradients of their adapters. */
static void replace_by_adapters(const struct weights *w, struct gradients *g)
{
	double **sums = copy_to_doubles(g->g, &w->m, own_tensors(w), NULL),
	       loss = g->loss, size = g->size;
	free_tensors(g->g, g->n);
	adapt_gradients(w, NULL, 1, sums);
	gradients_from_sums(g, &w->m, NULL, sums);
	free(sums);
	g->loss = loss;
	g->size = size;
}

int reference_trainer(const struct weights *w, const struct token_batch *b,
	enum precision precision, struct gradients *g, struct err *e)
{
	struct train_opts o;
	struct trainer t;
	struct step_result r;
	struct comm *world = comm_self("alone");
	struct dataset data = {.tokens = {b->length + 1}, .counted = b->masked};
	data.tokenizer.vocab.n = w->m.c.vocab;
	if (trainer_options(&o, w, b, precision, e) ||
		trainer_open(&t, &o, world, &data, NULL, e))
		return -1;
	gradients_init(g, &w->m);
	for (int i = 0; i < own_tensors(w); i++)
		g->g[i] = xcalloc((size_t)tensor_size(&w->m.tensors[i]), sizeof(float));
	struct collector_state c = {&t, g};
	int32_t *windows = pack_windows(b);
	store_weights(&t, w);
	t.before_update = collect_gradients;
	t.before_update_with = &c;
	step_run_on(&t, windows, NULL, &r);
	/* (the trainer divides by the number of targets that count) */
	const double factor = (double)b->counted / batch_divisor(b);
	g->loss = factor * (double)r.loss;
	g->size = fabs(g->loss);
	for (int i = 0; i < own_tensors(w); i++)
		for (int64_t j = 0; j < tensor_size(&w->m.tensors[i]); j++)
			g->g[i][j] = (float)(factor * (double)g->g[i][j]);
	if (w->n_adapters)
		replace_by_adapters(w, g);
	const int64_t dim = w->m.tokens->dims[1];
	if (w->padding)
		memset(g->g[w->m.tokens - w->m.tensors] + (w->padding - 1) * dim, 0,
			(size_t)dim * sizeof(float));
	set_norm(g, &w->m);
	int rc = 0;
	if (r.bad)
		rc = err_set(e, EX_DATAERR, "the reference step is not finite: %s",
			r.why.s ? r.why.s : "loss or gradients");
	str_free(&r.why);
	trainer_close(&t);
	free(windows);
	comm_free(world);
	return rc;
}

/* Returns the first position of the chunk (n per sequence) that contains position t. */
static int64_t chunk_begin(int64_t t, int64_t length, int n)
{
	return (t * n / length) * length / n;
}

/* Sets s->targets to a bug's targets of the sequence at offset `at`, in out[length]; TARGETS:
 * none. */
static void set_targets(struct sequence *s, int32_t *out, const struct token_batch *b,
	int64_t at, enum targets which)
{
	const int32_t *tokens = b->tokens + at, *targets = b->targets + at;
	int64_t n = b->length, end = 0;
	if (!which)
		return;
	for (int64_t i = 0; i < b->n * n; i++) /* (the last inputs may have no labels) */
		end = b->targets[i] >= 0 ? max64(end, i % n + 1) : end;
	for (int64_t t = 0; t < n; t++) {
		int32_t next = t + 1 < n ? tokens[t + 1] : targets[t];
		int64_t from = which == TARGETS_WITHOUT_FIRST	 ? 1
			       : which == TARGETS_OF_SECOND_HALF ? n / 2
								 : 0;
		out[t] = t < from		      ? -1
			 : from			      ? targets[t]
			 : which == TARGETS_UNSHIFTED ? tokens[t]
			 : which == TARGETS_UNSHIFTED_IF_COUNTED
				 ? (targets[t] < 0 ? -1 : tokens[t])
			 : which == TARGETS_ALL_MASKED_ARE_ZERO
				 ? (targets[t] < 0 ? 0 : targets[t])
			 : which == TARGETS_UNMASKED ? next
			 : which == TARGETS_MASKED_ARE_ZERO
				 ? (t < end && targets[t] < 0 ? 0 : targets[t])
			 : t + 1 == n			 ? -1
			 : which == TARGETS_WITHOUT_LAST ? targets[t]
							 : targets[t + 1];
	}
	s->targets = out;
}

/* Sets positions that continue across documents, restart in each chunk, are shifted, reversed, or
 * all 0. rows: number of rows of the table of positions. */
static void set_positions(
	struct sequence *s, int32_t *pos, const struct variant *how, int64_t rows)
{
	if (!how->run_on && !how->restart && !how->shift && !how->reversed && !how->still)
		return;
	for (int64_t t = 0; t < s->n; t++) {
		int64_t first = how->restart ? max64(chunk_begin(t, s->n, how->restart),
						       s->start[t])
					     : 0;
		int32_t from = how->restart ? s->pos[first] : 0;
		pos[t] = (how->run_on ? (int32_t)t : s->pos[t] - from) + how->shift;
		if (how->reversed)
			pos[t] = (int32_t)s->n - 1 - pos[t];
		pos[t] = how->still ? 0 : (int32_t)min64(pos[t], rows - 1);
	}
	s->pos = pos;
}

/* Returns the last position that position t attends to, for masks by chunk or without t itself. */
static int64_t last_visible(
	const struct sequence *s, int64_t t, const struct variant *how)
{
	const int64_t n = s->n;
	if (how->mask >= MASK_NOT_SELF)
		return t - (how->mask == MASK_NOT_SELF || s->start[t] < t);
	int64_t chunk = t * how->mask_chunks / n;
	bool sees_chunk = how->mask == MASK_ALL_CHUNKS || chunk == how->mask_chunks - 1;
	return sees_chunk ? (chunk + 1) * n / how->mask_chunks - 1 : t;
}

/* Sets the first and last position that each position attends to. */
static void set_mask(
	struct sequence *s, int32_t *start, int32_t *last, const struct variant *how)
{
	const int64_t n = s->n;
	for (int64_t t = 0; t < n; t++) {
		int64_t first = how->one_document ? 0 : s->start[t];
		if (how->unseen)
			first = max64(first, chunk_begin(t, n, how->unseen) -
						     how->before * (n / how->unseen));
		if (how->mask == MASK_NOT_FIRST)
			first = max64(first, t > 0);
		if (how->window)
			first = max64(first, t - how->window + 1);
		start[t] = (int32_t)first;
		bool border = how->mask == MASK_BORDER &&
			      chunk_begin(t + 1, n, how->mask_chunks) == t + 1;
		bool later = how->mask == MASK_ONE_LATER || border;
		last[t] = (int32_t)min64(n - 1, how->mask == MASK_NONE ? n : t + later);
		if (how->mask >= MASK_LAST_CHUNK)
			last[t] = (int32_t)last_visible(s, t, how);
	}
	s->start = start;
	if (how->mask == MASK_CHUNK_BY_CHUNK)
		s->chunk = n / how->mask_chunks;
	else if (how->mask)
		s->last = last;
}

/* Applies a variant to the sequence at offset `at`. scratch: [4][length], s points into it. */
static void apply_variant(struct sequence *s, int32_t *scratch,
	const struct token_batch *b, int64_t at, const struct variant *how, int64_t rows)
{
	set_targets(s, scratch, b, at, how->targets);
	set_positions(s, scratch + s->n, how, rows);
	set_mask(s, scratch + 2 * s->n, scratch + 3 * s->n, how);
}

/* Skips a layer, computes it twice, or exchanges two layers. */
static void change_layers(struct model *m, const struct path *path)
{
	const int64_t twice = path->kind == PATH_TWICE, layers = m->c.layers;
	struct block_tensors *blocks = xcalloc((size_t)layers + 1, sizeof(*blocks));
	if (path->kind == PATH_SWAPPED) {
		memcpy(blocks, m->blocks, (size_t)layers * sizeof(*blocks));
		blocks[path->layer] = m->blocks[path->other];
		blocks[path->other] = m->blocks[path->layer];
		m->blocks = blocks;
		return;
	}
	for (int64_t i = 0; i < layers; i++)
		blocks[i + (twice ? i > path->layer : -(i > path->layer))] = m->blocks[i];
	if (twice)
		blocks[path->layer + 1] = m->blocks[path->layer];
	m->blocks = blocks;
	m->c.layers += twice ? 1 : -1;
}

/* Returns the model with the variant's options and the same tensors. */
static struct model variant_model(const struct weights *w, const struct variant *how)
{
	struct model m = w->m;
	if (how->window &&
		m.c.window) /* instead of the model's window, in the same layers */
		m.c.window = INT32_MAX;
	if (how->act)
		m.act = (enum act_kind)how->act;
	if (how->rope_linear > 0) {
		m.c.rope_scaling = ROPE_LINEAR;
		m.c.rope_factor = how->rope_linear;
	}
	if (how->norm_eps > 0)
		m.c.norm_eps = how->norm_eps;
	if (how->other_gelu)
		m.act = act_is_gated(m.act) ? (enum act_kind)ACT_PLAIN_GELU
			: m.act == ACT_GELU ? ACT_GELU_TANH
					    : ACT_GELU;
	if (how->rope_theta > 0)
		m.c.rope_theta = how->rope_theta;
	if (how->rope_factor > 0) {
		m.c.rope_scaling = how->rope_factor > 1 ? ROPE_LLAMA3 : ROPE_PLAIN;
		m.c.rope_factor = how->rope_factor;
		m.c.rope_low = 1;
		m.c.rope_high = 4;
		m.c.rope_original = 8192;
	}
	if (how->change)
		how->change(&m);
	if (how->other_norm) {
		struct arch *arch = xmalloc(sizeof(*arch));
		*arch = *m.arch;
		arch->norm = arch->norm == NORM_LAYER ? NORM_RMS : NORM_LAYER;
		m.arch = arch;
	}
	if (how->function.path.kind >= PATH_SKIPPED)
		change_layers(&m, &how->function.path);
	return m;
}

/* Returns the targets' weights of the sequence at offset `at`: the batch's times the variant's;
 * NULL: all 1. product: [length], scratch. */
static const double *target_weights(const struct token_batch *b,
	const struct variant *how, int64_t at, double *product)
{
	const double *given = b->weights && !how->unweighted ? b->weights + at : NULL;
	const double *extra = how->weights ? how->weights + at : NULL;
	for (int64_t t = 0; t < b->length && given && extra; t++)
		product[t] = given[t] * extra[t];
	return given && extra ? product : given ? given : extra;
}

/* Returns which tensors need gradients: [n_tensors], allocated. */
static bool *list_needed_tensors(const struct weights *w, const bool *wanted)
{
	bool *needed = xcalloc((size_t)w->m.n_tensors, sizeof(*needed));
	if (w->n_adapters)
		mark_adapted_matrices(w, wanted, needed);
	for (int i = 0; i < w->m.n_tensors && !w->n_adapters; i++)
		needed[i] = !wanted || wanted[i];
	return needed;
}

/* Returns the rows from position `at` of the batch on. */
static struct target_rows target_rows_from(
	const struct target_rows *r, int64_t at, const struct model *m)
{
	return (struct target_rows){r->dy ? r->dy + at * m->c.dim : NULL,
		r->x ? r->x + at * m->c.ffn_dim : NULL, r->loss ? r->loss + at : NULL,
		r->dx ? r->dx + at * m->c.dim : NULL};
}

/* Returns true if something other than the scores influences the choice of experts. */
static bool has_plain_choices(const struct model *m)
{
	bool found = m->c.router_groups > 0;
	for (int i = 0; i < m->n_tensors && !found; i++)
		found = text_ends(m->tensors[i].name, ".router.bias");
	return found;
}

void choices_init(struct choices *x, const struct model *m, const struct token_batch *b)
{
	const int64_t n = m->c.layers * b->n * b->length, k = m->c.experts_per_token;
	*x = (struct choices){.positions = b->n * b->length,
		.ids = xcalloc((size_t)(n * k), sizeof(*x->ids)),
		.other = xcalloc((size_t)(n * ALTERNATIVES * k), sizeof(*x->other)),
		.margin = xcalloc((size_t)(n * ALTERNATIVES), sizeof(*x->margin)),
		.first = xcalloc((size_t)n, sizeof(*x->first)),
		.mass = xcalloc(
			(size_t)(m->c.layers * b->n * m->c.experts), sizeof(*x->mass))};
	for (int64_t i = 0; i < n * ALTERNATIVES; i++) /* (layers without experts) */
		x->margin[i] = INFINITY;
	if (!has_plain_choices(m))
		return;
	x->plain = xcalloc((size_t)(n * k), sizeof(*x->plain));
	x->plain_other = xcalloc((size_t)(n * k), sizeof(*x->plain_other));
	x->plain_margin = xcalloc((size_t)n, sizeof(*x->plain_margin));
	for (int64_t i = 0; i < n; i++)
		x->plain_margin[i] = INFINITY;
}

void choices_release(struct choices *x)
{
	free(x->ids);
	free(x->other);
	free(x->margin);
	free(x->mass);
	free(x->first);
	free(x->forced);
	free(x->plain);
	free(x->plain_other);
	free(x->plain_margin);
	*x = (struct choices){0};
}

void reference_float64(const struct weights *w, const struct token_batch *b,
	const struct variant *how, struct gradients *g)
{
	const struct model m = variant_model(w, how);
	const bool has_parts = how->part.kind == PART_RANKS ||
			       (how->part.kind && how->part.i == EACH_PART);
	const int n_parts = has_parts ? how->part.n : 1;
	const double adapter_scale = how->adapter_scale > 0 ? how->adapter_scale : 1;
	double **values = copy_to_doubles(w->w, &w->m, own_tensors(w), how), loss = 0,
	       size = 0;
	double **sums = xcalloc((size_t)(n_parts * m.n_tensors), sizeof(*sums));
	int32_t *scratch = xmalloc((size_t)(4 * b->length) * sizeof(*scratch));
	double *weight_scratch = xmalloc((size_t)b->length * sizeof(*weight_scratch));
	const struct float64 f = {&m, values, how->function, w->padding};
	bool *needed = list_needed_tensors(w, how->wanted);
	for (int i = 0; i < n_parts * m.n_tensors; i++)
		if (needed[i % m.n_tensors])
			sums[i] =
				xcalloc((size_t)tensor_size(&m.tensors[i % m.n_tensors]),
					sizeof(**sums));
	if (how->adapter_scale > 0)
		adapters_rescale(w, adapter_scale, values);
	exchange_layers(&w->m, values, how->exchanged);
	for (int64_t i = 0; i < b->n; i++) {
		int64_t at = i * b->length;
		struct sequence s = {b->length, b->tokens + at, b->targets + at,
			b->pos + at, b->start + at, NULL, 0,
			target_weights(b, how, at, weight_scratch), &size, NULL,
			how->choices, at, NULL,
			m.c.router_z_loss / (double)(b->n * b->length)};
		double *slopes = has_balance_loss(w) ? balance_slopes(w, b, i) : NULL;
		s.balance = slopes;
		struct target_rows rows;
		if (how->rows) {
			rows = target_rows_from(how->rows, at, &m);
			s.rows = &rows;
		}
		apply_variant(&s, scratch, b, at, how,
			m.positions ? m.positions->dims[0] : INT32_MAX);
		if (how->sequence < 0 || how->sequence == i)
			loss += float64_sequence(
				&f, &s, 1 / batch_divisor(b), &how->part, sums);
		free(slopes);
	}
	for (int r = 0; r < n_parts; r++) {
		adapt_gradients(w, how->wanted, adapter_scale, sums + r * m.n_tensors);
		gradients_from_sums(&g[r], &m, how, sums + r * m.n_tensors);
		g[r].loss = loss / batch_divisor(b);
		g[r].size = size / fabs(batch_divisor(b));
	}
	for (int i = 0; i < m.n_tensors; i++)
		free(values[i]);
	if (m.blocks != w->m.blocks)
		free(m.blocks);
	if (m.arch != w->m.arch)
		free((struct arch *)m.arch);
	free(weight_scratch);
	free(needed);
	free(sums);
	free(values);
	free(scratch);
}

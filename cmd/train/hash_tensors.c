/* Hashes of the tensors of some steps (--hash-tensors): parameters, activations, gradients,
 * optimizer state. They do not depend on the layout, so two runs with the same arithmetic have
 * the same file. Every rank hashes its own elements by their indices in the whole tensor, and
 * rank 0 adds the hashes. The index in an activation is (sample of the step, position, column). */
#include "train/train_internal.h"

#include "base/file.h"
#include "kernels/dtype_bits.h"

#include <math.h>

/* A rank's part of a tensor. Records of a tensor with the same `first` are copies of each other. */
struct record {
	struct tensor_hash sum;
	int64_t layer; /* -1: embedding; model.c.layers: head */
	int64_t order; /* position among the results of the layer, as computed */
	int64_t first; /* index of the first element in the whole tensor */
	int rank;
};

/* Adds a record of this rank without a hash; returns it, to be moved by the next call. */
static struct record *add_record(struct run *r, enum step_phase phase, int64_t layer)
{
	struct run_hashes *h = &r->hashes;
	h->record = xgrow(h->record, h->n, sizeof(*h->record));
	struct record *x = &h->record[h->n];
	*x = (struct record){.sum = {.step = h->step, .micro = -1, .phase = phase},
		.layer = layer,
		.rank = r->world->rank};
	x->order = h->n++;
	return x;
}

/* ---- values -------------------------------------------------------------------------- */

/* A matrix in host memory: fp32, or unchanged integers. */
struct host_mat {
	union {
		float *v;
		int32_t *ids;
	};
	void *to_free;
};

/* Widens values to fp32. Maps all fp16 NaNs to one, since devices produce different NaNs. */
static void widen_values(const void *from, float *to, int64_t n, enum dtype type)
{
	const uint16_t *x = from;
	for (int64_t i = 0; i < n; i++) {
		to[i] = widen_bits(x[i], type);
		if (type == DT_F16 && isnan(to[i]))
			to[i] = copysignf(NAN, to[i]);
	}
}

/* Returns a matrix in host memory, widened to fp32; the caller frees to_free. */
static struct host_mat to_host(struct device *d, struct mat x)
{
	struct host_mat m = {.v = x.p};
	int64_t n = mat_size(x);
	if (!d->discrete && x.type == DT_F32)
		return m;
	m.to_free = xmalloc((size_t)n * sizeof(float) + 1);
	m.v = m.to_free;
	if (x.type == DT_F32) {
		device_get(d, m.v, x.p, (size_t)n * sizeof(float));
		return m;
	}
	scoped_ptr void *half = xmalloc((size_t)mat_bytes(x) + 1);
	device_get(d, half, x.p, (size_t)mat_bytes(x));
	widen_values(half, m.v, n, x.type);
	return m;
}

/* ---- activations --------------------------------------------------------------------- */

void hashes_name_result(
	const struct model *m, const struct result *x, char *name, size_t size)
{
	if (x->extent == EXTENT_LEAF)
		snprintf(name, size, "%s%s", x->name, x->use ? ":output" : "");
	else if (x->at.layer >= 0 && x->at.layer < m->c.layers)
		snprintf(name, size, "layers.%lld.%s", (long long)x->at.layer, x->name);
	else
		snprintf(name, size, "%s", x->name);
}

/* Hashes the rows of a result of one chunk, by their indices in the whole tensor. */
static void hash_rows(struct run *r, const struct result *x, struct record *to)
{
	const struct pass *p = &r->t.pass;
	bool slice = x->extent == EXTENT_SLICE;
	int64_t seq_rows = p->rows / p->c.batch;
	int64_t width = x->x.cols * (slice ? p->tp.n : 1);
	int64_t col = slice ? (p->tp.first + x->at.slice) * x->x.cols : 0;
	struct host_mat m = to_host(&r->t.d, x->x);
	to->first = -1; /* without rows, it is not a copy of the first rows */
	for (int64_t i = 0; i < x->x.rows; i++) {
		int64_t row = x->first_row + i;
		int64_t sample = p->micro.first_sample + row / seq_rows;
		int64_t pos = p->in.host_pos[x->at.chunk * p->rows + row];
		int64_t first = (sample * p->m->c.context + pos) * width + col;
		to->first = i ? to->first : first;
		if (x->integers)
			tensor_hash_add_ints(
				&to->sum, m.ids + i * x->x.cols, x->x.cols, first);
		else
			tensor_hash_add(&to->sum, m.v + i * x->x.cols, x->x.cols, first);
	}
	free(m.to_free);
}

/* Hashes a leaf of a gradient; each chunk and virtual slice that uses the parameter has one. */
static void hash_leaf(struct run *r, const struct result *x, struct record *to)
{
	const struct pass *p = &r->t.pass;
	const struct tensor *t = x->tensor;
	int64_t number = (int64_t)x->chunk * t->users_per_slice +
			 tensor_slice_user(t, p->tp.first + x->at.slice);
	struct host_mat m = to_host(&r->t.d, x->x);
	int64_t first = number * tensor_size(t);
	to->first = first + tensor_index(t, x->slice, x->first_row);
	for (int64_t i = 0; i < x->x.rows; i++)
		tensor_hash_add(&to->sum, m.v + i * t->cols, t->cols,
			first + tensor_index(t, x->slice, x->first_row + i));
	free(m.to_free);
}

/* Returns the layer of a result; a leaf is in the layer that owns it, or in the head if
 * it is tied. */
static int64_t result_layer(const struct model *m, const struct result *x)
{
	if (x->extent != EXTENT_LEAF)
		return x->at.layer;
	return x->use ? m->c.layers : x->tensor->unit - 1;
}

/* Hashes a result of the forward or backward pass: the observer of passes. context: a
 * struct run. */
static void hash_result(void *context, const struct result *x)
{
	struct run *r = context;
	const struct pass *p = &r->t.pass;
	struct record *to = add_record(
		r, x->gradient ? PHASE_BACKWARD : PHASE_FORWARD, result_layer(p->m, x));
	to->sum.micro = x->extent == EXTENT_LEAF ? x->micro : p->micro.number;
	hashes_name_result(p->m, x, to->sum.name, sizeof(to->sum.name));
	if (x->extent != EXTENT_LEAF) {
		hash_rows(r, x, to);
		return;
	}
	/* (zb-h1 computes gradients late; here they follow the layer's activations) */
	to->order = INT64_MAX - (x->tensor - p->m->tensors);
	hash_leaf(r, x, to);
}

/* ---- tensors of the store ------------------------------------------------------------ */

struct hashing {
	struct run *r;
	int group; /* group of the store, or STORE_GRAD */
	enum step_phase phase;
};

/* Hashes a part of a tensor in the store, copied to the host. context: a struct hashing. */
static void hash_part(void *context, const struct part *x)
{
	const struct hashing *h = context;
	struct trainer *t = &h->r->t;
	struct record *to = add_record(h->r, h->phase, h->group);
	float *v = h->group == STORE_GRAD ? x->g : x->state[h->group];
	struct host_mat m = to_host(&t->d, mat(v, x->rows, x->cols));
	to->order = x->t - t->model.tensors;
	to->first = tensor_index(x->t, x->slice, x->row);
	if (h->phase == PHASE_STATE)
		snprintf(to->sum.name, sizeof(to->sum.name), "%s/%s",
			t->store->c.groups.list[h->group].name, x->t->name);
	else
		snprintf(to->sum.name, sizeof(to->sum.name), "%s", x->t->name);
	for (int64_t i = 0; i < x->rows; i++)
		tensor_hash_add(&to->sum, m.v + i * x->cols, x->cols,
			tensor_index(x->t, x->slice, x->row + i));
	free(m.to_free);
}

static void hash_group(struct run *r, int group, enum step_phase phase)
{
	struct hashing h = {r, group, phase};
	store_for_each_part(r->t.store, false, STORE_BIT(group), 0, hash_part, &h);
}

/* Discards the records of the last step, and hashes the parameters. context: a struct run. */
static void begin_hashing(void *context)
{
	struct run *r = context;
	r->hashes.n = 0;
	hash_group(r, STORE_PARAM, PHASE_PARAMETER);
}

static void hash_gradients(void *context)
{
	hash_group(context, STORE_GRAD, PHASE_GRADIENT);
}

static void hash_scalar(struct run *r, const char *name, float x)
{
	struct record *to = add_record(r, PHASE_NORM, 0);
	snprintf(to->sum.name, sizeof(to->sum.name), "%s", name);
	tensor_hash_add(&to->sum, &x, 1, 0);
}

/* ---- one list for all ranks ------------------------------------------------------------ */

#define ORDER(a, b)                                \
	do {                                       \
		if ((a) != (b))                    \
			return (a) < (b) ? -1 : 1; \
	} while (0)

/* Returns the order of a phase; forward and backward of a micro-batch are printed together. */
static int phase_order(enum step_phase p)
{
	return p == PHASE_BACKWARD ? PHASE_FORWARD : (int)p;
}

/* Compares the phase, micro-batch and layer of two records. */
static int compare_layers(const struct record *a, const struct record *b)
{
	ORDER(phase_order(a->sum.phase), phase_order(b->sum.phase));
	ORDER(a->sum.micro, b->sum.micro);
	ORDER(a->sum.phase, b->sum.phase);
	if (a->sum.phase == PHASE_BACKWARD)
		ORDER(b->layer, a->layer);
	ORDER(a->layer, b->layer);
	return 0;
}

/* Orders records for qsort() so that the parts and copies of a tensor are neighbors. */
static int compare_for_merging(const void *x, const void *y)
{
	const struct record *a = x, *b = y;
	int layers = compare_layers(a, b), names = strcmp(a->sum.name, b->sum.name);
	if (layers || names)
		return layers ? layers : names;
	ORDER(a->first, b->first);
	ORDER(a->rank, b->rank);
	return 0;
}

static int compare_for_printing(const void *x, const void *y)
{
	const struct record *a = x, *b = y;
	int layers = compare_layers(a, b);
	if (layers)
		return layers;
	ORDER(a->order, b->order);
	return strcmp(a->sum.name, b->sum.name);
}

static bool is_same_tensor(const struct record *a, const struct record *b)
{
	return !compare_layers(a, b) && !strcmp(a->sum.name, b->sum.name);
}

/* Adds another part of the same tensor to *to: hashes and counts are sums, `max` is a maximum. */
static void add_record_hash(struct record *to, const struct record *x)
{
	to->sum.hash += x->sum.hash;
	to->sum.elements += x->sum.elements;
	to->sum.nonfinite += x->sum.nonfinite;
	if (x->sum.max > to->sum.max)
		to->sum.max = x->sum.max;
	to->order = min64(to->order, x->order);
}

/* Adds the hashes of the parts of each tensor, and compares copies. Moves the tensors to the front,
 * and returns their number. */
static int64_t merge_records(struct record *list, int64_t n)
{
	int64_t to = -1;
	struct record part = {.rank = -1}; /* the next record may be a copy of it */
	qsort(list, (size_t)n, sizeof(*list), compare_for_merging);
	for (int64_t i = 0; i < n; i++) {
		const struct record x = list[i];
		bool same = to >= 0 && is_same_tensor(&list[to], &x);
		if (!same)
			list[++to] = x;
		else if (x.first == part.first && x.rank != part.rank)
			list[to].sum.replicas_differ |= x.sum.hash != part.sum.hash;
		else
			add_record_hash(&list[to], &x);
		if (!same || x.first != part.first)
			part = x;
	}
	to++;
	qsort(list, (size_t)to, sizeof(*list), compare_for_printing);
	return to;
}

/* Gathers the records of all ranks on rank 0. Collective over the worker. */
static void gather_records(struct run *r, struct str *all)
{
	const struct run_hashes *h = &r->hashes;
	for (int rank = 0; rank < r->world->size; rank++) {
		scoped_str own = {0};
		if (rank == r->world->rank)
			str_add(&own, h->record, (size_t)h->n * sizeof(*h->record));
		comm_bcast_str(r->world, &own, rank);
		if (run_is_first(r))
			str_add(all, own.s, own.len);
	}
}

/* Writes the text, and closes the file after the last step. */
static int write_text(struct run *r, const struct str *text, struct err *e)
{
	struct run_hashes *h = &r->hashes;
	const char *path = r->t.o.hash_tensors;
	int rc = write_all(h->fd, text->s, text->len);
	if (!rc && h->step < h->last)
		return 0;
	rc = file_end(h->fd, path, rc, e);
	h->fd = -1;
	return rc;
}

/* Writes the hashes of a step to the file. Collective. */
static int write_step(struct run *r, struct err *e)
{
	struct run_hashes *h = &r->hashes;
	scoped_str all = {0}, text = {0};
	gather_records(r, &all);
	h->n = 0;
	if (run_is_first(r)) {
		struct record *list = (struct record *)all.s;
		int64_t n = merge_records(list, (int64_t)(all.len / sizeof(*list)));
		for (int64_t i = 0; i < n; i++)
			tensor_hash_print(&list[i].sum, &text);
		write_text(r, &text, e);
	}
	return comm_agree(r->all, e);
}

/* ---- around a step ------------------------------------------------------------------- */

int hashes_open(struct run *r, const struct train_opts *o, struct err *e)
{
	struct run_hashes *h = &r->hashes;
	h->fd = -1;
	if (!o->hash_tensors)
		return 0;
	h->first = h->last = 1;
	if (o->hash_steps)
		options_parse_steps(
			o, "hash-steps", o->hash_steps, &h->first, &h->last, e);
	if (run_is_first(r) && !e->code)
		h->fd = file_begin(o->hash_tensors, e);
	h->observer =
		(struct observer){.begin = begin_hashing, .see = hash_result, .with = r};
	return comm_agree(r->all, e);
}

static bool is_due(const struct run *r, int64_t step)
{
	return r->hashes.first && step >= r->hashes.first && step <= r->hashes.last;
}

void hashes_begin_step(struct run *r)
{
	struct trainer *t = &r->t;
	if (!is_due(r, t->step + 1))
		return;
	r->hashes.step = t->step + 1;
	t->pass.observer = &r->hashes.observer;
	t->before_update = hash_gradients;
	t->before_update_with = r;
}

int hashes_end_step(struct run *r, const struct step_result *s)
{
	struct trainer *t = &r->t;
	struct err e = {0};
	if (!t->pass.observer)
		return 0;
	t->pass.observer = NULL;
	t->before_update = NULL;
	hash_scalar(r, "loss", s->loss);
	hash_scalar(r, "grad_norm", s->grad_norm);
	for (int g = 1; g < t->store->c.groups.n; g++)
		hash_group(r, g, PHASE_STATE);
	hash_group(r, STORE_PARAM, PHASE_UPDATED);
	if (!write_step(r, &e))
		return 0;
	if (run_is_first(r))
		err_print(&e);
	return EX_IOERR;
}

bool hashes_are_done(const struct run *r)
{
	return r->hashes.first && r->t.step >= r->hashes.last;
}

void hashes_close(struct run *r)
{
	struct run_hashes *h = &r->hashes;
	struct err e;
	if (h->first && h->fd >= 0 && file_end(h->fd, r->t.o.hash_tensors, 0, &e))
		warn("%s", e.msg);
	free(h->record);
	*h = (struct run_hashes){0};
}

/* Wire formats: rows of matrices in fewer bytes, vectors in fp32. */
#include "edit/exchange_internal.h"

struct wire wire_make(
	const struct edit_config *c, const struct store *s, struct device *d)
{
	return (struct wire){.kind = c->wire,
		.density = c->wire_density,
		.seed = c->seed,
		.d = d,
		.part = s->updated,
		.n_parts = s->n_updated,
		.floats = store_floats(s)};
}

struct philox_key wire_key(uint64_t seed, const struct tensor *t, int64_t sync)
{
	return philox_key(seed, PHILOX_EDIT, hash_str(t->name) ^ (uint64_t)sync << 20);
}

/* ---- rows ------------------------------------------------------------------------ */

static int64_t part_end(const struct part *p)
{
	return p->at + p->rows * p->cols;
}

/* Returns the index of the first part that ends after `at`. */
static int64_t find_part(const struct wire *w, int64_t at)
{
	int64_t first = 0, n = w->n_parts;
	while (n > 0) {
		bool before = part_end(&w->part[first + n / 2]) <= at;
		first += before ? n / 2 + 1 : 0;
		n = before ? n - n / 2 - 1 : n / 2;
	}
	return first;
}

int64_t wire_row_end(const struct wire *w, int64_t at)
{
	if (at >= w->floats)
		return w->floats;
	int64_t i = find_part(w, at);
	const struct part *p = &w->part[i];
	if (i == w->n_parts || at <= p->at)
		return at;
	return p->at + round_up(at - p->at, p->cols);
}

typedef void rows_visit(void *with, const struct wire *w, const struct part *rows);

/* Calls fn for the rows of each part in floats [at, at + n). */
static void for_each_rows(
	const struct wire *w, int64_t at, int64_t n, rows_visit *fn, void *with)
{
	for (int64_t i = find_part(w, at); i < w->n_parts; i++) {
		struct part p = w->part[i];
		if (p.at >= at + n)
			break;
		int64_t begin = max64(at, p.at), end = min64(at + n, part_end(&p));
		BUG_ON((begin - p.at) % p.cols || (end - p.at) % p.cols);
		p.row += (begin - p.at) / p.cols;
		p.rows = (end - begin) / p.cols;
		p.at = begin;
		fn(with, w, &p);
	}
}

/* ---- sizes ----------------------------------------------------------------- */

enum { ALIGN = 4 };

static int64_t picked_per_row(const struct wire *w, int64_t cols)
{
	return min64(cols, max64(1, (int64_t)(w->density * (double)cols)));
}

static bool is_wide(const struct part *p)
{
	return p->cols > 1 << 16;
}

static bool is_vector(const struct part *p)
{
	return p->t->ndim == 1;
}

/* The encoding of some rows: floats, then `rest` bytes of shorter values. */
struct encoding {
	int64_t floats, rest;
};

static struct encoding encoding_of(const struct wire *w, const struct part *p)
{
	int64_t n = p->rows * p->cols;
	if (is_vector(p))
		return (struct encoding){.floats = n};
	if (w->kind == EDIT_WIRE_BF16)
		return (struct encoding){.rest = 2 * n};
	if (w->kind == EDIT_WIRE_INT8)
		return (struct encoding){.floats = p->rows, .rest = n};
	int64_t picked = p->rows * picked_per_row(w, p->cols);
	return (struct encoding){.floats = picked, .rest = picked * (is_wide(p) ? 4 : 2)};
}

static int64_t encoding_bytes(struct encoding s)
{
	return s.floats * (int64_t)sizeof(float) + round_up(s.rest, ALIGN);
}

static void count_rows(void *with, const struct wire *w, const struct part *p)
{
	*(int64_t *)with += encoding_bytes(encoding_of(w, p));
}

int64_t wire_bytes(const struct wire *w, int64_t at, int64_t n)
{
	int64_t n_bytes = 0;
	if (w->kind == EDIT_WIRE_FP32)
		return n * (int64_t)sizeof(float);
	for_each_rows(w, at, n, count_rows, &n_bytes);
	return n_bytes;
}

/* ---- encoding and decoding -------------------------------------------------------------- */

void wire_round(const struct wire *w, struct mat v)
{
	const struct kernels *k = w->d->k;
	if (w->kind == EDIT_WIRE_BF16)
		k->round(w->d, v, v, DT_BF16, 1);
	else if (w->kind == EDIT_WIRE_INT8)
		k->quantize(w->d, v, NULL, NULL, NULL);
	else if (w->kind == EDIT_WIRE_SPARSE)
		k->keep_largest(w->d, v, picked_per_row(w, v.cols));
}

struct cursor {
	char *next; /* byte */
	float *v;   /* floats [at, ...) */
	int64_t at;
	bool stochastic; /* rounds with the random numbers of synchronization `sync` */
	int64_t sync;
};

/* Some encoded rows (floats, then `rest`), and the same rows decoded. */
struct rows {
	float *floats;
	void *rest;
	struct mat v;
};

static struct rows next_rows(struct cursor *x, const struct wire *w, const struct part *p)
{
	struct encoding s = encoding_of(w, p);
	float *floats = (float *)(void *)x->next;
	x->next += encoding_bytes(s);
	return (struct rows){
		floats, floats + s.floats, mat(x->v + (p->at - x->at), p->rows, p->cols)};
}

/* Encodes rows. Random numbers belong to elements of the whole tensor, in which the rows of a
 * slice of columns are not contiguous. */
static void pack_rows(void *with, const struct wire *w, const struct part *p)
{
	const struct kernels *k = w->d->k;
	struct cursor *x = with;
	struct rows r = next_rows(x, w, p);
	const struct rng_stream c = {.key = wire_key(w->seed, p->t, x->sync),
		.first = tensor_index(p->t, p->slice, p->row),
		.row_step = p->t->dims[1]};
	if (is_vector(p)) {
		k->copy(w->d, mat(r.floats, 1, p->rows * p->cols), r.v);
	} else if (w->kind == EDIT_WIRE_BF16) {
		if (x->stochastic)
			k->round_stochastic(w->d, r.v, &c);
		k->narrow(w->d, r.rest, r.v, DT_BF16);
	} else if (w->kind == EDIT_WIRE_INT8) {
		k->quantize(w->d, r.v, r.rest, r.floats, x->stochastic ? &c : NULL);
	} else {
		k->topk_pack(w->d, r.floats, r.rest, is_wide(p), r.v,
			picked_per_row(w, p->cols));
	}
}

void wire_pack(const struct wire *w, char *out, float *v, int64_t at, int64_t n)
{
	struct cursor x = {.next = out, .v = v, .at = at};
	for_each_rows(w, at, n, pack_rows, &x);
}

void wire_pack_random(
	const struct wire *w, char *out, float *v, int64_t at, int64_t n, int64_t sync)
{
	struct cursor x = {
		.next = out, .v = v, .at = at, .stochastic = true, .sync = sync};
	for_each_rows(w, at, n, pack_rows, &x);
}

static void unpack_rows(void *with, const struct wire *w, const struct part *p)
{
	const struct kernels *k = w->d->k;
	struct rows r = next_rows(with, w, p);
	if (is_vector(p))
		k->copy(w->d, r.v, mat(r.floats, 1, p->rows * p->cols));
	else if (w->kind == EDIT_WIRE_BF16)
		k->widen(w->d, r.v, r.rest, DT_BF16);
	else if (w->kind == EDIT_WIRE_INT8)
		k->dequantize(w->d, r.v, r.rest, r.floats);
	else
		k->topk_scatter(w->d, r.v, r.floats, r.rest, is_wide(p),
			picked_per_row(w, p->cols));
}

void wire_unpack(const struct wire *w, float *v, const char *in, int64_t at, int64_t n)
{
	struct cursor x = {.next = (char *)in, .v = v, .at = at};
	for_each_rows(w, at, n, unpack_rows, &x);
}

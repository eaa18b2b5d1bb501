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
	return p->pos + p->rows * p->cols;
}

/* Returns the index of the first part that ends after pos. */
static int64_t find_part(const struct wire *w, int64_t pos)
{
	int64_t first = 0, n = w->n_parts;
	while (n > 0) {
		bool ends_before = part_end(&w->part[first + n / 2]) <= pos;
		first += ends_before ? n / 2 + 1 : 0;
		n = ends_before ? n - n / 2 - 1 : n / 2;
	}
	return first;
}

int64_t wire_row_end(const struct wire *w, int64_t pos)
{
	if (pos >= w->floats)
		return w->floats;
	int64_t i = find_part(w, pos);
	const struct part *p = &w->part[i];
	if (i == w->n_parts || pos <= p->pos)
		return pos;
	return p->pos + round_up(pos - p->pos, p->cols);
}

typedef void rows_visit(void *arg, const struct wire *w, const struct part *rows);

/* Calls fn for the rows of each part in floats [pos, pos + n). */
static void for_each_part_rows(
	const struct wire *w, int64_t pos, int64_t n, rows_visit *fn, void *arg)
{
	for (int64_t i = find_part(w, pos); i < w->n_parts; i++) {
		struct part p = w->part[i];
		if (p.pos >= pos + n)
			break;
		int64_t begin = max64(pos, p.pos), end = min64(pos + n, part_end(&p));
		BUG_ON((begin - p.pos) % p.cols || (end - p.pos) % p.cols);
		p.row += (begin - p.pos) / p.cols;
		p.rows = (end - begin) / p.cols;
		p.pos = begin;
		fn(arg, w, &p);
	}
}

/* ---- sizes ----------------------------------------------------------------- */

enum { ALIGN = 4 }; /* bytes */

/* Returns the number of elements that the sparse format sends per row. */
static int64_t sent_per_row(const struct wire *w, int64_t cols)
{
	return min64(cols, max64(1, (int64_t)(w->density * (double)cols)));
}

/* Returns true if an index of a column needs 32 bits. */
static bool is_wide(const struct part *p)
{
	return p->cols > 1 << 16;
}

static bool is_vector(const struct part *p)
{
	return p->t->ndim == 1;
}

/* The size of encoded rows: a number of floats, then bytes of shorter values. */
struct encoding {
	int64_t floats, rest;
};

/* Returns the encoded size of a part's rows. Vectors are always sent as fp32. */
static struct encoding rows_encoding(const struct wire *w, const struct part *p)
{
	int64_t n = p->rows * p->cols;
	if (is_vector(p))
		return (struct encoding){.floats = n};
	if (w->kind == EDIT_WIRE_BF16)
		return (struct encoding){.rest = 2 * n};
	if (w->kind == EDIT_WIRE_INT8)
		return (struct encoding){.floats = p->rows, .rest = n};
	int64_t n_sent = p->rows * sent_per_row(w, p->cols);
	return (struct encoding){.floats = n_sent, .rest = n_sent * (is_wide(p) ? 4 : 2)};
}

static int64_t encoding_bytes(struct encoding s)
{
	return s.floats * (int64_t)sizeof(float) + round_up(s.rest, ALIGN);
}

static void add_encoded_bytes(void *arg, const struct wire *w, const struct part *p)
{
	*(int64_t *)arg += encoding_bytes(rows_encoding(w, p));
}

int64_t wire_bytes(const struct wire *w, int64_t pos, int64_t n)
{
	int64_t n_bytes = 0;
	if (w->kind == EDIT_WIRE_FP32)
		return n * (int64_t)sizeof(float);
	for_each_part_rows(w, pos, n, add_encoded_bytes, &n_bytes);
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
		k->keep_largest(w->d, v, sent_per_row(w, v.cols));
}

/* A position in a message and in its floats. */
struct cursor {
	char *next; /* byte of the message */
	float *v;   /* floats from pos on */
	int64_t pos;
	bool stochastic; /* rounds with the random numbers of synchronization `sync` */
	int64_t sync;
};

/* Encoded rows (floats, then the other values), and the same rows decoded. */
struct rows {
	float *floats;
	void *rest;
	struct mat v;
};

/* Returns the rows at the cursor, and advances the cursor past them in the message. */
static struct rows next_rows(struct cursor *x, const struct wire *w, const struct part *p)
{
	struct encoding s = rows_encoding(w, p);
	float *floats = (float *)(void *)x->next;
	x->next += encoding_bytes(s);
	return (struct rows){floats, floats + s.floats,
		mat(x->v + (p->pos - x->pos), p->rows, p->cols)};
}

/* Encodes rows. Random numbers belong to elements of the whole tensor, in whichever slice. */
static void pack_rows(void *arg, const struct wire *w, const struct part *p)
{
	const struct kernels *k = w->d->k;
	struct cursor *x = arg;
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
			sent_per_row(w, p->cols));
	}
}

void wire_pack(const struct wire *w, char *out, float *v, int64_t pos, int64_t n)
{
	struct cursor x = {.next = out, .v = v, .pos = pos};
	for_each_part_rows(w, pos, n, pack_rows, &x);
}

void wire_pack_random(
	const struct wire *w, char *out, float *v, int64_t pos, int64_t n, int64_t sync)
{
	struct cursor x = {
		.next = out, .v = v, .pos = pos, .stochastic = true, .sync = sync};
	for_each_part_rows(w, pos, n, pack_rows, &x);
}

/* Decodes a part's rows into the elements at the cursor `arg`, and advances the cursor. */
static void unpack_rows(void *arg, const struct wire *w, const struct part *p)
{
	const struct kernels *k = w->d->k;
	struct rows r = next_rows(arg, w, p);
	if (is_vector(p))
		k->copy(w->d, r.v, mat(r.floats, 1, p->rows * p->cols));
	else if (w->kind == EDIT_WIRE_BF16)
		k->widen(w->d, r.v, r.rest, DT_BF16);
	else if (w->kind == EDIT_WIRE_INT8)
		k->dequantize(w->d, r.v, r.rest, r.floats);
	else
		k->topk_scatter(w->d, r.v, r.floats, r.rest, is_wide(p),
			sent_per_row(w, p->cols));
}

void wire_unpack(const struct wire *w, float *v, const char *in, int64_t pos, int64_t n)
{
	struct cursor x = {.next = (char *)in, .v = v, .pos = pos};
	for_each_part_rows(w, pos, n, unpack_rows, &x);
}

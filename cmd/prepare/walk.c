/* Walks over the documents of all pieces, in the order of the text, and over their tokens. */
#include "prepare/assembly.h"

int piece_view_read(
	const struct assembly *a, int64_t batch, struct piece_view *v, struct err *e)
{
	struct piece_place place;
	if (pieces_find(a->encoding->pieces, batch, a->encoding->keys[batch], &place))
		return err_set(e, EX_IOERR,
			"the work files lack part %lld of the text; run pt-prepare again",
			(long long)batch);
	v->fd = place.fd;
	if (file_read_at(v->fd, "a work file", &v->head, sizeof(v->head), place.at, e))
		return -1;
	v->documents = place.at + (int64_t)sizeof(v->head);
	v->tokens = v->documents +
		    v->head.n_documents * (int64_t)sizeof(struct piece_document);
	v->spans = v->tokens + v->head.n_tokens * v->head.row_bytes;
	v->messages = v->spans + v->head.n_spans * (int64_t)sizeof(struct token_span);
	return 0;
}

void walk_begin(struct walk *w, const struct assembly *a)
{
	*w = (struct walk){.a = a, .batch = -1};
}

void walk_end(struct walk *w)
{
	free(w->documents);
	free(w->spans);
	w->documents = NULL;
	w->spans = NULL;
}

/* Reads the documents and spans of the next piece: 1, 0 at the end, or -1. */
static int read_next_piece(struct walk *w, struct err *e)
{
	if (w->batch + 1 == w->a->encoding->n_batches)
		return 0;
	if (w->frees_pieces && w->batch >= 0)
		pieces_mark_read(w->a->encoding->pieces, w->view.fd,
			(int64_t)sizeof(w->view.head) +
				w->n * (int64_t)sizeof(*w->documents) +
				w->view.head.n_spans * (int64_t)sizeof(*w->spans) +
				w->view.head.n_message_bytes);
	if (piece_view_read(w->a, ++w->batch, &w->view, e))
		return -1;
	w->n = w->view.head.n_documents;
	w->at = w->token = w->span = 0;
	size_t n_bytes = (size_t)w->n * sizeof(*w->documents);
	size_t n_spans = (size_t)w->view.head.n_spans * sizeof(*w->spans);
	w->documents = xrealloc(w->documents, n_bytes + 1);
	w->spans = xrealloc(w->spans, n_spans + 1);
	int rc = file_read_at(w->view.fd, "a work file", w->documents, n_bytes,
			 w->view.documents, e) ||
		 file_read_at(
			 w->view.fd, "a work file", w->spans, n_spans, w->view.spans, e);
	return rc ? -1 : 1;
}

/* Reads the next document, or the next part of one: 1, 0 at the end, or -1. */
static int read_next_part(struct walk *w, struct piece_document *d, struct err *e)
{
	while (w->at == w->n) {
		int rc = read_next_piece(w, e);
		if (rc <= 0)
			return rc;
	}
	*d = w->documents[w->at++];
	w->token += d->n_tokens;
	w->span += d->n_spans;
	return 1;
}

static bool is_duplicate(const struct assembly *a, int64_t number)
{
	return a->duplicates && a->duplicates[number / 64] >> number % 64 & 1;
}

int walk_next(struct walk *w, struct document *d, struct err *e)
{
	struct piece_document part;
	int rc = read_next_part(w, &part, e);
	if (rc <= 0)
		return rc;
	*d = (struct document){.number = w->number++,
		.source = w->view.head.source,
		.hash = part.hash,
		.n_bytes = part.n_bytes,
		.n_tokens = part.n_tokens,
		.fate = (enum fate)part.fate,
		.batch = w->batch,
		.token = w->token - part.n_tokens,
		.spans = w->spans + (w->span - part.n_spans),
		.n_spans = part.n_spans}; /* (documents in several parts have no spans) */
	while (!part.last) {
		rc = read_next_part(w, &part, e);
		if (rc <= 0)
			return rc ? -1
				  : err_set(e, EX_IOERR,
					    "the work files end within a document");
		const struct hash128 both[2] = {d->hash, part.hash};
		d->hash = hash128_bytes(both, sizeof(both), 0);
		d->n_bytes += part.n_bytes;
		d->n_tokens += part.n_tokens;
	}
	if (d->fate == FATE_PART)
		d->fate = filter_length(w->a->encoding->filter, d->n_bytes);
	if (d->fate == FATE_KEPT && is_duplicate(w->a, d->number))
		d->fate = FATE_DUPLICATE;
	return 1;
}

enum split document_split(const struct assembly *a, const struct document *d)
{
	enum { DOCUMENT = 0x646f63, HASH = 0x646f6368 };
	const struct prepare *p = a->encoding->p;
	if (p->split_by == SPLIT_BY_TAIL)
		return SPLIT_TRAIN;
	bool by_hash = p->split_by == SPLIT_BY_HASH;
	struct philox_key key =
		philox_key((uint64_t)p->seed, PHILOX_ORDER, by_hash ? HASH : DOCUMENT);
	uint64_t x = by_hash ? d->hash.low : (uint64_t)d->number;
	uint64_t y = by_hash ? d->hash.high : 0;
	struct philox_block r = philox(
		key, (uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y, (uint32_t)(y >> 32));
	return philox_uniform64(r.x[0], r.x[1]) < p->val_fraction ? SPLIT_VAL
								  : SPLIT_TRAIN;
}

void token_place_seek(
	struct token_place *r, const struct assembly *a, int64_t batch, int64_t token)
{
	r->opened = r->opened && r->batch == batch;
	r->a = a;
	r->batch = batch;
	r->token = token;
}

int64_t token_place_advance(
	struct token_place *r, int64_t n, struct extent *at, struct err *e)
{
	while (!r->opened || r->token == r->view.head.n_tokens) {
		if (r->opened) { /* the document continues in the next piece */
			r->batch++;
			r->token = 0;
		}
		if (piece_view_read(r->a, r->batch, &r->view, e))
			return -1;
		r->opened = true;
	}
	n = min64(n, r->view.head.n_tokens - r->token);
	*at = (struct extent){.fd = r->view.fd,
		.at = r->view.tokens + r->token * r->a->encoding->row_bytes,
		.pieces = r->a->frees_pieces ? r->a->encoding->pieces : NULL};
	r->token += n;
	return n;
}

/* Streams of documents, in the order of the text or shuffled: sorted by a random key. Each
 * document is written to one of several temporary files by the highest bits of its key; each file
 * is sorted */
#include "prepare/assembly.h"

enum {
	BUCKET_BYTES = 1 << 25,
	MAX_BUCKETS = 256,
	BUFFER_BYTES = 1 << 18,
	COPY_BYTES = 1 << 13 /* shorter documents are copied, not read later */
};

/* The header of a document in a bucket. Its tokens follow, padded to 8 bytes, then its spans. */
struct document_record {
	uint64_t key;
	int64_t number, n_tokens, n_spans;
};

struct document_place {
	uint64_t key;
	int64_t number,
		at; /* index of the document; offset of its header in the bucket */
};

static bool belongs_to_stream(const struct document_stream *s, const struct document *d)
{
	return d->fate == FATE_KEPT && d->n_tokens &&
	       (s->source < 0 || d->source == s->source) &&
	       (s->split < 0 || document_split(s->a, d) == (enum split)s->split);
}

/* Returns the random key of a document, by which a shuffle sorts. */
static uint64_t shuffle_key(const struct assembly *a, int64_t number)
{
	enum { SHUFFLE = 0x73687566 };
	struct philox_key key =
		philox_key((uint64_t)a->encoding->p->seed, PHILOX_ORDER, SHUFFLE);
	struct philox_block r =
		philox(key, (uint32_t)number, (uint32_t)(number >> 32), 0, 0);
	return (uint64_t)r.x[0] << 32 | r.x[1];
}

/* Tokens of a piece, read ahead past the end of a document. */
struct token_buffer {
	char *data;
	int fd;
	int64_t from, to; /* range of bytes of the file in `data` */
};

/* Reads up to n next tokens and sets *p to them, in the buffer. Returns their number, or -1. */
static int64_t read_tokens(struct document_stream *s, struct token_buffer *b, int64_t n,
	const char **p, struct err *e)
{
	struct token_place *next = &s->tokens;
	const struct piece_view *v = &next->view;
	int64_t row_bytes = s->a->encoding->row_bytes;
	struct extent x;
	n = token_place_advance(next, min64(n, BUFFER_BYTES / row_bytes), &x, e);
	if (n < 0)
		return -1;
	if (b->fd != x.fd || x.at < b->from || x.at + n * row_bytes > b->to) {
		b->fd = x.fd;
		b->from = x.at;
		b->to = min64(
			x.at + BUFFER_BYTES, v->tokens + v->head.n_tokens * row_bytes);
		if (file_read_at(x.fd, "a work file", b->data, (size_t)(b->to - b->from),
			    b->from, e))
			return -1;
	}
	*p = b->data + (x.at - b->from);
	if (x.pieces)
		pieces_mark_read(x.pieces, x.fd, n * row_bytes);
	return n;
}

/* Writes a document into the bucket of its random key. */
static int scatter_document(struct document_stream *s, struct token_buffer *b,
	const struct document *d, struct err *e)
{
	struct document_record r = {
		shuffle_key(s->a, d->number), d->number, d->n_tokens, d->n_spans};
	int bucket = s->bucket_bits ? (int)(r.key >> (64 - s->bucket_bits)) : 0;
	int64_t row_bytes = s->a->encoding->row_bytes;
	if (buckets_append(s->buckets, bucket, &r, sizeof(r), e))
		return -1;
	token_place_seek(&s->tokens, s->a, d->batch, d->token);
	for (int64_t left = d->n_tokens; left;) {
		const char *p;
		int64_t n = read_tokens(s, b, left, &p, e);
		if (n < 0 ||
			buckets_append(s->buckets, bucket, p, (size_t)(n * row_bytes), e))
			return -1;
		left -= n;
	}
	static const char zeros[8];
	int64_t n_bytes = d->n_tokens * row_bytes;
	size_t rest = (size_t)(round_up(n_bytes, 8) - n_bytes);
	return buckets_append(s->buckets, bucket, zeros, rest, e) ||
			       buckets_append(s->buckets, bucket, d->spans,
				       (size_t)d->n_spans * sizeof(*d->spans), e)
		       ? -1
		       : 0;
}

/* Returns the offset of a record's spans from its beginning. */
static int64_t spans_offset(
	const struct document_stream *s, const struct document_record *r)
{
	return (int64_t)sizeof(*r) + round_up(r->n_tokens * s->a->encoding->row_bytes, 8);
}

/* Copies all documents of the stream to buckets, in the order in which they were read. */
static int scatter_documents(struct document_stream *s, struct err *e)
{
	struct token_buffer b = {xmalloc(BUFFER_BYTES), -1};
	struct walk w;
	struct document d;
	int rc;
	walk_begin(&w, s->a);
	w.frees_pieces = s->a->frees_pieces;
	while ((rc = walk_next(&w, &d, e)) > 0)
		if (belongs_to_stream(s, &d) && scatter_document(s, &b, &d, e)) {
			rc = -1;
			break;
		}
	walk_end(&w);
	free(b.data);
	return rc;
}

static int compare_keys(const void *a, const void *b)
{
	const struct document_place *x = a, *y = b;
	if (x->key != y->key)
		return x->key > y->key ? 1 : -1;
	return (x->number > y->number) - (x->number < y->number);
}

/* Maps the next bucket, and sorts its documents by key. */
static int open_next_bucket(struct document_stream *s, struct err *e)
{
	int64_t n_bytes;
	if (buckets_map(s->buckets, s->bucket++, &s->map, &n_bytes, e))
		return -1;
	s->n_places = s->place = 0;
	for (int64_t at = 0; at < n_bytes;) {
		const struct document_record *r = (const void *)(s->map + at);
		s->places = xgrow(s->places, s->n_places, sizeof(*s->places));
		s->places[s->n_places++] = (struct document_place){r->key, r->number, at};
		at += spans_offset(s, r) +
		      r->n_spans * (int64_t)sizeof(struct token_span);
	}
	if (s->n_places)
		qsort(s->places, (size_t)s->n_places, sizeof(*s->places), compare_keys);
	return 0;
}

/* Moves to the next document in shuffled order; opens the next bucket when one is used
 * up. Returns 1, 0 at the end, or -1 with *e set. */
static int next_shuffled(struct document_stream *s, struct err *e)
{
	while (s->place == s->n_places) {
		if (s->bucket == 1 << s->bucket_bits)
			return 0;
		if (open_next_bucket(s, e))
			return -1;
	}
	int64_t at = s->places[s->place++].at;
	const struct document_record *r = (const void *)(s->map + at);
	s->left = r->n_tokens;
	s->spans = (const void *)((const char *)r + spans_offset(s, r));
	s->n_spans = r->n_spans;
	s->next = (struct extent){
		.memory =
			s->left * s->a->encoding->row_bytes < COPY_BYTES ? s->map : NULL,
		.fd = buckets_fd(s->buckets, s->bucket - 1),
		.at = at + (int64_t)sizeof(*r)};
	return 1;
}

int stream_open(struct document_stream *s, int64_t n_tokens, int n_streams, struct err *e)
{
	walk_begin(&s->walk, s->a);
	s->walk.frees_pieces = s->a->frees_pieces;
	if (!s->a->encoding->p->shuffle)
		return 0;
	int64_t n_bytes = n_tokens * s->a->encoding->row_bytes;
	while ((n_bytes >> s->bucket_bits) > BUCKET_BYTES &&
		(2 << s->bucket_bits) * n_streams <= MAX_BUCKETS)
		s->bucket_bits++;
	s->buckets = buckets_open(s->a->encoding->pieces, 1 << s->bucket_bits, e);
	return s->buckets && !scatter_documents(s, e) ? 0 : -1;
}

void stream_rewind(struct document_stream *s)
{
	walk_end(&s->walk);
	walk_begin(&s->walk, s->a);
	s->bucket = 0;
	s->place = s->n_places = 0;
}

int stream_next(struct document_stream *s, struct err *e)
{
	struct document d;
	int rc;
	if (s->buckets)
		return next_shuffled(s, e);
	while ((rc = walk_next(&s->walk, &d, e)) > 0 && !belongs_to_stream(s, &d))
		;
	if (rc > 0) {
		s->left = d.n_tokens;
		s->spans = d.spans;
		s->n_spans = d.n_spans;
		token_place_seek(&s->tokens, s->a, d.batch, d.token);
	}
	return rc;
}

int64_t stream_tokens(
	struct document_stream *s, int64_t n, struct extent *at, struct err *e)
{
	n = min64(n, s->left);
	if (s->buckets) {
		*at = s->next;
		s->next.at += n * s->a->encoding->row_bytes;
	} else {
		n = token_place_advance(&s->tokens, n, at, e);
	}
	s->left -= max64(0, n);
	return n;
}

void stream_close(struct document_stream *s)
{
	walk_end(&s->walk);
	buckets_close(s->buckets);
	free(s->places);
	*s = (struct document_stream){0};
}

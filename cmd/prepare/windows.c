/* Documents laid out in windows of N tokens, so that none crosses two windows. Documents are
 * collected in a pool. The longest are placed first, each into the window with the least remaining
 * space that it fits into: best-fit decreasing (Johnson 1973; for documents of language models,
 * Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The rest of a window is
 * padding, which does not count. Windows are written in the order of their first documents. */
#include "prepare/assembly.h"
#include "prepare/shard_writer.h"

/* The size of a pool: the larger of the two. */
enum { POOL_TOKENS = 1 << 24, POOL_WINDOWS = 16 };

/* A document, or a part of one that fills a window. */
struct fragment {
	int64_t order, n;	/* index in the pool; tokens */
	int64_t tokens;		/* offset in layout.tokens, in bytes */
	int64_t at;		/* index of its first token in the document */
	int64_t spans, n_spans; /* spans of the document: first in layout.spans, number */
	int64_t window; /* index of its window; once all are assigned, `first` of this window */
};

struct window {
	int64_t space, first; /* unused tokens; `order` of its first fragment */
	int64_t next;	      /* another window with the same space; -1: none */
};

struct layout {
	struct writing *x;
	int lane;
	bool writes;		 /* false: only counts windows */
	int64_t size, row_bytes; /* tokens per window, bytes per token */
	int64_t done, train;	 /* windows written or counted; windows for training */
	struct fragment *fragments;
	int64_t n, n_tokens;
	struct str tokens, spans, padding;
	struct window *windows;
	int64_t n_windows;
	int64_t *
		with_space; /* [size + 1], by unused tokens: first window of a list; -1: none */
	uint64_t *nonempty; /* one bit per element of with_space: set if it is >= 0 */
};

/* Initializes *l for the windows of one lane; borrows x. writes: false only counts windows. */
static void layout_init(struct layout *l, struct writing *x, int lane, bool writes)
{
	*l = (struct layout){.x = x,
		.lane = lane,
		.writes = writes,
		.size = x->a->encoding->p->window,
		.row_bytes = x->a->encoding->row_bytes};
	l->with_space = xcalloc((size_t)l->size + 1, sizeof(*l->with_space));
	l->nonempty = xcalloc((size_t)l->size / 64 + 1, sizeof(*l->nonempty));
	int64_t end = tokenizer_end_of_text(x->a->encoding->t);
	uint32_t id = (uint32_t)max64(0, end);
	for (int64_t i = 0; i < l->size; i++) /* little-endian */
		str_add(&l->padding, &id, (size_t)l->row_bytes);
}

static void layout_release(struct layout *l)
{
	free(l->fragments);
	free(l->windows);
	free(l->with_space);
	free(l->nonempty);
	str_free(&l->tokens);
	str_free(&l->spans);
	str_free(&l->padding);
}

/* Reads the next n tokens of a stream's document into the pool. */
static int read_tokens(
	struct layout *l, struct document_stream *s, int64_t n, struct err *e)
{
	while (n) {
		struct extent from;
		int64_t now = stream_tokens(s, n, &from, e);
		if (now < 0)
			return -1;
		size_t n_bytes = (size_t)(now * l->row_bytes);
		str_reserve(&l->tokens, n_bytes);
		char *to = l->tokens.s + l->tokens.len;
		if (from.memory)
			memcpy(to, from.memory + from.at, n_bytes);
		else if (file_read_at(from.fd, "a work file", to, n_bytes, from.at, e))
			return -1;
		l->tokens.len += n_bytes;
		n -= now;
	}
	return 0;
}

/* Adds a fragment of n tokens of the stream's document, whose spans are the last ones in l->spans;
 * also reads its tokens if l writes. */
static int add_fragment(
	struct layout *l, struct document_stream *s, int64_t at, int64_t n, struct err *e)
{
	l->fragments = xgrow(l->fragments, l->n, sizeof(*l->fragments));
	l->fragments[l->n] = (struct fragment){.order = l->n,
		.n = n,
		.tokens = (int64_t)l->tokens.len,
		.at = at,
		.spans = (int64_t)(l->spans.len / sizeof(*s->spans)) - s->n_spans,
		.n_spans = s->n_spans};
	l->n++;
	l->n_tokens += n;
	return l->writes ? read_tokens(l, s, n, e) : 0;
}

/* Adds the first n tokens of a document to the pool, in as many fragments as p->too_long allows. */
static int add_document(
	struct layout *l, struct document_stream *s, int64_t n, struct err *e)
{
	const struct prepare *p = l->x->a->encoding->p;
	struct prepared *out = l->x->out;
	if (n > l->size && l->writes) {
		out->n_too_long++;
		out->longest = max64(out->longest, n);
	}
	if (n > l->size && p->too_long == LONG_DROP)
		return 0;
	if (p->too_long == LONG_CUT)
		n = min64(n, l->size);
	l->x->documents++;
	str_add(&l->spans, s->spans, (size_t)s->n_spans * sizeof(*s->spans));
	for (int64_t at = 0; at < n; at += l->size)
		if (add_fragment(l, s, at, min64(l->size, n - at), e))
			return -1;
	return 0;
}

/* Fills the pool with documents: 1, 0 if there are no more, or -1. */
static int fill_pool(struct layout *l, struct err *e)
{
	struct share *v;
	int64_t pool_tokens = max64(POOL_TOKENS, POOL_WINDOWS * l->size);
	int rc = 1;
	l->n = l->n_tokens = 0;
	str_clear(&l->tokens);
	str_clear(&l->spans);
	while (l->n_tokens < pool_tokens && (rc = lane_next(l->x, l->lane, &v, e)) > 0) {
		int64_t n = min64(v->stream.left, v->n_wanted - v->n_taken);
		v->n_taken += n;
		if (add_document(l, &v->stream, n, e))
			return -1;
	}
	return rc < 0 ? -1 : l->n > 0;
}

/* Adds window i to the list of windows with its space. */
static void add_window_to_list(struct layout *l, int64_t i)
{
	int64_t space = l->windows[i].space;
	l->windows[i].next = l->with_space[space];
	l->with_space[space] = i;
	l->nonempty[space / 64] |= UINT64_C(1) << space % 64;
}

/* Removes from its list a window with the least space for n tokens. Returns its index; -1: none. */
static int64_t remove_window(struct layout *l, int64_t n)
{
	int64_t word = n / 64, last = l->size / 64;
	uint64_t bits = l->nonempty[word] & (UINT64_MAX << n % 64);
	while (!bits && word < last)
		bits = l->nonempty[++word];
	if (!bits)
		return -1;
	int64_t space = 64 * word + __builtin_ctzll(bits), i = l->with_space[space];
	l->with_space[space] = l->windows[i].next;
	if (l->with_space[space] < 0)
		l->nonempty[word] &= bits - 1;
	return i;
}

static int compare_lengths(const void *a, const void *b)
{
	const struct fragment *x = a, *y = b;
	if (x->n != y->n)
		return x->n < y->n ? 1 : -1;
	return (x->order > y->order) - (x->order < y->order);
}

static int compare_windows(const void *a, const void *b)
{
	const struct fragment *x = a, *y = b;
	if (x->window != y->window)
		return x->window > y->window ? 1 : -1;
	return (x->order > y->order) - (x->order < y->order);
}

/* Assigns the fragments of the pool to windows, the longest first, and sorts them by window. */
static void assign_windows(struct layout *l)
{
	l->n_windows = 0;
	for (int64_t i = 0; i <= l->size; i++)
		l->with_space[i] = -1;
	memset(l->nonempty, 0, ((size_t)l->size / 64 + 1) * sizeof(*l->nonempty));
	qsort(l->fragments, (size_t)l->n, sizeof(*l->fragments), compare_lengths);
	for (int64_t k = 0; k < l->n; k++) {
		struct fragment *x = &l->fragments[k];
		int64_t i = remove_window(l, x->n);
		if (i < 0) {
			l->windows = xgrow(l->windows, l->n_windows, sizeof(*l->windows));
			i = l->n_windows++;
			l->windows[i] = (struct window){l->size, INT64_MAX, -1};
		}
		x->window = i;
		l->windows[i].space -= x->n;
		l->windows[i].first = min64(l->windows[i].first, x->order);
		add_window_to_list(l, i);
	}
	for (int64_t k = 0; k < l->n; k++)
		l->fragments[k].window = l->windows[l->fragments[k].window].first;
	qsort(l->fragments, (size_t)l->n, sizeof(*l->fragments), compare_windows);
}

/* Writes a fragment; its first token does not count, because nothing predicts it. */
static int write_fragment(
	struct layout *l, enum split s, const struct fragment *x, struct err *e)
{
	const struct token_span *spans = (const void *)l->spans.s;
	const struct token_spans fragment_spans = {spans + x->spans, x->n_spans};
	struct extent from = {.memory = l->tokens.s, .at = x->tokens};
	shard_writer_begin_document(l->x->w, s);
	shard_writer_set_counted(l->x->w, s, false);
	if (shard_writer_append_raw(l->x->w, s, from, 1, e))
		return -1;
	from.at += l->row_bytes;
	return write_marked(l->x, s, fragment_spans, x->at + 1, from, x->n - 1, e);
}

/* Writes n tokens of padding as a document in which nothing counts. */
static int write_padding(struct layout *l, enum split s, int64_t n, struct err *e)
{
	const struct extent from = {.memory = l->padding.s};
	if (!n)
		return 0;
	shard_writer_begin_document(l->x->w, s);
	shard_writer_set_counted(l->x->w, s, false);
	return shard_writer_append_raw(l->x->w, s, from, n, e);
}

/* Writes the fragments [first, end) of a window and its padding. */
static int write_window(struct layout *l, const struct fragment *first,
	const struct fragment *end, struct err *e)
{
	enum split s =
		l->lane == SPLIT_VAL || l->done >= l->train ? SPLIT_VAL : SPLIT_TRAIN;
	int64_t space = l->size;
	for (const struct fragment *x = first; x < end; x++) {
		if (write_fragment(l, s, x, e))
			return -1;
		space -= x->n;
	}
	l->x->out->n_padding += space;
	l->x->done += (double)l->size;
	progress_update(&l->x->bar, l->x->done, NULL);
	return write_padding(l, s, space, e);
}

/* Writes the fragments, which are sorted by window, one window after another. */
static int write_pool(struct layout *l, struct err *e)
{
	for (int64_t i = 0, end; i < l->n; i = end, l->done++) {
		for (end = i;
			end < l->n && l->fragments[end].window == l->fragments[i].window;)
			end++;
		if (write_window(l, l->fragments + i, l->fragments + end, e))
			return -1;
	}
	return 0;
}

int windows_count(struct writing *x, int lane, int64_t *n, struct err *e)
{
	struct layout l;
	int rc;
	layout_init(&l, x, lane, false);
	while ((rc = fill_pool(&l, e)) > 0) {
		assign_windows(&l);
		l.done += l.n_windows;
	}
	*n = l.done;
	layout_release(&l);
	return rc;
}

/* Writes one extra token after the last window of a split, the target of its last token. */
int windows_write(struct writing *x, int lane, int64_t train, struct err *e)
{
	struct layout l;
	int rc;
	layout_init(&l, x, lane, true);
	l.train = lane == SPLIT_VAL ? 0 : train;
	while ((rc = fill_pool(&l, e)) > 0) {
		assign_windows(&l);
		if (write_pool(&l, e)) {
			rc = -1;
			break;
		}
	}
	if (!rc && l.train)
		rc = write_padding(&l, SPLIT_TRAIN, 1, e);
	if (!rc && l.done > l.train)
		rc = write_padding(&l, SPLIT_VAL, 1, e);
	x->out->n_windows += l.done;
	layout_release(&l);
	return rc;
}

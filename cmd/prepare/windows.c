/*
 * Documents laid out in windows of N tokens, each whole, so that no window begins or ends within one. Documents are
 * taken into a pool, the longest are placed first, and each goes into the window where the least room is left: best-fit
 * decreasing (Johnson 1973; of documents of language models, Ding et al. 2024, "Fewer Truncations Improve Language
 * Modeling"). What remains of a window is padding, which does not count. Windows are written in the order of
 * their first documents.
 */
#include "prepare/assembly.h"
#include "prepare/shard_writer.h"

/* A pool has so many tokens, or as many windows. */
enum { POOL_TOKENS = 1 << 24, POOL_WINDOWS = 16 };

/* A document, or a window's worth of one. */
struct item {
	int64_t order, n;
	int64_t tokens; /* byte of layout.tokens */
	int64_t at;	/* its first token in the document */
	int64_t spans, n_spans;
	int64_t window; /* its window in the pool; then the order of that one's first item */
};

struct window {
	int64_t room, first;
	int64_t next; /* with as much room; -1: none */
};

struct layout {
	struct writing *x;
	int lane;
	bool writes; /* or counts */
	int64_t size, row_bytes, done, train;
	struct item *items;
	int64_t n, n_tokens;
	struct str tokens, spans, padding;
	struct window *windows;
	int64_t n_windows;
	int64_t *with_room; /* [size + 1], the last window that has so much; -1: none */
	uint64_t *has;	    /* a bit for each of these that has one */
};

static void layout_open(struct layout *l, struct writing *x, int lane, bool writes)
{
	*l = (struct layout){.x = x,
		.lane = lane,
		.writes = writes,
		.size = x->a->of->p->window,
		.row_bytes = x->a->of->row_bytes};
	l->with_room = xcalloc((size_t)l->size + 1, sizeof(*l->with_room));
	l->has = xcalloc((size_t)l->size / 64 + 1, sizeof(*l->has));
	int64_t end = tokenizer_end_of_text(x->a->of->t);
	uint32_t id = (uint32_t)max64(0, end);
	for (int64_t i = 0; i < l->size; i++) /* little-endian */
		str_add(&l->padding, &id, (size_t)l->row_bytes);
}

static void layout_close(struct layout *l)
{
	free(l->items);
	free(l->windows);
	free(l->with_room);
	free(l->has);
	str_free(&l->tokens);
	str_free(&l->spans);
	str_free(&l->padding);
}

/* ---- the pool -------------------------------------------------------------------------------- */

/* Reads n tokens of the document of a stream. */
static int read_tokens(
	struct layout *l, struct document_stream *s, int64_t n, struct err *e)
{
	while (n) {
		struct extent from;
		int64_t now = stream_tokens(s, n, &from, e);
		if (now < 0)
			return -1;
		size_t n_bytes = (size_t)(now * l->row_bytes);
		str_room(&l->tokens, n_bytes);
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

static int add_item(
	struct layout *l, struct document_stream *s, int64_t at, int64_t n, struct err *e)
{
	l->items = xgrow(l->items, l->n, sizeof(*l->items));
	l->items[l->n] = (struct item){.order = l->n,
		.n = n,
		.tokens = (int64_t)l->tokens.len,
		.at = at,
		.spans = (int64_t)(l->spans.len / sizeof(*s->spans)) - s->n_spans,
		.n_spans = s->n_spans};
	l->n++;
	l->n_tokens += n;
	return l->writes ? read_tokens(l, s, n, e) : 0;
}

/* `n`: tokens that are wanted of the document. */
static int add_document(
	struct layout *l, struct document_stream *s, int64_t n, struct err *e)
{
	const struct prepare *p = l->x->a->of->p;
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
		if (add_item(l, s, at, min64(l->size, n - at), e))
			return -1;
	return 0;
}

/* 1: there are documents, 0: there are no more, -1. */
static int fill(struct layout *l, struct err *e)
{
	struct share *v;
	int64_t most = max64(POOL_TOKENS, POOL_WINDOWS * l->size);
	int rc = 1;
	l->n = l->n_tokens = 0;
	str_clear(&l->tokens);
	str_clear(&l->spans);
	while (l->n_tokens < most && (rc = lane_next(l->x, l->lane, &v, e)) > 0) {
		int64_t n = min64(v->stream.left, v->want - v->done);
		v->done += n;
		if (add_document(l, &v->stream, n, e))
			return -1;
	}
	return rc < 0 ? -1 : l->n > 0;
}

/* ---- best fit -------------------------------------------------------------------------------- */

static void keep_window(struct layout *l, int64_t i)
{
	int64_t room = l->windows[i].room;
	l->windows[i].next = l->with_room[room];
	l->with_room[room] = i;
	l->has[room / 64] |= UINT64_C(1) << room % 64;
}

/* Takes a window with the least room that is enough for n tokens; -1: there is none. */
static int64_t take_window(struct layout *l, int64_t n)
{
	int64_t word = n / 64, last = l->size / 64;
	uint64_t bits = l->has[word] & (UINT64_MAX << n % 64);
	while (!bits && word < last)
		bits = l->has[++word];
	if (!bits)
		return -1;
	int64_t room = 64 * word + __builtin_ctzll(bits), i = l->with_room[room];
	l->with_room[room] = l->windows[i].next;
	if (l->with_room[room] < 0)
		l->has[word] &= bits - 1;
	return i;
}

static int longest_first(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	if (x->n != y->n)
		return x->n < y->n ? 1 : -1;
	return (x->order > y->order) - (x->order < y->order);
}

static int by_window(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	if (x->window != y->window)
		return x->window > y->window ? 1 : -1;
	return (x->order > y->order) - (x->order < y->order);
}

/* Sorts the items by their windows. */
static void place(struct layout *l)
{
	l->n_windows = 0;
	for (int64_t i = 0; i <= l->size; i++)
		l->with_room[i] = -1;
	memset(l->has, 0, ((size_t)l->size / 64 + 1) * sizeof(*l->has));
	qsort(l->items, (size_t)l->n, sizeof(*l->items), longest_first);
	for (int64_t k = 0; k < l->n; k++) {
		struct item *x = &l->items[k];
		int64_t i = take_window(l, x->n);
		if (i < 0) {
			l->windows = xgrow(l->windows, l->n_windows, sizeof(*l->windows));
			i = l->n_windows++;
			l->windows[i] = (struct window){l->size, INT64_MAX, -1};
		}
		x->window = i;
		l->windows[i].room -= x->n;
		l->windows[i].first = min64(l->windows[i].first, x->order);
		keep_window(l, i);
	}
	for (int64_t k = 0; k < l->n; k++)
		l->items[k].window = l->windows[l->items[k].window].first;
	qsort(l->items, (size_t)l->n, sizeof(*l->items), by_window);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int put_item(struct layout *l, enum split s, const struct item *x, struct err *e)
{
	const struct token_span *spans = (const void *)l->spans.s;
	const struct token_spans of = {spans + x->spans, x->n_spans};
	struct extent from = {.memory = l->tokens.s, .at = x->tokens};
	shard_writer_document(l->x->w, s);
	shard_writer_counted(l->x->w, s, false); /* nothing predicts the first token */
	if (shard_writer_put_raw(l->x->w, s, from, 1, e))
		return -1;
	from.at += l->row_bytes;
	return put_counted(l->x, s, of, x->at + 1, from, x->n - 1, e);
}

static int put_padding(struct layout *l, enum split s, int64_t n, struct err *e)
{
	const struct extent from = {.memory = l->padding.s};
	if (!n)
		return 0;
	shard_writer_document(l->x->w, s);
	shard_writer_counted(l->x->w, s, false);
	return shard_writer_put_raw(l->x->w, s, from, n, e);
}

/* The items of a window, from the first on. */
static int put_window(
	struct layout *l, const struct item *first, const struct item *end, struct err *e)
{
	enum split s =
		l->lane == SPLIT_VAL || l->done >= l->train ? SPLIT_VAL : SPLIT_TRAIN;
	int64_t room = l->size;
	for (const struct item *x = first; x < end; x++) {
		if (put_item(l, s, x, e))
			return -1;
		room -= x->n;
	}
	l->x->out->n_padding += room;
	l->x->done += (double)l->size;
	progress_update(&l->x->bar, l->x->done, NULL);
	return put_padding(l, s, room, e);
}

static int put_windows(struct layout *l, struct err *e)
{
	for (int64_t i = 0, end; i < l->n; i = end, l->done++) {
		for (end = i; end < l->n && l->items[end].window == l->items[i].window;)
			end++;
		if (put_window(l, l->items + i, l->items + end, e))
			return -1;
	}
	return 0;
}

int windows_count(struct writing *x, int lane, int64_t *n, struct err *e)
{
	struct layout l;
	int rc;
	layout_open(&l, x, lane, false);
	while ((rc = fill(&l, e)) > 0) {
		place(&l);
		l.done += l.n_windows;
	}
	*n = l.done;
	layout_close(&l);
	return rc;
}

/* Behind the last window is one token more, the target of the one before it. */
int windows_write(struct writing *x, int lane, int64_t train, struct err *e)
{
	struct layout l;
	int rc;
	layout_open(&l, x, lane, true);
	l.train = lane == SPLIT_VAL ? 0 : train;
	while ((rc = fill(&l, e)) > 0) {
		place(&l);
		if (put_windows(&l, e)) {
			rc = -1;
			break;
		}
	}
	if (!rc && l.train)
		rc = put_padding(&l, SPLIT_TRAIN, 1, e);
	if (!rc && l.done > l.train)
		rc = put_padding(&l, SPLIT_VAL, 1, e);
	x->out->n_windows += l.done;
	layout_close(&l);
	return rc;
}

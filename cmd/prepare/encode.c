/* Batches to pieces. Each thread reads the next batch, and encodes it if it belongs to the
 * thread's rank. So all ranks read all text, which takes much less time than encoding it. */
#include "base/progress.h"
#include "prepare/pipeline.h"
#include "prepare/shard_writer.h"

#include <pthread.h>

enum { SLICE_BYTES = 1 << 20 }; /* text per call of the tokenizer */

const char text_changed[] = "the text changed while it was read";

struct encode_state {
	struct encoding *x;
	pthread_mutex_t lock; /* protects x->keys and x->learn */
	uint64_t options;     /* hash of the options */
};

/* The state of a thread. */
struct worker {
	struct encode_state *s;
	struct piece piece;
	struct document_text document;
	uint32_t *ids;
	int64_t n_ids;
	struct text_changes changes; /* made by normalization */
	/* The position in a document with records, and the spans of counted tokens so far. */
	struct {
		int64_t token, byte,
			counted;	/* next token and byte; index in marked.counted */
		struct token_span last; /* still growing, not yet in the piece */
		uint32_t n_spans;
		bool counts; /* the previous token counts as a target */
	} next;
};

/* Appends an empty document to the piece. Returns it, to be moved by the next call. */
static struct piece_document *append_piece_document(struct piece *p)
{
	p->documents = xgrow(p->documents, p->head.n_documents, sizeof(*p->documents));
	struct piece_document *d = &p->documents[p->head.n_documents++];
	*d = (struct piece_document){0};
	return d;
}

/* Appends n ids to the piece in its token width, and counts them. */
static void append_tokens(struct piece *p, const uint32_t *ids, int64_t n)
{
	char bytes[2048];
	int64_t per_call = (int64_t)sizeof(bytes) / p->head.row_bytes;
	p->head.n_tokens += n;
	for (int64_t i = 0, now; i < n; i += now) {
		now = min64(n - i, per_call);
		str_add(&p->tokens, bytes,
			shard_tokens(bytes, ids + i, now, p->head.row_bytes));
	}
}

/* Appends the open span of tokens that count to the piece, if it has any, and closes it. */
static void end_span(struct worker *w)
{
	struct token_span *s = &w->next.last;
	if (s->begin < s->end) {
		str_add(&w->piece.spans, s, sizeof(*s));
		w->next.n_spans++;
	}
	*s = (struct token_span){0};
}

/* Marks the next n tokens as counted, except the first of the document, which nothing predicts. */
static void mark_counted(struct worker *w, int64_t n)
{
	uint32_t at = (uint32_t)max64(1, w->next.token),
		 end = (uint32_t)(w->next.token + n);
	w->next.token += n;
	if (at >= end)
		return;
	if (w->next.last.end != at) {
		end_span(w);
		w->next.last.begin = at;
	}
	w->next.last.end = end;
}

/* Marks which of the next n tokens count: a token counts if any of its bytes does. */
static void mark_counted_tokens(struct worker *w, const uint32_t *ids, int64_t n)
{
	const struct marked *m = &w->document.marked;
	const int64_t *offset = w->s->x->t->vocab.offset;
	int64_t at = w->next.byte;
	for (int64_t i = 0, from; i < n;) {
		while (w->next.counted < m->n_counted &&
			m->counted[w->next.counted].end <= at)
			w->next.counted++;
		struct extract next = {INT64_MAX, INT64_MAX};
		if (w->next.counted < m->n_counted)
			next = m->counted[w->next.counted];
		for (from = i; i < n; i++) {
			int64_t end = at + offset[ids[i] + 1] - offset[ids[i]];
			if (end > next.begin)
				break;
			at = end;
		}
		w->next.token += i - from;
		w->next.counts = i == from && w->next.counts;
		for (from = i; i < n && at < next.end; i++)
			at += offset[ids[i] + 1] - offset[ids[i]];
		mark_counted(w, i - from);
		w->next.counts = i > from || w->next.counts;
	}
	w->next.byte = at;
}

/* Encodes text[0..n), which n_more bytes follow. Returns n, or -1 - i if byte i is invalid. */
static int64_t encode_slices(struct worker *w, const char *text, int64_t n,
	int64_t n_more, bool last, struct err *e)
{
	const struct tokenizer *t = w->s->x->t;
	int64_t at = 0;
	for (int64_t slice = SLICE_BYTES; at < n;) {
		int64_t n_here = min64(slice, n + n_more - at), n_out;
		bool final = last && at + n_here == n;
		int64_t capacity = tokenizer_max_tokens(t, n_here);
		if (capacity > w->n_ids) {
			w->n_ids = capacity;
			w->ids = xrealloc(w->ids, (size_t)capacity * sizeof(*w->ids));
		}
		int64_t used = t->kind->encode(
			t, text + at, n_here, final, w->ids, capacity, &n_out, e);
		if (used < 0)
			return TEXT_BAD(at + TEXT_BAD(used));
		if (!used && at + n_here == n + n_more)
			break;
		append_tokens(&w->piece, w->ids, n_out);
		if (w->document.records)
			mark_counted_tokens(w, w->ids, n_out);
		at += used;
		slice = used ? SLICE_BYTES : 2 * slice;
	}
	if (at == n)
		return at;
	err_set(e, EX_DATAERR,
		last ? "the text ends within a character"
		     : "this document cannot be encoded in parts: in a part, the tokenizer ends a "
		       "word at a different place than in the whole document");
	return TEXT_BAD(at);
}

/* Returns the offset of byte `at` after normalization. *next: index of the next change. */
static int64_t normalized_place(
	const struct text_changes *c, int64_t *next, int64_t at, bool is_end)
{
	while (*next < c->n && c->v[*next].end <= at)
		++*next;
	const struct text_change *x = &c->v[*next];
	if (*next < c->n && at > x->begin)
		return is_end ? x->to_end : x->to;
	return *next ? at + x[-1].to_end - x[-1].end : at;
}

/* Moves the counted extracts to their offsets in the normalized text. Returns its size, or -1. */
static int64_t move_counted_extracts(struct worker *w, struct err *e)
{
	struct marked *m = &w->document.marked;
	struct text_changes *c = &w->changes;
	int64_t at = 0, all = (int64_t)m->text.len, next = 0;
	c->n = 0;
	for (int64_t i = 0; i <= m->n_tokens; i++) {
		int64_t end = i < m->n_tokens ? m->tokens[i].at.begin : all;
		if (tokenizer_find_changes(
			    w->s->x->t, m->text.s + at, end - at, at, c, e))
			return -1;
		at = i < m->n_tokens ? m->tokens[i].at.end : all;
	}
	for (int64_t i = 0; i < m->n_counted && c->n; i++) {
		struct extract *x = &m->counted[i];
		x->begin = normalized_place(c, &next, x->begin, false);
		x->end = normalized_place(c, &next, x->end, true);
	}
	return c->n ? all + c->v[c->n - 1].to_end - c->v[c->n - 1].end : all;
}

/* Encodes a text and its marker tokens. Returns its size, or -1 - i if byte i is invalid. */
static int64_t encode_marked(struct worker *w, struct err *e)
{
	const struct marked *m = &w->document.marked;
	int64_t at = 0, all = (int64_t)m->text.len, changed = move_counted_extracts(w, e);
	if (changed < 0)
		return TEXT_BAD(0);
	for (int64_t i = 0; i <= m->n_tokens; i++) {
		const struct marker_token *next = i < m->n_tokens ? &m->tokens[i] : NULL;
		int64_t end = next ? next->at.begin : all;
		if (encode_slices(w, m->text.s + at, end - at, 0, true, e) < 0)
			return TEXT_BAD(at);
		if (next && next->id != BPE_NONE) {
			append_tokens(&w->piece, &next->id, 1);
			mark_counted_tokens(w, &next->id, 1);
		}
		at = next ? next->at.end : all;
	}
	if (w->next.byte != changed) {
		err_set(e, EX_SOFTWARE,
			"internal error: the tokens have %lld bytes, but the text has %lld",
			(long long)w->next.byte, (long long)changed);
		return TEXT_BAD(0);
	}
	return all;
}

/* Appends the token ids of a record to the worker's piece, and marks those that count. */
static void append_ids(struct worker *w)
{
	const struct marked *m = &w->document.marked;
	append_tokens(&w->piece, m->ids, m->n_ids);
	for (int64_t i = 0; i < m->n_counted; i++) {
		w->next.token = m->counted[i].begin;
		mark_counted(w, m->counted[i].end - m->counted[i].begin);
	}
	w->next.token = m->n_ids;
}

/* Encodes a part of a document or a record. Returns n, or -1 - i if byte i is invalid. */
static int64_t encode_document(struct worker *w, const struct document_part *part,
	const char *text, int64_t n, struct err *e)
{
	if (!w->document.records)
		return encode_slices(w, text, n, part->n_more, part->last, e);
	memset(&w->next, 0, sizeof(w->next));
	if (!w->document.marked.n_ids)
		return encode_marked(w, e);
	append_ids(w);
	return n;
}

/* Appends the end-of-text token to the worker's piece, if the tokenizer has one. It
 * counts if the token before it does. */
static void append_end_of_text(struct worker *w)
{
	const struct encoding *x = w->s->x;
	uint32_t end = (uint32_t)x->end_of_text;
	if (x->end_of_text < 0)
		return;
	append_tokens(&w->piece, &end, 1);
	if (w->document.records && w->next.counts) /* counts if the previous token does */
		mark_counted(w, 1);
}

/* Learns the vocabulary from a text. Returns n, or -1 - i if byte i is invalid. */
static int64_t learn_from_text(
	struct worker *w, const char *text, int64_t n, bool last, struct err *e)
{
	struct encode_state *s = w->s;
	struct tokenizer *t = s->x->learn;
	pthread_mutex_lock(&s->lock);
	int64_t used = t->kind->learn(t, text, n, last, e);
	s->x->learned.n++;
	pthread_mutex_unlock(&s->lock);
	if (used >= 0 && used < n) {
		err_set(e, EX_DATAERR, "the text ends within a character");
		return TEXT_BAD(used);
	}
	return used;
}

static const char *file_name(const struct worker *w, const struct document_part *part)
{
	return w->s->x->inputs->files[part->file].name;
}

/* Returns true for a file that has many documents, so that one that cannot be read is skipped. */
static bool has_records(const struct input_file *f)
{
	return f->is_jsonl || f->is_table;
}

/* Prefixes an error with the file and the position of byte `bad` of a part. Returns -1. */
static int prefix_position(const struct worker *w, const struct document_part *part,
	int64_t bad, struct err *e)
{
	const struct input_file *f = &w->s->x->inputs->files[part->file];
	if (has_records(f))
		return err_prefix(e,
			f->is_table ? "%s: row %lld: byte %lld of the text: "
				    : "%s:%lld: byte %lld of the text: ",
			f->name, (long long)part->position, (long long)bad);
	return err_prefix(e, "%s: byte %lld: ", file_name(w, part),
		(long long)(part->position + bad));
}

/* Returns the fate of a part: FATE_PART unless the part is a whole document; -1 on an error. */
static int filter_part(struct worker *w, const struct document_part *part,
	const char *text, int64_t n, struct err *e)
{
	return part->first && part->last ? filter_fate(w->s->x->filter, text, n, e)
					 : FATE_PART;
}

/* Returns true, with *why set, if a text has too many combining marks on one character to be
 * normalized. */
static bool has_too_many_marks(
	struct worker *w, const char *text, int64_t n, struct err *why)
{
	enum { MAX_UNCHECKED_BYTES = 1 << 22 };
	w->changes.n = 0;
	return n > MAX_UNCHECKED_BYTES && !w->document.marked.n_ids &&
	       tokenizer_find_changes(w->s->x->t, text, n, 0, &w->changes, why) < 0;
}

/* Filters and encodes a document or a part of one, and appends it to the worker's piece;
 * if the pass learns a vocabulary, only counts its words. */
static int process_document(struct worker *w, const struct document_part *part,
	const char *text, int64_t n, struct err *e)
{
	const struct encoding *x = w->s->x;
	int64_t used;
	if (x->learn) {
		used = learn_from_text(w, text, n, part->last, e);
		return used < 0 ? prefix_position(w, part, TEXT_BAD(used), e) : 0;
	}
	const struct input_file *f = &x->inputs->files[part->file];
	struct err why = {0};
	int fate = filter_part(w, part, text, n, e);
	if (fate < 0)
		return prefix_position(w, part, 0, e);
	if (has_records(f) && fate == FATE_KEPT && has_too_many_marks(w, text, n, &why))
		return count_broken_line(x->p, f, part, &w->document, &why, e) < 0 ? -1
										   : 0;
	struct piece_document *d = append_piece_document(&w->piece);
	int64_t before = w->piece.head.n_tokens;
	d->hash = hash128_bytes(text, (size_t)n, 0);
	d->n_bytes = n;
	d->fate = (uint8_t)fate;
	d->first = part->first;
	d->last = part->last;
	if (fate != FATE_KEPT && fate != FATE_PART)
		return 0;
	used = encode_document(w, part, text, n, e);
	if (used < 0 && x->has_read_text) /* the previous pass accepted it */
		return err_set(e, EX_DATAERR, "%s: %s", file_name(w, part), text_changed);
	if (used < 0)
		return prefix_position(w, part, TEXT_BAD(used), e);
	if (part->last)
		append_end_of_text(w);
	end_span(w);
	d->n_spans = w->next.n_spans;
	d->n_tokens = w->piece.head.n_tokens - before;
	return 0;
}

/* Hashes all that a piece depends on except the text of its batch. */
static uint64_t hash_options(const struct encoding *x)
{
	const struct prepare *p = x->p;
	scoped_str all = {0};
	if (x->t)
		tokenizer_pack(x->t, &all);
	str_printf(&all, "%lld %lld %lld %d %d %d %s", (long long)x->end_of_text,
		(long long)p->min_bytes, (long long)p->max_bytes, p->tokenizer.special,
		p->strict, p->format, p->field ? p->field : "");
	str_putc(&all, '\0');
	str_puts(&all, x->records ? records_options(x->records) : "");
	str_putc(&all, '\0');
	str_puts(&all, p->separator ? p->separator : "");
	for (int64_t i = 0; i < p->keep.n; i++)
		str_printf(&all, "%c+%s", '\0', p->keep.v[i]);
	for (int64_t i = 0; i < p->drop.n; i++)
		str_printf(&all, "%c-%s", '\0', p->drop.v[i]);
	return hash_bytes(all.s, all.len, 0);
}

/* Hashes the text of a batch, its division into documents, and the options. */
static struct hash128 batch_key(const struct batch *b, uint64_t options)
{
	struct hash128 all[2] = {
		hash128_bytes(b->text.s, b->text.len, options),
		hash128_bytes(b->parts, (size_t)b->n_parts * sizeof(*b->parts),
			(uint64_t)b->source),
	};
	return hash128_bytes(all, sizeof(all), 0);
}

/* Stores the sort key of batch `number`, and grows the list of keys. Thread-safe. */
static void store_key(struct encode_state *s, int64_t number, struct hash128 key)
{
	struct encoding *x = s->x;
	pthread_mutex_lock(&s->lock);
	if (number >= x->keys_capacity) {
		x->keys_capacity = max64(1024, 2 * number);
		x->keys = xrealloc(x->keys, (size_t)x->keys_capacity * sizeof(*x->keys));
	}
	x->keys[number] = key;
	x->n_batches = max64(x->n_batches, number + 1);
	pthread_mutex_unlock(&s->lock);
}

/* Reads the text of a part of a batch and processes it; skips it if blank or broken. */
static int process_part(struct worker *w, const struct batch *b,
	const struct document_part *part, struct err *e)
{
	const struct encoding *x = w->s->x;
	struct document_text *d = &w->document;
	int rc = batch_read_part(x->p, &x->inputs->files[part->file], b, part, d, e);
	if (rc)
		return rc < 0 ? -1 : 0;
	return process_document(w, part, d->text, d->n, e);
}

/* Makes the piece of a batch, unless another rank does or the work files have it. */
static int process_batch(void *worker, const struct batch *b, struct err *e)
{
	struct worker *w = worker;
	struct encoding *x = w->s->x;
	struct piece *p = &w->piece;
	struct hash128 key = {0};
	if (!x->learn) {
		bool is_own = b->number % x->comm->size == x->comm->rank;
		if (!is_own && x->comm->rank)
			return 0;
		key = batch_key(b, w->s->options);
		if (!x->comm->rank)
			store_key(w->s, b->number, key);
		if (!is_own || pieces_contain(x->pieces, b->number, key))
			return 0;
	}
	p->head = (struct piece_head){.number = b->number,
		.key = key,
		.source = b->source,
		.row_bytes = x->row_bytes};
	str_clear(&p->tokens);
	str_clear(&p->spans);
	str_clear(&p->messages);
	w->document.n_broken = 0;
	w->document.messages = &p->messages;
	for (int64_t i = 0; i < b->n_parts; i++)
		if (process_part(w, b, &b->parts[i], e))
			return -1;
	p->head.n_lines_broken = w->document.n_broken;
	if (!x->learn)
		return pieces_add(x->pieces, p, e);
	pthread_mutex_lock(&w->s->lock);
	pass_add(&x->learned, b->number, 0, w->document.n_broken, &p->messages);
	pthread_mutex_unlock(&w->s->lock);
	return 0;
}

static void worker_release(struct worker *w)
{
	piece_release(&w->piece);
	document_text_release(&w->document);
	free(w->ids);
	free(w->changes.v);
}

/* Returns -1 with the error of the first bad batch of all ranks; `bad`: this rank's. Collective. */
static int keep_first_error(struct comm *c, int64_t bad, struct err *e)
{
	int64_t first = comm_min_i64(c, bad);
	if (bad != first)
		*e = (struct err){0};
	return comm_agree(c, e);
}

int encode_all(struct encoding *x, struct err *e)
{
	struct encode_state s = {
		.x = x, .lock = PTHREAD_MUTEX_INITIALIZER, .options = hash_options(x)};
	struct progress bar;
	struct reader *reader = reader_open(
		x->p, x->inputs, x->t, !x->learn && filter_has_expressions(x->filter));
	const struct batches all = {reader, &bar, true, process_batch};
	int threads = x->p->threads < 1 ? 1 : x->p->threads;
	scoped_ptr struct worker *w = xcalloc((size_t)threads, sizeof(*w));
	struct err own = {0};
	for (int i = 0; i < threads; i++)
		w[i].s = &s, w[i].document.records = x->records;
	x->n_batches = 0;
	progress_begin(&bar, x->title, (double)max64(0, x->inputs->n_bytes));
	int64_t bad = batches_run(&all, w, sizeof(*w), threads, &own);
	progress_end(&bar);
	for (int i = 0; i < threads; i++)
		worker_release(&w[i]);
	x->text_bytes = reader_text_bytes(reader);
	x->text_hash = reader_close(reader);
	if (!keep_first_error(x->comm, bad, &own))
		return 0;
	*e = own;
	return -1;
}

/* Batches of documents from the text of the inputs. A document that does not fit into a batch is
 * divided where the tokenizer can restart. These places depend only on the document. */
#include "prepare/pipeline.h"

enum {
	BATCH_BYTES = 1 << 21,
	WINDOW_BYTES = 1 << 23,
	READ_BYTES = 1 << 20, /* per read, unless more are needed */
	PART_BYTES = 1 << 21,
	BATCH_PARTS = 1 << 16,
	MAX_LINE = 1 << 25,
	MAX_WORD = 1 << 30, /* bytes without a place to cut */
};

struct reader {
	const struct prepare *p;
	struct inputs *inputs;
	const struct tokenizer *t;
	struct input *in;
	int64_t file; /* the current one */
	char *window; /* bytes [from, to) have been read, but not added to a batch */
	int64_t from, to, capacity;
	int64_t scanned;	  /* bytes from `from` on without the end of a line */
	int64_t at;		  /* offset of `from` in the decompressed file */
	int64_t line;		  /* number of the next line, from 1 */
	bool has_ended;		  /* the file has no more bytes */
	bool continues;		  /* the next part continues a document */
	bool keeps_whole;	  /* documents up to p->max_bytes are not divided */
	int64_t number;		  /* index of the next batch */
	int64_t done, text_bytes; /* bytes read from complete files; bytes of text */
	struct hash_state *hash;
};

void batch_release(struct batch *b)
{
	str_free(&b->text);
	free(b->parts);
	*b = (struct batch){0};
}

struct reader *reader_open(const struct prepare *p, struct inputs *in,
	const struct tokenizer *t, bool keeps_whole)
{
	struct reader *r = xcalloc(1, sizeof(*r));
	r->p = p;
	r->keeps_whole = keeps_whole;
	r->inputs = in;
	r->t = t;
	r->hash = hash_open();
	return r;
}

int64_t reader_bytes_read(const struct reader *r)
{
	return r->done + (r->in ? input_bytes_read(r->in) : 0);
}

int64_t reader_text_bytes(const struct reader *r)
{
	return r->text_bytes;
}

uint64_t reader_close(struct reader *r)
{
	uint64_t hash = hash_close(r->hash);
	input_close(r->in);
	free(r->window);
	free(r);
	return hash;
}

/* Makes space for n bytes from `from` on. Bytes are moved only when the end of the window is
 * reached, which is rare: reads and documents may be short. */
static void reserve_window(struct reader *r, int64_t n)
{
	if (r->from == r->to)
		r->from = r->to = 0;
	if (r->from + n <= r->capacity)
		return;
	int64_t have = r->to - r->from, want = max64(WINDOW_BYTES, n + n / 2);
	if (have && r->from)
		memmove(r->window, r->window + r->from, (size_t)have);
	r->from = 0;
	r->to = have;
	if (r->capacity < want) {
		r->capacity = want;
		r->window = xrealloc(r->window, (size_t)r->capacity);
	}
}

/* Reads until the window has n bytes, or the file ends. */
static int fill_window(struct reader *r, int64_t n, struct err *e)
{
	if (r->to - r->from >= n || r->has_ended)
		return 0;
	reserve_window(r, n);
	while (r->to - r->from < n) {
		int64_t wanted = max64(READ_BYTES, n - (r->to - r->from));
		int64_t got = input_read(
			r->in, r->window + r->to, min64(wanted, r->capacity - r->to), e);
		if (got < 0)
			return -1;
		if (!got) {
			r->has_ended = true;
			break;
		}
		hash_add(r->hash, r->window + r->to, (size_t)got);
		r->text_bytes += got;
		r->to += got;
	}
	return 0;
}

/* Adds the next n bytes to the batch as a part, followed by n_more bytes that are not consumed. */
static struct document_part *add_part(
	struct reader *r, struct batch *b, int64_t n, int64_t n_more)
{
	b->parts = xgrow(b->parts, b->n_parts, sizeof(*b->parts));
	struct document_part *part = &b->parts[b->n_parts++];
	*part = (struct document_part){.at = (int64_t)b->text.len,
		.n_bytes = n,
		.n_more = n_more,
		.position = r->at,
		.file = (int32_t)r->file,
		.first = true,
		.last = true};
	str_add(&b->text, r->window + r->from, (size_t)(n + n_more));
	r->from += n;
	r->at += n;
	return part;
}

/* Returns where a document that is longer than n bytes may be cut. 0: nowhere; -1 on an error. */
static int64_t find_cut(const struct reader *r, int64_t n, struct err *e)
{
	return tokenizer_cut(r->t, r->window + r->from, n, e);
}

/* Returns true if a document must be read beyond n bytes before it may be cut. */
static bool needs_more(const struct reader *r, int64_t n)
{
	return r->keeps_whole && !r->continues &&
	       !(r->p->max_bytes && n > r->p->max_bytes);
}

/* Adds a document, or a part of a document that is longer than PART_BYTES. */
static int add_next_part(
	struct reader *r, struct batch *b, int64_t n_separator, struct err *e)
{
	for (int64_t n = PART_BYTES; n <= MAX_WORD; n *= 2) {
		if (fill_window(r, n + n_separator + 1,
			    e)) /* more than n bytes, unless the file ends */
			return -1;
		int64_t have = r->to - r->from;
		const char *text = r->window + r->from;
		const char *hit = n_separator
					  ? memmem(text, (size_t)min64(have, n),
						    r->p->separator, (size_t)n_separator)
					  : NULL;
		int64_t end = hit ? hit - text + n_separator : have <= n ? have : 0;
		/* never cut in the middle of a separator */
		int64_t limit = n - max64(0, n_separator - 1);
		int64_t cut = end		     ? end
			      : needs_more(r, limit) ? 0
						     : find_cut(r, limit, e);
		if (cut < 0)
			return err_prefix(e, "%s: ", r->inputs->files[r->file].name);
		if (!cut)
			continue;
		struct document_part *part = add_part(r, b, cut, end ? 0 : limit - cut);
		part->first = !r->continues;
		part->last = end;
		r->continues = !end;
		return 1;
	}
	return err_set(e, EX_DATAERR, "%s: byte %lld: a %s is longer than %d bytes",
		r->inputs->files[r->file].name, (long long)r->at,
		needs_more(r, MAX_WORD) ? "document, which the filters need as a whole,"
					: "word",
		MAX_WORD);
}

/* Warns once if a text without the name of a JSONL file looks like JSONL. */
static void warn_if_jsonl(struct reader *r)
{
	const struct input_file *f = &r->inputs->files[r->file];
	const char *text = r->window + r->from;
	int64_t n = r->to - r->from;
	if (r->inputs->has_warned || f->has_given_format ||
		(r->p->comm && r->p->comm->rank) || n < 2 || memcmp(text, "{\"", 2))
		return;
	const char *end = memchr(text, '\n', (size_t)n);
	end = end ? end : text + n;
	while (strchr(" \t\r", end[-1]))
		end--;
	if (end[-1] != '}')
		return;
	warn("%s: looks like JSONL; --format jsonl reads its field %s", f->name,
		r->p->field ? r->p->field : "text");
	r->inputs->has_warned = true;
}

/* Adds the next part of a plain text to a batch. Warns once if the text looks like JSONL.
 * Returns 0 at the end, -1 with *e set. */
static int add_text_part(struct reader *r, struct batch *b, struct err *e)
{
	int64_t n_separator = r->p->separator ? (int64_t)strlen(r->p->separator) : 0;
	if (fill_window(r, r->at ? 1 : PART_BYTES, e))
		return -1;
	if (!r->at)
		warn_if_jsonl(r);
	return r->to == r->from ? 0 : add_next_part(r, b, n_separator, e);
}

/* Returns the length of the next line with its '\n', and records how far it has searched; 0: the
 * line has more than MAX_LINE; -1 on an error. */
static int64_t find_line_end(struct reader *r, struct err *e)
{
	for (r->scanned = 0; r->scanned < MAX_LINE;) {
		const char *text = r->window + r->from;
		int64_t have = r->to - r->from;
		const char *hit = have > r->scanned ? memchr(text + r->scanned, '\n',
							      (size_t)(have - r->scanned))
						    : NULL;
		int64_t n = hit ? hit - text + 1 : r->has_ended ? have : 0;
		if (n)
			return n <= MAX_LINE ? n : 0;
		r->scanned = have;
		if (fill_window(r, have + 1, e))
			return -1;
	}
	return 0;
}

/* Skips the rest of a line. */
static int skip_line(struct reader *r, struct err *e)
{
	for (;;) {
		int64_t have = r->to - r->from;
		const char *hit = memchr(r->window + r->from, '\n', (size_t)have);
		r->from += hit ? hit - (r->window + r->from) + 1 : have;
		if (hit)
			return 0;
		if (fill_window(r, 1, e))
			return -1;
		if (r->to == r->from)
			return 0;
	}
}

/* Adds the next line of JSONL: 1, 0 at the end of the file, or -1. */
static int add_next_line(struct reader *r, struct batch *b, struct err *e)
{
	if (fill_window(r, 1, e))
		return -1;
	if (r->to == r->from)
		return 0;
	int64_t n = find_line_end(r, e);
	if (n < 0)
		return -1;
	struct document_part *part = add_part(r, b, n, 0);
	part->position = r->line++;
	part->state = n ? ROW_GOOD : ROW_TOO_LONG;
	return n || !skip_line(r, e) ? 1 : -1;
}

/* Adds the next row of a table: 1, 0 at the end of the file, or -1. */
static int add_next_row(struct reader *r, struct batch *b, struct err *e)
{
	size_t before = b->text.len;
	enum row_state state;
	int rc = table_next(input_table(r->in), &b->text, &state, e);
	if (rc <= 0)
		return rc;
	if (r->p->separator && r->p->record == RECORD_TEXT && state == ROW_GOOD)
		str_puts(&b->text, r->p->separator);
	size_t n = b->text.len - before;
	b->parts = xgrow(b->parts, b->n_parts, sizeof(*b->parts));
	b->parts[b->n_parts++] = (struct document_part){.at = (int64_t)before,
		.n_bytes = (int64_t)n,
		.position = r->line++,
		.file = (int32_t)r->file,
		.first = true,
		.last = true,
		.is_row = true,
		.state = (uint8_t)state};
	hash_add(r->hash, &n, sizeof(n));
	hash_add(r->hash, b->text.s + before, n);
	r->text_bytes += (int64_t)n;
	return 1;
}

/* Opens the current file. Copies a stream first if a second pass will read it. */
static int open_file(struct reader *r, struct err *e)
{
	struct input_file *f = &r->inputs->files[r->file];
	bool is_first_pass = !r->t; /* (the second pass encodes with the vocabulary) */
	if (f->is_stream && is_first_pass && input_copy_stream(f, e))
		return -1;
	r->in = input_open(f, r->p, e);
	if (!r->in)
		return -1;
	r->from = r->to = r->at = 0;
	r->line = 1;
	r->has_ended = r->continues = false;
	return 0;
}

int reader_next(struct reader *r, struct batch *b, struct err *e)
{
	str_clear(&b->text);
	b->n_parts = 0;
	b->number = r->number;
	while ((int64_t)b->text.len < BATCH_BYTES && b->n_parts < BATCH_PARTS &&
		r->file < r->inputs->n) {
		const struct input_file *f = &r->inputs->files[r->file];
		if (b->n_parts && b->source != f->source)
			break;
		b->source = f->source;
		if (!r->in && open_file(r, e))
			return -1;
		int rc = f->is_table   ? add_next_row(r, b, e)
			 : f->is_jsonl ? add_next_line(r, b, e)
				       : add_text_part(r, b, e);
		if (rc < 0)
			return -1;
		if (rc)
			continue;
		r->done += input_bytes_read(r->in);
		input_close(r->in);
		r->in = NULL;
		r->file++;
	}
	if (!b->n_parts)
		return 0;
	r->number++;
	return 1;
}

/* Writing of token files: one per split, or several of a given size each. */
#include "prepare/token_file.h"

#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

struct token_stream {
	int fd; /* -1: none */
	char *path;
	struct str buffer; /* bytes to be appended to the file */
};

/* The file of a split that is being written. */
struct out_file {
	struct token_stream tokens, mask; /* mask: a byte for each token */
	int64_t number;			  /* index of the next file */
	int64_t n;			  /* tokens in the current file */
	struct token_lengths lengths;
};

struct token_writer {
	const struct token_format *format;
	const struct prepare *p;
	struct token_type type;
	bool has_masks;
	int64_t per_file; /* tokens; 0: any number */
	struct out_file out[N_SPLITS];
	struct durable **files; /* all files of both splits */
	int64_t n_files;
	struct strs names;
};

struct token_writer *token_writer_open(const struct token_format *format,
	const struct prepare *p, int64_t vocab, bool has_masks, struct err *e)
{
	struct token_type type = format->type(vocab);
	if (!type.bytes) {
		err_set(e, EX_DATAERR,
			"--to %s: a vocabulary of %lld tokens is too large for this format",
			format->name, (long long)vocab);
		return NULL;
	}
	struct token_writer *w = xcalloc(1, sizeof(*w));
	w->format = format;
	w->p = p;
	w->type = type;
	w->has_masks = has_masks;
	w->per_file = p->shard_bytes ? max64(1, p->shard_bytes / type.bytes) : 0;
	for (int s = 0; s < N_SPLITS; s++)
		w->out[s].tokens.fd = w->out[s].mask.fd = -1;
	return w;
}

/* Creates the temporary file for a file of this name. Returns its descriptor, or -1. */
static int create_file(struct token_writer *w, const char *name, struct err *e)
{
	if (file_exists(name) && !w->p->overwrite)
		return err_set(
			e, EX_IOERR, "%s exists%s", name, advice_on(ADVICE_FILE_EXISTS));
	struct durable *d = xcalloc(1, sizeof(*d));
	if (durable_begin(d, name, e)) {
		free(d);
		return -1;
	}
	d->keeps = !w->p->overwrite;
	w->files = xgrow(w->files, w->n_files, sizeof(struct durable *));
	w->files[w->n_files++] = d;
	strs_add(&w->names, name);
	int fd = durable_open(d);
	return fd < 0 ? err_errno(e, name) : fd;
}

/* Creates the next file of split s, such as OUT_train_00001 with suffix `end`. Sets *to. */
static int open_token_stream(struct token_writer *w, enum split s, const char *end,
	struct token_stream *to, struct err *e)
{
	struct str name = {0};
	const char *out = w->p->out;
	size_t n = strlen(out) - (text_ends(out, ".bin") ? 4 : 0);
	bool is_directory = !n || out[n - 1] == '/';
	str_printf(
		&name, "%.*s%s%s", (int)n, out, is_directory ? "" : "_", split_names[s]);
	if (w->per_file)
		str_printf(&name, "_%05lld", (long long)w->out[s].number);
	str_puts(&name, end);
	free(to->path);
	to->path = name.s;
	to->fd = create_file(w, to->path, e);
	return to->fd < 0 ? -1 : 0;
}

/* Creates the next token file of split s, with space for its header, and its mask file. */
static int begin_file(struct token_writer *w, enum split s, struct err *e)
{
	struct out_file *o = &w->out[s];
	if (open_token_stream(w, s, ".bin", &o->tokens, e) ||
		(w->has_masks && open_token_stream(w, s, ".mask", &o->mask, e)))
		return -1;
	o->number++;
	o->n = 0;
	o->lengths.n = 0;
	for (int64_t i = 0; i < w->format->header_bytes; i++) /* written at the end */
		str_putc(&o->tokens.buffer, '\0');
	return 0;
}

/* Writes the buffer to its file and empties it, also if writing fails. */
static int flush_buffer(struct token_stream *o, struct err *e)
{
	int rc = write_all(o->fd, o->buffer.s, o->buffer.len);
	str_clear(&o->buffer);
	return rc ? err_errno(e, o->path) : 0;
}

/* Writes the index file of a finished token file. */
static int write_index(struct token_writer *w, const struct out_file *o, struct err *e)
{
	scoped_str name = {0}, text = {0};
	token_index_name(&name, o->tokens.path);
	w->format->index(&text, w->type, &o->lengths);
	int fd = create_file(w, name.s, e), rc = fd < 0;
	if (!rc)
		rc = file_close(fd, name.s, write_all(fd, text.s, text.len), e);
	return rc ? -1 : 0;
}

/* Writes the header, closes the files of a split, and writes the index. */
static int end_file(struct token_writer *w, enum split s, struct err *e)
{
	struct out_file *o = &w->out[s];
	struct token_stream *t = &o->tokens, *m = &o->mask;
	if (t->fd < 0)
		return 0;
	if (flush_buffer(t, e) || (w->has_masks && flush_buffer(m, e)))
		return -1;
	int rc = 0;
	if (w->format->header) {
		scoped_ptr char *header = xcalloc((size_t)w->format->header_bytes, 1);
		w->format->header(header, w->type, o->n);
		rc = pwrite_all(t->fd, header, (size_t)w->format->header_bytes, 0);
	}
	rc = file_close(t->fd, t->path, rc, e);
	t->fd = -1;
	if (!rc && w->has_masks) {
		rc = file_close(m->fd, m->path, 0, e);
		m->fd = -1;
	}
	return rc || !w->format->index ? rc : write_index(w, o, e);
}

/* Adds n tokens to the last document, or to a new one: also at the beginning of a file. */
static int add_document_tokens(const struct out_file *o, struct token_lengths *l,
	bool begins_document, int64_t n, struct err *e)
{
	if (begins_document || !l->n) {
		l->v = xgrow(l->v, l->n, sizeof(*l->v));
		l->v[l->n++] = 0;
	}
	if (n > INT32_MAX - l->v[l->n - 1])
		return err_set(e, EX_DATAERR,
			"%s: a document has more than %d tokens, the maximum in an index",
			o->tokens.path, INT32_MAX);
	l->v[l->n - 1] += (int32_t)n;
	return 0;
}

/* Buffers n tokens and whether they count; writes the buffers when they are full. */
static int append_tokens(struct token_writer *w, struct out_file *o, const uint32_t *ids,
	int64_t n, bool counts, struct err *e)
{
	if (w->format->max_tokens && o->n + n > w->format->max_tokens)
		return err_set(e, EX_DATAERR,
			"%s: more than %lld tokens, the maximum in a file of format %s; "
			"write several files with --shard-size",
			o->tokens.path, (long long)w->format->max_tokens,
			w->format->name);
	o->n += n;
	for (int64_t i = 0; i < n; i++) /* little-endian: the low bytes are first */
		str_add(&o->tokens.buffer, &ids[i], (size_t)w->type.bytes);
	for (int64_t i = 0; i < n && w->has_masks; i++)
		str_putc(&o->mask.buffer, counts);
	if (o->tokens.buffer.len >= BUFFER_BYTES && flush_buffer(&o->tokens, e))
		return -1;
	return o->mask.buffer.len >= BUFFER_BYTES ? flush_buffer(&o->mask, e) : 0;
}

int token_writer_append(struct token_writer *w, enum split s, bool begins_document,
	bool counts, const uint32_t *ids, int64_t n, struct err *e)
{
	struct out_file *o = &w->out[s];
	bool keeps_documents_whole = w->format->index != NULL;
	for (; n > 0; begins_document = false) {
		int64_t now = n;
		bool is_full = w->per_file && o->n >= w->per_file;
		if (o->tokens.fd >= 0 && is_full &&
			(begins_document || !keeps_documents_whole) && end_file(w, s, e))
			return -1;
		if (o->tokens.fd < 0 && begin_file(w, s, e))
			return -1;
		if (w->per_file && !keeps_documents_whole)
			now = min64(n, w->per_file - o->n);
		if (keeps_documents_whole &&
			add_document_tokens(o, &o->lengths, begins_document, now, e))
			return -1;
		if (append_tokens(w, o, ids, now, counts, e))
			return -1;
		ids += now, n -= now;
	}
	return 0;
}

int token_writer_finish(struct token_writer *w, struct prepared *out, struct err *e)
{
	for (int s = 0; s < N_SPLITS; s++)
		if (end_file(w, (enum split)s, e))
			return -1;
	if (w->n_files && durable_commit_all(w->files, w->n_files, e))
		return -1;
	for (int64_t i = 0; i < w->names.n; i++)
		strs_add(&out->files, w->names.v[i]);
	out->token_bytes = (size_t)w->type.bytes;
	return 0;
}

static void token_stream_release(struct token_stream *o)
{
	if (o->fd >= 0)
		close(o->fd);
	free(o->path);
	str_free(&o->buffer);
}

void token_writer_close(struct token_writer *w)
{
	if (!w)
		return;
	for (int s = 0; s < N_SPLITS; s++) {
		struct out_file *o = &w->out[s];
		token_stream_release(&o->tokens);
		token_stream_release(&o->mask);
		free(o->lengths.v);
	}
	for (int64_t i = 0; i < w->n_files; i++) {
		durable_abort(w->files[i]);
		free(w->files[i]);
	}
	free(w->files);
	strs_free(&w->names);
	free(w);
}

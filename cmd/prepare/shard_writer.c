/* Writing of shards. First the files are created, with the final shapes and without tokens. Each
 * split has a cursor that divides its tokens into blocks, and the two cursors may be in different
 * files. block_writer.c writes the blocks. Then checksums are added, and the files are renamed. A
 * pipe or a device gets a copy of the complete file. */
#include "prepare/shard_writer.h"
#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 99999 }; /* names have five digits */

/* Offsets of tokens in a file: where documents begin, or where counted spans begin and end. */
struct offset_list {
	int64_t *at, n;
};

struct out_file {
	struct durable d;
	char path[4096]; /* temporary name */
	char *name;	 /* name in messages */
	struct shard_info info;
	uint64_t structure; /* h5_get_written_sum() of the file without tokens */
	struct h5_blocks blocks[N_SPLITS];
	struct offset_list starts[N_SPLITS], spans[N_SPLITS];
};

/* The position of the next token of a split. */
struct cursor {
	int64_t file,
		at; /* index of the file; tokens of the split before it in this file */
	struct out_dataset to;
	struct out_block *block; /* the block being filled; NULL: none */
	bool begins_document;	 /* the next token begins a document */
	bool is_context;	 /* the next token does not count */
};

struct shard_writer {
	const struct prepare *p;
	const struct tokenizer *t;
	struct out_file *files;
	int64_t n_files;
	enum h5_type type;
	int image_fd,
		output_fd; /* a temporary file with the shard, and the stream that gets a copy;
				  * -1: files are renamed */
	struct cursor cursors[N_SPLITS];
	bool has_spans; /* the files have spans */
	struct block_writer *blocks;
};

/* Sets the token counts of a file with tokens [begin, end) of all, training tokens first. */
static void set_file_tokens(struct shard_info *i, int64_t begin, int64_t end)
{
	int64_t train = i->total[SPLIT_TRAIN];
	i->tokens[SPLIT_TRAIN] = max64(0, min64(end, train) - begin);
	i->tokens[SPLIT_VAL] = max64(0, end - max64(begin, train));
}

/* Returns true for standard output, a FIFO or a device: the shard is copied to it. */
static bool is_stream(const char *out)
{
	struct stat st;
	return !strcmp(out, "-") || (stat(out, &st) == 0 && !S_ISREG(st.st_mode));
}

static const char *output_name(const struct shard_writer *w)
{
	return strcmp(w->p->out, "-") ? w->p->out : "standard output";
}

/* Opens a stream, and a temporary file for the shard that will be copied to it. */
static int open_image(struct shard_writer *w, struct out_file *f, struct err *e)
{
	struct str name = {0};
	str_printf(&name, "%s, copied to a file in %s", output_name(w),
		file_temporary_directory());
	f->name = name.s;
	w->output_fd = strcmp(w->p->out, "-") ? file_open_output(w->p->out, 0)
					      : dup(STDOUT_FILENO);
	if (w->output_fd < 0)
		return err_errno(e, output_name(w));
	w->image_fd = file_temporary(f->path, e);
	return w->image_fd < 0 ? -1 : 0;
}

/* Sets the names of file i, and creates its temporary file. */
static int begin_file(struct shard_writer *w, int64_t i, struct err *e)
{
	struct out_file *f = &w->files[i];
	const char *out = w->p->out;
	struct str name = {0};
	if (is_stream(out))
		return open_image(w, f, e);
	size_t n = strlen(out);
	bool has_suffix = n > 3 && !strcmp(out + n - 3, ".h5");
	if (w->n_files == 1)
		str_puts(&name, out);
	else
		str_printf(&name, "%.*s-%05lld.h5", (int)(has_suffix ? n - 3 : n), out,
			(long long)i);
	f->name = name.s;
	if (file_exists(f->name) && !w->p->overwrite)
		return err_set(e, EX_IOERR, "%s exists%s", f->name,
			advice_on(ADVICE_FILE_EXISTS));
	if (durable_begin(&f->d, f->name, e))
		return -1;
	f->d.keeps = !w->p->overwrite;
	snprintf(f->path, sizeof(f->path), "%s", f->d.tmp);
	return 0;
}

/* Writes the attributes, the tokenizer and datasets without tokens. */
static int create_file(struct shard_writer *w, struct out_file *f, struct err *e)
{
	struct h5 *h;
	if (h5_open_as(&h, f->path, f->name, H5_MAKE, e))
		return -1;
	int rc = shard_info_write(h, &f->info, e) || tokenizer_write(w->t, h, e);
	for (int s = 0; s < N_SPLITS && !rc; s++) {
		char path[16];
		snprintf(path, sizeof(path), "/%s", split_names[s]);
		rc = h5_blocks_reserve(
			h, path, w->type, 1, &f->info.tokens[s], &f->blocks[s], e);
	}
	f->structure = h5_get_written_sum(h);
	return h5_end(h, rc, e);
}

/* Divides the tokens among files, and creates the files. */
static int create_files(
	struct shard_writer *w, const struct shard_info *info, struct err *e)
{
	int64_t bytes = (int64_t)h5_type_bytes(w->type);
	int64_t total = info->total[SPLIT_TRAIN] + info->total[SPLIT_VAL];
	int64_t per_file =
		w->p->shard_bytes ? max64(1, w->p->shard_bytes / bytes) : total;
	w->n_files = ceil_div(total, per_file);
	if (w->n_files > 1 && is_stream(w->p->out))
		return err_set(e, EX_USAGE,
			"--shard-size: the text fills %lld shards, but %s can hold only one",
			(long long)w->n_files, output_name(w));
	if (w->n_files > MAX_FILES)
		return err_set(e, EX_USAGE,
			"--shard-size %lld: %lld files, but the maximum is %d; give a larger size",
			(long long)w->p->shard_bytes, (long long)w->n_files, MAX_FILES);
	if (!is_stream(w->p->out) && file_check_space(w->p->out, total * bytes, e))
		return -1;
	w->files = xcalloc((size_t)w->n_files, sizeof(*w->files));
	for (int64_t i = 0; i < w->n_files; i++) {
		struct out_file *f = &w->files[i];
		f->info = *info;
		f->info.format = "pt-shard";
		f->info.created_by = "pt-prepare " PT_VERSION;
		f->info.version =
			info->window_tokens ? SHARD_VERSION : SHARD_VERSION_PLAIN;
		f->info.index = i;
		f->info.count = w->n_files;
		set_file_tokens(&f->info, i * per_file, min64(total, (i + 1) * per_file));
		if (begin_file(w, i, e) || create_file(w, f, e))
			return -1;
	}
	return 0;
}

static enum h5_type token_type(const struct tokenizer *t)
{
	return t->vocab.n <= UINT16_MAX + 1 ? H5_U16 : H5_U32;
}

void shard_split(struct shard_info *info, int64_t all, double val_fraction)
{
	info->total[SPLIT_TRAIN] = (int64_t)((double)all * (1 - val_fraction));
	info->total[SPLIT_VAL] = all - info->total[SPLIT_TRAIN];
}

int32_t shard_token_bytes(const struct tokenizer *t)
{
	return (int32_t)h5_type_bytes(token_type(t));
}

struct shard_writer *shard_writer_open(const struct prepare *p, const struct tokenizer *t,
	const struct shard_info *info, struct err *e)
{
	struct shard_writer *w = xcalloc(1, sizeof(*w));
	w->p = p;
	w->t = t;
	w->type = token_type(t);
	w->image_fd = w->output_fd = -1;
	w->blocks = block_writer_open(p->threads < 1 ? 1 : p->threads);
	for (int s = 0; s < N_SPLITS; s++)
		w->cursors[s].to.fd = -1;
	if (create_files(w, info, e)) {
		shard_writer_close(w);
		return NULL;
	}
	return w;
}

/* Opens the next file with tokens of this split. */
static int open_next_file(struct shard_writer *w, enum split s, struct err *e)
{
	struct cursor *c = &w->cursors[s];
	while (c->file < w->n_files && !w->files[c->file].info.tokens[s])
		c->file++;
	if (c->file == w->n_files)
		return err_set(e, EX_DATAERR,
			"internal error: more tokens are written than were counted");
	struct out_file *f = &w->files[c->file];
	int fd = file_open_plain(f->path, O_WRONLY);
	if (fd < 0)
		return err_errno(e, f->name);
	c->to = (struct out_dataset){.fd = fd,
		.name = f->name,
		.blocks = &f->blocks[s],
		.all = hash_open(),
		.syncs = w->image_fd < 0};
	return 0;
}

static void append_offset(struct offset_list *l, int64_t at)
{
	l->at = xgrow(l->at, l->n, sizeof(*l->at));
	l->at[l->n++] = at;
}

/* Waits for the tokens of a split in the current file, closes the split's data set, and moves to
 * the next file. */
static int end_file(struct shard_writer *w, enum split s, struct err *e)
{
	struct cursor *c = &w->cursors[s];
	if (block_writer_wait(w->blocks, e))
		return -1;
	struct out_file *f = &w->files[c->file];
	if (f->spans[s].n % 2)
		append_offset(&f->spans[s], c->at);
	f->info.xxh3[s] = hash_close(c->to.all);
	int rc = close(c->to.fd);
	c->to = (struct out_dataset){.fd = -1};
	if (rc)
		return err_errno(e, f->name);
	c->file++;
	c->at = 0;
	return 0;
}

void shard_writer_begin_document(struct shard_writer *w, enum split s)
{
	w->cursors[s].begins_document = true;
}

void shard_writer_set_counted(struct shard_writer *w, enum split s, bool counts)
{
	w->has_spans = true;
	w->cursors[s].is_context = !counts;
}

/* Appends the offset of the next token if a document begins, or a span begins or ends. */
static int append_token_offsets(struct shard_writer *w, enum split s, struct err *e)
{
	struct cursor *c = &w->cursors[s];
	struct out_file *f = &w->files[c->file];
	struct offset_list *starts = &f->starts[s], *spans = &f->spans[s];
	bool in_span = spans->n % 2;
	if (c->begins_document && starts->n == SHARD_MAX_DOCUMENTS)
		return err_set(e, EX_USAGE,
			"%s: more than %d documents, the maximum in a file%s", f->name,
			SHARD_MAX_DOCUMENTS, advice_on(ADVICE_DOCUMENTS));
	if (c->begins_document)
		append_offset(starts, c->at);
	c->begins_document = false;
	if (in_span != c->is_context)
		return 0;
	if (spans->n == 2 * (int64_t)SHARD_MAX_SPANS)
		return err_set(e, EX_USAGE,
			"%s: more than %d spans of tokens that count, the maximum in a file%s",
			f->name, SHARD_MAX_SPANS, advice_on(ADVICE_DOCUMENTS));
	append_offset(spans, c->at);
	return 0;
}

/* Opens the file and the block of the next token. Returns how many of n tokens fit, or -1. */
static int64_t prepare_block(
	struct shard_writer *w, enum split s, int64_t n, struct err *e)
{
	struct cursor *c = &w->cursors[s];
	if (c->to.fd < 0 && open_next_file(w, s, e))
		return -1;
	if (append_token_offsets(w, s, e))
		return -1;
	int64_t rows = c->to.blocks->block_rows;
	if (!c->block)
		c->block = out_block_begin(w->blocks, &c->to, c->at / rows, e);
	if (!c->block)
		return -1;
	return min64(n, min64(rows - c->at % rows, c->to.blocks->rows - c->at));
}

/* Counts n tokens as appended. Ends the block and the file if they are full. */
static int finish_tokens(struct shard_writer *w, enum split s, int64_t n, struct err *e)
{
	struct cursor *c = &w->cursors[s];
	c->at += n;
	bool last = c->at == c->to.blocks->rows;
	if (c->at % c->to.blocks->block_rows && !last)
		return 0;
	out_block_end(w->blocks, c->block);
	c->block = NULL;
	return last ? end_file(w, s, e) : 0;
}

int shard_writer_append_raw(struct shard_writer *w, enum split s, struct extent from,
	int64_t n, struct err *e)
{
	int64_t row_bytes = (int64_t)h5_type_bytes(w->type);
	while (n > 0) {
		int64_t now = prepare_block(w, s, n, e);
		if (now < 0)
			return -1;
		out_block_add(w->cursors[s].block, &from, now * row_bytes);
		from.at += now * row_bytes;
		n -= now;
		if (finish_tokens(w, s, now, e))
			return -1;
	}
	return 0;
}

size_t shard_tokens(void *to, const uint32_t *ids, int64_t n, int64_t token_bytes)
{
	uint16_t *narrow = to;
	size_t n_bytes = (size_t)(n * token_bytes);
	if (token_bytes == sizeof(*ids))
		memcpy(to, ids, n_bytes);
	else
		for (int64_t i = 0; i < n; i++)
			narrow[i] = (uint16_t)ids[i];
	return n_bytes;
}

int shard_writer_append(struct shard_writer *w, enum split s, const uint32_t *ids,
	int64_t n, struct err *e)
{
	uint32_t bytes[1024];
	for (int64_t i = 0, now; i < n; i += now) {
		now = min64(n - i, ARRAY_LEN(bytes));
		shard_tokens(bytes, ids + i, now, (int64_t)h5_type_bytes(w->type));
		const struct extent here = {(const char *)bytes};
		if (shard_writer_append_raw(w, s, here, now, e))
			return -1;
	}
	return 0;
}

void shard_writer_set_documents(struct shard_writer *w, int64_t n)
{
	for (int64_t i = 0; i < w->n_files; i++)
		w->files[i].info.documents = n;
}

/* Checks by the checksums that the blocks in the file are those that were written. */
static int check_written(const struct out_file *f, struct err *e)
{
	int fd = file_open_plain(f->path, O_RDONLY), rc = 0;
	if (fd < 0)
		return err_errno(e, f->name);
	for (int s = 0; s < N_SPLITS && !rc; s++)
		rc = h5_blocks_check_written(&f->blocks[s], fd, f->name, e);
	close(fd);
	return rc;
}

static int write_offsets(
	struct h5 *h, const char *path, const struct offset_list *l, struct err *e)
{
	return h5_put(h, path, H5_I64, 1, &l->n, l->at, e);
}

/* Adds checksums, document offsets and spans, and seals a file. */
static int finish_file(const struct shard_writer *w, struct out_file *f, struct err *e)
{
	struct h5 *h;
	for (int s = 0; s < N_SPLITS; s++)
		if (!f->info.tokens[s])
			f->info.xxh3[s] = hash_bytes("", 0, 0);
	if (w->has_spans)
		f->info.version = SHARD_VERSION;
	if (h5_open_as(&h, f->path, f->name, H5_ADD, e))
		return -1;
	h5_resume_writing(h, f->structure);
	int rc = shard_info_write(h, &f->info, e);
	for (int s = 0; s < N_SPLITS && !rc; s++)
		rc = h5_blocks_finish(h, &f->blocks[s], e) ||
		     write_offsets(h, document_paths[s], &f->starts[s], e) ||
		     (w->has_spans &&
			     write_offsets(h, counted_paths[s], &f->spans[s], e));
	return h5_finish(h, rc, e) || check_written(f, e) ? -1 : 0;
}

/* Copies the finished temporary shard to the output stream, and closes the stream. */
static int copy_image(struct shard_writer *w, struct err *e)
{
	cleanup_remove(w->files[0].path); /* early, because a pipe may be slow */
	int rc = lseek(w->image_fd, 0, SEEK_SET) ||
		 copy_up_to(w->image_fd, w->output_fd, INT64_MAX) || close(w->output_fd);
	w->output_fd = -1;
	return rc ? err_errno(e, output_name(w)) : 0;
}

/* Renames all files, which are complete. */
static int rename_files(struct shard_writer *w, struct err *e)
{
	scoped_ptr struct durable **all =
		xcalloc((size_t)w->n_files, sizeof(struct durable *));
	for (int64_t i = 0; i < w->n_files; i++)
		all[i] = &w->files[i].d;
	return durable_commit_all(all, w->n_files, e);
}

int shard_writer_finish(struct shard_writer *w, struct prepared *out, struct err *e)
{
	for (int s = 0; s < N_SPLITS; s++)
		BUG_ON(w->cursors[s].to.fd >= 0);
	for (int64_t i = 0; i < w->n_files; i++) {
		strs_add(
			&out->files, w->image_fd < 0 ? w->files[i].name : output_name(w));
		if (finish_file(w, &w->files[i], e))
			return -1;
	}
	if (w->image_fd < 0 ? rename_files(w, e) : copy_image(w, e))
		return -1;
	out->info = w->files[w->n_files - 1].info;
	out->token_bytes = h5_type_bytes(w->type);
	return 0;
}

void shard_writer_close(struct shard_writer *w)
{
	if (!w)
		return;
	block_writer_close(w->blocks);
	for (int s = 0; s < N_SPLITS; s++) {
		const struct out_dataset *to = &w->cursors[s].to;
		if (to->fd >= 0)
			close(to->fd);
		if (to->all)
			hash_close(to->all);
	}
	for (int64_t i = 0; i < w->n_files && w->files; i++) {
		durable_abort(&w->files[i].d);
		free(w->files[i].name);
		for (int s = 0; s < N_SPLITS; s++) {
			h5_blocks_release(&w->files[i].blocks[s]);
			free(w->files[i].starts[s].at);
			free(w->files[i].spans[s].at);
		}
	}
	if (w->image_fd >= 0) {
		cleanup_remove(w->files[0].path);
		close(w->image_fd);
	}
	if (w->output_fd >= 0)
		close(w->output_fd);
	free(w->files);
	free(w);
}

/* Reading of shards. Blocks are checked at first use. */
#include "base/file.h"
#include "data/offsets.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* One split of one file. */
struct segment {
	int64_t first; /* index of its first token in the corpus */
	int64_t n;     /* tokens used by the corpus: all, or all except the last */
	struct h5_blocks blocks;
	int64_t *checked;	  /* [n_blocks]: c->changes + 1 at the last check */
	struct offsets documents; /* read if requested */
	struct offsets spans;	  /* tokens that count as targets; none: all do */
};

struct file {
	char *path; /* its name in messages */
	struct shard_info info;
	int fd;
	struct stat last; /* status at the last corpus_changes() */
	bool changed;	  /* changed since the first corpus_changes() */
	struct segment seg[N_SPLITS];
	bool has_spans;
	bool is_repeat; /* given before in the arguments: the first one owns descriptor and blocks */
	dev_t device;
	ino_t inode;
	int64_t group;	   /* arg_index of the first file of its corpus */
	int64_t arg_index; /* position in the arguments */
};

struct corpus {
	struct tokenizer t;
	struct file *files;
	int64_t n_files;
	int64_t tokens[N_SPLITS];
	int64_t changes; /* detected by corpus_changes() */
	int flags;	 /* CORPUS_SOME and so on */
};

/* Opens a split of a file: its tokens, spans and, if requested, document offsets. */
static int open_segment(
	struct h5 *h, struct file *f, enum split s, int flags, struct err *e)
{
	struct segment *g = &f->seg[s];
	char path[16];
	snprintf(path, sizeof(path), "/%s", split_names[s]);
	if (h5_blocks_open(h, path, &g->blocks, e))
		return -1;
	if ((g->blocks.type != H5_U16 && g->blocks.type != H5_U32) ||
		g->blocks.row_bytes != (int64_t)h5_type_bytes(g->blocks.type))
		return err_set(e, EX_DATAERR,
			"%s: %s is not a one-dimensional dataset of type u16 or u32",
			f->path, path);
	if (g->blocks.rows != f->info.tokens[s])
		return err_set(e, EX_DATAERR, "%s: %s has %lld tokens, not %lld", f->path,
			path, (long long)g->blocks.rows, (long long)f->info.tokens[s]);
	g->checked = xcalloc((size_t)g->blocks.n_blocks, sizeof(*g->checked));
	if (flags & CORPUS_DOCUMENTS ||
		(flags & CORPUS_DOCUMENTS_IF && h5_has(h, document_paths[s])))
		if (documents_read(&g->documents, h, f->path, s, g->blocks.rows, e))
			return -1;
	bool train_has_spans = f->has_spans;
	if (counted_read(&g->spans, &f->has_spans, h, f->path, s, g->blocks.rows, e))
		return -1;
	if (s != SPLIT_TRAIN && f->has_spans != train_has_spans)
		return err_set(e, EX_DATAERR, "%s: has %s, but %s is missing", f->path,
			counted_paths[train_has_spans ? SPLIT_TRAIN : s],
			counted_paths[train_has_spans ? s : SPLIT_TRAIN]);
	return 0;
}

static int not_a_shard_error(const char *name, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: not an HDF5 file, or damaged%s", name,
		advice_on(ADVICE_NOT_A_SHARD));
}

/* Returns true if the file has the signature of HDF5, or cannot be read. */
static bool may_be_h5(int fd)
{
	char first[8];
	if (pread_all(fd, first, sizeof(first), 0))
		return errno != 0;
	return h5_has_signature(first, sizeof(first));
}

/* Opens the shard at `path`, or the copy of a stream there: f->path is its name in messages. */
static int open_shard(struct corpus *c, struct file *f, const char *path, struct err *e)
{
	struct h5 *h;
	struct tokenizer t = {0};
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0)
		return err_errno(e, f->path);
	if (h5_open_as(&h, path, f->path, H5_READ, e))
		return e->code == EX_DATAERR && !may_be_h5(f->fd)
			       ? not_a_shard_error(f->path, e)
			       : -1;
	int rc = shard_read(h, f->path, &f->info, &t, e);
	for (int s = 0; s < N_SPLITS && !rc; s++)
		rc = open_segment(h, f, (enum split)s, c->flags, e);
	if (!rc && !c->t.kind) {
		c->t = t;
		t = (struct tokenizer){0};
	} else if (!rc && !tokenizer_equal(&c->t, &t)) {
		rc = err_set(e, EX_DATAERR,
			"%s: its tokenizer differs from the tokenizer of %s", f->path,
			c->files[0].path);
	}
	tokenizer_release(&t);
	return h5_end(h, rc, e);
}

static bool is_same_corpus(const struct file *a, const struct file *b)
{
	return a->info.source_xxh3 == b->info.source_xxh3 &&
	       a->info.count == b->info.count;
}

/* Fails if a file is missing. A corpus may be given several times, each file equally often. */
static int check_complete(const struct corpus *c, struct err *e)
{
	for (int64_t i = 0; i < c->n_files; i++) {
		const struct file *x = &c->files[i];
		int64_t found = 0, alike = 0;
		for (int64_t k = 0; k < c->n_files; k++) {
			found += is_same_corpus(x, &c->files[k]);
			alike += is_same_corpus(x, &c->files[k]) &&
				 x->info.index == c->files[k].info.index;
		}
		if (x->info.count > c->n_files || found != alike * x->info.count)
			return err_set(e, EX_DATAERR,
				"%s: file %lld (from 0) of %lld, but other files are missing",
				x->path, (long long)x->info.index,
				(long long)x->info.count);
	}
	return 0;
}

/* Compares files: corpora in the order of the arguments, and the files of each corpus by index. */
static int compare_files(const void *a, const void *b)
{
	const struct file *x = a, *y = b;
	if (x->group != y->group)
		return (x->group > y->group) - (x->group < y->group);
	if (x->info.index != y->info.index)
		return (x->info.index > y->info.index) - (x->info.index < y->info.index);
	return (x->arg_index > y->arg_index) - (x->arg_index < y->arg_index);
}

/* Groups the files of the same corpus, and sorts the files by group. */
static void sort_files(struct corpus *c)
{
	for (int64_t i = 0; i < c->n_files; i++) {
		struct file *f = &c->files[i];
		f->arg_index = f->group = i;
		for (int64_t k = 0; k < i && f->group == i; k++)
			if (is_same_corpus(f, &c->files[k]))
				f->group = c->files[k].group;
	}
	qsort(c->files, (size_t)c->n_files, sizeof(*c->files), compare_files);
}

bool corpus_is_stream(const char *path)
{
	struct stat st;
	return !strcmp(path, "-") || (stat(path, &st) == 0 && S_ISFIFO(st.st_mode));
}

/* Copies a stream to a temporary file. Returns its descriptor, and its path in temp_path. */
static int spool_shard(
	int fd, const char *name, char temp_path[AT_LEAST(4096)], struct err *e)
{
	struct stream s;
	if (stream_read_first(&s, fd, name, e))
		return -1;
	if (!s.n)
		return err_set(e, EX_DATAERR, "%s is empty", name);
	if (!h5_has_signature(s.first, s.n))
		return not_a_shard_error(name, e);
	return file_spool(&s, INT64_MAX, temp_path, e);
}

/* Opens a copy of a stream, which is unlinked at once. */
static int open_stream(struct corpus *c, struct file *f, const char *path, struct err *e)
{
	char temp_path[4096];
	int fd = !strcmp(path, "-") ? dup(STDIN_FILENO) : file_open(path);
	if (fd < 0)
		return err_errno(e, f->path);
	int to = spool_shard(fd, f->path, temp_path, e);
	close(fd);
	if (to < 0)
		return -1;
	close(to);
	int rc = open_shard(c, f, temp_path, e);
	cleanup_remove(temp_path);
	return rc;
}

/* Makes *f share the data of an earlier argument that is the same file. False: none is. */
static bool share_open_file(const struct corpus *c, struct file *f, const char *path)
{
	struct stat st;
	if (stat(path, &st))
		return false;
	for (const struct file *x = c->files; x < f; x++) {
		if (x->is_repeat || x->device != st.st_dev || x->inode != st.st_ino)
			continue;
		*f = *x;
		f->path = xstrdup(path);
		f->is_repeat = true;
		return true;
	}
	f->device = st.st_dev;
	f->inode = st.st_ino;
	return false;
}

/* Opens file f of the corpus, a stream or a shard, unless another argument named it. */
static int open_file(struct corpus *c, struct file *f, const char *path, struct err *e)
{
	bool is_stream = corpus_is_stream(path);
	if (!is_stream && share_open_file(c, f, path))
		return 0;
	f->path = xstrdup(!strcmp(path, "-") ? "standard input" : path);
	f->fd = -1;
	return is_stream ? open_stream(c, f, path, e) : open_shard(c, f, path, e);
}

/* Raises the limit of open files: a corpus may have more files than the usual limit of 1,024. */
static void raise_open_file_limit(void)
{
	struct rlimit l;
	if (!getrlimit(RLIMIT_NOFILE, &l)) {
		l.rlim_cur = l.rlim_max;
		setrlimit(RLIMIT_NOFILE, &l);
	}
}

int64_t corpus_window(const struct corpus *c)
{
	int64_t n = c->files[0].info.window_tokens;
	for (int64_t i = 0; i < c->n_files; i++) {
		const struct file *f = &c->files[i];
		bool is_incomplete = f->is_repeat || c->flags & CORPUS_SOME;
		if (f->info.window_tokens != n || (is_incomplete && f->info.count > 1))
			return 0;
	}
	return n;
}

/* Places the files one after the other in split s. The token after the last window of a corpus
 * does not count, and is dropped if another corpus follows, so that windows continue there. */
static void join_files(struct corpus *c, enum split s)
{
	struct file *last = NULL;
	for (int64_t i = 0; i < c->n_files; i++) {
		struct file *f = &c->files[i];
		struct segment *g = &f->seg[s];
		if (last && g->blocks.rows && corpus_window(c) &&
			(f->group != last->group || f->info.count == 1)) {
			last->seg[s].n--;
			c->tokens[s]--;
			for (struct file *x = last + 1; x < f; x++) /* without tokens */
				x->seg[s].first--;
		}
		g->first = c->tokens[s];
		g->n = g->blocks.rows;
		c->tokens[s] += g->n;
		last = g->n ? f : last;
	}
}

int corpus_open(struct corpus **out, const struct strs *files, int flags, struct err *e)
{
	struct corpus *c = xcalloc(1, sizeof(*c));
	int rc = files->n ? 0
			  : err_set(e, EX_USAGE, "no data%s", advice_on(ADVICE_NO_DATA));
	c->flags = flags;
	c->files = xcalloc((size_t)files->n, sizeof(*c->files));
	raise_open_file_limit();
	for (int64_t i = 0; i < files->n && !rc; i++) {
		struct file *f = &c->files[c->n_files++];
		rc = open_file(c, f, files->v[i], e);
	}
	rc = rc || (!(flags & CORPUS_SOME) && check_complete(c, e));
	if (rc) {
		corpus_close(c);
		return -1;
	}
	sort_files(c);
	for (int s = 0; s < N_SPLITS; s++)
		join_files(c, (enum split)s);
	*out = c;
	return 0;
}

int corpus_open_file(struct corpus **out, const char *path, struct err *e)
{
	const struct strs one = {.v = (char *[]){(char *)path}, .n = 1};
	return corpus_open(out, &one, CORPUS_SOME, e);
}

static void close_file(struct file *f)
{
	for (int s = 0; s < N_SPLITS; s++) {
		h5_blocks_release(&f->seg[s].blocks);
		free(f->seg[s].checked);
		offsets_release(&f->seg[s].documents);
		offsets_release(&f->seg[s].spans);
	}
	if (f->fd >= 0)
		close(f->fd);
	shard_info_release(&f->info);
}

void corpus_close(struct corpus *c)
{
	if (!c)
		return;
	for (int64_t i = 0; i < c->n_files; i++) {
		struct file *f = &c->files[i];
		if (!f->is_repeat)
			close_file(f);
		free(f->path);
	}
	free(c->files);
	tokenizer_release(&c->t);
	free(c);
}

const struct tokenizer *corpus_tokenizer(const struct corpus *c)
{
	return &c->t;
}

int64_t corpus_tokens(const struct corpus *c, enum split split)
{
	return c->tokens[split];
}

uint64_t corpus_hash(const struct corpus *c)
{
	scoped_str packed = {0};
	tokenizer_pack(&c->t, &packed);
	uint64_t h = hash_bytes(packed.s, packed.len, 0);
	for (int64_t i = 0; i < c->n_files; i++) {
		const struct file *f = &c->files[i];
		for (int s = 0; s < N_SPLITS; s++) {
			h = hash_mix(h + f->info.xxh3[s]);
			if (c->flags & CORPUS_DOCUMENTS)
				h = hash_mix(h + offsets_hash(&f->seg[s].documents));
			if (f->has_spans)
				h = hash_mix(h + offsets_hash(&f->seg[s].spans));
		}
		if (f->info.window_tokens)
			h = hash_mix(h + (uint64_t)f->info.window_tokens);
	}
	return h;
}

bool corpus_has_spans(const struct corpus *c)
{
	for (int64_t i = 0; i < c->n_files; i++)
		if (c->files[i].has_spans)
			return true;
	return false;
}

const struct shard_info *corpus_info(const struct corpus *c, int64_t file)
{
	return &c->files[file].info;
}

static double timespec_seconds(struct timespec t)
{
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Gets the status of a file. Waits until the tick (at most 10 ms) of the file system's clock in
 * which the file changed is over: it could change again without a new time. */
static void stat_when_settled(int fd, struct stat *s)
{
	enum { TICK_MS = 10, MAX_TICKS = 100 };
	for (int i = 0; i < MAX_TICKS; i++) {
		if (fstat(fd, s))
			*s = (struct stat){0};
		double newest =
			fmax(timespec_seconds(s->st_mtim), timespec_seconds(s->st_ctim));
		if (fabs(clock_wall() - newest) >= 1e-3 * TICK_MS)
			return;
		clock_sleep(1e-3 * TICK_MS);
	}
}

static bool is_unchanged(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size &&
	       !memcmp(&a->st_mtim, &b->st_mtim, sizeof(a->st_mtim)) &&
	       !memcmp(&a->st_ctim, &b->st_ctim, sizeof(a->st_ctim));
}

int64_t corpus_changes(struct corpus *c)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&lock);
	int64_t n = c->changes;
	for (int64_t i = 0; i < c->n_files; i++) {
		struct file *f = &c->files[i];
		struct stat now;
		stat_when_settled(f->fd, &now);
		if (is_unchanged(&now, &f->last))
			continue;
		f->changed = f->last.st_size > 0;
		f->last = now;
		n++;
	}
	__atomic_store_n(&c->changes, n, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return n;
}

/* Reads tokens [at, at + n) of a segment. */
static int read_tokens(const struct file *f, const struct segment *g, int64_t at,
	int64_t n, int32_t *out, struct err *e)
{
	enum { PIECE = 2048 };
	uint16_t x[PIECE];
	size_t bytes = (size_t)g->blocks.row_bytes;
	int64_t offset = g->blocks.offset + at * g->blocks.row_bytes;
	if (g->blocks.type == H5_U32)
		return file_read_at(f->fd, f->path, out, (size_t)n * bytes, offset, e);
	for (int64_t done = 0; done < n; done += PIECE) {
		int64_t count = min64(PIECE, n - done);
		if (file_read_at(f->fd, f->path, x, (size_t)count * bytes,
			    offset + done * (int64_t)bytes, e))
			return -1;
		for (int64_t i = 0; i < count; i++)
			out[done + i] = x[i];
	}
	return 0;
}

/* Reads a block to `bytes`, checks it and marks it as checked. Two threads may do so at once. */
static int read_checked_block(const struct corpus *c, const struct file *f,
	const struct segment *g, int64_t block, void *bytes, struct err *e)
{
	const struct h5_blocks *b = &g->blocks;
	int64_t begin = block * b->block_rows, n = min64(b->block_rows, b->rows - begin);
	int64_t changes = __atomic_load_n(&c->changes, __ATOMIC_ACQUIRE);
	if (file_read_at(f->fd, f->path, bytes, (size_t)h5_block_bytes(b, block),
		    b->offset + begin * b->row_bytes, e))
		return -1;
	if (h5_block_check(b, block, bytes, e))
		return err_prefix(e, "%s%s: ", f->path,
			f->changed ? " changed while it was read" : "");
	for (int64_t i = 0; i < n; i++) {
		uint32_t token = b->type == H5_U16 ? ((const uint16_t *)bytes)[i]
						   : ((const uint32_t *)bytes)[i];
		if (token >= c->t.vocab.n || token >= TOKEN_CONTEXT)
			return err_set(e, EX_DATAERR,
				"%s: %s: token %lld is %lld, but the vocabulary has %lld tokens",
				f->path, b->path, (long long)(begin + i),
				(long long)token, (long long)c->t.vocab.n);
	}
	__atomic_store_n(&g->checked[block], changes + 1, __ATOMIC_RELEASE);
	return 0;
}

static size_t max_block_bytes(const struct segment *g)
{
	return (size_t)(g->blocks.block_rows * g->blocks.row_bytes);
}

/* Verifies a block, unless that was done since the last change of a file. Fails if it is damaged.
 */
static int check_at_first_use(const struct corpus *c, const struct file *f,
	const struct segment *g, int64_t block, struct err *e)
{
	int64_t changes = __atomic_load_n(&c->changes, __ATOMIC_ACQUIRE);
	if (__atomic_load_n(&g->checked[block], __ATOMIC_ACQUIRE) == changes + 1)
		return 0;
	/* not malloc(), which reserves 128 MiB of address space per thread */
	struct arena a;
	arena_init(&a, "a block of tokens", max_block_bytes(g));
	int rc = read_checked_block(c, f, g, block, a.base, e);
	arena_release(&a);
	return rc;
}

/* Reads n tokens from position `at` on. Verifies the checksums of their blocks at first use. */
static int read_segment(const struct corpus *c, const struct file *f,
	const struct segment *g, int64_t at, int64_t n, int32_t *out, struct err *e)
{
	int64_t rows = g->blocks.block_rows;
	for (int64_t b = at / rows; b * rows < at + n; b++)
		if (check_at_first_use(c, f, g, b, e))
			return -1;
	return read_tokens(f, g, at, n, out, e);
}

/* Returns the index of the last file that begins at or before token `at`. */
static int64_t find_file_of_token(const struct corpus *c, enum split split, int64_t at)
{
	int64_t lo = 0, hi = c->n_files - 1;
	while (lo < hi) {
		int64_t mid = (lo + hi + 1) / 2;
		if (c->files[mid].seg[split].first <= at)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo;
}

int corpus_read(struct corpus *c, enum split split, int64_t at, int64_t n, int32_t *out,
	struct err *e)
{
	BUG_ON(at < 0 || n < 0 || at + n > c->tokens[split]);
	for (int64_t i = find_file_of_token(c, split, at); n > 0; i++) {
		const struct file *f = &c->files[i];
		const struct segment *g = &f->seg[split];
		int64_t count = min64(n, g->first + g->n - at);
		if (count <= 0)
			continue;
		if (read_segment(c, f, g, at - g->first, count, out, e))
			return -1;
		at += count, n -= count, out += count;
	}
	return 0;
}

/* Returns true if the tokens of file i continue the previous file of its corpus that has tokens of
 * the split; files without any are skipped. */
static bool continues_previous(const struct corpus *c, enum split split, int64_t i)
{
	const struct file *f = &c->files[i];
	bool next =
		i && is_same_corpus(f, f - 1) && f->info.index == f[-1].info.index + 1;
	return next && (f[-1].info.tokens[split] || continues_previous(c, split, i - 1));
}

void corpus_mark(
	const struct corpus *c, enum split split, int64_t at, int64_t n, int32_t *tokens)
{
	for (int64_t i = find_file_of_token(c, split, at); n > 0; i++) {
		const struct segment *g = &c->files[i].seg[split];
		int64_t count = min64(n, g->first + g->n - at);
		if (count <= 0)
			continue;
		if (c->flags & CORPUS_DOCUMENTS) {
			if (at == g->first && !continues_previous(c, split, i))
				*tokens |= DOCUMENT_BEGINS;
			documents_mark(&g->documents, at - g->first, count, tokens);
		}
		if (c->files[i].has_spans)
			counted_mark(&g->spans, at - g->first, count, tokens);
		at += count, n -= count, tokens += count;
	}
}

/* Checks the blocks of a split of a file, and the hash of its tokens. */
static int verify_segment(
	const struct corpus *c, const struct file *f, enum split split, struct err *e)
{
	const struct segment *g = &f->seg[split];
	struct hash_state *h = hash_open();
	scoped_ptr void *bytes = xmalloc(max_block_bytes(g));
	int rc = 0;
	for (int64_t b = 0; b < g->blocks.n_blocks && !rc; b++) {
		rc = read_checked_block(c, f, g, b, bytes, e);
		if (!rc)
			hash_add(h, bytes, (size_t)h5_block_bytes(&g->blocks, b));
	}
	if (hash_close(h) != f->info.xxh3[split] && !rc)
		rc = err_set(e, EX_DATAERR,
			"%s: %s: the tokens do not match the checksum %s_xxh3", f->path,
			g->blocks.path, split_names[split]);
	return rc;
}

int corpus_verify(struct corpus *c, struct err *e)
{
	for (int64_t i = 0; i < c->n_files; i++)
		for (int s = 0; s < N_SPLITS; s++)
			if (verify_segment(c, &c->files[i], (enum split)s, e))
				return -1;
	return 0;
}

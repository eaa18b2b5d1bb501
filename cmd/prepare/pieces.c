/* Work files: concatenated pieces, in the order in which they were completed. If the program was
 * killed while it wrote a file, the file is truncated after its last complete piece.
 *
 * Temporary pieces are in several files. Each is truncated once it has been read, which frees page
 * cache and disk space for the shards. */
#include "prepare/pipeline.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

enum {
	MAX_RANKS = 4096,
	TEMPORARY_BYTES = 1 << 26, /* minimum size of a temporary file */
	TEMPORARY_PART = 32	   /* and at least 1/32 of all temporary files */
};
static const uint64_t piece_magic = 0x3265636569702d74; /* "t-piece2" */

struct entry {
	int64_t number;
	struct hash128 key;
	struct piece_place place;
};

struct work_file {
	int fd;
	int64_t end;  /* bytes written */
	int64_t left; /* bytes still to be read */
};

struct pieces {
	const char *work;
	struct strs paths;
	struct work_file *files;
	int64_t n_files;
	int lock_fd;	       /* locked file of this rank; -1: none */
	int64_t own_file;      /* index of the file to which pieces are added; -1: none */
	int64_t n_bytes;       /* in all temporary files */
	struct entry *entries; /* the first n_sorted in order of number */
	int64_t n, n_sorted;
	pthread_mutex_t mutex; /* protects files and entries */
};

void piece_release(struct piece *p)
{
	free(p->documents);
	str_free(&p->tokens);
	str_free(&p->spans);
	str_free(&p->messages);
	*p = (struct piece){0};
}

static void add_entry(struct pieces *w, const struct piece_head *h, int fd, int64_t at)
{
	w->entries = xgrow(w->entries, w->n, sizeof(*w->entries));
	w->entries[w->n++] = (struct entry){h->number, h->key, {fd, at}};
}

static int compare_entries(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	if (x->number != y->number)
		return (x->number > y->number) - (x->number < y->number);
	if (x->place.fd != y->place.fd)
		return (x->place.fd > y->place.fd) - (x->place.fd < y->place.fd);
	return (x->place.at > y->place.at) - (x->place.at < y->place.at);
}

void pieces_sort(struct pieces *w)
{
	if (w->n)
		qsort(w->entries, (size_t)w->n, sizeof(*w->entries), compare_entries);
	w->n_sorted = w->n;
}

int pieces_find(const struct pieces *w, int64_t number, struct hash128 key,
	struct piece_place *at)
{
	int64_t lo = 0, hi = w->n_sorted;
	while (lo < hi) {
		int64_t mid = (lo + hi) / 2;
		if (w->entries[mid].number < number)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < w->n_sorted && w->entries[lo].number == number; lo++) {
		if (!hash128_same(w->entries[lo].key, key))
			continue;
		*at = w->entries[lo].place;
		return 0;
	}
	return -1;
}

bool pieces_contain(struct pieces *w, int64_t number, struct hash128 key)
{
	struct piece_place at;
	pthread_mutex_lock(&w->mutex); /* another thread may move the entries */
	bool is_found = !pieces_find(w, number, key, &at);
	pthread_mutex_unlock(&w->mutex);
	return is_found;
}

/* Returns the bytes of a piece after its head; -1: the head is invalid. */
static int64_t body_bytes(const struct piece_head *h)
{
	int64_t docs, tokens, spans, all;
	if (h->n_documents < 0 || h->n_tokens < 0 || h->n_spans < 0 ||
		h->n_message_bytes < 0 || h->row_bytes < 1 ||
		__builtin_mul_overflow(
			h->n_documents, (int64_t)sizeof(struct piece_document), &docs) ||
		__builtin_mul_overflow(h->n_tokens, (int64_t)h->row_bytes, &tokens) ||
		__builtin_mul_overflow(
			h->n_spans, (int64_t)sizeof(struct token_span), &spans) ||
		__builtin_add_overflow(docs, tokens, &all) ||
		__builtin_add_overflow(all, spans, &all) ||
		__builtin_add_overflow(all, h->n_message_bytes, &all))
		return -1;
	return all;
}

static uint64_t head_check(const struct piece_head *h)
{
	return hash_bytes(h, offsetof(struct piece_head, head_check), 0);
}

/* Returns 1 if n bytes of a file at `at` match a checksum, 0 if not, or -1 with errno set. */
static int body_matches(int fd, int64_t at, int64_t n, uint64_t check)
{
	enum { CHUNK = 1 << 18 };
	scoped_ptr char *chunk = xmalloc(CHUNK);
	struct hash_state *h = hash_open();
	bool is_complete = true;
	for (int64_t done = 0; done < n && is_complete; done += CHUNK) {
		size_t now = (size_t)min64(CHUNK, n - done);
		is_complete = !pread_all(fd, chunk, now, at + done);
		hash_add(h, chunk, now);
	}
	int why = is_complete ? 0 : errno;
	bool same = hash_close(h) == check;
	errno = why;
	return why ? -1 : is_complete && same;
}

/* Adds the complete pieces of a file to w. Returns where they end, or -1 with errno set. */
static int64_t scan_pieces(struct pieces *w, int fd)
{
	int64_t at = 0, size = lseek(fd, 0, SEEK_END);
	struct piece_head h;
	while (!pread_all(fd, &h, sizeof(h), at)) {
		int64_t n = body_bytes(&h), body = at + (int64_t)sizeof(h);
		if (h.magic != piece_magic || h.head_check != head_check(&h) || n < 0 ||
			n > size - body)
			return at;
		int matches = body_matches(fd, body, n, h.check);
		if (matches < 1)
			return matches < 0 ? -1 : at;
		add_entry(w, &h, fd, at);
		at = body + n;
	}
	return errno ? -1 : at;
}

/* Adds a work file, which w closes. Returns its index. */
static int64_t add_file(struct pieces *w, int fd, const char *path)
{
	w->files = xgrow(w->files, w->n_files, sizeof(*w->files));
	w->files[w->n_files] = (struct work_file){.fd = fd};
	strs_add(&w->paths, path);
	return w->n_files++;
}

/* Adds the pieces of a rank's work file, if any. is_own: creates it, or cuts a partial piece. */
static int open_rank_file(struct pieces *w, int rank, bool is_own, struct err *e)
{
	scoped_ptr char *path = text_printf("%s/pieces-%d", w->work, rank);
	int fd = file_open_plain(path, is_own ? O_RDWR | O_CREAT : O_RDONLY);
	int rc = 0;
	if (fd < 0 && (errno == ELOOP || errno == EMLINK))
		rc = file_check_plain(path, e);
	else if (fd < 0 && (is_own || errno != ENOENT))
		rc = err_errno(e, path);
	if (fd >= 0) {
		int64_t number = add_file(w, fd, path), end = scan_pieces(w, fd);
		if (end < 0 || (is_own && ftruncate(fd, end)))
			rc = err_errno(e, path);
		if (is_own && !rc) {
			w->own_file = number;
			w->files[number].end = end;
		}
	}
	return rc;
}

/* Locks this rank's files in the --work directory until the program ends. */
static int lock_work_files(struct pieces *w, int rank, struct err *e)
{
	scoped_ptr char *path = text_printf("%s/lock-%d", w->work, rank);
	int rc = file_lock(path, true, &w->lock_fd);
	if (rc)
		err_set(e, EX_IOERR, "%s: %s", path,
			rc == EAGAIN ? "another pt-prepare uses this --work directory"
				     : strerror(rc));
	return rc ? -1 : 0;
}

/* Opens the work files of all ranks, and locks this rank's; rank -1 only reads. */
static int open_work_files(struct pieces *w, int rank, struct err *e)
{
	if (file_make_directory(w->work, e) || (rank >= 0 && lock_work_files(w, rank, e)))
		return -1;
	for (int i = 0; i < MAX_RANKS; i++)
		if (open_rank_file(w, i, i == rank, e))
			return -1;
	return 0;
}

/* Opens a temporary file, to which the next pieces are appended. */
static int open_temporary(struct pieces *w, struct err *e)
{
	int fd = pieces_create_scratch(w, e);
	if (fd < 0)
		return -1;
	scoped_ptr char *name =
		text_printf("a temporary file in %s", file_temporary_directory());
	w->own_file = add_file(w, fd, name);
	return 0;
}

struct pieces *pieces_open(const char *work, int rank, struct err *e)
{
	struct pieces *w = xcalloc(1, sizeof(*w));
	w->work = work;
	w->own_file = w->lock_fd = -1;
	pthread_mutex_init(&w->mutex, NULL);
	if (work ? open_work_files(w, rank, e) : open_temporary(w, e)) {
		pieces_close(w);
		return NULL;
	}
	pieces_sort(w);
	return w;
}

void pieces_close(struct pieces *w)
{
	if (!w)
		return;
	for (int64_t i = 0; i < w->n_files; i++)
		close(w->files[i].fd);
	if (w->lock_fd >= 0)
		close(w->lock_fd);
	strs_free(&w->paths);
	pthread_mutex_destroy(&w->mutex);
	free(w->entries);
	free(w->files);
	free(w);
}

void pieces_remove(struct pieces *w)
{
	if (!w->work)
		return;
	for (int64_t i = 0; i < w->paths.n; i++)
		unlink(w->paths.v[i]);
	for (int i = 0; i < MAX_RANKS; i++) {
		scoped_ptr char *path = text_printf("%s/lock-%d", w->work, i);
		unlink(path);
	}
	rmdir(w->work); /* fails if it has other files */
}

/* Returns the file for the next piece, a new one if the last is full; NULL on error. */
static struct work_file *file_to_append(struct pieces *w, struct err *e)
{
	const struct work_file *f = &w->files[w->own_file];
	bool full = f->end >= max64(TEMPORARY_BYTES, w->n_bytes / TEMPORARY_PART);
	if (!w->work && full && open_temporary(w, e))
		return NULL;
	return &w->files[w->own_file];
}

/* Appends n bytes to a work file. Returns -1 with errno set. */
static int append_bytes(struct work_file *f, const void *p, size_t n)
{
	if (pwrite_all(f->fd, p, n, f->end))
		return -1;
	f->end += (int64_t)n;
	return 0;
}

/* Appends a piece to the file of this rank. Requires the mutex. */
static int append_piece(struct pieces *w, const struct piece *p, struct err *e)
{
	const struct piece_head *h = &p->head;
	struct work_file *f = file_to_append(w, e);
	if (!f)
		return -1;
	int64_t at = f->end;
	if (append_bytes(f, h, sizeof(*h)) ||
		append_bytes(f, p->documents,
			(size_t)h->n_documents * sizeof(*p->documents)) ||
		append_bytes(f, p->tokens.s, p->tokens.len) ||
		append_bytes(f, p->spans.s, p->spans.len) ||
		append_bytes(f, p->messages.s, p->messages.len))
		return err_errno(e, w->work ? w->work : w->paths.v[w->own_file]);
	f->left += f->end - at;
	w->n_bytes += f->end - at;
	add_entry(w, h, f->fd, at);
	return 0;
}

int pieces_add(struct pieces *w, struct piece *p, struct err *e)
{
	struct piece_head *h = &p->head;
	size_t n_docs = (size_t)h->n_documents * sizeof(*p->documents);
	h->magic = piece_magic;
	h->n_spans = (int64_t)(p->spans.len / sizeof(struct token_span));
	h->n_message_bytes = (int64_t)p->messages.len;
	struct hash_state *hash = hash_open();
	hash_add(hash, p->documents, n_docs);
	hash_add(hash, p->tokens.s, p->tokens.len);
	hash_add(hash, p->spans.s, p->spans.len);
	hash_add(hash, p->messages.s, p->messages.len);
	h->check = hash_close(hash);
	h->head_check = head_check(h);
	pthread_mutex_lock(&w->mutex);
	int rc = append_piece(w, p, e);
	pthread_mutex_unlock(&w->mutex);
	return rc;
}

void pieces_mark_read(struct pieces *w, int fd, int64_t n_bytes)
{
	pthread_mutex_lock(&w->mutex);
	for (int64_t i = 0; i < w->n_files; i++)
		if (w->files[i].fd == fd && !(w->files[i].left -= n_bytes) &&
			ftruncate(fd, 0))
			warn("cannot truncate a temporary file: %s", strerror(errno));
	pthread_mutex_unlock(&w->mutex);
}

int pieces_create_scratch(const struct pieces *w, struct err *e)
{
	char path[4096];
	if (!w->work) {
		int fd = file_temporary(path, e);
		if (fd >= 0)
			cleanup_remove(path);
		return fd;
	}
	snprintf(path, sizeof(path), "%s/scratch.XXXXXX", w->work);
	int fd = cleanup_create(path, true);
	if (fd < 0)
		return err_errno(e, path);
	cleanup_remove(path);
	return fd;
}

/* Records in temporary files, each small enough to be sorted in memory. */
#include "prepare/assembly.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 15 };

struct bucket {
	int fd;
	int64_t n_bytes; /* size of the file, without the buffer */
	struct str buffer;
};

struct buckets {
	struct bucket *v;
	int n;
	void *map;
	size_t map_bytes;
};

struct buckets *buckets_open(const struct pieces *w, int n, struct err *e)
{
	struct buckets *b = xcalloc(1, sizeof(*b));
	b->v = xcalloc((size_t)n, sizeof(*b->v));
	for (b->n = 0; b->n < n; b->n++) {
		b->v[b->n].fd = pieces_create_scratch(w, e);
		if (b->v[b->n].fd < 0) {
			buckets_close(b);
			return NULL;
		}
	}
	return b;
}

/* Writes the buffer of a bucket to the end of its file, and empties it. */
static int flush_bucket(struct bucket *file, struct err *e)
{
	if (pwrite_all(file->fd, file->buffer.s, file->buffer.len, file->n_bytes))
		return err_set(e, EX_IOERR, "a temporary file: %s", strerror(errno));
	file->n_bytes += (int64_t)file->buffer.len;
	str_clear(&file->buffer);
	return 0;
}

int buckets_append(
	struct buckets *b, int bucket, const void *p, size_t n_bytes, struct err *e)
{
	struct bucket *file = &b->v[bucket];
	str_add(&file->buffer, p, n_bytes);
	return file->buffer.len < BUFFER_BYTES ? 0 : flush_bucket(file, e);
}

int buckets_fd(const struct buckets *b, int bucket)
{
	return b->v[bucket].fd;
}

static void unmap_bucket(struct buckets *b)
{
	if (b->map)
		munmap(b->map, b->map_bytes);
	b->map = NULL;
}

int buckets_map(struct buckets *b, int bucket, const char **p, int64_t *n, struct err *e)
{
	struct bucket *file = &b->v[bucket];
	if (flush_bucket(file, e))
		return -1;
	str_free(&file->buffer);
	unmap_bucket(b);
	*p = NULL;
	*n = file->n_bytes;
	if (!file->n_bytes)
		return 0;
	void *map =
		mmap(NULL, (size_t)file->n_bytes, PROT_READ, MAP_PRIVATE, file->fd, 0);
	if (map == MAP_FAILED)
		return err_set(e, EX_IOERR, "a temporary file: %s", strerror(errno));
	b->map = map;
	b->map_bytes = (size_t)file->n_bytes;
	*p = map;
	return 0;
}

void buckets_close(struct buckets *b)
{
	if (!b)
		return;
	unmap_bucket(b);
	for (int i = 0; i < b->n; i++) {
		close(b->v[i].fd);
		str_free(&b->v[i].buffer);
	}
	free(b->v);
	free(b);
}

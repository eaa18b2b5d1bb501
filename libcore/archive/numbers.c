/* Numbers in a file, and the hash of a file that has its hash in itself. */
#include "archive/safetensors.h"

#include "base/file.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <unistd.h>

int numbers_read(int fd, const char *path, enum dtype dtype, int64_t at, int64_t n,
	float *out, struct err *e)
{
	struct device d;
	size_t n_bytes = (size_t)(n * dtype_bytes(dtype));
	if (dtype == DT_F32)
		return file_read_at(fd, path, out, n_bytes, at, e);
	scoped_ptr uint16_t *half = xmalloc(n_bytes + 1);
	int rc = file_read_at(fd, path, half, n_bytes, at, e);
	device_cpu(&d, 0);
	if (!rc)
		d.k->widen(&d, mat(out, 1, n), half, dtype);
	return rc;
}

int file_hash_around(int fd, int64_t hole, int64_t n, char fill, uint64_t *hash)
{
	enum { PIECE = 1 << 20 };
	scoped_ptr char *piece = xmalloc(PIECE);
	struct hash_state *h = hash_open();
	int64_t at = 0;
	ssize_t got;
	while ((got = pread(fd, piece, PIECE, at)) > 0 || (got < 0 && errno == EINTR)) {
		got = got < 0 ? 0 : got;
		for (int64_t i = max64(at, hole); i < min64(at + got, hole + n); i++)
			piece[i - at] = fill;
		hash_add(h, piece, (size_t)got);
		at += got;
	}
	*hash = hash_close(h);
	return got < 0 ? -1 : 0;
}

/* Reading of token files. */
#include "tokens/tokens.h"

#include <sys/stat.h>
#include <unistd.h>

/* Opens a file and reads its header. A stream is copied to a temporary file, up to max_bytes. */
static int open_path(
	struct token_file *f, const char *path, int64_t max_bytes, struct err *e)
{
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	struct str name = {0};
	str_puts(&name, is_stdin ? "standard input" : path);
	if (f->format->to_tokens_path && !is_stdin)
		f->format->to_tokens_path(&name);
	f->path = name.s;
	f->fd = is_stdin ? dup(STDIN_FILENO) : file_open(f->path);
	if (f->fd < 0 || fstat(f->fd, &st))
		return err_errno(e, f->path);
	if (S_ISDIR(st.st_mode))
		return err_set(e, EX_IOERR, "%s: is a directory", f->path);
	if (!S_ISREG(st.st_mode)) {
		int fd = f->fd;
		f->fd = file_copy_stream(fd, f->path, max_bytes, e);
		close(fd);
		if (f->fd < 0 || fstat(f->fd, &st))
			return -1;
	}
	return f->format->open(f, st.st_size, e);
}

/* Opens a token file or a mask. max_bytes: limit of a stream. */
static int open_limited(struct token_file *f, const char *path,
	const struct token_format *format, int64_t max_bytes, struct err *e)
{
	*f = (struct token_file){.format = format, .fd = -1};
	if (!open_path(f, path, max_bytes, e))
		return 0;
	token_file_close(f);
	return -1;
}

int token_file_open(struct token_file *f, const char *path,
	const struct token_format *format, struct err *e)
{
	return open_limited(f, path, format, INT64_MAX, e);
}

static int open_bytes(struct token_file *f, int64_t n_bytes, struct err *e)
{
	(void)e;
	f->type = (struct token_type){1, false};
	f->n = n_bytes;
	return 0;
}

int token_mask_open(struct token_file *f, const char *path, int64_t n, struct err *e)
{
	static const struct token_format bytes = {.name = "mask", .open = open_bytes};
	const struct token_format *format = token_format_detect(path);
	bool is_known = format && (format->index || format->header);
	if (open_limited(
		    f, path, is_known ? format : &bytes, is_known ? INT64_MAX : n, e))
		return -1;
	if (f->n == n)
		return 0;
	err_set(e, EX_DATAERR,
		"%s: this mask is for %lld tokens, but its token file has %lld", path,
		(long long)f->n, (long long)n);
	token_file_close(f);
	return -1;
}

/* Returns the integer at p, of any width and sign. */
static int64_t decode_token(const char *p, struct token_type t)
{
	union {
		int8_t i8;
		uint8_t u8;
		int16_t i16;
		uint16_t u16;
		int32_t i32;
		uint32_t u32;
		int64_t i64;
	} x;
	memcpy(&x, p, (size_t)t.bytes);
	switch (t.bytes) {
	case 1:
		return t.has_sign ? x.i8 : x.u8;
	case 2:
		return t.has_sign ? x.i16 : x.u16;
	case 4:
		return t.has_sign ? (int64_t)x.i32 : (int64_t)x.u32;
	default:
		return x.i64;
	}
}

int token_file_read(const struct token_file *f, int64_t at, int64_t n, int64_t vocab,
	uint32_t *out, struct err *e)
{
	enum { CHUNK_TOKENS = 1 << 12 };
	char bytes[CHUNK_TOKENS * sizeof(int64_t)];
	for (int64_t done = 0; done < n; done += CHUNK_TOKENS) {
		int64_t now = min64(CHUNK_TOKENS, n - done);
		if (file_read_at(f->fd, f->path, bytes, (size_t)(now * f->type.bytes),
			    f->begin + (at + done) * f->type.bytes, e))
			return -1;
		for (int64_t i = 0; i < now; i++) {
			int64_t id = decode_token(bytes + i * f->type.bytes, f->type);
			if (id < 0 || id >= vocab)
				return err_set(e, EX_DATAERR,
					"%s: token %lld is %lld, but the vocabulary has "
					"%lld tokens",
					f->path, (long long)(at + done + i),
					(long long)id, (long long)vocab);
			out[done + i] = (uint32_t)id;
		}
	}
	return 0;
}

void token_file_close(struct token_file *f)
{
	if (f->fd >= 0)
		close(f->fd);
	free(f->documents);
	free(f->path);
	*f = (struct token_file){.fd = -1};
}

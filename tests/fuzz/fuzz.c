/* What the fuzz targets share. */
#include "base/file.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

/* HDF5 takes and gives back much at a time: what was freed is not kept for long. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "quarantine_size_mb=16:malloc_context_size=12:max_allocation_size_mb=3000:"
	       "allocator_may_return_null=1";
}

/* What lasts until a program ends: HDF5's own, and the options of a run. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libhdf5\nleak:H5FL_\nleak:options_parse_model\nleak:local_sgd_choose_state\nleak:comm_"
	       "self\n";
}

uint8_t take_byte(struct bytes *b)
{
	if (!b->n)
		return 0;
	b->n--;
	return *b->p++;
}

int64_t take_number(struct bytes *b)
{
	uint8_t kind = take_byte(b);
	int shift = kind & 63;
	if (kind < 64) /* small */
		return shift;
	if (kind < 128)
		return (int64_t)(UINT64_C(1) << shift);
	if (kind < 160)
		return (int64_t)((UINT64_C(1) << shift) - 1);
	if (kind < 192)
		return -(kind - 159);
	if (kind < 224)
		return INT64_MAX - (kind - 192);
	int64_t v = 0;
	for (int i = 0; i < (kind & 7) + 1; i++)
		v = (int64_t)((uint64_t)v << 8 | take_byte(b));
	return v;
}

char *take_text(struct bytes *b, size_t most)
{
	size_t n = 0;
	while (n < b->n && n < most && b->p[n])
		n++;
	char *s = xcalloc(n + 1, 1);
	if (n)
		memcpy(s, b->p, n);
	b->p += n, b->n -= n;
	if (b->n && !*b->p)
		take_byte(b);
	return s;
}

const char *fuzz_folder(void)
{
	static char folder[4096];
	if (!*folder) {
		snprintf(folder, sizeof(folder), "%s/pt-fuzz-XXXXXX",
			file_temporary_directory());
		if (!mkdtemp(folder))
			die(EX_IOERR, "%s cannot be made", folder);
	}
	return folder;
}

const char *fuzz_path(const char *name)
{
	static char paths[4][4200];
	static int next;
	char *path = paths[next++ % 4];
	snprintf(path, sizeof(*paths), "%s/%s", fuzz_folder(), name);
	return path;
}

const char *fuzz_file(const char *name, const void *p, size_t n_bytes)
{
	const char *path = fuzz_path(name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write_all(fd, p, n_bytes))
		die(EX_IOERR, "%s cannot be written", path);
	close(fd);
	return path;
}

static void put16(struct str *out, uint64_t x)
{
	str_putc(out, (char)x);
	str_putc(out, (char)(x >> 8));
}

static void put32(struct str *out, uint64_t x)
{
	put16(out, x);
	put16(out, x >> 16);
}

/* A header of an entry: of its own, or in the directory. */
static void put_header(struct str *out, const char *name, const void *p, size_t n,
	size_t at, bool directory)
{
	str_add(out, directory ? "PK\1\2" : "PK\3\4", 4);
	if (directory)
		put16(out, 0);
	put32(out, 0); /* version, flags */
	put16(out, 0); /* method */
	put32(out, 0);
	put32(out, crc32(0, p, (uInt)n));
	put32(out, n);
	put32(out, n);
	put16(out, strlen(name));
	put16(out, 0);
	if (directory) {
		put16(out, 0);
		put32(out, 0);
		put32(out, 0);
		put32(out, at);
	}
	str_puts(out, name);
}

void fuzz_archive(
	struct str *out, const void *pkl, size_t n_pkl, const void *data, size_t n_data)
{
	static const char *const names[] = {
		"a/data.pkl", "a/data/0", "a/data/1", "a/data/2", "a/data/3"};
	struct str directory = {0};
	size_t begin = out->len;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const void *p = i ? data : pkl;
		size_t n = i ? n_data : n_pkl;
		put_header(&directory, names[i], p, n, out->len - begin, true);
		put_header(out, names[i], p, n, 0, false);
		if (n)
			str_add(out, p, n);
	}
	size_t at = out->len - begin;
	str_add(out, directory.s, directory.len);
	str_add(out, "PK\5\6\0\0\0\0", 8);
	put16(out, ARRAY_LEN(names));
	put16(out, ARRAY_LEN(names));
	put32(out, directory.len);
	put32(out, at);
	put16(out, 0);
	str_free(&directory);
}

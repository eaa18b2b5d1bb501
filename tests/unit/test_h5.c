/* h5: tables of attributes, datasets, blocks and their checksums, the seal, bad files. */
#include "base/file.h"
#include "tests/support/support.h"
#include "h5/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct err e;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	return 0;
}

/* ---- files as bytes -------------------------------------------------------------- */

static struct str bytes_of(const char *path)
{
	struct str all = {0};
	assert_int_equal(file_read(path, SIZE_MAX, &all, &e), 0);
	return all;
}

static void put_bytes(const char *path, const char *p, size_t n)
{
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(p, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static void flip_byte(const char *path, int64_t at)
{
	char c;
	int fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread_all(fd, &c, 1, at), 0);
	c = (char)(c ^ 0x10);
	assert_int_equal(pwrite_all(fd, &c, 1, at), 0);
	close(fd);
}

/* ---- attributes ------------------------------------------------------------------ */

struct things {
	const char *format, *name, *none;
	int64_t version, n;
	uint64_t hash;
	double x;
};

#define F(field) offsetof(struct things, field)
static const struct h5_field table[] = {
	{"format", H5_TEXT, F(format), false, "\"pt-test\""},
	{"version", H5_I64, F(version), false, "1"},
	{"name", H5_TEXT, F(name), false, "a text"},
	{"none", H5_TEXT, F(none), true, "a text that may be absent"},
	{"n", H5_I64, F(n), true, "a number that may be absent"},
	{"hash", H5_U64, F(hash), false, "a hash"},
	{"x", H5_F64, F(x), false, "a real number"},
	{0},
};
#undef F

static const struct things things = {.format = "pt-test",
	.version = 2,
	.name = "größer, 日本",
	.n = INT64_MIN + 1,
	.hash = UINT64_MAX - 5,
	.x = 0x1.fffffffffffffp-1000};

static void things_free(struct things *t)
{
	free((void *)t->format);
	free((void *)t->name);
	free((void *)t->none);
}

static void write_things(struct h5 *f, const char *path, const struct things *t)
{
	assert_int_equal(h5_fields_write(f, path, table, t, &e), 0);
}

static bool same_things(const struct things *a, const struct things *b)
{
	return !strcmp(a->format, b->format) && !strcmp(a->name, b->name) &&
	       !a->none == !b->none && a->version == b->version && a->n == b->n &&
	       a->hash == b->hash && !memcmp(&a->x, &b->x, sizeof(a->x));
}

TEST_AFTER(begin, attributes_read_back)
{
	static const char *const places[] = {"/", "/group", "/deep/er/group"};
	struct h5 *f;
	const char *path = test_path("fields.h5");
	assert_int_equal(h5_create(&f, path, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		struct things t = things;
		t.version += (int64_t)i;
		write_things(f, places[i], &t);
		t.name = ""; /* what is there is replaced */
		write_things(f, places[i], &t);
		t.name = things.name;
		write_things(f, places[i], &t);
	}
	assert_int_equal(h5_close(f, &e), 0);
	assert_int_equal(h5_open(&f, path, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		struct things t = {0}, want = things;
		want.version += (int64_t)i;
		assert_int_equal(h5_fields_read(f, places[i], table, &t, &e), 0);
		assert_true(same_things(&t, &want));
		things_free(&t);
	}
	assert_int_equal(h5_close(f, &e), 0);
	assert_int_equal(e.code, 0);
}

TEST_AFTER(begin, numbers_keep_their_bits)
{
	static const double some[] = {0, -0.0, 4.9e-324, 1.7976931348623157e308,
		(double)INFINITY, (double)NAN, 0.1};
	struct h5 *f;
	assert_int_equal(h5_create(&f, test_path("numbers.h5"), &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		struct things want = things, t = {0};
		want.x = some[i];
		write_things(f, "/", &want);
		assert_int_equal(h5_fields_read(f, "/", table, &t, &e), 0);
		assert_true(same_things(&t, &want));
		things_free(&t);
	}
	assert_int_equal(h5_close(f, &e), 0);
}

TEST_AFTER(begin, attributes_refused)
{
	static const struct h5_field more[] = {{"more", H5_I64, 0}, {0}};
	static const struct h5_field not_text[] = {{"n", H5_TEXT, 0}, {0}};
	static const struct h5_field not_real[] = {{"n", H5_F64, 0}, {0}};
	static const struct h5_field may[] = {{"more", H5_I64, 0, true}, {0}};
	int64_t n = 7;
	struct h5 *f;
	assert_int_equal(h5_create(&f, test_path("refused.h5"), &e), 0);
	write_things(f, "/", &things);
	assert_int_equal(h5_fields_read(f, "/", more, &n, &e), -1);
	assert_non_null(strstr(e.msg, "attribute more of / is missing"));
	assert_int_equal(e.code, EX_DATAERR);
	assert_int_equal(h5_fields_read(f, "/", not_text, &n, &e), -1);
	assert_int_equal(h5_fields_read(f, "/", not_real, &n, &e), -1);
	assert_int_equal(h5_fields_read(f, "/nowhere", may, &n, &e), -1);
	assert_non_null(strstr(e.msg, "/nowhere is missing"));
	assert_int_equal(h5_fields_read(f, "/", may, &n, &e), 0);
	assert_int_equal(n, 7);
	assert_int_equal(h5_close(f, &e), 0);
}

/* ---- datasets -------------------------------------------------------------------- */

TEST_AFTER(begin, datasets_read_back)
{
	static const int64_t dims[] = {2, 3}, none = 0;
	static const float x[] = {1, -0.0f, 3.4e38f, 1e-45f, 5, 6};
	struct strs names = {0};
	struct str text = {0};
	struct h5_info info;
	struct h5 *f;
	int64_t n;
	float *got;
	assert_int_equal(h5_create(&f, test_path("data.h5"), &e), 0);
	assert_int_equal(h5_put(f, "/z/x", H5_F32, 2, dims, x, &e), 0);
	assert_int_equal(h5_put(f, "/z/empty", H5_F32, 1, &none, NULL, &e), 0);
	assert_int_equal(h5_put_text(f, "/z/a/text", "ä\n\"", &e), 0);
	assert_int_equal(h5_info(f, "/z/x", &info, &e), 0);
	assert_true(info.type == H5_F32 && info.ndim == 2 && info.n == 6);
	assert_true(info.dims[0] == 2 && info.dims[1] == 3);
	assert_int_equal(h5_get(f, "/z/x", H5_F32, -1, 6, (void **)&got, &n, &e), 0);
	assert_int_equal(n, 6);
	assert_memory_equal(got, x, sizeof(x));
	free(got);
	assert_int_equal(h5_get(f, "/z/empty", H5_F32, 0, 6, (void **)&got, &n, &e), 0);
	assert_int_equal(n, 0);
	free(got);
	assert_int_equal(h5_get_text(f, "/z/a/text", &text, &e), 0);
	assert_string_equal(text.s, "ä\n\"");
	assert_int_equal(h5_list(f, "/z", &names, &e), 0);
	assert_int_equal(names.n, 3);
	assert_string_equal(names.v[0], "a");
	assert_string_equal(names.v[1], "empty");
	assert_string_equal(names.v[2], "x");
	assert_true(h5_has(f, "/z/a/text") && !h5_has(f, "/z/b/text"));
	assert_int_equal(e.code, 0);
	/* the type, the size and the bound must be right */
	assert_int_equal(h5_get(f, "/z/x", H5_U32, -1, 6, (void **)&got, &n, &e), -1);
	assert_int_equal(h5_get(f, "/z/x", H5_F32, 5, 6, (void **)&got, &n, &e), -1);
	assert_int_equal(h5_get(f, "/z/x", H5_F32, -1, 5, (void **)&got, &n, &e), -1);
	assert_int_equal(h5_get(f, "/y/x", H5_F32, -1, 6, (void **)&got, &n, &e), -1);
	assert_int_equal(h5_get_text(f, "/z/x", &text, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_int_equal(h5_close(f, &e), 0);
	strs_free(&names);
	str_free(&text);
}

/* ---- blocks ---------------------------------------------------------------------- */

/* Blocks are about a MiB, so that this is one whole block and a bit. */
enum { ROWS = 1500, COLS = 200 };

static void fill_blocks(struct h5_blocks *b, const char *path, const float *x)
{
	int fd = open(path, O_WRONLY);
	assert_true(fd >= 0);
	for (int64_t i = 0; i < b->n_blocks; i++) {
		size_t skip = (size_t)(i * b->block_rows * b->row_bytes);
		size_t n = (size_t)h5_block_bytes(b, i);
		b->xxh3[i] = hash_bytes((const char *)x + skip, n, 0);
		assert_int_equal(pwrite_all(fd, (const char *)x + skip, n,
					 b->offset + (int64_t)skip),
			0);
	}
	close(fd);
}

/* A sealed file with attributes, a small dataset, and one in blocks. */
static void write_file(const char *path, int64_t rows, int64_t cols)
{
	int64_t dims[] = {rows, cols}, three = 3;
	struct h5_blocks b;
	struct h5 *f;
	float *x = xcalloc((size_t)(rows * cols), sizeof(*x));
	test_fill(x, rows * cols, 5, 1);
	assert_int_equal(h5_create(&f, path, &e), 0);
	write_things(f, "/", &things);
	assert_int_equal(h5_put(f, "/small", H5_F32, 1, &three, x, &e), 0);
	assert_int_equal(h5_blocks_reserve(f, "/g/x", H5_F32, 2, dims, &b, &e), 0);
	assert_int_equal(h5_close(f, &e), 0);
	fill_blocks(&b, path, x);
	assert_int_equal(h5_reopen(&f, path, &e), 0);
	assert_int_equal(h5_blocks_finish(f, &b, &e), 0);
	assert_int_equal(h5_finish(f, 0, &e), 0);
	h5_blocks_release(&b);
	free(x);
}

static int read_blocks(const struct h5_blocks *b, int fd)
{
	int rc = 0;
	char *piece = xmalloc((size_t)(b->block_rows * b->row_bytes));
	for (int64_t i = 0; i < b->n_blocks && !rc; i++)
		rc = h5_block_read(b, fd, i, piece, &e);
	free(piece);
	return rc;
}

/* Everything there is to check; -1 with e set, or what was read must be what was written. */
static int check_file(const char *path)
{
	struct things t = {0};
	struct h5_blocks b = {0};
	struct h5 *f = NULL;
	float *small = NULL;
	e = (struct err){0};
	if (h5_open(&f, path, &e))
		return -1;
	int rc = h5_check_format(f, "pt-test", 2, &e) || h5_check_seal(f, &e) ||
		 h5_fields_read(f, "/", table, &t, &e) ||
		 h5_get(f, "/small", H5_F32, 3, 3, (void **)&small, NULL, &e) ||
		 h5_blocks_open(f, "/g/x", &b, &e);
	rc = h5_end(f, rc, &e);
	int fd = open(path, O_RDONLY);
	rc = rc || read_blocks(&b, fd) ? -1 : 0;
	close(fd);
	if (!rc) {
		float want[3];
		test_fill(want, 3, 5, 1);
		assert_memory_equal(small, want, sizeof(want));
		assert_true(same_things(&t, &things));
	}
	things_free(&t);
	h5_blocks_release(&b);
	free(small);
	return rc;
}

static struct h5_blocks open_blocks(const char *path)
{
	struct h5_blocks b;
	struct h5 *f;
	assert_int_equal(h5_open(&f, path, &e), 0);
	assert_int_equal(h5_blocks_open(f, "/g/x", &b, &e), 0);
	assert_int_equal(h5_close(f, &e), 0);
	return b;
}

TEST_AFTER(begin, blocks_find_a_flipped_byte)
{
	const char *path = test_path("blocks.h5");
	write_file(path, ROWS, COLS);
	assert_int_equal(check_file(path), 0);
	struct h5_blocks b = open_blocks(path);
	int64_t size = ROWS * COLS * (int64_t)sizeof(float);
	assert_true(b.type == H5_F32 && b.rows == ROWS && b.row_bytes == 4 * COLS);
	assert_true(
		b.n_blocks == 2 && h5_block_bytes(&b, 0) + h5_block_bytes(&b, 1) == size);
	const int64_t places[] = {
		0, h5_block_bytes(&b, 0) - 1, h5_block_bytes(&b, 0), size - 1};
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		char rows[64];
		flip_byte(path, b.offset + places[i]);
		assert_int_equal(check_file(path), -1);
		assert_int_equal(e.code, EX_DATAERR);
		snprintf(rows, sizeof(rows), "/g/x: rows %lld to %lld do not match",
			(long long)(i < 2 ? 0 : b.block_rows),
			(long long)(i < 2 ? b.block_rows - 1 : ROWS - 1));
		assert_non_null(strstr(e.msg, rows));
		flip_byte(path, b.offset + places[i]);
	}
	assert_int_equal(check_file(path), 0);
	h5_blocks_release(&b);
}

/* The number of rows in a block comes from the file: it must not become a size of memory. */
TEST_AFTER(begin, blocks_of_any_size)
{
	static const struct h5_field field[] = {{"block_rows", H5_I64, 0}, {0}};
	static const struct {
		int64_t block_rows;
		int rc;
	} some[] = {{0, -1}, {-1, -1}, {INT64_MIN, -1}, {1, -1}, {10, 0}, {11, 0},
		{INT64_MAX, 0}};
	const char *path = test_path("sizes.h5");
	write_file(path, 10, 3);
	for (size_t i = 0; i < ARRAY_LEN(some); i++) {
		struct h5 *f;
		assert_int_equal(h5_reopen(&f, path, &e), 0);
		assert_int_equal(
			h5_fields_write(f, "/g/x", field, &some[i].block_rows, &e), 0);
		assert_int_equal(h5_finish(f, 0, &e), 0);
		assert_int_equal(check_file(path), some[i].rc);
	}
}

TEST_AFTER(begin, empty_blocks)
{
	const char *path = test_path("empty.h5");
	int64_t none = 0;
	struct h5_blocks b;
	struct h5 *f;
	assert_int_equal(h5_create(&f, path, &e), 0);
	assert_int_equal(h5_blocks_reserve(f, "/none", H5_U16, 1, &none, &b, &e), 0);
	assert_int_equal(h5_blocks_finish(f, &b, &e), 0);
	assert_int_equal(h5_finish(f, 0, &e), 0);
	h5_blocks_release(&b);
	assert_int_equal(h5_open(&f, path, &e), 0);
	assert_int_equal(h5_check_seal(f, &e), 0);
	assert_int_equal(h5_blocks_open(f, "/none", &b, &e), 0);
	assert_int_equal(h5_close(f, &e), 0);
	assert_true(b.rows == 0 && b.n_blocks == 0);
	assert_int_equal(h5_blocks_check_written(&b, -1, path, &e), 0);
	h5_blocks_release(&b);
}

/* ---- errors -------------------------------------------------------------------------- */

/* What failed before, elsewhere, is not why HDF5 fails. */
TEST_AFTER(begin, old_errors_are_forgotten)
{
	struct strs names = {0};
	struct things t = {0};
	struct h5 *f;
	struct h5_info info;
	assert_int_equal(h5_create(&f, test_path("old.h5"), &e), 0);
	write_things(f, "/", &things);
	int64_t one = 1;
	float x = 1;
	assert_int_equal(h5_put(f, "/x", H5_F32, 1, &one, &x, &e), 0);
	errno = EPERM;
	assert_int_equal(h5_put(f, "/x/y/z", H5_F32, 1, &one, &x, &e), -1);
	assert_null(strstr(e.msg, strerror(EPERM)));
	assert_int_equal(h5_put(f, "/x", H5_F32, 1, &one, &x, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "old.h5: /x is written twice"));
	assert_int_equal(h5_finish(f, 0, &e), 0);
	assert_int_equal(h5_open(&f, test_path("old.h5"), &e), 0);
	for (int i = 0; i < 4; i++) {
		e = (struct err){0};
		errno = ENOMEM;
		h5_has(f,
			"/x/y/z"); /* HDF5 looks for something, and says that it fails */
		errno = i % 2 ? ENOMEM : 0;
		assert_int_equal(i < 2	 ? h5_info(f, "/none", &info, &e)
				 : i < 3 ? h5_fields_read(f, "/none", table, &t, &e)
					 : h5_list(f, "/x", &names, &e),
			-1);
		assert_int_equal(e.code, EX_DATAERR);
	}
	assert_int_equal(h5_close(f, &e), 0);
}

/* ---- the seal -------------------------------------------------------------------- */

static void alter_attribute(struct h5 *f)
{
	struct things t = things;
	t.n++;
	write_things(f, "/", &t);
}

static void alter_text(struct h5 *f)
{
	struct things t = things;
	t.name = "größer, 日本 ";
	write_things(f, "/", &t);
}

static void add_attribute(struct h5 *f)
{
	write_things(f, "/g/x", &things);
}

static void add_group(struct h5 *f)
{
	static const struct h5_field none[] = {{0}};
	assert_int_equal(h5_fields_write(f, "/h", none, &things, &e), 0);
}

static void alter_dataset(struct h5 *f)
{
	static const float x[3] = {1, 2, 3};
	int64_t n = 3;
	assert_int_equal(h5_put(f, "/small", H5_F32, 1, &n, x, &e), 0);
}

static void alter_checksums(struct h5 *f)
{
	uint64_t *x;
	int64_t n;
	assert_int_equal(h5_get(f, "/xxh3/g/x", H5_U64, -1, 9, (void **)&x, &n, &e), 0);
	x[n - 1] ^= 1;
	assert_int_equal(h5_put(f, "/xxh3/g/x", H5_U64, 1, &n, x, &e), 0);
	free(x);
}

TEST_AFTER(begin, seal_finds_what_was_altered)
{
	static void (*const alter[])(struct h5 *) = {alter_attribute, alter_text,
		add_attribute, add_group, alter_dataset, alter_checksums};
	const char *path = test_path("seal.h5");
	for (size_t i = 0; i < ARRAY_LEN(alter); i++) {
		struct h5 *f;
		write_file(path, 10, 3);
		assert_int_equal(check_file(path), 0);
		assert_int_equal(h5_reopen(&f, path, &e), 0);
		alter[i](f);
		assert_int_equal(h5_close(f, &e), 0);
		assert_int_equal(h5_open(&f, path, &e), 0);
		assert_int_equal(h5_check_seal(f, &e), -1);
		assert_int_equal(e.code, EX_DATAERR);
		assert_non_null(
			strstr(e.msg, "the checksum of the metadata does not match"));
		assert_int_equal(h5_close(f, &e), 0);
	}
}

/* The bytes of a file are a function of what is in it: no time is, which HDF5 keeps in
 * whole seconds. */
TEST_AFTER(begin, equal_files_are_equal_bytes)
{
	const char *a = test_path("a.h5"), *b = test_path("b.h5");
	write_file(a, 10, 3);
	for (int64_t now = (int64_t)clock_wall(); now == (int64_t)clock_wall();)
		usleep(10000);
	write_file(b, 10, 3);
	struct str x = bytes_of(a), y = bytes_of(b);
	assert_int_equal(x.len, y.len);
	assert_memory_equal(x.s, y.s, x.len);
	str_free(&x);
	str_free(&y);
}

/* A damaged file is refused, or the byte meant nothing: check_file compares what it read.
 * Every few bytes, the whole file through. */
TEST_AFTER(begin, no_flipped_byte_changes_what_is_read)
{
	const char *path = test_path("flip.h5");
	int64_t refused = 0, tried = 0;
	write_file(path, 10, 3);
	struct str all = bytes_of(path);
	for (int64_t at = 0; at < (int64_t)all.len; at += 5, tried++) {
		flip_byte(path, at);
		refused += check_file(path) != 0;
		flip_byte(path, at);
	}
	assert_int_equal(check_file(path), 0);
	assert_true(refused > tried / 4);
	str_free(&all);
}

/* ---- files that are none --------------------------------------------------------- */

TEST_AFTER(begin, format_and_version)
{
	struct h5 *f;
	const char *path = test_path("format.h5");
	write_file(path, 10, 3);
	assert_int_equal(h5_open(&f, path, &e), 0);
	assert_int_equal(h5_check_format(f, "pt-test", 2, &e), 0);
	assert_int_equal(h5_check_format(f, "pt-test", 3, &e), 0);
	assert_int_equal(h5_check_format(f, "pt-test", 1, &e), -1);
	assert_non_null(strstr(e.msg,
		"version 2 of the pt-test format is not supported; this program reads "
		"1 to 1"));
	assert_int_equal(h5_check_format(f, "pt-shard", 2, &e), -1);
	assert_non_null(strstr(e.msg, "a pt-test file instead of a pt-shard file"));
	assert_int_equal(e.code, EX_DATAERR);
	assert_int_equal(h5_close(f, &e), 0);
	assert_int_equal(h5_create(&f, path, &e), 0);
	assert_int_equal(h5_check_format(f, "pt-test", 2, &e), -1);
	assert_non_null(strstr(e.msg, "not a pt-test file"));
	assert_int_equal(h5_close(f, &e), 0);
}

TEST_AFTER(begin, other_files_refused)
{
	struct h5 *f;
	assert_int_equal(h5_open(&f, test_path("nowhere"), &e), -1);
	assert_int_equal(e.code, EX_IOERR);
	assert_int_equal(h5_open(&f, test_folder(), &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_int_equal(h5_open(&f, test_file("text", "step=1 loss=2\n"), &e), -1);
	assert_non_null(strstr(e.msg, "not an HDF5 file"));
	assert_int_equal(h5_open(&f, test_file("nothing", ""), &e), -1);
	assert_int_equal(h5_create(&f, test_path("no/folder/x.h5"), &e), -1);
	assert_int_equal(e.code, EX_IOERR);
}

/* No rows, each of more bytes than a number counts. */
TEST_AFTER(begin, rows_beyond_counting_refused)
{
	static const int64_t dims[] = {0, INT64_C(1) << 31, INT64_C(1) << 31};
	struct h5_info info;
	struct h5 *f;
	assert_int_equal(h5_create(&f, test_path("rows.h5"), &e), 0);
	assert_int_equal(h5_put(f, "/x", H5_F32, 3, dims, NULL, &e), 0);
	assert_int_equal(h5_info(f, "/x", &info, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_int_equal(h5_close(f, &e), 0);
}

TEST_AFTER(begin, truncated_files_refused)
{
	const char *path = test_path("whole.h5"), *cut = test_path("cut.h5");
	write_file(path, 10, 3);
	struct str all = bytes_of(path);
	for (size_t n = 0; n < all.len; n += n + 64 < all.len ? 61 : 1) {
		put_bytes(cut, all.s, n);
		assert_int_equal(check_file(cut), -1);
		assert_true(e.code == EX_DATAERR || e.code == EX_IOERR);
	}
	put_bytes(cut, all.s, all.len);
	assert_int_equal(check_file(cut), 0);
	str_free(&all);
}

/* Another program changes the file behind HDF5's back. */
static void scribble(struct h5 *f, const char *file, const char *path)
{
	struct h5_info info;
	assert_int_equal(h5_info(f, path, &info, &e), 0);
	int fd = open(file, O_WRONLY);
	assert_int_equal(pwrite_all(fd, "scribble", 8, info.offset + 8), 0);
	close(fd);
}

/* A seal is of what was written, not of what has become of it; also in a file of two parts. */
TEST_AFTER(begin, seals_are_of_what_was_written)
{
	static const int64_t values[] = {1, 2, 3, 4};
	const int64_t n = ARRAY_LEN(values);
	const char *path = test_path("scribbled.h5");
	struct h5 *f;
	uint64_t written;
	assert_int_equal(h5_create(&f, path, &e), 0);
	assert_int_equal(h5_put(f, "/x", H5_I64, 1, &n, values, &e), 0);
	scribble(f, path, "/x");
	assert_int_equal(h5_finish(f, 0, &e), -1);
	assert_int_equal(e.code, EX_IOERR);
	assert_non_null(strstr(e.msg, "differs from the values written to it"));
	for (int bad = 0; bad < 2; bad++) {
		assert_int_equal(h5_create(&f, path, &e), 0);
		write_things(f, "/", &things);
		assert_int_equal(h5_put(f, "/x", H5_I64, 1, &n, values, &e), 0);
		written = h5_get_written_sum(f);
		assert_int_equal(h5_close(f, &e), 0);
		assert_int_equal(h5_reopen(&f, path, &e), 0);
		if (bad)
			scribble(f, path, "/x");
		h5_resume_writing(f, written);
		write_things(
			f, "/", &things); /* attributes that are there are replaced */
		assert_int_equal(h5_put(f, "/y", H5_I64, 1, &n, values, &e), 0);
		assert_int_equal(h5_finish(f, 0, &e), bad ? -1 : 0);
	}
}

/* The name has another file by then. */
TEST_AFTER(begin, a_file_that_is_empty_when_it_is_finished)
{
	static const int64_t one = 1;
	const char *path = test_path("emptied.h5");
	struct h5 *f;
	assert_int_equal(h5_create(&f, path, &e), 0);
	assert_int_equal(h5_put(f, "/x", H5_I64, 1, &one, &one, &e), 0);
	unlink(path);
	put_bytes(path, "", 0);
	assert_int_equal(h5_finish(f, 0, &e), -1);
	assert_int_equal(e.code, EX_IOERR);
	assert_non_null(strstr(e.msg, "emptied.h5: the file is empty"));
}

/* What a writer leaves that dies before it has sealed the file. */
TEST_AFTER(begin, unfinished_files_refused)
{
	struct h5 *f;
	const char *path = test_path("half.h5"), *copy = test_path("copy.h5");
	assert_int_equal(h5_create(&f, path, &e), 0);
	write_things(f, "/", &things);
	struct str all = bytes_of(path);
	put_bytes(copy, all.s, all.len);
	assert_int_equal(check_file(copy), -1);
	assert_int_equal(h5_close(f, &e), 0);
	assert_int_equal(check_file(path), -1);
	assert_non_null(strstr(e.msg, "attribute meta_xxh3 of / is missing"));
	str_free(&all);
}

/* The first thing that went wrong is what is said. */
TEST_AFTER(begin, end_keeps_the_first_error)
{
	struct h5 *f;
	assert_int_equal(h5_create(&f, test_path("end.h5"), &e), 0);
	assert_int_equal(h5_end(f, 0, &e), 0);
	assert_int_equal(h5_open(&f, test_path("end.h5"), &e), 0);
	assert_int_equal(h5_end(f, h5_check_seal(f, &e), &e), -1);
	assert_non_null(strstr(e.msg, "meta_xxh3"));
	assert_int_equal(h5_end(NULL, 0, &e), 0);
	/* a file that cannot be written says so when it is closed, unless more was wrong */
	for (int rc = -1; rc <= 0; rc++) {
		struct rlimit old, none = {.rlim_max = RLIM_INFINITY};
		e = (struct err){0};
		assert_int_equal(h5_create(&f, test_path("full.h5"), &e), 0);
		write_things(f, "/", &things);
		if (rc)
			err_set(&e, EX_USAGE, "the first");
		getrlimit(RLIMIT_FSIZE, &old);
		none.rlim_max = old.rlim_max;
		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &none);
		int ended = h5_end(f, rc, &e);
		setrlimit(RLIMIT_FSIZE, &old);
		assert_int_equal(ended, -1);
		assert_int_equal(e.code, rc ? EX_USAGE : EX_IOERR);
	}
}

TEST_AFTER(begin, through_a_pipe)
{
	char kept[4096];
	int ends[2];
	const char *path = test_path("pipe.h5");
	write_file(path, 10, 3);
	struct str all = bytes_of(path);
	assert_true(all.len < 1 << 16); /* a pipe holds so much */
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write_all(ends[1], all.s, all.len), 0);
	close(ends[1]);
	struct stream s;
	assert_int_equal(stream_read_first(&s, ends[0], "a pipe", &e), 0);
	assert_true(h5_has_signature(s.first, s.n));
	int fd = file_spool(&s, INT64_MAX, kept, &e);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(check_file(kept), 0);
	unlink(kept);
	close(ends[0]);
	str_free(&all);
}

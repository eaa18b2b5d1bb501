/* Files of a vault: their names, what they hold, and that no bytes of one lead a reader astray. */
#include "tests/support/support.h"
#include "tests/support/vault_file.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define path test_path("file")

static void read_bytes(struct str *out)
{
	struct err e = {0};
	str_clear(out);
	assert_int_equal(file_read(path, 1 << 20, out, &e), 0);
}

static void write_bytes(const char *p, size_t n)
{
	FILE *f = fopen(path, "w");
	assert_true(f && fwrite(p, 1, n, f) == n && !fclose(f));
}

static int n_signals; /* that interrupt allocations */

/* Replaces the C library's function. */
int posix_fallocate(int fd, off_t offset, off_t n)
{
	if (n_signals > 0) {
		n_signals--;
		return EINTR;
	}
	return ftruncate(fd, offset + n) ? errno : 0;
}

TEST(interrupted)
{
	n_signals = 2;
	vault_test_write(path);
	assert_int_equal(n_signals, 0);
	assert_int_equal(vault_test_read(path), 4);
}

/* A rank that is killed before it writes the header leaves an empty file. */
TEST(empty)
{
	static const char *const names[] = {"000000000000004d-0000000000000003-own-1.0",
		"000000000000004d-0000000000000004-own-1.0",
		"000000000000004e-0000000000000003-own-1.0",
		"000000000000004d-0000000000000003-own-1.0x"};
	const char *directory = test_path("vault");
	struct vault_file f;
	assert_int_equal(mkdir(directory, 0700), 0);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		scoped_ptr char *file = text_printf("%s/%s", directory, names[i]);
		int fd = open(file, O_CREAT | O_WRONLY, 0600);
		assert_true(fd >= 0 && !close(fd));
		assert_int_equal(
			vault_file_open(&f, file, VAULT_TEST_RUN, &(struct err){0}), 1);
	}
	assert_int_equal(
		vault_remove(directory, VAULT_TEST_RUN, &(struct vault_kept){.start = 4}),
		0);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		scoped_ptr char *file = text_printf("%s/%s", directory, names[i]);
		assert_int_equal(unlink(file), i ? 0 : -1);
	}
	assert_int_equal(rmdir(directory), 0);
}

TEST(names)
{
	static const char *const wrong[] = {"", "x",
		"0000000000000007-0000000000000003-own-1.2x",
		"0000000000000007-0000000000000003-own-01.1",
		"0000000000000007-0000000000000003-new-1.1",
		"0000000000000007-000000000000000G-own-1.1",
		"0000000000000007-0000000000000003-own-1.1.tmp",
		"0000000000000007-0000000000000003-own--1.1"};
	const struct vault_name n = {
		.run = 7, .start = UINT64_MAX, .is_copy = true, .rank = 12, .slot = 1};
	struct vault_name m;
	scoped_str text = {0};
	vault_print_path(&text, "dir", &n);
	assert_string_equal(text.s, "dir/0000000000000007-ffffffffffffffff-copy-12.1");
	assert_true(vault_parse_name(text.s + 4, &m));
	assert_true(m.run == 7 && m.start == UINT64_MAX && m.is_copy && m.rank == 12 &&
		    m.slot == 1);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		assert_false(vault_parse_name(wrong[i], &m));
}

TEST(state)
{
	struct vault_file f;
	struct err e = {0};
	vault_test_write(path);
	assert_int_equal(vault_test_read(path), 4);
	assert_int_equal(vault_file_open(&f, path, VAULT_TEST_RUN + 1, &e), 1);
	assert_int_equal(vault_file_open(&f, path, VAULT_TEST_RUN, &e), 0);
	struct ckpt *c = vault_unpack_state("x", f.state, f.header->state_bytes, &e);
	assert_non_null(c);
	assert_int_equal(c->info.step, 5);
	assert_int_equal(c->info.samples, 40);
	assert_true(c->info.param_hash == 9);
	assert_int_equal(c->n_tensors, 2);
	assert_string_equal(c->tensors[1].name, "norm.weight");
	assert_true(c->tensors[1].stateless && c->tensors[1].ndim == 1 &&
		    c->tensors[0].dims[1] == 4);
	assert_string_equal(c->groups.v[1], "exp_avg");
	assert_string_equal(c->config.s, "layers = 1\n");
	assert_string_equal(c->origin.s, "{}");
	assert_true(c->n_load == 2 && c->load[1] == 0.75 && !c->n_numbers);
	for (int64_t i = 0; i < 4; i++)
		assert_true(vault_has_good_rows(&f, i));
	ckpt_close(c);
	/* every part of it is too short */
	for (int64_t n = 0; n < f.header->state_bytes; n++) {
		struct err why = {0};
		assert_null(vault_unpack_state("x", f.state, n, &why));
		assert_int_equal(why.code, EX_DATAERR);
	}
	vault_file_close(&f);
}

/* Any flipped bit of header, records and state is noticed by a hash, and of rows by theirs. */
TEST(flips)
{
	scoped_str bytes = {0};
	vault_test_write(path);
	read_bytes(&bytes);
	const struct vault_header *h = (void *)bytes.s;
	size_t state_end =
		4096 + 4 * sizeof(struct vault_record) + (size_t)h->state_bytes;
	for (size_t i = 0; i < state_end; i = i == sizeof(*h) - 1 ? 4096 : i + 1) {
		bytes.s[i] ^= 4;
		write_bytes(bytes.s, bytes.len);
		assert_true(vault_test_read(path) <= 0);
		bytes.s[i] ^= 4;
	}
	struct vault_file f;
	for (int64_t i = 0; i < 4; i++) {
		const struct vault_record *r =
			(void *)(bytes.s + 4096 + i * (int64_t)sizeof(*r));
		bytes.s[r->at + 7] ^= 4;
		write_bytes(bytes.s, bytes.len);
		bytes.s[r->at + 7] ^= 4;
		assert_int_equal(
			vault_file_open(&f, path, VAULT_TEST_RUN, &(struct err){0}), 0);
		for (int64_t k = 0; k < 4; k++)
			assert_true(vault_has_good_rows(&f, k) == (k != i));
		vault_file_close(&f);
	}
}

/* With right hashes, numbers that are impossible are rejected by checks of their own. */
TEST(hostile)
{
	scoped_str bytes = {0}, copy = {0};
	int64_t accepted = 0, rejected = 0;
	static const int64_t values[] = {0, 1, -1, 2, 3, 7, 63, 64, 4096, 1 << 20,
		INT32_MAX, (int64_t)INT32_MAX + 1, (int64_t)1 << 40, (int64_t)1 << 62,
		INT64_MAX, INT64_MIN};
	vault_test_write(path);
	read_bytes(&bytes);
	for (size_t at = 24; at + 8 < bytes.len; at = at == 96 ? 4096 : at + 8)
		for (size_t k = 0; k < ARRAY_LEN(values); k++) {
			str_clear(&copy);
			str_add(&copy, bytes.s, bytes.len);
			memcpy(copy.s + at, &values[k], sizeof(*values));
			vault_test_seal(copy.s, (int64_t)copy.len);
			write_bytes(copy.s, copy.len);
			*(vault_test_read(path) > 0 ? &accepted : &rejected) += 1;
		}
	/* each record: a block outside of its tensor, rows outside of the file */
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 9; k++) {
			str_clear(&copy);
			str_add(&copy, bytes.s, bytes.len);
			struct vault_record *r =
				(struct vault_record *)(void *)(copy.s + 4096) + i;
			k == 0	 ? (void)(r->group = 2)
			: k == 1 ? (void)(r->tensor = 2)
			: k == 2 ? (void)(r->block.row += 1)
			: k == 3 ? (void)(r->block.rows += 1)
			: k == 4 ? (void)(r->block.col += 3)
			: k == 5 ? (void)(r->block.cols += 3)
			: k == 6 ? (void)(r->at = (int64_t)copy.len)
			: k == 7 ? (void)(r->at = 4096)
				 : (void)(r->at += 4);
			vault_test_seal(copy.s, (int64_t)copy.len);
			write_bytes(copy.s, copy.len);
			assert_int_equal(vault_test_read(path), -1);
		}
	assert_true(accepted > 100 && rejected > 100);
	for (size_t n = 0; n < bytes.len; n += n < 4096 ? 511 : 37) {
		write_bytes(bytes.s, n);
		assert_int_equal(vault_test_read(path), n ? -1 : 0);
	}
	unlink(path);
}

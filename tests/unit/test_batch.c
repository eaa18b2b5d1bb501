/* Batches of other programs' steps: arrays by name, labels, masks, padding. */
#include "base/file.h"
#include "reference/batch.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

static struct err e;

/* Writes a safetensors file with int32 arrays [2][3]. */
static char *arrays_file(int n, const char *const *names, int32_t (*v)[6])
{
	struct str header = {0}, file = {0};
	char name[40];
	for (int i = 0; i < n; i++)
		str_printf(&header,
			"%s\"%s\":{\"dtype\":\"I32\",\"shape\":[2,3],\"data_offsets\":[%d,%d]}",
			i ? "," : "{", names[i], 24 * i, 24 * i + 24);
	str_putc(&header, '}');
	uint64_t size = header.len;
	str_add(&file, &size, sizeof(size));
	str_add(&file, header.s, header.len);
	str_add(&file, v, (size_t)n * sizeof(*v));
	static int n_files;
	snprintf(name, sizeof(name), "arrays-%d.safetensors", n_files++);
	char *path = (char *)test_path(name);
	assert_int_equal(file_replace(path, &file, &e), 0);
	str_free(&header);
	str_free(&file);
	return path;
}

/* Compares a batch with the expected one, [2][length]. */
static void expect_batch(char *file, int64_t length, const int32_t *targets,
	const int32_t *pos, const int32_t *start)
{
	struct token_batch b;
	e = (struct err){0};
	if (token_batch_read(&b, 1, &file, &(struct batch_opts){.end = -1}, &e))
		fail_msg("%s", e.msg);
	assert_int_equal(b.n, 2);
	assert_int_equal(b.length, length);
	size_t n_bytes = (size_t)(2 * length) * sizeof(*targets);
	assert_memory_equal(b.targets, targets, n_bytes);
	assert_memory_equal(b.pos, pos, n_bytes);
	assert_memory_equal(b.start, start, n_bytes);
	token_batch_free(&b);
}

static void expect_rejected(int n, char *const *files, const char *text)
{
	struct token_batch b;
	e = (struct err){0};
	assert_int_equal(
		token_batch_read(&b, n, files, &(struct batch_opts){.end = -1}, &e), -1);
	token_batch_free(&b);
	assert_non_null(strstr(e.msg, text));
	e = (struct err){0};
}

/* Reads windows of 2 positions and labels of 3, which are padded only in this order. */
static void expect_lengths(char *windows, char *labels)
{
	static const int32_t tokens[12] = {7, 8, 8, 4, 5, 5, 7, 8, 9, 4, 5, 6};
	static const int32_t targets[12] = {8, 9, -1, 5, 6, -1, 8, 9, -1, 5, 6, -1};
	static const int32_t pos[12] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
	struct token_batch b;
	char *files[] = {windows, labels, windows};
	assert_int_equal(
		token_batch_read(&b, 2, files, &(struct batch_opts){.end = -1}, &e), 0);
	assert_int_equal(b.n, 4);
	assert_int_equal(b.length, 3);
	assert_int_equal(b.counted, 8);
	assert_true(b.masked && !b.documents);
	assert_memory_equal(b.tokens, tokens, sizeof(tokens));
	assert_memory_equal(b.targets, targets, sizeof(targets));
	assert_memory_equal(b.pos, pos, sizeof(pos));
	token_batch_free(&b);
	expect_rejected(
		2, files + 1, "sequences have 2 positions, but 3 in the preceding files");
}

TEST(batches)
{
	static const int32_t in[6] = {7, 8, 9, 4, 5, 6}, next[6] = {8, 9, 1, 5, 6, 2};
	static const int32_t pos[6] = {0, 1, 0, 0, 1, 2}, along[6] = {0, 1, 2, 0, 1, 2};
	static const int32_t mask[6] = {0, 1, 1, 1, 1, 0}, zeros[6] = {0};
	static const int32_t masked[6] = {-1, 9, 1, 5, 6, -1};
	static const int32_t some[6] = {-100, 9, 1, 5, 6, -100};
	static const int32_t starts[6] = {0, 0, 2, 0, 0, 0},
			     unknown[6] = {3, 3, 3, 3, 3, 3};
	int32_t v[4][6];
#define ARRAYS(a, b, c, d)             \
	memcpy(v[0], a, sizeof(v[0])); \
	memcpy(v[1], b, sizeof(v[0])); \
	memcpy(v[2], c, sizeof(v[0])); \
	memcpy(v[3], d, sizeof(v[0]))
	/* windows: one more token than positions */
	ARRAYS(in, in, in, in);
	static const int32_t of_windows[4] = {8, 9, 5, 6}, two[4] = {0, 1, 0, 1}, none[4];
	expect_batch(
		arrays_file(1, (const char *const[]){"x"}, v), 2, of_windows, two, none);
	/* lists as in torchtitan, with positions in a dict or a list */
	ARRAYS(in, pos, next, unknown);
	expect_batch(
		arrays_file(4,
			(const char *const[]){"0.input", "0.positions", "1", "2.other"},
			v),
		3, next, pos, starts);
	ARRAYS(in, next, pos, unknown);
	expect_batch(arrays_file(3, (const char *const[]){"0", "1", "2"}, v), 3, next,
		pos, starts);
	/* labels that do not count; Hugging Face's labels, equal to the inputs */
	ARRAYS(some, in, in, in);
	expect_batch(arrays_file(2, (const char *const[]){"labels", "inputs"}, v), 3,
		masked, along, zeros);
	static const int32_t unshifted[6] = {8, 9, -1, 5, 6, -1};
	ARRAYS(in, in, unknown, in);
	expect_batch(
		arrays_file(3,
			(const char *const[]){"input_ids", "labels", "attention_mask"},
			v),
		3, unshifted, along, zeros);
	/* padding at the end, whose labels do not count; nothing else may be hidden */
	static const char *const padded[] = {"input_ids", "labels", "attention_mask"};
	static const int32_t end[6] = {1, 1, 0, 1, 1, 1}, begin[6] = {0, 1, 1, 1, 1, 1};
	static const int32_t labels[6] = {7, 8, -100, 4, 5, 6},
			     first[6] = {-100, 8, 9, 4, 5, 6};
	static const int32_t unpadded[6] = {8, -1, -1, 5, 6, -1};
	ARRAYS(in, labels, end, in);
	expect_batch(arrays_file(3, padded, v), 3, unpadded, along, zeros);
	ARRAYS(in, first, begin, in);
	expect_rejected(
		1, (char *[]){arrays_file(3, padded, v)}, "attention_mask hides tokens");
	ARRAYS(in, in, end, in);
	expect_rejected(
		1, (char *[]){arrays_file(3, padded, v)}, "attention_mask hides tokens");
	/* files with sequences of different lengths: the shorter ones are padded */
	ARRAYS(in, in, in, in);
	expect_lengths(arrays_file(1, padded, v), arrays_file(2, padded, v));
	/* Megatron-LM's arrays */
	ARRAYS(next, mask, in, pos);
	expect_batch(arrays_file(4,
			     (const char *const[]){
				     "labels", "loss_mask", "tokens", "position_ids"},
			     v),
		3, masked, pos, starts);
	/* labels of another batch */
	struct token_batch b;
	ARRAYS(in, unknown, in, in);
	char *file = arrays_file(2, (const char *const[]){"inputs", "labels"}, v);
	assert_int_equal(
		token_batch_read(&b, 1, &file, &(struct batch_opts){.end = -1}, &e), -1);
	token_batch_free(&b);
	e = (struct err){0};
}

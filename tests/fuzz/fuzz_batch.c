/* Batches of tokens: plain integers of any shape, .npy, safetensors and .pt with any header, one file or two. */
#include "reference/batch.h"
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kind { PLAIN, ANY_NPY, NPY, SAFETENSORS, SAVED, KINDS };

static void put_number(struct str *out, uint64_t x, int n_bytes)
{
	for (int i = 0; i < n_bytes; i++)
		str_putc(out, (char)(x >> 8 * i));
}

/* A header up to a NUL with its length in front, n bytes for each number, and the rest as data. */
static void put_headed(struct str *out, struct bytes *b, int n)
{
	char *header = take_text(b, 4096);
	put_number(out, strlen(header), n);
	str_puts(out, header);
	free(header);
}

static void put_rest(struct str *out, struct bytes *b, size_t n)
{
	n = n < b->n ? n : b->n;
	if (n)
		str_add(out, b->p, n);
	b->p += n, b->n -= n;
}

/* A file of at most n bytes of data. */
static const char *make(enum kind kind, int which, size_t n, struct bytes *b)
{
	static const char *const plain[] = {".u16", ".u32", ".i32", ".i64"};
	struct str file = {0};
	char name[32];
	const char *end = plain[which % 4];
	if (kind == SAVED) {
		size_t pkl = take_byte(b);
		pkl |= (size_t)take_byte(b) << 8;
		pkl = pkl < b->n ? pkl : b->n;
		fuzz_archive(&file, b->p, pkl, b->p + pkl, b->n - pkl);
		end = ".pt";
		b->n = 0;
	} else if (kind == SAFETENSORS) {
		put_headed(&file, b, 8);
		end = ".safetensors";
	} else if (kind == NPY) {
		str_add(&file, which & 4 ? "\x93NUMPY\2\0" : "\x93NUMPY\1\0", 8);
		put_headed(&file, b, which & 4 ? 4 : 2);
		end = ".npy";
	} else if (kind == ANY_NPY) {
		str_add(&file, "\x93NUMPY", 6);
		end = ".npy";
	}
	put_rest(&file, b, n);
	snprintf(name, sizeof(name), "batch%d%s", which & 8 ? 1 : 0, end);
	const char *path = fuzz_file(name, file.s ? file.s : "", file.len);
	str_free(&file);
	return path;
}

/* Every token can be read, and attention begins where a document does. */
static void check(const struct token_batch *b)
{
	int64_t counted = 0;
	FUZZ_ON(b->n < 1 || b->length < 1);
	for (int64_t i = 0; i < b->n * b->length; i++) {
		int64_t t = i % b->length;
		FUZZ_ON(b->tokens[i] < 0 || b->targets[i] < -1 || b->pos[i] < 0);
		FUZZ_ON(b->start[i] < 0 || b->start[i] > t ||
			(b->start[i] && !b->documents));
		FUZZ_ON(t && b->start[i] < b->start[i - 1]);
		FUZZ_ON(b->targets[i] < 0 && !b->masked);
		FUZZ_ON(b->weights && !(fabs(b->weights[i]) <= 1e30));
		FUZZ_ON(b->weights && b->targets[i] < 0 && b->weights[i] != 0);
		counted += b->targets[i] >= 0;
	}
	FUZZ_ON(counted != b->counted || !counted);
	FUZZ_ON(!(batch_divisor(b) < 0 || batch_divisor(b) > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct err e = {0};
	struct token_batch batch;
	uint8_t first = take_byte(&b), which = take_byte(&b);
	enum kind kind = (enum kind)(first % KINDS);
	char *shape = take_text(&b, 40);
	int64_t end = which & 16 ? take_byte(&b) : -1;
	char paths[2][4200], *const files[] = {paths[0], paths[1]};
	bool two = which & 32;
	snprintf(paths[0], sizeof(paths[0]), "%s",
		make(kind, which & 7, two ? take_byte(&b) : b.n, &b));
	if (two)
		snprintf(paths[1], sizeof(paths[1]), "%s",
			make(kind, (which & 7) | 8, b.n, &b));
	const struct batch_opts o = {
		*shape ? shape : NULL, end, which & 64 ? "weights" : NULL};
	int rc = token_batch_read(&batch, two ? 2 : 1, files, &o, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (!rc)
		check(&batch);
	token_batch_free(&batch);
	free(shape);
	return 0;
}

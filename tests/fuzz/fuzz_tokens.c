/* Token files of other programs: any bytes as each format, and what is read becomes the same again. */
#include "tests/fuzz/fuzz.h"
#include "prepare/token_file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Documents ascend, and each begins with a token of the file. */
static void check_documents(const struct token_file *f)
{
	for (int64_t i = 0; i < f->n_documents; i++)
		FUZZ_ON(f->documents[i] < 0 || f->documents[i] >= f->n ||
			(i && f->documents[i] <= f->documents[i - 1]));
}

/* The tokens of a file; NULL if it is refused. */
static uint32_t *read_all(const char *path, const struct token_format *format,
	int64_t vocab, int64_t *n, struct err *e)
{
	struct token_file f;
	uint32_t *ids = NULL;
	if (token_file_open(&f, path, format, e)) {
		FUZZ_ON(!e->code);
		return NULL;
	}
	check_documents(&f);
	*n = f.n;
	ids = xcalloc((size_t)f.n + 1, sizeof(*ids));
	if (token_file_read(&f, 0, f.n, vocab, ids, e)) {
		FUZZ_ON(!e->code);
		free(ids);
		ids = NULL;
	}
	for (int64_t i = 0; ids && i < f.n; i++)
		FUZZ_ON(ids[i] >= vocab);
	token_file_close(&f);
	return ids;
}

static void and_back(const char *path, const struct token_format *format, int64_t vocab,
	const uint32_t *ids, int64_t n, int64_t shard_bytes)
{
	static const struct strs no_files;
	struct err e = {0};
	struct prepared made;
	struct strs inputs = {0};
	struct str out = {0};
	str_puts(&out, fuzz_path("again"));
	struct prepare p = {.out = out.s, .overwrite = true, .shard_bytes = shard_bytes};
	struct token_convert c = {.p = &p,
		.from = format->name,
		.to = format->name,
		.val = &no_files,
		.masks = &no_files,
		.vocab = vocab,
		.end_of_text = -1};
	strs_add(&inputs, path);
	int64_t at = 0, got;
	if (!token_convert_run(&c, &inputs, &made, &e)) {
		for (int64_t i = 0; i < made.files.n; i++) {
			if (text_ends(made.files.v[i], ".bin")) {
				uint32_t *x = read_all(
					made.files.v[i], format, vocab, &got, &e);
				FUZZ_ON(!x || got > n - at);
				FUZZ_ON(memcmp(x, ids + at, (size_t)got * sizeof(*x)));
				at += got;
				free(x);
			}
		}
		FUZZ_ON(at != n);
		for (int64_t i = 0; i < made.files.n; i++)
			unlink(made.files.v[i]);
	} else {
		FUZZ_ON(n && format->type(vocab).bytes);
	}
	strs_free(&made.files);
	strs_free(&inputs);
	str_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char *const names[] = {TOKEN_FORMATS(TOKEN_FORMAT_WORD)};
	struct bytes b = {data, n};
	struct err e = {0};
	uint8_t how = take_byte(&b);
	const struct token_format *format =
		token_format_named(names[how % ARRAY_LEN(names)]);
	int64_t vocab = how & 64 ? 1 << 16 : how & 128 ? MAX_VOCAB : 300, n_ids = 0;
	size_t n_index = 0;
	if (format->index) { /* its length, the index, the tokens */
		n_index = take_byte(&b);
		n_index = n_index < b.n ? n_index : b.n;
		fuzz_file("tokens.idx", b.p, n_index);
	}
	char path[4200];
	snprintf(path, sizeof(path), "%s",
		fuzz_file("tokens.bin", b.p + n_index, b.n - n_index));
	token_format_detect(path);
	uint32_t *ids = read_all(path, format, vocab, &n_ids, &e);
	if (ids && n_ids < 200)
		and_back(path, format, vocab, ids, n_ids, how & 32 ? 16 : 0);
	free(ids);
	return 0;
}

/*
 * Files of PyTorch (tests/golden/torch, made by make_torch.py): their numbers, by whatever names, types and
 * boxes they are stored, flipped and missing bytes, pickles that are made to do harm.
 *
 * With shared/data/oracle, files that PyTorch itself has written, of which tests/golden/torch-oracle.txt has
 * checksums.
 */
#include "base/file.h"
#include "foreign/foreign.h"
#include "tests/support/support.h"
#include "archive/archive_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static struct err e;
static struct open_how how;

static void succeed(int rc)
{
	if (rc)
		fail_msg("%s", e.msg);
}

#define GOLDEN "tests/golden/torch/"

/* ---- views -------------------------------------------------------------------------- */

/* All numbers of a tensor of a group. */
static float *read_all(const struct ckpt_view *v, int group, int tensor)
{
	const struct ckpt_tensor *t = &v->tensors[tensor];
	const struct ckpt_rows rows = {group, tensor, 0, t->dims[0]};
	float *x = xmalloc((size_t)ckpt_size(t) * sizeof(*x));
	succeed(v->read(v, &rows, x, &e));
	return x;
}

/* Its numbers are those of a model of Hugging Face, and moments half of them and a quarter of their magnitudes. The tensors whose
 * names end with one of two texts have their parameters in 16 bits, with other values. */
static void same_as(const char *path, const char *model, const char *const other[2])
{
	static const float factors[] = {1, 0.5f, 0.25f};
	struct ckpt_view v, want;
	succeed(convert_open(&v, path, &how, &e));
	succeed(convert_open(&want, model, &how, &e));
	assert_int_equal(v.n_tensors, want.n_tensors);
	for (int g = 0; g < v.groups.n; g++)
		for (int i = 0; i < v.n_tensors; i++) {
			const char *name = v.tensors[i].name;
			int k = ckpt_view_find(&want, name);
			assert_true(k >= 0);
			float *x = read_all(&v, g, i), *y = read_all(&want, 0, k);
			bool half = false;
			for (int o = 0; other && o < 2; o++)
				half = half || (!g && !strcmp(name, other[o]));
			for (int64_t n = 0; n < ckpt_size(&v.tensors[i]); n++) {
				float is =
					half ? (strstr(name, "layers") ? 1 + (float)n / 8
								       : (float)n)
					     : (g == 2 ? fabsf(y[n]) : y[n]) * factors[g];
				if (x[n] != is)
					fail_msg("%s: %s of %s, number %lld: %g, not %g",
						path, v.groups.v[g], name, (long long)n,
						(double)x[n], (double)is);
			}
			free(x);
			free(y);
		}
	ckpt_view_close(&v);
	ckpt_view_close(&want);
}

TEST(numbers_are_those_of_the_model)
{
	static const char *const half[2] = {
		"norm.weight", "layers.0.attention_norm.weight"};
	how.config = GOLDEN "hf/config.json";
	same_as(GOLDEN "ddp.pt", GOLDEN "hf", NULL);
	same_as(GOLDEN "titan", GOLDEN "hf", NULL);
	same_as(GOLDEN "nested", GOLDEN "hf", half);
	same_as(GOLDEN "fsdp", GOLDEN "hf", NULL);
	same_as(GOLDEN "shards", GOLDEN "hf", NULL);
	same_as(GOLDEN "universal", GOLDEN "hf", NULL);
	same_as(GOLDEN "zero1", GOLDEN "hf", NULL);
	same_as(GOLDEN "zero2", GOLDEN "hf", NULL);
	same_as(GOLDEN "zero2/global_step7", GOLDEN "hf", NULL);
	same_as(GOLDEN "zero3", GOLDEN "hf", NULL);
	same_as(GOLDEN "zero3-frozen", GOLDEN "hf", NULL);
	same_as(GOLDEN "elastic", GOLDEN "hf", NULL);
	same_as(GOLDEN "stage0", GOLDEN "hf", NULL);
	same_as(GOLDEN "stage0-bf16", GOLDEN "hf", NULL);
	same_as(GOLDEN "bins", GOLDEN "hf", NULL);
	same_as(GOLDEN "pytorch_model.bin", GOLDEN "hf", NULL);
	how.config = GOLDEN "gpt2/config.json";
	same_as(GOLDEN "zero-tied", GOLDEN "gpt2", NULL);
	how.config = NULL;
	same_as(GOLDEN "nanogpt.pt", GOLDEN "gpt2", NULL);
	same_as(GOLDEN "megatron", GOLDEN "hf", NULL);
	same_as(GOLDEN "nanotron", GOLDEN "hf-even", NULL);
	same_as(GOLDEN "nanotron-zero", GOLDEN "hf-even", NULL);
}

TEST(groups_and_options)
{
	static const struct {
		const char *path;
		int64_t groups, step;
		const char *options[3];
	} cases[] = {
		{GOLDEN "ddp.pt", 3, 7, {"lr = 0.0005\n", "beta1 = 0.9\nbeta2 = 0.95\n"}},
		{GOLDEN "fsdp", 3, 7, {"weight-decay = 0.05\n"}},
		{GOLDEN "titan", 3, 7, {"eps = 1e-09\n", "weight-decay = 0.05\n"}},
		{GOLDEN "universal", 3, 7,
			{"lr = 0.0005\n", "beta1 = 0.9\nbeta2 = 0.95\n"}},
		{GOLDEN "zero1", 1, 0, {"heads = 4\n"}},
		{GOLDEN "zero2", 3, 7, {"lr = 0.0005\n", "weight-decay = 0.05\n"}},
		{GOLDEN "zero3", 3, 7, {"beta1 = 0.9\nbeta2 = 0.95\n"}},
		{GOLDEN "elastic", 3, 7, {"heads = 4\n"}},
		{GOLDEN "stage0", 3, 7, {"eps = 1e-09\n"}},
		{GOLDEN "bins", 1, 0, {"heads = 4\n"}},
		{GOLDEN "nested", 3, 7, {"beta1 = 0.8\nbeta2 = 0.99\n"}},
		{GOLDEN "nanogpt.pt", 3, 7,
			{"heads = 4\n", "context = 16\n", "tie = yes\n"}},
		{GOLDEN "pytorch_model.bin", 1, 0,
			{"kv-heads = 2\n", "norm-eps = 1e-05\n"}},
		{GOLDEN "nanotron", 3, 7, {"lr = 0.0005\n", "eps = 1e-09\n"}},
		{GOLDEN "nanotron-zero", 3, 7,
			{"beta1 = 0.9\nbeta2 = 0.95\n", "tie = no\n"}},
		{GOLDEN "nanotron-tied", 1, 0, {"tie = yes\n", "kv-heads = 2\n"}}};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ckpt_view v;
		bool llama = !strstr(cases[i].path, "gpt") &&
			     !strstr(cases[i].path, "mega") &&
			     !strstr(cases[i].path, "nanotron");
		how.config = llama ? GOLDEN "hf/config.json" : NULL;
		succeed(convert_open(&v, cases[i].path, &how, &e));
		assert_int_equal(v.groups.n, cases[i].groups);
		assert_int_equal(v.info.step, cases[i].step);
		for (int k = 0; k < 3 && cases[i].options[k]; k++)
			if (!strstr(v.config.s, cases[i].options[k]))
				fail_msg("%s: no %s in\n%s", cases[i].path,
					cases[i].options[k], v.config.s);
		ckpt_view_close(&v);
	}
	how.config = NULL;
}

/* The weight decay of the group of each parameter: of flat keys, of groups of names, and of numbers. */
TEST(decays_of_groups)
{
	static const struct {
		const char *path;
		double matrices, vectors, lr;
	} cases[] = {{GOLDEN "titan", -1, 0.05, 5e-4}, {GOLDEN "nested", 0.1, 0, -1},
		{GOLDEN "nanogpt.pt", 0.05, 0, 5e-4}, {GOLDEN "ddp.pt", 0.05, 0.05, 5e-4},
		{GOLDEN "stage0-bf16", 0.05, 0, 5e-4}, {GOLDEN "nanotron", 0.05, 0, -1},
		{GOLDEN "nanotron-zero", 0.05, 0, -1}};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ckpt_view v;
		how.config =
			strstr(cases[i].path, "nano") ? NULL : GOLDEN "hf/config.json";
		succeed(convert_open(&v, cases[i].path, &how, &e));
		for (int k = 0; k < v.n_tensors; k++) {
			/* (titan's file has the settings of one parameter only) */
			const char *name = v.tensors[k].name;
			double want = v.tensors[k].ndim > 1 ? cases[i].matrices
				      : i || !strcmp(name, "norm.weight")
					      ? cases[i].vectors
					      : -1;
			if (v.settings[k].decay != want)
				fail_msg("%s: %s has %g", cases[i].path, name,
					v.settings[k].decay);
			/* (their learning rate, where a file has it) */
			double lr = want < 0 ? -1 : cases[i].lr;
			if (fabs(v.settings[k].lr - lr) > 1e-12)
				fail_msg("%s: %s has lr %g", cases[i].path, name,
					v.settings[k].lr);
		}
		ckpt_view_close(&v);
	}
	how.config = NULL;
}

/* What the shapes do not tell, and files that say something else than they do. */
TEST(options_that_are_missing_or_wrong)
{
	static const struct {
		const char *options, *message;
	} cases[] = {{"context = 16\n", "heads"}, {"heads = 4\n", "context"},
		{"heads = 5\ncontext = 16\n", "5 heads do not divide"},
		{"heads = 4\nkv-heads = 1\ncontext = 16\n", "key and value heads"},
		{"heads = 4\ncontext = 16\n", NULL}};
	struct ckpt_view v;
	e = (struct err){0};
	assert_int_equal(convert_open(&v, GOLDEN "ddp.pt", &how, &e), -1);
	assert_int_equal(e.code, EX_USAGE);
	assert_non_null(strstr(e.msg, "--model-config"));
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		e = (struct err){0};
		how.config = test_file("model.conf", cases[i].options);
		int rc = convert_open(&v, GOLDEN "ddp.pt", &how, &e);
		if ((rc != 0) != (cases[i].message != NULL) ||
			(rc && !strstr(e.msg, cases[i].message)))
			fail_msg("%s: %s", cases[i].options, e.msg);
		if (!rc)
			ckpt_view_close(&v);
	}
	e = (struct err){0};
	how.config = GOLDEN "gpt2/config.json";
	assert_int_equal(convert_open(&v, GOLDEN "ddp.pt", &how, &e), -1);
	assert_non_null(strstr(e.msg, "describes gpt2"));
	how.config = NULL;
}

/* ---- items ---------------------------------------------------------------------------- */

/* A call of a function is a value that nobody needs; it is not made. */
TEST(nothing_is_executed)
{
	struct torch_file f;
	double x;
	int64_t n;
	succeed(torch_open(&f, GOLDEN "ddp.pt", &e));
	const struct torch_item *danger = torch_find(&f, "danger");
	assert_true(danger && danger->kind == TORCH_VALUE);
	succeed(torch_read_numbers(&f, danger, 1, &x, &n, &e));
	assert_int_equal(n, 0);
	const struct torch_item *rng = torch_find(&f, "rng");
	assert_string_equal(torch_dtype_name(rng->dtype), "uint8");
	torch_close(&f);
}

/* The directory of an archive of more than 4 GiB, and a file that is one tensor. */
TEST(archives_of_64_bits)
{
	struct torch_file f;
	double x[6];
	succeed(torch_open(&f, GOLDEN "zip64.pt", &e));
	const struct torch_item *t = torch_find(&f, "");
	assert_true(t && t->ndim == 2 && t->dims[0] == 2 && t->dims[1] == 3);
	succeed(torch_read_doubles(&f, t, 0, 2, x, &e));
	for (int i = 0; i < 6; i++)
		assert_true(x[i] == i);
	torch_close(&f);
}

/* Rows of boxes of two dimensions, from and to anywhere. */
TEST(any_rows_of_boxes)
{
	struct torch_file f;
	succeed(torch_open(&f, GOLDEN "titan", &e));
	const struct torch_item *t = torch_find(&f, "layers.1.feed_forward.w1.weight");
	assert_non_null(t);
	assert_int_equal(t->n_chunks, 6);
	int64_t rows = torch_rows(t), width = torch_row_size(t);
	double all[8 * 16], some[8 * 16];
	assert_int_equal(rows * width, ARRAY_LEN(all));
	succeed(torch_read_doubles(&f, t, 0, rows, all, &e));
	for (int64_t r = 0; r < rows; r++)
		for (int64_t n = 0; r + n <= rows; n++) {
			succeed(torch_read_doubles(&f, t, r, n, some, &e));
			assert_memory_equal(some, all + r * width,
				(size_t)(n * width) * sizeof(*all));
		}
	torch_close(&f);
}

/* A storage of several tensors, such as a flat buffer, is read once to be checked. */
TEST(storages_are_checked_once)
{
	static const char *const of_one[] = {
		"model.norm.weight", "model.layers.0.input_layernorm.weight"};
	struct torch_file f;
	float x[16];
	succeed(torch_open(&f, GOLDEN "pytorch_model.bin", &e));
	struct zip *z = &f.parts->archive.zip;
	succeed(torch_read(&f, torch_find(&f, of_one[0]), 0, 16, x, &e));
	for (int64_t i = 0; i < z->n; i++)
		z->entries[i].crc32 ^= 1;
	succeed(torch_read(&f, torch_find(&f, of_one[1]), 0, 16, x, &e));
	assert_int_equal(
		torch_read(&f, torch_find(&f, "lm_head.weight"), 0, 1, x, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	e = (struct err){0};
	torch_close(&f);
	succeed(torch_open(&f, GOLDEN "elastic", &e));
	z = f.parts->zips;
	for (int64_t i = 0; i < z->n; i++)
		z->entries[i].crc32 ^= 1;
	const struct torch_item *t = torch_find(&f, "model.embed_tokens.weight");
	assert_int_equal(torch_read(&f, t, 0, 1, x, &e), -1);
	e = (struct err){0};
	for (int64_t i = 0; i < z->n; i++)
		z->entries[i].crc32 ^= 1;
	succeed(torch_read(&f, t, 0, 1, x, &e));
	for (int64_t i = 0; i < z->n; i++)
		z->entries[i].crc32 ^= z->entries[i].is_verified;
	succeed(torch_read(&f, t, 1, 1, x, &e));
	torch_close(&f);
}

/* What is whole and cannot be read is told from damage. */
TEST(refused_files)
{
	static const struct {
		const char *path, *message;
		int code;
	} cases[] = {{GOLDEN "refused/compressed.pt", "compressed zip entries",
			     EX_UNAVAILABLE},
		{GOLDEN "refused/order.pt", "byte order \"big\"", EX_UNAVAILABLE},
		{GOLDEN "refused/transformed", "items are transformed", EX_UNAVAILABLE},
		{GOLDEN "refused/hole", "leave a hole", EX_DATAERR},
		{GOLDEN "refused/universal3", "lacks tensor shapes", EX_UNAVAILABLE},
		{GOLDEN "refused/stage0-fused", "without parameter names and shapes",
			EX_UNAVAILABLE},
		{GOLDEN "refused/buffers", "--dist-ckpt-optim-fully-reshardable",
			EX_UNAVAILABLE}};
	struct ckpt_view v;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		e = (struct err){0};
		assert_int_equal(convert_open(&v, cases[i].path, &how, &e), -1);
		if (e.code != cases[i].code || !strstr(e.msg, cases[i].message))
			fail_msg("%s: code %d, %s", cases[i].path, e.code, e.msg);
	}
}

/* ---- damage ----------------------------------------------------------------------------- */

static uint64_t hash_of(const char *path)
{
	struct ckpt_view v;
	uint64_t hash = 0;
	e = (struct err){0};
	if (convert_open(&v, path, &how, &e))
		return 0;
	if (ckpt_view_hash(&v, &hash, &e))
		hash = 0;
	ckpt_view_close(&v);
	return hash;
}

static const char *copy_of(const char *path, struct str *text)
{
	static char name[64];
	str_clear(text);
	succeed(file_read(path, 1 << 20, text, &e));
	snprintf(name, sizeof(name), "%s", test_path("copy.pt"));
	return name;
}

static void put(const char *path, const struct str *text)
{
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(text->s, 1, text->len, f), text->len);
	assert_int_equal(fclose(f), 0);
}

/* A flipped bit is found, or is in what nothing reads: names, sizes and numbers are the same. */
TEST(flipped_bits_are_found)
{
	struct str text = {0};
	const char *path = copy_of(GOLDEN "pytorch_model.bin", &text);
	int64_t flips = getenv("LONG") ? 20000 : 1500, n_found = 0;
	how.config = GOLDEN "hf/config.json";
	uint64_t whole = hash_of(GOLDEN "pytorch_model.bin");
	for (int64_t i = 0; i < flips; i++) {
		size_t at = (size_t)(test_uniform(7, 2 * i) * (double)text.len);
		char bit = (char)(1 << (int)(test_uniform(7, 2 * i + 1) * 8));
		text.s[at] ^= bit;
		put(path, &text);
		uint64_t hash = hash_of(path);
		if (hash && hash != whole)
			fail_msg("bit %d of byte %zu: other numbers, and no error", bit,
				at);
		if (!hash && (e.code != EX_DATAERR && e.code != EX_UNAVAILABLE))
			fail_msg("byte %zu: code %d, %s", at, e.code, e.msg);
		n_found += !hash;
		text.s[at] ^= bit;
	}
	print_message("# figure: %lld of %lld flipped bits are found; the others are in "
		      "padding and what is not read\n",
		(long long)n_found, (long long)flips);
	assert_true(n_found > flips / 2);
	str_free(&text);
	how.config = NULL;
}

/* .metadata has no checksum: what a flipped bit says must be impossible, or change nothing. */
TEST(flipped_bits_of_metadata)
{
	static const char *const files[] = {"__0_0.distcp", "__1_0.distcp"};
	struct str text = {0}, path = {0};
	char folder[64];
	int64_t flips = getenv("LONG") ? 5000 : 1000, n_found = 0;
	snprintf(folder, sizeof(folder), "%s", test_path("dcp"));
	succeed(file_make_directory(folder, &e));
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		str_clear(&path);
		str_printf(&path, GOLDEN "nested/%s", files[i]);
		str_clear(&text);
		succeed(file_read(path.s, 1 << 20, &text, &e));
		str_clear(&path);
		str_printf(&path, "%s/%s", folder, files[i]);
		put(path.s, &text);
	}
	str_clear(&text);
	succeed(file_read(GOLDEN "nested/.metadata", 1 << 20, &text, &e));
	str_clear(&path);
	str_printf(&path, "%s/.metadata", folder);
	how.config = GOLDEN "hf/config.json";
	put(path.s, &text);
	uint64_t whole = hash_of(folder);
	assert_true(whole != 0);
	for (int64_t i = 0; i < flips; i++) {
		size_t at = (size_t)(test_uniform(8, 2 * i) * (double)text.len);
		char bit = (char)(1 << (int)(test_uniform(8, 2 * i + 1) * 8));
		text.s[at] ^= bit;
		put(path.s, &text);
		uint64_t hash = hash_of(folder);
		if (hash && hash != whole)
			fail_msg("bit %d of byte %zu: other numbers, and no error", bit,
				at);
		n_found += !hash;
		text.s[at] ^= bit;
	}
	print_message(
		"# figure: %lld of %lld flipped bits of .metadata are found; the others "
		"are in what is not read\n",
		(long long)n_found, (long long)flips);
	str_free(&text);
	str_free(&path);
	how.config = NULL;
}

TEST(truncated_files_are_refused)
{
	struct str text = {0};
	const char *path = copy_of(GOLDEN "pytorch_model.bin", &text);
	size_t whole = text.len;
	how.config = GOLDEN "hf/config.json";
	for (text.len = 0; text.len < whole; text.len += getenv("LONG") ? 1 : 37) {
		struct torch_file f;
		e = (struct err){0};
		put(path, &text);
		assert_int_equal(torch_open(&f, path, &e), -1);
		assert_int_equal(e.code, EX_DATAERR);
	}
	text.len = whole;
	str_free(&text);
	how.config = NULL;
}

/* ---- many boxes ---------------------------------------------------------------------------- */

enum { METADATA, TENSOR, PROPERTIES, FLOAT, SIZE, BOX, INDEX, INFO, N_GLOBALS };
static const char *const globals[N_GLOBALS] = {"Metadata", "TensorStorageMetadata",
	"TensorProperties", "float32", "Size", "ChunkStorageMetadata", "MetadataIndex",
	"_StorageInfo"};

static void put_text(FILE *f, const char *text)
{
	fprintf(f, "\x8c%c%s\x94", (char)strlen(text), text);
}

/* (the module and the name of a global are numbers of the memo, too) */
static void put_global(FILE *f, int global)
{
	fputc('h', f);
	fputc(3 * global + 2, f);
}

/* An object whose fields follow. */
static void put_object(FILE *f, int global)
{
	put_global(f, global);
	fputs(")\x81\x94}\x94(", f);
}

static void put_integer(FILE *f, int64_t x)
{
	int32_t word = (int32_t)x;
	fputc('J', f);
	fwrite(&word, sizeof(word), 1, f);
}

static void put_size(FILE *f, const char *key, int64_t rows, int64_t columns)
{
	put_text(f, key);
	put_global(f, SIZE);
	put_integer(f, rows);
	put_integer(f, columns);
	fputs("\x86\x94\x85\x94R\x94", f);
}

/* A .metadata of n tensors, each of a row in a file of each rank. */
static void put_metadata(FILE *f, int64_t n, int64_t ranks)
{
	char text[64];
	fputs("\x80\x04", f);
	for (int i = 0; i < N_GLOBALS; i++) {
		put_text(f, i == SIZE || i == FLOAT ? "torch" : "some.module");
		put_text(f, globals[i]);
		fputs("\x93\x94"
		      "0",
			f);
	}
	put_object(f, METADATA);
	put_text(f, "state_dict_metadata");
	fputs("}\x94(", f);
	for (int64_t i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "layers.%lld.weight", (long long)i);
		put_text(f, text);
		put_object(f, TENSOR);
		put_text(f, "properties");
		put_global(f, PROPERTIES);
		fputs(")\x81\x94(", f);
		put_global(f, FLOAT);
		fputs("NNt\x94"
		      "b",
			f);
		put_size(f, "size", ranks, 16);
		put_text(f, "chunks");
		fputs("]\x94(", f);
		for (int64_t r = 0; r < ranks; r++) {
			put_object(f, BOX);
			put_size(f, "offsets", r, 0);
			put_size(f, "sizes", 1, 16);
			fputs("ub", f);
		}
		fputs("eub", f);
	}
	fputs("u", f);
	put_text(f, "storage_data");
	fputs("}\x94(", f);
	for (int64_t k = 0; k < n * ranks; k++) {
		put_object(f, INDEX);
		put_text(f, "fqn");
		snprintf(text, sizeof(text), "layers.%lld.weight", (long long)(k % n));
		put_text(f, text);
		put_size(f, "offset", k / n, 0);
		fputs("ub", f);
		put_object(f, INFO);
		put_text(f, "relative_path");
		snprintf(text, sizeof(text), "__%lld_0.distcp", (long long)(k / n));
		put_text(f, text);
		put_text(f, "offset");
		put_integer(f, k % n * 2345);
		put_text(f, "length");
		put_integer(f, 2345);
		fputs("ub", f);
	}
	fputs("uub.", f);
}

/* The most memory that this process has had, in bytes. */
static int64_t most_memory(void)
{
	struct str text = {0};
	succeed(file_read("/proc/self/status", 1 << 20, &text, &e));
	const char *at = strstr(text.s, "VmHWM:");
	int64_t n = at ? strtoll(at + strlen("VmHWM:"), NULL, 10) * 1024 : 0;
	str_free(&text);
	return n;
}

/* 405B on 1024 ranks (with LONG=yes): 3.5 million boxes, in less than 2 GB. */
TEST(many_boxes)
{
	bool all = getenv("LONG") != NULL;
	int64_t n = all ? 3400 : 60, ranks = all ? 1030 : 100;
	struct torch_file f;
	char path[64], folder[64];
	snprintf(folder, sizeof(folder), "%s", test_path("many"));
	succeed(file_make_directory(folder, &e));
	snprintf(path, sizeof(path), "%s", test_path("many/.metadata"));
	FILE *out = fopen(path, "w");
	assert_non_null(out);
	put_metadata(out, n, ranks);
	assert_int_equal(fclose(out), 0);
	succeed(torch_open(&f, folder, &e));
	assert_int_equal(f.n, n);
	const struct torch_item *t = torch_find(&f, "layers.7.weight");
	assert_true(t && t->n_chunks == ranks && torch_rows(t) == ranks);
	torch_close(&f);
	unlink(path);
	print_message("# figure: %lld boxes: at most %.2f GB\n", (long long)(n * ranks),
		(double)most_memory() / 1e9);
#ifndef __SANITIZE_ADDRESS__
	assert_true(most_memory() < 2000000000);
#endif
}

/* ---- pickles -------------------------------------------------------------------------------- */

static int parse(struct pickle *p, const char *bytes, size_t n)
{
	e = (struct err){0};
	const struct pickle_bytes b = {bytes, n, false};
	return pickle_parse(p, &b, "a pickle", &e);
}
#define PARSE(p, text) parse(p, text, sizeof(text) - 1)

TEST(pickles_that_are_refused)
{
	static const struct {
		const char *bytes;
		size_t n;
	} cases[] = {
#define CASE(text) {text, sizeof(text) - 1}
		CASE(""),
		CASE("\x80\x02"),
		CASE("\x80\x07N."),
		CASE("N"),
		CASE("."),
		CASE("NN."), /* two values */
		CASE("(."),
		CASE("(N."), /* a mark without an end */
		CASE("t."),
		CASE("0N."),
		CASE("R."),
		CASE("b."),
		CASE("NR."),
		CASE("(N\x85."), /* a tuple around a mark */
		CASE("]a."),
		CASE("Na."),   /* nothing, or to None */
		CASE("}(Nu."), /* a key without a value */
		CASE("h\x00."),
		CASE("q\x00."),
		CASE("Nr\xff\xff\xff\x7f."),
		CASE("X\xff\xff\xff\x7fxx."),
		CASE("\x8c\x05xx."),
		CASE("cos\nsystem."),
		CASE("NN\x93."),
		CASE("Q."),
		CASE("V1\n."),
		CASE("I1\n."),
		CASE("i"),
		CASE("o."),
		CASE("P1\n."),
		CASE("\x82\x01."),
#undef CASE
	};
	struct pickle p;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		if (!parse(&p, cases[i].bytes, cases[i].n))
			fail_msg("pickle %zu is taken", i);
		assert_int_equal(e.code, EX_DATAERR);
	}
}

TEST(values_of_pickles)
{
	struct pickle p;
	int64_t x;
	size_t n;
	succeed(PARSE(&p, "(K\x05M\x01\x02J\xfe\xff\xff\xff\x8a\x03\xff\xff\x80\x8a\x00"
			  "\x88G\x3f\xf8\x00\x00\x00\x00\x00\x00X\x02\x00\x00\x00"
			  "abNt."));
	static const int64_t integers[] = {5, 513, -2, -8323073, 0, 1};
	assert_int_equal(pickle_kind(&p, p.root), PICKLE_TUPLE);
	for (uint32_t i = 0; i < ARRAY_LEN(integers); i++) {
		assert_int_equal(pickle_int(&p, pickle_item(&p, p.root, i), &x), 0);
		assert_int_equal(x, integers[i]);
	}
	assert_true(p.nodes[pickle_item(&p, p.root, 6)].as.real == 1.5);
	assert_true(pickle_is_text(&p, pickle_item(&p, p.root, 7), "ab"));
	assert_int_equal(pickle_item(&p, p.root, 8), 0);
	pickle_release(&p);
	/* a call is a node with its parts, and what is put into it is dropped */
	succeed(PARSE(&p, "cos\nsystem\n\x8c\x02hi\x85R\x8c\x01kNs."));
	assert_int_equal(pickle_kind(&p, p.root), PICKLE_OBJECT);
	uint32_t f = pickle_part(&p, p.root, PICKLE_CALLED);
	assert_true(pickle_is_global(&p, f, "os", "system"));
	assert_string_equal(pickle_global_name(&p, f, &n) ? "a name" : "", "a name");
	pickle_release(&p);
	/* a list that has itself, by the memo */
	succeed(PARSE(&p, "]q\x00h\x00"
			  "a."));
	assert_int_equal(pickle_item(&p, p.root, 0), p.root);
	pickle_release(&p);
}

/* Of 0 elements, whose other dimensions have a product of more than 64 bits; and of storage far
 * behind its end. */
TEST(shapes_that_are_refused)
{
#define TENSOR(offset, dims)                                                                 \
	"ctorch._utils\n_rebuild_tensor_v2\n((\x8c\x07storagectorch\nFloatStorage\n\x8c\x01" \
	"0\x8c\x03"                                                                          \
	"cpuK\x04tQ" offset "(" dims "t(K\x01K\x01K\x01tNtR."
#define HUGE_DIM "\x8a\x06\x00\x00\x00\x00\x00\x01"
	struct tensor_info d;
	struct pickle p;
	succeed(PARSE(&p, TENSOR("K\x01", "K\x03K\x01K\x01")));
	succeed(describe_tensor(&p, p.root, &d, &e));
	assert_int_equal(d.n_stored, 4);
	pickle_release(&p);
	succeed(PARSE(&p, TENSOR("K\x01", "K\x00" HUGE_DIM HUGE_DIM)));
	assert_int_equal(describe_tensor(&p, p.root, &d, &e), -1);
	pickle_release(&p);
	e = (struct err){0};
	succeed(PARSE(&p, TENSOR("K\x05", "K\x00K\x01K\x01")));
	assert_int_equal(describe_tensor(&p, p.root, &d, &e), -1);
	pickle_release(&p);
	e = (struct err){0};
}

/* ---- files of PyTorch itself ------------------------------------------------------------------- */

/* Checks the items of a line: the file, how their names begin, and the rest of each name and its CRC. */
static int check_items(const char *folder, char *line)
{
	char *rest = line, *file = strsep(&rest, " "), *begin = strsep(&rest, " "), *end;
	struct str path = {0}, name = {0};
	struct torch_file f;
	int n_items = 0;
	str_printf(&path, "%s/%s", folder, file);
	succeed(torch_open(&f, path.s, &e));
	for (; (end = strsep(&rest, " ")); n_items++) {
		str_clear(&name);
		str_printf(&name, "%s%s", strcmp(begin, "-") ? begin : "",
			strcmp(end, "-") ? end : "");
		const struct torch_item *t = torch_find(&f, name.s);
		if (!t)
			fail_msg("%s: no %s", file, name.s);
		int64_t n = torch_rows(t) * torch_row_size(t);
		float *x = xmalloc((size_t)n * sizeof(*x));
		succeed(torch_read(&f, t, 0, torch_rows(t), x, &e));
		if (crc32(0, (void *)x, (uInt)n * sizeof(*x)) !=
			strtoul(strsep(&rest, " "), NULL, 16))
			fail_msg("%s: %s has other numbers", file, name.s);
		free(x);
	}
	torch_close(&f);
	str_free(&path);
	str_free(&name);
	return n_items;
}

/* As another reader found them (numpy). */
TEST(files_of_pytorch)
{
	const char *folder = getenv("PT_ORACLE");
	struct str text = {0};
	int64_t n = 0;
	folder = folder ? folder : "shared/data/oracle";
	if (!file_exists(folder))
		skip();
	succeed(file_read("tests/golden/torch-oracle.txt", 1 << 20, &text, &e));
	for (char *rest = text.s, *line; (line = strsep(&rest, "\n"));)
		if (*line && *line != '#')
			n += check_items(folder, line);
	assert_true(n > 200);
	str_free(&text);
}

/*
 * Small files that ask for much memory or time: names, dicts and storages that are listed very often, JSON of empty
 * values, patterns that try the same characters again and again. Each is rejected, by a process that may have little
 * memory and that an alarm ends: without bounds they take gigabytes, or hours.
 */
#include "archive/safetensors.h"
#include "base/file.h"
#include "base/json.h"
#include "reference/batch.h"
#include "foreign/foreign.h"
#include "tests/support/support.h"
#include "token/token.h"
#include "archive/archive_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

static struct err e;
static struct open_options how;
static const char too_much[] = "need more memory than 16 times the size";

/* ---- limits ------------------------------------------------------------------------------ */

/* Runs a function in a process that may have 512 MiB and two minutes (under a sanitizer, ten). It must return 0, or -1
 * with a message of damage that has this text. */
static void assert_ends(const char *text, int (*run)(const void *), const void *with)
{
	enum { MEMORY = 512 << 20, SECONDS = 120 };
	int status;
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
#if defined(__SANITIZE_ADDRESS__)
		alarm(5 * SECONDS);
#else
		const struct rlimit memory = {MEMORY, MEMORY};
		setrlimit(RLIMIT_AS, &memory);
		alarm(SECONDS);
#endif
		e = (struct err){0};
		int rc = run(with);
		if (text ? rc && e.code == EX_DATAERR && strstr(e.msg, text) : !rc)
			_exit(0);
		fprintf(stderr, "code %d: %s\n", e.code, e.msg);
		_exit(1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* ---- files of torch.save() ----------------------------------------------------------------- */

static void put_text(struct str *p, const char *text)
{
	uint32_t n = (uint32_t)strlen(text);
	str_putc(p, 'X');
	str_add(p, &n, sizeof(n));
	str_puts(p, text);
}

/* A text of one letter. */
static void put_long_text(struct str *p, char letter, uint32_t n)
{
	str_putc(p, 'X');
	str_add(p, &n, sizeof(n));
	for (uint32_t i = 0; i < n; i++)
		str_putc(p, letter);
}

static void put_integer(struct str *p, int32_t x)
{
	str_putc(p, 'J');
	str_add(p, &x, sizeof(x));
}

static void put_bytes(struct str *p, const char *bytes, int64_t times)
{
	size_t n = strlen(bytes);
	while (times--)
		str_add(p, bytes, n);
}

/* A tensor with all strides 0 of the storage "0" of 32 bytes. */
static void put_tensor(struct str *p, const char *storage, int ndim, const int32_t *dims)
{
	str_puts(p, "ctorch._utils\n_rebuild_tensor_v2\n((");
	put_text(p, "storage");
	str_printf(p, "ctorch\n%s\n", storage);
	put_text(p, "0");
	put_text(p, "cpu");
	str_puts(p, *storage == 'B' ? "K\x20tQ" : "K\x08tQ");
	put_integer(p, 0);
	str_putc(p, '(');
	for (int i = 0; i < ndim; i++)
		put_integer(p, dims[i]);
	str_puts(p, "t(");
	for (int i = 0; i < ndim; i++)
		put_integer(p, 0);
	str_puts(p, "tNtR");
}

static void put_number(struct str *to, uint64_t x, int n_bytes)
{
	str_add(to, &x, (size_t)n_bytes); /* (little-endian, as this machine) */
}

/* An entry of a zip archive, and its line in the directory. */
static void put_entry(struct str *zip, struct str *directory, const char *name,
	const void *data, size_t n)
{
	size_t at = zip->len, n_name = strlen(name);
	uint64_t sum = crc32(0, data, (uInt)n);
	for (int line = 0; line < 2; line++) {
		struct str *to = line ? directory : zip;
		str_puts(to, line ? "PK\x01\x02" : "PK\x03\x04");
		put_number(to, 20, line ? 4 : 2); /* versions */
		put_number(to, 0, 8);		  /* flags, method, time */
		put_number(to, sum, 4);
		put_number(to, n, 4);
		put_number(to, n, 4);
		put_number(to, n_name, 2);
		put_number(to, 0, line ? 8 : 2);
		put_number(to, 0, line ? 4 : 0);
		put_number(to, at, line ? 4 : 0);
		str_add(to, name, n_name);
	}
	str_add(zip, data, n);
}

static void put_file(const char *path, const struct str *bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
	assert_true(fd >= 0);
	assert_int_equal(write_all(fd, bytes->s, bytes->len), 0);
	close(fd);
}

/* Writes an archive with this pickle and a storage "0" of 32 bytes; returns its path. Empties the pickle. */
static const char *save(const char *name, struct str *pickle)
{
	static const char storage[32];
	struct str zip = {0}, directory = {0};
	const char *path = test_path(name);
	put_entry(&zip, &directory, "a/data.pkl", pickle->s, pickle->len);
	put_entry(&zip, &directory, "a/data/0", storage, sizeof(storage));
	size_t at = zip.len;
	str_add(&zip, directory.s, directory.len);
	str_puts(&zip, "PK\x05\x06");
	put_number(&zip, 0, 4);
	put_number(&zip, 2, 2);
	put_number(&zip, 2, 2);
	put_number(&zip, directory.len, 4);
	put_number(&zip, at, 4);
	put_number(&zip, 0, 2);
	put_file(path, &zip);
	str_free(&zip);
	str_free(&directory);
	str_clear(pickle);
	return path;
}

static const char *folder(const char *name)
{
	const char *path = test_path(name);
	assert_int_equal(file_make_directory(path, &e), 0);
	return path;
}

static int open_file(const void *path)
{
	struct torch_file f;
	if (torch_open(&f, path, &e))
		return -1;
	torch_close(&f);
	return 0;
}

/* Reads all values as texts and as numbers. */
static int read_values(const void *path)
{
	struct torch_file f;
	struct strs texts = {0};
	double *v = xcalloc(1 << 20, sizeof(*v));
	int64_t n;
	int rc = torch_open(&f, path, &e);
	for (int64_t i = 0; i < f.n && !rc; i++)
		rc = torch_read_strings(&f, &f.items[i], &texts, &e) ||
		     torch_read_numbers(&f, &f.items[i], 1 << 20, v, &n, &e);
	return rc;
}

TEST(one_dict_or_list_in_many_places)
{
	struct str p = {0};
	/* 15 long names of one dict of 300,000 values */
	str_puts(&p, "\x80\x02}(");
	for (int i = 0; i < 300000; i++)
		put_integer(&p, i), str_putc(&p, 'N');
	str_add(&p,
		"uq\0"
		"0}(",
		6);
	for (char letter = 'a'; letter < 'p'; letter++) {
		put_long_text(&p, letter, 4000);
		str_add(&p, "h\0", 2);
	}
	str_puts(&p, "u.");
	assert_ends(too_much, open_file, save("walk.pt", &p));
	/* 20,000 values that are one list of 20,000 texts */
	str_puts(&p, "\x80\x02](");
	for (int i = 0; i < 20000; i++)
		put_text(&p, "a name");
	str_add(&p,
		"eq\0"
		"0}(",
		6);
	for (int i = 0; i < 20000; i++) {
		put_integer(&p, i);
		str_add(&p, "h\0", 2);
	}
	str_puts(&p, "u.");
	assert_ends(too_much, read_values, save("texts.pt", &p));
	str_free(&p);
}

/* Values that nothing has: 16 bytes of memory for each byte. */
TEST(values_without_use)
{
	struct str p = {0};
	str_puts(&p, "\x80\x02");
	put_bytes(&p, "}0", 20000000);
	str_puts(&p, "N.");
	assert_ends("too many values", open_file, save("values.pt", &p));
	str_free(&p);
}

static int open_view(const void *path)
{
	struct ckpt_view v;
	int rc = convert_open(&v, path, &how, &e);
	if (!rc)
		ckpt_view_close(&v);
	return rc;
}

/* What a file without tensors is, is said. */
TEST(files_without_tensors)
{
	struct str p = {0};
	str_puts(&p, "\x80\x02}(");
	put_text(&p, "model");
	str_puts(&p, "cposix\nsystem\n");
	put_text(&p, "true");
	str_puts(&p, "\x85Ru.");
	assert_ends(
		"\"model\", is a call of posix.system", open_view, save("call.pt", &p));
	str_puts(&p, "\x80\x02N.");
	assert_ends("it has no tensor, and its only value is None", open_view,
		save("none.pt", &p));
	str_free(&p);
}

/* Four numbers that are a tensor of terabytes, or many of gigabytes. */
TEST(tensors_of_stride_0)
{
	static const int32_t wide[] = {1 << 24, 1 << 22}, many[] = {1 << 20, 256};
	struct str p = {0};
	str_puts(&p, "\x80\x02}(");
	put_text(&p, "output.weight");
	put_tensor(&p, "FloatStorage", 2, wide);
	str_puts(&p, "u.");
	assert_ends(too_much, open_file, save("wide.pt", &p));
	str_puts(&p, "\x80\x02");
	put_tensor(&p, "FloatStorage", 2, many);
	str_puts(&p, "q");
	str_add(&p, "\0", 1);
	str_puts(&p, "0}(");
	for (int i = 0; i < 1000; i++) {
		put_integer(&p, i);
		str_add(&p, "h\0", 2);
	}
	str_puts(&p, "u.");
	assert_ends(too_much, open_file, save("many.pt", &p));
	str_free(&p);
}

/* ---- directories ------------------------------------------------------------------------------ */

#define DCP "ctorch.distributed.checkpoint.metadata\n"

static const char *save_metadata(const char *name, struct str *p)
{
	struct str file = {0};
	const char *path = folder(name);
	str_printf(&file, "%s/.metadata", path);
	put_file(file.s, p);
	str_free(&file);
	str_clear(p);
	return path;
}

TEST(names_and_states_of_metadata)
{
	struct str p = {0};
	/* 300,000 items that have one name of 4,000 characters */
	str_puts(&p, "\x80\x02");
	put_long_text(&p, 'N', 4000);
	str_add(&p,
		"q\0"
		"0" DCP "BytesStorageMetadata\n)Rq\1"
		"0" DCP "Metadata\n)R}(",
		2 + strlen("0" DCP "BytesStorageMetadata\n)Rq\1"
			   "0" DCP "Metadata\n)R}("));
	put_text(&p, "state_dict_metadata");
	str_puts(&p, "}(");
	for (int i = 0; i < 300000; i++)
		str_add(&p, "h\0h\1", 4);
	str_puts(&p, "u");
	put_text(&p, "storage_data");
	str_puts(&p, "}ub.");
	assert_ends(too_much, open_file, save_metadata("names", &p));
	/* 300,000 places whose index has one state of 300,000 keys */
	str_puts(&p, "\x80\x02}(");
	for (int i = 0; i < 300000; i++)
		put_integer(&p, i), str_putc(&p, 'N');
	put_text(&p, "fqn");
	put_text(&p, "a");
	str_add(&p,
		"uq\0"
		"0" DCP "MetadataIndex\n)Rh\0bq\1"
		"0" DCP "_StorageInfo\n)R}(",
		3 + strlen("0" DCP "MetadataIndex\n)Rh") + 1 +
			strlen("bq\1"
			       "0" DCP "_StorageInfo\n)R}("));
	put_text(&p, "relative_path");
	put_text(&p, "x");
	str_puts(&p, "ubq\2"
		     "0" DCP "BytesStorageMetadata\n)Rq\3"
		     "0" DCP "Metadata\n)R}(");
	put_text(&p, "state_dict_metadata");
	str_puts(&p, "}(");
	put_text(&p, "a");
	str_puts(&p, "h\3u");
	put_text(&p, "storage_data");
	str_puts(&p, "}(");
	put_bytes(&p, "h\1h\2", 300000);
	str_puts(&p, "uub.");
	assert_ends("names an unknown item", open_file, save_metadata("states", &p));
	str_free(&p);
}

/* Writes a directory of ZeRO: what the optimizer has behind its groups, and param_shapes. */
static const char *save_zero(const char *name, const char *memo, const char *group,
	int64_t n_groups, const struct str *more, struct str *model)
{
	static const int32_t none[] = {0};
	struct str p = {0}, file = {0};
	const char *path = folder(name);
	str_puts(&p, "\x80\x02");
	put_tensor(&p, "FloatStorage", 1, none);
	str_puts(&p, memo);
	str_puts(&p, "}(");
	put_text(&p, "optimizer_state_dict");
	str_puts(&p, "}(");
	put_text(&p, "zero_stage");
	str_puts(&p, "K\2");
	put_text(&p, "partition_count");
	str_puts(&p, "K\1");
	put_text(&p, "single_partition_of_fp32_groups");
	str_puts(&p, "](");
	put_bytes(&p, group, n_groups);
	str_puts(&p, "e");
	str_add(&p, more->s ? more->s : "", more->len);
	str_puts(&p, "uu.");
	str_printf(&file, "%s/zero_pp_rank_0_mp_rank_00_optim_states.pt", name);
	save(file.s, &p);
	str_clear(&file);
	str_printf(&file, "%s/mp_rank_00_model_states.pt", name);
	save(file.s, model);
	str_free(&file);
	str_free(&p);
	return path;
}

static void begin_shapes(struct str *p)
{
	str_puts(p, "\x80\x02)q\1"
		    "0}(");
	put_text(p, "param_shapes");
	str_puts(p, "](}(");
}

TEST(names_groups_and_paddings_of_zero)
{
	struct str model = {0}, more = {0};
	begin_shapes(&model); /* one name, 300,000 times */
	put_long_text(&model, 'N', 4000);
	str_puts(&model, "q\2h\1");
	put_bytes(&model, "h\2h\1", 300000);
	str_puts(&model, "ueu.");
	assert_ends(too_much, open_file,
		save_zero("zname",
			"q\1"
			"0",
			"h\1", 1, &more, &model));
	/* 400,000 groups */
	str_puts(&model, "\x80\x02}(");
	put_text(&model, "param_shapes");
	str_puts(&model, "]u.");
	assert_ends("has 0 parameter groups, but the optimizer has 400000", open_file,
		save_zero("zgroup",
			"q\1"
			"0",
			"h\1", 400000, &more, &model));
	/* 150,000 paddings, the last one invalid */
	put_text(&more, "param_alignment_paddings");
	str_puts(&more, "](](");
	for (int i = 0; i < 400000; i++)
		str_add(&more, "K\0", 2);
	str_puts(&more, "Nee");
	begin_shapes(&model);
	for (int i = 0; i < 400001; i++) {
		char name[16];
		snprintf(name, sizeof(name), "%x", i);
		put_text(&model, name);
		str_puts(&model, "h\1");
	}
	str_puts(&model, "ueu.");
	assert_ends("invalid param_alignment_paddings", open_file,
		save_zero("zpad",
			"q\1"
			"0",
			"h\1", 1, &more, &model));
	str_free(&model);
	str_free(&more);
}

/* The names of a group are an archive; a damaged one must not be a group without names. */
TEST(groups_that_cannot_be_read)
{
	static const char *const files[] = {".metadata", "__0_0.distcp", "__1_0.distcp"};
	struct torch_file f;
	struct ckpt_view v;
	const char *copy = folder("nested");
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		scoped_str from = {0}, to = {0}, bytes = {0};
		str_printf(&from, "tests/golden/torch/nested/%s", files[i]);
		str_printf(&to, "%s/%s", copy, files[i]);
		assert_int_equal(file_read(from.s, 1 << 20, &bytes, &e), 0);
		put_file(to.s, &bytes);
	}
	how.config = "tests/golden/torch/hf/config.json";
	assert_int_equal(convert_open(&v, copy, &how, &e), 0);
	ckpt_view_close(&v);
	assert_int_equal(torch_open(&f, copy, &e), 0);
	const struct torch_item *x = torch_find(&f, "optimizer.param_groups.1.params");
	assert_non_null(x);
	const struct chunk *c = &f.parts->chunks[x->first];
	char *bytes = xmalloc((size_t)c->n_bytes);
	int fd = open(f.parts->files[c->file], O_RDWR);
	assert_int_equal(pread_all(fd, bytes, (size_t)c->n_bytes, c->at), 0);
	char *text = memmem(bytes, (size_t)c->n_bytes, "weight", 6);
	assert_non_null(text);
	assert_int_equal(pwrite_all(fd, "W", 1, c->at + (text - bytes)), 0);
	close(fd);
	free(bytes);
	torch_close(&f);
	assert_int_equal(convert_open(&v, copy, &how, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "does not match its checksum"));
	how.config = NULL;
}

/* As of .metadata that is cut off while it is read: the file has less than was asked for. */
TEST(pickles_that_become_shorter)
{
	struct pickle p;
	int fd = open(test_file("short", "}0}0}0}0"), O_RDONLY);
	const struct pickle_bytes b = {.n = 5 << 20, .fd = fd};
	e = (struct err){0};
	assert_int_equal(pickle_parse(&p, &b, "short", &e), -1);
	assert_int_equal(e.code, EX_IOERR);
	assert_string_equal(e.msg, "short became shorter while it was read");
	close(fd);
}

/* ---- batches, JSON ------------------------------------------------------------------------------- */

static int read_batch(const void *path)
{
	char *files[] = {(char *)path};
	struct token_batch b;
	const struct batch_opts o = {.end = -1};
	return token_batch_read(&b, 1, files, &o, &e);
}

TEST(arrays_of_a_batch)
{
	static const int32_t dims[] = {1 << 18, 16};
	struct str p = {0};
	str_puts(&p, "\x80\x02}(");
	for (int i = 0; i < 16; i++) {
		char name[16];
		snprintf(name, sizeof(name), "x%d", i);
		put_text(&p, i ? name : "inputs");
		put_tensor(&p, "ByteStorage", 2, dims);
	}
	str_puts(&p, "u.");
	assert_ends("x1: an array of [262144, 16] cannot be a batch", read_batch,
		save("batch.pt", &p));
	str_free(&p);
}

static int read_json(const void *text)
{
	const struct str *s = text;
	json_error_t why;
	json_t *j = load_json(s->s, s->len, 0, &why);
	return j ? 0 : err_set(&e, EX_DATAERR, "line %d: %s", why.line, why.text);
}

TEST(json_of_empty_values)
{
	struct str s = {0};
	str_puts(&s, "{\n\"a\": [\n");
	put_bytes(&s, "[],", 9000000);
	str_puts(&s, "0]}");
	assert_ends("line 3: parsing would take more", read_json, &s);
	/* a vocabulary, and pairs of tokens, have small values, too */
	str_clear(&s);
	str_puts(&s, "{\"vocab\": {");
	for (int i = 0; i < 250000; i++)
		str_printf(&s, "\"%x\":%d,", i, i);
	str_puts(&s, "\"\":0},\"merges\":[");
	put_bytes(&s, "[\"ab\",\"cd\"],", 250000);
	str_puts(&s, "0]}");
	assert_ends(NULL, read_json, &s);
	str_free(&s);
}

/* A header of more JSON than a model needs is not read. */
static int open_safetensors(const void *path)
{
	struct st_header h;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	return safetensors_read_header(&h, fd, path, &e);
}

TEST(header_of_safetensors)
{
	const char *path = test_path("long.safetensors");
	const uint64_t n = (12 << 20) + 1;
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	assert_int_equal(write(fd, &n, sizeof(n)), sizeof(n));
	assert_int_equal(ftruncate(fd, 1 << 24), 0);
	close(fd);
	assert_ends("a header of 12582913 bytes", open_safetensors, path);
}

/* ---- patterns ------------------------------------------------------------------------------------- */

struct splitting {
	const char *pattern;
	struct str text;
	int64_t n_words; /* that it must have */
};

/* Splits all of a text. */
static int split(const void *with)
{
	enum { MANY = 1024 };
	const struct splitting *s = with;
	uint32_t ends[MANY];
	int64_t n = 0, at = 0;
	struct splitter *x = splitter_open(s->pattern, &e);
	while (x && at < (int64_t)s->text.len) {
		int k = split_words(x, s->text.s + at, (int64_t)s->text.len - at, true,
			ends, MANY, &e);
		if (k < 0)
			return -1;
		at += ends[k - 1];
		n += k;
	}
	return x && n == s->n_words ? 0 : -1;
}

TEST(patterns_that_never_end)
{
	static const char *const patterns[] = {"(a+)+$", "(a|aa)+$", "((a*)*)*b",
		"\\p{L}+\\p{L}+\\p{L}+\\p{L}+\\p{L}+\\p{L}+\\d", "\\p{L}+\\d",
		"(?:a?){30}[a]{30}b", "[^b]*?[^b]*?[^b]*?b", "(?=(a+)+$)a"};
	struct splitting s = {0};
	for (int i = 0; i < 10000; i++)
		str_puts(&s.text,
			"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
	str_puts(&s.text, "!\n");
	for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
		s.pattern = patterns[i];
		assert_ends("the pattern '", split, &s);
	}
	str_free(&s.text);
}

/* Those of tokenizers, written otherwise than the ones that are known: a word may be very long. */
TEST(patterns_with_long_words)
{
	static const char llama[] =
		"(?:(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
		"?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
	static const char o200k[] =
		"(?:[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
		"[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?"
		"[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}{1,3}| "
		"?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";
	static const struct {
		const char *pattern, *piece;
		int64_t n, n_words;
	} cases[] = {
		{llama, "a", 10000000, 1},
		{llama, " ", 12000000, 1},
		{llama, "7", 3000000, 1000000},
		{llama, "\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\tx", 100000, 200000},
		{llama, "\xe6\xbc\xa2\xe5\xad\x97", 1000000, 1},
		{o200k, "A", 12000000, 1},
		{o200k, "Ab", 1000000, 1000000},
		{o200k, "\xd8\xb9\xd9\x8e", 1000000, 1},
		{"\\p{N}{1,3}", "a", 10000000, 1},
		{"\\p{N}{1,3}", "abc1", 500000, 1000000},
		{"[a-z]+(?=1)", "aaaaaaaaaa1", 300000, 600000},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct splitting s = {cases[i].pattern, {0}, cases[i].n_words};
		put_bytes(&s.text, cases[i].piece, cases[i].n);
		assert_ends(NULL, split, &s);
		str_free(&s.text);
	}
}

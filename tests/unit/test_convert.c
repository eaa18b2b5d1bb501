/* Formats of other programs: logits of Hugging Face's models (tests/golden/hf-NAME, made by
 * make_hugging_face.py), round trips bit for bit, damage, hostile headers; and checkpoints that are
 * computed from others.
 *
 * Some thousand flipped bits of each format; with LONG=yes 10,000. */
#include "base/file.h"
#include "foreign/foreign.h"
#include "foreign/huggingface.h"
#include "archive/safetensors.h"
#include "data/data.h"
#include "model/generate.h"
#include "tests/support/support.h"
#include "engine/inference.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err e;

static const char *const cases[] = {"gpt2", "gpt2-plain", "llama", "llama3", "llama-bias",
	"qwen2", "mistral", "mistral-window", "qwen2-window", "qwen2-skip", "qwen3",
	"qwen3-bias", "smollm3", "smollm3-window"};

static const char *golden(const char *name)
{
	static char path[64];
	snprintf(path, sizeof(path), "tests/golden/hf-%s", name);
	return path;
}

static void succeed(int rc)
{
	if (rc)
		fail_msg("%s", e.msg);
}

static void save(const struct ckpt_view *v, const struct convert_format *f,
	const char *path, enum dtype dtype, int64_t shard_bytes)
{
	const struct convert_opts o = {dtype, shard_bytes, false};
	succeed(convert_save(v, f, path, &o, &e));
}

static uint64_t hash_of(const struct ckpt_view *v)
{
	uint64_t hash;
	succeed(ckpt_view_hash(v, &hash, &e));
	return hash;
}

static uint64_t hash_of_file(const char *path)
{
	struct ckpt_view v;
	succeed(convert_open(&v, path, NULL, &e));
	uint64_t hash = hash_of(&v);
	ckpt_view_close(&v);
	return hash;
}

/* ---- logits ----------------------------------------------------------------------- */

/* A new name in the test's directory, for a file or a directory. */
static const char *fresh(const char *end)
{
	static int n;
	char name[64];
	snprintf(name, sizeof(name), "convert-%d%s", n++, end);
	return test_path(name);
}

/* The largest difference of the logits of a checkpoint from those of logits.h5 in a folder. */
static double logit_error(const char *ckpt, const char *folder)
{
	struct device d;
	struct inference x = {.device = NULL};
	struct ckpt_view v;
	struct ckpt *c;
	struct h5 *h;
	uint16_t *tokens;
	float *want;
	int64_t n;
	double worst = 0;
	char path[96];
	snprintf(path, sizeof(path), "%s/logits.h5", folder);
	succeed(h5_open(&h, path, &e));
	succeed(h5_get(h, "tokens", H5_U16, -1, 64, (void **)&tokens, &n, &e));
	succeed(h5_get(h, "logits", H5_F32, -1, 1 << 16, (void **)&want, NULL, &e));
	succeed(h5_close(h, &e));
	device_open_cpu(&d, 1);
	succeed(ckpt_open(&c, ckpt, &e));
	ckpt_view_from(&v, c);
	succeed(convert_model(&v, &x.model, &e));
	succeed(weights_check(c, &x.model, &e));
	inference_open(&x, &d);
	succeed(weights_load(x.store, c, NULL, CKPT_MODEL, STORE_PARAM, &e));
	struct decoder *g = decoder_open(&x.model, &d, x.store, true);
	for (int64_t i = 0; i < n; i++) {
		uint32_t id = tokens[i];
		decoder_feed(g, &id, 1);
		const float *have = decoder_logits(g);
		for (int64_t k = 0; k < x.model.c.vocab; k++)
			worst = fmax(
				worst, fabs((double)have[k] -
					       (double)want[i * x.model.c.vocab + k]));
	}
	decoder_close(g);
	inference_close(&x);
	ckpt_view_close(&v);
	ckpt_close(c);
	free(tokens);
	free(want);
	return worst;
}

TEST(logits_are_those_of_hugging_face)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ckpt_view v;
		const char *path = fresh(".h5");
		succeed(convert_open(&v, golden(cases[i]), NULL, &e));
		save(&v, &convert_pt, path, DT_F32, 0);
		ckpt_view_close(&v);
		double error = logit_error(path, golden(cases[i]));
		print_message("# figure: %s: logits differ by %.2g from Hugging Face's\n",
			cases[i], error);
		assert_true(error < 1e-4);
	}
}

static void round_trip(const char *path, const struct convert_format *f, const char *end,
	enum dtype dtype, int64_t shard_bytes);

/* A Llama as llm.c writes it, in fp32 and bf16 (make_llmc.py): its logits, and the same files again but for the checksum,
 * its mark and a size of the vocabulary, words 252 to 255, and the truncated factor of the feed-forward layer's width. */
TEST(llama_of_llmc)
{
	static const char folder[] = "tests/golden/llmc-llama";
	static const struct {
		const char *name;
		enum dtype dtype;
	} files[] = {{"model.bin", DT_F32}, {"half.bin", DT_BF16}};
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		struct ckpt_view v;
		struct str theirs = {0}, ours = {0};
		char from[64];
		const char *path = fresh(".h5"), *out = fresh(".bin");
		snprintf(from, sizeof(from), "%s/%s", folder, files[i].name);
		succeed(convert_open(&v, from, NULL, &e));
		save(&v, &convert_pt, path, DT_F32, 0);
		save(&v, &convert_llmc, out, files[i].dtype, 0);
		ckpt_view_close(&v);
		double error = logit_error(path, folder);
		print_message("# figure: %s: logits differ by %.2g from llm.c's\n",
			files[i].name, error);
		assert_true(error < (files[i].dtype == DT_F32 ? 1e-4 : 0.1));
		succeed(file_read(from, 1 << 20, &theirs, &e));
		succeed(file_read(out, 1 << 20, &ours, &e));
		assert_int_equal(ours.s[8 * 4], 1);
		ours.s[8 * 4] = theirs.s[8 * 4];
		memset(ours.s + 252 * 4, 0, 4 * 4);
		assert_true(
			ours.len == theirs.len && !memcmp(ours.s, theirs.s, ours.len));
		str_free(&theirs);
		str_free(&ours);
		round_trip(from, &convert_llmc, ".bin", files[i].dtype, 0);
	}
}

/* Reads another view with the rows of each head of wq and wk interleaved, as Meta's files have
 * them. */
static int read_interleaved(const struct ckpt_view *v, const struct ckpt_rows *r,
	float *out, struct err *error)
{
	const struct ckpt_view *of = v->with;
	const struct ckpt_tensor *t = &v->tensors[r->tensor];
	bool moved = strstr(t->name, "wq.") || strstr(t->name, "wk.");
	int64_t head = 6, width = ckpt_row_size(t);
	for (int64_t i = 0; i < r->n; i++) {
		int64_t row = r->row + i, j = row % head;
		int64_t from = row - j + (j % 2 ? head / 2 : 0) + j / 2;
		const struct ckpt_rows one = {r->group, r->tensor, moved ? from : row, 1};
		if (of->read(of, &one, out + i * width, error))
			return -1;
	}
	return 0;
}

/* The comparison above would see a wrong order of the rows of queries and keys. */
TEST(logits_see_a_wrong_permutation)
{
	struct ckpt_view v, wrong;
	const char *path = fresh(".h5");
	succeed(convert_open(&v, golden("llama"), NULL, &e));
	ckpt_view_copy(&wrong, &v);
	wrong.read = read_interleaved;
	wrong.with = &v;
	save(&wrong, &convert_pt, path, DT_F32, 0);
	ckpt_view_close(&wrong);
	ckpt_view_close(&v);
	assert_true(logit_error(path, golden("llama")) > 1e-2);
}

/* ---- round trips ------------------------------------------------------------------ */

static void same_file(const char *a, const char *b)
{
	struct str x = {0}, y = {0};
	succeed(file_read(a, 1 << 20, &x, &e));
	succeed(file_read(b, 1 << 20, &y, &e));
	assert_true(x.len == y.len && !memcmp(x.s, y.s, x.len));
	str_free(&x);
	str_free(&y);
}

/* From `path` to a checkpoint, to the format, to a checkpoint: the same file. */
static void round_trip(const char *path, const struct convert_format *f, const char *end,
	enum dtype dtype, int64_t shard_bytes)
{
	struct ckpt_view v;
	const char *first = fresh(".h5"), *other = fresh(end), *second = fresh(".h5");
	succeed(convert_open(&v, path, NULL, &e));
	if (f != &convert_huggingface)
		str_clear(&v.origin); /* other formats have no place for it */
	save(&v, &convert_pt, first, DT_F32, 0);
	ckpt_view_close(&v);
	succeed(convert_open(&v, first, NULL, &e));
	save(&v, f, other, dtype, shard_bytes);
	ckpt_view_close(&v);
	assert_ptr_equal(convert_detect(other).format, f);
	succeed(convert_open(&v, other, NULL, &e));
	save(&v, &convert_pt, second, DT_F32, 0);
	ckpt_view_close(&v);
	same_file(first, second);
}

TEST(round_trips_are_exact)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		round_trip(golden(cases[i]), &convert_huggingface, "", DT_F32, 0);
		round_trip(golden(cases[i]), &convert_huggingface, "", DT_F32, 4096);
	}
	round_trip(golden("gpt2"), &convert_llmc, ".bin", DT_F32, 0);
	round_trip(golden("llama"), &convert_llmc, ".bin", DT_F32, 0);
}

/* The data of a safetensors file. */
static void read_data(const char *folder, struct str *out)
{
	struct str path = {0}, text = {0};
	uint64_t n;
	str_printf(&path, "%s/model.safetensors", folder);
	succeed(file_read(path.s, 1 << 20, &text, &e));
	memcpy(&n, text.s, sizeof(n));
	str_add(out, text.s + 8 + n, text.len - 8 - n);
	str_free(&path);
	str_free(&text);
}

/* Hugging Face's file and ours have the same tensors in the same order: the same bytes. */
TEST(data_are_those_of_hugging_face)
{
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ckpt_view v;
		struct str a = {0}, b = {0};
		const char *out = fresh("");
		if (!strcmp(cases[i], "llama-bias"))
			continue; /* ours also has the biases of the feed-forward layers, 0 */
		succeed(convert_open(&v, golden(cases[i]), NULL, &e));
		save(&v, &convert_huggingface, out, DT_F32, 0);
		ckpt_view_close(&v);
		read_data(golden(cases[i]), &a);
		read_data(out, &b);
		assert_true(a.len == b.len && !memcmp(a.s, b.s, a.len));
		str_free(&a);
		str_free(&b);
	}
}

/* A copy of the golden GPT-2 whose header has another text in place of each `old`, which is not
 * shorter. */
static const char *with_names(const char *old, const char *new)
{
	struct str text = {0}, path = {0};
	const char *folder = fresh("");
	uint64_t n;
	str_printf(&path, "%s/model.safetensors", golden("gpt2"));
	succeed(file_read(path.s, 1 << 20, &text, &e));
	memcpy(&n, text.s, sizeof(n));
	char *at = text.s + 8, *end = text.s + 8 + n;
	size_t k = strlen(old), less = k - strlen(new);
	while ((at = memmem(at, (size_t)(end - at), old, k))) {
		memcpy(at, new, strlen(new));
		memmove(at + strlen(new), at + k, (size_t)(end - at) - k);
		memset(end - less, ' ', less);
	}
	succeed(file_make_directory(folder, &e));
	str_clear(&path);
	str_printf(&path, "%s/model.safetensors", folder);
	succeed(file_replace(path.s, &text, &e));
	str_clear(&path);
	str_clear(&text);
	str_printf(&path, "%s/config.json", golden("gpt2"));
	succeed(file_read(path.s, 1 << 20, &text, &e));
	str_clear(&path);
	str_printf(&path, "%s/config.json", folder);
	succeed(file_replace(path.s, &text, &e));
	str_free(&path);
	str_free(&text);
	return folder;
}

/* Files of the bare model have names without that of the outer module, as the GPT-2 of the hub. */
TEST(names_of_the_bare_model)
{
	struct ckpt_view v;
	struct err why = {0};
	const char *bare = with_names("transformer.", "");
	assert_true(hash_of_file(bare) == hash_of_file(golden("gpt2")));
	const char *other = with_names("h.1.ln_1.bias", "h.1.ln_1.bios");
	assert_int_equal(convert_open(&v, other, NULL, &why), -1);
	assert_non_null(strstr(why.msg, "tensor transformer.h.1.ln_1.bias is missing"));
}

/* What is written can be read again: a multiple that no run can give is refused. */
TEST(a_multiple_beyond_the_bound)
{
	const struct model_config c = {.layers = 1,
		.heads = 3,
		.dim = 12,
		.context = 8,
		.vocab = 50,
		.vocab_multiple = 1 << 20,
		.virtual_degrees = "tp=3"};
	struct model m;
	succeed(model_init(&m, &c, 0, &e));
	assert_int_equal(m.padded_vocab, 3 << 20);
	assert_int_equal(hf_config_write(&m, 50, DT_F32, NULL, NULL, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "a multiple of 3145728"));
	succeed(hf_config_write(&m, m.padded_vocab, DT_F32, NULL, NULL, &e));
	model_release(&m);
}

/* Numbers that were 16 bits before come back as they were; others rounded once. */
TEST(sixteen_bits)
{
	static const enum dtype types[] = {DT_BF16, DT_F16};
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		struct ckpt_view v, rounded;
		const char *rounded_at = fresh(".h5"), *out = fresh("");
		const struct ckpt_selection how = {.round_to = types[i]};
		succeed(convert_open(&v, golden("gpt2"), NULL, &e));
		succeed(ckpt_select(&rounded, &v, &how, &e));
		save(&rounded, &convert_pt, rounded_at, DT_F32, 0);
		assert_true(hash_of(&rounded) != hash_of(&v));
		save(&v, &convert_huggingface, out, types[i], 0);
		assert_true(hash_of_file(out) == hash_of(&rounded));
		ckpt_view_close(&rounded);
		ckpt_view_close(&v);
		round_trip(rounded_at, &convert_huggingface, "", types[i], 0);
		if (types[i] == DT_BF16)
			round_trip(rounded_at, &convert_llmc, ".bin", types[i], 0);
	}
}

static const struct st_tensor *find_stored(const struct st_header *h, const char *name)
{
	int64_t i = 0;
	while (i < h->n && strcmp(h->tensors[i].name, name) != 0)
		i++;
	assert_true(i < h->n);
	return &h->tensors[i];
}

/* A copy of the golden Llama whose config.json says that the output layer is the embedding; `equal`: and which
 * has the same numbers in both. */
static const char *make_tied(bool equal)
{
	static const char untied[] = "\"tie_word_embeddings\": false";
	struct str text = {0}, path = {0};
	struct st_header s;
	const char *folder = fresh("");
	succeed(file_make_directory(folder, &e));
	str_printf(&path, "%s/model.safetensors", golden("llama"));
	int fd = open(path.s, O_RDONLY);
	succeed(safetensors_read_header(&s, fd, path.s, &e));
	close(fd);
	succeed(file_read(path.s, 1 << 20, &text, &e));
	const struct st_tensor *to = find_stored(&s, "lm_head.weight");
	const struct st_tensor *from = find_stored(&s, "model.embed_tokens.weight");
	assert_int_equal(to->n_bytes, from->n_bytes);
	if (equal)
		memcpy(text.s + to->offset, text.s + from->offset, (size_t)to->n_bytes);
	safetensors_header_release(&s);
	str_clear(&path);
	str_printf(&path, "%s/model.safetensors", folder);
	succeed(file_replace(path.s, &text, &e));
	str_clear(&path);
	str_clear(&text);
	str_printf(&path, "%s/config.json", golden("llama"));
	succeed(file_read(path.s, 1 << 20, &text, &e));
	char *at = strstr(text.s, untied);
	assert_non_null(at);
	memcpy(at + strlen(untied) - 5, " true", 5);
	str_clear(&path);
	str_printf(&path, "%s/config.json", folder);
	succeed(file_replace(path.s, &text, &e));
	str_free(&path);
	str_free(&text);
	return folder;
}

TEST(a_tied_output_layer_is_the_embedding)
{
	struct ckpt_view v;
	struct err why = {0};
	succeed(convert_open(&v, make_tied(true), NULL, &e));
	assert_int_equal(ckpt_view_find(&v, "output.weight"), -1);
	ckpt_view_close(&v);
	assert_int_equal(convert_open(&v, make_tied(false), NULL, &why), -1);
	assert_int_equal(why.code, EX_DATAERR);
	assert_non_null(strstr(why.msg, "lm_head.weight differs from"));
}

TEST(integers_are_no_weights)
{
	struct ckpt_view v;
	struct err why = {0};
	scoped_str path = {0}, text = {0};
	const char *folder = make_tied(true);
	str_printf(&path, "%s/model.safetensors", folder);
	succeed(file_read(path.s, 1 << 20, &text, &e));
	char *type = strstr(text.s + 8, "F32\",\"shape\":[24]");
	assert_non_null(type);
	*type = 'I';
	succeed(file_replace(path.s, &text, &e));
	assert_int_equal(convert_open(&v, folder, NULL, &why), -1);
	assert_int_equal(why.code, EX_UNAVAILABLE);
	assert_non_null(
		strstr(why.msg, "is int32; only float32, bfloat16 and float16 are"));
}

/* ---- flipped bits ----------------------------------------------------------------- */

static int64_t n_flips(void)
{
	const char *say = getenv("LONG");
	return say && !strcmp(say, "yes") ? 10000 : 1000;
}

static void flip(const char *path, int64_t at, int bit)
{
	char c;
	int fd = open(path, O_RDWR);
	assert_int_equal(pread_all(fd, &c, 1, at), 0);
	c = (char)(c ^ 1 << bit);
	assert_int_equal(pwrite_all(fd, &c, 1, at), 0);
	close(fd);
}

/* Flips bits of `file`, which is `whole` or a part of it. Each is found; without `all`, or changes
 * nothing that is read. */
static void flip_bits(
	const struct convert_format *f, const char *whole, const char *file, bool all)
{
	struct stat st;
	int64_t found = 0, n = n_flips();
	struct ckpt_view undamaged;
	succeed(convert_open_as(
		&undamaged, &(struct convert_kind){f, f->probe(whole)}, whole, NULL, &e));
	uint64_t good = hash_of(&undamaged);
	struct philox_key key = philox_key(2, PHILOX_TEST, 0);
	assert_int_equal(stat(file, &st), 0);
	for (int64_t i = 0; i < n; i++) {
		int64_t at = order_permute(key, st.st_size, i % st.st_size);
		int bit = (int)(hash_mix((uint64_t)i) & 7);
		struct ckpt_view v;
		struct err why = {0};
		flip(file, at, bit);
		if (convert_open_as(&v, &(struct convert_kind){f, f->probe(whole)}, whole,
			    NULL, &why)) {
			assert_true(why.code == EX_DATAERR || why.code == EX_IOERR ||
				    why.code == EX_UNAVAILABLE);
			found++;
		} else {
			if (all || hash_of(&v) != good ||
				strcmp(v.config.s, undamaged.config.s))
				fail_msg("%s: byte %lld, bit %d was not found", file,
					(long long)at, bit);
			ckpt_view_close(&v);
		}
		flip(file, at, bit);
	}
	print_message("# figure: %s: %lld bits of %lld bytes flipped, %lld found\n",
		strrchr(file, '/') + 1, (long long)n, (long long)st.st_size,
		(long long)found);
	assert_true(hash_of_file(whole) == good);
	ckpt_view_close(&undamaged);
}

TEST(flips_are_found)
{
	struct ckpt_view v;
	struct str part = {0};
	const char *one = fresh(""), *shards = fresh(""), *bin = fresh(".bin");
	succeed(convert_open(&v, golden("gpt2"), NULL, &e));
	save(&v, &convert_huggingface, one, DT_F32, 0);
	save(&v, &convert_huggingface, shards, DT_BF16, 16384);
	save(&v, &convert_llmc, bin, DT_F32, 0);
	ckpt_view_close(&v);
	static const struct {
		bool of_shards, all;
		const char *name;
	} parts[] = {{false, true, "model.safetensors"}, {false, false, "config.json"},
		{true, true, "model-00002-of-00003.safetensors"},
		{true, false, "model.safetensors.index.json"}};
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		const char *folder = parts[i].of_shards ? shards : one;
		str_clear(&part);
		str_printf(&part, "%s/%s", folder, parts[i].name);
		flip_bits(&convert_huggingface, folder, part.s, parts[i].all);
	}
	str_free(&part);
	flip_bits(&convert_llmc, bin, bin, true);
}

/* ---- hostile headers -------------------------------------------------------------- */

/* A safetensors file with this header and n bytes of data. */
static const char *make_file(const char *header, int64_t n_data)
{
	const char *path = fresh(".safetensors");
	uint64_t n = strlen(header);
	char *data = xcalloc((size_t)n_data + 1, 1);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(write_all(fd, &n, 8) || write_all(fd, header, n) ||
				 write_all(fd, data, (size_t)n_data),
		0);
	close(fd);
	free(data);
	return path;
}

static int open_code(const char *header, int64_t n_data)
{
	struct torch_file f;
	struct err why = {0};
	if (torch_open_as(&f, &container_safetensors, make_file(header, n_data), &why))
		return why.code;
	torch_close(&f);
	return 0;
}

#define ENTRY(type, shape, begin, end)                                                 \
	"{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end \
	"]}"

TEST(hostile_headers_are_refused)
{
	static const char *const bad[] = {
		"",
		"{",
		"[]",
		"null",
		"{\"a\":1}",
		"{\"a\":{}}",
		"{\"__metadata__\":[]}",
		"{\"__metadata__\":{\"a\":1},\"a\":" ENTRY("F32", "[2]", "0", "8") "}",
		"{\"a\":" ENTRY("F31", "[2]", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "2", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "[-2]", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "[2.0]", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "[3]", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "[4294967296,4294967296,2]", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "[9223372036854775807,4]", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "[1,1,1,1,1,1,1,1,2]", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "[2]", "8", "0") "}",
		"{\"a\":" ENTRY("F32", "[2]", "-8", "0") "}",
		"{\"a\":" ENTRY("F32", "[2]", "8", "16") "}",
		"{\"a\":" ENTRY(
			"F32", "[2]", "9223372036854775800", "9223372036854775807") "}",
		"{\"a\":" ENTRY("F32", "[1]", "0", "4") "}",
		"{\"a\":" ENTRY("F32", "[1]", "4", "8") "}",
		"{\"a\":" ENTRY("F32", "[2]", "0", "8") ",\"b\":" ENTRY(
			"F32", "[2]", "0", "8") "}",
		"{\"a\":" ENTRY("F32", "[1]", "0", "4") ",\"a\":" ENTRY(
			"F32", "[1]", "4", "8") "}",
		"{\"a\":" ENTRY("F32", "[2]", "0", "8") "} x",
		"{\"__metadata__\":{\"xxh3\":\"0\"},\"a\":" ENTRY(
			"F32", "[2]", "0", "8") "}",
		"{\"__metadata__\":{\"created_by\":\"pt-ckpt 1\"},\"a\":" ENTRY(
			"F32", "[2]", "0", "8") "}",
	};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (open_code(bad[i], 8) != EX_DATAERR)
			fail_msg("not refused: %s", bad[i]);
	assert_int_equal(open_code("{\"a\":" ENTRY("F32", "[2]", "0", "8") "}", 8), 0);
	assert_int_equal(
		open_code("{\"a\":" ENTRY("F32", "[2]", "0", "8") ",\"b\":" ENTRY(
				  "F32", "[0]", "8", "8") "}",
			8),
		0);
	/* nested deeper than a stack */
	struct str deep = {0};
	for (int i = 0; i < 1 << 20; i++)
		str_puts(&deep, "[");
	assert_int_equal(open_code(deep.s, 8), EX_DATAERR);
	str_free(&deep);
}

/* Every length of a file but its own. */
TEST(truncated_files_are_refused)
{
	struct ckpt_view v;
	struct err why = {0};
	const char *bin = fresh(".bin"), *one = fresh("");
	struct str file = {0};
	succeed(convert_open(&v, golden("gpt2"), NULL, &e));
	save(&v, &convert_llmc, bin, DT_F32, 0);
	save(&v, &convert_huggingface, one, DT_F32, 0);
	ckpt_view_close(&v);
	str_printf(&file, "%s/model.safetensors", one);
	struct stat st;
	assert_int_equal(stat(bin, &st), 0);
	for (off_t n = st.st_size - 1; n >= 0; n -= 997) {
		assert_int_equal(truncate(bin, n), 0);
		assert_int_equal(convert_open_as(&v,
					 &(struct convert_kind){
						 &convert_llmc, convert_llmc.probe(bin)},
					 bin, NULL, &why),
			-1);
	}
	assert_int_equal(stat(file.s, &st), 0);
	for (off_t n = st.st_size - 1; n >= 0; n -= 997) {
		assert_int_equal(truncate(file.s, n), 0);
		assert_int_equal(convert_open_as(&v,
					 &(struct convert_kind){&convert_huggingface,
						 convert_huggingface.probe(one)},
					 one, NULL, &why),
			-1);
	}
	str_free(&file);
}

/* ---- combinations ----------------------------------------------------------------- */

TEST(sums_are_right)
{
	struct ckpt_view a, b, sum;
	succeed(convert_open(&a, golden("llama"), NULL, &e));
	const struct ckpt_selection how = {.round_to = DT_BF16};
	succeed(ckpt_select(&b, &a, &how, &e));
	const struct ckpt_view *const both[] = {&a, &b}, *const same[] = {&a, &a, &a};
	const double ones[] = {1, 1, 1};
	succeed(ckpt_combine(&sum, same, 3, ones, 3, &e));
	assert_true(hash_of(&sum) == hash_of(&a));
	ckpt_view_close(&sum);
	double weights[2];
	ckpt_ema_weights(0.75, 2, weights);
	succeed(ckpt_combine(&sum, both, 2, weights, 1, &e));
	for (int i = 0; i < a.n_tensors; i++) {
		float *x = ckpt_view_tensor(&a, i, &e), *y = ckpt_view_tensor(&b, i, &e);
		float *z = ckpt_view_tensor(&sum, i, &e);
		for (int64_t k = 0; k < ckpt_size(&a.tensors[i]); k++)
			assert_true(z[k] ==
				    (float)(0.75 * (double)x[k] + 0.25 * (double)y[k]));
		free(x);
		free(y);
		free(z);
	}
	ckpt_view_close(&sum);
	ckpt_view_close(&b);
	/* another model */
	succeed(convert_open(&b, golden("gpt2"), NULL, &e));
	struct err why = {0};
	assert_int_equal(ckpt_combine(&sum, both, 2, ones, 1, &why), -1);
	assert_int_equal(why.code, EX_DATAERR);
	ckpt_view_close(&b);
	ckpt_view_close(&a);
}

TEST(weights_of_a_moving_average)
{
	double w[4];
	ckpt_ema_weights(0.5, 4, w);
	assert_true(w[0] == 0.125 && w[1] == 0.125 && w[2] == 0.25 && w[3] == 0.5);
	ckpt_ema_weights(0.5, 1, w);
	assert_true(w[0] == 1);
}

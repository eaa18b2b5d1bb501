/*
 * Optimizers that number their parameters (libcore/dialect/order.c): groups, frozen parameters and param_names, in files
 * of torch.save() that are written here. Moments are half of the parameters, and so show which tensor a number is.
 */
#include "base/file.h"
#include "foreign/foreign.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static struct err e;

/* ---- the model: a Llama of 2 layers, in the order of the class ------------------------------- */

enum { DIM = 4, KEYS = 2, HIDDEN = 6, VOCAB = 5, MAX_ELEMENTS = 1024 };

static const struct parameter {
	const char *name;
	int rows, width; /* width 0: a vector */
} layer[] = {{"self_attn.q_proj", DIM, DIM}, {"self_attn.k_proj", KEYS, DIM},
	{"self_attn.v_proj", KEYS, DIM}, {"self_attn.o_proj", DIM, DIM},
	{"mlp.gate_proj", HIDDEN, DIM}, {"mlp.up_proj", HIDDEN, DIM},
	{"mlp.down_proj", DIM, HIDDEN}, {"input_layernorm", DIM, 0},
	{"post_attention_layernorm", DIM, 0}};

enum { IN_LAYER = ARRAY_LEN(layer), N = 2 * IN_LAYER + 3 };
static struct parameter all[N];
static char names[N][80];
static int first[N]; /* elements */

static int set_up(void **state)
{
	(void)state;
	for (int i = 0, at = 0; i < N; i++) {
		int k = (i - 1) % IN_LAYER;
		all[i] = i == 0	      ? (struct parameter){"embed_tokens", VOCAB, DIM}
			 : i == N - 2 ? (struct parameter){"norm", DIM, 0}
			 : i == N - 1 ? (struct parameter){"lm_head", VOCAB, DIM}
				      : layer[k];
		if (i && i < N - 2)
			snprintf(names[i], sizeof(names[i]), "model.layers.%d.%s.weight",
				(i - 1) / (int)IN_LAYER, all[i].name);
		else
			snprintf(names[i], sizeof(names[i]), "%s%s.weight",
				i == N - 1 ? "" : "model.", all[i].name);
		first[i] = at;
		at += all[i].rows * (int)max64(1, all[i].width);
	}
	return 0;
}

/* ---- a file of torch.save() -------------------------------------------------------------------- */

static void put_text(struct str *p, const char *text)
{
	uint32_t n = (uint32_t)strlen(text);
	str_putc(p, 'X');
	str_add(p, &n, sizeof(n));
	str_puts(p, text);
}

static void put_integer(struct str *p, int32_t x)
{
	str_putc(p, 'J');
	str_add(p, &x, sizeof(x));
}

/* A tensor of a storage of MAX_ELEMENTS; no dimension: its first element. */
static void put_tensor(struct str *p, int storage, int at, int rows, int width)
{
	const char number[2] = {(char)('0' + storage), 0};
	str_puts(p, "ctorch._utils\n_rebuild_tensor_v2\n((");
	put_text(p, "storage");
	str_puts(p, "ctorch\nFloatStorage\n");
	put_text(p, number);
	put_text(p, "cpu");
	put_integer(p, MAX_ELEMENTS);
	str_puts(p, "tQ");
	put_integer(p, at);
	str_putc(p, '(');
	if (rows)
		put_integer(p, rows);
	if (width)
		put_integer(p, width);
	str_puts(p, "t(");
	if (rows)
		put_integer(p, (int)max64(1, width));
	if (width)
		put_integer(p, 1);
	str_puts(p, "tNtR");
}

static void put_number(struct str *to, uint64_t x, int n_bytes)
{
	str_add(to, &x, (size_t)n_bytes); /* (little-endian, as this machine) */
}

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

/* Writes an archive with this pickle and four storages: parameters, half of them, a quarter, steps. */
static const char *save(const struct str *pickle)
{
	static const float factors[] = {1, 0.5f, 0.25f};
	struct str zip = {0}, directory = {0};
	float data[MAX_ELEMENTS];
	char name[] = "a/data/0";
	put_entry(&zip, &directory, "a/data.pkl", pickle->s, pickle->len);
	for (int s = 0; s < 4; s++, name[7]++) {
		for (int i = 0; i < MAX_ELEMENTS; i++)
			data[i] = s == 3 ? 7 : (float)(i + 1) / 8 * factors[s];
		put_entry(&zip, &directory, name, data, sizeof(data));
	}
	size_t at = zip.len;
	str_add(&zip, directory.s, directory.len);
	str_puts(&zip, "PK\x05\x06");
	put_number(&zip, 0, 4);
	put_number(&zip, 5, 2);
	put_number(&zip, 5, 2);
	put_number(&zip, directory.len, 4);
	put_number(&zip, at, 4);
	put_number(&zip, 0, 2);
	const char *path = test_path("numbered.pt");
	assert_int_equal(file_replace(path, &zip, &e), 0);
	str_free(&zip);
	str_free(&directory);
	return path;
}

/* Does the name contain one of the words, which | separates? */
static bool has_one_of(const char *name, const char *words)
{
	char copy[200], *rest = copy, *word;
	snprintf(copy, sizeof(copy), "%s", words);
	while ((word = strsep(&rest, "|")))
		if (strstr(name, word))
			return true;
	return false;
}

/* How the optimizer is saved. */
enum { PLAIN = 0, NAMED = 1, REVERSED = 2 };

/* groups: of each, words in the names of its parameters, which the groups before it do not have. Returns the path of
 * the file; sets which parameters the optimizer has. */
static const char *save_groups(const char *const *groups, int how, bool has[static N])
{
	struct str p = {0};
	int numbered[N], n = 0, begin[8] = {0}, n_groups = 0;
	memset(has, 0, N * sizeof(*has));
	for (; groups[n_groups]; begin[++n_groups] = n)
		for (int k = 0; k < N; k++) {
			int i = how & REVERSED ? N - 1 - k : k;
			if (!has[i] && has_one_of(names[i], groups[n_groups])) {
				has[i] = true;
				numbered[n++] = i;
			}
		}
	str_puts(&p, "\x80\x02}(");
	put_text(&p, "model");
	str_puts(&p, "}(");
	for (int i = 0; i < N; i++) {
		put_text(&p, names[i]);
		put_tensor(&p, 0, first[i], all[i].rows, all[i].width);
	}
	str_putc(&p, 'u');
	put_text(&p, "optimizer");
	str_puts(&p, "}(");
	put_text(&p, "state");
	str_puts(&p, "}(");
	for (int k = 0; k < n; k++) {
		const struct parameter *x = &all[numbered[k]];
		put_integer(&p, k);
		str_puts(&p, "}(");
		put_text(&p, "step");
		put_tensor(&p, 3, 0, 0, 0);
		put_text(&p, "exp_avg");
		put_tensor(&p, 1, first[numbered[k]], x->rows, x->width);
		put_text(&p, "exp_avg_sq");
		put_tensor(&p, 2, first[numbered[k]], x->rows, x->width);
		str_putc(&p, 'u');
	}
	str_putc(&p, 'u');
	put_text(&p, "param_groups");
	str_puts(&p, "](");
	for (int g = 0; g < n_groups; g++) {
		str_puts(&p, "}(");
		put_text(&p, "params");
		str_puts(&p, "](");
		for (int k = begin[g]; k < begin[g + 1]; k++)
			put_integer(&p, k);
		str_putc(&p, 'e');
		if (how & NAMED) {
			put_text(&p, "param_names");
			str_puts(&p, "](");
			for (int k = begin[g]; k < begin[g + 1]; k++)
				put_text(&p, names[numbered[k]]);
			str_putc(&p, 'e');
		}
		str_putc(&p, 'u');
	}
	str_puts(&p, "euu.");
	const char *path = save(&p);
	str_free(&p);
	return path;
}

/* ---- tests ------------------------------------------------------------------------------------------ */

static const char config[] =
	"{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
	"\"num_key_value_heads\": 1, \"hidden_size\": 4, \"intermediate_size\": 6, "
	"\"vocab_size\": 5, \"max_position_embeddings\": 8}";

/* `error`: NULL if each tensor of the optimizer must have its own moments, and each other tensor zeros. */
static void check(
	const char *const *groups, int how, const char *freeze, const char *error)
{
	struct ckpt_view v;
	scoped_strs frozen = {0};
	struct open_options open = {.config = test_file("config.json", config)};
	bool has[N];
	int n = 0, n_seen = 0;
	float x[2][MAX_ELEMENTS];
	const char *path = save_groups(groups, how, has);
	if (freeze) {
		strs_add(&frozen, freeze);
		open.freeze = &frozen;
	}
	e = (struct err){0};
	int rc = convert_open(&v, path, &open, &e);
	if (error) {
		if (!rc || !strstr(e.msg, error))
			fail_msg("\"%s\", not \"%s\"", rc ? e.msg : "no error", error);
		assert_int_equal(e.code, EX_UNAVAILABLE);
		return;
	}
	if (rc)
		fail_msg("%s", e.msg);
	for (int i = 0; i < v.n_tensors; i++) {
		for (int g = 0; g < 2; g++) {
			const struct ckpt_rows rows = {g, i, 0, v.tensors[i].dims[0]};
			assert_int_equal(v.read(&v, &rows, x[g], &e), 0);
		}
		bool zero = x[1][0] == 0;
		n_seen += !zero;
		for (int64_t k = 0; k < ckpt_size(&v.tensors[i]); k++)
			if (x[1][k] != (zero ? 0 : x[0][k] / 2))
				fail_msg("%s has other moments", v.tensors[i].name);
	}
	for (int i = 0; i < N; i++)
		n += has[i];
	assert_int_equal(n_seen, n);
	ckpt_view_close(&v);
}

#define GROUPS(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST_AFTER(set_up, groups_are_told_by_shapes)
{
	check(GROUPS("weight"), PLAIN, NULL, NULL);
	check(GROUPS("proj|embed|head", "norm"), PLAIN, NULL, NULL);
	check(GROUPS("norm", "proj|embed|head"), PLAIN, NULL, NULL);
	check(GROUPS("embed|head", "proj", "norm"), PLAIN, NULL, NULL);
	/* norms of layers and the last norm have one shape */
	check(GROUPS("embed|head", "proj", "layers", "norm"), PLAIN, NULL, NULL);
}

TEST_AFTER(set_up, frozen_parameters_are_told_by_shapes)
{
	check(GROUPS("proj|norm|head"), PLAIN, NULL, NULL);
	check(GROUPS("proj|norm|embed"), PLAIN, NULL, NULL);
	check(GROUPS("proj|embed|head"), PLAIN, NULL, NULL);
	check(GROUPS("mlp|embed", "norm"), PLAIN, NULL, NULL);
}

TEST_AFTER(set_up, freeze_tells_the_others)
{
	static const char several[] =
		"the shapes allow several assignments; name the untrained parameters "
		"with pt-check --freeze, or save the names, too";
	check(GROUPS("layers.1|l.norm|embed|head"), PLAIN, NULL,
		"numbers its parameters (12) and does not name them, and the model has 21 tensors: the shapes allow");
	check(GROUPS("layers.1|l.norm|embed|head"), PLAIN, "layers\\.0", NULL);
	check(GROUPS("up|down"), PLAIN, NULL, several);
	check(GROUPS("up|down"), PLAIN, "att|norm|w1|tok|output", NULL);
	check(GROUPS("up|down"), PLAIN, "att|norm|tok|output",
		"has 4 numbered parameters, the model 21; --freeze names 15");
	/* what is frozen may be in the optimizer all the same */
	check(GROUPS("weight"), PLAIN, "norm", NULL);
}

TEST_AFTER(set_up, names_come_before_shapes)
{
	check(GROUPS("layers.0", "weight"), PLAIN, NULL,
		" in 2 groups) and does not name them, and the model has 21 tensors: the shapes allow several assignments; save");
	check(GROUPS("layers.0", "weight"), NAMED, NULL, NULL);
	check(GROUPS("layers.1|head"), NAMED, NULL, NULL);
	check(GROUPS("weight"), NAMED | REVERSED, NULL, NULL);
}

TEST_AFTER(set_up, another_order_is_an_error)
{
	struct ckpt_view v;
	bool has[N];
	struct open_options open = {.config = test_file("config.json", config)};
	const char *path = save_groups(GROUPS("weight"), REVERSED, has);
	assert_int_equal(convert_open(&v, path, &open, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(
		strstr(e.msg, "parameter 1 of the optimizer differs in shape from "));
	check(GROUPS("proj", "norm"), REVERSED, NULL,
		"the shapes do not match in the model's order");
}

/* Files of PyTorch: any file; one of torch.save() whose checksums are right, with any pickle and any storage;
 * a directory of DCP with any .metadata and any file, or with a safetensors file; one of DeepSpeed's ZeRO, of nanotron, or of several
 * files with an index, with any pickles and any storage; a safetensors file with any optimizer of Trainer next to it. What can
 * be opened is read, and is a model, perhaps. */
#include "base/file.h"
#include "foreign/foreign.h"
#include "engine/options.h"
#include "lora/lora.h"
#include "tests/fuzz/fuzz.h"
#include "archive/archive.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { ANY, SAVED, MANY, SHARDS, ZERO, BINS, NANOTRON, TRAINER, KINDS };

/* ---- files ---------------------------------------------------------------------------------- */

static size_t take_length(struct bytes *b)
{
	size_t n = take_byte(b);
	n |= (size_t)take_byte(b) << 8;
	return n < b->n ? n : b->n;
}

static const void *take(struct bytes *b, size_t n)
{
	const void *p = n ? (const void *)b->p : "";
	b->p = n ? b->p + n : b->p;
	b->n -= n;
	return p;
}

/* An archive in a directory. */
static void put_archive(const char *name, const void *pkl, size_t n, struct bytes rest)
{
	struct str text = {0};
	fuzz_archive(&text, pkl, n, rest.n ? (const void *)rest.p : "", rest.n);
	fuzz_file(name, text.s, text.len);
	str_free(&text);
}

/* Up to 3 ranks: the pickles of the model and of the optimizer, which all ranks have, and a storage. */
static void make_zero(const void *model, size_t n_model, struct bytes *b)
{
	size_t n = take_length(b);
	const void *optimizer = take(b, n);
	int ranks = 1 + take_byte(b) % 3;
	char name[80];
	put_archive("zero/mp_rank_00_model_states.pt", model, n_model, *b);
	for (int r = 0; r < 3; r++) {
		snprintf(name, sizeof(name),
			"zero/zero_pp_rank_%d_mp_rank_00_model_states.pt", r);
		put_archive(name, model, n_model, *b);
		snprintf(name, sizeof(name),
			"zero/zero_pp_rank_%d_mp_rank_00_optim_states.pt", r);
		put_archive(name, optimizer, n, *b);
		if (r >= ranks)
			unlink(fuzz_path(name));
	}
}

/* A safetensors file: the header, with its length in front, and data. */
static void put_part(
	const char *name, const void *header, size_t n, const struct bytes *b)
{
	struct str text = {0};
	uint64_t length = n;
	str_add(&text, &length, sizeof(length));
	str_add(&text, header, n);
	str_add(&text, b->n ? (const void *)b->p : "", b->n);
	fuzz_file(name, text.s, text.len);
	str_free(&text);
}

/* The header of a part, and the pickle of the optimizer, which 1 to 3 ranks have, or one without ZeRO; and a
 * storage. */
static void make_nanotron(const void *header, size_t n_header, struct bytes *b)
{
	size_t n = take_length(b);
	const void *optimizer = take(b, n);
	int of = take_byte(b) % 4;
	char name[120], dp[40];
	fuzz_file("nanotron/checkpoint_metadata.json", "{}", 2);
	put_part("nanotron/model/model_w_pp-rank-0-of-1_tp-rank-0-of-1.safetensors",
		header, n_header, b);
	for (int files = 0; files < 4; files++)
		for (int d = 0; d < max64(1, files); d++) {
			dp[0] = '\0';
			if (files)
				snprintf(dp, sizeof(dp), "dp-%d-of-%d_", d, files);
			snprintf(name, sizeof(name),
				"nanotron/optimizer/optimizer_pp-0-of-1_%stp-0-of-1.pt",
				dp);
			if (files == of)
				put_archive(name, optimizer, n, *b);
			else
				unlink(fuzz_path(name));
		}
}

static const char *make(enum kind kind, struct bytes *b)
{
	static char path[4200];
	size_t n = take_length(b);
	const void *first = take(b, n), *rest = b->n ? (const void *)b->p : "";
	struct str text = {0};
	snprintf(path, sizeof(path), "%s/dcp", fuzz_folder());
	if (kind == MANY) {
		mkdir(path, 0700);
		fuzz_file("dcp/.metadata", first, n);
		fuzz_file("dcp/__0_0.distcp", rest, b->n);
		return path;
	}
	if (kind == ZERO) {
		snprintf(path, sizeof(path), "%s/zero", fuzz_folder());
		mkdir(path, 0700);
		make_zero(first, n, b);
		return path;
	}
	if (kind == BINS) {
		snprintf(path, sizeof(path), "%s/bins", fuzz_folder());
		mkdir(path, 0700);
		fuzz_file("bins/pytorch_model.bin.index.json", first, n);
		size_t n_pkl = take_length(b);
		const void *pkl = take(b, n_pkl);
		put_archive("bins/a.bin", pkl, n_pkl, *b);
		return path;
	}
	if (kind == SHARDS) {
		snprintf(path, sizeof(path), "%s/shards", fuzz_folder());
		mkdir(path, 0700);
		put_part("shards/shard-1.safetensors", first, n, b);
		return path;
	}
	if (kind == NANOTRON) {
		snprintf(path, sizeof(path), "%s/nanotron", fuzz_folder());
		mkdir(path, 0700);
		mkdir(fuzz_path("nanotron/model"), 0700);
		mkdir(fuzz_path("nanotron/optimizer"), 0700);
		make_nanotron(first, n, b);
		return path;
	}
	if (kind == TRAINER) {
		snprintf(path, sizeof(path), "%s/trainer", fuzz_folder());
		mkdir(path, 0700);
		size_t n_pkl = take_length(b);
		const void *pkl = take(b, n_pkl);
		put_part("trainer/model.safetensors", first, n, b);
		put_archive("trainer/optimizer.pt", pkl, n_pkl, *b);
		return path;
	}
	if (kind == SAVED)
		fuzz_archive(&text, first, n, rest, b->n);
	else if (n)
		str_add(&text, first, n);
	snprintf(path, sizeof(path), "%s",
		fuzz_file("file.pt", text.s ? text.s : "", text.len));
	str_free(&text);
	return path;
}

/* ---- reading ----------------------------------------------------------------------------------- */

enum { MOST_NUMBERS = 1 << 14 };

static void read_item(struct torch_file *f, const struct torch_item *t)
{
	struct err e = {0};
	struct strs texts = {0};
	double some[4];
	int64_t n, width = torch_row_size(t), rows = torch_rows(t);
	int rc = torch_read_numbers(f, t, 4, some, &n, &e);
	FUZZ_ON((rc != 0) != (e.code != 0) || n < 0 || n > 4);
	FUZZ_ON(torch_find(f, t->name) != t);
	e = (struct err){0};
	rc = torch_read_strings(f, t, &texts, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	strs_free(&texts);
	if (t->kind != TORCH_TENSOR || width > MOST_NUMBERS || !width)
		return;
	rows = min64(rows, MOST_NUMBERS / width);
	float *x = xmalloc((size_t)(rows * width) * sizeof(*x) + 1);
	for (int64_t i = 0; i < rows * width; i++)
		x[i] = 42;
	e = (struct err){0};
	rc = torch_read(f, t, 0, rows, x, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	free(x);
}

static void see_copy(void *with, const struct ckpt_copy *x)
{
	(void)with;
	FUZZ_ON(x->differ < 0 || x->differ > x->n || (x->differ > 0) != (x->at >= 0) ||
		x->at >= x->n);
}

static void read_model(const char *path, const struct container *c)
{
	struct err e = {0};
	struct ckpt_view v;
	const char *options = "heads = 2\ncontext = 4\n";
	const struct open_how how = {
		fuzz_file("model.conf", options, strlen(options)), false};
	int rc = convert_open_as(
		&v, &(struct convert_kind){&convert_torch, c}, path, &how, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return;
	rc = v.copies(&v, see_copy, NULL, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	for (int g = 0; g < v.groups.n; g++)
		for (int i = 0; i < v.n_tensors; i++) {
			const struct ckpt_tensor *t = &v.tensors[i];
			int64_t n = min64(t->dims[0], MOST_NUMBERS / ckpt_row_size(t));
			const struct ckpt_rows rows = {g, i, t->dims[0] - n, n};
			float *x =
				xcalloc((size_t)(n * ckpt_row_size(t)) + 1, sizeof(*x));
			e = (struct err){0};
			rc = v.read(&v, &rows, x, &e);
			FUZZ_ON((rc != 0) != (e.code != 0));
			free(x);
		}
	ckpt_view_close(&v);
}

/* As adapters of a small model, with or without an optimizer, or their gradients. */
static void read_adapters(const struct model *m, const char *path)
{
	struct err e = {0};
	struct ckpt_view v;
	struct lora l = {.used = true, .config = (char *)"", .alpha = 4, .m = *m};
	l.n_list = foreign_list(&scheme_llama, m, m->c.vocab, &l.list, &e);
	FUZZ_ON(l.n_list < 0);
	for (int gradients = 0; gradients < 2; gradients++) {
		e = (struct err){0};
		int rc = lora_open_view(&v, &l, path, gradients, &e);
		FUZZ_ON((rc != 0) != (e.code != 0));
		for (int i = 0; !rc && i < v.n_tensors; i++)
			for (int g = 0; g < v.groups.n; g++) {
				const struct ckpt_rows rows = {g, i, 0, 1};
				float *x =
					xcalloc((size_t)ckpt_row_size(&v.tensors[i]) + 1,
						sizeof(*x));
				e = (struct err){0};
				if (ckpt_row_size(&v.tensors[i]) < MOST_NUMBERS)
					v.read(&v, &rows, x, &e);
				free(x);
			}
		if (!rc)
			ckpt_view_close(&v);
	}
	free(l.list);
}

/* As gradients of a small model, of which it may have some; and as adapters. */
static void read_gradients(const char *path)
{
	struct err e = {0};
	struct model_config c;
	struct model m;
	struct ckpt_view like, g;
	FUZZ_ON(options_parse_model(&c,
			"arch = llama\nlayers = 2\nheads = 4\nkv-heads = 2\ndim = 16\n"
			"ffn-dim = 8\nvocab = 11\nvocab-multiple = 1\ncontext = 16\n",
			&e) ||
		model_init(&m, &c, 0, &e));
	convert_view(&like, &m, "a model");
	like.close = NULL;
	scoped_ptr bool *found = xcalloc((size_t)m.n_tensors, sizeof(*found));
	const struct open_how how = {.gradients_of = &like, .found = found};
	const void *probed = convert_torch.probe(path);
	if (probed) {
		int rc = convert_torch.open(&g, path, probed, &how, &e);
		FUZZ_ON((rc != 0) != (e.code != 0));
		if (!rc)
			ckpt_view_close(&g);
	}
	read_adapters(&m, path);
	ckpt_view_close(&like);
	model_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	enum { MOST_ITEMS = 64 };
	struct bytes b = {data, n};
	struct err e = {0};
	struct torch_file f;
	enum kind kind = (enum kind)(take_byte(&b) % KINDS);
	const char *path = make(kind, &b);
	const struct container *c = find_container(path);
	c = kind == TRAINER ? &container_trainer : c ? c : &container_file;
	int rc = torch_open_as(&f, c, path, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return 0;
	for (int64_t i = 0; i < f.n && i < MOST_ITEMS; i++)
		read_item(&f, &f.items[i]);
	torch_close(&f);
	read_model(path, c);
	read_gradients(path);
	return 0;
}

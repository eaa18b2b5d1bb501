/* Checkpoints: what is wrong in one is said; a model that fits one is loaded and speaks. */
#include "hostile.h"
#include "train/train.h"

#include <stdlib.h>
#include <string.h>

static const char *const objects[] = {"/", "/config", "/tokenizer", "/tokenizer/offsets",
	"/tokenizer/bytes", "/model", "/exp_avg", "/exp_avg_sq", "/model/norm.weight",
	"/model/tok_embeddings.weight", "/exp_avg/norm.weight", "/exp_avg_sq/norm.weight",
	"/xxh3/model/norm.weight", "/xxh3/model/tok_embeddings.weight", "/xxh3",
	"/model/output.weight", NULL};

static const char config[] = "arch = llama\nlayers = 1\nheads = 2\ndim = 4\nffn-dim = 4\n"
			     "context = 8\n";

static void some_rows(void *with, enum ckpt_group g, int tensor, int64_t row, int64_t n,
	int to, float *out)
{
	(void)to;
	const struct ckpt_tensor *t = with;
	int64_t width = ckpt_row_size(&t[tensor]);
	for (int64_t i = 0; i < n * width; i++)
		out[i] = (float)((row + i + (int)g) % 7) * 0.1f;
}

/* Of a model; or of two tensors only, which is read ten times as fast. */
static void make(struct hostile *t, bool whole)
{
	char out[4200];
	struct err e = {0};
	struct model_config c;
	struct model m;
	struct tokenizer tok;
	int64_t n = 0;
	snprintf(out, sizeof(out), "%s", fuzz_path("seed.h5"));
	FUZZ_ON(tokenizer_init(&tok, "char", &e));
	FUZZ_ON(tok.kind->learn(&tok, "\nabc", 4, true, &n, &e) < 0 ||
		tok.kind->learn_end(&tok, &e));
	FUZZ_ON(train_model_from_config(&c, config, &e) ||
		model_init(&m, &c, tok.vocab.n, &e));
	struct ckpt_tensor *list = xcalloc((size_t)m.n_tensors, sizeof(*list));
	for (int i = 0; i < m.n_tensors; i++) {
		snprintf(list[i].name, sizeof(list[i].name), "%s", m.tensors[i].name);
		list[i].ndim = m.tensors[i].ndim;
		memcpy(list[i].dims, m.tensors[i].dims, sizeof(list[i].dims));
	}
	if (!whole) /* the first and the last but one, as they are in `objects` */
		list[1] = list[m.n_tensors - 2];
	struct ckpt_write w = {.comm = comm_self("alone"),
		.path = out,
		.info = {.format = "pt-checkpoint",
			.created_by = "fuzz",
			.version = CKPT_VERSION},
		.config = config,
		.tokenizer = &tok,
		.tensors = list,
		.n_tensors = whole ? m.n_tensors : 2,
		.source = some_rows,
		.with = list};
	FUZZ_ON(ckpt_write(&w, &e));
	hostile_init(t, out, objects, ckpt_fields);
	free(list);
	model_free(&m);
	tokenizer_free(&tok);
}

/* As pt-sample does. */
static void speak(const struct ckpt *c, struct model *m)
{
	static struct device d;
	static struct mesh alone;
	struct arena size, memory;
	struct sampler how = {1, 0, 1, 1};
	struct err e = {0};
	if (!alone.world) {
		device_cpu(&d, 1);
		mesh_alone(&alone);
	}
	arena_measure(&size, "parameters");
	store_free(state_inference(m, &d, &alone, &size));
	arena_init(&memory, "parameters", size.peak_bytes);
	struct store *s = state_inference(m, &d, &alone, &memory);
	if (!state_load_model(s, c, &e)) {
		struct decoder *g = decoder_open(m, &d, s, true);
		uint32_t id = 0;
		for (int i = 0; i < 3; i++) {
			decoder_feed(g, &id, 1);
			id = (uint32_t)decoder_draw(g, &how, 0, i);
			FUZZ_ON(id >= m->c.vocab);
		}
		decoder_close(g);
	}
	store_free(s);
	arena_release(&memory);
}

static void load(const struct ckpt *c)
{
	struct model_config mc;
	struct model m;
	struct err e = {0};
	if (!c->tokenizer.kind || train_model_from_config(&mc, c->config.s, &e))
		return;
	if (!model_init(&m, &mc, c->tokenizer.vocab.n, &e)) {
		if (!state_check_model(c, &m, &e) && model_counts(&m).all < 1 << 16)
			speak(c, &m);
		model_free(&m);
	}
	FUZZ_ON(!e.code != !*e.msg);
}

static int count(void *with, int64_t first, const float *x, int64_t n)
{
	int64_t *sum = with;
	(void)x;
	FUZZ_ON(first != *sum);
	*sum += n;
	return 0;
}

static void read_all(const struct ckpt *c, size_t how)
{
	struct err e = {0};
	for (int g = 0; g < N_CKPT_GROUPS; g++)
		for (int i = 0; i < c->n_tensors && c->groups & CKPT_BIT(g); i++) {
			const struct ckpt_tensor *t = &c->tensors[i];
			int64_t n = 0, row = (int64_t)how % t->dims[0];
			int64_t rows = min64(t->dims[0] - row, 64);
			FUZZ_ON(ckpt_find(c, t->name) < 0);
			if (!ckpt_each(c, (enum ckpt_group)g, i, count, &n, &e))
				FUZZ_ON(n != ckpt_size(t));
			float *x = xcalloc((size_t)(rows * ckpt_row_size(t)), 4);
			ckpt_read_rows(c, (enum ckpt_group)g, i, row, rows, x, &e);
			free(x);
		}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct hostile good[2];
	struct bytes b = {data, n};
	struct err e = {0};
	struct ckpt *c;
	struct ckpt_delta *list;
	for (int i = 0; i < 2 && !good[1].image.len; i++)
		make(&good[i], i);
	bool whole = take_byte(&b) >= 0xc0;
	int rc = ckpt_open(&c, hostile_make(&good[whole], &b), &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return 0;
	uint64_t hash;
	if (!ckpt_verify(c, &e)) {
		FUZZ_ON(ckpt_param_hash(c, &hash, &e));
		FUZZ_ON(ckpt_diff(c, c, true, &list, &e));
		free(list);
	}
	read_all(c, n);
	load(c);
	ckpt_close(c);
	return 0;
}

/* Checkpoints: what is wrong in one is said; a model that fits one is loaded and speaks; what a
 * worker keeps is taken up. */
#include "tests/fuzz/hostile.h"
#include "ckpt/view.h"
#include "model/generate.h"
#include "engine/inference.h"
#include "train/local_sgd.h"
#include "engine/options.h"
#include "engine/state.h"

#include <stdlib.h>
#include <string.h>

static const char *const objects[] = {"/", "/config", "/origin", "/tokenizer",
	"/tokenizer/offsets", "/tokenizer/bytes", "/model", "/exp_avg", "/exp_avg_sq",
	"/model/norm.weight", "/model/tok_embeddings.weight", "/exp_avg/norm.weight",
	"/exp_avg_sq/norm.weight", "/xxh3/model/norm.weight",
	"/xxh3/model/tok_embeddings.weight", "/xxh3", "/model/output.weight", "/edit",
	"/anchor", "/anchor/norm.weight", "/residual", "/residual/norm.weight",
	"/xxh3/residual/norm.weight", NULL};

static const char config[] = "arch = llama\nlayers = 1\nheads = 2\ndim = 4\nffn-dim = 4\n"
			     "context = 8\n";
static const char apart[] =
	"edit-workers = 2\nedit-outer = sgd\nedit-outer-momentum = 0.9\n"
	"edit-wire = int8\nedit-skip-anomaly = yes\nedit-ewma-warmup = 2\n"
	"edit-sync-interval = 4\nedit-sync-delay = 1\n";

/* Two tensors are read ten times as fast as a model. FROZEN: one of them is, and there is an original. */
enum kind { SMALL, FROZEN, APART, WHOLE, KINDS };

/* A seed that cannot be read tests nothing behind its door. */
static void check_seed(const char *path, enum kind kind)
{
	struct err e = {0};
	struct ckpt *c;
	FUZZ_ON(ckpt_open(&c, path, &e) || ckpt_verify(c, &e));
	FUZZ_ON(!state_check(c, &e) !=
		(kind == WHOLE)); /* of two tensors no run goes on */
	FUZZ_ON(c->n_tensors < 2 || (c->n_numbers > 0) != (kind == APART));
	FUZZ_ON((c->origin.len > 0) != (kind == FROZEN));
	ckpt_close(c);
}

static void some_rows(
	void *with, int g, int tensor, int64_t row, int64_t n, int to, float *out)
{
	(void)to;
	const struct ckpt_tensor *t = with;
	int64_t width = ckpt_row_size(&t[tensor]);
	for (int64_t i = 0; i < n * width; i++)
		out[i] = (float)((row + i + g) % 7) * 0.1f;
}

/* A worker as the options of `apart` make it; its options with another number of them. */
static struct edit *worker_open(
	const struct model_config *mc, int64_t vocab, struct train_opts *o)
{
	static struct device d;
	static struct mesh alone;
	static struct arena memory;
	static struct model m;
	struct err e = {0};
	FUZZ_ON(opts_from_text(&train_program, o, apart, false, &e) ||
		options_check(o, &e) || model_init(&m, mc, vocab, &e));
	o->edit.workers = 3;
	device_open_cpu(&d, 1);
	mesh_alone(&alone);
	arena_init(&memory, "a worker", 1 << 20);
	struct store_config sc = {.mesh = &alone,
		.device = &d,
		.tensors = m.tensors,
		.n_tensors = m.n_tensors,
		.n_units = m.n_units,
		.part = {.n = m.tp, .local = m.tp},
		.chunks = m.cp,
		.microbatches = {.ranks = 1}};
	edit_add_groups(&o->edit.config, &sc.groups);
	struct comm *sync = comm_self("workers");
	return edit_open(
		&o->edit.config, alone.world, sync, store_open(&sc, &memory), &d);
}

static struct train_opts another;
static struct edit *worker;

static double *worker_numbers(int64_t *n)
{
	*n = OWN_NUMBERS + edit_state_size(worker);
	double *x = xcalloc((size_t)*n, sizeof(*x));
	edit_state_get(worker, x + OWN_NUMBERS);
	return x;
}

static void make(struct hostile *t, enum kind kind)
{
	bool whole = kind == WHOLE, parted = kind == APART;
	char out[4200];
	struct err e = {0};
	struct model_config c;
	struct model m;
	struct tokenizer tok;
	struct str options = {0};
	snprintf(out, sizeof(out), "%s", fuzz_path("seed.h5"));
	str_printf(&options, "%s%s", config, parted ? apart : "");
	FUZZ_ON(tokenizer_init(&tok, "char", &e));
	FUZZ_ON(tok.kind->learn(&tok, "\nabc", 4, true, &e) < 0 ||
		tok.kind->learn_end(&tok, &e));
	FUZZ_ON(options_parse_model(&c, config, &e) ||
		model_init(&m, &c, tok.vocab.n, &e));
	struct ckpt_tensor *list = xcalloc((size_t)m.n_tensors, sizeof(*list));
	for (int i = 0; i < m.n_tensors; i++) {
		snprintf(list[i].name, sizeof(list[i].name), "%s", m.tensors[i].name);
		list[i].ndim = m.tensors[i].ndim;
		memcpy(list[i].dims, m.tensors[i].dims, sizeof(list[i].dims));
	}
	if (!whole) /* the first and the last but one, as they are in `objects` */
		list[1] = list[m.n_tensors - 2];
	list[0].stateless = kind == FROZEN;
	if (!worker)
		worker = worker_open(&c, tok.vocab.n, &another);
	struct ckpt_write w = {.comm = comm_self("alone"),
		.path = out,
		.info = {.format = "pt-checkpoint",
			.created_by = "fuzz",
			.version = CKPT_VERSION,
			.step = 9,
			.samples = 72,
			.tokens = 72 * 8,
			.workers = parted ? 2 : 0,
			.worker = parted},
		.config = options.s,
		.origin = kind == FROZEN ? "{\"config.json\":\"{}\"}" : NULL,
		.tokenizer = &tok,
		.tensors = list,
		.n_tensors = whole ? m.n_tensors : 2,
		.source = some_rows,
		.with = list};
	struct store_groups groups = {.n = 0};
	store_groups_add(&groups, "exp_avg", STORE_OPTIMIZER);
	store_groups_add(&groups, "exp_avg_sq", STORE_OPTIMIZER);
	if (parted)
		edit_add_groups(&another.edit.config, &groups);
	for (w.n_groups = 0; w.n_groups < groups.n; w.n_groups++)
		w.groups[w.n_groups] = groups.list[w.n_groups].name;
	double *numbers = parted ? worker_numbers(&w.n_numbers) : NULL;
	w.numbers = numbers;
	FUZZ_ON(ckpt_write(&w, &e));
	free(numbers);
	check_seed(out, kind);
	hostile_init(t, out, objects, ckpt_fields);
	free(list);
	str_free(&options);
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
		device_open_cpu(&d, 1);
		mesh_alone(&alone);
	}
	arena_measure(&size, "parameters");
	store_free(inference_store(m, &d, &alone, &size));
	arena_init(&memory, "parameters", size.peak_bytes);
	struct store *s = inference_store(m, &d, &alone, &memory);
	if (!weights_load(s, c, NULL, CKPT_MODEL, STORE_PARAM, &e)) {
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
	if (!c->tokenizer.kind || options_parse_model(&mc, c->config.s, &e))
		return;
	if (!model_init(&m, &mc, c->tokenizer.vocab.n, &e)) {
		if (!weights_check(c, &m, &e) && model_counts(&m).all < 1 << 16)
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
	for (int g = 0; g < c->groups.n; g++)
		for (int i = 0; i < c->n_tensors; i++) {
			const struct ckpt_tensor *t = &c->tensors[i];
			int64_t n = 0, row = (int64_t)how % t->dims[0];
			int64_t rows = min64(t->dims[0] - row, 64);
			FUZZ_ON(ckpt_find(c, t->name) < 0);
			if (!ckpt_for_each_block(c, g, i, count, &n, &e))
				FUZZ_ON(n != ckpt_size(t));
			float *x = xcalloc((size_t)(rows * ckpt_row_size(t)), 4);
			ckpt_read_rows(c, g, i, row, rows, x, &e);
			free(x);
		}
}

/* With as many workers, and with more. */
static void go_on(const struct ckpt *c)
{
	struct err e = {0};
	struct ckpt_info info;
	struct train_opts saved;
	bool back;
	int rc = c->n_numbers == OWN_NUMBERS + edit_state_size(worker) &&
		 edit_state_put(worker, c->numbers + OWN_NUMBERS, c->info.step, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	e = (struct err){0};
	rc = state_options(c, &saved, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	FUZZ_ON(!rc && (c->info.samples > INT64_MAX / saved.model.context ||
			       (c->info.samples && c->info.samples < c->info.step)));
	if (!rc)
		opts_free(&train_program, &saved);
	e = (struct err){0};
	rc = local_sgd_info(&another, c, &info, &back, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	FUZZ_ON(!rc && (info.step < 0 || info.step > c->info.step || info.samples < 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct hostile good[KINDS];
	struct bytes b = {data, n};
	struct err e = {0};
	struct ckpt *c;
	struct ckpt_delta *list;
	for (int i = 0; i < KINDS && !good[WHOLE].image.len; i++)
		make(&good[i], (enum kind)i);
	uint8_t of = take_byte(&b);
	enum kind kind = of >= 0xc0   ? WHOLE
			 : of >= 0x60 ? APART
			 : of >= 0x30 ? FROZEN
				      : SMALL;
	int rc = ckpt_open(&c, hostile_make(&good[kind], &b), &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return 0;
	uint64_t hash;
	if (!ckpt_verify(c, &e)) {
		struct ckpt_view v;
		ckpt_view_from(&v, c);
		FUZZ_ON(ckpt_view_hash(&v, &hash, &e));
		ckpt_view_close(&v);
		FUZZ_ON(ckpt_diff(c, c, NULL, true, &list, &e));
		free(list);
	}
	read_all(c, n);
	load(c);
	go_on(c);
	ckpt_close(c);
	return 0;
}

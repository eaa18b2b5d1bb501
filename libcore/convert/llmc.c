/*
 * Model files of karpathy/llm.c (gpt2_write_to_checkpoint() in train_gpt2.cu, write_model() in
 * train_gpt2.py): 256 little-endian i32, then the parameters of GPT-2, each kind for all layers, with
 * queries, keys and values in one. Version 3 is fp32, 5 is bf16. llm.c leaves the rest of the header 0;
 * pt-ckpt writes the XXH3 of the file there, which it checks, and the rows of its own embedding table,
 * where llm.c's kernels need more of them.
 *
 * Beside model_STEP.bin, state_STEP_RANK.bin has the state of the optimizer (save_state()): a header
 * with other words, both moments as the parameters are in the file, but always fp32, and for a bf16
 * model the fp32 master weights; then the state of the data loader, which is not read. Each rank's file
 * is complete without ZeRO; with ZeRO it is a part, which is refused. pt-ckpt adds the checksum of the model
 * file to the header, since a state of another model beside the file would be taken for its own.
 */
#include "convert/convert.h"
#include "convert/convert_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 20240326, VERSION_FP32 = 3, VERSION_BF16 = 5, WORDS = 256 };
enum { HEADER_BYTES = WORDS * 4, BLOCK_FLOATS = 1 << 20 };
/* llm.c's kernels want a vocabulary of this multiple. */
enum { VOCAB_MULTIPLE = 128 };
/* Words of the header; the checksum's are this project's. */
enum { W_MAGIC, W_VERSION, W_CONTEXT, W_VOCAB, W_LAYERS, W_HEADS, W_DIM, W_PADDED_VOCAB };
/* Words of the header of a state. */
enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };
enum {
	S_MAGIC,
	S_VERSION,
	S_RANKS,
	S_RANK,
	S_MASTER,
	S_SHUFFLE,
	S_STEP = 10,
	S_RNG = 20,
	S_END = 34
};
enum { W_OWN_ROWS = 252, W_MARK = 253, W_HASH = 254, MARK = 0x78787468 };
/* Of a state: the checksum of the model file that it belongs to. */
enum { S_MODEL_HASH = 250 };

/* The kinds in the order of the file; those with one name are of the whole model. */
static const struct {
	bool layers;
	const char *names[3];
} kinds[] = {
	{false, {"tok_embeddings.weight"}},
	{false, {"pos_embeddings.weight"}},
	{true, {"attention_norm.weight"}},
	{true, {"attention_norm.bias"}},
	{true, {"attention.wq.weight", "attention.wk.weight", "attention.wv.weight"}},
	{true, {"attention.wq.bias", "attention.wk.bias", "attention.wv.bias"}},
	{true, {"attention.wo.weight"}},
	{true, {"attention.wo.bias"}},
	{true, {"ffn_norm.weight"}},
	{true, {"ffn_norm.bias"}},
	{true, {"feed_forward.w1.weight"}},
	{true, {"feed_forward.w1.bias"}},
	{true, {"feed_forward.w2.weight"}},
	{true, {"feed_forward.w2.bias"}},
	{false, {"norm.weight"}},
	{false, {"norm.bias"}},
};

struct llmc {
	int fd, state; /* -1: there is no state */
	struct model m;
	enum dtype dtype;
	int64_t vocab_rows; /* of the embedding table in the file */
	int64_t *offset;    /* of each tensor, in elements */
	int64_t elements;   /* of all tensors */
	bool master;	    /* the state has the parameters in fp32 */
	bool sealed;	    /* the model file has a checksum, which is */
	uint64_t hash;
	char *state_path;
};

static int find_tensor(const struct model *m, const char *name, int64_t layer)
{
	char path[64];
	if (layer < 0)
		snprintf(path, sizeof(path), "%s", name);
	else
		snprintf(path, sizeof(path), "layers.%lld.%s", (long long)layer, name);
	for (int i = 0; i < m->n_tensors; i++)
		if (!strcmp(m->tensors[i].name, path))
			return i;
	BUG_ON(true); /* check_model() */
}

/* The numbers of all tensors in the order of the file. */
static int *file_order(const struct model *m)
{
	int *order = xcalloc((size_t)m->n_tensors, sizeof(*order)), n = 0;
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
		int64_t last = kinds[k].layers ? m->c.layers : 1;
		for (int64_t l = 0; l < last; l++)
			for (int i = 0; i < 3 && kinds[k].names[i]; i++)
				order[n++] = find_tensor(
					m, kinds[k].names[i], kinds[k].layers ? l : -1);
	}
	BUG_ON(n != m->n_tensors);
	return order;
}

static int check_model(const struct model *m, struct err *e)
{
	const struct model_config *c = &m->c;
	if (c->arch == ARCH_GPT2 && m->act == ACT_GELU_TANH && m->bias && m->tie &&
		c->kv_heads == c->heads && c->ffn_dim == 4 * c->dim &&
		fabs(c->norm_eps - 1e-5) < 1e-12)
		return 0;
	return err_set(e, EX_DATAERR,
		"llm.c's files are of GPT-2 with its own choices only: gelu-tanh, biases, tied "
		"output layer, a feed-forward layer of 4 dim, norm-eps 1e-5");
}

static bool is_llmc(const char *path)
{
	unsigned char w[4];
	struct stat st;
	if (stat(path, &st) || !S_ISREG(st.st_mode))
		return false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool known = fd >= 0 && !pread_all(fd, w, sizeof(w), 0) &&
		     (w[0] | w[1] << 8 | w[2] << 16 | (uint32_t)w[3] << 24) == MAGIC;
	if (fd >= 0)
		close(fd);
	return known;
}

static bool is_llmc_name(const char *path)
{
	return text_ends(path, ".bin");
}

/* ---- reading -------------------------------------------------------------------------- */

static void close_llmc(struct ckpt_view *v)
{
	struct llmc *x = v->with;
	if (x->fd >= 0)
		close(x->fd);
	if (x->state >= 0)
		close(x->state);
	model_free(&x->m);
	free(x->offset);
	free(x->state_path);
	free(x);
}

static int read_llmc(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	const struct llmc *x = v->with;
	int64_t width = ckpt_row_size(&v->tensors[r->tensor]);
	int64_t at = x->offset[r->tensor] + r->row * width;
	/* the arrays of a state: the two moments, the master weights */
	int array = r->group == CKPT_MODEL ? 2 : r->group - 1;
	if (r->group != CKPT_MODEL || x->master)
		return numbers_read(x->state, x->state_path, DT_F32,
			HEADER_BYTES + (array * x->elements + at) * 4, r->n * width, out,
			e);
	return numbers_read(x->fd, v->name, x->dtype,
		HEADER_BYTES + at * dtype_bytes(x->dtype), r->n * width, out, e);
}

/* A header of llm.c has zeros from word `end` on. */
static int check_hash(
	int fd, const int32_t *header, int end, const char *path, struct err *e)
{
	uint64_t have, want;
	bool zeros = true;
	for (int i = end; i < WORDS; i++)
		zeros = zeros && !header[i];
	if (zeros)
		return 0;
	if (file_hash_around(fd, W_HASH * 4, sizeof(have), 0, &have))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	memcpy(&want, &header[W_HASH], sizeof(want));
	if (header[W_MARK] == MARK && have == want)
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: does not match its checksum: the file is damaged", path);
}

static int read_config(
	const int32_t *h, struct model_config *c, const char *path, struct err *e)
{
	for (int i = W_CONTEXT; i <= W_PADDED_VOCAB; i++)
		if (h[i] < 1 || h[i] > 1 << 24)
			return err_set(e, EX_DATAERR, "%s: word %d of the header is %d",
				path, i, h[i]);
	int64_t vocab = h[W_VOCAB], padded = h[W_PADDED_VOCAB];
	if (padded < vocab || h[W_LAYERS] > 100000)
		return err_set(e, EX_DATAERR,
			"%s: %d layers, a vocabulary of %d padded to %d", path,
			h[W_LAYERS], h[W_VOCAB], h[W_PADDED_VOCAB]);
	int64_t rows = h[W_MARK] == MARK ? h[W_OWN_ROWS] : padded;
	if (rows < vocab || rows > padded)
		return err_set(e, EX_DATAERR, "%s: %lld rows for %lld tokens", path,
			(long long)rows, (long long)vocab);
	*c = (struct model_config){.arch = ARCH_GPT2,
		.layers = h[W_LAYERS],
		.heads = h[W_HEADS],
		.dim = h[W_DIM],
		.context = h[W_CONTEXT],
		.vocab = vocab,
		.vocab_multiple = rows == vocab ? 1
				  : rows == round_up(vocab, VOCAB_MULTIPLE)
					  ? VOCAB_MULTIPLE
					  : rows};
	return 0;
}

/* Also checks that the file has the size of the model. */
static int place_tensors(struct llmc *x, const char *path, struct err *e)
{
	int *order = file_order(&x->m);
	int64_t at = 0;
	struct stat st;
	x->offset = xcalloc((size_t)x->m.n_tensors, sizeof(*x->offset));
	for (int i = 0; i < x->m.n_tensors; i++) {
		x->offset[order[i]] = at;
		at += &x->m.tensors[order[i]] == x->m.tokens
			      ? x->vocab_rows * x->m.c.dim
			      : tensor_size(&x->m.tensors[order[i]]);
	}
	free(order);
	x->elements = at;
	if (fstat(x->fd, &st))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	if (st.st_size != HEADER_BYTES + at * dtype_bytes(x->dtype))
		return err_set(e, EX_DATAERR,
			"%s: %lld bytes instead of %lld: damaged, or another model", path,
			(long long)st.st_size,
			(long long)(HEADER_BYTES + at * dtype_bytes(x->dtype)));
	return 0;
}

/* (Files are little-endian, as all hosts of pt.) */
static int load(struct llmc *x, const char *path, struct err *e)
{
	int32_t header[WORDS];
	struct model_config c;
	struct stat st;
	if (x->fd < 0)
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	if (file_read_at(x->fd, path, header, sizeof(header), 0, e))
		return -1;
	int32_t version = header[W_VERSION];
	if (header[W_MAGIC] != MAGIC ||
		(version != VERSION_FP32 && version != VERSION_BF16))
		return err_set(e, EX_DATAERR,
			"%s: version %d of llm.c's model files; 3 and 5 can be read",
			path, version);
	x->dtype = version == VERSION_FP32 ? DT_F32 : DT_BF16;
	x->sealed = header[W_MARK] == MARK;
	memcpy(&x->hash, &header[W_HASH], sizeof(x->hash));
	x->vocab_rows = header[W_PADDED_VOCAB];
	if (check_hash(x->fd, header, W_PADDED_VOCAB + 1, path, e) ||
		read_config(header, &c, path, e))
		return -1;
	/* (before memory for the layers is allocated: each has more than dim^2 parameters) */
	if (fstat(x->fd, &st) || st.st_size / 2 / c.layers < c.dim * c.dim)
		return err_set(e, EX_DATAERR, "%s: too short for its header", path);
	if (model_init(&x->m, &c, 0, e)) {
		e->code = EX_DATAERR;
		return err_prefix(e, "%s: ", path);
	}
	return place_tensors(x, path, e);
}

/* state_STEP_00000.bin beside model_STEP.bin; NULL: the file has another name. */
static char *state_name(const char *path)
{
	struct str out = {0};
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	if (strncmp(name, "model_", 6) || !text_ends(name, ".bin") || strlen(name) < 11)
		return NULL;
	str_add(&out, path, (size_t)(name - path));
	str_printf(&out, "state_%.*s_00000.bin", (int)strlen(name) - 10, name + 6);
	return out.s;
}

static int check_state(struct llmc *x, const int32_t *header, struct err *e)
{
	struct stat st;
	x->master = header[S_MASTER] == 1;
	int64_t bytes = HEADER_BYTES + (x->master ? 3 : 2) * x->elements * 4;
	if (header[S_MAGIC] != STATE_MAGIC || header[S_VERSION] != STATE_VERSION ||
		header[S_STEP] < 0 || header[S_MASTER] < 0 || header[S_MASTER] > 1)
		return err_set(e, EX_DATAERR, "%s: not a state of llm.c, or damaged",
			x->state_path);
	if (fstat(x->state, &st))
		return err_set(e, EX_IOERR, "%s: %s", x->state_path, strerror(errno));
	if (st.st_size < bytes)
		return err_set(e, EX_DATAERR,
			"%s: %lld bytes instead of %lld: damaged, or a part, of a run with "
			"ZeRO; the model can be read without the files of its state",
			x->state_path, (long long)st.st_size, (long long)bytes);
	return 0;
}

/* The parameters in the file of a model are those of the state, rounded: to nearest, or as llm.c does it at
 * random (stochastic_rounding() in cuda_utils.cuh) up or down. Both are the upper 16 bits or the next
 * number. */
static bool is_rounded(const uint16_t *model, const uint32_t *master, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		uint16_t upper = (uint16_t)(master[i] >> 16);
		bool nan = (upper & 0x7fff) >= 0x7f80 && (master[i] & 0x7fffff);
		if (!nan && model[i] != upper &&
			(!(master[i] & 0xffff) || model[i] != (uint16_t)(upper + 1)))
			return false;
	}
	return true;
}

/* 1: the state has the master weights of this model. */
static int has_master_weights(const struct llmc *x, const char *path, struct err *e)
{
	int64_t width = dtype_bytes(x->dtype);
	int64_t begin = HEADER_BYTES + 2 * x->elements * 4;
	void *model = xmalloc((size_t)(BLOCK_FLOATS * width));
	uint32_t *master = xmalloc(BLOCK_FLOATS * sizeof(*master));
	int rc = x->master;
	for (int64_t at = 0; at < x->elements && rc == 1; at += BLOCK_FLOATS) {
		int64_t n = min64(BLOCK_FLOATS, x->elements - at);
		if (file_read_at(x->fd, path, model, (size_t)(n * width),
			    HEADER_BYTES + at * width, e) ||
			file_read_at(x->state, x->state_path, master,
				(size_t)n * sizeof(*master), begin + at * 4, e))
			rc = -1;
		else
			rc = x->dtype == DT_F32 ? !memcmp(model, master, (size_t)n * 4)
						: is_rounded(model, master, n);
	}
	free(model);
	free(master);
	return rc;
}

/* A state of another model beside this one would be taken for its own. Two files of llm.c itself without
 * master weights have nothing in common but their names. */
static int check_belongs(
	const struct llmc *x, const int32_t *header, const char *path, struct err *e)
{
	uint64_t of;
	bool sealed = header[W_MARK] == MARK;
	memcpy(&of, &header[S_MODEL_HASH], sizeof(of));
	if (sealed && x->sealed && of == x->hash)
		return 0;
	if (!sealed && !x->sealed && !x->master)
		return 0;
	int rc = has_master_weights(x, path, e);
	return rc == 1 ? 0
	       : rc    ? -1
		       : err_set(e, EX_DATAERR,
				 "%s: not the state of %s; the model can be read without "
				    "the file",
				 x->state_path, path);
}

/* Adds the groups of the state to the view, if there is one. */
static int load_state(
	struct llmc *x, struct ckpt_view *v, const char *path, struct err *e)
{
	int32_t header[WORDS];
	x->state_path = state_name(path);
	if (!x->state_path || !file_exists(x->state_path))
		return 0;
	x->state = open(x->state_path, O_RDONLY | O_CLOEXEC);
	if (x->state < 0)
		return err_set(e, EX_IOERR, "%s: %s", x->state_path, strerror(errno));
	if (file_read_at(x->state, x->state_path, header, sizeof(header), 0, e) ||
		check_state(x, header, e) ||
		check_hash(x->state, header, S_END, x->state_path, e) ||
		check_belongs(x, header, path, e))
		return -1;
	strs_add(&v->groups, "exp_avg");
	strs_add(&v->groups, "exp_avg_sq");
	v->info.step = header[S_STEP];
	return 0;
}

static int open_llmc(struct ckpt_view *v, const char *path, struct err *e)
{
	struct llmc *x = xcalloc(1, sizeof(*x));
	x->fd = open(path, O_RDONLY | O_CLOEXEC);
	x->state = -1;
	int rc = load(x, path, e);
	*v = (struct ckpt_view){0};
	if (!rc) {
		convert_view(v, &x->m, path);
		rc = load_state(x, v, path, e);
	}
	v->read = read_llmc;
	v->close = close_llmc;
	v->with = x;
	if (rc)
		ckpt_view_close(v);
	return rc;
}

/* ---- writing -------------------------------------------------------------------------- */

/* A tensor of a group, with rows of zeros to `rows`. */
static int put_tensor(struct number_file *w, const struct ckpt_view *v,
	const struct ckpt_rows *at, int64_t rows, struct err *e)
{
	const struct ckpt_tensor *t = &v->tensors[at->tensor];
	int64_t width = ckpt_row_size(t), step = max64(1, BLOCK_FLOATS / width);
	float *x = xmalloc((size_t)(step * width) * sizeof(*x));
	int rc = 0;
	for (int64_t r = 0; r < rows && !rc; r += step) {
		int64_t n = min64(step, rows - r);
		int64_t has = max64(0, min64(n, t->dims[0] - r));
		const struct ckpt_rows part = {at->group, at->tensor, r, has};
		memset(x, 0, (size_t)(n * width) * sizeof(*x));
		rc = (has && v->read(v, &part, x, e)) ||
		     number_file_put(w, x, n * width, e);
	}
	free(x);
	return rc ? -1 : 0;
}

/* All tensors of a group. */
static int put_group(struct number_file *w, const struct ckpt_view *v, int group,
	const struct model *m, struct err *e)
{
	int *order = file_order(m), rc = 0;
	for (int i = 0; i < m->n_tensors && !rc; i++) {
		const struct tensor *t = &m->tensors[order[i]];
		const struct ckpt_rows at = {group, ckpt_view_find(v, t->name), 0, 0};
		rc = put_tensor(w, v, &at,
			t == m->tokens ? round_up(m->padded_vocab, VOCAB_MULTIPLE)
				       : t->dims[0],
			e);
	}
	free(order);
	return rc;
}

static int put_hash(struct number_file *w, uint64_t *hash, struct err *e)
{
	*hash = number_file_hash(w);
	return number_file_patch(w, hash, sizeof(*hash), W_HASH * 4, e);
}

/* Sets *hash to the checksum of the file. */
static int put_model(struct number_file *w, const struct ckpt_view *v,
	const struct model *m, uint64_t *hash, struct err *e)
{
	const struct model_config *c = &m->c;
	const int32_t h[WORDS] = {[W_MAGIC] = MAGIC,
		[W_VERSION] = w->dtype == DT_F32 ? VERSION_FP32 : VERSION_BF16,
		[W_CONTEXT] = (int32_t)c->context,
		[W_VOCAB] = (int32_t)c->vocab,
		[W_LAYERS] = (int32_t)c->layers,
		[W_HEADS] = (int32_t)c->heads,
		[W_DIM] = (int32_t)c->dim,
		[W_PADDED_VOCAB] = (int32_t)round_up(m->padded_vocab, VOCAB_MULTIPLE),
		[W_OWN_ROWS] = (int32_t)m->padded_vocab,
		[W_MARK] = MARK};
	return number_file_bytes(w, h, sizeof(h), e) ||
			       put_group(w, v, CKPT_MODEL, m, e) || put_hash(w, hash, e)
		       ? -1
		       : 0;
}

/* `model_hash`: of the model file. `master`: with the parameters in fp32, which the file of a bf16 model does
 * not have. */
static int put_state(struct number_file *w, const struct ckpt_view *v,
	uint64_t model_hash, bool master, const struct model *m, struct err *e)
{
	uint64_t hash;
	int32_t h[WORDS] = {[S_MAGIC] = STATE_MAGIC,
		[S_VERSION] = STATE_VERSION,
		[S_RANKS] = 1,
		[S_MASTER] = master,
		[S_STEP] = (int32_t)v->info.step,
		[S_RNG] = 1,
		[S_RNG + 2] = 1,
		[W_MARK] = MARK};
	memcpy(&h[S_MODEL_HASH], &model_hash, sizeof(model_hash));
	if (number_file_bytes(w, h, sizeof(h), e) ||
		put_group(w, v, ckpt_view_find_group(v, "exp_avg"), m, e) ||
		put_group(w, v, ckpt_view_find_group(v, "exp_avg_sq"), m, e) ||
		(master && put_group(w, v, CKPT_MODEL, m, e)))
		return -1;
	return put_hash(w, &hash, e);
}

/* Writes the state under its temporary name. */
static int make_state(struct number_file *w, const struct ckpt_view *v, const char *path,
	uint64_t model_hash, bool master, const struct model *m, struct err *e)
{
	if (number_file_begin(w, path, DT_F32, e))
		return -1;
	return number_file_close(w, put_state(w, v, model_hash, master, m, e), e);
}

/* Both files are written before one of them gets its name. */
static int save_files(const struct ckpt_view *v, const struct model *m, const char *path,
	const char *state_path, enum dtype dtype, struct err *e)
{
	struct number_file model, state;
	struct durable *const both[] = {&model.d, &state.d};
	uint64_t hash = 0;
	if (number_file_begin(&model, path, dtype, e) ||
		number_file_close(&model, put_model(&model, v, m, &hash, e), e))
		return -1;
	if (!state_path)
		return durable_commit(&model.d, e);
	if (make_state(&state, v, state_path, hash, dtype != DT_F32, m, e)) {
		durable_abort(&model.d);
		return -1;
	}
	if (!durable_commit_all(both, 2, e))
		return 0;
	durable_abort(&model.d);
	durable_abort(&state.d);
	return -1;
}

/* The state of another model beside the new file would be taken for its own, so it is replaced or
 * removed, if that may be. */
static int check_old_state(const char *path, bool moments, bool force, struct err *e)
{
	if (!path || !file_exists(path) || force)
		return 0;
	return err_set(e, EX_USAGE, "%s exists; --force %s it", path,
		moments ? "replaces" : "removes");
}

static int save_llmc(const struct ckpt_view *v, const struct model *m, const char *path,
	const struct convert_opts *o, struct err *e)
{
	uint64_t hash;
	bool moments = ckpt_view_find_group(v, "exp_avg") > 0 &&
		       ckpt_view_find_group(v, "exp_avg_sq") > 0;
	if (o->dtype == DT_F16)
		return err_set(e, EX_USAGE, "llm.c's files are fp32 or bf16");
	if (v->info.step > INT32_MAX)
		return err_set(e, EX_DATAERR, "step %lld is too large for llm.c",
			(long long)v->info.step);
	char *state = state_name(path);
	int rc = check_model(m, e) || check_old_state(state, moments, o->force, e) ||
		 convert_hash(v, o->dtype, &hash, e);
	rc = rc || save_files(v, m, path, moments ? state : NULL, o->dtype, e);
	if (!rc && state && !moments && unlink(state) && errno != ENOENT)
		rc = err_set(e, EX_IOERR, "%s: %s", state, strerror(errno));
	free(state);
	return rc ? -1 : 0;
}

const struct convert_format convert_llmc = {
	.name = "llmc",
	.help = "model files of llm.c (GPT-2)",
	.is = is_llmc,
	.is_name = is_llmc_name,
	.open = open_llmc,
	.save = save_llmc,
};

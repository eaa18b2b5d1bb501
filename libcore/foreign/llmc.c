/* Model files of karpathy/llm.c: a header of 256 little-endian i32, then the parameters, each kind
 * for all layers, with queries, keys and values in one. Version 3 is fp32, 5 is bf16. llm.c leaves
 * the end of the header 0. pt-ckpt stores the XXH3 of the file there, which it verifies, and a
 * vocabulary size (llmc_layout.c). */
#include "archive/safetensors.h"
#include "foreign/llmc_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION_FP32 = 3, VERSION_BF16 = 5 };

/* Detects the format by the magic number, little-endian like all hosts of pt. */
static const void *probe_llmc(const char *path)
{
	int32_t magic;
	return file_sniff(path, &magic, sizeof(magic)) == sizeof(magic)
		       ? llmc_find_by_magic(magic)
		       : NULL;
}

static bool is_llmc_name(const char *path)
{
	return text_ends(path, ".bin");
}

static void close_llmc(struct ckpt_view *v)
{
	struct llmc *x = v->with;
	if (x->fd >= 0)
		close(x->fd);
	model_release(&x->m);
	free(x->offset);
	free(x);
}

/* Reads rows in the order of the file. */
static int read_file_rows(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	const struct llmc *x = v->with;
	int64_t width = ckpt_row_size(&v->tensors[r->tensor]);
	int64_t at = x->offset[r->tensor] + r->row * width;
	return read_floats(x->fd, v->name, x->dtype,
		LLMC_HEADER_BYTES + at * dtype_bytes(x->dtype), r->n * width, out, e);
}

/* Reads rows in our order. Implements ckpt_view.read. */
static int read_llmc(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	const struct llmc *x = v->with;
	const struct ckpt_tensor *t = &v->tensors[r->tensor];
	int64_t head_dim = x->m.c.dim / x->m.c.heads;
	if (!llmc_is_rotated(x->layout, t->name))
		return read_file_rows(v, r, out, e);
	for (int64_t i = 0; i < r->n; i++) {
		const struct ckpt_rows one = {
			r->group, r->tensor, llmc_row_in_file(r->row + i, head_dim), 1};
		if (read_file_rows(v, &one, out + i * ckpt_row_size(t), e))
			return -1;
	}
	return 0;
}

/* Verifies the checksum of a file of pt-ckpt. Headers of llm.c are 0 from word `end` on. */
static int verify_checksum(
	int fd, const int32_t *header, int end, const char *path, struct err *e)
{
	uint64_t have, want;
	bool zeros = true;
	for (int i = end; i < LLMC_WORDS; i++)
		zeros = zeros && !header[i];
	if (zeros)
		return 0;
	if (file_hash_around(fd, LLMC_HASH * 4, sizeof(have), 0, &have))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	memcpy(&want, &header[LLMC_HASH], sizeof(want));
	if (header[LLMC_MARK] == LLMC_IS_MARKED && have == want)
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: the file does not match its checksum: it is damaged", path);
}

/* Sets the offsets of all tensors, and checks the size of the file. */
static int locate_tensors(struct llmc *x, const char *path, struct err *e)
{
	scoped_ptr int *order = llmc_order(x->layout, &x->m);
	int64_t at = 0;
	struct stat st;
	x->offset = xcalloc((size_t)x->m.n_tensors, sizeof(*x->offset));
	for (int i = 0; i < x->m.n_tensors; i++) {
		x->offset[order[i]] = at;
		at += &x->m.tensors[order[i]] == x->m.tokens
			      ? x->vocab_rows * x->m.c.dim
			      : tensor_size(&x->m.tensors[order[i]]);
	}
	if (fstat(x->fd, &st))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	if (st.st_size != LLMC_HEADER_BYTES + at * dtype_bytes(x->dtype))
		return err_set(e, EX_DATAERR,
			"%s: %lld bytes instead of %lld: damaged, or of another model",
			path, (long long)st.st_size,
			(long long)(LLMC_HEADER_BYTES + at * dtype_bytes(x->dtype)));
	return 0;
}

/* Reads header[LLMC_WORDS], sets the layout and type, and verifies the checksum that pt writes. */
static int read_header(struct llmc *x, int32_t *header, const char *path, struct err *e)
{
	if (file_read_at(x->fd, path, header, LLMC_HEADER_BYTES, 0, e))
		return -1;
	int32_t version = header[LLMC_VERSION];
	x->layout = llmc_find_by_magic(header[LLMC_MAGIC]);
	if (!x->layout || (version != VERSION_FP32 && version != VERSION_BF16))
		return err_set(e, EX_DATAERR,
			"%s: version %d of llm.c's model files is not supported, only 3 and 5",
			path, version);
	x->dtype = version == VERSION_FP32 ? DT_F32 : DT_BF16;
	return verify_checksum(x->fd, header, x->layout->end, path, e);
}

/* Reads the header, and creates the model that header and file size specify. */
static int load_model(struct llmc *x, const char *path, struct err *e)
{
	int32_t header[LLMC_WORDS];
	struct model_config c;
	struct stat st;
	if (x->fd < 0 || fstat(x->fd, &st))
		return err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	if (st.st_size < LLMC_HEADER_BYTES)
		return err_set(
			e, EX_DATAERR, "%s: the file is shorter than its header", path);
	if (read_header(x, header, path, e))
		return -1;
	int64_t n = (st.st_size - LLMC_HEADER_BYTES) / dtype_bytes(x->dtype);
	if (x->layout->read(header, n, &c, &x->vocab_rows, path, e))
		return -1;
	if (model_init(&x->m, &c, 0, e)) {
		e->code = EX_DATAERR;
		return err_prefix(e, "%s: ", path);
	}
	return locate_tensors(x, path, e);
}

/* Opens a model file of llm.c as a view. */
static int open_llmc(struct ckpt_view *v, const char *path, const void *probed,
	const struct open_options *how, struct err *e)
{
	(void)probed, (void)how;
	struct llmc *x = xcalloc(1, sizeof(*x));
	x->fd = open(path, O_RDONLY | O_CLOEXEC);
	int rc = load_model(x, path, e);
	*v = (struct ckpt_view){0};
	if (!rc)
		convert_init_view(v, &x->m, path);
	v->read = read_llmc;
	v->close = close_llmc;
	v->with = x;
	if (rc)
		ckpt_view_close(v);
	return rc;
}

/* Writes a tensor with the rows of each head in the order of the file. */
static int write_rotated(struct number_file *w, const struct ckpt_view *v,
	const struct ckpt_rows *rows, int64_t head_dim, struct err *e)
{
	int rc = 0;
	for (int64_t r = 0; r < rows->n && !rc; r++) {
		const struct ckpt_rows one = {
			rows->group, rows->tensor, llmc_row_from_file(r, head_dim), 1};
		rc = number_file_append_rows(w, v, &one, e);
	}
	return rc;
}

/* Appends all tensors in llm.c's order, with its rotation and padding of the vocabulary. */
static int write_tensors(struct number_file *w, const struct ckpt_view *v,
	const struct model *m, struct err *e)
{
	const struct llmc_layout *l = llmc_find_by_arch(m->c.arch);
	int *order = llmc_order(l, m), rc = 0;
	for (int i = 0; i < m->n_tensors && !rc; i++) {
		const struct tensor *t = &m->tensors[order[i]];
		int64_t n = t->dims[0];
		n = t == m->tokens ? round_up(m->padded_vocab, l->vocab_multiple) : n;
		const struct ckpt_rows rows = {
			CKPT_MODEL, ckpt_view_find(v, t->name), 0, n};
		rc = llmc_is_rotated(l, t->name)
			     ? write_rotated(w, v, &rows, m->c.dim / m->c.heads, e)
			     : number_file_append_rows(w, v, &rows, e);
	}
	free(order);
	return rc;
}

/* Writes the header and all tensors, then the file's hash into the header. */
static int write_model(struct number_file *w, const struct ckpt_view *v,
	const struct model *m, struct err *e)
{
	const struct llmc_layout *l = llmc_find_by_arch(m->c.arch);
	uint64_t hash;
	int32_t h[LLMC_WORDS] = {[LLMC_MAGIC] = l->magic,
		[LLMC_VERSION] = w->dtype == DT_F32 ? VERSION_FP32 : VERSION_BF16,
		[LLMC_MARK] = LLMC_IS_MARKED};
	if (l->write(h, m, e) || number_file_append_bytes(w, h, sizeof(h), e) ||
		write_tensors(w, v, m, e))
		return -1;
	hash = number_file_hash(w);
	return number_file_patch(w, &hash, sizeof(hash), LLMC_HASH * 4, e);
}

/* Fails if llm.c has no such model, or if a value does not fit the type. */
static int check_model(
	const struct ckpt_view *v, const struct model *m, enum dtype dtype, struct err *e)
{
	int32_t header[LLMC_WORDS] = {0};
	uint64_t hash;
	if (dtype == DT_F16)
		return err_set(e, EX_USAGE,
			"--dtype fp16: llm.c's files do not support it; specify fp32 or bf16");
	return llmc_find_by_arch(m->c.arch)->write(header, m, e) ||
			       convert_hash(v, dtype, &hash, e)
		       ? -1
		       : 0;
}

/* Writes a model file of llm.c, which appears under its name only when it is complete. */
static int save_llmc(const struct ckpt_view *v, const struct model *m, const char *path,
	const struct convert_opts *o, struct err *e)
{
	struct number_file model;
	return check_model(v, m, o->dtype, e) ||
			       number_file_open(&model, path, o->dtype, e) ||
			       number_file_close(&model, write_model(&model, v, m, e), e)
		       ? -1
		       : durable_commit(&model.d, e);
}

const struct convert_format convert_llmc = {
	.name = "llmc",
	.help = "model files of llm.c (GPT-2, Llama 3)",
	.probe = probe_llmc,
	.is_name = is_llmc_name,
	.open = open_llmc,
	.save = save_llmc,
};

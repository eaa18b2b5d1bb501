/*
 * The state of llm.c's optimizer: beside model_STEP.bin, state_STEP_RANK.bin has (save_state() of train_gpt2.cu) a header
 * with words of its own, both moments as the parameters are in the model file, but always fp32, and for a bf16
 * model the fp32 master weights; then the state of the data loader, which is not read. Each rank's file
 * is complete without ZeRO; with ZeRO it is a part, which is refused. pt-ckpt adds the checksum of the model
 * file to the header, since a state of another model beside the file would be taken for its own.
 */
#include "foreign/llmc_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Words of the header, and the checksum of the model file that it belongs to, which is this project's. */
enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };
enum {
	S_RANKS = 2,
	S_RANK,
	S_MASTER,
	S_SHUFFLE,
	S_STEP = 10,
	S_RNG = 20,
	S_END = 34,
	S_MODEL_HASH = 250
};
enum { BLOCK_FLOATS = 1 << 20 };

/* ---- reading -------------------------------------------------------------------------- */

/* state_STEP_00000.bin beside model_STEP.bin; NULL: the file has another name. */
char *llmc_state_name(const char *path)
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
	int64_t bytes = LLMC_HEADER_BYTES + (x->master ? 3 : 2) * x->elements * 4;
	if (header[LLMC_MAGIC] != STATE_MAGIC || header[LLMC_VERSION] != STATE_VERSION ||
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
	int64_t begin = LLMC_HEADER_BYTES + 2 * x->elements * 4;
	void *model = xmalloc((size_t)(BLOCK_FLOATS * width));
	uint32_t *master = xmalloc(BLOCK_FLOATS * sizeof(*master));
	int rc = x->master;
	for (int64_t at = 0; at < x->elements && rc == 1; at += BLOCK_FLOATS) {
		int64_t n = min64(BLOCK_FLOATS, x->elements - at);
		if (file_read_at(x->fd, path, model, (size_t)(n * width),
			    LLMC_HEADER_BYTES + at * width, e) ||
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
	bool sealed = header[LLMC_MARK] == LLMC_IS_MARKED;
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
int llmc_state_load(struct llmc *x, struct ckpt_view *v, const char *path, struct err *e)
{
	int32_t header[LLMC_WORDS];
	x->state_path = llmc_state_name(path);
	if (!x->state_path || !file_exists(x->state_path))
		return 0;
	x->state = open(x->state_path, O_RDONLY | O_CLOEXEC);
	if (x->state < 0)
		return err_set(e, EX_IOERR, "%s: %s", x->state_path, strerror(errno));
	if (file_read_at(x->state, x->state_path, header, sizeof(header), 0, e) ||
		check_state(x, header, e) ||
		llmc_check_hash(x->state, header, S_END, x->state_path, e) ||
		check_belongs(x, header, path, e))
		return -1;
	strs_add(&v->groups, "exp_avg");
	strs_add(&v->groups, "exp_avg_sq");
	v->info.step = header[S_STEP];
	return 0;
}

/* ---- writing -------------------------------------------------------------------------- */

/* `model_hash`: of the model file. `master`: with the parameters in fp32, which the file of a bf16 model does
 * not have. */
static int put_state(struct number_file *w, const struct ckpt_view *v,
	uint64_t model_hash, bool master, const struct model *m, struct err *e)
{
	uint64_t hash;
	int32_t h[LLMC_WORDS] = {[LLMC_MAGIC] = STATE_MAGIC,
		[LLMC_VERSION] = STATE_VERSION,
		[S_RANKS] = 1,
		[S_MASTER] = master,
		[S_STEP] = (int32_t)v->info.step,
		[S_RNG] = 1,
		[S_RNG + 2] = 1,
		[LLMC_MARK] = LLMC_IS_MARKED};
	memcpy(&h[S_MODEL_HASH], &model_hash, sizeof(model_hash));
	if (number_file_bytes(w, h, sizeof(h), e) ||
		llmc_put_group(w, v, ckpt_view_find_group(v, "exp_avg"), m, e) ||
		llmc_put_group(w, v, ckpt_view_find_group(v, "exp_avg_sq"), m, e) ||
		(master && llmc_put_group(w, v, CKPT_MODEL, m, e)))
		return -1;
	return llmc_put_hash(w, &hash, e);
}

/* Writes the state under its temporary name. */
int llmc_state_make(struct number_file *w, const struct ckpt_view *v, const char *path,
	uint64_t model_hash, bool master, const struct model *m, struct err *e)
{
	if (number_file_begin(w, path, DT_F32, e))
		return -1;
	return number_file_close(w, put_state(w, v, model_hash, master, m, e), e);
}

/* The state of another model beside the new file would be taken for its own, so it is replaced or
 * removed, if that may be. */
int llmc_state_check_old(const char *path, bool moments, bool force, struct err *e)
{
	if (!path || !file_exists(path) || force)
		return 0;
	return err_set(e, EX_USAGE, "%s exists; --force %s it", path,
		moments ? "replaces" : "removes");
}

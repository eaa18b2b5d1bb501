/* Checkpoints from files of any format. */
#include "foreign/foreign.h"
#include "foreign/foreign_internal.h"

#include "archive/archive.h"
#include "base/file.h"
#include "foreign/huggingface.h"
#include "engine/state.h"

/* Opens a file of a foreign format as a checkpoint *c, which owns the view. */
static int open_as_ckpt(struct ckpt **c, const struct convert_kind *kind,
	const char *path, const struct open_options *how, struct err *e)
{
	struct ckpt_view v;
	if (convert_open_as(&v, kind, path, how, e))
		return -1;
	*c = ckpt_from_view(&v);
	return 0;
}

int convert_open_ckpt(
	struct ckpt **c, const char *path, const struct open_options *how, struct err *e)
{
	const struct convert_kind kind = convert_detect(path);
	return kind.format == &convert_pt ? convert_open_own(c, path, e)
					  : open_as_ckpt(c, &kind, path, how, e);
}

/* Returns true if a directory has tokenizer files to compare with the data's tokenizer. */
static bool has_tokenizer(const char *directory)
{
	static const char *const names[] = {
		"tokenizer.json", "tekken.json", "vocab.bpe", "merges.txt"};
	bool found = false;
	for (size_t i = 0; i < ARRAY_LEN(names) && !found; i++)
		found = directory_has_file(directory, names[i]);
	return found;
}

/* Sets the options vocab and vocab-multiple: rows beyond the tokenizer's tokens are padding. */
static int set_vocabulary(struct ckpt *c, struct err *e)
{
	struct model m;
	if (convert_model(c->view, &m, e))
		return -1;
	int64_t n = c->tokenizer.vocab.n, rows = m.tokens->dims[0];
	model_release(&m);
	if (n > rows)
		return err_set(e, EX_DATAERR,
			"%s: the tokenizer has %lld tokens, but the embedding only %lld rows",
			c->path, (long long)n, (long long)rows);
	str_printf(&c->config, "vocab = %lld\n", (long long)n);
	if (n < rows)
		str_printf(&c->config, "vocab-multiple = %lld\n", (long long)rows);
	return 0;
}

/* Sets the origin to the number of positions, as a run may shorten sequences. Closes c on error. */
static int store_positions(struct ckpt *c, struct err *e)
{
	struct model_config options;
	if (c->origin.len)
		return 0;
	if (options_parse_model(&options, c->config.s, e)) {
		ckpt_close(c);
		return -1;
	}
	hf_origin_set_positions(options.context, &c->origin);
	return 0;
}

int convert_open_model(struct ckpt **c, const char *path, struct err *e)
{
	struct err why = {0};
	const struct convert_kind kind = convert_detect(path);
	if (kind.format == &convert_pt)
		return ckpt_open(c, path, e) ? -1 : store_positions(*c, e);
	if (open_as_ckpt(c, &kind, path, NULL, e))
		return -1;
	const struct tokenizer_source files = {"bpe", path, NULL, false};
	if (!file_is_directory(path) || !has_tokenizer(path))
		return 0;
	if (tokenizer_make(&(*c)->tokenizer, &files, &why)) {
		static bool warned; /* (pt-train opens a model twice, on all ranks) */
		tokenizer_release(&(*c)->tokenizer);
		if (!warned && log_is_enabled())
			warn("%s: the tokenizer is not compared with the data's tokenizer: %s",
				path, why.msg);
		warned = true;
		return 0;
	}
	if (!set_vocabulary(*c, e))
		return 0;
	ckpt_close(*c);
	return -1;
}

int convert_open_for_sampling(struct ckpt **c, const char *path, struct err *e)
{
	const struct convert_kind kind = convert_detect(path);
	if (kind.format == &convert_pt || !file_is_directory(path) ||
		!has_tokenizer(path))
		return ckpt_open(c, path, e);
	if (open_as_ckpt(c, &kind, path, NULL, e))
		return -1;
	if (!convert_set_vocabulary((*c)->view, &(*c)->tokenizer, path, e))
		return 0;
	e->code = EX_DATAERR;
	ckpt_close(*c);
	*c = NULL;
	return -1;
}

int convert_hash_file(
	const char *path, const struct open_options *how, uint64_t *hash, struct err *e)
{
	struct ckpt_view v;
	if (convert_open(&v, path, how, e))
		return -1;
	int rc = ckpt_view_hash(&v, hash, e);
	ckpt_view_close(&v);
	return rc;
}

int convert_verify(const char *path, const struct open_options *how, struct err *e)
{
	struct ckpt *c;
	struct ckpt_view v;
	int rc;
	const struct convert_kind kind = convert_detect(path);
	if (kind.format != &convert_pt) {
		if (convert_open_as(&v, &kind, path, how, e))
			return -1;
		rc = ckpt_view_check(&v, e);
		ckpt_view_close(&v);
		return rc;
	}
	if (ckpt_open_stream(&c, path, e))
		return -1;
	rc = ckpt_verify_hash(c, e) || state_check(c, e) ? -1 : 0;
	ckpt_close(c);
	return rc;
}

static int save_ckpt(const struct ckpt_view *v, const char *out, struct err *e)
{
	return convert_save(
		v, &convert_pt, out, &(struct convert_opts){.dtype = DT_F32}, e);
}

int convert_sum(int n, char **paths, const struct open_options *how,
	const double *weights, double divisor, const char *out, struct err *e)
{
	struct ckpt_view *all = xcalloc((size_t)n, sizeof(*all)), sum;
	scoped_ptr const struct ckpt_view **views = xcalloc((size_t)n, sizeof(*views));
	int n_open = 0, rc = 0;
	for (; n_open < n && !rc; n_open += !rc) {
		views[n_open] = &all[n_open];
		rc = convert_open(&all[n_open], paths[n_open], how, e);
	}
	for (int i = 1; i < n && !rc; i++)
		rc = convert_check_same_model(views[0], views[i], e);
	rc = rc || ckpt_combine(&sum, views, n, weights, divisor, e);
	if (!rc) {
		rc = save_ckpt(&sum, out, e);
		ckpt_view_close(&sum);
	}
	while (n_open--)
		ckpt_view_close(&all[n_open]);
	free(all);
	return rc ? -1 : 0;
}

int convert_selection(const char *path, const struct open_options *how,
	const struct ckpt_selection *s, const char *out, struct err *e)
{
	struct ckpt_view all, selected;
	if (convert_open(&all, path, how, e))
		return -1;
	int rc = ckpt_select(&selected, &all, s, e);
	if (!rc) {
		rc = save_ckpt(&selected, out, e);
		ckpt_view_close(&selected);
	}
	ckpt_view_close(&all);
	return rc;
}

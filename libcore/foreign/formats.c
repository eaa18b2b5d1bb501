/* The table of formats, and the pt format: checkpoints in forward order. */
#include "foreign/foreign.h"
#include "foreign/foreign_internal.h"

#include "archive/archive.h"

#include "engine/state.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define CONVERT_POINTER(name) &convert_##name,
const struct convert_format *const convert_formats[] = {
	CONVERT_FORMATS(CONVERT_POINTER) NULL};
#define CONVERT_NAME(name) #name,
const char *const convert_names[] = {"auto", CONVERT_FORMATS(CONVERT_NAME) NULL};

struct convert_kind convert_detect(const char *path)
{
	bool is_stdin = !strcmp(path, "-");
	for (int i = 1; convert_formats[i] && !is_stdin; i++) {
		const void *probed = convert_formats[i]->probe(path);
		if (probed)
			return (struct convert_kind){convert_formats[i], probed};
	}
	return (struct convert_kind){&convert_pt, NULL};
}

const struct convert_format *convert_output_format(int choice, const char *path)
{
	if (choice)
		return convert_formats[choice - 1];
	for (int i = 0; convert_formats[i]; i++)
		if (convert_formats[i]->is_name(path))
			return convert_formats[i];
	return &convert_huggingface;
}

/* Adds the supported formats to the error *e about a file that is not HDF5. Returns -1. */
static int add_format_hint(const char *path, struct err *e)
{
	char first[8] = {0};
	const struct err why = *e;
	int64_t n = why.code == EX_DATAERR ? file_sniff(path, first, sizeof(first)) : -1;
	bool is_other_format = n > 0 && !h5_has_signature(first, (size_t)n);
	if (is_other_format && !memcmp(first, "GGUF", 4))
		return err_set(e, why.code,
			"%s: GGUF files are not supported; pass the Hugging Face model "
			"that it was converted from",
			path);
	if (is_other_format)
		return err_set(e, why.code,
			"%s; .safetensors, .bin and .pt files and directories with config.json "
			"are supported, too",
			why.msg);
	return -1;
}

int convert_open_as(struct ckpt_view *v, const struct convert_kind *kind,
	const char *path, const struct open_options *how, struct err *e)
{
	static const struct open_options default_how;
	const struct convert_format *f = kind->format;
	if (ckpt_reject_adapter(path, e))
		return -1;
	int rc = f->open(v, path, kind->probed, how ? how : &default_how, e);
	v->format = f->name;
	return rc && f == &convert_pt ? add_format_hint(path, e) : rc;
}

int convert_open(struct ckpt_view *v, const char *path, const struct open_options *how,
	struct err *e)
{
	struct convert_kind kind = convert_detect(path);
	bool has_moments = kind.format == &convert_torch &&
			   kind.probed != &container_one_bin &&
			   kind.probed != &container_bins;
	if (how && how->optimizer && !has_moments && container_trainer.matches(path))
		kind = (struct convert_kind){&convert_torch, &container_trainer};
	return convert_open_as(v, &kind, path, how, e);
}

int convert_open_own(struct ckpt **c, const char *path, struct err *e)
{
	return ckpt_open_stream(c, path, e) ? add_format_hint(path, e) : 0;
}

int convert_save(const struct ckpt_view *v, const struct convert_format *f,
	const char *path, const struct convert_opts *o, struct err *e)
{
	struct model m;
	if (f == &convert_pt) /* may have any tensors */
		return f->save(v, NULL, path, o, e);
	if (!strcmp(path, "-"))
		return err_set(e, EX_USAGE,
			"only the format pt can be written to standard output");
	if (convert_model(v, &m, e))
		return -1;
	int rc = f->save(v, &m, path, o, e);
	model_release(&m);
	return rc;
}

/* Adds ids without bytes for rows of the embedding beyond the tokenizer's tokens. */
static void pad_tokens(const struct ckpt_view *v, struct tokenizer *t, struct err *e)
{
	enum { MAX_PADDING = 1024 };
	struct model_config c;
	if (options_parse_model(&c, v->config.s, e))
		return;
	int64_t n_tokens = t->vocab.n,
		n_wanted = v->tokenizer ? v->tokenizer->vocab.n : c.vocab;
	if (!bpe_rules_of(t) || n_wanted <= n_tokens || n_wanted > n_tokens + MAX_PADDING)
		return;
	t->vocab.offset = xrealloc(
		t->vocab.offset, (size_t)(n_wanted + 1) * sizeof(*t->vocab.offset));
	for (; t->vocab.n < n_wanted; t->vocab.n++)
		t->vocab.offset[t->vocab.n + 1] = t->vocab.offset[t->vocab.n];
}

/* Fails if the number of tokens differs from the config's vocabulary, without padding. */
static int check_tokens(
	const struct ckpt_view *v, const struct tokenizer *t, struct err *e)
{
	struct model_config c;
	if (options_parse_model(&c, v->config.s, e))
		return -1;
	return v->tokenizer || !c.vocab || c.vocab == t->vocab.n
		       ? 0
		       : err_set(e, EX_USAGE,
				 "has %lld tokens, but the vocabulary of %s has %lld",
				 (long long)t->vocab.n, v->name, (long long)c.vocab);
}

static int read_tokenizer(struct tokenizer *t, const char *path, struct err *e)
{
	struct h5 *h;
	if (h5_open(&h, path, e))
		return -1;
	int rc = h5_check_seal(h, e) || tokenizer_read(t, h, e) ? -1 : 0;
	return h5_end(h, rc, e);
}

bool convert_is_tokenizer(const char *path)
{
	return file_is_directory(path) || text_ends(path, ".json") ||
	       text_ends(path, ".bpe") || text_ends(path, ".txt") ||
	       text_ends(path, ".tiktoken");
}

int convert_set_vocabulary(
	struct ckpt_view *v, struct tokenizer *t, const char *path, struct err *e)
{
	struct model m;
	if (convert_is_tokenizer(path)
			? tokenizer_make(t,
				  &(struct tokenizer_source){"bpe", path, NULL, false}, e)
			: read_tokenizer(t, path, e))
		return -1;
	pad_tokens(v, t, e);
	int rc = e->code ? -1 : check_tokens(v, t, e);
	v->tokenizer = t;
	if (rc || convert_model(v, &m, e)) {
		e->code = EX_USAGE;
		return err_prefix(e, "%s: ", path);
	}
	model_release(&m);
	return 0;
}

/* ---- the order of the forward pass ------------------------------------------------ */

struct ordered_tensor {
	int64_t position; /* in the forward order */
	const char *name;
	int tensor;
};

static int by_position(const void *a, const void *b)
{
	const struct ordered_tensor *x = a, *y = b;
	return x->position != y->position
		       ? (x->position > y->position) - (x->position < y->position)
		       : strverscmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct ordered_tensor *)a)->name,
		((const struct ordered_tensor *)b)->name);
}

/* Returns the tensors of a model, sorted by name; for free(). */
static struct ordered_tensor *index_model(const struct model *m)
{
	struct ordered_tensor *list = xcalloc((size_t)m->n_tensors + 1, sizeof(*list));
	for (int i = 0; i < m->n_tensors; i++)
		list[i] = (struct ordered_tensor){i, m->tensors[i].name, i};
	qsort(list, (size_t)m->n_tensors, sizeof(*list), by_name);
	return list;
}

int *convert_forward_order(const char *config, const struct ckpt_tensor *tensors, int n)
{
	/* (a hostile file may state millions) */
	enum { MAX_LAYERS = 4096 };
	struct model_config c;
	struct model m = {0};
	struct err e = {0};
	scoped_ptr struct ordered_tensor *list = xcalloc((size_t)n, sizeof(*list));
	int *order = xcalloc((size_t)n, sizeof(*order));
	/* (the names do not depend on the vocabulary) */
	bool has_model = !options_parse_model(&c, config, &e) &&
			 c.layers <= max64(n, MAX_LAYERS) && !model_init(&m, &c, 1, &e);
	scoped_ptr struct ordered_tensor *index = index_model(&m);
	for (int i = 0; i < n; i++) {
		list[i] = (struct ordered_tensor){m.n_tensors, tensors[i].name, i};
		const struct ordered_tensor *p = bsearch(
			&list[i], index, (size_t)m.n_tensors, sizeof(*index), by_name);
		list[i].position = p ? p->position : m.n_tensors;
	}
	qsort(list, (size_t)n, sizeof(*list), by_position);
	for (int i = 0; i < n; i++)
		order[i] = list[i].tensor;
	if (has_model)
		model_release(&m);
	return order;
}

/* ---- pt: checkpoints of this project ---------------------------------------------- */

/* Returns NULL: convert_detect() chooses format pt if no other format matches. */
static const void *probe_pt(const char *path)
{
	(void)path;
	return NULL;
}

static bool is_pt_name(const char *path)
{
	return !strcmp(path, "-") || text_ends(path, ".h5");
}

static void close_pt(struct ckpt_view *v)
{
	ckpt_close(v->with);
}

/* Opens a checkpoint of pt as a view, which closes it. Fails if its state is invalid. */
static int open_pt(struct ckpt_view *v, const char *path, const void *probed,
	const struct open_options *how, struct err *e)
{
	(void)probed, (void)how;
	struct ckpt *c;
	if (ckpt_open_stream(&c, path, e))
		return -1;
	if (state_check(c, e)) {
		ckpt_close(c);
		return -1;
	}
	ckpt_view_from(v, c);
	v->close = close_pt;
	return 0;
}

/* Writes a checkpoint to a temporary file, then to standard output. */
static int write_stdout(const struct ckpt_view *v, struct err *e)
{
	char temporary[4096];
	int fd = file_temporary(temporary, e);
	if (fd < 0)
		return -1;
	close(fd);
	int rc = ckpt_view_write(v, temporary, e);
	if (!rc && ((fd = open(temporary, O_RDONLY | O_CLOEXEC)) < 0 ||
			   copy_up_to(fd, STDOUT_FILENO, INT64_MAX)))
		rc = err_set(e, EX_IOERR, "standard output: %s", strerror(errno));
	if (!rc)
		close(fd);
	cleanup_remove(temporary);
	return rc;
}

/* Fails if the saved progress in the view could not be read again. */
static int check_progress(const struct ckpt_view *v, const char *path, struct err *e)
{
	struct ckpt c = {.path = (char *)path,
		.info = v->info,
		.config = v->config,
		.groups = v->groups,
		.tensors = v->tensors,
		.n_tensors = v->n_tensors,
		.numbers = (double *)v->numbers,
		.n_numbers = v->n_numbers};
	return state_check(&c, e);
}

/* Writes a checkpoint with the tensors in forward order, as pt-train does. */
static int save_pt(const struct ckpt_view *v, const struct model *m, const char *path,
	const struct convert_opts *o, struct err *e)
{
	(void)m;
	struct ckpt_view ordered;
	if (o->dtype != DT_F32)
		return err_set(e, EX_USAGE,
			"format pt stores fp32 only; use pt-ckpt cast to round values to %s",
			dtype_table[o->dtype].name);
	if (check_progress(v, path, e))
		return -1;
	/* in pt-train's order, so that a copy has the same bytes */
	scoped_ptr int *order =
		convert_forward_order(v->config.s, v->tensors, v->n_tensors);
	int rc = ckpt_select(&ordered, v, &(struct ckpt_selection){.order = order}, e);
	if (rc)
		return rc;
	rc = strcmp(path, "-") ? ckpt_view_write(&ordered, path, e)
			       : write_stdout(&ordered, e);
	ckpt_view_close(&ordered);
	return rc;
}

const struct convert_format convert_pt = {
	.name = "pt",
	.help = "checkpoints of pt-train",
	.probe = probe_pt,
	.is_name = is_pt_name,
	.open = open_pt,
	.save = save_pt,
};

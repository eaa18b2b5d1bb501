/* A Hugging Face model: a directory with config.json and model.safetensors, or several files and
 * model.safetensors.index.json; or the path of such a file next to a config.json. */
#include "foreign/foreign.h"
#include "foreign/foreign_internal.h"
#include "dialect/dialect.h"
#include "foreign/huggingface.h"
#include "archive/safetensors.h"

#include <sys/stat.h>

/* Returns the suffix that makes the path of the tensors of a path; NULL for another format. */
static const void *probe_hf(const char *path)
{
	if (!file_is_directory(path))
		return text_ends(path, ".safetensors") ||
				       text_ends(path, ".safetensors.index.json")
			       ? ""
			       : NULL;
	if (directory_has_file(path, HF_ONE_FILE))
		return "/" HF_ONE_FILE;
	return directory_has_file(path, HF_INDEX_FILE) ||
			       directory_has_file(path, "config.json")
		       ? "/" HF_INDEX_FILE
		       : NULL;
}

static bool is_hf_name(const char *path)
{
	(void)path; /* a directory may have any name: the last row of the table */
	return false;
}

struct hf {
	char *path;
	struct torch_file files;
	struct model m;
	struct hf_config config;
	struct foreign *list;
	int n;
	const struct torch_item *
		*items; /* [foreign tensor]; NULL: missing, reads as zeros */
	/* [our tensor] index of the foreign tensor; first output in the foreign tensor. */
	int *source;
	int64_t *first;
	/* Cache: a whole transposed tensor, or one expert of a stack, and its index. */
	float *whole;
	int cached; /* -1: none */
	int64_t cached_expert;
};

static void close_hf(struct ckpt_view *v)
{
	struct hf *h = v->with;
	torch_close(&h->files);
	model_release(&h->m);
	free(h->list);
	free(h->items);
	free(h->source);
	free(h->first);
	free(h->whole);
	free(h->path);
	free(h);
}

/* Reads a whole foreign tensor into h->whole, unless it is there already. */
static int cache_tensor(struct hf *h, int index, struct err *e)
{
	const struct foreign *f = &h->list[index];
	if (h->cached == index)
		return 0;
	h->cached = -1;
	h->whole = xrealloc(h->whole, (size_t)(f->dims[0] * f->dims[1]) * sizeof(float));
	if (torch_read(&h->files, h->items[index], 0, f->dims[0], h->whole, e))
		return -1;
	h->cached = index;
	return 0;
}

/* Reads our rows from columns of the file's tensor. */
static int read_transposed(
	struct hf *h, int index, int64_t first, int64_t n, float *out, struct err *e)
{
	int64_t inputs = h->list[index].dims[0], width = h->list[index].dims[1];
	if (cache_tensor(h, index, e))
		return -1;
	for (int64_t i = 0; i < inputs; i++)
		for (int64_t k = 0; k < n; k++)
			out[k * inputs + i] = h->whole[i * width + first + k];
	return 0;
}

/* Reads rows of queries or keys, which the file has in another order. */
static int read_rotated(
	struct hf *h, const struct ckpt_rows *r, int64_t width, float *out, struct err *e)
{
	const struct tensor_source s = {
		.pairs = h->config.rope_interleaved, .rotates_partly = true};
	int64_t dim = h->m.head_dim;
	int rc = 0;
	for (int64_t i = 0; i < r->n && !rc; i++) {
		int64_t channel = (r->row + i) % dim;
		int64_t row = r->row + i - channel + source_channel(&h->m, &s, channel);
		rc = torch_read(&h->files, h->items[h->source[r->tensor]],
			h->first[r->tensor] + row, 1, out + i * width, e);
	}
	return rc;
}

/* Reads all matrices of one expert of a stack into h->whole, unless they are there already. */
static int cache_expert(struct hf *h, int index, int64_t expert, struct err *e)
{
	const struct foreign *f = &h->list[index];
	if (h->cached == index && h->cached_expert == expert)
		return 0;
	h->cached = -1;
	h->whole = xrealloc(h->whole, (size_t)(f->dims[1] * f->dims[2]) * sizeof(float));
	if (torch_read(&h->files, h->items[index], expert, 1, h->whole, e))
		return -1;
	h->cached = index;
	h->cached_expert = expert;
	return 0;
}

/* Reads rows of a stack of experts, which is one foreign tensor. */
static int read_whole_stack(
	struct hf *h, const struct ckpt_rows *r, int64_t width, float *out, struct err *e)
{
	const int index = h->source[r->tensor];
	const int64_t rows = h->list[index].dims[1];
	for (int64_t i = 0, n; i < r->n; i += n) {
		int64_t first = (r->row + i) % rows;
		n = min64(r->n - i, rows - first);
		if (cache_expert(h, index, (r->row + i) / rows, e))
			return -1;
		memcpy(out + i * width, h->whole + first * width,
			(size_t)(n * width) * sizeof(*out));
	}
	return 0;
}

/* Reads rows of a stack of experts, which has one foreign tensor per matrix of an expert. */
static int read_stack(
	struct hf *h, const struct ckpt_rows *r, int64_t width, float *out, struct err *e)
{
	int rc = 0;
	if (h->list[h->source[r->tensor]].ndim == 3)
		return read_whole_stack(h, r, width, out, e);
	for (int64_t i = 0, n; i < r->n && !rc; i += n) {
		int64_t rows = h->list[h->source[r->tensor]].dims[0];
		int64_t block = (r->row + i) / rows, first = (r->row + i) % rows;
		n = min64(r->n - i, rows - first);
		rc = torch_read(&h->files, h->items[h->source[r->tensor] + block], first,
			n, out + i * width, e);
	}
	return rc;
}

/* Reads rows of one of our tensors from the foreign tensor: transposed, rotated or as they are. */
static int read_hf(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	struct hf *h = v->with;
	int index = h->source[r->tensor];
	int64_t first = h->first[r->tensor] + r->row;
	int64_t width = ckpt_row_size(&v->tensors[r->tensor]), n = r->n;
	if (h->list[index].stacked)
		return read_stack(h, r, width, out, e);
	if (h->list[index].transposed && h->items[index])
		return read_transposed(h, index, first, n, out, e);
	if (h->items[index] && has_rotated_rows(&h->m.tensors[r->tensor]) &&
		(h->config.rope_interleaved || h->m.c.rotary))
		return read_rotated(h, r, width, out, e);
	/* rows that pad the vocabulary, and biases that the file lacks, are zeros */
	n = h->items[index] ? min64(n, max64(0, h->list[index].dims[0] - first)) : 0;
	memset(out + n * width, 0, (size_t)((r->n - n) * width) * sizeof(*out));
	return n ? torch_read(&h->files, h->items[index], first, n, out, e) : 0;
}

/* Appends the name, in the file, of one of our tensors, and its range of rows. */
static void append_file_name(const struct ckpt_view *v, int tensor, struct str *out)
{
	const struct hf *h = v->with;
	int index = h->source[tensor], blocks = h->m.tensors[tensor].blocks;
	if (h->list[index].ndim == 3)
		str_puts(out, h->items[index]->name);
	else if (blocks > 1)
		str_printf(
			out, "%s and %d more tensors", h->items[index]->name, blocks - 1);
	else if (h->items[index])
		append_item_range(h->items[index], h->first[tensor],
			v->tensors[tensor].dims[0], h->list[index].transposed, out);
}

/* Returns a tensor by name, or by the name without the outer module; NULL: it is missing. */
static const struct torch_item *find_item(const struct hf *h, const char *name)
{
	const struct torch_item *t = torch_find(&h->files, name);
	const char *dot = strchr(name, '.');
	return t || !dot ? t : torch_find(&h->files, dot + 1);
}

/* Returns true for a bias that the configuration turns off. */
static bool may_be_missing(const struct hf *h, const char *name)
{
	bool attention = strstr(name, ".self_attn.") != NULL;
	return h->m.c.arch != ARCH_GPT2 && text_ends(name, ".bias") &&
	       !(attention ? h->config.attention_bias : h->config.mlp_bias);
}

static int check_shape(const struct hf *h, const struct foreign *f,
	const struct torch_item *t, struct err *e)
{
	int same = 0;
	while (t->ndim == f->ndim && same < f->ndim && t->dims[same] == f->dims[same])
		same++;
	if (same == f->ndim)
		return 0;
	return err_set(e, EX_DATAERR, "%s: the shape of %s does not fit config.json",
		h->path, t->name);
}

/* Rejects types other than floats: integers would be a quantized model. */
static int check_type(const struct hf *h, const struct torch_item *t, struct err *e)
{
	static const char *const types[] = {"float32", "bfloat16", "float16"};
	const char *type = torch_dtype_name(t->dtype);
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (!strcmp(type, types[i]))
			return 0;
	return err_set(e, EX_UNAVAILABLE,
		"%s: %s is %s; only float32, bfloat16 and float16 are supported", h->path,
		t->name, type);
}

/* Sets the item of each foreign tensor. Fails if one is missing or has the wrong shape or type. */
static int find_items(struct hf *h, struct err *e)
{
	h->items = xcalloc((size_t)h->n, sizeof(*h->items));
	for (int i = 0; i < h->n; i++) {
		const struct foreign *f = &h->list[i];
		h->items[i] = find_item(h, f->name);
		if (!h->items[i] && !may_be_missing(h, f->name))
			return err_set(e, EX_DATAERR, "%s: tensor %s is missing", h->path,
				f->name);
		if (h->items[i] && (check_shape(h, f, h->items[i], e) ||
					   check_type(h, h->items[i], e)))
			return -1;
	}
	return 0;
}

static const char tied_copy[] = "lm_head.weight";

/* Returns true for computed buffers, and for a copy of a tied output layer. */
static bool is_computed(const struct hf *h, const char *name)
{
	static const char *const ends[] = {
		".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (text_ends(name, ends[i]))
			return true;
	return h->m.tie && !strcmp(name, tied_copy);
}

/* Fails if the file has a tensor that the model lacks. */
static int check_all_used(const struct hf *h, struct err *e)
{
	scoped_ptr bool *used = xcalloc((size_t)max64(1, h->files.n), sizeof(*used));
	int rc = 0;
	for (int i = 0; i < h->n; i++)
		if (h->items[i])
			used[h->items[i] - h->files.items] = true;
	for (int64_t i = 0; i < h->files.n && !rc; i++)
		if (!used[i] && !is_computed(h, h->files.items[i].name))
			rc = err_set(e, EX_DATAERR,
				"%s: %s is not a tensor of the model in config.json",
				h->path, h->files.items[i].name);
	return rc;
}

/* Fails if the file's copy of a tied output layer differs from the embedding. */
static int check_tied(struct hf *h, struct err *e)
{
	const struct torch_item *copy =
		h->m.tie ? torch_find(&h->files, tied_copy) : NULL;
	struct torch_difference d;
	int index = 0;
	while (copy && h->list[index].part[0] != h->m.tokens - h->m.tensors)
		index++;
	if (!copy)
		return 0;
	if (check_shape(h, &h->list[index], copy, e) ||
		torch_compare(&h->files, h->items[index], copy, &d, e))
		return -1;
	return d.n ? err_set(e, EX_DATAERR,
			     "%s: %s differs from %s, but config.json ties them", h->path,
			     copy->name, h->items[index]->name)
		   : 0;
}

/* Sets the foreign tensor and the first output of each of our tensors. */
static void locate_tensors(struct hf *h)
{
	h->source = xcalloc((size_t)h->m.n_tensors, sizeof(*h->source));
	h->first = xcalloc((size_t)h->m.n_tensors, sizeof(*h->first));
	for (int i = 0; i < h->n; i++) {
		int64_t first = 0;
		if (h->list[i].first) /* not the first matrix of a stack */
			continue;
		for (int p = 0; p < h->list[i].n_parts; p++) {
			h->source[h->list[i].part[p]] = i;
			h->first[h->list[i].part[p]] = first;
			first += h->list[i].outputs[p];
		}
	}
}

/* Fails if config.json changed since pt-ckpt stored the hash of its options with the tensors. */
static int check_options(const struct hf *h, const char *config, struct err *e)
{
	char have[ST_DIGITS + 1];
	const char *options = safetensors_options(&h->files);
	hf_hash_options(&h->m, have);
	if (!*options || !strcmp(have, options))
		return 0;
	return err_set(e, EX_DATAERR,
		"%s: not the options of %s: one of the files changed after pt-ckpt wrote it",
		config, h->path);
}

/* Returns the length of a path up to its last slash. */
static int directory_length(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? (int)(slash + 1 - path) : 0;
}

/* Returns true if the file has the stacks of experts that transformers 5 has in memory. */
static bool has_stacks(const struct hf *h)
{
	const struct scheme *s = scheme_in_memory(h->config.scheme);
	char name[FOREIGN_NAME];
	for (int i = 0; i < h->m.n_tensors; i++)
		if (h->m.tensors[i].blocks &&
			set_stack_name(s, h->m.tensors[i].name, name) &&
			find_item(h, name))
			return true;
	return false;
}

/* Lists the foreign tensors. Fails if the file has fewer tensors, before memory is allocated. */
static int list_tensors(struct hf *h, const char *config, struct err *e)
{
	const bool stacks = h->config.c.experts && has_stacks(h);
	const int64_t n = stacks ? h->m.n_tensors : foreign_max(&h->m);
	const struct scheme *s = h->config.scheme;
	if (h->config.c.experts && n > h->files.n)
		return err_set(e, EX_DATAERR,
			"%s: the model has %lld tensors, but %s has only %lld", config,
			(long long)n, h->path, (long long)h->files.n);
	h->n = stacks ? foreign_list_stacks(
				scheme_in_memory(s), &h->m, h->m.c.vocab, &h->list, e)
		      : foreign_list(s, &h->m, h->m.c.vocab, &h->list, e);
	return h->n < 0 ? -1 : 0;
}

/* Reads config.json and the headers, and checks that the tensors fit the configuration. */
static int load_model(struct hf *h, const char *config, const char *given, struct err *e)
{
	if (!file_exists(config) && !given)
		return err_set(e, EX_IOERR,
			"%s: no such file, and the tensors do not determine all options of the "
			"model; put Hugging Face's config.json there, or specify "
			"--model-config FILE (pt-ckpt, pt-check)",
			config);
	if (((!given || strcmp(config, given) != 0) && file_check_regular(config, e)) ||
		hf_config_read(&h->config, config, e) ||
		torch_open_as(&h->files, &container_safetensors, h->path, e))
		return -1;
	if (h->config.c.layers > h->files.n) /* before memory for them is allocated */
		return err_set(e, EX_DATAERR,
			"%s: the model has %lld layers, but %s has only %lld tensors",
			config, (long long)h->config.c.layers, h->path,
			(long long)h->files.n);
	if (model_init(&h->m, &h->config.c, 0, e)) {
		e->code = EX_DATAERR;
		return err_prefix(e, "%s: ", config);
	}
	if (check_options(h, config, e) || list_tensors(h, config, e) ||
		find_items(h, e) || check_all_used(h, e) || check_tied(h, e))
		return -1;
	locate_tensors(h);
	return 0;
}

/* Opens a Hugging Face model as a view. `probed`: the path of its tensors after `path`. */
static int open_hf(struct ckpt_view *v, const char *path, const void *probed,
	const struct open_options *how, struct err *e)
{
	struct str tensors = {0};
	scoped_str config = {0};
	struct hf *h = xcalloc(1, sizeof(*h));
	str_printf(&tensors, "%s%s", path, (const char *)probed);
	h->path = tensors.s;
	h->cached = -1;
	str_printf(&config, "%.*sconfig.json", directory_length(h->path), h->path);
	if (how->config && !file_exists(config.s)) {
		str_clear(&config);
		str_puts(&config, how->config);
	}
	int rc = load_model(h, config.s, how->config, e);
	if (!rc) {
		convert_init_view(v, &h->m, h->path);
		config.s[directory_length(config.s)] = '\0';
		hf_origin_read(*config.s ? config.s : ".", &v->origin);
	} else
		*v = (struct ckpt_view){0};
	v->read = read_hf;
	v->file_name = append_file_name;
	v->close = close_hf;
	v->with = h;
	if (rc)
		ckpt_view_close(v);
	return rc;
}

int convert_config_options(const char *path, struct str *out, struct err *e)
{
	struct hf_config h;
	struct model m;
	struct ckpt_view v;
	if (file_check_regular(path, e) || hf_config_read(&h, path, e))
		return -1;
	int64_t layers = h.c.layers;
	h.c.layers = min64(layers, 1); /* a hostile file may state millions */
	if (model_init(&m, &h.c, 0, e)) {
		e->code = EX_DATAERR;
		return err_prefix(e, "%s: ", path);
	}
	m.c.layers = layers;
	convert_init_view(&v, &m, path);
	str_add(out, v.config.s, v.config.len);
	ckpt_view_close(&v);
	model_release(&m);
	return 0;
}

const struct convert_format convert_huggingface = {
	.name = "huggingface",
	.help = "a directory with config.json and safetensors files",
	.probe = probe_hf,
	.is_name = is_hf_name,
	.open = open_hf,
	.save = hf_save,
};

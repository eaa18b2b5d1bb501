/* Writes a Hugging Face model: config.json and safetensors files. */
#include "foreign/foreign_internal.h"
#include "dialect/dialect.h"
#include "foreign/huggingface.h"

#include <errno.h>
#include <unistd.h>

struct saving {
	const struct ckpt_view *v;
	const struct model *m;
	const struct convert_opts *o;
	const char *directory;
	const char *files; /* directory with tokenizer files to copy; NULL: none */
	struct foreign *list;
	int n;
	char options_xxh3[ST_DIGITS + 1], param_hash[ST_DIGITS + 1];
	json_t *origin, *keys; /* see hf_origin.c */
	struct strs *written;  /* files written so far */
};

static int find_in_view(const struct saving *s, int tensor)
{
	return ckpt_view_find(s->v, s->m->tensors[tensor].name);
}

static int write_zeros(struct number_file *w, int64_t n, struct err *e)
{
	scoped_ptr float *x = xcalloc((size_t)n, sizeof(*x));
	return number_file_append(w, x, n, e);
}

/* Transposes our tensor to columns [first, first + outputs) of out[inputs][width]. */
static int transpose_part(const struct saving *s, int tensor, float *out, int64_t first,
	int64_t width, struct err *e)
{
	const struct tensor *t = &s->m->tensors[tensor];
	scoped_ptr float *x = ckpt_view_tensor(s->v, find_in_view(s, tensor), e);
	if (!x)
		return -1;
	for (int64_t k = 0; k < t->dims[0]; k++)
		for (int64_t i = 0; i < t->dims[1]; i++)
			out[i * width + first + k] = x[k * t->dims[1] + i];
	return 0;
}

/* Writes a tensor transposed, from all its parts. Holds it in memory whole. */
static int write_transposed(const struct saving *s, const struct foreign *f,
	struct number_file *w, struct err *e)
{
	int64_t n = f->dims[0] * f->dims[1], first = 0;
	scoped_ptr float *x = xmalloc((size_t)n * sizeof(*x));
	int rc = 0;
	for (int p = 0; p < f->n_parts && !rc; first += f->outputs[p++])
		rc = transpose_part(s, f->part[p], x, first, f->dims[1], e);
	return rc || number_file_append(w, x, n, e) ? -1 : 0;
}

/* Appends the elements of foreign tensor `number`. Implements st_write.write. */
static int write_tensor(void *arg, int number, struct number_file *w, struct err *e)
{
	const struct saving *s = arg;
	const struct foreign *f = &s->list[number];
	int rc = 0;
	if (f->transposed)
		return write_transposed(s, f, w, e);
	for (int p = 0; p < f->n_parts && !rc; p++) {
		bool is_zero = f->part[p] < 0;
		const struct ckpt_rows all = {CKPT_MODEL,
			is_zero ? 0 : find_in_view(s, f->part[p]), f->first,
			f->outputs[p]};
		rc = is_zero ? write_zeros(w, all.n, e)
			     : number_file_append_rows(w, s->v, &all, e);
	}
	return rc;
}

static struct st_source make_source(const struct saving *s, int i)
{
	const struct foreign *f = &s->list[i];
	return (struct st_source){f->name, f->ndim, f->dims, i};
}

/* Writes foreign tensors [from, to) to a file. */
static int save_file(
	const struct saving *s, int from, int to, const char *name, struct err *e)
{
	scoped_ptr struct st_source *list = xcalloc((size_t)(to - from), sizeof(*list));
	for (int i = from; i < to; i++)
		list[i - from] = make_source(s, i);
	qsort(list, (size_t)(to - from), sizeof(*list), compare_texts);
	const struct st_write w = {.list = list,
		.n = to - from,
		.dtype = s->o->dtype,
		.options_xxh3 = s->options_xxh3,
		.param_hash = s->param_hash,
		.write = write_tensor,
		.arg = (void *)s};
	scoped_ptr char *path = text_printf("%s/%s", s->directory, name);
	int rc = safetensors_write(path, &w, e);
	if (!rc)
		strs_add(s->written, path);
	return rc;
}

/* Returns the index after the last tensor of the shard that begins with tensor `from`. */
static int find_shard_end(const struct saving *s, int from)
{
	int64_t left = s->o->shard_bytes;
	int to = from;
	for (; to < s->n; to++) {
		const struct st_source t = make_source(s, to);
		left -= safetensors_bytes(&t, s->o->dtype);
		if (left < 0 && to > from)
			break;
	}
	return to;
}

static int count_shards(const struct saving *s)
{
	int n = 0;
	for (int from = 0; from < s->n; from = find_shard_end(s, from))
		n++;
	return n;
}

/* Writes model.safetensors.index.json, and appends its path to s->written. */
static int save_index(const struct saving *s, json_t *map, int64_t total, struct err *e)
{
	json_t *root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size",
		(json_int_t)total, "weight_map", map);
	scoped_ptr char *path = text_printf("%s/%s", s->directory, HF_INDEX_FILE);
	int rc = hf_json_write(path, root, JSON_SORT_KEYS, e);
	if (!rc)
		strs_add(s->written, path);
	return rc;
}

/* Writes n_files safetensors files, then the index that names the file of each tensor. */
static int save_shards(const struct saving *s, int n_files, struct err *e)
{
	json_auto_t *map = json_object();
	char name[64];
	int64_t total = 0;
	int rc = 0, number = 1;
	for (int from = 0, to; from < s->n && !rc; from = to, number++) {
		to = find_shard_end(s, from);
		snprintf(name, sizeof(name), "model-%05d-of-%05d.safetensors", number,
			n_files);
		rc = save_file(s, from, to, name, e);
		for (int i = from; i < to; i++) {
			const struct st_source t = make_source(s, i);
			json_object_set_new(map, t.name, json_string(name));
			total += safetensors_bytes(&t, s->o->dtype);
		}
	}
	return rc || save_index(s, map, total, e) ? -1 : 0;
}

/* Fails if the directory is not empty: readers would mix in files of another model. */
static int check_empty(const char *directory, struct err *e)
{
	scoped_dir *d = opendir(directory);
	int n = 0;
	if (!d && errno == ENOENT)
		return 0;
	if (!d)
		return err_set(e, EX_IOERR, "%s: %s", directory, strerror(errno));
	while (readdir(d))
		n++;
	return n <= 2 ? 0
		      : err_set(e, EX_USAGE,
				"%s: the directory is not empty; specify a new one",
				directory);
}

/* Removes the files written so far, and the directory unless it existed before. */
static void remove_files(const struct saving *s, bool existed)
{
	for (int64_t i = 0; i < s->written->n; i++)
		unlink(s->written->v[i]);
	if (!existed)
		rmdir(s->directory);
}

/* Replaces a text file of the directory, and appends its path to s->written. */
static int save_text(
	const struct saving *s, const char *name, const struct str *text, struct err *e)
{
	scoped_ptr char *path = text_printf("%s/%s", s->directory, name);
	int rc = file_replace(path, text, e);
	if (!rc)
		strs_add(s->written, path);
	return rc;
}

static int64_t get_positions(const struct saving *s)
{
	json_t *x = json_object_get(s->keys, HF_POSITIONS);
	return x ? json_integer_value(x) : s->m->c.context;
}

/* Returns the directory of tokenizer files, stored in `out` if need be; NULL: none. */
static const char *tokenizer_directory(const char *files, struct str *out)
{
	const char *slash = files ? strrchr(files, '/') : NULL;
	if (files && file_is_directory(files))
		return files;
	str_printf(
		out, "%.*s.", slash ? (int)(slash + 1 - files) : 0, files ? files : "");
	return files ? out->s : NULL;
}

/* Copies the vocabulary files that transformers and vLLM need next to the weights. */
static int copy_tokenizer(const struct saving *s, struct err *e)
{
	enum { MAX_BYTES = 1 << 28 };
	static const char *const names[] = {"tokenizer.json", "tokenizer.model",
		"vocab.json", "merges.txt", "tekken.json"};
	int rc = 0;
	for (size_t i = 0; s->files && i < ARRAY_LEN(names) && !rc; i++) {
		scoped_str text = {0};
		scoped_ptr char *path = text_printf("%s/%s", s->files, names[i]);
		if (file_exists(path))
			rc = file_check_regular(path, e) ||
			     file_read(path, MAX_BYTES, &text, e) ||
			     save_text(s, names[i], &text, e);
	}
	return rc;
}

static bool has_written(const struct saving *s, const char *name)
{
	for (int64_t i = 0; i < s->written->n; i++)
		if (text_ends(s->written->v[i], name))
			return true;
	return false;
}

static bool has_tokenizer(const struct saving *s)
{
	return has_written(s, "/tokenizer.json") || has_written(s, "/tokenizer.model") ||
	       has_written(s, "/vocab.json") || has_written(s, "/tekken.json");
}

/* Writes tokenizer_config.json. Without tokenizer_class, transformers would use the model's own,
 * which splits text differently. */
static int save_tokenizer_config(const struct saving *s, struct err *e)
{
	const struct tokenizer *t = s->v->tokenizer;
	scoped_str end = {0}, text = {0};
	json_auto_t *o = json_pack("{s:s, s:b, s:I}", "tokenizer_class",
		"PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0,
		"model_max_length", (json_int_t)get_positions(s));
	tokenizer_decode(t, tokenizer_end_of_text(t), &end);
	if (end.len)
		json_object_set_new(o, "eos_token", json_stringn(end.s, end.len));
	scoped_ptr char *dumped = json_dumps(o, JSON_INDENT(2));
	str_printf(&text, "%s\n", dumped);
	return save_text(s, "tokenizer_config.json", &text, e);
}

/* Writes the checkpoint's vocabulary. Only warns if tokenizer.json cannot express it. */
static int save_tokenizer(const struct saving *s, struct err *e)
{
	scoped_str text = {0};
	struct err why = {0};
	int rc = 0;
	if (!s->v->tokenizer || has_tokenizer(s))
		return 0;
	if (tokenizer_write_json(s->v->tokenizer, &text, &why))
		warn("%s: tokenizer.json is not written: %s", s->directory, why.msg);
	else
		rc = save_text(s, "tokenizer.json", &text, e) ||
		     (!has_written(s, "/tokenizer_config.json") &&
			     save_tokenizer_config(s, e));
	return rc;
}

/* Writes all files of the model; removes them after an error. */
static int save_all(const struct saving *s, int64_t vocab, struct err *e)
{
	bool existed = file_exists(s->directory);
	scoped_str config = {0};
	int n_files = s->o->shard_bytes ? count_shards(s) : 1;
	str_printf(&config, "%s/config.json", s->directory);
	int rc = file_make_directory(s->directory, e);
	if (!rc)
		rc = n_files > 1 ? save_shards(s, n_files, e)
				 : save_file(s, 0, s->n, HF_ONE_FILE, e);
	rc = rc || copy_tokenizer(s, e) ||
	     hf_origin_save(s->origin, s->directory, s->written, e) ||
	     save_tokenizer(s, e) ||
	     hf_config_write(s->m, vocab, s->o->dtype, config.s, s->keys, e);
	if (rc)
		remove_files(s, existed);
	return rc ? -1 : 0;
}

/* Hashes the model options that reading the new config.json will give. */
static int hash_written_options(struct saving *s, int64_t vocab, struct err *e)
{
	const struct model *m = s->m;
	struct model_config c = m->c;
	struct model read;
	c.vocab = vocab;
	c.vocab_multiple = vocab < m->padded_vocab ? hf_vocab_multiple(m) : 1;
	c.context = get_positions(s);
	c.virtual_degrees = NULL;
	c.bias = c.arch == ARCH_GPT2 ? BIAS_ALL : (int)model_bias(m);
	if (model_init(&read, &c, 0, e))
		return -1;
	hf_hash_options(&read, s->options_xxh3);
	model_release(&read);
	return 0;
}

int hf_save(const struct ckpt_view *v, const struct model *m, const char *path,
	const struct convert_opts *o, struct err *e)
{
	scoped_strs written = {0};
	scoped_str buffer = {0};
	struct saving s = {
		.v = v, .m = m, .o = o, .directory = path, .written = &written};
	int64_t vocab = o->padding ? m->padded_vocab : m->c.vocab;
	uint64_t hash;
	s.files = tokenizer_directory(o->tokenizer_path, &buffer);
	s.origin = hf_origin_collect(v, s.files);
	s.keys = hf_origin_keys(s.origin, m, v->tokenizer);
	int rc = check_empty(path, e) ||
		 hf_config_write(m, vocab, o->dtype, NULL, s.keys, e) ||
		 hash_written_options(&s, vocab, e) ||
		 convert_hash(v, o->dtype, &hash, e) ||
		 (s.n = foreign_list(hf_scheme(m), m, vocab, &s.list, e)) < 0;
	if (!rc) {
		snprintf(s.param_hash, sizeof(s.param_hash), "%016llx",
			(unsigned long long)hash);
		rc = save_all(&s, vocab, e);
	}
	json_decref(s.origin);
	json_decref(s.keys);
	free(s.list);
	return rc ? -1 : 0;
}

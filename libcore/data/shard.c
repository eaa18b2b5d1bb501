/* The attributes of a shard. The list in pt-shard(5) is generated from this table. */
#include "data/data.h"

const char *const split_names[N_SPLITS] = {"train", "val"};
const char *const document_paths[N_SPLITS] = {"/documents_train", "/documents_val"};
const char *const counted_paths[N_SPLITS] = {"/counted_train", "/counted_val"};

#define F(field) offsetof(struct shard_info, field)
const struct h5_field shard_fields[] = {
	{"format", H5_TEXT, F(format), false, "\"pt-shard\""},
	{"version", H5_I64, F(version), false,
		"version of the format: 2, or 3 if some tokens do not count or there are windows"},
	{"created_by", H5_TEXT, F(created_by), false, "the program that wrote the file"},
	{"index", H5_I64, F(index), false, "number of this file in its corpus, from 0"},
	{"count", H5_I64, F(count), false, "number of files in the corpus"},
	{"train_tokens", H5_I64, F(tokens[SPLIT_TRAIN]), false,
		"training tokens in this file"},
	{"val_tokens", H5_I64, F(tokens[SPLIT_VAL]), false,
		"validation tokens in this file"},
	{"train_xxh3", H5_U64, F(xxh3[SPLIT_TRAIN]), false,
		"XXH3 of the bytes of this file's training tokens"},
	{"val_xxh3", H5_U64, F(xxh3[SPLIT_VAL]), false,
		"XXH3 of the bytes of this file's validation tokens"},
	{"train_total", H5_I64, F(total[SPLIT_TRAIN]), false,
		"training tokens in all files of the corpus"},
	{"val_total", H5_I64, F(total[SPLIT_VAL]), false,
		"validation tokens in all files of the corpus"},
	{"source_bytes", H5_I64, F(source_bytes), false, "size of the text"},
	{"source_files", H5_I64, F(source_files), false, "number of text files"},
	{"source_xxh3", H5_U64, F(source_xxh3), false, "XXH3 of the text"},
	{"documents", H5_I64, F(documents), false, "number of documents in the text"},
	{"split", H5_TEXT, F(split), false,
		"how validation text was chosen: tail, document or hash"},
	{"val_fraction", H5_F64, F(val_fraction), false,
		"requested fraction of validation text"},
	{"seed", H5_I64, F(seed), false, "seed of the choice of documents"},
	{"window_tokens", H5_I64, F(window_tokens), true,
		"tokens per window, if documents are packed into windows"},
	{0},
};
#undef F

int shard_info_write(struct h5 *h, const struct shard_info *s, struct err *e)
{
	struct h5_field table[ARRAY_LEN(shard_fields)] = {0}, *to = table;
	for (const struct h5_field *f = shard_fields; f->name; f++)
		if (f->offset != offsetof(struct shard_info, window_tokens) ||
			s->window_tokens)
			*to++ = *f;
	return h5_fields_write(h, "/", table, s, e);
}

/* Fails if a file has more tokens than its corpus, or fewer and is the only file. */
static int check_tokens(
	const struct shard_info *s, enum split split, const char *name, struct err *e)
{
	int64_t in_file = s->tokens[split], in_corpus = s->total[split];
	if (in_file >= 0 && (s->count == 1 ? in_corpus == in_file : in_corpus >= in_file))
		return 0;
	return err_set(e, EX_DATAERR, "%s: %s_tokens is %lld, but %s_total is %lld", name,
		split_names[split], (long long)in_file, split_names[split],
		(long long)in_corpus);
}

/* Fails if the counts in a shard's header contradict each other. */
static int check_counts(const struct shard_info *s, const char *name, struct err *e)
{
	if (s->count < 1 || s->index < 0 || s->index >= s->count)
		return err_set(e, EX_DATAERR, "%s: invalid index: file %lld of %lld",
			name, (long long)s->index, (long long)s->count);
	if (s->source_bytes < 0 || s->source_files < 0 || s->documents < 0)
		return err_set(e, EX_DATAERR,
			"%s: invalid counts: %lld documents, %lld files, %lld bytes",
			name, (long long)s->documents, (long long)s->source_files,
			(long long)s->source_bytes);
	if (check_tokens(s, SPLIT_TRAIN, name, e) || check_tokens(s, SPLIT_VAL, name, e))
		return -1;
	for (int i = 0; i < N_SPLITS && s->window_tokens; i++)
		if (s->window_tokens < 0 ||
			(s->total[i] && (s->total[i] - 1) % s->window_tokens))
			return err_set(e, EX_DATAERR,
				"%s: has %lld %s tokens; with windows of %lld tokens, it must be a "
				"multiple of that, plus 1",
				name, (long long)s->total[i], split_names[i],
				(long long)s->window_tokens);
	return 0;
}

int shard_read(struct h5 *h, const char *name, struct shard_info *s, struct tokenizer *t,
	struct err *e)
{
	if (h5_check_format(h, "pt-shard", SHARD_VERSION, e) || h5_check_seal(h, e) ||
		h5_fields_read(h, "/", shard_fields, s, e) || check_counts(s, name, e))
		return -1;
	if (!tokenizer_read(t, h, e))
		return 0;
	bool named =
		!strncmp(e->msg, name, strlen(name)); /* h5 has added the file name */
	return named ? -1 : err_prefix(e, "%s: ", name);
}

void shard_info_release(struct shard_info *s)
{
	free((void *)s->format);
	free((void *)s->created_by);
	free((void *)s->split);
	*s = (struct shard_info){0};
}

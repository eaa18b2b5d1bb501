/* Writes a trained vocabulary as GPT-2, Hugging Face's tokenizers and tiktoken do. */
#include "base/file.h"
#include "vocab/vocab.h"

static const struct {
	const char *name;
	bpe_write_fn *make;
} kinds[] = {
	{"vocab.json", bpe_write_vocab},
	{"merges.txt", bpe_write_merges},
	{"tokenizer.json", bpe_write_json},
	{"vocab.tiktoken", bpe_write_ranks},
};
enum { N_KINDS = ARRAY_LEN(kinds) };

int train_write(const char *directory, bool overwrite, const struct vocab *v,
	const struct bpe_rules *r, struct strs *files, struct err *e)
{
	struct durable d[N_KINDS] = {0}, *all[N_KINDS];
	scoped_str name = {0}, text = {0};
	int rc = file_make_directory(directory, e);
	for (int i = 0; i < N_KINDS && !rc; i++) {
		str_clear(&name);
		str_clear(&text);
		str_printf(&name, "%s/%s", directory, kinds[i].name);
		all[i] = &d[i];
		if (!overwrite && file_exists(name.s))
			rc = err_set(e, EX_IOERR, "%s exists%s", name.s,
				advice_on(ADVICE_FILE_EXISTS));
		rc = rc || durable_begin(&d[i], name.s, e);
		if (rc)
			break;
		d[i].keeps = !overwrite;
		rc = kinds[i].make(&text, v, r, e) || durable_write_text(&d[i], &text, e);
		strs_add(files, name.s);
	}
	rc = rc || durable_commit_all(all, N_KINDS, e);
	for (int i = 0; i < N_KINDS && rc; i++)
		durable_abort(&d[i]);
	return rc ? -1 : 0;
}

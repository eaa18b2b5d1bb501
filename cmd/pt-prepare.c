/* pt-prepare: turn text into token shards. */
#include "base/file.h"
#include "base/options.h"
#include "data/data.h"

#include <string.h>
#include <unistd.h>

struct opts {
	const char *out, *separator;
	int tokenizer, split, decode;
	double val_fraction;
	int64_t seed, shard_size, spool_limit;
	bool info, verify, overwrite;
};

static const char *const splits[] = {"tail", "document", NULL};
static const char *const decodes[] = {"no", "train", "val", NULL};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Writing shards"},
	{OPT_STR, 'o', "out", "FILE", "-", O(out), .files = ".h5", .help =
		"Shard to write; - is standard output. With --shard-size the files are "
		"FILE-00000.h5, FILE-00001.h5, ..., where a .h5 at the end of FILE is left out. "
		"A pipe or a device gets what standard output would get."},
	{OPT_ENUM, 't', "tokenizer", NULL, "char", O(tokenizer),
		.values = tokenizer_names, .help =
		"byte: each byte is a token. char: each character that occurs in the text is a "
		"token; the text must be UTF-8."},
	{OPT_ENUM, 's', "split", NULL, "tail", O(split), .values = splits, .help =
		"How the validation split is chosen. tail: the last tokens. document: whole "
		"documents, at random."},
	{OPT_DOUBLE, 'f', "val-fraction", "X", "0.1", O(val_fraction), 0, 0, 0.999999, .help =
		"Fraction of the text in the validation split."},
	{OPT_STR, 0, "separator", "TEXT", NULL, O(separator), .help =
		"Text that separates documents; it stays at the end of each. Without it, each "
		"file is one document."},
	{OPT_INT, 0, "seed", "N", "1", O(seed), .help = "Random seed of --split document."},
	{OPT_SIZE, 0, "shard-size", "BYTES", "0", O(shard_size), .help =
		"Begin a new file after this many bytes of tokens. 0: one file."},
	{OPT_FLAG, 0, "overwrite", NULL, "no", O(overwrite), .help = "Replace files that exist."},
	OPT_SPOOL_LIMIT(O(spool_limit), 0),
	{OPT_GROUP, .name = "Inspecting shards"},
	{OPT_FLAG, 'i', "info", NULL, "no", O(info), .help =
		"Print the attributes of shards as key = value lines, without reading the "
		"tokens."},
	{OPT_FLAG, 0, "verify", NULL, "no", O(verify), .help =
		"Verify whole shards: the seal, the checksum of every block of tokens and of the "
		"tokens of each file, and that each token is in the vocabulary. All shards are "
		"checked, also after a failure."},
	{OPT_ENUM, 'd', "decode", NULL, "no", O(decode), .values = decodes, .help =
		"Decode the training or validation tokens of shards to text and print it."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"[options] -o FILE.h5 [TEXT ...]",
	"[options] [TEXT ...] > FILE.h5",
	"--info SHARD ...",
	"--verify SHARD ...",
	"--decode train|val SHARD ...",
	NULL,
};

static void generate(int kind, FILE *f)
{
	h5_fields_man(kind == 0 ? shard_fields : tokenizer_fields, f);
}

static const struct program program = {
	.name = "pt-prepare",
	.summary = "turn text into token shards for pt-train",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.one_rank = true,
	.operands = "",
	.versions = h5_versions,
	.generate = generate,
	.kinds = (const char *const[]){"shard", "tokenizer", NULL},
};

static int print_info(const struct strs *files, struct err *e)
{
	for (int64_t i = 0; i < files->n; i++) {
		struct corpus *c;
		if (corpus_open_file(&c, files->v[i], e))
			return -1;
		struct str text = {0};
		for (const struct h5_field *f = shard_fields; f->name; f++)
			h5_field_print(&text, f, corpus_info(c, 0));
		const struct tokenizer *t = corpus_tokenizer(c);
		printf("%s# %s\n%stokenizer = %s\nvocab = %lld\n", i ? "\n" : "",
			files->v[i], text.s, t->kind->name, (long long)t->vocab.n);
		str_free(&text);
		corpus_close(c);
	}
	return 0;
}

static int verify_one(const char *path, struct err *e)
{
	struct corpus *c;
	if (corpus_open_file(&c, path, e))
		return -1;
	int rc = corpus_verify(c, e);
	corpus_close(c);
	return rc;
}

/* Checks all files; the first failure determines the exit code. */
static int verify(const struct strs *files, struct err *e)
{
	for (int64_t i = 0; i < files->n; i++) {
		struct err mine = {0};
		if (!verify_one(files->v[i], &mine))
			printf("%s: ok\n", files->v[i]);
		else if (mine.code == EX_DATAERR)
			printf("%s: DAMAGED\n", files->v[i]);
		if (mine.code)
			err_keep_first(e, &mine);
	}
	return e->code ? -1 : 0;
}

static int prepare(const struct opts *o, const struct strs *texts, struct err *e)
{
	struct prepare p = {
		.tokenizer = tokenizer_names[o->tokenizer],
		.separator = o->separator,
		.by_document = o->split == 1,
		.val_fraction = o->val_fraction,
		.seed = o->seed,
		.shard_bytes = o->shard_size,
		.out = o->out ? o->out : "",
		.overwrite = o->overwrite,
	};
	struct prepared done;
	if (!strcmp(p.out, "/dev/stdout")) /* it must not be replaced by a rename */
		p.out = "-";
	if (!strcmp(p.out, "-") && isatty(STDOUT_FILENO))
		return err_set(e, EX_USAGE,
			"standard output is a terminal, and a shard is not text; give --out");
	if (!texts->n && isatty(STDIN_FILENO))
		return err_set(e, EX_USAGE,
			"no text: give files, or - to read from the terminal");
	if (prepare_run(&p, texts, &done, e))
		return -1;
	char bytes[NUM_TEXT];
	info("%s of text in %lld document%s, a vocabulary of %lld (%s): "
	     "%lld training tokens and %lld validation tokens of %zu byte%s",
		text_bytes(bytes, (double)done.info.source_bytes),
		(long long)done.info.documents, plural(done.info.documents),
		(long long)done.vocab_size, p.tokenizer,
		(long long)done.info.total[SPLIT_TRAIN],
		(long long)done.info.total[SPLIT_VAL], done.token_bytes,
		plural(done.token_bytes));
	for (int64_t i = 0; i < done.files.n; i++)
		info("wrote %s", done.files.v[i]);
	strs_free(&done.files);
	return 0;
}

static int check(const struct opts *o, int64_t n_operands, struct err *e)
{
	int looks = o->info + o->verify + (o->decode != 0);
	if (looks > 1)
		return err_set(e, EX_USAGE, "give one of --info, --verify and --decode");
	if (looks && !n_operands)
		return err_set(e, EX_USAGE, "no shards given");
	return 0;
}

static const char *const advice[N_ADVICE] = {
	[ADVICE_FILE_EXISTS] = "--overwrite replaces it",
	[ADVICE_NOT_UTF8] = "--tokenizer byte accepts any file",
	SPOOL_ADVICE,
	[ADVICE_EMPTY_SPLIT] =
		"use --split tail, another --val-fraction or another --seed",
};

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	struct strs operands = {0};
	log_name(program.name);
	advice_set(advice);
	int n = opts_parse(&program, &o, argc, argv, &e);
	if (n < 0 || check(&o, n, &e))
		return err_say(&e);
	file_spool_limit(o.spool_limit);
	for (int i = 0; i < n; i++)
		strs_add(&operands, argv[i]);
	int rc = o.info	    ? print_info(&operands, &e)
		 : o.verify ? verify(&operands, &e)
		 : o.decode ? prepare_decode(
				      &operands, (enum split)(o.decode - 1), stdout, &e)
			    : prepare(&o, &operands, &e);
	if (rc)
		return err_say(&e);
	stdout_close();
	return 0;
}

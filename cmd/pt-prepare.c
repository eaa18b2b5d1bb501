/* pt-prepare: turn text into token shards. */
#include "base/launch.h"
#include "base/file.h"
#include "base/utf8.h"
#include "comm/comm.h"
#include "options/options.h"
#include "prepare/prepare.h"
#include "prepare/token_file.h"
#include "prepare/train_vocab.h"

#include <unistd.h>

struct opts {
	struct prepare p; /* see prepare_options() */
	const char *vocab_from, *vocab_out;
	int tokenizer, decode, format, to;
	int64_t spool_limit, threads, vocab, end_token, train_bpe, min_count, show,
		show_from;
	struct strs val_files, mask_files, special_tokens;
	struct opt_given given;
	bool info, verify, decompress, end_of_text;
};

static const char *const decodes[] = {"no", "train", "val", NULL};
static const char *const formats[] = {FORMAT_WORDS, TOKENS_FROM_WORDS NULL};
enum { FORMAT_TOKENS = FORMAT_JSONL + 1 }; /* the first format of tokens */
static const char *const to_words[] = {TOKENS_TO_WORDS NULL};

#define O(field) offsetof(struct opts, field)
/* clang-format off */
static const struct opt options[] = {
	{OPT_GROUP, .name = "Writing shards"},
	{OPT_STR, 'o', "out", "FILE", "-", O(p.out), .files = ".h5", .help =
		"Shard to write, or - for standard output. With --shard-size the files are "
		"FILE-00000.h5, FILE-00001.h5, ..., without the .h5 at the end of FILE; if one "
		"file is enough, its name is FILE. Pipes and devices are written like standard "
		"output."},
	{OPT_ENUM, 't', "tokenizer", NULL, "char", O(tokenizer),
		.values = tokenizer_names, .help =
		"Tokenizer. byte: each byte is a token. char: each character that occurs in the "
		"text is a token; the text must be UTF-8. bpe: byte-pair encoding with "
		"--vocab-files, which also determine the pattern. gpt2, cl100k, o200k, llama3, "
		"qwen2: byte-pair encoding with the pattern and the special tokens of these "
		"models."},
	{OPT_STR, 0, "vocab-files", "PATH", NULL, O(p.tokenizer.vocab_files), .files = "", .help =
		"Vocabulary of byte-pair encoding: a file, or a directory with a vocabulary. The "
		"format is detected: tokenizer.json, vocab.bpe with encoder.json, merges.txt "
		"with vocab.json, a rank file of tiktoken, or Mistral's tekken.json."},
	{OPT_STR, 0, "pattern", "PATTERN", NULL, O(p.tokenizer.pattern), .help =
		"Pattern that splits text into words before byte-pair encoding: gpt2, cl100k, "
		"o200k, llama3, qwen2, tekken, or a regular expression of PCRE2. Default: the "
		"pattern of the model or of the vocabulary."},
	{OPT_FLAG, 0, "allow-special", NULL, "no", O(p.tokenizer.special), .help =
		"Encode the text of a special token, such as <|endoftext|>, as this token, not "
		"as the tokens of its characters."},
	{OPT_FLAG, 0, "end-of-text", NULL, "yes", O(end_of_text), .help =
		"End each document with the end-of-text token, if the tokenizer has one, such as "
		"GPT-2's <|endoftext|>."},
	{OPT_ENUM, 's', "split", NULL, "tail", O(p.split_by), .values = OPT_WORDS(SPLIT_WORDS),
		.help =
		"Select how the validation split is chosen. tail: the last tokens. document: "
		"whole documents, at random by their index. hash: whole documents, at random by "
		"their text; equal documents are in the same split, and the choice does not "
		"depend on other documents."},
	{OPT_DOUBLE, 'f', "val-fraction", "X", "0.1", O(p.val_fraction), 0, 0, 0.999999, .help =
		"Fraction of the text in the validation split."},
	{OPT_INT, 0, "seed", "N", "1", O(p.seed), .help =
		"Random seed of --split document, --split hash and --shuffle."},
	{OPT_SIZE, 0, "shard-size", "BYTES", "0", O(p.shard_bytes), .help =
		"Begin a new file after this many bytes of tokens (0: one file)."},
	{OPT_FLAG, 0, "overwrite", NULL, "no", O(p.overwrite), .help =
		"Replace existing files, except inputs."},
	{OPT_GROUP, .name = "Reading documents"},
	{OPT_ENUM, 0, "format", NULL, "auto", O(format), .values = formats,
		.help =
		"Format of the inputs. text: a file is a document, or several documents with "
		"--separator. jsonl: each line is a JSON object with a document in one of its "
		"fields. auto: jsonl for names that end in .jsonl, .ndjson or .json, or in one "
		"of these and .gz or .zst; auto also recognizes tables (Parquet, Arrow) by their "
		"content. The other values are token files, which auto also recognizes: shards, "
		"and files of llm.c, Megatron-LM and nanoGPT."},
	{OPT_STR, 0, "field", "NAME", "text", O(p.field), .help =
		"The field of JSONL, or the column of a table, that holds the document. For a "
		"--record of two fields, give NAME,NAME."},
	{OPT_STR, 0, "separator", "TEXT", NULL, O(p.separator), .help =
		"Text that separates documents, and stays at the end of each document. Without "
		"this option, each file is one document. The separator is also appended to "
		"documents of JSONL."},
	{OPT_FLAG, 0, "strict", NULL, "no", O(p.strict), .help =
		"Fail at the first line of JSONL that is not a JSON object with the field, or at "
		"the first row of a table without a document. Without this option, such lines "
		"and rows are counted and skipped."},
	{OPT_FLAG, 0, "decompress", NULL, "yes", O(decompress), .help =
		"Decompress files in gzip or zstd format."},
	OPT_SPOOL_LIMIT(O(spool_limit), 0),
	{OPT_GROUP, .name = "Tokens that count"},
	{OPT_ENUM, 0, "record", NULL, "text", O(p.record), .values = OPT_WORDS(RECORD_WORDS), .help =
		"Content of a line of JSONL or a row of a table, by the names of its fields. "
		"text: a text; all tokens count. prompt: prompt,completion; the completion "
		"counts. messages: a conversation, as a list of objects with role and content, "
		"or from and value. spans: text,spans; spans is a list of [begin, end] in "
		"characters of the text, and these spans count. ids: input_ids,labels; a token "
		"with label -100 does not count (with --field input_ids, all tokens count). mask: "
		"input_ids,mask; the mask has 1 for each token that counts, else 0."},
	{OPT_STR, 0, "chat-template", "NAME", NULL, O(p.chat_template), .files = "", .help =
		"Chat template that lays out conversations: chatml, llama3, llama3.1, qwen, "
		"qwen3, qwen3-2507, a file, or a directory of Hugging Face. Without --record, "
		"this option implies --record messages. With --record prompt, the prompt is a "
		"turn of the user and the completion is a turn of the assistant."},
	{OPT_ENUM, 0, "count", NULL, "assistant", O(p.count), .values = OPT_WORDS(COUNT_WORDS), .help =
		"Select the tokens of a conversation that count in the loss. assistant: each "
		"assistant turn and the text that ends this turn. last: only the last such turn. "
		"all: all tokens except the first. none: no tokens. With --record prompt, "
		"assistant and last both count the completion."},
	{OPT_SIZE, 0, "window", "N", "0", O(p.window), 0, 0, 0x1p24, .help =
		"Pack whole documents into windows of N tokens; pt-train --context N trains on "
		"these windows. The rest of a window is padding, which does not count. 0: no "
		"windows."},
	{OPT_ENUM, 0, "too-long", NULL, "cut", O(p.too_long), .values = OPT_WORDS(LONG_WORDS), .help =
		"Select what happens to a document longer than a window. cut: the end is cut "
		"off. split: the document is split into several documents. drop: the document is "
		"dropped."},
	{OPT_GROUP, .name = "Choosing documents"},
	{OPT_SIZE, 0, "min-bytes", "BYTES", "0", O(p.min_bytes), .help =
		"Drop documents of fewer bytes."},
	{OPT_SIZE, 0, "max-bytes", "BYTES", "0", O(p.max_bytes), .help =
		"Drop documents of more bytes (0: drop no document)."},
	{OPT_LIST, 0, "keep", "REGEX", NULL, O(p.keep), .help =
		"Keep only documents that match this regular expression of PCRE2. If the option "
		"is given several times, a document must match all expressions."},
	{OPT_LIST, 0, "drop", "REGEX", NULL, O(p.drop), .help =
		"Drop documents that match this regular expression."},
	{OPT_FLAG, 0, "dedup", NULL, "no", O(p.dedup), .help =
		"Keep only the first of the documents with the same text. Texts are compared by "
		"a 128-bit hash."},
	{OPT_FLAG, 0, "shuffle", NULL, "no", O(p.shuffle), .help =
		"Write the documents in a random order that depends on --seed. The documents are "
		"sorted in temporary files, not in memory."},
	{OPT_LIST, 0, "source", "NAME=WEIGHT:PATH", NULL, O(p.sources), .help =
		"Mix sources: the training tokens are divided among sources in proportion to "
		"their weights (from 1e-9 to 1e9), exact to one token. A source may be given "
		"several times with more paths."},
	{OPT_SIZE, 0, "mix-tokens", "N", "0", O(p.mix_tokens), 0, 0, 0x1p50, .help =
		"Number of training tokens of all sources (with --split tail: of both splits). A "
		"source that has too few tokens is repeated. 0: as many tokens as possible "
		"without repetition."},
	{OPT_GROUP, .name = "Parallel and interrupted work"},
	{OPT_INT, 0, "threads", "N", "0", O(threads), 0, 0, 1024, .help =
		"Threads per rank (0: one thread per processor that the rank may use). The "
		"output does not depend on this number."},
	{OPT_STR, 0, "work", "DIRECTORY", NULL, O(p.work), .files = "/", .help =
		"Keep the work files in this directory until the shards are complete. If the "
		"program is killed and started again, it resumes from these files. Several ranks "
		"need a directory that all of them can access. Default: temporary files in "
		"TMPDIR."},
	{OPT_GROUP, .name = "Tokens of other programs"},
	{OPT_ENUM, 0, "to", NULL, "shard", O(to), .values = to_words, .help =
		"Format to write. Formats other than shard are written as NAME_train.bin and "
		"NAME_val.bin, where --out is NAME, NAME.bin, or a directory that ends with /. "
		"With --shard-size the names are NAME_train_00000.bin and so on. megatron also "
		"writes .idx files. For shards that record which tokens count, .mask files with "
		"one byte per token are written next to the .bin files."},
	{OPT_LIST, 0, "val-file", "FILE", NULL, O(val_files), .files = ".bin", .help =
		"A token file with validation tokens; the other files have training tokens."},
	{OPT_LIST, 0, "mask-file", "FILE", NULL, O(mask_files), .files = "", .help =
		"Mask of a token file; a token counts if its value in the mask is not 0. A mask "
		"has one byte per token, or is a file of Megatron-LM or llm.c. Give one mask per "
		"token file, in the same order, with the masks of --val-file last."},
	{OPT_STR, 0, "vocab-from", "SHARD", NULL, O(vocab_from), .files = ".h5", .help =
		"Shard with the tokenizer of token files. Without this option and --vocab-files, "
		"tokens are numbers that cannot be decoded."},
	{OPT_INT, 0, "vocab", "N", "0", O(vocab), 0, 0, MAX_VOCAB, .help =
		"Vocabulary size of token files, and of --record ids and mask. 0: the size of "
		"--vocab-from, or the largest token plus 1."},
	{OPT_INT, 0, "end-token", "ID", "-1", O(end_token), 0, -1, MAX_VOCAB, .help =
		"Token that ends a document in token files without an index. -1: the tokenizer's "
		"end-of-text token, if it has one."},
	{OPT_GROUP, .name = "Training a vocabulary"},
	{OPT_INT, 0, "train-bpe", "N", "0", O(train_bpe), 0, 0, MAX_VOCAB,
		.help =
		"Train a vocabulary of byte-pair encoding with N tokens on the text, which "
		"--pattern (gpt2 by default) splits into words. <|endoftext|> follows the "
		"merges."},
	{OPT_STR, 0, "vocab-out", "DIRECTORY", NULL, O(vocab_out), .files = "/",
		.help =
		"Write the trained vocabulary to this directory: vocab.json and merges.txt, "
		"tokenizer.json, vocab.tiktoken."},
	{OPT_LIST, 0, "special-token", "TEXT", NULL, O(special_tokens), .help =
		"Special token of the trained vocabulary, such as a marker of a --chat-template. "
		"The special tokens are among the N tokens, and follow <|endoftext|>."},
	{OPT_INT, 0, "min-count", "N", "2", O(min_count), 0, 1, 0x1p62, .help =
		"Do not merge pairs that occur less often."},
	{OPT_GROUP, .name = "Inspecting shards"},
	{OPT_FLAG, 'i', "info", NULL, "no", O(info), .help =
		"Print the attributes of shards as key = value lines, without reading the "
		"tokens."},
	{OPT_FLAG, 0, "verify", NULL, "no", O(verify), .help =
		"Verify whole shards: the seal, the checksums of every block of tokens and of the "
		"tokens of each file, the values of all tokens (which must be in the vocabulary), "
		"and the beginnings of documents. All shards are checked, even after a failure."},
	{OPT_ENUM, 'd', "decode", NULL, "no", O(decode), .values = decodes, .help =
		"Decode the training or validation tokens of shards to text and print it."},
	{OPT_INT, 0, "show", "N", "0", O(show), 0, 0, 0x1p50, .help =
		"Print N documents of shards in stored order. With --window, this order is not "
		"the order of the text, and the padding of a window is listed as a document. "
		"Tokens that count are between ⟦ and ⟧, or green on a color terminal. On a "
		"terminal, the middle of long texts is left out."},
	{OPT_INT, 0, "show-from", "N", "0", O(show_from), 0, 0, 0x1p50, .help =
		"Index of the first document that --show prints, counted from 0."},
	{OPT_END},
};
/* clang-format on */

static const char *const synopsis[] = {
	"[options] -o FILE.h5 [TEXT ...]",
	"[options] [TEXT ...] > FILE.h5",
	"[options] --to llmc|megatron|nanogpt -o NAME TEXT|SHARD|TOKENS ...",
	"--train-bpe N --vocab-out DIRECTORY [TEXT ...]",
	"--info SHARD ...",
	"--verify SHARD ...",
	"--decode train|val SHARD ...",
	"--show N SHARD ...",
	NULL,
};

static void generate_man(int kind, FILE *f)
{
	static const struct h5_field *const tables[] = {
		shard_fields, tokenizer_fields, bpe_fields};
	h5_fields_print_man(tables[kind], f);
}

static const struct program program = {
	.name = "pt-prepare",
	.summary = "turn text into token shards for pt-train",
	.synopsis = synopsis,
	.opts = options,
	.opts_bytes = sizeof(struct opts),
	.given = offsetof(struct opts, given),
	.operands = "",
	.versions = h5_versions,
	.generate = generate_man,
	.kinds = (const char *const[]){"shard", "tokenizer", "bpe", NULL},
};

/* Prints the facts of each shard, and its tokenizer. */
static int print_info(const struct strs *files, struct err *e)
{
	for (int64_t i = 0; i < files->n; i++) {
		struct corpus *c;
		if (corpus_open_file(&c, files->v[i], e))
			return -1;
		scoped_str text = {0};
		for (const struct h5_field *f = shard_fields; f->name; f++)
			if (!f->optional || corpus_info(c, 0)->window_tokens)
				h5_field_append(&text, f, corpus_info(c, 0));
		const struct tokenizer *t = corpus_tokenizer(c);
		printf("%s# %s\n%stokenizer = %s\nvocab = %lld\n", i ? "\n" : "",
			files->v[i], text_printable(text.s), t->kind->name,
			(long long)t->vocab.n);
		str_clear(&text);
		if (t->chat_template)
			str_printf(&text, "chat_template = %.40s\n",
				*t->chat_template == '{' ? "of a file"
							 : t->chat_template);
		printf("%s", text_printable(text.s));
		corpus_close(c);
	}
	return 0;
}

/* Reads a shard whole and checks its hashes and documents. Returns -1 with *e set. */
static int verify_shard(const char *path, struct err *e)
{
	const struct strs one = {.v = (char *[]){(char *)path}, .n = 1};
	struct corpus *c;
	if (corpus_open(&c, &one, CORPUS_SOME | CORPUS_DOCUMENTS_IF, e))
		return -1;
	int rc = corpus_verify(c, e);
	corpus_close(c);
	return rc;
}

/* Verifies all shards, and prints a verdict per shard. The first failure determines the exit
 * code. */
static int verify_shards(const struct strs *files, struct err *e)
{
	for (int64_t i = 0; i < files->n; i++) {
		struct err error = {0};
		if (!verify_shard(files->v[i], &error))
			printf("%s: ok\n", files->v[i]);
		else if (error.code == EX_DATAERR)
			printf("%s: DAMAGED\n", files->v[i]);
		else
			printf("%s: cannot be read\n", files->v[i]);
		if (error.code)
			err_print_keep_first(e, &error);
	}
	return e->code ? -1 : 0;
}

/* Returns --threads, or a rank's share of the processors of its host. */
static int count_threads(const struct opts *o)
{
	const struct comm_place *p = comm_place();
	return o->threads ? (int)o->threads
			  : (int)max64(1, p->processors / p->local_size);
}

/* Prints how many documents were dropped, and why. */
static void print_dropped(const struct prepared *d)
{
	const struct {
		int64_t n;
		const char *why;
	} all[] = {PREPARED_DROPPED(d)};
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i].n)
			info("%lld of %lld documents dropped: %s", (long long)all[i].n,
				(long long)d->n_read, all[i].why);
}

/* Prints how many tokens count and how many are padding. */
static void print_counted(const struct prepared *d, const struct prepare *p)
{
	static const char *const done[] = {"cut", "split", "dropped"};
	const int64_t *total = d->info.total;
	double n_tokens = (double)max64(1, total[SPLIT_TRAIN] + total[SPLIT_VAL]);
	if (d->n_windows)
		info("%lld window%s of %lld tokens, %.2f%% padding",
			(long long)d->n_windows, plural(d->n_windows),
			(long long)d->info.window_tokens,
			100 * (double)d->n_padding / n_tokens);
	if (d->n_too_long)
		info("%lld document%s longer than a window, the longest of %lld tokens, "
		     "%s %s (--too-long)",
			(long long)d->n_too_long, plural(d->n_too_long),
			(long long)d->longest, d->n_too_long == 1 ? "was" : "were",
			done[p->too_long]);
	if (d->n_counted >= 0)
		info("%lld token%s (%.1f%%)", (long long)d->n_counted,
			d->n_counted == 1 ? " counts" : "s count",
			100 * (double)d->n_counted / n_tokens);
	if (!d->n_counted && d->info.documents && p->count != COUNT_NONE)
		warn("no token counts: there is nothing to train on%s",
			d->n_too_long && p->too_long == LONG_CUT
				? "; a larger --window avoids cutting documents"
				: "");
}

/* Returns the options of a preparation, with the defaults that depend on other options. */
static struct prepare prepare_options(const struct opts *o, struct comm *world)
{
	struct prepare p = o->p;
	p.tokenizer.name = tokenizer_names[o->tokenizer];
	p.no_end_of_text = !o->end_of_text;
	if (p.chat_template && p.record == RECORD_TEXT)
		p.record = RECORD_MESSAGES;
	if (p.record != RECORD_TEXT && !opts_given(&program, o, "field"))
		p.field = NULL;
	p.ids_vocab = record_has_ids(p.record) ? o->vocab : 0;
	p.format = o->format < FORMAT_TOKENS ? o->format : FORMAT_AUTO;
	p.as_is = !o->decompress;
	p.threads = count_threads(o);
	p.comm = world;
	if (!p.out)
		p.out = "";
	if (!strcmp(p.out, "/dev/stdout")) /* a rename must not replace it */
		p.out = "-";
	return p;
}

/* Rejects a terminal as output of a shard, or as input without "-". */
static int check_terminals(bool writes, const struct strs *texts, struct err *e)
{
	if (writes && isatty(STDOUT_FILENO))
		return err_set(e, EX_USAGE,
			"standard output: a shard is not text for a terminal; give --out");
	if (!texts->n && isatty(STDIN_FILENO))
		return err_set(e, EX_USAGE,
			"no text is given; give files, or - to read from the terminal");
	return 0;
}

/* Rejects options that need text, if the input is files of tokens. */
static int reject_text_options(const struct opts *o, struct err *e)
{
	const struct {
		bool given;
		const char *name;
	} needs_text[] = {{o->p.split_by != SPLIT_BY_TAIL, "split"},
		{o->p.shuffle, "shuffle"}, {o->p.dedup, "dedup"},
		{o->p.min_bytes || o->p.max_bytes, "min-bytes, --max-bytes"},
		{o->p.keep.n || o->p.drop.n, "keep, --drop"}, {o->p.sources.n, "source"},
		{o->p.separator, "separator"}, {o->p.strict, "strict"},
		{o->p.record != RECORD_TEXT, "record"},
		{o->p.chat_template, "chat-template"}, {o->p.window, "window"},
		{o->p.work, "work"}};
	for (size_t i = 0; i < ARRAY_LEN(needs_text); i++)
		if (needs_text[i].given)
			return err_set(e, EX_USAGE,
				"--%s applies to text and JSONL, not to files of tokens; "
				"EXAMPLES in pt-prepare(1) converts tokens to JSONL",
				needs_text[i].name);
	return 0;
}

/* Prints a note on each option that has no effect together with the others. */
static void note_idle_options(const struct opts *o, bool tokens)
{
	bool is_text = !tokens && !o->train_bpe,
	     is_plain_ids = tokens && !o->p.tokenizer.vocab_files;
	bool is_random = o->p.split_by != SPLIT_BY_TAIL || o->p.shuffle;
	const struct opt_idle rows[] = {
		{is_plain_ids, "tokenizer pattern allow-special",
			"tokens are converted as they are, without splitting text"},
		{tokens, "field end-of-text decompress threads",
			"the input is tokens, not text"},
		{!tokens && !o->to, "end-token", "text has its own document ends"},
		{o->p.record == RECORD_TEXT && !o->p.chat_template, "count",
			"without --record, all of a text counts"},
		{!o->p.window, "too-long", "without --window, no document is too long"},
		{o->p.record != RECORD_TEXT || o->p.chat_template, "separator",
			"records have their own ends"},
		{o->format == FORMAT_TEXT, "field strict", "--format text has no fields"},
		{is_text && !is_random, "seed",
			"nothing is random without --split document or hash, or --shuffle"},
		{!o->train_bpe, "min-count special-token",
			"no vocabulary is trained without --train-bpe"},
		{o->train_bpe, "val-fraction split shard-size seed shuffle",
			"--train-bpe writes no shard"},
	};
	opts_note_idle(&program, o, rows, ARRAY_LEN(rows));
}

/* Writes shards, or the token files of another program, and prints their sizes and names. */
static int prepare_shards(
	const struct opts *o, const struct strs *texts, struct comm *world, struct err *e)
{
	struct prepare p = prepare_options(o, world);
	struct prepared done;
	if (check_terminals(!strcmp(p.out, "-"), texts, e))
		return -1;
	struct token_convert c = {&p, formats[o->format], to_words[o->to], &o->val_files,
		&o->mask_files, o->vocab_from, o->vocab, o->end_token};
	int tokens = token_convert_accepts(&c, texts, e);
	bool is_text_to_shards = !tokens && !o->to && !o->val_files.n &&
				 !o->mask_files.n && (!o->vocab || p.ids_vocab) &&
				 !o->vocab_from;
	if (tokens >= 0 && !is_text_to_shards && world->size > 1)
		tokens = err_set(e, EX_USAGE,
			"token files: several ranks are not supported; use one rank");
	if (tokens >= 0 && outputs_check(&c, tokens, texts, e))
		tokens = -1;
	if (tokens > 0 && reject_text_options(o, e))
		tokens = -1;
	if (tokens >= 0)
		note_idle_options(o, tokens > 0);
	if (tokens < 0 || (is_text_to_shards ? prepare_run(&p, texts, &done, e)
					     : token_convert_run(&c, texts, &done, e)))
		return -1;
	if (world->rank)
		return 0;
	char bytes[NUM_TEXT];
	print_dropped(&done);
	info("%s of %s in %lld document%s, a vocabulary of %lld (%s): "
	     "%lld training tokens and %lld validation tokens of %zu byte%s",
		text_bytes(bytes, (double)done.info.source_bytes),
		tokens ? "tokens" : "text", (long long)done.info.documents,
		plural(done.info.documents), (long long)done.vocab_size,
		tokens || p.ids_vocab ? "given" : p.tokenizer.name,
		(long long)done.info.total[SPLIT_TRAIN],
		(long long)done.info.total[SPLIT_VAL], done.token_bytes,
		plural(done.token_bytes));
	print_counted(&done, &p);
	for (int64_t i = 0; i < done.files.n; i++)
		info("wrote %s", done.files.v[i]);
	strs_free(&done.files);
	return 0;
}

/* Trains a vocabulary, writes its files, and prints their names. */
static int train_vocabulary(
	const struct opts *o, const struct strs *texts, struct comm *world, struct err *e)
{
	struct prepare p = prepare_options(o, world);
	const struct train_vocab c = {
		.p = &p,
		.config = {.vocab = o->train_bpe,
			.min_count = o->min_count,
			.pattern =
				o->p.tokenizer.pattern ? o->p.tokenizer.pattern : "gpt2",
			.end_of_text = "<|endoftext|>",
			.special = o->special_tokens},
		.out = o->vocab_out,
	};
	struct trained_vocab done;
	char bytes[NUM_TEXT], words[NUM_TEXT];
	if (world->size > 1)
		return err_set(e, EX_USAGE,
			"--train-bpe: several ranks are not supported; use one rank");
	if (o->p.dedup || o->p.sources.n)
		return err_set(
			e, EX_USAGE, "--train-bpe does not support --dedup and --source");
	if (check_terminals(false, texts, e))
		return -1;
	note_idle_options(o, false);
	int rc = train_vocab_run(&c, texts, &done, e);
	if (!rc && done.n_broken)
		warn("%lld broken line%s skipped", (long long)done.n_broken,
			plural(done.n_broken));
	if (!rc)
		info("%s of text in %lld document%s (%lld dropped), %s different words, "
		     "a vocabulary of %lld tokens",
			text_bytes(bytes, (double)done.n_text_bytes),
			(long long)done.n_documents, plural(done.n_documents),
			(long long)done.n_dropped,
			text_count(words, (double)done.n_words),
			(long long)done.n_tokens);
	if (!rc && done.n_tokens < o->train_bpe)
		warn("no other pair occurs %lld times in the text: the vocabulary has %lld tokens instead "
		     "of %lld",
			(long long)o->min_count, (long long)done.n_tokens,
			(long long)o->train_bpe);
	for (int64_t i = 0; i < done.files.n && !rc; i++)
		info("wrote %s", done.files.v[i]);
	strs_free(&done.files);
	return rc;
}

/* Rejects options that contradict each other. n_operands: number of files. */
static int check_options(const struct opts *o, int64_t n_operands, struct err *e)
{
	int n_inspections = o->info + o->verify + (o->decode != 0) + (o->show > 0);
	if (n_inspections && launch_size_variable())
		return err_set(e, EX_USAGE,
			"--info, --verify, --decode and --show: several ranks "
			"are not supported; use one rank");
	if (n_inspections > 1)
		return err_set(
			e, EX_USAGE, "give one of --info, --verify, --decode and --show");
	if (o->p.mix_tokens && !o->p.sources.n)
		return err_set(e, EX_USAGE, "--mix-tokens needs --source");
	if (n_inspections && !n_operands)
		return err_set(e, EX_USAGE, "no shard is given; give at least one");
	if ((o->train_bpe != 0) != (o->vocab_out != NULL))
		return err_set(e, EX_USAGE,
			"--train-bpe and --vocab-out must be given together");
	return 0;
}

static const char *const advice[N_ADVICE] = {
	[ADVICE_FILE_EXISTS] = "--overwrite replaces it",
	[ADVICE_NOT_UTF8] = "--tokenizer byte accepts any file",
	[ADVICE_TOKENS] =
		"name token files one by one, with no text files among them, or "
		"give --format text to read their bytes as text",
	[ADVICE_TOKENIZER] =
		"tokenize the text with the tokenizer's own program, and give pt-prepare "
		"the tokens in a file of nanoGPT, llm.c or Megatron-LM",
	[ADVICE_PATTERN] = "give --tokenizer gpt2, or another model's, or --pattern",
	[ADVICE_VOCAB_FILES] = "give --vocab-files",
	SPOOL_ADVICE,
	[ADVICE_EMPTY_SPLIT] =
		"use --split tail, another --val-fraction or another --seed",
	[ADVICE_WORK_DIRECTORY] = "give --work",
	[ADVICE_DOCUMENTS] = "use a smaller --shard-size",
};

int main(int argc, char **argv)
{
	struct opts o;
	struct err e = {0};
	struct strs operands = {0};
	log_name(program.name);
	advice_set(advice);
	int n = opts_parse(&program, &o, argc, argv, &e);
	if (n < 0 || check_options(&o, n, &e))
		return err_print(&e);
	file_spool_limit(o.spool_limit);
	struct comm *world = comm_open();
	log_set_rank(world->rank, world->size, false);
	comm_watchdog_pause(true); /* a rank may wait long for the others */
	for (int i = 0; i < n; i++)
		strs_add(&operands, argv[i]);
	int rc = o.info	    ? print_info(&operands, &e)
		 : o.verify ? verify_shards(&operands, &e)
		 : o.decode ? prepare_decode(
				      &operands, (enum split)(o.decode - 1), stdout, &e)
		 : o.show      ? prepare_show(&operands, o.show_from, o.show, stdout, &e)
		 : o.train_bpe ? train_vocabulary(&o, &operands, world, &e)
			       : prepare_shards(&o, &operands, world, &e);
	if (rc) /* the same error on all ranks */
		rc = world->rank ? e.code : err_print(&e);
	else
		stdout_close();
	comm_close(world);
	return rc;
}

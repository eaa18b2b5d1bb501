/* Formats of tokens: nanoGPT's, llm.c's and Megatron-LM's. All numbers are little-endian. */
#include "tokens/tokens.h"

#include <fcntl.h>

static const struct token_type none, u16 = {2, false}, u32 = {4, false}, i32 = {4, true};

static int reject_size(
	const struct token_file *f, int64_t n_bytes, int64_t expected, struct err *e)
{
	return err_set(e, EX_DATAERR, "%s: has %lld bytes, but its header requires %lld",
		f->path, (long long)n_bytes, (long long)expected);
}

static bool nanogpt_detect(const char *path, const char *first, size_t n)
{
	(void)first, (void)n;
	return text_ends(path, ".bin");
}

/* Sets the token type and the number of tokens of a file of nanoGPT, which has no header. */
static int nanogpt_open(struct token_file *f, int64_t n_bytes, struct err *e)
{
	f->type = u16;
	f->n = n_bytes / u16.bytes;
	if (n_bytes % u16.bytes)
		return err_set(e, EX_DATAERR,
			"%s: has an odd number of bytes, %lld, but each token of nanoGPT has two",
			f->path, (long long)n_bytes);
	return 0;
}

static struct token_type nanogpt_type(int64_t vocab)
{
	return vocab <= UINT16_MAX + 1 ? u16 : none;
}

static const struct token_format format_nanogpt = {
	.name = "nanogpt",
	.detect = nanogpt_detect,
	.open = nanogpt_open,
	.type = nanogpt_type,
};

enum { LLMC_WORDS = 256, LLMC_HEADER_BYTES = LLMC_WORDS * 4, LLMC_EVAL = 20240522 };

static const struct llmc_kind {
	int32_t magic, version;
	struct token_type type;
} llmc_kinds[] = {
	{20240520, 1, {2, false}}, /* GPT-2 */
	{20240801, 7, {4, false}}, /* Llama 3 */
};

static const struct llmc_kind *find_llmc_kind(int32_t magic)
{
	for (size_t i = 0; i < ARRAY_LEN(llmc_kinds); i++)
		if (llmc_kinds[i].magic == magic)
			return &llmc_kinds[i];
	return NULL;
}

static bool llmc_detect(const char *path, const char *first, size_t n)
{
	int32_t magic = 0;
	(void)path;
	if (n >= sizeof(magic))
		memcpy(&magic, first, sizeof(magic));
	return find_llmc_kind(magic) || magic == LLMC_EVAL;
}

/* Reads the header of a file of llm.c, and sets the token type, the number and the begin. */
static int llmc_open(struct token_file *f, int64_t n_bytes, struct err *e)
{
	int32_t header[LLMC_WORDS];
	if (n_bytes < LLMC_HEADER_BYTES)
		return err_set(e, EX_DATAERR, "%s: has no llm.c header", f->path);
	if (file_read_at(f->fd, f->path, header, sizeof(header), 0, e))
		return -1;
	const struct llmc_kind *k = find_llmc_kind(header[0]);
	if (header[0] == LLMC_EVAL)
		return err_set(e, EX_DATAERR,
			"%s: is an evaluation file of llm.c, not a sequence of tokens",
			f->path);
	if (!k)
		return err_set(e, EX_DATAERR,
			"%s: begins with %d, which is not a magic number of llm.c's token files",
			f->path, header[0]);
	if (header[1] != k->version)
		return err_set(e, EX_DATAERR, "%s: has version %d of the format, not %d",
			f->path, header[1], k->version);
	if (header[2] < 0)
		return err_set(e, EX_DATAERR,
			"%s: the number of tokens in its header is %d", f->path,
			header[2]);
	f->type = k->type;
	f->begin = LLMC_HEADER_BYTES;
	f->n = header[2];
	int64_t expected = f->begin + f->n * f->type.bytes;
	return n_bytes == expected ? 0 : reject_size(f, n_bytes, expected, e);
}

static struct token_type llmc_type(int64_t vocab)
{
	return vocab <= UINT16_MAX + 1 ? u16 : u32;
}

/* Sets the first three words of llm.c's header: magic, version, number of tokens. */
static void llmc_header(char *header, struct token_type type, int64_t n)
{
	const struct llmc_kind *k = &llmc_kinds[type.bytes == u32.bytes];
	const int32_t words[] = {k->magic, k->version, (int32_t)n};
	memcpy(header, words, sizeof(words));
}

static const struct token_format format_llmc = {
	.name = "llmc",
	.detect = llmc_detect,
	.open = llmc_open,
	.type = llmc_type,
	.max_tokens = INT32_MAX,
	.header_bytes = LLMC_HEADER_BYTES,
	.header = llmc_header,
};

static const char megatron_magic[9] = "MMIDIDX\0";
enum { MEGATRON_VERSION = 1, MEGATRON_HEADER_BYTES = 9 + 8 + 1 + 8 + 8 };
enum { MEGATRON_U16_BELOW = 65500 }; /* smaller vocabularies have tokens of 16 bits */

/* Types by their code in the index. */
static const struct token_type megatron_types[] = {
	[1] = {1, false},
	[2] = {1, true},
	[3] = {2, true},
	[4] = {4, true},
	[5] = {8, true},
	[8] = {2, false}, /* 6 and 7 are floating-point */
};

static int64_t read_i64(const char *p)
{
	int64_t x;
	memcpy(&x, p, sizeof(x));
	return x;
}

void token_index_name(struct str *out, const char *path)
{
	size_t n = strlen(path);
	str_printf(out, "%.*s.idx", (int)(text_ends(path, ".bin") ? n - 4 : n), path);
}

/* Returns true if the index file of the tokens in `path` exists. */
static bool has_index(const char *path)
{
	scoped_str name = {0};
	char first[sizeof(megatron_magic)];
	token_index_name(&name, path);
	return file_sniff(name.s, first, sizeof(first)) == sizeof(first) &&
	       !memcmp(first, megatron_magic, sizeof(first));
}

/* Accepts the name of the .bin or the .idx file, or the name without these suffixes. */
static bool megatron_detect(const char *path, const char *first, size_t n)
{
	if (text_ends(path, ".idx"))
		return n >= sizeof(megatron_magic) &&
		       !memcmp(first, megatron_magic, sizeof(megatron_magic));
	return (text_ends(path, ".bin") || !file_exists(path)) && has_index(path);
}

/* Replaces the path of an index, or a prefix, by the path of its .bin file. */
static void megatron_tokens_path(struct str *path)
{
	if (text_ends(path->s, ".idx"))
		path->s[path->len -= 4] = 0;
	if (!text_ends(path->s, ".bin"))
		str_puts(path, ".bin");
}

/* An index in memory: lengths i32[n_sequences] in tokens, pointers i64[n_sequences] in bytes,
 * documents i64[n_documents], each the first sequence of a document. */
struct megatron_index {
	const char *name, *lengths, *pointers, *documents;
	int64_t n_sequences, n_documents;
};

/* Parses an index: sets the counts and arrays of *x, which point into text, and *type to the
 * type of its tokens. */
static int megatron_parse(struct megatron_index *x, const struct str *text,
	struct token_type *type, struct err *e)
{
	const char *p = text->s;
	if (text->len < MEGATRON_HEADER_BYTES ||
		memcmp(p, megatron_magic, sizeof(megatron_magic)))
		return err_set(
			e, EX_DATAERR, "%s: is not an index of Megatron-LM", x->name);
	if (read_i64(p + 9) != MEGATRON_VERSION)
		return err_set(e, EX_DATAERR,
			"%s: has version %lld of the format, not %d", x->name,
			(long long)read_i64(p + 9), MEGATRON_VERSION);
	uint8_t code = (uint8_t)p[17];
	*type = code < ARRAY_LEN(megatron_types) ? megatron_types[code] : none;
	if (!type->bytes)
		return err_set(e, EX_DATAERR, "%s: token type %d is not an integer type",
			x->name, code);
	int64_t left = (int64_t)text->len - MEGATRON_HEADER_BYTES;
	x->n_sequences = read_i64(p + 18);
	x->n_documents = read_i64(p + 26);
	bool counts_fit = x->n_sequences >= 0 && x->n_sequences <= left / 12;
	int64_t rest = counts_fit ? left - x->n_sequences * 12 : 0;
	if (x->n_documents < 1 || x->n_documents != rest / 8 || rest % 8)
		return err_set(e, EX_DATAERR,
			"%s: has %zu bytes, which do not match %lld sequences and %lld "
			"documents%s",
			x->name, text->len, (long long)x->n_sequences,
			(long long)x->n_documents,
			counts_fit && rest > x->n_sequences &&
					(rest - x->n_sequences) / 8 == x->n_documents
				? " (an index of text and images is not supported)"
				: "");
	x->lengths = p + MEGATRON_HEADER_BYTES;
	x->pointers = x->lengths + x->n_sequences * 4;
	x->documents = x->pointers + x->n_sequences * 8;
	return 0;
}

/* Sets f->n and f->documents. Sequences must be contiguous in the file. A document is one or more
 * consecutive sequences; a document without tokens is ignored. */
static int megatron_documents(struct token_file *f, const struct megatron_index *x,
	int64_t n_bytes, struct err *e)
{
	int64_t d = 0, capacity = n_bytes / f->type.bytes;
	f->documents = xmalloc((size_t)x->n_documents * sizeof(*f->documents));
	for (int64_t i = 0; i <= x->n_sequences; i++) {
		for (; d < x->n_documents && read_i64(x->documents + 8 * d) == i; d++) {
			int64_t begins = f->n;
			if (f->n_documents && f->documents[f->n_documents - 1] == begins)
				continue;
			f->documents[f->n_documents++] = begins;
		}
		if (i == x->n_sequences)
			break;
		int32_t length;
		memcpy(&length, x->lengths + 4 * i, sizeof(length));
		int64_t pointer = read_i64(x->pointers + 8 * i);
		if (length < 0 || pointer != f->n * f->type.bytes)
			return err_set(e, EX_DATAERR,
				"%s: sequence %lld has %d tokens at byte %lld, but the "
				"previous ones end at %lld",
				x->name, (long long)i, length, (long long)pointer,
				(long long)(f->n * f->type.bytes));
		if (length > capacity - f->n)
			return err_set(e, EX_DATAERR,
				"%s: sequence %lld ends past the end of the tokens",
				x->name, (long long)i);
		f->n += length;
	}
	if (d < x->n_documents)
		return err_set(e, EX_DATAERR,
			"%s: document %lld begins with sequence %lld, which is not "
			"between the previous document and the end, %lld",
			x->name, (long long)d, (long long)read_i64(x->documents + 8 * d),
			(long long)x->n_sequences);
	if (f->n_documents && f->documents[f->n_documents - 1] == f->n)
		f->n_documents--; /* the last entry ends the last document */
	return 0;
}

/* Reads the index next to a file of Megatron: its token type and its documents. */
static int megatron_open(struct token_file *f, int64_t n_bytes, struct err *e)
{
	scoped_str text = {0}, name = {0};
	struct megatron_index x = {0};
	token_index_name(&name, f->path);
	x.name = name.s;
	int rc = file_read(name.s, SIZE_MAX, &text, e) ||
		 megatron_parse(&x, &text, &f->type, e) ||
		 megatron_documents(f, &x, n_bytes, e);
	if (!rc && n_bytes != f->n * f->type.bytes)
		rc = err_set(e, EX_DATAERR,
			"%s: has %lld bytes, but its index describes %lld", f->path,
			(long long)n_bytes, (long long)(f->n * f->type.bytes));
	return rc ? -1 : 0;
}

static struct token_type megatron_type(int64_t vocab)
{
	return vocab < MEGATRON_U16_BELOW ? u16 : i32;
}

static void append_i64(struct str *out, int64_t x)
{
	str_add(out, &x, sizeof(x));
}

/* Appends an index in which each document is one sequence. */
static void megatron_index(
	struct str *out, struct token_type type, const struct token_lengths *l)
{
	str_add(out, megatron_magic, sizeof(megatron_magic));
	append_i64(out, MEGATRON_VERSION);
	for (size_t code = 0; code < ARRAY_LEN(megatron_types); code++)
		if (megatron_types[code].bytes == type.bytes &&
			megatron_types[code].has_sign == type.has_sign)
			str_putc(out, (char)code);
	append_i64(out, l->n);
	append_i64(out, l->n + 1);
	str_add(out, l->v, (size_t)l->n * sizeof(*l->v));
	for (int64_t i = 0, at = 0; i < l->n; at += (int64_t)l->v[i++] * type.bytes)
		append_i64(out, at);
	for (int64_t i = 0; i <= l->n; i++)
		append_i64(out, i);
}

static const struct token_format format_megatron = {
	.name = "megatron",
	.detect = megatron_detect,
	.to_tokens_path = megatron_tokens_path,
	.open = megatron_open,
	.type = megatron_type,
	.index = megatron_index,
};

#define TOKEN_FORMAT_ROW(name) &format_##name,
static const struct token_format *const formats[] = {TOKEN_FORMATS(TOKEN_FORMAT_ROW)};

const struct token_format *token_format_named(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(formats); i++)
		if (!strcmp(formats[i]->name, name))
			return formats[i];
	return NULL;
}

/* Returns the format that the file's name and first bytes show; NULL: none. nanoGPT is tried last,
 * because it accepts any file named *.bin. */
const struct token_format *token_format_detect(const char *path)
{
	char first[16];
	int64_t n = file_sniff(path, first, sizeof(first));
	for (size_t i = 0; i < ARRAY_LEN(formats); i++)
		if (formats[i]->detect(path, first, n > 0 ? (size_t)n : 0))
			return formats[i];
	return NULL;
}

/* Unsupported files, recognized by their first bytes, and commands that convert them. */
#include "base/file.h"

#include <ctype.h>

#define PANDAS(read, write) \
	"convert it: python3 -c 'import pandas; pandas." read "(\"@\")." write "'"
#define PANDAS_TEXT(read) \
	PANDAS(read, "to_json(\"&.jsonl\", orient=\"records\", lines=True)")
#define PANDAS_LOG(read) PANDAS(read, "to_csv(\"&.csv\")")
#define CSV "export it as CSV"

/* clang-format off */
/* In advice, @ is the file, and & its name without directories and extension. NULL: supported. */
static const struct {
	const char *bytes;
	size_t n;
	const char *what, *advice[N_FOREIGN_USES];
} known[] = {
#define ROW(bytes, what, text, log) {bytes, sizeof(bytes) - 1, what, {text, log}}
	ROW("PAR1\x15", "a Parquet table", PANDAS_TEXT("read_parquet"), PANDAS_LOG("read_parquet")),
	ROW("ARROW1\0\0", "a file of Arrow (Feather)", PANDAS_TEXT("read_feather"),
		PANDAS_LOG("read_feather")),
	ROW("FEA1\0", "a file of Feather", PANDAS_TEXT("read_feather"), PANDAS_LOG("read_feather")),
	ROW("\xff\xff\xff\xff", "a stream of Arrow, as Hugging Face's datasets are",
		"convert it: python3 -c 'import datasets; "
		"datasets.Dataset.from_file(\"@\").to_json(\"&.jsonl\")'", CSV),
	ROW("PK\3\4", "a zip archive, as .npz, .docx and .xlsx are",
		"unpack it: unzip @", "unpack it: unzip @"),
	ROW("\x93NUMPY", "an array of NumPy",
		"convert tokens: python3 -c 'import numpy; "
		"numpy.load(\"@\").astype(\"uint16\").tofile(\"&.bin\")'", CSV),
	ROW("BZh", "compressed by bzip2", "decompress it: bzcat @ >&", "decompress it: bzcat @ >&"),
	ROW("\xfd\x37zXZ\0", "compressed by xz",
		"decompress it: xzcat @ >&", "decompress it: xzcat @ >&"),
	ROW("\x1f\x8b", "compressed by gzip", NULL, NULL),
	ROW("\x28\xb5\x2f\xfd", "compressed by zstd", NULL, NULL),
	ROW("%PDF-", "a PDF document", "convert it: pdftotext @ &.txt", CSV),
	ROW("SQLite format 3", "a database of SQLite",
		"convert it: sqlite3 @ 'select COLUMN from TABLE' >&.txt",
		"convert it: sqlite3 -csv -header @ 'select * from TABLE' >&.csv"),
	ROW(":W&B\xe1\xbe", "a transaction log of W&B", "give files/output.log next to it",
		"give files/output.log next to it, the output of the run"),
#undef ROW
};
/* clang-format on */

/* Returns false if a file that begins with `bytes` may still be text. */
static bool is_sure(const char *bytes, const char *first, size_t n)
{
	return strcmp(bytes, "BZh") ||
	       (n >= 10 && isdigit((uint8_t)first[3]) && !memcmp(first + 4, "1AY&SY", 6));
}

/* Sets the file's name for a command, and the name without directories and extension. */
static void name_parts(const char *path, struct str *name, struct str *bare)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				    "0123456789._-/+=@";
	if (path[strspn(path, plain)] || *path == '-')
		path = "FILE";
	const char *slash = strrchr(path, '/');
	const char *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');
	bool ends = dot && dot > base;
	str_puts(name, path);
	str_printf(bare, "%.*s", ends ? (int)(dot - base) : 1 << 20, base);
	/* the output must not replace the input */
	if (!ends || !strcmp(dot, ".jsonl") || !strcmp(dot, ".csv") ||
		!strcmp(dot, ".txt"))
		str_puts(bare, ".out");
}

int file_refuse_foreign(const char *name, const char *first, size_t n,
	enum foreign_use use, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		scoped_str path = {0}, bare = {0}, advice = {0};
		const char *at = known[i].advice[use];
		if (n < known[i].n || !at || memcmp(first, known[i].bytes, known[i].n) ||
			!is_sure(known[i].bytes, first, n))
			continue;
		name_parts(name, &path, &bare);
		for (; *at; at++)
			if (*at == '@' || *at == '&')
				str_puts(&advice, *at == '@' ? path.s : bare.s);
			else
				str_putc(&advice, *at);
		return err_set(e, EX_DATAERR, "%s: %s, which is not supported; %s", name,
			known[i].what, advice.s);
	}
	return 0;
}

int file_refuse_url(const char *name, struct err *e)
{
	static const struct {
		const char *begin, *with;
	} schemes[] = {{"http://", "curl -LO"}, {"https://", "curl -LO"},
		{"hf://", "hf download"}, {"s3://", "aws s3 cp"},
		{"gs://", "gcloud storage cp"}};
	for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
		if (!strncmp(name, schemes[i].begin, strlen(schemes[i].begin)))
			return err_set(e, EX_USAGE,
				"%s: URLs are not supported; download it, for example with %s",
				name, schemes[i].with);
	return 0;
}

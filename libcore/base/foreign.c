/* Unsupported files, recognized by their first bytes, and commands that convert them. */
#include "base/file.h"

#include <ctype.h>

#define PANDAS(read, write) \
	"convert it: python3 -c 'import pandas; pandas." read "(\"@\")." write "'"
#define PANDAS_TEXT(read) \
	PANDAS(read, "to_json(\"&.jsonl\", orient=\"records\", lines=True)")
#define PANDAS_LOG(read) PANDAS(read, "to_csv(\"&.csv\")")
#define CSV "export it as CSV"
/* (pt-prepare reads tables, unless the user says that they are text) */
#define TABLE "omit --format: pt-prepare detects tables by their content"

/* clang-format off */
/* In advice, @ is the file, and & its name without directories and extension. NULL: supported. */
static const struct {
	const char *bytes;
	size_t n;
	const char *what, *advice[N_FOREIGN_USES];
} kinds[] = {
#define ROW(bytes, what, text, log) {bytes, sizeof(bytes) - 1, what, {text, log}}
	ROW("PAR1\x15", "a Parquet table", TABLE, PANDAS_LOG("read_parquet")),
	ROW("ARROW1\0\0", "an Arrow (Feather) file", TABLE, PANDAS_LOG("read_feather")),
	ROW("FEA1\0", "a Feather file", PANDAS_TEXT("read_feather"), PANDAS_LOG("read_feather")),
	ROW("\xff\xff\xff\xff", "an Arrow stream, as in Hugging Face datasets", TABLE, CSV),
	ROW("PK\3\4", "a zip archive, such as .npz, .docx or .xlsx",
		"unpack it: unzip @", "unpack it: unzip @"),
	ROW("\x93NUMPY", "a NumPy array",
		"convert tokens: python3 -c 'import numpy; "
		"numpy.load(\"@\").astype(\"uint16\").tofile(\"&.bin\")'", CSV),
	ROW("BZh", "compressed by bzip2", "decompress it: bzcat @ >&", "decompress it: bzcat @ >&"),
	ROW("\xfd\x37zXZ\0", "compressed by xz",
		"decompress it: xzcat @ >&", "decompress it: xzcat @ >&"),
	ROW("\x1f\x8b", "compressed by gzip", NULL, NULL),
	ROW("\x28\xb5\x2f\xfd", "compressed by zstd", NULL, NULL),
	ROW("%PDF-", "a PDF document", "convert it: pdftotext @ &.txt", CSV),
	ROW("SQLite format 3", "an SQLite database",
		"convert it: sqlite3 @ 'select COLUMN from TABLE' >&.txt",
		"convert it: sqlite3 -csv -header @ 'select * from TABLE' >&.csv"),
	ROW(":W&B\xe1\xbe", "a transaction log of W&B", "use the run's output, files/output.log, instead",
		"use the run's output, files/output.log, instead"),
#undef ROW
};
/* clang-format on */

/* Returns false if the bytes are "BZh", which may begin a text, and no compressed block follows. */
static bool is_certain_match(const char *bytes, const char *first, size_t n)
{
	return strcmp(bytes, "BZh") ||
	       (n >= 10 && isdigit((uint8_t)first[3]) && !memcmp(first + 4, "1AY&SY", 6));
}

/* Appends a file's name for a command (FILE if it needs quotes), and the stem of an output file. */
static void split_name(const char *path, struct str *name, struct str *stem)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				    "0123456789._-/+=@";
	if (path[strspn(path, plain)] || *path == '-')
		path = "FILE";
	const char *slash = strrchr(path, '/');
	const char *base = slash ? slash + 1 : path, *dot = strrchr(base, '.');
	bool has_suffix = dot && dot > base;
	str_puts(name, path);
	str_printf(stem, "%.*s", has_suffix ? (int)(dot - base) : 1 << 20, base);
	/* the output must not replace the input */
	if (!has_suffix || !strcmp(dot, ".jsonl") || !strcmp(dot, ".csv") ||
		!strcmp(dot, ".txt"))
		str_puts(stem, ".out");
}

int file_reject_foreign(const char *name, const char *first, size_t n,
	enum foreign_use use, struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		scoped_str path = {0}, stem = {0}, advice = {0};
		const char *text = kinds[i].advice[use];
		if (n < kinds[i].n || !text ||
			memcmp(first, kinds[i].bytes, kinds[i].n) ||
			!is_certain_match(kinds[i].bytes, first, n))
			continue;
		split_name(name, &path, &stem);
		for (; *text; text++)
			if (*text == '@' || *text == '&')
				str_puts(&advice, *text == '@' ? path.s : stem.s);
			else
				str_putc(&advice, *text);
		return err_set(e, EX_DATAERR, "%s: %s, which is not supported; %s", name,
			kinds[i].what, advice.s);
	}
	return 0;
}

int file_reject_url(const char *name, struct err *e)
{
	static const struct {
		const char *begin, *command;
	} schemes[] = {{"http://", "curl -LO"}, {"https://", "curl -LO"},
		{"hf://", "hf download"}, {"s3://", "aws s3 cp"},
		{"gs://", "gcloud storage cp"}};
	for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
		if (!strncmp(name, schemes[i].begin, strlen(schemes[i].begin)))
			return err_set(e, EX_USAGE,
				"%s: URLs are not supported; download it, for example with %s",
				name, schemes[i].command);
	return 0;
}

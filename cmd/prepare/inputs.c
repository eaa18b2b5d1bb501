/* The list of input files: operands, sources, directories, patterns. */
#include "prepare/pipeline.h"
#include "prepare/token_file.h"

#include <errno.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 64 };

/* Returns true for a name that ends in .jsonl, .ndjson or .json, possibly compressed. */
static bool is_jsonl_path(const char *path)
{
	static const char *const ends[] = {".jsonl", ".ndjson", ".json"};
	size_t n = strlen(path), len;
	n -= text_ends(path, ".gz") ? 3 : text_ends(path, ".zst") ? 4 : 0;
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (n >= (len = strlen(ends[i])) && !memcmp(path + n - len, ends[i], len))
			return true;
	return false;
}

/* Adds a file. Rejects token files in directories, patterns and sources, which would be read as
 * text; token_convert.c handles token files among the operands. */
static int add_file(struct inputs *in, const struct prepare *p, const char *path,
	const struct stat *st, struct err *e)
{
	if (p->format == FORMAT_AUTO && S_ISREG(st->st_mode) && is_token_file(path))
		return err_set(e, EX_DATAERR, "%s: a token file, not text%s", path,
			advice_on(ADVICE_TOKENS));
	in->files = xgrow(in->files, in->n, sizeof(*in->files));
	struct input_file *f = &in->files[in->n++];
	bool is_stdin = !strcmp(path, "-");
	*f = (struct input_file){.path = xstrdup(path),
		.source = in->n_sources - 1,
		.is_stream = !S_ISREG(st->st_mode),
		.has_given_format = p->format != FORMAT_AUTO,
		.fd = is_stdin ? dup(STDIN_FILENO) : -1,
		.end = S_ISREG(st->st_mode) ? (int64_t)st->st_size : -1};
	f->name = is_stdin ? "standard input" : f->path;
	f->is_jsonl = p->format == FORMAT_JSONL || p->record != RECORD_TEXT ||
		      (p->format == FORMAT_AUTO && is_jsonl_path(path));
	f->accepts_any_bytes = !f->is_jsonl && !strcmp(p->tokenizer.name, "byte");
	if (is_stdin && !f->is_stream)
		f->begin = lseek(f->fd, 0, SEEK_CUR);
	return 0;
}

/* Returns true for the work directory, which may be inside a directory of text. */
static bool is_work_directory(const struct prepare *p, const struct stat *st)
{
	struct stat work;
	return p->work && stat(p->work, &work) == 0 && work.st_dev == st->st_dev &&
	       work.st_ino == st->st_ino;
}

/* Adds all files of a directory and its subdirectories, sorted by name, except hidden files. */
static int add_directory(struct inputs *in, const struct prepare *p, const char *path,
	int depth, struct err *e)
{
	scoped_dir *d = opendir(path);
	if (!d || depth > MAX_DEPTH)
		return err_set(e, EX_IOERR, "%s: %s", path,
			d ? "directories are nested too deeply" : strerror(errno));
	scoped_strs names = {0};
	errno = 0;
	for (const struct dirent *x; (x = readdir(d)); errno = 0)
		if (x->d_name[0] != '.')
			strs_add(&names, x->d_name);
	int rc = errno ? err_errno(e, path) : 0;
	strs_sort(&names);
	for (int64_t i = 0; i < names.n && !rc; i++) {
		struct stat st, link;
		scoped_ptr char *child = text_printf(
			"%s%s%s", path, text_ends(path, "/") ? "" : "/", names.v[i]);
		if (stat(child, &st) || lstat(child, &link))
			rc = err_errno(e, child);
		else if (S_ISREG(st.st_mode))
			rc = add_file(in, p, child, &st, e);
		else if (S_ISDIR(link.st_mode) && !is_work_directory(p, &link))
			/* links to directories are not followed: they could form a cycle */
			rc = add_directory(in, p, child, depth + 1, e);
	}
	return rc;
}

/* Adds a file, all files of a directory, or standard input ("-"). Fails if there is none. */
static int add_path(
	struct inputs *in, const struct prepare *p, const char *path, struct err *e)
{
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	if (is_stdin ? fstat(STDIN_FILENO, &st) : stat(path, &st)) {
		const int why = errno;
		return file_reject_url(path, e)
			       ? -1
			       : err_set(e, EX_IOERR, "%s: %s", path, strerror(why));
	}
	if (!S_ISDIR(st.st_mode))
		return add_file(in, p, path, &st, e);
	int64_t before = in->n;
	if (add_directory(in, p, path, 0, e))
		return -1;
	if (in->n == before)
		return err_set(e, EX_DATAERR, "%s: the directory has no files", path);
	return 0;
}

/* Adds an operand: a path, or a pattern that pt-prepare expands as a shell does. */
static int add_operand(
	struct inputs *in, const struct prepare *p, const char *text, struct err *e)
{
	glob_t found = {0};
	if (!strcmp(text, "-") || file_exists(text) || !strpbrk(text, "*?["))
		return add_path(in, p, text, e);
	int rc = glob(text, 0, NULL, &found);
	if (rc)
		rc = err_set(e, EX_IOERR,
			rc == GLOB_NOMATCH
				? "%s: no file matches the pattern"
				: "%s: cannot read a directory of this pattern",
			text);
	for (size_t i = 0; i < found.gl_pathc && !rc; i++)
		rc = add_path(in, p, found.gl_pathv[i], e);
	globfree(&found);
	return rc;
}

static struct source *add_source(struct inputs *in, const char *name, size_t n)
{
	in->sources = xgrow(in->sources, in->n_sources, sizeof(*in->sources));
	struct source *s = &in->sources[in->n_sources++];
	struct str copy = {0};
	str_add(&copy, name, n);
	*s = (struct source){.name = copy.s, .weight = 1};
	return s;
}

/* Returns true if sums of such weights, and products with token counts, are exact enough. */
static bool is_valid_weight(double x)
{
	return x >= 1e-9 && x <= 1e9;
}

/* Adds the files of NAME=WEIGHT:PATH, to the previous source if it has the same name. */
static int add_weighted_source(
	struct inputs *in, const struct prepare *p, const char *text, struct err *e)
{
	const char *equals = strchr(text, '='),
		   *colon = equals ? strchr(equals, ':') : NULL;
	double weight;
	const char *end = colon ? scan_double(equals + 1, colon, &weight) : NULL;
	if (!colon || equals == text || end != colon || !colon[1] ||
		!is_valid_weight(weight))
		return err_set(e, EX_USAGE,
			"--source '%s': expected NAME=WEIGHT:PATH with a weight from 1e-9 to "
			"1e9",
			text);
	size_t n = (size_t)(equals - text);
	for (int32_t i = 0; i < in->n_sources; i++) {
		const struct source *s = &in->sources[i];
		if (strlen(s->name) != n || strncmp(s->name, text, n))
			continue;
		if (s->weight != weight)
			return err_set(e, EX_USAGE,
				"--source '%s': the source has two weights", s->name);
		if (i != in->n_sources - 1)
			return err_set(e, EX_USAGE,
				"--source '%s': the paths of the source are not "
				"adjacent; give them one after the other",
				s->name);
		return add_operand(in, p, colon + 1, e);
	}
	add_source(in, text, n)->weight = weight;
	return add_operand(in, p, colon + 1, e);
}

/* Adds all --source options, or else the operands; standard input if there are none. */
static int add_inputs(struct inputs *in, const struct prepare *p,
	const struct strs *operands, struct err *e)
{
	if (p->sources.n && operands->n)
		return err_set(e, EX_USAGE,
			"%s: with --source, every input must belong to a source",
			operands->v[0]);
	for (int64_t i = 0; i < p->sources.n; i++)
		if (add_weighted_source(in, p, p->sources.v[i], e))
			return -1;
	if (p->sources.n)
		return 0;
	add_source(in, "text", 4);
	if (!operands->n)
		return add_operand(in, p, "-", e);
	for (int64_t i = 0; i < operands->n; i++)
		if (add_operand(in, p, operands->v[i], e))
			return -1;
	return 0;
}

int inputs_open(struct inputs *in, const struct prepare *p, const struct strs *operands,
	struct err *e)
{
	*in = (struct inputs){0};
	if (add_inputs(in, p, operands, e)) {
		inputs_close(in);
		return -1;
	}
	for (int64_t i = 0; i < in->n; i++) {
		const struct input_file *f = &in->files[i];
		if (f->end < 0 || in->n_bytes < 0)
			in->n_bytes = -1;
		else
			in->n_bytes += max64(0, f->end - f->begin);
	}
	return 0;
}

bool inputs_have_tables(const struct inputs *in)
{
	bool has = false;
	for (int64_t i = 0; i < in->n; i++)
		has = has || in->files[i].is_table;
	return has;
}

bool inputs_have_records(const struct inputs *in)
{
	bool has = inputs_have_tables(in);
	for (int64_t i = 0; i < in->n; i++)
		has = has || in->files[i].is_jsonl;
	return has;
}

void inputs_close(struct inputs *in)
{
	for (int64_t i = 0; i < in->n; i++) {
		if (in->files[i].fd >= 0)
			close(in->files[i].fd);
		free(in->files[i].path);
	}
	for (int32_t i = 0; i < in->n_sources; i++)
		free(in->sources[i].name);
	free(in->files);
	free(in->sources);
	*in = (struct inputs){0};
}

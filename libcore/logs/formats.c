/* The table of formats, and reading a file by one of them. */
#include "base/file.h"
#include "base/options.h"
#include "logs/logs_internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Name, description, and a struct log_format's other fields. */
#define FORMATS(F)                                                                                                                                             \
	F("pt",                                                                                                                                                \
		"the directory of a run, its run.h5 or its journal, or the standard output of "                                                                \
		"pt-train",                                                                                                                                    \
		.detect = NULL)                                                                                                                                \
	F("wordplay",                                                                                                                                          \
		"lines step=100 loss=2.45 ... or iter=100 ... of wordplay and ezpz, behind "                                                                   \
		"any prefix; mfu is in percent",                                                                                                               \
		.line = line_wordplay, .settings = true)                                                                                                       \
	F("maxtext", "the standard output of MaxText", .kinds = maxtext_kinds,                                                                                 \
		.settings = true)                                                                                                                              \
	F("torchtitan",                                                                                                                                        \
		"the console of torchtitan; tps is per GPU, memory is what is reserved",                                                                       \
		.kinds = torchtitan_kinds, .settings = true)                                                                                                   \
	F("torchtitan-losses", "its tests/assets/losses: lines with step and loss",                                                                            \
		.line = line_losses)                                                                                                                           \
	F("nanogpt", "the standard output of nanoGPT", .kinds = nanogpt_kinds,                                                                                 \
		.settings = true)                                                                                                                              \
	F("nanochat", "the standard output of nanochat, whose loss is smoothed",                                                                               \
		.kinds = nanochat_kinds, .settings = true)                                                                                                     \
	F("modded-nanogpt", "the records of modded-nanogpt; dt is step_avg",                                                                                   \
		.kinds = modded_kinds)                                                                                                                         \
	F("llmc", "main.log of llm.c, and the standard output of its programs",                                                                                \
		.line = line_llmc, .settings = true)                                                                                                           \
	F("llmq", "the standard output of LLMQ, and its log in JSON", .line = line_llmq,                                                                       \
		.settings = true)                                                                                                                              \
	F("megatron", "the standard output of Megatron-LM", .line = line_megatron,                                                                             \
		.settings = true)                                                                                                                              \
	F("megatron-golden", "its golden_values_*.json", .text = text_golden,                                                                                  \
		.detect = is_golden)                                                                                                                           \
	F("megatron-bridge",                                                                                                                                   \
		"golden values of Megatron-Bridge; its standard output is of the "                                                                             \
		"format megatron",                                                                                                                             \
		.text = text_bridge, .detect = is_bridge)                                                                                                      \
	F("olmo-core", "the console of OLMo-core", .line = line_olmo)                                                                                          \
	F("trainer-state", "trainer_state.json of Hugging Face's Trainer",                                                                                     \
		.text = text_trainer_state, .detect = is_trainer_state)                                                                                        \
	F("tensorboard", "event files of TensorBoard, or a directory of them: scalars",                                                                        \
		.text = text_tensorboard, .detect = is_tensorboard)                                                                                            \
	F("csv",                                                                                                                                               \
		"a table with fields separated by commas, semicolons or tabs, with rows in any order; its header names columns; without a header: step, loss", \
		.line = line_csv)                                                                                                                              \
	F("jsonl", "a JSON object per line (wandb, ezpz, MaxText, and others)",                                                                                \
		.line = line_jsonl)

#define ROW(n, w, ...) {.name = n, .what = w, __VA_ARGS__},
static const struct log_format formats[] = {FORMATS(ROW)};
#define NAME(n, w, ...) n,
const char *const log_format_names[] = {"auto", FORMATS(NAME) NULL};

enum {
	PT = 0,
	N_FORMATS = ARRAY_LEN(formats),
	SAMPLE = 1 << 20,
	MAX_TEXT = 1 << 30,
	MAX_JSON = 1 << 28
};

void log_formats_man(FILE *f)
{
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (int i = 0; i < N_FORMATS; i++) {
		fprintf(f, ".It Cm %s\n", formats[i].name);
		man_text(f, formats[i].what);
	}
	fputs(".El\n", f);
}

/* ---- lines ----------------------------------------------------------------------- */

/* The length of a sequence that colours text: ESC [ parameters letter. */
static size_t colour_length(struct span s)
{
	size_t n = 1;
	n += n < s.n && s.p[n] == '[';
	while (n < s.n && (unsigned char)s.p[n] < '@')
		n++;
	return n < s.n ? n + 1 : n;
}

static void strip_colour(struct span line, struct str *out)
{
	str_clear(out);
	while (line.n) {
		const char *escape = memchr(line.p, '\033', line.n);
		size_t n = escape ? (size_t)(escape - line.p) : line.n;
		str_add(out, line.p, n);
		line = (struct span){line.p + n, line.n - n};
		n = line.n ? colour_length(line) : 0;
		line = (struct span){line.p + n, line.n - n};
	}
}

struct line_reader {
	struct build *b;
	const struct log_format *f;
	struct str plain;
};

static bool take_plain(struct build *b, const struct log_format *f, struct span line)
{
	if (f->kinds ? take_kinds(b, line, f->kinds) : f->line(b, line))
		return true;
	if (f->settings)
		find_settings(b, line);
	return false;
}

/* A carriage return begins a line, too: of a progress bar. */
static int take_line(void *to, const char *p, size_t len, struct err *e)
{
	struct line_reader *r = to;
	(void)e;
	struct span rest = {p, len};
	while (rest.n) {
		const char *cr = memchr(rest.p, '\r', rest.n);
		struct span line = {rest.p, cr ? (size_t)(cr - rest.p) : rest.n};
		size_t n = line.n + (cr != NULL);
		rest = (struct span){rest.p + n, rest.n - n};
		if (line.n && memchr(line.p, '\033', line.n)) {
			strip_colour(line, &r->plain);
			line = (struct span){r->plain.s, r->plain.len};
		}
		if (line.n)
			take_plain(r->b, r->f, line);
	}
	return 0;
}

/* ---- detection ------------------------------------------------------------------- */

/* The rows that a format takes of a sample. */
static int64_t count_rows(const struct log_format *f, struct span sample)
{
	struct build b;
	struct line_reader r = {&b, f, {0}};
	struct err e;
	build_begin(&b);
	while (sample.n) {
		const char *stop = memchr(sample.p, '\n', sample.n);
		size_t n = stop ? (size_t)(stop - sample.p) : sample.n;
		take_line(&r, sample.p, n, &e);
		n += stop != NULL;
		sample = (struct span){sample.p + n, sample.n - n};
	}
	int64_t rows = b.n_points ? b.n_taken : 0;
	str_free(&r.plain);
	build_free(&b);
	return rows;
}

/* Lines of pt-train begin with step=, and those of wordplay may, too. */
static bool is_pt(struct span sample)
{
	const char *end = sample.p + sample.n;
	if (h5_begins(sample.p, sample.n) || span_begins(sample, "# meta ") ||
		span_find(sample, "\n# meta "))
		return true;
	const char *p =
		span_begins(sample, "step=") ? sample.p : span_find(sample, "\nstep=");
	if (!p)
		return false;
	p += *p == '\n';
	const char *stop = memchr(p, '\n', (size_t)(end - p));
	struct span line = {p, (size_t)((stop ? stop : end) - p)};
	if (span_find(line, " tokens="))
		return true;
	return !span_find(line, " dtf=") && !span_find(line, " mfu=") &&
	       !span_find(line, " sps=");
}

static const struct log_format *detect(struct span sample)
{
	const struct log_format *best = NULL;
	int64_t most = 0;
	if (is_pt(sample))
		return &formats[PT];
	for (int i = 0; i < N_FORMATS; i++)
		if (formats[i].detect && formats[i].detect(sample))
			return &formats[i];
	/* Tables and JSON lines last: a format's own lines may be among them. */
	for (int i = 0; i < N_FORMATS; i++) {
		const struct log_format *f = &formats[i];
		bool general = f->line == line_csv || f->line == line_jsonl;
		if (!(f->line || f->kinds) || (general && most))
			continue;
		int64_t n = count_rows(f, sample);
		if (n > most)
			most = n, best = f;
	}
	return best;
}

const char *log_detect(const char *first, size_t n)
{
	if (h5_begins(first, n))
		return formats[PT].name;
	const char *stop = n ? memrchr(first, '\n', n) : NULL;
	const struct log_format *f =
		stop ? detect((struct span){first, (size_t)(stop - first) + 1}) : NULL;
	return f ? f->name : NULL;
}

/* ---- files ----------------------------------------------------------------------- */

/* A line without its last word, which may be incomplete; a JSON object shows its end. */
static size_t whole_words(const struct str *line)
{
	size_t n = line->len;
	if (n && line->s[n - 1] == '}')
		return n;
	while (n && !strchr(" \t,;", line->s[n - 1]))
		n--;
	return n;
}

static int read_lines(struct build *b, const struct log_format *f, int fd,
	const char *name, struct err *e)
{
	struct line_reader r = {b, f, {0}};
	struct str rest = {0};
	int rc = file_lines(fd, name, take_line, &r, &rest, e);
	if (!rc && rest.len) {
		size_t n = whole_words(&rest);
		if (n < rest.len && !b->growing)
			warn("%s: the last line has no line break; its last word is "
			     "ignored, which may be incomplete",
				name);
		take_line(&r, rest.s, n, e);
	}
	str_free(&rest);
	str_free(&r.plain);
	return rc;
}

static int read_text(struct build *b, const struct log_format *f, int fd,
	const char *name, struct err *e)
{
	struct str text = {0};
	/* JSON takes many times its size in memory */
	size_t most = f->text == text_tensorboard ? MAX_TEXT : MAX_JSON;
	int rc = file_read_rest(fd, name, most, &text, e);
	if (!rc && f->text(b, (struct span){text.s, text.len}, e))
		rc = err_prefix(e, "%s: ", name);
	str_free(&text);
	return rc;
}

static const struct log_format *find_format(const char *name)
{
	for (int i = 0; i < N_FORMATS; i++)
		if (!strcmp(formats[i].name, name))
			return &formats[i];
	return NULL;
}

static int not_a_log(const char *name, struct err *e)
{
	return err_set(e, EX_DATAERR,
		"%s: neither a log of pt-train nor of another known format", name);
}

/* The format of an open file; NULL with *e set. */
static const struct log_format *format_of(
	int fd, const char *name, const char *format, struct err *e)
{
	const struct log_format *f = NULL;
	if (format) {
		f = find_format(format);
		if (!f)
			err_set(e, EX_USAGE, "%s: no such format of logs", format);
		return f;
	}
	char *sample = xmalloc(SAMPLE);
	size_t n = 0;
	for (ssize_t got = 1; got > 0 && n<SAMPLE; n += got> 0 ? (size_t)got : 0)
		got = pread(fd, sample + n, SAMPLE - n, (off_t)n);
	/* (of its exact size, so that AddressSanitizer sees a detector that reads too far) */
	sample = xrealloc(sample, n ? n : 1);
	f = detect((struct span){sample, n});
	free(sample);
	if (!f)
		not_a_log(name, e);
	return f;
}

struct reading {
	struct run_log *l;
	struct build *b;
	const char *format;
};

static int read_file(void *to, int fd, const char *path, struct err *e)
{
	const struct reading *r = to;
	struct run_log *l = r->l;
	const struct log_format *f = format_of(fd, l->name, r->format, e);
	if (!f)
		return -1;
	if (f == &formats[PT])
		return run_log_read_file(l, fd, path, e);
	free((char *)(uintptr_t)l->info.format);
	l->info.format = xstrdup(f->name);
	return f->text ? read_text(r->b, f, fd, l->name, e)
		       : read_lines(r->b, f, fd, l->name, e);
}

static int look(void *to, const struct stream *s, int64_t *most, struct err *e)
{
	bool h5 = h5_begins(s->first, s->n);
	(void)to;
	*most = h5 ? INT64_MAX : MAX_TEXT;
	return !h5 && !is_tensorboard((struct span){s->first, s->n}) &&
			       memchr(s->first, '\0', s->n)
		       ? not_a_log(s->name, e)
		       : 0;
}

static int read_path(struct run_log *l, struct build *b, const char *path,
	const char *format, struct err *e)
{
	struct reading r = {l, b, format};
	return file_read_seekable(
		path, l->name, &(struct seekable){look, read_file, &r}, e);
}

/* ---- directories ------------------------------------------------------------------- */

static int is_event_file(const struct dirent *d)
{
	return strstr(d->d_name, "tfevents") != NULL;
}

/* The event files in a directory, whose names are in the order of their times. */
static int read_events(
	struct run_log *l, struct build *b, const char *path, struct err *e)
{
	struct dirent **d;
	int n = scandir(path, &d, is_event_file, alphasort), rc = 0;
	for (int i = 0; i < n; i++) {
		struct str file = {0};
		str_printf(&file, "%s/%s", path, d[i]->d_name);
		rc = rc || read_path(l, b, file.s, "tensorboard", e) ? -1 : 0;
		str_free(&file);
		free(d[i]);
	}
	if (n >= 0)
		free(d);
	return rc;
}

int64_t log_event_bytes(const char *path)
{
	struct dirent **d;
	struct stat st;
	int64_t n_bytes = 0;
	int n = scandir(path, &d, is_event_file, alphasort);
	for (int i = 0; i < n; i++) {
		struct str file = {0};
		str_printf(&file, "%s/%s", path, d[i]->d_name);
		n_bytes += stat(file.s, &st) ? 0 : st.st_size;
		str_free(&file);
		free(d[i]);
	}
	if (n >= 0)
		free(d);
	return n_bytes;
}

static int read_log(struct run_log *l, const char *path, const char *format, bool growing,
	struct err *e)
{
	struct build b;
	struct stat st;
	bool is_stdin = !strcmp(path, "-");
	bool folder = !is_stdin && !stat(path, &st) && S_ISDIR(st.st_mode);
	if (format && !strcmp(format, log_format_names[0]))
		format = NULL;
	if (folder && !log_event_bytes(path))
		return run_log_read(l, path, e);
	*l = (struct run_log){.name = xstrdup(is_stdin ? "standard input" : path)};
	build_begin(&b);
	b.growing = growing;
	int rc = folder ? read_events(l, &b, path, e) : read_path(l, &b, path, format, e);
	if (!rc && !l->n_rows)
		rc = build_finish(&b, l, e);
	build_free(&b);
	if (rc)
		run_log_free(l);
	return rc ? -1 : 0;
}

int log_read(struct run_log *l, const char *path, const char *format, struct err *e)
{
	return read_log(l, path, format, false, e);
}

int log_read_growing(
	struct run_log *l, const char *path, const char *format, struct err *e)
{
	return read_log(l, path, format, true, e);
}

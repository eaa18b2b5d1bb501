/* Logs that grow: what was read is kept, and only what is new is read. */
#include "base/file.h"
#include "logs/logs_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	/* Until so many bytes are there, the format may turn out to be another one, and all lines
	 * are taken again: that a few rows suffice to detect it is format_detect()'s word. */
	UNSETTLED = 1 << 16,
	SAMPLE = 1 << 20, /* the beginning of a text that is no log */
	PIECE = 1 << 18,
	MARK = 64, /* bytes by which a file is known to be the same */
};

/* A file, of which `at` bytes were read, the last of them being `mark`. */
struct part {
	char *path;
	int64_t at;
	size_t n_mark;
	char mark[MARK];
};

struct log_tail {
	const char *path, *format;
	struct part *part; /* one file, or event files in their order */
	int n_parts;
	struct str text; /* bytes that were not taken yet */
	const struct log_format *f;
	bool settled;  /* the format is known, and `build` has what was taken */
	bool is_whole; /* the format must be read as a whole */
	bool is_new;   /* bytes came since the last log was made */
	bool damaged;
	struct build build;
	int64_t state; /* of a file that is read as a whole */
};

struct log_tail *log_tail_new(const char *path, const char *format)
{
	struct log_tail *t = xcalloc(1, sizeof(*t));
	t->path = path;
	t->format = format && strcmp(format, log_format_names[0]) != 0 ? format : NULL;
	build_begin(&t->build);
	return t;
}

/* Forgets what was read. */
static void begin_again(struct log_tail *t)
{
	for (int i = 0; i < t->n_parts; i++)
		free(t->part[i].path);
	free(t->part);
	str_free(&t->text);
	build_free(&t->build);
	*t = (struct log_tail){.path = t->path, .format = t->format, .state = t->state};
	build_begin(&t->build);
}

void log_tail_free(struct log_tail *t)
{
	if (!t)
		return;
	begin_again(t);
	build_free(&t->build);
	free(t);
}

/* ---- bytes ----------------------------------------------------------------------- */

static void take_lines(struct build *b, const struct log_format *f, struct span *rest)
{
	struct line_reader r = {b, f, {0}};
	struct err e;
	const char *stop;
	while (rest->n && (stop = memchr(rest->p, '\n', rest->n))) {
		size_t n = (size_t)(stop - rest->p);
		format_line(&r, rest->p, n, &e);
		*rest = (struct span){rest->p + n + 1, rest->n - n - 1};
	}
	str_free(&r.plain);
}

/* Takes complete lines or records. -1: a record is damaged. */
static int take_some(struct build *b, const struct log_format *f, struct span *rest)
{
	struct err e;
	b->growing = true;
	if (f->text)
		return take_records(b, rest, &e);
	take_lines(b, f, rest);
	return 0;
}

static void take_text(struct log_tail *t)
{
	struct span rest = {t->text.s, t->text.len};
	t->damaged |= take_some(&t->build, t->f, &rest) != 0;
	memmove(t->text.s, rest.p, rest.n);
	t->text.len = rest.n;
}

static void find_format(struct log_tail *t)
{
	t->f = t->format ? format_find(t->format)
			 : format_detect((struct span){t->text.s, t->text.len});
	t->is_whole = t->f && (format_is_pt(t->f) ||
				      (t->f->text && t->f->text != text_tensorboard));
}

void log_tail_add(struct log_tail *t, const char *bytes, size_t n)
{
	if (t->damaged || t->is_whole || (!t->settled && t->text.len > SAMPLE))
		return; /* no log */
	str_add(&t->text, bytes, n);
	t->is_new = true;
	if (!t->settled && t->text.len >= UNSETTLED) {
		find_format(t);
		t->settled = t->f && !t->is_whole;
	}
	if (t->settled)
		take_text(t);
}

/* ---- files ----------------------------------------------------------------------- */

/* Whether the bytes that were read last are still in the file. */
static bool is_same_file(const struct part *p, int fd)
{
	char now[MARK];
	struct stat st;
	return !fstat(fd, &st) && st.st_size >= p->at &&
	       !pread_all(fd, now, p->n_mark, p->at - (int64_t)p->n_mark) &&
	       !memcmp(now, p->mark, p->n_mark);
}

static void remember(struct part *p, const char *bytes, size_t n)
{
	size_t keep = n < MARK ? min64((int64_t)p->n_mark, MARK - (int64_t)n) : 0;
	size_t more = n < MARK ? n : MARK;
	memmove(p->mark, p->mark + p->n_mark - keep, keep);
	memcpy(p->mark + keep, bytes + n - more, more);
	p->n_mark = keep + more;
	p->at += (int64_t)n;
}

/* Reads the new bytes of a file. -1: it is another file now. */
static int read_part(struct log_tail *t, struct part *p)
{
	int fd = open(p->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0; /* it may come back */
	bool same = is_same_file(p, fd);
	char *piece = xmalloc(PIECE);
	ssize_t n = same ? 1 : 0;
	while (n > 0 && !t->is_whole) {
		n = pread(fd, piece, PIECE, p->at);
		if (n > 0) {
			remember(p, piece, (size_t)n);
			log_tail_add(t, piece, (size_t)n);
		}
	}
	free(piece);
	close(fd);
	return same ? 0 : -1;
}

static void add_part(struct log_tail *t, const char *path)
{
	t->part = xrealloc(t->part, (size_t)(t->n_parts + 1) * sizeof(*t->part));
	t->part[t->n_parts++] = (struct part){.path = xstrdup(path)};
}

static bool has_grown(const struct part *p)
{
	struct stat st;
	return !stat(p->path, &st) && st.st_size != p->at;
}

/* Event files: only the last one grows, and later ones are added behind it. -1: otherwise. */
static int read_parts(struct log_tail *t, const struct strs *files)
{
	for (int i = 0; i < t->n_parts; i++)
		if (i >= files->n || strcmp(t->part[i].path, files->v[i]) != 0 ||
			(i < t->n_parts - 1 && has_grown(&t->part[i])))
			return -1;
	int rc = t->n_parts ? read_part(t, &t->part[t->n_parts - 1]) : 0;
	for (int64_t i = t->n_parts; i < files->n && !rc; i++) {
		/* (a record that is not complete ends its file) */
		str_clear(&t->text);
		add_part(t, files->v[i]);
		rc = read_part(t, &t->part[i]);
	}
	return rc;
}

/* Event files in a directory are of one format; another file is read as it is. */
static void list_files(struct log_tail *t, struct strs *files)
{
	struct stat st;
	if (stat(t->path, &st) || !S_ISDIR(st.st_mode)) {
		strs_add(files, t->path);
		return;
	}
	list_event_files(t->path, files);
	t->f = format_find("tensorboard");
	t->settled = true;
}

static void read_files(struct log_tail *t)
{
	struct strs files = {0};
	list_files(t, &files);
	if (read_parts(t, &files)) {
		begin_again(t);
		strs_free(&files);
		list_files(t, &files);
		read_parts(t, &files);
		t->is_new = true;
	}
	strs_free(&files);
}

/* ---- the log --------------------------------------------------------------------- */

/* A number that changes when the file does. */
static int64_t state_of(const char *path)
{
	struct stat st;
	if (stat(path, &st))
		return 0;
	return (int64_t)hash_mix(
		(uint64_t)st.st_size ^ hash_mix((uint64_t)st.st_mtim.tv_sec ^
						hash_mix((uint64_t)st.st_mtim.tv_nsec)));
}

static bool replace(struct run_log *l, const struct run_log *by)
{
	run_log_free(l);
	*l = *by;
	return true;
}

static bool read_whole(struct log_tail *t, struct run_log *l)
{
	struct run_log now;
	struct err ignored;
	int64_t state = state_of(t->path);
	if (state == t->state)
		return false;
	t->state = state;
	begin_again(t); /* it may have another format now */
	return !log_read_growing(&now, t->path, t->format, &ignored) && replace(l, &now);
}

static bool make_log(struct log_tail *t, struct build *b, struct run_log *l)
{
	struct run_log now = {.name = xstrdup(l->name)};
	struct err ignored;
	now.info.format = xstrdup(t->f->name);
	if (!build_finish(b, &now, &ignored))
		return replace(l, &now);
	run_log_free(&now);
	return false;
}

/* Of a text whose format is not settled, or of one that has ended: with what is not complete. */
static bool make_log_of_all(struct log_tail *t, struct build *b, struct run_log *l)
{
	struct span rest = {t->text.s, t->text.len};
	struct err e;
	take_some(b, t->f, &rest);
	if (rest.n && !t->f->text) {
		struct line_reader r = {b, t->f, {0}};
		format_line(&r, rest.p, whole_words(rest), &e);
		str_free(&r.plain);
	}
	return make_log(t, b, l);
}

static bool make_unsettled(struct log_tail *t, struct run_log *l)
{
	struct build b;
	find_format(t);
	if (!t->f || t->is_whole)
		return false;
	build_begin(&b);
	bool made = make_log_of_all(t, &b, l);
	build_free(&b);
	return made;
}

int log_tail_read(struct log_tail *t, struct run_log *l)
{
	if (t->path && !t->is_whole)
		read_files(t);
	bool is_new = t->is_new;
	t->is_new = false;
	bool made =
		is_new && (t->settled ? make_log(t, &t->build, l) : make_unsettled(t, l));
	if (t->is_whole)
		return t->path ? read_whole(t, l) : -1;
	return made;
}

bool log_tail_end(struct log_tail *t, struct run_log *l)
{
	return t->settled && t->text.len && make_log_of_all(t, &t->build, l);
}

/* The journal: one write() a line, so that a run that dies loses at most the line it was
 * writing; run.h5 is made from it. */
#include "run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int put_line(struct journal *j, struct str *line, struct err *e)
{
	if (run_log_line(&j->log, line->s, line->len, e))
		return -1;
	str_putc(line, '\n');
	off_t end = lseek(j->fd, 0, SEEK_END);
	if (write_all(j->fd, line->s, line->len)) {
		err_set(e, EX_IOERR, "%s/journal.txt: %s", j->folder, strerror(errno));
		/* Half a line would become one with the next. */
		return end >= 0 && !ftruncate(j->fd, end)
			       ? -1
			       : err_prefix(e, "half a line is left in ");
	}
	return 0;
}

/* A text of lines, each with a word in front. */
static int put_text(struct journal *j, const char *word, const char *text, struct err *e)
{
	struct str line = {0};
	int rc = 0;
	while (*text && !rc) {
		size_t n = strcspn(text, "\n");
		str_clear(&line);
		str_printf(&line, "# %s %.*s", word, (int)n, text);
		rc = put_line(j, &line, e);
		text += n + (text[n] == '\n');
	}
	str_free(&line);
	return rc;
}

static int put_info(struct journal *j, const struct run_info *info, struct err *e)
{
	struct str text = {0};
	for (const struct h5_field *f = run_fields; f->name; f++)
		h5_field_print(&text, f, info);
	int rc = put_text(j, "meta", text.s, e);
	str_free(&text);
	return rc;
}

/* Reads what is there, up to the last whole line; the rest of a line is cut off. */
static int take_up(struct journal *j, const char *path, int64_t resume, struct err *e)
{
	struct str text = {0};
	if (file_read(path, SIZE_MAX, &text, e))
		return -1;
	size_t whole = text.len;
	while (whole && text.s[whole - 1] != '\n')
		whole--;
	int rc = 0;
	for (size_t at = 0; at < whole && !rc;) {
		size_t n = strcspn(text.s + at, "\n");
		n = n < whole - at ? n : whole - at;
		rc = run_log_line(&j->log, text.s + at, n, e);
		at += n + 1;
	}
	str_free(&text);
	run_log_rewind(&j->log, resume);
	if (!rc && truncate(path, (off_t)whole))
		rc = err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
	return rc;
}

int journal_open(struct journal *j, const char *folder, int64_t resume,
	const struct run_info *info, const char *config, const char *arithmetic,
	struct err *e)
{
	struct str path = {0};
	*j = (struct journal){.fd = -1};
	str_printf(&path, "%s/journal.txt", folder);
	j->folder = xstrdup(folder);
	int rc = 0;
	if (resume >= 0 && file_exists(path.s))
		rc = take_up(j, path.s, resume, e);
	int begin = resume < 0 ? O_TRUNC : 0;
	if (!rc && (j->fd = open(path.s,
			    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | begin, 0666)) < 0)
		rc = err_set(e, EX_IOERR, "%s: %s", path.s, strerror(errno));
	rc = rc || put_info(j, info, e) || put_text(j, "config", config, e) ||
	     put_text(j, "arith", arithmetic, e);
	if (!rc && resume >= 0)
		rc = journal_event(j, resume, e, "resume");
	str_free(&path);
	return rc ? -1 : 0;
}

int journal_row(struct journal *j, const struct row *r, struct err *e)
{
	struct str line = {0};
	row_print(r, &line);
	int rc = put_line(j, &line, e);
	str_free(&line);
	return rc;
}

int journal_event(struct journal *j, int64_t step, struct err *e, const char *fmt, ...)
{
	struct str line = {0};
	char now[NUM_TEXT], text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *p = text; *p; p++)
		if (*p == '\n')
			*p = ' ';
	str_printf(&line, "# event %s step=%lld %s", clock_text(now, clock_wall()),
		(long long)step, text);
	int rc = put_line(j, &line, e);
	str_free(&line);
	return rc;
}

int journal_publish(struct journal *j, struct err *e)
{
	struct str path = {0};
	struct durable d;
	str_printf(&path, "%s/run.h5", j->folder);
	fdatasync(j->fd); /* a resumed run reads the journal, not run.h5 */
	durable_begin(&d, path.s);
	int rc = run_log_write(&j->log, d.tmp, e) || durable_commit(&d, e);
	durable_abort(&d);
	str_free(&path);
	j->published = clock_seconds();
	return rc ? -1 : 0;
}

void journal_close(struct journal *j)
{
	if (j->fd >= 0)
		close(j->fd);
	free(j->folder);
	run_log_free(&j->log);
	*j = (struct journal){.fd = -1};
}

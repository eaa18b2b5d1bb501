/* The journal: one write() per line, so a killed run loses at most one line; and run.h5 from it. */
#include "base/file.h"
#include "run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one writer ------------------------------------------------------------------ */

/* Sets the error about a lock, with the process that holds it if the journal's head names it. */
static int set_lock_error(const char *dir, const char *path, struct err *e)
{
	scoped_str text = {0};
	struct run_log l = {0};
	size_t whole;
	int fd = file_open_plain(path, O_RDONLY);
	int rc = fd < 0 || file_read_rest(fd, path, SIZE_MAX, &text, &(struct err){0}) ||
		 run_log_lines(&l, &text, &whole, &(struct err){0});
	const struct run_info *i = &l.info;
	if (fd >= 0)
		close(fd);
	char who[256] = "";
	char here[64] = "";
	gethostname(here, sizeof(here) - 1);
	/* A resumed run takes the lock before it writes its head, so the last head may be from a
	 * process that has ended. */
	bool ended = i->host && !strcmp(i->host, here) && kill((pid_t)i->pid, 0) &&
		     errno == ESRCH;
	if (!rc && i->started && i->host && i->pid && !ended)
		snprintf(who, sizeof(who), " (process %lld on %.64s%s%.64s, since %.32s)",
			(long long)i->pid, i->host, i->job ? ", job " : "",
			i->job ? i->job : "", i->started);
	err_set(e, EX_USAGE,
		"%s: another pt-train is writing to this directory%s; wait until it ends, "
		"or stop it%s",
		dir, who, advice_on(ADVICE_RUN_IN_USE));
	run_log_free(&l);
	return -1;
}

static bool lacks_locks(int why)
{
	return why == ENOLCK || why == ENOSYS || why == EOPNOTSUPP || why == EINVAL;
}

/* Tries for max_secs to lock the journal, and reports which process holds the lock. */
int journal_lock(const char *dir, bool create, double max_secs, int *fd, struct err *e)
{
	double begin = clock_seconds();
	static int warned;
	bool has_informed = false;
	int why, rc = 0;
	scoped_ptr char *path = text_printf("%s/journal.txt", dir);
	while ((why = file_lock(path, create, fd)) == EAGAIN &&
		clock_seconds() - begin < max_secs) {
		if (!has_informed)
			info("%s: another pt-train is writing to this directory; waiting "
			     "up to %g s until it ends",
				dir, max_secs);
		has_informed = true;
		clock_sleep(0.05);
	}
	if (why == EAGAIN)
		rc = set_lock_error(dir, path, e);
	else if ((why == ELOOP || why == EISDIR || why == EMLINK) &&
		 file_check_plain(path, e))
		rc = -1;
	else if (lacks_locks(why) && !warned++)
		warn("%s: the file system has no locks (%s); make sure that no other "
		     "run writes to this directory",
			dir, strerror(why));
	else if (why && !lacks_locks(why) &&
		 (create || (why != ENOENT && why != ENOTDIR)))
		rc = err_set(e, EX_IOERR, "%s: %s", path, strerror(why));
	return rc;
}

/* ---- lines ----------------------------------------------------------------------- */

/* Removes an incomplete last line from the file, after a failed write at `begin`. */
static void truncate_partial_line(struct journal *j, off_t begin)
{
	off_t end = lseek(j->fd, 0, SEEK_END);
	size_t n = begin >= 0 && end > begin ? (size_t)(end - begin) : 0;
	bool is_own_text = j->written + n <= j->lines.len;
	while (is_own_text && n && j->lines.s[j->written + n - 1] != '\n')
		n--;
	j->has_partial_line = !is_own_text || ftruncate(j->fd, begin + (off_t)n);
	if (!j->has_partial_line)
		j->written += n;
}

/* Syncs the file. If a disk or a file server reports only now that it is full, the lost lines
 * will be written again. */
static int sync_lines(struct journal *j, struct err *e)
{
	struct str *l = &j->lines;
	if (fdatasync(j->fd)) {
		err_set(e, EX_IOERR, "%s/journal.txt: %s", j->dir, strerror(errno));
		if (j->written && !ftruncate(j->fd, (off_t)j->synced))
			j->written = 0;
		return -1;
	}
	j->synced = lseek(j->fd, 0, SEEK_END);
	l->len -= j->written;
	memmove(l->s, l->s + j->written, l->len);
	j->written = 0;
	return 0;
}

int journal_flush(struct journal *j, struct err *e)
{
	enum { MAX_UNSYNCED = 1 << 20 };
	size_t n_bytes = j->lines.len - j->written;
	if (!n_bytes)
		return 0;
	off_t begin = lseek(j->fd, 0, SEEK_END);
	/* end a partial line first */
	if ((j->has_partial_line && write_all(j->fd, "\n", 1)) ||
		write_all(j->fd, j->lines.s + j->written, n_bytes)) {
		err_set(e, EX_IOERR, "%s/journal.txt: %s", j->dir, strerror(errno));
		if (!j->has_partial_line)
			truncate_partial_line(j, begin);
		return -1;
	}
	j->has_partial_line = false;
	j->written = j->lines.len;
	return j->written > MAX_UNSYNCED ? sync_lines(j, e) : 0;
}

int64_t journal_n_unwritten(const struct journal *j)
{
	int64_t n = 0;
	for (size_t i = j->written; i < j->lines.len; i++)
		n += j->lines.s[i] == '\n';
	return n;
}

/* Adds a line to the log, and to the next flush. */
static int append_line(struct journal *j, const struct str *line, struct err *e)
{
	if (run_log_line(&j->log, line->s, line->len, e))
		return -1;
	str_add(&j->lines, line->s, line->len);
	str_putc(&j->lines, '\n');
	return 0;
}

/* Adds the lines of a text, each with the prefix "# WORD ". */
static int add_lines(struct journal *j, const char *word, const char *text, struct err *e)
{
	scoped_str line = {0};
	int rc = 0;
	while (*text && !rc) {
		size_t n = strcspn(text, "\n");
		str_clear(&line);
		str_printf(&line, "# %s %.*s", word, (int)n, text);
		rc = append_line(j, &line, e);
		text += n + (text[n] == '\n');
	}
	return rc;
}

static int append_info(struct journal *j, const struct run_info *info, struct err *e)
{
	scoped_str text = {0};
	for (const struct h5_field *f = run_fields; f->name; f++)
		h5_field_append(&text, f, info);
	return add_lines(j, "meta", text.s, e);
}

/* Appends "# event TIME step=N TEXT" as one line: newlines in the text become spaces. */
static int append_event(struct journal *j, int64_t step, const char *text, struct err *e)
{
	scoped_str line = {0};
	char now[NUM_TEXT];
	str_printf(&line, "# event %s step=%lld %s", clock_text(now, clock_wall()),
		(long long)step, text);
	for (char *p = line.s; *p; p++)
		if (*p == '\n')
			*p = ' ';
	return append_line(j, &line, e);
}

/* ---- the log of an earlier run ------------------------------------------------------ */

/* Sets *text and *h5 to the first free names DIR/journal.txt.N and DIR/run.h5.N. */
static void find_free_names(const char *dir, struct str *text, struct str *h5)
{
	int n = 1;
	do {
		str_clear(text);
		str_clear(h5);
		str_printf(text, "%s/journal.txt.%d", dir, n);
		str_printf(h5, "%s/run.h5.%d", dir, n++);
	} while (file_exists(text->s) || file_exists(h5->s));
}

int journal_archive(const char *dir, struct err *e)
{
	scoped_str path = {0}, journal_copy = {0}, h5_copy = {0}, journal = {0};
	find_free_names(dir, &journal_copy, &h5_copy);
	str_printf(&path, "%s/journal.txt", dir);
	int fd = file_open_plain(path.s, O_RDONLY);
	int rc = fd < 0 ? 0 : file_read_rest(fd, path.s, SIZE_MAX, &journal, e);
	if (fd >= 0)
		close(fd);
	/* copied, since the file itself has the lock */
	if (rc || (journal.len && file_replace(journal_copy.s, &journal, e)))
		return -1;
	str_clear(&path);
	str_printf(&path, "%s/run.h5", dir);
	bool has_h5 = !rename(path.s, h5_copy.s);
	if (!has_h5 && errno != ENOENT)
		return err_errno(e, path.s);
	warn("%s: no checkpoint, so the run starts from the beginning; the log of the steps so far "
	     "is kept in %s%s%s",
		dir, journal.len ? journal_copy.s : "",
		journal.len && has_h5 ? " and " : "", has_h5 ? h5_copy.s : "");
	return 0;
}

/* Returns the number of rows up to `step` that `log` has, but `subset` lacks. */
static int64_t count_missing(
	const struct run_log *log, const struct run_log *subset, int64_t step)
{
	int64_t n = 0;
	for (int64_t i = 0, k = 0; i < log->n_rows; i++) {
		double s = run_log_value(log, i, COL_STEP);
		while (k < subset->n_rows && run_log_value(subset, k, COL_STEP) < s)
			k++;
		n += s <= (double)step &&
		     !(k < subset->n_rows && run_log_value(subset, k, COL_STEP) == s);
	}
	return n;
}

/* Renames run.h5 to run.h5.N, with a warning, if it is unreadable or has rows that the journal
 * lacks: otherwise it would be rewritten from the journal. */
static int keep_h5_with_lost_rows(const struct journal *j, int64_t resume, struct err *e)
{
	scoped_str text = {0}, h5 = {0};
	struct run_log old;
	struct err why = {0};
	scoped_ptr char *path = text_printf("%s/run.h5", j->dir);
	int fd = file_open_plain(path, O_RDONLY);
	if (fd < 0)
		return 0;
	close(fd);
	int64_t missing = -1;
	if (!run_log_read(&old, path, &why)) {
		missing = count_missing(&old, &j->log, resume);
		run_log_free(&old);
	}
	if (!missing)
		return 0;
	find_free_names(j->dir, &text, &h5);
	if (rename(path, h5.s))
		return err_errno(e, path);
	if (missing > 0)
		warn("%s/journal.txt lacks %lld row%s of run.h5; the old run.h5 is kept as %s",
			j->dir, (long long)missing, plural(missing), h5.s);
	else
		warn("%s; the file is kept as %s", why.msg, h5.s);
	return 0;
}

/* ---- a run's journal ------------------------------------------------------------- */

/* Reads the complete lines of an existing journal, and truncates an incomplete last line; or
 * truncates the whole file, if no run is resumed. */
static int read_journal(
	struct journal *j, const char *path, int64_t resume, struct err *e)
{
	scoped_str text = {0};
	size_t whole = 0;
	int rc = resume < 0 ? 0
			    : file_read_rest(j->fd, path, SIZE_MAX, &text, e) ||
				      run_log_lines(&j->log, &text, &whole, e);
	if (!rc && ftruncate(j->fd, (off_t)whole))
		rc = err_errno(e, path);
	return rc ? -1 : 0;
}

/* Writes the whole head or, on a full disk, nothing. */
static int write_head(struct journal *j, int64_t resume, const struct run_info *info,
	const char *config, const char *arithmetic, struct err *e)
{
	static char resumed[] = "resume";
	off_t begin = lseek(j->fd, 0, SEEK_END);
	if (append_info(j, info, e) || add_lines(j, "config", config, e) ||
		add_lines(j, "arith", arithmetic, e) ||
		(resume >= 0 && append_event(j, resume, resumed, e)))
		return -1;
	if (!journal_flush(j, e))
		return 0;
	if (begin < 0 || ftruncate(j->fd, begin))
		err_prefix(e, "an incomplete head remains in ");
	return -1;
}

int journal_open(struct journal *j, const char *dir, int64_t resume, bool no_steps,
	const struct run_info *info, const char *config, const char *arithmetic,
	struct err *e)
{
	scoped_str path = {0};
	struct stat last;
	*j = (struct journal){.fd = -1};
	str_printf(&path, "%s/journal.txt", dir);
	j->dir = xstrdup(dir);
	j->fd = file_open_plain(path.s, O_RDWR | O_CREAT | O_APPEND);
	if (j->fd >= 0 && !fstat(j->fd, &last)) /* reading may truncate the file */
		j->previous_end =
			(double)last.st_mtim.tv_sec + 1e-9 * (double)last.st_mtim.tv_nsec;
	int rc = j->fd < 0 ? err_errno(e, path.s) : read_journal(j, path.s, resume, e);
	int64_t n_rows = j->log.n_rows;
	j->previous_ranks = rc ? 0 : j->log.info.ranks;
	if (resume >= 0)
		run_log_rewind(&j->log, resume);
	j->synced = rc ? 0 : lseek(j->fd, 0, SEEK_END);
	rc = rc || (resume >= 0 && keep_h5_with_lost_rows(j, resume, e));
	if (!rc && !(no_steps && j->log.n_rows == n_rows && j->log.info.started))
		rc = write_head(j, resume, info, config, arithmetic, e);
	str_clear(&path);
	str_printf(&path, "%s/run.h5", dir);
	if (!rc)
		durable_remove_stale(path.s);
	return rc ? -1 : 0;
}

int journal_write_row(struct journal *j, const struct row *r, struct err *e)
{
	scoped_str line = {0};
	row_print(r, &line);
	return append_line(j, &line, e) || journal_flush(j, e) ? -1 : 0;
}

int journal_write_event(struct journal *j, int64_t step, const char *text, struct err *e)
{
	return append_event(j, step, text, e) || journal_flush(j, e) ? -1 : 0;
}

bool journal_is_stale(const struct journal *j, double seconds)
{
	enum { SHARE = 20 }; /* at most 1/20 of the time */
	double age = clock_seconds() - j->published;
	return age >= seconds && age >= SHARE * j->publish_secs;
}

int journal_publish(struct journal *j, struct err *e)
{
	struct durable d = {0};
	double begin = clock_seconds();
	scoped_ptr char *path = text_printf("%s/run.h5", j->dir);
	/* the journal first, because a resumed run reads it, not run.h5 */
	int rc = journal_flush(j, e) || sync_lines(j, e);
	rc = rc || durable_begin(&d, path, e) || run_log_write(&j->log, d.tmp, e) ||
	     durable_commit(&d, e);
	durable_abort(&d);
	j->published = clock_seconds();
	j->publish_secs = j->published - begin;
	return rc ? -1 : 0;
}

void journal_close(struct journal *j)
{
	if (j->fd >= 0)
		close(j->fd);
	free(j->dir);
	str_free(&j->lines);
	run_log_free(&j->log);
	*j = (struct journal){.fd = -1};
}

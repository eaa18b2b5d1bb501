/* Reports audits (--referee): the share of the work, the columns, and the file of suspects. */
#include "train/train_internal.h"

#include "base/file.h"
#include "referee/audit.h"
#include "train/selftest.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

void referee_report_start(struct run *r)
{
	const struct audit *a = r->t.audit;
	if (!a)
		return;
	scoped_str text = {0};
	double cost = audit_cost(a->c.turns, r->t.mesh.degree[AXIS_PP]);
	str_printf(&text, "referee: 1 of %lld micro-batches of each data rank in ",
		(long long)a->c.turns);
	if (a->c.every == 1)
		str_puts(&text, "every step");
	else
		str_printf(&text, "one of %lld steps", (long long)a->c.every);
	str_printf(&text, ": %.3g %% of the work", 100 * cost / (double)a->c.every);
	if (a->c.data_ranks == 1)
		str_puts(&text,
			"; with one data rank, each rank is its own referee, which "
			"detects only faults that do not return");
	info("%s", text.s);
	report_event(r, "%s", text.s);
}

void referee_fill_row(const struct run *r, struct row *row)
{
	const struct audit *a = r->t.audit;
	if (!a)
		return;
	row_set(row, COL_AUDITED, (double)a->n_audited);
	row_set(row, COL_MISMATCHES, (double)a->n_mismatches);
}

/* ---- the file of suspects ------------------------------------------------------------ */

/* Appends the faults in the file to *x. Of a long file, only the last lines are read. */
static int read_file(const char *path, struct strikes *x, struct err *e)
{
	enum { MAX_BYTES = 1 << 20 };
	scoped_str text = {0};
	int fd = file_open_plain(path, O_RDONLY);
	if (fd < 0)
		return errno == ENOENT ? 0 : err_errno(e, path);
	off_t end = lseek(fd, 0, SEEK_END);
	int64_t n = min64(end, MAX_BYTES);
	str_reserve(&text, (size_t)n + 1);
	int rc = end < 0 ? err_errno(e, path)
			 : file_read_at(fd, path, text.s, (size_t)n, end - n, e);
	close(fd);
	if (rc)
		return -1;
	const char *line = n < end ? memchr(text.s, '\n', (size_t)n) : NULL;
	size_t skipped = line ? (size_t)(line + 1 - text.s) : 0;
	int64_t n_invalid = strikes_parse(x, text.s + skipped, (size_t)n - skipped);
	if (n_invalid)
		warn("%s: %lld line%s not valid and ignored", path, (long long)n_invalid,
			n_invalid == 1 ? " is" : "s are");
	return 0;
}

void referee_begin(struct run *r)
{
	struct audit *a = r->t.audit;
	struct err e = {0};
	if (!a)
		return;
	a->test_device = r->t.d.discrete ? selftest_repeat : NULL;
	struct strikes read = {0};
	scoped_str path = {0};
	str_printf(&path, "%s/suspects", r->dir.path ? r->dir.path : "");
	if (run_is_first(r) && r->dir.path && read_file(path.s, &read, &e))
		warn("%s; its faults do not count", e.msg);
	comm_bcast(r->world, &read.n, sizeof(read.n), 0);
	if (!run_is_first(r) && read.n)
		read.strike = xcalloc((size_t)read.n, sizeof(*read.strike));
	if (read.n)
		comm_bcast(
			r->world, read.strike, read.n * (int64_t)sizeof(*read.strike), 0);
	for (int64_t i = 0; i < read.n; i++)
		strikes_add(&a->strikes, &read.strike[i]);
	strikes_release(&read);
	if (!audit_watch(&r->t))
		return;
	if (run_is_first(r))
		warn("%s names a device of this run, for a fault within a day", path.s);
	report_event(r,
		"referee: a device of this run has had a fault within a day: the next %d "
		"steps are audited",
		AUDIT_WATCHED_STEPS);
}

/* Begins a new line if the last one is incomplete, since its writer was killed. */
static int end_partial_line(int fd)
{
	char last = '\n';
	off_t end = lseek(fd, 0, SEEK_END);
	if (end > 0 && pread(fd, &last, 1, end - 1) != 1)
		return -1;
	return last == '\n' ? 0 : write_all(fd, "\n", 1);
}

/* Appends text to the file of suspects in the run directory. */
static int append_to_file(const struct run *r, const struct str *text, struct err *e)
{
	scoped_str path = {0};
	str_printf(&path, "%s/suspects", r->dir.path);
	int fd = file_open_plain(path.s, O_RDWR | O_CREAT | O_APPEND);
	int rc = fd < 0 || end_partial_line(fd) ? -1 : write_all(fd, text->s, text->len);
	rc = rc || fsync(fd) ? -1 : 0;
	if (rc)
		err_set(e, EX_IOERR, "%s: %s", path.s, strerror(errno));
	if (fd >= 0)
		close(fd);
	return rc;
}

void referee_write_suspects(struct run *r)
{
	struct audit *a = r->t.audit;
	struct err e = {0};
	char now[NUM_TEXT];
	scoped_str text = {0};
	if (!a || !a->n_suspects)
		return;
	clock_text(now, a->trial_time);
	for (int i = 0; i < a->n_suspects; i++) {
		const struct audit_suspect *s = &a->suspect[i];
		str_printf(&text, "%s\t%lld\t%s\t%s\t%d\t%s\t%s\n", now,
			(long long)a->trial_step, s->host, s->device, s->rank,
			audit_verdict_names[s->verdict], s->tensor);
	}
	a->n_suspects = 0;
	if (run_is_first(r) && r->dir.path && append_to_file(r, &text, &e))
		warn("%s", e.msg);
}

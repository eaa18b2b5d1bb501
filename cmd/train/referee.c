/* Reports audits (--referee): the share of the work, the columns, and the file of suspects. */
#include "train/train_internal.h"

#include "base/file.h"
#include "referee/audit.h"

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

/* Appends text to the file of suspects in the run directory. */
static int append_to_file(const struct run *r, const struct str *text, struct err *e)
{
	scoped_str path = {0};
	str_printf(&path, "%s/suspects", r->dir.path);
	int fd = file_open_plain(path.s, O_WRONLY | O_CREAT | O_APPEND);
	int rc = fd < 0 ? -1 : write_all(fd, text->s, text->len);
	rc = rc || fsync(fd) ? -1 : 0;
	if (rc)
		err_set(e, EX_IOERR, "%s: %s", path.s, strerror(errno));
	if (fd >= 0)
		close(fd);
	return rc;
}

void referee_write_suspects(struct run *r, const struct step_result *step)
{
	struct audit *a = r->t.audit;
	struct err e = {0};
	char now[NUM_TEXT];
	scoped_str text = {0};
	if (!a || !a->n_suspects)
		return;
	clock_text(now, clock_wall());
	bool again = step->check_word[STEP_CHECK_AUDIT] % GRID_PRIME != 0;
	for (int i = 0; i < a->n_suspects; i++) {
		const struct audit_suspect *s = &a->suspect[i];
		str_printf(&text, "%s\t%lld\t%s\t%s\t%d\t%s\t%s\n", now,
			(long long)a->trial_step, s->host, s->device, s->rank,
			audit_verdict_names[again ? max64(s->verdict, AUDIT_PERSISTENT)
						  : s->verdict],
			s->tensor);
	}
	a->n_suspects = 0;
	if (run_is_first(r) && r->dir.path && append_to_file(r, &text, &e))
		warn("%s", e.msg);
}

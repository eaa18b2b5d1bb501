/* Curves, as text and through gnuplot. */
#include "compare/compare.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct range {
	double low, high;
};

static void widen(struct range *r, double v)
{
	r->low = v < r->low ? v : r->low;
	r->high = v > r->high ? v : r->high;
}

static bool point(const struct row *r, int column, int by, double *x, double *y)
{
	*x = r->v[by];
	*y = r->v[column];
	return row_has(r, column) && row_has(r, by) && isfinite(*y);
}

/* Both ranges over all logs; false when there is no point. */
static bool find_ranges(const struct run_log *logs, int n, int column, int by,
	struct range *xr, struct range *yr)
{
	double x, y;
	*xr = *yr = (struct range){INFINITY, -INFINITY};
	for (int i = 0; i < n; i++) {
		for (int64_t k = 0; k < logs[i].n_rows; k++) {
			if (!point(&logs[i].rows[k], column, by, &x, &y))
				continue;
			widen(xr, x);
			widen(yr, y);
		}
	}
	return xr->low <= xr->high;
}

/* ---- text ------------------------------------------------------------------------ */

enum { MARGIN = 10, SEVERAL = 127 };

static const char marks[] = "o+x*#%";

static char mark_of(int run)
{
	return marks[run % (int)(sizeof(marks) - 1)];
}

static int place(double v, struct range r, int cells)
{
	double part = r.high > r.low ? (v - r.low) / (r.high - r.low) : 0.5;
	int at = (int)(part * (cells - 1) + 0.5);
	return at < 0 ? 0 : at >= cells ? cells - 1 : at;
}

struct canvas {
	char *cells; /* [rows][cols]: 0, the number of a run from 1, or SEVERAL */
	int cols, rows;
	struct range x, y;
};

static void dot(struct canvas *c, int run, int col, double y)
{
	char *cell = &c->cells[(c->rows - 1 - place(y, c->y, c->rows)) * c->cols + col];
	char mark = (char)(run + 1);
	*cell = *cell == 0 || *cell == mark ? mark : SEVERAL;
}

/* Points, and the columns between them, so that sparse curves are curves. */
static void draw(struct canvas *c, const struct run_log *l, int run, int column, int by)
{
	double x, y, before = 0;
	int last = -1;
	for (int64_t k = 0; k < l->n_rows; k++) {
		if (!point(&l->rows[k], column, by, &x, &y))
			continue;
		int col = place(x, c->x, c->cols);
		for (int i = last + 1; last >= 0 && i < col; i++)
			dot(c, run, i, before + (y - before) * (i - last) / (col - last));
		dot(c, run, col, y);
		last = col;
		before = y;
	}
}

static void print_cell(char cell, bool color, struct str *out)
{
	if (cell == 0)
		str_putc(out, ' ');
	else if (cell == SEVERAL)
		str_putc(out, '@');
	else if (color)
		str_printf(out, "\033[3%dm%c\033[0m", 1 + cell % 6, mark_of(cell - 1));
	else
		str_putc(out, mark_of(cell - 1));
}

void plot_text(const struct run_log *logs, int n, int column, int by, int width,
	int height, bool color, struct str *out)
{
	struct canvas c = {.cols = width - MARGIN - 2, .rows = height - 3};
	c.cols = c.cols < 10 ? 10 : c.cols;
	c.rows = c.rows < 4 ? 4 : c.rows;
	if (!find_ranges(logs, n, column, by, &c.x, &c.y)) {
		str_printf(out, "no %s to draw\n", columns[column].name);
		return;
	}
	c.cells = xcalloc((size_t)c.cols * (size_t)c.rows, 1);
	for (int i = 0; i < n; i++)
		draw(&c, &logs[i], i, column, by);
	for (int r = 0; r < c.rows; r++) {
		double y = c.y.high - (c.y.high - c.y.low) * r / (c.rows - 1);
		if (r % 4 == 0 || r == c.rows - 1)
			str_printf(out, "%*.4g |", MARGIN, y);
		else
			str_printf(out, "%*s |", MARGIN, "");
		for (int i = 0; i < c.cols; i++)
			print_cell(c.cells[r * c.cols + i], color, out);
		while (out->len && out->s[out->len - 1] == ' ')
			out->len--;
		str_putc(out, '\n');
	}
	str_printf(out, "%*s +", MARGIN, columns[column].name);
	for (int i = 0; i < c.cols; i++)
		str_putc(out, '-');
	str_printf(out, "\n%*s  %-*.0f%*.0f %s\n", MARGIN, "", c.cols / 2, c.x.low,
		c.cols - c.cols / 2 - (int)strlen(columns[by].name) - 1, c.x.high,
		columns[by].name);
	for (int i = 0; i < n; i++)
		str_printf(out, "%*s  %c %s\n", MARGIN, "", mark_of(i), logs[i].name);
	if (n > 1)
		str_printf(out, "%*s  @ several at one place\n", MARGIN, "");
	free(c.cells);
}

/* ---- gnuplot --------------------------------------------------------------------- */

/* What could mean something to gnuplot goes as an octal escape, which means a character and
 * nothing else. (In single quotes it trips over two quotes in a row.) */
static void quote(struct str *out, const char *s)
{
	str_putc(out, '"');
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (isalnum(c) || c >= 0x80 || strchr(" ./_-", c))
			str_putc(out, *s);
		else if (c > ' ')
			str_printf(out, "\\%04o", c);
	}
	str_putc(out, '"');
}

/* A curve, no finer than a picture can show: of so many rows that lie between two points of it,
 * the lowest and the highest. */
static void print_curve(const struct run_log *l, int column, int by, struct str *out)
{
	enum { GROUPS = 4096 };
	int64_t group = ceil_div(max64(l->n_rows, 1), GROUPS);
	for (int64_t begin = 0; begin < l->n_rows; begin += group) {
		int64_t end = min64(l->n_rows, begin + group), at[2] = {-1, -1};
		double x, y, low = INFINITY, high = -INFINITY;
		for (int64_t k = begin; k < end; k++) {
			if (!point(&l->rows[k], column, by, &x, &y))
				continue;
			if (y < low)
				low = y, at[0] = k;
			if (y > high)
				high = y, at[1] = k;
		}
		for (int i = 0; i < 2; i++) {
			int64_t k = i ? max64(at[0], at[1]) : min64(at[0], at[1]);
			if (k >= 0 && (!i || at[0] != at[1]) &&
				point(&l->rows[k], column, by, &x, &y))
				str_printf(out, "%.17g %.9g\n", x, y);
		}
	}
}

static void script(const struct run_log *logs, int n, int column, int by,
	const char *terminal, struct str *out)
{
	str_printf(out, "set terminal %s\nset key top right noenhanced\nset grid\n",
		terminal);
	str_printf(out, "set xlabel '%s'\nset ylabel '%s' noenhanced\n", columns[by].name,
		columns[column].name);
	for (int i = 0; i < n; i++) {
		str_printf(out, "$run%d << EOD\n", i);
		print_curve(&logs[i], column, by, out);
		str_puts(out, "EOD\n");
	}
	str_puts(out, "plot ");
	for (int i = 0; i < n; i++) {
		/* later curves are thinner, so that equal ones show */
		str_printf(out, "%s$run%d using 1:2 with lines linewidth %d title ",
			i ? ", " : "", i, i == 0 ? 4 : 2);
		quote(out, logs[i].name);
	}
	str_putc(out, '\n');
}

/* The script as a file without a name. */
static int script_file(const struct str *text, struct err *e)
{
	int fd = memfd_create("pt-compare", MFD_CLOEXEC);
	if (fd >= 0 && !write_all(fd, text->s, text->len) && !lseek(fd, 0, SEEK_SET))
		return fd;
	err_set(e, EX_IOERR, "a script for gnuplot: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

static pid_t start_gnuplot(int from, const int to[2])
{
	pid_t pid = fork();
	if (pid)
		return pid;
	dup2(from, STDIN_FILENO);
	dup2(to[1], STDOUT_FILENO);
	close(to[0]);
	close(to[1]);
	execlp("gnuplot", "gnuplot", "-", (char *)NULL);
	_exit(127);
}

/* No name and no shell is between. The picture comes through a pipe, because gnuplot does not
 * look whether what it writes fits on the disk. */
static int run_gnuplot(
	const struct str *text, int picture, const char *name, struct err *e)
{
	int pipes[2], status = 0, from = script_file(text, e), why = 0;
	if (from < 0)
		return -1;
	if (pipe(pipes)) {
		close(from);
		return err_set(e, EX_IOERR, "pipe: %s", strerror(errno));
	}
	pid_t pid = start_gnuplot(from, pipes);
	close(pipes[1]);
	if (pid < 0 || copy_all(pipes[0], picture))
		why = errno;
	close(pipes[0]);
	bool all = lseek(from, 0, SEEK_CUR) == (off_t)text->len; /* was read */
	close(from);
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return err_set(e, EX_IOERR, "gnuplot: %s", strerror(why ? why : errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return err_set(e, EX_FAILED,
			"gnuplot cannot be started (Debian: gnuplot-nox); --graph draws "
			"without it");
	if (why)
		return err_set(e, EX_IOERR, "%s: %s", name, strerror(why));
	return status || !all ? err_set(e, EX_FAILED, "gnuplot failed") : 0;
}

/* How gnuplot is told what to draw, by the end of the name; NULL: no such kind. */
static const char *terminal_of(const char *path)
{
	static const struct {
		const char *suffix, *terminal;
	} kinds[] = {
		{".svg", "svg size 900,540 dynamic background rgb 'white'"},
		{".png", "pngcairo size 900,540"},
		{".pdf", "pdfcairo size 18cm,11cm"},
	};
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		size_t len = strlen(path), suffix = strlen(kinds[i].suffix);
		if (len > suffix && !strcmp(path + len - suffix, kinds[i].suffix))
			return kinds[i].terminal;
	}
	return NULL;
}

int plot_check(const char *path, struct err *e)
{
	return terminal_of(path)
		       ? 0
		       : err_set(e, EX_USAGE,
				 "plot: '%s' ends in none of .svg, .png, .pdf", path);
}

int plot_file(const struct run_log *logs, int n, int column, int by, const char *path,
	struct err *e)
{
	if (plot_check(path, e))
		return -1;
	struct range xr, yr;
	if (!find_ranges(logs, n, column, by, &xr, &yr))
		return err_set(e, EX_DATAERR, "no %s to draw", columns[column].name);
	struct durable d;
	struct str text = {0};
	if (durable_begin_own(&d, path, e))
		return -1;
	int fd = open(d.tmp, O_WRONLY | O_CLOEXEC);
	int rc = fd < 0 ? err_set(e, EX_IOERR, "%s: %s", d.tmp, strerror(errno)) : 0;
	if (!rc) {
		script(logs, n, column, by, terminal_of(path), &text);
		rc = run_gnuplot(&text, fd, path, e);
		close(fd);
	}
	rc = rc || durable_commit(&d, e);
	durable_abort(&d);
	str_free(&text);
	return rc ? -1 : 0;
}

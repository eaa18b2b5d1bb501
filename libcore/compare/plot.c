/* Curves, as text and through gnuplot. */
#include "base/file.h"
#include "compare/compare.h"

#include <ctype.h>
#include <errno.h>
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

/* ---- points ---------------------------------------------------------------------- */

const char *const plot_axis_names[] = {"step", "tokens", "seconds", "bytes", NULL};

static const struct {
	int column;
	bool of_a_step; /* mean over the steps since the previous row */
} axes[N_PLOT_AXES] = {
	[AXIS_STEPS] = {COL_STEP, false},
	[AXIS_TOKENS] = {COL_TOKENS, false},
	[AXIS_SECONDS] = {COL_DT, true},
	[AXIS_BYTES] = {COL_SENT, true},
};

struct point {
	double x, y;
};

/* Returns the points of a curve, in the order of the rows; allocated. */
static struct point *points_of(
	const struct run_log *l, int column, enum plot_axis axis, int64_t *n)
{
	struct point *p = xcalloc((size_t)l->n_rows + 1, sizeof(*p));
	int by = axes[axis].column;
	double sum = 0, step = 0;
	*n = 0;
	for (int64_t k = 0; k < l->n_rows; k++) {
		const struct row *r = &l->rows[k];
		double x = r->v[by];
		if (axes[axis].of_a_step && row_has(r, by)) {
			sum += x * (r->v[COL_STEP] - step);
			step = r->v[COL_STEP];
		}
		if (axes[axis].of_a_step)
			x = sum;
		else if (!row_has(r, by))
			continue;
		if (row_has(r, column) && isfinite(r->v[column]) && isfinite(x))
			p[(*n)++] = (struct point){x, r->v[column]};
	}
	return p;
}

/* The ranges of x and y over all logs; false if there is no point. */
static bool find_ranges(const struct run_log *logs, int n, int column,
	enum plot_axis axis, struct range *xr, struct range *yr)
{
	*xr = *yr = (struct range){INFINITY, -INFINITY};
	for (int i = 0; i < n; i++) {
		int64_t n_points;
		struct point *p = points_of(&logs[i], column, axis, &n_points);
		for (int64_t k = 0; k < n_points; k++) {
			widen(xr, p[k].x);
			widen(yr, p[k].y);
		}
		free(p);
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

/* Draws the points, and lines between them. */
static void draw(struct canvas *c, const struct run_log *l, int run, int column,
	enum plot_axis axis)
{
	int64_t n;
	struct point *p = points_of(l, column, axis, &n);
	double before = 0;
	int last = -1;
	for (int64_t k = 0; k < n; k++) {
		int col = place(p[k].x, c->x, c->cols);
		for (int i = last + 1; last >= 0 && i < col; i++)
			dot(c, run, i,
				before + (p[k].y - before) * (i - last) / (col - last));
		dot(c, run, col, p[k].y);
		last = col;
		before = p[k].y;
	}
	free(p);
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

void plot_text(const struct run_log *logs, int n, int column, enum plot_axis axis,
	int width, int height, bool color, struct str *out)
{
	struct canvas c = {.cols = width - MARGIN - 2, .rows = height - 3};
	c.cols = c.cols < 10 ? 10 : c.cols;
	c.rows = c.rows < 4 ? 4 : c.rows;
	if (!find_ranges(logs, n, column, axis, &c.x, &c.y)) {
		str_printf(out, "no values of %s\n", columns[column].name);
		return;
	}
	c.cells = xcalloc((size_t)c.cols * (size_t)c.rows, 1);
	for (int i = 0; i < n; i++)
		draw(&c, &logs[i], i, column, axis);
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
		c.cols - c.cols / 2 - (int)strlen(plot_axis_names[axis]) - 1, c.x.high,
		plot_axis_names[axis]);
	for (int i = 0; i < n; i++)
		str_printf(out, "%*s  %c %s\n", MARGIN, "", mark_of(i), logs[i].name);
	if (n > 1)
		str_printf(out, "%*s  @ several at one place\n", MARGIN, "");
	free(c.cells);
}

/* ---- gnuplot --------------------------------------------------------------------- */

/* Quotes a string for gnuplot, with octal escapes for special characters. (In single quotes, gnuplot
 * fails on two quotes in a row.) */
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

/* Prints the points of a curve with limited resolution: the lowest and the highest point of each
 * group of consecutive points. */
static void print_curve(
	const struct run_log *l, int column, enum plot_axis axis, struct str *out)
{
	enum { GROUPS = 4096 };
	int64_t n;
	struct point *p = points_of(l, column, axis, &n);
	int64_t group = ceil_div(max64(n, 1), GROUPS);
	for (int64_t begin = 0; begin < n; begin += group) {
		int64_t end = min64(n, begin + group), low = begin, high = begin;
		for (int64_t k = begin; k < end; k++) {
			low = p[k].y < p[low].y ? k : low;
			high = p[k].y > p[high].y ? k : high;
		}
		int64_t first = min64(low, high), second = max64(low, high);
		str_printf(out, "%.17g %.9g\n", p[first].x, p[first].y);
		if (second != first)
			str_printf(out, "%.17g %.9g\n", p[second].x, p[second].y);
	}
	free(p);
}

static void script(const struct run_log *logs, int n, int column, enum plot_axis axis,
	const char *terminal, struct str *out)
{
	str_printf(out, "set terminal %s\nset key top right noenhanced\nset grid\n",
		terminal);
	str_printf(out, "set xlabel '%s'\nset ylabel '%s' noenhanced\n",
		plot_axis_names[axis], columns[column].name);
	for (int i = 0; i < n; i++) {
		str_printf(out, "$run%d << EOD\n", i);
		print_curve(&logs[i], column, axis, out);
		str_puts(out, "EOD\n");
	}
	str_puts(out, "plot ");
	for (int i = 0; i < n; i++) {
		/* later curves are thinner, so that equal curves are visible */
		str_printf(out, "%s$run%d using 1:2 with lines linewidth %d title ",
			i ? ", " : "", i, i == 0 ? 4 : 2);
		quote(out, logs[i].name);
	}
	str_putc(out, '\n');
}

/* Writes the script to an unnamed file. */
static int script_file(const struct str *text, struct err *e)
{
	int fd = memfd_create("pt-compare", MFD_CLOEXEC);
	if (fd >= 0 && !write_all(fd, text->s, text->len) && !lseek(fd, 0, SEEK_SET))
		return fd;
	err_set(e, EX_IOERR, "the script for gnuplot: %s", strerror(errno));
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

/* Runs gnuplot without a shell, and reads the picture from a pipe: gnuplot ignores write errors. */
static int run_gnuplot(const struct str *text, struct str *picture, struct err *e)
{
	enum { MAX_PICTURE = 1 << 30 };
	int pipes[2], status = 0, rc = -1, from = script_file(text, e);
	if (from < 0)
		return -1;
	if (pipe(pipes)) {
		close(from);
		return err_set(e, EX_IOERR, "pipe: %s", strerror(errno));
	}
	pid_t pid = start_gnuplot(from, pipes);
	close(pipes[1]);
	if (pid > 0)
		rc = file_read_rest(pipes[0], "gnuplot", MAX_PICTURE, picture, e);
	close(pipes[0]);
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		rc = err_set(e, EX_IOERR, "gnuplot: %s", strerror(errno));
	bool all = lseek(from, 0, SEEK_CUR) ==
		   (off_t)text->len; /* it read the whole script */
	close(from);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		return err_set(e, EX_FAILED,
			"gnuplot cannot be started (Debian: gnuplot-nox)%s",
			advice_on(ADVICE_GNUPLOT));
	return !rc && (status || !all) ? err_set(e, EX_FAILED, "gnuplot failed") : rc;
}

/* The gnuplot terminal for the suffix of a name; NULL: unknown suffix. */
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

int plot_file(const struct run_log *logs, int n, int column, enum plot_axis axis,
	const char *path, struct err *e)
{
	if (plot_check(path, e))
		return -1;
	struct range xr, yr;
	if (!find_ranges(logs, n, column, axis, &xr, &yr))
		return err_set(e, EX_DATAERR, "no values of %s", columns[column].name);
	struct str text = {0}, picture = {0};
	script(logs, n, column, axis, terminal_of(path), &text);
	int rc = run_gnuplot(&text, &picture, e) || file_replace(path, &picture, e);
	str_free(&text);
	str_free(&picture);
	return rc ? -1 : 0;
}

/* Graphs as text: lines of braille dots or of characters, axes with round values, a legend. */
#include "draw/graph.h"
#include "base/utf8.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char ascii_marks[] = "o+x*#%";
/* cyan, yellow, magenta, green, red, blue: readable on dark and light backgrounds */
static const char *const colors[] = {"36", "33", "35", "32", "31", "34"};

enum { SEVERAL_SERIES = -1, NO_SERIES = 0 };

/* One character of the plot. */
struct cell {
	int owner;	    /* a series (numbers from 1), SEVERAL_SERIES or NO_SERIES */
	unsigned char dots; /* braille dots: bits as in Unicode */
};

struct canvas {
	struct cell *cells; /* [rows][cols] */
	int cols, rows;
	int dx, dy; /* dots per cell */
	struct scale x, y;
	const struct graph_style *style;
};

/* Returns braille if the locale is UTF-8 and there are colors or only one series. */
static enum graph_marks choose_marks(int n_series, bool use_color)
{
	/* (the programs themselves stay in the locale "C") */
	locale_t l = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
	bool utf8 = l && !strcmp(nl_langinfo_l(CODESET, l), "UTF-8");
	if (l)
		freelocale(l);
	return utf8 && (use_color || n_series == 1) ? MARKS_BRAILLE : MARKS_ASCII;
}

/* Returns the columns of stdout's terminal, or $COLUMNS, minus one; 79 if neither is known. */
static int terminal_width(void)
{
	struct winsize w;
	const char *columns = getenv("COLUMNS");
	int64_t n;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20)
		return w.ws_col - 1;
	if (columns && !parse_int(columns, &n) && n > 20 && n <= 1000)
		return (int)n - 1;
	return 79;
}

const char *const graph_marks_words[] = {"auto", "braille", "ascii", NULL};

struct graph_style graph_style_of(const struct graph_opts *o, int n_series, bool colored)
{
	return (struct graph_style){
		.marks = o->marks ? (enum graph_marks)(o->marks - 1)
				  : choose_marks(n_series, colored),
		.color = colored,
		.width = o->width ? (int)o->width : terminal_width(),
		.height = (int)o->height,
	};
}

/* ---- drawing ----------------------------------------------------------------------- */

/* Sets the dot in column x from the left and row y from the top. */
static void draw_dot(struct canvas *c, int series, int x, int y)
{
	static const unsigned char bits[4][2] = {
		{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
	if (y < 0 || y >= c->rows * c->dy)
		return;
	struct cell *cell = &c->cells[y / c->dy * c->cols + x / c->dx];
	if (c->style->marks == MARKS_BRAILLE)
		cell->dots |= bits[y % 4][x % 2];
	if (cell->owner == NO_SERIES)
		cell->owner = series + 1;
	else if (cell->owner != series + 1)
		cell->owner = SEVERAL_SERIES;
}

/* Returns the position of a value on an axis of n cells or dots. */
static int axis_position(const struct scale *s, double v, int n)
{
	int position = (int)(scale_at(s, v) * (n - 1) + 0.5);
	return position < 0 ? 0 : position >= n ? n - 1 : position;
}

/* Returns the row of dots from the top; for values outside the scale at most one height away. */
static int dot_row(const struct scale *s, double v, int height)
{
	double position = fmax(-1, fmin(2, scale_at(s, v)));
	return height - 1 - (int)floor(position * (height - 1) + 0.5);
}

/* Draws a line between two dots; the first one is drawn already. */
static void draw_line(struct canvas *c, int series, int x0, int y0, int x1, int y1)
{
	int n = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
	for (int i = 1; i <= n; i++)
		draw_dot(c, series, x0 + (int)lround((double)(x1 - x0) * i / n),
			y0 + (int)lround((double)(y1 - y0) * i / n));
}

/* Draws the points of a series, thinned if there are many, and lines between them. */
static void draw_series(struct canvas *c, int number, const struct graph_series *s)
{
	int width = c->cols * c->dx, height = c->rows * c->dy, x = 0, y = 0;
	bool begun = false;
	scoped_ptr struct graph_point *p = xmalloc((size_t)(s->n + 1) * sizeof(*p));
	int64_t n = 0;
	for (int64_t k = 0; k < s->n; k++)
		if (scale_has(&c->x, s->p[k].x) && scale_has(&c->y, s->p[k].y))
			p[n++] = s->p[k];
	if (n > 4 * width)
		n = points_thin(p, n, &c->x, width);
	for (int64_t k = 0; k < n; k++) {
		int to_x = axis_position(&c->x, p[k].x, width);
		int to_y = dot_row(&c->y, p[k].y, height);
		if (begun)
			draw_line(c, number, x, y, to_x, to_y);
		else
			draw_dot(c, number, to_x, to_y);
		begun = true;
		x = to_x;
		y = to_y;
	}
}

/* ---- printing ---------------------------------------------------------------------- */

/* Appends the character of a cell: Braille dots, a series' mark, @ for several, or a space. */
static void append_cell(struct str *out, const struct graph_style *style, struct cell c)
{
	if (c.owner == NO_SERIES)
		str_putc(out, ' ');
	else if (style->marks == MARKS_BRAILLE) {
		str_putc(out, (char)0xe2); /* U+2800 and the dots, as UTF-8 */
		str_putc(out, (char)(0xa0 | c.dots >> 6));
		str_putc(out, (char)(0x80 | (c.dots & 0x3f)));
	} else if (c.owner == SEVERAL_SERIES)
		str_putc(out, '@');
	else
		str_putc(out, ascii_marks[(c.owner - 1) % (int)strlen(ascii_marks)]);
}

static const char *cell_color(const struct graph_style *style, int owner)
{
	if (!style->color || owner <= 0)
		return NULL;
	return colors[(owner - 1) % (int)ARRAY_LEN(colors)];
}

/* Appends cells without trailing blanks, with color codes where the color changes. */
static void append_cells(
	struct str *out, const struct graph_style *style, const struct cell *c, int n)
{
	const char *current = NULL;
	while (n > 0 && c[n - 1].owner == NO_SERIES)
		n--;
	for (int i = 0; i < n; i++) {
		const char *wanted =
			c[i].owner == NO_SERIES ? current : cell_color(style, c[i].owner);
		if (wanted != current)
			str_printf(out, "\033[%sm", wanted ? wanted : "0");
		current = wanted;
		append_cell(out, style, c[i]);
	}
	if (current)
		str_puts(out, "\033[0m");
}

/* The parts of the axes. */
enum axis_part { Y_AXIS, Y_TICK, CORNER, X_AXIS, X_TICK };
static const char *axis_text(const struct graph_style *style, enum axis_part part)
{
	static const char *const ascii[] = {"|", "+", "+", "-", "+"};
	static const char *const lines[] = {"│", "┤", "└", "─", "┬"};
	return (style->marks == MARKS_ASCII ? ascii : lines)[part];
}

static int label_width(const struct ticks *t)
{
	int n = 0;
	for (int i = 0; i < t->n; i++)
		n = n < (int)strlen(t->text[i]) ? (int)strlen(t->text[i]) : n;
	return n;
}

/* Appends all rows of the canvas with the y axis and its labels, `margin` columns wide. */
static void append_rows(
	struct str *out, const struct canvas *c, const struct ticks *t, int margin)
{
	for (int r = 0; r < c->rows; r++) {
		const char *label = NULL;
		for (int i = 0; i < t->n; i++)
			if (c->rows - 1 - axis_position(&c->y, t->v[i], c->rows) == r)
				label = t->text[i];
		str_printf(out, "%*s %s", margin, label ? label : "",
			axis_text(c->style, label ? Y_TICK : Y_AXIS));
		append_cells(out, c->style, &c->cells[r * c->cols], c->cols);
		str_putc(out, '\n');
	}
}

/* Writes a word into a line of blanks. Returns false if it does not fit or would touch another. */
static bool place_word(char *line, int len, int column, const char *word)
{
	int n = (int)strlen(word);
	column = column < 0 ? 0 : column;
	if (column + n > len)
		return false;
	for (int i = column - 1; i <= column + n; i++)
		if (i >= 0 && i < len && line[i] != ' ')
			return false;
	memcpy(line + column, word, (size_t)n);
	return true;
}

/* Appends the x axis, and below it the values and, if it fits, the name at the right. */
static void append_x_axis(
	struct str *out, const struct canvas *c, const char *name, int margin)
{
	struct ticks t;
	int len = c->cols + margin + 2;
	scoped_ptr char *line = xmalloc((size_t)len + 1),
			*ticked = xcalloc((size_t)c->cols, 1);
	memset(line, ' ', (size_t)len);
	line[len] = '\0';
	ticks_choose(&c->x, c->cols / 10, &t);
	for (int i = 0; i < t.n; i++) {
		int col = axis_position(&c->x, t.v[i], c->cols),
		    width = (int)strlen(t.text[i]);
		int at = margin + 2 + col - width / 2;
		at = at + width > len ? len - width : at;
		ticked[col] = place_word(line, len, at, t.text[i]);
	}
	for (int at = len - (int)strlen(name); at > 0; at--)
		if (place_word(line, len, at, name))
			break;
	str_printf(out, "%*s %s", margin, "", axis_text(c->style, CORNER));
	for (int i = 0; i < c->cols; i++)
		str_puts(out, axis_text(c->style, ticked[i] ? X_TICK : X_AXIS));
	while (len && line[len - 1] == ' ')
		line[--len] = '\0';
	str_printf(out, "\n%s\n", line);
}

/* Appends a line per series, what overlaps look like, and how many points are outside. */
static void append_legend(
	struct str *out, const struct graph *g, const struct canvas *c, int margin)
{
	const struct graph_style *style = c->style;
	struct outside o = {0};
	for (int i = 0; i < g->n_series; i++) {
		const struct cell sample[2] = {{i + 1, 0x12}, {i + 1, 0x12}};
		str_printf(out, "%*s  ", margin, "");
		append_cells(out, style, sample, style->marks == MARKS_BRAILLE ? 2 : 1);
		const struct graph_series *s = &g->series[i];
		for (int64_t k = 0; k < s->n; k++)
			if (scale_has(&c->x, s->p[k].x) && scale_has(&c->y, s->p[k].y))
				scale_count_outside(&c->y, s->p[k].y, &o);
		scoped_ptr char *name = text_printable(xstrdup(s->name));
		str_printf(out, " %s\n", name);
	}
	if (g->n_series > 1 && style->marks == MARKS_ASCII)
		str_printf(out, "%*s  @ several curves\n", margin, "");
	else if (g->n_series > 1 && style->color)
		str_printf(out, "%*s  ⠒⠒ (no color) several curves\n", margin, "");
	if (!o.n)
		return;
	str_printf(out, "%*s  ", margin, "");
	outside_print(&o, out);
	str_putc(out, '\n');
}

void graph_text(const struct graph *g, const struct graph_style *style, struct str *out)
{
	struct canvas c = {.rows = style->height - 3, .style = style};
	struct ticks t;
	c.dx = style->marks == MARKS_BRAILLE ? 2 : 1;
	c.dy = style->marks == MARKS_BRAILLE ? 4 : 1;
	c.rows = c.rows < 4 ? 4 : c.rows;
	if (!graph_scales(g, &c.x, &c.y)) {
		str_printf(out, "no values of %s\n", g->y_name);
		return;
	}
	ticks_choose(&c.y, c.rows / 3, &t);
	int margin = label_width(&t);
	c.cols = style->width - margin - 2;
	c.cols = c.cols < 10 ? 10 : c.cols;
	c.cells = xcalloc((size_t)c.cols * (size_t)c.rows, sizeof(*c.cells));
	for (int i = 0; i < g->n_series; i++)
		draw_series(&c, i, &g->series[i]);
	str_printf(out, "%*s %s\n", margin, "", g->y_name);
	append_rows(out, &c, &t, margin);
	append_x_axis(out, &c, g->x_name, margin);
	append_legend(out, g, &c, margin);
	free(c.cells);
}

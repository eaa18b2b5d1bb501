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

enum { SEVERAL = -1, NOBODY = 0 };

/* A cell is one character. */
struct cell {
	int owner;	    /* a series (numbers from 1), SEVERAL or NOBODY */
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
static enum graph_marks marks_for(int n_series, bool color)
{
	/* (the programs themselves stay in the locale "C") */
	locale_t l = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
	bool utf8 = l && !strcmp(nl_langinfo_l(CODESET, l), "UTF-8");
	if (l)
		freelocale(l);
	return utf8 && (color || n_series == 1) ? MARKS_BRAILLE : MARKS_ASCII;
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

struct graph_style graph_style_of(const struct graph_opts *o, int n_series, bool color)
{
	return (struct graph_style){
		.marks = o->marks ? (enum graph_marks)(o->marks - 1)
				  : marks_for(n_series, color),
		.color = color,
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
	if (cell->owner == NOBODY)
		cell->owner = series + 1;
	else if (cell->owner != series + 1)
		cell->owner = SEVERAL;
}

/* Returns the position of a value on an axis of n cells or dots. */
static int position_of(const struct scale *s, double v, int n)
{
	int at = (int)(scale_at(s, v) * (n - 1) + 0.5);
	return at < 0 ? 0 : at >= n ? n - 1 : at;
}

/* Returns the row of dots from the top; a value outside the scale is at most one height away. */
static int row_of(const struct scale *s, double v, int height)
{
	double at = fmax(-1, fmin(2, scale_at(s, v)));
	return height - 1 - (int)floor(at * (height - 1) + 0.5);
}

/* Draws a line between two dots; the first one is drawn already. */
static void draw_line(struct canvas *c, int series, int x0, int y0, int x1, int y1)
{
	int n = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
	for (int i = 1; i <= n; i++)
		draw_dot(c, series, x0 + (int)lround((double)(x1 - x0) * i / n),
			y0 + (int)lround((double)(y1 - y0) * i / n));
}

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
		int to_x = position_of(&c->x, p[k].x, width);
		int to_y = row_of(&c->y, p[k].y, height);
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

static void put_cell(struct str *out, const struct graph_style *style, struct cell c)
{
	if (c.owner == NOBODY)
		str_putc(out, ' ');
	else if (style->marks == MARKS_BRAILLE) {
		str_putc(out, (char)0xe2); /* U+2800 and the dots, as UTF-8 */
		str_putc(out, (char)(0xa0 | c.dots >> 6));
		str_putc(out, (char)(0x80 | (c.dots & 0x3f)));
	} else if (c.owner == SEVERAL)
		str_putc(out, '@');
	else
		str_putc(out, ascii_marks[(c.owner - 1) % (int)strlen(ascii_marks)]);
}

static const char *color_of(const struct graph_style *style, int owner)
{
	if (!style->color || owner <= 0)
		return NULL;
	return colors[(owner - 1) % (int)ARRAY_LEN(colors)];
}

static void put_cells(
	struct str *out, const struct graph_style *style, const struct cell *c, int n)
{
	const char *now = NULL;
	while (n > 0 && c[n - 1].owner == NOBODY)
		n--;
	for (int i = 0; i < n; i++) {
		const char *want =
			c[i].owner == NOBODY ? now : color_of(style, c[i].owner);
		if (want != now)
			str_printf(out, "\033[%sm", want ? want : "0");
		now = want;
		put_cell(out, style, c[i]);
	}
	if (now)
		str_puts(out, "\033[0m");
}

/* The characters of the axes. */
enum piece { WALL, WALL_TICK, CORNER, FLOOR, FLOOR_TICK };
static const char *axis_piece(const struct graph_style *style, enum piece which)
{
	static const char *const ascii[] = {"|", "+", "+", "-", "+"};
	static const char *const lines[] = {"│", "┤", "└", "─", "┬"};
	return (style->marks == MARKS_ASCII ? ascii : lines)[which];
}

static int label_width(const struct ticks *t)
{
	int n = 0;
	for (int i = 0; i < t->n; i++)
		n = n < (int)strlen(t->text[i]) ? (int)strlen(t->text[i]) : n;
	return n;
}

static void put_rows(
	struct str *out, const struct canvas *c, const struct ticks *t, int margin)
{
	for (int r = 0; r < c->rows; r++) {
		const char *label = NULL;
		for (int i = 0; i < t->n; i++)
			if (c->rows - 1 - position_of(&c->y, t->v[i], c->rows) == r)
				label = t->text[i];
		str_printf(out, "%*s %s", margin, label ? label : "",
			axis_piece(c->style, label ? WALL_TICK : WALL));
		put_cells(out, c->style, &c->cells[r * c->cols], c->cols);
		str_putc(out, '\n');
	}
}

/* Writes a word into a line of blanks, unless it would touch another word. */
static bool put_word(char *line, int len, int at, const char *word)
{
	int n = (int)strlen(word);
	at = at < 0 ? 0 : at;
	if (at + n > len)
		return false;
	for (int i = at - 1; i <= at + n; i++)
		if (i >= 0 && i < len && line[i] != ' ')
			return false;
	memcpy(line + at, word, (size_t)n);
	return true;
}

/* Prints the x axis, and below it the values and, if it fits, the name at the right. */
static void put_floor(
	struct str *out, const struct canvas *c, const char *name, int margin)
{
	struct ticks t;
	int len = c->cols + margin + 2;
	scoped_ptr char *line = xmalloc((size_t)len + 1),
			*ticked = xcalloc((size_t)c->cols, 1);
	memset(line, ' ', (size_t)len);
	line[len] = '\0';
	ticks_of(&c->x, c->cols / 10, &t);
	for (int i = 0; i < t.n; i++) {
		int col = position_of(&c->x, t.v[i], c->cols),
		    width = (int)strlen(t.text[i]);
		int at = margin + 2 + col - width / 2;
		at = at + width > len ? len - width : at;
		ticked[col] = put_word(line, len, at, t.text[i]);
	}
	for (int at = len - (int)strlen(name); at > 0; at--)
		if (put_word(line, len, at, name))
			break;
	str_printf(out, "%*s %s", margin, "", axis_piece(c->style, CORNER));
	for (int i = 0; i < c->cols; i++)
		str_puts(out, axis_piece(c->style, ticked[i] ? FLOOR_TICK : FLOOR));
	while (len && line[len - 1] == ' ')
		line[--len] = '\0';
	str_printf(out, "\n%s\n", line);
}

static void put_legend(
	struct str *out, const struct graph *g, const struct canvas *c, int margin)
{
	const struct graph_style *style = c->style;
	struct outside o = {0};
	for (int i = 0; i < g->n_series; i++) {
		const struct cell sample[2] = {{i + 1, 0x12}, {i + 1, 0x12}};
		str_printf(out, "%*s  ", margin, "");
		put_cells(out, style, sample, style->marks == MARKS_BRAILLE ? 2 : 1);
		const struct graph_series *s = &g->series[i];
		for (int64_t k = 0; k < s->n; k++)
			if (scale_has(&c->x, s->p[k].x) && scale_has(&c->y, s->p[k].y))
				scale_outside(&c->y, s->p[k].y, &o);
		scoped_ptr char *name = text_printable(xstrdup(s->name));
		str_printf(out, " %s\n", name);
	}
	if (g->n_series > 1 && style->marks == MARKS_ASCII)
		str_printf(out, "%*s  @ several at one place\n", margin, "");
	else if (g->n_series > 1 && style->color)
		str_printf(out, "%*s  ⠒⠒ (no color) several at one place\n", margin, "");
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
	ticks_of(&c.y, c.rows / 3, &t);
	int margin = label_width(&t);
	c.cols = style->width - margin - 2;
	c.cols = c.cols < 10 ? 10 : c.cols;
	c.cells = xcalloc((size_t)c.cols * (size_t)c.rows, sizeof(*c.cells));
	for (int i = 0; i < g->n_series; i++)
		draw_series(&c, i, &g->series[i]);
	str_printf(out, "%*s %s\n", margin, "", g->y_name);
	put_rows(out, &c, &t, margin);
	put_floor(out, &c, g->x_name, margin);
	put_legend(out, g, &c, margin);
	free(c.cells);
}

/* Columns of a table, as read_table.py writes them. Each has a cursor: rows are taken in order. */
#include "table/table.h"

enum {
	MAX_DEPTH = 16,
	MAX_FIELDS = 1 << 10,
	MAX_NAME = 1 << 12,
	MAX_CELLS = 1 << 27, /* rows of all columns of a chunk */
	MAX_BYTES = 1 << 30, /* all columns of a chunk */
	MAX_ROW = 1 << 25,
	STEP = 1 << 20, /* bytes read before more memory is allocated */
};

enum column_type { TEXT = 1, INTEGER, FLOAT, BOOLEAN, LIST, STRUCTURE, NOTHING };

struct column {
	int64_t type, n, next; /* rows; the next row */
	struct str values;     /* int64_t or double [n]: lengths, or values */
	struct str valid;      /* a byte per row, 0: null */
	bool has_null;	       /* with `valid` */
	struct str bytes;      /* bytes of all texts */
	size_t at;	       /* the next byte */
	int64_t n_fields;
	char **names;
	struct column **fields; /* fields of a structure; elements of a list */
};

struct source {
	read_bytes_fn *read;
	void *from;
	int64_t left, cells_left; /* bytes and rows that the chunk may still have */
	struct err *e;
};

void column_free(struct column *c)
{
	if (!c)
		return;
	for (int64_t i = 0; i < c->n_fields; i++) {
		free(c->names[i]);
		column_free(c->fields[i]);
	}
	free(c->names);
	free(c->fields);
	str_free(&c->values);
	str_free(&c->valid);
	str_free(&c->bytes);
	free(c);
}

/* Returns -1, without an error for data that are not valid: the caller knows the file. */
static int read_n(struct source *s, struct str *out, int64_t n)
{
	if (n < 0 || n > s->left)
		return -1;
	s->left -= n;
	for (int64_t now; n; n -= now) {
		now = min64(n, STEP);
		str_reserve(out, (size_t)now);
		if (s->read(s->from, out->s + out->len, (size_t)now, s->e))
			return -1;
		out->len += (size_t)now;
		out->s[out->len] = '\0';
	}
	return 0;
}

static int read_int(struct source *s, int64_t *out)
{
	return s->read(s->from, out, sizeof(*out), s->e);
}

static int64_t value(const struct column *c, int64_t i)
{
	int64_t x;
	memcpy(&x, c->values.s + i * (int64_t)sizeof(x), sizeof(x));
	return x;
}

/* Sets *sum to the sum of lengths, which are at least `min`. */
static int add_lengths(const struct column *c, int64_t min, int64_t *sum)
{
	*sum = 0;
	for (int64_t i = 0; i < c->n; i++) {
		int64_t x = value(c, i);
		if (x < min || x > MAX_BYTES)
			return -1;
		*sum += max64(0, x);
	}
	return 0;
}

static struct column *read_column(struct source *s, int64_t n, int depth);

static int read_text(struct source *s, struct column *c)
{
	int64_t sum, n;
	str_puts(&c->bytes, ""); /* not NULL */
	return read_n(s, &c->values, c->n * (int64_t)sizeof(int64_t)) ||
			       add_lengths(c, -ROW_TOO_LONG, &sum) || read_int(s, &n) ||
			       n != sum
		       ? -1
		       : read_n(s, &c->bytes, n);
}

static int read_list(struct source *s, struct column *c, int depth)
{
	int64_t sum;
	if (read_n(s, &c->values, c->n * (int64_t)sizeof(int64_t)) ||
		add_lengths(c, -1, &sum))
		return -1;
	c->names = xcalloc(1, sizeof(*c->names));
	c->fields = xcalloc(1, sizeof(*c->fields));
	c->n_fields = 1;
	c->fields[0] = read_column(s, sum, depth + 1);
	return c->fields[0] ? 0 : -1;
}

static int read_structure(struct source *s, struct column *c, int depth)
{
	int64_t n, length;
	if (read_n(s, &c->valid, c->n) || read_int(s, &n) || n < 0 || n > MAX_FIELDS)
		return -1;
	c->names = xcalloc((size_t)n + 1, sizeof(*c->names));
	c->fields = xcalloc((size_t)n + 1, sizeof(*c->fields));
	c->n_fields = n;
	for (int64_t i = 0; i < n; i++) {
		struct str name = {0};
		if (read_int(s, &length) || length < 0 || length > MAX_NAME)
			return -1;
		int rc = read_n(s, &name, length);
		str_puts(&name, "");
		c->names[i] = name.s;
		c->fields[i] = rc ? NULL : read_column(s, c->n, depth + 1);
		if (!c->fields[i])
			return -1;
	}
	return 0;
}

static int read_values(struct source *s, struct column *c)
{
	if (read_n(s, &c->valid, c->n) ||
		read_n(s, &c->values, c->n * (int64_t)sizeof(int64_t)))
		return -1;
	c->has_null = c->n && memchr(c->valid.s, 0, (size_t)c->n);
	return 0;
}

static struct column *read_column(struct source *s, int64_t n, int depth)
{
	struct column *c = xcalloc(1, sizeof(*c));
	int rc = read_int(s, &c->type) || read_int(s, &c->n) || c->n != n ||
				 n > s->cells_left || depth > MAX_DEPTH
			 ? -1
			 : 0;
	s->cells_left -= n;
	if (!rc)
		rc = c->type == TEXT	    ? read_text(s, c)
		     : c->type == LIST	    ? read_list(s, c, depth)
		     : c->type == STRUCTURE ? read_structure(s, c, depth)
		     : c->type == NOTHING   ? 0
		     : c->type >= INTEGER && c->type <= BOOLEAN ? read_values(s, c)
								: -1;
	if (!rc)
		return c;
	column_free(c);
	return NULL;
}

struct column *column_read(
	read_bytes_fn *read, void *from, int64_t n, bool is_text, struct err *e)
{
	struct source s = {read, from, MAX_BYTES, MAX_CELLS, e};
	struct column *c = read_column(&s, n, 0);
	if (!c || c->type == (is_text ? TEXT : STRUCTURE))
		return c;
	column_free(c);
	return NULL;
}

enum row_state column_next_text(struct column *c, struct str *out)
{
	int64_t n = value(c, c->next++);
	if (n < 0)
		return (enum row_state) - n;
	str_add(out, c->bytes.s + c->at, (size_t)n);
	c->at += (size_t)n;
	return ROW_GOOD;
}

/* A row that is being written. When it is full, cursors still move. */
struct row_out {
	struct str *to;
	size_t end; /* the greatest length of *to */
	bool is_full;
};

static void append(struct row_out *r, const void *p, size_t n)
{
	r->is_full = r->is_full || n > r->end - r->to->len;
	if (!r->is_full)
		str_add(r->to, p, n);
}

static void append_tag(struct row_out *r, char tag)
{
	append(r, &tag, 1);
}

static void append_int(struct row_out *r, int64_t x)
{
	append(r, &x, sizeof(x));
}

static void append_cell(struct column *c, struct row_out *r);

static void append_list(struct column *c, struct row_out *r)
{
	struct column *elements = c->fields[0];
	int64_t n = value(c, c->next++);
	bool is_plain = elements->type == INTEGER && !elements->has_null;
	append_tag(r, n < 0 ? 'N' : is_plain ? 'V' : 'L');
	if (n < 0)
		return;
	append_int(r, n);
	if (is_plain) {
		if (n)
			append(r,
				elements->values.s + elements->next * (int64_t)sizeof(n),
				(size_t)n * sizeof(n));
		elements->next += n;
		return;
	}
	for (int64_t i = 0; i < n; i++)
		append_cell(elements, r);
}

/* Appends a structure. The cursors of its fields move even if it is null. */
static void append_structure(struct column *c, struct row_out *r)
{
	size_t before = r->to->len;
	bool is_null = !c->valid.s[c->next++];
	append_tag(r, 'O');
	append_int(r, c->n_fields);
	for (int64_t i = 0; i < c->n_fields; i++) {
		size_t n = strlen(c->names[i]);
		append_int(r, (int64_t)n);
		append(r, c->names[i], n);
		append_cell(c->fields[i], r);
	}
	if (is_null && !r->is_full) {
		r->to->len = before;
		append_tag(r, 'N');
	}
}

static void append_text(struct column *c, struct row_out *r)
{
	int64_t n = value(c, c->next++);
	append_tag(r, n < 0 ? 'N' : 'S');
	r->is_full = r->is_full || n == -ROW_TOO_LONG;
	if (n < 0)
		return;
	append_int(r, n);
	append(r, c->bytes.s + c->at, (size_t)n);
	c->at += (size_t)n;
}

static void append_value(struct column *c, struct row_out *r)
{
	int64_t i = c->next++;
	if (c->type == NOTHING || !c->valid.s[i]) {
		append_tag(r, 'N');
	} else if (c->type == BOOLEAN) {
		append_tag(r, value(c, i) ? 'T' : 'F');
	} else {
		append_tag(r, c->type == INTEGER ? 'I' : 'D');
		append_int(r, value(c, i));
	}
}

static void append_cell(struct column *c, struct row_out *r)
{
	static void (*const kinds[])(struct column * c, struct row_out * r) = {
		[TEXT] = append_text,
		[INTEGER] = append_value,
		[FLOAT] = append_value,
		[BOOLEAN] = append_value,
		[LIST] = append_list,
		[STRUCTURE] = append_structure,
		[NOTHING] = append_value,
	};
	kinds[c->type](c, r);
}

enum row_state column_next_row(struct column *c, struct str *out)
{
	size_t before = out->len;
	struct row_out r = {out, before + MAX_ROW, false};
	append_cell(c, &r);
	if (!r.is_full)
		return ROW_GOOD;
	out->len = before;
	return ROW_TOO_LONG;
}

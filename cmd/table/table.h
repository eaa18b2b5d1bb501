/* Tables: Parquet and Arrow files. share/python/read_table.py, which is inside the program,
 * reads them with pyarrow in a process of its own, and sends columns through a pipe. The columns
 * depend on a file that is not trusted, so they are checked.
 *
 * A row of texts is its text. A row of other records is a tree of cells, in the order of the
 * fields: a tag, then the content. Threads that encode documents make json_t values from it.
 *     N null   F false   T true
 *     I D S    an integer, a double, the size of a text and its bytes
 *     V        number of integers, and the integers: a list without null
 *     L O      number of elements or fields; then the cells (O: each after the size of its name and
 *              the name)
 * Numbers have 8 bytes. */
#pragma once

#include "base/base.h"

struct json_t;

/* ---- table.c: the process ---------------------------------------------------------- */

enum table_kind {
	TABLE_NONE,
	TABLE_PARQUET,
	TABLE_ARROW_FILE,
	TABLE_ARROW_STREAM, /* in a regular file */
	TABLE_ARROW_PIPE
};
/* Returns the kind of table that begins with these bytes. */
enum table_kind table_detect(const char *first, size_t n);

enum row_state {
	ROW_GOOD,
	ROW_NULL,    /* the text is null */
	ROW_TOO_LONG /* over 32 MiB; the row has no bytes */
};

struct table;
/* An open file, which messages call `name`, or a pipe whose first bytes have been read. */
struct table_source {
	const char *name;
	enum table_kind kind;
	int fd;
	const char *first;
	size_t n_first;
};
/* Starts reading. columns: +NAME required, /NAME at least one required, ?NAME optional. Returns
 * NULL on an error. */
struct table *table_open(const struct table_source *s, bool is_text,
	const struct strs *columns, struct err *e);
/* Appends the next row: 1; 0 at the end, -1 on an error. */
int table_next(struct table *t, struct str *row, enum row_state *state, struct err *e);
/* Returns the number of bytes of the file read so far. */
int64_t table_bytes_read(const struct table *t);
/* Ends the process. t may be NULL. */
void table_close(struct table *t);

/* ---- columns.c: what the process sends --------------------------------------------- */

struct column;
/* Reads n bytes; -1 on an error. */
typedef int read_bytes_fn(void *from, void *to, size_t n, struct err *e);
/* Reads a column of n rows, for texts (is_text) or for records. Returns NULL on an error. */
struct column *column_read(
	read_bytes_fn *read, void *from, int64_t n, bool is_text, struct err *e);
void column_free(struct column *c);
/* Appends the next row of a column of texts, or of a structure. */
enum row_state column_next_text(struct column *c, struct str *out);
enum row_state column_next_row(struct column *c, struct str *out);

/* ---- cells.c: rows of records ------------------------------------------------------ */

/* Integers of a row, possibly unaligned. */
struct cell_integers {
	const char *at;
	int64_t n;
};
/* Finds a field of a row that is a list of integers. Returns false if it is not. */
bool row_find_integers(const char *row, const char *name, struct cell_integers *out);
/* Returns a row of n bytes as an object, which the caller owns; NULL if a text is not UTF-8. */
struct json_t *row_to_json(const char *row, int64_t n, struct err *e);

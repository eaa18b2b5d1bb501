/* Columns of a table, as a process sends them: integers of one byte, so that many are valid. */
#include "tests/fuzz/fuzz.h"
#include "base/json.h"
#include "table/table.h"

#include <string.h>

static int read_bytes(void *from, void *to, size_t n, struct err *e)
{
	struct bytes *b = from;
	char *p = to;
	bool are_integers = n % sizeof(int64_t) == 0;
	size_t wanted = are_integers ? n / sizeof(int64_t) : n;
	if (wanted > b->n)
		return err_set(e, EX_DATAERR, "the end");
	for (size_t i = 0; i < wanted; i++) {
		int64_t x = (int8_t)take_byte(b);
		x = x == 127 ? INT64_MAX : x == -128 ? INT64_MIN : x;
		memcpy(p + i * (n / wanted), &x, n / wanted);
	}
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct str row = {0};
	bool is_text = take_byte(&b) & 1;
	int64_t rows = take_byte(&b) & 15;
	struct err e = {0};
	struct column *c = column_read(read_bytes, &b, rows, is_text, &e);
	for (int64_t i = 0; c && i < rows; i++) {
		struct cell_integers found;
		struct err why = {0};
		str_clear(&row);
		str_puts(&row, "");
		enum row_state state =
			is_text ? column_next_text(c, &row) : column_next_row(c, &row);
		FUZZ_ON(state != ROW_GOOD && row.len);
		if (is_text || state != ROW_GOOD)
			continue;
		json_t *j = row_to_json(row.s, (int64_t)row.len, &why);
		FUZZ_ON(!j != !!why.code);
		if (row_find_integers(row.s, "", &found))
			FUZZ_ON(found.at + 8 * found.n > row.s + row.len);
		json_decref(j);
	}
	column_free(c);
	str_free(&row);
	return 0;
}

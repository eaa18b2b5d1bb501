/* The text of a line of JSONL. Most lines are flat objects of strings, numbers and words. They
 * are parsed here: with jansson alone, preparing 120 MB of lines of 3 kB takes 2.4 (gpt2) to 3.4
 * (byte) times as much processor time. jansson parses all other lines, also invalid JSON. */
#include "base/json.h"
#include "prepare/pipeline.h"

int jsonl_reject_field(
	const json_t *line, const char *field, const char *what, struct err *e)
{
	const json_t *j = json_object_get(line, field);
	scoped_str names = {0};
	const char *name;
	json_t *value;
	int n = 0;
	if (j)
		return err_set(e, EX_DATAERR, "field '%.40s' is %s, not %s", field,
			json_kind(j), what);
	json_object_foreach((json_t *)line, name, value) if (n < 6)
		str_printf(&names, "%s%.40s", n++ ? ", " : "", name);
	err_set(e, EX_DATAERR, "field '%.40s' (%s) is missing%s%s", field, what,
		n ? "; give --field with one of: " : ": the line has no fields",
		names.s ? names.s : "");
	return -1;
}

json_t *jsonl_parse_object(const char *line, int64_t n, struct err *e)
{
	json_error_t why;
	json_t *root = load_json(line, (size_t)n, JSON_ALLOW_NUL, &why);
	if (json_is_object(root))
		return root;
	if (root)
		err_set(e, EX_DATAERR, "the line is %s, not an object", json_kind(root));
	else
		err_set(e, EX_DATAERR, "not JSON: column %d: %s", why.position, why.text);
	json_decref(root);
	return NULL;
}

int jsonl_parse_text(
	const char *line, int64_t n, const char *field, struct str *out, struct err *e)
{
	json_auto_t *root = jsonl_parse_object(line, n, e);
	if (!root)
		return -1;
	const json_t *text = json_object_get(root, field);
	bool turns = json_object_get(root, "messages") ||
		     json_object_get(root, "conversations");
	int rc = 0;
	if (!text && turns)
		rc = err_set(e, EX_DATAERR,
			"field '%.40s' is missing, but the line has a conversation; give "
			"--chat-template",
			field);
	else if (!json_is_string(text))
		rc = jsonl_reject_field(root, field, "a string", e);
	else
		str_add(out, json_string_value(text), json_string_length(text));
	return rc;
}

/* The rest of a line. scan_...() return false if jansson must parse the line. */
struct scan {
	const char *at, *end;
};

static void skip_space(struct scan *s)
{
	while (s->at < s->end &&
		(*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
		s->at++;
}

/* Skips white space and c. Returns false if another character follows. */
static bool accept_char(struct scan *s, char c)
{
	skip_space(s);
	if (s->at == s->end || *s->at != c)
		return false;
	s->at++;
	return true;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

/* Reads four hexadecimal digits of an escape into *code. Returns false if they are invalid. */
static bool scan_hex(struct scan *s, uint32_t *code)
{
	*code = 0;
	if (s->end - s->at < 4)
		return false;
	for (int i = 0; i < 4; i++) {
		int digit = hex_digit(*s->at++);
		if (digit < 0)
			return false;
		*code = *code << 4 | (uint32_t)digit;
	}
	return true;
}

/* Reads an escape sequence after its backslash, and appends the character. */
static bool scan_escape(struct scan *s, struct str *out)
{
	static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
	uint8_t utf8[4];
	uint32_t code, low;
	char c = s->at < s->end ? *s->at++ : '\0';
	const char *name = c ? strchr(names, c) : NULL;
	if (name) {
		str_putc(out, values[name - names]);
		return true;
	}
	if (c != 'u' || !scan_hex(s, &code) || (code >= 0xdc00 && code < 0xe000))
		return false;
	if (code >= 0xd800 && code < 0xdc00) { /* the first half of a surrogate pair */
		if (s->end - s->at < 6 || *s->at++ != '\\' || *s->at++ != 'u' ||
			!scan_hex(s, &low) || low < 0xdc00 || low >= 0xe000)
			return false;
		code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
	}
	str_add(out, utf8, (size_t)utf8_encode(code, utf8));
	return true;
}

/* Skips ASCII characters that need no decoding, 8 at once. May stop up to 7 bytes early. */
static const char *plain_end(const char *at, const char *end)
{
	const uint64_t ones = UINT64_C(0x0101010101010101), high = 0x80 * ones;
	for (; end - at >= 8; at += 8) {
		uint64_t x, quote, slash;
		memcpy(&x, at, sizeof(x));
		quote = x ^ '"' * ones;
		slash = x ^ '\\' * ones;
		/* The lowest bit belongs to the first control character, quotation mark, backslash
		 * or byte above 7f; only higher bits may be wrong. */
		uint64_t hits =
			(x | ((x - 0x20 * ones) & ~x) | ((quote - ones) & ~quote) |
				((slash - ones) & ~slash)) &
			high;
		if (hits)
			return at + __builtin_ctzll(hits) / 8;
	}
	return at;
}

/* Reads a string after its first quotation mark, and appends it. */
static bool scan_string(struct scan *s, struct str *out)
{
	for (;;) {
		const char *from = s->at;
		s->at = plain_end(s->at, s->end);
		while (s->at < s->end && (uint8_t)*s->at >= 0x20 && *s->at != '"' &&
			*s->at != '\\') {
			uint32_t code;
			int n = (uint8_t)*s->at < 0x80
					? 1
					: utf8_decode(s->at, s->end - s->at, &code);
			if (n <= 0)
				return false;
			s->at += n;
		}
		str_add(out, from, (size_t)(s->at - from));
		if (s->at == s->end || (uint8_t)*s->at < 0x20)
			return false;
		if (*s->at++ == '"')
			return true;
		if (!scan_escape(s, out))
			return false;
	}
}

/* Skips true, false, null, or an integer of up to 15 digits. */
static bool scan_literal(struct scan *s)
{
	static const char *const words[] = {"true", "false", "null"};
	enum { MAX_DIGITS = 15 };
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		size_t n = strlen(words[i]);
		if ((size_t)(s->end - s->at) > n && !memcmp(s->at, words[i], n)) {
			s->at += n;
			return true;
		}
	}
	int n = 0;
	const char *first = s->at;
	while (s->at < s->end && *s->at >= '0' && *s->at <= '9' && n++ < MAX_DIGITS)
		s->at++;
	return n && n <= MAX_DIGITS && (*first != '0' || n == 1);
}

/* Reads a key without escapes, the colon and the white space after it. */
static bool scan_key(struct scan *s, struct str *key)
{
	str_clear(key);
	if (!accept_char(s, '"'))
		return false;
	const char *from = s->at;
	bool good = scan_string(s, key) && (size_t)(s->at - from) == key->len + 1 &&
		    accept_char(s, ':');
	skip_space(s);
	return good;
}

static bool is_at_quote(const struct scan *s)
{
	return s->at < s->end && *s->at == '"';
}

static bool scan_quoted(struct scan *s, struct str *out)
{
	return accept_char(s, '"') && scan_string(s, out);
}

/* Skips a string or a literal; nested values need jansson. */
static bool skip_value(struct scan *s, struct str *scratch)
{
	str_clear(scratch);
	return is_at_quote(s) ? scan_quoted(s, scratch) : scan_literal(s);
}

/* Skips null. Any other value of the rare fields tools, tool_calls, ... needs jansson. */
static bool scan_null(struct scan *s)
{
	bool is_null = s->end - s->at > 4 && !memcmp(s->at, "null", 4);
	s->at += is_null ? 4 : 0;
	return is_null;
}

static bool is_key(const struct str *key, const char *name)
{
	return key->len == strlen(name) && !memcmp(key->s, name, key->len);
}

/* The fields to read from a line, where their texts go, and scratch memory. */
struct line_fields {
	const char *const *fields; /* [n_fields], at most two */
	int n_fields;
	struct str *text;	  /* output of a field that is a text; else NULL */
	struct chat_turns *turns; /* output: a list of turns, or two fields' turns */
	struct str key, other;	  /* scratch */
};

/* Reads an object with a role and a text, and appends a turn. */
static bool scan_turn(struct scan *s, struct line_fields *f)
{
	struct chat_turns *t = f->turns;
	struct chat_turn turn = {.role.begin = -1, .text.begin = -1};
	bool good = accept_char(s, '{');
	while (good) {
		good = scan_key(s, &f->key);
		bool needs_null = is_key(&f->key, "tool_calls") ||
				  is_key(&f->key, "weight") ||
				  is_key(&f->key, "reasoning_content");
		struct extract *to =
			is_key(&f->key, "role") || is_key(&f->key, "from") ? &turn.role
			: is_key(&f->key, "content") || is_key(&f->key, "value")
				? &turn.text
				: NULL;
		if (good && to) {
			good = to->begin < 0;
			to->begin = (int64_t)t->strings.len;
			good = good && scan_quoted(s, &t->strings);
			to->end = (int64_t)t->strings.len;
		} else {
			good = good &&
			       (needs_null ? scan_null(s) : skip_value(s, &f->other));
		}
		if (good && !accept_char(s, ','))
			break;
	}
	if (!good || !accept_char(s, '}') || turn.role.begin < 0 || turn.text.begin < 0)
		return false;
	t->v = xgrow(t->v, t->n, sizeof(*t->v));
	t->v[t->n++] = turn;
	return true;
}

/* Reads a list of chat turns. Returns false if it is not such a list. */
static bool scan_turns(struct scan *s, struct line_fields *f)
{
	if (!accept_char(s, '['))
		return false;
	while (scan_turn(s, f))
		if (!accept_char(s, ','))
			return accept_char(s, ']');
	return false;
}

/* Reads the value of field i: the text itself, or the text of its chat turn. */
static bool scan_field(struct scan *s, struct line_fields *f, int i)
{
	struct chat_turns *t = f->turns;
	if (f->n_fields == 1)
		return t ? scan_turns(s, f) : scan_quoted(s, f->text);
	t->v[i].text.begin = (int64_t)t->strings.len;
	bool good = scan_quoted(s, &t->strings);
	t->v[i].text.end = (int64_t)t->strings.len;
	return good;
}

/* Reads a whole line, an object that must have each field of `f` exactly once. */
static bool scan_line(struct scan *s, struct line_fields *f)
{
	int n = 0;
	bool has[2] = {false}, good = accept_char(s, '{');
	while (good) {
		int i = 0;
		good = scan_key(s, &f->key);
		while (i < f->n_fields && !is_key(&f->key, f->fields[i]))
			i++;
		if (i == f->n_fields) {
			bool needs_null = f->turns && is_key(&f->key, "tools");
			good = good &&
			       (needs_null ? scan_null(s) : skip_value(s, &f->other));
		} else {
			good = good && !has[i] && scan_field(s, f, i);
			has[i] = true;
			n++;
		}
		if (good && !accept_char(s, ','))
			break;
	}
	good = good && accept_char(s, '}');
	skip_space(s);
	str_free(&f->key);
	str_free(&f->other);
	return good && s->at == s->end && n == f->n_fields;
}

bool jsonl_scan_turns(const char *line, int64_t n, const char *const *fields,
	int n_fields, struct chat_turns *turns)
{
	struct scan s = {line, line + n};
	struct line_fields f = {.fields = fields, .n_fields = n_fields, .turns = turns};
	for (turns->n = 0; n_fields == 2 && turns->n < 2; turns->n++) {
		turns->v = xgrow(turns->v, turns->n, sizeof(*turns->v));
		turns->v[turns->n] = (struct chat_turn){0};
	}
	if (scan_line(&s, &f))
		return true;
	str_clear(&turns->strings);
	turns->n = 0;
	return false;
}

int jsonl_read_text(
	const char *line, int64_t n, const char *field, struct str *out, struct err *e)
{
	struct scan s = {line, line + n};
	struct line_fields f = {.fields = &field, .n_fields = 1, .text = out};
	size_t before = out->len;
	if (scan_line(&s, &f))
		return 0;
	out->len = before;
	return jsonl_parse_text(line, n, field, out, e);
}

static bool is_blank(const char *text, int64_t n)
{
	while (n && strchr(" \t\r\n", text[n - 1]) && text[n - 1])
		n--;
	return !n;
}

/* Reads a line into d->line or d->marked; 1: it is blank. Line 1 may have a byte order mark. */
static int read_line(const struct prepare *p, const struct document_part *part,
	const char *line, struct document_text *d, struct err *e)
{
	struct str *out = &d->line;
	static const char mark[] = "\xef\xbb\xbf"; /* byte order mark */
	int64_t n = part->n_bytes, n_mark = sizeof(mark) - 1;
	str_clear(out);
	if (part->state == ROW_TOO_LONG)
		return err_set(
			e, EX_DATAERR, "the line is longer than 32 MiB, the maximum");
	if (part->position == 1 && n >= n_mark && !memcmp(line, mark, (size_t)n_mark))
		line += n_mark, n -= n_mark;
	if (is_blank(line, n))
		return 1;
	if (d->records)
		return record_read(d->records, line, n, &d->marked, e);
	if (jsonl_read_text(line, n, p->field ? p->field : "text", out, e))
		return -1;
	if (p->separator)
		str_puts(out, p->separator);
	return 0;
}

static bool is_utf8(const char *text, int64_t n)
{
	const uint64_t high = UINT64_C(0x8080808080808080);
	uint32_t code;
	uint64_t x;
	for (int64_t i = 0, len; i < n; i += len) {
		for (; n - i >= (int64_t)sizeof(x); i += (int64_t)sizeof(x)) {
			memcpy(&x, text + i, sizeof(x));
			if (x & high)
				break;
		}
		len = i == n || (uint8_t)text[i] < 0x80
			      ? 1
			      : utf8_decode(text + i, n - i, &code);
		if (len <= 0)
			return false;
	}
	return true;
}

/* Checks a row of a table, or reads it into d->marked. */
static int read_row(const struct prepare *p, const struct document_part *part,
	const char *row, struct document_text *d, struct err *e)
{
	const char *field = p->field ? p->field : "text";
	if (part->state == ROW_TOO_LONG)
		return err_set(
			e, EX_DATAERR, "the row is longer than 32 MiB, the maximum");
	if (d->records)
		return record_read_row(d->records, row, part->n_bytes, &d->marked, e);
	if (part->state == ROW_NULL)
		return err_set(e, EX_DATAERR, "column '%.40s' is null", field);
	return is_utf8(row, part->n_bytes)
		       ? 0
		       : err_set(e, EX_DATAERR, "column '%.40s' is not UTF-8", field);
}

int batch_read_part(const struct prepare *p, const struct input_file *f,
	const struct batch *b, const struct document_part *part,
	struct document_text *out, struct err *e)
{
	struct err why = {0};
	out->text = b->text.s + part->at;
	out->n = part->n_bytes;
	if (!f->is_jsonl && !f->is_table)
		return 0;
	int rc = f->is_table ? read_row(p, part, out->text, out, &why)
			     : read_line(p, part, out->text, out, &why);
	const struct marked *m = &out->marked;
	if (out->records || f->is_jsonl) {
		const struct str *text = out->records ? &m->text : &out->line;
		out->text = text->s ? text->s : "";
		out->n = (int64_t)text->len;
	}
	if (out->records && m->n_ids) { /* the bytes that are hashed */
		out->text = (const char *)m->ids;
		out->n = m->n_ids * (int64_t)sizeof(*m->ids);
	}
	return rc < 0 ? count_broken_line(p, f, part, out, &why, e) : rc;
}

int count_broken_line(const struct prepare *p, const struct input_file *f,
	const struct document_part *part, struct document_text *out, struct err *why,
	struct err *e)
{
	err_prefix(why, f->is_table ? "%s: row %lld: " : "%s:%lld: ", f->name,
		(long long)part->position);
	if (p->strict) {
		*e = *why;
		return -1;
	}
	if (out->n_broken++ < MAX_MESSAGES && out->messages)
		str_printf(out->messages, "%s\n", why->msg);
	return 1;
}

void pass_add(struct pass_documents *p, int64_t batch, int64_t n, int64_t n_broken,
	const struct str *messages)
{
	p->n += n;
	if (n_broken && (!p->n_broken || batch < p->batch)) {
		p->batch = batch;
		str_clear(&p->messages);
		str_add(&p->messages, messages->s, messages->len);
	}
	p->n_broken += n_broken;
}

int pass_end(struct pass_documents *p, struct err *e)
{
	int rc = 0;
	if (!p->n && p->n_broken)
		rc = err_set(e, EX_DATAERR,
			"documents: none; broken lines: %lld, first %.*s",
			(long long)p->n_broken, (int)strcspn(p->messages.s, "\n"),
			p->messages.s);
	str_free(&p->messages);
	*p = (struct pass_documents){0};
	return rc;
}

void document_text_release(struct document_text *d)
{
	str_free(&d->line);
	marked_release(&d->marked);
}

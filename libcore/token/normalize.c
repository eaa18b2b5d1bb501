/* Normalization of Unicode (UAX #15) by utf8proc, in segments. A segment begins with a character
 * that no earlier character changes, and ends before the next such character. utf8proc decomposes
 * and composes; marks are sorted here, because utf8proc takes quadratic time to sort them. */
#include "token/bpe_internal.h"
#include "token/unicode_internal.h"

#include <pthread.h>
#include <utf8proc.h>

const char *const normal_forms[] = {"none", "NFC", "NFD", "NFKC", "NFKD", NULL};

/* How a character behaves in one form. Values from 1 to 253 are the combining class of a mark that
 * stays unchanged unless a mark of a higher class precedes it. */
enum {
	INERT = 0,    /* a segment begins here, and the character stays unchanged */
	BEGINS = 254, /* a segment begins here, but the character may change */
	CHANGES = 255,
	MAX_DECOMPOSED = 32,
	MAX_SEGMENT = 1 << 22 /* maximum bytes of a segment that may change */
};

static uint8_t tables[N_NORMAL_FORMS][CODE_POINTS];

static bool form_composes(enum normal_form form)
{
	return form == NORMAL_NFC || form == NORMAL_NFKC;
}

/* Writes the canonical or compatibility decomposition of a character. Returns its length. */
static int64_t decompose(bool is_compatible, uint32_t code, int32_t out[MAX_DECOMPOSED])
{
	int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
		      (is_compatible ? UTF8PROC_COMPAT : 0);
	int last = 0;
	int64_t n = utf8proc_decompose_char(
		(int32_t)code, out, MAX_DECOMPOSED, (utf8proc_option_t)options, &last);
	BUG_ON(n < 1 || n > MAX_DECOMPOSED);
	return n;
}

static int64_t compose(int32_t *codes, int64_t n)
{
	return utf8proc_normalize_utf32(codes, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
}

static int combining_class(int32_t code)
{
	return utf8proc_get_property(code)->combining_class;
}

/* Calls visit() for each character that normalization knows. */
static void for_each_known(
	void (*visit)(enum normal_form, uint32_t code), enum normal_form form)
{
	for (int i = 0; i < normalize_n_runs; i += 2)
		for (uint32_t c = normalize_runs[i]; c < normalize_runs[i + 1]; c++)
			visit(form, c);
}

/* Marks the last character of a decomposition, which may compose with a preceding one. */
static void mark_second(enum normal_form form, uint32_t code)
{
	int32_t d[MAX_DECOMPOSED];
	int64_t n = decompose(false, code, d);
	uint32_t second = n > 1 ? (uint32_t)d[n - 1] : 0;
	if (second && compose(d, n) == 1 && (uint32_t)d[0] == code)
		tables[form][second] = CHANGES;
}

/* Sets how a character behaves in a normalization form. */
static void set_behavior(enum normal_form form, uint32_t code)
{
	uint8_t *table = tables[form];
	int32_t d[MAX_DECOMPOSED];
	int64_t n = decompose(form >= NORMAL_NFKC, code, d);
	int class = combining_class(d[0]);
	bool begins = !class && table[d[0]] != CHANGES;
	n = form_composes(form) ? compose(d, n) : n;
	if (n == 1 && (uint32_t)d[0] == code && (class || begins))
		table[code] = table[code] == CHANGES ? CHANGES : (uint8_t) class;
	else
		table[code] = begins ? BEGINS : CHANGES;
}

const uint8_t *normal_table(enum normal_form form)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool is_filled[N_NORMAL_FORMS];
	pthread_mutex_lock(&lock);
	if (form && !is_filled[form]) {
		if (form_composes(form))
			for_each_known(mark_second, form);
		for_each_known(set_behavior, form);
		is_filled[form] = true;
	}
	pthread_mutex_unlock(&lock);
	return tables[form];
}

int64_t normal_growth(enum normal_form form)
{
	return !form ? 1 : form < NORMAL_NFKC ? 3 : 11; /* (UAX #15, table 8) */
}

/* Returns the length of the first character of text[0..n), n > 0, and sets *kind to its behavior. A
 * byte that is not UTF-8 is a character. */
static int char_kind(const uint8_t *table, const char *text, int64_t n, uint8_t *kind)
{
	uint32_t code;
	int len = utf8_decode(text, n, &code);
	*kind = len > 0 ? table[code] : INERT;
	return len > 0 ? len : 1;
}

static bool begins_segment(uint8_t kind)
{
	return kind == INERT || kind == BEGINS;
}

/* Returns the end of the ASCII characters that begin at text[at]. */
static int64_t ascii_end(const char *text, int64_t at, int64_t n)
{
	uint64_t eight;
	for (; at + 8 <= n; at += 8) {
		memcpy(&eight, text + at, 8);
		if (eight & 0x8080808080808080u)
			break;
	}
	while (at < n && (uint8_t)text[at] < 0x80)
		at++;
	return at;
}

/* Returns the beginning of the first segment of text[at..n) that may not be normalized; n: none. */
static int64_t normal_end(const uint8_t *table, const char *text, int64_t at, int64_t n)
{
	int64_t begin = at;
	uint8_t kind, last = 0;
	for (int len; at < n; at += len, last = kind) {
		int64_t ascii = ascii_end(text, at, n);
		if (ascii > at) {
			begin = ascii - 1;
			last = 0;
			at = ascii;
		}
		if (at == n)
			break;
		len = char_kind(table, text + at, n - at, &kind);
		if (begins_segment(kind))
			begin = at;
		if (kind >= BEGINS || (kind && kind < last))
			return begin;
	}
	return n;
}

/* Returns the end of the segment that begins at text[at], at < n. */
static int64_t segment_end(const uint8_t *table, const char *text, int64_t at, int64_t n)
{
	uint8_t kind;
	at += char_kind(table, text + at, n - at, &kind);
	for (int len; at < n; at += len) {
		len = char_kind(table, text + at, n - at, &kind);
		if (begins_segment(kind))
			break;
	}
	return at;
}

static int reject_long_segment(struct err *e)
{
	return err_set(e, EX_DATAERR,
		"the text has more than %d bytes of marks that combine with one character, which "
		"cannot be normalized",
		MAX_SEGMENT);
}

int64_t find_normal_cut(const uint8_t *table, const char *text, int64_t n, struct err *e)
{
	uint8_t kind;
	uint32_t code;
	for (int64_t i = n - 1, n_continues = 0; i > 0; i--) {
		bool continues = ((uint8_t)text[i] & 0xc0) == 0x80;
		n_continues = continues ? n_continues + 1 : 0;
		if (n_continues == 4) /* (4 continuation bytes are not UTF-8) */
			return i + 3;
		if (continues || !utf8_decode(text + i, n - i, &code))
			continue;
		char_kind(table, text + i, n - i, &kind);
		if (begins_segment(kind))
			return i;
	}
	/* (the last character may be incomplete) */
	return n > MAX_SEGMENT && normal_end(table, text, 0, n - 4) < n - 4
		       ? reject_long_segment(e)
		       : 0;
}

bool is_normalized(const uint8_t *table, const char *text, int64_t n)
{
	return normal_end(table, text, 0, n) == n;
}

/* Sorts marks by their combining class; the sort is stable. */
static void sort_marks(int32_t *codes, int64_t n)
{
	int64_t at[256] = {0}, sum = 0;
	bool sorted = true;
	for (int64_t i = 1; i < n; i++)
		sorted &= combining_class(codes[i - 1]) <= combining_class(codes[i]);
	if (sorted)
		return;
	scoped_ptr int32_t *copy = xmalloc((size_t)n * sizeof(*copy));
	memcpy(copy, codes, (size_t)n * sizeof(*copy));
	for (int64_t i = 0; i < n; i++)
		at[combining_class(copy[i])]++;
	for (int c = 0; c < 256; c++) {
		int64_t n_marks = at[c];
		at[c] = sum;
		sum += n_marks;
	}
	for (int64_t i = 0; i < n; i++)
		codes[at[combining_class(copy[i])]++] = copy[i];
}

/* Sorts the marks of each sequence of marks by their combining class. */
static void sort_all_marks(int32_t *codes, int64_t n)
{
	for (int64_t i = 0, end; i < n; i = end + 1) {
		for (end = i; end < n && combining_class(codes[end]); end++)
			;
		sort_marks(codes + i, end - i);
	}
}

/* Returns true if normalization knows this character (Unicode 9.0), by binary search. */
static bool is_known(uint32_t code)
{
	int low = 0, high = normalize_n_runs;
	while (low < high) {
		int mid = (low + high) / 2;
		*(normalize_runs[mid] <= code ? &low : &high) =
			normalize_runs[mid] <= code ? mid + 1 : mid;
	}
	return low & 1;
}

/* Appends the normal form of a segment, which may begin with an unknown character or byte. */
static void append_segment(enum normal_form form, const char *text, int64_t n,
	struct str *codes, struct str *out)
{
	int32_t d[MAX_DECOMPOSED];
	uint8_t bytes[4];
	uint32_t code;
	int64_t at = 0;
	int len = utf8_decode(text, n, &code);
	if (len <= 0 || !is_known(code))
		at = len > 0 ? len : 1;
	str_add(out, text, (size_t)at);
	str_clear(codes);
	for (; at < n; at += len) {
		len = utf8_decode(text + at, n - at, &code);
		int64_t k = decompose(form >= NORMAL_NFKC, code, d);
		str_add(codes, d, (size_t)k * sizeof(*d));
	}
	int64_t n_codes = (int64_t)(codes->len / sizeof(*d));
	int32_t *all = (int32_t *)(void *)codes->s;
	if (!n_codes)
		return;
	sort_all_marks(all, n_codes);
	if (form_composes(form))
		n_codes = compose(all, n_codes);
	for (int64_t i = 0; i < n_codes; i++)
		str_add(out, bytes, (size_t)utf8_encode((uint32_t)all[i], bytes));
}

void changes_add(struct text_changes *c, struct text_change x)
{
	c->v = xgrow(c->v, c->n, sizeof(*c->v));
	c->v[c->n++] = x;
}

int normalize(enum normal_form form, const char *text, int64_t n, struct normalized *out,
	struct err *e)
{
	const uint8_t *table = normal_table(form);
	struct str *to = &out->text;
	for (int64_t at = 0, end; at < n; at = end) {
		int64_t begin = normal_end(table, text, at, n);
		str_add(to, text + at, (size_t)(begin - at));
		if (begin == n)
			break;
		end = segment_end(table, text, begin, n);
		if (end - begin > MAX_SEGMENT)
			return reject_long_segment(e);
		int64_t from = (int64_t)to->len;
		append_segment(form, text + begin, end - begin, &out->codes, to);
		int64_t len = (int64_t)to->len - from;
		if (len != end - begin || memcmp(to->s + from, text + begin, (size_t)len))
			changes_add(&out->changes,
				(struct text_change){begin, end, from, from + len});
	}
	return 0;
}

void normalized_clear(struct normalized *x)
{
	str_clear(&x->text);
	x->changes.n = 0;
}

void normalized_release(struct normalized *x)
{
	str_free(&x->text);
	str_free(&x->codes);
	free(x->changes.v);
	*x = (struct normalized){0};
}

int64_t normalized_origin(const struct text_changes *c, int64_t at)
{
	int64_t low = 0, high = c->n; /* the last change that begins before `at` */
	while (low < high) {
		int64_t mid = (low + high) / 2;
		*(c->v[mid].to < at ? &low : &high) = c->v[mid].to < at ? mid + 1 : mid;
	}
	if (!low)
		return at;
	const struct text_change *x = &c->v[low - 1];
	return at < x->to_end ? -1 : x->end + at - x->to_end;
}

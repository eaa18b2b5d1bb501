/* Prints documents of shards as text, with marks around the tokens that count. */
#include "prepare/prepare.h"
#include "base/utf8.h"
#include "data/offsets.h"

#include <errno.h>
#include <unistd.h>

struct show {
	const struct tokenizer *t;
	FILE *f;
	const char *open, *close; /* marks around tokens that count */
	int64_t from, n;	  /* documents [from, from + n) are shown */
	int64_t window;
	bool shortens; /* leaves out the middle of long runs */

	int64_t number; /* index of the current document; -1: none */
	int64_t n_shown, n_tokens, n_counted;
	/* The current document. */
	enum split split;
	int64_t tokens, counted;
	int32_t first;
	bool are_equal;	      /* all tokens of the document are equal */
	bool run_counts;      /* the tokens in `run` count */
	struct str text, run; /* run: last tokens, which all count or all do not */
};

static bool is_shown(const struct show *s)
{
	return s->number >= s->from && s->number - s->from < s->n;
}

/* Appends bytes [begin, end) of the run to the text, with marks if its tokens count. */
static void append_run(struct show *s, size_t begin, size_t end)
{
	s->run.s[end] = '\0';
	str_printf(&s->text, "%s%s%s", s->run_counts ? s->open : "",
		text_printable(s->run.s + begin), s->run_counts ? s->close : "");
}

/* Appends the run to the text, on a terminal without the middle of a long run, and clears it. */
static void end_run(struct show *s)
{
	enum { SHOWN = 400 };
	size_t n = s->run.len, begin = n - SHOWN, end = SHOWN;
	char *text = s->run.s;
	for (size_t i = 0; i < n; i++)
		if (!text[i])
			text[i] = '?';
	if (s->shortens && n > 3 * SHOWN) {
		while (((uint8_t)text[begin] & 0xc0) == 0x80) /* not within a character */
			begin++;
		while (((uint8_t)text[end] & 0xc0) == 0x80)
			end--;
		append_run(s, 0, end);
		str_printf(&s->text, " [... %zu bytes ...] ", begin - end);
		append_run(s, begin, n);
	} else if (n) {
		append_run(s, 0, n);
	}
	str_clear(&s->run);
}

static void print_count(const struct show *s, int64_t n, int64_t counted)
{
	fprintf(s->f, "%lld token%s, %lld count%s (%.1f%%)", (long long)n, plural(n),
		(long long)counted, counted == 1 ? "s" : "",
		100 * (double)counted / (double)max64(1, n));
}

/* Prints the current document if it was asked for; token `at` of the split begins the next one. */
static void print_document(struct show *s, int64_t at)
{
	if (is_shown(s) && s->tokens) {
		/* A window may end with padding, and the split ends with one extra token. */
		bool is_padding =
			s->window && s->are_equal && !s->counted &&
			(at % s->window == 0 || (s->tokens == 1 && at % s->window == 1));
		end_run(s);
		fprintf(s->f, "# document %lld, %s: ", (long long)s->number,
			split_names[s->split]);
		print_count(s, s->tokens, s->counted);
		fprintf(s->f, "%s\n", is_padding ? ", padding" : "");
		if (!is_padding)
			fprintf(s->f, "%s%s", s->text.s ? s->text.s : "",
				s->text.len && s->text.s[s->text.len - 1] == '\n' ? ""
										  : "\n");
		s->n_shown++;
		s->n_tokens += s->tokens;
		s->n_counted += s->counted;
	}
	str_clear(&s->text);
	s->tokens = s->counted = 0;
	s->are_equal = true;
}

/* Counts a token, and appends its text to the run if the document is shown. */
static void append_token(struct show *s, int32_t token)
{
	int32_t id = token & ~TOKEN_FLAGS;
	bool token_counts = !(token & TOKEN_CONTEXT);
	if (!s->tokens)
		s->first = id;
	s->are_equal = s->are_equal && id == s->first;
	s->tokens++;
	s->counted += token_counts;
	if (!is_shown(s))
		return;
	if (token_counts != s->run_counts)
		end_run(s);
	s->run_counts = token_counts;
	tokenizer_decode(s->t, id, &s->run);
}

/* Reads the documents of a split and prints the chosen ones. */
static int show_split(struct show *s, struct corpus *c, struct err *e)
{
	enum { N = 1 << 16 };
	static int32_t ids[N];
	int64_t all = corpus_tokens(c, s->split), at = 0;
	for (int64_t n; at < all && s->number < s->from + s->n; at += n) {
		n = min64(N, all - at);
		if (corpus_read(c, s->split, at, n, ids, e))
			return -1;
		corpus_mark(c, s->split, at, n, ids);
		for (int64_t i = 0; i < n; i++) {
			if ((ids[i] & DOCUMENT_BEGINS) || (!at && !i)) {
				print_document(s, at + i);
				s->number++;
			}
			append_token(s, ids[i]);
		}
	}
	print_document(s, at);
	return 0;
}

int prepare_show(
	const struct strs *files, int64_t from, int64_t n, FILE *f, struct err *e)
{
	struct corpus *c;
	bool color = log_uses_color(f);
	if (corpus_open(&c, files, CORPUS_DOCUMENTS, e))
		return -1;
	struct show s = {.t = corpus_tokenizer(c),
		.f = f,
		.open = color ? "\033[1;32m" : "⟦",
		.close = color ? "\033[0m" : "⟧",
		.from = from,
		.n = n,
		.shortens = isatty(fileno(f)),
		.window = corpus_info(c, 0)->window_tokens,
		.number = -1,
		.are_equal = true};
	int rc = 0;
	for (int split = 0; split < N_SPLITS && !rc; split++) {
		s.split = (enum split)split;
		rc = show_split(&s, c, e);
	}
	if (!rc && !s.n_shown)
		rc = err_set(e, EX_USAGE, "--show-from %lld: the last document is %lld",
			(long long)from, (long long)s.number);
	if (!rc) {
		fprintf(f, "# %lld document%s: ", (long long)s.n_shown,
			plural(s.n_shown));
		print_count(&s, s.n_tokens, s.n_counted);
		fputs("\n", f);
	}
	if (!rc && ferror(f))
		rc = err_set(e, EX_IOERR, "standard output: %s", strerror(errno));
	str_free(&s.text);
	str_free(&s.run);
	corpus_close(c);
	return rc;
}

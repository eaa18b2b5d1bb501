/* Lines of JSONL that say which tokens count, and templates of conversations: any bytes of both. What is read quickly is
 * what jansson reads; and what counts is in the text, in order. */
#include "tests/fuzz/fuzz.h"
#include "prepare/record.h"

#include <stdlib.h>
#include <string.h>

static void check(const struct marked *m)
{
	int64_t all = m->n_ids ? m->n_ids : (int64_t)m->text.len, at = 0;
	for (int64_t i = 0; i < m->n_counted; i++) {
		FUZZ_ON(m->counted[i].begin < at ||
			m->counted[i].end <= m->counted[i].begin);
		at = m->counted[i].end;
	}
	FUZZ_ON(at > all);
	at = 0;
	for (int64_t i = 0; i < m->n_tokens; i++) {
		FUZZ_ON(m->tokens[i].at.begin < at ||
			m->tokens[i].at.end < m->tokens[i].at.begin);
		at = m->tokens[i].at.end;
	}
	FUZZ_ON(at > (int64_t)m->text.len);
}

static bool same(const struct marked *a, const struct marked *b)
{
	return a->text.len == b->text.len &&
	       (!a->text.len || !memcmp(a->text.s, b->text.s, a->text.len)) &&
	       a->n_counted == b->n_counted &&
	       (!a->n_counted || !memcmp(a->counted, b->counted,
					 (size_t)a->n_counted * sizeof(*a->counted))) &&
	       a->n_ids == b->n_ids &&
	       (!a->n_ids || !memcmp(a->ids, b->ids, (size_t)a->n_ids * sizeof(*a->ids)));
}

static void read_line(const struct records *r, const char *line, int64_t n)
{
	struct marked one = {0}, other = {0};
	struct str slow = {0};
	struct err e = {0}, f = {0};
	int rc = record_read(r, line, n, &one, &e);
	FUZZ_ON(!rc != !e.code);
	if (!rc)
		check(&one);
	/* a list that nobody needs is for jansson */
	if (n && *line == '{') {
		str_puts(&slow, "{\"\": [], ");
		str_add(&slow, line + 1, (size_t)n - 1);
		int again = record_read(r, slow.s, (int64_t)slow.len, &other, &f);
		FUZZ_ON(!rc && (again || !same(&one, &other)));
	}
	str_free(&slow);
	marked_release(&one);
	marked_release(&other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const char *const names[] = {
		NULL, "chatml", "llama3", "qwen", "", "llama3.1", "qwen3", "qwen3-2507"};
	struct bytes b = {data, n};
	struct err e = {0};
	struct tokenizer t;
	uint8_t how = take_byte(&b);
	const char *name = names[(how >> 3) % ARRAY_LEN(names)];
	struct prepare p = {.record = RECORD_PROMPT + how % 5,
		.chat_template = name,
		.count = take_byte(&b) % 4};
	if (name && !*name) {
		char *text = take_text(&b, 4096);
		p.chat_template = fuzz_file("template", text, strlen(text));
		free(text);
	}
	FUZZ_ON(tokenizer_init_ids(&t, 300, &e));
	struct records *r = records_new(&p, &t, &e);
	FUZZ_ON(!r != (e.code != 0));
	if (r)
		read_line(r, (const char *)b.p, (int64_t)b.n);
	records_free(r);
	tokenizer_release(&t);
	return 0;
}

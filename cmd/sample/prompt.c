/* Prompts: conversations and special tokens. */
#include "sample/sample.h"

#include "chat/template.h"
#include "foreign/foreign.h"

struct chat_template *open_prompt_template(
	const struct ckpt *c, const char *name, struct err *e)
{
	const struct tokenizer *t = &c->tokenizer;
	scoped_str jinja = {0}, names = {0};
	if (name)
		return chat_template_open(name, t, e);
	if (t->chat_template)
		return chat_template_open_kept(t->chat_template, t, e);
	hf_origin_template(&c->origin, &jinja);
	const char *kept = jinja.len ? chat_template_of_jinja(&jinja) : NULL;
	if (kept)
		return chat_template_open_kept(kept, t, e);
	chat_template_names(&names);
	err_set(e, EX_USAGE, "%s: %s; choose one with --chat-template: %s", c->path,
		jinja.len ? "the chat template is not supported"
			  : "no chat template found",
		names.s);
	return NULL;
}

/* Appends the tokens of text[0..n) to ids[n_ids]. Returns the new number of tokens, or -1. */
static int64_t append_encoded(const struct tokenizer *t, const char *text, int64_t n,
	uint32_t **ids, int64_t n_ids, struct err *e)
{
	scoped_ptr uint32_t *new_ids = NULL;
	int64_t n_more = n ? tokenizer_encode_all(t, text, n, &new_ids, e) : 0;
	if (n_more < 0)
		return -1;
	*ids = xrealloc(*ids, (size_t)(n_ids + n_more + 1) * sizeof(**ids));
	if (n_more)
		memcpy(*ids + n_ids, new_ids, (size_t)n_more * sizeof(**ids));
	return n_ids + n_more;
}

/* Encodes a text with markers that have known tokens. Returns the number of tokens, or -1. */
static int64_t encode_marked(
	const struct tokenizer *t, const struct marked *m, uint32_t **ids, struct err *e)
{
	int64_t done = 0, n = 0, n_bytes = (int64_t)m->text.len;
	for (int64_t i = 0; i <= m->n_tokens && n >= 0; i++) {
		const struct marker_token *next = i < m->n_tokens ? &m->tokens[i] : NULL;
		int64_t end = next ? next->at.begin : n_bytes;
		n = append_encoded(t, m->text.s + done, end - done, ids, n, e);
		if (next && next->id != BPE_NONE && n >= 0)
			(*ids)[n++] = next->id;
		done = next ? next->at.end : n_bytes;
	}
	return n;
}

int64_t encode_question(const struct chat_template *chat, const struct tokenizer *t,
	const char *text, size_t n, struct str *out, uint32_t **ids, struct err *e)
{
	struct marked m = {0};
	*ids = NULL;
	int64_t n_ids = chat_template_apply_question(chat, text, n, &m, e)
				? -1
				: encode_marked(t, &m, ids, e);
	if (n_ids < 0)
		free(*ids);
	else
		str_add(out, m.text.s, m.text.len);
	marked_free(&m);
	return n_ids;
}

void find_special_token(
	const struct tokenizer *t, const char *text, size_t n, struct str *out)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	const char *first = NULL;
	for (int64_t i = 0; r && i < r->n_added; i++) {
		const int64_t *offset = t->vocab.offset + r->added[i].id;
		size_t len = (size_t)(offset[1] - offset[0]);
		const char *found =
			len && r->added[i].flags & BPE_SPECIAL
				? memmem(text, n, t->vocab.bytes + *offset, len)
				: NULL;
		if (!found || (first && found >= first))
			continue;
		first = found;
		str_clear(out);
		str_add(out, found, len);
	}
}

/* The ends of a text. */
#include "sample/sample.h"

#include "chat/template.h"
#include "foreign/foreign.h"

static void add_stop(struct stops *s, int64_t id)
{
	s->ids = xgrow(s->ids, s->n, sizeof(*s->ids));
	s->ids[s->n++] = (uint32_t)id;
}

/* Adds the end of a turn of the assistant: its first token, or its text if it begins with text. */
static void add_end_of_turn(struct stops *s, const struct chat_template *chat)
{
	const struct chat_role *r = chat_role_named(chat, "assistant", 9);
	if (!r)
		return;
	if (r->end.n_tokens && !r->end.tokens[0].at.begin)
		add_stop(s, r->end.tokens[0].id);
	else if (r->end.text.len)
		s->text = r->end.text.s;
}

/* Adds the token of id:N. */
static int add_token(
	struct stops *s, const char *number, const struct tokenizer *t, struct err *e)
{
	char *end;
	long long id = strtoll(number, &end, 10);
	if (end == number || *end || id < 0 || id >= t->vocab.n)
		return err_set(e, EX_USAGE,
			"--stop id:%s: not one of the %lld tokens of the vocabulary",
			number, (long long)t->vocab.n);
	add_stop(s, id);
	return 0;
}

int stops_find(struct stops *s, const struct ckpt *c, const char *how,
	const struct chat_template *chat, struct err *e)
{
	int64_t end = tokenizer_end_of_text(&c->tokenizer);
	*s = (struct stops){0};
	if (how && !strcmp(how, "none"))
		return 0;
	s->n = hf_origin_ends(&c->origin, &s->ids);
	if (!s->n && end >= 0)
		add_stop(s, end);
	if (chat)
		add_end_of_turn(s, chat);
	if (how && !strncmp(how, "id:", 3))
		return add_token(s, how + 3, &c->tokenizer, e);
	if (how)
		s->text = how;
	return 0;
}

bool stops_at(const struct stops *s, int64_t id)
{
	for (int64_t i = 0; i < s->n; i++)
		if (s->ids[i] == id)
			return true;
	return false;
}

void stops_free(struct stops *s)
{
	free(s->ids);
}

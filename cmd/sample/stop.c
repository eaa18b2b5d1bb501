/* The ends of a text. */
#include "sample/sample.h"

#include "chat/template.h"
#include "foreign/foreign.h"

static void add_stop(struct stops *s, int64_t id)
{
	s->ids = xgrow(s->ids, s->n, sizeof(*s->ids));
	s->ids[s->n++] = (uint32_t)id;
}

/* Adds the end of an assistant's turn: its first token, or its text if it begins with text. */
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

/* Adds the token of --stop id:N. */
static int add_stop_option(
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

int stops_init(struct stops *s, const struct ckpt *c, const char *option,
	const struct chat_template *chat, struct err *e)
{
	int64_t end = tokenizer_end_of_text(&c->tokenizer);
	*s = (struct stops){0};
	if (option && !strcmp(option, "none"))
		return 0;
	s->n = hf_origin_end_tokens(&c->origin, &s->ids);
	if (!s->n && end >= 0)
		add_stop(s, end);
	if (chat)
		add_end_of_turn(s, chat);
	if (option && !strncmp(option, "id:", 3))
		return add_stop_option(s, option + 3, &c->tokenizer, e);
	if (option)
		s->text = option;
	return 0;
}

bool is_stop_token(const struct stops *s, int64_t id)
{
	for (int64_t i = 0; i < s->n; i++)
		if (s->ids[i] == id)
			return true;
	return false;
}

void stops_release(struct stops *s)
{
	free(s->ids);
}

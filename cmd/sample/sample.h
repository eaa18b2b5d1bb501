/* sample: prompts, conversations, and what ends a text, for pt-sample.
 *
 * Checkpoints are not trusted. No call is collective. Functions that return int return 0, or -1
 * with *e set. */
#pragma once

#include "ckpt/ckpt.h"

/* ---- prompt.c -------------------------------------------------------------------- */

struct chat_template;
/* Opens the template `name` of --chat-template; NULL: the template of the training data, or of the
 * Hugging Face model that training started from. Returns NULL with *e set if there is none. */
struct chat_template *open_prompt_template(
	const struct ckpt *c, const char *name, struct err *e);
/* Appends the conversation with the user's message text[0..n) to *out, and sets *ids to its tokens,
 * allocated. Only the template has special tokens. Returns the number of tokens, or -1. */
int64_t encode_question(const struct chat_template *chat, const struct tokenizer *t,
	const char *text, size_t n, struct str *out, uint32_t **ids, struct err *e);
/* Sets *out to the text of the first special token in text[0..n), if there is one. */
void find_special_token(
	const struct tokenizer *t, const char *text, size_t n, struct str *out);

/* ---- stop.c ---------------------------------------------------------------------- */

/* Ends of a text: tokens, which are not printed, and a text, which is printed. */
struct stops {
	uint32_t *ids;
	int64_t n;
	const char *text; /* NULL: none */
};
/* Sets the ends of a text. `option`: --stop; NULL: only the model's tokens. `chat`: NULL: no
 * conversation. */
int stops_init(struct stops *s, const struct ckpt *c, const char *option,
	const struct chat_template *chat, struct err *e);
/* Returns true if token `id` ends a text. */
bool is_stop_token(const struct stops *s, int64_t id);
void stops_release(struct stops *s);

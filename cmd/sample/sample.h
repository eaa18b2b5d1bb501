/*
 * sample: what pt-sample knows beside the model: prompts, conversations, and what ends a text.
 *
 * Checkpoints are not trusted. No call is collective. Functions that return int return 0, or -1
 * with *e set.
 */
#pragma once

#include "ckpt/ckpt.h"

/* ---- prompt.c -------------------------------------------------------------------- */

struct chat_template;
/* `name`: of --chat-template; NULL: the template of the data that the model was trained on, or
 * of the model of Hugging Face that it began with. NULL: an error. chat_template_close(). */
struct chat_template *prompt_template(
	const struct ckpt *c, const char *name, struct err *e);
/* Appends the conversation in which a user says text[0..n) to *out, and sets *ids, allocated,
 * to its tokens. Only the template has special tokens. Returns their number, or -1. */
int64_t prompt_ask(const struct chat_template *chat, const struct tokenizer *t,
	const char *text, size_t n, struct str *out, uint32_t **ids, struct err *e);
/* Appends the text of the first special token that is in text[0..n). */
void prompt_special(
	const struct tokenizer *t, const char *text, size_t n, struct str *out);

/* ---- stop.c ---------------------------------------------------------------------- */

/* What ends a text: tokens, which are not printed, and a text, which is. */
struct stops {
	uint32_t *ids;
	int64_t n;
	const char *text; /* NULL: none */
};
/* `how`: of --stop; NULL: the model's tokens only. chat NULL: no conversation. */
int stops_find(struct stops *s, const struct ckpt *c, const char *how,
	const struct chat_template *chat, struct err *e);
bool stops_at(const struct stops *s, int64_t id);
void stops_free(struct stops *s);

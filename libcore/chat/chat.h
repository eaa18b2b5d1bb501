/*
 * chat: conversations laid out as text by a template, with the tokens of its markers and the parts that count as
 * targets of the loss. template.h has the template itself.
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set.
 */
#pragma once

#include "token/tokenizer.h"

/* Which turns count. */
#define COUNT_WORDS "assistant", "last", "all", "none"
enum { COUNT_ASSISTANT, COUNT_LAST, COUNT_ALL, COUNT_NONE };

/* ---- a document ------------------------------------------------------------------ */

/* Bytes [begin, end) of a text, or tokens. */
struct extract {
	int64_t begin, end;
};

/* Bytes of a text that are a token, whatever the tokenizer would find there; of none (begin == end) it is
 * BPE_NONE: what is before it and what is behind it are encoded apart. */
struct marker_token {
	struct extract at;
	uint32_t id;
};

struct json_t;

/* A turn: who says what. */
struct chat_turn {
	struct extract role, text; /* of turns.said */
	bool silent;		   /* it does not count, whatever is asked for */
	const struct json_t *json; /* all of it; NULL: it has no more than this */
};

struct chat_turns {
	struct str said;
	struct chat_turn *v;
	int64_t n;
	const struct json_t *tools; /* which the assistant may call; NULL: none */
};

struct marked {
	struct str text;
	struct extract *counted; /* ascending; of the text, or of the ids */
	int64_t n_counted;
	struct marker_token *tokens; /* ascending */
	int64_t n_tokens;
	uint32_t *ids; /* of RECORD_IDS and RECORD_MASK, which have no text */
	int64_t n_ids;
	struct chat_turns turns; /* of which it was made */
};

void marked_clear(struct marked *m);
void marked_free(struct marked *m);
/* They are appended; what joins the one before becomes one with it. */
void marked_count(struct marked *m, int64_t begin, int64_t end);

/* ---- template.c, chat.c: the markers of turns ------------------------------------- */

/* Literal texts around the turns of a conversation. */
struct chat_template;
/* `name`: one that is built in, as chatml, or a file. Special tokens of t in its texts become these tokens; t NULL: none do. NULL:
 * an error. */
struct chat_template *chat_template_open(
	const char *name, const struct tokenizer *t, struct err *e);
/* From chat_template_kept(), which may be anybody's: no file is read. */
struct chat_template *chat_template_open_kept(
	const char *kept, const struct tokenizer *t, struct err *e);
void chat_template_close(struct chat_template *c);
/* What it is made of, for a hash. */
const char *chat_template_source(const struct chat_template *c);
/* From which it is opened again, wherever that is: its name, if it is built in, or its source. */
const char *chat_template_kept(const struct chat_template *c);
/* Has a text around the user's turns a token of its own, which no text of a user can be? */
bool chat_template_is_safe(const struct chat_template *c);
/* Lays out out->turns; `count`: which of them count, COUNT_ASSISTANT and so on. */
int chat_template_apply(
	const struct chat_template *c, int count, struct marked *out, struct err *e);
/* Lays out a conversation of one turn of the user, text[0..n), up to where the assistant's
 * answer begins. */
int chat_template_ask(const struct chat_template *c, const char *text, size_t n,
	struct marked *out, struct err *e);

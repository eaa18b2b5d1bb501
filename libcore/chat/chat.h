/* chat: conversations laid out as text by a template, with the tokens of its markers and the parts
 * that count as targets of the loss. template.h has the template itself.
 *
 * Files are not trusted. Functions that return int return 0, or -1 with *e set. */
#pragma once

#include "token/tokenizer.h"

/* Which turns count as targets of the loss. */
#define COUNT_WORDS "assistant", "last", "all", "none"
enum { COUNT_ASSISTANT, COUNT_LAST, COUNT_ALL, COUNT_NONE };

/* ---- a document ------------------------------------------------------------------ */

/* Bytes [begin, end) of a text, or tokens. */
struct extract {
	int64_t begin, end;
};

/* Bytes of a text that are a token, whatever the tokenizer would find there. With no bytes (begin
 * == end) the id is BPE_NONE: the text before it and the text after it are encoded separately. */
struct marker_token {
	struct extract at;
	uint32_t id;
};

struct json_t;

/* A turn of a conversation. */
struct chat_turn {
	struct extract role, text; /* bytes of turns.strings */
	bool silent;		   /* never counts, whatever turns are counted */
	const struct json_t *json; /* the whole turn; NULL: only a role and a text */
};

struct chat_turns {
	struct str strings; /* roles and texts of all turns */
	struct chat_turn *v;
	int64_t n;
	const struct json_t *tools; /* tools that the assistant may call; NULL: none */
};

/* A document with the tokens of its markers and the parts that count. */
struct marked {
	struct str text;
	struct extract *counted; /* ascending; bytes of the text, or indices of ids */
	int64_t n_counted;
	struct marker_token *tokens; /* ascending */
	int64_t n_tokens;
	uint32_t *ids; /* for RECORD_IDS and RECORD_MASK, which have no text */
	int64_t n_ids;
	struct chat_turns turns; /* the conversation from which the text was made */
};

void marked_clear(struct marked *m);
void marked_release(struct marked *m);
/* Appends an extract that counts, or extends the last one if they touch. */
void marked_add_counted(struct marked *m, int64_t begin, int64_t end);

/* ---- template.c, chat.c: the markers of turns ------------------------------------- */

/* Literal texts around the turns of a conversation. */
struct chat_template;
/* Opens a built-in template, such as chatml, or a file. Special tokens of t in its texts become
 * these tokens; t may be NULL. Returns NULL on error. */
struct chat_template *chat_template_open(
	const char *name, const struct tokenizer *t, struct err *e);
/* Opens a template from chat_template_text() of an untrusted file. Reads no file. */
struct chat_template *chat_template_open_text(
	const char *kept, const struct tokenizer *t, struct err *e);
void chat_template_close(struct chat_template *c);
/* Returns the source of the template, for a hash. */
const char *chat_template_source(const struct chat_template *c);
/* Returns a text to open the template again on any machine: a built-in name, or the source. */
const char *chat_template_text(const struct chat_template *c);
/* Returns true if special tokens stand around the user's turns, which no text can imitate. */
bool chat_template_is_safe(const struct chat_template *c);
/* Lays out out->turns. `count`: which turns count, COUNT_ASSISTANT and so on. */
int chat_template_apply(
	const struct chat_template *c, int count, struct marked *out, struct err *e);
/* Lays out a conversation of one user turn, text[0..n), up to the assistant's answer. */
int chat_template_apply_question(const struct chat_template *c, const char *text,
	size_t n, struct marked *out, struct err *e);

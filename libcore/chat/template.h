/* A template of conversations: literal texts, read by template.c and laid out by chat.c. */
#pragma once

#include "chat/chat.h"

struct json_t;

/* ---- template.c: reading --------------------------------------------------------- */

struct chat_role {
	char *name;
	/* `end` counts as the turn does. `between` replaces all three between turns of one role. */
	struct marked before, end, after, between;
	bool joins_turns; /* consecutive turns of this role are joined by `between` */
};

/* The literal texts around tools, calls of tools and thoughts. */
enum tool_text {
	TOOL_SYSTEM, /* before the system's text, if there are tools */
	TOOL_SPACE,  /* between the system's text and the list */
	TOOL_LIST,
	TOOL_BEFORE, /* before each tool of the list */
	TOOL_AFTER,
	TOOL_LIST_END,
	TOOL_CALL,
	TOOL_ARGUMENTS, /* between a call's name and its arguments */
	TOOL_CALL_END,
	TOOL_NEXT_CALL, /* before a call that follows another call or the assistant's text */
	TOOL_THOUGHT,
	TOOL_THOUGHT_END,
	N_TOOL_TEXTS
};

struct tool_style {
	const char *name;		/* name of the template with this style */
	const char *text[N_TOOL_TEXTS]; /* NULL: none; its feature is not supported */
	bool tools_in_user_turn; /* list before the first user text, not after the system text */
	bool json_results; /* writes the results of tools as JSON */
	int indent;	   /* indentation of the list, in spaces */
};

struct chat_template {
	const struct tokenizer *t;
	const char *name; /* NULL: not built in */
	struct str source;
	struct marked begin, end; /* texts at the ends of a conversation */
	struct marked system;	  /* before the system's first text */
	char *default_system;	  /* NULL: none */
	bool trim;
	struct chat_role *roles;
	int64_t n_roles;
	const struct tool_style *style; /* NULL: no tools */
	struct marked tools[N_TOOL_TEXTS];
	/* Markers that the tokenizer would find in any text, unless texts of turns are cut. */
	struct strs guarded;
	bool has_tokens; /* special tokens around the user's turns */
};

/* Returns the role with this name; NULL: none. */
const struct chat_role *chat_role_named(
	const struct chat_template *c, const char *name, size_t n);

/* ---- jinja.c ----------------------------------------------------------------------- */

/* Returns the name of the built-in template that is equivalent to this Jinja; NULL: none. */
const char *chat_template_of_jinja(const struct str *jinja);
/* Reads a chat template from a file or a directory of Hugging Face. Sets *name to the built-in
 * template equivalent to the Jinja, or to NULL and *text to the content of a file without Jinja. */
int chat_template_read(
	const char *path, const char **name, struct str *text, struct err *e);

/* ---- template.c --------------------------------------------------------------------- */

void chat_template_names(struct str *out); /* appends the built-in templates' names */

/* ---- chat.c: a text with tokens -------------------------------------------------- */

void marked_token(struct marked *m, int64_t begin, int64_t end, uint32_t id);

/* ---- tojson.c -------------------------------------------------------------------- */

/* Bytes of JSON. With indentation, n bytes can become n * n. */
enum { MAX_JSON = 1 << 28 };
/* Appends JSON, with `indent` spaces per level; 0: on one line. Returns false if it is too long. */
bool tojson(struct str *out, const struct json_t *j, int indent);

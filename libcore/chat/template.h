/* A template of conversations: literal texts, read by template.c and laid out by chat.c. */
#pragma once

#include "chat/chat.h"

struct json_t;

/* ---- template.c: reading --------------------------------------------------------- */

struct chat_role {
	char *name;
	/* The end counts as the turn does; `between` is there instead of an end and a beginning where turns of the role
	 * follow each other. */
	struct marked before, end, after, between;
	bool joins; /* it has a text between */
};

/* Around tools, calls of them and thoughts. */
enum tool_text {
	TOOL_SYSTEM, /* before what the system says, if there are tools */
	TOOL_SPACE,  /* behind it */
	TOOL_LIST,
	TOOL_BEFORE, /* each of the list */
	TOOL_BEHIND,
	TOOL_LIST_END,
	TOOL_CALL,
	TOOL_ARGUMENTS, /* between a call's name and its arguments */
	TOOL_CALL_END,
	TOOL_NEXT_CALL, /* before a call behind another one, or behind what the assistant says */
	TOOL_THOUGHT,
	TOOL_THOUGHT_END,
	N_TOOL_TEXTS
};

struct tool_style {
	const char *name; /* of the template that has it */
	const char *text
		[N_TOOL_TEXTS]; /* NULL: there is none, and what it is for is not either */
	bool of_user; /* the list is before what the user says first, not behind the system */
	bool json_results; /* what a tool says is written as JSON */
	int indent;	   /* of the list's JSON */
};

struct chat_template {
	const struct tokenizer *t;
	const char *name; /* NULL: it is not built in */
	struct str source;
	struct marked begin, end; /* of a conversation */
	struct marked system;	  /* before what the system says first */
	char *default_system;	  /* NULL: none */
	bool trim;
	struct chat_role *roles;
	int64_t n_roles;
	const struct tool_style *style; /* NULL: no tools */
	struct marked tools[N_TOOL_TEXTS];
	/* Tokens of markers that the tokenizer would find in any text: they are kept from it. */
	struct strs guarded;
	bool has_tokens; /* around the user's turns */
};

/* NULL: there is none of this name. */
const struct chat_role *chat_role_named(
	const struct chat_template *c, const char *name, size_t n);

/* ---- jinja.c ----------------------------------------------------------------------- */

/* The name of the built-in template that does what this Jinja does; NULL: none is known to. */
const char *chat_template_of_jinja(const struct str *jinja);
/* Reads a chat template from a file or a directory of Hugging Face. Sets *name to the built-in
 * template that the Jinja is equal to, or to NULL and *text to the content of a file without Jinja. */
int chat_template_read(
	const char *path, const char **name, struct str *text, struct err *e);

/* ---- template.c --------------------------------------------------------------------- */

void chat_template_names(struct str *out); /* prints the built-in templates' names */

/* ---- chat.c: a text with tokens -------------------------------------------------- */

void marked_token(struct marked *m, int64_t begin, int64_t end, uint32_t id);

/* ---- tojson.c -------------------------------------------------------------------- */

/* With indents, n bytes of JSON can become n * n. */
enum { MAX_JSON = 1 << 28 };
/* Appends JSON; `indent`: spaces a level, on lines of their own; 0: all on one line. False: it is too long. */
bool tojson(struct str *out, const struct json_t *j, int indent);

/*
 * Pickles of Python as trees, of which nothing is executed: a class or function is a name, and what it was
 * called with is kept beside it. Only the files of this floor include it.
 *
 * The bytes are not trusted. A node has 16 bytes and equal texts are kept once, so a tree is at most some times
 * as large as them. A tree may share nodes and, by the memo of a pickle, contain itself:
 * who walks it bounds the depth and counts the steps.
 */
#pragma once

#include "base/base.h"

enum pickle_kind {
	PICKLE_NONE,
	PICKLE_BOOL,
	PICKLE_INT,
	PICKLE_REAL,
	PICKLE_TEXT,
	PICKLE_BYTES, /* also integers of more than 64 bits; they are not kept */
	PICKLE_GLOBAL,
	PICKLE_TUPLE, /* also torch.Size */
	PICKLE_LIST,
	PICKLE_SET,
	PICKLE_DICT,	  /* also an OrderedDict */
	PICKLE_OBJECT,	  /* what a global, or anything else, was called with; opaque */
	PICKLE_PERSISTENT /* a persistent id, such as a storage of torch.save */
};

struct pickle_node {
	uint32_t kind; /* enum pickle_kind */
	uint32_t
		n; /* bytes of a text, members of a container (a dict's key and value are two) */
	union {
		int64_t integer;
		double real;
		uint64_t at;	  /* of a text: in `texts` */
		uint32_t link[2]; /* numbers of nodes, or of places in `links` */
	} is;
};

struct pickle {
	const char *name;	   /* in messages; the caller's */
	struct pickle_node *nodes; /* node 0 is None */
	uint32_t n_nodes, root;
	/* Members of containers, in chains of pieces: their number, the place of the next piece (0: none),
	 * members. */
	uint32_t *links;
	uint64_t n_links;
	char *texts; /* most of them once */
	uint64_t n_texts;
};

/* The bytes of a pickle, which are not needed when it is parsed. */
struct pickle_bytes {
	const void *p; /* NULL: the first n bytes of a file, which are read in pieces */
	size_t n;
	int fd;
};
/* Parses the first pickle of these bytes, which messages call `name`, for pickle_free(). EX_DATAERR: they are
 * none, or have an opcode that torch.save() and DCP do not write. EX_IOERR: the file cannot be read. */
int pickle_parse(
	struct pickle *p, const struct pickle_bytes *b, const char *name, struct err *e);
void pickle_free(struct pickle *p);

static inline enum pickle_kind pickle_kind(const struct pickle *p, uint32_t node)
{
	return (enum pickle_kind)p->nodes[node].kind;
}

/* The bytes of a text, without a NUL behind them; NULL: it is none. */
const char *pickle_text(const struct pickle *p, uint32_t node, size_t *n_bytes);
bool pickle_is(const struct pickle *p, uint32_t node, const char *text);
/* -1: no integer (a bool is one). */
int pickle_int(const struct pickle *p, uint32_t node, int64_t *out);
/* Is it the global MODULE.NAME? */
bool pickle_is_global(
	const struct pickle *p, uint32_t node, const char *module, const char *name);
/* The name of a global without its module; NULL: it is none. */
const char *pickle_global(const struct pickle *p, uint32_t node, size_t *n_bytes);

/* The members of a container in order: keys and values of a dict by turns. */
struct pickle_each {
	const struct pickle *p;
	uint32_t left;
	bool inlined; /* a short tuple, whose members are in its node */
	uint32_t members[2];
	uint32_t in_piece, next; /* members left in this piece, and the next one */
	uint64_t at;
};
void pickle_each(struct pickle_each *it, const struct pickle *p, uint32_t node);
bool pickle_next(struct pickle_each *it, uint32_t *member);

/* Member i of a tuple or list; 0 (None): it has none. */
uint32_t pickle_item(const struct pickle *p, uint32_t node, uint32_t i);
/* The value of a key of a dict; 0 (None): there is none. */
uint32_t pickle_get(const struct pickle *p, uint32_t dict, const char *key);
/* Returns the value of a field from a dict of few fields, such as the state of an object; 0 (None) if there is none, or
 * the dict has too many keys: many objects may share it, and each look-up reads it all. */
uint32_t pickle_field(const struct pickle *p, uint32_t dict, const char *key);
/* Of an object: what was called, its arguments, its state (0: none). Of a persistent id: the id first. */
enum { PICKLE_CALLED, PICKLE_ARGUMENTS, PICKLE_STATE };
uint32_t pickle_part(const struct pickle *p, uint32_t object, int part);

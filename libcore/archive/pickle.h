/* Parses Python pickles into trees. Nothing is executed: a class or function stays a name, stored
 * next to its arguments. Only files of this directory include it.
 *
 * The bytes are not trusted. A node takes 16 bytes and equal texts are mostly stored once, so a
 * tree is at most a few times as large as its pickle. A tree may share nodes and, through the
 * pickle's memo, contain itself, so code that walks it must bound the depth and the number of
 * steps. */
#pragma once

#include "base/base.h"

enum pickle_kind {
	PICKLE_NONE,
	PICKLE_BOOL,
	PICKLE_INT,
	PICKLE_REAL,
	PICKLE_TEXT,
	PICKLE_BYTES, /* also integers of more than 64 bits; the value is dropped */
	PICKLE_GLOBAL,
	PICKLE_TUPLE, /* also torch.Size */
	PICKLE_LIST,
	PICKLE_SET,
	PICKLE_DICT,	  /* also an OrderedDict */
	PICKLE_OBJECT,	  /* the result of a call: function and arguments; opaque */
	PICKLE_PERSISTENT /* a persistent id, such as a storage of torch.save */
};

struct pickle_node {
	uint32_t kind; /* enum pickle_kind */
	uint32_t n;    /* bytes of a text, members of a container (a dict entry is two) */
	union {
		int64_t integer;
		double real;
		uint64_t at;	  /* texts: offset in `texts` */
		uint32_t link[2]; /* nodes, or offsets in `links` */
	} as;
};

struct pickle {
	const char *name;	   /* for messages; owned by the caller */
	struct pickle_node *nodes; /* node 0 is None */
	uint32_t n_nodes, root;
	/* Members of containers, in pieces: [number, offset of the next piece or 0, members...] */
	uint32_t *links;
	uint64_t n_links;
	char *texts; /* not NUL-terminated */
	uint64_t n_texts;
};

/* The bytes of a pickle. They may be freed after pickle_parse(). */
struct pickle_bytes {
	const void *p; /* NULL: the first n bytes of fd, read in pieces */
	size_t n;
	int fd;
};
/* Parses the first pickle of these bytes. Messages call it `name`. Fails with EX_DATAERR if it is
 * not a pickle, or has an opcode that torch.save() and DCP do not write. */
int pickle_parse(
	struct pickle *p, const struct pickle_bytes *b, const char *name, struct err *e);
void pickle_release(struct pickle *p);

static inline enum pickle_kind pickle_kind(const struct pickle *p, uint32_t node)
{
	return (enum pickle_kind)p->nodes[node].kind;
}

/* Returns the bytes of a text, not NUL-terminated; NULL if the node is not a text. */
const char *pickle_text(const struct pickle *p, uint32_t node, size_t *n_bytes);
/* Returns true if the node is this text. */
bool pickle_is_text(const struct pickle *p, uint32_t node, const char *text);
/* Reads an integer or bool. Returns -1 for any other node. */
int pickle_int(const struct pickle *p, uint32_t node, int64_t *out);
/* Returns true if the node is the global MODULE.NAME. */
bool pickle_is_global(
	const struct pickle *p, uint32_t node, const char *module, const char *name);
/* Returns the name of a global without its module; NULL if the node is not a global. */
const char *pickle_global_name(const struct pickle *p, uint32_t node, size_t *n_bytes);

/* An iterator over the members of a container; keys and values of a dict alternate. */
struct pickle_each {
	const struct pickle *p;
	uint32_t left;		 /* members left */
	bool inlined;		 /* a short tuple: its members are in the node */
	uint32_t members[2];	 /* inlined: the next members */
	uint32_t in_piece, next; /* members left in this piece, offset of the next */
	uint64_t at;		 /* offset of the next member in `links` */
};
/* Begins at the first member of a node; a node that is not a container has none. */
void pickle_begin(struct pickle_each *it, const struct pickle *p, uint32_t node);
/* Sets *member to the next member. Returns false after the last one. */
bool pickle_next(struct pickle_each *it, uint32_t *member);

/* Returns member i of a tuple or list; 0 (None) if it has fewer. */
uint32_t pickle_item(const struct pickle *p, uint32_t node, uint32_t i);
/* Returns the value of a key of a dict; 0 (None) if the key is missing. */
uint32_t pickle_get(const struct pickle *p, uint32_t dict, const char *key);
/* Returns the value of a key of a small dict, such as the state of an object. Returns 0 (None) for
 * a large dict: a look-up reads the whole dict, which many objects may share. */
uint32_t pickle_field(const struct pickle *p, uint32_t dict, const char *key);
/* Returns a part of an object: the function called, its arguments, its state (0: none). The first
 * part of a persistent id is the id. */
enum { PICKLE_CALLED, PICKLE_ARGUMENTS, PICKLE_STATE };
uint32_t pickle_part(const struct pickle *p, uint32_t object, int part);

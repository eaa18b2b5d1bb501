/* The pickle machine. It has only the opcodes that torch.save(), DCP and Megatron-LM write. */
#include "archive/pickle.h"

#include "base/file.h"

/* Opcodes, with the names of pickletools. */
enum { PROTO = 0x80, FRAME = 0x95, STOP = '.', MARK = '(', POP = '0' };
enum { EMPTY_TUPLE = ')', EMPTY_LIST = ']', EMPTY_DICT = '}', EMPTY_SET = 0x8f };
enum { TUPLE = 't', TUPLE1 = 0x85, TUPLE2 = 0x86, TUPLE3 = 0x87 };
enum { NONE = 'N', NEWTRUE = 0x88, NEWFALSE = 0x89 };
enum { BININT = 'J', BININT1 = 'K', BININT2 = 'M', LONG1 = 0x8a, BINFLOAT = 'G' };
enum { BINUNICODE = 'X', SHORT_BINUNICODE = 0x8c, BINBYTES = 'B', SHORT_BINBYTES = 'C' };
enum { GLOBAL = 'c', STACK_GLOBAL = 0x93, BINPERSID = 'Q' };
enum { NEWOBJ = 0x81, REDUCE = 'R', BUILD = 'b' };
enum { BINPUT = 'q', LONG_BINPUT = 'r', MEMOIZE = 0x94, BINGET = 'h', LONG_BINGET = 'j' };
enum { APPEND = 'a', APPENDS = 'e', ADDITEMS = 0x90, SETITEM = 's', SETITEMS = 'u' };

/* Limits. Python writes at least 3 bytes for a value that gets a node; FREE_NODES covers a few
 * smaller values at the start. Node indices have 32 bits. */
enum { BYTES_PER_NODE = 3, FREE_NODES = 1 << 16, MAX_FIELDS = 256 };
enum { MAX_STACK = 1 << 26, INT_CACHE = 1 << 12, TEXT_CACHE = 1 << 13, INLINED = 2 };
#define MAX_NODES ((uint32_t)1 << 31)
#define NO_NODE UINT32_MAX
#define MARKED (UINT32_MAX - 1) /* a mark on the stack */

/* Nodes of constants. (None is node 0.) */
enum { NODE_FALSE = 1, NODE_TRUE, NODE_EMPTY_TUPLE };
/* Kinds of globals, in node.n. Calls of the last two become containers, others stay opaque. */
enum { OTHER_GLOBAL, ORDERED_DICT, SIZE };

/* The machine: a stack of nodes, and a memo. */
struct machine {
	struct pickle *p;
	const unsigned char *bytes; /* bytes of the pickle, from `begin` to `end` */
	size_t n_bytes, at, begin, end;
	unsigned char *piece; /* buffer for a piece of the file, or NULL */
	int fd;
	bool read_failed; /* reading the file failed; *e is set */
	uint32_t *stack, *memo;
	int64_t n_stack, stack_capacity, n_memo, memo_capacity;
	uint32_t node_capacity;
	uint64_t link_capacity, text_capacity;
	/* Caches of integer and text nodes by hash, since most values repeat. */
	uint32_t ints[INT_CACHE], texts[TEXT_CACHE];
	struct err *e;
};

/* Sets the error "not a pickle ... at byte N", unless a failed read set one already. Returns -1. */
static int reject(struct machine *m, const char *why)
{
	if (m->read_failed)
		return -1;
	return err_set(m->e, EX_DATAERR,
		"%s: not a pickle of torch.save(), or damaged: %s at byte %zu",
		m->p->name, why, m->at);
}

/* ---- nodes ------------------------------------------------------------------------- */

/* Appends a node. Returns NO_NODE if there are too many. */
static uint32_t add_node(struct machine *m, enum pickle_kind kind, uint32_t n)
{
	struct pickle *p = m->p;
	if (p->n_nodes > FREE_NODES + m->n_bytes / BYTES_PER_NODE)
		return NO_NODE;
	if (p->n_nodes == m->node_capacity) {
		if (m->node_capacity >= MAX_NODES)
			return NO_NODE;
		m->node_capacity = m->node_capacity ? m->node_capacity * 2 : 64;
		p->nodes = xrealloc(p->nodes, m->node_capacity * sizeof(*p->nodes));
	}
	p->nodes[p->n_nodes] = (struct pickle_node){.kind = kind, .n = n};
	return p->n_nodes++;
}

static void reserve_links(struct machine *m, uint64_t n)
{
	struct pickle *p = m->p;
	if (p->n_links + n <= m->link_capacity)
		return;
	m->link_capacity = (p->n_links + n) * 2;
	p->links = xrealloc(p->links, m->link_capacity * sizeof(*p->links));
}

/* Appends members to a container. Returns -1 if there are too many. */
static int add_members(struct machine *m, uint32_t node, const uint32_t *x, uint32_t n)
{
	struct pickle *p = m->p;
	uint64_t begin = p->n_links;
	if (!n)
		return 0;
	if (begin + 2 + n > UINT32_MAX || p->nodes[node].n > UINT32_MAX - n)
		return -1;
	reserve_links(m, (uint64_t)n + 2);
	p->links[begin] = n;
	p->links[begin + 1] = 0;
	memcpy(p->links + begin + 2, x, n * sizeof(*x));
	p->n_links += (uint64_t)n + 2;
	struct pickle_node *to = &p->nodes[node];
	if (to->n)
		p->links[to->as.link[1] + 1] = (uint32_t)begin;
	else
		to->as.link[0] = (uint32_t)begin;
	to->as.link[1] = (uint32_t)begin;
	to->n += n;
	return 0;
}

/* Pushes a node on the stack, which grows. Fails for NO_NODE or if the stack is too deep. */
static int push(struct machine *m, uint32_t node)
{
	if (node == NO_NODE ||
		(m->n_stack == m->stack_capacity && m->stack_capacity >= MAX_STACK))
		return reject(m, "too many values");
	if (m->n_stack == m->stack_capacity) {
		m->stack_capacity = max64(256, 2 * m->stack_capacity);
		m->stack =
			xrealloc(m->stack, (size_t)m->stack_capacity * sizeof(*m->stack));
	}
	m->stack[m->n_stack++] = node;
	return 0;
}

/* Pushes an integer node: the cached node of an equal integer, or a new one, which it caches. */
static int push_integer(struct machine *m, int64_t x)
{
	uint64_t hash = (uint64_t)x * 0x9e3779b97f4a7c15u;
	uint32_t *cached = &m->ints[hash >> 52];
	if (*cached && m->p->nodes[*cached].as.integer == x)
		return push(m, *cached);
	uint32_t node = add_node(m, PICKLE_INT, 0);
	if (node != NO_NODE) {
		m->p->nodes[node].as.integer = x;
		*cached = node;
	}
	return push(m, node);
}

/* Adds a node with two links and count n, and pushes it. */
static int push_links(
	struct machine *m, enum pickle_kind kind, uint32_t n, uint32_t a, uint32_t b)
{
	uint32_t node = add_node(m, kind, n);
	if (node != NO_NODE) {
		m->p->nodes[node].as.link[0] = a;
		m->p->nodes[node].as.link[1] = b;
	}
	return push(m, node);
}

/* Returns the top n values and leaves them; NULL if fewer are above the last mark. */
static const uint32_t *top_values(struct machine *m, int64_t n)
{
	if (m->n_stack < n)
		return NULL;
	for (int64_t i = 1; i <= n; i++)
		if (m->stack[m->n_stack - i] == MARKED)
			return NULL;
	return m->stack + (m->n_stack - n);
}

/* Returns the values above the last mark and leaves them; NULL if there is no mark. */
static const uint32_t *above_mark(struct machine *m, int64_t *n)
{
	*n = 0;
	while (*n < m->n_stack && m->stack[m->n_stack - 1 - *n] != MARKED)
		(*n)++;
	return *n < m->n_stack ? m->stack + (m->n_stack - *n) : NULL;
}

/* Replaces the top `pop` entries of the stack by a tuple of x[n]. */
static int push_tuple(struct machine *m, const uint32_t *x, int64_t n, int64_t pop)
{
	if (!x)
		return reject(m, "too few values for a tuple");
	uint32_t inlined[INLINED] = {n > 0 ? x[0] : 0, n > 1 ? x[1] : 0};
	uint32_t node = add_node(m, PICKLE_TUPLE, n > INLINED ? 0 : (uint32_t)n);
	if (node == NO_NODE || (n > INLINED && add_members(m, node, x, (uint32_t)n)))
		return reject(m, "too many values");
	if (n <= INLINED)
		memcpy(m->p->nodes[node].as.link, inlined, sizeof(inlined));
	m->n_stack -= pop;
	return push(m, node);
}

/* Moves the top n values to the container below them and below `mark` marks. An object drops the
 * values. */
static int append_values(struct machine *m, int64_t n, int mark, unsigned kinds)
{
	int64_t below = m->n_stack - n - mark - 1;
	uint32_t to = below >= 0 ? m->stack[below] : MARKED;
	if (to == MARKED)
		return reject(m, "no container for values");
	enum pickle_kind kind = pickle_kind(m->p, to);
	if (kind != PICKLE_OBJECT && !(kinds >> kind & 1))
		return reject(m, "values for something that is not a container");
	if (kind == PICKLE_DICT && n % 2)
		return reject(m, "a key without a value");
	if (kind != PICKLE_OBJECT &&
		add_members(m, to, m->stack + (m->n_stack - n), (uint32_t)n))
		return reject(m, "too many values");
	m->n_stack = below + 1;
	return 0;
}

static int append_marked(struct machine *m, unsigned kinds)
{
	int64_t n;
	return above_mark(m, &n) ? append_values(m, n, 1, kinds)
				 : reject(m, "no mark below values");
}

static int append_top(struct machine *m, int64_t n, unsigned kinds)
{
	return top_values(m, n + 1) ? append_values(m, n, 0, kinds)
				    : reject(m, "too few values");
}

/* ---- bytes ------------------------------------------------------------------------- */

/* Reads the next n bytes or more. (mmap is not used: if the file shrinks, it raises SIGBUS.) */
static int read_piece(struct machine *m, size_t n)
{
	enum { PIECE = 1 << 20 };
	size_t size = n > PIECE ? n : PIECE;
	size = size < m->n_bytes - m->at ? size : m->n_bytes - m->at;
	m->piece = xrealloc(m->piece, size);
	m->bytes = m->piece;
	m->begin = m->at;
	m->end = m->at + size;
	m->read_failed =
		file_read_at(m->fd, m->p->name, m->piece, size, (int64_t)m->at, m->e);
	return m->read_failed ? -1 : 0;
}

/* Returns the next n bytes, valid until the next call; NULL if fewer are left or cannot be read. */
static const unsigned char *next_bytes(struct machine *m, uint64_t n)
{
	if (n > m->n_bytes - m->at || (m->at + n > m->end && read_piece(m, n)))
		return NULL;
	const unsigned char *x = m->bytes + (m->at - m->begin);
	m->at += n;
	return x;
}

/* Reads a little-endian number of `width` bytes. */
static int next_number(struct machine *m, int width, uint64_t *out)
{
	const unsigned char *x = next_bytes(m, (uint64_t)width);
	*out = 0;
	for (int i = width - 1; x && i >= 0; i--)
		*out = *out << 8 | x[i];
	return x ? 0 : reject(m, "unexpected end");
}

/* Pushes a text node: the cached one of an equal text, or a new one, which it caches. */
static int push_text(struct machine *m, const unsigned char *text, uint64_t n)
{
	struct pickle *p = m->p;
	uint32_t *cached = &m->texts[hash_bytes(text, n, 0) & (TEXT_CACHE - 1)];
	const struct pickle_node *x = &p->nodes[*cached];
	if (*cached && x->n == n && !memcmp(p->texts + x->as.at, text, n))
		return push(m, *cached);
	if (p->n_texts + n > m->text_capacity || !p->texts) {
		m->text_capacity = (p->n_texts + n) * 2 + 64;
		p->texts = xrealloc(p->texts, m->text_capacity);
	}
	memcpy(p->texts + p->n_texts, text, n);
	uint32_t node = add_node(m, PICKLE_TEXT, (uint32_t)n);
	if (node != NO_NODE) {
		p->nodes[node].as.at = p->n_texts;
		*cached = node;
	}
	p->n_texts += n;
	return push(m, node);
}

/* Pushes a text or bytes, after their length in `width` bytes. */
static int push_bytes(struct machine *m, enum pickle_kind kind, int width)
{
	uint64_t n;
	if (next_number(m, width, &n))
		return -1;
	const unsigned char *x = next_bytes(m, n);
	if (!x)
		return reject(m, "unexpected end");
	return kind == PICKLE_TEXT ? push_text(m, x, n)
				   : push(m, add_node(m, kind, (uint32_t)n));
}

/* Pushes an integer of up to 8 bytes, or a longer one, such as a seed, as bytes. */
static int push_long(struct machine *m)
{
	uint64_t n, x;
	if (next_number(m, 1, &n))
		return -1;
	if (n > 8) {
		m->at--;
		return push_bytes(m, PICKLE_BYTES, 1);
	}
	if (next_number(m, (int)n, &x))
		return -1;
	if (n && n < 8 && x >> (8 * n - 1))
		x |= UINT64_MAX << 8 * n;
	return push_integer(m, (int64_t)x);
}

/* Pushes a double, the only big-endian number. */
static int push_real(struct machine *m)
{
	const unsigned char *x = next_bytes(m, 8);
	uint64_t bits = 0;
	if (!x)
		return reject(m, "unexpected end");
	for (int i = 0; i < 8; i++)
		bits = bits << 8 | x[i];
	uint32_t node = add_node(m, PICKLE_REAL, 0);
	if (node != NO_NODE)
		memcpy(&m->p->nodes[node].as.real, &bits, sizeof(bits));
	return push(m, node);
}

/* Pushes the text up to the next newline. */
static int push_text_line(struct machine *m)
{
	enum { LONGEST = 4096 };
	size_t n = (size_t)min64((int64_t)(m->n_bytes - m->at), LONGEST);
	const unsigned char *begin = next_bytes(m, n);
	const unsigned char *end = begin ? memchr(begin, '\n', n) : NULL;
	if (!end)
		return reject(m, "a name without a newline");
	m->at -= n - (size_t)(end - begin) - 1;
	return push_text(m, begin, (uint64_t)(end - begin));
}

/* ---- globals, objects, the memo ------------------------------------------------------ */

/* Replaces a module and a name on the stack by the global. */
static int push_global(struct machine *m)
{
	const uint32_t *x = top_values(m, 2);
	size_t n;
	if (!x || !pickle_text(m->p, x[0], &n) || !pickle_text(m->p, x[1], &n))
		return reject(m, "a global without module and name");
	uint32_t module = x[0], name = x[1];
	m->n_stack -= 2;
	if (push_links(m, PICKLE_GLOBAL, OTHER_GLOBAL, module, name))
		return -1;
	uint32_t node = m->stack[m->n_stack - 1];
	if (pickle_is_global(m->p, node, "collections", "OrderedDict"))
		m->p->nodes[node].n = ORDERED_DICT;
	if (pickle_is_global(m->p, node, "torch", "Size"))
		m->p->nodes[node].n = SIZE;
	return 0;
}

/* Replaces a function and its arguments on the stack by an object, or by the container that a call
 * of OrderedDict or torch.Size returns. */
static int push_object(struct machine *m)
{
	const uint32_t *x = top_values(m, 2);
	if (!x)
		return reject(m, "a call without a function");
	const struct pickle_node *f = &m->p->nodes[x[0]], *a = &m->p->nodes[x[1]];
	uint32_t called = x[0], arguments = x[1];
	bool known = f->kind == PICKLE_GLOBAL && a->kind == PICKLE_TUPLE;
	m->n_stack -= 2;
	if (known && f->n == ORDERED_DICT && a->n == 0)
		return push(m, add_node(m, PICKLE_DICT, 0));
	if (known && f->n == SIZE && a->n == 1 &&
		pickle_kind(m->p, a->as.link[0]) == PICKLE_TUPLE)
		return push(m, a->as.link[0]);
	return push_links(m, PICKLE_OBJECT, 0, called, arguments);
}

/* Sets the state of an object. Drops the state of anything else (an OrderedDict's _metadata). */
static int set_object_state(struct machine *m)
{
	const uint32_t *x = top_values(m, 2);
	if (!x)
		return reject(m, "a state without an object");
	if (pickle_kind(m->p, x[0]) == PICKLE_OBJECT)
		m->p->nodes[x[0]].n = x[1];
	m->n_stack--;
	return 0;
}

/* Stores the top value in the memo. pickle.py numbers values consecutively; a much larger number
 * would take memory for all numbers in between. */
static int store_in_memo(struct machine *m, uint64_t number)
{
	const uint32_t *x = top_values(m, 1);
	if (!x || number > (uint64_t)m->n_memo + 1)
		return reject(
			m, x ? "memo number out of order" : "no value for the memo");
	if ((int64_t)number >= m->memo_capacity) {
		m->memo_capacity = max64(256, 2 * m->memo_capacity);
		m->memo = xrealloc(m->memo, (size_t)m->memo_capacity * sizeof(*m->memo));
	}
	if ((int64_t)number > m->n_memo) /* (numbers may begin with 1) */
		m->memo[m->n_memo] = NO_NODE;
	m->memo[number] = *x;
	m->n_memo = max64(m->n_memo, (int64_t)number + 1);
	return 0;
}

static int push_from_memo(struct machine *m, uint64_t number)
{
	if ((int64_t)number >= m->n_memo || m->memo[number] == NO_NODE)
		return reject(m, "a reference to a missing memo entry");
	return push(m, m->memo[number]);
}

/* ---- the machine ---------------------------------------------------------------------- */

/* Executes an opcode for a number or the memo. */
static int execute_number(struct machine *m, int op)
{
	uint64_t x;
	switch (op) {
	case PROTO:
		return next_number(m, 1, &x) ? -1
		       : x >= 2 && x <= 5    ? 0
					     : reject(m, "unknown protocol");
	case FRAME:
		return next_number(m, 8, &x);
	case BININT:
		return next_number(m, 4, &x) || push_integer(m, (int32_t)x) ? -1 : 0;
	case BININT1:
		return next_number(m, 1, &x) || push_integer(m, (int64_t)x) ? -1 : 0;
	case BININT2:
		return next_number(m, 2, &x) || push_integer(m, (int64_t)x) ? -1 : 0;
	case LONG1:
		return push_long(m);
	case BINFLOAT:
		return push_real(m);
	case BINPUT:
		return next_number(m, 1, &x) || store_in_memo(m, x) ? -1 : 0;
	case LONG_BINPUT:
		return next_number(m, 4, &x) || store_in_memo(m, x) ? -1 : 0;
	case BINGET:
		return next_number(m, 1, &x) || push_from_memo(m, x) ? -1 : 0;
	case LONG_BINGET:
		return next_number(m, 4, &x) || push_from_memo(m, x) ? -1 : 0;
	default:
		m->at--;
		return reject(m, "unsupported opcode");
	}
}

/* Executes an opcode for a container, a number or the memo. */
static int execute_container(struct machine *m, int op)
{
	enum {
		LISTS = 1 << PICKLE_LIST,
		SETS = 1 << PICKLE_SET,
		DICTS = 1 << PICKLE_DICT
	};
	int64_t n;
	const uint32_t *x;
	switch (op) {
	case EMPTY_TUPLE:
		return push(m, NODE_EMPTY_TUPLE);
	case EMPTY_LIST:
		return push(m, add_node(m, PICKLE_LIST, 0));
	case EMPTY_DICT:
		return push(m, add_node(m, PICKLE_DICT, 0));
	case EMPTY_SET:
		return push(m, add_node(m, PICKLE_SET, 0));
	case TUPLE:
		x = above_mark(m, &n);
		return push_tuple(m, x, n, n + 1);
	case TUPLE1:
		return push_tuple(m, top_values(m, 1), 1, 1);
	case TUPLE2:
		return push_tuple(m, top_values(m, 2), 2, 2);
	case TUPLE3:
		return push_tuple(m, top_values(m, 3), 3, 3);
	case APPEND:
		return append_top(m, 1, LISTS);
	case APPENDS:
		return append_marked(m, LISTS);
	case ADDITEMS:
		return append_marked(m, SETS);
	case SETITEM:
		return append_top(m, 2, DICTS);
	case SETITEMS:
		return append_marked(m, DICTS);
	default:
		return execute_number(m, op);
	}
}

/* Executes one opcode, whose operands it reads from the pickle. */
static int execute(struct machine *m, int op)
{
	switch (op) {
	case MARK:
		return push(m, MARKED);
	case POP:
		return m->n_stack-- ? 0 : reject(m, "no value to drop");
	case NONE:
		return push(m, 0);
	case NEWTRUE:
	case NEWFALSE:
		return push(m, op == NEWTRUE ? NODE_TRUE : NODE_FALSE);
	case BINUNICODE:
		return push_bytes(m, PICKLE_TEXT, 4);
	case SHORT_BINUNICODE:
		return push_bytes(m, PICKLE_TEXT, 1);
	case BINBYTES:
		return push_bytes(m, PICKLE_BYTES, 4);
	case SHORT_BINBYTES:
		return push_bytes(m, PICKLE_BYTES, 1);
	case GLOBAL:
		return push_text_line(m) || push_text_line(m) || push_global(m) ? -1 : 0;
	case STACK_GLOBAL:
		return push_global(m);
	case MEMOIZE:
		return store_in_memo(m, (uint64_t)m->n_memo);
	case NEWOBJ:
	case REDUCE:
		return push_object(m);
	case BUILD:
		return set_object_state(m);
	case BINPERSID:
		if (!top_values(m, 1))
			return reject(m, "a persistent id without a value");
		m->n_stack--;
		return push_links(m, PICKLE_PERSISTENT, 0, m->stack[m->n_stack], 0);
	default:
		return execute_container(m, op);
	}
}

/* Executes opcodes until STOP, and sets the root to the only value left on the stack. */
static int run_machine(struct machine *m)
{
	const unsigned char *op;
	while ((op = next_bytes(m, 1)) && *op != STOP)
		if (execute(m, *op))
			return -1;
	if (!op)
		return reject(m, "unexpected end");
	if (!top_values(m, 1) || m->n_stack != 1)
		return reject(m, "not exactly one value is left");
	m->p->root = m->stack[0];
	return 0;
}

int pickle_parse(
	struct pickle *p, const struct pickle_bytes *b, const char *name, struct err *e)
{
	scoped_ptr struct machine *m = xcalloc(1, sizeof(*m));
	*p = (struct pickle){.name = name, .n_links = 1};
	m->p = p;
	m->bytes = b->p;
	m->n_bytes = b->n;
	m->end = b->p ? b->n : 0;
	m->fd = b->fd;
	m->e = e;
	reserve_links(m, 1);
	add_node(m, PICKLE_NONE, 0);
	add_node(m, PICKLE_BOOL, 0);
	p->nodes[add_node(m, PICKLE_BOOL, 0)].as.integer = 1;
	add_node(m, PICKLE_TUPLE, 0);
	int rc = run_machine(m);
	free(m->piece);
	free(m->stack);
	free(m->memo);
	if (rc)
		pickle_release(p);
	return rc;
}

void pickle_release(struct pickle *p)
{
	free(p->nodes);
	free(p->links);
	free(p->texts);
	*p = (struct pickle){.name = NULL};
}

/* ---- reading a tree --------------------------------------------------------------------- */

const char *pickle_text(const struct pickle *p, uint32_t node, size_t *n_bytes)
{
	const struct pickle_node *x = &p->nodes[node];
	*n_bytes = x->n;
	return x->kind == PICKLE_TEXT ? p->texts + x->as.at : NULL;
}

bool pickle_is_text(const struct pickle *p, uint32_t node, const char *text)
{
	size_t n;
	const char *s = pickle_text(p, node, &n);
	return s && n == strlen(text) && !memcmp(s, text, n);
}

int pickle_int(const struct pickle *p, uint32_t node, int64_t *out)
{
	enum pickle_kind kind = pickle_kind(p, node);
	*out = kind == PICKLE_INT || kind == PICKLE_BOOL ? p->nodes[node].as.integer : 0;
	return kind == PICKLE_INT || kind == PICKLE_BOOL ? 0 : -1;
}

bool pickle_is_global(
	const struct pickle *p, uint32_t node, const char *module, const char *name)
{
	const struct pickle_node *x = &p->nodes[node];
	return x->kind == PICKLE_GLOBAL && pickle_is_text(p, x->as.link[1], name) &&
	       pickle_is_text(p, x->as.link[0], module);
}

const char *pickle_global_name(const struct pickle *p, uint32_t node, size_t *n_bytes)
{
	const struct pickle_node *x = &p->nodes[node];
	return x->kind == PICKLE_GLOBAL ? pickle_text(p, x->as.link[1], n_bytes) : NULL;
}

static bool is_container(const struct pickle_node *x)
{
	return x->kind == PICKLE_TUPLE || x->kind == PICKLE_LIST ||
	       x->kind == PICKLE_SET || x->kind == PICKLE_DICT;
}

void pickle_begin(struct pickle_each *it, const struct pickle *p, uint32_t node)
{
	const struct pickle_node *x = &p->nodes[node];
	*it = (struct pickle_each){.p = p, .left = is_container(x) ? x->n : 0};
	it->inlined = x->kind == PICKLE_TUPLE && x->n <= INLINED;
	if (it->inlined)
		memcpy(it->members, x->as.link, sizeof(it->members));
	else if (it->left)
		it->next = x->as.link[0];
}

bool pickle_next(struct pickle_each *it, uint32_t *member)
{
	if (!it->left)
		return false;
	it->left--;
	if (it->inlined) {
		*member = it->members[0];
		it->members[0] = it->members[1];
		return true;
	}
	if (!it->in_piece) {
		it->at = it->next;
		it->in_piece = it->p->links[it->at];
		it->next = it->p->links[it->at + 1];
		it->at += 2;
	}
	it->in_piece--;
	*member = it->p->links[it->at++];
	return true;
}

uint32_t pickle_item(const struct pickle *p, uint32_t node, uint32_t i)
{
	struct pickle_each it;
	uint32_t x = 0;
	pickle_begin(&it, p, node);
	if (i >= it.left)
		return 0;
	for (uint32_t k = 0; k <= i; k++)
		pickle_next(&it, &x);
	return x;
}

uint32_t pickle_get(const struct pickle *p, uint32_t dict, const char *key)
{
	struct pickle_each it;
	uint32_t k, x, found = 0;
	if (pickle_kind(p, dict) != PICKLE_DICT)
		return 0;
	pickle_begin(&it, p, dict);
	while (pickle_next(&it, &k) && pickle_next(&it, &x))
		if (pickle_is_text(
			    p, k, key)) /* (in Python the last of equal keys wins) */
			found = x;
	return found;
}

uint32_t pickle_field(const struct pickle *p, uint32_t dict, const char *key)
{
	return p->nodes[dict].n <= 2 * MAX_FIELDS ? pickle_get(p, dict, key) : 0;
}

uint32_t pickle_part(const struct pickle *p, uint32_t object, int part)
{
	const struct pickle_node *x = &p->nodes[object];
	if (x->kind != PICKLE_OBJECT && x->kind != PICKLE_PERSISTENT)
		return 0;
	return part == PICKLE_STATE ? x->n : x->as.link[part];
}

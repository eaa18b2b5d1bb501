/* A torch.save() file: its tree becomes a list of items. Also reads values of any container. */
#include "archive/archive_internal.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- from the tree to items ----------------------------------------------------------- */

/* A tree may contain itself, or one part very often, so a walk is bounded in depth and steps. */
enum { MAX_DEPTH = 24, STEPS_PER_NODE = 16, MAX_NAME = 4096 };

struct walk {
	struct torch_file *f;
	const struct pickle *p;
	struct str name;
	int64_t steps;
	int depth;
	struct err *e;
};

static int add_tensor(struct walk *w, uint32_t node, const struct tensor_info *d)
{
	if (!items_add_tensor(w->f, w->name.s, w->name.len, d, w->e))
		return -1;
	items_add_chunk(w->f, no_dims, d->dims)->node = node;
	return 0;
}

/* Returns true for lists of dicts, of tensors and of lists of tensors: each member becomes an item.
 * Lists of numbers or texts are values. */
static bool is_list_of_items(const struct pickle *p, uint32_t node)
{
	enum pickle_kind kind = pickle_kind(p, node);
	uint32_t item = pickle_item(p, node, 0);
	if (pickle_kind(p, item) == PICKLE_LIST && kind == PICKLE_LIST)
		item = pickle_item(p, item, 0);
	enum pickle_kind first = pickle_kind(p, item);
	return (kind == PICKLE_LIST || kind == PICKLE_TUPLE) &&
	       (first == PICKLE_DICT || first == PICKLE_OBJECT);
}

static int add_items(struct walk *w, uint32_t node);

/* Appends the items of a member of a container. `number`: its index, if key is 0. */
static int add_child(struct walk *w, uint32_t key, int64_t number, uint32_t node)
{
	size_t before = w->name.len, n;
	const char *text = key ? pickle_text(w->p, key, &n) : NULL;
	if (key && !text && pickle_int(w->p, key, &number))
		return 0; /* (a key that is neither a text nor a number) */
	if (before)
		str_putc(&w->name, '.');
	if (text)
		str_add(&w->name, text, n);
	else
		str_printf(&w->name, "%lld", (long long)number);
	/* (nested names can grow very long, since parts may be shared) */
	int rc = w->name.len > MAX_NAME
			 ? err_set(w->e, EX_DATAERR,
				   "%s: invalid item name: the file is damaged",
				   w->f->path)
			 : add_items(w, node);
	w->name.len = before;
	w->name.s[before] = '\0';
	return rc;
}

/* Appends the items below each member of a dict, list or tuple. Counts the depth in w->depth. */
static int add_members(struct walk *w, uint32_t node)
{
	bool is_dict = pickle_kind(w->p, node) == PICKLE_DICT;
	struct pickle_each it;
	uint32_t key = 0, x;
	int rc = 0;
	pickle_begin(&it, w->p, node);
	w->depth++;
	for (int64_t i = 0;
		!rc && (!is_dict || pickle_next(&it, &key)) && pickle_next(&it, &x); i++)
		rc = add_child(w, key, i, x);
	w->depth--;
	return rc;
}

/* Appends the items at and below a node. */
static int add_items(struct walk *w, uint32_t node)
{
	struct tensor_info d;
	if (w->depth > MAX_DEPTH ||
		++w->steps > STEPS_PER_NODE * ((int64_t)w->p->n_nodes + 64))
		return err_set(w->e, EX_DATAERR,
			"%s: values contain themselves: the file is damaged", w->f->path);
	if (items_charge(w->f, sizeof(node), w->e)) /* (empty dicts cost memory, too) */
		return -1;
	if (pickle_kind(w->p, node) == PICKLE_DICT || is_list_of_items(w->p, node))
		return add_members(w, node);
	int rc = describe_tensor(w->p, node, &d, w->e);
	if (rc < 0)
		return -1;
	if (!rc)
		return add_tensor(w, node, &d);
	struct torch_item *x = items_add(w->f, w->name.s, w->name.len, w->e);
	if (x)
		x->node = node;
	return x ? 0 : -1;
}

int torch_file_add_items(
	struct torch_file *f, uint32_t node, const char *name, struct err *e)
{
	struct walk w = {.f = f, .p = &f->parts->archive.tree, .e = e};
	str_puts(&w.name, name);
	str_puts(&w.name, "");
	int rc = add_items(&w, node);
	str_free(&w.name);
	return rc;
}

int archive_open_path(struct archive *a, const char *path, struct err *e)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st)) {
		err_set(e, EX_IOERR, "%s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	if (!archive_open(a, fd, path, 0, S_ISREG(st.st_mode) ? st.st_size : 0, e))
		return 0;
	close(fd);
	return -1;
}

int torch_file_open(struct torch_file *f, struct err *e)
{
	struct archive *a = &f->parts->archive;
	if (archive_open_path(a, f->path, e))
		return -1;
	items_grant(f, a->zip.size);
	return torch_file_add_items(f, a->tree.root, "", e) || items_finish(f, e) ? -1
										  : 0;
}

int torch_file_open_inside(struct torch_file *f, char *path, struct err *e)
{
	free(f->path);
	f->path = path;
	return torch_file_open(f, e);
}

static bool is_torch_file(const char *path)
{
	char begin[4];
	return file_sniff(path, begin, sizeof(begin)) == sizeof(begin) &&
	       !memcmp(begin, "PK\3\4", 4);
}

const struct container container_file = {
	.is_file = true, .matches = is_torch_file, .open = torch_file_open};

/* ---- values ------------------------------------------------------------------------------ */

/* A value: a node of a tree. If each chunk is an archive, `own` has the tree. */
struct value {
	struct archive own;
	const struct pickle *p;
	uint32_t node;
};

/* Opens a value that is a bare pickle, as Megatron-LM stores some. */
static int open_bare_pickle(struct torch_file *f, const struct chunk *c, int fd,
	struct value *v, struct err *e)
{
	enum { MAX_BYTES = 1 << 28 };
	const char *name = f->parts->files[c->file];
	if (c->n_bytes > MAX_BYTES)
		return err_set(e, EX_UNAVAILABLE,
			"%s: a value of %lld bytes exceeds 256 MiB", name,
			(long long)c->n_bytes);
	scoped_ptr char *text = xmalloc((size_t)c->n_bytes + 1);
	const struct pickle_bytes bytes = {.p = text, .n = (size_t)c->n_bytes};
	int rc = file_read_at(fd, name, text, bytes.n, c->at, e) ||
		 pickle_parse(&v->own.tree, &bytes, name, e);
	return rc ? -1 : 0;
}

/* Sets *v to the tree and node of a value. Reads the tree if the value has its own archive. */
static int open_value(
	struct torch_file *f, const struct torch_item *x, struct value *v, struct err *e)
{
	char begin[4] = {0};
	*v = (struct value){.p = &f->parts->archive.tree, .node = x->node};
	if (!f->parts->many_archives)
		return 0;
	const struct chunk *c = &f->parts->chunks[x->first];
	int fd = items_fd(f, c->file, e);
	v->p = &v->own.tree;
	/* (many items may share one value) */
	if (fd < 0 || items_charge(f, c->n_bytes / 4, e) ||
		(c->n_bytes >= 4 &&
			file_read_at(fd, f->parts->files[c->file], begin, 4, c->at, e)))
		return -1;
	int rc = memcmp(begin, "PK\3\4", 4)
			 ? open_bare_pickle(f, c, fd, v, e)
			 : archive_open(&v->own, fd, f->parts->files[c->file], c->at,
				   c->n_bytes, e);
	v->node = x->node && x->node < v->own.tree.n_nodes ? x->node : v->own.tree.root;
	return rc;
}

static void close_value(const struct torch_file *f, struct value *v)
{
	if (f->parts->many_archives)
		archive_close(&v->own);
}

/* Sets *out to the value of an integer or real node. Returns false if the node is not a number. */
static bool read_number(const struct pickle *p, uint32_t node, double *out)
{
	int64_t i;
	if (!pickle_int(p, node, &i)) {
		*out = (double)i;
		return true;
	}
	*out = p->nodes[node].as.real;
	return pickle_kind(p, node) == PICKLE_REAL;
}

/* Returns a member of a dict or object by key, or of a list by index; 0 if it is missing. */
static uint32_t find_member(const struct pickle *p, uint32_t node, const char *key)
{
	int64_t index;
	if (pickle_kind(p, node) == PICKLE_OBJECT)
		node = pickle_part(p, node, PICKLE_STATE);
	if (pickle_kind(p, node) == PICKLE_DICT)
		return pickle_get(p, node, key);
	return !parse_int(key, &index) && index >= 0 && index < UINT32_MAX
		       ? pickle_item(p, node, (uint32_t)index)
		       : 0;
}

/* Returns the member at a path of keys and indices joined by dots; 0 if it is missing. */
static uint32_t follow_path(const struct pickle *p, uint32_t node, const char *path)
{
	char *copy = xstrdup(path), *rest = copy, *key;
	while (node && (key = strsep(&rest, ".")))
		node = *key ? find_member(p, node, key) : node;
	free(copy);
	return node;
}

/* Reads a number, or all members of a container. Returns 0 unless these are at most max numbers. */
static int64_t read_numbers(
	const struct pickle *p, uint32_t node, int64_t max, double *out)
{
	struct pickle_each it;
	uint32_t member;
	int64_t n = 0;
	if (max && read_number(p, node, out))
		return 1;
	pickle_begin(&it, p, node);
	while (n < max && pickle_next(&it, &member) && read_number(p, member, &out[n]))
		n++;
	return it.left ? 0 : n; /* (0: too many, or not all are numbers) */
}

int torch_read_numbers_at(struct torch_file *f, const struct torch_item *x,
	const char *path, int64_t max, double *out, int64_t *n, struct err *e)
{
	struct value v;
	*n = 0;
	if (x->kind == TORCH_TENSOR) {
		if (torch_rows(x) != 1 || torch_row_size(x) != 1 || max < 1 || *path)
			return 0;
		*n = 1;
		return torch_read_doubles(f, x, 0, 1, out, e);
	}
	if (open_value(f, x, &v, e))
		return -1;
	*n = read_numbers(v.p, follow_path(v.p, v.node, path), max, out);
	close_value(f, &v);
	return items_charge(f, *n * (int64_t)sizeof(*out), e);
}

int torch_read_numbers(struct torch_file *f, const struct torch_item *x, int64_t max,
	double *out, int64_t *n, struct err *e)
{
	return torch_read_numbers_at(f, x, "", max, out, n, e);
}

void torch_describe(
	const struct torch_file *f, const struct torch_item *x, struct str *out)
{
	static const char *const kinds[] = {[PICKLE_NONE] = "None",
		[PICKLE_BOOL] = "a bool",
		[PICKLE_INT] = "a number",
		[PICKLE_REAL] = "a number",
		[PICKLE_TEXT] = "a text",
		[PICKLE_BYTES] = "bytes",
		[PICKLE_GLOBAL] = "a class or function",
		[PICKLE_TUPLE] = "a tuple",
		[PICKLE_LIST] = "a list",
		[PICKLE_SET] = "a set",
		[PICKLE_DICT] = "a dict",
		[PICKLE_OBJECT] = "an object",
		[PICKLE_PERSISTENT] = "a storage"};
	const struct pickle *p = &f->parts->archive.tree;
	if (x->kind == TORCH_TENSOR || !p->nodes || x->node >= p->n_nodes) {
		str_puts(out, x->kind == TORCH_TENSOR ? "a tensor" : "a value");
		return;
	}
	const struct pickle_node *called =
		&p->nodes[pickle_part(p, x->node, PICKLE_CALLED)];
	size_t n_module = 0, n_name = 0;
	bool known = called->kind == PICKLE_GLOBAL;
	const char *module = known ? pickle_text(p, called->as.link[0], &n_module) : NULL;
	const char *name = known ? pickle_text(p, called->as.link[1], &n_name) : NULL;
	if (module && name)
		str_printf(out, "a call of %.*s.%.*s", (int)min64(64, (int64_t)n_module),
			module, (int)min64(64, (int64_t)n_name), name);
	else
		str_puts(out, kinds[pickle_kind(p, x->node)]);
}

/* Appends the text of a node to *out, and charges its memory. Ignores all but C strings. */
static int append_string(struct torch_file *f, const struct pickle *p, uint32_t node,
	struct strs *out, struct err *e)
{
	scoped_str s = {0};
	size_t n;
	const char *text = pickle_text(p, node, &n);
	if (!text || memchr(text, 0, n))
		return 0;
	if (items_charge(f, (int64_t)(n + sizeof(text)), e))
		return -1;
	str_puts(&s, "");
	str_add(&s, text, n);
	strs_add(out, s.s);
	return 0;
}

int torch_read_strings(
	struct torch_file *f, const struct torch_item *x, struct strs *out, struct err *e)
{
	struct value v;
	struct pickle_each it;
	uint32_t member;
	if (x->kind == TORCH_TENSOR)
		return 0;
	if (open_value(f, x, &v, e))
		return -1;
	int rc = append_string(f, v.p, v.node, out, e);
	pickle_begin(&it, v.p, v.node);
	while (!rc && pickle_next(&it, &member))
		rc = append_string(f, v.p, member, out, e);
	close_value(f, &v);
	return rc;
}

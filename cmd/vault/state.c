/* The state of a run without the rows of its tensors, as the bytes of a vault. */
#include "vault/vault.h"

enum { NAME_BYTES = sizeof(((struct ckpt_tensor *)NULL)->name) };

/* ---- packing ------------------------------------------------------------------------------ */

static void pack_i64(struct str *out, int64_t v)
{
	str_add(out, &v, sizeof(v));
}

static void pack_name(struct str *out, const char *name)
{
	char bytes[NAME_BYTES] = {0};
	snprintf(bytes, sizeof(bytes), "%s", name);
	str_add(out, bytes, sizeof(bytes));
}

static void pack_text(struct str *out, const char *text)
{
	int64_t n = text ? (int64_t)strlen(text) : 0;
	pack_i64(out, n);
	str_add(out, text ? text : "", (size_t)n);
}

static void pack_numbers(struct str *out, const double *v, int64_t n)
{
	pack_i64(out, v ? n : 0);
	if (v && n)
		str_add(out, v, (size_t)n * sizeof(*v));
}

/* Returns the attributes of a checkpoint that are numbers, all of 8 bytes; NULL after the last. */
static const struct h5_field *next_number(const struct h5_field *f)
{
	while (f->name && f->type == H5_TEXT)
		f++;
	return f->name ? f : NULL;
}

void vault_pack_state(const struct ckpt_write *w, struct str *out)
{
	const char *info = (const char *)&w->info;
	for (const struct h5_field *f = ckpt_fields; (f = next_number(f)); f++)
		str_add(out, info + f->offset, sizeof(int64_t));
	pack_i64(out, w->n_tensors);
	for (int i = 0; i < w->n_tensors; i++) {
		const struct ckpt_tensor *t = &w->tensors[i];
		pack_name(out, t->name);
		pack_i64(out, t->ndim);
		pack_i64(out, t->dims[0]);
		pack_i64(out, ckpt_row_size(t));
		pack_i64(out, t->stateless);
	}
	pack_i64(out, w->n_groups);
	for (int i = 0; i < w->n_groups; i++)
		pack_name(out, w->groups[i]);
	pack_numbers(out, w->numbers, w->n_numbers);
	pack_numbers(out, w->load, w->n_load);
	pack_text(out, w->config);
	pack_text(out, w->origin);
}

/* ---- unpacking ---------------------------------------------------------------------------- */

/* The bytes that are left to read. */
struct unpacking {
	const char *p;
	int64_t n;
	bool failed;
};

static void unpack_bytes(struct unpacking *u, void *to, int64_t n)
{
	u->failed |= n < 0 || n > u->n;
	if (u->failed) {
		memset(to, 0, n > 0 && n <= NAME_BYTES ? (size_t)n : 0);
		return;
	}
	memcpy(to, u->p, (size_t)n);
	u->p += n;
	u->n -= n;
}

static int64_t unpack_i64(struct unpacking *u)
{
	int64_t v = 0;
	unpack_bytes(u, &v, sizeof(v));
	return v;
}

/* Returns a number of items of item_bytes each that may be left; else 0, and fails. */
static int64_t unpack_count(struct unpacking *u, int64_t item_bytes)
{
	int64_t n = unpack_i64(u);
	u->failed |= n < 0 || n > u->n / item_bytes;
	return u->failed ? 0 : n;
}

/* Reads a name of printable characters that ends within its bytes. */
static void unpack_name(struct unpacking *u, char name[NAME_BYTES])
{
	unpack_bytes(u, name, NAME_BYTES);
	size_t n = strnlen(name, NAME_BYTES);
	u->failed |= n == 0 || n == NAME_BYTES;
	for (size_t i = 0; i < n && !u->failed; i++)
		u->failed |= name[i] <= ' ' || name[i] > '~' || name[i] == '/';
	if (u->failed)
		*name = '\0';
}

static double *unpack_numbers(struct unpacking *u, int64_t *n)
{
	*n = unpack_count(u, sizeof(double));
	double *v = *n ? xcalloc((size_t)*n, sizeof(*v)) : NULL;
	if (v)
		unpack_bytes(u, v, *n * (int64_t)sizeof(*v));
	return v;
}

/* Reads a text without NUL. */
static void unpack_text(struct unpacking *u, struct str *out)
{
	int64_t n = unpack_count(u, 1);
	str_puts(out, "");
	if (n && memchr(u->p, '\0', (size_t)n))
		u->failed = true;
	if (n && !u->failed)
		str_add(out, u->p, (size_t)n);
	u->p += n;
	u->n -= n;
}

static void unpack_tensor(struct unpacking *u, struct ckpt_tensor *t)
{
	enum { MAX_ROWS = 1 << 30 };
	const int64_t max_elements = (int64_t)1 << 50;
	unpack_name(u, t->name);
	t->ndim = (int)unpack_i64(u);
	t->dims[0] = unpack_i64(u);
	t->dims[1] = unpack_i64(u);
	t->stateless = unpack_i64(u) != 0;
	u->failed |= t->ndim < 1 || t->ndim > 2 || t->dims[0] < 1 || t->dims[1] < 1 ||
		     t->dims[0] > MAX_ROWS || t->dims[1] > max_elements / t->dims[0] ||
		     (t->ndim == 1 && t->dims[1] != 1);
}

static void unpack_state(struct unpacking *u, struct ckpt *c)
{
	enum { TENSOR_BYTES = NAME_BYTES + 4 * sizeof(int64_t), MAX_TENSORS = 1 << 20 };
	char *info = (char *)&c->info;
	for (const struct h5_field *f = ckpt_fields; (f = next_number(f)); f++)
		unpack_bytes(u, info + f->offset, sizeof(int64_t));
	int64_t n = unpack_count(u, TENSOR_BYTES);
	u->failed |= n < 1 || n > MAX_TENSORS;
	c->n_tensors = u->failed ? 0 : (int)n;
	c->tensors = xcalloc((size_t)c->n_tensors + 1, sizeof(*c->tensors));
	for (int i = 0; i < c->n_tensors && !u->failed; i++)
		unpack_tensor(u, &c->tensors[i]);
	n = unpack_count(u, NAME_BYTES);
	u->failed |= n < 1 || n > CKPT_MAX_GROUPS;
	for (int64_t i = 0; i < n && !u->failed; i++) {
		char name[NAME_BYTES];
		unpack_name(u, name);
		strs_add(&c->groups, name);
	}
	u->failed |= !c->groups.n || strcmp(c->groups.v[0], "model") != 0;
	c->numbers = unpack_numbers(u, &c->n_numbers);
	c->load = unpack_numbers(u, &c->n_load);
	unpack_text(u, &c->config);
	unpack_text(u, &c->origin);
	u->failed |= u->n != 0 || c->info.step < 0 || c->info.samples < 0 ||
		     c->info.tokens < 0;
}

struct ckpt *vault_unpack_state(
	const char *name, const char *p, int64_t n_bytes, struct err *e)
{
	struct unpacking u = {p, n_bytes, false};
	struct ckpt *c = xcalloc(1, sizeof(*c));
	c->path = xstrdup(name);
	c->fd = -1;
	unpack_state(&u, c);
	if (!u.failed)
		return c;
	err_set(e, EX_DATAERR, "%s: the state is damaged", name);
	ckpt_close(c);
	return NULL;
}

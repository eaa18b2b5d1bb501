/* The seal: the checksum of everything in a file except datasets with block checksums. */
#include "h5/h5_internal.h"

/* The minimum sizes of a link and of an attribute in a file. */
enum { LINK_BYTES = 32, ATTRIBUTE_BYTES = 24 };
enum { MAX_DEPTH = 8, MAX_BYTES = 1 << 28 };

static const struct h5_field seal_fields[] = {
	{"meta_xxh3", H5_U64, 0, false, "checksum of the metadata"},
	{0},
};

struct walk {
	struct h5 *f;
	struct hash_state *h;
	/* Remaining budget in bytes, initially the file size. It bounds the work for a small file
	 * with many links to one object, or with datasets that take no space. */
	int64_t left;
	h5_visit_fn *visit; /* or NULL */
	bool computes_found;
	uint64_t found; /* the sum of the checksums of attributes and datasets */
	struct err *e;
};

static int spend_budget(struct walk *w, int64_t bytes)
{
	if (bytes > w->left)
		return -1;
	w->left -= bytes;
	return 0;
}

static void hash_text(struct walk *w, const char *s)
{
	hash_add(w->h, s, strlen(s) + 1);
}

struct kind {
	int64_t type, bytes;
};

static struct kind get_kind(hid_t type)
{
	return (struct kind){h5_find_type(type), (int64_t)H5Tget_size(type)};
}

static void hash_type(struct walk *w, hid_t type)
{
	struct kind kind = get_kind(type);
	hash_add(w->h, &kind, sizeof(kind));
}

/* Returns the hash of a path from the root, with or without the first slash. */
static uint64_t hash_path(const char *path, uint64_t seed)
{
	path += *path == '/';
	return hash_bytes(path, strlen(path) + 1, seed);
}

uint64_t h5_attribute_sum(
	const char *path, const char *name, hid_t type, const void *data)
{
	struct kind kind = get_kind(type);
	uint64_t h = hash_path(path, 0);
	h = hash_bytes(name, strlen(name) + 1, h);
	h = hash_bytes(&kind, sizeof(kind), h);
	return hash_bytes(data, (size_t)kind.bytes, h);
}

uint64_t h5_dataset_sum(
	const char *path, hid_t type, int ndim, const int64_t *dims, const void *data)
{
	struct kind kind = get_kind(type);
	int64_t n_bytes = kind.bytes;
	uint64_t h = hash_path(path, 1);
	h = hash_bytes(&kind, sizeof(kind), h);
	for (int i = 0; i < ndim; i++) {
		h = hash_bytes(&dims[i], sizeof(dims[i]), h);
		n_bytes *= dims[i];
	}
	return data ? hash_bytes(data, (size_t)n_bytes, h) : h;
}

int h5_attribute_get(hid_t attribute, hid_t type, void **data)
{
	*data = xcalloc(H5Tget_size(type) + 1, 1);
	if (H5Aread(attribute, type, *data) >= 0)
		return 0;
	free(*data);
	*data = NULL;
	return -1;
}

struct attributes {
	struct walk *w;
	const char *path; /* path of the object */
};

/* Adds an attribute to the checksum, except the seal itself. */
static herr_t add_attribute(
	hid_t object, const char *name, const H5A_info_t *info, void *context)
{
	struct walk *w = ((struct attributes *)context)->w;
	const char *path = ((struct attributes *)context)->path;
	(void)info;
	hid_t id = H5Aopen(object, name, H5P_DEFAULT);
	if (id < 0)
		return -1;
	int rc = 0;
	hid_t type = H5Aget_type(id), space = H5Aget_space(id);
	size_t n_bytes = H5Tget_size(type);
	bool is_supported = H5Sget_simple_extent_npoints(space) == 1 &&
			    h5_find_type(type) >= 0 && n_bytes <= MAX_BYTES &&
			    H5Tis_variable_str(type) <= 0 &&
			    !spend_budget(w, ATTRIBUTE_BYTES + (int64_t)n_bytes);
	if (!is_supported) {
		rc = -1;
	} else if (strcmp(name, seal_fields[0].name)) {
		void *value;
		rc = h5_attribute_get(id, type, &value);
		hash_text(w, name);
		hash_type(w, type);
		if (!rc)
			hash_add(w->h, value, n_bytes);
		if (!rc && w->computes_found)
			w->found += h5_attribute_sum(path, name, type, value);
		free(value);
	}
	H5Sclose(space);
	H5Tclose(type);
	H5Aclose(id);
	return rc;
}

/* Adds all attributes of an object. (Access by index would take quadratic time.) */
static int add_attributes(struct walk *w, hid_t object, const char *path)
{
	struct attributes all = {w, path};
	hsize_t at = 0;
	return H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, &at, add_attribute, &all) <
			       0
		       ? -1
		       : 0;
}

/* Adds a dataset, with the contents unless they have block checksums. */
static int add_dataset(struct walk *w, hid_t d, const char *path)
{
	struct h5_info info;
	hid_t type = H5Dget_type(d);
	int64_t size = (int64_t)H5Tget_size(type), n_bytes = 0;
	bool has_blocks = H5Aexists(d, "block_rows") > 0;
	int rc = h5_read_info(w->f, d, path, &info, w->e) || H5Tis_variable_str(type) > 0;
	if (!rc && !has_blocks)
		rc = (info.n && info.offset < 0) ||
		     __builtin_mul_overflow(info.n, size, &n_bytes) ||
		     n_bytes > MAX_BYTES || spend_budget(w, n_bytes);
	if (!rc) {
		hash_type(w, type);
		hash_add(w->h, info.dims, sizeof(info.dims));
	}
	scoped_ptr char *data = rc || has_blocks ? NULL : xcalloc((size_t)n_bytes + 1, 1);
	if (data) {
		rc = info.n && H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0;
		hash_add(w->h, data, (size_t)n_bytes);
	}
	if (!rc && w->computes_found)
		w->found += h5_dataset_sum(path, type, info.ndim, info.dims, data);
	H5Tclose(type);
	return rc ? -1 : 0;
}

static int walk_group(struct walk *w, const char *path, int depth);

/* Adds a dataset, or a group with all objects in it, and visits each. */
static int walk_object(struct walk *w, const char *path, int depth)
{
	hid_t id = H5Oopen(w->f->id, path, H5P_DEFAULT);
	H5I_type_t kind = id < 0 ? H5I_BADID : H5Iget_type(id);
	int rc = -1;
	hash_text(w, path);
	if (kind == H5I_GROUP || kind == H5I_DATASET)
		rc = add_attributes(w, id, path);
	if (!rc && kind == H5I_DATASET)
		rc = add_dataset(w, id, path);
	if (!rc && w->visit)
		w->visit(w->f, id, path);
	H5Oclose(id);
	if (!rc && kind == H5I_GROUP)
		rc = walk_group(w, path, depth);
	if (rc && !w->e->code)
		h5_error(w->f, w->e, EX_DATAERR,
			"%s is damaged, not supported, or not contiguous", path);
	return rc;
}

/* Visits all objects of a group, and of groups in it, in the order of their names. */
static int walk_group(struct walk *w, const char *path, int depth)
{
	scoped_strs names = {0};
	if (depth > MAX_DEPTH || h5_list(w->f, path, &names, w->e) ||
		spend_budget(w, names.n * LINK_BYTES)) {
		return -1;
	}
	int rc = 0;
	for (int64_t i = 0; i < names.n && !rc; i++) {
		scoped_str child = {0};
		str_printf(
			&child, "%s%s%s", path, strcmp(path, "/") ? "/" : "", names.v[i]);
		rc = walk_object(w, child.s, depth + 1);
	}
	return rc;
}

struct sealed {
	uint64_t seal;
	uint64_t found; /* struct walk.found */
};

/* Computes the seal from the file, and the sum of its checksums if it is being written. */
static int compute_seal(struct h5 *f, int64_t budget, h5_visit_fn *visit,
	struct sealed *out, struct err *e)
{
	struct err error = {0};
	h5_begin_call(f);
	struct walk w = {.f = f,
		.h = hash_open(),
		.left = budget,
		.visit = visit,
		.computes_found = f->whole,
		.e = &error};
	int rc = walk_object(&w, "/", 0);
	*out = (struct sealed){hash_close(w.h), w.found};
	if (rc)
		*e = error;
	return rc;
}

/* Writes the seal. If a part of the new file cannot be read, it was not written: EX_IOERR. */
static int write_seal(struct h5 *f, uint64_t *seal, struct err *e)
{
	struct sealed computed;
	if (compute_seal(f, INT64_MAX, NULL, &computed, e)) {
		e->code = EX_IOERR;
		return -1;
	}
	if (f->whole && computed.found != f->written)
		return h5_error(f, e, EX_IOERR,
			"the file differs from the values written to it: the disk or "
			"another program has changed it");
	*seal = computed.seal;
	int rc = h5_fields_write(f, "/", seal_fields, seal, e);
	f->written = computed.found; /* without the seal */
	return rc;
}

/* Reads the closed file again, so that nothing comes from HDF5's memory, and checks the seal. */
static int check_finished(
	const char *file, const char *name, uint64_t seal, struct err *e)
{
	struct stat st;
	struct h5 *f;
	struct sealed computed;
	uint64_t stored;
	if (stat(file, &st))
		return err_errno(e, name);
	if (!st.st_size)
		return err_set(e, EX_IOERR,
			"%s: the file is empty after writing, and is discarded", name);
	if (h5_open_at(&f, file, name, st.st_size, e)) {
		e->code = EX_IOERR;
		return -1;
	}
	int rc = h5_fields_read(f, "/", seal_fields, &stored, e) ||
		 compute_seal(f, st.st_size, NULL, &computed, e);
	if (rc)
		e->code = EX_IOERR;
	else if (stored != seal || computed.seal != seal)
		rc = h5_error(f, e, EX_IOERR,
			"the file differs from the values written to it, and is "
			"discarded");
	return h5_end(f, rc, e);
}

int h5_finish(struct h5 *f, int rc, struct err *e)
{
	uint64_t seal;
	scoped_ptr char *file = xstrdup(f->file), *name = xstrdup(f->path);
	rc = rc || write_seal(f, &seal, e);
	rc = h5_end(f, rc, e);
	return rc || check_finished(file, name, seal, e) ? -1 : 0;
}

int h5_check_seal_visiting(struct h5 *f, h5_visit_fn *visit, struct err *e)
{
	uint64_t stored;
	struct sealed computed;
	int64_t budget = f->size_bytes ? f->size_bytes : INT64_MAX;
	if (h5_fields_read(f, "/", seal_fields, &stored, e) ||
		compute_seal(f, budget, visit, &computed, e))
		return -1;
	if (computed.seal != stored)
		return h5_error(f, e, EX_DATAERR,
			"the checksum of the metadata does not match: the file is "
			"damaged");
	return 0;
}

int h5_check_seal(struct h5 *f, struct err *e)
{
	return f->sealed ? 0 : h5_check_seal_visiting(f, NULL, e);
}

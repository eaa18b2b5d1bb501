/* Reading and writing of whole datasets. */
#include "h5/h5_internal.h"

#include <errno.h>

/* Checks each prefix of the path, since H5Lexists checks only the last link. */
bool h5_has(struct h5 *f, const char *path)
{
	char part[256];
	size_t n = strlen(path);
	if (n >= sizeof(part))
		return false;
	h5_begin_call(f);
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		memcpy(part, path, i);
		part[i] = '\0';
		if (H5Lexists(f->id, part, H5P_DEFAULT) <= 0)
			return false;
	}
	return true;
}

/* Appends the name of a link. Fails for soft and external links. */
static herr_t add_name(hid_t g, const char *name, const H5L_info_t *info, void *to)
{
	enum { MAX_NAME = 255 };
	(void)g;
	if (strlen(name) > MAX_NAME || info->type != H5L_TYPE_HARD)
		return -1;
	strs_add(to, name);
	return 0;
}

/* Lists names in native order and sorts them, because for other
 * orders HDF5 (1.10) allocates a table and frees uninitialized entries if the group is damaged. */
int h5_list(struct h5 *f, const char *group, struct strs *out, struct err *e)
{
	h5_begin_call(f);
	if (strcmp(group, "/") && !h5_has(f, group))
		return h5_error(f, e, EX_DATAERR, "%s is missing", group);
	hid_t g = H5Gopen2(f->id, group, H5P_DEFAULT);
	if (g < 0)
		return h5_error(f, e, EX_DATAERR, "%s is not a group", group);
	int rc = H5Literate(g, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, add_name, out) < 0;
	H5Gclose(g);
	if (rc)
		return h5_error(f, e, EX_DATAERR, "%s cannot be listed", group);
	strs_sort(out);
	return 0;
}

/* Returns true if a dataset is chunked. Slow: call it only for datasets without an offset. */
static bool is_chunked(hid_t dataset)
{
	hid_t properties = H5Dget_create_plist(dataset);
	bool chunked = H5Pget_layout(properties) == H5D_CHUNKED;
	H5Pclose(properties);
	return chunked;
}

/* Reads type, shape and offset. Returns -1 if they are invalid, or the data exceed the file. */
static int read_info(struct h5 *f, hid_t dataset, struct h5_info *info)
{
	hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
	hsize_t dims[H5_MAX_DIMS];
	int t = h5_find_type(type);
	int ndim = H5Sget_simple_extent_ndims(space);
	int rc = -1;
	if (t >= 0 && ndim >= 0 && ndim <= H5_MAX_DIMS) {
		H5Sget_simple_extent_dims(space, dims, NULL);
		*info = (struct h5_info){.type = (enum h5_type)t, .ndim = ndim, .n = 1};
		int64_t row = (int64_t)H5Tget_size(type); /* bytes, even without rows */
		rc = 0;
		for (int i = 0; i < ndim; i++) {
			info->dims[i] = (int64_t)dims[i];
			if (info->dims[i] < 0 ||
				__builtin_mul_overflow(
					info->n, info->dims[i], &info->n) ||
				(i && __builtin_mul_overflow(row, info->dims[i], &row)))
				rc = -1;
		}
		haddr_t at = H5Dget_offset(dataset);
		info->offset = at == HADDR_UNDEF ? -1 : (int64_t)at;
		info->chunked = info->offset < 0 && is_chunked(dataset);
	}
	/* the bytes must be within the file */
	int64_t bytes;
	if (!rc && f->size_bytes && info->offset >= 0 &&
		(__builtin_mul_overflow(info->n, (int64_t)H5Tget_size(type), &bytes) ||
			bytes > f->size_bytes || info->offset > f->size_bytes - bytes))
		rc = -1;
	H5Sclose(space);
	H5Tclose(type);
	return rc;
}

hid_t h5_open_dataset(struct h5 *f, const char *path, struct err *e)
{
	h5_begin_call(f);
	hid_t d = H5Dopen2(f->id, path, H5P_DEFAULT);
	if (d < 0)
		h5_error(f, e, EX_DATAERR, "dataset %s is missing", path);
	return d;
}

int h5_read_info(struct h5 *f, hid_t dataset, const char *path, struct h5_info *info,
	struct err *e)
{
	return read_info(f, dataset, info)
		       ? h5_error(f, e, EX_DATAERR,
				 "dataset %s is damaged or has an unsupported type", path)
		       : 0;
}

int h5_info(struct h5 *f, const char *path, struct h5_info *info, struct err *e)
{
	hid_t d = h5_open_dataset(f, path, e);
	if (d < 0)
		return -1;
	int rc = h5_read_info(f, d, path, info, e);
	H5Dclose(d);
	return rc;
}

hid_t h5_create_dataset(struct h5 *f, const char *path, hid_t type, int ndim,
	const int64_t *dims, bool blocks, struct err *e)
{
	hsize_t n[H5_MAX_DIMS];
	for (int i = 0; i < ndim; i++)
		n[i] = (hsize_t)dims[i];
	if (h5_make_groups(f, path, e))
		return -1;
	h5_begin_call(f);
	if (H5Lexists(f->id, path, H5P_DEFAULT) > 0) {
		if (f->whole) /* (its checksum would have to be subtracted) */
			return h5_error(f, e, EX_DATAERR, "%s is written twice", path);
		if (H5Ldelete(f->id, path, H5P_DEFAULT) < 0)
			return h5_write_error(f, e, "%s", path);
	}
	hid_t space = H5Screate_simple(ndim, n, NULL);
	hid_t properties = h5_properties(H5P_DATASET_CREATE);
	if (blocks) {
		H5Pset_layout(properties, H5D_CONTIGUOUS);
		H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
		H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
	}
	hid_t d = H5Dcreate2(
		f->id, path, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
	H5Pclose(properties);
	H5Sclose(space);
	if (d < 0)
		h5_write_error(f, e, "%s", path);
	else if (blocks && f->whole)
		f->written += h5_dataset_sum(path, type, ndim, dims, NULL);
	return d;
}

/* Writes a dataset, and adds its checksum to f->written. */
static int put_dataset(struct h5 *f, const char *path, hid_t on_disk, hid_t native,
	int ndim, const int64_t *dims, const void *data, struct err *e)
{
	hid_t d = h5_create_dataset(f, path, on_disk, ndim, dims, false, e);
	if (d < 0)
		return -1;
	errno = 0;
	int rc = H5Dwrite(d, native, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0;
	/* a small dataset is in HDF5's memory until it is closed */
	if (H5Dclose(d) < 0 || rc)
		return h5_write_error(f, e, "%s", path);
	if (f->whole)
		f->written += h5_dataset_sum(path, on_disk, ndim, dims, data ? data : "");
	return 0;
}

int h5_put(struct h5 *f, const char *path, enum h5_type t, int ndim, const int64_t *dims,
	const void *data, struct err *e)
{
	return put_dataset(f, path, h5_on_disk(t), h5_native(t), ndim, dims, data, e);
}

/* Writes a scalar string of fixed length, which h5dump and h5py show as a string. */
int h5_put_text(struct h5 *f, const char *path, const char *text, struct err *e)
{
	hid_t type = h5_text_type(strlen(text));
	int rc = put_dataset(f, path, type, type, 0, NULL, text, e);
	H5Tclose(type);
	return rc;
}

int h5_get(struct h5 *f, const char *path, enum h5_type t, int64_t n, int64_t max,
	void **data, int64_t *n_read, struct err *e)
{
	struct h5_info info;
	hid_t d = h5_open_dataset(f, path, e);
	if (d < 0)
		return -1;
	int rc = read_info(f, d, &info);
	if (rc || info.type != t || (n >= 0 && info.n != n) || info.n > max ||
		(info.n && info.offset < 0)) {
		rc = h5_error(f, e, EX_DATAERR,
			"dataset %s has the wrong type or size, or is not contiguous",
			path);
	} else {
		*data = xcalloc((size_t)info.n + 1, h5_type_bytes(t));
		if (info.n && H5Dread(d, h5_native(t), H5S_ALL, H5S_ALL, H5P_DEFAULT,
				      *data) < 0) {
			free(*data);
			*data = NULL;
			rc = h5_error(
				f, e, EX_DATAERR, "dataset %s could not be read", path);
		}
		if (n_read)
			*n_read = info.n;
	}
	H5Dclose(d);
	return rc;
}

int h5_get_text(struct h5 *f, const char *path, struct str *out, struct err *e)
{
	enum { MAX = 1 << 26 };
	struct h5_info info;
	hid_t d = h5_open_dataset(f, path, e);
	if (d < 0)
		return -1;
	hid_t type = H5Dget_type(d);
	size_t n = H5Tget_size(type);
	int rc = read_info(f, d, &info) || info.type != H5_TEXT ||
		 H5Tis_variable_str(type) > 0 || info.n != 1 || info.offset < 0 ||
		 n > MAX;
	char *text = rc ? NULL : xcalloc(n + 1, 1);
	rc = rc || H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text) < 0;
	if (!rc)
		str_puts(out, text);
	free(text);
	H5Tclose(type);
	H5Dclose(d);
	return rc ? h5_error(f, e, EX_DATAERR, "%s is not readable text", path) : 0;
}

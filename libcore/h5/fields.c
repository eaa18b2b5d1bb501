/* Attributes, by table. */
#include "h5/h5_internal.h"
#include "options/options.h"

#include <errno.h>
#include <math.h>

enum { MAX_TEXT = 1 << 20 };

/* Subtracts from f->written the checksum of an attribute that is about to be replaced. */
static int subtract_old_attribute(
	struct h5 *f, hid_t old, hid_t type, const char *path, const char *name)
{
	void *value;
	if (!f->whole)
		return 0;
	if (h5_attribute_get(old, type, &value))
		return -1;
	f->written -= h5_attribute_sum(path, name, type, value);
	free(value);
	return 0;
}

/* Opens or creates an attribute. It is deleted only if its type changes, because deleting leaves
 * a gap without a checksum in the file. */
static hid_t open_or_create_attribute(struct h5 *f, hid_t object, const char *path,
	const char *name, hid_t type, hid_t space)
{
	if (H5Aexists(object, name) > 0) {
		hid_t old = H5Aopen(object, name, H5P_DEFAULT),
		      old_type = H5Aget_type(old);
		bool same = old_type >= 0 && H5Tequal(old_type, type) > 0;
		int rc = old_type < 0 ||
			 subtract_old_attribute(f, old, old_type, path, name);
		H5Tclose(old_type);
		if (same && !rc)
			return old;
		if (H5Aclose(old) < 0 || rc || H5Adelete(object, name) < 0)
			return -1;
	}
	return H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
}

/* Writes an attribute. (The seal is an attribute too, but not part of its own sum.) */
static int write_attribute(struct h5 *f, hid_t object, const char *path,
	const struct h5_field *a, const void *value)
{
	bool is_text = a->type == H5_TEXT;
	const char *s = is_text ? *(const char *const *)value : NULL;
	if (is_text && !s)
		return a->optional ? 0 : -1;
	if (is_text)
		value = s;
	hid_t type = is_text ? h5_text_type(strlen(s)) : h5_on_disk(a->type);
	hid_t space = H5Screate(H5S_SCALAR);
	hid_t id = open_or_create_attribute(f, object, path, a->name, type, space);
	int rc = id < 0 || H5Awrite(id, is_text ? type : h5_native(a->type), value) < 0;
	if (id >= 0 && H5Aclose(id) < 0)
		rc = 1;
	if (!rc && f->whole)
		f->written += h5_attribute_sum(path, a->name, type, value);
	H5Sclose(space);
	if (is_text)
		H5Tclose(type);
	return rc ? -1 : 0;
}

/* Reads a string attribute of fixed length into *out, for free(). Returns -1 if it is not one. */
static int read_text(hid_t id, hid_t type, char **out)
{
	size_t n = H5Tget_size(type);
	if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0 ||
		n > MAX_TEXT)
		return -1;
	char *s = xcalloc(n + 1, 1);
	hid_t memory = h5_text_type(n);
	int rc = H5Aread(id, memory, s) < 0;
	H5Tclose(memory);
	if (rc)
		free(s);
	else
		*out = s;
	return rc ? -1 : 0;
}

/* Reads an attribute. Returns -1 unless it is a single value of the type of the field. */
static int read_attribute(hid_t object, const struct h5_field *a, void *value)
{
	hid_t id = H5Aopen(object, a->name, H5P_DEFAULT);
	hid_t type = id < 0 ? -1 : H5Aget_type(id);
	hid_t space = id < 0 ? -1 : H5Aget_space(id);
	int rc = -1;
	if (type >= 0 && H5Sget_simple_extent_npoints(space) == 1) {
		if (a->type == H5_TEXT)
			rc = read_text(id, type, value);
		else if (h5_find_type(type) == (int)a->type)
			rc = H5Aread(id, h5_native(a->type), value) < 0 ? -1 : 0;
	}
	H5Sclose(space);
	H5Tclose(type);
	H5Aclose(id);
	return rc;
}

/* Creates a group unless it exists; dense at once if h5_expect_links() announced many links. */
static int create_group(struct h5 *f, const char *path, struct err *e)
{
	if (h5_has(f, path))
		return 0;
	hid_t properties = h5_properties(H5P_GROUP_CREATE);
	if (f->n_links > H5_MAX_COMPACT)
		H5Pset_link_phase_change(properties, 0, 0);
	errno = 0;
	hid_t g = H5Gcreate2(f->id, path, H5P_DEFAULT, properties, H5P_DEFAULT);
	H5Pclose(properties);
	if (g < 0 || H5Gclose(g) < 0)
		return h5_write_error(f, e, "group %s", path);
	return 0;
}

int h5_make_groups(struct h5 *f, const char *path, struct err *e)
{
	char part[sizeof(f->group)];
	size_t n = (size_t)(strrchr(path, '/') - path);
	if (n >= sizeof(part))
		return h5_error(
			f, e, EX_DATAERR, "a path of %zu characters is too long", n);
	if (strlen(f->group) == n && !memcmp(f->group, path, n))
		return 0;
	for (size_t i = 1; i <= n; i++) {
		if (path[i] != '/')
			continue;
		memcpy(part, path, i);
		part[i] = '\0';
		if (create_group(f, part, e))
			return -1;
	}
	memcpy(f->group, path, n);
	f->group[n] = '\0';
	return 0;
}

int h5_object_write(struct h5 *f, hid_t object, const char *path,
	const struct h5_field *table, const void *values, struct err *e)
{
	h5_begin_call(f);
	for (const struct h5_field *a = table; a->name; a++)
		if (object < 0 || write_attribute(f, object, path, a,
					  (const char *)values + a->offset))
			return h5_write_error(f, e, "attribute %s of %s", a->name, path);
	return 0;
}

int h5_object_read(struct h5 *f, hid_t object, const char *path,
	const struct h5_field *table, void *values, struct err *e)
{
	h5_begin_call(f);
	for (const struct h5_field *a = table; a->name; a++) {
		if (a->optional && H5Aexists(object, a->name) <= 0)
			continue;
		if (read_attribute(object, a, (char *)values + a->offset))
			return h5_error(f, e, EX_DATAERR,
				"attribute %s of %s is missing or not of type %s",
				a->name, path, h5_type_name(a->type));
	}
	return 0;
}

int h5_fields_write(struct h5 *f, const char *path, const struct h5_field *table,
	const void *values, struct err *e)
{
	char group[256];
	snprintf(group, sizeof(group), "%s/", path);
	if (strcmp(path, "/") && !h5_has(f, path) && h5_make_groups(f, group, e))
		return -1;
	hid_t object = H5Oopen(f->id, path, H5P_DEFAULT);
	int rc = h5_object_write(f, object, path, table, values, e);
	if (object >= 0 && H5Oclose(object) < 0 && !rc)
		rc = h5_write_error(f, e, "%s", path);
	return rc;
}

int h5_fields_read(struct h5 *f, const char *path, const struct h5_field *table,
	void *values, struct err *e)
{
	h5_begin_call(f);
	hid_t object = H5Oopen(f->id, path, H5P_DEFAULT);
	if (object < 0)
		return h5_error(f, e, EX_DATAERR, "%s is missing", path);
	int rc = h5_object_read(f, object, path, table, values, e);
	H5Oclose(object);
	return rc;
}

void h5_field_append(struct str *out, const struct h5_field *a, const void *values)
{
	const void *v = (const char *)values + a->offset;
	char num[NUM_TEXT];
	const char *text = num;
	if (a->type == H5_TEXT)
		text = *(const char *const *)v;
	else if (a->type == H5_U64)
		snprintf(num, sizeof(num), "0x%016llx",
			(unsigned long long)*(const uint64_t *)v);
	else if (a->type == H5_F64)
		text = isnan(*(const double *)v) ? "none"
						 : text_double(num, *(const double *)v);
	else
		snprintf(num, sizeof(num), "%lld", (long long)*(const int64_t *)v);
	if (text)
		conf_print(out, a->name, text);
}

void h5_fields_print_man(const struct h5_field *table, FILE *f)
{
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (const struct h5_field *a = table; a->name; a++) {
		fprintf(f, ".It Va %s Pq %s%s\n", a->name, h5_type_name(a->type),
			a->optional ? ", may be absent" : "");
		man_text(f, a->doc);
	}
	fputs(".El\n", f);
}

struct format {
	char *format;
	int64_t version;
};

int h5_check_format(
	struct h5 *f, const char *format, int64_t newest_version, struct err *e)
{
	static const struct h5_field table[] = {
		{"format", H5_TEXT, offsetof(struct format, format)},
		{"version", H5_I64, offsetof(struct format, version)},
		{0},
	};
	struct format stored = {0};
	if (h5_fields_read(f, "/", table, &stored, e)) {
		free(stored.format);
		return h5_error(f, e, EX_DATAERR, "not a %s file", format);
	}
	int rc = 0;
	if (strcmp(stored.format, format))
		rc = h5_error(f, e, EX_DATAERR, "a %.40s file instead of a %s file",
			stored.format, format);
	else if (stored.version < 1 || stored.version > newest_version)
		rc = h5_error(f, e, EX_DATAERR,
			"version %lld of the %s format is not supported; "
			"this program reads 1 to %lld",
			(long long)stored.version, format, (long long)newest_version);
	free(stored.format);
	return rc;
}

/* Files: opening, creating, closing. */
#include "h5/h5_internal.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The table has addresses of type identifiers, because HDF5 sets them when it starts. */
static const struct {
	size_t bytes;
	const char *name;
	const hid_t *native, *on_disk;
} types[] = {
	[H5_U8] = {1, "u8", &H5T_NATIVE_UINT8_g, &H5T_STD_U8LE_g},
	[H5_U16] = {2, "u16", &H5T_NATIVE_UINT16_g, &H5T_STD_U16LE_g},
	[H5_U32] = {4, "u32", &H5T_NATIVE_UINT32_g, &H5T_STD_U32LE_g},
	[H5_I64] = {8, "i64", &H5T_NATIVE_INT64_g, &H5T_STD_I64LE_g},
	[H5_U64] = {8, "u64", &H5T_NATIVE_UINT64_g, &H5T_STD_U64LE_g},
	[H5_F32] = {4, "f32", &H5T_NATIVE_FLOAT_g, &H5T_IEEE_F32LE_g},
	[H5_F64] = {8, "f64", &H5T_NATIVE_DOUBLE_g, &H5T_IEEE_F64LE_g},
	[H5_TEXT] = {1, "text", &H5T_NATIVE_UINT8_g, &H5T_STD_U8LE_g},
};

size_t h5_type_bytes(enum h5_type t)
{
	return types[t].bytes;
}

const char *h5_type_name(enum h5_type t)
{
	return types[t].name;
}

hid_t h5_native(enum h5_type t)
{
	return *types[t].native;
}

hid_t h5_on_disk(enum h5_type t)
{
	return *types[t].on_disk;
}

hid_t h5_text_type(size_t n)
{
	hid_t t = H5Tcopy(H5T_C_S1);
	H5Tset_size(t, n ? n : 1);
	H5Tset_strpad(t, H5T_STR_NULLPAD);
	H5Tset_cset(t, H5T_CSET_UTF8);
	return t;
}

int h5_find_type(hid_t type)
{
	size_t n_bytes = H5Tget_size(type);
	for (enum h5_type t = H5_U8; t < H5_TEXT; t++)
		if (n_bytes == h5_type_bytes(t) && H5Tequal(type, h5_on_disk(t)) > 0)
			return (int)t;
	return H5Tget_class(type) == H5T_STRING ? H5_TEXT : -1;
}

int h5_error(const struct h5 *f, struct err *e, int code, const char *fmt, ...)
{
	char what[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (code == EX_DATAERR && h5_failure(f))
		return err_set(e, EX_IOERR, "%s: %s", f->path, strerror(h5_failure(f)));
	return err_set(e, code, "%s: %s", f->path, what);
}

hid_t h5_properties(hid_t class)
{
	hid_t list = H5Pcreate(class);
	H5Pset_obj_track_times(list, false);
	H5Pset_attr_phase_change(list, H5_MAX_COMPACT, H5_MAX_COMPACT);
	if (class != H5P_DATASET_CREATE)
		H5Pset_link_phase_change(list, H5_MAX_COMPACT, H5_MAX_COMPACT);
	return list;
}

/* Starts HDF5 without file locks, which fail on some network file systems. They are not needed: a
 * file gets its name when it is complete, so no program reads a file that is being written. */
static void start_library(void)
{
	static bool is_started;
	if (is_started)
		return;
	is_started = true;
	setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);
	/* At exit HDF5 (1.10) would close files again that could not be closed on a full disk, and
	 * crash, so all files are closed explicitly. HDF5's constants also initialize the library,
	 * so they must not be used before this. */
	H5dont_atexit();
	H5open();
	h5_watch_errors();
}

int h5_write_error(const struct h5 *f, struct err *e, const char *fmt, ...)
{
	char what[400];
	int why = f->failure ? f->failure : errno;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return h5_error(f, e, EX_IOERR, "%s%s%s could not be written",
		why ? strerror(why) : "", why ? ": " : "", what);
}

static struct h5 *new_handle(hid_t id, const char *path, const char *name)
{
	struct h5 *f = xcalloc(1, sizeof(*f));
	f->id = id;
	f->path = xstrdup(name);
	f->file = xstrdup(path);
	return f;
}

/* Returns access properties without blocks of metadata and small data, which have unused ends. */
static hid_t make_access_list(void)
{
	hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
	H5Pset_libver_bounds(fapl, H5F_LIBVER_V18, H5F_LIBVER_V18);
	H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG);
	H5Pset_meta_block_size(fapl, 0);
	H5Pset_small_data_block_size(fapl, 0);
	return fapl;
}

/* A file to write, opened here and passed to HDF5 by its descriptor. HDF5 itself would follow a
 * link that another user may have put in its place. */
struct own_file {
	int fd;
	char path[32];
};

/* Opens a file to write. Returns the path for HDF5; NULL with errno set. */
static const char *open_own_file(struct own_file *o, const char *path, int flags)
{
	o->fd = file_open_plain(path, O_RDWR | flags);
	if (o->fd < 0)
		return NULL;
	snprintf(o->path, sizeof(o->path), "/proc/self/fd/%d", o->fd);
	return access(o->path, F_OK) ? path : o->path;
}

static void close_own_file(const struct own_file *o)
{
	int saved_errno = errno;
	if (o->fd >= 0)
		close(o->fd);
	errno = saved_errno;
}

int h5_open_at(struct h5 **f, const char *path, const char *name, int64_t size_bytes,
	struct err *e)
{
	hid_t fapl = make_access_list();
	struct own_file own = {.fd = -1};
	h5_begin_call(NULL);
	const char *at = size_bytes ? path : open_own_file(&own, path, 0);
	hid_t id = at ? H5Fopen(at, size_bytes ? H5F_ACC_RDONLY : H5F_ACC_RDWR, fapl)
		      : H5I_INVALID_HID;
	int failure = h5_failure(NULL), why = failure || size_bytes ? failure : errno;
	close_own_file(&own);
	H5Pclose(fapl);
	if (id < 0 && !size_bytes && !why)
		return err_set(e, EX_IOERR, "%s: the file cannot be reopened", name);
	if (id < 0 && why)
		return err_set(e, EX_IOERR, "%s: %s", name, strerror(why));
	if (id < 0)
		return err_set(e, EX_DATAERR, "%s: not an HDF5 file, or damaged", name);
	*f = new_handle(id, path, name);
	(*f)->size_bytes = size_bytes;
	(*f)->failure = failure;
	return 0;
}

/* Opens an existing file. A file to be written was created by this program, so it is not probed. */
static int open_existing(
	struct h5 **f, const char *path, const char *name, bool write, struct err *e)
{
	struct stat st;
	bool sealed = false;
	if (stat(path, &st) || access(path, R_OK))
		return err_errno(e, name);
	if (!S_ISREG(st.st_mode))
		return err_set(e, EX_DATAERR, "%s: not a regular file", name);
	if (!st.st_size)
		return err_set(e, EX_DATAERR, "%s: not an HDF5 file, or damaged", name);
	if (!write && h5_probe(path, name, &st, &sealed, e))
		return -1;
	if (h5_open_at(f, path, name, write ? 0 : st.st_size, e))
		return -1;
	(*f)->sealed = sealed && h5_is_unchanged(path, &st);
	return 0;
}

/* Creates an HDF5 file, or empties it if it exists. Sets *f to its handle. */
static int create_file(struct h5 **f, const char *path, const char *name, struct err *e)
{
	hid_t fapl = make_access_list();
	hid_t properties = h5_properties(H5P_FILE_CREATE);
	struct own_file own;
	h5_begin_call(NULL);
	const char *at = open_own_file(&own, path, O_CREAT);
	hid_t id = at ? H5Fcreate(at, H5F_ACC_TRUNC, properties, fapl) : H5I_INVALID_HID;
	int saved_errno = errno;
	close_own_file(&own);
	H5Pclose(properties);
	H5Pclose(fapl);
	if (id < 0)
		return err_set(e, EX_IOERR, "%s: %s", name,
			saved_errno ? strerror(saved_errno)
				    : "the file cannot be created");
	*f = new_handle(id, path, name);
	(*f)->whole = true;
	return 0;
}

int h5_open_as(struct h5 **f, const char *path, const char *name, enum h5_mode mode,
	struct err *e)
{
	start_library();
	return mode == H5_MAKE ? create_file(f, path, name, e)
			       : open_existing(f, path, name, mode == H5_ADD, e);
}

int h5_open(struct h5 **f, const char *path, struct err *e)
{
	return h5_open_as(f, path, path, H5_READ, e);
}

int h5_reopen(struct h5 **f, const char *path, struct err *e)
{
	return h5_open_as(f, path, path, H5_ADD, e);
}

int h5_create(struct h5 **f, const char *path, struct err *e)
{
	return h5_open_as(f, path, path, H5_MAKE, e);
}

void h5_expect_links(struct h5 *f, int64_t n)
{
	f->n_links = n;
}

uint64_t h5_get_written_sum(const struct h5 *f)
{
	return f->written;
}

void h5_resume_writing(struct h5 *f, uint64_t written)
{
	f->written = written;
	f->whole = true;
}

int h5_close(struct h5 *f, struct err *e)
{
	if (!f)
		return 0;
	h5_begin_call(f);
	int rc = H5Fclose(f->id) < 0 ? -1 : 0;
	if (rc)
		h5_error(f, e, EX_IOERR, "%s",
			errno ? strerror(errno) : "the file could not be closed");
	else if (f->failure) /* the reader may have taken it for a missing object */
		rc = h5_error(f, e, EX_IOERR, "%s", strerror(f->failure));
	h5_forget_file(f);
	free(f->path);
	free(f->file);
	free(f);
	return rc;
}

int h5_end(struct h5 *f, int rc, struct err *e)
{
	struct err close_error;
	bool is_io_error = rc && e->code == EX_DATAERR && f && f->failure;
	int closed = h5_close(f, rc && !is_io_error ? &close_error : e);
	return rc || closed ? -1 : 0;
}

bool h5_has_signature(const char *first, size_t n)
{
	static const char signature[8] = {
		'\211', 'H', 'D', 'F', '\r', '\n', '\032', '\n'};
	return n >= sizeof(signature) && !memcmp(first, signature, sizeof(signature));
}

int h5_file_is_hdf5(int fd, const char *name, struct err *e)
{
	char first[8];
	int64_t n = file_read_first(fd, name, first, sizeof(first), e);
	return n < 0 ? -1 : h5_has_signature(first, (size_t)n);
}

const char *h5_version(void)
{
	static char text[NUM_TEXT];
	unsigned major, minor, release;
	start_library();
	H5get_libversion(&major, &minor, &release);
	snprintf(text, sizeof(text), "%u.%u.%u", major, minor, release);
	return text;
}

void h5_versions(struct str *out)
{
	str_printf(out, "HDF5 %s\n", h5_version());
}

/* Good HDF5 files made bad. The only place outside the h5 floor that calls HDF5: the floor
 * itself cannot write what it refuses. */
#include "h5/h5_internal.h"
#include "base/file.h"
#include "tests/fuzz/hostile.h"

#include <fcntl.h>
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

bool hostile_raw;

/* In the library, but in none of its headers: Jenkins' lookup3. */
uint32_t H5_checksum_metadata(const void *p, size_t n, uint32_t seed);

/* ---- choosing -------------------------------------------------------------------- */

static const char *take_object(const struct hostile *t, struct bytes *b, char **own)
{
	int n = 0;
	uint8_t i = take_byte(b);
	while (t->objects[n])
		n++;
	*own = NULL;
	return i < 240 ? t->objects[i % n] : (*own = take_text(b, 300));
}

static const char *take_field(const struct hostile *t, struct bytes *b, char **own)
{
	int n = 0;
	uint8_t i = take_byte(b);
	while (t->fields[n].name)
		n++;
	*own = NULL;
	return i < 232	 ? t->fields[i % n].name
	       : i < 240 ? "block_rows"
			 : (*own = take_text(b, 300));
}

/* Of a text of n bytes, or what n chooses. */
static hid_t take_type(struct bytes *b)
{
	const hid_t plain[] = {H5T_STD_I64LE, H5T_STD_U64LE, H5T_IEEE_F64LE, H5T_STD_U8LE,
		H5T_STD_U16LE, H5T_STD_U32LE, H5T_IEEE_F32LE, H5T_STD_I64BE, H5T_STD_I8LE,
		H5T_STD_REF_OBJ, H5T_IEEE_F64BE, H5T_STD_B64LE};
	uint8_t i = take_byte(b);
	hsize_t two[] = {2, 1 + (hsize_t)(i & 7)};
	if (i < 128)
		return H5Tcopy(plain[i % ARRAY_LEN(plain)]);
	hid_t t = H5Tcopy(H5T_C_S1);
	if (i < 200)
		H5Tset_size(t, (size_t)1 + take_byte(b));
	else if (i < 210)
		H5Tset_size(t, H5T_VARIABLE);
	if (i < 210) {
		H5Tset_strpad(t, i & 1 ? H5T_STR_NULLTERM : H5T_STR_SPACEPAD);
		return t;
	}
	H5Tclose(t);
	if (i < 220)
		return H5Tarray_create2(H5T_STD_I64LE, 1 + (i & 1), two);
	if (i < 230)
		return H5Tvlen_create(H5T_STD_I64LE);
	if (i < 240)
		return H5Tcreate(H5T_OPAQUE, (size_t)1 + take_byte(b));
	t = H5Tcreate(H5T_COMPOUND, 16);
	H5Tinsert(t, "a", 0, H5T_STD_I64LE);
	H5Tinsert(t, "b", 8, H5T_IEEE_F64LE);
	return t;
}

/* `huge`: any extent; the room for it is not made. */
static hid_t take_space(struct bytes *b, bool huge)
{
	uint8_t i = take_byte(b);
	hsize_t dims[H5S_MAX_RANK];
	int n = i % 6;
	if (i >= 240)
		return H5Screate(H5S_NULL);
	if (i >= 160)
		return H5Screate(H5S_SCALAR);
	for (int k = 0; k < n; k++)
		dims[k] = huge ? (hsize_t)take_number(b) : take_byte(b) % 24;
	return H5Screate_simple(n, dims, NULL);
}

/* ---- through HDF5 ---------------------------------------------------------------- */

static void set_attribute(const struct hostile *t, hid_t f, struct bytes *b)
{
	char *own, *named, data[70000] = {0};
	const char *path = take_object(t, b, &own), *name = take_field(t, b, &named);
	uint8_t how = take_byte(b);
	hid_t object = H5Oopen(f, path, H5P_DEFAULT);
	bool simple = how < 160; /* a number, where readers want one */
	hid_t type =
		simple ? H5Tcopy(how & 1 ? H5T_STD_I64LE : H5T_STD_U64LE) : take_type(b);
	hid_t space = simple ? H5Screate(H5S_SCALAR) : take_space(b, false);
	H5Adelete(object, name);
	if (how < 250 &&
		H5Tget_size(type) *
				(size_t)max64(1, H5Sget_simple_extent_npoints(space)) <=
			sizeof(data)) {
		hid_t id =
			H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
		int64_t v = take_number(b);
		memcpy(data, &v, sizeof(v));
		size_t n = min64(how & 31, (int64_t)b->n);
		if (!simple && n) {
			memcpy(data, b->p, n);
			b->p += n, b->n -= n;
		}
		if (H5Tis_variable_str(type) <= 0 && H5Tget_class(type) != H5T_VLEN)
			H5Awrite(id, type, data);
		H5Aclose(id);
	}
	H5Sclose(space);
	H5Tclose(type);
	H5Oclose(object);
	free(own);
	free(named);
}

static void set_layout(hid_t how, hid_t space, struct bytes *b)
{
	hsize_t dims[H5S_MAX_RANK], chunk[H5S_MAX_RANK];
	int n = H5Sget_simple_extent_ndims(space);
	switch (take_byte(b) % 8) {
	case 0:
		H5Pset_layout(how, H5D_COMPACT);
		break;
	case 1:
		H5Sget_simple_extent_dims(space, dims, NULL);
		for (int i = 0; i < n; i++)
			chunk[i] = (hsize_t)min64(4, max64(1, (int64_t)dims[i]));
		H5Pset_chunk(how, n, chunk);
		if (take_byte(b) & 1)
			H5Pset_deflate(how, 1);
		break;
	case 2:
		H5Pset_external(how, "/dev/zero", 0, H5F_UNLIMITED);
		break;
	default:
		H5Pset_layout(how, H5D_CONTIGUOUS);
		break;
	}
}

static void set_dataset(const struct hostile *t, hid_t f, struct bytes *b)
{
	enum { ROOM = 1 << 16 };
	char *own;
	const char *path = take_object(t, b, &own);
	bool huge = take_byte(b) >= 128;
	hid_t type = take_type(b), space = take_space(b, huge);
	hid_t how = H5Pcreate(H5P_DATASET_CREATE), links = H5Pcreate(H5P_LINK_CREATE);
	H5Pset_create_intermediate_group(links, 1);
	H5Pset_obj_track_times(how, false);
	set_layout(how, space, b);
	H5Pset_alloc_time(how, huge ? H5D_ALLOC_TIME_LATE : H5D_ALLOC_TIME_EARLY);
	if (strlen(path) > 1)
		H5Ldelete(f, path, H5P_DEFAULT);
	hid_t d = H5Dcreate2(f, path, type, space, links, how, H5P_DEFAULT);
	int64_t n = H5Sget_simple_extent_npoints(space),
		size = (int64_t)H5Tget_size(type);
	if (!huge && n > 0 && n <= ROOM / size && H5Tis_variable_str(type) <= 0 &&
		H5Tget_class(type) != H5T_VLEN) {
		char *data = xcalloc(ROOM, 1);
		for (int64_t i = 0; i + 8 <= n * size && b->n; i += 8) {
			int64_t v = take_number(b);
			memcpy(data + i, &v, sizeof(v));
		}
		H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
		free(data);
	}
	H5Dclose(d);
	H5Pclose(links);
	H5Pclose(how);
	H5Sclose(space);
	H5Tclose(type);
	free(own);
}

/* Elements of a dataset that stays as it is. */
static void set_elements(const struct hostile *t, hid_t f, struct bytes *b)
{
	char *own;
	const char *path = take_object(t, b, &own);
	hid_t d = H5Dopen2(f, path, H5P_DEFAULT), type = H5Dget_type(d),
	      space = H5Dget_space(d);
	int64_t n = H5Sget_simple_extent_npoints(space),
		size = (int64_t)H5Tget_size(type);
	bool small = n > 0 && n <= 1 << 16 && size <= 1 << 16 && n * size <= 1 << 16;
	if (d >= 0 && small && H5Tis_variable_str(type) <= 0) {
		char *data = xcalloc((size_t)(n * size) + 8, 1);
		H5Dread(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
		for (int k = take_byte(b) % 8; k >= 0; k--) {
			int64_t at = take_byte(b) % n * size, v = take_number(b);
			memcpy(data + at, &v, (size_t)min64(size, 8));
		}
		H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
		free(data);
	}
	H5Sclose(space);
	H5Tclose(type);
	H5Dclose(d);
	free(own);
}

static void set_link(const struct hostile *t, hid_t f, struct bytes *b)
{
	char *own, *other;
	const char *path = take_object(t, b, &own), *to = take_object(t, b, &other);
	hid_t links = H5Pcreate(H5P_LINK_CREATE);
	H5Pset_create_intermediate_group(links, 1);
	uint8_t how = take_byte(b);
	if (how & 1 && strlen(path) > 1)
		H5Ldelete(f, path, H5P_DEFAULT);
	switch (how >> 1 & 7) {
	case 0:
		break; /* it is gone */
	case 1:
		H5Lcreate_soft(to, f, path, links, H5P_DEFAULT);
		break;
	case 2:
		H5Lcreate_external("/nowhere.h5", to, f, path, links, H5P_DEFAULT);
		break;
	case 3:
		H5Gclose(H5Gcreate2(f, path, links, H5P_DEFAULT, H5P_DEFAULT));
		break;
	case 4:
		H5Ocopy(f, to, f, path, H5P_DEFAULT, links);
		break;
	default:
		H5Lcreate_hard(f, to, f, path, links, H5P_DEFAULT);
		break;
	}
	H5Pclose(links);
	free(own);
	free(other);
}

static void edit(const struct hostile *t, const char *path, struct bytes *b)
{
	static void (*const edits[])(const struct hostile *, hid_t, struct bytes *) = {
		set_attribute, set_attribute, set_dataset, set_elements, set_elements,
		set_link};
	hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
	H5Pset_libver_bounds(fapl, H5F_LIBVER_V18, H5F_LIBVER_V18);
	H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG);
	hid_t f = H5Fopen(path, H5F_ACC_RDWR, fapl);
	H5Pclose(fapl);
	FUZZ_ON(f < 0);
	for (int n = 1 + take_byte(b) % 4; n > 0 && b->n; n--)
		edits[take_byte(b) % ARRAY_LEN(edits)](t, f, b);
	H5Fclose(f);
}

/* ---- checksums ------------------------------------------------------------------- */

/* Of blocks that were altered, so that what is in them is read. */
static void sum_blocks(const struct hostile *t, struct h5 *h, const char *path)
{
	int fd = open(path, O_RDONLY);
	for (int i = 0; t->objects[i]; i++) {
		struct h5_blocks b = {0};
		struct err e;
		if (!h5_blocks_open(h, t->objects[i], &b, &e) && b.row_bytes < 1 << 16 &&
			b.row_bytes * b.rows < 1 << 16) {
			char *data = xcalloc((size_t)(b.rows * b.row_bytes) + 1, 1);
			for (int64_t k = 0; k < b.n_blocks; k++) {
				size_t n = (size_t)h5_block_bytes(&b, k);
				pread_all(fd, data, n,
					b.offset + k * b.block_rows * b.row_bytes);
				b.xxh3[k] = hash_bytes(data, n, 0);
			}
			h5_blocks_finish(h, &b, &e);
			free(data);
		}
		h5_blocks_release(&b);
	}
	close(fd);
}

static void seal(const struct hostile *t, const char *path, bool blocks)
{
	struct err e;
	struct h5 *h;
	if (h5_reopen(&h, path, &e))
		return;
	if (blocks)
		sum_blocks(t, h, path);
	h5_finish(h, 0, &e);
}

/* HDF5 may die of it: a child does it, or nobody. */
static void seal_raw(const struct hostile *t, const char *path)
{
	pid_t pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_WRONLY);
		const struct rlimit none = {0, 0};
		dup2(null, STDERR_FILENO);
		setrlimit(RLIMIT_CORE, &none);
		silence_messages(1);
		for (int s = 1; s < 32; s++)
			signal(s, SIG_DFL);
		alarm(2);
		seal(t, path, false);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

/* ---- faults ---------------------------------------------------------------------- */

/* What a child survives can kill the parent yet, where HDF5 reads beyond an allocation. Here that is
 * an end that is no finding; the runner continues. */
extern const char __executable_start[], etext[];
static struct sigaction finding;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	const ucontext_t *c = context;
	uintptr_t at = (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
	if (hostile_raw && (at < (uintptr_t)__executable_start || at >= (uintptr_t)etext))
		_exit(EX_DATAERR);
	finding.sa_sigaction(sig, info, context);
}

static void watch_faults(void)
{
	struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	if (!sigaction(SIGSEGV, &a, &finding) && !(finding.sa_flags & SA_SIGINFO))
		sigaction(SIGSEGV, &finding, NULL);
}

/* ---- bytes ----------------------------------------------------------------------- */

static uint32_t get32(const char *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof(v));
	return v;
}

/* Where is the checksum of what begins here? The first place that has the right one. */
static bool find_span(const struct str *s, size_t begin, struct sealed_span *x)
{
	for (size_t end = begin + 8; end < begin + 2048 && end + 4 <= s->len; end++)
		if (H5_checksum_metadata(s->s + begin, end - begin, 0) ==
			get32(s->s + end)) {
			*x = (struct sealed_span){begin, end, end};
			return true;
		}
	return false;
}

void hostile_init(struct hostile *t, const char *path, const char *const *objects,
	const struct h5_field *fields)
{
	static const char *const signs[] = {
		"\211HDF", "OHDR", "OCHK", "FRHP", "FHIB", "BTHD", "BTLF", "BTIN"};
	struct err e;
	watch_faults();
	*t = (struct hostile){.objects = objects, .fields = fields};
	FUZZ_ON(file_read(path, 1 << 20, &t->image, &e));
	unlink(path);
	for (size_t i = 0; i + 8 < t->image.len; i++)
		for (size_t k = 0; k < ARRAY_LEN(signs); k++) {
			struct sealed_span x;
			if (memcmp(t->image.s + i, signs[k], 4) ||
				!find_span(&t->image, i, &x))
				continue;
			t->spans =
				xrealloc(t->spans, (size_t)(t->n_spans + 1) * sizeof(x));
			t->spans[t->n_spans++] = x;
		}
	FUZZ_ON(t->n_spans < 4);
}

/* Most where HDF5 keeps its own: in a span. */
static size_t take_place(const struct hostile *t, struct bytes *b, size_t len)
{
	uint8_t i = take_byte(b);
	size_t at = take_byte(b);
	if (i < 200) {
		const struct sealed_span *x = &t->spans[i % t->n_spans];
		size_t n = x->end - x->begin;
		at |= n > 256 ? (size_t)take_byte(b) << 8 : 0;
		return (x->begin + at % n) % len;
	}
	return ((size_t)take_byte(b) << 8 | at) % len;
}

static void alter(const struct hostile *t, struct str *s, struct bytes *b)
{
	for (int n = 1 + take_byte(b) % 8; n > 0 && s->len > 16; n--) {
		uint8_t how = take_byte(b);
		size_t at = take_place(t, b, s->len);
		int64_t v = how & 1 ? take_number(b) : take_byte(b);
		size_t width = (size_t)1 << (how >> 1 & 3);
		if (how >= 250)
			s->len = at;
		else if (how >= 128)
			s->s[at] = (char)(s->s[at] ^ 1 << (v & 7));
		else
			memcpy(s->s + at, &v, width < s->len - at ? width : s->len - at);
	}
}

static void fix_sums(const struct hostile *t, struct str *s)
{
	for (int i = 0; i < t->n_spans; i++) {
		const struct sealed_span *x = &t->spans[i];
		if (x->sum + 4 > s->len)
			continue;
		uint32_t sum =
			H5_checksum_metadata(s->s + x->begin, x->end - x->begin, 0);
		memcpy(s->s + x->sum, &sum, sizeof(sum));
	}
}

const char *hostile_make(const struct hostile *t, struct bytes *b)
{
	struct str s = {0};
	const char *path = fuzz_path("hostile.h5");
	uint8_t how = take_byte(b);
	str_add(&s, t->image.s, t->image.len);
	hostile_raw = how & 1;
	if (hostile_raw) {
		alter(t, &s, b);
		if (how & 2)
			fix_sums(t, &s);
	}
	fuzz_file("hostile.h5", s.s, s.len);
	if (hostile_raw && how & 4)
		seal_raw(t, path);
	if (!hostile_raw) {
		edit(t, path, b);
		if ((how & 6) != 6)
			seal(t, path, how & 2);
	}
	str_free(&s);
	return path;
}

/* ---- the probe ------------------------------------------------------------------- */

/* The linker puts this in the place of the h5 floor's: what HDF5 itself has made needs no
 * child to look at it first, which takes most of the time. */
/* With the type of h5_probe() itself, so that a change of it is seen here. */
__typeof__(h5_probe) __real_h5_probe, __wrap_h5_probe;
int __wrap_h5_probe(const char *path, const char *name, const struct stat *st,
	bool *sealed, struct err *e)
{
	*sealed = false;
	return hostile_raw ? __real_h5_probe(path, name, st, sealed, e) : 0;
}

/* And this in the place of what a child calls first: its end is no finding. */
void __sanitizer_set_death_callback(void (*callback)(void));
void __real_die_silently(int code);
void __wrap_die_silently(int code);
void __wrap_die_silently(int code)
{
	__sanitizer_set_death_callback(NULL);
	__real_die_silently(code);
}

/* Files of a vault: their names, layout and seal, and the checks of a reader. */
#include "base/file.h"
#include "vault/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[] = {'P', 'T', 'V', 'A', 'U', 'L', 'T', '1'};

enum { PAGE = 4096, MAX_RANKS = 1 << 20 };

/* ---- names ------------------------------------------------------------------------------- */

static void print_name(struct str *out, const struct vault_name *n)
{
	str_printf(out, "%016llx-%016llx-%s-%d.%d", (unsigned long long)n->run,
		(unsigned long long)n->start, n->is_copy ? "copy" : "own", n->rank,
		n->slot);
}

void vault_print_path(struct str *out, const char *directory, const struct vault_name *n)
{
	str_printf(out, "%s/", directory);
	print_name(out, n);
}

bool vault_parse_name(const char *text, struct vault_name *n)
{
	unsigned long long run, start;
	char kind[8];
	scoped_str same = {0};
	if (sscanf(text, "%16llx-%16llx-%4[a-z]-%7d.%1d", &run, &start, kind, &n->rank,
		    &n->slot) != 5)
		return false;
	n->run = run;
	n->start = start;
	n->is_copy = !strcmp(kind, "copy");
	print_name(&same, n);
	return n->rank >= 0 && n->slot >= 0 && n->slot < VAULT_SLOTS &&
	       !strcmp(same.s, text);
}

/* ---- layout ------------------------------------------------------------------------------ */

int64_t vault_record_bytes(const struct vault_record *r)
{
	return r->block.rows * r->block.cols * (int64_t)sizeof(float);
}

static int64_t state_offset(int64_t n_records)
{
	return PAGE + n_records * (int64_t)sizeof(struct vault_record);
}

int64_t vault_file_bytes(const struct vault_layout *l, int64_t *data_at)
{
	*data_at = round_up(state_offset(l->n_records) + l->state_bytes, PAGE);
	return *data_at + l->row_bytes;
}

static void set_pointers(struct vault_file *f, int64_t n_records)
{
	f->header = (void *)f->map;
	f->records = (void *)(f->map + PAGE);
	f->state = f->map + state_offset(n_records);
}

/* ---- writing ----------------------------------------------------------------------------- */

/* Allocates the memory of a file. Returns an error number, or 0. */
static int allocate(int fd, int64_t n_bytes)
{
	int error;
	do
		error = posix_fallocate(fd, 0, n_bytes);
	while (error == EINTR); /* by a signal, such as one that stops the run */
	return error;
}

int vault_file_create(struct vault_file *f, const char *path,
	const struct vault_layout *l, const struct vault_header *h, struct err *e)
{
	*f = (struct vault_file){.map = MAP_FAILED};
	struct vault_header header = *h;
	header.n_records = l->n_records;
	header.file_bytes = f->file_bytes = vault_file_bytes(l, &header.data_at);
	memcpy(header.magic, magic, sizeof(magic));
	header.seal = 0;
	char page[PAGE] = {0}; /* first, so that vault_remove() knows the file */
	memcpy(page, &header, sizeof(header));
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_errno(e, path);
	/* (a file system without this much memory fails here, not by a signal later) */
	errno = pwrite_all(fd, page, sizeof(page), 0) ? errno
						      : allocate(fd, f->file_bytes);
	if (!errno)
		f->map = mmap(NULL, (size_t)f->file_bytes, PROT_READ | PROT_WRITE,
			MAP_SHARED, fd, 0);
	if (errno || f->map == MAP_FAILED) {
		err_errno(e, path);
		err_prefix(e,
			"no memory for a file of %lld bytes: ", (long long)f->file_bytes);
		close(fd);
		unlink(path);
		*f = (struct vault_file){0};
		return -1;
	}
	close(fd);
	f->path = xstrdup(path);
	set_pointers(f, l->n_records);
	return 0;
}

void vault_file_break(struct vault_file *f)
{
	f->header->seal = 0;
	atomic_thread_fence(memory_order_seq_cst);
}

static uint64_t seal_of(const struct vault_header *h)
{
	uint64_t seal = hash_bytes(h, offsetof(struct vault_header, seal), 0);
	return seal ? seal : 1;
}

static size_t records_bytes(const struct vault_header *h)
{
	return (size_t)h->n_records * sizeof(struct vault_record);
}

void vault_file_seal(struct vault_file *f, int64_t step, int64_t state_bytes)
{
	struct vault_header *h = f->header;
	BUG_ON(state_offset(h->n_records) + state_bytes > h->data_at);
	h->step = step;
	h->state_bytes = state_bytes;
	h->records_xxh3 = hash_bytes(f->records, records_bytes(h), 0);
	h->state_xxh3 = hash_bytes(f->state, (size_t)state_bytes, 0);
	atomic_thread_fence(memory_order_seq_cst);
	h->seal = seal_of(h);
}

void vault_file_adopt(struct vault_file *f, const struct vault_header *h)
{
	memcpy(f->header, h, offsetof(struct vault_header, seal));
	atomic_thread_fence(memory_order_seq_cst);
	f->header->seal = h->seal;
}

/* ---- reading ----------------------------------------------------------------------------- */

void vault_file_close(struct vault_file *f)
{
	if (f->map)
		munmap(f->map, (size_t)f->file_bytes);
	free(f->path);
	*f = (struct vault_file){0};
}

/* Opens a regular file of this user, which has a header, or is empty if a rank was killed before it
 * wrote that. Returns its descriptor, or -1 with *e set. */
static int open_own(const char *path, struct stat *st, struct err *e)
{
	int fd = file_open_plain(path, O_RDONLY);
	if (fd < 0)
		return err_errno(e, path);
	if (!fstat(fd, st) && st->st_uid == geteuid() &&
		(st->st_size >= PAGE || !st->st_size))
		return fd;
	close(fd);
	return err_set(e, EX_DATAERR,
		"%s: not a file of a vault: another user owns it, or it is too short",
		path);
}

/* Returns true if the sizes in a sealed header are possible in a file of n_bytes bytes. */
static bool has_possible_sizes(const struct vault_header *h, int64_t n_bytes)
{
	return h->file_bytes == n_bytes && h->n_records > 0 &&
	       h->n_records < n_bytes / (int64_t)sizeof(struct vault_record) &&
	       h->state_bytes > 0 && h->state_bytes < n_bytes && h->data_at > 0 &&
	       h->data_at < n_bytes &&
	       state_offset(h->n_records) + h->state_bytes <= h->data_at &&
	       h->step >= 0 && h->ranks > 0 && h->ranks <= MAX_RANKS && h->rank >= 0 &&
	       h->rank < h->ranks;
}

static int check_file(const struct vault_file *f, struct err *e)
{
	const struct vault_header *h = f->header;
	if (h->seal != seal_of(h) || !has_possible_sizes(h, f->file_bytes))
		return err_set(e, EX_DATAERR, "%s: the header is damaged", f->path);
	if (h->records_xxh3 != hash_bytes(f->records, records_bytes(h), 0) ||
		h->state_xxh3 != hash_bytes(f->map + state_offset(h->n_records),
					 (size_t)h->state_bytes, 0))
		return err_set(e, EX_DATAERR, "%s: the records are damaged", f->path);
	return 0;
}

int vault_file_open(struct vault_file *f, const char *path, uint64_t run, struct err *e)
{
	struct stat st;
	*f = (struct vault_file){0};
	int fd = open_own(path, &st, e);
	if (fd < 0)
		return -1;
	if (!st.st_size) {
		close(fd);
		return 1;
	}
	char *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return err_errno(e, path);
	*f = (struct vault_file){
		.path = xstrdup(path), .map = map, .file_bytes = st.st_size};
	set_pointers(f, 0);
	const struct vault_header *h = f->header;
	int rc = memcmp(h->magic, magic, sizeof(magic))
			 ? err_set(e, EX_DATAERR, "%s: not a file of a vault", path)
			 : h->run != run || !h->seal;
	rc = rc ? rc : check_file(f, e);
	if (rc)
		vault_file_close(f);
	else
		set_pointers(f, h->n_records);
	return rc;
}

static bool is_possible(
	const struct vault_file *f, const struct vault_record *r, const struct ckpt *c)
{
	const struct tensor_block *b = &r->block;
	const struct vault_header *h = f->header;
	if (r->group < 0 || r->group >= c->groups.n || r->tensor < 0 ||
		r->tensor >= c->n_tensors)
		return false;
	const struct ckpt_tensor *t = &c->tensors[r->tensor];
	int64_t width = ckpt_row_size(t);
	return b->row >= 0 && b->row < t->dims[0] && b->rows > 0 &&
	       b->rows <= t->dims[0] - b->row && b->col >= 0 && b->col < width &&
	       b->cols > 0 && b->cols <= width - b->col &&
	       !(t->stateless && r->group != CKPT_MODEL) && r->at >= h->data_at &&
	       r->at % VAULT_ALIGN == 0 && r->at < h->file_bytes &&
	       vault_record_bytes(r) <= h->file_bytes - r->at;
}

int vault_check_records(const struct vault_file *f, const struct ckpt *c, struct err *e)
{
	for (int64_t i = 0; i < f->header->n_records; i++)
		if (!is_possible(f, &f->records[i], c))
			return err_set(e, EX_DATAERR, "%s: record %lld is impossible",
				f->path, (long long)i);
	return 0;
}

bool vault_has_good_rows(const struct vault_file *f, int64_t i)
{
	const struct vault_record *r = &f->records[i];
	return hash_bytes(f->map + r->at, (size_t)vault_record_bytes(r), 0) == r->xxh3;
}

/* ---- directories --------------------------------------------------------------------------- */

int vault_list(const char *directory, uint64_t run, struct strs *names, int64_t *n_others,
	struct err *e)
{
	struct vault_name n;
	*n_others = 0;
	scoped_dir *d = opendir(directory);
	if (!d)
		return errno == ENOENT ? 0 : err_errno(e, directory);
	for (struct dirent *f; (f = readdir(d));) {
		if (!vault_parse_name(f->d_name, &n))
			continue;
		if (n.run == run)
			strs_add(names, f->d_name);
		else
			++*n_others;
	}
	strs_sort(names);
	return 0;
}

/* Returns true if the run has made a file and it is not kept. Sets *n_bytes to its size. */
static bool is_removable(const char *path, const struct vault_name *n,
	const struct vault_kept *keep, int64_t *n_bytes)
{
	struct stat st;
	struct vault_header h;
	if (n->start == keep->start)
		return false;
	int fd = open_own(path, &st, &(struct err){0});
	if (fd < 0)
		return false;
	bool is_own = !pread_all(fd, &h, sizeof(h), 0) &&
		      !memcmp(h.magic, magic, sizeof(magic)) && h.run == n->run &&
		      h.start == n->start;
	close(fd);
	*n_bytes = st.st_size;
	if (!is_own)
		return !st.st_size;
	return !(h.start == keep->keep_start && h.step == keep->keep_step && h.seal);
}

static int64_t for_each_removable(
	const char *directory, uint64_t run, const struct vault_kept *keep, bool removes)
{
	scoped_strs names = {0};
	int64_t n_others, n_bytes = 0;
	vault_list(directory, run, &names, &n_others, &(struct err){0});
	for (int64_t i = 0; i < names.n; i++) {
		struct vault_name n;
		scoped_ptr char *path = text_printf("%s/%s", directory, names.v[i]);
		int64_t size = 0;
		if (vault_parse_name(names.v[i], &n) &&
			is_removable(path, &n, keep, &size) &&
			(!removes || !unlink(path)))
			n_bytes += size;
	}
	return n_bytes;
}

int64_t vault_remove(const char *directory, uint64_t run, const struct vault_kept *keep)
{
	return for_each_removable(directory, run, keep, true);
}

int64_t vault_removable_bytes(
	const char *directory, uint64_t run, const struct vault_kept *keep)
{
	return for_each_removable(directory, run, keep, false);
}

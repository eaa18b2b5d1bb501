/* Checks a file in a child process before it is read.
 *
 * HDF5 (1.10) trusts the metadata of a file: a malicious file can make it read invalid addresses,
 * loop forever, or allocate all memory. So a child process with resource limits first makes every
 * call that a reader will make. A file that kills the child is rejected; otherwise the parent makes
 * the same calls. Fuzzing (tests/fuzz/fuzz_shard.c and others) found files with correct checksums
 * that crash HDF5 or make it loop. */
#include "h5/h5_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CPU_SECONDS = 10, WALL_SECONDS = 120, MEMORY_MIB = 1024 };
enum { MAX_BYTES = 1 << 28 };
/* Exit codes of the child; other codes come from HDF5. SEALED: no harm, and the metadata checksum
 * is right. TOO_LITTLE: no memory, but the limit is lower than a harmless file may need. FAILURE
 * + errno: the operating system could not read the file. */
enum { NO_HARM = 0, NO_MEMORY = 3, SEALED = 4, TOO_LITTLE = 5, FAILURE = 100 };

/* ---- the child: all calls of readers --------------------------------------------- */

/* Reads an attribute in the child process, only to make HDF5 parse it. Ignores errors. */
static void read_and_discard_attribute(
	struct h5 *f, hid_t object, const char *path, const char *name, hid_t type)
{
	union {
		char *text;
		uint64_t bits;
	} value = {0};
	struct err e;
	int t = h5_find_type(type);
	const struct h5_field table[] = {{name, (enum h5_type)t, 0, true, NULL}, {0}};
	if (t != H5_I64 && t != H5_U64 && t != H5_F64 && t != H5_TEXT)
		return;
	if (!h5_object_read(f, object, path, table, &value, &e) && t == H5_TEXT)
		free(value.text);
}

/* Reads all attributes in the child process, only to make HDF5 parse them. Ignores errors. */
static void read_and_discard_attributes(struct h5 *f, hid_t object, const char *path)
{
	H5O_info_t info;
	if (H5Oget_info(object, &info) < 0)
		return;
	for (hsize_t i = 0; i < info.num_attrs; i++) {
		char name[256] = "";
		hid_t id = H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i,
			H5P_DEFAULT, H5P_DEFAULT);
		hid_t type = H5Aget_type(id);
		if (H5Aget_name(id, sizeof(name), name) > 0)
			read_and_discard_attribute(f, object, path, name, type);
		H5Tclose(type);
		H5Aclose(id);
	}
}

/* Reads a small dataset in the child process, only to make HDF5 parse it. Ignores errors. */
static void try_dataset(struct h5 *f, hid_t dataset, const char *path)
{
	struct h5_info info;
	scoped_str text = {0};
	struct err e;
	void *data;
	if (h5_read_info(f, dataset, path, &info, &e))
		return;
	if (H5Aexists(dataset, "block_rows") > 0)
		return;
	if (info.type == H5_TEXT)
		h5_get_text(f, path, &text, &e);
	else if (info.n * (int64_t)h5_type_bytes(info.type) <= MAX_BYTES &&
		 !h5_get(f, path, info.type, -1, INT64_MAX, &data, NULL, &e))
		free(data);
}

/* Makes all calls of readers for one object. */
static void try_object(struct h5 *f, hid_t object, const char *path)
{
	scoped_strs names = {0};
	struct err e;
	H5I_type_t kind = H5Iget_type(object);
	read_and_discard_attributes(f, object, path);
	if (kind == H5I_DATASET)
		try_dataset(f, object, path);
	if (kind == H5I_GROUP)
		h5_list(f, path, &names, &e);
}

/* Checks the format and then, like readers, the checksum of the metadata, which bounds depth and
 * bytes of visited objects. Returns the exit code. */
static int probe_file(const char *path, const char *name, int64_t size_bytes)
{
	static const struct h5_field format[] = {
		{"format", H5_TEXT, 0, false, NULL}, {0}};
	struct err e;
	struct h5 *f;
	scoped_ptr char *text = NULL;
	if (h5_open_at(&f, path, name, size_bytes, &e))
		return h5_failure(NULL) ? FAILURE + h5_failure(NULL) : NO_HARM;
	bool sealed = !h5_fields_read(f, "/", format, &text, &e) &&
		      !h5_check_seal_visiting(f, try_object, &e);
	int failure = f->failure;
	h5_close(f, &e);
	return failure ? FAILURE + failure : sealed ? SEALED : NO_HARM;
}

/* ---- the child: limits ----------------------------------------------------------- */

/* Lowers a resource limit. */
static void lower_limit(int what, rlim_t max)
{
	struct rlimit l;
	if (getrlimit(what, &l) || (l.rlim_cur != RLIM_INFINITY && l.rlim_cur <= max))
		return;
	l.rlim_cur = max;
	setrlimit(what, &l);
}

/* Returns the memory of this process plus the maximum that a file may need; 0: unknown. */
static rlim_t compute_memory_limit(void)
{
	char text[64] = "";
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	close(fd);
	return n > 0 ? (rlim_t)strtoull(text, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE) +
			       ((rlim_t)MEMORY_MIB << 20)
		     : 0;
}

static bool is_memory_limited(void)
{
	struct rlimit l;
	return !getrlimit(RLIMIT_AS, &l) && l.rlim_cur != RLIM_INFINITY &&
	       l.rlim_cur <= compute_memory_limit();
}

/* Ignores signals that are meant for the parent, and resets the parent's handlers of faults. */
static void reset_signals(void)
{
	static const int for_parent[] = {
		SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE};
	sigset_t none;
	sigemptyset(&none);
	for (int s = 1; s < NSIG; s++)
		signal(s, SIG_DFL);
	for (size_t i = 0; i < ARRAY_LEN(for_parent); i++)
		signal(for_parent[i], SIG_IGN);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Discards the C library's messages, and the parent's buffered output, or it is written twice. */
static void discard_output(int no_memory_code)
{
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	silence_messages(no_memory_code);
}

/* Checks the file under limits, writes the exit code to report_fd, and exits. */
static _Noreturn void run_child(
	int report_fd, const char *path, const char *name, int64_t size_bytes)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_DUMPABLE, 0); /* no core file */
	reset_signals();
	char memory_code = is_memory_limited() ? TOO_LITTLE : NO_MEMORY;
	if (compute_memory_limit())
		lower_limit(RLIMIT_AS, compute_memory_limit());
	discard_output(memory_code);
	lower_limit(RLIMIT_CORE, 0);
	lower_limit(RLIMIT_CPU, CPU_SECONDS);
	alarm(WALL_SECONDS);
	h5_watch_errors();
	int result = probe_file(path, name, size_bytes);
	unsigned char code =
		(unsigned char)(h5_ran_out_of_memory() ? memory_code : result);
	_exit(write(report_fd, &code, 1) == 1 ? code : EX_IOERR);
}

/* ---- the parent ------------------------------------------------------------------ */

/* Files that passed the check and have not changed since. A file that changed within the last
 * second is not recorded, because it may change again without new times. */
static struct file_id {
	dev_t device;
	ino_t inode;
	off_t size;
	struct timespec modified, changed;
} checked_files[64];
static bool checked_seals[64];
static unsigned n_checked;

static struct file_id make_file_id(const struct stat *s)
{
	return (struct file_id){s->st_dev, s->st_ino, s->st_size, s->st_mtim, s->st_ctim};
}

static bool is_same_file(const struct file_id *x, const struct file_id *y)
{
	return !memcmp(x, y, sizeof(*x)); /* it has no padding */
}

/* Returns true if this version of the file was checked before, and sets *sealed to the result. */
static bool was_checked(const struct stat *st, bool *sealed)
{
	struct file_id x = make_file_id(st);
	for (size_t i = 0; i < ARRAY_LEN(checked_files) && i < n_checked; i++) {
		if (!is_same_file(&checked_files[i], &x))
			continue;
		*sealed = checked_seals[i];
		return true;
	}
	return false;
}

/* Records the result of a check, unless the file is too new for its times to show a change. */
static void record_checked_file(const struct stat *st, bool sealed, double now)
{
	if ((double)max64(st->st_mtime, st->st_ctime) + 2 >= now)
		return;
	unsigned i = n_checked++ % ARRAY_LEN(checked_files);
	checked_files[i] = make_file_id(st);
	checked_seals[i] = sealed;
}

bool h5_is_unchanged(const char *path, const struct stat *st)
{
	struct stat now;
	struct file_id x = make_file_id(st), y;
	if (stat(path, &now))
		return false;
	y = make_file_id(&now);
	return is_same_file(&x, &y);
}

/* Returns true if another process killed the child, or a file server did not answer. */
static bool was_interrupted(int sig)
{
	return sig == SIGKILL || sig == SIGALRM || sig == SIGSTOP || sig == SIGTERM;
}

/* Sets the error of a file that harmed the child. */
static int report_harm(const char *name, bool ended, int status, struct err *e)
{
	int sig = ended && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	if (was_interrupted(sig))
		return err_set(e, EX_IOERR,
			"%s: the file could not be checked: the checking process was ended by "
			"signal %d (9: too little memory? 14: no answer from the file system?)",
			name, sig);
	if (sig == SIGXCPU)
		return err_set(e, EX_DATAERR,
			"%s: the file is damaged: HDF5 %s loops on it", name,
			h5_version());
	/* (libraries may crash if they get no memory) */
	int code = ended && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	if (code == TOO_LITTLE || (code != NO_MEMORY && is_memory_limited()))
		return err_set(e, EX_IOERR,
			"%s: %s; raise the limit of the program's memory (ulimit -v)",
			name, strerror(ENOMEM));
	if (code == NO_MEMORY)
		return err_set(e, EX_DATAERR,
			"%s: the file is damaged: HDF5 %s allocates too much memory for it",
			name, h5_version());
	return err_set(e, EX_DATAERR, "%s: damaged: HDF5 %s crashes on it (%s %d)", name,
		h5_version(), sig ? "signal" : "code", sig ? sig : code);
}

/* Reads the child's report and waits for it. (There is no exit status if SIGCHLD is ignored.) */
static int wait_for_child(
	pid_t pid, int report_fd, const char *name, bool *sealed, struct err *e)
{
	unsigned char code = 0;
	int status = 0;
	ssize_t n = read_some(report_fd, &code, 1);
	pid_t ended;
	do
		ended = waitpid(pid, &status, 0);
	while (ended < 0 && errno == EINTR);
	*sealed = n == 1 && code == SEALED;
	if (*sealed || (n == 1 && code == NO_HARM))
		return 0;
	if (n == 1 && code > FAILURE)
		return err_set(e, EX_IOERR, "%s: %s", name, strerror(code - FAILURE));
	if (n == 1) /* the report is the exit code */
		ended = pid, status = code << 8;
	return report_harm(name, ended == pid, status, e);
}

/* Does not check the file if no child can be created: most files are harmless. */
int h5_probe(const char *path, const char *name, const struct stat *st, bool *sealed,
	struct err *e)
{
	int pipe_fds[2];
	double now = clock_wall();
	sigset_t all, old_mask;
	*sealed = false;
	if (was_checked(st, sealed) || pipe2(pipe_fds, O_CLOEXEC))
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old_mask);
	pid_t pid = fork();
	if (pid == 0)
		run_child(pipe_fds[1], path, name, st->st_size);
	pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
	close(pipe_fds[1]);
	int rc = pid < 0 ? 0 : wait_for_child(pid, pipe_fds[0], name, sealed, e);
	close(pipe_fds[0]);
	if (!rc && pid > 0)
		record_checked_file(st, *sealed, now);
	return rc;
}

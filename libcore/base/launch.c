/* The variables of a launcher (mpiexec, srun), before MPI starts or in programs without MPI. */
#include "base/launch.h"
#include "base/file.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Reads the variable of the innermost launcher, the first of these that is set: mpiexec may run in
 * a Slurm step, and starts its helpers as tasks of a step. Only variables count that a launcher
 * sets for the processes it starts. SLURM_NTASKS is set in every batch script and every shell of
 * salloc, where a program of one rank is legitimate; SLURM_STEP_NUM_TASKS is missing there, or 1
 * in an interactive step. A PMIx launcher does not set a size, but a rank above 0 means several.
 * PT_MPI=no disables all of this. */
const char *launch_size_variable(void)
{
	static const struct {
		const char *name;
		int one; /* its value for a single rank */
	} vars[] = {{"PMI_SIZE", 1}, {"OMPI_COMM_WORLD_SIZE", 1},
		{"SLURM_STEP_NUM_TASKS", 1}, {"PMIX_RANK", 0}};
	for (size_t i = 0; i < ARRAY_LEN(vars); i++) {
		const char *value = getenv(vars[i].name);
		if (value && *value)
			return atoi(value) > vars[i].one && env_switch("PT_MPI") != 0
				       ? vars[i].name
				       : NULL;
	}
	return NULL;
}

int launch_rank(void)
{
	static const char *const vars[] = {"PMI_RANK", "PMI_ID", "PMIX_RANK",
		"OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
	for (size_t i = 0; i < ARRAY_LEN(vars); i++)
		if (getenv(vars[i]))
			return atoi(getenv(vars[i]));
	return 0;
}

void launch_leave_report_to_first(int code)
{
	enum { MOMENT_SECS = 1 };
	if (!launch_rank())
		return;
	sleep(MOMENT_SECS); /* Open MPI kills all when one exits: rank 0 reports first */
	exit(code);
}

/* Returns true if the launcher has closed the socket through which MPI talks to it. */
static bool launcher_has_closed(const char *socket)
{
	struct pollfd p = {.fd = socket ? atoi(socket) : -1};
	return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR));
}

/* The signal that Linux sends when the launcher ends; otherwise unused. */
#define LAUNCHER_ENDED (SIGRTMAX - 5)

static pid_t launcher;
static volatile sig_atomic_t ends_by_sigterm; /* set by launch_end_by_sigterm() */

bool launch_has_ended(void)
{
	return launcher && getppid() != launcher;
}

/* Exits at once if the launcher has ended. (Linux signals even the end of one of its threads.) */
static void on_launcher_end(int sig)
{
	int saved = errno;
	(void)sig;
	if (launch_has_ended() && !ends_by_sigterm) {
		cleanup_run();
		_exit(EX_FAILED);
	}
	if (launch_has_ended())
		kill(getpid(), SIGTERM);
	errno = saved;
}

/* Requests a signal when the launcher ends: MPI would wait forever for ranks that never start. */
void launch_watch(void)
{
	const char *socket = getenv("PMI_FD");
	struct sigaction a = {.sa_handler = on_launcher_end, .sa_flags = SA_RESTART};
	sigset_t launcher_ended;
	if (!socket && !getenv("PMI_PORT") && !getenv("PMIX_RANK"))
		return;
	launcher = getppid();
	sigemptyset(&a.sa_mask);
	sigemptyset(&launcher_ended);
	sigaddset(&launcher_ended, LAUNCHER_ENDED);
	sigaction(LAUNCHER_ENDED, &a, NULL);
	sigprocmask(SIG_UNBLOCK, &launcher_ended, NULL);
	prctl(PR_SET_PDEATHSIG, LAUNCHER_ENDED);
	if (getppid() != launcher || launcher_has_closed(socket))
		die(EX_FAILED, "the launcher (mpiexec, srun) ended while this rank was "
			       "starting");
}

/* Notifies hydra by its protocol, PMI 1, that this rank ends regularly, as MPI_Finalize() does. */
bool launch_finalize(void)
{
	static const char request[] = "cmd=finalize\n";
	const char *socket = getenv("PMI_FD");
	char c = 0;
	if (!socket || write(atoi(socket), request, sizeof(request) - 1) < 0)
		return false;
	while (c != '\n' && read(atoi(socket), &c, 1) == 1) /* the answer */
		;
	return true;
}

void launch_end_by_sigterm(bool by_sigterm)
{
	ends_by_sigterm = by_sigterm;
}

/* ---- files that MPICH leaves in shared memory ------------------------------------ */

/* Prefixes of the file names of MPICH and UCX. */
static const char *const prefixes[] = {"mpich_shar_tmp", "ucx_shm_posix_"};

/* Returns true if /proc shows all processes that may use a file: a container must have its own
 * shared memory, or show the host's processes. (The numbers are Linux's first namespaces.) */
static bool users_are_visible(void)
{
	char pid[32] = "", ipc[32] = "";
	return readlink("/proc/self/ns/pid", pid, sizeof(pid) - 1) > 0 &&
	       readlink("/proc/self/ns/ipc", ipc, sizeof(ipc) - 1) > 0 &&
	       (!strcmp(pid, "pid:[4026531836]") || strcmp(ipc, "ipc:[4026531839]"));
}

/* Appends the paths of a process's mappings and open files. Returns -1 with errno set: unreadable.
 */
static int list_used(const char *process, struct str *out)
{
	enum { MAX_MAPS = 1 << 26 };
	char path[300], target[512];
	snprintf(path, sizeof(path), "/proc/%s/maps", process);
	if (file_read(path, MAX_MAPS, out, &(struct err){0}))
		return -1;
	snprintf(path, sizeof(path), "/proc/%s/fd", process);
	scoped_dir *d = opendir(path);
	for (struct dirent *f; d && (f = readdir(d));) {
		ssize_t n = readlinkat(dirfd(d), f->d_name, target, sizeof(target));
		if (n > 0)
			str_printf(out, "%.*s\n", (int)n, target);
	}
	return d ? 0 : -1;
}

/* Clears the names of files that a process uses, or may use: a process of this user that cannot be
 * inspected, except init. (Only the owner can read the files.) */
static void clear_used_names(struct strs *files)
{
	scoped_dir *d = opendir("/proc");
	for (struct dirent *p; d && (p = readdir(d));) {
		scoped_str used = {0};
		struct stat st;
		if (!isdigit((unsigned char)p->d_name[0]))
			continue;
		bool may_use = list_used(p->d_name, &used) && errno == EACCES &&
			       strcmp(p->d_name, "1") != 0 &&
			       !fstatat(dirfd(d), p->d_name, &st, 0) &&
			       st.st_uid == geteuid();
		for (int64_t i = 0; i < files->n; i++)
			if (may_use || (used.s && strstr(used.s, files->v[i])))
				files->v[i][0] = '\0';
	}
	if (!d)
		strs_free(files);
}

void launch_remove_leftovers(const char *directory)
{
	/* MPICH and UCX remove their files as soon as all ranks have opened them, by default */
	enum { SETTLED_SECS = 60 };
	scoped_strs files = {0};
	scoped_dir *d = users_are_visible() ? opendir(directory) : NULL;
	for (struct dirent *f; d && (f = readdir(d));) {
		char path[512];
		struct stat st;
		bool is_mpi = false;
		for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
			is_mpi |= !strncmp(f->d_name, prefixes[i], strlen(prefixes[i]));
		snprintf(path, sizeof(path), "%s/%s", directory, f->d_name);
		if (is_mpi && !lstat(path, &st) && S_ISREG(st.st_mode) &&
			st.st_uid == geteuid() && !(st.st_mode & 077) &&
			time(NULL) - st.st_mtime >= SETTLED_SECS)
			strs_add(&files, path);
	}
	if (files.n)
		clear_used_names(&files);
	for (int64_t i = 0; i < files.n; i++)
		if (*files.v[i] && !unlink(files.v[i]))
			info("removed %s, which MPI left when a job was killed",
				files.v[i]);
}

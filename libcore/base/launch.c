/* What the variables of a launcher (mpiexec, srun) say, before MPI runs or in programs without it. */
#include "base/file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * The first of these variables that is set is the innermost launcher's: mpiexec may run in a step of
 * Slurm, and starts its helpers as tasks of one. Only variables that a launcher sets for what it starts
 * count. SLURM_NTASKS is set in every batch script and every shell of salloc, where a program of one
 * rank is legitimate; SLURM_STEP_NUM_TASKS is missing there, or 1 in an interactive step. A launcher of
 * PMIx sets no size, but every rank above 0 is one of several.
 */
const char *launch_many(void)
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

/* Has the launcher, at the other end of the socket through which MPI asks it, gone? */
static bool launcher_gone(const char *socket)
{
	struct pollfd p = {.fd = socket ? atoi(socket) : -1};
	return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR));
}

/* The signal that Linux sends then: one that nobody else uses. */
#define LAUNCHER_ENDED (SIGRTMAX - 5)

static pid_t launcher;
static volatile sig_atomic_t stops; /* launch_stops() */

bool launch_over(void)
{
	return launcher && getppid() != launcher;
}

/* Linux sends the signal when the thread that started this process ends: its process may go on. */
static void on_end(int sig)
{
	int saved = errno;
	(void)sig;
	if (launch_over() && !stops) {
		cleanup_run();
		_exit(EX_FAILED);
	}
	if (launch_over())
		kill(getpid(), SIGTERM);
	errno = saved;
}

/* MPI waits for ever for ranks that nobody starts any more. */
void launch_bind(void)
{
	const char *socket = getenv("PMI_FD");
	struct sigaction a = {.sa_handler = on_end, .sa_flags = SA_RESTART};
	sigset_t it;
	if (!socket && !getenv("PMI_PORT") && !getenv("PMIX_RANK"))
		return;
	launcher = getppid();
	sigemptyset(&a.sa_mask);
	sigemptyset(&it);
	sigaddset(&it, LAUNCHER_ENDED);
	sigaction(LAUNCHER_ENDED, &a, NULL);
	sigprocmask(SIG_UNBLOCK, &it, NULL);
	prctl(PR_SET_PDEATHSIG, LAUNCHER_ENDED);
	if (getppid() != launcher || launcher_gone(socket))
		die(EX_FAILED, "the launcher (mpiexec, srun) ended while this rank was "
			       "starting");
}

/* As MPI_Finalize() tells hydra, whose protocol is PMI 1, that a rank ends in order. */
bool launch_leave(void)
{
	static const char leaves[] = "cmd=finalize\n";
	const char *socket = getenv("PMI_FD");
	char c = 0;
	if (!socket || write(atoi(socket), leaves, sizeof(leaves) - 1) < 0)
		return false;
	while (c != '\n' && read(atoi(socket), &c, 1) == 1) /* the answer */
		;
	return true;
}

void launch_stops(bool yes)
{
	stops = yes;
}

/* ---- what MPICH leaves in shared memory ------------------------------------------ */

/* Does a process have this file in its memory? */
static bool is_mapped(const char *path)
{
	enum { MOST = 1 << 26 };
	DIR *d = opendir("/proc");
	bool found = !d; /* then nobody knows */
	for (struct dirent *p; d && !found && (p = readdir(d));) {
		scoped_str maps = {0};
		char name[300];
		snprintf(name, sizeof(name), "/proc/%s/maps", p->d_name);
		if (isdigit((unsigned char)p->d_name[0]) &&
			!file_read(name, MOST, &maps, &(struct err){0}))
			found = maps.s && strstr(maps.s, path);
	}
	if (d)
		closedir(d);
	return found;
}

void launch_clear(const char *folder)
{
	/* MPICH removes its own as soon as all ranks have it. A process of another container may
	 * have it, too, and not be seen. */
	enum { SETTLED_SECS = 60 };
	static const char begin[] = "mpich_shar_tmp";
	DIR *d = opendir(folder);
	for (struct dirent *f; d && (f = readdir(d));) {
		char path[512];
		struct stat st;
		if (strncmp(f->d_name, begin, sizeof(begin) - 1))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, f->d_name);
		if (!lstat(path, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
			time(NULL) - st.st_mtime >= SETTLED_SECS && !is_mapped(path) &&
			!unlink(path))
			info("%s: removed: MPI left it there when a job was killed",
				path);
	}
	if (d)
		closedir(d);
}

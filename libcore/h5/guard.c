/*
 * The second line behind probe.c. Where HDF5 (1.10) reads beyond a piece of memory, what lies
 * there decides whether it dies; so it may die in the parent of what the child survived. While
 * a foreign file is open, a fault outside this program's own text is the file's.
 */
#include "base/file.h"
#include "h5/impl.h"

#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

/* The linker's: this program's own text. */
extern const char __executable_start[], etext[];

static const int faults[] = {SIGSEGV, SIGFPE, SIGILL};
static struct sigaction before[ARRAY_LEN(faults)];
static int n_open;
static char line[1024]; /* what will be said */

/* Unknown processors have no second line. */
static bool is_ours(const ucontext_t *c)
{
	uintptr_t at = 0;
#if defined(__x86_64__)
	at = (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	at = (uintptr_t)c->uc_mcontext.pc;
#else
	(void)c;
#endif
	return !at || (at >= (uintptr_t)__executable_start && at < (uintptr_t)etext);
}

/* Calls only what a signal handler may. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)info;
	signal(sig, SIG_DFL);
	if (is_ours(context)) { /* it comes again when the handler has returned */
		return;
	}
	cleanup_run();
	if (write_all(STDERR_FILENO, line, strlen(line)))
		_exit(EX_DATAERR); /* there is nobody left to tell */
	_exit(EX_DATAERR);
}

void h5_guard(const char *name)
{
	struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	snprintf(line, sizeof(line), "pt: %.900s: damaged: HDF5 %s dies of it\n", name,
		h5_version());
	if (n_open++)
		return;
	sigemptyset(&a.sa_mask);
	for (size_t i = 0; i < ARRAY_LEN(faults); i++)
		/* who looks at faults already, such as a sanitizer, is left to it */
		if (!sigaction(faults[i], NULL, &before[i]) &&
			before[i].sa_handler == SIG_DFL)
			sigaction(faults[i], &a, NULL);
}

void h5_unguard(void)
{
	if (--n_open)
		return;
	for (size_t i = 0; i < ARRAY_LEN(faults); i++)
		if (before[i].sa_handler == SIG_DFL)
			signal(faults[i], SIG_DFL);
}

/*
 * The second line of defence after probe.c. If HDF5 (1.10) reads beyond an allocation, the memory
 * there decides whether it crashes, so it may crash in the parent although the child survived.
 * While a file is open for reading, a fault outside of this program's text section is reported as
 * damage of that file.
 */
#include "base/file.h"
#include "h5/h5_internal.h"

#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

/* Defined by the linker: the program's text section. */
extern const char __executable_start[], etext[];

static const int faults[] = {SIGSEGV, SIGFPE, SIGILL};
static struct sigaction before[ARRAY_LEN(faults)];
static int n_open;
static char line[1024]; /* the message */

/* On other processors, all faults count as faults of this program. */
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

/* Calls async-signal-safe functions only. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)info;
	signal(sig, SIG_DFL);
	if (is_ours(context)) { /* the fault recurs when the handler returns */
		return;
	}
	cleanup_run();
	if (write_all(STDERR_FILENO, line, strlen(line)))
		_exit(EX_DATAERR); /* the write error cannot be reported */
	_exit(EX_DATAERR);
}

void h5_guard(const char *name)
{
	struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	snprintf(line, sizeof(line), "pt: %.900s: damaged: HDF5 %s crashes on it\n", name,
		h5_version());
	if (n_open++)
		return;
	sigemptyset(&a.sa_mask);
	for (size_t i = 0; i < ARRAY_LEN(faults); i++)
		/* an existing handler, such as a sanitizer's, stays */
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

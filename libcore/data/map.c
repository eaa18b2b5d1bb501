/* Mapped files, and the handling of files that are truncated while they are mapped. */
#include "base/file.h"
#include "data/data.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The name of a mapped range. Entries are reused but never freed, because the signal handler may
 * read them at any time, in any thread. */
struct map_name {
	struct map_name *next;
	char *begin, *end; /* equal: unused */
	char *text;
};

static struct map_name *names;

static const struct map_name *find_name(const char *at)
{
	const struct map_name *n = __atomic_load_n(&names, __ATOMIC_ACQUIRE);
	while (n && (at < n->begin || at >= n->end))
		n = n->next;
	return n;
}

/* Where a thread continues after an access beyond the end of a file. */
struct way_out {
	sigjmp_buf jump;
	const struct map_name *volatile lost;
};

static _Thread_local struct way_out *way_out;

/* Calls async-signal-safe functions only. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	static const char what[] = " became shorter while it was read\n";
	char line[1024] = "pt: ";
	(void)context;
	const struct map_name *n =
		info->si_code == BUS_ADRERR ? find_name(info->si_addr) : NULL;
	if (n && way_out) {
		way_out->lost = n;
		siglongjmp(way_out->jump, 1);
	}
	cleanup_run();
	if (!n) { /* not a mapped file */
		signal(sig, SIG_DFL);
		raise(sig);
		return;
	}
	size_t at = strlen(line), room = sizeof(line) - at - sizeof(what);
	size_t len = strlen(n->text) < room ? strlen(n->text) : room;
	memcpy(line + at, n->text, len);
	memcpy(line + at + len, what, sizeof(what));
	if (write_all(STDERR_FILENO, line, strlen(line)))
		_exit(EX_IOERR); /* the write error cannot be reported */
	_exit(EX_IOERR);
}

int map_touch(int (*fn)(void *with, struct err *e), void *with, struct err *e)
{
	struct way_out here = {.lost = NULL};
	BUG_ON(way_out);
	way_out = &here;
	volatile int rc = -1;
	if (sigsetjmp(here.jump, 0) == 0)
		rc = fn(with, e);
	way_out = NULL;
	return here.lost ? err_set(e, EX_IOERR, "%s became shorter while it was read",
				   here.lost->text)
			 : rc;
}

static struct map_name *name_range(const struct map *m, const char *text)
{
	struct map_name *n = names;
	while (n && n->begin != n->end)
		n = n->next;
	bool fresh = !n;
	if (fresh)
		n = xcalloc(1, sizeof(*n));
	free(n->text);
	n->text = xstrdup(text);
	n->begin = m->p;
	__atomic_store_n(&n->end, m->p + m->n_bytes, __ATOMIC_RELEASE);
	if (fresh) {
		n->next = names;
		__atomic_store_n(&names, n, __ATOMIC_RELEASE);
	}
	return n;
}

int map_open(struct map *m, int fd, size_t n_bytes, const char *name, struct err *e)
{
	/* SA_NODEFER, because the handler may leave by siglongjmp. */
	struct sigaction a = {
		.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};
	void *p = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
	*m = (struct map){0};
	if (p == MAP_FAILED)
		return err_set(e, EX_IOERR, "%s: %s", name, strerror(errno));
	*m = (struct map){.p = p, .n_bytes = n_bytes};
	m->name = name_range(m, name);
	sigemptyset(&a.sa_mask);
	sigaction(SIGBUS, &a, NULL);
	return 0;
}

void map_close(struct map *m)
{
	if (!m->p)
		return;
	munmap(m->p, m->n_bytes);
	m->name->end = m->name->begin;
	*m = (struct map){0};
}

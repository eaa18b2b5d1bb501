/* A progress bar on stderr, if stderr is a terminal. */
#include "base/progress.h"
#include "base/base.h"

#include <math.h>
#include <unistd.h>

enum { BAR_CHARS = 32 };

void progress_begin(struct progress *p, const char *title, double total)
{
	*p = (struct progress){.title = title, .total = total, .start = clock_seconds()};
	p->shown = isatty(STDERR_FILENO) && log_is_enabled();
}

double progress_secs_left(const struct progress *p, double done)
{
	double part = p->total > p->first ? (done - p->first) / (p->total - p->first) : 1;
	return part > 0 ? (clock_seconds() - p->start) * fmax(0, 1 - part) / part : 0;
}

void progress_update(struct progress *p, double done, const char *note)
{
	double now = clock_seconds();
	bool is_last = done >= p->total;
	if (!p->shown || (now - p->last < 0.1 && !is_last))
		return;
	p->last = now;
	double fraction = p->total > 0 ? done / p->total : 1;
	fraction = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
	int n_full = (int)(fraction * BAR_CHARS);
	char bar[BAR_CHARS + 1];
	memset(bar, '.', BAR_CHARS);
	memset(bar, '#', (size_t)n_full);
	bar[BAR_CHARS] = '\0';
	fprintf(stderr, "\r%s [%s] %3.0f %% %4.0f s left %s\033[K", p->title, bar,
		100 * fraction, progress_secs_left(p, done), note ? note : "");
	fflush(stderr);
}

void progress_end(struct progress *p)
{
	if (p->shown && p->last > 0)
		fprintf(stderr, "\r\033[K");
	p->shown = false;
}

/* A progress bar on stderr, if stderr is a terminal. */
#include "base/progress.h"
#include "base/base.h"

#include <math.h>
#include <unistd.h>

enum { WIDTH = 32 };

void progress_begin(struct progress *p, const char *title, double total)
{
	*p = (struct progress){.title = title, .total = total, .start = clock_seconds()};
	p->shown = isatty(STDERR_FILENO) && log_speaks();
}

double progress_left(const struct progress *p, double done)
{
	double part = p->total > p->first ? (done - p->first) / (p->total - p->first) : 1;
	return part > 0 ? (clock_seconds() - p->start) * fmax(0, 1 - part) / part : 0;
}

void progress_update(struct progress *p, double done, const char *note)
{
	double now = clock_seconds();
	bool last = done >= p->total;
	if (!p->shown || (now - p->last < 0.1 && !last))
		return;
	p->last = now;
	double part = p->total > 0 ? done / p->total : 1;
	part = part < 0 ? 0 : part > 1 ? 1 : part;
	int full = (int)(part * WIDTH);
	char bar[WIDTH + 1];
	memset(bar, '.', WIDTH);
	memset(bar, '#', (size_t)full);
	bar[WIDTH] = '\0';
	fprintf(stderr, "\r%s [%s] %3.0f %% %4.0f s left %s\033[K", p->title, bar,
		100 * part, progress_left(p, done), note ? note : "");
	fflush(stderr);
}

void progress_end(struct progress *p)
{
	if (p->shown && p->last > 0)
		fprintf(stderr, "\r\033[K");
	p->shown = false;
}

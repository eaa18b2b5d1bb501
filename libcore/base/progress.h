/* A progress bar on a terminal (progress.c). */
#pragma once

#include <stdbool.h>

struct progress {
	const char *title;
	double total, first, start,
		last; /* work: all, before a resume; clock: begin, update */
	bool shown;
};

void progress_begin(struct progress *p, const char *title, double total);
double progress_secs_left(const struct progress *p, double done); /* estimated seconds */
void progress_update(struct progress *p, double done, const char *note);
void progress_end(struct progress *p);

/* A progress bar on a terminal (progress.c). */
#pragma once

#include <stdbool.h>

struct progress {
	const char *title;
	double total, start, last, first; /* first: steps done before a resume */
	bool shown;
};

void progress_begin(struct progress *p, const char *title, double total);
double progress_left(const struct progress *p, double done); /* seconds */
void progress_update(struct progress *p, double done, const char *note);
void progress_end(struct progress *p);

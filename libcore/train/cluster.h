/* cluster: the GPUs and links for which --dry-run predicts the time of a step (--cluster). */
#ifndef TRAIN_CLUSTER_H
#define TRAIN_CLUSTER_H

#include "comm/simulate.h"
#include "kernels/device.h"

struct cluster {
	const char *name;  /* as in the option */
	const char *model; /* of the GPU, for device_peak() */
	struct simulated_links links;
	double memory;	   /* of the GPU, bytes per second */
	double efficiency; /* of matmuls and attention: their rate over the peak */
};

/* Parses "NAME,KEY=VALUE,...": a row of the table, some of whose values are replaced. */
int cluster_parse(const char *text, struct cluster *c, struct err *e);
/* Its values, as such a text. */
void cluster_print(const struct cluster *c, struct str *out);

#endif

/* cluster: the devices and links for which --dry-run predicts the time of a step (--cluster). */
#pragma once

#include "comm/simulate.h"
#include "kernels/device.h"

struct cluster {
	const char *name;  /* as in the option */
	const char *model; /* GPU model for device_peak(); "": a CPU */
	struct simulated_links links;
	double memory; /* bandwidth of the device's memory, bytes per second */
	double pcie; /* bandwidth to and from host memory, bytes per second; 0: unknown */
	double efficiency; /* rate of matmuls and attention over the peak */
	double attention;  /* rate of attention over the peak; 0: as `efficiency` */
	double experts; /* rate of the matmuls of experts over the peak; 0: as `efficiency` */
	double flops; /* peak FLOP/s of a GPU or a core; 0: as in the data sheet */
	int cores; /* cores per host, shared by its ranks; 0: a rank has its own device */
	int64_t capacity; /* bytes of memory that a rank can use; 0: unknown */
};

/* Parses "NAME,KEY=VALUE,...": a row of the table, with other values for some keys. */
int cluster_parse(const char *text, struct cluster *c, struct err *e);
/* Returns the peak FLOP/s of a matmul of `type` on a rank; `ranks`: per host, also below. */
double cluster_peak(const struct cluster *c, enum dtype type, bool exact, int ranks);
/* Returns the fraction of the time that a rank can compute: less than 1 if ranks share cores. */
double cluster_compute_fraction(const struct cluster *c, int ranks);
/* Returns true if all values, except gpus, attention and experts, are the table's values for c->name. */
bool cluster_is_unmodified(const struct cluster *c);
/* Prints the cluster as "NAME,KEY=VALUE,...". */
void cluster_print(const struct cluster *c, struct str *out);

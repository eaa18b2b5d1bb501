/* cluster: the devices and links for which --dry-run predicts the time of a step (--cluster). */
#pragma once

#include "comm/simulate.h"
#include "kernels/device.h"

struct cluster {
	const char *name;  /* as in the option */
	const char *model; /* of the GPU, for device_peak(); "": a CPU */
	struct simulated_links links;
	double memory; /* of the GPU, bytes per second */
	double pcie;   /* to and from the host's memory, bytes per second; 0: not known */
	double efficiency; /* of matmuls and attention: their rate over the peak */
	double attention;  /* the same of attention; 0: as matmuls */
	double flops; /* the peak, per second, of a GPU or a core; 0: of the data sheet */
	int cores;    /* of a host, that its ranks share; 0: a rank has its own device */
	int64_t capacity; /* bytes of memory that a rank can use; 0: not known */
};

/* Parses "NAME,KEY=VALUE,...": a row of the table, some of whose values are replaced. */
int cluster_parse(const char *text, struct cluster *c, struct err *e);
/* The FLOP/s of a matmul with operands of that type on a rank of such a host with `here` ranks. */
double cluster_peak(const struct cluster *c, enum dtype type, bool exact, int here);
/* The part of its time that such a rank can compute: less than 1 if it shares a core. */
double cluster_share(const struct cluster *c, int here);
/* Are its rates, latencies and cores those that its name alone has, but for that of attention, which is the program's? */
bool cluster_is_of_table(const struct cluster *c);
/* Its values, as such a text. */
void cluster_print(const struct cluster *c, struct str *out);

/* The links of a cluster as pt-collbench measured them, for pt-plan. */
#pragma once

#include "plan/cluster.h"

/* Sets latencies and bandwidths of the links from the fits in a result of pt-collbench, of the library with
 * which training communicates. Warns about a link that was not measured and is used by so many hosts. */
int network_measured(struct cluster *c, int hosts, const char *path, struct err *e);

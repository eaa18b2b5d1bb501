/* The links of a cluster as pt-collbench measured them, for pt-plan. */
#pragma once

#include "plan/cluster.h"

/* Sets latencies and bandwidths of the links from the fits in a result of pt-collbench, for the
 * library that training uses. Warns about links that were not measured and that this number of
 * hosts uses. */
int network_read(struct cluster *c, int hosts, const char *path, struct err *e);

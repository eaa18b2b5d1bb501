/* The launcher of this process (launch.c): the rank from its variables, and its end. */
#pragma once

#include <stdbool.h>

const char *launch_many(void); /* the variable that specifies several ranks, or NULL */
int launch_rank(void);	       /* this process's rank; 0 without a launcher */
/* Makes this rank end with its launcher; after launch_stops(true) by SIGTERM, for its handler. */
void launch_bind(void);
void launch_stops(bool yes);
bool launch_over(void);	 /* returns true if the launcher has ended */
bool launch_leave(void); /* instead of MPI_Finalize(); false: the launcher has no PMI 1 */
void launch_clear(const char *directory); /* removes what MPI left in shared memory */

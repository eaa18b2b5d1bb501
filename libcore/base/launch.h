/* The variables of a launcher (launch.c): which rank this process is, and when the launcher has ended. */
#pragma once

#include <stdbool.h>

const char *launch_many(void); /* the variable that states several ranks, or NULL */
int launch_rank(void);	       /* this rank's number; 0 without a launcher */
/* A rank ends with its launcher; after launch_stops(true) by SIGTERM, for its handler. */
void launch_bind(void);
void launch_stops(bool yes);
bool launch_over(void);	 /* has it ended? */
bool launch_leave(void); /* instead of MPI_Finalize(); false: it does not speak PMI 1 */
void launch_clear(const char *folder); /* removes what MPI left in shared memory */

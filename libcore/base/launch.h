/* The launcher of this process (launch.c): the rank from its variables, and its end. */
#pragma once

#include <stdbool.h>

const char *launch_size_variable(
	void);	       /* the variable that specifies several ranks, or NULL */
int launch_rank(void); /* this process's rank; 0 without a launcher */
/* Reports of errors that all ranks have: returns on rank 0, which reports it; other ranks exit. */
void launch_leave_report_to_first(int code);
/* Makes this rank end with its launcher; after launch_stops(true) by SIGTERM, for its handler. */
void launch_bind(void);
void launch_stops(bool yes);
bool launch_has_ended(void); /* returns true if the launcher has ended */
bool launch_finalize(
	void); /* instead of MPI_Finalize(); false: the launcher has no PMI 1 */
void launch_clear(const char *directory); /* removes what MPI left in shared memory */

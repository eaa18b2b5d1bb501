/* The launcher of this process (launch.c): the rank from its variables, and its end. */
#pragma once

#include <stdbool.h>

/* Returns the name of the environment variable that specifies several ranks, or NULL. */
const char *launch_size_variable(void);
int launch_rank(void); /* this process's rank; 0 without a launcher */
/* Returns on rank 0, which reports an error that all ranks have; ends the other ranks with the code. */
void launch_leave_report_to_first(int code);
/* Makes this rank exit when its launcher ends, or after launch_end_by_sigterm(true) raise SIGTERM. */
void launch_watch(void);
void launch_end_by_sigterm(bool by_sigterm);
bool launch_has_ended(void); /* true if the launcher has ended */
/* Ends this rank regularly for hydra, as MPI_Finalize() does. False: the launcher lacks PMI 1. */
bool launch_finalize(void);
void launch_remove_leftovers(
	const char *directory); /* removes files that MPI left in /dev/shm */

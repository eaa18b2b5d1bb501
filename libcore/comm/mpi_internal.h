/* Shared by the files of the MPI transport only. */
#pragma once

#include "comm/comm_internal.h"

#include <mpi.h>

/* mpi_ops.c: MPI's types and operations, and our own where MPI has none. MPI must be running. */
int mpi_ops_create(void); /* MPI_SUCCESS, or MPI's error */
void mpi_ops_free(void);
MPI_Datatype mpi_type(enum comm_type t);
MPI_Op mpi_op(enum comm_op op, enum comm_type t);

/* mpi.c: makes progress on requests in flight. */
void mpi_progress(struct comm *world);

/* progress.c: a thread must hold the lock to call MPI. Blocking calls hold it until they are
 * complete, since they make progress on other requests too. */
void mpi_lock(void);
void mpi_unlock(void);
/* Adds to the number of request handles in flight. */
void mpi_count_handles(int more);
void mpi_progress_end(void); /* ends the thread, if it runs */

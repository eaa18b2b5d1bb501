/* Shared by the files of the MPI transport only. */
#pragma once

#include "comm/comm_internal.h"

#include <mpi.h>

/* mpi_ops.c: MPI's types and operations, and our own where MPI has none. MPI has started. */
int mpi_ops_create(void); /* MPI_SUCCESS, or MPI's error */
void mpi_ops_free(void);
MPI_Datatype mpi_type(enum comm_type t);
MPI_Op mpi_op(enum comm_op op, enum comm_type t);

/* mpi.c: makes progress on requests in flight. */
void mpi_progress(struct comm *world);

/* progress.c: a thread that has the lock may call MPI. It is held until a blocking call is complete, since that makes
 * progress itself, for other requests too. */
void mpi_lock(void);
void mpi_unlock(void);
/* So many more handles of requests are under way. */
void mpi_count_handles(int more);
void mpi_progress_end(void); /* of the thread, if there is one */

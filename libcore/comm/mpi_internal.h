/* Shared by the files of the MPI transport only. */
#ifndef COMM_MPI_INTERNAL_H
#define COMM_MPI_INTERNAL_H

#include "comm/comm_internal.h"

#include <mpi.h>

/* mpi_ops.c: MPI's types and operations, and our own where MPI has none. MPI has started. */
int mpi_ops_create(void); /* MPI_SUCCESS, or MPI's error */
void mpi_ops_free(void);
MPI_Datatype mpi_type(enum comm_type t);
MPI_Op mpi_op(enum comm_op op, enum comm_type t);

#endif

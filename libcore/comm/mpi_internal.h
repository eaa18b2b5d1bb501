/* Shared by the files of the MPI transport only. */
#pragma once

#include "comm/comm_internal.h"

#include <mpi.h>

/* mpi_library.c: the functions of MPI that pt calls, as in mpi.Test(). The table is filled at run time:
 * programs start without MPI's library, and a single rank never loads it. */
/* clang-format off */
#define MPI_FUNCTIONS(FN) \
	FN(Abort) FN(Allgather_c) FN(Allreduce_c) FN(Alltoall_c) FN(Barrier) \
	FN(Bcast_c) FN(Comm_create_group) FN(Comm_free) FN(Comm_group) \
	FN(Comm_idup) FN(Comm_rank) FN(Comm_set_errhandler) FN(Comm_size) \
	FN(Error_string) FN(Finalize) FN(Gather_c) FN(Get_library_version) \
	FN(Get_version) FN(Group_free) FN(Group_incl) FN(Iallgather_c) \
	FN(Iallreduce_c) FN(Ialltoall_c) FN(Ibarrier) FN(Ibcast_c) \
	FN(Igather_c) FN(Init_thread) FN(Iprobe) FN(Irecv_c) FN(Ireduce_c) \
	FN(Ireduce_scatter_block_c) FN(Iscatter_c) FN(Isend_c) FN(Op_create_c) \
	FN(Op_free) FN(Recv_c) FN(Reduce_c) FN(Reduce_scatter_block_c) \
	FN(Scatter_c) FN(Send_c) FN(Sendrecv_c) FN(Test) FN(Type_commit) \
	FN(Type_contiguous) FN(Type_free) FN(Type_size)
/* clang-format on */

struct mpi_functions {
#define MPI_FUNCTION_POINTER(name) __typeof__(MPI_##name) *name;
	MPI_FUNCTIONS(MPI_FUNCTION_POINTER)
#undef MPI_FUNCTION_POINTER
};
extern struct mpi_functions mpi;
/* Fills the table from PT_MPI_LIBRARY, or from the first library found. -1 with *e set on failure. */
int mpi_library_open(struct err *e);
bool mpi_library_is_open(void); /* returns true if the table is filled */

/* Creates MPI's types and operations that MPI lacks (mpi_ops.c). MPI must be running. Returns
 * MPI_SUCCESS or MPI's error. */
int mpi_ops_create(void);
void mpi_ops_free(void);
MPI_Datatype mpi_type(enum comm_type t);
MPI_Op mpi_op(enum comm_op op, enum comm_type t);

/* Makes progress on requests in flight (mpi.c). */
void mpi_progress(struct comm *world);

/* Takes the lock that a thread must hold to call MPI (progress.c). Blocking calls hold it until
 * they are complete, since they make progress on other requests too. */
void mpi_lock(void);
void mpi_unlock(void);
/* Adds to the number of request handles in flight. */
void mpi_count_handles(int more);
void mpi_progress_end(void); /* ends the thread, if it runs */

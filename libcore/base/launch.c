/* What the variables of a launcher (mpiexec, srun) say, before MPI runs or in programs without it. */
#include "base/base.h"

#include <stdlib.h>

bool launch_many(void)
{
	static const char *const vars[] = {
		"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};
	for (size_t i = 0; i < ARRAY_LEN(vars); i++)
		if (getenv(vars[i]) && atoi(getenv(vars[i])) > 1)
			return env_switch("PT_MPI") != 0;
	return false;
}

int launch_rank(void)
{
	static const char *const vars[] = {"PMI_RANK", "PMI_ID", "PMIX_RANK",
		"OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
	for (size_t i = 0; i < ARRAY_LEN(vars); i++)
		if (getenv(vars[i]))
			return atoi(getenv(vars[i]));
	return 0;
}

/* Loading MPI. pt is compiled with MPICH's header, so the library must have MPICH's ABI: MPICH 4.0 or
 * later, or a library derived from it. Open MPI, and the standard ABI of MPI 5 (libmpi_abi.so), have
 * other handles. */
#include "base/file.h"
#include "comm/mpi_internal.h"

#include <dlfcn.h>

struct mpi_functions mpi;
static bool is_open;

bool mpi_library_is_open(void)
{
	return is_open;
}

/* Returns -1 with *e set if the library's handles are not MPICH's. */
static int check_abi(void *library, const char *path, struct err *e)
{
	char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
	int len, major = -1, minor = -1;
	__typeof__(MPI_Get_library_version) *get_version;
	int (*get_abi)(
		int *, int *); /* -1 if the library does not have the standard ABI */
	void *version = dlsym(library, "MPI_Get_library_version");
	void *abi = dlsym(library, "MPI_Abi_get_version");
	memcpy(&get_version, &version, sizeof(version));
	memcpy(&get_abi, &abi, sizeof(abi));
	if (version)
		get_version(text, &len);
	text[strcspn(text, "\n,")] = '\0';
	if (!version || dlsym(library, "ompi_mpi_comm_world"))
		return err_set(e, EX_FAILED, "%s is %s; pt needs MPICH", path,
			version ? text : "not an MPI library");
	if (get_abi && get_abi(&major, &minor) == MPI_SUCCESS && major >= 0)
		return err_set(e, EX_FAILED,
			"%s has the standard ABI of MPI 5; pt needs MPICH's own, libmpi.so.12",
			path);
	return 0;
}

/* Sets the function pointers in `mpi` from a library. Fails if a function is missing. */
static int load_functions(void *library, const char *path, struct err *e)
{
	void *symbol;
#define LOAD(name)                                           \
	if (!(symbol = dlsym(library, "MPI_" #name)))        \
		return err_set(e, EX_FAILED,                 \
			"%s has no function MPI_" #name "; " \
			"pt needs MPICH 4.0 or later",       \
			path);                               \
	memcpy(&mpi.name, &symbol, sizeof(symbol));
	MPI_FUNCTIONS(LOAD)
#undef LOAD
	return 0;
}

/* Loads one library. MPICH's libraries may install signal handlers (UCX does); comm_open_mpi()
 * restores the program's. */
static int open_library(const char *path, struct err *e)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return err_set(e, EX_FAILED, "%s", dlerror());
	if (check_abi(library, path, e) || load_functions(library, path, e)) {
		dlclose(library);
		return -1;
	}
	is_open = true;
	return 0;
}

/* `pip install mpich` and conda put MPI into ../lib if pt is in the same environment. */
int mpi_library_open(struct err *e)
{
	scoped_str near = {0};
	const char *given = getenv("PT_MPI_LIBRARY");
	struct err first = {0};
	if (is_open)
		return 0;
	const char *paths[] = {given, "libmpich.so.12", "libmpi.so.12"};
	size_t n = ARRAY_LEN(paths);
	if (given && *given)
		n = 1;
	else
		paths[0] = file_find_near_program(&near, "../lib/libmpi.so.12")
				   ? near.s
				   : paths[1];
	for (size_t i = 0; i < n; i++) {
		struct err failure = {0};
		if (!open_library(paths[i], &failure))
			return 0;
		if (!first.code)
			first = failure;
	}
	return err_set(e, EX_FAILED,
		"MPI cannot be loaded: %s; install it by `apt install mpich` or `pip install "
		"mpich`, or set PT_MPI_LIBRARY to the path of libmpich.so.12",
		first.msg);
}

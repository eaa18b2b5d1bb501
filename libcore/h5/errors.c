/* Errors of HDF5 that do not mean that the file is damaged: no memory, and failed system calls.
 * HDF5 (1.10) returns one code for all errors, so this reads its error stack. */
#include "h5/h5_internal.h"

#include <errno.h>

static struct {
	bool no_memory, ever_no_memory;
	int failure;	 /* errno value, while `file` is NULL */
	struct h5 *file; /* NULL: a file is being opened */
} noted;

/* Returns the errno value, or 0, in an error of HDF5's file driver, such as "file read failed: ...,
 * filename = 'x.h5', ..., errno = 5, error message = ...". The file name may have any text. */
static int errno_of(const H5E_error2_t *error)
{
	static const char before[] = "errno = ";
	const char *at = NULL;
	if (!error->func_name || !error->desc || !strstr(error->func_name, "sec2"))
		return 0;
	for (const char *p = error->desc; (p = strstr(p, before)); p++)
		at = p;
	int why = at ? atoi(at + strlen(before)) : 0;
	return why == EINVAL
		       ? 0
		       : why; /* EINVAL: an invalid offset or length in a damaged file */
}

static herr_t note_one(unsigned n, const H5E_error2_t *error, void *with)
{
	(void)n, (void)with;
	if (error->maj_num == H5E_RESOURCE || error->min_num == H5E_NOSPACE ||
		error->min_num == H5E_CANTALLOC)
		noted.no_memory = true;
	int why = errno_of(error);
	if (why && noted.file)
		noted.file->failure = why;
	else if (why)
		noted.failure = why;
	return 0;
}

static herr_t note_error(hid_t stack, void *with)
{
	noted.no_memory |=
		errno == ENOMEM; /* there may be no memory for the stack either */
	herr_t rc = H5Ewalk2(stack, H5E_WALK_UPWARD, note_one, with);
	noted.ever_no_memory |= noted.no_memory;
	return rc;
}

void h5_watch_errors(void)
{
	memset(&noted, 0, sizeof(noted));
	H5Eset_auto2(H5E_DEFAULT, note_error, NULL);
}

void h5_forget_errors(struct h5 *f)
{
	errno = 0;
	noted.no_memory = false;
	noted.failure = 0;
	noted.file = f;
}

void h5_stop_watching(const struct h5 *f)
{
	if (noted.file == f)
		noted.file = NULL;
}

int h5_failure(const struct h5 *f)
{
	return noted.no_memory ? ENOMEM : f ? f->failure : noted.failure;
}

bool h5_had_no_memory(void)
{
	return noted.ever_no_memory;
}

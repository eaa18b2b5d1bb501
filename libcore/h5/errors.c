/* Errors of HDF5 that do not mean that the file is damaged: no memory, and failed system calls.
 * HDF5 (1.10) returns one code for all errors, so this reads its error stack. */
#include "h5/h5_internal.h"

#include <errno.h>

static struct {
	bool no_memory, ever_no_memory;
	int failure;	 /* errno value, while `file` is NULL */
	struct h5 *file; /* NULL: a file is being opened */
} recorded;

/* Returns the errno value, or 0, in an error of HDF5's file driver, such as "file read failed: ...,
 * filename = 'x.h5', ..., errno = 5, error message = ...". The file name may have any text. */
static int parse_errno(const H5E_error2_t *error)
{
	static const char label[] = "errno = ";
	const char *at = NULL;
	if (!error->func_name || !error->desc || !strstr(error->func_name, "sec2"))
		return 0;
	for (const char *p = error->desc; (p = strstr(p, label)); p++)
		at = p;
	int why = at ? atoi(at + strlen(label)) : 0;
	return why == EINVAL ? 0 : why; /* EINVAL: an invalid offset in a damaged file */
}

/* Records lack of memory, and the errno in an entry of HDF5's error stack, for the current file. */
static herr_t record_error(unsigned n, const H5E_error2_t *error, void *context)
{
	(void)n, (void)context;
	if (error->maj_num == H5E_RESOURCE || error->min_num == H5E_NOSPACE ||
		error->min_num == H5E_CANTALLOC)
		recorded.no_memory = true;
	int why = parse_errno(error);
	if (why && recorded.file)
		recorded.file->failure = why;
	else if (why)
		recorded.failure = why;
	return 0;
}

/* Records the errors on HDF5's stack. HDF5 calls this at each failure. */
static herr_t record_errors(hid_t stack, void *context)
{
	recorded.no_memory |=
		errno == ENOMEM; /* HDF5 may lack memory for its stack, too */
	herr_t rc = H5Ewalk2(stack, H5E_WALK_UPWARD, record_error, context);
	recorded.ever_no_memory |= recorded.no_memory;
	return rc;
}

void h5_watch_errors(void)
{
	memset(&recorded, 0, sizeof(recorded));
	H5Eset_auto2(H5E_DEFAULT, record_errors, NULL);
}

void h5_begin_call(struct h5 *f)
{
	errno = 0;
	recorded.no_memory = false;
	recorded.failure = 0;
	recorded.file = f;
}

void h5_forget_file(const struct h5 *f)
{
	if (recorded.file == f)
		recorded.file = NULL;
}

int h5_failure(const struct h5 *f)
{
	return recorded.no_memory ? ENOMEM : f ? f->failure : recorded.failure;
}

bool h5_ran_out_of_memory(void)
{
	return recorded.ever_no_memory;
}

/* The files of a nanotron checkpoint: the rank of each file, and its slices of tensors. */
#include "archive/nanotron.h"

#include "base/file.h"

/* ---- file names ------------------------------------------------------------------------------ */

/* Parses KEY, a rank, "-of-" and a size, and moves *text past them. Returns false otherwise. */
static bool parse_rank(const char **text, const char *key, int64_t *rank, int64_t *size)
{
	enum { MAX_DIGITS = 6 }; /* (the product of three sizes must fit) */
	const char *at = *text;
	int64_t *both[] = {rank, size};
	for (int i = 0; i < 2; i++) {
		const char *before = i ? "-of-" : key;
		if (strncmp(at, before, strlen(before)) != 0)
			return false;
		at += strlen(before);
		size_t n = strspn(at, "0123456789");
		if (!n || n > MAX_DIGITS)
			return false;
		*both[i] = strtoll(at, NULL, 10);
		at += n;
	}
	*text = at;
	return *rank < *size;
}

/* Parses the name of an optimizer file into *r. Sets *has_experts. Returns false otherwise. */
static bool parse_rank_name(const char *name, struct nanotron_rank *r, bool *has_experts)
{
	static const char begin[] = "optimizer_";
	const char *at = name + strlen(begin);
	int64_t expert = 0, size = 1;
	*r = (struct nanotron_rank){.dp = -1, .sizes = {1, 1, 1}};
	if (strncmp(name, begin, strlen(begin)) != 0 ||
		!parse_rank(&at, "pp-", &r->pp, &r->sizes[0]))
		return false;
	if (!parse_rank(&at, "_dp-", &r->dp, &r->sizes[1]))
		r->dp = -1;
	if (!parse_rank(&at, "_tp-", &r->tp, &r->sizes[2]))
		return false;
	parse_rank(&at, "_exp-", &expert, &size);
	*has_experts |= size > 1;
	return !strcmp(at, ".pt");
}

static int reject_experts(const struct nanotron *t)
{
	return err_set(t->e, EX_UNAVAILABLE, "%s: mixture of experts is not supported",
		t->f->path);
}

static int by_rank(const void *a, const void *b)
{
	const struct nanotron_rank *x = a, *y = b;
	const int64_t v[][2] = {{x->pp, y->pp}, {x->tp, y->tp}, {x->dp, y->dp}};
	for (size_t i = 0; i < ARRAY_LEN(v); i++)
		if (v[i][0] != v[i][1])
			return v[i][0] < v[i][1] ? -1 : 1;
	return 0;
}

/* Fails unless each rank has one file. */
static int check_ranks(const struct nanotron *t)
{
	const struct nanotron_rank *first = t->ranks;
	for (int64_t i = 0; i < t->n_ranks; i++) {
		const struct nanotron_rank *r = &t->ranks[i];
		int64_t dp = first->sizes[1], tp = first->sizes[2];
		if ((r->dp < 0) != (first->dp < 0) ||
			memcmp(r->sizes, first->sizes, sizeof(r->sizes)) != 0)
			return err_set(t->e, EX_DATAERR,
				"%s/optimizer: %s and %s are from different layouts; "
				"delete the files of one run",
				t->f->path, first->name, r->name);
		if (r->pp != i / dp / tp || r->tp != i / dp % tp ||
			(r->dp >= 0 && r->dp != i % dp))
			return err_set(t->e, EX_DATAERR,
				"%s/optimizer: the file before %s is missing; "
				"copy the files of all hosts into one directory",
				t->f->path, r->name);
	}
	int64_t wanted =
		t->n_ranks ? first->sizes[0] * first->sizes[1] * first->sizes[2] : 0;
	return t->n_ranks >= wanted
		       ? 0
		       : err_set(t->e, EX_DATAERR,
				 "%s/optimizer: %lld ranks saved, but there are %lld files; "
				 "copy the files of all hosts into one directory",
				 t->f->path, (long long)wanted, (long long)t->n_ranks);
}

int nanotron_list_ranks(struct nanotron *t)
{
	scoped_str path = {0};
	struct dirent *entry;
	bool has_experts = false;
	str_printf(&path, "%s/optimizer", t->f->path);
	scoped_dir *d = opendir(path.s);
	while (d && (entry = readdir(d))) {
		struct nanotron_rank r;
		if (!parse_rank_name(entry->d_name, &r, &has_experts))
			continue;
		r.name = xstrdup(entry->d_name);
		t->ranks = xgrow(t->ranks, t->n_ranks, sizeof(*t->ranks));
		t->ranks[t->n_ranks++] = r;
	}
	if (t->n_ranks)
		qsort(t->ranks, (size_t)t->n_ranks, sizeof(*t->ranks), by_rank);
	for (int64_t i = 0; i < t->n_ranks; i++) {
		str_clear(&path);
		str_printf(&path, "%s/optimizer/%s", t->f->path, t->ranks[i].name);
		strs_add(&t->paths, path.s);
	}
	return has_experts ? reject_experts(t) : check_ranks(t);
}

int nanotron_list_parts(
	struct nanotron *t, const char *directory, const char *name, int depth)
{
	enum { MAX_DEPTH = 16 };
	static const char begin[] = "model_", end[] = ".safetensors";
	struct dirent *entry;
	scoped_dir *d = opendir(directory);
	int rc = 0;
	while (d && !rc && (entry = readdir(d))) {
		scoped_str tensor_name = {0};
		const char *file = entry->d_name, *ranks = strstr(file, "_pp-rank-");
		int64_t pp = 0, size = 1;
		scoped_ptr char *path = text_printf("%s/%s", directory, file);
		if (*file != '.' && file_is_directory(path)) {
			str_printf(&tensor_name, "%s%s.", name, file);
			rc = depth < MAX_DEPTH ? nanotron_list_parts(t, path,
							 tensor_name.s, depth + 1)
					       : 0;
		} else if (!strncmp(file, begin, strlen(begin)) && text_ends(file, end)) {
			struct nanotron_part x = {.file = (int32_t)t->paths.n};
			const char *at =
				ranks ? ranks : file + strlen(file) - strlen(end);
			str_printf(&tensor_name, "%s%.*s", name,
				(int)(at - file - (int)strlen(begin)),
				file + strlen(begin));
			if (ranks && (!parse_rank(&at, "_pp-rank-", &pp, &size) ||
					     !parse_rank(&at, "_tp-rank-", &x.tp, &size)))
				rc = err_set(t->e, EX_DATAERR,
					"%s: the file name lacks a valid rank", path);
			else if (strcmp(at, end) != 0)
				rc = reject_experts(t);
			strs_add(&t->paths, path);
			x.name = xstrdup(tensor_name.s);
			t->parts = xgrow(t->parts, t->n_parts, sizeof(*t->parts));
			t->parts[t->n_parts++] = x;
		}
	}
	return rc;
}

/* ---- model files ----------------------------------------------------------------------------- */

/* Parses an integer, np.int64(integer), or None (`none`), and moves *text. False: neither. */
static bool parse_integer(const char **text, int64_t none, int64_t *out)
{
	static const char numpy_prefix[] = "np.int64(";
	enum { MAX_DIGITS = 15 };
	bool numpy = !strncmp(*text, numpy_prefix, strlen(numpy_prefix));
	const char *at = *text + (numpy ? strlen(numpy_prefix) : 0);
	size_t n = strspn(at, "0123456789");
	*out = none;
	if (!strncmp(at, "None", 4))
		n = 4;
	else if (n && n <= MAX_DIGITS)
		*out = strtoll(at, NULL, 10);
	else
		return false;
	at += n;
	if (numpy && *at++ != ')')
		return false;
	*text = at;
	return true;
}

/* Moves *text past the character c if that is next. */
static bool accept_char(const char **text, char c)
{
	bool matches = **text == c;
	*text += matches;
	return matches;
}

/* Sets dims[ndim] from unsharded_shape, "(96, 32)". Returns false if it is invalid. */
static bool parse_shape(const char *text, int ndim, int64_t *dims)
{
	if (!accept_char(&text, '('))
		return false;
	for (int i = 0; i < ndim; i++) {
		if (!parse_integer(&text, -1, &dims[i]) || dims[i] < 0)
			return false;
		accept_char(&text, ',');
		accept_char(&text, ' ');
	}
	return accept_char(&text, ')') && !*text;
}

/* Parses "0,10,None|None,None,None": begin, end and step per dimension. False: invalid. */
static bool parse_box(
	const char **text, int ndim, const int64_t *dims, int64_t *begin, int64_t *sizes)
{
	for (int i = 0; i < ndim; i++) {
		int64_t end, step;
		if ((i && !accept_char(text, '|')) ||
			!parse_integer(text, 0, &begin[i]) || !accept_char(text, ',') ||
			!parse_integer(text, dims[i], &end) || !accept_char(text, ',') ||
			!parse_integer(text, 1, &step) || step != 1)
			return false;
		if (begin[i] > end || end > dims[i])
			return false;
		sizes[i] = end - begin[i];
	}
	return true;
}

/* Parses local_global_slices_pairs, LOCAL#GLOBAL;... Local slices are whole rows. False: invalid.
 */
static bool parse_slices(struct nanotron_part *x, const char *text)
{
	enum { MAX_SLICES = 1 << 16 };
	do {
		struct nanotron_slices s = {0};
		int64_t begin[TORCH_MAX_DIMS], sizes[TORCH_MAX_DIMS];
		if (!parse_box(&text, x->tensor.ndim, x->tensor.dims, begin, sizes) ||
			!accept_char(&text, '#') ||
			!parse_box(&text, x->tensor.ndim, x->whole, s.begin, s.sizes) ||
			memcmp(sizes, s.sizes, (size_t)x->tensor.ndim * sizeof(*sizes)) !=
				0 ||
			x->n_slices == MAX_SLICES)
			return false;
		for (int i = 1; i < x->tensor.ndim; i++)
			if (sizes[i] != x->tensor.dims[i])
				return false;
		s.row = begin[0];
		s.rows = sizes[0];
		x->slices = xgrow(x->slices, x->n_slices, sizeof(*x->slices));
		x->slices[x->n_slices++] = s;
	} while (accept_char(&text, ';'));
	return !*text;
}

/* Sets the shape and the only slice of a tensor that is not sharded. */
static void set_whole_slice(struct nanotron_part *x)
{
	x->slices = xcalloc(1, sizeof(*x->slices));
	x->n_slices = 1;
	x->slices->rows = x->tensor.dims[0];
	memcpy(x->slices->sizes, x->tensor.dims, sizeof(x->tensor.dims));
	memcpy(x->whole, x->tensor.dims, sizeof(x->tensor.dims));
}

int nanotron_read_part(struct nanotron *t, struct nanotron_part *x)
{
	struct st_header h;
	const char *path = t->f->parts->files[x->file];
	int fd = items_fd(t->f, x->file, t->e);
	if (fd < 0 || safetensors_read_header(&h, fd, path, t->e))
		return -1;
	items_grant(t->f, h.size);
	const char *slices = safetensors_metadata(&h, "local_global_slices_pairs");
	const char *shape = safetensors_metadata(&h, "unsharded_shape");
	bool ok = h.n == 1 && !strcmp(h.tensors[0].name, "data");
	if (ok)
		x->tensor = h.tensors[0];
	x->tensor.name = NULL;
	ok = ok && safetensors_dtype(&x->tensor) >= 0 && x->tensor.ndim &&
	     shape_fits(x->tensor.dims, x->tensor.ndim);
	if (ok && slices && shape)
		ok = parse_shape(shape, x->tensor.ndim, x->whole) &&
		     shape_fits(x->whole, x->tensor.ndim) && parse_slices(x, slices);
	else if (ok)
		set_whole_slice(x);
	safetensors_header_release(&h);
	return ok ? 0
		  : err_set(t->e, EX_DATAERR,
			    "%s: the dtype, shape or slices of the tensor are invalid",
			    path);
}

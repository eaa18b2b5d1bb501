/* Hashes of the tensors of a step, as lines of text. */
#include "base/file.h"
#include "run/run.h"

#include <math.h>

static const char *const step_phases[N_PHASES] = {
	"parameter", "forward", "backward", "gradient", "norm", "state", "updated"};

static uint64_t hash_element(uint64_t index, uint32_t bits)
{
	return hash_mix(
		index * 0x9e3779b97f4a7c15u ^ ((uint64_t)bits + 1) * 0xd6e8feb86659fd93u);
}

void tensor_hash_add(struct tensor_hash *h, const float *x, int64_t n, int64_t first)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, &x[i], sizeof(bits));
		h->hash += hash_element((uint64_t)(first + i), bits);
		if (!isfinite(x[i]))
			h->nonfinite++;
		else if (fabsf(x[i]) > h->max)
			h->max = fabsf(x[i]);
	}
	h->elements += n;
}

void tensor_hash_add_ints(
	struct tensor_hash *h, const int32_t *x, int64_t n, int64_t first)
{
	for (int64_t i = 0; i < n; i++) {
		h->hash += hash_element((uint64_t)(first + i), (uint32_t)x[i]);
		if ((float)x[i] > h->max)
			h->max = (float)x[i];
	}
	h->elements += n;
}

void tensor_hash_print(const struct tensor_hash *h, struct str *out)
{
	char num[NUM_TEXT];
	str_printf(out, "step=%lld", (long long)h->step);
	if (h->micro >= 0)
		str_printf(out, " micro=%lld", (long long)h->micro);
	str_printf(out, " phase=%s name=%s elements=%lld hash=0x%016llx max=%s",
		step_phases[h->phase], h->name, (long long)h->elements,
		(unsigned long long)h->hash, text_float(num, h->max));
	if (h->nonfinite)
		str_printf(out, " nonfinite=%lld", (long long)h->nonfinite);
	if (h->replicas_differ)
		str_puts(out, " replicas=differ");
	str_putc(out, '\n');
}

static int parse_phase(const char *text, enum step_phase *phase)
{
	for (int i = 0; i < N_PHASES; i++) {
		if (strcmp(text, step_phases[i]))
			continue;
		*phase = (enum step_phase)i;
		return 0;
	}
	return -1;
}

static int parse_count(const char *text, int64_t *count)
{
	return parse_int(text, count) || *count < 0 ? -1 : 0;
}

/* Sets *hash from 0x and 16 hexadecimal digits. Returns -1 for any other text. */
static int parse_hash(const char *text, uint64_t *hash)
{
	size_t n = strlen(text);
	if (n != 18 || strncmp(text, "0x", 2) ||
		strspn(text + 2, "0123456789abcdef") != n - 2)
		return -1;
	*hash = strtoull(text, NULL, 16);
	return 0;
}

/* Sets *max from a number >= 0 that is finite in fp32. Returns -1 for any other text. */
static int parse_max(const char *text, float *max)
{
	double x;
	if (strlen(text) >= NUM_TEXT || parse_double(text, &x) || !(x >= 0))
		return -1;
	*max = (float)x;
	return isfinite(*max) ? 0 : -1;
}

/* Copies a name of printable ASCII without spaces. Returns -1 if it is invalid or too long. */
static int parse_name(const char *text, char *name, size_t capacity)
{
	size_t n = strlen(text);
	for (size_t i = 0; i < n; i++)
		if (text[i] < '!' || text[i] > '~') /* names are printed to terminals */
			return -1;
	if (!n || n >= capacity)
		return -1;
	memcpy(name, text, n + 1);
	return 0;
}

/* Parses KEY=VALUE, and sets its bit of *has. Ignores unknown keys, perhaps of a later version. */
static int parse_word(
	const char *key, const char *value, struct tensor_hash *h, unsigned *has)
{
	enum { STEP, PHASE, NAME, ELEMENTS, HASH, MAX, MICRO, NONFINITE, REPLICAS, N };
	static const char *const keys[N] = {"step", "phase", "name", "elements", "hash",
		"max", "micro", "nonfinite", "replicas"};
	int k = 0;
	while (k < N && strcmp(key, keys[k]))
		k++;
	*has |= 1u << k;
	switch (k) {
	case STEP:
		return parse_count(value, &h->step);
	case PHASE:
		return parse_phase(value, &h->phase);
	case NAME:
		return parse_name(value, h->name, sizeof(h->name));
	case ELEMENTS:
		return parse_count(value, &h->elements);
	case HASH:
		return parse_hash(value, &h->hash);
	case MAX:
		return parse_max(value, &h->max);
	case MICRO:
		return parse_count(value, &h->micro);
	case NONFINITE:
		return parse_count(value, &h->nonfinite);
	case REPLICAS:
		h->replicas_differ = !strcmp(value, "differ");
		return 0;
	}
	return 0;
}

int tensor_hash_parse(const char *line, size_t len, struct tensor_hash *h)
{
	enum { NEEDED = 6 }; /* the first keys of the table */
	char *copy = strndup(line, len), *rest = copy, *value;
	unsigned has = 0;
	int rc = memchr(line, '\0', len) ? -1 : 0;
	*h = (struct tensor_hash){.micro = -1};
	while (!rc && (value = strsep(&rest, " \r"))) {
		const char *key = strsep(&value, "=");
		if (value)
			rc = parse_word(key, value, h, &has);
	}
	free(copy);
	return rc || (has & ((1u << NEEDED) - 1)) != (1u << NEEDED) - 1 ? -1 : 0;
}

/* Appends the hash in a line, if it is not a comment. `number` is the line's, from 1 on. */
static int append_hash(struct tensor_hashes *l, const char *line, size_t len,
	int64_t number, struct err *e)
{
	enum { MAX_HASHES = 1 << 22 };
	struct tensor_hash h;
	if (!len || *line == '#')
		return 0;
	if (l->n == MAX_HASHES)
		return err_set(e, EX_DATAERR, "has more than %d tensors", MAX_HASHES);
	if (tensor_hash_parse(line, len, &h))
		return err_set(e, EX_DATAERR, "line %lld is not the hash of a tensor",
			(long long)number);
	l->of = xgrow(l->of, l->n, sizeof(*l->of));
	l->of[l->n++] = h;
	return 0;
}

int tensor_hashes_read(struct tensor_hashes *l, const char *path, struct err *e)
{
	const size_t max_bytes = (size_t)1 << 30;
	scoped_str text = {0};
	*l = (struct tensor_hashes){0};
	int rc = file_read(path, max_bytes, &text, e);
	const char *at = text.s, *end = text.s + text.len;
	for (int64_t line = 1; !rc && at < end; line++) {
		const char *line_end = memchr(at, '\n', (size_t)(end - at));
		size_t len = (size_t)((line_end ? line_end : end) - at);
		rc = append_hash(l, at, len, line, e);
		at += len + 1;
	}
	if (!rc)
		return 0;
	tensor_hashes_free(l);
	return err_prefix(e, "%s: ", path);
}

void tensor_hashes_free(struct tensor_hashes *l)
{
	free(l->of);
	*l = (struct tensor_hashes){0};
}

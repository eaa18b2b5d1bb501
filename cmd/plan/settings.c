/* The options of pt-train that a layout sets, one row per setting. --only restricts the search by
 * them, and --best prints them. */
#include "plan/planner.h"

#include "options/options.h"

/* A member of the layout, and its option: an int, or an int64_t if `wide`. */
struct setting {
	const char *key;
	size_t at, option;
	bool wide;
	bool rare; /* printed only if it is not zero */
	bool kept; /* a given value is not searched */
};

#define ROW(key, member, field, ...)                                    \
	{                                                               \
		key, offsetof(struct layout, member),                   \
			offsetof(struct train_opts, field), __VA_ARGS__ \
	}

static const struct setting settings[N_SETTINGS] = {
	[SET_MICRO_BATCH] = ROW("micro-batch", micro_batch, micro_batch, true),
	[SET_PP] = ROW("pp", degree[AXIS_PP], axis[AXIS_PP], true),
	[SET_DP] = ROW("dp", degree[AXIS_DP], axis[AXIS_DP], true),
	[SET_FSDP] = ROW("fsdp", degree[AXIS_FSDP], axis[AXIS_FSDP], true),
	[SET_CP] = ROW("cp", degree[AXIS_CP], axis[AXIS_CP], true),
	[SET_TP] = ROW("tp", degree[AXIS_TP], axis[AXIS_TP], true),
	[SET_EP] = ROW("ep", ep, ep, true, true),
	[SET_ZERO] = ROW("zero", zero, zero, true),
	[SET_RESHARD] = ROW("reshard-after-forward", reshard, reshard, false),
	[SET_SCHEDULE] = ROW("pp-schedule", schedule, pp_schedule, false),
	[SET_STAGES] = ROW("pp-stages", stages, pp_stages, true),
	[SET_RECOMPUTE] = ROW("recompute", recompute, recompute, false),
	[SET_TILE] = ROW("tile", tile, tile, true, true, true),
	[SET_OFFLOAD] = ROW("offload", offload, offload, false, true, true),
};

/* Returns the setting of "key=value", or N_SETTINGS. */
static int setting_of_word(const char *word)
{
	int i = 0;
	size_t n = strcspn(word, "=");
	while (i < N_SETTINGS &&
		(strncmp(word, settings[i].key, n) || settings[i].key[n]))
		i++;
	return i;
}

bool is_setting(const char *word)
{
	return setting_of_word(word) < N_SETTINGS;
}

/* Returns the value of a setting in a layout. */
static int layout_value(const struct layout *l, const struct setting *s)
{
	int value;
	memcpy(&value, (const char *)l + s->at, sizeof(value));
	return value;
}

void layout_to_options(const struct layout *l, struct train_opts *o)
{
	for (int i = 0; i < N_SETTINGS; i++) {
		int value = layout_value(l, &settings[i]);
		char *option = (char *)o + settings[i].option;
		if (settings[i].wide)
			*(int64_t *)(void *)option = value;
		else
			memcpy(option, &value, sizeof(value));
	}
}

static int option_value(const struct train_opts *o, const struct setting *s)
{
	const void *option = (const char *)o + s->option;
	return s->wide ? (int)*(const int64_t *)option : *(const int *)option;
}

/* Returns the words of an option of pt-train, or NULL if it is a number. */
static const char *const *option_words(const char *key)
{
	for (const struct opt *t = train_program.opts; t->type; t++)
		if (t->name && !strcmp(t->name, key))
			return t->values;
	return NULL;
}

void layout_print(const struct layout *l, const struct train_opts *given, struct str *out)
{
	for (int i = 0; i < N_SETTINGS; i++) {
		const struct setting *s = &settings[i];
		const char *const *words = option_words(s->key);
		int value = layout_value(l, s);
		if (s->rare && !value && !option_value(given, s))
			continue;
		if (words)
			str_printf(out, " %s=%s", s->key, words[value]);
		else
			str_printf(out, " %s=%d", s->key, value);
	}
}

/* Returns the setting of a key of --only, or -1 with *e set. */
static int find_setting(const char *key, struct err *e)
{
	const char *names[N_SETTINGS];
	int at = setting_of_word(key);
	for (int i = 0; i < N_SETTINGS; i++)
		names[i] = settings[i].key;
	if (at < N_SETTINGS)
		return at;
	return err_none_of(e, "--only", key, names, N_SETTINGS);
}

/* Adds "key=value" of --only, which pt-train's option table parses. */
static int add_only_item(struct only *o, char *text, struct err *e)
{
	struct train_opts one;
	char name[] = "pt-train", *argv[] = {name, text, NULL};
	char *equals = strchr(text, '=');
	if (!equals)
		return err_set(
			e, EX_USAGE, "--only '%s': not a setting; give key=value", text);
	if (o->n == MAX_ONLY)
		return err_set(e, EX_USAGE, "--only: more than %d values", MAX_ONLY);
	*equals = '\0';
	int i = find_setting(text, e);
	*equals = '=';
	if (i < 0 || opts_parse(&train_program, &one, 2, argv, e) < 0)
		return -1;
	o->item[o->n++] = (struct only_item){
		(enum setting_kind)i, option_value(&one, &settings[i])};
	return 0;
}

int only_parse(const char *text, struct only *o, struct err *e)
{
	char *copy = xstrdup(text ? text : ""), *rest = copy;
	int rc = 0;
	*o = (struct only){.n = 0};
	for (char *item; !rc && *copy && (item = strsep(&rest, ","));)
		rc = add_only_item(o, item, e);
	free(copy);
	return rc;
}

int only_values(const struct only *o, enum setting_kind kind, int value[static MAX_ONLY])
{
	int n = 0;
	for (int i = 0; i < o->n; i++)
		if (o->item[i].kind == kind)
			value[n++] = o->item[i].value;
	return n;
}

/* Returns true if key=value has no effect, because the search tries all values of the setting. A
 * setting that is kept, such as tile, is used if given; -1 and auto ask the search for a value. */
bool is_setting_ignored(const struct only *o, const char *word)
{
	int i = setting_of_word(word), value[MAX_ONLY];
	const char *text = word + strcspn(word, "=");
	return i < N_SETTINGS && !settings[i].kept && strcmp(text, "=-1") &&
	       strcmp(text, "=auto") && !only_values(o, (enum setting_kind)i, value);
}

/* Returns true if the layout has one of the values of each setting in --only. */
bool only_allows(const struct only *o, const struct layout *l)
{
	bool is_named[N_SETTINGS] = {false}, is_allowed[N_SETTINGS] = {false};
	for (int i = 0; i < o->n; i++) {
		enum setting_kind k = o->item[i].kind;
		is_named[k] = true;
		is_allowed[k] |= o->item[i].value == layout_value(l, &settings[k]);
	}
	for (int k = 0; k < N_SETTINGS; k++)
		if (is_named[k] && !is_allowed[k])
			return false;
	return true;
}

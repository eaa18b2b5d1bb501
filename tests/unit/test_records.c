/* Records of JSONL that say which tokens count, on their way to shards: conversations as transformers lays them out, spans,
 * labels, windows. */
#include "base/file.h"
#include "data/offsets.h"
#include "prepare/record.h"
#include "prepare/token_file.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static struct err e;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	return 0;
}

/* ---- what a shard has -------------------------------------------------------------------- */

/* The tokens, each document on a line; of those that do not count -1 - token. */
static struct str tokens_of(const struct strs *files, enum split split)
{
	struct str out = {0};
	struct corpus *c;
	assert_int_equal(corpus_open(&c, files, CORPUS_DOCUMENTS, &e), 0);
	int64_t n = corpus_tokens(c, split);
	int32_t *ids = xcalloc((size_t)n + 1, sizeof(*ids));
	assert_int_equal(corpus_read(c, split, 0, n, ids, &e), 0);
	corpus_mark(c, split, 0, n, ids);
	for (int64_t i = 0; i < n; i++) {
		int32_t id = ids[i] & ~TOKEN_FLAGS;
		const char *before = !i ? "" : ids[i] & DOCUMENT_BEGINS ? "\n" : " ";
		str_printf(&out, "%s%d", before, ids[i] & TOKEN_CONTEXT ? -1 - id : id);
	}
	str_putc(&out, '\n');
	free(ids);
	corpus_close(c);
	return out;
}

static struct prepared run(const struct prepare *p, const char *text)
{
	struct strs inputs = {0};
	struct prepared made;
	strs_add(&inputs, test_file("in.jsonl", text));
	if (prepare_run(p, &inputs, &made, &e))
		fail_msg("%s", e.msg);
	strs_free(&inputs);
	return made;
}

static const char *test_bytes(const char *name, const void *p, size_t n_bytes)
{
	const char *path = test_path(name);
	FILE *f = fopen(path, "wb");
	assert_true(f && fwrite(p, 1, n_bytes, f) == n_bytes && !fclose(f));
	return path;
}

/* By bytes, all for training. */
static struct prepare plain(int record)
{
	return (struct prepare){.tokenizer = {.name = "byte"},
		.record = record,
		.strict = true,
		.out = test_path("out.h5"),
		.overwrite = true};
}

static void expect(const struct prepare *p, const char *text, const char *want)
{
	struct prepared made = run(p, text);
	struct str got = tokens_of(&made.files, SPLIT_TRAIN);
	assert_string_equal(got.s, want);
	str_free(&got);
	strs_free(&made.files);
}

static void refuses(const struct prepare *p, const char *text, const char *why)
{
	struct strs inputs = {0};
	struct prepared made;
	e = (struct err){0};
	strs_add(&inputs, test_file("in.jsonl", text));
	assert_int_equal(prepare_run(p, &inputs, &made, &e), -1);
	if (!strstr(e.msg, why))
		fail_msg("'%s' does not say '%s'", e.msg, why);
	strs_free(&inputs);
	strs_free(&made.files);
}

/* ---- conversations ------------------------------------------------------------------------- */

/* The last ones are never special. */
static const char *const markers[] = {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
	"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<tool_call>",
	"</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"};
enum { IM_START = 703, N_SPECIAL = 6 };

/* tests/golden/tokens with these tokens behind it, as make_chat.py has it. */
static const char *chat_vocabulary(bool are_special)
{
	struct str out = {0};
	json_error_t why;
	json_t *all = json_load_file("tests/golden/tokens/tokenizer.json", 0, &why);
	for (size_t i = 0; i < ARRAY_LEN(markers); i++)
		json_array_append_new(json_object_get(all, "added_tokens"),
			json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id",
				IM_START + (int)i, "content", markers[i], "single_word",
				0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
				are_special && i < N_SPECIAL));
	char *text = json_dumps(all, 0);
	str_puts(&out, test_file("tokenizer.json", text));
	free(text);
	json_decref(all);
	return out.s;
}

/* Conversations without tools, and those of tools.jsonl that name the template. */
static struct str talks_of(const char *name)
{
	struct str out = {0}, tools = {0}, mark = {0};
	assert_int_equal(
		file_read("tests/golden/chat/conversations.jsonl", 1 << 20, &out, &e), 0);
	assert_int_equal(
		file_read("tests/golden/chat/tools.jsonl", 1 << 20, &tools, &e), 0);
	str_printf(&mark, "%s ", name);
	for (char *line = tools.s, *end; (end = strchr(line, '\n')); line = end + 1) {
		char *names = line + strlen("{\"templates\": \""), *found;
		*end = '\0';
		found = strstr(names, mark.s);
		bool is = found && found < strchr(names, '"') &&
			  (found == names || found[-1] == ' ');
		if (is)
			str_printf(&out, "%s\n", line);
	}
	str_free(&tools);
	str_free(&mark);
	return out;
}

TEST_AFTER(begin, as_transformers)
{
	static const char *const names[] = {
		"chatml", "llama3", "llama3.1", "qwen", "qwen3", "qwen3-2507"};
	struct prepare p = plain(RECORD_MESSAGES);
	p.tokenizer = (struct tokenizer_source){
		.name = "bpe", .vocab_files = chat_vocabulary(true)};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct str want = {0}, path = {0}, talks = talks_of(names[i]);
		p.chat_template = names[i];
		str_printf(&path, "tests/golden/chat/%s.tokens", p.chat_template);
		assert_int_equal(file_read(path.s, 1 << 20, &want, &e), 0);
		expect(&p, talks.s, want.s);
		str_free(&path);
		str_free(&want);
		str_free(&talks);
	}
	free((char *)p.tokenizer.vocab_files);
}

static int64_t count_token(const struct strs *files, int32_t token)
{
	struct str all = tokens_of(files, SPLIT_TRAIN);
	int64_t n = 0;
	for (char *at = all.s, *end; *at; at = end) {
		long id = strtol(at, &end, 10);
		if (end == at)
			break;
		n += (id < 0 ? -1 - id : id) == token;
	}
	str_free(&all);
	return n;
}

/* What a user says is no marker, whatever it looks like; also where the tokenizer finds markers in any text. */
TEST_AFTER(begin, users_have_no_markers)
{
	static const char talk[] =
		"{\"messages\": [{\"role\": \"user\", \"content\": \"<|im_end|>\\n"
		"<|im_start|>assistant\\n<|im_start|><|im_\"},"
		" {\"role\": \"assistant\", \"content\": \"<|im_start|>no<|im_end|>\"}]}\n";
	for (int are = 0; are < 2; are++) {
		struct prepare p = plain(RECORD_MESSAGES);
		p.tokenizer = (struct tokenizer_source){
			.name = "bpe", .vocab_files = chat_vocabulary(are)};
		p.chat_template = "chatml";
		struct prepared made = run(&p, talk);
		assert_int_equal(count_token(&made.files, IM_START), 2);
		assert_int_equal(count_token(&made.files, IM_START + 1), 2);
		strs_free(&made.files);
		p.tokenizer.special = true;
		refuses(&p, talk, "could become a marker");
		free((char *)p.tokenizer.vocab_files);
	}
}

TEST_AFTER(begin, which_turns_count)
{
	static const char talk[] =
		"{\"x\": 1, \"messages\": [{\"role\": \"s\", \"content\": \"A\"},"
		"{\"from\": \"gpt\", \"value\": \"B\"}, {\"content\": \"C\", \"role\": "
		"\"assistant\"}]}\n";
	static const struct {
		int count;
		const char *want;
	} rows[] = {
		{COUNT_ASSISTANT, "-41 -66 -42 -63 66 46 -43 -63 67 46 -43\n"},
		{COUNT_LAST, "-41 -66 -42 -63 -67 -47 -43 -63 67 46 -43\n"},
		{COUNT_ALL, "-41 65 41 62 66 46 42 62 67 46 42\n"},
		{COUNT_NONE, "-41 -66 -42 -63 -67 -47 -43 -63 -68 -47 -43\n"},
	};
	struct prepare p = plain(RECORD_MESSAGES);
	p.chat_template = test_file("template", "{\"roles\": {\"s\": [\"(\", \")\"], "
						"\"assistant\": [\">\", \".\", \"*\"]}}");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		p.count = rows[i].count;
		expect(&p, talk, rows[i].want);
	}
	/* a turn that its weight silences; turns that are no text */
	p.count = COUNT_ASSISTANT;
	expect(&p,
		"{\"messages\": [{\"role\": \"assistant\", \"content\": \"B\", \"weight\": 0},"
		"{\"role\": \"assistant\", \"content\": \"C\", \"weight\": 1}]}",
		"-63 -67 -47 -43 -63 67 46 -43\n");
	for (int i = 0; i < 2; i++)
		refuses(&p,
			i ? "{\"messages\": [{\"role\": \"assistant\", \"content\": \"B\", "
			    "\"weight\": false}]}"
			  : "{\"messages\": [{\"role\": \"assistant\", \"content\": \"B\", "
			    "\"weight\": 0.5}]}",
			"turn 0: its weight is neither 0 nor 1");
	refuses(&p, "{\"messages\": []}", "the conversation has no turns");
	refuses(&p, "{\"messages\": [{\"role\": \"s\"}]}", "turn 0 is not an object");
	refuses(&p, "{\"messages\": [{\"role\": \"x\", \"content\": \"\"}]}",
		"no role 'x'");
	refuses(&p, "{\"text\": \"x\"}",
		"field 'messages' (a list of turns) is missing; give --field with one of: text");
}

/* What a template cannot say is refused, not left out. */
TEST_AFTER(begin, tools_that_lie)
{
#define TURN(role, more) "{\"role\": \"" role "\", " more "}"
#define CALLS(calls) TURN("assistant", "\"content\": null, \"tool_calls\": " calls)
	static const char user[] = TURN("user", "\"content\": \"q\"");
	static const struct {
		const char *template, *tools, *turn, *why;
	} rows[] = {
		{"chatml", "[1]", user, "the template does not support tools"},
		{"llama3", "[]", CALLS("[{\"name\": \"f\"}]"),
			"turn 1: the template does not support tool_calls"},
		{"qwen", "\"hammer\"", user, "'tools' is a string that is not JSON"},
		{"qwen", "{}", user, "'tools' is an object, not a list"},
		{"qwen", "\"\"", CALLS("[1]"), "turn 1: tool_calls: a call has no name"},
		{"qwen", "null", CALLS("[]"),
			"its content is null, and it has no tool_calls"},
		{"qwen", "null",
			TURN("user", "\"content\": \"\", \"tool_calls\": \"f()\""),
			"is not a list of calls by the assistant"},
		{"qwen", "null", TURN("tool", "\"content\": {}"),
			"turn 1: content is an object, not a string"},
		{"qwen", "null", CALLS("[{\"name\": \"f\", \"arguments\": \"{a\"}]"),
			"tool_calls: the string 'arguments' of a call is not JSON"},
		{"llama3.1", "null", CALLS("[{\"name\": \"f\"}, {\"name\": \"g\"}]"),
			"only one call per turn"},
	};
	struct prepare p = plain(RECORD_MESSAGES);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct str line = {0};
		str_printf(&line, "{\"tools\": %s, \"messages\": [%s, %s]}",
			rows[i].tools, user, rows[i].turn);
		p.chat_template = rows[i].template;
		refuses(&p, line.s, rows[i].why);
		str_free(&line);
	}
	refuses(&p, "{\"tools\": [1], \"messages\": [" CALLS("[{\"name\": \"f\"}]") "]}",
		"turn 0: the template lists the tools in the first user turn");
}

/* Texts of JSON are what they say; a file names the template that has its tools; names of roles. */
TEST_AFTER(begin, tools_as_texts)
{
	struct prepare p = plain(RECORD_MESSAGES);
	p.chat_template = test_file("template",
		"{\"tools\": \"llama3.1\", \"roles\": {\"assistant\": [\">\", \".\"], "
		"\"tool\": [\"=\", \";\", \"\", \",\"]}}");
	struct str got = {0}, want = {0};
	struct prepared made = run(&p,
		"{\"tools\": \"[]\", \"messages\": [" TURN("assistant",
			"\"tool_calls\": [{\"name\": \"f\", \"arguments\": \"{\\\"a\\\":1.50}\"}]") ", " TURN("function",
			"\"content\": \"x\"") ", " TURN("ipython",
			"\"content\": [2]") "]}");
	struct str ids = tokens_of(&made.files, SPLIT_TRAIN);
	for (char *at = ids.s, *end; *at != '\n'; at = end) {
		long id = strtol(at, &end, 10);
		str_putc(&got, (char)(id < 0 ? -1 - id : id));
		str_putc(&want, id < 0 ? '-' : '+');
	}
	assert_string_equal(
		got.s, ">{\"name\": \"f\", \"parameters\": {\"a\": 1.5}}.=\"x\",[2];");
	assert_string_equal(want.s, "-++++++++++++++++++++++++++++++++++++++++---------");
	str_free(&ids);
	str_free(&got);
	str_free(&want);
	strs_free(&made.files);
}

TEST_AFTER(begin, templates_that_lie)
{
	static const struct {
		const char *text, *why;
	} rows[] = {
		{"", "not JSON"},
		{"[]", "key \"roles\" is missing"},
		{"{\"roles\": {}}",
			"key \"roles\" is not an object with at least one role"},
		{"{\"roles\": {\"a\": [\"x\"]}}", "role \"a\" must be a list"},
		{"{\"roles\": {\"a\": [\"x\", 1]}}", "key \"a\": a text is not a string"},
		{"{\"roles\": {\"a\": [\"\", \"\"]}, \"roles\": {\"a\": [\"\", \"\"]}}",
			"duplicate"},
		{"{\"roles\": {\"a\": [\"\", \"\"]}, \"trim\": 1}",
			"key \"trim\" is unknown, or its value has the wrong type"},
		{"{\"roles\": {\"a\": [\"\", \"\"]}, \"default_system\": \"x\"}",
			"key \"default_system\" needs a role \"system\""},
		{"{\"roles\": {\"a\": [\"\", \"\"]}, \"tools\": \"chatml\"}",
			"key \"tools\" must be \"qwen\""},
	};
	struct prepare p = plain(RECORD_MESSAGES);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		p.chat_template = test_file("template", rows[i].text);
		refuses(&p, "", rows[i].why);
	}
}

/* ---- other records --------------------------------------------------------------------------- */

TEST_AFTER(begin, prompts)
{
	struct prepare p = plain(RECORD_PROMPT);
	expect(&p, "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n", "-98 -99 99 100\n");
	/* nothing predicts the first token */
	expect(&p, "{\"prompt\": \"\", \"completion\": \"cd\"}\n", "-100 100\n");
	p.field = "q,a";
	p.count = COUNT_ALL;
	expect(&p, "{\"a\": \"cd\", \"q\": \"ab\"}\n", "-98 98 99 100\n");
	refuses(&p, "{\"a\": \"cd\"}\n", "field 'q' (a string) is missing");
	p.field = "q";
	refuses(&p, "", "expected two names");

	/* with a template they are turns, or lists of turns, of which those of the prompt are context */
	p.field = NULL;
	p.count = COUNT_ASSISTANT;
	p.chat_template = test_file("template", "{\"roles\": {\"user\": [\"(\", \")\"], "
						"\"assistant\": [\">\", \".\"]}}");
	static const char want[] = "-41 -99 -42 -63 99 46\n";
	expect(&p, "{\"prompt\": \"b\", \"completion\": \"c\"}\n", want);
	expect(&p, "{\"x\": [], \"prompt\": \"b\", \"completion\": \"c\"}\n", want);
	expect(&p,
		"{\"prompt\": [{\"role\": \"assistant\", \"content\": \"b\"}], "
		"\"completion\": [{\"role\": \"assistant\", \"content\": \"c\"}]}\n",
		"-63 -99 -47 -63 99 46\n");
}

TEST_AFTER(begin, spans)
{
	struct prepare p = plain(RECORD_SPANS);
	/* in characters: ä is one, of two bytes, and counts as a whole */
	expect(&p, "{\"text\": \"aäbc\", \"spans\": [[1, 2], [3, 4]]}\n",
		"-98 195 164 -99 99\n");
	expect(&p, "{\"text\": \"\\ud83d\\ude00b\", \"spans\": [[1, 2]]}\n",
		"-241 -160 -153 -129 98\n");
	static const char *const bad[] = {"[[0, 4]]", "[[2, 1]]", "[[1, 2], [1, 3]]",
		"[[-1, 1]]", "[[1]]", "[1]", "[[0, 9223372036854775807]]", "[[0.0, 1]]"};
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct str line = {0};
		str_printf(&line, "{\"text\": \"abc\", \"spans\": %s}\n", bad[i]);
		refuses(&p, line.s, "not [begin, end]");
		str_free(&line);
	}
}

TEST_AFTER(begin, labels_and_masks)
{
	struct prepare p = plain(RECORD_IDS);
	p.ids_vocab = 10;
	expect(&p,
		"{\"input_ids\": [1, 2, 3, 4], \"labels\": [1, -100, 3, 4]}\n"
		"{\"input_ids\": [9], \"labels\": [-100]}\n",
		"-2 -3 3 4\n-10\n");
	refuses(&p, "{\"input_ids\": [1, 10], \"labels\": [1, 10]}\n",
		"element 1 is 10, not a token of the vocabulary");
	refuses(&p, "{\"input_ids\": [1, 2], \"labels\": [1, 3]}\n",
		"element 1 is 3, not this token or -100");
	refuses(&p, "{\"input_ids\": [1, 2], \"labels\": [1]}\n",
		"'labels' has 1 elements, but 'input_ids' has 2");
	/* in windows, too */
	p.window = 3;
	p.too_long = LONG_SPLIT;
	expect(&p,
		"{\"input_ids\": [1, 2, 3, 4], \"labels\": [1, -100, 3, 4]}\n"
		"{\"input_ids\": [9, 8], \"labels\": [9, 8]}\n",
		"-2 -3 3\n-5\n-10 8\n-1\n");
	p.window = 0;
	p.record = RECORD_MASK;
	expect(&p, "{\"input_ids\": [1, 2, 3], \"mask\": [1, 0, 1]}\n", "-2 -3 3\n");
	refuses(&p, "{\"input_ids\": [1], \"mask\": [2]}\n",
		"element 0 is 2, not 0 or 1");
}

/* ---- on their way to shards ------------------------------------------------------------------- */

/* Prompts and completions whose letters say what counts: small ones do not. */
static struct str many(int64_t n)
{
	struct str out = {0};
	for (int64_t i = 0; i < n; i++) {
		str_puts(&out, "{\"prompt\": \"");
		for (int64_t k = (int64_t)(test_uniform(7, 2 * i) * 12); k >= 0; k--)
			str_putc(&out, (char)('a' + (i + k) % 26));
		str_puts(&out, "\", \"completion\": \"");
		for (int64_t k = (int64_t)(test_uniform(7, 2 * i + 1) * 30); k >= 0; k--)
			str_putc(&out, (char)('A' + (i + k) % 26));
		str_puts(&out, "\"}\n");
	}
	return out;
}

/* Capital letters count, and nothing else. Returns how many there are. */
static int64_t check_letters(const struct strs *files)
{
	int64_t n = 0;
	for (int s = 0; s < N_SPLITS; s++) {
		struct str all = tokens_of(files, (enum split)s);
		for (char *at = all.s, *end; *at; at = end) {
			long id = strtol(at, &end, 10);
			if (end == at)
				break;
			bool capital = id < 0 ? -1 - id < 'a' && -1 - id : id < 'a';
			assert_int_equal(id >= 0, capital);
			n += id >= 0;
		}
		str_free(&all);
	}
	return n;
}

TEST_AFTER(begin, marks_are_carried)
{
	static const struct {
		bool shuffle, dedup;
		int split_by;
		int64_t shard_bytes, window;
	} rows[] = {{false, false, SPLIT_BY_TAIL, 0, 0},
		{true, true, SPLIT_BY_HASH, 0, 0},
		{false, false, SPLIT_BY_DOCUMENT, 1000, 0},
		{true, false, SPLIT_BY_TAIL, 777, 0},
		{true, false, SPLIT_BY_TAIL, 1000, 64},
		{false, true, SPLIT_BY_DOCUMENT, 0, 100}};
	struct str text = many(400);
	struct prepare p = plain(RECORD_PROMPT);
	int64_t n = 0, n_unique = 0;
	p.val_fraction = 0.2;
	p.seed = 3;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct str out[2];
		p.shuffle = rows[i].shuffle;
		p.dedup = rows[i].dedup;
		p.split_by = rows[i].split_by;
		p.shard_bytes = rows[i].shard_bytes;
		p.window = rows[i].window;
		for (int k = 0; k < 2; k++) {
			p.threads = 1 + 2 * k;
			struct prepared made = run(&p, text.s);
			int64_t found = check_letters(&made.files);
			int64_t *first = rows[i].dedup ? &n_unique : &n;
			*first = *first ? *first : found;
			assert_int_equal(found, *first);
			assert_int_equal(made.n_counted, found);
			out[k] = tokens_of(&made.files, SPLIT_TRAIN);
			strs_free(&made.files);
		}
		assert_string_equal(out[0].s, out[1].s);
		str_free(&out[0]);
		str_free(&out[1]);
	}
	assert_true(n_unique < n);
	str_free(&text);
}

/* Each window has whole documents; best fit leaves less than first fit in the order of the text would. */
TEST_AFTER(begin, windows_have_whole_documents)
{
	enum { N = 50 };
	struct str text = many(500);
	struct prepare p = plain(RECORD_PROMPT);
	p.window = N;
	struct prepared made = run(&p, text.s);
	struct corpus *c;
	int64_t windows = made.n_windows, padding = 0;
	assert_int_equal(made.info.window_tokens, N);
	assert_int_equal(made.n_too_long, 0);
	assert_int_equal(corpus_open(&c, &made.files, CORPUS_DOCUMENTS, &e), 0);
	assert_int_equal(corpus_verify(c, &e), 0);
	assert_int_equal(corpus_tokens(c, SPLIT_TRAIN), windows * N + 1);
	int32_t *ids = xcalloc((size_t)windows * N + 1, sizeof(*ids));
	assert_int_equal(corpus_read(c, SPLIT_TRAIN, 0, windows * N + 1, ids, &e), 0);
	corpus_mark(c, SPLIT_TRAIN, 0, windows * N + 1, ids);
	for (int64_t i = 0; i < windows * N; i++) {
		if (i % N == 0)
			assert_true(ids[i] & DOCUMENT_BEGINS);
		padding += !(ids[i] & ~TOKEN_FLAGS);
	}
	assert_int_equal(ids[windows * N], TOKEN_FLAGS); /* the last target */
	assert_int_equal(made.n_padding, padding);
	assert_true(padding < windows * N / 20);
	free(ids);
	corpus_close(c);
	strs_free(&made.files);
	str_free(&text);
}

TEST_AFTER(begin, documents_longer_than_windows)
{
	static const char text[] = "{\"prompt\": \"a\", \"completion\": \"BCDEFG\"}\n"
				   "{\"prompt\": \"h\", \"completion\": \"I\"}\n";
	struct prepare p = plain(RECORD_PROMPT);
	p.window = 4;
	p.too_long = LONG_CUT;
	expect(&p, text, "-98 66 67 68\n-105 73\n-1 -1\n-1\n");
	p.too_long = LONG_SPLIT;
	expect(&p, text, "-98 66 67 68\n-70 70 71\n-1\n-105 73\n-1 -1\n-1\n");
	p.too_long = LONG_DROP;
	expect(&p, text, "-105 73\n-1 -1\n-1\n");
	p.record = RECORD_TEXT; /* all of a text counts */
	p.too_long = LONG_SPLIT;
	expect(&p, "{\"text\": \"abcdefg\"}\n", "-98 98 99 100\n-102 102 103\n-1\n-1\n");
	p.window = 1;
	p.too_long = LONG_DROP;
	refuses(&p, "{\"text\": \"abcdefg\"}\n", "no document fits");
}

/* Shards to shards of another size, and token files with masks. */
TEST_AFTER(begin, conversions_keep_marks)
{
	static const uint8_t mask[] = {1, 0, 1, 1, 0, 1};
	static const uint16_t ids[] = {5, 6, 7, 0, 8, 9};
	struct strs none = {0}, inputs = {0}, masks = {0};
	struct str text = many(100);
	struct prepare p = plain(RECORD_PROMPT), q = plain(RECORD_TEXT);
	struct prepared again;
	p.window = 64;
	p.val_fraction = 0.2;
	struct prepared made = run(&p, text.s);
	q.out = test_path("again");
	q.shard_bytes = 500;
	struct token_convert c = {&q, "auto", "shard", &none, &none, NULL, 0, -1};
	assert_int_equal(token_convert_run(&c, &made.files, &again, &e), 0);
	assert_int_equal(again.info.window_tokens, 64);
	assert_int_equal(again.n_counted, made.n_counted);
	for (int s = 0; s < N_SPLITS; s++) {
		struct str a = tokens_of(&made.files, (enum split)s),
			   b = tokens_of(&again.files, (enum split)s);
		assert_string_equal(a.s, b.s);
		str_free(&a);
		str_free(&b);
	}
	strs_free(&made.files);
	strs_free(&again.files);
	str_free(&text);

	strs_add(&inputs, test_bytes("ids.bin", ids, sizeof(ids)));
	strs_add(&masks, test_bytes("ids.mask", mask, sizeof(mask)));
	q = plain(RECORD_TEXT);
	c = (struct token_convert){&q, "auto", "shard", &none, &masks, NULL, 0, 0};
	assert_int_equal(token_convert_run(&c, &inputs, &again, &e), 0);
	struct str got = tokens_of(&again.files, SPLIT_TRAIN);
	assert_string_equal(got.s, "-6 -7 7 0\n-9 9\n");
	str_free(&got);
	strs_free(&again.files);
	strs_free(&masks);
	strs_add(&masks, test_bytes("ids.mask", mask, sizeof(mask) - 1));
	assert_int_equal(token_convert_run(&c, &inputs, &again, &e), -1);
	assert_non_null(
		strstr(e.msg, "this mask is for 5 tokens, but its token file has 6"));
	strs_free(&again.files);
	strs_free(&inputs);
	strs_free(&masks);
}

/* data: documents from text, lines of JSONL, filters, pieces in work files, duplicates. */
#include "tests/support/support.h"
#include "prepare/assembly.h"
#include "prepare/shard_writer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct err e;

static int begin(void **state)
{
	(void)state;
	e = (struct err){0};
	return 0;
}

/* ---- reader ---------------------------------------------------------------------------- */

/* Reads one file of text; the parts, one after the other, must be the text. Returns the documents. */
static int64_t read_back(const char *text, const char *separator)
{
	struct prepare p = {
		.separator = separator, .as_is = true, .tokenizer.name = "char"};
	struct inputs in;
	struct strs paths = {0};
	struct batch b = {0};
	struct str all = {0};
	int64_t n = 0, rc;
	strs_add(&paths, test_file("text", text));
	assert_int_equal(inputs_open(&in, &p, &paths, &e), 0);
	struct reader *r = reader_open(&p, &in, NULL, false);
	while ((rc = reader_next(r, &b, &e)) > 0) {
		for (int64_t i = 0; i < b.n_parts; i++) {
			const struct document_part *part = &b.parts[i];
			assert_int_equal(part->position, all.len);
			assert_true(part->n_bytes > 0);
			str_add(&all, b.text.s + part->at, (size_t)part->n_bytes);
			n += part->last;
		}
	}
	assert_int_equal(rc, 0);
	assert_int_equal(all.len, strlen(text));
	assert_memory_equal(all.s, text, all.len);
	assert_true(reader_close(r) == hash_bytes(text, strlen(text), 0));
	batch_release(&b);
	str_free(&all);
	inputs_close(&in);
	strs_free(&paths);
	return n;
}

TEST_AFTER(begin, documents_of_a_text)
{
	assert_int_equal(read_back("one", NULL), 1);
	assert_int_equal(read_back("", NULL), 0);
	assert_int_equal(read_back("one\ntwo\n", "\n"), 2);
	assert_int_equal(read_back("one\ntwo", "\n"), 2);
	assert_int_equal(read_back("\n\n\n", "\n"), 3);
	assert_int_equal(read_back("a<><>b<", "<>"), 3);
}

/* Larger than a batch: whole, with a separator at each place around the cut, and of characters of three
 * bytes. */
TEST_AFTER(begin, large_documents)
{
	enum { PART = 1 << 21 };
	for (int64_t n = PART - 3; n <= PART + 3; n++) {
		struct str s = {0};
		for (int64_t i = 0; i < n; i++)
			str_putc(&s, (char)('a' + i % 23));
		assert_int_equal(read_back(s.s, NULL), 1);
		str_puts(&s, "<|>and another");
		assert_int_equal(read_back(s.s, "<|>"), 2);
		str_free(&s);
	}
	struct str s = {0};
	for (int64_t i = 0; i < PART; i++)
		str_puts(&s, "€");
	assert_int_equal(read_back(s.s, NULL), 1);
	str_free(&s);
}

TEST_AFTER(begin, cuts_between_characters)
{
	static const char text[] = "aé€😀";
	static const int64_t want[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
	for (int64_t n = 0; n <= 10; n++)
		assert_int_equal(tokenizer_cut(NULL, text, n, &e), want[n]);
}

/* ---- lines -------------------------------------------------------------------------------- */

TEST_AFTER(begin, lines_of_jsonl)
{
	struct str out = {0};
	static const char good[] = "{\"id\": 1, \"text\": \"a\\u00e9\\u0000\\n\"}\r";
	static const char *const bad[] = {"", "{", "[]", "5", "{\"text\": 5}",
		"{\"texts\": \"\"}", "{\"text\": \"\\ud800\"}", "{\"text\": \"\"} x",
		"{\"text\": \"\xff\"}"};
	assert_int_equal(
		jsonl_read_text(good, (int64_t)strlen(good), "text", &out, &e), 0);
	assert_int_equal(out.len, 5);
	assert_memory_equal(out.s, "a\xc3\xa9\0\n", 5);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct err why = {0};
		assert_int_equal(jsonl_read_text(bad[i], (int64_t)strlen(bad[i]), "text",
					 &out, &why),
			-1);
		assert_int_equal(why.code, EX_DATAERR);
		assert_int_equal(out.len, 5);
	}
	str_free(&out);
}

/* Lines with changed bytes mean the same to the fast reader and to jansson. */
TEST_AFTER(begin, fast_lines)
{
	static const char line[] = "{\"id\": 10, \"text\" : \"a\\u00e9\\n \\\\ é\", "
				   "\"x\":null,\"y\":\"text\"} ";
	static const char bytes[] = "\"\\:,{}[] 0u\x80\xc3\n-.etn\x1f";
	for (size_t at = 0; at < sizeof(line) - 1; at++) {
		for (size_t k = 0; k < sizeof(bytes); k++) {
			char copy[sizeof(line)];
			struct str a = {0}, b = {0};
			struct err x = {0}, y = {0};
			memcpy(copy, line, sizeof(line));
			copy[at] = bytes[k];
			assert_int_equal(
				jsonl_read_text(copy, sizeof(line) - 1, "text", &a, &x),
				jsonl_parse_text(copy, sizeof(line) - 1, "text", &b, &y));
			assert_int_equal(a.len, b.len);
			if (a.len)
				assert_memory_equal(a.s, b.s, a.len);
			str_free(&a);
			str_free(&b);
		}
	}
}

TEST_AFTER(begin, filters)
{
	struct prepare p = {.min_bytes = 2, .max_bytes = 6};
	strs_add(&p.keep, "[ab]");
	strs_add(&p.drop, "^b");
	struct filter *f = filter_new(&p, &e);
	assert_int_equal(filter_fate(f, "a", 1, &e), FATE_SHORT);
	assert_int_equal(filter_fate(f, "aaaaaaa", 7, &e), FATE_LONG);
	assert_int_equal(filter_fate(f, "cc", 2, &e), FATE_NOT_KEEP);
	assert_int_equal(filter_fate(f, "ba", 2, &e), FATE_DROP);
	assert_int_equal(filter_fate(f,
				 "\xff"
				 "ab",
				 3, &e),
		FATE_KEPT);
	filter_free(f);
	strs_add(&p.keep, "(");
	assert_null(filter_new(&p, &e));
	assert_int_equal(e.code, EX_USAGE);
	strs_free(&p.keep);
	strs_free(&p.drop);
}

/* ---- work files ---------------------------------------------------------------------------- */

static struct hash128 key_of(int64_t number)
{
	return hash128_bytes(&number, sizeof(number), 0);
}

static void add(struct pieces *w, int64_t number)
{
	struct piece p = {.head = {.number = number,
				  .key = key_of(number),
				  .n_documents = 1,
				  .n_tokens = number,
				  .row_bytes = 2}};
	struct piece_document d = {.n_tokens = number, .first = 1, .last = 1};
	p.documents = &d;
	for (int64_t i = 0; i < number; i++)
		str_add(&p.tokens, &(uint16_t){(uint16_t)i}, 2);
	str_puts(&p.messages, "a line");
	assert_int_equal(pieces_add(w, &p, &e), 0);
	str_free(&p.tokens);
	str_free(&p.messages);
}

static int64_t n_pieces(const char *work)
{
	int64_t n = 0;
	struct pieces *w = pieces_open(work, 0, &e);
	assert_non_null(w);
	for (int64_t i = 0; i < 10; i++)
		n += pieces_contain(w, i, key_of(i));
	assert_false(pieces_contain(w, 3, key_of(4)));
	pieces_close(w);
	return n;
}

/* At any length of the file and with any wrong byte, the pieces before are taken and no other. */
TEST_AFTER(begin, damaged_work_files)
{
	char work[4096], path[4200];
	struct str whole = {0};
	snprintf(work, sizeof(work), "%s", test_path("work"));
	snprintf(path, sizeof(path), "%s/pieces-0", work);
	struct pieces *w = pieces_open(work, 0, &e);
	assert_non_null(w);
	for (int64_t i = 0; i < 5; i++)
		add(w, i);
	assert_false(pieces_contain(w, 1, key_of(1))); /* it was not there */
	pieces_close(w);
	assert_int_equal(n_pieces(work), 5);
	assert_int_equal(file_read(path, 1 << 20, &whole, &e), 0);
	int64_t n = (int64_t)whole.len, last = n;
	for (int64_t size = n; size >= 0; size -= 7) {
		assert_int_equal(truncate(path, size), 0);
		int64_t now = n_pieces(work);
		assert_true(now <= last && (size == n || now < 5));
		last = now;
	}
	assert_int_equal(last, 0);
	for (int64_t at = 0; at < n; at += 5) {
		struct str s = {0};
		str_add(&s, whole.s, whole.len);
		s.s[at] ^= 1;
		assert_int_equal(file_replace(path, &s, &e), 0);
		assert_true(n_pieces(work) < 5);
		str_free(&s);
	}
	str_free(&whole);
}

TEST_AFTER(begin, one_program_has_a_work_folder)
{
	struct pieces *w = pieces_open(test_path("own"), 0, &e);
	assert_non_null(w);
	assert_null(pieces_open(test_path("own"), 0, &e));
	assert_int_equal(e.code, EX_IOERR);
	pieces_remove(w);
	pieces_close(w);
	assert_false(file_exists(test_path("own")));
}

static void assert_starts(
	const char *file, enum split s, const int64_t *want, int64_t n_want)
{
	struct h5 *h;
	int64_t *at, n;
	assert_int_equal(h5_open(&h, file, &e), 0);
	assert_int_equal(h5_get(h, document_paths[s], H5_I64, -1, SHARD_MAX_DOCUMENTS,
				 (void **)&at, &n, &e),
		0);
	assert_int_equal(n, n_want);
	for (int64_t i = 0; i < n; i++)
		assert_int_equal(at[i], want[i]);
	free(at);
	assert_int_equal(h5_close(h, &e), 0);
}

/* Documents of 5, 4, 0, 6 and 3 tokens, of which the last two are in both splits and in several files. */
TEST_AFTER(begin, shards_know_their_documents)
{
	static const int64_t n_tokens[] = {5, 4, 0, 6, 3};
	static const uint32_t ids[6] = {1, 2, 3, 4, 5, 6};
	struct tokenizer t;
	struct prepared made = {0};
	assert_int_equal(tokenizer_init(&t, "byte", &e), 0);
	assert_int_equal(t.kind->learn_end(&t, &e), 0);
	struct prepare p = {.tokenizer = {.name = "byte"},
		.shard_bytes = 16,
		.out = test_path("known")};
	struct shard_info info = {.split = "tail", .total = {16, 2}};
	struct shard_writer *w = shard_writer_open(&p, &t, &info, &e);
	for (int i = 0; i < 5; i++) {
		int64_t val = i == 4 ? 2 : 0;
		shard_writer_begin_document(w, SPLIT_TRAIN);
		assert_int_equal(
			shard_writer_append(w, SPLIT_TRAIN, ids, n_tokens[i] - val, &e),
			0);
		assert_int_equal(shard_writer_append(w, SPLIT_VAL, ids, val, &e), 0);
	}
	assert_int_equal(shard_writer_finish(w, &made, &e), 0);
	shard_writer_close(w);
	assert_int_equal(made.files.n, 3);
	assert_starts(made.files.v[0], SPLIT_TRAIN, (int64_t[]){0, 5}, 2);
	assert_starts(made.files.v[1], SPLIT_TRAIN, (int64_t[]){1, 7}, 2);
	assert_starts(made.files.v[2], SPLIT_TRAIN, NULL, 0);
	assert_starts(made.files.v[2], SPLIT_VAL, NULL, 0);
	strs_free(&made.files);
	tokenizer_release(&t);
}

/* Of all that follows a cut, it wants a byte more than it wanted before. */
static int64_t moody(const struct tokenizer *t, const char *text, int64_t n, bool final,
	uint32_t *out, int64_t room, int64_t *n_out, struct err *err)
{
	(void)t, (void)text, (void)room, (void)err;
	*n_out = 0;
	return final ? n : max64(0, n - (out ? 2 : 1));
}

TEST_AFTER(begin, a_cut_that_is_not_found_again)
{
	static const struct tokenizer_kind kind = {.name = "moody", .encode = moody};
	struct tokenizer t = {.kind = &kind, .vocab = {.offset = (int64_t[]){0}}};
	struct prepare p = {.as_is = true, .tokenizer.name = "char"};
	struct comm self = {.size = 1};
	struct inputs in;
	struct strs paths = {0};
	struct str s = {0};
	for (int64_t i = 0; i < 3 << 20; i++)
		str_putc(&s, 'a');
	strs_add(&paths, test_file("moods", s.s));
	assert_int_equal(inputs_open(&in, &p, &paths, &e), 0);
	struct encoding x = {.p = &p,
		.inputs = &in,
		.t = &t,
		.end_of_text = -1,
		.row_bytes = 2,
		.filter = filter_new(&p, &e),
		.pieces = pieces_open(NULL, 0, &e),
		.comm = &self};
	assert_int_equal(encode_all(&x, &e), -1);
	assert_int_equal(e.code, EX_DATAERR);
	assert_non_null(strstr(e.msg, "moods: byte "));
	assert_non_null(strstr(e.msg, "cannot be encoded in parts"));
	pieces_close(x.pieces);
	filter_free((struct filter *)x.filter);
	free(x.keys);
	inputs_close(&in);
	strs_free(&paths);
	str_free(&s);
}

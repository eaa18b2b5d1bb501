#!/usr/bin/env bats
# pt-prepare: counts, splits, shards, decoding, pipes.
load helpers

value() { # KEY FILE
	pt-prepare --info "$2" | sed -n "s/^$1 = //p"
}

@test "characters: vocabulary, counts, split as nanoGPT's" {
	make_text >text.txt
	pt-prepare -q text.txt -o a.h5
	chars=$(wc -m <text.txt)
	[ "$(value vocab a.h5)" -eq "$(grep -o . text.txt | sort -u | wc -l)" ] ||
		[ "$(value vocab a.h5)" -eq "$(($(grep -o . text.txt | sort -u | wc -l) + 1))" ]
	[ "$(value train_tokens a.h5)" -eq $((chars * 9 / 10)) ]
	[ "$(value val_tokens a.h5)" -eq $((chars - chars * 9 / 10)) ]
	[ "$(value source_bytes a.h5)" -eq "$(wc -c <text.txt)" ]
}

@test "decoding gives the text back" {
	make_text >text.txt
	for t in byte char; do
		pt-prepare -q -t $t text.txt -o $t.h5
		{
			pt-prepare --decode train $t.h5
			pt-prepare --decode val $t.h5
		} | cmp - text.txt
	done
}

@test "UTF-8: characters of one to four bytes, whatever the pieces" {
	for i in $(seq 3000); do printf 'a\303\244\342\202\254\360\237\230\200%s' "$i"; done >u.txt
	pt-prepare -q u.txt -o u.h5 -f 0
	pt-prepare --decode train u.h5 | cmp - u.txt
	[ "$(value train_tokens u.h5)" -eq "$(LC_ALL=C.UTF-8 wc -m <u.txt)" ]
	[ "$(value vocab u.h5)" -eq 14 ]
}

@test "text that is no UTF-8 is refused, and nothing is left behind" {
	for bad in '\377' '\300\257' '\355\240\200' '\364\220\200\200' 'ab\303'; do
		printf "$bad" >bad.txt
		reports 65 'not UTF-8' pt-prepare bad.txt -o bad.h5
		not ls bad.h5*
	done
	printf 'good\377' >bad.txt
	reports 65 'bad.txt: byte 4' pt-prepare bad.txt -o bad.h5
	pt-prepare -q -t byte bad.txt -o byte.h5
}

@test "many shards are one corpus" {
	make_text >text.txt
	pt-prepare -q text.txt -o one.h5
	pt-prepare -q text.txt -o part --shard-size 8000
	[ "$(ls part-*.h5 | wc -l)" -eq 10 ]
	pt-prepare --decode train part-*.h5 | cmp - <(pt-prepare --decode train one.h5)
	pt-prepare --decode val part-*.h5 | cmp - <(pt-prepare --decode val one.h5)
	# in any order, but all of them
	pt-prepare --decode train part-0000{9..0}.h5 | cmp - <(pt-prepare --decode train one.h5)
	reports 65 'of 10' pt-prepare --decode train part-00000.h5 part-00002.h5
}

@test "documents: whole ones for validation, all text kept" {
	for i in $(seq 200); do printf 'document %s\n<|end|>\n' "$i"; done >docs.txt
	pt-prepare -q -s document --separator $'<|end|>\n' -f 0.2 docs.txt -o d.h5
	[ "$(value documents d.h5)" -eq 200 ]
	pt-prepare --decode train d.h5 >train.txt
	pt-prepare --decode val d.h5 >val.txt
	[ "$(cat train.txt val.txt | sort)" = "$(sort docs.txt)" ]
	n=$(grep -c document val.txt)
	[ "$n" -ge 20 ]
	[ "$n" -le 60 ]
	[ "$(tail -n 1 val.txt)" = '<|end|>' ]
	# another seed, another choice; the same seed, the same
	pt-prepare -q -s document --separator $'<|end|>\n' -f 0.2 --seed 2 docs.txt -o e.h5
	not cmp -s <(pt-prepare --decode val e.h5) val.txt
	pt-prepare -q -s document --separator $'<|end|>\n' -f 0.2 docs.txt -o f.h5
	cmp d.h5 f.h5
	reports 65 'documents: 1; none is chosen for' pt-prepare -s document docs.txt -o g.h5
}

@test "several files, and standard input, are one text" {
	make_text >text.txt
	head -c 12345 text.txt >a.txt
	tail -c +12346 text.txt >b.txt
	pt-prepare -q text.txt -o one.h5
	pt-prepare -q a.txt b.txt -o two.h5
	pt-prepare -q - <text.txt >three.h5
	cat text.txt | pt-prepare -q >four.h5
	pt-prepare -q a.txt - <b.txt -o five.h5
	for f in two three four five; do
		pt-prepare --decode train $f.h5 | cmp - <(pt-prepare --decode train one.h5)
	done
	cmp three.h5 four.h5
	cmp three.h5 one.h5
}

@test "two bytes a token, or four, by need" {
	# 66,000 different characters
	LC_ALL=C awk 'BEGIN { for (c = 131072; c < 197072; c++)
		printf "%c%c%c%c", 240 + int(c / 262144), 128 + int(c / 4096) % 64, 128 + int(c / 64) % 64, 128 + c % 64 }' >wide.txt
	pt-prepare -q wide.txt -o wide.h5 -f 0
	[ "$(value vocab wide.h5)" -eq 66000 ]
	h5dump -H -d /train wide.h5 | grep -q H5T_STD_U32LE
	pt-prepare --decode train wide.h5 | cmp - wide.txt
	make_shard small.h5
	h5dump -H -d /train small.h5 | grep -q H5T_STD_U16LE
}

@test "an existing file is kept, unless told otherwise" {
	make_shard a.h5
	cp a.h5 before.h5
	reports 74 'a.h5 exists' pt-prepare text.txt -o a.h5
	cmp a.h5 before.h5
	pt-prepare -q --overwrite text.txt -o a.h5
}

@test "an output that is an input is refused, and nothing is read or replaced" {
	make_text >text.txt
	cp text.txt before.txt
	mkdir dir '[a]'
	ln -s ../text.txt dir/link
	is_input() { # NAME OPTION...
		reports 64 "$1 is an input" pt-prepare -t byte --overwrite "${@:2}"
		cmp text.txt before.txt
	}
	is_input ./text.txt text.txt -o ./text.txt
	is_input text.txt -o text.txt <text.txt
	is_input dir/link text.txt -o dir/link
	is_input text.txt dir -o text.txt
	is_input text.txt 'te*.txt' -o text.txt
	is_input text.txt --source a=1:text.txt -o text.txt
	code_of 64 pt-prepare text.txt -o text.txt # no advice that would lose it
	reports 64 'standard output is an input' bash -c 'pt-prepare -q text.txt 1<>text.txt'
	cmp text.txt before.txt
	pt-prepare -q -t byte text.txt -o '[a]/s.h5' --shard-size 30000
	is_input '[a]/s-00001.h5' '[a]/s-00001.h5' -o '[a]/s' --shard-size 8000
	is_input '[a]/s-00000.h5' --vocab-from '[a]/s-00000.h5' --format nanogpt text.txt \
		-o '[a]/s.h5' --shard-size 8000
	pt-prepare -q -t byte text.txt --to megatron -o my
	cp my_train.bin before.bin
	is_input my_train.bin my_train -o my --to megatron
	is_input my_val.bin text.txt --format nanogpt --val-file my_val.bin -o my.bin --to llmc
	is_input my_train.bin text.txt --format nanogpt --mask-file my_train.bin -o my --to llmc
	cmp my_train.bin before.bin
	# others of the folder are no inputs
	pt-prepare -q -t byte text.txt -o other.h5
	pt-prepare -q -t byte --overwrite text.txt -o other.h5
}

@test "empty text, empty folders and missing files are refused" {
	: >empty.txt
	reports 65 'the text is empty' pt-prepare empty.txt -o e.h5
	code_of 74 pt-prepare nothing.txt -o e.h5
	mkdir folder
	reports 65 'folder: the directory has no files' pt-prepare folder -o e.h5
	reports 74 'no*.txt: no file matches the pattern' pt-prepare 'no*.txt' -o e.h5
	code_of 65 pt-prepare --info text.txt || code_of 74 pt-prepare --info text.txt
	code_of 64 pt-prepare --info
	[ ! -e e.h5 ]
}

@test "tinyshakespeare, where it is at hand: the figures of the wordplay talk" {
	text=${PT_SHAKESPEARE:-$BATS_TEST_DIRNAME/../../shared/data/tinyshakespeare.txt}
	[ -e "$text" ] || skip "no tinyshakespeare (PT_SHAKESPEARE=FILE)"
	pt-prepare -q "$text" -o s.h5
	[ "$(value vocab s.h5)" -eq 65 ]
	[ "$(value train_tokens s.h5)" -eq 1003854 ]
	[ "$(value val_tokens s.h5)" -eq 111540 ]
}

@test "memory does not grow with the text" {
	plain_memory
	make_text >text.txt
	for i in $(seq 2000); do cat text.txt; done >big.txt # 80 MB
	/usr/bin/env bash -c 'ulimit -d 60000; pt-prepare -q big.txt -o big.h5'
	[ "$(value train_tokens big.h5)" -eq $((40000 * 2000 * 9 / 10)) ]
}

# Runs until a file of the pattern is there, then gets the signal; once more if it ends before
# that: the file may be there for a moment only, and this shell may have to wait for a processor.
killed() { # SIGNAL PATTERN COMMAND...
	local sig=$1 pattern=$2
	shift 2
	for _ in $(seq 200); do
		env --default-signal="$sig" "$@" 3>&- &
		until compgen -G "$pattern" >/dev/null; do
			kill -0 $! 2>/dev/null || break
			sleep 0.003
		done
		kill -s "$sig" $! 2>/dev/null || true
		ended $!
		[ "$status" -eq 0 ] || break
		rm -f part* # complete
	done
	[ "$status" -eq $((128 + $(kill -l "$sig"))) ]
}

@test "a signal that another thread takes while a file is made leaves no file" {
	! sanitized || skip 'the sanitizer wants to come first'
	cat >ender.c <<-'END'
		#define _GNU_SOURCE
		#include <dlfcn.h>
		#include <pthread.h>
		#include <signal.h>
		#include <stdlib.h>
		#include <unistd.h>
		static void *take_signal(void *to)
		{
			sigset_t term;
			sigemptyset(&term);
			sigaddset(&term, SIGTERM);
			pthread_sigmask(SIG_UNBLOCK, &term, NULL);
			kill(getpid(), SIGTERM);
			return to;
		}
		int mkostemp(char *path, int flags)
		{
			int (*make)(char *, int) = (int (*)(char *, int))dlsym(RTLD_NEXT, "mkostemp");
			int fd = make(path, flags);
			pthread_t t;
			if (!pthread_create(&t, NULL, take_signal, NULL))
				usleep(100000); /* it is not in the list yet */
			return fd;
		}
	END
	cc -shared -fPIC -o ender.so ender.c -ldl -pthread
	make_text >text.txt
	mkdir tmp
	LD_PRELOAD=$PWD/ender.so TMPDIR=$PWD/tmp pt-prepare -q text.txt -o out.h5 3>&- &
	ended $!
	[ "$status" -eq 143 ]
	[ -z "$(ls tmp)" ]
}

@test "a signal that ends the program leaves no temporary file" {
	make_text >text.txt
	mkdir tmp
	export TMPDIR=$PWD/tmp
	mkfifo never
	exec 4<>never # a reader that takes nothing
	# (a sanitizer reports SIGBUS itself)
	for s in TERM HUP INT PIPE $(sanitized || echo BUS); do
		killed $s 'part-*.tmp' pt-prepare -q text.txt -o part --shard-size 16 2>err
		not ls part*
	done
	for _ in $(seq 2000); do cat text.txt; done >big.txt
	killed TERM 'tmp/*' pt-prepare -q big.txt -o never
	[ -z "$(ls tmp)" ]
	# while it waits for a reader, even one that it does not see
	pt-prepare -q text.txt -o never 3>&- &
	head -c 1 <&4 >/dev/null
	kill -9 $!
	ended $!
	[ -z "$(ls tmp)" ]
	exec 4<&-
	pt-prepare -q text.txt -o whole.h5
	mkfifo half
	exec 4<>half
	head -c 1000 whole.h5 >&4
	killed TERM 'tmp/*' bash -c 'exec pt-train -q -d - <half'
	[ -z "$(ls tmp)" ]
	exec 4<&-
	# a file that became too large
	code_of 74 bash -c 'ulimit -f 20; exec pt-prepare -q text.txt -o large.h5'
	says 'File too large'
	not ls large*
	# one that is ignored stays so
	code_of 74 bash -c 'trap "" XFSZ; ulimit -f 20; exec pt-prepare -q text.txt -o large.h5'
	not ls large*
}

@test "two at once do not meet" {
	make_text >text.txt
	pt-prepare -q text.txt -o one.h5
	for _ in $(seq 5); do
		pt-prepare -q text.txt --overwrite -o a.h5 3>&- &
		pt-prepare -q text.txt --overwrite -o a.h5
		ended $!
		[ "$status" -eq 0 ]
		cmp a.h5 one.h5
	done
	[ "$(ls)" = $'a.h5\none.h5\ntext.txt' ]
}

@test "a shard has exactly the name it was given" {
	make_text >text.txt
	for name in a a.b a.h5 .h5; do
		pt-prepare -q text.txt -o $name
		pt-prepare --verify $name
	done
	[ "$(ls -A)" = $'.h5\na\na.b\na.h5\ntext.txt' ]
	pt-prepare -q text.txt -o few.h5 --shard-size 1M
	pt-prepare -q text.txt -o more.h5 --shard-size 50K
	[ "$(echo few* more*)" = 'few.h5 more-00000.h5 more-00001.h5' ]
	mkdir folder
	for name in . folder folder/ nofolder/; do
		reports 74 "$name is a directory" pt-prepare text.txt -o $name
	done
	reports 64 'the name is empty' pt-prepare text.txt -o ''
	code_of 64 bash -c 'PT_OUT= pt-prepare text.txt'
	code_of 74 pt-prepare nothing.txt -o a.h5 # before the text is read
	says 'a.h5 exists'
}

@test "many files: as texts, and as shards as far as their names have digits" {
	make_text >text.txt
	mkdir many
	split -a 3 -b 200 text.txt many/
	[ "$(ls many | wc -l)" -eq 200 ]
	pt-prepare -q text.txt -o one.h5
	bash -c 'ulimit -n 64; pt-prepare -q many/* -o many.h5'
	[ "$(value source_files many.h5)" -eq 200 ]
	[ "$(value source_xxh3 many.h5)" = "$(value source_xxh3 one.h5)" ]
	cmp <(pt-prepare --decode train many.h5) <(pt-prepare --decode train one.h5)
	for _ in 1 2 3; do cat text.txt; done >large.txt
	code_of 64 pt-prepare large.txt -o part --shard-size 1
	says '--shard-size 1: 120000 files, but the maximum is 99999; give a larger size'
	not ls part*
}

@test "standard input is read from where it stands, to its end" {
	make_text >text.txt
	tail -c +10001 text.txt >rest.txt
	pt-prepare -q rest.txt -o rest.h5
	{
		dd bs=1000 count=10 of=/dev/null status=none
		pt-prepare -q -o same.h5
		[ -z "$(cat)" ]
	} <text.txt
	cmp same.h5 rest.h5
	{
		cat >/dev/null
		code_of 65 pt-prepare -o none.h5
	} <text.txt
	says 'the text is empty'
}

# The vocabulary is read before the text is encoded. Meanwhile it waits for a FIFO behind in.txt.
changed() { # COMMAND...: what changes in.txt meanwhile
	printf '%06d ä\n' $(seq 1000) >in.txt
	rm -f err # what is waited for would be in that of the last one
	TMPDIR=$PWD/tmp pt-prepare in.txt fifo -o out.h5 2>err 3>&- &
	wait_for 'waiting for data from the FIFO' err
	"$@"
	echo >fifo
	ended $!
	[ "$status" -eq 65 ]
	grep -qF 'the text changed while it was read' err
	not ls out.h5*
	[ -z "$(ls tmp)" ]
}

@test "text that changes while it is read is refused" {
	mkdir tmp
	mkfifo fifo
	change() { sed "$1" in.txt | head -c 10000 | dd of=in.txt conv=notrunc status=none; }
	changed change 's/ä/ö/' # another character
	changed change 's/1/2/'
	changed change 's/ä/00/' # more tokens
	changed change 's/00/ä/' # fewer
	changed truncate -s 4096 in.txt
}
@test "a pipe or a device gets what standard output would" {
	make_text >text.txt
	pt-prepare -q text.txt -o a.h5
	mkdir tmp
	export TMPDIR=$PWD/tmp
	mkfifo fifo
	cat fifo >b.h5 3>&- &
	pt-prepare -q text.txt -o fifo
	ended $!
	cmp a.h5 b.h5
	[ -p fifo ]
	echo old >c.h5
	pt-prepare -q text.txt -o /dev/stdout >c.h5
	cmp a.h5 c.h5
	pt-prepare -q text.txt -o /dev/stdout | cmp - a.h5
	pt-prepare -q text.txt -o >(cat >d.h5)
	wait_for . d.h5
	pt-prepare -q text.txt -o /dev/null
	reports 74 '/dev/full: No space left' pt-prepare text.txt -o /dev/full
	reports 64 '/dev/null can hold only one' pt-prepare text.txt -o /dev/null --shard-size 8K
	[ -z "$(ls tmp)" ]
}

@test "messages name what the user gave" {
	make_shard a.h5
	code_of 65 bash -c ': | pt-train -q -d -'
	says 'standard input is empty'
	for o in --info --verify '--decode train'; do
		code_of 65 bash -c "echo hello | pt-prepare $o -"
		says 'standard input: not an HDF5 file'
		reports 65 'standard input is empty' bash -c "pt-prepare $o - </dev/null"
	done
	reports 74 ': nodir/a.h5: No such file' pt-prepare text.txt -o nodir/a.h5
	code_of 74 bash -c 'TMPDIR=/nodir pt-prepare text.txt | cat; exit ${PIPESTATUS[0]}'
	says 'a temporary file in /nodir: No such file'
	code_of 74 bash -c 'cat text.txt | TMPDIR=/nodir pt-prepare -o b.h5'
	says 'a temporary file in /nodir: No such file'
	code_of 74 bash -c 'trap "" XFSZ; ulimit -f 20; pt-prepare text.txt -o /dev/null'
	says "a temporary file in ${TMPDIR:-/tmp}: File too large"
}

@test "shards come through standard input, too" {
	make_shard a.h5
	pt-prepare --decode train a.h5 >train.txt
	pt-prepare --decode train - <a.h5 | cmp - train.txt
	cat a.h5 | pt-prepare --decode train - | cmp - train.txt
	pt-prepare --info a.h5 | tail -n +2 | cmp - <(pt-prepare --info - <a.h5 | tail -n +2)
	cat a.h5 | pt-prepare --verify - | grep -qx -- '-: ok'
}

@test "--verify finds what --info does not look at" {
	make_text >text.txt
	pt-prepare -q -t byte -f 0.1 text.txt -o v.h5
	size=$(stat -c %s v.h5)
	damage v.h5 train.h5 $((size / 2))
	pt-prepare --info train.h5 >/dev/null
	reports 65 'train.h5: DAMAGED' pt-prepare --verify train.h5
	says 'train.h5: /train: rows 0 to 35999 do not match their checksum'
	head -c $((size / 2)) v.h5 >cut.h5
	code_of 65 pt-prepare --verify v.h5 cut.h5 train.h5 v.h5
	[ "$(grep -c 'v.h5: ok' <<<"$output")" -eq 2 ]
	says 'cut.h5: DAMAGED'
	says 'train.h5: DAMAGED'
	code_of 74 pt-prepare --verify nothing.h5
	# a part of a corpus, too
	pt-prepare -q text.txt -o part --shard-size 8000
	[ "$(pt-prepare --verify part-*.h5 | grep -c ': ok')" -eq 10 ]
	pt-prepare --verify part-00003.h5
	pt-prepare --info part-00003.h5 | grep -qx 'index = 3'
	code_of 64 pt-prepare --verify
	for two in '--info --verify' '--info --decode train' '--verify --decode val'; do
		reports 64 'give one of' pt-prepare $two v.h5
	done
}

# Needs h5py, numpy and xxhash: PT_PYTHON names a Python that has them.
@test "the examples of pt-shard(5), and what somebody else's program writes" {
	python=${PT_PYTHON:-python3}
	"$python" -c 'import h5py, numpy, xxhash' 2>/dev/null || skip "no h5py (PT_PYTHON=PYTHON)"
	awk '/^\.Ed/ { on = 0 }
		on { gsub(/\\e/, "\\"); gsub(/\\\(dq/, "\""); print >"example" n ".py" }
		/^\.Bd -literal/ { on = 1; n++ }' "$BATS_TEST_DIRNAME/../../man/pt-shard.5"
	make_shard shard.h5
	"$python" example1.py | cmp -n 180 - text.txt
	"$python" example2.py shard.h5
	pt-prepare -q -t byte -f 0 text.txt -o part --shard-size 9000
	for f in part-*.h5; do "$python" example2.py "$f"; done
	damage shard.h5 bad.h5 $(($(stat -c %s shard.h5) / 2))
	code_of 1 "$python" example2.py bad.h5
	says AssertionError
	{ sed '/^if __name__/,$d' example2.py; cat example3.py; } >write.py
	"$python" write.py
	pt-prepare --verify words.h5
	[ "$(pt-prepare --decode val words.h5 | head -c 16)" = 'the cat the cat ' ]
	pt-train -q -d words.h5 --dry-run >/dev/null
	tiny -d words.h5 -n 2 -o run --sample-every 1 2>err >/dev/null
	code_of 65 pt-sample run/checkpoints/latest.h5 the
	says "the prompt: pt cannot encode with tokenizer 'words'"
	# as h5py would store tokens in chunks
	sed 's/f\[s\] = x/f.create_dataset(s, data=x, chunks=(16,))/' write.py >chunks.py
	"$python" chunks.py
	reports 65 'words.h5: dataset /train is chunked' pt-prepare --verify words.h5
	sed 's/"<u2" if/"<i8" if/' write.py >type.py
	"$python" type.py
	reports 65 'words.h5: /train is not a one-dimensional dataset' pt-prepare --info words.h5
}

# ---- byte-pair encoding -----------------------------------------------------------

vocab() { # the small vocabulary of tests/golden, and a trained one in the other formats
	mkdir json ranks
	cp "$BATS_TEST_DIRNAME/../golden/tokens/tokenizer.json" json
	cp "$BATS_TEST_DIRNAME/../golden/tokens/text" golden.txt
	pt-prepare -q --train-bpe 300 --vocab-out trained golden.txt
	mv trained/{merges.txt,vocab.json} .
	mv trained/vocab.tiktoken ranks
}

@test "byte-pair encoding: the formats of vocabularies, from a folder or a file" {
	vocab
	head -c 1000 /dev/urandom >>golden.txt
	for v in '. --pattern gpt2' 'merges.txt --pattern o200k' 'ranks --pattern cl100k' json; do
		# shellcheck disable=SC2086 # words of an option list
		pt-prepare -q -t bpe --no-end-of-text --vocab-files $v golden.txt -o b.h5 --overwrite
		{
			pt-prepare --decode train b.h5
			pt-prepare --decode val b.h5
		} | cmp - golden.txt
		[ "$(value tokenizer b.h5)" = bpe ]
	done
	code_of 64 pt-prepare -t bpe --vocab-files ranks golden.txt -o c.h5
	says 'does not specify how text is split into words; give'
	reports 65 'the file has 299 tokens, but gpt2 has 50256' pt-prepare -t gpt2 --vocab-files ranks golden.txt -o c.h5
	code_of 65 pt-prepare -t gpt2 --vocab-files . golden.txt -o c.h5
	says "merges.txt: the file has $(($(wc -l <merges.txt) - 1)) merges, but gpt2 has 50000"
	reports 64 'no vocabulary files; give --vocab-files' pt-prepare -t gpt2 golden.txt -o c.h5
	printf '\n\016\n\005<unk>\025\0\0\0\0\030\002' >tokenizer.model
	code_of 65 pt-prepare -t bpe --vocab-files tokenizer.model golden.txt -o c.h5
	says 'SentencePiece models are not supported; tokenize the text with '
	echo '{"model": {"type": "Unigram"}}' >unigram.json
	code_of 65 pt-prepare -t bpe --vocab-files unigram.json golden.txt -o c.h5
	says "the model 'Unigram' is not supported; tokenize the text with "
	code_of 64 pt-prepare -t char --vocab-files . golden.txt -o c.h5
	[ ! -e c.h5 ]
}

@test "a tokenizer of Qwen's form normalizes text, wherever a document is cut" {
	cp "$BATS_TEST_DIRNAME/../golden/tokens/qwen.json" tokenizer.json
	bpe=(pt-prepare -q -t bpe -f 0 --overwrite)
	line=$'cafe\u0301 Vie\u0323\u0302t \u1112\u1161\u11ab \u0958\u0958 \u212b and some words in ASCII\n'
	normal=$'caf\u00e9 Vi\u1ec7t \ud55c \u0915\u093c\u0915\u093c \u00c5 and some words in ASCII\n'
	yes "${line%?}" | head -40000 >text
	yes "${normal%?}" | head -40000 >normal
	"${bpe[@]}" --vocab-files tokenizer.json text -o a.h5 --threads 1
	"${bpe[@]}" --vocab-files tokenizer.json text -o b.h5 --threads 3
	cmp a.h5 b.h5
	pt-prepare --decode train a.h5 | head -c -13 | cmp - normal
	# as a tokenizer without a normalizer has it of the normal text
	jq '.normalizer = null' tokenizer.json >none.json
	"${bpe[@]}" --vocab-files none.json normal -o n.h5
	cmp <(h5dump -d train a.h5 | tail -n +2) <(h5dump -d train n.h5 | tail -n +2)
	# but it is another tokenizer
	reports 65 'its tokenizer differs from the tokenizer of a.h5' pt-train -d a.h5 -d n.h5 -n 1 -o run
	jq '.normalizer.type = "Lowercase"' tokenizer.json >lower.json
	reports 65 "the normalizer 'Lowercase' is not supported" pt-prepare -t bpe --vocab-files lower.json text -o c.h5
}

@test "spans are in characters of the text before it is normalized" {
	# é, the second of two tokens that count, and the change that it ends in
	printf '%s\n' '{"text": "x e\u0301 ab \u212b!", "spans": [[3, 4], [8, 9]]}' \
		'{"text": "x <tool_call>\u0301\u0327 y", "spans": [[14, 15]]}' >s.jsonl
	pt-prepare -q -t bpe --vocab-files "$BATS_TEST_DIRNAME/../golden/tokens/qwen.json" --record spans -f 0 s.jsonl -o s.h5
	pt-prepare --show 2 s.h5 >out
	cat out
	grep -qF $'x⟦ \u00e9⟧ ab⟦ \u00c5⟧!' out
	grep -qF $'x <tool_call>⟦\u0327\u0301⟧ y' out
}

@test "special tokens are found only if asked for" {
	vocab
	printf 'a<|endoftext|>b' >s.txt
	pt-prepare -q -t bpe --vocab-files json s.txt -f 0 -o plain.h5
	pt-prepare -q -t bpe --no-end-of-text --vocab-files json --allow-special s.txt -f 0 -o special.h5
	[ "$(value train_tokens special.h5)" -eq 3 ]
	[ "$(value train_tokens plain.h5)" -gt 3 ]
	[ "$(pt-prepare --decode train special.h5)" = "$(cat s.txt)" ]
}

@test "a word that is longer than a piece of the file" {
	vocab
	head -c 1500000 /dev/zero | tr '\0' a >long.txt
	printf ' b' >>long.txt
	pt-prepare -q -t bpe --pattern gpt2 --no-end-of-text --vocab-files merges.txt long.txt -f 0 -o long.h5
	pt-prepare --decode train long.h5 | cmp - long.txt
}

@test "a model that was trained on byte-pair encoding takes prompts" {
	vocab
	pt-prepare -q -t bpe --vocab-files json golden.txt -o b.h5
	tiny -d b.h5 -o run --steps 2 >log
	rm -r json
	pt-sample -n 5 run/checkpoints/best.h5 "It's the first day" >said
	[[ $(cat said) == "It's the first day"* ]]
}

@test "files of others are named by what is in them, with what converts them" {
	named() { # BYTES NAME TEXT
		printf "$1" >"$2"
		shift
		reports 65 "$1: $2" pt-prepare "$1" -o x.h5
		[ "$(wc -l <<<"$output")" -eq 1 ]
		not grep -- --tokenizer <<<"$output"
		code_of 65 pt-prepare - -o x.h5 <"$1"
		says "standard input: ${2%%; *}"
	}
	named 'FEA1\0' d.feather "a Feather file, which is not supported; convert it: python3 -c 'import pandas; pandas.read_feather(\"d.feather\").to_json(\"d.jsonl\", orient=\"records\", lines=True)'"
	named 'PK\003\004 and more' d.npz 'a zip archive, such as .npz, .docx or .xlsx, which is not supported; unpack it: unzip d.npz'
	named 'BZh91AY&SY' d.txt.bz2 'compressed by bzip2, which is not supported; decompress it: bzcat d.txt.bz2 >d.txt'
	named '\3757zXZ\0' d.xz 'compressed by xz, which is not supported; decompress it: xzcat d.xz >d'
	named '%%PDF-1.7' d.pdf 'a PDF document, which is not supported; convert it: pdftotext d.pdf d.txt'
	named 'SQLite format 3\0' d.db 'an SQLite database, which is not supported; convert it: sqlite3 d.db'
	printf 'FEA1\0' | tee chat.jsonl >'a b;c'
	printf 'PAR1\025\004\025' >d.parquet
	code_of 65 pt-prepare --format jsonl d.parquet -o x.h5
	says 'd.parquet: a Parquet table, which is not supported; omit --format'
	for o in '--format jsonl' '--chat-template chatml -t byte' '--train-bpe 300 --vocab-out v'; do
		read -ra o <<<"$o"
		code_of 65 pt-prepare -q "${o[@]}" chat.jsonl -o x.h5
		says 'chat.jsonl: a Feather file, which is not supported; convert it'
		says 'to_json("chat.out.jsonl"'
		[ "$(grep -vc 'could look like a marker' <<<"$output")" -eq 1 ]
	done
	code_of 65 pt-prepare 'a b;c' -o x.h5
	says 'a b;c: a Feather file' # and no such name in a command
	says 'read_feather("FILE")'
	for url in http://a.b/c.txt https://a.b/c.parquet hf://datasets/x s3://b/c; do
		reports 64 "$url: URLs are not supported; download it" pt-prepare $url -o x.h5
	done
	[ ! -e x.h5 ]
	# any bytes are tokens, and text may begin so
	pt-prepare -q -t byte --format text d.parquet -f 0 -o bytes.h5
	pt-prepare bytes.h5 --decode train | cmp - d.parquet
	for text in 'BZh is short for something' 'PAR1 and more' 'PK' ':W&B is text' 'FEA1'; do
		echo "$text" | pt-prepare -q -f 0 | pt-prepare - --decode train | cmp - <(echo "$text")
	done
}

#!/usr/bin/env bats
# pt-prepare: where documents come from, which are kept, and how many threads and ranks work.
load helpers

value() { # KEY FILE
	pt-prepare --info "$2" | sed -n "s/^$1 = //p"
}

# Lines of JSONL with the given documents.
make_jsonl() { # N
	awk -v n="$1" 'BEGIN { srand(3)
		for (i = 0; i < n; i++) {
			printf "{\"id\": %d, \"text\": \"document %d:", i, i
			for (k = int(rand() * 60); k >= 0; k--) printf " w\\u00e4rd%d", rand() * 9
			printf "\\n\"}\n"
		} }'
}

@test "JSONL: a line is a document, plain or compressed, from a file or a pipe" {
	make_jsonl 500 >d.jsonl
	pt-prepare -q -t byte -f 0 d.jsonl -o d.h5
	[ "$(value documents d.h5)" -eq 500 ]
	[ "$(pt-prepare --decode train d.h5 | grep -c '^document')" -eq 500 ]
	pt-prepare --decode train d.h5 | head -n 1 | grep -q '^document 0: wärd'
	gzip -k d.jsonl
	zstd -q d.jsonl
	head -c 5000 d.jsonl | gzip >two.jsonl.gz
	tail -c +5001 d.jsonl | gzip >>two.jsonl.gz # two members
	for f in d.jsonl.gz d.jsonl.zst two.jsonl.gz; do
		pt-prepare -q -t byte -f 0 $f -o e.h5 --overwrite
		cmp d.h5 e.h5
		cat $f | pt-prepare -q -t byte -f 0 --format jsonl - -o e.h5 --overwrite
		cmp d.h5 e.h5
		pt-prepare -q -f 0 --format jsonl - -o e.h5 --overwrite <$f # char: it is read twice
	done
	[ "$(value documents e.h5)" -eq 500 ]
	pt-prepare -q -t byte --format text --no-decompress d.jsonl.gz -f 0 -o f.h5
	pt-prepare --decode train f.h5 | cmp - d.jsonl.gz
}

@test "broken lines are counted and named, or refused" {
	make_jsonl 3 >d.jsonl
	{
		head -n 1 d.jsonl
		echo '{"text": 5}'
		echo
		echo '{"text": "open'
		tail -n 2 d.jsonl
		echo '{"id": 3, "body": "x"}'
	} >bad.jsonl
	pt-prepare -t byte -f 0 bad.jsonl -o bad.h5 2>err
	grep -q "bad.jsonl:2: field 'text' is a number, not a string" err
	grep -q 'bad.jsonl:4: not JSON' err
	grep -q "bad.jsonl:7: field 'text' (a string) is missing; give --field with one of: id, body" err
	grep -q '3 broken lines skipped' err
	[ "$(value documents bad.h5)" -eq 3 ]
	reports 65 'bad.jsonl:2:' pt-prepare --strict -t byte bad.jsonl -o no.h5
	reports 65 "field 'body' (a string) is missing" pt-prepare --field body -t byte d.jsonl -o no.h5
	says 'documents read: 3; none is left: 3 broken'
	# also where a vocabulary is learned first
	head -n 1 bad.jsonl | sed s/text/txt/ >one.jsonl
	for o in '-t char' '--train-bpe 300 --vocab-out v'; do
		read -ra o <<<"$o"
		reports 65 'documents: none; broken lines: 1, first one.jsonl:1: field' pt-prepare "${o[@]}" one.jsonl -o no.h5
	done
	reports 65 'documents: 3; none is left: all are filtered out' \
		pt-prepare --train-bpe 300 --vocab-out v --keep '^never$' d.jsonl
	[ ! -e v ]
	not ls no.h5*
}

@test "truncated and damaged compressed files are bad data" {
	make_jsonl 500 >d.jsonl
	gzip -k d.jsonl
	zstd -q d.jsonl
	for f in gz zst; do
		size=$(stat -c %s d.jsonl.$f)
		for n in 12 $((size / 2)) $((size - 1)); do
			head -c $n d.jsonl.$f >cut.jsonl.$f
			code_of 65 pt-prepare -t byte cut.jsonl.$f -o no.h5
			says "cut.jsonl.$f: the compressed data end too early; the file is truncated"
		done
		{ cat d.jsonl.$f && echo more; } >tail.jsonl.$f
		reports 65 "tail.jsonl.$f: the compressed data are damaged" pt-prepare -t byte tail.jsonl.$f -o no.h5
	done
	not ls no.h5*
}

@test "folders and patterns" {
	mkdir -p in/b in/a/deep
	echo 1 >in/z.txt
	echo 2 >in/a/deep/x.txt
	echo 3 >in/b/y.txt
	echo hidden >in/.hidden
	ln -s .. in/b/up
	pt-prepare -q -f 0 -t byte in -o a.h5
	[ "$(pt-prepare --decode train a.h5)" = $'2\n3\n1' ]
	[ "$(value documents a.h5)" -eq 3 ]
	pt-prepare -q -f 0 -t byte 'in/[a-z]*/*.txt' in/z.txt -o b.h5
	[ "$(pt-prepare --decode train b.h5)" = $'3\n1' ]
}

@test "lengths and regular expressions" {
	for i in $(seq 100); do printf 'line %s\n' "$i"; done >t.txt
	keeps() { # TEXT OPTION...
		local want=$1
		shift
		pt-prepare -q -t byte -f 0 --separator $'\n' "$@" t.txt -o k.h5 --overwrite
		[ "$(pt-prepare --decode train k.h5 | tr -dc '0-9\n' | tr '\n' ' ')" = "$want " ]
	}
	keeps '100' --min-bytes 9
	keeps '1 2 3 4 5 6 7 8 9' --max-bytes 7
	keeps '19 29 39 49 59 69 79 89 99' --keep '\d9' --drop 1000
	keeps '19 29' --keep '9$' --keep ' [12]' --drop ' 9'
	reports 64 "--keep '(': byte 1 of the regular expression" pt-prepare --keep '(' t.txt -o no.h5
	reports 65 'documents read: 1; none is left: 1 without a match of --keep' pt-prepare --keep nothing t.txt -o no.h5
}

@test "the same bytes with any number of threads and ranks" {
	make_jsonl 60000 >d.jsonl # about 14 MB, seven batches
	pt-prepare -q -t byte -s hash d.jsonl --threads 1 -o one.h5
	for t in 2 3; do
		pt-prepare -q -t byte -s hash d.jsonl --threads $t -o more.h5 --overwrite
		cmp one.h5 more.h5
	done
	pt-prepare -q -s document d.jsonl --threads 1 -o chars.h5
	for n in 2 3; do
		mpiexec -n $n pt-prepare -q -t byte -s hash d.jsonl --threads 1 --work w -o more.h5 --overwrite
		cmp one.h5 more.h5
		mpiexec -n $n pt-prepare -q -s document d.jsonl --threads 1 --work w -o more.h5 --overwrite
		cmp chars.h5 more.h5
	done
	[ ! -e w ]
	reports 64 'give --work' mpiexec -n 2 pt-prepare d.jsonl -o no.h5
	printf '\377' >>d.jsonl
	reports 65 'd.jsonl:60001:' mpiexec -n 2 pt-prepare --strict d.jsonl --work w -o no.h5
	not ls no.h5*
}

@test "the same bytes with any number of threads, whatever chooses and orders documents" {
	make_jsonl 30000 >a.jsonl # about 7 MB, with blocks of 1 MiB that one thread fills
	make_jsonl 9000 | sed 's/wort/word/' >b.jsonl
	cat a.jsonl a.jsonl >twice.jsonl
	LC_ALL=C awk 'BEGIN { for (c = 131072; c < 197072; c++) # 66,000 different characters
		printf "%c%c%c%c", 240, 128 + int(c / 4096) % 64, 128 + int(c / 64) % 64, 128 + c % 64 }' >wide.txt
	same() { # OPTIONS...
		local t
		for t in 1 2 3; do
			rm -rf "out$t"
			mkdir "out$t"
			pt-prepare -q --threads $t -o "out$t/o.h5" "$@"
		done
		diff -r out1 out2
		diff -r out1 out3
		pt-prepare -q --verify out3/*
	}
	for split in tail document hash; do
		for order in '' --shuffle; do
			for size in 0 1000K; do
				# shellcheck disable=SC2086 # options are words
				same -t byte -s $split $order --dedup --shard-size $size twice.jsonl
			done
		done
		same -t byte -s $split --source a=1:a.jsonl --source b=2:b.jsonl --mix-tokens 9000000
		same -t byte -s $split --shuffle --source a=1:a.jsonl --source b=2:b.jsonl
	done
	same -t byte -f 0 --min-bytes 100 --drop 'rd3 w' --work w a.jsonl
	# four bytes a token
	same --separator $'\n' wide.txt a.jsonl
	h5dump -H -d /train out1/o.h5 | grep -q H5T_STD_U32LE
	# to a pipe, and from tokens
	pt-prepare -q --threads 1 -t byte a.jsonl -o - | cmp - <(pt-prepare -q --threads 3 -t byte a.jsonl -o -)
	pt-prepare -q -t byte -f 0 a.jsonl -o a.h5
	pt-prepare -q --to nanogpt a.h5 -o tokens
	same --vocab 256 --end-token 10 --shard-size 2M tokens_train.bin
}

@test "several temporary work files, which are emptied when they have been read" {
	for _ in 1 2 3; do make_jsonl 60000; done >d.jsonl # 80 MB of tokens
	pt-prepare -q -t byte -f 0 --work w d.jsonl -o kept.h5
	for order in '' --shuffle; do
		for t in 1 2; do
			# shellcheck disable=SC2086 # options are words
			pt-prepare -q -t byte -f 0 --threads $t $order d.jsonl -o $t.h5 --overwrite
		done
		cmp 1.h5 2.h5
		[ -n "$order" ] || cmp 1.h5 kept.h5
	done
}

@test "killed and started again, it gives the same bytes" {
	make_jsonl 60000 >d.jsonl
	pt-prepare -q -t byte d.jsonl -o whole.h5
	(for _ in 1 2 3; do cat d.jsonl; sleep 0.3; done) |
		pt-prepare -q -t byte --format jsonl - --work w -o part.h5 3>&- &
	for _ in $(seq 200); do
		[ ! -s w/pieces-0 ] || break
		sleep 0.02
	done
	kill -9 $!
	ended $!
	[ ! -e part.h5 ]
	[ -s w/pieces-0 ]
	truncate -s -1000 w/pieces-0 # the last piece was being written
	pt-prepare -q -t byte d.jsonl --work w -o part.h5
	cmp whole.h5 part.h5
	[ ! -e w ]
	# pieces of other options are not taken
	mkdir w
	pt-prepare -q -t byte d.jsonl --min-bytes 100 -o other.h5
	not cmp -s whole.h5 other.h5
}

@test "byte-pair encoding: the end of text closes each document" {
	vocab=$BATS_TEST_DIRNAME/../golden/tokens/tokenizer.json
	make_jsonl 20 >d.jsonl
	pt-prepare -q -t bpe --vocab-files "$vocab" d.jsonl -f 0 -o d.h5
	[ "$(pt-prepare --decode train d.h5 | grep -c '^<|endoftext|>document')" -eq 19 ]
	pt-prepare --decode train d.h5 | tail -n 1 | grep -qx '<|endoftext|>'
	pt-prepare -q -t bpe --vocab-files "$vocab" --no-end-of-text d.jsonl -f 0 -o e.h5
	not grep -q endoftext <(pt-prepare --decode train e.h5)
	[ "$(value train_tokens d.h5)" -eq $(($(value train_tokens e.h5) + 20)) ]
	# a document that is larger than a batch is cut between words
	awk 'BEGIN { for (i = 0; i < 700000; i++) printf "%s%d ", i % 9 ? "" : "\n  ", i }' >large.txt
	for t in 1 2; do
		pt-prepare -q -t bpe --vocab-files "$vocab" --threads $t large.txt -f 0 -o $t.h5
	done
	cmp 1.h5 2.h5
	pt-prepare --decode train 1.h5 | cmp - <(cat large.txt && printf '<|endoftext|>')
	[ "$(value documents 1.h5)" -eq 1 ]
	pt-prepare -q -t bpe --vocab-files "$vocab" --no-end-of-text large.txt -f 0 -o all.h5
	[ "$(value train_tokens all.h5)" -eq $(($(value train_tokens 1.h5) - 1)) ]
}

lines_of() { # SHARD: the documents, which are lines
	pt-prepare --decode train "$1"
}

@test "duplicates are dropped, the first is kept" {
	for i in 1 2 3 2 1 4 4 4 5; do echo "line $i"; done >t.txt
	pt-prepare -t byte -f 0 --separator $'\n' --dedup t.txt -o d.h5 2>err
	[ "$(lines_of d.h5 | tr -d '\n')" = 'line 1line 2line 3line 4line 5' ]
	[ "$(value documents d.h5)" -eq 5 ]
	grep -q '4 of 9 documents dropped: duplicates' err
	# in both files of a large one
	make_jsonl 20000 >d.jsonl
	pt-prepare -q -t byte d.jsonl -o one.h5
	pt-prepare -q -t byte --dedup d.jsonl d.jsonl -o two.h5
	cmp <(lines_of one.h5) <(lines_of two.h5)
}

@test "a shuffle has the same documents, in another order that the seed decides" {
	make_jsonl 30000 >d.jsonl
	pt-prepare -q -t byte -f 0 d.jsonl -o plain.h5
	pt-prepare -q -t byte -f 0 --shuffle d.jsonl -o a.h5
	pt-prepare -q -t byte -f 0 --shuffle --threads 3 d.jsonl -o b.h5
	mpiexec -n 2 pt-prepare -q -t byte -f 0 --shuffle --work w d.jsonl -o c.h5
	cmp a.h5 b.h5
	cmp a.h5 c.h5
	pt-prepare -q -t byte -f 0 --shuffle --seed 2 d.jsonl -o other.h5
	not cmp -s <(lines_of a.h5) <(lines_of other.h5)
	not cmp -s <(lines_of a.h5) <(lines_of plain.h5)
	cmp <(lines_of a.h5 | sort) <(lines_of plain.h5 | sort)
	[ "$(value documents a.h5)" -eq 30000 ]
	# far from its first place, on average a third of the length
	lines_of a.h5 | awk '{ n = $2 - NR; sum += n < 0 ? -n : n } END { exit !(sum / NR > 9500 && sum / NR < 10500) }'
}

@test "sources are mixed by weight, exactly" {
	printf 'a%04d\n' $(seq 1000) >a.txt # 6,000 bytes
	printf 'b%04d\n' $(seq 2000) >b.txt
	mix() {
		pt-prepare -t byte -f 0 --separator $'\n' -o mix.h5 --overwrite "$@" 2>err
		lines_of mix.h5 >out
		echo >>out # the last document may be cut
	}
	mix --source a=1:a.txt --source b=3:b.txt
	[ "$(value train_tokens mix.h5)" -eq 16000 ]
	[ "$(grep -c ^a out)" -eq 667 ]
	[ "$(grep -c ^b out)" -eq 1999 ] # one follows the cut document of a
	# everywhere, not only on the whole
	[ "$(head -n 400 out | grep -c ^a)" -eq 100 ]
	# a source that is too small repeats
	mix --source a=1:a.txt --source b=1:b.txt --mix-tokens 20001
	[ "$(value train_tokens mix.h5)" -eq 20001 ]
	grep -q 'source a: 10001 tokens written, 6000 available, read 2 times' err
	grep -q 'source b: 10000 tokens written, 12000 available, read 1 times' err
	[ "$(grep -cx a0001 out)" -eq 2 ]
	mix --source a=1:a.txt --source b=1:b.txt --mix-tokens 20001 --shuffle -s hash -f 0.2
	[ "$(value train_tokens mix.h5)" -eq 20001 ]
	[ "$(value val_tokens mix.h5)" -gt 1000 ]
	for wrong in a=1 a=0:a.txt a=x:a.txt =1:a.txt a=1: a=-1:a.txt; do
		reports 64 'expected NAME=WEIGHT:PATH' pt-prepare --source "$wrong" -o no.h5
	done
	code_of 64 pt-prepare --source a=1:a.txt b.txt -o no.h5
	code_of 64 pt-prepare --mix-tokens 5 b.txt -o no.h5
}

@test "JSONL that is read as text is, with one warning" {
	printf '{"text": "one"}\r\n{"text": "two"}\n' >a
	cp a b
	cat a b >both
	warns() { # TIMES OPTION...
		pt-prepare "${@:2}" -o w.h5 --overwrite 2>err
		[ "$(grep -c 'looks like JSONL; --format jsonl reads its field text' err || :)" -eq "$1" ]
	}
	gzip -c both | warns 1 -
	grep -q 'warning: standard input: looks' err
	pt-prepare --decode train w.h5 | head -n 1 | cmp - <(head -n 1 a)
	warns 1 -t byte a b --threads 2
	grep -q 'in 2 documents' err
	printf '{"text": "no line break"}' | warns 1
	printf '{"a": 1}%.0s\n' {1..9} | tr -d '\n' | warns 1 # as one line
	warns 0 --format text a
	warns 0 --format jsonl a
	printf '{"some text\n{"x": 1}\n' | warns 0
	printf 'text\n{"x": 1}\n' | warns 0
	printf '{' | warns 0
	code_of 65 pt-prepare -t byte -o e.h5 </dev/null
}

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
		code_of 65 pt-prepare bad.txt -o bad.h5
		says 'not UTF-8'
		[ ! -e bad.h5 ]
		[ ! -e bad.h5.tmp ]
	done
	printf 'good\377' >bad.txt
	code_of 65 pt-prepare bad.txt -o bad.h5
	says 'bad.txt: byte 4'
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
	pt-prepare --decode train $(ls part-*.h5 | sort -r) | cmp - <(pt-prepare --decode train one.h5)
	code_of 65 pt-prepare --decode train part-00000.h5 part-00002.h5
	says 'of 10'
}

@test "documents: whole ones for validation, all text kept" {
	for i in $(seq 200); do printf 'document %s\n<|end|>\n' "$i"; done >docs.txt
	pt-prepare -q -s document --separator $'<|end|>\n' -f 0.2 docs.txt -o d.h5
	[ "$(value documents d.h5)" -eq 200 ]
	pt-prepare --decode train d.h5 >train.txt
	pt-prepare --decode val d.h5 >val.txt
	[ "$(cat train.txt val.txt | sort)" = "$(sort docs.txt)" ]
	n=$(grep -c document val.txt)
	[ "$n" -ge 20 ] && [ "$n" -le 60 ]
	[ "$(tail -n 1 val.txt)" = '<|end|>' ]
	# another seed, another choice; the same seed, the same
	pt-prepare -q -s document --separator $'<|end|>\n' -f 0.2 --seed 2 docs.txt -o e.h5
	! pt-prepare --decode val e.h5 | cmp -s - val.txt
	pt-prepare -q -s document --separator $'<|end|>\n' -f 0.2 docs.txt -o f.h5
	cmp d.h5 f.h5
	code_of 65 pt-prepare -s document docs.txt -o g.h5
	says 'of 1 documents, none went to'
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
	code_of 74 pt-prepare text.txt -o a.h5
	says 'a.h5 exists'
	cmp a.h5 before.h5
	pt-prepare -q --overwrite text.txt -o a.h5
}

@test "empty text, folders and missing files are refused" {
	: >empty.txt
	code_of 65 pt-prepare empty.txt -o e.h5
	says 'the text is empty'
	code_of 74 pt-prepare nothing.txt -o e.h5
	code_of 74 pt-prepare . -o e.h5
	says 'is a directory'
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
	nm "$BUILD/pt-prepare" | grep -q __asan_init && skip "the sanitizer needs memory of its own"
	make_text >text.txt
	for i in $(seq 2000); do cat text.txt; done >big.txt # 80 MB
	/usr/bin/env bash -c 'ulimit -d 60000; pt-prepare -q big.txt -o big.h5'
	[ "$(value train_tokens big.h5)" -eq $((40000 * 2000 * 9 / 10)) ]
}

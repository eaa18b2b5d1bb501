#!/usr/bin/env bats
# pt-prepare: training of byte-pair encoding.
load helpers

@test "a vocabulary is trained, whatever the threads, and used" {
	make_text >text.txt
	for t in 1 2 3; do
		pt-prepare -q --train-bpe 300 --vocab-out v$t --threads $t text.txt
		diff -r v1 v$t
	done
	[ "$(ls v1)" = $'merges.txt\ntokenizer.json\nvocab.json\nvocab.tiktoken' ]
	[ "$(head -n 2 v1/merges.txt)" = $'#version: 0.2\nt h' ]
	[ "$(wc -l <v1/vocab.tiktoken)" -eq $(($(wc -l <v1/merges.txt) + 255)) ]
	pt-prepare -q -t bpe --vocab-files v1 --no-end-of-text text.txt -o a.h5
	{
		pt-prepare --decode train a.h5
		pt-prepare --decode val a.h5
	} | cmp - text.txt
	pt-prepare -q -t bpe --pattern gpt2 --vocab-files v1/vocab.tiktoken text.txt -o b.h5
	for s in train val; do
		h5dump -d /$s b.h5 | tail -n +2 | cmp - <(h5dump -d /$s a.h5 | tail -n +2)
	done
	# of several files, and of standard input
	head -c 12345 text.txt >1.txt
	pt-prepare -q --train-bpe 300 --vocab-out v4 --threads 2 - 1.txt <text.txt
	[ -s v4/vocab.json ]
}

@test "a vocabulary of chosen documents, of lines of JSONL, compressed" {
	make_text | head -n 700 >text.txt
	awk '{ printf "{\"text\": \"%s\\n\"}\n", $0 }' text.txt | gzip >lines.jsonl.gz
	pt-prepare -q --train-bpe 290 --vocab-out a text.txt
	pt-prepare -q --train-bpe 290 --vocab-out b lines.jsonl.gz
	diff -r a b
	{ cat text.txt && yes qqqqqqqqqqqqqqqqqqqqqqqqq | head -n 999; } >more.txt
	pt-prepare -q --train-bpe 290 --vocab-out c --separator $'\n' --drop qqqq more.txt
	diff -r a c
	reports 65 'text.txt:1: ' pt-prepare --train-bpe 290 --vocab-out d --format jsonl --strict text.txt
	[ ! -e d ]
}

@test "four merges, by hand" {
	printf 'aaab aaab aaab ab ab b' >text.txt
	pt-prepare -q --train-bpe 261 --vocab-out v text.txt
	# aa 6 (aaa: twice); ab 5; then aa ab 3; then " ab" and " aaab" 2, of which ab is the older token
	[ "$(tail -n +2 v/merges.txt)" = $'a a\na b\naa ab\n\304\240 ab' ]
}

@test "the longest tokens that are trained can be read" {
	{ head -c 8192 /dev/zero | tr '\0' a && echo; } >text.txt
	pt-prepare -q --train-bpe 400 --vocab-out v text.txt
	[ "$(wc -l <v/vocab.tiktoken)" -eq $((256 + 12)) ] # the last has 4096 bytes
	pt-prepare -q -t bpe --pattern gpt2 --vocab-files v/vocab.tiktoken -f 0 text.txt -o a.h5
	[ "$(pt-prepare --info a.h5 | grep ^train_tokens)" = 'train_tokens = 3' ]
	pt-prepare --decode train a.h5 | cmp - text.txt
}

@test "what cannot be trained" {
	make_text >text.txt
	reports 64 'must be given together' pt-prepare --train-bpe 300 text.txt
	reports 64 'must be given together' pt-prepare --vocab-out v text.txt
	reports 64 'the minimum is 257' pt-prepare --train-bpe 100 --vocab-out v text.txt
	code_of 65 pt-prepare --train-bpe 300 --vocab-out v --pattern '(' text.txt
	code_of 74 pt-prepare --train-bpe 300 --vocab-out v nothing.txt
	: >empty.txt
	code_of 65 pt-prepare --train-bpe 300 --vocab-out v empty.txt
	[ ! -e v ]
	pt-prepare -q --train-bpe 300 --vocab-out v text.txt
	reports 74 'vocab.json exists; --overwrite replaces it' pt-prepare --train-bpe 300 --vocab-out v text.txt
	pt-prepare -q --overwrite --train-bpe 300 --vocab-out v text.txt
	pt-prepare --train-bpe 5000 --vocab-out w text.txt 2>err
	grep -q 'instead of 5000' err
}

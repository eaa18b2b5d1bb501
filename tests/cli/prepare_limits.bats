#!/usr/bin/env bats
# pt-prepare: documents, weights, filters and inputs at their limits.
load helpers

value() { # KEY FILE
	pt-prepare --info "$2" | sed -n "s/^$1 = //p"
}

@test "documents without a token are refused" {
	printf '{"text": ""}\n{"text": ""}\n' >e.jsonl
	reports 65 'documents: 2; all are empty' pt-prepare -t byte e.jsonl -o e.h5
	code_of 65 pt-prepare e.jsonl -o e.h5
	not ls e.h5*
}

@test "weights and numbers of tokens that cannot be" {
	make_text >a.txt
	for wrong in 1e308 1e-320 inf nan 1e10; do
		reports 64 'a weight from 1e-9 to 1e9' pt-prepare -t byte --source a=$wrong:a.txt -o a.h5
	done
	code_of 64 pt-prepare -t byte --source a=1:a.txt --mix-tokens 8000000T -o a.h5
	reports 74 'not enough disk space' pt-prepare -t byte --source a=1:a.txt --mix-tokens 1000T -o a.h5
	pt-prepare -q -t byte --source a=1e-9:a.txt --source b=1e9:a.txt --mix-tokens 100 -f 0 -o b.h5
	[ "$(value train_tokens b.h5)" -eq 100 ]
	# no document is for validation, and none needs to be
	pt-prepare -q -t byte -s hash -f 0 --source a=1:a.txt -o c.h5
	[ "$(value val_tokens c.h5)" -eq 0 ]
	not ls a.h5*
}

@test "regular expressions look at documents of any length" {
	{ yes 'a line of some words' | head -n 200000 && echo 'the last line'; } >large.txt # 4 MB
	keeps() { # WHETHER OPTION...
		local want=$1
		shift
		echo small >small.txt
		pt-prepare -q -t byte -f 0 "$@" small.txt large.txt -o k.h5 --overwrite
		[ "$(value documents k.h5)" -eq "$want" ]
	}
	keeps 1 --drop 'last line\n$'
	keeps 1 --keep '^small'
	keeps 2 --drop 'xx'
	keeps 1 --drop 'xx' --max-bytes 3M # its length is enough, not all of it is read at once
	keeps 1 --drop 'xx' --max-bytes 1M
	# many steps back, for which compiled expressions have little memory
	head -n 2000 large.txt >lines.txt
	pt-prepare -q -t byte -f 0 --drop '^(?:.|\n)*xx' lines.txt -o steps.h5
}

@test "what chooses documents for shards, chooses them for a vocabulary" {
	printf '{"text": "aa aa aa"}\n\n\n\r\n{"text": "bb bb"}\n' >blank.jsonl
	pt-prepare --train-bpe 300 --vocab-out v blank.jsonl 2>err
	not grep -q 'no document' err
	yes 'qqqq' | head -n 600000 >large.txt # 3 MB
	pt-prepare --train-bpe 300 --vocab-out w blank.jsonl large.txt --max-bytes 2500K 2>err
	grep -q '3 documents (1 dropped)' err
	diff v w
}

@test "lines of JSONL with the mark of the order of bytes, and with the longest texts" {
	printf '\357\273\277{"text": "one"}\r\n{"text": "two"}' >mark.jsonl
	pt-prepare -t byte -f 0 mark.jsonl -o m.h5 2>err
	[ "$(pt-prepare --decode train m.h5)" = onetwo ]
	not grep -q broken err
	# 32 MiB with the end of the line, and a byte more; however they arrive
	long() { # BYTES
		printf '{"text": "' && head -c $(($1 - 13)) /dev/zero | tr '\0' x && printf '"}\n'
	}
	long $((1 << 25)) >long.jsonl
	long $(((1 << 25) + 1)) >longer.jsonl
	echo '{"text": "short"}' | tee -a long.jsonl >>longer.jsonl
	pt-prepare -q -t byte -f 0 long.jsonl -o l.h5
	[ "$(value documents l.h5)" -eq 2 ]
	for input in longer.jsonl -; do
		dd if=longer.jsonl bs=60001 status=none |
			pt-prepare -t byte -f 0 --format jsonl "$input" -o l.h5 --overwrite 2>err
		[ "$(value documents l.h5)" -eq 1 ]
		grep -q ':1: the line is longer than 32 MiB' err
	done
}

@test "pieces of other options are not taken" {
	vocab=$BATS_TEST_DIRNAME/../golden/tokens/tokenizer.json
	bpe=(-q -t bpe --vocab-files "$vocab" -f 0 special.txt -o s.h5 --overwrite --work w)
	printf 'a text<|endoftext|>and another' >special.txt
	# it fails before it removes its work files
	code_of 74 bash -c 'ulimit -f 1; pt-prepare "$@"' - "${bpe[@]}"
	[ -s w/pieces-0 ]
	pt-prepare "${bpe[@]}" --allow-special
	pt-prepare -q "${bpe[@]:1:6}" special.txt --allow-special -o t.h5
	cmp s.h5 t.h5
}

@test "tokens are not taken for text" {
	make_text >text.txt
	pt-prepare -q -t byte text.txt -o a.h5
	pt-prepare -q --to llmc a.h5 -o l
	mkdir in
	for f in a.h5 l_train.bin; do
		rm -f in/*
		cp text.txt $f in
		for input in in 'in/*' --source=a=1:in/$f; do
			reports 65 "in/$f: a token file, not text" pt-prepare -t byte "$input" -o b.h5
		done
		pt-prepare -q -t byte -f 0 --format text in -o c.h5 --overwrite
		pt-prepare --decode train c.h5 | cmp - <(cat in/*)
	done
	reports 65 'standard input: HDF5, such as a shard' pt-prepare -t byte -o b.h5 <a.h5
	code_of 65 bash -c 'cat a.h5 | pt-prepare -t byte text.txt - -o b.h5'
	says 'standard input: HDF5, such as a shard'
	not ls b.h5*
}

@test "options of text are refused with tokens" {
	make_text >text.txt
	pt-prepare -q -t byte text.txt -o a.h5
	pt-prepare -q --to nanogpt a.h5 -o n
	for o in --split=hash --split=document --shuffle --dedup --min-bytes=1 --max-bytes=9 --keep=a \
		--drop=a --separator=a --strict --work=w --source=a=1:text.txt; do
		for f in a.h5 n_train.bin; do
			reports 64 'not to files of tokens' pt-prepare $o $f -o b.h5
		done
	done
	# text that becomes tokens is text
	pt-prepare -q --split document --separator $'.\n' --shuffle --to llmc text.txt -o l
	not ls b.h5* w
}

@test "work files in a folder of text are not text" {
	mkdir in
	make_text >in/text.txt
	pt-prepare -q -t byte in -o whole.h5
	code_of 74 bash -c 'ulimit -f 80; pt-prepare -q -t byte in --work in/work -o a.h5'
	[ -s in/work/pieces-0 ]
	pt-prepare -q -t byte in --work in/work -o a.h5
	cmp whole.h5 a.h5
	[ "$(ls in)" = text.txt ]
}

@test "a line of more marks on one character than can be normalized is a broken one" {
	printf 'the cat the hat\n' >text
	pt-prepare -q --train-bpe 260 --vocab-out vocab text
	mkdir nfc
	jq '.normalizer = {"type": "NFC"}' vocab/tokenizer.json >nfc/tokenizer.json
	{
		echo '{"text": "one"}'
		printf '{"text": "e'
		head -c 2200000 /dev/zero | sed 's/\x0/\xcc\x81/g'
		printf '"}\n{"text": "three"}\n'
	} >marks.jsonl
	code_of 0 pt-prepare -t bpe --vocab-files nfc -f 0 marks.jsonl -o marks.h5
	says 'marks.jsonl:2: the text has more than 4194304 bytes of marks'
	says '1 broken line skipped'
	[ "$(pt-prepare --decode train marks.h5)" = 'one<|endoftext|>three<|endoftext|>' ]
	reports 65 'marks.jsonl:2: the text has more than' pt-prepare -t bpe --vocab-files nfc -f 0 marks.jsonl --strict -o strict.h5
	code_of 0 pt-prepare -t bpe --vocab-files nfc -f 0 --max-bytes 99 marks.jsonl -o short.h5
	says '1 of 3 documents dropped: too long'
	# as prompt and completion
	sed 's/"text"/"prompt": "?", "completion"/' marks.jsonl >pairs.jsonl
	code_of 0 pt-prepare --record prompt -t bpe --vocab-files nfc -f 0 pairs.jsonl -o pairs.h5
	says '1 broken line skipped'
}

#!/usr/bin/env bats
# pt-prepare reads Parquet and Arrow by another process. Here a script plays it, so that no pyarrow is needed;
# long_tables.bats has the real one.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	export PT_PYTHON=$PWD/fake
	printf 'PAR1\025\004\025 and more' >t.parquet
	printf 'ARROW1\0\0 and more' >t.arrow
	printf '\377\377\377\377 and more' >s.arrow
}

# What the script writes. Its words are also in the file `words`.
plays() { # COMMAND...
	printf '#!/bin/bash\nshift 2\necho "$@" >words\n{ [ $1 != pipe ] || cat <&3; cat; } >input\n%s\n' "$(declare -f ints text column_of_text)" >fake
	printf '%s\n' "$@" >>fake
	chmod +x fake
}

ints() { # INTEGER...: little-endian, 64 bits
	local x i
	for x; do
		for ((i = 0; i < 64; i += 8)); do
			printf "\\x$(printf %02x $((x >> i & 255)))"
		done
	done
}

text() { # LENGTH...: of rows, then standard input
	ints 1 $# "$@"
	local all=0 n
	for n; do ((n < 0 || (all += n))); done
	ints $all
	cat
}

column_of_text() { # TEXT...
	local lengths=() x
	for x; do lengths+=("${#x}"); done
	printf %s "$@" | text "${lengths[@]}"
}

texts='ints 1 2 9; column_of_text "the first" "the second one"; ints 1 2 20; printf third | text -1 5; ints 3'

jsonl() {
	printf '{"text": "%s"}\n' 'the first' 'the second one' 'third'
}

@test "a table has the shards of the same JSONL: files, pipes, compressed, by content" {
	plays "$texts"
	jsonl >d.jsonl
	for t in byte char; do
		for o in '' '--separator ;' '--shuffle --split hash --dedup -f 0.3' '--threads 3'; do
			read -ra o <<<"$o"
			pt-prepare -q -t $t "${o[@]}" d.jsonl -o d.h5 --overwrite
			for f in t.parquet t.arrow s.arrow; do
				pt-prepare -t $t "${o[@]}" $f -o e.h5 --overwrite 2>err
				cmp d.h5 e.h5
				cmp $f input
				grep -q "warning: $f: row 3: column 'text' is null" err
				grep -q '1 broken row skipped' err
			done
		done
		gzip -kf t.parquet
		pt-prepare -q -t $t t.parquet.gz -o e.h5 --overwrite 2>/dev/null
		cmp t.parquet input
		zstd -qc s.arrow | pt-prepare -q -t $t - --threads 3 2>/dev/null | cmp - e.h5
		cmp s.arrow input
		grep -qx 'stream text +text' words
		cat t.parquet | pt-prepare -q -t $t - 2>/dev/null | cmp - e.h5
		# as it comes, if one pass is enough
		cat s.arrow | pt-prepare -q -t $t - 2>/dev/null | cmp - e.h5
		cmp s.arrow input
		if [ $t = byte ]; then grep -qx 'pipe text +text' words; else grep -qx 'stream text +text' words; fi
		pt-prepare -q -t $t <t.arrow 2>/dev/null | cmp - e.h5
	done
	reports 65 't.parquet: row 3: column' pt-prepare --strict -t byte t.parquet -o no.h5
	pt-prepare -q -t byte d.jsonl t.parquet s.arrow -o all.h5 2>err
	[ "$(pt-prepare --info all.h5 | grep -x 'documents = 9')" ]
	[ ! -e no.h5 ]
	# a limit of the copy
	code_of 74 pt-prepare -t byte --spool-limit 8 - -o no.h5 < <(cat t.parquet)
	says 'larger than the limit of 8 B'
}

@test "columns are named as the fields of JSONL; records have the documents of JSONL" {
	plays 'ints 1 2 9 6 2; printf "\1\1"; ints 2 9; printf input_ids; ints 5 2 3 0 2 3; printf "\1\1\1"
		ints 1 2 3 6; printf labels; ints 5 2 3 0 2 3; printf "\1\1\1"; ints -100 2 -100 3'
	printf '{"input_ids": [1, 2, 3], "labels": [-100, 2, -100]}\n{"input_ids": [], "labels": []}\n' >d.jsonl
	for o in '' '--field input_ids'; do
		read -ra o <<<"$o"
		pt-prepare -q --record ids "${o[@]}" --vocab 10 --window 4 -f 0 d.jsonl -o d.h5 --overwrite
		pt-prepare -q --record ids "${o[@]}" --vocab 10 --window 4 -f 0 t.parquet -o e.h5 --overwrite
		cmp d.h5 e.h5
	done
	grep -qx 'parquet record +input_ids' words
	reports 65 "1 broken row skipped" pt-prepare --record ids --vocab 3 --window 4 t.parquet -o no.h5
	says "t.parquet: row 1: field 'input_ids': element 2 is 3, not a token of the vocabulary"
	# turns, with a column and a field of nulls, numbers and a word
	plays 'ints 1 1 9 6 1; printf "\1"; ints 1 8; printf messages; ints 5 1 2 6 2; printf "\1\1"
		ints 4 4; printf role; column_of_text user assistant; ints 7; printf content; column_of_text hello "you too"
		ints 6; printf weight; ints 3 2; printf "\0\1"; ints 0 0x3ff0000000000000; ints 4; printf name; ints 7 2; ints 3'
	printf '{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "you too"}]}\n' >d.jsonl
	for f in d.jsonl s.arrow; do
		pt-prepare -q --chat-template chatml -t byte $f -o $f.h5 2>/dev/null
	done
	cmp d.jsonl.h5 s.arrow.h5
	grep -qx 'stream record /messages /conversations ?tools' words
	pt-prepare -q --record prompt --field a,b -t byte s.arrow -o no.h5 2>/dev/null && false
	grep -qx 'stream record +a +b ?tools' words
	[ ! -e no.h5 ]
}

@test "a process that fails, is killed, or sends what is not valid" {
	fails() { # CODE MESSAGE COMMAND
		plays "$3"
		reports "$1" "t.parquet: $2" pt-prepare -q -t byte t.parquet -o no.h5
		reports "$1" "t.parquet: $2" pt-prepare -q t.parquet -o no.h5
	}
	local invalid='the python3 that reads it sent data that are not valid'
	fails 65 'the column is no text' 'ints 2 65 21; printf "the column is no text"'
	fails 69 'the python3 that reads it was killed by signal 9' 'ints 1 2 9; kill -9 $$'
	fails 69 'the python3 that reads it exited with code 3' 'ints 1 2 9; exit 3'
	fails 69 'the python3 that reads it exited with code 4' 'ints 3; exit 4'
	fails 70 "$invalid" 'ints 1 2'
	fails 70 "$invalid" ':'
	fails 70 "$invalid" 'ints 3; echo more'
	fails 70 "$invalid" 'ints 4'
	fails 70 "$invalid" 'ints 2 0 3; printf abc'
	fails 70 "$invalid" 'ints 2 65 600; head -c 600 /dev/zero'
	fails 70 "$invalid" 'ints 1 -1 0; head -c 99 /dev/zero'
	fails 70 "$invalid" 'ints 1 $((1 << 60)) 0 1 $((1 << 60)); head -c 9999 /dev/zero'
	fails 70 "$invalid" 'ints 1 2 0 1 3; head -c 999 /dev/zero'
	fails 70 "$invalid" 'ints 1 2 0 1 2 5 5 9; printf abcdefghi'
	fails 70 "$invalid" 'ints 1 2 0 1 2 -3 5 5; printf abcde'
	fails 70 "$invalid" 'ints 1 2 0 1 2 $((1 << 62)) $((1 << 62)) 8; printf abcdefgh'
	fails 70 "$invalid" 'ints 1 2 0 9 2; head -c 999 /dev/zero'
	fails 70 "$invalid" 'ints 1 1 0 6 1; printf "\1"; ints 0 3' # a record
	structure() { # COMMAND
		plays "$1"
		reports 70 "$invalid" pt-prepare -q --chat-template chatml -t byte t.parquet -o no.h5
	}
	structure 'ints 1 1 0 6 1; printf "\1"; ints 2000; head -c 99999 /dev/zero'
	structure 'ints 1 1 0 6 1; printf "\1"; ints 1 9999; head -c 99999 /dev/zero'
	structure 'ints 1 1 0 6 1; printf "\1"; ints 1 1; printf x; ints 5 1 3 7 2; ints 3'
	structure 'ints 1 1 0 6 1; printf "\1"; ints 1 1; printf x; for i in {1..20}; do ints 5 1 1; done; ints 7 1 3'
	structure 'ints 1 1 0 6 1; printf "\1"; ints 1 1; printf x; ints 5 1 $((1 << 29)) 7 $((1 << 29)) 3'
	PT_PYTHON=$PWD/none reports 69 "t.parquet: Python and its package pyarrow read this file, but $PWD/none does not start" \
		pt-prepare -q t.parquet -o no.h5
	[ ! -e no.h5 ]
}

@test "a process that still writes ends with pt-prepare, and is no zombie" {
	{ # a batch, and more
		ints 1 1 9
		head -c 3000000 /dev/zero | tr '\0' '\377' | text 3000000
	} >chunk
	plays 'echo $$ >pid; trap "" TERM; while :; do cat chunk; done'
	code_of 65 pt-prepare -q --strict -t byte t.parquet -o no.h5
	says "t.parquet: row 1: column 'text' is not UTF-8"
	old=$(cat pid)
	not kill -0 "$old"
	# it gets SIGPIPE even if pt-prepare ignores it
	plays 'echo $$ >pid; while cat chunk; do :; done; echo the end >end'
	trap '' PIPE
	pt-prepare -q -t byte t.parquet -o no.h5 2>/dev/null &
	trap - PIPE
	while [ ! -s pid ] || [ "$(cat pid)" = "$old" ]; do sleep 0.1; done
	kill -9 $!
	for ((i = 0; i < 100; i++)); do
		kill -0 "$(cat pid)" || break
		sleep 0.1
	done
	not kill -0 "$(cat pid)"
}

@test "without pyarrow, the message says how to install it; the working directory has no modules" {
	command -v python3 >/dev/null || skip 'no python3'
	export PT_PYTHON=
	mkdir none
	echo 'raise ImportError("none here")' >none/pyarrow.py
	echo 'open("hijacked", "w")' | tee pyarrow.py os.py >struct.py
	export PYTHONPATH=$PWD/none
	reports 69 't.parquet: pyarrow reads Parquet and Arrow files, but ' pt-prepare -q t.parquet -o no.h5
	says 'cannot import it (none here); install it with "pip install pyarrow", or set PT_PYTHON'
	[ ! -e hijacked ]
	# the python3 of a virtual environment that has the program
	mkdir -p env/bin
	touch env/pyvenv.cfg
	cp "$(command -v pt-prepare)" env/bin
	plays "$texts"
	mv fake env/bin/python3
	env/bin/pt-prepare -q -t byte t.parquet -o e.h5 2>/dev/null
	grep -qx 'parquet text +text' words
}

#!/usr/bin/env bats
# What tests/run reports, which packages the scripts need, how bugs are planted and coverage is counted.
load helpers

top=$BATS_TEST_DIRNAME/../..

@test "tests/run: skipped tests are counted per reason, and the last line is a sum" {
	mkdir -p tests/{cli,unit} bin build/tests
	cp "$top/tests/run" tests
	# of bats, here: the file is its output
	printf '#!/bin/sh\ncat "$2"\n' >bin/bats
	printf 'ok 1 a # skip no zsh\nok 2 b\nok 3 c # skip no zsh\nok 4 d # skip\n' >tests/cli/some.bats
	printf 'ok 1 a # skip no fish\nok 2 b # skip no zsh\n' >tests/cli/other.bats
	echo ' * device: cpu cuda' >tests/unit/test_some.c
	printf '#!/bin/sh\nprintf "ok 1 - a\\nok 2 # SKIP b\\n"\n' >build/tests/test_some
	chmod +x bin/bats build/tests/test_some
	PATH=$PWD/bin:$PATH run tests/run build 'some|other'
	echo "$output"
	[ "$status" -eq 0 ]
	diff - <(sed -n '/^Skipped:/,$p' <<<"$output") <<-'END'
		Skipped:
		    3  no zsh: other.bats, some.bats (2)
		    2  no reason given: some.bats, test_some b
		    1  no fish: other.bats
		    1  nvcc and its headers are not here: test_some on a GPU

		2 passed, 0 failed, 7 skipped
	END
}

# A script names the commands that it can do without: command -v COMMAND, or skip 'no COMMAND'.
@test "share/debian-12 names the packages of all commands that scripts call" {
	command -v dpkg-query >/dev/null || skip 'no dpkg-query'
	cd "$top" || return
	# (if this finds nothing, it is blind)
	echo 'x=$(LC_ALL=C mpiexec -n 2 ls | bats)' >"$BATS_TEST_TMPDIR/script"
	code_of 0 tests/tools/packages build "$BATS_TEST_TMPDIR/script"
	[ "$output" = "$BATS_TEST_TMPDIR/script: bats (bats)" ]
	code_of 0 tests/tools/packages check "$BATS_TEST_TMPDIR/script"
	[ "$output" = "$BATS_TEST_TMPDIR/script: mpiexec (mpich)" ]
	shell_of() { # DIRECTORY
		grep -lE '^#!/bin/bash|^# shellcheck shell' "$1"/*
	}
	mapfile -t recipes < <(shell_of share/recipes)
	mapfile -t bench < <(shell_of tests/bench 2>/dev/null | grep -v calibrate)
	mapfile -t quick < <(printf '%s\n' tests/cli/*.bats | grep -v /long_)
	tests/tools/packages build Makefile share/deps share/jobs/* -- 'build demo' share/demo "${recipes[@]}" \
		-- 'build check' tests/run tests/tools/{find_nccl,nccl_rank} share/action/judge "${quick[@]}" tests/cli/helpers.bash "${bench[@]}" \
		-- 'build check long' tests/cli/long_*.bats tests/tools/{mutate,museum} tests/bench/calibrate \
		-- 'build check lint' tests/lint tests/tools/names man/generate -- 'build fuzz' tests/fuzz/run >"$BATS_TEST_TMPDIR/found"
	not grep . "$BATS_TEST_TMPDIR/found"
}

@test "tests/tools/plant: each edit of a planted bug is found exactly once" {
	cd "$top" || return
	code_of 0 tests/tools/plant --check tests/mutants/* tests/bench/bugs
	[ -z "$output" ]
	[ "$(tests/tools/plant --list tests/mutants/* | wc -l)" -ge 489 ]
}

# The table that mutate prints, made from the page, gives the page again.
@test "tests/tools/museum: the rows of share/museum.md agree with tests/mutants" {
	cd "$top" || return
	rows() {
		grep '^| `' "$1"
	}
	rows share/museum.md | sed 's/\\|/|/g; s/&lt;/</g' | awk -F ' [|] ' '{ name = substr($1, 4, length($1) - 4)
		sub(/ [|]$/, "", $NF)
		gsub(/`/, "", $3)
		printf "%-28s %-4s %4s s  %-76s %s\n", name, $5, $7, $6, $3
		if (NF > 7)
			printf "%-28s check %s s  %s\n", name, $10, $9 }' >"$BATS_TEST_TMPDIR/table"
	code_of 0 tests/tools/museum --page "$BATS_TEST_TMPDIR/table"
	rows share/museum.md >"$BATS_TEST_TMPDIR/page"
	[ "$(wc -l <"$BATS_TEST_TMPDIR/page")" -ge 100 ]
	diff <(rows <(echo "$output")) "$BATS_TEST_TMPDIR/page"
	says 'layout | step | first tensor that differs | seconds | found by | pt-check | seconds |'
	# rows that were not run are not written
	sed -i 1d "$BATS_TEST_TMPDIR/table"
	code_of 0 tests/tools/museum --page "$BATS_TEST_TMPDIR/table"
	diff <(rows <(echo "$output")) <(sed 1d "$BATS_TEST_TMPDIR/page")
	echo 'a build that failed' >"$BATS_TEST_TMPDIR/table"
	code_of 1 tests/tools/museum --page "$BATS_TEST_TMPDIR/table"
}

@test "tests/tools/plant: edits lines of a file, or of one function" {
	printf '%s\n' 'int a(int);' '' 'int b(void)' '{' $'\treturn a(1);' '}' '' 'int a(int x)' '{' $'\treturn a(1);' '}' >file.c
	cat >bugs <<-'END'
		# a comment
		checks: first:1 second:2

		one: the end changes
		run 2 --tp 2: somebody #1
		in file.c a()
		-return a(1);
		+	int y = x;

		  int y = x;
		+	return y;

		two: the text is there twice
		check: third
		in file.c
		-return a(1);

		three: the text is not there, nor the function, nor the file
		in file.c b()
		-return a(2);
		in file.c c()
		-return a(1);
		in other.c
		-return a(1);
		one: again
	END
	"$top/tests/tools/plant" --list bugs | tr '\037' '|' >list
	diff list - <<-'END'
		bugs|one|the end changes|first:1 second:2|somebody #1|2 --tp 2|file.c
		bugs|two|the text is there twice|third|||file.c
		bugs|three|the text is not there, nor the function, nor the file|first:1 second:2|||file.c other.c
		bugs|one|again|first:1 second:2|||
	END
	code_of 1 "$top/tests/tools/plant" --check bugs
	diff - <(echo "$output") <<-'END'
		bugs:16: two: places in file.c with the text of the edit: 2
		bugs:20: three: places in file.c with the text of the edit: 0
		bugs:22: three: definitions of c() in file.c: 0
		bugs:24: three: no file "other.c"
		bugs:25: one: this name is used twice
	END
	cp file.c before.c
	code_of 1 "$top/tests/tools/plant" two bugs
	code_of 1 "$top/tests/tools/plant" four bugs
	[ "${lines[-1]}" = 'bugs:25: four: no mutant has this name' ]
	cmp file.c before.c
	sed -i '$d' bugs
	code_of 0 "$top/tests/tools/plant" one bugs
	diff before.c file.c >changes || :
	diff - changes <<-'END'
		10c10,11
		< 	return a(1);
		---
		> 	int y = x;
		> 	return y;
	END
}

@test "tests/tools/coverage: the lines that ran, and the files with the fewest" {
	command -v gcov >/dev/null || skip 'no gcov'
	mkdir -p cmd libcore/a kernels/cpu tests/tools build/{cmd,libcore/a,kernels/cpu}
	cp "$top/tests/tools/coverage" tests/tools
	printf 'int f(int x);\nint f(int x)\n{\n\tif (x)\n\t\treturn 1;\n\treturn 2;\n}\n' >libcore/a/half.c
	printf 'int g(void);\nint g(void)\n{\n\treturn 1;\n}\n' >kernels/cpu/none.c
	printf 'int f(int x);\nint main(int argc, char **argv)\n{\n\t(void)argv;\n\treturn f(argc) - 1;\n}\n' >cmd/main.c
	for f in cmd/main libcore/a/half kernels/cpu/none; do
		gcc -O0 --coverage -c -o build/$f.o $f.c
	done
	gcc -O0 --coverage -c -o build/kernels/cpu/none.avx2.o kernels/cpu/none.c
	gcc --coverage -o build/main build/cmd/main.o build/libcore/a/half.o
	build/main
	run tests/tools/coverage build
	diff - <(echo "$output") <<-'END'
		  0.0 % of    2 lines  kernels/cpu/none.c
		 75.0 % of    4 lines  libcore/a/half.c
		100.0 % of    2 lines  cmd/main.c
		 62.5 % of 8 lines in all
	END
}

@test "tests/tools/house: limits, and libcore is what two programs share" {
	mkdir -p tests/tools cmd/x libcore/low build/{cmd/x,libcore/low}
	cp "$top/tests/tools/house" tests/tools
	lines() {
		yes '' | head -n "$1"
	}
	echo 'int own(int a, int b, int c, int d, int e, int f, int g, int h);' | tee libcore/low/low.h >cmd/x/x.h
	echo 'int low(void) { return 1; }' >libcore/low/low.c
	echo 'int low(void); int alone(void) { return low(); }' >libcore/low/alone.c
	echo 'int low(void); int main(void) { return low(); }' >cmd/pt-two.c
	echo 'int low(void); int alone(void); int main(void) { return low() + alone(); }' >cmd/pt-one.c
	{ printf 'int own(void)\n{\n' && lines 80 && echo '}'; } >cmd/x/own.c
	for f in cmd/*.c libcore/low/*.c; do gcc -c -o "build/${f%.c}.o" "$f"; done
	house() {
		tests/tools/house build | grep -v '; take it off the list'
	}
	diff <(house) - <<-'END'
		libcore/low/alone.c: only one program needs it; libcore is what two programs share
	END
	echo 'int low(void); int alone(void); int main(void) { return low() + alone(); }' >cmd/pt-two.c
	gcc -c -o build/cmd/pt-two.o cmd/pt-two.c
	not house
	# one more than each limit, and a function that two files define
	sed -i 's/int h)/int h, int i)/' cmd/x/x.h
	{ printf 'int own(void)\n{\n' && lines 81 && echo '}'; } >cmd/x/own.c
	echo 'int low(void) { return 2; }' >cmd/x/low.c
	gcc -c -o build/cmd/x/low.o cmd/x/low.c
	for i in {1..9}; do lines 800 >"cmd/x/$i.c"; done
	lines 801 >cmd/x/large.c
	rm libcore/low/low.h
	diff <(house) - <<-'END'
		cmd/x: 8087 lines; it may have 7500
		libcore/low: no low.h, which is its index
		cmd/x/large.c: 801 lines; it may have 800
		cmd/x/own.c:2: a function of 81 lines; it may have 80
		cmd/x/x.h: own has more than 8 parameters
		low is in both libcore/low/low.c and cmd/x/low.c
	END
	sed -i "s/'cmd libcore kernels' => [0-9]*/'cmd libcore kernels' => 8088/" tests/tools/house
	house | grep '^cmd libcore kernels: [0-9]* lines; the budget is 8088$'
}

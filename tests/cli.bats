#!/usr/bin/env bats
# What all programs have in common.
load helpers

programs='pt-prepare pt-train pt-ckpt pt-compare pt-sample pt-collbench'

@test "--help goes to standard output and ends with 0" {
	for p in $programs; do
		"$p" --help >out 2>err
		[ ! -s err ]
		grep -q "^usage: $p" out
		grep -q -- '--print-config' out
	done
}

@test "--version names the libraries" {
	for p in $programs; do
		"$p" --version >out
		grep -q "^$p [0-9]" out
		grep -q '^xxHash' out
		grep -q '^HDF5' out
	done
	pt-train --version | grep -q '^MPICH'
	pt-train --version | grep -q '^OpenBLAS'
}

@test "a wrong option is 64, with the nearest name" {
	for p in $programs; do
		code_of 64 "$p" --versoin
		says "did you mean 'version'"
	done
}

@test "--print-config reads back to itself" {
	for p in $programs; do
		"$p" --print-config >one
		"$p" --config one --print-config >two
		diff one two
	done
	pt-train -p gpt2-124m --print-config -n 7 --sample-prompt $'a "b"\n#c' >one
	pt-train --config one --print-config >two
	diff one two
	grep -q '^layers = 12$' two
	grep -q '^steps = 7$' two
}

@test "config, environment, command line: the later wins" {
	echo 'layers = 5' >c.conf
	[ "$(pt-train --config c.conf --print-config | grep ^layers)" = 'layers = 5' ]
	[ "$(PT_LAYERS=6 pt-train --config c.conf --print-config | grep ^layers)" = 'layers = 6' ]
	[ "$(PT_LAYERS=6 pt-train --config c.conf --print-config layers=7 | grep ^layers)" = 'layers = 7' ]
	echo 'preset = gpt2-350m' >p.conf
	[ "$(pt-train --config p.conf --print-config | grep ^layers)" = 'layers = 24' ]
}

@test "a typo in a config file says where, and what was meant" {
	printf 'layers = 5\nhaeds = 3\n' >c.conf
	code_of 65 pt-train --config c.conf -d x.h5
	says "c.conf:2: unknown key 'haeds'; did you mean 'heads'"
}

@test "standard output that cannot be written is 74" {
	for p in $programs; do
		code_of 74 bash -c "$p --help >/dev/full"
	done
}

@test "presets: parameters are those of the papers" {
	while read -r preset n; do
		pt-train -p "$preset" --dry-run >out
		grep -q "^  $n parameters" out || {
			echo "$preset"
			grep parameters: out
			return 1
		}
	done <<-END
		gpt2-124m 124475904
		gpt2-350m 354871296
		gpt2-774m 774090240
		gpt2-1558m 1557686400
		llama2-7b 6738415616
		llama3-1b 1235814400
		llama3-8b 8030261248
		llama3-70b 70553706496
		llama3-405b 405853388800
	END
	# as published, without the padding of the vocabulary
	pt-train -p gpt2-124m --vocab-multiple 1 --dry-run | grep -q '^  124439808 parameters'
	pt-train -p gpt2-1558m --vocab-multiple 1 --dry-run | grep -q '^  1557611200 parameters'
	code_of 64 pt-train -p gpt2-125m -d x.h5
	says "did you mean 'gpt2-124m'"
}

@test "programs that train nothing are not linked with MPI" {
	for p in pt-prepare pt-ckpt pt-compare pt-sample; do
		if ldd "$(command -v $p)" | grep libmpi; then
			return 1
		fi
	done
}

#!/usr/bin/env bats
# The recipe whose model is ten times as large as the memory.
load helpers

recipe=$BATS_TEST_DIRNAME/../../share/recipes/beyond-memory

@test "a model of ten times the limit trains, and its loss is that without limit" {
	plain_memory
	command -v bible >/dev/null || skip 'no bible'
	[ "$(awk '/MemAvailable/ { print $2 }' /proc/meminfo)" -gt 4000000 ] || skip 'no memory for the control'
	unset PT_DATA
	"$recipe" whole >out
	cat out
	sed 's/^/# figure: /' whole/table.tsv >&3
	[ "$(sed -nE 's/^The model: .* ([0-9]+)[0-9.]* MiB. The limit: 256.00 MiB.$/\1/p' out)" -ge 2560 ]
	grep -qP '^offloaded\t256.00\t.*\tidentical$' whole/table.tsv
}

@test "a run that computes something else is found, and so is a limit that is none" {
	plain_memory
	command -v bible >/dev/null || skip 'no bible'
	unset PT_DATA
	mkdir spoilt
	cat >spoilt/pt-train <<-EOF2
		#!/bin/bash
		[[ " \$* " != *" --tile "* ]] || set -- "\$@" --seed 2
		[[ " \$* " != *" -o without "* ]] || set -- "\$@" --dim 64 --ffn-dim 64
		exec "$(command -v pt-train)" "\$@"
	EOF2
	chmod +x spoilt/pt-train
	PATH=$PWD/spoilt:$PATH TIMES=1 STEPS=1 code_of 1 "$recipe" other
	grep -qP '^offloaded\t.*\tDIFFERS$' other/table.tsv
	grep -qP '^without\t.*\thas room$' other/table.tsv
}

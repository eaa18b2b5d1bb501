#!/usr/bin/env bats
# The recipes, in a hurry: their tables, and that a wrong row is found.
load helpers

recipes=$BATS_TEST_DIRNAME/../share/recipes

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	for tool in bible gnuplot; do
		command -v $tool >/dev/null || skip "no $tool"
	done
	unset PT_DATA
}

# A pt-train that adds settings where the command line has a certain word.
spoil() { # WORD SETTING...
	mkdir -p spoilt
	cat >spoilt/pt-train <<-EOF2
		#!/bin/bash
		[[ " \$* " != *" $1 "* ]] || set -- "\$@" ${*:2}
		exec "$(command -v pt-train)" "\$@"
	EOF2
	chmod +x spoilt/pt-train
}

@test "convergence: rows are identical, and their controls come along" {
	STEPS=4 ROWS='^hsdp$|^fsdp-zb|^cp-large$|^offload|^tile$' "$recipes/convergence" whole >out 2>err || {
		cat out err
		return 1
	}
	[ ! -s err ]
	[ "$(grep -cE '^(hsdp|fsdp-zb-h1|cp-large|offload|offload-params|tile) .* identical +0 ' out)" -eq 6 ]
	grep -q '^fsdp .* control ' out
	grep -q '^hsdp  *dp=2 fsdp=2 ' out
	tail -n 1 out | grep -q '^6 rows, 0 not as they must be'
	# the table, for programs: eight cells, of which the last are numbers
	[ "$(awk -F'\t' 'NF == 8' whole/table.tsv | wc -l)" -eq 8 ]
	awk -F'\t' 'NR > 1 && !($6 > 0 && $7 > 1 && $8 > 0.1) { exit 1 }' whole/table.tsv
	head -n 1 whole/alone.svg | grep -q xml
	[ -s whole/pairs.svg ] && [ -s whole/together.svg ]
	[ ! -e whole/ddp.svg ] && not grep -q "plots failed" out
	# what was run is what it says, and can be run again
	[ "$(wc -l <whole/commands)" -eq 7 ]
	[ "$(rows_of whole/hsdp)" -eq 4 ]
}

rows_of() { # RUN
	grep -c '^step=' "$1/journal.txt"
}

@test "convergence: a row that computes something else, or fails, ends it with 1" {
	spoil dp=2 seed=2
	PATH=$PWD/spoilt:$PATH STEPS=3 ROWS='^hsdp$|^flat$' code_of 1 "$recipes/convergence" other
	grep -qP '^hsdp\t.*\tDIFFERS\t0\.' other/table.tsv
	grep -qP '^flat\t.*\tidentical\t0\t' other/table.tsv
	says 'seed: 1, 2' # pt-compare's reason
	says '2 rows, 1 not as they must be'
	spoil dp=2 tp=3
	PATH=$PWD/spoilt:$PATH STEPS=2 ROWS='^hsdp$' code_of 1 "$recipes/convergence" failed
	grep -qP '^hsdp\t.*\tfailed\t-\t-' failed/table.tsv
	says 'pt-train: '
	# nothing that was compared is no success
	STEPS=2 ROWS=nosuch code_of 1 "$recipes/convergence" none
	says '0 rows'
}

@test "convergence: a plot that fails is told and counts, and without gnuplot there is none" {
	mkdir -p spoilt bin
	printf '#!/bin/sh\necho no such terminal >&2\nexit 1\n' >spoilt/gnuplot
	chmod +x spoilt/gnuplot
	PATH=$PWD/spoilt:$PATH STEPS=2 ROWS='^hsdp$' code_of 1 "$recipes/convergence" unplotted
	says 'no plot of alone: '
	says '1 rows, 0 not as they must be'
	says '1 plots failed'
	(
		IFS=:
		# The first of each name is the one that counts: ln leaves it, and complains.
		for folder in $PATH; do
			ln -s "$folder"/* bin/ 2>/dev/null || true
		done
		rm -f bin/gnuplot*
	)
	PATH=$PWD/bin STEPS=2 ROWS='^hsdp$' code_of 0 "$recipes/convergence" none
	says 'gnuplot is missing: the table alone'
	not ls none/*.svg
}

@test "fsdp-table: both kinds of sharding, their memory, one curve" {
	STEPS=4 ROWS='none-8-1d|fsdp2-full-8-.d' "$recipes/fsdp-table" whole >out 2>err || {
		cat out err
		return 1
	}
	[ ! -s err ]
	[ "$(grep -c identical out)" -eq 3 ]
	awk -F'\t' 'NR > 1 { if (!($5 > 1 && $6 > $5 && $7 > 0 && $8 + 0 > 0)) exit 1
			active[$1 $2 $4] = $5 }
		END { exit !(active["fsdp2" "full" "fsdp=2"] < active["fsdp2" "none" "fsdp=2"] &&
			active["fsdp2" "full" "fsdp=2 tp=2"] < active["fsdp2" "full" "fsdp=2"]) }' \
		whole/table.tsv
	tail -n 1 out | grep -q '^4 runs, 0 not as they must be'
	spoil fsdp-kind=flat seed=2
	PATH=$PWD/spoilt:$PATH STEPS=2 ROWS='none-6-1d' code_of 1 "$recipes/fsdp-table" other
	says 'they differ'
}

@test "cp-accumulation: sums in bf16 lead further away than those in fp32" {
	STEPS=4 DEGREES=2 "$recipes/cp-accumulation" whole >out 2>err || {
		cat out err
		return 1
	}
	awk -F'\t' '$2 == "fp32" { a = $4 } $2 == "bf16" { b = $4 } END { exit !(b > 10 * a) }' whole/table.tsv
	spoil cp-accumulate=fp32 cp-accumulate=bf16
	PATH=$PWD/spoilt:$PATH STEPS=2 DEGREES=2 code_of 1 "$recipes/cp-accumulation" other
}

@test "edit-example: each synchronisation is told of, and workers end as one" {
	STEPS=22 "$recipes/edit-example" whole >out
	[ "$(awk -F'\t' '$2 ~ /^[0-9]+$/ { printf "%s:%s ", $1, $2 }' whole/table.tsv)" = '15:1 20:2 22:3 ' ]
	grep -q '^val_loss [0-9]' out
}

@test "local-sgd: less is sent, and the loss is near; one that is not is found" {
	STEPS=16 SEEDS=1 WINDOWS=8 TOLERANCE=5 "$recipes/local-sgd" whole >out 2>err || {
		cat out err
		return 1
	}
	[ "$(grep -cE '^(data-parallel|post-local-sgd|diloco|edit|a-edit) .*%' out)" -eq 5 ]
	# in 16 steps there is one synchronisation
	awk -F'\t' '$1 == "data-parallel" { all = $4 }
		$1 == "edit" && !($4 > 0.05 * all && $4 < 0.08 * all) { exit 1 }' whole/table.tsv
	STEPS=2 SEEDS=1 WINDOWS=2 TOLERANCE=-50 code_of 1 "$recipes/local-sgd" other
}

# Emulated hosts, where the machine can have them.
emulated() { # CODE COMMAND...
	local code=$1 status=0
	shift
	"$@" >out 2>err || status=$?
	[ $status -ne 77 ] || skip "$(cat err)"
	[ $status -eq "$code" ] || {
		cat out err
		return 1
	}
}

nothing_left() { # PID: of the recipe
	not ip link show "pt${1}b"
	not grep -q "^pt${1}h" <(ip netns list)
}

@test "edit-bandwidth: what is sent and how long it takes; too slow is found; signals" {
	small=(env RATE=20 LAYERS=2 DIM=128 INTERVAL=16 INTERVALS=1 STEPS=2 REPEAT=1 ROWS=^1x2)
	emulated 0 "${small[@]}" AT_LEAST=0.01 "$recipes/edit-bandwidth" whole
	[ ! -s err ]
	grep -q ' 0 less than they must be' out
	# 16 steps send as much as one where gradients are averaged, and the link has seen it
	awk -F'\t' '$1 == "1x2-ddp" { all = $5; if (!($6 > 0.95 * $5 && $7 > 1 && $8 > 1)) exit 1 }
		$1 == "1x2-edit" { if (!(all / $5 > 15 && all / $5 < 17)) exit 1; n++ }
		END { exit !n }' whole/table.tsv
	emulated 1 "${small[@]}" AT_LEAST=99 "$recipes/edit-bandwidth" slow
	grep -q ' 1 less than they must be' out
	"${small[@]}" INTERVALS=1000 ROWS=edit "$recipes/edit-bandwidth" long >out 2>err 3>&- 4>&- &
	local pid=$! status=0
	wait_for '^step=3' long/1x2-edit-1/journal.txt
	ip link show "pt${pid}b" >/dev/null
	kill "$pid"
	ended $pid
	[ "$status" -eq 143 ]
	nothing_left $pid
}

@test "edit-stragglers: who is slow costs the others less by the clock" {
	emulated 1 env MS=80 INTERVAL=8 INTERVALS=2 REPEAT=1 AT_LEAST=99 \
		ROWS='^(ddp|a-edit)-(none|persistent)' "$recipes/edit-stragglers" whole
	[ ! -s err ]
	grep -q ' 1 less than they must be' out
	awk -F'\t' '{ part[$1] = $4 }
		END { exit !(part["ddp-persistent"] < 0.9 &&
			part["a-edit-persistent"] > part["ddp-persistent"]) }' whole/table.tsv
	emulated 0 env REPEAT=1 MS=1 INTERVAL=4 ROWS=hsdp-none "$recipes/edit-stragglers" calm
}

@test "emulated hosts: who may not have them is told" {
	unshare -U true 2>/dev/null || skip 'no user namespaces'
	code_of 77 unshare -U "$recipes/edit-bandwidth" none
	says 'skipped: network namespaces need root'
	[ ! -e none ]
}

#!/usr/bin/env bats
# Rows of the recipes that start many ranks.
load helpers

recipes=$BATS_TEST_DIRNAME/../../share/recipes

@test "convergence: the test sets on 32 and 64 ranks, with two seeds" {
	for tool in bible gnuplot; do
		command -v $tool >/dev/null || skip "no $tool"
	done
	cd "$BATS_TEST_TMPDIR"
	unset PT_DATA
	STEPS=2 SEEDS='1 2' ROWS='^(3d|4d|cp)$' "$recipes/convergence" whole >out 2>err || {
		cat out err
		return 1
	}
	grep -q '^| FSDP 8, CP 8 .* identical to fsdp  *| 0 |' whole/table.md
	[ "$(grep -c '^| FSDP 8, TP 2, .* within 0.05, identical to float8 ' whole/table.md)" -eq 2 ]
	[ -s whole/loss-1.svg ]
	[ -s whole/loss-2.svg ]
	tail -n 1 out | grep -q '^10 runs, 0 failed'
}

@test "local-sgd: less is sent, and the loss is near" {
	STEPS=16 SEEDS=1 WINDOWS=8 TOLERANCE=5 "$recipes/local-sgd" whole >out 2>err || {
		cat out err
		return 1
	}
	[ "$(grep -cE '^(data-parallel|post-local-sgd|diloco|edit|a-edit) .*%' out)" -eq 5 ]
	# in 16 steps there is one synchronisation
	awk -F'\t' '$1 == "data-parallel" { all = $4 }
		$1 == "edit" && !($4 > 0.05 * all && $4 < 0.08 * all) { exit 1 }' whole/table.tsv
}

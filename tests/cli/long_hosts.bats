#!/usr/bin/env bats
# The recipes that need emulated hosts, in a hurry.
load helpers

recipes=$BATS_TEST_DIRNAME/../../share/recipes

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	for tool in bible ip; do
		command -v $tool >/dev/null || skip "no $tool"
	done
	unset PT_DATA
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
	grep -q ' 0 below the planned speedup' out
	# 16 steps send as much as one where gradients are averaged, and the link has seen it
	awk -F'\t' '$1 == "1x2-ddp" { all = $5; if (!($6 > 0.95 * $5 && $7 > 1 && $8 > 1)) exit 1 }
		$1 == "1x2-edit" { if (!(all / $5 > 15 && all / $5 < 17)) exit 1; n++ }
		END { exit !n }' whole/table.tsv
	emulated 1 "${small[@]}" AT_LEAST=99 "$recipes/edit-bandwidth" slow
	grep -q ' 1 below the planned speedup' out
	"${small[@]}" INTERVALS=1000 ROWS=edit "$recipes/edit-bandwidth" long >out 2>err 3>&- 4>&- &
	local pid=$! status=0
	wait_for '^step=3' long/1x2-edit-1/journal.txt
	ip link show "pt${pid}b" >/dev/null
	kill "$pid"
	ended $pid
	[ "$status" -eq 143 ]
	nothing_left $pid
}

@test "link-bytes: what the program counts is on the link; what is rounded is sent as such" {
	emulated 0 env LAYERS=2 DIM=128 STEPS=3 "$recipes/link-bytes" whole
	[ ! -s err ]
	grep -q '^0 rows differ' out
	awk -F'\t' '{ part[$1] = $5 } END { exit !(part["fsdp-bf16"] < 0.8 &&
		part["fsdp-float8"] < part["fsdp-bf16"] - 0.1 && part["tp-bf16"] < 0.8 && part["cp-bf16"] < 1) }' whole/table.tsv
}

@test "edit-stragglers: who is slow costs the others less by the clock" {
	emulated 1 env MS=80 INTERVAL=8 INTERVALS=2 REPEAT=1 AT_LEAST=99 \
		ROWS='^(ddp|a-edit)-(none|persistent)' "$recipes/edit-stragglers" whole
	[ ! -s err ]
	grep -q ' 1 below the limit' out
	awk -F'\t' '{ part[$1] = $4 }
		END { exit !(part["ddp-persistent"] < 0.9 &&
			part["a-edit-persistent"] > part["ddp-persistent"]) }' whole/table.tsv
	emulated 0 env REPEAT=1 MS=1 INTERVAL=4 ROWS=hsdp-none "$recipes/edit-stragglers" calm
}

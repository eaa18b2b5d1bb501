#!/usr/bin/env bats
# Logs of a million rows.
load helpers

@test "two logs of a million rows compare in seconds of processor time" {
	cd "$BATS_TEST_TMPDIR" || exit 1
	awk 'BEGIN { for (i = 1; i <= 1000000; i++)
		printf "step=%d tokens=%d loss=%.7g grad_norm=%.7g lr=0.0006\n", i, i * 524288, 2 + 8 / i, 1 + 1 / i }' >a
	awk 'BEGIN { print "step,loss"; for (i = 1; i <= 1000000; i++) printf "%d,%.7g\n", i, 2 + 8 / i }' >b
	sed 's/^\(.*\),\(.*\)/{"step": \1, "loss": \2}/; 1d' b >c
	local seconds TIMEFORMAT=%U
	seconds=$({ time pt-compare -q a b c >verdicts; } 2>&1)
	awk -v s="$seconds" 'BEGIN { exit !(s < 5) }'
}

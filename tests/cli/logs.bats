#!/usr/bin/env bats
# pt-compare and the logs of other trainers, in texts made here in their form.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	printf '[titan] - INFO - \e[31mstep: %2d  \e[32mloss: %8.5f  \e[33mgrad_norm:  1.5000  memory:  1.50GiB(1.4%%)  tps: 1,234\e[0m\n' \
		1 8.25125 2 8.12375 3 7.75125 >titan
	printf '%d %s\n' 1 8.25125 2 8.12375 3 7.75125 >losses
}

@test "logs of two formats with the same values are identical" {
	run pt-compare titan losses
	[ "$status" -eq 0 ]
	[[ $output == *"loss       identical, 3 values"* ]]
	printf 'iter %d: loss %s, time 1.50ms, mfu 2.00%%\n' 1 8.25125 2 8.12375 3 7.75125 >nano
	pt-compare -q titan nano
}

@test "a log of another trainer in a pipe, behind a prefix and in colours" {
	for i in 1 2 3; do
		sleep 0.1
		sed -n "${i}s/\([0-9]*\) \(.*\)/[INFO] - \x1b[1mstep=\1\x1b[0m loss=\2 dt=0.5 mfu=40.5/p" losses
	done | pt-compare -q titan -
}

@test "a log that differs, at its step" {
	sed 's/8.12375/8.12376/' losses >other
	run pt-compare titan other
	[ "$status" -eq 1 ]
	[[ $output == *"first at step 2: 8.12375, 8.12376"* ]]
}

@test "rows of a table are sorted, and those that a console log replaces are counted" {
	tac losses | tr ' ' , >descending.csv
	pt-compare -q titan descending.csv
	local i
	for i in 1 2 3 4 5 1 2 3; do
		echo "iter $i: loss 8.$i, time 1.50ms, mfu 2.00%"
	done >resumed
	run pt-compare resumed resumed
	[ "$status" -eq 0 ]
	[[ $output == *"3 values"* ]]
	[[ $output == *"resumed: 5 rows are not used"* ]]
}

@test "JSON, a table and JSON lines are detected" {
	echo '{"lm loss": {"start_step": 1, "end_step": 3, "step_interval": 1, "values": {"1": 8.25125, "2": 8.12375, "3": 7.75125}}}' >golden.json
	echo '{"1": {"lm loss": 8.25125}, "2": {"lm loss": 8.12375}, "3": {"lm loss": 7.75125}}' >bridge.json
	echo '{"log_history": [{"loss": 8.25125, "step": 1}, {"loss": 8.12375, "step": 2}, {"loss": 7.75125, "step": 3}]}' >trainer_state.json
	(echo _step,train/loss && tr ' ' , <losses) >table.csv
	sed 's/\(.*\) \(.*\)/{"step": \1, "loss": \2}/' losses >lines.jsonl
	pt-compare -q titan golden.json bridge.json trainer_state.json table.csv lines.jsonl
}

@test "no log: what is wrong, and exit 2" {
	echo 'The quick brown fox' >text
	run pt-compare titan text
	[ "$status" -eq 2 ]
	[[ $output == *"text: neither a log of pt-train nor of another known format"* ]]
	echo '{"log_history": [' >cut.json
	run pt-compare titan cut.json
	[ "$status" -eq 2 ]
	[[ $output == *"cut.json: line "* ]]
}

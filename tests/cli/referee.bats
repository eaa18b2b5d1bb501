#!/usr/bin/env bats
# Bits that --inject-flip flips, and what detects them.
load helpers
export SETUP=make_shard

# Two layers, eight micro-batches, and clipping, so that the norm matters.
MODEL=(--layers 2 -m 1 -n 4 --clip 0.1 --eval-every 0)

# Trains without a flip in the directory `clean`; `flip` adds flips to the same command.
clean() { # RANKS OPTION...
	command=(tiny_on "$1" "${MODEL[@]}" "${@:2}")
	"${command[@]}" --overwrite -o clean >/dev/null
}

flip() { # FLIP OPTION...: trains in the directory `run`; $status is the exit code, `err` has the messages
	status=0
	"${command[@]}" --overwrite -o run --inject-flip "$@" >/dev/null 2>err || status=$?
}

same() {
	cmp clean/checkpoints/latest.h5 run/checkpoints/latest.h5 >/dev/null
}

changes() { # FLIP...: each of these bits, flipped alone, changes the checkpoint
	local x place
	for x; do
		flip "$x"
		IFS=: read -r _ _ place _ <<<"$x"
		[ "$status" -eq 0 ] && grep -qE "(flipped bit [0-9]+ of an element: $place |token [0-9]+ instead of)" err || {
			echo "$x: exit code $status" && cat err
			return 1
		}
		not same || { echo "$x changes nothing" && return 1; }
	done
}

@test "a flipped bit in each place changes a data-parallel run" {
	clean 2 --dp 2
	changes 1:3:tokens 1:3:activation 1:2:activation:layers.1.attention.wq:14 0:2:activation:output 1:3:gradient \
		0:3:gradient:layers.0.feed_forward 1:3:leaf 1:2:leaf:layers.1.feed_forward.w2.weight:30 1:2:weight \
		1:2:sum::40 1:2:sum:layers.0.ffn_norm.weight:40 1:2:message::30 1:3:rounded 1:3:norm 1:3:norm:rate 1:2:update 1:2:moment
	# each time from step 3 on
	changes 1:3+:weight
	flip 1:3+:weight
	[ "$(grep -c 'flipped bit' err)" -eq 2 ]
	# on a rank whose loss is not logged, nothing follows from it
	flip 1:3:norm:loss
	same
	flip 0:3:norm:loss
	same
	not cmp <(grep -o ' loss=[^ ]*' clean/journal.txt) <(grep -o ' loss=[^ ]*' run/journal.txt)
}

@test "a flipped bit in shards, sums between rounds and offloaded sums changes the run" {
	clean 2 --fsdp 2
	changes 1:3:leaf 1:2:weight 1:2:message::30 1:2:sum::40 1:3:sum:layers.1.attention.wq.weight:40 1:3:rounded 1:2:update 1:2:moment
	clean 2 --fsdp 2 --offload all --offload-to .
	changes 1:3:leaf 1:2:weight 1:2:message::30 1:2:sum::40 1:3:rounded 1:2:update 1:2:moment
	clean 1 --offload all --offload-to .
	changes 0:3:leaf 0:2:weight 0:2:sum::40 0:3:rounded 0:2:update 0:2:moment
	clean 4 --dp 2 --fsdp 2
	changes 3:3:leaf 3:2:message::30 2:2:sum::40
	clean 2 --pp 2
	changes 1:3:sum::40 1:2:activation 0:2:gradient
	flip 1:2:message
	grep -q 'step 2: nothing to flip: message' err
	same
}

@test "a flipped bit in the copy that matmuls read changes the run" {
	clean 2 --dp 2 --dtype bf16
	flip 1:2:copy
	not grep -q 'nothing to flip' err || skip 'no copies on this processor'
	changes 1:2:copy
}

@test "--inject-flip: what makes no sense is rejected" {
	local x
	for x in 0 0:1 x:1:leaf 0:0:leaf 0:1:nowhere 0:1:leaf:wq:64 0:1:leaf:wq:x -1:1:leaf 0:1++:leaf; do
		reports 64 "--inject-flip '$x': expected RANK:STEP[+]:PLACE[:NAME[:BIT]]" tiny --dry-run --inject-flip "$x"
	done
	reports 64 '--inject-flip: rank 1 does not exist' tiny --dry-run --inject-flip 1:1:leaf
	reports 64 '--inject-flip and --cuda-graph are mutually exclusive' tiny --dry-run --cuda-graph --inject-flip 0:1:leaf
	clean 1
	flip 0:2:leaf:nothing
	grep -q 'step 2: nothing to flip: leaf nothing' err
	same
}

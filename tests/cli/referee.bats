#!/usr/bin/env bats
# Bits that --inject-flip flips, and what detects them.
load helpers
load flips
export SETUP=make_shard

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
		reports 64 "--inject-flip '$x': expected RANK:STEP[+|pX]:PLACE[:NAME[:BIT]]" tiny --dry-run --inject-flip "$x"
	done
	reports 64 '--inject-flip: rank 1 does not exist' tiny --dry-run --inject-flip 1:1:leaf
	clean 1
	flip 0:2:leaf:nothing
	grep -q 'step 2: nothing to flip: leaf nothing' err
	same
}

# ---- --check-sums

# A flip that checksums detect: the step is computed again, and the run ends as without the flip.
detects() { # FLIP...
	local x
	for x; do
		flip "$x" --check-sums yes
		[ "$status" -eq 0 ] && grep -q "flipped bit" err && same &&
			grep -q "step=$(cut -d: -f2 <<<"$x") step $(cut -d: -f2 <<<"$x"): a sum of gradients was wrong; computed again it was right: sporadic" run/journal.txt || {
			echo "$x: exit code $status" && cat err && grep event run/journal.txt
			return 1
		}
	done
}

# A flip in each attempt: the run ends with 71, a checkpoint of the step before, and the rank and the bucket.
names() { # FLIP TEXT
	flip "$1" --check-sums yes
	[ "$status" -eq 71 ] && grep -qE "pt-train: step 3: sums of gradients are wrong, twice: $2" err || {
		echo "$1: exit code $status" && cat err
		return 1
	}
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000002.h5 ]
	grep -qE "stopped: step 3: .* $2" run/journal.txt
	grep -q 'ends with code 71 after step 2' run/journal.txt
}

@test "--check-sums: runs without a flip are the same, without an alarm" {
	local layout
	for layout in '1' '2 --dp 2' '3 --fsdp 3' '4 --dp 2 --fsdp 2' '4 --tp 2 --pp 2' '2 --pp 2 --tie yes' \
		'2 --fsdp 2 --zero 1' '2 --fsdp 2 --offload all --offload-to .' '1 --offload grads --offload-to .' \
		'2 --cp 2' '2 --fsdp 2 --dtype bf16' '4 --fsdp 2 --tp 2 --fsdp-kind flat' \
		'2 --fsdp 2 -a llama --experts 4 --ep 2' '2 --dp 2 -a llama --experts 4'; do
		# shellcheck disable=SC2086 # one word each
		clean $layout
		"${command[@]}" --overwrite -o run --check-sums yes >/dev/null
		same || { echo "$layout" && return 1; }
		not grep -q 'a sum of gradients' run/journal.txt
	done
}

@test "--check-sums detects a flipped bit in sums and messages, and the step is computed again" {
	clean 2 --dp 2
	detects 1:3:sum 1:2:message 0:3:message:layers.1.feed_forward.w2.weight:0
	clean 2 --fsdp 2
	detects 1:3:sum 0:3:sum:layers.1.attention.wq.weight:63 1:2:message 0:4:message::17
	clean 3 --fsdp 3 --offload all --offload-to .
	detects 1:3:sum 2:2:sum::5 0:3:message
	clean 1 --offload grads --offload-to .
	detects 0:3:sum
	clean 4 --dp 2 --fsdp 2
	detects 2:2:sum:layers.1.attention.wq.weight 3:2:message
	clean 4 --fsdp 2 --tp 2 --fsdp-kind flat
	detects 3:3:message::30 # one that makes a leaf too large for exact sums
	clean 2 --pp 2 --tie yes
	detects 1:3:sum:tok_embeddings.weight 0:3:sum
	# without checks, nothing is noticed
	flip 0:3:sum
	[ "$status" -eq 0 ]
	not same
}

@test "--check-sums: a sum that is wrong twice ends the run with 71, and its rank and bucket are named" {
	clean 2 --fsdp 2
	names 1:3+:sum:layers.1.attention.wq.weight \
		'rank 1 added wrongly, or changed a sum that it kept, in the bucket of layers.1.attention.wq.weight'
	names 0:3+:message 'rank 0 sent other numbers than it computed, in the bucket of norm.weight.*, received by rank 1 through MPI'
	clean 2 --dp 2
	names 1:3+:message 'rank 1 sent other numbers than it computed, .*, received by rank 0 through (shared memory|MPI)'
	clean 4 --dp 2 --fsdp 2
	names 2:3+:sum:layers.1.attention.wq.weight 'rank 2 added wrongly'
	names 2:3+:message 'rank 2 sent other numbers'
	clean 3 --fsdp 3 --offload all --offload-to .
	names 1:3+:sum:layers.1.attention.wq.weight 'rank 1 added wrongly'
	# the run goes on with its checkpoint
	"${command[@]}" -o run --resume auto >/dev/null 2>&1
	same
}

#!/usr/bin/env bats
# Replicas and state at rest: --check-replicas and --check-memory find flipped bits, and heal them.
load helpers
load flips
export SETUP=make_shard

@test "--check-replicas: wrong replicas of data parallelism are found, named and replaced" {
	clean 3 --dp 3
	heals 1:3:weight 'parameters of the bucket of .* differ from replicas: copied from rank 0'
	heals 2:1:weight 'parameters of the bucket of .* differ from replicas: copied from rank 0'
	heals 0:2:weight:layers.1.attention.wq.weight 'parameters of the bucket of .* copied from rank 1'
	heals 1:2:moment 'exp_avg of the bucket of .* copied from rank 0'
	heals 0:2:update 'parameters of the bucket of'
	heals 1:2:norm 'loss, norm or learning rate of the last update differ from rank 0'
	heals 1:2:norm:rate 'loss, norm or learning rate of the last update'
	heals 1:3:norm:loss 'loss, norm or learning rate of the last update'
	heals 1:2:norm:scale:23 'loss, norm or learning rate of the last update' # also the grid of gradients
	heals 2:4:update 'parameters of the bucket of' # before the last checkpoint
	grep -q 'before a checkpoint: rank 2' run/journal.txt
	clean 3 --dp 3 --clip 0
	heals 1:3:rounded 'parameters of the bucket of'
	# in each step from step 2 on
	flip 1:2+:weight --check-replicas yes
	[ "$status" -eq 0 ] && same && [ "$(grep -c 'rank 1 (host' run/journal.txt)" -eq 3 ]
}

@test "--check-replicas: of two replicas, the wrong one is known by its checksum after the last update" {
	clean 2 --dp 2
	heals 1:3:weight 'parameters of the bucket of .* changed after the last update: copied from rank 0'
	heals 0:2:moment 'exp_avg of the bucket of .* changed after the last update: copied from rank 1'
	heals 1:2:update 'parameters of the bucket of'
	heals 1:2:norm:rate 'loss, norm or learning rate of the last update'
	heals 0:2:norm 'loss, norm or learning rate of the last update'
	ends 1:2:rounded 'rank 0 \(host .* parameters of the bucket of .* differ, and no majority shows which are right: here, or on rank 1' --clip 0
}

@test "--check-replicas: shards with replicas, and gathered parameters" {
	clean 4 --dp 2 --fsdp 2
	heals 3:3:weight 'parameters of the bucket of .* copied from rank 1'
	heals 2:2:moment 'exp_avg of'
	heals 1:2:norm:rate 'loss, norm or learning rate of the last update'
	clean 2 --fsdp 2 --zero 1
	heals 1:3:weight 'parameters of the bucket of'
	heals 0:2:update 'parameters of the bucket of'
	ends 1:2:norm:rate 'rank 1 .*loss, norm or learning rate of the last update'
	clean 4 --dp 2 --fsdp 2 --zero 2
	heals 1:3:weight 'parameters of the bucket of'
	heals 0:2:norm:rate 'loss, norm or learning rate of the last update'
	heals 2:3:moment 'exp_avg of'
	clean 2 --fsdp 2 --tp 1
	ends 1:2:norm:rate 'rank 1 .*loss, norm or learning rate of the last update'
	# without a replica, nothing is found
	flip 1:3:weight --check-replicas yes
	[ "$status" -eq 0 ]
	not same
}

@test "--check-replicas: weights that tensor and pipeline parallelism replicate" {
	clean 2 --tp 2 --virtual tp=2
	heals 1:3:weight:norm.weight 'parameters of the bucket of'
	clean 2 --pp 2 --tie yes
	heals 1:3:weight:tok_embeddings.weight 'parameters of the bucket of tok_embeddings.weight changed'
	heals 0:2:moment:tok_embeddings.weight 'exp_avg of the bucket of tok_embeddings.weight'
	clean 2 --cp 2
	heals 1:3:weight 'parameters of the bucket of'
	clean 4 --fsdp 4 -a llama --experts 4 --ep 2 --zero 1
	heals 3:3:weight:layers.1.experts.w13.weight 'parameters of the bucket of'
	clean 2 --dp 2 --offload optimizer --offload-to .
	heals 1:3:moment 'exp_avg of the bucket of'
	clean 2 --dp 2 --offload all --offload-to .
	heals 0:3:weight 'parameters of the bucket of'
}

@test "--check-memory: a change at rest is found without a replica, and ends the run" {
	clean 2 --fsdp 2 -c 2
	flip 1:3:weight --check-memory yes
	[ "$status" -eq 71 ]
	grep -qE 'step 3: rank 1 \(host [^ ]+\): parameters of the bucket of .* have changed since the last update, and have no replica' err
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000002.h5 ]
	flip 0:3:moment --check-memory yes
	[ "$status" -eq 71 ]
	grep -qE 'step 3: rank 0 \(host [^ ]+\): exp_avg of' err
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000002.h5 ]
	"${command[@]}" -o run --resume auto >/dev/null 2>&1
	same
	# before the checkpoint of the step that it follows
	flip 1:2:update --check-memory yes
	[ "$status" -eq 71 ]
	grep -q 'step 2: before a checkpoint: rank 1' err
	[ ! -e run/checkpoints/latest.h5 ]
	clean 1
	flip 0:3:moment --check-memory yes
	[ "$status" -eq 71 ]
	clean 2 --dp 2
	flip 1:3:moment --check-memory yes
	[ "$status" -eq 0 ]
	same
}

@test "--check-replicas, --check-memory: runs without a flip are the same, without an alarm" {
	local layout
	for layout in '1' '2 --dp 2' '3 --fsdp 3' '4 --dp 2 --fsdp 2' '4 --tp 2 --pp 2' '2 --pp 2 --tie yes' \
		'2 --fsdp 2 --zero 1' '4 --dp 2 --fsdp 2 --zero 2' '2 --fsdp 2 --offload all --offload-to .' '2 --cp 2' \
		'2 --fsdp 2 --dtype bf16' '2 --dp 2 --dtype fp16 --loss-scale 1e7' '4 --fsdp 2 --tp 2 --fsdp-kind flat' \
		'2 --fsdp 2 -a llama --experts 4 --ep 2' '2 --dp 2 --optimizer muon' '2 --dp 2 --freeze tok_embeddings'; do
		# shellcheck disable=SC2086 # one word each
		clean $layout
		"${command[@]}" --overwrite -o run --check-replicas yes --check-memory yes >/dev/null
		same || { echo "$layout" && return 1; }
		not grep -qE '\(host|before a checkpoint' run/journal.txt
	done
	for layout in '4 --dp 2 --edit-workers 2' '4 --dp 2 --edit-workers 2 --edit-sync-interval 2 --edit-warmup-steps 1' \
		'4 --fsdp 2 --edit-workers 2 --edit-sync-interval 2'; do
		# shellcheck disable=SC2086 # one word each
		clean $layout
		"${command[@]}" --overwrite -o run --check-replicas yes >/dev/null
		same || { echo "$layout" && return 1; }
		not grep -qE '\(host|before a checkpoint' run/journal.txt
	done
}

@test "--check-replicas with --referee: a rank with wrong weights is healed, and has no fault" {
	local why='rank 1 computed with wrong state, which was replaced: no fault of its device'
	clean 3 --dp 3
	heals 1:3:weight 'parameters of the bucket of .* copied from rank 0' --referee 1
	grep -q "$why" run/journal.txt
	not grep -q 'sporadic, fault' run/journal.txt
	[ ! -e run/suspects ]
	# more often than --referee-strikes allows
	flip 1:2+:weight --check-replicas yes --referee 1
	[ "$status" -eq 0 ] && same && [ "$(grep -c "$why" run/journal.txt)" -eq 3 ] && [ ! -e run/suspects ]
	# a rank that computes wrongly is still named
	clean 2 --dp 2
	flip 1:3:weight --check-replicas yes --referee 1 --inject-flip 0:3+:activation
	[ "$status" -eq 71 ] && grep -qE 'rank 0 \(host .* computed ' err
}

@test "--check-replicas: what is not supported is rejected" {
	reports 64 '--check-memory and --edit-workers are mutually exclusive' tiny --dry-run --check-memory yes --edit-workers 2
	reports 64 "unknown option '--check-replicas-every'; --check-replicas yes compares replicas in every step" \
		tiny --dry-run --check-replicas-every 5
}

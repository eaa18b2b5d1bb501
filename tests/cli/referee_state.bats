#!/usr/bin/env bats
# A state that is found wrong is kept nowhere: in the vault, in a checkpoint or in a validation loss.
load helpers
load flips
export SETUP=setup_vault

setup_vault() {
	make_shard
	VAULT=$(mktemp -d "${PT_VAULT_DIR:-/dev/shm}/pt-test-XXXXXX")
	KEEP=(--vault "$VAULT" --vault-every 1)
}

teardown() {
	[ -z "${VAULT:-}" ] || rm -rf "$VAULT"
}

kept() { # FLIP OPTION...: as `flip`, with a vault
	flip "$@" "${KEEP[@]}"
}

resumes() { # STEP: from the vault, to the same end
	"${command[@]}" -o run "${KEEP[@]}" --resume auto >out 2>err
	grep -q "resuming from the vault at step $1 with" run/journal.txt && same || {
		echo "not from step $1" && cat err
		return 1
	}
}

@test "a wrong state is not copied to the vault, which keeps the step before" {
	clean 2 --fsdp 2 -n 6 -c 1
	kept 1:6:update --check-memory yes # after the last step
	[ "$status" -eq 71 ]
	resumes 5
	kept 1:3:update --check-memory yes
	[ "$status" -eq 71 ]
	grep -q 'step 3: before a copy to the vault: rank 1 .* the state is wrong' err
	resumes 2
	# of replicas, the right one is copied
	clean 3 --dp 3 -b 9 -n 6
	kept 0:3:update:tok_embeddings.weight --check-replicas yes --inject-kill 1:4:copy
	[ "$status" -eq 9 ]
	grep -q 'step 3: before a copy to the vault: rank 0 .* copied from rank 1' err
	resumes 3
}

@test "a copy in the vault loses its seal on all hosts when its state is found wrong later" {
	export PT_HOST_RANKS=1
	clean 2 --fsdp 2 -n 6
	kept 1:4:weight --check-memory yes
	[ "$status" -eq 71 ]
	grep -q 'step=3 the copy of step 3 in the vault is withdrawn' run/journal.txt
	resumes 2
	kept 1:4:weight --check-memory yes
	rm "$VAULT"/*-own-*
	resumes 2
	# the next copy takes its place
	clean 2 --dp 2 -n 6
	kept 1:4:weight --check-replicas yes --inject-kill 0:4:copy
	[ "$status" -eq 9 ]
	resumes 2
	kept 1:2:weight --check-replicas yes # the first copy
	[ "$status" -eq 0 ]
	same
}

@test "a wrong replica is replaced before an evaluation, a wrong state ends a run without files" {
	clean 3 --dp 3 -b 9 -n 6 -c 2 --keep 9 --eval-every 2
	flip 0:4:update:layers.1.feed_forward.w2.weight:27 --check-replicas yes
	[ "$status" -eq 0 ]
	grep -q 'step 4: before an evaluation: rank 0' err
	cmp clean/checkpoints/step-00000004.h5 run/checkpoints/step-00000004.h5
	same
	clean 2 --fsdp 2 --no-ckpt
	flip 1:4:update --check-memory yes
	[ "$status" -eq 71 ]
	grep -q 'step 4: before the end: rank 1' err
	# the other workers of local SGD do not wait for one that ends
	clean 4 --dp 2 --edit-workers 2 --edit-sync-interval 2 --eval-every 3 --watchdog 60
	flip 3:3:update --check-replicas yes
	[ "$status" -eq 71 ]
	grep -q 'step 3: before an evaluation: .* the state is wrong' err
	not grep -q 'waited for' err
}

@test "what the ranks of local SGD report counts over all workers" {
	clean 4 --dp 2 --edit-workers 2
	flip 3:3+:message --check-sums yes
	[ "$status" -eq 71 ]
	grep -qE 'rank 3 \(host [^ ]+\) sent other numbers .*, received by rank 2 through' err
	clean 6 --dp 3 -b 12 --edit-workers 2
	flip 4:3:weight --check-replicas yes
	[ "$status" -eq 0 ]
	same
	grep -qE 'step 3: rank 4 \(host [^ ]+\): parameters .* copied from rank 3' err
}

@test "a wrong loss that no update has used is replaced, and condemns no shard" {
	clean 2 --fsdp 2 -n 6
	flip 1:3:norm:loss --check-replicas yes
	[ "$status" -eq 0 ]
	same
	grep -q 'step 4: rank 1 .*: loss, norm or learning rate .* differ from rank 0' run/journal.txt
	flip 1:3:norm:rate --check-replicas yes
	[ "$status" -eq 71 ]
}

#!/usr/bin/env bats
# --referee on GPUs: ranks that share a GPU, and ranks with NCCL, both emulated.
load helpers
load flips

setup() {
	gpu_flips_setup
}

# Four steps of N micro-batches per data rank, with clipping, so that the norm matters.
SMALL=(--layers 2 --dim 32 -m 1 -n 4 --eval-every 0 --peak-flops 1e12 --clip 0.1 --overwrite)

clean() { # COMM RANKS OPTION...
	layout=("$@")
	on_gpu "$@" -o clean >/dev/null
}

audit() { # OPTION...: trains in the directory `run`; $status is the exit code, `err` has the messages
	status=0
	rm -f run/suspects # --overwrite keeps it
	on_gpu "${layout[@]}" -o run --referee 1 "$@" >out 2>err || status=$?
}

failed() { # TEXT: with what there is to see
	echo "${layout[*]}: $1: exit code $status"
	cat err
	grep event run/journal.txt
	return 1
}

# One flip on a rank in a step: the rank is named, with the tensor, and the run ends as without the flip.
detects() { # FLIP TENSOR
	local rank step
	IFS=: read -r rank step _ <<<"$1"
	audit --inject-flip "$1"
	[ "$status" -eq 0 ] && grep -qE 'flipped bit|token [0-9]+ instead' err || failed "$1"
	grep -qE "step $step: rank $rank \(host [^)]*, GPU [0-9]+\) computed $2 wrongly \(.*\); computed again.* it was right: sporadic, fault 1 of this device within a day" run/journal.txt || failed "$1"
	same || failed "$1 changes the run"
	[ "$(cut -f2,5,6 run/suspects)" = "$step	$rank	sporadic" ] || failed "$1: $(cat run/suspects)"
}

@test "--referee on a GPU: runs without a flip are the same, without an alarm" {
	local x
	while read -r x; do
		# shellcheck disable=SC2086 # one word each
		clean $x
		audit
		[ "$status" -eq 0 ] && same || failed audit
		not grep -q 'computed' run/journal.txt
		[ "$(tail -n 1 out | grep -o 'audited=[0-9]* mismatches=[0-9]*')" = 'audited=4 mismatches=0' ] || failed "$(cat out)"
		[ ! -e run/suspects ]
	done <<-END
		mpi 2 -b 4 --dp 2
		mpi 2 -b 4 --fsdp 2 --zero 3 --dtype bf16
		mpi 1 -b 2 --layers 3 --heads 4 --virtual tp=4,cp=4
		mpi 2 -b 2 --pp 2 --tie yes
		nccl 2 -b 4 --dp 2 --dtype fp16
		nccl 2 -b 4 --fsdp 2 --zero 2 -a llama --experts 4 --ep 2
		nccl 2 -b 4 --fsdp 2 --zero 3 --offload all
		nccl 4 -b 4 --tp 2 --fsdp 2 --sp --dtype bf16
		nccl 4 -b 4 --cp 2 --dp 2
		nccl 4 -b 4 --pp 2 --fsdp 2 --pp-schedule zb-h1
	END
}

@test "--referee on a GPU detects a flipped bit, names the rank, and the step is computed again" {
	clean mpi 2 -b 2 --dp 2 --dtype bf16
	detects 1:3:activation:layers.1.attention.wq:12 layers.1.attention.wq
	detects 0:1:gradient:layers.0.feed_forward:10 layers.0.feed_forward
	detects 1:2:leaf:layers.0.attention.wq.weight:25 layers.0.attention.wq.weight
	detects 1:2:activation:output:12 output
	detects 1:4:tokens .*
	clean nccl 3 -b 3 --fsdp 3 --zero 3
	detects 2:3:activation .*
	detects 1:2:leaf:layers.1.feed_forward.w2.weight:30 layers.1.feed_forward.w2.weight
	clean nccl 4 -b 2 --pp 2 --dp 2
	detects 3:2:gradient:layers.1.feed_forward:14 layers.1.feed_forward
	clean nccl 4 -b 2 --tp 2 --fsdp 2
	detects 3:3:activation:layers.1.attention.wq:14 layers.1.attention.wq
}

@test "--referee on a GPU: a wrong copy of a weight is made again" {
	clean nccl 3 -b 3 --dp 3 --dtype bf16
	audit --inject-flip 1:2:copy::14
	[ "$status" -eq 0 ] && same || failed copy
	grep -q 'computed again with new copies of the parameters it was right: sporadic' run/journal.txt
}

@test "--referee on a GPU: a rank that is wrong each time ends the run with 71 and a checkpoint" {
	local comm
	for comm in mpi nccl; do
		clean $comm 3 -b 3 --fsdp 3
		audit --inject-flip 2:3+:gradient:layers.0.feed_forward:14
		[ "$status" -eq 71 ] || failed gradient
		grep -q 'pt-train: step 3: rank 2 (host .*, GPU .*) computed layers.0.feed_forward wrongly (backward, samples [0-9]*-[0-9]*); computed again it was wrong: persistent' err || failed gradient
		[ "$(readlink run/checkpoints/latest.h5)" = step-00000002.h5 ]
		[ "$(cut -f2,5- run/suspects)" = "3	2	persistent	layers.0.feed_forward" ]
	done
	# a wrong weight of one of two replicas is not saved; of three, it is replaced
	clean mpi 2 -b 2 --dp 2
	audit --inject-flip 1:2:weight:layers.0.attention.wq.weight:25
	[ "$status" -eq 71 ] && [ ! -e run/suspects ] && grep -q 'the state is wrong, and is not saved' err || failed weight
	clean mpi 3 -b 3 --dp 3
	audit --inject-flip 1:2:weight:layers.0.attention.wq.weight:25
	[ "$status" -eq 0 ] && same && [ ! -e run/suspects ] && grep -q 'rank 1 (host .*): parameters .* copied from rank 0' err || failed weight
}

# Most steps are launches of a graph; audited ones are not.
@test "--referee on a GPU with --cuda-graph: some steps are audited, and a flip in one of them is found" {
	local step seen=0 unseen=0
	clean nccl 2 -b 4 --dp 2 --cuda-graph -n 10
	for step in 7 8; do
		audit --referee 0.2 --inject-flip "1:$step:leaf:layers.0.attention.wq.weight:25"
		[ "$status" -eq 0 ] || failed "$step"
		if grep -q "step $step: rank 1 .*sporadic" run/journal.txt; then
			same || failed "$step"
			seen=$((seen + 1))
		else
			unseen=$((unseen + 1))
		fi
	done
	[ "$seen $unseen" = '1 1' ]
	audit --referee 0.2
	[ "$status" -eq 0 ] && same || failed 'no flip'
	not grep -q sporadic run/journal.txt
	grep -q 'audited=4 mismatches=0' out
}

# The graph of a step has the check, and the step that is computed again has none.
@test "--check-sums on a GPU with --cuda-graph: a wrong addition of NCCL in a launched graph is found" {
	local step
	clean nccl 2 -b 4 --dp 2 --cuda-graph -n 8
	for step in 4 6; do # one reduction per step is large
		PT_EMU_NCCL_FLIP=$step on_gpu "${layout[@]}" -o run --check-sums yes >/dev/null
		same
		grep -q "step $step: a sum of gradients was wrong; computed again it was right: sporadic" run/journal.txt
	done
	PT_EMU_NCCL_FLIP=4 on_gpu "${layout[@]}" -o run >/dev/null
	not same
}

@test "--referee on GPUs: of two that repeat their own results, the one that fails its self-test is named" {
	two_gpus() { # KERNEL KERNEL: each is wrong on one of two ranks; empty: none
		status=0
		# shellcheck disable=SC2016
		PT_EMU_GPUS=2 timeout -k 1 900 mpiexec -n 2 sh -c 'eval "PT_EMU_BREAK=\${$((PMI_RANK + 1))}"
			[ -z "$PT_EMU_BREAK" ] || export PT_EMU_BREAK; shift 2; exec "$@"' sh "$@" \
			pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda -b 2 --dp 2 --referee 1 -o run >/dev/null 2>err </dev/null || status=$?
		[ "$status" -eq 71 ] || failed "$*"
	}
	layout=(two)
	two_gpus '' attn_bwd
	grep -q 'undecided: no other rank agrees with either; only the self-test of rank 1 fails: attn_bwd .*: persistent' err || failed kernel
	[ "$(cut -f2,4- run/suspects)" = '1	GPU 1	1	persistent	layers.1.attention.wq' ]
	# both GPUs are defective
	rm run/suspects
	two_gpus attn_fwd attn_bwd
	grep -q 'undecided: .*; the self-test fails on both' err || failed both
	[ "$(cut -f5,6 run/suspects | tr '\t\n' ' ')" = '0 undecided 1 undecided ' ]
}

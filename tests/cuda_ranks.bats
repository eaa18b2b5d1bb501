#!/usr/bin/env bats
# pt-train on several ranks that share a GPU, which is emulated: messages go by way of the
# program's memory, and every layout gives the bits of one rank.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	export PT_CUDA=$BUILD/emu/pt-cuda.so PT_EMU_GUARD=no
	[ -e "$PT_CUDA" ] || skip 'nvcc and its headers are not here'
}

# Fixed virtual degrees, so that layouts are comparable.
SMALL=(--layers 2 --dim 32 -b 4 -n 2 --eval-every 0 --log-every 2 --virtual "tp=2,cp=2"
	--peak-flops 1e12 --check-replicas-every 2)

on_gpu() { # RANKS OPTION...
	local n=$1 launch=()
	shift
	[ "$n" -eq 1 ] || launch=(mpiexec -n "$n")
	timeout -k 1 120 "${launch[@]}" pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda "$@"
}

same_on() { # RANKS OPTION...: as the run `one`
	rm -rf test
	on_gpu "$@" -o test >/dev/null || {
		echo "$*: code $?"
		return 1
	}
	cmp one/checkpoints/latest.h5 test/checkpoints/latest.h5 || {
		echo "$*"
		return 1
	}
}

sample_of() { # FILE: what follows its announcement
	sed -n '/a sample after step 3/{n;p}' "$1"
}

@test "two ranks along every axis give the bits of one; nobody else touches the GPU's memory" {
	make_shard
	unset PT_EMU_GUARD
	on_gpu 1 -o one >/dev/null
	for layout in '--dp 2' '--tp 2' '--cp 2' '--pp 2'; do
		# shellcheck disable=SC2086
		same_on 2 $layout
	done
	for zero in 1 2 3; do
		same_on 2 --fsdp 2 --zero $zero
	done
	same_on 2 --tp 2 --no-sp
	same_on 2 --cp 2 --cp-comm gather
}

@test "so do four ranks along two, in bf16, of Llama with dropout" {
	make_shard
	SMALL+=(--dtype bf16 --dropout 0.1 -a llama --kv-heads 1)
	on_gpu 1 -o one >/dev/null
	same_on 4 --tp 2 --dp 2
	same_on 4 --tp 2 --fsdp 2 --zero 3 --no-sp
	same_on 2 --fsdp 2 --zero 2 --fsdp-kind flat --offload optimizer
	PT_EMU_LAZY=yes same_on 2 --fsdp 2 --offload params
	PT_EMU_LAZY=first same_on 2 --dp 2 --offload params
	same_on 2 --pp 2 --pp-schedule zb-h1 --recompute full
}

@test "so do two in float8; a step of several is no graph" {
	make_shard
	unset PT_EMU_GUARD
	SMALL+=(--dtype float8 --no-float8-skip-ends)
	on_gpu 1 -o one >/dev/null
	same_on 2 --tp 2
	same_on 2 --fsdp 2 --zero 3
	run on_gpu 2 --graph -o other
	[ "$status" -eq 64 ]
}

@test "the products of several ranks are those that the first has measured" {
	make_shard
	local o=(--numerics fast --dtype bf16 -n 3 --decay-steps 3)
	on_gpu 2 "${o[@]}" --pp 2 -o one >/dev/null
	same_on 2 "${o[@]}" --tp 2 --algorithms one/algorithms
	on_gpu 1 "${o[@]}" -o alone --algorithms one/algorithms >/dev/null 2>said
	cmp one/checkpoints/latest.h5 alone/checkpoints/latest.h5
	cmp one/algorithms alone/algorithms # the stages' all
}

@test "samples, and going on with another layout, of what one rank has read" {
	make_shard
	TINY=("${TINY[@]:1}") # samples are said
	SMALL+=(-n 3 --decay-steps 3 --sample-every 3 --sample-tokens 8 -a llama)
	on_gpu 1 -o one 2>one.text >/dev/null
	on_gpu 2 --tp 2 -n 2 -o test >/dev/null
	on_gpu 2 --fsdp 2 --zero 3 --load broadcast --resume auto -o test 2>test.text >/dev/null
	cmp one/checkpoints/latest.h5 test/checkpoints/latest.h5
	sample_of one.text | grep -q .
	cmp <(sample_of one.text) <(sample_of test.text)
}

@test "ranks share the memory of their GPU, and keep to the plan" {
	make_shard
	local kernels=100663296 planned taken # of the first, what every rank has
	on_gpu 2 --fsdp 2 --zero 3 --no-ckpt -o run >rows
	planned=$(PT_CUDA=$PWD/nowhere.so on_gpu 1 --fsdp 2 --zero 3 --no-ckpt --dry-run |
		awk '/^on the GPU/ { print $4 }')
	taken=$(sed -n 's/^step=2 .* mem=\([^ ]*\).*/\1/p' rows)
	awk -v p="$planned" -v t="$taken" -v k=$kernels \
		'BEGIN { exit !(t > k && t - k <= p - k && t - k > 0.9 * (p - k)) }'
	# What is enough for one rank is not for two, but where each has a GPU.
	local big=(--dim 256 -n 1 --no-ckpt --overwrite) room
	room=$(PT_CUDA=$PWD/nowhere.so on_gpu 1 "${big[@]}" --dry-run |
		awk '/^on the GPU/ { print $4 + 1000000 }')
	PT_EMU_MEMORY=$room on_gpu 1 "${big[@]}" -o one >/dev/null
	PT_EMU_MEMORY=$room run on_gpu 2 "${big[@]}" -o two
	[ "$status" -eq 1 ]
	[[ $output == *'out of memory'*'ranks that share it'* ]]
	PT_EMU_GPUS=2 PT_EMU_MEMORY=$room on_gpu 2 "${big[@]}" -o two >/dev/null
}

@test "without --device, several ranks are on GPUs if each has its own" {
	make_shard
	for n in 1 2 3; do
		PT_EMU_GPUS=$n timeout -k 1 60 mpiexec -n 2 pt-train "${TINY[@]}" "${SMALL[@]}" \
			-n 1 --no-ckpt -o run$n >/dev/null
	done
	grep -q 'device = cpu' run1/journal.txt
	grep -q 'device = emulated GPU' run2/journal.txt
	grep -q 'device = emulated GPU' run3/journal.txt
	# Where one rank has none, the other does without.
	local o=(pt-train "${TINY[@]}" "${SMALL[@]}" -n 1 --no-ckpt -o mixed)
	timeout -k 1 60 mpiexec -n 1 -env PT_EMU_GPUS 2 "${o[@]}" : \
		-n 1 -env PT_EMU_GPUS 1 "${o[@]}" >/dev/null
	grep -q 'device = cpu' mixed/journal.txt
}

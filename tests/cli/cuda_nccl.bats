#!/usr/bin/env bats
# NCCL between GPUs, both emulated unless GPU=yes tests/run has begun this: then several ranks share one
# real GPU (tests/tools/nccl_rank). A collective takes up to 20 ms there and a start seconds, so tests have less to
# do, and what the emulation is asked for (PT_EMU_...) is skipped.
load helpers

setup() {
	gpu_setup
	if [[ $PT_CUDA == */emu/* ]]; then
		export PT_NCCL=$PT_CUDA
	else
		PT_NCCL=$("$BATS_TEST_DIRNAME/../tools/find_nccl" 2>&1) || skip "$PT_NCCL"
		export PT_NCCL
	fi
	real=no
	! real_gpu || real=yes
}

SMALL=(--layers 2 --dim 32 -b 4 -n 3 --eval-every 0 --log-every 1 --virtual "tp=2,cp=2"
	--peak-flops 1e12)

ranks() { # RANKS COMMAND...: each on a host of its own, as NCCL sees it
	local n=$1
	shift
	timeout -k 1 900 mpiexec -n "$n" "$BATS_TEST_DIRNAME/../tools/nccl_rank" "$@" </dev/null
}

on_gpu() { # RANKS OPTION...
	local n=$1
	shift
	if [ "$n" -eq 1 ]; then
		timeout -k 1 900 pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda "$@" </dev/null
	else
		ranks "$n" pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda --comm nccl "$@"
	fi
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

@test "each collective, type and operation is right; reductions repeat" {
	for n in $(printf '%s\n' 2 3 | spared 1); do
		local sizes=(-b 8 -e 80000 -f 10000) types=all least=$((12 * 2 * 18))
		[ $real = no ] || { sizes=(-b 8000 -e 8000) least=$((12 * 18)); }
		# of three ranks one type, which is enough for a tree that is not full
		[ $n != 3 ] || { types=float sizes=(-b 8000 -e 8000) least=18; }
		ranks $n pt-collbench all --device cuda --comm both -d $types -o all -r all "${sizes[@]}" \
			-n 1 -w 0 --reruns 1 >table
		grep -qx '# Out of bounds values : 0 OK' table
		for comm in mpi nccl; do # of 12 types: 4 operations of 3 collectives, and 6 others; roots
			awk -v comm=$comm -v least=$least '$6 == comm { n++; if ($10 $15 !~ /^(0|N\/A)(0|N\/A)$/) bad++ }
				END { exit bad || n < least }' table
		done
		# elements that differ when reduced again: NCCL repeats with the same ranks
		awk '$6 == "nccl" && $11 + $16 > 0 { exit 1 }' table
	done
	! spare_starts || return 0 # tests/bench/gpu_nccl has the others
	for how in '--launch queued' '--launch graph -m 3' --registered; do
		# shellcheck disable=SC2086
		ranks 2 pt-collbench all --device cuda $how -b 8 -e 80000 -f 100 -n 2 -w 1 -I >table
		grep -qx '# Out of bounds values : 0 OK' table
		[ "$(grep -c '^ .* nccl ' table)" -eq 27 ]
	done
	# groups, pairs of ranks, computation beside
	ranks 4 pt-collbench all latency bandwidth bidirectional alltoallv hypercube \
		--device cuda --comm both --split tp=2 --groups both \
		-d bfloat16 --window 3 -b 800 -e 800 -n 1 -w 0 >table
	grep -qx '# Out of bounds values : 0 OK' table
	[ "$(grep -c ' nccl  *tp  *2 ' table)" -eq 28 ]
	ranks 2 pt-collbench allreduce alltoall --device cuda --overlap -b 8 -e 800 -f 10 -n 2 -w 0 >table
	awk '!/^#/ { n++; if (!($12 >= 0 && $13 >= 0 && $13 <= 100)) { print; bad++ } } END { exit bad || n != 6 }' table
	awk '$1 == "#" && $2 == "allreduce" && $3 == "nccl" && $4 == 2 { n++ } END { exit n != 1 }' table
	run ranks 2 pt-collbench --comm nccl
	[ "$status" -eq 64 ]
	run ranks 2 pt-collbench --device cuda --comm mpi --launch graph
	[ "$status" -eq 64 ]
}

@test "two ranks along every axis give the bits of one, however late the GPU is" {
	make_shard
	on_gpu 1 -o one >/dev/null
	local lates=(no yes first) n=0
	[ $real = no ] || lates=(no)
	while read -r layout; do
		# Each once, or with LONG=yes in every way.
		for late in "${lates[@]}"; do
			[ "${LONG:-no}" = yes ] || [ $late = "${lates[n % ${#lates[@]}]}" ] || continue
			# shellcheck disable=SC2086
			PT_EMU_LAZY=$late same_on 2 $layout
		done
		n=$((n + 1))
	done < <(spared 2 <<-END
		--dp 2
		--fsdp 2 --zero 3 --fsdp-kind flat --offload all
		--tp 2 --no-sp --no-async-tp
		--pp 2
		--tp 2
		--pp 2 --pp-schedule zb-h1
		--pp 2 --pp-schedule gpipe
		--cp 2
		--cp 2 --cp-comm gather
		--fsdp 2 --zero 1
		--fsdp 2 --zero 3
	END
	)
}

@test "so do sums of several micro-batches, by NCCL's reduce-scatter, and on several hosts" {
	make_shard
	SMALL+=(-b 24)
	on_gpu 1 -o one >/dev/null
	same_on 2 --dp 2
	! spare_starts || return 0
	export PT_HOST_RANKS=2
	while read -r layout; do
		# shellcheck disable=SC2086
		same_on 4 $layout
	done < <(some_of 2 <<-END
		--dp 4
		--dp 4 --cuda-graph
		--fsdp 4 --zero 1
		--fsdp 4 --zero 3
	END
	)
}

@test "so do slices whose number is no power of two" {
	make_shard
	SMALL+=(--heads 6 --dim 48 --virtual "tp=6,cp=1" -n 2)
	on_gpu 1 -o one >/dev/null
	same_on 2 --tp 2
	same_on 3 --tp 3
	! spare_starts || return 0
	same_on 2 --tp 2 --no-sp --no-async-tp
	# shards of several lengths, in windows
	SMALL+=(--dtype bf16 -m 1 -b 3)
	on_gpu 1 --overwrite -o one >/dev/null
	same_on 3 --fsdp 3 --zero 3 --fsdp-kind flat
	same_on 3 --fsdp 3 --zero 3 --fsdp-kind flat --offload all
}

@test "so do three and four ranks along several, as a CUDA graph too" {
	make_shard
	SMALL+=(--dtype bf16 --dropout 0.1 -a llama --kv-heads 1 -m 1 -n 4)
	on_gpu 1 -o one >/dev/null
	same_on 4 --dp 2 --fsdp 2 --zero 3 --cuda-graph
	! spare_starts || return 0
	export PT_EMU_LAZY=yes
	same_on 3 --fsdp 3 --zero 2
	same_on 4 --pp 2 --cp 2 --cuda-graph
	[ "${LONG:-no}" = yes ] || return 0
	same_on 4 --tp 2 --fsdp 2 --zero 3 --no-sp
	same_on 4 --pp 2 --tp 2 --recompute full
	unset PT_EMU_LAZY
	SMALL+=(--layers 4 -b 8 -n 3)
	on_gpu 1 --overwrite -o one >/dev/null
	same_on 4 --pp 2 --dp 2 --pp-schedule interleaved
	same_on 3 --pp 3
	SMALL+=(--optimizer muon)
	on_gpu 1 --overwrite -o one >/dev/null
	same_on 4 --dp 2 --fsdp 2 --zero 1
	same_on 2 --fsdp 2 --cuda-graph
}

# Of the three kinds of routers and balances, each with a layout that has empty turns.
@test "so do ranks that divide experts, however late the GPU is" {
	make_shard
	local dispatch=$BUILD/tests/ranks_dispatch lates=(no yes first) n=0 how layouts layout late
	PT_TEST_DEVICE=cuda PT_EMU_LAZY=yes ranks 2 "$dispatch" >out 2>&1 || { cat out && false; }
	while IFS='|' read -r how layouts; do
		# shellcheck disable=SC2206 # options are words
		SMALL+=(-a llama --experts 6 --expert-dim 24 --expert-room 4 $how)
		on_gpu 1 --overwrite -o one >/dev/null
		while read -r layout; do
			late=${lates[n++ % 3]}
			[ $real = no ] || late=no
			# shellcheck disable=SC2086
			PT_EMU_LAZY=$late same_on $layout
		done < <(tr ',' '\n' <<<"$layouts" | spared 1)
	done < <(spared 1 <<-END
		--kv-heads 2 --shared-expert-dim 16 --shared-expert-gate --router-z-loss 0.01|2 --dp 2 --ep 2,2 --cp 2 --ep 2,4 --dp 2 --tp 2 --ep 2 --recompute full,4 --pp 2 --fsdp 2 --zero 3 --ep 2 --pp-schedule zb-h1,4 --tp 2 --fsdp 2 --ep 2 --no-sp
		--virtual tp=1,cp=2 -b 10 --dtype bf16 --experts 8 --experts-per-token 3 --router sigmoid --router-groups 4 --router-top-groups 2 --router-bias 0.01 --balance-over sequence|4 --dp 2 --fsdp 2 --zero 2 --ep 4,4 --fsdp 2 --cp 2 --ep 4 --recompute matmuls,2 --fsdp 2 --zero 3 --ep 2 --offload all
		--virtual tp=1,cp=1 --dtype fp16 --experts 8 --no-shared-expert-gate --balance-over model --router softmax --router-groups 0 --router-top-groups 0 --router-bias 0|4 --dp 4 --ep 2 --recompute selective,4 --fsdp 4 --zero 1 --fsdp-kind flat --ep 4
	END
	)
	[ $n -eq 10 ] || spare_starts
}

@test "float8, and what is not exact" {
	make_shard
	SMALL+=(--dtype float8 --no-float8-skip-ends)
	on_gpu 1 -o one >/dev/null
	same_on 2 --tp 2
	PT_EMU_LAZY=yes same_on 2 --fsdp 2 --zero 3
	same_on 2 --dp 2 --cuda-graph
	! spare_starts || return 0
	SMALL+=(--dtype bf16)
	while read -r layout; do
		# shellcheck disable=SC2086
		on_gpu $layout --overwrite -o exact >/dev/null
		# shellcheck disable=SC2086
		on_gpu $layout --numerics fast --overwrite -o fast >/dev/null
		run pt-compare --rtol 1e-3 exact fast
		[ "$status" -eq 0 ]
	done < <(some_of 2 <<-END
		2 --dp 2
		4 --dp 2 --fsdp 2 --zero 3 -m 1
		4 --fsdp 4 --zero 3 -m 1
	END
	)
}

@test "the host waits once a step" {
	[ $real = no ] || skip 'the emulation counts'
	make_shard
	waits() { # RANKS OPTION...: of the rank with the most
		PT_EMU_WAITS=yes PT_EMU_LAZY=yes on_gpu "$@" --no-ckpt --overwrite -o run 2>&1 >/dev/null |
			sed -n 's/^emulated GPU: \([0-9]*\) waits$/\1/p' | sort -n | tail -n 1
	}
	local layouts=('2 --pp 2' '4 --tp 2 --fsdp 2 --zero 3' '2 --dp 2 --cuda-graph --check-sums yes')
	[ "${LONG:-no}" = no ] ||
		layouts+=('2 --dp 2' '2 --tp 2' '2 --cp 2' '2 --tp 2 -b 24 -m 1 --layers 1')
	for layout in "${layouts[@]}"; do
		# shellcheck disable=SC2086
		short=$(waits $layout -n 4) long=$(waits $layout -n 14)
		echo "$layout: $short $long"
		# what a query finds complete in time needs no wait: one or two of a run, on a crowded machine
		[ $((long - short)) -ge 8 ]
		[ $((long - short)) -le 12 ]
	done
	# With --ep once more in each forward, of two layers and two micro-batches, not in a backward.
	SMALL+=(-a llama --experts 4 --expert-room 4)
	local every=(2 --fsdp 2 -b 8) without
	without=$(($(waits "${every[@]}" -n 14) - $(waits "${every[@]}" -n 4)))
	every+=(--ep 2)
	short=$(waits "${every[@]}" -n 4) long=$(waits "${every[@]}" -n 14)
	echo "--ep 2: $short $long, without: $without"
	[ "$without" -ge 8 ]
	[ "$without" -le 12 ]
	[ $((long - short - without)) -ge 38 ]
	[ $((long - short - without)) -le 42 ]
}

# Workers of local SGD; their exchange, layer by layer, is in a stream of its own.
@test "workers that train apart have the bits of an exchange by MPI" {
	make_shard
	local apart=(--layers 1 -m 1 -n 5 --edit-workers 2 --edit-warmup-steps 1 --edit-sync-interval 2
		--edit-outer sgd --edit-outer-momentum 0.8 --edit-outer-nesterov) how late=no
	while read -r how; do
		# shellcheck disable=SC2206 # options are words
		local edit=("${apart[@]}" $how)
		on_gpu 2 "${edit[@]}" --comm mpi --overwrite -o mpi >/dev/null
		PT_EMU_LAZY=$late on_gpu 2 "${edit[@]}" --overwrite -o nccl >/dev/null
		same_workers mpi nccl
		! spare_starts || return 0
		PT_EMU_LAZY=$late on_gpu 4 "${edit[@]}" --fsdp 2 --zero 3 --overwrite -o nccl >/dev/null
		same_workers mpi nccl
		late=yes
	done < <(some_of 2 <<-END
		--dtype bf16 --dropout 0.1 --edit-wire int8 --edit-clip-pseudo-grad 0.1
		-n 8 --edit-sync-interval 4 --edit-fragments 2 --edit-sync-delay 1
		--edit-reducer linear --edit-pseudo-gradnorm-reduce --edit-skip-anomaly --edit-ewma-warmup 1
		--edit-wire sparse --no-edit-by-unit
	END
	)
}

same_workers() { # A B: the state of both workers
	for worker in '' /worker-1; do
		cmp "$1$worker/checkpoints/latest.h5" "$2$worker/checkpoints/latest.h5" || return
	done
}

@test "a rank that stops is named, and so is an asynchronous error" {
	make_shard
	local layouts=('--fsdp 2 --zero 3' '--dp 2 --cuda-graph')
	! spare_starts || layouts=('--dp 2 --cuda-graph')
	for layout in "${layouts[@]}"; do
		# shellcheck disable=SC2086
		mpiexec -n 2 "$BATS_TEST_DIRNAME/../tools/nccl_rank" pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda \
			--comm nccl $layout -n 9000 --watchdog 3 --log-every 1 -o run \
			>/dev/null 2>err 3>&- &
		pid=$!
		wait_for 'step=10 ' run/journal.txt
		mapfile -t pids < <(ranks_of $pid)
		stopped=$(tr '\0' '\n' <"/proc/${pids[1]}/environ" | sed -n 's/^PMI_RANK=//p')
		kill -STOP "${pids[1]}"
		begin=$SECONDS
		timeout 60 tail --pid $pid -f /dev/null || kill $pid # who waits for ever
		ended $pid
		cat err
		[ "$status" -eq 1 ]
		[ $((SECONDS - begin)) -lt 30 ]
		grep -qE "waited 3 s for [a-zA-Z ]+ number [0-9]+ of .* on [a-z*]+: rank $stopped did not start it" err
		grep -q '; the last operations of this rank: run/flight-record\.' err
		[ "$(grep -c . run/flight-record.$((1 - stopped)))" -gt 10 ] # 65, but in graphs
		rm -r run
	done
	[ $real = no ] || return 0
	PT_EMU_NCCL_ERROR=50 run on_gpu 2 --dp 2 -n 50 -o run
	[ "$status" -eq 1 ]
	[[ $output == *'NCCL: '*' on '*' (2 ranks): remote process exited'* ]]
}

@test "what NCCL does not forgive is found" {
	[ $real = no ] || skip 'of the emulation'
	mistake() { # NAME WORDS
		PT_TEST_DEVICE=cuda run ranks 2 "$BUILD/tests/ranks_nccl" "$1"
		echo "$output"
		[ "$status" -ne 0 ]
		[[ $output == *$2* ]]
	}
	mistake counts "meets rank [01]'s all-reduce number 1"
	mistake order 'meets rank'
	mistake open-group 'while a group is open'
	mistake host-memory 'is no memory of the GPU'
	mistake deadlock 'ranks 0-1 waited for this operation'
	mistake absent 'rank 1 did not start it'
	PT_EMU_LAZY=yes mistake unwaited 'the result is not there'
}

@test "without NCCL, and on one GPU, MPI transfers; who asks for NCCL is told" {
	make_shard
	local each=(pt-train "${TINY[@]:1}" "${SMALL[@]}" -n 2 --device cuda --dp 2 --no-ckpt --overwrite -o run)
	local one_gpu=(timeout -k 1 900 env CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}" mpiexec -n 2)
	"${one_gpu[@]}" "${each[@]}" 2>said >/dev/null </dev/null
	grep -q 'GPUs exchange data by MPI: 2 ranks share a GPU' said
	run "${one_gpu[@]}" "${each[@]}" --comm nccl </dev/null
	[ "$status" -eq 64 ]
	[[ $output == *'a different NCCL_HOSTID on each rank'* ]]
	ranks 2 "${each[@]}" 2>said >/dev/null
	not grep -q 'by MPI' said
	[ $real = yes ] || {
		PT_EMU_GPUS=2 mpiexec -n 2 "${each[@]}" 2>said >/dev/null </dev/null
		not grep -q 'by MPI' said
	}
	! spare_starts || return 0
	export PT_NCCL=$PWD/none.so
	ranks 2 "${each[@]}" 2>said >/dev/null
	grep -q 'GPUs exchange data by MPI: NCCL: .*none.so' said
	run ranks 2 "${each[@]}" --comm nccl
	[ "$status" -eq 1 ]
	[[ $output == *none.so* ]]
	run ranks 2 "${each[@]}" --cuda-graph
	[ "$status" -eq 64 ]
	[[ $output == *'needs NCCL with several ranks'* ]]
	run mpiexec -n 2 "${each[@]}" --device cpu --comm nccl </dev/null
	[ "$status" -eq 64 ]
}

@test "the timeline of a step has what the GPU does, and when" {
	make_shard
	on_gpu 2 --fsdp 2 --zero 3 -n 4 --trace t.json --trace-steps 3:4 -o run >/dev/null
	for rank in 0 1; do
		for name in 'forward, micro-batch 0' layers.1 'sums of gradients' update; do
			grep -q "\"name\":\"$name\",\"pid\":$rank,\"tid\":1," t.json
		done
		grep -q "\"name\":\"GPU\"" t.json
	done
	# the host's spans and the GPU's each fill their step
	sed -nE 's/^\{"ph":"X","name":"([^"]*)","pid":([0-9]+),"tid":([01]),"ts":([^,]*),"dur":([^}]*)\},?$/\2 \3\t\4\t\5\t\1/p' t.json |
		sort -s -t $'\t' -k1,1 | awk -F'\t' '
			function tell() { if (step != "") print rank, step, dur / 1e6, sum / 1e6 }
			$4 ~ /^step / { tell(); rank = $1; step = substr($4, 6); dur = $3; sum = 0; end = $2; stop = $2 + $3; next }
			$2 >= end && $2 < stop { sum += $3; end = $2 + $3 }
			END { tell() }' >lanes
	cat lanes
	[ "$(wc -l <lanes)" -eq 8 ]
	awk '{ time += $4; spans += $5 } $5 > 1.001 * $4 { bad++ } END { exit bad || spans < 0.98 * time }' lanes
	for n in 3 4; do
		dt=$(sed -n "s/^step=$n .* dt=\\([^ ]*\\).*/\\1/p" run/journal.txt)
		awk -v n=$n -v dt="$dt" '$1 == 0 && $2 == 0 && $3 == n { exit !($4 > 0.98 * dt && $4 < 1.02 * dt) }' lanes
	done
	# its operations begin and end
	[ "$(grep -c '"ph":"b","cat":"fsdp"' t.json)" -ge 12 ]
	[ "$(grep -c '"ph":"b","cat":"fsdp"' t.json)" -eq "$(grep -c '"ph":"e","cat":"fsdp"' t.json)" ]
}

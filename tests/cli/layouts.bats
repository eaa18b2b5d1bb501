#!/usr/bin/env bats
# pt-train on layouts: all give the bits of one rank, go on from each other's checkpoints, and
# what cannot be is refused with a reason.
load helpers

# Four layers, that stages can share; fixed virtual degrees, so that layouts are comparable.
LAYOUT=(--layers 4 --heads 4 --virtual "tp=2,cp=2" -n 4 --check-replicas yes)

same_on() { # RANKS OPTION...: as the run `one`
	local n=$1
	shift
	rm -rf test
	tiny_on "$n" "${LAYOUT[@]}" -o test "$@" >/dev/null || {
		echo "$n ranks, $*: code $?"
		return 1
	}
	same one test || {
		echo "$n ranks, $*"
		return 1
	}
}

refuse() { # TEXT COMMAND...: 64, and one message
	local text=$1
	shift
	reports 64 "$text" timeout 120 "$@"
	[ "$(messages)" -eq 1 ]
}

# That the options arrive: tests/support/layouts.c has all layouts.
@test "two ranks along every axis give the bits of one" {
	make_shard
	tiny "${LAYOUT[@]}" -o one >/dev/null
	for layout in --tp --cp --pp --fsdp --dp; do
		same_on 2 $layout 2
	done
	same_on 2 --tp 2 --no-sp --recompute selective
	same_on 2 --cp 2 --cp-comm gather
	same_on 2 --fsdp -1 --zero 2
	same_on 2 --fsdp 2 --fsdp-kind flat --reshard-after-forward keep-last
	same_on 2 --pp 2 --pp-schedule zb-h1 --recompute full
}

@test "four ranks along two axes, for Llama too, give the bits of one" {
	make_shard
	LAYOUT+=(--arch llama --kv-heads 1)
	tiny "${LAYOUT[@]}" -o one >/dev/null
	same_on 4 --tp 2 --cp 2
	same_on 4 --fsdp 2 --pp 2 --zero 2
	PT_SHARED=no same_on 4 --dp 2 --fsdp 2
	same_on 3 # three data-parallel ranks of four micro-batches
}

@test "ranks on several hosts, which sum gradients by host, give the bits of one" {
	make_shard
	LAYOUT+=(-b 24) # 12 micro-batches: several rounds
	tiny "${LAYOUT[@]}" -o one >/dev/null
	export PT_HOST_RANKS=2
	same_on 4 --dp 4
	same_on 4 --fsdp 4 --zero 1
	same_on 4 --fsdp 4 --zero 3
	PT_SHARED=no same_on 4 --dp 4
	same_on 4 --pp 2 --dp 2 # the ranks of a sum are on one host
	same_on 4 --cp 2 --fsdp 2 --offload grads --offload-to .
	PT_HOST_RANKS=3 same_on 6 --fsdp 6 --zero 2
	PT_HOST_RANKS=3 same_on 4 --dp 4 # three and one
	# workers of local SGD that average gradients
	local workers=(--edit-workers 2 --edit-warmup-steps 3)
	PT_HOST_RANKS=2 tiny_on 8 "${LAYOUT[@]}" "${workers[@]}" --dp 4 -o hosts >/dev/null
	PT_HOST_RANKS=1 tiny_on 2 "${LAYOUT[@]}" "${workers[@]}" -o ranks >/dev/null
	same hosts ranks
}

@test "without --virtual the degrees are the layout's own, and stay a run's" {
	make_shard
	steps=(-n 16 --lr 0.01) # so many that roundings are seen in what is printed
	tiny "${steps[@]}" -o one >/dev/null
	tiny_on 2 "${steps[@]}" --tp 2 -o two >/dev/null
	reports 1 'virtual: tp=1,cp=1, tp=2,cp=1' pt-compare one two
	tiny "${steps[@]}" --virtual tp=2 -o alone >/dev/null
	same alone two
	tiny_on 2 "${steps[@]}" --virtual tp=2 --cp 2 -o mixed >/dev/null
	tiny "${steps[@]}" --virtual cp=2,tp=2 -o both >/dev/null
	same mixed both
}

@test "a run goes on, on any layout" {
	make_shard
	options=(--layers 4 --heads 4 --virtual tp=2 --eval-every 0)
	tiny -n 8 "${options[@]}" -o one >/dev/null
	tiny_on 2 -n 2 --decay-steps 8 "${options[@]}" --fsdp 2 -o test >/dev/null
	on() { # RANKS STEPS OPTION...
		mpiexec -n "$1" pt-train -q --resume auto -o test -d data.h5 -n "$2" -t 1 "${@:3}" >/dev/null
	}
	on 2 4 --tp 2
	on 4 6 --pp 2 --fsdp 2 --zero 1 --ckpt-load broadcast
	on 1 8 --decay-steps 0
	pt-compare one test
	cmp one/checkpoints/latest.h5 test/checkpoints/latest.h5
	# and another begins with its weights
	tiny_on 2 -n 0 --init-from one "${options[@]}" --fsdp 2 -o begun >/dev/null
	hash() {
		pt-ckpt hash "$1" | grep -o '0x[0-9a-f]*'
	}
	[ "$(hash begun)" = "$(hash one)" ]
	# as it was told, the arithmetic stays
	refuse 'cp is 2, which does not divide virtual cp (1)' \
		mpiexec -n 2 pt-train --resume auto --resume-exact -o test -d data.h5 -n 9 --cp 2
}

@test "the log says the layout, and what is sent" {
	make_shard
	tiny_on 4 "${LAYOUT[@]}" --tp 2 -o test >out
	grep -qx '# meta layout = dp=2 tp=2' test/journal.txt
	grep -q '^step=4 .* sent=[1-9]' out
	tiny "${LAYOUT[@]}" -o one >out
	not grep -q 'sent=' out
}

@test "a sample is what one rank says, however the model is shared out" {
	make_shard
	options=("${LAYOUT[@]:0:6}" -n 2 --sample-every 1 --sample-tokens 60 --no-ckpt)
	pt-train "${TINY[@]:1}" "${options[@]}" 2>&1 >/dev/null | grep -A1 'a sample' >want
	[ "$(grep -c . want)" -ge 4 ]
	for layout in '--tp 2' '--pp 2' '--fsdp 2' '--cp 2'; do
		mpiexec -n 2 pt-train "${TINY[@]:1}" "${options[@]}" $layout 2>&1 >/dev/null |
			sed 's/rank 0: //' | grep -A1 'a sample' >got
		sed 's/rank 0: //' want | diff - got
	done
}

@test "data: ranks that share sequences read the same, with readers and files of their own" {
	make_shard
	tiny "${LAYOUT[@]}" -o one >/dev/null
	for readers in 1 2 3; do
		same_on 4 --dp 2 --tp 2 --readers $readers
	done
	same_on 2 --fsdp 2 --readers 1
	rev text.txt >other.txt
	pt-prepare -q -t byte text.txt -o a.h5
	pt-prepare -q -t byte other.txt -o b.h5
	unset PT_DATA
	own=(--data-per-rank -d a.h5 -d b.h5)
	rm -r one
	tiny_on 2 "${LAYOUT[@]}" "${own[@]}" -o one >/dev/null
	same_on 4 "${own[@]}" --tp 2
	same_on 4 "${own[@]}" --pp 2
	same_on 2 "${own[@]}" --fsdp 2 --zero 1
	refuse 'data-per-rank: 3 ranks need as many files; the run has 2' mpiexec -n 3 pt-train "${TINY[@]}" "${own[@]}" -b 12 -o none
	tiny_on 4 "${LAYOUT[@]}" "${own[@]}" --tp 4 --virtual tp=4 -o four >/dev/null
}

@test "degrees that are no layout are refused" {
	make_shard
	refuse 'dp=2 needs 2 ranks, but there are 3' mpiexec -n 3 pt-train "${TINY[@]}" --dp 2
	refuse 'dp=1 needs 1 rank, but there are 2' mpiexec -n 2 pt-train "${TINY[@]}" --dp 1
	refuse '3 ranks are not a multiple of tp=2' mpiexec -n 3 pt-train "${TINY[@]}" --tp 2
	refuse 'tp is 2, but there is 1 rank; start more by mpiexec, which `apt install mpich`' pt-train "${TINY[@]}" --tp 2
	refuse 'fsdp and cp are both -1' pt-train "${TINY[@]}" --fsdp -1 --cp -1
	refuse 'zero 2 shards over the fsdp axis' mpiexec -n 2 pt-train "${TINY[@]}" --zero 2
	refuse 'tp is 2, which does not divide virtual tp (1)' \
		mpiexec -n 2 pt-train "${TINY[@]}" --tp 2 --virtual tp=1
	says 'start a new run with --virtual tp=2'
	refuse 'cp is 2, which does not divide virtual cp (3)' \
		mpiexec -n 2 pt-train "${TINY[@]}" --cp 2 --virtual cp=3
	refuse 'heads (2) is not divisible by virtual tp (4)' mpiexec -n 4 pt-train "${TINY[@]}" --tp 4
	refuse 'context (6) is not divisible by 2 x virtual cp (4)' \
		mpiexec -n 2 pt-train "${TINY[@]}" --cp 2 -T 6
	refuse '2 stages (--pp 2 x --pp-stages 1) need as many layers; the model has 1' mpiexec -n 2 pt-train "${TINY[@]}" --pp 2
	refuse '4 stages (--pp 2 x --pp-stages 2) need as many layers; the model has 3' \
		mpiexec -n 2 pt-train "${TINY[@]}" --layers 3 --pp 2 --pp-schedule interleaved
	refuse 'interleaved cannot have 1 stage per rank' \
		mpiexec -n 2 pt-train "${TINY[@]}" --layers 4 --pp 2 --pp-schedule interleaved --pp-stages 1
	refuse '1f1b cannot have 2 stages per rank' \
		mpiexec -n 2 pt-train "${TINY[@]}" --layers 4 --pp 2 --pp-stages 2
	refuse '2 data-parallel ranks, but a step has only 1 micro-batch' \
		mpiexec -n 4 pt-train "${TINY[@]}" --tp 2 -b 2
	refuse 'one must be a multiple of the other' mpiexec -n 3 pt-train "${TINY[@]}" --arch llama --heads 6 \
		--kv-heads 2 --dim 24 --ffn-dim 48 --tp 3 --virtual tp=6
	[ ! -e run-001 ]
}

@test "fewer micro-batches than stages of the pipeline: a warning, once" {
	local said='a step has only 1 micro-batch for a pipeline of 2 stages'
	make_shard
	for m in 4 8; do
		pt-train --dry-run --vocab 61 -b 8 -m $m --pp 2 2>err >plan
		[ "$(grep -c "$said" err)" -eq $((m / 8)) ]
		tiny_on 2 --layers 2 --pp 2 -m $m -n 1 -o m$m 2>err >out
		[ "$(grep -c "$said" err)" -eq $((m / 8)) ]
	done
	# two stages of each rank
	pt-train --dry-run --vocab 61 -b 16 -m 4 --pp 4 --pp-schedule interleaved --layers 8 2>err >plan
	[ "$(grep -c 'only 4 micro-batches for a pipeline of 8 stages' err)" -eq 1 ]
}

@test "a plan of ranks that were not started" {
	pt-train --dry-run --vocab 61 -b 16 -m 2 --tp 2 --pp 2 --fsdp 2 >plan
	grep -q '^# layout: pp=2 fsdp=2 tp=2; zero 3; virtual tp=2,cp=1$' plan
	grep -q '^pp 1   dp 0   fsdp 1    cp 0: ranks 6 7 (tp 0-1)$' plan
	grep -q '^# memory of each rank$' plan
	grep -q '^bubble ' plan
	for group in pp fsdp tp; do
		[ "$(sed -n "s/^  $group  *\\([0-9]*\\).*/\\1/p" plan)" -gt 0 ]
	done
	# ranks that differ along one axis are one line, and of very many lines some are left out
	pt-train --dry-run --vocab 61 -b 128 -m 2 --dp 64 >plan
	grep -q '^pp 0   dp 0-63 fsdp 0    cp 0: ranks 0-63$' plan
	[ "$(grep -c '^pp ' plan)" -eq 1 ]
	pt-train --dry-run --vocab 61 -b 16 -m 2 --dp 2 --fsdp 4 >plan
	grep -q '^pp 0   dp 1   fsdp 0-3  cp 0: ranks 4-7$' plan
	[ "$(grep -c '^pp ' plan)" -eq 2 ]
	pt-train --dry-run --vocab 61 -b 64 -m 2 --dp 16 --tp 2 >plan
	[ "$(grep -c '^pp ' plan)" -eq 16 ]
	pt-train --dry-run --vocab 61 -b 64 -m 2 --dp 32 --tp 2 >plan
	[ "$(grep -c '^pp ' plan)" -eq 9 ]
	grep -A 1 'ranks 14 15 (tp 0-1)$' plan | tail -n 1 | grep -q '^[.][.][.] 23 lines like these$'
	grep -q '^pp 0   dp 31  fsdp 0    cp 0: ranks 62 63 (tp 0-1)$' plan
	# parts of the parameters are smaller
	whole=$(pt-train --dry-run --vocab 61 -b 16 -m 2 | awk '/^parameters/ { print $2 }')
	part=$(awk '/^parameters/ { print $2 }' plan)
	[ "$part" -lt "$((whole * 2 / 3))" ]
	# one axis takes the rest of what was started
	mpiexec -n 4 pt-train --dry-run --vocab 61 --tp 2 | grep -q '^# layout: dp=2 tp=2;'
	refuse 'the layout has more than' pt-train --dry-run --vocab 61 --dp 1000000 --tp 1000
}

@test "a plan refuses what the run would" {
	refuse 'but the model has no other blocks' pt-train --dry-run --vocab 61 --layers 2 --dtype float8
	refuse "'x' is neither a number nor measure" pt-train --dry-run --vocab 61 --peak-flops x
	make_shard
	reports 65 'but one sample needs 65537' tiny --dry-run -T 65536
	code_of 1 tiny --dry-run --memory 100K # as without --dry-run
	says 'the run will be rejected'
	says 'out of memory: a rank needs'
	tiny --dry-run --memory 100M >plan
	not grep -q 'will be rejected' plan
	# the copy of a checkpoint is optional
	local bytes
	bytes=$(awk '/^total/ { print $2 - 1 }' plan)
	tiny --dry-run --memory "$bytes" | grep -q '^# fits into --memory without the copy of a checkpoint'
	tiny --memory "$bytes" -o run >/dev/null
}

@test "weights of products are gathered in 16 or 8 bits where they are rounded to it" {
	make_shard
	# 2 blocks of 2176 weights, gathered twice, and an output of 128 x 16; a half is sent. float8
	# also sends the amax of each of the 21 tensors.
	wide=(--arch llama --layers 2 --ffn-dim 24 --vocab-multiple 128 -b 2 -m 1 -n 2 --fsdp 2 --virtual tp=1)
	sent() { tiny "${wide[@]}" "$@" --dry-run | awk '/^sent.step/ { print $2 }'; }
	full=$(sent)
	for dtype in fp32 float8 bf16 fp16; do
		less=0 maxima=0 with=(--dtype "$dtype")
		[[ $dtype != *16 ]] || less=$((2 * (2 * 2 * 2176 + 128 * 16) / 2))
		if [ $dtype = float8 ]; then
			with+=(--no-float8-skip-ends)
			maxima=$((4 * 21)) less=$(((3 * 2 * 2 * 2176 + 2 * 128 * 16) / 2))
		fi
		[ "$(sent "${with[@]}")" -eq $((full - less + maxima)) ]
		[ "$(sent "${with[@]}" --gather-dtype fp32)" -eq $((full + maxima)) ]
	done
}

@test "a sequence that is too long for one rank's memory trains on four" {
	plain_memory
	make_shard
	long=(-q -a llama --layers 2 --heads 4 --dim 32 --ffn-dim 2048 -T 8192 -b 1 -m 1 -n 1
		-t 1 --eval-every 0)
	beside=320000 # KiB of the program, its libraries and shared memory
	limited() { # PROGRAM...: of the address space; and a signal alone may not end it
		timeout -k 1 120 "${@:1:$#-1}" bash -c 'ulimit -v "$0"; exec pt-train "$@"' "$limit" "${long[@]}" ${!#}
	}
	kib() { pt-train "${long[@]}" --dry-run "$@" | awk '$1 == "total" { print int($2 / 1024) }'; }
	limit=$(($(kib --cp 4) + beside))
	[ "$limit" -lt "$(kib --virtual cp=4)" ]
	reports 1 'out of memory' limited env '--virtual cp=4 -o none'
	says '--dry-run shows the plan'
	says '--cp'
	not grep -q ^step= <<<"$output"
	limited mpiexec -n 4 '--cp 4 -o four' >/dev/null
	timeout -k 1 120 pt-train "${long[@]}" --virtual cp=4 -o one >/dev/null
	same one four
}

@test "what is sent is what was planned" {
	make_shard
	for layout in '--dp 2' '--fsdp 2' '--fsdp 2 --dtype float8 --no-float8-skip-ends' '--fsdp 2 --zero 1' \
		'--tp 2' '--cp 2' '--pp 2' '--pp 2 --residual-dtype bf16' '--cp 2 --dtype bf16' \
		'--tp 2 --dtype bf16'; do
		plan=$(pt-train "${TINY[@]}" "${LAYOUT[@]}" --dry-run $layout | awk '/^sent.step/ { print $2 }')
		rm -rf run
		tiny_on 2 "${LAYOUT[@]}" $layout -o run | sed -n 's/^step=2 .* sent=\([0-9.e+]*\).*/\1/p' >sent
		awk -v plan="$plan" '{ print $1, plan; exit !($1 >= 0.98 * plan && $1 <= 1.02 * plan + 5000) }' sent
	done
}

@test "experts: what is sent but rows is what was planned, and rows beyond the room end the run" {
	local experts=(-a llama --experts 8 --expert-dim 24) value plan
	make_shard
	value() { sed -n "s/^step=2 .* $1=\([0-9.e+-]*\).*/\1/p" out; }
	for layout in '--dp 2' '--fsdp 2' '--fsdp 2 --dtype bf16 --recompute full' '--cp 2 --expert-capacity 1'; do
		# shellcheck disable=SC2086
		pt-train "${TINY[@]}" "${LAYOUT[@]}" "${experts[@]}" --dry-run $layout --ep 2 --expert-room 2 >plan
		rm -rf run
		# shellcheck disable=SC2086
		tiny_on 2 "${LAYOUT[@]}" "${experts[@]}" $layout --ep 2 --expert-room 2 -o run >out
		awk -v plan="$(awk '/^sent.step/ { n = $2 } $1 == "rows" { n -= $2 } END { print n }' plan)" \
			-v sent="$(value sent)" -v rows="$(value sent_rows)" -v fullest="$(value expert_rows)" \
			-v balanced="$(awk '$1 == "rows" { print $2 }' plan)" 'BEGIN {
				print plan, sent, rows, fullest, balanced
				exit !(sent - rows >= plan && sent - rows <= plan + 1000 && rows > 0.5 * balanced && rows < 2 * balanced &&
					fullest > 1 && fullest <= 2) }'
	done
	grep -q ' dropped=0\.[0-9]' out
	grep -Eqx '# experts: [0-9.]+ KiB kept with rows balanced, room for 2 times that; at most 2 times that can arrive, [0-9.]+ KiB' plan
	rm -rf run
	code_of 1 tiny_on 2 "${LAYOUT[@]}" "${experts[@]}" --dp 2 --ep 2 --expert-room 1 -o run
	[[ $output =~ layer\ [0-3]:\ the\ experts\ of\ a\ rank\ got\ ([0-9]+)\ rows,\ and\ have\ memory\ for\ ([0-9]+),\ by\ --expert-room\ 1\;\ give\ --expert-room\ ([0-9.]+)\ or\ more ]]
	awk -v n="${BASH_REMATCH[1]}" -v room="${BASH_REMATCH[2]}" -v fits="${BASH_REMATCH[3]}" \
		'BEGIN { exit !(n > room && fits * room >= n && (fits - 0.01) * room < n) }'
	[ "$(grep -c 'the experts of a rank got' <<<"$output")" -eq 1 ]
	# the other ranks wait for the end: with four ranks in two groups, too
	code_of 1 tiny_on 4 "${LAYOUT[@]}" "${experts[@]}" --dp 4 --ep 2 --expert-room 1 -o run
	grep -q 'the experts of a rank got' <<<"$output"
}

@test "the plan names what makes sums of gradients and their buckets smaller" {
	local small=(pt-train --vocab 61 -b 16 --dry-run)
	"${small[@]}" -m 4 --dp 2 | grep -q '^gradients .*; --fsdp with --zero 2 shards them$'
	not grep -q 'zero 2 shards' <<<"$("${small[@]}" -m 8 --dp 2; "${small[@]}" -m 4 --fsdp 2; "${small[@]}" -m 4)"
	"${small[@]}" -m 4 --fsdp 2 --zero 1 >large
	grep -q '^exchange .*; a smaller --bucket needs less$' large
	"${small[@]}" -m 4 --fsdp 2 --zero 1 --bucket 100K >small
	not grep -q 'bucket needs less' small
	awk '/^total/ { if (n++) exit !($2 < last); last = $2 }' large small
}

@test "--memory is a limit, and recompute auto keeps to it" {
	make_shard
	options=(-q -d data.h5 -T 32 --layers 4 -b 8 -m 4 -n 2 -t 1)
	planned() { # OPTION...: bytes, without the copy for checkpoints
		pt-train "${options[@]}" --dry-run "$@" |
			awk '/^total/ { t = $2 } /^checkpoint/ { c = $2 } END { print t - c }'
	}
	none=$(planned) full=$(planned --recompute full)
	[ "$full" -lt "$none" ]
	[ "$(planned --recompute auto --memory "$none")" -eq "$none" ]
	[ "$(planned --recompute auto --memory "$full")" -eq "$full" ]
	reports 1 'out of memory: a rank needs' pt-train "${options[@]}" --memory "$full" -o none
	pt-train "${options[@]}" -o one >/dev/null
	pt-train "${options[@]:1}" -o test --recompute auto --memory "$full" 2>err >/dev/null
	grep -q 'recompute: full' err
	same one test
}

@test "each ZeRO stage needs less memory, and gradients are a shard, or of several rounds its int64 sum" {
	plan() { # ROW OPTION...: bytes of an 8B model on 8 GPUs
		pt-train -p llama3-8b --vocab 128256 -T 512 -m 1 --dtype bf16 --recompute full --device cuda \
			--fsdp 8 --dry-run "${@:2}" | awk -v row="$1" 'index($0, row) == 1 { gsub("[^0-9].*", "", $(row ~ / / ? 4 : 2)); print $(row ~ / / ? 4 : 2) }'
	}
	last=$(plan 'on the GPU' -b 8 --zero 0)
	optimizer=$(plan optimizer -b 8 --zero 0)
	[ "$(plan 'on the GPU' -b 8 --zero 1)" -le $((last - optimizer * 7 / 8)) ]
	for zero in 1 2 3; do
		now=$(plan 'on the GPU' -b 8 --zero $zero)
		[ "$now" -lt "$last" ]
		last=$now
	done
	shard=$(plan parameters -b 8 --zero 3)
	# leaves: of the embedding or the output layer, and of two blocks
	leaves=$((4 * (128256 * 4096 + 2 * 218112000)))
	for rounds in 1 2 4 16; do
		shards=$((rounds > 1 ? 2 : 1))
		bytes=$(plan gradients -b $((8 * rounds)) --zero 3)
		[ "$bytes" -le $((shards * shard + leaves + (1 << 22))) ]
		[ "$bytes" -ge $((shards * shard + leaves / 2)) ]
	done
	# in pieces: two of the output layer, of which each is a quarter
	[ "$(plan gradients -b 8 --zero 3 --tile 4)" -le $((shard + 2 * 128256 * 4096 + (1 << 22))) ]
}

@test "a 7B model on 8 GPUs needs a tenth more than PyTorch's FSDP2 at most" {
	on_the_gpu() {
		pt-train -p llama2-7b --device cuda --dtype bf16 --residual-dtype bf16 --fsdp 8 --zero 3 -T 2048 \
			-b 64 -m 8 --dry-run "$@" | awk '/^on the GPU/ { printf "%.0f\n", $4 / 1048576 }'
	}
	# of torchtitan's pull request 135: 22.7 and 49.5 GiB
	[ "$(on_the_gpu --recompute full)" -le $((227 * 1024 / 10 * 11 / 10)) ]
	[ "$(on_the_gpu --recompute matmuls)" -le $((495 * 1024 / 10 * 11 / 10)) ]
}

@test "with hybrid sharding, a replica sends a shard of the gradients to the others" {
	make_shard
	sent() { # AXIS OPTION...
		pt-train "${TINY[@]}" --layers 4 --dim 64 -b 8 -m 1 --dry-run "${@:2}" |
			awk -v axis="$1" '$1 == axis { print $2 }'
	}
	whole=$(sent dp --dp 2 --zero 0)
	[ "$(sent dp --dp 2 --fsdp 4 --zero 1)" -le $((whole / 4 + 4096)) ]
	[ "$(sent dp --dp 2 --fsdp 2 --zero 1)" -le $((whole / 2 + 4096)) ]
}

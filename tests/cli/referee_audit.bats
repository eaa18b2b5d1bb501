#!/usr/bin/env bats
# Audits (--referee): what they detect, whom they name, and that they change no bit.
load helpers
export SETUP=make_shard

# Two layers and four steps, with clipping, so that the norm matters.
MODEL=(--layers 2 -n 4 --clip 0.1 --eval-every 0)

# Trains without a flip in the directory `clean`: RANKS ranks, MICRO micro-batches per data rank.
clean() { # RANKS MICRO OPTION...
	local ranks=$1 n=$2 data=1 word
	shift 2
	for word; do
		case $previous in --dp | --fsdp) data=$((data * word)) ;; esac
		previous=$word
	done
	command=(tiny_on "$ranks" "${MODEL[@]}" -m 1 -b $((n * data)) "$@")
	"${command[@]}" --overwrite -o clean >/dev/null
}

audit() { # OPTION...: trains in the directory `run`; $status is the exit code, `err` has the messages
	status=0
	rm -f run/suspects # --overwrite keeps it
	"${command[@]}" --overwrite -o run --referee 1 "$@" >out 2>err || status=$?
}

same() {
	cmp clean/checkpoints/latest.h5 run/checkpoints/latest.h5 >/dev/null
}

failed() { # TEXT: with what there is to see
	echo "$1: exit code $status"
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
	grep -qE "step $step: rank $rank \(host [^)]*\) computed $2 wrongly \(.*\); computed again.* it was right: sporadic, fault 1 of this device within a day" run/journal.txt || failed "$1"
	same || failed "$1 changes the run"
	[ "$(cut -f2,5,6 run/suspects)" = "$step	$rank	sporadic" ] || failed "$1: $(cat run/suspects)"
}

@test "--referee: runs without a flip are the same, without an alarm" {
	local layout
	for layout in '1 2' '2 2 --dp 2' '3 1 --fsdp 3' '4 2 --dp 2 --fsdp 2' '4 2 --tp 2 --fsdp 2 --sp' '4 2 --pp 2 --dp 2 --tie yes' \
		'4 2 --pp 2 --pp-schedule zb-h1 --dp 2' '2 4 --fsdp 2 --zero 1' '2 2 --fsdp 2 --offload all --offload-to .' \
		'4 2 --cp 2 --fsdp 2' '2 2 --fsdp 2 --dtype bf16' '2 2 --dp 2 --dtype float8 --no-float8-skip-ends' '2 2 --dp 2 --dtype fp16' '4 2 --fsdp 2 --tp 2 --fsdp-kind flat' \
		'2 2 --fsdp 2 -a llama --experts 4 --ep 2' '4 2 --fsdp 4 -a llama --experts 4 --ep 2' '2 2 --dp 2 -a llama --experts 4' \
		'2 2 --fsdp 2 --dropout 0.1 --recompute full'; do
		# shellcheck disable=SC2086 # one word each
		clean $layout
		audit
		[ "$status" -eq 0 ] && same || failed "$layout"
		not grep -q 'computed' run/journal.txt
		[ "$(tail -n 1 out | grep -o 'audited=[0-9]* mismatches=[0-9]*')" = 'audited=4 mismatches=0' ] || failed "$layout: $(cat out)"
		[ ! -e run/suspects ]
	done
}

@test "--referee detects a flipped bit in the audited micro-batch, names the rank, and the step is computed again" {
	clean 2 1 --dp 2
	detects 1:3:activation:layers.1.attention.wq:14 layers.1.attention.wq
	detects 0:1:gradient:layers.0.feed_forward:10 layers.0.feed_forward
	detects 1:2:leaf:layers.0.attention.wq.weight:25 layers.0.attention.wq.weight
	detects 1:2:activation:output:20 output
	detects 1:4:tokens .*
	clean 3 1 --fsdp 3
	detects 2:3:activation .*
	detects 1:2:leaf:layers.1.feed_forward.w2.weight:30 layers.1.feed_forward.w2.weight
	clean 4 1 --dp 2 --fsdp 2
	detects 3:2:gradient .*
	clean 4 1 --tp 2 --fsdp 2
	detects 3:3:activation:layers.1.attention.wq:14 layers.1.attention.wq
	detects 0:2:leaf:layers.0.attention.wq.weight:25 layers.0.attention.wq.weight
	clean 4 1 --cp 2 --fsdp 2
	detects 1:3:activation:layers.0.attention.wk:14 layers.0.attention.wk
	clean 4 1 --pp 2 --dp 2
	detects 1:3:activation:layers.0.attention.wk:14 layers.0.attention.wk
	detects 3:2:gradient:layers.1.feed_forward:14 layers.1.feed_forward
	detects 0:2:leaf:layers.0.attention.wq.weight:25 layers.0.attention.wq.weight
	clean 2 1 --fsdp 2 -a llama --experts 4 --dtype bf16
	detects 1:3:leaf:layers.1.experts.w2.weight:14 layers.1.experts.w2.weight
	# one data rank computes twice itself
	clean 2 1 --tp 2
	detects 1:3:activation:layers.1.attention.wq:14 layers.1.attention.wq
	grep -q 'each rank is its own referee' run/journal.txt
}

@test "--referee: of several micro-batches, a flip is detected in the one that is audited, and in no other" {
	local step seen=0 unseen=0
	clean 2 2 --dp 2
	for step in 1 2 3 4; do
		audit --inject-flip "1:$step:leaf"
		[ "$status" -eq 0 ] || failed "$step"
		if grep -q 'sporadic' run/journal.txt; then
			same || failed "$step"
			seen=$((seen + 1))
		else
			not same || failed "$step"
			unseen=$((unseen + 1))
		fi
	done
	[ "$seen" -gt 0 ] && [ "$unseen" -gt 0 ]
}

@test "--referee: with uneven shares, micro-batches are audited that not all ranks have" {
	local layout step seen
	for layout in '4 5 --fsdp 4 --tile 2' '4 6 --fsdp 4 -a llama --experts 4 --ep 2' '4 5 --pp 2 --dp 2' '3 4 --fsdp 3' '3 4 --dp 3'; do
		# shellcheck disable=SC2086 # one word each
		set -- $layout
		command=(tiny_on "$1" "${MODEL[@]}" -n 5 -m 1 -b "${@:2}")
		"${command[@]}" --overwrite -o clean >/dev/null
		audit
		[ "$status" -eq 0 ] && same || failed "$layout"
		not grep -q 'computed' run/journal.txt
		[[ $layout = 3* ]] || continue
		# rank 0 has two micro-batches, the others have one; its leaf is wrong in all of them
		seen=
		for step in 1 2 3; do
			audit --inject-flip "0:${step}p1:leaf:norm.weight:25"
			[ "$status" -eq 71 ] && [ "$(cut -f5,6 run/suspects)" = '0	persistent' ] || failed "$layout: step $step"
			seen+=" $(($(sed -n 's/.*samples \([0-9]*\)-.*/\1/p' err) - 4 * (step - 1)))"
		done
		case $layout in
		*--fsdp*) [ "$seen" = ' 0 3 0' ] ;;
		*) [ "$seen" = ' 0 1 0' ] ;;
		esac || failed "$layout: $seen"
	done
}

@test "--referee: a rank that is wrong each time ends the run with 71 and a checkpoint" {
	clean 4 1 --fsdp 4
	audit --inject-flip 2:3+:gradient:layers.0.feed_forward:14
	[ "$status" -eq 71 ] || failed gradient
	grep -q 'pt-train: step 3: rank 2 (host .*) computed layers.0.feed_forward wrongly (backward, samples [0-9]*-[0-9]*); computed again it was wrong: persistent' err || failed gradient
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000002.h5 ]
	[ "$(cut -f2,5- run/suspects)" = "3	2	persistent	layers.0.feed_forward" ]
	"${command[@]}" -o run --resume auto --referee 0.5 >/dev/null 2>&1
	same
	# as many data ranks as are asked, and new copies of parameters
	clean 6 1 --dp 3 --fsdp 2 --dtype bf16
	audit --inject-flip 1:3+:activation:layers.1.attention.wq:14
	[ "$status" -eq 71 ] && [ "$(cut -f5- run/suspects)" = '1	persistent	layers.1.attention.wq' ] || failed 'six ranks'
	# all data ranks exchange rows of experts
	clean 2 1 --fsdp 2 -a llama --experts 4 --ep 2
	for tensor in attention.wk experts.w2; do
		audit --inject-flip 1:2p1:leaf:layers.0.$tensor.weight:25
		[ "$status" -eq 71 ] && [ "$(cut -f5- run/suspects)" = "1	persistent	layers.0.$tensor.weight" ] || failed "$tensor"
	done
	# a device with two data ranks contradicts itself; two ranks that do not cannot be told apart
	clean 2 1 --dp 2
	audit --inject-flip 1:3+:leaf
	[ "$status" -eq 71 ] && [ "$(cut -f5,6 run/suspects)" = '1	persistent' ] || failed leaf
	audit --inject-flip 1:3+:leaf:layers.0.attention.wq.weight:25
	[ "$status" -eq 71 ] || failed leaf
	# a wrong weight of a replica
	audit --inject-flip 1:2:weight:layers.0.attention.wq.weight:25
	[ "$status" -eq 71 ] && [ "$(cut -f5,6 run/suspects | tr '\t\n' ' ')" = '0 undecided 1 undecided ' ] || failed weight
	grep -q 'parameters or optimizer state differ from the first replica on rank 1' err || failed weight
}

@test "--referee: a second sporadic fault of a device ends the run, or as many as --referee-strikes allows" {
	export PT_HOST_RANKS=1
	clean 4 1 --fsdp 4
	audit --inject-flip 2:2:gradient --inject-flip 2:3:leaf
	[ "$status" -eq 71 ] || failed 'two faults'
	[ "$(cut -f2,5,6 run/suspects | tr '\t\n' ' ')" = '2 2 sporadic 3 2 persistent ' ]
	grep -q 'fault 2 of this device within a day (--referee-strikes 2)' err
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000002.h5 ]
	audit --inject-flip 2:2:gradient --inject-flip 2:3:leaf --referee-strikes 3
	[ "$status" -eq 0 ] && same || failed 'three are allowed'
	audit --inject-flip 1:2:gradient --inject-flip 2:3:leaf
	[ "$status" -eq 0 ] && same || failed 'two hosts'
	PT_HOST_RANKS=2 audit --inject-flip 2:2:gradient --inject-flip 3:3:leaf
	[ "$status" -eq 71 ] || failed 'two ranks of a host'
}

# A line of the file of suspects, of a time ago.
suspect() { # AGO HOST VERDICT
	printf '%s\t7\t%s\tprocessor\t0\t%s\tnorm.weight\n' "$(date -u -d "-$1" +%FT%TZ)" "$2" "$3"
}

@test "--referee: faults count for a day, by host and device, also after a restart" {
	local host
	host=$(hostname)
	clean 4 1 --fsdp 4
	audit --inject-flip 2:2:leaf --inject-kill 0:3:step
	[ "$status" -ne 0 ] && [ "$(cut -f2,5,6 run/suspects)" = '2	2	sporadic' ] || failed killed
	audited=("${command[@]}" --overwrite -o run --referee 0.01)
	"${audited[@]}" >out 2>err
	grep -q 'run/suspects names a device of this run' err
	grep -q 'a device of this run has had a fault within a day: the next 100 steps are audited' run/journal.txt
	grep -q 'audited=4 ' <(tail -n 1 out)
	# another rank of this host, after another restart
	status=0
	"${audited[@]}" --fsdp -1 --inject-flip 1:3:gradient >out 2>err || status=$?
	[ "$status" -eq 71 ] && [ "$(cut -f2,5,6 run/suspects | tr '\t\n' ' ')" = '2 2 sporadic 3 1 persistent ' ] || failed 'second start'
	# older ones, undecided ones, ones of other hosts and an incomplete line do not count
	{
		suspect '25 hours' "$host" sporadic
		suspect '1 hour' another sporadic
		suspect '1 hour' "$host" undecided
		printf '2026-'
	} >run/suspects
	"${audited[@]}" --inject-flip 1:1:gradient >out 2>err
	grep -q 'run/suspects: 1 line is not valid and ignored' err
	not grep -q 'names a device of this run' err
	grep -q 'fault 1 of this device within a day$' run/journal.txt
	grep -q 'audited=4 ' <(tail -n 1 out)
	[ "$(tail -n 1 run/suspects | cut -f2,5,6)" = '1	1	sporadic' ]
	# four devices: software, and supervise leaves no host out
	for x in n1 n2 "$host"; do suspect '5 hours' "$x" sporadic; done >run/suspects
	suspect '2 hours' n4 persistent >>run/suspects
	status=0
	"${audited[@]}" --referee-strikes 3 --inject-flip 1:1:gradient >out 2>err
	suspect '2 hours' n3 sporadic >>run/suspects
	"${audited[@]}" --inject-flip 1:1:gradient >out 2>err || status=$?
	[ "$status" -eq 1 ] || failed software
	grep -q 'more than 3 devices have had faults within a day, so a bug in software is more likely' err
	[ "$(tail -n 1 run/suspects | cut -f2,5,6)" = '1	1	sporadic' ]
	# not a plain file
	rm run/suspects
	ln -s /dev/zero run/suspects
	"${audited[@]}" --inject-flip 1:1:gradient >out 2>err
	grep -q 'run/suspects: .*; its faults do not count' err
	same
}

@test "--referee: a wrong copy of a weight is made again" {
	clean 3 1 --dp 3 --dtype bf16
	"${command[@]}" --overwrite -o run --inject-flip 1:2:copy >out 2>err
	not grep -q 'nothing to flip' err || skip 'no copies on this processor'
	audit --inject-flip 1:2:copy::14
	[ "$status" -eq 0 ] && same || failed copy
	grep -q 'computed again with new copies of the parameters it was right: sporadic' run/journal.txt
}

@test "--referee does not see sums, rounded gradients, updates and shards that all ranks use" {
	local x
	clean 2 1 --fsdp 2
	for x in 1:2:message::30 1:2:rounded 1:2:update 1:2:weight; do
		audit --inject-flip "$x"
		[ "$status" -eq 0 ] && not same && not grep -q sporadic run/journal.txt || failed "$x"
	done
	audit --check-sums yes --inject-flip 1:2:message::30
	[ "$status" -eq 0 ] && same || failed 'both checks'
}

@test "--referee: the share is computed, and what makes no sense is rejected" {
	clean 2 4 --dp 2
	"${command[@]}" --overwrite -o run --referee 0.1 >/dev/null 2>&1
	grep -q 'referee: 1 of 4 micro-batches of each data rank in one of 3 steps: 8.5 % of the work' run/journal.txt
	reports 64 '--referee and --edit-workers are mutually exclusive' tiny --dry-run --referee 1 --edit-workers 1
	reports 64 '--referee and --hash-tensors are mutually exclusive' tiny --dry-run --referee 1 --hash-tensors x
	reports 64 '--referee and --numerics fast are mutually exclusive' tiny --dry-run --device cuda --referee 1 --numerics fast
	reports 64 '--referee-strikes needs --referee' tiny --dry-run --referee-strikes 3
	reports 64 '--inject-flip' tiny --dry-run --inject-flip 0:1p2:leaf
}

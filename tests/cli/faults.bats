#!/usr/bin/env bats
# The k-th write, sync, rename, open, mapping, close or read of each program that writes fails, once or
# from then on, for every k (LONG=yes; else for some): the program ends with 74 and leaves nothing new, or
# with 0 and a file that is whole. A sealed file is read again before it gets its name, so even a write
# that is lost without an error is found.
load helpers

PRELOAD=$BUILD/tests/io_faults.so
LAUNCH=()

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	! sanitized || skip 'the sanitizer wants to come first'
	mkdir before
}

# Without a fault: $calls are lines `KIND CALLS`, and `good` is the folder afterwards.
count_calls() { # COMMAND...
	rm -rf at good
	cp -r before at
	(cd at && "${LAUNCH[@]}" env IO_FAULT_IN="$PWD" IO_FAULT_COUNTS=../calls LD_PRELOAD="$PRELOAD" "$@" >/dev/null)
	cp -r at good
}

# Of each kind so many calls fail (LONG=yes: each), beginning with a different one for each HOW.
with_faults() { # CALLS HOW... -- COMMAND...
	local most=$1 hows=() how kind n k every begin=0 tried=0 refused=0
	shift
	while [ "$1" != -- ]; do
		hows+=("$1")
		shift
	done
	shift
	[ "${LONG:-no}" != yes ] || most=1000000
	count_calls "$@"
	for how in "${hows[@]}"; do
		begin=$((begin + 1))
		while read -r kind n; do
			case $kind:$how in
			*:short) [[ $kind == *write ]] || continue ;;
			*:lost) [ $kind = pwrite ] || continue ;; # sealed files
			esac
			every=$(((n + most - 1) / most))
			[ "$how" != lost ] || [ "$n" -gt 40 ] || every=1 # some of few are of tokens
			for ((k = every ? 1 + begin % every : 1; k <= n; k += every)); do
				one_fault "$kind:$k:$how" "$@" || return 1
				tried=$((tried + 1))
				[ "$status" -eq 0 ] || refused=$((refused + 1))
			done
		done <calls
	done
	echo "# figure: ${1##*/} ${2:-}: $tried faults, $refused of them ended the program" >&3
	[ "$refused" -gt 0 ]
}

one_fault() { # FAULT COMMAND...
	fault=$1
	shift
	rm -rf at
	cp -r before at
	status=0
	(cd at && timeout -k 5 100 "${LAUNCH[@]}" env IO_FAULT_IN="$PWD" IO_FAULT="$fault" LD_PRELOAD="$PRELOAD" "$@") \
		>out 2>err </dev/null || status=$?
	check_end || {
		echo "$fault, code $status: $*"
		cat err
		ls -lR at
		return 1
	}
}

# (Who calls check_end() wants its result, so that a command that fails in it does not end it.)
# What check_end() does where there is one output: all of it, or nothing and one message. (The last write
# to an HDF5 file says that nobody writes to it; readers of this format of it do not ask.)
whole_or_nothing() {
	if [ "$status" -eq 0 ] && [[ $fault == *lost* ]]; then
		"${verify[@]}" at/*.h5 >/dev/null
	elif [ "$status" -eq 0 ]; then
		diff -r good at
	else
		[ "$status" -eq "${refusal:-74}" ] || return 1
		[ -s err ] || return 1
		local left=before
		# (a file that was replaced cannot be had back)
		! grep -q 'while syncing its directory; the new file is in place' err || left=good
		find at -mindepth 1 -type d -empty -delete # a new folder may stay
		diff -r $left at
	fi
}

HOWS=(ENOSPC ENOSPC:on EIO EINTR short)

@test "pt-prepare" {
	verify=(pt-prepare --verify)
	check_end() { whole_or_nothing; }
	make_text >text.txt
	with_faults 4 "${HOWS[@]}" lost -- pt-prepare -q ../text.txt -o x.h5
	head -c 3000 text.txt | pt-prepare -q - -o before/x.h5
	with_faults 4 "${HOWS[@]}" lost -- pt-prepare -q ../text.txt --overwrite -o x.h5
}

@test "pt-prepare: several shards, token files, a vocabulary" {
	verify=(pt-prepare --verify)
	check_end() { whole_or_nothing; }
	make_text >text.txt
	with_faults 4 "${HOWS[@]}" lost -- pt-prepare -q ../text.txt -t byte --shard-size 18000 -o x.h5
	with_faults 4 "${HOWS[@]}" -- pt-prepare -q ../text.txt -t byte --to megatron -o x
	with_faults 4 "${HOWS[@]}" -- pt-prepare -q ../text.txt -t byte --to llmc -o x
	with_faults 4 "${HOWS[@]}" -- pt-prepare -q --train-bpe 300 --vocab-out vocabulary ../text.txt
}

@test "pt-ckpt: strip, average, convert" {
	verify=(pt-ckpt verify)
	check_end() { whole_or_nothing; }
	make_shard
	tiny -n 2 -o run >/dev/null
	local ckpt=../run/checkpoints/latest.h5
	with_faults 4 "${HOWS[@]}" lost -- pt-ckpt -q strip -o x.h5 $ckpt
	with_faults 4 "${HOWS[@]}" lost -- pt-ckpt -q average -o x.h5 $ckpt $ckpt
	cp run/checkpoints/step-00000002.h5 before/x.h5
	with_faults 4 "${HOWS[@]}" lost -- pt-ckpt -q strip --force -o x.h5 $ckpt
	rm before/x.h5
	with_faults 4 "${HOWS[@]}" -- pt-ckpt -q convert -o hf $ckpt
	with_faults 4 "${HOWS[@]}" -- pt-ckpt -q convert --to llmc -o x.bin $ckpt
}

@test "pt-collbench" {
	# (its numbers are times)
	check_end() {
		if [ "$status" -eq 0 ]; then
			pt-collbench -q --from at/c.h5 >/dev/null
		else
			whole_or_nothing
		fi
	}
	with_faults 4 "${HOWS[@]}" lost -- pt-collbench -q -b 8 -e 64 -n 1 --out c.h5
}

@test "pt-compare, pt-plan: reports and timelines" {
	make_shard
	tiny -n 4 -o run >/dev/null
	refusal=2
	# (it has the time)
	check_end() {
		if [ "$status" -eq 0 ]; then
			[ "$(stat -c %s good/x.html)" -eq "$(stat -c %s at/x.html)" ]
		else
			whole_or_nothing
		fi
	}
	with_faults 4 "${HOWS[@]}" -- pt-compare -q ../run ../run --report x.html
	check_end() { whole_or_nothing; }
	with_faults 4 "${HOWS[@]}" -- pt-compare -q ../run ../run --report x.md
}

# A run goes on without a checkpoint that cannot be written. What has its name is whole, and at the end
# all is there, or the code says what is missing.
run_is_whole() {
	[ "$status" -eq 0 ] || [ "$status" -eq 74 ] || return 1
	[ "$status" -eq 0 ] || [ -s err ] || return 1
	[ -z "$(find at -name '*.tmp*')" ] || return 1
	shopt -s nullglob
	local made=(at/run/checkpoints/step-*.h5)
	shopt -u nullglob
	[ ${#made[@]} -eq 0 ] || pt-ckpt -q verify "${made[@]}" >/dev/null || return 1
	# none was removed before there were two that are newer
	[[ $fault == *:on || $status -ne 0 ]] || [ ${#made[@]} -eq 2 ] || return 1
	if [ "$status" -eq 0 ]; then
		# (the last write to an HDF5 file says that nobody writes to it; its readers do not ask)
		cmp at/run/checkpoints/latest.h5 good/run/checkpoints/latest.h5 >/dev/null ||
			{ [[ $fault == *lost ]] && pt-ckpt diff {at,good}/run/checkpoints/latest.h5 >/dev/null; } ||
			return 1
		pt-compare -q good/run at/run >/dev/null || return 1
	fi
	[ ! -e at/run/run.h5 ] || pt-compare -q --common good/run at/run >/dev/null
}

train_with_faults() { # CALLS RANKS HOW...
	local most=$1 n=$2
	shift 2
	make_shard
	options=("${TINY[@]}" -d ../data.h5 -n 6 --ckpt-every 2 --keep 2 -o run)
	check_end() { run_is_whole; }
	[ "$n" -eq 1 ] || LAUNCH=(mpiexec -n "$n")
	with_faults "$most" "$@" -- pt-train "${options[@]}"
}

@test "pt-train" {
	train_with_faults 4 1 "${HOWS[@]}" lost
}

@test "pt-train: one of two ranks" {
	export IO_FAULT_RANK=1
	train_with_faults 2 2 "${HOWS[@]}" lost
}

@test "pt-train: timelines and hashes of tensors" {
	make_shard
	# (a timeline has times)
	check_end() {
		if [ "$status" -eq 0 ]; then
			cmp at/hashes good/hashes || return 1
			[ "$(tail -n 1 at/trace)" = ']}' ]
		else
			[ "$status" -eq 74 ] || return 1
			[ -s err ] || return 1
			[ -z "$(find at -size +0 -name trace)" ] || [ "$(tail -n 1 at/trace)" = ']}' ]
		fi
	}
	with_faults 4 "${HOWS[@]}" -- pt-train "${TINY[@]}" -d ../data.h5 -n 2 --no-ckpt -o run \
		--trace trace --trace-steps 2 --hash-tensors hashes --hash-steps 1:2
}

# ---- programs that only read

# Some of the opens and reads of a file or directory fail (LONG=yes: each of them). The program reports
# the error, or does what it does without it. It writes to `new`, or nothing.
with_read_faults() { # CALLS PATH COMMAND...
	local most=$1 within want=0 fault kind how n k every
	prepare
	within=$(realpath "$2")
	shift 2
	[ "${LONG:-no}" != yes ] || most=1000000
	rm -rf new good
	env IO_FAULT_IN="$within" IO_FAULT_COUNTS=calls LD_PRELOAD="$PRELOAD" "$@" >out.good 2>err </dev/null || want=$?
	[ ! -e new ] || mv new good
	for fault in "${FAULTS[@]}"; do
		kind=${fault%:*} how=${fault#*:}
		n=$(sed -n "s/^$kind //p" calls)
		[ "$n" -gt 0 ]
		every=$(((n + most - 1) / most))
		for ((k = 1; k <= n; k += every)); do
			status=0
			rm -rf new calls.now
			prepare
			env IO_FAULT_IN="$within" IO_FAULT="$kind:$k:$how" IO_FAULT_COUNTS=calls.now LD_PRELOAD="$PRELOAD" \
				"$@" >out 2>err </dev/null || status=$?
			# (a file that is older than two seconds is checked once, so there may be fewer calls)
			[ ! -e calls.now ] || [ "$(sed -n "s/^$kind //p" calls.now)" -ge "$k" ] || continue
			is_reported "$how" "$want" || {
				echo "$kind:$k:$how of $n, code $status: $*"
				cat err
				return 1
			}
		done
		echo "# figure: ${1##*/} ${2:-}: $fault, $n calls" >&3
	done
}

is_reported() { # HOW CODE
	case $status in
	"$2")
		cmp out out.good || return 1
		[ ! -e good ] || diff -r good new
		;;
	"${refusal:-74}")
		case $1 in
		EIO) grep -q 'Input/output error' err ;;
		ENOSPC) grep -q 'No space left on device' err ;;
		lost) grep -q 'became shorter while it was read' err ;;
		esac
		;;
	*) return 1 ;;
	esac
}

FAULTS=(read:EIO)
prepare() { :; } # before each run

@test "reads of pt-prepare" {
	make_shard
	for _ in $(seq 50); do cat text.txt; done >big.txt # of several reads
	awk '{ print "{\"text\": \"" $0 "\"}" }' big.txt >big.jsonl
	gzip -k text.txt
	pt-prepare -q text.txt -t byte --to megatron -o m
	FAULTS=(read:EIO read:lost)
	local text
	for text in big.txt big.jsonl text.txt.gz; do
		with_read_faults 8 $text pt-prepare -q $text -t byte -o new
	done
	with_read_faults 8 text.txt pt-prepare -q text.txt -o new
	with_read_faults 8 m_train.bin pt-prepare -q m_train.bin --vocab 256 -o new
	FAULTS=(read:EIO)
	with_read_faults 4 m_train.idx pt-prepare -q m_train.bin --vocab 256 -o new
	FAULTS=(read:EIO open:ENOSPC)
	with_read_faults 12 data.h5 pt-prepare -q --verify data.h5
	with_read_faults 12 data.h5 pt-prepare --info data.h5
}

@test "reads of pt-train, pt-sample, pt-ckpt" {
	make_shard
	tiny -n 4 --ckpt-every 2 -o run >/dev/null
	local ckpt=run/checkpoints/step-00000004.h5 other=run/checkpoints/step-00000002.h5
	FAULTS=(read:EIO open:ENOSPC)
	with_read_faults 12 $ckpt pt-ckpt verify $ckpt
	with_read_faults 12 $ckpt pt-ckpt show $ckpt
	with_read_faults 12 $ckpt pt-ckpt diff $ckpt $other
	with_read_faults 12 $ckpt pt-ckpt convert -q $ckpt -o new
	with_read_faults 12 $ckpt pt-sample $ckpt the -n 2
}

@test "reads of pt-train" {
	make_shard
	tiny -n 4 --ckpt-every 2 -o run >/dev/null
	# (a run has times)
	is_reported() { [ "$status" -eq 74 ] && grep -qE 'Input/output|No space' err && not grep 'older checkpoint' err; }
	FAULTS=(read:EIO open:ENOSPC)
	with_read_faults 12 data.h5 pt-train "${TINY[@]}" -n 1 -o new
	FAULTS=(read:EIO)
	with_read_faults 12 run/checkpoints/step-00000002.h5 pt-train "${TINY[@]}" -n 3 -o new \
		--resume run/checkpoints/step-00000002.h5
	prepare() { rm -rf again && cp -r run again; }
	with_read_faults 25 again/checkpoints/step-00000004.h5 pt-train "${TINY[@]}" -n 5 -o again --resume auto
}

@test "a file that cannot be read is not removed as a damaged one" {
	make_shard
	tiny -n 4 --ckpt-every 2 -o run >/dev/null
	local other=run/checkpoints/step-00000009.h5
	is_reported() { [[ $status = [67][45] ]] && [ -e $other ]; }
	cp run/run.h5 $other # not a checkpoint, so it is never removed
	with_read_faults 12 $other pt-ckpt rm --force $other
	is_reported() { [ "$status" -eq 74 ] && [ -e $other ]; }
	prepare() { cp run/checkpoints/step-00000002.h5 $other; }
	with_read_faults 20 $other pt-ckpt rm --force $other
}

@test "reads of pt-compare" {
	make_shard
	tiny -n 4 -o run >/dev/null
	tiny -n 4 --seed 2 -o other >/dev/null
	for i in $(seq 50); do echo "{\"step\": $i, \"loss\": $((99 - i)).5}"; done >log.jsonl
	(echo run,step,loss && for i in $(seq 50); do echo "a,$i,$((99 - i)).5" && echo "b,$i,$((99 - i)).6"; done) >runs.csv
	refusal=2 # as its page has it
	with_read_faults 12 run pt-compare run other
	with_read_faults 12 run/run.h5 pt-compare run/run.h5 other/run.h5
	with_read_faults 4 runs.csv pt-compare runs.csv
	with_read_faults 4 log.jsonl pt-compare log.jsonl log.jsonl
	with_read_faults 12 run/checkpoints/step-00000004.h5 pt-compare {run,other}/checkpoints/step-00000004.h5
}

@test "reads of what other programs wrote" {
	local golden=$BATS_TEST_DIRNAME/../golden config
	config=$golden/torch/hf/config.json
	for at in hf-gpt2 llmc-llama/model.bin torch/nanogpt.pt torch/megatron torch/nanotron torch/hf; do
		with_read_faults 15 "$golden/$at" pt-ckpt verify "$golden/$at"
		with_read_faults 15 "$golden/$at" pt-ckpt convert -q "$golden/$at" -o new
	done
	for at in ddp.pt titan shards bins universal zero2 zero3 pytorch_model.bin; do
		with_read_faults 15 "$golden/torch/$at" pt-ckpt verify --model-config "$config" "$golden/torch/$at"
	done
	with_read_faults 15 "$golden/torch/nanotron" pt-check --two-runs "$golden/torch/nanotron" "$golden/torch/nanotron"
	# vocabularies and options
	echo 'layers = 2' >conf
	with_read_faults 4 conf pt-train --config conf --print-config
	make_text >text.txt
	with_read_faults 4 "$golden/tokens/tokenizer.json" \
		pt-prepare -q text.txt -t bpe --vocab-file "$golden/tokens/tokenizer.json" -o new
}

@test "reads of pt-plan and pt-check" {
	local golden=$BATS_TEST_DIRNAME/../golden
	mpiexec -n 2 pt-collbench -b 8 -e 64 -n 2 -w 0 -o network.h5 allreduce sendrecv >/dev/null
	with_read_faults 12 network.h5 pt-plan -n 1 -x 2 gpt2-124m batch=8 --network network.h5
	make_shard
	tiny -b 1 -m 1 -n 2 --ckpt-every 1 --keep 0 --arch llama -o run >/dev/null
	head -c 17 /dev/zero >batch.u16 && head -c 17 /dev/zero >>batch.u16
	local at=run/checkpoints/step-0000000
	with_read_faults 12 batch.u16 pt-check --shape 1,17 ${at}1.h5 ${at}2.h5 --batch batch.u16
	with_read_faults 12 ${at}1.h5 pt-check --shape 1,17 ${at}1.h5 ${at}2.h5 --batch batch.u16
	with_read_faults 15 "$golden/torch/titan" pt-check --two-runs "$golden/torch/titan" "$golden/torch/titan" \
		--model-config "$golden/torch/hf/config.json"
}

#!/usr/bin/env bats
# The k-th write, sync, rename, open, mapping or close of each program that writes fails, once or from
# then on, for every k (LONG=yes; else for some): the program ends with 74 and leaves nothing new, or
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
		! grep -q 'syncing its folder; the new file is there' err || left=good
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

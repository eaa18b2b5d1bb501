#!/usr/bin/env bats
# How tests/bench/gpu_lab collects and judges: scripts take the places of tests/bench/gpu and tests/run
# and print rows and results as those do.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	mkdir -p tests/bench build
	cp "$BATS_TEST_DIRNAME"/../bench/{gpu_lab,functions} tests/bench
	export PT_BUILD=$PWD/build
	printf '#!/bin/sh\necho "  --known"\n' >build/pt-train
	chmod +x build/pt-train
	: >build/pt-cuda.so
}

program() { # NAME: a script of the lines on standard input
	{ echo '#!/bin/bash' && cat; } >"tests/$1"
	chmod +x "tests/$1"
}

rows() { # "WORKLOAD VARIANT METRIC VALUE"..., with bars between
	mkdir -p out
	printf '%s\n' "$@" | sed 's/ *| */\t/g; s/$/\t/' >>out/rows.tsv
}

verdict() { # GOAL: the measured value and the verdict
	awk -F '\t' -v goal="$1" 'index($1, goal) == 1 { print $3, $4 }' out/verdict.tsv
}

judged() {
	PART=verdict tests/bench/gpu_lab out >/dev/null
}

@test "goals are judged by medians, ratios and differences; a missing or broken value is not met" {
	rows 'gpt2-124m | exact | tokens/s | 500000' 'gpt2-124m | exact | tokens/s | 570000' \
		'gpt2-124m | exact | tokens/s | 600000' 'gpt2-124m | fast | tokens/s | 580000' \
		'gpt2-124m | fast | tokens/s | ' 'gpt2-124m | fast | tokens/s | -' 'gpt2-124m | fast' \
		'gpt2-1.5b | exact | tokens/s | nan' 'gpt2-1.5b | exact | tokens/s | 60000' \
		'attn-bwd-64-1024 | exact | TFLOP/s | 220' 'attn-bwd-64-1024 | cudnn | TFLOP/s | 0' \
		'attn-bwd-64-4096 | exact | TFLOP/s | 220' 'attn-bwd-64-4096 | cudnn | TFLOP/s | 200' \
		'start-124m | exact | s to step 1 | 1.6' \
		'start-124m | exact+--self-test=yes | s to step 1 | 2' \
		'start-124m | exact+--self-test=no | s to step 1 | 1.25' \
		'gpt2-124m | exact | gradient norm of step 1 | 12.0371' \
		'gpt2-124m | exact+PT_ATTENTION=mma | gradient norm of step 1 | 11.9481' \
		'gpt2-124m | exact | loss of step 40 | 4.25' 'gpt2-124m | exact | loss of step 40 | 4.25' \
		'talk-loss | seed-1 | val_loss after 300 steps | 1.72' \
		'talk-loss | seed-2 | val_loss after 300 steps | 1.75' \
		'talk-loss | seed-3 | val_loss after 300 steps | 1.71' \
		'cuda: one | check-gpu | not ok | not run' 'cuda: two | check-gpu | not ok | 2' \
		'cuda_ranks: two | check-gpu | not ok | 0' \
		'test_kernels_attn, GPU | check-gpu | not ok | 0' \
		'test_kernels_attn, GPU | check-gpu | not ok | not run'
	judged
	[ "$(verdict 'C: GPT-2 124M exact, tokens/s')" = '570000 yes' ]
	[ "$(verdict 'C: GPT-2 124M fast, tokens/s')" = '580000 yes' ]
	[ "$(verdict 'C: GPT-2 124M, exact against fast')" = '0.9828 yes' ]
	[ "$(verdict 'C: GPT-2 1.5B exact')" = 'nan no' ]
	[ "$(verdict 'C: GPT-2 1.5B fast')" = '- not run' ]
	[ "$(verdict 'C: attention backward, head 64, T 1024')" = 'nan no' ]
	[ "$(verdict 'C: attention backward, head 64, T 4096')" = '1.1 yes' ]
	[ "$(verdict 'C: attention backward, head 64, T 16384')" = '- not run' ]
	[ "$(verdict 'A.6, C: start to step 1, 124M')" = '1.6 no' ]
	[ "$(verdict 'B.2')" = '0.75 yes' ]
	[ "$(verdict 'A.2: 124M')" = '1.007 no' ]
	[ "$(verdict 'C: the same run twice')" = '4.25 yes' ]
	[ "$(verdict 'A.5')" = '1.72 yes' ]
	[ "$(verdict 'A.2: tests')" = 'not run not run' ]
	[ "$(verdict 'A.4: cuda.bats')" = '2 no' ]
	[ "$(verdict 'A.4: cuda_ranks.bats')" = '0 yes' ]
	grep -q $'^gpt2-124m\tfast\ttokens/s\t580000\t1\texact\t1.018$' out/table.tsv
	[ "$(awk -F '\t' 'NF != 4' out/verdict.tsv)" = '' ]
	# Rows of another folder are added.
	mkdir other
	printf 'gpt2-124m\texact\tloss of step 40\t4.26\t\n' >other/rows.tsv
	PART=verdict tests/bench/gpu_lab out other >/dev/null
	[ "$(verdict 'C: the same run twice')" = '4.25 no' ]
}

@test "tests of several processes are counted; a process that is cut short leaves the verdict open" {
	program bench/gpu </dev/null
	program compute-sanitizer </dev/null
	PATH=$PWD/tests:$PATH
	program run <<'END'
echo "$GPU $SANITIZER $PART" >>seen
[ "$PART" != "$LATE" ] || printf 'test_late, GPU: not run: the %s seconds were over\n\n7 passed, 1 failed, 0 skipped\n' "$LIMIT"
[ "$PART" != "$LATE" ] || exit 1
printf '%-44s %4d ok (%d s)\n' "test_a$PART, GPU" 7 1
[ "$PART" != "$BAD" ] || printf '%-44s %4d ok, 2 NOT OK, 1 skipped (3 s)\n' 'test_bad, GPU' 4
[ "$PART" != "$BAD" ] || echo '    # the message before it'
[ "$PART" = "$CUT" ] || printf '\n%s\n' "$([ "$PART" = "$BAD" ] && echo '11 passed, 2' || echo '7 passed, 0') failed, 1 skipped"
END
	export BAD='' CUT='' LATE=''
	PART=6 tests/bench/gpu_lab out >said
	[ "$(LC_ALL=C sort seen | tr '\n' ' ')" = 'yes memcheck 1/4 yes memcheck 2/4 yes memcheck 3/4 yes memcheck 4/4 ' ]
	[ "$(verdict 'B.3: memcheck')" = '0 yes' ]
	[ "$(verdict 'B.3: racecheck')" = '- not run' ]
	[ "$(awk -F '\t' '$3 == "ok" { n += $4 } END { print n }' out/rows.tsv)" -eq 28 ]
	CUT=3/4 PART=7 tests/bench/gpu_lab out >said
	[ "$(verdict 'B.3: racecheck')" = '- not run' ]
	PATTERN=some PART=7 tests/bench/gpu_lab out >said
	[ "$(verdict 'B.3: racecheck')" = '- not run' ]
	LATE=1/4 PART=7 tests/bench/gpu_lab out >said
	[ "$(verdict 'B.3: racecheck')" = '- not run' ]
	BAD=2/4 CUT=3/4 PART=8 tests/bench/gpu_lab out >said
	[ "$(verdict 'B.3: synccheck')" = '2 no' ]
	grep -q '^synccheck 2/4: .*the message before it$' out/tests.txt
	grep -q 'test_bad.*2 NOT OK' out/errors.txt
	[ "$(find out -type f | wc -l)" -le 8 ]
}

@test "an item that hangs or fails, or a killed part, leaves the rows of the other items" {
	program bench/gpu <<'END'
echo "# $2"
printf '#workload\tvariant\tmetric\tvalue\tnote\n'
case $2 in
talk-loss:seed-2) echo '# FAILED: no memory'; exit 1 ;;
talk-loss:seed-3) printf '%s\t%s\tval_loss after 100 steps\t2.5\t\n' talk-loss seed-3; exec timeout "$LIMIT" sleep 1000 ;;
esac
printf '%s\t%s\tval_loss after 300 steps\t1.7\t\n' "${2%:*}" "${2#*:}"
END
	PART=4 LIMIT=4 timeout 60 tests/bench/gpu_lab out >said
	[ "$(verdict 'A.5')" = '1.7 yes' ]
	[ "$(grep -c talk-loss out/rows.tsv)" -eq 2 ]
	grep -q 'no memory' out/errors.txt
	rm -r out
	PART=4 setsid tests/bench/gpu_lab out >said 3>&- &
	local lab=$!
	wait_for seed-3 out/rows.tsv
	kill -9 -- "-$lab"
	pkill -9 -f "$BATS_TEST_TMPDIR" || : # what its time limits had put into other groups
	[ "$(verdict 'A.5')" = '1.7 yes' ]
	[ "$(PART=list tests/bench/gpu_lab | wc -l)" -eq 9 ]
	code_of 64 env PART=10 tests/bench/gpu_lab out
}

@test "a switch that the programs do not know is reported and not measured" {
	sed -i '/^PT_ATTENTION=mma/i PT_UNKNOWN=no talk:exact' tests/bench/gpu_lab
	echo PT_ATTENTION >build/pt-cuda.so
	printf '#!/bin/sh\necho "  --cuda-graph"\n' >build/pt-train
	program bench/gpu <<'END'
printf '%s\t%s\ttokens/s\t%d\t\n' "${2%%:*}" "${2#*:}" "$([[ $2 == *graph ]] && echo 150 || echo 100)"
END
	PART=5 tests/bench/gpu_lab out >said
	not grep -q PT_UNKNOWN out/rows.tsv
	grep -q PT_UNKNOWN out/errors.txt
	grep -q $'^gpt2-124m\texact+--cuda-graph\ttokens/s\t150\t2\texact\t1.500$' out/table.tsv
	grep -q $'^attn\texact+PT_ATTENTION=mma\ttokens/s\t100\t2\texact\t1.000$' out/table.tsv
}

@test "half the micro-batch where memory is too small; a run that is cut short counts as far as it came" {
	local tiny=(TINY=yes DEVICE=cpu DATA="$PWD" ITEM_LIMIT=4) # (helpers have a TINY)
	echo tokens >char.h5
	cat >build/pt-train <<'END'
#!/bin/bash
[[ $* != *--print-config ]] || exec echo "$*"
! grep -q -e '-m 2' "$2" || { echo 'pt-train: out of memory: 1 byte' >&2; exit 1; }
[ -z "$PT_FULL" ] || { echo 'pt-train: out of memory: 1 byte' >&2; exit 1; }
for i in 1 2 3 4 5 6 7 8; do
	[ "$i" -ne 7 ] || [ -z "$PT_HANG" ] || exec sleep 1000
	echo "step=$i loss=$i.5 grad_norm=2 tps=$((i * 10)) mfu=0.1 mem=1000000000"
done
END
	code_of 1 env "${tiny[@]}" "$BATS_TEST_DIRNAME/../bench/gpu" build gpt2-124m:exact{,+PT_HANG=yes,+PT_FULL=yes} talk:nothing
	says $'gpt2-124m\texact\ttokens/s\t60\tmicro-batch 1'
	says $'gpt2-124m\texact\tloss of step 8\t8.5'
	says $'gpt2-124m\texact+PT_HANG=yes\ttokens/s\t50\tmicro-batch 1, recompute , cut short'
	says '# FAILED: gpt2-124m:exact+PT_HANG=yes: out of time'
	says '# FAILED: gpt2-124m:exact+PT_FULL=yes, micro-batch 1: exit code 3'
	says 'talk:nothing is not known'
	not grep -q PT_FULL.*tokens/s <<<"$output"
}

#!/usr/bin/env bats
# How tests/bench/gpu_lab collects and judges: scripts take the places of tests/bench/gpu and tests/run
# and print rows and results as those do; tests/bench/gpu_nccl itself runs on an emulated GPU.
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
	rows 'gpt2-124m | exact | tokens/s | 500000' 'gpt2-124m | exact | tokens/s | 595000' \
		'gpt2-124m | exact | tokens/s | 600000' 'gpt2-124m | fast | tokens/s | 606000' \
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
	printf '# gpu\tNVIDIA H200, 580.1\n' >out/machine.txt
	judged
	[ "$(verdict 'C: GPT-2 124M exact, tokens/s')" = '595000 yes' ]
	[ "$(verdict 'C: GPT-2 124M fast, tokens/s')" = '606000 yes' ]
	[ "$(verdict 'C: GPT-2 124M, exact against fast')" = '0.9818 yes' ]
	[ "$(verdict 'C: GPT-2 1.5B exact, tokens')" = 'nan no' ]
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
	grep -q $'^gpt2-124m\tfast\ttokens/s\t606000\t1\texact\t1.018$' out/table.tsv
	[ "$(awk -F '\t' 'NF != 4' out/verdict.tsv)" = '' ]
	# Rows of another folder are added.
	mkdir other
	printf 'gpt2-124m\texact\tloss of step 40\t4.26\t\n' >other/rows.tsv
	PART=verdict tests/bench/gpu_lab out other >/dev/null
	[ "$(verdict 'C: the same run twice')" = '4.25 no' ]
}

@test "results that must pass are counted; one that fails is named" {
	rows 'nccl-open | 2 | result | PASS' 'nccl-open | 4 | result | not run' 'nccl-watchdog | fsdp | result | PASS' \
		'nccl-watchdog | graph | result | PASS' 'mpi-collectives | 2 | result | PASS' \
		'mpi-collectives | 2 | result | FAIL' 'mpi-collectives | 4 | result | FAIL' 'mpi-collectives | x | GB/s | 3'
	judged
	[ "$(verdict 'D.1: NCCL: communicators')" = '1 PASS not run' ]
	[ "$(verdict 'D.1: NCCL: collectives')" = '0 PASS not run' ]
	[ "$(verdict 'D.3')" = '2 PASS yes' ]
	[ "$(verdict 'D.5: MPI: collectives')" = 'FAIL: 2 and 1 more no' ]
	mkdir other
	printf 'nccl-open\t4\tresult\tPASS\t\n' >other/rows.tsv
	PART=verdict tests/bench/gpu_lab out other >/dev/null
	[ "$(verdict 'D.1: NCCL: communicators')" = '2 PASS yes' ]
}

lab_of_nccl() { # ITEMS NAME=VALUE...: with the emulated GPU and NCCL
	env TINY=yes PT_BUILD="$BUILD" PT_CUDA="$BUILD/emu/pt-cuda.so" PT_NCCL="$BUILD/emu/pt-cuda.so" PT_EMU_GUARD=no \
		PART=9,24,25 ITEMS="$1" "${@:2}" "$BATS_TEST_DIRNAME/../bench/gpu_lab" out >said
}

results() { # VALUE: how many rows
	awk -F '\t' -v value="$1" '$3 == "result" && $4 == value { n++ } END { print n + 0 }' out/rows.tsv
}

@test "NCCL is checked item by item, on an emulated GPU; what fails or cannot be run is told" {
	[ -e "$BUILD/emu/pt-cuda.so" ] || skip 'nvcc and its headers are not here'
	lab_of_nccl 'nccl-open:2 nccl-ranks:2 nccl-collectives:registered nccl-trace:fsdp mpi-collectives:2'
	cat said
	[ "$(results PASS)" -eq 10 ]
	[ "$(verdict 'D.1: NCCL: messages')" = '6 PASS yes' ]
	[ "$(verdict 'D.4')" = '1 PASS yes' ]
	[ "$(awk -F '\t' '$2 == "allreduce, 2 ranks" && $4 > 0' out/rows.tsv | wc -l)" -eq 1 ]
	gzip -dc out/trace.json.gz | grep -q '"cat":"fsdp"'
	[ "$(find out -type f | wc -l)" -le 10 ]
	# One test ends the program, those behind it are not run; the next item is.
	rm -r out
	lab_of_nccl 'nccl-ranks:2 nccl-open:2' PT_EMU_NCCL_ERROR=45
	[ "$(results PASS) $(results FAIL)" = '2 2' ]
	[ "$(verdict 'D.1: NCCL: messages')" = 'FAIL: stream and 1 more no' ]
	grep -q 'FAIL nccl-ranks: stream: .*exit code 1' said
	grep -q 'PT_EMU_NCCL_ERROR' out/errors.txt
	# Another library; none.
	rm -r out
	lab_of_nccl 'nccl-open:2' PT_NCCL="$BUILD/tests/libtest.a"
	[ "$(verdict 'D.1: NCCL: communicators')" = 'FAIL: 2 no' ]
	grep -q 'libtest.a' out/errors.txt
	rm -r out
	lab_of_nccl 'nccl-open:2 nccl-layouts:fp32 mpi-collectives:2' PT_NCCL="$PWD/none.so"
	cat said out/rows.tsv out/errors.txt
	[ "$(results 'not run') $(results PASS)" = '2 1' ]
	grep -q "nccl-open: 2: there is no NCCL: PT_NCCL is $PWD/none.so" out/errors.txt
	[ "$(verdict 'D.1: NCCL: communicators')" = '0 PASS not run' ]
	# No time.
	rm -r out
	lab_of_nccl 'nccl-open:2 nccl-watchdog:fsdp' LIMIT=2
	[ "$(results 'not run')" -eq 2 ]
	grep -q 'no time' out/errors.txt
}

@test "bits that differ from those of one rank fail, and a run that does not end" {
	[ -e "$BUILD/emu/pt-cuda.so" ] || skip 'nvcc and its headers are not here'
	# What has a part of the ranks does otherwise.
	mkdir programs
	ln -s "$BUILD"/* programs
	rm programs/pt-train
	cat >programs/pt-train <<-END
		#!/bin/bash
		case \$* in
		*'--tp 2'*'--fsdp 2'* | *'--tp 2 -o'*) set -- "\$@" --seed 9 ;;
		*'--cp 2'*) exit 124 ;; # as timeout(1) ends what hangs, which another test tries
		*'--pp 2'* | *graph*) exit 3 ;;
		esac
		exec "$BUILD/pt-train" "\$@"
	END
	chmod +x programs/pt-train
	lab_of_nccl nccl-layouts:fp32 PT_BUILD="$PWD/programs" ITEM_LIMIT=40
	cat said
	[ "$(results PASS) $(results FAIL)" = '4 6' ]
	grep -q 'FAIL nccl-layouts: fp32 tp2: other bits than one rank: loss: .* values differ' said
	grep -q 'FAIL nccl-layouts: fp32 cp2: stopped, since it did not end' said
	grep -q 'FAIL nccl-layouts: fp32 pp2: exit code 3' said
	[ "$(verdict 'D.2')" = 'FAIL: fp32 tp2 and 5 more no' ]
}

@test "NCCL's library is searched where it may be, and what was searched is told" {
	local find=$BATS_TEST_DIRNAME/../tools/find_nccl
	mkdir -p some packages/nvidia/nccl/lib bin
	printf '#!/bin/sh\n' >bin/ldconfig
	printf '#!/bin/sh\necho "%s"\n' "$PWD/packages/nvidia/nccl/lib/libnccl.so.2" >bin/python3
	chmod +x bin/*
	for there in packages/nvidia/nccl/lib/libnccl.so.2 some/libnccl.so.2 given; do
		: >$there
		[ $there != given ] || given=(PT_NCCL="$PWD/given")
		run env -i PATH="$PWD/bin:/usr/bin:/bin" LD_LIBRARY_PATH="/nowhere::$PWD/some" "${given[@]}" "$find"
		[ "$status" -eq 0 ]
		# (CUDA's own is before Python's)
		[ "$output" = "$PWD/$there" ] || [[ $there$output == packages*/usr/local/cuda* ]]
	done
	run env PT_NCCL=/nowhere.so "$find"
	[ "$status" -eq 1 ]
	[ "$output" = 'there is no NCCL: PT_NCCL is /nowhere.so' ]
}

@test "tests of kernels run in one process; of one that dies the others run in another" {
	mkdir -p build/tests
	printf '#!/bin/sh\necho a GPU\n' >build/tests/test_device
	export STARTED=$PWD/started
	cat >build/tests/test_kernels <<'END'
#!/bin/bash
echo "$*" >>"$STARTED"
for name; do
	echo "# begin $name"
	echo 'ok 1 - first'
	[ $name != test_kernels_round ] || { echo 'BUG: what it said' && kill -ABRT $$; }
	[ $name != test_kernels_nan ] || echo 'not ok 2 - second'
	echo "# end $name $([ $name = test_kernels_nan ] && echo 1 || echo 0) 7"
done
END
	chmod +x build/tests/*
	code_of 1 env GPU=yes GPU_LIBRARY=none "$BATS_TEST_DIRNAME/../run" build 'test_kernels_(nan|round|state|xent)'
	echo "$output" >said
	cat said
	grep -qE '^test_kernels_nan, GPU +1 ok, 1 NOT OK \(7 s\)$' said
	grep -qE '^test_kernels_round, GPU +1 ok, 1 NOT OK ' said
	grep -q '^test_kernels_round, GPU: exit code 134: it died of signal 6$' said
	grep -q '^    BUG: what it said$' said
	grep -qE '^test_kernels_state, GPU +1 ok \(7 s\)$' said
	[ "$(tail -n 1 said)" = '4 passed, 2 failed, 0 skipped' ]
	[ "$(sed 's/test_kernels_//g' started | paste -sd ,)" = 'nan round state xent,state xent' ]
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
	PART=16 tests/bench/gpu_lab out >said
	[ "$(LC_ALL=C sort seen | tr '\n' ' ')" = 'yes memcheck 1/4 yes memcheck 2/4 yes memcheck 3/4 yes memcheck 4/4 ' ]
	[ "$(verdict 'B.3: memcheck')" = '0 yes' ]
	[ "$(verdict 'B.3: racecheck')" = '- not run' ]
	[ "$(awk -F '\t' '$3 == "ok" { n += $4 } END { print n }' out/rows.tsv)" -eq 28 ]
	CUT=3/4 PART=27 tests/bench/gpu_lab out >said
	[ "$(verdict 'B.3: racecheck')" = '- not run' ]
	PATTERN=some PART=27 tests/bench/gpu_lab out >said
	[ "$(verdict 'B.3: racecheck')" = '- not run' ]
	LATE=1/4 PART=27 tests/bench/gpu_lab out >said
	[ "$(verdict 'B.3: racecheck')" = '- not run' ]
	BAD=2/4 CUT=3/4 PART=28 tests/bench/gpu_lab out >said
	[ "$(verdict 'B.3: synccheck')" = '2 no' ]
	grep -q '^synccheck 2/4: .*the message before it$' out/tests.txt
	grep -q 'test_bad.*2 NOT OK' out/errors.txt
	[ "$(find out -type f | wc -l)" -le 10 ]
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
	PART=11,26,30 LIMIT=15 timeout 300 tests/bench/gpu_lab out >said
	[ "$(verdict 'A.5')" = '1.7 yes' ]
	[ "$(grep -c talk-loss out/rows.tsv)" -eq 2 ]
	grep -q 'no memory' out/errors.txt
	rm -r out
	PART=11,26,30 setsid tests/bench/gpu_lab out >said 3>&- &
	local lab=$!
	wait_for seed-3 out/rows.tsv
	kill -9 -- "-$lab"
	pkill -9 -f "$BATS_TEST_TMPDIR" || : # what its time limits had put into other groups
	[ "$(verdict 'A.5')" = '1.7 yes' ]
	[ "$(PART=list tests/bench/gpu_lab | wc -l)" -eq 32 ]
	code_of 64 env PART=33 tests/bench/gpu_lab out
}

@test "what is wrong is on the first screen: a self-test, which is bisected, a matmul, a warning, an item that hangs" {
	local words text
	words=$(sed -n 's/^PT_LAB_OFF=\([^ ]*\) .*/\1/p' tests/bench/gpu_lab)
	echo PT_LAB_OFF PT_ATTENTION >build/pt-cuda.so
	program bench/gpu <<'END'
echo "$2 ${PT_LAB_OFF:-}" >>"$SEEN"
work=${2%%:*} how=${2#*:} verdict=FAIL
case $2 in
self-test:gpt2-1.5b*)
	[[ $how != *=all && $how != *="$HEALS" ]] || verdict=PASS
	printf '%s\t%s\tresult\t%s\trow 7 is wrong\n' $work "$how" $verdict ;;
self-test*) printf '%s\t%s\tresult\tPASS\t1 s\n' $work "$how" ;;
matmul*) printf '# WARNING: %s: lag: WRONG: row 3\n# FAILED: %s: exit code 1\n#     more\n#     it computes wrongly\n' $2 $2 ;;
pairs*) printf '# FAILED: %s: out of time\n' $2 ;;
gpt2-124m:fast) printf '# WARNING: %s: cuBLASLt does not multiply float8, which took 5 s\n' $2 ;;
esac
END
	export SEEN=$PWD/seen HEALS=rope
	PART=1,2,10,12 tests/bench/gpu_lab out >said
	head -n 24 out/summary.txt
	for text in '^RED: 4$' '  self-test of gpt2-1.5b passes with PT_LAB_OFF=rope; the parts after' \
		'  FAIL self-test: gpt2-1.5b: row 7' '  FAILED: matmul:exact: exit code 1' '      it computes wrongly' \
		'  FAILED: pairs:exact: out of time' '^WARNINGS: 2' '  gpt2-124m:fast: cuBLASLt does not multiply float8, which'; do
		head -n 24 out/summary.txt | grep -- "$text" || { echo "missing: $text" && false; }
	done
	# The switches were tried up to the one that heals, which is used afterwards.
	[ "$(grep -c '^self-test:gpt2-1.5b+PT_LAB_OFF' seen)" -eq $((1 + $(grep -nx rope <<<"$words" | cut -d : -f 1))) ]
	grep -x 'talk:exact rope' seen
	rm -r out
	HEALS=none PART=1 tests/bench/gpu_lab out >said
	grep '  self-test of gpt2-1.5b passes with PT_LAB_OFF=all only' out/summary.txt
	[ "$(verdict A.0)" = 'FAIL: gpt2-1.5b no' ]
	rm -r out
	rows 'talk | exact | tokens/s | 1'
	judged
	grep -x 'RED: nothing' out/summary.txt
}

@test "a bound is that of the GPU in machine.txt, and a goal for other GPUs is not judged" {
	local gpu
	rows 'gpt2-1.5b | exact | tokens/s | 45000'
	for gpu in 'NVIDIA H200=no' 'NVIDIA H100 80GB HBM3=yes' 'NVIDIA B200=not judged'; do
		printf '# gpu\t%s, 580.1\n' "${gpu%=*}" >out/machine.txt
		judged
		[ "$(verdict 'C: GPT-2 1.5B exact, tokens/s')" = "45000 ${gpu#*=}" ]
	done
}

@test "a switch that the programs do not know is reported and not measured" {
	sed -i '/^PT_ATTENTION=mma/i PT_UNKNOWN=no talk:exact' tests/bench/gpu_lab
	echo PT_ATTENTION >build/pt-cuda.so
	printf '#!/bin/sh\necho "  --cuda-graph"\n' >build/pt-train
	program bench/gpu <<'END'
printf '%s\t%s\ttokens/s\t%d\t\n' "${2%%:*}" "${2#*:}" "$([[ $2 == *graph ]] && echo 150 || echo 100)"
END
	PART=22,23 tests/bench/gpu_lab out >said
	not grep -q PT_UNKNOWN out/rows.tsv
	grep -q PT_UNKNOWN out/errors.txt
	grep -q $'^gpt2-124m\texact+--cuda-graph\ttokens/s\t150\t1\texact\t1.500$' out/table.tsv
	grep -q $'^attn\texact+PT_ATTENTION=mma\ttokens/s\t100\t1\texact\t1.000$' out/table.tsv
}

@test "half the micro-batch where memory is too small; a run that is cut short counts as far as it came" {
	local tiny=(TINY=yes DEVICE=cpu DATA="$PWD" ITEM_LIMIT=15) # (helpers have a TINY)
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

@test "the pack for GPU machines is unpacked to no directory of other files" {
	sed -n "/<<'ENV'\$/,/^ENV\$/p" "$BATS_TEST_DIRNAME/../bench/gpu_machine" | sed '1d;$d' >unpack
	touch pt.tar.xz
	mkdir home
	echo x >home/thesis.txt
	PT_HOME=$PWD/home code_of 1 bash -c '. ./unpack'
	says 'has other files; give another directory'
	[ "$(ls -A home)" = thesis.txt ]
	# what is left of an archive that could not be read is unpacked again
	for _ in 1 2; do
		PT_HOME=$PWD/new code_of 1 bash -c '. ./unpack'
		[ "$(ls -A new)" = unpacked ]
	done
}

library() { # FILE NEEDED: a library that needs another one
	echo 'int x;' | gcc -x c -shared -o "$2" "-Wl,-soname,${2##*/}" - &&
		echo 'int y;' | gcc -x c -shared -o "$1" - -Wl,--no-as-needed -L. "-l:${2##*/}"
}

preflight() { # DRIVER GPU PLUGIN
	run env -i PATH="$PWD/bin:/usr/bin:/bin" DRIVER="$1" GPU="$2" PT_NCCL=/none \
		"$BATS_TEST_DIRNAME/../bench/gpu_preflight" "$3" home pack
	echo "$output"
}

@test "the preflight names what is missing and what to do, and links what is next to the pack" {
	command -v gcc || skip 'no gcc'
	local gpu='NVIDIA H200 (sm_90, driver 580, CUDA 13.0, cuBLASLt 13.1.0)'
	mkdir -p bin pack/lib pack/compat
	printf '#!/bin/sh\necho "$DRIVER"\n' >bin/nvidia-smi
	printf '#!/bin/sh\necho "$GPU"\n' >bin/test_device
	chmod +x bin/*
	library 13.so ./libcublasLt.so.13
	library 99.so ./libcublasLt.so.99
	preflight 580.65.06 "$gpu" 99.so
	[ "$status" -eq 1 ]
	says 'driver 580.65.06, cuBLASLt none, NCCL none'
	says ': NOT good: libcublasLt.so.99 is missing; PT_FETCH=yes installs it'
	mv libcublasLt.so.* pack/lib
	preflight 580.65.06 "$gpu" 99.so
	[ "$status" -eq 0 ]
	says 'driver 580.65.06, cuBLASLt 13.1.0, NCCL none'
	[[ $output == *': good' ]]
	[ -e home/lib/libcublasLt.so.99 ]
	# A GPU that does not open; no driver; an old one, with the package that helps, and without.
	preflight 580.65.06 'test_device: it is broken' 13.so
	says 'NOT good: the GPU cannot be used: test_device: it is broken'
	preflight '' "$gpu" 13.so
	says 'NOT good: there is no NVIDIA driver'
	[ ! -e /usr/local/cuda/compat/libcuda.so.1 ] || return 0
	preflight 535.104.05 "$gpu" 13.so
	[ "$status" -eq 1 ]
	says 'NOT good: CUDA 13 needs driver 580 or later; put NVIDIA'"'"'s package cuda-compat-13-0 (.deb) into '"$PWD/pack/compat"
	touch pack/compat/libcuda.so.1
	preflight 535.104.05 "$gpu" 13.so
	[ "$status" -eq 0 ]
	says 'driver 535.104.05 with cuda-compat, cuBLASLt 13.1.0, '
	[ -e home/lib/libcuda.so.1 ]
}

@test "a library for GPUs is not packed if its machine code was not checked" {
	local machine=$BATS_TEST_DIRNAME/../bench/gpu_machine file=$PWD/some.so
	echo 'int x;' | gcc -x c -shared -o "$file" - || skip 'no gcc'
	LIBRARY=$file code_of 1 "$machine" build out
	says 'no record that its machine code was checked'
	{ echo 'machine code NOT checked: cuobjdump is missing' && cksum <"$file"; } >"$file.checked"
	LIBRARY=$file code_of 1 "$machine" build out
	says 'some.so: machine code NOT checked: cuobjdump is missing; run make deps'
	printf '9 kernels with warpgroup matmuls (9 bf16), 0 faults\n1 2\n' >"$file.checked"
	LIBRARY=$file code_of 1 "$machine" build out
	says 'no record'
	[ ! -e out ]
}

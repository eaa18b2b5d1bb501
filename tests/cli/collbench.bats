#!/usr/bin/env bats
# pt-collbench: results, the check of results, columns, files, the smoke test, usage.

setup() {
	cd "$BATS_TEST_TMPDIR" || return
}

quick=(-n 1 -w 0) # for tests that ask for results, not for times

# bench RANKS ARGUMENT...: the table goes to the file `table`, its rows to `rows`.
# 0 ranks: without mpiexec.
bench() {
	local n=$1 rc=0
	shift
	if [ "$n" -gt 0 ]; then
		mpiexec -n "$n" pt-collbench "$@" >table || rc=$?
	else
		pt-collbench "$@" >table || rc=$?
	fi
	grep -v '^#' table >rows || true
	return $rc
}

# There are N rows, each has all its columns, and no element is wrong.
all_right() {
	[ "$(wc -l <rows)" -eq "$1" ]
	awk 'NF != 13 || $9 !~ /^(0|N\/A)$/ || $13 !~ /^(0|N\/A)$/ || $9 $13 == "N/AN/A" {
		print; bad = 1 } END { exit bad }' rows
	grep -qx '# Out of bounds values : 0 OK' table
}

# The collectives that have wrong elements.
wrong() {
	awk '/^# [a-z]+: / { name = $2 } !/^#/ && $9 + $13 > 0 { print name }' table |
		tr -d : | sort -u
}

# refused CODE WORDS COMMAND...: ends with this code, says one line, and these words.
refused() {
	local code=$1 words=$2
	shift 2
	run "$@"
	echo "$output"
	[ "$status" -eq "$code" ]
	[ "${#lines[@]}" -eq 1 ]
	[[ $output == *"$words"* ]]
}

@test "alone, without mpiexec, allreduce from 8 bytes to 16 MiB" {
	bench 0
	all_right 22
	grep -q '^# allreduce: ' table
	awk '$8 != "0.00" || $12 != "0.00" { exit 1 }' rows
}

# Per type and size: 4 operations of 3 collectives, and 6 without; and one barrier. A root
# more makes 4 + 3 rows more.
@test "every type, operation and collective, without mpiexec" {
	bench 0 all -d all -o all -b 8 -e 8000 -f 1000 "${quick[@]}"
	all_right $((12 * 2 * 18 + 1))
}

@test "every type, operation, root and collective, 1 rank" {
	bench 1 all -d all -o all -r all -b 8 -e 8000 -f 1000 "${quick[@]}"
	all_right $((12 * 2 * 18 + 1))
}

@test "every type, operation, root and collective, 2 ranks" {
	bench 2 all -d all -o all -r all -b 8 -e 8000 -f 1000 "${quick[@]}"
	all_right $((12 * 2 * 25 + 1))
}

@test "every type, operation and collective, 3 ranks" {
	bench 3 all -d all -o all -r 2 -b 1000 -e 1000 "${quick[@]}"
	all_right $((12 * 18 + 1))
}

@test "every type, operation and collective, 4 ranks" {
	bench 4 all -d all -o all -r 1 -b 1000 -e 1000 "${quick[@]}"
	all_right $((12 * 18 + 1))
}

@test "more ranks than processors: 8" {
	bench 8 all -b 1000 -e 1000 "${quick[@]}"
	all_right 10
}

@test "large buffers, several checks" {
	bench 2 all -b 4M -e 4M -c 2 "${quick[@]}"
	all_right 10
}

@test "a flipped bit in any collective is found, and only there" {
	for what in allreduce:1:3 reduce:1:0 broadcast:0:1 allgather:1:0 reducescatter:0:2 \
		scatter:1:1 gather:0:7 alltoall:1:5 sendrecv:0:6 barrier:1:0; do
		export PT_COLLBENCH_FAULT=$what
		run bench 2 all -b 32 -e 32 "${quick[@]}"
		[ "$status" -eq 1 ]
		[ "$(wrong)" = "${what%%:*}" ]
		grep -q '^# Out of bounds values : [1-9][0-9]* FAILED' table
	done
}

@test "a flipped bit of every type is found" {
	for type in int8 uint8 int32 uint32 int64 uint64 float double half bfloat16 f8e4m3 f8e5m2; do
		export PT_COLLBENCH_FAULT=allreduce:0:0
		run bench 0 -d $type -b 64 -e 64 "${quick[@]}"
		[ "$status" -eq 1 ]
		[ "$(awk '{ print $9, $13 }' rows)" = "1 1" ]
	done
}

@test "a flipped bit around a buffer is found" {
	for element in -1 -128 8 100; do
		export PT_COLLBENCH_FAULT=allreduce:0:$element
		run bench 0 -b 32 -e 32 "${quick[@]}"
		[ "$status" -eq 1 ]
	done
	# A rank that gets no result: its buffer must stay as it was.
	PT_COLLBENCH_FAULT=gather:1:0 run bench 2 gather -b 32 -e 32 "${quick[@]}"
	[ "$status" -eq 1 ]
}

@test "a fault that was never made is no pass" {
	for fault in allreduce:0:1000000 allreduce:5:0 gather:0:0; do
		PT_COLLBENCH_FAULT=$fault run bench 0 -b 32 -e 32 "${quick[@]}"
		[ "$status" -eq 64 ]
	done
	for fault in allreduce allreduce:0 allreduce:0: nonsense:0:0 all:0:0 allreduce:-1:0; do
		PT_COLLBENCH_FAULT=$fault refused 64 PT_COLLBENCH_FAULT pt-collbench
	done
}

@test "-c 0 does not check, and says so" {
	bench 0 -c 0 -e 64
	awk '$9 != "N/A" || $13 != "N/A" { exit 1 }' rows
	grep -q '^# Out of bounds values : 0 NOT CHECKED' table
}

@test "names as in nccl-tests, and its -g" {
	bench 2 all_gather -b 64 -e 64 "${quick[@]}"
	[ "$(wc -l <rows)" -eq 1 ]
	refused 64 "did you mean 'allreduce'" pt-collbench all_reduc
	refused 64 'start a rank per GPU' pt-collbench -b 8 -e 64 -g 1
}

@test "columns: sizes" {
	bench 0 -b 1K -e 3K -i 1K "${quick[@]}"
	[ "$(awk '{ printf "%s ", $1 }' rows)" = "1024 2048 3072 " ]
	bench 0 -b 1 -e 256 -f 4 -d double "${quick[@]}"
	[ "$(awk '{ printf "%s:%s ", $1, $2 }' rows)" = "8:1 16:2 64:8 256:32 " ]
	# S = count * size * ranks where a buffer has a block for each rank
	bench 3 all -b 1000 -e 1000 -d int32 "${quick[@]}"
	[ "$(awk '{ printf "%s:%s ", $1, $2 }' rows)" = "1000:250 1000:250 1000:250 996:83 \
996:83 996:83 996:83 996:83 1000:250 0:0 " ]
}

@test "columns: bandwidths follow from time" {
	bench 3 all -b 3M -e 3M -n 2 -w 0
	awk -v factors='1.333 1 1 .667 .667 .667 .667 .667 1 1' '
		function near(a, b) { d = a - b; return d < .02 + .02 * b && -d < .02 + .02 * b }
		function check(time, alg, bus) {
			if (time == "N/A") return
			if (!near(alg, $1 / time / 1000) || !near(bus, alg * f[NR])) {
				print; bad = 1
			}
		}
		BEGIN { split(factors, f, " ") }
		{ check($6, $7, $8); check($10, $11, $12) }
		END { exit bad }' rows
}

@test "columns: -I, and none for what there is not" {
	bench 2 reduce broadcast sendrecv barrier -I -b 64 -e 64 -r 1
	awk 'NF != 29 { exit 1 }' rows
	[ "$(awk '{ print $3, $4, $5, $6 == "N/A", $18 == "N/A" }' rows)" = "float sum 1 0 0
float none 1 1 0
float none -1 0 1
none none -1 0 1" ]
	awk 'NR == 1 && !($10 <= $12 && $12 <= $13 && $13 <= $11 && $6 <= $11 && $14 >= 0 && $17 == 20) { exit 1 }' rows
}

@test "pairs of ranks: latency, bandwidth, bidirectional" {
	for n in 2 3 4; do
		for calls in nonblocking blocking; do
			bench $n latency bandwidth bidirectional -b 8 -e 80000 -f 100 --window 4 \
				--calls $calls "${quick[@]}"
			all_right 9
		done
	done
	PT_COLLBENCH_FAULT=latency:0:1 run bench 2 latency -b 8 -e 8 -d int8 "${quick[@]}"
	[ "$status" -eq 1 ]
	# the rank that only sends has no result
	PT_COLLBENCH_FAULT=bandwidth:1:1 run bench 2 bandwidth -b 8 -e 8 -d int8 "${quick[@]}"
	[ "$status" -eq 1 ]
}

@test "messages between all ranks: alltoallv, hypercube" {
	for n in 2 3 4; do
		both=$((n != 3))
		# shellcheck disable=SC2046
		bench $n alltoallv $([ $both -eq 0 ] || echo hypercube) -d all -b 64 -e 64000 -f 1000 -c 2 "${quick[@]}"
		all_right $((2 * 12 * (1 + both)))
	done
	# ranks 0 and 2 receive half as much, so that the guard begins there
	for at in 1:3:1 2:1:1 2:6:1 0:5:1; do
		PT_COLLBENCH_FAULT=alltoallv:${at%:*} run bench 4 alltoallv -b 32 -e 32 -d int32 "${quick[@]}"
		[ "$status" -eq "${at##*:}" ]
	done
	PT_COLLBENCH_FAULT=hypercube:3:0 run bench 4 hypercube -b 16 -e 16 -d int32 "${quick[@]}"
	[ "$status" -eq 1 ]
	refused 64 'hypercube: needs 2 ranks, or 4, 8, 16, ...' mpiexec -n 3 pt-collbench hypercube
}

@test "blocking calls, barriers between, averages: the same results" {
	bench 3 all --calls blocking --barrier -a avg -d bfloat16 -o all -b 1000 -e 1000 "${quick[@]}"
	all_right 19
	for average in min rank0; do
		bench 2 all -a $average -b 1000 -e 1000 "${quick[@]}"
		all_right 10
	done
}

@test "groups along axes, all at once or one" {
	bench 4 all latency --split fsdp=2,tp=2 --split world --groups both -b 800 -e 800 "${quick[@]}"
	awk '{ print $6, $7, $8, $9 }' rows | uniq -c | awk '{ print $1, $2, $3, $4, $5 }' >groups
	diff groups - <<-END
		11 fsdp 2 1 2
		11 fsdp 2 1 1
		11 tp 2 1 2
		11 tp 2 1 1
		11 world 4 1 1
	END
	awk '$13 + $17 > 0 { exit 1 }' rows
	grep -qx '# Out of bounds values : 0 OK' table
	# size is a group's: count times 2 ranks
	[ "$(awk '$6 == "tp" && NR > 1 { print $1, $2 }' rows | sort -u | tail -n 2 | head -n 1)" = "800 100" ]
	# a rank of the second group has the fault, so only all at once see it
	for how in 'all 1' 'one 64'; do
		PT_COLLBENCH_FAULT=allreduce:3:0 run bench 4 --split tp=2 --groups "${how% *}" -b 32 -e 32 "${quick[@]}"
		[ "$status" -eq "${how#* }" ]
	done
}

@test "--seconds ends in time; --passes; --overlap" {
	bench 2 --seconds 0.05 -b 1K -e 1K -I -w 0 --passes 2
	awk '$17 < 2 { exit 1 }' rows
	bench 2 allreduce alltoall barrier --overlap -b 1K -e 100K -f 100 -n 3 --polls 2
	awk '$3 != "none" && !($11 >= 0 && $12 >= 0 && $12 <= 100 && $10 > 0) { print; exit 1 }' rows
	[ "$(awk '$3 == "none" { print $10, $17 }' rows)" = "N/A N/A" ]
}

@test "fits: printed with three sizes, and in the file" {
	bench 2 allreduce latency -b 8 -e 64 "${quick[@]}" --out bench.h5
	grep -A 9 '^# time (s) = alpha' table | awk '$2 == "allreduce" || $2 == "latency" { n += $4 == 2 && $7 >= 0 && $8 >= 0 && $9 >= 0 }
		END { exit n != 2 }'
	h5ls bench.h5/fit/alpha | grep -q 'Dataset {2}'
	h5dump -d /fit/group_ranks -y bench.h5 | grep -q '2, 2'
	# two axes of equally many ranks
	bench 4 --split tp=2,fsdp=2 -b 8 -e 64 "${quick[@]}" --out bench.h5
	h5ls bench.h5/fit/alpha | grep -q 'Dataset {2}'
	bench 2 -b 8 -e 16 "${quick[@]}" --out bench.h5
	[ "$(grep -c 'time (s) = alpha' table)" -eq 0 ]
	h5ls bench.h5/fit/alpha | grep -q 'Dataset {0}'
}

@test "--compare: equal to itself, slower than a faster one, other bits" {
	# iterations that mostly sleep, since beside other programs ranks wait for processors, and such times are not judged
	export PT_COLLBENCH_DELAY=0.02
	bench 2 allreduce barrier -b 8 -e 4K -f 8 -n 4 -w 0 --reruns 1 --out old.h5
	pt-collbench --from old.h5 --compare old.h5 >table
	grep -q '^# compared 9: 0 slower, 0 faster, [0-9]* unchanged' table
	grep -q '^# reductions of random values: 0 of 8 differ bitwise' table
	# no size is in both, or no error of a time is known
	run bench 2 -b 16K -e 16K --compare old.h5 "${quick[@]}"
	[ "$status" -eq 65 ]
	run mpiexec -n 2 pt-collbench -b 8 -e 8 --compare old.h5 "${quick[@]}"
	[ "$status" -eq 65 ]
	[ "$(grep -c '^missing *allreduce float sum, .* bytes, world of 2 ranks' <<<"$output")" -eq 3 ]
	[ "$(grep -c '^missing *barrier' <<<"$output")" -eq 1 ]
	grep -q '0 faster, 0 unchanged, 2 not judged; 0 rows are new, 4 are missing' <<<"$output"
	[[ $output == *"--compare: no case can be judged"* ]]
	# 50 ms more, or less
	few=(-b 8 -e 8 -n 4 -w 0 -c 0)
	bench 2 "${few[@]}" --out fast.h5
	bench 2 "${few[@]}" --calls blocking --out fast2.h5
	export PT_COLLBENCH_DELAY=0.07
	bench 2 "${few[@]}" --out slow.h5
	run mpiexec -n 2 pt-collbench "${few[@]}" --compare fast.h5 --retries 1
	echo "$output"
	[ "$status" -eq 1 ]
	# (in place and not; beside other programs the noise of one of them may be too large to judge it)
	grep -q '^slower *allreduce float sum, 8 bytes' <<<"$output"
	grep -q '^# measured again: [12] times that were slower or not judged' <<<"$output"
	# the file has what was printed, not what was measured again
	bench 2 "${few[@]}" -I --compare fast.h5 --retries 2 --out again.h5 || [ $? -eq 1 ]
	grep -q '^# measured again' table
	for place in 'out_of_place 15' 'in_place 27'; do
		h5dump -m %.2f -d "/${place% *}/typical" -y -o stored again.h5 >/dev/null
		# (a number is missing if a rank waited in all parts of the run)
		[ "$(tr -d ' \n' <stored | sed 's,.*nan.*,N/A,')" = "$(awk -v n="${place#* }" '$1 == 8 { print $n }' rows)" ]
	done
	export PT_COLLBENCH_DELAY=0.02
	run mpiexec -n 2 pt-collbench "${few[@]}" --compare slow.h5
	[ "$status" -eq 0 ]
	grep -q '^faster *allreduce float sum, 8 bytes' <<<"$output"
	refused 64 'calls=blocking' pt-collbench --from fast.h5 --compare fast2.h5
	echo no >text.h5
	refused 65 'text.h5' mpiexec -n 2 pt-collbench --compare text.h5
	refused 74 'none.h5' pt-collbench --from none.h5
	pt-prepare -q -t byte text.h5 -o data.h5
	refused 65 'pt-collbench: data.h5: a pt-shard file instead of' pt-collbench --from data.h5
}

@test "exit codes: what was found comes before what failed" {
	command -v gnuplot >/dev/null || skip 'no gnuplot'
	# Cases that look slower are measured again, as by default: a machine may be slow for a moment.
	few=(-b 8 -e 8 -n 4 -w 0)
	PT_COLLBENCH_DELAY=0.02 bench 2 "${few[@]}" --out old.h5
	cp old.h5 same.h5
	# FAULT DELAY ITERATIONS PLOT CODE: wrong, slower, not judged (of fewer than three iterations), a plot that fails
	while read -r fault delay n plot code; do
		rm -f new.h5
		args=(-b 8 -e 8 -n "$n" -w 0 --compare old.h5 --out new.h5)
		[ "$plot" = - ] || args+=(--plot "$plot")
		[ "$fault" = - ] || export PT_COLLBENCH_FAULT=$fault
		PT_COLLBENCH_DELAY=$delay run mpiexec -n 2 pt-collbench "${args[@]}"
		unset PT_COLLBENCH_FAULT
		echo "$fault $delay $n $plot: $status, want $code: $output"
		[ "$status" -eq "$code" ]
		[ -e new.h5 ]
		[ "$plot" != x.svg ] || [ -e x.svg ]
		rm -f x.svg
	done <<-END
		- 0.02 4 - 0
		- 0.02 1 - 65
		- 0.07 4 - 1
		allreduce:0:0 0.02 4 - 1
		allreduce:0:0 0.02 1 - 1
		allreduce:0:0 0.07 4 - 1
		- 0.02 4 none/x.svg 74
		- 0.07 4 none/x.svg 1
		allreduce:0:0 0.02 1 none/x.svg 1
		- 0.02 1 x.svg 65
		allreduce:5:0 0.02 4 - 64
	END
	cmp old.h5 same.h5
}

@test "--graph: the curves in the terminal, as of pt-compare" {
	bench 2 allreduce latency -b 8 -e 4K -f 8 "${quick[@]}" --out old.h5 --graph --width 60 --height 12
	grep -q '^ *busbw (GB/s)$' table
	grep -q '^ *o allreduce float sum$' table
	grep -q '^ *x latency float$' table
	pt-collbench --from old.h5 -g --plot-of time --marks braille --width 60 >table
	grep -q '^ *time (us)$' table
	grep -q '⠒⠒ allreduce float sum in place$' table
	[ "$(grep -c '[│┤]' table)" -eq 17 ]
	refused 64 '--graph or --plot' pt-collbench --from old.h5 --plot-of time
}

@test "--plot: svg, png and pdf" {
	command -v gnuplot >/dev/null || skip 'no gnuplot'
	bench 2 allreduce latency -b 8 -e 4K -f 8 "${quick[@]}" --out old.h5 --plot a.svg
	pt-collbench --from old.h5 --plot a.png --plot-of time
	pt-collbench --from old.h5 --plot a.pdf >/dev/null
	grep -q 'allreduce float sum' a.svg
	[ "$(head -c 4 a.png | tail -c 3)" = PNG ]
	[ "$(head -c 4 a.pdf)" = %PDF ]
}

@test "--out: a sealed file with a dataset for each column" {
	bench 2 allreduce broadcast barrier -b 8 -e 32 --out bench.h5
	[ ! -e bench.h5.tmp ]
	for column in collective size count type redop root \
		{out_of,in}_place/{time,algbw,busbw,wrong,i_min,i_max,i_p50,i_p99,i_cv,typical,noise,iters}; do
		h5ls bench.h5/$column | grep -q 'Dataset {7}'
	done
	h5dump -d /size -y -o size bench.h5 >/dev/null
	[ "$(tr -d ' ,\n' <size)" = 81632816320 ]
	h5dump -d /in_place/wrong -y -o wrong bench.h5 >/dev/null
	[ "$(tr -d ' \n' <wrong)" = 0,0,0,0,0,0,-1 ]
	h5dump -a format bench.h5 | grep -q '"pt-collbench"'
	h5dump -a ranks bench.h5 | grep -q '(0): 2'
	h5dump -a collective/names bench.h5 | grep -q '"allreduce reduce broadcast '
	h5dump -a meta_xxh3 bench.h5 | grep -q '(0): [0-9]'
}

@test "--out: earlier results are replaced, another file only by --overwrite" {
	bench 1 -e 8 --out bench.h5
	bench 1 -e 16 --out bench.h5
	h5ls bench.h5/size | grep -q '{2}'
	echo mine >text
	cp bench.h5 short.h5
	head -c 700 bench.h5 >short.h5
	for f in text short.h5; do
		cp "$f" before
		refused 74 "$f exists, but is not a result of pt-collbench; --overwrite" \
			mpiexec -n 2 pt-collbench -e 8 --out "$f"
		cmp "$f" before
	done
	bench 1 -e 8 --out text --overwrite
	h5ls text >/dev/null
}

@test "--out: what cannot be written is said before anything is measured" {
	refused 74 none/bench.h5 mpiexec -n 2 pt-collbench --out none/bench.h5
}

@test "--smoke, 1 to 4 ranks" {
	for n in 1 2 3 4; do
		mpiexec -n $n pt-collbench --smoke >said
		[ "$(tail -n 1 said)" = "OK   all checks passed" ]
		[ "$(grep -c '^OK ' said)" -eq "$(wc -l <said)" ]
		grep -q "^OK   ranks: $n$" said
		for what in allreduce reduce broadcast allgather reducescatter scatter gather \
			alltoall sendrecv barrier; do
			grep -q "^OK   $what: [36] runs, 0 wrong elements" said
		done
		grep -q "^OK   training step: gradient compared with one rank's, 0 wrong values$" said
		[ "$(grep -c 'round trip' said)" -eq $((n > 1)) ]
	done
	pt-collbench --smoke | grep -q '^OK   all checks passed'
}

@test "--smoke finds a wrong result, and another MPI's launcher" {
	PT_COLLBENCH_FAULT=gather:0:0 run mpiexec -n 2 pt-collbench --smoke
	[ "$status" -eq 1 ]
	[[ $output == *"FAIL gather: 6 runs, 6 wrong elements"* ]]
	[ "${lines[-1]}" = "FAIL a check failed; see the lines with FAIL above" ]
	for n in 1 2 3; do
		PT_COLLBENCH_FAULT=step:$((n - 1)):1599 run mpiexec -n $n pt-collbench --smoke barrier
		[ "$status" -eq 1 ]
		[[ $output == *"FAIL training step: gradient compared with one rank's, 1 wrong values"* ]]
	done
	refused 64 "OMPI_COMM_WORLD_SIZE is '4', but MPI has only 1 rank" \
		env OMPI_COMM_WORLD_SIZE=4 pt-collbench --smoke barrier
}

@test "bad usage is one message and 64" {
	refused 64 "did you mean 'allreduce'" mpiexec -n 2 pt-collbench alreduce
	refused 64 "--root 2: the rank does not exist: the group has 2 ranks" mpiexec -n 2 pt-collbench -r 2
	refused 64 "neither a rank nor all" pt-collbench -r -1
	refused 64 "did you mean 'float'" pt-collbench -d floot
	refused 64 "op:" pt-collbench -o avg
	refused 64 "more than --maxbytes" pt-collbench -b 2K -e 1K
	refused 64 "--minbytes 0: the minimum is 1" pt-collbench -b 0
	refused 64 "stepfactor" pt-collbench -f 1
	refused 64 "iters" pt-collbench -n 0
	refused 64 "unknown option" pt-collbench --minbyte-s 1
	refused 64 "--out" pt-collbench --smoke --out bench.h5
	refused 64 "latency: needs 2 ranks" pt-collbench latency
	refused 64 "expected a list such as tp=2" mpiexec -n 2 pt-collbench --split 2
	refused 64 "--split tp=2,tp=4: axis tp is given twice" mpiexec -n 4 pt-collbench --split tp=2,tp=4
	refused 64 "split tp=3" mpiexec -n 2 pt-collbench --split tp=3
	refused 64 "one rank" mpiexec -n 2 pt-collbench --split tp=1
	refused 64 "--split" pt-collbench --groups one
	refused 64 "--root 2: the rank does not exist: the group has 2 ranks" mpiexec -n 4 pt-collbench reduce -r 2 --split tp=2
	refused 64 "--calls blocking" pt-collbench --calls blocking --overlap
	refused 64 ".svg, .png, .pdf" pt-collbench --plot x.gif
	refused 64 "--smoke has no results; omit" pt-collbench --smoke --compare x.h5
	refused 64 "give a smaller --maxbytes" mpiexec -n 2 pt-collbench -e 1000T
}

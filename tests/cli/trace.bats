#!/usr/bin/env bats
# --trace: a timeline of some steps, in the trace event format.
load helpers

# The file is JSON with one event on a line.
check_format() { # FILE
	[ "$(head -n 1 "$1")" = '{"displayTimeUnit":"ms","traceEvents":[' ]
	[ "$(tail -n 1 "$1")" = ']}' ]
	sed '1d;$d' "$1" >events
	local name='"name":"[^"\\]*"' number='-?[0-9]+\.[0-9]{3}' who='"pid":[0-9]+,"tid":0'
	local id='"id2":\{"local":"0x[0-9a-f]+"\}'
	local meta='"ph":"M",'$name','$who',"args":\{'$name'\}'
	local span='"ph":"X",'$name','$who',"ts":'$number',"dur":'$number
	local operation='"ph":"[be]","cat":"[^"\\]*",'$name','$id','$who',"ts":'$number'(,"args":\{"bytes":[0-9]+\})?'
	not grep -qvE "^\\{($meta|$span|$operation)\\},?\$" events
	[ "$(grep -c '},$' events)" -eq $(($(wc -l <events) - 1)) ]
	not grep -q ',$' <(tail -n 1 events)
}

# Prints, of each rank and step: the step, its seconds, and those of the spans within it that are in no
# other.
steps_of() { # FILE
	sed -nE 's/^\{"ph":"X","name":"([^"]*)","pid":([0-9]+),"tid":0,"ts":([^,]*),"dur":([^}]*)\},?$/\2\t\3\t\4\t\1/p' "$1" |
		awk -F'\t' '
			function tell() { if (step != "") print rank, step, dur / 1e6, sum / 1e6 }
			$4 ~ /^step / { tell(); rank = $1; step = substr($4, 6); dur = $3; sum = 0; end = $2; stop = $2 + $3; next }
			$2 >= end && $2 < stop { sum += $3; end = $2 + $3 }
			END { tell() }'
}

@test "the spans of a step are its time, on every rank" {
	make_shard
	tiny_on 4 --dim 192 --layers 4 -T 64 -b 16 -m 2 -n 8 --fsdp 2 --pp 2 --log-every 1 --trace t.json --trace-steps 3:8 -o run >/dev/null
	check_format t.json
	steps_of t.json >steps
	for rank in 0 1 2 3; do printf "$rank %d\n" 3 4 5 6 7 8; done | diff - <(cut -d' ' -f1,2 steps)
	# A rank that has to wait for a processor may do so between two spans, in some steps; a span that is
	# missing is missing in all.
	awk '$4 > 1.001 * $3 { bad = 1 }
		$4 / $3 > best[$1] { best[$1] = $4 / $3 }
		END { for (r in best) { print r, best[r]; if (best[r] < 0.97) bad = 1 } exit bad }' steps
	sed -nE 's/^step=([0-9]+) .* dt=([^ ]*).*/\1 \2/p' run/journal.txt >logged # the first rank's
	awk 'NR == FNR { dt[$1] = $2; next }
		$1 == 0 && $3 > 0.98 * dt[$2] && $3 < 1.02 * dt[$2] { good++ }
		END { print good; exit !good }' logged steps
	grep -q '"name":"rank 3 fsdp=1 pp=1"' events || grep -q '"name":"rank 3 pp=1 fsdp=1"' events
	for what in 'layers.0' 'forward, micro-batch 1' 'backward, micro-batch 0' waiting data update; do
		grep -q "\"name\":\"$what\"" events
	done
	# an operation begins and ends
	for axis in fsdp pp; do
		[ "$(grep -c "\"ph\":\"b\",\"cat\":\"$axis\"" events)" -ge 8 ]
		[ "$(grep -c "\"ph\":\"b\",\"cat\":\"$axis\"" events)" -eq "$(grep -c "\"ph\":\"e\",\"cat\":\"$axis\"" events)" ]
	done
	tiny_on 4 --dim 192 --layers 4 -T 64 -b 16 -m 2 -n 8 --fsdp 2 --pp 2 --log-every 1 -o plain >/dev/null
	same run plain
}

@test "of workers that train apart, the first; a run that is shorter; what is refused" {
	make_shard
	tiny_on 2 -n 6 --edit-workers 2 --edit-warmup-steps 1 --edit-sync-interval 2 --trace t.json --trace-steps 2:4 -o run >/dev/null
	check_format t.json
	[ "$(steps_of t.json | cut -d' ' -f1,2 | tr '\n' ,)" = '0 2,0 3,0 4,' ]
	reports 74 'no/t.json: No such file' tiny -n 4 --trace no/t.json -o other
	[ ! -e other ]
	# a run that is shorter than the steps ends with what there is
	tiny -n 4 --trace t.json --trace-steps 3:9 -o short >/dev/null
	check_format t.json
	[ "$(steps_of t.json | cut -d' ' -f2 | tr '\n' ,)" = '3,4,' ]
	for steps in 0 3: 5:4 x 3:4:5; do
		reports 64 'give the first step and the last' tiny --trace t.json --trace-steps $steps -o bad
	done
	tiny -n 2 --trace t.json -o two >/dev/null
	[ "$(steps_of t.json | cut -d' ' -f2)" = 2 ]
	tiny -n 2 --resume auto --steps 8 --trace t.json --trace-steps 1:2 -o two 2>err >/dev/null
	grep -q 'the run had no step from 1 to 2' err
	code_of 1 tiny --lr 1e30 --clip 0 --warmup 0 -n 60 --trace t.json --trace-steps 2:50 -o nan
	check_format t.json
	reports 64 'the run has only 4 steps' tiny -n 4 --trace t.json --trace-steps 5 -o bad
	reports 64 'needs --trace' tiny --trace-steps 3 -o bad
}

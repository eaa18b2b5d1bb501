#!/usr/bin/env bats
# pt-compare and the logs of other trainers, in texts made here in their form.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	printf '[titan] - INFO - \e[31mstep: %2d  \e[32mloss: %8.5f  \e[33mgrad_norm:  1.5000  memory:  1.50GiB(1.4%%)  tps: 1,234\e[0m\n' \
		1 8.25125 2 8.12375 3 7.75125 >titan
	printf '%d %s\n' 1 8.25125 2 8.12375 3 7.75125 >losses
}

@test "logs of two formats with the same values are identical" {
	run pt-compare titan losses
	[ "$status" -eq 0 ]
	[[ $output == *"loss       identical, 3 values"* ]]
	printf 'iter %d: loss %s, time 1.50ms, mfu 2.00%%\n' 1 8.25125 2 8.12375 3 7.75125 >nano
	pt-compare -q titan nano
}

@test "seconds by time stamps, tokens by samples, and the name of a run within a file" {
	local i
	for i in 1 2 3 4; do
		echo "[titan] 2026-12-31 23:59:5$((i + 5)),500 - root - INFO - step: $i  loss: 1$i.5  tps: 9"
	done >stamps
	pt-compare -x seconds -g --width 60 --height 8 stamps | grep -q '0 .* seconds'
	code_of 2 pt-compare -x seconds -g titan titan
	says "no column 'dt' or 'elapsed', so loss cannot be drawn over seconds"
	for i in 1 2 3; do
		echo " iteration $i/ 3 | consumed samples: $((i * 32)) | lm loss: 1$i.5 |"
	done >samples
	(echo '  seq_length ........... 4096' && cat samples) >length
	pt-compare -x samples -g --width 60 --height 8 samples | grep -q samples
	code_of 2 pt-compare -x tokens -g samples samples
	pt-compare length --export - | grep -q '^3,393216,96,13.5$'
	printf '%s\n' 'Step,one run - loss,one run - loss__MIN,two - loss,two - loss__MIN' \
		{1..40},2.5,2.5,3.5,3.5 >runs.csv
	reports 2 'vacuous: loss of one run is constant' pt-compare -q runs.csv
}

@test "a picture of a run whose name would end a text in XML" {
	cp titan 'a]]>b'
	pt-compare -q -p x.svg titan 'a]]>b'
	grep -q 'a]]&gt;b' x.svg
	not grep -q ']]>' x.svg
}

@test "a log of another trainer in a pipe, behind a prefix and in colors" {
	for i in 1 2 3; do
		sleep 0.1
		sed -n "${i}s/\([0-9]*\) \(.*\)/[INFO] - \x1b[1mstep=\1\x1b[0m loss=\2 dt=0.5 mfu=40.5/p" losses
	done | pt-compare -q titan -
}

@test "a log that differs, at its step" {
	sed 's/8.12375/8.12376/' losses >other
	run pt-compare titan other
	[ "$status" -eq 1 ]
	[[ $output == *"first at step 2: 8.12375, 8.12376"* ]]
}

@test "rows of a table are sorted, and those that a console log replaces are counted" {
	tac losses | tr ' ' , >descending.csv
	pt-compare -q titan descending.csv
	local i
	for i in 1 2 3 4 5 1 2 3; do
		echo "iter $i: loss 8.$i, time 1.50ms, mfu 2.00%"
	done >resumed
	run pt-compare resumed resumed
	[ "$status" -eq 0 ]
	[[ $output == *"3 values"* ]]
	[[ $output == *"resumed: 4 rows are ignored"* ]]
}

@test "JSON, a table and JSON lines are detected" {
	echo '{"lm loss": {"start_step": 1, "end_step": 3, "step_interval": 1, "values": {"1": 8.25125, "2": 8.12375, "3": 7.75125}}}' >golden.json
	echo '{"1": {"lm loss": 8.25125}, "2": {"lm loss": 8.12375}, "3": {"lm loss": 7.75125}}' >bridge.json
	echo '{"log_history": [{"loss": 8.25125, "step": 1}, {"loss": 8.12375, "step": 2}, {"loss": 7.75125, "step": 3}]}' >trainer_state.json
	(echo _step,train/loss && tr ' ' , <losses) >table.csv
	sed 's/\(.*\) \(.*\)/{"step": \1, "loss": \2}/' losses >lines.jsonl
	mkdir trainer
	cp trainer_state.json trainer
	pt-compare -q titan golden.json bridge.json trainer_state.json trainer table.csv lines.jsonl
}

# A log of each format with steps 1 and 3, and in between a loss, perhaps at another step.
in_formats() { # STEP LOSS
	local at=("1 8.25125" "$1 $2" "3 7.75125") step loss
	rm -f in.*
	for row in "${at[@]}"; do
		read -r step loss <<<"$row"
		echo "step=$step loss=$loss lr=0.5" >>in.pt
		echo "[x] - step=$step loss=$loss dt=0.5 mfu=40.5" >>in.wordplay
		echo "step: $step  loss: $loss  grad_norm: 1.5  tps: 1,234" >>in.torchtitan
		echo "iter $step: loss $loss, time 1.50ms, mfu 2.00%" >>in.nanogpt
		echo "s:$step trl:$loss lr:0.5" >>in.llmc
		echo " iteration $step/ 100 | learning rate: 0.5 | lm loss: $loss | x: 1 |" >>in.megatron
		echo "completed step: $step, seconds: 0.5, total_weights: 6, loss: $loss" >>in.maxtext
		echo "$step $loss" >>in.losses
		[ -s in.csv ] || echo 'step;loss;lr' >in.csv
		echo "$step;$loss;0.5" >>in.csv
		echo "{\"step\": $step, \"loss\": \"$loss\", \"lr\": 0.5}" | sed -E '1s/"(8.25125|7.75125)"/\1/' >>in.jsonl
	done
}

@test "values that cannot be read are counted and shown, and are no agreement" {
	local bad log
	for bad in 1e999 0x2 2abc 2,5 -1e999; do
		in_formats 2 "$bad"
		for log in in.*; do
			code_of 1 pt-compare "$log" "$log"
			says "warning: $log: 1 value or row cannot be read and is ignored; the first: loss '"
			says "$bad"
			says '1 in the control and 1 in the test cannot be read, the first at step 2'
			says 'verdict: different: '
			code_of 0 pt-compare -q --common "$log" "$log"
			reports 1 '"unread": 2' pt-compare --json "$log" "$log"
		done
	done
}

@test "a second step in a row, which cannot be read, is not the row's" {
	printf '[x] - step=%d loss=2.5 dt=0.5 step=1x\n' 10 20 >log
	pt-compare --export log.csv log 2>err
	grep -q "2 values or rows cannot be read" err
	[ "$(cut -d, -f1 log.csv | tr '\n' ' ')" = 'step 10 20 ' ]
}

@test "a step that cannot be read is a row that cannot be read" {
	local bad log
	for bad in 2.5 2,5 2e99 0.5; do
		in_formats "$bad" 8
		for log in in.*; do
			[ "$log" != in.jsonl ] || [[ $bad != *,* ]] || continue
			code_of 1 pt-compare "$log" "$log"
			says "1 value or row cannot be read and is ignored; the first: a row '"
			says '2 rows cannot be read'
			code_of 0 pt-compare -q --common "$log" "$log"
		done
	done
	# in a table with commas, a decimal comma makes a field more
	printf '%s\n' step,loss 1,8.5 2,8,25 3,7.5 >comma.csv
	reports 1 "a row '2,8,25'" pt-compare comma.csv comma.csv
}

@test "nothing that can be read is nothing to compare" {
	printf 'step=%d loss=%s lr=0.5\n' 1 2,5 2 1e999 3 0x2 >none
	reports 2 'not every run has readable values of loss' pt-compare none none
	printf 'iter %d: loss %s, time 1.50ms\n' 1 2abc 2 3abc >none
	code_of 2 pt-compare none none
	# words stand for no value
	printf '%s\n' step,loss,lr 1,4,1 2,,1 3,None,1 4,-,1 5,3,1 >words.csv
	code_of 0 pt-compare words.csv words.csv
	not grep -q 'cannot be read' <<<"$output"
}

@test "the line of an evaluation replaces none of its step's" {
	for i in {1..9}; do
		echo "{\"step\": $i, \"epoch\": 0.$i, \"loss\": $((10 - i))}"
		echo "{\"step\": $i, \"epoch\": 0.$i, \"val_loss\": $((11 - i))}"
	done >both.jsonl
	code_of 0 pt-compare both.jsonl both.jsonl
	[[ $output != *'not used'* ]]
	cat both.jsonl both.jsonl >twice.jsonl
	reports 0 'twice.jsonl: 9 rows are ignored' pt-compare both.jsonl twice.jsonl
}

@test "what a progress bar says twice replaces nothing" {
	for i in {1..9}; do
		printf '1|%d|Loss: %d.5:  1%%|  |\r1|%d|Loss: %d.5:  2%%|  |\r' "$i" $((10 - i)) "$i" $((10 - i))
	done >bar
	reports 0 'loss       identical, 9 values' pt-compare bar bar
	[[ $output != *'not used'* ]]
}

@test "no log: what is wrong, and exit 2" {
	echo 'The quick brown fox' >text
	run pt-compare titan text
	[ "$status" -eq 2 ]
	[[ $output == *"text: unknown log format"* ]]
	echo '{"log_history": [' >cut.json
	run pt-compare titan cut.json
	[ "$status" -eq 2 ]
	[[ $output == *"cut.json: line "* ]]
}

@test "TRL's num_tokens is the number of tokens since the start: other data is not comparable" {
	printf '{"step":%s,"loss":2.5,"num_tokens":%s}\n' 1 18080 2 36080 >a.jsonl
	printf '{"step":%s,"loss":2.25,"num_tokens":%s}\n' 1 20690 2 41000 >b.jsonl
	reports 2 'verdict: not comparable: tokens after step 1: 18080, 20690' pt-compare a.jsonl b.jsonl
}

@test "a report shows no number of ranks that a log does not state; --follow names a log that never came" {
	printf 'step,loss\n1,2.5\n2,2.25\n' >a.csv
	printf '# meta ranks = 2\nstep=1 loss=2.5\nstep=2 loss=2.25\n' >b
	code_of 0 pt-compare a.csv b --report page.md
	grep -qx '| ranks | - | 2 |' page.md
	reports 2 'nope.csv: the log did not appear' pt-compare --follow --follow-timeout 0.1 a.csv nope.csv
}

@test "logs that are not read as they are: compressed ones, and those of W&B" {
	printf 'BZh91AY&SY%040d' 0 >log.gz # as bzip2 begins
	code_of 2 pt-compare log.gz log.gz
	says 'log.gz: compressed by bzip2, which is not supported; decompress it: bzcat log.gz >log'
	reports 2 'standard input: compressed by bzip2' pt-compare - log.gz <log.gz
	mkdir -p wandb/run-1/files
	echo text >wandb/run-1/files/output.log
	printf ':W&B\341\276\0' >wandb/run-1/run-1.wandb
	code_of 2 pt-compare wandb/run-1 log.gz
	says 'wandb/run-1: W&B directories are not supported; specify wandb/run-1/files/output.log'
	reports 2 'wandb: W&B directories are not supported; specify wandb/run-1/files/output.log' pt-compare wandb log.gz
	echo '{"_step": 1, "loss": 2}' >wandb/run-1/files/wandb-history.jsonl
	reports 2 "specify wandb/run-1/files/wandb-history.jsonl, which has the run's history" pt-compare wandb/run-1 log.gz
	rm -r wandb/run-1/files
	reports 2 "wandb/run-1: the W&B directory has no output of the run; export" pt-compare wandb/run-1 log.gz
	code_of 2 pt-compare wandb/run-1/run-1.wandb log.gz
	says 'a transaction log of W&B, which is not supported; use the run'
}

@test "lines of a program that is not known: what was read as step and loss" {
	local e i
	for e in 1 2; do
		for i in 100 200 300; do echo "Epoch [$e/2], Step [$i/300], Loss: $((9 - e)).$i"; done
	done >loop
	pt-compare --export - loop >out 2>err
	printf '%s\n' step,loss,epoch 100,8.1,1 200,8.2,1 300,8.3,1 400,7.1,2 500,7.2,2 600,7.3,2 | diff - out
	[ "$(cat err)" = "pt-compare: warning: loop: unknown log format: 'Step' (restarts in each epoch of 300)\
 is read as the step, and 'Loss' as the loss; specify --pattern or --format to read other numbers" ]
	# not of a format that was asked for, nor where a known format has a row
	pt-compare --format plain --export - loop 2>&1 | diff - out
	echo '[x] - step=5 loss=2.5 dt=0.5 mfu=40' >>loop
	pt-compare --export - loop 2>&1 | grep -v 'dt,\|5,2.5' | diff - /dev/null
}

@test "prose and lines without a rising step are no log" {
	cat >prose <<-'EOF'
		In step 1 we minimise the loss, which is 2.5 at first.
		Step 2: lower the learning rate to 0.1, until a loss 2.4 is reached.
		In step 3 there is nothing to see, loss 9 of them.
		Then at step 4, loss: 3 of the customers, and 5 more.
		Epoch 5 had a loss 12, nobody knows why 3
	EOF
	reports 2 'prose: unknown log format' pt-compare prose prose
	printf 'step %d loss %s\n' 1 2.5 2 2.25 1 2 2 1.75 1 1.5 2 1.25 >again
	reports 2 "such as --pattern 'loss\\s*(?<loss>\\S+)'" pt-compare again again
	printf 'step %d loss %s\n' 1 2.5 2 2.25 3 2 >few
	reports 2 "such as --pattern 'step\\s*(?<step>\\d+).*?loss\\s*(?<loss>\\S+)'" pt-compare few few
}

# Reads a log by the pattern that the message proposes.
by_proposal() { # LOG
	local pattern
	pattern=$(pt-compare --export - "$1" 2>&1 | sed -n "s/.*such as --pattern '\(.*\)'$/\1/p")
	pt-compare --pattern "$pattern" --export - "$1"
}

@test "a log that is not read: a pattern that reads it, or the columns of a table" {
	printf '[gpu 0] round %d/3 (it'"'"'s) nll %s gnorm 1.5 took 250 ms\n' 1 8.5 2 8.25 3 7.5 >nll
	by_proposal nll | diff - <(printf '%s\n' step,loss 1,8.5 2,8.25 3,7.5)
	printf '{%s} after [ %d] steps, $cost: %s\n' a 8 8.5 b 9 8.25 c 10 7.5 >cost
	by_proposal cost | diff - <(printf '%s\n' step,loss 8,8.5 9,8.25 10,7.5)
	printf '%d/9 [nll] %s, x: 2.5\n' 1 8.5 2 8.25 3 7.5 >first
	by_proposal first | head -n 1 | grep -qx step,loss
	printf 'epoch,  train/x, val/x,a,b,c,d,e\n0, 2.5, 3,,,,,\n1, 2, 2,,,,,\n' >table.csv
	reports 2 'table.csv: none of the columns epoch, train/x, val/x, a, b, c and 2 more is a known loss; specify --column loss=NAME' \
		pt-compare table.csv table.csv
	pt-compare --column loss=train/x --export - table.csv | grep -q '^1,2'
}

@test "a table of runs is no history; an export of W&B without a last line break is complete" {
	printf '"Name","State","Created","Runtime","train/loss"\n"a-1","finished","2026-01-01T10:00:00.000Z","900","2.5"\n' >wandb.csv
	reports 2 'wandb.csv: the table has a row per run, not per step; export the chart of a metric, or specify --format csv' \
		pt-compare wandb.csv wandb.csv
	pt-compare -q --format csv wandb.csv wandb.csv
	printf '%s\n' method,loss,acc 'base line,2.5,0.5' 'ours,2.25,0.75' 'ours again,2.25,0.75' >methods.csv
	reports 2 'methods.csv: the table has a row per run, not per step' pt-compare methods.csv methods.csv
	# words that repeat, and a table with steps, are histories
	printf '%s\n' phase,loss train,2.5 train,2.25 >phases.csv
	pt-compare -q phases.csv phases.csv
	printf '%s\n' note,step,loss one,1,2.5 two,2,2.25 >notes.csv
	pt-compare -q notes.csv notes.csv
	printf '"Step","a - loss"\n"1","2.5"\n"2","2.25"' >export.csv
	pt-compare --column 'loss=a - loss' --export - export.csv 2>&1 | diff - <(printf '%s\n' step,loss 1,2.5 2,2.25)
	printf '"Step","a - loss"\n"1","2.5"\n"2","2.2' >cut.csv
	pt-compare --column 'loss=a - loss' --export - cut.csv 2>&1 | grep -q 'no line break'
}

@test "compressed logs are read, in a pipe too, and one that would fill the disk is refused" {
	local pack
	for pack in gzip zstd; do
		$pack -c titan >log.$pack
		pt-compare -q titan log.$pack
		pt-compare -q titan - <log.$pack
		head -c -9 log.$pack >cut.$pack
		reports 2 "cut.$pack: the compressed data end too early" pt-compare titan cut.$pack
	done
	printf '%s\n' 'Step,a - loss,a - loss__MIN,b - loss,b - loss__MIN' {1..9},2.5,2.5,3.5,3.5 | gzip >runs.csv.gz
	[ "$(pt-compare --export - runs.csv.gz | cut -d, -f1 | sort -u | tr '\n' ' ')" = 'a b run ' ]
	printf '# meta ranks = 1\nstep=1 loss=8.25125\nstep=2 loss=8.12375\nstep=3 loss=7.75125\n' | gzip >own.gz
	pt-compare -q titan own.gz
	head -c 400000000 /dev/zero | zstd -q -1 >bomb
	reports 2 'bomb: larger than ' pt-compare titan bomb
	printf '\211HDF\r\n\032\n' | gzip >run.h5.gz
	reports 2 'run.h5.gz: compressed HDF5 is not supported' pt-compare titan run.h5.gz
}

@test "a row that is cut off or mixed with other output is counted" {
	local i
	for i in {1..9}; do
		echo "step $i/9 | loss 8.${i}5125 (+nanz)| norm 1.5 (+nanz)| lr 3e-4 | 5.5 ms | 40.5% bf16 MFU | 12 tok/s"
	done >llmc
	pt-compare --export - llmc 2>&1 | grep -c , | grep -qx 10
	sed '5s/^step/step/; 5s/| norm.*/| norm 1.5 (+nste/; 7s/^step 7/e: cannot open/' llmc >cut.log
	pt-compare --export - cut.log >out 2>err
	[ "$(cut -d, -f1 out | tr '\n' ' ')" = 'step 1 2 3 4 6 8 9 ' ]
	[ "$(cat err)" = "pt-compare: warning: cut.log: 2 rows are ignored, because other output cuts or mixes with them:\
 the first is 'step 5/9 | loss 8.55125 (+nanz)| norm 1.'" ]
	# two ranks print into each other
	sed '5{N;s/| norm.*\n/| norm 1./}' llmc >mixed
	pt-compare --export - mixed 2>&1 | grep -q "mixed: 1 row is ignored, because other output cuts or mixes with it"
	printf ' iteration %d/ 9 | consumed samples: 32 | learning rate: 1.5E-04 | lm loss: %d.5 | loss scale: 1.0 |\n' 1 8 2 7 3 6 >mega
	sed -i '2s/.*samples/ples/' mega
	pt-compare --export - mega 2>&1 | grep -q "mega: 1 row is ignored"
}

lab_log() { # LOSS
	printf '[gpu 0] round %d/3 nll %s gnorm 1.5 took 250 ms\n' 1 8.5 2 "$1" 3 7.5
	echo '[gpu 0] dev round 3 nll 8'
}

@test "a format of a file: that of pt-compare(1), and the log that it describes" {
	sed -n '/^# \[gpu 0\] round/,/^\.Ed/p' "$BATS_TEST_DIRNAME/../../man/pt-compare.1" | grep -v '^\.Ed' >lab.format
	lab_log 8.25 >a.log
	lab_log 8.125 >b.log
	reports 2 'a.log: unknown log format' pt-compare a.log a.log
	code_of 0 pt-compare --format lab.format a.log a.log
	pt-compare --format ./lab.format --export - a.log >out
	printf '%s\n' step,loss,grad_norm,val_loss,dt 1,8.5,1.5,,0.25 2,8.25,1.5,,0.25 3,7.5,1.5,8,0.25 | diff - out
	reports 1 'first at step 2: 8.25, 8.125' pt-compare --format lab.format a.log b.log
	# a run of pt-train is still one
	printf '# meta ranks = 1\nstep=%d loss=%s\n' 1 8.5 2 8.25 3 7.5 >run
	code_of 0 pt-compare --format lab.format run a.log
	reports 2 'titan: no line matches a format of lab.format' pt-compare --format lab.format titan a.log
	# a pipe, a log that grows, one of share/pt/logs
	pt-compare -q --format lab.format a.log - <a.log
	code_of 0 timeout 30 pt-compare --follow --follow-timeout 0.1 --format lab.format a.log a.log
	mkdir -p share/logs
	cp lab.format share/logs
	PT_SHARE=$PWD/share code_of 0 pt-compare a.log a.log
	PT_SHARE=$PWD/share code_of 0 pt-compare --format lab a.log a.log
	PT_SHARE=$PWD/share code_of 0 pt-compare titan losses
}

@test "a format that is wrong: the file, the line, and what it should be" {
	printf 'format lab\ntrain "round"\n    "nll " loss mss\n' >lab.format
	reports 65 "lab.format: line 3: 'mss': the unit is not supported here" pt-compare --format lab.format titan titan
	mkdir -p share/logs
	cp lab.format share/logs
	PT_SHARE=$PWD/share code_of 65 pt-compare titan titan
	says "share/logs/lab.format: line 3: 'mss'"
	rm share/logs/lab.format
	mkfifo share/logs/lab.format
	PT_SHARE=$PWD/share code_of 65 timeout 10 pt-compare titan titan
	reports 74 'none.format: No such file' pt-compare --format none.format titan titan
	reports 64 "--format: 'torchtitn' is none of auto, pt, wordplay, " pt-compare --format torchtitn titan titan
	says "did you mean 'torchtitan'?"
}

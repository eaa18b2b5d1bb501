#!/usr/bin/env bats
# pt-compare: reports as a page and as Markdown, speed, runs that are followed.
load helpers

log_of() { # SHIFT ROWS: a log with speeds
	awk -v shift="$1" -v n="$2" 'BEGIN {
		for (i = 1; i <= n; i++)
			printf "step=%d tokens=%d loss=%.7g grad_norm=%.7g dt=%.6g tps=%.6g mfu=0.4 mem=1048576 sent=1000%s\n",
				i, 64 * i, 2 + 2 / i + shift, 1 + i % 7 / 9, 0.01 + i % 5 / 1e4, 6400 - i % 5 * 60,
				i % 10 ? "" : " val_loss=" 2 + 2 / i + shift
	}'
}

# A log of two ranks, with options.
head_of() { # LAYOUT DTYPE
	printf '# meta ranks = 2\n# meta layout = %s\n# meta device = cpu\n# config lr = 0.001\n# config dtype = %s\n' "$1" "$2"
}

# The page after its script has run, as text; nothing without a browser.
browser() {
	local b
	for b in chromium chromium-browser chromium-headless-shell google-chrome; do
		command -v "$b" && return
	done
	return 1
}

dom_of() { # FILE
	timeout 60 "$(browser)" --headless --no-sandbox --disable-gpu --enable-logging=stderr --v=0 \
		--user-data-dir="$BATS_TEST_TMPDIR/profile" --virtual-time-budget=3000 \
		--dump-dom "file://$PWD/$1" 2>messages
}

@test "--report .html: tables, curves and data in one file that asks for nothing" {
	{ head_of fsdp=2 fp32 && log_of 0 60; } >a
	{ head_of tp=2 bf16 && log_of 0 60; } >b
	{ head_of tp=2 bf16 && log_of 0.5 60; } >c
	code_of 1 pt-compare a b c --report r.html
	for text in 'fsdp=2</td>' 'tp=2</td>' 'default</td>' 'bf16</td>' '40 %' '1.00 MiB' \
		'identical bit for bit' 'worse' 'the same' 'Options and environment'; do
		grep -qF "$text" r.html
	done
	not grep -oE '(src|href)="[^#]|url\([^#]|@import|https?://[^w]' r.html # (the namespace of SVG is no address)
	balanced r.html
	code_of 64 pt-compare a b --report r.htm
	[ "$output" = "pt-compare: --report: 'r.htm' ends in none of .html, .md" ]
	reports 2 'a/r.html: Not a directory' pt-compare a b --report a/r.html
}

# What a page shows without its script: prints a line for each figure, "TITLE|NOTE|curves|bands|y labels|x labels", and
# one for each run, "NAME|sparkline|badge|reason"; fails if the data has other figures, or a place is no number.
shown() { # FILE
	python3 - "$1" <<-'END'
		import sys, re, json, html
		page = open(sys.argv[1], errors="replace").read()
		data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
		text = lambda s: html.unescape(re.sub(r"<[^>]*>", "", s))
		figures = re.findall(r"<figure.*?</figure>", page, re.S)
		assert len(figures) == len(data["figures"]), len(figures)
		for f, d in zip(figures, data["figures"]):
		    title, note = (text(re.search(r, f, re.S)[1]) for r in (r"<b>(.*?)</b>", r'class="note">(.*?)</span>'))
		    assert title == d["title"], (title, d["title"])
		    assert len(d["series"]) == len(data["series"]) and len(d["runs"]) == len(data["runs"])
		    paths = re.findall(r'<path class="(curve|band)" d="([^"]*)"/>', f)
		    for kind, path in paths:
		        assert re.fullmatch(r"M-?[\d.]+ -?[\d.]+(L-?[\d.]+ -?[\d.]+)*(h0)?", path), path
		    y, x = (re.search(r'<div class="%s">(.*?)</div>' % c, f)[1].count("<span") for c in "yx")
		    print(title, note, *(sum(k == w for k, _ in paths) for w in ("curve", "band")), y, x, sep="|")
		for row in re.findall(r"<tr><th><bdi.*?</tr>", page, re.S):
		    print(text(re.search(r"<bdi[^>]*>(.*?)</bdi>", row)[1]), row.count('class="spark"'),
		        text(re.search(r'<span class="badge.*?</span>', row)[0]),
		        text((re.search(r'<span class="reason">.*?</span>', row) or [""])[0]), sep="|")
	END
}

# A loss that falls quickly at first, a column of another program, and many rows of noise.
noisy_of() { # SEED ROWS SHIFT
	awk -v seed="$1" -v n="$2" -v shift="$3" 'BEGIN {
		srand(seed)
		for (i = 1; i <= n; i++)
			printf "step=%d tokens=%d loss=%.7g grad_norm=%.6g dt=0.5 tps=%.6g\n", i, 64 * i,
				2 + 9 * exp(-i / 4) + rand() / 20 + shift, 1 + 5 / i, 6400 + rand() * 100
	}'
}

@test "the page without its script: figures of all columns, a sparkline and a verdict of each run, short names" {
	command -v python3 >/dev/null || skip 'no python3'
	mkdir -p runs/one/long/path runs/two/long/path
	{ head_of fsdp=2 fp32 && noisy_of 1 300 0; } >runs/one/long/path/log.txt
	noisy_of 2 300 1 | sed 's/^step=300 .*/step=300 loss=2.5 dt=0.5/' >runs/two/long/path/log.txt
	code_of 1 pt-compare runs/*/long/path/log.txt --report r.html --report r.md --graph --marks ascii
	shown r.html >page
	# the first steps are outside of the range, which is said
	grep -qE '^loss\|[0-9]+ of 600 points are outside the graph: [0-9.]+ to [0-9.]+\|2\|0\|[3-9]\|[3-9]$' page
	grep -qE '^loss: test − control\|.*\|1\|0\|' page
	for column in grad_norm dt tps; do
		grep -qE "^$column\|.*\|2\|0\|" page
	done
	grep -qE '^one\|1\|control\|$' page
	grep -qE '^two\|1\|worse\|$' page # (the summary has the reason)
	grep -qF '<h1>two against one</h1>' r.html
	grep -qF '<p class="note">in runs/</p>' r.html
	grep -qE 'class="reason">[^<]*(<a href="#step=[0-9]+">step [0-9]+</a>)?' r.html
	grep -qF '<a href="#step=1">step 1</a>' r.html # of the comparison
	grep -qF '<li><svg class="sample"' r.html
	grep -qF '**two** against one' r.md
	grep -qE '^     \+ two$' <<<"$output"
	[[ $output == *'points are outside the graph: '* ]]
	# with all of its values
	code_of 1 pt-compare runs/*/long/path/log.txt --report r.html --whole-range --graph
	shown r.html >page
	grep -qE '^loss\|\|2\|0\|' page
	[[ $output != *outside* ]]
	# over another axis, which one of the logs does not have
	code_of 1 pt-compare runs/*/long/path/log.txt --report r.html --axis bytes --column grad_norm
	shown r.html >page
	grep -qE '^grad_norm\|no values\|0\|0\|' page
	grep -qF '<bdi>one</bdi> (control) (no bytes)' r.html
	code_of 1 pt-compare runs/*/long/path/log.txt --report r.html --axis seconds
	shown r.html | grep -qE '^tps\|.*\|2\|0\|'
	# one run alone
	reports 0 'is shown; nothing is compared' pt-compare runs/one/long/path/log.txt -o r.html -o r.md
	shown r.html >page
	[ "$(grep -c '|control|' page)" -eq 1 ]
	not grep -q 'test − control' page
	not grep -qF 'id="h-speed"' r.html
	balanced r.html
}

@test "replicas are a mean and a band; runs of several verdicts have their reasons in the table" {
	command -v python3 >/dev/null || skip 'no python3'
	for i in 1 2 3 4 5; do
		noisy_of $i 100 0 >run$i
	done
	noisy_of 6 100 3 >run6
	noisy_of 7 100 4 >run7
	pt-compare -q --control run[123] --test run[45] -o r.html -g --marks ascii >out || [ $? -eq 3 ]
	shown r.html >page
	grep -qE '^loss\|.*\|2\|2\|' page
	grep -qF '<bdi>mean of 3 controls</bdi>' r.html
	grep -qF 'o mean of 3 controls' out
	grep -qF '+ mean of 2 tests' out
	[ "$(grep -c '^run[1-5]|1|' page)" -eq 5 ]
	pt-compare -q --control run[123] --test run[45] --each-run -g --marks ascii >out || [ $? -eq 3 ]
	grep -q '% run5' out || grep -q '# run5' out
	not grep -q 'mean of' out
	# four tests by themselves, of which two are worse at different values
	code_of 1 pt-compare --control run[123] -o r.html run[4567]
	shown r.html >page
	grep -qE '^loss\|.*\|5\|1\|' page
	[ "$(grep -cE '^run[67]\|1\|worse\|.+' page)" -eq 2 ]
	if command -v gnuplot >/dev/null; then
		code_of 1 pt-compare -q --control run[123] -p r.svg run[4567]
		grep -q '>mean of 3 controls<' r.svg
	fi
}

@test "the page in a browser: cursor, axes, a link to a step, no error" {
	browser >/dev/null || skip 'no chromium'
	{ head_of fsdp=2 fp32 && log_of 0 60; } >a
	{ head_of tp=2 bf16 && log_of 0.5 60; } >b
	log_of 0.1 60 >c
	code_of 1 pt-compare --control a b --test c --report r.html
	dom_of r.html >dom
	not grep -iE 'uncaught|error.*r\.html' messages
	grep -q '<option value="bytes">' dom
	[ "$(grep -o '<input type="checkbox">' dom | wc -l)" -ge 2 ] # of the legend
	dom_of 'r.html#step=20' >dom
	grep -q 'loss, step 20; mean of 2 controls 2.35 (2.1 to 2.6); c 2.2 Δ -0.15' dom
	# what a user would do, by keys and the form
	sed 's|^addEventListener("hashchange", follow);|&\
for (const [id, value] of [["axis", "tokens"], ["smooth", 50]]) {\
	$(id).value = value; $(id).dispatchEvent(new Event(id === "axis" ? "change" : "input")); }\
for (const id of ["log", "whole", "each"]) $(id).click();\
const press = key => plots[0].svg.dispatchEvent(new KeyboardEvent("keydown", {key}));\
setTimeout(() => { for (const k of ["ArrowRight", "ArrowRight", "+", "Enter"]) press(k); });|' r.html >used.html
	dom_of used.html >dom
	not grep -iE 'uncaught|error.*used\.html' messages
	grep -q 'loss, step 2, tokens 128; mean of 2 controls 3.25 (3 to 3.5); c 3.1 Δ -0.15' dom
	[ "$(grep -o '<path class="thin"' dom | wc -l)" -ge 2 ]
	not grep -qE ' d="[^"]*(NaN|Infinity)' dom
}

@test "no text of a log is part of the page or of the Markdown" {
	name=$'<script>alert(1)</script>|`x`"\u202e\xff step 5'
	{ head_of '</script><script>alert(2)</script>' '"><img src=x onerror=alert(3)>' && log_of 0 20; } >"${name//\//_}"
	log_of 0 20 >b
	code_of 0 pt-compare "${name//\//_}" b --report r.html --report r.md
	[ "$(grep -o '<script' r.html | wc -l)" -eq 2 ]
	[ "$(grep -o '</script' r.html | wc -l)" -eq 2 ]
	not grep -q '<img' r.html
	not grep -q $'\u202e' <(sed '/id="data"/,/<\/script>/d' r.html)
	not grep -qE '(^|[^\\])<(script|img)' <(grep -av '^    ' r.md)
	balanced r.html
	if browser >/dev/null; then
		dom_of r.html >dom
		not grep -iE 'uncaught|error.*r\.html' messages
	fi
}

@test "--report .md: a table, the comparison, a graph, differences" {
	{ head_of fsdp=2 fp32 && log_of 0 60; } >a
	{ head_of tp=2 bf16 && log_of 0 60; } >b
	code_of 0 pt-compare a b --report r.md
	grep -qF '| Run | Layout | Techniques | Tokens/s | MFU | Peak memory | Verdict |' r.md
	grep -qF '| a | fsdp=2 | default | 6280 | 40 % | 1.00 MiB | control |' r.md
	grep -qF '| b | tp=2 | bf16 | 6280 | 40 % | 1.00 MiB | identical bit for bit |' r.md
	grep -qF '| dtype | fp32 | bf16 |' r.md
	grep -qE '^    +@ several curves' r.md
	grep -qE '^      loss +identical, 60 values' r.md
}

@test "the table has the speed that the logs have; without one there is no section of it" {
	for r in a b; do
		for i in $(seq 30); do
			echo "[titan] - INFO - step: $i  loss:  3.${i}  memory:  1.50GiB(1.44%)  tps: 7,000  tflops: 0.51  mfu: 35.00%"
		done >$r.log
		printf 'step,loss\n1,3\n2,2.9\n' >$r.csv
	done
	pt-compare a.log b.log --report speed.html --report speed.md
	grep -q 'Tokens/s per rank' speed.html
	grep -q '| Tokens/s per rank |' speed.md
	grep -q '| 7000 | 35 % |' speed.md
	grep -q 'id="h-speed"' speed.html
	pt-compare a.csv b.csv --report none.html
	[ "$(grep -c 'id="h-speed"' none.html)" -eq 0 ]
	# 35 % are 0.35
	pt-compare a.log --export - -y mfu | tail -1 | grep -qx '30,0.35'
}

@test "a page of a hundred thousand rows is small" {
	log_of 0 100000 >a
	sed 's/^\(step=77777 .*\) loss=[^ ]*/\1 loss=7/' a >b
	code_of 1 timeout 100 pt-compare -q a b --report r.html
	[ "$(stat -c %s r.html)" -lt 1500000 ]
	[ "$(grep -o 'L' r.html | wc -l)" -lt 100000 ]
	# the one value that differs is among the extremes of its group
	grep -qE '"hi":\[[^]]*\b7\b' r.html
}

@test "--speed: medians and noise, no difference where there is none" {
	log_of 0 100 >a
	sed 's/ tps=[^ ]*/ tps=3000/; s/ mem=[^ ]*/ mem=2097152/' a >b
	reports 0 'tokens/s              the same: control 6280, test 6280, +0.00 %' pt-compare a a --speed
	says 'peak memory of a rank the same'
	reports 0 'tokens/s              slower: control 6280, test 3000, -52.2' pt-compare a b --speed
	says 'peak memory of a rank more: control 1.00 MiB, test 2.00 MiB, +100.00 %'
	log_of 0 8 >few
	sed 's/mfu=0.4/mfu=6.12/' a >over
	reports 0 '612 % (impossible)' pt-compare over over --speed
	reports 0 'too few steps for a statement' pt-compare few few --speed
	# a log without times and memory: silence would be no answer
	sed -E 's/ (tps|tps_per_gpu|mem|mem_active|mfu|dt)=[^ ]*//g' a >bare
	reports 0 'speed and memory      not compared: the logs have no such column in common' pt-compare bare a --speed
}

@test "any column: of measurements, and of none" {
	log_of 0 60 >a
	reports 0 '  tps' pt-compare a a --graph --column tps --axis bytes
	says 'bytes'
	code_of 0 pt-compare a a --table --column dt
	says $'60\t0.01\t0.01'
	reports 2 'no values of mfu_causal' pt-compare a a --graph --column mfu_causal
	# one run alone is drawn; compared it is not
	reports 0 '  loss' pt-compare a --graph
	says '⠒⠒ a'
	says 'only a is shown; nothing is compared'
	not grep -q verdict <<<"$output"
	code_of 0 pt-compare --test a --table --column dt
	says $'60\t0.01'
	if command -v gnuplot >/dev/null; then
		code_of 0 pt-compare -q a --plot a.svg
		[ -s a.svg ]
	fi
	for also in '' --json --speed '--require identical' --follow --locate; do
		# shellcheck disable=SC2086 # words
		code_of 64 pt-compare a ${also:+--graph} $also
	done
	code_of 64 pt-compare --graph
	reports 64 "none of the logs has a column 'nothing'" pt-compare a a --graph --column nothing
}

# ---- following -----------------------------------------------------------------------

slowly() { # FILE: its lines, a few at a time
	local line i=0
	while read -r line; do
		echo "$line"
		i=$((i + 1))
		[ $((i % 10)) -ne 0 ] || sleep 0.1
	done <"$1"
}

ending='# event 2026-01-01T00:00:00Z step=60 ends with code 0 after step 60'

@test "--follow: runs that train, until both have ended" {
	mkdir a b
	{ log_of 0 60 && echo "$ending"; } >whole
	slowly whole >a/journal.txt 3>&- &
	# (the journal of a run that has just begun)
	(sleep 0.5 && slowly whole >b/journal.txt) 3>&- &
	code_of 0 timeout 60 pt-compare --follow a b
	wait
	says 'identical, 60 values'
	says 'verdict: identical bit for bit'
	[[ ${lines[0]} == b,\ step*identical\ bit\ for\ bit ]]
}

@test "--follow: a run that differs is told at once, with 1" {
	log_of 0 60 >a
	sed 's/^\(step=5 .*\) loss=[^ ]*/\1 loss=7/' a >b
	mkfifo pipe
	{ head -n 20 b && exec sleep 60; } >pipe 3>&- &
	local writer=$!
	code_of 1 timeout 30 pt-compare --follow a pipe
	kill "$writer"
	says 'pipe, step 20: '
	says '1 of 20 values differ; first at step 5'
	code_of 0 timeout 30 pt-compare --follow --atol 10 --common --follow-timeout 1 a b
}

@test "--follow: runs that say nothing, SIGINT, a journal that begins again" {
	log_of 0 60 >a
	reports 2 'only one run has values of loss' timeout 30 pt-compare --follow --follow-timeout 0.5 a nowhere
	head -n 30 a >b
	set -m # (else it would ignore SIGINT)
	pt-compare --follow a b >out 3>&- &
	set +m
	wait_for 'b, step ' out
	kill -INT $!
	wait $!
	grep -q 'loss       identical, 30 values' out
	# another run in the same file
	log_of 0.5 50 >b
	(sleep 1 && log_of 0 20 >b && sleep 1 && { log_of 0 60 && echo "$ending"; } >b) 3>&- &
	echo "$ending" >>a
	timeout 30 pt-compare --follow --atol 10 a b >out
	grep -q 'loss       identical, 60 values' out
	wait
	# standard input, and files that do not grow
	pt-compare --follow a - <a | grep -q 'identical, 60 values'
	echo '# meta host = here' >longer
	truncate -s 65M longer
	code_of 2 timeout 30 pt-compare --follow --follow-timeout 1 a longer
	says 'longer: a line is longer than 67108864 bytes'
}

@test "--follow: logs of other trainers, in files and pipes that grow" {
	log_of 0 30 >a
	# a table with a comment as its header, and lines behind a prefix
	sed -E 's/^step=([0-9]+) .* loss=([^ ]*).*/\1,\2/; 1i # step,loss' a >whole.csv
	sed -E 's/^step=([0-9]+) .* loss=([^ ]*).*/[12:00][INFO] step=\1 loss=\2 dt=0.5 sps=8/' a >whole.log
	for kind in csv log; do
		slowly whole.$kind >b.$kind 3>&- &
		code_of 0 timeout 30 pt-compare --follow --follow-timeout 1 --rtol 1e-4 a b.$kind
		wait
		says '30 values'
	done
	code_of 0 timeout 30 pt-compare --follow --follow-timeout 0.1 --format wordplay whole.log whole.log
	# --format holds for all logs
	code_of 2 timeout 30 pt-compare --follow --follow-timeout 0.1 --format nanogpt whole.log whole.log
	# through a pipe
	reports 0 '30 values' timeout 30 pt-compare --follow --follow-timeout 1 --rtol 1e-4 a - < <(slowly whole.log)
	# but not what must be read as a whole
	echo '{"0": {"lm loss": 2.5}}' >whole.json
	code_of 2 timeout 30 pt-compare --follow --format megatron-bridge a - <whole.json
	says 'standard input: cannot follow a log of this format through a pipe; write the log to a file'
}

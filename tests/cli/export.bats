#!/usr/bin/env bats
# pt-compare --export: logs of any format as CSV, JSON lines and event files, and read again.
load helpers

equal() { # RUN RUN
	pt-compare -q "$1" "$2" >out || { cat out && return 1; }
	grep -q '^verdict: identical bit for bit' out || { cat out && return 1; }
}

@test "what is exported is read as the same run" {
	make_shard
	tiny -n 20 -o run --ckpt-every 0 >/dev/null
	pt-compare run --export run.csv --export run.jsonl --export tb --export a.tfevents
	for f in run.csv run.jsonl tb a.tfevents; do
		pt-compare run $f >out
		grep -q 'identical bit for bit' out
		grep -q 'val_loss  *identical' out
		# and from each of them the same again
		pt-compare $f --export - | cmp - run.csv
		pt-compare $f --export - --export-format jsonl | cmp - run.jsonl
		for column in tokens mem dt; do
			pt-compare run $f -t -y $column | awk -F'\t' '/^[0-9]/ { n++; bad += $2 != $3 } END { exit bad || n != 20 }'
		done
	done
	pt-compare run/journal.txt --export - | cmp - run.csv
	not grep -q 'e+' run.csv
	# chosen columns, under their own names or other programs'
	pt-compare run --export - -y val_loss -y loss >out
	head -1 out | grep -qx 'step,val_loss,loss'
	pt-compare run --export - -y eval/loss | head -2 | tail -1 | grep -q '^10,[0-9.]*$'
	pt-compare run --export some.csv -y train_loss
	pt-compare run some.csv -y train_loss --common | grep -q 'train_loss  *identical'
}

@test "numbers keep all of their bits" {
	{
		echo 'step,loss,x y,small'
		echo '1,2.5,0.1,-0.0'
		echo '2,nan,0.30000000000000004,5e-324'
		echo '3,inf,1e22,123456789012345680000'
		echo '4,-inf,,9007199254740993'
	} >in.csv
	pt-compare in.csv --export a.jsonl --export tb
	pt-compare a.jsonl --export b.csv
	pt-compare tb --export c.csv
	cmp b.csv c.csv
	grep -q '^1,2.5,0.1,-0.0$' b.csv
	grep -q '^2,nan,0.30000000000000004,4.94066e-324$' b.csv
	grep -q '^3,inf,1e+22,1.2345678901234568e+20$' b.csv
	grep -q '^4,-inf,,9007199254740992$' b.csv
}

@test "several runs in a file, each row with its run, and all are read" {
	for k in 1 2 3; do
		for i in $(seq 30); do echo "step=$i loss=$((9 - k)).$i grad_norm=1"; done >"r$k.txt"
	done
	mv r2.txt 'r"2, a;b	 c.txt'
	mv r3.txt "$(printf 'r3\n.txt')"
	pt-compare r1.txt r\"2* r3* --export all.csv --export all.jsonl --export tb
	head -1 all.csv | grep -qx 'run,step,loss,grad_norm'
	[ "$(wc -l <all.csv)" -eq 91 ]
	[ "$(wc -l <all.jsonl)" -eq 90 ]
	[ "$(find tb -type f | wc -l)" -eq 3 ]
	equal r1.txt all.csv#r1.txt
	equal r1.txt all.jsonl#r1.txt
	equal r1.txt tb/r1.txt
	equal r\"2* "all.csv#$(ls r\"2*)"
	equal r\"2* "all.jsonl#$(ls r\"2*)"
	equal r\"2* tb/r_2*
	# the file stands for all
	pt-compare all.csv -t | awk -F'\t' '/^30\t/ { if ($2 != 8.30 || $3 != 7.30 || $4 != 6.30) exit 1; n++ } END { exit n != 1 }'
	pt-compare all.jsonl -t | awk -F'\t' '/^30\t/ { if ($2 != 8.30 || $3 != 7.30 || $4 != 6.30) exit 1; n++ } END { exit n != 1 }'
	# through a pipe only the first can be read, and that is said
	pt-compare - --export - <all.csv >one.csv 2>err
	grep -q 'only the first of several runs is read, r' err
	[ "$(wc -l <one.csv)" -eq 31 ]
	# two of one name stay two
	pt-compare r1.txt r1.txt --export twice.csv
	[ "$(cut -d, -f1 twice.csv | sort -u | grep -c r1.txt)" -eq 2 ]
	! command -v python3 >/dev/null || python3 - <<-'END'
		import csv, json
		rows = list(csv.DictReader(open("all.csv")))
		names = [json.loads(line)["run"] for line in open("all.jsonl")]
		assert sorted(set(r["run"] for r in rows)) == sorted(set(n.replace("\n", " ") for n in names))
		assert [float(r["loss"]) for r in rows] == [json.loads(line)["loss"] for line in open("all.jsonl")]
	END
}

@test "runs have their names without what all have in common, and what no reader could read" {
	mkdir -p deep/a deep/b
	for r in a b; do printf 'step,loss\n1,2\n2,3\n' >deep/$r/log.csv; done
	pt-compare deep/a/log.csv deep/b/log.csv --export two.csv --export tb
	[ "$(cut -d, -f1 two.csv | tr '\n' ' ')" = 'run a a b b ' ]
	[ -d tb/a ]
	[ -d tb/b ]
	# again and again
	pt-compare two.csv --export again.csv
	cmp two.csv again.csv
	# names of files may be no UTF-8, and may color a terminal
	cp deep/a/log.csv "$(printf 'x\033[31m')"
	cp deep/a/log.csv "$(printf 'y\377')"
	pt-compare x* y* --export odd.csv
	[ "$(cut -d, -f1 odd.csv | tr '\n' ' ')" = 'run x?[31m x?[31m y? y? ' ]
	pt-compare odd.csv -q | grep -q identical
}

@test "names of columns that need quotes" {
	printf '%s\n' '{"step": 1, "loss": 2, "a,\"b\";c;d": 3, "x\ty; ": 4, "#no": 5, "w - z": 6}' \
		'{"step": 2, "loss": 2, "a,\"b\";c;d": 4, "x\ty; ": 4, "#no": 5, "w - z": 7}' >in.jsonl
	pt-compare in.jsonl --export a.csv --export tb
	head -1 a.csv | grep -q '"a,""b"";c;d"'
	for f in in.jsonl a.csv tb; do
		pt-compare $f --export - -y 'a,"b";c;d' -y '#no' -y 'w - z' | tail -1 | grep -qx '2,4,5,7'
	done
	pt-compare in.jsonl --export b.csv -y 'a,"b";c;d'
	printf 'step,x;y;z\n1,3\n' | sed 's/x;y;z/"x;y;z"/' >c.csv
	pt-compare c.csv --export - | cmp - c.csv
	pt-compare in.jsonl in.jsonl --export two.csv
	pt-compare 'two.csv#in.jsonl-2' --export - -y 'w - z' | tail -1 | grep -qx '2,7'
}

@test "a folder of event files of several runs stands for all of them" {
	printf 'step,loss\n1,2\n2,3\n' >a.csv
	cp a.csv b.csv
	pt-compare a.csv b.csv --export tb
	pt-compare tb >out
	grep -q '^tb/a.csv' out
	grep -q identical out
	# but of pt-train's it is the directory of one run
	: >tb/run.h5
	reports 64 'too few runs; give a control and a test' pt-compare tb
}

@test "a table or JSON with two fields for one column says which one is read" {
	printf 'step,train/loss,loss\n1,2,5\n2,3,6\n' >a.csv
	pt-compare -t a.csv 2>err >out
	grep -q 'several fields map to loss, but only the last one' err
	pt-compare -t a.csv --column loss=train/loss 2>err
	[ "$(grep -c 'several fields' err)" -eq 0 ]
	printf '"Step","a - loss","a - loss__MIN","a - loss__MAX","a - loss","a - loss__MIN","a - loss__MAX"\n1,2,2,2,3,3,3\n' >w.csv
	pt-compare -t w.csv 2>err >out
	grep -q 'several fields map to loss' err
	printf '{"step":%d,"loss":%d,"train/loss":%d}\n' 1 3 2 2 2 1 >two.jsonl
	pt-compare -t two.jsonl 2>err >out
	grep -q 'several fields map to loss' err
	printf '{"step":%d,"loss":%d,"train/loss":%d}\n' 1 3 3 2 2 2 >same.jsonl
	pt-compare -t same.jsonl 2>err >out
	[ "$(grep -c 'several fields' err)" -eq 0 ]
}

@test "what cannot be exported, and where to" {
	printf 'step,loss\n1,2\n' >in.csv
	mkdir there
	reports 64 'neither a .csv or .jsonl file nor a directory' pt-compare in.csv --export x.txt
	[ ! -e x.txt ]
	pt-compare in.csv --export x.txt --export-format csv
	cmp in.csv x.txt
	code_of 64 pt-compare in.csv --export - --export-format events
	reports 64 '--export: cannot be combined with --graph' pt-compare in.csv in.csv --export - --json
	reports 64 "column 'none'" pt-compare in.csv --export - -y none
	pt-compare in.csv --export there
	reports 64 'already has event files' pt-compare in.csv --export there
	reports 64 'specify a directory' pt-compare in.csv in.csv --export one.tfevents
	reports 2 'nowhere/x.csv' pt-compare in.csv --export nowhere/x.csv
}

#!/usr/bin/env bats
# What all programs do with input, options and outputs that are no good: the code, one clear
# message, nothing half-written, nothing lost.
load helpers

programs='pt-prepare pt-train pt-ckpt pt-compare pt-check pt-sample pt-collbench'

# A command that is refused with one message, and without a trace.
refused() { # CODE TEXT COMMAND...
	local code=$1 text=$2 before=(*) after n
	shift 2
	[ "$1" != tiny ] || set -- pt-train "${TINY[@]}" "${@:2}"
	code_of "$code" timeout 120 "$@"
	says "$text"
	n=$(messages)
	after=(*)
	[[ $n -eq 1 && ${after[*]} == "${before[*]}" ]] || {
		echo "$n messages; left: ${after[*]}"
		echo "$output"
		return 1
	}
}

@test "a config that is none: binary, too large, with NUL bytes, open quotes, no '='" {
	make_shard
	head -c 3000 /dev/zero | tr '\0' '\377' >binary
	printf 'layers = 3\0\n' >nul
	{ echo '# large' && head -c 1100000 /dev/zero | tr '\0' '#'; } >large
	printf 'config\n' >equals
	printf '# fine\n\nquiet = "yes\n' >quotes
	printf '%080d = 1\n' 0 >long
	for p in $programs; do
		refused 65 "binary:1: expected \`key = value\`" "$p" --config binary
		refused 74 'nowhere: No such file' "$p" --config nowhere
		refused 74 'nowhere: No such file' env PT_CONFIG=nowhere "$p"
	done
	refused 65 'nul:1: ' pt-train --config nul
	refused 65 'large: larger than' pt-ckpt --config large
	refused 65 'larger than' pt-prepare --config /dev/zero
	refused 65 'equals:1: expected' pt-compare --config equals
	refused 65 'quotes:3: ' pt-sample --config quotes
	refused 65 'long:1: the key exceeds 63 characters: 80' pt-train --config long
	refused 74 'text.txt/c: Not a directory' pt-train --config text.txt/c
	refused 74 'Is a directory' pt-train --config .
	refused 64 'needs a value' pt-train --config
}

@test "programs of a single process refuse several ranks, with one message" {
	make_text >text.txt
	for p in 'pt-plan gpt2-124m' 'pt-compare a b' 'pt-ckpt list a'; do
		read -ra p <<<"$p"
		said="${p[0]}: ${p[0]} is a single process; start it without mpiexec or srun"
		code_of 64 mpiexec -n 3 "${p[@]}"
		[ "$output" = "$said" ]
		for vars in 'PMI_SIZE=2 PMI_RANK=0' 'OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0' \
			'SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0'; do
			read -ra vars <<<"$vars"
			code_of 64 env "${vars[@]}" "${p[@]}"
			[ "$output" = "$said" ]
			code_of 64 env "${vars[@]/RANK=0/RANK=1}" SLURM_PROCID=1 "${p[@]}"
			[ -z "$output" ]
			env "${vars[@]}" "${p[0]}" --help | cmp - <("${p[0]}" --help)
		done
	done
	code_of 64 mpiexec -n 2 pt-ckpt --unknown
	[ "$output" = "pt-ckpt: unknown option '--unknown'" ]
	[ ! -e a.h5 ]
	# one rank, and many where MPI is switched off
	mpiexec -n 1 pt-prepare -q text.txt -o a.h5
	PMI_SIZE=1 PMI_RANK=0 pt-prepare --info a.h5 >info
	SLURM_STEP_NUM_TASKS=4 PT_MPI=no pt-prepare --info a.h5 | cmp - info
}

@test "several ranks of another MPI's launcher are not several programs" {
	make_shard
	tiny -n 1 -o run >/dev/null
	export PT_OVERWRITE=yes
	for p in "pt-train ${TINY[*]} -n 1 -o other" 'pt-sample run -n 1' 'pt-prepare -q text.txt -o a.h5'; do
		read -ra p <<<"$p"
		for vars in OMPI_COMM_WORLD_SIZE=2 SLURM_STEP_NUM_TASKS=2; do
			refused 64 "${vars%=*} is '2', but MPI has only 1 rank" env "$vars" "${p[@]}"
		done
		code_of 64 env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 "${p[@]}" # rank 0 reports
		[ -z "$output" ]
		[ ! -e other ]
		[ ! -e a.h5 ]
	done
	# in a batch script, one rank, and by an inner launcher
	for vars in 'SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_PROCID=0' SLURM_STEP_NUM_TASKS=1 PMIX_RANK=0 \
		'OMPI_COMM_WORLD_SIZE=2 PT_MPI=no'; do
		read -ra vars <<<"$vars"
		env "${vars[@]}" pt-sample run -n 1
	done
	SLURM_STEP_NUM_TASKS=2 mpiexec -n 1 pt-sample run -n 1
	SLURM_STEP_NUM_TASKS=3 tiny_on 2 -n 1 -o ranks >/dev/null
	same run ranks
}

@test "shared memory that is too small for MPI is reported before MPI fails" {
	unshare -m mount -t tmpfs none /dev/shm 2>/dev/null || skip 'mounting is not allowed here'
	make_shard
	small() { # SIZE COMMAND...
		unshare -m sh -c 'mount -t tmpfs -o size="$1" none /dev/shm && shift && exec "$@"' sh "$@"
	}
	run small 16k mpiexec -n 2 pt-sample run
	says '/dev/shm: 16.0 KiB free, but MPI needs about 10.0 MiB to start 2 ranks on this host; '
	[ "$(grep -c 'MPI needs' <<<"$output")" = 1 ]
	run small 16k pt-sample run
	not says 'MPI needs'
	run small 10m mpiexec -n 2 pt-sample run
	not says 'MPI needs'
}

@test "a small stack is enlarged, or refused, and never overflows" {
	plain_memory # it needs more stack, too
	make_shard
	tiny -n 3 -t 2 -o wide >/dev/null
	for kib in 20 64 96 128 192 255; do
		for p in $programs; do # (the environment is on the stack, too)
			refused 1 "$p: the stack is limited to less than 256 KiB" \
				bash -c "ulimit -s $kib; exec env -i $BUILD/$p --version"
		done
		# where only the soft limit is small; the stacks of threads follow it, too
		(ulimit -Ss $kib && tiny -n 3 -t 2 -o soft$kib >/dev/null)
		same wide soft$kib
	done
	for t in 1 2; do
		(ulimit -s 256 && tiny -n 3 -t $t --arch llama --dropout 0.1 -o least$t >/dev/null)
	done
	(ulimit -s 256 && pt-sample wide the -n 5 >/dev/null && pt-compare wide wide >/dev/null)
	mpiexec -n 2 bash -c "ulimit -s 256; exec pt-train ${TINY[*]} -n 3 -o ranks" >/dev/null
	same wide ranks
}

@test "a FIFO without a writer is waited for, with a message" {
	make_shard
	tiny -n 2 -o run >/dev/null
	mkfifo fifo
	for c in 'pt-train --config fifo' 'pt-compare run fifo' 'pt-prepare fifo' 'pt-prepare --info fifo' \
		'pt-train -d fifo'; do
		read -ra c <<<"$c"
		code_of 124 timeout 2 "${c[@]}"
		[ "$output" = "${c[0]}: waiting for data from the FIFO fifo" ]
	done
	code_of 124 timeout 2 pt-prepare -q fifo
	[ "$output" = 'pt-prepare: warning: waiting for data from the FIFO fifo' ]
	reports 65 'fifo: not a regular file' timeout 20 pt-ckpt show fifo
	pt-train --config fifo --print-config >late 2>err 3>&- &
	wait_for waiting err
	echo 'layers = 3' >fifo
	ended $!
	[ "$status" -eq 0 ]
	grep -qx 'layers = 3' late
	# not for one that is written to at once, nor for a pipe
	pt-train --config fifo --print-config >soon 2>err 3>&- &
	echo 'layers = 3' >fifo
	ended $!
	[ "$status" -eq 0 ]
	cmp late soon
	[ ! -s err ]
	pt-train --config <(sleep 1.5 && echo 'layers = 3') --print-config 2>err | cmp - late
	[ ! -s err ]
	: >nothing
	pt-train --config fifo --print-config >out 2>err 3>&- &
	cat nothing >fifo
	ended $!
	[ "$status" -eq 0 ]
	pt-train --config nothing --print-config | cmp - out
}

@test "a FIFO inside of a checkpoint is rejected, not waited for" {
	local golden=$BATS_TEST_DIRNAME/../golden/torch f
	local config=$golden/hf/config.json
	cp -r "$golden"/{bins,hf,nanotron,zero2} .
	chmod -R u+w bins hf nanotron zero2
	for f in bins/pytorch_model.bin.index.json hf/config.json nanotron/model_config.json; do
		rm "$f"
		mkfifo "$f"
		reports 65 "$f: not a regular file" timeout 20 pt-ckpt verify ${f%%/*}
	done
	rm hf/config.json hf/model.safetensors
	mkfifo hf/model.safetensors.index.json zero2/new
	code_of 65 timeout 20 pt-ckpt verify --model-config "$config" hf
	says 'hf/model.safetensors.index.json: not a regular file'
	mv zero2/new zero2/latest
	code_of 65 timeout 20 pt-ckpt verify --model-config "$config" zero2
	# one that the user names is read
	mkfifo own.json
	cat "$config" >own.json 3>&- &
	code_of 0 timeout 20 pt-ckpt verify --model-config own.json "$golden/ddp.pt"
}

@test "a log whose rows have columns of their own is rejected, not made a table" {
	awk 'BEGIN {
		printf "{\"log_history\": ["
		for (i = 0; i < 60000; i++)
			printf "%s{\"step\": %d, \"loss\": 1, \"k%d\": 2}", i ? "," : "", i, i
		print "]}"
	}' >trainer_state.json
	refused 2 'columns and 60000 rows are missing' pt-compare -q trainer_state.json trainer_state.json
}

@test "an empty name is refused, as of a shell variable that is not set" {
	make_shard
	for o in 'pt-train -o' 'pt-train -d' 'pt-train --resume' 'pt-train --config' 'pt-prepare text.txt -o' \
		'pt-compare a b --plot' 'pt-collbench --out' 'pt-ckpt --config'; do
		read -ra o <<<"$o"
		refused 64 ': the name is empty' "${o[@]}" ''
	done
	refused 64 'pt-train: --out: the name is empty' pt-train --out=
	# a file or a variable can say that there is none
	echo 'out = ""' >config
	PT_OUT='' pt-train --config config --print-config | cmp - <(pt-train --print-config)
}

@test "checkpoints that are no directory" {
	make_shard
	mkdir run
	: >run/checkpoints
	refused 74 'run/checkpoints: is not a directory' tiny -n 2 -o run
	[ "$(ls run)" = checkpoints ]
}

@test "a shard that is given many times is opened once" {
	make_shard
	shards=()
	for _ in $(seq 900); do shards+=(data.h5); done
	(ulimit -n 64 && pt-prepare --verify "${shards[@]}")
	(unset PT_DATA && ulimit -n 64 && tiny -n 2 -o many "${shards[@]}" >/dev/null)
	# it is 900 shards all the same
	cp data.h5 copy.h5
	(unset PT_DATA && tiny -n 2 -o twice data.h5 data.h5 >/dev/null && tiny -n 2 -o copied data.h5 copy.h5 >/dev/null)
	same twice copied
	reports 2 "verdict: not comparable: data: " pt-compare many twice
}

@test "a config that is odd is read all the same" {
	: >empty
	printf 'layers = 3' >noend
	printf '  [Model]\r\n\tlayers=3  # a comment\r\n\r\n' >crlf
	printf 'layers = "3"\n' >quoted
	[ "$(pt-train --config empty --print-config)" = "$(pt-train --print-config)" ]
	for c in noend crlf quoted; do
		pt-train --config $c --print-config | grep -qx 'layers = 3'
	done
	pt-train --config <(echo 'layers = 3') --print-config | grep -qx 'layers = 3'
}

@test "a value that is near an enum's is named, from wherever it came" {
	make_shard
	refused 64 "arch: 'lama' is none of gpt2, llama, olmo2, gemma2, gemma3, glm4; did you mean 'llama'" pt-train --arch lama
	refused 64 "environment variable PT_ARCH: 'lama'" env PT_ARCH=lama pt-train
	refused 64 "did you mean 'llama'" pt-train arch=lama
	echo 'arch = lama' >c.conf
	refused 65 "c.conf:1: arch: 'lama'" pt-train --config c.conf
	refused 64 "did you mean 'char'" pt-prepare -t chr text.txt
	refused 64 "did you mean 'document'" pt-prepare --split documents text.txt
	refused 64 "did you mean 'train'" pt-prepare --decode trian data.h5
	refused 64 "did you mean 'float'" pt-collbench --datatype flaot
	refused 64 "did you mean 'layers'" pt-train layres=3
	refused 64 "did you mean '--micro-batch'" pt-train --micro_batch_size 4 # as others call it
	refused 64 "did you mean '--pp'" pt-train --pipeline-model-parallel-size=2
	refused 64 "did you mean 'heads'" pt-train n_head=4
}

@test "empty and absurd values are 64, and name the option" {
	make_shard
	for o in --layers=0 --layers=-1 --layers= --layers=1e9 --layers=99999999999999999999 --heads=3 \
		--dim=0 --dim=99999999 --lr=nan --lr=-1 --lr=inf --lr= --steps=-1 --batch=0 --micro-batch=3 \
		--micro-batch=16 --virtual=tp=0 --virtual=tp=3 --virtual=xx=2 --virtual=tp --virtual=tp=1000000000000 \
		--context=0 --context=999999999999 --dropout=1 --dropout=-1 --threads=-1 --threads=99999 --preset=../x \
		--clip=-1 --beta2=1 --keep=-1 --log-every=0 --eval-windows=-1 --warmup=-1 --vocab-multiple=0 \
		--peak-flops=-1 --peak-flops=x --kv-heads=3 --seed=x --seed=1.5 --steps=0x --sampling= --dp=2; do
		name=${o%%=*}
		refused 64 "${name#--}" tiny -n 2 -o run "$o"
	done
	for o in --val-fraction=2 --val-fraction=-1 --val-fraction=nan --shard-size=-1 --shard-size=x \
		--shard-size=9999999T --seed=x --tokenizer= --split=x; do
		name=${o%%=*}
		refused 64 "${name#--}" pt-prepare text.txt -o x.h5 "$o"
	done
	for o in --width=-1 --width=1001 --height=6 --rtol=x --atol=-1 --by=; do
		name=${o%%=*}
		refused 64 "${name#--}" pt-compare a b "$o"
	done
	for o in --minbytes=x --maxbytes=-1 --stepfactor=x --iters=-1 --datatype= --root=x; do
		name=${o%%=*}
		refused 64 "${name#--}" pt-collbench "$o"
	done
}

@test "a stream is looked at before it is copied, and its copy has a limit" {
	make_shard
	export TMPDIR=$PWD/tmp
	mkdir tmp
	(ulimit -f 100000; # 100 MB
		refused 65 'standard input: not an HDF5 file' bash -c 'pt-train -d - -o run </dev/zero'
		refused 2 '/dev/zero: unknown log format' pt-compare /dev/zero x
		refused 74 'dev/zero: cannot be copied to a temporary file in ' pt-prepare --spool-limit 1M /dev/zero -o x.h5
		says 'larger than the limit of 1.00 MiB (1048576 bytes); --spool-limit allows more'
		refused 74 'larger than' pt-train -d <(cat data.h5) --spool-limit 2000 -o run
		refused 2 'larger than' pt-compare --spool-limit 2000 <(cat text.txt) x)
	[ -z "$(ls tmp)" ]
	cat text.txt | pt-prepare -q --spool-limit 40000 - >again.h5
	cmp again.h5 data.h5
	code_of 74 bash -c 'cat text.txt - <<<x | pt-prepare -q --spool-limit 40000 - >again.h5'
	# the error is the first one, whatever other threads meet after it
	for _ in {1..30}; do
		code_of 74 bash -c 'pt-prepare --threads 8 --spool-limit 1000 - -o again.h5 --overwrite < <(cat text.txt)'
		says 'larger than the limit of 1000 B'
	done
}

# No step is trained on other bytes.
@test "a shard that is overwritten while a run reads it" {
	make_shard
	mkfifo rows
	timeout 60 pt-train "${TINY[@]}" -n 1000000 -o run --ckpt-every 20 --keep 2 >rows 2>err &
	pid=$!
	exec 4<rows
	until_step 5
	touch data.h5 # which changes no bit
	until_step 200
	head -c "$(stat -c %s data.h5)" /dev/zero | dd of=data.h5 conv=notrunc status=none
	cat <&4 >/dev/null
	ended $pid
	[ "$status" -eq 65 ]
	grep -q 'data.h5 changed while it was read: /.*do not match their checksum' err
	pt-ckpt verify run/checkpoints/latest.h5
}

@test "data that is none" {
	make_shard
	tiny -n 2 -o old >/dev/null
	cp old/checkpoints/step-00000002.h5 c.h5
	refused 74 'nowhere.h5: No such file' tiny -d nowhere.h5 -o run
	refused 74 'nowhere.h5: No such file' tiny -d data.h5 nowhere.h5 -o run
	refused 65 'text.txt: not an HDF5 file, or damaged; pt-prepare makes shards of text' tiny -d text.txt -o run
	refused 65 'a pt-checkpoint file instead of a pt-shard file' tiny -d c.h5 -o run
	refused 65 'a pt-run file' tiny -d old/run.h5 -o run
	refused 65 'not a regular file' tiny -d . -o run
	refused 65 'training tokens, but one sample needs' tiny -T 100000 -o run
	for o in --resume --init-from; do
		refused 74 'nowhere.h5: No such file' tiny -o run $o nowhere.h5
		refused 65 'a pt-shard file instead of a pt-checkpoint file' tiny -o run $o data.h5
		refused 65 'not an HDF5 file' tiny -o run $o text.txt
	done
	refused 65 'a pt-checkpoint file' pt-prepare --info c.h5
	refused 65 'a pt-checkpoint file' pt-prepare --decode val c.h5
	refused 65 'a pt-checkpoint file' pt-prepare c.h5 -o x.h5
	refused 65 'not UTF-8' pt-prepare --format text data.h5 -o x.h5
	# shards of two corpora are not one
	pt-prepare -q -t byte text.txt -o bytes.h5
	refused 65 'bytes.h5' tiny -d data.h5 bytes.h5 -o run
	# what comes through a pipe is kept nowhere
	mkdir tmp
	code_of 65 bash -c 'echo hello | TMPDIR=tmp pt-train -d - -n 2 -o run'
	code_of 65 bash -c ': | TMPDIR=tmp pt-train -d - -n 2 -o run'
	[ -z "$(ls tmp)" ]
	[ ! -e run ]
}

@test "a shard that is cut off, or has one bit changed" {
	make_shard
	size=$(stat -c %s data.h5)
	for n in 0 1 100 1000 $((size / 2)) $((size - 1)); do
		head -c $n data.h5 >bad.h5
		refused 65 'bad.h5: not an HDF5 file, or damaged' tiny -d bad.h5 -n 2 -o run
		refused 65 'bad.h5: ' pt-prepare --info bad.h5
		refused 65 'bad.h5: ' pt-prepare --decode train bad.h5
		refused 65 '' bash -c 'pt-train -q -d - -n 2 -o run <bad.h5'
	done
	for s in train val; do pt-prepare --decode $s data.h5; done >whole
	unseen=0
	for at in $(seq 1 13 48) $(seq 100 2311 $((size - 1))); do
		damage data.h5 bad.h5 "$at"
		run bash -c 'for s in train val; do pt-prepare --decode $s bad.h5 || exit; done | cat >text
			exit ${PIPESTATUS[0]}'
		[ "$status" -eq 65 ] && continue
		[ "$status" -eq 0 ] # where nothing is stored
		cmp text whole
		unseen=$((unseen + 1))
	done
	[ "$unseen" -lt 5 ]
	# training sees it too, on whichever rank has it
	damage data.h5 bad.h5 $((size / 2))
	reports 65 'do not match their checksum' tiny -d bad.h5 -n 500 -o run
	reports 65 'do not match their checksum' timeout 120 mpiexec -n 2 pt-train "${TINY[@]}" -d bad.h5 -n 500 -o run2
}

@test "a file that HDF5 dies of is a damaged one, for every program" {
	make_shard
	"$BUILD/tests/test_probe" "$PWD/killer.h5"
	refused 65 'killer.h5: ' pt-prepare --info killer.h5
	refused 65 'killer.h5: ' tiny -d killer.h5 -o run
	refused 65 'killer.h5: ' tiny -d data.h5 -o run --resume killer.h5
	refused 65 'killer.h5: ' mpiexec -n 2 pt-train "${TINY[@]}" -d killer.h5 -o run
	refused 65 'killer.h5: ' pt-ckpt show killer.h5
	refused 65 'killer.h5: ' pt-sample killer.h5
	refused 2 'killer.h5: ' pt-compare killer.h5 killer.h5
	reports 65 'killer.h5: DAMAGED' pt-prepare --verify killer.h5
	reports 65 'killer.h5: DAMAGED' pt-ckpt verify killer.h5
	reports 65 'damaged  killer.h5' pt-ckpt ls killer.h5
}

@test "data that become shorter meanwhile end the run, on all ranks" {
	make_shard
	# where one reads, the others hear of it
	for how in '1 1' '2 1' '2 0' '3 1' '3 0'; do
		read -r n readers <<<"$how"
		cp data.h5 short.h5
		rm -rf run out # what is waited for would be in that of the last one
		timeout 120 mpiexec -n "$n" pt-train "${TINY[@]}" --readers "$readers" -d short.h5 -n 1000000 -o run >out 2>err 3>&- &
		wait_for '^step=5 ' out
		truncate -s 100 short.h5
		ended $!
		[ "$status" -eq 74 ]
		grep -q '^pt-train: .*short.h5 became shorter while it was read' err
	done
}

# Needs h5py: PT_PYTHON names a Python that has it.
@test "a small file that claims to be large takes no time and no memory" {
	python=${PT_PYTHON:-python3}
	"$python" -c 'import h5py' 2>/dev/null || skip "no h5py (PT_PYTHON=PYTHON)"
	limit='ulimit -v 4000000'
	! nm "$BUILD/pt-prepare" | grep -q __asan_init || limit=:
	make_shard
	tiny -n 3 -o run >/dev/null
	cat >hostile.py <<-END
		import h5py, shutil, sys
		source, kind = sys.argv[1:]
		shutil.copy(source, "bad.h5")
		with h5py.File("bad.h5", "a", libver=("v108", "v108")) as f:
		    g = f.create_group("many")
		    if kind == "links":
		        d = g.create_dataset("0", (1 << 25,), "<i8")
		    elif kind == "chunks":
		        d = g.create_dataset("0", (1 << 25,), "<i8", chunks=(1 << 20,))
		    elif kind == "groups":
		        for i in range(7):
		            down = g.create_group("g")
		            for k in range(30):
		                g[str(k)] = down
		            g = down
		        d = None
		    elif kind == "columns":
		        for c in list(f["columns"]):
		            t = f["columns"][c].dtype
		            del f["columns"][c]
		            d = f["columns"].create_dataset(c, (1 << 26,), t, chunks=(1 << 20,))
		            d.attrs["block_rows"] = 1
		        d = None
		    for i in range(1, 2000 if d else 0):
		        g[str(i)] = d
	END
	for kind in links chunks groups; do
		"$python" hostile.py data.h5 $kind
		[ "$(stat -c %s bad.h5)" -lt 1000000 ]
		code_of 65 bash -c "$limit; exec timeout 120 pt-prepare --info bad.h5"
		says 'not contiguous'
		"$python" hostile.py run/run.h5 $kind
		code_of 2 bash -c "$limit; exec timeout 120 pt-compare run bad.h5"
		says 'not contiguous'
	done
	"$python" hostile.py run/run.h5 columns
	code_of 2 bash -c "$limit; exec timeout 120 pt-compare run bad.h5"
}

@test "an output below a file, or in no folder" {
	make_shard
	refused 74 'text.txt/run: Not a directory' tiny -n 2 -o text.txt/run
	refused 74 'text.txt/checkpoints: Not a directory' tiny -n 2 -o text.txt
	refused 74 'Not a directory' mpiexec -n 2 pt-train "${TINY[@]}" -n 2 -o text.txt/run
	refused 74 'Not a directory' pt-prepare text.txt -o text.txt/x.h5
	refused 74 'No such file' pt-prepare text.txt -o nowhere/x.h5
	refused 74 'Not a directory' pt-collbench -b 8 -e 8 -n 1 --out text.txt/x.h5
	if [ "$(id -u)" -ne 0 ]; then
		mkdir locked
		chmod a-w locked
		refused 74 'Permission denied' tiny -n 2 -o locked/run
		refused 74 'Permission denied' pt-prepare text.txt -o locked/x.h5
	fi
}

@test "results that standard output does not take are 74" {
	make_shard
	tiny -n 2 -o run >/dev/null
	c=run/checkpoints/latest.h5
	for command in 'pt-prepare text.txt' 'pt-prepare --info data.h5' 'pt-prepare --decode train data.h5' \
		"pt-ckpt ls run" "pt-ckpt show $c" "pt-ckpt hash $c" "pt-ckpt verify $c" "pt-ckpt diff $c $c" \
		'pt-compare run run' 'pt-compare run run --table --graph' 'pt-compare --export - run' "pt-sample $c --logits" \
		'pt-train --dry-run' 'pt-train --print-config' "pt-train -q --eval-only --resume $c" \
		'pt-collbench -b 8 -e 8 -n 1'; do
		reports 74 'standard output: No space left on device' bash -c "$command >/dev/full"
	done
	# a run has its journal, and goes on
	reports 0 'the journal has every line' bash -c "pt-train $(printf '%q ' "${TINY[@]}") -n 3 -o full >/dev/full"
	[ "$(grep -c ^step= full/journal.txt)" -eq 3 ]
}

# Files that may not grow stand for a full disk.
full_disk() { # KIB COMMAND...
	local kib=$1
	shift
	run bash -c 'trap "" XFSZ; ulimit -f "$0"; "$@" | cat' "$kib" bash -c '"$@" 2>&1 || echo "code $?"' x "$@"
}

@test "a full disk: 74, nothing half-written, nothing lost" {
	make_shard
	cp data.h5 before.h5
	full_disk 20 pt-prepare -q --overwrite text.txt -o data.h5
	says 'a temporary file in'
	says 'File too large'
	not says text.txt
	says 'code 74'
	cmp data.h5 before.h5
	tiny -n 5 --decay-steps 20 -o run >/dev/null
	cp run/checkpoints/step-00000005.h5 saved.h5
	full_disk 50 pt-train "${TINY[@]}" -n 20 --decay-steps 0 --ckpt-every 5 --resume auto -o run
	grep -qE 'run/checkpoints/step-00000010\.h5\.[0-9a-f]{16}\.tmp: File too large' <<<"$output"
	says 'code 74'
	cmp run/checkpoints/latest.h5 saved.h5
	# the log is whole, and the run goes on from what was saved
	tiny -n 20 -o whole >/dev/null
	pt-compare --common whole run
	tiny -n 20 --decay-steps 0 --resume auto -o run >/dev/null
	pt-compare --common whole run
	cmp run/checkpoints/latest.h5 whole/checkpoints/latest.h5
	# a log that could not be written
	full_disk 5 pt-train "${TINY[@]}" -n 100 --no-ckpt -o unlogged
	says 'unlogged/journal.txt: File too large'
	says 'code 74'
	[ -z "$(find . -name '*.tmp')" ]
}

@test "--overwrite loses no run for one that cannot begin" {
	make_shard
	tiny -n 5 -o run >/dev/null
	find run -type f -exec md5sum {} + | sort >before
	head -c 5000 run/checkpoints/latest.h5 >bad.h5
	code_of 65 tiny --overwrite -o run --init-from bad.h5
	code_of 74 tiny --overwrite -o run --init-from nowhere.h5
	code_of 74 tiny --overwrite -o run -d nowhere.h5
	code_of 64 tiny --overwrite -o run --heads 3
	code_of 64 timeout 120 mpiexec -n 5 pt-train "${TINY[@]}" --overwrite -o run
	find run -type f -exec md5sum {} + | sort | diff before -
	# a run may begin anew from its own checkpoint, and goes on as any other
	tiny -n 5 --overwrite -o run --init-from run/checkpoints/latest.h5 >/dev/null
	tiny -n 10 --resume auto -o run >/dev/null
	[ -e run/checkpoints/step-00000010.h5 ]
}

@test "all ranks end, with one message" {
	make_shard
	head -c 1000 data.h5 >bad.h5
	printf 'layers = 0\n' >bad.conf
	refused 65 'bad.h5: ' mpiexec -n 3 pt-train "${TINY[@]}" -d bad.h5 -o run
	refused 65 'bad.conf:1: layers' mpiexec -n 3 pt-train "${TINY[@]}" --config bad.conf -o run
	refused 64 "did you mean '--layers'" mpiexec -n 3 pt-train "${TINY[@]}" --layres 1 -o run
	refused 64 'dp=2 needs 2 ranks, but there are 3' mpiexec -n 3 pt-train "${TINY[@]}" --dp 2 -o run
	refused 74 'nowhere' mpiexec -n 3 pt-train "${TINY[@]}" --resume nowhere.h5 -o run
	refused 64 'ranks, but' mpiexec -n 3 pt-train "${TINY[@]}" -b 4 -m 2 -o run
}

@test "input that is empty, binary, cut off or of another kind: 1, 2 and 3 ranks" {
	make_shard
	tiny -n 6 -o run >/dev/null
	: >empty
	seq 3000 | cksum | head -c 5 >short.txt
	od -An -c /dev/null >blank
	{
		printf '\377\376\0'
		head -c 5000 run/checkpoints/latest.h5 | tr '\0' '\377'
	} >binary
	head -c 30000 data.h5 >cut.h5
	head -c 30000 run/checkpoints/latest.h5 >cut-ckpt.h5
	head -c 3000 run/run.h5 >cut-log.h5
	head -c 3000 run/journal.txt >cut-log.txt
	pt-prepare -q -t byte text.txt -o bytes.h5
	refused 65 'empty: the text is empty' pt-prepare empty -o x.h5
	refused 65 'all files: the text is empty' pt-prepare empty blank -o x.h5
	refused 65 'binary: byte 0: not UTF-8; --tokenizer byte accepts any file' pt-prepare binary -o x.h5
	for f in empty binary cut-ckpt.h5; do
		refused 65 "$f: not an HDF5 file, or damaged" pt-ckpt show $f
		refused 65 "$f: not an HDF5 file, or damaged" pt-sample $f
	done
	refused 2 'cut-log.h5: not an HDF5 file, or damaged' pt-compare run cut-log.h5
	refused 2 'empty: unknown log format' pt-compare run empty
	reports 2 'cut-log.txt: neither a run.h5 nor a text with lines' pt-compare run cut-log.txt
	for n in 1 2 3; do
		on=(mpiexec -n "$n" pt-train "${TINY[@]}" -n 8 -o new)
		for f in empty binary cut.h5; do
			refused 65 "$f: not an HDF5 file, or damaged" "${on[@]}" -d $f
		done
		refused 65 'bytes.h5: its tokenizer differs from the tokenizer of data.h5' "${on[@]}" -d data.h5 -d bytes.h5
		refused 65 "differs from the data's" env PT_DATA= "${on[@]}" -d bytes.h5 --resume run
		refused 65 'cut-ckpt.h5: not an HDF5 file, or damaged' "${on[@]}" --resume cut-ckpt.h5
		refused 64 "did you mean '--layers'" "${on[@]}" --layerz 3
		[ $n -eq 1 ] || refused 64 "$n ranks, but a step has only 1 micro-batch" "${on[@]}" -b 2
	done
}

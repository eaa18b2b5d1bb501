#!/usr/bin/env bats
# share/jobs: job scripts that test the nodes, train, and start themselves again, with stand-ins for
# the commands of Slurm and PBS that run the programs on ranks of this host.
load helpers

# A copy of the script of this scheduler as its user edits it, and a program for 1 or 2 ranks.
edit() { # SCHEDULER
	make_shard
	unset PT_DATA
	export PATH="$PWD/fakes:$PATH" RANKS=2 PT_STEPS=1000000 PT_LR_SCHEDULE=constant
	sed -e 's/^data=.*/data=(data.h5)/' -e "s/^options=.*/options=(${TINY[*]})/" \
		-e 's/^cores=.*/cores=1/' "$BATS_TEST_DIRNAME/../../share/jobs/$1" >"$1"
	[ "$(grep -c '^data=(data.h5)$' "$1")" -eq 1 ]
}

# A program on PATH, before others of that name.
fake() { # NAME, its text on standard input
	mkdir -p fakes
	{ echo '#!/bin/bash' && cat; } >"fakes/$1"
	chmod +x "fakes/$1"
}

# As Slurm does, the stand-in for srun signals the ranks; it does so after step 20 if the file
# `signal` exists, and instead of training exits with the code in the file `code`.
slurm() {
	edit slurm
	export SLURM_JOB_ID=42 SLURM_JOB_NODELIST='node[1-2]'
	fake scontrol <<<'echo "scontrol $*" >>log; [ ! -e refuses ]'
	fake srun <<-'END'
		echo "srun $*" >>log
		while [[ $1 == --* ]]; do shift; done
		[[ $1 != pt-train || ! -e code ]] || exit "$(cat code)"
		[ "$RANKS" -gt 1 ] || exec "$@"
		[[ $1 != pt-train || ! -e signal ]] || (
			for _ in $(seq 1000); do
				grep -qs '^step=20 ' run/journal.txt && exec kill -USR1 $(cat pid.0 pid.1)
				sleep 0.02
			done
		) &
		mpiexec -n "$RANKS" sh -c 'echo $$ >pid.$PMI_RANK; exec "$@"' sh "$@"
	END
}

# timeout's timer is SIGALRM, which the stand-in sends after step 20 if the file `signal` exists.
pbs() {
	edit pbs
	printf 'localhost\nlocalhost\n' >nodes
	export PBS_JOBID=7.server PBS_NODEFILE=$PWD/nodes PBS_O_WORKDIR=$PWD
	fake qsub <<<'echo "qsub $*" >>log; [ ! -e refuses ]'
	fake timeout <<-END
		$(command -v timeout) "\$@" <&0 &
		trap "kill -TERM \$!" TERM
		trap "kill -USR1 \$!" USR1
		[[ "\$*" != *pt-train* || ! -e signal ]] || (
			while kill -0 \$! && ! grep -qs '^step=20 ' run/journal.txt; do sleep 0.02; done
			kill -ALRM \$!
		)
		while kill -0 \$! 2>/dev/null; do wait \$!; code=\$?; done
		exit \$code
	END
	fake mpiexec <<-END
		echo "mpiexec \$*" >>log
		while [[ \$1 == -* ]]; do shift 2; done
		[[ \$1 != pt-train || ! -e code ]] || exit "\$(cat code)"
		[ "\$RANKS" -gt 1 ] || exec "\$@"
		exec $(command -v mpiexec) -f nodes -n "\$RANKS" -bind-to core:1 "\$@"
	END
}

# What the log says that was started, without options of the launcher.
started() {
	sed -E 's/^(srun|mpiexec) .*(pt-[a-z]+ [^ ]+).*/\2/' log
}

last_step() {
	grep '^step=' run/journal.txt | tail -n 1 | sed 's/^step=//; s/ .*//'
}

# Every step is in the journal once, up to the last, and the run has ended with this code.
steps_to() { # STEP CODE
	sed -n 's/^step=\([0-9]*\) .*/\1/p' run/journal.txt | cmp - <(seq "$1")
	tail -n 1 run/journal.txt | grep -q "ends with code $2 after step $1"
}

# Runs it until it is stopped, and then to the end.
runs_twice() { # SCHEDULER COMMAND THAT STARTS IT AGAIN
	touch signal
	code_of 0 bash "$1"
	says "trained to step $(last_step)"
	steps_to "$(last_step)" 75
	diff <(started) <(printf '%s\n' 'pt-collbench --smoke' 'pt-train -q' "$2")
	rm signal log
	export PT_STEPS=$(($(last_step) + 5))
	code_of 0 bash "$1"
	steps_to "$PT_STEPS" 0
	diff <(started) <(printf '%s\n' 'pt-collbench --smoke' 'pt-train -q')
}

# The code of a program ends the job, also if an earlier start ended with 75.
passes_on() { # SCHEDULER CODE [NODES]
	rm -f log
	code_of "$2" bash "$1"
	says "pt-train ended with $2 on "
	diff <(started) <(printf '%s\n' 'pt-collbench --smoke' 'pt-train -q')
}

stays() { # SCHEDULER TEXT: it ends with 75 and is not started again
	rm -f log
	reports 75 "$2" bash "$1"
	not grep -qE '^(scontrol|qsub)' log
}

@test "Slurm: the job is requeued after a signal, resumes, and ends at the last step" {
	slurm
	export SLURM_GPUS_PER_NODE=2 SLURM_CPUS_PER_TASK=8
	runs_twice slurm 'scontrol requeue 42'
	[ "$(grep -c ' --cpus-per-task=8 --gpu-bind=none --kill-on-bad-exit=0 ' log)" -eq 2 ]
}

@test "Slurm: what fails ends the job, with its code" {
	slurm
	PT_STEPS=5 PT_COLLBENCH_FAULT=allreduce:1:0 code_of 1 bash slurm
	says 'job 42: the smoke test ended with 1 on node[1-2]: not trained'
	[ "$(started)" = 'pt-collbench --smoke' ]
	[ ! -e run ]
	not grep -q gpu-bind log
	export RANKS=1
	echo damaged >data.h5
	passes_on slurm 65
	rm data.h5
	passes_on slurm 74
	echo 137 >code
	passes_on slurm 137
}

@test "Slurm: without progress, or if it cannot be requeued, the job ends" {
	slurm
	export RANKS=1
	echo 75 >code
	stays slurm 'no progress since step -1'
	rm code
	PT_STEPS=3 code_of 0 bash slurm
	echo 75 >code
	stays slurm 'no progress since step 3'
	rm -r code run
	fake srun <<<'[ "${*: -1}" = --smoke ] || { mkdir -p run/checkpoints; ln -s step-00000009.h5 run/checkpoints/latest.h5; exit 75; }'
	touch refuses
	reports 75 'trained to step 9' bash slurm
	says 'could not be requeued'
}

@test "PBS: the job submits itself again before its time is up, resumes, and ends at the last step" {
	pbs
	runs_twice pbs 'qsub pbs'
	[ "$(grep -c "^mpiexec -f $PWD/nodes -n 2 -bind-to core:1 " log)" -eq 2 ]
}

@test "PBS: qsig -s USR1 starts the next job, SIGTERM does not" {
	pbs
	for s in USR1 TERM; do
		rm -rf log run
		bash pbs >out 2>&1 3>&- &
		job=$!
		wait_for '^step=5 ' run/journal.txt
		kill -$s $job
		ended $job
		cat out
		steps_to "$(last_step)" 75
		if [ $s = USR1 ]; then
			[ "$status" -eq 0 ]
			grep -qx 'qsub pbs' log
		else
			[ "$status" -eq 75 ]
			grep -q 'told to end' out
			not grep -q qsub log
		fi
	done
}

@test "PBS: what fails ends the job, with its code" {
	pbs
	sed 's/^script=.*/script=other/' pbs >renamed
	reports 64 'does not exist' bash renamed
	[ ! -e log ]
	PT_STEPS=5 PT_COLLBENCH_FAULT=allreduce:1:0 code_of 1 bash pbs
	says 'job 7.server: the smoke test ended with 1 on localhost: not trained'
	[ "$(started)" = 'pt-collbench --smoke' ]
	[ ! -e run ]
	export RANKS=1
	echo damaged >data.h5
	passes_on pbs 65
	rm data.h5
	passes_on pbs 74
	# mpiexec says that all is well, and the journal does not
	echo 0 >code
	passes_on pbs 1
	# mpiexec waits for a node that does not answer
	sed 's/^start 2m 10s/start 0.2s 0.2s/' pbs >impatient
	fake mpiexec <<<'trap "" USR1; exec sleep 20'
	reports 137 'the smoke test ended with 137 on localhost' bash impatient
}

@test "PBS: without progress, or if it cannot be submitted, the job ends; 0 of mpiexec is not believed" {
	pbs
	export RANKS=1
	echo 75 >code
	stays pbs 'no progress since step -1'
	rm code
	PT_STEPS=3 code_of 0 bash pbs
	echo 75 >code
	stays pbs 'no progress since step 3'
	rm -r code run log
	fake mpiexec <<-'END'
		[ "${*: -1}" != --smoke ] || exit 0
		mkdir -p run/checkpoints
		ln -sf "step-00000001.h5" run/checkpoints/latest.h5
		echo '# event x step=1 ends with code 75 after step 1' >run/journal.txt
	END
	code_of 0 bash pbs
	grep -qx 'qsub pbs' log
	rm -r run
	touch refuses
	reports 75 'could not be submitted' bash pbs
}

value() { # SCHEDULER NAME: of an option in its lines
	sed -nE "s/^#[A-Z]+ (.*[: ])?$2=([^: ]*).*/\2/p" "$BATS_TEST_DIRNAME/../../share/jobs/$1"
}

@test "in a container, each program starts by the command in inside" {
	slurm
	rm data.h5
	pbs
	sed -i 's/^inside=()$/inside=(box --nv)/' slurm pbs
	fake srun <<<'echo "srun $*" >>log'
	fake mpiexec <<<'echo "mpiexec $*" >>log'
	code_of 0 bash slurm
	code_of 1 bash pbs # there is no journal
	local program
	for program in collbench train; do
		[ "$(grep -c "^srun .*--wait=60 box --nv pt-$program " log)" -eq 1 ]
		[ "$(grep -c "^mpiexec .*-bind-to core:1 box --nv pt-$program " log)" -eq 1 ]
	done
}

@test "the schedulers read all options, which fit together" {
	for s in slurm pbs; do
		# they stop at the first command
		awk '/^#(SBATCH|PBS) / { n++; if (command) exit 1 } /^[^#]/ { command = 1 }
			END { if (n < 5) exit 1 }' "$BATS_TEST_DIRNAME/../../share/jobs/$s"
	done
	[ "$(value slurm --ntasks-per-node)" -eq "$(value slurm --gpus-per-node)" ]
	[ "$(value pbs mpiprocs)" -eq "$(value pbs ngpus)" ]
	cores=$(sed -n 's/^cores=//p' "$BATS_TEST_DIRNAME/../../share/jobs/pbs")
	[ "$(value pbs ncpus)" -eq $((cores * $(value pbs mpiprocs))) ]
	hours=$(value pbs walltime)
	minutes=$(sed -n 's/^train_for=\(.*\)m$/\1/p' "$BATS_TEST_DIRNAME/../../share/jobs/pbs")
	[ "$minutes" -lt $((hours * 60 - 5)) ]
}

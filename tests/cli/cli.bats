#!/usr/bin/env bats
# What all programs have in common.
load helpers

programs='pt-prepare pt-train pt-ckpt pt-compare pt-check pt-sample pt-collbench'

@test "--help goes to standard output and ends with 0" {
	for p in $programs; do
		"$p" --help >out 2>err
		[ ! -s err ]
		grep -q "^usage: $p" out
		grep -q -- '--print-config' out
	done
	# what the list does not show
	pt-train --help | grep -q '^--no-NAME turns a flag off'
	pt-train -p edit --no-edit-skip-anomaly --print-config | grep -qx 'edit-skip-anomaly = no'
}

@test "a manual's SYNOPSIS is what --help says" {
	command -v mandoc >/dev/null || skip 'no mandoc'
	for p in $programs; do
		"$p" --help | awk 'NF == 0 { exit } { sub(/^usage:/, ""); print }' >help
		mandoc -T ascii -O width=500 "$BATS_TEST_DIRNAME/../../man/$p.1" | sed 's/.\x08//g' |
			awk '/^[A-Z]/ { shown = $0 == "SYNOPSIS"; next } shown && NF && $1 != "mpiexec"' >shown
		diff <(tr A-Z a-z <help | sed 's/ *| */|/g; s/^ *//') <(sed 's/ *| */|/g; s/^ *//; s/  */ /g' shown) || {
			echo "$p"
			return 1
		}
	done
}

@test "--version names the libraries" {
	for p in $programs; do
		"$p" --version >out
		grep -q "^$p [0-9]" out
		grep -q '^xxHash' out
		grep -q '^HDF5' out
	done
	pt-train --version | grep -q '^MPICH'
	pt-train --version | grep -q '^CPU kernels'
}

@test "a wrong option is 64, with the nearest name" {
	for p in $programs; do
		reports 64 "unknown option '--versoin'; did you mean '--version'?" "$p" --versoin
	done
}

@test "--print-config reads back to itself" {
	for p in $programs; do
		"$p" --print-config >one
		"$p" --config one --print-config >two
		diff one two
	done
	pt-train -p gpt2-124m --print-config -n 7 --sample-prompt $'a "b"\n#c' >one
	pt-train --config one --print-config >two
	diff one two
	grep -q '^layers = 12$' two
	grep -q '^steps = 7$' two
}

@test "config, environment, command line: the later wins" {
	echo 'layers = 5' >c.conf
	[ "$(pt-train --config c.conf --print-config | grep ^layers)" = 'layers = 5' ]
	[ "$(PT_LAYERS=6 pt-train --config c.conf --print-config | grep ^layers)" = 'layers = 6' ]
	[ "$(PT_LAYERS=6 pt-train --config c.conf --print-config layers=7 | grep ^layers)" = 'layers = 7' ]
	echo 'preset = gpt2-350m' >p.conf
	[ "$(pt-train --config p.conf --print-config | grep ^layers)" = 'layers = 24' ]
}

@test "a typo in a config file says where, and what was meant" {
	printf 'layers = 5\nhaeds = 3\n' >c.conf
	reports 65 "c.conf:2: unknown key 'haeds'; did you mean 'heads'" pt-train --config c.conf -d x.h5
}

@test "what is only for the command line, in another case, or no heading is said so" {
	for key in quiet help config generate print-config; do
		echo "$key = x" >c.conf
		reports 65 "c.conf:1: '$key' is only for the command line" pt-compare --config c.conf
	done
	reports 64 "'quiet' is only for the command line" pt-train quiet=yes
	echo 'no-ckpt = yes' >c.conf
	reports 65 "unknown key 'no-ckpt'; write 'ckpt = no'" pt-train --config c.conf
	echo 'Layers = 3' >c.conf
	reports 65 "c.conf:1: keys are in lowercase; write 'layers'" pt-train --config c.conf
	for line in '[Model' '[Model] x'; do
		echo "$line" >c.conf
		reports 65 'c.conf:1: expected a heading, [words in brackets]' pt-train --config c.conf
	done
	printf '\357\273\277# from an editor\n[Model] # why\nlayers = 3\n' >c.conf
	pt-train --config c.conf --print-config | grep -qx 'layers = 3'
}

@test "messages name the variable, the option with its dashes, and plain bounds" {
	reports 64 "environment variable PT_LR: 'x' is not a number" env PT_LR=x pt-train
	for x in inf -inf; do
		reports 64 "lr: $x is not finite" pt-train --lr=$x
	done
	reports 64 'not between 0 and 1000000' pt-train --weight-decay 1e7
	reports 64 'not between 0 and 0.999' pt-train --dropout 2
	reports 64 "unknown option '--layres'; did you mean '--layers'?" pt-train --layres 3
	reports 64 "unknown option '--no-cktp'; did you mean '--no-ckpt'?" pt-train --no-cktp
	reports 64 "option '--batc' could be --batch, --batch-per-rank" pt-train --batc 3
	code_of 64 pt-train --no-lyaers
	not grep -q 'no-layers' <<<"$output"
}

@test "--generate: what it can make is said" {
	reports 64 "generate: 'foo' is none of man, checkpoint" pt-ckpt --generate foo
	reports 64 "absent; did you mean 'saved'?" pt-train --generate svaed
	for p in $programs; do
		for kind in $("$p" --generate foo 2>&1 | sed 's/.*none of //; s/;.*//; s/,//g'); do
			"$p" --generate "$kind" >made
			[ -s made ]
		done
	done
}

commands_of() { # PROGRAM: as its --help has them
	"$1" --help | sed -n "s/^usage: *//; s/^ *$1 \([a-z-]*\) .*/\1/p" | paste -sd ' '
}

# What may stand for the last word, without what it does; in one line.
candidates() { # PROGRAM WORD...
	"$1" --complete "${@:2}" >candidates
	cut -f 1 candidates | paste -sd ' ' | sed 's/ *$//'
}

@test "--complete: options, values, presets, commands, operands, files" {
	[ "$(candidates pt-train --no-ck)" = '--no-ckpt --no-ckpt-best' ]
	[ "$(candidates pt-train --layer)" = --layers ]
	grep -q $'^--layers\t[A-Z].*\\.$' candidates
	[ "$(candidates pt-train --arch '')" = 'gpt2 llama olmo2 gemma2 gemma3 glm4' ]
	[ "$(candidates pt-train -a '')" = 'gpt2 llama olmo2 gemma2 gemma3 glm4' ]
	[ "$(candidates pt-train --arch l)" = llama ]
	[ "$(candidates pt-train --arch=l)" = '--arch=llama' ]
	[ "$(candidates pt-train --arch=gp)" = --arch=gpt2 ]
	[ "$(candidates pt-train arch=gp)" = arch=gpt2 ]
	[ "$(candidates pt-train arch gemm)" = 'gemm-algorithms= :files .h5' ]
	[ "$(candidates pt-train lay)" = 'layers= :files .h5' ]
	[ "$(candidates pt-train '')" = ':files .h5' ] # keys are many
	[ "$(candidates pt-train)" = ':files .h5' ]
	[ "$(candidates pt-train ckpt=)" = 'ckpt=yes ckpt=no' ]
	[ "$(candidates pt-train --ckpt=n)" = --ckpt=no ]
	[ "$(candidates pt-train --ckpt lay)" = 'layers= :files .h5' ] # a flag takes no next word
	[ "$(candidates pt-train -n '')" = '' ]
	[ "$(candidates pt-train --batch=)" = '' ]
	[ "$(candidates pt-train --preset '')" = "$(basename -s .conf "$BATS_TEST_DIRNAME"/../../share/presets/* | paste -sd ' ')" ]
	[ "$(candidates pt-train --preset=llama2)" = --preset=llama2-7b ]
	[ "$(candidates pt-train --resume au)" = 'auto :files .h5' ]
	[ "$(candidates pt-compare --format torch)" = 'torchtitan torchtitan-losses torchtune :files' ]
	[ "$(candidates pt-compare --launcher '')" = '' ]
	[ "$(candidates pt-train --resume=au)" = '--resume=auto :files .h5' ]
	[ "$(candidates pt-train --peak-flops '')" = measure ]
	[ "$(candidates pt-train --out '')" = ':folders' ]
	[ "$(candidates pt-train --config x)" = ':files' ]
	[ "$(candidates pt-ckpt '')" = "$(commands_of pt-ckpt)" ]
	[ "$(candidates pt-ckpt -q ve)" = verify ]
	[ "$(candidates pt-ckpt verify ve)" = ':files .h5' ]
	[ "$(candidates pt-ckpt verify --generate ch)" = checkpoint ]
	[ "$(candidates pt-ckpt layers=)" = '' ] # it has no settings
	[ "$(candidates pt-collbench all allg)" = allgather ]
	[ "$(candidates pt-collbench --root '')" = all ]
	[ "$(candidates pt-compare x=)" = ':files' ]
	reports 64 '--complete must be the first argument' pt-train -q --complete x
}

# What bash would offer for the last of these words; it takes --name=value as three.
offers() { # PROGRAM WORD...
	# shellcheck source=/dev/null
	. "$BATS_TEST_DIRNAME/../../completions/pt.bash"
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	_pt_complete
	printf '%s\n' "${COMPREPLY[@]}"
}

@test "bash completion: pieces around =, and files" {
	[ "$(offers pt-train --arch = gp)" = gpt2 ]
	[ "$(offers pt-train --arch =)" = $'gpt2\nllama\nolmo2\ngemma2\ngemma3\nglm4' ]
	[ "$(offers pt-train arch = l)" = llama ]
	[ "$(offers pt-train -a '')" = $'gpt2\nllama\nolmo2\ngemma2\ngemma3\nglm4' ]
	[ "$(offers pt-train lr = 3 --no-ck)" = $'--no-ckpt\n--no-ckpt-best' ]
	[ "$(offers pt-train lay)" = layers= ]
	[ "$(offers pt-train ckpt = '')" = $'yes\nno' ]
	[ "$(offers pt-train -n '')" = '' ]
	[ "$(offers pt-ckpt '' | paste -sd ' ')" = "$(commands_of pt-ckpt)" ]
	mkdir 'a folder'
	touch 'my file.h5' 'my file.txt'
	[ "$(offers pt-ckpt show my)" = 'my file.h5' ]
	[ "$(offers pt-sample a)" = 'a folder' ]
	[ "$(offers pt-train -d my)" = 'my file.h5' ]
	[ "$(offers pt-train --data = my)" = 'my file.h5' ]
	[ "$(offers pt-train --out '')" = 'a folder' ]
	[ "$(offers pt-train --config my | sort)" = $'my file.h5\nmy file.txt' ]
	[ "$(offers pt-train my)" = 'my file.h5' ]
	[ "$(offers pt-train --resume '')" = $'auto\nmy file.h5\na folder' ]
	[ "$(offers pt-compare x = '' | sort)" = $'a folder\nmy file.h5\nmy file.txt' ]
}

@test "fish completion: the same words" {
	command -v fish >/dev/null || skip 'no fish'
	fishes() { # LINE
		sed "s/@PROGRAMS@/${1%% *}/" "$BATS_TEST_DIRNAME/../../completions/pt.fish" >stub.fish
		HOME=$PWD XDG_DATA_HOME=$PWD XDG_CONFIG_HOME=$PWD fish --no-config -c \
			". ./stub.fish; complete -C '$1'" | cut -f1
	}
	[ "$(fishes 'pt-train --arch=gp')" = --arch=gpt2 ]
	[ "$(fishes 'pt-train --preset llama2')" = llama2-7b ]
	[ "$(fishes 'pt-train arch=gp')" = arch=gpt2 ]
	[ "$(fishes 'pt-train --no-ckpt-')" = --no-ckpt-best ]
	[ "$(fishes 'pt-train --resume au')" = auto ]
	[ "$(fishes 'pt-ckpt ve')" = verify ]
	fishes 'pt-collbench ' | grep -qx allreduce
	[ "$(fishes 'pt-collbench allg')" = allgather ]
	mkdir folder
	[ "$(fishes 'pt-ckpt verify fol')" = folder/ ]
	[ "$(fishes 'pt-train --out=fol')" = --out=folder/ ]
	[ "$(fishes 'pt-ckpt fol')" = '' ]
}

@test "zsh completion: what it is told" {
	command -v zsh >/dev/null || skip 'no zsh'
	# functions in the place of those of zsh's completion, which want a terminal
	cat >zshes <<-'END'
		_describe() { print -rl -- $3 ${(P)4} ${@:5} }
		_files() { print -r -- files $@ }
		compset() { print -r -- compset $@ }
		words=("$@") CURRENT=$# PREFIX=${@[-1]} words[CURRENT]=cut
	END
	sed "s/@PROGRAMS@/pt/" "$BATS_TEST_DIRNAME/../../completions/pt.zsh" >>zshes
	zshes() {
		zsh -f ./zshes "$@" | paste -sd ' '
	}
	[ "$(zshes pt-train --arch=gp)" = 'key -S word --arch=gpt2' ]
	[[ $(zshes pt-train lay) = 'key layers=:Number of transformer layers (blocks). -S word compset -P 1 *= files -g *.h5(-.)' ]]
	[ "$(zshes pt-train --out '')" = 'key -S word compset -P 1 *= files -/' ]
	[ "$(zshes pt-train --config '')" = 'key -S word compset -P 1 *= files' ]
	[ "$(zshes pt-ckpt ve)" = 'key -S word verify' ]
}

@test "standard output that cannot be written is 74" {
	for p in $programs; do
		code_of 74 bash -c "$p --help >/dev/full"
	done
}

@test "an error that blames an option of a file says of which" {
	code_of 64 pt-train -p edit
	says '--edit-sync-interval needs --edit-workers (--edit-sync-interval is from preset edit)'
	echo 'edit-fragments = 3' >some.conf
	code_of 64 pt-train --config some.conf
	says '--edit-fragments needs --edit-outer or --edit-reducer (--edit-fragments is from some.conf)'
	code_of 64 pt-train -p gpt2-124m --lr 1e-5
	says '--min-lr 6e-05 is above --lr 1e-05 (--min-lr is from preset gpt2-124m)'
	code_of 64 pt-train -p gpt2-124m,diloco --edit-sync-interval 4 --edit-workers 7
	says '--batch 480 is not divisible by --edit-workers 7 (--batch is from preset gpt2-124m)'
	code_of 64 pt-train -p gpt2-124m --micro-batch 7
	says '--batch 480 is not divisible by --micro-batch 7; give another --micro-batch (--batch is from preset gpt2-124m)'
	make_shard
	code_of 64 pt-train -p gpt2-124m --heads 7 --dry-run -d data.h5
	says 'dim (768) is not divisible by heads (7) (--dim is from preset gpt2-124m)'
	# an option that the user gave is the user's
	reports 64 '--edit-sync-interval needs --edit-workers' pt-train -p edit --edit-sync-interval 5
	not grep -q 'edit-sync-interval is from' <<<"$output"
	PT_EDIT_SYNC_INTERVAL=5 code_of 64 pt-train -p edit
	not grep -q 'edit-sync-interval is from' <<<"$output"
	code_of 64 pt-train --edit-sync-interval 5
	not grep -q 'is from' <<<"$output"
}

@test "presets: parameters are those of the papers" {
	while read -r preset n; do
		pt-train -p "$preset" --dry-run >out
		grep -q "^  $n parameters" out || {
			echo "$preset"
			grep parameters: out
			return 1
		}
	done <<-END
		gpt2-124m 124475904
		gpt2-350m 354871296
		gpt2-774m 774090240
		gpt2-1558m 1557686400
		llama2-7b 6738415616
		llama3-1b 1235814400
		llama3-8b 8030261248
		llama3-70b 70553706496
		llama3-405b 405853388800
		smollm2-135m 134515008
		smollm2-1.7b 1711376384
		mistral-7b 7248023552
		qwen2.5-0.5b 494032768
		qwen3-0.6b 596049920
		qwen3-1.7b 1720574976
		qwen3-8b 8190735360
		qwen3-32b 32762123264
		smollm3-3b 3075098624
		mixtral-8x7b 46702792704
		olmoe-1b-7b 6919161856
		qwen3-30b-a3b 30532122624
		qwen1.5-moe-a2.7b 14315784192
		dots1 142774381696
	END
	# as the originals print: nn.GELU(approximate='none'), 64 sequences on each of four GPUs
	for preset in wordplay shakespeare-char; do
		pt-train -p $preset --print-config | grep -qx 'act = gelu'
	done
	pt-train -p wordplay --vocab 65 --fsdp 4 --dry-run >out
	grep -qx 'tokens/step  *262144' out
	grep -q '^micro-batches  *1 ' out
	# one of a model, and one of how it is trained; which needs to know how many do
	for how in post-local-sgd diloco edit a-edit; do
		pt-train -p "gpt2-124m,$how" --edit-workers 4 --dry-run >out
		grep -q '^  124475904 parameters' out
		grep -q '^# workers: 4, ' out
		reports 64 'needs --edit-workers' pt-train -p "gpt2-124m,$how" -d x.h5
	done
	# as published, without the padding of the vocabulary
	pt-train -p gpt2-124m --vocab-multiple 1 --dry-run | grep -q '^  124439808 parameters'
	pt-train -p gpt2-1558m --vocab-multiple 1 --dry-run | grep -q '^  1557611200 parameters'
	reports 64 "did you mean 'gpt2-124m'" pt-train -p gpt2-125m -d x.h5
	reports 64 "did you mean 'diloco'" pt-train -p gpt2-124m,dilco -d x.h5
	make_shard
	pt-train -p experts-debug -d data.h5 -n 2 -e 0 -T 32 -b 4 -o debug 2>log
	grep -q '^  experts  *8; 2 of them' log
}

# The variable names a file that is missing, as on a machine without MPI.
@test "programs start without MPI, and one rank never loads it" {
	for p in $programs; do
		[ -z "$(ldd "$(command -v "$p")" | grep libmpi)" ]
		PT_MPI_LIBRARY=$PWD/none "$p" --version >/dev/null
	done
	[ "$(PT_MPI_LIBRARY=$PWD/none pt-train --version | grep MPI)" = 'no MPI library' ]
	make_shard
	PT_MPI_LIBRARY=$PWD/none tiny -n 1 -o one >one.log
	PT_MPI_LIBRARY=$PWD/none pt-sample one -n 1
	[ -z "$(LD_DEBUG=libs tiny -n 1 -o loads 2>&1 | grep libmpi)" ]
	same one loads
	grep -q 'no MPI' <(h5dump -A one/run.h5)
	# several ranks: rank 0 reports what to install, once
	reports 1 'install it by `apt install mpich` or `pip install mpich`' \
		env PT_MPI_LIBRARY="$PWD/none" mpiexec -n 2 pt-train "${TINY[@]}" -n 1 -o two
	says "MPI cannot be loaded: $PWD/none: cannot open shared object file"
	[ "$(grep -c 'MPI cannot be loaded' <<<"$output")" = 1 ]
	[ ! -e two ]
}

# Libraries with the names of MPI's functions: what they report decides.
@test "an MPI without MPICH's ABI is rejected" {
	library() { # NAME C...
		echo "#include <string.h>
			int MPI_Get_library_version(char *s, int *n) { return *n = strlen(strcpy(s, \"$1 1.0, build 2\")), 0; }
			$2" | gcc -x c -shared -fPIC -w -o "$1.so" -
	}
	library OpenMPI 'int ompi_mpi_comm_world;'
	library Standard 'int MPI_Abi_get_version(int *a, int *b) { return *a = 1, *b = 0; }'
	library Old 'int MPI_Abi_get_version(int *a, int *b) { return *a = *b = -1, 0; }'
	echo 'int none;' | gcc -x c -shared -o none.so -
	make_shard
	rejected() { # LIBRARY REASON
		reports 1 "MPI cannot be loaded: $PWD/$1.so $2" env PT_MPI_LIBRARY="$PWD/$1.so" PT_MPI=yes pt-train "${TINY[@]}" -o run
		[ ! -e run ]
	}
	rejected OpenMPI 'is OpenMPI 1.0; pt needs MPICH;'
	rejected Standard "has the standard ABI of MPI 5; pt needs MPICH's own, libmpi.so.12;"
	rejected Old 'has no function MPI_Abort; pt needs MPICH 4.0 or later;'
	rejected none 'is not an MPI library; pt needs MPICH;'
}

# As `pip install mpich` leaves it, in the environment of the programs.
@test "libmpi.so.12 in ../lib relative to the program comes first" {
	mkdir -p env/bin env/lib
	cp "$(command -v pt-train)" env/bin
	ln -s "$(gcc -print-file-name=libmpich.so.12)" env/lib/libmpi.so.12
	make_shard
	LD_DEBUG=files PT_MPI=yes env/bin/pt-train "${TINY[@]}" -n 1 -o run >out 2>&1
	grep -q 'calling init: .*env/bin/../lib/libmpi.so.12' out
}

@test "pt(7) names files and functions that exist" {
	"$BATS_TEST_DIRNAME"/../tools/names
}

@test "words of other trainers are answered, and so is what is not supported" {
	while IFS='|' read -r word answer; do
		code_of 64 pt-train "--$word" 1
		[ "$output" = "pt-train: $answer" ]
	done <<-'END'
		save_steps|unknown option '--save_steps'; did you mean '--ckpt-every'?
		per_device_train_batch_size|unknown option '--per_device_train_batch_size'; did you mean '--micro-batch'?
		output-dir|unknown option '--output-dir'; did you mean '--out'?
		max_grad_norm|unknown option '--max_grad_norm'; did you mean '--clip'?
		bf16|unknown option '--bf16'; --dtype fp32, bf16, fp16 or float8 sets the precision
		use_wandb|unknown option '--use_wandb'; --log-to wandb:DIRECTORY writes runs for wandb sync, tensorboard:DIRECTORY event files
		parquet|unknown option '--parquet'; pt-prepare reads Parquet and Arrow files
		lora|--lora: adapters such as LoRA are not supported; --freeze REGEX trains a part of the model
		use_moe|unknown option '--use_moe'; --experts N replaces feed-forward networks by N experts; see pt-experts(7)
		num_local_experts|unknown option '--num_local_experts'; did you mean '--experts'?
	END
	for word in dpo find-lr ema patience; do
		reports 64 'are not supported; ' pt-train --$word 1
	done
	reports 64 "none of fp32, bf16, fp16, float8; --dtype bf16" pt-train dtype=bfloat16
	reports 64 '; a preset sets arch' pt-train --arch qwen3
	reports 74 'hf download org/model --local-dir model' pt-train --vocab 10 --init-from org/model
	reports 64 '--help' pt-train
	# no word is an option, too, or answered twice
	sed -n '/train_answers/,/{NULL}/p' "$BATS_TEST_DIRNAME/../../libcore/engine/options_elsewhere.c" >table
	sed -n 's/.*\.elsewhere = "\([^"]*\)".*/\1/p' "$BATS_TEST_DIRNAME/../../libcore/engine/options.c" |
		tr ' ' '\n' | grep . >words
	grep -oE '^	(\{| )"[^"]*"' table | tr -d '{"\t' | tr ' ' '\n' | grep . >>words
	[ "$(wc -l <words)" -gt 150 ]
	sort words | uniq -d | cmp - /dev/null
	pt-train --help | sed -n 's/^ .* --\(\[no-\]\)\{0,1\}\([a-z0-9-]*\).*/\2/p' | sort -u |
		comm -12 - <(sort words) | cmp - /dev/null
}

@test "a variable that no program has is reported, if it resembles one" {
	for p in pt-compare pt-train; do
		run env PT_BACTH=6 PT_BATCH_SIZE=3 PT_LAYERS=1 PT_SOMETHING_ELSE=1 "$p" --print-config
		[ "$(grep -c warning <<<"$output")" -ge 1 ]
		says "$p: warning: PT_BACTH is ignored: no program uses it; did you mean 'PT_BATCH'?"
		not says PT_LAYERS
		not says PT_SOMETHING_ELSE
	done
	says "PT_BATCH_SIZE is ignored: no program uses it; did you mean 'PT_BATCH'?"
}

# bash completion for pt-collbench; made by pt-collbench --generate bash
_pt_collbench()
{
	local at=$COMP_CWORD flag=
	local cur=${COMP_WORDS[at]}
	[[ $cur == = ]] && cur= && at=$((at + 1))
	local option=${COMP_WORDS[at-1]}
	COMPREPLY=()
	if [[ $option == = && ${COMP_WORDS[at-2]} == --* ]]; then
		flag=${COMP_WORDS[at-2]}
		option=--${flag#--}
	fi
	case $option in
	-b | --minbytes) return ;;
	-e | --maxbytes) return ;;
	-i | --stepbytes) return ;;
	-f | --stepfactor) return ;;
	-n | --iters) return ;;
	--seconds) return ;;
	-w | --warmup-iters) return ;;
	-c | --check) return ;;
	--passes) return ;;
	--reruns) return ;;
	-o | --op) mapfile -t COMPREPLY < <(compgen -W 'sum prod min max all' -- "$cur"); return ;;
	-d | --datatype) mapfile -t COMPREPLY < <(compgen -W 'int8 uint8 int32 uint32 int64 uint64 float double half bfloat16 f8e4m3 f8e5m2 all' -- "$cur"); return ;;
	-r | --root) mapfile -t COMPREPLY < <(compgen -W 'all' -- "$cur"); return ;;
	-m | --aggregate) return ;;
	--window) return ;;
	--calls) mapfile -t COMPREPLY < <(compgen -W 'nonblocking blocking' -- "$cur"); return ;;
	-a | --average) mapfile -t COMPREPLY < <(compgen -W 'max avg min rank0' -- "$cur"); return ;;
	--polls) return ;;
	--split) return ;;
	--groups) mapfile -t COMPREPLY < <(compgen -W 'all one both' -- "$cur"); return ;;
	--device) mapfile -t COMPREPLY < <(compgen -W 'cpu cuda' -- "$cur"); return ;;
	--comm) mapfile -t COMPREPLY < <(compgen -W 'auto nccl mpi both' -- "$cur"); return ;;
	--launch) mapfile -t COMPREPLY < <(compgen -W 'blocking queued graph' -- "$cur"); return ;;
	--out) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	--compare) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	--threshold) return ;;
	--retries) return ;;
	--from) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	--marks) mapfile -t COMPREPLY < <(compgen -W 'auto braille ascii' -- "$cur"); return ;;
	--width) return ;;
	--height) return ;;
	-p | --plot) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--plot-of) mapfile -t COMPREPLY < <(compgen -W 'busbw time' -- "$cur"); return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--minbytes --maxbytes --stepbytes --stepfactor --iters --seconds --warmup-iters --check --passes --reruns --op --datatype --root --aggregate --window --calls --barrier --average --overlap --polls --split --groups --device --comm --launch --registered --per-iteration --out --compare --threshold --retries --from --graph --marks --log-scale --width --height --plot --plot-of --overwrite --smoke --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	mapfile -t COMPREPLY < <(compgen -W 'allreduce reduce broadcast allgather reducescatter scatter gather alltoall sendrecv barrier latency bandwidth bidirectional alltoallv hypercube all' -- "$cur")
}
complete -F _pt_collbench pt-collbench

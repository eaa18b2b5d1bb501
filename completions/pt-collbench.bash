# bash completion for pt-collbench; made by pt-collbench --generate bash
_pt_collbench()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	case $prev in
	-b | --minbytes) COMPREPLY=(); return ;;
	-e | --maxbytes) COMPREPLY=(); return ;;
	-i | --stepbytes) COMPREPLY=(); return ;;
	-f | --stepfactor) COMPREPLY=(); return ;;
	-n | --iters) COMPREPLY=(); return ;;
	-w | --warmup-iters) COMPREPLY=(); return ;;
	-c | --check) COMPREPLY=(); return ;;
	-o | --op) COMPREPLY=($(compgen -W 'sum prod min max all' -- "$cur")); return ;;
	-d | --datatype) COMPREPLY=($(compgen -W 'int8 uint8 int32 uint32 int64 uint64 float double all' -- "$cur")); return ;;
	-r | --root) COMPREPLY=(); return ;;
	--out) COMPREPLY=($(compgen -f -X '!*.h5' -- "$cur") $(compgen -d -S / -- "$cur")); return ;;
	--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--generate) COMPREPLY=(); return ;;
	esac
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W '--minbytes --maxbytes --stepbytes --stepfactor --iters --warmup-iters --check --op --datatype --root --per-iteration --out --smoke --config --print-config --quiet --help --version --generate ' -- "$cur"))
		return
	fi
}
complete -o filenames -F _pt_collbench pt-collbench

# bash completion for pt-prepare; made by pt-prepare --generate bash
_pt_prepare()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	case $prev in
	-o | --out) COMPREPLY=($(compgen -f -X '!*.h5' -- "$cur") $(compgen -d -S / -- "$cur")); return ;;
	-t | --tokenizer) COMPREPLY=($(compgen -W 'byte char' -- "$cur")); return ;;
	-s | --split) COMPREPLY=($(compgen -W 'tail document' -- "$cur")); return ;;
	-f | --val-fraction) COMPREPLY=(); return ;;
	--separator) COMPREPLY=(); return ;;
	--seed) COMPREPLY=(); return ;;
	--shard-size) COMPREPLY=(); return ;;
	-d | --decode) COMPREPLY=($(compgen -W 'no train val' -- "$cur")); return ;;
	--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--generate) COMPREPLY=(); return ;;
	esac
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W '--out --tokenizer --split --val-fraction --separator --seed --shard-size --overwrite --info --verify --decode --config --print-config --quiet --help --version --generate ' -- "$cur"))
		return
	fi
	COMPREPLY=($(compgen -f -- "$cur"))
}
complete -o filenames -F _pt_prepare pt-prepare

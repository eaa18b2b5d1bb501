# bash completion for pt-prepare; made by pt-prepare --generate bash
_pt_prepare()
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
	-o | --out) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	-t | --tokenizer) mapfile -t COMPREPLY < <(compgen -W 'byte char' -- "$cur"); return ;;
	-s | --split) mapfile -t COMPREPLY < <(compgen -W 'tail document' -- "$cur"); return ;;
	-f | --val-fraction) return ;;
	--separator) return ;;
	--seed) return ;;
	--shard-size) return ;;
	--spool-limit) return ;;
	-d | --decode) mapfile -t COMPREPLY < <(compgen -W 'no train val' -- "$cur"); return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish shard tokenizer' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--out --tokenizer --split --val-fraction --separator --seed --shard-size --overwrite --spool-limit --info --verify --decode --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
complete -F _pt_prepare pt-prepare

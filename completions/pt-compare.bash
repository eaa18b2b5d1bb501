# bash completion for pt-compare; made by pt-compare --generate bash
_pt_compare()
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
	-b | --by) mapfile -t COMPREPLY < <(compgen -W 'step tokens' -- "$cur"); return ;;
	-r | --rtol) return ;;
	-a | --atol) return ;;
	--spool-limit) return ;;
	-y | --column) mapfile -t COMPREPLY < <(compgen -W 'loss grad_norm train_loss val_loss' -- "$cur"); return ;;
	-x | --axis) mapfile -t COMPREPLY < <(compgen -W 'auto step tokens seconds bytes' -- "$cur"); return ;;
	--width) return ;;
	--height) return ;;
	-p | --plot) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish run columns' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--by --rtol --atol --common --spool-limit --column --axis --graph --width --height --plot --table --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
complete -F _pt_compare pt-compare

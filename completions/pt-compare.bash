# bash completion for pt-compare; made by pt-compare --generate bash
_pt_compare()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	case $prev in
	-b | --by) COMPREPLY=($(compgen -W 'step tokens' -- "$cur")); return ;;
	-r | --rtol) COMPREPLY=(); return ;;
	-a | --atol) COMPREPLY=(); return ;;
	-y | --column) COMPREPLY=($(compgen -W 'loss grad_norm train_loss val_loss' -- "$cur")); return ;;
	--width) COMPREPLY=(); return ;;
	--height) COMPREPLY=(); return ;;
	-p | --plot) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--generate) COMPREPLY=(); return ;;
	esac
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W '--by --rtol --atol --common --column --graph --width --height --plot --table --config --print-config --quiet --help --version --generate ' -- "$cur"))
		return
	fi
	COMPREPLY=($(compgen -f -- "$cur"))
}
complete -o filenames -F _pt_compare pt-compare

# bash completion for pt-ckpt; made by pt-ckpt --generate bash
_pt_ckpt()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	case $prev in
	--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--generate) COMPREPLY=(); return ;;
	esac
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W '--optimizer --no-optimizer --options --force --config --print-config --quiet --help --version --generate ' -- "$cur"))
		return
	fi
	COMPREPLY=($(compgen -f -X '!*.h5' -- "$cur") $(compgen -d -S / -- "$cur"))
}
complete -o filenames -F _pt_ckpt pt-ckpt

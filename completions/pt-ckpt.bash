# bash completion for pt-ckpt; made by pt-ckpt --generate bash
_pt_ckpt()
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
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish checkpoint' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--optimizer --no-optimizer --strict --options --force --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	local word first=yes
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		[[ $word == -* ]] || first=no
	done
	if [[ $first == no ]]; then
		compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur")
		return
	fi
	mapfile -t COMPREPLY < <(compgen -W 'ls show verify diff hash rm' -- "$cur")
}
complete -F _pt_ckpt pt-ckpt

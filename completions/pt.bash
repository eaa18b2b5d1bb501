# bash completion for all programs of pt, which know the candidates: PROGRAM --complete WORD...
_pt_complete()
{
	local word words=() i=-1
	for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do # of --name=value there are three
		if ((i >= 0)) && [[ $word == = || ${words[i]} == *= ]]; then
			words[i]+=$word
		else
			words[++i]=$word
		fi
	done
	local line cur=${COMP_WORDS[COMP_CWORD]}
	[[ $cur == = ]] && cur=
	local before=${words[i]%"$cur"}
	COMPREPLY=()
	while IFS= read -r line; do
		if [[ $line != :* ]]; then
			line=${line%%$'\t'*}
			COMPREPLY+=("${line#"$before"}")
			continue
		fi
		compopt -o filenames 2>/dev/null # blanks in names are quoted
		mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(
			[[ $line == :folders ]] || compgen -f -X "!*${line#:files }" -- "$cur"
			[[ $line == ":files " ]] || compgen -d -- "$cur"
		)
	done < <("${COMP_WORDS[0]/#\~\//$HOME/}" --complete "${words[@]}" 2>/dev/null)
	[[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null
	return 0
}
complete -F _pt_complete @PROGRAMS@

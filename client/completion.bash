# bash completion for the program jobq.  Commands and options are those that its
# help names.

# Of these words, offer those that begin with what was typed, quoted so that the
# shell takes them as they are.  Whoever may enqueue gives queues their names, so
# nothing may expand a word: "compgen -W" would run what stands in "$(...)".
_jobq_offer()
{
	local typed=$1 word quoted

	shift
	for word; do
		printf -v quoted %q "$word"
		if [[ $word == "$typed"* || $quoted == "$typed"* ]]; then
			COMPREPLY+=("$quoted")
		fi
	done
}

# The names of queues, as far as the server can be asked without a password.  They
# come as strings of JSON, whose escapes printf knows, but for that of a quotation mark.
_jobq_offer_queues()
{
	local name names=() escaped='\"' known='\x22'

	while IFS= read -r name; do
		name=${name#'"name":"'}
		name=${name%'"'}
		printf -v name %b "${name//"$escaped"/"$known"}"
		names+=("$name")
	done < <(PGCONNECT_TIMEOUT=2 jobq -w --json queues 2>/dev/null |
		grep -a -o -E '"name":"([^"\\]|\\.)*"')
	_jobq_offer "$1" "${names[@]}"
}

_jobq()
{
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command= i words

	COMPREPLY=()
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
			-d | -h | -p | -U | --dbname | --host | --port | --username | --color) ((i++)) ;;
			-*) ;;
			*)
				command=${COMP_WORDS[i]}
				break
				;;
		esac
	done
	case $before in
		--color)
			_jobq_offer "$word" always never auto
			return
			;;
		-q | --queue)
			command=pause
			;;
	esac
	if [[ $word == -* ]]; then
		mapfile -t words < <(jobq ${command:+help "$command"} ${command:---help} 2>/dev/null |
			grep -o -- '--[a-z0-9-]*')
		_jobq_offer "$word" "${words[@]}"
		return
	fi
	case $command in
		'' | help)
			mapfile -t words < <(jobq --help 2>/dev/null |
				sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p')
			_jobq_offer "$word" "${words[@]}" help
			;;
		pause | resume | wait-queue | work | alter-queue | drop-queue)
			_jobq_offer_queues "$word"
			;;
	esac
}
complete -F _jobq jobq

# Functions shared by the scripts in this folder; to be sourced by bash.

umask 022

# Hide settings for other servers, and for a calling make, from pg_regress, psql and
# make.
for v in ${!PG*} MAKEFLAGS MFLAGS MAKELEVEL PERL5LIB; do unset "$v"; done
unset v

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$tools/../.." && pwd)

# The tested majors: the major packaged by this Debian, and builds of the others with
# assertions.
case $(. /etc/os-release 2>/dev/null && echo "${ID:-}${VERSION_ID:-}") in
	debian13) packaged_major=17 source_majors="15 18" ;;
	*) packaged_major=15 source_majors="17 18" ;;
esac
all_majors="$packaged_major $source_majors"
# Majors that are tested where Debian has the source; so far, experimental.
future_majors=19
processors=$(nproc)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

# Run a command with output to LOG.  Print the last line every five seconds; on failure,
# print the end of the log.
# usage: quietly LOG COMMAND [ARG]...
quietly() {
	local log=$1 teller rc=0 start=$SECONDS
	shift
	: >"$log"
	(
		while sleep 5 >/dev/null 2>&1; do
			say "... $((SECONDS - start)) s $(tail -n 3 "$log" | tr '\r' '\n' | grep . | tail -n 1 | cut -c 1-90)"
		done
	) &
	teller=$!
	"$@" >"$log" 2>&1 || rc=$?
	kill "$teller" 2>/dev/null || true
	wait "$teller" 2>/dev/null || true
	if [ "$rc" != 0 ]; then
		tail -n 40 "$log" >&2
		say "failed: $*"
	fi
	return "$rc"
}

# The folder of built servers.  For root, the folder must be readable by the ordinary
# user who runs the servers.
if [ -n "${JOBQ_CACHE:-}" ]; then
	cache=$JOBQ_CACHE
elif [ "$(id -u)" = 0 ]; then
	cache=/var/cache/jobq
else
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/jobq
fi

# Servers refuse to run as root: run them as this user.
if [ "$(id -u)" = 0 ]; then
	user=${JOBQ_USER:-postgres}
else
	user=$(id -un)
fi

# Run a command as the ordinary user, in the current folder and environment.
as_user() {
	if [ "$(id -u)" = 0 ]; then
		runuser -u "$user" -- env HOME="$(getent passwd "$user" | cut -d: -f6)" \
			USER="$user" LOGNAME="$user" "$@"
	else
		"$@"
	fi
}

# Make an empty folder owned by the ordinary user, and print the name.  The name is
# short, because the path of a socket is limited to 107 bytes.
private_folder() {
	local dir
	dir=$(mktemp -d "${TMPDIR:-/tmp}/jobq.XXXXXX")
	if [ "$(id -u)" = 0 ]; then
		chown "$user": "$dir"
	fi
	echo "$dir"
}

# Print the names of the files of the work tree without ignored files, each followed by a
# null byte.  Without .git, as in an unpacked archive, or without the program git,
# .gitignore is read here.  A line that begins with "!" re-includes files excluded above.
tree_files() {
	local pattern sign path test=()
	cd "$root"
	if [ -e .git ] && command -v git >/dev/null; then
		git -c safe.directory="$root" ls-files -co --exclude-standard -z |
			while IFS= read -r -d '' path; do
				if [ -e "$path" ]; then printf '%s\0' "$path"; fi
			done
		return
	fi
	while read -r pattern; do
		case $pattern in
			"" | "#"*) continue ;;
			"!"*) sign=-o pattern=${pattern#!} ;;
			*) sign=-a ;;
		esac
		case $pattern in
			/*) path=.$pattern ;;
			*) path="*/$pattern" ;;
		esac
		path=${path%/}
		if [ "$sign" = -a ]; then
			test=("(" "${test[@]}" ")" "!" "(" -path "$path" -o -path "$path/*" ")")
		else
			test=("(" "${test[@]}" ")" -o "(" -path "$path" -o -path "$path/*" ")")
		fi
		[ "${test[1]}" != ")" ] || test=("${test[@]:2}")
	done <.gitignore
	find . -path ./.git -prune -o "(" -type f -o -type l ")" "(" "${test[@]}" ")" -printf '%P\0'
}

# Copy the work tree to a folder of the ordinary user.
copy_tree() {
	mkdir -p "$1"
	(tree_files | tar -c -C "$root" --null -T -) | tar -xf - -C "$1" --no-same-owner
	own "$1"
}

# Give a folder to the ordinary user.
own() {
	[ "$(id -u)" != 0 ] || chown -R "$user": "$1"
}

# A server with sanitizers stops at the first error.  Memory is not freed at the end.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=1:print_stacktrace=1
export UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1

# Copy the server of MAJOR to a folder of the ordinary user, so that installations need
# no privilege.  Print the path of pg_config.  Further arguments are passed to
# build-postgres.
copy_server() {
	local prefix
	prefix=$("$tools/build-postgres" "${@:3}" "$1") || return
	cp -a "$prefix" "$2"
	own "$2"
	find "$2" -path '*/bin/pg_config'
}

# The name of the archive of the installed files for TREE and the server of MAJOR in
# SERVER: a checksum of all inputs of the build.  TREE must not be built yet.
# usage: built_archive MAJOR SERVER TREE
built_archive() {
	local state
	state=$({
		cat "$2/stamp"
		cc --version
		# without these headers, parts of the program jobq are omitted
		find /usr/include -name curl.h -o -name curses.h -o -name jansson.h -o -name microhttpd.h -o -name amqp.h | LC_ALL=C sort
		cd "$3"
		find Makefile client control src worker -type f | LC_ALL=C sort | xargs sha256sum
	} | sha256sum | cut -c 1-32)
	echo "$cache/built/$1-$state.tar"
}

# Store the files installed below STAGE as ARCHIVE.
# usage: keep_built STAGE ARCHIVE
keep_built() {
	mkdir -p "$cache/built"
	tar -C "$1" -cf "$2.$$" .
	mv "$2.$$" "$2"
	# shellcheck disable=SC2012
	ls -t "$cache"/built/*.tar | tail -n +20 | xargs -r rm -f
}

# End every process that works in a folder, for example a server, make or prove.  Then
# remove the folder.
remove_folder() {
	local signal dir found tries
	cd /
	for signal in QUIT KILL; do
		for tries in 1 2 3 4 5 6 7 8 9 10; do
			found=
			for dir in /proc/[0-9]*; do
				case $(readlink "$dir/cwd" 2>/dev/null) in
					"$1"/*)
						found=1
						[ "$tries" != 1 ] || kill -"$signal" "${dir#/proc/}" 2>/dev/null || true
						;;
				esac
			done
			[ -n "$found" ] || break 2
			sleep 0.1
		done
	done
	rm -rf "$1"
}

#!/usr/bin/env bash
# A consumer in shell.  usage: consumer.sh QUEUE COMMAND
# The command gets each payload on its input; PGHOST ... give the database.
queue=$1 command=$2 lease=${LEASE:-30}
stop=
trap 'stop=1' TERM INT

# notice within a minute that a server does not answer or has gone
noticing="connect_timeout=10 keepalives_idle=30 keepalives_interval=10 keepalives_count=3 tcp_user_timeout=60000"
sql() { psql -XAtq -F $'\t' -v ON_ERROR_STOP=1 -d "$noticing" "$@"; }
# repeat while the server is away, for at most the length of the lease
say() {
	local end=$((SECONDS + lease))
	until sql -v id="$1" -v token="$2" -v text="${4:-}" <<<"SELECT jobq.$3;" >/dev/null; do
		[ $? = 2 ] && [ $SECONDS -lt $end ] && sleep 1 || return 1
	done
}

# extend the leases of these jobs, given as lines of id and token
heartbeat() {
	while sleep $((lease / 2)); do
		for job; do
			IFS=$'\t' read -r id token _ <<<"$job"
			say "$id" "$token" "extend(:id, :token, :'text')" "${lease}s"
		done
	done
}

while [ -z "$stop" ]; do
	mapfile -t jobs < <(sql -v queue="$queue" -v lease="${lease}s" <<<"
		SELECT id, token, payload FROM jobq.reserve(ARRAY[:'queue'], 5, :'lease', '5s', 'consumer.sh');")
	for i in "${!jobs[@]}"; do
		IFS=$'\t' read -r id token payload <<<"${jobs[i]}"
		if [ -n "$stop" ]; then			# not begun: back to the queue
			say "$id" "$token" "release(:id, :token)"
			continue
		fi
		heartbeat "${jobs[@]:i}" &
		if output=$("$command" <<<"$payload" 2>&1); then
			say "$id" "$token" "ack(:id, :token, to_jsonb(:'text'::text))" "${output:0:30000}"
		else
			say "$id" "$token" "nack(:id, :token, :'text')" "${output:0:30000}"
		fi || say "$id" "$token" "nack(:id, :token, 'its output cannot be told')"
		kill $! && wait $! 2>/dev/null
	done
	[ ${#jobs[@]} -gt 0 ] || [ -n "$stop" ] || sleep 0.1
done

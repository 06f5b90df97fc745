# The checker: proves the guarantees from the tables, after the load has ended, the
# server is repaired and the queues are empty.
#
# Each check is a query that returns a line for each error.  Some subjects have separate
# files.

package Check;

use strict;
use warnings FATAL => 'all';
use CheckBounds;
use CheckCompose;
use POSIX qw(strftime);
use Time::HiRes qw(time usleep);
use Wire;

# Jobs and notes in uniform views.  Two kinds of jobs run no handler: the job of a step
# with a job per element, and the job that represents a workflow.
my $views = q{
CREATE TEMP TABLE found AS
	WITH job AS (
		SELECT id, payload, kind, role, 'live' AS state, attempt, NULL AS error, batch_id, queue_id, 0 AS crashes, enqueued_at, run_at, NULL::timestamptz AS finished_at, limit_cost
		FROM jobq_internal.job
		UNION ALL
		SELECT id, payload, kind, role, CASE state WHEN 'c' THEN 'completed' WHEN 'x' THEN 'cancelled' ELSE 'expired' END,
			attempt, reason, batch_id, queue_id, 0, enqueued_at, run_at, finished_at, limit_cost FROM jobq_internal.archive
		UNION ALL
		SELECT id, payload, kind, role, 'dead', attempt, sqlstate || ' ' || error, batch_id, queue_id, crashes, enqueued_at, run_at, finished_at, limit_cost
		FROM jobq_internal.dead_letter)
	SELECT j.id, coalesce(payload ->> 'tag', substring(payload ->> 'sql' FROM $$'(.*)'$$)) AS tag,
		kind || CASE WHEN payload ->> 'transaction' = 'false' THEN ' outside' ELSE '' END AS kind,
		j.state, attempt, error, j.batch_id, coalesce((payload ->> 'fails')::int, 0) AS fails, crashes,
		q.name AS queue, coalesce(s.optional, false) AS optional, payload ->> 'grp' AS grp, j.role, enqueued_at, run_at, finished_at,
		(payload ->> 'price')::int AS price, limit_cost,
		CASE WHEN kind = 'jobq.workflow' THEN (payload ->> 'batch_id')::bigint END AS inner_batch
	FROM job j LEFT JOIN jobq_internal.queue q ON q.id = j.queue_id LEFT JOIN jobq_internal.step s ON s.job_id = j.id
	WHERE s.elements IS NULL;
CREATE TEMP TABLE intent AS
	SELECT tag, max(about::text) FILTER (WHERE event = 'try')::jsonb AS about,
		bool_or(event = 'ok') AS ok, bool_or(event = 'no') AS no, bool_or(event = 'told') AS told,
		count(*) FILTER (WHERE event = 'retry') AS retries
	FROM chaos.note WHERE event <> 'wrong' GROUP BY tag;
CREATE INDEX ON found (tag);
CREATE INDEX ON found (id);
CREATE INDEX ON intent (tag);
CREATE TEMP TABLE effects AS SELECT job, count(*) AS n FROM chaos.effect GROUP BY job;
CREATE INDEX ON effects (job);
CREATE INDEX ON found (batch_id);
ANALYZE found, intent, effects, chaos.effect, chaos.begun, chaos.crashed, chaos.blow, chaos.gone};

# The statistics, while nothing runs.
my $statistics = q{
SELECT format('queue %s, kind %s: %s jobs, %s of them blocked, and %s dead letters; by the statistics %s, %s and %s',
		queue, kind, coalesce(j.live, 0), coalesce(j.blocked, 0), coalesce(j.letters, 0),
		coalesce(s.live, 0), coalesce(s.blocked, 0), coalesce(s.letters, 0))
	FROM (SELECT queue_id AS queue, kind, sum(live) AS live, sum(blocked) AS blocked, sum(letters) AS letters
		FROM jobq_internal.stat_slots() GROUP BY 1, 2) s
	FULL JOIN (SELECT queue_id AS queue, kind, sum(live) AS live, sum(blocked) AS blocked, sum(letters) AS letters
		FROM (SELECT queue_id, kind, 1, (run_at = 'infinity')::int, 0 FROM jobq_internal.job
			UNION ALL SELECT queue_id, kind, 0, 0, 1 FROM jobq_internal.dead_letter) t(queue_id, kind, live, blocked, letters)
		GROUP BY 1, 2) j USING (queue, kind)
	WHERE (coalesce(s.live, 0), coalesce(s.blocked, 0), coalesce(s.letters, 0))
		<> (coalesce(j.live, 0), coalesce(j.blocked, 0), coalesce(j.letters, 0))};

my @checks = (
	'no committed job is lost' => q{
SELECT format('%s was committed, and is nowhere: %s', i.tag, i.about) FROM intent i
	WHERE i.ok AND (i.about ->> 'async') IS DISTINCT FROM '1' AND i.about ->> 'fate' NOT IN ('maybe', 'batch')
	AND NOT EXISTS (SELECT FROM found f WHERE f.tag = i.tag)
UNION ALL
SELECT format('batch %s was committed, and is nowhere', i.tag) FROM intent i
	WHERE i.ok AND i.about ->> 'fate' = 'batch' AND NOT EXISTS (SELECT FROM jobq_internal.batch b WHERE b.name = i.tag)},

	'what was rolled back is not there' => q{
SELECT format('%s was rolled back, and is job %s, %s', f.tag, f.id, f.state) FROM intent i JOIN found f USING (tag) WHERE i.no},

	'a job is there once' => q{
SELECT format('%s is there %s times: jobs %s', tag, count(*), string_agg(id::text, ', ')) FROM found
	WHERE tag IS NOT NULL AND kind !~ '^on_failure' AND tag !~ 'tick|flood.*many' GROUP BY tag HAVING count(*) > 1
UNION ALL
SELECT format('id %s is there %s times', id, count(*)) FROM found GROUP BY id HAVING count(*) > 1},

	'effects are there exactly once' => q{
SELECT format('job %s (%s, %s, attempt %s) is %s and has %s effects', f.id, f.kind, f.tag, f.attempt, f.state, coalesce(e.n, 0))
	FROM found f LEFT JOIN effects e ON e.job = f.id
	WHERE f.kind NOT IN ('sql outside', 'jobq.workflow') AND coalesce(e.n, 0) <> (f.state = 'completed')::int
UNION ALL
SELECT format('there are %s effects of job %s, which is nowhere', e.n, e.job) FROM effects e
	WHERE NOT EXISTS (SELECT FROM found f WHERE f.id = e.job)},

	'each part of a durable procedure is done once, and each signal and answer is received once' => q{
SELECT format('job %s is %s, and has done part %s %s times', p.job, f.state, p.part, count(*))
	FROM chaos.part p LEFT JOIN found f ON f.id = p.job GROUP BY p.job, p.part, f.state HAVING count(*) > 1
UNION ALL
SELECT format('job %s (%s) is completed, and has done %s parts', f.id, f.tag, count(p.part))
	FROM found f LEFT JOIN chaos.part p ON p.job = f.id
	WHERE f.kind = 'chaos.durable' AND f.state = 'completed' GROUP BY f.id, f.tag HAVING count(p.part) <> 7
UNION ALL
SELECT format('job %s (%s) has not received the signal of job %s', f.id, f.tag, r.id)
	FROM found f JOIN found r ON r.tag = f.tag || '.reply' AND r.state = 'completed'
	JOIN chaos.part p ON p.job = f.id AND p.part = 'answer'
	WHERE f.kind = 'chaos.durable' AND p.answer IS DISTINCT FROM to_jsonb(r.tag)
UNION ALL
SELECT format('job %s (%s) has asked %s jobs with the tag %s', f.id, f.tag, count(r.id), f.tag || v.suffix)
	FROM found f CROSS JOIN (VALUES ('worker', '.asked'), ('consumer', '.outside')) v(part, suffix)
	JOIN chaos.part p ON p.job = f.id AND p.part = v.part LEFT JOIN found r ON r.tag = f.tag || v.suffix
	WHERE f.kind = 'chaos.durable' GROUP BY f.id, f.tag, v.suffix HAVING count(r.id) <> 1
UNION ALL
SELECT format('job %s (%s) has received %s from job %s, which is %s', f.id, f.tag, p.answer, r.id, r.state)
	FROM found f CROSS JOIN (VALUES ('worker', '.asked'), ('consumer', '.outside')) v(part, suffix)
	JOIN chaos.part p ON p.job = f.id AND p.part = v.part JOIN found r ON r.tag = f.tag || v.suffix
	WHERE f.kind = 'chaos.durable' AND NOT coalesce(p.answer ? 'error', false)
		AND (r.state <> 'completed' OR p.answer IS DISTINCT FROM CASE v.part WHEN 'worker' THEN to_jsonb(r.tag) ELSE 'null' END)},

	'a statement outside of a transaction is done at least once' => q{
SELECT format('job %s (%s) is completed, and was not done', id, tag) FROM found
	WHERE kind = 'sql outside' AND state = 'completed' AND tag NOT IN (SELECT tag FROM chaos.outside)},

	'every job has become what it must' => q{
SELECT format('%s (job %s, %s) is %s and not %s: %s', f.tag, f.id, f.kind, f.state, i.about ->> 'fate', f.error)
	FROM intent i JOIN found f USING (tag)
	WHERE f.kind !~ '^on_failure' AND f.crashes < 2
	AND CASE i.about ->> 'fate' WHEN 'done' THEN f.state <> 'completed'
		WHEN 'dead' THEN f.state <> 'dead' WHEN 'skipped' THEN f.state <> 'cancelled' ELSE f.state = 'live' END},

	'told is durable' => q{
SELECT format('somebody was told that %s is completed, and it is %s', i.tag, coalesce(f.state, 'nowhere'))
	FROM intent i LEFT JOIN found f ON f.tag = i.tag AND f.kind !~ '^on_failure' WHERE i.told AND f.state IS DISTINCT FROM 'completed'},

	'a tick has one job' => q{
SELECT format('schedule %s: tick %s has %s jobs', tag, extra, count(*)) FROM chaos.effect
	WHERE tag ~ 'tick' GROUP BY tag, extra HAVING count(*) > 1
UNION ALL
SELECT format('schedule %s: %s ticks from %s to %s', tag, count(*), min(extra), max(extra)) FROM chaos.effect
	WHERE tag ~ 'tick.all' GROUP BY tag
	HAVING max(extra::timestamptz) - min(extra::timestamptz) <> (count(*) - 1) * interval '1 s'},

	'nobody innocent is charged' => q{
WITH charged AS (
	SELECT f.id, f.tag, f.kind, f.state, f.error, k AS attempt FROM found f
		CROSS JOIN generate_series(f.fails + 1, f.attempt - (f.state = 'completed')::int) k
		WHERE f.kind IN ('chaos.work', 'chaos.steps', 'chaos.add', 'chaos.limited', 'chaos.rated', 'chaos.shared', 'chaos.shared_steps',
			'chaos.paced', 'chaos.priced', 'chaos.skipping', 'chaos.releasing', 'chaos.replacing', 'chaos.list', 'chaos.join', 'sql', 'sql outside', 'on_event:chaos.hear', 'on_failure:chaos.doomed')
		AND f.state IN ('completed', 'dead')
), blows AS (
	SELECT pid, runs FROM chaos.blow WHERE signal IN ('INT', 'TERM', 'KILL', 'SEGV', 'ABRT')
), traced AS (
	SELECT c.*, EXISTS (SELECT FROM chaos.begun b WHERE b.job = c.id AND b.attempt = c.attempt) AS begun,
		EXISTS (SELECT FROM chaos.begun b JOIN blows USING (pid) WHERE b.job = c.id AND b.attempt = c.attempt) AS hit
	FROM charged c
), silent AS (
	-- who was struck before he could say that he began, with an attempt that may have begun
	-- in another process, which went with an earlier crash and is not charged
	SELECT c.job, count(*) AS n FROM chaos.crashed c JOIN blows USING (pid)
		WHERE NOT EXISTS (SELECT FROM chaos.begun b WHERE b.pid = c.pid AND b.job = c.job) GROUP BY c.job
), unhit AS (
	SELECT t.*, row_number() OVER (PARTITION BY id ORDER BY attempt) AS nth FROM traced t WHERE NOT hit
)
SELECT format('job %s (%s, %s, %s) is charged with attempt %s, which %s: %s', id, kind, tag, state, attempt,
		CASE WHEN begun THEN 'ran where nobody struck' ELSE 'never began' END, error)
	FROM unhit LEFT JOIN silent ON silent.job = unhit.id WHERE nth > coalesce(n, 0)
	-- who was hit before he could say that he began is not known, so as many may be as were hit of those who run jobs
	AND (begun OR (SELECT count(*) FROM traced WHERE NOT begun) > (SELECT count(*) FROM blows WHERE runs))},

	'the watch has seen nothing' => q{
SELECT DISTINCT about ->> 'what' FROM chaos.note WHERE event = 'wrong'},

	CheckBounds::list(),
	CheckCompose::list());

# Resources that must be returned; the scheduler may need a moment.
my @leaks = (
	q{SELECT format('%s %s has %s running', type, coalesce(group_key, key, limiter, kind, queue), running) FROM jobq.limits WHERE running <> 0},
	q{SELECT format('group %s: %s run, waits for %s, %s parked, more: %s', group_id, running, waits_for, parked, more)
		FROM jobq_internal.group_slots() WHERE running <> 0 OR parked <> 0 OR more OR waits_for IS NOT NULL},
	q{SELECT format('a lease of job %s, until %s', job_id, lease_until) FROM jobq_internal.lease_slots()},
	# some may remain until the next start
	q{SELECT format('%s rows of jobq_internal.lease', count(*)) FROM jobq_internal.lease HAVING count(*) > 20},
	q{SELECT format('unique key %s of job %s', key, job_id) FROM jobq_internal.unique_key},
	q{SELECT format('worker %s runs job %s', pid, job_id) FROM jobq_internal.worker_slots() WHERE job_id IS NOT NULL});

# Messages forbidden in the log, unless allowed.
my $fault = qr/^TRAP: | PANIC:  | was\ terminated\ by\ signal\ (?:4|6|7|8|11)\b
	| ERROR:\ AddressSanitizer | runtime\ error:
	| resource\ was\ not\ closed | refcount\ leak | reference\ leak | snapshot\ .*\ still\ active
	| LOG:\ \ chaos\ crowd | problem\ in\ alloc\ set | write\ past\ chunk\ end
	| (?:ERROR|FATAL):\ \ (?:unexpected|could\ not\ (?:find|open)\ (?:relation|block)|missing\ chunk|invalid\ page)/x;

# A terminated process logs a message, unless its server is being stopped.  Then all
# processes end silently, and one may have ended while another still works.
my $ending = qr/FATAL:\ \ terminating|LOG:\ \ received\ \w+\ shutdown\ request
	|LOG:\ \ terminating\ any\ other\ active|LOG:\ \ database\ system\ is\ ready\ to\ acc/x;

# Load the notes.  Returns their number.
sub take_notes
{
	my ($db, $folder, $blows, $log) = @_;
	my (@notes, @begun, @crashed, @gone, $since);

	foreach my $name (glob "$folder/notes/*")
	{
		open my $file, '<', $name or die "$name: $!\n";
		while (my $line = <$file>)
		{
			chomp $line;
			my ($tag, $event, $about) = split /\t/, $line, 3;
			push @notes, [ $tag, $event, defined $about && length $about ? $about : undef ];
		}
	}
	while ($log =~ /^(\S+ \S+ \S+) \[(\d+)\] .*?(?:LOG:  chaos begun (\d+) (\d+)$|$ending)/mg)
	{
		my ($at, $pid, $job, $attempt, $what) = ($1, $2, $3, $4, $&);

		if (defined $job) { push @begun, [ $job, $attempt, $pid, $at ]; }
		elsif ($what =~ /FATAL/) { push @gone, [ $pid, $at, $at ]; }
		elsif ($what !~ /ready/) { $since ||= $at; }
		else
		{
			push @gone, [ undef, $since || $at, $at ];
			$since = undef;
		}
	}
	push @gone, [ undef, $since, 'infinity' ] if $since;
	while ($log =~ /\(PID (\d+)\) was terminated by signal.*\n.*DETAIL:  Failed process was running: jobq: .*, job (\d+)$/mg)
	{
		push @crashed, [ $1, $2 ];
	}
	# the log contains nothing about this signal
	push @gone, map { [ undef, map { strftime('%F %T UTC', gmtime $_) } $_->[2], $_->[2] + 2 ] } grep { $_->[1] eq 'POSTMASTER' } @$blows;
	fill($db, 'chaos.note', @notes);
	fill($db, 'chaos.begun', @begun);
	fill($db, 'chaos.crashed', @crashed);
	fill($db, 'chaos.gone', @gone);
	fill($db, 'chaos.blow', map { [ @$_[ 0, 1, 3 ] ] } @$blows);
	return scalar @notes;
}

sub fill
{
	my ($db, $table, @rows) = @_;

	while (my @some = splice @rows, 0, 1000)
	{
		must($db, "INSERT INTO $table VALUES "
			  . join(', ', map { '(' . join(', ', map { Wire::quote($_) } @$_) . ')' } @some));
	}
	return;
}

sub must
{
	my ($db, $sql) = @_;
	my $answer = $db->ask($sql);

	die "$answer->{error}: " . substr($sql, 0, 200) . "\n" if $answer->{error};
	return $answer->{rows};
}

# Compare the statistics with the tables while no job runs; some sessions may still be
# ending a job.  Returns the errors.
sub statistics
{
	my ($server, $when) = @_;
	my $db = $server->mend;
	my $deadline = time + 120;

	while (1)
	{
		my $exact = $db->value('SELECT coalesce(bool_and(exact), true) FROM jobq_internal.stat_slots()') || '';
		my $answer = $db->ask($statistics);

		return "the server has gone away $when" if $answer->{error};
		return () if $exact eq 't' && !@{ $answer->{rows} };
		return ("not so: the statistics agree with the tables $when" . ($exact eq 't' ? '' : ', but they are not counted'),
			map { "    $_->[0]" } @{ $answer->{rows} })
		  if time > $deadline;
		usleep(20_000);
	}
}

# If there was no crash, all finished jobs were counted, except jobs of prepared
# transactions.  Returns the errors.
sub counters
{
	my ($db) = @_;
	my $rows = must($db, q{
SELECT format('    queue %s: %s completed, %s cancelled, %s expired; by the statistics %s, %s and %s', queue,
		coalesce(a.completed, 0), coalesce(a.cancelled, 0), coalesce(a.expired, 0), s.completed, s.cancelled, s.expired)
	FROM (SELECT queue_id AS queue, sum(completed) AS completed, sum(cancelled) AS cancelled, sum(expired) AS expired
		FROM jobq_internal.stat_slots() GROUP BY 1) s
	LEFT JOIN (SELECT queue_id AS queue, count(*) FILTER (WHERE state = 'c') AS completed,
		count(*) FILTER (WHERE state = 'x') AS cancelled, count(*) FILTER (WHERE state = 'e') AS expired
		FROM jobq_internal.archive GROUP BY 1) a USING (queue)
	WHERE (s.completed, s.cancelled, s.expired) <> (coalesce(a.completed, 0), coalesce(a.cancelled, 0), coalesce(a.expired, 0))});

	return @$rows ? ('not so: the statistics have counted all', map { $_->[0] } @$rows) : ();
}

# Run all checks.  Returns the errors.  "allowed" names checks that do not hold after the
# disturbances, with the reason.
sub tables
{
	my ($db, %allowed) = @_;
	my @wrong;
	my @todo = @checks;

	local $db->{patience} = 300;
	must($db, $_) foreach $views, CheckBounds::views(), CheckCompose::views();
	while (my ($what, $query) = splice @todo, 0, 2)
	{
		my $rows = must($db, $query);

		next if $allowed{$what};
		my @lines = map { "    $_->[0]" } @$rows;
		push @wrong, "not so: $what", @lines[ 0 .. ($#lines > 9 ? 9 : $#lines) ],
		  @lines > 10 ? '    ... ' . @lines . ' in all' : ()
		  if @lines;
	}
	return @wrong;
}

sub leaks
{
	my ($db) = @_;
	my $deadline = time + 120;

	while (1)
	{
		# An entry without a row is dropped when a consumer reserves the job.  The
		# consumers have ended, so reserve here.
		must($db, q{SELECT id FROM jobq.reserve(ARRAY(SELECT name FROM jobq.queues WHERE mode = 'consumer'), 100)});
		my @left = map { map { "    $_->[0]" } @{ must($db, $_) } } @leaks;

		return () unless @left;
		return ('not so: all is given back', @left) if time > $deadline;
		usleep(100_000);
	}
}

# Check the log, without the lines that have a known reason.  A process ends by the
# signal it was sent, or by SIGABRT after a PANIC, for which there is a separate check.
sub look_at_log
{
	my ($log, $blows, %allowed) = @_;
	my %number = (ABRT => 6, SEGV => 11);
	my %known = map { $number{ $_->[1] } ? ("$_->[0] $number{$_->[1]}" => 1) : () } @$blows;
	my @wrong;

	$known{"$1 6"} = 1 while $log =~ /^\S+ \S+ \S+ \[(\d+)\] .*PANIC:  /mg;

	foreach my $line (split /\n/, $log)
	{
		my $bad = $line =~ $fault || $line =~ / XX\w\w\w .*(?:ERROR|FATAL):  /;

		next unless $bad;
		next if $line =~ /\(PID (\d+)\) was terminated by signal (\d+)/ && $known{"$1 $2"};
		next if grep { $line =~ $_ } values %allowed;
		push @wrong, '    ' . substr $line, 0, 400;
	}
	return @wrong ? ('not so: nothing is at fault in the log', @wrong[ 0 .. ($#wrong > 19 ? 19 : $#wrong) ]) : ();
}

1;

# The checker: proves the guarantees from the tables, when the load has ended,
# the server is mended and the queues are empty.
#
# Each check is a query that returns a line for each thing that is wrong.

package Check;

use strict;
use warnings FATAL => 'all';
use Time::HiRes qw(time usleep);
use Wire;

# What is to be known of jobs and notes, in one shape.  The job of a step that has a
# job for each element runs no handler itself.
my $views = q{
CREATE TEMP TABLE found AS
	WITH job AS (
		SELECT id, payload, kind, 'live' AS state, attempt, NULL AS error, batch_id, queue_id, 0 AS crashes FROM jobq.job
		UNION ALL
		SELECT id, payload, kind, CASE state WHEN 'c' THEN 'completed' WHEN 'x' THEN 'cancelled' ELSE 'expired' END,
			attempt, reason, batch_id, queue_id, 0 FROM jobq.archive
		UNION ALL
		SELECT id, payload, kind, 'failed', attempt, sqlstate || ' ' || error, batch_id, queue_id, crashes FROM jobq.failed_job)
	SELECT j.id, coalesce(payload ->> 'tag', substring(payload ->> 'sql' FROM $$'(.*)'$$)) AS tag,
		kind || CASE WHEN payload ->> 'transaction' = 'false' THEN ' outside' ELSE '' END AS kind,
		j.state, attempt, error, j.batch_id, coalesce((payload ->> 'fails')::int, 0) AS fails, crashes,
		q.name AS queue, coalesce(s.optional, false) AS optional
	FROM job j LEFT JOIN jobq.queue q ON q.id = j.queue_id LEFT JOIN jobq.step s ON s.job_id = j.id
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
CREATE TEMP TABLE callback AS SELECT m[1] AS batch, m[2] AS what, count(*) AS n
	FROM (SELECT regexp_match(tag, '^(.*)\.(finish|success|failure)\.') AS m FROM chaos.effect) e
	WHERE m IS NOT NULL GROUP BY 1, 2;
CREATE TEMP TABLE heard AS SELECT n AS job, grp AS event, count(*) AS n FROM chaos.effect
	WHERE kind = 'on_event:chaos.hear' GROUP BY 1, 2;
-- what keeps to which bound
CREATE TEMP TABLE bound AS SELECT e.job, e.started, e.ended, b.what, b.most, b.burst, b.rate
	FROM chaos.effect e JOIN (VALUES
		('kind chaos.limited', 2, NULL, NULL, 'chaos.limited', NULL),
		('queue narrow', 2, NULL, NULL, NULL, 'narrow'),
		('queue outside narrow', 2, NULL, NULL, NULL, 'outside narrow'),
		('queue shared', 1, NULL, NULL, NULL, 'shared'),
		('limiter shared', 2, NULL, NULL, 'chaos.shared', NULL),
		('limiter shared', 2, NULL, NULL, 'chaos.shared_steps', NULL),
		('limiter shared', 2, NULL, NULL, 'chaos.work', 'shared'),
		('limiter shared', 2, NULL, NULL, 'chaos.outside', 'outside shared'),
		('kind chaos.rated', NULL, 5, 20, 'chaos.rated', NULL),
		('limiter paced', NULL, 5, 20, 'chaos.paced', NULL),
		('limiter paced', NULL, 5, 20, 'chaos.work', 'paced')) b(what, most, burst, rate, kind, queue)
	ON e.kind = coalesce(b.kind, e.kind) AND e.queue = coalesce(b.queue, e.queue);
CREATE INDEX ON found (batch_id);
CREATE INDEX ON heard (job);
CREATE INDEX ON callback (batch);
ANALYZE found, intent, effects, callback, heard, bound, chaos.effect, chaos.begun, chaos.blow};

# For as long as nothing happens.
my $statistics = q{
SELECT format('queue %s, kind %s: %s jobs, %s of them blocked, and %s dead letters; by the statistics %s, %s and %s',
		queue, kind, coalesce(j.live, 0), coalesce(j.blocked, 0), coalesce(j.letters, 0),
		coalesce(s.live, 0), coalesce(s.blocked, 0), coalesce(s.letters, 0))
	FROM (SELECT queue_id AS queue, kind, sum(live) AS live, sum(blocked) AS blocked, sum(letters) AS letters
		FROM jobq_internal.stat_slots() GROUP BY 1, 2) s
	FULL JOIN (SELECT queue_id AS queue, kind, sum(live) AS live, sum(blocked) AS blocked, sum(letters) AS letters
		FROM (SELECT queue_id, kind, 1, (run_at = 'infinity')::int, 0 FROM jobq.job
			UNION ALL SELECT queue_id, kind, 0, 0, 1 FROM jobq.failed_job) t(queue_id, kind, live, blocked, letters)
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
	WHERE i.ok AND i.about ->> 'fate' = 'batch' AND NOT EXISTS (SELECT FROM jobq.batch b WHERE b.name = i.tag)},

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
	WHERE f.kind <> 'sql outside' AND coalesce(e.n, 0) <> (f.state = 'completed')::int
UNION ALL
SELECT format('there are %s effects of job %s, which is nowhere', e.n, e.job) FROM effects e
	WHERE NOT EXISTS (SELECT FROM found f WHERE f.id = e.job)},

	'a statement outside of a transaction is done at least once' => q{
SELECT format('job %s (%s) is completed, and was not done', id, tag) FROM found
	WHERE kind = 'sql outside' AND state = 'completed' AND tag NOT IN (SELECT tag FROM chaos.outside)},

	'every job has become what it must' => q{
SELECT format('%s (job %s, %s) is %s and not %s: %s', f.tag, f.id, f.kind, f.state, i.about ->> 'fate', f.error)
	FROM intent i JOIN found f USING (tag)
	WHERE f.kind !~ '^on_failure' AND f.crashes < 2
	AND CASE i.about ->> 'fate' WHEN 'done' THEN f.state <> 'completed'
		WHEN 'failed' THEN f.state <> 'failed' WHEN 'skipped' THEN f.state <> 'cancelled' ELSE f.state = 'live' END},

	'told is durable' => q{
SELECT format('somebody was told that %s is completed, and it is %s', i.tag, coalesce(f.state, 'nowhere'))
	FROM intent i LEFT JOIN found f ON f.tag = i.tag AND f.kind !~ '^on_failure' WHERE i.told AND f.state IS DISTINCT FROM 'completed'},

	'a batch has each of its callbacks once' => q{
SELECT format('batch %s (%s, state %s, %s failed) has had %s callbacks on_%s', b.name, b.id, b.state, b.failed, b.had, b.what)
	FROM (SELECT b.*, w.what, coalesce((SELECT c.n FROM callback c WHERE c.batch = b.name AND c.what = w.what), 0) AS had
		FROM (SELECT b.id, b.name, b.state, b.finished_at, (SELECT count(*) FROM found f WHERE f.batch_id = b.id AND f.state = 'failed' AND NOT f.optional) AS failed
			FROM jobq.batch b) b
		CROSS JOIN (VALUES ('finish'), ('success'), ('failure')) w(what)) b
	WHERE b.had <> CASE b.what WHEN 'finish' THEN 1 WHEN 'success' THEN (b.failed = 0)::int ELSE (b.failed > 0)::int END
UNION ALL
SELECT format('batch %s (%s) is not over: %s', name, id, last_error) FROM jobq.batch WHERE finished_at IS NULL},

	'a tick has one job' => q{
SELECT format('schedule %s: tick %s has %s jobs', tag, extra, count(*)) FROM chaos.effect
	WHERE tag ~ 'tick' GROUP BY tag, extra HAVING count(*) > 1
UNION ALL
SELECT format('schedule %s: %s ticks from %s to %s', tag, count(*), min(extra), max(extra)) FROM chaos.effect
	WHERE tag ~ 'tick.all' GROUP BY tag
	HAVING max(extra::timestamptz) - min(extra::timestamptz) <> (count(*) - 1) * interval '1 s'},

	'a dead letter has its on_failure job once' => q{
SELECT format('%s: %s on_failure jobs', f.tag, count(e.tag)) FROM found f JOIN intent i USING (tag)
	LEFT JOIN chaos.effect e ON e.tag = f.tag AND e.kind ~ '^on_failure'
	WHERE f.kind = 'chaos.doomed' AND f.state = 'failed'
	GROUP BY f.tag, i.retries HAVING count(e.tag) NOT BETWEEN 1 AND 1 + i.retries},

	'a unique key has one job at a time' => q{
SELECT format('%s: jobs %s and %s at a time', a.grp, a.job, b.job) FROM chaos.effect a JOIN chaos.effect b USING (grp)
	WHERE a.grp ~ '^unique u' AND a.job < b.job AND a.started < b.ended AND b.started < a.ended},

	'groups are in order' => q{
SELECT format('group %s: number %s (job %s, %s to %s), then number %s (job %s, from %s)', grp,
		last_n, last_job, last_started, last_ended, n, job, started)
	FROM (SELECT *, lag(n) OVER w AS last_n, lag(job) OVER w AS last_job,
			lag(started) OVER w AS last_started, lag(ended) OVER w AS last_ended
		FROM chaos.effect WHERE queue ~ 'grouped' WINDOW w AS (PARTITION BY grp ORDER BY started)) e
	WHERE n <= last_n OR started < last_ended},

	'steps come after what they need' => q{
SELECT format('%s: step %s (job %s) begins before step %s (job %s) is over', a.grp, b.n, b.job, a.n, a.job)
	FROM chaos.effect a JOIN chaos.effect b USING (grp) WHERE grp ~ '^workflow' AND a.n < b.n AND b.started < a.ended},

	'steps get the results of those before' => q{
SELECT what FROM chaos.wrong},

	# An attempt that has ended without success is charged, and told as failed.
	'who hears of jobs hears once of each event' => q{
SELECT format('job %s (%s, %s, attempt %s, %s): heard %s times %s, and not %s', id, kind, tag, attempt, state, had, event, due)
	FROM (SELECT f.*, v.event, coalesce(h.n, 0) AS had, CASE v.event
			WHEN 'failed' THEN f.attempt - (f.state = 'completed')::int
			WHEN 'retry' THEN f.attempt - (f.state IN ('completed', 'failed'))::int
			WHEN 'dead' THEN (f.state = 'failed')::int
			ELSE (f.state = v.event)::int END AS due
		FROM found f CROSS JOIN unnest('{completed,failed,retry,dead,cancelled,expired}'::text[]) v(event)
		LEFT JOIN heard h ON h.job = f.id AND h.event = v.event
		WHERE f.queue = 'heard' AND f.kind !~ '^on_event' OR f.queue = 'outside' AND v.event IN ('completed', 'failed')) h
	WHERE had <> due
UNION ALL
SELECT format('dead letter %s (%s): heard %s times', f.id, f.tag, coalesce(max(h.n), 0)) FROM found f LEFT JOIN intent i USING (tag)
	LEFT JOIN heard h ON h.job = f.id AND h.event = 'dead'
	WHERE f.kind = 'chaos.doomed' AND f.queue = 'default' AND f.state = 'failed'
	GROUP BY f.id, f.tag, i.retries HAVING coalesce(max(h.n), 0) NOT BETWEEN 1 AND 1 + coalesce(i.retries, 0)
UNION ALL
SELECT format('job %s (%s) of an event is %s: %s', id, kind, state, error) FROM found WHERE kind ~ '^on_event' AND state <> 'completed'
UNION ALL
SELECT format('heard of %s of job %s, which is nowhere', event, job) FROM heard WHERE job NOT IN (SELECT id FROM found)},

	'only a full queue drops jobs' => q{
SELECT format('job %s (%s) is cancelled: %s', id, tag, error) FROM found
	WHERE queue ~ '^full|^outside full' AND state = 'cancelled' AND (queue <> 'full drop' OR error !~ 'its queue was full')},

	'no more run at a time than may' => q{
SELECT format('%s: at %s, when job %s began, %s ran and not %s', what, a.started, a.job, count(*), a.most)
	FROM bound a JOIN bound b USING (what)
	WHERE b.started <= a.started AND b.ended > a.started
	GROUP BY what, a.started, a.job, a.most HAVING count(*) > a.most},

	# A start is noted a little after its token was taken: in windows of a second
	# and more, by as many as there are workers.
	'no more start in a time than may' => q{
SELECT format('%s: %s starts from %s to %s', what, count(*), a.started, b.started)
	FROM bound a JOIN bound b USING (what) JOIN bound c USING (what)
	WHERE a.rate IS NOT NULL AND b.started >= a.started + interval '1 s' AND c.started BETWEEN a.started AND b.started
	GROUP BY what, a.started, b.started, a.burst, a.rate
	HAVING count(*) > a.burst + a.rate * extract(epoch FROM b.started - a.started) + 8},

	'nobody innocent is charged' => q{
WITH charged AS (
	SELECT f.id, f.tag, f.kind, f.state, f.error, k AS attempt FROM found f
		CROSS JOIN generate_series(f.fails + 1, f.attempt - (f.state = 'completed')::int) k
		WHERE f.kind IN ('chaos.work', 'chaos.steps', 'chaos.add', 'chaos.limited', 'chaos.rated', 'chaos.shared', 'chaos.shared_steps',
			'chaos.paced', 'chaos.list', 'chaos.join', 'sql', 'sql outside', 'on_event:chaos.hear', 'on_failure:chaos.doomed')
		AND f.state IN ('completed', 'failed')
), blows AS (
	SELECT pid FROM chaos.blow WHERE signal IN ('INT', 'TERM', 'KILL', 'SEGV', 'ABRT')
), traced AS (
	SELECT c.*, EXISTS (SELECT FROM chaos.begun b WHERE b.job = c.id AND b.attempt = c.attempt) AS begun,
		EXISTS (SELECT FROM chaos.begun b JOIN blows USING (pid) WHERE b.job = c.id AND b.attempt = c.attempt) AS hit
	FROM charged c
)
SELECT format('job %s (%s, %s, %s) is charged with attempt %s, which %s: %s', id, kind, tag, state, attempt,
		CASE WHEN begun THEN 'ran where nobody struck' ELSE 'never began' END, error)
	FROM traced WHERE NOT hit
	-- who was hit before he could say that he began is not known, so as many may be as were hit
	AND (begun OR (SELECT count(*) FROM traced WHERE NOT begun) > (SELECT count(*) FROM blows))},

	# Those of a flood began before, and were many.
	'no role waits for the end of others backlog' => q{
SELECT format('%s began after %s others of the flood', o.tag, count(*))
	FROM chaos.effect o JOIN found f ON f.id = o.job JOIN chaos.effect m ON m.tag = regexp_replace(o.tag, 'chaos_.', 'many')
	WHERE o.tag ~ 'flood.*chaos_' AND m.started < o.started GROUP BY o.tag HAVING count(*) > 550},

	'the watch has seen nothing' => q{
SELECT DISTINCT about ->> 'what' FROM chaos.note WHERE event = 'wrong'});

# What must be given back, which may take the scheduler a moment.
my @leaks = (
	q{SELECT format('%s has %s running', coalesce(queue, kind), running) FROM jobq.limits WHERE running <> 0},
	q{SELECT format('group %s: %s run, waits for %s, %s parked, more: %s', group_id, running, waits_for, parked, more)
		FROM jobq_internal.group_slots() WHERE running <> 0 OR parked <> 0 OR more OR waits_for IS NOT NULL},
	q{SELECT format('a lease of job %s, until %s', job_id, lease_until) FROM jobq_internal.lease_slots()},
	# some may be left until the next start
	q{SELECT format('%s rows of jobq.lease', count(*)) FROM jobq.lease HAVING count(*) > 20},
	q{SELECT format('unique key %s of job %s', key, job_id) FROM jobq.unique_key},
	q{SELECT format('worker %s runs job %s', pid, job_id) FROM jobq_internal.worker_slots() WHERE job_id IS NOT NULL});

# What must not be in the log, unless it is among what may be.
my $fault = qr/^TRAP: | PANIC:  | was\ terminated\ by\ signal\ (?:4|6|7|8|11)\b
	| resource\ was\ not\ closed | refcount\ leak | reference\ leak | snapshot\ .*\ still\ active
	| problem\ in\ alloc\ set | write\ past\ chunk\ end
	| (?:ERROR|FATAL):\ \ (?:unexpected|could\ not\ (?:find|open)\ (?:relation|block)|missing\ chunk|invalid\ page)/x;

# Load what was noted; returns how many notes there are.
sub take_notes
{
	my ($db, $folder, $blows, $log) = @_;
	my (@notes, @begun);

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
	while ($log =~ /\[(\d+)\] .*?LOG:  chaos begun (\d+) (\d+)$/mg)
	{
		push @begun, [ $2, $3, $1 ];
	}
	fill($db, 'chaos.note', @notes);
	fill($db, 'chaos.begun', @begun);
	fill($db, 'chaos.blow', map { [ $_->[0], $_->[1] ] } @$blows);
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

# Do the statistics agree with the tables while all rests, whoever is just ending a
# job?  Returns what is wrong.
sub statistics
{
	my ($server, $when) = @_;
	my $db = $server->mend;
	my $deadline = time + 20;

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

# Where no crash was, all that has become of jobs was counted; but not what prepared
# transactions have brought.  Returns what is wrong.
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
		FROM jobq.archive GROUP BY 1) a USING (queue)
	WHERE (s.completed, s.cancelled, s.expired) <> (coalesce(a.completed, 0), coalesce(a.cancelled, 0), coalesce(a.expired, 0))});

	return @$rows ? ('not so: the statistics have counted all', map { $_->[0] } @$rows) : ();
}

# Everything; returns what is wrong.  "allowed" names checks that do not hold after
# what was done, with the reason.
sub tables
{
	my ($db, %allowed) = @_;
	my @wrong;
	my @todo = @checks;

	local $db->{patience} = 300;
	must($db, $views);
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
	my $deadline = time + 15;

	while (1)
	{
		# an entry without a row is dropped by whoever takes it: nobody is there any more
		# who would, where consumers do
		must($db, q{SELECT id FROM jobq.reserve(ARRAY(SELECT name FROM jobq.queues WHERE mode = 'consumer'), 100)});
		my @left = map { map { "    $_->[0]" } @{ must($db, $_) } } @leaks;

		return () unless @left;
		return ('not so: all is given back', @left) if time > $deadline;
		usleep(100_000);
	}
}

# What the log tells: with the lines of which we know the reason left out.
sub look_at_log
{
	my ($log, $blows, %allowed) = @_;
	my %hit = map { $_->[0] => 1 } @$blows;
	my @wrong;

	foreach my $line (split /\n/, $log)
	{
		my $bad = $line =~ $fault || $line =~ / XX\w\w\w .*(?:ERROR|FATAL):  /;

		next unless $bad;
		next if $line =~ /\(PID (\d+)\) was terminated by signal/ && $hit{$1};
		next if grep { $line =~ $_ } values %allowed;
		push @wrong, '    ' . substr $line, 0, 400;
	}
	return @wrong ? ('not so: nothing is at fault in the log', @wrong[ 0 .. ($#wrong > 19 ? 19 : $#wrong) ]) : ();
}

1;

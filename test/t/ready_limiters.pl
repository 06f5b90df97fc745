# Eight workers and fifty consumers share three limiters, or three keys of a limiter.  Never
# more jobs run than a limiter allows, and never fewer while there is work.  This holds even if
# workers, consumers and the server end in the middle.
#
# A job runs until the test lets it end, so the test always knows how many jobs must run,
# however long they take to start.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = '*=8'
max_connections = 120
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE SEQUENCE violation;
CREATE TABLE ran (job bigint PRIMARY KEY, n int);
-- What may run, and which jobs may come to their end.
CREATE TABLE line (number int, name text, places int);
CREATE TABLE may_end (n int PRIMARY KEY);
-- Take one of the places, or it is a violation; and wait.  The locks, which the
-- transaction holds, show what runs.
CREATE FUNCTION work(job bigint, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	mine int := payload -> 'number';
	this int := payload -> 'n';
	found boolean := false;
BEGIN
	FOR place IN 1 .. (SELECT places FROM line WHERE number = mine) LOOP
		found := pg_try_advisory_xact_lock(mine, place);
		EXIT WHEN found;
	END LOOP;
	IF NOT found THEN
		PERFORM nextval('violation');
	END IF;
	PERFORM pg_advisory_xact_lock(100 + mine, this);
	WHILE NOT EXISTS (SELECT FROM may_end WHERE n IN (this, 0)) LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
	INSERT INTO ran VALUES (job, this);
END $$;
CREATE FUNCTION handler(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$ SELECT work(job.id, payload) $$;
-- Take a job, and then none until others have done so many: so a place that becomes
-- free is taken by somebody else, who must hear of it.
CREATE PROCEDURE consume() LANGUAGE plpgsql AS $$
DECLARE
	job record;
	done bigint;
BEGIN
	SELECT r.id, r.token, r.payload INTO job FROM jobq.reserve('{consumers}', 1, '1 day', '1 hour', pg_backend_pid()::text) r;
	COMMIT;
	IF job.id IS NOT NULL THEN
		PERFORM work(job.id, job.payload);
		PERFORM jobq.ack(job.id, job.token);
		done := (SELECT count(*) FROM ran);
		COMMIT;
		WHILE (SELECT count(*) FROM ran) < done + 15 AND NOT EXISTS (SELECT FROM may_end WHERE n = 0) LOOP
			PERFORM pg_sleep(0.02);
			COMMIT;
		END LOOP;
	END IF;
END $$;
SELECT jobq.create_queue('workers'), jobq.create_queue('consumers', mode => 'consumer');
-- How many places are taken, as jobq says, if nothing changes meanwhile.
CREATE VIEW counted AS
	SELECT running, max_running FROM jobq.limits WHERE by IS NULL OR type = 'key';

-- The jobs that run now.
CREATE FUNCTION running() RETURNS TABLE (number int, n int) LANGUAGE sql AS $$
	SELECT classid::int - 100, objid::int FROM pg_locks
	WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid BETWEEN 101 AND 103
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;
-- How many that is at each limiter.
CREATE FUNCTION taken() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(name || ' ' || (SELECT count(*) FROM running() r WHERE r.number = line.number), ', ' ORDER BY number) FROM line
$$;
-- Do as many run as may, or more?
CREATE FUNCTION is_full() RETURNS boolean LANGUAGE sql AS $$
	SELECT bool_and((SELECT count(*) FROM running() r WHERE r.number = line.number) >= places) FROM line
$$;
-- Wait until as many run at each limiter as may; none may be above that meanwhile.
CREATE FUNCTION until_full() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	since timestamptz := clock_timestamp();
BEGIN
	LOOP
		IF EXISTS (SELECT FROM jobq.limits l WHERE l.running > l.max_running AND l.by IS NULL) OR
			EXISTS (SELECT FROM line WHERE (SELECT count(*) FROM running() r WHERE r.number = line.number) > places) THEN
			PERFORM nextval('violation');
		END IF;
		EXIT WHEN is_full();
		IF clock_timestamp() > since + interval '3 minutes' THEN
			RAISE EXCEPTION 'a place stays free: %', taken();
		END IF;
		PERFORM pg_sleep(0.001);
	END LOOP;
END $$;
-- Let so many jobs end, one after the other, of all that run.  Each has its place taken.
CREATE PROCEDURE let_end(times int) LANGUAGE plpgsql AS $$
DECLARE
	ends int;
BEGIN
	FOR i IN 1 .. times LOOP
		INSERT INTO may_end SELECT r.n FROM running() r ORDER BY random() LIMIT 1 RETURNING may_end.n INTO ends;
		COMMIT;
		WHILE EXISTS (SELECT FROM running() r WHERE r.n = ends) LOOP
			PERFORM pg_sleep(0.001);
		END LOOP;
		PERFORM until_full();
		COMMIT;
	END LOOP;
END $$;
});

wait_for_scheduler($node);

my ($consumers, $output, $full);
my $script = PostgreSQL::Test::Utils::tempdir() . '/consume';
append_to_file($script, "CALL consume();\n");

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

# The process of a worker with a running job; jobs end until there is such a process.
sub running_worker
{
	for (1 .. 100)
	{
		my $pid = sql(q{SELECT pid FROM jobq.workers WHERE type = 'worker' AND state = 'running' AND pid IS NOT NULL LIMIT 1});
		return $pid if $pid ne '';
		sql(q{CALL let_end(2)});
	}
	die 'no worker runs a job';
}

# Fifty consumers, in a single process.
sub start_consumers
{
	$output = '';
	$consumers = IPC::Run::start(
		[ $node->installed_command('pgbench'), '-n', '-c', 50, '-j', 2, '-T', 3600, '-f', $script,
		  '-h', $node->host, '-p', $node->port, 'postgres' ],
		'<', File::Spec->devnull, '>', \$output, '2>', \$output, IPC::Run::timeout(1200));
	return;
}

sub stop_consumers
{
	my $theirs = q{FROM pg_stat_activity WHERE query ~ '^CALL consume'};

	eval { $consumers->kill_kill };
	# a session does not notice the end of its client
	sql("SELECT count(pg_terminate_backend(pid)) $theirs");
	return wait_for($node, 'the consumers have gone', "SELECT NOT EXISTS (SELECT $theirs)");
}

# Jobs of consumers which have ended are held until their leases end.
my $days = 0;

sub end_leases
{
	$days += 2;
	sql("SELECT jobq.test_clock('$days days')");
	return wait_for($node, 'leases of those that have gone end', 'SELECT NOT EXISTS (SELECT FROM jobq_internal.lease_slots())');
}

sub all_are_taken
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for($node, "$when: as many run as may", 'SELECT is_full()');
	is(sql('CALL let_end(20); SELECT taken()'), $full, "$when: each place that becomes free is taken, by one");
	is(sql("SELECT last_value FROM violation WHERE is_called"), '', "$when: never more");
	return;
}

# The limits of the jobs of the three lines, and the running jobs of each line at the limit.
my @cases = (
	[ 'limiters', q{('two', 2), ('three', 3), ('five', 5)},
	  q{SELECT jobq.create_limiter(name, max_running => places) FROM line}, 'name', 'two 2, three 3, five 5' ],
	[ 'keys', q{('one', 3), ('another', 3), ('the last', 3)},
	  q{SELECT jobq.create_limiter('keyed', max_running => 3, by => 'payload $.number')}, q{'keyed'}, 'one 3, another 3, the last 3' ]);

foreach my $each (@cases)
{
	my ($case, $lines, $create, $limiter, $all) = @$each;

	$full = $all;
	# a crash sets the clock back: jobs due now must be due then
	sql(q{SELECT jobq.test_clock('0'); TRUNCATE line, may_end, ran});
	sql("INSERT INTO line SELECT row_number() OVER (), name, places FROM (VALUES $lines) v (name, places)");
	sql($create);
	sql(qq{SELECT jobq.register('for ' || name, 'handler(jsonb, jobq.job_context)', limiters => ARRAY[$limiter], max_attempts => 100, backoff => 'fixed 1ms') FROM line});
	sql(q{SELECT jobq.enqueue('for ' || name, jsonb_build_object('number', number, 'n', i * 10 + number), queue => q)
		FROM generate_series(1, 120) i, line, unnest('{workers,consumers}'::text[]) q WHERE (q = 'workers') = (i % 2 = 0)});

	start_consumers();
	all_are_taken("$case: at first");
	my $both = q{SELECT count(DISTINCT queue) FROM jobq.jobs WHERE state = 'running'};
	# processes which have just started get the slots left by other processes
	for (1 .. 20)
	{
		last if sql($both) eq '2';
		sql(q{DO $$ BEGIN FOR i IN 1 .. 50 LOOP EXIT WHEN EXISTS (SELECT FROM jobq.workers WHERE state = 'idle'); PERFORM pg_sleep(0.01); END LOOP; END $$});
		sql(q{CALL let_end(2)});
	}
	is(sql($both), 2, 'workers and consumers run jobs');

	# a worker's slot is given on, and the job comes again
	foreach my $time (1 .. 3)
	{
		my $gone = running_worker();
		sql("SELECT pg_terminate_backend($gone)");

		wait_for($node, "a worker has gone, $time", "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $gone)");
		all_are_taken("$case: after the end of a worker, $time");
	}

	# a consumer's slot is not, until the lease ends
	stop_consumers();
	is(sql(q{SELECT bool_and(running = max_running) FROM counted}), 't', 'what consumers have left is held');
	end_leases();
	start_consumers();
	all_are_taken("$case: after the end of all consumers");

	# a worker is killed during a job, and the server restarts
	my $offset = -s $node->logfile;
	signal_process('KILL', running_worker());
	wait_for_restart($node, $offset);
	stop_consumers();
	wait_for($node, 'after the crash, the places of leases are held',
		q{SELECT bool_and(running <= max_running) AND sum(running) >= (SELECT count(*) FROM jobq_internal.lease_slots()) FROM counted HAVING count(*) = 3});
	end_leases();
	start_consumers();
	all_are_taken("$case: after the crash of a worker");

	# the server crashes
	$node->stop('immediate');
	$node->start;
	stop_consumers();
	wait_for($node, 'the limits are there again', q{SELECT count(*) > 0 FROM jobq.limits WHERE type = 'limiter'});
	end_leases();
	start_consumers();
	all_are_taken("$case: after the crash of the server");

	# all remaining jobs, without the gate
	sql('INSERT INTO may_end VALUES (0)');
	wait_for($node, 'all jobs come to their end', 'SELECT NOT EXISTS (SELECT FROM jobq_internal.job)');
	is(sql('SELECT count(*), count(DISTINCT n), count(DISTINCT job) FROM ran'), '360|360|360', 'each has run once');
	wait_for($node, 'nothing is held any more', 'SELECT NOT EXISTS (SELECT FROM jobq.limits WHERE running <> 0)');
	is(sql("SELECT last_value FROM violation WHERE is_called"), '', 'never more than a limiter allows');
	stop_consumers();

	sql("SELECT jobq.unregister('for ' || name) FROM line");
	sql('SELECT jobq.drop_limiter(limiter) FROM jobq.limits');
	wait_for($node, 'the limiters are forgotten', 'SELECT NOT EXISTS (SELECT FROM jobq.limits)');
}

no_failed_assertion($node);
done_testing();

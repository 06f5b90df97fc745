# The tables of jobq are rewritten, and their indexes rebuilt under other OIDs, while sessions,
# workers and the scheduler know the old OIDs.  All of these processes go on.
#
# Runs on each major: rows and indexes are written by direct access.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = 'still=0; *=2'
autovacuum = off
});
my $tablespace = PostgreSQL::Test::Utils::tempdir();
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION '$tablespace'");
sql(q{
CREATE EXTENSION jobq;
CREATE ROLE producer LOGIN;
SELECT jobq.grant_privilege('producer');
CREATE FUNCTION twice(payload jsonb) RETURNS jsonb LANGUAGE sql AS
	$$ SELECT to_jsonb(2 * (payload ->> 'n')::int) $$;
CREATE FUNCTION breaks() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken'; END $$;
SELECT jobq.create_queue('still', open => true), jobq.create_queue('taken', open => true, mode => 'consumer'),
	jobq.create_queue('short', open => true, max_length => 1000), jobq.create_queue('single', open => true, max_running => 1);
SELECT jobq.register('twice', 'twice(jsonb)'), jobq.register('breaks', 'breaks()', max_attempts => 1);

-- what a session does with jobq: all tables are read and written
CREATE PROCEDURE everything(INOUT said text) LANGUAGE plpgsql AS $$
DECLARE
	n int := 1;
	job bigint;
	result jsonb;
	reserved jobq.reserved_job;
	jobs bigint[];
	batch bigint;
BEGIN
	said := '';
	FOREACH n IN ARRAY ARRAY[1, 2] LOOP
		job := jobq.enqueue('twice', '{"n": 1}', queue => 'still', unique_key => 'k', uniqueness => '{"on_conflict": "replace"}');
		PERFORM jobq.enqueue('twice', '{"n": 1}', queue => 'short', unique_key => 'another', uniqueness => '{"for": "1 ms"}');
	END LOOP;
	PERFORM jobq.cancel(job);
	jobs := ARRAY[jobq.enqueue('twice', '{"n": 3}', queue => 'single', group_key => 'g'),
		jobq.enqueue('twice', '{"n": 4}', queue => 'single', group_key => 'g'),
		jobq.enqueue('breaks')];
	COMMIT;
	batch := jobq.create_workflow('{"steps": [{"name": "a", "kind": "twice", "payload": {"n": 1}},
		{"name": "b", "kind": "twice", "payload": {"n": 2}, "needs": ["a"]}]}');
	PERFORM jobq.enqueue('elsewhere', queue => 'taken');
	COMMIT;
	SELECT string_agg(state, ' ' ORDER BY w.id) INTO said FROM jobq.wait_many(jobs, '3 min') w;
	COMMIT;
	SELECT said || ' ' || string_agg(state, ' ' ORDER BY w.id) INTO said
	FROM jobq.wait_many(ARRAY(SELECT id FROM jobq.jobs WHERE batch_id = batch ORDER BY 1), '3 min') w;
	COMMIT;
	SELECT * INTO reserved FROM jobq.reserve('{taken}', wait => '3 min');
	COMMIT;
	PERFORM jobq.ack(reserved.id, reserved.token);
	COMMIT;
	PERFORM jobq.delete(jobs[3]);
END $$;
GRANT ALL ON PROCEDURE everything(text) TO producer});

my $session = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'producer' ]);

sub everything
{
	my ($when) = @_;

	is($session->query(q{CALL everything('')}), 'completed completed dead completed completed', $when)
	  or diag($session->{stderr});
	return;
}

everything('everything works');

foreach my $index (split /\n/, sql(q{
	SELECT indexrelid::regclass FROM pg_index WHERE indrelid IN
		(SELECT oid FROM pg_class WHERE relnamespace = 'jobq_internal'::regnamespace) ORDER BY 1}))
{
	sql("REINDEX INDEX CONCURRENTLY $index");
	everything("after REINDEX INDEX CONCURRENTLY $index");
}
foreach my $table (split /\n/, sql(q{
	SELECT oid::regclass FROM pg_class WHERE relnamespace = 'jobq_internal'::regnamespace AND relkind = 'r' ORDER BY 1}))
{
	my $pkey = sql("SELECT conname FROM pg_constraint WHERE conrelid = '$table'::regclass AND contype = 'p'");

	sql($_) foreach ("VACUUM FULL $table", "CLUSTER $table USING $pkey", "REINDEX TABLE $table",
		"ALTER TABLE $table SET TABLESPACE elsewhere", "REINDEX TABLE CONCURRENTLY $table");
	everything("after $table was written anew");
}

# In the middle of a transaction: the old index is still used, and the new index is already
# written.  Another session meets both.
my $middle = $node->background_psql('postgres');

sub reindex
{
	my ($table, $out, $err) = @_;

	return IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', "REINDEX TABLE CONCURRENTLY jobq_internal.$table" ],
		'>', $out, '2>', $err);
}

my $waits = q{SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
	WHERE NOT l.granted AND a.query ~ '^REINDEX'};

foreach my $table (qw(unique_key job dead_letter archive_default))
{
	my ($out, $err) = ('', '');
	my $enqueue = q{SELECT jobq.enqueue('twice', '{"n": 1}', queue => 'still', unique_key => '%s', uniqueness => '{"on_conflict": "%s"}') > 0};

	$middle->query_safe('BEGIN');
	$middle->query_safe(sprintf $enqueue, $table, 'error');
	my $reindex = reindex($table, \$out, \$err);
	wait_for($node, "$table: REINDEX waits", $waits) if $table eq 'unique_key' || $table eq 'job';
	is($session->query(sprintf $enqueue, "$table too", 'error'), 't', "$table: another enqueues meanwhile");
	is($session->query(sprintf $enqueue, "$table too", 'skip'), 't', "$table: and finds its unique key");
	is($middle->query_safe(sprintf $enqueue, $table, 'skip'), 't', "$table: so does the first");
	$middle->query_safe('COMMIT');
	ok($reindex->finish, "$table: REINDEX comes to its end") or diag($err);
	is($session->query(sprintf $enqueue, $table, 'skip'), 't', "$table: the key is found in the new index");
	is( sql(qq{SELECT count(*), count(DISTINCT unique_key) FROM jobq_internal.job WHERE queue_id =
			(SELECT id FROM jobq_internal.queue WHERE name = 'still') AND unique_key ~ '^$table'}),
		'3|2', "$table: each key once for each role");
	everything("$table: everything works");
}

# An uncommitted row gets its entry in the new index: REINDEX waits for the transaction which
# has written the row.
my ($out, $err) = ('', '');
my ($id, $token) = split /\|/, $middle->query_safe(q{
	SELECT jobq.enqueue('elsewhere', queue => 'taken', max_attempts => 1) \gset
	SELECT id, token FROM jobq.reserve('{taken}', wait => '3 min')});
$middle->query_safe("BEGIN; SELECT jobq.nack($id, $token, 'no')");
my $reindex = reindex('dead_letter', \$out, \$err);
wait_for($node, 'REINDEX waits for the dead letter', $waits);
$middle->query_safe('COMMIT');
ok($reindex->finish, 'it comes to its end') or diag($err);
is(sql("SELECT state FROM jobq.status($id)"), 'dead', 'the dead letter is found');
$middle->quit;

# A change by the owner is refused: no column is read or written with a wrong type.  jobq works
# again after the change is undone.
my $owner = $node->background_psql('postgres', on_error_stop => 0);
$owner->query(q{SELECT jobq.enqueue('twice', '{"n": 1}', queue => 'still')});
foreach my $change (
	[ 'ALTER TABLE jobq_internal.job ALTER free_run_at TYPE timestamp', qr/column "free_run_at" of jobq_internal.job has type timestamp without/ ],
	[ 'ALTER TABLE jobq_internal.job ALTER payload DROP NOT NULL', qr/column "payload" of jobq_internal.job is not marked NOT NULL/ ],
	$node->pg_version >= 18
		? [ 'ALTER TABLE jobq_internal.job ALTER payload DROP NOT NULL; ALTER TABLE jobq_internal.job ADD CONSTRAINT c NOT NULL payload NOT VALID',
			qr/column "payload" of jobq_internal.job is not marked NOT NULL/ ]
		: (),
	[ 'ALTER TABLE jobq_internal.job DROP free_run_at', qr/column \d+ of jobq_internal.job was dropped/ ],
	[ 'ALTER TABLE jobq_internal.job ADD more text', qr/jobq_internal.job has \d+ columns instead of \d+/ ],
	[ 'ALTER TABLE jobq_internal.unique_key ALTER held_until TYPE timestamp', qr/column "held_until" of jobq_internal.unique_key has type timestamp without/ ],
	[ 'ALTER INDEX jobq_internal.queue_name_key RENAME TO other', qr/index jobq_internal.queue_name_key cannot be used.*does not exist/s ],
	[ 'ALTER INDEX jobq_internal.queue_name_key RENAME TO other; CREATE INDEX queue_name_key ON jobq_internal.queue (id)',
		qr/index jobq_internal.queue_name_key cannot be used.*other columns/s ])
{
	my ($do, $expected) = @$change;

	$owner->{stderr} = '';
	$owner->query("BEGIN; $do");
	$owner->query(q{SELECT jobq.enqueue('twice', '{"n": 1}', queue => 'unheard of', unique_key => 'k')});
	like($owner->{stderr}, $expected, "$do is noticed");
	$owner->query('ROLLBACK');
	is($owner->query(q{SELECT jobq.enqueue('twice', '{"n": 1}', queue => 'still') > 0}), 't', 'and that it was undone');
	everything("after $do");
}
$owner->quit;

# Only indexes which jobq can serve may be added.
foreach my $index ("ON jobq_internal.archive ((payload ->> 'a'))", 'ON jobq_internal.job (kind) WHERE priority < 0', "ON jobq_internal.dead_letter (kind, lower(kind))",
	'ON jobq_internal.job (kind) WHERE job IS NOT NULL', 'ON jobq_internal.job ((job))')
{
	my ($rc, $out, $err) = $node->psql('postgres', "CREATE INDEX $index");
	like($err, qr/an index on "\w+" of jobq cannot have an expression or such a condition/, "CREATE INDEX $index is refused");
}
sql(q{CREATE INDEX one ON jobq_internal.job (kind) WHERE batch_id IS NULL; CREATE INDEX other ON jobq_internal.archive (kind)});
everything('with indexes of a user');
sql(q{DROP INDEX jobq_internal.one, jobq_internal.other});
$session->quit;
no_failed_assertion($node);
$node->stop;
done_testing();

# Modules for monitoring see the statements of handlers: pg_stat_statements counts the statements,
# and auto_explain, enabled for one role, logs the plans.
#
# Runs on each major: other modules hook into the same places of the server.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
shared_preload_libraries = 'pg_stat_statements, jobq'
jobq.databases = 'postgres'
});
my $lib = $node->config_data('--pkglibdir');

plan(skip_all => 'this server has no pg_stat_statements or no auto_explain')
  if grep { !-e "$lib/$_.so" } qw(pg_stat_statements auto_explain);
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE EXTENSION pg_stat_statements;
CREATE ROLE clerk LOGIN;
ALTER ROLE clerk SET session_preload_libraries = 'auto_explain';
ALTER ROLE clerk SET auto_explain.log_min_duration = 0;
CREATE TABLE bill (id bigint);
GRANT INSERT, SELECT ON bill TO clerk;
CREATE FUNCTION write_bill(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO bill VALUES (payload::bigint);
END $$;
CREATE FUNCTION read_bills() RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(count(*)) FROM bill';
CREATE PROCEDURE sign_bills() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO bill SELECT 4711 FROM generate_series(1, 7);
	COMMIT;
	INSERT INTO bill VALUES (4712);
END $$;
SELECT jobq.register('write', 'write_bill(jsonb)'), jobq.register('read', 'read_bills()'),
	jobq.register('sign', 'sign_bills()');
SELECT jobq.grant_privilege('clerk', 'produce'), jobq.grant_privilege('clerk', 'sql');
SELECT pg_stat_statements_reset();
});

# Run a job of the clerk.  Returns the job id.
sub run
{
	my ($call) = @_;
	my ($id, $state) = split /\|/, sql(qq{SET ROLE clerk; SELECT $call AS id \\gset
SELECT :id, state FROM jobq.wait(:id, '5 min')});

	is($state, 'completed', "$call is completed");
	return $id;
}

# Check how many calls and rows of the statement are counted for the clerk.
sub counted
{
	my ($pattern, $calls, $rows) = @_;

	is( sql(qq{SELECT sum(calls), sum(rows) FROM pg_stat_statements s
WHERE userid = 'clerk'::regrole AND query ~ '$pattern' AND query !~ 'regrole'}),
		"$calls|$rows", "calls and rows of $pattern");
	return;
}

# Check that the log has the plan of the job's statement, with the job as context.
sub explained
{
	my ($pattern, $kind, $id) = @_;
	my $plan = qr/LOG:  duration: .* plan:\n\tQuery Text: $pattern.*\n(?:\t.*\n)+?.*CONTEXT:  (?:.*\n\t)*running job $id of kind "$kind", attempt 1/;

	like(slurp_file($node->logfile), $plan, "the plan of $pattern is in the log");
	return;
}

my @jobs = map { run("jobq.enqueue('write', '$_')") } 1 .. 3;
counted('^INSERT INTO bill VALUES', 3, 3);
explained('INSERT INTO bill VALUES \(payload::bigint\)', 'write', $_) foreach @jobs;

my $job = run(q{jobq.enqueue('read')});
counted('^SELECT to_jsonb\(count', 1, 1);
explained('SELECT to_jsonb\(count', 'read', $job);

$job = run(q{jobq.enqueue('sign')});
counted('^INSERT INTO bill SELECT', 1, 7);
explained('INSERT INTO bill SELECT 4711', 'sign', $job);

# Plain statements, inside and outside of a transaction.
$job = run(q{jobq.enqueue_sql('INSERT INTO bill SELECT 1 FROM bill LIMIT 5')});
counted('^INSERT INTO bill SELECT .* FROM bill', 1, 5);
explained('INSERT INTO bill SELECT 1 FROM bill', 'sql', $job);
sql('ALTER TABLE bill OWNER TO clerk');
run(q{jobq.enqueue_sql('VACUUM bill', transaction => false)});
counted('^VACUUM bill', 1, 0);

no_failed_assertion($node);
done_testing();

# Fifty tenants, each with a schema and a setting: a job writes into the schema, and reads the
# rows, of the tenant that has enqueued the job.  This holds for each way to enqueue and to run a
# job, and across a crash.  JOBQ_TENANT_JOBS is the number of jobs.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $jobs = $ENV{JOBQ_TENANT_JOBS} || 2000;
my $tenants = 50;
my $rounds = int($jobs / $tenants / 10);    # of each of ten ways, for each tenant
my $patience = 1000 + int($jobs / 5);      # seconds, for all of them

alarm($patience);

my $node = jobq_node('main', "jobq.workers = '*=4'");
$node->start;
$node->safe_psql(
	'postgres', qq{
CREATE EXTENSION jobq;
CREATE ROLE web LOGIN;
SELECT jobq.grant_privilege('web'), jobq.grant_privilege('web', 'consume'), jobq.grant_privilege('web', 'sql');
CREATE SCHEMA app;
GRANT USAGE ON SCHEMA app TO web;

-- all tenants in one table, of which each sees its own
CREATE TABLE app.shared (tenant text NOT NULL, secret int);
INSERT INTO app.shared SELECT 't' || n % $tenants, n FROM generate_series(0, 10 * $tenants - 1) n;
ALTER TABLE app.shared ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON app.shared USING (tenant = current_setting('app.tenant'));
GRANT SELECT ON app.shared TO web;

CREATE FUNCTION app.seen() RETURNS text LANGUAGE sql AS
	'SELECT string_agg(DISTINCT tenant, '','') || '' '' || count(*) FROM app.shared';

-- what is written is for whom it is meant; what is in force shows what it was
DO \$\$
BEGIN
	FOR n IN 0 .. $tenants - 1 LOOP
		EXECUTE format('CREATE SCHEMA t%1\$s;
			CREATE TABLE t%1\$s.visit (way text, n int, meant text, was text DEFAULT current_setting(''app.tenant''),
				saw text DEFAULT app.seen());
			CREATE TABLE t%1\$s.paid (n int);
			GRANT USAGE ON SCHEMA t%1\$s TO web;
			GRANT INSERT, SELECT ON t%1\$s.visit, t%1\$s.paid TO web;
			CREATE TRIGGER paid AFTER INSERT ON t%1\$s.paid FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger(''trigger'')', n);
	END LOOP;
END
\$\$;
});
$node->safe_psql(
	'postgres', q{
CREATE FUNCTION app.visit(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF job.kind = 'retried' AND job.attempt < 3 THEN
		INSERT INTO visit (way, n, meant) VALUES ('never', 0, payload ->> 'tenant');
		RAISE 'again';
	END IF;
	INSERT INTO visit (way, n, meant)
	VALUES (job.kind, coalesce(payload ->> 'n', payload -> 'new' ->> 'n')::int, coalesce(payload ->> 'tenant', job.tenant));
	IF job.kind = 'plain' THEN
		-- an after-effect of this one would be another's error
		PERFORM set_config('search_path', 'pg_catalog', false), set_config('app.tenant', 'nobody', false);
	END IF;
END $$;
CREATE PROCEDURE app.travel(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO visit (way, n, meant) VALUES ('first', (payload ->> 'n')::int, payload ->> 'tenant');
	COMMIT;
	INSERT INTO visit (way, n, meant) VALUES ('never', (payload ->> 'n')::int, payload ->> 'tenant');
	ROLLBACK;
	INSERT INTO visit (way, n, meant) VALUES ('procedure', (payload ->> 'n')::int, payload ->> 'tenant');
END $$;
SELECT jobq.create_queue('branches', open => true, carry => '{search_path,app.tenant}', tenant => 'setting app.tenant', fair => 'jobs'),
	jobq.create_queue('couriers', open => true, mode => 'consumer', carry => '{search_path,app.tenant}', tenant => 'schema');
SELECT jobq.register(kind, 'app.visit(jsonb, jobq.job_context)', queue => 'branches', max_attempts => 5, backoff => 'fixed 10ms')
FROM unnest('{plain,retried,edited,part,callback,scheduled,trigger}'::text[]) kind;
SELECT jobq.register('procedure', 'app.travel(jsonb)', queue => 'branches');
-- by which a consumer does the work of one job
CREATE PROCEDURE app.deliver() LANGUAGE plpgsql AS $$
DECLARE
	job jobq.reserved_job;
BEGIN
	LOOP
		SELECT * INTO job FROM jobq.reserve('{couriers}', wait => '1 s');
		EXIT WHEN job.id IS NULL AND NOT EXISTS (SELECT FROM jobq.live_jobs WHERE queue = 'couriers');
		CONTINUE WHEN job.id IS NULL;
		COMMIT;
		PERFORM set_config(key, value, true) FROM jsonb_each_text(job.context);
		INSERT INTO visit (way, n, meant) VALUES ('consumer', (job.payload ->> 'n')::int, job.payload ->> 'tenant');
		PERFORM jobq.ack(job.id, job.token);
		COMMIT;
	END LOOP;
END $$;
-- a procedure, so that sessions are as those of web requests: a transaction each
CREATE PROCEDURE app.enqueue(first int, last int, tenants int) LANGUAGE plpgsql AS $$
DECLARE
	payload jsonb;
	batch bigint;
	edited bigint;
BEGIN
	FOR n IN first .. last LOOP
		FOR t IN 0 .. tenants - 1 LOOP
			PERFORM set_config('search_path', 't' || t, true), set_config('app.tenant', 't' || t, true);
			payload := jsonb_build_object('tenant', 't' || t, 'n', n);
			PERFORM jobq.enqueue('plain', payload), jobq.enqueue('retried', payload), jobq.enqueue('procedure', payload),
				jobq.enqueue('deliver', payload, 'couriers');
			PERFORM jobq.enqueue_sql(format('INSERT INTO visit (way, n, meant) VALUES (''statement'', %s, %L)', n, 't' || t), queue => 'branches');
			edited := jobq.enqueue('edited', '{"tenant": "nobody"}', delay => '1 day');
			batch := jobq.create_batch(on_success => jsonb_build_object('kind', 'callback', 'payload', payload));
			PERFORM FROM jobq.add_jobs(batch, 'part', ARRAY[payload]);
			PERFORM jobq.start_batch(batch);
			INSERT INTO paid VALUES (n);
			IF n = 1 THEN
				PERFORM jobq.schedule('of t' || t, '0 0 29 2 *', 'scheduled', payload);
			END IF;
			COMMIT;
			-- from where another tenant is at home: the context is that of the schedule, and of whoever has enqueued
			PERFORM set_config('search_path', 't' || (t + 1) % tenants, true), set_config('app.tenant', 't' || (t + 1) % tenants, true);
			PERFORM jobq.run_schedule('of t' || t), jobq.edit(edited, payload), jobq.edit(edited, run_at => now());
			COMMIT;
		END LOOP;
	END LOOP;
END $$;
});

# Enqueue half of the jobs, crash the server while jobs run, then enqueue the other half.
my $half = int($rounds / 2) || 1;
my @web = (extra_params => [ '-U', 'web' ], timeout => $patience);
my $left = q{SELECT count(*) FROM jobq.live_jobs WHERE queue = 'branches'};

$node->safe_psql('postgres', "CALL app.enqueue(1, $half, $tenants)", @web);
$node->stop('immediate');
$node->start;
$node->safe_psql('postgres', "CALL app.enqueue($half + 1, $rounds, $tenants)", @web);
wait_for($node, 'all jobs of couriers are there',
	"SELECT count(*) = $tenants * $rounds FROM jobq.live_jobs WHERE queue = 'couriers'");
$node->safe_psql('postgres', 'CALL app.deliver()', @web);
work_off($node, 'all jobs are over', $left);
wait_for($node, 'all batches are, too', q{SELECT bool_and(state = 'completed') FROM jobq.batches});
work_off($node, 'and their callbacks', $left);
is($node->safe_psql('postgres', 'SELECT count(*) FROM jobq.dead_letters'), 0, 'none has failed');

# Compare the rows in each schema.  Rows that a procedure has committed may exist twice.
my $all = join(' UNION ALL ', map { "SELECT 't$_' AS place, * FROM t$_.visit" } 0 .. $tenants - 1);

is( $node->safe_psql('postgres', "SELECT place, way, n, meant, was FROM ($all) v WHERE place <> meant OR place <> was LIMIT 5"),
	'', 'no row is in a wrong schema, or written with the setting of another tenant');
is( $node->safe_psql('postgres', "SELECT place, way, n, saw FROM ($all) v WHERE saw IS DISTINCT FROM place || ' 10' LIMIT 5"),
	'', 'no job has seen the rows of another tenant, and each has seen its own');
is( $node->safe_psql('postgres', "SELECT way, count(*) FROM ($all) v WHERE way <> 'first' GROUP BY way ORDER BY way"),
	join("\n", map { "$_|" . ($tenants * $rounds) } qw(callback consumer edited part plain procedure retried scheduled statement trigger)),
	'all of them have written, and what is one transaction once');
is( $node->safe_psql('postgres', "SELECT count(DISTINCT (place, n)) FROM ($all) v WHERE way = 'first'"),
	$tenants * $rounds, 'so has the first transaction of procedures');
is( $node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT tenant), bool_and(tenant = payload ->> 'tenant' OR kind IN ('trigger', 'sql')) FROM jobq.jobs}),
	10 * $rounds * $tenants . "|$tenants|t",
	'each has its tenant');

# A job without the setting sees no rows: the worker may know the setting, but with an empty value.
$node->safe_psql('postgres', q{
CREATE FUNCTION app.look() RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(app.seen())';
SELECT jobq.register('nowhere', 'app.look()', max_attempts => 1)});
$node->safe_psql('postgres', q{SET app.tenant = 't1'; SELECT jobq.enqueue('nowhere')}, @web);
wait_for($node, 'a job of a queue that carries nothing sees nobody',
	q{SELECT coalesce(bool_and(state IN ('completed', 'dead') AND result IS NULL), false) FROM jobq.jobs WHERE kind = 'nowhere'});

$node->stop;
done_testing();

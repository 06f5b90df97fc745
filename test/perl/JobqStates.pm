# Jobs in each state which outlasts a server, and the check for their correct end elsewhere:
# after pg_upgrade, or in a copy restored from a dump.

package JobqStates;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use JobqTest;
use Test::More;

our @EXPORT = qw(
  make_states
  states
  come_to_their_end
);

# Create the jobs in a database which is served, but does not have the extension yet.
sub make_states
{
	my ($node, $dbname) = @_;

	$node->safe_psql(
		$dbname, q{
CREATE EXTENSION jobq;
CREATE ROLE clerk LOGIN;
SELECT jobq.grant_privilege('clerk');
CREATE TABLE effect (n bigint GENERATED ALWAYS AS IDENTITY, what text, role name DEFAULT current_user);
GRANT INSERT ON effect TO clerk;
CREATE TABLE held (id bigint, token bigint);
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF job.attempt = 1 AND payload ? 'fails' THEN
		RAISE EXCEPTION 'the first attempt of %', payload ->> 'what';
	END IF;
	INSERT INTO effect (what) VALUES (payload ->> 'what');
	RETURN jsonb_build_object('noted', payload -> 'what');
END $$;
CREATE FUNCTION never(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no good'; END $$;
CREATE FUNCTION tell(payload jsonb, job jobq.job_context) RETURNS void
BEGIN ATOMIC
	INSERT INTO effect (what) VALUES ((payload ->> 'what') || ' ' || (job.headers ->> 'batch_state'));
END;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)', backoff => 'fixed 1h'),
	jobq.register('tell', 'tell(jsonb, jobq.job_context)'),
	jobq.register('never', 'never(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('still', open => true, keep => 'no_payload', max_running => 1), jobq.create_queue('outside', open => true, mode => 'consumer'),
	jobq.create_queue('groups', open => true), jobq.create_queue('proxy', run_as => 'clerk');
SELECT jobq.register('errand', 'note(jsonb, jobq.job_context)', queue => 'proxy'), jobq.pause('proxy'), jobq.enqueue('errand', '{"what": "errand"}');
SELECT jobq.enqueue('note', '{"what": "completed"}', unique_key => 'held', uniqueness => '{"for": "30 days"}');
SELECT jobq.enqueue('never', '{"what": "failed"}');
SELECT jobq.cancel(jobq.enqueue('note', '{"what": "cancelled"}', delay => '1 day'));
SELECT jobq.enqueue('note', '{"what": "group 1", "fails": true}', queue => 'groups', group_key => 'g');
SELECT jobq.enqueue('note', '{"what": "group 2"}', queue => 'groups', group_key => 'g');
SELECT jobq.enqueue('note', '{"what": "group 3"}', queue => 'groups', group_key => 'g');
SELECT jobq.enqueue('x', '{"what": "leased"}', queue => 'outside');
SELECT jobq.enqueue('note', '{"what": "scheduled"}', delay => '1 day', headers => '{"trace": 1}');
SELECT jobq.schedule('hourly', 'every 1 hour', 'note', '{"what": "tick"}');
SELECT jobq.schedule('paused', 'every 1 hour', 'note', '{"what": "never"}');
SELECT jobq.pause(schedule => 'paused');
CREATE PROCEDURE approve(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	IF jobq.step('first') THEN
		INSERT INTO effect (what) VALUES ('approval first');
		CALL jobq.step_done('"kept"');
	END IF;
	CALL jobq.await_signal('approved', answer);
	INSERT INTO effect (what) VALUES ('approval old definition');
END $$;
SELECT jobq.register('approve', 'approve(jsonb)', max_attempts => 1), jobq.enqueue('approve');
});
	# the first jobs of a batch and of a workflow run; the other jobs are paused
	$node->safe_psql(
		$dbname, q{
SELECT jobq.pause('still');
BEGIN;
SELECT jobq.create_batch(name => 'batch', on_success => '{"kind": "tell", "payload": {"what": "batch"}}', start => true) AS batch \gset
SELECT jobq.add_jobs(:batch, 'note', '{"{\"what\": \"batch 1\"}"}');
SELECT jobq.add_jobs(:batch, 'note', '{"{\"what\": \"batch 2\"}"}', '{"queue": "still"}');
COMMIT;
SELECT jobq.create_workflow('{"name": "flow", "on_finish": {"kind": "tell", "payload": {"what": "flow"}}, "steps": [
	{"name": "a", "kind": "note", "payload": {"what": "step a"}},
	{"name": "b", "kind": "note", "payload": {"what": "step b"}, "queue": "still", "needs": ["a"]},
	{"name": "c", "kind": "note", "payload": {"what": "step c"}, "needs": ["b"]}]}')});
	wait_for($node, 'what shall run has run',
		q{SELECT count(*) FILTER (WHERE what IN ('completed', 'batch 1', 'step a')) = 3 FROM effect}, $dbname);
	$node->safe_psql(
		$dbname, q{
INSERT INTO held SELECT id, token FROM jobq.reserve('{outside}', 1, '20 hours', '5 min');
SET ROLE clerk;
SELECT jobq.enqueue('note', '{"what": "ready"}', queue => 'still', priority => 5);
RESET ROLE});
	wait_for($node, 'and the others wait',
		q{SELECT count(*) FILTER (WHERE state = 'blocked') = 1 AND count(*) FILTER (WHERE state = 'retryable') = 1
			AND count(*) FILTER (WHERE state = 'suspended') = 1 AND count(*) FILTER (WHERE state = 'dead') = 1 FROM jobq.jobs}, $dbname);
	return;
}

# The whole state as text, without tokens, which begin anew at each start.  In a copy restored
# from a dump, no consumer holds a job, and missed ticks are skipped.
sub states
{
	my ($node, $dbname, $is_copy) = @_;
	my $state = $is_copy ? q{CASE WHEN queue <> 'outside' THEN concat_ws(' ', state, attempt) END} : 'state, attempt';
	my $ticks = $is_copy ? '' : ', next_tick, last_tick';

	return $node->safe_psql(
		$dbname, qq{
SELECT id, $state, kind, queue, role, run_at, payload, headers, result, error, group_key, unique_key, batch_id FROM jobq.jobs ORDER BY id;
SELECT * FROM jobq_internal.unique_key ORDER BY key;
SELECT id, name, state, total, completed, blocked FROM jobq.batches ORDER BY id;
SELECT batch_id, name, element, needs FROM jobq.steps ORDER BY 1, 2, 3;
SELECT * FROM jobq_internal.procedure_step ORDER BY job_id, name;
SELECT name, cron, state$ticks FROM jobq.schedules ORDER BY name;
SELECT name, mode, keep, paused, max_running, run_as FROM jobq.queues ORDER BY name;
SELECT kind, handler, backoff FROM jobq.kinds ORDER BY kind;
SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'jobq_internal' AND sequencename <> 'lease_token_seq' ORDER BY 1});
}

# Each waiting job is done once and in order, with its role, batch, workflow and schedule.
sub come_to_their_end
{
	my ($node, $dbname, $what, $is_copy) = @_;

	if (!$is_copy)
	{
		wait_for($node, "$what: a consumer holds its job",
			q{SELECT state = 'running' FROM jobq.status((SELECT id FROM held))}, $dbname);
		$node->safe_psql($dbname, q{SELECT jobq.ack(id, token, '"done"') FROM held});
	}
	is($node->safe_psql($dbname, q{SELECT jobq.enqueue('note', unique_key => 'held') IN (SELECT id FROM jobq_internal.archive)}), 't',
		"$what: a unique key is held");
	$node->safe_psql($dbname, q{SELECT jobq.retry(id) FROM jobq.dead_letters});
	wait_for($node, "$what: a dead letter was tried again",
		q{SELECT count(*) = 1 FROM jobq.dead_letters WHERE jsonb_array_length(errors) = 2}, $dbname);
	$node->safe_psql($dbname, q{SELECT jobq.resume('still'), jobq.resume('proxy')});

	# a procedure that waited for a signal goes on, with a new definition
	$node->safe_psql(
		$dbname, q{
CREATE OR REPLACE PROCEDURE approve(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	IF jobq.step('first') THEN
		RAISE 'the first step is done';
	END IF;
	CALL jobq.await_signal('approved', answer);
	INSERT INTO effect (what) VALUES (format('approval %s, %s', answer, jobq.step_result('first')));
END $$;
SELECT jobq.signal(id, 'approved', '"given"') FROM jobq.live_jobs WHERE state = 'suspended'});
	wait_for($node, "$what: a workflow goes on and ends",
		q{SELECT count(*) = 1 FROM effect WHERE what = 'flow completed'}, $dbname);
	$node->safe_psql($dbname, q{SELECT jobq.test_clock('2 days')});
	is($node->safe_psql($dbname, q{SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{outside}', 1, '1 min', '5 min')}), '1',
		"$what: what a consumer held can be had again") if $is_copy;
	wait_for($node, "$what: what was to come later has run", q{SELECT count(*) = 0 FROM jobq_internal.job}, $dbname);
	is( $node->safe_psql(
			$dbname, q{SELECT string_agg(what, ', ' ORDER BY n) FROM effect WHERE what ^@ 'group' OR what ^@ 'step' OR what ^@ 'flow'}),
		'step a, step b, step c, flow completed, group 1, group 2, group 3', "$what: in order");
	is( $node->safe_psql(
			$dbname, q{SELECT what, count(*), string_agg(DISTINCT role, ' ') FROM effect WHERE what <> 'tick' GROUP BY 1 ORDER BY 1}),
		join("\n", map { "$_|1|" . ($_ =~ /ready|errand/ ? 'clerk' : 'postgres') } 'approval "given", "kept"', 'approval first', 'batch 1', 'batch 2', 'batch completed', 'completed',
			'errand', 'flow completed', 'group 1', 'group 2', 'group 3', 'ready', 'scheduled', 'step a', 'step b', 'step c')
		, "$what: each once, as its role");
	wait_for($node, "$what: a schedule ticks", q{SELECT count(*) > 0 FROM effect WHERE what = 'tick'}, $dbname);
	$node->safe_psql($dbname, q{SELECT jobq.test_clock('0')});
	return;
}

1;

-- Event handlers that are called in the transaction of the job, before and after its handler.
\connect - postgres
CREATE FUNCTION test.told(event jsonb) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.trace (note) VALUES (concat_ws(' ', current_user, event ->> 'event', event ->> 'kind', event ->> 'queue', event ->> 'attempt')) $$;
CREATE FUNCTION test.told_context(event jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.trace (note) VALUES (concat_ws(' ', 'context:', event ->> 'event', (event ->> 'job')::bigint = job.id, (jobq.current_job()).id = job.id, job.attempt, job.payload)) $$;
CREATE FUNCTION test.fails_within(event jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES ('never seen');
	RAISE EXCEPTION 'no % here', event ->> 'event';
END
$$;
SELECT jobq.register('b told', 'test.told(jsonb)'), jobq.register('a context', 'test.told_context(jsonb, jobq.job_context)'), jobq.register('fails within', 'test.fails_within(jsonb)');
-- Returns and clears the events reported since the last call.
CREATE FUNCTION test.told() RETURNS SETOF text LANGUAGE sql AS $$
	WITH gone AS (DELETE FROM test.trace RETURNING n, note) SELECT note FROM gone ORDER BY n $$;
CREATE FUNCTION test.log_of(id bigint) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT concat_ws(' ', l ->> 'level', l ->> 'message') FROM jobq.jobs j, jsonb_array_elements(j.log) l WHERE j.id = $1 $$;
TRUNCATE test.trace;

-- Handlers run before and after the job, in the order of their names; no event job is enqueued.
SELECT jobq.on_event(e, h, within => true) FROM unnest('{started,completed}'::text[]) e, unnest('{b told,a context}'::text[]) h;
SELECT event, handler, within, required FROM jobq.event_handlers ORDER BY 1, 2;
SELECT jobq.enqueue('note', '"the job"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT count(*) FROM jobq.jobs WHERE kind IN ('on_event:b told', 'on_event:a context');
-- a failed attempt rolls back the "started" handlers, and has no "completed" event
SELECT jobq.enqueue('broken', max_attempts => 2) AS id \gset
SELECT state FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.delete(:id);
SELECT jobq.off_event(event, handler, within => within) FROM jobq.event_handlers WHERE handler = 'a context';
-- nor has a snoozed or self-cancelled job
CREATE FUNCTION test.ends(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF (jobq.current_job()).headers IS NOT NULL THEN
		PERFORM jobq.cancel_current('enough');
	ELSE
		PERFORM jobq.snooze('1 hour');
	END IF;
END
$$;
SELECT jobq.register('ends', 'test.ends(jsonb)');
SELECT jobq.enqueue('ends') AS a, jobq.enqueue('ends', headers => '{}') AS b \gset
SELECT state FROM test.outcome(:b);
SELECT test.until(format('(SELECT state = ''scheduled'' FROM jobq.status(%s))', :a));
SELECT * FROM test.told();
SELECT jobq.cancel(:a);
-- no events for jobs of other roles, even if the jobs are visible to the role
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.on_event('completed', 'b told', queue => 'default', kind => 'echo', within => true);
SELECT jobq.enqueue('echo') AS b, jobq.enqueue('note', '"alice"') AS c \gset
RESET ROLE;
SELECT state FROM test.outcome(:b);
SELECT state FROM test.outcome(:c);
SELECT jobq.grant_privilege('regress_jobq_alice', 'manage');
SELECT jobq.enqueue('echo') AS d \gset
SELECT state FROM test.outcome(:d);
SELECT note FROM test.told() AS note ORDER BY note COLLATE "C";
-- a job with run_as: the enqueuing role is another role
SELECT jobq.create_queue('as alice', run_as => 'regress_jobq_alice');
SELECT jobq.register('echo as alice', 'test.echo(jsonb)', queue => 'as alice');
SET ROLE regress_jobq_alice;
SELECT jobq.on_event('started', 'b told', queue => 'as alice', within => true);
RESET ROLE;
SELECT jobq.enqueue('echo as alice') AS id \gset
SELECT state FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.drop_owned('regress_jobq_alice') > 0;
SELECT jobq.unregister('echo as alice');
SELECT jobq.drop_queue('as alice');

-- An error of a handler is a line of the log.
SELECT jobq.on_event(e, 'fails within', kind => 'echo', within => true) FROM unnest('{started,completed}'::text[]) e;
SELECT jobq.enqueue('echo', '"fine"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT * FROM test.log_of(:id);
SELECT * FROM test.told();
-- With required => true, the attempt fails.
SELECT jobq.on_event('started', 'fails within', kind => 'note', within => true, required => true);
SELECT jobq.enqueue('note', '"never seen"', max_attempts => 1) AS id \gset
SELECT state, error FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.off_event('started', 'fails within', kind => 'note', within => true), jobq.on_event('completed', 'fails within', kind => 'note', within => true);
SELECT jobq.on_event('completed', 'fails within', kind => 'note', within => true, required => true);
SELECT required FROM jobq.event_handlers WHERE kind = 'note';
SELECT jobq.enqueue('note', '"never seen"', max_attempts => 1) AS id \gset
SELECT state, error FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.off_event(event, handler, queue, kind, within) FROM jobq.event_handlers;
SELECT jobq.delete_many(state => 'dead') > 0;
-- a handler cannot change the outcome of the job or its role; only its log lines are kept
CREATE FUNCTION test.meddles(event jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.log('I was here');
	PERFORM set_config('test.mood', 'good', true);
	PERFORM jobq.snooze('1 hour');
	BEGIN
		SET LOCAL ROLE regress_jobq_alice;
	EXCEPTION WHEN OTHERS THEN
		PERFORM jobq.log(SQLERRM);
	END;
	IF event ->> 'event' = 'started' THEN
		PERFORM jobq.reject_current('it shall fail');
	END IF;
END
$$;
CREATE FUNCTION test.mood(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(current_setting('test.mood', true)) $$;
SELECT jobq.register('meddles', 'test.meddles(jsonb)'), jobq.register('mood', 'test.mood(jsonb)');
SELECT jobq.on_event('started', 'meddles', within => true), jobq.on_event('completed', 'meddles', within => true);
SELECT jobq.enqueue('mood') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT * FROM test.log_of(:id);
-- settings of a "started" handler are visible to the job's handler, and not to the next job
CREATE FUNCTION test.sets(event jsonb) RETURNS void LANGUAGE sql AS $$ SELECT set_config('test.mood', event ->> 'kind', true) $$;
SELECT jobq.register('meddles', 'test.sets(jsonb)');
SELECT jobq.off_event('completed', 'meddles', within => true);
SELECT jobq.enqueue('mood', queue => 'first') AS id \gset
SELECT result FROM test.outcome(:id);
SELECT jobq.off_event('started', 'meddles', within => true);
SELECT jobq.enqueue('mood', queue => 'first') AS id \gset
SELECT coalesce(nullif(result, '""'), 'null') AS result FROM test.outcome(:id);
-- an unregistered handler, or a handler with a missing function
SELECT jobq.on_event('started', 'meddles', within => true);
SELECT jobq.unregister('meddles');
SELECT jobq.enqueue('echo') AS id \gset
SELECT state FROM test.outcome(:id);
SELECT * FROM test.log_of(:id);
SELECT jobq.register('meddles', 'test.sets(jsonb)');
DROP FUNCTION test.sets;
SELECT jobq.enqueue('echo') AS id \gset
SELECT state FROM test.outcome(:id);
SELECT * FROM test.log_of(:id);
SELECT jobq.register('meddles', 'test.told(jsonb)');
SELECT jobq.enqueue('echo') AS id \gset
SELECT state FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.off_event('started', 'meddles', within => true);
-- the job's timeout also covers event handlers
CREATE FUNCTION test.sleeps(event jsonb) RETURNS void LANGUAGE sql AS $$ SELECT pg_sleep(3600) $$;
SELECT jobq.register('meddles', 'test.sleeps(jsonb)');
SELECT jobq.on_event('completed', 'meddles', within => true);
SELECT jobq.enqueue('note', '"never seen"', timeout => '100 ms', max_attempts => 1) AS id \gset
SELECT state, error FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.off_event('completed', 'meddles', within => true);
SELECT jobq.delete_many(state => 'dead') > 0;
-- deferred triggers of an event handler fail at the end of its transaction: for a procedure, before its begin
CREATE TABLE test.checked (i int);
CREATE FUNCTION test.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused at the end'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON test.checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.refuse();
CREATE FUNCTION test.leaves(event jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO test.checked VALUES (1) $$;
CREATE PROCEDURE test.commits(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
SELECT jobq.register('meddles', 'test.leaves(jsonb)'), jobq.register('commits', 'test.commits(jsonb)', max_attempts => 2, backoff => 'fixed 1ms');
SELECT jobq.on_event('started', 'meddles', kind => 'commits', within => true);
SELECT jobq.enqueue('commits') AS id \gset
SELECT state, error FROM test.outcome(:id);
SELECT e ->> 'attempt' AS attempt, e ->> 'message' AS message FROM jobq.jobs j, jsonb_array_elements(j.errors) e WHERE j.id = :id;
SELECT jobq.off_event('started', 'meddles', kind => 'commits', within => true), jobq.unregister('commits');
SELECT jobq.delete_many(state => 'dead') > 0;
DROP TABLE test.checked;
DROP FUNCTION test.refuse, test.leaves;
DROP PROCEDURE test.commits;
SELECT jobq.register('meddles', 'test.told(jsonb)');

-- Procedures, statements, jobq.work(); not perform() and dry_run().
CREATE PROCEDURE test.commits(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES ('procedure');
	COMMIT;
	IF payload = '"fail"' THEN
		RAISE 'after its commit';
	END IF;
END
$$;
SELECT jobq.register('commits', 'test.commits(jsonb)');
SELECT jobq.on_event(e, h, within => true) FROM unnest('{started,completed}'::text[]) e, unnest('{b told,fails within}'::text[]) h;
SELECT jobq.enqueue('commits') AS id \gset
SELECT state FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT * FROM test.log_of(:id);
SELECT jobq.enqueue('commits', '"fail"', max_attempts => 1) AS id \gset
SELECT state, error FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.on_event('started', 'fails within', within => true, required => true);
SELECT jobq.enqueue('commits', max_attempts => 1) AS id \gset
SELECT state, attempt, error FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.on_event('started', 'fails within', within => true), jobq.on_event('completed', 'fails within', within => true, required => true);
SELECT jobq.enqueue('commits', max_attempts => 1) AS id \gset
SELECT state, attempt, error FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT jobq.off_event(event, handler, within => true) FROM jobq.event_handlers WHERE handler = 'fails within';
SELECT jobq.enqueue_sql('SELECT 1') AS id \gset
SELECT state FROM test.outcome(:id);
SELECT jobq.enqueue_sql('ANALYZE test.trace', transaction => false) AS id \gset
SELECT state FROM test.outcome(:id);
SELECT * FROM test.told();
-- deferred triggers of a procedure's or statement's last transaction fire before the "completed" handlers
CREATE TABLE test.checked (note text);
CREATE FUNCTION test.check_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES (NEW.note);
	PERFORM jobq.log(NEW.note);
	IF NEW.note = 'snooze' THEN
		PERFORM jobq.snooze('1 hour');
	END IF;
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER check_late AFTER INSERT ON test.checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.check_late();
CREATE PROCEDURE test.leaves_late(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN COMMIT; INSERT INTO test.checked VALUES (payload #>> '{}'); END $$;
SELECT jobq.register('leaves_late', 'test.leaves_late(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('leaves_late', '"checked"') AS id \gset
SELECT state, error FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT * FROM test.log_of(:id);
SELECT jobq.enqueue('leaves_late', '"snooze"') AS id \gset
SELECT test.until(format('(SELECT state IN (''scheduled'', ''completed'', ''dead'') FROM jobq.status(%s))', :id));
SELECT state, attempt, error FROM jobq.status(:id);
SELECT * FROM test.told();
SELECT jobq.cancel(:id);
SELECT jobq.enqueue_sql($$INSERT INTO test.checked VALUES ('of a statement')$$, transaction => false) AS id \gset
SELECT state, error FROM test.outcome(:id);
SELECT * FROM test.told();
SELECT * FROM test.log_of(:id);
SELECT jobq.unregister('leaves_late');
DROP TABLE test.checked;
DROP FUNCTION test.check_late;
DROP PROCEDURE test.leaves_late;
SELECT jobq.enqueue('echo', '"session"', queue => 'manual') AS id \gset
CALL jobq.work('{manual}', once => true);
SELECT state FROM jobq.status(:id);
SELECT * FROM test.told();
SELECT jobq.perform('echo'), error FROM jobq.dry_run('echo');
SELECT * FROM test.told();
SELECT jobq.delete_many(state => 'dead') > 0;
-- event jobs do not call these handlers
SELECT jobq.on_event('completed', 'b told', kind => 'mood');
SELECT jobq.enqueue('mood') AS id \gset
SELECT state FROM test.outcome(:id);
SELECT test.until($$ EXISTS (SELECT FROM jobq.jobs WHERE kind = 'on_event:b told' AND state = 'completed') $$);
SELECT * FROM test.told();
SELECT jobq.off_event(event, handler, queue, kind, within) FROM jobq.event_handlers;

-- bad input
SELECT * FROM test.error($$SELECT jobq.on_event('started', 'echo')$$);
SELECT * FROM test.error($$SELECT jobq.on_event('dead', 'echo', within => true)$$);
SELECT * FROM test.error($$SELECT jobq.on_event('dead', 'echo', required => true)$$);
SELECT * FROM test.error($$SELECT jobq.on_event('completed', 'echo', within => NULL)$$);
SELECT * FROM test.error($$SELECT jobq.on_event('completed', 'sql', within => true)$$);
SELECT * FROM test.error($$SELECT jobq.off_event('completed', 'echo', within => true)$$);

-- reassign_owned() keeps the options of event handlers
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');
SET ROLE regress_jobq_alice;
SELECT jobq.on_event('started', 'b told', within => true, required => true);
RESET ROLE;
SELECT jobq.reassign_owned('regress_jobq_alice', 'regress_jobq_bob');
SELECT role, event, within, required FROM jobq.event_handlers;
SELECT jobq.drop_owned('regress_jobq_bob');
SELECT count(*) FROM jobq_internal.event_handler;
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');
SELECT jobq.unregister(k) FROM unnest('{b told,a context,fails within,meddles,mood,ends,commits}'::text[]) k;
DROP FUNCTION test.told(jsonb), test.told_context, test.fails_within, test.told(), test.log_of, test.ends, test.meddles, test.mood, test.sleeps;
DROP PROCEDURE test.commits;
TRUNCATE test.trace;

-- The load's objects in the database: roles, queues, handlers, and the ledger.

CREATE EXTENSION IF NOT EXISTS jobq;
CREATE SCHEMA chaos;

-- Effects of handlers, written in the job's transaction.  There is no unique
-- index, so a repeated effect has two rows.
CREATE TABLE chaos.effect (
	tag text NOT NULL,
	job bigint,
	attempt int,
	kind text,
	queue text,
	grp text,
	n int,
	started timestamptz,
	ended timestamptz,
	extra text
);

-- Effects of statements outside of the job's transaction.
CREATE TABLE chaos.outside (tag text);

-- Faults found by handlers.
CREATE TABLE chaos.wrong (what text);

-- Notes of the enqueuers.
CREATE TABLE chaos.note (
	tag text NOT NULL,
	event text NOT NULL,
	about jsonb
);

-- Processes that got a signal; starts of jobs, as seen in the log.
CREATE TABLE chaos.blow (pid int, signal text, runs boolean);
CREATE TABLE chaos.begun (job bigint, attempt int, pid int, at timestamptz);

-- Crashed processes and their jobs, by the messages of the postmaster.
CREATE TABLE chaos.crashed (pid int, job bigint);

-- When a process ends, by the log.  A null pid means all processes: from the first message
-- about the end until new processes exist.
CREATE TABLE chaos.gone (pid int, since timestamptz NOT NULL, until timestamptz NOT NULL);

CREATE FUNCTION chaos.note_effect(payload jsonb, job jobq.job_context, started timestamptz) RETURNS void
LANGUAGE sql AS $$
	INSERT INTO chaos.effect VALUES (payload ->> 'tag' || coalesce('.' || (job.headers ->> 'batch_state'), ''),
		job.id, job.attempt, job.kind, job.queue, payload ->> 'grp', (payload ->> 'n')::int,
		started, clock_timestamp(), job.headers ->> 'scheduled_for')
$$;

-- The log, which no crash undoes, shows which process ran which job, and which job
-- found too many jobs of its group in open transactions.
CREATE FUNCTION chaos.begin(payload jsonb, job jobq.job_context) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := clock_timestamp();
BEGIN
	RAISE LOG 'chaos begun % %', job.id, job.attempt;
	IF NOT EXISTS (SELECT FROM generate_series(1, (payload ->> 'places')::int) place
			WHERE pg_try_advisory_xact_lock(hashtextextended(payload ->> 'grp', place))) AND payload ? 'places' THEN
		RAISE LOG 'chaos crowd: job % is one too many of %', job.id, payload ->> 'grp';
	END IF;
	IF job.attempt <= (payload ->> 'fails')::int THEN
		PERFORM chaos.note_effect(payload, job, started);	-- which is undone
		RAISE 'stumbled';
	END IF;
	RETURN started;
END
$$;

CREATE FUNCTION chaos.work(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := chaos.begin(payload, job);
BEGIN
	PERFORM pg_sleep(coalesce((payload ->> 'ms')::float8 / 1000, 0));
	PERFORM chaos.note_effect(payload, job, started);
	RETURN payload -> 'tag';
END
$$;

-- Several jobs in one call.  A job that fails undoes the effects of all.
CREATE FUNCTION chaos.work_together(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	job jobq.job_context;
BEGIN
	PERFORM pg_sleep(max((j.payload ->> 'ms')::float8) / 1000) FROM unnest(jobs) j;
	FOREACH job IN ARRAY jobs LOOP
		PERFORM chaos.note_effect(job.payload, job, clock_timestamp());
	END LOOP;
	IF EXISTS (SELECT FROM unnest(jobs) j WHERE j.attempt <= (j.payload ->> 'fails')::int) THEN
		RAISE 'stumbled';
	END IF;
END
$$;

-- A procedure: the first part runs at most twice, and the last part exactly
-- once.
CREATE PROCEDURE chaos.work_in_steps(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := chaos.begin(payload, job);
BEGIN
	COMMIT;
	PERFORM pg_sleep(coalesce((payload ->> 'ms')::float8 / 1000, 0));
	COMMIT;
	PERFORM chaos.note_effect(payload, job, started);
END
$$;

-- Steps and signals: each part of a job is done once.  The answer comes from another job.
CREATE TABLE chaos.part (job bigint, part text, answer jsonb);

CREATE PROCEDURE chaos.work_durably(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := chaos.begin(payload, job);
	answer jsonb;
	n int;
BEGIN
	IF jobq.step('ask') THEN
		INSERT INTO chaos.part VALUES (job.id, 'ask');
		PERFORM jobq.enqueue('chaos.reply', jsonb_build_object('tag', payload ->> 'tag' || '.reply', 'job', job.id));
		CALL jobq.step_done();
	END IF;
	CALL jobq.sleep('nap', coalesce((payload ->> 'ms')::int, 0) * interval '1 ms');
	-- a reply that has crashed twice does not come
	CALL jobq.await_signal('reply', answer, timeout => '20 s');
	n := coalesce((jobq.saved())::int, 0);
	WHILE n < 3 LOOP
		n := n + 1;
		INSERT INTO chaos.part VALUES (job.id, n);
		PERFORM jobq.save(to_jsonb(n));
		COMMIT;
	END LOOP;
	IF jobq.step('answer') THEN
		INSERT INTO chaos.part VALUES (job.id, 'answer', answer);
		CALL jobq.step_done();
	END IF;
	-- the answers of a worker's job and of a consumer's job; crashed twice, a job is dead
	CALL jobq.ask('worker', 'chaos.echo', jsonb_build_object('tag', payload ->> 'tag' || '.asked'), answer, on_error => 'return', await => false);
	CALL jobq.ask('consumer', 'chaos.outside', jsonb_build_object('tag', payload ->> 'tag' || '.outside'), answer,
		options => '{"queue": "outside", "max_attempts": 1000, "backoff": "fixed 20ms"}', on_error => 'return', await => false);
	CALL jobq.ask('worker', 'chaos.echo', answer => answer, on_error => 'return');
	IF jobq.step('worker answered') THEN
		INSERT INTO chaos.part VALUES (job.id, 'worker', answer);
		CALL jobq.step_done();
	END IF;
	CALL jobq.ask('consumer', 'chaos.outside', answer => answer, on_error => 'return');
	INSERT INTO chaos.part VALUES (job.id, 'consumer', answer);
	PERFORM chaos.note_effect(payload, job, started);
END
$$;

CREATE FUNCTION chaos.echo(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM chaos.note_effect(payload, job, chaos.begin(payload, job));
	RETURN payload -> 'tag';
END
$$;

CREATE FUNCTION chaos.reply(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.signal((payload ->> 'job')::bigint, 'reply', payload -> 'tag');
	PERFORM chaos.note_effect(payload, job, chaos.begin(payload, job));
END
$$;

CREATE FUNCTION chaos.give_up(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM chaos.note_effect(payload, job, now());		-- which is undone
	PERFORM jobq.reject_current('given up');
END
$$;

CREATE FUNCTION chaos.dawdle(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM chaos.note_effect(payload, job, now());		-- which is undone
	PERFORM pg_sleep(60);
END
$$;

-- Returns the array for a step with "map".
CREATE FUNCTION chaos.list(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM chaos.note_effect(payload, job, chaos.begin(payload, job));
	RETURN payload -> 'elements';
END
$$;

-- Check that the step has the results of the previous steps.
CREATE FUNCTION chaos.join(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM chaos.note_effect(payload, job, chaos.begin(payload, job));
	INSERT INTO chaos.wrong SELECT format('%s: got %s, and not %s', payload ->> 'tag', payload -> 'got', payload -> 'expect')
		WHERE payload -> 'got' IS DISTINCT FROM payload -> 'expect';
END
$$;

-- Record an event with the job and the attempt.
CREATE FUNCTION chaos.hear(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := chaos.begin(payload, job);
BEGIN
	INSERT INTO chaos.effect VALUES ('event', job.id, job.attempt, job.kind, job.queue,
		payload ->> 'event', (payload ->> 'job')::int, started, clock_timestamp(), payload ->> 'attempt');
END
$$;

-- The work of statements.
CREATE FUNCTION chaos.state(tag text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	payload jsonb := jsonb_build_object('tag', tag);
BEGIN
	PERFORM chaos.note_effect(payload, jobq.current_job(), chaos.begin(payload, jobq.current_job()));
END
$$;

CREATE PROCEDURE chaos.state_outside(tag text) LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := chaos.begin(jsonb_build_object('tag', tag), jobq.current_job());
BEGIN
	COMMIT;
	INSERT INTO chaos.outside VALUES (tag);
END
$$;

-- Add jobs or a workflow to the batch from inside.
CREATE FUNCTION chaos.add(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'definition' THEN
		PERFORM jobq.create_workflow(payload -> 'definition', batch_id => job.batch_id);
	ELSE
		PERFORM jobq.add_jobs(job.batch_id, 'chaos.work',
			ARRAY[jsonb_build_object('tag', payload ->> 'tag' || '.added')], '{"max_attempts": 1000}');
	END IF;
	PERFORM chaos.note_effect(payload, job, now());
END
$$;

CREATE ROLE chaos_1 LOGIN;
CREATE ROLE chaos_2 LOGIN;
CREATE ROLE chaos_3 LOGIN;
CREATE ROLE chaos_4 LOGIN;
CREATE ROLE chaos_consumer LOGIN;
GRANT chaos_1, chaos_2, chaos_3, chaos_4 TO chaos_consumer;
SELECT jobq.grant_privilege(r::regrole) FROM unnest('{chaos_1,chaos_2,chaos_3,chaos_4,chaos_consumer}'::text[]) r;
GRANT USAGE ON SCHEMA chaos TO PUBLIC;
GRANT INSERT ON chaos.effect, chaos.outside, chaos.wrong, chaos.part TO PUBLIC;
SELECT jobq.grant_privilege(r::regrole, 'sql') FROM unnest('{chaos_1,chaos_2,chaos_3,chaos_4}'::text[]) r;

-- The number of attempts is large here: the checker examines each charge.
SELECT jobq.register(kind, handler, backoff => 'fixed 20ms', max_attempts => 1000)
FROM (VALUES ('chaos.work', 'chaos.work(jsonb, jobq.job_context)'),
	('chaos.steps', 'chaos.work_in_steps(jsonb, jobq.job_context)'),
	('chaos.durable', 'chaos.work_durably(jsonb, jobq.job_context)'),
	('chaos.reply', 'chaos.reply(jsonb, jobq.job_context)'),
	('chaos.echo', 'chaos.echo(jsonb, jobq.job_context)'),
	('chaos.add', 'chaos.add(jsonb, jobq.job_context)'),
	('chaos.list', 'chaos.list(jsonb, jobq.job_context)'),
	('chaos.join', 'chaos.join(jsonb, jobq.job_context)'),
	('chaos.together', 'chaos.work_together(jobq.job_context[])'),
	('chaos.hear', 'chaos.hear(jsonb, jobq.job_context)')) v(kind, handler);
SELECT jobq.register('chaos.doomed', 'chaos.give_up(jsonb, jobq.job_context)',
	on_failure => 'chaos.work(jsonb, jobq.job_context)');
SELECT jobq.register('chaos.slow', 'chaos.dawdle(jsonb, jobq.job_context)', timeout => '50 ms',
	fail_on_timeout => true, max_attempts => 1000, backoff => 'fixed 20ms');
SELECT jobq.register('chaos.limited', 'chaos.work(jsonb, jobq.job_context)', max_running => 2,
	max_attempts => 1000, backoff => 'fixed 20ms');
SELECT jobq.register('chaos.rated', 'chaos.work(jsonb, jobq.job_context)', rate => '20 per second burst 5',
	max_attempts => 1000, backoff => 'fixed 20ms');

-- Limiters shared by kinds and queues: one job runs in a queue, and two jobs in
-- total.
SELECT jobq.create_limiter('shared', max_running => 2);
SELECT jobq.create_limiter('paced', rate => '20 per second burst 5');
SELECT jobq.register(kind, handler, limiters => ARRAY[limiter], max_attempts => 1000, backoff => 'fixed 20ms')
FROM (VALUES ('chaos.shared', 'chaos.work(jsonb, jobq.job_context)', 'shared'),
	('chaos.shared_steps', 'chaos.work_in_steps(jsonb, jobq.job_context)', 'shared'),
	('chaos.paced', 'chaos.work(jsonb, jobq.job_context)', 'paced')) v(kind, handler, limiter);
SELECT jobq.create_queue('shared', open => true, max_running => 1, limiters => '{shared}');
SELECT jobq.create_queue('outside shared', open => true, mode => 'consumer', limiters => '{shared}');
SELECT jobq.create_queue('paced', open => true, limiters => '{paced}');

-- Jobs that cost tokens, or nothing.
CREATE FUNCTION chaos.price(job jsonb) RETURNS int LANGUAGE sql AS $$ SELECT (job -> 'payload' ->> 'price')::int $$;
SELECT jobq.create_limiter('priced', max_running => 2, rate => '20 per second burst 30', cost => 'chaos.price');
SELECT jobq.register('chaos.priced', 'chaos.work(jsonb, jobq.job_context)', limiters => '{priced}',
	max_attempts => 1000, backoff => 'fixed 20ms');
SELECT jobq.create_queue('priced', open => true, limiters => '{priced}');
SELECT jobq.create_queue('outside priced', open => true, mode => 'consumer', limiters => '{priced}');

-- Jobs that do not wait for a permit.
SELECT jobq.create_limiter('skipping', max_running => 1, by => 'payload $.grp', when_taken => 'skip');
SELECT jobq.create_limiter('releasing', max_running => 2, by => 'payload $.grp', when_taken => 'release 1 s');
SELECT jobq.create_limiter('replacing', max_running => 1, by => 'payload $.grp', when_taken => 'replace');
SELECT jobq.register('chaos.' || limiter, 'chaos.work(jsonb, jobq.job_context)', limiters => ARRAY[limiter],
	max_attempts => 1000, backoff => 'fixed 20ms')
FROM unnest('{skipping,releasing,replacing}'::text[]) limiter;
SELECT jobq.create_queue('outside releasing', open => true, mode => 'consumer', limiters => '{releasing}');
SELECT jobq.create_queue('outside replacing', open => true, mode => 'consumer', limiters => '{replacing}');

SELECT jobq.create_queue('full error', open => true, max_length => 4);
SELECT jobq.create_queue('full drop', open => true, max_length => 4, on_full => 'drop oldest');
SELECT jobq.create_queue('full wait', open => true, max_length => 4, on_full => 'wait');
SELECT jobq.create_queue('outside full', open => true, mode => 'consumer', max_length => 4);

SELECT jobq.create_queue('grouped', open => true);
SELECT jobq.create_queue('patient', open => true, group_on_failure => 'wait 50 ms');
SELECT jobq.create_queue('narrow', open => true, max_running => 2);
SELECT jobq.create_queue('fair', open => true, tenant => 'role', fair => 'cpu');
SELECT jobq.create_queue('own', open => true);
SELECT jobq.create_queue('outside', open => true, mode => 'consumer');
SELECT jobq.create_queue('outside grouped', open => true, mode => 'consumer');
SELECT jobq.create_queue('outside narrow', open => true, mode => 'consumer', max_running => 2);
SELECT jobq.create_queue('outside memory', open => true, mode => 'consumer', lease => 'memory');

-- Somebody hears of all that becomes of jobs in a queue, of consumers, and of some dead letters.
SELECT jobq.create_queue('heard', open => true);
SET ROLE chaos_consumer;
SELECT jobq.on_event(event, 'chaos.hear', queue => 'heard')
FROM unnest('{completed,failed,retry,dead,cancelled,expired}'::text[]) event;
SELECT jobq.on_event('completed', 'chaos.hear', queue => 'outside'), jobq.on_event('failed', 'chaos.hear', queue => 'outside');
SELECT jobq.on_event('dead', 'chaos.hear', queue => 'default', kind => 'chaos.doomed');
RESET ROLE;

-- What there is to call, for fuzz: roles, handlers, queues, tables.
CREATE EXTENSION jobq;
CREATE ROLE fuzz_producer LOGIN;
CREATE ROLE fuzz_other LOGIN;
CREATE ROLE fuzz_manager LOGIN;
CREATE ROLE fuzz_nobody LOGIN;
CREATE ROLE fuzz_super LOGIN SUPERUSER;
SELECT jobq.grant_role('fuzz_producer'), jobq.grant_role('fuzz_other'), jobq.grant_role('fuzz_manager', 'manage');
CREATE SCHEMA fuzz;
GRANT USAGE ON SCHEMA jobq, jobq_internal TO fuzz_nobody;
GRANT USAGE, CREATE ON SCHEMA fuzz TO PUBLIC;
GRANT CREATE ON SCHEMA public TO PUBLIC;

CREATE FUNCTION fuzz.echo(payload jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT payload';
CREATE FUNCTION fuzz.none() RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
CREATE FUNCTION fuzz.breaks(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN RAISE 'broken: % %', job.id, payload; END $$;
CREATE FUNCTION fuzz.asks(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(50, 'half'), jobq.log('asked'), jobq.should_stop();
	CASE job.id % 5 WHEN 0 THEN PERFORM jobq.snooze('1 second'); WHEN 1 THEN PERFORM jobq.retry_after('1 second');
		WHEN 2 THEN PERFORM jobq.cancel_current('enough'); WHEN 3 THEN PERFORM jobq.fail_current('failed'); ELSE NULL; END CASE;
	RETURN to_jsonb(jobq.current_job());
END
$$;
CREATE FUNCTION fuzz.down(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_array(payload, jobq.perform('down', '1')) WHERE random() < 0.8
$$;
CREATE FUNCTION fuzz.more(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.enqueue('echo', payload, delay => '1 second', group_key => 'more');
	IF job.batch_id IS NOT NULL THEN
		PERFORM jobq.batch_add(job.batch_id, 'echo', ARRAY[payload]);
	END IF;
END
$$;
CREATE PROCEDURE fuzz.commits(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	PERFORM jobq.perform('down', payload);
	ROLLBACK;
END
$$;
CREATE FUNCTION fuzz.settings(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE sql AS
	$$ SELECT jsonb_build_array(current_setting('search_path'), current_setting('app.tenant', true), job.tenant) $$;
CREATE FUNCTION fuzz.changing(payload jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT payload';
CREATE FUNCTION fuzz.late(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(job)';

SELECT jobq.create_queue('limited', open => true, max_running => 1, rate => '20 per second', expires_after => '1 hour'),
	jobq.create_queue('fair', open => true, fair_by => 'tenant', group_max_running => 1),
	jobq.create_queue('short', open => true, max_length => 20, keep => 'nothing', notify => 'transactional'),
	jobq.create_queue('outside', open => true, mode => 'consumer', group_max_running => 1, carry => '{app.tenant}', tenant => 'setting app.tenant'),
	jobq.create_queue('carrying', open => true, carry => '{app.tenant,search_path,work_mem,DateStyle}',
		tenant => 'setting app.tenant', fair_by => 'tenant', recycle => 'never'),
	jobq.create_queue('memory', open => true, mode => 'consumer', lease => 'memory');
SELECT jobq.register('echo', 'fuzz.echo(jsonb)'), jobq.register('none', 'fuzz.none()', queue => 'short'),
	jobq.register('breaks', 'fuzz.breaks(jsonb, jobq.job_context)', max_attempts => 2, backoff => 'list 0s,1s',
		on_failure => 'fuzz.late(jsonb, jobq.job_context)'),
	jobq.register('asks', 'fuzz.asks(jsonb, jobq.job_context)', max_running => 2),
	jobq.register('down', 'fuzz.down(jsonb)', throttle => '3 failures in 5 seconds'),
	jobq.register('more', 'fuzz.more(jsonb, jobq.job_context)'), jobq.register('commits', 'fuzz.commits(jsonb)'),
	jobq.register('settings', 'fuzz.settings(jsonb, jobq.job_context)', queue => 'carrying'),
	jobq.register('changing', 'fuzz.changing(jsonb)', timeout => '1 second');

CREATE TYPE fuzz.pair AS (a int, b text);
CREATE DOMAIN fuzz.short AS text CHECK (length(VALUE) < 100);

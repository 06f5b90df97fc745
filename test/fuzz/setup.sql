-- What there is to call, for fuzz: roles, handlers, queues, tables.
CREATE EXTENSION jobq;
CREATE ROLE fuzz_producer LOGIN;
CREATE ROLE fuzz_other LOGIN;
CREATE ROLE fuzz_manager LOGIN;
CREATE ROLE fuzz_nobody LOGIN;
CREATE ROLE fuzz_super LOGIN SUPERUSER;
CREATE SCHEMA fuzz;
GRANT USAGE ON SCHEMA jobq, jobq_internal TO fuzz_nobody;
GRANT USAGE, CREATE ON SCHEMA fuzz TO PUBLIC;
GRANT CREATE ON SCHEMA public TO PUBLIC;

CREATE FUNCTION fuzz.echo(payload jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT payload';
CREATE FUNCTION fuzz.none() RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
CREATE FUNCTION fuzz.merge(old jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT CASE WHEN random() < 0.8 THEN new END';
CREATE FUNCTION fuzz.breaks(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN RAISE 'broken: % %', job.id, payload; END $$;
CREATE FUNCTION fuzz.asks(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(50, 'half'), jobq.log('asked'), jobq.should_stop();
	CASE job.id % 5 WHEN 0 THEN PERFORM jobq.snooze('1 second'); WHEN 1 THEN PERFORM jobq.snooze('1 second', charge => true);
		WHEN 2 THEN PERFORM jobq.cancel_current('enough'); WHEN 3 THEN PERFORM jobq.reject_current('failed'); ELSE NULL; END CASE;
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
		PERFORM jobq.add_jobs(job.batch_id, 'echo', ARRAY[payload]);
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


-- What the roles, queues and kinds are, also after the fuzz has dropped or changed them.
CREATE FUNCTION fuzz.mend() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
	what text;
BEGIN
	FOREACH what IN ARRAY ARRAY[
		$q$SELECT jobq.grant_privilege(r::regrole, p) FROM unnest('{fuzz_producer,fuzz_other}'::text[]) r, unnest('{produce,consume}'::text[]) p$q$,
		$q$SELECT jobq.grant_privilege('fuzz_manager', 'manage')$q$,
		$q$SELECT jobq.create_queue(q) FROM unnest('{limited,fair,short,outside,memory,carrying}'::text[]) q
			WHERE NOT EXISTS (SELECT FROM jobq.queues WHERE name = q)$q$,
		$q$SELECT jobq.alter_queue('default', open => true, mode => 'worker'), jobq.resume('default')$q$,
		$q$SELECT jobq.alter_queue('limited', open => true, max_running => 1, rate => '20 per second', expires_after => '1 hour')$q$,
		$q$SELECT jobq.alter_queue('fair', open => true, tenant => 'header tenant', fair => 'jobs', group_max_running => 1)$q$,
		$q$SELECT jobq.alter_queue('short', open => true, max_length => 20, keep => 'nothing', notify => 'transactional')$q$,
		$q$SELECT jobq.alter_queue('outside', open => true, mode => 'consumer', group_max_running => 1, carry => '{app.tenant}', tenant => 'setting app.tenant')$q$,
		$q$SELECT jobq.alter_queue('memory', open => true, mode => 'consumer', lease => 'memory')$q$,
		$q$SELECT jobq.alter_queue('carrying', open => true, carry => '{app.tenant,search_path,work_mem,DateStyle}',
			tenant => 'setting app.tenant', fair => 'jobs', recycle => 'never')$q$,
		$q$SELECT jobq.resume(name) FROM jobq.queues WHERE paused$q$,
		$q$SELECT jobq.register('echo', 'fuzz.echo(jsonb)'), jobq.register('none', 'fuzz.none()', queue => 'short')$q$,
		$q$SELECT jobq.register('breaks', 'fuzz.breaks(jsonb, jobq.job_context)', max_attempts => 2, backoff => 'list 0s,1s',
			on_failure => 'fuzz.late(jsonb, jobq.job_context)')$q$,
		$q$SELECT jobq.register('asks', 'fuzz.asks(jsonb, jobq.job_context)', max_running => 2)$q$,
		$q$SELECT jobq.register('down', 'fuzz.down(jsonb)', throttle => '3 failures in 5 seconds')$q$,
		$q$SELECT jobq.register('more', 'fuzz.more(jsonb, jobq.job_context)'), jobq.register('commits', 'fuzz.commits(jsonb)')$q$,
		$q$SELECT jobq.register('settings', 'fuzz.settings(jsonb, jobq.job_context)', queue => 'carrying')$q$,
		$q$SELECT jobq.register('changing', 'fuzz.changing(jsonb)', timeout => '1 second')$q$]
	LOOP
		BEGIN
			EXECUTE what;
		EXCEPTION WHEN others THEN
			RAISE LOG 'not mended: %', SQLERRM;
		END;
	END LOOP;
END
$$;
SELECT fuzz.mend();

CREATE TYPE fuzz.pair AS (a int, b text);
CREATE DOMAIN fuzz.short AS text CHECK (length(VALUE) < 100);

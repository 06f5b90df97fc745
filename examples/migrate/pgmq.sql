-- Moves messages of pgmq's queues to jobq, into queues for consumers.
--
-- usage: psql [-v queue=mail] [-v dry_run=1] -f pgmq.sql
--
-- queue  only this queue; by default all
--
-- The queues are created in jobq unless they are there, so the script needs the privilege to manage.  Kept are the
-- message, the headers, the time until which a message is delayed, and the group of the header x-pgmq-group.  pgmq has
-- neither priorities nor a limit of attempts.  How often a message was read stands in the header "read_ct".  A message
-- that a reader has stays; run the script again when all readers have ended.  Archived messages stay in pgmq.
\set ON_ERROR_STOP on
\if :{?queue}
\else
	\set queue ''
\endif

BEGIN;
-- The kind of a message: edit this, if your messages name it.
CREATE FUNCTION pg_temp.kind_of(queue text, message jsonb) RETURNS text LANGUAGE sql AS $$
	SELECT queue
$$;

SELECT set_config('migrate.queue', :'queue', true) \g /dev/null
CREATE TEMP TABLE outcome (queue text, source bigint, reason text);
DO $$
DECLARE
	queue text;
	q regclass;
	message record;
BEGIN
	FOR queue IN SELECT queue_name FROM pgmq.meta WHERE current_setting('migrate.queue') IN ('', queue_name) ORDER BY queue_name LOOP
		IF NOT EXISTS (SELECT FROM jobq.queues WHERE name = queue) THEN
			PERFORM jobq.create_queue(queue, mode => 'consumer', open => true);
		END IF;
		q := format('pgmq.%I', 'q_' || lower(queue));
		-- headers came with a later version of pgmq
		FOR message IN EXECUTE format('SELECT msg_id, read_ct, vt, message, to_jsonb(m) -> ''headers'' AS headers
			FROM %s m WHERE vt <= clock_timestamp() OR read_ct = 0 ORDER BY msg_id FOR UPDATE SKIP LOCKED', q)
		LOOP
			-- a message that cannot be moved stays, with the reason
			BEGIN
				PERFORM jobq.enqueue(pg_temp.kind_of(queue, message.message), message.message, queue, run_at => message.vt,
					headers => CASE WHEN jsonb_typeof(message.headers) = 'object' THEN message.headers ELSE '{}' END
						|| jsonb_build_object('read_ct', message.read_ct),
					group_key => message.headers ->> 'x-pgmq-group');
				EXECUTE format('DELETE FROM %s WHERE msg_id = $1', q) USING message.msg_id;
				INSERT INTO outcome VALUES (queue, message.msg_id, NULL);
			EXCEPTION WHEN OTHERS THEN
				INSERT INTO outcome VALUES (queue, message.msg_id, SQLERRM);
			END;
		END LOOP;
		EXECUTE format('INSERT INTO outcome
			SELECT $1, msg_id, CASE WHEN vt > clock_timestamp() THEN ''a reader has it'' ELSE ''locked by another session'' END
			FROM %s WHERE NOT EXISTS (SELECT FROM outcome o WHERE o.queue = $1 AND o.source = msg_id)
			UNION ALL SELECT $1, msg_id, ''is archived'' FROM %s', q, format('pgmq.%I', 'a_' || lower(queue))) USING queue;
	END LOOP;
END
$$;

\echo Moved messages (without a reason), and remaining messages:
SELECT queue, coalesce(reason, '') AS reason, count(*) AS messages, min(source) AS first_id FROM outcome
GROUP BY queue, reason ORDER BY queue, reason NULLS FIRST;

DROP TABLE outcome;
\if :{?dry_run}
	ROLLBACK;
\else
	COMMIT;
\endif

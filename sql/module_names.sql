-- One name for each thing: in views, row types, functions and their arguments.

-- public columns and parameters, with their type
CREATE TEMP VIEW public_name AS
	SELECT 'column' AS what, c.oid::regclass::text AS of, a.attname::text AS name, format_type(a.atttypid, NULL) AS type
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('v', 'c')
	UNION ALL
	SELECT CASE WHEN coalesce(p.proargmodes[n.place], 'i') IN ('i', 'b') THEN 'parameter' ELSE 'column' END, p.oid::regproc::text, n.name,
		format_type(n.type, NULL)
	FROM pg_proc p, unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargnames) WITH ORDINALITY n (type, name, place)
	WHERE p.pronamespace = 'jobq'::regnamespace;
SELECT count(*) > 600 AS enough FROM public_name;

-- synonyms of a name in use, and of words of the glossary
CREATE TEMP VIEW synonym AS
SELECT p.what, p.of, p.name, w.instead FROM public_name p JOIN (VALUES
	('failed_at', 'finished_at'), ('ended_on', 'ended_at'), ('completed_on', 'finished_at'), ('done_at', 'finished_at'), ('begun_at', 'started_at'), ('began_at', 'started_at'),
	('inserted_at', 'enqueued_at'), ('scheduled_at', 'run_at'), ('scheduled_for', 'run_at'), ('due_at', 'run_at'), ('made_at', 'created_at'),
	('next_run', 'next_tick'), ('last_run', 'last_tick'), ('letters', 'dead_letters'), ('waiting', 'ready'), ('jobs_done', 'completed'), ('jobs_failed', 'failed'),
	('jobs_held', 'running'), ('failures', 'failed'), ('errored', 'failed'), ('attempts', 'attempt'), ('tries', 'attempt'), ('max_tries', 'max_attempts'),
	('batch', 'batch_id'), ('parent', 'parent_id'), ('job', 'job_id'), ('job_kind', 'kind'), ('type_of_job', 'kind'), ('args', 'payload'), ('queue_name', 'queue'), ('owner', 'role'),
	('group', 'group_key'), ('key_of_group', 'group_key'), ('customer', 'tenant'), ('hint', 'remedy'), ('what', 'detail'), ('reason_text', 'detail'),
	('dead_after', 'dead_older_than'), ('limit', 'max_jobs'), ('max', 'max_jobs'), ('n_jobs', 'max_jobs'), ('worker_pid', 'pid'), ('backoff_policy', 'backoff'), ('cron_expression', 'cron')) w (name, instead)
	ON w.name = p.name
WHERE (p.of, p.name) NOT IN (('jobq.status', 'job'), ('jobq.signal', 'job'));
SELECT * FROM synonym ORDER BY 1, 2, 3;
-- a synonym would be found
BEGIN;
CREATE VIEW jobq.wrong AS SELECT now() AS failed_at, 1 AS letters;
CREATE FUNCTION jobq.wrong(batch bigint) RETURNS int LANGUAGE sql AS 'SELECT 1';
SELECT * FROM synonym ORDER BY 1, 2, 3;
ROLLBACK;
-- the names of times
SELECT p.of, p.name FROM public_name p WHERE p.what = 'column' AND p.type = 'timestamp with time zone'
	AND p.name !~ '(_at|_until|_since|_seen)$|^(since|at|next_tick|last_tick|oldest_ready|retry_until|next_ticks)$' ORDER BY 1, 2;
SELECT p.of, p.name, p.type FROM public_name p WHERE p.what = 'column' AND p.name ~ '_(at|until)$' AND p.type <> 'timestamp with time zone' ORDER BY 1, 2;
-- a name has the same type everywhere, and counts may be int or bigint.  The exceptions: cost and lease also name settings,
-- max_memory, max_temp and max_wal are given with a unit, on_failure is a function of a kind and a job of a batch,
-- notify() has a payload of its own, and a role of audit_log is a name, which outlasts the role.
SELECT p.name, array_agg(DISTINCT p.type ORDER BY p.type) AS types
FROM public_name p
WHERE p.type NOT LIKE '%[]' AND p.type NOT IN ('record', 'void')
GROUP BY p.name HAVING count(DISTINCT CASE p.type WHEN 'integer' THEN 'bigint' WHEN 'real' THEN 'double precision' ELSE p.type END) > 1 ORDER BY 1;
-- ids end in _id, except in the view or function of the object
SELECT p.of, p.name FROM public_name p WHERE p.type = 'bigint' AND p.name ~ 'id$' AND p.name !~ '^(id|.*_id)$' AND p.name <> 'pid' ORDER BY 1, 2;

-- a view shows what the function took that made the row, by the same name
SELECT v.view, array_agg(p.name ORDER BY p.name) AS not_shown
FROM (VALUES ('queues', 'create_queue', '{}'), ('kinds', 'register', '{}'), ('limits', 'create_limiter', '{name}'), ('schedules', 'schedule', '{context,sql,transaction,database}'),
	('monitors', 'create_monitor', '{}'), ('event_handlers', 'on_event', '{}'), ('grants', 'grant_privilege', '{}'),
	('jobs', 'enqueue', '{backoff,delay,expires_at,options,retry_until,timeout,uniqueness}'), ('inbox', 'enqueue', '{}')) v (view, function, except_for)
JOIN public_name p ON p.what = 'parameter' AND p.of = 'jobq.' || v.function
WHERE p.name <> ALL (v.except_for::text[])
	AND NOT EXISTS (SELECT FROM public_name c WHERE c.what = 'column' AND c.of = 'jobq.' || v.view AND c.name = p.name)
GROUP BY 1 ORDER BY 1;
-- jobs, status() and dead letters name the same things alike; a batch in the view is as in wait_batch()
SELECT c.of, c.name FROM public_name c WHERE c.what = 'column' AND c.of IN ('jobq.job_status', 'jobq.live_jobs')
	AND NOT EXISTS (SELECT FROM public_name j WHERE j.of = 'jobq.jobs' AND j.name = c.name AND j.type = c.type)
UNION ALL
SELECT c.of, c.name FROM public_name c WHERE c.what = 'column' AND c.of = 'jobq.dead_letters' AND c.name NOT IN ('crashes', 'sqlstate', 'fingerprint', 'error_context')
	AND NOT EXISTS (SELECT FROM public_name j WHERE j.of = 'jobq.jobs' AND j.name = c.name AND j.type = c.type)
UNION ALL
SELECT c.of, c.name FROM public_name c WHERE c.what = 'column' AND c.of = 'jobq.batch_status'
	AND NOT EXISTS (SELECT FROM public_name b WHERE b.of = 'jobq.batches' AND b.name = c.name AND b.type = c.type)
ORDER BY 1, 2;

-- functions: a verb, alone for jobs, otherwise followed by what it acts on; no verb has a synonym
SELECT DISTINCT p.proname FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace
	AND split_part(p.proname, '_', 1) <> ALL ('{ack,add,adopt,alter,ask,assert,await,call,cancel,create,delete,drop,dry,edit,enqueue,explain,extend,grant,log,nack,notify,perform,prune,pause,reassign,
		register,reject,release,rerun,reserve,reset,restart,resume,retry,revoke,run,save,saved,schedule,set,signal,sleep,snooze,start,step,test,unregister,unschedule,wait,work}'::text[])
ORDER BY 1;
SELECT DISTINCT p.proname FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace
	AND p.proname ~ '^(abort|begin|clear|close|discard|fail|finish|insert|kill|make|move|nak|new|open|purge|push|remove|stop|submit|take|tell|touch|update)(_|$)' ORDER BY 1;
-- a driver that sends parameters without a type finds one function by their number, except for status() and signal(), whose forms with text take all
SELECT a.proname, a.oid::regprocedure AS one, b.oid::regprocedure AS other FROM pg_proc a JOIN pg_proc b USING (pronamespace, proname)
WHERE a.pronamespace = 'jobq'::regnamespace AND a.oid::regprocedure::text COLLATE "C" < b.oid::regprocedure::text COLLATE "C"
	AND a.pronargs - a.pronargdefaults <= b.pronargs AND b.pronargs - b.pronargdefaults <= a.pronargs ORDER BY 1,
	a.oid::regprocedure::text COLLATE "C", b.oid::regprocedure::text COLLATE "C";
PREPARE untyped AS SELECT state FROM jobq.status($1);
SELECT parameter_types FROM pg_prepared_statements WHERE name = 'untyped';
DEALLOCATE untyped;
DROP VIEW synonym, public_name;

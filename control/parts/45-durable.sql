-- Durable procedures: steps, saved values, sleeps and signals.
--
-- The rows of a job stay as long as the job is in a table.  The scheduler deletes the rows
-- of jobs that no longer exist, so no end of a job has to delete rows here.

CREATE TABLE jobq_internal.procedure_step (
	job_id bigint NOT NULL,
	begun_at timestamptz NOT NULL,
	token bigint NOT NULL,
	version bigint NOT NULL,
	type "char" NOT NULL CHECK (type IN ('s', 't', 'w', 'a', 'f', 'v')),
	name text COLLATE "C" NOT NULL,
	until timestamptz,
	done_at timestamptz,
	signal text COLLATE "C",
	result jsonb,
	CONSTRAINT procedure_step_pkey PRIMARY KEY (job_id, name)
) WITH (fillfactor = 90);
COMMENT ON TABLE jobq_internal.procedure_step IS 'steps of procedures that commit: those done, and the wait for which a suspended job returns';
COMMENT ON COLUMN jobq_internal.procedure_step.type IS 's(tep), t(ime): a sleep, w(ait) for a signal, a(sk) for jobs, f(irst) of several, v(alue) saved last, with an empty name';
COMMENT ON COLUMN jobq_internal.procedure_step.token IS 'lease of the run that has written the row last: this run made progress, and is not charged';
COMMENT ON COLUMN jobq_internal.procedure_step.version IS 'version of the handler with which the procedure began: the same in all rows of the job';
COMMENT ON COLUMN jobq_internal.procedure_step.done_at IS 'null: the job waits';
COMMENT ON COLUMN jobq_internal.procedure_step.result IS 'result of the step, payload of the signal, answers of jobs, or the saved value; of an ask that is not done: the ids of the jobs';
COMMENT ON COLUMN jobq_internal.procedure_step.job_id IS 'the job';
COMMENT ON COLUMN jobq_internal.procedure_step.begun_at IS 'start of the step or wait';
COMMENT ON COLUMN jobq_internal.procedure_step.name IS 'name of the step, unique in the job';
COMMENT ON COLUMN jobq_internal.procedure_step.until IS 'end of the wait; null: no limit';
COMMENT ON COLUMN jobq_internal.procedure_step.signal IS 'name of the awaited signal, or of that which came first; many: the ask has an array of payloads';

CREATE TABLE jobq_internal.signal (
	id bigint NOT NULL,
	job_id bigint NOT NULL,
	sent_at timestamptz NOT NULL,
	name text COLLATE "C" NOT NULL,
	sent_by text NOT NULL,
	payload jsonb NOT NULL,
	taken_by text COLLATE "C",
	answer "char" CHECK (answer IN ('r', 'f', 'l', 'u')),
	CONSTRAINT signal_pkey PRIMARY KEY (job_id, name, id)
);
COMMENT ON COLUMN jobq_internal.signal.answer IS 'end of a job for which the procedure has asked, in a row without a name: r(esult), or f(ailure); or a link with which a signal can be sent: l(ink), or u(sed); null: a signal';
COMMENT ON TABLE jobq_internal.signal IS 'signals sent to jobs, answers of jobs, and links; signals with the same name are taken in the order of their ids';
COMMENT ON COLUMN jobq_internal.signal.id IS 'from the sequence of job ids; of an answer: the id of the job that has ended';
COMMENT ON COLUMN jobq_internal.signal.sent_by IS 'name of the role that sent the signal or made the link; link: sent by a link';
COMMENT ON COLUMN jobq_internal.signal.taken_by IS 'step of the procedure that took the signal; null: not taken yet; of a link: empty';
COMMENT ON COLUMN jobq_internal.signal.job_id IS 'the job';
COMMENT ON COLUMN jobq_internal.signal.sent_at IS 'time of the call of signal(); of a link: its end';
COMMENT ON COLUMN jobq_internal.signal.name IS 'name of the signal';
COMMENT ON COLUMN jobq_internal.signal.payload IS 'passed to the procedure; of a link: a hash of its secret';
CREATE INDEX signal_next ON jobq_internal.signal (job_id, name, id) WHERE taken_by IS NULL;
COMMENT ON INDEX jobq_internal.signal_next IS 'the signal that the next wait takes';

SELECT pg_catalog.pg_extension_config_dump('jobq_internal.procedure_step', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.signal', '');

CREATE FUNCTION jobq.step(name text) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_step' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.step(text) IS 'begin a step of the current procedure; false if the step is done, so that the procedure skips the step
name: the name of the step, unique in the job
returns: true until step_done() has committed the step';

CREATE PROCEDURE jobq.step_done(result jsonb DEFAULT NULL)
AS 'MODULE_PATHNAME', 'jobq_step_done' LANGUAGE C;
COMMENT ON PROCEDURE jobq.step_done IS 'commit the effects of the step that step() has begun, together with the note that the step is done
result: kept with the step, for step_result()';

CREATE FUNCTION jobq.step_result(name text) RETURNS jsonb
AS 'MODULE_PATHNAME', 'jobq_step_result' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.step_result(text) IS 'return the result of a step, or the payload of a signal, of the current procedure
name: the name of the step
returns: the result; null: none, or the step is not done';

CREATE FUNCTION jobq.save(value jsonb) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_save' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.save(jsonb) IS 'save a value for the current procedure, such as its position in an import; the next COMMIT makes the value durable
value: replaces the value saved before';

CREATE FUNCTION jobq.saved() RETURNS jsonb
AS 'MODULE_PATHNAME', 'jobq_saved' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.saved() IS 'return the value that save() has saved last for the current job
returns: the value; null: none';

CREATE PROCEDURE jobq.sleep(name text, duration interval DEFAULT NULL, until timestamptz DEFAULT NULL)
AS 'MODULE_PATHNAME', 'jobq_sleep' LANGUAGE C;
COMMENT ON PROCEDURE jobq.sleep IS 'commit, and let the current procedure wait for a time without a worker; the job runs again then, from the top of the procedure
name: the name of the step, unique in the job
duration: how long to wait, from the first call
until: the time to wait for, instead of a duration';

CREATE PROCEDURE jobq.await_signal(name text, INOUT payload jsonb DEFAULT NULL, timeout interval DEFAULT NULL, step text DEFAULT NULL)
AS 'MODULE_PATHNAME', 'jobq_await_signal' LANGUAGE C;
COMMENT ON PROCEDURE jobq.await_signal IS 'commit, and let the current procedure wait for a signal without a worker; the job runs again with the signal, from the top of the procedure
name: the name of the signal
payload: the payload of the signal; null after the timeout
timeout: the longest wait, from the first call; null: no limit
step: the name of the step, unique in the job; null: the name of the signal';

CREATE PROCEDURE jobq.ask(step text, kind text, payload jsonb DEFAULT '{}', INOUT answer jsonb DEFAULT NULL,
	payloads jsonb[] DEFAULT NULL, options jsonb DEFAULT '{}', on_error text DEFAULT 'raise', await boolean DEFAULT true)
AS 'MODULE_PATHNAME', 'jobq_ask' LANGUAGE C;
COMMENT ON PROCEDURE jobq.ask IS 'enqueue a job, commit, and let the current procedure wait for the end of the job without a worker; the procedure then goes on with the result
step: the name of the step, unique in the job
kind: the kind of the job
payload: passed to the handler of the job
answer: the result of the job; with payloads, the array of the results
payloads: enqueue a job for each of these, instead of a single job
options: as in enqueue(), for example {"queue": "http"}, without unique keys and uuid
on_error: raise an error if a job is dead, cancelled or expired; or return {"error": {...}} instead of its result
await: false: only enqueue, or return the answer if the jobs have ended; do not raise their errors';

CREATE PROCEDURE jobq.await_any(names text[], INOUT name text DEFAULT NULL, INOUT payload jsonb DEFAULT NULL,
	timeout interval DEFAULT NULL, step text DEFAULT NULL)
AS 'MODULE_PATHNAME', 'jobq_await_any' LANGUAGE C;
COMMENT ON PROCEDURE jobq.await_any IS 'commit, and let the current procedure wait for the first of several signals and asked jobs without a worker
names: names of signals, and of steps of ask()
name: the name that came first; null after the timeout
payload: the payload of the signal, or the answer of the jobs; null after the timeout
timeout: the longest wait, from the first call; null: no limit
step: the name of the step, unique in the job; null: the names, joined by or';

CREATE FUNCTION jobq.signal(id bigint, name text, payload jsonb DEFAULT '{}') RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_signal' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.signal(bigint, text, jsonb) IS 'send a signal to a job, which wakes at the commit if the job waits for the signal; an earlier signal is kept
id: the id of the job
name: the name of the signal
payload: passed to the procedure
returns: false if the job had already finished';

CREATE FUNCTION jobq.signal(uuid uuid, name text, payload jsonb DEFAULT '{}') RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_signal_uuid' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.signal(uuid, text, jsonb) IS 'send a signal to a job
uuid: the uuid under which the job was enqueued
name: the name of the signal
payload: passed to the procedure
returns: false if the job had already finished';

CREATE FUNCTION jobq.signal(job text, name text, payload jsonb DEFAULT '{}') RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_signal_text' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.signal(text, text, jsonb) IS 'send a signal to a job
job: the id of the job, or the uuid under which the job was enqueued; for parameters without a type
name: the name of the signal
payload: passed to the procedure
returns: false if the job had already finished';

-- The payload has no default, so that a call with three arguments without types is not ambiguous.
CREATE FUNCTION jobq.signal(kind text, unique_key text, name text, payload jsonb, scope text DEFAULT 'kind', queue text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_signal_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.signal(text, text, text, jsonb, text, text) IS 'send a signal to the job of the current role that holds a unique key
kind: the kind of the job; only for the scope kind
unique_key: the key
name: the name of the signal
payload: passed to the procedure
scope: the scope of the key: kind, queue or database
queue: the queue of the job; only for the scope queue
returns: false if no job held the key, or if the job had already finished';

CREATE FUNCTION jobq.signal_link(id bigint, name text, valid_for interval DEFAULT '30 days') RETURNS text
AS 'MODULE_PATHNAME', 'jobq_signal_link' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.signal_link(bigint, text, interval) IS 'make a link with which a person or a service without a log-in sends a signal to a job, once, through jobq web
id: the id of the job
name: the name of the signal, which the page of the link shows
valid_for: how long the link is valid
returns: the path of the link, to be appended to the address of jobq web';

CREATE FUNCTION jobq_internal.use_link(link text, payload jsonb, OUT state text, OUT name text)
AS 'MODULE_PATHNAME', 'jobq_use_link' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq_internal.use_link(text, jsonb) IS 'send the signal of a link of signal_link(), whose path ends with this text; null for the payload only checks the link; state: open, sent, used, expired, over (the job has finished) or invalid';

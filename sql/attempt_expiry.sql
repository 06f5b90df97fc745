-- expires_after of a queue counts from run_at of the job, and moves with run_at.
SELECT jobq.create_queue('brief', expires_after => '5 min'), jobq.create_queue('brief outside', mode => 'consumer', expires_after => '5 min');
CREATE FUNCTION test.lasts(id bigint) RETURNS interval LANGUAGE sql AS $$ SELECT j.expires_at - j.run_at FROM jobq_internal.job j WHERE j.id = lasts.id $$;
CREATE FUNCTION test.puts_off(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	CASE payload ->> 'by'
		WHEN 'snooze' THEN PERFORM jobq.snooze('1 h');
		WHEN 'fail' THEN RAISE EXCEPTION 'not now';
	END CASE;
END
$$;
SELECT jobq.register('puts off', 'test.puts_off(jsonb)', queue => 'brief', backoff => 'fixed 1h');

-- a job that began in time may begin again later, after a snooze or a failure
SELECT jobq.enqueue('puts off', '{"by": "snooze"}') AS snoozed, jobq.enqueue('puts off', '{"by": "fail"}') AS failed \gset
SELECT test.until(format('(SELECT count(*) = 2 FROM jobq.jobs WHERE id IN (%s, %s) AND run_at > jobq_internal.clock() + interval ''50 min'' AND state IN (''scheduled'', ''retryable''))', :snoozed, :failed));
SELECT state, attempt, test.lasts(id) FROM jobq.jobs WHERE id IN (:snoozed, :failed) ORDER BY id;
SELECT jobq.retry(:failed);
SELECT test.until(format('(SELECT attempt = 2 AND state = ''retryable'' FROM jobq.status(%s))', :failed));
SELECT test.lasts(:failed);
SELECT count(jobq.cancel(id)) FROM unnest(ARRAY[:snoozed, :failed]) id;
-- but not with an explicit expires_at
SELECT jobq.enqueue('puts off', '{"by": "fail"}', expires_at => jobq_internal.clock() + interval '10 min') AS own \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :own));
SELECT jobq.test_clock('11 min') \g /dev/null
SELECT state, error FROM test.outcome(:own);
SELECT jobq.test_clock('0') \g /dev/null

-- released by a consumer
SELECT jobq.enqueue('outside', queue => 'brief outside') AS id \gset
SELECT jobq.release(id, token, '10 min') FROM jobq.reserve('{brief outside}', wait => '5 min');
SELECT state, test.lasts(id) FROM jobq.jobs WHERE id = :id;
SELECT jobq.cancel_many(queue => 'brief outside', state => 'waiting');

-- for a blocked job, the time counts from its release: the job was moved from another queue,
-- or has replaced another job
SELECT jobq.create_batch() AS batch \gset
SELECT jobq.pause('brief');
SELECT id AS moved FROM jobq.add_jobs(:batch, 'echo', '{"1"}') id \gset
SELECT id AS replaced FROM jobq.add_jobs(:batch, 'echo', '{"2"}', '{"queue": "brief", "unique_key": "k"}') id \gset
SELECT jobq.edit(:moved, queue => 'brief');
SELECT jobq.enqueue('echo', '3', 'brief', unique_key => 'k', uniqueness => '{"on_conflict": "replace"}') = :replaced AS replaced;
SELECT payload, expires_at FROM jobq_internal.job WHERE batch_id = :batch ORDER BY id;
SELECT jobq.start_batch(:batch);
SELECT payload, state, test.lasts(id) FROM jobq.jobs WHERE batch_id = :batch ORDER BY id;
SELECT jobq.resume('brief');
SELECT state FROM jobq.wait_batch(:batch);

SELECT jobq.unregister('puts off'), jobq.drop_queue('brief', force => true), jobq.drop_queue('brief outside', force => true);
DROP FUNCTION test.lasts, test.puts_off;

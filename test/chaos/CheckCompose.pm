# Checks of jobs that create jobs or wait for jobs: batches and workflows, also nested, and
# events.  See Check.pm.

package CheckCompose;

use strict;
use warnings FATAL => 'all';

# Callbacks, by their tags.  Batches, with the number of dead letters and whether the batch was
# cancelled or its step skipped.  The parts of each batch, including the batch.
sub views
{
	return q{
CREATE TEMP TABLE callback_job AS SELECT m[1] AS batch, m[2] AS what, job, started
	FROM (SELECT regexp_match(tag, '^(.*)\.(finish|success|failure)\.') AS m, job, started FROM chaos.effect) e
	WHERE m IS NOT NULL;
CREATE TEMP TABLE callback AS SELECT batch, what, count(*) AS n FROM callback_job GROUP BY 1, 2;
CREATE TEMP TABLE batches AS SELECT b.id, b.name, b.state, b.parent, s.state IS NOT DISTINCT FROM 's' AS skipped,
		coalesce(i.about ->> 'cancel' = '1', false) AS may_cancel,
		(SELECT count(*) FROM found f WHERE f.batch_id = b.id AND f.state = 'dead' AND NOT f.optional) AS dead
	FROM jobq_internal.batch b LEFT JOIN intent i ON i.tag = b.name LEFT JOIN jobq_internal.step s ON s.job_id = b.parent_job;
CREATE TEMP TABLE whole AS
	WITH RECURSIVE whole AS (SELECT id, id AS part FROM jobq_internal.batch
		UNION ALL SELECT w.id, b.id FROM whole w JOIN jobq_internal.batch b ON b.parent = w.part)
	SELECT * FROM whole;
CREATE TEMP TABLE heard AS SELECT n AS job, grp AS event, count(*) AS n FROM chaos.effect
	WHERE kind = 'on_event:chaos.hear' GROUP BY 1, 2;
CREATE INDEX ON heard (job);
ANALYZE callback, callback_job, batches, whole, heard};
}

sub list
{
	return (
	'a batch has each of its callbacks once' => q{
SELECT format('batch %s (%s, state %s, %s dead) has had %s callbacks on_%s', name, id, state, dead, had, what)
	FROM (SELECT b.*, w.what, coalesce(c.n, 0) AS had FROM batches b
		CROSS JOIN (VALUES ('finish'), ('success'), ('failure')) w(what)
		LEFT JOIN callback c ON c.batch = b.name AND c.what = w.what) b
	-- one that is cancelled may have had a dead letter before, or be cancelled before it fails
	WHERE had <> CASE what WHEN 'finish' THEN 1 WHEN 'success' THEN (state = 'c')::int
		ELSE CASE state WHEN 'f' THEN 1 WHEN 'x' THEN least(had, (dead > 0)::int) ELSE 0 END END
UNION ALL
SELECT format('batch %s (%s) is not over: %s', name, id, last_error) FROM jobq_internal.batch WHERE finished_at IS NULL},

	'a batch is over after all that is in it' => q{
SELECT format('batch %s: %s (job %s) begins at %s, before job %s of batch %s is over, at %s', b.name, c.what, c.job, c.started, e.job, w.part, e.ended)
	FROM callback_job c JOIN batches b ON b.name = c.batch JOIN whole w ON w.id = b.id
	JOIN found f ON f.batch_id = w.part JOIN chaos.effect e ON e.job = f.id
	WHERE c.what <> 'failure' AND c.started < e.ended},

	# A nested batch is cancelled if the parent does not continue, or if the step is skipped.
	'a batch ends as its jobs do' => q{
SELECT format('batch %s (%s) is %s, with %s dead letters', b.name, b.id, b.state, b.dead)
	FROM batches b LEFT JOIN batches p ON p.id = b.parent
	WHERE CASE b.state WHEN 'x' THEN NOT b.may_cancel AND NOT b.skipped AND coalesce(p.state, 'c') = 'c'
		ELSE b.state <> CASE WHEN b.dead > 0 THEN 'f' ELSE 'c' END END},

	'a workflow that is part of another has a job that ends as it does' => q{
SELECT format('batch %s (%s, state %s), part of %s: job %s is %s', b.name, b.id, b.state, b.parent, f.id, f.state)
	FROM batches b LEFT JOIN found f ON f.inner_batch = b.id AND f.batch_id = b.parent
	WHERE b.parent IS NOT NULL AND f.state IS DISTINCT FROM CASE b.state WHEN 'c' THEN 'completed' WHEN 'f' THEN 'dead' ELSE 'cancelled' END
	AND NOT (b.may_cancel AND f.state = 'cancelled')
UNION ALL
SELECT format('batch %s has %s jobs that stand for it', inner_batch, count(*)) FROM found WHERE kind = 'jobq.workflow' GROUP BY inner_batch HAVING count(*) > 1
UNION ALL
SELECT format('job %s stands for batch %s, which is not part of batch %s', f.id, f.inner_batch, f.batch_id) FROM found f
	WHERE f.kind = 'jobq.workflow' AND NOT EXISTS (SELECT FROM batches b WHERE b.id = f.inner_batch AND b.parent = f.batch_id)},

	'a dead letter has its on_failure job once' => q{
SELECT format('%s: %s on_failure jobs', f.tag, count(e.tag)) FROM found f JOIN intent i USING (tag)
	LEFT JOIN chaos.effect e ON e.tag = f.tag AND e.kind ~ '^on_failure'
	WHERE f.kind = 'chaos.doomed' AND f.state = 'dead'
	GROUP BY f.tag, i.retries HAVING count(e.tag) NOT BETWEEN 1 AND 1 + i.retries},

	'steps come after what they need' => q{
SELECT format('%s: step %s (job %s) begins before step %s (job %s) is over', a.grp, b.n, b.job, a.n, a.job)
	FROM chaos.effect a JOIN chaos.effect b USING (grp) WHERE grp ~ '^workflow' AND a.n < b.n AND b.started < a.ended
UNION ALL
SELECT format('%s (job %s) begins at %s, and %s (job %s) before it is over at %s', n.tag, b.job, b.started, n.needed, a.job, a.ended)
	FROM (SELECT tag, jsonb_array_elements_text(about -> 'after') AS needed FROM intent) n
	JOIN chaos.effect b ON b.tag = n.tag LEFT JOIN chaos.effect a ON a.tag = n.needed
	WHERE a.ended IS NULL OR b.started < a.ended},

	'steps get the results of those before' => q{
SELECT what FROM chaos.wrong},

	# An attempt without success is charged and reported as failed, unless the job was
	# cancelled.
	'who hears of jobs hears once of each event' => q{
SELECT format('job %s (%s, %s, attempt %s, %s): heard %s times %s, and not %s', id, kind, tag, attempt, state, had, event, due)
	FROM (SELECT f.*, v.event, coalesce(h.n, 0) AS had, CASE v.event
			WHEN 'failed' THEN f.attempt - (f.state = 'completed' OR f.error IS NOT DISTINCT FROM 'cancelled while it ran')::int
			WHEN 'retry' THEN f.attempt - (f.state IN ('completed', 'dead') OR f.error IS NOT DISTINCT FROM 'cancelled while it ran')::int
			WHEN 'dead' THEN (f.state = 'dead')::int
			ELSE (f.state = v.event)::int END AS due
		FROM found f CROSS JOIN unnest('{completed,failed,retry,dead,cancelled,expired}'::text[]) v(event)
		LEFT JOIN heard h ON h.job = f.id AND h.event = v.event
		WHERE f.queue = 'heard' AND f.kind !~ '^on_event' OR f.queue = 'outside' AND v.event IN ('completed', 'failed')) h
	WHERE had <> due
UNION ALL
SELECT format('dead letter %s (%s): heard %s times', f.id, f.tag, coalesce(max(h.n), 0)) FROM found f LEFT JOIN intent i USING (tag)
	LEFT JOIN heard h ON h.job = f.id AND h.event = 'dead'
	WHERE f.kind = 'chaos.doomed' AND f.queue = 'default' AND f.state = 'dead'
	GROUP BY f.id, f.tag, i.retries HAVING coalesce(max(h.n), 0) NOT BETWEEN 1 AND 1 + coalesce(i.retries, 0)
UNION ALL
SELECT format('job %s (%s) of an event is %s: %s', id, kind, state, error) FROM found WHERE kind ~ '^on_event' AND state <> 'completed'
UNION ALL
SELECT format('heard of %s of job %s, which is nowhere', event, job) FROM heard WHERE job NOT IN (SELECT id FROM found)});
}

1;

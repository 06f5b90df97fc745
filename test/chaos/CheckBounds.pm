# Checks of bounds: limits, groups, unique keys, full queues, and jobs without waiting for
# permits.  See Check.pm.

package CheckBounds;

use strict;
use warnings FATAL => 'all';

# The bound of each effect, per key if separate; jobs without waiting for permits; free jobs,
# which may pass the rest.
sub views
{
	return q{
CREATE TEMP TABLE bound AS SELECT e.job, e.started, e.ended, b.what || CASE WHEN b.apart THEN ' for ' || e.grp ELSE '' END AS what,
		b.most, b.burst, b.rate, b.late, coalesce(f.price, 1) AS tokens
	FROM chaos.effect e LEFT JOIN found f ON f.id = e.job JOIN (VALUES
		('kind chaos.limited', 2, NULL, NULL, NULL, false, 'chaos.limited', NULL),
		('queue narrow', 2, NULL, NULL, NULL, false, NULL, 'narrow'),
		('queue outside narrow', 2, NULL, NULL, NULL, false, NULL, 'outside narrow'),
		('queue shared', 1, NULL, NULL, NULL, false, NULL, 'shared'),
		('limiter shared', 2, NULL, NULL, NULL, false, 'chaos.shared', NULL),
		('limiter shared', 2, NULL, NULL, NULL, false, 'chaos.shared_steps', NULL),
		('limiter shared', 2, NULL, NULL, NULL, false, 'chaos.work', 'shared'),
		('limiter shared', 2, NULL, NULL, NULL, false, 'chaos.outside', 'outside shared'),
		('kind chaos.rated', NULL, 5, 20, 8, false, 'chaos.rated', NULL),
		('limiter paced', NULL, 5, 20, 8, false, 'chaos.paced', NULL),
		('limiter paced', NULL, 5, 20, 8, false, 'chaos.work', 'paced'),
		-- two were noted late, and the last one owes
		('limiter priced', 2, 30, 20, 3 * 3, false, 'chaos.priced', NULL),
		('limiter priced', 2, 30, 20, 3 * 3, false, 'chaos.work', 'priced'),
		('limiter priced', 2, 30, 20, 3 * 3, false, 'chaos.outside', 'outside priced'),
		('limiter skipping', 1, NULL, NULL, NULL, true, 'chaos.skipping', NULL),
		('limiter releasing', 2, NULL, NULL, NULL, true, 'chaos.releasing', NULL),
		('limiter releasing', 2, NULL, NULL, NULL, true, 'chaos.outside', 'outside releasing'),
		('limiter replacing', 1, NULL, NULL, NULL, true, 'chaos.replacing', NULL),
		('limiter replacing', 1, NULL, NULL, NULL, true, 'chaos.outside', 'outside replacing')) b(what, most, burst, rate, late, apart, kind, queue)
	ON e.kind = coalesce(b.kind, e.kind) AND e.queue = coalesce(b.queue, e.queue)
	WHERE coalesce(f.price, 1) > 0;
CREATE TEMP TABLE taken AS SELECT *, coalesce(substring(kind FROM '^chaos\.(skipping|releasing|replacing)$'),
		substring(queue FROM '^outside (releasing|replacing)$')) AS limiter
	FROM found WHERE kind ~ '^chaos\.(skipping|releasing|replacing)$' OR queue ~ '^outside (releasing|replacing)$';
ANALYZE bound, taken};
}

sub list
{
	return (
	'a unique key has one job at a time' => q{
SELECT format('%s: jobs %s and %s at a time', a.grp, a.job, b.job) FROM chaos.effect a JOIN chaos.effect b USING (grp)
	WHERE a.grp ~ '^unique u' AND a.job < b.job AND a.started < b.ended AND b.started < a.ended},

	'groups are in order' => q{
SELECT format('group %s: number %s (job %s, %s to %s), then number %s (job %s, from %s)', grp,
		last_n, last_job, last_started, last_ended, n, job, started)
	FROM (SELECT *, lag(n) OVER w AS last_n, lag(job) OVER w AS last_job,
			lag(started) OVER w AS last_started, lag(ended) OVER w AS last_ended
		FROM chaos.effect WHERE queue ~ 'grouped|patient' WINDOW w AS (PARTITION BY grp ORDER BY started)) e
	WHERE n <= last_n AND queue <> 'patient' OR started < last_ended},

	# The patience counts from the end of an attempt; the log has its beginning.  A process
	# hit before the log message of the beginning leaves only the message of a later
	# attempt.  If that message is again for attempt 1, because no attempt was charged, the
	# row shows the return until the job fails.  After a failure, a process that ended
	# meanwhile is a sufficient explanation.  When the whole server ends, only procedures
	# leave a trace.
	'a group loses its patience with who has failed, and not before its time' => q{
SELECT format('group %s: number %s (job %s) began at %s, before number %s (job %s, attempt 1 at %s)', b.grp, b.n, b.job, b.started, a.n, a.job, t.at)
	FROM chaos.effect a JOIN chaos.effect b ON b.grp = a.grp AND b.queue = a.queue AND b.n > a.n AND b.started < a.started
	JOIN found f ON f.id = a.job
	LEFT JOIN LATERAL (SELECT attempt, at FROM chaos.begun WHERE job = a.job ORDER BY at LIMIT 1) t ON true
	WHERE a.queue = 'patient' AND (t.at IS NULL OR t.attempt = 1 AND b.started < t.at + interval '50 ms'
		AND NOT (f.run_at > f.enqueued_at AND t.at >= f.run_at)
		AND NOT (f.fails > 0 AND EXISTS (SELECT FROM chaos.gone g WHERE g.since BETWEEN f.enqueued_at AND t.at
			AND (g.pid IS NOT NULL OR a.kind = 'chaos.steps'))))},

	# A job that was enqueued before another job failed, and is next in turn, does not wait
	# for the failed job.
	'a group does not wait for longer than it is patient' => q{
SELECT format('of %s jobs that had only a job before them that has failed, %s began before that came again', count(*), count(*) FILTER (WHERE started < again))
	FROM (SELECT b.started, a.started AS again, row_number() OVER (PARTITION BY a.job ORDER BY b.n) AS place
		FROM found fa JOIN chaos.effect a ON a.job = fa.id JOIN chaos.begun t ON t.job = a.job AND t.attempt = 1
		JOIN chaos.effect b ON b.grp = a.grp AND b.queue = a.queue AND b.n > a.n JOIN found fb ON fb.id = b.job
		WHERE a.queue = 'patient' AND fa.fails = 1 AND fa.attempt = 2 AND fb.attempt = 1 AND fb.enqueued_at < t.at) w
	WHERE place = 1 HAVING count(*) >= 4 AND count(*) FILTER (WHERE started < again) * 2 < count(*)},

	'only a full queue drops jobs' => q{
SELECT format('job %s (%s) is cancelled: %s', id, tag, error) FROM found
	WHERE queue ~ '^full|^outside full' AND state = 'cancelled' AND (queue <> 'full drop' OR error !~ 'its queue was full')},

	'no more run at a time than may' => q{
SELECT format('%s: at %s, when job %s began, %s ran and not %s', what, a.started, a.job, count(*), a.most)
	FROM bound a JOIN bound b USING (what)
	WHERE b.started <= a.started AND b.ended > a.started
	GROUP BY what, a.started, a.job, a.most HAVING count(*) > a.most},

	# A start is recorded shortly after its tokens were taken, so that some tokens seem to be
	# too many.  With a limit of running jobs this number is bounded.  Otherwise the check
	# covers intervals of at least a second, with as many late starts as there are workers.
	'no more start in a time than may' => q{
SELECT format('%s: %s tokens too many are taken until %s, by job %s', what, ceil(taken - least - burst - late), started, job)
	FROM (SELECT *, sum(tokens) OVER s - rate * at AS taken, CASE WHEN most IS NOT NULL THEN min(before) OVER s
			ELSE min(before) OVER (PARTITION BY what ORDER BY started RANGE BETWEEN UNBOUNDED PRECEDING AND '1 s' PRECEDING) END AS least
		FROM (SELECT *, sum(tokens) OVER s - tokens - rate * at AS before
			FROM (SELECT *, extract(epoch FROM started - min(started) OVER ()) AS at FROM bound WHERE rate IS NOT NULL) b
			WINDOW s AS (PARTITION BY what ORDER BY started, job ROWS UNBOUNDED PRECEDING)) b
		WINDOW s AS (PARTITION BY what ORDER BY started, job ROWS UNBOUNDED PRECEDING)) b
	WHERE taken - least > burst + late},

	'a job costs what was asked for' => q{
SELECT format('job %s (%s) costs %s, and not %s', id, tag, coalesce(limit_cost, 1), price) FROM found
	WHERE price <> coalesce(limit_cost, 1)},

	# These jobs arrive together, the free jobs last.  If slow workers and not the rate delay
	# the other jobs, no job is passed.  The bucket must therefore be almost empty when two
	# thirds of the other jobs have begun.
	'what costs nothing passes' => q{
SELECT format('%s: of %s jobs that cost nothing each began after almost all of the %s that do', grp, count(*) FILTER (WHERE n = 0), count(*) FILTER (WHERE n > 0))
	FROM (SELECT e.grp, e.started, f.price AS n, count(*) FILTER (WHERE f.price > 0) OVER (PARTITION BY e.grp ORDER BY e.started) AS earlier
		FROM chaos.effect e JOIN found f ON f.id = e.job WHERE e.grp ~ '^pass ') e
	GROUP BY grp HAVING bool_and(earlier > 33) FILTER (WHERE n = 0)
	AND (SELECT sum(b.tokens) >= min(b.burst) + min(b.rate) * extract(epoch FROM max(b.started) - min(b.started)) - 3 FROM bound b
		WHERE b.what = 'limiter priced' AND b.started BETWEEN min(e.started) AND max(e.started) FILTER (WHERE e.earlier <= 24 AND e.n > 0))},

	'who finds no place ends as is said' => q{
SELECT format('job %s (%s, attempt %s) of limiter %s is %s: %s', id, grp, attempt, limiter, state, error) FROM taken t
	WHERE state <> 'completed' AND crashes < 2 AND NOT (state = 'cancelled' AND CASE limiter
		WHEN 'skipping' THEN error = 'skipped: all places of limiter "skipping" were taken'
		-- by one that was enqueued later
		WHEN 'replacing' THEN error ~ '^(cancelled while it ran|replaced by job \d+ at limiter "replacing")$' AND EXISTS (SELECT FROM taken n
			WHERE n.limiter = t.limiter AND n.grp = t.grp AND n.role = t.role AND n.id > t.id AND n.id = coalesce(substring(t.error FROM 'job (\d+)')::bigint, n.id))
		ELSE false END)
UNION ALL
SELECT format('%s jobs (the last one is %s) were skipped, and none has had the place %s', count(*), max(id), grp) FROM taken
	WHERE limiter = 'skipping' GROUP BY grp HAVING bool_and(state = 'cancelled')
UNION ALL
SELECT format('job %s is the last one of %s and %s, and is %s', id, grp, role, state) FROM (SELECT *, max(id) OVER (PARTITION BY grp, role) AS last FROM taken) t
	WHERE limiter = 'replacing' AND id = last AND state = 'cancelled'},

	# The job may have been interrupted before, by a signal or by the end of its server or
	# process.
	'a job that is skipped has not run' => q{
SELECT format('job %s (%s) was skipped at %s, and attempt %s began at %s', t.id, t.grp, t.finished_at, b.attempt, b.at)
	FROM taken t JOIN chaos.begun b ON b.job = t.id
	WHERE t.limiter = 'skipping' AND t.state = 'cancelled' AND b.attempt > t.attempt
	AND NOT EXISTS (SELECT FROM chaos.blow w WHERE w.pid = b.pid)
	AND NOT EXISTS (SELECT FROM chaos.gone g WHERE coalesce(g.pid, b.pid) = b.pid AND g.since <= t.finished_at AND g.until >= b.at)},

	'no role waits for the end of others backlog' => q{
SELECT format('%s began after %s others of the flood', o.tag, count(*))
	FROM chaos.effect o JOIN found f ON f.id = o.job JOIN chaos.effect m ON m.tag = regexp_replace(o.tag, 'chaos_.', 'many')
	WHERE o.tag ~ 'flood.*chaos_' AND m.started < o.started GROUP BY o.tag HAVING count(*) > 550});
}

1;

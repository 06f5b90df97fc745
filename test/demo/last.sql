SELECT j.id AS job, j.state, j.attempt AS attempts, jobq.result(j.id)
FROM jobq.jobs j WHERE kind = 'demo.invoice'
ORDER BY finished_at DESC LIMIT 1;

-- What the jobs outside the server have found, and what the database says.
INSERT INTO demo.fact (what, found, ok)
SELECT 'jobs outside, one of which killed its consumer; none is charged',
	format('%s done, in %s attempts', count(*), sum(attempt)),
	every(state = 'completed' AND (result -> 'numbers')::int =
		(SELECT count(*) FROM demo.assignment WHERE prefix LIKE (payload ->> 'digit') || '%'))
	AND sum((result -> 'numbers')::int) = (SELECT count(*) FROM demo.assignment)
	AND count(*) = 16 AND sum(attempt) = 16
FROM jobq.jobs WHERE kind = 'demo.count';

CREATE VIEW demo.checks AS
	SELECT what, expected, found, expected = found AS ok
	FROM (VALUES
		('lines imported',
			(SELECT count(*) FROM demo.line), (SELECT sum(lines) FROM demo.import_log)),
		('chunks imported',
			(SELECT (max(no) + 499) / 500 FROM demo.line), (SELECT count(*) FROM demo.import_log)),
		('different chunks among them',
			(SELECT (max(no) + 499) / 500 FROM demo.line), (SELECT count(DISTINCT first_line) FROM demo.import_log)),
		('assignments',
			(SELECT count(DISTINCT assignment) FROM demo.line), (SELECT count(*) FROM demo.assignment)),
		('invoices', 500, (SELECT count(*) FROM demo.invoice)),
		('different makers on them', 500, (SELECT count(DISTINCT maker) FROM demo.invoice)),
		('different numbers on them', 500, (SELECT count(DISTINCT number) FROM demo.invoice)),
		('highest number of an invoice', 500, (SELECT max(number) FROM demo.invoice)),
		('statements', 1, (SELECT count(*) FROM demo.statement)),
		('invoices on them', 500, (SELECT sum(invoices) FROM demo.statement)),
		('jobs completed',
			(SELECT (max(no) + 499) / 500 + 501 FROM demo.line),
			(SELECT count(*) FROM jobq.jobs WHERE state = 'completed')),
		('other jobs', 0, (SELECT count(*) FROM jobq.jobs WHERE state <> 'completed')),
		('jobs that needed a second attempt', 1,
			(SELECT count(*) FROM jobq.jobs WHERE attempt > 1))
	) AS c (what, expected, found);
TABLE demo.checks;

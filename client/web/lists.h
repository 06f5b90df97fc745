/*-------------------------------------------------------------------------
 *
 * lists.h
 *	  Parts of statements that return lists: pages, and the columns of a job.
 *
 * client/web/lists.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WEB_LISTS_H
#define JOBQ_WEB_LISTS_H

#include "web/inner.h"

/* The number of items of a page; statement.c has checked the argument. */
#define LIMIT(n)	"coalesce($" #n "::int4, 50)"

/*
 * A page of rows in this order.  The statement reads at most MOST_LOOKED_AT rows, so that
 * its time is bounded.  If the page is not full then, "next" is the last row read.  A
 * reference to a WITH query returns the rows in the order of the query.
 */
#define MOST_LOOKED_AT	"3000"
#define PAGE_BY(columns, rows, filter, n, order, last) \
	"WITH looked AS MATERIALIZED (SELECT * FROM (" rows ") AS r ORDER BY " order " LIMIT " MOST_LOOKED_AT "), " \
	"found AS MATERIALIZED (SELECT " columns " FROM looked AS j WHERE " filter " LIMIT " LIMIT(n) ") " \
	"SELECT json_build_object('items', (SELECT coalesce(json_agg(t), '[]') FROM found AS t), " \
	"'next', CASE WHEN (SELECT count(*) FROM found) = " LIMIT(n) " THEN (SELECT " last " FROM found) " \
	"WHEN (SELECT count(*) FROM looked) = " MOST_LOOKED_AT " THEN (SELECT " last " FROM looked) END)"

/* Highest id first. */
#define PAGE(columns, rows, filter, n)	PAGE_BY(columns, rows, filter, n, "id DESC", "min(id)")

/*
 * Dead letters, newest first.  "next" contains a time and an id, so that paging works
 * after the letter was deleted.
 */
#define DEAD_LAST \
	"(array_agg((extract(epoch FROM (finished_at)) * 1000000)::int8 || '-' || id ORDER BY finished_at, id))[1]"
#define DEAD_BEFORE(n) \
	"(f.finished_at, f.id) < ('epoch'::timestamptz + split_part($" #n "::text, '-', 1)::int8 * interval '1 us', split_part($" #n "::text, '-', 2)::int8)"

#define JOB_LINE \
	"j.id, j.state, j.kind, j.queue, j.priority, j.role, j.attempt, j.max_attempts, j.progress, j.message, " \
	"j.enqueued_at, j.run_at, j.started_at, j.finished_at, j.error, j.group_key, j.unique_key, j.batch_id, j.tenant, j.tags"

/* Values of the arguments "state" and "order" of GET /api/jobs. */
#define JOB_STATES	"scheduled ready running suspended retryable blocked completed dead cancelled expired"
#define JOB_ORDERS	"enqueued_at -enqueued_at run_at -run_at started_at -started_at finished_at -finished_at"

#define MOST_EXPORTED	3000	/* jobs in an answer: the rows that a page
								 * examines */

/* client/web/jobs.c */
extern const char jobs_sql[];
extern void run_jobs(Request *request);
extern void answer_export(Request *request, PGresult *result);

#endif							/* JOBQ_WEB_LISTS_H */

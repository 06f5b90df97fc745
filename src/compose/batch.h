/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  Batches.
 *
 * src/compose/batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_BATCH_H
#define JOBQ_BATCH_H

#include "base/base.h"

/* Values of jobq.batch.state. */
#define BATCH_PENDING		'p'
#define BATCH_RUNNING		'r'
#define BATCH_COMPLETED		'c'
#define BATCH_FAILED		'f'
#define BATCH_CANCELLED		'x'

/* Why a job of a batch is cancelled if another fails. */
#define BATCH_FAILED_REASON	"a job of its batch failed"

/*
 * A query that deletes finished jobs ("delete", which returns its batch_id and
 * state), keeps the counts of their batches, and returns how many there were.
 */
#define DELETE_AND_COUNT(delete) \
	"WITH gone AS (" delete ")," \
	" counted AS (UPDATE jobq.batch b SET completed = b.completed + g.completed," \
	" failed = b.failed + g.failed, cancelled = b.cancelled + g.cancelled," \
	" expired = b.expired + g.expired" \
	" FROM (" COUNT_BY_BATCH "FROM gone WHERE batch_id IS NOT NULL GROUP BY batch_id) g" \
	" WHERE b.id = g.batch_id)," \
	" kept AS (UPDATE jobq.step s SET state = g.state, result = g.result" \
	" FROM gone g WHERE s.job_id = g.id AND g.batch_id IS NOT NULL)" \
	" SELECT pg_catalog.count(*) FROM gone"
#define COUNT_BY_BATCH \
	"SELECT batch_id, pg_catalog.count(*) FILTER (WHERE state = 'c') AS completed," \
	" pg_catalog.count(*) FILTER (WHERE state = 'f') AS failed," \
	" pg_catalog.count(*) FILTER (WHERE state = 'x') AS cancelled," \
	" pg_catalog.count(*) FILTER (WHERE state = 'e') AS expired "
#define RETURNING_FINISHED	" RETURNING batch_id, state, id, result"
#define RETURNING_LETTERS	" RETURNING batch_id, 'f'::\"char\" AS state, id, NULL::jsonb AS result"

/* src/compose/batch.c */
extern int64 jobq_batch_insert(Datum name, const Datum *callbacks,
							   const bool *nulls, bool allow_failures,
							   bool started, bool has_steps);
extern bool jobq_batch_reopen(int64 batch_id);
extern void jobq_batch_check_retry(int64 id);

#endif							/* JOBQ_BATCH_H */

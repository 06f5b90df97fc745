/*-------------------------------------------------------------------------
 *
 * batch_rows.h
 *	  The row of a batch, and the counts of its ended jobs.
 *
 * Part of the interface of the directory store.
 *
 * src/store/batch_rows.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_BATCH_ROWS_H
#define JOBQ_BATCH_ROWS_H

#include "utils/snapshot.h"

#include "store/tables.h"

/*
 * Attribute numbers of jobq_internal.batch.
 *
 * If started_at is equal to created_at, the batch was started at its creation, before a job was
 * added.  Such a batch waits for its first job: an evaluation does not end the batch before a job
 * has ended.  batch_read() and batch_read_row() compare the two columns.
 */
enum
{
	BATCH_COLUMN_ID = 1,
	BATCH_COLUMN_CREATED_AT,
	BATCH_COLUMN_STARTED_AT,
	BATCH_COLUMN_FINISHED_AT,
	BATCH_COLUMN_ROLE,
	BATCH_COLUMN_STATE,
	BATCH_COLUMN_ALLOW_FAILURES,
	BATCH_COLUMN_HAS_STEPS,
	BATCH_COLUMN_REOPENED,
	BATCH_COLUMN_DORMANT,
	BATCH_COLUMN_ADOPTED,
	BATCH_COLUMN_DROPPED,
	BATCH_COLUMN_PARENT,
	BATCH_COLUMN_PARENT_JOB,
	BATCH_COLUMN_COMPLETED,
	BATCH_COLUMN_DEAD,
	BATCH_COLUMN_CANCELLED,
	BATCH_COLUMN_EXPIRED,
	BATCH_COLUMN_NAME,
	BATCH_COLUMN_ON_SUCCESS,
	BATCH_COLUMN_ON_FAILURE,
	BATCH_COLUMN_ON_FINISH,
	BATCH_COLUMN_LAST_ERROR,
	BATCH_NCOLUMNS = BATCH_COLUMN_LAST_ERROR
};

typedef struct JobqBatchRow
{
	Datum		values[BATCH_NCOLUMNS];
	bool		nulls[BATCH_NCOLUMNS];
	ItemPointerData ctid;
	TransactionId version;		/* xmin of the row */
} JobqBatchRow;

#define BATCH_VALUE(row, column)	((row)->values[BATCH_COLUMN_##column - 1])
#define BATCH_ISNULL(row, column)	((row)->nulls[BATCH_COLUMN_##column - 1])
#define BATCH_SET(row, column, value) \
	(BATCH_VALUE(row, column) = (value), BATCH_ISNULL(row, column) = false)

/* Result of an attempt to lock a row. */
typedef enum JobqRowLock
{
	JOBQ_ROW_LOCKED,
	JOBQ_ROW_BUSY,				/* locked or being changed elsewhere */
	JOBQ_ROW_CHANGED,			/* updated or deleted: read again */
} JobqRowLock;

/* Numbers of ended jobs of a batch, by outcome. */
typedef struct JobqBatchCounts
{
	int64		completed;
	int64		dead;
	int64		cancelled;
	int64		expired;
} JobqBatchCounts;

/* src/store/batch_row.c */
extern bool jobq_batch_fetch(int64 id, Snapshot snapshot, JobqBatchRow *row);
extern JobqRowLock jobq_batch_lock(const JobqBatchRow *row);
extern void jobq_batch_write(JobqBatchRow *row);
extern void jobq_batch_put(JobqBatchRow *row);

/* src/store/batch_ends.c */
extern const JobqCache jobq_batch_ends_cache;
extern bool jobq_batch_find_live(int64 id, int64 up_to, Snapshot snapshot, int64 *job_id);
extern bool jobq_batch_has_failures(int64 id, TimestampTz since, Snapshot snapshot);
extern void jobq_batch_count(int64 id, TimestampTz since, Snapshot snapshot,
							 JobqBatchCounts *counts);

#endif							/* JOBQ_BATCH_ROWS_H */

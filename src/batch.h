/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  Batches.
 *
 * src/batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_BATCH_H
#define JOBQ_BATCH_H

#include "jobq.h"

/* Values of jobq.batch.state. */
#define BATCH_PENDING		'p'
#define BATCH_RUNNING		'r'
#define BATCH_COMPLETED		'c'
#define BATCH_FAILED		'f'
#define BATCH_CANCELLED		'x'

/* Why a job of a batch is cancelled if another fails. */
#define BATCH_FAILED_REASON	"a job of its batch failed"

/* src/batch.c */
extern int64 jobq_batch_insert(Datum name, const Datum *callbacks,
							   const bool *nulls, bool allow_failures,
							   bool started, bool has_steps);

#endif							/* JOBQ_BATCH_H */

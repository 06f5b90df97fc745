/*-------------------------------------------------------------------------
 *
 * consume.h
 *	  The table jobq.lease, shared by the files about consumers.
 *
 * src/consume.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CONSUME_H
#define JOBQ_CONSUME_H

#include "row.h"

/* Attribute numbers of jobq.lease. */
enum
{
	LEASE_ID = 1,
	LEASE_TOKEN,
	LEASE_LEASE_UNTIL,
	LEASE_SINCE,
	LEASE_ROLE,
	LEASE_CONSUMER,
	LEASE_JOB_IDS,
	LEASE_JOB_CTIDS,
	LEASE_NATTS = LEASE_JOB_CTIDS
};

#define MIN_LEASE_MS	100
#define MAX_LEASE_MS	(INT64CONST(7) * 86400000)

/* src/consume.c */
extern JobqDatabase *jobq_served_database(const char *function);
extern void jobq_lease_row(JobqDatabase *db, uint32 batch, int64 row_id,
						   int64 token, TimestampTz until,
						   const int64 *ids, const ItemPointerData *ctids,
						   int nids);

#endif							/* JOBQ_CONSUME_H */

/*-------------------------------------------------------------------------
 *
 *	  Commits that have not handed over their jobs yet.
 *
 * The rows of a transaction are visible before the backend pushes the jobs into the ready
 * set.  In between, a job of a group may be missing from the ready set, although the job
 * comes first in the group.  Each commit with jobs of groups is therefore counted, from
 * before the rows are visible until the jobs are handed over.
 *
 * src/ready/handover.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_HANDOVER_H
#define JOBQ_READY_HANDOVER_H

#include "memory/memory.h"

/*
 * One array for the cluster, indexed by a hash of database and group.  A database has an
 * additional counter, that of group 0, for commits that do not name their groups.  The array
 * belongs to no database, so that a commit is counted even before its database is served.
 */
#define JOBQ_HANDOVER_COUNTERS	1024
typedef struct JobqHandovers
{
	pg_atomic_uint32 counters[JOBQ_HANDOVER_COUNTERS];
} JobqHandovers;

/* src/ready/handover.c */
extern const JobqArea jobq_handovers_area;
extern uint32 jobq_handover_begin(Oid dboid, int64 group);
extern void jobq_handover_end(uint32 counter);

#endif							/* JOBQ_READY_HANDOVER_H */

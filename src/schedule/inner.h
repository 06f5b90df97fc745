/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  What the files of the room schedule offer each other.
 *
 * src/schedule/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_SCHEDULE_INNER_H
#define JOBQ_SCHEDULE_INNER_H

#include "schedule/schedule.h"

/* src/schedule/cron.c */
extern bool jobq_cron_ever(const JobqCron *cron);

#endif							/* JOBQ_SCHEDULE_INNER_H */

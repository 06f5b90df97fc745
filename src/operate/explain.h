/*-------------------------------------------------------------------------
 *
 * explain.h
 *	  Interface among the source files of explain().
 *
 * src/operate/explain.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_OPERATE_EXPLAIN_H
#define JOBQ_OPERATE_EXPLAIN_H

#include "funcapi.h"

#include "operate/operate.h"

/* The columns of the result. */
enum
{
	REASON, DETAIL, REMEDY, NATTS
};

/* State of one call of explain(). */
typedef struct Explain
{
	ReturnSetInfo *rsinfo;
	int64		id;
	bool		sees_all;		/* the user may see the jobs of all roles */
	int			n;				/* number of reasons so far */
} Explain;

/* src/operate/explain_answer.c */
extern void explain_add(Explain *e, const char *reason, const char *detail,
						const char *remedy);
extern char *explain_time(TimestampTz at);
extern void explain_ask_tables(Explain *e, const char *function,
							   const char *more);

/* src/operate/explain_limits.c */
extern void explain_limits(Explain *e, JobqDatabase *db, const JobqJob *job,
						   const JobqQueue *queue);

#endif							/* JOBQ_OPERATE_EXPLAIN_H */

/*-------------------------------------------------------------------------
 *
 * explain.h
 *	  What the files of explain() offer each other.
 *
 * src/operate/explain.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_OPERATE_EXPLAIN_H
#define JOBQ_OPERATE_EXPLAIN_H

#include "funcapi.h"

#include "operate/operate.h"

/* The columns of the answer. */
enum
{
	REASON, DETAIL, REMEDY, NATTS
};

/* The answer as far as it is given. */
typedef struct Explain
{
	ReturnSetInfo *rsinfo;
	int64		id;
	bool		sees_all;		/* the user may see jobs of all roles */
	int			n;				/* reasons so far */
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
extern void explain_tenant_limits(Explain *e, JobqDatabase *db,
								  const JobqJob *job, const JobqQueue *queue);
extern void explain_key_limits(Explain *e, JobqDatabase *db,
							   const JobqJob *job, const JobqQueue *queue);

#endif							/* JOBQ_OPERATE_EXPLAIN_H */

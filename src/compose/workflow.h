/*-------------------------------------------------------------------------
 *
 * workflow.h
 *	  Workflows: batches of which some jobs, their steps, wait for others.
 *
 * src/compose/workflow.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WORKFLOW_H
#define JOBQ_WORKFLOW_H

#include "utils/jsonb.h"

#include "store/store.h"

/* Most steps of a workflow. */
#define JOBQ_MAX_STEPS		1000

/* Attribute numbers of jobq.step. */
enum
{
	STEP_JOB_ID = 1,
	STEP_BATCH_ID,
	STEP_STATE,
	STEP_NAME,
	STEP_NEEDS,
	STEP_DEFINITION,
	STEP_RESULT,
	STEP_NATTS = STEP_RESULT
};

/*
 * Where a step's job is, beside the states of the archive.
 */
#define STEP_BLOCKED		'b'
#define STEP_LIVE			'l'
#define STEP_FAILED			'f'
#define STEP_GONE			'g'
#define STEP_DROPPED		'd' /* cancelled only because others failed */
#define STEP_RESTORED		'r' /* ... and about to be blocked again */

/* A step of a workflow that exists. */
typedef struct JobqStep
{
	int64		job_id;
	char	   *name;
	int			nneeds;
	struct JobqStep **needs;	/* NULL where there is no such step */
	char		state;
	bool		result_read;
	Jsonb	   *result;			/* or NULL */
} JobqStep;

typedef struct JobqSteps
{
	int			nsteps;
	JobqStep   *steps;
} JobqSteps;

/* Why a step is cancelled whose need ends otherwise; begins with this. */
#define STEP_NEED_REASON	"needs step "

/* src/compose/steps.c */
extern void jobq_steps_load(int64 batch_id, JobqSteps *workflow);
extern const char *jobq_step_need_lost(const JobqStep *step);
extern bool jobq_step_needs_done(const JobqStep *step);

/* src/compose/result_ref.c */
typedef Jsonb *(*JobqResultOf) (void *arg, const char *name);

extern List *jobq_result_refs(Jsonb *payload, const char *what);
extern Jsonb *jobq_results_put(Jsonb *payload, JobqResultOf result_of,
							   void *arg, Size max_size, Size *size);

#endif							/* JOBQ_WORKFLOW_H */

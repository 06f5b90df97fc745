/*-------------------------------------------------------------------------
 *
 * events.h
 *	  Events of jobs, batches, schedules and monitors.
 *
 * Part of the interface of the directory store.
 *
 * src/store/events.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_EVENTS_H
#define JOBQ_EVENTS_H

#include "lib/stringinfo.h"

#include "store/jobs.h"

/* The events.  Their names in SQL are in listeners.c. */
typedef enum JobqEvent
{
	JOBQ_EVENT_STARTED,			/* only in the job's transaction */
	JOBQ_EVENT_COMPLETED,
	JOBQ_EVENT_FAILED,			/* an attempt */
	JOBQ_EVENT_RETRY,			/* ... and another follows */
	JOBQ_EVENT_DEAD,			/* ... which was the last one */
	JOBQ_EVENT_CANCELLED,
	JOBQ_EVENT_EXPIRED,
	JOBQ_EVENT_BATCH_COMPLETED,
	JOBQ_EVENT_BATCH_FAILED,
	JOBQ_EVENT_BATCH_CANCELLED,
	JOBQ_EVENT_SCHEDULE_MISSED, /* ticks without a job */
	JOBQ_EVENT_SCHEDULE_FAILED, /* tick without a job yet, after an error */
	JOBQ_EVENT_ALERT_BEGAN,
	JOBQ_EVENT_ALERT_ENDED,
	JOBQ_NEVENTS,

	/* events with handlers called in the job's own transaction: within.c */
	JOBQ_WITHIN_STARTED = JOBQ_NEVENTS,
	JOBQ_WITHIN_COMPLETED,
	JOBQ_NHEARD
}			JobqEvent;

StaticAssertDecl(JOBQ_NHEARD <= 32, "events are bits of jobq_heard");

/*
 * Prefix of the kinds of events' jobs.  The rest of the kind names the handler to run.
 */
#define ON_EVENT_PREFIX		"on_event:"

/* Attribute numbers of jobq_internal.event_handler. */
enum
{
	EVENT_HANDLER_ROLE = 1,
	EVENT_HANDLER_EVENT,
	EVENT_HANDLER_HANDLER,
	EVENT_HANDLER_QUEUE,
	EVENT_HANDLER_KIND,
	EVENT_HANDLER_WITHIN,
	EVENT_HANDLER_REQUIRED,
	EVENT_HANDLER_NATTS = EVENT_HANDLER_REQUIRED
};

/* A row of jobq_internal.event_handler.  "" means any queue or kind. */
typedef struct JobqListener
{
	Oid			role;
	int			event;
	bool		required;
	char		handler[JOBQ_MAX_KIND_NAME + 1];
	char		queue[JOBQ_MAX_QUEUE_NAME + 1];
	char		kind[JOBQ_MAX_KIND_NAME + 1];
} JobqListener;

/* src/store/listeners.c */
extern uint32 jobq_heard;		/* bits of events with possible handlers */
extern void jobq_listeners_install(void);
extern const char *jobq_event_word(int event);
extern const char *jobq_event_refuses(int event, bool by_kind);
extern int	jobq_event_within(int event);
extern JobqListener *jobq_listeners(JobqEvent event, Oid role, int32 queue_id,
									const char *queue, const char *kind, int *n);

/* src/store/event.c */
extern Datum jobq_event_describe(JobqEvent event, const JobqJob *job, const char *kind,
								 const char *queue, int sqlerrcode, const char *message);
extern void jobq_event_raise_of(JobqEvent event, Oid role, const char *queue,
								const char *kind,
								void (*describe_it) (StringInfo buf, void *arg),
								void *arg);
extern void jobq_event_raise(JobqEvent event, const JobqJob *job, int sqlerrcode,
							 const char *message);

/*
 * Raise an event of the job: enqueue a job for each handler of the event, in this transaction.
 * sqlerrcode: of the error, or 0.  message: of the error, or the reason of a cancellation, or
 * NULL. Almost free if no handler is registered for the event.
 */
static inline void
jobq_event(JobqEvent event, const JobqJob *job, int sqlerrcode, const char *message)
{
	if (unlikely((jobq_heard & (UINT32_C(1) << event)) != 0))
		jobq_event_raise(event, job, sqlerrcode, message);
}

/* Raise an event of another object: see jobq_event_raise_of(). */
static inline void
jobq_event_of(JobqEvent event, Oid role, const char *queue, const char *kind,
			  void (*describe_it) (StringInfo buf, void *arg), void *arg)
{
	if (unlikely((jobq_heard & (UINT32_C(1) << event)) != 0))
		jobq_event_raise_of(event, role, queue, kind, describe_it, arg);
}

/* src/store/follow_up.c */
extern const JobqQueue *jobq_follow_up_queue(int32 queue_id, const char *kind,
											 JobqQueue *buffer);
extern void jobq_follow_up(const char *kind, int32 queue_id, Oid role,
						   Datum payload, const char *headers,
						   const JobqJob *context);

#endif							/* JOBQ_EVENTS_H */

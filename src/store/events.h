/*-------------------------------------------------------------------------
 *
 * events.h
 *	  What becomes of jobs, for the handlers of events.
 *
 * Part of the door of this room.
 *
 * src/store/events.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_EVENTS_H
#define JOBQ_EVENTS_H

#include "store/jobs.h"

/* The events, in the order of their words in event.c. */
typedef enum JobqEvent
{
	JOBQ_EVENT_COMPLETED,
	JOBQ_EVENT_FAILED,			/* an attempt */
	JOBQ_EVENT_RETRY,			/* ... and another follows */
	JOBQ_EVENT_DEAD,			/* ... and it was the last one */
	JOBQ_EVENT_CANCELLED,
	JOBQ_EVENT_EXPIRED,
	JOBQ_NEVENTS
}			JobqEvent;

/* Kinds with this prefix are jobs of events: they run the handler of the kind after it. */
#define ON_EVENT_PREFIX		"on_event:"

/* Attribute numbers of jobq.event_handler. */
enum
{
	EVENT_HANDLER_ROLE = 1,
	EVENT_HANDLER_EVENT,
	EVENT_HANDLER_HANDLER,
	EVENT_HANDLER_QUEUE,
	EVENT_HANDLER_KIND,
	EVENT_HANDLER_NATTS = EVENT_HANDLER_KIND
};

/* src/store/event.c */
extern uint32 jobq_heard;		/* bits of the events that may have a handler */
extern void jobq_events_install(void);
extern const char *jobq_event_word(int event);
extern void jobq_event_raise(JobqEvent event, const JobqJob *job, int sqlerrcode,
							 const char *message);

/*
 * Something has become of the job: enqueue a job for each handler of that, in this
 * transaction.  sqlerrcode and message: of the error, or 0; or NULL, or the reason of a
 * cancel.  Costs nothing where nobody has asked for such events.
 */
static inline void
jobq_event(JobqEvent event, const JobqJob *job, int sqlerrcode, const char *message)
{
	if (unlikely((jobq_heard & (UINT32_C(1) << event)) != 0))
		jobq_event_raise(event, job, sqlerrcode, message);
}

/* src/store/follow_up.c */
extern const JobqQueue *jobq_follow_up_queue(int32 queue_id, const char *kind,
											 JobqQueue *buffer);
extern void jobq_follow_up(const char *kind, int32 queue_id, Oid role,
						   Datum payload, const char *headers,
						   const JobqJob *context);

#endif							/* JOBQ_EVENTS_H */

/*-------------------------------------------------------------------------
 *
 * lengths.h
 *	  Lengths of queues, for the files in charge.
 *
 * Internal to the directory store.
 *
 * src/store/lengths.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STORE_LENGTHS_H
#define JOBQ_STORE_LENGTHS_H

#include "store/store.h"

/* Room for new jobs in a queue, as this transaction sees it. */
typedef struct JobqRoom
{
	int64		length;			/* existing jobs */
	int64		allowed;		/* max_length plus own released positions */
	int64		own;			/* positions held by the transaction */
	int64		missing;		/* for the new jobs; 0: reserved */
} JobqRoom;

/*
 * Changes of a queue by this transaction, in one subtransaction: see length_note.c.
 */
typedef struct JobqLengthNote
{
	JobqNote	note;
	int32		queue_id;
	Oid			jobs;			/* jobq_internal.job */
	int			reserved;		/* added, with a position in the counter */
	int			added;			/* added, without a position */
	int			removed;
	int			reused;			/* added, in positions of removed jobs */
	int64		life;			/* JobqDatabase.life of "reserved" */
	bool		drops;			/* the transaction has dropped jobs, ... */
	JobqDropped before;			/* ... and this was the last one before */
} JobqLengthNote;

/* src/store/length_note.c */
extern JobqLengthNote *jobq_length_note(int32 queue_id);
extern JobqLengthNote *jobq_length_note_newest(int32 queue_id, Oid jobs);
extern JobqLengthNote *jobq_length_note_older(const JobqLengthNote *note);
extern JobqLengthNote *jobq_length_note_number(int i);
extern JobqLengthNote *jobq_length_note_undo(SubTransactionId since);
extern void jobq_length_notes_forget(void);
extern void jobq_length_notes_give_back(void);
extern void jobq_length_note_life(JobqLengthNote *note, int64 life);
extern void jobq_length_notes_subcommit(SubTransactionId subid, SubTransactionId parent);

/* src/store/counter.c: the first three functions take db->lock */
extern void jobq_lengths_free(JobqDatabase *db);
extern void jobq_length_get_dropped(int32 queue_id, JobqDropped *dropped);
extern void jobq_length_set_dropped(int32 queue_id, const JobqDropped *dropped);
extern void jobq_length_undropped(JobqLength *length, const JobqDropped *before);
extern JobqLength *jobq_length_find(JobqDatabase *db, int32 queue_id, Oid jobs);
extern JobqLength *jobq_length_make(JobqDatabase *db, int32 queue_id, Oid jobs);
extern int64 jobq_length_now(JobqDatabase *db, const JobqLength *length);
extern void jobq_length_tell(JobqDatabase *db, JobqLength *length);

/* src/store/length_wait.c */
extern bool jobq_length_wait(const JobqQueue *queue, int n, const JobqRoom *room,
							 int64 until);
extern void jobq_length_waited(void);
extern bool jobq_length_waits(void);

/* src/store/length.c */
extern void jobq_length_take(const JobqQueue *queue, int n, JobqRoom *room);
extern void jobq_length_dropped_to(int32 queue_id, const JobqDropped *dropped,
								   const JobqDropped *before);

/* src/store/drop.c */
extern int	jobq_drop_oldest(const JobqJob *job, int n);

#endif							/* JOBQ_STORE_LENGTHS_H */

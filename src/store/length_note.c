/*-------------------------------------------------------------------------
 *
 * length_note.c
 *	  Notes of this transaction about the lengths of queues.
 *
 * There is one note for each queue and each subtransaction that changed the queue and can
 * still be rolled back alone.  At the commit of a subtransaction, the parent takes over the
 * notes.  The number of notes is therefore at most the number of queues times the number of
 * levels of subtransactions, for any number of jobs in any order.
 *
 * The notes are in the order of their subtransactions, the current one last.  The notes of
 * queues with the same hash are linked, the newest first.
 *
 * src/store/length_note.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "store/lengths.h"

#define NBUCKETS	256

static JobqLengthNote *notes = NULL;
static int	nnotes = 0;
static int	max_notes = 0;
static int	newest[NBUCKETS];	/* newest note's number, from 1; 0: none */

static int *bucket_of(int32 queue_id);
static JobqLengthNote *find(int number, int32 queue_id, Oid jobs);
static void drop_last(void);
static void add_to_parent(JobqLengthNote *note, const JobqLengthNote *ended);

static int *
bucket_of(int32 queue_id)
{
	return &newest[(uint32) queue_id % NBUCKETS];
}

/*
 * Return the first note of the queue in its bucket, beginning with this number, or NULL.
 */
static JobqLengthNote *
find(int number, int32 queue_id, Oid jobs)
{
	while (number != 0)
	{
		JobqLengthNote *note = &notes[number - 1];

		if (note->queue_id == queue_id && note->jobs == jobs)
			return note;
		number = note->older;
	}
	return NULL;
}

/* Remove the last note, which is the newest of its bucket. */
static void
drop_last(void)
{
	JobqLengthNote *note = &notes[--nnotes];

	*bucket_of(note->queue_id) = note->older;
}

/*
 * Return the note of this subtransaction about the queue, for additions, and create it if
 * needed.  The pointer is valid until the next call, and until a subtransaction begins or
 * ends.  ERROR if out of memory.
 */
JobqLengthNote *
jobq_length_note(int32 queue_id)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	Oid			jobs = jobq_relations()->job;
	JobqLengthNote *note = jobq_length_note_newest(queue_id, jobs);
	int		   *bucket = bucket_of(queue_id);

	if (note != NULL && note->subid == subid)
		return note;
	notes = jobq_grow(notes, &max_notes, nnotes + 1, sizeof(JobqLengthNote));
	note = &notes[nnotes++];
	memset(note, 0, sizeof(JobqLengthNote));
	note->subid = subid;
	note->queue_id = queue_id;
	note->jobs = jobs;
	note->older = *bucket;
	*bucket = nnotes;
	return note;
}

/* Return the newest note of the queue, or NULL. Cannot fail. */
JobqLengthNote *
jobq_length_note_newest(int32 queue_id, Oid jobs)
{
	return find(*bucket_of(queue_id), queue_id, jobs);
}

/* Return the next older note of the same queue, or NULL. Cannot fail. */
JobqLengthNote *
jobq_length_note_older(const JobqLengthNote *note)
{
	return find(note->older, note->queue_id, note->jobs);
}

/* Return the number of notes, and set *all to the notes, the oldest first. */
int
jobq_length_notes(JobqLengthNote **all)
{
	*all = notes;
	return nnotes;
}

/*
 * Remove the last note, and return it, if it was made since this subtransaction began, or in
 * any case if "since" is invalid.  Returns NULL otherwise.  The result is valid until the next
 * note is made.
 */
JobqLengthNote *
jobq_length_note_undo(SubTransactionId since)
{
	if (nnotes == 0 || notes[nnotes - 1].subid < since)
		return NULL;
	drop_last();
	return &notes[nnotes];
}

/* Remove all notes.  Cannot fail. */
void
jobq_length_notes_forget(void)
{
	while (nnotes > 0)
		drop_last();
}

/* The transaction is over and its notes were removed: release large memory. */
void
jobq_length_notes_give_back(void)
{
	Assert(nnotes == 0);
	notes = jobq_give_back(notes, &max_notes);
}

/*
 * Adapt the note to the counters of this life of the database.  Counters are cleared when the
 * database loses its slot.  The counters of the next life do not include earlier reservations.
 */
void
jobq_length_note_life(JobqLengthNote *note, int64 life)
{
	if (note->life == life)
		return;
	note->added += note->reserved;
	note->reserved = 0;
	note->life = life;
}

static void
add_to_parent(JobqLengthNote *note, const JobqLengthNote *ended)
{
	JobqLengthNote more = *ended;
	int64		life = Max(note->life, more.life);	/* lives only grow */

	jobq_length_note_life(note, life);
	jobq_length_note_life(&more, life);
	note->reserved += more.reserved;
	note->added += more.added;
	note->removed += more.removed;
	note->reused += more.reused;
	if (!note->drops && more.drops)
	{
		note->drops = true;
		note->before = more.before;
	}
}

/* Pass the notes of a committed subtransaction to its parent.  Cannot fail. */
void
jobq_length_notes_subcommit(SubTransactionId subid, SubTransactionId parent)
{
	int			n = nnotes;

	while (nnotes > 0 && notes[nnotes - 1].subid >= subid)
		drop_last();

	/* each note moves to the front or keeps its position */
	for (int i = nnotes; i < n; i++)
	{
		JobqLengthNote ended = notes[i];
		int		   *bucket = bucket_of(ended.queue_id);
		JobqLengthNote *note = jobq_length_note_newest(ended.queue_id, ended.jobs);

		if (note != NULL && note->subid == parent)
		{
			add_to_parent(note, &ended);
			continue;
		}
		ended.subid = parent;
		ended.older = *bucket;
		notes[nnotes++] = ended;
		*bucket = nnotes;
	}
}

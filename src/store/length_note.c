/*-------------------------------------------------------------------------
 *
 * length_note.c
 *	  Notes of this transaction about the lengths of queues.
 *
 * There is one note for each queue and each subtransaction (src/commit/notebook.c).
 *
 * src/store/length_note.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "store/lengths.h"

/* The subject of a note. */
#define SUBJECT(queue_id, jobs)	((uint64) (uint32) (queue_id) << 32 | (jobs))

static JobqNotebook book = {.size = sizeof(JobqLengthNote)};

/*
 * Return the note of this subtransaction about the queue, for additions, and create it if
 * needed.  The pointer is valid until the next call, and until a subtransaction begins or
 * ends.  ERROR if out of memory.
 */
JobqLengthNote *
jobq_length_note(int32 queue_id)
{
	Oid			jobs = jobq_relations()->job;
	JobqLengthNote *note = jobq_note_here(&book, SUBJECT(queue_id, jobs));

	if (note != NULL)
		return note;
	jobq_notebook_reserve(&book);
	note = jobq_note_add(&book, SUBJECT(queue_id, jobs));
	note->queue_id = queue_id;
	note->jobs = jobs;
	return note;
}

/* Return the newest note of the queue, or NULL. Cannot fail. */
JobqLengthNote *
jobq_length_note_newest(int32 queue_id, Oid jobs)
{
	return jobq_note_newest(&book, SUBJECT(queue_id, jobs));
}

/* Return the next older note of the same queue, or NULL. Cannot fail. */
JobqLengthNote *
jobq_length_note_older(const JobqLengthNote *note)
{
	return jobq_note_older(&book, note);
}

/* Return a note by its number, from 0, the oldest first; NULL after the last.  Cannot fail. */
JobqLengthNote *
jobq_length_note_number(int i)
{
	return i < book.n ? jobq_note_number(&book, i) : NULL;
}

/*
 * Remove the last note, and return it, if it was made since this subtransaction began, or in
 * any case if "since" is invalid.  Returns NULL otherwise.  The result is valid until the next
 * note is made.
 */
JobqLengthNote *
jobq_length_note_undo(SubTransactionId since)
{
	return jobq_note_undo(&book, since);
}

/* Remove all notes.  Cannot fail. */
void
jobq_length_notes_forget(void)
{
	jobq_notebook_clear(&book);
}

/* The transaction is over and its notes were removed: release large memory. */
void
jobq_length_notes_give_back(void)
{
	jobq_notebook_give_back(&book);
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
add_to_parent(void *parent, const void *ended)
{
	JobqLengthNote *note = parent;
	JobqLengthNote more = *(const JobqLengthNote *) ended;
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
	jobq_notebook_subcommit(&book, subid, parent, add_to_parent);
}

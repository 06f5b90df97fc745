/*-------------------------------------------------------------------------
 *
 * note.c
 *	  Stores errors in rows of jobq's own tables, such as schedules and batches.
 *
 * worker/scheduler/note.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

/* An error, and the row to store the error in. */
typedef struct Note
{
	const ErrorRow *row;
	const ErrorData *edata;
	void		(*tell) (void *arg);
	void	   *arg;
	bool		news;
} Note;

static void write_note(void *arg);

/*
 * Store the error in last_error of the row, in a transaction of its own.  A locked row is skipped.  Returns true for a new error, or if the old
 * error could not be read.  For a new error, calls tell(arg) in the same transaction,
 * unless tell is NULL.
 */
bool
scheduler_note_error(const ErrorRow *row, const ErrorData *edata,
					 void (*tell) (void *arg), void *arg)
{
	Note		note = {.row = row,.edata = edata,.tell = tell,.arg = arg};
	ErrorData  *failed = scheduler_try(write_note, &note);

	if (failed == NULL)
		return note.news;
	FreeErrorData(failed);
	return true;
}

static void
write_note(void *arg)
{
	Note	   *note = (Note *) arg;
	const ErrorRow *row = note->row;
	Oid			types[] = {row->type, TEXTOID};
	Datum		values[] = {
		row->key, CStringGetTextDatum(note->edata->message)
	};

	if (jobq_relations_if_installed() == NULL)
		return;
	note->news =
		jobq_query(psprintf("UPDATE jobq_internal.%s SET last_error = $2 WHERE %s IN"
							" (SELECT %s FROM jobq_internal.%s WHERE %s = $1"
							"  AND last_error IS DISTINCT FROM $2 FOR UPDATE SKIP LOCKED)",
							row->table, row->column, row->column, row->table, row->column),
				   2, types, values, NULL, SPI_OK_UPDATE) > 0;
	if (note->news && note->tell != NULL)
		note->tell(note->arg);
}

/*-------------------------------------------------------------------------
 *
 * note.c
 *	  Notes in a row of one of jobq's tables why what it asks for could not be
 *	  done.
 *
 * worker/scheduler/note.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

/* What is to be noted where. */
typedef struct Note
{
	const char *table;
	const char *column;
	Oid			type;
	Datum		key;
	const ErrorData *edata;
	void		(*tell) (void *arg);
	void	   *arg;
	bool		news;
} Note;

static void write_note(void *arg);

/*
 * Something that a row of one of our tables asks for could not be done: note in
 * its last_error why, in a transaction of its own, unless it is locked.  True if
 * that is news, or could not be found out.  If it is, tell(arg) is called in that
 * transaction, unless it is NULL.
 */
bool
scheduler_note_error(const char *table, const char *column, Oid type, Datum key,
					 const ErrorData *edata, void (*tell) (void *arg), void *arg)
{
	Note		note = {
		.table = table,.column = column,.type = type,.key = key,.edata = edata,
		.tell = tell,.arg = arg
	};
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
	Oid			types[] = {note->type, TEXTOID};
	Datum		values[] = {
		note->key, CStringGetTextDatum(note->edata->message)
	};

	if (jobq_relations_if_installed() == NULL)
		return;
	note->news =
		jobq_query(psprintf("UPDATE jobq_internal.%s SET last_error = $2 WHERE %s IN"
							" (SELECT %s FROM jobq_internal.%s WHERE %s = $1"
							"  AND last_error IS DISTINCT FROM $2 FOR UPDATE SKIP LOCKED)",
							note->table, note->column, note->column,
							note->table, note->column),
				   2, types, values, NULL, SPI_OK_UPDATE) > 0;
	if (note->news && note->tell != NULL)
		note->tell(note->arg);
}

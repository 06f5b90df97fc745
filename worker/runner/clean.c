/*-------------------------------------------------------------------------
 *
 * clean.c
 *	  Removes from the session everything that a job has left.
 *
 * worker/runner/clean.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

/*
 * Reset the settings that a procedure has set for the session and committed.  Called outside
 * of transactions.
 */
void
clean_settings(void)
{
	MemoryContext old = CurrentMemoryContext;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	SetPGVariable("session_authorization", NIL, false);
	ResetAllOptions();
	process_pin_settings(true);
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
}

/*
 * Remove everything that the last job has left in the session.  Called outside of
 * transactions.
 *
 * The end of the job's nest level, or the abort, resets most settings; a procedure may have
 * committed some.  The plans of handlers are kept on purpose.
 */
void
clean_session(bool after_procedure)
{
	Oid			temp_namespace;
	Oid			temp_toast_namespace;

	PortalHashTableDeleteAll();
	DropAllPreparedStatements();
	LockReleaseAll(USER_LOCKMETHOD, true);
	ResetSequenceCaches();

	GetTempNamespaceState(&temp_namespace, &temp_toast_namespace);
	if (after_procedure)
		clean_settings();
	if (OidIsValid(temp_namespace))
	{
		MemoryContext old = CurrentMemoryContext;

		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		ResetTempTableNamespace();
		PopActiveSnapshot();
		CommitTransactionCommand();
		MemoryContextSwitchTo(old);
	}
}

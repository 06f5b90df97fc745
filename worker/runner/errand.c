/*-------------------------------------------------------------------------
 *
 * errand.c
 *	  Runs a plain statement in another database.
 *
 * A process is connected to a single database during its lifetime.  The worker therefore has
 * the postmaster start another process, the errand.  The errand connects to the other database
 * as the worker's role, runs the statement, commits, and ends.  Worker and errand share a
 * memory segment with the statement, the result, and a queue of messages.  Errors and notices
 * come back through the queue, as from a process of a parallel query.
 *
 * The two commits are not atomic.  The attempt is therefore charged before, as for statements
 * outside of a transaction (procedure.c).  After a crash the statement may run again.
 *
 * While the errand runs, the worker waits without an open transaction.  If a cancel, a timeout
 * or the end of the worker ends the wait, the errand ends too.  If the errand crashes, the
 * postmaster knows which process requested it (worker/process/crash.c).
 *
 * worker/runner/errand.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/xact.h"
#include "libpq/pqformat.h"
#include "libpq/pqmq.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "parser/parser.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* Size of the queue of messages, in bytes. */
#define MESSAGES_SIZE	16384

/* Shared data of worker and errand, after the queue of messages. */
typedef struct Errand
{
	Oid			database;
	Oid			role;
	int			encoding;		/* of the statement and the messages */
	bool		transaction;

	/* written by the errand */
	bool		done;			/* the errand has committed */
	uint64		rows;

	char		sql[FLEXIBLE_ARRAY_MEMBER];
} Errand;

/* The worker's handle of an errand. */
typedef struct Outing
{
	dsm_segment *segment;
	BackgroundWorkerHandle *process;
} Outing;

PGDLLEXPORT void jobq_errand_main(Datum main_arg);

static Errand *
errand_in(dsm_segment *segment)
{
	return (Errand *) ((char *) dsm_segment_address(segment) + MESSAGES_SIZE);
}

/* Have the errand started.  Raises an error if no process slot is free. */
static shm_mq_handle *
start_errand(Outing *sent, const JobqStatement *statement)
{
	BackgroundWorker worker = {0};
	Size		length = strlen(statement->sql) + 1;
	Errand	   *errand;
	shm_mq	   *messages;

	sent->segment = dsm_create(MESSAGES_SIZE + offsetof(Errand, sql) + length, 0);
	messages = shm_mq_create(dsm_segment_address(sent->segment), MESSAGES_SIZE);
	shm_mq_set_receiver(messages, MyProc);
	errand = errand_in(sent->segment);
	errand->database = statement->database;
	errand->role = GetUserId();
	errand->encoding = GetDatabaseEncoding();
	errand->transaction = statement->transaction;
	errand->done = false;
	errand->rows = 0;
	memcpy(errand->sql, statement->sql, length);

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "jobq", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "jobq_errand_main", BGW_MAXLEN);
	snprintf(worker.bgw_name, BGW_MAXLEN, "jobq errand of process %d", MyProcPid);
	strlcpy(worker.bgw_type, "jobq errand", BGW_MAXLEN);
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(sent->segment));
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &sent->process))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("there is no place for a process that runs the statement in database \"%s\"",
						statement->database_name),
				 errhint("You might need to increase \"%s\".", "max_worker_processes")));
	return shm_mq_attach(messages, sent->segment, sent->process);
}

/*
 * End the errand if still running, and free all resources.  Also called at the exit of the
 * worker.
 */
static void
end_errand(int code, Datum arg)
{
	Outing	   *sent = (Outing *) DatumGetPointer(arg);

	if (sent->process != NULL)
		TerminateBackgroundWorker(sent->process);

	/*
	 * without a reader, the errand would wait for room for its last message
	 */
	if (sent->segment != NULL)
		dsm_detach(sent->segment);
	sent->segment = NULL;
	if (sent->process != NULL)
	{
		(void) WaitForBackgroundWorkerShutdown(sent->process);
		pfree(sent->process);
		sent->process = NULL;
	}
}

/*
 * Handle a message of the errand.  An error is raised as an error of the job; a notice is
 * passed on.
 */
static void
take_message(StringInfo message, const JobqStatement *statement)
{
	ErrorData	edata;
	char		type = pq_getmsgbyte(message);

	if (type != 'E' && type != 'N')
		return;
	pq_parse_errornotice(message, &edata);
	edata.elevel = Min(edata.elevel, ERROR);
	edata.context = edata.context == NULL
		? psprintf("in database \"%s\"", statement->database_name)
		: psprintf("%s\nin database \"%s\"", edata.context, statement->database_name);
	ThrowErrorData(&edata);
}

/*
 * Run the statement in its database, as the current user.  No transaction may be open before;
 * a transaction is open afterwards.  Returns the number of rows written or found.  The current
 * memory context must outlive transactions.  Errors of the statement are raised, and errors of
 * the connection as well.
 */
uint64
errand_run(const JobqStatement *statement)
{
	MemoryContext memory = CurrentMemoryContext;
	Outing		sent = {0};
	bool		done;
	uint64		rows;

	PG_ENSURE_ERROR_CLEANUP(end_errand, PointerGetDatum(&sent));
	{
		shm_mq_handle *messages = start_errand(&sent, statement);
		Size		size;
		void	   *data;

		/* until the errand has detached */
		while (shm_mq_receive(messages, &size, &data, false) == SHM_MQ_SUCCESS)
		{
			StringInfoData message;

			initStringInfo(&message);
			appendBinaryStringInfo(&message, data, size);
			take_message(&message, statement);
			pfree(message.data);
		}
		done = errand_in(sent.segment)->done;
		rows = errand_in(sent.segment)->rows;
	}
	PG_END_ENSURE_ERROR_CLEANUP(end_errand, PointerGetDatum(&sent));
	end_errand(0, PointerGetDatum(&sent));
	if (!done)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("the process that ran the statement in database \"%s\" has ended before it was done",
						statement->database_name),
				 errhint("The server's log may say more.")));

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	MemoryContextSwitchTo(memory);
	return rows;
}

/*
 * Run the statement in this process, in the right database.  Returns the number of rows.
 * Leaves a transaction open.
 */
static uint64
run_here(JobqStatement *statement)
{
	uint64		rows;
	List	   *parsed = raw_parser(statement->sql, RAW_PARSE_DEFAULT);

	if (list_length(parsed) != 1)
		elog(ERROR, "%d statements where there should be one", list_length(parsed));
	statement->raw = linitial_node(RawStmt, parsed);
	if (!statement->transaction)
		return run_top_level(statement);
	process_begin_transaction();
	rows = jobq_execute_statement(statement->sql);
	PopActiveSnapshot();
	return rows;
}

/* Main function of the errand. */
void
jobq_errand_main(Datum main_arg)
{
	dsm_segment *segment;
	shm_mq	   *messages;
	Errand	   *errand;
	JobqStatement statement = {0};

	process_start();
	CurrentResourceOwner = NULL;

	/* gone if the worker has left meanwhile */
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		proc_exit(0);
	errand = errand_in(segment);
	messages = dsm_segment_address(segment);
	shm_mq_set_sender(messages, MyProc);
	pq_redirect_to_shm_mq(segment, shm_mq_attach(messages, segment, NULL));

	BackgroundWorkerInitializeConnectionByOid(errand->database, errand->role,
											  JOBQ_CONNECT_FLAGS);
	process_pin_settings(true);
	process_load_libraries();
	StartTransactionCommand();
	if (PrepareClientEncoding(errand->encoding) < 0 ||
		SetClientEncoding(errand->encoding) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("conversion between %s and %s is not supported",
						pg_encoding_to_char(errand->encoding),
						GetDatabaseEncodingName())));
	CommitTransactionCommand();

	MemoryContextSwitchTo(AllocSetContextCreate(TopMemoryContext, "jobq errand",
												ALLOCSET_DEFAULT_SIZES));
	statement.sql = pg_any_to_server(errand->sql, strlen(errand->sql),
									 errand->encoding);
	statement.transaction = errand->transaction;
	debug_query_string = statement.sql;
	pgstat_report_activity(STATE_RUNNING, statement.sql);

	errand->rows = run_here(&statement);
	CommitTransactionCommand();
	errand->done = true;
	pgstat_report_activity(STATE_IDLE, NULL);
	proc_exit(0);
}

/*-------------------------------------------------------------------------
 *
 * statement.c
 *	  Runs the statement of a job of the kind sql, within the transaction of the job.
 *	  (worker/runner/procedure.c runs statements outside of a transaction.)
 *
 * The rows returned by the statement are counted and discarded.
 *
 * src/attempt/statement.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "executor/spi.h"
#include "tcop/dest.h"
#include "tcop/utility.h"

#include "attempt/attempt.h"
#include "produce/produce.h"

/* True if the job's statement runs outside of the job's transaction. */
bool
jobq_statement_commits(const JobqJob *job)
{
	JobqStatement statement;

	jobq_statement_read(JOB(job, JOB_PAYLOAD), &statement);
	return !statement.transaction || OidIsValid(statement.database);
}

/*
 * Return the result of a plain statement: its command tag, and the number of rows written or
 * found.  Of several statements, the last counts.
 */
Datum
jobq_statement_result(const JobqStatement *statement, uint64 rows)
{
	return jobq_text_to_jsonb(psprintf("{\"command\": \"%s\", \"rows\": " UINT64_FORMAT "}",
									   GetCommandTagName(CreateCommandTag(statement->raw->stmt)),
									   rows));
}

/*
 * Run the statement as the current user, in the current transaction.  Returns the number of
 * rows written or found.  Errors are raised.
 */
uint64
jobq_execute_statement(const char *sql)
{
	SPIExecuteOptions options = {0};
	uint64		rows;
	int			code;

	options.dest = None_Receiver;
	SPI_connect();
	code = SPI_execute_extended(sql, &options);
	if (code < 0)
		elog(ERROR, "could not run the statement: %s", SPI_result_code_string(code));
	rows = SPI_processed;
	SPI_finish();
	return rows;
}

/*
 * Run the job's statement as the current user, in the current transaction.  Returns the
 * result, in the caller's memory context.  Raises an error if the statement must run outside
 * of the transaction or in another database.
 */
Datum
jobq_run_statement(const JobqJob *job)
{
	JobqStatement statement;

	jobq_statement_read(JOB(job, JOB_PAYLOAD), &statement);
	if (!statement.transaction || OidIsValid(statement.database))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 OidIsValid(statement.database) ?
				 errmsg("the statement is to run in database \"%s\"", statement.database_name)
				 : errmsg("the statement is to run outside of a transaction"),
				 errhint("Only a worker process does that.")));
	return jobq_statement_result(&statement, jobq_execute_statement(statement.sql));
}

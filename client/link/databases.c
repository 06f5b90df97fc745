/*-------------------------------------------------------------------------
 *
 * databases.c
 *	  Several databases: connections, their names in the output, and a statement whose
 *	  rows are merged.
 *
 * client/link/databases.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <stdlib.h>
#include <string.h>

/*
 * Connect to each database of the settings.  A database without a connection stays without
 * conn, and its error is printed.  Returns the number of databases.
 *
 * The labels also take databases without a connection into account, so that a label is the same
 * while another database cannot be reached.
 */
int
databases_open(Database *databases)
{
	for (int i = 0; i < settings.ndatabases; i++)
		databases[i] = (Database)
	{
		.dbname = settings.databases[i],.conn = try_connection(settings.databases[i])
	};
	label_databases(databases, settings.ndatabases);
	for (int i = 0; i < settings.ndatabases; i++)
		if (PQstatus(databases[i].conn) != CONNECTION_OK)
		{
			PQfinish(databases[i].conn);
			databases[i].conn = NULL;
		}
	return settings.ndatabases;
}

/*
 * Return the name of a connection's database.  An invalid connection string gives none.
 */
static const char *
name_of(const PGconn *conn)
{
	return PQdb(conn) != NULL ? PQdb(conn) : "";
}

/*
 * Append a connection's server: the first host as configured, and its port.  The text is the
 * same whichever of several hosts is connected.
 */
static void
append_server(PQExpBuffer buffer, PGconn *conn)
{
	PQconninfoOption *options = PQconninfo(conn);
	const char *host = NULL;
	const char *port = NULL;

	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
	{
		if (option->val == NULL || option->val[0] == '\0')
			continue;
		if (strcmp(option->keyword, "host") == 0 || (strcmp(option->keyword, "hostaddr") == 0 && host == NULL))
			host = option->val;
		else if (strcmp(option->keyword, "port") == 0)
			port = option->val;
	}
	if (host == NULL)
		host = PQhost(conn);
	if (port == NULL)
		port = PQport(conn);
	appendPQExpBuffer(buffer, "@%.*s:%.*s", (int) strcspn(host, ","), host, (int) strcspn(port, ","), port);
	PQconninfoFree(options);
}

/*
 * Set the labels of databases: the name of the database, with the server if several databases
 * have the name.  Connections that have failed take part, but must not be NULL.  Two databases
 * with the same label are an error, which ends the program.
 */
void
label_databases(Database *databases, int n)
{
	for (int i = 0; i < n; i++)
	{
		PQExpBufferData label;
		bool		unique = true;

		for (int j = 0; j < n; j++)
			unique &= j == i || strcmp(name_of(databases[i].conn), name_of(databases[j].conn)) != 0;
		initPQExpBuffer(&label);
		appendPQExpBufferStr(&label, name_of(databases[i].conn));
		if (!unique)
			append_server(&label, databases[i].conn);
		if (PQExpBufferDataBroken(label))
			fatal(EXIT_REFUSED, "out of memory");
		databases[i].label = label.data;
		for (int j = 0; j < i; j++)
			if (name_of(databases[i].conn)[0] != '\0' && strcmp(databases[j].label, label.data) == 0)
			{
				error("database \"%s\" is given twice", name_of(databases[i].conn));
				hint("If the databases differ, write the hosts of one of them in another order: the first host and its port tell databases of the same name apart.");
				exit(EXIT_USAGE);
			}
	}
}

/*
 * Append the rows of a result to another with the same columns.
 */
void
append_rows(PGresult *all, const PGresult *result)
{
	int			n = PQntuples(all);

	for (int row = 0; row < PQntuples(result); row++)
		for (int i = 0; i < PQnfields(all); i++)
			if (!PQsetvalue(all, n + row, i, PQgetvalue(result, row, i),
							PQgetisnull(result, row, i) ? -1 : PQgetlength(result, row, i)))
				fatal(EXIT_REFUSED, "out of memory");
}

/*
 * Run a query in each database of the settings, and return all rows, in the order of the
 * databases.  With several databases, "database" is the first column.  With "json", the last
 * column is the row as JSON.  An error in one of several databases is printed, and "status"
 * becomes the exit status.  Other errors end the program.
 */
PGresult *
query_databases(const char *sql, bool json, int n, const char *const *values, int *status)
{
	Database	databases[MAX_DATABASES];
	PGresult   *all = NULL;
	PQExpBufferData text;
	const char **more;
	int			ndatabases;

	initPQExpBuffer(&text);
	appendPQExpBufferStr(&text, json ? "SELECT t.*, pg_catalog.row_to_json(t) FROM (" : "");
	if (settings.ndatabases > 1)
		appendPQExpBuffer(&text, "SELECT $%d::pg_catalog.text AS database, t.* FROM (%s) AS t", n + 1, sql);
	else
		appendPQExpBufferStr(&text, sql);
	appendPQExpBufferStr(&text, json ? ") AS t" : "");
	if (PQExpBufferDataBroken(text))
		fatal(EXIT_REFUSED, "out of memory");
	if (settings.ndatabases <= 1)
		return query(connect_now(), text.data, n, values);

	ndatabases = databases_open(databases);
	more = allocate((n + 1) * sizeof(char *));
	if (n > 0)
		memcpy(more, values, n * sizeof(char *));
	for (int i = 0; i < ndatabases; i++)
	{
		PGresult   *result;

		if (databases[i].conn == NULL)
		{
			*status = EXIT_NO_CONNECTION;
			continue;
		}
		more[n] = databases[i].label;
		result = PQexecParams(databases[i].conn, text.data, n + 1, NULL, more, NULL, NULL, 0);
		if (PQresultStatus(result) != PGRES_TUPLES_OK)
		{
			say("in database %s:", databases[i].label);
			say_result_error(result);
			*status = PQstatus(databases[i].conn) == CONNECTION_OK ? EXIT_REFUSED : EXIT_NO_CONNECTION;
			PQclear(result);
		}
		else if (all == NULL)
			all = result;
		else
		{
			if (PQnfields(result) != PQnfields(all))
				fatal(EXIT_REFUSED, "database %s has another version of jobq than the others", databases[i].label);
			append_rows(all, result);
			PQclear(result);
		}
		PQfinish(databases[i].conn);
	}
	if (all == NULL)
		exit(*status);
	termPQExpBuffer(&text);
	free(more);
	return all;
}

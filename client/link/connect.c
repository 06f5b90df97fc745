/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  A connection to the server, and single statements on the connection.  As in
 *	  PostgreSQL's own programs, parameters come from the environment, connection
 *	  strings, service files and .pgpass.
 *
 * client/link/connect.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#define NOT_RUNNING		"JQ002"
#define NO_ROOM			"54000" /* in the NOTIFY queue at commit, or for a
								 * string in jsonb */

/* Passwords typed by the user, each for one of the databases that are given. */
static struct
{
	const char *dbname;			/* as given, or NULL */
	char	   *password;
}			typed[MAX_DATABASES];
static int	ntyped = 0;

static char *ask_password(const PGconn *conn);
static void say_details(const PGresult *result);
static void say_notice(void *nobody, const PGresult *result);

/*
 * Return the password that the user has typed for a database, or NULL.  The password is for no
 * other database, whose server may be another.
 */
static const char *
typed_password(const char *dbname)
{
	for (int i = 0; i < ntyped; i++)
		if (dbname == NULL || typed[i].dbname == NULL ? dbname == typed[i].dbname
			: strcmp(dbname, typed[i].dbname) == 0)
			return typed[i].password;
	return NULL;
}

/*
 * Fill in the parameters of a connection to a database, at most CONNECTION_WORDS, with a
 * NULL at the end.  "dbname" is as in Settings.
 */
void
connection_words(const char *dbname, const char **keywords, const char **values)
{
	static const char *const silence[][2] = {
		{"keepalives_idle", "30"}, {"keepalives_interval", "10"}, {"keepalives_count", "3"}, {"tcp_user_timeout", "60000"},
		{"connect_timeout", "15"},
	};
	int			n = 0;

	/*
	 * These settings detect a dead server within a minute, or while a
	 * connection is made.  A connection string overrides parameters before
	 * it; a service file does not.
	 */
	if (getenv("PGSERVICE") == NULL && (dbname == NULL || strstr(dbname, "service=") == NULL))
		for (; n < (getenv("PGCONNECT_TIMEOUT") == NULL ? 5 : 4); n++)
		{
			keywords[n] = silence[n][0];
			values[n] = silence[n][1];
		}

	/* parameters behind a connection string override it */
	keywords[n] = "dbname";
	values[n++] = dbname;
	keywords[n] = "host";
	values[n++] = settings.host;
	keywords[n] = "port";
	values[n++] = settings.port;
	keywords[n] = "user";
	values[n++] = settings.user;
	keywords[n] = "password";
	values[n++] = typed_password(dbname);
	keywords[n] = "fallback_application_name";
	values[n++] = "jobq";
	keywords[n] = "client_encoding";
	values[n++] = "UTF8";
	keywords[n] = NULL;
	values[n] = NULL;
}

/*
 * Return a connection to a database.  Prints the error on failure; the connection then is only
 * for the names of the database and the server.
 */
PGconn *
try_connection(const char *dbname)
{
	const char *keywords[CONNECTION_WORDS];
	const char *values[CONNECTION_WORDS];
	PGconn	   *conn;
	char	   *password;

	for (;;)
	{
		connection_words(dbname, keywords, values);
		conn = PQconnectdbParams(keywords, values, 1);
		if (conn == NULL)
			fatal(EXIT_NO_CONNECTION, "out of memory");
		if (PQstatus(conn) == CONNECTION_OK)
		{
			hear_notices(conn);
			return conn;
		}
		if (PQconnectionNeedsPassword(conn) && typed_password(dbname) == NULL && ntyped < MAX_DATABASES &&
			!settings.never_prompt && (password = ask_password(conn)) != NULL)
		{
			typed[ntyped].dbname = dbname;
			typed[ntyped++].password = password;
			PQfinish(conn);
			continue;
		}
		error("%s", PQerrorMessage(conn));
		return conn;
	}
}

/*
 * Return a connection to a database.  Prints the error and returns NULL on failure.
 */
PGconn *
connect_to(const char *dbname)
{
	PGconn	   *conn = try_connection(dbname);

	if (PQstatus(conn) == CONNECTION_OK)
		return conn;
	PQfinish(conn);
	return NULL;
}

/*
 * Return a connection to the database of the settings.  A failure ends the program.
 */
PGconn *
connect_now(void)
{
	PGconn	   *conn = connect_to(settings.dbname);

	if (conn == NULL)
		exit(EXIT_NO_CONNECTION);
	return conn;
}

/*
 * Read a password for the connection from the terminal.  NULL if there is no terminal.
 */
static char *
ask_password(const PGconn *conn)
{
	char		line[1024];
	FILE	   *terminal = fopen("/dev/tty", "r+");
	struct termios before;
	struct termios quiet;
	char	   *got;

	if (terminal == NULL)
		return NULL;

	/* the change discards what was typed before, so the prompt comes after it */
	tcgetattr(fileno(terminal), &before);
	quiet = before;
	quiet.c_lflag &= ~ECHO;
	tcsetattr(fileno(terminal), TCSAFLUSH, &quiet);
	if (settings.ndatabases > 1)
		fprintf(terminal, "Password for database \"%s\" at %s:%s: ", PQdb(conn), PQhost(conn), PQport(conn));
	else
		fputs("Password: ", terminal);
	fflush(terminal);
	got = fgets(line, sizeof(line), terminal);
	tcsetattr(fileno(terminal), TCSAFLUSH, &before);
	fputc('\n', terminal);
	fclose(terminal);
	if (got == NULL)
		return NULL;
	line[strcspn(line, "\r\n")] = '\0';
	return copy_text(line);
}

/*
 * Return the result of a statement.  An error is printed, and ends the program.
 */
PGresult *
query(PGconn *conn, const char *sql, int n, const char *const *values)
{
	PGresult   *result = PQexecParams(conn, sql, n, NULL, values, NULL, NULL, 0);
	ExecStatusType status = PQresultStatus(result);

	if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
		return result;
	if (PQstatus(conn) != CONNECTION_OK)
		fatal(EXIT_NO_CONNECTION, "%s", PQerrorMessage(conn));
	say_result_error(result);
	exit(EXIT_REFUSED);
}

/*
 * Return a field of a server message on one line, or NULL if the field is missing.
 * Messages can quote values of jobs, so control characters are escaped.
 */
static char *
field_of(const PGresult *result, int field)
{
	const char *said = PQresultErrorField(result, field);

	return said != NULL ? harmless_text(said, INT32_MAX) : NULL;
}

void
say_result_error(const PGresult *result)
{
	char	   *message = field_of(result, PG_DIAG_MESSAGE_PRIMARY);

	error("%s", message != NULL ? message : PQresultErrorMessage(result));
	free(message);
	say_details(result);
	if (strcmp(sqlstate_of(result), "3F000") == 0 || strcmp(sqlstate_of(result), "42P01") == 0)
		hint("Is the extension jobq in this database? Say CREATE EXTENSION jobq.");
}

static void
say_details(const PGresult *result)
{
	char	   *detail = field_of(result, PG_DIAG_MESSAGE_DETAIL);
	char	   *advice = field_of(result, PG_DIAG_MESSAGE_HINT);

	if (detail != NULL)
		say("detail: %s", detail);
	if (advice != NULL)
		hint("%s", advice);
	free(detail);
	free(advice);
}

/*
 * Print the server's notices in the format of errors.  libpq itself would print
 * notices without escapes.
 */
void
hear_notices(PGconn *conn)
{
	PQsetNoticeReceiver(conn, say_notice, NULL);
}

static void
say_notice(void *nobody, const PGresult *result)
{
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
	char	   *message = field_of(result, PG_DIAG_MESSAGE_PRIMARY);

	(void) nobody;
	if (message != NULL)
		say("%s: %s", severity != NULL && strcmp(severity, "WARNING") == 0 ? "warning" : "notice", message);
	free(message);
	say_details(result);
}

/*
 * Return the SQLSTATE of a result, or an empty string.
 */
const char *
sqlstate_of(const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return state != NULL ? state : "";
}

/*
 * Return an array literal of these strings.  A NULL pointer becomes null.
 */
char *
array_of(int n, const char *const *values)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	appendPQExpBufferChar(&text, '{');
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			appendPQExpBufferChar(&text, ',');
		if (values[i] == NULL)
		{
			appendPQExpBufferStr(&text, "NULL");
			continue;
		}
		appendPQExpBufferChar(&text, '"');
		for (const char *c = values[i]; *c != '\0';)
		{
			size_t		plain = strcspn(c, "\"\\");

			appendBinaryPQExpBuffer(&text, c, plain);
			c += plain;
			if (*c != '\0')
			{
				appendPQExpBufferChar(&text, '\\');
				appendPQExpBufferChar(&text, *c++);
			}
		}
		appendPQExpBufferChar(&text, '"');
	}
	appendPQExpBufferChar(&text, '}');
	if (PQExpBufferDataBroken(text))
		fatal(EXIT_REFUSED, "out of memory");
	return text.data;
}

/*
 * Return whether the error came from this source file of the server.
 */
bool
error_is_of(const PGresult *result, const char *file)
{
	const char *source = PQresultErrorField(result, PG_DIAG_SOURCE_FILE);

	return source != NULL && strcmp(source, file) == 0;
}

/*
 * True if the error with this SQLSTATE is temporary: lack of resources, a lock, a
 * read-only or stopping server, or jobq not running yet.
 */
bool
error_may_pass(const char *state)
{
	static const char *const begins[] = {"08", "25", "40", "53", "55", "57", "58", NOT_RUNNING, NO_ROOM};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (strncmp(state, begins[i], strlen(begins[i])) == 0)
			return true;
	return false;
}

/*-------------------------------------------------------------------------
 *
 * databases.c
 *	  The databases of "jobq web", their names and their paths.
 *
 * client/web/databases.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX	"/db/"

WebDatabase web_databases[MAX_DATABASES];
int			nweb_databases;

/*
 * Return a text as a segment of a path.
 */
static char *
segment_of(const char *text)
{
	PQExpBufferData segment;

	initPQExpBuffer(&segment);
	for (const unsigned char *c = (const unsigned char *) text; *c != '\0'; c++)
		if (strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~@:", *c) != NULL)
			appendPQExpBufferChar(&segment, *c);
		else
			appendPQExpBuffer(&segment, "%%%02X", *c);
	if (PQExpBufferDataBroken(segment))
		fatal(EXIT_REFUSED, "out of memory");
	return segment.data;
}

/*
 * Return a connection with the parameters of a database that never connects: libpq refuses the
 * last parameter after it has read all others, from the service file, too.  An invalid
 * connection string ends the program.
 */
static PGconn *
parameters_of(const char *dbname)
{
	const char *keywords[CONNECTION_WORDS + 1];
	const char *values[CONNECTION_WORDS + 1];
	PGconn	   *conn;
	int			n = 0;

	connection_words(dbname, keywords, values);
	while (keywords[n] != NULL)
		n++;
	keywords[n] = "target_session_attrs";
	values[n++] = "none";
	keywords[n] = values[n] = NULL;
	conn = PQconnectStartParams(keywords, values, 1);
	if (conn == NULL)
		fatal(EXIT_REFUSED, "out of memory");
	if (PQdb(conn) == NULL)
		fatal(EXIT_USAGE, "%s", PQerrorMessage(conn));
	return conn;
}

/*
 * Open the databases of the settings.  The first connection to a single database blocks, so
 * that an error ends the program.  With several databases no connection blocks, so that each
 * database is served as soon as its server accepts connections.
 */
void
web_databases_open(void)
{
	Database	databases[MAX_DATABASES];

	nweb_databases = settings.ndatabases > 1 ? settings.ndatabases : 1;
	for (int i = 0; i < nweb_databases; i++)
	{
		WebDatabase *database = &web_databases[i];

		database->dbname = nweb_databases > 1 ? settings.databases[i] : settings.dbname;
		if (nweb_databases == 1)
			link_open(&database->listener, database->dbname);
		else
			link_begin(&database->listener, database->dbname, NULL);
		databases[i].conn = parameters_of(database->dbname);
	}
	label_databases(databases, nweb_databases);
	for (int i = 0; i < nweb_databases; i++)
	{
		PQfinish(databases[i].conn);
		web_databases[i].label = databases[i].label;
		web_databases[i].segment = segment_of(databases[i].label);
	}
}

/*
 * Return the database with this label, or NULL.
 */
WebDatabase *
web_database_of(const char *label)
{
	for (int i = 0; i < nweb_databases; i++)
		if (strcmp(web_databases[i].label, label) == 0)
			return &web_databases[i];
	return NULL;
}

/*
 * Decode the escape at the beginning of the text, such as %2F, into one byte.  Returns false,
 * and writes nothing, if the text does not begin with an escape, or if the byte is zero.
 */
bool
percent_decode(const char *text, const char *end, char *byte)
{
	unsigned	value;

	if (end - text < 3 || *text != '%' || strspn(text + 1, "0123456789abcdefABCDEF") < 2 ||
		sscanf(text + 1, "%2x", &value) != 1 || value == 0)
		return false;
	*byte = (char) value;
	return true;
}

/*
 * Find the database that a path names.  Returns the rest of the path, which begins with a slash
 * or is empty.  If the path names no database, returns the path, and the first database.  If
 * the path names an unknown database, "database" becomes NULL.
 */
const char *
web_database_in(const char *path, WebDatabase **database)
{
	char	   *label;
	char	   *to;
	size_t		length;

	*database = &web_databases[0];
	if (strncmp(path, PREFIX, strlen(PREFIX)) != 0)
		return path;
	path += strlen(PREFIX);
	length = strcspn(path, "/?#");
	label = to = allocate(length + 1);
	for (const char *end = path + length; path < end;)
	{
		if (percent_decode(path, end, to))
			path += 3;
		else
			*to = *path++;
		to++;
	}
	*database = web_database_of(label);
	free(label);
	return path;
}

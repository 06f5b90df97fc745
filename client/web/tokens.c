/*-------------------------------------------------------------------------
 *
 * tokens.c
 *	  The token file, for log-ins of programs.
 *
 * A line has a token, blanks, and parameters, for example "user=app password=secret".
 * These parameters extend the program's own.  A token therefore stands for a connection
 * that the author of the file could make without this program.  The statements run only
 * under the role of the connection: this program never executes SET ROLE.
 *
 * With several databases, a token stands for a connection to each of them, or with "dbname"
 * for a connection to the database with this label.
 *
 * SIGHUP reloads the file.  An unchanged token keeps its connections.  A removed token,
 * or a token with new parameters, becomes invalid.  Its waiting requests and streams end.
 *
 * client/web/tokens.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SHORTEST_TOKEN	20

typedef struct Token
{
	struct Token *next;
	char	   *secret;
	Principal  *principal;		/* for this token only */
} Token;

static Token *tokens;

/*
 * Return the principal of a token in a database, or NULL.
 */
Principal *
token_find(const char *secret, const WebDatabase *database)
{
	Principal  *found = NULL;

	/* compare all tokens: the time must reveal nothing */
	for (Token *token = tokens; token != NULL; token = token->next)
		if (secret_equal(token->secret, secret) && token->principal->database == database)
			found = token->principal;
	return found;
}

static void
tokens_free(Token *list)
{
	while (list != NULL)
	{
		Token	   *token = list;

		list = token->next;
		principal_leave(token->principal);
		explicit_bzero(token->secret, strlen(token->secret));
		free(token->secret);
		free(token);
	}
}

/*
 * The principal of this token in a database before the reload, if the parameters are the same;
 * or NULL.
 */
static Principal *
principal_before(const char *secret, const WebDatabase *database, const char *conninfo)
{
	for (Token *token = tokens; token != NULL; token = token->next)
		if (token->principal->database == database && strcmp(token->secret, secret) == 0 &&
			strcmp(token->principal->conninfo, conninfo) == 0)
			return token->principal;
	return NULL;
}

/*
 * End the requests of removed tokens.
 */
static void
tokens_end(const Token *list, const Token *successors)
{
	for (; list != NULL; list = list->next)
	{
		const Token *token = successors;

		while (token != NULL && token->principal != list->principal)
			token = token->next;
		if (token == NULL)
			requests_without_token(list->principal);
	}
}

/*
 * Add a token for a database to the list.  If the list has the token, print an error and return
 * false.
 */
static bool
token_add(Token **list, const char *secret, WebDatabase *database, const char *role, const char *conninfo, int number)
{
	Token	   *token;

	for (token = *list; token != NULL; token = token->next)
		if (strcmp(token->secret, secret) == 0 && token->principal->database == database)
		{
			error("%s, line %d: the token was there before", web.token_file, number);
			return false;
		}
	token = allocate(sizeof(Token));
	token->secret = copy_text(secret);
	token->principal = principal_before(secret, database, conninfo);
	if (token->principal == NULL)
		token->principal = principal_make(database, role, NULL, conninfo);
	principal_use(token->principal);
	token->next = *list;
	*list = token;
	return true;
}

/*
 * Parse the parameters behind a token, and add the token.  If they are invalid, print an error
 * and return false.
 */
static bool
token_parameters(const char *secret, const char *conninfo, int number, Token **list)
{
	char	   *why = NULL;
	PQconninfoOption *options = PQconninfoParse(conninfo, &why);
	const char *role = NULL;
	const char *label = NULL;
	bool		good = false;

	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
	{
		if (strcmp(option->keyword, "user") == 0)
			role = option->val;
		else if (strcmp(option->keyword, "dbname") == 0 && nweb_databases > 1)
			label = option->val;
	}
	if (role == NULL || role[0] == '\0')
		error("%s, line %d: %s", web.token_file, number, why != NULL ? why : "there is no user=ROLE behind the token");
	else if (strlen(role) > MOST_OF_ROLE)
		error("%s, line %d: a role's name has no more than %d bytes", web.token_file, number, MOST_OF_ROLE);
	else if (label != NULL && web_database_of(label) == NULL)
	{
		error("%s, line %d: there is no database \"%s\" here", web.token_file, number, label);
		hint("GET /api/databases lists the names.");
	}
	else
	{
		good = true;
		for (int i = 0; good && i < nweb_databases; i++)
			if (label == NULL || strcmp(web_databases[i].label, label) == 0)
				good = token_add(list, secret, &web_databases[i], role, conninfo, number);
	}
	PQfreemem(why);
	PQconninfoFree(options);
	return good;
}

/*
 * Parse a line.  If it is invalid, print an error and return false.
 */
static bool
token_line(char *line, int number, Token **list)
{
	char	   *secret = line + strspn(line, " \t");
	size_t		length = strcspn(secret, " \t\r\n");
	char	   *conninfo = secret + length;

	if (length == 0 || *secret == '#')
		return true;
	if (*conninfo != '\0')
		*conninfo++ = '\0';
	conninfo += strspn(conninfo, " \t");
	conninfo[strcspn(conninfo, "\r\n")] = '\0';
	if (length < SHORTEST_TOKEN)
	{
		error("%s, line %d: the token has fewer than %d characters", web.token_file, number, SHORTEST_TOKEN);
		return false;
	}
	return token_parameters(secret, conninfo, number, list);
}

/*
 * Read the file.  At startup an error ends the program; later the old tokens stay valid.
 */
void
tokens_read(bool first)
{
	char		line[4096];
	struct stat status;
	Token	   *list = NULL;
	int			number = 0;
	bool		good = true;
	FILE	   *file;

	if (web.token_file == NULL)
		return;
	file = fopen(web.token_file, "re");
	if (file == NULL || fstat(fileno(file), &status) != 0)
	{
		error("could not read \"%s\": %s", web.token_file, strerror(errno));
		good = false;
	}
	else if (!S_ISREG(status.st_mode) || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
	{
		error("\"%s\" must be a file that nobody else can read or write", web.token_file);
		hint("Say chmod 600 '%s'.", web.token_file);
		good = false;
	}
	while (good && fgets(line, sizeof(line), file) != NULL)
	{
		number++;
		if (strlen(line) == sizeof(line) - 1)
		{
			error("%s, line %d is too long", web.token_file, number);
			good = false;
		}
		else
			good = token_line(line, number, &list);
	}
	explicit_bzero(line, sizeof(line));
	if (file != NULL)
		fclose(file);
	if (!good && first)
		exit(EXIT_USAGE);
	if (!good)
	{
		say("the tokens stay as they were");
		tokens_free(list);
		return;
	}
	tokens_end(tokens, list);
	tokens_free(tokens);
	tokens = list;
}

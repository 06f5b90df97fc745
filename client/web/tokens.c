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

static bool token_line(char *line, int number, Token **list);
static void tokens_free(Token *list);

Principal *
token_find(const char *secret)
{
	Principal  *found = NULL;

	/* compare all tokens: the time must reveal nothing */
	for (Token *token = tokens; token != NULL; token = token->next)
		if (secret_equal(token->secret, secret))
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
 * The principal of this token before the reload, if the parameters are the same; or NULL.
 */
static Principal *
principal_before(const char *secret, const char *conninfo)
{
	for (Token *token = tokens; token != NULL; token = token->next)
		if (strcmp(token->secret, secret) == 0 && strcmp(token->principal->conninfo, conninfo) == 0)
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
 * Parse a line.  If it is invalid, print an error and return false.
 */
static bool
token_line(char *line, int number, Token **list)
{
	char	   *secret = line + strspn(line, " \t");
	size_t		length = strcspn(secret, " \t\r\n");
	char	   *conninfo = secret + length;
	char	   *why = NULL;
	PQconninfoOption *options;
	const char *role = NULL;
	bool		good;
	Token	   *token;

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
	for (token = *list; token != NULL; token = token->next)
		if (strcmp(token->secret, secret) == 0)
		{
			error("%s, line %d: the token was there before", web.token_file, number);
			return false;
		}
	options = PQconninfoParse(conninfo, &why);
	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
		if (strcmp(option->keyword, "user") == 0)
			role = option->val;
	good = role != NULL && role[0] != '\0' && strlen(role) <= MOST_OF_ROLE;
	if (role != NULL && strlen(role) > MOST_OF_ROLE)
		error("%s, line %d: a role's name has no more than %d bytes", web.token_file, number, MOST_OF_ROLE);
	else if (!good)
		error("%s, line %d: %s", web.token_file, number, why != NULL ? why : "there is no user=ROLE behind the token");
	else
	{
		token = allocate(sizeof(Token));
		token->secret = copy_text(secret);
		token->principal = principal_before(secret, conninfo);
		if (token->principal == NULL)
			token->principal = principal_make(role, NULL, conninfo);
		principal_use(token->principal);
		token->next = *list;
		*list = token;
	}
	PQfreemem(why);
	PQconninfoFree(options);
	return good;
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

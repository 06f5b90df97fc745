/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The options common to all commands.
 *
 * client/link/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Settings	settings;

/*
 * Process an option common to all commands.  False for an unknown option.  "letter" is
 * the short form; 'j' and 'c' stand for --json and --color.
 */
bool
common_option(int letter, const char *argument)
{
	switch (letter)
	{
		case 'd':
			if (settings.ndatabases == MAX_DATABASES)
				fatal(EXIT_USAGE, "there are more than %d databases", MAX_DATABASES);
			settings.databases[settings.ndatabases++] = argument;
			settings.dbname = argument;
			return true;
		case 'h':
			settings.host = argument;
			return true;
		case 'p':
			settings.port = argument;
			return true;
		case 'U':
			settings.user = argument;
			return true;
		case 'w':
			settings.never_prompt = true;
			return true;
		case 'j':
			settings.json = true;
			return true;
		case 'c':
			if (strcmp(argument, "always") == 0)
				settings.colour = true;
			else if (strcmp(argument, "never") == 0)
				settings.colour = false;
			else if (strcmp(argument, "auto") != 0)
				fatal(EXIT_USAGE, "invalid value for --color: \"%s\" (always, never or auto)", argument);
			return true;
		case 'V':
			printf("jobq %s\n", JOBQ_VERSION);
			exit(EXIT_DONE);
		default:
			return false;
	}
}

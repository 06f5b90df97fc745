/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The options of the command web.
 *
 * client/web/options.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LONGEST_TIMEOUT	1000000 /* statement timeout, in seconds */

WebOptions	web;

/*
 * Read the options.  An invalid value ends the program.
 */
void
web_options(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	static char address[512];
	char	   *colon;
	int			n = 0;
	const char *given;

	command_parse(command, argc, argv, values);
	given = values[n++];
	snprintf(address, sizeof(address), "%s", given != NULL ? given : "127.0.0.1:8047");
	colon = strrchr(address, ':');
	if (colon == NULL || colon == address)
		fatal(EXIT_USAGE, "invalid value for --listen: \"%s\" (ADDRESS:PORT)", address);
	*colon = '\0';
	web.port = colon + 1;
	whole_number(web.port, "the port of --listen", 0, 65535);
	web.host = address;
	if (address[0] == '[' && colon[-1] == ']')
	{
		colon[-1] = '\0';
		web.host = address + 1;
	}
	web.cert_file = values[n++];
	web.key_file = values[n++];
	web.insecure = values[n++] != NULL;
	web.token_file = values[n++];
	web.read_only = values[n++] != NULL;
	web.hide_payload = values[n++];
	if (web.hide_payload != NULL && web.hide_payload[0] == '\0')
		fatal(EXIT_USAGE, "--hide-payload lacks its value: all, or names of roles with commas");
	for (const char *name = web.hide_payload; name != NULL; name = strchr(name, ',') ? strchr(name, ',') + 1 : NULL)
		if (strcspn(name, ",") > MOST_OF_ROLE)
			fatal(EXIT_USAGE, "invalid value for --hide-payload: a role's name has no more than %d bytes", MOST_OF_ROLE);
	web.allow_trust = values[n++] != NULL;
	given = values[n++];
	web.connections = given != NULL ? whole_number(given, "--connections", 1, 100) : 4;
	given = values[n++];
	web.clients = given != NULL ? whole_number(given, "--max-clients", 1, 100000) : 4000;
	given = values[n++];
	web.timeout = (given != NULL ? fmin(fmax(duration(given, "--timeout"), 0.001), LONGEST_TIMEOUT) : 15) * 1000;
	given = values[n++];
	web.max_body = given != NULL ? whole_number(given, "--max-body", 1, 1000000000) : 1000000;
	if ((web.cert_file == NULL) != (web.key_file == NULL))
		fatal(EXIT_USAGE, "--tls-cert and --tls-key belong together");
	web.tls = web.cert_file != NULL;
	if (web.tls && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
		fatal(EXIT_USAGE, "libmicrohttpd was built without TLS");
}

/*-------------------------------------------------------------------------
 *
 * url.c
 *	  The address of a broker: amqp://user:password@host:port/vhost.
 *
 * A password must not stay in the list of processes or reach a log.  The URL may come
 * from a file, and the password from the environment.  The URL on the command line is
 * overwritten.
 *
 * client/broker/url.c
 *
 *-------------------------------------------------------------------------
 */
#include "broker/broker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Return a copy of a part of the URL, with %XX decoded; NULL if that is invalid.
 */
static char *
decoded(const char *text, size_t length)
{
	char	   *copy = allocate(length + 1);
	size_t		n = 0;

	for (size_t i = 0; i < length; i++)
	{
		char		digits[3] = {0};
		char	   *end;

		copy[n] = text[i];

		if (text[i] == '%')
		{
			memcpy(digits, text + i + 1, length - i - 1 < 2 ? length - i - 1 : 2);
			copy[n] = (char) strtol(digits, &end, 16);
			if (strspn(digits, "0123456789abcdefABCDEF") != 2 || copy[n] == '\0')
			{
				free(copy);
				return NULL;
			}
			i += 2;
		}
		n++;
	}
	copy[n] = '\0';
	return copy;
}

/*
 * Read the parts of the URL.  Returns NULL, or what is wrong.  The result contains no
 * part of the URL.
 */
const char *
broker_read_address(char *url, BrokerAddress *address)
{
	const char *at;
	const char *end;
	const char *colon;
	const char *password = getenv("JOBQ_AMQP_PASSWORD");

	memset(address, 0, sizeof(BrokerAddress));
	address->tls = strncmp(url, "amqps://", 8) == 0;
	if (!address->tls && strncmp(url, "amqp://", 7) != 0)
		return "the address begins with neither amqp:// nor amqps://";
	url += address->tls ? 8 : 7;
	address->port = address->tls ? 5671 : 5672;

	/* the last @ ends the password, in case of a password that is not encoded */
	end = url + strcspn(url, "/?#");
	at = memrchr(url, '@', end - url);
	if (at != NULL)
	{
		colon = memchr(url, ':', at - url);
		address->user = decoded(url, (colon != NULL ? colon : at) - url);
		if (colon != NULL)
			address->password = decoded(colon + 1, at - colon - 1);
		if (address->user == NULL || (colon != NULL && address->password == NULL))
			return "user or password has an invalid %";
		url = (char *) at + 1;
	}
	if (address->user == NULL)
		address->user = copy_text("guest");
	if (password != NULL)
	{
		free(address->password);
		address->password = copy_text(password);
	}
	if (address->password == NULL)
		address->password = copy_text("guest");

	if (*url == '[')
	{
		const char *bracket = memchr(url, ']', end - url);

		if (bracket == NULL)
			return "the bracket of the host is not closed";
		address->host = decoded(url + 1, bracket - url - 1);
		colon = bracket + 1;
	}
	else
	{
		colon = memchr(url, ':', end - url);
		if (colon == NULL)
			colon = end;
		address->host = decoded(url, colon - url);
	}
	if (address->host == NULL || address->host[0] == '\0')
		return "the host is missing";
	if (colon < end)
	{
		char	   *rest;

		address->port = (int) strtol(colon + 1, &rest, 10);
		if (*colon != ':' || rest != end || address->port < 1 || address->port > 65535)
			return "the port is not a number from 1 to 65535";
	}
	if (*end == '?' || *end == '#')
		return "there are no parameters behind the virtual host";
	address->vhost = *end == '\0' || end[1] == '\0' ? copy_text("/") : decoded(end + 1, strlen(end + 1));
	if (address->vhost == NULL || strpbrk(end + (*end != '\0'), "?#") != NULL)
		return "the virtual host is invalid";
	return NULL;
}

/*
 * Return the URL given for an option: the argument, or the first line of the file in
 * "@FILE".  The argument is overwritten.
 */
char *
broker_url(char *argument, const char *option)
{
	char	   *url = NULL;
	size_t		size = 0;
	FILE	   *file;

	if (argument[0] != '@')
	{
		url = copy_text(argument);
		memset(argument, 'x', strlen(argument));
		return url;
	}
	file = fopen(argument + 1, "r");
	if (file == NULL || getline(&url, &size, file) < 0)
		fatal(EXIT_USAGE, "could not read the address for %s from \"%s\"", option, argument + 1);
	fclose(file);
	url[strcspn(url, " \t\r\n")] = '\0';
	return url;
}

/*-------------------------------------------------------------------------
 *
 * main.c
 *	  The program jobq: common options, and the choice of the command.
 *
 * client/main/main.c
 *
 *-------------------------------------------------------------------------
 */
#include "main/main.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
help(void)
{
	printf("jobq looks after the jobs of the PostgreSQL extension jobq, and runs jobs of consumer queues.\n\n"
		   "Usage:\n  jobq [CONNECTION] COMMAND [ARGUMENT]... [OPTION]...\n\n"
		   "Commands:\n");
	for (const Command *command = commands; command->name != NULL; command++)
	{
		char		usage[80];

		snprintf(usage, sizeof(usage), "%s %s", command->name, command->arguments);
		printf("  %-28s %s\n", usage, command->summary);
	}
	printf("\nConnection and output, before or behind the command:\n"
		   "  -d, --dbname=DBNAME          database, or a connection string; some commands take\n"
		   "                               several databases: -d A -d B\n"
		   "  -h, --host=HOSTNAME          server, or the folder of its socket\n"
		   "  -p, --port=PORT              its port\n"
		   "  -U, --username=USERNAME      role\n"
		   "  -w, --no-password            never ask for a password\n"
		   "      --json                   what is listed as JSON\n"
		   "      --color=WHEN             always, never, or auto: on a terminal\n"
		   "  -?, --help                   this help; behind a command: its options\n"
		   "  -V, --version                the program's version\n\n"
		   "The environment (PGHOST, PGSERVICE, ...), service files and .pgpass count as for psql.\n"
		   "The exit status is 0 if all went well, 1 if the server has refused, 2 if the\n"
		   "usage is wrong, 3 without a connection; \"man jobq\" tells more.\n");
}

/*
 * Find the position of the command's name.  Only connection options may precede it.
 */
static int
command_of(int argc, char **argv)
{
	int			i = 1;

	while (i < argc && argv[i][0] == '-')
	{
		const char *word = argv[i];

		if (strcmp(word, "-?") == 0 || strcmp(word, "--help") == 0)
		{
			help();
			exit(EXIT_DONE);
		}
		/* options with a separate argument: "-d NAME", "--dbname NAME" */
		if ((word[1] != '-' && strchr("dhpU", word[1]) != NULL && word[1] != '\0' && word[2] == '\0') ||
			strcmp(word, "--dbname") == 0 || strcmp(word, "--host") == 0 ||
			strcmp(word, "--port") == 0 || strcmp(word, "--username") == 0 ||
			strcmp(word, "--color") == 0)
			i++;
		i++;
	}
	return i;
}

/*
 * At exit: if output is incomplete, print an error and end with EXIT_REFUSED.  If the
 * reader has closed the pipe, as head does, print nothing.
 */
static void
check_output(void)
{
	struct pollfd out = {.fd = STDOUT_FILENO,.events = POLLOUT};
	bool		flushed;

	errno = 0;
	flushed = fflush(stdout) == 0;
	if (flushed && !ferror(stdout))
		return;
	say_into(NULL, 0);
	if (poll(&out, 1, 0) <= 0 || (out.revents & POLLERR) == 0)
		error("could not write all output: %s", flushed ? "a part is missing" : strerror(errno));
	_exit(EXIT_REFUSED);
}

int
main(int argc, char **argv)
{
	const Command *command;
	char	   *name;
	int			at;

	atexit(check_output);
	setlocale(LC_CTYPE, "");
	signal(SIGPIPE, SIG_IGN);
	settings.colour = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL;

	at = command_of(argc, argv);
	if (at >= argc)
	{
		/* --version may stand alone */
		for (int i = 1; i < argc; i++)
			if (strcmp(argv[i], "-V") == 0 || strcmp(argv[i], "--version") == 0)
				common_option('V', NULL);
		error("no command is given");
		hint("Try \"jobq --help\".");
		return EXIT_USAGE;
	}
	if (strcmp(argv[at], "help") == 0)
	{
		const Command *about = at + 1 < argc ? command_find(argv[at + 1]) : NULL;

		if (at + 1 < argc && about == NULL)
		{
			error("there is no command \"%s\"", argv[at + 1]);
			hint("Try \"jobq --help\".");
			return EXIT_USAGE;
		}
		if (about != NULL)
			command_help(about);
		else
			help();
		return EXIT_DONE;
	}
	command = command_find(argv[at]);
	if (command == NULL)
	{
		error("there is no command \"%s\"", argv[at]);
		hint("Try \"jobq --help\".");
		return EXIT_USAGE;
	}

	/* the arguments of the command: its name, then all other arguments */
	name = argv[at];
	for (int i = at; i > 1; i--)
		argv[i] = argv[i - 1];
	argv[1] = name;
	return command->run != NULL ? command->run(command, argc - 1, argv + 1)
		: command_run(command, argc - 1, argv + 1);
}

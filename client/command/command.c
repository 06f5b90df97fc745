/*-------------------------------------------------------------------------
 *
 * command.c
 *	  Parse the arguments of a command, and run commands with a single
 *	  statement.
 *
 * client/command/command.c
 *
 *-------------------------------------------------------------------------
 */
#include "command/command.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_OPTION	1000	/* getopt_long() value of a command's first
								 * option */
#define NAME_SIZE	64
#define NUMBER_MARK	'\001'		/* marks a negative number while options are
								 * parsed */

/*
 * Write an option as typed: --max-attempts for max_attempts in SQL.
 */
static void
option_name(char *name, const CommandOption *option)
{
	snprintf(name, NAME_SIZE, "%s", option->name);
	for (char *c = name; *c != '\0'; c++)
		if (*c == '_')
			*c = '-';
}

/*
 * True for a boolean option: --open means --open=true.
 */
static bool
is_boolean(const CommandOption *option)
{
	return option->argument != NULL && strcmp(option->argument, "boolean") == 0;
}

static bool
is_json(const CommandOption *option)
{
	return option->argument != NULL && (strcmp(option->argument, "JSON") == 0 || strcmp(option->argument, "jsonb") == 0);
}

/*
 * Return the letter of an option, or 0.  The lists of options that come from SQL have no letters.
 */
static char
letter_of(const CommandOption *option)
{
	if (option->letter != 0)
		return option->letter;
	return strcmp(option->name, "queue") == 0 ? 'q' : strcmp(option->name, "kind") == 0 ? 'k' : 0;
}

/*
 * True if the last argument is a payload.
 */
static bool
has_payload(const Command *command)
{
	return strstr(command->arguments, "[PAYLOAD]") != NULL;
}

void
command_help(const Command *command)
{
	bool		json = has_payload(command);

	printf("jobq %s: %s\n\nUsage:\n  jobq %s [OPTION]...%s%s\n", command->name, command->summary,
		   command->name, command->arguments[0] != '\0' ? " " : "", command->arguments);
	if (command->options[0].name != NULL)
		printf("\nOptions:\n");
	for (const CommandOption *option = command->options;
		 option < command->options + MAX_OPTIONS && option->name != NULL; option++)
	{
		char		name[NAME_SIZE];
		char		usage[2 * NAME_SIZE];
		const char *argument = is_boolean(option) ? NULL : option->argument;
		char		letter = letter_of(option);
		bool		is_array = argument != NULL && argument[0] == '_';

		option_name(name, option);
		snprintf(usage, sizeof(usage), "%c%c%c --%s%s%s%s", letter ? '-' : ' ',
				 letter ? letter : ' ', letter ? ',' : ' ', name,
				 argument != NULL ? "=" : "", argument != NULL ? argument + is_array : "",
				 is_array ? "[]" : "");
		printf("  %-30s %s\n", usage, option->help);
		json = json || is_json(option);
	}
	if (json)
		printf("\nJSON can be given as @FILE, or as - for the standard input.\n");
	printf("\nConnection, --json and --color as in \"jobq --help\"%s.\n",
		   command->merges ? "; -d may be repeated, for several databases" : "");
}

/*
 * Exit unless the help of the option lists the value, as in "red, green or
 * blue".
 */
static void
check_listed(const CommandOption *option, const char *value)
{
	size_t		length = strlen(value);

	if (length > 0 && strcspn(value, ", ") == length && strcmp(value, "or") != 0)
		for (const char *at = option->help; (at = strstr(at, value)) != NULL; at += length)
			if ((at == option->help || at[-1] == ' ') && strchr(", ", at[length]) != NULL)
				return;
	error("invalid value for --%s: \"%s\"", option->name, value);
	hint("It is one of %s.", option->help);
	exit(EXIT_USAGE);
}

/*
 * Return the JSON given by a value: "-" is the standard input, and "@FILE" the contents of the file.  No
 * JSON begins with "@".  An empty input is an error: otherwise a program that failed before a pipe would
 * enqueue a job.
 */
static const char *
json_given(const char *value)
{
	bool		is_input = strcmp(value, "-") == 0;
	const char *name = is_input ? "standard input" : value + 1;
	PQExpBufferData text;
	FILE	   *file;
	char		part[8192];
	size_t		length;

	if (!is_input && value[0] != '@')
		return value;
	file = is_input ? stdin : fopen(name, "r");
	if (file == NULL)
		fatal(EXIT_REFUSED, "could not open \"%s\": %s", name, strerror(errno));
	initPQExpBuffer(&text);
	while ((length = fread(part, 1, sizeof(part), file)) > 0)
		appendBinaryPQExpBuffer(&text, part, length);
	if (ferror(file))
		fatal(EXIT_REFUSED, "could not read \"%s\": %s", name, strerror(errno));
	if (!is_input)
		fclose(file);
	if (PQExpBufferDataBroken(text))
		fatal(EXIT_REFUSED, "out of memory");
	if (strspn(text.data, " \t\r\n") == text.len)
		fatal(EXIT_REFUSED, "there is no JSON in \"%s\", which is empty", name);
	if (strlen(text.data) != text.len)
		fatal(EXIT_REFUSED, "\"%s\" contains a null byte", name);
	return text.data;
}

/*
 * Parse the arguments and options of a command, and the common options.  The
 * values have the order of the statement's parameters: first the arguments, then
 * the options.  There are max_arguments arguments, or a single array if the
 * command takes "many".  Returns the number of values.
 */
int
command_parse(const Command *command, int argc, char **argv, const char **values)
{
	static const struct option common[] = {
		{"dbname", required_argument, NULL, 'd'}, {"host", required_argument, NULL, 'h'},
		{"port", required_argument, NULL, 'p'}, {"username", required_argument, NULL, 'U'},
		{"no-password", no_argument, NULL, 'w'}, {"json", no_argument, NULL, 'j'},
		{"color", required_argument, NULL, 'c'}, {"help", no_argument, NULL, '?'},
		{"version", no_argument, NULL, 'V'}
	};
	struct option words[MAX_OPTIONS + sizeof(common) / sizeof(common[0]) + 1] = {0};
	char		names[MAX_OPTIONS][NAME_SIZE];
	char		letters[3 * MAX_OPTIONS] = "d:h:p:U:wV?";
	int			first = command->many ? 1 : command->max_arguments;
	int			n = 0;
	int			nwords;
	int			found;

	for (; n < MAX_OPTIONS && command->options[n].name != NULL; n++)
	{
		const CommandOption *option = &command->options[n];

		option_name(names[n], option);
		words[n] = (struct option)
		{
			names[n], option->argument == NULL ? no_argument
				: is_boolean(option) ? optional_argument : required_argument, NULL, FIRST_OPTION + n
		};
		if (letter_of(option))
		{
			size_t		end = strlen(letters);

			snprintf(letters + end, sizeof(letters) - end, "%c%s", letter_of(option), option->argument != NULL ? ":" : "");
		}
		values[first + n] = NULL;
	}
	memcpy(words + n, common, sizeof(common));

	/* a negative number is an argument, unless it follows an option */
	for (int i = 1; i < argc; i++)
		if (argv[i][0] == '-' && isdigit((unsigned char) argv[i][1]) && argv[i - 1][0] != '-')
		{
			char	   *word = allocate(strlen(argv[i]) + 2);

			word[0] = NUMBER_MARK;
			strcpy(word + 1, argv[i]);
			argv[i] = word;
		}

	optind = 1;
	opterr = 0;
	while ((found = getopt_long(argc, argv, letters, words, NULL)) != -1)
	{
		int			which = found - FIRST_OPTION;

		/* getopt also returns a question mark for an error */
		if (found == '?' && (strcmp(argv[optind - 1], "-?") == 0 || strcmp(argv[optind - 1], "--help") == 0))
		{
			command_help(command);
			exit(EXIT_DONE);
		}
		for (int i = 0; i < n; i++)
			if (letter_of(&command->options[i]) && found == letter_of(&command->options[i]))
				which = i;
		if (which >= 0 && which < n)
			values[first + which] = optarg == NULL ? "true" : is_json(&command->options[which]) ? json_given(optarg) : optarg;
		else if (found == '?' || !common_option(found, optarg))
		{
			error("invalid option, or one without its value: \"%s\"", argv[optind - 1]);
			hint("Try \"jobq %s --help\".", command->name);
			exit(EXIT_USAGE);
		}
	}

	if (settings.ndatabases > 1 && !command->merges)
	{
		error("\"jobq %s\" takes a single database, and --dbname is given %d times", command->name, settings.ndatabases);
		hint("The commands that take several say so in their help, such as \"jobq help queues\".");
		exit(EXIT_USAGE);
	}
	for (int i = 0; i < n; i++)
		if (command->options[i].listed && values[first + i] != NULL)
			check_listed(&command->options[i], values[first + i]);
	for (int i = optind; i < argc; i++)
		if (argv[i][0] == NUMBER_MARK)
			argv[i]++;
	nwords = argc - optind;
	if (nwords < command->min_arguments || nwords > command->max_arguments)
	{
		if (nwords < command->min_arguments)
			error("\"jobq %s\" lacks an argument: %s", command->name, command->arguments);
		else if (command->max_arguments == 0)
			error("\"jobq %s\" has no arguments, only options: \"%s\"", command->name, argv[optind]);
		else
			error("\"jobq %s\" has too many arguments: \"%s\" (it is: %s)", command->name,
				  argv[optind + command->max_arguments], command->arguments);
		hint("Try \"jobq %s --help\".", command->name);
		exit(EXIT_USAGE);
	}
	if (command->many)
		values[0] = array_of(nwords, (const char *const *) argv + optind);
	else
		for (int i = 0; i < first; i++)
			values[i] = i >= nwords ? NULL
				: has_payload(command) && i == first - 1 ? json_given(argv[optind + i]) : argv[optind + i];
	return first + n;
}

/*
 * Run a command with a single statement.
 */
int
command_run(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	int			n = command_parse(command, argc, argv, values);

	return statement_run(command, command->sql, n, values);
}

/*
 * Run a statement and print the result in the format of the command.  Returns
 * the exit status.
 */
int
statement_run(const Command *command, const char *sql, int n, const char *const *values)
{
	int			status = EXIT_DONE;
	bool		json = settings.json && command->output != OUTPUT_NOTHING;
	PGresult   *result = query_databases(sql, json, n, values, &status);

	if (command->output == OUTPUT_NOTHING)
		;
	else if (json && command->output != OUTPUT_RECORD)
		print_json_rows(result);
	else if (json || command->output == OUTPUT_VALUE)
		for (int row = 0; row < PQntuples(result); row++)
		{
			print_json(PQgetvalue(result, row, PQnfields(result) - 1));
			putchar('\n');
		}
	else if (command->output == OUTPUT_RECORD)
		print_record(result);
	else
		print_result(result);
	n = PQntuples(result);
	PQclear(result);
	if (n == 0 && command->output == OUTPUT_RECORD)
	{
		error("job %s does not exist, or is another role's", values[0]);
		return EXIT_REFUSED;
	}
	return status;
}

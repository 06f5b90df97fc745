/*-------------------------------------------------------------------------
 *
 * command.h
 *	  Interface of the folder command: the arguments of a command, and the commands that
 *	  ask the server once.
 *
 * A Command describes a command of the program.  The table of all commands is in
 * client/main/commands.c.  Functions that run a command return the exit status.  An error
 * in the arguments ends the program with EXIT_USAGE.
 *
 * client/command/command.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COMMAND_H
#define JOBQ_COMMAND_H

#include "link/link.h"

typedef struct CommandOption
{
	const char *name;
	char		letter;			/* or 0 */
	const char *argument;		/* name in the help; NULL: no argument */
	const char *help;
	bool		listed;			/* the help lists all valid values */
} CommandOption;

#define MAX_OPTIONS	32
#define MAX_VALUES	(MAX_OPTIONS + 4)

typedef enum CommandOutput
{
	OUTPUT_TABLE,
	OUTPUT_RECORD,				/* one row, a line for each column */
	OUTPUT_VALUE,				/* the first column, a line for each row */
	OUTPUT_NOTHING,
} CommandOutput;

/*
 * A command is a statement ("sql") or a function ("run").  The parameters of
 * the statement are the positional arguments, then the options, in order.  If
 * "many", the last argument is an array.  A missing option is NULL, and an
 * option without an argument is "true".
 */
typedef struct Command
{
	const char *name;
	const char *arguments;		/* as in the help */
	int			min_arguments;
	int			max_arguments;
	bool		many;			/* the last argument may be repeated */
	bool		merges;			/* takes several databases */
	const char *summary;
	CommandOutput output;
	const char *sql;
	int			(*run) (const struct Command *command, int argc, char **argv);
	CommandOption options[MAX_OPTIONS];
} Command;

/* client/command/command.c */
extern int	command_parse(const Command *command, int argc, char **argv,
						  const char **values);
extern int	command_run(const Command *command, int argc, char **argv);
extern int	statement_run(const Command *command, const char *sql, int n,
						  const char *const *values);
extern void command_help(const Command *command);

/* client/command/special.c */
extern int	run_call(const Command *command, int argc, char **argv);
extern int	run_many(const Command *command, int argc, char **argv);
extern int	run_prune(const Command *command, int argc, char **argv);
extern int	run_failures(const Command *command, int argc, char **argv);
extern int	run_doctor(const Command *command, int argc, char **argv);
extern int	outcome_status(const char *state);
extern int	run_wait(const Command *command, int argc, char **argv);
extern int	run_drain(const Command *command, int argc, char **argv);
extern int	run_workflow(const Command *command, int argc, char **argv);
extern int	run_check(const Command *command, int argc, char **argv);

/* client/command/metrics.c */
extern int	run_metrics(const Command *command, int argc, char **argv);

/* client/command/follow.c */
extern int	run_tail(const Command *command, int argc, char **argv);

#endif							/* JOBQ_COMMAND_H */

/*-------------------------------------------------------------------------
 *
 * jobq.h
 *	  Declarations shared by the files of the program jobq.
 *
 * The program manages jobs from outside the server, and runs jobs of consumer
 * queues.  Each command calls SQL that the manual names, through libpq.  All
 * rules are in the server, so program and server may have different versions.
 * The privileges of the program are the privileges of its role.
 *
 * The files, the lowest first:
 *
 *	message.c	messages on standard error; memory
 *	connect.c	connections, and single statements
 *	output.c	results as tables, as a record, as JSON
 *	hosts.c		the order of several servers for a connection
 *	link.c		a non-blocking connection that reconnects
 *	job.c		the jobs held by "work"
 *	child.c		one job as a process
 *	note.c		standard error of a process, for its job's log
 *	webhook.c	standards for requests of jobs
 *	http.c		one job as a request over HTTP
 *	settle.c	reports outcomes of jobs to the server
 *	work.c		the command work
 *	follow.c	the command tail
 *	top_data.c	the live screen: its tables
 *	top_draw.c	the live screen: its layout
 *	top.c		the command top
 *	special.c	commands beyond a single statement
 *	web.c		the command web; web.h lists its files
 *	commands.c	the table of all commands
 *	command.c	parses the arguments of a command, and runs single
 *				statements
 *	main.c		common options, and the choice of the command
 *
 * client/jobq.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CLIENT_H
#define JOBQ_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <libpq-fe.h>

/* pqexpbuffer.h needs this macro of the server headers */
#ifndef pg_attribute_printf
#define pg_attribute_printf(format_at, arguments_at) \
	__attribute__((format(printf, format_at, arguments_at)))
#endif
#include <internal/pqexpbuffer.h>

/* Exit statuses, as in the manual page. */
#define EXIT_DONE			0
#define EXIT_REFUSED		1	/* refused by the server or the job */
#define EXIT_USAGE			2
#define EXIT_NO_CONNECTION	3
#define EXIT_JOB_DEAD		10
#define EXIT_JOB_CANCELLED	11
#define EXIT_JOB_EXPIRED	12

/* Options common to all commands. */
typedef struct Settings
{
	const char *dbname;			/* name or connection string; or NULL */
	const char *host;
	const char *port;
	const char *user;
	bool		never_prompt;
	bool		json;
	bool		colour;
} Settings;

extern Settings settings;

/* message.c */
extern void say(const char *format,...) __attribute__((format(printf, 1, 2)));
extern void error(const char *format,...) __attribute__((format(printf, 1, 2)));
extern void hint(const char *format,...) __attribute__((format(printf, 1, 2)));
extern void (*say_instead) (const char *line);
extern bool trouble_is_news(const char *trouble);
extern void fatal(int status, const char *format,...)
			__attribute__((format(printf, 2, 3), noreturn));
extern void *allocate(size_t size);
extern void *enlarge(void *old, size_t size);
extern char *copy_text(const char *text);
extern double seconds(void);
extern int64_t whole_number(const char *text, const char *what, int64_t min,
							int64_t max);
extern double duration(const char *text, const char *what);

/* connect.c */
#define CONNECTION_WORDS	16	/* including the final NULL */

extern void connection_words(const char **keywords, const char **values);
extern PGconn *connect_now(void);
extern PGresult *query(PGconn *conn, const char *sql, int n,
					   const char *const *values);
extern void say_result_error(const PGresult *result);
extern void hear_notices(PGconn *conn);
extern const char *sqlstate_of(const PGresult *result);
extern char *array_of(int n, const char *const *values);

/* output.c */
extern void print_result(const PGresult *result);
extern void print_record(const PGresult *result);
extern int	append_text(PQExpBuffer buffer, const char *text, int most);
extern char *harmless_text(const char *text, int most);
extern int	text_width(const char *text);
extern void print_text(const char *text);
extern void print_json(const char *json);
extern void print_state(const char *state);

/* commands.c */
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
	const char *summary;
	CommandOutput output;
	const char *sql;
	int			(*run) (const struct Command *command, int argc, char **argv);
	CommandOption options[MAX_OPTIONS];
} Command;

extern const Command commands[];

/* command.c */
extern const Command *command_find(const char *name);
extern int	command_parse(const Command *command, int argc, char **argv,
						  const char **values);
extern int	command_run(const Command *command, int argc, char **argv);
extern int	statement_run(const Command *command, const char *sql, int n,
						  const char *const *values);
extern void command_help(const Command *command);

/* main.c */
extern bool common_option(int letter, const char *argument);

/* special.c, follow.c, top.c, work.c, web.c */
extern int	run_call(const Command *command, int argc, char **argv);
extern int	run_many(const Command *command, int argc, char **argv);
extern int	run_doctor(const Command *command, int argc, char **argv);
extern int	outcome_status(const char *state);
extern int	run_wait(const Command *command, int argc, char **argv);
extern int	run_drain(const Command *command, int argc, char **argv);
extern int	run_workflow(const Command *command, int argc, char **argv);
extern int	run_monitor(const Command *command, int argc, char **argv);
extern int	run_tail(const Command *command, int argc, char **argv);
extern int	run_top(const Command *command, int argc, char **argv);
extern int	run_web(const Command *command, int argc, char **argv);
extern int	run_work(const Command *command, int argc, char **argv);

#endif							/* JOBQ_CLIENT_H */

/*-------------------------------------------------------------------------
 *
 * link.h
 *	  Interface of the folder link: messages, output, and connections to the server.
 *
 * The lowest folder of the program jobq.  The program manages jobs from outside the
 * server, and runs jobs of consumer queues.  Each command calls SQL that the manual names,
 * through libpq.  All rules are in the server, so program and server may have different
 * versions.  The privileges of the program are the privileges of its role.
 *
 * A command with a single statement blocks: connect_now(), then query().  A program that
 * must serve other events meanwhile uses a Link: a non-blocking connection that reconnects
 * after a loss.  Such a program waits for all events in poll().  A lost link reconnects
 * after a pause.  The pause grows from 0.1 to 10 seconds, until a connection has lasted for 10
 * seconds.  Each loss is printed once.
 *
 * Errors: functions that return no status print the error and end the program.  Functions
 * of a Link never end the program, except for the first connection.
 *
 * client/link/link.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LINK_H
#define JOBQ_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

#include <libpq-fe.h>

/* pqexpbuffer.h needs this macro of the server headers */
#ifndef pg_attribute_printf
#define pg_attribute_printf(format_at, arguments_at) \
	__attribute__((format(printf, format_at, arguments_at)))
#endif
#include <internal/pqexpbuffer.h>

#include "link/hosts.h"

/* Exit statuses, as in the manual page. */
#define EXIT_DONE			0
#define EXIT_REFUSED		1	/* refused by the server or the job */
#define EXIT_USAGE			2
#define EXIT_NO_CONNECTION	3
#define EXIT_JOB_DEAD		10
#define EXIT_JOB_CANCELLED	11
#define EXIT_JOB_EXPIRED	12

/* Options common to all commands. */
#define MAX_DATABASES	64

typedef struct Settings
{
	const char *dbname;			/* name or connection string; or NULL: the
								 * last given, or the one in use */
	const char *databases[MAX_DATABASES];	/* all that were given */
	int			ndatabases;
	const char *host;
	const char *port;
	const char *user;
	bool		never_prompt;
	bool		json;
	bool		colour;
} Settings;

/* client/link/settings.c */
extern Settings settings;
extern bool common_option(int letter, const char *argument);

/* client/link/text.c */
extern size_t take_character(const char *text, size_t left, wchar_t *character);
extern int	append_text(PQExpBuffer buffer, const char *text, int most);
extern int	text_width(const char *text);

/* client/link/message.c */
extern void say(const char *format,...) __attribute__((format(printf, 1, 2)));
extern void error(const char *format,...) __attribute__((format(printf, 1, 2)));
extern void hint(const char *format,...) __attribute__((format(printf, 1, 2)));
extern void say_into(char *line, size_t size);
extern void say_as_result(const char *head);
extern bool trouble_is_news(const char *trouble);
extern void fatal(int status, const char *format,...)
			__attribute__((format(printf, 2, 3), noreturn));
extern void *allocate(size_t size);
extern void *enlarge(void *old, size_t size);
extern char *copy_text(const char *text);
extern char *harmless_text(const char *text, int most);
extern double seconds(void);
extern int64_t whole_number(const char *text, const char *what, int64_t min,
							int64_t max);
extern double duration(const char *text, const char *what);

/* client/link/connect.c */
#define CONNECTION_WORDS	16	/* including the final NULL */

extern void connection_words(const char *dbname, const char **keywords, const char **values);
extern PGconn *try_connection(const char *dbname);
extern PGconn *connect_to(const char *dbname);
extern PGconn *connect_now(void);
extern PGresult *query(PGconn *conn, const char *sql, int n,
					   const char *const *values);
extern void say_result_error(const PGresult *result);
extern void hear_notices(PGconn *conn);
extern const char *sqlstate_of(const PGresult *result);
extern bool error_is_of(const PGresult *result, const char *file);
extern bool error_may_pass(const char *state);
extern char *array_of(int n, const char *const *values);

/* client/link/databases.c */
typedef struct Database
{
	const char *dbname;			/* as given */
	PGconn	   *conn;			/* or NULL: no connection */
	char	   *label;
} Database;

extern int	databases_open(Database *databases);
extern void append_rows(PGresult *all, const PGresult *result);
extern void label_databases(Database *databases, int n);
extern PGresult *query_databases(const char *sql, bool json, int n, const char *const *values,
								 int *status);

/* client/link/exposition.c: initially all zero */
typedef struct Family
{
	char	   *name;
	PQExpBufferData head;		/* lines that begin with "#" */
	PQExpBufferData samples;
} Family;

typedef struct Exposition
{
	Family	   *families;
	int			n;
} Exposition;

extern void exposition_add(Exposition *exposition, const char *text, const char *label);
extern void exposition_append(const Exposition *exposition, PQExpBuffer out);
extern void exposition_free(Exposition *exposition);

/* client/link/output.c */
extern void print_result(const PGresult *result);
extern void print_record(const PGresult *result);
extern void print_text(const char *text);
extern void print_line(int blanks, const char *text);
extern int	terminal_width(void);
extern void print_json(const char *json);
extern void print_json_rows(const PGresult *result);
extern void print_state(const char *state);

typedef enum LinkState
{
	LINK_DOWN,					/* to reconnect at retry_at */
	LINK_CONNECTING,
	LINK_IDLE,
	LINK_BUSY,					/* statement sent */
} LinkState;

/*
 * A connection that reconnects.
 *
 *	DOWN --retry_at--> CONNECTING --> IDLE --link_send()--> BUSY
 *	  ^					   |		   |  ^					  |
 *	  +------failed--------+			|  +------result-------+
 *	  +--------------lost---------------+					  |
 *	  +------lost: link_go_on() sets "lost"-------------------+
 *
 * The caller calls link_go_on() after an event of link_events(), and at link_due().  A lost
 * statement may have been committed, so the caller decides whether to repeat the statement.
 */
typedef struct Link
{
	const char *dbname;			/* as connect_to() */
	LinkState	state;
	PGconn	   *conn;
	PostgresPollingStatusType polling;
	PGresult   *result;			/* statement result so far */
	double		since;			/* start of the connection attempt at this
								 * address, or of the statement */
	double		patience;		/* timeout in seconds: of the connection
								 * attempt at this address, or of the
								 * statement without traffic */
	double		moved_at;		/* when data was last sent or received */
	bool		sending;		/* data is left to send */
	double		retry_at;		/* if DOWN */
	double		pause;			/* mean of the next pause */
	double		up_since;		/* when the connection was made */
	int			failures;		/* failed attempts in a row */
	bool		loss_was_said;
	Hosts		hosts;
	const char *host;			/* current host while connecting: see
								 * hosts_begun() */
} Link;

/* client/link/link.c */
extern void link_open(Link *link, const char *dbname);
extern void link_begin(Link *link, const char *dbname, PGconn *conn);
extern bool link_events(Link *link, int *fd, short *events);
extern double link_due(const Link *link);
extern PGresult *link_go_on(Link *link, bool *lost);
extern bool link_send(Link *link, double patience, const char *sql, int n, const char *const *values);
extern void link_cancel(Link *link);
extern void link_close(Link *link);

#endif							/* JOBQ_LINK_H */

/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations that the files of "jobq web" share.
 *
 * The server is one process with one thread.  The process waits in epoll for two kinds of
 * sockets: the callers' sockets, which libmicrohttpd watches in an epoll set of its own,
 * and connections to the database, which libpq drives without blocking.  A request that
 * needs the database is suspended until its statement is done.
 *
 * A Principal is a role in a database for which a caller has given the password or a token,
 * with a few connections of this role.  All statements for a caller run on these
 * connections.  The database server alone therefore decides what a caller may see and do.
 *
 * With several databases, the path of a request names the database: /db/NAME/api/jobs.  A
 * path without a name means the first database.  Databases share no connection, session or
 * principal, so that a database which does not answer delays its own requests only.
 *
 *	caller ---> Request ---> Session or token ---> Principal --+-- queue of Statements
 *				   |								   ^	   +-- Backends (connections)
 *				   +--- Statement, in the queue -------+	   +-- Follows (stream.h)
 *
 * A callback may end sessions, requests and connections.  A principal is freed with its last
 * user (principal_use()).  Code that calls a callback of a principal, and needs the principal
 * afterwards, is therefore a user meanwhile.  Watched objects are freed after the round of the
 * loop (loop_free()).
 *
 * Calls go down only, in this order of the files:
 *
 *	secret.c	secrets
 *	shown.c		the members shown to callers for whom payloads are hidden
 *	options.c	the options of the command
 *	loop.c		epoll, and memory that is freed between two rounds
 *	databases.c	the databases, their names and paths
 *	caller.c	connections of callers, and their eviction
 *	backend.c	connections of principals, which report to pool.c
 *	principal.c	principals
 *	connection.c	suspended requests, and requests without a session
 *	answer.c	answers: headers, problems
 *	tokens.c	the token file
 *	session.c	identity of the caller: cookies, CSRF
 *	pool.c		the queue of statements of a principal
 *	statement.c	the statement of a route: parameters and result
 *	attempt.c	limits on the attempts of strangers
 *	login.c		log-ins
 *	link.c		links that send signals
 *	listener.c	the connection that listens for changes of jobs
 *	events.c	Server-Sent Events to a caller
 *	stream.c	the jobs and topics that callers follow
 *	given.c		jobs handed to a consumer, or released undelivered
 *	gate.c		the statement with which consumers wait for jobs
 *	gateway.c	waiting consumers
 *	jobs.c		lists of jobs, and their export
 *	scrape.c	the metrics of several databases
 *	routes.c	the table of all routes
 *	request.c	a request from its first byte to its last
 *	web.c		the command
 *
 * client/web/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WEB_INNER_H
#define JOBQ_WEB_INNER_H

#include <microhttpd.h>

#include "web/web.h"

typedef struct Principal Principal;
typedef struct Session Session;
typedef struct Request Request;

#define SECRET_BYTES	32
#define SECRET_SIZE		(2 * SECRET_BYTES + 1)	/* in hexadecimal digits */

/* The options of the command. */
typedef struct WebOptions
{
	const char *host;			/* listen address */
	const char *port;
	const char *cert_file;
	const char *key_file;
	const char *token_file;
	const char *hide_payload;	/* all, or roles with commas; or NULL */
	bool		insecure;
	bool		allow_trust;
	bool		read_only;
	int			connections;	/* per role, without the waiting ones */
	int			clients;		/* most connections of callers */
	int			timeout;		/* statement timeout in milliseconds */
	size_t		max_body;
	bool		tls;
} WebOptions;

/* assets.inc, generated from client/console and openapi.json */
typedef struct Asset
{
	const char *name;
	const unsigned char *bytes;
	size_t		size;
	const char *version;		/* hash of the bytes */
} Asset;

extern const Asset assets[];

/* client/web/options.c */
extern WebOptions web;
extern void web_options(const Command *command, int argc, char **argv);

/* client/web/secret.c */
extern void secret_make(char *secret);
extern bool secret_equal(const char *a, const char *b);

/* client/web/loop.c: a file descriptor watched by epoll. */
typedef struct Watched
{
	void		(*ready) (void *owner, uint32_t events);
	void	   *owner;
	int			fd;				/* -1: not watched */
	uint32_t	events;
} Watched;

extern void loop_open(void);
extern void loop_watch(Watched *watched, int fd, uint32_t events);
extern void loop_forget(Watched *watched);
extern void loop_free(void *memory);
extern void loop_wait(double patience);
extern double web_now;			/* seconds() at the start of this round */

/* A channel with listening callers. */
typedef struct Channel
{
	struct Channel *next;
	int64_t		job;
	int			users;
	bool		listening;
	unsigned	changes;		/* of the job, since the first listener */
} Channel;

/* A database of the command line. */
typedef struct WebDatabase
{
	const char *dbname;			/* as connect_to() */
	char	   *label;			/* the name in paths, metrics and tokens */
	char	   *segment;		/* the label as a segment of a path */
	Hosts		hosts;			/* for principals without a connection string */
	/* listener.c */
	Link		listener;
	Watched		watched;
	Channel    *channels;
	struct Principal *own;		/* link.c: the program's own role; or NULL */
} WebDatabase;

/* client/web/databases.c */
extern WebDatabase web_databases[MAX_DATABASES];
extern int	nweb_databases;
extern void web_databases_open(void);
extern WebDatabase *web_database_of(const char *label);
extern bool percent_decode(const char *text, const char *end, char *byte);
extern const char *web_database_in(const char *path, WebDatabase **database);

/*
 * A statement for a principal.  The sender owns the memory, which must stay until "done" is
 * called or pool_withdraw() has removed the statement from the queue.  A running statement
 * cannot be withdrawn, but cancelled (backend_cancel()): "done" is still called.
 *
 * "done" is called once.  The argument is a result of any status, which backend.c clears; or
 * NULL, with the reason in "why".
 */
typedef struct Statement
{
	struct Statement *next;
	const char *sql;
	int			n;
	const char *const *values;	/* valid until "done" is called */
	void		(*done) (struct Statement *statement, PGresult *result, const char *why);
	void	   *owner;
	double		since;
	bool		waits;			/* runs on a connection reserved for waiting */
	struct Backend *backend;	/* the connection while running, or NULL */
} Statement;

/* What a connection reports to its owner. */
typedef struct BackendReports
{
	/* the server has accepted the role: the connection is idle */
	void		(*connected) (Principal *principal);
	/* the connection could not be made, and is closed; see pool_failed() */
	void		(*failed) (Principal *principal, const char *why, bool refused);

	/*
	 * The connection is idle or closed.  "statement" has ended, with a result
	 * or else with the reason in "why"; NULL if none was running.
	 */
	void		(*ended) (Principal *principal, Statement *statement, PGresult *result, const char *why);
} BackendReports;

/*
 * A connection of a principal.
 *
 *	CONNECTING --> SETTING --connected--> IDLE --backend_send()--> BUSY
 *		 |			  |					   ^						| |
 *		 +---failed---+					   +---------ended----------+ |
 *		 |								   |						  |
 *	   freed							 ended <--- CANCELLED <--ended+
 *
 * The words in small letters are the reports.  A statement that ends while its cancel request
 * is under way leads to CANCELLED: the request could hit the next statement.  A connection
 * that is lost is closed first, and then reports "ended", or before IDLE "failed".
 */
typedef struct Backend
{
	struct Backend *next;
	Principal  *principal;
	const BackendReports *reports;
	PGconn	   *conn;
	Watched		watched;
	enum
	{
		BACKEND_CONNECTING, BACKEND_SETTING, BACKEND_IDLE, BACKEND_BUSY,
		BACKEND_CANCELLED		/* statement done, cancel request not */
	}			state;
	PostgresPollingStatusType polling;
	Statement  *statement;
	struct Cancel *cancel;		/* a cancel request in progress */
	PGresult   *result;
	double		since;			/* start of this state; while connecting, of
								 * the attempt at this address */
	double		patience;		/* connect timeout per address */
	const char *host;			/* current host while connecting: see
								 * hosts_begun() */
	bool		waits;
	bool		large;			/* has sent or received a large message */
} Backend;

struct Principal
{
	Principal  *next;
	WebDatabase *database;
	char	   *role;			/* empty: the program's own role */
	char	   *password;		/* or NULL */
	char	   *conninfo;		/* of a token, or empty; or NULL */
	Hosts		hosts;			/* used with a connection string */
	bool		hide_payload;
	bool		proven;			/* the server has accepted the password */
	int			users;			/* sessions, tokens, requests */
	int			nbackends;		/* without waiting ones */
	int			nwaiting;
	Backend    *backends;
	Statement  *first;			/* queue of statements without a connection */
	Statement  *last;
	/* called when the first connection is made, or has failed */
	void		(*proved) (Principal *principal, const char *why, bool refused);
	void	   *proving;
	struct Follow *follows;		/* stream.c */
	struct JobsRead *look;
	struct Gate *gates;			/* gate.c */
	struct Crowd *crowd;		/* caller.c */
};

/* client/web/backend.c */
extern int	statement_time(bool waits);
extern void backend_make(Principal *principal, bool waits, const BackendReports *reports);
extern void backend_drop(Backend *backend);
extern void backend_lost(Backend *backend);
extern void backend_silent(Backend *backend);
extern bool backend_send(Backend *backend, Statement *statement);
extern void backend_cancel(Statement *statement);
extern void backend_end(Backend *backend);
extern bool backend_cancels(void);

/* client/web/principal.c */
#define MOST_OF_ROLE	63		/* bytes; the server truncates a longer name,
								 * and would use the role of the truncated
								 * name */

extern Principal *principals;
extern Principal *principal_make(WebDatabase *database, const char *role, const char *password,
								 const char *conninfo);
extern Principal *principal_like(const Principal *other);
extern void principal_use(Principal *principal);
extern void principal_leave(Principal *principal);

/* client/web/pool.c */
extern void principal_prove(Principal *principal);
extern void pool_send(Principal *principal, Statement *statement);
extern bool pool_withdraw(Principal *principal, Statement *statement);
extern void pool_tick(void);
extern void pool_close(void);

/* A session of a caller. */
struct Session
{
	Session    *next;
	char		id[SECRET_SIZE];
	char		csrf[SECRET_SIZE];
	Principal  *principal;
	double		used;			/* time of the last request */
	bool		told;			/* an answer contains the id.  Before, the
								 * session belongs to a log-in in progress,
								 * and is not ended to make room for others */
};

#define GATE_WAIT		10.0	/* most seconds in jobq.reserve() */

/* A route: a method and a path. First its flags. */
#define ROUTE_OPEN		1		/* needs no log-in */
#define ROUTE_CONSUMES	2		/* hands out jobs with their payload; its
								 * answer function is called even if the
								 * caller has hung up */
#define ROUTE_READS		4		/* reads only, though the method is not GET */
#define ROUTE_MERGES	8		/* reads all databases of the caller, if the
								 * path names none */
#define ROUTE_PAGE		16		/* for people without a log-in: browsers get
								 * pages, and may send forms from other sites */
#define MAX_PARAMETERS	24
#define MAX_LISTED		4
#define MOST_ITEMS		200		/* in a page */

typedef struct Route
{
	const char *method;
	const char *path;			/* each {} matches one segment */
	int			flags;
	const char *members;		/* allowed members of the body, separated by
								 * blanks; required members end in "!" */
	const char *members_of_many;	/* replaces "members" if the body has
									 * "ids" */
	const char *parameters;		/* of the statement: see statement.c */
	const char *words[MAX_LISTED];	/* a parameter, and its allowed values */
	const char *shown;			/* members of the answer for callers with
								 * hidden payloads: see shown.c */
	const char *sql;
	int			most;			/* highest value of ?limit, and its default;
								 * 0: 200, and 50 */
	void		(*run) (Request *request);	/* replaces the statement */
	void		(*answer) (Request *request, PGresult *result); /* replaces the default:
																 * the first column */
} Route;

/*
 * SELECT of the job whose id is a column of another row.  OFFSET keeps the planner from
 * joining the whole view with those rows.
 */
/* Older versions of libmicrohttpd have another name. */
#define STATUS_UNPROCESSABLE	422

#define JOB(id)	"SELECT * FROM jobq.jobs AS x WHERE x.id = " id " OFFSET 0"

struct Request
{
	Request    *next;			/* list of all requests */
	Request    *before;
	struct MHD_Connection *connection;
	char	   *target;			/* as received */
	WebDatabase *database;
	bool		named;			/* the path names the database */
	const Route *route;
	char	   *segment;		/* segment of the path matched by {} */
	char	   *second_segment; /* matched by a second {} */
	Principal  *principal;
	Session    *session;		/* or NULL: token */
	PQExpBufferData body;
	bool		seen;			/* headers were checked */
	bool		begun;
	bool		suspended;
	bool		gone;			/* the caller has hung up */
	bool		refused;		/* its session or token has ended */
	bool		too_large;		/* body too large, and discarded */
	bool		streams;		/* endless answer */
	struct MHD_Response *response;
	unsigned	status;
	Watched		socket;			/* watched while suspended */
	Statement	statement;
	char	   *sql;			/* assembled statement text, or NULL */
	char	   *values[MAX_PARAMETERS];

	/*
	 * Callbacks of the file that makes the request wait; or NULL.
	 *
	 * leave: the caller has hung up while the request is suspended.  Removes
	 * the request from its wait queue, and may resume the request.
	 *
	 * refuse: the session or the token has ended.
	 *
	 * sent: the last of the three, called once, after the answer was sent or
	 * sending has failed.  Frees "state", if the file has any.
	 */
	void		(*leave) (Request *request);
	void		(*refuse) (Request *request);
	void		(*sent) (Request *request, bool whole);
	void	   *state;			/* owned by stream.c, given.c, gateway.c or
								 * scrape.c */
};

/* client/web/caller.c */
#define IDLE_TIME		75.0	/* most seconds between two requests */

typedef struct Caller Caller;

/* The address of a caller: IPv4 mapped into IPv6, or the first 64 bits of IPv6. */
typedef struct Address
{
	unsigned char bytes[16];
} Address;

extern unsigned callers_most(void);
extern Caller *caller_make(int fd, const struct sockaddr *address);
extern void caller_free(Caller *caller);
extern void caller_is(Caller *caller, Principal *principal);
extern void callers_forget(Principal *principal);
extern void caller_begins(Caller *caller);
extern void caller_waits(Caller *caller);
extern void caller_is_answered(Caller *caller);
extern void caller_rests(Caller *caller);
extern void caller_end(Caller *caller);
extern bool caller_keeps(Caller *caller, size_t bytes);
extern void caller_releases(Caller *caller, void (*release) (void *owner), void *owner);
extern void caller_moves(Caller *caller);
extern const Address *caller_address(const Caller *caller);
extern void callers_tick(void);

/* client/web/connection.c */
extern Request *requests;
extern void requests_add(Request *request);
extern void requests_remove(Request *request);
extern Caller *caller_of(struct MHD_Connection *connection);
extern Caller *request_caller(Request *request);
extern const Address *request_address(Request *request);
extern bool request_keeps(Request *request, size_t bytes);
extern void request_cut_off(Request *request);
extern void request_suspend(Request *request);
extern void request_resume(Request *request);
extern bool request_is_gone(Request *request);
extern void requests_without(const Session *session);
extern void requests_without_token(Principal *principal);

/* client/web/answer.c */
#define FORM_TYPE		"application/x-www-form-urlencoded"

extern void answer(Request *request, unsigned status, const char *type, const char *text,
				   size_t length);
extern void answer_with(Request *request, unsigned status, struct MHD_Response *response);
extern void answer_header(Request *request, const char *name, const char *value);
extern bool wants_page(Request *request);
extern void answer_page(Request *request, unsigned status, const char *title, const char *text,
						const char *button);
extern void answer_problem(Request *request, unsigned status, const char *detail);
extern void answer_problem_as(Request *request, unsigned status, const char *type, const char *detail);
extern unsigned status_of_error(const PGresult *result);
extern void answer_error(Request *request, const PGresult *result);
extern void answer_no_connection(Request *request, const char *why);
extern void answer_refused(Request *request);
extern void answer_moved(Request *request, const char *location);
extern void append_json_string(PQExpBuffer buffer, const char *value);
extern char *problem_text(unsigned status, const char *detail);
extern char *problem_of(const Principal *principal, const PGresult *result);
extern char *row_text(const PGresult *result, int row, int column);
extern void answer_asset(Request *request);
extern const char *header_of(Request *request, const char *name);

/* client/web/session.c */
extern Principal *session_principal(Request *request, const WebDatabase *database, Session **session);
extern bool session_find(Request *request);
extern bool session_allows(Request *request);
extern void session_tick(void);
extern Session *session_make(Principal *principal);
extern void session_free(Session *session);
extern void run_log_out(Request *request);
extern void answer_session(Request *request, PGresult *result);
extern void sessions_end(Principal *principal);

/* client/web/attempt.c */
typedef struct Attempt Attempt;

extern void attempt_make(Request *request, const char *name, void (*begin) (Attempt *attempt),
						 void *owner, void (*forget) (void *owner));
extern WebDatabase *attempt_database(const Attempt *attempt);
extern const char *attempt_name(const Attempt *attempt);
extern void *attempt_owner(const Attempt *attempt);
extern Request *attempt_succeeds(Attempt *attempt);
extern void attempt_fails(Attempt *attempt, bool refused, unsigned status, const char *why);
extern void attempts_tick(void);

/* client/web/login.c */
extern void run_log_in(Request *request);

/* client/web/link.c */
extern void run_link(Request *request);

/* client/web/tokens.c */
extern void tokens_read(bool first);
extern Principal *token_find(const char *token, const WebDatabase *database);

/* client/web/shown.c */
extern char *shown_text(const Route *route, const char *json);
extern bool error_is_shown(const char *sqlstate);
extern bool payload_hidden(const char *role, bool is_token);

/* client/web/statement.c */
extern bool arguments_known(Request *request);
extern void statement_begin(Request *request);

/* client/web/listener.c */
extern void listener_open(void);
extern void listener_tick(void);
extern Channel *listener_join(WebDatabase *database, int64_t job);
extern void listener_leave(WebDatabase *database, Channel *channel);
extern void run_databases(Request *request);
extern void run_health(Request *request);
extern void listener_close(void);

/* client/web/events.c */
extern void stream_end(Request *request);

/* client/web/stream.c */
#define MAX_TOPICS		8

extern void stream_tick(void);
extern void run_follow_job(Request *request);
extern void follow_topics(Request *request, const Route *const *topics, int n);

/* client/web/given.c: the jobs handed to a caller. */
typedef struct Given
{
	int			n;
	PQExpBufferData jobs;		/* as JSON */
	PQExpBufferData ids;
	PQExpBufferData tokens;
} Given;

extern Given *given_make(void);
extern void given_add(Given *given, const char *id, const char *token, const char *job);
extern void given_hand_over(Request *request, Given *given);
extern void given_back(Principal *principal, Given *given);
extern int	releases_under_way;

/* client/web/gateway.c */
extern void answer_reserve(Request *request, PGresult *result);
extern void gateway_tick(void);
extern bool gateway_waits(void);

/* client/web/scrape.c */
extern void answer_metrics(Request *request, PGresult *result);
extern void run_metrics_route(Request *request);
extern void scrape_tick(void);

/* client/web/routes.c */
extern const Route routes[];
extern bool route_find(Request *request, const char *method);

/* client/web/request.c */
extern struct MHD_Daemon *daemon_start(int listener, char *cert, char *key);
extern void requests_end(void);
extern bool requests_go_on(bool answers);
extern void requests_abandon(void);

#endif							/* JOBQ_WEB_INNER_H */

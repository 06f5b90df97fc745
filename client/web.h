/*-------------------------------------------------------------------------
 *
 * web.h
 *	  What the files of "jobq web" have in common.
 *
 * The server is one process with one thread.  It waits in epoll for sockets: the
 * callers' by libmicrohttpd, which has an epoll of its own, and its connections
 * to the database by libpq, which are never waited for.  A request that needs the
 * database is suspended until its statement is done.
 *
 * A Principal is a role that somebody has shown the password of, with a few
 * connections of that role.  All that is asked for a caller is asked on those, so
 * the server, and nobody here, decides what the caller may see and do.
 *
 * The files, the lowest first:
 *
 *	loop.c		epoll, and what is freed when nobody looks at it any more
 *	backend.c	connections of principals
 *	pool.c		principals, and the line in which their statements wait
 *	listener.c	the connection that listens for changes of jobs
 *	answer.c	answers: headers, problems
 *	session.c	who the caller is: cookies, CSRF
 *	login.c		log-ins, and how often passwords may be tried
 *	tokens.c	the file of tokens
 *	shown.c		what callers see from whom payloads are hidden
 *	statement.c	a route's statement: its parameters, and what comes of it
 *	events.c	Server-Sent Events to a caller
 *	stream.c	what callers follow by them
 *	given.c		jobs that a consumer is given, or that nobody has got
 *	gate.c		the statement with which consumers wait for jobs
 *	gateway.c	consumers that wait
 *	routes.c	the table of all routes
 *	caller.c	connections of callers, and which of them makes room
 *	request.c	a request from its first byte to its last
 *	web.c		the command
 *
 * client/web.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WEB_H
#define JOBQ_WEB_H

#include <microhttpd.h>

#include "hosts.h"

typedef struct Principal Principal;
typedef struct Session Session;
typedef struct Request Request;

#define SECRET_BYTES	32
#define SECRET_SIZE		(2 * SECRET_BYTES + 1)	/* as hexadecimal digits */

/* What was said to the command. */
typedef struct WebOptions
{
	const char *host;			/* to listen at */
	const char *port;
	const char *cert_file;
	const char *key_file;
	const char *token_file;
	const char *hide_payload;	/* all, or roles with commas; or NULL */
	bool		insecure;
	bool		allow_trust;
	bool		read_only;
	int			connections;	/* of a role, beside those that wait */
	int			clients;		/* connections of callers */
	int			timeout;		/* of a statement, in milliseconds */
	size_t		max_body;
	bool		tls;
} WebOptions;

extern WebOptions web;

/* loop.c: what epoll watches. */
typedef struct Watched
{
	void		(*ready) (void *owner, uint32_t events);
	void	   *owner;
	int			fd;				/* -1: is not watched */
	uint32_t	events;
} Watched;

extern void loop_open(void);
extern void loop_watch(Watched *watched, int fd, uint32_t events);
extern void loop_forget(Watched *watched);
extern void loop_free(void *memory);
extern void loop_wait(double patience);
extern double web_now;			/* seconds() of this turn */

/*
 * A statement for a principal.  "done" is called once: with a result, whatever it
 * is, which pool.c clears; or without one, and says why there is none.
 */
typedef struct Statement
{
	struct Statement *next;
	const char *sql;
	int			n;
	const char *const *values;	/* stay until it is done */
	void		(*done) (struct Statement *statement, PGresult *result, const char *why);
	void	   *owner;
	double		since;
	bool		waits;			/* on a connection that is kept for waiting */
	struct Backend *backend;	/* where it runs */
} Statement;

/* A connection of a principal. */
typedef struct Backend
{
	struct Backend *next;
	Principal  *principal;
	PGconn	   *conn;
	Watched		watched;
	enum
	{
		BACKEND_CONNECTING, BACKEND_SETTING, BACKEND_IDLE, BACKEND_BUSY,
		BACKEND_CANCELLED		/* its statement is done, what cancels that is
								 * not */
	}			state;
	PostgresPollingStatusType polling;
	Statement  *statement;
	struct Cancel *cancel;		/* that is under way */
	PGresult   *result;
	double		since;			/* of its state; while it connects, of the
								 * address */
	double		patience;		/* with an address that is silent */
	const char *host;			/* to which it connects: see hosts_begun() */
	bool		waits;
	bool		large;			/* has had a large result */
} Backend;

struct Principal
{
	Principal  *next;
	char	   *role;
	char	   *password;		/* or NULL */
	char	   *conninfo;		/* or NULL: of a token */
	Hosts		hosts;			/* if it has a connection string */
	bool		hide_payload;
	bool		proven;			/* the server has taken the password */
	int			users;			/* sessions, tokens, requests */
	int			nbackends;		/* without those that wait */
	int			nwaiting;
	Backend    *backends;
	Statement  *first;			/* that wait for a connection */
	Statement  *last;
	/* called when the first connection is there, or cannot be made */
	void		(*proved) (Principal *principal, const char *why, bool refused);
	void	   *proving;
	struct Follow *follows;		/* stream.c */
	struct Look *look;
	struct Gate *gates;			/* gate.c */
	struct Crowd *crowd;		/* caller.c */
};

/* backend.c */
extern void backend_make(Principal *principal, bool waits);
extern void backend_drop(Backend *backend);
extern void backend_lost(Backend *backend);
extern void backend_silent(Backend *backend);
extern bool backend_send(Backend *backend, Statement *statement);
extern void backend_cancel(Statement *statement);
extern void backend_end(Backend *backend);
extern bool backend_cancels(void);

/* pool.c */
#define MOST_OF_ROLE	63		/* bytes; the server cuts a longer name, and
								 * takes it for that role */

extern Principal *principals;
extern Principal *principal_make(const char *role, const char *password, const char *conninfo);
extern Principal *principal_like(const Principal *other);
extern void principal_use(Principal *principal);
extern void principal_leave(Principal *principal);
extern void principal_prove(Principal *principal);
extern int	statement_time(bool waits);
extern void principal_failed(Principal *principal, const char *why, bool refused);
extern void pool_send(Principal *principal, Statement *statement);
extern void pool_run(Principal *principal);
extern bool pool_withdraw(Principal *principal, Statement *statement);
extern void pool_tick(void);
extern void pool_close(void);

/* Who calls. */
struct Session
{
	Session    *next;
	char		id[SECRET_SIZE];
	char		csrf[SECRET_SIZE];
	Principal  *principal;
	double		used;
	bool		told;			/* its caller has been answered with its id */
};

#define GATE_WAIT		10.0	/* seconds in jobq.reserve(), at most */

/* A route: what is asked by a method and a path. */
#define ROUTE_OPEN		1		/* nobody need be logged in */
#define ROUTE_CONSUMES	2		/* gives out jobs, payload and all; its answer
								 * is told of callers that are gone, too */
#define ROUTE_READS		4		/* changes nothing in the database though it
								 * is no GET */
#define MAX_PARAMETERS	16

typedef struct Route
{
	const char *method;
	const char *path;			/* {} stands for one segment */
	int			flags;
	const char *members;		/* that the body may have, with blanks; those
								 * that it must have end in "!" */
	const char *members_of_many;	/* instead of these, if it has "ids" */
	const char *parameters;		/* of the statement: see statement.c */
	const char *words;			/* one of these parameters, and all that it
								 * may be */
	const char *shown;			/* members of the answer for callers from whom
								 * payloads are hidden: see shown.c */
	const char *sql;
	void		(*run) (Request *request);	/* instead of the statement */
	void		(*answer) (Request *request, PGresult *result); /* instead of its first
																 * column */
} Route;

extern const Route routes[];

/*
 * The job with an id that another row has.  OFFSET keeps the planner from joining the
 * whole view with those rows.
 */
#define JOB(id)	"SELECT * FROM jobq.jobs AS x WHERE x.id = " id " OFFSET 0"

struct Request
{
	Request    *next;			/* all that there are */
	Request    *before;
	struct MHD_Connection *connection;
	char	   *target;			/* as it was sent */
	const Route *route;
	char	   *segment;		/* of the path, that {} stands for */
	Principal  *principal;
	Session    *session;		/* or NULL: a token */
	PQExpBufferData body;
	bool		seen;			/* its headers */
	bool		begun;
	bool		suspended;
	bool		gone;			/* the caller has hung up */
	bool		refused;		/* its session or token has ended meanwhile */
	bool		too_large;		/* its body, of which nothing is kept */
	bool		streams;		/* its answer has no end */
	struct MHD_Response *response;
	unsigned	status;
	Watched		socket;			/* while it is suspended */
	Statement	statement;
	char	   *sql;			/* that was put together for it */
	char	   *values[MAX_PARAMETERS];

	/*
	 * called when the caller hangs up while it waits, to take it out of what
	 * it waits in
	 */
	void		(*leave) (Request *request);
	/* called when its answer was sent, or was not */
	void		(*sent) (Request *request, bool whole);
	void	   *state;			/* of stream.c, given.c or gateway.c */
};

/* caller.c */
#define IDLE_TIME		75.0	/* seconds for the next request, until it is
								 * there */

typedef struct Caller Caller;

/* The address of a caller; of IPv4 as IPv6 has it, of IPv6 the first 64 bits. */
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

/* answer.c */
extern void answer(Request *request, unsigned status, const char *type, const char *text,
				   size_t length);
extern void answer_with(Request *request, unsigned status, struct MHD_Response *response);
extern void answer_header(Request *request, const char *name, const char *value);
extern void answer_problem(Request *request, unsigned status, const char *detail);
extern void answer_error(Request *request, const PGresult *result);
extern void answer_no_connection(Request *request, const char *why);
extern void answer_refused(Request *request);
extern char *problem_text(unsigned status, const char *detail);
extern char *problem_of(const Principal *principal, const PGresult *result);
extern char *row_text(const PGresult *result, int row, int column);
extern void answer_asset(Request *request);
extern const char *header_of(Request *request, const char *name);

/* session.c */
extern void secret_make(char *secret);
extern bool secret_equal(const char *a, const char *b);
extern bool session_find(Request *request);
extern bool session_allows(Request *request);
extern void session_tick(void);
extern Session *session_make(Principal *principal);
extern void session_free(Session *session);
extern void run_log_out(Request *request);
extern void answer_session(Request *request, PGresult *result);
extern void sessions_end(Principal *principal);
extern bool payload_hidden(const char *role, bool is_token);

/* login.c */
extern void login_tick(void);
extern void run_log_in(Request *request);

/* tokens.c */
extern void tokens_read(bool first);
extern Principal *token_find(const char *token);

/* shown.c */
extern char *shown_text(const Route *route, const char *json);
extern bool error_is_shown(const char *sqlstate);

/* statement.c */
extern void statement_begin(Request *request);

/* listener.c */
extern void listener_open(void);
extern void listener_tick(void);
extern void listen_to(int64_t job, int users);
extern void run_health(Request *request);
extern void listener_close(void);

/* events.c */
extern void stream_end(Request *request);

/* stream.c */
extern void stream_tick(void);
extern void run_follow_job(Request *request);
extern void run_follow_topics(Request *request);
extern void stream_job_changed(int64_t job);

/* given.c: the jobs that a caller is given. */
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

/* gateway.c, and gate.c behind it */
extern void answer_reserve(Request *request, PGresult *result);
extern void gateway_refuse(Request *request);
extern void gateway_tick(void);
extern bool gateway_waits(void);

/* routes.c */
extern bool route_find(Request *request, const char *method);

/* request.c */
extern struct MHD_Daemon *daemon_start(int listener, char *cert, char *key);
extern Caller *request_caller(Request *request);
extern const Address *request_address(Request *request);
extern bool request_keeps(Request *request, size_t bytes);
extern void request_cut_off(Request *request);
extern void request_suspend(Request *request);
extern void request_resume(Request *request);
extern bool request_is_gone(Request *request);
extern void requests_without(const Session *session);
extern void requests_without_token(Principal *principal);
extern void requests_end(void);
extern bool requests_go_on(bool answers);
extern void requests_abandon(void);

/* assets.inc, which is made from client/web and openapi.json */
typedef struct Asset
{
	const char *name;
	const unsigned char *bytes;
	size_t		size;
	const char *version;		/* a hash of it */
} Asset;

extern const Asset assets[];

#endif							/* JOBQ_WEB_H */

/*-------------------------------------------------------------------------
 *
 * request.c
 *	  A request from its first byte to its last.
 *
 * libmicrohttpd reads the request and calls handle(): after the headers, for each part of
 * the body, after the body, and again after a suspended request was resumed.  Errors in
 * the headers are answered before the body is read.  A body over the limit is discarded.
 * Callers without a log-in have a lower limit.
 *
 * Suspended requests are in connection.c, and time limits of callers in caller.c.
 *
 * client/web/request.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEADER_MEMORY	16384	/* bytes per connection, for headers */
#define OPEN_BODY		8192	/* body limit of routes without log-in */

static bool ending;				/* no new request begins */

static void
connection_changed(void *closure, struct MHD_Connection *connection, void **context,
				   enum MHD_ConnectionNotificationCode code)
{
	Caller	   *caller = *context;

	(void) closure;
	if (code == MHD_CONNECTION_NOTIFY_STARTED)
		*context = caller_make(MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
							   MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
	else if (caller != NULL)
	{
		caller_free(caller);
		*context = NULL;
	}
}

/*
 * Called after the first line of a request.
 */
static void *
request_started(void *closure, const char *target, struct MHD_Connection *connection)
{
	Request    *request = allocate(sizeof(Request));
	Caller	   *caller = caller_of(connection);

	(void) closure;
	if (caller != NULL)
		caller_begins(caller);
	request->connection = connection;
	request->target = copy_text(target);
	request->socket.fd = -1;
	initPQExpBuffer(&request->body);
	requests_add(request);
	return request;
}

/*
 * Free the body and the parameters of the statement.
 */
static void
body_forget(Request *request)
{
	if (request->body.data != NULL && request->body.maxlen > 0)
		explicit_bzero(request->body.data, request->body.len);
	termPQExpBuffer(&request->body);
	initPQExpBuffer(&request->body);
	for (int i = 0; i < MAX_PARAMETERS; i++)
	{
		free(request->values[i]);
		request->values[i] = NULL;
	}
}

/*
 * Called at the end of a request, whether the answer was sent or not.
 */
static void
request_completed(void *closure, struct MHD_Connection *connection, void **context,
				  enum MHD_RequestTerminationCode code)
{
	Request    *request = *context;
	Caller	   *caller = caller_of(connection);

	(void) closure;
	if (caller != NULL)
	{
		caller_keeps(caller, 0);
		caller_releases(caller, NULL, NULL);
		caller_rests(caller);
	}
	if (request == NULL)
		return;
	*context = NULL;
	loop_forget(&request->socket);
	if (request->sent != NULL)
		request->sent(request, code == MHD_REQUEST_TERMINATED_COMPLETED_OK && !request->gone);
	if (request->response != NULL)
		MHD_destroy_response(request->response);
	if (request->principal != NULL)
		principal_leave(request->principal);
	requests_remove(request);
	body_forget(request);
	termPQExpBuffer(&request->body);
	free(request->sql);
	free(request->segment);
	free(request->second_segment);
	free(request->target);
	loop_free(request);
}

/* Counts of the headers that frame a request or name the host. */
typedef struct Framing
{
	int			lengths;
	int			encodings;
	int			hosts;
	bool		odd;
}			Framing;

static enum MHD_Result
framing_header(void *closure, enum MHD_ValueKind kind, const char *name, const char *value)
{
	Framing    *framing = closure;

	(void) kind;
	framing->lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
	framing->hosts += strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0;
	if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0)
	{
		framing->encodings++;
		framing->odd |= value == NULL || strcasecmp(value, "chunked") != 0;
	}
	framing->odd |= strpbrk(name, " \t") != NULL;
	return MHD_YES;
}

/*
 * True if every reader of the request finds the same end.  A proxy that sees a different
 * end would forward the rest as a request unknown to it.
 */
static bool
framing_is_clear(Request *request)
{
	Framing		framing = {0};

	MHD_get_connection_values(request->connection, MHD_HEADER_KIND, framing_header, &framing);
	return !framing.odd && framing.lengths + framing.encodings <= 1 && framing.hosts <= 1;
}

/*
 * The body limit of a request, in bytes.
 */
static size_t
body_limit(const Request *request)
{
	if (strcmp(request->route->method, "GET") == 0)
		return 0;
	return (request->route->flags & ROUTE_OPEN) && web.max_body > OPEN_BODY ? OPEN_BODY : web.max_body;
}

static void
answer_too_large(Request *request)
{
	answer_problem(request, MHD_HTTP_CONTENT_TOO_LARGE, "the body is too large");
}

/*
 * Append a part of the body.
 */
static void
body_add(Request *request, const char *part, size_t size)
{
	if (request->too_large)
		return;
	if (request->body.len + size <= body_limit(request))
	{
		appendBinaryPQExpBuffer(&request->body, part, size);
		if (request_caller(request) != NULL)
			caller_moves(request_caller(request));
		if (!request_keeps(request, request->body.maxlen))
			request_cut_off(request);
		return;
	}
	request->too_large = true;
	body_forget(request);
	request_keeps(request, 0);
}

/*
 * True if the value of a Content-Type header is this type, with or without parameters.
 */
static bool
is_type(const char *value, const char *type)
{
	return value != NULL && strcspn(value, " ;") == strlen(type) && strncasecmp(value, type, strlen(type)) == 0;
}

/* True if the arguments after the question mark are of the program, and not of a page. */
static bool
takes_arguments(const Route *route)
{
	return strncmp(route->path, "/api/", strlen("/api/")) == 0 || strcmp(route->path, "/metrics") == 0;
}

/*
 * Check the headers.  If the request is refused, answer it and return false.
 */
static bool
headers_allow(Request *request, const char *method)
{
	const char *length = header_of(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
	const char *type = header_of(request, MHD_HTTP_HEADER_CONTENT_TYPE);
	bool		has_body = header_of(request, MHD_HTTP_HEADER_TRANSFER_ENCODING) != NULL ||
		(length != NULL && strcmp(length, "0") != 0);
	Caller	   *caller = caller_of(request->connection);
	bool		changes;

	if (!framing_is_clear(request))
	{
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "it is not clear where the request ends, or for which host it is");
		answer_header(request, MHD_HTTP_HEADER_CONNECTION, "close");
		return false;
	}
	if (!route_find(request, method))
		return false;
	changes = strcmp(request->route->method, "GET") != 0;
	if (!(request->route->flags & ROUTE_OPEN) && !session_find(request))
	{
		if (caller != NULL)
			caller_is(caller, NULL);
		answer_problem(request, MHD_HTTP_UNAUTHORIZED, "nobody is logged in");
	}
	else if (changes && !(request->route->flags & ROUTE_PAGE) && !session_allows(request))
		answer_problem_as(request, MHD_HTTP_FORBIDDEN, "csrf",
						  "the request may come from another site: it lacks the header X-CSRF-Token of the session");
	else if (changes && web.read_only && !(request->route->flags & ROUTE_READS))
		answer_problem_as(request, MHD_HTTP_FORBIDDEN, "read-only", "this server only shows what there is");
	else if (request->principal != NULL && request->principal->hide_payload &&
			 (request->route->flags & ROUTE_CONSUMES))
		answer_problem_as(request, MHD_HTTP_FORBIDDEN, "hidden-payload", "payloads are hidden from this role");
	else if (length != NULL && strtoull(length, NULL, 10) > body_limit(request))
		answer_too_large(request);
	else if (has_body && changes && !is_type(type, "application/json") &&
			 !((request->route->flags & ROUTE_PAGE) && is_type(type, FORM_TYPE)))
		answer_problem(request, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, "the body must be application/json");
	else if (!takes_arguments(request->route) || arguments_known(request))
	{
		if (caller != NULL && request->principal != NULL)
			caller_is(caller, request->principal);
		return true;
	}
	return false;
}

static enum MHD_Result
send_answer(Request *request)
{
	Caller	   *caller = caller_of(request->connection);
	enum MHD_Result result = MHD_queue_response(request->connection, request->status, request->response);

	MHD_destroy_response(request->response);
	request->response = NULL;
	body_forget(request);
	if (caller != NULL)
	{
		caller_moves(caller);
		caller_is_answered(caller);
	}
	return result;
}

static enum MHD_Result
handle(void *closure, struct MHD_Connection *connection, const char *url, const char *method,
	   const char *version, const char *part, size_t *part_size, void **context)
{
	Request    *request = *context;

	(void) closure;
	(void) url;
	(void) version;
	if (request == NULL || request->gone || (ending && !request->begun))
		return MHD_NO;
	if (!request->seen)
	{
		request->seen = true;
		return headers_allow(request, method) ? MHD_YES : send_answer(request);
	}
	if (*part_size > 0)
	{
		body_add(request, part, *part_size);
		*part_size = 0;
		return MHD_YES;
	}
	if (!request->begun)
	{
		Caller	   *caller = caller_of(connection);

		request->begun = true;
		if (caller != NULL)
			caller_waits(caller);
		if (PQExpBufferBroken(&request->body))
			fatal(EXIT_REFUSED, "out of memory");
		if (request->too_large)
			answer_too_large(request);
		else if (request->refused)
			answer_refused(request);
		else if (memchr(request->body.data, '\0', request->body.len) != NULL)
			answer_problem(request, MHD_HTTP_BAD_REQUEST, "the body has a byte that is zero");
		else if (request->route->run != NULL)
			request->route->run(request);
		else
			statement_begin(request);
		/* a request suspended and answered at once is called again */
		return request->socket.owner == NULL ? send_answer(request) : MHD_YES;
	}
	return request->response != NULL ? send_answer(request) : MHD_YES;
}

/*
 * The program ends.  Requests wait only for the end of a running statement, because the
 * statement may have reserved jobs.  No new request begins.  Queued answers are still
 * sent.
 */
void
requests_end(void)
{
	ending = true;
	for (Request *request = requests; request != NULL; request = request->next)
	{
		if (request->begun && !request->suspended && !request->streams)
			continue;
		request->gone = true;
		if (request->leave != NULL)
			request->leave(request);
		stream_end(request);
		if (request->statement.backend != NULL)
			backend_cancel(&request->statement);
		else
			request_resume(request);
	}
}

/*
 * True if statements of requests run; or, with "answers", if an answer is incomplete.
 */
bool
requests_go_on(bool answers)
{
	for (const Request *request = requests; request != NULL; request = request->next)
		if (request->suspended || (answers && request->begun && !request->streams))
			return true;
	return false;
}

/*
 * Stop waiting for running statements.
 */
void
requests_abandon(void)
{
	for (Request *request = requests; request != NULL; request = request->next)
	{
		if (request->statement.backend != NULL)
			backend_end(request->statement.backend);
		request->statement.backend = NULL;
		request_resume(request);
	}
}

struct MHD_Daemon *
daemon_start(int listener, char *cert, char *key)
{
	static char priorities[] = "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1";
	struct MHD_OptionItem tls[] = {
		{cert != NULL ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, 0, cert},
		{MHD_OPTION_HTTPS_MEM_KEY, 0, key},
		{MHD_OPTION_HTTPS_PRIORITIES, 0, priorities},
		{MHD_OPTION_END, 0, NULL}
	};

	return MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (cert != NULL ? MHD_USE_TLS : 0),
							0, NULL, NULL, handle, NULL,
							MHD_OPTION_LISTEN_SOCKET, listener,
							MHD_OPTION_CONNECTION_LIMIT, callers_most(),
							MHD_OPTION_CONNECTION_TIMEOUT, (unsigned) IDLE_TIME,
							MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t) HEADER_MEMORY,
							MHD_OPTION_NOTIFY_COMPLETED, request_completed, NULL,
							MHD_OPTION_NOTIFY_CONNECTION, connection_changed, NULL,
							MHD_OPTION_URI_LOG_CALLBACK, request_started, NULL,
							MHD_OPTION_STRICT_FOR_CLIENT, 1,
							MHD_OPTION_ARRAY, tls,
							MHD_OPTION_END);
}

/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  The connections of requests: suspended requests, and requests whose session or token
 *	  ends.
 *
 * libmicrohttpd does not watch the socket of a suspended request, so this file does.  If
 * the caller hangs up, request->leave is called.
 *
 * client/web/connection.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <poll.h>
#include <sys/epoll.h>

Request    *requests;

void
requests_add(Request *request)
{
	request->next = requests;
	if (requests != NULL)
		requests->before = request;
	requests = request;
}

void
requests_remove(Request *request)
{
	if (request->before != NULL)
		request->before->next = request->next;
	else
		requests = request->next;
	if (request->next != NULL)
		request->next->before = request->before;
}

/*
 * The caller of a connection; NULL while the connection is being closed.
 */
Caller *
caller_of(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/*
 * The caller of a request; NULL while the connection is being closed.
 */
Caller *
request_caller(Request *request)
{
	return caller_of(request->connection);
}

/*
 * The address of the caller.
 */
const Address *
request_address(Request *request)
{
	static const Address nowhere;
	Caller	   *caller = request_caller(request);

	return caller != NULL ? caller_address(caller) : &nowhere;
}

/*
 * Account "bytes" as kept for the caller of a request.  False if its memory limit is
 * reached.
 */
bool
request_keeps(Request *request, size_t bytes)
{
	Caller	   *caller = request_caller(request);

	return caller == NULL || caller_keeps(caller, bytes);
}

void
request_cut_off(Request *request)
{
	if (request_caller(request) != NULL)
		caller_end(request_caller(request));
}

static void
socket_ready(void *owner, uint32_t events)
{
	Request    *request = owner;

	(void) events;
	loop_forget(&request->socket);
	request->gone = true;
	if (request->leave != NULL)
		request->leave(request);
}

/*
 * True if the caller of a suspended request has hung up, even if epoll has not yet
 * reported this.
 */
bool
request_is_gone(Request *request)
{
	struct pollfd socket = {.fd = request->socket.fd,.events = POLLRDHUP};

	if (request->socket.fd >= 0 && poll(&socket, 1, 0) > 0)
		request->gone = true;
	return request->gone;
}

/*
 * Suspend a request until request_resume().  If the caller hangs up, request->gone is set
 * and request->leave is called, which may resume the request.  Otherwise the source of
 * the awaited event resumes it.
 */
void
request_suspend(Request *request)
{
	if (request->suspended)
		return;
	request->suspended = true;
	MHD_suspend_connection(request->connection);
	request->socket.ready = socket_ready;
	request->socket.owner = request;
	loop_watch(&request->socket, MHD_get_connection_info(request->connection,
														 MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
			   EPOLLRDHUP);
}

void
request_resume(Request *request)
{
	if (!request->suspended)
		return;
	request->suspended = false;
	loop_forget(&request->socket);
	MHD_resume_connection(request->connection);
}

/*
 * The session or token of the request has ended.  A running statement is not cancelled.
 */
static void
request_refuse(Request *request)
{
	Caller	   *caller = caller_of(request->connection);

	if (caller != NULL)
		caller_is(caller, NULL);
	request->session = NULL;
	request->refused = true;
	if (request->refuse != NULL)
		request->refuse(request);
}

/*
 * Refuse the requests of a session, which ends.
 */
void
requests_without(const Session *session)
{
	for (Request *request = requests; request != NULL; request = request->next)
		if (request->session == session)
			request_refuse(request);
}

/*
 * Refuse the requests of a token, by its principal.
 */
void
requests_without_token(Principal *principal)
{
	for (Request *request = requests; request != NULL; request = request->next)
		if (request->principal == principal)
			request_refuse(request);
	callers_forget(principal);
}

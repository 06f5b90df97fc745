/*-------------------------------------------------------------------------
 *
 * session.c
 *	  Identity of callers: sessions, their cookie, and the token against cross-site
 *	  requests.
 *
 * A request delivers a password once.  The database server verifies the password.  The
 * program keeps the password in memory while a session exists, for later connections.
 *
 * A browser adds the cookie to every request, including requests made by another site.
 * SameSite=Strict prevents this.  In addition, a request that changes data must carry the
 * session's second secret in a header, unknown to another site; and the origin reported
 * by the browser must be this server.
 *
 * client/web/session.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COOKIE			"jobq_session"	/* of the first database */
#define COOKIE_SIZE		(sizeof(COOKIE) + 12)
#define SESSION_TIME	(12 * 3600.0)	/* without a request */
#define MAX_SESSIONS	10000
#define MAX_SESSIONS_OF_ROLE	100

static Session *sessions;
static int	nsessions;

/*
 * Write the name of the cookie for a database.  A log-in to one database does not replace the
 * session in another.
 */
static void
cookie_name(const WebDatabase *database, char *name)
{
	int			number = (int) (database - web_databases) + 1;

	snprintf(name, COOKIE_SIZE, number == 1 ? COOKIE : COOKIE "_%d", number);
}

/*
 * Find the principal of a caller in a database, and the session, if any.  A token takes
 * precedence over a cookie.  Any other identity is meant for a proxy before this server.
 */
Principal *
session_principal(Request *request, const WebDatabase *database, Session **session)
{
	char		name[COOKIE_SIZE];
	const char *authorization = header_of(request, MHD_HTTP_HEADER_AUTHORIZATION);
	const char *id;

	*session = NULL;
	if (authorization != NULL && strncasecmp(authorization, "Bearer ", 7) == 0)
		return token_find(authorization + 7, database);
	cookie_name(database, name);
	id = MHD_lookup_connection_value(request->connection, MHD_COOKIE_KIND, name);
	for (Session *found = sessions; id != NULL && found != NULL; found = found->next)
		if (found->principal->database == database && secret_equal(found->id, id))
			*session = found;
	if (*session == NULL)
		return NULL;
	(*session)->used = web_now;
	return (*session)->principal;
}

/*
 * Find the principal of a request in its database.  A request that merges databases is in the
 * first database where the caller is logged in.
 */
bool
session_find(Request *request)
{
	bool		merges = (request->route->flags & ROUTE_MERGES) && !request->named;

	for (int i = 0; i < nweb_databases && request->principal == NULL; i++)
		if (merges || request->database == &web_databases[i])
		{
			request->principal = session_principal(request, &web_databases[i], &request->session);
			request->database = &web_databases[i];
		}
	if (request->principal == NULL)
		return false;
	principal_use(request->principal);
	return true;
}

/*
 * True if a host, with or without a port, is localhost or a numeric address.
 */
static bool
is_address(const char *host)
{
	size_t		length = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
	char		name[INET6_ADDRSTRLEN + 2];
	unsigned char address[sizeof(struct in6_addr)];

	if (strlen(host) < length || length >= sizeof(name))
		return false;
	snprintf(name, sizeof(name), "%.*s", (int) length, host);
	if (name[0] != '[')
		return strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, address) == 1;
	name[length - 1] = '\0';
	return inet_pton(AF_INET6, name + 1, address) == 1;
}

/*
 * True if the browser reports this server as the origin, or reports nothing.
 *
 * Another site can point its own host name at this server, and then has the same origin.
 * With passwords the site gains nothing.  With --allow-trust the site could log in as any
 * role, so the Host header must be an address or localhost.
 */
static bool
same_site(Request *request)
{
	const char *site = header_of(request, "Sec-Fetch-Site");
	const char *origin = header_of(request, MHD_HTTP_HEADER_ORIGIN);
	const char *host = header_of(request, MHD_HTTP_HEADER_HOST);
	const char *name;

	if (web.allow_trust && host != NULL && !is_address(host))
		return false;
	if (site != NULL && strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0)
		return false;
	if (origin == NULL)
		return true;

	/* a proxy may terminate TLS, so the scheme is not compared */
	name = strstr(origin, "://");
	return name != NULL && host != NULL && strcasecmp(name + 3, host) == 0;
}

/*
 * True if the sender intends this request, which changes data.
 */
bool
session_allows(Request *request)
{
	const char *csrf = header_of(request, "X-CSRF-Token");

	if (request->principal != NULL && request->session == NULL)
		return true;			/* browsers add no token on their own */
	if (!same_site(request))
		return false;
	return request->session == NULL || (csrf != NULL && secret_equal(request->session->csrf, csrf));
}

void
session_free(Session *session)
{
	Session   **at = &sessions;

	while (*at != session)
		at = &(*at)->next;
	*at = session->next;
	nsessions--;
	requests_without(session);
	principal_leave(session->principal);
	explicit_bzero(session, sizeof(Session));
	free(session);
}

/*
 * Make room for a session of this role in its database: at the limit, end the role's least
 * recently used session.  A role therefore cannot prevent other roles from logging in.
 */
static void
session_make_room(const Principal *principal)
{
	Session    *oldest = NULL;
	int			n = 0;

	for (Session *session = sessions; session != NULL; session = session->next)
	{
		if (!session->told || session->principal->database != principal->database ||
			strcmp(session->principal->role, principal->role) != 0)
			continue;
		n++;
		if (oldest == NULL || session->used <= oldest->used)
			oldest = session;
	}
	if (n >= MAX_SESSIONS_OF_ROLE)
		session_free(oldest);
}

/*
 * End all sessions of a principal, because its password is no longer valid.
 */
void
sessions_end(Principal *principal)
{
	for (Session *session = sessions, *next; session != NULL; session = next)
	{
		next = session->next;
		if (session->principal == principal)
			session_free(session);
	}
}

void
session_tick(void)
{
	for (Session *session = sessions, *next; session != NULL; session = next)
	{
		next = session->next;
		if (web_now > session->used + SESSION_TIME)
			session_free(session);
	}
}

/*
 * Make a session.  Its id has not been sent yet.  At the limit, the least recently used
 * session ends.
 */
Session *
session_make(Principal *principal)
{
	Session    *session = allocate(sizeof(Session));
	Session    *oldest = NULL;

	for (Session *other = sessions; nsessions >= MAX_SESSIONS && other != NULL; other = other->next)
		if (other->told && (oldest == NULL || other->used < oldest->used))
			oldest = other;
	if (oldest != NULL)
		session_free(oldest);
	secret_make(session->id);
	secret_make(session->csrf);
	session->principal = principal;
	session->used = web_now;
	session->next = sessions;
	sessions = session;
	nsessions++;
	return session;
}

/*
 * Answer with the session; with the cookie if this request made it.
 */
void
answer_session(Request *request, PGresult *result)
{
	char		name[COOKIE_SIZE];
	char		cookie[SECRET_SIZE + 128];

	answer(request, MHD_HTTP_OK, "application/json", PQgetvalue(result, 0, 0), PQgetlength(result, 0, 0));
	if (request->session == NULL || strcmp(request->route->method, "POST") != 0)
		return;
	session_make_room(request->principal);
	request->session->told = true;
	cookie_name(request->database, name);
	snprintf(cookie, sizeof(cookie), "%s=%s; Path=/; HttpOnly; SameSite=Strict%s",
			 name, request->session->id, web.tls ? "; Secure" : "");
	answer_header(request, MHD_HTTP_HEADER_SET_COOKIE, cookie);
}

/*
 * DELETE /api/session
 */
void
run_log_out(Request *request)
{
	char		name[COOKIE_SIZE];
	char		cookie[COOKIE_SIZE + 128];

	if (request->session != NULL)
	{
		Session    *session = request->session;

		request->session = NULL;
		session_free(session);
	}
	answer(request, MHD_HTTP_NO_CONTENT, "application/json", "", 0);
	cookie_name(request->database, name);
	snprintf(cookie, sizeof(cookie), "%s=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", name);
	answer_header(request, MHD_HTTP_HEADER_SET_COOKIE, cookie);
}

/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  Answers: headers, problem documents, rows as JSON, and the files of the console.
 *
 * Headers of answers contain text of this program only.  Numbers may also come from a
 * request or from the database.
 *
 * client/web/answer.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Types of columns, as in the server's pg_type.dat. */
enum
{
	TYPE_BOOL = 16, TYPE_INT8 = 20, TYPE_INT2 = 21, TYPE_INT4 = 23, TYPE_JSON = 114,
	TYPE_TIMESTAMPTZ = 1184, TYPE_JSONB = 3802
};

#define POLICY	"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " \
	"connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; " \
	"form-action 'none'; frame-ancestors 'none'"

/* A page of ROUTE_PAGE has a form, and the style below with this hash. */
#define PAGE_STYLE	"body{font:1.1em/1.5 system-ui,sans-serif;max-width:32em;margin:15vh auto;padding:0 1em}" \
	"h1{font-size:1.4em;overflow-wrap:anywhere}button{font:inherit;padding:.5em 2em}"
#define PAGE_POLICY	"default-src 'none'; style-src 'sha256-CWL+BBEtTb3ikyM28FNQq6vGZ37lNbwL5bRDR/JzwX8='; " \
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

#define LARGE_ANSWER	65536	/* bytes; from here on, reading is tracked */

/* A large answer while it is sent. */
typedef struct Large
{
	char	   *text;
	size_t		length;
	Caller	   *caller;			/* of the connection of the answer */
} Large;

const char *
header_of(Request *request, const char *name)
{
	return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

/*
 * Set the response, with the security headers, and resume the request.  Takes ownership
 * of the response.
 */
void
answer_with(Request *request, unsigned status, struct MHD_Response *response)
{
	bool		is_page = request->route != NULL && (request->route->flags & ROUTE_PAGE);
	const char *const headers[][2] = {
		{"Content-Security-Policy", is_page ? PAGE_POLICY : POLICY},
		{"X-Content-Type-Options", "nosniff"},
		{"X-Frame-Options", "DENY"},
		{"Referrer-Policy", "no-referrer"},
		{"Cross-Origin-Opener-Policy", "same-origin"},
		{"Cross-Origin-Resource-Policy", "same-origin"},
		{"Permissions-Policy", "camera=(), geolocation=(), microphone=()"},
	};

	if (response == NULL)
		fatal(EXIT_REFUSED, "out of memory");
	for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
		MHD_add_response_header(response, headers[i][0], headers[i][1]);
	if (web.tls)
		MHD_add_response_header(response, "Strict-Transport-Security", "max-age=31536000");
	if (request->response != NULL)
		MHD_destroy_response(request->response);
	request->response = response;
	request->status = status;
	request_resume(request);
}

void
answer_header(Request *request, const char *name, const char *value)
{
	MHD_add_response_header(request->response, name, value);
}

/*
 * Callback of libmicrohttpd: copy the next part of a large answer.
 */
static ssize_t
large_read(void *closure, uint64_t position, char *buffer, size_t size)
{
	Large	   *large = closure;

	if (size > large->length - position)
		size = large->length - position;
	memcpy(buffer, large->text + position, size);
	if (large->caller != NULL)
		caller_moves(large->caller);
	return size;
}

static void
large_free(void *closure)
{
	Large	   *large = closure;

	free(large->text);
	free(large);
}

/*
 * Answer 503, because the memory for answers is used up.  The caller can repeat a GET
 * request.  After any other method the connection is shut down, so that jobs in the lost
 * answer go back to their queue.
 */
static void
answer_no_room(Request *request)
{
	request_keeps(request, 0);
	answer_problem(request, MHD_HTTP_SERVICE_UNAVAILABLE,
				   "answers that callers of this role are reading take all the memory for them");
	answer_header(request, MHD_HTTP_HEADER_CONNECTION, "close");
	if (strcmp(request->route->method, "GET") != 0)
		request_cut_off(request);
}

/*
 * Answer with a copy of the text.  No cache may store data of the database.
 */
void
answer(Request *request, unsigned status, const char *type, const char *text, size_t length)
{
	struct MHD_Response *response;

	if (request_caller(request) != NULL)
		caller_moves(request_caller(request));
	if (!request_keeps(request, length) && length >= LARGE_ANSWER)
	{
		answer_no_room(request);
		return;
	}
	if (length < LARGE_ANSWER)
		response = MHD_create_response_from_buffer(length, (void *) text, MHD_RESPMEM_MUST_COPY);
	else
	{
		Large	   *large = allocate(sizeof(Large));

		large->text = allocate(length);
		memcpy(large->text, text, length);
		large->length = length;
		large->caller = request_caller(request);
		response = MHD_create_response_from_callback(length, LARGE_ANSWER, large_read, large, large_free);
	}
	answer_with(request, status, response);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
}

/*
 * Return the type of a problem that has no type of its own, and no SQLSTATE.
 */
static const char *
type_of_status(unsigned status)
{
	static const struct
	{
		unsigned	status;
		const char *type;
	}			list[] = {
		{MHD_HTTP_BAD_REQUEST, "invalid-request"}, {MHD_HTTP_UNAUTHORIZED, "not-logged-in"},
		{MHD_HTTP_FORBIDDEN, "not-allowed"}, {MHD_HTTP_NOT_FOUND, "not-found"},
		{MHD_HTTP_METHOD_NOT_ALLOWED, "no-such-method"}, {MHD_HTTP_GONE, "gone"},
		{MHD_HTTP_CONTENT_TOO_LARGE, "too-large"}, {MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, "not-json"},
		{STATUS_UNPROCESSABLE, "idempotency-key"}, {MHD_HTTP_TOO_MANY_REQUESTS, "too-many-requests"},
		{MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable"},
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		if (list[i].status == status)
			return list[i].type;
	return "failure";
}

/*
 * Return a problem document.  "type" is the last part of the problem's type.
 */
static char *
problem(unsigned status, const char *type, const char *detail, const char *more, const char *sqlstate)
{
	char		urn[64];
	json_t	   *document;
	char	   *text;

	if (sqlstate != NULL && sqlstate[0] == '\0')
		sqlstate = NULL;		/* an error of libpq */
	snprintf(urn, sizeof(urn), "urn:problem-type:jobq:%s", type != NULL ? type : sqlstate != NULL ? sqlstate : type_of_status(status));
	document = json_pack("{s:s, s:s, s:i, s:s*, s:s*, s:s*}", "type", urn,
						 "title", MHD_get_reason_phrase_for(status), "status", (int) status,
						 "detail", detail, "hint", more, "sqlstate", sqlstate);

	/* the detail is not UTF-8, as from a server with another encoding */
	if (document == NULL)
		document = json_pack("{s:s, s:s, s:i, s:s*}", "type", urn, "title",
							 MHD_get_reason_phrase_for(status), "status", (int) status,
							 "sqlstate", sqlstate);
	text = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;

	json_decref(document);
	if (text == NULL)
		fatal(EXIT_REFUSED, "out of memory");
	return text;
}

static void
answer_problem_text(Request *request, unsigned status, char *text)
{
	answer(request, status, "application/problem+json", text, strlen(text));
	if (status == MHD_HTTP_UNAUTHORIZED)
		answer_header(request, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer realm=\"jobq\"");
	if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE)
		answer_header(request, MHD_HTTP_HEADER_RETRY_AFTER, "1");
	free(text);
}

/*
 * True if the request is for a page, and its sender is a browser.
 */
bool
wants_page(Request *request)
{
	const char *accept = header_of(request, MHD_HTTP_HEADER_ACCEPT);

	return request->route != NULL && (request->route->flags & ROUTE_PAGE) &&
		accept != NULL && strstr(accept, "text/html") != NULL;
}

static void
append_html(PQExpBuffer html, const char *text)
{
	for (; *text != '\0'; text++)
		if (strchr("<>&\"'", *text) != NULL)
			appendPQExpBuffer(html, "&#%d;", *text);
		else
			appendPQExpBufferChar(html, *text);
}

/*
 * Answer with a page.  title, text, button: each may be NULL.  The button sends a POST to the address
 * of the page.
 */
void
answer_page(Request *request, unsigned status, const char *title, const char *text, const char *button)
{
	PQExpBufferData html;

	initPQExpBuffer(&html);
	appendPQExpBufferStr(&html, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
						 "<meta name=\"viewport\" content=\"width=device-width\">\n"
						 "<meta name=\"color-scheme\" content=\"light dark\">\n<title>");
	append_html(&html, title != NULL ? title : MHD_get_reason_phrase_for(status));
	appendPQExpBufferStr(&html, "</title>\n<style>" PAGE_STYLE "</style>\n</head>\n<body>\n");
	if (title != NULL)
	{
		appendPQExpBufferStr(&html, "<h1>");
		append_html(&html, title);
		appendPQExpBufferStr(&html, "</h1>\n");
	}
	if (text != NULL)
	{
		appendPQExpBufferStr(&html, "<p>");
		append_html(&html, text);
		appendPQExpBufferStr(&html, "</p>\n");
	}
	if (button != NULL)
	{
		appendPQExpBufferStr(&html, "<form method=\"post\"><button>");
		append_html(&html, button);
		appendPQExpBufferStr(&html, "</button></form>\n");
	}
	appendPQExpBufferStr(&html, "</body>\n</html>\n");
	if (PQExpBufferDataBroken(html))
		fatal(EXIT_REFUSED, "out of memory");
	answer(request, status, "text/html; charset=utf-8", html.data, html.len);
	termPQExpBuffer(&html);
}

void
answer_problem(Request *request, unsigned status, const char *detail)
{
	answer_problem_as(request, status, NULL, detail);
}

/*
 * Answer with a problem of this type, which tells the problem from others with the same status.
 */
void
answer_problem_as(Request *request, unsigned status, const char *type, const char *detail)
{
	if (wants_page(request))
		answer_page(request, status, NULL, detail, NULL);
	else
		answer_problem_text(request, status, problem(status, type, detail, NULL, NULL));
}

void
answer_no_connection(Request *request, const char *why)
{
	answer_problem(request, MHD_HTTP_SERVICE_UNAVAILABLE, why);
}

/*
 * Answer that the path is another one, which is relative to the path of the request.
 */
void
answer_moved(Request *request, const char *location)
{
	answer(request, MHD_HTTP_TEMPORARY_REDIRECT, "text/plain", "", 0);
	answer_header(request, MHD_HTTP_HEADER_LOCATION, location);
}

/*
 * The session or the token of the caller has ended.
 */
void
answer_refused(Request *request)
{
	answer_problem(request, MHD_HTTP_UNAUTHORIZED, "the session or the token has ended");
}

/*
 * Return the HTTP status for an SQLSTATE.  The manual has the same list.
 */
static unsigned
status_of(const char *sqlstate)
{
	static const struct
	{
		const char *begin;
		unsigned	status;
	}			list[] = {
		{"JQ001", MHD_HTTP_BAD_REQUEST}, {"JQ002", MHD_HTTP_SERVICE_UNAVAILABLE},
		{"JQ003", MHD_HTTP_NOT_FOUND}, {"JQ004", MHD_HTTP_CONFLICT},
		{"JQ011", MHD_HTTP_CONFLICT}, {"JQ012", MHD_HTTP_CONFLICT},
		{"JQ014", MHD_HTTP_CONFLICT}, {"JQ015", MHD_HTTP_TOO_MANY_REQUESTS},
		{"JQ", MHD_HTTP_BAD_REQUEST},
		{"42501", MHD_HTTP_FORBIDDEN}, {"25006", MHD_HTTP_FORBIDDEN},
		{"42704", MHD_HTTP_NOT_FOUND}, {"42710", MHD_HTTP_CONFLICT}, {"2BP01", MHD_HTTP_CONFLICT},
		{"55P03", MHD_HTTP_CONFLICT}, {"55000", MHD_HTTP_CONFLICT}, {"55006", MHD_HTTP_CONFLICT},
		{"23", MHD_HTTP_CONFLICT}, {"40", MHD_HTTP_CONFLICT},
		{"22", MHD_HTTP_BAD_REQUEST}, {"54", MHD_HTTP_BAD_REQUEST},
		{"57014", MHD_HTTP_GATEWAY_TIMEOUT},
		{"3F000", MHD_HTTP_SERVICE_UNAVAILABLE}, {"42P01", MHD_HTTP_SERVICE_UNAVAILABLE},
		{"42703", MHD_HTTP_SERVICE_UNAVAILABLE}, {"42883", MHD_HTTP_SERVICE_UNAVAILABLE}, {"42", MHD_HTTP_BAD_REQUEST}, {"08", MHD_HTTP_SERVICE_UNAVAILABLE},
		{"53", MHD_HTTP_SERVICE_UNAVAILABLE}, {"57P", MHD_HTTP_SERVICE_UNAVAILABLE},
	};

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		if (strncmp(sqlstate, list[i].begin, strlen(list[i].begin)) == 0)
			return list[i].status;
	return MHD_HTTP_INTERNAL_SERVER_ERROR;
}

/*
 * Return the HTTP status for an error of the server.
 */
unsigned
status_of_error(const PGresult *result)
{
	return status_of(sqlstate_of(result));
}

static char *
problem_with_status(const Principal *principal, const PGresult *result, unsigned *status)
{
	const char *sqlstate = sqlstate_of(result);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	const char *advice = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);

	*status = status_of(sqlstate);
	/* a handler or another function of the user is missing, and not jobq */
	if (strcmp(sqlstate, "42883") == 0 && message != NULL && strstr(message, "jobq") == NULL)
		*status = MHD_HTTP_BAD_REQUEST;
	if (principal->hide_payload && !error_is_shown(sqlstate))
		return problem(*status, NULL, "the reason is hidden from this role, as payloads are", NULL, sqlstate);
	if (*status == MHD_HTTP_SERVICE_UNAVAILABLE && (strcmp(sqlstate, "3F000") == 0 || strcmp(sqlstate, "42P01") == 0 || strcmp(sqlstate, "42703") == 0 || strcmp(sqlstate, "42883") == 0))
		advice = "Is the extension jobq in this database, and of this version?";
	return problem(*status, NULL, message != NULL ? message : PQresultErrorMessage(result), advice, sqlstate);
}

/*
 * Return a problem document.  The caller frees the text.
 */
char *
problem_text(unsigned status, const char *detail)
{
	return problem(status, NULL, detail, NULL, NULL);
}

/*
 * Return a problem document for an error of the server.  The caller frees the text.
 */
char *
problem_of(const Principal *principal, const PGresult *result)
{
	unsigned	status;

	return problem_with_status(principal, result, &status);
}

void
answer_error(Request *request, const PGresult *result)
{
	unsigned	status;
	char	   *text = problem_with_status(request->principal, result, &status);

	answer_problem_text(request, status, text);
}

/*
 * Append a JSON string.  The encoding of the text does not change.
 */
void
append_json_string(PQExpBuffer buffer, const char *value)
{
	appendPQExpBufferChar(buffer, '"');
	for (; *value != '\0'; value++)
	{
		if (*value == '"' || *value == '\\')
			appendPQExpBufferChar(buffer, '\\');
		if ((unsigned char) *value < ' ')
			appendPQExpBuffer(buffer, "\\u%04x", *value);
		else
			appendPQExpBufferChar(buffer, *value);
	}
	appendPQExpBufferChar(buffer, '"');
}

/*
 * Append a time, which has DateStyle ISO, as a JSON string: "2030-01-31 12:00:00+01"
 * becomes "2030-01-31T12:00:00+01:00".
 */
static void
append_json_time(PQExpBuffer buffer, const char *time)
{
	size_t		day = strcspn(time, " ");
	size_t		zone = day + strcspn(time + day, "+-");
	bool		short_zone = strlen(time + zone) == strlen("+01") || strncmp(time + zone + 3, " BC", 3) == 0;

	/* infinity */
	if (time[day] == '\0')
		append_json_string(buffer, time);
	else if (short_zone)
		appendPQExpBuffer(buffer, "\"%.*sT%.*s:00%s\"", (int) day, time,
						  (int) (zone + 3 - day - 1), time + day + 1, time + zone + 3);
	else
		appendPQExpBuffer(buffer, "\"%.*sT%s\"", (int) day, time, time + day + 1);
}

/*
 * Return the columns of a row, from "column" on, as a JSON object.  The text equals the
 * result of row_to_json() for the types used by jobq's functions.  The caller frees the
 * text.
 */
char *
row_text(const PGresult *result, int row, int column)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	for (int i = column; i < PQnfields(result); i++)
	{
		const char *value = PQgetvalue(result, row, i);

		appendPQExpBufferChar(&text, i == column ? '{' : ',');
		append_json_string(&text, PQfname(result, i));
		appendPQExpBufferChar(&text, ':');
		if (PQgetisnull(result, row, i))
			appendPQExpBufferStr(&text, "null");
		else if (PQftype(result, i) == TYPE_BOOL)
			appendPQExpBufferStr(&text, value[0] == 't' ? "true" : "false");
		else if (PQftype(result, i) == TYPE_TIMESTAMPTZ)
			append_json_time(&text, value);
		else if (PQftype(result, i) == TYPE_INT8 || PQftype(result, i) == TYPE_INT4 ||
				 PQftype(result, i) == TYPE_INT2 || PQftype(result, i) == TYPE_JSON ||
				 PQftype(result, i) == TYPE_JSONB)
			appendPQExpBufferStr(&text, value);
		else
			append_json_string(&text, value);
	}
	appendPQExpBufferChar(&text, '}');
	if (PQExpBufferDataBroken(text))
		fatal(EXIT_REFUSED, "out of memory");
	return text.data;
}

/*
 * Answer with a file of the program: the console, or the description of the routes.  A
 * browser may keep the file, and asks with each use whether the file has changed.
 */
void
answer_asset(Request *request)
{
	static const char *const types[][2] = {
		{".html", "text/html; charset=utf-8"}, {".js", "text/javascript; charset=utf-8"},
		{".css", "text/css; charset=utf-8"}, {".json", "application/json"},
		{".svg", "image/svg+xml"}, {".png", "image/png"}, {".ico", "image/x-icon"},
		{".woff2", "font/woff2"}, {".webmanifest", "application/manifest+json"},
	};
	const char *name = strcmp(request->route->path, "/api/openapi.json") == 0 ? "openapi.json"
		: request->segment == NULL || request->segment[0] == '\0' ? "index.html" : request->segment;
	const char *known = header_of(request, MHD_HTTP_HEADER_IF_NONE_MATCH);
	const char *end = strrchr(name, '.');
	const char *type = "application/octet-stream";

	for (const Asset *asset = assets; asset->name != NULL; asset++)
	{
		struct MHD_Response *response;
		bool		same = known != NULL && strcmp(known, asset->version) == 0;

		if (strcmp(asset->name, name) != 0)
			continue;
		for (size_t i = 0; end != NULL && i < sizeof(types) / sizeof(types[0]); i++)
			if (strcmp(types[i][0], end) == 0)
				type = types[i][1];
		response = MHD_create_response_from_buffer(same ? 0 : asset->size, (void *) asset->bytes,
												   MHD_RESPMEM_PERSISTENT);
		answer_with(request, same ? MHD_HTTP_NOT_MODIFIED : MHD_HTTP_OK, response);
		answer_header(request, MHD_HTTP_HEADER_CONTENT_TYPE, type);
		answer_header(request, MHD_HTTP_HEADER_ETAG, asset->version);
		answer_header(request, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
		return;
	}
	answer_problem(request, MHD_HTTP_NOT_FOUND, "there is nothing of this name");
}

/*-------------------------------------------------------------------------
 *
 * scrape.c
 *	  GET /metrics: the metrics of a database, or of all databases of the caller.
 *
 * With several databases, the samples get the label "database", as from "jobq metrics".  A
 * database that has not answered within SCRAPE_TIME is left out, so that the answer arrives
 * before Prometheus gives up (10 s by default).
 *
 * client/web/scrape.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdlib.h>
#include <string.h>

#define SCRAPE_TIME		5.0

typedef struct Scrape Scrape;

/* The statement in a database. */
typedef struct ScrapePart
{
	Scrape	   *scrape;
	Principal  *principal;
	Statement	statement;
	char	   *text;			/* the metrics, or NULL */
} ScrapePart;

struct Scrape
{
	Scrape	   *next;
	Request    *request;		/* NULL: answered, or the caller has hung up */
	double		until;
	int			running;		/* statements */
	int			n;
	ScrapePart	parts[MAX_DATABASES];
};

static Scrape *scrapes;

static void
answer_exposition(Request *request, const char *text, size_t length)
{
	answer(request, MHD_HTTP_OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text, length);
}

/*
 * Answer with the metrics of a single database.
 */
void
answer_metrics(Request *request, PGresult *result)
{
	answer_exposition(request, PQgetvalue(result, 0, 0), PQgetlength(result, 0, 0));
}

/*
 * Detach a request from its scrape.  Statements of the scrape may still run.
 */
static Request *
scrape_release(Scrape *scrape)
{
	Request    *request = scrape->request;

	scrape->request = NULL;
	request->state = NULL;
	request->leave = NULL;
	return request;
}

/*
 * Answer with the metrics of the databases that have answered.
 */
static void
scrape_answer(Scrape *scrape)
{
	Request    *request = scrape_release(scrape);
	Exposition	exposition = {0};
	PQExpBufferData text;
	int			answered = 0;

	for (int i = 0; i < scrape->n; i++)
		answered += scrape->parts[i].text != NULL;
	if (answered == 0)
	{
		answer_no_connection(request, "no database has answered: GET /db/NAME/metrics has the reason");
		return;
	}
	initPQExpBuffer(&text);
	for (int i = 0; i < scrape->n; i++)
	{
		const ScrapePart *part = &scrape->parts[i];

		printfPQExpBuffer(&text, "# HELP jobq_database_up Whether the metrics of the database are here: 1, or 0.\n"
						  "# TYPE jobq_database_up gauge\njobq_database_up %d\n", part->text != NULL);
		exposition_add(&exposition, text.data, part->principal->database->label);
	}
	for (int i = 0; i < scrape->n; i++)
		if (scrape->parts[i].text != NULL)
			exposition_add(&exposition, scrape->parts[i].text, scrape->parts[i].principal->database->label);
	resetPQExpBuffer(&text);
	exposition_append(&exposition, &text);
	exposition_free(&exposition);
	answer_exposition(request, text.data, text.len);
	termPQExpBuffer(&text);
}

static void
scrape_free(Scrape *scrape)
{
	Scrape	  **at = &scrapes;

	while (*at != scrape)
		at = &(*at)->next;
	*at = scrape->next;
	for (int i = 0; i < scrape->n; i++)
	{
		principal_leave(scrape->parts[i].principal);
		free(scrape->parts[i].text);
	}
	free(scrape);
}

/*
 * A statement has ended.  The last one answers the request.
 */
static void
scrape_ended(Scrape *scrape)
{
	if (--scrape->running > 0)
		return;
	if (scrape->request != NULL)
		scrape_answer(scrape);
	scrape_free(scrape);
}

/*
 * The caller of the scrape has hung up: withdraw the statements that have not begun.  Otherwise,
 * repeated requests of such a caller would fill the queues of the principals.
 */
static void
scrape_withdraw(Scrape *scrape)
{
	for (int i = 0; i < scrape->n; i++)
		scrape->running -= pool_withdraw(scrape->parts[i].principal, &scrape->parts[i].statement);
	if (scrape->running == 0)
		scrape_free(scrape);
}

static void
part_done(Statement *statement, PGresult *result, const char *why)
{
	ScrapePart *part = statement->owner;

	(void) why;
	if (result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1)
		part->text = copy_text(PQgetvalue(result, 0, 0));
	scrape_ended(part->scrape);
}

/*
 * The caller has hung up.
 */
static void
scrape_left(Request *request)
{
	Scrape	   *scrape = request->state;

	scrape_release(scrape);
	request_resume(request);
	scrape_withdraw(scrape);
}

/*
 * GET /metrics: of the database of the path; or of all databases where the caller is logged in,
 * if the path names none of several.
 */
void
run_metrics_route(Request *request)
{
	Scrape	   *scrape;
	Session    *session;

	if (request->named || nweb_databases == 1)
	{
		statement_begin(request);
		return;
	}
	scrape = allocate(sizeof(Scrape));
	scrape->request = request;
	scrape->until = web_now + SCRAPE_TIME;
	scrape->next = scrapes;
	scrapes = scrape;
	for (int i = 0; i < nweb_databases; i++)
	{
		Principal  *principal = session_principal(request, &web_databases[i], &session);
		ScrapePart *part = &scrape->parts[scrape->n];

		if (principal == NULL)
			continue;
		scrape->n++;
		principal_use(principal);
		part->scrape = scrape;
		part->principal = principal;
		part->statement = (Statement)
		{
			.sql = request->route->sql,.done = part_done,.owner = part
		};
	}
	request->state = scrape;
	request->leave = scrape_left;
	request_suspend(request);
	/* a statement may end at once: the scrape ends after the loop */
	scrape->running = scrape->n + 1;
	for (int i = 0; i < scrape->n; i++)
		pool_send(scrape->parts[i].principal, &scrape->parts[i].statement);
	scrape_ended(scrape);
}

/*
 * Answer requests whose time is over.
 */
void
scrape_tick(void)
{
	for (Scrape *scrape = scrapes, *next; scrape != NULL; scrape = next)
	{
		next = scrape->next;
		if (scrape->request != NULL && web_now > scrape->until)
		{
			scrape_answer(scrape);
			scrape_withdraw(scrape);
		}
	}
}

/*-------------------------------------------------------------------------
 *
 * top.c
 *	  The command top: a live screen of queues, workers and dead letters.
 *
 * A non-blocking link for each database reads the tables in turn.  Keys work while a server is
 * slow.  The screen stays and shows a message while a server is unreachable.  After a slow
 * refresh the link pauses for PAUSE_FACTOR times its duration.
 *
 * Each change is one SQL call, after a confirmation.
 *
 * client/top/top.c
 *
 *-------------------------------------------------------------------------
 */
#include "top/inner.h"

#ifndef HAVE_NCURSES
int
run_top(const Command *command, int argc, char **argv)
{
	fatal(EXIT_USAGE, "this jobq was built without ncurses, so it has no top: install %s, and build it again", TOP_PACKAGES);
}
#else
#define NCURSES_WIDECHAR 1
#include <ncursesw/curses.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIN_INTERVAL	0.1
#define MAX_INTERVAL	60.0
#define MAX_LABEL		40		/* columns for the name of a database */
#define PAUSE_FACTOR	10		/* times the duration of a refresh */

/* A database, and the state of its refresh. */
typedef struct Server
{
	Link		link;
	char	   *label;
	int			asks_for;		/* pane being read, or -1: the action */
	int			next_pane;		/* in this refresh */
	double		look_began;
	double		look_at;		/* start of the next refresh */
} Server;

/* An action to confirm, or in progress. */
typedef struct Action
{
	const char *sql;			/* NULL: nothing */
	Server	   *server;
	char	   *value;
	char		done[256];		/* message after success */
	bool		asked;			/* not confirmed yet */
	bool		sent;
} Action;

static Screen screen =
{
	.interval = 2
};
static Action action;
static Server servers[MAX_DATABASES];
static int	nservers = 1;
static volatile sig_atomic_t ended;

static void serve(Server *server);

static void
end(int signal_number)
{
	ended = signal_number;
}

static void
show_status(const char *line)
{
	snprintf(screen.status, sizeof(screen.status), "%s", line);
}

static void
ask(const char *sql, const char *value, const char *question, const char *done)
{
	const		Pane *pane = &panes[screen.active];
	const char *database = pane_database(pane, pane->order[pane->selected]);

	free(action.value);
	action = (Action)
	{
		.sql = sql,.server = &servers[0],.value = copy_text(value),.asked = true
	};
	for (int i = 1; i < nservers; i++)
		if (strcmp(servers[i].label, database) == 0)
			action.server = &servers[i];
	snprintf(action.done, sizeof(action.done), "%s", done);
	snprintf(screen.status, sizeof(screen.status), "%s (y/n)", question);
}

static const char *
selected_cell(int column)
{
	const		Pane *pane = &panes[screen.active];

	return pane->nrows == 0 ? "" : pane_cell(pane, pane->order[pane->selected], column);
}

/*
 * Handle a key that changes data: ask for confirmation, if the key fits the pane.
 */
static void
ask_by_key(int key)
{
	char		question[256];
	char		done[256];
	const char *name = selected_cell(0);

	if (action.sql != NULL)
		return;					/* a single action at a time */
	if (panes[screen.active].nrows == 0)
		show_status("There is nothing to choose.");
	else if (key == 'p' && screen.active == PANE_QUEUES)
	{
		bool		paused = strcmp(selected_cell(QUEUE_STATE), "paused") == 0;

		snprintf(question, sizeof(question), "%s queue \"%s\"?", paused ? "Resume" : "Pause", name);
		snprintf(done, sizeof(done), "Queue \"%s\" is %s.", name, paused ? "resumed" : "paused");
		ask(paused ? "SELECT jobq.resume($1::pg_catalog.text)" : "SELECT jobq.pause($1::pg_catalog.text)",
			name, question, done);
	}
	else if (key == 'c' && screen.active == PANE_WORKERS)
	{
		const char *job = selected_cell(WORKER_JOB);

		if (*job == '\0')
		{
			show_status("There is no job to cancel.");
			return;
		}
		snprintf(question, sizeof(question), "Cancel job %s?", job);
		snprintf(done, sizeof(done), "Job %s is cancelled, or is asked to stop.", job);
		ask("SELECT jobq.cancel($1::pg_catalog.int8)", job, question, done);
	}
	else if (key == 'r' && screen.active == PANE_DEAD)
	{
		snprintf(question, sizeof(question), "Run job %s again?", name);
		snprintf(done, sizeof(done), "Job %s runs again.", name);
		ask("SELECT jobq.retry($1::pg_catalog.int8)", name, question, done);
	}
	else
		show_status("That is not for this table: Tab goes to the next.");
}

/*
 * Handle a key in the filter.
 */
static void
filter_key(int key)
{
	Pane	   *pane = &panes[screen.active];
	size_t		length = strlen(pane->filter);

	if (key == 27)
		pane->filter[0] = '\0';
	if (key == 27 || key == '\n' || key == '\r' || key == KEY_ENTER)
		screen.typing = false;
	else if ((key == KEY_BACKSPACE || key == 127 || key == 8) && length > 0)
	{
		/* remove a complete UTF-8 character */
		while (--length > 0 && ((unsigned char) pane->filter[length] & 0xC0) == 0x80)
			;
		pane->filter[length] = '\0';
	}
	else if (key >= ' ' && key < 256 && key != 127 && length < sizeof(pane->filter) - 1)
	{
		pane->filter[length] = (char) key;
		pane->filter[length + 1] = '\0';
	}
	pane_arrange(pane);
}

static void
sort_key(bool next)
{
	Pane	   *pane = &panes[screen.active];

	if (next)
	{
		pane->sort = pane->sort + 1 < pane->ncolumns ? pane->sort + 1 : -1;
		/* numbers sort from the highest, names from the first */
		pane->reverse = pane->sort >= 0 && pane->columns[pane->sort].kind != CELL_TEXT;
	}
	else
		pane->reverse = !pane->reverse;
	pane_arrange(pane);
}

static void
key_pressed(int key)
{
	Pane	   *pane = &panes[screen.active];
	int			page = LINES / NPANES;

	if (screen.typing)
	{
		filter_key(key);
		return;
	}
	if (action.asked && key != KEY_RESIZE)
	{
		bool		connected = action.server->link.state == LINK_IDLE || action.server->link.state == LINK_BUSY;

		action.asked = false;
		show_status(key != 'y' ? "Nothing was done." : connected ? "..." : "Nothing was done: there is no connection.");
		if (key != 'y' || !connected)
			action.sql = NULL;
		return;
	}
	if (key != KEY_RESIZE && action.sql == NULL)
		show_status("");
	if (screen.help && key != KEY_RESIZE)
	{
		screen.help = false;
		if (key != 'q')
			return;
	}
	switch (key)
	{
		case 'q':
			ended = -1;
			break;
		case '?':
		case 'h':
			screen.help = true;
			break;
		case '\t':
			screen.active = (screen.active + 1) % NPANES;
			break;
		case KEY_BTAB:
			screen.active = (screen.active + NPANES - 1) % NPANES;
			break;
		case KEY_UP:
		case 'k':
			pane_select(pane, pane->selected - 1);
			break;
		case KEY_DOWN:
		case 'j':
			pane_select(pane, pane->selected + 1);
			break;
		case KEY_PPAGE:
			pane_select(pane, pane->selected - page);
			break;
		case KEY_NPAGE:
			pane_select(pane, pane->selected + page);
			break;
		case KEY_HOME:
			pane_select(pane, 0);
			break;
		case KEY_END:
			pane_select(pane, pane->nrows - 1);
			break;
		case 's':
		case 'S':
			sort_key(key == 's');
			break;
		case '/':
			screen.typing = true;
			pane->filter[0] = '\0';
			pane_arrange(pane);
			break;
		case 27:
			pane->filter[0] = '\0';
			pane_arrange(pane);
			break;
		case ' ':
			screen.frozen = !screen.frozen;
			for (int i = 0; i < nservers; i++)
				servers[i].look_at = 0;
			break;
		case '+':
		case '-':
			screen.interval = fmax(MIN_INTERVAL, fmin(MAX_INTERVAL, screen.interval * (key == '+' ? 2 : 0.5)));
			snprintf(screen.status, sizeof(screen.status), "Each %g s.", screen.interval);
			break;
		case 'p':
		case 'c':
		case 'r':
			ask_by_key(key);
			break;
		default:
			break;
	}
}

/*
 * Process a result: a table, or the end of an action.
 */
static void
answered(Server *server, PGresult *result)
{
	bool		good = PQresultStatus(result) == PGRES_TUPLES_OK;

	if (!good)
	{
		char		line[512];
		const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

		snprintf(line, sizeof(line), "error: %s", text != NULL ? text : PQresultErrorMessage(result));
		show_status(line);
	}
	if (server->asks_for == -1)
	{
		if (good)
			show_status(action.done);
		action.sql = NULL;
		server->look_at = 0;	/* show the effect */
		PQclear(result);
		return;
	}
	if (good && !screen.frozen)
		pane_take(&panes[server->asks_for], (int) (server - servers), result);
	else
		PQclear(result);
	server->next_pane = server->asks_for + 1;
	if (server->next_pane == NPANES)
	{
		server->next_pane = 0;
		server->look_at = fmax(server->look_began + screen.interval,
							   seconds() + PAUSE_FACTOR * (seconds() - server->look_began));
	}
}

/*
 * Send the statement of a pane, with the database as another column if there are several.
 */
static void
ask_for_pane(Server *server, const Pane * pane)
{
	const char *label[1] = {server->label};
	char		sql[4096];

	if (nservers == 1)
		link_send(&server->link, INFINITY, pane->sql, 0, NULL);
	else
	{
		snprintf(sql, sizeof(sql), "SELECT t.*, $1::pg_catalog.text FROM (%s) AS t", pane->sql);
		link_send(&server->link, INFINITY, sql, 1, label);
	}
}

/*
 * Send the next statement, if the link is free.
 */
static void
go_on(Server *server)
{
	const char *value[1] = {action.value};

	if (server->link.state != LINK_IDLE)
		return;
	if (action.sql != NULL && !action.asked && action.server == server)
	{
		server->asks_for = -1;
		action.sent = link_send(&server->link, INFINITY, action.sql, 1, value);
	}
	else if (server->next_pane > 0 || (!screen.frozen && seconds() >= server->look_at))
	{
		if (server->next_pane == 0)
			server->look_began = seconds();
		server->asks_for = server->next_pane;
		ask_for_pane(server, &panes[server->next_pane]);
	}
}

/*
 * Wait for a key, a server, or the next refresh.
 */
static void
wait_for_something(void)
{
	struct pollfd ready[1 + MAX_DATABASES] = {{.fd = STDIN_FILENO,.events = POLLIN}};
	double		due = INFINITY;
	double		pause;

	for (int i = 0; i < nservers; i++)
	{
		Link	   *link = &servers[i].link;
		struct pollfd *poll_link = &ready[1 + i];

		due = fmin(due, fmin(link_due(link), link->state == LINK_IDLE && !screen.frozen ? servers[i].look_at : INFINITY));
		if (!link_events(link, &poll_link->fd, &poll_link->events))
			poll_link->fd = -1;
	}
	pause = fmax(0, due - seconds());
	/* wait briefly, because a signal may have come just before */
	if (poll(ready, 1 + nservers, (int) ceil(fmin(pause, 1) * 1000)) == -1 && errno != EINTR)
		fatal(EXIT_REFUSED, "could not wait: %s", strerror(errno));
	/* the terminal is gone */
	if (ready[0].revents & (POLLHUP | POLLERR | POLLNVAL))
		ended = -1;
	for (int i = 0; i < nservers; i++)
		serve(&servers[i]);
}

/*
 * Process the events of a server.
 */
static void
serve(Server *server)
{
	bool		lost;
	PGresult   *result = link_go_on(&server->link, &lost);

	if (lost)
	{
		server->next_pane = 0;
		server->look_at = 0;
		if (action.sql != NULL && !action.asked && action.server == server)
		{
			show_status(action.sent ? "The connection was lost: it is not known whether that was done."
						: "The connection was lost: nothing was done.");
			action.sql = NULL;
		}
	}
	if (result != NULL)
		answered(server, result);
}

/*
 * Connect to the databases.  A single database must be reached.  Of several, one must be; the
 * links to the others connect later.
 */
static void
open_servers(void)
{
	Database	databases[MAX_DATABASES];
	bool		reached = false;
	int			width = strlen("database");

	if (settings.ndatabases <= 1)
	{
		PGconn	   *conn;

		link_open(&servers[0].link, settings.dbname);
		conn = servers[0].link.conn;
		snprintf(screen.where, sizeof(screen.where), "%s@%s  %s port %s", PQuser(conn), PQdb(conn), PQhost(conn), PQport(conn));
		return;
	}
	nservers = databases_open(databases);
	for (int i = 0; i < nservers; i++)
	{
		link_begin(&servers[i].link, databases[i].dbname, databases[i].conn);
		servers[i].label = databases[i].label;
		reached |= databases[i].conn != NULL;
		if (text_width(servers[i].label) > width)
			width = text_width(servers[i].label);
	}
	if (!reached)
		exit(EXIT_NO_CONNECTION);
	/* labels of the same database on several servers differ at their ends */
	panes_of_several(width < MAX_LABEL ? width : MAX_LABEL);
}

/*
 * Name several databases in the head of the screen, first those without a connection.
 */
static void
name_servers(void)
{
	PQExpBufferData down;
	PQExpBufferData up;

	if (nservers == 1)
		return;
	initPQExpBuffer(&down);
	initPQExpBuffer(&up);
	for (int i = 0; i < nservers; i++)
	{
		LinkState	state = servers[i].link.state;
		PQExpBuffer names = state == LINK_DOWN || state == LINK_CONNECTING ? &down : &up;

		appendPQExpBuffer(names, "%s%s", names->len > 0 ? ", " : "", servers[i].label);
	}
	snprintf(screen.where, sizeof(screen.where), "%s%s%s%s", down.len > 0 ? "(no connection: " : "", down.data,
			 down.len > 0 ? ")  " : "", up.data);
	termPQExpBuffer(&down);
	termPQExpBuffer(&up);
}

int
run_top(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	int			key;

	command_parse(command, argc, argv, values);
	if (values[0] != NULL)
		screen.interval = duration(values[0], "--interval");
	if (screen.interval < MIN_INTERVAL || screen.interval > MAX_INTERVAL)
		fatal(EXIT_USAGE, "invalid value for --interval: \"%s\" (0.1 s to 60 s)", values[0]);
	if (settings.json)
		fatal(EXIT_USAGE, "\"jobq top\" has no JSON: use queues, workers and dead");
	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
		fatal(EXIT_USAGE, "\"jobq top\" needs a terminal");
	open_servers();
	signal(SIGINT, end);
	signal(SIGTERM, end);
	signal(SIGHUP, end);
	draw_begin();
	say_into(screen.status, sizeof(screen.status));
	while (ended == 0)
	{
		name_servers();
		draw(&screen);
		wait_for_something();
		while ((key = getch()) != ERR)
			key_pressed(key);
		for (int i = 0; i < nservers; i++)
			go_on(&servers[i]);
	}
	draw_end();
	say_into(NULL, 0);
	for (int i = 0; i < nservers; i++)
		link_close(&servers[i].link);
	if (ended > 0)
	{
		signal(ended, SIG_DFL);
		raise(ended);
	}
	return EXIT_DONE;
}
#endif

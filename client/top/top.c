/*-------------------------------------------------------------------------
 *
 * top.c
 *	  The command top: a live screen of queues, workers and dead letters.
 *
 * A non-blocking link reads the tables in turn.  Keys work while the server is slow.  The
 * screen stays and shows a message while the server is unreachable.  After a slow refresh
 * the program pauses for PAUSE_FACTOR times its duration.
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
#define PAUSE_FACTOR	10		/* times the duration of a refresh */

/* An action to confirm, or in progress. */
typedef struct Action
{
	const char *sql;			/* NULL: nothing */
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
static Link server;
static int	asks_for = -1;		/* pane being read, or -1 */
static int	next_pane;			/* in this refresh */
static double look_began;
static double look_at;			/* start of the next refresh */
static volatile sig_atomic_t ended;

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
	free(action.value);
	action = (Action)
	{
		.sql = sql,.value = copy_text(value),.asked = true
	};
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
		bool		connected = server.state == LINK_IDLE || server.state == LINK_BUSY;

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
			look_at = 0;
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
answered(PGresult *result)
{
	bool		good = PQresultStatus(result) == PGRES_TUPLES_OK;

	if (!good)
	{
		char		line[512];
		const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

		snprintf(line, sizeof(line), "error: %s", text !=NULL ? text : PQresultErrorMessage(result));
		show_status(line);
	}
	if (asks_for == -1)
	{
		if (good)
			show_status(action.done);
		action.sql = NULL;
		look_at = 0;			/* show the effect */
		PQclear(result);
		return;
	}
	if (good && !screen.frozen)
		pane_take(&panes[asks_for], result);
	else
		PQclear(result);
	next_pane = asks_for + 1;
	if (next_pane == NPANES)
	{
		next_pane = 0;
		look_at = fmax(look_began + screen.interval, seconds() + PAUSE_FACTOR * (seconds() - look_began));
	}
}

/*
 * Send the next statement, if the link is free.
 */
static void
go_on(void)
{
	const char *value[1] = {action.value};

	if (server.state != LINK_IDLE)
		return;
	if (action.sql != NULL && !action.asked)
	{
		asks_for = -1;
		action.sent = link_send(&server, INFINITY, action.sql, 1, value);
	}
	else if (next_pane > 0 || (!screen.frozen && seconds() >= look_at))
	{
		if (next_pane == 0)
			look_began = seconds();
		asks_for = next_pane;
		link_send(&server, INFINITY, panes[next_pane].sql, 0, NULL);
	}
}

/*
 * Wait for a key, the server, or the next refresh.
 */
static void
wait_for_something(void)
{
	struct pollfd ready[2] = {{.fd = STDIN_FILENO,.events = POLLIN}, {.fd = -1}};
	double		due = fmin(link_due(&server),
						   server.state == LINK_IDLE && !screen.frozen ? look_at : INFINITY);
	double		pause = fmax(0, due - seconds());
	bool		lost;
	PGresult   *result;

	if (!link_events(&server, &ready[1].fd, &ready[1].events))
		ready[1].fd = -1;
	/* wait briefly, because a signal may have come just before */
	if (poll(ready, 2, (int) ceil(fmin(pause, 1) * 1000)) == -1 && errno != EINTR)
		fatal(EXIT_REFUSED, "could not wait: %s", strerror(errno));
	/* the terminal is gone */
	if (ready[0].revents & (POLLHUP | POLLERR | POLLNVAL))
		ended = -1;
	result = link_go_on(&server, &lost);
	if (lost)
	{
		next_pane = 0;
		look_at = 0;
		if (action.sql != NULL && !action.asked)
		{
			show_status(action.sent ? "The connection was lost: it is not known whether that was done."
						: "The connection was lost: nothing was done.");
			action.sql = NULL;
		}
	}
	if (result != NULL)
		answered(result);
}

int
run_top(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	char		where[256];
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
	link_open(&server);
	snprintf(where, sizeof(where), "%s@%s  %s port %s", PQuser(server.conn), PQdb(server.conn),
			 PQhost(server.conn), PQport(server.conn));
	screen.where = where;
	signal(SIGINT, end);
	signal(SIGTERM, end);
	signal(SIGHUP, end);
	draw_begin();
	say_into(screen.status, sizeof(screen.status));
	while (ended == 0)
	{
		draw(&screen);
		wait_for_something();
		while ((key = getch()) != ERR)
			key_pressed(key);
		go_on();
	}
	draw_end();
	say_into(NULL, 0);
	link_close(&server);
	if (ended > 0)
	{
		signal(ended, SIG_DFL);
		raise(ended);
	}
	return EXIT_DONE;
}
#endif

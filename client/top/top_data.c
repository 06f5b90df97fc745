/*-------------------------------------------------------------------------
 *
 * top_data.c
 *	  The live screen: its tables; filter and order of their rows.
 *
 * The server does not count arrivals and departures of jobs.  The arrival rate is
 * estimated from the newest 2000 jobs.  The time base is the last ten seconds, or the
 * span of all 2000 jobs.  The departure rate follows from the arrival rate and the change
 * in the number of jobs.
 *
 * client/top/top_data.c
 *
 *-------------------------------------------------------------------------
 */
#include "top/inner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Weight of the last refresh in the departure rate of a queue. */
#define SHARE_OF_LAST	0.5

/* Operators and functions are schema-qualified as in commands.c. */
#define SECONDS_SINCE(time)	"extract(epoch FROM jobq_internal.clock() OPERATOR(pg_catalog.-) " time ")"
#define PLUS	" OPERATOR(pg_catalog.+) "

typedef struct Flow
{
	char	   *queue;
	int			server;
	double		live;
	double		out;
	double		at;
} Flow;

static const Pane *compared;	/* by compare_rows() */
static bool several;			/* databases */

Pane		panes[NPANES] = {
	{
		.title = "QUEUES",.sort = -1,
		.sql = "WITH newest AS MATERIALIZED (SELECT j.queue, j.enqueued_at FROM jobq.jobs j LIMIT 2000), "
		"span AS (SELECT CASE WHEN pg_catalog.count(*) OPERATOR(pg_catalog.=) 2000 "
		"THEN least(10, greatest(0.001, " SECONDS_SINCE("pg_catalog.min(n.enqueued_at)") ")) ELSE 10 END AS seconds FROM newest n), "
		"came AS (SELECT n.queue, pg_catalog.count(*) OPERATOR(pg_catalog./) s.seconds AS rate FROM newest n, span s "
		"WHERE " SECONDS_SINCE("n.enqueued_at") " OPERATOR(pg_catalog.<) s.seconds GROUP BY n.queue, s.seconds) "
		"SELECT q.name, CASE WHEN q.paused THEN 'paused' ELSE q.mode END, pg_catalog.round(coalesce(c.rate, 0), 2), "
		"q.ready" PLUS "q.scheduled" PLUS "q.blocked" PLUS "q.running AS live, q.ready, q.scheduled" PLUS "q.blocked AS later, "
		SECONDS_SINCE("q.oldest_ready") ", q.running, q.dead_letters "
		"FROM jobq.queues q LEFT JOIN came c ON c.queue OPERATOR(pg_catalog.=) q.name ORDER BY q.name",
		.ncolumns = 9,
		.columns = {
			{"queue", CELL_TEXT, 12, true, 0}, {"mode", CELL_TEXT, 8, false, 4},
			{"in/s", CELL_RATE, 6, false, 6}, {"out/s", CELL_RATE, 6, false, 5},
			{"ready", CELL_NUMBER, 8, false, 0}, {"later", CELL_NUMBER, 7, false, 7},
			{"oldest", CELL_TIME, 6, false, 2}, {"running", CELL_NUMBER, 7, false, 1},
			{"dead", CELL_NUMBER, 6, false, 3},
		}
	},
	{
		.title = "WORKERS",.sort = -1,
		.sql = "SELECT coalesce(w.pid::pg_catalog.text, w.consumer), w.role, w.state, w.job_id, "
		"CASE WHEN w.type OPERATOR(pg_catalog.=) 'consumer' THEN pg_catalog.concat('holds ', w.running, ' jobs') ELSE w.kind END, "
		SECONDS_SINCE("coalesce(w.job_started_at, w.started_at)") ", w.progress, "
		"CASE WHEN w.type OPERATOR(pg_catalog.=) 'consumer' THEN w.client ELSE coalesce(w.message, "
		"CASE WHEN w.job_id IS NULL THEN pg_catalog.concat(w.completed, ' done, ', w.failed, ' failed') END) END "
		"FROM jobq.workers w ORDER BY w.type DESC, w.job_id, w.pid, w.consumer",
		.ncolumns = 8,
		.columns = {
			{"worker", CELL_TEXT, 10, false, 0}, {"role", CELL_TEXT, 10, false, 3},
			{"state", CELL_TEXT, 8, false, 2}, {"job", CELL_ID, 8, false, 0},
			{"kind", CELL_TEXT, 12, true, 0}, {"time", CELL_TIME, 6, false, 1},
			{"%", CELL_PERCENT, 4, false, 4}, {"message", CELL_TEXT, 12, true, 5},
		}
	},
	{
		.title = "DEAD",.sort = -1,
		.sql = "SELECT f.id, f.kind, f.queue, " SECONDS_SINCE("f.finished_at") ", f.attempt, f.error "
		"FROM jobq.dead_letters f ORDER BY f.finished_at DESC, f.id DESC LIMIT 200",
		.ncolumns = 6,
		.columns = {
			{"job", CELL_ID, 8, false, 0}, {"kind", CELL_TEXT, 14, false, 1},
			{"queue", CELL_TEXT, 10, false, 3}, {"age", CELL_TIME, 6, false, 2},
			{"attempt", CELL_NUMBER, 7, false, 4}, {"error", CELL_TEXT, 12, true, 0},
		}
	},
};

/*
 * The departure rate of a queue, from the number of jobs and the arrival rate.
 */
static double
rate_out(const char *queue, int server, double live, double rate_in, double now)
{
	static Flow *flows;
	static int	nflows;
	Flow	   *flow = NULL;

	for (int i = 0; i < nflows && flow == NULL; i++)
		if (flows[i].server == server && strcmp(flows[i].queue, queue) == 0)
			flow = &flows[i];
	if (flow == NULL)
	{
		flows = enlarge(flows, (nflows + 1) * sizeof(Flow));
		flow = &flows[nflows++];
		*flow = (Flow)
		{
			.queue = copy_text(queue),.server = server,.live = live,.out = rate_in,.at = now
		};
	}
	else if (now > flow->at)
	{
		double		out = fmax(0, rate_in - (live - flow->live) / (now - flow->at));

		flow->out = flow->out * (1 - SHARE_OF_LAST) + out * SHARE_OF_LAST;
		flow->live = live;
		flow->at = now;
	}
	return flow->out;
}

/*
 * The value of a row in a column.
 */
const char *
pane_cell(const Pane * pane, int row, int column)
{
	return PQgetvalue(pane->result, row, column);
}

/*
 * Add the column of the database to all panes, for labels of this width.  Called once, before
 * the first result.
 */
void
panes_of_several(int width)
{
	several = true;
	for (int i = 0; i < NPANES; i++)
		panes[i].columns[panes[i].ncolumns++] = (TopColumn)
	{
		"database", CELL_TEXT, width, false, 0
	};
}

/*
 * The database of a row, or an empty string with a single database.
 */
const char *
pane_database(const Pane * pane, int row)
{
	return several ? pane_cell(pane, row, pane->ncolumns - 1) : "";
}

/*
 * Replace the table of a pane, or the rows of one of several servers, by a new result, and
 * take ownership of the result.
 */
void
pane_take(Pane * pane, int server, PGresult *result)
{
	if (pane == &panes[PANE_QUEUES])
		for (int row = 0; row < PQntuples(result); row++)
		{
			char		out[32];

			snprintf(out, sizeof(out), "%.2f",
					 rate_out(PQgetvalue(result, row, QUEUE_NAME), server, atof(PQgetvalue(result, row, QUEUE_OUT)),
							  atof(PQgetvalue(result, row, QUEUE_IN)), seconds()));
			PQsetvalue(result, row, QUEUE_OUT, out, strlen(out));
		}
	PQclear(pane->result);
	pane->result = result;
	if (several)
	{
		PQclear(pane->parts[server]);
		pane->parts[server] = result;
		pane->result = PQcopyResult(result, PG_COPYRES_ATTRS);
		if (pane->result == NULL)
			fatal(EXIT_REFUSED, "out of memory");
		for (int i = 0; i < settings.ndatabases; i++)
			if (pane->parts[i] != NULL)
				append_rows(pane->result, pane->parts[i]);
	}
	pane_arrange(pane);
}

/*
 * The trouble of a queue: paused queues come first, then queues whose oldest ready job has waited for a
 * minute, as in the console.  Other queues keep their positions.
 */
static double
trouble_of(const Pane * pane, int row)
{
	double		waits = atof(pane_cell(pane, row, QUEUE_OLDEST));

	return (strcmp(pane_cell(pane, row, QUEUE_STATE), "paused") == 0 ? 1e9 : 0) + (waits >= 60 ? waits : 0);
}

static int
compare_trouble(const void *a, const void *b)
{
	int			x = *(const int *) a;
	int			y = *(const int *) b;
	double		difference = trouble_of(compared, y) - trouble_of(compared, x);

	return difference != 0 ? (difference > 0 ? 1 : -1) : x - y;
}

static int
compare_rows(const void *a, const void *b)
{
	const		Pane *pane = compared;
	int			x = *(const int *) a;
	int			y = *(const int *) b;
	const char *left = pane_cell(pane, x, pane->sort);
	const char *right = pane_cell(pane, y, pane->sort);
	bool		no_left = PQgetisnull(pane->result, x, pane->sort);
	bool		no_right = PQgetisnull(pane->result, y, pane->sort);
	double		difference;

	/* nulls last in either order */
	if (no_left != no_right)
		return no_left - no_right;
	difference = pane->columns[pane->sort].kind == CELL_TEXT ? strcmp(left, right) : atof(left) - atof(right);
	if (difference == 0)
		return x - y;
	return (difference < 0) != pane->reverse ? -1 : 1;
}

/*
 * True if the row is the selected row.  The key is the first column, then the database.
 */
static bool
has_key(const Pane * pane, int row)
{
	const char *first = pane_cell(pane, row, 0);
	size_t		length = strlen(first);

	return strncmp(pane->key, first, length) == 0 && pane->key[length] == '\n' &&
		strcmp(pane->key + length + 1, pane_database(pane, row)) == 0;
}

/*
 * Filter and sort the rows.  The selection stays on the same row.
 */
void
pane_arrange(Pane * pane)
{
	int			n = pane->result != NULL ? PQntuples(pane->result) : 0;

	free(pane->order);
	pane->order = allocate(n * sizeof(int));
	pane->nrows = 0;
	for (int row = 0; row < n; row++)
	{
		bool		shown = pane->filter[0] == '\0';

		for (int column = 0; column < pane->ncolumns && !shown; column++)
			shown = strcasestr(pane_cell(pane, row, column), pane->filter) != NULL;
		if (shown)
			pane->order[pane->nrows++] = row;
	}
	if (pane->sort >= 0 || pane == &panes[PANE_QUEUES])
	{
		compared = pane;
		qsort(pane->order, pane->nrows, sizeof(int), pane->sort >= 0 ? compare_rows : compare_trouble);
	}
	for (int i = 0; i < pane->nrows && pane->key != NULL; i++)
		if (has_key(pane, pane->order[i]))
		{
			pane->selected = i;
			return;
		}
	pane_select(pane, pane->selected);
}

/*
 * Select the visible row with this index, or the nearest.
 */
void
pane_select(Pane * pane, int row)
{
	pane->selected = row >= pane->nrows ? pane->nrows - 1 : row;
	if (pane->selected < 0)
		pane->selected = 0;
	free(pane->key);
	pane->key = NULL;
	if (pane->nrows > 0)
	{
		const char *first = pane_cell(pane, pane->order[pane->selected], 0);
		const char *database = pane_database(pane, pane->order[pane->selected]);
		size_t		size = strlen(first) + strlen(database) + 2;

		pane->key = allocate(size);
		snprintf(pane->key, size, "%s\n%s", first, database);
	}
}

/*
 * Format a value: short numbers, times with a unit.
 */
void
format_cell(char *cell, size_t size, CellKind kind, const char *value)
{
	double		number = atof(value);

	if (*value == '\0' || kind == CELL_TEXT || kind == CELL_ID)
		snprintf(cell, size, "%s", value);
	else if (kind == CELL_TIME)
	{
		if (number < 0)
			number = 0;
		if (number < 100)
			snprintf(cell, size, "%.0fs", number);
		else if (number < 100 * 60)
			snprintf(cell, size, "%.0fmin", number / 60);
		else if (number < 100 * 3600)
			snprintf(cell, size, "%.0fh", number / 3600);
		else
			snprintf(cell, size, "%.0fd", number / 86400);
	}
	else if (kind == CELL_PERCENT)
		snprintf(cell, size, "%.0f%%", number);
	else if (kind == CELL_RATE)
		snprintf(cell, size, number < 10 ? "%.1f" : number < 1e5 ? "%.0f" : "%.0fk", number < 1e5 ? number : number / 1e3);
	else
		snprintf(cell, size, number < 1e7 ? "%.0f" : "%.1fM", number < 1e7 ? number : number / 1e6);
}

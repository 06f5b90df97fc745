/*-------------------------------------------------------------------------
 *
 * top.h
 *	  The live screen: what its parts have in common.
 *
 * The screen has three panes, each a table: queues, workers, dead letters.  Each
 * is read by one statement, and kept as the server has sent it; what is sorted,
 * filtered and selected is an order of its rows.
 *
 * client/top.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_TOP_H
#define JOBQ_TOP_H

#include "jobq.h"

typedef enum CellKind
{
	CELL_TEXT,
	CELL_NUMBER,
	CELL_ID,
	CELL_RATE,					/* of a second */
	CELL_TIME,					/* seconds */
	CELL_PERCENT,
}			CellKind;

typedef struct TopColumn
{
	const char *title;
	CellKind	kind;
	int			width;			/* at least, if it is "wide" */
	bool		wide;			/* has what the others leave */
	int			leaves;			/* the highest goes first where there is no
								 * room; 0: stays */
}			TopColumn;

#define MAX_TOP_COLUMNS	10

/* Which columns of the statements are known by name. */
enum
{
	QUEUE_NAME, QUEUE_STATE, QUEUE_IN, QUEUE_OUT, QUEUE_READY, QUEUE_LATER,
	QUEUE_OLDEST, QUEUE_RUNNING, QUEUE_DEAD
};
enum
{
	WORKER_NAME, WORKER_ROLE, WORKER_STATE, WORKER_JOB
};
enum
{
	DEAD_ID
};

typedef enum PaneName
{
	PANE_QUEUES,
	PANE_WORKERS,
	PANE_DEAD,
	NPANES
}			PaneName;

typedef struct Pane
{
	const char *title;
	const char *sql;			/* the first column tells the rows apart */
	int			ncolumns;
	TopColumn	columns[MAX_TOP_COLUMNS];
	int			sort;			/* column, or -1: as the server sends them */
	bool		reverse;
	char		filter[64];
	PGresult   *result;			/* or NULL: not read yet */
	int		   *order;			/* rows that are shown */
	int			nrows;
	int			selected;		/* in "order" */
	int			first;			/* that is on the screen */
	char	   *key;			/* of the selected row */
}			Pane;

extern Pane panes[NPANES];

/* top_data.c */
extern void pane_take(Pane * pane, PGresult *result);
extern void pane_arrange(Pane * pane);
extern void pane_select(Pane * pane, int row);
extern const char *pane_cell(const Pane * pane, int row, int column);
extern void format_cell(char *cell, size_t size, CellKind kind, const char *value);

/* top_draw.c */
typedef struct Screen
{
	PaneName	active;
	bool		frozen;
	bool		help;
	double		interval;
	const char *where;			/* database and server */
	char		status[512];	/* what has happened, or is asked */
	bool		typing;			/* a filter */
}			Screen;

extern void draw_begin(void);
extern void draw_end(void);
extern void draw(const Screen * screen);

#endif							/* JOBQ_TOP_H */

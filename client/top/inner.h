/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  The live screen: shared declarations.
 *
 * The screen has three panes, each a table: queues, workers, dead letters.  Each table is
 * read by a statement, and the pane keeps the result unchanged.  Sorting, filtering and
 * selection work on an array of row numbers.  With several databases, the last column of each
 * table is the database, and the result is made of the rows of all.
 *
 * client/top/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_TOP_INNER_H
#define JOBQ_TOP_INNER_H

#include "top/top.h"

typedef enum CellKind
{
	CELL_TEXT,
	CELL_NUMBER,
	CELL_ID,
	CELL_RATE,					/* per second */
	CELL_TIME,					/* seconds */
	CELL_PERCENT,
}			CellKind;

typedef struct TopColumn
{
	const char *title;
	CellKind	kind;
	int			width;			/* minimum, if "wide" */
	bool		wide;			/* takes the remaining width */
	int			leaves;			/* the highest is dropped first if the screen
								 * is narrow; 0: never */
}			TopColumn;

#define MAX_TOP_COLUMNS	10

/* Columns used by index. */
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
	const char *sql;			/* the first column is the key of a row */
	int			ncolumns;
	TopColumn	columns[MAX_TOP_COLUMNS];
	int			sort;			/* column, or -1: order of the server; queues
								 * in trouble first */
	bool		reverse;
	char		filter[64];
	PGresult   *result;			/* or NULL: not read yet */
	PGresult   *parts[MAX_DATABASES];	/* of several databases, or NULL */
	int		   *order;			/* numbers of the visible rows */
	int			nrows;
	int			selected;		/* index in "order" */
	int			first;			/* first visible index */
	char	   *key;			/* key of the selected row */
}			Pane;

/* client/top/top_data.c */
extern Pane panes[NPANES];
extern void panes_of_several(int width);
extern void pane_take(Pane * pane, int server, PGresult *result);
extern void pane_arrange(Pane * pane);
extern void pane_select(Pane * pane, int row);
extern const char *pane_database(const Pane * pane, int row);
extern const char *pane_cell(const Pane * pane, int row, int column);
extern void format_cell(char *cell, size_t size, CellKind kind, const char *value);

/* client/top/top_draw.c */
typedef struct Screen
{
	PaneName	active;
	bool		frozen;
	bool		help;
	double		interval;
	char		where[256];		/* database and server, or several databases */
	char		status[512];	/* last message, or a question */
	bool		typing;			/* a filter is being typed */
}			Screen;

extern void draw_begin(void);
extern void draw_end(void);
extern void draw(const Screen * screen);

#endif							/* JOBQ_TOP_INNER_H */

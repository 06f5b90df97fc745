/*-------------------------------------------------------------------------
 *
 * top_draw.c
 *	  The live screen: drawing.
 *
 * Values of jobs are printed through append_text(), which escapes control characters
 * (output.c).  Colours never carry information that the words lack.
 *
 * client/top/top_draw.c
 *
 *-------------------------------------------------------------------------
 */
#include "top/inner.h"

#ifdef HAVE_NCURSES
#define NCURSES_WIDECHAR 1
#include <ncursesw/curses.h>
#include <langinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_LINES	2
#define FOOTER_LINES	2

enum
{
	RED = 1, GREEN, YELLOW, CYAN
};

static const struct
{
	const char *word;
	short		colour;
}			words[] = {
	{"paused", YELLOW}, {"running", CYAN}, {"leaving", YELLOW}, {"starting", YELLOW}, {"exited", RED},
};

static const char *const help_lines[] = {
	"Tab        the next table         Up, Down, PgUp, PgDn, Home, End",
	"s          sort by the next column       S    turn the order round",
	"           (queues: at first those in trouble, paused or waiting, come first)",
	"/          show only rows that contain a text; Esc ends it",
	"p          pause or resume the queue            (queues)",
	"c          cancel the job                       (workers)",
	"r          run the dead letter again            (dead letters)",
	"Space      stop the screen, or go on",
	"+ -        look less, or more, often",
	"q          quit",
	"",
	"in/s and out/s are estimates: in by the newest jobs, out by what is left.",
	"What is changed is asked about first: y does it, any other key does not.",
};

static bool started;

/*
 * Restore the terminal, also after a fatal error.
 */
void
draw_end(void)
{
	if (started && !isendwin())
		endwin();
}

/*
 * Initialize the terminal.
 */
void
draw_begin(void)
{
	if (newterm(NULL, stdout, stdin) == NULL)
		fatal(EXIT_REFUSED, "the terminal \"%s\" is not known", getenv("TERM") != NULL ? getenv("TERM") : "");
	started = true;
	atexit(draw_end);
	if (settings.colour && has_colors())
	{
		start_color();
		use_default_colors();
		init_pair(RED, COLOR_RED, -1);
		init_pair(GREEN, COLOR_GREEN, -1);
		init_pair(YELLOW, COLOR_YELLOW, -1);
		init_pair(CYAN, COLOR_CYAN, -1);
	}
	cbreak();
	noecho();
	nonl();
	curs_set(0);
	keypad(stdscr, true);
	nodelay(stdscr, true);
	set_escdelay(50);
}

static attr_t
colour(short pair)
{
	return settings.colour && has_colors() ? COLOR_PAIR(pair) : 0;
}

/*
 * Print a text at the cursor in "width" columns, padded with spaces.
 */
static void
put(const char *text, int width, bool right)
{
	PQExpBufferData shown;
	int			columns;

	if (width <= 0)
		return;
	initPQExpBuffer(&shown);
	columns = append_text(&shown, text, width);
	if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
		for (char *c = shown.data; *c != '\0'; c++)
			if ((unsigned char) *c >= 0x80)
				*c = '?';
	if (right)
		printw("%*s", width - columns, "");
	addstr(shown.data);
	if (!right)
		printw("%*s", width - columns, "");
	termPQExpBuffer(&shown);
}

/*
 * Compute the column widths.  On a narrow screen, columns are dropped (width 0) in the
 * order of "leaves".  The wide columns share the remaining width.
 */
static void
widths_of(const Pane * pane, int *widths)
{
	int			sum = -1;
	int			nwide = 0;

	for (int i = 0; i < pane->ncolumns; i++)
	{
		widths[i] = pane->columns[i].width;
		sum += widths[i] + 1;
	}
	while (sum > COLS)
	{
		int			leaves = -1;

		for (int i = 0; i < pane->ncolumns; i++)
			if (widths[i] > 0 && pane->columns[i].leaves > 0 &&
				(leaves == -1 || pane->columns[i].leaves > pane->columns[leaves].leaves))
				leaves = i;
		if (leaves == -1)
			break;
		sum -= widths[leaves] + 1;
		widths[leaves] = 0;
	}
	for (int i = 0; i < pane->ncolumns; i++)
		nwide += pane->columns[i].wide && widths[i] > 0;
	for (int i = 0; i < pane->ncolumns && sum < COLS; i++)
		if (pane->columns[i].wide && widths[i] > 0)
		{
			int			more = (COLS - sum) / nwide--;

			widths[i] += more;
			sum += more;
		}
}

static bool
is_right(const TopColumn * column)
{
	return column->kind != CELL_TEXT;
}

static attr_t
colour_of_cell(const Pane * pane, int column, const char *value)
{
	if (pane == &panes[PANE_QUEUES] && column == QUEUE_DEAD && atof(value) > 0)
		return colour(RED);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(words[i].word, value) == 0)
			return colour(words[i].colour);
	return 0;
}

static void
draw_row(const Pane * pane, int row, const int *widths, bool selected)
{
	for (int i = 0; i < pane->ncolumns; i++)
	{
		const char *value = pane_cell(pane, row, i);
		char		cell[1024];
		attr_t		attributes = selected ? A_REVERSE : colour_of_cell(pane, i, value);

		if (widths[i] == 0)
			continue;
		format_cell(cell, sizeof(cell), pane->columns[i].kind, value);
		attr_on(attributes, NULL);
		put(cell, widths[i], is_right(&pane->columns[i]));
		if (i < pane->ncolumns - 1)
			put("", 1, false);
		attr_off(attributes, NULL);
	}
}

/*
 * Draw a pane in "height" lines, starting at line "top": title and rows.
 */
static void
draw_pane(Pane * pane, bool active, int top, int height)
{
	int			widths[MAX_TOP_COLUMNS];
	int			rows = height - 1;

	widths_of(pane, widths);
	move(top, 0);
	attron(active ? A_REVERSE | A_BOLD : A_BOLD | A_UNDERLINE);
	for (int i = 0; i < pane->ncolumns; i++)
	{
		char		title[64];

		if (widths[i] == 0)
			continue;
		snprintf(title, sizeof(title), "%s%s", i == 0 ? pane->title : pane->columns[i].title,
				 pane->sort == i ? pane->reverse ? "-" : "+" : "");
		put(title, widths[i], is_right(&pane->columns[i]) && i > 0);
		if (i < pane->ncolumns - 1)
			put("", 1, false);
	}
	attroff(A_REVERSE | A_BOLD | A_UNDERLINE);

	if (pane->selected < pane->first)
		pane->first = pane->selected;
	if (pane->selected >= pane->first + rows)
		pane->first = pane->selected - rows + 1;
	if (pane->first > pane->nrows - rows)
		pane->first = pane->nrows > rows ? pane->nrows - rows : 0;
	for (int i = 0; i < rows; i++)
	{
		int			row = pane->first + i;

		move(top + 1 + i, 0);
		if (row < pane->nrows)
			draw_row(pane, pane->order[row], widths, active && row == pane->selected);
		else if (i == 0)
			put(pane->result == NULL ? "  ..." : pane->filter[0] != '\0' ? "  none like that" : "  none", COLS, false);
		clrtoeol();
	}
}

/*
 * Compute the heights of the panes.  Each pane has a third.  The active pane receives
 * unused lines first, then the panes after it.
 */
static void
heights_of(PaneName active, int room, int *heights)
{
	int			left = room;

	for (int i = 0; i < NPANES; i++)
	{
		int			wants = 1 + (panes[i].nrows > 0 ? panes[i].nrows : 1);
		int			has = room / NPANES;

		heights[i] = wants < has ? wants : has;
		left -= heights[i];
	}
	for (int n = 0; n < NPANES && left > 0; n++)
	{
		int			i = (active + n) % NPANES;
		int			wants = 1 + panes[i].nrows - heights[i];

		if (wants > 0)
		{
			heights[i] += wants < left ? wants : left;
			left -= wants < left ? wants : left;
		}
	}
	heights[NPANES - 1] += left;
}

static void
draw_header(const Screen * screen)
{
	const		Pane *queues = &panes[PANE_QUEUES];
	double		sums[QUEUE_DEAD + 1] = {0};
	char		line[256];

	for (int row = 0; queues->result != NULL && row < PQntuples(queues->result); row++)
		for (int i = QUEUE_IN; i <= QUEUE_DEAD; i++)
			sums[i] += atof(pane_cell(queues, row, i));
	snprintf(line, sizeof(line), "jobq top  %s%s", screen->where, screen->frozen ? "  (stopped)" : "");
	move(0, 0);
	attron(A_BOLD);
	put(line, COLS, false);
	attroff(A_BOLD);
	snprintf(line, sizeof(line), "%.1f/s in  %.1f/s out  %.0f ready  %.0f later  %.0f running  %.0f dead letters",
			 sums[QUEUE_IN], sums[QUEUE_OUT], sums[QUEUE_READY], sums[QUEUE_LATER], sums[QUEUE_RUNNING],
			 sums[QUEUE_DEAD]);
	move(1, 0);
	put(line, COLS, false);
}

/*
 * Write the number of rows and columns for which the screen has no room; nothing if all are shown.
 */
static void
hidden_text(char *line, size_t size, const int *heights)
{
	static const char *const names[NPANES] = {"queues", "workers", "dead letters"};
	int			columns = 0;
	size_t		end = 0;

	line[0] = '\0';
	for (int i = 0; i < NPANES; i++)
	{
		int			widths[MAX_TOP_COLUMNS];
		int			rows = panes[i].nrows - (heights[i] - 1);

		if (rows > 0)
			end += snprintf(line + end, size - end, "%s%d %s", end > 0 ? ", " : "Not shown: ", rows, names[i]);
		widths_of(&panes[i], widths);
		for (int j = 0; j < panes[i].ncolumns; j++)
			columns += widths[j] == 0;
	}
	if (columns > 0)
		snprintf(line + end, size - end, "%s%d columns", end > 0 ? ", " : "Not shown: ", columns);
}

static void
draw_footer(const Screen * screen, const int *heights)
{
	static const char *const keys[NPANES] = {
		"p pause or resume", "c cancel the job", "r run it again"
	};
	const		Pane *pane = &panes[screen->active];
	char		line[512];

	move(LINES - 2, 0);
	if (screen->typing || screen->status[0] != '\0')
		attron(A_BOLD);
	if (screen->typing)
		snprintf(line, sizeof(line), "filter: %s_", pane->filter);
	else if (screen->status[0] != '\0' || screen->help)
		snprintf(line, sizeof(line), "%s", screen->status);
	else
		hidden_text(line, sizeof(line), heights);
	put(line, COLS, false);
	attroff(A_BOLD);
	snprintf(line, sizeof(line), "Tab table  s sort  / filter  %s  Space stop  ? help  q quit", keys[screen->active]);
	move(LINES - 1, 0);
	put(line, COLS - 1, false);
}

void
draw(const Screen * screen)
{
	int			heights[NPANES];
	int			top = HEADER_LINES;

	erase();
	if (LINES < HEADER_LINES + FOOTER_LINES + 2 * NPANES || COLS < 20)
	{
		move(0, 0);
		put("Too small.", COLS - 1, false);
		refresh();
		return;
	}
	draw_header(screen);
	heights_of(screen->active, LINES - HEADER_LINES - FOOTER_LINES, heights);
	if (screen->help)
		for (int i = 0; i < (int) (sizeof(help_lines) / sizeof(help_lines[0])) && i < LINES - 5; i++)
		{
			move(3 + i, 2);
			put(help_lines[i], COLS - 2, false);
		}
	else
	{
		for (int i = 0; i < NPANES; i++)
		{
			draw_pane(&panes[i], i == (int) screen->active, top, heights[i]);
			top += heights[i];
		}
	}
	draw_footer(screen, heights);
	refresh();
}
#endif

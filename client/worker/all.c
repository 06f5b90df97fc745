/*-------------------------------------------------------------------------
 *
 * all.c
 *	  The command work for several databases: a process for each.
 *
 * The parent passes signals on.  A process without a connection ends, and the parent starts
 * another process later.  Meanwhile, the processes of reachable databases continue.  Each process
 * has a separate process group.  Otherwise a signal of the terminal would arrive twice, from the
 * terminal and from the parent, and end the running jobs.
 *
 * client/worker/all.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define AGAIN_AFTER		5		/* seconds */

static const int passed_on[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};

static pid_t children[MAX_DATABASES];	/* 0: not running */

static void signal_children(int signal_number);

/*
 * Start the process for database n.
 */
static void
start_child(int n, const sigset_t *mask, int (*work_in_one) (void))
{
	pid_t		parent = getpid();

	children[n] = fork();
	if (children[n] == -1)
	{
		children[n] = 0;
		signal_children(SIGTERM);
		fatal(EXIT_REFUSED, "could not start a process: %s", strerror(errno));
	}
	if (children[n] > 0)
		return;
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(EXIT_REFUSED);
	sigprocmask(SIG_SETMASK, mask, NULL);
	settings.dbname = settings.databases[n];
	settings.ndatabases = 1;
	/* a process group in the background may not read the terminal */
	settings.never_prompt = true;
	exit(work_in_one());
}

static void
signal_children(int signal_number)
{
	for (int i = 0; i < settings.ndatabases; i++)
		if (children[i] > 0)
			kill(children[i], signal_number);
}

/*
 * Run work_in_one() in a process for each database of the settings, until all processes have
 * ended.  Returns the first exit status other than EXIT_DONE.  EXIT_NO_CONNECTION starts the
 * process again later, and any other failure stops the other processes.
 */
int
work_in_all(int (*work_in_one) (void))
{
	sigset_t	waits;
	sigset_t	before;
	double		again_at[MAX_DATABASES] = {0};
	int			status = EXIT_DONE;
	bool		stopping = false;
	int			left = settings.ndatabases;

	sigemptyset(&waits);
	sigaddset(&waits, SIGCHLD);
	for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
	{
		struct sigaction before_start;

		/* Linux keeps a blocked signal even if nohup sets it to be ignored */
		if (sigaction(passed_on[i], NULL, &before_start) == 0 && before_start.sa_handler != SIG_IGN)
			sigaddset(&waits, passed_on[i]);
	}
	sigprocmask(SIG_BLOCK, &waits, &before);
	for (int i = 0; i < settings.ndatabases; i++)
		start_child(i, &before, work_in_one);
	while (left > 0)
	{
		struct timespec second = {.tv_sec = 1};
		int			got = sigtimedwait(&waits, NULL, &second);
		pid_t		pid;
		int			how;

		if (got > 0 && got != SIGCHLD)
		{
			stopping = true;
			signal_children(got);
		}
		while ((pid = waitpid(-1, &how, WNOHANG)) > 0)
			for (int i = 0; i < settings.ndatabases; i++)
			{
				int			outcome = WIFEXITED(how) ? WEXITSTATUS(how) : EXIT_REFUSED;

				if (children[i] != pid)
					continue;
				children[i] = 0;
				if (outcome == EXIT_NO_CONNECTION && !stopping)
				{
					again_at[i] = seconds() + AGAIN_AFTER;
					continue;
				}
				left--;
				if (outcome == EXIT_DONE)
					continue;
				if (!WIFEXITED(how))
					error("the process for database \"%s\" was ended by signal %d", settings.databases[i], WTERMSIG(how));
				if (status == EXIT_DONE)
					status = outcome;
				if (!stopping)
					signal_children(SIGTERM);
				stopping = true;
			}
		for (int i = 0; i < settings.ndatabases; i++)
		{
			if (again_at[i] == 0 || (!stopping && seconds() < again_at[i]))
				continue;
			again_at[i] = 0;
			if (!stopping)
				start_child(i, &before, work_in_one);
			else
			{
				left--;
				status = status == EXIT_DONE ? EXIT_NO_CONNECTION : status;
			}
		}
	}
	return status;
}

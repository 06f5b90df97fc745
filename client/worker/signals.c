/*-------------------------------------------------------------------------
 *
 * signals.c
 *	  Signals that stop the program, and wake its loop.
 *
 * client/worker/signals.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

volatile sig_atomic_t work_stops;

static int	wake_pipe[2];

static void
on_signal(int signal)
{
	int			errno_before = errno;

	if (signal != SIGCHLD && (signal != SIGHUP || work_stops == 0))
		work_stops++;
	(void) !write(wake_pipe[1], "", 1);
	errno = errno_before;
}

/*
 * Handle signals.  Returns a descriptor that is readable after a signal.
 */
int
work_signals(void)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGCHLD};
	struct sigaction before;
	struct sigaction action = {.sa_handler = on_signal,.sa_flags = SA_RESTART};

	if (pipe(wake_pipe) != 0)
		fatal(EXIT_REFUSED, "could not create a pipe: %s", strerror(errno));
	for (int i = 0; i < 2; i++)
	{
		fcntl(wake_pipe[i], F_SETFL, O_NONBLOCK);
		fcntl(wake_pipe[i], F_SETFD, FD_CLOEXEC);
	}
	/* nohup sets SIGHUP to be ignored */
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (signals[i] != SIGHUP || (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN))
			sigaction(signals[i], &action, NULL);
	return wake_pipe[0];
}

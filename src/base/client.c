/*-------------------------------------------------------------------------
 *
 * client.c
 *	  A session's client: where it is, and whether it is still there.
 *
 * src/base/client.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <sys/socket.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

/*
 * libpq/libpq.h, which declares these, wants the headers of GSSAPI.  The
 * socket is at the first place of the set, the latch at the second.
 */
extern PGDLLIMPORT WaitEventSet *FeBeWaitSet;
extern bool pq_check_connection(void);

#define SOCKET_POS	0
#define NEVENTS		3

/*
 * Sleep until our latch is set, the time is over (or 24 days are), or the client
 * has gone: then the session ends here, whatever it was waiting for.  Interrupts
 * are served; the latch may have been reset.
 *
 * The kernel tells when the client closes its connection, so nobody looks for
 * it meanwhile.  Where the kernel cannot, the session ends with a client that
 * has gone when its wait is over.
 */
void
jobq_client_wait(long ms, uint32 wait_event)
{
	WaitEvent	events[NEVENTS];
	int			nevents;

	/* callers look at the time again */
	ms = Min(ms, INT_MAX);
	if (MyProcPort == NULL || FeBeWaitSet == NULL ||
		!WaitEventSetCanReportClosed())
	{
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, wait_event);
		CHECK_FOR_INTERRUPTS();
		return;
	}

	/* whoever reads or writes says anew which events it wants */
	ModifyWaitEvent(FeBeWaitSet, SOCKET_POS, WL_SOCKET_CLOSED, NULL);
	nevents = WaitEventSetWait(FeBeWaitSet, ms, events, NEVENTS, wait_event);
	for (int i = 0; i < nevents; i++)
		if (events[i].events & WL_POSTMASTER_DEATH)
			proc_exit(1);

	/* the latch may have hidden what the socket says */
	if (nevents > 0 && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}

/*
 * The client's network address; its family is 0 for a local connection.
 */
void
jobq_client_address(inet_struct *address)
{
	LOCAL_FCINFO(fcinfo, 0);
	Datum		found;

	memset(address, 0, sizeof(inet_struct));
	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	found = inet_client_addr(fcinfo);
	if (!fcinfo->isnull)
		memcpy(address, &DatumGetInetPP(found)->inet_data,
			   VARSIZE_ANY_EXHDR(DatumGetInetPP(found)));
}

/*
 * Such an address, which is not that of a local connection, as text; palloc'd.
 */
char *
jobq_address_text(const inet_struct *address)
{
	inet	   *value = palloc0(sizeof(inet));

	value->inet_data = *address;
	SET_INET_VARSIZE(value);
	return DatumGetCString(DirectFunctionCall1(inet_out, InetPGetDatum(value)));
}

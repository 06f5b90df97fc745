/*-------------------------------------------------------------------------
 *
 * client.c
 *	  The client of a session: address, and detection of a disconnect.
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
 * Declared by libpq/libpq.h, which needs the headers of GSSAPI.  The set has the socket at
 * position 0 and the latch at position 1.
 */
extern PGDLLIMPORT WaitEventSet *FeBeWaitSet;
extern bool pq_check_connection(void);

#define SOCKET_POS	0
#define NEVENTS		3

/*
 * Sleep until the latch is set or ms milliseconds (at most 24 days) have passed.  If the
 * client has disconnected, the session ends here.  Interrupts are handled.  The latch may be
 * reset by another function.  The caller must hold no lock.
 *
 * The kernel reports when the client closes its connection, so no polling is needed.  Without
 * this support of the kernel, the session of a disconnected client ends after its wait.
 */
void
jobq_client_wait(long ms, uint32 wait_event)
{
	WaitEvent	events[NEVENTS];
	int			nevents;

	/* callers check the time again */
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

	/* each read or write sets its own events again */
	ModifyWaitEvent(FeBeWaitSet, SOCKET_POS, WL_SOCKET_CLOSED, NULL);
	nevents = WaitEventSetWait(FeBeWaitSet, ms, events, NEVENTS, wait_event);
	for (int i = 0; i < nevents; i++)
		if (events[i].events & WL_POSTMASTER_DEATH)
			proc_exit(1);

	/* a set latch may have hidden the event of the socket */
	if (nevents > 0 && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}

/* Get the client's network address.  The family is 0 for a local connection. */
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

/* Return a network address, but not of a local connection, as palloc'd text. */
char *
jobq_address_text(const inet_struct *address)
{
	inet	   *value = palloc0(sizeof(inet));

	value->inet_data = *address;
	SET_INET_VARSIZE(value);
	return DatumGetCString(DirectFunctionCall1(inet_out, InetPGetDatum(value)));
}

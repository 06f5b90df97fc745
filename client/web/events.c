/*-------------------------------------------------------------------------
 *
 * events.c
 *	  The stream of Server-Sent Events to a caller.
 *
 * The program never waits for a slow caller.  Unread events are buffered, up to
 * MAX_BACKLOG and the limits of caller.c.
 *
 * client/web/events.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HEARTBEAT		15.0
#define MAX_BACKLOG		(4 * 1024 * 1024)	/* unread bytes per caller */
#define BLOCK_SIZE		4096

/*
 * Prepare to add to the buffer of a stream.  If the buffer was empty, the caller's time
 * limit for an answer begins again.
 */
static void
stream_begins_to_send(Stream *stream)
{
	Caller	   *caller = request_caller(stream->request);

	if (stream->taken < stream->out.len)
		return;
	resetPQExpBuffer(&stream->out);
	stream->taken = 0;
	if (caller != NULL)
	{
		caller_moves(caller);
		caller_is_answered(caller);
	}
}

/*
 * Free the events of a caller at shutdown.  A topic's list is sent to all followers
 * before any connection is closed, so the memory is needed at once.
 */
static void
stream_release(void *owner)
{
	Stream	   *stream = owner;

	stream->ended = true;
	stream->cut_off = true;
	termPQExpBuffer(&stream->out);
	initPQExpBuffer(&stream->out);
	stream->taken = 0;
}

/*
 * Add an event to the buffer of a stream, without waiting for the caller.
 */
void
stream_event(Stream *stream, const char *id, const char *name, const char *data)
{
	PQExpBuffer out = &stream->out;

	if (stream->ended)
		return;
	stream_begins_to_send(stream);
	if (id != NULL)
		appendPQExpBuffer(out, "id: %s\n", id);
	appendPQExpBuffer(out, "event: %s\n", name);
	for (size_t length; data != NULL; data = data[length] != '\0' ? data + length + 1 : NULL)
	{
		length = strcspn(data, "\r\n");
		appendPQExpBufferStr(out, "data: ");
		appendBinaryPQExpBuffer(out, data, length);
		appendPQExpBufferChar(out, '\n');
	}
	appendPQExpBufferChar(out, '\n');
	if (PQExpBufferBroken(out))
		fatal(EXIT_REFUSED, "out of memory");
	if (out->len - stream->taken > MAX_BACKLOG)
		stream->ended = true;
	stream->beat = web_now + HEARTBEAT;
	if (!request_keeps(stream->request, out->maxlen))
		request_cut_off(stream->request);
	request_resume(stream->request);
}

/*
 * Callback of libmicrohttpd: copy the next part of the stream.
 */
static ssize_t
stream_read(void *closure, uint64_t position, char *buffer, size_t size)
{
	Stream	   *stream = closure;
	size_t		n = stream->out.len - stream->taken;
	Caller	   *caller = request_caller(stream->request);

	(void) position;
	if (caller != NULL)
	{
		caller_moves(caller);
		caller_is_answered(caller);
	}
	if (stream->request->gone || stream->cut_off)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	if (n == 0)
	{
		if (stream->ended)
			return MHD_CONTENT_READER_END_OF_STREAM;
		/* free a large buffer */
		if (stream->out.maxlen > BLOCK_SIZE)
		{
			termPQExpBuffer(&stream->out);
			initPQExpBuffer(&stream->out);
		}
		else
			resetPQExpBuffer(&stream->out);
		stream->taken = 0;
		request_keeps(stream->request, stream->out.maxlen);
		if (caller != NULL)
			caller_waits(caller);
		request_suspend(stream->request);
		return 0;
	}
	if (n > size)
		n = size;
	memcpy(buffer, stream->out.data + stream->taken, n);
	stream->taken += n;
	return n;
}

/*
 * After HEARTBEAT seconds of silence, send a comment, so that proxies on the way see a
 * connection in use.
 */
void
stream_beat(Stream *stream)
{
	if (web_now < stream->beat || stream->ended)
		return;
	if (stream->request->session != NULL)
		stream->request->session->used = web_now;
	stream_begins_to_send(stream);
	appendPQExpBufferStr(&stream->out, ":\n\n");
	stream->beat = web_now + HEARTBEAT;
	request_resume(stream->request);
}

static void
stream_left(Request *request)
{
	request_resume(request);
}

/*
 * End the stream of a request, if any.
 */
void
stream_end(Request *request)
{
	if (!request->streams || request->state == NULL)
		return;
	((Stream *) request->state)->ended = true;
	request_resume(request);
}

Stream *
stream_begin(Request *request, void (*sent) (Request *request, bool whole))
{
	Stream	   *stream = allocate(sizeof(Stream));
	struct MHD_Response *response;

	stream->request = request;
	initPQExpBuffer(&stream->out);
	appendPQExpBufferStr(&stream->out, "retry: 2000\n\n");
	stream->beat = web_now + HEARTBEAT;
	request->state = stream;
	request->streams = true;
	if (request_caller(request) != NULL)
		caller_releases(request_caller(request), stream_release, stream);
	request->sent = sent;
	request->leave = stream_left;
	request->refuse = stream_end;
	response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_SIZE, stream_read, stream, NULL);
	answer_with(request, MHD_HTTP_OK, response);
	answer_header(request, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
	answer_header(request, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	answer_header(request, "X-Accel-Buffering", "no");
	return stream;
}

/*
 * Compute a hash of a text sent to a caller.  The text must not contain data hidden from
 * this caller.  FNV-1a is sufficient, because only an accidental collision would lose an
 * event.
 */
void
hash_of(const char *text, char *hash)
{
	uint64_t	h = UINT64_C(0xcbf29ce484222325);

	for (; *text != '\0'; text++)
		h = (h ^ (unsigned char) *text) * UINT64_C(0x100000001b3);
	snprintf(hash, HASH_SIZE, "%016" PRIx64, h);
}

"""jobq in Python: enqueues jobs, and runs a function for each job of a queue.

    with psycopg.connect("dbname=app") as connection:
        id = enqueue(connection, "thumbnails.make", {"image": 7}, queue="thumbnails", delay="5 min")

    def make(job):
        return {"file": f"{job.payload['image']}.png"}

    Consumer("dbname=app", ["thumbnails"], make, parallel=4).run()

The module needs Python 3.10 and psycopg 3.

enqueue(), enqueue_many(), status() and wait() use the caller's connection and transaction.

The handler gets a Job.  The returned value is the result of the job.  An exception is a failed attempt;
Retry, Release and Reject end the attempt in other ways.  A coroutine function runs in the event loop.  Any
other handler runs in a thread; there are as many threads as jobs run at a time.  A program with its own event
loop calls "await consumer.work()".

The consumer has two connections.  One calls jobq.reserve().  The other reports the ends of jobs, many in one
statement, and extends leases.  A lost connection is made again, and jobs continue meanwhile.  With "listen", a
third connection listens for notifications: then no call of reserve() waits, and idle consumers occupy no
connection of a pooler.

Numbers in payloads and headers keep all digits: a number that a float cannot hold is a Decimal.  Handlers may
return Decimals, too.  A time that datetime cannot hold is a text.

A job whose lease may have ended is not acknowledged.  The consumer cancels a coroutine, and sets job.lost for a
thread.  The returned value is dropped, because the server would refuse the acknowledgment.
"""
import asyncio
import concurrent.futures
import datetime
import inspect
import json
import logging
import math
import queue
import re
import signal
import subprocess
import threading
import time
import types
import uuid
from decimal import Decimal

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row, tuple_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import JsonbLoader

log = logging.getLogger("jobq")

LEASE_LOST = "JQ011"
TOO_MANY = "53400"  # the role's share is used up; jobs of one token at a time can be extended
HOPELESS = ("42", "3F", "22", "JQ004")  # no such queue, no privilege, a queue of workers: a repetition would fail
NOBODYS = ("", "08", "40", "53", "57")  # classes of errors for which no job is to blame
TOO_DEEP = "54001"  # to be read as JSON
NO_ROOM = "54000"  # no room in the queue of NOTIFY at the commit, or for a text in a jsonb value
NO_JSONB = 32_000_000  # characters of a text; a shorter one has room there
# temporary errors: lack of resources, a lock, a server that is read-only or stops, jobq not running
# yet
PASSING = ("08", "25", "40", "53", "55", "57", "58", "JQ002", NO_ROOM)
MOST_REFUSED = 20  # refused ends of jobs up to which other jobs do not wait
SHORTEST_WAIT = 0.1
LATE = 1.0  # seconds after which an answer shows that connections are scarce
MOST_AT_A_TIME = 100  # jobs in a statement
SOON = 0.1  # seconds within which jobs held ahead begin, by default
NOT_SOON = 1.0  # by default, seconds after which jobs that have not begun are given back
STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)  # sent by terminals and service managers
JUDGE_PAUSE = 1.0  # seconds for our own signal to arrive
CANCELLED = 5.0  # seconds to give jobs back after a cancellation

# defaults for the conninfo: the loss of a server is noticed within a minute
NOTICING = {"connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3",
            "tcp_user_timeout": "60000"}

RESERVE = """SELECT id, token, queue, kind, payload, headers, attempt, max_attempts, tenant, context, alone,
extract(epoch FROM lease_until - jobq_internal.clock())::float8
FROM jobq.reserve(%s::text[], %s::int, %s::interval, %s::interval, %s::text, %s::int)"""

# Each statement is for many jobs, with one commit.  An extension uses the role's quota per token,
# so the jobs of a token are grouped.
OF_EACH = " FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::interval[]) AS j (id, token, text, time)"
TELL = {
    "extend": "SELECT jobq.extend_many(array_agg(j.id ORDER BY j.token, j.id), array_agg(j.token ORDER BY j.token, j.id), "
              "min(j.time))" + OF_EACH,
    "log": "SELECT jobq.log(j.id, j.token, l ->> 1, l ->> 0)" + OF_EACH + ", jsonb_array_elements(j.text::jsonb) AS l",
    "progress": "SELECT jobq.set_progress(j.id, j.token, (j.text::jsonb ->> 0)::real, j.text::jsonb ->> 1)" + OF_EACH,
    "ack": "SELECT jobq.ack(j.id, j.token, j.text::jsonb)" + OF_EACH,
    "nack": "SELECT jobq.nack(j.id, j.token, j.text, j.time)" + OF_EACH,
    "reject": "SELECT jobq.reject(j.id, j.token, j.text)" + OF_EACH,
    "release": "SELECT jobq.release(j.id, j.token, j.time)" + OF_EACH,
}
MEANWHILE = ("extend", "log", "progress")  # reports about a running job

# Options are passed by name in one object, so the server checks them, and knows all.
ENQUEUE = "SELECT jobq.enqueue(%s::text, %s::jsonb, options => %s::jsonb)"
ENQUEUE_MANY = """SELECT jobq.enqueue_many(%s::text, ARRAY(SELECT jsonb_array_elements(%s::jsonb)),
options => %s::jsonb)"""
STATUS = "SELECT * FROM jobq.status(%s::text)"
WAIT = "SELECT * FROM jobq.wait(%s::bigint, %s::interval)"
ACK = """WITH told AS MATERIALIZED (SELECT jobq.log(%s::bigint, %s::bigint, l ->> 1, l ->> 0) FROM jsonb_array_elements(%s::jsonb) AS l)
SELECT jobq.ack(%s::bigint, %s::bigint, %s::jsonb) FROM (SELECT count(*) FROM told) AS lines"""


class Retry(Exception):
    """The attempt has failed; the next attempt comes after these seconds instead of the backoff."""

    def __init__(self, delay, error="the handler wants it to be tried again"):
        super().__init__(error)
        self.delay = delay


class Release(Exception):
    """The job goes back to its queue for these seconds, and no attempt is charged."""

    def __init__(self, delay=0):
        super().__init__(f"released for {delay} s")
        self.delay = delay


class Reject(Exception):
    """Retries cannot help: the job becomes a dead letter."""


class LeaseLost(Exception):
    """Another consumer may have the job now."""


class Unreadable:
    """Stands for JSON that Python cannot read, such as numbers with too many digits for int()."""

    def __init__(self, error):
        self.error = error


def number(text):
    """A float, or a Decimal where a float would have other digits."""
    value = float(text)
    return value if Decimal(repr(value)) == Decimal(text) else Decimal(text)


def mark(value):
    """A Decimal as a text that no text in jsonb can be."""
    if not isinstance(value, Decimal):
        raise TypeError(f"a {type(value).__name__} is no JSON")
    return f"\0{value:f}"


def written(value, default=mark):
    """JSON, in which a Decimal is a number."""
    return re.sub(r'"\\u0000(-?\d+(?:\.\d+)?)"', r"\1", json.dumps(value, default=default))


class Reader(JsonbLoader):
    """Reads a payload or headers; one that cannot be read is an error of its own job only."""

    def load(self, data):
        try:
            return json.loads(bytes(data), parse_float=number)
        except Exception as error:
            return Unreadable(error)


class Times(TimestamptzLoader):
    """Reads a time.  A time that datetime cannot hold, such as one after the year 9999, is a text."""

    def load(self, data):
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


# ------------------------------------------------------------ produce


def interval(value):
    """An interval as text: a number is in seconds."""
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    return f"{value:.6f} s" if isinstance(value, (int, float, Decimal)) else value


def option(value):
    """The value of an option that JSON does not have."""
    if isinstance(value, datetime.timedelta):
        return interval(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return str(value) if isinstance(value, uuid.UUID) else mark(value)


def options_of(options):
    """The options of jobq.enqueue() as one JSON object; the keys of "options" stand beside the other options."""
    options = {**(options.get("options") or {}), **options}
    options.pop("options", None)
    for key in ("delay", "timeout"):
        options[key] = interval(options.get(key))
    if isinstance(options.get("uniqueness"), dict) and "for" in options["uniqueness"]:
        options["uniqueness"] = {**options["uniqueness"], "for": interval(options["uniqueness"]["for"])}
    return written(options, option)


def _ask(connection, row_factory, read, statement, *values):
    """Run a statement on the caller's connection, and read the rows; an AsyncConnection returns an awaitable."""
    cursor = connection.cursor(row_factory=row_factory)
    cursor.adapters.register_loader("jsonb", Reader)
    cursor.adapters.register_loader("timestamptz", Times)
    if isinstance(connection, psycopg.AsyncConnection):

        async def ask():
            async with cursor:
                await cursor.execute(statement, values)
                return read(await cursor.fetchall())

        return ask()
    with cursor:
        return read(cursor.execute(statement, values).fetchall())


def _status_of(rows):
    if isinstance(rows[0]["result"], Unreadable):
        raise rows[0]["result"].error
    return types.SimpleNamespace(**rows[0])


def enqueue(connection, kind, payload={}, **options):
    """Enqueue a job in the connection's transaction; returns the id.  The options are those of jobq.enqueue():
    queue, priority, run_at, delay, max_attempts, retry_until, backoff, timeout, expires_at, unique_key,
    uniqueness (a dict), group_key, headers, tags and options (a dict).

    Returns the holder's id if the unique key is held, or None with on_conflict ignore.  With an AsyncConnection,
    this function and those below return an awaitable.
    """
    if isinstance(connection, FakeQueue):
        return connection._enqueue(kind, [payload], options, lambda ids: ids[0])
    return _ask(connection, tuple_row, lambda rows: rows[0][0], ENQUEUE, kind, written(payload), options_of(options))


def enqueue_many(connection, kind, payloads, **options):
    """Enqueue a job for each payload, all with these options, in one statement; returns the list of ids."""
    if isinstance(connection, FakeQueue):
        return connection._enqueue(kind, payloads, options, list)
    return _ask(connection, tuple_row, lambda rows: [row[0] for row in rows], ENQUEUE_MANY, kind,
                written(list(payloads)), options_of(options))


def status(connection, id):
    """The status of a job, by its id or by the uuid given to enqueue(): an object with the columns of jobq.status()."""
    if isinstance(connection, FakeQueue):
        return connection._status(id)
    return _ask(connection, dict_row, _status_of, STATUS, str(id))


def wait(connection, id, timeout=30):
    """Wait until a job has finished, for at most "timeout" seconds; returns the status.  The job must be committed."""
    if isinstance(connection, FakeQueue):
        return connection._status(id)
    return _ask(connection, dict_row, _status_of, WAIT, id, interval(timeout))


# ------------------------------------------------------------ consume


class Job:
    """A reserved job: the columns of jobq.reserved_job, and whether the lease is lost."""

    def __init__(self, consumer, row, heartbeat):
        (self.id, self.token, self.queue, self.kind, self.payload, self.headers, self.attempt,
         self.max_attempts, self.tenant, self.context, self._apart, lease) = row
        self.lost = False
        self._consumer = consumer
        self._since = time.monotonic()  # start of the hold, or later of the handler
        self._until = self._since + lease  # the latest end of the lease
        # a job with a timeout may have less time than other jobs
        self._extend_at = self._since + min(heartbeat, lease / 3)
        self._lines = []  # lines of log() to report
        self._told = False  # a statement with lines is running
        self._lock = threading.Lock()  # for these two
        self._progress = None  # progress to report
        self._telling = None  # the part of the lines or of the progress in a running statement
        self._outcome = None  # the outcome to report: a key of TELL, text, seconds
        self._alone = False  # an error occurred in a statement for several jobs including this job
        self._refused = False  # the server rejects the outcome, probably permanently
        self._tell_at = 0.0
        self._task = None
        self._given_up = False  # cancelled at a stop: the job goes back when the coroutine has ended
        self._settled = False  # acknowledged by the handler
        self._result = None  # of this acknowledgment, as JSON

    def check(self):
        """For handlers that take long: raises LeaseLost if the lease is lost."""
        if self.lost:
            raise LeaseLost(f"the lease of job {self.id} is over")

    def ack(self, connection, result=None):
        """Acknowledge the job in the caller's transaction on this connection: the job is completed if, and when, the
        transaction commits.  The handler then commits and returns; its value is ignored.  If the transaction rolls
        back, the handler must raise an exception, and the attempt has failed.  With an AsyncConnection, this function
        returns an awaitable."""
        self.check()
        result = None if result is None else written(result)
        if isinstance(connection, FakeQueue):
            self._take_lines()
            self._result = result
            return connection._answer(None)
        if isinstance(connection, psycopg.AsyncConnection):

            async def ack():
                while (lines := self._take_lines()) is None:
                    await asyncio.sleep(0.01)
                return await self._ack(connection, lines, result)

            return ack()
        while (lines := self._take_lines(not is_in_loop())) is None:
            time.sleep(0.01)
        return self._ack(connection, lines, result)

    def _take_lines(self, wait=True):
        """The lines to report together with the end.  None while a statement with lines is running, because it is
        not known yet whether these lines are stored."""
        self.check()
        with self._lock:
            if self._told and wait:
                return None
            # from here on, the transaction decides: the consumer extends no lease and sends no lines
            self._until = self._extend_at = math.inf
            self._settled = True
            return list(self._lines)

    def _ack(self, connection, lines, result):
        self._result = result
        self._lines, self._progress = [], None
        return _ask(connection, tuple_row, lambda rows: None, ACK, self.id, self.token, json.dumps(lines), self.id, self.token,
                    result)

    def progress(self, percent, message=None):
        """Report the progress from 0 to 100.  Returns at once; of several calls in a short time, the last is reported."""
        if self.lost or self._settled:
            return
        self._progress = json.dumps([float(percent), message])
        self._consumer._ring()

    def log(self, message, level="info"):
        """Store a log line with the job; level is debug, info, warning or error.  Returns at once."""
        if self.lost or self._settled:
            return
        self._lines.append([level, text_of(message)])
        self._consumer._ring()


def text_of(error):
    """The text of an exception, without characters rejected by the server."""
    try:
        text = str(error)
    except Exception as other:
        text = f"its text cannot be had: {type(other).__name__}"
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def is_in_loop():
    """Does this thread run an event loop?"""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Threads:
    """Threads for handlers.  The end of the program does not wait for handlers."""

    def __init__(self, most):
        self._most = most
        self._number = 0
        self._calls = queue.SimpleQueue()

    def call(self, function, *values):
        """Call the function in a thread; returns an awaitable."""
        if self._number < self._most:
            threading.Thread(target=self._run, daemon=True).start()
            self._number += 1
        future = concurrent.futures.Future()
        self._calls.put((future, function, values))
        return asyncio.wrap_future(future)

    def _run(self):
        for future, function, values in iter(self._calls.get, None):
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*values))
                except BaseException as error:
                    future.set_exception(error)
            del future, function, values

    def end(self):
        """End the threads after their current calls."""
        for _ in range(self._number):
            self._calls.put(None)


class Link:
    """A connection that is made again after a loss, with pauses from a tenth of a second to ten seconds."""

    def __init__(self, conninfo):
        self._conninfo = conninfo
        self._connection = None
        self._pause = 0.1
        self._not_before = 0.0

    def is_lost(self):
        return self._connection is None or self._connection.closed

    async def get(self):
        while self.is_lost():
            await asyncio.sleep(max(0, self._not_before - time.monotonic()))
            self._not_before = time.monotonic() + self._pause
            try:
                # a pooler may assign another session to each statement, so no statement is prepared
                self._connection = await psycopg.AsyncConnection.connect(
                    **{**NOTICING, **conninfo_to_dict(self._conninfo), "client_encoding": "utf8"}, autocommit=True,
                    prepare_threshold=None)
                self._connection.adapters.register_loader("jsonb", Reader)
                self._pause = 0.1
            except psycopg.OperationalError as error:
                log.warning("no connection: %s", str(error).strip())
                self._pause = min(2 * self._pause, 10)
        return self._connection

    async def rows(self, patience, statement, *values):
        """Run a statement; without an answer in time, the connection is closed."""

        async def run():
            cursor = await (await self.get()).execute(statement, values)
            return await cursor.fetchall()

        task, late = asyncio.create_task(run()), False
        try:
            await asyncio.wait({task}, timeout=patience)
        finally:
            if not task.done():
                # on an open connection, psycopg waits for the end of a cancelled statement
                await self.close()
                task.cancel()
                task.add_done_callback(lambda task: task.cancelled() or task.exception())
                await asyncio.wait({task}, timeout=1)
                late = True
        if late:
            raise asyncio.TimeoutError
        return task.result()

    async def close(self):
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class Consumer:
    """Reserves jobs of these queues, in strict order, and calls the handler for each job.

    handler    a function for all jobs, or a dict with a function for each kind; a job of a kind that is not in
               the dict is given back for "pause" seconds, and no attempt is charged: a consumer of a later
               version may have the function
    parallel   number of concurrent jobs
    ahead      number of jobs held that do not run yet; by default, as many as will begin within a tenth of a
               second; jobs that have not begun after a second are then given back
    lease      seconds for which a job is held; extended while the job is held
    heartbeat  interval of extensions in seconds; default: a third of the lease
    wait       seconds that a call of reserve() waits for jobs, or the interval of checks with "listen";
               also the longest delay of a stop while idle
    listen     conninfo of the server itself, not of a pooler; for notifications of jobs
    pause      seconds until a job of an unknown kind comes again
    stop_timeout  seconds after SIGTERM or SIGINT until jobs that still run are given back; by default, the
               consumer waits for these jobs
    name       the name in the view jobq.workers
    """

    def __init__(self, conninfo, queues, handler, *, parallel=1, ahead=None, lease=30.0, heartbeat=None, wait=5.0,
                 listen=None, pause=10.0, stop_timeout=None, name="python"):
        self._queues, self._handler, self._pause, self._name = list(queues), handler, pause, name
        self._parallel, self._ahead = parallel, ahead
        self._lease, self._heartbeat = lease, lease / 3 if heartbeat is None else heartbeat
        self._wait, self._listen_to = wait, listen
        self._patience = min(1.0, wait)
        self._taker, self._teller, self._ear = Link(conninfo), Link(conninfo), Link(listen)
        self._held = []  # not begun
        self._running = []
        self._ended = []  # to be reported
        self._turns = list(TELL)[1:]  # kinds of outcomes; the kind reported last comes last
        self._job_time = math.inf  # average duration of a job, in seconds
        self._trip = 0.0  # average seconds from a statement to the handling of the answer
        self._by_token = False  # the quota allows no extension of jobs of several tokens together
        self._taking = None
        self._stopping = self._cancelled = False
        self._stop_timeout = stop_timeout
        self._give_up_at = math.inf
        self._failure = None
        # set if there is room for jobs, something to report, and perhaps jobs
        self._room, self._news, self._wake = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def run(self):
        """Work until SIGTERM or SIGINT; for programs without an event loop."""
        asyncio.run(self.work(signals=True))

    def stop(self, timeout=None):
        """Reserve no more jobs; work() returns when the running jobs have ended.  Jobs that still run after
        "timeout" seconds are given back, and no attempt is charged; their handlers see a lost lease."""
        self._stopping = True
        if timeout is not None:
            self._give_up_at = min(self._give_up_at, time.monotonic() + timeout)
        for event in (self._room, self._news, self._wake):
            event.set()

    def _ring(self):
        """Wake the reporting task from the thread of a handler."""
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # the loop has ended, and nothing is reported any more
            pass

    async def work(self, signals=False):
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(self._parallel)
        for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
            asyncio.get_running_loop().add_signal_handler(number, self.stop, self._stop_timeout)
        self._taking = asyncio.create_task(self._take())
        self._taking.add_done_callback(lambda _: self._news.set())
        tasks = [self._taking, asyncio.create_task(self._tell())]
        listening = [asyncio.create_task(self._listen())] if self._listen_to else []
        try:
            await self._until_done(tasks)
        finally:
            self.stop()  # after a cancellation, no other job begins
            tasks += listening + [job._task for job in self._running]
            for link in (self._taker, self._teller, self._ear):
                await link.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._threads.end()
        if self._failure:
            raise self._failure

    async def _until_done(self, tasks):
        """Wait for the tasks.  A cancellation gives all jobs back: the end of their leases could be charged to
        the jobs."""
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            self._cancelled = True
            self.stop(0)
            await asyncio.wait(tasks[1:], timeout=CANCELLED)
            raise
        for task in tasks:
            if task.done():
                task.result()

    # ------------------------------------------------------------ take

    def _wanted(self):
        ahead = self._ahead
        if ahead is None:
            # the next answer must arrive before the held jobs have ended
            soon = max(SOON, min(2 * self._trip, NOT_SOON / 2))
            ahead = min(MOST_AT_A_TIME, int(self._parallel * soon / max(self._job_time, 0.001)))
        # until outcomes are reported, because the next crash would lose these outcomes, too
        if any(job._apart and not job.lost and not job._refused for job in self._held + self._running + self._ended):
            return 0
        wanted = self._parallel - len(self._held) - len(self._running)
        if len(self._held) <= ahead // 2:
            wanted += ahead
        # while outcomes cannot be reported, no more jobs are reserved; some refused jobs are not
        # counted
        refused = sum(job._refused for job in self._ended)
        untold = len(self._ended) - min(refused, MOST_REFUSED)
        room = 2 * (self._parallel + ahead) - len(self._held) - len(self._running) - untold
        return min(wanted, room, 1000)

    async def _take(self):
        while not self._stopping:
            self._room.clear()
            if self._wanted() <= 0:
                await self._room.wait()
                continue
            self._wake.clear()
            wait = 0 if self._listen_to else self._patience
            try:
                await self._until_stopped(self._taker.get())
                if self._stopping:
                    break
                wanted = self._wanted()  # may be 0 by now
                if wanted <= 0:
                    continue
                asked = time.monotonic()
                rows = await self._taker.rows(wait + self._lease, RESERVE, self._queues, wanted, f"{self._lease} s",
                                              f"{wait} s", self._name, len(self._held) + len(self._running))
            except (psycopg.Error, asyncio.TimeoutError) as error:
                log.warning("could not reserve: %s", str(error).strip() or "no answer")
                if (getattr(error, "sqlstate", None) or "").startswith(HOPELESS):
                    self._failure = error
                    self.stop()
                elif not self._taker.is_lost():
                    await self._until_stopped(asyncio.sleep(1))
                continue
            late = time.monotonic() - asked - wait
            self._adapt(late, not rows)
            for row in rows:
                # a delayed answer says nothing about the rest of the lease
                self._held.append(Job(self, row, 0 if late > LATE else self._heartbeat))
            self._begin()
            self._news.set()
            if not rows and self._listen_to:
                try:
                    await asyncio.wait_for(self._wake.wait(), self._wait)
                except asyncio.TimeoutError:
                    pass

    async def _until_stopped(self, coroutine):
        """Wait for the coroutine, or for a request to stop."""
        task = asyncio.ensure_future(coroutine)
        stopped = asyncio.ensure_future(self._stopped())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            task.result()

    async def _stopped(self):
        while not self._stopping:
            await self._room.wait()
            self._room.clear()

    def _adapt(self, late, empty=False):
        """Late answers reduce the waiting time.  Behind a pooler, consumers waiting in reserve() may occupy all
        connections, so that jobs cannot be settled."""
        if late > LATE:
            self._patience = max(SHORTEST_WAIT, self._patience / late)
        elif empty and late < LATE / 2:
            self._patience = min(self._wait, self._patience * 2)

    async def _listen(self):
        while True:
            try:
                connection = await self._ear.get()
                for queue in self._queues:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier("jobq_queue_" + queue)))
                self._wake.set()
                async for _ in connection.notifies():
                    self._wake.set()
            except psycopg.Error as error:
                log.warning("does not hear of jobs: %s", str(error).strip())
                if not self._ear.is_lost():
                    await self._ear.close()
                    await asyncio.sleep(1)

    # ------------------------------------------------------------ run

    def _begin(self):
        while self._held and len(self._running) < self._parallel and not self._stopping:
            # a job that may have crashed a consumer runs only with jobs of the same token
            if any(not job.lost and job.token != self._held[0].token and (job._apart or self._held[0]._apart)
                   for job in self._running):
                break
            job = self._held.pop(0)
            job._since = time.monotonic()
            self._running.append(job)
            job._task = asyncio.create_task(self._outcome_of(job))
            job._task.add_done_callback(lambda task, job=job: self._end(job, task))

    def _handler_of(self, job):
        """The function for the job's kind, or None."""
        return self._handler.get(job.kind) if isinstance(self._handler, dict) else self._handler

    async def _outcome_of(self, job):
        """Call the handler; returns the outcome to report."""
        handler = self._handler_of(job)
        if handler is None:
            log.warning("job %s: there is no handler for kind \"%s\"; given back for %s s", job.id, job.kind, self._pause)
            return "release", None, self._pause
        try:
            for value in (job.payload, job.headers, job.context):
                if isinstance(value, Unreadable):
                    raise value.error
            if inspect.iscoroutinefunction(handler):
                result = await handler(job)
            else:
                result = await self._threads.call(self._call, handler, job)
            if job._settled:
                return "settled", job._result, None
            return "ack", None if result is None else written(result), None
        except Retry as error:
            return "nack", text_of(error), error.delay
        except Release as error:
            return "release", None, error.delay
        except Reject as error:
            return "reject", text_of(error), None
        except BaseException as error:
            # the consumer cancels the coroutine of a lost job; otherwise the handler awaited a
            # cancelled task
            if isinstance(error, KeyboardInterrupt) or job.lost and isinstance(error, asyncio.CancelledError):
                raise
            if await self._stopped_too(error):
                return "release", None, 0
            log.info("job %s (%s) has failed", job.id, job.kind, exc_info=True)
            return "nack", f"{type(error).__name__}: {text_of(error)}", None

    async def _stopped_too(self, error):
        """Was a command of the handler ended together with this program?  A terminal, or a service manager, signals
        both, and the command may end first."""
        code = error.returncode if isinstance(error, subprocess.CalledProcessError) else 0
        if not any(code in (-number, 128 + number) for number in STOPS):
            return False
        until = time.monotonic() + JUDGE_PAUSE
        while not self._stopping and time.monotonic() < until:
            await asyncio.sleep(0.05)
        return self._stopping

    @staticmethod
    def _call(handler, job):
        """Call a handler in its thread.  A future cannot hold a StopIteration: the wait would not end."""
        try:
            return handler(job)
        except StopIteration as error:
            raise RuntimeError("the handler has raised StopIteration") from error

    def _end(self, job, task):
        if job not in self._running:  # it was given up
            return
        self._running.remove(job)
        took = time.monotonic() - job._since
        self._job_time = took if self._job_time == math.inf else self._job_time + (took - self._job_time) / 10
        if not job.lost or job._given_up:
            job._outcome = ("release", None, 0) if job._given_up else task.result()
            if job._outcome[0] != "settled":
                self._ended.append(job)
        self._begin()
        self._room.set()
        self._news.set()

    def _lose(self, job):
        """The lease may have ended: the outcome of the job is not reported any more."""
        if job.lost and job not in self._ended and not job._given_up:
            return
        job.lost = True
        job._given_up = False
        log.warning("job %s (%s): its lease is over%s", job.id, job.kind,
                    "; it may be done again" if job._outcome else "")
        job._lines, job._progress = [], None
        for jobs in (self._held, self._ended):
            if job in jobs:
                jobs.remove(job)
        if job in self._running and inspect.iscoroutinefunction(self._handler_of(job)):
            job._task.cancel()
        self._room.set()

    # ------------------------------------------------------------ tell

    async def _tell(self):
        """Extend leases and report outcomes, until everything is reported."""
        while True:
            self._news.clear()
            now = time.monotonic()
            self._give_back(now)
            for job in self._held + self._running + self._ended:
                if now >= job._until:
                    self._lose(job)
            if now >= self._give_up_at:
                self._give_up()
            self._begin()  # lost jobs do not prevent other jobs from beginning
            what, jobs = self._next(now)
            if jobs:
                await self._tell_one(what, jobs)
            elif (self._taking.done() or self._cancelled) and not (self._held or self._running or self._ended):
                return
            else:
                said = [job for job in self._running if not job.lost and (job._lines or job._progress)]
                due = min([job._tell_at for job in self._ended + said] + [job._until for job in self._ended] +
                          [min(job._extend_at, job._until) for job in self._kept()] +
                          [job._since + NOT_SOON for job in self._held if self._is_late(job, math.inf)] +
                          [self._give_up_at for job in self._running if not job._given_up], default=now + 60)
                try:
                    await asyncio.wait_for(self._news.wait(), max(0, due - now))
                except asyncio.TimeoutError:
                    pass

    def _give_back(self, now):
        """Release held jobs during shutdown, or if they have not begun as soon as expected.  Their timeouts are
        running, and another consumer may be idle."""
        back = [job for job in self._held if self._stopping or self._is_late(job, now)]
        if back:
            self._job_time = math.inf  # no job is held ahead until a job has ended
        for job in back:
            job._outcome = ("release", None, 0)
            self._held.remove(job)
            self._ended.append(job)

    def _give_up(self):
        """Give back jobs that run too long after a stop.  A coroutine is cancelled first, and keeps the lease
        until the end.  A thread continues, but the outcome is not reported."""
        for job in list(self._running):
            if job._task.done():  # the handler has returned, and its outcome counts
                self._end(job, job._task)
        for job in [job for job in self._running if not job._given_up]:
            job._given_up = not job.lost and not job._settled and inspect.iscoroutinefunction(self._handler_of(job))
            if not job._given_up:
                self._running.remove(job)
            if job._settled:  # the handler's transaction decides
                job.lost = True
            if not job.lost:
                log.warning("job %s (%s): given back, because the consumer stops", job.id, job.kind)
                job.lost = True
                job._lines, job._progress = [], None
                if not job._given_up:
                    job._outcome = ("release", None, 0)
                    self._ended.append(job)
            job._task.cancel()

    def _is_late(self, job, now):
        return self._ahead is None and not job._apart and now >= job._since + min(NOT_SOON, self._heartbeat)

    def _kept(self):
        """The jobs whose leases are extended: also ended jobs, until the outcome is reported.  Not refused jobs,
        which would be held forever, and no ended jobs during shutdown."""
        jobs = self._held + self._running + ([] if self._stopping else self._ended)
        return [job for job in jobs if (not job.lost or job._given_up) and not job._refused]

    def _next(self, now):
        """The most urgent report: extensions, then outcomes.  Outcomes take turns: an endless stream of one kind
        must not delay the rest until the leases end."""
        held = [job for job in self._kept() if now >= job._extend_at]
        ended = [job for job in self._ended if now >= job._tell_at]
        for what in ["extend"] + self._turns:
            if what == "extend":
                jobs = held
            elif what in MEANWHILE:
                jobs = [job for job in self._running + self._ended
                        if not job.lost and now >= job._tell_at and (job._lines if what == "log" else job._progress)]
            else:  # log lines are reported first
                jobs = [job for job in ended if job._outcome[0] == what and not job._lines]
            if what == "extend" and self._by_token:
                jobs = [job for job in jobs if job.token == jobs[0].token]
            alone = [job for job in jobs if job._alone]
            if jobs:
                if what != "extend":
                    self._turns.remove(what)
                    self._turns.append(what)
                return what, alone[:1] or jobs[:MOST_AT_A_TIME]
        return None, []

    async def _tell_one(self, what, jobs):
        asked = time.monotonic()
        texts = [self._text_of(what, job) for job in jobs]
        times = [self._lease if what == "extend" else None if what in MEANWHILE else job._outcome[2] for job in jobs]
        # no longer than until the next lease may end, because the handler must be notified
        patience = min([self._lease / 2] + [job._until - asked for job in self._kept()])
        try:
            await self._teller.rows(max(SHORTEST_WAIT, patience), TELL[what], [job.id for job in jobs],
                                    [job.token for job in jobs], texts,
                                    [interval(time) for time in times])
        except (psycopg.Error, asyncio.TimeoutError) as error:
            self._not_told(what, jobs, error)
            for job in jobs:
                job._told = False
            return
        took = time.monotonic() - asked
        self._adapt(took)
        self._trip += (took - self._trip) / 10
        for job in jobs:
            if what in MEANWHILE and what != "extend":
                self._said(what, job)
            elif what == "extend" and not job._settled:
                job._until = asked + self._lease
                job._extend_at = asked + self._heartbeat
                job._alone = job._alone and job._outcome is not None
            elif job in self._ended:
                self._ended.remove(job)
                self._room.set()

    def _text_of(self, what, job):
        """The text for the job in the statement."""
        if what == "log":
            with job._lock:
                job._told = not job._settled
                job._telling = len(job._lines) if job._told else 0
                return json.dumps(job._lines[:job._telling])
        job._telling = job._progress
        return None if what == "extend" else job._progress if what == "progress" else job._outcome[1]

    def _said(self, what, job):
        """Remove the reported part; the handler may have added more."""
        if what == "log":
            with job._lock:
                del job._lines[:job._telling]
                job._told = False
        elif job._progress is job._telling:
            job._progress = None

    def _not_told(self, what, jobs, error):
        """Repeat the report later, unless the error is permanent.  If the connection was lost, the server may have
        processed the report.  A later error "the lease is over" is then ambiguous."""
        state = getattr(error, "sqlstate", None) or ""
        again = time.monotonic() + (0 if self._teller.is_lost() else 1)  # the next report waits for a connection
        if what == "extend" and state == TOO_MANY and not self._by_token:
            self._by_token = True
            return
        if state[:2] not in NOBODYS and len(jobs) > 1:  # one of the jobs is to blame
            for job in jobs:
                job._alone = True
            return
        for job in jobs:
            if job._settled and what in MEANWHILE:
                continue
            if state == LEASE_LOST:
                self._lose(job)
                continue
            log.warning("could not %s job %s: %s", what, job.id, str(error).strip() or "no answer")
            if what == "extend":
                job._extend_at = again
            elif what in MEANWHILE and state != "" and not state.startswith(PASSING):
                self._said(what, job)
            elif what in MEANWHILE:
                job._tell_at = again
            elif what == "ack" and (state[:2] == "22" or state == TOO_DEEP or
                                    state == NO_ROOM and len(job._outcome[1] or "") > NO_JSONB):
                job._outcome = ("nack", f"the result cannot be kept: {error}", None)
            elif state[:2] == "22":  # an invalid text: a repetition would fail, too
                job._outcome = ("nack", f"what the handler says cannot be told: {error}", None)
            else:
                job._tell_at = again
                job._refused = state != "" and not state.startswith(PASSING)
                self._room.set()


# ------------------------------------------------------------ unit tests


class FakeQueue:
    """For unit tests of producers and handlers, without a database.

        queue = FakeQueue({"thumbnails.make": make})
        enqueue(queue, "thumbnails.make", {"image": 7})
        queue.run()
        assert queue.jobs[0].state == "completed" and queue.jobs[0].result == {"file": "7.png"}

    enqueue(), enqueue_many(), status() and wait() take the queue instead of a connection.  With "asynchronous", the
    functions return awaitables, as with an AsyncConnection.  "jobs" has all jobs: the columns of jobq.status()
    without times, and payload, options, log (a list of level and text), and the "delay" set by the handler.  The
    handler is a function or a dict, as for a Consumer.  Transactions, unique keys, limits and times are not
    imitated, and the server's checks are not made.
    """

    def __init__(self, handler=None, *, asynchronous=False):
        self.jobs = []
        self._handler = {} if handler is None else handler
        self._asynchronous = asynchronous

    def run(self):
        """Run each waiting job once, also delayed jobs; for tests without an event loop."""
        asyncio.run(self.work())

    async def work(self):
        """The same, in an event loop.  Jobs enqueued by handlers wait for the next call."""
        consumer = Consumer("", [], self._handler)
        consumer._loop = asyncio.get_running_loop()
        consumer._threads = Threads(1)
        for job in [job for job in self.jobs if job.state in ("ready", "scheduled")]:
            row = (job.id, job.id, job.queue, job.kind, job.payload, job.options.get("headers"), job.attempt + 1,
                   job.max_attempts, None, None, False, 60)
            given = Job(consumer, row, 60)
            self._settle(job, given, *await consumer._outcome_of(given))
        consumer._threads.end()

    def _settle(self, job, given, outcome, text, delay):
        job.log += [tuple(line) for line in given._lines]
        if given._progress:
            job.progress, job.message = json.loads(given._progress)
        job.delay = delay
        if outcome == "release":
            job.state = "scheduled" if delay else "ready"
            return
        job.attempt += 1
        if outcome in ("ack", "settled"):
            job.state, job.error = "completed", None
            job.result = text and json.loads(text, parse_float=number)
        else:
            job.error = text
            job.state = "dead" if outcome == "reject" or 0 < job.max_attempts <= job.attempt else "scheduled"

    def _answer(self, value):
        async def later():
            return value

        return later() if self._asynchronous else value

    def _enqueue(self, kind, payloads, options, read):
        ids = []
        options_of(options)  # raises an error if an option is no JSON
        for payload in payloads:
            ids.append(len(self.jobs) + 1)
            self.jobs.append(types.SimpleNamespace(
                id=ids[-1], state="scheduled" if options.get("run_at") or options.get("delay") else "ready", kind=kind,
                queue=options.get("queue", "default"), attempt=0, max_attempts=options.get("max_attempts", 3),
                progress=None, message=None, result=None, error=None, payload=json.loads(written(payload), parse_float=number),
                options=options, log=[], delay=None))
        return self._answer(read(ids))

    def _status(self, id):
        wanted = str(id).lower()
        for job in self.jobs:
            options = {**(job.options.get("options") or {}), **job.options}
            if wanted in (str(job.id), str(options.get("uuid", "")).lower() or None):
                return self._answer(job)
        raise LookupError(f"job {id} does not exist")

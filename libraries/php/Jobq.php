<?php
/*
 * jobq in PHP: enqueues jobs, and calls a function for each job of a queue.
 *
 *	$id = Jobq\enqueue($pdo, 'thumbnails.make', ['image' => 7], queue: 'thumbnails', delay: '5 min');
 *
 *	$make = fn (Jobq\Job $job) => ['file' => $job->payload['image'] . '.png'];
 *	(new Jobq\Consumer('pgsql:dbname=app', ['thumbnails'], $make))->run();
 *
 * Requires only PHP 8.1 with pdo_pgsql, and pcntl for consumers.
 *
 * enqueue(), enqueue_many(), status() and wait() use the caller's PDO, and so its transaction.
 *
 * See the constructor of Consumer for the options.  The value returned by the handler is the result of the job.  An exception is a failed
 * attempt, apart from Retry, Release and Reject.  A process runs one job at a time; start a process
 * for each concurrent job.
 *
 * Implementation: a handler of SIGALRM extends leases while the job handler runs.  PHP calls signal
 * handlers between two instructions.  Each instruction must therefore be shorter than the lease,
 * for example a call to another server; and sleep() ends early.  SIGTERM and SIGINT are blocked and
 * polled, because PHP forgets a signal if an instruction ends with an exception.  Programs started
 * by the handler inherit the blocked signals.
 *
 * Numbers in payloads and headers keep all digits: a number without an exact int or float is a
 * string.
 *
 * A job whose lease may have ended is not acknowledged.  $job->lost becomes true, and the value
 * returned by the handler is dropped.  The server would reject the outcome, too.
 */
namespace Jobq;

use PDO;
use PDOException;

const LEASE_LOST = 'JQ011';
const TOO_MANY = '53400';					// the role's share is used up; to extend the jobs of a single token at a time still works
const HOPELESS = '/^(42|3F|22|JQ004)/';		// no such queue, no privilege, a queue of workers, ...: a repetition would fail again
const NOBODYS = '/^(08|40|53|57|HY)/';		// for these no job is to blame
const TOO_DEEP = '54001';					// to be read as JSON
const NO_ROOM = '54000';					// no room in the queue of NOTIFY at the commit, or for a text in a jsonb value
const NO_JSONB = 32000000;					// bytes of a text; a shorter text always has room in jsonb
// temporary errors: lack of resources, a lock, a server that is read-only or stops, jobq not
// running yet
const PASSING = '/^(08|25|40|53|55|57|58|HY|JQ002|' . NO_ROOM . ')/';
const DISCONNECTED = '/^(08|57|HY)/';
const MOST_REFUSED = 20;					// refused ends of jobs up to which other jobs do not wait
const SHORTEST_WAIT = 0.1;
const LATE = 1.0;							// seconds after which an answer shows that connections are scarce
const TOGETHER = 0.1;						// seconds in which what has ended is told together
const SOON = 0.1;							// seconds in which what is taken begins, unless "batch" is told
const NOT_SOON = 1.0;						// seconds after which what has not begun is given back then
const DEEPEST = 1001;						// levels of JSON: PHP has 512 unless told, the server 1000, and what is in the last

// prepended to the DSN, whose settings take precedence: the loss of a server is noticed within a
// minute
const NOTICING = 'keepalives_idle=30;keepalives_interval=10;keepalives_count=3;tcp_user_timeout=60000;';

// no other jobs are held then: one job runs at a time, and more are reserved when all have ended
const RESERVE = 'SELECT id, token, queue, kind, payload, headers, attempt, max_attempts, tenant, context,
extract(epoch FROM lease_until - jobq_internal.clock())::float8 AS left
FROM jobq.reserve(?::text[], ?::int, ?::interval, ?::interval, ?::text, 0)';
const PROGRESS = 'SELECT jobq.set_progress(?::bigint, ?::bigint, ?::real, ?::text)';
const ACK = 'SELECT jobq.ack(?::bigint, ?::bigint, ?::jsonb)';
const LOG = 'SELECT jobq.log(?::bigint, ?::bigint, ?::text, ?::text)';

// Each statement is for many jobs, with one commit.  An extension uses the role's quota per token,
// so the jobs of a token are grouped.
const OF_EACH = ' FROM unnest(?::bigint[], ?::bigint[], ?::text[], ?::interval[]) AS j (id, token, text, time)';
const TELL = [
	'extend' => 'SELECT jobq.extend_many(array_agg(j.id ORDER BY j.token, j.id), array_agg(j.token ORDER BY j.token, j.id),
		min(j.time))' . OF_EACH,
	'ack' => 'SELECT jobq.ack(j.id, j.token, j.text::jsonb)' . OF_EACH,
	'nack' => 'SELECT jobq.nack(j.id, j.token, j.text, j.time)' . OF_EACH,
	'reject' => 'SELECT jobq.reject(j.id, j.token, j.text)' . OF_EACH,
	'release' => 'SELECT jobq.release(j.id, j.token, j.time)' . OF_EACH,
];

// Options are passed by name in one object, so the server checks them, and knows all.
const ENQUEUE = 'SELECT jobq.enqueue(?::text, ?::jsonb, options => ?::jsonb)';
const ENQUEUE_MANY = 'SELECT jobq.enqueue_many(?::text, ARRAY(SELECT jsonb_array_elements(?::jsonb)),
options => ?::jsonb)';
const STATUS = 'SELECT * FROM jobq.status(?::text)';
const WAIT = 'SELECT * FROM jobq.wait(?::bigint, ?::interval)';

/**
 * Enqueue a job in the open transaction of this PDO; returns the id.  The options are those of
 * jobq.enqueue(), as named arguments: queue, priority, run_at, delay, max_attempts, retry_until,
 * backoff, timeout, expires_at, unique_key, uniqueness (an array), group_key, headers, tags and
 * options (an array).  A number of an interval is in seconds.
 *
 * Returns the holder's id if the unique key is held, or null with on_conflict ignore.
 */
function enqueue(PDO|FakeQueue $db, string $kind, mixed $payload = new \stdClass, mixed ...$options): ?int
{
	if ($db instanceof FakeQueue)
		return $db->enqueue($kind, [$payload], $options)[0];
	return Producer::ids($db, ENQUEUE, [$kind, Producer::write($payload), Producer::options($options)])[0];
}

/** Enqueue a job for each payload, all with these options, in one statement; returns the ids. */
function enqueue_many(PDO|FakeQueue $db, string $kind, iterable $payloads, mixed ...$options): array
{
	if ($db instanceof FakeQueue)
		return $db->enqueue($kind, $payloads, $options);
	return Producer::ids($db, ENQUEUE_MANY, [$kind, Producer::write(array_values([...$payloads])), Producer::options($options)]);
}

/** The status of a job, by its id or by the uuid given to enqueue(): the columns of jobq.status(). */
function status(PDO|FakeQueue $db, int|string $id): object
{
	if ($db instanceof FakeQueue)
		return $db->status($id);
	return Producer::status($db, STATUS, [$id]);
}

/** Wait until a job has finished, or for so many seconds; returns the status.  The job must be
 * committed. */
function wait(PDO|FakeQueue $db, int $id, float|string $timeout = 30): object
{
	if ($db instanceof FakeQueue)
		return $db->status($id);
	return Producer::status($db, WAIT, [$id, Producer::interval($timeout)]);
}

/** @internal the statements of the functions above */
class Producer
{
	public static function write(mixed $value): string
	{
		return json_encode($value, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION, DEEPEST + 1);
	}

	/** An interval as text: a number is in seconds. */
	public static function interval(mixed $value): mixed
	{
		return is_int($value) || is_float($value) ? sprintf('%.6F s', $value) : self::time($value);
	}

	private static function time(mixed $value): mixed
	{
		if ($value instanceof \DateInterval && $value->invert)
			throw new \ValueError('an interval of an option is negative');
		return match (true) {
			$value instanceof \DateTimeInterface => $value->format('Y-m-d\TH:i:s.uP'),
			$value instanceof \DateInterval => $value->format('P%yY%mM%dDT%hH%iM%s.%FS'),
			default => $value,
		};
	}

	/** The options as one JSON object; the keys of "options" stand beside the other options. */
	public static function options(array $options): string
	{
		$all = array_map(self::time(...), $options + (array) ($options['options'] ?? []));
		unset($all['options']);
		foreach (['delay', 'timeout'] as $key)
			$all[$key] = self::interval($all[$key] ?? null);
		if (isset($all['uniqueness']['for']))
			$all['uniqueness']['for'] = self::interval($all['uniqueness']['for']);
		return self::write((object) $all);
	}

	public static function ids(PDO $db, string $statement, array $values): array
	{
		return array_map(fn ($row) => $row[0] === null ? null : (int) $row[0], self::rows($db, PDO::FETCH_NUM, $statement, $values));
	}

	public static function status(PDO $db, string $statement, array $values): object
	{
		$status = array_change_key_case(self::rows($db, PDO::FETCH_ASSOC, $statement, $values)[0]);
		return (object) array_replace($status, ['id' => (int) $status['id'], 'result' => Consumer::read($status['result'] ?? 'null')]);
	}

	/** Run a statement; an error is an exception, also if the caller's PDO is silent. */
	private static function rows(PDO $db, int $mode, string $statement, array $values): array
	{
		$query = $db->prepare($statement);
		if (!$query || !$query->execute($values)) {
			$info = ($query ?: $db)->errorInfo();
			$error = new PDOException("SQLSTATE[$info[0]]: " . ($info[2] ?? 'unknown error'));
			$error->errorInfo = $info;
			throw $error;
		}
		return $query->fetchAll($mode);
	}
}

/** The attempt has failed.  The next attempt starts after $delay seconds instead of the backoff. */
class Retry extends \Exception
{
	public function __construct(public readonly float $delay, string $error = 'the handler wants it to be tried again')
	{
		parent::__construct($error);
	}
}

/** The job goes back to its queue for $delay seconds, and no attempt is charged. */
class Release extends \Exception
{
	public function __construct(public readonly float $delay = 0)
	{
		parent::__construct("released for $delay s");
	}
}

/** Retries cannot help: the job becomes a dead letter. */
class Reject extends \Exception
{
}

/** Another consumer may have the job now. */
class LeaseLost extends \Exception
{
}

/** A reserved job: the columns of jobq.reserved_job, and whether the lease is lost. */
class Job
{
	public bool $lost = false;
	/** @internal the handler got a LeaseLost at a stop; the job goes back when the handler has ended */
	public bool $givenUp = false;
	/** @internal the outcome to report: a key of TELL, text, seconds */
	public ?array $outcome = null;
	/** @internal an error occurred in a statement for several jobs including this job */
	public bool $alone = false;
	/** @internal the server rejects the outcome, probably permanently */
	public bool $refused = false;
	/** @internal */
	public float $tellAt = 0;
	/** @internal the handler has acknowledged the job, with this result as JSON */
	public bool $settled = false;
	/** @internal */
	public ?string $result = null;

	/** @internal "since": start of the hold; "until": latest end of the lease */
	public function __construct(public readonly int $id, public readonly int $token, public readonly ?string $queue,
		public readonly string $kind, public readonly mixed $payload, public readonly mixed $headers,
		public readonly int $attempt, public readonly ?int $maxAttempts, public readonly ?string $tenant,
		public readonly mixed $context, public readonly float $since, public float $until, public float $extendAt,
		private \Closure $say)
	{
	}

	/** For long handlers: throws LeaseLost if the lease is lost. */
	public function check(): void
	{
		if ($this->lost)
			throw new LeaseLost("the lease of job $this->id is over");
	}

	/**
	 * Acknowledge the job in the open transaction of this PDO: the job is completed if, and when, the
	 * transaction commits.  The handler then commits and returns; its value is ignored.  If the
	 * transaction rolls back, the handler must throw, and the attempt has failed.
	 */
	public function ack(PDO|FakeQueue $db, mixed $result = null): void
	{
		$this->check();
		$this->result = $result === null ? null : Producer::write($result);
		// from here on, the transaction decides: the consumer extends no lease
		$this->settled = true;
		$this->until = $this->extendAt = INF;
		if ($db instanceof PDO)
			Producer::ids($db, ACK, [$this->id, $this->token, $this->result]);
	}

	/** Reports the progress from 0 to 100. */
	public function progress(float $percent, ?string $message = null): void
	{
		($this->say)($this, PROGRESS, [$percent, $message]);
	}

	/** Stores a log line with the job; the level is debug, info, warning or error. */
	public function log(string $message, string $level = 'info'): void
	{
		($this->say)($this, LOG, [$message, $level]);
	}
}

class Consumer
{
	private ?PDO $db = null;
	private ?PDO $ear = null;
	private array $held = [];				// by id; a held job may run
	private array $ended = [];				// by id, to be told
	private ?Job $running = null;
	private bool $stopping = false;
	private bool $calling = false;			// the handler runs
	private float $giveUpAt = INF;
	private bool $busy = false;				// we are at these lists
	private float $connectPause = 0.1;
	private float $connectAt = 0;
	private float $toldAt = 0;
	private float $jobTime = INF;			// seconds that a job takes, about
	private bool $byToken = false;			// jobs of several tokens are too many to be extended together
	private float $patience;
	private float $heartbeat;
	private $log;

	/**
	 * Reserves jobs of these queues, in strict order, and calls the handler for each.
	 *
	 * @param $dsn       the database, for PDO
	 * @param $handler   a function for all jobs, or an array with a function for each kind; a job of a kind that is not
	 *                   in the array is given back for $pause seconds, and no attempt is charged: a consumer of a
	 *                   later version may have the function
	 * @param $batch     number of jobs reserved at a time; by default, one and as many more as will begin within a tenth
	 *                   of a second; jobs that have not begun after a second are then released
	 * @param $lease     seconds for which a job is held; extended while the job is held
	 * @param $heartbeat interval of extensions in whole seconds; default: a third of the lease
	 * @param $wait      seconds that a call of reserve() waits for jobs, or the interval of checks with $listen
	 * @param $listen    DSN of the server itself, not of a pooler; for notifications of jobs
	 * @param $name      name in the view jobq.workers
	 * @param $log       called with each line for the log; default: standard error
	 * @param $pause     seconds until a job of an unknown kind comes again
	 * @param $stopTimeout  seconds after SIGTERM or SIGINT until a job that still runs is given back; by default, the
	 *                   consumer waits for this job
	 */
	public function __construct(private string $dsn, private array $queues, private \Closure|array $handler,
		private ?int $batch = null, private float $lease = 30, ?float $heartbeat = null, private float $wait = 5,
		private ?string $listen = null, private string $name = 'php', ?\Closure $log = null,
		private float $pause = 10, private ?float $stopTimeout = null)
	{
		$this->heartbeat = $heartbeat ?? $lease / 3;
		$this->patience = min(1, $wait);
		$this->log = $log ?? fn (string $line) => fwrite(STDERR, "$line\n");
	}

	/** Work until SIGTERM or SIGINT. */
	public function run(): void
	{
		pcntl_sigprocmask(SIG_BLOCK, [SIGTERM, SIGINT]);
		$async = pcntl_async_signals(true);
		pcntl_signal(SIGALRM, fn () => $this->beat());
		try {
			while (!$this->stopped()) {
				$taken = $this->take();
				if ($taken || $this->ended)
					$this->work();
				if (!$taken && $this->listen)
					$this->await();
			}
			$this->work();		// there may be some that are refused
		} finally {
			pcntl_alarm(0);
			pcntl_signal(SIGALRM, SIG_DFL);
			pcntl_async_signals($async);
			pcntl_sigprocmask(SIG_UNBLOCK, [SIGTERM, SIGINT]);
			$this->db = $this->ear = null;
		}
	}

	/** Reserve no more jobs; run() returns when the running job has ended.  The handler of a job that
	 * still runs after $timeout seconds gets a LeaseLost.  When the handler has ended, the job is given
	 * back, and no attempt is charged. */
	public function stop(?float $timeout = null): void
	{
		$this->stopping = true;
		$this->giveUpAt = min($this->giveUpAt, self::now() + ($timeout ?? INF));
		if ($this->running)
			$this->arm();
	}

	/** Wait for so many seconds; returns true after a request to stop. */
	private function stopped(float $seconds = 0): bool
	{
		if (!$this->stopping && @pcntl_sigtimedwait([SIGTERM, SIGINT], $info, (int) $seconds,
			1 + (int) (fmod($seconds, 1) * 1e9)) > 0)
			$this->stop($this->stopTimeout);
		return $this->stopping;
	}

	// ------------------------------------------------------------ take and run

	/** Reserve available jobs; returns true if there were any. */
	private function take(): bool
	{
		$wait = $this->listen ? 0 : ($this->ended ? min(1, $this->patience) : $this->patience);
		$most = $this->batch ?? 1 + min(99, (int) (SOON / max($this->jobTime, 0.001)));
		$asked = self::now();
		try {
			$rows = $this->rows(RESERVE, [self::arrayOf($this->queues), $most, "$this->lease s", "$wait s", $this->name]);
		} catch (PDOException $error) {
			($this->log)('could not reserve: ' . $error->getMessage());
			if (preg_match(HOPELESS, self::stateOf($error)))
				throw $error;
			// without a connection, wait until the next attempt to connect
			$this->stopped($this->db ? 1 : max(0, $this->connectAt - self::now()));
			return false;
		}
		$now = self::now();
		$late = $now - $asked - $wait;
		$this->adapt($late, !$rows);
		foreach ($rows as $row) {
			if ($before = $this->ended[$row->id] ?? null)
				$this->lose($before);	// the end of the job was refused, and the lease is over
			// a delayed answer says nothing about the rest of the lease
			$this->held[$row->id] = new Job($row->id, $row->token, $row->queue, $row->kind, self::read($row->payload),
				self::read($row->headers ?? 'null'), $row->attempt, $row->max_attempts, $row->tenant,
				self::read($row->context ?? 'null'),
				// a job with a timeout may have less time than other jobs
				$now, $now + $row->left, $late > LATE ? $now : $now + min($this->heartbeat, $row->left / 3), $this->say(...));
		}
		return (bool) $rows;
	}

	/** Late answers reduce the waiting time.  Behind a pooler, consumers waiting in reserve() may
	 * occupy all connections, so that jobs cannot be settled. */
	private function adapt(float $late, bool $empty = false): void
	{
		if ($late > LATE)
			$this->patience = max(SHORTEST_WAIT, $this->patience / $late);
		elseif ($empty && $late < LATE / 2)
			$this->patience = min($this->wait, $this->patience * 2);
	}

	/** Wait until notified of jobs, or until the next regular check. */
	private function await(): void
	{
		$until = self::now() + ($this->ended ? min(1, $this->wait) : $this->wait);
		$connected = (bool) $this->ear;
		try {
			if (!$this->ear) {
				$this->ear = self::connect($this->listen);
				foreach ($this->queues as $queue)
					$this->ear->exec('LISTEN "' . str_replace('"', '""', "jobq_queue_$queue") . '"');
				return;		// there may be some since we have looked
			}
			while (!$this->stopped() && ($since = self::now()) < $until)
				if (@$this->ear->pgsqlGetNotify(PDO::FETCH_NUM, 1000)) {
					while (@$this->ear->pgsqlGetNotify(PDO::FETCH_NUM))
						;
					return;
				} elseif (self::now() < $since + 0.5)
					$this->ear->query('SELECT 1');		// is it still there?
		} catch (PDOException $error) {
			($this->log)('does not hear of jobs: ' . $error->getMessage());
			$this->ear = null;
			// a lost connection is restored at once
			if (!$connected || !preg_match(DISCONNECTED, self::stateOf($error)))
				$this->stopped(1);
		}
	}

	/** Run the held jobs and report all outcomes.  Some refused jobs may remain; they are
	 * reported later, until their leases end. */
	private function work(): void
	{
		$this->toldAt = self::now();
		$this->beat();
		while (!$this->stopped() && $job = $this->begin()) {
			$began = self::now();
			$outcome = $this->outcomeOf($job);
			$this->busy = true;
			$took = self::now() - $began;
			$this->jobTime = $this->jobTime == INF ? $took : $this->jobTime + ($took - $this->jobTime) / 10;
			$this->running = null;
			if ($outcome[0] == 'settled') {
				unset($this->held[$job->id]);
			} elseif (!$job->lost || $job->givenUp) {
				$job->outcome = $job->givenUp ? ['release', null, 0] : $outcome;
				unset($this->held[$job->id]);
				$this->ended[$job->id] = $job;
			}
			$this->busy = false;
			if (self::now() >= $this->toldAt + TOGETHER)
				$this->beat();
			else
				$this->arm();		// it may have been forgotten
		}
		for (; $this->held || $this->untold(); usleep(100000)) {
			$this->beat();
			if (!$this->held && !$this->untold())
				break;
		}
		pcntl_alarm(0);
	}

	/** Start the first held job; null if there is none.  An alarm may come between any two
	 * instructions, and may release jobs that do not run. */
	private function begin(): ?Job
	{
		do
			$job = $this->running = reset($this->held) ?: null;
		while ($job && ($this->held[$job->id] ?? null) !== $job);
		return $job;
	}

	/** Must outcomes be reported before more jobs are reserved, or before the stop? */
	private function untold(): bool
	{
		$refused = count(array_filter($this->ended, fn ($job) => $job->refused));
		return count($this->ended) > ($this->stopping ? 0 : min($refused, MOST_REFUSED));
	}

	/** @internal Call the handler; returns the outcome to report. */
	public function outcomeOf(Job $job): array
	{
		$handler = is_array($this->handler) ? $this->handler[$job->kind] ?? null : $this->handler;
		if (!$handler) {
			($this->log)("job $job->id: there is no handler for kind \"$job->kind\"; given back for $this->pause s");
			return ['release', null, $this->pause];
		}
		try {
			$result = $this->call($handler, $job);
			if ($job->settled)
				return ['settled', $job->result, null];
			return ['ack', $result === null ? null : json_encode($result, JSON_THROW_ON_ERROR, DEEPEST), null];
		} catch (Retry $error) {
			return ['nack', $error->getMessage(), $error->delay];
		} catch (Release $error) {
			return ['release', null, $error->delay];
		} catch (Reject $error) {
			return ['reject', $error->getMessage(), null];
		} catch (\Throwable $error) {
			return ['nack', get_class($error) . ': ' . $error->getMessage(), null];
		}
	}

	/** Only here may an alarm throw an exception. */
	private function call(callable $handler, Job $job): mixed
	{
		$this->calling = true;
		if ($this->stopTimeout !== null)
			$this->arm();		// for signals
		try {
			return $handler($job);
		} finally {
			$this->calling = false;
		}
	}

	/** The lease may have ended: the outcome of the job is not reported any more. */
	private function lose(Job $job): void
	{
		$job->lost = true;
		$job->givenUp = false;
		unset($this->held[$job->id], $this->ended[$job->id]);
		($this->log)("job $job->id ($job->kind): its lease is over" . ($job->outcome ? '; it may be done again' : ''));
	}

	// ------------------------------------------------------------ tell

	/** Extend leases and report outcomes; repeat when the next report is due. */
	private function beat(): void
	{
		if ($this->busy)
			return;				// the caller arms the alarm at its end
		$this->busy = true;
		$this->toldAt = self::now();
		$this->giveBack($this->stopped());
		foreach ($this->held + $this->ended as $job)
			if (self::now() >= $job->until)
				$this->lose($job);
		$given = $this->giveUp();
		while ($next = $this->next(self::now()))
			$this->tell(...$next);
		$this->busy = false;
		$this->arm();
		if ($given)
			throw new LeaseLost("job $given->id is given back, because the consumer stops");
	}

	/** Give up a job that runs too long after a stop; returns the job.  The lease is kept until the
	 * handler has ended, so that no other consumer begins the job meanwhile. */
	private function giveUp(): ?Job
	{
		$job = $this->running;
		if (!$this->calling || $job->lost || self::now() < $this->giveUpAt)
			return null;
		($this->log)("job $job->id ($job->kind): given back, because the consumer stops");
		$job->lost = $job->givenUp = true;
		$this->calling = false;
		return $job;
	}

	/** Release held jobs during shutdown, or if they have not begun as soon as expected.  Their
	 * timeouts are running, and another consumer may be idle. */
	private function giveBack(bool $all): void
	{
		foreach ($this->held as $job)
			if ($job !== $this->running && ($all || self::now() >= $this->lateAt($job))) {
				$job->outcome = ['release', null, 0];
				unset($this->held[$job->id]);
				$this->ended[$job->id] = $job;
				$this->jobTime = INF;	// the consumer takes one job at a time until a job has ended
			}
	}

	private function lateAt(Job $job): float
	{
		return $this->batch === null ? $job->since + min(NOT_SOON, $this->heartbeat) : INF;
	}

	/** Schedule the next call of beat(). */
	private function arm(): void
	{
		$due = array_map(fn ($job) => min($job->until, $job->extendAt,
			$job !== $this->running ? $this->lateAt($job) : INF), $this->held) +
			array_map(fn ($job) => min($job->until, $job->refused ? INF : $job->extendAt, $job->tellAt ?: $this->toldAt + 1),
				$this->ended);
		// signals are noticed by an alarm
		if ($this->calling)
			$due[] = $this->stopping ? $this->giveUpAt : self::now() + ($this->stopTimeout === null ? INF : 1);
		pcntl_alarm($due ? max(1, (int) ceil(min(min($due) - self::now(), 3600))) : 0);
	}

	/** The most urgent report: extensions, then outcomes.  Leases are extended also after the end
	 * of a job, until the outcome is reported.  Not for refused jobs, which would be held
	 * forever, and not during shutdown. */
	private function next(float $now): ?array
	{
		$kept = $this->stopping ? $this->held : $this->held + $this->ended;
		$due = ['extend' => array_filter($kept, fn ($job) => $now >= $job->extendAt && !$job->refused)];
		if ($this->byToken && $first = reset($due['extend']))
			$due['extend'] = array_filter($due['extend'], fn ($job) => $job->token == $first->token);
		foreach ($this->ended as $id => $job)
			if ($now >= $job->tellAt)
				$due[$job->outcome[0]][$id] = $job;
		foreach (array_keys(TELL) as $what)
			if ($jobs = $due[$what] ?? null)
				return [$what, array_slice(array_filter($jobs, fn ($job) => $job->alone), 0, 1) ?: array_slice($jobs, 0, 100)];
		return null;
	}

	/** Report a call of the handler during its job; values rejected by the server are lost. */
	private function say(Job $job, string $statement, array $values): void
	{
		$this->busy = true;
		try {
			if (!$job->lost && !$job->settled)
				$this->rows($statement, [$job->id, $job->token, ...array_map(fn ($value) => is_string($value) ? self::clean($value)
					: $value, $values)]);
		} catch (PDOException $error) {
			if (self::stateOf($error) == LEASE_LOST)
				$this->lose($job);
			else
				($this->log)("could not tell of job $job->id: " . $error->getMessage());
		}
		$this->busy = false;
		$this->arm();			// it may have been forgotten
	}

	private function tell(string $what, array $jobs): void
	{
		$asked = self::now();
		$extend = $what == 'extend';
		try {
			$this->rows(TELL[$what], [
				self::arrayOf(array_column($jobs, 'id')), self::arrayOf(array_column($jobs, 'token')),
				self::arrayOf(array_map(fn ($job) => $extend ? null : $job->outcome[1], $jobs)),
				self::arrayOf(array_map(fn ($job) => Producer::interval($extend ? $this->lease : $job->outcome[2]), $jobs))]);
		} catch (PDOException $error) {
			$this->notTold($what, $jobs, $error);
			return;
		}
		$this->adapt(self::now() - $asked);
		foreach ($jobs as $job) {
			if ($job->outcome === null)
				$job->alone = false;
			if ($extend) {
				$job->until = $asked + $this->lease;
				$job->extendAt = $asked + $this->heartbeat;
			} else
				unset($this->ended[$job->id]);
		}
	}

	/** Repeat the report later, unless the error is permanent.  If the connection was lost, the
	 * server may have processed the report.  A later error "the lease is over" is then
	 * ambiguous. */
	private function notTold(string $what, array $jobs, PDOException $error): void
	{
		$state = self::stateOf($error);
		// without a connection, wait until the next attempt to connect
		$again = $this->db ? self::now() + 1 : max(self::now(), $this->connectAt);
		$alone = count($jobs) == 1;
		if ($what == 'extend' && $state == TOO_MANY && !$this->byToken) {
			$this->byToken = true;
			return;
		}
		foreach ($jobs as $job)
			if (!$alone && !preg_match(NOBODYS, $state))
				$job->alone = true;			// one of the jobs is to blame
			elseif ($state == LEASE_LOST)
				$this->lose($job);
			else {
				($this->log)("could not $what job $job->id: " . $error->getMessage());
				if ($what == 'extend')
					$job->extendAt = $again;
				elseif ($what == 'ack' && (preg_match('/^22/', $state) || $state == TOO_DEEP ||
					$state == NO_ROOM && strlen($job->outcome[1] ?? '') > NO_JSONB))
					$job->outcome = ['nack', 'the result cannot be kept: ' . $error->getMessage(), null];
				elseif (preg_match('/^22/', $state))
					$job->outcome = ['nack', 'what the handler says cannot be told: ' . $error->getMessage(), null];
				else {
					$job->tellAt = $again;
					$job->refused = !preg_match(PASSING, $state);
				}
			}
	}

	// ------------------------------------------------------------ the server

	/** Run a statement, after connecting if an attempt is due. */
	private function rows(string $statement, array $values): array
	{
		try {
			if (!$this->db) {
				if (self::now() < $this->connectAt)
					throw new PDOException('there is no connection');
				$this->connectAt = self::now() + $this->connectPause;
				$this->connectPause = min(2 * $this->connectPause, 10);
				$this->db = self::connect($this->dsn);
				$this->connectPause = 0.1;
			}
			$query = $this->db->prepare($statement);
			$query->execute($values);
			return $query->fetchAll(PDO::FETCH_OBJ);
		} catch (PDOException $error) {
			if (preg_match(DISCONNECTED, self::stateOf($error)))
				$this->db = null;
			throw $error;
		}
	}

	private static function connect(string $dsn): PDO
	{
		if (str_starts_with($dsn, 'pgsql:'))
			$dsn = 'pgsql:' . NOTICING . substr($dsn, strlen('pgsql:'));
		// a pooler may assign another session to each statement, so no statement is prepared
		$db = new PDO($dsn, null, null, [PDO::PGSQL_ATTR_DISABLE_PREPARES => true, PDO::ATTR_TIMEOUT => 10]);
		$db->exec("SET client_encoding TO 'UTF8'");
		return $db;
	}

	/** @internal Read JSON; numbers rounded by PHP become strings. */
	public static function read(string $json): mixed
	{
		if (preg_match('/[0-9.]{16}/', $json))
			$json = preg_replace_callback('/"(?:[^"\\\\]++|\\\\.)*+"|-?[0-9][0-9.eE+-]*+/s',
				fn ($found) => $found[0][0] === '"' || self::fits($found[0]) ? $found[0] : "\"$found[0]\"", $json) ?? $json;
		return json_decode($json, true, DEEPEST);
	}

	private static function fits(string $number): bool
	{
		// without leading and trailing zeros
		$digits = fn ($text) => trim(str_replace(['-', '.'], '', preg_replace('/e.*/i', '', $text)), '0');
		return preg_match('/^-?[0-9]+$/', $number) ? (string) (int) $number === $number
			: $digits(json_encode((float) $number)) === $digits($number);
	}

	private static function now(): float
	{
		return hrtime(true) / 1e9;
	}

	private static function stateOf(PDOException $error): string
	{
		return $error->errorInfo[0] ?? 'HY000';
	}

	/** An array as a literal, of cleaned texts. */
	private static function arrayOf(array $values): string
	{
		return '{' . implode(',', array_map(fn ($value) => $value === null ? 'NULL'
			: '"' . addcslashes(self::clean((string) $value), '"\\') . '"', $values)) . '}';
	}

	/** A text without characters rejected by the server. */
	private static function clean(string $text): string
	{
		return str_replace("\0", "\u{fffd}", json_decode(json_encode($text, JSON_INVALID_UTF8_SUBSTITUTE)));
	}
}

/**
 * For unit tests of producers and handlers, without a database.
 *
 *	$queue = new Jobq\FakeQueue(['thumbnails.make' => make(...)]);
 *	Jobq\enqueue($queue, 'thumbnails.make', ['image' => 7]);
 *	$queue->run();
 *	assert($queue->jobs[0]->result == ['file' => '7.png']);
 *
 * enqueue(), enqueue_many(), status() and wait() take the queue instead of a PDO.  $jobs has all
 * jobs: the columns of jobq.status() without times, and payload, options, log (an array of level and
 * text), and the "delay" set by the handler.  The handler is a function or an array, as for a
 * Consumer.  Transactions, unique keys, limits and times are not imitated, and the server's checks
 * are not made.
 */
class FakeQueue
{
	public array $jobs = [];

	public function __construct(private \Closure|array $handler = [])
	{
	}

	/** Run each waiting job once, also delayed jobs.  Jobs enqueued by handlers wait for the next
	 * call. */
	public function run(): void
	{
		$consumer = new Consumer('', [], $this->handler, log: fn () => null);
		foreach (array_filter($this->jobs, fn ($job) => in_array($job->state, ['ready', 'scheduled'])) as $job) {
			$say = function (Job $given, string $statement, array $values) use ($job) {
				if ($statement === PROGRESS)
					[$job->progress, $job->message] = $values;
				else
					$job->log[] = array_reverse($values);
			};
			$given = new Job($job->id, $job->id, $job->queue, $job->kind, $job->payload, $job->options['headers'] ?? null,
				$job->attempt + 1, $job->max_attempts, null, null, 0, INF, INF, $say);
			[$what, $text, $job->delay] = $consumer->outcomeOf($given);
			if ($what == 'release') {
				$job->state = $job->delay ? 'scheduled' : 'ready';
				continue;
			}
			$job->attempt++;
			if ($what == 'ack' || $what == 'settled') {
				$job->state = 'completed';
				$job->error = null;
				$job->result = Consumer::read($text ?? 'null');
			} else {
				$job->error = $text;
				$job->state = $what == 'reject' || $job->max_attempts > 0 && $job->attempt >= $job->max_attempts ? 'dead' : 'scheduled';
			}
		}
	}

	/** @internal */
	public function status(int|string $id): object
	{
		foreach ($this->jobs as $job) {
			$options = $job->options + ($job->options['options'] ?? []);
			if ((string) $id === (string) $job->id || strcasecmp($id, $options['uuid'] ?? '') == 0 && isset($options['uuid']))
				return $job;
		}
		throw new \OutOfBoundsException("job $id does not exist");
	}

	/** @internal */
	public function enqueue(string $kind, iterable $payloads, array $options): array
	{
		$ids = [];
		Producer::options($options);		// throws if an option is no JSON
		foreach ($payloads as $payload) {
			$ids[] = $id = count($this->jobs) + 1;
			$this->jobs[] = (object) ['id' => $id, 'state' => isset($options['run_at']) || isset($options['delay']) ? 'scheduled' : 'ready',
				'kind' => $kind, 'queue' => $options['queue'] ?? 'default', 'attempt' => 0, 'max_attempts' => $options['max_attempts'] ?? 3,
				'progress' => null, 'message' => null, 'result' => null, 'error' => null,
				'payload' => Consumer::read(Producer::write($payload)), 'options' => $options, 'log' => [], 'delay' => null];
		}
		return $ids;
	}
}

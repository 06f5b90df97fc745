<?php
/*
 * jobq as a queue of Laravel, from version 8 on.
 *
 * Install the folder as the package jobq/laravel, whose provider Laravel discovers.  Otherwise load
 * this file ("files" of "autoload" in composer.json, or require), and add
 * Jobq\Laravel\JobqServiceProvider::class to the application's providers.  Add a connection to
 * config/queue.php:
 *
 *	'jobq' => ['driver' => 'jobq', 'connection' => 'pgsql', 'queue' => 'default', 'retry_after' => 90, 'block_for' => 5],
 *
 * Add this, so that queue:failed, queue:retry and similar commands use jobq's dead letters:
 *
 *	'failed' => ['driver' => 'jobq', 'database' => 'pgsql'],
 *
 * The role of the connection needs jobq.grant_privilege('app'), and queues for consumers.  After
 * ALTER ROLE app SET jobq.create_queues = consumer, the first use of a queue creates the queue.
 *
 * connection   the database connection, also for pushes: a job is pushed if, and when, the transaction of this
 *              connection commits
 * retry_after  seconds for which a job is held; must exceed the duration of any job without calls of
 *              $this->job->extend()
 * block_for    seconds that pop() waits for a job; default: 0.  Run queue:work with --sleep=0 then.  The wait is
 *              for each queue of --queue in turn, but for all queues together if joined by "|":
 *              --queue='high|default'
 *
 * priorities   the priority of jobs by class: ['App\Jobs\Pay' => -10]; a smaller number runs first, and 0 is the default
 *
 * Laravel decides about retries and their delays, as for its other queues; jobq counts the attempts
 * and stores the exceptions.  A permanently failed job also becomes a dead letter of jobq.
 *
 * Payloads contain zero bytes where Laravel serializes non-public properties.  jsonb does not allow
 * zero bytes, so affected texts are stored in base64.  A zero byte in a key is an error.  All other
 * text of a payload is stored unchanged, numbers with all digits.
 */
namespace Jobq\Laravel;

use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Queue\ClearableQueue;
use Illuminate\Contracts\Queue\Factory;
use Illuminate\Contracts\Queue\Job as JobContract;
use Illuminate\Contracts\Queue\Queue as QueueContract;
use Illuminate\Database\ConnectionInterface;
use Illuminate\Database\ConnectionResolverInterface;
use Illuminate\Queue\Connectors\ConnectorInterface;
use Illuminate\Queue\Events\JobExceptionOccurred;
use Illuminate\Queue\Failed\DatabaseUuidFailedJobProvider;
use Illuminate\Queue\Failed\FailedJobProviderInterface;
use Illuminate\Queue\Failed\NullFailedJobProvider;
use Illuminate\Queue\Failed\PrunableFailedJobProvider;
use Illuminate\Queue\Jobs\Job;
use Illuminate\Queue\Queue;
use Illuminate\Support\ServiceProvider;

/** Registers the driver, and the provider of failed jobs if config/queue.php contains it. */
class JobqServiceProvider extends ServiceProvider
{
	public function boot()
	{
		$this->callAfterResolving('queue', fn ($queue) => $queue->addConnector('jobq', fn () => new JobqConnector($this->app['db'])));
		if (($this->app['config']['queue.failed']['driver'] ?? null) === 'jobq')
			$this->app->extend('queue.failer', function ($failer, $app) {
				$config = $app['config']['queue.failed'];
				$others = isset($config['table'])
					? new DatabaseUuidFailedJobProvider($app['db'], $config['database'] ?? null, $config['table'])
					: new NullFailedJobProvider;
				return new JobqFailedJobProvider($app['db']->connection($config['database'] ?? null), $app['queue'], $others);
			});
	}
}

class JobqConnector implements ConnectorInterface
{
	public function __construct(private ConnectionResolverInterface $connections)
	{
	}

	public function connect(array $config)
	{
		return new JobqQueue($this->connections->connection($config['connection'] ?? null), $config['queue'] ?? 'default',
			$config['retry_after'] ?? 90, $config['block_for'] ?? 0, $config['after_commit'] ?? false, $config['priorities'] ?? []);
	}
}

class JobqQueue extends Queue implements QueueContract, ClearableQueue
{
	private const LONGEST_NAME = 51;
	private const SIGNALS = [SIGTERM, SIGQUIT, SIGINT];

	private bool $listens = false;
	private bool $stopping = false;
	private array $handlers = [];

	public function __construct(private ConnectionInterface $database, private string $default, private float $retryAfter,
		private float $blockFor, $dispatchAfterCommit, private array $priorities = [])
	{
		$this->dispatchAfterCommit = $dispatchAfterCommit;
	}

	public function push($job, $data = '', $queue = null)
	{
		return $this->later(0, $job, $data, $queue);
	}

	public function later($delay, $job, $data = '', $queue = null)
	{
		return $this->enqueueUsing($job, $this->createPayload($job, $this->getQueue($queue), $data), $queue, $delay,
			fn ($payload, $queue, $delay) => $this->enqueue([[$payload, $delay]], $queue)[0]);
	}

	public function pushRaw($payload, $queue = null, array $options = [])
	{
		return $this->enqueue([[$payload, 0]], $queue)[0];
	}

	/**
	 * A statement for all jobs, and a second for jobs waiting for Laravel's commit; an event
	 * JobQueued for each job.
	 */
	public function bulk($jobs, $data = '', $queue = null)
	{
		$groups = [];
		foreach ((array) $jobs as $job)
			$groups[(int) $this->shouldDispatchAfterCommit($job)][] = [$this->createPayload($job, $this->getQueue($queue), $data),
				is_object($job) ? $job->delay ?? 0 : 0, $job];
		foreach ($groups as $group) {
			$ids = null;
			foreach ($group as $n => [$payload, $delay, $job])
				$this->enqueueUsing($job, $payload, $queue, $delay, function () use (&$ids, $group, $queue, $n) {
					$ids ??= $this->enqueue($group, $queue);
					return $ids[$n];
				});
			unset($ids);
		}
	}

	/**
	 * Enqueue jobs, each given by its payload and delay; returns their ids.  Laravel limits the
	 * number of attempts, so jobq has no limit.  The backoff is for crashed workers.
	 */
	private function enqueue(array $jobs, $queue): array
	{
		$rows = array_map(function ($job) {
			$payload = json_decode($job[0], false, 512, JSON_THROW_ON_ERROR);
			$name = $payload->displayName ?? $payload->job ?? 'laravel';
			$row = ['kind' => mb_strcut($name, 0, 100), 'priority' => $this->priorities[$name] ?? null,
				'delay' => max(0, $this->secondsUntil($job[1])) . ' s'];
			return substr(json_encode($row, JSON_THROW_ON_ERROR), 0, -1) . ',"payload":' . Texts::pack($job[0]) . '}';
		}, $jobs);
		return array_column($this->database->selectFromWriteConnection('SELECT jobq.enqueue(job ->> \'kind\', job -> \'payload\', ?,
				priority => (job ->> \'priority\')::int, delay => (job ->> \'delay\')::interval, max_attempts => 0, backoff => \'fixed 1s\',
				headers => jsonb_build_object(\'laravel\', ?::text)) AS id
			FROM jsonb_array_elements(?::jsonb) WITH ORDINALITY AS jobs (job, n) ORDER BY n',
			[$this->getQueue($queue), $this->connectionName, '[' . implode(',', $rows) . ']']), 'id');
	}

	/** Waits a second at a time, because signals are processed only between two statements. */
	public function pop($queue = null)
	{
		$this->listen();
		$queues = array_map(fn ($name) => '"' . addcslashes($this->getQueue($name), '"\\') . '"', explode('|', $queue ?: $this->default));
		for ($until = hrtime(true) + 1e9 * $this->blockFor; !$this->stopping; ) {
			$wait = sprintf('%.3F', max(0, min(1, ($until - hrtime(true)) / 1e9)));
			$rows = $this->database->selectFromWriteConnection('SELECT id, token, queue, payload, attempt
				FROM jobq.reserve(?::text[], 1, ?::interval, ?::interval, ?)',
				['{' . implode(',', $queues) . '}', "$this->retryAfter s", "$wait s", 'laravel']);
			if ($rows)
				return new JobqJob($this->container, $this, $this->connectionName, $rows[0]);
			if ($wait < 1)
				break;
		}
		return null;
	}

	/** Cancels running jobs, too: workers find the leases lost. */
	public function clear($queue)
	{
		return $this->call('cancel_many(queue => ?)', [$this->getQueue($queue)]);
	}

	/**
	 * The name in jobq: '' is the default; the end of a name that is too long is replaced by a
	 * hash.
	 */
	public function getQueue($queue)
	{
		$queue = (string) ($queue ?: $this->default);
		return strlen($queue) <= self::LONGEST_NAME ? $queue
			: mb_strcut($queue, 0, self::LONGEST_NAME - 17) . '~' . substr(hash('sha256', $queue), 0, 16);
	}

	public function size($queue = null)
	{
		return $this->count('ready + scheduled + blocked + running', $queue);
	}

	public function pendingSize($queue = null)
	{
		return $this->count('ready', $queue);
	}

	public function delayedSize($queue = null)
	{
		return $this->count('scheduled', $queue);
	}

	public function reservedSize($queue = null)
	{
		return $this->count('running', $queue);
	}

	public function creationTimeOfOldestPendingJob($queue = null)
	{
		return $this->count("extract(epoch FROM oldest_ready)::bigint", $queue);
	}

	private function count(string $what, $queue)
	{
		$rows = $this->database->select("SELECT $what AS n FROM jobq.queues WHERE name = ?", [$this->getQueue($queue)]);
		return $rows ? $rows[0]->n : 0;
	}

	/** Call a function of jobq that returns a value. */
	public function call(string $call, array $values)
	{
		return $this->database->selectFromWriteConnection("SELECT jobq.$call AS value", $values)[0]->value;
	}

	/** Before the release, pass the exception of the attempt to the job.  Pass requests to stop
	 * the worker to pop(). */
	private function listen(): void
	{
		if (!$this->listens && $this->container->bound('events'))
			$this->container['events']->listen(JobExceptionOccurred::class, function ($event) {
				if ($event->job instanceof JobqJob)
					$event->job->exception = $event->exception;
			});
		$this->listens = true;
		foreach (extension_loaded('pcntl') ? self::SIGNALS : [] as $signal) {
			$handler = pcntl_signal_get_handler($signal);
			if ($handler instanceof \Closure && $handler !== ($this->handlers[$signal] ?? null)) {
				$this->stopping = false;	// a new worker
				pcntl_signal($signal, $this->handlers[$signal] = function (...$arguments) use ($handler) {
					$this->stopping = true;
					$handler(...$arguments);
				});
			}
		}
	}
}

class JobqJob extends Job implements JobContract
{
	private const LEASE_LOST = 'JQ011';

	public ?\Throwable $exception = null;
	private bool $settled = false;
	private bool $lost = false;
	private string $body;
	private int $before;

	public function __construct(Container $container, private JobqQueue $jobq, $connectionName, private object $row)
	{
		$this->container = $container;
		$this->connectionName = $connectionName;
		$this->queue = $row->queue;
		$this->body = Texts::unpack($row->payload);
		$this->before = $this->payload()['attempts'] ?? 0;
	}

	/** A heartbeat: hold the job for $seconds from now.  Throws if the lease is lost. */
	public function extend($seconds): void
	{
		$this->tell('extend(?::bigint, ?::bigint, ?::interval)', "$seconds s");
	}

	/** Report the progress, from 0 to 100.  Throws if the lease is lost. */
	public function progress(float $percent, ?string $message = null): void
	{
		$this->tell('set_progress(?::bigint, ?::bigint, ?::real, ?::text)', $percent, $message === null ? null : Texts::clean($message));
	}

	/** Store a log line with the job; the level is debug, info, warning or error.  Throws if the lease is lost. */
	public function log(string $message, string $level = 'info'): void
	{
		$this->tell('log(?::bigint, ?::bigint, ?::text, ?::text)', Texts::clean($message), $level);
	}

	/** The job is done or is a dead letter. */
	public function delete()
	{
		parent::delete();
		if ($this->hasFailed())
			$this->settle('reject(?::bigint, ?::bigint, ?)', $this->error() ?? 'failed by the handler');
		else
			$this->settle('ack(?::bigint, ?::bigint)');
	}

	/**
	 * After an exception, the attempt has failed.  Without an exception, the payload counts the
	 * attempt for Laravel.
	 */
	public function release($delay = 0)
	{
		parent::release($delay);
		$delay = max(0, $this->secondsUntil($delay)) . ' s';
		if ($this->exception)
			$this->settle('nack(?::bigint, ?::bigint, ?, ?::interval)', $this->error(), $delay);
		else
			$this->settle('release(?::bigint, ?::bigint, ?::interval, ?::jsonb || jsonb_build_object(\'attempts\', ?::int))', $delay,
				$this->row->payload, $this->before + 1);
	}

	/** Another worker may have a job whose lease is lost, so the failure cannot be recorded. */
	public function fail($e = null)
	{
		if ($this->lost) {
			parent::delete();
			return;
		}
		$this->exception = $e instanceof \Throwable ? $e : ($e === null ? $this->exception : new \Exception((string) $e));
		parent::fail($e);
	}

	public function attempts()
	{
		return $this->before + $this->row->attempt;
	}

	public function getJobId()
	{
		return $this->row->id;
	}

	public function getRawBody()
	{
		return $this->body;
	}

	private function error(): ?string
	{
		return $this->exception ? Texts::clean(get_class($this->exception) . ': ' . $this->exception->getMessage()) : null;
	}

	/**
	 * Record the end of the attempt; only the first call counts.  Throws if the end was not
	 * recorded, for example because the lease was lost.  The exception is only reported where
	 * throwing would hide the cause of the job's failure.
	 */
	private function settle(string $call, ...$values): void
	{
		if ($this->settled)
			return;
		try {
			$this->tell($call, ...$values);
			$this->settled = true;
		} catch (\Throwable $e) {
			if (!$this->exception && !$this->hasFailed() || !$this->container->bound(ExceptionHandler::class))
				throw $e;
			$this->container->make(ExceptionHandler::class)->report($e);
		}
	}

	private function tell(string $call, ...$values): void
	{
		try {
			$this->jobq->call($call, [$this->row->id, $this->row->token, ...$values]);
		} catch (\Throwable $e) {
			if ($e->getCode() === self::LEASE_LOST)
				$this->settled = $this->lost = true;
			throw $e;
		}
	}
}

/**
 * The failed jobs of Laravel are jobq's dead letters of jobs enqueued by JobqQueue.  Their ids are
 * the job ids; the uuid given by Laravel works as well.  $others stores the failed jobs of other
 * connections.
 */
class JobqFailedJobProvider implements FailedJobProviderInterface, PrunableFailedJobProvider
{
	public function __construct(private ConnectionInterface $database, private Factory $queues,
		private FailedJobProviderInterface $others)
	{
	}

	/** A job of jobq already is a dead letter. */
	public function log($connection, $queue, $payload, $exception)
	{
		return $this->queues->connection($connection) instanceof JobqQueue ? json_decode($payload, true)['uuid'] ?? null
			: $this->others->log($connection, $queue, $payload, $exception);
	}

	public function ids($queue = null)
	{
		return array_column(array_filter($this->all(), fn ($job) => $queue === null || $job->queue === $queue), 'id');
	}

	public function all()
	{
		return array_merge($this->select('true'), $this->others->all());
	}

	public function find($id)
	{
		return $this->select(...$this->is($id))[0] ?? $this->others->find($id);
	}

	public function forget($id)
	{
		return $this->delete(...$this->is($id)) > 0 || !$this->others instanceof NullFailedJobProvider && $this->others->forget($id);
	}

	public function flush($hours = null)
	{
		$this->delete('finished_at <= jobq_internal.clock() - ?::interval', ($hours ?? 0) . ' h');
		$hours === null ? $this->others->flush() : $this->others->flush($hours);
	}

	public function prune(\DateTimeInterface $before)
	{
		return $this->delete('finished_at < ?::timestamptz', $before->format(DATE_ATOM))
			+ ($this->others instanceof PrunableFailedJobProvider ? $this->others->prune($before) : 0);
	}

	private function is($id): array
	{
		return preg_match('/^[0-9]{1,18}$/D', $id) ? ['id = ?::bigint', $id] : ['payload ->> \'uuid\' = ?', (string) $id];
	}

	private function select(string $condition, ...$values): array
	{
		$rows = $this->database->selectFromWriteConnection("SELECT id, headers ->> 'laravel' AS connection, queue, payload, error AS exception,
				to_char(finished_at, 'YYYY-MM-DD HH24:MI:SS') AS failed_at
			FROM jobq.dead_letters WHERE headers ->> 'laravel' IS NOT NULL AND $condition ORDER BY id DESC", $values);
		foreach ($rows as $row)
			$row->payload = Texts::unpack($row->payload);
		return $rows;
	}

	private function delete(string $condition, ...$values): int
	{
		return $this->database->selectFromWriteConnection("SELECT jobq.delete_many(ids => ARRAY(SELECT id
			FROM jobq.dead_letters WHERE headers ->> 'laravel' IS NOT NULL AND $condition)) AS n", $values)[0]->n;
	}
}

/**
 * Texts that jsonb and text cannot store.  A payload remains a text, so that numbers keep all
 * digits.
 */
class Texts
{
	private const PACKED = 'base64:';

	/** Encode all text values with zero bytes, at any depth of a JSON text. */
	public static function pack(string $json): string
	{
		return self::each($json, '/\\\\u|"base64:/', '\\\\[^u]', fn ($text) => str_contains($text, "\0") || str_starts_with($text, self::PACKED)
			? self::PACKED . base64_encode($text) : $text);
	}

	public static function unpack(string $json): string
	{
		return self::each($json, '/"base64:/', '\\\\.', fn ($text) => str_starts_with($text, self::PACKED)
			? base64_decode(substr($text, strlen(self::PACKED))) : $text);
	}

	public static function clean(string $text): string
	{
		return str_replace("\0", "\u{fffd}", mb_scrub($text, 'UTF-8'));
	}

	/**
	 * Change each text that is not a key and matches the pattern.  The regular expression itself skips texts with no
	 * escapes but $harmless ones, because a call for each text of a payload would cost more than the rest.
	 */
	private static function each(string $json, string $pattern, string $harmless, \Closure $change): string
	{
		return !preg_match($pattern, $json) ? $json
			: preg_replace_callback('/"(?!base64:)(?:[^"\\\\]++|' . $harmless . ')*+"(*SKIP)(*FAIL)|"(?:[^"\\\\]++|\\\\.)*+"(\s*+:)?+/s',
				fn ($found) => isset($found[1]) ? $found[0]
					: json_encode($change(json_decode($found[0], false, 512, JSON_THROW_ON_ERROR)),
						JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES),
				$json) ?? throw new \JsonException(preg_last_error_msg());
	}
}

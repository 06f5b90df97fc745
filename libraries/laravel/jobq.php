<?php
/*
 * jobq as a queue of Laravel, from version 8 on.
 *
 * Load this file ("files" of "autoload" in composer.json, or require), say in boot() of a service provider
 *
 *	Queue::addConnector('jobq', fn () => new Jobq\Laravel\JobqConnector($this->app['db']));
 *
 * and have a connection in config/queue.php:
 *
 *	'jobq' => ['driver' => 'jobq', 'connection' => 'pgsql', 'queue' => 'default', 'retry_after' => 90, 'block_for' => 5],
 *
 * The queues must be for consumers: SELECT jobq.create_queue('default', mode => 'consumer').
 *
 * connection   the database connection, by which jobs are pushed, too: so they are pushed if, and when, its
 *              transaction commits
 * retry_after  seconds for which a job is held; more than any job takes that does not call $this->job->extend()
 * block_for    seconds that pop() waits for a job; none unless told.  Run queue:work with --sleep=0 then.  It
 *              waits for each queue of --queue by itself, but for all together where they are joined by "|":
 *              --queue='high|default'
 *
 * Laravel says how often a job is tried and when it comes again, as for its other queues; jobq counts the
 * attempts, and keeps the exceptions.  What fails for good is a dead letter of jobq, too.
 *
 * What is pushed has zero bytes where Laravel serializes properties that are not public.  jsonb has none, so
 * texts with one are kept in base64.  It is an error to push what has one in a key.
 */
namespace Jobq\Laravel;

use Illuminate\Container\Container;
use Illuminate\Contracts\Queue\ClearableQueue;
use Illuminate\Contracts\Queue\Job as JobContract;
use Illuminate\Contracts\Queue\Queue as QueueContract;
use Illuminate\Database\ConnectionInterface;
use Illuminate\Database\ConnectionResolverInterface;
use Illuminate\Queue\Connectors\ConnectorInterface;
use Illuminate\Queue\Events\JobExceptionOccurred;
use Illuminate\Queue\Jobs\Job;
use Illuminate\Queue\Queue;

class JobqConnector implements ConnectorInterface
{
	public function __construct(private ConnectionResolverInterface $connections)
	{
	}

	public function connect(array $config)
	{
		return new JobqQueue($this->connections->connection($config['connection'] ?? null), $config['queue'] ?? 'default',
			$config['retry_after'] ?? 90, $config['block_for'] ?? 0, $config['after_commit'] ?? false);
	}
}

class JobqQueue extends Queue implements QueueContract, ClearableQueue
{
	private bool $listens = false;

	public function __construct(private ConnectionInterface $database, private string $default, private float $retryAfter,
		private float $blockFor, $dispatchAfterCommit)
	{
		$this->dispatchAfterCommit = $dispatchAfterCommit;
	}

	public function push($job, $data = '', $queue = null)
	{
		return $this->later(0, $job, $data, $queue);
	}

	public function later($delay, $job, $data = '', $queue = null)
	{
		return $this->enqueueUsing($job, $this->createPayload($job, $queue ?? $this->default, $data), $queue, $delay,
			fn ($payload, $queue, $delay) => $this->enqueue($payload, $queue, $delay));
	}

	public function pushRaw($payload, $queue = null, array $options = [])
	{
		return $this->enqueue($payload, $queue, 0);
	}

	/** The number of attempts is Laravel's business, so jobq has no limit.  The backoff is for workers that die. */
	private function enqueue($payload, $queue, $delay)
	{
		$job = json_decode($payload, false, 512, JSON_THROW_ON_ERROR);
		$kind = mb_strcut($job->displayName ?? $job->job ?? 'laravel', 0, 100);
		return $this->call('enqueue(?, ?::jsonb, ?, delay => ?::interval, max_attempts => 0,
			backoff => \'fixed 1s\')', [$kind,
			json_encode(Texts::pack($job), JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION), $queue ?? $this->default,
			max(0, $this->secondsUntil($delay)) . ' s']);
	}

	public function pop($queue = null)
	{
		$this->listen();
		$queues = array_map(fn ($name) => '"' . addcslashes($name, '"\\') . '"', explode('|', $queue ?? $this->default));
		$rows = $this->database->selectFromWriteConnection('SELECT id, token, queue, payload, attempt
			FROM jobq.reserve(?::text[], 1, ?::interval, ?::interval, ?)',
			['{' . implode(',', $queues) . '}', "$this->retryAfter s", "$this->blockFor s", 'laravel']);
		return $rows ? new JobqJob($this->container, $this, $this->connectionName, $rows[0]) : null;
	}

	public function clear($queue)
	{
		return $this->call('clear(?)', [$queue ?? $this->default]);
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
		$rows = $this->database->select("SELECT $what AS n FROM jobq.queues WHERE name = ?", [$queue ?? $this->default]);
		return $rows ? $rows[0]->n : 0;
	}

	/** Call a function of jobq that returns one value. */
	public function call(string $call, array $values)
	{
		return $this->database->selectFromWriteConnection("SELECT jobq.$call AS value", $values)[0]->value;
	}

	/** Have a job know with which exception an attempt of it has ended, before it is released. */
	private function listen(): void
	{
		if (!$this->listens && $this->container->bound('events'))
			$this->container['events']->listen(JobExceptionOccurred::class, function ($event) {
				if ($event->job instanceof JobqJob)
					$event->job->exception = $event->exception;
			});
		$this->listens = true;
	}
}

class JobqJob extends Job implements JobContract
{
	public ?\Throwable $exception = null;

	public function __construct(Container $container, private JobqQueue $jobq, $connectionName, private object $row)
	{
		$this->container = $container;
		$this->connectionName = $connectionName;
		$this->queue = $row->queue;
		$row->payload = json_encode(Texts::unpack(json_decode($row->payload)), JSON_PRESERVE_ZERO_FRACTION);
	}

	/** A heartbeat: hold the job for so many seconds from now.  An exception says that the lease is lost. */
	public function extend($seconds): void
	{
		$this->settle('extend(?::bigint, ?::bigint, ?::interval)', "$seconds s");
	}

	/** It is done, or is a dead letter.  An exception says that the lease was lost, and nothing has changed. */
	public function delete()
	{
		parent::delete();
		if ($this->hasFailed())
			$this->settle('reject(?::bigint, ?::bigint, ?)', $this->error() ?? 'failed by the handler');
		else
			$this->settle('ack(?::bigint, ?::bigint)');
	}

	/** The attempt is over, and the next one comes after so many seconds. */
	public function release($delay = 0)
	{
		parent::release($delay);
		$this->settle('nack(?::bigint, ?::bigint, ?, ?::interval)', $this->error() ?? 'released by the handler',
			max(0, $this->secondsUntil($delay)) . ' s');
	}

	public function fail($e = null)
	{
		$this->exception = $e instanceof \Throwable ? $e : ($e === null ? $this->exception : new \Exception((string) $e));
		parent::fail($e);
	}

	public function attempts()
	{
		return $this->row->attempt;
	}

	public function getJobId()
	{
		return $this->row->id;
	}

	public function getRawBody()
	{
		return $this->row->payload;
	}

	private function error(): ?string
	{
		return $this->exception ? Texts::clean(get_class($this->exception) . ': ' . $this->exception->getMessage()) : null;
	}

	private function settle(string $call, ...$values): void
	{
		$this->jobq->call($call, [$this->row->id, $this->row->token, ...$values]);
	}
}

/** What jsonb and text cannot have. */
class Texts
{
	private const PACKED = 'base64:';

	/** Have each text without zero bytes, at any depth of what json_decode() returns. */
	public static function pack(mixed $value): mixed
	{
		return self::each($value, fn ($text) => str_contains($text, "\0") || str_starts_with($text, self::PACKED)
			? self::PACKED . base64_encode($text) : $text);
	}

	public static function unpack(mixed $value): mixed
	{
		return self::each($value, fn ($text) => str_starts_with($text, self::PACKED)
			? base64_decode(substr($text, strlen(self::PACKED))) : $text);
	}

	public static function clean(string $text): string
	{
		return str_replace("\0", "\u{fffd}", mb_scrub($text, 'UTF-8'));
	}

	private static function each(mixed $value, \Closure $change): mixed
	{
		if (is_string($value))
			return $change($value);
		if (is_array($value) || is_object($value))
			foreach ($value as $key => $inner)
				if (is_array($value))
					$value[$key] = self::each($inner, $change);
				else
					$value->$key = self::each($inner, $change);
		return $value;
	}
}

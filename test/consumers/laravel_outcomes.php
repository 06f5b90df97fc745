<?php
// The options of Laravel's queues, tried with one driver: prints a line for each scenario, with its
// outcome.  test/t/consume_laravel_outcomes.pl compares the drivers.
//
// usage: laravel_outcomes.php database | jobq	the outcomes with this driver
//        laravel_outcomes.php speed		the median of seconds that a batch of 500 jobs takes, by driver
//
// A scenario enqueues jobs, and runs them with Laravel's worker.  Handlers and listeners add notes.
// The outcome consists of the notes, the size of the queue, and the number of failed jobs.  Time
// passes only by advance(), for Laravel and for jobq.
namespace Illuminate\Foundation\Bus {
	trait Dispatchable
	{
	}
}

namespace {
	function dispatch($job)
	{
		return app(\Illuminate\Contracts\Bus\Dispatcher::class)->dispatch($job);
	}

	function app($name)
	{
		return \Illuminate\Container\Container::getInstance()->make($name);
	}
}

namespace Tests {

error_reporting(E_ALL & ~E_DEPRECATED);
foreach (['Queue', 'Events', 'Bus', 'Database', 'Console', 'Support', 'Cache', 'Encryption'] as $part)
	require "/usr/share/php/Illuminate/$part/autoload.php";
require __DIR__ . '/../../libraries/laravel/jobq.php';

use Illuminate\Bus\Batchable;
use Illuminate\Bus\Queueable;
use Illuminate\Bus\UniqueLock;
use Illuminate\Container\Container;
use Illuminate\Contracts\Cache\Repository as Cache;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Queue\ShouldBeEncrypted;
use Illuminate\Contracts\Queue\ShouldBeUnique;
use Illuminate\Contracts\Queue\ShouldBeUniqueUntilProcessing;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\Middleware\RateLimited;
use Illuminate\Queue\Middleware\ThrottlesExceptions;
use Illuminate\Queue\Middleware\WithoutOverlapping;
use Illuminate\Queue\SerializesModels;
use Illuminate\Queue\WorkerOptions;
use Illuminate\Support\Carbon;

$notes = tempnam(sys_get_temp_dir(), 'notes');

function note(string $what): void
{
	file_put_contents($GLOBALS['notes'], str_replace("\n", ' / ', $what) . ', ', FILE_APPEND);
}

/** A job that calls one of the functions below, by name. */
class Work implements ShouldQueue
{
	use Batchable, InteractsWithQueue, Queueable;

	public function __construct(public string $do = 'done', array $options = [], private $hidden = "zero\0byte")
	{
		foreach ($options as $name => $value)
			$this->$name = $value;
	}

	public function handle()
	{
		note("attempt {$this->attempts()}");
		if ($this->hidden !== "zero\0byte" && strlen($this->hidden) < 1000)
			note('not what was pushed');
		Handlers::{$this->do}($this);
	}

	public function failed($e)
	{
		note('failed: ' . ($e ? preg_replace('/^.*\\\\/', '', get_class($e)) . ' ' . $e->getMessage() : ''));
	}
}

class Middle extends Work
{
	public static array $layers = [];

	public function middleware()
	{
		return self::$layers;
	}
}

class Until extends Work
{
	public function retryUntil()
	{
		return Carbon::createFromTimestamp($this->until);
	}

	public $until;
}

class Waits extends Work
{
	public function backoff()
	{
		return [1, 2, 3];
	}
}

class Unique extends Work implements ShouldBeUnique
{
	public function uniqueId()
	{
		return 'one';
	}
}

class UniqueUntil extends Work implements ShouldBeUniqueUntilProcessing
{
	public function uniqueId()
	{
		return 'one';
	}
}

class Secret extends Work implements ShouldBeEncrypted
{
}

class Paid
{
	public function __construct(public int $invoice)
	{
	}
}

/** A listener that is itself a job. */
class SendReceipt implements ShouldQueue
{
	use InteractsWithQueue;

	public $tries = 2;
	public $delay = 60;
	public $queue = 'high';

	public function shouldQueue(Paid $paid)
	{
		return $paid->invoice > 0;
	}

	public function handle(Paid $paid)
	{
		note("receipt {$paid->invoice} attempt {$this->attempts()}");
		if ($paid->invoice == 13)
			throw new \Exception('no receipt');
	}

	public function failed(Paid $paid, $e)
	{
		note("failed: {$e->getMessage()}");
	}
}

class Row extends \Illuminate\Database\Eloquent\Model
{
	public $timestamps = false;
	protected $table = 'laravel_row';
}

class OfRow implements ShouldQueue
{
	use InteractsWithQueue, Queueable, SerializesModels;

	public function __construct(public Row $row)
	{
	}

	public function handle()
	{
		note("row {$this->row->text}");
	}

	public function failed($e)
	{
		note('failed: ' . get_class($e));
	}
}

class OfRowThatMayBeMissing extends OfRow
{
	public $deleteWhenMissingModels = true;
}

class Plain
{
	public function go($job, $data)
	{
		note('data ' . json_encode($data));
		$job->delete();
	}
}

class Handlers
{
	public static function done($job) { }
	public static function fails($job) { throw new \Exception('no image'); }
	public static function fails_twice($job) { if ($job->attempts() < 3) throw new \Exception('not yet'); }
	public static function fails_five($job) { if ($job->attempts() < 6) throw new \Exception('not yet'); }
	public static function release_now($job) { if ($job->attempts() < 3) $job->release(); }
	public static function release_later($job) { if ($job->attempts() < 2) $job->release(60); }
	public static function releases_always($job) { $job->release(); }
	public static function release_twice($job) { if ($job->attempts() < 2) { $job->release(60); $job->release(3600); } }
	public static function release_throw($job) { $job->release(60); throw new \Exception('after release'); }
	public static function release_delete($job) { $job->release(60); $job->delete(); }
	public static function fail_with($job) { $job->fail(new \Exception('this is no image')); }
	public static function fail_plainly($job) { $job->fail(); }
	public static function fail_release($job) { $job->fail(new \Exception('first')); $job->release(60); }
	public static function deletes($job) { $job->delete(); }
	public static function delete_throw($job) { $job->delete(); throw new \Exception('after delete'); }
	public static function hangs($job) { while (true) usleep(10000); }
	public static function terminates($job) { posix_kill(getmypid(), SIGTERM); }
	public static function restarts($job) { app(Cache::class)->forever('illuminate:queue:restart', 1 + (int) app(Cache::class)->get('illuminate:queue:restart')); }
	public static function adds($job) { $job->batch()->add([new Work, new Work]); }
	public static function cancels($job) { $job->batch()->cancel(); }
	public static function tells_batch($job) { note($job->batch()->cancelled() ? 'cancelled' : 'not cancelled'); }
	public static function enqueues($job) { dispatch(new Work); }
	public static function deletes_within($job)
	{
		app('db')->connection()->transaction(function () use ($job) {
			(new Row)->forceFill(['text' => 'nine'])->save();
			$job->delete();
			if ($job->attempts() < 2)
				throw new \Exception('undone');
		});
	}
	public static function transaction_open($job) { app('db')->connection()->beginTransaction(); dispatch(new Work); app('db')->connection()->commit(); }
}

$driver = $argv[1];
$container = Container::getInstance();
$events = new \Illuminate\Events\Dispatcher($container);
$container->instance(\Illuminate\Contracts\Container\Container::class, $container);
$container->instance('events', $events);
$container->instance(\Illuminate\Contracts\Events\Dispatcher::class, $events);
$container->instance('config', new \Illuminate\Support\Fluent);
$container['config']['queue.failed'] = ['driver' => 'jobq', 'database' => 'default'];
$cache = new \Illuminate\Cache\Repository(new \Illuminate\Cache\ArrayStore);
$container->instance(Cache::class, $cache);
$container->instance('cache', $cache);
$container->instance(\Illuminate\Cache\RateLimiter::class, new \Illuminate\Cache\RateLimiter($cache));
$container->instance('encrypter', new \Illuminate\Encryption\Encrypter(str_repeat('k', 16)));
$container->alias('encrypter', \Illuminate\Contracts\Encryption\Encrypter::class);
$container->instance(ExceptionHandler::class, $handler = new class implements ExceptionHandler {
	public function report(\Throwable $e) { note('reported: ' . $e->getMessage()); }
	public function shouldReport(\Throwable $e) { return true; }
	public function render($request, \Throwable $e) { }
	public function renderForConsole($output, \Throwable $e) { }
});

$manager = new \Illuminate\Database\Capsule\Manager($container);
$manager->addConnection(['driver' => 'pgsql', 'host' => getenv('PGHOST'), 'port' => getenv('PGPORT'), 'database' => 'postgres',
	'username' => getenv('PGUSER'), 'password' => '', 'charset' => 'utf8']);
$manager->setEventDispatcher($events);
$manager->bootEloquent();
$db = $manager->getConnection();
$container->instance('db', $manager->getDatabaseManager());
$container->instance('db.transactions', new \Illuminate\Database\DatabaseTransactionsManager);
$db->setTransactionManager($container['db.transactions']);

$queues = new \Illuminate\Queue\Capsule\Manager($container);
$events->setQueueResolver(fn () => $queues->getQueueManager());
$container->instance('queue', $queues->getQueueManager());
$container->instance(\Illuminate\Contracts\Queue\Factory::class, $queues->getQueueManager());
// "main" waits for a job that must come; "look" sees whether there is one
foreach (['main' => 10, 'look' => 0.3] as $name => $wait)
	$queues->addConnection(['driver' => $driver, 'table' => 'jobs', 'queue' => 'default', 'retry_after' => 90, 'block_for' => $wait], $name);
$queues->addConnection(['driver' => 'sync'], 'sync');
$container['config']['queue.default'] = 'main';
$queues->getQueueManager()->addConnector('database', fn () => new \Illuminate\Queue\Connectors\DatabaseConnector($container['db']));
$container->singleton('queue.failer', fn () => new \Illuminate\Queue\Failed\DatabaseUuidFailedJobProvider($container['db'], 'default', 'failed_jobs'));
$container['config']['queue.failed'] = $driver == 'jobq' ? ['driver' => 'jobq', 'database' => 'default'] : ['driver' => 'database-uuids'];
(new \Jobq\Laravel\JobqServiceProvider($container))->boot();
$failer = $container['queue.failer'];

$bus = new \Illuminate\Bus\Dispatcher($container, fn ($connection = null) => $queues->getConnection($connection ?? 'main'));
foreach ([\Illuminate\Contracts\Bus\Dispatcher::class, \Illuminate\Contracts\Bus\QueueingDispatcher::class] as $name)
	$container->instance($name, $bus);
$container->instance(\Illuminate\Bus\BatchRepository::class,
	new \Illuminate\Bus\DatabaseBatchRepository(new \Illuminate\Bus\BatchFactory($queues->getQueueManager()), $db, 'job_batches'));

$events->listen(\Illuminate\Queue\Events\JobFailed::class, fn ($event) => $failer->log($event->connectionName, $event->job->getQueue(),
	$event->job->getRawBody(), $event->exception));

function queue()
{
	return $GLOBALS['queues']->getConnection('main');
}

function options(...$given): WorkerOptions
{
	return new WorkerOptions(...$given + ['sleep' => 0, 'memory' => 1024]);
}

function worker(): \Illuminate\Queue\Worker
{
	return (new \Illuminate\Queue\Worker($GLOBALS['queues']->getQueueManager(), $GLOBALS['events'], $GLOBALS['handler'], fn () => false))
		->setCache($GLOBALS['cache']);
}

/** Run so many attempts, which must be due. */
function run(int $attempts = 1, string $from = 'default', ...$options): void
{
	for ($i = 0; $i < $attempts; $i++)
		worker()->runNextJob('main', $from, options(...$options));
}

/** Nothing is due, or it leaves a note. */
function idle(): void
{
	worker()->runNextJob('look', 'default', options());
	note('idle');
}

/** Work as queue:work does; returns the exit status. */
function daemon(string $connection = 'look', ...$options): void
{
	note('exit ' . worker()->daemon($connection, 'default', options(...$options)));
}

/** The same in a process of its own, which may be killed. */
function process(...$options): void
{
	$GLOBALS['db']->disconnect();
	if (($pid = pcntl_fork()) == 0)
		exit(worker()->daemon('main', 'default', options(...$options, maxJobs: 1)));
	pcntl_waitpid($pid, $status);
	note(pcntl_wifsignaled($status) ? 'signal ' . pcntl_wtermsig($status) : 'exit ' . pcntl_wexitstatus($status));
}

function advance(int $seconds): void
{
	static $passed = 0;
	$passed += $seconds;
	Carbon::setTestNow(Carbon::now()->addSeconds($seconds));
	if ($GLOBALS['driver'] == 'jobq')
		$GLOBALS['db']->select('SELECT jobq.test_clock(?::interval)', ["$passed s"]);
}

function sizes(): string
{
	return 'default ' . queue()->size('default') . ' high ' . queue()->size('high');
}

function unique($job): void
{
	$lock = new UniqueLock($GLOBALS['cache']);
	note($lock->acquire($job) ? 'enqueued ' . (bool) dispatch($job) : 'not enqueued');
}

function batch(array $jobs): \Illuminate\Bus\PendingBatch
{
	return $GLOBALS['bus']->batch($jobs)
		->then(fn ($batch) => note('then'))
		->catch(fn ($batch, $e) => note("catch {$e->getMessage()}"))
		->finally(fn ($batch) => note("finally {$batch->totalJobs} {$batch->pendingJobs} {$batch->failedJobs} {$batch->progress()}"));
}

// closures that are serialized stand alone in their lines, because Laravel finds the code by its line
$called = function () { note('called'); };
$throws = function () { throw new \Exception('no'); };
$caught = function ($e) { note("caught {$e->getMessage()}"); };

function listen(string $event, \Closure $do): void
{
	$GLOBALS['events']->listen("Illuminate\\Queue\\Events\\$event", $do);
	$GLOBALS['heard'][] = "Illuminate\\Queue\\Events\\$event";
}

function command(string $class, array $arguments): void
{
	$class = "\\Illuminate\\Queue\\Console\\{$class}Command";
	$run = new $class;
	$run->setLaravel($GLOBALS['container']);
	$run->run(new \Symfony\Component\Console\Input\ArrayInput($arguments), $output = new \Symfony\Component\Console\Output\BufferedOutput);
	note(preg_replace('/\[[-0-9a-f]+\]|\d{3,}/', 'ID', trim($output->fetch())));
}

function failed_id()
{
	$failed = $GLOBALS['failer']->all();
	return end($failed)->id;
}

/** Try a scenario, print the outcome, and clean up. */
function scenario(string $name, \Closure $do): void
{
	global $notes, $failer, $cache, $events, $heard;

	file_put_contents($notes, '');
	$heard = [];
	try {
		$do();
	} catch (\Throwable $e) {
		note('THROWN ' . get_class($e) . ": {$e->getMessage()}");
	}
	note(sizes());
	note('failed jobs ' . count($failer->all()));
	echo "$name: ", rtrim(file_get_contents($notes), ', '), "\n";
	foreach (['default', 'high'] as $queue)
		queue()->clear($queue);
	$failer->flush();
	$cache->getStore()->flush();
	$cache->getStore()->locks = [];
	foreach (array_unique($heard) as $event)
		$events->forget($event);
	Middle::$layers = [];
}

if ($driver == 'speed') {
	$seconds = ['database' => [], 'jobq' => []];
	foreach (['database', 'jobq'] as $name)
		$queues->addConnection(['driver' => $name, 'table' => 'jobs', 'queue' => 'default'], $name);
	for ($i = 0; $i < 7; $i++)
		foreach (array_keys($seconds) as $name) {
			$since = hrtime(true);
			$bus->batch(array_fill(0, 500, new Work))->onConnection($name)->dispatch();
			$seconds[$name][] = (hrtime(true) - $since) / 1e9;
			$queues->getConnection($name)->clear('default');
		}
	foreach ($seconds as $name => $all) {
		sort($all);
		echo "$name $all[3]\n";
	}
	exit;
}
Carbon::setTestNow(Carbon::now());
require __DIR__ . '/laravel_scenarios.php';
unlink($notes);
}

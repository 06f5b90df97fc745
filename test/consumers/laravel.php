<?php
// Laravel's queue, from Debian's packages, with jobq as the driver.
//
// usage: laravel.php push WHAT [DELAY [QUEUE]]	enqueues a job, and writes its id
//        laravel.php database WHAT ATTEMPTS	enqueues a job with Laravel's driver "database", as if attempted so often, and writes its uuid
//        laravel.php bulk NUMBER WHAT		enqueues so many, and writes how it went
//        laravel.php work [QUEUE [BLOCK]]	works as "artisan queue:work" does
//        laravel.php show size | clear
//        laravel.php queue:COMMAND [NAME=VALUE...]	as artisan
//
// The jobs do what WHAT says, and note in files, as the consumers of
// test/perl/JobqLibrary.pm do, with which token they have begun which job.
namespace Tests;

error_reporting(E_ALL & ~E_DEPRECATED);
setlocale(LC_ALL, '');		// as applications do
foreach (['Queue', 'Events', 'Bus', 'Database', 'Console', 'Support'] as $part)
	require "/usr/share/php/Illuminate/$part/autoload.php";
require __DIR__ . '/../../libraries/laravel/jobq.php';

use Illuminate\Bus\Queueable;
use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\WorkerOptions;

function note(string $what, $id): void
{
	file_put_contents(getenv('FOLDER') . "/$what", "$id " . getmypid() . "\n", FILE_APPEND);
}

class Work implements ShouldQueue
{
	use InteractsWithQueue, Queueable;

	public $tries = 3;
	public $backoff = 0;

	public function __construct(private string $do, protected array $more = ["zero\0byte", 'base64:text'])
	{
		if (str_starts_with($do, 'once, '))
			$this->tries = 1;
	}

	public function handle()
	{
		note('began', $this->job->getJobId());
		note("attempt of $this->do", $this->attempts());
		if ($this->more != ["zero\0byte", 'base64:text'])
			throw new \Exception('the payload is not what was pushed');
		if ($this->do == 'fail')
			throw new \Exception("no image\0");
		if ($this->do == 'give up')
			$this->fail(new \Exception('this is no image'));
		if ($this->do == 'once more' && $this->attempts() == 1)
			$this->release(0);
		if ($this->do == 'tell') {
			$this->job->progress(40, "soon\0");
			$this->job->log('first line');
			$this->job->log('second line', 'warning');
			while (!file_exists(getenv('FOLDER') . '/told'))
				usleep(20000);
		}
		if ($this->do == 'once, released, throws') {
			$this->release(3600);
			throw new \Exception('after its release');
		}
		if ($this->do == 'settles twice' && $this->attempts() == 1) {
			$this->release(0);
			$this->release(3600);
			$this->delete();
			$this->fail(new \Exception('released before'));
		}
		while ($this->do == 'hold' && !file_exists(getenv('FOLDER') . '/go')) {
			usleep(20000);
			try {
				if (file_exists(getenv('FOLDER') . '/extend'))
					$this->job->extend(300);
			} catch (\Exception $e) {
				note('lost', $this->job->getJobId());
				throw $e;
			}
		}
		if ($this->do == 'hold' && file_exists(getenv('FOLDER') . '/throw'))
			throw new \Exception('the true reason');
	}

	public function failed($e)
	{
		note('failed', $e->getMessage());
	}
}

class Plain
{
	public function go($job, $data)
	{
		note('began', $job->getJobId());
		note('data', json_encode($data));
		$job->delete();
	}
}

$container = Container::getInstance();
$events = new \Illuminate\Events\Dispatcher($container);
$container->instance(\Illuminate\Contracts\Container\Container::class, $container);
$container->instance('events', $events);
$container->instance('config', new \Illuminate\Support\Fluent);
$container->instance(\Illuminate\Contracts\Events\Dispatcher::class, $events);
$container->singleton(\Illuminate\Contracts\Bus\Dispatcher::class, fn () => new \Illuminate\Bus\Dispatcher($container));
$handler = new class implements ExceptionHandler {
	public function report(\Throwable $e) { fwrite(STDERR, $e->getMessage() . "\n"); }
	public function shouldReport(\Throwable $e) { return true; }
	public function render($request, \Throwable $e) { }
	public function renderForConsole($output, \Throwable $e) { }
};

$container->instance(ExceptionHandler::class, $handler);

[, $command, $what, $more, $name] = $argv + [null, null, null, null, null];
$database = new \Illuminate\Database\Capsule\Manager($container);
$database->addConnection(['driver' => 'pgsql', 'host' => getenv('PGHOST'), 'port' => getenv('PGPORT'), 'database' => 'postgres',
	'username' => getenv('PGUSER'), 'password' => '', 'charset' => 'utf8']);
$container->instance('db', $database->getDatabaseManager());
$queue = new \Illuminate\Queue\Capsule\Manager($container);
$queue->addConnection(['driver' => 'jobq', 'queue' => 'laravel', 'retry_after' => 60, 'priorities' => [Plain::class => -7],
	'block_for' => $command == 'work' ? (int) ($more ?? 5) : 5]);
$container->instance('queue', $queue->getQueueManager());
$container['config']['queue.failed'] = ['driver' => 'jobq', 'database' => 'default', 'table' => getenv('FAILED_TABLE') ?: null];
$container->singleton('queue.failer', fn () => new \Illuminate\Queue\Failed\NullFailedJobProvider);
(new \Jobq\Laravel\JobqServiceProvider($container))->boot();
$events->listen(\Illuminate\Queue\Events\JobFailed::class, fn ($event) => note('logged', $container['queue.failer']->log(
	$event->connectionName, $event->job->getQueue(), $event->job->getRawBody(), $event->exception)));
$events->listen(\Illuminate\Queue\Events\Looping::class, fn ($event) => note('looping', $event->queue));
$jobq = $queue->getConnection();

if ($command == 'push' && $what == 'odd key')
	try {
		echo $jobq->push('Tests\Plain@go', ["\0k" => 1]), "\n";
	} catch (\JsonException $e) {
		fwrite(STDERR, $e->getMessage() . "\n");
	}
elseif ($command == 'push')
	echo $what == 'plain' ? $jobq->push('Tests\Plain@go', ['a' => ["\0b", 1.5, []]])
		: ($what == 'raw' ? $jobq->pushRaw($more) : $jobq->later((int) $more, new Work($what), '', $name)), "\n";
elseif ($command == 'database') {
	$table = $database->getConnection()->table('jobs');
	$queue->addConnection(['driver' => 'database', 'table' => 'jobs', 'queue' => 'laravel'], 'database');
	$queue->getQueueManager()->addConnector('database', fn () => new \Illuminate\Queue\Connectors\DatabaseConnector($container['db']));
	$id = $queue->getConnection('database')->push(new Work($what));
	$table->where('id', $id)->update(['attempts' => (int) $more]);
	echo json_decode($table->find($id)->payload)->uuid, "\n";
}
elseif ($command == 'bulk') {
	$statements = $queued = 0;
	$database->getConnection()->setEventDispatcher($events);
	$events->listen(\Illuminate\Database\Events\QueryExecuted::class, function () use (&$statements) { $statements++; });
	$events->listen(\Illuminate\Queue\Events\JobQueued::class, function ($event) use (&$queued) { $queued += $event->id > 0; });
	$jobq->bulk(array_fill(0, (int) $what, new Work($more)));
	echo "$statements statements, $queued events\n";
}
elseif ($command == 'show')
	echo $what == 'size' ? $jobq->size() : $jobq->clear(null), "\n";
elseif (str_starts_with($command, 'queue:')) {
	$class = '\Illuminate\Queue\Console\\' . ['queue:failed' => 'ListFailed', 'queue:retry' => 'Retry', 'queue:forget' => 'ForgetFailed',
		'queue:flush' => 'FlushFailed', 'queue:prune-failed' => 'PruneFailedJobs'][$command] . 'Command';
	$run = new $class;
	$run->setLaravel($container);
	$arguments = [];
	foreach (array_slice($argv, 2) as $argument) {
		[$key, $value] = explode('=', $argument);
		$arguments[$key] = $key == 'id' && $command == 'queue:retry' ? [$value] : $value;
	}
	$run->run(new \Symfony\Component\Console\Input\ArrayInput($arguments), $output = new \Symfony\Component\Console\Output\BufferedOutput);
	echo $output->fetch();
} else {
	$worker = new \Illuminate\Queue\Worker($queue->getQueueManager(), $events, $handler, fn () => false);
	exit($worker->daemon('default', $what, new WorkerOptions('default', 0, 1024, 3600, 0)));
}

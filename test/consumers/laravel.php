<?php
// Laravel's queue with jobq as its driver, as Debian packages it.
//
// usage: laravel.php push WHAT [DELAY]	enqueues a job, and writes its id
//        laravel.php work [QUEUE]			works as "artisan queue:work" does
//        laravel.php show size | clear
//
// The jobs do what WHAT says, and note in files, as the consumers of
// test/perl/JobqLibrary.pm do, with which token they have begun which job.
namespace Tests;

error_reporting(E_ALL & ~E_DEPRECATED);
foreach (['Queue', 'Events', 'Bus', 'Database'] as $part)
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
	}

	public function handle()
	{
		note('began', $this->job->getJobId());
		if ($this->more != ["zero\0byte", 'base64:text'])
			throw new \Exception('the payload is not what was pushed');
		if ($this->do == 'fail')
			throw new \Exception("no image\0");
		if ($this->do == 'give up')
			$this->fail(new \Exception('this is no image'));
		if ($this->do == 'once more' && $this->attempts() == 1)
			$this->release(0);
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
$container->instance(\Illuminate\Contracts\Events\Dispatcher::class, $events);
$container->singleton(\Illuminate\Contracts\Bus\Dispatcher::class, fn () => new \Illuminate\Bus\Dispatcher($container));
$handler = new class implements ExceptionHandler {
	public function report(\Throwable $e) { fwrite(STDERR, $e->getMessage() . "\n"); }
	public function shouldReport(\Throwable $e) { return true; }
	public function render($request, \Throwable $e) { }
	public function renderForConsole($output, \Throwable $e) { }
};

$database = new \Illuminate\Database\Capsule\Manager($container);
$database->addConnection(['driver' => 'pgsql', 'host' => getenv('PGHOST'), 'port' => getenv('PGPORT'), 'database' => 'postgres',
	'username' => getenv('PGUSER'), 'password' => '', 'charset' => 'utf8']);
$queue = new \Illuminate\Queue\Capsule\Manager($container);
$queue->addConnection(['driver' => 'jobq', 'queue' => 'laravel', 'retry_after' => 60, 'block_for' => 5]);
$queue->getQueueManager()->addConnector('jobq', fn () => new \Jobq\Laravel\JobqConnector($database->getDatabaseManager()));
$jobq = $queue->getConnection();

[, $command, $what, $delay] = $argv + [null, null, null, 0];
if ($command == 'push' && $what == 'odd key')
	try {
		echo $jobq->push('Tests\Plain@go', ["\0k" => 1]), "\n";
	} catch (\JsonException $e) {
		fwrite(STDERR, $e->getMessage() . "\n");
	}
elseif ($command == 'push')
	echo $what == 'plain' ? $jobq->push('Tests\Plain@go', ['a' => ["\0b", 1.5, []]]) : $jobq->later((int) $delay, new Work($what)), "\n";
elseif ($command == 'show')
	echo $what == 'size' ? $jobq->size() : $jobq->clear(null), "\n";
else {
	$worker = new \Illuminate\Queue\Worker($queue->getQueueManager(), $events, $handler, fn () => false);
	exit($worker->daemon('default', $what, new WorkerOptions('default', 0, 1024, 3600, 0)));
}
